"""Which tables and parameters a query has, and what is refused; nothing runs it."""

from __future__ import annotations

from typing import Any

import pytest

from intarsia.errors import InputError, NotSupported
from intarsia.sql.query import check_dialect, list_variables, parse_query


def _tables(text: str, dialect: Any) -> set[str]:
    return {table.name for table in parse_query(text, dialect).tables}


@pytest.mark.parametrize(
    ("dialect", "text", "tables"),
    [
        ("spark", "select * from a join `b-c` using (id)", {"a", "b-c"}),
        ("duckdb", 'select * from "Big Name" where x in (select x from b) -- from c', {"Big Name", "b"}),
        ("duckdb", "from a select x", {"a"}),
        ("duckdb", "select 1 from a join A b on a.x = b.x", {"a"}),
        ("duckdb", "pivot a on x using sum(y)", {"a"}),
        ("duckdb", "with a as (select * from a) select * from a", {"a"}),
        ("duckdb", "with a as (select 1), b as (select * from a) select * from B, c", {"c"}),
        ("duckdb", "with recursive r as (select 1 k union all select k + 1 from r, a) from r", {"a"}),
        ("spark", "select * from (with c as (select * from a) select * from c) x join c", {"a", "c"}),
        ("spark", "select * from a lateral view explode(b) t as z", {"a"}),
        ("duckdb", "select * from a, a.list l, range(3), unnest([1])", {"a"}),
        ("spark", "select 1 union all select x from a where exists (select 1 from b)", {"a", "b"}),
        ("spark", "values (1, 2)", set()),
    ],
)
def test_tables_are_the_names_that_no_cte_defines(dialect: str, text: str, tables: set[str]) -> None:
    assert _tables(text, dialect) == tables


def test_a_table_is_told_with_the_line_that_names_it_first() -> None:
    query = parse_query("select ${a}, '$$1'\nfrom x\njoin y on x.i = ${a} join x z", "spark")
    assert [(table.name, table.line) for table in query.tables] == [("x", 2), ("y", 3)]


@pytest.mark.parametrize(("dialect", "sign"), [("spark", ":"), ("duckdb", "$")])
def test_parameters_become_markers_and_dollars_stay(dialect: Any, sign: str) -> None:
    query = parse_query("select '$$' from t -- ${c}\nwhere a = ${a} limit ${b};", dialect)
    assert query.parameters == ("a", "b")
    assert f"a = {sign}intarsia_a limit {sign}intarsia_b" in query.text
    assert "'$'" in query.text
    assert ";" not in query.text
    assert list_variables("$${a} ${b} ${b}") == ("b",)


@pytest.mark.parametrize("dialect", ["spark", "duckdb"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("select 1; select 2", "several statements"),
        ("drop table x", "DROP, not a query"),
        ("insert into x select 1", "INSERT, not a query"),
        ("select 'x", "cannot be read"),
        ("select *\nfrom (\nselect * frm x y z)", "line 3: it cannot be read"),
        ("select *\nfrom a.b", "line 2: a.b is a table of a schema"),
        ("select *\nfrom parquet_scan('x')", "line 2: parquet_scan"),
        ("select 1,\n'${a}'", r"line 2: \$\{a\} is in quotes"),
        ("select t.${a} from t", r"\$\{a\} stands for a name"),
        ("select 1 as ${a}", r"\$\{a\} stands for a name"),
        ("select 1\nfrom ${a}", r"line 2: \$\{a\} stands for a name"),
        ("select cast(1 as ${a})", "cannot be read"),
        ("select ${a b}", "names no parameter"),
    ],
)
def test_what_is_no_query_or_would_have_to_be_pasted_is_refused(dialect: Any, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_query(text, dialect)


def test_markers_of_the_engine_are_refused() -> None:
    with pytest.raises(InputError, match="marker 'x'"):
        parse_query("select $x", "duckdb")


def test_an_engine_without_sql_of_its_own_is_refused_by_name() -> None:
    with pytest.raises(NotSupported, match="'arrow' runs no queries"):
        check_dialect("arrow")
