"""Requests to Azure Blob Storage, with the credentials of the file system given.

Through azure-storage-blob, which adlfs brings along (the extra ``azure``), because it has what obstore lacks:
a list of blocks that is put in place under a condition, by which a large file is replaced without its bytes
leaving the store. An entity tag of Azure is new with every write, whatever the bytes.
"""

from __future__ import annotations

import atexit
import datetime as dt
import errno
import functools
import io
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Protocol

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

SMALL = 4 << 20
"""Up to this many bytes, a copy is read and written: two requests, and no signature for the source."""
PART = 256 << 20
_PAGE = 1000
_PROTOCOLS = {"abfs", "az", "abfss", "adl"}
_SCOPE = "https://storage.azure.com/.default"
_SIGNED_FOR = dt.timedelta(minutes=15)
_CONFLICTS = ("BlobAlreadyExists", "ConditionNotMet", "InvalidBlockList", "TargetConditionNotMet")
"""The blocks of a copy are gone when another one to the same name was put in place meanwhile."""
_FOLDER = "hdi_isfolder"
"""Metadata of a blob that stands for a directory."""
_UNSURE = (408, 429)


class Service(Protocol):
    """The clients of containers and blobs of azure-storage-blob; they are asynchronous."""

    @property
    def url(self) -> str: ...

    @property
    def credential(self) -> Any: ...

    def get_container_client(self, container: str) -> Any: ...

    def get_blob_client(self, container: str, blob: str) -> Any: ...


class AzureTransport:
    """Carries out requests of a service client on the loop of fsspec, for callers in any thread."""

    def __init__(self, service: Service, loop: Any) -> None:
        self.service, self._loop = service, loop

    @property
    def endpoint(self) -> str:
        return self.service.url.partition("?")[0].rstrip("/")

    def run(self, send: Callable[[], Any]) -> Any:
        """The result of an awaitable, which is made on the loop."""
        from fsspec.asyn import sync

        async def carry_out() -> Any:
            return await send()

        return sync(self._loop, carry_out)


def find_client(filesystem: pafs.FileSystem) -> Callable[[RequestCounter], AzureClient] | None:
    """How to open a client as a file system does; None where it is not Azure's, or cannot be followed."""
    if filesystem.type_name == "abfs":
        if not _has_client():
            return None
        _, (settings,) = filesystem.__reduce__()  # PyArrow shows its settings in this way only
        return functools.partial(_open_settings, settings)
    inner, names = find_inner_protocols(filesystem)
    if names & _PROTOCOLS and hasattr(inner, "service_client") and _has_client():
        return functools.partial(_open_inner, inner)
    return None


def _open_inner(inner: Any, counter: RequestCounter) -> AzureClient:
    return AzureClient(AzureTransport(inner.service_client, inner.loop), counter)


def _open_settings(settings: Mapping[str, Any], counter: RequestCounter) -> AzureClient:
    """A client with the account, key, signature or identity of a PyArrow file system."""
    from fsspec.asyn import get_loop

    return AzureClient(
        AzureTransport(_open_service(os.getpid(), tuple(sorted(settings.items()))), get_loop()), counter
    )


@functools.cache
def _open_service(_process: int, items: tuple[tuple[str, str], ...]) -> Service:
    """One per process and account, so that connections are shared; closed when the process ends."""
    from azure.storage.blob.aio import BlobServiceClient
    from fsspec.asyn import get_loop, sync

    settings = dict(items)
    name, host = settings["account_name"], settings["blob_storage_authority"]
    base = f"{name}{host}" if host.startswith(".") else f"{host}/{name}"
    url, loop = f"{settings['blob_storage_scheme']}://{base}", get_loop()
    credential: Any = None
    if settings["account_key"]:
        credential = {"account_name": name, "account_key": settings["account_key"]}
    elif settings["sas_token"]:
        url = f"{url}?{settings['sas_token'].lstrip('?')}"
    else:
        credential = _find_identity(settings)

    async def open_service() -> BlobServiceClient:
        return BlobServiceClient(url, credential=credential)

    async def close() -> None:
        await service.close()
        if hasattr(credential, "close"):
            await credential.close()

    service: BlobServiceClient = sync(loop, open_service)
    atexit.register(sync, loop, close)
    return service


def _find_identity(settings: Mapping[str, Any]) -> Any:
    from azure.identity.aio import ClientSecretCredential, DefaultAzureCredential, ManagedIdentityCredential

    if settings["client_secret"]:
        return ClientSecretCredential(settings["tenant_id"], settings["client_id"], settings["client_secret"])
    if settings["client_id"]:
        return ManagedIdentityCredential(client_id=settings["client_id"])
    return DefaultAzureCredential()


@functools.cache
def _has_client() -> bool:
    try:
        import azure.identity.aio
        import azure.storage.blob.aio  # noqa: F401
        import fsspec.asyn  # noqa: F401
    except ImportError:
        return False
    return True


