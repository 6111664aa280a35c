"""What DuckDB's writer does not keep of a file, and that the plan says so; the rows are kept always."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it

N = 6000
TABLE = pa.table({"id": range(N), "s": [f"s{n % 5}" for n in range(N)], "x": [n / 7 for n in range(N)]})
ONE = pa.table({"id": [10], "s": ["new"], "x": [0.5]})

LAYOUTS = {
    "page checksums": {"write_page_checksum": True},
    "the page index": {"write_page_index": True},
    "Bloom filters": {"bloom_filter_options": {"id": {"ndv": N, "fpp": 0.05}}},
    "codecs of single columns": {"compression": {"id": "zstd", "s": "none", "x": "gzip"}},
    "the rows of each row group": {"row_group_size": 2500},
    "the declaration of an order": {"sorting_columns": [pq.SortingColumn(0)]},
}

REWRITES = {
    "merge": lambda root, **k: it.merge(ONE, root, on="id", **k),
    "delete": lambda root, **k: it.delete(root, "id = 10", **k),
    "update": lambda root, **k: it.update(root, {"s": "'new'"}, "id = 10", **k),
    "deduplicate": lambda root, **k: it.deduplicate(root, on="s", order_by="id", **k),
    "compact": lambda root, **k: it.compact(root, **k),
    "optimize": lambda root, **k: it.optimize(root, by="x", **k),
}


@pytest.mark.parametrize("operation", REWRITES)
@pytest.mark.parametrize("lost", LAYOUTS)
def test_the_plan_says_what_is_not_kept(tmp_path, make_dataset, rows, lost, operation):
    roots = [make_dataset(tmp_path / name, TABLE, files=2, **LAYOUTS[lost]) for name in ("a", "b")]
    planned = REWRITES[operation](roots[0], engine="duckdb", dry_run=True)
    done = REWRITES[operation](roots[0], engine="duckdb")
    for notes in (planned.notes, planned.plan.notes, done.notes):
        assert any("does not keep" in note and lost in note for note in notes), notes
    REWRITES[operation](roots[1], engine="arrow")
    assert rows(roots[0]) == rows(roots[1])


@pytest.mark.parametrize("lost", [name for name in LAYOUTS if name != "page checksums"])
def test_what_a_file_does_not_have_is_not_lost(tmp_path, make_dataset, lost):
    root = make_dataset(tmp_path / "lake", TABLE)
    assert not any(lost in note for note in it.plan("merge", ONE, root, on="id", engine="duckdb").notes)


def test_an_operation_that_writes_nothing_keeps_everything(tmp_path, make_dataset):
    root = make_dataset(tmp_path / "lake", TABLE)
    assert it.plan("delete", root, "id = -1", engine="duckdb").notes == ()


def test_rows_of_row_groups_that_duckdb_would_not_hold_are_written_by_pyarrow(tmp_path):
    plan = it.plan("write", TABLE, tmp_path / "new", row_group_size=1000, engine="duckdb")
    assert any("written by PyArrow" in note and "row_group_size=1,000" in note for note in plan.notes)
    plan = it.plan("write", TABLE, tmp_path / "new", row_group_size=4096, engine="duckdb")
    assert duckdb.__version__ < "2" or not any("row_group_size" in note for note in plan.notes)
    it.write(TABLE, tmp_path / "new", row_group_size=4096, engine="duckdb")
    (file,) = (tmp_path / "new").glob("*.parquet")
    footer = pq.read_metadata(file)
    found = [footer.row_group(n).num_rows for n in range(footer.num_row_groups)]
    # Versions before 2 may bring the last ones together.
    assert found == [4096, N - 4096] or (duckdb.__version__ < "2" and found == [N])


def test_new_files_are_told_of_beside_files_that_have_more(tmp_path, make_dataset):
    root = make_dataset(tmp_path / "lake", TABLE, compression="zstd", write_page_index=True)
    new = pa.table({"id": [N + 1], "s": ["n"], "x": [0.0]})
    assert any("page index" in note for note in it.plan("merge", new, root, on="id", engine="duckdb").notes)
    it.merge(new, root, on="id", engine="duckdb")
    (file,) = root.glob("insert-*.parquet")
    assert pq.read_metadata(file).row_group(0).column(0).compression == "ZSTD"


def test_rows_stay_in_a_declared_order(tmp_path, make_dataset):
    table = TABLE.sort_by([("x", "descending")])
    sorting = [pq.SortingColumn(2, descending=True)]
    root = make_dataset(tmp_path / "lake", table, sorting_columns=sorting, row_group_size=2000)
    source = pa.table({"id": [10, 5990], "s": ["n", "n"], "x": [1e6, -1.0]})
    it.merge(source, root, on="id", engine="duckdb")
    values = pq.ParquetFile(root / "part-00000.parquet").read()["x"].to_pylist()
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


def test_the_declaration_names_what_is_not_kept():
    from intarsia.engines.duckdb.abilities import ABILITIES

    assert set(ABILITIES.unkept) == set(LAYOUTS)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2, 3], pa.duration("us")),
        pa.array([1, 2, 3], pa.time32("ms")),
        pa.array([b"0" * 16, b"1" * 16, b"2" * 16], pa.uuid()),
    ],
    ids=lambda column: str(column.type),
)
def test_the_plan_says_what_pyarrow_writes(tmp_path, column):
    table = pa.table({"id": [1, 2, 3], "c": column})
    written = it.write(table, tmp_path / "t", engine="duckdb")
    assert written.notes[0].startswith("New files are written by PyArrow: ")
    merged = it.merge(table.slice(1), tmp_path / "t", on="id", engine="duckdb")
    assert merged.notes[0].startswith("1 of 1 files are rewritten by PyArrow: ")
    assert not any("does not keep" in note for note in (*written.notes, *merged.notes))
