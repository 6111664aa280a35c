"""``python -m bench.files``: what a small merge costs at the start, and into how many files; no peers here.

CPU seconds, the least of some passes, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_ROWS = 10
_HITS = 10

_MAKE = """
import sys, pyarrow as pa, pyarrow.parquet as pq
root, files, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for n in range(files):
    ids = pa.array(range(n * rows, (n + 1) * rows), pa.int64())
    table = pa.table({"id": ids, "v": [0.5] * rows, "s": ["old"] * rows})
    pq.write_table(table, f"{root}/part-{n:07d}.parquet", store_schema=False)
"""

_MERGE = """
import gc, json, os, resource, sys, time
began = time.process_time()
import intarsia
root, source, what = sys.argv[1:]
if what == "cold":
    intarsia.merge(source, root, on="id")
    print(json.dumps({"cpu": time.process_time()}))
    raise SystemExit
import pyarrow.parquet as pq
from intarsia.tables.parquet import ParquetTable
from intarsia.tables.parquet.listing import list_data_files
rows, table = pq.read_table(source), ParquetTable(root)
intarsia.plan
def resident(): return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
if what == "warm":
    intarsia.merge(rows, root, on="id", engine="arrow")
gc.collect(); before = resident(); began = time.process_time()
if what == "list":
    held = list_data_files(table.storage, table.control.root)
elif what == "snapshot":
    held = table.snapshot()
else:
    held = intarsia.merge(rows, root, on="id", engine="arrow")
    assert held.updated == rows.num_rows
print(json.dumps({"cpu": time.process_time() - began, "bytes": resident() - before}))
"""


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        _show_start(Path(directory), options.passes)
        for files in options.files:
            _show_files(Path(directory), files, options.passes)
    return 0


def _show_start(directory: Path, passes: int) -> None:
    root, source = _make(directory, _HITS)
    print("at the start", flush=True)
    programs = {
        "python -c pass": ["-c", "pass"],
        "import intarsia": ["-c", "import intarsia"],
        "intarsia --help": ["-m", "intarsia", "--help"],
        "import pyarrow": ["-c", "import pyarrow"],
    }
    for name, arguments in programs.items():
        _print(name, min(_run_program(arguments) for _ in range(passes)))
    for name, what in (("10 rows into 10 files, cold", "cold"), ("the same, warm", "warm")):
        _print(name, min(_measure(root, source, what)["cpu"] for _ in range(passes)))


def _show_files(directory: Path, files: int, passes: int) -> None:
    root, source = _make(directory, files)
    cache = root.parent / f".{root.name}.intarsia" / "footers.cache"
    print(f"{files:,} files, {_HITS} of them hit", flush=True)
    _print("list", min(_measure(root, source, "list")["cpu"] for _ in range(passes)))
    for name, is_known in (("first", False), ("cached", True)):
        for what in ("merge", "snapshot"):
            found = []
            for _ in range(passes):
                if not is_known:
                    cache.unlink(missing_ok=True)
                found.append(_measure(root, source, what))
            least = min(one["cpu"] for one in found)
            _print(f"{name} {what}", least, f"{found[0]['bytes'] / files:,.0f} bytes per file")
            if not is_known and what == "snapshot":
                _measure(root, source, "merge")  # which makes the cache again


def _make(directory: Path, files: int) -> tuple[Path, Path]:
    root, source = directory / f"files-{files}", directory / f"source-{files}"
    root.mkdir()
    source.mkdir()
    subprocess.run([sys.executable, "-c", _MAKE, str(root), str(files), str(_ROWS)], check=True)
    picked = [number * (files // _HITS) * _ROWS + 3 for number in range(_HITS)]
    rows = f"pa.table({{'id': {picked}, 'v': [1.5] * {_HITS}, 's': ['new'] * {_HITS}}})"
    script = (
        f"import pyarrow as pa, pyarrow.parquet as pq; pq.write_table({rows}, {str(source / 's.parquet')!r})"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    return root, source / "s.parquet"


def _measure(root: Path, source: Path, what: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", _MERGE, str(root), str(source), what],
        env=_make_environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _run_program(arguments: Sequence[str]) -> float:
    """CPU seconds of a whole process."""
    before = os.times()
    subprocess.run([sys.executable, *arguments], env=_make_environment(), check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _make_environment() -> dict[str, str]:
    """With bytecode, as an installed package has it."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "intarsia-bench-bytecode")}


def _print(name: str, seconds: float, more: str = "") -> None:
    print(f"  {name:<28} {seconds:8.3f} s  {more}".rstrip(), flush=True)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.files", description=__doc__)
    parser.add_argument("--files", nargs="*", type=int, default=[10_000], help="how many (default 10,000)")
    parser.add_argument("--passes", type=int, default=3, help="the least counts (default 3)")
    parser.add_argument("--dir", help="where to make the data")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
