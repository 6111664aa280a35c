"""Steps whose source is a stream: what may be declared, and one query of Spark over all that is new.

Every micro-batch is one commit under the checkpoint's ``app_id`` and the batch's number, so it takes effect
once, also where Spark gives it again after a kill. Whose a checkpoint is, is in checkpoints.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from intarsia.common.log import get_logger, redact
from intarsia.core.report import MergeResult
from intarsia.errors import DamagedTable, EngineError, InputError, NothingMatched
from intarsia.pipeline.checkpoints import (
    Checkpoint,
    choose_directory,
    find_new_files,
    finish_refresh,
    has_started,
    has_written,
    make_checkpoint,
    read_checkpoint,
    read_results,
    write_checkpoint,
)
from intarsia.pipeline.definitions import describe_definition
from intarsia.pipeline.input_selection import is_append
from intarsia.pipeline.model import Merge, Step, Stream, Write, require
from intarsia.pipeline.report import StepReport
from intarsia.pipeline.run_state import RunState
from intarsia.pipeline.state import StepMemory
from intarsia.pipeline.steps import make_batch_arguments
from intarsia.pipeline.stream_batches import BatchGate, StepBatch, StreamTarget, combine_results
from intarsia.pipeline.stream_reader import add_place, get_local_path, require_stream, translate_refusal
from intarsia.show import units
from intarsia.spark.errors import translate_spark_errors
from intarsia.spark.session import is_connect

log = get_logger(__name__)

_POLL_SECONDS = 1.0
_LAST_BATCH_SECONDS = 600.0
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
        InputError: a checkpoint that belongs to another query.
        DamagedTable: a checkpoint that was lost.
    """
    for step in run_state.list_steps():
        streams = find_streams(run_state, step)
        if not streams or step.name in run_state.left_out or step.target in run_state.unresolved:
            continue
        for name in streams:
            _check_path(run_state, name)
        resolve_checkpoint(run_state, step)


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
    if refresh and (difference or not found.refreshing):
        return replace(fresh, refreshing=True), "everything is taken again"
    if has_written(found) and not exists and found.app_id not in commits:
        return fresh, "there was no target, so everything is taken again"
    if not has_started(found) and found.app_id in commits:
        raise _make_loss(run_state, step, found.location)
    return found, ""


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
        "code": " ".join(several) if len(names) > 1 else "",
    }


def _identify(stream: Stream) -> dict[str, Any]:
    chosen = {name: value for name, value in stream.options.items() if name.lower() in _IDENTIFYING}
    place = {"path": redact(stream.path)} if stream.path else {}
    return {"format": stream.format.lower(), **place, **{name: str(value) for name, value in chosen.items()}}


def _find_difference(found: Checkpoint, fresh: Checkpoint) -> str:
    """How the query of a checkpoint differs from the step's; empty where it does not."""
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


def run_stream_step(step: Merge | Write, run_state: RunState, report: StepReport) -> StepReport:
    """Run a step over a stream, or say in a dry run what can be said; the report is completed.

    Raises as :meth:`StreamStep.run` does.
    """
    made = StreamStep(step, run_state)
    if run_state.dry_run:
        return replace(report, status="planned", after=None, notes=(*report.notes, *made.plan()))
    outcome = made.run()
    report = replace(report, batches=outcome.batches, notes=(*report.notes, *outcome.notes))
    result = outcome.result
    if result is None:
        return report
    target = require(step.target)
    run_state.forget(target)
    run_state.note(step, None, changed=result.changed)
    return replace(
        report,
        status="done",
        result=result,
        files_written=len(result.rewritten_files) + result.new_files,
        bytes_written=result.bytes_written,
        after=run_state.get_snapshot(target),
    )


@dataclass(frozen=True, slots=True)
class StreamOutcome:
    """What one run of a stream step did."""

    notes: tuple[str, ...]
    batches: int = 0
    result: MergeResult | None = None
    """None where there was nothing new."""


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
        checkpoint, note = resolve_checkpoint(self.run_state, self.step)
        notes = tuple(filter(None, (note,)))
        if self.run_state.stop.is_set() or self._find_new_files(checkpoint) == []:
            return StreamOutcome((*notes, "there is nothing new"))
        frame = self._read_frame()
        arguments, left_out = make_batch_arguments(self.step, self.run_state.resources)
        self._keep(checkpoint)
        batch = StepBatch(
            "merge" if isinstance(self.step, Merge) else "write",
            self._make_target(),
            checkpoint.app_id,
            {**arguments, "properties": self._make_properties()},
            checkpoint.results,
            checkpoint.location,
        )
        self._await(frame, batch, checkpoint)
        finish_refresh(checkpoint)
        raw = read_results(checkpoint)
        result = combine_results(raw)
        if result is None:
            return StreamOutcome((*notes, "there is nothing new"))
        told = f"{_count_batches(len(raw))} of {units.format_count(result.source_count, 'row')}"
        return StreamOutcome((told, *notes, *left_out), len(raw), result)

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
        memory = self.run_state.state.get_step(self.step.name)
        key = make_stream_key(checkpoint)
        if memory.streams.get(key) != checkpoint.directory:
            memory.streams[key] = checkpoint.directory
            self.run_state.write()

    def _make_properties(self) -> dict[str, str]:
        return {**(self.step.options.get("properties") or {}), "run_id": self.run_state.run_id}

    def _make_target(self) -> StreamTarget:
        name = require(self.step.target)
        return StreamTarget(self.run_state.pipeline.targets[name], self.run_state.resources.get_table(name))

    def _await(self, frame: Any, batch: StepBatch, checkpoint: Checkpoint) -> None:
        """Run the query to its end; on a stop, to the end of the batch at hand."""
        remote = is_connect(self.run_state.resources.session)
        gate = BatchGate(batch)
        with add_place(f"[sources.{self.step.source}]"), translate_refusal():
            writer = frame.writeStream.foreachBatch(batch if remote else gate)
            writer = writer.option("checkpointLocation", f"file://{checkpoint.location}")
            query = writer.trigger(availableNow=True).start()
        try:
            with translate_spark_errors():
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


def _count_batches(number: int) -> str:
    return "1 batch" if number == 1 else f"{units.format_number(number)} batches"
