"""``python -m bench.files``: what a small merge costs at the start, and into how many files; no peers here.

CPU seconds, the least of some passes, each in a process of its own. How datasets and tables of many files are
made, and what of them is real, is in :mod:`bench.many_files`.
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

_HITS = 10
_LINKED = 1_000_000
"""From this many files on most are links, and the cache is prepared."""

_START = """
import json, sys, time
began = time.process_time()
import intarsia
root, source, what = sys.argv[1:]
if what == "cold":
    intarsia.merge(source, root, on="id")
    print(json.dumps({"cpu": time.process_time()}))
    raise SystemExit
import pyarrow.parquet as pq
rows = pq.read_table(source)
intarsia.merge(rows, root, on="id", engine="arrow")
began = time.process_time()
intarsia.merge(rows, root, on="id", engine="arrow")
print(json.dumps({"cpu": time.process_time() - began}))
"""


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        _show_start(Path(directory), options.passes)
        for files in options.files:
            _show_parquet(Path(directory), files, options.passes)
            if options.iceberg:
                _show_iceberg(Path(directory), files, options.passes)
    return 0


def _show_start(directory: Path, passes: int) -> None:
    root = directory / "start"
    _run_child("make", "parquet", root, _HITS)
    print("at the start", flush=True)
    programs = {
        "python -c pass": ["-c", "pass"],
        "import intarsia": ["-c", "import intarsia"],
        "intarsia --help": ["-m", "intarsia", "--help"],
        "import pyarrow": ["-c", "import pyarrow"],
    }
    for name, arguments in programs.items():
        _print(name, min(_run_program(arguments) for _ in range(passes)))
    arguments = ["-c", _START, str(root / "data"), str(root / "source.parquet")]
    for name, what in (("10 rows into 10 files, cold", "cold"), ("the same, warm", "warm")):
        _print(name, min(_run_json([*arguments, what])["cpu"] for _ in range(passes)))


def _show_parquet(directory: Path, files: int, passes: int) -> None:
    linked = files >= _LINKED
    root = directory / f"parquet-{files}"
    _run_child("make", "linked" if linked else "parquet", root, files)
    print(f"{files:,} files, {_HITS} of them hit{', most of them links' if linked else ''}", flush=True)
    measured = ["list", "plan", "merge"]
    if not linked:  # a link to another file's bytes has no footer of its own
        for what in measured:
            _show(f"{what}, no cache", "parquet", root, files, what, passes=passes, forget=True)
        _run_child("measure", "parquet", root, files, "merge")  # which makes the cache
    for what in ("scandir", *measured):
        _show(what, "parquet", root, files, what, passes=passes)


def _show_iceberg(directory: Path, files: int, passes: int) -> None:
    for kind in ("iceberg", "iceberg_partitioned"):
        root = directory / f"{kind}-{files}"
        _run_child("make", kind, root, files)
        print(f"{files:,} files of an Iceberg table ({kind}), {_HITS} of them hit", flush=True)
        for what in ("list", "plan", "plan again", "merge"):
            _show(what, kind, root, files, what, passes=1 if what == "merge" else passes)


def _show(
    name: str, kind: str, root: Path, files: int, what: str, *, passes: int, forget: bool = False
) -> None:
    found = []
    for _ in range(passes):
        if forget:
            (root / ".data.intarsia" / "footers.cache").unlink(missing_ok=True)
        found.append(_run_child("measure", kind, root, files, what))
    least, held = min(one["cpu"] for one in found), min(one["bytes"] for one in found)
    _print(name, least, f"{held / files:,.0f} bytes per file")


def _run_child(action: str, kind: str, root: Path, files: int, what: str = "") -> dict[str, float]:
    return _run_json(["-m", "bench.many_files", action, kind, str(root), str(files), what])


def _run_json(arguments: Sequence[str]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, *arguments], env=_make_environment(), check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout or "{}")
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
    parser.add_argument("--iceberg", action="store_true", help="Iceberg tables as well")
    parser.add_argument("--passes", type=int, default=3, help="the least counts (default 3)")
    parser.add_argument("--dir", help="where to make the data")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
