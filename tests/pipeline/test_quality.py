"""Expectations beyond pass or fail: warnings, rates, freshness and foreign keys, on every engine."""

from __future__ import annotations

import json
import os
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia import pipeline
from intarsia.errors import InputError
from intarsia.pipeline.quality.checks import parse_limit

ON_SPARK = [
    pytest.mark.spark,
    pytest.mark.skipif(os.environ.get("INTARSIA_SPARK") != "full", reason="make spark runs it"),
]
ENGINES = ["arrow", "duckdb", pytest.param("spark", marks=ON_SPARK)]


class Shop:
    """Orders that land as Parquet, and customers that are there."""

    def __init__(self, root: Path, engine: str, session: Any = None) -> None:
        self.root, self.engine, self.session = root, engine, session
        (root / "landing").mkdir()

    def lands(self, name: str = "a", **columns: Any) -> None:
        pq.write_table(pa.table(columns), self.root / "landing" / f"{name}.parquet")

    def pipeline(self, *steps: Any, **fields: Any) -> pipeline.Pipeline:
        named = {
            "orders": pipeline.Target(str(self.root / "orders")),
            "customers": pipeline.Target(str(self.root / "customers")),
        }
        return pipeline.Pipeline(
            name="shop",
            engine=self.engine,
            sources={"landing": pipeline.Source(str(self.root / "landing" / "*.parquet"))},
            targets=named,
            steps=steps,
            reports=str(self.root / "reports"),
            **fields,
        )

    def run(self, *steps: Any, **options: Any) -> pipeline.PipelineReport:
        return pipeline.run(self.pipeline(*steps), progress=False, session=self.session, **options)

    def check(self, **expected: Any) -> pipeline.StepReport:
        """The report of one expectation on the landing files."""
        return self.run(pipeline.Expect(name="sound", source="landing", **expected)).step("sound")

    def check_target(self, **expected: Any) -> pipeline.StepReport:
        """The report of one expectation on the rows of the landing files, written into a target."""
        it.write(pq.read_table(self.root / "landing"), self.root / "orders", mode="overwrite", engine="arrow")
        return self.run(pipeline.Expect(name="sound", target="orders", **expected)).step("sound")


@pytest.fixture(params=ENGINES)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    session = request.getfixturevalue("spark") if request.param == "spark" else None
    return Shop(tmp_path, request.param, session)


@pytest.fixture
def small(tmp_path: Path) -> Shop:
    return Shop(tmp_path, "arrow")


# Warnings and rates


def test_a_warning_lets_the_run_go_on_and_is_seen(small: Shop) -> None:
    small.lands(id=[1, 2, 3], amount=[5, -1, 7])
    warn = pipeline.Expect(name="sound", source="landing", holds="amount > 0", max_rows=2, action="warn")
    report = small.run(warn, pipeline.Merge(name="upsert", source="landing", target="orders", on="id"))
    assert report.ok
    assert report.step("upsert").result.inserted == 3
    assert [check.outcome for check in report.step("sound").checks] == ["warned", "warned"]
    said = json.loads(Path(report.json_path).read_text())
    assert said["status"] == "done, 2 warnings"
    assert said["steps"][0]["checks"][1] == {
        "expectation": "amount > 0",
        "ok": False,
        "outcome": "warned",
        "rows": 3,
        "failing": 1,
        "share": 1 / 3,
        "at_most": None,
        "found": None,
        "into": None,
    }
    page = Path(report.html_path).read_text()
    assert 'class="mark plan">done, 2 warnings' in page
    assert "33.333%" in page


@pytest.mark.parametrize(
    ("at_most", "rows", "most"),
    [("0.1 %", 3000, 3), ("0.1 %", 2999, 2), ("33.3%", 1000, 333), (2, 10, 2), ("7", 10, 7), ("0 %", 9, 0)],
)
def test_a_rate_is_exact(at_most: Any, rows: int, most: int) -> None:
    limit = parse_limit(at_most)
    assert limit.allows(most, rows)
    assert not limit.allows(most + 1, rows)


def test_a_rate_has_no_rounding_where_floats_would(small: Shop) -> None:
    """0.07 * 100 is 7.000000000000001 as floats, and 0.29 * 100 is 28.999999999999996."""
    assert parse_limit("29 %").allows(29, 100)
    assert not parse_limit("7 %").allows(8, 100)
    assert parse_limit("0.00000000000000000001 %").allows(1, 10**22)


@pytest.mark.parametrize("at_most", ["0.1", "1 ‰", "-1", -1, "101 %", "", "% 3", True])
def test_a_rate_that_is_none_is_refused(small: Shop, at_most: Any) -> None:
    with pytest.raises(InputError, match=r"\[\[steps\]\] 1 \(sound\) at_most: .* neither"):
        small.check(holds="id > 0", at_most=at_most)


