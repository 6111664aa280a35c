"""Merges with clauses and conditions in a file: what they do, and what is refused when it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

import intarsia as it
from intarsia import pipeline
from intarsia.errors import InputError, NotSupported
from intarsia.pipeline.model import KINDS, StepGuard

WHEN = '''
when = """
when matched and source.amount < 0 then delete
when matched then update set amount = target.amount + source.amount
when not matched and source.amount > 0 then insert *
when not matched by source and target.region = 'ap' then delete
"""
'''


def _rows(shop: Any, rows: Callable[..., list[dict[str, Any]]]) -> dict[int, float]:
    return {row["id"]: row["amount"] for row in rows(shop.lake)}


@pytest.mark.parametrize("listed", [False, True], ids=["one text", "a list"])
def test_the_first_clause_that_applies_decides(listed: bool, shop: Any, rows: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 1.0), 2: ("eu", 2.0), 3: ("eu", 3.0), 4: ("ap", 4.0)})
    shop.run().check()
    when = WHEN
    if listed:
        texts = [line.removeprefix("when ") for line in WHEN.split('"""')[1].strip().splitlines()]
        when = f"when = {texts!r}\n"
    shop.declare(shop.file.read_text().replace('on = "id"', f'on = "id"\n{when}', 1))
    shop.lands("a.csv", {1: ("eu", 0.5), 2: ("eu", -1.0), 8: ("eu", 8.0), 9: ("eu", -9.0)})
    result = shop.run().check().step("upsert").result
    assert (result.updated, result.deleted, result.inserted) == (1, 2, 1)
    assert _rows(shop, rows) == {1: 1.5, 3: 3.0, 8: 8.0}
    assert shop.statuses() == {"upsert": "unchanged", "purge": "unchanged", "tidy": "unchanged"}


def test_a_condition_may_ask_for_more_than_equal_keys(shop: Any, rows: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 1.0), 2: ("eu", 20.0)})
    shop.run().check()
    condition = "target.id = source.id and target.amount < source.amount"
    shop.declare(shop.file.read_text().replace('on = "id"', f'on = "{condition}"\nstrategy = "update"', 1))
    shop.lands("a.csv", {1: ("eu", 5.0), 2: ("eu", 5.0)})
    assert shop.run().check().step("upsert").result.updated == 1
    assert _rows(shop, rows) == {1: 5.0, 2: 20.0}


def test_clauses_made_in_python_are_taken_as_they_are(shop: Any, rows: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 1.0), 2: ("eu", 2.0)})
    made = pipeline.load(shop.file)
    when = (it.when_not_matched("source.amount > 1").insert_all(), "matched then delete")
    step = pipeline.Merge(name="some", source="landing", target="orders", on="id", when=when)
    made = pipeline.Pipeline(
        name="some",
        engine="arrow",
        sources=made.sources,
        targets=made.targets,
        steps=(step,),
        reports=made.reports,
    )
    assert pipeline.run(made, progress=False).check().step("some").result.inserted == 1
    assert _rows(shop, rows) == {2: 2.0}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('on = "id"', 'on = "id"\nwhen = "matchd then delete"', ["(upsert) when", "did you mean 'MATCHED'"]),
        ('on = "id"', 'on = "id"\nwhen = ["matched then"]', ["(upsert) when", "UPDATE or DELETE"]),
        ('on = "id"', 'on = "id"\nwhen = ["matched and a + then delete"]', ["(upsert) when", "a +"]),
        ('on = "id"', 'on = "id"\nwhen = [{ matched = 1 }]', ["when[0]", "must be text", "a table"]),
        ('on = "id"', 'on = "id"\nwhen = 3', ["(upsert) when", "text or a list"]),
        (
            'on = "id"',
            'on = "id"\nstrategy = "insert"\nwhen = "matched then delete"',
            ["(upsert) when", "instead of a strategy"],
        ),
        ('on = "id"', 'on = "target.id = id"', ["(upsert) on", "target.id or source.id"]),
        ('on = "id"', 'on = "target.id <= source.id"', ["(upsert) on", "no equality"]),
        ('where = "amount < 0"', 'where = "amount <"', ["(purge) where", "amount <"]),
        ('where = "amount < 0"', 'where = "amount + 1"', ["(purge) where", "a value, not a condition"]),
        ('amount = "double"', 'amount = "dubble"', ["[sources.landing] columns.amount", "dubble"]),
        (
            'path = "landing/*.csv"',
            'path = "landing/*.csv"\nderive = { d = "amount * " }',
            ["[sources.landing] derive.d", "amount *"],
        ),
        (
            'path = "landing/*.csv"',
            'path = "landing/*.csv"\nwhere = "amount"',
            None,  # may be a boolean
        ),
        ('name = "tidy"', 'name = "tidy"\npartition_filter = "region"', ["(tidy) partition_filter"]),
        ('name = "tidy"', 'name = "tidy"\ntarget_mb_per_file = 0', ["(tidy)", "target_mb_per_file"]),
        ('name = "tidy"', 'name = "tidy"\nwhere = "x"', ["(tidy): the key 'where' is not known"]),
        (
            'name = "tidy"',
            'name = "tidy"\noptions = { threads = "two" }',
            ["(tidy) options threads", "whole"],
        ),
        ('name = "tidy"', 'name = "tidy"\noptions = { threads = -1 }', ["(tidy) options", "threads"]),
        (
            'name = "tidy"',
            'name = "tidy"\noptions = { compression = "zip" }',
            ["(tidy) options", "zip", "zstd"],
        ),
        (
            'partition_by = "region"',
            "options = { single_writr = true }",
            ["[targets.orders] options", "did you mean 'single_writer'?"],
        ),
    ],
)
def test_texts_and_options_are_looked_at_when_the_file_is_read(
    old: str, new: str, words: list[str] | None, shop: Any
) -> None:
    text = shop.file.read_text()
    assert old in text
    shop.declare(text.replace(old, new, 1))
    if words is None:
        pipeline.load(shop.file)
        return
    with pytest.raises((InputError, NotSupported)) as caught:
        pipeline.load(shop.file)
    told = str(caught.value)
    assert caught.value.path == str(shop.file)
    assert [word for word in [str(shop.file), *words] if word not in told] == []


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (pipeline.Compact, {"target": "t", "where": "x"}, ["compact takes no 'where'"]),
        (pipeline.Merge, {"target": "t", "source": "s"}, ["merge needs 'on'"]),
        (pipeline.Merge, {"target": "t", "source": "s", "on": ()}, ["merge needs 'on'"]),
        (pipeline.Update, {"target": "t", "set": {}}, ["update needs 'set'"]),
        (pipeline.Delete, {"where": "true"}, ["delete needs 'target'"]),
    ],
)
def test_a_step_made_in_python_says_at_once_what_it_lacks(
    kind: Any, given: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        kind(**given)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_step_shows_what_was_said_of_it() -> None:
    step = pipeline.Compact(target="t", target_rows_per_file=5)
    assert repr(step) == "Compact(target='t', target_rows_per_file=5)"
    assert step == pipeline.Compact(target="t", target_rows_per_file=5)
    assert step != pipeline.Deduplicate(target="t")


def test_every_option_of_a_step_belongs_to_some_kind() -> None:
    kinds = (*KINDS.values(), StepGuard)  # which the runner makes
    used = {"name"}.union(*((*kind.needs, *kind.takes) for kind in kinds))
    assert used == {entry.name for entry in fields(pipeline.Merge)}
