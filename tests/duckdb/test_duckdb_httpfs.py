"""How DuckDB is told to read S3 by its extension httpfs, and when it is not; without the extension."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.fs as pafs
import pytest

from intarsia.common.requests import RequestCounter, count_filesystem
from intarsia.common.store_access import S3Access
from intarsia.engines.duckdb import httpfs
from intarsia.engines.duckdb.errors import translate_errors, translate_stream_errors
from intarsia.engines.duckdb.session import Session
from intarsia.errors import IntarsiaError, NotSupported, StorageError

ACCESS = S3Access("127.0.0.1:9000", "us-east-1", False, True, "theKey", "the'Secret", "theToken")


class Recorder:
    """A connection that keeps what it is told, and answers what it was given."""

    def __init__(self, *answers: list[tuple[Any, ...]], error: duckdb.Error | None = None) -> None:
        self.said: list[tuple[str, Any]] = []
        self.answers, self.error = list(answers), error

    def execute(self, sql: str, values: Any = None) -> Recorder:
        self.said.append((sql, values))
        if self.error is not None:
            raise self.error
        return self

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self.answers.pop(0)


def test_a_secret_is_temporary_and_its_values_are_bound() -> None:
    recorder = Recorder()
    assert httpfs.create_secret(recorder, "mine", ACCESS, ["bucket/lake/orders"])
    ((sql, values),) = recorder.said
    assert sql.startswith(
        'CREATE OR REPLACE TEMPORARY SECRET "mine" (TYPE s3, PROVIDER config, KEY_ID $key_id'
    )
    assert not [one for one in ("theKey", "the'Secret", "theToken", "127.0.0.1") if one in sql]
    assert values == {
        "key_id": "theKey",
        "secret": "the'Secret",
        "session_token": "theToken",
        "region": "us-east-1",
        "endpoint": "127.0.0.1:9000",
        "use_ssl": False,
        "url_style": "path",
        "url_compatibility_mode": False,
        "scope": ["s3://bucket/lake/orders/"],
    }


def test_a_version_that_knows_other_options_is_done_without() -> None:
    refused = Recorder(error=duckdb.BinderException("Unknown parameter"))
    assert not httpfs.create_secret(refused, "mine", ACCESS, ["bucket/lake"])


@pytest.mark.parametrize(
    ("found", "own", "loaded"),
    [
        ([(True, True)], False, True),
        ([(False, True)], False, False),
        ([(False, True)], True, True),
        ([(False, False)], True, False),
        ([], True, False),
    ],
)
def test_httpfs_is_loaded_where_it_is_installed_and_only_into_an_instance_of_our_own(
    found: list[tuple[bool, bool]], own: bool, loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(httpfs, "_UNTRIED", False)
    recorder = Recorder(found)
    assert httpfs.load_httpfs(recorder, own=own) is loaded
    assert [sql for sql, _ in recorder.said[1:]] == (
        ["LOAD httpfs"] if own and found == [(False, True)] else []
    )
    assert not any("INSTALL " in sql for sql, _ in recorder.said)


def test_an_extension_that_cannot_be_loaded_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpfs, "_UNTRIED", False)
    assert not httpfs.load_httpfs(Recorder(error=duckdb.IOException("made for another version")), own=True)


def test_an_extension_that_was_not_tried_must_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpfs, "_UNTRIED", True)
    assert not httpfs.load_httpfs(Recorder([(True, True)]), own=True)
    monkeypatch.setenv("INTARSIA_UNTRIED_HTTPFS", "1")
    assert httpfs.load_httpfs(Recorder([(True, True)]), own=True)


@pytest.mark.parametrize(
    ("scope", "other"),
    [
        ("s3://bucket/lake/orders/", True),
        ("s3://bucket/lake/orders/day=1", True),
        ("s3://bucket/lake/orders2", False),
        ("s3://bucket/lake", False),
        ("s3://", False),
    ],
)
def test_a_secret_that_would_be_taken_before_ours_is_found(scope: str, other: bool) -> None:
    for name in ("mine", "theirs"):
        recorder = Recorder([("mine", ["s3://bucket/lake/orders/"]), (name, [scope]), ("http", [])])
        found = httpfs.has_other_secret(recorder, "mine", ["bucket/lake/orders"])
        assert found is (other and name == "theirs")


@pytest.mark.parametrize(
    ("location", "plain"),
    [
        ("bucket/lake/orders/day=2025-01-01/part-0.parquet", True),
        ("bucket/lake/.orders.intarsia/tx/a.parquet", True),
        ("bucket/a b/ä%20+,:@~.parquet", True),
        ("bucket/a/../b.parquet", False),
        ("bucket/./b.parquet", False),
        ("bucket//b.parquet", False),
        ("bucket/a?s3_endpoint=host", False),
        *((f"bucket/a{one}b", False) for one in "*[]{}?#&'\"\\\n\0<>|^`"),
        ("bucket", False),
    ],
)
def test_names_that_httpfs_takes_literally(location: str, plain: bool) -> None:
    assert httpfs.is_plain(location) is plain


@pytest.mark.parametrize(
    ("name", "value"),
    [("parquet_metadata_cache", True), ("validate_external_file_cache", "NO_VALIDATION")],
)
def test_settings_by_which_something_old_could_be_read_are_found(name: str, value: Any) -> None:
    with duckdb.connect() as connection:
        assert httpfs.has_safe_settings(connection)
        connection.execute(f"SET GLOBAL {name} = {value!r}")
        assert not httpfs.has_safe_settings(connection)


def test_a_connection_whose_settings_are_locked_is_found() -> None:
    with duckdb.connect() as connection:
        connection.execute("SET lock_configuration = true")
        assert not httpfs.has_safe_settings(connection)


def test_without_httpfs_credentials_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")

    def find_access() -> S3Access:
        raise AssertionError("not asked for")

    filesystem = pafs.LocalFileSystem()
    with Session() as session:
        session.use_httpfs(filesystem, find_access, {"bucket/lake/a.parquet": "bucket/lake"})
        session.use_httpfs(filesystem, None, {"bucket/lake/a.parquet": "bucket/lake"})
        session.restrict()
        assert "s3://" not in session.quote_location(
            pafs.SubTreeFileSystem("/", filesystem), "bucket/lake/a.parquet"
        )


@pytest.fixture
def selecting() -> Iterator[Session]:
    """A session as it is where httpfs is loaded into an instance of our own."""
    with Session() as session:
        session._selects_only = True
        yield session


def test_queries_and_tables_of_our_own_are_run(selecting: Session) -> None:
    selecting.run(f"CREATE OR REPLACE TABLE {selecting.name_table('t')} AS SELECT 1 AS a")
    assert selecting.fetch_rows(f"FROM {selecting.name_table('t')}") == [(1,)]
    assert selecting.fetch_arrow("WITH x AS (SELECT 2 AS a) SELECT * FROM x").num_rows == 1
    with selecting.fork() as other:
        assert other.fetch_rows("SELECT 3") == [(3,)]
        with pytest.raises(NotSupported):
            other.run("SET threads = 1")


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TEMPORARY SECRET x (TYPE http)",
        "CREATE OR REPLACE TABLE x AS SELECT 1; DROP TABLE x",
        "SELECT 1; SET threads = 1",
        "COPY (SELECT 1) TO 'x.csv'",
        "DROP SECRET x",
        "SET threads = 1",
        "ATTACH ':memory:' AS x",
        "LOAD json",
        "CREATE MACRO f() AS 1",
        "PREPARE p AS SELECT 1",
        "CALL pragma_version()",
        "",
        "no SQL",
    ],
)
def test_other_statements_are_refused(selecting: Session, sql: str) -> None:
    for run in (selecting.run, selecting.fetch_rows, selecting.fetch_arrow, selecting.open_reader):
        with pytest.raises(IntarsiaError):
            run(sql)


def test_requests_are_those_of_duckdbs_profile(tmp_path: Path) -> None:
    counter = RequestCounter()
    filesystem = count_filesystem(pafs.LocalFileSystem(), counter)
    with duckdb.connect() as connection:
        report = httpfs.RequestReport(connection, str(tmp_path))
        connection.execute("SELECT 'HTTPFS HTTP Stats' || '\n#GET: 7\n' AS \"│ #GET: 7 │\"").fetchall()
        (path,) = tmp_path.iterdir()
        said = path.read_text()
        report.count(filesystem)
        assert counter.requests.total == 0, "it is what the statement says"
        lines = ("HTTPFS HTTP Stats", "#HEAD: 3", "#GET: 12", "#PUT: 0", "#POST: 1")
        path.write_text("\n".join([said, *(f"││   {line}   ││" for line in lines)]))
        report.count(filesystem)
        report.count(filesystem)
    assert {kind: n for kind, n in counter.requests.items() if n} == {"HEAD": 3, "GET": 12, "PUT": 1}
    assert not list(tmp_path.iterdir())


SAID = "HTTP Error: HTTP GET error on 'http://127.0.0.1/b/a.parquet?X-Amz-Signature=abc' (HTTP {status})"


@pytest.mark.parametrize(
    ("status", "number"),
    [("403 Forbidden", 13), ("401 Unauthorized", 13), ("404 Not Found", 2), ("500 Oh", None)],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_httpfs_says_is_a_storage_error(status: str, number: int | None, stream: bool) -> None:
    said = SAID.format(status=status)
    error: Exception = OSError(said) if stream else duckdb.HTTPException(said)
    with pytest.raises(StorageError) as caught, translate_stream_errors() if stream else translate_errors():
        raise error
    assert caught.value.errno == number
    assert "abc" not in str(caught.value)
    if number == 13:
        assert "filesystem= or storage_options=" in str(caught.value.hint)
        assert "CREATE SECRET" in str(caught.value.hint)
