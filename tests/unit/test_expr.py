"""Nodes, names and types of expressions, and how they read as SQL."""

from __future__ import annotations

import datetime
import pickle
from decimal import Decimal

import pyarrow as pa
import pytest

from intarsia.core.expr import (
    And,
    Call,
    Case,
    Cast,
    Column,
    Compare,
    Expr,
    In,
    Like,
    Literal,
    Not,
    find_columns,
    find_type,
    make_literal,
    resolve,
    to_sql,
    transform,
    walk,
)
from intarsia.errors import ColumnNotFound, InputError, NotSupported, SchemaMismatch
from intarsia.sql.parse import parse_expression as sql

SCHEMA = pa.schema(
    {
        "i": pa.int32(),
        "l": pa.int64(),
        "u": pa.uint64(),
        "f": pa.float64(),
        "g": pa.float32(),
        "d": pa.decimal128(10, 2),
        "s": pa.string(),
        "b": pa.bool_(),
        "day": pa.date32(),
        "ts": pa.timestamp("us"),
        "tz": pa.timestamp("ms", "Europe/Berlin"),
        "p": pa.struct({"amt": pa.int64(), "In": pa.struct({"x": pa.string()})}),
        "xs": pa.list_(pa.int64()),
        "code": pa.dictionary(pa.int32(), pa.string()),
    }
)


def resolved(text: str) -> str:
    return to_sql(resolve(sql(text), SCHEMA))


def test_columns_are_found_with_their_side_and_path() -> None:
    expr = sql("target.a.b = source.c and d is null")
    assert find_columns(expr) == {("target", ("a", "b")), ("source", ("c",)), (None, ("d",))}


def test_walking_meets_every_node_and_transforming_rebuilds_them() -> None:
    expr = sql("case when not a in (1, b) then -c || lower(d) else cast(e as int) end = f like 'x'")
    names = {node.path[0] for node in walk(expr) if isinstance(node, Column)}
    assert names == {"a", "b", "c", "d", "e", "f"}

    def renamed(node: Expr) -> Expr:
        return Column(("z",)) if isinstance(node, Column) else transform(node, renamed)

    assert find_columns(renamed(expr)) == {(None, ("z",))}
    assert find_columns(expr) != find_columns(renamed(expr))


@pytest.mark.parametrize(
    "text",
    [
        "i = 1 and s like 'a%' or not b",
        "day >= date '2025-01-01' + interval 1 month",
        "d in (1.5, 2) and tz < current_timestamp",
        "coalesce(p.amt, 0) > 5 or p.in.x is null",
        "case when i > 0 then l / i end > 2.5",
        "try_cast(s as int) = 3",
    ],
)
def test_a_resolved_expression_pickles_hashes_and_resolves_to_itself(text: str) -> None:
    expr = resolve(sql(text), SCHEMA)
    again = pickle.loads(pickle.dumps(expr))
    assert again == expr
    assert hash(again) == hash(expr)
    assert resolve(expr, SCHEMA) == expr


@pytest.mark.parametrize(
    ("value", "type", "stored"),
    [
        (datetime.date(1970, 1, 3), None, 2),
        (datetime.datetime(1970, 1, 1, 0, 0, 1), pa.timestamp("ns"), 10**9),
        (datetime.timedelta(seconds=1), pa.duration("ms"), 1000),
        (pa.scalar("a").cast(pa.string()), None, "a"),
        (pa.array(["k"]).dictionary_encode()[0], None, "k"),
        (Decimal("1.5"), pa.decimal128(5, 2), Decimal("1.50")),
        (None, pa.int64(), None),
    ],
)
def test_a_literal_keeps_a_plain_value_and_gives_it_back(value: object, type: object, stored: object) -> None:
    found = make_literal(value, type)
    assert found.value == stored
    assert make_literal(found.scalar) == found


def test_names_match_exactly_first_and_then_in_any_case_unless_quoted() -> None:
    schema = pa.schema({"Id": pa.int64(), "name": pa.string(), "NAME": pa.string()})
    assert resolve(sql("ID"), schema) == Column(("Id",), None, True)
    assert resolve(sql("NAME"), schema) == Column(("NAME",), None, True)
    with pytest.raises(InputError, match="could be any of 'name', 'NAME'"):
        resolve(sql("Name"), schema)
    with pytest.raises(ColumnNotFound, match="'ID'"):
        resolve(sql('"ID"'), schema)
    assert resolve(sql("P.AMT + 1 > 0 and p.in.X = 'q'"), SCHEMA) is not None


def test_a_missing_column_is_named_with_close_ones() -> None:
    schema = pa.schema({"price": pa.int64(), "region": pa.string(), "p": pa.struct({"amount": pa.int64()})})
    with pytest.raises(ColumnNotFound, match=r"'prize'.*'price'") as caught:
        resolve(sql("prize < 0"), schema)
    assert isinstance(caught.value, KeyError)
    with pytest.raises(ColumnNotFound, match=r"'p.amout'.*'amount'"):
        resolve(sql("p.amout < 0"), schema)


