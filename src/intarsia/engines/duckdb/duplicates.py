"""Duplicate keys in files: DuckDB groups keys, on disk if needed, and ranks the rows of repeated ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from intarsia.core.change import Matches
from intarsia.core.plan import Plan
from intarsia.core.ports import Progress
from intarsia.core.snapshot import DataFile
from intarsia.engines.duckdb.scan import Scan, number_rows, split_by_file
from intarsia.engines.duckdb.session import Session
from intarsia.engines.duckdb.source import normalize_key
from intarsia.engines.duckdb.sql import FILE, POS, quote
from intarsia.kernel.duplicates import check_keys, check_order, make_drops

__all__ = ["list_searched_files", "match_duplicates"]

_REPEATED = "repeated"
_HASH = "~hash"


def match_duplicates(
    plan: Plan,
    *,
    keys: Sequence[str],
    order_by: Sequence[str],
    session: Session,
    progress: Progress,
    files: Sequence[DataFile] | None = None,
) -> Matches:
    """The rows to delete so that each key occurs once in all of the files.

    Returns and raises the same as :func:`intarsia.kernel.duplicates.match_duplicates`. DuckDB has to be able
    to compare the columns (see ``support``). Memory: DuckDB's limit, and 16 bytes per row that is deleted.
    """
    chosen = list_searched_files(plan, files)
    names = check_keys(plan, keys)
    check_order(plan, order_by)
    scan = Scan.of(session, plan.snapshot, chosen, plan.schema, columns=(*names, *order_by))
    search = DuplicateSearch(scan, names, tuple(order_by))
    some = search.write_repeated()
    progress("scan keys", 1, 2)
    found = (
        split_by_file(chosen, search.find_duplicates()) if some else [pa.nulls(0, pa.int64())] * len(chosen)
    )
    progress("scan keys", 2, 2)
    positions = {file.path: [rows] for file, rows in zip(chosen, found, strict=True) if len(rows)}
    return make_drops(chosen, positions, scanned_bytes=plan.bytes_to_scan)


def list_searched_files(plan: Plan, files: Sequence[DataFile] | None = None) -> list[DataFile]:
    """The files with rows, in the order that decides which of two equal rows is the last one."""
    chosen = [item.file for item in plan.select("scan")] if files is None else files
    return plan.snapshot.sort_files(file for file in chosen if file.rows)


@dataclass(frozen=True, slots=True)
class DuplicateSearch:
    scan: Scan
    keys: tuple[str, ...]
    order_by: tuple[str, ...]

    def write_repeated(self) -> bool:
        """Write a table of the hashes that several rows have. Returns whether there are any.

        A hash takes the same memory for a key of many columns as for a number. Different keys with the same
        hash do no harm: rows are ranked among equal keys only.
        """
        session, table = self.scan.session, self.scan.session.name_table(_REPEATED)
        session.run(
            f"CREATE OR REPLACE TABLE {table} AS SELECT {self._make_key_hash()} AS {quote(_HASH)}"
            f" FROM ({self.scan.make_sql(self.keys, keys=True)}) t GROUP BY 1 HAVING count(*) > 1"
        )
        return bool(session.fetch_rows(f"SELECT count(*) FROM {table}")[0][0])

    def find_duplicates(self) -> Iterator[pa.Int64Array]:
        """The rows to delete, as row numbers over all files."""
        columns = tuple(dict.fromkeys((*self.keys, *self.order_by)))
        order = [f"{self._make_key_value(each)} DESC NULLS LAST" for each in self.order_by]
        order += [f"t.{quote(FILE)} DESC", f"t.{quote(POS)} DESC"]
        sql = (
            f"SELECT t.{quote(FILE)}, t.{quote(POS)} FROM ({self.scan.make_sql(columns, keys=True)}) t"
            f" SEMI JOIN {self.scan.session.name_table(_REPEATED)} r"
            f" ON {self._make_key_hash()} = r.{quote(_HASH)}"
            f" QUALIFY row_number() OVER (PARTITION BY {', '.join(map(self._make_key_value, self.keys))}"
            f" ORDER BY {', '.join(order)}) > 1"
        )
        with closing(self.scan.session.read_batches(sql)) as batches:
            for batch in batches:
                yield number_rows(self.scan.files, batch.column(0), batch.column(1))

    def _make_key_value(self, column: str) -> str:
        return normalize_key(f"t.{quote(column)}", self.scan.schema.field(column).type)

    def _make_key_hash(self) -> str:
        return f"hash({', '.join(map(self._make_key_value, self.keys))})"
