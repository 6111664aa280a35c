"""compact copies row groups that are large already: the same bytes in one file, whoever wrote them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

import intarsia
from intarsia.common.types import rewrite_type
from intarsia.core import planning
from intarsia.errors import DamagedTable
from intarsia.kernel.read import FileReader

N = 3000
TABLE = pa.table(
    {
        "id": pa.array(range(N), pa.int64()),
        "s": [None if n % 11 == 0 else f"text {n % 17}" for n in range(N)],
        "x": [n / 7 for n in range(N)],
        "d": pa.array([Decimal(n) / 100 for n in range(N)], pa.decimal128(12, 2)),
        "t": pa.array([dt.datetime(2025, 1, 1) + dt.timedelta(seconds=n) for n in range(N)]),
        "l": [None if n % 5 == 0 else list(range(n % 4)) for n in range(N)],
        "p": [None if n % 9 == 0 else {"a": n, "b": f"b{n % 3}"} for n in range(N)],
        "b": [None if n % 7 == 0 else n % 3 == 0 for n in range(N)],
    }
)
SPARK = {"org.apache.spark.version": "4.1.4"}


@pytest.fixture(autouse=True)
def _large_from_here_on(monkeypatch):
    monkeypatch.setattr(planning, "LARGE_ROWS", 500)


@pytest.fixture
def undecoded(monkeypatch):
    """Reading a value is an error."""

    def refuse(*_args, **_kwargs):
        raise AssertionError("a row group was decoded")

    for name in ("read", "read_pieces", "_read", "_read_batches"):
        monkeypatch.setattr(FileReader, name, refuse)


def by_pyarrow(path, table, **writer):
    pq.write_table(table, path, **writer)


def as_spark(path, table):
    index = table.column_names.index("t")
    table = table.set_column(index, "t", table["t"].cast(pa.timestamp("us", "UTC")))
    options = {"use_deprecated_int96_timestamps": True, "write_page_index": True, "store_schema": False}
    with pq.ParquetWriter(path, table.schema, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(SPARK)


def by_duckdb(path, table):
    with duckdb.connect() as connection:
        connection.register("t", table)
        connection.execute(f"copy t to '{path}' (format parquet)")


def by_polars(path, table):
    polars.from_arrow(table).write_parquet(path)


def write_files(root, write=by_pyarrow, table=TABLE, count=3, **options):
    root.mkdir(exist_ok=True)
    each = table.num_rows // count
    for number in range(count):
        write(root / f"part-{number}.parquet", table.slice(number * each, each), **options)
    return root


def only_file(root):
    (path,) = sorted(root.rglob("*.parquet"))
    return path


def describe(root):
    """What each column chunk of each file is, without its place."""
    found = []
    for path in sorted(root.rglob("*.parquet")):
        footer = pq.read_metadata(path)
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            for column in range(group.num_columns):
                known = group.column(column).to_dict()
                indexed = group.column(column).has_offset_index, group.column(column).has_column_index
                places = ("file_offset", "dictionary_page_offset", "data_page_offset", "bloom_filter_offset")
                sizes = ("total_compressed_size", "total_uncompressed_size")  # checksums are added
                found.append((indexed, {k: v for k, v in known.items() if k not in (*places, *sizes)}))
    return found


def reasons(root, **options):
    return {item.reason for item in intarsia.plan("compact", root, **options).files}


@pytest.mark.parametrize("write", [by_pyarrow, as_spark, by_duckdb, by_polars])
def test_row_groups_of_every_writer_move_as_they_are(tmp_path, write, undecoded):
    root = write_files(tmp_path / "d", write)
    before = [pq.read_table(path) for path in sorted(root.iterdir())]
    chunks, names = describe(root), pq.read_schema(root / "part-0.parquet")
    assert reasons(root) == {"large row groups: concatenated"}
    intarsia.compact(root)
    path = only_file(root)
    assert describe(root) == chunks
    assert pq.read_schema(path).equals(names)
    after = pq.read_table(path, page_checksum_verification=True)
    assert after.equals(pa.concat_tables(before))
    assert polars.read_parquet(path).equals(polars.concat([polars.from_arrow(t) for t in before]))
    assert duckdb.sql(f"select count(*), sum(id) from '{path}'").fetchall() == [(N, N * (N - 1) // 2)]


def test_page_indexes_bloom_filters_order_and_metadata_stay(tmp_path, undecoded):
    order = [pq.SortingColumn(0)]
    options = {"write_page_index": True, "sorting_columns": order, "bloom_filter_options": {"id": {}}}
    table = TABLE.replace_schema_metadata({"owner": "me"})
    root = write_files(tmp_path / "d", table=table, **options)
    intarsia.compact(root)
    footer = pq.read_metadata(only_file(root))
    assert [footer.row_group(n).num_rows for n in range(footer.num_row_groups)] == [1000, 1000, 1000]
    assert footer.metadata[b"owner"] == b"me"
    for number in range(3):
        assert list(footer.row_group(number).sorting_columns) == order
        column = footer.row_group(number).column(0)
        assert column.has_offset_index
        assert column.has_column_index
        assert column.bloom_filter_offset is not None
    hit = duckdb.sql(f"select s from '{only_file(root)}' where id = 2345").fetchall()
    assert hit == [(TABLE["s"][2345].as_py(),)]


def test_the_order_that_one_file_lacks_is_not_declared(tmp_path, undecoded):
    root = tmp_path / "d"
    root.mkdir()
    by_pyarrow(root / "a.parquet", TABLE.slice(0, 1000), sorting_columns=[pq.SortingColumn(0)])
    by_pyarrow(root / "b.parquet", TABLE.slice(1000, 1000))
    intarsia.compact(root)
    footer = pq.read_metadata(only_file(root))
    assert [len(footer.row_group(n).sorting_columns) for n in range(2)] == [0, 0]


def test_a_dry_run_changes_nothing_and_says_what_would_be_done(tmp_path, unchanged):
    root = write_files(tmp_path / "d")
    with unchanged(root):
        result = intarsia.compact(root, dry_run=True)
    assert (len(result.removed_files), result.total) == (3, N)


def narrow(table):
    return table.set_column(
        1, "s", table["s"].dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string()))
    )


def mixed_codecs(root):
    write_files(root, count=2)
    by_pyarrow(root / "part-9.parquet", TABLE, compression="zstd")


def other_columns(root):
    write_files(root, count=2)
    by_pyarrow(root / "part-9.parquet", TABLE.drop_columns(["b"]))


def other_types(root):
    write_files(root, count=2)
    by_pyarrow(root / "part-9.parquet", TABLE.set_column(0, "id", TABLE["id"].cast(pa.int32())))


def other_order(root):
    write_files(root, count=2)
    by_pyarrow(root / "part-9.parquet", TABLE.select([*TABLE.column_names[::-1]]))


def small_groups(root):
    write_files(root, row_group_size=100)


def unproven_instants(root):
    write_files(root, use_deprecated_int96_timestamps=True, store_schema=False)


@pytest.mark.parametrize(
    "make", [mixed_codecs, other_columns, other_types, other_order, small_groups, unproven_instants]
)
def test_files_that_differ_or_are_small_are_decoded(tmp_path, make):
    root = tmp_path / "d"
    make(root)
    before = sorted(intarsia.read(root).read_all()["id"].to_pylist())
    assert reasons(root) == {"written anew together"}
    intarsia.compact(root)
    assert sorted(pq.read_table(only_file(root))["id"].to_pylist()) == before


@pytest.mark.parametrize("make", [lambda d: d, lambda d: [d], lambda d: {"d": d}])
def test_durations_in_other_units_are_decoded(tmp_path, make):
    root = tmp_path / "d"
    root.mkdir()
    for name, unit in (("a", "ms"), ("b", "s")):  # both are INT64 to Parquet
        values = pa.array([make(dt.timedelta(seconds=n)) for n in range(1000)])
        dtype = rewrite_type(values.type, lambda leaf, unit=unit: pa.duration(unit))
        by_pyarrow(root / f"{name}.parquet", pa.table({"d": values.cast(dtype)}))
    before = intarsia.read(root).read_all()
    assert reasons(root) == {"written anew together"}
    intarsia.compact(root)
    assert pq.read_table(only_file(root)).equals(before)


@pytest.mark.parametrize("option", [{"compression": "zstd"}, {"row_group_size": 700}])
def test_an_option_about_the_new_file_decodes(tmp_path, option):
    root = write_files(tmp_path / "d")
    assert reasons(root, **option) == {"written anew together"}
    intarsia.compact(root, **option)
    column = pq.read_metadata(only_file(root)).row_group(0).column(0)
    assert column.compression == option.get("compression", "snappy").upper()


def test_a_partition_column_that_files_repeat_is_compared_with_the_path(tmp_path):
    root = tmp_path / "d"
    (root / "k=1").mkdir(parents=True)
    table = TABLE.append_column("k", pa.array([1] * N, pa.int64()))
    write_files(root / "k=1", table=table)
    assert reasons(root) == {"written anew together"}
    intarsia.compact(root)
    assert pq.ParquetFile(only_file(root)).read().equals(table)


def test_partitions_are_concatenated_apart(tmp_path, undecoded):
    root = tmp_path / "d"
    root.mkdir()
    for k in (1, 2):
        write_files(root / f"k={k}")
    intarsia.compact(root)
    one, two = sorted(root.rglob("*.parquet"))
    assert pq.ParquetFile(one).read().equals(pq.ParquetFile(two).read())
    assert (one.parent.name, two.parent.name) == ("k=1", "k=2")


def test_dictionaries_with_narrow_indices_are_decoded(tmp_path):
    root = write_files(tmp_path / "d", table=narrow(TABLE))
    intarsia.compact(root)
    found = pq.read_table(only_file(root))
    assert found["s"].type == pa.dictionary(pa.int8(), pa.string())
    assert found["s"].cast(pa.string()).equals(TABLE["s"])


@pytest.mark.parametrize("checksums", [True, False])
def test_a_damaged_page_is_found_by_name(tmp_path, unchanged, checksums):
    root = write_files(tmp_path / "d", write_page_checksum=checksums)
    bad = root / "part-1.parquet"
    start = pq.read_metadata(bad).row_group(0).column(0).data_page_offset
    data = bytearray(bad.read_bytes())
    data[start : start + 200] = bytes(200)
    bad.write_bytes(data)
    with unchanged(root), pytest.raises(DamagedTable, match=r"part-1\.parquet"):
        intarsia.compact(root)


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_encrypted_columns_are_refused(tmp_path, unchanged, plaintext_footer):
    root = write_files(tmp_path / "d")
    table = TABLE.slice(0, 1000)
    properties = encryption.CryptoFactory(lambda _: Keys()).file_encryption_properties(
        encryption.KmsConnectionConfig(),
        encryption.EncryptionConfiguration(
            footer_key="footer",
            column_keys={"column": ["x"]},
            plaintext_footer=plaintext_footer,
            double_wrapping=False,
        ),
    )
    for path in sorted(root.iterdir()):
        with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
            writer.write_table(table)
    with unchanged(root), pytest.raises(DamagedTable, match="crypt"):
        intarsia.compact(root)


class Keys(encryption.KmsClient):
    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return key_bytes

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return wrapped_key


def test_what_came_of_it_takes_part_in_everything_after(tmp_path):
    root = write_files(tmp_path / "d")
    intarsia.compact(root)
    new = TABLE.slice(10, 5).set_column(2, "x", pa.array([-1.0] * 5))
    assert intarsia.merge(new, root, on="id").updated == 5
    assert intarsia.delete(root, where="id >= 2000").deleted == 1000
    found = pq.read_table(only_file(root))
    assert found["x"].to_pylist()[10:15] == [-1.0] * 5
    assert found["id"].to_pylist() == list(range(2000))
