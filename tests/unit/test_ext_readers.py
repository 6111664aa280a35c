"""The reading helpers: consistent tables, the path of each row, and threads that change nothing."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import logging

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.fs as pafs
import pyarrow.json as pajson
import pyarrow.parquet as pq
import pytest

from intarsia.core.ext import read_csv, read_json, read_parquet, read_parquet_file
from intarsia.errors import (
    ColumnNotFound,
    DamagedTable,
    InputError,
    NothingMatched,
    SchemaMismatch,
    StorageError,
)

ROWS = [{"id": n, "name": f"n{n}", "x": n / 2} for n in range(1000)]
TABLE = pa.Table.from_pylist(ROWS)


def _write_parquet(path, rows):
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=100)


def _write_csv(path, rows):
    pacsv.write_csv(pa.Table.from_pylist(rows), path)


def _write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write_array(path, rows):
    path.write_text(json.dumps(rows, indent=2))


FORMATS = {
    "parquet": (read_parquet, _write_parquet, "parquet"),
    "csv": (read_csv, _write_csv, "csv"),
    "json lines": (read_json, _write_lines, "jsonl"),
    "json array": (read_json, _write_array, "json"),
}


@pytest.fixture(params=FORMATS)
def kind(request):
    return FORMATS[request.param]


@pytest.fixture
def files(tmp_path, kind):
    """Four files in two directories; the rows in the order of their paths."""
    _, write, suffix = kind
    for number in range(4):
        directory = tmp_path / f"half={number // 2}"
        directory.mkdir(exist_ok=True)
        write(directory / f"part-{number}.{suffix}", ROWS[number * 250 : (number + 1) * 250])
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "notes.txt").write_text("not data")
    return tmp_path


def test_a_directory_is_read_in_order_with_its_partition_columns(kind, files):
    read = kind[0]
    table = read(files)
    assert isinstance(table, pa.Table)
    assert table.drop_columns(["half"]).to_pylist() == ROWS
    assert table["half"].to_pylist() == [0] * 500 + [1] * 500
    assert table.schema.field("half").type == pa.int64()


def test_a_file_a_glob_and_a_list_are_read_alike(kind, files):
    read, _, suffix = kind
    one = files / "half=0" / f"part-1.{suffix}"
    assert read(one).to_pylist() == ROWS[250:500]
    assert read(str(one)).to_pylist() == ROWS[250:500]
    assert read(one.as_uri()).to_pylist() == ROWS[250:500]
    assert read(f"{files}/half=1/*.{suffix}").drop_columns(["half"]).to_pylist() == ROWS[500:]
    both = read([files / "half=1", one])
    assert both.to_pylist() == ROWS[500:] + ROWS[250:500]
    assert read([one], filesystem=pafs.LocalFileSystem()).num_rows == 250


def test_use_threads_changes_neither_rows_nor_order_nor_types(kind, files):
    read = kind[0]
    parallel = read(files, use_threads=True, include_file_path=True)
    sequential = read(files, use_threads=False, include_file_path=True)
    assert parallel.schema.equals(sequential.schema, check_metadata=True)
    assert parallel.equals(sequential)


def test_threads_agree_where_a_type_is_settled_only_by_the_last_row(tmp_path):
    (tmp_path / "a.csv").write_text("v\n" + "1\n" * 50_000 + "x\n")
    (tmp_path / "a.jsonl").write_text('{"v": 1}\n' * 50_000 + '{"v": 1.5}\n')
    options = pacsv.ReadOptions(block_size=1000)
    csv = [read_csv(tmp_path / "a.csv", use_threads=t, read_options=options) for t in (True, False)]
    assert csv[0].equals(csv[1])
    assert csv[0].schema.field("v").type == pa.string()
    options = pajson.ReadOptions(block_size=1000)
    both = [read_json(tmp_path / "a.jsonl", use_threads=t, read_options=options) for t in (True, False)]
    assert both[0].equals(both[1])
    assert both[0].schema.field("v").type == pa.float64()
    assert options.use_threads  # the caller's object stays as it was


def test_include_file_path_adds_a_string_column_of_full_length(kind, files):
    read, _, suffix = kind
    table = read(files, include_file_path=True)
    assert table.schema.field("file_path").type == pa.string()
    assert len(table["file_path"]) == table.num_rows == 1000
    paths = [f"{files}/half={n // 2}/part-{n}.{suffix}" for n in range(4)]
    assert table["file_path"].to_pylist() == [path for path in paths for _ in range(250)]


def test_file_path_follows_filters_and_columns(kind, files):
    read, _, suffix = kind
    table = read(files, columns=["id"], filters=pc.field("x") > 490.0, include_file_path=True)
    assert table.column_names == ["id", "file_path"]
    assert table["id"].to_pylist() == list(range(981, 1000))
    assert set(table["file_path"].to_pylist()) == {f"{files}/half=1/part-3.{suffix}"}


def test_a_file_path_column_of_the_data_is_not_overwritten(kind, tmp_path):
    read, write, suffix = kind
    write(tmp_path / f"a.{suffix}", [{"file_path": "mine"}])
    with pytest.raises(InputError, match="'file_path'"):
        read(tmp_path, include_file_path=True)
    assert read(tmp_path).to_pylist() == [{"file_path": "mine"}]


def test_columns_come_in_the_order_asked_for(kind, files):
    read = kind[0]
    assert read(files, columns=["x", "half", "id"]).column_names == ["x", "half", "id"]
    assert read(files, columns="name").column_names == ["name"]
    assert read(files, columns=["half"]).num_rows == 1000


def test_filters_may_be_tuples_or_an_expression_and_name_partition_columns(kind, files):
    read = kind[0]
    assert read(files, filters=[("id", "<", 3)])["id"].to_pylist() == [0, 1, 2]
    assert read(files, filters=[[("id", "=", 5)], [("id", "=", 999)]])["id"].to_pylist() == [5, 999]
    assert read(files, columns=["id"], filters=pc.field("half") == 1)["id"].to_pylist() == list(
        range(500, 1000)
    )
    with pytest.raises(InputError, match="not understood"):
        read(files, filters=[("id", "~", 3)])


def test_a_column_that_is_not_there_is_named(kind, files):
    read = kind[0]
    with pytest.raises(ColumnNotFound, match=r"'wrong'.*'id', 'name', 'x', 'half'") as caught:
        read(files, columns=["id", "wrong"])
    assert isinstance(caught.value, pa.ArrowKeyError)
    with pytest.raises(ColumnNotFound, match="wrong"):
        read(files, filters=pc.field("wrong") > 1)


def test_files_with_different_schemas_are_unified(kind, tmp_path):
    read, write, suffix = kind
    write(tmp_path / f"1.{suffix}", [{"a": 1, "b": "x"}])
    write(tmp_path / f"2.{suffix}", [{"a": 2, "c": 1.5}])
    table = read(tmp_path)
    assert table.to_pylist() == [{"a": 1, "b": "x", "c": None}, {"a": 2, "b": None, "c": 1.5}]


def test_a_column_of_text_files_has_the_type_it_would_have_in_one_file(tmp_path):
    (tmp_path / "1.csv").write_text("n,zip,day\n1,01234,2025-01-01\n")
    (tmp_path / "2.csv").write_text("n,zip,day\n1.5,A1234,soon\n")
    (tmp_path / "3.csv").write_text("n,zip,day\n,,\n")
    expected = {"n": [1.0, 1.5, None], "zip": ["01234", "A1234", None], "day": ["2025-01-01", "soon", None]}
    assert read_csv(tmp_path).to_pydict() == expected
    (tmp_path / "1.json").write_text('{"n": 1, "day": "2025-01-01"}')
    (tmp_path / "2.json").write_text('{"n": 1.5, "day": "soon"}')
    assert read_json(tmp_path).to_pydict() == {"n": [1.0, 1.5], "day": ["2025-01-01", "soon"]}


@pytest.mark.parametrize("kind", [FORMATS["parquet"], FORMATS["json lines"]], ids=["parquet", "json"])
def test_schemas_that_do_not_meet_are_a_schema_mismatch(kind, tmp_path):
    read, write, suffix = kind
    write(tmp_path / f"1.{suffix}", [{"a": 1}])
    write(tmp_path / f"2.{suffix}", [{"a": "text"}])
    with pytest.raises(SchemaMismatch, match="'a'"):
        read(tmp_path)


def test_a_missing_path_or_an_empty_directory_is_file_not_found(kind, tmp_path):
    read = kind[0]
    for path in (tmp_path, tmp_path / "no", f"{tmp_path}/*.none"):
        with pytest.raises(NothingMatched):
            read(path)
    with pytest.raises(InputError, match="No path"):
        read([])


@pytest.mark.parametrize(
    ("read", "name", "content"),
    [
        (read_parquet, "a.parquet", b"PAR1"),
        (read_csv, "a.csv", b"a,b\n1,2\n3\n"),
        (read_json, "a.json", b'{"a": }'),
        (read_json, "a.json", b'[{"a": 1}, 5]'),
    ],
)
def test_a_damaged_file_is_named(tmp_path, read, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DamagedTable, match=name) as caught:
        read(tmp_path)
    assert isinstance(caught.value, pa.ArrowInvalid)
    assert caught.value.path.endswith(name)


def test_a_file_that_may_not_be_read_is_a_storage_error(kind, tmp_path, monkeypatch):
    read, write, suffix = kind
    write(tmp_path / f"a.{suffix}", ROWS[:1])

    class Refusing(pafs.FileSystemHandler):
        def __getattr__(self, name):
            return getattr(pafs.LocalFileSystem(), name)

        def get_file_info(self, paths):
            return pafs.LocalFileSystem().get_file_info(paths)

        def get_file_info_selector(self, selector):
            return pafs.LocalFileSystem().get_file_info(selector)

        def open_input_stream(self, path):
            raise PermissionError(13, "Permission denied", path)

        open_input_file = open_input_stream

        def get_type_name(self):
            return "refusing"

        def normalize_path(self, path):
            return path

        def _no(self, *_):
            raise NotImplementedError

        create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _no
        move = copy_file = open_output_stream = open_append_stream = _no

    with pytest.raises(StorageError, match=f"a.{suffix}.*ermission") as caught:
        read(tmp_path, filesystem=pafs.PyFileSystem(Refusing()))
    assert caught.value.path.endswith(f"a.{suffix}")


def test_unexpected_errors_are_logged_and_come_through(tmp_path, caplog, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("unexpected")

    monkeypatch.setattr("intarsia.core.ext.csv.read_text", broken)
    with caplog.at_level(logging.ERROR, "intarsia"), pytest.raises(RuntimeError, match="unexpected"):
        read_csv(tmp_path)
    assert "read_csv" in caplog.text
    assert str(tmp_path) in caplog.text


def test_an_unknown_option_is_refused(tmp_path):
    with pytest.raises(InputError, match="'delimiter'"):
        read_csv(tmp_path, delimiter=";")
    with pytest.raises(InputError, match="'convert_options'"):
        read_json(tmp_path, convert_options=None)


# Parquet -----------------------------------------------------------------------------------------


def test_partition_columns_come_back_with_types_and_nulls(tmp_path, make_dataset):
    table = pa.table(
        {"id": [1, 2, 3], "day": ["2025-11-14", None, "2025-11-15"], "code": ["007", "a/b", "007"]}
    )
    root = make_dataset(tmp_path / "t", table, partition=["day", "code"])
    found = read_parquet(root).sort_by("id")
    assert found["day"].to_pylist() == [dt.date(2025, 11, 14), None, dt.date(2025, 11, 15)]
    assert found["code"].to_pylist() == ["007", "a/b", "007"]
    assert read_parquet(root, filters=pc.field("day") == dt.date(2025, 11, 15))["id"].to_pylist() == [3]
    assert read_parquet(root, filters=pc.field("day").is_null())["id"].to_pylist() == [2]
    typed = read_parquet(root, types=pa.schema([("day", pa.string())]))
    assert typed.schema.field("day").type == pa.string()


def test_files_of_other_types_are_filtered_and_selected_after_conversion(tmp_path):
    pq.write_table(pa.table({"a": pa.array([1, 5], pa.int32()), "b": ["x", "y"]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": pa.array([2**40, 3], pa.int64())}), tmp_path / "2.parquet")
    table = read_parquet(tmp_path, filters=pc.field("a") > 2, columns=["b", "a"], include_file_path=True)
    assert table["a"].to_pylist() == [5, 2**40, 3]
    assert table["b"].to_pylist() == ["y", None, None]
    assert table.schema.field("a").type == pa.int64()
    assert read_parquet(tmp_path, columns=["a"])["a"].to_pylist() == [1, 5, 2**40, 3]


def test_one_file_is_read_without_its_directories(tmp_path):
    files = tmp_path / "files"
    (files / "half=0").mkdir(parents=True)
    path = files / "half=0" / "part-0.parquet"
    _write_parquet(path, ROWS[:250])
    assert read_parquet_file(path).to_pylist() == ROWS[:250]
    table = read_parquet_file(path, columns=["id"], filters=[("id", "<", 2)], include_file_path=True)
    assert table.to_pydict() == {"id": [0, 1], "file_path": [str(path)] * 2}
    with pytest.raises(InputError, match="not one file"):
        read_parquet_file(files)


def test_row_groups_that_a_filter_rules_out_are_not_decoded(tmp_path):
    path = tmp_path / "a.parquet"
    _write_parquet(path, ROWS)
    raw = bytearray(path.read_bytes())
    column = pq.read_metadata(path).row_group(9).column(1)
    start = column.dictionary_page_offset or column.data_page_offset
    raw[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(raw)
    assert read_parquet(path, filters=[("id", "<", 5)])["id"].to_pylist() == [0, 1, 2, 3, 4]
    with pytest.raises((DamagedTable, StorageError), match=r"a\.parquet"):
        read_parquet(path)


# Text --------------------------------------------------------------------------------------------


def test_compressed_files_are_read(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a\n1\n"))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n'))
    assert read_csv(tmp_path).to_pydict() == read_json(tmp_path).to_pydict() == {"a": [1]}


def test_options_of_pyarrow_are_passed_on(tmp_path):
    (tmp_path / "a.csv").write_text("a;b\n1;2\n")
    assert read_csv(tmp_path, parse_options=pacsv.ParseOptions(delimiter=";")).to_pydict() == {
        "a": [1],
        "b": [2],
    }


def test_known_types_are_used(tmp_path):
    (tmp_path / "a.csv").write_text("zip\n01234\n")
    (tmp_path / "a.json").write_text('[{"zip": "2025-01-01"}]')
    types = pa.schema([("zip", pa.string())])
    assert read_csv(tmp_path, types=types)["zip"].to_pylist() == ["01234"]
    assert read_json(tmp_path, types=types)["zip"].to_pylist() == ["2025-01-01"]


def test_rows_longer_than_a_block_are_read(tmp_path):
    long = "x" * (9 << 20)
    (tmp_path / "a.jsonl").write_text(json.dumps({"a": long}) + "\n" + json.dumps({"a": "y"}) + "\n")
    assert [len(value) for value in read_json(tmp_path)["a"].to_pylist()] == [9 << 20, 1]


def test_an_empty_array_has_no_rows(tmp_path):
    (tmp_path / "1.json").write_text("[]")
    assert read_json(tmp_path).num_rows == 0
    (tmp_path / "2.json").write_text('[{"a": 1}]')
    assert read_json(tmp_path).to_pydict() == {"a": [1]}
