"""Files and row groups in which a predicate can be TRUE, proven from bounds; reads no data, never guesses."""

from __future__ import annotations

import datetime
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from intarsia.common.python_values import make_scalar
from intarsia.common.types import get_value_type
from intarsia.core.expr.kernels import ANY, ONE, mirror_operator, split_like_pattern
from intarsia.core.expr.nodes import (
    And,
    Cast,
    Column,
    Compare,
    CompareOp,
    Expr,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    find_columns,
    split_conjuncts,
)
from intarsia.core.expr.types import DAY_NANOS, NANOS, is_widening
from intarsia.core.intent import Predicate
from intarsia.core.keys import to_array, to_comparable
from intarsia.core.prune import Bounds, list_row_groups, read_bounds
from intarsia.core.snapshot import DataFile, Snapshot

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one column in some rows.

    ``lower`` and ``upper`` include every value that is neither NULL nor NaN; they may be wider than
    the values, and None is unknown. They are Python values or pyarrow scalars. ``type`` is the
    column's, where it is known. ``maybe_nan`` only matters for floats.
    """

    lower: Any = None
    upper: Any = None
    null_count: int | None = None
    rows: int | None = None
    maybe_nan: bool = True
    type: pa.DataType | None = None

    @classmethod
    def from_constant(cls, value: Any, rows: int | None = None, type: pa.DataType | None = None) -> Facts:
        """The facts of a column with one value in every row, as a partition column has."""
        if value is None or (isinstance(value, pa.Scalar) and not value.is_valid):
            return cls(null_count=rows or 1, rows=rows or 1, maybe_nan=False, type=type)
        return cls(value, value, 0, rows or 1, _is_nan(value), type)


KnownFacts = Mapping[Path, Facts]
"""Facts by the column's path; a column that is not there is unknown."""


def is_never_true(expr: Expr, bounds: KnownFacts) -> bool:
    """True only where it is proven that the predicate is TRUE in none of the rows.

    The predicate must be resolved. Source columns of a merge are unknown.
    """
    return not _find_truth_values(expr, bounds).true


def is_always_true(expr: Expr, bounds: KnownFacts) -> bool:
    """True only where it is proven that the predicate is TRUE in each of the rows."""
    outcome = _find_truth_values(expr, bounds)
    return not outcome.false and not outcome.null


@dataclass(frozen=True, slots=True)
class _TruthValues:
    """Which of SQL's three truth values may occur."""

    true: bool = True
    false: bool = True
    null: bool = True


_UNKNOWN = _TruthValues()


def _find_truth_values(expr: Expr, bounds: KnownFacts) -> _TruthValues:
    match expr:
        case Literal(value) if value is None or isinstance(value, bool):
            return _TruthValues(value is True, value is False, value is None)
        case Not(operand):
            return _negate(_find_truth_values(operand, bounds))
        case And(left, right):
            return _combine_and(_find_truth_values(left, bounds), _find_truth_values(right, bounds))
        case Or(left, right):
            return _combine_or(_find_truth_values(left, bounds), _find_truth_values(right, bounds))
        case IsNull(operand):
            facts = _find_facts(operand, bounds)
            return (
                _UNKNOWN
                if facts is None
                else _TruthValues(_may_be_null(facts), _may_have_value(facts), False)
            )
        case Compare(op, left, right) if left == right:
            same = _find_truth_values(
                Not(IsNull(left)), bounds
            )  # NaN equals itself, so only NULL is an exception
            holds = op in ("=", "<=", ">=")
            return _TruthValues(same.true and holds, same.true and not holds, same.false)
        case Compare(op, left, right):
            return _prove_comparison(op, _find_facts(left, bounds), _find_facts(right, bounds))
        case In(operand, items, negated):
            member = _prove_membership(
                _find_facts(operand, bounds), [_find_facts(item, bounds) for item in items]
            )
            return _negate(member) if negated else member
        case Like(operand, Literal(str() as pattern), False, escape):
            return _prove_prefix(_find_facts(operand, bounds), pattern, escape)
        case Column():
            return _prove_comparison("=", _find_facts(expr, bounds), Facts.from_constant(True))
    return _UNKNOWN


def _combine_and(left: _TruthValues, right: _TruthValues) -> _TruthValues:
    return _TruthValues(
        left.true and right.true,
        left.false or right.false,
        (left.null and (right.null or right.true)) or (right.null and (left.null or left.true)),
    )


