"""What a rewrite keeps of a file on DuckDB: the same as on PyArrow, for the kernel writes for both."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it

N = 6000
MONEY = pa.decimal128(38, 2)
TABLE = pa.table(
    {
        "id": range(N),
        "s": [f"s{n % 5}" for n in range(N)],
        "x": [n / 7 for n in range(N)],
        "d": pa.array(range(N), pa.int32()).cast(MONEY),
    }
)
ONE = TABLE.slice(10, 1).set_column(1, "s", [["new"]])

LAYOUTS = {
    "page checksums": {"write_page_checksum": True},
    "page index": {"write_page_index": True},
    "bloom filters": {"bloom_filter_options": {"id": {"ndv": N, "fpp": 0.05}}},
    "codecs of single columns": {"compression": {"id": "zstd", "s": "none", "x": "gzip", "d": "snappy"}},
    "rows of each row group": {"row_group_size": 2500},
    "declared order": {"sorting_columns": [pq.SortingColumn(0)]},
    "integers for decimals": {"store_decimal_as_integer": True},
}

REWRITES = {
    "merge": lambda root, **k: it.merge(ONE, root, on="id", **k),
    "delete": lambda root, **k: it.delete(root, "id = 10", **k),
    "update": lambda root, **k: it.update(root, {"s": "'new'"}, "id = 10", **k),
    "deduplicate": lambda root, **k: it.deduplicate(root, on="s", order_by="id", **k),
    "compact": lambda root, **k: it.compact(root, **k),
    "optimize": lambda root, **k: it.optimize(root, by="id", **k),
}


def _kept(file):
    """Everything about a file that a layout is made of; its rows are read with checksums verified."""
    with pq.ParquetFile(file, page_checksum_verification=True) as opened:
        opened.read()
    footer = pq.read_metadata(file)
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    columns = []
    for chunk in (group.column(n) for group in groups for n in range(group.num_columns)):
        indexed = chunk.has_offset_index, chunk.has_column_index
        columns.append((chunk.path_in_schema, chunk.compression, *indexed, sorted(chunk.encodings)))
    schema = [str(footer.schema.column(n)) for n in range(len(footer.schema))]
    return [(group.num_rows, group.sorting_columns) for group in groups], columns, schema


@pytest.mark.parametrize("operation", REWRITES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rewrite_keeps_what_it_keeps_on_arrow(tmp_path, make_dataset, rows, layout, operation):
    root = make_dataset(tmp_path / "duckdb", TABLE, files=2, **LAYOUTS[layout])
    twin = shutil.copytree(root, tmp_path / "arrow")
    done = REWRITES[operation](root, engine="duckdb")
    REWRITES[operation](twin, engine="arrow")
    assert done.engine == "duckdb"
    assert not any("does not keep" in note or "PyArrow" in note for note in done.notes), done.notes
    assert rows(root) == rows(twin)
    both = [[_kept(file) for file in sorted(each.rglob("*.parquet"))] for each in (root, twin)]
    assert both[0] == both[1]


@pytest.mark.parametrize("operation", ["merge", "delete", "update"])
def test_checksums_and_the_page_index_are_there_afterwards(tmp_path, make_dataset, operation):
    options = {"write_page_checksum": True, "write_page_index": True, "row_group_size": 2500}
    root = make_dataset(tmp_path / "lake", TABLE, **options)
    REWRITES[operation](root, engine="duckdb")
    groups, columns, _ = _kept(root / "part-00000.parquet")
    assert [count for count, _ in groups][1:] == [2500, 1000]
    assert all(offsets and bounds for _, _, offsets, bounds, *_ in columns)


def test_row_groups_are_as_large_as_asked_for(tmp_path):
    it.write(TABLE, tmp_path / "new", row_group_size=1000, engine="duckdb")
    (file,) = (tmp_path / "new").glob("*.parquet")
    assert [count for count, _ in _kept(file)[0]] == [1000] * 6


def test_new_files_have_the_codec_and_the_index_of_those_beside_them(tmp_path, make_dataset):
    root = make_dataset(tmp_path / "lake", TABLE, compression="zstd", write_page_index=True)
    it.merge(ONE.set_column(0, "id", [[N + 1]]), root, on="id", engine="duckdb")
    (file,) = root.glob("insert-*.parquet")
    chunk = pq.read_metadata(file).row_group(0).column(0)
    assert chunk.compression == "ZSTD"
    assert chunk.has_offset_index


def test_rows_stay_in_a_declared_order(tmp_path, make_dataset):
    table = TABLE.sort_by([("x", "descending")])
    sorting = (pq.SortingColumn(2, descending=True),)
    root = make_dataset(tmp_path / "lake", table, sorting_columns=list(sorting), row_group_size=2000)
    source = pa.table({"id": [10, 5990], "s": ["n", "n"], "x": [1e6, -1.0], "d": pa.nulls(2, MONEY)})
    it.merge(source, root, on="id", engine="duckdb")
    with pq.ParquetFile(root / "part-00000.parquet") as file:
        for group in range(file.num_row_groups):
            assert file.metadata.row_group(group).sorting_columns == sorting
            values = file.read_row_group(group)["x"].to_pylist()
            assert values == sorted(values, reverse=True)


def test_a_codec_that_is_asked_for_is_used(tmp_path, make_dataset):
    root = make_dataset(tmp_path / "lake", TABLE, compression="snappy")
    it.merge(ONE, root, on="id", compression="zstd", engine="duckdb")
    assert pq.read_metadata(root / "part-00000.parquet").row_group(0).column(0).compression == "ZSTD"


def test_metadata_and_field_ids_stay(tmp_path):
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), metadata={"unit": "none", "PARQUET:field_id": "7"}),
            pa.field("s", pa.string(), metadata={"PARQUET:field_id": "8"}),
        ],
        {"owner": "me"},
    )
    it.write(pa.table({"id": [1, 2], "s": ["a", "b"]}, schema=schema), tmp_path / "t", engine="duckdb")
    it.update(tmp_path / "t", {"s": "'x'"}, "id = 1", engine="duckdb")
    (file,) = (tmp_path / "t").glob("*.parquet")
    found = pq.read_schema(file)
    assert found.metadata[b"owner"] == b"me"
    assert found.field("id").metadata == {b"unit": b"none", b"PARQUET:field_id": b"7"}


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2, 3], pa.duration("us")),
        pa.array([1, 2, 3], pa.time32("ms")),
        pa.array([b"0" * 16, b"1" * 16, b"2" * 16], pa.uuid()),
    ],
    ids=lambda column: str(column.type),
)
def test_types_that_duckdb_lacks_are_written_as_they_are(tmp_path, column):
    table = pa.table({"id": [1, 2, 3], "c": column})
    written = it.write(table, tmp_path / "t", engine="duckdb")
    merged = it.merge(table.slice(1), tmp_path / "t", on="id", engine="duckdb")
    assert not any("PyArrow" in note for note in (*written.notes, *merged.notes))
    (file,) = (tmp_path / "t").glob("*.parquet")
    assert pq.read_table(file).select(["id", "c"]).equals(table)
