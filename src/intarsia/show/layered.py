"""Where the boxes of a directed graph stand, layer by layer, and how the lines between them run."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Box", "Edge", "Placement", "Point", "place_boxes"]

_ROW_GAP, _COLUMN_GAP, _MOST_GAP = 18.0, 38.0, 90.0
_LANE = 9.0
"""Distance between lines that lead back to an earlier layer."""
_SWEEPS = 12
_PASSING = 10.0
"""Height that a line takes where it passes a layer."""

_HOMEWARD = 0.05
"""How much a box is drawn to the middle, where a link weighs 1 or more: the picture stays flat."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """A box to be placed; all boxes of a layer get the width of the widest."""

    key: str
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Edge:
    """A line from the right side of one box to the left side of another."""

    start: str
    end: str
    leaves: float
    """Distance from the top of its first box."""
    enters: float
    """Distance from the top of its last box."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of everything, from the upper left corner."""

    corners: Mapping[str, Point]
    """The upper left corner of each box."""
    widths: Mapping[str, float]
    routes: tuple[tuple[Point, ...], ...]
    """Per link the points that it passes, each horizontally."""
    backward: frozenset[int]
    """The numbers of links that lead to an earlier layer: right angles below all boxes, not curves."""
    width: float
    height: float


def place_boxes(boxes: Sequence[Box], links: Sequence[Edge]) -> Placement:
    """Place boxes in layers from left to right, so that links lead to later layers and cross little.

    Layers by longest path; circles are broken at the link that closes them, in the order of the boxes. Order
    within a layer by barycentres. No link crosses a box. The same graph gives the same placement. Time and
    memory grow with the boxes and with the layers that links pass.

    Example:
        >>> placed = place_boxes([Box("a", 80, 20), Box("b", 80, 20)], [Edge("a", "b", 10, 10)])
        >>> placed.corners["a"] < placed.corners["b"]
        True
    """
    sizes = {box.key: box for box in boxes}
    if not sizes:
        return Placement({}, {}, (), frozenset(), 0.0, 0.0)
    backward = _find_backward(list(sizes), links)
    forward = [number for number in range(len(links)) if number not in backward]
    layer_of = _choose_layers(list(sizes), [links[number] for number in forward])
    grid = _Grid(sizes, layer_of)
    for number in forward:
        grid.add_link(number, links[number])
    grid.order()
    grid.set_heights()
    return _finish(grid, links, backward)


# Layers


def _find_backward(keys: Sequence[str], links: Sequence[Edge]) -> frozenset[int]:
    """The numbers of links that close a circle, as a search in depth meets them."""
    leaving: dict[str, list[int]] = {key: [] for key in keys}
    entered = set()
    for number, link in enumerate(links):
        leaving[link.start].append(number)
        entered.add(link.end)
    found: set[int] = set()
    done: set[str] = set()
    for root in sorted(keys, key=lambda key: key in entered):  # those that nothing leads to come first
        if root in done:
            continue
        path, under_way = [(root, iter(leaving[root]))], {root}
        while path:
            key, rest = path[-1]
            followed = next(rest, None)
            if followed is None:
                path.pop()
                under_way.discard(key)
                done.add(key)
            elif links[followed].end in under_way:
                found.add(followed)
            elif links[followed].end not in done:
                after = links[followed].end
                under_way.add(after)
                path.append((after, iter(leaving[after])))
    return frozenset(found)


def _choose_layers(keys: Sequence[str], links: Sequence[Edge]) -> dict[str, int]:
    """The longest way to each box; boxes that nothing leads to stand right before what they lead to."""
    leaving: dict[str, list[str]] = {key: [] for key in keys}
    waiting = dict.fromkeys(keys, 0)
    for link in links:
        leaving[link.start].append(link.end)
        waiting[link.end] += 1
    roots = {key for key, count in waiting.items() if not count}
    layers = dict.fromkeys(keys, 0)
    ready = [key for key in keys if key in roots]
    for key in ready:
        for after in leaving[key]:
            layers[after] = max(layers[after], layers[key] + 1)
            waiting[after] -= 1
            if not waiting[after]:
                ready.append(after)
    for key in roots:
        if leaving[key]:
            layers[key] = min(layers[after] for after in leaving[key]) - 1
    return layers


