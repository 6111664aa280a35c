"""WHEN clauses as text: what they say, and what is wrong with those that say nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import intarsia as it
from intarsia import when_matched, when_not_matched, when_not_matched_by_source
from intarsia.errors import InputError, NotSupported
from intarsia.sql.clauses import parse_clauses


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("when matched then delete", when_matched().delete()),
        ("MATCHED AND source.gone THEN DELETE", when_matched("source.gone").delete()),
        ("matched then update set *", when_matched().update_all()),
        (
            "matched then update set n = source.n, \"my col\" = 'a, b', p.x = least(1, 2)",
            when_matched().update({"n": "source.n", '"my col"': "'a, b'", "p.x": "least(1, 2)"}),
        ),
        ("not matched then insert *", when_not_matched().insert_all()),
        ("not matched by target then insert *", when_not_matched().insert_all()),
        (
            "not matched and source.n > 0 then insert (id, n) values (source.id, coalesce(source.n, 'x'))",
            when_not_matched("source.n > 0").insert({"id": "source.id", "n": "coalesce(source.n, 'x')"}),
        ),
        ("not matched by source then delete", when_not_matched_by_source().delete()),
        (
            "not matched by source then update set open = false",
            when_not_matched_by_source().update({"open": "false"}),
        ),
        (
            "matched and case when source.a then 'then' else 'when' end = 'then' then delete",
            when_matched("case when source.a then 'then' else 'when' end = 'then'").delete(),
        ),
        ('matched and "then" then update set "when" = 1', when_matched('"then"').update({'"when"': "1"})),
    ],
)
def test_a_clause_says_what_its_method_says(text: str, meant: Any) -> None:
    assert parse_clauses(text) == (meant,)


def test_several_clauses_stand_in_one_text_in_their_order() -> None:
    text = """
        when matched and source.gone then delete
        when matched then update set n = case when source.n > 0 then source.n else 0 end
        when not matched then insert *
    """
    assert parse_clauses(text) == (
        when_matched("source.gone").delete(),
        when_matched().update({"n": "case when source.n > 0 then source.n else 0 end"}),
        when_not_matched().insert_all(),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["empty"]),
        ("when", ["MATCHED or NOT MATCHED is missing"]),
        ("matchd then delete", ["'matchd'", "did you mean 'MATCHED'"]),
        ("matched the delete", ["'the'", "did you mean 'THEN'"]),
        ("matched and then delete", ["no condition after AND"]),
        ("matched and source.gone", ["THEN is missing"]),
        ("matched then", ["UPDATE or DELETE is missing"]),
        ("matched then insert *", ["'insert'", "UPDATE or DELETE"]),
        ("not matched then delete", ["'delete'", "INSERT"]),
        ("matched by source then delete", ["no MATCHED BY SOURCE", "not matched by source"]),
        ("not matched by sorce then delete", ["'sorce'", "did you mean 'SOURCE'"]),
        ("not matched by source then update set *", ["no source row"]),
        ("matched then update n = 1", ["'n'", "SET"]),
        ("matched then update set", ["nothing to set"]),
        ("matched then update set n", ["'n' assigns nothing"]),
        ("matched then update set n = 1,", ["beside a comma"]),
        ("matched then update set n = 1, n = 2", ["n is set twice"]),
        ("not matched then insert", ["the columns of INSERT are missing"]),
        ("not matched then insert values (1)", ["the columns of INSERT are missing"]),
        ("not matched then insert (a) value (1)", ["'value'", "did you mean 'VALUES'"]),
        ("not matched then insert (a, b) values (1)", ["2 column(s) and 1 value(s)"]),
        ("not matched then insert (a, b", ["bracket is not closed"]),
        ("matched then delete not matched then insert *", ["is too much", "starts with WHEN"]),
        ("matched then update set n = 'open", ["quote left open"]),
        ("matched then delete; drop table t", ["semicolon"]),
    ],
)
def test_a_clause_that_cannot_be_read_is_refused_with_what_may_be_meant(text: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        parse_clauses(text)
    assert [word for word in words if word not in str(caught.value)] == []


def test_doing_nothing_is_no_action() -> None:
    with pytest.raises(NotSupported, match="DO NOTHING"):
        parse_clauses("matched then do nothing")


def test_a_plan_takes_clauses_as_text_and_is_the_one_of_the_same_clauses(tmp_path: Path) -> None:
    it.write(pa.table({"id": [1, 2, 3]}), tmp_path / "t")
    source = pa.table({"id": [2]})
    said = it.plan("merge", source, tmp_path / "t", on="id", clauses="matched then delete")
    made = it.plan("merge", source, tmp_path / "t", on="id", clauses=[it.when_matched().delete()])
    assert said == made
    assert said.count("rewrite") == 1
