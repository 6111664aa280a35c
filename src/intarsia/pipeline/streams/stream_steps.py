"""Steps whose source is a stream: what may be declared, and one query of Spark over all that is new.

Every micro-batch is one commit under the checkpoint's ``app_id`` and the batch's number, so it takes effect
once, also where Spark gives it again after a kill. Whose a checkpoint is, is in checkpoints.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from intarsia.common.log import get_logger, redact
from intarsia.core.report import MergeResult
from intarsia.errors import DamagedTable, EngineError, InputError, NothingMatched
from intarsia.pipeline.model import Expect, Merge, Step, StepGuard, Stream, Write, require
from intarsia.pipeline.quality.guards import list_guards
from intarsia.pipeline.quality.references import parse_references
from intarsia.pipeline.reports.report import StepReport
from intarsia.pipeline.state.definitions import describe_definition
from intarsia.pipeline.state.input_selection import is_append
from intarsia.pipeline.state.run_state import RunState
from intarsia.pipeline.state.state_file import StepMemory
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
    choose_directory,
    find_new_files,
    finish_refresh,
    has_started,
    has_written,
    make_checkpoint,
    read_checkpoint,
    read_checks,
    read_results,
    write_checkpoint,
)
from intarsia.pipeline.streams.kafka import find_topics, is_kafka, translate_kafka_errors
from intarsia.pipeline.streams.reader import (
    add_place,
    get_local_path,
    read_stream,
    require_stream,
    translate_refusal,
)
from intarsia.show import units
from intarsia.spark.errors import is_late_python, list_spark_error_types, translate_spark_errors
from intarsia.spark.session import is_connect

log = get_logger(__name__)

_POLL_SECONDS = 1.0
_LAST_BATCH_SECONDS = 600.0
_START_ATTEMPTS = 4
_IDENTIFYING = ("subscribe", "subscribepattern", "assign", "topic", "table")
"""Options that say which stream it is, in lower case, as Spark compares them; others may change."""


def find_streams(run_state: RunState, step: Step) -> tuple[str, ...]:
    """The sources that are streams, of those that a step reads; empty for most steps."""
    graph = run_state.resources.graph
    return () if step.source is None else graph.list_streams(step.source)


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
            _find_topics(run_state, name)
        with _name_stream(run_state, streams[0]):
            resolve_checkpoint(run_state, step)


@contextmanager
def _name_stream(run_state: RunState, name: str) -> Iterator[None]:
    """Name the file and the stream in an error about its checkpoint."""
    try:
        yield
    except (InputError, DamagedTable) as error:
        where = run_state.pipeline.origin or f"pipeline {run_state.pipeline.name!r}"
        message = error.message[:1].lower() + error.message[1:]
        told = f"{where}, [sources.{name}] stream: {message}"
        raise type(error)(told, path=error.path, hint=error.hint) from error


def _check_path(run_state: RunState, name: str) -> None:
    stream = require_stream(run_state.pipeline.sources[name])
    path = get_local_path(stream)
    if path is None or any(sign in path for sign in "*?[{") or os.path.exists(path):
        return
    where = run_state.pipeline.origin or f"pipeline {run_state.pipeline.name!r}"
    raise NothingMatched(
        f"{where}, [sources.{name}] stream path: there is no {path}.",
        path=path,
        hint="make the directory, which may be empty; or correct the path.",
    )


def _find_topics(run_state: RunState, name: str) -> None:
    """Note which topics a stream of Kafka reads; a dry run asks no broker."""
    source = run_state.pipeline.sources[name]
    if run_state.dry_run or name in run_state.topics or not is_kafka(require_stream(source)):
        return
    where = run_state.pipeline.origin or f"pipeline {run_state.pipeline.name!r}"
    session = run_state.resources.session
    read_stream(source, f"{where}, [sources.{name}]", session)  # which tells of a package that is missing
    with add_place(f"{where}, [sources.{name}] stream"):
        run_state.topics[name] = find_topics(require_stream(source), session)


# Checkpoints


def resolve_checkpoint(run_state: RunState, step: Step) -> tuple[Checkpoint, str]:
    """The checkpoint that a step goes on with, or a new one that is not written yet; and a note why.

    Raises:
        InputError: it belongs to another query: another stream, another target, another pipeline.
        DamagedTable: it is gone, or damaged, while the target has batches of it.
    """
    own = _describe_query(run_state, step)
    directory = _choose_directory(run_state, step, own)
    fresh = make_checkpoint(
        directory,
        pipeline=run_state.pipeline.name,
        step=step.name,
        step_id=run_state.make_step_id(step.name),
        **own,
    )
    commits = run_state.resources.get_table(require(step.target)).last_commits()
    exists = run_state.get_snapshot(require(step.target)).exists
    refresh = run_state.full_refresh and not is_append(step)
    found = _read(directory, refresh=refresh)
    if found is None:
        lost = _find_lost(run_state, step, fresh, commits)
        if lost and exists and not refresh:
            raise _make_loss(run_state, step, lost)
        return (replace(fresh, refreshing=True) if refresh else fresh), ""
    difference = _find_difference(found, fresh)
    if difference and (not refresh or found.pipeline != fresh.pipeline):
        raise _make_foreign(step, found, difference)
    difference = difference or _find_remade_topic(found, fresh)
    if difference and not refresh:
        raise _make_remade(run_state, step, found, difference)
    if refresh and (difference or not found.refreshing):
        return replace(fresh, refreshing=True), "everything is taken again"
    if has_written(found) and not exists and found.app_id not in commits:
        return replace(fresh, refreshing=True), "there was no target, so everything is taken again"
    if not has_started(found) and found.app_id in commits:
        raise _make_loss(run_state, step, found.location)
    return replace(found, topics=_merge_topics(found, fresh)), ""


def _merge_topics(found: Checkpoint, fresh: Checkpoint) -> tuple[Mapping[str, str], ...]:
    """The ids of topics that were known, and those that a run has found; a dry run finds none."""
    if not fresh.topics or not found.topics:
        return fresh.topics or found.topics
    return tuple({**was, **now} for was, now in zip(found.topics, fresh.topics, strict=True))


def _read(directory: Path, *, refresh: bool) -> Checkpoint | None:
    try:
        return read_checkpoint(directory)
    except DamagedTable:
        if refresh:
            return None
        raise


def make_stream_key(checkpoint: Checkpoint) -> str:
    """The name of a stream into a target in the state."""
    return json.dumps([checkpoint.target, *checkpoint.streams], sort_keys=True)


def _choose_directory(run_state: RunState, step: Step, own: Mapping[str, Any]) -> Path:
    """Where a step's checkpoint is: where the source says, else where it was, else beside the state."""
    declared = _get_declared(run_state, step)
    if declared is not None:
        return choose_directory(Path(declared), step.name)
    key = json.dumps([own["target"], *own["streams"]], sort_keys=True)
    memory = run_state.state.steps.get(step.name, StepMemory())
    known = memory.streams.get(key) or _find_renamed(run_state, step, key)
    if known is not None:
        return Path(known)
    name = run_state.path.name.removesuffix(".json").removesuffix(".state")
    return choose_directory(run_state.path.with_name(f"{name}.checkpoints"), step.name)


