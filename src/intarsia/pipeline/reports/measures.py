"""What a run measured, put on the graph of its pipeline: rows and bytes of edges, outcomes of steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from intarsia.core.snapshot import Snapshot
from intarsia.pipeline.reports.diagram import GraphNode, NodeLine, PipelineGraph, fill_graph
from intarsia.show import units

if TYPE_CHECKING:
    from intarsia.pipeline.reports.report import PipelineReport, StepReport

__all__ = ["describe_outcome", "measure_graph"]


def measure_graph(graph: PipelineGraph, report: PipelineReport) -> PipelineGraph:
    """The graph with the outcome of each step and the rows and bytes that each edge brought.

    Only what the run knows is filled in: a source of files has bytes, a target that is read the rows and
    bytes it had then, what a step merged or wrote the rows that came.
    """
    return _Measures(graph, report).fill()


def describe_outcome(step: StepReport) -> str:
    """Counts of changed rows, of dropped ones, or of expectations that hold."""
    if step.checks and step.result is not None and step.result.inserted:
        return f"{units.format_number(step.result.inserted)} quarantined"
    dropped = [check for check in step.checks if check.outcome == "dropped"]
    if dropped:  # the last counts the rows of all together
        return f"{units.format_number(dropped[-1].failing)} dropped"
    if step.checks:
        single = [check for check in step.checks if not check.is_total]
        wrong = sum(not check.ok for check in single)
        verb = "does" if wrong == 1 else "do"
        return f"{wrong} of {len(single)} {verb} not hold" if wrong else f"{len(single)} hold"
    if step.result is None:
        return ""
    counts = (("+", step.result.inserted), ("~", step.result.updated), ("−", step.result.deleted))
    return " ".join(f"{sign}{units.format_number(count)}" for sign, count in counts if count) or "no change"


@dataclass(slots=True)
class _Measures:
    graph: PipelineGraph
    report: PipelineReport

    def fill(self) -> PipelineGraph:
        lines = {
            (node.key, at): self._measure_line(node, at, line)
            for node in self.graph.nodes
            for at, line in enumerate(node.lines)
        }
        nodes = {
            node.key: _measure_snapshot(self._find_snapshot(node.name, len(self.report.steps)))
            for node in self.graph.nodes
            if node.kind == "target"
        }
        return fill_graph(self.graph, lines, nodes)

    def _measure_line(self, node: GraphNode, at: int, line: NodeLine) -> dict[str, Any]:
        here = (node.key, at)
        start = next(
            (e.start for e in self.graph.edges if (e.end, e.line) == here and e.kind != "checks"), None
        )
        if line.step is None:
            return {} if start is None else self._measure_read(node.key, start)
        found = [(n, step) for n, step in enumerate(self.report.steps, 1) if step.name == line.step]
        if not found:
            return {"number": None}
        number, step = found[0]
        measured: dict[str, Any] = {
            "number": number,
            "status": step.status,
            "warned": step.warned,
            "outcome": _describe(step),
        }
        if line.operation == "quarantine":
            measured["rows"] = None if step.result is None else step.result.inserted
        elif start is not None and step.result is not None:
            measured["rows"] = step.result.source_count
            _, size = step.source_inputs.get(step.source or "", (0, None))
            measured["bytes"] = size
        return measured

    def _measure_read(self, reader: str, read: str) -> dict[str, Any]:
        """What a query or function, or a view of a target, took from something it reads."""
        if self.graph.node(reader).since is not None:  # a part of the target, which nobody counts
            return {}
        readers = set(self._list_readers(reader))
        kind, _, name = read.partition(":")
        for number, step in enumerate(self.report.steps):
            if f"source:{step.source}" not in readers or not _has_read(step):
                continue
            if kind == "target":
                return _measure_snapshot(self._find_snapshot(name, number))
            if name in step.source_inputs:
                return {"bytes": step.source_inputs[name][1]}
        return self._measure_computed(read)

    def _measure_computed(self, read: str) -> dict[str, Any]:
        """The rows of a query or function that a step of this run took as well."""
        if self.graph.node(read).kind not in ("query", "function"):
            return {}
        counts = {
            step.result.source_count
            for step in self.report.steps
            if f"source:{step.source}" == read and step.result is not None
        }
        return {"rows": counts.pop()} if len(counts) == 1 else {}

    def _list_readers(self, key: str) -> Iterator[str]:
        """A source and the sources that read it, also through others."""
        found = [key]
        for one in found:
            yield one
            found += [
                edge.end
                for edge in self.graph.edges
                if edge.start == one and edge.kind == "reads" and edge.end not in found
            ]

    def _find_snapshot(self, target: str, before: int) -> Snapshot | None:
        """The state of a target before a step, as the steps next to it saw it."""
        steps = self.report.steps
        above = [step for step in steps[:before] if self._find_target(step) == target]
        below = [step for step in steps[before:] if self._find_target(step) == target]
        found = [step.after or step.before for step in reversed(above)] + [step.before for step in below]
        return next((snapshot for snapshot in found if snapshot is not None), None)

    def _find_target(self, step: StepReport) -> str | None:
        """The target whose snapshots are in the report of a step, which may be its quarantine."""
        if step.target is not None or step.result is None:
            return step.target
        ends = [edge for edge in self.graph.edges if edge.kind == "quarantines"]
        lines = [(edge.end, self.graph.node(edge.end).lines[edge.line]) for edge in ends]
        return next((end.partition(":")[2] for end, line in lines if line.step == step.name), None)


def _describe(step: StepReport) -> str:
    told = describe_outcome(step)
    if told != "no change" or not step.changed or step.before is None or step.after is None:
        return told
    return (
        f"{units.format_number(len(step.before.files))} → {units.format_count(len(step.after.files), 'file')}"
    )


def _has_read(step: StepReport) -> bool:
    return step.status in ("done", "planned") or bool(step.checks)


def _measure_snapshot(snapshot: Snapshot | None) -> dict[str, Any]:
    if snapshot is None or not snapshot.exists:
        return {}
    return {"rows": snapshot.rows, "bytes": snapshot.size}
