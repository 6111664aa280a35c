"""Which files and row groups may hold a key: by partition, then by bounds; unknown always means maybe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.types import value_type
from intarsia.core.bounds import Bounds, bounds_of
from intarsia.core.expr import And, Column, Compare, Literal
from intarsia.core.expr import columns as columns_of
from intarsia.core.intent import Predicate
from intarsia.core.keys import KeyIndex, comparable, decoded, flat
from intarsia.core.prove import Facts, always_true, never_true
from intarsia.core.snapshot import DataFile, Snapshot
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


Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is proven for one file; neither ``never`` nor ``always`` means: look."""

    row_groups: tuple[int, ...]
    """Those in which the predicate may be TRUE."""
    never: bool = False
    always: bool = False
    """Only ever by partition: a statistic must not decide that a row goes."""
    by: str = ""


def verdicts(where: Predicate, snapshot: Snapshot) -> list[Verdict]:
    """One verdict per file of the snapshot."""
    files = snapshot.files
    if not files or where is None or isinstance(where, pc.Expression):
        return [Verdict(_every(file)) for file in files]
    names = [path[0] for _, path in columns_of(where) if len(path) == 1]
    stored = [name for name in names if name not in snapshot.partition_columns]
    bounds = {name: bounds_of(files, name, snapshot.schema.field(name).type) for name in stored}
    judge = _Judge(where, snapshot, bounds, out_of_bounds(where, bounds, snapshot.schema))
    starts = _starts(files)
    return [judge.verdict(file, start) for file, start in zip(files, starts, strict=True)]


@dataclass(slots=True)
class _Judge:
    """Judges one predicate, file by file."""

    where: Any
    snapshot: Snapshot
    bounds: dict[str, Bounds]
    outside: list[bool] | None
    """Per row group of all files whether a bound alone excludes it; most of them in most cases."""
    anywhere: Verdict | None = None
    """What holds of a file of which no partition value is known."""

    def verdict(self, file: DataFile, start: int) -> Verdict:
        known: dict[Path, Facts] = {
            (name,): _constant(value, self.snapshot.schema.field(name).type)
            for name, value in (*file.partition.items(), *_fixed(file, self.bounds))
        }
        every = _every(file)
        by_place = self._by_place(known)
        if by_place.never or by_place.always:
            return replace(by_place, row_groups=() if by_place.never else every)
        maybe = tuple(group for number, group in enumerate(every) if self._maybe(known, start + number))
        return Verdict(maybe, never=not maybe, by="bounds")

    def _by_place(self, known: dict[Path, Facts]) -> Verdict:
        if not known and self.anywhere is not None:
            return self.anywhere
        never, always = never_true(self.where, known), always_true(self.where, known)
        found = Verdict((), never=never, always=always and not never, by="partition values")
        if not known:
            self.anywhere = found
        return found

    def _maybe(self, known: dict[Path, Facts], entry: int) -> bool:
        if self.outside is not None and self.outside[entry]:
            return False
        return not never_true(self.where, known | _facts(self.bounds, entry, self.snapshot.schema))


def _fixed(file: DataFile, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """What a table knows of columns that are the same in all rows of a file."""
    if file.scan_task is not None:
        for name in names:
            if (value := file.scan_task.constant_of(name)) is not None:
                yield name, value[0]


def out_of_bounds(where: Any, bounds: dict[str, Bounds], schema: pa.Schema) -> list[bool] | None:
    """Per row group whether some comparison that must be TRUE cannot be, judged for all of them at once.

    Only a shortcut: what it excludes, looking at each row group would exclude as well. None is unknown.
    """
    excluded: pa.Array | None = None
    for part in _conjuncts(where):
        match part:
            case Compare(op, Column((name,), None | "target"), Literal() as value) if name in bounds:
                mine = _misses(op, value, bounds[name], value_type(schema.field(name).type))
            case _:
                mine = None
        if mine is not None:
            excluded = mine if excluded is None else pc.or_(excluded, mine)
    return None if excluded is None else pc.fill_null(excluded, False).to_pylist()


def _conjuncts(where: Any) -> Iterator[Any]:
    if isinstance(where, And):
        yield from _conjuncts(where.left)
        yield from _conjuncts(where.right)
    else:
        yield where


def _misses(op: str, value: Literal, bounds: Bounds, dtype: pa.DataType) -> pa.BooleanArray | None:
    if value.value is None or pa.types.is_floating(dtype):  # NaN is outside of every bound
        return None
    try:
        exact = value.scalar.cast(dtype)
        if not exact.cast(value.scalar.type).equals(value.scalar):
            return None
        wanted = flat(comparable(pa.repeat(exact, 1)))[0]
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return None  # of another type: the prover knows more
    if wanted.type != bounds.lower.type:
        return None
    match op:
        case "=":
            return pc.or_(pc.greater(bounds.lower, wanted), pc.less(bounds.upper, wanted))
        case ">":
            return pc.less_equal(bounds.upper, wanted)
        case ">=":
            return pc.less(bounds.upper, wanted)
        case "<":
            return pc.greater_equal(bounds.lower, wanted)
        case "<=":
            return pc.greater(bounds.lower, wanted)
    return None


def _facts(bounds: dict[str, Bounds], entry: int, schema: pa.Schema) -> dict[Path, Facts]:
    return {
        (name,): Facts(
            lower=known.lower[entry] if known.lower[entry].is_valid else None,
            upper=known.upper[entry] if known.upper[entry].is_valid else None,
            null_count=known.null_count[entry].as_py(),
            rows=known.rows[entry].as_py(),
            type=value_type(schema.field(name).type),
        )
        for name, known in bounds.items()
    }


def _constant(value: Any, dtype: pa.DataType) -> Facts:
    plain = value_type(dtype)
    if value is None:
        return Facts(null_count=1, rows=1, maybe_nan=False, type=plain)
    scalar = pa.scalar(value, plain)
    nan = pa.types.is_floating(plain) and value != value
    return Facts(
        None if nan else scalar, None if nan else scalar, null_count=0, rows=1, maybe_nan=nan, type=plain
    )


def _every(file: DataFile) -> tuple[int, ...]:
    return tuple(range(file.footer.num_row_groups if file.footer is not None else 1))


def _starts(files: tuple[DataFile, ...]) -> list[int]:
    """Where each file's entries begin in the bounds."""
    starts, position = [], 0
    for file in files:
        starts.append(position)
        position += len(_every(file))
    return starts
