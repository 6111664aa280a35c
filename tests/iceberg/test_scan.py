"""What a scan task says of a file before it is opened, and how it travels."""

from __future__ import annotations

import pickle
import struct
import time
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    UUIDType,
)
from tests.iceberg.scan_tools import (
    data_entry,
    identified,
    make_scan_context,
    metadata_of,
    schema_of,
    seen,
    spec_of,
    written,
)

from intarsia.tables.iceberg.deletes import Deletes
from intarsia.tables.iceberg.manifests import ContentFile, DataFileContent, ManifestEntry, ManifestEntryStatus
from intarsia.tables.iceberg.schemas import to_arrow_schema

LONG = LongType()
INT4, INT8 = struct.Struct("<i"), struct.Struct("<q")
DAY = 86_400_000_000


def bounds_of(kind: Any, low: bytes | None, high: bytes | None, **file: Any) -> tuple[Any, Any, int | None]:
    entry = data_entry(
        lower_bounds={} if low is None else {1: low}, upper_bounds={} if high is None else {1: high}, **file
    )
    return make_scan_context(schema_of((1, "c", kind))).make_scan_task(entry).get_bounds("c")


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        (BooleanType(), b"\x01", True),
        (IntegerType(), INT4.pack(-7), -7),
        (LONG, INT8.pack(-7), -7),
        (LONG, INT4.pack(-7), -7),
        (FloatType(), struct.pack("<f", 1.5), 1.5),
        (DoubleType(), struct.pack("<d", 1.5), 1.5),
        (DoubleType(), struct.pack("<f", 1.5), 1.5),
        (DateType(), INT4.pack(-1), -1),
        (TimestampType(), INT8.pack(5), 5),
        (TimestampType(), INT4.pack(-1), -DAY),
        (TimestampNanoType(), INT4.pack(1), DAY * 1000),
        (TimestampNanoType(), INT4.pack(10**6), None),
        (StringType(), "é".encode(), "é"),
        (StringType(), b"\xff", None),
        (BinaryType(), b"\xff", b"\xff"),
        (DecimalType(38, 2), (-(10**37)).to_bytes(16, "big", signed=True), Decimal("-1" + "0" * 35 + ".00")),
        (DecimalType(9, 2), b"\x80", Decimal("-1.28")),
        (LONG, b"\x01", None),
        (DoubleType(), struct.pack("<d", float("nan")), None),
    ],
)
def test_bounds_are_decoded_by_the_type_the_column_had(kind: Any, data: bytes, value: Any) -> None:
    assert bounds_of(kind, data, data) == (value, value, None)


def test_nulls_are_given_where_they_are_counted() -> None:
    assert bounds_of(LONG, INT8.pack(1), INT8.pack(2), null_value_counts={1: 1}) == (1, 2, 1)
    assert bounds_of(LONG, None, None, null_value_counts={1: 3}) == (None, None, 3)
    assert bounds_of(LONG, None, None) == (None, None, None)
    assert bounds_of(LONG, None, None, null_value_counts={1: 9}) == (None, None, None)


def test_a_number_of_nulls_that_dead_rows_may_lessen_is_not_given() -> None:
    table = make_scan_context(schema_of((1, "c", LONG)))
    vector = ManifestEntry(
        ManifestEntryStatus.ADDED,
        1,
        ContentFile(DataFileContent.POSITION_DELETES, "file:///d.puffin", "PUFFIN", 0, (), 1, 50),
        8,
        8,
    )
    deletes = Deletes(vector)
    assert table.make_scan_task(data_entry(null_value_counts={1: 1}), deletes).get_bounds("c")[2] is None
    assert table.make_scan_task(data_entry(null_value_counts={1: 0}), deletes).get_bounds("c")[2] == 0
    assert table.make_scan_task(data_entry(null_value_counts={1: 3}), deletes).get_bounds("c")[2] == 3
    assert table.make_scan_task(data_entry(), deletes).has_deletes
    assert not table.make_scan_task(data_entry()).has_deletes


