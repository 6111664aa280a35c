"""What a rewrite keeps of a file's layout: read from real footers, written again, and read back."""

from __future__ import annotations

import datetime as dt
import decimal
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from intarsia.core.layout import DEFAULT_ROW_GROUP_ROWS, Layout, list_leaf_columns, read_layout

TABLE = pa.table(
    {
        "id": list(range(1000)),
        "name": [f"n{i % 7}" for i in range(1000)],
        "price": [i * 1.5 for i in range(1000)],
        "tags": [[1, 2]] * 1000,
        "point": [{"x": 1, "y": {"z": 2.5}}] * 1000,
        "map": pa.array([[("k", 1)]] * 1000, pa.map_(pa.string(), pa.int64())),
        "a.b": list(range(1000)),
        "fixed": pa.array([[1, 2]] * 1000, pa.list_(pa.int64(), 2)),
    }
)


def footer_of(path: Path, table: pa.Table, **options: Any) -> pq.FileMetaData:
    size = options.pop("row_group_size", None)
    pq.write_table(table, path, row_group_size=size, **options)
    return pq.read_metadata(path)


def written_again(path: Path, table: pa.Table, layout: Layout) -> pq.FileMetaData:
    """As the engine writes: every column that may have a dictionary gets one."""
    columns = [name for name in list_leaf_columns(table.schema) if layout.allows_dictionary(name)]
    options = layout.make_writer_options(table.schema, dictionary_columns=columns)
    schema = table.schema.with_metadata(layout.key_value_metadata)
    with pq.ParquetWriter(path, schema, **options) as writer:
        writer.write_table(table, row_group_size=layout.row_group_rows)
    return pq.read_metadata(path)


def test_leaves_are_named_as_parquet_names_them(tmp_path: Path) -> None:
    footer = footer_of(tmp_path / "f", TABLE)
    assert list_leaf_columns(TABLE.schema) == [
        c.path for c in map(footer.schema.column, range(footer.num_columns))
    ]


def test_codec_row_groups_dictionaries_index_filters_order_and_metadata_survive(tmp_path: Path) -> None:
    leaves = list_leaf_columns(TABLE.schema)
    footer = footer_of(
        tmp_path / "old",
        TABLE.replace_schema_metadata({"who": "me"}),
        row_group_size=300,
        compression={
            name: "zstd" if name in ("id", "a.b", "tags.list.element") else "gzip" for name in leaves
        },
        use_dictionary=["name", "tags.list.element"],
        use_byte_stream_split=["price"],
        write_page_index=True,
        sorting_columns=[pq.SortingColumn(leaves.index("price"), descending=True, nulls_first=True)],
        bloom_filter_options={"name": {"ndv": 300}, "id": {"ndv": 300}},
    )
    old = read_layout(footer)
    assert old.row_group_rows == 300
    assert old.sorting == (("price", True, True),)
    again = written_again(tmp_path / "new", TABLE, old)
    new = read_layout(again)
    assert set(new.bloom_filters) == {"name", "id"}
    assert replace(new, bloom_filters=old.bloom_filters) == old
    assert [again.row_group(i).num_rows for i in range(again.num_row_groups)] == [300, 300, 300, 100]
    for number in range(footer.num_columns):
        before, after = footer.row_group(0).column(number), again.row_group(0).column(number)
        assert (after.path_in_schema, after.compression) == (before.path_in_schema, before.compression)
        assert after.has_dictionary_page == before.has_dictionary_page
        assert sorted(after.encodings) == sorted(before.encodings)
        assert after.has_offset_index
        assert (after.bloom_filter_offset is None) == (before.bloom_filter_offset is None)
    assert again.metadata[b"who"] == b"me"
    assert pq.read_table(tmp_path / "new").equals(TABLE)


def test_bloom_filters_of_booleans_which_pyarrow_cannot_write_are_left_out(tmp_path: Path) -> None:
    schema = pa.schema({"flag": pa.bool_(), "s": pa.struct([("yes", pa.bool_()), ("n", pa.int64())])})
    table = pa.table({"flag": [True, None], "s": [{"yes": True, "n": 1}, None]}, schema=schema)
    layout = Layout(bloom_filters={"flag": 2, "s.yes": 2, "s.n": 2})
    footer = written_again(tmp_path / "new", table, layout)
    assert set(read_layout(footer).bloom_filters) == {"s.n"}
    assert pq.read_table(tmp_path / "new").equals(table)


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
def test_every_codec_survives(tmp_path: Path, codec: str) -> None:
    old = read_layout(footer_of(tmp_path / "old", TABLE, compression=codec))
    assert old.compression == codec
    assert old.compression_of == {}
    assert read_layout(written_again(tmp_path / "new", TABLE, old)).compression == codec


