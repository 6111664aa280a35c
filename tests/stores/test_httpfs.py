"""DuckDB reads S3 by its own extension httpfs where that is there; else through the registered file system.

The extension comes with a package for some versions of DuckDB (``make httpfs``), and is put where DuckDB
looks for what is installed; nothing is fetched.
"""

from __future__ import annotations

import gc
import importlib.util
import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stores_bucket import KEY, REGION, SECRET, s3
from stores_servers import LoggedServer, run_versitygw

import intarsia as it
from intarsia.engines.duckdb.engine import DuckDBEngine
from intarsia.engines.duckdb.session import Session
from intarsia.errors import IntarsiaError, StorageError
from intarsia.storage import ObjectStorage, trial

N = 60
PARTS = 3


@pytest.fixture
def extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The extension, installed for this process alone."""
    package = importlib.util.find_spec("duckdb_extension_httpfs")
    if package is None or package.origin is None:
        pytest.skip("duckdb-extension-httpfs is not installed: make httpfs")
    version = f"v{duckdb.__version__}"
    found = Path(package.origin).parent / "extensions" / version / "httpfs.duckdb_extension"
    if not found.exists():
        pytest.skip(f"duckdb-extension-httpfs is not for DuckDB {duckdb.__version__}")
    with duckdb.connect() as connection:
        platform = connection.execute("PRAGMA platform").fetchall()[0][0]
    place = tmp_path / "home" / ".duckdb" / "extensions" / version / platform
    place.mkdir(parents=True)
    (place / found.name).symlink_to(found)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return found


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoggedServer]:
    directory = tmp_path_factory.mktemp("logged")
    (directory / "data").mkdir()
    with run_versitygw(directory / "data", "--access-log", str(directory / "log")) as port:
        yield LoggedServer(port, directory / "log")


def open_library(library: str, port: int) -> Any:
    if library == "pyarrow":
        return s3(port)
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    return s3fs.S3FileSystem(
        key=KEY,
        secret=SECRET,
        endpoint_url=f"http://127.0.0.1:{port}",
        client_kwargs={"region_name": REGION},
        skip_instance_cache=True,
    )


class Lake:
    """A dataset of some files and partitions in a bucket of its own."""

    def __init__(self, server: LoggedServer, name: str, library: str = "pyarrow") -> None:
        s3(server.port, allow_bucket_creation=True).create_dir(name)
        trial.forget()
        self.server, self.bucket, self.root = server, name, f"{name}/lake/orders"
        self.filesystem = open_library(library, server.port)
        self.plain = s3(server.port)
        self.how: dict[str, Any] = {"filesystem": self.filesystem, "single_writer": True}
        it.write(orders(range(N)), self.root, partition_by="part", engine="arrow", **self.how)
        it.write(orders(range(N, N + 10)), self.root, engine="arrow", **self.how)

    def rows(self) -> list[tuple[Any, ...]]:
        found = it.snapshot(self.root, filesystem=self.plain).dataset().to_table().select(["id", "v", "w"])
        return sorted(tuple(row.values()) for row in found.to_pylist())

    def merge(self, engine: Any = "duckdb", **more: Any) -> Any:
        source = orders([3, 4, N + 100], v=7)
        return it.merge(source, self.root, on=["id", "part"], engine=engine, **{**self.how, **more})


def orders(numbers: Any, v: int = 0) -> pa.Table:
    numbers = list(numbers)
    return pa.table(
        {
            "id": numbers,
            "part": [n % PARTS for n in numbers],
            "v": [v] * len(numbers),
            "w": [f"w{n}" for n in numbers],
        }
    )


_MADE = iter(range(10_000))


@pytest.fixture(params=["pyarrow", "s3fs"])
def lake(request: pytest.FixtureRequest, logged: LoggedServer) -> Lake:
    return Lake(logged, f"httpfs-{next(_MADE)}", request.param)


@pytest.fixture
def one_lake(logged: LoggedServer) -> Lake:
    return Lake(logged, f"httpfs-{next(_MADE)}")


@pytest.fixture
def connection(extension: Path) -> Iterator[Any]:
    """A connection of the caller's, with httpfs loaded."""
    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as opened:
        opened.execute("LOAD httpfs")
        yield opened