def test_bounds_of_uuids_hold_for_one_row_group_only() -> None:
    low, high = uuid.UUID(int=1).bytes, uuid.UUID(int=2**127).bytes
    assert bounds_of(UUIDType(), low, high, split_offsets=(4,)) == (low, high, None)
    assert bounds_of(UUIDType(), low, high, split_offsets=(4, 900)) == (None, None, None)
    assert bounds_of(UUIDType(), low, high) == (None, None, None)


def test_columns_without_metrics_and_columns_that_are_none_are_unknown() -> None:
    scan_task = make_scan_context(
        schema_of((1, "s", StructType(NestedField(2, "x", LONG))), (3, "new", LONG, {"initial_default": 5}))
    ).make_scan_task(data_entry(lower_bounds={2: INT8.pack(1)}))
    for name in ("s", "s.x", "new", "other"):
        assert scan_task.get_bounds(name) == (None, None, None)


def test_partition_values_narrow_the_bounds() -> None:
    schema = schema_of(
        (1, "ts", TimestampType()),
        (2, "t", StringType()),
        (3, "b", LONG),
        (4, "i", LONG),
        (5, "f", DoubleType()),
    )
    spec = spec_of(
        (1, "d", DayTransform()),
        (2, "t", TruncateTransform(2)),
        (3, "b", BucketTransform(8)),
        (4, "i", IdentityTransform()),
        (5, "f", IdentityTransform()),
    )
    table = make_scan_context(schema, specs=(spec,))
    known = {1: INT8.pack(DAY * 20 + 5)}
    scan_task = table.make_scan_task(data_entry(partition=(20, "ab", 3, 9, float("nan")), lower_bounds=known))
    assert scan_task.get_bounds("ts") == (DAY * 20 + 5, DAY * 21 - 1, 0)
    assert scan_task.get_bounds("t") == ("ab", None, 0)
    assert scan_task.get_bounds("b") == (None, None, None)
    assert scan_task.get_bounds("i") == (9, 9, 0)
    assert scan_task.get_bounds("f") == (None, None, None)
    nulls = table.make_scan_task(data_entry(partition=(None, None, None, None, None)))
    assert [nulls.get_bounds(name)[2] for name in ("ts", "t", "b", "i")] == [3, 3, None, 3]


def test_each_file_is_judged_by_its_own_spec() -> None:
    schema = schema_of((1, "a", LONG), (2, "b", LONG))
    specs = (spec_of((1, "a", IdentityTransform())), spec_of((2, "b", IdentityTransform()), spec_id=1))
    table = make_scan_context(schema, specs=specs)
    old, new = (
        table.make_scan_task(data_entry(partition=(1,))),
        table.make_scan_task(data_entry(spec_id=1, partition=(1,))),
    )
    assert (old.get_bounds("a"), old.get_bounds("b")) == ((1, 1, 0), (None, None, None))
    assert (new.get_bounds("a"), new.get_bounds("b")) == ((None, None, None), (1, 1, 0))


def test_a_flat_columns_chunk_is_found_by_id(tmp_path: Path) -> None:
    stored = pa.schema(
        [
            identified("s", 1, pa.struct([identified("x", 2, pa.int64()), identified("y", 3, pa.int64())])),
            identified(
                "m",
                4,
                pa.map_(
                    identified("key", 5, pa.string(), nullable=False), identified("value", 6, pa.int64())
                ),
            ),
            identified("u", 7, pa.uuid()),
            identified("old", 8, pa.int64()),
        ]
    )
    footer = written(tmp_path / "f.parquet", stored.empty_table()).metadata
    schema = schema_of(
        (8, "new", LONG),
        (1, "s", StructType(NestedField(2, "x", LONG))),
        (9, "old", LONG),
        (7, "u", UUIDType()),
    )
    table = make_scan_context(schema)
    scan_task = table.make_scan_task(data_entry())
    assert scan_task.find_leaf(footer, "new") == 5
    assert footer.schema.column(5).name == "old"
    assert scan_task.find_leaf(footer, "u") == 4
    assert [scan_task.find_leaf(footer, name) for name in ("s", "old", "absent")] == [None] * 3
    other = written(
        tmp_path / "g.parquet", pa.schema([identified("old", 8, pa.int64())]).empty_table()
    ).metadata
    assert scan_task.find_leaf(other, "new") == 0
    assert scan_task.find_leaf(footer, "new") == 5


