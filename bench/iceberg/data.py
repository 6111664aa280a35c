"""The table: half of its rows under ``day(ts)``, half under ``day(ts), region``; and the rows that come."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg.transforms import DayTransform

import intarsia as it
from intarsia.tables.iceberg.catalog import embedded_catalog

NAME = "bench.events"
DAYS = 30
FILE_ROWS = 200_000
PIECE_ROWS = 1_000_000
SOURCE_ROWS = 100_000
"""A tenth of them is new."""


def rows_sql(ids: str, rows: int, *, version: int = 1) -> str:
    """Rows for a query of ids in a column ``n``: about ten columns of the usual kinds."""
    return f"""
        select n::bigint as id,
               timestamp '2025-01-01' + to_milliseconds((n % {rows}) * {DAYS} * 86400000 // {rows}) as ts,
               ['eu', 'us', 'ap'][1 + (hash(n, 1) % 3)::int] as region,
               (hash(n, 2) % 100000)::int as customer,
               (1 + hash(n, 3, {version}) % 50)::int as quantity,
               (hash(n, 4, {version}) >> 11)::double / 9007199254740992 * 1000 as amount,
               ['new', 'paid', 'packed', 'shipped', 'returned', 'lost'][1 + (hash(n, 5) % 6)::int] as status,
               'c' || lower(hex(hash(n, 6))) as code,
               ((hash(n, 7, {version}) % 100000000)::bigint / 100)::decimal(12, 2) as price,
               {version}::int as version
        from ({ids})"""


@dataclass(frozen=True, slots=True)
class Lake:
    """A warehouse directory with the table, made once and kept."""

    directory: Path
    rows: int

    @property
    def catalog(self) -> Any:
        return embedded_catalog(self.directory)

    @property
    def source(self) -> Path:
        return self.directory / "source.parquet"

    @property
    def snapshot(self) -> int:
        """The one that every pass begins with."""
        return int((self.directory / "made").read_text())

    def make(self) -> Lake:
        done = self.directory / "made"
        if not done.exists():
            shutil.rmtree(self.directory, ignore_errors=True)
            self._fill()
            os.sync()
            done.write_text(str(self.catalog.load_table(NAME).metadata.current_snapshot_id))
        return self

    def set_mode(self, mode: str) -> None:
        """Have all operations of the table merge on read, or copy on write."""
        with self.catalog.load_table(NAME).transaction() as change:
            change.set_properties({f"write.{word}.mode": mode for word in ("delete", "update", "merge")})

    def _fill(self) -> None:
        catalog = self.catalog
        catalog.create_namespace("bench")
        empty = _query(rows_sql("select range as n from range(0)", self.rows))
        table = catalog.create_table(NAME, empty.schema)
        with table.update_spec() as update:
            update.add_field("ts", DayTransform(), "ts_day")
        for start in range(0, self.rows, PIECE_ROWS):
            if start == self.rows // 2 // PIECE_ROWS * PIECE_ROWS:
                with catalog.load_table(NAME).update_spec() as update:
                    update.add_identity("region")
            stop = min(start + PIECE_ROWS, self.rows)
            piece = _query(rows_sql(f"select range as n from range({start}, {stop})", self.rows))
            it.write(piece, catalog.load_table(NAME), max_rows_per_file=FILE_ROWS, progress=False)
        step = self.rows // SOURCE_ROWS
        ids = (
            f"select range * {step} + (hash(range) % {step})::bigint as n from range({SOURCE_ROWS * 9 // 10})"
        )
        new = f"select {self.rows} + range * 7 as n from range({SOURCE_ROWS // 10})"
        rows = rows_sql(f"select n from ({ids} union all {new}) order by hash(n)", self.rows, version=2)
        duckdb.execute(f"copy ({rows}) to '{self.source}' (format parquet)")


def find_mode(workload: str) -> str:
    return "copy-on-write" if workload.endswith("-cow") else "merge-on-read"


def _query(sql: str) -> pa.Table:
    return duckdb.sql(sql).to_arrow_table()


EXPECTED = {
    "merge": "select * from source union all select * from events anti join source using (id)",
    "delete": "select * from events where id % 100 <> 17",
    "update": "select * replace (case when id % 100 = 17 then quantity + 1 else quantity end as quantity)"
    " from events",
}
CHECKS = "count(*), sum(id), sum(quantity), sum(price), sum(version), min(ts), max(ts)"


def expected(lake: Lake, workload: str) -> list[str]:
    """What must be in the table afterwards, worked out from the rows themselves and not from the table."""
    events = rows_sql(f"select range as n from range({lake.rows})", lake.rows)
    sql = f"""with events as ({events}), source as (select * from read_parquet('{lake.source}'))
              select {CHECKS} from ({EXPECTED[workload.removesuffix("-cow")]})"""
    return _texts(duckdb.sql(sql).fetchall())


def _texts(rows: list[tuple[Any, ...]]) -> list[str]:
    return [str(value) for value in rows[0]]


def found(lake: Lake) -> list[str]:
    """The same of the table, read by PyIceberg."""
    columns = ("id", "quantity", "price", "version", "ts")
    reader = lake.catalog.load_table(NAME).scan(selected_fields=columns).to_arrow_batch_reader()
    return _texts(duckdb.from_arrow(reader).aggregate(CHECKS).fetchall())
