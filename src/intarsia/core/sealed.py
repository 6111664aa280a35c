"""A file system that opens a snapshot's files only while they are the ones the snapshot saw; it never writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.fs as pafs

from intarsia.errors import CommitConflict, NotSupported

Fingerprint = tuple[Any, ...]
Look = Callable[[str], Fingerprint | None]
"""The fingerprint of the file at a location as it is now, or None when there is none."""


def sealed(
    filesystem: pafs.FileSystem, files: Mapping[str, tuple[str, Fingerprint]], look: Look, root: str
) -> pafs.FileSystem:
    """The same files, each opened only if it still is what it was; else CommitConflict.

    A file that was opened stays what it is however long it is read: a commit puts another file under
    its name and leaves its bytes alone.

    Args:
        filesystem: where the files are.
        files: by location, how the file is shown and its fingerprint.
        look: tells a location's fingerprint as of now.
        root: the table's, for the error.
    """
    return pafs.PyFileSystem(_Sealed(filesystem, files, look, root))


class _Sealed(pafs.FileSystemHandler):  # type: ignore[misc]
    def __init__(
        self,
        filesystem: pafs.FileSystem,
        files: Mapping[str, tuple[str, Fingerprint]],
        look: Look,
        root: str,
    ) -> None:
        self._filesystem = filesystem
        self._files = files
        self._look = look
        self._root = root

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Sealed):
            return NotImplemented
        return bool(self._filesystem.equals(other._filesystem)) and self._files == other._files

    __hash__ = None  # type: ignore[assignment]

    def get_type_name(self) -> str:
        return f"sealed+{self._filesystem.type_name}"

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self._checked(path, self._filesystem.open_input_file)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self._checked(path, self._filesystem.open_input_stream)

    def _checked(self, path: str, opener: Callable[[str], pa.NativeFile]) -> pa.NativeFile:
        """Look after opening: what the name then still stands for is what was opened."""
        try:
            file = opener(path)
        except FileNotFoundError as error:
            raise self._conflict(path) from error
        shown, seen = self._files.get(path, (path, ()))
        if seen and self._look(path) != seen:
            file.close()
            raise self._conflict(path)
        return file

    def _conflict(self, path: str) -> CommitConflict:
        shown, _ = self._files.get(path, (path, ()))
        return CommitConflict(
            f"{shown} was replaced or removed since the snapshot was taken.",
            path=self._root,
            hint="take a snapshot again; read_parquet does so by itself.",
        )

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return list(self._filesystem.get_file_info(paths))

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        return list(self._filesystem.get_file_info(selector))

    def normalize_path(self, path: str) -> str:
        return str(self._filesystem.normalize_path(path))

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotSupported("A snapshot's files are for reading only.", path=self._root)

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse
