"""Every kind of source comes in once, with plain types and bounded memory, and leaves nothing behind."""

from __future__ import annotations

import datetime as dt
import decimal
import gzip
import json
import os
import stat
import subprocess
import sys
import tempfile

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from intarsia.common.arrow import ingest
from intarsia.common.partitions import PARTITION_SCHEMA_KEY, encode_partition_schema
from intarsia.common.source import IngestedSource, conform_source
from intarsia.errors import (
    DamagedTable,
    InputError,
    NothingMatched,
    NotSupported,
    SchemaMismatch,
    StorageError,
)

TABLE = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"]})
BATCHES = TABLE.to_batches(max_chunksize=2)


def _duckdb(table):
    duckdb = pytest.importorskip("duckdb")
    return duckdb.connect().from_arrow(table)


class _Array:
    """Nothing but the array protocol."""

    def __init__(self, batch):
        self._batch = batch

    def __arrow_c_array__(self, requested_schema=None):
        return self._batch.__arrow_c_array__(requested_schema)


class _Stream:
    """Nothing but the stream protocol, once."""

    def __init__(self, table):
        self._reader = table.to_reader()

    def __arrow_c_stream__(self, requested_schema=None):
        reader, self._reader = self._reader, None
        return reader.__arrow_c_stream__(requested_schema)


SOURCES = {
    "table": lambda: TABLE,
    "chunked table": lambda: pa.Table.from_batches(BATCHES),
    "record batch": lambda: TABLE.to_batches()[0],
    "reader": lambda: TABLE.to_reader(max_chunksize=1),
    "dataset": lambda: ds.dataset(TABLE),
    "scanner": lambda: ds.dataset(TABLE).scanner(),
    "generator": lambda: (batch for batch in BATCHES),
    "list of batches": lambda: BATCHES,
    "list of tables": lambda: [TABLE.slice(0, 1), TABLE.slice(1)],
    "tuple": lambda: (TABLE.slice(0, 1), TABLE.slice(1).to_reader()),
    "generator of tables": lambda: iter([TABLE.slice(0, 2), TABLE.slice(2)]),
    "array protocol": lambda: _Array(TABLE.to_batches()[0]),
    "stream protocol": lambda: _Stream(TABLE),
    "struct array": lambda: pa.chunked_array([TABLE.to_struct_array().combine_chunks()]),
    "dict of lists": lambda: TABLE.to_pydict(),
    "dict of arrays": lambda: {"id": TABLE["id"], "name": TABLE["name"]},
    "list of dicts": lambda: TABLE.to_pylist(),
    "polars": lambda: pytest.importorskip("polars").DataFrame(TABLE.to_pydict()),
    "pandas": lambda: pytest.importorskip("pandas").DataFrame(
        {"id": [1, 2, 3], "name": pytest.importorskip("pandas").array(["a", None, "c"], dtype="str")}
    ),
    "duckdb": lambda: _duckdb(TABLE),
}


@pytest.mark.parametrize("spool_bytes", [1 << 20, 0], ids=["in memory", "spooled"])
@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_source_gives_the_same_rows(kind, spool_bytes, tmp_path):
    with ingest(SOURCES[kind](), spool_bytes=spool_bytes, spool_dir=tmp_path) as source:
        assert source.table.to_pylist() == TABLE.to_pylist()
        assert source.rows == 3
        assert source.schema.names == ["id", "name"]
        assert source.schema.field("name").type in (pa.string(), pa.large_string())
        assert source.origin
        assert list(tmp_path.iterdir()) == []
        if spool_bytes:
            assert {column.num_chunks for column in source.table.columns} == {1}


def test_a_table_in_memory_is_neither_copied_nor_spooled():
    table = pa.table({"x": pa.array(range(1000))})
    source = ingest(table, spool_bytes=10)
    assert not source.spooled
    assert source.table["x"].chunk(0).buffers()[1].address == table["x"].chunk(0).buffers()[1].address


