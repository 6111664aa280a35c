"""What adlfs and gcsfs are to a bucket in memory: the clients inside them, as far as intarsia goes.

Each translates a request of its store to one of the server in memory, and the refusals to its own errors.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import aiohttp
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ServiceResponseError
from botocore.exceptions import ClientError, ReadTimeoutError
from gcsfs.retry import HttpError
from stores_memory import BUCKET, ENDPOINT, MemoryFileSystem, Process

from intarsia.storage.azure import AzureTransport

KINDS = ("s3", "azure", "gcs")


def open_memory(process: Process) -> MemoryFileSystem:
    """The file system by which a process reaches the server."""
    return {"s3": MemoryFileSystem, "azure": MemoryAzure, "gcs": MemoryGcs}[process.server.kind](process)


# Azure.


@contextmanager
def _as_azure() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        raised = HttpResponseError(str(error))
        raised.status_code = error.response["ResponseMetadata"]["HTTPStatusCode"]
        raised.error_code = error.response["Error"]["Code"]
        raise raised from error
    except ReadTimeoutError as error:
        raise ServiceResponseError(str(error)) from error


def _to_condition(given: dict[str, Any]) -> dict[str, Any]:
    match given.get("match_condition"):
        case MatchConditions.IfMissing:
            return {"IfNoneMatch": "*"}
        case MatchConditions.IfNotModified:
            return {"IfMatch": given["etag"].strip('"')}
    return {}


@dataclass
class MemoryBlob:
    """What a client of one blob of azure-storage-blob is."""

    process: Process
    key: str

    @property
    def url(self) -> str:
        return f"{ENDPOINT}/{BUCKET}/{self.key}"

    def _send(self, method: str, **given: Any) -> dict[str, Any]:
        with _as_azure():
            return self.process.send(method, Key=self.key, **given)

    async def get_blob_properties(self, raw_response_hook: Any) -> Any:
        found = self._send("head_object")
        raw_response_hook(_make_answer(found))
        return SimpleNamespace(
            size=found["ContentLength"],
            etag=f'"{found["ETag"]}"',
            last_modified=found["LastModified"],
            metadata=found["Metadata"],
        )

    async def download_blob(self, offset: int = 0, length: int | None = None, **given: Any) -> Any:
        condition = _to_condition(given)
        data = self._send("get_object", **condition)["Body"]

        async def readall() -> bytes:
            return data[offset : None if length is None else offset + length]

        return SimpleNamespace(readall=readall)

    async def upload_blob(self, data: bytes, overwrite: bool, metadata: dict[str, str], **given: Any) -> None:
        assert all(name.isidentifier() for name in metadata), "names of metadata are identifiers"
        condition = _to_condition(given)
        assert overwrite or condition == {"IfNoneMatch": "*"}
        self._send("put_object", Body=data, Metadata=metadata, **condition)

    async def stage_block_from_url(
        self, block: str, url: str, source_offset: int, source_length: int, **_: Any
    ) -> None:
        source = url.removeprefix(f"{ENDPOINT}/{BUCKET}/").partition("?")[0]
        self._send("stage_block", BlockId=block, CopySource=source, Range=(source_offset, source_length))

    async def stage_block(self, block: str, data: io.BytesIO, length: int) -> None:
        assert len(data.getbuffer()) == length
        self._send("stage_block", BlockId=block, Body=data.getvalue())

    async def commit_block_list(self, blocks: list[str], metadata: dict[str, str], **given: Any) -> None:
        self._send("commit_blocks", Blocks=blocks, Metadata=metadata, **_to_condition(given))

    async def delete_blob(self, **given: Any) -> None:
        self._send("delete_object", **_to_condition(given))


def _make_answer(found: dict[str, Any]) -> Any:
    headers = found["ResponseMetadata"]["HTTPHeaders"]
    return SimpleNamespace(http_response=SimpleNamespace(headers=headers))


@dataclass
class MemoryContainer:
    process: Process

    def list_blobs(self, name_starts_with: str, results_per_page: int, **given: Any) -> Any:
        return self._list(name_starts_with, given["raw_response_hook"], MaxKeys=results_per_page)

    def walk_blobs(self, name_starts_with: str, **given: Any) -> Any:
        return self._list(name_starts_with, given["raw_response_hook"], Delimiter="/")

    def _list(self, prefix: str, hook: Any, **more: Any) -> Any:
        async def iterate() -> AsyncIterator[AsyncIterator[Any]]:
            with _as_azure():
                page = self.process.send("list_objects_v2", Prefix=prefix, **more)
            hook(_make_answer(page))
            yield _iterate_blobs(page)

        return SimpleNamespace(by_page=iterate)


async def _iterate_blobs(page: dict[str, Any]) -> AsyncIterator[Any]:
    for one in page["Contents"]:
        yield SimpleNamespace(
            name=one["Key"],
            size=one["Size"],
            etag=one["ETag"],
            last_modified=one["LastModified"],
            metadata=None,
        )
    for one in page["CommonPrefixes"]:
        yield SimpleNamespace(name=one["Prefix"])


@dataclass
class MemoryService:
    """What a service client of azure-storage-blob is."""

    process: Process
    url: str = ENDPOINT
    credential: Any = None

    def get_blob_client(self, container: str, blob: str) -> MemoryBlob:
        assert container == BUCKET
        return MemoryBlob(self.process, blob)

    def get_container_client(self, container: str) -> MemoryContainer:
        assert container == BUCKET
        return MemoryContainer(self.process)


class MemoryAzure(MemoryFileSystem):
    """What adlfs is."""

    protocol = ("abfs", "az", "abfss")
    loop = None

    def __init__(self, process: Process, **options: Any) -> None:
        super().__init__(process, **options)
        self.service_client = MemoryService(process)


def run_at_once(honest: Any) -> Any:
    """How requests to memory are carried out: in the thread that asks, so that a kill ends that thread."""

    def run(self: AzureTransport, send: Any) -> Any:
        if not isinstance(self.service, MemoryService):
            return honest(self, send)
        try:
            send().send(None)
        except StopIteration as stop:
            return stop.value
        raise AssertionError("nothing in memory waits")

    return run


def read_at_once(honest: Any) -> Any:
    """How s3fs in memory reads some bytes under a condition."""

    def read_range(filesystem: Any, bucket: str, key: str, **given: Any) -> bytes:
        if not isinstance(filesystem, MemoryFileSystem):
            return honest(filesystem, bucket, key, **given)
        return filesystem.read_range(bucket, key, **given)

    return read_range


# GCS.


@contextmanager
def _as_gcsfs(path: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        match status:
            case 404:
                raise FileNotFoundError(path) from error
            case 412:
                raise FileExistsError(path) from error
            case 403:
                raise OSError(f"Forbidden: {path}\n{error}") from error
        raise HttpError({"code": status, "message": str(error)}) from error
    except ReadTimeoutError as error:
        raise aiohttp.ServerTimeoutError(str(error)) from error


class MemoryGcs(MemoryFileSystem):
    """What gcsfs is."""

    protocol = ("gs", "gcs")
    _location = ENDPOINT

    def call(self, method: str, path: str, *parts: str, **given: Any) -> tuple[dict[str, str], bytes]:
        with _as_gcsfs(path):
            answer, shown = self._carry_out(method, path, list(parts), given)
        headers = {"Date": answer["ResponseMetadata"]["HTTPHeaders"]["date"]}
        return headers, shown if isinstance(shown, bytes) else json.dumps(shown).encode()

    def _carry_out(self, method: str, path: str, parts: list[str], given: dict[str, Any]) -> tuple[Any, Any]:
        condition = self._to_condition(given.get("ifGenerationMatch"))
        match (method, path):
            case ("GET", "b/{}/o"):
                return self._list(given)
            case ("GET", "b/{}/o/{}") if given.get("alt") == "media":
                wanted = given.get("headers", {}).get("Range", "")
                answer = self.process.send("get_object", Key=parts[1], Range=wanted, **condition)
                return answer, answer["Body"]
            case ("GET", "b/{}/o/{}"):
                answer = self.process.send("head_object", Key=parts[1])
                return answer, {**_show(parts[1], answer), "metadata": answer["Metadata"]}
            case ("DELETE", "b/{}/o/{}"):
                return self.process.send("delete_object", Key=parts[1], **condition), {}
            case ("POST", "b/{}/o/{}/rewriteTo/b/{}/o/{}"):
                answer = self.process.send(
                    "rewrite_object",
                    Key=parts[3],
                    CopySource=parts[1],
                    CopySourceIfMatch=given["ifSourceGenerationMatch"],
                    Metadata=given["json"]["metadata"],
                    **condition,
                )
                return answer, {"done": True}
        assert unquote(path) == f"{ENDPOINT}/upload/storage/v1/b/{BUCKET}/o", path
        about, data = _parse_upload(given["headers"]["Content-Type"], given["data"])
        answer = self.process.send(
            "put_object", Key=about["name"], Body=data, Metadata=about["metadata"], **condition
        )
        return answer, {}

    def _list(self, given: dict[str, Any]) -> tuple[Any, Any]:
        answer = self.process.send(
            "list_objects_v2",
            Prefix=given["prefix"],
            Delimiter=given.get("delimiter", ""),
            MaxKeys=int(given.get("maxResults", 1000)),
        )
        items = [_show(one["Key"], one) for one in answer["Contents"]]
        return answer, {"items": items, "prefixes": [one["Prefix"] for one in answer["CommonPrefixes"]]}

    def _to_condition(self, generation: str | None) -> dict[str, str]:
        if generation is None:
            return {}
        return {"IfNoneMatch": "*"} if generation == "0" else {"IfMatch": generation}


def _show(key: str, found: dict[str, Any]) -> dict[str, Any]:
    size = found["Size"] if "Size" in found else found["ContentLength"]
    modified: dt.datetime = found["LastModified"]
    return {"name": key, "size": str(size), "generation": found["ETag"], "updated": modified.isoformat()}


def _parse_upload(kind: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    mark = kind.partition('boundary="')[2].rstrip('"').encode()
    assert body.endswith(b"\r\n--" + mark + b"--")
    first, _, second = body[: -len(mark) - 6].partition(b"\r\n--" + mark + b"\r\n")
    about = json.loads(first.partition(b"\r\n\r\n")[2])
    return about, second.partition(b"\r\n\r\n")[2]
