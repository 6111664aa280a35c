"""Rules and clauses as data."""

from __future__ import annotations

import pytest

from intarsia.core.rule import (
    STRATEGIES,
    Assign,
    Clause,
    Drop,
    Insert,
    Replace,
    Rule,
    get_strategy_rule,
    when_matched,
    when_not_matched,
    when_not_matched_by_source,
)
from intarsia.errors import InputError


@pytest.mark.parametrize(
    ("name", "matched", "inserts", "drops_the_rest"),
    [
        ("insert", False, True, False),
        ("update", True, False, False),
        ("upsert", True, True, False),
        ("full_merge", True, True, True),
        ("deduplicate", True, True, False),
    ],
)
def test_a_strategy_is_a_few_clauses(name, matched, inserts, drops_the_rest):
    rule = get_strategy_rule(name)
    assert rule is STRATEGIES[name]
    assert rule.name == name
    assert (rule.touches_matched, rule.inserts, rule.touches_target_only) == (
        matched,
        inserts,
        drops_the_rest,
    )
    assert rule.replaces_rows
    assert not rule.only_drops_matched


def test_a_strategy_is_found_whatever_its_case_and_an_unknown_one_is_not():
    assert get_strategy_rule("UPSERT").name == "upsert"
    for wrong in ("replace", "", None, 3):
        with pytest.raises(InputError, match="insert, update, upsert, full_merge, deduplicate"):
            get_strategy_rule(wrong)


def test_clauses_are_completed_by_their_action():
    assert when_matched("c").update_all() == Clause("matched", Replace(), "c")
    assert when_matched().update({"a": "1"}) == Clause("matched", Assign((("a", "1"),)))
    assert when_matched().delete() == Clause("matched", Drop())
    assert when_not_matched("c").insert_all() == Clause("source_only", Insert(), "c")
    assert when_not_matched().insert({"a": "1"}) == Clause("source_only", Insert((("a", "1"),)))
    assert when_not_matched_by_source().delete() == Clause("target_only", Drop())
    assert when_not_matched_by_source().update({"a": "1"}).side == "target_only"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: when_not_matched().update_all(), r"update_all\(\) belongs to when_matched\(\)"),
        (lambda: when_not_matched_by_source().update_all(), r"belongs to when_matched\(\)"),
        (lambda: when_matched().insert_all(), r"insert_all\(\) belongs to when_not_matched\(\)"),
        (lambda: when_matched().insert({"a": "1"}), r"insert\(\) belongs to when_not_matched\(\)"),
        (lambda: when_not_matched().update({"a": "1"}), "no target row to update"),
        (lambda: when_not_matched().delete(), "no target row to delete"),
        (lambda: when_matched().update({}), "at least one column"),
        (lambda: when_not_matched().insert({}), "at least one column"),
    ],
)
def test_an_action_on_the_wrong_side_is_refused(wrong, said):
    with pytest.raises(InputError, match=said):
        wrong()


def test_only_unconditional_deletes_let_a_row_be_hit_twice():
    delete, maybe = when_matched().delete(), when_matched("x").delete()
    assert Rule("merge", (delete,)).only_drops_matched
    assert Rule("merge", (delete, when_not_matched().insert_all())).only_drops_matched
    assert not Rule("merge", (maybe,)).only_drops_matched
    assert not Rule("merge", (maybe, delete)).only_drops_matched
    assert not Rule("merge", (when_not_matched().insert_all(),)).only_drops_matched


def test_a_rule_that_takes_no_whole_source_row_needs_not_every_column():
    made = when_not_matched().insert({"a": "1"})
    assert not Rule("merge", (when_matched().update({"a": "1"}), made)).replaces_rows
    assert Rule("merge", (made, when_matched().update_all())).replaces_rows
    assert Rule("merge", (when_not_matched().insert_all(),)).replaces_rows


def test_clauses_of_a_side_keep_their_order():
    one, other = when_matched("a").delete(), when_matched("b").delete()
    rule = Rule("merge", (one, when_not_matched().insert_all(), other))
    assert rule.list_clauses("matched") == (one, other)