def test_sides_are_told_apart_in_a_merge_only() -> None:
    one, two = pa.schema({"id": pa.int64(), "t": pa.int64()}), pa.schema({"id": pa.int64(), "s": pa.int64()})
    assert find_columns(resolve(sql("t = s"), one, source=two)) == {("target", ("t",)), ("source", ("s",))}
    with pytest.raises(InputError, match=r"'id' is a column of both sides.*target.id or source.id"):
        resolve(sql("id = 1"), one, source=two)
    assert find_columns(resolve(sql("target.id = 1"), one)) == {(None, ("id",))}
    with pytest.raises(InputError, match="there is none here"):
        resolve(sql("source.id = 1"), one)
    with pytest.raises(ColumnNotFound):
        resolve(sql("source.t = 1"), one, source=two)


def test_a_struct_named_target_stays_reachable_outside_a_merge() -> None:
    schema = pa.schema({"target": pa.struct({"x": pa.int64()})})
    assert find_columns(resolve(sql("target.x = 1"), schema)) == {(None, ("target", "x"))}


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("i < 2.5", '"i" <= 2'),
        ("i > 2.5", '"i" >= 3'),
        ("2.5 < i", '"i" >= 3'),
        ("i = 2.0", '"i" = 2'),
        ("i = 2.5", '"i" <> "i"'),
        ("i <> 2.5", '"i" = "i"'),
        ("i < 3000000000", '"i" = "i"'),
        ("i > 3000000000", '"i" <> "i"'),
        ("u > -1", '"u" = "u"'),
        ("l = 1e3", '"l" = 1000'),
        ("d > 1.499", '"d" >= 1.50'),
        ("d = 1.5", '"d" = 1.50'),
        ("f = 1", '"f" = 1.0e0'),
        ("g = 0.1", '"g" = CAST(0.10000000149011612e0 AS FLOAT)'),
        ("g < 1e300", 'CAST("g" AS DOUBLE) < 1e+300'),
        ("day >= '2025-01-01'", "\"day\" >= DATE '2025-01-01'"),
        ("day > '2025-01-01 12:00:00'", "\"day\" >= DATE '2025-01-02'"),
        ("ts = '2025-01-01'", "\"ts\" = TIMESTAMP '2025-01-01 00:00:00'"),
        ("tz = '2025-01-01 02:00:00+02:00'", "\"tz\" = TIMESTAMPTZ '2025-01-01 00:00:00+00'"),
        ("tz < '2025-01-01 00:00:00.0005'", "\"tz\" <= TIMESTAMPTZ '2025-01-01 00:00:00+00'"),
        ("i in (1, 2.5, 3.0)", '"i" IN (1, 3)'),
        ("code = 'x'", "\"code\" = 'x'"),
        ("day = date '2025-01-31' + interval 1 month", "\"day\" = DATE '2025-02-28'"),
        ("i = l", 'CAST("i" AS BIGINT) = "l"'),
    ],
)
def test_constants_are_fitted_to_the_column_without_changing_the_answer(text: str, becomes: str) -> None:
    assert resolved(text) == becomes


@pytest.mark.parametrize(
    "text",
    [
        "s = 1",
        "i = 'x'",
        "i = '1'",
        "b = 1",
        "day = 5",
        "i + s > 1",
        "i and b",
        "not i",
        "i like 'x'",
        "lower(i) = 'x'",
        "case when b then i else s end = 1",
        "case i when 'x' then 1 end = 1",
        "s - 1 = 2",
        "cast(xs as int) = 1",
        "f // 2 = 1",
        "ts + 1 > ts",
        "i in (1, 'x')",
        "day between 1 and 2",
        "-s = 'x'",
    ],
)
def test_types_that_do_not_go_together_are_refused_before_any_row_is_read(text: str) -> None:
    with pytest.raises(SchemaMismatch):
        resolve(sql(text), SCHEMA)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("day > 'yesterday'", "'yesterday' is not a date"),
        ("ts > '2025-13-01'", "not a timestamp"),
        ("ts > '2025-01-01 00:00:00+02:00'", "has an offset"),
        ("i > cast('x' as int)", "'x'"),
        ("i > 1 / 0", "zero"),
        ("s like 'x' escape 'ab'", "one character"),
        ("date_trunc('eon', ts) = ts", "eon"),
        ("date_part('eon', ts) = 1", "eon"),
        ("lower(s, s) = s", "arguments"),
    ],
)
def test_constants_that_make_no_sense_are_refused_before_any_row_is_read(text: str, part: str) -> None:
    with pytest.raises(InputError, match=part):
        resolve(sql(text), SCHEMA)


