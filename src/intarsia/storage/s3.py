"""Requests to S3 and servers that speak its protocol, with the credentials of the file system given.

Through botocore, which the extra ``s3`` brings along, because it has what obstore lacks: the completion of a
multipart upload under a condition, by which a large file is replaced without its bytes leaving the store.
"""

from __future__ import annotations

import datetime as dt
import errno
import functools
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

import pyarrow.fs as pafs

from intarsia.common.log import redact
from intarsia.common.requests import S3_OPERATIONS, RequestCounter, RequestKind, is_s3fs, watch_botocore
from intarsia.common.store_access import S3Access
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
"""Up to this many bytes, a copy is read and written: two requests instead of three, and no upload begun."""
PART = 1 << 30
_MOST_PER_COPY = 5 << 30
_PAGE = 1000
_TIMEOUTS = {"connect_timeout": 5, "read_timeout": 60}
_CONNECTIONS = 32
_CONFLICTS = (409, 412)
_SHORTEST_ROLE = 900
"""Seconds that STS gives the credentials of a role for, at least."""
_LASTS = 3600
"""Seconds that credentials must still be valid for, to be given to others, who cannot renew them."""
_UNSURE_CODES = ("RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable", "OperationAborted")
_MISSING = ("NoSuchKey", "NoSuchBucket", "NoSuchUpload", "NotFound", "404")


class S3Transport(Protocol):
    """Sends one request of S3's API, with somebody's credentials."""

    endpoint: str

    def call(self, method: str, **arguments: Any) -> dict[str, Any]: ...

    def read(self, bucket: str, key: str, **arguments: Any) -> bytes: ...

    def find_access(self) -> S3Access | None: ...


class BotocoreTransport:
    """A client of botocore, made from the settings of a PyArrow file system."""

    def __init__(self, settings: Mapping[str, Any], counter: RequestCounter) -> None:
        from botocore import UNSIGNED
        from botocore.config import Config

        custom = settings["endpoint_override"]
        if custom and "://" not in custom:  # PyIceberg gives a whole URL
            custom = f"{settings['scheme']}://{custom}"
        self.endpoint = custom or f"aws:{settings['region']}"
        config: dict[str, Any] = {
            **_TIMEOUTS,
            "max_pool_connections": _CONNECTIONS,
            "retries": {"mode": "standard", "total_max_attempts": 3},
            # Servers of others know no trailing checksums.
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
        if settings["request_timeout"] > 0:
            config["read_timeout"] = settings["request_timeout"]
        if settings["connect_timeout"] > 0:
            config["connect_timeout"] = settings["connect_timeout"]
        if settings["anonymous"]:
            config["signature_version"] = UNSIGNED
        if custom and not settings["force_virtual_addressing"]:
            config["s3"] = {"addressing_style": "path"}
        if (proxy := settings["proxy_options"])["host"]:
            config["proxies"] = {settings["scheme"]: _make_proxy_url(proxy)}
        session = _open_session()
        session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_parse_time)
        if settings["role_arn"]:
            _assume_role(session, settings)
        self._client = session.create_client(
            "s3",
            region_name=settings["region"] or None,
            endpoint_url=custom or None,
            aws_access_key_id=settings["access_key"] or None,
            aws_secret_access_key=settings["secret_key"] or None,
            aws_session_token=settings["session_token"] or None,
            verify=settings["tls_ca_file_path"] or None,
            config=Config(**config),
        )

        watch_botocore(self._client, counter)
        self._has_own_certificate = bool(settings["tls_ca_file_path"])

    def find_access(self) -> S3Access | None:
        if self._has_own_certificate:
            return None
        return _make_access(self._client, lambda credentials: credentials.get_frozen_credentials())

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        return dict(getattr(self._client, method)(**arguments))

    def read(self, bucket: str, key: str, **arguments: Any) -> bytes:
        from botocore.exceptions import HTTPClientError, IncompleteReadError

        answer = self._client.get_object(Bucket=bucket, Key=key, **arguments)
        try:
            return bytes(answer["Body"].read())
        except (HTTPClientError, IncompleteReadError):  # botocore asks again for an answer, not for its body
            return bytes(self._client.get_object(Bucket=bucket, Key=key, **arguments)["Body"].read())


