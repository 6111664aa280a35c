"""S3 through DuckDB's own extension httpfs: whether it is there, the secret it reads with, what it sends.

A secret is temporary and for the files of one table; DuckDB's other settings stay as they are.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow.fs as pafs

from intarsia.common.requests import RequestKind, count_requests
from intarsia.common.store_access import S3Access
from intarsia.engines.duckdb.sql import quote, quote_text

__all__ = [
    "HttpfsFiles",
    "RequestReport",
    "create_secret",
    "drop_secret",
    "has_other_secret",
    "has_safe_settings",
    "is_plain",
    "load_httpfs",
    "make_url",
]

_UNTRIED = int(duckdb.__version__.partition(".")[0]) > 1
"""Of DuckDB 2 there is no package with the extension, to try what it reaches and whether it counts."""
_SAFE: Mapping[str, Collection[str]] = {
    # A file that was replaced must be noticed: nothing of it may be kept without asking for its tag.
    "enable_http_metadata_cache": ("false",),
    "parquet_metadata_cache": ("false",),
    "validate_external_file_cache": ("VALIDATE_ALL", "VALIDATE_REMOTE"),
    "unsafe_disable_etag_checks": ("false",),
    # It must be let in, and told to count.
    "enable_external_access": ("true",),
    "lock_configuration": ("false",),
    "disabled_filesystems": ("",),
}
"""Settings with which files are read; one that a version does not have is not asked for."""
_REFUSALS = (
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.InvalidInputException,
    duckdb.NotImplementedException,
    duckdb.PermissionException,
)
_PART = re.compile(r"[\w .=+%:,@~-]+")
"""A part of a path that httpfs takes literally: ``?`` begins parameters there, and others are wildcards."""
_COUNT = re.compile(r"^│+ +#(HEAD|GET|PUT|POST|DELETE): (\d+) +│+$", re.MULTILINE)
"""A line of a box in DuckDB's profile."""
_KINDS: Mapping[str, RequestKind] = {
    "HEAD": "HEAD",
    "GET": "GET",
    "PUT": "PUT",
    "POST": "PUT",
    "DELETE": "DELETE",
}


@dataclass(frozen=True, slots=True)
class HttpfsFiles:
    """The files of one file system that DuckDB reads by httpfs, and the secret that it does so with."""

    filesystem: pafs.FileSystem
    secret: str
    locations: frozenset[str] = field(repr=False)


def load_httpfs(connection: Any, *, own: bool) -> bool:
    """Whether httpfs is there. An instance of our own loads it where it is installed; nothing is fetched.

    On the caller's connection it has to be loaded: loading it adds settings, functions and types. A version
    that was not tried has to be allowed by ``INTARSIA_UNTRIED_HTTPFS=1`` in the environment.
    """
    if _UNTRIED and os.environ.get("INTARSIA_UNTRIED_HTTPFS") != "1":
        return False
    with suppress(duckdb.Error):
        found = connection.execute(
            "SELECT loaded, installed FROM duckdb_extensions() WHERE extension_name = 'httpfs'"
        ).fetchall()
        loaded, installed = found[0] if found else (False, False)
        if own and installed and not loaded:
            connection.execute("LOAD httpfs")
            loaded = True
        return bool(loaded)
    return False


def has_safe_settings(connection: Any) -> bool:
    """Whether the settings are such that a replaced file is noticed and requests can be counted."""
    names = ", ".join(map(quote_text, _SAFE))
    rows = connection.execute(f"SELECT name, value FROM duckdb_settings() WHERE name IN ({names})").fetchall()
    return all(str(value or "") in _SAFE[name] for name, value in rows)


def is_plain(location: str) -> bool:
    """Whether httpfs takes the path of an object literally."""
    parts = location.split("/")
    return len(parts) > 1 and all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)


def make_url(location: str) -> str:
    return f"s3://{location}"


def create_secret(connection: Any, name: str, access: S3Access, directories: Sequence[str]) -> bool:
    """Create a temporary secret for what is below some directories, or replace it; False where it is refused.

    Every value is bound, so that none is in a statement, and none is left to settings of the connection.
    """
    values = {
        "KEY_ID": access.key,
        "SECRET": access.secret,
        "SESSION_TOKEN": access.token,
        "REGION": access.region,
        "ENDPOINT": access.host,
        "USE_SSL": access.encrypted,
        "URL_STYLE": "path" if access.bucket_in_path else "vhost",
        "URL_COMPATIBILITY_MODE": False,
        "SCOPE": [_make_scope(directory) for directory in directories],
    }
    options = ", ".join(f"{option} ${option.lower()}" for option in values)
    try:
        connection.execute(
            f"CREATE OR REPLACE TEMPORARY SECRET {quote(name)} (TYPE s3, PROVIDER config, {options})",
            {option.lower(): value for option, value in values.items()},
        )
    except _REFUSALS:  # a version with other options, or a connection that may not
        return False
    return True


def drop_secret(connection: Any, name: str) -> None:
    """Drop a secret. Idempotent."""
    connection.execute(f"DROP TEMPORARY SECRET IF EXISTS {quote(name)}")


def has_other_secret(connection: Any, name: str, directories: Sequence[str]) -> bool:
    """Whether some of the files might be read with a secret of somebody else, which is for them or less."""
    scopes = tuple(map(_make_scope, directories))
    rows = connection.execute("SELECT name, scope FROM duckdb_secrets()").fetchall()
    return any(other != name and str(one).startswith(scopes) for other, found in rows for one in found or ())


def _make_scope(directory: str) -> str:
    return f"s3://{directory}/"


class RequestReport:
    """What the statements of one cursor have sent, by DuckDB's profile of each, which it writes to a file.

    A statement that failed, or whose rows were not all fetched, has none.
    """

    def __init__(self, cursor: Any, directory: str) -> None:
        self._path = f"{directory}/{uuid.uuid4().hex}.txt"
        cursor.execute("SET SESSION enable_profiling = 'query_tree'")
        cursor.execute(f"SET SESSION profiling_output = {quote_text(self._path)}")

    def count(self, filesystem: pafs.FileSystem) -> None:
        """Count what the last statement has sent, once."""
        try:
            with open(self._path, encoding="utf-8", errors="replace") as file:
                said = file.read()
            os.remove(self._path)
        except FileNotFoundError:
            return
        counts: dict[RequestKind, int] = {}
        for word, number in _COUNT.findall(said):
            counts[_KINDS[word]] = counts.get(_KINDS[word], 0) + int(number)
        count_requests(filesystem, counts)
