"""``intarsia init``: the project that it writes runs and passes its tests at once."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner

from intarsia import errors, pipeline
from intarsia.cli.commands import cli


def check_project(root: Path, *, names: str | None = None, **options: Any) -> None:
    """The tests (of these names) pass, the pipeline runs, and runs again without anything to do."""
    reports = pipeline.run_tests(root, name=names, **options)
    assert [case.describe() for case in reports] == [[]] * (4 if names is None else 1)
    assert not (root / "lake").exists()
    assert pipeline.run_file(root / "orders.toml", progress=False, **options).check().ok
    rows = ds.dataset(root / "lake" / "scores_by_customer").to_table().sort_by("customer_id").to_pylist()
    assert [(row["customer_id"], float(row["spent"]), row["level"]) for row in rows] == [
        (1, 122.0, "gold"),
        (2, 18.5, "silver"),
        (3, 16.5, "silver"),
    ]
    again = pipeline.run_file(root / "orders.toml", progress=False, **options)
    assert {step.status for step in again.steps} == {"unchanged"}


def test_the_project_runs_on_duckdb_by_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("duckdb")
    done = CliRunner().invoke(cli, ["init", str(tmp_path / "shop"), "--engine", "duckdb"])
    assert done.exit_code == 0, done.output
    assert "orders.toml" in done.output
    check_project(tmp_path / "shop")
    monkeypatch.chdir(tmp_path / "shop")
    assert CliRunner().invoke(cli, ["test", "-k", "gold"]).exit_code == 0


@pytest.mark.parametrize(
    ("absent", "told"),
    [
        ((), "Next: intarsia test shop; "),
        (("pyspark", "duckdb", "sqlglot"), "Next: pip install 'intarsia[duckdb,sql]'; intarsia test shop; "),
        (("sqlglot",), "Next: pip install 'intarsia[sql]'; intarsia test shop; "),
    ],
)
def test_what_is_not_installed_is_told_before_it_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent: tuple[str, ...], told: str
) -> None:
    find = importlib.util.find_spec
    there = {"pyspark", "duckdb", "sqlglot"} - {*absent}
    names = {name: object() for name in there} | dict.fromkeys(absent)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: names[name] if name in names else find(name, *rest)
    )
    monkeypatch.chdir(tmp_path)
    assert told in CliRunner().invoke(cli, ["init", "shop"]).output


def test_an_order_that_came_in_two_files_does_not_hinder_taking_all_files_again(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    pipeline.init_project(tmp_path, engine="duckdb")
    file = tmp_path / "orders.toml"
    pipeline.run_file(file, progress=False).check()
    header, order = (tmp_path / "landing" / "orders-2025-03-02.csv").read_text().splitlines()[:2]
    (tmp_path / "landing" / "orders-2025-03-03.csv").write_text(f"{header}\n{order}\n")
    pipeline.run_file(file, progress=False).check()
    total = pipeline.run_file(file, progress=False, full_refresh=True).check().step("orders").result.total
    shutil.rmtree(tmp_path / "lake" / "orders")
    assert pipeline.run_file(file, progress=False).check().step("orders").result.total == total


@pytest.mark.spark
def test_the_project_runs_on_spark(tmp_path: Path, spark: Any) -> None:
    pipeline.init_project(tmp_path)
    assert 'engine = "spark"' in (tmp_path / "orders.toml").read_text()
    assert "/spark-warehouse/" in (tmp_path / ".gitignore").read_text()  # Spark makes it where it starts
    check_project(tmp_path, names="gold", session=spark)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "revenue.sql").write_text("mine")
    with pytest.raises(errors.InputError, match=r"has revenue\.sql already; nothing was written"):
        pipeline.init_project(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["revenue.sql"]
    assert (tmp_path / "revenue.sql").read_text() == "mine"
    refused = CliRunner().invoke(cli, ["init", str(tmp_path)])
    assert refused.exit_code == 1


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.StorageError, match="cannot be written"):
        pipeline.init_project(tmp_path / "file" / "below")


def test_what_was_written_is_told_as_json(tmp_path: Path) -> None:
    told = json.loads(CliRunner().invoke(cli, ["init", str(tmp_path), "--json"]).stdout)
    assert all(Path(path).is_file() for path in told["written"])
    assert len(told["written"]) == len(list(filter(Path.is_file, tmp_path.rglob("*"))))
