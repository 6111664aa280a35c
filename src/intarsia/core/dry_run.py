"""New files before any is written: a transaction that only measures them, and estimates of their size."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from intarsia.common.partitions import split_by_partition
from intarsia.common.rows import take_rows
from intarsia.common.schema import cast_exact
from intarsia.core.change import Change, Committed, Discard, Matches, Staging, make_transaction_id
from intarsia.core.evaluate import evaluate
from intarsia.core.intent import DeleteIntent, OptimizeIntent
from intarsia.core.partitioner import PartitionDirectories
from intarsia.core.plan import Plan
from intarsia.core.prepare import Prepared
from intarsia.core.rule import Insert
from intarsia.core.snapshot import DataFile, Snapshot

__all__ = [
    "PLAN_BYTES",
    "DryRun",
    "NewFileCount",
    "count_new_files",
    "discard_output",
    "estimate_new_bytes",
]

PLAN_BYTES = 256 << 20
"""Bytes up to which a plan encodes what the run would write; beyond that it estimates.

A dry run has no such limit, unless it is given one."""
_FEW_ROWS = 20_000
"""Up to this many new rows are written by one writer, on every engine."""
_FILE_BYTES = 600
_COLUMN_BYTES = 200
"""Estimated bytes of a file, and of each of its columns, besides its rows."""


def discard_output(*, writes: bool = True) -> Staging:
    """Staging that discards what is written and only counts it; works on any machine."""
    return Staging(filesystem=Discard(), directory="", txid=make_transaction_id(), writes=writes)


@dataclass(frozen=True, slots=True)
class DryRun:
    """A transaction that is never committed; see :class:`intarsia.core.ports.Transaction`.

    Names are made as the table makes them, so that values which cannot be part of one are refused.
    """

    staging: Staging
    root: str
    partition_columns: tuple[str, ...]
    directories: PartitionDirectories | None
    """None where the table does not use hive directories."""
    of: Snapshot | None = field(default=None, repr=False)

    @staticmethod
    def at(snapshot: Snapshot, staging: Staging) -> DryRun:
        named = PartitionDirectories.of(snapshot.files) if snapshot.replaces_in_place else None
        return DryRun(staging, snapshot.root, snapshot.partition_columns, named, snapshot)

    @property
    def txid(self) -> str:
        return self.staging.txid

    @property
    def snapshot(self) -> Snapshot:
        assert self.of is not None
        return self.of

    def output(self) -> DryRun:
        """Without the snapshot, which does not travel."""
        return replace(self, of=None)

    def new_file_path(
        self, partition: Mapping[str, Any], prefix: str, ordinal: int, *, beside: DataFile | None = None
    ) -> str:
        name = f"{prefix}-{self.txid}-{ordinal:05d}.parquet"
        if self.directories is None:
            return "/".join([*(f"{column}={text}" for column, text in partition.items()), name])
        if beside is not None:
            directory = posixpath.dirname(beside.path)
            return posixpath.join(self.directories.aliases.get(directory, directory), name)
        order = [column for column in self.partition_columns if column in partition]
        values = {column: partition[column] for column in dict.fromkeys([*order, *partition])}
        return posixpath.join(self.directories.choose_directory(values, path=self.root), name)

    def filesystem_path(self, path: str) -> str:
        return f"{self.staging.directory}/{posixpath.basename(path)}"

    def last_batch(self, _app_id: str) -> int | None:
        return None

    def commit(self, _change: Change) -> Committed:
        raise AssertionError("a dry run commits nothing")


# Estimates, where there is too much to be encoded.


@dataclass(frozen=True, slots=True)
class NewFileCount:
    """A number of new files: exact, or a lower bound."""

    count: int
    unknown: str = ""
    """Why there may be more; empty where the number is exact."""

    @property
    def exact(self) -> bool:
        return not self.unknown

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the plan where the number is not exact."""
        return (f"There may be more new files than {self.count:,}: {self.unknown}.",) if self.unknown else ()


