"""Which files and row groups may hold a key: by partition, then by bounds; unknown always means maybe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.bounds import Bounds, bounds_of
from intarsia.core.files import DataFile, Snapshot
from intarsia.core.keys import KeyIndex, comparable, decoded, flat
from intarsia.errors import DamagedTable


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The values of one key column on the source side, sorted."""

    values: pa.Array
    """Ascending, comparable; without NULL and NaN."""
    has_null: bool
    has_nan: bool
    span: bool = False
    """True when the values are only the ends of a range that may hold any value between them."""

    @staticmethod
    def of_index(index: KeyIndex, number: int, column: Any) -> KeyRange:
        """The same from an index over the key, which has done most of the work already."""
        ordered = index.ordered() if index.single else None
        if ordered is not None:
            return KeyRange(ordered.values, has_null=False, has_nan=False)
        known = KeyRange.of(index.distinct(number))
        return replace(known, has_null=column.null_count > 0)

    @staticmethod
    def of(column: Any) -> KeyRange:
        values = flat(decoded(comparable(column)))
        has_null = values.null_count > 0
        values = values.drop_null()
        has_nan = False
        if pa.types.is_floating(values.type):
            nan = pc.is_nan(values)
            has_nan = bool(pc.any(nan).as_py())
            values = values.filter(pc.invert(nan))
        values = pc.unique(values)
        return KeyRange(values.take(pc.array_sort_indices(values)), has_null, has_nan)

    def meets(self, bounds: Bounds, *, null_match: bool) -> pa.BooleanArray:
        """Per row group: may it hold one of these values?"""
        if self.has_nan or len(bounds.lower) == 0 or bounds.lower.type != self.values.type:
            return pa.array([True] * len(bounds.file), pa.bool_())
        inside = self._overlaps(bounds) if self.span else self._holds(bounds)
        # All values NULL: there are no bounds, and no value either.
        all_null = pc.fill_null(pc.equal(bounds.null_count, bounds.rows), False)
        inside = pc.and_(inside, pc.invert(all_null))
        if null_match and self.has_null:
            inside = pc.or_(inside, pc.fill_null(pc.greater(bounds.null_count, 0), True))
        return inside

    def _holds(self, bounds: Bounds) -> pa.BooleanArray:
        first = search(self.values, bounds.lower, side="left")
        last = search(self.values, bounds.upper, side="right")
        return pc.fill_null(pc.greater(last, first), True)

    def _overlaps(self, bounds: Bounds) -> pa.BooleanArray:
        if not len(self.values):
            return pa.array([False] * len(bounds.file), pa.bool_())
        ends = [self.values[0], self.values[len(self.values) - 1]]
        above = pc.greater_equal(bounds.upper, ends[0])
        below = pc.less_equal(bounds.lower, ends[1])
        return pc.and_(pc.fill_null(above, True), pc.fill_null(below, True))


def search(ordered: pa.Array, values: pa.Array, *, side: str) -> pa.Array:
    """Where each value would be set into ``ordered``; NULL for NULL. Any type that can be sorted."""
    if not (pa.types.is_decimal(ordered.type) or pa.types.is_fixed_size_binary(ordered.type)):
        return pc.search_sorted(ordered, values, side=side).cast(pa.int64())
    # No kernel for decimals: sort both together; ties put the values first ("left") or last.
    mark = 1 if side == "left" else -1
    both = pa.table(
        {
            "value": pa.concat_arrays([ordered, values]),
            "tie": pa.array([mark] * len(ordered) + [0] * len(values), pa.int8()),
        }
    )
    order = pc.sort_indices(both, sort_keys=[("value", "ascending"), ("tie", "ascending")])
    is_value = pc.greater_equal(order, len(ordered))
    before = pc.cumulative_sum(pc.invert(is_value).cast(pa.int64()))
    result = (
        pc.scatter(
            before.filter(is_value),
            pc.subtract(order.filter(is_value).cast(pa.int64()), len(ordered)),
            max_index=len(values) - 1,
        )
        if len(values)
        else pa.array([], pa.int64())
    )
    return pc.if_else(pc.is_valid(values), result, pa.scalar(None, pa.int64()))


def row_groups_that_may_hold(
    files: Sequence[DataFile],
    schema: pa.Schema,
    ranges: Mapping[str, KeyRange],
    *,
    null_match: bool = False,
) -> list[tuple[int, ...]]:
    """Per file the row groups that no key column's bounds exclude."""
    if not files:
        return []
    verdict: pa.BooleanArray | None = None
    bounds: Bounds | None = None
    for name, values in ranges.items():
        bounds = bounds_of(files, name, schema.field(name).type)
        meets = values.meets(bounds, null_match=null_match)
        verdict = meets if verdict is None else pc.and_(verdict, meets)
    if verdict is None or bounds is None:
        return [every_row_group(file) for file in files]
    filled = pc.greater(bounds.rows, 0)
    chosen = pc.and_(verdict, filled)
    numbers = bounds.file.filter(chosen).to_pylist()
    groups = bounds.row_group.filter(chosen).to_pylist()
    found: dict[int, list[int]] = {}  # most files hold no key
    for number, group in zip(numbers, groups, strict=True):
        found.setdefault(number, []).append(group)
    return [tuple(found.get(number, ())) for number in range(len(files))]


def every_row_group(file: DataFile) -> tuple[int, ...]:
    """The numbers of a file's row groups; one whose footer is not known counts as having one."""
    return tuple(range(file.footer.num_row_groups if file.footer is not None else 1))


@dataclass(frozen=True, slots=True)
class PartitionSet:
    """The partitions that source rows belong to."""

    columns: tuple[str, ...]
    index: KeyIndex | None = field(repr=False, default=None)
    schema: pa.Schema | None = None

    @staticmethod
    def of(table: pa.Table, columns: Sequence[str]) -> PartitionSet:
        distinct = table.select(list(columns))
        return PartitionSet(
            tuple(columns),
            KeyIndex([distinct[name] for name in columns], null_match=True) if columns else None,
            distinct.schema,
        )

    def rows_of(self, files: Sequence[DataFile]) -> list[int | None]:
        """For each file a source row of the same partition; None when there is none.

        A file whose partition is not fully known answers -1.
        """
        if self.index is None or self.schema is None:
            return [-1] * len(files)
        known = [all(name in file.partition for name in self.columns) for file in files]
        columns = [
            pa.array([file.partition.get(name) for file in files], self.schema.field(name).type)
            if not pa.types.is_dictionary(self.schema.field(name).type)
            else pa.array(
                [file.partition.get(name) for file in files], self.schema.field(name).type.value_type
            )
            for name in self.columns
        ]
        found = self.index.lookup(columns).to_pylist() if files else []
        return [row if sure else -1 for row, sure in zip(found, known, strict=True)]


def key_scan_bytes(snapshot: Snapshot, file: DataFile, columns: Sequence[str], groups: Sequence[int]) -> int:
    """The compressed bytes of some columns in some row groups of a file."""
    footer = file.footer
    if footer is None:
        return file.size
    wanted = set(columns)
    total = 0
    for group in groups:
        meta = footer.row_group(group)
        for number in range(meta.num_columns):
            chunk = meta.column(number)
            try:
                mine = chunk.path_in_schema.split(".", 1)[0] in wanted
            except UnicodeDecodeError as error:
                raise DamagedTable(
                    f"The footer of {snapshot.shown(file)} is damaged: {error}", path=snapshot.shown(file)
                ) from error
            if mine:
                total += chunk.total_compressed_size
    return total
