"""The graph of a pipeline drawn in a format: trees and Mermaid diagrams here, pictures in diagram_svg."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, assert_never

from intarsia.pipeline.graph import order_steps
from intarsia.pipeline.loading import resolve
from intarsia.pipeline.model import Pipeline
from intarsia.pipeline.reports.diagram import GraphNode, NodeLine, PipelineGraph, graph_to_json, make_graph
from intarsia.pipeline.reports.diagram_svg import draw_svg
from intarsia.show import units

__all__ = ["draw", "draw_mermaid", "draw_tree"]


def draw_tree(graph: PipelineGraph, *, width: int = 100) -> str:
    """The targets in the order of their first steps, below each its steps, and below a step what it reads.

    What a source reads is shown where the source is first met.
    """
    return "\n".join(units.elide(line, width) for line in _Tree(graph).list_lines())


@dataclass(slots=True)
class _Tree:
    graph: PipelineGraph
    shown: set[str] = field(default_factory=set)

    def list_lines(self) -> Iterator[str]:
        targets = [node for node in self.graph.nodes if node.kind == "target"]
        for node in sorted(targets, key=_find_first_step):
            yield from self._draw_node(node, "", "", "")
        for node in self.graph.nodes:  # what no target is made of
            if node.kind != "target" and node.key not in self.shown:
                yield from self._draw_node(node, "", "", "")

    def _draw_node(self, node: GraphNode, lead: str, below: str, before: str) -> Iterator[str]:
        """A node in one line, then a line for each step or input of it."""
        is_known = node.key in self.shown
        nested = bool(below) or bool(before)
        shown_before = " (above)" if is_known and node.lines else ""
        reference = nested and node.kind == "target"
        place = f"  {node.place}" if node.place and not reference else ""
        yield units.make_printable(f"{lead}{before}{node.name}  {node.label}{shown_before}{place}")
        if is_known or reference:
            return
        self.shown.add(node.key)
        for at, line in enumerate(node.lines):
            last = at == len(node.lines) - 1
            yield from self._draw_line(node, at, line, below, last=last)

    def _draw_line(self, node: GraphNode, at: int, line: NodeLine, lead: str, *, last: bool) -> Iterator[str]:
        branch, stem = ("└─ ", "   ") if last else ("├─ ", "│  ")
        edges = [edge for edge in self.graph.edges if (edge.end, edge.line) == (node.key, at)]
        read = next((self.graph.node(edge.start) for edge in edges if edge.kind != "checks"), None)
        keys = [self.graph.node(edge.start).name for edge in edges if edge.kind == "checks"]
        if line.step is None:
            if read is not None:
                yield from self._draw_node(read, f"{lead}{branch}", f"{lead}{stem}", "")
            return
        told = f"{line.number}. {line.text}  {line.operation}"
        told += f" (keys of {', '.join(keys)})" if keys else ""
        if read is None:
            yield units.make_printable(f"{lead}{branch}{told}")
        else:
            yield from self._draw_node(read, f"{lead}{branch}", f"{lead}{stem}", f"{told} ← ")


def _find_first_step(node: GraphNode) -> float:
    return min((line.number for line in node.lines if line.number is not None), default=float("inf"))


_SHAPES = {
    "files": ("[/", "/]"),
    "stream": (">", "]"),
    "query": ("([", "])"),
    "function": ("{{", "}}"),
    "view": ("[/", "/]"),
    "target": ("[(", ")]"),
}


def draw_mermaid(graph: PipelineGraph) -> str:
    """A flowchart in Mermaid's language, which GitHub and GitLab draw where it stands in Markdown."""
    names = {node.key: f"n{number}" for number, node in enumerate(graph.nodes, 1)}
    written = {(edge.end, edge.line) for edge in graph.edges if edge.kind != "checks"}
    lines = ["flowchart LR"]
    for node in graph.nodes:
        left, right = _SHAPES[node.kind]
        own = [
            f"{line.number}. {line.text} ({line.operation})"
            for at, line in enumerate(node.lines)
            if line.step is not None and (node.key, at) not in written
        ]
        text = "<br/>".join([_quote(node.name), f"<i>{_quote(node.label)}</i>", *map(_quote, own)])
        lines.append(f'  {names[node.key]}{left}"{text}"{right}')
    ends = {node.key: node for node in graph.nodes}
    for edge in graph.edges:
        line = ends[edge.end].lines[edge.line]
        label = "" if line.step is None else f'|"{_quote(f"{line.number}. {line.text}")}"|'
        arrow = "-.->" if edge.kind == "checks" else "-->"
        lines.append(f"  {names[edge.start]} {arrow}{label} {names[edge.end]}")
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    """A text inside quotes of Mermaid, whose entities are those of HTML with # for &."""
    shown = units.make_printable(text).replace("#", "#35;").replace("&", "#amp;")
    return shown.replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;").replace("`", "#96;")


def draw(pipeline: Pipeline, format: Literal["text", "svg", "mermaid", "json"] = "svg") -> str:
    """Draw what a pipeline reads and writes. Nothing is run; the same pipeline gives the same text.

    Args:
        pipeline: what to draw.
        format: ``"svg"``, a picture that follows the reader's light or dark setting; ``"text"``, a tree;
            ``"mermaid"``, a diagram for Markdown; ``"json"``, nodes and edges for scripts.

    Raises:
        InputError: a query or function that cannot be read, or an unknown name in it.
        NotSupported: a query, or a function that asks for a session, on an engine that has none.

    Example:
        >>> from intarsia import pipeline
        >>> print(pipeline.draw(pipeline.load("orders.toml"), "text").splitlines()[0].split()[0])
        orders
    """
    pipeline = resolve(pipeline)
    if any(source.is_computed for source in pipeline.sources.values()):
        pipeline = replace(pipeline, steps=order_steps(pipeline))
    graph = make_graph(pipeline)
    match format:
        case "svg":
            return draw_svg(graph)
        case "text":
            return draw_tree(graph)
        case "mermaid":
            return draw_mermaid(graph)
        case "json":
            return json.dumps(graph_to_json(graph), indent=2, ensure_ascii=False)
        case _:
            assert_never(format)
