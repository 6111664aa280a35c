"""``DuckDBDatasetIO``: the methods, results and errors of the in-process engine."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.datasets.duckdb import DuckDBDatasetIO, reading
from intarsia.datasets.io import DatasetIO
from intarsia.datasets.pyarrow import PyarrowDatasetIO
from intarsia.engines.duckdb.session import Session
from intarsia.errors import (
    ColumnNotFound,
    DamagedTable,
    InputError,
    KeyColumnError,
    NothingMatched,
    NotSupported,
)

ORDERS = pa.table(
    {
        "id": range(12),
        "day": [dt.date(2025, 1, 1 + n % 3) for n in range(12)],
        "n": [n * 10 for n in range(12)],
    }
)
ARROW = PyarrowDatasetIO()


@pytest.fixture(params=["own", "connection"])
def io(request: pytest.FixtureRequest) -> Any:
    if request.param == "own":
        yield DuckDBDatasetIO()
        return
    with duckdb.connect() as connection:
        yield DuckDBDatasetIO(connection)


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    ARROW.write_dataset(ORDERS, tmp_path / "orders", partition_by="day")
    return tmp_path / "orders"


def test_it_has_every_method_of_the_in_process_io() -> None:
    public = {name for name in dir(PyarrowDatasetIO) if not name.startswith("_")}
    assert public <= set(dir(DuckDBDatasetIO))
    assert issubclass(DuckDBDatasetIO, DatasetIO)


def test_a_merge_gives_what_the_in_process_engine_gives(io, orders):
    changes = pa.table({"id": [1, 50], "day": [dt.date(2025, 1, 2), dt.date(2025, 2, 1)], "n": [7, 8]})
    planned = ARROW.merge(changes, orders, "upsert", ["id"], dry_run=True)
    result = io.merge(changes, orders, "upsert", ["id"])
    assert dict(result) == dict(planned) == {"inserted": 1, "updated": 1, "deleted": 0, "total": 13}
    assert result["inserted"] == 1
    assert (result.engine, result.source_count) == ("duckdb", 2)
    assert result.rewritten_files == planned.rewritten_files


def test_writing_tells_the_files(io, tmp_path):
    table = pa.table({"id": [1, 2], "p": ["a", "b"]})
    result = io.write_dataset(table, tmp_path / "t", partition_by="p")
    assert (result.total_rows, result.mode, result.backend) == (2, "append", "duckdb")
    assert sorted(file.row_count for file in result.files) == [1, 1]
    again = io.write_parquet_dataset(table, tmp_path / "t", strategy="insert", key_columns="id")
    assert again.inserted == 0
    with pytest.warns(UserWarning, match="takes precedence"):
        io.write_parquet_dataset(table, tmp_path / "t", mode="append", strategy="insert", key_columns="id")


def test_delete_update_and_maintenance_give_what_the_in_process_engine_gives(
    io, orders, tmp_path, make_dataset, rows
):
    assert io.update(orders, {"n": "n + 1"}, where="id < 3").updated == 3
    assert io.delete(orders, "id >= 9").deleted == 3
    make_dataset(tmp_path / "small", pa.table({"id": [1, 1, 2, 3], "v": [1, 2, 3, 4]}), files=4)
    small = tmp_path / "small"
    for name, call in {
        "compact": lambda one, **k: one.compact_parquet_dataset(small, target_mb_per_file=1, **k),
        "optimize": lambda one, **k: one.optimize_parquet_dataset(small, ["v"], **k),
        "deduplicate": lambda one, **k: one.deduplicate_parquet_dataset(small, ["id"], **k),
    }.items():
        assert call(io, dry_run=True) == call(ARROW, dry_run=True), name
    io.compact_parquet_dataset(small, target_mb_per_file=1)
    io.deduplicate_parquet_dataset(small, ["id"])
    io.optimize_parquet_dataset(small, ["v"])
    assert rows(small) == [{"id": 1, "v": 2}, {"id": 2, "v": 3}, {"id": 3, "v": 4}]


def test_a_plan_is_made_by_the_operations_name(io, orders):
    plan = io.plan("merge", ORDERS.slice(0, 1), orders, on="id")
    assert (plan.engine, plan.updated, plan.count("rewrite")) == ("duckdb", 1, 1)
    assert io.plan("delete", orders, "id = 1").deleted == 1
    assert ARROW.plan("compact", orders).engine == "arrow"


def test_errors_are_those_of_the_in_process_engine(io, orders, tmp_path, unchanged):
    doubled = pa.concat_tables([ORDERS.slice(0, 2)] * 2)
    with unchanged(orders):
        with pytest.raises(KeyColumnError) as ours:
            io.merge(doubled, orders, "upsert", ["id"])
        with pytest.raises(KeyColumnError) as theirs:
            ARROW.merge(doubled, orders, "upsert", ["id"])
    assert str(ours.value) == str(theirs.value)
    with pytest.raises(FileNotFoundError):
        io.compact_parquet_dataset(tmp_path / "none", target_mb_per_file=1)
    with pytest.raises(InputError, match="key_columns"):
        io.write_parquet_dataset(doubled, orders, strategy="upsert")


def test_it_takes_a_connection_or_nothing(tmp_path):
    with pytest.raises(InputError, match="DuckDB connection, not str"):
        DuckDBDatasetIO(str(tmp_path))
    with pytest.raises(InputError, match="DuckDB connection, not LocalFileSystem"):
        DuckDBDatasetIO(pafs.LocalFileSystem())


def test_settings_are_not_for_a_connection_of_the_callers():
    with duckdb.connect() as connection, pytest.raises(InputError, match="memory_bytes cannot be set"):
        DuckDBDatasetIO(connection, memory_bytes=1 << 30)


def test_without_duckdb_it_says_what_to_install():
    code = (
        "import sys\n"
        "sys.modules['duckdb'] = None\n"
        "import intarsia, pyarrow as pa\n"
        "from intarsia.datasets.duckdb import DuckDBDatasetIO\n"
        "from intarsia.errors import NotSupported\n"
        "for call in (DuckDBDatasetIO, lambda: intarsia.write(pa.table({'a': [1]}), 'x', engine='duckdb')):\n"
        "    try:\n"
        "        call()\n"
        "    except NotSupported as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("not installed") == 2
    assert done.stdout.count("pip install 'intarsia[duckdb]'") == 2


# read_parquet


def _read_both(io: DuckDBDatasetIO, path: Path, **asked: Any) -> tuple[pa.Table, pa.Table]:
    return io.read_parquet(path, **asked), ARROW.read_parquet(path, **asked)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"columns": ["n", "id"]},
        {"columns": "day"},
        {"filters": "id > 4 and day = date '2025-01-02'"},
        {"filters": "n % 20 = 0"},
        {"filters": "n / 10 > 3 and id < 9", "columns": "day"},
        {"filters": pc.field("n") > 30, "columns": ["id"]},
        {"columns": "n", "filters": [("id", "in", [1, 2, 30])]},
        {"include_file_path": True, "filters": "id < 3"},
        {"include_file_path": True, "columns": "id"},
        {"filters": "id > 1000"},
        {"batch_rows": 2, "use_threads": False},
    ],
    ids=str,
)
def test_what_is_asked_for_is_what_the_in_process_engine_reads(io, orders, asked):
    found, expected = _read_both(io, orders, **asked)
    assert found.equals(expected, check_metadata=True)


def test_it_is_duckdb_that_reads(orders, monkeypatch):
    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("read by PyArrow")

    monkeypatch.setattr("intarsia.datasets.reading.FileReader", refused)
    assert DuckDBDatasetIO().read_parquet(orders, filters="id < 5").num_rows == 5


def test_types_that_duckdb_does_not_have_are_read_all_the_same(io, tmp_path):
    table = pa.table(
        {
            "id": range(4),
            "d": pa.array([1, None, 3, 4], pa.duration("us")),
            "t": pa.array([1, None, 3, 4], pa.time32("ms")),
            "z": pa.array([1, None, 3, 10**18 + 1], pa.timestamp("ns", "Europe/Berlin")),
            "e": pa.array(["a", None, "b", "a"]).dictionary_encode(),
            "m": pa.array([1, None, 3, 4], pa.timestamp("ms")),
            "l": pa.array([[1], None, [], [None]], pa.large_list(pa.int16())),
            "f": pa.array([float("nan"), None, -0.0, 1.0]),
        }
    )
    (tmp_path / "t").mkdir()
    pq.write_table(table, tmp_path / "t" / "a.parquet")
    for asked in ({}, {"columns": ["z", "m", "id"]}, {"columns": ["e", "l"]}, {"filters": "f > 0.5"}):
        found, expected = _read_both(io, tmp_path / "t", **asked)
        assert found.schema.equals(expected.schema, check_metadata=True)
        assert repr(found.to_pylist()) == repr(expected.to_pylist())


def test_files_of_narrower_types_and_fewer_columns_are_read_as_the_dataset(io, tmp_path):
    root = tmp_path / "t"
    root.mkdir()
    narrow = pa.table({"id": pa.array([1], pa.int16()), "f": pa.array([1.5], pa.float32())})
    pq.write_table(narrow, root / "a.parquet")
    pq.write_table(pa.table({"id": pa.array([2**40]), "f": [2.5], "new": ["x"]}), root / "b.parquet")
    found, expected = _read_both(io, root)
    assert found.equals(expected, check_metadata=True)
    assert io.read_parquet(root, filters="new is null")["id"].to_pylist() == [1]


def test_rows_come_in_the_order_of_files_and_rows(io, tmp_path):
    table = pa.table({"id": range(5000), "p": [n % 3 for n in range(5000)]})
    ARROW.write_dataset(table, tmp_path / "t", partition_by="p", max_rows_per_file=700, row_group_size=100)
    found, expected = _read_both(io, tmp_path / "t", filters="id % 7 <> 0")
    assert found.equals(expected)


def test_the_order_does_not_hang_on_a_setting(tmp_path):
    table = pa.table({"id": range(300_000)})
    ARROW.write_dataset(table, tmp_path / "t", max_rows_per_file=100_000, row_group_size=10_000)
    with duckdb.connect(config={"preserve_insertion_order": "false", "threads": 4}) as connection:
        found = DuckDBDatasetIO(connection).read_parquet(tmp_path / "t", filters="id >= 7")
    assert found.equals(ARROW.read_parquet(tmp_path / "t", filters="id >= 7"))


def test_a_single_file_is_read(io, tmp_path):
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "one.parquet")
    found, expected = _read_both(io, tmp_path / "one.parquet", include_file_path=True)
    assert found.equals(expected)


def test_an_empty_dataset_is_read(io, orders):
    io.delete(orders, "true")
    found, expected = _read_both(io, orders)
    assert found.equals(expected)


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({"columns": "nn"}, ColumnNotFound),
        ({"filters": "nn = 1"}, ColumnNotFound),
        ({"filters": []}, InputError),
        ({"filters": "id ="}, InputError),
        ({"batch_rows": 0}, InputError),
        ({"filters": "100 / (id - 3) > 1"}, InputError),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_the_same_error(io, orders, asked, kind):
    with pytest.raises(kind) as theirs:
        ARROW.read_parquet(orders, **asked)
    with pytest.raises(kind) as ours:
        io.read_parquet(orders, **asked)
    assert str(ours.value) == str(theirs.value)


def test_what_is_not_there_is_the_same_error(io, tmp_path):
    with pytest.raises(NothingMatched, match="no dataset"):
        io.read_parquet(tmp_path / "none")


def test_a_file_that_is_damaged_is_told(io, orders):
    (file,) = (orders / "day=2025-01-02").glob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[:4] + b"\xff" * 60 + whole[64:])
    with pytest.raises((DamagedTable, NotSupported)):
        io.read_parquet(orders)


def test_a_dataset_that_is_changed_meanwhile_is_read_in_one_state(orders, monkeypatch):
    first = [True]

    class Late(reading.DuckRows):
        def read_rows(self, task: Any) -> Any:
            if first:
                first.clear()
                it.update(orders, {"n": "n + 1"})
            return super().read_rows(task)

    monkeypatch.setattr(reading, "DuckRows", Late)
    found = DuckDBDatasetIO().read_parquet(orders)
    assert sorted(found["n"].to_pylist()) == [n * 10 + 1 for n in range(12)]


def test_a_session_that_cannot_begin_leaves_nothing_behind(tmp_path):
    connection = duckdb.connect()
    connection.close()
    with pytest.raises(InputError, match="connection"):
        Session(connection)
    with pytest.raises(InputError, match="connection"):
        DuckDBDatasetIO(connection).write_dataset(ORDERS, tmp_path / "t")
    assert not (tmp_path / "t").exists()
