"""Pipelines whose targets are tables of a Spark session's catalog, and what is refused before one is open."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import intarsia as it
from intarsia import pipeline
from intarsia.errors import InputError, NothingMatched

PIPELINE = """
name = "shop"
reports = "reports"

[params]
lake = "lake"

[sources.landing]
path = "landing/*.csv"
columns = { id = "bigint", state = "string", day = "date" }

[sources.open]
target = "orders"
since = "last run"
where = "state = 'open'"

[sources.by_day]
sql = "select day, count(*) as n from orders group by day"

[targets.orders]
kind = "spark_table"
path = "${lake}.orders"
options = { retain = 2 }

[targets.days]
kind = "spark_table"
path = "${lake}.days"

[targets.open_ones]
path = "open"

[env.dev.targets.orders]
path = "${lake}.dev_orders"

[lineage]
file = "events.jsonl"

[[steps]]
name = "upsert"
operation = "merge"
source = "landing"
target = "orders"
on = "id"

[[steps]]
name = "open"
operation = "merge"
source = "open"
target = "open_ones"
on = "id"

[[steps]]
name = "days"
operation = "write"
mode = "overwrite"
source = "by_day"
target = "days"

[[steps]]
name = "sound"
operation = "expect"
target = "orders"
unique = "id"
"""


@pytest.fixture
def declared(tmp_path: Path) -> Path:
    (tmp_path / "landing").mkdir()
    (tmp_path / "shop.toml").write_text(PIPELINE)
    return tmp_path / "shop.toml"


@pytest.fixture
def lake(spark: Any, tmp_path: Path) -> Iterator[str]:
    """A database with two empty tables for orders and one for days."""
    name = f"lake{uuid.uuid4().hex}"
    spark.sql(f"CREATE DATABASE {name} LOCATION 'file:{tmp_path}/managed'")
    for table in ("orders", "dev_orders"):
        columns = "(id BIGINT, state STRING, day DATE)"
        spark.sql(f"CREATE TABLE {name}.{table} {columns} USING parquet PARTITIONED BY (day)")
    spark.sql(f"CREATE TABLE {name}.days (n BIGINT, day DATE) USING parquet")
    yield name
    spark.sql(f"DROP DATABASE {name} CASCADE")


def _land(declared: Path, name: str, *rows: str) -> None:
    text = "".join(f"{row}\n" for row in ("id,state,day", *rows))
    (declared.parent / "landing" / name).write_text(text)


def _run(declared: Path, spark: Any, lake: str, **more: Any) -> pipeline.PipelineReport:
    loaded = pipeline.load(declared, params={"lake": lake}, env=more.pop("env", None))
    return pipeline.run(loaded, session=spark, progress=False, **more)


def _seen(spark: Any, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.table(name).collect())


MON, TUE = dt.date(2025, 1, 6), dt.date(2025, 1, 7)


@pytest.mark.spark
def test_steps_write_and_read_tables_of_the_catalog(declared: Path, spark: Any, lake: str) -> None:
    _land(declared, "1.csv", "1,open,2025-01-06", "2,paid,2025-01-07")
    report = _run(declared, spark, lake).check()
    assert [step.status for step in report.steps] == ["done"] * 4
    assert any("2 partitions were registered" in note for note in report.steps[0].result.notes)
    assert _seen(spark, f"{lake}.orders") == [(1, "open", MON), (2, "paid", TUE)]
    assert _seen(spark, f"{lake}.days") == [(1, MON), (1, TUE)]

    assert {step.status for step in _run(declared, spark, lake).check().steps} == {"unchanged"}

    _land(declared, "2.csv", "2,open,2025-01-07", "3,open,2025-01-06")
    report = _run(declared, spark, lake).check()
    assert _seen(spark, f"{lake}.days") == [(1, TUE), (2, MON)]
    assert report.steps[1].result.source_count == 2  # since the last run; before, one more was open
    found = it.read(declared.parent / "open").read_all().to_pylist()
    assert sorted(row["id"] for row in found) == [1, 2, 3]


@pytest.mark.spark
def test_a_dry_run_plans_through_such_tables_and_changes_none(
    declared: Path, spark: Any, lake: str, tree_digest: Any
) -> None:
    _land(declared, "1.csv", "1,open,2025-01-06", "2,paid,2025-01-07")
    before = tree_digest(declared.parent / "managed") if (declared.parent / "managed").exists() else None
    report = _run(declared, spark, lake, dry_run=True).check()
    assert [step.result.inserted for step in report.steps[:3]] == [2, 1, 2]
    assert before is None or tree_digest(declared.parent / "managed") == before
    assert _seen(spark, f"{lake}.orders") == _seen(spark, f"{lake}.days") == []
    assert spark.sql(f"SHOW PARTITIONS {lake}.orders").collect() == []


@pytest.mark.spark
def test_an_environment_names_another_table(declared: Path, spark: Any, lake: str) -> None:
    _land(declared, "1.csv", "1,open,2025-01-06")
    _run(declared, spark, lake, env="dev").check()
    assert _seen(spark, f"{lake}.dev_orders") == [(1, "open", MON)]
    assert _seen(spark, f"{lake}.orders") == []


@pytest.mark.spark
def test_lineage_names_the_directory_and_the_table_of_the_catalog(
    declared: Path, spark: Any, lake: str
) -> None:
    pytest.importorskip("openlineage")
    _land(declared, "1.csv", "1,open,2025-01-06")
    _run(declared, spark, lake).check()
    events = [json.loads(line) for line in (declared.parent / "events.jsonl").read_text().splitlines()]
    done = next(
        one for one in events if one["job"]["name"] == "shop.upsert" and one["eventType"] == "COMPLETE"
    )
    (written,) = done["outputs"]
    place = declared.parent / "managed"
    assert (written["namespace"], written["name"]) == ("file", str(place / "orders"))
    (link,) = written["facets"]["symlinks"]["identifiers"]
    assert (link["namespace"], link["name"], link["type"]) == (f"file:{place}", f"{lake}.orders", "TABLE")


@pytest.mark.spark
def test_a_quarantine_may_be_a_table_of_the_catalog(declared: Path, spark: Any, lake: str) -> None:
    spark.sql(f"CREATE TABLE {lake}.bad (id BIGINT) USING parquet")
    _land(declared, "1.csv", "1,open,2025-01-06", "2,odd,2025-01-06")
    guard = (
        '[targets.bad]\nkind = "spark_table"\npath = "${lake}.bad"\n\n[[steps]]\nname = "guard"\n'
        'operation = "expect"\nsource = "landing"\naction = "quarantine"\nquarantine = "bad"\n'
        "accepted = { state = ['open', 'paid'] }\n\n[[steps]]\nname = \"upsert\""
    )
    declared.write_text(PIPELINE.replace('[[steps]]\nname = "upsert"', guard))
    _run(declared, spark, lake).check()
    assert [row.id for row in spark.table(f"{lake}.bad").select("id", "state").collect()] == [2]
    assert _seen(spark, f"{lake}.orders") == [(1, "open", MON)]


@pytest.mark.spark
def test_a_stream_is_merged_into_a_table_of_the_catalog(tmp_path: Path, spark: Any, lake: str) -> None:
    (tmp_path / "in").mkdir()
    shop = pipeline.Pipeline("clicks", origin=str(tmp_path / "clicks.py"))
    stream = {"format": "json", "path": str(tmp_path / "in"), "schema": "id long, state string, day date"}
    shop.add_source("clicks", stream=stream)
    shop.target("orders", f"{lake}.orders", kind="spark_table")
    shop.merge("clicks", into="orders", on="id")
    for number in (1, 2):
        (tmp_path / "in" / f"{number}.json").write_text(
            json.dumps({"id": number, "state": "open", "day": f"2025-01-0{number + 5}"})
        )
        pipeline.run(shop, session=spark, progress=False).check()
        assert [row[0] for row in _seen(spark, f"{lake}.orders")] == list(range(1, number + 1))
    assert len(spark.sql(f"SHOW PARTITIONS {lake}.orders").collect()) == 2


@pytest.mark.spark
def test_a_table_that_is_not_there_is_refused_and_nothing_is_written(
    declared: Path, spark: Any, lake: str
) -> None:
    _land(declared, "1.csv", "1,open,2025-01-06")
    spark.sql(f"DROP TABLE {lake}.days")
    report = _run(declared, spark, lake)
    assert not report.ok
    with pytest.raises(NothingMatched, match=r"no table lake\w+\.days"):
        report.check()


def test_another_engine_is_refused_before_anything_runs(declared: Path) -> None:
    declared.write_text(PIPELINE.replace('name = "shop"\n', 'name = "shop"\nengine = "duckdb"\n', 1))
    with pytest.raises(InputError, match=r"\[targets.orders\] kind: only Spark has a catalog.*duckdb"):
        pipeline.run(pipeline.load(declared), progress=False)
    assert not (declared.parent / "reports").exists()


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ('catalog = "./warehouse"', "catalog: the session's catalogs are meant"),
        ('partition_by = "day"', "partition_by: the table of the catalog decides"),
        ('options = { nope = "x" }', "nope"),
    ],
)
def test_keys_that_such_a_target_does_not_have_are_refused(declared: Path, key: str, said: str) -> None:
    declared.write_text(PIPELINE.replace('path = "${lake}.days"\n', f'path = "lake.days"\n{key}\n', 1))
    with pytest.raises(InputError, match=said):
        pipeline.run(pipeline.load(declared), progress=False)


def test_what_is_no_name_of_a_table_is_refused(declared: Path) -> None:
    declared.write_text(PIPELINE.replace('"${lake}.orders"', '"lake orders"', 1))
    with pytest.raises(InputError, match=r"\[targets.orders\] path: A table's name in a catalog of Spark"):
        pipeline.run(pipeline.load(declared), progress=False)


def test_the_graph_says_what_it_is(declared: Path) -> None:
    from intarsia.pipeline.reports.diagram import make_graph

    graph = make_graph(pipeline.load(declared))
    node = graph.node("target:orders")
    assert (node.place, node.label) == ("lake.orders", "table of Spark's catalog")


def test_a_test_of_the_pipeline_has_a_directory_in_its_place(declared: Path) -> None:
    """No catalog is touched, so that another engine will do."""
    pytest.importorskip("duckdb")
    (declared.parent / "shop.test.toml").write_text(
        """
[[test]]
name = "days are counted"

[test.given.orders]
rows = [{ id = 1, state = "open", day = 2025-01-06 }]
partition_by = "day"

[test.given.landing]
rows = [{ id = 2, state = "paid", day = 2025-01-06 }]

[test.expect.days]
rows = [{ day = 2025-01-06, n = 2 }]
"""
    )
    (report,) = pipeline.run_tests(declared, engine="duckdb")
    assert report.describe() == []