def _open_session() -> Any:
    """A session with settings and credentials of its own; descriptions of services are read once."""
    import botocore.session

    session = botocore.session.get_session()
    session.register_component("data_loader", _make_loader(session.get_config_variable("data_path")))
    return session


@functools.cache
def _make_loader(search_path: str | None) -> Any:
    """What a session would make for itself: parsing the descriptions is most of what a client takes."""
    from botocore.loaders import create_loader

    return create_loader(search_path)


def _parse_time(text: Any) -> dt.datetime:
    """A time of an answer. For those of listings botocore needs as long as for all the rest of them."""
    from botocore.utils import parse_timestamp

    if isinstance(text, str) and text.endswith("Z"):
        try:
            return dt.datetime.fromisoformat(text)
        except ValueError:
            pass  # botocore knows more formats
    found: dt.datetime = parse_timestamp(text)
    return found


def _assume_role(session: Any, settings: Mapping[str, Any]) -> None:
    """Have a session ask STS for the credentials of a role, and again before they expire, as PyArrow does."""
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials

    source = _open_session()
    own = source.get_credentials()
    if own is None:
        raise StorageError(
            f"The role {settings['role_arn']} cannot be assumed: there are no credentials to do so with.",
            errno=errno.EACCES,
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile; PyArrow asks for the same",
        )
    more = {
        "RoleSessionName": settings["session_name"] or f"intarsia-{uuid.uuid4().hex}",
        "DurationSeconds": max(_SHORTEST_ROLE, settings["load_frequency"]),
    }
    if settings["external_id"]:
        more["ExternalId"] = settings["external_id"]
    region = settings["region"] or source.get_config_variable("region") or "us-east-1"
    fetcher = AssumeRoleCredentialFetcher(
        functools.partial(source.create_client, region_name=region), own, settings["role_arn"], more
    )
    session._credentials = DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")


def _make_proxy_url(proxy: Mapping[str, Any]) -> str:
    user = f"{proxy['username']}:{proxy['password']}@" if proxy["username"] else ""
    port = f":{proxy['port']}" if proxy["port"] > 0 else ""
    return f"{proxy['scheme'] or 'http'}://{user}{proxy['host']}{port}"


class FsspecTransport:
    """The requests of s3fs itself, so that its session and its credentials are the ones used."""

    def __init__(self, filesystem: Any, counter: RequestCounter) -> None:
        self._filesystem, self._counter = filesystem, counter
        options = getattr(filesystem, "client_kwargs", None) or {}
        custom = getattr(filesystem, "endpoint_url", None) or options.get("endpoint_url")
        self.endpoint = str(custom or f"aws:{options.get('region_name') or ''}")

    def _count(self, kind: RequestKind) -> None:
        if is_s3fs(self._filesystem):
            watch_botocore(self._filesystem.s3, self._counter)
        else:
            self._counter.add(kind)

    def find_access(self) -> S3Access | None:
        from fsspec.asyn import sync

        opened = self._filesystem
        settings = getattr(opened, "client_kwargs", None) or {}
        # Headers of one's own, who pays, versions, certificates.
        special = [
            getattr(opened, name, None) for name in ("s3_additional_kwargs", "req_kw", "version_aware")
        ]
        if not is_s3fs(opened) or any(special) or "verify" in settings:
            return None
        return _make_access(
            opened.s3, lambda credentials: sync(opened.loop, credentials.get_frozen_credentials)
        )

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        self._count(S3_OPERATIONS.get(method.title().replace("_", ""), "GET"))
        return dict(self._filesystem.call_s3(method, **arguments))

    def read(self, bucket: str, key: str, **arguments: Any) -> bytes:
        self._count("GET")
        if not arguments:
            return bytes(self._filesystem.cat_file(f"{bucket}/{key}"))
        return _read_range(self._filesystem, bucket, key, **arguments)


