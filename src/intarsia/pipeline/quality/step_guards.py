"""Expectations on a stream, or on a target that drop or quarantine rows, as guards of single steps.

Each step that writes the target, or takes the stream, gets a guard of its own, right above it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from intarsia.arguments import make_rule, parse_keys
from intarsia.core.expr import find_columns
from intarsia.core.rule import Assign, Drop, Insert
from intarsia.errors import InputError
from intarsia.pipeline.graph import SourceGraph
from intarsia.pipeline.model import (
    Expect,
    Merge,
    Pipeline,
    Step,
    StepGuard,
    Update,
    Write,
    guards_target,
    list_names,
    name_step,
)
from intarsia.pipeline.quality.conditions import parse_conditions
from intarsia.pipeline.quality.references import parse_references

__all__ = ["check_stream_guard", "check_target_guard", "expand_guards", "find_made"]


def expand_guards(pipeline: Pipeline) -> Pipeline:
    """The pipeline with a guard above each step whose rows an expectation on a target or a stream judges.

    A guard has the name of its expectation; where it has several, the name of its step is added to it.
    """
    steps = [replace(step, name=name_step(step, number)) for number, step in enumerate(pipeline.steps, 1)]
    streams = _list_streamed(pipeline)
    judged = {
        guard.name: list_judged(guard, steps)
        for guard in steps
        if guards_target(guard) or (isinstance(guard, Expect) and guard.source in streams)
    }
    if not judged:
        return pipeline
    scopes = dict(pipeline.scopes)
    made: list[Step] = []
    for step in steps:
        for guard in [one for one in steps if step.name in judged.get(one.name, ())]:
            several = len(judged[guard.name]) > 1
            name = _make_name(guard.name, step.name) if several else guard.name
            said = guard.list_given() | {"name": name, "source": step.source, "writer": step.name}
            made.append(StepGuard(**said))
            chosen = [scopes[one] for one in (guard.name, step.name) if one in scopes]
            if chosen:
                scopes[name] = ", ".join(dict.fromkeys(chosen))
        if step.name not in judged:
            made.append(step)
    return replace(pipeline, steps=tuple(made), scopes=scopes)


def _list_streamed(pipeline: Pipeline) -> set[str]:
    """The sources that are streams, or are computed of one."""
    if all(source.stream is None for source in pipeline.sources.values()):
        return set()
    graph = SourceGraph(pipeline)
    return {name for name in pipeline.sources if graph.list_streams(name)}


def list_judged(guard: Expect, steps: Sequence[Step]) -> list[str]:
    """The steps whose rows an expectation judges: those that write its target, or take its stream below."""
    writers = [step for step in steps if isinstance(step, (Merge, Write))]
    if guard.source is None:
        return [step.name for step in writers if step.target == guard.target]
    at = next(number for number, step in enumerate(steps) if step.name == guard.name)
    below = [step for step in steps[at:] if step in writers]
    return [step.name for step in below if step.source == guard.source]


def _make_name(guard: str, writer: str) -> str:
    return f"{guard} ({writer})"


def find_made(pipeline: Pipeline, name: str) -> list[str]:
    """The guards of an expectation that has several, by the name that it was declared with."""
    found = [step for step in pipeline.steps if isinstance(step, StepGuard)]
    return [step.name for step in found if step.name == _make_name(name, step.writer or "")]


def _writes(step: Step, guard: Expect) -> bool:
    return isinstance(step, (Merge, Write)) and step.target == guard.target


# What can be judged


def check_target_guard(guard: Expect, pipeline: Pipeline) -> None:
    """Refuse an expectation on a target whose rows cannot be judged one by one before they are written.

    Raises:
        InputError: what cannot be judged, with what to do instead.
    """
    if guard.unique:
        raise InputError(
            f"unique is about all rows of the target, so there is none to {guard.action} before it is in.",
            hint="a merge has one row per key; or expect it of the source, or with fail below the steps.",
        )
    for one in parse_references(guard, pipeline):
        if one.name == guard.target and not one.is_source:
            raise InputError(
                f"{one.expectation} is about all rows of the target, also those that are not in it yet.",
                hint='expect it with action = "fail", below the steps that write the target.',
            )
    steps = [(name_step(step, number), step) for number, step in enumerate(pipeline.steps, 1)]
    at = next(number for number, (_, step) in enumerate(steps) if step is guard)
    above = [name for name, step in steps[:at] if _writes(step, guard)]
    if above:
        raise InputError(
            f"step {above[0]!r} above it writes {guard.target!r} as well, and its rows would not be judged.",
            hint="put the expectation above it; or expect it of the sources of the steps below.",
        )
    if not any(_writes(step, guard) for _, step in steps):
        raise InputError(
            f"no step merges or writes rows into {guard.target!r}, so there are none to {guard.action}.",
            hint='expect it with action = "fail" or "warn", or use operation = "delete".',
        )
    read = set(_list_columns(guard))
    for name, step in steps:
        if step.target == guard.target:
            _check_step(name, step, guard, read)


def _list_columns(guard: Expect) -> Iterator[str]:
    """The columns that an expectation is on."""
    for columns in guard.references:
        yield from (name.strip().casefold() for name in columns.split(","))
    for _, condition in parse_conditions(guard):
        yield from (path[0].casefold() for _, path in find_columns(condition))


def _check_step(name: str, step: Step, guard: Expect, read: set[str]) -> None:
    """Refuse a step that gives the target other rows than those of its source."""
    if isinstance(step, Update):
        assigned = [column for column in step.set if column.partition(".")[0].casefold() in read]
        if assigned:
            raise InputError(
                f"step {name!r} assigns {assigned[0]!r} to rows of {guard.target!r}, which are not judged.",
                hint='expect it with action = "fail" below that step; or compute the column in the source.',
            )
    if not isinstance(step, Merge):
        return
    hidden = [column for column in list_names(step.except_columns) if column.casefold() in read]
    if hidden:
        raise InputError(
            f"step {name!r} does not write {hidden[0]!r}.", hint=f"expect it of source {step.source!r}."
        )
    if not step.when:
        return
    clauses = step.when if isinstance(step.when, str) else tuple(step.when)
    for clause in make_rule("upsert", clauses, step.options.get("dialect")).clauses:
        computes = isinstance(clause.action, Assign) or (
            isinstance(clause.action, Insert) and clause.action.values is not None
        )
        if computes or (isinstance(clause.action, Drop) and clause.side != "target_only"):
            what = "computes rows" if computes else "deletes rows"
            raise InputError(
                f"step {name!r} {what} by its clauses, so the rows of its source are not those that it"
                f" puts into {guard.target!r}.",
                hint=f"expect it of source {step.source!r}.",
            )


def check_stream_guard(guard: Expect, pipeline: Pipeline, graph: SourceGraph) -> None:
    """Refuse what cannot be judged batch by batch, of an expectation on a stream or its target.

    Raises:
        InputError: what cannot be judged, with what to do instead.
    """
    if guard.source is None:
        return
    steps = [replace(step, name=name_step(step, number)) for number, step in enumerate(pipeline.steps, 1)]
    at = next(number for number, step in enumerate(pipeline.steps) if step is guard)
    below = [step for step in steps[at + 1 :] if step.source is not None and not isinstance(step, Expect)]
    readers = [step for step in below if guard.source in graph.list_sources(step.source or "")]
    through = [step for step in readers if step.source != guard.source]
    if through:
        raise InputError(
            f"step {through[0].name!r} reads the stream through source {through[0].source!r}, and the rows of"
            " that come in batches.",
            hint=f"expect it of source {through[0].source!r}, or of the target.",
        )
    if not readers:
        raise InputError("no step below takes the stream.", hint="put it above the step that does.")
    for step in readers:
        _check_stream_keys(guard, step)
    if guard.quarantine is not None and len(readers) > 1:
        told = " and ".join(repr(step.name) for step in readers)
        raise InputError(
            f"steps {told} take the stream, each in batches of its own, and would quarantine rows twice.",
            hint="expect it of one of their targets, and drop the rows for the others.",
        )


def _check_stream_keys(guard: Expect, step: Step) -> None:
    """Refuse unique where the rows of a merge do not tell whether the target has another row of the key."""
    if not guard.unique or not isinstance(step, Merge):
        return
    on = parse_keys(step.on, step.options.get("dialect"))
    lacking = [name for name in on["source_keys"] if name not in list_names(guard.unique)]
    if lacking or on.get("residual") is not None:
        told = (
            f"its key {lacking[0]!r} is not among them" if lacking else "its condition is on more than keys"
        )
        raise InputError(
            f"unique is of {', '.join(list_names(guard.unique))}, and step {step.name!r} merges by other"
            f" columns: {told}. So batches do not tell which rows of the target have the same values.",
            hint=f'expect it of target {step.target!r} with action = "fail", below the step.',
        )
