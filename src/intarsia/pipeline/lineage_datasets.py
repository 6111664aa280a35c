"""Names of datasets as OpenLineage's naming specification has them; nothing here needs its package."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from intarsia.common.log import redact
from intarsia.pipeline.model import Stream

__all__ = ["DatasetName", "name_dataset", "name_stream"]

_GLOB = re.compile(r"[*?\[]")
_SETTINGS = re.compile(r"\?(?=[\w.-]+=)")
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_CONTAINERS = frozenset({"abfs", "abfss", "wasb", "wasbs"})
"""Schemes whose part before the @ is a container, and no user."""
_ROOTED = frozenset({"hdfs", "webhdfs", "abfs", "abfss", "http", "https"})
"""Schemes whose names start with a slash; names in buckets do not."""


@dataclass(frozen=True, slots=True)
class DatasetName:
    """What identifies a dataset in OpenLineage."""

    namespace: str
    name: str


def name_dataset(location: str) -> DatasetName:
    """The name of what is at a path or URL; of a glob, that of the directory that it looks into.

    Neither credentials nor the settings of a URL (``?region=...``) are in it.

    >>> name_dataset("s3://bucket/landing/2025/*.csv")
    DatasetName(namespace='s3://bucket', name='landing/2025')
    >>> name_dataset("/data/orders")
    DatasetName(namespace='file', name='/data/orders')
    """
    scheme, separator, rest = location.partition("://")
    if not separator:
        return DatasetName("file", redact(os.path.normpath(os.path.abspath(_cut_glob(location)))))
    if scheme == "file":
        return DatasetName("file", redact(os.path.normpath(_cut_glob(unquote(urlsplit(location).path)))))
    if scheme not in _CONTAINERS:
        rest = redact(location).partition("://")[2]
    host, slash, path = _SETTINGS.split(rest, maxsplit=1)[0].partition("/")
    if scheme in ("http", "https"):
        path = path.partition("?")[0].partition("#")[0]
    owner, at, place = host.rpartition("@")
    if at and scheme in _CONTAINERS:
        place = f"{owner.partition(':')[0]}@{place}"
    name = _cut_glob(f"{slash}{path}").rstrip("/")
    name = name or "/" if scheme in _ROOTED else name.lstrip("/") or "/"
    return DatasetName(f"{_SCHEMES.get(scheme, scheme)}://{place}", redact(name))


def name_stream(stream: Stream) -> tuple[DatasetName, ...]:
    """The names of what a stream reads: its directory, or the topics of Kafka; none for other streams."""
    if stream.path is not None:
        return (name_dataset(stream.path),)
    options = {key.lower(): str(value) for key, value in stream.options.items()}
    servers, topics = options.get("kafka.bootstrap.servers"), options.get("subscribe")
    if not servers or not topics:
        return ()
    first = servers.split(",")[0].strip()
    return tuple(DatasetName(f"kafka://{first}", topic.strip()) for topic in topics.split(","))


def _cut_glob(path: str) -> str:
    """The directories of a path before the first that is a pattern."""
    found = _GLOB.search(path)
    return path if found is None else path[: path.rfind("/", 0, found.start()) + 1] or "."
