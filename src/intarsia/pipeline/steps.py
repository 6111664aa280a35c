"""A step's declaration made into one call of the api; which steps run, and when, is in step_runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, assert_never

from intarsia import api
from intarsia.common.names import join_names
from intarsia.core.effects import OperationCall, SourceKind, select_effective
from intarsia.core.ports import Progress, Table
from intarsia.core.report import MergeResult
from intarsia.core.run import ignore_progress
from intarsia.core.snapshot import Snapshot
from intarsia.engine_choice import list_engines
from intarsia.errors import InputError
from intarsia.pipeline.inputs import InputFiles
from intarsia.pipeline.model import (
    Compact,
    Deduplicate,
    Delete,
    Expect,
    Merge,
    Optimize,
    Pipeline,
    Step,
    Update,
    Write,
    list_names,
    require,
)
from intarsia.pipeline.quality.checks import Check
from intarsia.pipeline.quality.expect import check_source, check_target
from intarsia.pipeline.resources import RunResources
from intarsia.pipeline.validation import list_clauses

_Change = Merge | Write | Delete | Update | Compact | Optimize | Deduplicate


def carry_out(
    step: Step,
    resources: RunResources,
    *,
    listing: InputFiles | None = None,
    dry_run: bool = False,
    progress: Progress = ignore_progress,
    extra: Mapping[str, Any] | None = None,
) -> MergeResult | list[Check]:
    """Run a step, all of it or nothing: the result of its operation, or the checks of an expectation.

    Args:
        step: what to do.
        resources: the engine, the tables and the rows of sources.
        listing: the files of the step's source that it takes.
        dry_run: plan and count, write nothing.
        progress: called with what is going on, done and total.
        extra: more options of the call.
    """
    if isinstance(step, Expect):
        return _expect(step, resources, listing, progress)
    target = resources.get_table(require(step.target))
    options, notes = _select_options(step, resources)
    common = {
        "engine": resources.engine,
        "dry_run": dry_run,
        "progress": progress,
        **options,
        **(extra or {}),
    }
    result = _call_api(step, resources, listing, target, common)
    return replace(result, notes=(*result.notes, *notes)) if notes else result


def _select_options(step: _Change, resources: RunResources) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A step's options for this engine, and a note on those that only other engines have.

    These are left out and not refused: a pipeline may be run on any engine, and have options for each.
    """
    engines = list_engines(resources.engine, step.operation, None)
    rows: SourceKind = "none" if step.source is None else "frame" if "spark" in engines else "rows"
    call = OperationCall(step.operation, engines=engines, source=rows)
    here = select_effective(call, step.options)
    anywhere = select_effective(OperationCall(step.operation, source=rows), step.options)
    left_out = [name for name in anywhere if name not in here]
    kept = {name: value for name, value in step.options.items() if name not in left_out}
    shown = ", ".join(f"{name}=" for name in left_out)
    return kept, (f"Left out, since this engine has no use for it: {shown}.",) if left_out else ()


def _call_api(
    step: _Change,
    resources: RunResources,
    listing: InputFiles | None,
    target: Table,
    common: Mapping[str, Any],
) -> MergeResult:
    match step:
        case Merge():
            rows = _read_rows(step, resources, listing)
            return api.merge(
                rows, target, **_make_row_arguments(step), **_make_layout_argument(step, resources), **common
            )
        case Write():
            rows = _read_rows(step, resources, listing)
            return api.write(
                rows, target, **_make_row_arguments(step), **_make_layout_argument(step, resources), **common
            )
        case Delete():
            return api.delete(target, step.where, **common)
        case Update():
            return api.update(target, step.set, step.where, **common)
        case Compact():
            return api.compact(target, **_make_size_arguments(step), **_make_filter_arguments(step), **common)
        case Optimize():
            by = list_names(step.by)
            return api.optimize(
                target,
                by=by,
                curve=step.curve,
                **_make_size_arguments(step),
                **_make_filter_arguments(step),
                **common,
            )
        case Deduplicate():
            on, order = list_names(step.on) or None, list_names(step.order_by) or None
            return api.deduplicate(target, on=on, order_by=order, **_make_filter_arguments(step), **common)
        case _:
            assert_never(step)


def _read_rows(step: Merge | Write, resources: RunResources, listing: InputFiles | None) -> Any:
    snapshot: Snapshot = resources.get_table(require(step.target)).snapshot()
    known = snapshot.schema if snapshot.has_schema else None
    return resources.read_rows(resources.pipeline.sources[require(step.source)], listing, known)


def make_batch_arguments(
    step: Merge | Write, resources: RunResources
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The arguments of the call for each batch of a stream, and notes on options without effect."""
    options, notes = _select_options(step, resources)
    return {**_make_row_arguments(step), **options}, notes


def _make_row_arguments(step: Merge | Write) -> dict[str, Any]:
    given: dict[str, Any] = {"missing": step.missing, "schema_evolution": step.schema_evolution}
    if isinstance(step, Write):
        return {**given, "mode": step.mode, "where": step.where}
    return {
        **given,
        "on": step.on if isinstance(step.on, str) else list(step.on),
        "strategy": step.strategy or "upsert",
        "clauses": list_clauses(step),
        "dedup_order_by": list_names(step.dedup_order_by) or None,
        "null_keys": step.null_keys,
        "except_columns": list_names(step.except_columns) or None,
    }


def _make_layout_argument(step: Merge | Write, resources: RunResources) -> dict[str, Any]:
    """``partition_by``, for a table that does not exist yet."""
    target = require(step.target)
    snapshot = resources.get_table(target).snapshot()
    check_layout(step, resources.pipeline, snapshot)
    layout = list_names(resources.pipeline.targets[target].partition_by) or None
    return {"partition_by": None if snapshot.has_schema else layout}


def check_layout(step: Step, pipeline: Pipeline, snapshot: Snapshot) -> None:
    """Raise InputError where a target is declared with other partition columns than the dataset has."""
    if not isinstance(step, (Merge, Write)):
        return
    target = require(step.target)
    layout = list_names(pipeline.targets[target].partition_by) or None
    if snapshot.has_schema and layout is not None and layout != snapshot.partition_columns:
        raise InputError(
            f"target {target!r} is declared with partition_by {join_names(layout)}, but the dataset that is"
            f" there has {join_names(snapshot.partition_columns) or 'none'}.",
            path=snapshot.root,
            hint="correct partition_by, or write a new dataset.",
        )


def _expect(
    step: Expect, resources: RunResources, listing: InputFiles | None, progress: Progress
) -> list[Check]:
    if step.source is None:
        return check_target(step, resources, progress)
    return check_source(step, resources, listing)


def _make_size_arguments(step: Compact | Optimize) -> dict[str, Any]:
    return {"target_mb_per_file": step.target_mb_per_file, "target_rows_per_file": step.target_rows_per_file}


def _make_filter_arguments(step: Compact | Optimize | Deduplicate) -> dict[str, Any]:
    found = step.partition_filter
    return {"partition_filter": list(found) if isinstance(found, tuple) else found}
