"""``since = "last run"``: the rows of a target that were added or changed since a step's last success.

These are the rows that the target has now, less those that it had then, each counted as often as it is there.
Files that are the same in both states cancel out, so only the others are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from intarsia.common.lazy import import_optional
from intarsia.core.ports import Table
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.engine_choice import MEMORY_SHARE, read_memory_total
from intarsia.kernel.difference import find_incomparable, subtract_rows
from intarsia.kernel.read import SnapshotScan
from intarsia.pipeline.inputs import make_transform, read_snapshot_frame, transform_frame
from intarsia.pipeline.model import Source
from intarsia.pipeline.quality.references import quote_name
from intarsia.show import units
from intarsia.tables.parquet.retained import FileKey

__all__ = ["Increment", "find_increment"]

Position = Mapping[str, Any]
"""A state of a target, as JSON: the id of an Iceberg snapshot, or the files of a dataset."""


@runtime_checkable
class SnapshotHistory(Protocol):
    """A table that can be read as it was at an earlier snapshot: an Iceberg table."""

    def take_position(self) -> tuple[Snapshot, int]:
        """The current state and the id of its snapshot."""

    def snapshot_at(self, snapshot_id: int) -> Snapshot | None:
        """An earlier state, in the schema of the one that was taken last; None where that has expired."""


@runtime_checkable
class RetainedFiles(Protocol):
    """A table that may keep files which were replaced: a Parquet dataset."""

    def find_retained(self, now: Snapshot, wanted: Collection[FileKey]) -> Snapshot | None:
        """Former files, in the schema of now; None unless all are kept and have its types."""


@dataclass(frozen=True, slots=True)
class Increment:
    """What a step reads of a target: the state, and the part of it that is new since the last success."""

    snapshot: Snapshot
    """The state, which the step reads wherever it reads the target."""
    position: Position
    """That state, to be noted with the step's success."""
    added: Snapshot
    """The files with new rows; all files where all rows are read."""
    before: Snapshot | None = None
    """The files whose rows are not new, as they were at the last success; None for none."""
    note: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether all rows are read."""
        return self.added is self.snapshot


def find_increment(
    table: Table,
    take_snapshot: Callable[[Table], Snapshot],
    last: Position | None,
    *,
    name: str,
    unknown: str = "the first time",
) -> Increment:
    """The rows of a table that are new since a position; all rows where that cannot be known exactly.

    Args:
        table: the target.
        take_snapshot: takes its state, of files that stay as they are where that is possible.
        last: the position of the step's last success; None where there is none.
        name: the target's, for the note.
        unknown: why there is no position, for the note.
    """
    if isinstance(table, SnapshotHistory):
        snapshot, number = table.take_position()
        position: dict[str, Any] = {"snapshot": number}
    else:
        snapshot = take_snapshot(table)
        position = {"files": [[file.path, *file.fingerprint] for file in snapshot.files]}
    whole = Increment(snapshot, position, snapshot)

    def read_all(reason: str) -> Increment:
        return replace(whole, note=f"all rows of {name} are read: {reason}")

    if last is None:
        return read_all(unknown)
    if isinstance(table, SnapshotHistory):
        before = table.snapshot_at(last["snapshot"]) if "snapshot" in last else None
        if before is None:
            return read_all("the snapshot of its last success has expired")
        added, gone = _drop_equal(snapshot, before, _identify_scanned)
        return _compare(whole, added, gone, name)
    if "files" not in last or not isinstance(table, RetainedFiles):
        return read_all("the target was of another kind")
    old = {(str(path), tuple(fingerprint)) for path, *fingerprint in last["files"]}
    now = {(file.path, file.fingerprint) for file in snapshot.files}
    files = [file for file in snapshot.files if (file.path, file.fingerprint) not in old]
    added, missing = snapshot.with_files(files), old - now
    if not missing or not files:  # nothing that is new can be a row of before
        return _compare(whole, added, None, name)
    former = table.find_retained(snapshot, missing)
    if former is None:
        some = units.format_count(len(missing), "file")
        were, are = ("was", "is") if len(missing) == 1 else ("were", "are")
        lost = f"{are} not kept (retain of the target), or in other types"
        return read_all(f"{some} of before {were} replaced or removed, and {lost}")
    return _compare(whole, added, former, name)


def _compare(whole: Increment, added: Snapshot, before: Snapshot | None, name: str) -> Increment:
    before = before if before is not None and before.files and added.files else None
    odd = find_incomparable(whole.snapshot.schema) if before is not None else None
    if odd is not None:
        reason = f"rows are not compared in the column {odd!r}, which is nested"
        return replace(whole, note=f"all rows of {name} are read: {reason}")
    if not added.files:
        return replace(whole, added=added, note=f"{name} has no rows that are new since the last run")
    read = units.format_count(len(added.files), "file")
    less = ""
    if before is not None:
        less = f", less the rows of {units.format_count(len(before.files), 'file')} of before"
    return replace(
        whole, added=added, before=before, note=f"of {name}, what is new since the last run: {read}{less}"
    )


def _identify_scanned(file: DataFile) -> tuple[Any, ...]:
    """What identifies the rows of a file whose bytes never change: its path, and what is deleted of it."""
    deletes = getattr(file.scan_task, "deletes", None)
    return (file.path, () if deletes is None else tuple(sorted(deletes.marks, key=str)))


def _drop_equal(
    now: Snapshot, before: Snapshot, identify: Callable[[DataFile], tuple[Any, ...]]
) -> tuple[Snapshot, Snapshot]:
    """Both states without the files that are the same in both."""
    same = {identify(file) for file in now.files} & {identify(file) for file in before.files}
    new, old = (
        state.with_files(file for file in state.files if identify(file) not in same)
        for state in (now, before)
    )
    return new, old


_QUERY = "SELECT * FROM now EXCEPT ALL SELECT * FROM former"


def read_difference(source: Source, now: Snapshot, before: Snapshot, engine: str, session: Any) -> Any:
    """The transformed rows of ``now`` that are not in ``before``, each as often as there are more of it.

    A DataFrame on Spark, else a list of one stream. Memory: of DuckDB its limit; in process, also where a
    column is of a type that DuckDB does not have, both states.
    """
    names = tuple(now.schema.names)
    if session is not None:
        own, other = (read_snapshot_frame(Source(), state, session, names) for state in (now, before))
        return transform_frame(_subtract_frames(own, other, now.schema), make_transform(source, "parquet"))
    scans = {"now": SnapshotScan(now, names), "former": SnapshotScan(before, names)}
    if engine == "duckdb" and _is_comparable(now.schema):
        run = import_optional("intarsia.engines.duckdb.query").QueryRun
        found = run(_QUERY, scans, params={}, memory_bytes=read_memory_total() // MEMORY_SHARE).open_stream()
        schema = scans["now"].schema
        rows = pa.RecordBatchReader.from_batches(schema, _restore_types(found, schema))
    else:
        rows = subtract_rows(*(_read_table(scan) for scan in scans.values())).to_reader()
    shape = make_transform(source, "parquet")
    made = shape.make_schema(rows.schema)
    return [pa.RecordBatchReader.from_batches(made, shape.transform_batches(rows.schema, rows))]


def _subtract_frames(now: Any, before: Any, schema: pa.Schema) -> Any:
    """The rows of a DataFrame that another one does not have, counted, with their own values.

    ``exceptAll`` gives 0.0 for -0.0, so rows with floats are numbered among their equals and joined instead.
    """
    if not any(pa.types.is_floating(field.type) for field in schema):
        return now.exceptAll(before)
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    number = "__number"
    while number in schema.names:
        number += "_"
    columns = [quote_name(name) for name in schema.names]
    alike = Window.partitionBy(*columns).orderBy(F.lit(0))
    own, other = (
        frame.withColumn(number, F.row_number().over(alike)).alias(alias)
        for frame, alias in ((now, "own"), (before, "other"))
    )
    keys = [F.col(f"own.{name}").eqNullSafe(F.col(f"other.{name}")) for name in (*columns, number)]
    return own.join(other, keys, "left_anti").drop(number)


def _is_comparable(schema: pa.Schema) -> bool:
    """Whether DuckDB compares all columns exactly."""
    is_comparable = import_optional("intarsia.engines.duckdb.sql").is_comparable
    return all(pa.types.is_null(field.type) or is_comparable(field.type) for field in schema)


def _restore_types(rows: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows in the types of the target: DuckDB has one type for several of Arrow's."""
    for batch in rows:
        yield from pa.Table.from_batches([batch]).cast(schema).to_batches()


def _read_table(scan: SnapshotScan) -> pa.Table:
    return pa.Table.from_batches(scan.read_batches(threads=os.cpu_count() or 1), scan.schema)
