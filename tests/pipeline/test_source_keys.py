"""Foreign keys into sources: files, rows of a target, queries and functions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from guarded_shop import Shop, ended

import intarsia as it
from intarsia import pipeline
from intarsia.errors import InputError
from intarsia.pipeline.loading import load
from intarsia.pipeline.reports.diagram import make_graph

FULL = os.environ.get("INTARSIA_SPARK") == "full"
ON_SPARK = ("test_a_key_that_the_source_lacks_is_quarantined",)
INTO = {"action": "quarantine", "quarantine": "bad"}
KNOWN: dict[str, Any] = {"name": "known", "references": {"customer": "people.id"}}
UPSERT = pipeline.Merge(name="upsert", source="landing", target="orders", on="id")
OVERWRITE = pipeline.Write(name="all", source="landing", target="orders", mode="overwrite")


@pytest.fixture(params=["arrow", "duckdb", pytest.param("spark", marks=pytest.mark.spark)])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    if request.param == "spark" and request.node.originalname not in ON_SPARK and not FULL:
        pytest.skip("make spark runs it")
    session = request.getfixturevalue("spark") if request.param == "spark" else None
    return _open(tmp_path, request.param, session)


def _open(root: Path, engine: str = "arrow", session: Any = None) -> Shop:
    shop = Shop(root, engine, session=session)
    shop.sources["people"] = pipeline.Source(
        str(root / "people*.csv"), columns={"id": "bigint", "name": "varchar"}
    )
    (root / "people.csv").write_text("id,name\n1,ann\n2,bob\n")
    return shop


@pytest.fixture
def small(tmp_path: Path) -> Shop:
    return _open(tmp_path)


def test_a_key_that_the_source_lacks_is_quarantined(shop: Shop) -> None:
    shop.lands("a", [(1, 1, 1), (2, 9, 1), (3, None, 1)])
    guard = pipeline.Expect(**KNOWN, source="landing", **INTO)
    report = shop.run(guard, UPSERT).check()
    assert shop.rows() == [(1, 1, 1), (3, None, 1)]
    assert shop.quarantined() == [(2, 9, 1, "customer in people.id")]
    assert report.step("known").checks[0].failing == 1
    assert {step.status for step in shop.run(guard, UPSERT).steps} == {"unchanged"}
    below = pipeline.Expect(name="still", target="orders", references={"customer": "people.id"})
    assert shop.run(guard, UPSERT, below).step("still").status == "done"
    (shop.root / "people.csv").write_text("id,name\n2,bob\n")
    (shop.root / "people2.csv").write_text("id,name\n9,zoe\n")
    failed = shop.run(guard, UPSERT, below).step("still")
    assert (failed.status, failed.checks[0].failing) == ("failed", 1)
    shop.lands("b", [(4, 1, 1), (5, 9, 1)])
    shop.run(guard, UPSERT).check()
    assert [row[0] for row in shop.rows()] == [1, 3, 5]
    assert [row[0] for row in shop.quarantined()] == [2, 4]


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_a_changed_source_of_keys_lets_all_rows_be_judged_again(tmp_path: Path, engine: str) -> None:
    shop = _open(tmp_path, engine)
    shop.lands("a", [(1, 1, 1), (2, 9, 1)])
    guard = pipeline.Expect(**KNOWN, source="landing", action="drop")
    shop.run(guard, OVERWRITE).check()
    assert [row[0] for row in shop.rows()] == [1]
    assert {step.status for step in shop.run(guard, OVERWRITE).steps} == {"unchanged"}
    (tmp_path / "people2.csv").write_text("id,name\n9,zoe\n")
    assert {step.status for step in shop.run(guard, OVERWRITE).steps} == {"done"}
    assert [row[0] for row in shop.rows()] == [1, 2]
    people = shop.sources["people"]
    shop.sources["people"] = pipeline.Source(people.path, columns=people.columns, where="name <> 'ann'")
    assert {step.status for step in shop.run(guard, OVERWRITE).steps} == {"done"}
    assert [row[0] for row in shop.rows()] == [2]


def test_keys_are_looked_up_in_a_query(tmp_path: Path) -> None:
    shop = _open(tmp_path, "duckdb")
    shop.sources["regulars"] = pipeline.Source(
        sql="select c.id from customers c join people p on p.id = c.id where p.name <> 'bob'"
    )
    shop.lands("a", [(1, 1, 1), (2, 2, 1), (3, 3, 1)])
    guard = pipeline.Expect(
        name="known", source="landing", references={"customer": "regulars.id"}, action="drop"
    )
    shop.run(guard, OVERWRITE).check()
    assert [row[0] for row in shop.rows()] == [1]
    assert {step.status for step in shop.run(guard, OVERWRITE).steps} == {"unchanged"}
    shop.customers(2, 3)  # what the query reads
    (tmp_path / "people.csv").write_text("id,name\n2,bob\n3,eve\n")
    shop.run(guard, OVERWRITE).check()
    assert [row[0] for row in shop.rows()] == [3]
    shop.sources["regulars"] = pipeline.Source(sql="select id from customers")
    shop.run(guard, OVERWRITE).check()
    assert [row[0] for row in shop.rows()] == [2, 3]


def test_keys_are_those_that_guards_of_their_source_let_pass(small: Shop) -> None:
    small.lands("a", [(1, 1, 1), (2, 2, 1)])
    steps = (
        pipeline.Expect(name="named", source="people", holds="name <> 'bob'", action="drop"),
        pipeline.Expect(**KNOWN, source="landing", action="drop"),
        UPSERT,
    )
    small.run(*steps).check()
    assert [row[0] for row in small.rows()] == [1]


def test_sources_whose_keys_are_looked_up_in_each_other_are_judged_in_order(small: Shop) -> None:
    small.lands("a", [(1, 1, 1), (2, 9, 1)])
    (small.root / "people.csv").write_text("id,name\n1,ann\n2,bob\n9,zoe\n")
    steps = (
        pipeline.Expect(name="one", source="landing", holds="id < 2", action="drop"),
        pipeline.Expect(name="two", source="people", references={"id": "landing.customer"}, action="drop"),
        pipeline.Expect(**KNOWN, source="landing", action="drop"),
        UPSERT,
        pipeline.Merge(name="people", source="people", target="other", on="id"),
    )
    small.run(*steps).check()
    assert [row[0] for row in small.rows()] == [1]
    assert pq.read_table(small.root / "other")["id"].to_pylist() == [1]


def test_what_was_quarantined_by_a_source_does_not_pass_after_a_kill(
    small: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = pipeline.Expect(**KNOWN, source="landing", **INTO)
    small.lands("a", [(1, 1, 1), (2, 9, 1)])
    with ended("announce", monkeypatch, "upsert"):
        small.run(guard, UPSERT)
    (small.root / "people.csv").write_text("id,name\n9,zoe\n")
    small.run(guard, UPSERT).check()
    assert [row[0] for row in small.quarantined()] == [2]
    assert [row[0] for row in small.rows()] == [1]


def test_rows_on_their_way_into_a_target_are_looked_up_in_a_source(small: Shop) -> None:
    small.lands("a", [(1, 1, 1), (2, 9, 1)])
    copy = pipeline.Write(name="copy", source="landing", target="other")
    small.run(pipeline.Expect(**KNOWN, target="orders", **INTO), UPSERT, copy).check()
    assert [row[0] for row in small.rows()] == [1]
    assert [row[0] for row in small.rows("other")] == [1, 2]
    assert small.quarantined() == [(2, 9, 1, "customer in people.id")]


def test_a_target_of_the_same_name_is_meant_first(small: Shop) -> None:
    small.sources["customers"] = small.sources["people"]
    small.customers(9)
    small.lands("a", [(1, 1, 1), (2, 9, 1)])
    expected = {"name": "known", "source": "landing", "references": {"customer": "customers.id"}}
    small.run(pipeline.Expect(**expected, action="drop"), UPSERT).check()
    assert [row[0] for row in small.rows()] == [2]


def test_a_source_that_cannot_be_looked_up_is_refused(small: Shop) -> None:
    small.lands("a", [(1, 1, 1)])
    missing = {"name": "known", "source": "landing", "references": {"customer": "people.no"}}
    assert "source 'people' has no column 'no'" in str(
        small.run(pipeline.Expect(**missing, action="drop"), UPSERT).failed.error
    )
    small.sources["people"] = pipeline.Source(target="customers", since="last run")
    with pytest.raises(InputError, match="'people' has the new rows of a target alone"):
        small.run(pipeline.Expect(**KNOWN, source="landing"), UPSERT)
    small.sources["people"] = pipeline.Source(
        stream=pipeline.Stream("json", str(small.root / "s")), columns={"id": "bigint"}
    )
    small.engine = "spark"
    with pytest.raises(InputError, match="'people' is a stream"):
        pipeline.check(small.pipeline(pipeline.Expect(**KNOWN, source="landing"), UPSERT))


def test_a_query_of_keys_waits_for_the_step_that_writes_what_it_reads(tmp_path: Path) -> None:
    shop = _open(tmp_path, "duckdb")
    it.delete(tmp_path / "customers", "id > 0", engine="arrow")
    shop.sources["regulars"] = pipeline.Source(sql="select id from customers")
    shop.lands("a", [(1, 1, 1), (2, 9, 1)])
    fill = pipeline.Merge(name="people", source="people", target="customers", on="id", except_columns="name")
    guard = pipeline.Expect(
        name="known", source="landing", references={"customer": "regulars.id"}, action="drop"
    )
    report = shop.run(guard, UPSERT, fill).check()
    assert [step.name for step in report.steps] == ["people", "known", "upsert"]
    assert [row[0] for row in shop.rows()] == [1]


def test_the_graph_lineage_and_tests_know_the_source(tmp_path: Path) -> None:
    pytest.importorskip("openlineage.client")
    pq.write_table(pa.table({"id": [1, 2], "customer": [1, 9]}), tmp_path / "landing.parquet")
    (tmp_path / "people.csv").write_text("id\n1\n")
    (tmp_path / "p.toml").write_text("""
engine = "arrow"
[lineage]
file = "events.ndjson"
[sources.landing]
path = "landing.parquet"
[sources.people]
path = "people.csv"
columns = { id = "bigint" }
[targets.orders]
path = "orders"
[[steps]]
name = "known"
operation = "expect"
source = "landing"
references = { customer = "people.id" }
action = "drop"
[[steps]]
name = "upsert"
operation = "merge"
source = "landing"
target = "orders"
on = "id"
""")
    (tmp_path / "p.test.toml").write_text("""
[[test]]
name = "strangers are left out"
given.landing.rows = [{ id = 1, customer = 1 }, { id = 2, customer = 2 }]
given.people.rows = [{ id = 2 }]
expect.orders.rows = [{ id = 2, customer = 2 }]
""")
    (tested,) = pipeline.run_tests(tmp_path / "p.toml")
    assert tested.ok, tested
    graph = make_graph(load(tmp_path / "p.toml"))
    edges = {(one.start, one.end, one.kind) for one in graph.edges}
    assert ("source:people", "source:landing", "checks") in edges
    pipeline.run_file(tmp_path / "p.toml", progress=False).check()
    assert "people.csv" in (tmp_path / "events.ndjson").read_text()
