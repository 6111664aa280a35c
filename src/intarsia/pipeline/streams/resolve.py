"""The checkpoint that a stream step goes on with: whose it must be, and of which topics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from intarsia.common.log import redact
from intarsia.errors import DamagedTable, InputError
from intarsia.pipeline.model import Step, Stream, require
from intarsia.pipeline.state.definitions import describe_definition
from intarsia.pipeline.state.input_selection import is_append
from intarsia.pipeline.state.run_state import RunState
from intarsia.pipeline.state.state_file import StepMemory
from intarsia.pipeline.streams.checkpoints import (
    Checkpoint,
    choose_directory,
    has_started,
    has_written,
    make_checkpoint,
    read_checkpoint,
    read_offsets,
)
from intarsia.pipeline.streams.kafka import find_other_topic, share_offsets
from intarsia.pipeline.streams.reader import add_place, require_stream

__all__ = ["find_streams", "make_stream_key", "resolve_checkpoint", "show_pipeline"]

_IDENTIFYING = ("subscribe", "subscribepattern", "assign", "topic", "table")
"""Options that say which stream it is, in lower case, as Spark compares them; others may change."""


def find_streams(run_state: RunState, step: Step) -> tuple[str, ...]:
    """The sources that are streams, of those that a step reads; empty for most steps."""
    graph = run_state.resources.graph
    return () if step.source is None else graph.list_streams(step.source)


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
    if not difference:
        name, difference = _find_remade_topic(run_state, step, found)
        if difference and not refresh:
            raise _make_remade(run_state, step, found, name, difference)
    if refresh and (difference or not found.refreshing):
        return replace(fresh, refreshing=True), "everything is taken again"
    if has_written(found) and not exists and found.app_id not in commits:
        return replace(fresh, refreshing=True), "there was no target, so everything is taken again"
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


def _find_remade_topic(run_state: RunState, step: Step, found: Checkpoint) -> tuple[str, str]:
    """A source and its topic that is not the one whose messages the checkpoint counts; empty for none.

    Kafka is asked once in a run; a dry run asks nobody.
    """
    if run_state.dry_run:
        return "", ""
    if found.location not in run_state.topics:
        run_state.topics[found.location] = _compare_topics(run_state, step, found)
    return run_state.topics[found.location]


def _compare_topics(run_state: RunState, step: Step, found: Checkpoint) -> tuple[str, str]:
    names = find_streams(run_state, step)
    streams = [require_stream(run_state.pipeline.sources[name]) for name in names]
    offsets = share_offsets(streams, read_offsets(found))
    records = found.records or ({},) * len(streams)
    for name, stream, taken, known in zip(names, streams, offsets, records, strict=True):
        if taken:
            with add_place(f"{show_pipeline(run_state)}, [sources.{name}] stream"):
                other = find_other_topic(stream, run_state.resources.session, taken, known)
            run_state.reached.add(name)
            if other:
                return name, other
    return "", ""


def show_pipeline(run_state: RunState) -> str:
    """The pipeline's file, or its name where it has none."""
    return run_state.pipeline.origin or f"pipeline {run_state.pipeline.name!r}"


def _make_remade(run_state: RunState, step: Step, found: Checkpoint, name: str, topic: str) -> InputError:
    way = "run once with --full-refresh, which takes the topic from its beginning"
    if is_append(step):
        way = "give the step another name and the source another checkpoint, to take it from its beginning"
    return InputError(
        f"{show_pipeline(run_state)}, [sources.{name}] stream: the topic {topic!r} was deleted and made"
        f" again, and the checkpoint of step {step.name!r}, {found.directory}, counts the messages of the one"
        " before: what of them was not taken is gone.",
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
