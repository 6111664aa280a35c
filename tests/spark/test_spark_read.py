"""``intarsia.spark.read``: datasets and Iceberg tables as lazy DataFrames, with the rows of ``it.read``."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.types import StringType

import intarsia as it
from intarsia import frames
from intarsia.errors import ColumnNotFound, CommitConflict, CommitUnknown, InputError, NothingMatched
from intarsia.kernel.read import FileReader
from intarsia.spark import read
from intarsia.tables.iceberg import embedded_catalog

ORDERS = pa.table(
    {
        "id": range(12),
        "day": [dt.date(2025, 1, 1 + n % 3) for n in range(12)],
        "n": [n * 10 for n in range(12)],
    }
)


@pytest.fixture
def orders(tmp_path):
    path = str(tmp_path / "orders")
    it.write(ORDERS, path, partition_by="day", engine="arrow")
    return path


@pytest.fixture
def iceberg(tmp_path):
    """A table with position deletes, a renamed column and one that old files lack."""
    catalog = embedded_catalog(tmp_path / "warehouse")
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", schema=ORDERS.schema, properties={"format-version": "2"})
    it.write(ORDERS, table, row_group_size=4, engine="arrow")
    table.refresh()
    with table.update_schema() as update:
        update.rename_column("n", "amount")
        update.add_column("note", StringType())
    target = it.iceberg("db.t", catalog=catalog, mode="merge-on-read")
    it.delete(target, "id in (1, 5)", engine="arrow")
    new = pa.table({"id": [2, 40], "day": [dt.date(2025, 3, 1)] * 2, "amount": [1, 2], "note": ["x", "y"]})
    it.merge(new, target, on="id", engine="arrow")
    return target


ASKED = [
    {},
    {"columns": ["n", "id"]},
    {"columns": "day"},
    {"where": "id > 4 and day = date '2025-01-02'"},
    {"columns": "N", "where": "id in (1, 2, 30)"},
    {"where": "id > 1000"},
    {"where": pc.field("id") < 3},
]


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_a_dataset_has_the_rows_columns_and_types_of_read(spark, orders, rows, asked):
    frame, expected = read(spark, orders, **asked), it.read(orders, **asked).read_all()
    assert frame.columns == expected.column_names
    assert rows(frame.toArrow()) == rows(expected)


def test_partition_columns_have_their_types(spark, orders):
    assert read(spark, orders).schema.simpleString() == "struct<id:bigint,n:bigint,day:date>"
    assert read(spark, orders).where("day > date '2025-01-02'").count() == 4


@pytest.mark.parametrize(
    "asked", [{}, {"columns": ["amount", "id"]}, {"where": "id between 2 and 8", "columns": "id"}], ids=str
)
def test_an_iceberg_table_has_its_deletes_applied_and_columns_by_id(spark, iceberg, rows, asked):
    frame, expected = read(spark, iceberg, **asked), it.read(iceberg, **asked).read_all()
    assert frame.columns == expected.column_names
    assert rows(frame.toArrow()) == rows(expected)
    assert expected.num_rows in (11, 6)


def test_an_iceberg_frame_stays_the_snapshot_of_the_call(spark, iceberg):
    frame = read(spark, iceberg)
    it.delete(iceberg, "id > 5", engine="arrow")
    assert (frame.count(), read(spark, iceberg).count()) == (11, 4)


def test_only_files_that_may_match_are_read(spark, tmp_path, make_dataset):
    """What is not read may be gone."""
    path = make_dataset(tmp_path / "t", pa.table({"id": range(30)}), files=3, row_group_size=5)
    frame = read(spark, str(path), where="id between 12 and 14")
    for number in (0, 2):
        (path / f"part-0000{number}.parquet").unlink()
    assert sorted(row.id for row in frame.collect()) == [12, 13, 14]


def _scan(snapshot, where):
    from intarsia.arguments import parse_where
    from intarsia.core.expr import resolve
    from intarsia.kernel.read import SnapshotScan

    return SnapshotScan(
        snapshot, ("id",), resolve(parse_where(where, None), snapshot.schema, expect=pa.bool_())
    )


def test_the_row_groups_of_an_iceberg_file_are_pruned_where_it_is_read(iceberg, monkeypatch):
    """Its footer is not read before, so the task finds them."""
    read_groups = []
    pieces = FileReader.read_pieces

    def record(self, columns, row_group, **options):
        read_groups.append(row_group)
        return pieces(self, columns, row_group, **options)

    monkeypatch.setattr(FileReader, "read_pieces", record)
    scan = _scan(iceberg.snapshot(), "id between 8 and 9")
    first = [item for item in scan.list_files() if item[0].record_count == 12]
    assert [piece["id"].to_pylist() for item in first for piece in scan.read_pieces(item)] == [[8, 9]]
    assert read_groups == [2]


def test_the_row_groups_of_a_large_file_go_to_several_tasks(spark, tmp_path, make_dataset, monkeypatch):
    path = str(make_dataset(tmp_path / "t", pa.table({"id": range(100)}), row_group_size=10))
    monkeypatch.setattr(frames, "SPLIT_BYTES", 200)
    items = frames.split_files(_scan(it.snapshot(path), "id >= 20").list_files())
    assert len(items) > 2
    assert [group for _, verdict in items for group in verdict.row_groups] == list(range(2, 10))
    frame = read(spark, path, where="id >= 20", tasks=3)
    assert sorted(row.id for row in frame.collect()) == list(range(20, 100))


def test_a_frame_whose_files_were_replaced_refuses_rather_than_mix(spark, tmp_path, make_dataset):
    """Also where no row of the new file would match."""
    from pyspark.errors import SparkRuntimeException

    path = str(make_dataset(tmp_path / "t", pa.table({"id": range(9), "n": [0] * 9}), files=3))
    frame = read(spark, path, where="n = 0")
    it.update(path, {"n": "1"}, engine="arrow")
    with pytest.raises(SparkRuntimeException, match="replaced or removed since it was read"):
        frame.collect()
    with pytest.raises(CommitConflict, match="replaced or removed"):
        it.write(frame, str(tmp_path / "other"))


def test_a_commit_that_is_not_published_yet_is_read_as_published(spark, tmp_path, make_dataset, monkeypatch):
    from intarsia.tables.parquet.journal import Journal

    root = str(make_dataset(tmp_path / "t", pa.table({"id": range(4), "n": [0] * 4}), files=2))

    def crash(*_args):
        raise OSError("the power is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "publish", crash)
        with pytest.raises(CommitUnknown):
            it.merge(pa.table({"id": [3, 9], "n": [1, 1]}), root, on="id", engine="arrow")
    found = [(row.id, row.n) for row in read(spark, root).collect()]
    assert sorted(found) == [(0, 0), (1, 0), (2, 0), (3, 1), (9, 1)]


def test_sparks_own_timestamps_are_instants(spark, tmp_path):
    path = str(tmp_path / "t")
    spark.sql("select 1L as id, timestamp '2025-07-01 12:00:00 UTC' as at").write.parquet(path)
    theirs, ours = spark.read.parquet(path), read(spark, path)
    assert ours.schema == theirs.schema
    assert ours.collect() == theirs.collect()


def test_what_cannot_be_read_is_refused_at_once(spark, orders, tmp_path):
    with pytest.raises(NothingMatched):
        read(spark, str(tmp_path / "none"))
    with pytest.raises(ColumnNotFound, match="nope"):
        read(spark, orders, columns=["nope"])
    with pytest.raises(ColumnNotFound, match="nope"):
        read(spark, orders, where="nope = 1")
    with pytest.raises(InputError, match="SparkSession"):
        read(orders, spark)
    with pytest.raises(InputError, match="dialect="):
        read(spark, orders, dialect="spark")
