"""New rows into new files: by partition, cut to size, looking like the files beside them."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from intarsia.common.partitions import decode_partition_schema
from intarsia.core.change import Staging
from intarsia.core.expr import resolve
from intarsia.core.file_table import FileTuple
from intarsia.core.intent import WriteOptions
from intarsia.core.rule import Insert
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.errors import InputError
from intarsia.kernel import partitioned_writer as module
from intarsia.kernel.match import insert_all_rows
from intarsia.kernel.output_format import ROW_GROUP_ROWS
from intarsia.kernel.partitioned_writer import NewRowWriter
from intarsia.kernel.write import make_file_metadata
from intarsia.sql.parse import parse_expression

LOCAL = pafs.LocalFileSystem()
SOURCE = pa.table({"id": range(6), "p": ["a", "b", None, "a", "b", "a"]})


@dataclass
class Tx:
    """The part of a transaction that placing needs."""

    directory: str
    txid: str = "tx1"

    @property
    def staging(self) -> Staging:
        return Staging(LOCAL, self.directory, "tx1")

    def new_file_path(self, partition, prefix, ordinal) -> str:
        return "/".join(
            [*(f"{name}={value}" for name, value in partition.items()), f"{prefix}-{ordinal}.parquet"]
        )


@pytest.fixture
def tx(tmp_path):
    return Tx(str(tmp_path))


def _placing(schema, *, partition=(), files=(), **options) -> NewRowWriter:
    snapshot = Snapshot("lake", FileTuple(files), schema, tuple(partition), LOCAL)
    return NewRowWriter(snapshot, schema, tuple(partition), WriteOptions(**options), "merge")


def _written(placing, inserts, source, tx):
    files = placing.plan_files(inserts, source, tx, prefix="insert")
    staged = [placing.write(file, source, tx) for file in files]
    return {one.path: pq.ParquetFile(one.location).read() for one in staged}


def test_rows_go_to_a_file_per_partition_without_its_columns(tx):
    found = _written(_placing(SOURCE.schema, partition=["p"]), insert_all_rows(SOURCE), SOURCE, tx)
    assert {path: table["id"].to_pylist() for path, table in found.items()} == {
        "p=a/insert-0.parquet": [0, 3, 5],
        "p=b/insert-1.parquet": [1, 4],
        "p=None/insert-2.parquet": [2],
    }
    assert all(table.column_names == ["id"] for table in found.values())
    assert len(found) == 3


def test_only_the_chosen_rows_are_written_in_their_order(tx):
    inserts = [(Insert(), pa.array([4, 1], pa.int64()))]
    found = _written(_placing(SOURCE.schema), inserts, SOURCE, tx)
    assert [table.to_pylist() for table in found.values()] == [[{"id": 4, "p": "b"}, {"id": 1, "p": "b"}]]


def test_files_end_at_their_most_rows(tx):
    placing = _placing(SOURCE.schema, max_rows_per_file=4, row_group_size=3)
    found = _written(placing, insert_all_rows(SOURCE), SOURCE, tx)
    assert [table["id"].to_pylist() for table in found.values()] == [[0, 1, 2, 3], [4, 5]]
    assert pq.read_metadata(f"{tx.directory}/insert-00000.part").num_row_groups == 2


@pytest.mark.parametrize("slice_rows", [1, 2, 100])
def test_rows_are_written_in_slices_of_the_source(tx, monkeypatch, slice_rows):
    monkeypatch.setattr(module, "SLICE_ROWS", slice_rows)
    source = pa.table({"id": range(100), "p": ["a", "b"] * 50})
    found = _written(
        _placing(source.schema, partition=["p"], row_group_size=20), insert_all_rows(source), source, tx
    )
    assert [table["id"].to_pylist() for table in found.values()] == [
        list(range(0, 100, 2)), list(range(1, 100, 2))
    ]  # fmt: skip
    footer = pq.read_metadata(f"{tx.directory}/insert-00000.part")
    assert [footer.row_group(n).num_rows for n in range(footer.num_row_groups)] == [20, 20, 10]


def test_an_insert_of_some_columns_makes_rows_with_the_rest_null(tx):
    schema = pa.schema([("id", pa.int64()), ("p", pa.string()), ("n", pa.int64())])
    value = resolve(parse_expression("source.id * 2"), pa.schema([]), source=SOURCE.schema, expect=pa.int64())
    inserts = [(Insert(((("n",), value),)), pa.array([5], pa.int64()))]
    found = _written(_placing(schema), inserts, SOURCE, tx)
    assert [table.to_pylist() for table in found.values()] == [[{"id": None, "p": None, "n": 10}]]


def test_a_new_file_looks_like_the_first_of_the_table(tx, tmp_path):
    path = tmp_path / "old.parquet"
    pq.write_table(SOURCE, path, compression="zstd", sorting_columns=[pq.SortingColumn(0)],
                   row_group_size=2)  # fmt: skip
    first = DataFile("old.parquet", str(path), 1, 6, footer=pq.read_metadata(path))
    layout = _placing(SOURCE.schema, files=[first]).make_format("tx1").layout
    assert (layout.compression, layout.sorting, layout.row_group_rows) == ("zstd", (), ROW_GROUP_ROWS)
    asked = (
        _placing(SOURCE.schema, files=[first], compression="gzip", row_group_size=9).make_format("tx1").layout
    )
    assert (asked.compression, asked.row_group_rows) == ("gzip", 9)
    assert _placing(SOURCE.schema).make_format("tx1").layout.compression == "snappy"


def test_a_file_says_its_transaction_and_the_types_of_its_partition():
    schema = pa.schema([("id", pa.int64()), ("p", pa.date32())])
    notes = make_file_metadata("tx1", schema, ("p",))
    assert notes[b"intarsia.txid"] == b"tx1"
    assert decode_partition_schema(notes[b"intarsia.partitions"]) == pa.schema([("p", pa.date32())])
    assert list(make_file_metadata("tx1", schema, ())) == [b"intarsia.txid"]


def test_a_file_needs_a_column_beside_its_partition(tx):
    placing = _placing(pa.schema([("p", pa.string())]), partition=["p"])
    with pytest.raises(InputError, match="every column is a partition column"):
        placing.plan_files(insert_all_rows(SOURCE.select(["p"])), SOURCE.select(["p"]), tx, prefix="part")


def test_no_rows_make_no_file(tx):
    assert insert_all_rows(SOURCE.slice(0, 0)) == []
    assert _placing(SOURCE.schema).plan_files([], SOURCE, tx, prefix="part") == []
