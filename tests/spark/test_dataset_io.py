"""``SparkDatasetIO``: the methods, results and errors of the other engines, and DataFrames to read."""

from __future__ import annotations

import datetime as dt
import threading
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.datasets.pyarrow import PyarrowDatasetIO
from intarsia.datasets.spark import SparkDatasetIO
from intarsia.errors import (
    ColumnNotFound,
    CommitConflict,
    CommitUnknown,
    InputError,
    KeyColumnError,
    NothingMatched,
    NotSupported,
)
from tests.sampling import choose_number

ORDERS = pa.table(
    {
        "id": range(12),
        "day": [dt.date(2025, 1, 1 + n % 3) for n in range(12)],
        "n": [n * 10 for n in range(12)],
    }
)


@pytest.fixture
def io(spark):
    return SparkDatasetIO(spark)


@pytest.fixture
def orders(tmp_path):
    PyarrowDatasetIO().write_dataset(ORDERS, tmp_path / "orders", partition_by="day")
    return tmp_path / "orders"


def test_a_merge_gives_what_the_in_process_engine_gives(io, orders, spark):
    changes = spark.createDataFrame(
        [(1, dt.date(2025, 1, 2), 7), (50, dt.date(2025, 2, 1), 8)], "id long, day date, n long"
    )
    planned = PyarrowDatasetIO().merge(changes.toArrow(), orders, "upsert", ["id"], dry_run=True)
    result = io.merge(changes, orders, "upsert", ["id"])
    assert dict(result) == dict(planned) == {"inserted": 1, "updated": 1, "deleted": 0, "total": 13}
    assert result["inserted"] == 1
    assert (result.engine, result.source_count) == ("spark", 2)
    assert result.rewritten_files == planned.rewritten_files


def test_writing_tells_the_files(io, tmp_path, spark):
    frame = spark.createDataFrame([(1, "a"), (2, "b")], "id long, p string")
    result = io.write_dataset(frame, tmp_path / "t", partition_by="p")
    assert (result.total_rows, result.mode, result.backend) == (2, "append", "spark")
    assert sorted(file.row_count for file in result.files) == [1, 1]
    again = io.write_parquet_dataset(frame, tmp_path / "t", strategy="insert", key_columns="id")
    assert again.inserted == 0
    with pytest.warns(UserWarning, match="takes precedence"):
        io.write_parquet_dataset(frame, tmp_path / "t", mode="append", strategy="insert", key_columns="id")


def test_delete_update_and_maintenance_give_what_the_in_process_engine_gives(
    io, orders, tmp_path, make_dataset, rows
):
    assert io.update(orders, {"n": "n + 1"}, where="id < 3").updated == 3
    assert io.delete(orders, "id >= 9").deleted == 3
    make_dataset(tmp_path / "small", pa.table({"id": [1, 1, 2, 3], "v": [1, 2, 3, 4]}), files=4)
    arrow = PyarrowDatasetIO()
    for name, call in {
        "compact": lambda one, **k: one.compact_parquet_dataset(
            tmp_path / "small", target_mb_per_file=1, **k
        ),
        "optimize": lambda one, **k: one.optimize_parquet_dataset(tmp_path / "small", ["v"], **k),
        "deduplicate": lambda one, **k: one.deduplicate_parquet_dataset(tmp_path / "small", ["id"], **k),
    }.items():
        expected = call(arrow, dry_run=True)
        assert call(io, dry_run=True) == expected, name
    io.compact_parquet_dataset(tmp_path / "small", target_mb_per_file=1)
    io.deduplicate_parquet_dataset(tmp_path / "small", ["id"])
    io.optimize_parquet_dataset(tmp_path / "small", ["v"])
    assert rows(tmp_path / "small") == [{"id": 1, "v": 2}, {"id": 2, "v": 3}, {"id": 3, "v": 4}]


def test_errors_are_those_of_the_in_process_engine(io, orders, tmp_path, spark):
    doubled = spark.createDataFrame([(1, dt.date(2025, 1, 2), 7)] * 2, "id long, day date, n long")
    with pytest.raises(KeyColumnError) as ours:
        io.merge(doubled, orders, "upsert", ["id"])
    with pytest.raises(KeyColumnError) as theirs:
        PyarrowDatasetIO().merge(doubled.toArrow(), orders, "upsert", ["id"])
    assert str(ours.value) == str(theirs.value)
    with pytest.raises(FileNotFoundError):
        io.compact_parquet_dataset(tmp_path / "none", target_mb_per_file=1)
    with pytest.raises(InputError, match="key_columns"):
        io.write_parquet_dataset(doubled, orders, strategy="upsert")


def test_it_needs_a_session(tmp_path):
    with pytest.raises(InputError, match="SparkSession"):
        SparkDatasetIO(str(tmp_path))


def test_spark_that_leaves_out_what_it_cannot_read_is_refused(io, orders, spark):
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with pytest.raises(NotSupported, match="ignoreCorruptFiles"):
            io.delete(orders, "id = 1")
        with pytest.raises(NotSupported, match="ignoreCorruptFiles"):
            io.read_parquet(orders)
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


