"""Expectations on a target that drop or quarantine: no step that writes it brings such a row into it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from guarded_shop import Rows, Shop, ended

import intarsia as it
from intarsia import pipeline
from intarsia.cli.commands import cli
from intarsia.errors import ColumnNotFound, InputError
from intarsia.pipeline.loading import resolve
from intarsia.pipeline.reports.diagram import make_graph

FULL = os.environ.get("INTARSIA_SPARK") == "full"
ON_SPARK = ("test_rows_of_every_step_that_writes_the_target_are_judged",)
"""What is tried on Spark in every run; make spark tries all."""

INTO = {"action": "quarantine", "quarantine": "bad"}
SOUND: dict[str, Any] = {"name": "sound", "target": "orders", "holds": "amount > 0"}
UPSERT = pipeline.Merge(name="upsert", source="landing", target="orders", on="id")
APPEND = pipeline.Write(name="append", source="late", target="orders")
COPY = pipeline.Write(name="copy", source="landing", target="other")
ROWS: Rows = [(1, 1, 10), (2, 2, -5), (3, 9, 7), (4, 9, -1)]


@pytest.fixture(
    params=[
        ("arrow", "parquet"),
        ("duckdb", "iceberg"),
        pytest.param(("spark", "parquet"), marks=pytest.mark.spark),
    ],
    ids="-".join,
)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    engine, kind = request.param
    if kind == "iceberg":
        pytest.importorskip("pyiceberg")
    if engine == "spark" and request.node.originalname not in ON_SPARK and not FULL:
        pytest.skip("make spark runs it")
    return _open(tmp_path, engine, kind, request.getfixturevalue("spark") if engine == "spark" else None)


@pytest.fixture
def small(tmp_path: Path) -> Shop:
    return _open(tmp_path)


def _open(root: Path, engine: str = "arrow", kind: str = "parquet", session: Any = None) -> Shop:
    shop = Shop(root, engine, kind, session)
    (root / "late").mkdir()
    shop.sources["late"] = pipeline.Source(str(root / "late" / "*.parquet"))
    return shop


def lands_late(shop: Shop, name: str, rows: Rows) -> None:
    shop.lands(name, rows)
    (shop.root / "landing" / f"{name}.parquet").rename(shop.root / "late" / f"{name}.parquet")


def test_rows_of_every_step_that_writes_the_target_are_judged(shop: Shop) -> None:
    shop.lands("a", ROWS)
    lands_late(shop, "l", [(5, 1, 1), (6, 1, -6)])
    guard = pipeline.Expect(**SOUND, references={"customer": "customers.id"}, **INTO)
    report = shop.run(guard, UPSERT, APPEND, COPY).check()
    assert shop.rows() == [(1, 1, 10), (5, 1, 1)]
    assert len(shop.rows("other")) == len(ROWS)  # the expectation is on orders alone
    assert shop.quarantined() == [
        (2, 2, -5, "amount > 0"),
        (3, 9, 7, "customer in customers.id"),
        (4, 9, -1, "amount > 0; customer in customers.id"),
        (6, 1, -6, "amount > 0"),
    ]
    told = [(step.name, [(check.failing, check.rows) for check in step.checks]) for step in report.steps]
    assert told == [
        ("sound (upsert)", [(2, 4), (2, 4), (3, 4)]),
        ("upsert", []),
        ("sound (append)", [(1, 2), (0, 2), (1, 2)]),
        ("append", []),
        ("copy", []),
    ]
    assert {step.status for step in shop.run(guard, UPSERT, APPEND, COPY).steps} == {"unchanged"}
    shop.lands("b", [(2, 2, 5), (7, 2, 0)])
    shop.run(guard, UPSERT, APPEND, COPY).check()
    assert shop.rows() == [(1, 1, 10), (2, 2, 5), (5, 1, 1)]
    assert len(shop.quarantined()) == 5


def test_dropped_rows_do_not_get_into_the_target(shop: Shop) -> None:
    shop.lands("a", ROWS)
    report = shop.run(pipeline.Expect(**SOUND, action="drop"), UPSERT).check()
    assert shop.rows() == [(1, 1, 10), (3, 9, 7)]
    (check,) = report.step("sound").checks
    assert (check.failing, check.rows, check.outcome) == (2, 4, "dropped")
    (told,) = json.loads(Path(report.json_path or "").read_text())["steps"][0]["checks"]
    assert (told["failing"], told["outcome"]) == (2, "dropped")


@pytest.mark.parametrize(
    "writer",
    [
        pipeline.Write(name="w", source="landing", target="orders", mode="overwrite"),
        pipeline.Merge(name="w", source="landing", target="orders", on="id", strategy="full_merge"),
        pipeline.Merge(
            name="w",
            source="landing",
            target="orders",
            on="id",
            when="when matched then update set * when not matched then insert *"
            " when not matched by source then delete",
        ),
    ],
    ids=["overwrite", "full_merge", "clauses"],
)
def test_a_target_that_is_replaced_has_the_rows_that_pass(small: Shop, writer: Any) -> None:
    guard = pipeline.Expect(**SOUND, **INTO)
    small.lands("a", ROWS)
    small.run(guard, writer).check()
    assert small.rows() == [(1, 1, 10), (3, 9, 7)]
    assert [row[0] for row in small.quarantined()] == [2, 4]
    small.lands("a", [(1, 1, -1), (2, 2, 5)])
    small.run(guard, writer).check()
    assert small.rows() == [(2, 2, 5)]
    assert [row[0] for row in small.quarantined()] == [1]  # what is bad now


@pytest.mark.only(
    lambda shop, at, step: shop[0] == "arrow" or (at, step) == ("note", "sound (append)"),
    "one place is enough: what the state does is the same on every engine",
)
@pytest.mark.parametrize(
    ("at", "step"),
    [
        ("announce", "sound (upsert)"),
        ("confirm", "sound (upsert)"),
        ("note", "sound (upsert)"),
        ("announce", "upsert"),
        ("note", "upsert"),
        ("announce", "sound (append)"),
        ("note", "sound (append)"),
        ("note", "append"),
    ],
)
def test_a_run_that_ended_anywhere_quarantines_and_writes_once(
    shop: Shop, at: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.lands("a", ROWS)
    lands_late(shop, "l", [(5, 9, 1), (6, 1, -6), (7, 2, 1)])
    steps = (pipeline.Expect(**SOUND, references={"customer": "customers.id"}, **INTO), UPSERT, APPEND)
    with ended(at, monkeypatch, step):
        shop.run(*steps)
    shop.customers(1, 2, 9)  # whoever has judged keeps to it
    judged = {"a": "sound (upsert)", "l": "sound (append)"}
    order = ["sound (upsert)", "upsert", "sound (append)", "append"]
    done = {
        name: order.index(guard) < order.index(step) or (guard == step and at in ("confirm", "note"))
        for name, guard in judged.items()
    }
    shop.run(*steps).check()
    bad = [2, *([3] if done["a"] else []), 4, *([5] if done["l"] else []), 6]
    assert [row[0] for row in shop.quarantined()] == bad
    assert [row[0] for row in shop.rows()] == [one for one in (1, 2, 3, 4, 5, 6, 7) if one not in bad]


def test_guards_of_a_target_judge_what_those_of_the_source_let_pass(small: Shop) -> None:
    small.lands("a", ROWS)
    report = small.run(
        pipeline.Expect(**SOUND, action="drop"),
        pipeline.Expect(name="second", target="orders", holds="id < 3", action="drop"),
        pipeline.Expect(name="known", source="landing", references={"customer": "customers.id"}, **INTO),
        UPSERT,
        COPY,
    ).check()
    assert [step.name for step in report.steps] == ["known", "sound", "second", "upsert", "copy"]
    assert [step.checks[0].rows for step in report.steps[:3]] == [4, 2, 1]
    assert small.rows() == [(1, 1, 10)]
    assert small.rows("other") == [(1, 1, 10), (2, 2, -5)]


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_one_quarantine_takes_rows_of_sources_with_wider_types(tmp_path: Path, engine: str) -> None:
    shop = _open(tmp_path, engine)
    narrow = {"id": [1, 2], "customer": [1, 1], "amount": pa.array([1, -1], pa.int32())}
    pq.write_table(pa.table(narrow), tmp_path / "landing" / "a.parquet")
    late = {"id": [5, 6], "customer": [1, 1], "amount": [3 << 32, -3 << 32]}
    pq.write_table(pa.table(late), tmp_path / "late" / "l.parquet")
    append = pipeline.Write(name="append", source="late", target="orders", schema_evolution="widen")
    shop.run(pipeline.Expect(**SOUND, **INTO), UPSERT, append).check()
    assert [row[:3] for row in shop.quarantined()] == [(2, 1, -1), (6, 1, -3 << 32)]


def test_more_than_the_rate_writes_nothing(small: Shop) -> None:
    small.lands("a", ROWS)
    report = small.run(pipeline.Expect(**SOUND, at_most=1, **INTO), UPSERT)
    assert "2 of 4 rows against it, more than 1 row" in str(report.failed.error)
    assert "orders" in str(report.failed.error)
    assert small.rows() == []
    assert not (small.root / "bad").exists()


def test_rows_of_a_query_are_judged_before_they_are_merged(tmp_path: Path) -> None:
    shop = _open(tmp_path, "duckdb")
    shop.lands("a", ROWS)
    shop.sources["totals"] = pipeline.Source(
        sql="select customer as id, max(customer) as customer, sum(amount) as amount from landing"
        " group by customer"
    )
    merge = pipeline.Merge(name="totals", source="totals", target="orders", on="id")
    steps = (pipeline.Expect(**SOUND, **INTO), merge)
    shop.run(*steps).check()
    assert shop.rows() == [(1, 1, 10), (9, 9, 6)]
    assert shop.quarantined() == [(2, 2, -5, "amount > 0")]
    assert {step.status for step in shop.run(*steps).steps} == {"unchanged"}
    shop.lands("b", [(8, 2, 50)])
    shop.run(*steps).check()
    assert shop.quarantined() == []
    changed = (pipeline.Expect(**{**SOUND, "holds": "amount > 6"}, **INTO), merge)
    shop.run(*changed).check()
    assert shop.quarantined() == [(9, 9, 6, "amount > 6")]


def test_a_dry_run_plans_on_the_rows_that_pass(small: Shop) -> None:
    small.lands("a", ROWS)
    report = small.run(pipeline.Expect(**SOUND, **INTO), UPSERT, dry_run=True).check()
    assert report.step("sound").result.inserted == 2
    assert report.step("upsert").result.inserted == 2
    assert not (small.root / "bad").exists()


def test_a_step_alone_is_guarded_too(small: Shop) -> None:
    small.lands("a", ROWS)
    lands_late(small, "l", [(5, 1, 1), (6, 1, -6)])
    guard = pipeline.Expect(**SOUND, **INTO)
    report = small.run(guard, UPSERT, APPEND, only="upsert")
    assert "has not judged" in str(report.failed.error)
    report = small.run(guard, UPSERT, APPEND, only="sound").check()  # all guards of the expectation
    assert [step.status for step in report.steps] == ["done", "not run", "done", "not run"]
    small.run(guard, UPSERT, APPEND, from_step="sound").check()
    assert small.rows() == [(1, 1, 10), (3, 9, 7), (5, 1, 1)]


def test_a_second_step_that_writes_the_target_lets_nothing_be_judged_again(small: Shop) -> None:
    guard = pipeline.Expect(**SOUND, **INTO)
    small.lands("a", ROWS)
    small.run(guard, UPSERT).check()
    lands_late(small, "l", [(6, 1, -6)])
    report = small.run(guard, UPSERT, APPEND).check()
    assert report.step("sound (upsert)").status == report.step("upsert").status == "unchanged"
    assert [row[0] for row in small.quarantined()] == [2, 4, 6]


CLAUSES = "when matched then update set amount = source.amount when not matched then insert *"


@pytest.mark.parametrize(
    ("given", "steps", "told"),
    [
        ({"unique": "id"}, (UPSERT,), "unique is about all rows of the target"),
        ({"references": {"customer": "orders.id"}}, (UPSERT,), "also those that are not in it yet"),
        ({"fresh": {"column": "at", "within": "1 day"}}, (UPSERT,), "about all rows together"),
        ({}, (COPY,), "no step merges or writes rows into 'orders'"),
        (
            {},
            (UPSERT, pipeline.Update(name="u", target="orders", set={"amount": "-1"})),
            "step 'u' assigns 'amount'",
        ),
        (
            {},
            (pipeline.Merge(name="m", source="landing", target="orders", on="id", when=CLAUSES),),
            "step 'm' computes rows by its clauses",
        ),
        (
            {},
            (
                pipeline.Merge(
                    name="m",
                    source="landing",
                    target="orders",
                    on="id",
                    when="when matched and source.amount = 0 then delete when not matched then insert *",
                ),
            ),
            "step 'm' deletes rows by its clauses",
        ),
        (
            {},
            (pipeline.Merge(name="m", source="landing", target="orders", on="id", except_columns="amount"),),
            "step 'm' does not write 'amount'",
        ),
        ({"quarantine": "orders"}, (UPSERT,), "writes the target 'orders' as well"),
    ],
)
def test_what_cannot_be_judged_row_by_row_is_refused(
    small: Shop, given: dict[str, Any], steps: tuple[Any, ...], told: str
) -> None:
    with pytest.raises(InputError) as refused:
        pipeline.check(small.pipeline(pipeline.Expect(**{**SOUND, **INTO, **given}), *steps))
    assert told in str(refused.value)
    assert "step" in str(refused.value)
    assert refused.value.hint


def test_an_expectation_below_a_step_that_writes_the_target_is_refused(small: Shop) -> None:
    with pytest.raises(InputError, match="step 'upsert' above it writes 'orders'"):
        pipeline.check(small.pipeline(UPSERT, pipeline.Expect(**SOUND, **INTO), APPEND))


def test_an_update_of_another_column_is_no_matter(small: Shop) -> None:
    small.lands("a", ROWS)
    seen = pipeline.Update(name="seen", target="orders", set={"customer": "0"}, where="customer = 9")
    small.run(pipeline.Expect(**SOUND, action="drop"), UPSERT, seen).check()
    assert small.rows() == [(1, 1, 10), (3, 0, 7)]


def test_a_column_that_the_rows_of_a_step_lack_is_named(small: Shop) -> None:
    it.write(pa.table({"id": [1], "customer": [1], "amount": [1], "note": ["x"]}), small.root / "orders")
    small.lands("a", ROWS)
    merge = pipeline.Merge(name="upsert", source="landing", target="orders", on="id", missing="null")
    for given in ({"not_null": "note"}, {"holds": "note <> 'y'"}):
        expected = {"name": "sound", "target": "orders", "action": "drop"} | given
        report = small.run(pipeline.Expect(**expected), merge)
        assert isinstance(report.failed.error, ColumnNotFound)
        assert "note" in str(report.failed.error)
    assert small.rows() == [(1, 1, 1)]


def test_a_file_declares_it_and_tells_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "landing").mkdir()
    pq.write_table(pa.table({"id": [1, 2], "v": [1, -1]}), tmp_path / "landing" / "a.parquet")
    (tmp_path / "p.toml").write_text("""
