"""On DuckDB as on PyArrow, columns of a file that do not change keep their bytes; the others are right."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.bad_input.trial import flip_a_bit

import intarsia as it
from intarsia.errors import DamagedTable
from intarsia.kernel import chunk_copy, chunks
from intarsia.kernel.chunks import NotCopyable

N = 9_000
TABLE = pa.table(
    {
        "id": pa.array(range(N), pa.int64()),
        "s": [None if n % 11 == 0 else f"text {n % 17}" for n in range(N)],
        "u": [f"{n * 7919 % N:08d}" for n in range(N)],
        "x": [None if n % 13 == 0 else n / 7 for n in range(N)],
        "d": pa.array([Decimal(n) / 100 for n in range(N)], pa.decimal128(38, 2)),
        "t": pa.array([dt.datetime(2025, 1, 1) + dt.timedelta(seconds=n) for n in range(N)]),
        "c": pa.array([f"c{n % 5}" for n in range(N)]).dictionary_encode(),
        "l": [None if n % 5 == 0 else list(range(n % 4)) for n in range(N)],
        "p": [None if n % 9 == 0 else {"a": n, "b": f"b{n % 3}"} for n in range(N)],
        "m": pa.array([[(f"k{n % 2}", n)] for n in range(N)], pa.map_(pa.string(), pa.int64())),
        "b": [n % 3 == 0 for n in range(N)],
    }
)
GROUP = 2_500
"""Rows of a row group."""


@pytest.fixture(autouse=True)
def _small_files(monkeypatch):
    monkeypatch.setattr(chunk_copy, "CHUNK_BYTES", 0)


@pytest.fixture
def written(monkeypatch):
    """The columns that were encoded, one set per row group."""
    groups = []
    add = chunk_copy.ChunkCopy.add

    def added(self, group, table):
        groups.append(set(table.column_names))
        add(self, group, table)

    monkeypatch.setattr(chunk_copy.ChunkCopy, "add", added)
    return groups


def _file(tmp_path, table=TABLE, **options):
    root = tmp_path / "lake"
    root.mkdir()
    given = {"row_group_size": GROUP, "write_page_checksum": True, "use_dictionary": ["s"]} | options
    pq.write_table(table, root / "f.parquet", **given)
    return root


def _changed(table, step=3, **new):
    """Every so-many-th row with other values in some columns."""
    rows = table.take(pa.array(range(0, table.num_rows, step)))
    for name, values in new.items():
        made = pa.array(values(rows[name].to_pylist()), rows.schema.field(name).type)
        rows = rows.set_column(rows.column_names.index(name), name, made)
    return rows


def _stored(path):
    """The bytes of every column chunk, by row group and leaf."""
    footer, data = pq.read_metadata(path), path.read_bytes()
    found = {}
    for group in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            chunk = footer.row_group(group).column(number)
            start = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)))
            bytes_ = data[start : start + chunk.total_compressed_size]
            found[group, chunk.path_in_schema.split(".")[0], chunk.path_in_schema] = bytes_
    return found


def _verified(path):
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        table = file.read()
    table.validate(full=True)
    return table


def _expected(table, new):
    """The table with rows replaced by those of the same id."""
    by_id = {row["id"]: row for row in new.to_pylist()}
    return [by_id.get(row["id"], row) for row in table.to_pylist()]


def _sizes(path):
    footer = pq.read_metadata(path)
    return [footer.row_group(n).num_rows for n in range(footer.num_row_groups)]


def test_columns_that_stay_keep_their_bytes_and_the_others_are_right(tmp_path, written):
    root = _file(tmp_path)
    path = root / "f.parquet"
    before, sizes = _stored(path), _sizes(path)
    new = _changed(TABLE, u=lambda v: [f"new {each}" for each in v], x=lambda v: [1.5] * len(v))
    done = it.merge(new, root, on="id", strategy="upsert", engine="duckdb")
    assert (done.updated, done.inserted) == (len(new), 0)
    assert written == [{"u", "x"}] * 4
    after = _stored(path)
    for key, data in before.items():
        assert (after[key] == data) == (key[1] not in ("u", "x")), key
    assert _sizes(path) == sizes
    table = _verified(path)
    assert table.schema.equals(TABLE.schema)
    assert table.to_pylist() == _expected(TABLE, new)


@pytest.mark.parametrize("column", [name for name in TABLE.column_names if name != "id"])
def test_any_column_can_be_the_one_that_changes(tmp_path, written, column):
    """By one row of the last row group, and to what stands in another row."""
    root = _file(tmp_path)
    row = TABLE.slice(N - 5, 1)
    new = row.set_column(row.column_names.index(column), column, TABLE[column].slice(N - 24, 1))
    assert new != row
    it.merge(pa.concat_tables([TABLE.slice(0, N - 5), new]), root, on="id", engine="duckdb")
    assert written == [set(), set(), set(), {column}]
    assert _verified(root / "f.parquet").to_pylist() == _expected(TABLE, new)


def test_rows_that_come_as_they_are_change_no_column(tmp_path, written):
    root = _file(tmp_path)
    before = _stored(root / "f.parquet")
    it.merge(TABLE, root, on="id", engine="duckdb")
    assert written == [set()] * 4
    assert _stored(root / "f.parquet") == before


def test_row_groups_without_hits_are_taken_over(tmp_path, written):
    root = _file(tmp_path)
    new = TABLE.slice(GROUP + 10, 1).set_column(2, "u", pa.array(["new"]))
    it.merge(new, root, on="id", engine="duckdb")
    assert written == [set(), {"u"}, set(), set()]
    assert _verified(root / "f.parquet").to_pylist() == _expected(TABLE, new)


def test_an_update_writes_the_columns_it_sets(tmp_path, written):
    root = _file(tmp_path)
    done = it.update(root, {"u": "'new'", "x": "x"}, "id >= 2000 and id < 6000", engine="duckdb")
    assert done.updated == 4000
    assert written == [{"u"}, {"u"}, {"u"}, set()]
    rows = [r | {"u": "new"} if 2000 <= r["id"] < 6000 else r for r in TABLE.to_pylist()]
    assert _verified(root / "f.parquet").to_pylist() == rows


def _nan(payload):
    return struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000000 | payload))[0]


FLOATS = {
    "another zero": (0.0, -0.0, True),
    "the same zero": (-0.0, -0.0, False),
    "another NaN": (_nan(0), _nan(5), True),
    "the same NaN": (_nan(5), _nan(5), False),
    "NULL for NaN": (_nan(0), None, True),
    "NaN for NULL": (None, _nan(0), True),
    "NULL": (None, None, False),
}


@pytest.mark.parametrize("case", FLOATS)
def test_floats_are_the_same_only_if_their_bits_are(tmp_path, written, case):
    old, new, changes = FLOATS[case]
    bits = [n % 100 / 4 if n != 70 else old for n in range(N)]
    table = TABLE.select(["id", "u"]).append_column("x", pa.array(bits, pa.float64()))
    root = _file(tmp_path, table)
    row = pa.table({"id": [70], "u": table["u"].slice(70, 1), "x": pa.array([new], pa.float64())})
    it.merge(row, root, on="id", engine="duckdb")
    assert written == ([{"x"}] if changes else [set()]) + [set()] * 3
    found = _verified(root / "f.parquet")["x"][70]
    assert found.is_valid == (new is not None)
    if new is not None and new == new:
        assert struct.pack("<d", found.as_py()) == struct.pack("<d", new)
    elif new is not None:
        assert found.as_py() != found.as_py()


@pytest.mark.parametrize(
    ("old", "new"),
    [(None, {"a": None}), ({"a": None}, None), ({"a": 1}, {"a": 2}), ({"a": 1}, {"a": None})],
)
def test_structs_that_differ_by_a_null_are_not_the_same(tmp_path, written, old, new):
    kind = pa.struct([("a", pa.int64())])
    values = [old if n == 7 else {"a": n} for n in range(N)]
    table = TABLE.select(["id", "u"]).append_column("p", pa.array(values, kind))
    root = _file(tmp_path, table)
    it.merge(pa.table({"id": [7], "u": table["u"].slice(7, 1), "p": pa.array([new], kind)}), root, on="id",
             engine="duckdb")  # fmt: skip
    assert written == [{"p"}, set(), set(), set()]
    assert _verified(root / "f.parquet")["p"][7].as_py() == new


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"write_page_checksum": False},
        {"compression": "zstd", "data_page_size": 1 << 10},
        {"compression": {"id": "zstd", "s": "none", "u": "gzip"}},
        {"data_page_version": "2.0"},
        {"write_page_index": True},
        {"bloom_filter_options": {"id": {"ndv": N, "fpp": 0.05}}},
        {"use_dictionary": True, "row_group_size": N},
        {"use_dictionary": False, "store_decimal_as_integer": True},
    ],
    ids=["plain", "no checksums", "small pages", "codecs", "v2", "index", "bloom", "one group", "integers"],
)
def test_other_readers_read_what_was_joined(tmp_path, written, options):
    root = _file(tmp_path, **options)
    new = _changed(
        TABLE,
        step=4,
        u=lambda v: [f"new {each}" for each in v],
        d=lambda v: [each + 1 for each in v],
        l=lambda v: [[1, None, 3]] * len(v),
    )
    it.merge(new, root, on="id", engine="duckdb")
    assert set().union(*written) == {"u", "d", "l"}
    path, expected = root / "f.parquet", _expected(TABLE, new)
    assert _verified(path).to_pylist() == expected
    assert duckdb.read_parquet(str(path)).to_arrow_table().select(
        ["id", "s", "u", "d", "l", "p"]
    ).to_pylist() == [{name: row[name] for name in ("id", "s", "u", "d", "l", "p")} for row in expected]
    assert polars.read_parquet(path)["d"].to_list() == [row["d"] for row in expected]
    wanted = [row for row in expected if row["id"] == 4000]
    assert pq.read_table(path, filters=[("id", "==", 4000)]).to_pylist() == wanted  # by the statistics
    assert duckdb.sql(f"select u from '{path}' where u = 'new {TABLE['u'][4000]}'").fetchall() == [
        (wanted[0]["u"],)
    ]
    footer = pq.read_metadata(path)
    found = [
        footer.row_group(g).column(c) for g in range(footer.num_row_groups) for c in range(footer.num_columns)
    ]
    assert len({chunk.has_offset_index for chunk in found}) == 1  # of all columns, or of none
    # It can be written once more, from chunks of both writers.
    it.merge(_changed(TABLE, step=5, u=lambda v: ["again"] * len(v)), root, on="id", engine="duckdb")
    assert _verified(path)["u"][5].as_py() == "again"


def test_a_declared_order_stays_where_its_columns_do(tmp_path, written):
    root = _file(tmp_path, sorting_columns=[pq.SortingColumn(0)])
    it.merge(_changed(TABLE, u=lambda v: ["new"] * len(v)), root, on="id", engine="duckdb")
    assert written == [{"u"}] * 4
    footer = pq.read_metadata(root / "f.parquet")
    assert footer.row_group(3).sorting_columns == (pq.SortingColumn(0),)


def test_a_column_that_a_file_lacks_is_written_beside_those_it_has(tmp_path, written):
    root = _file(tmp_path, TABLE.select(["id", "s", "u"]))
    new = _changed(TABLE.select(["id", "s", "u", "x"]), x=lambda v: [2.5] * len(v))
    it.merge(new, root, on="id", schema_evolution="add", engine="duckdb")
    assert written == [{"x"}] * 4
    found = _verified(root / "f.parquet")
    assert found.select(["id", "s", "u"]).equals(TABLE.select(["id", "s", "u"]))
    assert found["x"].to_pylist() == [2.5 if n % 3 == 0 else None for n in range(N)]


def test_columns_of_files_that_duckdb_wrote_are_copied(tmp_path, written):
    root = tmp_path / "lake"
    root.mkdir()
    duckdb.execute(
        f"copy (select range as id, 'text ' || range as s, range::double as x from range({N}))"
        f" to '{root / 'f.parquet'}' (format parquet, row_group_size 4096)"
    )
    table = pq.read_table(root)
    for step in (3, 5):
        rows = table.take(pa.array(range(0, N, step)))
        new = rows.set_column(2, "x", pa.array([float(step)] * len(rows)))
        it.merge(new, root, on="id", engine="duckdb")
    assert set().union(*written) == {"x"}
    assert _verified(root / "f.parquet")["x"].to_pylist() == [
        5.0 if n % 5 == 0 else 3.0 if n % 3 == 0 else float(n) for n in range(N)
    ]


@pytest.mark.parametrize("column", ["s", "u"])
def test_damage_is_told_whether_a_column_changes_or_not(tmp_path, column):
    root = _file(tmp_path)
    path = root / "f.parquet"
    flip_a_bit(path, column=TABLE.column_names.index(column))
    before = path.read_bytes()
    with pytest.raises(DamagedTable):
        it.merge(_changed(TABLE, u=lambda v: ["new"] * len(v)), root, on="id", engine="duckdb")
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_joined_is_written_the_usual_way(tmp_path, monkeypatch):
    root = _file(tmp_path)
    new = _changed(TABLE, u=lambda v: ["new"] * len(v))
    calls = []

    def broken(*_):
        calls.append(1)
        if len(calls) > 15:  # in the second row group
            raise NotCopyable("not as the footer says")
        return copy(*_)

    copy = chunks.copy_chunk
    monkeypatch.setattr(chunks, "copy_chunk", broken)
    it.merge(new, root, on="id", engine="duckdb")
    assert calls
    assert pq.read_table(root / "f.parquet").to_pylist() == _expected(TABLE, new)


def test_a_connection_that_keeps_no_order_keeps_the_files_order(tmp_path, written):
    root = _file(tmp_path)
    connection = duckdb.connect(config={"preserve_insertion_order": "false", "threads": 4})
    new = _changed(TABLE, u=lambda v: ["new"] * len(v))
    it.merge(new, root, on="id", engine=connection)
    assert written == [{"u"}] * 4
    assert _verified(root / "f.parquet").to_pylist() == _expected(TABLE, new)
