"""Refreshes caches, views and catalog tables of Spark sessions after a table has changed."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pafs

from intarsia.common.log import get_logger, redact
from intarsia.common.requests import find_base
from intarsia.spark.catalog import ICEBERG_CATALOGS, normalize_location, quote_name
from intarsia.spark.errors import is_interrupt, list_spark_error_types, summarize_error
from intarsia.spark.session import Session, active_session, is_connect

__all__ = ["ANSWER_SECONDS", "MOST_TABLES", "refresh_sessions", "run_reporting"]

log = get_logger(__name__)

ANSWER_SECONDS = 30.0
"""Timeout for a Spark Connect server; pyspark itself would retry one that is gone for ten minutes."""
MOST_TABLES = 500
"""Maximum number of catalog tables whose location is looked up; each is a call of the metastore."""

_GLOBAL_VIEWS = "global_temp"
_LOCATION = re.compile(r"^Location: (.*)$", re.MULTILINE)
_NO_SCHEME = ("No FileSystem for scheme", "UnsupportedFileSystemException", "ClassNotFoundException")


def refresh_sessions(table: Any, *, own: Session | None = None) -> tuple[str, ...]:
    """Refresh a changed table in the session of an operation, in that of its catalog, and in the active one.

    Of a Parquet dataset, cached rows, temporary views and catalog tables over its files are refreshed, as
    after Spark's own writers; of an Iceberg table, the session's Iceberg catalogs. No session is opened, no
    data is read, and nothing is raised: returns a sentence for each failure.
    """
    shown = str(getattr(table, "root", "it"))
    notes = []
    done: list[Session] = []
    # The session of the operation, that of a table of its catalog, and the active one: each once.
    for find in (lambda: own, lambda: getattr(table, "session", None), active_session):
        note = _run_reporting(shown, lambda: _refresh_once(find(), table, shown, done))  # noqa: B023  called at once
        notes += [] if note is None else [note]
    return tuple(notes)


def _refresh_once(session: Session | None, table: Any, shown: str, done: list[Session]) -> str | None:
    if session is None or any(one is session for one in done):
        return None
    done.append(session)
    return _refresh(session, table, shown)


def _refresh(session: Session, table: Any, shown: str) -> str | None:
    identifier: Sequence[str] | None = getattr(table, "identifier", None)
    if identifier is not None:
        return _run_with_timeout(session, shown, lambda: _refresh_iceberg(session, identifier))
    paths = _list_spark_paths(table)
    return _run_with_timeout(session, shown, lambda: _refresh_paths(session, paths)) if paths else None


def _list_spark_paths(table: Any) -> list[str]:
    """The URLs under which Spark may have read a dataset; none for storage that Spark cannot read."""
    if not hasattr(table, "workspace"):  # a table of the caller's own
        return []
    filesystem, _, path = table.workspace
    if isinstance(filesystem, pafs.LocalFileSystem):
        return [f"file://{path}"]
    scheme, given, _ = table.root.partition("://")
    if not given:  # a path on a file system that was passed
        scheme = find_base(filesystem).type_name
    schemes = {"s3": ("s3a", "s3"), "s3a": ("s3a", "s3"), "gcs": ("gs",), "gs": ("gs",)}
    if scheme in schemes:
        return [f"{one}://{path}" for one in schemes[scheme]]
    return [table.root] if given and scheme in ("hdfs", "abfs", "abfss", "viewfs") else []


def _run_with_timeout(session: Session, shown: str, work: Callable[[], str | None]) -> str | None:
    """The result of the work; a sentence where a Connect server does not answer in time."""
    if not is_connect(session):
        return work()
    said: list[str | None] = []
    # A daemon, so that a server that never answers keeps no process from ending.
    thread = threading.Thread(target=lambda: said.append(_run_reporting(shown, work)), daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    late = f"no answer within {ANSWER_SECONDS:.0f} seconds"
    return said[0] if said else _report_failure(f"run REFRESH TABLE there, or read {shown} again.", late)


def _run_reporting(shown: str, work: Callable[[], str | None]) -> str | None:
    """The result of the work; a sentence where it fails."""
    return run_reporting(work, f"run REFRESH TABLE there, or read {shown} again.")


def run_reporting(work: Callable[[], str | None], advice: str) -> str | None:
    """The result of work on a session after a change; a sentence with the advice where it fails."""
    try:
        return work()
    except Exception as error:  # a session may raise anything; the change is made
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        return _report_failure(advice, summarize_error(error))


def _report_failure(advice: str, why: str) -> str:
    note = f"The change is made, but the Spark session could not be told of it ({redact(why)}): {advice}"
    log.warning(note)
    return note


def _refresh_paths(session: Session, paths: Sequence[str]) -> str | None:
    for path in paths:
        try:
            session.catalog.refreshByPath(path)
        except list_spark_error_types() as error:
            if not any(sign in str(error) for sign in _NO_SCHEME):  # else nothing was read by that name
                raise
    places = [normalize_location(path) for path in paths]
    for name in _find_views(session, places):
        session.catalog.refreshTable(name)
    tables, left_out = _find_tables(session, places)
    for name in tables:
        session.catalog.refreshTable(name)
    if not left_out:
        return None
    return (
        f"The catalog of the Spark session has more than {MOST_TABLES} tables, so {left_out} were not looked"
        f" at: run REFRESH TABLE for those over {paths[0]}."
    )


def _find_views(session: Session, places: Sequence[str]) -> Iterator[str]:
    """Temporary views of the session that read files below the places, and keep a list of these."""
    for view in _list_tables(session, _GLOBAL_VIEWS):  # lists the session's own views as well
        name = quote_name([*([view.namespace] if view.namespace else []), view.tableName])
        try:
            if session.catalog.isCached(name):  # refreshByPath has done it
                continue
            files = session.table(name).inputFiles()
        except list_spark_error_types() as error:  # a view that cannot be read, as over a dropped table
            log.debug("The view %s is not refreshed: %s", name, summarize_error(error))
            continue
        if any(_is_below(normalize_location(unquote(file)), places) for file in files):
            yield name


def _list_tables(session: Session, database: str) -> list[Any]:
    """Tables and temporary views of a database of the session's own catalog.

    In SQL, because ``catalog.listTables`` and ``listDatabases`` look up each table again: with these a commit
    took half a second longer, with SQL a few hundredths.
    """
    rows: list[Any] = session.sql(f"SHOW TABLES IN {quote_name(['spark_catalog', database])}").collect()
    return rows


def _find_tables(session: Session, places: Sequence[str]) -> tuple[list[str], int]:
    """Tables of the session's catalog whose location overlaps one of the places.

    Also returns how many tables were left out, beyond ``MOST_TABLES``.
    """
    found: list[str] = []
    seen = left_out = 0
    for database in session.sql("SHOW DATABASES IN spark_catalog").collect():
        count = sum(not row.isTemporary for row in _list_tables(session, database.namespace))
        seen += count
        if seen > MOST_TABLES:
            left_out += count
        elif count:
            found += _find_located(session, quote_name(["spark_catalog", database.namespace]), places)
    return found, left_out


def _find_located(session: Session, scope: str, places: Sequence[str]) -> Iterator[str]:
    for row in session.sql(f"SHOW TABLE EXTENDED IN {scope} LIKE '*'").collect():
        location = _LOCATION.search(row.information)
        if row.isTemporary or location is None:
            continue
        place = normalize_location(location[1])
        if _is_below(place, places) or any(_is_below(one, [place]) for one in places):
            yield f"{scope}.{quote_name([row.tableName])}"


def _refresh_iceberg(session: Session, identifier: Sequence[str]) -> None:
    for catalog in session.catalog.listCatalogs():
        kind = session.conf.get(f"spark.sql.catalog.{catalog.name}", None)
        if kind not in ICEBERG_CATALOGS:
            continue
        name = quote_name([catalog.name, *identifier])
        if session.catalog.tableExists(name):
            session.catalog.refreshTable(name)


def _is_below(path: str, places: Sequence[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)
