"""Errors about rows, in the same words on every engine: counts and samples in, typed errors out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.names import join_names, suggest_names
from intarsia.common.rows import take_rows
from intarsia.core.expr import find_columns, to_sql
from intarsia.core.intent import MergeIntent, WriteIntent
from intarsia.core.keys import KeyIndex, to_array
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.errors import InputError, KeyColumnError, NothingMatched, PartitionMoveError

SAMPLES = 3


def check_exists(snapshot: Snapshot, operation: str) -> None:
    """Raise NothingMatched for a table that does not exist; an empty one does."""
    if not snapshot.exists:
        raise NothingMatched(
            f"{operation}: there is no dataset at {snapshot.root}.",
            path=snapshot.root,
            hint="check the path; write() or merge() make a new dataset.",
        )


def make_missing_keys_error(
    absent: Sequence[str], names: Sequence[str], *, side: str, operation: str, path: str
) -> KeyColumnError:
    """The error, to be raised, for key columns that one side does not have."""
    return KeyColumnError(
        f"{operation}: key column {join_names(absent)} is missing from the {side},"
        f" which has {join_names(names)}.",
        path=path,
        hint=suggest_names(absent, names, otherwise="name keys that both sides have."),
    )


def refuse_null_source_keys(nulls: Mapping[str, int], *, operation: str, path: str) -> None:
    """Refuse NULL in key columns of the source."""
    bad = {name: count for name, count in nulls.items() if count}
    if not bad:
        return
    problems = " and ".join(
        f"Key column {name!r} has {count:,} NULL value{_make_plural(count)}" for name, count in bad.items()
    )
    raise KeyColumnError(
        f"{operation}: {problems} in the source.",
        path=path,
        hint='remove or fill those rows, or pass null_keys="match" to let NULL equal NULL.',
    )


def refuse_null_target_keys(
    files: Sequence[tuple[str, Mapping[str, int]]], *, operation: str, path: str
) -> None:
    """Refuse NULL in key columns of the files that the merge has to read."""
    if not files:
        return
    shown, nulls = files[0]
    problems = " and ".join(
        f"Key column {name!r} has {count:,} NULL value{_make_plural(count)}" for name, count in nulls.items()
    )
    more = f" (and {len(files) - 1:,} more file{_make_plural(len(files) - 1)})" if len(files) > 1 else ""
    raise KeyColumnError(
        f"{operation}: {problems} in the target file {shown}{more}.",
        path=path,
        hint='delete those rows first, or pass null_keys="match" to let NULL equal NULL.',
    )


def refuse_duplicate_source_keys(
    source: pa.Table, index: KeyIndex, keys: Sequence[str], *, operation: str, path: str
) -> None:
    """Refuse a source in which a key stands more than once."""
    if index.is_unique():
        return
    codes = index.find_duplicated()
    rows = index.find_rows(codes)
    samples = take_rows(source.select(list(keys)), rows.slice(0, 64))
    refuse_duplicate_keys(samples, keys, len(codes), len(rows), operation=operation, path=path)


def refuse_duplicate_keys(
    samples: pa.Table, keys: Sequence[str], count: int, rows: int, *, operation: str, path: str
) -> None:
    """Refuse keys that were found more than once in the source, shown by some of their rows."""
    raise KeyColumnError(
        f"{operation}: the source has {count:,} duplicate key{_make_plural(count)} in"
        f" {', '.join(keys)} ({rows:,} rows), such as {_join_samples(to_python_rows(samples))}.",
        path=path,
        hint='pass strategy="deduplicate" (with dedup_order_by) to keep one row per key.',
    )


def refuse_several_matches(count: int, keys: Sequence[str], *, operation: str, path: str) -> None:
    """Refuse a merge in which a target row is matched by more than one source row."""
    raise KeyColumnError(
        f"{operation}: {count:,} target row{_make_plural(count)} would be changed by more than one source row"
        f" (key {', '.join(keys)}).",
        path=path,
        hint="make the source's keys unique, or sharpen the ON condition.",
    )


def refuse_outside(
    samples: pa.Table, shown: pa.Array, count: int, intent: WriteIntent, *, rows: int, path: str
) -> None:
    """Refuse rows that the condition of an overwrite does not cover; some of ``samples`` are ``shown``."""
    if not count:
        return
    where = intent.where
    names = list(samples.column_names)
    if not isinstance(where, pc.Expression):
        used = {column[0] for _, column in find_columns(where)}
        names = [name for name in names if name in used] or names
    some = _join_samples(to_python_rows(take_rows(samples.select(names), shown.slice(0, 64))))
    text = where if isinstance(where, pc.Expression) else to_sql(where)
    raise InputError(
        f"overwrite: for {count:,} of {rows:,} row{_make_plural(rows)} of the source the condition {text}"
        f" is not true, such as {some}.",
        path=path,
        hint="leave them out, or widen where=: it must cover the rows that come.",
    )


def refuse_partition_moves(
    moved: Sequence[tuple[DataFile, pa.Array]], source: pa.Table, intent: MergeIntent, snapshot: Snapshot
) -> None:
    """Refuse rows that would take an existing key to another partition."""
    total = sum(len(rows) for _, rows in moved)
    columns = list(snapshot.partition_columns)
    samples = source.select([*intent.source_keys, *(c for c in columns if c not in intent.source_keys)])
    shown = "; ".join(
        f"{_format_key(row, intent.source_keys)} is in {_format_place(file.partition, columns)},"
        f" the source says {_format_place(row, columns)}"
        for file, rows in moved[:SAMPLES]
        for row in to_python_rows(take_rows(samples, rows.slice(0, max(1, SAMPLES // len(moved)))))
    )
    raise PartitionMoveError(
        f"{intent.rule.name}: partition columns cannot change for existing keys:"
        f" {total:,} row{_make_plural(total)} would move to another partition ({shown}).",
        path=snapshot.root,
        hint="delete those keys first and insert them anew, or leave them out of the source.",
    )


def to_python_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows as Python values; as text what Python has no value for: nanoseconds, far years, infinite dates."""
    singles = [rows.slice(number, 1) for number in range(rows.num_rows)]
    return [dict(zip(one.column_names, map(_to_python, one.columns), strict=True)) for one in singles]


def _to_python(single: pa.ChunkedArray) -> Any:
    if pa.types.is_temporal(single.type) and getattr(single.type, "unit", "") == "ns":
        return single[0].cast(pa.string()).as_py()
    try:
        return single[0].as_py()
    except (ValueError, OverflowError):
        return " ".join(str(to_array(single)).split())[1:-1].strip()


def _format_key(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{name}={row[name]!r}" for name in keys)


def _format_place(values: Mapping[str, Any], columns: Sequence[str]) -> str:
    return "/".join(f"{name}={values[name]}" for name in columns if name in values)


def _join_samples(rows: Sequence[Mapping[str, Any]]) -> str:
    seen: list[str] = []
    for row in rows:
        text = "(" + _format_key(row, tuple(row)) + ")"
        if text not in seen:
            seen.append(text)
    return ", ".join(seen[:SAMPLES])


def _make_plural(count: int) -> str:
    return "" if count == 1 else "s"