# Order and height within the layers


@dataclass(slots=True)
class _Cell:
    """A box in its layer, or the place where a link passes a layer."""

    key: str
    layer: int
    height: float
    is_box: bool
    y: float = 0.0
    home: float = 0.0
    """Where it stands when its layer is centred."""
    before: list[_Joint] = field(default_factory=list)
    after: list[_Joint] = field(default_factory=list)


@dataclass(slots=True)
class _Joint:
    """The neighbour of a cell on a link."""

    cell: _Cell
    there: float
    """Where the link is at the neighbour, from its top."""
    here: float
    weight: float


@dataclass(slots=True)
class _Grid:
    """The layers with their cells, top to bottom."""

    sizes: Mapping[str, Box]
    layer_of: Mapping[str, int]
    layers: list[list[_Cell]] = field(default_factory=list)
    cells: dict[str, _Cell] = field(default_factory=dict)
    passed: dict[int, list[_Cell]] = field(default_factory=dict)
    """By the number of a link: where it passes layers."""

    def __post_init__(self) -> None:
        self.layers = [[] for _ in range(max(self.layer_of.values()) + 1)]
        for key, box in self.sizes.items():
            cell = _Cell(key, self.layer_of[key], box.height, is_box=True)
            self.cells[key] = cell
            self.layers[cell.layer].append(cell)

    def add_link(self, number: int, link: Edge) -> None:
        """Join two boxes, with a cell in each layer between them."""
        first, last = self.cells[link.start], self.cells[link.end]
        at, offset = first, link.leaves
        self.passed[number] = []
        for layer in range(first.layer + 1, last.layer):
            passing = _Cell(f"{number}", layer, _PASSING, is_box=False)
            self.layers[layer].append(passing)
            self.passed[number].append(passing)
            _join(at, offset, passing, _PASSING / 2)
            at, offset = passing, _PASSING / 2
        _join(at, offset, last, link.enters)

    def order(self) -> None:
        """Order each layer by the mean position of neighbours, to and fro; the best order stays."""
        best = [list(layer) for layer in self.layers]
        least = self._count_crossings()
        for sweep in range(_SWEEPS):
            if not least:
                break
            layers = self.layers[1:] if sweep % 2 == 0 else self.layers[-2::-1]
            for layer in layers:
                self._number_cells()
                layer.sort(key=lambda cell: _find_barycentre(cell, back=sweep % 2 == 0))
            crossings = self._count_crossings()
            if crossings < least:
                least, best = crossings, [list(layer) for layer in self.layers]
        self.layers = best

    def _number_cells(self) -> None:
        for layer in self.layers:
            for position, cell in enumerate(layer):
                cell.y = float(position)

    def _count_crossings(self) -> int:
        self._number_cells()
        crossings = 0
        for layer in self.layers:
            ends = sorted(
                ((cell.y, joint.here), (joint.cell.y, joint.there)) for cell in layer for joint in cell.after
            )
            seen: list[tuple[float, float]] = []
            for _, end in ends:
                crossings += len(seen) - bisect_right(seen, end)
                insort(seen, end)
        return crossings

    def set_heights(self) -> None:
        """Move cells towards their neighbours, as far as those above and below leave room."""
        heights = [sum(cell.height + _ROW_GAP for cell in layer) for layer in self.layers]
        for layer, height in zip(self.layers, heights, strict=True):
            y = (max(heights) - height) / 2
            for cell in layer:
                cell.y = cell.home = y
                y += cell.height + _ROW_GAP
        for sweep in range(2 * _SWEEPS):
            layers = self.layers if sweep % 2 == 0 else self.layers[::-1]
            for layer in layers:
                _settle(layer)
        top = min(cell.y for layer in self.layers for cell in layer)
        for layer in self.layers:
            for cell in layer:
                cell.y -= top


