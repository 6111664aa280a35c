"""Lists, structs, rows and maps in SQL: made, assigned and compared."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from intarsia.core.evaluate import evaluate
from intarsia.core.expr import resolve, to_sql
from intarsia.errors import InputError, IntarsiaError, NotSupported, SchemaMismatch
from intarsia.sql.parse import parse_expression

KIND = pa.struct([("x", pa.int32()), ("y", pa.string())])
ROWS = pa.table(
    {
        "i": pa.array([1, 2, None, 4], pa.int32()),
        "s": ["a", "b", None, ""],
        "l": pa.array([[1, 2], [], None, [1, None]], pa.list_(pa.int32())),
        "m": pa.array([[1, 2], [3], None, [1, None]], pa.large_list(pa.int64())),
        "p": pa.array([{"x": 1, "y": "a"}, {"x": None, "y": None}, None, {"x": 4, "y": ""}], KIND),
        "k": pa.array([[("a", 1)], [], None, [("a", None), ("b", 2)]], pa.map_(pa.string(), pa.int64())),
        "ps": pa.array([[{"x": 1, "y": "a"}], [None], None, []], pa.list_(KIND)),
    }
)
ODD = ROWS.slice(1).filter(pa.array([True, False, True]))
"""Arrays with offsets and lists of several chunks."""


def computed(text: str, rows: pa.Table = ROWS, dialect: str | None = None) -> list[Any]:
    resolved = resolve(parse_expression(text, dialect=dialect), rows.schema)
    assert resolve(resolved, rows.schema) == resolved
    assert pickle.loads(pickle.dumps(resolved)) == resolved
    return evaluate(resolved, rows).to_pylist()


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


@pytest.mark.parametrize("rows", [ROWS, ODD, ROWS.slice(2, 0), pa.concat_tables([ROWS, ODD])])
@pytest.mark.parametrize(
    "text",
    """
l = [1, 2] | l <> [1, 2] | l = m | l is distinct from m | l is not distinct from null | l = []
l = [1, null] | l is distinct from array[i, i + 1] | p = {'x': 1, 'y': 'a'} | p = {'y': 'a', 'x': 1}
p <> {'x': null, 'y': null} | k = map {'q': 1}
p is distinct from {'x': i, 'y': s} | p = row(i, s) | k = map {'a': 1} | k <> map {}
k = map([coalesce(s, 'z')], [i])
k is distinct from map {'a': null, 'b': 2} | ps = [{'x': 1, 'y': 'a'}] | ps is distinct from [null]
l in ([1, 2], [])
[i, 2.5] | array[s, 'x', null] | {'a': i, 'b': [s]} | [[i], []] | [] | [null]
case when i > 1 then l else [i] end
struct_pack(a := i) | map {1: l}
""".replace("\n", " | ").strip(" |").split(" | "),
)  # fmt: skip
def test_nested_values_mean_what_duckdb_means(
    duck: duckdb.DuckDBPyConnection, text: str, rows: pa.Table
) -> None:
    duck.register("rows", rows)
    theirs = duck.sql(f"select ({text}) from rows").fetchall()
    found = computed(text, rows)
    assert [_plain(value) for value in found] == [_plain(value) for (value,) in theirs]
    duck.unregister("rows")


def _plain(value: Any) -> Any:
    """Maps as dicts, decimals as floats."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list) and value and all(isinstance(each, tuple) for each in value):
        return {name: _plain(each) for name, each in value}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return float(value) if isinstance(value, Decimal) else value


def assigned(text: str, kind: pa.DataType) -> list[Any]:
    found = evaluate(resolve(parse_expression(text), ROWS.schema, expect=kind), ROWS)
    assert found.type == kind
    return found.to_pylist()


