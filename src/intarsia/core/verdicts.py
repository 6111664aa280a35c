"""What partitions and bounds prove of a predicate, file by file and row group by row group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.bounds import Bounds, bounds_of
from intarsia.core.expr import columns as columns_of
from intarsia.core.files import DataFile, Snapshot
from intarsia.core.intent import Predicate
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
    starts = _starts(files)
    return [_verdict(where, snapshot, file, bounds, start) for file, start in zip(files, starts, strict=True)]


def _verdict(
    where: Any, snapshot: Snapshot, file: DataFile, bounds: dict[str, Bounds], start: int
) -> Verdict:
    known: dict[Path, Facts] = {
        (name,): _constant(value, snapshot.schema.field(name).type) for name, value in file.partition.items()
    }
    every = _every(file)
    if never_true(where, known):
        return Verdict((), never=True, by="partition values")
    if always_true(where, known):
        return Verdict(every, always=True, by="partition values")
    maybe = tuple(
        group
        for number, group in enumerate(every)
        if not never_true(where, known | _facts(bounds, start + number, snapshot.schema))
    )
    return Verdict(maybe, never=not maybe, by="bounds")


def _facts(bounds: dict[str, Bounds], entry: int, schema: pa.Schema) -> dict[Path, Facts]:
    return {
        (name,): Facts(
            lower=known.lower[entry] if known.lower[entry].is_valid else None,
            upper=known.upper[entry] if known.upper[entry].is_valid else None,
            null_count=known.null_count[entry].as_py(),
            rows=known.rows[entry].as_py(),
            type=_plain(schema.field(name).type),
        )
        for name, known in bounds.items()
    }


def _constant(value: Any, kind: pa.DataType) -> Facts:
    plain = _plain(kind)
    if value is None:
        return Facts(null_count=1, rows=1, maybe_nan=False, type=plain)
    scalar = pa.scalar(value, plain)
    nan = pa.types.is_floating(plain) and value != value
    return Facts(
        None if nan else scalar, None if nan else scalar, null_count=0, rows=1, maybe_nan=nan, type=plain
    )


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _every(file: DataFile) -> tuple[int, ...]:
    return tuple(range(file.footer.num_row_groups if file.footer is not None else 1))


def _starts(files: tuple[DataFile, ...]) -> list[int]:
    """Where each file's entries begin in the bounds."""
    starts, position = [], 0
    for file in files:
        starts.append(position)
        position += len(_every(file))
    return starts
