"""Rows that are dropped or quarantined: each passes or does not, once, on every engine and table."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from guarded_shop import SCHEMA, Rows, Shop, ended

import intarsia as it
from intarsia import pipeline
from intarsia.cli.commands import cli
from intarsia.errors import DamagedTable, InputError
from intarsia.pipeline.quality.checks import ANY, Check, describe_outcomes, make_failure
from intarsia.pipeline.reports.measures import describe_outcome
from intarsia.pipeline.reports.report import describe_status
from intarsia.pipeline.state.run_state import RunState

FULL = os.environ.get("INTARSIA_SPARK") == "full"
ON_SPARK = (
    "test_a_row_passes_or_is_quarantined_with_all_its_reasons",
    "test_what_was_quarantined_does_not_pass_though_its_key_is_there_now",
)
"""What is tried on Spark in every run; make spark tries all."""
UPSERT = pipeline.Merge(name="upsert", source="landing", target="orders", on="id")
POSITIVE = {"name": "sound", "source": "landing", "holds": "amount > 0"}
INTO = {"action": "quarantine", "quarantine": "bad"}


@pytest.fixture(
    params=[
        ("arrow", "parquet"),
        ("duckdb", "parquet"),
        ("arrow", "iceberg"),
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
    session = request.getfixturevalue("spark") if engine == "spark" else None
    return Shop(tmp_path, engine, kind, session)


@pytest.fixture
def small(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


ROWS: Rows = [(1, 1, 10), (2, 2, -5), (3, 9, 7), (4, None, None), (5, 9, -1), (6, 1, 6), (6, 1, 6)]
ALL = {
    "not_null": "customer",
    "accepted": {"amount": (10, -5, 7, -1, 6)},
    "holds": ("amount > 0", "id < 100"),
    "unique": "id",
    "references": {"customer": "customers.id"},
}


def test_a_row_passes_or_is_quarantined_with_all_its_reasons(shop: Shop) -> None:
    shop.lands("a", ROWS)
    guard = pipeline.Expect(**POSITIVE | ALL | INTO)
    report = shop.run(guard, UPSERT).check()
    assert shop.quarantined() == [
        (2, 2, -5, "amount > 0"),
        (3, 9, 7, "customer in customers.id"),
        (4, None, None, "customer is not NULL"),
        (5, 9, -1, "amount > 0; customer in customers.id"),
        (6, 1, 6, "id unique"),
        (6, 1, 6, "id unique"),
    ]
    assert shop.rows() == [(1, 1, 10)]
    counts = {check.expectation: (check.failing, check.outcome) for check in report.step("sound").checks}
    assert counts == {
        "customer is not NULL": (1, "quarantined"),
        "amount is one of 10, -5, 7, -1, 6": (0, "held"),
        "amount > 0": (2, "quarantined"),
        "id < 100": (0, "held"),
        "id unique": (2, "quarantined"),
        "customer in customers.id": (2, "quarantined"),
        "all of these": (6, "quarantined"),
    }
    assert report.step("sound").result.inserted == 6
    assert describe_status(report) == "done, 4 warnings"
    assert [step.status for step in shop.run(guard, UPSERT).steps] == ["unchanged", "unchanged"]
    assert len(shop.quarantined()) == 6


def test_each_file_is_quarantined_once(shop: Shop) -> None:
    guard = pipeline.Expect(**POSITIVE | INTO)
    shop.lands("a", [(1, 1, 1), (2, 1, -1)])
    shop.run(guard, UPSERT).check()
    shop.lands("b", [(3, 1, -3), (2, 1, 5)])
    shop.run(guard, UPSERT).check()
    assert shop.quarantined() == [(2, 1, -1, "amount > 0"), (3, 1, -3, "amount > 0")]
    assert shop.rows() == [(1, 1, 1), (2, 1, 5)]
    shop.run(guard, UPSERT, full_refresh=True).check()
    assert len(shop.quarantined()) == 2


# Kills


@pytest.mark.only(
    lambda shop, at, step: shop[0] == "arrow" or (at, step) == ("note", "sound"),
    "one place is enough: what the state does is the same on every engine",
)
@pytest.mark.parametrize(
    ("at", "step"),
    [
        ("announce", "sound"),
        ("confirm", "sound"),
        ("note", "sound"),
        ("announce", "upsert"),
        ("note", "upsert"),
        ("announce", "copy"),
    ],
)
def test_a_run_that_ended_anywhere_quarantines_once(
    shop: Shop, at: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = pipeline.Expect(**POSITIVE | ALL | INTO)
    copy = pipeline.Write(name="copy", source="landing", target="other")
    shop.lands("a", ROWS[:3])
    shop.lands("b", ROWS[3:])
    with ended(at, monkeypatch, step):
        shop.run(guard, UPSERT, copy)
    shop.lands("c", [(7, 1, 6), (8, 1, 7)])
    shop.run(guard, UPSERT, copy).check()
    assert [row[0] for row in shop.quarantined()] == [2, 3, 4, 5, 6, 6]
    assert shop.rows("other") == shop.rows() == [(1, 1, 10), (7, 1, 6), (8, 1, 7)]


def test_what_was_quarantined_does_not_pass_though_its_key_is_there_now(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = pipeline.Expect(name="sound", source="landing", references={"customer": "customers.id"}, **INTO)
    shop.lands("a", [(1, 1, 10), (3, 9, 7), (4, 2, 7)])
    with ended("announce", monkeypatch, "upsert"):
        shop.run(guard, UPSERT)
    shop.customers(1, 9)
    shop.lands("b", [(5, 9, 1), (6, 2, 1)])
    shop.run(guard, UPSERT).check()
    assert shop.quarantined() == [
        (3, 9, 7, "customer in customers.id"),
        (6, 2, 1, "customer in customers.id"),
    ]
    assert shop.rows() == [(1, 1, 10), (4, 2, 7), (5, 9, 1)]


@pytest.mark.parametrize("action", ["drop", "quarantine"])
def test_rows_pass_in_the_next_run_when_a_step_below_brings_their_keys(small: Shop, action: str) -> None:
    small.engine = "duckdb"
    small.sources |= {
        "all_orders": pipeline.Source(sql="select * from landing"),
        "people": pipeline.Source(str(small.root / "people.parquet")),
    }
    small.lands("a", [(1, 1, 5), (2, 9, 5)])
    pq.write_table(pa.table({"id": [1]}), small.root / "people.parquet")
    quarantine = {"quarantine": "bad"} if action == "quarantine" else {}
    steps = (
        pipeline.Expect(
            name="known",
            source="all_orders",
            references={"customer": "customers.id"},
            action=action,
            **quarantine,
        ),
        pipeline.Merge(name="orders", source="all_orders", target="orders", on="id"),
        pipeline.Merge(name="people", source="people", target="customers", on="id"),
    )
    small.run(*steps).check()
    assert small.rows() == [(1, 1, 5)]
    pq.write_table(pa.table({"id": [9]}), small.root / "people.parquet")
    small.run(*steps).check()  # the step below brings the key after rows were judged
    small.run(*steps).check()
    assert small.rows() == [(1, 1, 5), (2, 9, 5)]
    assert {step.status for step in small.run(*steps).check().steps} == {"unchanged"}


def test_a_key_that_repeats_in_files_judged_together_stays_out(
    small: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = pipeline.Expect(name="sound", source="landing", unique="id", **INTO)
    copy = pipeline.Write(name="copy", source="landing", target="other")
    small.lands("a", [(1, 1, 1), (2, 1, 1)])
    small.lands("b", [(1, 1, 2), (3, 1, 1)])
    with ended("announce", monkeypatch, "copy"):
        small.run(guard, UPSERT, copy)
    small.lands("c", [(2, 1, 5), (4, 1, 5), (4, 1, 6)])
    small.run(guard, UPSERT, copy).check()
    assert [row[:3] for row in small.quarantined()] == [(1, 1, 1), (1, 1, 2), (4, 1, 5), (4, 1, 6)]
    assert small.rows() == [(2, 1, 5), (3, 1, 1)]
    assert small.rows("other") == [(2, 1, 1), (2, 1, 5), (3, 1, 1)]


# Drop, rates


def test_dropped_rows_reach_no_later_step(shop: Shop) -> None:
    guard = pipeline.Expect(**POSITIVE | ALL, action="drop")
    before = pipeline.Write(name="raw", source="landing", target="other")
    shop.lands("a", ROWS)
    report = shop.run(before, guard, UPSERT).check()
    assert len(shop.rows("other")) == len(ROWS)
    assert shop.rows() == [(1, 1, 10)]
    assert report.step("sound").checks[-1].outcome == "dropped"
    assert describe_outcome(report.step("sound")) == "6 dropped"
    assert shop.quarantined() == []


def test_more_than_the_rate_fails_and_writes_nothing(small: Shop) -> None:
    rows: Rows = [(number, 1, number % 10) for number in range(100)]  # ten are 0
    small.lands("a", rows)
    guard = {**POSITIVE, "references": {"customer": "customers.id"}}
    report = small.run(pipeline.Expect(**guard | INTO, at_most="9.9 %"), UPSERT)
    assert "10 of 100 rows against it, more than 9.9 %" in str(report.failed.error)
    assert not (small.root / "bad").exists()
    assert small.rows() == []
    assert small.run(pipeline.Expect(**guard | INTO, at_most="10 %"), UPSERT).ok
    assert len(small.quarantined()) == 10


def test_the_rate_is_of_all_violating_rows_together(small: Shop) -> None:
    small.lands("a", [(1, 1, 1), (2, 9, 1), (3, 1, -1), (4, 1, 1)])
    guard = {**POSITIVE, "references": {"customer": "customers.id"}, "action": "drop"}
    report = small.run(pipeline.Expect(**guard, at_most=1), UPSERT)
    assert "all of these (2 of 4 rows against it, more than 1 row)" in str(report.failed.error)
    assert [check.outcome for check in report.failed.checks] == ["warned", "warned", "failed"]
    assert small.run(pipeline.Expect(**guard, at_most=2), UPSERT).ok


# Where a source is read


def test_guards_hold_where_queries_and_functions_read_the_source(small: Shop) -> None:
    small.engine = "duckdb"
    (small.root / "f.py").write_text("def double(landing):\n    return landing\n")
    small.sources |= {
        "summed": pipeline.Source(sql="select id, customer, amount from landing where id > 0"),
        "twice": pipeline.Source(python=f"{small.root}/f.py:double"),
    }
    guard = pipeline.Expect(**POSITIVE | {"references": {"customer": "customers.id"}} | INTO)
    steps = (
        guard,
        pipeline.Merge(name="sum", source="summed", target="orders", on="id"),
        pipeline.Merge(name="double", source="twice", target="other", on="id"),
    )
    small.lands("a", ROWS[:4])
    small.run(*steps).check()
    assert small.rows() == small.rows("other") == [(1, 1, 10), (4, None, None)]
    assert [row[0] for row in small.quarantined()] == [2, 3]
    small.lands("b", [(8, 1, -8)])
    small.run(*steps).check()
    assert [row[0] for row in small.quarantined()] == [2, 3, 8]  # all rows that are bad now, once
    assert [step.status for step in small.run(*steps).steps] == ["unchanged"] * 3
    small.customers(1, 2, 9)
    small.run(*steps).check()
    assert [row[0] for row in small.quarantined()] == [2, 8]
    assert [row[0] for row in small.rows()] == [1, 3, 4]


@pytest.mark.only(lambda shop: shop[0] != "arrow", "Arrow has no queries")
def test_the_quarantine_of_a_query_holds_what_is_bad_now(shop: Shop) -> None:
    shop.sources["clean"] = pipeline.Source(sql="select id, customer, amount from landing")
    guard = pipeline.Expect(name="sound", source="clean", holds="amount > 0", unique="id", **INTO)
    merge = pipeline.Merge(name="upsert", source="clean", target="orders", on="id")
    shop.lands("a", ROWS)
    shop.run(guard, merge).check()
    assert [row[0] for row in shop.quarantined()] == [2, 5, 6, 6]
    assert [row[0] for row in shop.rows()] == [1, 3, 4]
    shop.lands("a", [(2, 2, 5), (5, 1, -9)])
    shop.run(guard, merge).check()
    assert shop.quarantined() == [(5, 1, -9, "amount > 0")]
    shop.lands("a", [(2, 2, 5)])
    shop.run(guard, merge).check()
    assert shop.quarantined() == []


def test_a_second_guard_judges_what_the_first_lets_pass(small: Shop) -> None:
    first = pipeline.Expect(**POSITIVE | INTO)
    second = pipeline.Expect(name="known", source="landing", unique="customer", **INTO)
    small.lands("a", [(1, 1, 10), (2, 2, -5), (3, 2, 7), (4, 5, 1), (5, 5, 1)])
    report = small.run(first, second, UPSERT).check()
    assert small.quarantined() == [
        (2, 2, -5, "amount > 0"),
        (4, 5, 1, "customer unique"),
        (5, 5, 1, "customer unique"),
    ]
    assert report.step("known").checks[0].rows == 4
    assert [row[0] for row in small.rows()] == [1, 3]


def test_a_source_that_is_a_target_is_guarded(small: Shop) -> None:
    it.write(pa.table([[1, 2], [1, 1], [5, -5]], schema=SCHEMA), small.root / "other")
    small.sources["again"] = pipeline.Source(target="other")
    guard = pipeline.Expect(name="sound", source="again", holds="amount > 0", **INTO)
    small.run(guard, pipeline.Merge(name="m", source="again", target="orders", on="id")).check()
    assert small.rows() == [(1, 1, 5)]
    assert small.quarantined() == [(2, 1, -5, "amount > 0")]


def test_a_dry_run_counts_and_writes_nothing(small: Shop) -> None:
    small.lands("a", ROWS)
    guard = pipeline.Expect(**POSITIVE | ALL | INTO)
    report = small.run(guard, UPSERT, dry_run=True).check()
    assert report.step("sound").status == "planned"
    assert report.step("sound").checks[-1].failing == 6
    assert report.step("upsert").result.inserted == 1
    assert not (small.root / "bad").exists()
    assert not (small.root / "orders").exists()


@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_a_dry_run_counts_the_rows_that_it_would_quarantine_and_plans_on_them(
    tmp_path: Path, kind: str
) -> None:
    shop = Shop(tmp_path, kind=kind)
    shop.sources["rejected"] = pipeline.Source(target="bad")
    steps = (
        pipeline.Expect(**POSITIVE | INTO),
        UPSERT,
        pipeline.Merge(name="kept", source="rejected", target="other", on="id"),
    )
    shop.lands("a", [(1, 1, 10), (2, 2, -5), (3, 2, 7), (4, 5, -1)])
    planned = shop.run(*steps, dry_run=True).check()
    assert not shop.quarantined()
    assert not (shop.root / "other").exists()
    done = shop.run(*steps).check()
    for name, rows in (("sound", 2), ("upsert", 2), ("kept", 2)):
        assert dict(planned.step(name).result) == dict(done.step(name).result)
        assert planned.step(name).files_written == done.step(name).files_written
        assert planned.step(name).result.inserted == rows


def test_a_step_alone_does_not_take_files_that_its_quarantine_has_not_judged(small: Shop) -> None:
    small.lands("a", ROWS[:5])
    guard = pipeline.Expect(**POSITIVE | INTO)
    failed = small.run(guard, UPSERT, only="upsert").failed
    assert "step 'sound' quarantines rows of 'landing', and has not judged" in str(failed.error)
    assert small.rows() == []
    assert small.run(guard, UPSERT).ok


@pytest.mark.parametrize("limit", [{"only": "upsert"}, {"from_step": "upsert"}], ids=str)
def test_a_step_alone_keeps_to_the_rate_of_what_drops_its_rows(small: Shop, limit: dict[str, Any]) -> None:
    guard = pipeline.Expect(**POSITIVE, action="drop", at_most=1)
    other = pipeline.Expect(name="other", source="other", holds="amount > 0", action="drop", at_most=0)
    small.sources["other"] = small.sources["landing"]
    small.lands("a", [(1, 1, 1), (2, 1, -1), (3, 1, -1)])
    failed = small.run(guard, other, UPSERT, **limit).failed
    assert failed.name == "sound"
    assert "2 of 3 rows against it, more than 1 row" in str(failed.error)
    assert small.rows() == []
    small.lands("a", [(1, 1, 1), (2, 1, -1)])
    report = small.run(guard, other, UPSERT, **limit).check()
    assert [step.status for step in report.steps] == ["done", "not run", "done"]
    assert report.step("sound").checks[0].failing == 1
    assert small.rows() == [(1, 1, 1)]
    target = pipeline.Expect(name="t", target="orders", holds="id < 9", action="drop", at_most=0)
    small.lands("b", [(9, 1, 1)])
    assert small.run(target, UPSERT, **limit).failed.name == "t"


def test_rows_of_before_the_guard_stay_where_they_are(small: Shop) -> None:
    small.lands("a", [(1, 1, -1)])
    small.run(UPSERT).check()
    small.lands("b", [(2, 1, -1)])
    small.run(pipeline.Expect(**POSITIVE | INTO), UPSERT).check()
    assert small.rows() == [(1, 1, -1)]
    assert [row[0] for row in small.quarantined()] == [2]


def test_the_report_tells_what_was_quarantined(small: Shop) -> None:
    small.lands("a", ROWS[:5])
    report = small.run(pipeline.Expect(**POSITIVE | INTO), UPSERT)
    assert report.ok
    step = json.loads(Path(report.json_path).read_text())["steps"][0]
    assert step["target"] == "bad"
    assert (step["checks"][0]["outcome"], step["checks"][0]["into"]) == ("quarantined", "bad")
    page = Path(report.html_path).read_text()
    assert "quarantined into bad" in page
    assert "done, 1 warning" in page


# What is refused

REFUSED = [
    ({"action": "quarantine"}, "action: quarantine needs a target for the rows"),
    ({"quarantine": "bad"}, 'quarantine: it goes with action = "quarantine"'),
    ({**INTO, "quarantine": "bat"}, "there is no target 'bat'.*did you mean 'bad'"),
    ({**INTO, "quarantine": "orders"}, r"step 2 \(upsert\) writes the target 'orders' as well"),
    ({"action": "drop", "min_rows": 1}, "min_rows: it is about all rows together"),
]


@pytest.mark.parametrize(("given", "told"), REFUSED, ids=str)
def test_a_guard_that_cannot_work_is_refused(small: Shop, given: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        small.run(pipeline.Expect(**POSITIVE | given), UPSERT)


def test_a_quarantine_that_its_own_source_reads_is_a_circle(small: Shop) -> None:
    small.sources["again"] = pipeline.Source(target="bad")
    guard = pipeline.Expect(name="sound", source="again", holds="amount > 0", **INTO)
    with pytest.raises(InputError, match="circle: bad -> bad"):
        small.run(guard, pipeline.Merge(name="m", source="again", target="orders", on="id"))


def test_text_without_types_is_not_judged(small: Shop) -> None:
    (small.root / "landing" / "a.csv").write_text("id,amount\n1,-1\n")
    small.sources["landing"] = pipeline.Source(str(small.root / "landing" / "*.csv"))
    failed = small.run(pipeline.Expect(**POSITIVE, action="drop"), UPSERT).failed
    assert "the types of source 'landing' are inferred" in str(failed.error)
    small.sources["landing"] = pipeline.Source(
        str(small.root / "landing" / "*.csv"), columns={"id": "bigint", "amount": "bigint"}
    )
    assert small.run(pipeline.Expect(**POSITIVE, action="drop"), UPSERT).ok


def test_a_column_that_the_quarantine_adds_is_not_the_sources(small: Shop) -> None:
    rows = pa.table({"id": [1], "amount": [-1], "_run": ["x"]})
    pq.write_table(rows, small.root / "landing" / "a.parquet")
    failed = small.run(pipeline.Expect(**POSITIVE | INTO), UPSERT).failed
    assert "has a column '_run' itself" in str(failed.error)


@pytest.mark.only(lambda shop: shop[1] != "iceberg", "of Parquet")
def test_rows_of_a_quarantine_can_be_guarded_again(shop: Shop) -> None:
    it.write(
        pa.table({"id": [1, 2], "amount": [-1, 5], "_reason": ["x", None]}),
        shop.root / "other",
        engine="arrow",
    )
    shop.sources["again"] = pipeline.Source(target="other")
    guard = pipeline.Expect(name="sound", source="again", holds=("amount > 0", "id > 0"), action="drop")
    report = shop.run(guard, pipeline.Merge(name="m", source="again", target="orders", on="id")).check()
    assert pq.read_table(shop.root / "orders").to_pylist() == [{"id": 2, "amount": 5, "_reason": None}]
    assert report.step("sound").checks[-1].failing == 1


TYPES = {
    "decimal": ([Decimal("1.50"), Decimal("2.5")], pa.decimal128(5, 2), pa.decimal128(9, 3)),
    "timestamp": ([datetime(2025, 1, 1), datetime(2025, 1, 2)], pa.timestamp("us"), pa.timestamp("ms")),
    "zoned": (
        [datetime(2025, 1, 1), datetime(2025, 1, 2)],
        pa.timestamp("us", "UTC"),
        pa.timestamp("ms", "UTC"),
    ),
    "integer": ([1, 2], pa.int16(), pa.int64()),
    "text": (["a", "ä"], pa.string(), pa.large_string()),
    "dictionary": (["a", "b"], pa.dictionary(pa.int8(), pa.string()), pa.string()),
    "bytes": ([b"a", b"\x00"], pa.binary(), pa.binary()),
    "boolean": ([True, False], pa.bool_(), pa.bool_()),
    "view": (["a", "ä"], pa.string_view(), pa.string()),
    "bytes view": ([b"a", b"\x00"], pa.binary_view(), pa.binary()),
    "half": ([1.5, 2.5], pa.float16(), pa.float16()),
}


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
@pytest.mark.parametrize("kind", TYPES)
def test_keys_of_every_type_decide_what_passes(tmp_path: Path, kind: str, engine: str) -> None:
    values, own, other = TYPES[kind]
    shop = Shop(tmp_path, engine)
    it.write(
        pa.table({"id": pa.array(values[:1], other)}),
        shop.root / "customers",
        mode="overwrite",
        engine="arrow",
    )
    rows = pa.table({"id": [1, 2, 3, 4], "customer": pa.array([values[0], values[1], None, values[0]], own)})
    pq.write_table(rows, shop.root / "landing" / "a.parquet")
    known = pipeline.Expect(name="known", source="landing", references={"customer": "customers.id"}, **INTO)
    once = pipeline.Expect(name="once", source="landing", unique="customer", **INTO)
    shop.run(known, once, UPSERT).check()
    bad = pq.read_table(shop.root / "bad")
    assert sorted(zip(bad["id"].to_pylist(), bad["_step"].to_pylist(), strict=True)) == [
        (1, "once"),
        (2, "known"),
        (4, "once"),
    ]
    assert pq.read_table(shop.root / "orders")["id"].to_pylist() == [3]


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_zeros_are_equal_whatever_their_sign_and_nan_is_nan(tmp_path: Path, engine: str) -> None:
    shop = Shop(tmp_path, engine)
    for name, given in [("customers", [0.0, float("nan"), 4.0]), ("other", [4.0])]:
        it.write(pa.table({"id": given}), tmp_path / name, mode="overwrite", engine="arrow")
    values = [-0.0, float("nan"), 4.0, 5.0, 0.0]
    pq.write_table(pa.table({"id": range(5), "__rows": values}), tmp_path / "landing" / "a.parquet")
    known = pipeline.Expect(name="known", source="landing", references={"__rows": "customers.id"}, **INTO)
    zeros = pipeline.Expect(name="zeros", source="landing", unique="__rows", action="warn")
    once = pipeline.Expect(name="once", source="landing", unique="__rows", **INTO)
    fewer = pipeline.Expect(name="fewer", source="landing", references={"__rows": "other.id"}, **INTO)
    report = shop.run(known, zeros, once, fewer, UPSERT).check()
    bad = pq.read_table(tmp_path / "bad")
    assert sorted(zip(bad["id"].to_pylist(), bad["_step"].to_pylist(), strict=True)) == [
        (0, "once"),
        (1, "fewer"),
        (3, "known"),
        (4, "once"),
    ]
    assert report.step("zeros").checks[0].failing == 1
    assert pq.read_table(tmp_path / "orders")["id"].to_pylist() == [2]


def test_zeros_of_half_floats_are_equal(small: Shop) -> None:
    values = pa.array([0.0, -0.0, 1.0], pa.float16())
    pq.write_table(pa.table({"id": [1, 2, 3], "amount": values}), small.root / "landing" / "a.parquet")
    warned = pipeline.Expect(name="warned", source="landing", unique="amount", action="warn")
    once = pipeline.Expect(name="once", source="landing", unique="amount", action="drop")
    report = small.run(warned, once, UPSERT).check()
    assert report.step("warned").checks[0].failing == 1
    assert pq.read_table(small.root / "orders")["id"].to_pylist() == [3]


def test_views_of_text_are_judged_and_filtered(small: Shop) -> None:
    small.sources["landing"] = replace(small.sources["landing"], where="customer <> 'c'")
    pq.write_table(
        pa.table({"id": [1, 2, 3], "customer": pa.array(["a", "b", "c"], pa.string_view())}),
        small.root / "landing" / "a.parquet",
    )
    known = pipeline.Expect(name="known", source="landing", holds="customer <> 'b'", **INTO)
    warned = pipeline.Expect(name="warned", source="landing", unique="customer", action="warn")
    small.run(known, warned, UPSERT).check()
    assert pq.read_table(small.root / "bad")["id"].to_pylist() == [2]
    assert pq.read_table(small.root / "orders")["id"].to_pylist() == [1]


def test_null_among_accepted_values_accepts_nothing_else(small: Shop) -> None:
    pq.write_table(pa.table({"id": [1, 2, 3], "amount": [5, None, 7]}), small.root / "landing" / "a.parquet")
    sound = pipeline.Expect(name="sound", source="landing", accepted={"amount": (5, None)}, action="drop")
    small.run(sound, UPSERT).check()
    assert pq.read_table(small.root / "orders")["id"].to_pylist() == [1, 2]


def test_bytes_are_accepted_in_a_source_and_in_a_target(small: Shop) -> None:
    rows = pa.table({"id": [1, 2], "amount": [b"a", b"\x00"]})
    pq.write_table(rows, small.root / "landing" / "a.parquet")
    given = {"accepted": {"amount": (b"a",)}, "action": "warn"}
    source = pipeline.Expect(name="source", source="landing", **given)
    target = pipeline.Expect(name="target", target="orders", **given)
    report = small.run(source, UPSERT, target).check()
    assert [report.step(name).checks[0].failing for name in ("source", "target")] == [1, 1]


# The state


def test_steps_that_are_marked_as_done_quarantine_nothing(small: Shop) -> None:
    guard = pipeline.Expect(**POSITIVE | INTO)
    it.write(pa.table([[7], [1], [1]], schema=SCHEMA), small.root / "orders")
    small.lands("a", ROWS[:3])
    small.run(guard, UPSERT, mark_done=True)
    small.lands("b", [(8, 1, -8), (9, 1, 9)])
    small.run(guard, UPSERT).check()
    assert [row[0] for row in small.quarantined()] == [8]
    assert [row[0] for row in small.rows()] == [7, 9]


def test_marking_as_done_keeps_to_what_was_judged(small: Shop) -> None:
    guard = pipeline.Expect(name="known", source="landing", references={"customer": "customers.id"}, **INTO)
    small.lands("a", [(1, 1, 1), (2, 9, 2)])
    small.run(guard, UPSERT).check()
    small.run(guard, UPSERT, mark_done=True)
    small.customers(1, 2, 9)
    small.run(guard, UPSERT, full_refresh=True).check()
    assert [row[0] for row in small.rows()] == [1]
    assert [row[0] for row in small.quarantined()] == [2]


def test_a_quarantine_that_was_removed_begins_anew_with_new_files(small: Shop) -> None:
    guard = pipeline.Expect(**POSITIVE | INTO)
    small.lands("a", ROWS[:3])
    small.run(guard, UPSERT).check()
    shutil.rmtree(small.root / "bad")
    small.lands("b", [(8, 1, -8)])
    small.run(guard, UPSERT).check()
    assert [row[0] for row in small.quarantined()] == [8]


def test_a_judgement_counts_also_where_it_found_nothing(small: Shop) -> None:
    guard = pipeline.Expect(name="known", source="landing", references={"customer": "customers.id"}, **INTO)
    append = pipeline.Write(name="append", source="landing", target="other", mode="append")
    small.lands("a", [(1, 1, 1), (2, 2, 2)])
    small.run(guard, UPSERT, append, only=["known", "upsert"]).check()
    small.customers(1)
    small.run(guard, UPSERT, append, from_step="append").check()
    small.run(guard, UPSERT, append).check()
    assert small.rows("other") == small.rows() == [(1, 1, 1), (2, 2, 2)]
    assert small.quarantined() == []


def test_rows_that_were_dealt_with_can_be_deleted(small: Shop) -> None:
    guard = pipeline.Expect(**POSITIVE | INTO)
    clear = pipeline.Delete(name="clear", target="bad", where="id = 2")
    small.lands("a", ROWS[:5])
    small.run(guard, UPSERT, clear).check()
    assert [row[0] for row in small.quarantined()] == [5]
    assert [step.status for step in small.run(guard, UPSERT, clear).steps] == ["unchanged"] * 3


def test_a_quarantine_lost_with_its_state_is_refused(small: Shop) -> None:
    guard = pipeline.Expect(**POSITIVE | INTO)
    small.lands("a", ROWS[:3])
    small.run(guard, UPSERT).check()
    shutil.rmtree(small.root / ".intarsia")
    with pytest.raises(DamagedTable, match=r"commits of ('sound', 'upsert'|'upsert', 'sound')"):
        small.run(guard, UPSERT)


def test_another_condition_judges_new_files_alone(small: Shop) -> None:
    small.lands("a", [(1, 1, 1), (2, 1, 5)])
    small.run(pipeline.Expect(**POSITIVE | INTO), UPSERT).check()
    small.lands("b", [(3, 1, 1), (4, 1, 5)])
    stricter = pipeline.Expect(**POSITIVE | INTO | {"holds": "amount > 2"})
    small.run(stricter, UPSERT).check()
    assert [row[0] for row in small.quarantined()] == [3]
    assert [row[0] for row in small.rows()] == [1, 2, 4]


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_new_rows_of_a_target_are_added_to_the_quarantine_once(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path, engine)
    shop.sources["new"] = pipeline.Source(target="other", since="last run")
    steps = (
        pipeline.Expect(**POSITIVE | INTO | {"source": "new"}),
        pipeline.Merge(name="upsert", source="new", target="orders", on="id"),
    )
    for number in (1, 3, 5):
        rows = pa.table([[number, number + 1], [1, 1], [1, -1]], schema=SCHEMA)
        it.write(rows, tmp_path / "other", mode="append")
        planned = shop.run(*steps, dry_run=True).check().steps[0].result
        assert planned is not None
        assert planned.inserted == 1
        if number == 3:
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(RunState, "note", _interrupt)
                shop.run(*steps)
        shop.run(*steps).check()
    assert [row[0] for row in shop.rows()] == [1, 3, 5]
    assert [row[0] for row in shop.quarantined()] == [2, 4, 6]
    shop.run(*steps, full_refresh=True).check()
    assert [row[0] for row in shop.quarantined()] == [2, 4, 6]


def _interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_keys_of_new_rows_alone_are_not_quarantined(small: Shop) -> None:
    small.sources["new"] = pipeline.Source(target="other", since="last run")
    guard = pipeline.Expect(name="sound", source="new", unique="id", **INTO)
    with pytest.raises(InputError, match="'new' has new rows alone"):
        small.run(guard, pipeline.Merge(name="upsert", source="new", target="orders", on="id"))


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_a_guard_with_another_name_keeps_to_what_it_has_judged(tmp_path: Path, engine: str) -> None:
    shop = Shop(tmp_path, engine)
    known = {"source": "landing", "references": {"customer": "customers.id"}}
    shop.lands("a", [(1, 1, 1), (2, 9, 2)])
    shop.run(pipeline.Expect(name="known", **known, **INTO), UPSERT).check()
    shop.customers(1, 2, 9)
    shop.run(pipeline.Expect(name="renamed", **known, **INTO), UPSERT, full_refresh=True).check()
    assert shop.rows() == [(1, 1, 1)]
    assert [row[0] for row in shop.quarantined()] == [2]


def test_a_guard_with_another_name_replaces_its_own_rows(small: Shop) -> None:
    upsert = pipeline.Write(name="all", source="landing", target="orders", mode="overwrite")
    for number, name in enumerate(["sound", "renamed", "renamed", "it's"]):
        small.lands(f"{number}", [(number, 1, 1), (number + 10, 1, -1)])
        small.run(pipeline.Expect(**POSITIVE | INTO | {"name": name}), upsert).check()
        assert [row[0] for row in small.quarantined()] == list(range(10, number + 11))
    state = json.loads((small.root / ".intarsia" / "shop.state.json").read_text())
    (judged,) = state["steps"]["it's"]["taken"].values()
    assert sum(map(len, judged.values())) == 4  # each file once


def test_what_a_query_gave_to_the_quarantine_does_not_pass_in_the_same_run(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "duckdb")
    pq.write_table(pa.table({"id": [9]}), tmp_path / "new.parquet")
    shop.sources["new"] = pipeline.Source(str(tmp_path / "new.parquet"))
    shop.sources["query"] = pipeline.Source(sql="select * from landing")
    shop.lands("a", [(1, 1, 1), (2, 9, 2)])
    shop.run(
        pipeline.Expect(name="known", source="query", references={"customer": "customers.id"}, **INTO),
        pipeline.Merge(name="feed", source="new", target="customers", on="id"),
        pipeline.Merge(name="upsert", source="query", target="orders", on="id"),
    ).check()
    assert [row[0] for row in shop.quarantined()] == [2]
    assert shop.rows() == [(1, 1, 1)]


def test_a_row_leaves_the_quarantine_of_a_query_when_it_passes(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "duckdb")
    shop.sources["new"] = pipeline.Source(str(tmp_path / "new*.parquet"))
    shop.sources["query"] = pipeline.Source(sql="select * from landing")
    shop.lands("a", [(1, 1, 1), (2, 8, 2), (3, 9, 3)])
    steps = (
        pipeline.Expect(name="known", source="query", references={"customer": "customers.id"}, **INTO),
        pipeline.Merge(name="feed", source="new", target="customers", on="id"),
        pipeline.Merge(name="upsert", source="query", target="orders", on="id"),
    )
    for number, customer in enumerate([8, 9]):
        pq.write_table(pa.table({"id": [customer]}), tmp_path / f"new{number}.parquet")
        for _ in range(2):
            shop.run(*steps).check()
        assert [row[0] for row in shop.rows()] == [1, 2, 3][: number + 2]
        assert [row[0] for row in shop.quarantined()] == [2, 3][number + 1 :]
    assert [step.status for step in shop.run(*steps).steps] == ["unchanged"] * 3


def test_a_module_declares_a_quarantine_by_its_path(small: Shop) -> None:
    declared = pipeline.Pipeline("shop", engine="arrow", reports=str(small.root / "reports"))
    landing = declared.files("landing", str(small.root / "landing" / "*.parquet"))
    declared.expect(landing, holds="amount > 0", action="quarantine", quarantine=small.root / "bad")
    declared.merge(landing, into=small.root / "orders", on="id")
    small.lands("a", ROWS[:3])
    pipeline.run(declared, progress=False).check()
    assert [row[0] for row in small.quarantined()] == [2]


def test_the_command_line_tells_and_ends_well(small: Shop) -> None:
    small.lands("a", ROWS[:3])
    (small.root / "shop.toml").write_text(
        'engine = "arrow"\n[sources.landing]\npath = "landing/*.parquet"\n'
        '[targets.orders]\npath = "orders"\n[targets.bad]\npath = "bad"\n'
        '[[steps]]\nname = "sound"\noperation = "expect"\nsource = "landing"\nholds = "amount > 0"\n'
        'action = "quarantine"\nquarantine = "bad"\nat_most = "50 %"\n'
        '[[steps]]\nname = "upsert"\noperation = "merge"\nsource = "landing"\ntarget = "orders"\non = "id"\n'
    )
    done = CliRunner().invoke(cli, ["run", str(small.root / "shop.toml")])
    assert done.exit_code == 0, done.output
    assert "amount > 0: 1 of 3 rows against it, at most 50 %, quarantined into bad" in done.output
    assert "shop: done, 1 warning" in done.output


def test_an_expectation_that_fails_is_counted_once_beside_the_rows_of_all() -> None:
    checks = [
        Check("amount > 0", 2, rows=3, outcome="failed", limit="1 row"),
        Check("id unique", 0, rows=3),
        Check(ANY, 2, rows=3, outcome="failed", limit="1 row"),
    ]
    assert str(make_failure(checks, "source 'landing'")).startswith("1 expectation does not hold of")


def test_rows_of_several_expectations_that_are_quarantined_together_are_told_in_one_line() -> None:
    checks = [
        Check("amount > 0", 1, rows=3, outcome="quarantined", limit="50 %", into="bad"),
        Check("id is not NULL", 0, rows=3, limit="50 %", into="bad"),
        Check("id unique", 2, rows=3, outcome="quarantined", limit="50 %", into="bad"),
        Check(ANY, 2, rows=3, outcome="quarantined", limit="50 %", into="bad"),
    ]
    (told,) = describe_outcomes(checks)
    assert told == "2 of 3 rows quarantined into bad, at most 50 % (amount > 0: 1; id unique: 2)"
    assert len(describe_outcomes(checks[:-1])) == 2
    failed = [replace(check, outcome="failed" if check.failing else "held") for check in checks]
    assert len(describe_outcomes(failed)) == 3
