"""Requests to Google Cloud Storage, with the credentials of the file system given.

Through gcsfs itself (the extra ``gcs``), as plain requests of the JSON API: so its session and credentials
are the ones used, and the generation of an object is a condition of every request, also of the rewrite by
which a file is replaced without its bytes leaving the store. A generation is new with every write.
"""

from __future__ import annotations

import datetime as dt
import errno
import functools
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import quote

import pyarrow.fs as pafs

from intarsia.common.log import redact
from intarsia.common.requests import RequestCounter, RequestKind
from intarsia.errors import StorageError
from intarsia.storage.conditional import (
    Condition,
    ConditionFailed,
    IfAbsent,
    IfMatch,
    StoredObject,
    Unanswered,
    Upload,
    find_age,
    find_inner_protocols,
    find_now,
    split_path,
)

_PAGE = 1000
_PROTOCOLS = {"gs", "gcs"}
_OBJECT, _LIST, _REWRITE = "b/{}/o/{}", "b/{}/o", "b/{}/o/{}/rewriteTo/b/{}/o/{}"
_FIELDS = "name,size,generation,updated"
_UNCACHED = {"cacheControl": "no-store"}
"""An object that anybody may read is kept by caches for an hour else, whatever is written meanwhile."""
_UNSURE = (408, 429)


class GcsTransport(Protocol):
    """Sends one request of the JSON API, with somebody's credentials: gcsfs does."""

    @property
    def _location(self) -> str: ...

    def call(self, method: str, path: str, *parts: str, **more: Any) -> tuple[Mapping[str, str], bytes]: ...


def find_client(filesystem: pafs.FileSystem) -> Callable[[RequestCounter], GcsClient] | None:
    """How to open a client as a file system does; None where it is not one of GCS, or cannot be followed."""
    if filesystem.type_name == "gcs":
        if not _has_gcsfs():
            return None
        _, (settings,) = filesystem.__reduce__()  # PyArrow shows its settings in this way only
        return functools.partial(_open_settings, settings)
    inner, names = find_inner_protocols(filesystem)
    if names & _PROTOCOLS and hasattr(inner, "call") and _has_gcsfs():
        return functools.partial(GcsClient, inner)
    return None


def _open_settings(settings: Mapping[str, Any], counter: RequestCounter) -> GcsClient:
    """A client with the credentials of a PyArrow file system."""
    from gcsfs.core import GCSFileSystem

    custom = settings["endpoint_override"]
    return GcsClient(
        GCSFileSystem(
            project=settings["project_id"] or "",
            token=_find_token(settings),
            endpoint_url=f"{settings['scheme'] or 'https'}://{custom}" if custom else None,
            use_listings_cache=False,
        ),
        counter,
        None if settings["retry_time_limit"] is None else settings["retry_time_limit"].total_seconds(),
    )


def _find_token(settings: Mapping[str, Any]) -> Any:
    if settings["anonymous"]:
        return "anon"
    if settings["access_token"]:
        from google.oauth2.credentials import Credentials

        return Credentials(token=settings["access_token"])
    if settings["target_service_account"]:
        import google.auth
        from google.auth.impersonated_credentials import Credentials as Impersonated

        source, _ = google.auth.default()
        scopes = ["https://www.googleapis.com/auth/devstorage.read_write"]
        return Impersonated(source, settings["target_service_account"], scopes)
    return None


@functools.cache
def _has_gcsfs() -> bool:
    try:
        import gcsfs.core  # noqa: F401
    except ImportError:
        return False
    return True


