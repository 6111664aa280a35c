"""The report of a run, as values and as JSON; the HTML page is in page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from intarsia.common.log import redact
from intarsia.core.plan import Plan
from intarsia.core.report import MergeResult
from intarsia.core.report import as_json as result_as_json
from intarsia.core.snapshot import Snapshot
from intarsia.errors import IntarsiaError
from intarsia.pipeline.quality.checks import Check
from intarsia.pipeline.reports.diagram import PipelineGraph, graph_to_json
from intarsia.pipeline.reports.measures import measure_graph
from intarsia.show import units

Status = Literal["done", "unchanged", "planned", "failed", "not run"]

MOST_FILES = 1000
"""Maximum number of files of a step that the JSON names; its counts are of all files."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """The outcome of one step.

    ``done``: it ran, or found nothing to do. ``unchanged``: neither its input nor its target has changed
    since its last success. ``planned``: a dry run. ``failed``: its target is as it was. ``not run``: an
    earlier step failed, or the run was limited to other steps, which ``left_out`` says.
    """

    name: str
    operation: str
    status: Status
    source: str | None = None
    target: str | None = None
    path: str | None = None
    """Where the target is."""
    seconds: float = 0.0
    input_files: int = 0
    input_bytes: int = 0
    skipped_files: int = 0
    """Input files that are there and were taken before."""
    source_inputs: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By the name of a source of files: how many files, and bytes, were taken of it."""
    batches: int | None = None
    """Of a stream: how many batches there were; ``result`` has their counts added."""
    files_written: int = 0
    """In a dry run: to be written; at least so many where ``files_exact`` is False."""
    bytes_written: int = 0
    result: MergeResult | None = field(default=None, repr=False)
    checks: tuple[Check, ...] = ()
    before: Snapshot | None = field(default=None, repr=False)
    after: Snapshot | None = field(default=None, repr=False)
    error: BaseException | None = None
    notes: tuple[str, ...] = ()
    left_out: bool = False
    """Whether it did not run because the run was limited to other steps."""

    @property
    def changed(self) -> bool:
        """Whether the target was (or in a dry run: would be) changed."""
        return self.result is not None and self.result.changed

    @property
    def warned(self) -> bool:
        """Whether an expectation does not hold, and the run goes on."""
        return self.status != "failed" and any(not check.ok for check in self.checks)

    @property
    def bytes_exact(self) -> bool:
        """Whether ``bytes_written`` is exact, and not an estimate."""
        return self.result is None or self.result.bytes_exact

    @property
    def files_exact(self) -> bool:
        """Whether ``files_written`` is exact, and not a minimum."""
        return self.result is None or self.result.new_files_exact


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """One run of a pipeline."""

    pipeline: str
    run_id: str
    started: datetime
    steps: tuple[StepReport, ...]
    seconds: float = 0.0
    engine: str = "spark"
    session: str = ""
    """Which Spark it ran on."""
    dry_run: bool = False
    resumes: str | None = None
    """The run that ended early and whose remaining steps these were."""
    finished_first: PipelineReport | None = field(default=None, repr=False)
    """The report of the steps that an earlier run had left, which were done before these."""
    origin: str | None = None
    env: str | None = None
    graph: PipelineGraph | None = field(default=None, repr=False)
    """What reads and writes what."""
    notes: tuple[str, ...] = ()
    """Of the run as a whole, such as that its lineage could not be sent."""
    json_path: str | None = None
    html_path: str | None = None

    @property
    def ok(self) -> bool:
        return not any(step.status in ("failed", "not run") and not step.left_out for step in self.steps)

    @property
    def failed(self) -> StepReport | None:
        """The step that failed, if one did."""
        return next((step for step in self.steps if step.status == "failed"), None)

    def check(self) -> PipelineReport:
        """The report itself; raises the error of the step that failed, if one did."""
        if self.failed is not None and self.failed.error is not None:
            raise self.failed.error
        return self

    def step(self, name: str) -> StepReport:
        """The report of a step by its name. Raises KeyError."""
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(name)


def describe_status(report: PipelineReport) -> str:
    """The run in a few words: ``done, 1 warning``, ``done, nothing had changed``, ``failed at 'x'``."""
    if report.failed is not None:
        return f"failed at {report.failed.name!r}"
    if not report.ok:
        return "stopped"
    if report.dry_run:
        return f"dry run, nothing written{_count_warnings(report)}"
    if all(step.status == "unchanged" or step.left_out for step in report.steps):
        return "done, nothing had changed"
    return f"done{_count_warnings(report)}"


def _count_warnings(report: PipelineReport) -> str:
    checks = [check for step in report.steps for check in step.checks if not check.is_total]
    number = sum(not check.ok for check in checks)
    return f", {units.format_count(number, 'warning')}" if number else ""