@pytest.mark.parametrize(
    ("text", "type"),
    [
        ("i + 1", pa.int64()),
        ("i / 2", pa.float64()),
        ("d * 1.1", pa.decimal128(13, 3)),
        ("d + i", pa.decimal128(13, 2)),
        ("g * 2", pa.float64()),
        ("day - day", pa.int64()),
        ("day + interval 1 day", pa.date32()),
        ("day + interval 1 hour", pa.timestamp("us")),
        ("ts - ts", pa.duration("us")),
        ("tz", pa.timestamp("ms", "Europe/Berlin")),
        ("coalesce(tz, ts)", pa.timestamp("us", "Europe/Berlin")),
        ("greatest(tz, current_timestamp)", pa.timestamp("us", "Europe/Berlin")),
        ("if(b, tz + interval 1 day, date_trunc('hour', tz))", pa.timestamp("ms", "Europe/Berlin")),
        ("coalesce(tz, to_timestamp(0))", pa.timestamp("ms", "Europe/Berlin")),
        ("coalesce(tz, to_timestamp(l))", pa.timestamp("us", "UTC")),
        ("s || i", pa.string()),
        ("coalesce(i, 0)", pa.int32()),
        ("coalesce(i, 0.5)", pa.decimal128(11, 1)),
        ("greatest(i, l)", pa.int64()),
        ("length(code)", pa.int64()),
        ("if(b, day, '2025-01-01')", pa.date32()),
        ("i > 1", pa.bool_()),
        ("null", pa.null()),
        ("p", SCHEMA.field("p").type),
    ],
)
def test_the_type_of_a_value_is_known_beforehand(text: str, type: pa.DataType) -> None:
    assert find_type(sql(text), SCHEMA) == type


def test_the_present_moment_is_a_constant_of_the_operation() -> None:
    now = datetime.datetime(2025, 3, 1, 12, tzinfo=datetime.UTC)
    found = resolve(sql("tz < current_timestamp and day = current_date"), SCHEMA, now=now)
    assert not any(isinstance(node, Call) for node in walk(found))
    assert to_sql(found) == (
        "(\"tz\" < TIMESTAMPTZ '2025-03-01 12:00:00+00') AND (\"day\" = DATE '2025-03-01')"
    )


@pytest.mark.parametrize(
    ("text", "expect", "becomes"),
    [
        ("'2025-01-01'", pa.date32(), "DATE '2025-01-01'"),
        ("1", pa.decimal128(5, 2), "1.00"),
        ("1.005", pa.decimal128(5, 2), "1.01"),
        ("i + 1", pa.int32(), 'CAST(CAST("i" AS BIGINT) + 1 AS INTEGER)'),
        ("null", pa.string(), "CAST(NULL AS VARCHAR)"),
        ("ts", pa.date32(), 'CAST("ts" AS DATE)'),
        ("b", pa.bool_(), '"b"'),
    ],
)
def test_an_assignment_is_brought_to_the_columns_type(text: str, expect: pa.DataType, becomes: str) -> None:
    assert to_sql(resolve(sql(text), SCHEMA, expect=expect)) == becomes


@pytest.mark.parametrize(
    ("text", "expect"),
    [("'5'", pa.int32()), ("5", pa.string()), ("i", pa.bool_()), ("b", pa.int32()), ("s", pa.date32())],
)
def test_an_assignment_of_another_kind_is_refused_with_the_cast_to_write(
    text: str, expect: pa.DataType
) -> None:
    with pytest.raises(SchemaMismatch, match=r"Hint: cast\("):
        resolve(sql(text), SCHEMA, expect=expect)


def test_an_unknown_function_is_refused_with_near_ones() -> None:
    with pytest.raises(NotSupported, match=r"uper\(\).*did you mean 'upper'"):
        resolve(Call("uper", (Column(("i",)),)), SCHEMA)


def test_structs_and_lists_can_be_compared_and_have_no_order() -> None:
    assert resolved("xs is null") == '"xs" IS NULL'
    assert resolved("p = p") == '"p" = "p"'
    with pytest.raises(NotSupported, match="no order"):
        resolve(sql("p < p"), SCHEMA)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (Column(('a"b', "c")), '"a""b"."c"'),
        (make_literal("it's"), "'it''s'"),
        (make_literal(b"\x00a"), "'\\x00\\x61'::BLOB"),
        (make_literal(-1), "(-1)"),
        (make_literal(float("nan")), "CAST('nan' AS DOUBLE)"),
        (make_literal(-0.0), "(-0.0e0)"),
        (make_literal(True), "TRUE"),
        (Not(In(Column(("a",)), (make_literal(1),))), 'NOT ("a" IN (1))'),
        (Like(Column(("a",)), make_literal("x"), True, "!"), "\"a\" ILIKE 'x' ESCAPE '!'"),
        (Cast(Column(("a",)), pa.int8(), True), 'TRY_CAST("a" AS TINYINT)'),
        (
            And(make_literal(True), Compare("=", Column(("x",), "source"), make_literal(1))),
            'TRUE AND (source."x" = 1)',
        ),
        (Case(((make_literal(True), make_literal(1)),), make_literal(2)), "CASE WHEN TRUE THEN 1 ELSE 2 END"),
        (Literal((1, 2, 3000), pa.month_day_nano_interval()), "INTERVAL '1 months 2 days 3 microseconds'"),
    ],
)
def test_expressions_read_as_quoted_sql(expr: Expr, text: str) -> None:
    assert to_sql(expr) == text


def test_only_known_dialects_are_written() -> None:
    with pytest.raises(NotSupported, match="oracle"):
        to_sql(make_literal(1), dialect="oracle")
