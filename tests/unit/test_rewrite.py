"""The kernel: one file and its hits in, one staged file out."""

from __future__ import annotations

import os
from dataclasses import replace

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from intarsia.core.change import Hits
from intarsia.core.expr import resolve
from intarsia.core.intent import WriteOptions
from intarsia.core.rule import Assign, Drop, Insert, Replace
from intarsia.core.snapshot import DataFile
from intarsia.errors import SchemaMismatch
from intarsia.kernel.rewrite import Rewrite, rewrite
from intarsia.sql.parse import parse_expression

LOCAL = pafs.LocalFileSystem()
TABLE = pa.table({"id": range(10), "s": [f"s{n}" for n in range(10)]})
SOURCE = pa.table({"id": [100, 200], "s": ["new", None]})


@pytest.fixture
def kernel(tmp_path):
    """Runs one rewrite of a table, and gives back the new one."""

    def run(table, hits, actions, *, source=None, schema=None, partition=None, write=None, **more):
        path, out = tmp_path / "f.parquet", tmp_path / "out.part"
        pq.write_table(table, path, **(write or {}))
        file = DataFile("f.parquet", str(path), os.path.getsize(path), table.num_rows, partition or {},
                        footer=pq.read_metadata(path))  # fmt: skip
        schema = schema or table.schema
        task = Rewrite(
            file, hits, tuple(actions), schema, tuple(partition or {}), str(out), LOCAL, LOCAL, **more
        )
        staged = rewrite(task, source)
        found = pq.ParquetFile(out).read()
        assert staged.rows == found.num_rows
        assert (staged.path, staged.partition) == ("f.parquet", partition or {})
        return found

    return run


def _hits(positions, action=0, sources=None) -> Hits:
    if isinstance(action, list):
        action = pa.array(action, pa.int8())
    return Hits(pa.array(positions, pa.int64()), action, sources and pa.array(sources, pa.int64()))


def _assign(schema, source=None, **values) -> Assign:
    resolved = [
        ((name,), resolve(parse_expression(text), schema, source=source, expect=schema.field(name).type))
        for name, text in values.items()
    ]
    return Assign(tuple(resolved))


ROW_GROUPS = [{"row_group_size": 10}, {"row_group_size": 3}, {"row_group_size": 1}]


@pytest.mark.parametrize("write", ROW_GROUPS)
@pytest.mark.parametrize("batch_rows", [None, 2])
def test_rows_are_replaced_dropped_and_assigned_in_one_pass(kernel, write, batch_rows):
    actions = [Replace(), Drop(), _assign(TABLE.schema, SOURCE.schema, s="upper(target.s)"), Drop()]
    hits = _hits([0, 2, 3, 7, 8, 9], [0, 1, 2, 3, 0, 2], [1, None, 0, None, 0, 1])
    found = kernel(
        TABLE, hits, actions, source=SOURCE, write=write, options=WriteOptions(batch_rows=batch_rows)
    )
    assert found.to_pylist() == [
        {"id": 200, "s": None}, {"id": 1, "s": "s1"}, {"id": 3, "s": "S3"}, {"id": 4, "s": "s4"},
        {"id": 5, "s": "s5"}, {"id": 6, "s": "s6"}, {"id": 100, "s": "new"}, {"id": 9, "s": "S9"},
    ]  # fmt: skip


def test_without_hits_the_rows_are_the_same(kernel):
    assert kernel(TABLE, Hits.make_empty(), [], write={"row_group_size": 4}).equals(TABLE)


def test_every_row_may_go_and_the_schema_stays(kernel):
    found = kernel(TABLE, _hits(range(10)), [Drop()])
    assert (found.num_rows, found.schema) == (0, TABLE.schema)


def test_a_column_of_its_own_type_keeps_it_unless_a_value_does_not_fit(kernel):
    schema = pa.schema([("id", pa.float64()), ("s", pa.string())])
    assert kernel(TABLE, _hits([1]), [Drop()], schema=schema).schema == TABLE.schema
    source = pa.table({"id": [0.5], "s": ["new"]})
    found = kernel(TABLE, _hits([1], sources=[0]), [Replace()], schema=schema, source=source)
    assert found.schema == schema
    assert found["id"].to_pylist()[:3] == [0.0, 0.5, 2.0]