def _read_range(filesystem: Any, bucket: str, key: str, **arguments: Any) -> bytes:
    """Some bytes of an object under a condition, which no method of s3fs itself does.

    As its methods do, asks again where the answer breaks off.
    """
    from aiohttp import ClientError
    from botocore.exceptions import HTTPClientError, IncompleteReadError, ResponseStreamingError
    from fsspec.asyn import sync

    async def read() -> bytes:
        answer = await filesystem._call_s3("get_object", Bucket=bucket, Key=key, **arguments)
        try:
            async with answer["Body"] as body:
                return bytes(await body.read())
        except ClientError as error:
            raise ResponseStreamingError(error=error) from error

    try:
        return bytes(sync(filesystem.loop, read))
    except (HTTPClientError, IncompleteReadError):
        return bytes(sync(filesystem.loop, read))


def _make_access(client: Any, freeze: Callable[[Any], Any]) -> S3Access | None:
    """What a client of botocore, or of aiobotocore, sends its requests with; None where there is more to it.

    That is a proxy, a certificate, an old or no signature, or credentials that may expire meanwhile.
    """
    from botocore.exceptions import BotoCoreError

    config, url = client.meta.config, urlsplit(client.meta.endpoint_url)
    options = config.s3 or {}
    own = not (url.hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))
    region = client.meta.region_name or ""
    if own and region in ("", "aws-global"):
        region = "us-east-1"  # with which botocore signs
    unusual = (
        any(options.get(name) for name in ("use_accelerate_endpoint", "use_dualstack_endpoint")),
        config.proxies,
        url.scheme == "https" and os.environ.get("AWS_CA_BUNDLE"),
        config.signature_version not in ("s3v4", "v4"),
        url.path.strip("/") or url.username,
        region in ("", "aws-global"),
    )
    credentials = client._request_signer._credentials
    if any(unusual) or credentials is None:
        return None
    try:
        frozen = freeze(credentials)
    except BotoCoreError:  # the file system's own requests will say so
        return None
    if hasattr(credentials, "refresh_needed") and credentials.refresh_needed(_LASTS):
        return None
    style = options.get("addressing_style")
    return S3Access(
        host=url.netloc,
        region=region,
        encrypted=url.scheme == "https",
        bucket_in_path=style == "path" or (own and style != "virtual"),
        key=frozen.access_key,
        secret=frozen.secret_key,
        token=frozen.token or "",
    )


def find_access(filesystem: pafs.FileSystem) -> S3Access | None:
    """How others may read what a file system of S3 reads; None where they could not."""
    open_client = find_client(filesystem)
    return None if open_client is None else open_client(RequestCounter()).find_access()


def find_client(filesystem: pafs.FileSystem) -> Callable[[RequestCounter], S3Client] | None:
    """How to open a client as a file system does; None where it is not one of S3, or cannot be followed."""
    transport = _find_transport(filesystem)
    return None if transport is None else functools.partial(_open_client, transport)


def _open_client(transport: Callable[[RequestCounter], S3Transport], counter: RequestCounter) -> S3Client:
    return S3Client(transport(counter))


def _find_transport(filesystem: pafs.FileSystem) -> Callable[[RequestCounter], S3Transport] | None:
    if filesystem.type_name == "s3":  # some builds of PyArrow lack the class
        if not _has_botocore():
            return None
        _, (settings,) = filesystem.__reduce__()  # PyArrow shows its settings in this way only
        return functools.partial(BotocoreTransport, settings)
    inner, names = find_inner_protocols(filesystem)
    if "s3" in names and hasattr(inner, "call_s3") and _has_botocore():
        return functools.partial(FsspecTransport, inner)
    return None


@functools.cache
def _has_botocore() -> bool:
    try:
        import botocore.session  # noqa: F401
    except ImportError:
        return False
    return True