def as_json(report: PipelineReport) -> dict[str, Any]:
    """The report as plain JSON types, without credentials.

    Args:
        report: what :func:`intarsia.pipeline.run` gave.

    Example:
        >>> from intarsia import pipeline
        >>> pipeline.as_json(pipeline.run_file("orders.toml", progress=False))["ok"]
        True
    """
    return {
        "pipeline": report.pipeline,
        "run_id": report.run_id,
        "file": report.origin,
        "env": report.env,
        "status": describe_status(report),
        "ok": report.ok,
        "dry_run": report.dry_run,
        "resumes": report.resumes,
        "started": report.started.isoformat(timespec="milliseconds"),
        "seconds": round(report.seconds, 3),
        "engine": report.engine,
        "session": report.session,
        "notes": list(map(redact, report.notes)),
        "steps": [_step_to_json(step) for step in report.steps],
        "graph": None if report.graph is None else graph_to_json(measure_graph(report.graph, report)),
    }


def _step_to_json(step: StepReport) -> dict[str, Any]:
    result = step.result
    return {
        "name": step.name,
        "operation": step.operation,
        "status": step.status,
        "source": step.source,
        "target": step.target,
        "path": None if step.path is None else redact(step.path),
        "seconds": round(step.seconds, 3),
        "input": {
            "files": step.input_files,
            "bytes": step.input_bytes,
            "skipped_files": step.skipped_files,
            "sources": {
                name: {"files": files, "bytes": size} for name, (files, size) in step.source_inputs.items()
            },
            "batches": step.batches,
        },
        "files_written": step.files_written,
        "files_exact": step.files_exact,
        "bytes_written": step.bytes_written,
        "bytes_exact": step.bytes_exact,
        "changed": step.changed,
        "result": None if result is None else _result_to_json(result),
        "plan": None if result is None or result.plan is None else _plan_to_json(result.plan),
        "checks": [
            {
                "expectation": redact(check.expectation),
                "ok": check.ok,
                "outcome": check.outcome,
                "rows": check.rows,
                "failing": check.failing,
                "share": check.share,
                "at_most": check.limit or None,
                "found": redact(check.found) or None,
                "into": check.into,
            }
            for check in step.checks
        ],
        "before": _layout_to_json(step.before),
        "after": _layout_to_json(step.after),
        "error": None if step.error is None else error_to_json(step.error),
        "notes": list(map(redact, step.notes)),
        "left_out": step.left_out,
    }


def error_to_json(error: BaseException) -> dict[str, Any]:
    """Type, message and hint of an error, without credentials."""
    known = error if isinstance(error, IntarsiaError) else None
    return {
        "type": type(error).__name__,
        "message": redact(known.message if known is not None else str(error)),
        "hint": None if known is None or known.hint is None else redact(known.hint),
        "target_changed": None if known is None else known.changed,
    }


def _result_to_json(result: MergeResult) -> dict[str, Any]:
    """A result; of more than ``MOST_FILES`` files only the first are named."""
    plain = result_as_json(result)
    counts = Counter(entry.operation for entry in result.files)
    if len(result.files) > MOST_FILES:
        paths = (
            "rewritten_files",
            "files_with_deletes",
            "inserted_files",
            "preserved_files",
            "removed_files",
        )
        for name in ("files", *paths):
            plain[name] = plain[name][:MOST_FILES]
    return plain | {
        "path": redact(result.path),
        "total": result.total,
        "file_counts": {
            kind: counts.get(kind, 0)
            for kind in ("rewritten", "with_deletes", "inserted", "preserved", "removed")
        },
    }


def _plan_to_json(plan: Plan) -> dict[str, Any]:
    groups: dict[tuple[str, str], list[int]] = {}
    for entry in plan.files:
        sums = groups.setdefault((entry.action, entry.reason), [0, 0, 0, 0])
        for at, value in enumerate((1, entry.file.rows, entry.file.size, entry.hits)):
            sums[at] += value
    return {
        "actions": dict(Counter(entry.action for entry in plan.files)),
        "reasons": [
            {"action": action, "reason": reason, "files": files, "rows": rows, "bytes": size, "hits": hits}
            for (action, reason), (files, rows, size, hits) in groups.items()
        ],
        "new_files": plan.new_files,
        "new_files_exact": plan.new_files_exact,
        "bytes_to_read": plan.bytes_to_read,
        "bytes_to_write": plan.bytes_to_write,
        "bytes_exact": plan.bytes_exact,
        "engine_reason": plan.engine_reason,
        "notes": [*plan.snapshot.notes, *plan.notes],
    }


def _layout_to_json(snapshot: Snapshot | None) -> dict[str, Any] | None:
    if snapshot is None:
        return None
    partitions = {tuple(sorted((n, str(v)) for n, v in f.partition.items())) for f in snapshot.files}
    return {
        "exists": snapshot.exists,
        "version": snapshot.version,
        "rows": snapshot.rows,
        "files": len(snapshot.files),
        "bytes": snapshot.size,
        "partitions": len(partitions) if snapshot.partition_columns else 0,
    }
