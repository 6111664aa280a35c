"""A place for the files that a dry run writes, on a file system that reads the table's files, too."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

__all__ = ["ScratchPlace", "make_scratch_place"]


@dataclass(frozen=True, slots=True)
class ScratchPlace:
    """A directory that may be written, on a file system that reads the table's files, too. It pickles."""

    filesystem: pafs.FileSystem
    directory: str

    def holds(self, location: str) -> bool:
        """Whether a file is in the place, and not one of the table's."""
        return location.startswith(f"{self.directory}/")

    def make_part(self, name: str) -> ScratchPlace:
        """A place inside this one."""
        return ScratchPlace(self.filesystem, f"{self.directory}/{name}")


def make_scratch_place(
    table: pafs.FileSystem, beside: str, scratch: pafs.FileSystem, directory: str
) -> ScratchPlace:
    """The place in a directory of a scratch file system, for a table on another one or the same.

    Except on this machine's disks, the place has a name in the directory ``beside`` of the table's file
    system. Where the scratch directory is elsewhere, nothing is there under that name: what is written to it
    goes to the scratch file system.
    """
    is_beside = directory.startswith(f"{beside.rstrip('/')}/")
    if scratch == table and (is_beside or isinstance(table, pafs.LocalFileSystem)):
        return ScratchPlace(table, directory)
    name = f"{beside.rstrip('/')}/{posixpath.basename(directory)}"
    return ScratchPlace(pafs.PyFileSystem(_ScratchHandler(table, scratch, name, directory)), name)


class _ScratchHandler(pafs.FileSystemHandler):
    """A file system below which another one lies under one directory's name; all else can only be read.

    Files are opened by the file systems themselves, so that reading and writing take no detour by Python.
    """

    def __init__(self, table: pafs.FileSystem, scratch: pafs.FileSystem, name: str, directory: str) -> None:
        self.table = table
        self.scratch = scratch
        self.name = name
        self.directory = directory

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ScratchHandler) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def _find(self, path: str) -> str | None:
        """Where a path is on the scratch file system; None for a path of the table."""
        if path != self.name and not path.startswith(f"{self.name}/"):
            return None
        return self.directory + path[len(self.name) :]

    def _require(self, path: str) -> str:
        found = self._find(path)
        if found is None:
            raise PermissionError(errno.EACCES, "a dry run changes no file of the table", path)
        return found

    def get_type_name(self) -> str:
        return f"scratch+{self.table.type_name}"

    def normalize_path(self, path: str) -> str:
        return path if self._find(path) is not None else str(self.table.normalize_path(path))

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        return [self._get_info(path) for path in paths]

    def _get_info(self, path: str) -> pafs.FileInfo:
        found = self._find(path)
        if found is None:
            return self.table.get_file_info(path)
        return _rename(self.scratch.get_file_info(found), path)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        found = self._find(selector.base_dir)
        if found is None:
            return list(self.table.get_file_info(selector))
        inner = pafs.FileSelector(found, selector.allow_not_found, selector.recursive)
        start = len(self.directory)
        return [_rename(info, self.name + info.path[start:]) for info in self.scratch.get_file_info(inner)]

    def create_dir(self, path: str, recursive: bool) -> None:
        self.scratch.create_dir(self._require(path), recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self.scratch.delete_dir(self._require(path))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self.scratch.delete_dir_contents(self._require(path), missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        self._require("/")

    def delete_file(self, path: str) -> None:
        self.scratch.delete_file(self._require(path))

    def move(self, src: str, dest: str) -> None:
        source, target = self._require(src), self._require(dest)
        self.scratch.create_dir(posixpath.dirname(target), recursive=True)
        self.scratch.move(source, target)

    def copy_file(self, src: str, dest: str) -> None:
        target = self._require(dest)
        with self.open_input_stream(src) as source, self.scratch.open_output_stream(target) as sink:
            sink.upload(source)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        found = self._find(path)
        return self.table.open_input_stream(path) if found is None else self.scratch.open_input_stream(found)

    def open_input_file(self, path: str) -> pa.NativeFile:
        found = self._find(path)
        return self.table.open_input_file(path) if found is None else self.scratch.open_input_file(found)

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        target = self._require(path)
        self.scratch.create_dir(posixpath.dirname(target), recursive=True)  # as a store needs none
        return self.scratch.open_output_stream(target, metadata=metadata)

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return self.scratch.open_append_stream(self._require(path), metadata=metadata)


def _rename(info: pafs.FileInfo, path: str) -> pafs.FileInfo:
    return pafs.FileInfo(path, info.type, mtime_ns=info.mtime_ns, size=info.size)
