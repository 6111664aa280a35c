"""The graph of a pipeline as a self-contained SVG: cards from left to right, a line for each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from intarsia.pipeline.reports.diagram import GraphNode, NodeLine, PipelineGraph
from intarsia.show import units
from intarsia.show.layered import Box, Edge, Placement, Point, place_boxes

__all__ = ["draw_svg"]

_PAD, _HEAD, _PLACE, _LINE = 12.0, 29.0, 16.0, 22.0
_MARGIN = 10.0
_SMALLEST = 0.75
_NARROWEST, _WIDEST = 140.0, 320.0
_PLACE_ROOM = 120.0
"""What a place may ask for; a longer one is shortened."""
_MARKS = {
    "done": "done",
    "warned": "warn",
    "unchanged": "same",
    "planned": "plan",
    "failed": "fail",
    "not run": "none",
}
_STYLE = """
.intarsia-graph{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;
--paper:#fff;--card:#fff;--edge:#d5dde5;--ink:#25303b;--quiet:#66727f;--link:#9aa9b9;--hover:#eef3f8;
--files:#5b7fa6;--query:#8459b8;--function:#b3591f;--view:#6b7784;--target:#2a8a5a;--stream:#0f7f8c;
--done:#1d7a49;--fail:#c0352b;--plan:#8a5a00;--same:#8593a1}
@media (prefers-color-scheme:dark){.intarsia-graph{--paper:#14191f;--card:#1a2028;--edge:#36424e;
--ink:#dbe3ea;--quiet:#93a0ad;--link:#5d6f82;--hover:#242d37;
--files:#7fa6d1;--query:#b692e6;--function:#e59659;--view:#93a0ad;--target:#54b985;--stream:#4fc0cf;
--done:#5cc48d;--fail:#f0857d;--plan:#efb04a;--same:#7c8a98}}
.intarsia-graph .paper{fill:var(--paper)}
.intarsia-graph text{fill:var(--ink)}.intarsia-graph .n{font-size:13px;font-weight:600}
.intarsia-graph .q{fill:var(--quiet);font-size:11px}.intarsia-graph .r{text-anchor:end}
.intarsia-graph .card{fill:var(--card);stroke:var(--edge)}
.intarsia-graph .rule{stroke:var(--edge);stroke-width:1}
.intarsia-graph .flow{fill:none;stroke:var(--link);stroke-width:1.6}
.intarsia-graph .back{stroke-dasharray:5 4}.intarsia-graph .checks{stroke-dasharray:1 4;stroke-linecap:round}
.intarsia-graph .quarantines{stroke:var(--fail)}
.intarsia-graph .flow:hover{stroke:var(--ink);stroke-width:2.4}
.intarsia-graph .tip{fill:var(--link)}
.intarsia-graph .hit{fill:transparent}.intarsia-graph a:hover .hit{fill:var(--hover)}
.intarsia-graph a:hover .s{text-decoration:underline}
.intarsia-graph a:focus-visible{outline:none}
.intarsia-graph a:focus-visible .hit{stroke:var(--ink);stroke-width:1.5}
.intarsia-graph .files{fill:var(--files)}.intarsia-graph .query{fill:var(--query)}
.intarsia-graph .function{fill:var(--function)}.intarsia-graph .view{fill:var(--view)}
.intarsia-graph .target{fill:var(--target)}.intarsia-graph .stream{fill:var(--stream)}
.intarsia-graph .done{fill:var(--done)}.intarsia-graph .warn{fill:var(--plan)}
.intarsia-graph text.fail{fill:var(--fail)}
.intarsia-graph path.fail{stroke:var(--fail);stroke-width:2;fill:none}
.intarsia-graph .same,.intarsia-graph .plan{fill:none;stroke:var(--same);stroke-width:1.5}
.intarsia-graph .plan{stroke:var(--plan)}.intarsia-graph .none{stroke:var(--same);stroke-width:1.5}
"""


def draw_svg(graph: PipelineGraph, *, anchor: str | None = None) -> str:
    """The picture; the same graph gives the same text, and every text from outside is escaped.

    It follows the reader's light or dark setting.

    Args:
        graph: what :func:`intarsia.pipeline.reports.diagram.make_graph` gave.
        anchor: where a click on a step leads, with ``{}`` for its number; without it nothing is a link.
    """
    graph = _sort_reads(graph, _place(graph))
    placed = _place(graph)
    cards = [_Card(node, anchor) for node in graph.nodes]
    tops = {card.node.key: card for card in cards}
    parts = []
    for number, (edge, route) in enumerate(zip(graph.edges, placed.routes, strict=True)):
        back = number in placed.backward
        line = tops[edge.end].node.lines[edge.line]
        flow = f"keys for {line.text}" if edge.kind == "checks" else _describe_flow(line)
        title = f"{tops[edge.start].node.name} → {tops[edge.end].node.name}{_add(flow)}"
        css, drawn = ("flow back", _draw_angles(route)) if back else ("flow", _draw_curve(route))
        css = f"{css} {edge.kind}" if edge.kind in ("checks", "quarantines") else css
        parts.append(f'<path class="{css}" d="{drawn}"><title>{_escape(title)}</title></path>')
        parts.append(_draw_tip(route[-1]))
    for card in cards:
        x, y = placed.corners[card.node.key]
        parts.append(card.draw(x, y, placed.widths[card.node.key]))
    width, height = placed.width + 2 * _MARGIN, placed.height + 2 * _MARGIN
    counts = f"{units.format_count(len(graph.nodes), 'node')}, {units.format_count(len(graph.edges), 'edge')}"
    title = _escape(f"The graph of pipeline {graph.pipeline}: {counts}")
    box = f"{_px(-_MARGIN)} {_px(-_MARGIN)} {_px(width)} {_px(height)}"
    # It may shrink to what is still read with ease; a place that is narrower scrolls.
    least = f"max-width:100%;min-width:{width * _SMALLEST:.0f}px;height:auto"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="intarsia-graph" role="group" aria-label="{title}"'
        f' viewBox="{box}" width="{_px(width)}" height="{_px(height)}" style="{least}"><title>{title}</title>'
        f'<style>{_STYLE}</style><rect class="paper" x="{_px(-_MARGIN)}" y="{_px(-_MARGIN)}"'
        f' width="{_px(width)}" height="{_px(height)}"/>{"".join(parts)}</svg>'
    )


def _place(graph: PipelineGraph) -> Placement:
    cards = {node.key: _Card(node, None) for node in graph.nodes}
    links = [
        Edge(
            edge.start,
            edge.end,
            cards[edge.start].height / 2 if edge.leaves is None else cards[edge.start].find_line(edge.leaves),
            cards[edge.end].find_line(edge.line),
        )
        for edge in graph.edges
    ]
    boxes = [Box(key, card.choose_width(), card.height) for key, card in cards.items()]
    return place_boxes(boxes, links)


def _sort_reads(graph: PipelineGraph, placed: Placement) -> PipelineGraph:
    """The graph with what a node reads in the order in which it arrives, so that lines cross less."""
    arrivals = {
        (edge.end, edge.line): route[-2][1]
        for edge, route in zip(graph.edges, placed.routes, strict=True)
        if edge.kind == "reads"
    }
    nodes, moved = [], {}
    for node in graph.nodes:
        reads = [at for at in range(len(node.lines)) if (node.key, at) in arrivals]
        order = [at for _, at in sorted((arrivals[node.key, at], at) for at in reads)]
        lines = list(node.lines)
        for place, at in zip(reads, order, strict=True):
            lines[place] = node.lines[at]
            moved[node.key, at] = place
        nodes.append(replace(node, lines=tuple(lines)))
    edges = [replace(edge, line=moved.get((edge.end, edge.line), edge.line)) for edge in graph.edges]
    return replace(graph, nodes=tuple(nodes), edges=tuple(edges))


@dataclass(frozen=True, slots=True)
class _Card:
    """A node as a card: its name and kind, its place, and a line for each step or input."""

    node: GraphNode
    anchor: str | None

    @property
    def _top(self) -> float:
        """Where the lines start."""
        return _HEAD + (_PLACE if self.node.place or self._size else 2)

    @property
    def _size(self) -> str:
        return " · ".join(_list_sizes(self.node.rows, self.node.bytes))

    @property
    def height(self) -> float:
        lines = len(self.node.lines)
        return self._top + (lines * _LINE + 4 if lines else 4)

    def find_line(self, at: int) -> float:
        """The middle of a line, from the top of the card."""
        return self._top + at * _LINE + _LINE / 2 + 1

    def choose_width(self) -> float:
        """The width at which nothing has to be shortened, within limits."""
        head = _measure(self.node.name, 13.5) + _measure(self.node.label, 11)
        place = min(_measure(self.node.short, 11), _PLACE_ROOM) + _measure(self._size, 11)
        lines = [
            _measure(line.text, 12) + _measure(_describe_line(line), 11) + self._find_indent()
            for line in self.node.lines
        ]
        return min(max(_NARROWEST, 2 * _PAD + 16 + max([head, place, *lines])), _WIDEST)

    def _find_indent(self) -> float:
        if all(line.step is None for line in self.node.lines):
            return 0.0
        return 34.0 if any(line.status for line in self.node.lines) else 24.0

    def draw(self, x: float, y: float, width: float) -> str:
        node = self.node
        tip = "\n".join((f"{node.label} {node.name}", *filter(None, (node.place,)), *node.facts))
        right = x + width - _PAD
        parts = [
            f"<g><title>{_escape(tip)}</title>"
            f'<rect class="card" x="{_px(x)}" y="{_px(y)}" width="{_px(width)}" height="{_px(self.height)}"'
            f' rx="8"/><rect class="{node.kind}" x="{_px(x)}" y="{_px(y + 8)}" width="4"'
            f' height="{_px(self.height - 16)}" rx="2"/>'
        ]
        room = width - 2 * _PAD - 14 - _measure(node.label, 11)
        parts.append(_text(x + _PAD, y + 19, _fit(node.name, room, 13.5), "n"))
        parts.append(_text(right, y + 19, node.label, "q r"))
        if node.place or self._size:
            room = width - 2 * _PAD - (14 + _measure(self._size, 11) if self._size else 0)
            parts.append(_text(x + _PAD, y + 34, _fit(node.short, room, 11), "q"))
            parts.append(_text(right, y + 34, self._size, "q r") if self._size else "")
        parts.append("</g>")
        for at, line in enumerate(node.lines):
            parts.append(self._draw_line(line, x, y + self._top + at * _LINE, width))
        return "".join(parts)

    def _draw_line(self, line: NodeLine, x: float, y: float, width: float) -> str:
        told = _describe_line(line)
        indent = self._find_indent()
        room = width - 2 * _PAD - indent - (14 + _measure(told, 11) if told else 0)
        base = y + 16
        failed = " fail" if line.status == "failed" else ""
        inner = (
            f'<rect class="hit" x="{_px(x + 5)}" y="{_px(y + 1.5)}" width="{_px(width - 6)}"'
            f' height="{_px(_LINE - 1)}" rx="4"/>'
        )
        if line.number is not None:
            status = "warned" if line.warned else line.status
            inner += _draw_mark(status, x + _PAD + 4, y + _LINE / 2 + 1)
            inner += _text(x + _PAD + indent - 7, base, str(line.number), "q r")
        inner += _text(x + _PAD + indent, base, _fit(line.text, room, 12), f"s{failed}" if failed else "s")
        inner += _text(x + width - _PAD, base, told, f"q r{failed}") if told else ""
        tip = _escape(_describe_fully(line, self.node))
        rule = f'<path class="rule" d="M{_px(x + _PAD)} {_px(y + 0.5)}H{_px(x + width - _PAD)}"/>'
        if self.anchor is None or line.number is None:
            return f"{rule}<g><title>{tip}</title>{inner}</g>"
        where = _escape(self.anchor.format(line.number))
        return f'{rule}<a href="{where}" aria-label="{tip}"><title>{tip}</title>{inner}</a>'


# Words


def _describe_line(line: NodeLine) -> str:
    """What stands at the right end of a line: what a run measured, else the operation."""
    if line.step is None:
        return _describe_flow(line)
    if line.status in (None, "planned") and not line.outcome:
        return line.operation
    if line.status in ("unchanged", "not run", "failed", "running", "waiting"):
        return line.outcome if line.status == "failed" and line.outcome else str(line.status)
    return _describe_flow(line) or line.outcome or line.operation


def _describe_flow(line: NodeLine) -> str:
    return " · ".join(_list_sizes(line.rows, line.bytes))


def _describe_fully(line: NodeLine, node: GraphNode) -> str:
    flow = _describe_flow(line)
    if line.step is None:
        return f"{node.name} reads {line.text}{_add(flow)}"
    said = [line.operation, *filter(None, (line.status, flow and f"{flow} in", line.outcome))]
    return f"step {line.number}, {line.text}: {', '.join(said)}"


def _list_sizes(rows: int | None, size: int | None) -> list[str]:
    told = [] if rows is None else [units.format_count(rows, "row")]
    return told if size is None else [*told, units.format_size(size)]


def _add(text: str) -> str:
    return f": {text}" if text else ""


# Drawing


def _draw_curve(route: Sequence[Point]) -> str:
    x, y = route[0]
    parts = [f"M{_px(x)} {_px(y)}"]
    for after_x, after_y in route[1:]:
        if abs(after_y - y) < 0.01:
            parts.append(f"H{_px(after_x)}")
        else:
            middle = (x + after_x) / 2
            parts.append(
                f"C{_px(middle)} {_px(y)} {_px(middle)} {_px(after_y)} {_px(after_x)} {_px(after_y)}"
            )
        x, y = after_x, after_y
    return "".join(parts)


def _draw_angles(route: Sequence[Point]) -> str:
    """Straight lines with rounded corners."""
    parts = [f"M{_px(route[0][0])} {_px(route[0][1])}"]
    for before, corner, after in zip(route, route[1:], route[2:], strict=False):
        turn, leave = _step_towards(corner, before), _step_towards(corner, after)
        parts.append(f"L{turn}Q{_px(corner[0])} {_px(corner[1])} {leave}")
    parts.append(f"L{_px(route[-1][0])} {_px(route[-1][1])}")
    return "".join(parts)


def _step_towards(corner: Point, other: Point, radius: float = 6.0) -> str:
    away = max(abs(other[0] - corner[0]), abs(other[1] - corner[1]), 0.01)
    share = min(radius, away / 2) / away
    x, y = (start + (end - start) * share for start, end in zip(corner, other, strict=True))
    return f"{_px(x)} {_px(y)}"


def _draw_tip(point: Point) -> str:
    x, y = point
    return f'<path class="tip" d="M{_px(x)} {_px(y)}l-7 -4v8z"/>'


def _draw_mark(status: str | None, x: float, y: float) -> str:
    """The outcome of a step as a shape, so that it can be told without its colour."""
    match _MARKS.get(status or ""):
        case "fail":
            return f'<path class="fail" d="M{_px(x - 3.5)} {_px(y - 3.5)}l7 7m0 -7l-7 7"/>'
        case "none":
            return f'<path class="none" d="M{_px(x - 3.5)} {_px(y)}h7"/>'
        case "warn":
            return f'<path class="warn" d="M{_px(x)} {_px(y - 4)}l4.6 8h-9.2z"/>'
        case "done" | "same" | "plan" as css:
            return f'<circle class="{css}" cx="{_px(x)}" cy="{_px(y)}" r="3.6"/>'
        case _:
            return ""


def _text(x: float, y: float, text: str, css: str) -> str:
    return f'<text class="{css}" x="{_px(x)}" y="{_px(y)}">{_escape(text)}</text>'


_NARROW, _WIDE = frozenset("fijlrtI.,:;|!'()[]{}/\\ -`\""), frozenset("mwMW@%&—→")


def _measure(text: str, size: float) -> float:
    """An upper bound of the width of a text, for the widest of the usual fonts."""
    ems = sum(
        0.42 if c in _NARROW else 1.0 if c in _WIDE or not c.isascii() else 0.74 if c.isupper() else 0.64
        for c in text
    )
    return ems * size


def _fit(text: str, room: float, size: float) -> str:
    """The text, shortened in its middle to what fits."""
    shown = units.make_printable(text)
    columns = units.measure_width(shown)
    while columns > 1 and _measure(shown, size) > room:
        columns -= 1
        shown = units.elide(units.make_printable(text), columns)
    return shown


def _px(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _escape(text: str) -> str:
    return escape("\n".join(map(units.make_printable, text.splitlines())), quote=True)
