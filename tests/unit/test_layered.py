from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from intarsia.show.layered import Box, Edge, Placement, place_boxes


def _boxes(*keys: str) -> list[Box]:
    return [Box(key, 100 + 10 * (len(key) % 4), 40 + 20 * (at % 3)) for at, key in enumerate(keys)]


def _link(start: str, end: str) -> Edge:
    return Edge(start, end, 15, 30)


def _random_graph(seed: int, *, circles: bool) -> tuple[list[Box], list[Edge]]:
    rng = random.Random(seed)
    keys = [f"n{number}" for number in range(rng.randint(2, 40))]
    links = []
    for _ in range(rng.randint(1, 60)):
        first, last = sorted(rng.sample(range(len(keys)), 2), reverse=circles and rng.random() < 0.2)
        links.append(_link(keys[first], keys[last]))
    return _boxes(*keys), links


def _overlap(placed: Placement, boxes: list[Box]) -> list[tuple[str, str]]:
    def area(box: Box) -> tuple[float, float, float, float]:
        x, y = placed.corners[box.key]
        return x, y, x + placed.widths[box.key], y + box.height

    found = []
    for one, other in combinations(boxes, 2):
        a, b = area(one), area(other)
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]:
            found.append((one.key, other.key))
    return found


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("circles", [False, True])
def test_no_two_boxes_overlap_and_no_line_crosses_a_box(seed: int, circles: bool) -> None:
    boxes, links = _random_graph(seed, circles=circles)
    placed = place_boxes(boxes, links)
    assert _overlap(placed, boxes) == []
    for number, route in enumerate(placed.routes):
        pieces = list(pairwise(route))
        if number not in placed.backward:  # between two layers there is no box; within one it runs straight
            pieces = [piece for piece in pieces if piece[0][1] == piece[1][1]]
        for (x1, y1), (x2, y2) in pieces:
            for box in boxes:
                x, y = placed.corners[box.key]
                inside = (
                    max(min(x1, x2), x) < min(max(x1, x2), x + placed.widths[box.key]) or x < x1 == x2 < x + 1
                )
                assert not (inside and max(min(y1, y2), y) < min(max(y1, y2), y + box.height)), box.key


@pytest.mark.parametrize("seed", range(25))
def test_links_lead_to_the_right_and_everything_is_in_the_picture(seed: int) -> None:
    boxes, links = _random_graph(seed, circles=True)
    placed = place_boxes(boxes, links)
    for number, (link, route) in enumerate(zip(links, placed.routes, strict=True)):
        assert (placed.corners[link.start][0] < placed.corners[link.end][0]) is (
            number not in placed.backward
        )
        assert all(0 <= x <= placed.width and 0 <= y <= placed.height for x, y in route)
    for box in boxes:
        x, y = placed.corners[box.key]
        assert x >= 0 <= y
        assert x + placed.widths[box.key] <= placed.width
        assert y + box.height <= placed.height


def test_a_link_ends_at_the_heights_that_were_asked_for() -> None:
    placed = place_boxes(_boxes("a", "b", "c"), [_link("a", "b"), _link("b", "c"), _link("a", "c")])
    for link, route in zip(("ab", "bc", "ac"), placed.routes, strict=True):
        assert route[0][1] == pytest.approx(placed.corners[link[0]][1] + 15)
        assert route[-1][1] == pytest.approx(placed.corners[link[1]][1] + 30)


def test_without_circles_no_link_leads_back() -> None:
    for seed in range(25):
        assert place_boxes(*_random_graph(seed, circles=False)).backward == frozenset()


def test_a_circle_is_closed_by_one_link_that_leads_back() -> None:
    links = [_link("a", "b"), _link("b", "c"), _link("c", "a")]
    assert place_boxes(_boxes("a", "b", "c"), links).backward == frozenset({2})


def test_the_order_within_layers_avoids_crossings_that_can_be_avoided() -> None:
    boxes = _boxes("a", "b", "c", "x", "y", "z")
    placed = place_boxes(boxes, [_link("a", "z"), _link("b", "y"), _link("c", "x")])
    tops = [placed.corners[key][1] for key in "abc"]
    assert [placed.corners[key][1] for key in "zyx"] == sorted(placed.corners[key][1] for key in "zyx")
    assert tops == sorted(tops)


def test_the_same_graph_gives_the_same_placement() -> None:
    graph = _random_graph(7, circles=True)
    assert place_boxes(*graph) == place_boxes(*graph)


def test_a_graph_of_a_thousand_boxes_is_placed_within_seconds() -> None:
    rng = random.Random(1)
    keys = [f"n{number}" for number in range(1000)]
    links = [_link(keys[rng.randrange(at)], keys[at]) for at in range(1, 1000)]
    assert len(place_boxes(_boxes(*keys), links).corners) == 1000


def test_no_box_is_an_empty_picture() -> None:
    assert place_boxes([], []).height == 0
