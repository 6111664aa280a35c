"""strategy="deduplicate": which of several source rows of one key wins, and what happens without it."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from intarsia.errors import ColumnNotFound, InputError, KeyColumnError

TARGET = pa.table({"id": [1, 2], "n": pa.array([0, 0], pa.float64()), "v": ["a", "b"]})


def _source(ids, order, values):
    return pa.table({"id": ids, "n": pa.array(order, pa.float64()), "v": values})


def _winner(lake, order, **options):
    """The place of the source row that wins, among rows of one key."""
    source = _source([1] * len(order), order, [str(place) for place in range(len(order))])
    lake.create(TARGET).merge(source, on="id", strategy="deduplicate", **options)
    return int(lake.values("id", "v")[0][1])


@pytest.mark.parametrize(
    ("order", "place"),
    [
        ([1, 3, 2], 1),
        ([3, 3, 2], 1),  # a tie: the last of them
        ([None, 1, None], 1),  # NULL loses
        ([None, None], 1),
        ([1, float("nan"), float("inf")], 1),  # NaN is the highest number
        ([-0.0, 0.0], 1),
        ([0.0, -0.0], 1),
    ],
)
def test_the_highest_order_wins(lake, order, place):
    assert _winner(lake, order, dedup_order_by="n") == place


def test_the_last_row_wins_without_an_order(lake):
    assert _winner(lake, [9, 1, 5]) == 2


def test_a_second_column_breaks_ties(lake):
    source = pa.table({"id": [1, 1, 1], "n": [5.0, 5.0, 4.0], "v": ["b", "a", "c"]})
    lake.create(TARGET).merge(source, on="id", strategy="deduplicate", dedup_order_by=["n", "v"])
    assert lake.values("id", "v") == [(1, "b"), (2, "b")]


@pytest.mark.parametrize(
    "order",
    [
        pa.array([False, True, False]),
        pa.array(["a", "c", "b"]),
        pa.array([b"a", b"c", b"b"]),
        pa.array([dt.date(2024, 1, day) for day in (1, 3, 2)]),
        pa.array([dt.datetime(2024, 1, day) for day in (1, 3, 2)], pa.timestamp("ns", "UTC")),
        pa.array([dt.timedelta(day) for day in (1, 3, 2)]),
        pa.array(["a", "c", "b"]).dictionary_encode(),
        pa.array(["b", "c", "a"], pa.string_view()),
    ],
    ids=lambda order: str(order.type),
)
def test_the_order_may_be_of_any_type(lake, order):
    target = pa.table({"id": [1], "o": pa.nulls(1, order.type), "v": ["t"]})
    source = pa.table({"id": [1, 1, 1], "o": order, "v": ["0", "1", "2"]})
    lake.create(target).merge(source, on="id", strategy="deduplicate", dedup_order_by="o")
    assert lake.values("v") == ["1"]


def test_new_keys_are_deduplicated_too_and_counted_once(lake):
    source = _source([7, 7, 1, 8], [1, 2, 3, 4], ["x", "y", "z", "w"])
    result = lake.create(TARGET).merge(source, on="id", strategy="deduplicate", dedup_order_by="n")
    assert lake.values("id", "v") == [(1, "z"), (2, "b"), (7, "y"), (8, "w")]
    assert (result.updated, result.inserted, result.source_count) == (1, 2, 4)


@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge"])
def test_other_strategies_refuse_duplicate_keys_with_samples_and_a_hint(lake, strategy):
    lake.create(TARGET)
    source = _source([1, 1, 5, 5, 5, 6], [0] * 6, list("uvwxyz"))
    with lake.unchanged(), pytest.raises(KeyColumnError) as caught:
        lake.merge(source, on="id", strategy=strategy)
    text = str(caught.value)
    assert "2 duplicate keys in id (5 rows), such as (id=1), (id=5)" in text
    assert 'strategy="deduplicate"' in text


def test_at_most_three_duplicate_keys_are_shown(lake):
    source = pa.table({"id": [*range(9), *range(9)], "n": [0.0] * 18, "v": ["x"] * 18})
    with pytest.raises(KeyColumnError) as caught:
        lake.create(TARGET).merge(source, on="id")
    assert str(caught.value).count("(id=") == 3


def test_an_order_without_deduplicate_or_without_its_column_is_refused(lake):
    lake.create(TARGET)
    with pytest.raises(InputError, match="dedup_order_by"):
        lake.merge(TARGET, on="id", dedup_order_by="n")
    with pytest.raises(ColumnNotFound, match="'when'"):
        lake.merge(TARGET, on="id", strategy="deduplicate", dedup_order_by="when")
