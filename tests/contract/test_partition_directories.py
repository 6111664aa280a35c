"""A partition that is there is used under the name its writer gave it, whatever that writer escapes."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.contract.conftest import ParquetLake

from intarsia.core.file_table import FileTuple
from intarsia.core.partitioner import PartitionDirectories
from intarsia.core.snapshot import DataFile
from intarsia.errors import UnsafePath

CITIES = [
    "New York",
    "São",
    "a/b",
    "x=y",
    "50%",
    "a+b",
    "a:b",
    "it's",
    "[x]{y}",
    "p|q^r",
    "a%20b",
    "#1",
    None,
]
ROWS = pa.table({"id": list(range(len(CITIES))), "my city": CITIES, "v": ["old"] * len(CITIES)})


def by_pyarrow(path: Path, rows: pa.Table) -> None:
    pq.write_to_dataset(rows, path, partition_cols=["my city"])


def by_duckdb(path: Path, rows: pa.Table) -> None:
    connection = duckdb.connect()
    connection.register("rows", rows)
    connection.sql(f"""copy rows to '{path}' (format parquet, partition_by ("my city"))""")


def by_polars(path: Path, rows: pa.Table) -> None:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    frame.write_parquet(path, partition_by=["my city"], mkdir=True)


def by_lower_case(path: Path, rows: pa.Table) -> None:
    """As old tools of Hive do: the digits of escapes are small letters."""
    by_pyarrow(path, rows)
    for directory in path.iterdir():
        escaped = directory.name.split("%")
        directory.rename(
            path / "%".join([escaped[0], *(part[:2].lower() + part[2:] for part in escaped[1:])])
        )


WRITERS = {"pyarrow": by_pyarrow, "duckdb": by_duckdb, "polars": by_polars, "lower case": by_lower_case}


def directories(lake: ParquetLake) -> set[str]:
    return {os.path.dirname(name) for name in lake.files}


@pytest.mark.parametrize("writer", WRITERS)
def test_new_files_go_to_the_directories_that_are_there(parquet_lake: ParquetLake, writer: str) -> None:
    WRITERS[writer](parquet_lake.root, ROWS)
    there = directories(parquet_lake)
    more = ROWS.set_column(0, "id", pa.array(range(100, 100 + len(CITIES))))
    parquet_lake.write(more)
    assert directories(parquet_lake) == there
    parquet_lake.merge(more.set_column(0, "id", pa.array(range(200, 200 + len(CITIES)))), on="id")
    assert directories(parquet_lake) == there
    parquet_lake.compact()
    assert directories(parquet_lake) == there
    parquet_lake.optimize(by=["id"])
    assert directories(parquet_lake) == there
    parquet_lake.write(ROWS.slice(0, 4), mode="overwrite_partitions")
    parquet_lake.write(ROWS, mode="overwrite")
    assert directories(parquet_lake) == there
    assert sorted(parquet_lake.own()["my city"].to_pylist(), key=str) == sorted(CITIES, key=str)
    assert len(parquet_lake.files) == len(CITIES)


def test_new_files_go_to_the_directories_that_spark_made(tmp_path: Path, spark: Any) -> None:
    lake = ParquetLake("spark", None)
    path = tmp_path / "lake"
    lake.table = type("Directory", (), {"root": path, "target": path})()
    spark.createDataFrame(ROWS.to_pandas()).write.partitionBy("my city").parquet(str(path))
    there = directories(lake)
    for engine in ("arrow", "duckdb", "spark"):
        lake.engine = engine
        lake.write(ROWS.select(["id", "v", "my city"]))
    assert directories(lake) == there
    assert {row["my city"] for row in spark.read.parquet(str(path)).collect()} == set(CITIES)


def test_a_new_partition_is_named_as_we_do_below_what_is_there(parquet_lake: ParquetLake) -> None:
    rows = pa.table({"id": [1, 2], "the city": ["New York", "Bonn"], "day": [dt.date(2024, 1, 1)] * 2})
    pq.write_to_dataset(rows, parquet_lake.root, partition_cols=["the city", "day"])
    rows = pa.table({"id": [3, 4], "the city": ["New York", "El Paso"], "day": [dt.date(2024, 1, 2)] * 2})
    parquet_lake.write(rows)
    assert directories(parquet_lake) == {
        "the city=New%20York/day=2024-01-01",
        "the city=Bonn/day=2024-01-01",
        "the city=New%20York/day=2024-01-02",
        "the city=El Paso/day=2024-01-02",
    }


def test_a_new_partition_spells_its_column_as_the_others_do(parquet_lake: ParquetLake) -> None:
    by_duckdb(parquet_lake.root, ROWS.slice(0, 1))
    parquet_lake.write(ROWS.slice(1, 1))
    assert directories(parquet_lake) == {"my%20city=New%20York", "my%20city=São"}
    found = duckdb.sql(f"from read_parquet('{parquet_lake.root}/*/*.parquet', hive_partitioning = true)")
    assert found.columns == ["id", "v", "my%20city"], "DuckDB itself sees one column, as before"


def twins(lake: ParquetLake) -> None:
    """One partition in two directories, as Spark and we would name it and as DuckDB does."""
    for number, (directory, ids) in enumerate({"city=New York": [1], "city=New%20York": [2, 3]}.items()):
        (lake.root / directory).mkdir(parents=True)
        pq.write_table(pa.table({"id": ids}), lake.root / directory / f"part-{number}.parquet")


def test_compact_brings_twins_together(parquet_lake: ParquetLake) -> None:
    twins(parquet_lake)
    assert parquet_lake.compact(target_rows_per_file=100).deleted == 0
    assert directories(parquet_lake) == {"city=New%20York"}
    assert len(parquet_lake.files) == 1
    assert not (parquet_lake.root / "city=New York").exists()
    assert sorted(parquet_lake.own()["id"].to_pylist()) == [1, 2, 3]


def test_compact_moves_a_file_that_is_large_enough_out_of_a_twin(parquet_lake: ParquetLake) -> None:
    twins(parquet_lake)
    parquet_lake.compact(target_rows_per_file=1)
    assert directories(parquet_lake) == {"city=New%20York"}
    assert sorted(parquet_lake.own()["id"].to_pylist()) == [1, 2, 3]
    again = parquet_lake.compact(target_rows_per_file=1)
    assert (again.inserted_files, again.removed_files) == ([], [])


def test_optimize_brings_twins_together(parquet_lake: ParquetLake) -> None:
    twins(parquet_lake)
    parquet_lake.optimize(by=["id"])
    assert directories(parquet_lake) == {"city=New%20York"}
    assert sorted(parquet_lake.own()["id"].to_pylist()) == [1, 2, 3]


def test_overwriting_a_partition_replaces_all_of_its_directories(parquet_lake: ParquetLake) -> None:
    twins(parquet_lake)
    parquet_lake.write(pa.table({"id": [9], "city": ["New York"]}), mode="overwrite_partitions")
    assert directories(parquet_lake) == {"city=New%20York"}
    assert parquet_lake.own()["id"].to_pylist() == [9]


def test_a_directory_of_the_empty_string_takes_more_rows_and_none_is_made(parquet_lake: ParquetLake) -> None:
    rows = pa.table({"id": [1], "city": [""]})
    (parquet_lake.root / "city=").mkdir(parents=True)
    pq.write_table(rows.select(["id"]), parquet_lake.root / "city=" / "part-0.parquet")
    (parquet_lake.root / "city=x").mkdir(parents=True)
    pq.write_table(rows.select(["id"]), parquet_lake.root / "city=x" / "part-0.parquet")
    parquet_lake.write(rows)
    assert directories(parquet_lake) == {"city=", "city=x"}
    (parquet_lake.root / "city=" / "part-0.parquet").unlink()
    parquet_lake.delete("city = ''")
    with pytest.raises(UnsafePath, match="empty"):
        parquet_lake.write(rows)


def test_names_that_are_ours_take_no_room() -> None:
    files = [DataFile(f"day={n}/city=a%2Fb/f.parquet", "", 1, 1, {"day": n, "city": "a/b"}) for n in range(9)]
    assert PartitionDirectories.of(FileTuple(files)) == PartitionDirectories()
    odd = DataFile("day=9/city=a%2fb/f.parquet", "", 1, 1, {"day": 9, "city": "a/b"})
    found = PartitionDirectories.of(FileTuple([*files, odd]))
    assert len(found.names) == 1
    assert found.choose_directory({"day": 9, "city": "a/b"}) == "day=9/city=a%2fb"
    assert found.choose_directory({"day": 10, "city": "a/b"}) == "day=10/city=a%2Fb"


def test_a_directory_that_is_no_partition_is_left_out() -> None:
    files = [DataFile("batch 1/city=New%20York/f.parquet", "", 1, 1, {"city": "New York"})]
    assert PartitionDirectories.of(FileTuple(files)).choose_directory({"city": "New York"}) == "city=New York"