def test_a_dataset_is_read_as_a_dataframe_with_its_partition_types(io, orders, rows):
    frame = io.read_parquet(orders)
    assert frame.schema.simpleString() == "struct<id:bigint,n:bigint,day:date>"
    assert rows(frame.toArrow()) == rows(ORDERS)
    assert frame.groupBy("day").count().count() == 3


@pytest.mark.parametrize(
    "asked",
    [
        {"columns": ["n", "id"]},
        {"columns": "day"},
        {"filters": "id > 4 and day = date '2025-01-02'"},
        {"columns": "n", "filters": [("id", "in", [1, 2, 30])]},
        {"include_file_path": True, "filters": "id < 3"},
        {"filters": "id > 1000"},
    ],
    ids=str,
)
def test_what_is_asked_for_is_what_the_in_process_engine_reads(io, orders, rows, asked):
    frame = io.read_parquet(orders, **asked)
    expected = PyarrowDatasetIO().read_parquet(orders, **asked)
    assert frame.columns == expected.column_names
    assert rows(frame.toArrow()) == rows(expected)


def test_files_of_narrower_types_and_fewer_columns_are_read_as_the_dataset(io, tmp_path, rows):
    root = tmp_path / "t"
    root.mkdir()
    pq.write_table(
        pa.table({"id": pa.array([1], pa.int16()), "f": pa.array([1.5], pa.float32())}), root / "a.parquet"
    )
    pq.write_table(pa.table({"id": pa.array([2**40]), "f": [2.5], "new": ["x"]}), root / "b.parquet")
    frame = io.read_parquet(root)
    assert frame.schema.simpleString() == "struct<id:bigint,f:double,new:string>"
    assert rows(frame.toArrow()) == [{"id": 1, "f": 1.5, "new": None}, {"id": 2**40, "f": 2.5, "new": "x"}]


def test_names_that_look_like_patterns_are_names(io, tmp_path, rows):
    for name in ("a*", "ab", "{x,y}", "[0-9]"):
        root = tmp_path / f"data {name}"
        root.mkdir()
        pq.write_table(pa.table({"name": [name]}), root / f"{name}.parquet")
        assert rows(io.read_parquet(root).toArrow()) == [{"name": name}]
        assert rows(io.read_parquet(root / f"{name}.parquet").toArrow()) == [{"name": name}]


def test_an_empty_dataset_and_one_that_is_not_there(io, tmp_path):
    (tmp_path / "empty").mkdir()
    assert io.read_parquet(tmp_path / "empty").count() == 0
    with pytest.raises(NothingMatched):
        io.read_parquet(tmp_path / "none")


def test_a_column_or_filter_that_does_not_fit_is_refused_at_once(io, orders):
    with pytest.raises(ColumnNotFound, match="nope"):
        io.read_parquet(orders, columns=["nope"])
    with pytest.raises(ColumnNotFound, match="nope"):
        io.read_parquet(orders, filters="nope = 1")


def test_a_dataframe_of_a_state_that_is_gone_refuses_rather_than_mix(io, tmp_path, make_dataset):
    from pyspark.errors import SparkRuntimeException

    make_dataset(tmp_path / "t", pa.table({"id": range(9), "n": [0] * 9}), files=3)
    frame = io.read_parquet(tmp_path / "t")
    io.merge(pa.table({"id": [4], "n": [1]}), tmp_path / "t", "update", "id")
    message = "CommitConflict: .* was replaced or removed since read_parquet was called"
    for action in (frame.toArrow, frame.count, frame.where("id > 0").collect, frame.select("n").collect):
        with pytest.raises(SparkRuntimeException, match=message) as caught:
            action()
        assert "Traceback" not in str(caught.value)
        said = str(caught.value).partition("\n\nJVM stacktrace")[0]  # which a Connect client appends
        assert len(said) < 600
    with pytest.raises(CommitConflict, match="was replaced or removed") as ours:
        io.merge(frame, tmp_path / "other", "upsert", "id")
    assert "read it again" in str(ours.value.hint)
    assert io.read_parquet(tmp_path / "t").count() == 9


def test_a_filter_drops_no_error_where_spark_generates_no_code(io, tmp_path, make_dataset, spark):
    """As for tables of a hundred columns and more: rows with NULL went before the error was looked at."""
    from pyspark.errors import SparkRuntimeException

    make_dataset(tmp_path / "t", pa.table({"id": range(9), "n": [0] * 9}), files=3)
    frame = io.read_parquet(tmp_path / "t")
    io.merge(pa.table({"id": [4], "n": [1]}), tmp_path / "t", "update", "id")
    other = spark.createDataFrame([(1,), (7,)], "id long")
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    try:
        for some in (frame.where("id > 0 and n = 0"), frame.join(other, "id"), frame.dropna()):
            with pytest.raises(SparkRuntimeException, match="was replaced or removed"):
                some.collect()
    finally:
        spark.conf.unset("spark.sql.codegen.wholeStage")