def test_a_small_stream_stays_in_memory_and_a_large_one_goes_to_the_spool():
    def batches():
        for start in range(0, 100_000, 1000):
            yield pa.record_batch({"x": pa.array(range(start, start + 1000)), "s": [str(start)] * 1000})

    small, large = ingest(batches(), spool_bytes=10 << 20), ingest(batches(), spool_bytes=100_000)
    assert (small.spooled, large.spooled) == (False, True)
    assert small.table.equals(large.table)
    assert large.table["x"].num_chunks < 40  # many small batches became fewer


def test_the_memory_of_a_large_stream_stays_within_the_limit():
    def batches():
        for number in range(60):
            yield pa.record_batch({"x": pc.add(pa.arange(0, 1 << 17, 1), number)})

    base = pa.total_allocated_bytes()
    peak = []

    def watched():
        for batch in batches():
            peak.append(pa.total_allocated_bytes() - base)
            yield batch

    with ingest(watched(), spool_bytes=8 << 20) as source:
        assert source.rows == 60 << 17
        assert source.table.nbytes == 60 << 20
        assert max(peak) < 14 << 20
        assert pa.total_allocated_bytes() - base < 2 << 20
        total = pc.sum(source.table["x"]).as_py()
    assert total == 60 * sum(range(1 << 17)) + sum(range(60)) * (1 << 17)


def test_the_spool_has_no_name_and_is_readable_by_its_owner_alone(tmp_path, monkeypatch):
    made = []
    real = tempfile.TemporaryFile

    def spy(*args, **options):
        made.append(real(*args, **options))
        assert list(tmp_path.iterdir()) == []
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", spy)
    with ingest(TABLE.to_reader(), spool_bytes=0, spool_dir=tmp_path) as source:
        assert source.spooled
        assert len(made) == 1
    assert made[0].closed
    with real(dir=tmp_path) as same:
        assert stat.S_IMODE(os.fstat(same.fileno()).st_mode) == 0o600


def test_a_closed_source_gives_no_rows_and_its_disk_space_is_free(tmp_path):
    if not os.path.isdir("/proc/self/map_files") and not os.path.exists("/proc/self/maps"):
        pytest.skip("needs /proc")

    def mapped():
        with open("/proc/self/maps") as maps:
            return sum(str(tmp_path) in line for line in maps)

    source = ingest(TABLE.to_reader(), spool_bytes=0, spool_dir=tmp_path)
    assert mapped() >= 1
    source.close()
    source.close()
    assert mapped() == 0
    assert source.rows == 3
    with pytest.raises(InputError, match="closed"):
        _ = source.table


