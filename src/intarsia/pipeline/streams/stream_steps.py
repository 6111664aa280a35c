"""Steps whose source is a stream: what may be declared, and one query of Spark over all that is new.

Every micro-batch is one commit under the checkpoint's ``app_id`` and the batch's number, so it takes effect
once, also where Spark gives it again after a kill. Whose a checkpoint is, is in resolve.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from intarsia.common.log import get_logger
from intarsia.core.report import MergeResult
from intarsia.errors import DamagedTable, EngineError, InputError, NothingMatched
from intarsia.pipeline.model import Expect, Merge, Step, StepGuard, Write, find_written_target, require
from intarsia.pipeline.quality.conditions import check_columns
from intarsia.pipeline.quality.guards import list_guards
from intarsia.pipeline.quality.references import mark_found, parse_references
from intarsia.pipeline.reports.report import StepReport
from intarsia.pipeline.state.definitions import describe_definition
from intarsia.pipeline.state.run_state import RunState
from intarsia.pipeline.state.state_file import Pending
from intarsia.pipeline.steps import make_batch_arguments
from intarsia.pipeline.streams.batches import (
    BatchGate,
    BatchGuard,
    StepBatch,
    StreamTarget,
    combine_checks,
    combine_results,
)
from intarsia.pipeline.streams.checkpoints import (
    Checkpoint,
    find_new_files,
    finish_checkpoint,
    read_checks,
    read_offsets,
    read_results,
    write_checkpoint,
)
from intarsia.pipeline.streams.kafka import (
    Records,
    is_kafka,
    reach_topics,
    read_last_records,
    share_offsets,
    translate_kafka_errors,
)
from intarsia.pipeline.streams.reader import (
    add_place,
    get_local_path,
    read_stream,
    require_stream,
    translate_refusal,
)
from intarsia.pipeline.streams.resolve import (
    find_streams,
    make_stream_key,
    resolve_checkpoint,
    show_pipeline,
)
from intarsia.show import units
from intarsia.spark.errors import is_late_python, list_spark_error_types, translate_spark_errors
from intarsia.spark.session import is_connect

log = get_logger(__name__)

_POLL_SECONDS = 1.0
_LAST_BATCH_SECONDS = 600.0
_START_ATTEMPTS = 4


def check_streams(run_state: RunState) -> None:
    """Refuse what stream steps cannot start with, before any step runs: see :func:`resolve_checkpoint`.

    Raises:
        NothingMatched: a local path that is not there.
        InputError: a checkpoint that belongs to another query, or a topic of Kafka that is not there.
        NotSupported: the session lacks the package of Kafka.
        EngineError: no broker of Kafka answers.
        DamagedTable: a checkpoint that was lost.
    """
    for step in run_state.list_steps():
        streams = () if isinstance(step, Expect) else find_streams(run_state, step)
        if not streams or step.name in run_state.left_out or step.target in run_state.unresolved:
            continue
        for name in streams:
            _check_path(run_state, name)
            _check_package(run_state, name)
        with _name_stream(run_state, streams[0]):
            resolve_checkpoint(run_state, step)
        for name in streams:
            _reach_topics(run_state, name)


@contextmanager
def _name_stream(run_state: RunState, name: str) -> Iterator[None]:
    """Name the file and the stream in an error about its checkpoint that does not name one already."""
    where = show_pipeline(run_state)
    try:
        yield
    except (InputError, DamagedTable) as error:
        if error.message.startswith(f"{where}, [sources."):
            raise
        message = error.message[:1].lower() + error.message[1:]
        told = f"{where}, [sources.{name}] stream: {message}"
        raise type(error)(told, path=error.path, hint=error.hint) from error


def _check_path(run_state: RunState, name: str) -> None:
    stream = require_stream(run_state.pipeline.sources[name])
    path = get_local_path(stream)
    if path is None or any(sign in path for sign in "*?[{") or os.path.exists(path):
        return
    raise NothingMatched(
        f"{show_pipeline(run_state)}, [sources.{name}] stream path: there is no {path}.",
        path=path,
        hint="make the directory, which may be empty; or correct the path.",
    )


def _check_package(run_state: RunState, name: str) -> None:
    """Let Spark look at a stream of Kafka, and so tell of a package that is missing; a dry run does not."""
    source = run_state.pipeline.sources[name]
    if not run_state.dry_run and name not in run_state.reached and is_kafka(require_stream(source)):
        place = f"{show_pipeline(run_state)}, [sources.{name}]"
        read_stream(source, place, run_state.resources.session)


def _reach_topics(run_state: RunState, name: str) -> None:
    """Ask whether the topics of a stream of Kafka are there, where it was not; a dry run asks no broker."""
    stream = require_stream(run_state.pipeline.sources[name])
    if run_state.dry_run or name in run_state.reached or not is_kafka(stream):
        return
    with add_place(f"{show_pipeline(run_state)}, [sources.{name}] stream"):
        reach_topics(stream, run_state.resources.session)
    run_state.reached.add(name)


# Running


def run_stream_step(
    step: Merge | Write, run_state: RunState, report: StepReport, guards: Sequence[StepReport] = ()
) -> tuple[StepReport, list[StepReport]]:
    """Run a step over a stream, or say in a dry run what can be said; its report and its guards' completed.

    Raises as :meth:`StreamStep.run` does.
    """
    made = StreamStep(step, run_state)
    if run_state.dry_run:
        told = [replace(one, status="planned", after=None) for one in guards]
        return replace(report, status="planned", after=None, notes=(*report.notes, *made.plan())), told
    outcome = made.run()
    judged = [_complete_guard(one, run_state, outcome) for one in guards]
    report = replace(report, batches=outcome.batches, notes=(*report.notes, *outcome.notes))
    report = _complete(step, run_state, report, outcome)
    made.withdraw()
    return report, judged


def _complete_guard(report: StepReport, run_state: RunState, outcome: StreamOutcome) -> StepReport:
    """The report of a guard, with what it has found in the batches."""
    told = [one for one in outcome.checks if one["guard"] == report.name]
    if not told:
        return report
    checks, result = combine_checks(told)
    report = replace(report, status="done", checks=checks, batches=len(told))
    guard = next(one for one in run_state.list_steps() if one.name == report.name)
    if result is None or guard.quarantine is None:
        return report
    run_state.forget(guard.quarantine)
    run_state.note(guard, None, changed=result.changed)
    return _add_result(replace(report, after=run_state.get_snapshot(guard.quarantine)), result)


def _complete(
    step: Merge | Write, run_state: RunState, report: StepReport, outcome: StreamOutcome
) -> StepReport:
    if outcome.result is None:
        return report
    target = require(step.target)
    run_state.forget(target)
    run_state.note(step, None, changed=outcome.result.changed)
    done = replace(report, status="done", after=run_state.get_snapshot(target))
    return _add_result(done, outcome.result)


def add_batches(step: Step, run_state: RunState, report: StepReport) -> StepReport:
    """The report of a step that failed, with the batches of this run that are in effect."""
    checkpoint = run_state.started.get(step.name)
    raw = [] if checkpoint is None else read_results(checkpoint)
    result = combine_results(raw)
    if result is None:
        return report
    were = "was" if len(raw) == 1 else "were"
    told = f"{_describe_batches(raw, result)} {were} committed before"
    return _add_result(replace(report, batches=len(raw), notes=(*report.notes, told)), result)


def _add_result(report: StepReport, result: MergeResult) -> StepReport:
    return replace(
        report,
        result=result,
        files_written=len(result.rewritten_files) + result.new_files,
        bytes_written=result.bytes_written,
    )


@dataclass(frozen=True, slots=True)
class StreamOutcome:
    """What one run of a stream step did."""

    notes: tuple[str, ...]
    batches: int = 0
    result: MergeResult | None = None
    """None where there was nothing new."""
    checks: tuple[dict[str, Any], ...] = ()
    """What guards have found, by batch."""


@dataclass(slots=True)
class StreamStep:
    """One step over a stream in one run."""

    step: Merge | Write
    run_state: RunState

    def plan(self) -> tuple[str, ...]:
        """What can be said without a query, for a dry run: notes. Touches no checkpoint."""
        checkpoint, note = resolve_checkpoint(self.run_state, self.step)
        new = self._find_new_files(checkpoint)
        told = "a stream: planned when it runs"
        if new is not None:
            told = f"a stream: {units.format_count(len(new), 'file')} that no batch has taken"
        return tuple(filter(None, (told, note)))

    def run(self) -> StreamOutcome:
        """Take all that is new, batch by batch, and end.

        Raises:
            InputError: Spark refuses the query, or a record of it is bad; earlier batches are in effect.
            EngineError: Spark ended it.
        """
        self.run_state.started.pop(self.step.name, None)
        checkpoint, note = resolve_checkpoint(self.run_state, self.step)
        notes = tuple(filter(None, (note,)))
        if self.run_state.stop.is_set() or self._find_new_files(checkpoint) == []:
            return StreamOutcome((*notes, "there is nothing new"))
        frame = self._read_frame()
        guards = tuple(self._make_guards(checkpoint))
        frame = self._look_up_keys(frame, guards)
        arguments, left_out = make_batch_arguments(self.step, self.run_state.resources)
        self._keep(checkpoint)
        batch = StepBatch(
            "merge" if isinstance(self.step, Merge) else "write",
            self._make_target(require(self.step.target)),
            checkpoint.app_id,
            {**arguments, "properties": self._make_properties()},
            checkpoint.results,
            checkpoint.location,
            guards,
        )
        self._await(frame, batch, checkpoint)
        raw = read_results(checkpoint)
        finish_checkpoint(checkpoint, self._read_last_records(checkpoint) if raw else checkpoint.records)
        result = combine_results(raw)
        if result is None:
            return StreamOutcome((*notes, "there is nothing new"))
        told, checks = _describe_batches(raw, result), tuple(read_checks(checkpoint))
        return StreamOutcome((told, *notes, *left_out), len(raw), result, checks)

    def _find_new_files(self, checkpoint: Checkpoint) -> list[str] | None:
        names = find_streams(self.run_state, self.step)
        path = get_local_path(require_stream(self.run_state.pipeline.sources[names[0]]))
        if len(names) > 1 or path is None:
            return None
        return find_new_files(checkpoint, path)

    def _read_frame(self) -> Any:
        source = self.run_state.pipeline.sources[require(self.step.source)]
        listing = self.run_state.list_inputs(source) if source.is_computed else None
        frame = self.run_state.resources.read_rows(source, listing)
        if not frame.isStreaming:
            raise InputError(
                f"[sources.{self.step.source}]: what it gives is no stream, though it reads one.",
                hint="let the result depend on the rows of the stream.",
            )
        return frame

    def _keep(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint's file, and to the state where it is, before Spark begins."""
        write_checkpoint(checkpoint)
        shutil.rmtree(checkpoint.results, ignore_errors=True)
        self.run_state.started[self.step.name] = checkpoint
        memory = self.run_state.state.get_step(self.step.name)
        memory.streams[make_stream_key(checkpoint)] = checkpoint.directory
        self._announce()

    def _announce(self) -> None:
        """Write to the state which tables batches are about to change.

        A run that is killed, or fails, cannot note what its batches have committed; the next one then knows
        that it was not another writer, on whose account steps above would run again.
        """
        run_state = self.run_state
        for step in self._list_writers():
            target = require(find_written_target(step))
            run_state.state.pending[step.name] = Pending(
                run=run_state.run_id,
                batch=0,
                target=run_state.make_target_key(target),
                version=run_state.get_snapshot(target).version,
                definition=describe_definition(step, run_state.pipeline),
                input=run_state.digest_input(step, None),
                stream=True,
            )
        run_state.write()

    def withdraw(self) -> None:
        """Take back what was announced of the tables that no batch has changed."""
        for step in self._list_writers():
            if self.run_state.state.pending.pop(step.name, None) is not None:
                self.run_state.dirty = True

    def _list_writers(self) -> list[Step]:
        """The step, and its guards that have a quarantine."""
        guards = list_guards(self.run_state.list_steps(), self.step)
        return [self.step, *(one for one in guards if isinstance(one, StepGuard) and one.quarantine)]

    def _read_last_records(self, checkpoint: Checkpoint) -> tuple[Records, ...]:
        """The last messages of Kafka that were taken, by which the next run knows their topics."""
        sources = self.run_state.pipeline.sources
        streams = [require_stream(sources[name]) for name in find_streams(self.run_state, self.step)]
        known = checkpoint.records or ({},) * len(streams)
        if not any(map(is_kafka, streams)):
            return checkpoint.records
        try:
            return tuple(
                read_last_records(stream, self.run_state.resources.session, offsets) if offsets else before
                for stream, offsets, before in zip(
                    streams, share_offsets(streams, read_offsets(checkpoint)), known, strict=True
                )
            )
        except (InputError, EngineError) as error:  # all is taken, and those of before still tell a topic
            log.warning("step %s: the last messages could not be read again: %s", self.step.name, error)
            return checkpoint.records

    def _make_properties(self) -> dict[str, str]:
        return {**(self.step.options.get("properties") or {}), "run_id": self.run_state.run_id}

    def _make_guards(self, checkpoint: Checkpoint) -> Iterator[BatchGuard]:
        marks = (f"__intarsia_reference{number}" for number in count())
        for guard in list_guards(self.run_state.list_steps(), self.step):
            if isinstance(guard, StepGuard):
                found = parse_references(guard, self.run_state.pipeline)
                is_appended = guard.unique and isinstance(self.step, Write)
                yield BatchGuard(
                    guard,
                    f"{checkpoint.app_id}/{guard.name}",
                    self.run_state.run_id,
                    None if guard.quarantine is None else self._make_target(guard.quarantine),
                    tuple(
                        (one, next(marks) if one.is_source else self._make_target(one.name)) for one in found
                    ),
                    self._make_target(require(self.step.target)) if is_appended else None,
                    checkpoint.refreshing,
                )

    def _look_up_keys(self, frame: Any, guards: Sequence[BatchGuard]) -> Any:
        """The stream with a column for each foreign key into a source: whether the source has the key.

        It is a part of the query, so that the source is read by this run alone, also where batches are taken
        by a process of a Connect server; its keys are persisted, and the same for all batches.
        """
        for guard in guards:
            for one, name in guard.references:
                if isinstance(name, str):
                    with add_place(f"step {guard.step.name!r}"):
                        keys = self.run_state.resources.persist(
                            self.run_state.resources.read_keys(one).distinct()
                        )
                        check_columns(guard.step, frame.columns)
                        frame = mark_found(one, frame, keys, name)
        return frame

    def _make_target(self, name: str) -> StreamTarget:
        return StreamTarget(self.run_state.pipeline.targets[name], self.run_state.resources.get_table(name))

    @property
    def _place(self) -> str:
        """Of the stream of Kafka that the step reads, else of its source."""
        sources = self.run_state.pipeline.sources
        names = [n for n in find_streams(self.run_state, self.step) if is_kafka(require_stream(sources[n]))]
        return f"[sources.{names[0]}] stream" if names else f"[sources.{self.step.source}]"

    def _await(self, frame: Any, batch: StepBatch, checkpoint: Checkpoint) -> None:
        """Run the query to its end; on a stop, to the end of the batch at hand."""
        remote = is_connect(self.run_state.resources.session)
        gate = BatchGate(batch)
        with add_place(f"[sources.{self.step.source}]"), translate_refusal():
            writer = frame.writeStream.foreachBatch(batch if remote else gate)
            writer = writer.option("checkpointLocation", f"file://{checkpoint.location}")
            query = start_query(writer.trigger(availableNow=True))
        try:
            with translate_spark_errors(), add_place(self._place), translate_kafka_errors():
                while not query.awaitTermination(_POLL_SECONDS):
                    if self.run_state.stop.is_set():
                        _end_after_batch(query, None if remote else gate)
                        break
        except EngineError:
            if not gate.closed:
                raise
        except BaseException:
            if query.isActive:
                query.stop()
            if gate.lock.acquire(timeout=_LAST_BATCH_SECONDS):  # what it was at is committed, or undone
                gate.lock.release()
            raise


