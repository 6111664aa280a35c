"""Duplicate keys in files: which rows to delete. Reads key and order columns, writes nothing.

The search is cut into units: sets of files that share no key and, where keys do not fit in memory, ranges of
keys. In each unit the key column with the most distinct values is read first; the other columns only for rows
whose value there is not unique.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.names import check_columns
from intarsia.common.python_values import make_scalar
from intarsia.common.radix import sort_integers
from intarsia.common.schema import check_key_types, is_nested
from intarsia.core.change import Hits, Matches
from intarsia.core.keys import arange, to_array
from intarsia.core.plan import Plan
from intarsia.core.ports import Progress
from intarsia.core.prune import read_bounds
from intarsia.core.rule import Drop
from intarsia.core.snapshot import DataFile
from intarsia.errors import InputError
from intarsia.kernel.equal_keys import (
    Cell,
    cut_cells,
    find_components,
    find_losers,
    find_repeats,
    to_key_form,
)
from intarsia.kernel.overlay import drop_rows, select_positions, take_rows
from intarsia.kernel.read import FileReader
from intarsia.kernel.sort import sample_rows
from intarsia.kernel.threads import map_in_order, share_threads

_ROW, _GROUP = "\0row", "\0group"
"""Names of added columns that no column of a dataset can have."""
_ROW_OVERHEAD = 40
"""Bytes of memory per row beside the key: codes, row numbers and masks."""
_UNKNOWN_WIDTH = 32
_GLANCE_ROWS = 1 << 14


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
    """The rows to delete so that each key occurs once in all of the files.

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
    chosen = plan.snapshot.sort_files(file for file in chosen if file.rows)
    names = check_keys(plan, keys)
    check_order(plan, order_by)
    search = _DuplicateSearch(plan, tuple(order_by), threads, memory_bytes)
    units = Cutting(plan, names, threads, memory_bytes).cut_units(chosen)
    outer, inner = share_threads(threads, len(units))

    def search_unit(unit: Unit) -> list[tuple[DataFile, pa.Array]]:
        return replace(search, threads=inner, memory_bytes=memory_bytes // outer).find_losers(unit)

    found: dict[str, list[pa.Array]] = {}
    for number, losers in enumerate(map_in_order(search_unit, units, threads=outer)):
        for file, positions in losers:
            found.setdefault(file.path, []).append(positions)
        progress("scan keys", number + 1, len(units))
    return make_drops(chosen, found, scanned_bytes=plan.bytes_to_scan)


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
    """Raise for columns that rows cannot be ordered by."""
    path, schema = plan.snapshot.root, plan.schema
    check_columns(order_by, schema.names, operation=plan.operation, path=path)
    nested = [name for name in order_by if is_nested(schema.field(name).type)]
    if nested:
        raise InputError(
            f"{plan.operation}: nested columns have no order: {', '.join(map(repr, nested))}.",
            path=path,
            hint="order duplicates by columns of plain types.",
        )


def make_drops(files: Sequence[DataFile], found: dict[str, list[pa.Array]], *, scanned_bytes: int) -> Matches:
    """The matches of a deduplication, from the positions to delete of each file."""
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
            positions = positions.take(sort_integers(positions))
        deleted += len(positions)
        if len(positions) == file.rows:  # exact, since the footer of a scanned file has been read
            dropped.add(file.path)
        else:
            hits[file.path] = Hits(positions)
    return Matches((Drop(),), hits, frozenset(dropped), deleted=deleted, scanned_bytes=scanned_bytes)


@dataclass(frozen=True, slots=True)
class Unit:
    """Some files and a range of keys that are searched together."""

    files: tuple[DataFile, ...]
    keys: tuple[str, ...]
    """The key columns that differ within the files; the one with the most distinct values first."""
    cell: Cell = ()
    fits: bool = True
    row_groups: tuple[frozenset[int], ...] = ()
    """Per file the row groups that may have keys of the cell; empty if all may."""

    @property
    def bases(self) -> list[int]:
        """The number of the first row of each file, counted over all files, and the number of all rows."""
        return list(accumulate((file.record_count for file in self.files), initial=0))

    @property
    def partial(self) -> bool:
        """Whether only some rows of the files are compared: then their positions are kept."""
        return self.cell != () or any(
            file.scan_task is not None and file.scan_task.has_deletes for file in self.files
        )


@dataclass(frozen=True, slots=True)
class Cutting:
    """Cuts the search for duplicates into units."""

    plan: Plan
    keys: tuple[str, ...]
    threads: int
    memory_bytes: int

    def cut_units(self, files: Sequence[DataFile]) -> list[Unit]:
        """Units that share no key and fit in memory together."""
        apart = [
            Unit(tuple(mine), self._find_varying_keys(mine))
            for mine in find_components(files, self.keys, self.plan.snapshot)
        ]
        costs = [self._estimate_cost(unit) for unit in apart]
        if sum(costs) <= self.memory_bytes:
            return [self._order_keys(unit) for unit in apart]
        share = max(self.memory_bytes // self.threads, 1)
        units: list[Unit] = []
        for unit, cost in zip(apart, costs, strict=True):
            units += (
                [self._order_keys(unit)] if cost <= share or not unit.keys else self._cut(unit, cost, share)
            )
        return units

    def _find_varying_keys(self, files: Sequence[DataFile]) -> tuple[str, ...]:
        """The key columns without those in the paths of all files, which are equal within a component."""
        fixed = self.plan.snapshot.partition_columns
        return tuple(
            name
            for name in self.keys
            if name not in fixed or not all(name in file.partition for file in files)
        )

    def _estimate_cost(self, unit: Unit) -> int:
        """The memory for the largest key column; any may become the first."""
        rows = unit.bases[-1]
        return rows * _ROW_OVERHEAD + 2 * max(
            (self._estimate_bytes(unit, name) for name in unit.keys), default=0
        )

    def _estimate_bytes(self, unit: Unit, name: str) -> int:
        dtype = self.plan.schema.field(name).type
        rows = unit.bases[-1]
        if pa.types.is_primitive(dtype) or pa.types.is_decimal(dtype):
            return rows * dtype.bit_width // 8
        stored = sum(_count_stored_bytes(file, name) for file in unit.files)
        return max(stored, rows * _UNKNOWN_WIDTH)  # a dictionary may hold few long strings

    def _order_keys(self, unit: Unit) -> Unit:
        if len(unit.keys) < 2:
            return unit
        largest = max(unit.files, key=lambda file: file.rows)
        sample = self._sample(unit.keys, [largest], rows=_GLANCE_ROWS, groups=1)
        return replace(unit, keys=_sort_by_distinct(sample))

    def _sample(self, names: Sequence[str], files: Sequence[DataFile], **limits: int) -> pa.Table:
        sample = sample_rows(files, names, self.plan, threads=self.threads, **limits)
        return pa.table({name: to_key_form(sample[name]) for name in names})

    def _cut(self, unit: Unit, cost: int, share: int) -> list[Unit]:
        sample = self._sample(unit.keys, unit.files)
        unit = replace(unit, keys=_sort_by_distinct(sample))
        rows = unit.bases[-1]
        most = max(1, rows * share // cost)
        found = cut_cells(sample.select(unit.keys), rows=rows, most_rows=most)
        bounds: dict[str, Any] = {}
        units = []
        for cell in found:
            for span in cell:
                if span.column not in bounds:
                    dtype = self.plan.schema.field(span.column).type
                    bounds[span.column] = read_bounds(unit.files, span.column, dtype)
            kept = sample.num_rows
            for span in cell:
                kept = min(kept, pc.sum(span.mask(to_array(sample[span.column]))).as_py() or 0)
            fits = rows * kept // max(sample.num_rows, 1) <= 2 * most
            units.append(replace(unit, cell=cell, fits=fits, row_groups=_find_row_groups(unit, cell, bounds)))
        return units


def _count_stored_bytes(file: DataFile, name: str) -> int:
    footer = file.footer
    if footer is None:
        return 0
    leaf = next((n for n in range(footer.num_columns) if footer.schema.column(n).path == name), None)
    if leaf is None:
        return 0
    return sum(
        footer.row_group(number).column(leaf).total_uncompressed_size
        for number in range(footer.num_row_groups)
    )


def _sort_by_distinct(sample: pa.Table) -> tuple[str, ...]:
    """The columns, the one with the most distinct values first."""
    counts = {name: pc.count_distinct(sample[name], mode="all").as_py() for name in sample.column_names}
    return tuple(sorted(sample.column_names, key=lambda name: -counts[name]))


def _find_row_groups(unit: Unit, cell: Cell, bounds: dict[str, Any]) -> tuple[frozenset[int], ...]:
    found: list[set[int]] = [set() for _ in unit.files]
    if not cell:
        return ()
    outside: pa.Array | None = None
    for span in cell:
        mine = span.excludes(bounds[span.column])
        outside = mine if outside is None else pc.or_(outside, mine)
    of = bounds[cell[0].column]
    inside = pc.invert(outside)
    numbers, groups = of.file.filter(inside).to_pylist(), of.row_group.filter(inside).to_pylist()
    for number, group in zip(numbers, groups, strict=True):
        found[number].add(group)
    return tuple(frozenset(groups) for groups in found)


@dataclass(frozen=True, slots=True)
class _Read:
    """The first key column of one file."""

    values: pa.Array
    positions: pa.Array | None
    """None if all rows were read."""


@dataclass(frozen=True, slots=True)
class _DuplicateSearch:
    """Finds the duplicates of a unit. Thread-safe."""

    plan: Plan
    order_by: tuple[str, ...]
    threads: int
    memory_bytes: int

    def find_losers(self, unit: Unit) -> list[tuple[DataFile, pa.Array]]:
        """The positions to delete, by file."""
        if not unit.keys:
            whole = self._number_all_rows(unit)
            rows = self._resolve(unit, self._read_suspects(unit, (), whole, None), count=1)
        elif unit.fits:
            rows = self._find_by_first_key(unit)
        else:
            rows = self._resolve(unit, self._read_every_row(unit), count=0)
        return list(_split_by_file(unit, rows))

    def _find_by_first_key(self, unit: Unit) -> pa.Array:
        """Find repeats in the first key column, then compare these rows in the other columns."""
        numbers = range(len(unit.files))
        read = list(
            map_in_order(lambda number: self._read_first_key(unit, number), numbers, threads=self.threads)
        )
        values = pa.concat_arrays([part.values for part in read])
        positions = [part.positions for part in read]
        counts = [len(part.values) for part in read]
        del read
        total = len(values)
        found = find_repeats(values, threads=self.threads)
        del values
        if not found.count:
            return pa.nulls(0, pa.int64())
        groups = pc.scatter(found.groups, found.rows, max_index=total - 1)
        parts = (positions, counts) if unit.partial else None
        suspects = self._read_suspects(unit, unit.keys[1:], groups, parts)
        return self._resolve(unit, suspects, count=found.count)

    def _read_first_key(self, unit: Unit, number: int) -> _Read:
        first = unit.keys[0]
        names = tuple(dict.fromkeys((first, *(span.column for span in unit.cell))))
        values: list[pa.Array] = []
        positions: list[pa.Array] = []
        for start, table, live in self._read_tables(unit, number, names):
            mask = _combine_masks(_find_inside(table, unit.cell), live)
            column = table[first].chunk(0)
            values.append(column if mask is None else column.filter(mask))
            inside = arange(len(column)) if mask is None else pc.indices_nonzero(mask).cast(pa.int64())
            if unit.partial:
                positions.append(pc.add(inside, make_scalar(start, pa.int64())))
        if not values:
            dtype = to_key_form(pa.nulls(0, self.plan.schema.field(first).type)).type
            return _Read(pa.nulls(0, dtype), pa.nulls(0, pa.int64()))
        return _Read(pa.concat_arrays(values), pa.concat_arrays(positions) if positions else None)

    def _number_all_rows(self, unit: Unit) -> pa.Array:
        """One group of all live rows, which have no column to differ in."""
        parts = []
        for file in unit.files:
            live = None
            if file.scan_task is not None:
                with FileReader(file, self.plan.schema, self.plan.snapshot.filesystem) as reader:
                    live = reader.find_live_rows(0, file.record_count)
            group = pa.repeat(make_scalar(0, pa.int64()), file.record_count if live is None else len(live))
            parts.append(group if live is None else pc.scatter(group, live, max_index=file.record_count - 1))
        return pa.concat_arrays(parts)

    def _read_tables(
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
                for piece in reader.read_pieces(names, group):
                    columns = pa.table({name: to_key_form(piece[name]) for name in names})
                    yield (
                        start,
                        columns,
                        _make_mask(reader.find_live_rows(start, piece.num_rows), piece.num_rows),
                    )
                    start += piece.num_rows

    def _read_suspects(
        self,
        unit: Unit,
        keys: tuple[str, ...],
        groups: pa.Array,
        parts: tuple[list[pa.Array | None], list[int]] | None,
    ) -> Iterator[pa.Table]:
        """The other columns of rows that have a group number, file by file.

        ``groups`` has an entry for each row read: all rows of all files, or those named in ``parts``.
        """
        bases = unit.bases
        counts = [file.record_count for file in unit.files] if parts is None else parts[1]
        begins = list(accumulate(counts, initial=0))
        names = tuple(dict.fromkeys((*keys, *self.order_by)))

        def read_file(number: int) -> pa.Table:
            mine = groups.slice(begins[number], counts[number])
            named = None if parts is None else parts[0][number]
            positions = pc.indices_nonzero(pc.is_valid(mine)).cast(pa.int64())
            if named is not None:
                positions = named.take(positions)
            return pa.table(
                {
                    **self._read_at(unit.files[number], names, positions),
                    _ROW: pc.add(positions, make_scalar(bases[number], pa.int64())),
                    _GROUP: mine.drop_null(),
                }
            )

        return map_in_order(read_file, range(len(unit.files)), threads=self.threads)

    def _read_at(self, file: DataFile, names: tuple[str, ...], positions: pa.Array) -> dict[str, Any]:
        """Columns in key form at some positions of a file; only row groups with one are read."""
        parts = [
            pa.table({name: to_key_form(pa.nulls(0, self.plan.schema.field(name).type)) for name in names})
        ]
        if names and len(positions):
            with FileReader(file, self.plan.schema, self.plan.snapshot.filesystem) as reader:
                start = 0
                for group in range(reader.footer.num_row_groups):
                    stop = start + reader.footer.row_group(group).num_rows
                    if len(select_positions(positions, start, stop)):
                        for piece in reader.read_pieces(names, group):
                            mine = select_positions(positions, start, start + piece.num_rows)
                            parts.append(
                                take_rows(
                                    pa.table({name: to_key_form(piece[name]) for name in names}),
                                    pc.subtract(mine, make_scalar(start, pa.int64())),
                                )
                            )
                            start += piece.num_rows
                    start = stop
        whole = pa.concat_tables(parts)
        return dict(zip(names, whole.columns, strict=True))

    def _read_every_row(self, unit: Unit) -> Iterator[pa.Table]:
        """All rows of a cell with all key columns, for a first key column that does not fit in memory."""
        bases = unit.bases
        names = tuple(dict.fromkeys((*unit.keys, *self.order_by)))
        for number in range(len(unit.files)):
            for start, table, live in self._read_tables(unit, number, names):
                first = bases[number] + start
                table = table.append_column(_ROW, arange(table.num_rows, first))
                mask = _combine_masks(_find_inside(table, unit.cell), live)
                yield table if mask is None else table.filter(mask)

    def _resolve(self, unit: Unit, tables: Iterable[pa.Table], *, count: int) -> pa.Array:
        """The rows to delete. Rows that are found already are dropped when memory is full."""
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
        return pa.concat_arrays(losers) if losers else pa.nulls(0, pa.int64())

    def _reduce(self, unit: Unit, tables: Sequence[pa.Table], count: int) -> tuple[pa.Array, pa.Table]:
        table = pa.concat_tables(tables).combine_chunks()
        grouped = _GROUP in table.column_names
        keys = unit.keys[1:] if grouped else unit.keys
        gone = find_losers(
            [_to_array(table, name) for name in keys],
            [_to_array(table, name) for name in self.order_by],
            groups=_to_array(table, _GROUP) if grouped else None,
            count=count,
            threads=self.threads,
        )
        return _to_array(table, _ROW).take(gone), drop_rows(table, gone)


def _find_inside(table: pa.Table, cell: Cell) -> pa.Array | None:
    mask: pa.Array | None = None
    for span in cell:
        mine = span.mask(_to_array(table, span.column))
        mask = mine if mask is None else pc.and_(mask, mine)
    return mask


def _combine_masks(one: pa.Array | None, other: pa.Array | None) -> pa.Array | None:
    if one is None or other is None:
        return other if one is None else one
    return pc.and_(one, other)


def _make_mask(rows: pa.Array | None, count: int) -> pa.Array | None:
    return None if rows is None else pc.is_in(arange(count), value_set=rows)


def _to_array(table: pa.Table, name: str) -> pa.Array:
    column = table[name]
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _split_by_file(unit: Unit, rows: pa.Array) -> Iterator[tuple[DataFile, pa.Array]]:
    """The positions in each file of row numbers that count over all files."""
    if not len(rows):
        return
    rows = rows.take(sort_integers(rows))
    for file, base in zip(unit.files, unit.bases, strict=False):
        mine = select_positions(rows, base, base + file.record_count)
        if len(mine):
            yield file, pc.subtract(mine, make_scalar(base, pa.int64()))
