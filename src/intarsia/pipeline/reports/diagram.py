"""The graph of a whole pipeline as values: sources, queries, functions, targets and the steps on them.

What computed sources read is found in graph; pictures of this are in diagram_svg and diagram_text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from intarsia.common.log import redact
from intarsia.pipeline.graph import SourceGraph
from intarsia.pipeline.model import Expect, Pipeline, Source, Step, Target, list_names, name_step
from intarsia.pipeline.quality.references import parse_references

__all__ = ["GraphEdge", "GraphNode", "NodeLine", "PipelineGraph", "make_graph"]

NodeKind = Literal["files", "stream", "query", "function", "view", "target"]
EdgeKind = Literal["reads", "writes", "checks", "quarantines"]
"""``checks``: an expectation looks up keys there; ``quarantines``: it puts rows of a source there."""


_KINDS = {
    "parquet": "Parquet dataset",
    "iceberg": "Iceberg table",
    "spark_table": "table of Spark's catalog",
}
TOPICS = ("subscribe", "subscribePattern", "assign", "table")
"""Options of streams that say what is read."""


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A line of a node: a step that changes or checks it, or something that it reads.

    Rows, bytes and the outcome are those of a run, where there was one.
    """

    text: str
    operation: str
    """Of a step; ``reads`` otherwise."""
    step: str | None = None
    """The name of the step."""
    number: int | None = None
    """Of the step, in the order of the run."""
    status: str | None = None
    warned: bool = False
    """Whether it is done, and something does not hold."""
    rows: int | None = None
    """Rows that were read."""
    bytes: int | None = None
    """Bytes of the files that were read."""
    outcome: str = ""
    """What a step did, in a few words."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A source or a target."""

    key: str
    """``source:name`` or ``target:name``."""
    kind: NodeKind
    name: str
    place: str = ""
    """Where its rows or its code are."""
    short: str = ""
    """The place without directories that most places have in common."""
    label: str = ""
    """The kind, in a word or two."""
    lines: tuple[NodeLine, ...] = ()
    facts: tuple[str, ...] = ()
    """Conditions, columns and the like, for a tooltip."""
    since: str | None = None
    """Of rows of a target: since when they are read; None for all."""
    rows: int | None = None
    """Of a target, after a run."""
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """Rows that go from a node into a line of another."""

    start: str
    end: str
    line: int
    """The line of ``end`` that takes them."""
    kind: EdgeKind
    leaves: int | None = None
    """The line of ``start`` that they come from; None for the node as a whole."""


@dataclass(frozen=True, slots=True)
class PipelineGraph:
    """Nodes and edges of a pipeline, in the order of its declaration."""

    pipeline: str
    nodes: tuple[GraphNode, ...] = ()
    edges: tuple[GraphEdge, ...] = ()

    def node(self, key: str) -> GraphNode:
        """A node by its key. Raises KeyError."""
        for node in self.nodes:
            if node.key == key:
                return node
        raise KeyError(key)


def make_graph(pipeline: Pipeline, sources: SourceGraph | None = None) -> PipelineGraph:
    """The graph of a pipeline; reads the files of queries and functions, and nothing else.

    Args:
        pipeline: what to look at.
        sources: what its computed sources read, where that is known already.

    Raises:
        InputError: a query or function that cannot be read, or an unknown name in it.
        NotSupported: a query, or a function that asks for a session, on an engine that has none.
    """
    return _GraphMaker(pipeline, sources or SourceGraph(pipeline)).make()