def test_an_error_in_the_middle_of_a_generator_comes_through_and_leaves_nothing(tmp_path):
    def broken():
        yield BATCHES[0]
        raise ZeroDivisionError("half way")

    with pytest.raises(ZeroDivisionError, match="half way"):
        ingest(broken(), spool_bytes=0, spool_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_leaves_no_spool_behind(tmp_path):
    script = """
import os, signal, sys, pyarrow as pa
from intarsia.common.arrow import ingest
def batches():
    yield pa.record_batch({"x": [1]})
    yield pa.record_batch({"x": [2]})
    os.kill(os.getpid(), signal.SIGKILL)
ingest(batches(), spool_bytes=0, spool_dir=sys.argv[1])
"""
    done = subprocess.run([sys.executable, "-c", script, tmp_path], timeout=60)
    assert done.returncode == -9
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_storage_error_with_a_hint(tmp_path):
    with pytest.raises(StorageError, match="spool_dir=") as caught:
        ingest(TABLE.to_reader(), spool_bytes=0, spool_dir=tmp_path / "missing")
    assert caught.value.errno == 2
    assert isinstance(caught.value.__cause__, OSError)


def test_a_one_shot_source_is_read_exactly_once():
    read = []

    def counted():
        for number, batch in enumerate(BATCHES):
            read.append(number)
            yield batch

    with ingest(counted()) as source:
        assert source.table.num_rows == source.table.num_rows == 3
    assert read == [0, 1]


# Types -------------------------------------------------------------------------------------------

D = decimal.Decimal
TIDIED = {
    "string_view": (pa.array(["x" * 20, None, "y"], pa.string_view()), pa.string()),
    "binary_view": (pa.array([b"x" * 20, None, b"y"], pa.binary_view()), pa.binary()),
    "decimal32": (pa.array([D("1.50"), None, D("2.25")], pa.decimal32(5, 2)), pa.decimal128(5, 2)),
    "decimal64": (pa.array([D("1.50"), None, D("2.25")], pa.decimal64(15, 2)), pa.decimal128(15, 2)),
    "run-end encoded": (pc.run_end_encode(pa.array(["a", "a", None])), pa.string()),
    "list of views": (pa.array([["a"], None, []], pa.list_(pa.string_view())), pa.list_(pa.string())),
    "list view": (pa.array([[1], None, []], pa.list_view(pa.int8())), pa.list_(pa.int8())),
    "struct of views": (
        pa.array([{"a": "x"}, None, {"a": None}], pa.struct([("a", pa.string_view())])),
        pa.struct([("a", pa.string())]),
    ),
    "map of views": (
        pa.array([[("k", "v")], None, []], pa.map_(pa.string(), pa.string_view())),
        pa.map_(pa.string(), pa.string()),
    ),
    "uuid": (pa.array([b"a" * 16, None, b"b" * 16], pa.uuid()), pa.uuid()),
    "large_string": (pa.array(["a", None, "b"], pa.large_string()), pa.large_string()),
    "dictionary": (
        pa.array(["a", None, "b"]).dictionary_encode(),
        pa.dictionary(pa.int32(), pa.string()),
    ),
}


@pytest.mark.parametrize("how", ["table", "stream", "spool"])
@pytest.mark.parametrize("name", TIDIED)
def test_types_that_kernels_cannot_work_on_become_plain_ones(name, how):
    values, expected = TIDIED[name]
    table = pa.table({"v": values})
    given = table if how == "table" else table.to_reader()
    source = ingest(given, spool_bytes=0 if how == "spool" else 1 << 20)
    assert source.schema.field("v").type == expected
    assert source.table["v"].to_pylist() == values.to_pylist()
    assert source.take(pa.array([2, 0])).num_rows == 2


def test_a_categorical_of_polars_comes_in_as_a_dictionary_of_strings():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"c": polars.Series(["x", "y", "x"], dtype=polars.Categorical)})
    source = ingest(frame)
    assert source.schema.field("c").type.value_type == pa.string()
    assert source.table["c"].to_pylist() == ["x", "y", "x"]


def test_an_extension_type_nobody_registered_survives_the_spool():
    class Celsius(pa.ExtensionType):
        def __init__(self):
            super().__init__(pa.float64(), "test.celsius")

        def __arrow_ext_serialize__(self):
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage_type, serialized):
            return cls()

    values = pa.ExtensionArray.from_storage(Celsius(), pa.array([1.5, None]))
    source = ingest(pa.table({"t": values}).to_reader(), spool_bytes=0)
    assert source.spooled
    assert source.schema.field("t").type == Celsius()
    assert source.table["t"].combine_chunks().storage.to_pylist() == [1.5, None]


def test_dictionaries_that_differ_between_batches_survive_the_spool():
    def batches():
        for letter in "abc":
            yield pa.record_batch({"d": pa.array([letter, "z"]).dictionary_encode()})

    source = ingest(batches(), spool_bytes=0)
    assert source.table["d"].to_pylist() == ["a", "z", "b", "z", "c", "z"]
    assert source.take(pa.array([4, 0])).column("d").to_pylist() == ["c", "a"]


@pytest.mark.parametrize("ids", [[2, 9], [2, 9, 4]], ids=["equal steps", "any"])
def test_the_named_index_of_a_pandas_frame_is_a_column(ids):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"id": ids, "v": ids}).set_index("id")
    assert sorted(ingest(frame).schema.names) == ["id", "v"]
    assert ingest(frame).table["id"].to_pylist() == ids


def test_the_unnamed_index_of_a_pandas_frame_is_no_column():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [1, 2, 3]})
    assert ingest(frame[frame.x > 1]).table.to_pydict() == {"x": [2, 3]}


