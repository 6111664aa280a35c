"""S29: a table without rows keeps its schema and partition columns; the next write must fit them."""

from __future__ import annotations

import datetime as dt
import decimal
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.contract.conftest import Lake, ParquetLake

import intarsia as it
from intarsia.datasets.duckdb import DuckDBDatasetIO
from intarsia.datasets.pyarrow import PyarrowDatasetIO
from intarsia.errors import ColumnNotFound, InputError, NothingMatched, SchemaMismatch
from intarsia.tables.parquet import ParquetTable

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False, metadata={"PARQUET:field_id": "7", "unit": "none"}),
        pa.field("v", pa.decimal128(9, 2)),
        pa.field("day", pa.date32()),
    ],
    {"mine": "kept"},
)
ROWS = pa.table({"id": [1, 2], "v": ["1.50", "2.50"], "day": pa.array([0, 1], pa.int32())}).cast(SCHEMA)
OTHER = pa.table({"id": ["text"], "w": [1.5]})


def emptied(lake: ParquetLake, how: str) -> None:
    """A partitioned dataset that has lost its last row."""
    lake.write(ROWS, partition_by="day", compression="zstd")
    if how == "delete":
        lake.delete("true")
    elif how == "delete in two":
        lake.delete("id = 1")
        lake.delete("id = 2")
    elif how == "overwrite":
        lake.write(ROWS.slice(0, 0), mode="overwrite")
    elif how == "merge":
        lake.merge(ROWS.slice(0, 0), on="id", strategy="full_merge")
    else:
        lake.merge(ROWS, on="id", clauses=[it.when_matched().delete()])
    assert lake.files == []


HOW = ["delete", "delete in two", "overwrite", "merge", "clauses"]


@pytest.mark.parametrize("how", HOW)
def test_s29_schema_partitions_and_nullability_live_on(parquet_lake: ParquetLake, how: str) -> None:
    emptied(parquet_lake, how)
    snapshot = parquet_lake.snapshot()
    assert snapshot.exists
    assert snapshot.schema.equals(SCHEMA, check_metadata=True)
    assert snapshot.partition_columns == ("day",)
    assert it.inspect(parquet_lake.root).schema.equals(SCHEMA, check_metadata=True)
    with parquet_lake.unchanged():
        for wrong in (OTHER, ROWS.drop_columns("v"), ROWS.set_column(1, "v", pa.array(["a", "b"]))):
            with pytest.raises(SchemaMismatch, match=r'no rows but keeps its schema.*mode="overwrite"'):
                parquet_lake.merge(wrong, on="id")
            with pytest.raises(SchemaMismatch):
                parquet_lake.write(wrong)
        with pytest.raises(InputError, match="partitioned by 'day'"):
            parquet_lake.write(ROWS, partition_by="id")


def test_s29_the_next_rows_come_as_if_there_had_been_no_gap(parquet_lake: ParquetLake) -> None:
    emptied(parquet_lake, "delete")
    parquet_lake.merge(ROWS, on="id")
    assert {name.split("/")[0] for name in parquet_lake.files} == {"day=1970-01-01", "day=1970-01-02"}
    assert parquet_lake.snapshot().schema.equals(SCHEMA, check_metadata=True)
    footer = parquet_lake.footer(parquet_lake.files[0])
    assert footer.row_group(0).column(0).compression == "ZSTD", "new files are like those that there were"
    assert footer.schema.to_arrow_schema().field("id").metadata[b"PARQUET:field_id"] == b"7"


def test_s29_a_table_keeps_its_schema_without_rows(lake: Lake) -> None:
    table = pa.table({"id": pa.array([1, 2], pa.int32()), "v": ["a", "b"]})
    lake.create(table)
    lake.delete("true")
    assert lake.snapshot().schema.names == ["id", "v"]
    with pytest.raises(SchemaMismatch):
        lake.merge(pa.table({"id": ["text"], "v": ["a"]}), on="id")
    with pytest.raises(ColumnNotFound):
        lake.delete("nothing = 1")
    lake.merge(table.slice(1), on="id")
    assert lake.values("id", "v") == [(2, "b")]
    assert lake.snapshot().schema.field("id").type == pa.int32()


