"""Opens the storage of a path or URL, with or without a file system object."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from intarsia.common.log import redact
from intarsia.common.paths import redact_path, refuse_sign_in, to_path_text, with_time_limit
from intarsia.common.requests import find_base
from intarsia.common.system import parse_file_url, to_slashes
from intarsia.errors import InputError, NotSupported
from intarsia.storage import azure, gcs, s3
from intarsia.storage.objects import ObjectStorage
from intarsia.storage.port import Storage, as_storage_error, translate_storage_errors
from intarsia.storage.posix import PosixStorage
from intarsia.storage.remote import RemoteStorage

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")


def open_storage(
    target: str | os.PathLike[str],
    *,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[Storage, str]:
    """The storage a target lives on, and the target's normalised path there.

    Args:
        target: a local path, a ``file://`` URL, another URL, or a path on ``filesystem``.
        filesystem: any pyarrow or fsspec file system; a local disk in any disguise is a local disk.
        storage_options: what fsspec needs to open a URL that pyarrow does not know.

    Raises:
        InputError: the target is empty or the file system is neither pyarrow's nor fsspec's.
        NotSupported: no installed library knows the URL's scheme.
    """
    path = to_path_text(target, "A target")
    if filesystem is not None:
        return _wrap_filesystem(filesystem, _without_scheme(path))
    if not _URL.match(path):
        return PosixStorage(), _resolve_local(path)
    if urlsplit(path).scheme.lower() in ("file", "local"):
        return PosixStorage(), _resolve_local(parse_file_url(path))
    return _from_url(path, dict(storage_options or {}))


def _from_url(url: str, options: dict[str, Any]) -> tuple[Storage, str]:
    if urlsplit(url).scheme.lower() in ("http", "https"):
        raise NotSupported(
            f"{redact_path(url)} is a web address, behind which no file can be listed or changed.",
            path=redact_path(url),
            hint="name the store itself, such as s3://bucket/path; as a source a web address is fine",
        )
    if not options:
        try:
            return _wrap_filesystem(*pafs.FileSystem.from_uri(with_time_limit(url)))
        except pa.ArrowInvalid:
            pass  # a scheme pyarrow does not know
        except OSError as error:
            raise as_storage_error(error, "open", url) from error
    fsspec = _import_fsspec(url)
    try:
        with translate_storage_errors("open", url):
            found, path = fsspec.core.url_to_fs(url, **options)
    except (ValueError, ImportError) as error:
        raise NotSupported(
            redact(f"No installed library can open {url}: {error}"),
            path=redact(url),
            hint="install the fsspec implementation for this scheme, or pass filesystem=",
        ) from error
    refuse_sign_in(url, path)
    return _wrap_filesystem(found, path)


def _import_fsspec(url: str) -> Any:
    try:
        import fsspec
        import fsspec.core
    except ImportError as error:
        raise NotSupported(
            redact(f"{url} needs fsspec, which is not installed."),
            path=redact(url),
            hint="pip install 'intarsia[fsspec]', or pass filesystem=",
        ) from error
    return fsspec


def _wrap_filesystem(filesystem: Any, path: str) -> tuple[Storage, str]:
    match _find_local_base(filesystem):
        case None:
            storage, found = _open_remote(find_base(_as_pyarrow(filesystem))), _normalize_remote(path)
            return storage, found.lstrip("/") if isinstance(storage, ObjectStorage) else found
        case base:
            return PosixStorage(), _resolve_local(posixpath.join(base, path.lstrip("/")) if base else path)


def _open_remote(filesystem: pafs.FileSystem) -> Storage:
    """A store with conditional requests where there is a client for it, else one of files alone."""
    for module in (s3, azure, gcs):
        open_client = module.find_client(filesystem)
        if open_client is not None:
            return ObjectStorage(filesystem, open_client)
    return RemoteStorage(filesystem)


def _find_local_base(filesystem: Any) -> str | None:
    """The local directory that a file system's paths start at ("" for the root); None if it is not local."""
    if isinstance(filesystem, pafs.SubTreeFileSystem):
        base = _find_local_base(filesystem.base_fs)
        return None if base is None else posixpath.join(base, filesystem.base_path)
    if isinstance(filesystem, pafs.LocalFileSystem):
        return ""
    if isinstance(filesystem, pafs.PyFileSystem):
        return _find_local_base(getattr(filesystem.handler, "fs", None))
    if filesystem is None or isinstance(filesystem, pafs.FileSystem):
        return None
    protocol = getattr(filesystem, "protocol", ())
    names = {protocol} if isinstance(protocol, str) else set(protocol)
    if "dir" in names:
        base = _find_local_base(filesystem.fs)
        return None if base is None else posixpath.join(base, filesystem.path)
    return "" if names & {"file", "local"} else None


def _as_pyarrow(filesystem: Any) -> pafs.FileSystem:
    if isinstance(filesystem, pafs.FileSystem):
        return filesystem
    if not (hasattr(filesystem, "protocol") and hasattr(filesystem, "info") and hasattr(filesystem, "find")):
        raise InputError(
            f"filesystem= must be a pyarrow or an fsspec file system, not {type(filesystem).__name__}."
        )
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))


def _without_scheme(path: str) -> str:
    """The path of a URL given beside a file system object (``memory://a/b`` -> ``a/b``)."""
    return path.split("://", 1)[1] if _URL.match(path) else path


def _resolve_local(path: str) -> str:
    """The real path: two names of one directory must share one lock."""
    return to_slashes(os.path.realpath(os.path.expanduser(path)))


def _normalize_remote(path: str) -> str:
    lead = "/" if path.startswith("/") else ""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InputError(f"A path on a store cannot contain '..': {path}", path=path)
    return lead + "/".join(parts)
