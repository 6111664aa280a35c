"""The commit protocol of object stores holds in every order of events, and needs each of its rules."""

from __future__ import annotations

import os

import pytest
from stores_model import Model, Rules
from tests.state_search import search


@pytest.mark.parametrize(
    ("rules", "at_least"),
    [
        (Rules(), 10_000),
        (Rules(second_compacts=True), 5_000),
        (Rules(second_restores=True), 5_000),
        pytest.param(
            Rules(has_helper=True),
            200_000,
            marks=pytest.mark.skipif(
                os.environ.get("INTARSIA_STORES") != "full", reason="takes half a minute: make stores"
            ),
        ),
    ],
    ids=[
        "two merges",
        "a merge and a compaction",
        "a merge and a restore",
        "two merges and somebody who finishes",
    ],
)
def test_the_protocol_holds_in_every_order_of_events(rules: Rules, at_least: int) -> None:
    violation, states = search(Model(rules))
    assert violation is None
    assert states > at_least


@pytest.mark.parametrize(
    "rules",
    [
        Rules(replaces_if_match=False),
        Rules(finishes_others_first=False),
        Rules(reads_log_before_listing=False),
        Rules(resolves_no_answer=False),
        Rules(resolves_refusal=False),
        Rules(claims_if_absent=False),
        Rules(second_compacts=True, keeps_tombstones=False),
        Rules(second_restores=True, keeps_tombstones=False),
        Rules(second_restores=True, restores_to_new_names=False),
    ],
    ids=[
        "replacing without If-Match",
        "planning before others are finished",
        "reading the log after the listing",
        "no answer taken for a failure",
        "a refusal of the repetition taken for another's",
        "claiming a slot without If-None-Match",
        "no tombstones",
        "no tombstones of what a restore removes",
        "restoring under the names that files had",
    ],
)
def test_without_one_of_its_rules_it_does_not(rules: Rules) -> None:
    violation, _ = search(Model(rules))
    assert violation is not None
