"""Which columns a query may read: one that it reads is never left out."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlglot", reason="sqlglot is not installed: queries are not read")

from intarsia.sql.query import parse_query

COLUMNS = ("id", "Amount", "day", "note")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("select o.id, count(*) from orders o join c using (day) group by 1", ("id", "day")),
        ("select max(AMOUNT) from orders", ("Amount",)),
        ("select count(*) from orders", ("id",)),
        ('select "note" from orders where id in (select id from c)', ("id", "note")),
        ("with x as (select id, day from orders) select * from x", ("id", "day")),
        ("select (select max(c.day) from c where c.id = o.id) from orders o", ("id", "day")),
        ("select * from orders", COLUMNS),
        ("select c.* from orders o join c using (id)", COLUMNS),
        ("select count(o.*) from orders o", COLUMNS),
        ("from orders", COLUMNS),
        ("select #2 from orders", COLUMNS),
        ("select columns('a.*') from orders", COLUMNS),
        ("select o from orders o", COLUMNS),
        ("select orders from orders", COLUMNS),
        ("select id from orders natural join c", COLUMNS),
        ("select id from orders positional join c", COLUMNS),
        ("select a from orders as o(a, b, c, d)", COLUMNS),
        ("pivot orders on day using sum(id)", COLUMNS),
        ("select count(*) from (describe orders)", COLUMNS),
        ("select j from (orders join c using (id)) j", COLUMNS),
        ("select j.x from (orders join c using (id)) as j(x, y)", COLUMNS),
        ("select id from (orders join c using (day))", ("id", "day")),
        ("select * from (select id from c) union all select id from orders", ("id",)),
    ],
)
def test_a_column_is_left_out_only_where_nothing_can_mean_it(query: str, found: tuple[str, ...]) -> None:
    assert parse_query(query, "duckdb").columns.select_columns("orders", COLUMNS) == found