def test_s29_readers_get_the_empty_table(parquet_lake: ParquetLake, request: pytest.FixtureRequest) -> None:
    emptied(parquet_lake, "delete")
    for reader in (PyarrowDatasetIO(), DuckDBDatasetIO()):
        found = reader.read_parquet(parquet_lake.root)
        assert (found.num_rows, found.schema.equals(SCHEMA, check_metadata=True)) == (0, True)
        assert reader.read_parquet(parquet_lake.root, columns=["day"], filters="id = 1").schema == pa.schema(
            [SCHEMA.field("day")]
        )
    with pytest.raises(ColumnNotFound):
        PyarrowDatasetIO().read_parquet(parquet_lake.root, columns=["nothing"])
    assert it.snapshot(parquet_lake.root).dataset().to_table().schema.names == SCHEMA.names
    if parquet_lake.engine == "spark":
        from intarsia.datasets.spark import SparkDatasetIO

        frame = SparkDatasetIO(request.getfixturevalue("spark")).read_parquet(parquet_lake.root)
        assert (frame.columns, frame.count()) == (SCHEMA.names, 0)


def test_s29_commits_that_bring_nothing_forget_nothing(parquet_lake: ParquetLake) -> None:
    emptied(parquet_lake, "delete")
    for batch in range(40):  # more records than the log keeps one by one
        parquet_lake.write(ROWS.slice(0, 0), app_id="app", batch_id=batch)
    assert parquet_lake.snapshot().schema.equals(SCHEMA, check_metadata=True)
    parquet_lake.delete("id = 9")
    parquet_lake.merge(ROWS.slice(0, 0), on="id")
    assert parquet_lake.snapshot().version == 42, "what changes nothing commits nothing"
    assert parquet_lake.snapshot().partition_columns == ("day",)


def test_s29_the_log_keeps_no_value_of_a_deleted_row(parquet_lake: ParquetLake) -> None:
    parquet_lake.write(pa.table({"id": [1], "name": ["somebody"]}))
    parquet_lake.delete("true")
    control = parquet_lake.root.parent / ".lake.intarsia"
    footer = ParquetTable(parquet_lake.root).snapshot().model
    assert footer is not None
    assert footer.row_group(0).column(1).statistics is None
    assert all(b"somebody" not in path.read_bytes() for path in control.rglob("*") if path.is_file())


def test_s29_a_schema_evolves_without_rows(parquet_lake: ParquetLake) -> None:
    emptied(parquet_lake, "delete")
    wider = ROWS.slice(0, 0).append_column("w", pa.array([], pa.float64()))
    parquet_lake.write(wider, schema_evolution="add")
    assert parquet_lake.snapshot().schema.names == ["id", "v", "w", "day"]
    assert parquet_lake.snapshot().partition_columns == ("day",)


def test_s29_overwrite_begins_anew(parquet_lake: ParquetLake) -> None:
    emptied(parquet_lake, "delete")
    parquet_lake.write(OTHER.slice(0, 0), mode="overwrite", partition_by=[])
    assert (parquet_lake.snapshot().schema, parquet_lake.snapshot().partition_columns) == (OTHER.schema, ())
    parquet_lake.write(OTHER)
    assert parquet_lake.snapshot().rows == 1


def test_s29_removing_the_directory_begins_anew(parquet_lake: ParquetLake) -> None:
    emptied(parquet_lake, "delete")
    shutil.rmtree(parquet_lake.root)
    assert not parquet_lake.snapshot().exists
    assert parquet_lake.snapshot().schema.names == []
    parquet_lake.write(OTHER)
    assert parquet_lake.snapshot().schema == OTHER.schema