# Taking rows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("spool_bytes", [0, 1 << 20])
def test_rows_are_taken_in_any_order_and_repeatedly(spool_bytes):
    def batches():
        for start in range(0, 50, 5):
            yield pa.record_batch({"x": range(start, start + 5), "s": [{"v": str(start)}] * 5})

    source = ingest(batches(), spool_bytes=spool_bytes)
    rows = [49, 0, 7, 7, None, 23]
    taken = source.take(pa.array(rows, pa.int64()))
    assert taken["x"].to_pylist() == rows
    assert taken["s"][0].as_py() == {"v": "45"}
    assert source.take(pa.array([], pa.int64())).schema == source.schema
    assert source.take(pa.chunked_array([[1], [2]], pa.uint8()))["x"].to_pylist() == [1, 2]


def test_taking_few_rows_of_a_spool_does_not_bring_all_of_it_into_memory():
    script = """
import pyarrow as pa
from intarsia.common.arrow import ingest
batches = (pa.record_batch({"x": pa.arange(k << 17, (k + 1) << 17, 1)}) for k in range(40))
source = ingest(batches, spool_bytes=0)
before = pa.default_memory_pool().max_memory()
assert source.take(pa.array([5, 5_242_879]))["x"].to_pylist() == [5, 5_242_879]
assert before < 16 << 20, before
assert pa.default_memory_pool().max_memory() - before < 1 << 20
"""
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


def test_a_row_number_out_of_range_is_an_index_error():
    source = ingest(iter([pa.record_batch({"x": [n]}) for n in range(3)]), spool_bytes=0)
    for rows in ([3], [-1]):
        with pytest.raises(pa.ArrowIndexError):
            source.take(pa.array(rows))


# Lists -------------------------------------------------------------------------------------------


def test_the_sources_of_a_list_meet_by_name_in_their_common_type():
    table = pa.table({"a": pa.array([1], pa.int8()), "b": ["x"]})
    source = ingest([table, {"b": ["y"], "a": [300]}, [{"a": 5, "c": 1.5}]])
    assert source.table.to_pylist() == [
        {"a": 1, "b": "x", "c": None},
        {"a": 300, "b": "y", "c": None},
        {"a": 5, "b": None, "c": 1.5},
    ]
    assert source.schema.field("a").type == pa.int64()
    assert source.origin.startswith("list of 3 sources")


@pytest.mark.parametrize("spool_bytes", [0, 1 << 20])
def test_a_generator_may_change_its_schema_on_the_way(spool_bytes):
    values = [(1, pa.int8()), (2, pa.int8()), (3, pa.int64())]
    parts = [pa.record_batch({"a": pa.array([value], data_type)}) for value, data_type in values]
    source = ingest(iter(parts), spool_bytes=spool_bytes)
    assert source.table["a"].to_pylist() == [1, 2, 3]
    assert source.schema.field("a").type == pa.int64()
    assert source.spooled == (spool_bytes == 0)


def test_columns_that_do_not_meet_are_a_schema_mismatch():
    with pytest.raises(SchemaMismatch, match="'a'"):
        ingest([pa.table({"a": [1]}), pa.table({"a": ["x"]})])


def test_rows_as_dicts_keep_columns_that_the_first_row_lacks():
    assert ingest([{"a": 1}, {"b": 2}]).table.to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": 2}]


# What is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [5, None, b"bytes", {1, 2}, object(), 1.5])
def test_what_is_no_source_is_refused_by_type(bad):
    with pytest.raises(InputError, match=rf"{type(bad).__name__}.*__arrow_c_stream__"):
        ingest(bad)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ([], "empty list"),
        (iter([]), "no record batch"),
        (iter([BATCHES[0], 7]), "Element 1.*int"),
        (["/no/such/file.parquet"], "/no/such/file.parquet"),
        (pa.table({}), "no columns"),
        ({"a": [1], "b": [1, 2]}, "no table"),
        ({"a": 5}, "no table"),
        ([{"a": 1}, {"a": "x"}], "no table"),
        ([1, 2], "int"),
        (pa.chunked_array([[1, 2]]), "no table"),
        (pa.array([1, 2]), "no table"),
    ],
)
def test_a_source_without_a_schema_or_rows_is_refused(bad, says):
    with pytest.raises((InputError, NothingMatched), match=says) as caught:
        ingest(bad)
    assert caught.value.hint


