"""The same pipelines on Spark: the rows that Arrow gives, the same memory, the same errors."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import intarsia
from intarsia import pipeline
from intarsia.core.run import ignore_progress
from intarsia.errors import CommitConflict, InputError
from intarsia.pipeline import inputs
from intarsia.pipeline.runner import make_opener
from intarsia.tables.parquet.links import SnapshotLinks

pytest.importorskip("pyspark", reason="pyspark is not installed: pipelines are not run on Spark")

Rows = Callable[..., list[dict[str, Any]]]

SOURCES = {
    "csv": (
        "id,region,amount,at\n1,eu,1.50,2025-01-01 10:00:00\n2,ap,,2025-01-02 11:30:00\n3,eu,-3,2025-01-03\n"
    ),
    "json": (
        '{"id": 1, "region": "eu", "amount": 1.50, "at": "2025-01-01 10:00:00"}\n'
        '{"id": 2, "region": "ap", "at": "2025-01-02 11:30:00"}\n'
        '{"id": 3, "region": "eu", "amount": -3, "at": "2025-01-03"}\n'
    ),
}
ARRAY = "[" + ",".join(SOURCES["json"].strip().splitlines()) + "]"
TYPES = {"id": "bigint", "region": "varchar", "amount": "decimal(8, 2)", "at": "timestamp"}


def test_pyspark_does_not_write_errors_of_queries_where_a_run_opens_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pyspark.logger import PySparkLogger

    monkeypatch.setattr("intarsia.spark.session.session_on", lambda *_, **__: nullcontext("a session"))
    written = PySparkLogger.getLogger("SQLQueryContextLogger")
    monkeypatch.setattr(written, "level", logging.WARNING)
    shop = pipeline.Pipeline(name="shop", engine="spark", sources={}, targets={}, steps=())
    with ExitStack() as stack:
        opening = make_opener(shop, "local[1]", None, ignore_progress, stack)
        assert opening is not None
        assert opening() == "a session"
        assert not written.isEnabledFor(logging.ERROR)
    assert written.isEnabledFor(logging.ERROR)  # of whoever uses Spark afterwards


def _made(root: Path, engine: Any, source: pipeline.Source, *steps: pipeline.Step) -> pipeline.Pipeline:
    upsert = pipeline.Merge(name="upsert", source="landing", target="orders", on="id")
    return pipeline.Pipeline(
        name="shop",
        engine=engine,
        sources={"landing": source},
        targets={"orders": pipeline.Target(str(root / engine), partition_by="region")},
        steps=(upsert, *steps),
        reports=str(root / f"{engine}-reports"),
    )


def _both(
    root: Path, spark: Any, source: pipeline.Source, *steps: pipeline.Step
) -> dict[str, pipeline.PipelineReport]:
    """The same steps on both engines."""
    return {
        "arrow": pipeline.run(_made(root, "arrow", source, *steps), progress=False),
        "spark": pipeline.run(_made(root, "spark", source, *steps), session=spark, progress=False),
    }


@pytest.mark.parametrize("kind", ["csv", "json", "array"])
def test_text_becomes_the_same_rows_as_on_arrow(kind: str, tmp_path: Path, spark: Any, rows: Rows) -> None:
    path = tmp_path / f"a.{'csv' if kind == 'csv' else 'json'}"
    path.write_text(SOURCES.get(kind, ARRAY))
    source = pipeline.Source(
        str(path), columns=TYPES, derive={"day": "cast(at as date)", "double": "amount * 2"}, where="id < 3"
    )
    reports = _both(tmp_path, spark, source)
    assert [reports[engine].check().step("upsert").result.inserted for engine in reports] == [2, 2]
    assert rows(tmp_path / "spark") == rows(tmp_path / "arrow")
    schemas = [_schema(tmp_path / engine) for engine in reports]
    assert schemas[0] == schemas[1]


def _schema(root: Path) -> dict[str, pa.DataType]:
    file = next(root.rglob("*.parquet"))
    return {field.name: field.type for field in pq.read_schema(file)}


def test_types_that_nobody_declared_are_inferred_then_the_targets(
    tmp_path: Path, spark: Any, rows: Rows
) -> None:
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.csv").write_text("id,region,amount\n1,eu,1.5\n")
    source = pipeline.Source(str(tmp_path / "landing"))
    for report in _both(tmp_path, spark, source).values():
        report.check()
    (tmp_path / "landing" / "b.csv").write_text("id,region,amount\n2,eu,3\n")
    for report in _both(tmp_path, spark, source).values():
        assert report.check().step("upsert").result.inserted == 1
    assert rows(tmp_path / "spark") == rows(tmp_path / "arrow")


def test_every_kind_of_step_does_on_spark_what_it_does_on_arrow(
    tmp_path: Path, spark: Any, rows: Rows
) -> None:
    table = pa.table({
        "id": list(range(400)),
        "region": [("eu", "ap")[number % 2] for number in range(400)],
        "amount": [float(number % 50) for number in range(400)],
    })  # fmt: skip
    (tmp_path / "landing").mkdir()
    pacsv.write_csv(table, tmp_path / "landing" / "a.csv")
    pacsv.write_csv(table.slice(0, 30), tmp_path / "twice.csv")
    source = pipeline.Source(
        str(tmp_path / "landing"), columns={"id": "bigint", "region": "varchar", "amount": "double"}
    )
    steps = (
        pipeline.Expect(name="sound", source="landing", unique="id", holds="amount < 50", min_rows=400),
        pipeline.Delete(name="delete", target="orders", where="amount < 5"),
        pipeline.Update(name="update", target="orders", set={"amount": "amount + 0.5"}, where="id > 390"),
        pipeline.Compact(name="compact", target="orders"),
        pipeline.Optimize(name="optimize", target="orders", by=("amount", "id"), target_rows_per_file=50),
        pipeline.Deduplicate(name="deduplicate", target="orders", on="id"),
        pipeline.Expect(
            name="still", target="orders", unique="id", not_null="amount", accepted={"region": ("eu", "ap")}
        ),
    )
    reports = _both(tmp_path, spark, source, *steps)
    for report in reports.values():
        report.check()
    counted = [
        [dict(step.result) for step in report.steps if step.result is not None] for report in reports.values()
    ]
    assert counted[0] == counted[1]
    assert rows(tmp_path / "spark") == rows(tmp_path / "arrow")
    again = _both(tmp_path, spark, source, *steps)
    assert {step.status for report in again.values() for step in report.steps} == {"unchanged"}


@pytest.mark.parametrize(
    "expect",
    [
        {"unique": "region"},
        {"not_null": "amount"},
        {"holds": "id < 2"},
        {"accepted": {"region": ("eu",)}},
        {"min_rows": 9},
    ],
    ids=str,
)
def test_what_does_not_hold_is_counted_alike(expect: dict[str, Any], tmp_path: Path, spark: Any) -> None:
    path = tmp_path / "a.csv"
    path.write_text(SOURCES["csv"])
    source = pipeline.Source(str(path), columns=TYPES)
    for where in ({"source": "landing"}, {"target": "orders"}):
        reports = _both(tmp_path, spark, source, pipeline.Expect(name="sound", **where, **expect))
        found = [report.step("sound").checks for report in reports.values()]
        assert found[0] == found[1]
        assert all(report.failed.name == "sound" for report in reports.values())


def test_a_text_that_does_not_fit_its_type_gives_the_error_it_gives_on_arrow(
    tmp_path: Path, spark: Any
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,region,amount,at\n1,eu,many,2025-01-01\n")
    reports = _both(tmp_path, spark, pipeline.Source(str(path), columns=TYPES))
    errors = [report.failed.error for report in reports.values()]
    assert [type(error) for error in errors] == [InputError, InputError]
    told = [error.message.replace(f"{path}: ", "") for error in errors]  # Spark's rows know no file
    assert told[0].startswith("upsert: Column 'amount'")
    assert told == [told[0]] * 2
    assert [error.path for error in errors] == [str(path), str(tmp_path / "spark")]
    assert not (tmp_path / "spark").exists()


def test_a_csv_whose_columns_come_in_another_order_is_refused_not_mixed_up(
    tmp_path: Path, spark: Any
) -> None:
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.csv").write_text("id,region\n1,eu\n")
    (tmp_path / "landing" / "b.csv").write_text("region,id\nap,2\n")
    source = pipeline.Source(str(tmp_path / "landing"), columns={"id": "bigint", "region": "varchar"})
    report = pipeline.run(_made(tmp_path, "spark", source), session=spark, progress=False)
    assert report.failed.name == "upsert"
    assert not (tmp_path / "spark").exists()


def test_hive_directories_and_strange_names_are_read(
    tmp_path: Path, spark: Any, rows: Rows, make_dataset: Callable[..., Path]
) -> None:
    table = pa.table({"id": [1, 2], "n": [1.5, 2.5], "region": ["eu", "ap"]})
    make_dataset(tmp_path / "in [x] {1}", table, partition="region")
    source = pipeline.Source(str(tmp_path / "in [x] {1}"))
    for report in _both(tmp_path, spark, source).values():
        report.check()
    assert rows(tmp_path / "spark") == rows(tmp_path / "arrow")


def test_a_target_feeds_another_on_spark(tmp_path: Path, spark: Any, rows: Rows) -> None:
    path = tmp_path / "a.csv"
    path.write_text(SOURCES["csv"])
    made = pipeline.Pipeline(
        name="chain",
        sources={
            "landing": pipeline.Source(str(path), columns=TYPES),
            "bronze": pipeline.Source(target="bronze", where="region = 'eu'"),
        },
        targets={
            "bronze": pipeline.Target(str(tmp_path / "bronze"), partition_by="region"),
            "silver": pipeline.Target(str(tmp_path / "silver")),
        },
        steps=(
            pipeline.Merge(source="landing", target="bronze", on="id"),
            pipeline.Merge(source="bronze", target="silver", on="id", strategy="full_merge"),
        ),
        reports=str(tmp_path / "reports"),
    )
    pipeline.run(made, session=spark, progress=False).check()
    assert sorted(row["id"] for row in rows(tmp_path / "silver")) == [1, 3]
    again = pipeline.run(made, session=spark, progress=False)
    assert {step.status for step in again.steps} == {"unchanged"}


def _copied(root: Path, **source: Any) -> pipeline.Pipeline:
    """The dataset ``bronze``, copied to ``silver``."""
    return pipeline.Pipeline(
        name="copy",
        sources={"bronze": pipeline.Source(target="bronze", **source)},
        targets={
            "bronze": pipeline.Target(str(root / "bronze")),
            "silver": pipeline.Target(str(root / "silver"), partition_by="day"),
        },
        steps=(pipeline.Write(name="copy", source="bronze", target="silver", mode="overwrite"),),
        reports=str(root / "reports"),
    )


def test_a_target_is_read_with_the_types_of_its_columns_and_partitions(
    tmp_path: Path, spark: Any, rows: Rows
) -> None:
    """Spark's own reader takes no unsigned numbers, and guesses the types of directories."""
    table = pa.table({
        "id": pa.array([1, 2, 3], pa.uint32()),
        "code": pa.array(["007", "8", None]),
        "day": pa.array([date(2025, 1, 1), date(2025, 1, 2), None]),
        "at": pa.array([datetime(2025, 1, 1, 12), None, None], pa.timestamp("ns")),
    })  # fmt: skip
    intarsia.write(table, tmp_path / "bronze", partition_by=["code", "day"])
    made = _copied(tmp_path, where="id > 1 or day = date '2025-01-01'")
    assert pipeline.run(made, session=spark, progress=False).check().step("copy").result.inserted == 3
    assert rows(tmp_path / "silver") == rows(tmp_path / "bronze")
    schema = intarsia.snapshot(tmp_path / "silver").schema
    assert schema.field("day").type == pa.date32()
    assert schema.field("code").type == pa.string()
    assert schema.field("id").type == pa.int64()


