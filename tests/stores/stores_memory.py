"""An object store in memory, as far as commits need it, with faults at any request; no network, no threads.

``MemoryStore`` is the server, of one of three kinds. ``MemoryFileSystem`` is a process's way to it: it looks
like s3fs to intarsia, and :mod:`stores_faces` has what looks like adlfs and like gcsfs, so that everything
above the wire is the code that talks to real servers. Requests are named as S3 names them, whatever the kind.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import hashlib
import io
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from email.utils import format_datetime
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from botocore.exceptions import ClientError, ReadTimeoutError

BUCKET = "bucket"
ENDPOINT = "memory://s3"
FAULTS = ("kill", "kill after", "lost", "late", "timeout", "500", "500 after", "503", "repeat", "expired")
COPIES = ("copy_object", "rewrite_object")
"""Requests that read one object and write another, which is not one moment on a server."""


class Killed(BaseException):
    """The process is gone: no handler runs, and no request goes out any more."""


@dataclass
class Stored:
    data: bytes
    tag: str
    written: float
    metadata: dict[str, str] = field(default_factory=dict)


def _refuse(status: int, code: str, method: str) -> ClientError:
    answer = {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, method)  # type: ignore[arg-type]


@dataclass
class MemoryStore:
    """The objects of one bucket. Each request is carried out at once, one after the other."""

    kind: str = "s3"
    """Or ``azure`` or ``gcs``, where a tag is new with every write."""
    objects: dict[str, Stored] = field(default_factory=dict)
    uploads: dict[str, dict[str, Any]] = field(default_factory=dict)
    clock: float = 1_800_000_000.0
    heeds: frozenset[str] = frozenset({"put", "complete"})
    """Requests whose conditions are heeded."""
    ignores: frozenset[str] = frozenset()
    """Conditions that are not, in any request: for negative controls."""
    blocks: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Azure: staged and not put in place, by name."""
    guard: Any = field(default_factory=threading.RLock, repr=False)

    def copy(self) -> MemoryStore:
        return replace(
            self,
            objects=dict(self.objects),
            uploads=dict(self.uploads),
            blocks={key: dict(found) for key, found in self.blocks.items()},
            guard=threading.RLock(),
        )

    def _make_tag(self, data: bytes) -> str:
        if self.kind == "s3":
            return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
        return str(int(self.clock * 1e6))

    def request(self, method: str, **given: Any) -> dict[str, Any]:
        with self.guard:
            self.clock += 0.001
            answer: dict[str, Any] = getattr(self, f"_{method}")(**given)
            now = dt.datetime.fromtimestamp(self.clock, dt.UTC)
            headers = {"date": format_datetime(now, usegmt=True)}
            return {**answer, "ResponseMetadata": {"HTTPStatusCode": 200, "HTTPHeaders": headers}}

    def _find(self, key: str, method: str) -> Stored:
        if key not in self.objects:
            raise _refuse(404, "404" if method == "HeadObject" else "NoSuchKey", method)
        return self.objects[key]

    def _check(self, key: str, kind: str, given: dict[str, Any]) -> None:
        found = self.objects.get(key)
        given = {name: value for name, value in given.items() if name not in self.ignores}
        if kind not in self.heeds:
            return
        if given.get("IfNoneMatch") == "*" and found is not None:
            raise _refuse(412, "PreconditionFailed", kind)
        if "IfMatch" in given:
            if found is None:
                raise _refuse(404, "NoSuchKey", kind)
            if found.tag != given["IfMatch"]:
                raise _refuse(412, "PreconditionFailed", kind)

    def _put_object(self, Key: str, Body: bytes, **given: Any) -> dict[str, Any]:
        self._check(Key, "put", given)
        metadata = dict(given.get("Metadata", {}))
        self.objects[Key] = Stored(bytes(Body), self._make_tag(Body), self.clock, metadata)
        self.blocks.pop(Key, None)
        return {"ETag": self.objects[Key].tag}

    def _get_object(self, Key: str, Range: str = "", IfMatch: str = "", **_: Any) -> dict[str, Any]:
        found = self._find(Key, "GetObject")
        if IfMatch and found.tag != IfMatch:
            raise _refuse(412, "PreconditionFailed", "GetObject")
        first, _, last = Range.removeprefix("bytes=").partition("-")
        return {"Body": found.data[int(first) : int(last) + 1] if Range else found.data}

    def _head_object(self, Key: str, **_: Any) -> dict[str, Any]:
        found = self._find(Key, "HeadObject")
        return {
            "ContentLength": len(found.data),
            "ETag": found.tag,
            "LastModified": dt.datetime.fromtimestamp(found.written, dt.UTC),
            "Metadata": dict(found.metadata),
        }

    def _list_objects_v2(
        self, Prefix: str, Delimiter: str = "", MaxKeys: int = 1000, ContinuationToken: str = "", **_: Any
    ) -> dict[str, Any]:
        keys = [key for key in sorted(self.objects) if key.startswith(Prefix) and key > ContinuationToken]
        below: set[str] = set()
        if Delimiter:
            inner = [(key, key[len(Prefix) :]) for key in keys]
            below = {f"{Prefix}{rest.partition('/')[0]}/" for _, rest in inner if "/" in rest}
            keys = [key for key, rest in inner if "/" not in rest]
        contents = [
            {
                "Key": key,
                "Size": len(self.objects[key].data),
                "ETag": self.objects[key].tag,
                "LastModified": dt.datetime.fromtimestamp(self.objects[key].written, dt.UTC),
            }
            for key in keys[:MaxKeys]
        ]
        page = {"Contents": contents, "CommonPrefixes": [{"Prefix": one} for one in sorted(below)]}
        if Delimiter or len(keys) <= MaxKeys:
            return page
        return {**page, "IsTruncated": True, "NextContinuationToken": keys[MaxKeys - 1]}

    def _delete_object(self, Key: str, **given: Any) -> dict[str, Any]:
        if self.kind != "s3":  # where many servers delete whatever the condition
            self._find(Key, "DeleteObject")
            self._check(Key, "put", given)
        self.objects.pop(Key, None)
        return {}

    def begin(self, method: str, given: dict[str, Any]) -> dict[str, Any]:
        """A request that is under way: a copy has read its source, which may be gone when it writes."""
        if method not in COPIES:
            return given
        with contextlib.suppress(ClientError):
            return {**given, "Begun": self._find_source(given["CopySource"], given["CopySourceIfMatch"])}
        return given

    def _find_source(self, source: str | dict[str, str], tag: str) -> Stored:
        found = self._find(source if isinstance(source, str) else source["Key"], "CopyObject")
        if found.tag != tag:
            raise _refuse(412, "PreconditionFailed", "CopyObject")
        return found

    def _copy_object(
        self,
        Key: str,
        CopySource: dict[str, str],
        CopySourceIfMatch: str,
        Begun: Stored | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        found = Begun or self._find_source(CopySource, CopySourceIfMatch)
        self.objects[Key] = Stored(found.data, found.tag, self.clock, dict(found.metadata))
        return {}

    def _rewrite_object(
        self,
        Key: str,
        CopySource: str,
        CopySourceIfMatch: str,
        Metadata: dict[str, str],
        Begun: Stored | None = None,
        **given: Any,
    ) -> dict[str, Any]:
        """GCS: a copy under a condition."""
        found = Begun or self._find_source(CopySource, CopySourceIfMatch)
        self._check(Key, "complete", given)
        self.objects[Key] = Stored(found.data, self._make_tag(found.data), self.clock, dict(Metadata))
        return {}

    def _stage_block(self, Key: str, BlockId: str, Body: bytes = b"", **given: Any) -> dict[str, Any]:
        """Azure: blocks belong to a name, and are gone when something is put in place there."""
        if "CopySource" in given:
            first, size = given["Range"]
            Body = self._find(given["CopySource"], "PutBlock").data[first : first + size]
        self.blocks.setdefault(Key, {})[BlockId] = Body
        return {}

    def _commit_blocks(
        self, Key: str, Blocks: list[str], Metadata: dict[str, str], **given: Any
    ) -> dict[str, Any]:
        self._check(Key, "complete", given)
        staged = self.blocks.get(Key, {})
        if not set(Blocks) <= set(staged):
            raise _refuse(400, "InvalidBlockList", "PutBlockList")
        data = b"".join(staged[one] for one in Blocks)
        self.objects[Key] = Stored(data, self._make_tag(data), self.clock, dict(Metadata))
        del self.blocks[Key]
        return {}

    def _create_multipart_upload(self, Key: str, Metadata: dict[str, str], **_: Any) -> dict[str, Any]:
        name = f"upload-{len(self.uploads)}-{self.clock}"
        self.uploads[name] = {"Key": Key, "Metadata": Metadata, "parts": {}, "begun": self.clock}
        return {"UploadId": name}

    def _upload_part_copy(
        self, UploadId: str, PartNumber: int, CopySource: dict[str, str], CopySourceRange: str, **_: Any
    ) -> dict[str, Any]:
        found = self._find(CopySource["Key"], "UploadPartCopy")
        if UploadId not in self.uploads:
            raise _refuse(404, "NoSuchUpload", "UploadPartCopy")
        first, last = CopySourceRange.removeprefix("bytes=").split("-")
        part = found.data[int(first) : int(last) + 1]
        self.uploads[UploadId]["parts"][PartNumber] = part
        return {"CopyPartResult": {"ETag": self._make_tag(part)}}

    def _complete_multipart_upload(self, Key: str, UploadId: str, **given: Any) -> dict[str, Any]:
        if UploadId not in self.uploads:
            raise _refuse(404, "NoSuchUpload", "CompleteMultipartUpload")
        self._check(Key, "complete", given)
        upload = self.uploads.pop(UploadId)
        data = b"".join(part for _, part in sorted(upload["parts"].items()))
        tag = f'{self._make_tag(data)[:-1]}-{len(upload["parts"])}"'
        self.objects[Key] = Stored(data, tag, self.clock, dict(upload["Metadata"]))
        return {}

    def _abort_multipart_upload(self, UploadId: str, **_: Any) -> dict[str, Any]:
        if self.uploads.pop(UploadId, None) is None:
            raise _refuse(404, "NoSuchUpload", "AbortMultipartUpload")
        return {}

    def _list_multipart_uploads(self, Prefix: str, **_: Any) -> dict[str, Any]:
        found = self.uploads.items()
        return {
            "Uploads": [
                {
                    "Key": upload["Key"],
                    "UploadId": name,
                    "Initiated": dt.datetime.fromtimestamp(upload["begun"], dt.UTC),
                }
                for name, upload in found
                if upload["Key"].startswith(Prefix)
            ]
        }

    # What tests look at.

    def rows(self, root: str, *columns: str) -> list[tuple[Any, ...]]:
        """The rows of every Parquet file below a root, as somebody who only lists sees them; sorted."""
        below = [
            key for key in sorted(self.objects) if key.startswith(f"{root}/") and key.endswith(".parquet")
        ]
        tables = [pq.read_table(pa.BufferReader(self.objects[key].data)) for key in below]
        found = pa.concat_tables(tables).select(list(columns)).to_pylist() if tables else []
        return sorted(tuple(row.values()) for row in found)


class Process:
    """One writer's requests, counted; at one of them something happens."""

    def __init__(
        self, server: MemoryStore, *, at: int = 0, fault: str = "", then: Callable[[], None] | None = None
    ) -> None:
        self.server = server
        self.sent: list[str] = []
        self.late: list[tuple[str, dict[str, Any]]] = []
        self._at, self._fault, self._then = at, fault, then
        self._dead = self._expired = False
        self._guard = threading.RLock()

    def send(self, method: str, **given: Any) -> dict[str, Any]:
        given.pop("Bucket", None)
        with self._guard:
            if self._dead:
                raise Killed
            if self._expired:
                raise _refuse(403, "ExpiredToken", method)
            self.sent.append(f"{method} {given.get('Key', given.get('Prefix'))}")
            if len(self.sent) == self._at:
                return self._fail(method, given)
        return self.server.request(method, **given)

    def _fail(self, method: str, given: dict[str, Any]) -> dict[str, Any]:
        timeout = ReadTimeoutError(endpoint_url=ENDPOINT)
        match self._fault:
            case "kill":
                self._dead = True
                raise Killed
            case "kill after":
                self._dead = True
                self._apply(method, given)
                raise Killed
            case "lost":
                self._apply(method, given)
                raise timeout
            case "late":
                self.late.append((method, self.server.begin(method, given)))
                raise timeout
            case "timeout":
                raise timeout
            case "500":
                raise _refuse(500, "InternalError", method)
            case "503":
                raise _refuse(503, "SlowDown", method)
            case "500 after":
                self._apply(method, given)
                raise _refuse(500, "InternalError", method)
            case "repeat":  # the client has sent it again by itself
                self._apply(method, given)
            case "expired":
                self._expired = True
                raise _refuse(403, "ExpiredToken", method)
            case "meanwhile":
                assert self._then is not None
                self._then()
            case "meanwhile, begun":
                assert self._then is not None
                given = self.server.begin(method, given)
                self._then()
        return self.server.request(method, **given)

    def _apply(self, method: str, given: dict[str, Any]) -> None:
        with contextlib.suppress(ClientError):
            self.server.request(method, **given)

    def arrive(self) -> None:
        """What was sent and not carried out is, now."""
        for method, given in self.late:
            self._apply(method, given)
        self.late = []


class _Output(io.BytesIO):
    def __init__(self, filesystem: MemoryFileSystem, path: str) -> None:
        super().__init__()
        self._filesystem, self._path = filesystem, path

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._filesystem.pipe_file(self._path, data)


class MemoryFileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """What s3fs is to a bucket, as far as intarsia and PyArrow go."""

    protocol = ("s3", "s3a")
    cachable = False
    endpoint_url = ENDPOINT

    def __init__(self, process: Process, **options: Any) -> None:
        super().__init__(**options)
        self.process = process

    def call_s3(self, method: str, **given: Any) -> dict[str, Any]:
        return self.process.send(method, **given)

    def read_range(self, bucket: str, key: str, **given: Any) -> bytes:
        data: bytes = self.process.send("get_object", Bucket=bucket, Key=key, **given)["Body"]
        return data

    def _key(self, path: str) -> str:
        return self._strip_protocol(path).strip("/").partition("/")[2]

    def _send(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        """As s3fs does, with errors of the operating system."""
        try:
            return self.process.send(method, **given)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                raise FileNotFoundError(path) from error
            raise OSError(errno.EIO, str(error)) from error
        except ReadTimeoutError as error:
            raise OSError(errno.EIO, str(error)) from error

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        data: bytes = self._send("get_object", path, Key=self._key(path))["Body"]
        return data[start:end]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self._send("put_object", path, Key=self._key(path), Body=value)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        return _Output(self, path) if "w" in mode else io.BytesIO(self.cat_file(path))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        name = self._strip_protocol(path).strip("/")
        try:
            found = self._send("head_object", path, Key=self._key(path))
            return {"name": name, "size": found["ContentLength"], "type": "file", "ETag": found["ETag"]}
        except FileNotFoundError:
            prefix = f"{self._key(path)}/".lstrip("/")
            if not self._send("list_objects_v2", path, Prefix=prefix, MaxKeys=1)["Contents"]:
                raise
            return {"name": name, "size": 0, "type": "directory"}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        prefix = f"{self._key(path)}/".lstrip("/")
        page = self._send("list_objects_v2", path, Prefix=prefix, Delimiter="/")
        found = [
            {"name": f"{BUCKET}/{one['Key']}", "size": one["Size"], "type": "file", "ETag": one["ETag"]}
            for one in page["Contents"]
        ]
        found += [
            {"name": f"{BUCKET}/{one['Prefix'].rstrip('/')}", "size": 0, "type": "directory"}
            for one in page["CommonPrefixes"]
        ]
        return found if detail else [one["name"] for one in found]

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Nothing: there are no directories."""

    makedirs = mkdir

    def rm_file(self, path: str) -> None:
        self._send("delete_object", path, Key=self._key(path))

    _rm = rm_file
