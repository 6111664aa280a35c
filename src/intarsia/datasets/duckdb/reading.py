"""Rows read with DuckDB; the part of a filter that DuckDB evaluates differently is evaluated by PyArrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.prove import Verdict
from intarsia.core.snapshot import DataFile
from intarsia.datasets.reading import DatasetScan, filter_rows
from intarsia.engines.duckdb.predicate import split_predicate
from intarsia.engines.duckdb.scan import Scan, number_rows
from intarsia.engines.duckdb.session import BATCH_ROWS, Session
from intarsia.engines.duckdb.sql import FILE, POS, quote_all, restore_types
from intarsia.engines.duckdb.support import explain_unreadable

__all__ = ["DuckRows"]

FILES_AT_ONCE = 64
"""Maximum files of one statement, whose text names their row groups."""

Item = tuple[DataFile, Verdict]


class DuckRows:
    """Reads with one DuckDB session, which it closes; files that DuckDB cannot read exactly, with PyArrow."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> DuckRows:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def read_rows(self, task: DatasetScan) -> Iterator[pa.Table]:
        """The rows asked for, in the order of files and of the rows in them."""
        schema = task.snapshot.schema
        for here, items in groupby(
            task.list_files(), lambda it: explain_unreadable(it[0], task.needed, schema) is None
        ):
            for some in _split_portions(list(items)):
                if here:
                    yield self._read(task, some)
                else:
                    for item in some:
                        yield from task.read_pieces(item)

    def _read(self, task: DatasetScan, items: Sequence[Item]) -> pa.Table:
        files = [file for file, _ in items]
        schema = task.snapshot.schema
        scan = Scan.of(self._session, task.snapshot, files, schema)
        picked, rest = (None, None) if task.where is None else split_predicate(task.where, schema)
        within = scan.select_row_groups([(file, verdict.row_groups) for file, verdict in items])
        conditions = [each for each in (within, picked) if each is not None]
        where = f" WHERE {' AND '.join(f'({each})' for each in conditions)}" if conditions else ""
        wanted = task.needed if rest is not None else task.columns
        sql = (
            f"SELECT {quote_all([FILE, POS, *dict.fromkeys(wanted)])}"
            f" FROM ({scan.make_sql(task.needed, keys=True)}) t{where}"
        )
        pieces = [pa.Table.from_batches([], task.schema)]
        order = [pa.array([], pa.int64())]
        for batch in self._session.read_batches(sql, min(task.wanted.batch_rows or BATCH_ROWS, BATCH_ROWS)):
            numbers = batch.column(0)
            table = restore_types(pa.Table.from_batches([batch]).select(batch.schema.names[2:]), schema)
            if rest is not None:
                table = table.append_column(POS, number_rows(files, numbers, batch.column(1)))
                table = table.append_column(FILE, numbers)
                table = filter_rows(table, rest)
                numbers = table[FILE].combine_chunks()
                order += table[POS].chunks
            else:
                order.append(number_rows(files, numbers, batch.column(1)))
            pieces.append(self._finish(task, table, files, numbers))
        return _sort_rows(pa.concat_tables(pieces), pa.concat_arrays(order))

    def _finish(
        self, task: DatasetScan, table: pa.Table, files: Sequence[DataFile], numbers: pa.Array
    ) -> pa.Table:
        columns = [table[each] for each in task.columns]
        if task.wanted.include_file_path:
            paths = pa.array([task.show_path(file) for file in files], pa.string())
            columns.append(pa.chunked_array([paths.take(numbers)]))
        return pa.Table.from_arrays(columns, schema=task.schema)


def _split_portions(items: list[Item]) -> Iterator[list[Item]]:
    for start in range(0, len(items), FILES_AT_ONCE):
        yield items[start : start + FILES_AT_ONCE]


def _sort_rows(table: pa.Table, places: pa.Array) -> pa.Table:
    """The rows sorted by place, if they are not: DuckDB may be set not to keep the order."""
    ascending = pc.less(places.slice(0, max(len(places) - 1, 0)), places.slice(1))
    if pc.all(ascending, min_count=0).as_py():
        return table
    return table.take(pc.array_sort_indices(places))
