"""DuckDB through the command line and in pipelines."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia import engine_choice
from intarsia.cli import main
from intarsia.errors import NotSupported
from intarsia.pipeline import run_file

PIPELINE = """
name = "orders"
engine = "duckdb"

[sources.landing]
path = "landing/*.parquet"

[targets.orders]
path = "lake"

[[steps]]
name = "upsert"
operation = "merge"
source = "landing"
target = "orders"
on = "id"
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    it.write(pa.table({"id": [1, 2], "n": [0, 0]}), tmp_path / "lake")
    (tmp_path / "landing").mkdir()
    pq.write_table(pa.table({"id": [2, 3], "n": [5, 5]}), tmp_path / "landing" / "new.parquet")
    (tmp_path / "orders.toml").write_text(PIPELINE)
    return tmp_path


def test_the_command_line_takes_the_engine(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = str(place / "landing" / "new.parquet"), str(place / "lake")
    with pytest.raises(SystemExit) as done:
        main(["merge", source, target, "--on", "id", "--engine", "duckdb", "--json"])
    assert not done.value.code
    told = json.loads(capsys.readouterr().out)
    assert (told["engine"], told["updated"], told["inserted"]) == ("duckdb", 1, 1)


def test_a_pipeline_runs_on_it(place: Path) -> None:
    report = run_file(place / "orders.toml", progress=False)
    report.check()
    (step,) = report.steps
    assert report.engine == "duckdb"
    assert step.result is not None
    assert (step.result.engine, step.result.updated, step.result.inserted) == ("duckdb", 1, 1)


def test_a_pipeline_says_that_it_is_not_installed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "find_spec", lambda name: None)
    with pytest.raises(NotSupported, match="duckdb is not installed"):
        run_file(place / "orders.toml", progress=False)
