"""Columns of every type come through every operation as they were."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

NUMBERS = [Decimal("1.10"), Decimal("-2.20"), None, Decimal("9.99")]
TEXTS = ["", None, "ä" * 20, "a text of more than twelve bytes"]

TYPES = {
    "bool": pa.array([True, None, False, True]),
    "int8": pa.array([-128, None, 127, 0], pa.int8()),
    "uint64": pa.array([2**64 - 1, None, 0, 1], pa.uint64()),
    "float16": pa.array([0.5, None, 1.5, -2.0], pa.float16()),
    "float": pa.array([math.nan, None, -0.0, 1.5]),
    "decimal32": pa.array(NUMBERS, pa.decimal32(5, 2)),
    "decimal64": pa.array(NUMBERS, pa.decimal64(12, 2)),
    "decimal256": pa.array(NUMBERS, pa.decimal256(50, 2)),
    "string_view": pa.array(TEXTS, pa.string_view()),
    "large_string": pa.array(TEXTS, pa.large_string()),
    "binary_view": pa.array([b"", None, b"\xff" * 20, b"a"], pa.binary_view()),
    "fixed_size_binary": pa.array([b"ab", None, b"\x00\xff", b"zz"], pa.binary(2)),
    "date64": pa.array([dt.date(2024, 1, 1), None, dt.date(1900, 1, 1), dt.date(2100, 1, 1)], pa.date64()),
    "time32": pa.array([dt.time(1), None, dt.time(2), dt.time(3)], pa.time32("ms")),
    "timestamp s": pa.array([0, None, 1, 2], pa.timestamp("s")),
    "timestamp ns": pa.array([0, None, 1, 10**18 + 1], pa.timestamp("ns", "Europe/Berlin")),
    "duration": pa.array([0, None, 1, -1], pa.duration("us")),
    "null": pa.nulls(4),
    "list": pa.array([[], None, [1, None], [3]], pa.list_(pa.int64())),
    "list of views": pa.array([[], None, ["a", None], ["b"]], pa.list_(pa.string_view())),
    "large_list": pa.array([[], None, ["a"], [None]], pa.large_list(pa.string())),
    "list_view": pa.array([[1, 2], None, [], [3]], pa.list_view(pa.int64())),
    "large_list_view": pa.array([["a", None], None, [], ["b"]], pa.large_list_view(pa.string_view())),
    "struct of list views": pa.array(
        [{"l": [1]}, None, {"l": [2, 3]}, {"l": [4]}], pa.struct([("l", pa.list_view(pa.int8()))])
    ),
    "fixed_size_list": pa.array([[1, 2], None, [3, None], [5, 6]], pa.list_(pa.int16(), 2)),
    "struct": pa.array([{"x": 1, "s": "a"}, None, {"x": None, "s": None}, {"x": 4, "s": "d"}]),
    "map": pa.array([[], None, [("a", 1)], [("b", None)]], pa.map_(pa.string(), pa.int64())),
    "deep": pa.array([[{"l": [{"x": 1}]}], None, [], [None]]),
    "dictionary": pa.array(["a", None, "b", "a"]).dictionary_encode(),
    "dictionary of numbers": pa.array([1, None, 2, 1]).dictionary_encode(),
    "uuid": pa.array([b"\x00" * 16, None, b"\x01" * 16, b"\x02" * 16], pa.uuid()),
    "json": pa.array(['{"a": 1}', None, "[]", "1"], pa.json_(pa.string())),
}


OPERATIONS = {
    "delete": (lambda lake, _: lake.delete("id = 1"), [0, 2, 3]),
    "delete by expression": (lambda lake, _: lake.delete(pc.field("id") == 1), [0, 2, 3]),
    "update": (lambda lake, _: lake.update({"id": "id + 10"}, "id >= 2"), [0, 1, 12, 13]),
    "upsert": (lambda lake, table: lake.merge(table.slice(1, 2), on="id"), [0, 1, 2, 3]),
    "insert": (lambda lake, table: lake.merge(_with_ids(table, [3, 4, 5, 6]), on="id", strategy="insert"),
               [0, 1, 2, 3, 4, 5, 6]),
    "full_merge": (lambda lake, table: lake.merge(table.slice(1, 2), on="id", strategy="full_merge"), [1, 2]),
    "dedup source": (
        lambda lake, table: lake.merge(pa.concat_tables([table, table]), on="id", strategy="deduplicate"),
        [0, 1, 2, 3],
    ),
    "append": (lambda lake, table: lake.write(_with_ids(table, [4, 5, 6, 7])), list(range(8))),
    "overwrite": (lambda lake, table: lake.write(table.slice(0, 2), mode="overwrite"), [0, 1]),
    "compact": (lambda lake, _: lake.compact(), [0, 1, 2, 3]),
    "optimize": (lambda lake, _: lake.optimize(by="id"), [0, 1, 2, 3]),
    "deduplicate": (lambda lake, _: lake.deduplicate(on="half", order_by="id"), [1, 3]),
}  # fmt: skip


def _with_ids(table: pa.Table, ids: list[int]) -> pa.Table:
    return table.set_column(0, "id", pa.array(ids))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", TYPES)
def test_a_column_of_any_type_comes_through(parquet_lake, rows, name, operation):
    table = pa.table({"id": range(4), "half": [0, 0, 1, 1], "c": TYPES[name]})
    run, ids = OPERATIONS[operation]
    parquet_lake.create(table, files=2)
    before = {row["id"]: row["c"] for row in parquet_lake.rows()}
    run(parquet_lake, table)
    known = {"insert": {4: 1, 5: 2, 6: 3}, "append": {4: 0, 5: 1, 6: 2, 7: 3}, "update": {12: 2, 13: 3}}
    origin = {n: n for n in range(4)} | known.get(operation, {})
    expected = rows([{"id": n, "c": before[origin[n]]} for n in ids])
    found = rows([{"id": row["id"], "c": row["c"]} for row in parquet_lake.rows()])
    assert found == expected
    if operation != "overwrite":
        types = {parquet_lake.file(file).schema.field("c").type for file in parquet_lake.files}
        assert types == {parquet_lake.snapshot().schema.field("c").type}


ODD_NAMES = pa.table(
    {
        "a.b": [1, 2],
        "a": [{"b": 5}, {"b": 6}],
        "id": [1, 2],
        "id.x": ["a", "b"],
        "with space": ["x", "y"],
        'quo"te': ["x", "y"],
        "ä": [1, 2],
        "select": [1, 2],
        "x=y": [1, 2],
    }
)


@pytest.mark.parametrize("name", [name for name in ODD_NAMES.column_names if name != "a"])
def test_a_column_of_any_name_can_be_a_key_or_be_ordered_by(lake, name):
    lake.create(ODD_NAMES, files=2)
    changed = ODD_NAMES.slice(1).set_column(1, "a", pa.array([{"b": 60}]))
    result = lake.merge(changed, on=[name])
    assert (result.updated, result.inserted) == (1, 0)
    assert lake.values("a") == [{"b": 5}, {"b": 60}]
    assert lake.optimize(by=[name]).total == 2
    assert not lake.deduplicate(on=[name]).changed


def test_a_quoted_name_is_a_column_and_a_plain_one_with_a_dot_a_field(lake):
    lake.create(ODD_NAMES).update({"a.b": "7"}, '"a.b" = 1')
    assert lake.values("a.b", "a") == [(1, {"b": 7}), (2, {"b": 6})]
    assert lake.delete("a.b = 7").deleted == 1


def test_files_whose_dictionaries_outgrow_their_indices_together_are_compacted_readably(parquet_lake):
    kind = pa.dictionary(pa.int8(), pa.string())
    texts = [f"text {number:03d}" for number in range(200)]
    parquet_lake.create(pa.table({"id": range(100), "d": pa.array(texts[:100]).cast(kind)}))
    parquet_lake.write(pa.table({"id": range(100, 200), "d": pa.array(texts[100:]).cast(kind)}))
    parquet_lake.compact()
    (name,) = parquet_lake.files
    assert parquet_lake.file(name).schema.field("d").type == kind
    assert parquet_lake.values("d") == texts
