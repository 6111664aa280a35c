"""Where tasks write, and stages over files of a plan whose hits are known and over new rows."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from intarsia.core.change import BEGUN, Hits, Matches, StagedFile
from intarsia.core.intent import MergeIntent
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.ports import Execution, OutputLocation, Progress
from intarsia.core.rule import Action
from intarsia.core.snapshot import Snapshot
from intarsia.engines.spark.source import create_spool, find_spool_location
from intarsia.engines.spark.tasks import INLINE_BYTES, SharedDirectory, TaskRunner, balance
from intarsia.errors import StorageError
from intarsia.kernel.chunks import write_failure
from intarsia.kernel.partitioned_writer import NewFile, NewRowWriter
from intarsia.kernel.rewrite import Rewrite, rewrite

DRIVER_INSERT_ROWS = 20_000
"""Maximum number of new rows that the driver writes itself, without a stage."""


@dataclass(frozen=True, slots=True)
class AttemptOutput:
    """An output location whose staged names no other attempt at the same work has."""

    inner: OutputLocation
    attempt: str

    @staticmethod
    def at(output: OutputLocation) -> AttemptOutput:
        return AttemptOutput(output, f"-{uuid.uuid4().hex}")

    @property
    def txid(self) -> str:
        return self.inner.txid

    @property
    def staging(self) -> Any:
        return replace(self.inner.staging, attempt=self.attempt)

    def new_file_path(self, partition: Any, prefix: str, ordinal: int, *, beside: Any = None) -> str:
        return self.inner.new_file_path(partition, prefix, ordinal, beside=beside)

    def filesystem_path(self, path: str) -> str:
        return self.inner.filesystem_path(path)


class RecordedOutput:
    """An output location that records the paths of its new files."""

    def __init__(self, output: OutputLocation) -> None:
        self._inner = output
        self._begun: list[str] = []

    @property
    def txid(self) -> str:
        return self._inner.txid

    @property
    def staging(self) -> Any:
        return self._inner.staging

    def new_file_path(self, partition: Any, prefix: str, ordinal: int, *, beside: Any = None) -> str:
        if not self._begun:
            self._note()
        else:
            self._check_transaction()
        path = self._inner.new_file_path(partition, prefix, ordinal, beside=beside)
        self._begun.append(path)
        return path

    def filesystem_path(self, path: str) -> str:
        return self._inner.filesystem_path(path)

    def take_back(self) -> None:
        """Remove what was written; the transaction finds by name what cannot be removed here."""
        for path in self._begun:
            with suppress(OSError):
                self.staging.filesystem.delete_file(self.filesystem_path(path))

    def _note(self) -> None:
        """Record the attempt in staging: of one that is killed nothing else is known."""
        note = self._note_path
        try:
            self.staging.filesystem.open_output_stream(note).close()
        except OSError as error:
            raise write_failure(error, note) from error

    def _check_transaction(self) -> None:
        """Begin no other file after the transaction has ended, whose driver would not know of it."""
        staging, note = self.staging, self._note_path
        if not staging.discards and staging.filesystem.get_file_info(note).type == pafs.FileType.NotFound:
            raise StorageError(
                f"Transaction {self.txid} has ended, and {note} with it.", errno=errno.ENOENT, path=note
            )

    @property
    def _note_path(self) -> str:
        staging = self.staging
        return f"{staging.directory}/{BEGUN}{staging.attempt.removeprefix('-')}"


@contextmanager
def open_attempt(output: OutputLocation, snapshot: Snapshot) -> Iterator[OutputLocation]:
    """An output location with names that no other attempt has; runs on an executor.

    Files of a table with a partition spec are written where they stay, and are removed if the attempt fails
    or is killed. Others wait in staging, which goes with the transaction.
    """
    attempt = AttemptOutput.at(output)
    if snapshot.replaces_in_place:
        yield attempt
        return
    noting = RecordedOutput(attempt)
    try:
        yield noting
    except BaseException:
        noting.take_back()
        raise


@contextmanager
def open_shared_directory(
    spark: Any, plan: Plan, table: pa.Table | None, *, output: OutputLocation | None, spool_dir: str | None
) -> Iterator[SharedDirectory | None]:
    """A directory for rows that every task needs, while a stage runs; None where they fit in the closure."""
    if table is None or table.nbytes <= INLINE_BYTES:
        yield None
        return
    if output is not None and not output.staging.discards:
        yield output.staging  # what lies there goes with the transaction
        return
    place = create_spool(spark, find_spool_location(plan.snapshot), spool_dir)
    try:
        yield place
    finally:
        place.remove()


def run_over_files(
    runner: TaskRunner,
    work: Any,
    files: Sequence[FilePlan],
    *,
    shared: Any,
    progress: Progress,
    room: SharedDirectory | None = None,
) -> list[Any]:
    """Run a function over shares of files; its results in the order of the files."""
    if not files:
        return []
    writing = shared.output is not None
    progress("probe and write files" if writing else "probe files", 0, len(files))
    done = _run_shares(runner, work, files, [item.file.size for item in files], shared=shared, room=room)
    progress("write files" if writing else "probe files", len(files), len(files))
    return done


def rewrite_known(
    runner: TaskRunner, execution: Execution, matches: Matches, *, source: pa.Table | None
) -> dict[str, StagedFile]:
    """Rewrite the files of a resolved plan whose hits the driver knows; the new files by path."""
    plan, output = execution.plan, execution.transaction.output()
    items = plan.select("rewrite")
    jobs = [(item, matches.hits.get(item.file.path, Hits.make_empty())) for item in items]
    work = RewriteWork(without_files(plan), output, matches.actions, source)
    execution.progress("write files", 0, len(items))
    with open_shared_directory(runner.spark, plan, source, output=output, spool_dir=None) as room:
        staged = _run_shares(
            runner, rewrite_files, jobs, [item.file.size for item in items], shared=work, room=room
        )
    execution.progress("write files", len(items), len(items))
    return {item.file.path: file for item, file in zip(items, staged, strict=True)}


def _run_shares(
    runner: TaskRunner,
    work: Any,
    jobs: Sequence[Any],
    weights: Sequence[int],
    *,
    shared: Any,
    room: SharedDirectory | None,
) -> list[Any]:
    """Run ``work`` over a list of jobs per task; one result per job, in the jobs' order."""
    shares = runner.make_shares(weights) if jobs else []
    done = runner.run_each(
        work,
        [[jobs[number] for number in share] for share in shares],
        shared=shared,
        weights=[sum(weights[number] for number in share) for share in shares],
        room=room,
    )
    result: dict[int, Any] = {}
    for share, answers in zip(shares, done, strict=True):
        result |= dict(zip(share, answers, strict=True))
    return [result[number] for number in range(len(jobs))]