def test_reads_while_others_overwrite_are_one_state_or_say_so(io, tmp_path, spark):
    from pyspark.errors import SparkRuntimeException

    def version(number):
        return pa.table({"id": range(300), "version": [number] * 300})

    target = str(tmp_path / "t")
    it.write(version(0), target, max_rows_per_file=30)
    stop, failed = threading.Event(), []

    def overwrite():
        for number in range(1, 10_000):
            if stop.is_set():
                return
            try:
                it.write(version(number), target, mode="overwrite", max_rows_per_file=30, engine="arrow")
            except it.IntarsiaError as error:
                failed.append(error)
                return

    writer = threading.Thread(target=overwrite)
    writer.start()
    try:
        for _ in range(choose_number(4, 8)):
            try:
                rows = io.read_parquet(target).toArrow()
            except SparkRuntimeException as error:
                assert "CommitConflict" in str(error)  # noqa: PT017
                continue
            assert rows.num_rows == 300
            assert len(set(rows["version"].to_pylist())) == 1
    finally:
        stop.set()
        writer.join()
    assert failed == []


def test_a_dataframe_of_a_dataset_can_be_the_source_of_a_change_to_it(io, orders, rows):
    frame = io.read_parquet(orders).selectExpr("id", "day", "n + 1 as n")
    assert io.merge(frame, orders, "upsert", "id").updated == 12
    assert sum(row["n"] for row in rows(orders)) == sum(ORDERS["n"].to_pylist()) + 12


TYPES = {
    "uint8": (pa.array([1, 255, None], pa.uint8()), "smallint"),
    "uint16": (pa.array([1, 65535, None], pa.uint16()), "int"),
    "uint32": (pa.array([1, 2**32 - 1, None], pa.uint32()), "bigint"),
    "uint64": (pa.array([1, 2**64 - 1, None], pa.uint64()), "decimal(20,0)"),
    "timestamp[ns]": (pa.array([dt.datetime(2020, 1, 1), None], pa.timestamp("ns")), "timestamp_ntz"),
    "timestamp[ms, UTC]": (
        pa.array([dt.datetime(2020, 1, 1, tzinfo=dt.UTC)], pa.timestamp("ms", "UTC")),
        "timestamp",
    ),
    "duration": (pa.array([dt.timedelta(1, 2), None], pa.duration("ms")), "interval day to second"),
    "dictionary": (pa.array(["a", None, "a"]).dictionary_encode(), "string"),
    "large_string": (pa.array(["a", None], pa.large_string()), "string"),
    "fixed binary": (pa.array([b"ab", None], pa.binary(2)), "binary"),
    "decimal": (pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)), "decimal(10,2)"),
    "date64": (pa.array([dt.date(2020, 1, 1), None], pa.date64()), "date"),
    "float16": (pa.array([1.5, None], pa.float16()), "float"),
    "struct": (pa.array([{"a": 1, "b": ["x"]}, None]), "struct<a:bigint,b:array<string>>"),
    "map": (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())), "map<string,int>"),
    "null": (pa.nulls(2), "void"),
}


@pytest.mark.parametrize("name", TYPES)
def test_a_type_is_shown_as_one_that_holds_every_value(io, tmp_path, name):
    column, shown = TYPES[name]
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"v": column}), tmp_path / "t" / "a.parquet")
    frame = io.read_parquet(tmp_path / "t")
    assert frame.schema.simpleString() == f"struct<v:{shown}>"
    assert frame.toArrow()["v"].to_pylist() == column.to_pylist()


def test_times_of_day_are_microseconds(io, tmp_path):
    (tmp_path / "t").mkdir()
    times = pa.array([dt.time(0, 0, 1, 2), None], pa.time64("ns"))
    pq.write_table(pa.table({"v": times}), tmp_path / "t" / "a.parquet")
    assert io.read_parquet(tmp_path / "t").toArrow()["v"].to_pylist() == [1_000_002, None]


def test_a_value_that_spark_would_cut_off_is_refused(io, tmp_path):
    from pyspark.errors import SparkRuntimeException

    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"v": pa.array([1], pa.timestamp("ns"))}), tmp_path / "t" / "a.parquet")
    with pytest.raises(SparkRuntimeException, match="SchemaMismatch"):
        io.read_parquet(tmp_path / "t").toArrow()


def test_a_commit_that_is_not_published_yet_is_read_as_published(io, tmp_path, make_dataset, monkeypatch):
    from intarsia.tables.parquet.journal import Journal

    root = make_dataset(tmp_path / "t", pa.table({"id": range(4), "n": [0] * 4}), files=2)

    def crash(*_args):
        raise OSError("the power is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "publish", crash)
        with pytest.raises(CommitUnknown):
            it.merge(pa.table({"id": [3, 9], "n": [1, 1]}), root, on="id")
    found = io.read_parquet(root).toArrow().to_pylist()
    assert sorted((row["id"], row["n"]) for row in found) == [(0, 0), (1, 0), (2, 0), (3, 1), (9, 1)]
