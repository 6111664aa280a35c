"""DuckDB for one operation: a cursor, a database for its tables, and DuckDB's errors translated."""

from __future__ import annotations

import os
import re
import threading
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.fs as pafs

from intarsia.common.paths import get_local_path
from intarsia.common.requests import count_reads
from intarsia.common.scratch import Mark, make_private_base, mark, remove_directory, sweep
from intarsia.common.store_access import FindAccess
from intarsia.engines.duckdb import httpfs
from intarsia.engines.duckdb.errors import translate_errors, translate_stream_errors
from intarsia.engines.duckdb.sql import quote, quote_list, quote_path, quote_text
from intarsia.errors import NotSupported, StorageError

BATCH_ROWS = 1 << 18
_TABLE = "table"
"""The directory of a file system that DuckDB is given; what has none cannot be allowed."""
_TAKES_PROTOCOLS_FOR_PATHS = int(duckdb.__version__.partition(".")[0]) < 2
"""Whether an address in ``allowed_directories`` is changed as if it were a path: 1.5 does so."""
_KEPT_FILESYSTEMS = 16
"""As many may come after an instance was restricted; a plan has the table's one."""
LEAST_BYTES = 128 << 20
"""Of an instance: what DuckDB needs for few rows, such as between 24 and 64 MiB to sort by a curve, twice."""