def _negate(outcome: _TruthValues) -> _TruthValues:
    return _TruthValues(outcome.false, outcome.true, outcome.null)


def _combine_or(left: _TruthValues, right: _TruthValues) -> _TruthValues:
    return _negate(_combine_and(_negate(left), _negate(right)))


def _find_facts(expr: Expr, bounds: KnownFacts) -> Facts | None:
    """The facts of a column or a constant, with bounds that Python can compare."""
    match expr:
        case Literal(value, type):
            return _to_comparable(replace(Facts.from_constant(value), type=type))
        case Column(path, side) if side != "source" and path in bounds:
            return _to_comparable(bounds[path])
        case Cast(Column() as column, type):
            facts = _find_facts(column, bounds)
            if facts is not None and facts.type is not None and is_widening(facts.type, type):
                return facts
    return None


def _to_comparable(facts: Facts) -> Facts:
    lower, upper = _to_sort_key(facts.lower, facts.type), _to_sort_key(facts.upper, facts.type)
    if _is_nan(lower) or _is_nan(upper):  # some writers let a NaN into the bounds, which then say nothing
        return replace(facts, lower=None, upper=None, maybe_nan=True)
    return replace(facts, lower=lower, upper=upper, maybe_nan=facts.maybe_nan and _may_be_float(facts))


def _may_be_float(facts: Facts) -> bool:
    if facts.type is not None:
        return pt.is_floating(facts.type)
    known = [bound for bound in (facts.lower, facts.upper) if bound is not None]
    return not known or any(isinstance(bound, float | pa.FloatScalar | pa.DoubleScalar) for bound in known)


def _to_sort_key(value: Any, type: pa.DataType | None) -> Any:
    """A value that orders as the column does; moments and spans of time become nanoseconds."""
    if isinstance(value, pa.Scalar):
        if not value.is_valid:
            return None
        if pt.is_temporal(value.type) and not pt.is_interval(value.type):
            return _to_nanos(value.value, value.type)
        return _to_sort_key(value.as_py(), None)
    if isinstance(value, datetime.datetime):
        zone = value.tzinfo or datetime.UTC
        since = value.replace(tzinfo=zone) - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        return _to_span_nanos(since)
    if isinstance(value, datetime.date):
        return (value - datetime.date(1970, 1, 1)).days * DAY_NANOS
    if isinstance(value, datetime.timedelta):
        return _to_span_nanos(value)
    if isinstance(value, datetime.time):
        return _to_span_nanos(datetime.datetime.combine(datetime.date.min, value) - datetime.datetime.min)
    plain_int = isinstance(value, int) and not isinstance(value, bool)
    if plain_int and type is not None and pt.is_temporal(type) and not pt.is_interval(type):
        return _to_nanos(value, type)
    return value


def _to_nanos(ticks: int, type: pa.DataType) -> int:
    if pt.is_date32(type):
        return ticks * DAY_NANOS
    return ticks * NANOS["ms" if pt.is_date64(type) else type.unit]


def _to_span_nanos(delta: datetime.timedelta) -> int:
    return (delta.days * 86_400 + delta.seconds) * 10**9 + delta.microseconds * 1000


def _is_nan(value: Any) -> bool:
    value = value.as_py() if isinstance(value, pa.FloatScalar | pa.DoubleScalar) else value
    return isinstance(value, float) and math.isnan(value)


def _may_be_null(facts: Facts) -> bool:
    return facts.null_count != 0


def _may_have_value(facts: Facts) -> bool:
    return facts.null_count is None or facts.rows is None or facts.null_count < facts.rows


def _prove_comparison(op: CompareOp, left: Facts | None, right: Facts | None) -> _TruthValues:
    if left is None or right is None:
        return _UNKNOWN
    null = _may_be_null(left) or _may_be_null(right)
    if not (_may_have_value(left) and _may_have_value(right)):
        return _TruthValues(False, False, null)
    try:
        return _TruthValues(_is_possible(op, left, right), _is_possible(_OPPOSITE[op], left, right), null)
    except TypeError:  # bounds of another kind than the constant prove nothing
        return _UNKNOWN


