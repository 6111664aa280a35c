"""Table properties as far as writing goes, and where new files go."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.locations import load_location_provider
from pyiceberg.types import BooleanType, ListType, LongType, MapType, NestedField, StringType, StructType
from tests.iceberg.scan_tools import metadata_of, schema_of

from intarsia.errors import InputError, NotSupported
from intarsia.tables.iceberg.file_io import LocationProvider, make_hash_directories
from intarsia.tables.iceberg.properties import WriteProperties
from intarsia.tables.iceberg.schemas import to_arrow_schema

SCHEMA = schema_of((1, "a", LongType()))


def properties_of(said: dict[str, str] | None = None, schema: Any = SCHEMA) -> WriteProperties:
    return WriteProperties.of(metadata_of(schema, properties=said))


def test_the_defaults_are_icebergs() -> None:
    found = properties_of()
    assert found.target_bytes == 536870912
    assert found.delete_target_bytes == 67108864
    assert found.layout.row_group_bytes == 134217728
    assert set(found.modes.values()) == {"copy-on-write"}
    assert set(found.isolation.values()) == {"serializable"}
    assert (found.manifest_target_bytes, found.manifest_min_merge, found.manifest_merge) == (
        8388608,
        100,
        True,
    )
    assert found.manifest_codec == "gzip"
    assert found.commit_retry == type(found.commit_retry)(4, 100, 60_000, 1_800_000)
    assert found.status_retry.retries == 3
    assert found.layout.compression == "zstd"
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("write.format.default", "avro"),
        ("write.format.default", "ORC"),
        ("write.delete.format.default", "avro"),
        ("encryption.key-id", "k"),
        ("write.location-provider.impl", "com.x.Y"),
        ("write.py-location-provider.impl", "x.Y"),
        ("write.object-storage.path", "s3://b"),
        ("write.parquet.compression-codec", "lzo"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(NotSupported, match=name):
        properties_of({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("write.target-file-size-bytes", "much"),
        ("write.target-file-size-bytes", "0"),
        ("commit.retry.num-retries", "-1"),
        ("write.delete.mode", "now"),
        ("write.merge.isolation-level", "none"),
        ("write.delete.granularity", "row"),
        ("write.distribution-mode", "some"),
        ("write.metadata.compression-codec", "lzma"),
        ("write.metadata.previous-versions-max", "many"),
        ("write.manifest.compression-codec", "lzma"),
    ],
)
def test_a_value_that_is_none_is_an_input_error_that_names_it(name: str, value: str) -> None:
    with pytest.raises(InputError, match=f"{name} is '{value}'"):
        properties_of({name: value})


def test_what_is_said_is_read() -> None:
    found = properties_of(
        {
            "write.merge.mode": "Merge-On-Read",
            "write.update.isolation-level": "snapshot",
            "write.delete.granularity": "partition",
            "commit.manifest-merge.enabled": "false",
            "write.summary.partition-limit": "10",
            "commit.status-check.total-timeout-ms": "7",
        }
    )
    assert found.modes["merge"] == "merge-on-read"
    assert found.modes["delete"] == "copy-on-write"
    assert found.isolation["update"] == "snapshot"
    assert found.delete_granularity == "partition"
    assert not found.manifest_merge
    assert found.partition_limit == 10
    assert found.status_retry.total_ms == 7


def test_the_layout_of_delete_files_follows_that_of_data_files_unless_it_is_said() -> None:
    found = properties_of(
        {
            "write.parquet.compression-codec": "gzip",
            "write.parquet.compression-level": "3",
            "write.parquet.page-size-bytes": "5000",
            "write.delete.parquet.compression-codec": "uncompressed",
        }
    )
    assert (found.layout.compression, found.layout.compression_level) == ("gzip", 3)
    assert (found.delete_layout.compression, found.delete_layout.compression_level) == ("none", None)
    assert found.layout.page_bytes == found.delete_layout.page_bytes == 5000


def test_files_are_written_as_the_layout_says() -> None:
    schema = schema_of(
        (1, "t", StringType()),
        (2, "p", StructType(NestedField(3, "l", ListType(4, LongType(), False)))),
        (5, "yes", BooleanType()),
    )
    said = {
        "write.parquet.compression-codec": "zstd",
        "write.parquet.compression-level": "7",
        "write.parquet.bloom-filter-enabled.column.t": "true",
        "write.parquet.bloom-filter-enabled.column.p.l.element": "true",
        "write.parquet.bloom-filter-enabled.column.p": "false",
        "write.parquet.bloom-filter-enabled.column.yes": "true",  # PyArrow writes none of booleans
    }
    layout = properties_of(said, schema).layout
    arrow = to_arrow_schema(schema)
    assert set(layout.bloom_filters) == {"t", "p.l.list.element", "yes"}
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table({"t": ["x"], "p": [{"l": [1]}], "yes": [True]}, arrow),
        sink,
        **layout.make_writer_options(arrow, dictionary_columns=[]),
    )
    footer = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    chunks = [footer.row_group(0).column(n) for n in range(3)]
    assert {chunk.compression for chunk in chunks} == {"ZSTD"}
    assert [chunk.bloom_filter_offset is not None for chunk in chunks] == [True, True, False]
    assert all(chunk.has_offset_index for chunk in chunks)


def test_row_groups_have_as_many_rows_as_fill_them() -> None:
    metadata = metadata_of(SCHEMA, properties={"write.parquet.row-group-size-bytes": "100000"})
    assert WriteProperties.of(metadata).layout.row_group_rows == 1 << 20
    snapshot = {
        "snapshot-id": 1,
        "timestamp-ms": 2,
        "sequence-number": 1,
        "manifest-list": "file:///x",
        "schema-id": 0,
        "summary": {"operation": "append", "total-records": "1000", "total-files-size": "50000"},
    }
    whole = metadata.model_dump(by_alias=True) | {
        "snapshots": [snapshot],
        "current-snapshot-id": 1,
        "refs": {"main": {"snapshot-id": 1, "type": "branch"}},
    }
    found = WriteProperties.of(type(metadata).model_validate(whole))
    assert found.layout.row_group_rows == 2000


LOCATION = "file:///nowhere/t"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, f"{LOCATION}/data/{{part}}/f.parquet"),
        ({"write.data.path": "s3://b/d/"}, "s3://b/d/{part}/f.parquet"),
        ({"write.object-storage.enabled": "true"}, f"{LOCATION}/data/{{hash}}/{{part}}/f.parquet"),
        (
            {"write.object-storage.enabled": "true", "write.data.path": "s3://b/d"},
            "s3://b/d/{hash}/nowhere/t/{part}/f.parquet",
        ),
    ],
)
def test_data_files_lie_where_java_puts_them(said: dict[str, str], expected: str) -> None:
    locations = LocationProvider.of(metadata_of(SCHEMA, properties=said))
    part = "day=2020-01-01/r%C3%A9gion=a%2Fb+c%7E*"
    partitioner = make_hash_directories(f"{part}/f.parquet")
    found = locations.make_data_location("f.parquet", {"day": "2020-01-01", "région": "a/b c~*"})
    assert found == expected.format(part=part, hash=partitioner)


@pytest.mark.parametrize("partitioned", ["true", "false"])
@pytest.mark.parametrize("name", ["f.parquet", "00000-0-ä.parquet", ""])
def test_hashed_places_are_those_of_pyiceberg(name: str, partitioned: str) -> None:
    said = {"write.object-storage.enabled": "true", "write.object-storage.partitioned-paths": partitioned}
    mine = LocationProvider.of(metadata_of(SCHEMA, properties=said)).make_data_location(name, {})
    assert mine == load_location_provider(LOCATION, said).new_data_location(name)


def test_a_hash_without_partitions_is_joined_to_the_name() -> None:
    said = {"write.object-storage.enabled": "true", "write.object-storage.partitioned-paths": "false"}
    found = LocationProvider.of(metadata_of(SCHEMA, properties=said)).make_data_location(
        "f.parquet", {"a": "1"}
    )
    assert found == f"{LOCATION}/data/{make_hash_directories('f.parquet')}-f.parquet"


def test_metadata_files_lie_in_their_own_directory() -> None:
    assert (
        LocationProvider.of(metadata_of(SCHEMA)).make_metadata_location("m.avro")
        == f"{LOCATION}/metadata/m.avro"
    )
    moved = metadata_of(SCHEMA, properties={"write.metadata.path": "s3://m/"})
    assert LocationProvider.of(moved).make_metadata_location("m.avro") == "s3://m/m.avro"


def test_names_of_leaves_in_maps_are_parquets() -> None:
    schema = schema_of((1, "m", MapType(2, StringType(), 3, LongType(), False)))
    said = {"write.parquet.bloom-filter-enabled.column.m.key": "true"}
    assert set(properties_of(said, schema).layout.bloom_filters) == {"m.key_value.key"}
