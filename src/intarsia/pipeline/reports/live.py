"""The run of a pipeline while it is under way, in a small file beside the reports that is gone at its end.

Nothing here fails a run: what cannot be written is logged. Nothing depends on the file but who looks at it.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, get_args

from intarsia.common.log import get_logger, redact
from intarsia.pipeline.reports.diagram import (
    GraphEdge,
    GraphNode,
    NodeKind,
    NodeLine,
    PipelineGraph,
    fill_graph,
)
from intarsia.pipeline.reports.measures import describe_outcome, measure_graph
from intarsia.pipeline.reports.report import PipelineReport, StepReport
from intarsia.pipeline.reports.run_index import replace_file

__all__ = ["LiveReport", "LiveRun", "LiveStep", "is_live_name", "read_live_runs"]

log = get_logger(__name__)

SUFFIX = ".running.json"
_LARGEST = 4 << 20
_MOST_RUNS = 50
_SILENT = 24 * 3600.0
"""Seconds after which a run of another machine, which cannot be asked, no longer counts as under way."""


MakeReport = Callable[[], PipelineReport]


@dataclass(frozen=True, slots=True)
class LiveStep:
    """A step of a run under way."""

    name: str
    operation: str
    status: str
    """As of its report; or ``running``, or ``waiting``."""
    seconds: float = 0.0
    outcome: str = ""
    warned: bool = False


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run under way, as of the last step that began or ended."""

    pipeline: str
    run_id: str
    started: datetime
    host: str
    pid: int
    steps: tuple[LiveStep, ...]
    step_started: datetime | None = None
    """When the step that is running began."""
    graph: PipelineGraph | None = field(default=None, repr=False)

    @property
    def done(self) -> int:
        """How many steps are over."""
        return sum(step.status not in ("running", "waiting") for step in self.steps)

    @property
    def running(self) -> LiveStep | None:
        """The step that is running, if one is."""
        return next((step for step in self.steps if step.status == "running"), None)


@dataclass(slots=True)
class LiveReport:
    """Writes the file of a run: when a step begins, and when one ends. Leaving the block removes it."""

    directory: Path | None
    """Where the reports go; None for no file."""
    path: Path | None = None

    def begin_step(self, make_report: MakeReport, step: str) -> None:
        """Note that a step begins; a run that has nothing to do has no file."""
        if self.directory is None:
            return
        report = make_report()
        if self.path is None:
            self._remove_abandoned(report.pipeline)
            name = re.sub(r"[^\w.\-]", "-", f"{report.pipeline}-{report.run_id}")
            self.path = self.directory / f".{name}{SUFFIX}"
        self._write(report, running=step)

    def end_step(self, make_report: MakeReport) -> None:
        """Note that a step is over."""
        if self.path is not None:
            self._write(make_report())

    def _write(self, report: PipelineReport, running: str | None = None) -> None:
        assert self.path is not None
        try:
            replace_file(self.path, json.dumps(_run_to_json(report, running)).encode())
        except OSError as error:
            log.warning("the file of the run under way could not be written: %s", error)

    def _remove_abandoned(self, pipeline: str) -> None:
        """Remove the files of runs of a pipeline that were killed."""
        assert self.directory is not None
        try:
            for path in _list_files(self.directory):
                run = _read_run(path)
                if run is not None and run.pipeline == pipeline and not _is_alive(run, path):
                    path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("files of runs that were killed could not be removed: %s", error)

    def __enter__(self) -> LiveReport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.path is not None:
            try:
                self.path.unlink(missing_ok=True)
            except OSError as refused:
                log.warning("the file of the run under way could not be removed: %s", refused)


def read_live_runs(directory: Path) -> tuple[LiveRun, ...]:
    """The runs under way whose reports will be in a directory, oldest first.

    What is no such file, and a run whose process is gone, is left out. Writes nothing.
    """
    try:
        found = [(path, _read_run(path)) for path in _list_files(directory)]
    except OSError:
        return ()
    alive = [run for path, run in found if run is not None and _is_alive(run, path)]
    return tuple(sorted(alive, key=lambda run: run.started))


def is_live_name(name: str) -> bool:
    """Whether a file is named as that of a run under way."""
    return name.startswith(".") and name.endswith(SUFFIX)


def _list_files(directory: Path) -> list[Path]:
    with os.scandir(directory) as entries:
        names = [one.name for one in entries if is_live_name(one.name)]
    return [directory / name for name in sorted(names)[:_MOST_RUNS]]