def _find_renamed(run_state: RunState, step: Step, key: str) -> str | None:
    """The checkpoint of a step that is not there any more, and meant the same or never came to its end."""
    names = {one.name for one in run_state.list_steps()}
    steps = run_state.state.steps
    claimed = {steps[name].streams.get(key) for name in names if name in steps}
    definition = describe_definition(step, run_state.pipeline)
    for name, memory in steps.items():
        same = not memory.successes or memory.find_success(definition) is not None
        if name not in names and same and key in memory.streams and memory.streams[key] not in claimed:
            return memory.streams[key]
    return None


def _get_declared(run_state: RunState, step: Step) -> str | None:
    found = {
        require_stream(run_state.pipeline.sources[name]).checkpoint for name in find_streams(run_state, step)
    } - {None}
    if len(found) > 1:
        raise InputError(
            f"The streams of source {step.source!r} have several checkpoints: {', '.join(map(str, found))}.",
            hint="one query has one checkpoint: give them the same.",
        )
    return next(iter(found), None)


def _describe_query(run_state: RunState, step: Step) -> dict[str, Any]:
    """What a query must have in common with the one that began its checkpoint."""
    names = find_streams(run_state, step)
    streams = [_identify(require_stream(run_state.pipeline.sources[name])) for name in names]
    codes = run_state.resources.graph.codes
    several = [
        codes[one].digest
        for one in run_state.resources.graph.list_sources(require(step.source))
        if one in codes
    ]
    return {
        "target": run_state.make_target_key(require(step.target)),
        "streams": streams,
        "topics": tuple(run_state.topics.get(name, {}) for name in names) if run_state.topics else (),
        "code": " ".join(several) if len(names) > 1 else "",
    }


def _identify(stream: Stream) -> dict[str, Any]:
    chosen = {name: value for name, value in stream.options.items() if name.lower() in _IDENTIFYING}
    place = {"path": redact(stream.path)} if stream.path else {}
    return {"format": stream.format.lower(), **place, **{name: str(value) for name, value in chosen.items()}}


