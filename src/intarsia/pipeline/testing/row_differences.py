"""How the rows of a table differ from the rows that were expected; nothing is read or written here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.types import is_nested
from intarsia.core.keys import KeyIndex, arange, to_array
from intarsia.show import units

__all__ = ["RowDifferences", "compare_rows"]

_SHOWN = 10
"""Rows of each kind that are told."""
_WIDEST = 60
"""Characters of a value that are told."""


@dataclass(frozen=True, slots=True)
class RowDifferences:
    """Rows that are missing, rows that were not expected, and rows of one key with other values.

    ``expected`` and ``found`` are the two sides of the last kind, in the same order. All have the columns
    that were compared.
    """

    missing: pa.Table
    unexpected: pa.Table
    expected: pa.Table
    found: pa.Table
    key: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Number of rows that differ."""
        return int(self.missing.num_rows + self.unexpected.num_rows + self.found.num_rows)

    def describe(self) -> list[str]:
        """One line for each row that differs, up to some of each kind."""
        lines = []
        pairs = zip(_list_some(self.expected), _list_some(self.found), strict=True)
        for wanted, there in pairs:
            key = ", ".join(f"{name} = {_show(there[name])}" for name in self.key)
            others = [
                f"{name} is {_show(there[name])}, expected {_show(value)}"
                for name, value in wanted.items()
                if name not in self.key and _show_whole(there[name]) != _show_whole(value)
            ]
            lines.append(f"different    {key}: {'; '.join(others)}")
        lines += _tell_rest(self.found, "different")
        for word, rows in (("missing", self.missing), ("unexpected", self.unexpected)):
            for row in _list_some(rows):
                lines.append(f"{word:<12} {', '.join(f'{name} = {_show(row[name])}' for name in row)}")
            lines += _tell_rest(rows, word)
        return lines

    def as_json(self) -> dict[str, Any]:
        """The same as plain values, with up to some rows of each kind."""
        pairs = zip(_list_some(self.expected), _list_some(self.found), strict=True)
        return {
            "missing_rows": self.missing.num_rows,
            "unexpected_rows": self.unexpected.num_rows,
            "different_rows": self.found.num_rows,
            "missing": _list_some(self.missing),
            "unexpected": _list_some(self.unexpected),
            "different": [{"expected": wanted, "found": there} for wanted, there in pairs],
        }


def compare_rows(expected: pa.Table, found: pa.Table, *, key: Sequence[str] = ()) -> RowDifferences:
    """Compare two tables of one schema as multisets of rows: order does not count, repetitions do.

    NULL equals NULL, NaN equals NaN, and -0.0 equals 0.0. Rows with the same key, which is unique on both
    sides, are told as different; all others as missing or unexpected.
    """
    codes = _encode_rows(pa.concat_tables([expected, found]))
    wanted, there = codes.slice(0, expected.num_rows), codes.slice(expected.num_rows)
    missing = expected.filter(_is_beyond(wanted, there))
    unexpected = found.filter(_is_beyond(there, wanted))
    none = (expected.slice(0, 0), found.slice(0, 0))
    names = tuple(name for name in key if name in expected.column_names)
    if not names or len(names) < len(key) or not missing.num_rows or not unexpected.num_rows:
        return RowDifferences(missing, unexpected, *none)
    if any(is_nested(expected.schema.field(name).type) for name in names):
        return RowDifferences(missing, unexpected, *none)
    ours, theirs = (
        KeyIndex([rows[name] for name in names], null_match=True) for rows in (missing, unexpected)
    )
    if not ours.is_unique() or not theirs.is_unique():
        return RowDifferences(missing, unexpected, *none)
    at, of = ours.match([unexpected[name] for name in names])
    return RowDifferences(
        missing.filter(_is_not_among(of, missing.num_rows)),
        unexpected.filter(_is_not_among(at, unexpected.num_rows)),
        missing.take(of),
        unexpected.take(at),
        names,
    )


def _encode_rows(rows: pa.Table) -> pa.Array:
    """A number for each row, the same for rows that are equal."""
    if not rows.num_columns or not rows.num_rows:
        return arange(rows.num_rows)
    columns = [_make_hashable(column) for column in rows.columns]
    codes = KeyIndex(columns, null_match=True).codes
    return codes.dictionary_encode("encode").indices.cast(pa.int64())


def _make_hashable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Nested values, which Arrow cannot hash, as their text."""
    if not is_nested(column.type):
        return column
    return pa.chunked_array([pa.array(map(repr, column.to_pylist()), pa.string())])


def _is_beyond(codes: pa.Array, other: pa.Array) -> pa.Array:
    """For each row, whether the other side has fewer rows of its code than come up to this one."""
    order = pc.sort_indices(codes)
    ordered = codes.take(order)
    first = pc.search_sorted(ordered, ordered, side="left").cast(pa.int64())
    before = pc.subtract(arange(len(codes)), first)  # rows of the same code above
    sorted_other = other.take(pc.sort_indices(other))
    low, high = (pc.search_sorted(sorted_other, ordered, side=side).cast(pa.int64()) for side in _SIDES)
    beyond = pc.greater_equal(before, pc.subtract(high, low))
    return beyond.take(pc.sort_indices(order))


_SIDES = ("left", "right")


def _is_not_among(rows: pa.Array, count: int) -> pa.Array:
    return pc.invert(pc.is_in(arange(count), value_set=to_array(rows)))


def _list_some(rows: pa.Table) -> list[dict[str, Any]]:
    some: list[dict[str, Any]] = rows.slice(0, _SHOWN).to_pylist()
    return some


def _tell_rest(rows: pa.Table, word: str) -> list[str]:
    left = rows.num_rows - _SHOWN
    return [f"{word:<12} {units.format_count(left, 'more row')}"] if left > 0 else []


def _show(value: Any) -> str:
    return units.elide(_show_whole(value), _WIDEST)


def _show_whole(value: Any) -> str:
    """A value as people write it: NULL, text in quotes, all else as it is printed."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, (str, bytes)) else str(value)
