"""Equality deletes: what equals what, over evolved schemas and files without ids."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import struct
import uuid
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delete_samples import LOCAL, data_file, entry, equality_delete, field, locate
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.name_mapping import MappedField, NameMapping

from intarsia.errors import DamagedTable, NotSupported
from intarsia.tables.iceberg import equality_deletes
from intarsia.tables.iceberg.deletes import Deletes, read_deleted_positions
from intarsia.tables.iceberg.equality_deletes import EqualityColumns, flatten_name_mapping
from intarsia.tables.iceberg.file_io import DeleteCache
from intarsia.tables.iceberg.manifests import DataFileContent, ManifestEntry

Columns = Mapping[tuple[str, Any], pa.Array]


def deleted(
    parquet: pq.ParquetFile,
    *deletes: ManifestEntry,
    columns: EqualityColumns | None = None,
    cache: Any = None,
) -> list[int]:
    found = read_deleted_positions(
        Deletes(None, (), deletes), "data", parquet, LOCAL, locate, columns or EqualityColumns(), cache=cache
    )
    return [] if found is None else found.to_pylist()


def matched(root: Path, data: pa.Array, keys: pa.Array) -> list[int]:
    """Dead rows of one column, by one delete file."""
    return deleted(data_file(root, {("a", 1): data}), equality_delete(root, {("a", 1): keys}))


def test_null_equals_null(tmp_path: Path) -> None:
    data = pa.array([1, None, 3, None])
    assert matched(tmp_path, data, pa.array([None], pa.int64())) == [1, 3]
    assert matched(tmp_path, data, pa.array([3], pa.int64())) == [2]
    assert matched(tmp_path, pa.array([1, 2]), pa.array([None], pa.int64())) == []


def test_nan_equals_nan_and_the_zeros_differ(tmp_path: Path) -> None:
    other_nan = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000099))[0]
    data = pa.array([0.0, -0.0, math.nan, other_nan, None, 1.5])
    assert matched(tmp_path, data, pa.array([math.nan])) == [2, 3]
    assert matched(tmp_path, data, pa.array([other_nan])) == [2, 3]
    assert matched(tmp_path, data, pa.array([-0.0])) == [1]
    assert matched(tmp_path, data, pa.array([0.0, 1.5])) == [0, 5]


UTC = dt.UTC
WHEN = dt.datetime(2024, 5, 6, 7, 8, 9, 10)
SOME_ID = uuid.UUID(int=77)


@pytest.mark.parametrize(
    ("data", "deleted"),
    [
        (pa.array([1, 2], pa.int32()), pa.array([2], pa.int64())),
        (pa.array([1, 2], pa.int64()), pa.array([2], pa.int32())),
        (pa.array([1, 0.1], pa.float32()), pa.array([struct.unpack("<f", struct.pack("<f", 0.1))[0]])),
        (pa.array([1, 0.5], pa.float64()), pa.array([0.5], pa.float32())),
        (
            pa.array([Decimal("1.00"), Decimal("2.50")], pa.decimal128(5, 2)),
            pa.array([Decimal("2.50")], pa.decimal128(20, 2)),
        ),
        (pa.array([dt.date(2024, 1, 1), dt.date(1969, 1, 2)]), pa.array([dt.date(1969, 1, 2)])),
        (
            pa.array([dt.date(2024, 1, 1), dt.date(1969, 1, 2)]),
            pa.array([dt.datetime(1969, 1, 2)], pa.timestamp("us")),
        ),
        (
            pa.array([dt.datetime(1969, 1, 2, 1), dt.datetime(1969, 1, 2)], pa.timestamp("us")),
            pa.array([dt.date(1969, 1, 2)]),
        ),
        (pa.array([None, WHEN], pa.timestamp("us", "UTC")), pa.array([WHEN], pa.timestamp("us", "UTC"))),
        (
            pa.array([None, WHEN], pa.timestamp("us", "Asia/Tokyo")),
            pa.array([WHEN], pa.timestamp("us", "UTC")),
        ),
        (pa.array([None, WHEN], pa.timestamp("ns")), pa.array([WHEN], pa.timestamp("ns"))),
        (pa.array([0, 5000], pa.timestamp("ms")), pa.array([5_000_000], pa.timestamp("us"))),
        (pa.array([None, dt.time(1, 2)], pa.time64("us")), pa.array([dt.time(1, 2)], pa.time64("us"))),
        (pa.array(["a", ""]), pa.array([""])),
        (pa.array(["ä", "日本"], pa.large_string()), pa.array(["日本"])),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["b"])),
        (pa.array([b"\x00", b"\xff"]), pa.array([b"\xff"])),
        (pa.array([b"ab", b"cd"], pa.binary(2)), pa.array([b"cd"], pa.binary(2))),
        (pa.array([b"\0" * 16, SOME_ID.bytes], pa.uuid()), pa.array([SOME_ID.bytes], pa.binary(16))),
        (pa.array([b"\0" * 16, SOME_ID.bytes], pa.binary(16)), pa.array([SOME_ID.bytes], pa.uuid())),
        (pa.array([False, True]), pa.array([True])),
    ],
    ids=itertools.count(),
)
def test_values_are_compared_whatever_their_type_was_promoted_to(
    tmp_path: Path, data: pa.Array, deleted: pa.Array
) -> None:
    assert matched(tmp_path, data, deleted) == [1]


def test_columns_are_found_by_id_whatever_they_are_called(tmp_path: Path) -> None:
    parquet = data_file(tmp_path, {("old", 1): pa.array([1, 2]), ("new", 9): pa.array([2, 1])})
    assert deleted(parquet, equality_delete(tmp_path, {("new", 1): pa.array([2])})) == [1]
    assert deleted(parquet, equality_delete(tmp_path, {("else", 9): pa.array([2])})) == [0]


def test_only_the_columns_of_the_ids_are_compared(tmp_path: Path) -> None:
    parquet = data_file(tmp_path, {("a", 1): pa.array([1, 2]), ("b", 2): pa.array([8, 9])})
    delete = equality_delete(tmp_path, {("b", 2): pa.array([7]), ("a", 1): pa.array([2])}, ids=[1])
    assert deleted(parquet, delete) == [1]


def test_files_of_different_columns_apply_together(tmp_path: Path) -> None:
    parquet = data_file(
        tmp_path, {("a", 1): pa.array([1, 2, 3, 4, 5]), ("b", 2): pa.array(["p", "q", None, "q", "q"])}
    )
    deletes = [
        equality_delete(tmp_path, {("a", 1): pa.array([1])}),
        equality_delete(tmp_path, {("b", 2): pa.array(["q"]), ("a", 1): pa.array([4])}),
        equality_delete(tmp_path, {("a", 1): pa.array([2, 5]), ("b", 2): pa.array(["p", "q"])}),
        equality_delete(tmp_path, {("a", 1): pa.array([3], pa.int32()), ("b", 2): pa.nulls(1, pa.string())}),
        equality_delete(tmp_path, {("a", 1): pa.array([], pa.int64())}),
    ]
    assert deleted(parquet, *deletes) == [0, 2, 3, 4]


def test_a_column_that_the_file_lacks_is_null_its_default_or_its_partition(tmp_path: Path) -> None:
    parquet = data_file(tmp_path, {("a", 1): pa.array([1, 2])})
    nothing = equality_delete(tmp_path, {("b", 2): pa.nulls(1, pa.date32())})
    day = equality_delete(tmp_path, {("b", 2): pa.array([dt.date(1970, 1, 11)])})
    pair = equality_delete(tmp_path, {("a", 1): pa.array([2, 1]), ("b", 2): pa.array([10, 11], pa.date32())})
    for columns, expected in [
        (EqualityColumns(), [[0, 1], [], []]),
        (EqualityColumns(defaults={2: dt.date(1970, 1, 11)}), [[], [0, 1], [1]]),
        (EqualityColumns(defaults={2: 11}, constants={2: 10}), [[], [0, 1], [1]]),
        (EqualityColumns(defaults={2: 10}, constants={2: None}), [[0, 1], [], []]),
    ]:
        assert [deleted(parquet, delete, columns=columns) for delete in (nothing, day, pair)] == expected


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1.5, pa.float32()),
        (Decimal("2.50"), pa.decimal128(9, 2)),
        (SOME_ID, pa.uuid()),
        (SOME_ID.bytes, pa.binary(16)),
        (5, pa.timestamp("us", "UTC")),
        (dt.datetime(1970, 1, 1, microsecond=5, tzinfo=UTC), pa.timestamp("us", "UTC")),
        (3_600_000_000, pa.time64("us")),
        (True, pa.bool_()),
        ("x", pa.string()),
    ],
    ids=itertools.count(),
)
def test_defaults_and_partition_values_of_every_type(tmp_path: Path, value: Any, kind: pa.DataType) -> None:
    parquet = data_file(tmp_path, {("a", 1): pa.array([1])})
    plain = {SOME_ID: SOME_ID.bytes}.get(value, value)
    delete = equality_delete(tmp_path, {("b", 2): pa.array([plain], kind)})
    assert deleted(parquet, delete, columns=EqualityColumns(constants={2: value})) == [0]


def nested(values: list[Any], number: int = 3) -> pa.Array:
    kind = pa.struct([field("x", pa.int64(), 2), field("y", pa.int64(), number)])
    return pa.array(values, kind)


def test_fields_of_structs_are_compared_and_null_where_the_struct_is(tmp_path: Path) -> None:
    data = nested([{"x": 1, "y": 2}, None, {"x": None, "y": 2}, {"x": 1, "y": 3}])
    parquet = data_file(tmp_path, {("s", 1): data})
    by = {
        "one": equality_delete(tmp_path, {("s", 1): nested([{"x": 1, "y": 3}])}, ids=[3]),
        "null": equality_delete(tmp_path, {("s", 1): nested([None])}, ids=[2]),
        "both": equality_delete(tmp_path, {("s", 1): nested([{"x": 1, "y": 2}, None])}, ids=[3, 2]),
    }
    assert {name: deleted(parquet, delete) for name, delete in by.items()} == {
        "one": [3],
        "null": [1, 2],
        "both": [0, 1],
    }


def test_files_without_ids_are_read_through_a_name_mapping(tmp_path: Path) -> None:
    struct_ = pa.array([{"x": 1}, {"x": 2}, None])
    parquet = data_file(tmp_path, {("A", None): pa.array([5, 6, 7]), ("s", None): struct_})
    mapping = NameMapping(
        [
            MappedField(field_id=1, names=["a", "A"]),
            MappedField(field_id=2, names=["s"], fields=[MappedField(field_id=3, names=["x", "X"])]),
        ]
    )
    columns = EqualityColumns(flatten_name_mapping(mapping))
    assert columns.names == {("a",): 1, ("A",): 1, ("s",): 2, ("s", "x"): 3, ("s", "X"): 3}
    assert deleted(parquet, equality_delete(tmp_path, {("a", 1): pa.array([6])}), columns=columns) == [1]
    inner = equality_delete(tmp_path, {("x", 3): pa.array([1, None])})
    assert deleted(parquet, inner, columns=columns) == [0, 2]
    with pytest.raises(NotSupported, match=r"data has no field ids") as caught:
        deleted(parquet, inner)
    assert "schema.name-mapping.default" in str(caught.value)


def test_the_names_of_a_mapping_do_not_count_for_a_file_that_has_ids(tmp_path: Path) -> None:
    parquet = data_file(tmp_path, {("a", 7): pa.array([6])})
    delete = equality_delete(tmp_path, {("a", 1): pa.array([6])})
    assert deleted(parquet, delete, columns=EqualityColumns({("a",): 1})) == []


def test_damage_is_named(tmp_path: Path) -> None:
    parquet = data_file(tmp_path, {("a", 1): pa.array([6])})
    with pytest.raises(DamagedTable, match="no equality_ids"):
        deleted(parquet, entry("e", content=DataFileContent.EQUALITY_DELETES))
    with pytest.raises(DamagedTable, match="lacks the columns with field ids 2, 3"):
        deleted(parquet, equality_delete(tmp_path, {("a", 1): pa.array([6])}, ids=[3, 2, 1]))
    with pytest.raises(DamagedTable, match="int64"):
        deleted(parquet, equality_delete(tmp_path, {("a", 1): pa.array(["6"])}))
    with pytest.raises(NotSupported, match="AVRO"):
        deleted(
            parquet,
            entry("e", content=DataFileContent.EQUALITY_DELETES, file_format="AVRO", equality_ids=(1,)),
        )


def test_row_groups_that_cannot_match_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = pa.array([*range(100, 200), *[None] * 10])
    parquet = data_file(
        tmp_path, {("a", 1): values, ("b", 2): pa.array([str(n) for n in range(110)])}, row_group_size=10
    )
    read: list[int] = []
    whole = pq.ParquetFile.iter_batches

    def watched(self: pq.ParquetFile, size: int, row_groups: list[int], columns: list[str]) -> Any:
        read.extend(row_groups)
        assert columns == ["a"]
        return whole(self, size, row_groups=row_groups, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    assert deleted(parquet, equality_delete(tmp_path, {("a", 1): pa.array([134, 145])})) == [34, 45]
    assert read == [3, 4]
    read.clear()
    assert deleted(parquet, equality_delete(tmp_path, {("a", 1): pa.array([None, 105])})) == [
        5,
        *range(100, 110),
    ]
    assert read == [0, 10]
    read.clear()
    assert deleted(parquet, equality_delete(tmp_path, {("a", 1): pa.nulls(1, pa.int64())})) == [
        *range(100, 110)
    ]
    assert read == [10]
    read.clear()
    assert deleted(parquet, equality_delete(tmp_path, {("a", 1): pa.array([1, 999])})) == []
    assert read == [*range(10)]


def test_deletes_are_decoded_once_for_all_data_files(tmp_path: Path) -> None:
    cache = DeleteCache()
    delete = equality_delete(tmp_path, {("a", 1): pa.array([2])})
    assert deleted(data_file(tmp_path, {("a", 1): pa.array([1, 2])}), delete, cache=cache) == [1]
    Path(delete.file.file_path).unlink()
    assert deleted(data_file(tmp_path, {("a", 1): pa.array([2, 1], pa.int32())}), delete, cache=cache) == [0]


KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int64(), st.integers(-2, 2)),
    "text": (pa.string(), st.sampled_from(["", "a", "b", "ab"])),
    "float": (pa.float64(), st.sampled_from([0.0, -0.0, 1.0, math.nan, math.inf])),
    "day": (pa.date32(), st.sampled_from([dt.date(1969, 12, 31), dt.date(1970, 1, 1)])),
    "flag": (pa.bool_(), st.booleans()),
}


def java_equal(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("<d", value)
    return value


@st.composite
def cases(
    draw: st.DrawFn,
) -> tuple[dict[str, list[Any]], list[tuple[list[str], dict[str, list[Any]]]], int, int]:
    def rows(names: list[str], most: int) -> dict[str, list[Any]]:
        count = draw(st.integers(0, most))
        return {
            name: draw(st.lists(st.none() | KINDS[name][1], min_size=count, max_size=count)) for name in names
        }

    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4, unique=True))
    data = rows(names, 25)
    subsets = st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3, unique=True)
    deletes = [(subset, rows(subset, 6)) for subset in draw(st.lists(subsets, max_size=4))]
    return data, deletes, draw(st.integers(1, 8)), draw(st.integers(1, 8))


@given(cases())
def test_dead_rows_are_those_a_plain_comparison_finds(
    tmp_path_factory: pytest.TempPathFactory, case: Any
) -> None:
    data, deletes, group_rows, batch_rows = case
    root = tmp_path_factory.mktemp("equal")
    numbers = {name: n for n, name in enumerate(sorted(KINDS), 1)}

    def arrays(columns: dict[str, list[Any]]) -> dict[tuple[str, int], pa.Array]:
        return {(n, numbers[n]): pa.array(values, KINDS[n][0]) for n, values in columns.items()}

    parquet = data_file(root, arrays(data), row_group_size=group_rows)
    entries = [equality_delete(root, arrays(columns)) for _, columns in deletes]
    count = parquet.metadata.num_rows
    expected = [
        at
        for at in range(count)
        if any(
            all(java_equal(columns[n][row]) == java_equal(data[n][at] if n in data else None) for n in subset)
            for subset, columns in deletes
            for row in range(len(columns[subset[0]]))
        )
    ]
    before = equality_deletes.FEW_ROWS, equality_deletes.MANY_ROWS
    equality_deletes.FEW_ROWS, equality_deletes.MANY_ROWS = batch_rows, batch_rows
    try:
        assert deleted(parquet, *entries) == expected
    finally:
        equality_deletes.FEW_ROWS, equality_deletes.MANY_ROWS = before