def test_a_column_that_is_there_twice_is_a_schema_mismatch():
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "b", "a"])
    for source in (twice, twice.to_reader(), iter(twice.to_batches()), [twice, TABLE]):
        with pytest.raises(SchemaMismatch, match="'a'"):
            ingest(source)


@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "in a list"])
def test_a_frame_that_is_not_computed_yet_is_refused_with_the_call_that_does_it(wrapped):
    lazy = pytest.importorskip("polars").LazyFrame({"a": [1]})
    with pytest.raises(InputError, match=r"polars\.LazyFrame.*\.collect\(\)"):
        ingest([lazy] if wrapped else lazy)


def test_a_spark_frame_is_refused_with_the_engine_that_takes_it():
    made_up = {"__module__": "pyspark.sql.connect.dataframe", "__arrow_c_stream__": None}
    with pytest.raises(NotSupported, match=r'pyspark\.DataFrame.*engine="spark"'):
        ingest(type("DataFrame", (), made_up)())


# Files -------------------------------------------------------------------------------------------


@pytest.fixture
def orders():
    days = ["2025-11-14", "2025-11-14", "2025-11-15", None]
    return pa.table({"id": [1, 2, 3, 4], "day": days, "no": [7, 8, 7, 8]})


@pytest.mark.parametrize("form", [str, lambda p: p, lambda p: p.as_uri()], ids=["text", "path", "url"])
@pytest.mark.parametrize("spool_bytes", [1 << 20, 0])
def test_a_parquet_directory_comes_in_with_typed_partition_columns(
    tmp_path, make_dataset, orders, rows, form, spool_bytes
):
    root = make_dataset(tmp_path / "orders", orders, partition=["day", "no"])
    (root / "_SUCCESS").touch()
    (root / "_temporary").mkdir()
    (root / "_temporary" / "half.parquet").write_bytes(b"")
    source = ingest(form(root), spool_bytes=spool_bytes)
    assert source.schema.field("day").type == pa.date32()
    assert source.schema.field("no").type == pa.int64()
    days = {1: dt.date(2025, 11, 14), 2: dt.date(2025, 11, 14), 3: dt.date(2025, 11, 15), 4: None}
    assert {row["id"]: row["day"] for row in source.table.to_pylist()} == days
    assert {row["id"]: row["no"] for row in source.table.to_pylist()} == {1: 7, 2: 8, 3: 7, 4: 8}
    assert source.origin.endswith("(4 parquet files)")


def test_partition_columns_of_a_path_inside_a_partition_come_from_its_own_directories(tmp_path):
    directory = tmp_path / "updates" / "date=2025-11-15"
    directory.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), directory / "a.parquet")
    expected = {"id": [1], "date": [dt.date(2025, 11, 15)]}
    assert ingest(directory, partition_columns=["date", "region"]).table.to_pydict() == expected
    assert ingest(directory / "a.parquet", partition_columns=["date"]).table.to_pydict() == expected
    assert ingest(directory).table.to_pydict() == {"id": [1]}
    typed = ingest(directory, partition_columns=["date"], types=pa.schema([("date", pa.string())]))
    assert typed.table.to_pydict() == {"id": [1], "date": ["2025-11-15"]}
    unreadable = ingest(directory, partition_columns=["date"], types=pa.schema([("date", pa.int64())]))
    assert unreadable.table.to_pydict() == expected


def test_a_column_in_the_file_wins_over_one_in_the_path(tmp_path):
    directory = tmp_path / "d=1"
    directory.mkdir()
    pq.write_table(pa.table({"d": ["in the file"]}), directory / "a.parquet")
    assert ingest(tmp_path).table.to_pydict() == {"d": ["in the file"]}


def test_partition_columns_have_the_type_they_were_written_with(tmp_path):
    directory = tmp_path / "n=7"
    directory.mkdir()
    declared = {PARTITION_SCHEMA_KEY: encode_partition_schema(pa.schema([("n", pa.int16())]))}
    pq.write_table(pa.table({"x": [1]}).replace_schema_metadata(declared), directory / "a.parquet")
    assert ingest(tmp_path).schema.field("n").type == pa.int16()