def test_a_file_is_brought_to_the_datasets_schema(kernel):
    schema = pa.schema([("id", pa.float64()), ("s", pa.string()), ("new", pa.int64())])
    found = kernel(TABLE, Hits.make_empty(), [], schema=schema, widened=frozenset({"id"}))
    assert found.schema == schema
    assert found["id"].to_pylist() == [float(n) for n in range(10)]
    assert found["new"].null_count == 10


def test_the_partition_is_not_written_unless_the_file_has_it(kernel):
    schema = pa.schema([("id", pa.int64()), ("s", pa.string()), ("p", pa.string())])
    read_it = _assign(schema, s="p || s")
    found = kernel(TABLE, _hits([1]), [read_it], schema=schema, partition={"p": "eu"})
    assert found.column_names == ["id", "s"]
    assert found["s"].to_pylist()[:3] == ["s0", "eus1", "s2"]
    own = TABLE.add_column(0, "p", pa.array(["eu"] * 10))
    assert kernel(own, _hits([1]), [Drop()], schema=schema, partition={"p": "eu"}).column_names == [
        "p",
        "id",
        "s",
    ]


def test_nested_fields_are_assigned_at_any_depth(kernel):
    table = pa.table({"a": [{"b": {"c": 1, "d": "x"}}, None, {"b": None}]})
    value = resolve(parse_expression("7"), table.schema, expect=pa.int64())
    found = kernel(table, _hits([0, 2]), [Assign(((("a", "b", "c"), value),))])
    assert found["a"].to_pylist() == [{"b": {"c": 7, "d": "x"}}, None, {"b": {"c": 7, "d": None}}]


def test_null_where_there_must_be_none_is_refused(kernel):
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("s", pa.string())])
    table = TABLE.cast(schema)
    with pytest.raises(SchemaMismatch, match="'id'"):
        kernel(table, _hits([0]), [_assign(schema, id="null")])


def test_an_insert_cannot_apply_to_rows_of_a_file(kernel):
    with pytest.raises(AssertionError, match="Insert"):
        kernel(TABLE, _hits([0]), [Insert()])


def test_the_order_of_the_file_stays_true_where_it_is_declared(kernel):
    write = {"sorting_columns": [pq.SortingColumn(0)], "row_group_size": 5}
    for options in (WriteOptions(), WriteOptions(batch_rows=2), WriteOptions(row_group_size=5)):
        found = kernel(TABLE, _hits([1], 0, [0]), [Replace()], source=SOURCE, write=write, options=options)
        assert found["id"].to_pylist() == [0, 2, 3, 4, 100, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("value", ["a", "new", None])
def test_a_column_of_few_values_is_not_decoded_and_reads_the_same(kernel, value):
    n = 6000
    table = pa.table({"id": range(n), "s": ["a", "b", "c"] * (n // 3)})
    source = pa.table({"id": [-1], "s": pa.array([value], pa.string())})
    found = kernel(table, _hits([4], 0, [0]), [Replace()], source=source, metadata={b"intarsia.txid": b"t"})
    assert found.schema.equals(table.schema)
    assert found.schema.metadata[b"intarsia.txid"] == b"t"
    assert found["s"].to_pylist() == [*["a", "b", "c", "a", value, "c"], *(["a", "b", "c"] * (n // 3))[6:]]
    gone = kernel(table, _hits([4]), [Drop()])
    assert gone["s"].to_pylist() == [*["a", "b", "c", "a", "c"], *(["a", "b", "c"] * (n // 3))[6:]]


def test_a_task_is_a_plain_value():
    task = Rewrite(DataFile("a", "a", 1, 1), Hits.make_empty(), (), TABLE.schema, (), "out", LOCAL, LOCAL)
    assert replace(task, operation="delete").operation == "delete"
