"""Data files as tables in the dataset's types: what is missing is NULL, what contradicts is refused."""

from __future__ import annotations

import datetime as dt
import os
from decimal import Decimal

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from intarsia.core.snapshot import DataFile
from intarsia.errors import DamagedTable, SchemaMismatch, StorageError
from intarsia.kernel import pages, read
from intarsia.kernel.read import FileReader, find_encoded_columns, make_constant_column, make_constant_key

LOCAL = pafs.LocalFileSystem()


def data_file(path, table: pa.Table, partition=None, **writer) -> DataFile:
    pq.write_table(table, path, **writer)
    footer = pq.read_metadata(path)
    size = os.path.getsize(path)
    return DataFile(path.name, str(path), size, table.num_rows, partition or {}, footer=footer)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "f.parquet"


def test_columns_come_in_the_datasets_types_and_order(path):
    file = data_file(path, pa.table({"b": pa.array([1, 2], pa.int32()), "a": ["x", "y"]}))
    schema = pa.schema([("a", pa.large_string()), ("b", pa.int64()), ("new", pa.date32())])
    with FileReader(file, schema, LOCAL) as reader:
        table = reader.read(["b", "new", "a"], 0)
    assert table.schema == pa.schema([("b", pa.int64()), ("new", pa.date32()), ("a", pa.large_string())])
    assert table.to_pylist() == [{"b": 1, "new": None, "a": "x"}, {"b": 2, "new": None, "a": "y"}]


def test_partition_columns_come_from_the_path(path):
    day = dt.date(2024, 1, 1)
    file = data_file(path, pa.table({"id": [1, 2]}), {"day": day, "region": None})
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("region", pa.string())])
    with FileReader(file, schema, LOCAL) as reader:
        assert reader.stored == {"id"}
        assert reader.read(["region", "day", "id"], 0).to_pylist() == [
            {"region": None, "day": day, "id": 1}, {"region": None, "day": day, "id": 2}
        ]  # fmt: skip
        assert reader.read(["day"], 0).to_pylist() == [{"day": day}] * 2
        assert reader.read([], 0).num_columns == 0


def test_a_file_may_repeat_its_partition_but_not_contradict_it(path):
    schema = pa.schema([("id", pa.int64()), ("p", pa.int64())])
    file = data_file(path, pa.table({"id": [1], "p": pa.array([5], pa.int16())}), {"p": 5})
    with FileReader(file, schema, LOCAL) as reader:
        assert reader.read(["p", "id"], 0).to_pylist() == [{"p": 5, "id": 1}]
    wrong = data_file(path, pa.table({"id": [1, 2], "p": [5, 6]}), {"p": 5})
    with FileReader(wrong, schema, LOCAL) as reader, pytest.raises(SchemaMismatch, match="p=5"):
        reader.read(["p"], 0)
    both_null = data_file(path, pa.table({"id": [1], "p": pa.nulls(1, pa.int64())}), {"p": None})
    with FileReader(both_null, schema, LOCAL) as reader:
        assert reader.read(["p"], 0)["p"].to_pylist() == [None]


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
@pytest.mark.parametrize("columns", [["id", "s"], ["s"], ["p"], ["absent"], ["p", "absent"]])
def test_pieces_are_the_row_group_cut_up(path, limit, columns):
    table = pa.table({"id": range(10), "s": [{"x": n} for n in range(10)]})
    schema = table.schema.append(pa.field("p", pa.string())).append(pa.field("absent", pa.int64()))
    file = data_file(path, table, {"p": "eu"}, row_group_size=7)
    with FileReader(file, schema, LOCAL) as reader:
        whole = reader.read(columns, 0)
        pieces = list(reader.read_pieces(columns, 0, batch_rows=limit))
    assert max(piece.num_rows for piece in pieces) <= limit
    assert sum(piece.num_rows for piece in pieces) == 7
    assert pa.concat_tables(pieces).to_pylist() == whole.to_pylist()


def test_a_large_row_group_is_read_in_pieces_of_itself(path, monkeypatch):
    file = data_file(path, pa.table({"id": range(5000)}))
    with FileReader(file, pa.schema([("id", pa.int64())]), LOCAL) as reader:
        assert reader.choose_piece_rows(0, None) is None
        assert reader.choose_piece_rows(0, 5000) is None
        assert reader.choose_piece_rows(0, 4999) == 4999
        monkeypatch.setattr(read, "PIECE_ROWS", 4000)
        assert reader.choose_piece_rows(0, None) == 1000
        assert [piece.num_rows for piece in reader.read_pieces(["id"], 0)] == [1000] * 5
        monkeypatch.setattr(read, "PIECE_ROWS", 1 << 20)
        monkeypatch.setattr(read, "PIECE_BYTES", 10)
        assert reader.choose_piece_rows(0, None) == 1024  # never silly