class S3Client:
    """Conditional requests to S3; see :class:`intarsia.storage.conditional.ObjectClient`."""

    tags_tell_bytes = True

    def __init__(self, transport: S3Transport) -> None:
        self._transport = transport

    @property
    def endpoint(self) -> str:
        return redact(self._transport.endpoint)

    def find_access(self) -> S3Access | None:
        """How others may read what this client reads; None where they could not."""
        return self._transport.find_access()

    def head(self, path: str) -> StoredObject | None:
        try:
            found = self._send("head_object", path)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        now = _find_now(found)
        return StoredObject(
            path,
            int(found["ContentLength"]),
            found["ETag"],
            find_age(found["LastModified"], now),
            {str(key).lower(): str(value) for key, value in found.get("Metadata", {}).items()},
        )

    def get(self, path: str) -> bytes:
        bucket, key = split_path(path)
        return self._guard("read", path, lambda: self._transport.read(bucket, key))

    def get_range(self, path: str, start: int, size: int, tag: str | None) -> bytes:
        bucket, key = split_path(path)
        wanted = {"Range": f"bytes={start}-{start + size - 1}", **({} if tag is None else {"IfMatch": tag})}
        return self._guard("read", path, lambda: self._transport.read(bucket, key, **wanted))

    def list_objects(self, prefix: str, *, most: int | None = None) -> Iterator[StoredObject]:
        for page in self._iterate_pages(prefix, MaxKeys=min(most or _PAGE, _PAGE)):
            now = _find_now(page)
            bucket = prefix.partition("/")[0]
            for found in page.get("Contents", ()):
                path = f"{bucket}/{found['Key']}"
                yield StoredObject(
                    path, int(found["Size"]), found["ETag"], find_age(found["LastModified"], now)
                )
            if most is not None:
                return

    def list_names(self, directory: str) -> list[str]:
        prefix = f"{directory}/"
        start = len(split_path(prefix)[1])
        names: set[str] = set()
        for page in self._iterate_pages(prefix, Delimiter="/"):
            names.update(found["Key"][start:] for found in page.get("Contents", ()))
            names.update(found["Prefix"][start:].rstrip("/") for found in page.get("CommonPrefixes", ()))
        return sorted(names - {""})

    def _iterate_pages(self, prefix: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        bucket, start = split_path(prefix)
        while True:
            page = self._guard(
                "list",
                prefix,
                lambda: self._transport.call("list_objects_v2", Bucket=bucket, Prefix=start, **arguments),
            )
            yield page
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def put(
        self,
        path: str,
        data: bytes,
        condition: Condition = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        more = {"Metadata": dict(metadata)} if metadata else {}
        self._send("put_object", path, Body=data, **more, **_make_condition(condition))

    def copy(
        self,
        source: StoredObject,
        target: str,
        condition: Condition = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        if condition is None and source.size <= _MOST_PER_COPY:
            self._send("copy_object", target, CopySource=_make_source(source), CopySourceIfMatch=source.tag)
        elif source.size <= SMALL:
            # Servers ignore conditions on the target of a copy, and heed those of a put.
            self.put(target, self.get(source.path), condition, metadata)
        else:
            self.complete_large_copy(source, target, condition, metadata or {})

    def complete_large_copy(
        self, source: StoredObject, target: str, condition: Condition, metadata: Mapping[str, str]
    ) -> None:
        upload = self._send("create_multipart_upload", target, Metadata=dict(metadata))["UploadId"]
        try:
            parts = []
            for number, first in enumerate(range(0, max(source.size, 1), PART), start=1):
                last = min(first + PART, source.size) - 1
                copied = self._send(
                    "upload_part_copy",
                    target,
                    UploadId=upload,
                    PartNumber=number,
                    CopySource=_make_source(source),
                    CopySourceIfMatch=source.tag,
                    CopySourceRange=f"bytes={first}-{last}",
                )
                parts.append({"PartNumber": number, "ETag": copied["CopyPartResult"]["ETag"]})
            self._send(
                "complete_multipart_upload",
                target,
                UploadId=upload,
                MultipartUpload={"Parts": parts},
                **_make_condition(condition),
            )
        except (ConditionFailed, StorageError) as error:
            self._abort(target, upload, error)
            raise

    def _abort(self, path: str, upload: str, error: Exception) -> None:
        """Give up an upload whose completion failed; one that was completed after all is gone."""
        try:
            self.abort_upload(Upload(path, upload, 0.0))
        except StorageError as refusal:
            error.add_note(f"The upload to {path} could not be given up: {refusal}")

    def delete(self, path: str, condition: IfMatch | None = None) -> None:
        try:
            self._send("delete_object", path, **_make_condition(condition))
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise

    def list_uploads(self, prefix: str) -> list[Upload]:
        bucket, start = split_path(prefix)
        found = self._guard(
            "list",
            prefix,
            lambda: self._transport.call("list_multipart_uploads", Bucket=bucket, Prefix=start),
        )
        now = _find_now(found)
        return [
            Upload(f"{bucket}/{one['Key']}", one["UploadId"], find_age(one["Initiated"], now))
            for one in found.get("Uploads") or ()
        ]

    def abort_upload(self, upload: Upload) -> None:
        try:
            self._send("abort_multipart_upload", upload.path, UploadId=upload.id)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise

    def _send(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        bucket, key = split_path(path)
        action = method.partition("_")[0]
        return self._guard(
            action, path, lambda: self._transport.call(method, Bucket=bucket, Key=key, **arguments)
        )

    def _guard(self, action: str, path: str, send: Callable[[], Any]) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return send()
        except (ClientError, BotoCoreError, OSError) as error:
            raise _translate(error, action, path) from error


def _make_condition(condition: Condition) -> dict[str, str]:
    match condition:
        case None:
            return {}
        case IfAbsent():
            return {"IfNoneMatch": "*"}
        case IfMatch(tag):
            return {"IfMatch": tag}


def _make_source(source: StoredObject) -> dict[str, str]:
    bucket, key = split_path(source.path)
    return {"Bucket": bucket, "Key": key}


def _find_now(answer: Mapping[str, Any]) -> dt.datetime:
    return find_now(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date"))


def _translate(error: Exception, action: str, path: str) -> Exception:
    """What a failure means: the condition, no answer, or a refusal."""
    answer = _find_answer(error)
    code = str(answer.get("Error", {}).get("Code", "")) if answer is not None else ""
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) if answer is not None else 0
    if not status and code.isdecimal():
        status = int(code)
    reason = redact(f"Could not {action} {path}: {code} {error}")
    if code in _MISSING or isinstance(error, FileNotFoundError):
        return StorageError(reason, errno=errno.ENOENT, path=redact(path))
    if status in _CONFLICTS or code in ("PreconditionFailed", "ConditionalRequestConflict"):
        return ConditionFailed(reason)
    if status == 404:
        return StorageError(reason, errno=errno.ENOENT, path=redact(path))
    if status in (401, 403) or isinstance(error, PermissionError):
        return StorageError(reason, errno=errno.EACCES, path=redact(path))
    if answer is None and not _is_lost(error):
        return StorageError(reason, errno=errno.EACCES, path=redact(path))
    if status == 501 or code == "NotImplemented":
        return StorageError(reason, errno=errno.ENOTSUP, path=redact(path))
    if answer is None or status >= 500 or status in (408, 429) or code in _UNSURE_CODES:
        return Unanswered(reason, path=redact(path))
    return StorageError(reason, errno=errno.EINVAL, path=redact(path))


def _is_lost(error: Exception) -> bool:
    """Whether a request without an answer may have been sent: not where there are no credentials."""
    from botocore.exceptions import BotoCoreError, ConnectionError, HTTPClientError, IncompleteReadError

    return not isinstance(error, BotoCoreError) or isinstance(
        error, (ConnectionError, HTTPClientError, IncompleteReadError)
    )


def _find_answer(error: BaseException) -> Mapping[str, Any] | None:
    """The server's answer, which s3fs keeps behind an error of its own."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(answer := getattr(seen, "response", None), Mapping):
            return answer
        seen = seen.__cause__
    return None