def test_what_is_assigned_takes_the_type_of_the_column() -> None:
    element = pa.field("element", pa.int16(), nullable=False, metadata={"PARQUET:field_id": "7"})
    assert assigned("[1, 2]", pa.list_(element)) == [[1, 2]] * 4
    assert assigned("[i]", pa.large_list(pa.float32()))[1] == [2.0]
    assert assigned("[1, i]", pa.list_(pa.int64(), 2))[0] == [1, 1]
    assert assigned("[]", pa.list_(pa.string())) == [[]] * 4
    assert assigned("{'Y': s, 'x': i}", KIND)[1] == {"x": 2, "y": "b"}
    assert assigned("{'y': s}", KIND)[0] == {"x": None, "y": "a"}
    assert assigned("row(i, s)", KIND)[3] == {"x": 4, "y": ""}
    cents = pa.map_(pa.string(), pa.decimal128(5, 2))
    assert assigned("map {coalesce(s, 'z'): 1.005}", cents)[0] == [("a", Decimal("1.01"))]
    assert assigned("map {}", pa.map_(pa.int32(), KIND)) == [[]] * 4
    assert assigned("[{'x': i}]", pa.list_(KIND))[1] == [{"x": 2, "y": None}]
    assert assigned("case when i = 1 then [1] end", pa.list_(pa.int8())) == [[1], None, None, None]
    assert assigned("['2025-01-01', '2025-01-02']", pa.list_(pa.date32()))[0][1].day == 2


@pytest.mark.parametrize(
    ("text", "kind", "error"),
    [
        ("[1.5]", pa.list_(pa.int32()), SchemaMismatch),
        ("[i * 1.1]", pa.list_(pa.int32()), SchemaMismatch),
        ("['a']", pa.list_(pa.int32()), SchemaMismatch),
        ("{'z': 1}", KIND, SchemaMismatch),
        ("row(1)", KIND, SchemaMismatch),
        (
            "{'x': 1}",
            pa.struct([("x", pa.int32()), pa.field("y", pa.string(), nullable=False)]),
            SchemaMismatch,
        ),
        ("[i]", pa.list_(pa.field("item", pa.int32(), nullable=False)), SchemaMismatch),
        ("{'x': i}", pa.struct([pa.field("x", pa.int32(), nullable=False)]), SchemaMismatch),
        ("[1]", pa.int32(), SchemaMismatch),
        ("[1]", KIND, SchemaMismatch),
        ("1", pa.list_(pa.int32()), SchemaMismatch),
        ("map {s: 1}", pa.map_(pa.string(), pa.int64()), InputError),
        ("map {'a': 1, 'a': 2}", pa.map_(pa.string(), pa.int64()), InputError),
    ],
)
def test_what_does_not_fit_a_nested_column_is_refused(text: str, kind: pa.DataType, error: type) -> None:
    with pytest.raises(error):
        assigned(text, kind)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("l < [1]", NotSupported),
        ("l = 1", IntarsiaError),
        ("p = {'z': 1}", SchemaMismatch),
        ("[1, 'a']", IntarsiaError),
        ("lower([s])", SchemaMismatch),
        ("{'a': 1, 'A': 2}", InputError),
        ("map([1], l)", NotSupported),
    ],
)
def test_what_nested_values_cannot_do_is_said(text: str, error: type) -> None:
    with pytest.raises(error):
        computed(text)


def test_spark_spells_them_otherwise() -> None:
    assert computed("array(i, 2)", dialect="spark") == computed("[i, 2]")
    assert computed("named_struct('a', i)", dialect="spark") == computed("{'a': i}")
    assert computed("struct(i, s)", dialect="spark") == computed("{'i': i, 's': s}")
    assert computed("map('a', i)", dialect="spark") == computed("map {'a': i}")
    assert computed("l <=> array(1, 2)", dialect="spark") == [True, False, False, False]


def test_they_are_shown_as_sql() -> None:
    text = to_sql(resolve(parse_expression("{'a': [i], 'b': map {'k': 1}}"), ROWS.schema))
    assert text == """struct_pack("a" := list_value("i"), "b" := MAP {'k': 1})"""