@dataclass(slots=True)
class _GraphMaker:
    pipeline: Pipeline
    sources: SourceGraph
    lines: dict[str, list[NodeLine]] = field(default_factory=dict)
    edges: list[GraphEdge] = field(default_factory=list)
    base: str = ""

    def make(self) -> PipelineGraph:
        pipeline = self.pipeline
        self.base = self._find_base()
        nodes = [self._make_source(name, source) for name, source in pipeline.sources.items()]
        nodes += [self._make_target(name, target) for name, target in pipeline.targets.items()]
        self.lines = {node.key: [] for node in nodes}
        for name, source in pipeline.sources.items():
            for read in self._list_read(name, source):
                self._add_edge(read, f"source:{name}", NodeLine(read.partition(":")[2], "reads"), "reads")
        for number, step in enumerate(pipeline.steps, 1):
            self._add_step(replace(step, name=name_step(step, number)), number)
        whole = (replace(node, lines=tuple(self.lines[node.key])) for node in nodes)
        return PipelineGraph(pipeline.name, tuple(whole), tuple(self.edges))

    def _add_step(self, step: Step, number: int) -> None:
        line = NodeLine(step.name, step.operation, step.name, number)
        source = None if step.source is None else f"source:{step.source}"
        target = None if step.target is None else f"target:{step.target}"
        if isinstance(step, Expect) or source is None:
            own = target or source or ""
            self.lines[own].append(line)
            for one in parse_references(step, self.pipeline):
                edge = GraphEdge(
                    f"{'source' if one.is_source else 'target'}:{one.name}",
                    own,
                    len(self.lines[own]) - 1,
                    "checks",
                )
                if edge.start != own and edge not in self.edges:
                    self.edges.append(edge)
            if step.quarantine is not None:
                at = len(self.lines[own]) - 1
                aside = replace(line, operation="quarantine")
                self._add_edge(own, f"target:{step.quarantine}", aside, "quarantines", leaves=at)
        elif target is not None:
            self._add_edge(source, target, line, "writes")

    def _add_edge(
        self, start: str, end: str, line: NodeLine, kind: EdgeKind, *, leaves: int | None = None
    ) -> None:
        self.lines[end].append(line)
        self.edges.append(GraphEdge(start, end, len(self.lines[end]) - 1, kind, leaves))

    def _list_read(self, name: str, source: Source) -> Iterator[str]:
        """The keys of the nodes that a source reads, each once."""
        if source.target is not None:
            yield f"target:{source.target}"
        code = self.sources.codes.get(name)
        found = () if code is None else code.inputs
        yield from dict.fromkeys(f"{'target' if one.is_target else 'source'}:{one.name}" for one in found)

    # Nodes

    def _make_source(self, name: str, source: Source) -> GraphNode:
        facts = [f"{key}: {value}" for key, value in _list_facts(source)]
        kind, label, place = self._describe_source(source)
        return GraphNode(
            f"source:{name}",
            kind,
            name,
            redact(place),
            redact(self._cut(place)),
            label,
            facts=tuple(map(redact, facts)),
            since=source.since,
        )

    def _describe_source(self, source: Source) -> tuple[NodeKind, str, str]:
        if source.python is not None:
            return "function", "function", self._shorten(source.python)
        if source.sql_file is not None:
            return "query", "query", self._shorten(source.sql_file)
        if source.sql is not None:
            return "query", "query", ""
        if source.target is not None:
            return "view", "rows of a target" if source.since is None else "new rows of a target", ""
        if source.stream is not None:
            stream = source.stream
            named = [str(stream.options[key]) for key in TOPICS if key in stream.options]
            place = named[0] if stream.path is None and named else self._shorten(stream.path or "")
            return "stream", f"{stream.format} stream", place
        if source.stream is not None:
            place = "" if source.stream.path is None else f" {self._shorten(source.stream.path)}"
            return "files", "stream", f"{source.stream.format}{place}"
        paths = list_names(source.path)
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        return "files", "files", f"{self._shorten(paths[0])}{more}" if paths else ""

    def _make_target(self, name: str, target: Target) -> GraphNode:
        is_iceberg = target.kind == "iceberg"
        by = ", ".join(list_names(target.partition_by))
        facts = [f"partitioned by {by}"] if by else []
        facts += [f"catalog {self._shorten(target.catalog)}"] if is_iceberg else []
        place = self._shorten(target.path) if target.kind == "parquet" else target.path
        return GraphNode(
            f"target:{name}",
            "target",
            name,
            redact(place),
            redact(self._cut(place)),
            _KINDS[target.kind],
            facts=tuple(map(redact, facts)),
        )

    def _cut(self, place: str) -> str:
        """A place below the directory that most are in; others as they are."""
        return f"…/{place[len(self.base) :]}" if self.base and place.startswith(self.base) else place

    def _find_base(self) -> str:
        """The directory that most paths are in, where it is not the pipeline's own."""
        paths = [path for source in self.pipeline.sources.values() for path in list_names(source.path)]
        paths += [one.stream.path for one in self.pipeline.sources.values() if one.stream and one.stream.path]
        paths += [target.path for target in self.pipeline.targets.values() if target.kind == "parquet"]
        folders = [os.path.dirname(self._shorten(path)) for path in paths if "://" not in path]
        away = [folder for folder in folders if folder.startswith(("..", "/"))]
        if len(away) < 2 or len({folder.startswith("/") for folder in away}) > 1:
            return ""
        base = os.path.commonpath(away)
        return "" if set(base) <= set("./") else os.path.join(base, "")

    def _shorten(self, path: str) -> str:
        """A path from the pipeline's own directory, where that is shorter."""
        if not path or self.pipeline.origin is None or "://" in path:
            return path
        shown = os.path.normpath(path)
        below = os.path.relpath(shown, os.path.dirname(os.path.abspath(self.pipeline.origin)))
        return below if len(below) < len(shown) else shown


def _list_facts(source: Source) -> Iterator[tuple[str, Any]]:
    if source.since is not None:
        yield "since", source.since
    if source.where is not None:
        yield "where", source.where
    for name, text in source.derive.items():
        yield f"derive {name}", text
    if source.sql is not None:
        yield "sql", source.sql.strip()


def fill_graph(
    graph: PipelineGraph,
    lines: Mapping[tuple[str, int], Mapping[str, Any]],
    nodes: Mapping[str, Mapping[str, Any]],
) -> PipelineGraph:
    """The graph with fields of lines (by node and position) and of nodes replaced."""
    filled = tuple(
        replace(
            node,
            lines=tuple(replace(line, **lines.get((node.key, at), {})) for at, line in enumerate(node.lines)),
            **nodes.get(node.key, {}),
        )
        for node in graph.nodes
    )
    return replace(graph, nodes=filled)


def graph_to_json(graph: PipelineGraph) -> dict[str, Any]:
    """Nodes, steps and edges as plain JSON types, without credentials."""
    ends = {node.key: node for node in graph.nodes}
    return {
        "pipeline": graph.pipeline,
        "nodes": [
            {
                "key": node.key,
                "kind": node.kind,
                "name": node.name,
                "place": node.place,
                "rows": node.rows,
                "bytes": node.bytes,
                "steps": [_step_to_json(line) for line in node.lines if line.step is not None],
            }
            for node in graph.nodes
        ],
        "edges": [
            {
                "from": edge.start,
                "to": edge.end,
                "kind": edge.kind,
                "step": ends[edge.end].lines[edge.line].step,
                "rows": ends[edge.end].lines[edge.line].rows,
                "bytes": ends[edge.end].lines[edge.line].bytes,
            }
            for edge in graph.edges
        ],
    }


def _step_to_json(line: NodeLine) -> dict[str, Any]:
    return {
        "name": line.step,
        "number": line.number,
        "operation": line.operation,
        "status": line.status,
        "outcome": line.outcome,
    }