def test_scan_tasks_pickle_with_one_table_between_them(tmp_path: Path) -> None:
    schema = schema_of(
        (1, "c", LONG),
        (2, "l", ListType(3, StringType(), False)),
        (4, "d", DateType(), {"initial_default": "2020-01-01"}),
    )
    table = make_scan_context(schema, specs=(spec_of((1, "c", IdentityTransform())),))
    tasks = [
        table.make_scan_task(data_entry(partition=(n,), file_path=f"file:///t/{n}")) for n in range(1000)
    ]
    tasks[0].get_bounds("c")
    data = pickle.dumps(tasks)
    assert len(data) < 300_000
    back = pickle.loads(data)
    assert len({id(scan_task.table) for scan_task in back}) == 1
    assert back[7].get_bounds("c") == (7, 7, 0)
    stored = pa.schema([identified("c", 1, pa.int32())])
    parquet = written(tmp_path / "f.parquet", pa.table({"c": [1]}, stored))
    assert seen(back[7], parquet).to_pydict() == seen(tasks[7], parquet).to_pydict()


def test_the_history_of_a_table_stays_at_home() -> None:
    metadata = metadata_of(schema_of((1, "c", LONG)))
    assert make_scan_context(schema_of((1, "c", LONG))).metadata.snapshots == []
    assert metadata.schemas


def test_a_hundred_thousand_scan_tasks_are_made_and_asked_in_a_moment() -> None:
    schema = schema_of((1, "c", LONG), (2, "day", DateType()))
    table = make_scan_context(schema, specs=(spec_of((2, "day", IdentityTransform())),))
    entry = data_entry(partition=(3,), lower_bounds={1: INT8.pack(1)}, upper_bounds={1: INT8.pack(2)})
    start = time.process_time()
    tasks = [table.make_scan_task(entry) for _ in range(100_000)]
    found = {scan_task.get_bounds("c") for scan_task in tasks}
    assert time.process_time() - start < 5
    assert found == {(1, 2, None)}


def test_position_deletes_are_found_through_the_scan_task(tmp_path: Path) -> None:
    schema = schema_of((1, "c", LONG))
    parquet = written(tmp_path / "f.parquet", pa.table({"c": [1, 2, 3]}, to_arrow_schema(schema)))
    path = f"file://{tmp_path}/f.parquet"
    stored = pa.schema(
        [
            identified("file_path", 2147483546, pa.string(), nullable=False),
            identified("pos", 2147483545, pa.int64(), nullable=False),
        ]
    )
    pq.write_table(pa.table({"file_path": [path, path], "pos": [0, 2]}, stored), tmp_path / "d.parquet")
    size = (tmp_path / "d.parquet").stat().st_size
    deletes = Deletes(
        positions=(
            ManifestEntry(
                ManifestEntryStatus.ADDED,
                2,
                ContentFile(
                    DataFileContent.POSITION_DELETES, f"file:{tmp_path}/d.parquet", "PARQUET", 0, (), 2, size
                ),
                8,
                8,
            ),
        )
    )
    table = make_scan_context(schema)
    scan_task = table.make_scan_task(data_entry(file_path=path), deletes)
    deleted = scan_task.read_deleted(parquet, pafs.LocalFileSystem())
    assert deleted is not None
    assert deleted.to_pylist() == [0, 2]
    assert (
        table.make_scan_task(data_entry(file_path=path)).read_deleted(parquet, pafs.LocalFileSystem()) is None
    )
