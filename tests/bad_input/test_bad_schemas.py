"""Cases 18 to 36 of the bad-input catalogue: columns and types that differ, and values that do not fit."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.errors import SchemaMismatch
from tests.bad_input.trial import (
    BASE,
    CHANGES,
    EVERYTHING,
    SCHEMA,
    SOURCE,
    column,
    each_strategy,
    files_of,
    taking,
)


def valued(kind: pa.DataType, *values: Any) -> pa.Table:
    """Rows 1, 2, ... with these values in the column v."""
    ids = pa.array(range(1, len(values) + 1), pa.int64())
    return pa.table({"id": ids, "v": pa.array(values, kind)})


def test_case_18_integer_overflow_outside_the_key(
    tmp_path: Path, make_dataset: Any, each_refused: Any
) -> None:
    root = make_dataset(tmp_path / "t", valued(pa.int32(), 1, 2))
    source = valued(pa.int64(), 7, 2**31)
    words = ("'v'", str(2**31), "int32", 'schema_evolution="widen"', "{operation}")
    each_refused(root, taking(source), SchemaMismatch, *words)


def test_case_18_a_wider_type_whose_values_fit_keeps_the_target(
    tmp_path: Path, make_dataset: Any, rows: Any
) -> None:
    root = make_dataset(tmp_path / "t", valued(pa.int32(), 1, 2))
    it.merge(valued(pa.int64(), 7, 2**31 - 1), root, on="id")
    assert pq.read_table(root).schema.field("v").type == pa.int32()
    assert [row["v"] for row in rows(root)] == [7, 2**31 - 1]


def test_case_18_widening_takes_the_whole_dataset_along(tmp_path: Path, make_dataset: Any, rows: Any) -> None:
    root = make_dataset(tmp_path / "t", valued(pa.int32(), 1, 2, 3), files=3)
    result = it.merge(valued(pa.int64(), 2**40), root, on="id", schema_evolution="widen")
    assert len(result.rewritten_files) == 3
    assert {pq.read_schema(file).field("v").type for file in files_of(root)} == {pa.int64()}
    assert [row["v"] for row in rows(root)] == [2**40, 2, 3]


@pytest.mark.parametrize("value", [1.5, float("nan"), float("inf"), 1e300])
def test_case_19_float_that_is_no_integer(
    tmp_path: Path, value: float, make_dataset: Any, each_refused: Any
) -> None:
    root = make_dataset(tmp_path / "t", valued(pa.int64(), 1, 2))
    each_refused(root, taking(valued(pa.float64(), 1.0, value)), SchemaMismatch, "'v'", str(value), "int64")


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (valued(pa.int64(), 1), valued(pa.string(), "1")),
        (valued(pa.string(), "1"), valued(pa.int64(), 1)),
        (valued(pa.bool_(), True), valued(pa.int64(), 1)),
        (valued(pa.date32(), dt.date(2020, 1, 1)), valued(pa.timestamp("us"), dt.datetime(2020, 1, 1))),
        (valued(pa.list_(pa.field("element", pa.int64())), [1]), valued(pa.int64(), 1)),
    ],
    ids=["int", "string", "bool", "date", "list"],
)
def test_case_20_text_against_number(
    tmp_path: Path, there: pa.Table, here: pa.Table, make_dataset: Any, each_refused: Any
) -> None:
    root = make_dataset(tmp_path / "t", there)
    types = (str(table.schema.field("v").type) for table in (there, here))
    each_refused(root, taking(here), SchemaMismatch, "'v'", *types, "cast the column")


def test_case_21_year_3000_does_not_fit_nanoseconds(
    tmp_path: Path, make_dataset: Any, each_refused: Any
) -> None:
    root = make_dataset(tmp_path / "t", valued(pa.timestamp("ns"), dt.datetime(2020, 1, 1)))
    source = valued(pa.timestamp("us"), dt.datetime(3000, 1, 1))
    each_refused(root, taking(source), SchemaMismatch, "'v'", "3000-01-01", "timestamp[ns]")


@pytest.mark.parametrize("zoned", ["target", "source"])
def test_case_22_timestamp_with_zone_against_one_without(
    tmp_path: Path, zoned: str, make_dataset: Any, each_refused: Any
) -> None:
    plain = valued(pa.timestamp("us"), dt.datetime(2020, 1, 1))
    utc = valued(pa.timestamp("us", "UTC"), dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    there, here = (utc, plain) if zoned == "target" else (plain, utc)
    root = make_dataset(tmp_path / "t", there)
    each_refused(root, taking(here), SchemaMismatch, "'v'", "timestamp[us, tz=UTC]", "timestamp[us]")


def test_case_22_the_same_of_a_key(tmp_path: Path, make_dataset: Any, refused: Any) -> None:
    root = make_dataset(tmp_path / "t", column([dt.datetime(2020, 1, 1)], pa.timestamp("us")))
    source = column([dt.datetime(2020, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", "UTC"))
    refused(root, SchemaMismatch, lambda: it.merge(source, root, on="id"), "'id'", "tz=UTC")


@each_strategy
def test_case_23_one_instant_in_two_zones_is_one_key(
    tmp_path: Path, strategy: str, make_dataset: Any
) -> None:
    noon = dt.datetime(2020, 6, 1, 12, tzinfo=dt.UTC)
    root = make_dataset(tmp_path / "t", column([noon, noon + dt.timedelta(1)], pa.timestamp("us", "UTC")))
    source = column([noon], pa.timestamp("us", "America/New_York"))
    result = it.merge(source, root, on="id", strategy=strategy)
    assert (result.inserted, result.updated) == (0, 0 if strategy == "insert" else 1)
    assert pq.read_table(root).schema.field("id").type == pa.timestamp("us", "UTC")


@each_strategy
@pytest.mark.parametrize(("there", "here"), [("ms", "ns"), ("us", "s"), ("ns", "us")])
def test_case_24_keys_of_other_time_units_are_instants(
    tmp_path: Path, strategy: str, there: str, here: str, make_dataset: Any
) -> None:
    day = dt.datetime(2020, 6, 1)
    root = make_dataset(tmp_path / "t", column([day, day + dt.timedelta(1)], pa.timestamp(there)), files=2)
    result = it.merge(column([day], pa.timestamp(here)), root, on="id", strategy=strategy)
    assert (result.inserted, result.updated) == (0, 0 if strategy == "insert" else 1)


def test_case_25_int96_timestamps_stay_what_they_are(tmp_path: Path, make_dataset: Any, rows: Any) -> None:
    days = [dt.datetime(2020, 1, day) for day in range(1, 7)]
    table = BASE.append_column("at", pa.array(days, pa.timestamp("ns")))
    root = make_dataset(tmp_path / "t", table, files=2, use_deprecated_int96_timestamps=True)
    untouched = files_of(root)[1].read_bytes()
    source = pa.table({"id": [2], "name": ["B"], "n": [21], "at": pa.array([dt.datetime(2021, 1, 1)])})
    source = source.set_column(3, "at", source["at"].cast(pa.timestamp("us", "UTC")))  # S26: instants
    result = it.merge(source, root, on="id")
    assert (result.updated, len(result.rewritten_files)) == (1, 1)
    assert files_of(root)[1].read_bytes() == untouched
    assert {pq.read_metadata(file).schema.column(3).physical_type for file in files_of(root)} == {"INT96"}
    expected = [days[0], dt.datetime(2021, 1, 1), *days[2:]]
    assert [row["at"] for row in sorted(rows(root), key=lambda row: row["id"])] == expected


def test_case_26_column_missing_from_the_source(root: Path, each_refused: Any) -> None:
    source = SOURCE.drop_columns(["name"])
    each_refused(root, taking(source), SchemaMismatch, "'name' (string)", "missing", 'missing="null"')


def test_case_26_a_missing_column_is_null_when_asked_for(root: Path, rows: Any) -> None:
    it.merge(SOURCE.drop_columns(["name"]), root, on="id", missing="null")
    assert {row["id"]: row["name"] for row in rows(root)} == {
        1: "a", 2: None, 3: "c", 4: "d", 5: None, 6: "f", 7: None,
    }  # fmt: skip


def test_case_27_column_the_target_does_not_have(root: Path, each_refused: Any) -> None:
    source = SOURCE.append_column("extra", pa.array([1.5, 2.5, 3.5]))
    words = ("'extra' (double)", "new", 'schema_evolution="add"')
    each_refused(root, taking(source), SchemaMismatch, *words)


def test_case_27_a_new_column_is_added_when_asked_for(root: Path, rows: Any) -> None:
    source = SOURCE.slice(0, 1).append_column("extra", pa.array([1.5]))
    it.merge(source, root, on="id", schema_evolution="add")
    assert {row["id"]: row["extra"] for row in rows(root)} == {
        1: None, 2: 1.5, 3: None, 4: None, 5: None, 6: None,
    }  # fmt: skip
    assert it.snapshot(root).schema.names == ["id", "name", "n", "extra"]


@pytest.mark.parametrize("way", taking(SOURCE))
def test_case_28_columns_in_another_order(root: Path, way: str, rows: Any) -> None:
    taking(SOURCE.select(["n", "id", "name"]))[way](root)
    assert {tuple(pq.read_schema(file).names) for file in files_of(root)} == {("id", "name", "n")}
    assert {row["name"] for row in rows(root) if row["n"] == 21} <= {"B"}


@pytest.mark.parametrize("name", ["ID", "Id"])
def test_case_29_key_that_differs_by_case_from_the_target(root: Path, name: str, each_refused: Any) -> None:
    source = SOURCE.append_column(name, SOURCE["id"])
    words = ("'id'", repr(name), "case", "ambiguous")
    each_refused(root, taking(source), SchemaMismatch, *words)


def test_case_29_column_that_differs_by_case_from_the_target(root: Path, each_refused: Any) -> None:
    source = SOURCE.rename_columns(["id", "Name", "n"])
    words = ("'Name'", "'name'", "case", "rename")
    each_refused(root, taking(source), SchemaMismatch, *words)


def test_case_29_a_new_dataset_with_names_that_differ_by_case(tmp_path: Path, refused: Any) -> None:
    source = pa.table({"id": [1], "Id": [2]})
    for call in (
        lambda: it.merge(source, tmp_path / "new", on="id"),
        lambda: it.write(source, tmp_path / "new"),
        lambda: it.write(source, tmp_path / "new", mode="overwrite"),
    ):
        refused(tmp_path / "new", SchemaMismatch, call, "'id'", "'Id'", "case")


def test_case_29_files_that_spell_a_column_differently(root: Path, refused: Any) -> None:
    pq.write_table(BASE.rename_columns(["id", "NAME", "n"]), root / "other.parquet")
    refused(root, SchemaMismatch, lambda: it.compact(root), "'NAME'", "'name'", "case")


@pytest.mark.parametrize("directories", [("day=1", "Day=2"), ("N=1", "N=2")], ids=["directories", "a column"])
def test_case_29_partition_columns_that_differ_by_case(
    root: Path, directories: tuple[str, str], each_refused: Any
) -> None:
    for file, directory in zip(files_of(root), directories, strict=True):
        (root / directory).mkdir()
        file.rename(root / directory / file.name)
    each_refused(root, EVERYTHING, SchemaMismatch, "case", "ambiguous", "rename the directories")


def test_case_30_duplicate_column_names_in_a_file(root: Path, each_refused: Any) -> None:
    twice = pa.Table.from_arrays([BASE["id"], BASE["id"], BASE["n"]], names=["id", "id", "n"])
    pq.write_table(twice, root / "twice.parquet")
    where = root / "twice.parquet"
    each_refused(root, EVERYTHING, SchemaMismatch, "more than one column 'id'", where=where)


def test_case_30_duplicate_column_names_in_the_source(root: Path, each_refused: Any) -> None:
    twice = pa.Table.from_arrays([*SOURCE.columns, SOURCE["n"]], names=["id", "name", "n", "n"])
    each_refused(root, taking(twice), SchemaMismatch, "more than one column 'n'", where=None)


def contradictory(root: Path) -> Path:
    """A partition directory whose file repeats the partition column, with another value."""
    (root / "region=eu").mkdir(parents=True)
    table = pa.table({"id": [1, 2], "name": ["a", "b"], "n": [1, 2], "region": ["eu", "us"]})
    pq.write_table(table, root / "region=eu" / "part-0.parquet")
    pq.write_table(table.slice(0, 1), root / "region=eu" / "part-1.parquet")
    return root


@pytest.mark.parametrize(
    "operation",
    [
        lambda root: it.merge(
            SOURCE.append_column("region", pa.array(["eu"] * 3)), root, on="id", strategy="upsert"
        ),
        lambda root: it.delete(root, "id = 2"),
        lambda root: it.update(root, {"n": "n + 1"}),
        lambda root: it.compact(root),
        lambda root: it.optimize(root, by="n"),
        lambda root: it.deduplicate(root, on=["id", "region"]),
    ],
    ids=["upsert", "delete", "update", "compact", "optimize", "deduplicate"],
)
def test_case_31_partition_column_with_another_value_in_the_file(
    tmp_path: Path, operation: Any, refused: Any
) -> None:
    root = contradictory(tmp_path / "t")
    words = ("'region'", "region=eu/part-0.parquet", "partition directory", "'eu'")
    refused(root, SchemaMismatch, lambda: operation(root), *words, where=None)


NOT_NULL = pa.schema([("id", pa.int64()), pa.field("v", pa.int64(), nullable=False)])


def test_case_32_null_for_a_not_null_column(tmp_path: Path, make_dataset: Any, each_refused: Any) -> None:
    root = make_dataset(tmp_path / "t", pa.table({"id": [1, 2], "v": [1, 2]}, schema=NOT_NULL))
    source = valued(pa.int64(), 5, None, None)
    each_refused(root, taking(source), SchemaMismatch, "'v'", "NOT NULL", "2 rows", "give those rows a value")
    lacking = source.select(["id"])
    each_refused(root, taking(lacking), SchemaMismatch, "'v'", "NOT NULL", "missing")


def test_case_32_null_assigned_to_a_not_null_column(tmp_path: Path, make_dataset: Any, refused: Any) -> None:
    root = make_dataset(tmp_path / "t", pa.table({"id": [1, 2], "v": [1, 2]}, schema=NOT_NULL))
    refused(
        root, SchemaMismatch, lambda: it.update(root, {"v": "NULL"}, "id = 2"), "'v'", "NOT NULL", where=None
    )
    clauses = [it.when_not_matched().insert({"id": "source.id"})]
    source = pa.table({"id": [2, 3]})
    call = lambda: it.merge(source, root, on="id", clauses=clauses)  # noqa: E731
    refused(root, SchemaMismatch, call, "'v'", "NOT NULL", where=None)


def test_case_32_not_null_survives_a_rewrite(tmp_path: Path, make_dataset: Any) -> None:
    root = make_dataset(tmp_path / "t", pa.table({"id": [1, 2], "v": [1, 2]}, schema=NOT_NULL))
    it.merge(valued(pa.int64(), 5, 6, 7), root, on="id")
    assert {pq.read_schema(file).field("v").nullable for file in files_of(root)} == {False}


NESTED = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "n": pa.array([3, 1, 2], pa.int64()),
        "name": ["a", "b", "a"],
        "tags": pa.array([["x", None], [], None], pa.list_(pa.string())),
        "deep": pa.array([[[1]], None, [[], None]], pa.list_(pa.list_(pa.int64()))),
        "point": pa.array([{"x": 1, "l": [1]}, None, {"x": None, "l": []}],
                          pa.struct([("x", pa.int64()), ("l", pa.list_(pa.int64()))])),
        "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    }
)  # fmt: skip


CHANGED = NESTED.slice(1, 2).set_column(0, "id", pa.array([2, 7], pa.int64()))
NESTED_WAYS = {**{name: call for name, call in CHANGES.items() if name != "clauses"}, **taking(CHANGED)}


@pytest.mark.parametrize("way", NESTED_WAYS)
def test_case_33_nested_columns_beside_the_key(
    tmp_path: Path, way: str, make_dataset: Any, rows: Any
) -> None:
    def plain(row: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in row.items() if name != "n"}

    root = make_dataset(tmp_path / "t", NESTED, files=2)
    known = [plain(row) for row in rows(pa.concat_tables([NESTED, CHANGED]))]
    NESTED_WAYS[way](root)
    found = rows(root)
    assert found
    assert all(plain(row) in known for row in found)
    assert it.snapshot(root).schema.field("deep").type.value_type.value_type == pa.int64()


@each_strategy
def test_case_34_dictionary_keys_against_plain_ones(
    tmp_path: Path, strategy: str, make_dataset: Any, rows: Any
) -> None:
    encoded = pa.dictionary(pa.int8(), pa.string())
    there = column(["a", "b", "c"], pa.string())
    there = there.set_column(0, "id", there["id"].cast(encoded))
    for here in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        root = make_dataset(tmp_path / f"{here}".replace("<", "_")[:16], there, files=2)
        source = pa.table({"id": pa.array(["b", "z"]).cast(here), "n": pa.array([8, 9], pa.int64())})
        result = it.merge(source, root, on="id", strategy=strategy)
        assert result.updated == (0 if strategy == "insert" else 1)
        assert result.inserted == (0 if strategy == "update" else 1)
        kinds = {pq.read_schema(file).field("id").type for file in files_of(root)}
        assert kinds == {encoded}
        assert len(rows(root)) == result.total


def test_case_34_dictionary_partition_column(tmp_path: Path, rows: Any) -> None:
    table = BASE.append_column("region", pa.array(["eu", "us"] * 3).dictionary_encode())
    root = tmp_path / "t"
    it.write(table, root, partition_by="region")
    source = table.slice(1, 1).set_column(2, "n", pa.array([99], pa.int64()))
    assert it.merge(source, root, on="id").updated == 1
    assert it.delete(root, "region = 'eu'").deleted == 3
    assert [(row["id"], row["n"]) for row in rows(root)] == [(2, 99), (4, 40), (6, 60)]


TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]


@pytest.mark.parametrize("there", TEXTS[:2], ids=str)
@pytest.mark.parametrize("here", TEXTS, ids=str)
def test_case_35_text_in_any_representation(
    tmp_path: Path, there: pa.DataType, here: pa.DataType, make_dataset: Any, rows: Any
) -> None:
    def table(keys: list[str], texts: list[str | None], kind: pa.DataType) -> pa.Table:
        columns = {"id": pa.array(keys).cast(kind), "v": pa.array(texts).cast(kind)}
        return pa.table(columns)

    root = make_dataset(tmp_path / "t", table(["a", "b"], ["x", None], there), files=2)
    result = it.merge(table(["b", "c"], ["y", "z"], here), root, on="id")
    assert (result.updated, result.inserted) == (1, 1)
    assert rows(root) == [{"id": "a", "v": "x"}, {"id": "b", "v": "y"}, {"id": "c", "v": "z"}]
    assert {pq.read_schema(file).field("v").type for file in files_of(root)} == {there}


def test_case_36_files_of_several_schemas_are_unified(root: Path, rows: Any) -> None:
    other = pa.table({"n": pa.array([70], pa.int32()), "id": pa.array([7], pa.int16()), "late": ["x"]})
    pq.write_table(other, root / "z.parquet")
    source = pa.table({"id": [2, 7], "name": ["B", "G"], "n": [2**40, 71], "late": ["y", "z"]})
    result = it.merge(source, root, on="id")
    assert (result.updated, result.inserted) == (2, 0)
    found = {row["id"]: (row["name"], row["n"], row["late"]) for row in rows(root)}
    assert found[2] == ("B", 2**40, "y")
    assert found[7] == ("G", 71, "z")
    assert found[1] == ("a", 10, None)


def test_case_36_files_of_schemas_that_do_not_meet(root: Path, each_refused: Any) -> None:
    other = pa.table({"id": ["seven"], "name": ["g"], "n": pa.array([Decimal("1.5")])})
    pq.write_table(other, root / "z.parquet")
    each_refused(root, EVERYTHING, SchemaMismatch, "'id'", "int64", "string", "cast the column")


def test_the_schema_of_the_tests_is_what_they_say() -> None:
    assert BASE.schema == SOURCE.schema == SCHEMA
