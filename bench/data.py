"""Target datasets and sources of the workloads, made by DuckDB from row numbers: always the same."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

LOW_CARDINALITY = ("quantity", "country", "status")
"""The columns for which a dictionary pays."""

FILE_ROWS = 200_000
DAYS = 30

STAY = ("id", "customer", "country", "code")
"""The columns that a later version of a row shares with the earlier one, where only some change."""
WRITERS = ("pyarrow", "spark", "duckdb", "polars")
"""Who wrote the target's files, with its defaults."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A target dataset: ``files`` of ``file_rows`` rows; row ``i`` has the id ``2 * i``."""

    name: str
    files: int
    file_rows: int
    daily: bool = False
    """Hive-partitioned by ``day``, ids ascending over the days."""
    repeated: int = 0
    """So many extra files hold newer versions of rows that are there already."""
    writer: str = "pyarrow"
    """One of ``WRITERS``."""

    @property
    def rows(self) -> int:
        return self.files * self.file_rows

    @property
    def rows_per_day(self) -> int:
        return -(-self.rows // DAYS)


def rows_sql(
    ids: str, *, version: int = 0, stay: tuple[str, ...] = STAY, rows_per_day: int | None = None
) -> str:
    """Whole rows for a query of ids in a column ``n``; a later version shares the values of ``stay``."""

    def number(column: str, salt: int) -> str:
        # 53 bits, which a double holds exactly
        return f"(hash(n, {salt}, {0 if column in stay else version}) >> 11)"

    day = "" if rows_per_day is None else f", (date '2025-01-01' + (n // {2 * rows_per_day})::int) as day"
    return f"""
        select n::bigint + {0 if "id" in stay else version * 10**12} as id,
               ({number("customer", 1)} % 100000)::int as customer,
               (1 + {number("quantity", 2)} % 50)::int as quantity,
               {number("amount", 3)}::double / 9007199254740992 * 1000 as amount,
               {number("score", 4)}::double / 9007199254740992 - 0.5 as score,
               'country-' || ({number("country", 5)} % 40) as country,
               ['new', 'paid', 'packed', 'shipped', 'returned', 'lost'][
                   1 + ({number("status", 6)} % 6)::int] as status,
               'c' || lower(hex(hash(n, 7, {0 if "code" in stay else version}))) as code,
               make_timestamp(1704067200000000 + (n // 2) * 1500000 + ({number("ts", 8)} % 1000000)::bigint
                              + {version} * 34560000000000) as ts,
               (({number("price", 9)} % 100000000)::bigint / 100)::decimal(12, 2) as price
               {day}
        from ({ids})"""


def make_target(shape: Shape, directory: Path) -> Path:
    """The dataset, made once and kept."""
    return make_once(directory / shape.name, lambda path: _write_target(shape, path))


def make_delta(target: Path, *, daily: bool) -> Path:
    """The same files as a Delta table, with statistics in its log."""
    from deltalake import Field, Schema, convert_to_deltalake
    from deltalake.schema import PrimitiveType

    def convert(path: Path) -> None:
        copy_tree(target, path)
        by_day: dict[str, Any] = {
            "partition_by": Schema([Field("day", PrimitiveType("date"))]),
            "partition_strategy": "hive",
        }
        convert_to_deltalake(str(path), **(by_day if daily else {}))

    return make_once(target.with_name(target.name + "-delta"), convert)


def make_source(name: str, sql: str, directory: Path, *, writer: str = "pyarrow") -> Path:
    """The rows of a query as one Parquet file, in the types that the writer of the target has."""

    def write(path: Path) -> None:
        path.mkdir()
        rows = run_query(sql)
        pq.write_table(_in_utc(rows) if writer == "spark" else rows, path / "source.parquet")

    return make_once(directory / name, write) / "source.parquet"


def files_hit(target: Path, source: Path, keys: tuple[str, ...]) -> list[str]:
    """The target's files that hold a key of the source, relative to it."""

    def find(path: Path) -> None:
        path.mkdir()
        rows = duckdb.execute(
            f"select distinct filename from read_parquet('{target}/**/*.parquet', filename=true) t"
            f" semi join read_parquet('{source}') s using ({', '.join(keys)}) order by 1"
        ).fetchall()
        names = [os.path.relpath(row[0], target) for row in rows]
        (path / "files.json").write_text(json.dumps(names))

    found = make_once(source.parent.with_name(source.parent.name + f"-hits-{'-'.join(keys)}"), find)
    names: list[str] = json.loads((found / "files.json").read_text())
    return names


def copy_tree(origin: Path, copy: Path) -> None:
    """A real copy: contenders change their files in place."""
    shutil.copytree(origin, copy)


def make_once(path: Path, make: Callable[[Path], None]) -> Path:
    """What ``make`` makes at a path, unless it is there; a run that was ended leaves nothing there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(path.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        make(unfinished)
        unfinished.rename(path)
    return path


def _write_target(shape: Shape, path: Path) -> None:
    path.mkdir()
    per_day = shape.rows_per_day if shape.daily else None
    for number in range(shape.files):
        start = number * shape.file_rows
        ids = f"select 2 * range as n from range({start}, {start + shape.file_rows})"
        rows = run_query(rows_sql(ids, rows_per_day=per_day))
        if not shape.daily:
            write_file(rows, path / f"part-{number:05d}.parquet", shape.writer)
            continue
        day = rows["day"][0].as_py()
        (path / f"day={day}").mkdir(exist_ok=True)
        write_file(
            rows.drop_columns(["day"]), path / f"day={day}" / f"part-{number:05d}.parquet", shape.writer
        )
    every = max(1, shape.rows // max(1, shape.repeated * shape.file_rows))
    for number in range(shape.repeated):
        start = number * shape.file_rows
        scattered = f"(range * {every} + (hash(range) % {every})::bigint)"
        ids = f"select 2 * {scattered} as n from range({start}, {start + shape.file_rows})"
        rows = run_query(rows_sql(ids, version=1))
        write_file(rows, path / f"part-{shape.files + number:05d}.parquet", shape.writer)


def write_file(table: pa.Table, path: Path, writer: str) -> None:
    """The table as a file with the writer's own defaults; all of them compress with snappy here."""
    match writer:
        case "pyarrow":
            pq.write_table(table, path)
        case "spark":
            rows = _in_utc(table)
            with pq.ParquetWriter(path, rows.schema, **_PARQUET_JAVA) as file:
                file.write_table(rows)
                file.add_key_value_metadata({"org.apache.spark.version": "4.1.4"})
        case "duckdb":
            with duckdb.connect() as connection:
                connection.register("rows", table)
                connection.execute(f"copy rows to '{path}' (format parquet)")
        case "polars":
            import polars as pl

            pl.from_arrow(table).write_parquet(path, compression="snappy")  # type: ignore[union-attr]
        case other:
            raise ValueError(other)


_PARQUET_JAVA: dict[str, Any] = {
    "compression": "snappy",
    "data_page_size": 1 << 20,
    "max_rows_per_page": 20_000,
    "dictionary_pagesize_limit": 1 << 20,
    "write_page_index": True,
    "write_page_checksum": True,
    "use_deprecated_int96_timestamps": True,
    "store_decimal_as_integer": True,
    "store_schema": False,
}
"""What Spark's writer does by default, by PyArrow: the shape of its files without a JVM. Not imitated: its
name in the footer, its schema there, and that parquet-java gives up dictionaries earlier."""


def _in_utc(table: pa.Table) -> pa.Table:
    """Spark's timestamps are instants, and stored as INT96."""
    index = table.column_names.index("ts")
    return table.set_column(index, "ts", table["ts"].cast(pa.timestamp("us", "UTC")))


def run_query(sql: str) -> Any:
    """The rows of a query as an Arrow table."""
    with duckdb.connect() as connection:
        return connection.sql(sql).to_arrow_table()