@pytest.mark.parametrize("linked", [True, False], ids=["links", "no links"])
def test_a_target_that_somebody_changes_meanwhile_is_read_in_one_state_or_not_at_all(
    tmp_path: Path, spark: Any, rows: Rows, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    table = pa.table({"id": [1, 2], "day": ["a", "b"]})
    intarsia.write(table, tmp_path / "bronze", partition_by="day")
    listed = inputs.read_snapshot_frame

    def changed_at_once(*given: Any) -> Any:
        frame = listed(*given)
        intarsia.update(tmp_path / "bronze", {"id": "id + 10"})
        return frame

    monkeypatch.setattr(inputs, "read_snapshot_frame", changed_at_once)
    if not linked:  # as on a store that has none
        monkeypatch.setattr(SnapshotLinks, "take_snapshot", lambda _, table: table.snapshot())
    report = pipeline.run(_copied(tmp_path), session=spark, progress=False)
    if linked:
        assert report.ok
        assert sorted(row["id"] for row in rows(tmp_path / "silver")) == [1, 2]
        return
    assert isinstance(report.failed.error, CommitConflict)
    assert "since the step looked at it" in str(report.failed.error)
    assert not (tmp_path / "silver").exists()


def test_clauses_and_conditions_do_on_spark_what_they_do_on_arrow(
    tmp_path: Path, spark: Any, rows: Rows
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,region,amount\n1,eu,1\n2,eu,2\n3,ap,3\n4,ap,40\n")
    types = {"id": "bigint", "region": "varchar", "amount": "double"}
    for report in _both(tmp_path, spark, pipeline.Source(str(path), columns=types)).values():
        report.check()
    path.write_text("id,region,amount\n1,eu,10\n2,eu,-1\n4,ap,4\n9,eu,9\n")
    step = pipeline.Merge(
        name="feed",
        source="feed",
        target="orders",
        on="target.id = source.id and target.amount < 30",
        when=(
            "matched and source.amount < 0 then delete",
            "matched then update set amount = target.amount + source.amount",
            "not matched and source.id > 5 then insert *",
            "not matched by source and target.region = 'ap' then update set amount = 0",
        ),
    )
    counted = {}
    for engine in ("arrow", "spark"):
        made = replace(
            _made(tmp_path, engine, pipeline.Source(str(path))),
            sources={"feed": pipeline.Source(str(path), columns=types)},
            steps=(step,),
        )
        session = spark if engine == "spark" else None
        counted[engine] = dict(pipeline.run(made, session=session, progress=False).check().steps[0].result)
    assert counted["arrow"] == {"inserted": 1, "updated": 3, "deleted": 1, "total": 4}
    assert counted["spark"] == counted["arrow"]
    assert rows(tmp_path / "spark") == rows(tmp_path / "arrow")


def test_files_are_appended_once_on_spark_and_the_report_names_it(
    tmp_path: Path, spark: Any, rows: Rows
) -> None:
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.csv").write_text("id\n1\n")
    made = pipeline.Pipeline(
        name="log",
        sources={"landing": pipeline.Source(str(tmp_path / "landing"), columns={"id": "bigint"})},
        targets={"log": pipeline.Target(str(tmp_path / "log"))},
        steps=(pipeline.Write(name="append", source="landing", target="log"),),
        reports=str(tmp_path / "reports"),
    )
    pipeline.run(made, session=spark, progress=False).check()
    (tmp_path / "landing" / "b.csv").write_text("id\n2\n")
    report = pipeline.run(made, session=spark, progress=False).check()
    assert report.step("append").result.inserted == 1
    assert [row["id"] for row in rows(tmp_path / "log")] == [1, 2]
    told = json.loads(Path(report.json_path).read_text())
    assert told["engine"] == "spark"
    assert told["session"].startswith("Spark 4")


def test_the_session_that_was_given_is_left_running_and_keeps_nothing(
    tmp_path: Path, spark: Any, list_persisted: Callable[[], set[int]]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(SOURCES["csv"])
    source = pipeline.Source(str(path), columns=TYPES)
    step = pipeline.Expect(source="landing", unique="id")
    before = list_persisted()
    pipeline.run(_made(tmp_path, "spark", source, step), session=spark, progress=False).check()
    assert spark.range(3).count() == 3
    assert list_persisted() <= before


PACKAGE = Path(intarsia.__file__).parent


@pytest.mark.slow
def test_spark_submit_runs_a_pipeline_file(tmp_path: Path, spark: Any, rows: Rows) -> None:
    """In a process of its own, with the launcher that pyspark brings."""
    import pyspark

    (tmp_path / "a.csv").write_text("id,n\n1,x\n2,y\n")
    (tmp_path / "p.toml").write_text(
        '[sources.a]\npath = "a.csv"\n[targets.t]\npath = "t"\n'
        '[[steps]]\noperation = "merge"\nsource = "a"\ntarget = "t"\non = "id"\n'
    )
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = subprocess.run(
        [
            *(str(submit), "--master", "local[1]", "--driver-memory", "1g"),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"),
            *("--conf", "spark.driver.bindAddress=127.0.0.1"),
            *(str(PACKAGE / "pipeline" / "submit.py"), str(tmp_path / "p.toml")),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "p: done" in done.stdout
    assert "Report: " in done.stdout
    assert rows(tmp_path / "t") == [{"id": 1, "n": "x"}, {"id": 2, "n": "y"}]
