"""What is loaded by importing the package, by asking for help and by a small merge; nothing is timed here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

HEAVY = {"pyarrow", "numpy", "pandas", "duckdb", "pyspark", "pyiceberg", "fsspec", "sqlglot", "rich", "click"}
LIGHT = {"intarsia", "intarsia.common", "intarsia.common.lazy"}


def _modules_after(script: str) -> set[str]:
    code = f"import json, sys\n{script}\nsys.stderr.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr))


def test_importing_the_package_loads_its_list_of_names_only() -> None:
    loaded = _modules_after("import intarsia")
    assert {name for name in loaded if name.startswith("intarsia")} == LIGHT
    assert loaded & HEAVY == set()


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--version"]])
def test_help_loads_click_and_no_command(arguments: list[str]) -> None:
    loaded = _modules_after(
        f"from intarsia.cli import main\ntry:\n    main({arguments})\nexcept SystemExit:\n    pass"
    )
    assert {name for name in loaded if name.startswith("intarsia")} == LIGHT | {
        "intarsia.cli",
        "intarsia.cli.commands",
    }
    assert loaded & HEAVY == {"click"}


def test_a_merge_on_arrow_loads_no_other_engine_and_no_pictures(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "n": ["a"]}), tmp_path / "source.parquet")
    loaded = _modules_after(
        f"import intarsia\nintarsia.merge({str(tmp_path / 'source.parquet')!r}, {str(tmp_path / 'target')!r},"
        " on='id')"
    )
    assert "intarsia.engines.arrow" in loaded
    assert (
        loaded & {"duckdb", "pyspark", "pyiceberg", "sqlglot", "rich", "click", "importlib.metadata"} == set()
    )
    assert loaded & {"intarsia.show.svg", "intarsia.show.html", "intarsia.show.text"} == set()
    assert {
        f"intarsia.kernel.{name}" for name in ("duplicates", "optimize", "sort", "spill")
    } & loaded == set()
    assert loaded & {"email.utils", "difflib"} == set()


@pytest.mark.parametrize(
    "call",
    [
        "intarsia.merge(source, target, on='id')",
        "intarsia.merge(source, target, on=['n', 'id'], strategy='insert')",
        "intarsia.merge(source, daily, on=['day', 'id'])",
        'intarsia.delete(target, "id > 1 and v = 2.5")',
        "intarsia.delete(target, \"price >= 1.50 and day < date '2026-01-02'\")",
        "intarsia.delete(target, \"at > timestamptz '2026-01-01 00:00:00+02:00'\")",
        "intarsia.compact(target, target_mb_per_file=128)",
        "intarsia.optimize(target, by=['n', 'id'], target_rows_per_file=2)",
    ],
)
def test_operations_on_files_load_no_pandas(call: str, tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 3], "n": ["a", "b", "c"], "v": [1.5, 2.5, None]})
    if "delete" in call:
        days, cents = pa.array([20453, 20454, 20455], pa.int32()), pa.array([1, 2, None], pa.int64())
        rows = rows.append_column("day", days.cast(pa.date32()))
        rows = rows.append_column("at", cents.cast(pa.timestamp("us", "UTC")))
        rows = rows.append_column("price", cents.cast(pa.decimal128(21, 2)))
    day = pa.array(["x", "y", "x"])
    source = rows.append_column("day", day) if "daily" in call else rows
    pq.write_table(source.slice(0, 2), tmp_path / "source.parquet")
    for path in ("target/1", "daily/day=x/1", "daily/day=y/1"):
        (tmp_path / path).parent.mkdir(parents=True)
        pq.write_table(rows.slice(1), tmp_path / f"{path}.parquet")
    pq.write_table(rows.slice(0, 1), tmp_path / "target/2.parquet")
    paths = "".join(
        f"{path.stem} = {str(path)!r}\n"
        for path in (tmp_path / "source.parquet", tmp_path / "target", tmp_path / "daily")
    )
    loaded = _modules_after(f"import intarsia\n{paths}{call}")
    assert "intarsia.engines.arrow" in loaded
    assert "pandas" not in loaded
