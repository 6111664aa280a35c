"""One step carried out: from its declaration to a call of the api; when it runs is the runner's business."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

import pyarrow as pa
import pyarrow.fs as pafs

from intarsia import api
from intarsia.common.names import join_names
from intarsia.core.effects import OperationCall, SourceKind, select_effective
from intarsia.core.ports import Progress
from intarsia.core.report import MergeResult
from intarsia.core.run import silent
from intarsia.core.snapshot import Snapshot
from intarsia.engine_choice import list_engines
from intarsia.errors import InputError
from intarsia.pipeline import inputs
from intarsia.pipeline.expect import Check, check_frame, check_streams, check_target
from intarsia.pipeline.inputs import Downloads, InputFiles, list_inputs
from intarsia.pipeline.model import (
    Compact,
    Deduplicate,
    Delete,
    Expect,
    Merge,
    Optimize,
    Pipeline,
    Source,
    Step,
    Update,
    Write,
    list_names,
    require,
)
from intarsia.pipeline.validation import list_clauses
from intarsia.request import open_iceberg
from intarsia.tables.parquet import ParquetTable

MOST_REHEARSED = 256 << 20
"""Bytes of input and target up to which a dry run carries steps out on a copy in a scratch directory."""


_Change = Merge | Write | Delete | Update | Compact | Optimize | Deduplicate


@dataclass(slots=True)
class RunResources:
    """What the steps of one run share: the tables, the engine, who watches. Made for one run."""

    pipeline: Pipeline
    opening: Callable[[], Any] | None = None
    """Opens the Spark session when it is first needed; None where the engine is another."""
    opened: Any = None
    unopened: BaseException | None = None
    """Why no session could be opened."""
    tables: dict[str, Any] = field(default_factory=dict)
    frames: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    """DataFrames that Spark keeps, since more than one look is taken at them."""
    web: Downloads = field(default_factory=Downloads)
    scratch: tempfile.TemporaryDirectory[str] | None = None

    def close(self) -> None:
        """Let Spark forget what it keeps, and remove what was fetched or rehearsed. Idempotent."""
        if self.scratch is not None:
            self.scratch.cleanup()
            self.scratch = None
        while self.frames:
            self.frames.popitem()[1].unpersist()
        self.web.close()

    @property
    def session(self) -> Any:
        """The Spark session, opened now if it was not; None where the engine is another."""
        if self.opened is None and self.opening is not None:
            try:
                self.opened = self.opening()
            except BaseException as error:
                self.unopened = error
                raise
        return self.opened

    @property
    def engine(self) -> Any:
        return self.pipeline.engine if self.session is None else self.session

    def table(self, target: str) -> Any:
        """The table of a target; one object for the run, which knows the files it has looked into."""
        if target not in self.tables:
            declared = self.pipeline.targets[target]
            if declared.kind == "iceberg":
                self.tables[target] = open_iceberg(declared.path, declared.catalog, **declared.options)
            else:
                self.tables[target] = ParquetTable(declared.path, **dict(declared.options))  # type: ignore[arg-type]
        return self.tables[target]

    def rehearse(self, target: str, there: Snapshot, size: int) -> bool:
        """Let a target be a copy of itself in a scratch directory from now on, for a dry run.

        The answer is no where the target and so many bytes of input are too much for that, and where they
        are not all on this machine.
        """
        if self.pipeline.targets[target].kind != "parquet" or size + there.size > MOST_REHEARSED:
            return False
        is_local = isinstance(there.filesystem, pafs.LocalFileSystem)
        if (there.exists and not (there.files and is_local)) or not self._is_here():
            return False
        if self.scratch is None:
            self.scratch = tempfile.TemporaryDirectory(prefix="intarsia-dry-run-")
        root = os.path.join(tempfile.mkdtemp(dir=self.scratch.name), "data")
        for file in there.files:
            os.makedirs(os.path.dirname(os.path.join(root, file.path)), exist_ok=True)
            shutil.copy2(file.location, os.path.join(root, file.path))
        table = ParquetTable(root)
        table.root = there.root  # which plans and errors name
        self.tables[target] = table
        return True

    def _is_here(self) -> bool:
        """Whether everything that reads and writes is on this machine."""
        if self.session is None:
            return True
        if ".connect." in type(self.session).__module__:
            return False
        return str(self.session.sparkContext.master).startswith("local")

    def list_inputs(self, source: Source) -> InputFiles | None:
        """The files of a source; None where it is a target."""
        session = None if self.opening is None else lambda: self.session
        return None if source.target is not None else list_inputs(source, self.web, session)

    def rows(self, source: Source, there: InputFiles | None, known: pa.Schema | None = None) -> Any:
        """The rows of a source: a DataFrame where Spark can read it, else Arrow streams."""
        if source.target is not None:
            snapshot = self.table(source.target).snapshot()
            if self.session is None:
                return [inputs.read_snapshot_stream(source, snapshot)]
            return inputs.read_snapshot_frame(source, snapshot, self.session)
        assert there is not None
        if self.session is None or there.fetched:
            inputs.check_portable(source)
            return inputs.read_streams(source, there, known)
        return self._frame(source, there, known)

    def _frame(self, source: Source, there: InputFiles, known: pa.Schema | None) -> Any:
        """Text is parsed once where several steps, or an expectation of unique keys, look at it."""
        looks = sum(
            2 if isinstance(step, Expect) and step.unique else 1
            for step in self.pipeline.steps
            if self.pipeline.sources.get(step.source or "") is source
        )
        if looks < 2 or inputs.detect_format(source, there) == "parquet":
            return inputs.read_frame(source, there, self.session, known)
        key = (id(source), there.stamps, None if source.columns or known is None else known.to_string())
        if key not in self.frames:
            self.frames[key] = inputs.read_frame(source, there, self.session, known).persist()
        return self.frames[key]


def carry_out(
    step: Step,
    resources: RunResources,
    *,
    there: InputFiles | None = None,
    dry_run: bool = False,
    progress: Progress = silent,
    extra: Mapping[str, Any] | None = None,
) -> MergeResult | list[Check]:
    """Do what a step says, all of it or nothing; what was counted, or what was checked.

    Args:
        step: what to do.
        shop: the tables and the engine.
        there: the files of the step's source that are to be taken.
        dry_run: plan and count, write nothing.
        progress: who watches.
        extra: more options of the call.
    """
    if isinstance(step, Expect):
        return _expect(step, resources, there, progress)
    target = resources.table(require(step.target))
    options, notes = _options_for(step, resources)
    common = {
        "engine": resources.engine,
        "dry_run": dry_run,
        "progress": progress,
        **options,
        **(extra or {}),
    }
    result = _call_api(step, resources, there, target, common)
    return replace(result, notes=(*result.notes, *notes)) if notes else result


def _options_for(step: _Change, resources: RunResources) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A step's options, and what is to be said of those that have an effect on other engines only.

    These are left out and not refused: a pipeline may be run on any engine, and say how on each.
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
    step: _Change, resources: RunResources, there: InputFiles | None, target: Any, common: Mapping[str, Any]
) -> MergeResult:
    match step:
        case Merge():
            return api.merge(
                _read_rows(step, resources, there),
                target,
                on=step.on if isinstance(step.on, str) else list(step.on),
                strategy=step.strategy or "upsert",
                clauses=list_clauses(step),
                dedup_order_by=list_names(step.dedup_order_by) or None,
                null_keys=step.null_keys,
                except_columns=list_names(step.except_columns) or None,
                **_schema_arguments(step, resources),
                **common,
            )
        case Write():
            rows = _read_rows(step, resources, there)
            given = {"mode": step.mode, "where": step.where, **_schema_arguments(step, resources)}
            return api.write(rows, target, **given, **common)
        case Delete():
            return api.delete(target, step.where, **common)
        case Update():
            return api.update(target, step.set, step.where, **common)
        case Compact():
            return api.compact(target, **_sizes(step), **_filter(step), **common)
        case Optimize():
            by = list_names(step.by)
            return api.optimize(target, by=by, curve=step.curve, **_sizes(step), **_filter(step), **common)
        case Deduplicate():
            on, order = list_names(step.on) or None, list_names(step.order_by) or None
            return api.deduplicate(target, on=on, order_by=order, **_filter(step), **common)
        case _:
            assert_never(step)


def _read_rows(step: Merge | Write, resources: RunResources, there: InputFiles | None) -> Any:
    snapshot: Snapshot = resources.table(require(step.target)).snapshot()
    known = snapshot.schema if snapshot.has_schema else None
    return resources.rows(resources.pipeline.sources[require(step.source)], there, known)


def _schema_arguments(step: Merge | Write, resources: RunResources) -> dict[str, Any]:
    """How rows are taken in; the layout of a table that exists is its own."""
    target = require(step.target)
    there = resources.table(target).snapshot()
    check_layout(step, resources.pipeline, there)
    layout = list_names(resources.pipeline.targets[target].partition_by) or None
    return {
        "missing": step.missing,
        "schema_evolution": step.schema_evolution,
        "partition_by": None if there.has_schema else layout,
    }


def check_layout(step: Step, pipeline: Pipeline, there: Snapshot) -> None:
    """Refuse a target that is declared with another layout than the dataset that is there has."""
    if not isinstance(step, (Merge, Write)):
        return
    target = require(step.target)
    layout = list_names(pipeline.targets[target].partition_by) or None
    if there.has_schema and layout is not None and layout != there.partition_columns:
        raise InputError(
            f"target {target!r} is declared with partition_by {join_names(layout)}, but the dataset that is"
            f" there has {join_names(there.partition_columns) or 'none'}.",
            path=there.root,
            hint="correct partition_by, or write a new dataset.",
        )


def _expect(
    step: Expect, resources: RunResources, there: InputFiles | None, progress: Progress
) -> list[Check]:
    if step.target is not None:
        return check_target(step, resources.table(step.target), resources.engine, progress)
    rows = resources.rows(resources.pipeline.sources[require(step.source)], there)
    return check_streams(step, rows) if isinstance(rows, list) else check_frame(step, rows)


def _sizes(step: Compact | Optimize) -> dict[str, Any]:
    return {"target_mb_per_file": step.target_mb_per_file, "target_rows_per_file": step.target_rows_per_file}


def _filter(step: Compact | Optimize | Deduplicate) -> dict[str, Any]:
    found = step.partition_filter
    return {"partition_filter": list(found) if isinstance(found, tuple) else found}
