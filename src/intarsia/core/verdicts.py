"""What partitions and bounds prove of a predicate, file by file and row group by row group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.types import value_type
from intarsia.core.bounds import Bounds, bounds_of
from intarsia.core.expr import And, Column, Compare, Literal
from intarsia.core.expr import columns as columns_of
from intarsia.core.files import DataFile, Snapshot
from intarsia.core.intent import Predicate
from intarsia.core.keys import comparable, flat
from intarsia.core.prove import Facts, always_true, never_true

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
    if file.lens is not None:
        for name in names:
            if (value := file.lens.fixed(name)) is not None:
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


def _misses(op: str, value: Literal, bounds: Bounds, kind: pa.DataType) -> pa.BooleanArray | None:
    if value.value is None or pa.types.is_floating(kind):  # NaN is outside of every bound
        return None
    try:
        exact = value.scalar.cast(kind)
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


def _constant(value: Any, kind: pa.DataType) -> Facts:
    plain = value_type(kind)
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