_OPPOSITE: dict[CompareOp, CompareOp] = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def _is_possible(op: CompareOp, left: Facts, right: Facts) -> bool:
    """Whether some value within the bounds of each makes the comparison hold."""
    if op in (">", ">="):
        return _is_possible(mirror_operator(op), right, left)
    if op == "=":
        overlap = _reach(operator.le, left, right) and _reach(operator.le, right, left)
        return overlap or (left.maybe_nan and right.maybe_nan)
    if op == "<>":
        return not (
            _is_single(left)
            and _is_single(right)
            and _check_same_kind(left.lower, right.lower) == right.lower
        )
    # NaN is greater than every number, so on the right it makes anything smaller.
    return right.maybe_nan or _reach(operator.lt if op == "<" else operator.le, left, right)


def _reach(test: Callable[[Any, Any], bool], left: Facts, right: Facts) -> bool:
    """Whether the test may hold of a value on the left and one on the right."""
    if left.lower is None or right.upper is None:
        return True
    return test(_check_same_kind(left.lower, right.upper), right.upper)


def _is_single(facts: Facts) -> bool:
    return facts.lower is not None and not facts.maybe_nan and bool(facts.lower == facts.upper)


def _check_same_kind(value: Any, other: Any) -> Any:
    """The value, if it can be compared with the other; Python would also compare 1 with True."""
    numbers = (int, float, Decimal)
    booleans = isinstance(value, bool), isinstance(other, bool)
    if booleans[0] != booleans[1]:
        raise TypeError("a boolean is not a number")
    if type(value) is not type(other) and not (isinstance(value, numbers) and isinstance(other, numbers)):
        raise TypeError("values of different kinds")
    return value


def _prove_membership(operand: Facts | None, items: list[Facts | None]) -> _TruthValues:
    """x IN (a, b) is x = a OR x = b."""
    if operand is None:
        return _UNKNOWN
    outcome = _TruthValues(False, _may_have_value(operand), _may_be_null(operand))
    for item in items:
        outcome = _combine_or(outcome, _prove_comparison("=", operand, item))
    return outcome


def _prove_prefix(facts: Facts | None, pattern: str, escape: str | None) -> _TruthValues:
    parts = split_like_pattern(pattern, escape)
    texts = facts is not None and all(isinstance(bound, str | None) for bound in (facts.lower, facts.upper))
    if facts is None or not texts or not parts or parts[0] is ANY or parts[0] is ONE:
        return _UNKNOWN
    prefix = parts[0]
    if len(parts) == 1:
        return _prove_comparison("=", facts, Facts.from_constant(prefix))
    null = _may_be_null(facts)
    if not _may_have_value(facts):
        return _TruthValues(False, False, null)
    possible = _may_begin(facts, prefix)
    whole = len(parts) == 2 and parts[1] is ANY
    inside = all(isinstance(bound, str) and bound.startswith(prefix) for bound in (facts.lower, facts.upper))
    return _TruthValues(possible, not (whole and inside), null)


def _may_begin(facts: Facts, prefix: str) -> bool:
    """Whether some text between the bounds begins with the prefix."""
    too_high = facts.lower is not None and facts.lower > prefix and not facts.lower.startswith(prefix)
    too_low = facts.upper is not None and facts.upper < prefix
    return not (too_high or too_low)


# The files of a snapshot, and their row groups