def _join(first: _Cell, leaves: float, last: _Cell, enters: float) -> None:
    weight = 1.0 + 2.0 * (not first.is_box) + 2.0 * (not last.is_box)  # long lines are to be straight
    first.after.append(_Joint(last, enters, leaves, weight))
    last.before.append(_Joint(first, leaves, enters, weight))


def _find_barycentre(cell: _Cell, *, back: bool) -> float:
    joints = cell.before if back else cell.after
    if not joints:
        return cell.y
    return sum(joint.cell.y + joint.there / (joint.cell.height + 1) for joint in joints) / len(joints)


def _settle(layer: Sequence[_Cell]) -> None:
    """The nearest heights to those wanted that keep order and distance (isotonic regression)."""
    blocks: list[list[float]] = []  # sum of weighted wishes, weight, cells
    offset, offsets = 0.0, []
    for cell in layer:
        joints = (*cell.before, *cell.after)
        weight = _HOMEWARD + sum(joint.weight for joint in joints)
        wish = _HOMEWARD * cell.home
        wish += sum(joint.weight * (joint.cell.y + joint.there - joint.here) for joint in joints)
        offsets.append(offset)
        blocks.append([wish - weight * offset, weight, 1])
        offset += cell.height + _ROW_GAP
        while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] >= blocks[-1][0] * blocks[-2][1]:
            last = blocks.pop()
            blocks[-1] = [one + other for one, other in zip(blocks[-1], last, strict=True)]
    heights = [total / weight for total, weight, count in blocks for _ in range(int(count))]
    for cell, start, height in zip(layer, offsets, heights, strict=True):
        cell.y = round(height + start, 2)


# Coordinates


def _finish(grid: _Grid, links: Sequence[Edge], backward: frozenset[int]) -> Placement:
    widths = [
        max((grid.sizes[cell.key].width for cell in layer if cell.is_box), default=0.0)
        for layer in grid.layers
    ]
    # Room for the lines that turn in a gap.
    turning = [sum(len(cell.after) for cell in layer) for layer in grid.layers]
    lanes = len(backward) * _LANE
    lefts = [lanes + _LANE if backward else 0.0]
    for layer, width in enumerate(widths[:-1]):
        gap = min(_COLUMN_GAP + 3 * turning[layer], _MOST_GAP) + lanes
        lefts.append(lefts[-1] + width + gap)
    bottom = max(cell.y + cell.height for layer in grid.layers for cell in layer)
    routes: list[tuple[Point, ...]] = []
    for number, link in enumerate(links):
        first, last = grid.cells[link.start], grid.cells[link.end]
        start = (lefts[first.layer] + widths[first.layer], first.y + link.leaves)
        end = (lefts[last.layer], last.y + link.enters)
        if number in backward:
            lane = _LANE * (1 + sorted(backward).index(number))
            right, left, below = start[0] + lane, end[0] - lane, bottom + lane + _LANE
            routes.append((start, (right, start[1]), (right, below), (left, below), (left, end[1]), end))
            continue
        points = [start]
        for cell in grid.passed[number]:
            y = cell.y + _PASSING / 2
            points += [(lefts[cell.layer], y), (lefts[cell.layer] + widths[cell.layer], y)]
        routes.append((*points, end))
    boxes = [cell for layer in grid.layers for cell in layer if cell.is_box]
    edge = lanes + _LANE if backward else 0.0
    return Placement(
        {cell.key: (lefts[cell.layer], cell.y) for cell in boxes},
        {cell.key: widths[cell.layer] for cell in boxes},
        tuple(routes),
        backward,
        lefts[-1] + widths[-1] + edge,
        bottom + (edge + _LANE if backward else 0.0),
    )
