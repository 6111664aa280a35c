"""Staged files: layout, metadata and dictionaries as asked for, and what is written is what is read."""

from __future__ import annotations

import random

import duckdb
import polars
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from intarsia.core.layout import Layout
from intarsia.errors import StorageError
from intarsia.kernel.file_format import choose_dictionary_columns
from intarsia.kernel.write import FileWriter, RowGroups, sort_declared

LOCAL = pafs.LocalFileSystem()


def _writer(path, schema, layout=None, **more) -> FileWriter:
    return FileWriter(
        str(path),
        schema,
        filesystem=LOCAL,
        layout=layout or Layout(),
        metadata=more.pop("metadata", {}),
        **more,
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "staged.part"


def _groups(path):
    footer = pq.read_metadata(path)
    return [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]


def test_every_table_is_a_row_group_and_the_receipt_is_true(path):
    schema = pa.schema([("id", pa.int64())], {"own": "note"})
    writer = _writer(path, schema, metadata={b"k": b"v"})
    writer.write(pa.table({"id": [1, 2]}))
    writer.write(pa.table({"id": pa.array([], pa.int64())}))
    writer.write(pa.table({"id": [3]}))
    staged = writer.close("a.parquet", {"p": 1})
    assert (staged.rows, staged.path, staged.partition) == (3, "a.parquet", {"p": 1})
    assert staged.size == path.stat().st_size
    assert _groups(path) == [2, 1]
    metadata = pq.read_metadata(path).metadata
    assert (metadata[b"k"], metadata[b"own"]) == (b"v", b"note")


def test_a_file_of_no_rows_still_has_its_schema(path):
    schema = pa.schema([("id", pa.int64()), ("s", pa.list_(pa.string()))])
    staged = _writer(path, schema).close("a.parquet", {})
    assert staged.rows == 0
    assert pq.read_schema(path).equals(schema)


N = 6000


def test_an_encoded_column_is_plain_to_every_reader_and_keeps_all_metadata(path):
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False, metadata={"unit": "one"}), pa.field("s", pa.string()),
         pa.field("d", pa.duration("us"))]
    )  # fmt: skip
    texts = pa.array(["a", "b", None] * (N // 3))
    times = pa.array([1] * N, pa.duration("us"))
    writer = _writer(path, schema, metadata={b"k": b"v"}, encoded=["s"])
    writer.write(pa.table([pa.array(range(N)), texts.dictionary_encode(), times], schema=writer.schema))
    writer.close("a.parquet", {})
    assert pq.read_metadata(path).metadata[b"k"] == b"v"
    found = pq.read_table(path)
    assert found.schema.equals(schema)
    assert found.schema.field("id").metadata[b"unit"] == b"one"
    assert found["s"].to_pylist() == texts.to_pylist()
    assert pq.read_metadata(path).row_group(0).column(1).has_dictionary_page
    counted = duckdb.sql(f"select s, count(*) from read_parquet('{path}') group by s order by s nulls last")
    assert counted.fetchall() == [("a", N // 3), ("b", N // 3), (None, N // 3)]
    assert polars.read_parquet(path).schema["s"] == polars.String
    plain = path.with_suffix(".plain")
    pq.write_table(found, plain)
    assert pq.read_schema(path).equals(pq.read_schema(plain))


def test_failures_of_the_store_are_storage_errors(tmp_path):
    writer = _writer(tmp_path / "nowhere" / "f.part", pa.schema([("id", pa.int64())]))
    with pytest.raises(StorageError, match="Cannot write a staged file") as caught:
        writer.write(pa.table({"id": [1]}))
    assert caught.value.errno
    writer.abandon()


def test_a_dictionary_is_given_where_values_repeat():
    table = pa.table({
        "few": ["a", "b"] * 1000,
        "many": [f"{number}" for number in range(2000)],
        "bool": [True, False] * 1000,
        "coded": pa.array(["x"] * 2000).dictionary_encode(),
        "nested": [{"x": [1]}] * 2000,
        "view": pa.array(["a", "b"] * 1000, pa.string_view()),
        "null": pa.nulls(2000),
        "uuid": pa.array([b"0123456789abcdef"] * 2000, pa.uuid()),
    })  # fmt: skip
    chosen = choose_dictionary_columns(table, Layout())
    assert "many" not in chosen
    assert "bool" not in chosen
    assert {"few", "coded", "nested.x.list.element", "view", "uuid"} <= set(chosen)
    kept_plain = choose_dictionary_columns(table, Layout(plain=frozenset({"few"})))
    assert "few" not in kept_plain
    assert "few" in choose_dictionary_columns(table.slice(0, 0), Layout())


def test_a_dictionary_is_given_where_values_repeat_far_apart():
    rows = 60_000
    scattered = random.Random(7).sample(range(rows), rows)
    table = pa.table({
        "days": pa.array([number % 2500 for number in scattered], pa.date32()),
        "suppliers": [number % 5000 for number in scattered],
        "unique": scattered,
        "twice, side by side": [number // 2 for number in range(rows)],
        "bytes": pa.array([number % 100 for number in scattered], pa.int8()),
        "texts": [f"{number % 5000:0200}" for number in scattered],
        "views": pa.array([f"{number % 2500}" for number in scattered], pa.string_view()),
    })  # fmt: skip
    chosen = set(choose_dictionary_columns(table, Layout()))
    assert {"days", "suppliers"} <= chosen
    assert not chosen & {"unique", "twice, side by side"}
    assert "texts" not in chosen, "its dictionary has a megabyte, where PyArrow gives it up"
    for name in ("days", "suppliers"):
        sizes = []
        for use_dictionary in (True, False):
            sink = pa.BufferOutputStream()
            pq.write_table(table.select([name]), sink, use_dictionary=use_dictionary)
            sizes.append(sink.tell())
        assert sizes[0] < sizes[1]


@pytest.mark.parametrize("pieces", [[10], [3, 3, 4], [1] * 10, [9, 1], [2, 0, 8]])
def test_pieces_become_row_groups_of_one_size(path, pieces):
    writer = _writer(path, pa.schema([("id", pa.int64())]))
    row_groups = RowGroups(writer, Layout(row_group_rows=4))
    start = 0
    for size in pieces:
        row_groups.add(pa.table({"id": pa.array(range(start, start + size), pa.int64())}))
        start += size
    row_groups.finish()
    row_groups.finish()
    writer.close("a.parquet", {})
    assert _groups(path) == [4, 4, 2]
    assert pq.read_table(path)["id"].to_pylist() == list(range(10))


def test_row_groups_are_in_the_order_that_is_declared(path):
    layout = Layout(row_group_rows=3, sorting=(("id", True, False),))
    writer = _writer(path, pa.schema([("id", pa.int64())]), layout)
    row_groups = RowGroups(writer, layout)
    for value in [1, 5, None, 4, 2, 3]:
        row_groups.add(pa.table({"id": pa.array([value], pa.int64())}))
    row_groups.finish()
    writer.close("a.parquet", {})
    assert pq.read_table(path)["id"].to_pylist() == [5, 1, None, 4, 3, 2]
    assert pq.read_metadata(path).row_group(0).sorting_columns == (pq.SortingColumn(0, descending=True),)


def test_a_table_in_order_is_left_alone():
    table = pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]})
    keys = [("id", "ascending", "at_end")]
    assert sort_declared(table, keys) is table
    assert sort_declared(table, []) is table
    assert sort_declared(table.take([2, 0, 1]), keys)["v"].to_pylist() == ["a", "b", "c"]