def list_predicate_columns(where: Predicate, schema: pa.Schema) -> list[str]:
    """The columns that a predicate reads; all of them for a pyarrow expression, which does not say."""
    if isinstance(where, pc.Expression):
        return list(schema.names)
    used = {path[0] for _, path in find_columns(where)} if where is not None else set()
    chosen = [name for name in schema.names if name in used]
    return chosen or list(schema.names[:1])


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is proven for one file; with neither ``never`` nor ``always`` it has to be read."""

    row_groups: tuple[int, ...]
    """Those in which the predicate may be TRUE."""
    never: bool = False
    always: bool = False
    """Only ever by partition: a statistic must not decide that rows are deleted."""
    by: str = ""


def judge_files(where: Predicate, snapshot: Snapshot) -> list[Verdict]:
    """One verdict per file of the snapshot."""
    files = snapshot.files
    if not files or where is None or isinstance(where, pc.Expression):
        return [Verdict(list_row_groups(file)) for file in files]
    names = [path[0] for _, path in find_columns(where) if len(path) == 1]
    stored = [name for name in names if name not in snapshot.partition_columns]
    bounds = {name: read_bounds(files, name, snapshot.schema.field(name).type) for name in stored}
    judge = _Judge(where, snapshot, bounds, find_out_of_bounds(where, bounds, snapshot.schema))
    starts = _starts(files)
    return [judge.judge(file, start) for file, start in zip(files, starts, strict=True)]


@dataclass(slots=True)
class _Judge:
    """Judges one predicate, file by file."""

    where: Any
    snapshot: Snapshot
    bounds: dict[str, Bounds]
    outside: list[bool] | None
    """Per row group of all files whether a bound alone excludes it, as is usual."""
    anywhere: Verdict | None = None
    """The verdict by partition for files without known partition values."""

    def judge(self, file: DataFile, start: int) -> Verdict:
        known: dict[Path, Facts] = {
            (name,): _make_constant(value, self.snapshot.schema.field(name).type)
            for name, value in (*file.partition.items(), *_iterate_constants(file, self.bounds))
        }
        every = list_row_groups(file)
        by_place = self._judge_by_partition(known)
        if by_place.never or by_place.always:
            return replace(by_place, row_groups=() if by_place.never else every)
        maybe = tuple(group for number, group in enumerate(every) if self._may_match(known, start + number))
        return Verdict(maybe, never=not maybe, by="bounds")

    def _judge_by_partition(self, known: dict[Path, Facts]) -> Verdict:
        if not known and self.anywhere is not None:
            return self.anywhere
        never, always = is_never_true(self.where, known), is_always_true(self.where, known)
        found = Verdict((), never=never, always=always and not never, by="partition values")
        if not known:
            self.anywhere = found
        return found

    def _may_match(self, known: dict[Path, Facts], entry: int) -> bool:
        if self.outside is not None and self.outside[entry]:
            return False
        return not is_never_true(
            self.where, known | _row_group_facts(self.bounds, entry, self.snapshot.schema)
        )


def _iterate_constants(file: DataFile, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Columns that have one value in all rows of a file, as the table knows."""
    if file.scan_task is not None:
        for name in names:
            if (value := file.scan_task.get_constant(name)) is not None:
                yield name, value[0]


def find_out_of_bounds(where: Any, bounds: dict[str, Bounds], schema: pa.Schema) -> list[bool] | None:
    """Per row group whether some comparison that must be TRUE cannot be, judged for all of them at once.

    Only a shortcut: proving each row group by itself excludes the same. None is unknown.
    """
    excluded: pa.Array | None = None
    for part in split_conjuncts(where):
        match part:
            case Compare(op, Column((name,), None | "target"), Literal() as value) if name in bounds:
                mine = _misses(op, value, bounds[name], get_value_type(schema.field(name).type))
            case _:
                mine = None
        if mine is not None:
            excluded = mine if excluded is None else pc.or_(excluded, mine)
    return None if excluded is None else pc.fill_null(excluded, make_scalar(False)).to_pylist()


def _misses(op: str, value: Literal, bounds: Bounds, dtype: pa.DataType) -> pa.BooleanArray | None:
    if value.value is None or pa.types.is_floating(dtype):  # NaN is outside of every bound
        return None
    try:
        exact = value.scalar.cast(dtype)
        if not exact.cast(value.scalar.type).equals(value.scalar):
            return None
        wanted = to_array(to_comparable(pa.repeat(exact, 1)))[0]
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return None  # of another type: left to the proof per row group
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


def _row_group_facts(bounds: dict[str, Bounds], entry: int, schema: pa.Schema) -> dict[Path, Facts]:
    return {
        (name,): Facts(
            lower=known.lower[entry] if known.lower[entry].is_valid else None,
            upper=known.upper[entry] if known.upper[entry].is_valid else None,
            null_count=known.null_count[entry].as_py(),
            rows=known.rows[entry].as_py(),
            type=get_value_type(schema.field(name).type),
        )
        for name, known in bounds.items()
    }


def _make_constant(value: Any, dtype: pa.DataType) -> Facts:
    plain = get_value_type(dtype)
    if value is None:
        return Facts(null_count=1, rows=1, maybe_nan=False, type=plain)
    scalar = make_scalar(value, plain)
    nan = pa.types.is_floating(plain) and value != value
    return Facts(
        None if nan else scalar, None if nan else scalar, null_count=0, rows=1, maybe_nan=nan, type=plain
    )


def _starts(files: Sequence[DataFile]) -> list[int]:
    """Where each file's entries begin in the bounds."""
    starts, position = [], 0
    for file in files:
        starts.append(position)
        position += len(list_row_groups(file))
    return starts
