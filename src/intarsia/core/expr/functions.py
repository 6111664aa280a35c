"""The SQL functions of expressions: argument types and implementations; docs/sql.md lists them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from intarsia.core.expr import texts, times
from intarsia.core.expr.casts import cast, round_number
from intarsia.core.expr.kernels import Value, compare
from intarsia.core.expr.nodes import CompareOp
from intarsia.core.expr.types import (
    BOOL,
    DATE,
    FLOAT64,
    INT64,
    LARGE_STRING,
    STRING,
    is_bytes,
    is_number,
    is_text,
    make_decimal,
)

# Signatures: how many arguments, of which types, and the type of the result

Types = Sequence[pa.DataType]
Rule = Callable[[Types], tuple[Types, pa.DataType] | None]
"""Given the arguments' types: the types to cast them to and the result's, or None if they are wrong."""


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """One function: how many arguments, which types, and how to compute it.

    ``alike`` arguments are first brought to one common type. ``constant`` are the positions that reach
    ``run`` as Python values: constants, or at the positions ``varying`` also columns of few distinct values.
    """

    takes: str
    about: str
    rule: Rule
    run: Callable[..., Value]
    constant: frozenset[int] = frozenset()
    varying: frozenset[int] = frozenset()
    alike: bool = False

    @property
    def least(self) -> int:
        """The minimum number of arguments."""
        return len(self.takes.split("[")[0].replace(", ...", "").split(", "))

    @property
    def most(self) -> int | None:
        """The maximum number of arguments; None for no limit."""
        return None if "..." in self.takes else len(self.takes.split(", "))


def _choose_text_type(types: Types) -> pa.DataType:
    return LARGE_STRING if any(pt.is_large_string(type) for type in types) else STRING


def make_text_rule(result: pa.DataType | None, *dtypes: pa.DataType) -> Rule:
    """Text arguments; ``dtypes`` are the types of those after the first, where they are integers."""

    def rule(types: Types) -> tuple[Types, pa.DataType] | None:
        asked = [STRING, *dtypes, *[STRING] * len(types)][: len(types)]
        pairs = list(zip(types, asked, strict=True))
        for type, dtype in pairs:
            if not (pt.is_null(type) or (is_text(type) if dtype == STRING else pt.is_integer(type))):
                return None
        wide = _choose_text_type([type for type, dtype in pairs if dtype == STRING])
        return [wide if dtype == STRING else dtype for dtype in asked], result or wide

    return rule


def resolve_concat(types: Types) -> tuple[Types, pa.DataType] | None:
    wide = _choose_text_type(types)
    return [wide] * len(types), wide


def make_number_rule(result: pa.DataType | None) -> Rule:
    def rule(types: Types) -> tuple[Types, pa.DataType] | None:
        if not is_number(types[0]) or not all(pt.is_integer(type) for type in types[1:]):
            return None
        first = pa.float64() if pt.is_floating(types[0]) else types[0]
        return [first, *types[1:]], result or first

    return rule


def round_rule(types: Types) -> tuple[Types, pa.DataType] | None:
    found = make_number_rule(None)(types)
    if found is not None and pt.is_integer(types[0]):
        wide = types[0] if types[0].bit_width == 64 else INT64
        return [wide, *types[1:]], wide
    if found is None or not pt.is_decimal(types[0]):
        return found
    return types, make_decimal(min(types[0].precision + 1, 76), types[0].scale)


def make_float_rule(result: pa.DataType) -> Rule:
    def rule(types: Types) -> tuple[Types, pa.DataType] | None:
        known = all(is_number(type) or pt.is_null(type) for type in types)
        return ([FLOAT64] * len(types), result) if known else None

    return rule


def resolve_same_type(types: Types) -> tuple[Types, pa.DataType]:
    return types, types[0]


def resolve_hash(types: Types) -> tuple[Types, pa.DataType] | None:
    dtype = STRING if pt.is_null(types[0]) else types[0]
    return ([dtype], STRING) if is_text(dtype) or is_bytes(dtype) else None


def _is_day(type: pa.DataType) -> bool:
    return pt.is_date(type) or pt.is_timestamp(type)


def resolve_part(types: Types) -> tuple[Types, pa.DataType] | None:
    return (types, INT64) if _is_day(types[1]) or pt.is_time(types[1]) else None


def resolve_trunc(types: Types) -> tuple[Types, pa.DataType] | None:
    return (types, types[1]) if _is_day(types[1]) else None


def resolve_diff(types: Types) -> tuple[Types, pa.DataType] | None:
    return (types, INT64) if _is_day(types[1]) and _is_day(types[2]) else None


def make_day_rule(result: pa.DataType, *, times: bool = False) -> Rule:
    def rule(types: Types) -> tuple[Types, pa.DataType] | None:
        return (types, result) if _is_day(types[0]) or (times and pt.is_time(types[0])) else None

    return rule


def make_fixed_rule(*dtypes: pa.DataType, to: pa.DataType) -> Rule:
    def rule(types: Types) -> tuple[Types, pa.DataType] | None:
        for dtype, type in zip(dtypes, types, strict=True):
            if not (pt.is_integer(type) or pt.is_null(type) or (dtype == FLOAT64 and is_number(type))):
                return None
        return dtypes, to

    return rule


# Numbers


def _make_extreme(op: CompareOp) -> Callable[..., Value]:
    def pick(left: Value, right: Value) -> Value:
        take_left = pc.or_kleene(pc.is_null(right), compare(op, left, right))
        take_left = pc.and_kleene(take_left, pc.is_valid(left))
        return pc.if_else(pc.coalesce(take_left, False), left, right)

    return lambda *values: reduce(pick, values)


def _compute_sign(value: Value) -> Value:
    zero = cast(pa.scalar(0), value.type)
    negative = pc.if_else(pc.less(value, zero), pa.scalar(-1), pa.scalar(0))
    return pc.if_else(pc.greater(value, zero), pa.scalar(1), negative)


def _make_rounding(kernel: Callable[[Value], Value]) -> Callable[[Value], Value]:
    def run(value: Value) -> Value:
        if pt.is_integer(value.type):
            return value
        if pt.is_decimal(value.type):  # rounding up may need one more digit
            value = pc.cast(value, make_decimal(min(value.type.precision + 1, 76), value.type.scale))
        return kernel(value)

    return run


def _round(value: Value, digits: int = 0) -> Value:
    if pt.is_integer(value.type) and digits >= 0:
        return value
    if pt.is_integer(value.type):
        return cast(round_number(cast(value, make_decimal(20, 0)), digits), value.type)
    return round_number(value, digits)


def _make_matcher(kernel: Callable[..., Value]) -> Callable[..., Value]:
    return lambda value, pattern: kernel(value, pattern=pattern)


def _measure_length(value: Value) -> Value:
    return cast(pc.utf8_length(value), INT64)


def _log(base: Value, value: Value) -> Value:
    return pc.logb_checked(value, base)


_FIRST, _SECOND, _REST, _AFTER = frozenset({0}), frozenset({1}), frozenset({1, 2}), frozenset({1, 2, 3})
_INT32, _UTC = pa.int32(), pa.timestamp("us", "UTC")
_INTEGERS = (INT64, INT64, INT64)
_TEXT = make_text_rule(None)

TEXT_FUNCTIONS: dict[str, ScalarFunction] = {
    "lower": ScalarFunction("text", "small letters", _TEXT, pc.utf8_lower),
    "upper": ScalarFunction("text", "capital letters", _TEXT, pc.utf8_upper),
    "trim": ScalarFunction(
        "text[, characters]",
        "without spaces, or these, at both ends",
        _TEXT,
        texts.trim(pc.utf8_trim),
        _SECOND,
    ),
    "ltrim": ScalarFunction(
        "text[, characters]", "at the left end", _TEXT, texts.trim(pc.utf8_ltrim), _SECOND
    ),
    "rtrim": ScalarFunction(
        "text[, characters]", "at the right end", _TEXT, texts.trim(pc.utf8_rtrim), _SECOND
    ),
    "length": ScalarFunction("text", "how many characters", make_text_rule(INT64), _measure_length),
    "left": ScalarFunction(
        "text, count",
        "the first characters; below 0 all but the last",
        make_text_rule(None, INT64),
        texts.left,
        _SECOND,
        _SECOND,
    ),
    "right": ScalarFunction(
        "text, count",
        "the last characters; below 0 all but the first",
        make_text_rule(None, INT64),
        texts.right,
        _SECOND,
        _SECOND,
    ),
    "substring": ScalarFunction(
        "text, start[, length]",
        "from a place on; 1 is the first, -1 the last",
        make_text_rule(None, INT64, INT64),
        texts.substring,
        _REST,
        _REST,
    ),
    "split_part": ScalarFunction(
        "text, separator, index",
        "the part at a place; -1 is the last; empty where there is none",
        make_text_rule(None, STRING, INT64),
        texts.split_part,
        _REST,
        frozenset({2}),
    ),
    "strpos": ScalarFunction(
        "text, part",
        "where a part begins, from 1; 0 if it is not there",
        make_text_rule(INT64),
        texts.strpos,
        _SECOND,
    ),
    "lpad": ScalarFunction(
        "text, length[, fill]",
        "filled up at the left, or cut, to a length",
        make_text_rule(None, _INT32),
        texts.make_padding(before=True),
        _REST,
        _SECOND,
    ),
    "rpad": ScalarFunction(
        "text, length[, fill]",
        "filled up at the right, or cut, to a length",
        make_text_rule(None, _INT32),
        texts.make_padding(before=False),
        _REST,
        _SECOND,
    ),
    "repeat": ScalarFunction(
        "text, count", "so many times; empty below 1", make_text_rule(None, INT64), texts.repeat
    ),
    "concat": ScalarFunction(
        "value, ...", "one after the other; NULL is left out", resolve_concat, texts.concat
    ),
    "concat_ws": ScalarFunction(
        "separator, value, ...",
        "with the separator between them; NULL is left out",
        resolve_concat,
        texts.concat_ws,
    ),
    "replace": ScalarFunction("text, old, new", "every place of a part", _TEXT, texts.replace, _REST),
    "starts_with": ScalarFunction(
        "text, prefix", "whether it begins so", make_text_rule(BOOL), _make_matcher(pc.starts_with), _SECOND
    ),
    "ends_with": ScalarFunction(
        "text, suffix", "whether it ends so", make_text_rule(BOOL), _make_matcher(pc.ends_with), _SECOND
    ),
    "contains": ScalarFunction(
        "text, part",
        "whether a part is in it",
        make_text_rule(BOOL),
        _make_matcher(pc.match_substring),
        _SECOND,
    ),
    "regexp_matches": ScalarFunction(
        "text, pattern[, options]",
        "whether the pattern is found in it",
        make_text_rule(BOOL),
        texts.regexp_matches,
        _REST,
    ),
    "regexp_full_match": ScalarFunction(
        "text, pattern[, options]",
        "whether the pattern is all of it",
        make_text_rule(BOOL),
        texts.regexp_full_match,
        _REST,
    ),
    "regexp_replace": ScalarFunction(
        "text, pattern, new[, options]",
        "the first match; all with the option `'g'`; `\\1` is a group",
        _TEXT,
        texts.regexp_replace,
        _AFTER,
    ),
    "regexp_extract": ScalarFunction(
        "text, pattern[, group, options]",
        "the first match, or a group of it; empty where there is none",
        make_text_rule(None, STRING, _INT32),
        texts.regexp_extract,
        _AFTER,
    ),
    "md5": ScalarFunction(
        "text or bytes", "hash, as hexadecimal text", resolve_hash, texts.make_digest("md5")
    ),
    "sha1": ScalarFunction(
        "text or bytes", "hash, as hexadecimal text", resolve_hash, texts.make_digest("sha1")
    ),
    "sha256": ScalarFunction(
        "text or bytes", "hash, as hexadecimal text", resolve_hash, texts.make_digest("sha256")
    ),
    "sha512": ScalarFunction(
        "text or bytes", "hash, as hexadecimal text", resolve_hash, texts.make_digest("sha512")
    ),
}

NUMBER_FUNCTIONS: dict[str, ScalarFunction] = {
    "abs": ScalarFunction("number", "without the sign", make_number_rule(None), pc.abs_checked),
    "sign": ScalarFunction("number", "-1, 0 or 1", make_number_rule(INT64), _compute_sign),
    "round": ScalarFunction(
        "number[, digits]", "to the nearest, halves away from zero", round_rule, _round, _SECOND, _SECOND
    ),
    "floor": ScalarFunction("number", "the whole number below", round_rule, _make_rounding(pc.floor)),
    "ceil": ScalarFunction("number", "the whole number above", round_rule, _make_rounding(pc.ceil)),
    "trunc": ScalarFunction("number", "without the fraction", round_rule, _make_rounding(pc.trunc)),
    "sqrt": ScalarFunction(
        "number", "square root; raises below 0", make_float_rule(FLOAT64), pc.sqrt_checked
    ),
    "power": ScalarFunction(
        "base, exponent", "base to the power of the exponent", make_float_rule(FLOAT64), pc.power_checked
    ),
    "exp": ScalarFunction("number", "e to its power", make_float_rule(FLOAT64), pc.exp),
    "ln": ScalarFunction(
        "number", "natural logarithm; raises at 0 and below", make_float_rule(FLOAT64), pc.ln_checked
    ),
    "log10": ScalarFunction(
        "number", "logarithm of base 10; raises at 0 and below", make_float_rule(FLOAT64), pc.log10_checked
    ),
    "log2": ScalarFunction(
        "number", "logarithm of base 2; raises at 0 and below", make_float_rule(FLOAT64), pc.log2_checked
    ),
    "log": ScalarFunction(
        "base, number", "logarithm; of one argument, of base 10", make_float_rule(FLOAT64), _log
    ),
    "isnan": ScalarFunction("number", "whether it is NaN", make_float_rule(BOOL), pc.is_nan),
    "isinf": ScalarFunction("number", "whether it is infinite", make_float_rule(BOOL), pc.is_inf),
    "isfinite": ScalarFunction(
        "number", "whether it is neither NaN nor infinite", make_float_rule(BOOL), pc.is_finite
    ),
}

TIME_FUNCTIONS: dict[str, ScalarFunction] = {
    "date_part": ScalarFunction(
        "part, date or time", "such as `'year'`", resolve_part, times.extract_part, _FIRST
    ),
    "date_trunc": ScalarFunction(
        "unit, date or timestamp",
        "the beginning of its month, hour, ...",
        resolve_trunc,
        times.truncate_to,
        _FIRST,
    ),
    "date_diff": ScalarFunction(
        "unit, start, end",
        "how many units begin between them; weeks: whole ones",
        resolve_diff,
        times.date_diff,
        _FIRST,
    ),
    "last_day": ScalarFunction("date", "the last of its month", make_day_rule(DATE), times.last_day),
    "dayname": ScalarFunction("date", "such as `Monday`", make_day_rule(STRING), times.day_name),
    "monthname": ScalarFunction("date", "such as `January`", make_day_rule(STRING), times.month_name),
    "epoch": ScalarFunction(
        "date or time",
        "seconds since 1970-01-01 UTC, as a double",
        make_day_rule(FLOAT64, times=True),
        times.epoch,
    ),
    "to_timestamp": ScalarFunction(
        "seconds", "the instant so long after 1970-01-01 UTC", make_float_rule(_UTC), times.to_timestamp
    ),
    "make_date": ScalarFunction(
        "year, month, day",
        "the date of these numbers; raises where there is none",
        make_fixed_rule(*_INTEGERS, to=DATE),
        times.make_date,
    ),
    "make_timestamp": ScalarFunction(
        "year, month, day, hour, minute, second",
        "the timestamp of these numbers; seconds may have a fraction",
        make_fixed_rule(*_INTEGERS, INT64, INT64, FLOAT64, to=pa.timestamp("us")),
        times.make_timestamp,
    ),
    "strftime": ScalarFunction("date, format", "as text", make_day_rule(STRING), times.strftime, _SECOND),
    "strptime": ScalarFunction(
        "text, format",
        "the timestamp a text says; raises where it does not",
        make_text_rule(pa.timestamp("us")),
        times.strptime,
        _SECOND,
    ),
    "try_strptime": ScalarFunction(
        "text, format",
        "the same, with NULL where it does not",
        make_text_rule(pa.timestamp("us")),
        times.try_strptime,
        _SECOND,
    ),
}

ANY_FUNCTIONS: dict[str, ScalarFunction] = {
    "coalesce": ScalarFunction(
        "value, ...", "the first that is not NULL", resolve_same_type, pc.coalesce, alike=True
    ),
    "greatest": ScalarFunction(
        "value, ...",
        "NULL is left out; NaN is the greatest",
        resolve_same_type,
        _make_extreme(">="),
        alike=True,
    ),
    "least": ScalarFunction(
        "value, ...", "NULL is left out", resolve_same_type, _make_extreme("<="), alike=True
    ),
}

FUNCTIONS: dict[str, ScalarFunction] = {
    **TEXT_FUNCTIONS,
    **NUMBER_FUNCTIONS,
    **TIME_FUNCTIONS,
    **ANY_FUNCTIONS,
}

NOW = ("current_timestamp", "current_date")
"""Functions of the moment; a resolved expression has constants in their place."""


def call(name: str, values: Sequence[Value]) -> Value:
    """Compute a function on values of the types its rule asked for."""
    function = FUNCTIONS[name]
    if any(p < len(values) and not isinstance(values[p], pa.Scalar) for p in function.constant):
        return _compute_by_distinct(function, values)
    arguments: list[Any] = []
    for position, value in enumerate(values):
        if position in function.constant:
            value = value.as_py()
            if value is None:  # every function with constants gives NULL for NULL
                return _make_null(function, values)
        arguments.append(value)
    return function.run(*arguments)


def _compute_by_distinct(function: ScalarFunction, values: Sequence[Value]) -> Value:
    """Compute once per distinct combination of the arguments that have to be constants."""
    rows = next(len(value) for value in values if not isinstance(value, pa.Scalar))
    moving = [
        p for p in sorted(function.constant) if p < len(values) and not isinstance(values[p], pa.Scalar)
    ]
    codes: Value = pa.repeat(pa.scalar(0, INT64), rows)
    for position in moving:
        encoded = values[position].dictionary_encode(null_encoding="encode")
        codes = pc.add(pc.multiply(codes, len(encoded.dictionary)), pc.cast(encoded.indices, INT64))
    order = pc.sort_indices(codes)
    sorted_ = [value if isinstance(value, pa.Scalar) else value.take(order) for value in values]
    ends = pc.run_end_encode(codes.take(order), run_end_type=INT64).run_ends.to_pylist()
    pieces: list[pa.Array] = []
    for start, end in zip([0, *ends], ends, strict=False):
        arguments: list[Any] = []
        for position, value in enumerate(sorted_):
            piece = value if isinstance(value, pa.Scalar) else value.slice(start, end - start)
            moved = position in function.constant and not isinstance(value, pa.Scalar)
            arguments.append(piece[0].as_py() if moved else piece)
            if position in function.constant and isinstance(value, pa.Scalar):
                arguments[-1] = value.as_py()
        if any(arguments[p] is None for p in function.constant if p < len(values)):
            found: Value = _make_null(function, values)
        else:
            found = function.run(*arguments)
        pieces.append(_as_long(found, end - start))
    if not pieces:
        return pa.nulls(0, _make_null(function, values).type)
    return pa.concat_arrays(pieces).take(pc.array_sort_indices(order))


def _as_long(value: Value, length: int) -> pa.Array:
    if not isinstance(value, pa.Scalar):
        return value
    return pa.repeat(value, length) if value.is_valid else pa.nulls(length, value.type)


def _make_null(function: ScalarFunction, values: Sequence[Value]) -> pa.Scalar:
    found = function.rule([value.type for value in values])
    return pa.scalar(None, found[1] if found else pa.null())


def list_part_names() -> tuple[str, ...]:
    """The parts of dates and times that are functions, too, such as ``year(x)``."""
    return (*times.DATE_PARTS, *times.CLOCK_PARTS, *times.PART_NAMES)
