"""Stores reached through a pyarrow or fsspec file system: no links, no atomic rename, no lock."""

from __future__ import annotations

import datetime as dt
import errno
import posixpath
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyarrow.fs as pafs

from intarsia.common.requests import Requests
from intarsia.errors import StorageError
from intarsia.storage.port import FileEntry, Kind, RandomAccess, translate_storage_errors

_ENTITY_TAGS = ("ETag", "etag", "e_tag", "md5Hash", "content_md5", "generation")
"""What no other bytes under the same name have."""
_TAGS = (*_ENTITY_TAGS, "ino", "created", "mtime", "LastModified")
_CHUNK = 1 << 20


class RemoteStorage:
    """Any pyarrow file system, used so that every step can be repeated.

    Copies stand where a local disk has links. Two writers at once are not distinguished, which is why
    tables let such a store only append unless the caller vouches for being the only writer.
    """

    atomic = False

    @property
    def conditional(self) -> bool:
        return False

    @property
    def requests(self) -> Requests | None:
        return None

    def __init__(self, filesystem: pafs.FileSystem) -> None:
        self._filesystem = filesystem

    @property
    def filesystem(self) -> pafs.FileSystem:
        return self._filesystem

    @property
    def _fsspec(self) -> Any | None:
        """The fsspec file system underneath; its listings carry entity tags, pyarrow's do not."""
        handler = getattr(self._filesystem, "handler", None)
        return getattr(handler, "fs", None)

    def walk(
        self, root: str, descend: Callable[[str], bool], *, names_only: bool = False
    ) -> Iterator[FileEntry]:
        for entry in sorted(self._iterate_entries(root), key=lambda found: found.path):
            parents = entry.path.split("/")[:-1]
            if all(descend(name) for name in parents):
                yield entry

    def _forget(self) -> None:
        """A cached listing would hide other writers' files."""
        if self._fsspec is not None:
            self._fsspec.invalidate_cache()

    def _iterate_entries(self, root: str) -> Iterator[FileEntry]:
        self._forget()
        with translate_storage_errors("list", root):
            if self._fsspec is not None:
                yield from _iterate_fsspec_entries(self._fsspec, root)
                return
            selector = pafs.FileSelector(root, recursive=True, allow_not_found=True)
            for info in self._filesystem.get_file_info(selector):
                yield _make_arrow_entry(_strip_root(root, info.path), info)

    def names(self, directory: str) -> list[str]:
        self._forget()
        with translate_storage_errors("list", directory):
            selector = pafs.FileSelector(directory, allow_not_found=True)
            return sorted(info.base_name for info in self._filesystem.get_file_info(selector))

    def stat(self, path: str) -> FileEntry | None:
        self._forget()
        with translate_storage_errors("look at", path):
            if self._fsspec is not None:
                try:
                    return _make_fsspec_entry(path, self._fsspec.info(path))
                except FileNotFoundError:
                    return None
            info = self._filesystem.get_file_info(path)
            return None if info.type == pafs.FileType.NotFound else _make_arrow_entry(path, info)

    def read(self, path: str) -> bytes:
        with translate_storage_errors("read", path), self._filesystem.open_input_stream(path) as stream:
            return bytes(stream.read())

    def open_ranges(
        self, path: str, size: int, tag: int | str | None = None
    ) -> AbstractContextManager[RandomAccess]:
        return self._filesystem.open_input_file(path)

    def write(self, path: str, data: bytes) -> None:
        with translate_storage_errors("write", path), self._filesystem.open_output_stream(path) as stream:
            stream.write(data)

    def claim(self, source: str, target: str) -> bool:
        if self.stat(target) is not None:
            return False
        self.make_hard_link(source, target)
        return True

    def make_hard_link(self, source: str, target: str) -> None:
        with translate_storage_errors("copy", source):
            self._filesystem.copy_file(source, target)

    def publish(self, source: str, spare: str, target: str) -> None:
        self.make_hard_link(source, target)

    def move(self, source: str, target: str) -> None:
        with translate_storage_errors("rename", source):
            self._filesystem.move(source, target)

    def is_same(self, one: str, other: str) -> bool:
        left, right = self.stat(one), self.stat(other)
        if left is None or right is None or left.size != right.size:
            return False
        return self._digest(one) == self._digest(other)

    def _digest(self, path: str) -> bytes:
        import hashlib  # 3 ms, which no local dataset should pay

        digest = hashlib.sha256()
        with translate_storage_errors("compare", path), self._filesystem.open_input_stream(path) as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
        return digest.digest()

    def remove(self, path: str) -> bool:
        with translate_storage_errors("remove", path):
            try:
                self._filesystem.delete_file(path)
            except FileNotFoundError:
                return False
            return True

    def remove_directory(self, path: str) -> bool:
        with translate_storage_errors("remove", path):
            if self._filesystem.get_file_info(path).type != pafs.FileType.Directory or self.names(path):
                return False
            self._filesystem.delete_dir(path)
            return True

    def remove_tree(self, path: str) -> list[StorageError]:
        try:
            with translate_storage_errors("remove", path):
                self._filesystem.delete_dir(path)
        except StorageError as refusal:
            return [] if refusal.errno == errno.ENOENT else [refusal]
        return []

    def make_directories(self, path: str) -> list[str]:
        missing: list[str] = []
        with translate_storage_errors("create", path):
            above = path
            while above.strip("/") and self.stat(above) is None:
                missing.append(above)
                above = posixpath.dirname(above)
            if missing:
                self._filesystem.create_dir(path, recursive=True)
        return missing[::-1]

    def sync(self, path: str) -> None:
        """Nothing: a store has the bytes durably when a write returns."""

    def copy_mode(self, model: str, path: str) -> None:
        """Nothing: permissions are those of the bucket."""

    def check_writable(self, directory: str) -> None:
        """Nothing: it cannot be known without writing."""

    def can_move(self, one: str, other: str) -> bool:
        return True

    @contextmanager
    def lock(self, path: str, timeout: float) -> Iterator[None]:
        """No lock: the caller guarantees to be the only writer."""
        self.make_directories(posixpath.dirname(path))
        yield


def _strip_root(root: str, path: str) -> str:
    base = root.strip("/")
    inner = path.strip("/")
    return inner[len(base) :].lstrip("/") if base else inner


def _make_arrow_entry(path: str, info: Any) -> FileEntry:
    if info.type == pafs.FileType.Directory:
        return FileEntry(path, "directory")
    kind: Kind = "file" if info.type == pafs.FileType.File else "other"
    return FileEntry(path, kind, info.size or 0, info.mtime_ns or 0)


def _iterate_fsspec_entries(filesystem: Any, root: str) -> Iterator[FileEntry]:
    if not filesystem.exists(root):
        return
    if not filesystem.isdir(root):
        raise NotADirectoryError(errno.ENOTDIR, "not a directory", root)
    for path, info in filesystem.find(root, withdirs=True, detail=True).items():
        inner = _strip_root(root, path)
        if inner:
            yield _make_fsspec_entry(inner, info)


def _make_fsspec_entry(path: str, info: dict[str, Any]) -> FileEntry:
    if info.get("type") == "directory":
        return FileEntry(path, "directory")
    name = next((name for name in _TAGS if info.get(name)), None)
    tag = None if name is None else _format_tag(info[name])
    changed = 0 if name in _ENTITY_TAGS else None
    return FileEntry(path, "file", int(info.get("size") or 0), 0, tag, changed)


def _format_tag(tag: Any) -> str:
    """A tag as text; some file systems give a time as a datetime in one place and a number in another."""
    return str(tag.timestamp()) if isinstance(tag, dt.datetime) else str(tag)