class GcsClient:
    """Conditional requests to GCS; see :class:`intarsia.storage.conditional.ObjectClient`."""

    tags_tell_bytes = False

    def __init__(self, transport: GcsTransport, counter: RequestCounter, limit: float | None = None) -> None:
        """``limit``: seconds for a request and its repetitions, as PyArrow has them; a rewrite has more."""
        self._transport, self._counter = transport, counter
        self._limit = {} if limit is None else {"timeout": limit}

    @property
    def endpoint(self) -> str:
        return redact(str(self._transport._location))

    def head(self, path: str) -> StoredObject | None:
        try:
            headers, data = self._send("HEAD", "look at", path, "GET", _OBJECT, **self._limit)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return _make_object(path, json.loads(data), _find_now(headers))

    def get(self, path: str) -> bytes:
        return bytes(self._send("GET", "read", path, "GET", _OBJECT, alt="media", **self._limit)[1])

    def get_range(self, path: str, start: int, size: int, tag: str | None) -> bytes:
        headers = {"Range": f"bytes={start}-{start + size - 1}"}
        _, data = self._send(
            "GET",
            "read",
            path,
            "GET",
            _OBJECT,
            alt="media",
            headers=headers,
            **_make_condition(None if tag is None else IfMatch(tag)),
            **self._limit,
        )
        return bytes(data)

    def list_objects(self, prefix: str, *, most: int | None = None) -> Iterator[StoredObject]:
        bucket = split_path(prefix)[0]
        for headers, page in self._iterate_pages(prefix, maxResults=str(min(most or _PAGE, _PAGE))):
            now = _find_now(headers)
            for found in page.get("items", ()):
                yield _make_object(f"{bucket}/{found['name']}", found, now)
            if most is not None:
                return

    def list_names(self, directory: str) -> list[str]:
        prefix = f"{directory}/"
        start = len(split_path(prefix)[1])
        names: set[str] = set()
        for _, page in self._iterate_pages(prefix, delimiter="/"):
            names.update(found["name"][start:] for found in page.get("items", ()))
            names.update(found[start:].rstrip("/") for found in page.get("prefixes", ()))
        return sorted(names - {""})

    def _iterate_pages(self, prefix: str, **more: str) -> Iterator[tuple[Mapping[str, str], dict[str, Any]]]:
        bucket, start = split_path(prefix)
        more["fields"] = f"nextPageToken,prefixes,items({_FIELDS})"
        while True:
            headers, data = self._guard(
                "LIST",
                "list",
                prefix,
                lambda: self._transport.call("GET", _LIST, bucket, prefix=start, **more, **self._limit),
            )
            page = json.loads(data)
            yield headers, page
            if not page.get("nextPageToken"):
                return
            more["pageToken"] = page["nextPageToken"]

    def put(
        self,
        path: str,
        data: bytes,
        condition: Condition = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        bucket, key = split_path(path)
        about = json.dumps({"name": key, "metadata": dict(metadata or {}), **_UNCACHED})
        mark = uuid.uuid4().hex
        body = (
            f"--{mark}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{about}\r\n"
            f"--{mark}\r\nContent-Type: application/octet-stream\r\n\r\n"
        ).encode()
        self._guard(
            "PUT",
            "put",
            path,
            lambda: self._transport.call(
                "POST",
                f"{self._transport._location}/upload/storage/v1/b/{quote(bucket, safe='')}/o",
                uploadType="multipart",
                headers={"Content-Type": f'multipart/related; boundary="{mark}"'},
                data=body + data + f"\r\n--{mark}--".encode(),
                **_make_condition(condition),
                **self._limit,
            ),
        )

    def copy(
        self,
        source: StoredObject,
        target: str,
        condition: Condition = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.complete_large_copy(source, target, condition, metadata or {})

    def complete_large_copy(
        self, source: StoredObject, target: str, condition: Condition, metadata: Mapping[str, str]
    ) -> None:
        """One request where both are in one place; else a few, the last of which takes effect."""
        more = {**_make_condition(condition), "ifSourceGenerationMatch": source.tag}
        about = {"contentType": "application/octet-stream", "metadata": dict(metadata), **_UNCACHED}
        while True:
            _, data = self._send(
                "COPY", "copy", source.path, "POST", _REWRITE, *split_path(target), json=about, **more
            )
            answer = json.loads(data)
            if answer.get("done", True):
                return
            more["rewriteToken"] = answer["rewriteToken"]

    def delete(self, path: str, condition: IfMatch | None = None) -> None:
        try:
            more = {**_make_condition(condition), **self._limit}
            self._send("DELETE", "delete", path, "DELETE", _OBJECT, **more)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise

    def list_uploads(self, prefix: str) -> list[Upload]:
        """None: a rewrite that was begun leaves nothing behind."""
        return []

    def abort_upload(self, upload: Upload) -> None:
        """Nothing: see :meth:`list_uploads`."""

    def _send(
        self,
        kind: RequestKind,
        action: str,
        path: str,
        method: str,
        template: str,
        *more: str,
        **arguments: Any,
    ) -> tuple[Mapping[str, str], bytes]:
        parts = (*split_path(path), *more)
        return self._guard(
            kind, action, path, lambda: self._transport.call(method, template, *parts, **arguments)
        )

    def _guard(self, kind: RequestKind, action: str, path: str, send: Callable[[], Any]) -> Any:
        from aiohttp import ClientError
        from gcsfs.retry import HttpError
        from google.auth.exceptions import GoogleAuthError
        from requests.exceptions import RequestException

        self._counter.add(kind)
        try:
            return send()
        except (HttpError, ClientError, RequestException, GoogleAuthError, OSError, ValueError) as error:
            raise _translate(error, action, path) from error


def _make_condition(condition: Condition) -> dict[str, str]:
    match condition:
        case None:
            return {}
        case IfAbsent():
            return {"ifGenerationMatch": "0"}
        case IfMatch(tag):
            if not tag.isdecimal() or tag == "0":
                raise ConditionFailed(f"{tag} is the tag of another store: no object has it.")
            return {"ifGenerationMatch": tag}


def _make_object(path: str, found: Mapping[str, Any], now: dt.datetime) -> StoredObject:
    modified = dt.datetime.fromisoformat(found["updated"])
    metadata = {str(key): str(value) for key, value in found.get("metadata", {}).items()}
    return StoredObject(path, int(found["size"]), str(found["generation"]), find_age(modified, now), metadata)


def _find_now(headers: Mapping[str, str]) -> dt.datetime:
    return find_now(headers.get("Date") or headers.get("date"))


def _translate(error: Exception, action: str, path: str) -> Exception:
    """What a failure means: the condition, no answer, or a refusal. gcsfs has errors of its own for some."""
    from google.auth.exceptions import GoogleAuthError, TransportError

    code = str(getattr(error, "code", ""))
    status = int(code) if code.isdecimal() else 0
    said = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
    reason, where = redact(f"Could not {action} {path}: {said}"), redact(path)
    if isinstance(error, FileExistsError) or status in (409, 412):
        return ConditionFailed(reason)
    if isinstance(error, FileNotFoundError) or status == 404:
        return StorageError(reason, errno=errno.ENOENT, path=where)
    if status in (401, 403) or isinstance(error, PermissionError) or str(error).startswith("Forbidden"):
        return StorageError(reason, errno=errno.EACCES, path=where)
    if isinstance(error, GoogleAuthError) and not isinstance(error, TransportError):
        return StorageError(reason, errno=errno.EACCES, path=where)
    if status == 501:
        return StorageError(reason, errno=errno.ENOTSUP, path=where)
    if isinstance(error, ValueError) or (400 <= status < 500 and status not in _UNSURE):
        return StorageError(reason, errno=errno.EINVAL, path=where)
    return Unanswered(reason, path=where)