def test_files_with_different_schemas_are_unified(tmp_path):
    pq.write_table(pa.table({"a": pa.array([1], pa.int32())}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"b": ["x"], "a": pa.array([2], pa.int64())}), tmp_path / "2.PARQUET")
    source = ingest(tmp_path)
    assert source.table.to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]
    assert source.schema.field("a").type == pa.int64()


def test_globs_find_files_and_partition_directories(tmp_path, make_dataset, orders):
    root = make_dataset(tmp_path / "orders", orders, partition=["day", "no"])
    assert ingest(f"{root}/day=2025-*/no=7/*.parquet").table["id"].to_pylist() == [1, 3]
    assert ingest(f"{root}/day=2025-11-15/no=*").table.num_columns == 3
    assert ingest(f"{root}/day=2025-11-1[5]").table.to_pydict() == {
        "id": [3],
        "day": [dt.date(2025, 11, 15)],
        "no": [7],
    }
    assert sorted(ingest(f"{root}/**/part-0000?.parquet").table["id"].to_pylist()) == [1, 2, 3, 4]
    with pytest.raises(NothingMatched, match="day=1999"):
        ingest(f"{root}/day=1999-*")


def test_a_relative_glob_is_taken_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(TABLE, "a[1].parquet")
    assert ingest("*.parquet").rows == 3
    assert ingest("a[1].parquet").rows == 3  # a file of that very name is no glob


def test_a_list_of_paths_and_tables_is_one_source(tmp_path):
    pq.write_table(TABLE, tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("id,name\n4,d\n")
    source = ingest([tmp_path / "a.parquet", str(tmp_path / "b.csv"), TABLE.slice(0, 1)])
    assert source.table["id"].to_pylist() == [1, 2, 3, 4, 1]


def test_csv_comes_in_with_inferred_types_and_only_empty_fields_are_null(tmp_path):
    (tmp_path / "a.csv").write_text('id,land,note,x\n1,NA,"",\n2,,a,1.5\n')
    assert ingest(tmp_path / "a.csv").table.to_pylist() == [
        {"id": 1, "land": "NA", "note": "", "x": None},
        {"id": 2, "land": None, "note": "a", "x": 1.5},
    ]


def test_a_column_of_text_files_has_the_type_it_would_have_in_one_file(tmp_path):
    (tmp_path / "1.csv").write_text("n,zip\n1,01234\n")
    (tmp_path / "2.csv").write_text("n,zip\n1.5,A1234\n")
    assert ingest(tmp_path).table.to_pydict() == {"n": [1.0, 1.5], "zip": ["01234", "A1234"]}


def test_known_types_win_over_inferred_ones_in_text_files(tmp_path):
    (tmp_path / "a.csv").write_text("id,n\n007,1\n008,2\n")
    (tmp_path / "b.json").write_text('{"id": "2025-01-01", "n": 1}\n')
    types = pa.schema([("id", pa.string()), ("n", pa.int8()), ("missing", pa.int8())])
    for name, ids in (("a.csv", ["007", "008"]), ("b.json", ["2025-01-01"])):
        source = ingest(tmp_path / name, types=types)
        assert source.table["id"].to_pylist() == ids
        assert source.schema.names == ["id", "n"]
        assert source.schema.field("n").type == pa.int8()
    (tmp_path / "c.csv").write_text("id,n\n1,300\n")
    assert ingest(tmp_path / "c.csv", types=types).table["n"].to_pylist() == [300]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.ndjson.gz"])
@pytest.mark.parametrize("array", [False, True])
def test_json_lines_and_arrays_come_in_alike(tmp_path, name, array):
    rows = [{"id": 1, "tags": ["x"], "at": "2025-01-01"}, {"id": 2, "tags": [], "at": None}]
    text = json.dumps(rows, indent=1) if array else "\n".join(map(json.dumps, rows))
    data = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    source = ingest(tmp_path)
    assert source.table["id"].to_pylist() == [1, 2]
    assert source.table["tags"].to_pylist() == [["x"], []]
    assert source.schema.field("at").type == pa.timestamp("s")


def test_large_text_files_are_streamed_to_the_spool(tmp_path, monkeypatch):
    monkeypatch.setattr("intarsia.common.text_files._WHOLE_TEXT_BYTES", 10)
    monkeypatch.setattr("intarsia.common.text_files._STREAM_BLOCK", 200)
    (tmp_path / "a.csv").write_text("id,s\n" + "".join(f"{n},x{n}\n" for n in range(100)))
    (tmp_path / "a.jsonl").write_text("".join(f'{{"id": {n}, "s": "x{n}"}}\n' for n in range(100)))
    for name in ("a.csv", "a.jsonl"):
        source = ingest(tmp_path / name, spool_bytes=100, types=pa.schema([("id", pa.int16())]))
        assert source.spooled
        assert source.table.to_pydict() == {"id": list(range(100)), "s": [f"x{n}" for n in range(100)]}
        assert source.schema.field("id").type == pa.int16()


def test_a_file_without_an_ending_is_known_by_its_first_bytes(tmp_path):
    pq.write_table(TABLE, tmp_path / "data")
    assert ingest(tmp_path / "data").rows == 3
    (tmp_path / "text").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="text is not known"):
        ingest(tmp_path / "text")