engine = "duckdb"
[params]
least = 0
[sources.landing]
path = "landing/*.parquet"
[targets.orders]
path = "orders"
[targets.bad]
path = "bad"
[[steps]]
name = "sound"
operation = "expect"
target = "orders"
holds = "v > ${least}"
action = "quarantine"
quarantine = "bad"
[[steps]]
name = "upsert"
operation = "merge"
source = "landing"
target = "orders"
on = "id"
""")
    (tmp_path / "p.test.toml").write_text("""
[[test]]
name = "negative rows are set aside"
given.landing.rows = [{ id = 1, v = 1 }, { id = 2, v = -1 }]
expect.orders.rows = [{ id = 1, v = 1 }]
expect.bad.rows = [{ id = 2, v = -1, _reason = "v > 0" }]
""")
    monkeypatch.chdir(tmp_path)
    tested = CliRunner().invoke(cli, ["test", "p.toml"])
    assert tested.exit_code == 0, tested.output
    done = CliRunner().invoke(cli, ["run", "p.toml"])
    assert done.exit_code == 0, done.output
    assert "1 row against it, quarantined into bad" in " ".join(done.output.split())
    edges = {(one.start, one.end, one.kind) for one in make_graph(pipeline.load("p.toml")).edges}
    assert ("target:orders", "target:bad", "quarantines") in edges
    declared = pipeline.load("p.toml")
    opened = pipeline.Pipeline("p", engine="duckdb", origin=str(tmp_path / "p.toml"))
    opened.param("least", 0)
    landing = opened.files("landing", "landing/*.parquet")
    opened.target("orders", "orders")
    opened.expect("orders", name="sound", holds="v > ${least}", action="quarantine", quarantine="./bad")
    opened.merge(landing, into="orders", on="id", name="upsert")
    assert resolve(opened).steps == declared.steps


def test_a_backfill_judges_the_rows_of_each_value_once(tmp_path: Path) -> None:
    pytest.importorskip("openlineage.client")
    for day, values in {"1": [1, -1], "2": [2, -2]}.items():
        (tmp_path / "landing" / day).mkdir(parents=True)
        ids = [int(day) * 10, int(day) * 10 + 1]
        pq.write_table(pa.table({"id": ids, "v": values}), tmp_path / "landing" / day / "a.parquet")
    (tmp_path / "p.toml").write_text("""
