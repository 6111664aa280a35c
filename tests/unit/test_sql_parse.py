"""SQL text into expressions: what is read, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal

import pyarrow as pa
import pytest

from intarsia.core.expr import (
    Arithmetic,
    Call,
    Cast,
    Column,
    Compare,
    Like,
    Literal,
    find_columns,
    make_literal,
    to_sql,
)
from intarsia.errors import InputError, NotSupported
from intarsia.sql.parse import (
    KeyPair,
    parse_assignments,
    parse_expression,
    parse_merge_condition,
    parse_predicate,
)


def test_a_predicate_is_read_as_a_tree_of_nodes() -> None:
    expr = parse_predicate("price < 0 and region = 'eu'")
    assert to_sql(expr) == '("price" < 0) AND ("region" = \'eu\')'


@pytest.mark.parametrize(
    ("text", "value", "type"),
    [
        ("1", 1, pa.int64()),
        ("-9223372036854775808", -(2**63), pa.int64()),
        ("18446744073709551615", Decimal(2**64 - 1), pa.decimal128(20, 0)),
        ("1.50", Decimal("1.50"), pa.decimal128(3, 2)),
        ("0.001", Decimal("0.001"), pa.decimal128(3, 3)),
        ("-0.5", Decimal("-0.5"), pa.decimal128(1, 1)),
        ("1e3", 1000.0, pa.float64()),
        ("'it''s'", "it's", pa.string()),
        ("true", True, pa.bool_()),
        ("null", None, pa.null()),
        ("interval 3 day", (0, 3, 0), pa.month_day_nano_interval()),
        ("interval '1 year 2 months 1.5 hours'", (14, 0, 5400 * 10**9), pa.month_day_nano_interval()),
        ("interval -2 week", (0, -14, 0), pa.month_day_nano_interval()),
    ],
)
def test_constants_have_the_type_their_text_says(text: str, value: object, type: pa.DataType) -> None:
    assert parse_expression(text) == Literal(value, type)


@pytest.mark.parametrize(
    ("text", "path", "side"),
    [
        ("a", ("a",), None),
        ("p.amt", ("p", "amt"), None),
        ("a.b.c.d.e", ("a", "b", "c", "d", "e"), None),
        ("target.x", ("x",), "target"),
        ("SOURCE.p.amt", ("p", "amt"), "source"),
        ('"a.b"', ("a.b",), None),
        ('"target".x', ("target", "x"), None),
        ("p['amt']", ("p", "amt"), None),
        ("target", ("target",), None),
        ('"sel ""ect"', ('sel "ect',), None),
    ],
)
def test_names_become_paths_and_sides(text: str, path: tuple[str, ...], side: str | None) -> None:
    found = parse_expression(text)
    assert isinstance(found, Column)
    assert (found.path, found.side) == (path, side)
    assert found.exact == ('"' in text)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a = ", "line 1, column 3"),
        ("a = 1 b", "near 'b'"),
        ("(a = 1", r"Expecting \)"),
        ("a between 1", "missing"),
        ("'open", "quote"),
        ("", "empty"),
        ("   ", "empty"),
        ("-- nothing", "empty"),
        ("a; b", "semicolon"),
        ("a = 1;", "semicolon"),
        ("a = 1; drop table t", "semicolon"),
        ("a = 1 -- and b = 2", "comment"),
        ("a /* x */ = 1", "comment"),
        ("drop table t", "near 'drop'"),
        ("select 1", "near 'select'"),
        ("a as b", "near 'as'"),
        ("a, b", "near ','"),
        ("a in ()", "at least one"),
        ("interval 'soon'", "not an interval"),
        ("interval 1 fortnight", "FORTNIGHT"),
        ("iff(a, b)", "2 arguments"),
    ],
)
def test_what_is_not_one_expression_is_refused_with_the_place(text: str, part: str) -> None:
    with pytest.raises(InputError, match=part):
        parse_expression(text)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a in (select b from t)", "subquery"),
        ("exists (select 1)", "subquery"),
        ("(select 1) = a", "subquery"),
        ("sum(a) > 1", "aggregate"),
        ("count(*) > 1", "aggregate"),
        ("sum(a) filter (where b) > 1", "aggregate"),
        ("row_number() over () = 1", "window"),
        ("a = ?", "parameter"),
        ("a = $1", "parameter"),
        ("hash(a) = 1", "hash.*md5, sha1, sha256"),
        ("frobnicate(a) = 1", "frobnicate.*listed in docs/sql"),
        ("random() < 0.5", "(?i)rand"),
        ("a[1] = 2", "lists"),
        ("uper(a) = 'X'", "did you mean upper"),
        ("levenshtein(a, b) = 1", "no function"),
        ("a collate nocase = 'x'", "COLLATE"),
        ("cast(a as json) is null", "JSON"),
        ("cast(a as int[]) is null", "ARRAY"),
        ("a = any(b)", "Any|ANY"),
        ("(a, b) = (1, 2)", "Tuple"),
        ("interval (a) day", "constant"),
        ("a << 1", "Bitwise"),
        ("a at time zone 'UTC' = b", "AtTimeZone"),
        ("a like any ('x', 'y')", "Any|ANY"),
    ],
)
def test_what_expressions_do_not_have_is_refused_by_name(text: str, part: str) -> None:
    with pytest.raises(NotSupported, match=part):
        parse_expression(text)


@pytest.mark.parametrize("text", ["1", "'x'", "a + 1", "-a", "1.5"])
def test_a_value_is_not_a_predicate(text: str) -> None:
    with pytest.raises(InputError, match="not a condition"):
        parse_predicate(text)


@pytest.mark.parametrize("text", ["flag", "true", "null", "not flag", "p.ok"])
def test_a_boolean_column_or_constant_is_a_predicate(text: str) -> None:
    assert parse_predicate(text) is not None


def test_deep_nesting_is_an_input_error_and_long_chains_are_fine() -> None:
    with pytest.raises(InputError, match="nested too deeply"):
        parse_expression("(" * 5000 + "a" + ")" * 5000)
    assert len(find_columns(parse_expression(" and ".join(f"c{n} = 1" for n in range(3000))))) == 3000


def test_text_that_is_not_text_is_refused() -> None:
    with pytest.raises(InputError, match="int"):
        parse_expression(5)  # type: ignore[arg-type]


def test_an_unknown_dialect_is_refused_with_those_there_are() -> None:
    with pytest.raises(NotSupported, match=r"'oracle'.*'spark'"):
        parse_expression("a", dialect="oracle")


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("`a b` = 'x'", "\"a b\" = 'x'"),
        ('a = "x"', "\"a\" = 'x'"),
        ("a div 2", '"a" // 2'),
        ("nvl(a, 0)", 'coalesce("a", 0)'),
        ("concat(a, b)", '"a" || "b"'),
        ("substring(a, 0, 2)", 'substring("a", 1, 2)'),
        ("dayofweek(a)", "date_part('dayofweek', \"a\") + 1"),
        ("date_trunc('MM', a)", "date_trunc('month', \"a\")"),
        ("year(a)", "date_part('year', \"a\")"),
        ("x'ab'", "'\\xAB'::BLOB"),
        ("cast(a as timestamp)", 'CAST("a" AS TIMESTAMPTZ)'),
        ("cast(a as decimal)", 'CAST("a" AS DECIMAL(10, 0))'),
    ],
)
def test_spark_text_is_read_as_spark_means_it(text: str, becomes: str) -> None:
    assert to_sql(parse_expression(text, dialect="spark")) == becomes


def test_spark_casts_cut_fractions_off_and_raise_unless_tried() -> None:
    assert parse_expression("cast(a as int)", dialect="spark") == Cast(
        Column(("a",)), pa.int32(), False, True
    )
    assert parse_expression("try_cast(a as int)", dialect="spark") == Cast(
        Column(("a",)), pa.int32(), True, True
    )


def test_the_backslash_escapes_in_spark_patterns_only() -> None:
    assert parse_expression("a like 'x'") == Like(Column(("a",)), make_literal("x"), False, None)
    assert parse_expression("a like 'x'", dialect="spark") == Like(
        Column(("a",)), make_literal("x"), False, "\\"
    )


def test_assignments_take_nested_and_odd_names_and_plain_values() -> None:
    found = dict(parse_assignments({"price": "price * 2", "p.amt": "p.amt + 1", '"a.b"': "'x'", "my col": 5}))
    assert set(found) == {("price",), ("p", "amt"), ("a.b",), ("my col",)}
    assert found["p", "amt"] == Arithmetic("+", Column(("p", "amt")), make_literal(1))
    assert found["my col",] == make_literal(5)
    assert dict(parse_assignments({"order": "1", "target.x": "2"})) == {
        ("order",): make_literal(1),
        ("x",): make_literal(2),
    }


@pytest.mark.parametrize(
    ("assignments", "part"),
    [
        ({}, "nothing to set"),
        ({"p": "1", "p.amt": "2"}, "cannot both be set"),
        ({"A": "1", "a": "2"}, "cannot both be set"),
        ({"source.x": "1"}, "belongs to the source"),
        ({"x": object()}, "neither SQL text nor a plain value"),
        ({"x": "1; drop table t"}, "semicolon"),
    ],
)
def test_assignments_that_contradict_each_other_are_refused(
    assignments: dict[str, object], part: str
) -> None:
    with pytest.raises(InputError, match=part):
        parse_assignments(assignments)


def test_a_merge_condition_is_split_into_keys_and_the_rest() -> None:
    pairs, rest = parse_merge_condition(
        "target.id = source.id and target.region <> 'ap' and source.k = target.key"
    )
    assert [(pair.target.path, pair.source.path) for pair in pairs] == [
        (("id",), ("id",)),
        (("key",), ("k",)),
    ]
    assert rest == Compare("<>", Column(("region",), "target"), make_literal("ap"))
    pair = KeyPair(Column(("id",), "target"), Column(("id",), "source"))
    assert parse_merge_condition("target.id = source.id") == ((pair,), None)


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ("target.a is not distinct from source.b and target.id = source.id", None),
        ("source.b is not distinct from target.a and target.id = source.id", None),
        ("target.a <=> source.b and target.id = source.id", "spark"),
    ],
)
def test_an_equality_that_takes_null_for_null_is_a_key(text: str, dialect: str | None) -> None:
    pairs, rest = parse_merge_condition(text, dialect=dialect)
    assert rest is None
    told = [(pair.target.path, pair.source.path, pair.null_safe) for pair in pairs]
    assert told == [(("a",), ("b",), True), (("id",), ("id",), False)]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("id = source.id", "'id'.*target.id or source.id"),
        ("target.id = source.id and x > 1", "'x'"),
        ("target.id > source.id", "no equality"),
        ("target.id = source.id or target.x = 1", "no equality"),
        ("target.id = target.id", "no equality"),
        ("true", "no equality"),
    ],
)
def test_a_merge_condition_must_tie_the_sides_together(text: str, part: str) -> None:
    with pytest.raises(InputError, match=part):
        parse_merge_condition(text)


def test_without_sqlglot_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['sqlglot'] = None\n"
        "from intarsia.errors import NotSupported\n"
        "from intarsia.sql.parse import parse_predicate\n"
        "try: parse_predicate('a = 1')\n"
        "except NotSupported as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'intarsia[sql]'" in done.stdout


def test_functions_by_their_other_names_are_the_same() -> None:
    for text in ("prefix(a, 'x')", "starts_with(a, 'x')"):
        assert parse_expression(text) == Call("starts_with", (Column(("a",)), make_literal("x")))
    for text in ("now()", "current_timestamp", "get_current_timestamp()"):
        assert parse_expression(text) == Call("current_timestamp")