def _is_alive(run: LiveRun, path: Path) -> bool:
    """Whether the process of a run is there; of another machine, whether it told something of late."""
    if run.host != platform.node() or os.name != "posix":
        try:
            return time.time() - path.stat().st_mtime < _SILENT
        except OSError:
            return False
    try:
        os.kill(run.pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's
        return True
    return True


# As JSON


def _run_to_json(report: PipelineReport, running: str | None) -> dict[str, Any]:
    steps = [_make_step(step, running) for step in report.steps]
    graph = None if report.graph is None else asdict(_fill_graph(report.graph, report, steps))
    return {
        "pipeline": report.pipeline,
        "run_id": report.run_id,
        "started": report.started.isoformat(timespec="milliseconds"),
        "host": platform.node(),
        "pid": os.getpid(),
        "step_started": None if running is None else datetime.now(UTC).isoformat(timespec="milliseconds"),
        "steps": [asdict(step) for step in steps],
        "graph": graph,
    }


def _fill_graph(graph: PipelineGraph, report: PipelineReport, steps: Sequence[LiveStep]) -> PipelineGraph:
    """The graph with what was measured so far, and with steps that are running or waiting."""
    measured = measure_graph(graph, report)
    statuses = {step.name: {"status": step.status} for step in steps}
    lines = {
        (node.key, at): statuses[line.step]
        for node in measured.nodes
        for at, line in enumerate(node.lines)
        if line.step in statuses
    }
    return fill_graph(measured, lines, {})


def _make_step(step: StepReport, running: str | None) -> LiveStep:
    status: str = "waiting" if step.status == "not run" and not step.left_out else step.status
    if step.name == running and status == "waiting":
        status = "running"
    return LiveStep(
        step.name, step.operation, status, step.seconds, redact(describe_outcome(step)), step.warned
    )


def _read_run(path: Path) -> LiveRun | None:
    """A run from its file; None where that is not one, or is gone."""
    try:
        if path.stat().st_size > _LARGEST:
            return None
        raw = json.loads(path.read_bytes())
        at = raw["step_started"]
        return LiveRun(
            pipeline=_text(raw["pipeline"]),
            run_id=_text(raw["run_id"]),
            started=_time(raw["started"]),
            host=_text(raw["host"]),
            pid=int(raw["pid"]),
            steps=tuple(_read_value(LiveStep, step) for step in raw["steps"]),
            step_started=None if at is None else _time(at),
            graph=None if raw["graph"] is None else _read_graph(raw["graph"]),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _time(value: Any) -> datetime:
    found = datetime.fromisoformat(_text(value))
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


_CHECKS: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str | None": (str, type(None)),
    "int | None": (int, type(None)),
}


def _read_value(kind: type[Any], raw: Mapping[str, Any], **parts: Any) -> Any:
    """A dataclass of plain fields from JSON, in which every field has its type."""
    plain = {name: value for name, value in raw.items() if name not in parts}
    wanted = {one.name: str(one.type) for one in fields(kind)}
    for name, value in plain.items():
        if not isinstance(value, _CHECKS.get(wanted[name], (str,))):
            raise TypeError(name)
    return kind(**plain, **parts)


def _read_graph(raw: Mapping[str, Any]) -> PipelineGraph:
    nodes = tuple(_read_node(node) for node in raw["nodes"])
    edges: Sequence[GraphEdge] = tuple(_read_value(GraphEdge, edge) for edge in raw["edges"])
    lines = {node.key: len(node.lines) for node in nodes}
    for edge in edges:
        if edge.start not in lines or not 0 <= edge.line < lines.get(edge.end, 0):
            raise ValueError("an edge to nowhere")
        if edge.leaves is not None and not 0 <= edge.leaves < lines[edge.start]:
            raise ValueError("an edge from nowhere")
    return PipelineGraph(_text(raw["pipeline"]), nodes, tuple(edges))


def _read_node(raw: Mapping[str, Any]) -> GraphNode:
    if raw["kind"] not in get_args(NodeKind):
        raise ValueError("no kind of node")
    made: GraphNode = _read_value(
        GraphNode,
        raw,
        lines=tuple(_read_value(NodeLine, line) for line in raw["lines"]),
        facts=tuple(map(_text, raw["facts"])),
    )
    return made