@pytest.fixture
def engine(request: pytest.FixtureRequest, extension: Path) -> Any:
    """An instance of our own, or a connection of the caller's."""
    return "duckdb" if request.param == "own" else request.getfixturevalue("connection")


BOTH = pytest.mark.parametrize("engine", ["own", "given"], indirect=True)
OPERATIONS = {
    "merge": lambda root, how: it.merge(orders([3, 4, N + 100], v=7), root, on=["id", "part"], **how),
    "full_merge": lambda root, how: it.merge(
        orders(range(20, 90), v=7), root, on=["id", "part"], strategy="full_merge", **how
    ),
    "delete": lambda root, how: it.delete(root, "id % 7 = 3 and w <> 'w10'", **how),
    "update": lambda root, how: it.update(root, {"v": "v + 5"}, "id < 20", **how),
    "deduplicate": lambda root, how: it.deduplicate(root, on=["part"], order_by=["id"], **how),
    "compact": lambda root, how: it.compact(root, **how),
    "optimize": lambda root, how: it.optimize(root, by=["v", "id"], **how),
}
NATIVE = {name: name != "compact" for name in OPERATIONS}
"""Compacting copies bytes, and DuckDB reads nothing for it."""


@BOTH
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_do_the_same_and_count_every_request(lake: Lake, engine: Any, operation: str) -> None:
    other = Lake(lake.server, f"httpfs-{next(_MADE)}")
    OPERATIONS[operation](other.root, {**other.how, "engine": "arrow"})
    before, agents = lake.server.count(), count_native(lake.server)
    result = OPERATIONS[operation](lake.root, {**lake.how, "engine": engine})
    sent = dict(result.requests)
    sent["PUT"] += sent.pop("COPY")
    answered = lake.server.count() - before
    assert (count_native(lake.server) > agents) is NATIVE[operation]
    assert {kind: count for kind, count in sent.items() if count} == dict(answered)
    assert lake.rows() == other.rows()


def count_native(server: LoggedServer) -> int:
    """The requests that DuckDB has sent by itself."""
    return server.log.read_text(errors="replace").count(" duckdb/v")


def test_it_takes_fewer_requests_than_the_registered_file_system(
    one_lake: Lake, extension: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete() -> Any:
        return it.delete(one_lake.root, "w = 'w8'", engine="duckdb", dry_run=True, **one_lake.how)

    native = delete().requests
    monkeypatch.setenv("HOME", "/nonexistent")
    other = delete().requests
    assert native.total < other.total


# What an instance of our own reaches.


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Session]]:
    """The sessions of operations, which stay open until the test is over."""
    found: list[Session] = []
    honest = Session.restrict

    def restrict(self: Session, directories: Any = ()) -> None:
        honest(self, directories)
        found.append(self)

    monkeypatch.setattr(Session, "restrict", restrict)
    with monkeypatch.context() as patched:
        patched.setattr(Session, "close", lambda _: None)
        yield found
    for session in dict.fromkeys(found):
        session.close()