def test_within_its_rate_an_expectation_holds_beyond_it_does_not(shop: Shop) -> None:
    shop.lands(id=list(range(1000)), amount=[-1, 0, *range(998)])
    held = shop.check(holds="amount >= 0", at_most="0.1 %")
    assert (held.status, held.checks[0].failing, held.checks[0].outcome) == ("done", 1, "held")
    failed = shop.check(holds="amount > 1", at_most="0.1 %", action="warn")
    assert failed.status == "failed"
    assert "4 of 1,000 rows against it, more than 0.1 %" in str(failed.error)
    assert shop.check(holds="amount > 0", at_most=3, action="warn").checks[0].outcome == "warned"


def test_a_rate_on_a_target_counts_its_rows(shop: Shop) -> None:
    shop.lands(id=list(range(10)), amount=[-1, *range(9)])
    assert shop.check_target(holds="amount >= 0", at_most="10 %").status == "done"
    assert shop.check_target(holds="amount >= 0", at_most="9.99 %").status == "failed"


# Freshness

NOW = datetime(2025, 3, 2, 12, tzinfo=UTC)
FRESH = {
    "naive, in UTC": pa.array([datetime(2025, 3, 1, 12), None], pa.timestamp("us")),
    "zoned": pa.array(
        [datetime(2025, 3, 1, 14, tzinfo=timezone(timedelta(hours=2)))], pa.timestamp("us", "Europe/Berlin")
    ),
    "milliseconds": pa.array([datetime(2025, 3, 1, 12)], pa.timestamp("ms")),
    "date": pa.array([date(2025, 3, 2), date(2024, 1, 1)], pa.date32()),
}


@pytest.mark.parametrize("kind", FRESH)
def test_the_newest_value_decides_what_is_fresh(shop: Shop, kind: str) -> None:
    shop.lands(at=FRESH[kind])
    edge = timedelta(hours=12) if kind == "date" else timedelta(hours=24)
    within = {"column": "at", "within": f"{edge // timedelta(minutes=1)} minutes"}
    for check in (shop.check, shop.check_target):
        assert check(fresh=within | {"as_of": NOW.isoformat()}).status == "done"
        late = check(fresh=within | {"as_of": (NOW + timedelta(microseconds=1)).isoformat()})
        assert late.status == "failed"
        assert "the newest is 2025-03-0" in str(late.error)


def test_no_value_is_not_fresh(shop: Shop) -> None:
    shop.lands(at=pa.array([None], pa.timestamp("us")))
    assert "there is no value" in str(shop.check(fresh={"column": "at", "within": "1 day"}).error)
    assert "there is no value" in str(shop.check_target(fresh={"column": "at", "within": "1 day"}).error)


def test_freshness_is_asked_again_though_nothing_has_changed(small: Shop) -> None:
    small.lands(id=[1], at=[datetime.now(UTC)])
    steps = (
        pipeline.Expect(name="fresh", source="landing", fresh={"column": "at", "within": "1 hour"}),
        pipeline.Merge(name="upsert", source="landing", target="orders", on="id"),
        pipeline.Expect(name="still", target="orders", fresh={"column": "at", "within": "1 hour"}),
    )
    assert [step.status for step in small.run(*steps).steps] == ["done"] * 3
    assert [step.status for step in small.run(*steps).steps] == ["done", "unchanged", "done"]


