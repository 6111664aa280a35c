"""Duplicate keys in files: which rows have to go; reads key and order columns, writes nothing.

Files that cannot share a key are searched separately, and keys that do not fit in memory one range after the
other. Within each, the most telling key column is read first; the other columns only of rows whose
value there is not the only one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.names import check_columns
from intarsia.common.schema import check_key_types, is_nested
from intarsia.core.change import Hits, Matches
from intarsia.core.keys import arange
from intarsia.core.plan import Plan
from intarsia.core.ports import Progress
from intarsia.core.rule import Drop
from intarsia.core.snapshot import DataFile
from intarsia.errors import InputError
from intarsia.kernel.duplicate_units import Cell, Cutting, Unit
from intarsia.kernel.overlay import drop_rows, positions_between, take_rows
from intarsia.kernel.read import FileReader
from intarsia.kernel.repeats import find_losers, find_repeats, key_form
from intarsia.kernel.threads import in_order, shares

_ROW, _GROUP = "\0row", "\0group"
"""Columns of our own beside those of the dataset, under names that those cannot have."""


def match_duplicates(
    plan: Plan,
    *,
    keys: Sequence[str],
    order_by: Sequence[str],
    threads: int,
    memory_bytes: int,
    progress: Progress,
    files: Sequence[DataFile] | None = None,
) -> Matches:
    """The rows to drop so that each key is there once, over all of the files.

    The row with the highest ``order_by`` stays (NULL loses, NaN is the highest number); on ties, and
    without an order, the last one in the snapshot's order of files, and of positions. NULL equals NULL, NaN
    equals NaN, and -0.0 equals 0.0. Exact whatever the memory: with less, key columns are read in
    more passes.

    Args:
        plan: its schema and files.
        keys: the key columns; none means that rows have to be equal in every column.
        order_by: columns that decide which row stays.
        threads: how many may work at once.
        memory_bytes: about how much key data to hold at once, beside the positions found.
        progress: called for each range of keys that is done.
        files: where to look; the plan's files to scan if None.

    Raises:
        KeyColumnError: a key column is not there, or of a type that cannot be compared.
        ColumnNotFound: an order column is not there.
        InputError: without keys, a column is nested; or an order column is.
    """
    chosen = [item.file for item in plan.select("scan")] if files is None else files
    chosen = plan.snapshot.in_order(file for file in chosen if file.rows)
    names = check_keys(plan, keys)
    check_order(plan, order_by)
    search = _DuplicateSearch(plan, tuple(order_by), threads, memory_bytes)
    units = Cutting(plan, names, threads, memory_bytes).units(chosen)
    outer, inner = shares(threads, len(units))

    def work(unit: Unit) -> list[tuple[DataFile, pa.Array]]:
        return replace(search, threads=inner, memory_bytes=memory_bytes // outer).losers(unit)

    found: dict[str, list[pa.Array]] = {}
    for number, losers in enumerate(in_order(work, units, threads=outer)):
        for file, positions in losers:
            found.setdefault(file.path, []).append(positions)
        progress("scan keys", number + 1, len(units))
    return drops_of(chosen, found, scanned_bytes=plan.bytes_to_scan)


def check_keys(plan: Plan, keys: Sequence[str]) -> tuple[str, ...]:
    """The columns that rows are compared in; raises for what cannot be."""
    path, schema = plan.snapshot.root, plan.schema
    if not keys:
        nested = [field.name for field in schema if is_nested(field.type)]
        if nested:
            raise InputError(
                f"{plan.operation}: rows cannot be compared in every column, since"
                f" {', '.join(map(repr, nested))} {'is' if len(nested) == 1 else 'are'} nested.",
                path=path,
                hint="name the key columns.",
            )
        keys = [field.name for field in schema if not pa.types.is_null(field.type)]
    check_key_types(schema, keys, side="dataset", operation=plan.operation, path=path)
    return tuple(dict.fromkeys(keys))


def check_order(plan: Plan, order_by: Sequence[str]) -> None:
    """Raise for what cannot decide which row stays."""
    path, schema = plan.snapshot.root, plan.schema
    check_columns(order_by, schema.names, operation=plan.operation, path=path)
    nested = [name for name in order_by if is_nested(schema.field(name).type)]
    if nested:
        raise InputError(
            f"{plan.operation}: nested columns have no order: {', '.join(map(repr, nested))}.",
            path=path,
            hint="order duplicates by columns of plain types.",
        )


def drops_of(files: Sequence[DataFile], found: dict[str, list[pa.Array]], *, scanned_bytes: int) -> Matches:
    """What it means for files that some positions of theirs have to go."""
    hits: dict[str, Hits] = {}
    dropped: set[str] = set()
    deleted = 0
    for file in files:
        parts = found.get(file.path)
        if parts is None:
            continue
        positions = parts[0]
        if len(parts) > 1:
            positions = pa.concat_arrays(parts)
            positions = positions.take(pc.array_sort_indices(positions))
        deleted += len(positions)
        if len(positions) == file.rows:  # exact: the footer of a scanned file has been read
            dropped.add(file.path)
        else:
            hits[file.path] = Hits(positions)
    return Matches((Drop(),), hits, frozenset(dropped), deleted=deleted, scanned_bytes=scanned_bytes)


@dataclass(frozen=True, slots=True)
class _Read:
    """The first key column of one file."""

    values: pa.Array
    positions: pa.Array | None
    """None when every row is there."""


@dataclass(frozen=True, slots=True)
class _DuplicateSearch:
    """Looks for duplicates; safe to use from several threads."""

    plan: Plan
    order_by: tuple[str, ...]
    threads: int
    memory_bytes: int

    def losers(self, unit: Unit) -> list[tuple[DataFile, pa.Array]]:
        """The positions that have to go, by file."""
        if not unit.keys:
            whole = self._all_alike(unit)
            rows = self._resolve(unit, self._suspects(unit, (), whole, None), count=1)
        elif unit.fits:
            rows = self._by_first_key(unit)
        else:
            rows = self._resolve(unit, self._every(unit), count=0)
        return list(_by_file(unit, rows))

    def _by_first_key(self, unit: Unit) -> pa.Array:
        """Narrow down by the first key column, then look at the rest of the rows left."""
        numbers = range(len(unit.files))
        read = list(in_order(lambda number: self._first_key(unit, number), numbers, threads=self.threads))
        values = pa.concat_arrays([part.values for part in read])
        positions = [part.positions for part in read]
        counts = [len(part.values) for part in read]
        del read
        total = len(values)
        found = find_repeats(values, threads=self.threads)
        del values
        if not found.count:
            return pa.array([], pa.int64())
        groups = pc.scatter(found.groups, found.rows, max_index=total - 1)
        parts = (positions, counts) if unit.partial else None
        suspects = self._suspects(unit, unit.keys[1:], groups, parts)
        return self._resolve(unit, suspects, count=found.count)

    def _first_key(self, unit: Unit, number: int) -> _Read:
        first = unit.keys[0]
        names = tuple(dict.fromkeys((first, *(span.column for span in unit.cell))))
        values: list[pa.Array] = []
        positions: list[pa.Array] = []
        for start, table, live in self._tables(unit, number, names):
            mask = _both(_inside(table, unit.cell), live)
            column = table[first].chunk(0)
            values.append(column if mask is None else column.filter(mask))
            inside = arange(len(column)) if mask is None else pc.indices_nonzero(mask).cast(pa.int64())
            if unit.partial:
                positions.append(pc.add(inside, pa.scalar(start, pa.int64())))
        if not values:
            dtype = key_form(pa.nulls(0, self.plan.schema.field(first).type)).type
            return _Read(pa.nulls(0, dtype), pa.array([], pa.int64()))
        return _Read(pa.concat_arrays(values), pa.concat_arrays(positions) if positions else None)

    def _all_alike(self, unit: Unit) -> pa.Array:
        """One group of all live rows, which have no column to differ in."""
        parts = []
        for file in unit.files:
            live = None
            if file.scan_task is not None:
                with FileReader(file, self.plan.schema, self.plan.snapshot.filesystem) as reader:
                    live = reader.live_rows(0, file.record_count)
            group = pa.repeat(pa.scalar(0, pa.int64()), file.record_count if live is None else len(live))
            parts.append(group if live is None else pc.scatter(group, live, max_index=file.record_count - 1))
        return pa.concat_arrays(parts)

    def _tables(
        self, unit: Unit, number: int, names: Sequence[str]
    ) -> Iterator[tuple[int, pa.Table, pa.Array | None]]:
        """Columns of a file in key form, the position of each table's first row, and which rows are live."""
        file = unit.files[number]
        wanted = unit.row_groups[number] if unit.row_groups else None
        with FileReader(file, self.plan.schema, self.plan.snapshot.filesystem) as reader:
            start = 0
            for group in range(reader.footer.num_row_groups):
                if wanted is not None and group not in wanted:
                    start += reader.footer.row_group(group).num_rows
                    continue
                for piece in reader.pieces(names, group):
                    columns = pa.table({name: key_form(piece[name]) for name in names})
                    yield start, columns, _mask(reader.live_rows(start, piece.num_rows), piece.num_rows)
                    start += piece.num_rows

    def _suspects(
        self,
        unit: Unit,
        keys: tuple[str, ...],
        groups: pa.Array,
        parts: tuple[list[pa.Array | None], list[int]] | None,
    ) -> Iterator[pa.Table]:
        """What else has to be known of the rows that have a group, file by file.

        ``groups`` has an entry for each row read: all rows of all files, or those named in ``parts``.
        """
        bases = unit.bases
        counts = [file.record_count for file in unit.files] if parts is None else parts[1]
        begins = list(accumulate(counts, initial=0))
        names = tuple(dict.fromkeys((*keys, *self.order_by)))

        def one(number: int) -> pa.Table:
            mine = groups.slice(begins[number], counts[number])
            named = None if parts is None else parts[0][number]
            positions = pc.indices_nonzero(pc.is_valid(mine)).cast(pa.int64())
            if named is not None:
                positions = named.take(positions)
            return pa.table(
                {
                    **self._at(unit.files[number], names, positions),
                    _ROW: pc.add(positions, pa.scalar(bases[number], pa.int64())),
                    _GROUP: mine.drop_null(),
                }
            )

        return in_order(one, range(len(unit.files)), threads=self.threads)

    def _at(self, file: DataFile, names: tuple[str, ...], positions: pa.Array) -> dict[str, Any]:
        """Columns in key form at some positions of a file; only row groups with one are read."""
        parts = [pa.table({name: key_form(pa.nulls(0, self.plan.schema.field(name).type)) for name in names})]
        if names and len(positions):
            with FileReader(file, self.plan.schema, self.plan.snapshot.filesystem) as reader:
                start = 0
                for group in range(reader.footer.num_row_groups):
                    stop = start + reader.footer.row_group(group).num_rows
                    if len(positions_between(positions, start, stop)):
                        for piece in reader.pieces(names, group):
                            mine = positions_between(positions, start, start + piece.num_rows)
                            parts.append(
                                take_rows(
                                    pa.table({name: key_form(piece[name]) for name in names}),
                                    pc.subtract(mine, pa.scalar(start, pa.int64())),
                                )
                            )
                            start += piece.num_rows
                    start = stop
        whole = pa.concat_tables(parts)
        return dict(zip(names, whole.columns, strict=True))

    def _every(self, unit: Unit) -> Iterator[pa.Table]:
        """All rows of a cell with all keys, for when not even the first key column fits in memory."""
        bases = unit.bases
        names = tuple(dict.fromkeys((*unit.keys, *self.order_by)))
        for number in range(len(unit.files)):
            for start, table, live in self._tables(unit, number, names):
                first = bases[number] + start
                table = table.append_column(_ROW, arange(table.num_rows, first))
                mask = _both(_inside(table, unit.cell), live)
                yield table if mask is None else table.filter(mask)

    def _resolve(self, unit: Unit, tables: Iterable[pa.Table], *, count: int) -> pa.Array:
        """The rows that lose. When memory is full, those that have lost already are let go of."""
        losers: list[pa.Array] = []
        waiting: list[pa.Table] = []
        size = kept = 0
        for table in tables:
            waiting.append(table)
            size += table.nbytes
            if size > max(self.memory_bytes // 2, 2 * kept):
                rows, rest = self._reduce(unit, waiting, count)
                losers.append(rows)
                waiting, size = [rest], rest.nbytes
                kept = size
        if waiting:
            losers.append(self._reduce(unit, waiting, count)[0])
        return pa.concat_arrays(losers) if losers else pa.array([], pa.int64())

    def _reduce(self, unit: Unit, tables: Sequence[pa.Table], count: int) -> tuple[pa.Array, pa.Table]:
        table = pa.concat_tables(tables).combine_chunks()
        grouped = _GROUP in table.column_names
        keys = unit.keys[1:] if grouped else unit.keys
        gone = find_losers(
            [_one(table, name) for name in keys],
            [_one(table, name) for name in self.order_by],
            groups=_one(table, _GROUP) if grouped else None,
            count=count,
            threads=self.threads,
        )
        return _one(table, _ROW).take(gone), drop_rows(table, gone)


def _inside(table: pa.Table, cell: Cell) -> pa.Array | None:
    mask: pa.Array | None = None
    for span in cell:
        mine = span.mask(_one(table, span.column))
        mask = mine if mask is None else pc.and_(mask, mine)
    return mask


def _both(one: pa.Array | None, other: pa.Array | None) -> pa.Array | None:
    if one is None or other is None:
        return other if one is None else one
    return pc.and_(one, other)


def _mask(rows: pa.Array | None, count: int) -> pa.Array | None:
    return None if rows is None else pc.is_in(arange(count), value_set=rows)


def _one(table: pa.Table, name: str) -> pa.Array:
    column = table[name]
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _by_file(unit: Unit, rows: pa.Array) -> Iterator[tuple[DataFile, pa.Array]]:
    """Row numbers over all files as positions in each."""
    if not len(rows):
        return
    rows = rows.take(pc.array_sort_indices(rows))
    for file, base in zip(unit.files, unit.bases, strict=False):
        mine = positions_between(rows, base, base + file.record_count)
        if len(mine):
            yield file, pc.subtract(mine, pa.scalar(base, pa.int64()))