def _find_difference(found: Checkpoint, fresh: Checkpoint) -> str:
    """How the query of a checkpoint differs from the step's, but for topics; empty where it does not."""
    if found.pipeline != fresh.pipeline:
        return f"is of the pipeline {found.pipeline!r}"
    if found.target != fresh.target:
        return f"is of the target {found.target}, and the step writes {fresh.target}"
    if found.streams != fresh.streams:
        return f"is of {_show_streams(found)}, and the step reads {_show_streams(fresh)}"
    if found.code != fresh.code:
        return "is of another query over several streams, which Spark knows by their order"
    return ""


def _make_foreign(step: Step, found: Checkpoint, difference: str) -> InputError:
    other = "" if is_append(step) else "; or run once with --full-refresh, which begins a new one here"
    return InputError(
        f"The checkpoint of step {step.name!r}, {found.directory}, {difference}.",
        path=found.directory,
        hint=f"declare it as it was, or give the step another name or checkpoint{other}.",
    )


def _find_remade_topic(found: Checkpoint, fresh: Checkpoint) -> str:
    """A topic that has another id than the one whose messages the checkpoint counts; empty for none."""
    for was, now in zip(found.topics, fresh.topics, strict=False):
        for name, known in was.items():
            if now.get(name, known) != known:
                return name
    return ""


def _make_remade(run_state: RunState, step: Step, found: Checkpoint, topic: str) -> InputError:
    way = "run once with --full-refresh, which takes the topic from its beginning"
    if is_append(step):
        way = "give the step another name and the source another checkpoint, to take it from its beginning"
    names = find_streams(run_state, step)
    number = next(at for at, known in enumerate(found.topics) if topic in known)
    where = run_state.pipeline.origin or f"pipeline {run_state.pipeline.name!r}"
    return InputError(
        f"{where}, [sources.{names[number]}] stream: the topic {topic!r} was deleted and made again, and the"
        f" checkpoint of step {step.name!r}, {found.directory}, counts the messages of the one before: what"
        " of them was not taken is gone.",
        path=found.directory,
        hint=f"{way}.",
    )


def _show_streams(checkpoint: Checkpoint) -> str:
    return " and ".join(
        " ".join([str(one.get("format", "")), *(str(value) for key, value in one.items() if key != "format")])
        for one in checkpoint.streams
    )


def _find_lost(
    run_state: RunState, step: Step, fresh: Checkpoint, commits: Mapping[str, Mapping[str, str]]
) -> str | None:
    """The directory of a checkpoint that is gone, but which the state or the target knows of."""
    memory = run_state.state.steps.get(step.name, StepMemory())
    known = memory.streams.get(make_stream_key(fresh))
    if known is not None:
        return known
    start = f"{run_state.make_step_id(step.name)}/"
    if not memory.streams and any(app.startswith(start) for app in commits):
        return fresh.directory
    return None


def _make_loss(run_state: RunState, step: Step, directory: str) -> DamagedTable:
    way = "remove the target, to have it filled again" if is_append(step) else "run once with --full-refresh"
    where = run_state.show_target_path(require(step.target))
    return DamagedTable(
        f"The checkpoint of step {step.name!r} is not in {directory} any more, while {where} has batches of"
        " it: what of the stream was taken is not known.",
        path=directory,
        hint=f"restore it there; or {way}.",
    )


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
    return _complete(step, run_state, report, outcome), judged


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
        arguments, left_out = make_batch_arguments(self.step, self.run_state.resources)
        self._keep(checkpoint)
        batch = StepBatch(
            "merge" if isinstance(self.step, Merge) else "write",
            self._make_target(require(self.step.target)),
            checkpoint.app_id,
            {**arguments, "properties": self._make_properties()},
            checkpoint.results,
            checkpoint.location,
            tuple(self._make_guards(checkpoint)),
        )
        self._await(frame, batch, checkpoint)
        finish_refresh(checkpoint)
        raw = read_results(checkpoint)
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
        key = make_stream_key(checkpoint)
        if memory.streams.get(key) != checkpoint.directory:
            memory.streams[key] = checkpoint.directory
            self.run_state.write()

    def _make_properties(self) -> dict[str, str]:
        return {**(self.step.options.get("properties") or {}), "run_id": self.run_state.run_id}

    def _make_guards(self, checkpoint: Checkpoint) -> Iterator[BatchGuard]:
        for guard in list_guards(self.run_state.list_steps(), self.step):
            if isinstance(guard, StepGuard):
                found = parse_references(guard, self.run_state.pipeline)
                yield BatchGuard(
                    guard,
                    f"{checkpoint.app_id}/{guard.name}",
                    self.run_state.run_id,
                    None if guard.quarantine is None else self._make_target(guard.quarantine),
                    tuple((one, self._make_target(one.name)) for one in found),
                    checkpoint.refreshing,
                )

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