class AzureClient:
    """Conditional requests to Azure; see :class:`intarsia.storage.conditional.ObjectClient`."""

    tags_tell_bytes = False

    def __init__(self, transport: AzureTransport, counter: RequestCounter) -> None:
        self._transport, self._counter = transport, counter
        self._can_fetch = True
        """Whether the server reads blocks from a URL by itself; some that speak the protocol do not."""

    @property
    def endpoint(self) -> str:
        return redact(self._transport.endpoint)

    def head(self, path: str) -> StoredObject | None:
        clock = _Clock()
        try:
            found = self._send(
                "HEAD", "look at", path, lambda blob: blob.get_blob_properties(raw_response_hook=clock)
            )
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return None if _is_folder(found) else _make_object(path, found, clock.now)

    def get(self, path: str) -> bytes:
        return self._read(path)

    def _read(self, path: str, tag: str | None = None, **part: int) -> bytes:
        """The bytes of a blob, or a part of them; with ``tag``, only if it has that."""

        async def read(blob: Any) -> bytes:
            condition = {} if tag is None else _make_condition(IfMatch(tag))
            stream = await blob.download_blob(**part, **condition)
            return bytes(await stream.readall())

        return bytes(self._send("GET", "read", path, read))

    def get_range(self, path: str, start: int, size: int, tag: str | None) -> bytes:
        return self._read(path, tag, offset=start, length=size)

    def list_objects(self, prefix: str, *, most: int | None = None) -> Iterator[StoredObject]:
        bucket = split_path(prefix)[0]
        clock = _Clock()
        for page in self._iterate_pages("list_blobs", prefix, clock, min(most or _PAGE, _PAGE), ["metadata"]):
            for found in page:
                if not _is_folder(found):
                    yield _make_object(f"{bucket}/{found.name}", found, clock.now, metadata=False)
            if most is not None:
                return

    def list_names(self, directory: str) -> list[str]:
        prefix = f"{directory}/"
        start = len(split_path(prefix)[1])
        pages = self._iterate_pages("walk_blobs", prefix, _Clock(), _PAGE, None)
        return sorted({found.name[start:].rstrip("/") for page in pages for found in page} - {""})

    def _iterate_pages(
        self, method: str, prefix: str, clock: _Clock, size: int, include: list[str] | None
    ) -> Iterator[list[Any]]:
        bucket, start = split_path(prefix)
        container = self._transport.service.get_container_client(bucket)
        pages = getattr(container, method)(
            name_starts_with=start, include=include, results_per_page=size, raw_response_hook=clock
        ).by_page()
        while (page := self._guard("list", prefix, lambda: _take_page(pages))) is not None:
            self._counter.add("LIST")
            yield page

    def put(
        self,
        path: str,
        data: bytes,
        condition: Condition = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        arguments = {**_make_condition(condition), "metadata": _to_azure(metadata or {})}
        self._send(
            "PUT",
            "put",
            path,
            lambda blob: blob.upload_blob(
                data, overwrite=not isinstance(condition, IfAbsent), max_concurrency=1, **arguments
            ),
        )

    def copy(
        self,
        source: StoredObject,
        target: str,
        condition: Condition = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        if source.size <= SMALL:
            self.put(target, self._read(source.path, source.tag), condition, metadata)
        else:
            self.complete_large_copy(source, target, condition, metadata or {})

    def complete_large_copy(
        self, source: StoredObject, target: str, condition: Condition, metadata: Mapping[str, str]
    ) -> None:
        mark = uuid.uuid4().hex[:16]  # blocks belong to a name, not to an upload: those of others stay apart
        blocks = []
        for number, first in enumerate(range(0, source.size, PART)):
            blocks.append(f"{mark}{number:08d}")
            self._stage(source, target, blocks[-1], first, min(PART, source.size - first))
        now = self.head(source.path)
        if now is None or now.tag != source.tag:
            raise ConditionFailed(f"{source.path} was replaced while it was copied.")
        arguments = {**_make_condition(condition), "metadata": _to_azure(metadata)}
        self._send("PUT", "put", target, lambda blob: blob.commit_block_list(blocks, **arguments))

    def _stage(self, source: StoredObject, target: str, block: str, first: int, size: int) -> None:
        if self._can_fetch:
            try:
                self._stage_from_url(source, target, block, first, size)
                return
            except StorageError as error:
                if error.errno not in (errno.ENOTSUP, errno.EINVAL):
                    raise
                self._can_fetch = False
        data = self._read(source.path, source.tag, offset=first, length=size)
        self._send("PUT", "put", target, lambda blob: blob.stage_block(block, io.BytesIO(data), length=size))

    def _stage_from_url(self, source: StoredObject, target: str, block: str, first: int, size: int) -> None:
        async def stage(blob: Any) -> None:
            bucket, key = split_path(source.path)
            service = self._transport.service
            url, more = service.get_blob_client(bucket, key).url, {}
            if hasattr(service.credential, "account_key"):
                url = f"{url}?{_sign(service.credential, bucket, key)}"
            elif hasattr(service.credential, "get_token"):
                token = await service.credential.get_token(_SCOPE)
                more = {"source_authorization": f"Bearer {token.token}"}
            await blob.stage_block_from_url(block, url, source_offset=first, source_length=size, **more)

        self._send("COPY", "copy", target, stage)

    def delete(self, path: str, condition: IfMatch | None = None) -> None:
        try:
            self._send("DELETE", "delete", path, lambda blob: blob.delete_blob(**_make_condition(condition)))
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise

    def list_uploads(self, prefix: str) -> list[Upload]:
        """None: blocks that were not put in place go with the next write, or after a week, by themselves."""
        return []

    def abort_upload(self, upload: Upload) -> None:
        """Nothing: see :meth:`list_uploads`."""

    def _send(self, kind: RequestKind, action: str, path: str, send: Callable[[Any], Any]) -> Any:
        bucket, key = split_path(path)
        blob = self._transport.service.get_blob_client(bucket, key)
        self._counter.add(kind)
        return self._guard(action, path, lambda: send(blob))

    def _guard(self, action: str, path: str, send: Callable[[], Any]) -> Any:
        from aiohttp import ClientError
        from azure.core.exceptions import AzureError

        try:
            return self._transport.run(send)
        except (AzureError, ClientError, OSError) as error:
            raise _translate(error, action, path) from error


class _Clock:
    """The server's clock, as of its last answer."""

    def __init__(self) -> None:
        self.now = dt.datetime.now(dt.UTC)

    def __call__(self, answer: Any) -> None:
        headers = {str(key).lower(): value for key, value in answer.http_response.headers.items()}
        self.now = find_now(headers.get("date"))


async def _take_page(pages: AsyncIterator[Any]) -> list[Any] | None:
    try:
        page = await anext(pages)
    except StopAsyncIteration:
        return None
    return [found async for found in page]


def _make_object(path: str, found: Any, now: dt.datetime, *, metadata: bool = True) -> StoredObject:
    return StoredObject(
        path,
        int(found.size),
        str(found.etag).strip('"'),  # a listing shows it without quotes
        find_age(found.last_modified, now),
        _from_azure(found.metadata or {}) if metadata else {},
    )


def _is_folder(found: Any) -> bool:
    marks = {str(key).lower(): str(value).lower() for key, value in (found.metadata or {}).items()}
    return marks.get(_FOLDER) == "true"


def _to_azure(metadata: Mapping[str, str]) -> dict[str, str]:
    """Names of metadata are identifiers there."""
    return {key.replace("-", "_"): value for key, value in metadata.items()}


def _from_azure(metadata: Mapping[str, str]) -> dict[str, str]:
    return {str(key).lower().replace("_", "-"): str(value) for key, value in metadata.items()}


def _make_condition(condition: Condition) -> dict[str, Any]:
    from azure.core import MatchConditions

    match condition:
        case None:
            return {}
        case IfAbsent():
            return {"match_condition": MatchConditions.IfMissing}
        case IfMatch(tag):
            return {"etag": f'"{tag}"', "match_condition": MatchConditions.IfNotModified}


def _sign(credential: Any, bucket: str, key: str) -> str:
    """A signature by which the server itself reads one blob, for a while."""
    from azure.storage.blob import BlobSasPermissions, generate_blob_sas

    return generate_blob_sas(
        credential.account_name,
        bucket,
        key,
        account_key=credential.account_key,
        permission=BlobSasPermissions(read=True),
        expiry=dt.datetime.now(dt.UTC) + _SIGNED_FOR,
    )


def _translate(error: Exception, action: str, path: str) -> Exception:
    """What a failure means: the condition, no answer, or a refusal."""
    from azure.core.exceptions import ClientAuthenticationError

    status = getattr(error, "status_code", None) or 0
    code = str(getattr(error, "error_code", None) or "")
    text = str(getattr(error, "message", None) or error).partition("\n")[0]
    reason, where = redact(f"Could not {action} {path}: {code} {text}"), redact(path)
    if code in _CONFLICTS or status == 412:
        return ConditionFailed(reason)
    if status == 404:
        return StorageError(reason, errno=errno.ENOENT, path=where)
    if status in (401, 403, 409) or isinstance(error, (ClientAuthenticationError, PermissionError)):
        return StorageError(reason, errno=errno.EACCES, path=where)
    if status == 501:
        return StorageError(reason, errno=errno.ENOTSUP, path=where)
    if not status or status >= 500 or status in _UNSURE:
        return Unanswered(reason, path=where)
    return StorageError(reason, errno=errno.EINVAL, path=where)
