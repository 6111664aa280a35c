from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import intarsia as it
import intarsia.integrations.polars
from intarsia.core.evaluate import find_hit_positions
from intarsia.core.expr import resolve
from intarsia.errors import InputError, KeyColumnError, NothingMatched, SchemaMismatch
from intarsia.integrations.polars_predicate import translate_predicate
from intarsia.tables.iceberg import embedded_catalog

PARIS = ZoneInfo("Europe/Paris")
NOON = datetime(2025, 3, 30, 12, tzinfo=PARIS)

FRAME = pl.DataFrame(
    {
        "id": range(60),
        "small": pl.Series([None if i % 7 == 0 else i - 30 for i in range(60)], dtype=pl.Int8),
        "name": [None if i % 11 == 0 else f"n{i % 5}" for i in range(60)],
        "flag": [None if i % 13 == 0 else i % 2 == 0 for i in range(60)],
        "share": [float("nan") if i % 9 == 0 else None if i % 8 == 0 else i / 4 for i in range(60)],
        "price": pl.Series([Decimal(i) / 4 for i in range(60)], dtype=pl.Decimal(12, 2)),
        "day": [date(2025, 3, 1) + timedelta(days=i // 20) for i in range(60)],
        "at": pl.Series(
            [NOON + timedelta(hours=i) for i in range(60)], dtype=pl.Datetime("us", "Europe/Paris")
        ),
        "kind": pl.Series([f"k{i % 3}" for i in range(60)], dtype=pl.Enum(["k2", "k0", "k1"])),
    }
)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """The frame in three partitions of one file each, ids in order."""
    it.write(FRAME, tmp_path / "lake", partition_by="day")
    return tmp_path / "lake"


def test_a_frame_is_merged_by_key(tmp_path: Path, rows: Any) -> None:
    first = pl.DataFrame({"id": [1, 2], "n": ["a", "b"]}).intarsia.write_to(tmp_path / "lake")
    result = pl.DataFrame({"id": [2, 3], "n": ["b2", "c"]}).intarsia.merge_into(tmp_path / "lake", on="id")
    assert (first.total, result.updated, result.inserted) == (2, 1, 1)
    assert [row["n"] for row in rows(tmp_path / "lake")] == ["a", "b2", "c"]


def test_a_query_is_evaluated_in_batches_and_merged(tmp_path: Path, rows: Any) -> None:
    pl.DataFrame({"id": range(100_000), "n": 0}).write_parquet(tmp_path / "new.parquet")
    query = pl.scan_parquet(tmp_path / "new.parquet").filter(pl.col("id") % 2 == 0).with_columns(n=pl.lit(7))
    assert query.intarsia.merge_into(tmp_path / "lake", on="id").inserted == 50_000
    assert query.head(3).intarsia.write_to(tmp_path / "lake", mode="overwrite").total == 3
    assert rows(tmp_path / "lake") == [{"id": 0, "n": 7}, {"id": 2, "n": 7}, {"id": 4, "n": 7}]


def test_a_query_without_rows_has_its_columns(tmp_path: Path) -> None:
    FRAME.lazy().filter(pl.col("id") < 0).intarsia.write_to(tmp_path / "lake")
    assert it.scan(tmp_path / "lake").collect_schema() == FRAME.schema


def test_arguments_of_a_merge_are_passed_on(lake: Path, unchanged: Any) -> None:
    gone = FRAME.filter(pl.col("id") < 3)
    with unchanged(lake):
        assert gone.intarsia.merge_into(lake, on="id", strategy="full_merge", dry_run=True).deleted == 57
    assert gone.lazy().intarsia.merge_into(lake, on="id", strategy="full_merge").total == 3


ODD = {
    "enum": pl.Series(["b", None, "a"], dtype=pl.Enum(["a", "b"])),
    "categorical": pl.Series(["b", None, "a"], dtype=pl.Categorical),
    "decimal": pl.Series([Decimal("1.25"), None, Decimal("-3.50")], dtype=pl.Decimal(20, 2)),
    "duration": pl.Series([timedelta(microseconds=5), None, timedelta(days=-2)], dtype=pl.Duration("us")),
    "duration of ms": pl.Series([timedelta(milliseconds=5), None, timedelta(0)], dtype=pl.Duration("ms")),
    "time": pl.Series([time(1, 2, 3, 4), None, time.max]),
    "zone": pl.Series([NOON, None, NOON - timedelta(days=90)], dtype=pl.Datetime("ns", "Europe/Paris")),
    "offset": pl.Series([NOON, None, NOON], dtype=pl.Datetime("ms", "Asia/Kathmandu")),
    "naive": pl.Series([datetime(1, 1, 1), None, datetime(9999, 12, 31)], dtype=pl.Datetime("us")),
    "list": pl.Series([[1, None], [], None], dtype=pl.List(pl.Int16)),
    "array": pl.Series([[1, 2], None, [3, 4]], dtype=pl.Array(pl.Int32, 2)),
    "struct": pl.Series([{"x": 1, "y": ["é"]}, {"x": None, "y": None}, {"x": 3, "y": []}]),
    "binary": pl.Series([b"\x00\xff", None, b""]),
    "boolean": pl.Series([True, None, False]),
    "unsigned": pl.Series([2**64 - 1, None, 0], dtype=pl.UInt64),
    "float": pl.Series([float("nan"), None, float("-inf")], dtype=pl.Float32),
}


@pytest.mark.parametrize("name", ODD)
def test_every_type_is_read_back_as_it_was_merged(name: str, tmp_path: Path) -> None:
    frame = pl.DataFrame({"id": [1, 2, 3], "value": ODD[name]})
    frame.head(2).intarsia.merge_into(tmp_path / "lake", on="id")
    frame.tail(2).lazy().intarsia.merge_into(tmp_path / "lake", on="id")
    found = it.scan(tmp_path / "lake").collect().sort("id")
    assert_frame_equal(found, frame, categorical_as_str=name == "categorical")
    assert found.schema == frame.schema


CONDITIONS = {
    "equal": pl.col("id") == 7,
    "swapped": pl.lit(7) > pl.col("id"),
    "narrow": pl.col("small") >= 5,
    "out of range": pl.col("small") < 1000,
    "not": ~(pl.col("small") >= 5),
    "unequal": pl.col("name") != "n1",
    "text": pl.col("name") > "n2",
    "null": pl.col("name").is_null(),
    "not null": ~pl.col("name").is_null() & pl.col("small").is_not_null(),
    "null safe": pl.col("name").eq_missing(None),
    "flag": pl.col("flag"),
    "no flag": ~pl.col("flag"),
    "flag is": pl.col("flag") == True,  # noqa: E712
    "below": pl.col("share") < 3.5,
    "above, where NaN is": pl.col("share") > 3.5,
    "not below, where NaN is": ~(pl.col("share") < 3.5),
    "NaN": pl.col("share").is_nan(),
    "equal to NaN": pl.col("share") == float("nan"),
    "a number that is none of the type": pl.col("id") < 3.5,
    "decimal": pl.col("price") <= Decimal("3.25"),
    "more digits": pl.col("price") <= Decimal("3.255"),
    "whole": pl.col("price") == 5,
    "date": pl.col("day") == date(2025, 3, 2),
    "dates": pl.col("day").is_between(date(2025, 3, 2), date(2025, 3, 9), closed="right"),
    "no date": ~pl.col("day").is_between(date(2025, 3, 2), date(2025, 3, 9), closed="none"),
    "instant": pl.col("at") < NOON + timedelta(hours=5),
    "instants": pl.col("at").is_between(NOON, NOON + timedelta(hours=3), closed="left"),
    "one of": pl.col("name").is_in(["n1", "n3", None]),
    "none of": ~pl.col("name").is_in(["n1", "n3"]),
    "one of numbers": pl.col("id").is_in([1, 2, 30, 99]),
    "one of days": pl.col("day").is_in([date(2025, 3, 3)]),
    "none": pl.col("id").is_in([]),
    "enum": pl.col("kind") == "k2",
    "enum, whose order is its own": pl.col("kind") > "k0",
    "a function": pl.col("name").str.ends_with("3") & (pl.col("id") < 40),
    "of two columns": pl.col("id") > pl.col("small"),
    "or": (pl.col("id") < 3) | (pl.col("id") > 57),
    "or what is not translated": (pl.col("id") < 3) | pl.col("name").str.ends_with("3"),
    "xor": pl.col("flag") ^ (pl.col("id") < 10),
    "arithmetic": pl.col("id") * 2 > 100,
    "cast": pl.col("id").cast(pl.String) == "12",
    "python": pl.col("id").map_batches(lambda values: values.is_in([3, 5]), return_dtype=pl.Boolean),
    "literal": pl.lit(False),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_filter_leaves_the_rows_that_polars_leaves(name: str, lake: Path) -> None:
    found = it.scan(lake).filter(CONDITIONS[name]).collect().sort("id")
    assert_frame_equal(found, FRAME.filter(CONDITIONS[name]), check_column_order=False)


@st.composite
def _conditions(draw: st.DrawFn) -> pl.Expr:
    operators = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
    column, values = draw(
        st.sampled_from(
            [
                ("id", st.integers(-(2**40), 2**40) | st.integers(0, 60)),
                ("small", st.integers(-200, 200)),
                ("name", st.sampled_from(["", "n1", "n3", "z"])),
                ("share", st.floats() | st.sampled_from([0.25, 3.5])),
                ("price", st.decimals(-20, 20, places=3) | st.integers(-5, 20)),
                ("day", st.dates(date(2025, 2, 27), date(2025, 3, 5))),
                ("kind", st.sampled_from(["k0", "k1", "k2"])),
            ]
        )
    )
    one: pl.Expr = getattr(pl.col(column), draw(st.sampled_from(operators)))(draw(values))
    match draw(st.sampled_from(["one", "not", "and", "or", "null", "flag"])):
        case "not":
            return ~draw(_conditions())
        case "and":
            return one & draw(_conditions())
        case "or":
            return one | draw(_conditions())
        case "null":
            return pl.col(column).is_null()
        case "flag":
            return pl.col("flag") if draw(st.booleans()) else ~pl.col("flag")
    return one


@given(_conditions())
def test_what_is_pushed_down_finds_every_row_that_polars_finds(condition: pl.Expr) -> None:
    table = pl.DataFrame(FRAME).to_arrow(compat_level=pl.CompatLevel.oldest())
    wanted = set(FRAME.filter(condition)["id"])
    known = translate_predicate(condition, table.schema)
    if known is not None:
        found = find_hit_positions(resolve(known, table.schema, expect=pa.bool_()), table)
        assert wanted <= set(found.to_pylist())


def _spoil(file: Path, column: str) -> None:
    """Overwrite the pages of a column; the footer stays."""
    footer = pq.read_metadata(file)
    chunk = footer.row_group(0).column(footer.schema.names.index(column))
    starts = [start for start in (chunk.dictionary_page_offset, chunk.data_page_offset) if start]
    with file.open("r+b") as opened:
        opened.seek(min(starts))
        opened.write(b"\xff" * chunk.total_compressed_size)


@pytest.mark.parametrize(
    "condition",
    [pl.col("day") == date(2025, 3, 1), pl.col("id") < 20, pl.col("at") < NOON, pl.col("id").is_in([3, 4])],
    ids=str,
)
def test_files_that_a_filter_excludes_are_not_read(condition: pl.Expr, lake: Path) -> None:
    for file in lake.glob("day=2025-03-0[23]/*.parquet"):
        _spoil(file, "id")
    assert_frame_equal(
        it.scan(lake).filter(condition).collect(), FRAME.filter(condition), check_column_order=False
    )
    with pytest.raises(it.IntarsiaError):
        it.scan(lake).collect()


def test_columns_that_a_query_does_not_need_are_not_read(lake: Path) -> None:
    for file in lake.rglob("*.parquet"):
        _spoil(file, "name")
    scanned = it.scan(lake)
    assert scanned.filter(pl.col("small") == 6).select("id").collect()["id"].to_list() == [36]
    assert scanned.select(pl.len()).collect().item() == 60
    with pytest.raises(it.IntarsiaError):
        scanned.select("name").collect()


def test_rows_are_counted_and_limited(lake: Path) -> None:
    scanned = it.scan(lake)
    assert scanned.select(pl.len()).collect().item() == 60
    assert scanned.filter(pl.col("id") > 5).select(pl.len()).collect().item() == 54
    assert scanned.head(7).collect().height == 7
    assert scanned.filter(pl.col("id") >= 15).head(10).select("id").collect()["id"].to_list() == list(
        range(15, 25)
    )


def test_a_scan_goes_into_a_larger_query(lake: Path) -> None:
    names = pl.LazyFrame({"name": ["n1", "n2"], "title": ["one", "two"]})
    query = it.scan(lake).join(names, on="name").group_by("title").agg(pl.col("id").max()).sort("title")
    assert query.collect().rows() == [("one", 56), ("two", 57)]
    assert query.collect(engine="in-memory").rows() == [("one", 56), ("two", 57)]


def test_each_collection_reads_the_state_of_then(lake: Path) -> None:
    scanned = it.scan(lake)
    it.delete(lake, "id < 10")
    assert scanned.select(pl.len()).collect().item() == 50


def test_a_commit_while_rows_are_read_changes_none_of_them(lake: Path) -> None:
    batches = it.scan(lake).collect_batches(chunk_size=5, maintain_order=True)
    first = next(batches)
    it.update(lake, {"name": "'later'"})
    found = pl.concat([first, *batches])
    assert_frame_equal(found.sort("id"), FRAME, check_column_order=False)


def test_a_column_that_has_another_type_by_now_is_told(lake: Path) -> None:
    scanned = it.scan(lake)
    wide = FRAME.with_columns(pl.col("small").cast(pl.Int64) + 1000)
    wide.intarsia.merge_into(lake, on="id", schema_evolution="widen")
    with pytest.raises(SchemaMismatch, match="'small' had another type"):
        scanned.collect()
    assert scanned.select(pl.len()).collect().item() == 60


def test_deletes_of_an_iceberg_table_are_applied(tmp_path: Path) -> None:
    catalog = embedded_catalog(tmp_path / "warehouse")
    catalog.create_namespace("shop")
    rows = pa.table({"id": range(1000), "day": [i // 100 for i in range(1000)]})
    table = catalog.create_table("shop.orders", rows.schema)
    it.write(rows, table)
    assert it.delete(table, "id % 2 = 0", mode="merge-on-read").deleted == 500
    scanned = it.scan(table)
    assert scanned.filter(pl.col("day") == 3).select(pl.col("id").min(), pl.len()).collect().rows() == [
        (301, 50)
    ]
    pl.DataFrame({"id": [2], "day": [0]}).intarsia.merge_into(table, on="id")
    assert scanned.select(pl.len()).collect().item() == 501


REFUSED: dict[str, tuple[pl.DataFrame, type[Exception]]] = {
    "keys twice": (pl.DataFrame({"id": [1, 1], "n": ["a", "b"]}), KeyColumnError),
    "no key": (pl.DataFrame({"n": ["a"]}), KeyColumnError),
    "a value that does not fit": (pl.DataFrame({"id": [1], "n": [[1]]}), SchemaMismatch),
    "another column": (pl.DataFrame({"id": [1], "n": ["a"], "m": [1]}), SchemaMismatch),
    "objects": (pl.DataFrame({"id": [1], "n": pl.Series([object()], dtype=pl.Object)}), InputError),
}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_leaves_every_byte(name: str, lazy: bool, tmp_path: Path, unchanged: Any) -> None:
    pl.DataFrame({"id": [1, 2], "n": ["a", "b"]}).intarsia.write_to(tmp_path / "lake")
    frame, error = REFUSED[name]
    with unchanged(tmp_path / "lake"), pytest.raises(error):
        (frame.lazy() if lazy else frame).intarsia.merge_into(tmp_path / "lake", on="id")


def test_a_query_that_fails_leaves_every_byte(lake: Path, unchanged: Any) -> None:
    query = FRAME.lazy().with_columns(small=pl.col("name").cast(pl.Int8))
    with unchanged(lake), pytest.raises(pl.exceptions.PolarsError):
        query.intarsia.merge_into(lake, on="id")


def test_a_table_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(NothingMatched):
        it.scan(tmp_path / "none")
    with pytest.raises(InputError, match="no option"):
        it.scan(tmp_path, colums=["id"])  # type: ignore[call-arg]


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_polars_is_loaded_when_a_scan_is_asked_for() -> None:
    code = """
import sys
import intarsia as it
for name in ("merge", "scan"):
    getattr(it, name)
    print("polars" in sys.modules)
"""
    assert _python(code).split() == ["False", "True"]


def test_without_polars_the_error_names_the_extra() -> None:
    code = """
import sys
sys.modules["polars"] = None
import intarsia as it
try:
    it.scan("lake")
except it.IntarsiaError as error:
    print(type(error).__name__, error)
"""
    assert _python(code).split() == [
        "NotSupported",
        *["polars", "is", "needed", "here,", "which", "is", "not", "installed.", "Hint:"],
        *["pip", "install", "'intarsia[polars]'."],
    ]


def test_an_instant_of_another_zone_is_the_same_instant(lake: Path, rows: Any) -> None:
    later = FRAME.head(1).with_columns(pl.col("at").dt.convert_time_zone("America/New_York"))
    assert later.intarsia.merge_into(lake, on="id").updated in (0, 1)
    found = it.scan(lake).filter(pl.col("id") == 0).collect()
    assert found["at"].to_list() == [NOON.astimezone(UTC)]
    assert found.schema["at"] == pl.Datetime("us", "Europe/Paris")