def test_what_cannot_be_read_is_said_with_the_files_name(path):
    with pytest.raises(StorageError, match=r"f\.parquet") as caught:
        FileReader(DataFile("f.parquet", str(path), 1, 1), pa.schema([]), LOCAL)
    assert caught.value.errno
    path.write_bytes(b"PAR1 this is no Parquet file PAR1")
    with pytest.raises(DamagedTable, match=r"f\.parquet"):
        FileReader(DataFile("f.parquet", str(path), 1, 1), pa.schema([]), LOCAL)


def test_a_page_whose_checksum_is_wrong_is_damage(path):
    table = pa.table({"id": range(1000)})
    file = data_file(path, table, use_dictionary=False, compression="none", write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[2000] ^= 0xFF
    path.write_bytes(content)
    with FileReader(file, table.schema, LOCAL) as reader:
        with pytest.raises(DamagedTable, match=r"f\.parquet"):
            reader.read(["id"], 0)
        with pytest.raises(DamagedTable, match=r"f\.parquet"):
            list(reader.read_pieces(["id"], 0, batch_rows=100))


def test_columns_of_one_value_are_made_in_any_type():
    kind = pa.dictionary(pa.int8(), pa.string())
    assert make_constant_column("x", kind, 3).to_pylist() == ["x"] * 3
    assert make_constant_column("x", kind, 3).type == kind
    assert make_constant_column(None, kind, 2).to_pylist() == [None, None]
    assert make_constant_column(5, pa.int16(), 2).type == pa.int16()
    assert make_constant_column(None, pa.date32(), 2).null_count == 2
    assert make_constant_key(5, pa.int16(), 3).dictionary.to_pylist() == [5]
    assert len(make_constant_key("x", kind, 0)) == 0


def test_columns_stored_as_small_dictionaries_are_known_and_no_others(path):
    n = 6000
    table = pa.table({
        "few": ["a", "b", "c"] * (n // 3),
        "many": [f"value {number}" for number in range(n)],
        "raw": [b"x", b"y"] * (n // 2),
        "number": [1, 2] * (n // 2),
        "coded": pa.array(["a", "b"] * (n // 2)).dictionary_encode(),
        "list": [["a"]] * n,
    })  # fmt: skip
    file = data_file(path, table)
    assert find_encoded_columns(file, table.schema) == ["few", "raw"]
    plain = data_file(path.with_name("plain.parquet"), table, use_dictionary=False)
    assert find_encoded_columns(plain, table.schema) == []
    assert find_encoded_columns(DataFile("g", "g", 1, 1), table.schema) == []
    with FileReader(file, table.schema, LOCAL, encoded=["few"]) as reader:
        read = reader.read(["few", "many"], 0)
    assert pa.types.is_dictionary(read.schema.field("few").type)
    assert read["few"].cast(pa.string()).equals(table["few"])


@pytest.mark.parametrize("batch_rows", [None, 700])
def test_rows_that_are_read_by_number_are_those_of_their_row_group(path, batch_rows):
    n = 6000
    table = pa.table({
        "few": pa.array([None if number % 11 == 0 else "abc"[number % 3] for number in range(n)]),
        "many": [f"value {number}" for number in range(n)],
        "number": range(n),
        "coded": pa.array(["a", "b"] * (n // 2)).dictionary_encode(),
        "list": [["a"] * (number % 3) for number in range(n)],
        "struct": [{"few": "x", "v": number} for number in range(n)],
    })  # fmt: skip
    file = data_file(path, table, row_group_size=4000)
    with FileReader(file, table.schema, LOCAL) as reader:
        for group, chosen in ((0, [0, 1, 699, 700, 3999]), (1, list(range(0, 2000, 7))), (1, [])):
            rows = pa.array(chosen, pa.int64())
            read = reader.read_rows(table.column_names, group, rows, batch_rows=batch_rows)
            assert read.equals(table.slice(4000 * group, 4000).take(rows))
            assert reader.read(["few"], group)["few"].type == pa.string()
    assert find_encoded_columns(file, table.schema) == ["few"]


PAGES = {
    "default": {},
    "page index": {"write_page_index": True},
    "page index and checksums": {"write_page_index": True, "write_page_checksum": True},
    "data pages 2": {"data_page_version": "2.0"},
    "no dictionary": {"use_dictionary": False, "write_page_index": True},
    "no codec": {"compression": "none"},
    "no Arrow schema": {"store_schema": False, "write_page_index": True},
}


@pytest.mark.parametrize("writer", PAGES)
def test_pages_without_a_wanted_row_are_not_decoded(path, monkeypatch, writer):
    n = 6000
    table = pa.table({
        "number": range(n),
        "few": pa.array([None if number % 11 == 0 else "abc"[number % 3] for number in range(n)]),
        "large": pa.array([f"value {number}" for number in range(n)], pa.large_string()),
        "time": pa.array(range(n), pa.timestamp("us", "Europe/Berlin")),
        "price": pa.array([Decimal(number) / 4 if number % 7 else None for number in range(n)]),
        "flag": [number % 5 == 0 for number in range(n)],
        "struct": [{"few": "x", "v": number} for number in range(n)],
        "list": [[number] * (number % 3) for number in range(n)],
    })  # fmt: skip
    options = {"data_page_size": 300, "write_batch_size": 60, "compression": "zstd", **PAGES[writer]}
    file = data_file(path, table, row_group_size=4000, **options)
    monkeypatch.setattr(pages, "RUN_ROWS", 100)
    decoded: dict[str, int] = {}

    def watched(source, group, field, rows):
        found = pages.choose_pages(source, group, field, rows)
        if found is not None:
            decoded[field.name] = pq.read_metadata(pa.BufferReader(found.data)).num_rows
        return found

    monkeypatch.setattr(read, "choose_pages", watched)
    with FileReader(file, table.schema, LOCAL) as reader:
        for group, chosen in ((0, [5]), (0, [0, 700, 705, 3999]), (1, list(range(500, 700))), (1, [1999])):
            decoded.clear()
            rows = pa.array(chosen, pa.int64())
            found = reader.read_rows(table.column_names, group, rows)
            assert found.cast(table.schema).equals(table.slice(4000 * group, 4000).take(rows))
            assert {"number", "large", "time", "price"} <= decoded.keys() < set(table.column_names)
            assert decoded["number"] <= 500
        decoded.clear()
        every = pa.array(range(0, 4000, 150), pa.int64())
        assert reader.read_rows(["number"], 0, every)["number"].to_pylist() == every.to_pylist()
        assert not decoded


def test_a_page_with_a_wanted_row_whose_checksum_is_wrong_is_damage(path, monkeypatch):
    monkeypatch.setattr(pages, "RUN_ROWS", 100)
    table = pa.table({"id": range(4000)})
    file = data_file(
        path, table, use_dictionary=False, compression="none", write_page_checksum=True, data_page_size=800
    )
    content = bytearray(path.read_bytes())
    content[8000 : 8000 + 16] = b"x" * 16
    path.write_bytes(content)
    with FileReader(file, table.schema, LOCAL) as reader:
        assert reader.read_rows(["id"], 0, pa.array([3000], pa.int64()))["id"].to_pylist() == [3000]
        with pytest.raises(DamagedTable, match=r"f\.parquet"):
            reader.read_rows(["id"], 0, pa.array(range(900, 1000), pa.int64()))


@pytest.mark.parametrize("wrong", ["swapped", "shifted", "too few", "other rows"])
def test_an_offset_index_that_is_not_its_chunks_is_not_believed(path, monkeypatch, wrong):
    n = 6000
    table = pa.table({"number": range(n), "text": [f"value {number}" for number in range(n)]})
    options = {"data_page_size": 300, "write_batch_size": 60, "use_dictionary": False, "compression": "none"}
    file = data_file(path, table, write_page_index=True, **options)
    monkeypatch.setattr(pages, "RUN_ROWS", 100)
    genuine, lies = pages.read_struct, []

    def lie(data, *at):
        found, end = genuine(data, *at)
        if not at:  # an index, and no page's header
            kind, (element, listed) = found[1]
            if wrong == "swapped":
                listed[3][1], listed[4][1] = listed[4][1], listed[3][1]
            elif wrong == "shifted":
                listed[:] = [{**one, 3: listed[max(at - 1, 0)][3]} for at, one in enumerate(listed)]
            elif wrong == "too few":
                del listed[-1]
            else:
                listed[4][3] = (listed[4][3][0], listed[4][3][1] + 1)
            found, lies[:] = {**found, 1: (kind, (element, listed))}, [wrong]
        return found, end

    monkeypatch.setattr(pages, "read_struct", lie)
    rows = pa.array([180, 200, 245, 300], pa.int64())
    with FileReader(file, table.schema, LOCAL) as reader:
        assert reader.read_rows(table.column_names, 0, rows).equals(table.take(rows))
    assert lies == [wrong]