def test_a_directory_of_several_formats_is_ambiguous(tmp_path):
    pq.write_table(TABLE, tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("id\n1\n")
    with pytest.raises(InputError, match=r"1 parquet, 1 csv.*glob"):
        ingest(tmp_path)
    assert ingest(f"{tmp_path}/*.csv").rows == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.parquet", b"PAR1 no more"),
        ("a.csv", b""),
        ("a.csv", b"a,b\n1\n"),
        ("a.json", b'{"a": 1'),
        ("a.json", b"[1, 2]"),
        ("a.json", b'[{"a": 1}'),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DamagedTable, match=name):
        ingest(tmp_path)


@pytest.mark.parametrize("wrap", [lambda fs: fs, lambda fs: pafs.PyFileSystem(pafs.FSSpecHandler(fs))])
def test_a_path_on_any_file_system_can_be_read(wrap):
    memory = fsspec.filesystem("memory")
    with memory.open("/adopt/k=1/a.parquet", "wb") as file:
        pq.write_table(TABLE, file)
    try:
        for path in ("adopt", "/adopt", "memory://adopt", "adopt/*/*.parquet"):
            assert ingest(path, filesystem=wrap(memory)).table.num_columns == 3
        assert ingest("memory://adopt").rows == 3
    finally:
        memory.rm("/adopt", recursive=True)


def test_an_unknown_scheme_or_file_system_is_refused():
    with pytest.raises(NotSupported, match="nonsense"):
        ingest("nonsense://bucket/a.parquet")
    with pytest.raises(InputError, match="fsspec file system, not int"):
        ingest("a.parquet", filesystem=5)


# Conforming --------------------------------------------------------------------------------------


def test_a_source_that_has_the_schema_already_is_itself():
    source = ingest(TABLE)
    assert conform_source(source, TABLE.schema, operation="merge", path="t") is source


@pytest.mark.parametrize("spool_bytes", [0, 1 << 20])
def test_a_source_is_brought_to_a_schema(spool_bytes):
    source = ingest(pa.table({"b": ["x", "y"], "a": [1, 2]}).to_reader(), spool_bytes=spool_bytes)
    schema = pa.schema([("a", pa.int8()), ("b", pa.large_string()), ("c", pa.float64())])
    result = conform_source(source, schema, operation="merge", path="t")
    assert isinstance(result, IngestedSource)
    assert result.schema == schema
    assert result.spooled == source.spooled == (spool_bytes == 0)
    assert result.table.to_pylist() == [{"a": 1, "b": "x", "c": None}, {"a": 2, "b": "y", "c": None}]
    assert source.table.num_rows == 2


@pytest.mark.parametrize("spool_bytes", [0, 1 << 20])
def test_a_value_that_does_not_fit_is_named(spool_bytes, tmp_path):
    source = ingest(pa.table({"a": [1, 300]}).to_reader(), spool_bytes=spool_bytes, spool_dir=tmp_path)
    with pytest.raises(SchemaMismatch, match=r"merge.*'a'.*300"):
        conform_source(source, pa.schema([("a", pa.int8())]), operation="merge", path="t", spool_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