engine = "arrow"
[params]
day = "1"
least = "0"
[lineage]
file = "events.ndjson"
[sources.landing]
path = "landing/${day}/*.parquet"
[targets.orders]
path = "orders"
[targets.bad]
path = "bad"
[[steps]]
name = "sound"
operation = "expect"
target = "orders"
holds = "v > ${least}"
action = "quarantine"
quarantine = "bad"
[[steps]]
name = "upsert"
operation = "merge"
source = "landing"
target = "orders"
on = "id"
""")
    for _ in range(2):
        for day in ("1", "2"):
            pipeline.run_file(tmp_path / "p.toml", params={"day": day}, progress=False).check()
    assert sorted(pq.read_table(tmp_path / "bad")["id"].to_pylist()) == [11, 21]
    assert sorted(pq.read_table(tmp_path / "orders")["id"].to_pylist()) == [10, 20]
    events = [json.loads(line) for line in (tmp_path / "events.ndjson").read_text().splitlines()]
    judged = [
        one for one in events if one["job"]["name"].endswith("sound") and one["eventType"] == "COMPLETE"
    ]
    assert len(judged) == 2
    read = [Path(one["name"]).name for one in judged[0]["inputs"]]
    assert read == ["1"]  # not the target, which its rows are not in
    assert [Path(one["name"]).name for one in judged[0]["outputs"]] == ["bad"]
    assert "dataQualityAssertions" in judged[0]["inputs"][0]["inputFacets"]


def test_steps_that_are_marked_as_done_are_judged_from_then_on(small: Shop) -> None:
    guard = pipeline.Expect(**SOUND, **INTO)
    small.lands("a", ROWS)
    it.write(pq.read_table(small.root / "landing"), small.root / "orders", engine="arrow")
    small.run(guard, UPSERT, mark_done=True)
    small.lands("b", [(7, 1, 7), (8, 1, -8)])
    small.run(guard, UPSERT).check()
    assert small.rows() == [*ROWS, (7, 1, 7)]
    assert [row[0] for row in small.quarantined()] == [8]
