"""What a table's properties, sort order and metrics ask of the files that operations write."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from operation_tools import EU_US, House
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from tests.contract.iceberg_lakes import MOR, Warehouse

import intarsia as it
from intarsia.errors import NotSupported


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    warehouse = Warehouse(tmp_path)
    yield House(warehouse)
    warehouse.catalog.close()


def files(house: House) -> list[Path]:
    return [Path(file.path.removeprefix("file://")) for file in house.decoded().data]


def changed(house: House) -> None:
    """New files by a write, an update and a compaction."""
    it.write(EU_US, house.target)
    it.update(house.target, {"v": "'new'"}, "id < 4")
    assert house.rows("id") == list(range(8))
    house.check()


def test_the_codec_of_data_and_of_deletes(house: House) -> None:
    properties = {
        "write.parquet.compression-codec": "gzip",
        "write.delete.parquet.compression-codec": "zstd",
        "write.parquet.row-group-limit": "3",
    }
    house.make(EU_US.schema, mode=MOR, properties=properties)
    changed(house)
    codecs = {pq.read_metadata(path).row_group(0).column(0).compression for path in files(house)}
    assert codecs == {"GZIP"}
    (deletes,) = house.decoded().deletes
    footer = pq.read_metadata(deletes.path.removeprefix("file://"))
    assert footer.row_group(0).column(0).compression == "ZSTD"


def test_the_caller_may_ask_for_another_codec(house: House) -> None:
    house.make(EU_US.schema, properties={"write.parquet.compression-codec": "gzip"})
    it.write(EU_US, house.target, compression="snappy", row_group_size=3)
    footer = pq.read_metadata(files(house)[0])
    assert footer.row_group(0).column(0).compression == "SNAPPY"
    assert [footer.row_group(n).num_rows for n in range(footer.num_row_groups)] == [3, 3, 2]


def test_files_are_cut_at_the_target_size(house: House) -> None:
    house.make(
        pa.schema([("id", pa.int64()), ("s", pa.string())]),
        properties={
            "write.target-file-size-bytes": "200000",
            "write.parquet.compression-codec": "uncompressed",
        },
    )
    dice = random.Random(7)
    texts = [f"{dice.getrandbits(128):032x}" for _ in range(30_000)]
    it.write(pa.table({"id": range(30_000), "s": texts}), house.target, row_group_size=2_000)
    sizes = [path.stat().st_size for path in files(house)]
    assert len(sizes) >= 4
    assert max(sizes) < 400_000
    assert house.read().num_rows == 30_000
    house.check()


def test_files_of_a_table_with_an_order_are_in_it(house: House) -> None:
    order = SortOrder(
        SortField(3, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_FIRST),
        SortField(1, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_LAST),
    )
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "region", StringType()),
        NestedField(3, "v", StringType()),
    )
    house.make(schema, sort_order=order, mode=MOR)
    rows = EU_US.set_column(2, "v", pa.array(["b", None, "c", "a", None, "b", "a", "c"]))
    it.write(rows, house.target)
    it.merge(rows.set_column(0, "id", pa.array(range(100, 108))), house.target, on="id")
    it.compact(house.target)
    for path in files(house):
        table = pq.ParquetFile(path).read()
        found = list(zip(table["v"].to_pylist(), table["id"].to_pylist(), strict=True))
        ordered = sorted(found, key=lambda row: (row[0] is not None, [-ord(c) for c in row[0] or ""], row[1]))
        assert found == ordered


def test_data_and_metadata_go_where_the_properties_say(house: House, tmp_path: Path) -> None:
    elsewhere = {
        "write.data.path": f"file://{tmp_path}/data-there",
        "write.metadata.path": f"file://{tmp_path}/metadata-there",
    }
    house.make(EU_US.schema, mode=MOR, properties=elsewhere, by=[("region", IdentityTransform())])
    changed(house)
    places = {path.relative_to(tmp_path).parts[0] for path in files(house)}
    places |= {
        Path(file.path.removeprefix("file://")).relative_to(tmp_path).parts[0]
        for file in house.decoded().deletes
    }
    assert places == {"data-there"}
    assert {m.path.parent for m in house.decoded().manifests} == {tmp_path / "metadata-there"}


@pytest.mark.parametrize("partitioned", ["true", "false"])
def test_object_storage_paths_are_spread(house: House, partitioned: str) -> None:
    house.make(
        EU_US.schema,
        mode=MOR,
        by=[("region", IdentityTransform())],
        properties={
            "write.object-storage.enabled": "true",
            "write.object-storage.partitioned-paths": partitioned,
        },
    )
    changed(house)
    names = [str(path) for path in files(house)]
    assert all(("region_identity=" in name) == (partitioned == "true") for name in names)
    assert len({path.parent for path in files(house)}) == len(names)


def test_metrics_are_those_that_the_table_asks_for(house: House) -> None:
    house.make(
        EU_US.schema,
        properties={
            "write.metadata.metrics.default": "none",
            "write.metadata.metrics.column.id": "full",
            "write.metadata.metrics.column.region": "counts",
            "write.metadata.metrics.column.v": "truncate(1)",
        },
    )
    it.write(EU_US, house.target)
    (file,) = house.decoded().data
    lower = {one["key"]: one["value"] for one in file.record["lower_bounds"]}
    upper = {one["key"]: one["value"] for one in file.record["upper_bounds"]}
    assert (lower, upper) == (
        {1: (0).to_bytes(8, "little"), 3: b"v"},
        {1: (7).to_bytes(8, "little"), 3: b"w"},
    )
    assert {one["key"] for one in file.record["value_counts"]} == {1, 2, 3}


@pytest.mark.parametrize("last", ["overwrite", "compact", "delete"])
def test_deletes_that_several_files_share_go_with_the_last_data_they_apply_to(
    house: House, last: str
) -> None:
    house.make(EU_US.schema, EU_US, mode=MOR, by=[("region", IdentityTransform())],
               properties={"write.delete.granularity": "partition"})  # fmt: skip
    later = EU_US.set_column(0, "id", pa.array([n + 100 for n in range(8)], pa.int64()))
    it.write(later, house.target)
    it.delete(house.target, "id in (0, 100)")
    assert len(house.decoded().deletes) == 1
    it.delete(house.target, "id < 50 and region = 'eu'")  # one of the two files that it is about
    assert len(house.decoded().deletes) == 1
    assert house.rows("id") == [1, 3, 5, 7, 101, 102, 103, 104, 105, 106, 107]
    if last == "overwrite":
        it.write(EU_US, house.target, mode="overwrite")
    elif last == "compact":
        it.compact(house.target)
    else:
        it.delete(house.target, "region = 'eu'")
    assert not house.decoded().deletes
    left = {"overwrite": [*range(8)], "compact": [1, 3, 5, 7, *range(101, 108)],
            "delete": [1, 3, 5, 7, 101, 103, 105, 107]}  # fmt: skip
    assert house.rows("id") == left[last]
    house.check()


@pytest.mark.parametrize("granularity", ["file", "partition"])
def test_delete_files_are_as_fine_as_asked_for(house: House, granularity: str) -> None:
    house.make(EU_US.schema, *(EU_US.slice(n, 2) for n in (0, 2, 4, 6)), mode=MOR,
               properties={"write.delete.granularity": granularity})  # fmt: skip
    it.delete(house.target, "id in (0, 2, 4)")
    assert len(house.decoded().deletes) == {"file": 3, "partition": 1}[granularity]
    it.delete(house.target, "id in (1, 6)")  # of 0 and 1 nothing is left
    assert house.rows("id") == [3, 5, 7]
    house.check()


def test_a_snapshot_says_what_was_done_and_what_the_caller_noted(house: House) -> None:
    house.make(EU_US.schema, EU_US, mode=MOR)
    result = it.delete(house.target, "id = 1", properties={"team": "blue", "total-records": "99"})
    summary = house.decoded().summary
    assert summary["operation"] == "delete"
    assert (summary["team"], summary["engine-name"]) == ("blue", "intarsia")
    assert (summary["total-records"], summary["added-position-deletes"]) == ("8", "1")
    assert result.txid in json.dumps(dict(summary))


def test_a_batch_that_was_committed_is_not_written_again(house: House) -> None:
    house.make(EU_US.schema)
    assert it.write(EU_US, house.target, app_id="stream", batch_id=3).changed
    with house.unchanged():
        assert not it.write(EU_US, house.target, app_id="stream", batch_id=3).changed
    assert it.write(EU_US, house.target, app_id="stream", batch_id=4).changed
    assert house.read().num_rows == 16


REFUSED: dict[str, Any] = {
    "write.format.default": "orc",
    "write.location-provider.impl": "com.example.Mine",
    "encryption.key-id": "k1",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused_by_name_and_nothing_is_written(house: House, name: str) -> None:
    house.make(EU_US.schema, EU_US)
    with house.table.transaction() as transaction:
        transaction.set_properties({name: REFUSED[name]})
    with house.unchanged(), pytest.raises(NotSupported, match=name.replace(".", r"\.")):
        it.write(EU_US, house.target)