def test_columns_that_are_new_or_gone_do_not_disturb(tmp_path: Path) -> None:
    leaves = list_leaf_columns(TABLE.schema)
    codecs = dict.fromkeys(leaves, "snappy") | {"id": "zstd", "price": "gzip"}
    order = [pq.SortingColumn(leaves.index("id")), pq.SortingColumn(leaves.index("price"))]
    old = read_layout(footer_of(tmp_path / "old", TABLE, compression=codecs, sorting_columns=order))
    other = pa.table({"new": ["x"], "id": [1]})
    again = written_again(tmp_path / "new", other, old)
    assert [again.row_group(0).column(i).compression for i in (0, 1)] == ["SNAPPY", "ZSTD"]
    assert read_layout(again).sorting == (("id", False, False),)


def test_an_order_that_not_every_row_group_declares_is_not_the_files(tmp_path: Path) -> None:
    footer = footer_of(tmp_path / "old", TABLE, row_group_size=500, sorting_columns=[pq.SortingColumn(0)])
    unsorted = footer_of(tmp_path / "other", TABLE)
    footer.append_row_groups(unsorted)
    assert read_layout(footer).sorting == ()


def test_sort_keys_stop_at_the_first_column_that_cannot_be_sorted_by() -> None:
    layout = Layout(sorting=(("id", False, False), ("price", True, True), ("point.x", False, False)))
    assert layout.make_sort_keys(TABLE.schema) == [
        ("id", "ascending", "at_end"),
        ("price", "descending", "at_start"),
    ]
    assert Layout(sorting=(("gone", False, False), ("id", False, False))).make_sort_keys(TABLE.schema) == []


def test_a_file_without_rows_gives_the_defaults_and_its_metadata(tmp_path: Path) -> None:
    empty = TABLE.slice(0, 0).replace_schema_metadata({"who": "me"})
    with pq.ParquetWriter(tmp_path / "f", empty.schema) as writer:
        assert writer is not None
    layout = read_layout(pq.read_metadata(tmp_path / "f"))
    assert layout.row_group_rows == DEFAULT_ROW_GROUP_ROWS
    assert layout.key_value_metadata == {b"who": b"me"}


def test_physical_types_of_a_file_survive(tmp_path: Path) -> None:
    table = pa.table(
        {
            "when": pa.array([dt.datetime(2024, 5, 6)], pa.timestamp("ns")),
            "price": pa.array([decimal.Decimal("1.10")]),
        }
    )
    options = {"use_deprecated_int96_timestamps": True, "store_decimal_as_integer": True}
    old = read_layout(footer_of(tmp_path / "old", table, **options))
    assert (old.int96_timestamps, old.integer_decimals) == (True, True)
    again = written_again(tmp_path / "new", table, old)
    assert [again.schema.column(i).physical_type for i in (0, 1)] == ["INT96", "INT32"]
    assert pq.read_table(tmp_path / "new").equals(table)


def test_old_names_of_list_elements_survive(tmp_path: Path) -> None:
    old = read_layout(footer_of(tmp_path / "old", TABLE, use_compliant_nested_type=False))
    assert old.item_lists
    again = written_again(tmp_path / "new", TABLE, old)
    assert "tags.list.item" in [again.schema.column(i).path for i in range(again.num_columns)]


def test_the_layout_of_another_writers_file_can_be_written(tmp_path: Path) -> None:
    duckdb.sql(
        f"copy (select range as id, 'x' || range as name, range::decimal(9,2) as d, [range] as l, "
        f"timestamp '2024-01-01' as t from range(1000)) to '{tmp_path}/old' (format parquet, codec zstd)"
    )
    old = read_layout(pq.read_metadata(tmp_path / "old"))
    assert old.compression == "zstd"
    table = pq.ParquetFile(tmp_path / "old").read()
    again = written_again(tmp_path / "new", table, old)
    assert read_layout(again).integer_decimals == old.integer_decimals
    assert duckdb.sql(f"select count(*) from read_parquet('{tmp_path}/new')").fetchall() == [(1000,)]


def test_the_caller_may_ask_for_another_codec_and_size() -> None:
    layout = Layout(compression="gzip", compression_of={"id": "zstd"})
    assert (
        layout.with_compression("lz4").make_writer_options(TABLE.schema, dictionary_columns=[])["compression"]
        == "lz4"
    )
    assert layout.with_row_group_rows(5).row_group_rows == 5


def test_page_checksums_are_always_written() -> None:
    assert Layout().make_writer_options(TABLE.schema, dictionary_columns=[])["write_page_checksum"] is True
