"""Columns of data files seen as the table's."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)
from tests.iceberg.scan_tools import (
    data_entry,
    identified,
    make_scan_context,
    schema_of,
    seen,
    spec_of,
    written,
)

from intarsia.core.ports import LAST_UPDATED, ROW_ID
from intarsia.core.snapshot import DataFile
from intarsia.errors import DamagedTable, NotSupported
from intarsia.kernel.read import FileReader
from intarsia.tables.iceberg.projection import LAST_UPDATED_FIELD, ROW_ID_FIELD
from intarsia.tables.iceberg.schemas import to_arrow_schema

LONG, TEXT = LongType(), StringType()


def one_column(kind: Any, **options: Any) -> Any:
    return make_scan_context(schema_of((1, "c", kind, options))).make_scan_task(data_entry())


def file_with(path: Path, array: pa.Array, *, number: int = 1, **options: Any) -> pq.ParquetFile:
    field = identified("c", number, array.type)
    return written(path / "f.parquet", pa.Table.from_arrays([array], schema=pa.schema([field])), **options)


def test_of_a_file_like_the_table_nothing_is_copied(tmp_path: Path) -> None:
    schema = schema_of((1, "a", LONG, {"required": True}), (2, "b", ListType(3, TEXT, False)))
    rows = pa.table({"a": [1, 2], "b": [["x", None], None]}, to_arrow_schema(schema))
    parquet = written(tmp_path / "f.parquet", rows)
    scan_task = make_scan_context(schema).make_scan_task(data_entry())
    view = scan_task.project_columns(parquet.schema_arrow, to_arrow_schema(schema))
    table = parquet.read()
    result = view.project(table, ["a", "b"], start=0)
    assert result.equals(rows)
    for name in ("a", "b"):
        assert result[name].chunk(0).buffers()[1].address == table[name].chunk(0).buffers()[1].address


def test_renamed_dropped_added_and_reordered_columns_are_found_by_id(tmp_path: Path) -> None:
    stored = pa.schema(
        [identified("a", 1, pa.int64()), identified("b", 2, pa.string()), identified("c", 3, pa.int64())]
    )
    parquet = written(tmp_path / "f.parquet", pa.table({"a": [1, 2], "b": ["x", "y"], "c": [5, 6]}, stored))
    # b was renamed to a, a was dropped, a new b added, c is gone
    scan_task = make_scan_context(
        schema_of((4, "b", LONG), (2, "a", TEXT), (5, "d", LONG, {"initial_default": 9}))
    ).make_scan_task(data_entry())
    view = scan_task.project_columns(parquet.schema_arrow, to_arrow_schema(scan_task.table.schema))
    assert view.stored == {"a"}
    assert view.list_physical_columns(["b", "a", "d"]) == ["b"]
    assert seen(scan_task, parquet).to_pydict() == {"b": [None, None], "a": ["x", "y"], "d": [9, 9]}


def test_columns_that_none_of_are_stored_have_the_rows_of_the_file(tmp_path: Path) -> None:
    parquet = file_with(tmp_path, pa.array([1, 2, 3]))
    scan_task = make_scan_context(schema_of((1, "c", LONG), (2, "d", LONG))).make_scan_task(data_entry())
    assert seen(scan_task, parquet, ["d"]).to_pydict() == {"d": [None] * 3}


@pytest.mark.parametrize(
    ("stored", "kind", "expected"),
    [
        (pa.array([1, None], pa.int32()), LONG, [1, None]),
        (pa.array([1, None], pa.int8()), IntegerType(), [1, None]),
        (pa.array([1, None], pa.uint32()), LONG, [1, None]),
        (pa.array([1.5, None], pa.float32()), DoubleType(), [1.5, None]),
        (pa.array([Decimal("1.50")], pa.decimal128(5, 2)), DecimalType(20, 2), [Decimal("1.50")]),
        (pa.array([dt.date(1969, 12, 31)]), TimestampType(), [dt.datetime(1969, 12, 31)]),
        (
            pa.array([1_000, -1], pa.timestamp("ms")),
            TimestampType(),
            [dt.datetime(1970, 1, 1, 0, 0, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999000)],
        ),
        (pa.array([1_000, None], pa.time32("ms")), TimeType(), [dt.time(0, 0, 1), None]),
        (pa.array([b"x", None]), TEXT, ["x", None]),
        (pa.array(["x", None]), BinaryType(), [b"x", None]),
        (pa.array(["x", None], pa.large_string()), TEXT, ["x", None]),
        (pa.array(["x", "y", "x", None]).dictionary_encode(), TEXT, ["x", "y", "x", None]),
        (pa.array([b"ab", None], pa.binary(2)), FixedType(2), [b"ab", None]),
        (pa.array([1, None]), UnknownType(), [None, None]),
    ],
)
def test_promoted_types_read_as_the_tables(
    tmp_path: Path, stored: pa.Array, kind: Any, expected: list[Any]
) -> None:
    scan_task = one_column(kind)
    column = seen(scan_task, file_with(tmp_path, stored))["c"]
    assert column.type == to_arrow_schema(scan_task.table.schema).field("c").type
    assert column.to_pylist() == expected


def test_a_date_promoted_to_nanoseconds_reads_right(tmp_path: Path) -> None:
    column = seen(one_column(TimestampNanoType()), file_with(tmp_path, pa.array([dt.date(1970, 1, 2)])))["c"]
    assert column.cast(pa.int64()).to_pylist() == [86_400_000_000_000]


@pytest.mark.parametrize("kind", [TimestampType(), TimestamptzType()])
def test_int96_timestamps_are_rounded_down_to_microseconds(tmp_path: Path, kind: Any) -> None:
    stored = pa.array([1_500, -1_500, None], pa.timestamp("ns"))
    parquet = file_with(tmp_path, stored, use_deprecated_int96_timestamps=True)
    assert parquet.schema.column(0).physical_type == "INT96"
    assert seen(one_column(kind), parquet)["c"].cast(pa.int64()).to_pylist() == [1, -2, None]


@pytest.mark.parametrize("integers", [True, False])
@pytest.mark.parametrize("precision", [9, 18, 38])
def test_decimals_of_every_storage_read_right(tmp_path: Path, precision: int, integers: bool) -> None:
    values = [
        Decimal(10**precision - 1).scaleb(-2) if precision < 28 else Decimal("9" * 36 + ".99"),
        Decimal("-0.01"),
    ]
    stored = pa.array(values, pa.decimal128(precision, 2))
    parquet = file_with(tmp_path, stored, store_decimal_as_integer=integers)
    assert seen(one_column(DecimalType(38, 2)), parquet)["c"].to_pylist() == values


@pytest.mark.parametrize("extension", [True, False])
def test_uuids_read_as_their_bytes(tmp_path: Path, extension: bool) -> None:
    value = uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")
    stored = pa.array([value.bytes, None], pa.binary(16))
    parquet = file_with(tmp_path, stored.cast(pa.uuid()) if extension else stored)
    assert seen(one_column(UUIDType()), parquet)["c"].to_pylist() == [value.bytes, None]


def test_uuids_inside_lists_read_as_their_bytes(tmp_path: Path) -> None:
    value = uuid.uuid4().bytes
    inner = identified("element", 2, pa.uuid())
    stored = pa.array([[value], None], pa.list_(pa.binary(16))).cast(pa.list_(inner))
    parquet = file_with(tmp_path, stored)
    assert seen(one_column(ListType(2, UUIDType(), False)), parquet)["c"].to_pylist() == [[value], None]


def test_structs_are_rebuilt_by_id_and_keep_their_nulls(tmp_path: Path) -> None:
    stored = pa.struct(
        [identified("x", 2, pa.int32()), identified("gone", 3, pa.string()), identified("y", 4, pa.string())]
    )
    rows = [{"x": 1, "gone": "g", "y": "p"}, None, {"x": None, "gone": None, "y": None}]
    parquet = file_with(tmp_path, pa.array(rows, stored))
    kind = StructType(
        NestedField(4, "why", TEXT), NestedField(5, "new", LONG, initial_default=3), NestedField(2, "x", LONG)
    )
    column = seen(one_column(kind), parquet)["c"]
    assert column.to_pylist() == [{"why": "p", "new": 3, "x": 1}, None, {"why": None, "new": 3, "x": None}]


def test_slices_of_nested_columns_are_seen_as_their_own_rows(tmp_path: Path) -> None:
    struct = pa.struct([identified("x", 3, pa.int32())])
    stored = pa.list_(identified("array", 2, struct))
    rows: list[Any] = [[{"x": 1}, None], None, [], [{"x": 4}], [{"x": None}, {"x": 6}], None]
    parquet = file_with(tmp_path, pa.array(rows, stored))
    scan_task = one_column(
        ListType(2, StructType(NestedField(3, "z", LONG), NestedField(4, "w", TEXT)), False)
    )
    view = scan_task.project_columns(parquet.schema_arrow, to_arrow_schema(scan_task.table.schema))
    for start in range(6):
        for stop in range(start, 7):
            piece = parquet.read().slice(start, stop - start)
            expected = [
                None if row is None else [None if one is None else {"z": one["x"], "w": None} for one in row]
                for row in rows[start:stop]
            ]
            result = view.project(piece, ["c"], start=start)
            result.validate(full=True)
            assert result["c"].to_pylist() == expected


def test_maps_of_structs_are_rebuilt(tmp_path: Path) -> None:
    value = pa.struct([identified("x", 4, pa.float32())])
    stored = pa.map_(identified("key", 2, pa.string(), nullable=False), identified("value", 3, value))
    rows = [[("a", {"x": 1.5}), ("b", None)], None, []]
    parquet = file_with(tmp_path, pa.array(rows, stored))
    scan_task = one_column(
        MapType(2, TEXT, 3, StructType(NestedField(5, "n", LONG), NestedField(4, "x", DoubleType())), False)
    )
    result = seen(scan_task, parquet)
    result.validate(full=True)
    assert result["c"].to_pylist() == [[("a", {"n": None, "x": 1.5}), ("b", None)], None, []]
    assert scan_task.project_columns(parquet.schema_arrow, to_arrow_schema(scan_task.table.schema)).project(
        parquet.read().slice(1), ["c"], start=1
    )["c"].to_pylist() == [None, []]


def test_a_struct_of_which_no_field_is_stored_keeps_its_nulls(tmp_path: Path) -> None:
    parquet = file_with(tmp_path, pa.array([{"x": 1}, None], pa.struct([identified("x", 2, pa.int64())])))
    assert seen(one_column(StructType(NestedField(9, "z", LONG))), parquet)["c"].to_pylist() == [
        {"z": None},
        None,
    ]


def test_a_required_field_made_optional_is_seen_as_optional(tmp_path: Path) -> None:
    stored = pa.schema([identified("c", 1, pa.int64(), nullable=False)])
    parquet = written(tmp_path / "f.parquet", pa.table({"c": [1]}, stored))
    scan_task = one_column(LONG)
    assert seen(scan_task, parquet).schema.field("c").nullable


def test_the_same_names_under_other_ids_are_other_columns(tmp_path: Path) -> None:
    parquet = file_with(tmp_path, pa.array([1]), number=7)
    scan_task = one_column(LONG)
    view = scan_task.project_columns(parquet.schema_arrow, to_arrow_schema(scan_task.table.schema))
    assert view.stored == frozenset()


def test_a_required_column_that_is_nowhere_is_damage_named_only_when_it_is_read(tmp_path: Path) -> None:
    parquet = file_with(tmp_path, pa.array([1]))
    scan_task = make_scan_context(
        schema_of((1, "c", LONG), (2, "must", LONG, {"required": True}))
    ).make_scan_task(data_entry())
    assert seen(scan_task, parquet, ["c"]).to_pydict() == {"c": [1]}
    with pytest.raises(DamagedTable, match=r"'must'.*required"):
        seen(scan_task, parquet)


def test_a_type_that_no_promotion_leads_from_is_damage(tmp_path: Path) -> None:
    with pytest.raises(DamagedTable, match=r"'c' as string.*int64"):
        seen(one_column(LONG), file_with(tmp_path, pa.array(["1"])))
    with pytest.raises(DamagedTable, match=r"'c' as int64.*list"):
        seen(one_column(ListType(2, LONG, False)), file_with(tmp_path, pa.array([1])))


def test_values_that_do_not_fit_are_damage(tmp_path: Path) -> None:
    with pytest.raises(DamagedTable, match=r"a\.parquet"):
        seen(one_column(IntegerType()), file_with(tmp_path, pa.array([2**40])))


MAPPING = json.dumps(
    [
        {"field-id": 1, "names": ["id", "old_id"]},
        {
            "field-id": 2,
            "names": ["s"],
            "fields": [
                {"field-id": 3, "names": ["x"]},
                {"field-id": 4, "names": ["l"], "fields": [{"field-id": 5, "names": ["element"]}]},
            ],
        },
    ]
)


def test_a_file_without_ids_is_read_through_the_name_mapping(tmp_path: Path) -> None:
    rows = pa.table({"old_id": [1], "s": pa.array([{"x": 2, "l": [3], "q": 4}]), "stray": [0]})
    parquet = written(tmp_path / "f.parquet", rows)
    schema = schema_of(
        (1, "id", LONG),
        (2, "s", StructType(NestedField(4, "l", ListType(5, LONG, False)), NestedField(3, "xx", LONG))),
    )
    scan_task = make_scan_context(schema, properties={"schema.name-mapping.default": MAPPING}).make_scan_task(
        data_entry()
    )
    assert seen(scan_task, parquet).to_pydict() == {"id": [1], "s": [{"l": [3], "xx": 2}]}
    assert scan_task.find_leaf(parquet.metadata, "id") == 0


def test_a_file_without_ids_and_no_name_mapping_is_refused(tmp_path: Path) -> None:
    parquet = written(tmp_path / "f.parquet", pa.table({"c": [1]}))
    with pytest.raises(NotSupported, match=r"name mapping.*schema\.name-mapping\.default"):
        seen(one_column(LONG), parquet)


def test_an_identity_partition_gives_the_column_a_file_lacks(tmp_path: Path) -> None:
    parquet = file_with(tmp_path, pa.array([1, 2]))
    schema = schema_of(
        (1, "c", LONG), (2, "day", DateType(), {"initial_default": "2020-01-01"}), (3, "b", LONG)
    )
    spec = spec_of((2, "day", IdentityTransform()), (3, "b", BucketTransform(4)))
    scan_task = make_scan_context(schema, specs=(spec,)).make_scan_task(data_entry(partition=(1, 3)))
    assert seen(scan_task, parquet).to_pydict() == {
        "c": [1, 2],
        "day": [dt.date(1970, 1, 2)] * 2,
        "b": [None, None],
    }


def test_row_ids_are_inherited_unless_they_are_stored(tmp_path: Path) -> None:
    stored = pa.schema(
        [
            identified("c", 1, pa.int64()),
            identified("rid", ROW_ID_FIELD, pa.int64()),
            identified(LAST_UPDATED, LAST_UPDATED_FIELD, pa.int64()),
        ]
    )
    rows = pa.table({"c": [1, 2], "rid": [77, None], LAST_UPDATED: [None, 5]}, stored)
    parquet = written(tmp_path / "f.parquet", rows)
    table = make_scan_context(schema_of((1, "c", LONG)))
    scan_task = table.make_scan_task(data_entry(first_row_id=1000))
    result = seen(scan_task, parquet, ["c", ROW_ID, LAST_UPDATED], start=20)
    assert result.to_pydict() == {"c": [1, 2], ROW_ID: [77, 1021], LAST_UPDATED: [7, 5]}
    assert scan_task.project_columns(parquet.schema_arrow, to_arrow_schema(table.schema)).stored == {"c"}
    plain = written(tmp_path / "g.parquet", rows.select(["c"]))
    assert seen(scan_task, plain, [ROW_ID, LAST_UPDATED], start=3).to_pydict() == {
        ROW_ID: [1003, 1004],
        LAST_UPDATED: [7, 7],
    }
    old = table.make_scan_task(data_entry())
    assert seen(old, plain, [ROW_ID, LAST_UPDATED]).to_pydict() == {
        ROW_ID: [None] * 2,
        LAST_UPDATED: [None] * 2,
    }


def test_columns_asked_for_as_dictionaries_come_so(tmp_path: Path) -> None:
    schema = schema_of((1, "t", TEXT), (2, "new", TEXT, {"initial_default": "d"}))
    encoded = pa.dictionary(pa.int32(), pa.string())
    wanted = pa.schema([field.with_type(encoded) for field in to_arrow_schema(schema)])
    stored = pa.schema([identified("old", 1, pa.string())])
    pq.write_table(pa.table({"old": ["x", "y", "x"]}, stored), tmp_path / "f.parquet")
    for read_dictionary in (["old"], None):
        parquet = pq.ParquetFile(tmp_path / "f.parquet", read_dictionary=read_dictionary)
        view = (
            make_scan_context(schema)
            .make_scan_task(data_entry())
            .project_columns(parquet.schema_arrow, wanted)
        )
        result = view.project(parquet.read(), ["t", "new"], start=0)
        assert result.schema.types == [encoded, encoded]
        assert result.to_pydict() == {"t": ["x", "y", "x"], "new": ["d"] * 3}


def test_a_wanted_column_that_the_table_does_not_have_yet_is_null(tmp_path: Path) -> None:
    parquet = file_with(tmp_path, pa.array([1]))
    scan_task = one_column(LONG)
    wanted = pa.schema([*to_arrow_schema(scan_task.table.schema), pa.field("later", pa.string())])
    result = scan_task.project_columns(parquet.schema_arrow, wanted).project(
        parquet.read(), ["c", "later"], start=0
    )
    assert result.to_pydict() == {"c": [1], "later": [None]}


def test_int96_timestamps_of_any_year_are_read_right(tmp_path: Path) -> None:
    moments = [dt.datetime(9999, 12, 31), dt.datetime(1, 1, 1), None]
    stored = pa.array(moments, pa.timestamp("us"))
    parquet = file_with(tmp_path, stored, use_deprecated_int96_timestamps=True)
    assert parquet.schema.column(0).physical_type == "INT96"
    location = str(tmp_path / "f.parquet")
    scan_task = one_column(TimestamptzType())
    file = DataFile("f.parquet", location, 1, 3, scan_task=scan_task)
    with FileReader(file, to_arrow_schema(scan_task.table.schema), pafs.LocalFileSystem()) as reader:
        column = reader.read(["c"], 0)["c"]
    assert column.cast(pa.timestamp("us")).to_pylist() == moments