def test_s29_files_that_others_removed_are_told_apart(parquet_lake: ParquetLake) -> None:
    emptied(parquet_lake, "delete")
    parquet_lake.write(ROWS)
    for name in parquet_lake.files:
        (parquet_lake.root / name).unlink()
    snapshot = parquet_lake.snapshot()
    assert (snapshot.exists, snapshot.schema.names, snapshot.partition_columns) == (True, [], ())
    assert "another writer has removed all of it" in " ".join(snapshot.notes)
    parquet_lake.write(OTHER)
    assert parquet_lake.snapshot().schema == OTHER.schema


def test_s29_files_of_others_decide_once_there_are_any(parquet_lake: ParquetLake) -> None:
    emptied(parquet_lake, "delete")
    pq.write_table(OTHER, parquet_lake.root / "theirs.parquet")
    assert parquet_lake.snapshot().schema == OTHER.schema
    assert parquet_lake.snapshot().partition_columns == ()


@pytest.mark.parametrize(
    "how", ["append", "overwrite", "overwrite_partitions", "upsert", "insert", "full_merge"]
)
def test_s29_a_source_without_rows_makes_a_dataset_with_its_partitions(
    parquet_lake: ParquetLake, how: str
) -> None:
    source = ROWS.slice(0, 0)
    if how.startswith(("append", "overwrite")):
        parquet_lake.write(source, mode=how, partition_by="day")
    else:
        parquet_lake.merge(source, on="id", strategy=how, partition_by="day")
    snapshot = parquet_lake.snapshot()
    assert (snapshot.exists, snapshot.version, snapshot.partition_columns) == (True, 1, ("day",))
    assert snapshot.schema.equals(SCHEMA, check_metadata=True)
    parquet_lake.write(ROWS)
    assert {name.split("/")[0] for name in parquet_lake.files} == {"day=1970-01-01", "day=1970-01-02"}


def test_s29_a_dry_run_makes_nothing(parquet_lake: ParquetLake) -> None:
    parquet_lake.write(ROWS.slice(0, 0), partition_by="day", dry_run=True)
    assert list(parquet_lake.root.parent.iterdir()) == []


def test_nothing_is_left_by_an_operation_on_a_path_that_does_not_exist(parquet_lake: ParquetLake) -> None:
    def refused() -> None:
        with pytest.raises(NothingMatched):
            parquet_lake.delete("id = 1")
        with pytest.raises(NothingMatched):
            parquet_lake.update({"v": "0"})
        with pytest.raises(NothingMatched):
            parquet_lake.compact()
        with pytest.raises(NothingMatched):
            parquet_lake.optimize(by=["id"])
        with pytest.raises(NothingMatched):
            parquet_lake.deduplicate(on=["id"])

    refused()
    parquet_lake.merge(ROWS, on="id", strategy="update")
    parquet_lake.merge(ROWS, on="id", clauses=[it.when_matched().delete()])
    refused()
    assert list(parquet_lake.root.parent.iterdir()) == []


def test_s29_physical_types_of_other_writers_live_on(parquet_lake: ParquetLake) -> None:
    rows = pa.table(
        {
            "id": [1, 2],
            "at": pa.array([dt.datetime(2024, 1, 1), None], pa.timestamp("us", "UTC")),
            "n": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(9, 2)),
            "u": pa.array([b"0123456789abcdef"] * 2, pa.uuid()),
        }
    )
    parquet_lake.root.mkdir()
    file = parquet_lake.root / "a.parquet"
    pq.write_table(rows, file, use_deprecated_int96_timestamps=True, store_decimal_as_integer=True)
    before = parquet_lake.footer("a.parquet").schema
    parquet_lake.delete("true")
    parquet_lake.merge(rows, on="id")
    (name,) = parquet_lake.files
    assert parquet_lake.footer(name).schema.equals(before)
