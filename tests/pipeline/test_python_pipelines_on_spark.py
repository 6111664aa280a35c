"""Python pipelines on Spark: functions with UDFs whose modules travel to the workers, and backfills."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from intarsia import pipeline

pytest.importorskip("pyspark", reason="pyspark is not installed: pipelines are not run on Spark")

ORDERS = """
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType

import helpers
from intarsia import pipeline
from rules.prices import double

orders = pipeline.Pipeline("orders")
day = orders.param("day", 1)
orders.files("landing", f"in/{day}.csv", columns={"id": "bigint", "amount": "double"})


@orders.source
def scored(spark, landing, day):
    def late(amount):
        from rules import late_rules

        return amount + late_rules.EXTRA

    scale, twice, later = (F.udf(one, DoubleType()) for one in (helpers.scale, double, late))
    assert spark.range(day).count() == day
    made = scale("amount").alias("a"), twice("amount").alias("b"), later("amount").alias("c")
    return landing.select("id", *made)


orders.merge(scored, into="lake/orders", on="id", name="upsert")
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    for directory in ("in", "rules"):
        (tmp_path / directory).mkdir()
    for day in (1, 2):
        (tmp_path / f"in/{day}.csv").write_text(f"id,amount\n{day},{day}.5\n")
    (tmp_path / "rules/prices.py").write_text("TIMES = 2\n\ndef double(amount):\n    return amount * TIMES\n")
    (tmp_path / "rules/late_rules.py").write_text("EXTRA = 100\n")
    (tmp_path / "helpers.py").write_text(
        "from rules import prices\n\ndef scale(amount):\n    return prices.double(amount) * 10\n"
    )
    file = tmp_path / "orders.py"
    file.write_text(ORDERS)
    return file


def _run(file: Path, spark: Any) -> dict[str, str]:
    report = pipeline.run_file(file, session=spark, progress=False).check()
    return {step.name: step.status for step in report.steps}


def test_modules_beside_the_file_reach_the_workers_and_count_as_changed(
    module: Path, spark: Any, rows: Any
) -> None:
    path = list(sys.path)
    assert _run(module, spark)["upsert"] == "done"
    assert rows(module.parent / "lake/orders") == [{"id": 1, "a": 30.0, "b": 3.0, "c": 101.5}]
    assert _run(module, spark)["upsert"] == "unchanged"
    prices = module.parent / "rules/prices.py"
    prices.write_text(prices.read_text().replace("TIMES = 2", "TIMES = 4"))
    assert _run(module, spark)["upsert"] == "done"
    assert rows(module.parent / "lake/orders") == [{"id": 1, "a": 60.0, "b": 6.0, "c": 101.5}]
    assert sys.path == path
    assert not {"helpers", "rules", "rules.prices"} & set(sys.modules)


def test_all_runs_of_a_backfill_share_a_session_that_is_opened_when_it_is_needed(
    module: Path, spark: Any, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []

    def make_opener(*_: Any) -> Any:
        return lambda: opened.append(spark) or spark

    monkeypatch.setattr("intarsia.pipeline.backfill.make_opener", make_opener)
    report = pipeline.run_backfill(module, over={"day": "1..2"}, progress=False).check()
    assert [one.name for one in report.runs] == ["day=1", "day=2"]
    assert sorted(row["id"] for row in rows(module.parent / "lake/orders")) == [1, 2]
    assert len(opened) == 1
    pipeline.run_backfill(module, over={"day": "1..2"}, progress=False).check()
    assert len(opened) == 1  # nothing had changed, so no session was needed
