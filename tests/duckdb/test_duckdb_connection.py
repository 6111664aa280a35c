"""A connection of the caller's is worked beside: nothing in it changes, and nothing of ours stays in it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import intarsia as it
from intarsia.datasets.duckdb import DuckDBDatasetIO
from intarsia.engines.duckdb.session import Session
from intarsia.errors import DamagedTable, InputError, IntarsiaError, KeyColumnError, NotSupported

N = 3000
TABLE = pa.table({"id": range(N), "s": [f"s{n % 7}" for n in range(N)], "v": [n % 11 for n in range(N)]})
SOURCE = pa.table({"id": [5, 6, N + 1], "s": ["x", "y", "z"], "v": [1, 2, 3]})

OPERATIONS: dict[str, Callable[[Path, Any], Any]] = {
    "merge": lambda root, c: it.merge(SOURCE, root, on="id", engine=c),
    "full_merge": lambda root, c: it.merge(SOURCE, root, on="id", strategy="full_merge", engine=c),
    "delete": lambda root, c: it.delete(root, "v = 3 and s like 's1%'", engine=c),
    "update": lambda root, c: it.update(root, {"s": "s || '!'"}, "v < 3", engine=c),
    "write": lambda root, c: it.write(SOURCE, root, engine=c),
    "compact": lambda root, c: it.compact(root, engine=c),
    "optimize": lambda root, c: it.optimize(root, by=["v", "s"], engine=c),
    "deduplicate": lambda root, c: it.deduplicate(root, on="s", order_by="id", engine=c),
    "plan": lambda root, c: it.plan("merge", SOURCE, root, on="id", engine=c),
    "read": lambda root, c: DuckDBDatasetIO(c).read_parquet(root, filters="v % 2 = 1"),
}


def _state(connection: Any) -> dict[str, Any]:
    """Everything that a caller might find changed."""
    return {
        what: connection.execute(sql).fetchall()
        for what, sql in {
            "settings": "select name, value from duckdb_settings() order by name",
            "databases": "select database_name, path from duckdb_databases() order by 1",
            "tables": "select database_name, schema_name, table_name from duckdb_tables() order by all",
            "views": "select database_name, view_name from duckdb_views() order by all",
            "functions": "select distinct function_name from duckdb_functions() order by 1",
            "place": "select current_database(), current_schema(), current_setting('search_path')",
            "secrets": "select name from duckdb_secrets() order by 1",
        }.items()
    } | {"filesystems": sorted(connection.list_filesystems())}


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Any]:
    with duckdb.connect(str(tmp_path / "mine.duckdb")) as opened:
        opened.execute("create table kept as select 1 as one")
        opened.execute("create view seen as select * from kept")
        yield opened


@pytest.fixture
def root(tmp_path: Path, make_dataset: Any) -> Path:
    path: Path = make_dataset(tmp_path / "lake", TABLE, files=3)
    return path


@pytest.mark.parametrize("operation", OPERATIONS)
def test_nothing_of_the_connection_changes(connection, root, operation):
    before = _state(connection)
    OPERATIONS[operation](root, connection)
    gc.collect()
    assert _state(connection) == before
    assert connection.execute("select one from seen").fetchall() == [(1,)]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_odd_settings_stay_and_do_no_harm(connection, root, rows, operation):
    settings = {
        "preserve_insertion_order": "false",
        "default_null_order": "'nulls_first'",
        "default_order": "'desc'",
        "threads": "3",
        "memory_limit": "'500MB'",
        "TimeZone": "'Asia/Tokyo'",
        "integer_division": "true",
    }
    for name, value in settings.items():
        connection.execute(f"set {name} = {value}")
    before = _state(connection)
    result = OPERATIONS[operation](root, connection)
    assert _state(connection) == before
    if isinstance(result, it.MergeResult):
        assert len(rows(root)) == result.total


@pytest.mark.parametrize("operation", ["merge", "delete", "read"])
def test_a_transaction_that_is_open_stays_open(connection, root, operation):
    connection.execute("begin")
    connection.execute("insert into kept values (2)")
    OPERATIONS[operation](root, connection)
    connection.execute("rollback")
    assert connection.execute("select * from kept").fetchall() == [(1,)]


def test_a_result_that_is_being_fetched_goes_on(connection, root):
    connection.execute("select * from range(10)")
    assert connection.fetchone() == (0,)
    it.merge(SOURCE, root, on="id", engine=connection)
    assert connection.fetchall() == [(n,) for n in range(1, 10)]


def test_an_operation_that_fails_leaves_nothing_either(connection, root, unchanged):
    before = _state(connection)
    with unchanged(root), pytest.raises(KeyColumnError):
        it.merge(pa.concat_tables([SOURCE, SOURCE]), root, on="id", engine=connection)
    with unchanged(root), pytest.raises(IntarsiaError):
        it.update(root, {"v": "100 / (id - 7)"}, engine=connection)
    gc.collect()
    assert _state(connection) == before


def test_a_relation_of_the_connection_can_be_the_source(connection, root, rows):
    relation = connection.sql("select 5::bigint as id, 'x' as s, 1::bigint as v")
    result = it.merge(relation, root, on="id", engine=connection)
    assert (result.updated, result.engine) == (1, "duckdb")
    assert [row["s"] for row in rows(root) if row["id"] == 5] == ["x"]


@pytest.fixture
def store() -> Iterator[Any]:
    """Files that are in memory, which DuckDB reaches through a file system that is registered with it."""
    from fsspec.implementations.memory import MemoryFileSystem

    memory = MemoryFileSystem()
    memory.store.clear()
    yield memory
    memory.store.clear()


def test_a_file_system_that_is_not_duckdbs_own_goes_again(connection, store):
    before = _state(connection)
    at = {"filesystem": store, "single_writer": True}
    it.write(TABLE, "/lake", engine=connection, **at)
    assert it.merge(SOURCE, "/lake", on="id", engine=connection, **at).updated == 2
    assert it.delete("/lake", "v = 3", engine=connection, **at).deleted > 0
    assert it.deduplicate("/lake", on="s", order_by="id", engine=connection, **at).total == 9
    found = DuckDBDatasetIO(connection, store).read_parquet("/lake", filters="id > 10")
    assert found.num_rows == 7
    gc.collect()
    assert _state(connection) == before


def test_a_connection_that_is_closed_is_refused(root, unchanged):
    connection = duckdb.connect()
    connection.close()
    with unchanged(root), pytest.raises(InputError, match="connection"):
        it.merge(SOURCE, root, on="id", engine=connection)


def test_a_connection_that_may_not_read_files_is_refused(root, unchanged):
    with (
        duckdb.connect(config={"enable_external_access": "false"}) as connection,
        unchanged(root),
        pytest.raises(NotSupported, match="may not"),
    ):
        it.merge(SOURCE, root, on="id", engine=connection)


def test_the_module_is_no_engine(root):
    with pytest.raises(InputError, match="Unknown engine"):
        it.delete(root, "id = 1", engine=duckdb)


# Without a connection: an instance of its own, whose temporary files are below spool_dir.


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name not in ("read", "plan")])
def test_temporary_files_are_gone_after_success(root, tmp_path, operation):
    spool = tmp_path / "spool"
    spool.mkdir()
    base = {"engine": "duckdb", "spool_dir": spool}
    calls: dict[str, Callable[[], Any]] = {
        "merge": lambda: it.merge(SOURCE, root, on="id", **base),
        "full_merge": lambda: it.merge(SOURCE, root, on="id", strategy="full_merge", **base),
        "delete": lambda: it.delete(root, "v = 3", **base),
        "update": lambda: it.update(root, {"s": "s || '!'"}, "v < 3", **base),
        "write": lambda: it.write(SOURCE, root, **base),
        "compact": lambda: it.compact(root, **base),
        "optimize": lambda: it.optimize(root, by=["v", "s"], **base),
        "deduplicate": lambda: it.deduplicate(root, on="s", order_by="id", **base),
    }
    calls[operation]()
    assert list(spool.iterdir()) == []


def test_temporary_files_are_gone_after_an_error(root, tmp_path):
    spool = tmp_path / "spool"
    spool.mkdir()
    base = {"engine": "duckdb", "spool_dir": spool}
    with pytest.raises(KeyColumnError):
        it.merge(pa.concat_tables([SOURCE, SOURCE]), root, on="id", **base)
    with pytest.raises(IntarsiaError):
        it.update(root, {"v": "100 / (id - 7)"}, **base)
    with pytest.raises(IntarsiaError):
        DuckDBDatasetIO(spool_dir=spool).read_parquet(root, filters="100 / (id - 7) = 1")
    assert list(spool.iterdir()) == []


def test_what_a_dead_process_left_is_removed_by_the_next(root, tmp_path):
    spool = tmp_path / "spool"
    left = spool / ("0" * 32)
    left.mkdir(parents=True)
    (left / "duckdb_temp_storage_DEFAULT-0.tmp").write_bytes(b"x" * 100)
    (spool / f"{'0' * 32}.lock").touch()
    (spool / "other").mkdir()
    it.merge(SOURCE, root, on="id", engine="duckdb", spool_dir=spool)
    assert [path.name for path in spool.iterdir()] == ["other"]


def test_a_place_for_temporary_files_that_is_not_there_is_told(root, tmp_path, unchanged):
    with unchanged(root), pytest.raises(OSError, match="temporary files") as caught:
        it.delete(root, "id = 1", engine="duckdb", spool_dir=tmp_path / "none")
    assert "spool_dir" in str(caught.value)


# Names of files and columns are never read as anything else.


@pytest.mark.parametrize(
    "odd",
    ["a*b", "a?b", "[abc]", "it's", 'say "x"', "ä ö €", "{1,2}", "a;b -- c", "%41", "**", "a\\b", "#$&"],
)
def test_names_of_files_and_directories_stand_for_themselves(tmp_path, make_dataset, rows, odd):
    root = make_dataset(tmp_path / odd / "lake", TABLE.slice(0, 20), files=2)
    (root / "part-00001.parquet").rename(root / f"{odd}.parquet")
    # What a pattern or a quote would find instead.
    for name in ("ab", "axb", "a", "b", "1"):
        decoy = root.parent.parent / name / "lake"
        decoy.mkdir(parents=True, exist_ok=True)
        (decoy / f"{odd}.parquet").write_bytes(b"no Parquet")
    expected = [row | ({"s": "x"} if row["id"] in (5, 15) else {}) for row in rows(root)]
    source = pa.table({"id": [5, 15], "s": ["x", "x"], "v": [5 % 11, 15 % 11]})
    assert it.merge(source, root, on="id", engine="duckdb").updated == 2
    assert rows(root) == rows(expected)
    assert DuckDBDatasetIO().read_parquet(root).num_rows == 20
    assert it.delete(root, "id = 15", engine="duckdb").deleted == 1
    assert it.optimize(root, by=["v", "s"], engine="duckdb").total == 19


# Errors do not tell secrets.


SECRET = "hunter2hunter2"


def test_errors_of_duckdb_do_not_show_credentials():
    texts = (
        f"s3://AKIAEXAMPLE:{SECRET}@bucket/lake",
        f"https://host/x.parquet?X-Amz-Signature={SECRET}&x=1",
        f"secret_access_key: '{SECRET}'",
    )
    with duckdb.connect() as connection, Session(connection) as session:
        for said in texts:
            for run in (
                session.run,
                session.fetch_rows,
                session.fetch_arrow,
                lambda sql: list(session.read_batches(sql)),
            ):
                with pytest.raises(IntarsiaError) as caught:
                    run("SELECT error('" + said.replace("'", "''") + "')")
                assert SECRET not in f"{caught.value} {caught.value!r}"


def test_errors_of_a_store_that_duckdb_reads_do_not_show_credentials(store):
    it.write(TABLE, "/lake", filesystem=store, single_writer=True)
    with (
        _refused(f"denied: https://me:{SECRET}@store/x?sig={SECRET}"),
        pytest.raises(IntarsiaError) as caught,
    ):
        it.merge(SOURCE, "/lake", on="id", engine="duckdb", filesystem=store, single_writer=True)
    assert SECRET not in f"{caught.value} {caught.value!r} {caught.value.hint} {caught.value.path}"
    assert "denied" in str(caught.value)


@contextmanager
def _refused(said: str) -> Iterator[None]:
    """DuckDB may open nothing on a store; the store's error tells too much."""
    from intarsia.engines.duckdb import session

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, said)

    made = session.wrap_filesystem

    def refusing(filesystem: Any, protocol: str) -> Any:
        bridged = made(filesystem, protocol)
        type(bridged)._open = refuse
        return bridged

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "wrap_filesystem", refusing)
        yield


def test_the_engine_does_not_show_its_connection(tmp_path):
    from intarsia.engines.duckdb import DuckDBEngine

    with duckdb.connect() as connection:
        assert "DuckDBPyConnection" not in repr(DuckDBEngine(connection))


@pytest.mark.parametrize(
    ("said", "ours"),
    [("error('no more')", DamagedTable), ("CAST('x' || i AS INTEGER)", NotSupported)],
)
def test_an_error_late_in_a_result_is_told_as_one_at_its_beginning(said, ours):
    rows = 1_000_000
    sql = f"SELECT CASE WHEN i = {rows - 1} THEN {said} ELSE i END AS i FROM range({rows}) r(i)"
    with Session(threads=1) as session:
        with pytest.raises(ours):
            list(session.read_batches(sql, 2_048))
        with pytest.raises(ours):
            session.fetch_arrow(sql)