def start_query(writer: Any) -> Any:
    """The query of a writer, started; again where the server's Python did not come up in time for it.

    For ``foreachBatch`` a Connect server starts a Python process and waits ten seconds for it (Spark's
    ``PythonWorkerFactory.createSimpleWorker``), which a busy machine may need to import pyspark alone. No
    query was started then, so nothing has happened.
    """
    for _ in range(_START_ATTEMPTS - 1):
        try:
            return writer.start()
        except list_spark_error_types() as error:
            if not is_late_python(error):
                raise
            log.warning("the Python process of the Spark server did not start in time; once more")
    return writer.start()


def _end_after_batch(query: Any, gate: BatchGate | None) -> None:
    """Stop a query when the batch at hand is done: by the gate, or on Connect when Spark says so."""
    if gate is not None:
        gate.close()
    else:
        last = _get_last_batch(query)
        while query.isActive and query.status["isTriggerActive"] and _get_last_batch(query) == last:
            if query.awaitTermination(_POLL_SECONDS):
                return
    query.stop()


def _get_last_batch(query: Any) -> int | None:
    progress = query.lastProgress
    return None if progress is None else int(progress["batchId"])


def _describe_batches(raw: Sequence[Any], result: MergeResult) -> str:
    number = len(raw)
    batches = "1 batch" if number == 1 else f"{units.format_number(number)} batches"
    return f"{batches} of {units.format_count(result.source_count, 'row')}"