@pytest.mark.parametrize(
    ("fresh", "told"),
    [
        ({"column": "at"}, "needs a column and within"),
        ({"column": "at", "within": "soon"}, "no span of time"),
        ({"column": "at", "within": "1 day", "asof": "x"}, "has no 'asof'"),
        ({"column": "at", "within": "1 day", "as_of": "noon"}, "is no time"),
    ],
)
def test_freshness_that_cannot_be_read_is_refused(small: Shop, fresh: dict[str, str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        small.check(fresh=fresh)


def test_what_is_no_time_cannot_be_fresh(small: Shop) -> None:
    small.lands(at=[1])
    assert "no date or timestamp" in str(small.check(fresh={"column": "at", "within": "1 day"}).error)


# Foreign keys


def test_a_key_that_the_other_target_lacks_is_counted(shop: Shop) -> None:
    it.write(pa.table({"id": pa.array([1, 2, None], pa.int32())}), shop.root / "customers", engine="arrow")
    shop.lands(id=[1, 2, 3, 4, 5], customer=pa.array([1, None, 3, 3, 2], pa.int64()))
    for check in (shop.check, shop.check_target):
        failed = check(references={"customer": "customers.id"})
        assert failed.status == "failed"
        assert [(one.expectation, one.failing, one.rows) for one in failed.checks] == [
            ("customer in customers.id", 2, 5)
        ]
        assert check(references={"customer": "customers.id"}, at_most="40 %").status == "done"


def test_keys_of_several_columns_are_met_together(shop: Shop) -> None:
    parents = {"region": ["eu", "eu", "ap"], "no": pa.array([1, 2, 1], pa.int16())}
    it.write(pa.table(parents), shop.root / "customers", engine="arrow")
    shop.lands(r=["eu", "ap", "ap", None], n=pa.array([2, 2, 1, 9], pa.int64()))
    failed = shop.check(references={"r, n": "customers.region, no"})
    assert [(one.expectation, one.failing) for one in failed.checks] == [("r, n in customers.region, no", 1)]


KEYS = {
    "decimal": ([Decimal("1.50"), Decimal("2.5")], pa.decimal128(5, 2), pa.decimal128(9, 3)),
    "timestamp": ([datetime(2025, 1, 1), datetime(2025, 1, 2)], pa.timestamp("us"), pa.timestamp("ms")),
    "text": (["a", "ä"], pa.string(), pa.large_string()),
    "bytes": ([b"a", b"\x00"], pa.binary(), pa.binary()),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type_are_compared_by_value(shop: Shop, kind: str) -> None:
    values, own, other = KEYS[kind]
    it.write(pa.table({"id": pa.array(values[:1], other)}), shop.root / "customers", engine="arrow")
    shop.lands(customer=pa.array([*values, *values], own))
    assert shop.check(references={"customer": "customers.id"}).checks[0].failing == 2


def test_more_keys_than_one_piece_are_compared(small: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intarsia.pipeline.quality.references.PIECE_ROWS", 10)
    it.write(pa.table({"id": list(range(0, 1000, 2))}), small.root / "customers", row_group_size=7)
    small.lands(customer=list(range(100)) * 3)
    assert small.check(references={"customer": "customers.id"}).checks[0].failing == 150


def test_keys_of_other_types_are_refused(shop: Shop) -> None:
    it.write(pa.table({"id": ["1"]}), shop.root / "customers", engine="arrow")
    shop.lands(customer=[1])
    assert "'customer' is int64, and customers.id is" in str(
        shop.check(references={"customer": "customers.id"}).error
    )


def test_a_reference_into_what_is_not_there_is_named(small: Shop) -> None:
    small.lands(customer=[1])
    with pytest.raises(InputError, match=r"names no column of a target or source.*did you mean 'customers'"):
        small.check(references={"customer": "customer.id"})
    with pytest.raises(InputError, match="different numbers of columns"):
        small.check(references={"customer": "customers.a, b"})
    assert "does not exist yet" in str(small.check(references={"customer": "customers.id"}).error)
    it.write(pa.table({"no": [1]}), small.root / "customers")
    assert "has no column 'id'" in str(small.check(references={"customer": "customers.id"}).error)


def test_a_changed_reference_is_checked_again(small: Shop) -> None:
    it.write(pa.table({"id": [1]}), small.root / "customers")
    small.lands(id=[1], customer=[1])
    steps = (
        pipeline.Merge(name="upsert", source="landing", target="orders", on="id"),
        pipeline.Expect(name="known", target="orders", references={"customer": "customers.id"}),
    )
    assert small.run(*steps).ok
    assert small.run(*steps).step("known").status == "unchanged"
    it.delete(small.root / "customers", "id = 1")
    assert small.run(*steps).step("known").status == "failed"


@pytest.mark.spark
def test_spark_counts_what_the_other_engines_count(tmp_path: Path, spark: Any) -> None:
    shop = Shop(tmp_path, "spark", spark)
    it.write(pa.table({"id": pa.array([1, 2], pa.int32())}), shop.root / "customers", engine="arrow")
    shop.lands(customer=[1, 2, 3, None], at=FRESH["date"].take([0, 0, 1, 1]))
    expected = {
        "holds": "customer < 3",
        "references": {"customer": "customers.id"},
        "fresh": {"column": "at", "within": "11 hours", "as_of": NOW.isoformat()},
        "at_most": "25 %",
        "action": "warn",
    }
    counted = [(one.failing, one.rows, one.outcome) for one in shop.check(**expected).checks]
    assert counted == [(1, 4, "warned"), (1, None, "warned"), (1, 4, "warned")]
    shop.engine, shop.session = "arrow", None
    again = shop.check(**expected | {"at_most": 1})
    assert [(one.failing, one.rows, one.outcome) for one in again.checks] == counted
