"""Dates and times in files of Spark 2, which Spark shifts when it reads them: no new one may be shifted.

Spark 2 counted days by the Julian calendar before 1582-10-15, and its notes in a file tell newer versions to
move such dates, and times before 1900. What is stored stays as it is; nothing here moves a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from intarsia.common.int96 import int96_columns, iterate_leaves
from intarsia.common.types import kind_of
from intarsia.core.key_value_metadata import is_legacy
from intarsia.core.snapshot import DataFile
from intarsia.errors import NotSupported

__all__ = ["check_calendar", "exact_columns"]

_FIRST_DAY = -141_427
"""1582-10-15, the first day that both calendars have."""
_FIRST_SECOND = -2_208_988_800
"""1900-01-01 in UTC: in no time zone do Spark's calendars differ since."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def exact_columns(file: DataFile, footer: pq.FileMetaData | None = None) -> frozenset[str] | None:
    """The columns that Spark does not shift where it does shift others of a file; None where it shifts none.

    Tables whose columns are found by id do not keep Spark's notes.
    """
    footer = file.footer if footer is None else footer
    if footer is None or file.scan_task is not None or not is_legacy(footer.metadata or {}):
        return None
    return frozenset(int96_columns(footer.schema))  # which have a note of their own


def check_calendar(values: Mapping[str, Any], exact: frozenset[str] | None, path: str) -> None:
    """Raise NotSupported where new values of a file are such that Spark would read others.

    Args:
        values: columns by name.
        exact: as :func:`exact_columns` has it of the file.
    """
    for name, column in values.items() if exact is not None else ():
        if exact is None or name in exact:
            continue
        chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
        for times in _times(chunked):
            first = _first_exact(times.type)
            old = times.filter(pc.fill_null(pc.less(times.cast(_number(times.type)), first), False))
            if len(old):
                raise _shift_error(old, name, path)


def _shift_error(old: pa.ChunkedArray, column: str, path: str) -> NotSupported:
    values = "1 new value" if len(old) == 1 else f"{len(old):,} new values"
    since = "1582-10-15" if pa.types.is_date(old.type) else "1900"
    return NotSupported(
        f"{values} of column {column!r}, such as {old[0].cast(pa.string())}, would be shifted by Spark where"
        f" it is read: {path} has the calendar of Spark 2, which is another before {since}.",
        path=path,
        hint="have Spark read and write that file anew; nothing was changed.",
    )


def _number(dtype: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_date32(dtype) else pa.int64()


def _first_exact(dtype: pa.DataType) -> int:
    if pa.types.is_date(dtype):
        return _FIRST_DAY if pa.types.is_date32(dtype) else _FIRST_DAY * 86_400_000
    return _FIRST_SECOND * _PER_SECOND[dtype.unit]


def _times(column: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """The dates and timestamps in a column, at any depth."""
    for leaf in iterate_leaves(column):
        if kind_of(leaf.type) in ("timestamp", "zoned timestamp", "date"):
            yield leaf