def test_an_instance_of_our_own_reaches_the_planned_files_only(
    one_lake: Lake, extension: Path, seen: list[Session]
) -> None:
    bucket, root = one_lake.bucket, one_lake.root
    one_lake.merge()
    for path in (f"{bucket}/lake/other.parquet", f"{root}2/a.parquet", f"{root}/unplanned.parquet"):
        with one_lake.plain.open_output_stream(path) as stream:
            pq.write_table(orders([1]), stream)
    session, host = seen[0], f"127.0.0.1:{one_lake.server.port}"
    planned = sorted(session._native.locations)[0]
    assert session.fetch_rows(f"SELECT count(*) FROM read_parquet('s3://{planned}')")[0][0] > 0
    answered = one_lake.server.count()
    for sql in (
        f"SELECT * FROM read_parquet('s3://{bucket}/lake/other.parquet')",
        f"SELECT * FROM read_parquet('s3://{root}/../other.parquet')",
        f"SELECT * FROM read_parquet('s3://{root}2/a.parquet')",
        f"SELECT * FROM read_parquet('s3://{root}/unplanned.parquet')",
        f"SELECT * FROM read_parquet('s3://{root}/*/*.parquet')",
        f"SELECT * FROM glob('s3://{bucket}/*')",
        f"SELECT * FROM read_parquet('s3://{planned}?s3_endpoint={host}')",
        f"SELECT * FROM read_parquet('s3a://{planned}')",
        f"SELECT * FROM read_parquet('http://{host}/{planned}')",
        f"SELECT * FROM read_text('http://{host}/')",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM duckdb_secrets(redact = false)",
        f"COPY (SELECT 1 AS id) TO 's3://{planned}'",
        f"COPY (SELECT 1 AS id) TO 's3://{root}/new.parquet'",
        f"ATTACH 's3://{bucket}/lake/stolen.db'",
        f"CREATE SECRET mine (TYPE s3, KEY_ID 'a', SECRET 'b', SCOPE 's3://{planned}', ENDPOINT '{host}')",
        f"SELECT 1; CREATE SECRET mine (TYPE s3, KEY_ID 'a', SECRET 'b', ENDPOINT '{host}')",
        "CREATE OR REPLACE TABLE x AS SELECT 1; DROP SECRET mine",
        "CREATE TEMPORARY SECRET mine (TYPE http, HTTP_PROXY '127.0.0.1:1')",
        f"DROP SECRET {session._native.secret}",
        "INSTALL json",
        "SET s3_endpoint = '127.0.0.1:1'",
        "SET http_proxy = '127.0.0.1:1'",
        "SET enable_external_access = true",
        "SET allowed_paths = ['/etc/hostname']",
    ):
        with pytest.raises(IntarsiaError):
            session.run(sql)
    assert one_lake.server.count() == answered, "nothing was sent"
    assert SECRET not in str(session.fetch_rows("SELECT * FROM duckdb_secrets()"))


# A connection of the caller's.


def state(connection: Any) -> dict[str, Any]:
    return {
        what: connection.execute(sql).fetchall()
        for what, sql in {
            "settings": "select name, value from duckdb_settings() order by name",
            "secrets": "select name from duckdb_secrets() order by 1",
            "databases": "select database_name, path from duckdb_databases() order by 1",
            "functions": "select distinct function_name from duckdb_functions() order by 1",
            "extensions": "select extension_name, loaded from duckdb_extensions() order by 1",
        }.items()
    } | {"filesystems": sorted(connection.list_filesystems())}


def test_nothing_of_ours_stays_in_a_connection_of_the_callers(one_lake: Lake, connection: Any) -> None:
    before, native = state(connection), count_native(one_lake.server)
    one_lake.merge(connection)
    gc.collect()
    assert count_native(one_lake.server) > native
    assert state(connection) == before


