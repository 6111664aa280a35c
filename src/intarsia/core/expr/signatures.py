"""What functions take: how many arguments, of which types, and the type of what they give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from intarsia.core.expr.kernels import Value
from intarsia.core.expr.types import (
    FLOAT64,
    INT64,
    LARGE_STRING,
    STRING,
    decimal,
    is_bytes,
    is_number,
    is_text,
)

Types = Sequence[pa.DataType]
Rule = Callable[[Types], tuple[Types, pa.DataType] | None]
"""Given the arguments' types: the types to cast them to and the result's, or None if they are wrong."""


@dataclass(frozen=True, slots=True)
class Function:
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
        """The fewest arguments."""
        return len(self.takes.split("[")[0].replace(", ...", "").split(", "))

    @property
    def most(self) -> int | None:
        """The most arguments; None where there is no limit."""
        return None if "..." in self.takes else len(self.takes.split(", "))


def _wide(types: Types) -> pa.DataType:
    return LARGE_STRING if any(pt.is_large_string(type) for type in types) else STRING


def text_to(result: pa.DataType | None, *dtypes: pa.DataType) -> Rule:
    """Text everywhere, save where the kinds of the arguments after the first ask for an integer."""

    def rule(types: Types) -> tuple[Types, pa.DataType] | None:
        asked = [STRING, *dtypes, *[STRING] * len(types)][: len(types)]
        pairs = list(zip(types, asked, strict=True))
        for type, dtype in pairs:
            if not (pt.is_null(type) or (is_text(type) if dtype == STRING else pt.is_integer(type))):
                return None
        wide = _wide([type for type, dtype in pairs if dtype == STRING])
        return [wide if dtype == STRING else dtype for dtype in asked], result or wide

    return rule


def joined(types: Types) -> tuple[Types, pa.DataType] | None:
    wide = _wide(types)
    return [wide] * len(types), wide


def number_to(result: pa.DataType | None) -> Rule:
    def rule(types: Types) -> tuple[Types, pa.DataType] | None:
        if not is_number(types[0]) or not all(pt.is_integer(type) for type in types[1:]):
            return None
        first = pa.float64() if pt.is_floating(types[0]) else types[0]
        return [first, *types[1:]], result or first

    return rule


def round_rule(types: Types) -> tuple[Types, pa.DataType] | None:
    found = number_to(None)(types)
    if found is not None and pt.is_integer(types[0]):
        wide = types[0] if types[0].bit_width == 64 else INT64
        return [wide, *types[1:]], wide
    if found is None or not pt.is_decimal(types[0]):
        return found
    return types, decimal(min(types[0].precision + 1, 76), types[0].scale)


def floats_to(result: pa.DataType) -> Rule:
    def rule(types: Types) -> tuple[Types, pa.DataType] | None:
        known = all(is_number(type) or pt.is_null(type) for type in types)
        return ([FLOAT64] * len(types), result) if known else None

    return rule


def same_type(types: Types) -> tuple[Types, pa.DataType]:
    return types, types[0]


def hash_rule(types: Types) -> tuple[Types, pa.DataType] | None:
    dtype = STRING if pt.is_null(types[0]) else types[0]
    return ([dtype], STRING) if is_text(dtype) or is_bytes(dtype) else None


# Dates and times


def _is_day(type: pa.DataType) -> bool:
    return pt.is_date(type) or pt.is_timestamp(type)


def part_rule(types: Types) -> tuple[Types, pa.DataType] | None:
    return (types, INT64) if _is_day(types[1]) or pt.is_time(types[1]) else None


def trunc_rule(types: Types) -> tuple[Types, pa.DataType] | None:
    return (types, types[1]) if _is_day(types[1]) else None


def diff_rule(types: Types) -> tuple[Types, pa.DataType] | None:
    return (types, INT64) if _is_day(types[1]) and _is_day(types[2]) else None


def day_to(result: pa.DataType, *, times: bool = False) -> Rule:
    def rule(types: Types) -> tuple[Types, pa.DataType] | None:
        return (types, result) if _is_day(types[0]) or (times and pt.is_time(types[0])) else None

    return rule


def made_of(*dtypes: pa.DataType, to: pa.DataType) -> Rule:
    def rule(types: Types) -> tuple[Types, pa.DataType] | None:
        for dtype, type in zip(dtypes, types, strict=True):
            if not (pt.is_integer(type) or pt.is_null(type) or (dtype == FLOAT64 and is_number(type))):
                return None
        return dtypes, to

    return rule