def count_new_files(plan: Plan, prepared: Prepared, matches: Matches) -> NewFileCount:
    """The number of new files of a resolved plan; files rewritten under their own names do not count."""
    if plan.groups:
        return _estimate_groups(plan)
    if not plan.snapshot.replaces_in_place:
        return _estimate_copies(plan, prepared, matches)
    if matches.inserted and not matches.inserts:
        return NewFileCount(1, "rows of the source stay on executors, which write them")
    most = plan.intent.options.rows_per_file
    counts = _count_partition_rows(plan, prepared, matches)
    return NewFileCount(sum(-(-rows // most) for rows in counts))


def _estimate_groups(plan: Plan) -> NewFileCount:
    outputs = sum(group.outputs for group in plan.groups)
    intent = plan.intent
    least = sum(group.rows > 0 for group in plan.groups)
    if isinstance(intent, OptimizeIntent) and intent.removes_duplicates:
        return NewFileCount(min(least, 1), "which rows are duplicates is known once they are compared")
    if not plan.snapshot.replaces_in_place:
        return NewFileCount(least, "files are cut at the table's size while they are written")
    if isinstance(intent, OptimizeIntent) and plan.engine == "spark":
        return NewFileCount(len(plan.groups), "executors cut files where ranges of rows end")
    return NewFileCount(outputs)


def _estimate_copies(plan: Plan, prepared: Prepared, matches: Matches) -> NewFileCount:
    """New files of a table that never replaces files: kept and updated rows are copied into new ones, too."""
    snapshot = plan.snapshot
    copied = any(item.hits < item.file.rows for item in plan.select("rewrite")) or (
        matches.updated > 0 and not isinstance(plan.intent, DeleteIntent)
    )
    if matches.inserted and not matches.inserts:
        return NewFileCount(1, "rows of the source stay on executors, which write them")
    parts: set[Any] = set()
    for action, rows in matches.inserts:
        table = _make_partition_columns(action, rows, prepared.table, plan, snapshot.partitioner.columns)
        parts |= {part.key for part, _ in snapshot.partitioner.partition_rows(table)}
    if copied:
        least = max(len(parts), 1)
        return NewFileCount(least, "rows that are copied are partitioned while they are written")
    large = prepared.table.nbytes > (snapshot.format.target_bytes or 1 << 62)
    most = min(_FEW_ROWS, plan.intent.options.rows_per_file)
    if matches.inserted > most or large or len(matches.inserts) > 1:
        return NewFileCount(len(parts), "several writers cut files at the table's size while they write")
    return NewFileCount(len(parts))


def _count_partition_rows(plan: Plan, prepared: Prepared, matches: Matches) -> Iterator[int]:
    """How many new rows go to each directory, clause by clause."""
    columns = prepared.partition_columns
    for action, rows in matches.inserts:
        if not columns:
            yield len(rows)
            continue
        table = _make_partition_columns(action, rows, prepared.table, plan, columns)
        yield from (part.num_rows for _, part in split_by_partition(table, list(columns)))


def _make_partition_columns(
    action: Any, rows: pa.Array, source: pa.Table, plan: Plan, columns: Sequence[str]
) -> pa.Table:
    """The columns that decide where new rows go, in the dataset's types."""
    assert isinstance(action, Insert)
    taken = source if len(rows) == source.num_rows else take_rows(source, rows)
    values = None if action.values is None else {path[0]: value for path, value in action.values}
    made: dict[str, Any] = {"__rows__": pa.nulls(taken.num_rows)}
    given = set(taken.column_names)
    for name in columns:
        dtype = plan.schema.field(name).type
        if values is None:
            column = taken[name] if name in given else pa.nulls(taken.num_rows, dtype)
        elif name in values:
            column = evaluate(values[name], taken, taken)
        else:
            column = pa.nulls(taken.num_rows, dtype)
        made[name] = cast_exact(column, dtype, column=name, operation=plan.operation, path=plan.snapshot.root)
    return pa.table(made)


def estimate_new_bytes(plan: Plan, prepared: Prepared, matches: Matches, *, files: int) -> int:
    """The estimated size of new files: rows as large as the table's, else half of their size in memory."""
    rows = matches.inserted
    if plan.snapshot.format.merge_on_read.get(plan.operation):
        rows += matches.updated  # they are written into new files
    overhead = files * (_FILE_BYTES + _COLUMN_BYTES * len(plan.schema))
    if not rows:
        return 0
    snapshot = plan.snapshot
    if snapshot.rows:
        return rows * max(snapshot.size - snapshot.footer_bytes, 0) // snapshot.rows + overhead
    return int(rows * prepared.source_bytes / max(prepared.facts.rows, 1) / 2) + overhead
