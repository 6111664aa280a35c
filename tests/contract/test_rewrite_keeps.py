"""What a rewrite keeps of the file it replaces: codec, row groups, metadata, filters, index, order, NULLs."""

from __future__ import annotations

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from intarsia.errors import SchemaMismatch

N = 6000
TABLE = pa.table({"id": range(N), "s": [f"s{n % 5}" for n in range(N)], "x": [n / 7 for n in range(N)]})
ONE = pa.table({"id": [10], "s": ["new"], "x": [0.5]})

TEXTS = [pa.string(), pa.binary(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]

REWRITES = {
    "merge": lambda lake, **k: lake.merge(ONE, on="id", **k),
    "delete": lambda lake, **k: lake.delete("id = 10", **k),
    "update": lambda lake, **k: lake.update({"s": "'new'"}, "id = 10", **k),
    "deduplicate": lambda lake, **k: lake.deduplicate(on="s", order_by="id", **k),
}


def _group_rows(footer):
    return [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]


@pytest.mark.parametrize("operation", ["merge", "delete", "update"])
@pytest.mark.parametrize("codec", ["zstd", "gzip", "snappy", "none", "lz4", "brotli"])
def test_the_codec_stays(parquet_lake, operation, codec):
    parquet_lake.create(TABLE, compression=codec)
    before = parquet_lake.footer().row_group(0).column(0).compression
    REWRITES[operation](parquet_lake)
    footer = parquet_lake.footer()
    assert {footer.row_group(0).column(n).compression for n in range(3)} == {before}


def test_codecs_of_single_columns_stay(parquet_lake):
    codecs = {"id": "zstd", "s": "none", "x": "gzip"}
    parquet_lake.create(TABLE, compression=codecs).merge(ONE, on="id")
    footer = parquet_lake.footer()
    found = [footer.row_group(0).column(n).compression for n in range(3)]
    assert found == ["ZSTD", "UNCOMPRESSED", "GZIP"]


def test_the_caller_may_ask_for_another_codec_and_other_row_groups(parquet_lake):
    parquet_lake.create(TABLE, compression="snappy", row_group_size=1000)
    parquet_lake.merge(ONE, on="id", compression="zstd", row_group_size=2500)
    footer = parquet_lake.footer()
    assert footer.row_group(0).column(0).compression == "ZSTD"
    assert _group_rows(footer) == [2500, 2500, 1000]


@pytest.mark.parametrize("batch_rows", [None, 100, 999])
def test_row_groups_keep_their_rows(parquet_lake, batch_rows):
    parquet_lake.create(TABLE, row_group_size=2500).merge(ONE, on="id", batch_rows=batch_rows)
    assert _group_rows(parquet_lake.footer()) == [2500, 2500, 1000]
    parquet_lake.delete("id between 100 and 199", batch_rows=batch_rows)
    assert _group_rows(parquet_lake.footer()) == [2400, 2500, 1000]


def test_rows_keep_their_order(parquet_lake):
    shuffled = TABLE.take(pa.array([n * 2531 % N for n in range(N)]))
    parquet_lake.create(shuffled).merge(ONE, on="id")
    assert parquet_lake.file()["id"].to_pylist() == shuffled["id"].to_pylist()


@pytest.mark.parametrize("operation", ["merge", "delete", "update"])
def test_key_value_metadata_stays(parquet_lake, operation):
    parquet_lake.create(TABLE.replace_schema_metadata({"owner": "me", "pandas": "{}"}))
    REWRITES[operation](parquet_lake)
    metadata = parquet_lake.footer().metadata
    assert (metadata[b"owner"], metadata[b"pandas"]) == (b"me", b"{}")
    assert b"intarsia.txid" in metadata


def test_field_metadata_and_nullability_stay(parquet_lake):
    schema = pa.schema([
        pa.field("id", pa.int64(), nullable=False, metadata={"unit": "none"}),
        pa.field("s", pa.string(), nullable=False),
        pa.field("x", pa.float64()),
    ])  # fmt: skip
    parquet_lake.create(TABLE.cast(schema)).merge(ONE, on="id")
    found = parquet_lake.file().schema
    assert [field.nullable for field in found] == [False, False, True]
    assert found.field("id").metadata[b"unit"] == b"none"


def test_bloom_filters_and_the_page_index_stay(parquet_lake):
    parquet_lake.create(
        TABLE, bloom_filter_options={"id": {"ndv": N, "fpp": 0.05}}, write_page_index=True
    ).merge(ONE, on="id")
    group = parquet_lake.footer().row_group(0)
    assert group.column(0).bloom_filter_offset is not None
    assert group.column(1).bloom_filter_offset is None
    assert group.column(0).has_offset_index
    assert group.column(0).has_column_index
    found = duckdb.sql(f"select s from '{parquet_lake.root}/*.parquet' where id = 10").fetchall()
    assert found == [("new",)]


@pytest.mark.parametrize("batch_rows", [None, 500])
def test_a_declared_order_stays_true(parquet_lake, batch_rows):
    sorting = [pq.SortingColumn(2, descending=True)]
    table = TABLE.sort_by([("x", "descending")])
    parquet_lake.create(table, sorting_columns=sorting, row_group_size=2000)
    parquet_lake.merge(pa.table({"id": [10, 5990], "s": ["n", "n"], "x": [1e6, -1.0]}), on="id",
                       batch_rows=batch_rows)  # fmt: skip
    footer = parquet_lake.footer()
    for number in range(footer.num_row_groups):
        assert footer.row_group(number).sorting_columns == (pq.SortingColumn(2, descending=True),)
        values = (
            pq.ParquetFile(parquet_lake.root / "part-00000.parquet").read_row_group(number)["x"].to_pylist()
        )
        assert values == sorted(values, reverse=True)
    assert _group_rows(footer) == [2000, 2000, 2000]


def test_every_page_has_a_checksum(parquet_lake):
    parquet_lake.create(TABLE).merge(ONE, on="id")
    name = parquet_lake.root / "part-00000.parquet"
    assert pq.ParquetFile(name, page_checksum_verification=True).read().num_rows == N


@pytest.mark.parametrize("operation", REWRITES)
@pytest.mark.parametrize("kind", TEXTS, ids=str)
def test_a_column_of_few_values_reads_back_in_its_type_by_every_reader(parquet_lake, operation, kind):
    table = TABLE.set_column(1, "s", TABLE["s"].cast(pa.string()).cast(kind))
    parquet_lake.create(table, files=2)
    source = ONE.set_column(1, "s", ONE["s"].cast(kind))
    if operation == "merge":
        parquet_lake.merge(source, on="id")
    elif operation != "update" or kind != pa.binary():
        REWRITES[operation](parquet_lake)
    for name in parquet_lake.files:
        assert parquet_lake.file(name).schema.equals(table.schema)
    total = len(parquet_lake.rows())
    assert duckdb.sql(f"select count(s) from '{parquet_lake.root}/*.parquet'").fetchall() == [(total,)]
    assert polars.read_parquet(parquet_lake.root)["s"].null_count() == 0


def test_a_dictionary_is_given_only_where_it_pays(parquet_lake):
    parquet_lake.create(TABLE, use_dictionary=True).merge(ONE, on="id")
    group = parquet_lake.footer().row_group(0)
    assert not group.column(2).has_dictionary_page  # 6000 distinct numbers
    assert group.column(1).has_dictionary_page


def test_new_files_look_like_the_files_beside_them(parquet_lake):
    parquet_lake.create(TABLE, compression="zstd", write_page_index=True)
    parquet_lake.merge(pa.table({"id": [N + 1], "s": ["n"], "x": [0.0]}), on="id")
    (new,) = [name for name in parquet_lake.files if name.startswith("insert-")]
    column = parquet_lake.footer(new).row_group(0).column(0)
    assert (column.compression, column.has_offset_index) == ("ZSTD", True)


ENUM = polars.Enum(["a", "b", "é;1"])
OUTSIDE = {
    "merge": lambda lake: lake.merge(pa.table({"id": [2, 9], "e": ["b", "zzz"]}), on="id"),
    "replacing merge": lambda lake: lake.merge(pa.table({"id": [2], "e": ["zzz"]}), on="id"),
    "append": lambda lake: lake.write(pa.table({"id": [9], "e": ["zzz"]})),
    "update": lambda lake: lake.update({"e": "'zzz'"}, "id = 2"),
}


def _create_enum(lake):
    frame = polars.DataFrame({"id": [1, 2, 3], "e": polars.Series(["a", "b", None], dtype=ENUM)})
    lake.root.mkdir(parents=True)
    frame.write_parquet(lake.root / "polars.parquet")
    return lake


@pytest.mark.parametrize("operation", OUTSIDE)
def test_a_value_outside_of_an_enum_of_polars_is_refused_since_polars_would_read_null(
    parquet_lake, operation, unchanged
):
    lake = _create_enum(parquet_lake)
    with unchanged(lake.root), pytest.raises(SchemaMismatch, match=r"'e' is an Enum of Polars.*lack 'zzz'"):
        OUTSIDE[operation](lake)


def test_an_enum_of_polars_takes_its_categories(parquet_lake):
    lake = _create_enum(parquet_lake)
    lake.merge(pa.table({"id": [1, 9], "e": ["é;1", "a"]}), on="id")
    lake.update({"e": "NULL"}, "id = 2")
    lake.compact()
    found = polars.read_parquet(lake.root).sort("id")
    assert found["e"].dtype == ENUM
    assert found.rows() == [(1, "é;1"), (2, None), (3, None), (9, "a")]