def write_new_rows(runner: TaskRunner, execution: Execution, matches: Matches) -> list[StagedFile]:
    """Write new files for new rows."""
    plan, prepared = execution.plan, execution.prepared
    tx, progress = execution.transaction, execution.progress
    writer = NewRowWriter(
        with_one_file(plan.snapshot),
        plan.schema,
        prepared.partition_columns,
        plan.intent.options,
        plan.operation,
    )
    prefix = "insert" if isinstance(plan.intent, MergeIntent) else "part"
    new = writer.plan_files(matches.inserts, prepared.table, tx, prefix=prefix)
    if matches.inserted <= DRIVER_INSERT_ROWS:
        staged = [writer.write(file, prepared.table, tx) for file in new]
        if new:
            progress("write files", len(new), len(new))
        return staged
    weights = [len(file.rows) for file in new]
    shares = balance(weights, runner.tasks)
    progress("write new files", 0, len(new))
    output = tx.output()
    with open_shared_directory(runner.spark, plan, prepared.table, output=output, spool_dir=None) as room:
        done = runner.run_each(
            write_new_files,
            [[new[number] for number in share] for share in shares],
            shared=NewFileWork(writer, prepared.table, output),
            weights=[sum(weights[number] for number in share) for share in shares],
            room=room,
        )
    progress("write files", len(new), len(new))
    return [file for files in done for file in files]


def without_files(plan: Plan) -> Plan:
    """The plan without its files, which travel with the jobs."""
    return replace(plan, files=(), groups=(), snapshot=plan.snapshot.with_files())


def with_one_file(snapshot: Snapshot) -> Snapshot:
    """Enough of a snapshot to lay new files out as its own are."""
    return snapshot.with_files(snapshot.files[:1])


@dataclass(frozen=True, slots=True)
class RewriteWork:
    """Files whose hits are known."""

    plan: Plan
    output: OutputLocation
    actions: tuple[Action, ...]
    source: pa.Table | None = None


def rewrite_files(work: RewriteWork, files: Sequence[tuple[FilePlan, Hits]]) -> list[StagedFile]:
    """Rewrite files by hits that the driver knows."""
    tx = AttemptOutput.at(work.output)
    return [
        rewrite_one(item, hits, work.plan, tx, actions=work.actions, number=number, source=work.source)
        for number, (item, hits) in enumerate(files)
    ]


def rewrite_one(
    item: FilePlan,
    hits: Hits,
    plan: Plan,
    tx: OutputLocation,
    *,
    actions: tuple[Action, ...],
    number: int,
    source: pa.Table | None,
) -> StagedFile:
    task = Rewrite.of(item.file, hits, plan, tx, actions=actions, label=f"rewrite-{number:05d}")
    return rewrite(task, source)


@dataclass(frozen=True, slots=True)
class NewFileWork:
    """New rows that are sent with the tasks."""

    writer: NewRowWriter
    source: pa.Table
    output: OutputLocation


def write_new_files(work: NewFileWork, files: Sequence[NewFile]) -> list[StagedFile]:
    """Write some new files."""
    tx = AttemptOutput.at(work.output)
    return [work.writer.write(file, work.source, tx) for file in files]