class Session:
    """Runs SQL; its tables are in a database of its own, which is removed when the session is closed.

    On the caller's connection it works beside it: through a cursor, in a database attached under a name
    of its own; no setting is touched, and a transaction that is open there stays as it is. Without one it
    makes an instance of its own, limited to ``memory_bytes`` (at least LEAST_BYTES), whose temporary files
    lie below ``temp_directory``.
    """

    def __init__(
        self,
        connection: Any = None,
        *,
        memory_bytes: int | None = None,
        threads: int | None = None,
        temp_directory: str | None = None,
    ) -> None:
        self._temporary: tuple[str, Mark] | None = None
        self._own: Any = None
        self._cursor: Any = None
        self._collation: str | None = None
        self._filesystems: dict[int, tuple[str, Any]] = {}
        self._guard = threading.Lock()
        self._closed = False
        self._restricted = False
        self._native: httpfs.HttpfsFiles | None = None
        """Files that DuckDB reads without the file system, by httpfs."""
        self._report: httpfs.RequestReport | None = None
        self._spare: list[tuple[Any, httpfs.RequestReport]] = []
        """Cursors for forks, made before an instance was restricted: they can be set up no more after it."""
        self._selects_only = False
        self._named: set[str] = set()
        """Local directories of files that were to be read."""
        self._protocols = [f"intarsia{uuid.uuid4().hex}" for _ in range(_KEPT_FILESYSTEMS)]
        self._database = f"intarsia_{uuid.uuid4().hex}"
        try:
            if connection is None:
                connection = self._own = self._open_instance(memory_bytes, threads, temp_directory)
            self._collation = _read_collation(connection)
            self._cursor = _open_cursor(connection, self._collation)
            self.run(f"ATTACH ':memory:' AS {quote(self._database)}")
        except BaseException:
            self.close()
            raise

    def _open_instance(self, memory_bytes: int | None, threads: int | None, directory: str | None) -> Any:
        self._temporary = _make_temporary_directory(directory)
        config: dict[str, Any] = {
            "temp_directory": self._temporary[0],
            "autoinstall_known_extensions": "false",
            "allow_persistent_secrets": "false",
            "preserve_insertion_order": "true",
        }
        if memory_bytes is not None:
            config["memory_limit"] = f"{max(memory_bytes, LEAST_BYTES) // 1024}KiB"
        else:  # releasing memory after every file and allocating it again costs time
            config |= {
                "allocator_flush_threshold": "4GB",
                "allocator_bulk_deallocation_flush_threshold": "4GB",
            }
        if threads:
            config["threads"] = threads
        with translate_errors():
            opened = duckdb.connect(":memory:", config=config)
        with suppress(duckdb.Error):  # built without zones, it has no such setting
            opened.execute(
                "SET GLOBAL TimeZone = 'UTC'"
            )  # not the machine's: days begin in UTC on every engine
        return opened

    def restrict(self, directories: Iterable[str] = ()) -> None:
        """Let an instance of our own reach nothing but some local directories and the table's file system.

        Those given, and those of the files that were named so far. To be called before a file is read; from
        then on nothing of it can be changed. Idempotent. On the caller's connection nothing is done: its
        settings are the caller's.
        """
        if self._own is None or self._restricted:
            return
        places = [_name_place(protocol) for protocol in self._protocols]
        reached = [*directories, *self._named, *places]
        allowed = {sql for place in reached for sql in (quote_text(place), quote_path(place))}
        with translate_errors():
            with _hold_protocols(self._own, self._protocols if _TAKES_PROTOCOLS_FOR_PATHS else ()):
                self._own.execute(f"SET allowed_directories = {quote_list(sorted(allowed))}")
            if self._native is not None:
                # Each by its name: below a directory httpfs would take "..", and another server in a "?".
                urls = (quote_text(httpfs.make_url(one)) for one in sorted(self._native.locations))
                self._own.execute(f"SET allowed_paths = {quote_list(urls)}")
                self._selects_only = True
            self._own.execute("SET enable_external_access = false")
            self._own.execute("SET lock_configuration = true")
        self._restricted = True

    def use_httpfs(
        self, filesystem: pafs.FileSystem, find_access: FindAccess | None, places: Mapping[str, str]
    ) -> None:
        """Have files of S3 be read by DuckDB's extension httpfs, where it is there and can be told how.

        Else they are read through the file system, as files whose names httpfs would not take literally are.
        To be called before :meth:`restrict`; called again, it renews the credentials.

        Args:
            filesystem: that of the table.
            find_access: how its files are reached.
            places: the locations of the files, each with the directory of the table that it is in.
        """
        if find_access is None:
            return
        connection, known = self._own or self._cursor, self._native
        with translate_errors():
            plain = {place for place in places if httpfs.is_plain(place)}
            if self._restricted and self._own is not None:
                plain &= set() if known is None else known.locations
            usable = plain and (known is not None or self._has_httpfs(connection))
            access = find_access() if usable else None
            if access is None:
                self._forget_native()
                return
            name = self._database if known is None else known.secret
            directories = sorted({places[place] for place in plain})
            made = httpfs.create_secret(connection, name, access, directories)
            self._native = httpfs.HttpfsFiles(filesystem, name, frozenset(plain))
            if not made or httpfs.has_other_secret(connection, name, directories):
                self._forget_native()
                return
            self._start_reports()

    def _has_httpfs(self, connection: Any) -> bool:
        return httpfs.load_httpfs(connection, own=self._own is not None) and httpfs.has_safe_settings(
            connection
        )

    def _forget_native(self) -> None:
        if self._native is not None:
            httpfs.drop_secret(self._own or self._cursor, self._native.secret)
            self._native = None

    def _start_reports(self) -> None:
        """Have DuckDB tell what statements send, of this cursor and of those for forks."""
        if self._report is not None:
            return
        if self._temporary is None:
            self._temporary = _make_temporary_directory(None)
        directory = self._temporary[0]
        self._report = httpfs.RequestReport(self._cursor, directory)
        if self._own is not None:
            for _ in range(self.threads + 1):
                cursor = _open_cursor(self._cursor, self._collation)
                self._spare.append((cursor, httpfs.RequestReport(cursor, directory)))

    def _count_requests(self) -> None:
        """Count what the last statement has sent, all of whose rows were fetched."""
        if self._report is not None and self._native is not None:
            self._report.count(self._native.filesystem)

    def _check_statement(self, sql: str) -> None:
        """Refuse all but queries, and tables of our own, where httpfs is loaded: locked settings do not do.

        A secret could still be created, with which the same names are read from another server.
        """
        if not self._selects_only:
            return
        with translate_errors():
            found = duckdb.extract_statements(sql)
        kinds = [each.type for each in found]
        makes_table = kinds == [duckdb.StatementType.CREATE] and sql.startswith("CREATE OR REPLACE TABLE ")
        if kinds != [duckdb.StatementType.SELECT] and not makes_table:
            raise NotSupported("Here DuckDB only queries: this statement is something else.")

    @property
    def restricted(self) -> bool:
        """Whether the files that it reaches are settled."""
        return self._restricted

    @property
    def connection(self) -> Any:
        """The connection of the session's own instance; None on the caller's."""
        return self._own

    @property
    def threads(self) -> int:
        """How many threads DuckDB works with."""
        return int(self.fetch_rows("SELECT current_setting('threads')::BIGINT")[0][0])

    def name_table(self, table: str) -> str:
        """The full name of a table of this session."""
        return f"{quote(self._database)}.main.{quote(table)}"

    def run(self, sql: str) -> None:
        self._check_statement(sql)
        with translate_errors():
            self._cursor.execute(sql)
        self._count_requests()

    def fetch_rows(self, sql: str) -> list[tuple[Any, ...]]:
        """A small result."""
        self._check_statement(sql)
        with translate_errors():
            found: list[tuple[Any, ...]] = self._cursor.execute(sql).fetchall()
        self._count_requests()
        return found

    def fetch_arrow(self, sql: str) -> pa.Table:
        """A result as an Arrow table."""
        with self.open_reader(sql) as reader, translate_stream_errors():
            found = reader.read_all()
        self._count_requests()
        return found

    def open_reader(
        self,
        sql: str,
        batch_rows: int = BATCH_ROWS,
        *,
        params: dict[str, Any] | None = None,
        project: Callable[[Mapping[str, str]], str | None] | None = None,
    ) -> pa.RecordBatchReader:
        """A result as batches; the session runs nothing else until all are read.

        ``project`` is given the types of its columns by name, and says what to select of them; None is all.
        """
        self._check_statement(sql)
        with translate_errors():
            if params:
                result = self._cursor.sql(sql, params=params)
            else:
                result = self._cursor.sql(sql) if hasattr(self._cursor, "sql") else self._cursor.execute(sql)
            if project is not None:
                kinds = {one[0]: str(one[1]) for one in result.description}
                result = result if (chosen := project(kinds)) is None else result.project(chosen)
            make = getattr(result, "to_arrow_reader", None) or result.fetch_arrow_reader
            return make(batch_rows)

    def explain(self, sql: str, params: Mapping[str, Any] | None = None) -> None:
        """Let DuckDB plan a query, whose error then has the line, which those of relations lack."""
        with translate_errors():
            self._cursor.execute(f"EXPLAIN {sql}", params)

    def read_batches(self, sql: str, batch_rows: int = BATCH_ROWS) -> Generator[pa.RecordBatch, None, None]:
        """The batches of a result; DuckDB's errors while reading are translated, too."""
        with self.open_reader(sql, batch_rows) as reader:
            yield from self.iterate_reader(reader)

    def iterate_reader(self, reader: pa.RecordBatchReader) -> Generator[pa.RecordBatch, None, None]:
        """The batches of an open result, with DuckDB's errors translated."""
        while True:
            with translate_stream_errors():
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    break
            yield batch
        self._count_requests()

    @contextmanager
    def register_view(self, data: Any) -> Iterator[str]:
        """Arrow data under a name that SQL can use, while the block lasts."""
        known = f"intarsia_{uuid.uuid4().hex}"
        with translate_errors():
            self._cursor.register(known, data)
        try:
            yield quote(known)
        finally:
            with suppress(duckdb.Error):  # an error in the block is raised already
                self._cursor.unregister(known)

    def quote_location(self, filesystem: pafs.FileSystem, location: str) -> str:
        """A file to read, as SQL."""
        native = self._native
        if native is not None and native.filesystem is filesystem and location in native.locations:
            return quote_text(httpfs.make_url(location))
        return quote_path(self._make_address(filesystem, location))

    def _make_address(self, filesystem: pafs.FileSystem, location: str) -> str:
        local = get_local_path(filesystem, location)
        if local is not None:
            self._named.add(os.path.dirname(local))
            return local
        with self._guard:
            if id(filesystem) not in self._filesystems:
                if len(self._filesystems) == len(self._protocols):  # a query may read many tables
                    self._protocols.append(f"intarsia{uuid.uuid4().hex}")
                protocol = self._protocols[len(self._filesystems)]
                with translate_errors():
                    self._cursor.register_filesystem(wrap_filesystem(filesystem, protocol))
                self._filesystems[id(filesystem)] = (protocol, filesystem)
            protocol, _ = self._filesystems[id(filesystem)]
        return f"{protocol}://{_TABLE}/{location}"

    @contextmanager
    def fork(self) -> Iterator[Session]:
        """The same session with a cursor of its own, for another thread."""
        other = object.__new__(Session)
        for each in _SHARED:
            setattr(other, each, getattr(self, each))
        other._own, other._temporary, other._closed, other._restricted = None, None, True, True
        with self._guard:
            spare = self._spare.pop() if self._spare else None
        if spare is not None:
            other._cursor, other._report = spare
        else:
            other._cursor, other._report = _open_cursor(self._cursor, self._collation), None
            if self._native is not None and self._temporary is not None and not self._selects_only:
                other._report = httpfs.RequestReport(other._cursor, self._temporary[0])
        try:
            yield other
        finally:
            if spare is None:
                other._cursor.close()
            else:
                with self._guard:
                    self._spare.append(spare)

    def close(self) -> None:
        """Close the cursor and remove tables and temporary files. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._cursor is not None:
            with suppress(duckdb.Error):  # the instance may be closed already
                self._cursor.execute(f"DETACH {quote(self._database)}")
            with suppress(duckdb.Error):
                self._forget_native()
            for protocol, _ in self._filesystems.values():
                with suppress(duckdb.Error):
                    self._cursor.unregister_filesystem(protocol)
            with suppress(duckdb.Error):
                self._cursor.close()
        if self._own is not None:
            self._own.close()
        if self._temporary is not None:
            directory, held = self._temporary
            remove_directory(pafs.LocalFileSystem(), directory)
            held.release()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()


_SHARED = (
    *("_database", "_filesystems", "_guard", "_collation", "_protocols", "_named"),
    *("_native", "_spare", "_selects_only"),
)
"""What a fork has in common with its session."""


def _make_temporary_directory(parent: str | None) -> tuple[str, Mark]:
    """A directory for temporary files, marked as in use; those that killed processes left are removed."""
    local = pafs.LocalFileSystem()
    try:
        base = make_private_base() if parent is None else os.path.abspath(parent)
        sweep(local, base)
        directory = f"{base}/{uuid.uuid4().hex}"
        if not os.path.isdir(base):
            raise FileNotFoundError(2, os.strerror(2), base)
        held = mark(local, directory)
        os.mkdir(directory, 0o700)
    except OSError as error:
        raise StorageError(
            f"Cannot make a directory for temporary files: {error.strerror or error}",
            errno=error.errno,
            path=parent,
            hint="name another one with spool_dir=.",
        ) from error
    return directory, held


def _read_collation(connection: Any) -> str | None:
    """The collation by which different texts may be equal; None if there is none."""
    with translate_errors():
        cursor = connection.cursor()
        found = cursor.execute("SELECT current_setting('default_collation')").fetchall()[0][0]
        cursor.close()
    return None if str(found).lower() in ("", "binary") else str(found)


def _open_cursor(connection: Any, collation: str | None) -> Any:
    """A new cursor with binary collation: only identical texts are equal."""
    with translate_errors():
        cursor = connection.cursor()
    if collation is not None:
        try:
            cursor.execute("SET SESSION default_collation = 'binary'")  # for this cursor only
        except duckdb.Error as error:
            raise NotSupported(
                f"The DuckDB connection compares texts by the collation {collation!r}, and that is locked.",
                hint="RESET default_collation, or pass no connection.",
            ) from error
    return cursor


class _CountedStream:
    """An open file that is read by ranges, each of which is a request."""

    def __init__(self, stream: pa.NativeFile, filesystem: pafs.FileSystem) -> None:
        self._stream, self._filesystem = stream, filesystem

    def read(self, size: int | None = None) -> bytes:
        count_reads(self._filesystem)
        return bytes(self._stream.read(size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _name_place(protocol: str) -> str:
    """What is to be allowed, so that the table's files can be read.

    DuckDB 1.5 makes one slash of two in it, then compares beginnings: ``x://table`` would be ``x:/table/``,
    with which no file begins; ``x://`` is ``x:/``. There is nothing but the table below either.
    """
    return f"{protocol}://" if _TAKES_PROTOCOLS_FOR_PATHS else f"{protocol}://{_TABLE}"


@contextmanager
def _hold_protocols(connection: Any, protocols: Sequence[str]) -> Iterator[None]:
    """While protocols are allowed, let them be known: DuckDB 1.5 takes others for local paths."""
    registered: list[str] = []
    try:
        with suppress(NotSupported):  # without fsspec nothing but local files is read later either
            for protocol in protocols:
                if not connection.filesystem_is_registered(protocol):
                    connection.register_filesystem(wrap_filesystem(pafs.LocalFileSystem(), protocol))
                    registered.append(protocol)
        yield
    finally:
        for protocol in registered:
            connection.unregister_filesystem(protocol)


def wrap_filesystem(filesystem: pafs.FileSystem, protocol: str) -> Any:
    """The file system under a protocol of its own; raises NotSupported without fsspec."""
    try:
        from fsspec import AbstractFileSystem
        from fsspec.implementations.arrow import ArrowFSWrapper
    except ImportError as error:
        raise NotSupported(
            "DuckDB needs fsspec for files that are not on a local disk.",
            hint="pip install 'intarsia[duckdb,fsspec]', or use engine=\"arrow\".",
        ) from error

    wrapped = ArrowFSWrapper(filesystem)

    class Bridge(AbstractFileSystem):
        """Calls the file system with the path without protocol."""

        cachable = False

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path.removeprefix(f"{protocol}://{_TABLE}/")

        def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
            opened = wrapped.open(self._strip_protocol(path), mode)
            opened.stream = _CountedStream(opened.stream, filesystem)
            return opened

        def glob(self, path: str, **_: Any) -> list[str]:
            """The file itself: names are escaped, so that brackets hold one literal character."""
            return [re.sub(r"\[([*?\[])\]", r"\1", path)]

        def info(self, path: str, **_: Any) -> dict[str, Any]:
            found: dict[str, Any] = wrapped.info(self._strip_protocol(path))
            return found

        def exists(self, path: str, **_: Any) -> bool:
            return bool(wrapped.exists(self._strip_protocol(path)))

        def modified(self, path: str) -> Any:
            # Some stores have no times; a constant will do, since a path is one file in a session.
            return wrapped.modified(self._strip_protocol(path)) or datetime.fromtimestamp(0, UTC)

    Bridge.protocol = protocol
    return Bridge()