def test_nothing_of_ours_stays_after_an_error(
    one_lake: Lake, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        assert connection.execute("select count(*) from duckdb_secrets()").fetchall() == [(1,)]
        raise OSError("no more")

    before = state(connection)
    monkeypatch.setattr(DuckDBEngine, "_match", fail)
    with pytest.raises(OSError, match="no more"):
        one_lake.merge(connection)
    gc.collect()
    assert state(connection) == before


def test_httpfs_is_not_loaded_into_a_connection_of_the_callers(one_lake: Lake, extension: Path) -> None:
    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as opened:
        before, native = state(opened), count_native(one_lake.server)
        assert one_lake.merge(opened).updated == 2
        assert state(opened) == before
    assert count_native(one_lake.server) == native


@pytest.mark.parametrize(
    "setting",
    [
        "SET GLOBAL enable_http_metadata_cache = true",
        "SET GLOBAL parquet_metadata_cache = true",
        "SET GLOBAL validate_external_file_cache = 'NO_VALIDATION'",
        "SET GLOBAL unsafe_disable_etag_checks = true",
        "SET lock_configuration = true",
        "CREATE SECRET theirs (TYPE s3, KEY_ID 'a', SECRET 'b', SCOPE 's3://{root}/part=1')",
        "CREATE SECRET theirs (TYPE s3, KEY_ID 'a', SECRET 'b', SCOPE 's3://{root}/')",
    ],
)
def test_a_connection_that_might_read_something_else_reads_through_the_file_system(
    one_lake: Lake, connection: Any, setting: str
) -> None:
    connection.execute(setting.format(root=one_lake.root))
    before, native = state(connection), count_native(one_lake.server)
    assert one_lake.merge(connection).updated == 2
    assert count_native(one_lake.server) == native
    assert state(connection) == before


def test_settings_of_a_connection_do_not_take_the_place_of_credentials(
    one_lake: Lake, connection: Any
) -> None:
    for name, value in {
        "s3_access_key_id": "theirs",
        "s3_secret_access_key": "theirs",
        "s3_session_token": "theirs",
        "s3_endpoint": "127.0.0.1:1",
        "s3_region": "eu-central-1",
        "s3_url_compatibility_mode": True,
    }.items():
        connection.execute(f"SET GLOBAL {name} = {value!r}")
    native = count_native(one_lake.server)
    connection.execute("CREATE SECRET wide (TYPE s3, KEY_ID 'a', SECRET 'b', ENDPOINT '127.0.0.1:1')")
    assert one_lake.merge(connection).updated == 2
    assert count_native(one_lake.server) > native


# What else must hold.


@BOTH
def test_a_file_that_is_replaced_between_listing_and_reading_is_noticed(
    one_lake: Lake, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_lake.merge(engine, dry_run=True)  # what DuckDB may keep of files is of before
    honest, times = DuckDBEngine._match, []

    def match(self: DuckDBEngine, execution: Any, session: Session) -> Any:
        if not times:
            times.append(1)
            file = execution.plan.select("scan")[0].file.location
            table = pq.read_table(file, filesystem=one_lake.plain, partitioning=None)
            with one_lake.plain.open_output_stream(file) as stream:
                pq.write_table(table.take(list(range(len(table)))[::-1]), stream)
        assert session._native is not None
        return honest(self, execution, session)

    monkeypatch.setattr(DuckDBEngine, "_match", match)
    result = one_lake.merge(engine)
    assert (result.attempts, result.updated) == (2, 2)
    assert [row for row in one_lake.rows() if row[1]] == [
        (3, 7, "w3"),
        (4, 7, "w4"),
        (N + 100, 7, f"w{N + 100}"),
    ]
    assert len(one_lake.rows()) == N + 11


def refuse_in_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB is given another secret than that of the file system."""
    honest = ObjectStorage.find_access

    def find_access(self: ObjectStorage) -> Any:
        found = honest(self)
        return None if found is None else replace(found, secret="NotTheSecretOfTests")

    monkeypatch.setattr(ObjectStorage, "find_access", find_access)


@BOTH
def test_a_refusal_is_a_storage_error_that_names_both_places(
    one_lake: Lake, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_in_duckdb(monkeypatch)
    before = one_lake.rows()
    with pytest.raises(StorageError, match=r"httpfs is refused.*40[03]") as caught:
        one_lake.merge(engine)
    error = caught.value
    assert error.errno == 13
    assert "filesystem= or storage_options=" in error.hint
    assert "CREATE SECRET" in error.hint
    assert "NotTheSecretOfTests" not in f"{error} {error!r} {error.hint} {error.__cause__}"
    assert one_lake.rows() == before


@BOTH
def test_an_object_that_is_gone_is_not_found(one_lake: Lake, engine: Any) -> None:
    snapshot = it.snapshot(one_lake.root, filesystem=one_lake.filesystem)
    gone = snapshot.files[0].location
    with Session(None if engine == "duckdb" else engine) as session:
        session.use_httpfs(snapshot.filesystem, snapshot.find_access, {gone: one_lake.root})
        session.restrict()
        one_lake.plain.delete_file(gone)
        address = session.quote_location(snapshot.filesystem, gone)
        assert address == f"'s3://{gone}'"
        with pytest.raises(StorageError) as caught:
            session.fetch_rows(f"SELECT * FROM read_parquet({address})")
        assert caught.value.errno == 2


@BOTH
def test_names_that_httpfs_would_not_take_literally_are_read_through_the_file_system(
    logged: LoggedServer, engine: Any
) -> None:
    lake = Lake(logged, f"httpfs-{next(_MADE)}")
    root = f"{lake.bucket}/odd"
    odd = ["a b", "a?b", "a*b", "a[b]", "ä", "a+b", "a%20b", "a#b", "a&b", "c'd"]
    rows = pa.table({"id": range(len(odd)), "name": odd, "v": [0] * len(odd)})
    it.write(rows, root, partition_by="name", engine="arrow", **lake.how)
    native = count_native(logged)
    result = it.merge(
        rows.set_column(2, "v", pa.array([1] * len(odd))), root, on="id", engine=engine, **lake.how
    )
    assert (result.updated, result.inserted) == (len(odd), 0)
    assert count_native(logged) > native
    assert it.snapshot(root, filesystem=lake.plain).dataset().to_table()["v"].to_pylist() == [1] * len(odd)


@BOTH
def test_an_iceberg_table_is_read_by_httpfs(logged: LoggedServer, engine: Any, tmp_path: Path) -> None:
    sql = pytest.importorskip("pyiceberg.catalog.sql", reason="PyIceberg is not installed")
    bucket = f"httpfs-{next(_MADE)}"
    s3(logged.port, allow_bucket_creation=True).create_dir(bucket)
    properties = {
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{bucket}/warehouse",
        "s3.endpoint": f"http://127.0.0.1:{logged.port}",
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "s3.region": REGION,
    }
    with closing(sql.SqlCatalog("lake", **properties)) as catalog:
        catalog.create_namespace("db")
        catalog.create_table("db.orders", orders([1]).schema)
        target = it.iceberg("db.orders", catalog=catalog)
        it.write(orders(range(N)), target, engine="arrow")
        native = count_native(logged)
        assert it.merge(orders([3, 4, 100], v=7), target, on="id", engine=engine).updated == 2
        assert count_native(logged) > native
        read = catalog.load_table("db.orders").scan(row_filter="v = 7").to_arrow()
        assert sorted(read["id"].to_pylist()) == [3, 4, 100]


def test_no_secret_is_in_statements_logs_or_errors(
    one_lake: Lake, connection: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    connection.execute("CALL enable_logging(['QueryLog'])")
    result = one_lake.merge(connection)
    said = str(connection.execute("SELECT message FROM duckdb_logs WHERE type = 'QueryLog'").fetchall())
    assert "CREATE OR REPLACE TEMPORARY SECRET" in said
    shown = f"{said} {result!r} {result.plan!r} {result._repr_html_()}"
    shown += "".join(record.getMessage() for record in caplog.records if record.name.startswith("intarsia"))
    assert SECRET not in shown
    assert KEY not in shown


def test_two_operations_at_once_on_one_connection_are_right(one_lake: Lake, connection: Any) -> None:
    """The second finds a secret for the same files that is not its own, and does without httpfs."""
    with Session(connection) as first:
        plan = it.plan(it.delete, one_lake.root, "w = 'w3'", engine=connection, **one_lake.how)
        places = {item.file.location: one_lake.root for item in plan.files}
        snapshot = plan.snapshot
        first.use_httpfs(snapshot.filesystem, snapshot.find_access, places)
        assert first._native is not None
        assert one_lake.merge(connection).updated == 2
        assert first._native is not None
    assert connection.execute("select count(*) from duckdb_secrets()").fetchall() == [(0,)]
