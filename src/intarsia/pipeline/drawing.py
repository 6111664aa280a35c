"""The graph of a pipeline drawn in a format: the public face of the modules named diagram."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Literal, assert_never

from intarsia.pipeline.diagram import graph_to_json, make_graph
from intarsia.pipeline.diagram_svg import draw_svg
from intarsia.pipeline.diagram_text import draw_mermaid, draw_tree
from intarsia.pipeline.graph import order_steps
from intarsia.pipeline.loading import resolve
from intarsia.pipeline.model import Pipeline

__all__ = ["draw"]


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
