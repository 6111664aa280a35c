"""Bin packing: what goes together, what is left alone, and that there is nothing left to do after it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.core.pack import FULL, pack
from intarsia.errors import InputError

sizes = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=60)
targets = st.one_of(st.none(), st.integers(1, 150))


def _sums(items, group):
    return sum(items[i][0] for i in group), sum(items[i][1] for i in group)


def test_small_neighbours_are_put_together_up_to_the_target():
    assert pack([(40, 1)] * 6, target_bytes=100) == [[0, 1], [2, 3], [4, 5]]


def test_a_target_in_rows_limits_as_well_as_one_in_bytes():
    items = [(1, 50)] * 4
    assert pack(items, target_rows=100) == [[0, 1], [2, 3]]
    assert pack(items, target_bytes=1000, target_rows=100) == [[0, 1], [2, 3]]
    assert pack(items, target_bytes=1000) == [[0, 1, 2, 3]]


def test_items_at_three_quarters_of_the_target_are_left_alone():
    assert pack([(75, 1), (25, 1), (24, 1), (500, 1)], target_bytes=100) == [[1, 2]]


def test_a_single_small_item_is_no_group():
    assert pack([(10, 1)], target_bytes=100) == []
    assert pack([(90, 1), (10, 1), (90, 1)], target_bytes=100) == []


def test_groups_smaller_than_asked_for_are_dropped():
    assert pack([(30, 1)] * 5, target_bytes=100, min_group=3) == [[0, 1, 2]]


def test_a_gap_left_by_a_large_item_is_filled_by_a_later_one():
    assert pack([(60, 1), (70, 1), (40, 1), (30, 1)], target_bytes=100) == [[0, 2], [1, 3]]


def test_items_far_apart_go_together_when_nothing_nearer_fits():
    items = [(70, 1), *[(65, 1)] * 10, *[(35, 1)] * 10, (30, 1)]
    groups = pack(items, target_bytes=100)
    assert groups == [[0, 21], *([near, near + 10] for near in range(1, 11))]


def test_groups_hold_items_that_lie_near_each_other():
    items = [(7 + (number * 37) % 11, 1) for number in range(1000)]
    groups = pack(items, target_bytes=100)
    spans = sorted(group[-1] - group[0] for group in groups)
    assert spans[len(spans) // 2] < 40


def test_ten_thousand_files_too_large_to_pair_take_no_time():
    assert pack([(60, 1)] * 10_000, target_bytes=100) == []


@pytest.mark.parametrize(
    "bad", [{}, {"target_bytes": 0}, {"target_rows": -1}, {"target_bytes": 5, "target_rows": 0}]
)
def test_a_missing_or_senseless_target_is_refused(bad):
    with pytest.raises(InputError, match="target"):
        pack([(1, 1), (1, 1)], **bad)


@given(sizes, targets, targets)
def test_every_group_keeps_the_targets_and_no_item_is_in_two(items, target_bytes, target_rows):
    if target_bytes is None and target_rows is None:
        return
    groups = pack(items, target_bytes=target_bytes, target_rows=target_rows)
    flat = [number for group in groups for number in group]
    assert len(flat) == len(set(flat))
    assert set(flat) <= set(range(len(items)))
    assert groups == sorted(groups)
    for group in groups:
        size, rows = _sums(items, group)
        assert len(group) >= 2
        assert group == sorted(group)
        assert target_bytes is None or size <= target_bytes
        assert target_rows is None or rows <= target_rows
    for number in flat:
        assert target_bytes is None or items[number][0] < FULL * target_bytes
        assert target_rows is None or items[number][1] < FULL * target_rows


@given(sizes, targets, targets)
def test_packing_what_came_out_finds_nothing_more_to_do(items, target_bytes, target_rows):
    if target_bytes is None and target_rows is None:
        return
    groups = pack(items, target_bytes=target_bytes, target_rows=target_rows)
    grouped = {number for group in groups for number in group}
    after = [_sums(items, group) for group in groups]
    after += [item for number, item in enumerate(items) if number not in grouped]
    assert pack(after, target_bytes=target_bytes, target_rows=target_rows) == []


@given(st.lists(st.integers(1, 74), min_size=2, max_size=80))
def test_at_most_one_group_stays_less_than_half_full(sizes):
    items = [(size, 1) for size in sizes]
    groups = pack(items, target_bytes=100, min_group=1)
    assert sum(_sums(items, group)[0] <= 50 for group in groups) <= 1
    assert sorted(number for group in groups for number in group) == list(range(len(items)))
