"""The record of one transaction as it stands in the journal: a value, its JSON and its checks."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from intarsia.errors import DamagedTable, UnsafePath
from intarsia.tables.parquet.listing import is_data_path, is_hidden, is_side_name
from intarsia.tables.parquet.metadata import DatasetMetadata

VERSION = 1
_TXID = re.compile(r"^[0-9a-f]{32}$")
_STAGED = re.compile(r"^[^/\0]+\.part$")
_LONGEST_NAME = 255


@dataclass(frozen=True, slots=True)
class FileAdd:
    """An added file: ``staged`` under ``new/`` gets the name ``path``; ``was`` is what it replaces."""

    path: str
    staged: str
    was: tuple[Any, ...] | None = None
    kept: str | None = None
    """Name under ``old/`` of the replaced file."""


@dataclass(frozen=True, slots=True)
class FileRemove:
    """A removed file, if it is still the one that was planned on."""

    path: str
    was: tuple[Any, ...]
    kept: str


@dataclass(frozen=True, slots=True)
class Record:
    """All that another process needs to finish a committed transaction, whatever became of its writer."""

    seq: int
    txid: str
    operation: str
    root: str
    adds: tuple[FileAdd, ...] = ()
    removes: tuple[FileRemove, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    retain: int | None = None
    fresh: bool = False
    """The dataset's directory did not exist."""
    side_files: tuple[FileRemove, ...] = ()
    """Files that describe data files as they were: removed before any of these changes."""
    metadata: DatasetMetadata | None = None
    """Schema and partition columns, where the dataset has no file afterwards."""

    def to_json(self) -> bytes:
        return json.dumps({"version": VERSION, **asdict(self)}, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Record:
        """Read a record back; raises DamagedTable unless every part of it is what we would write."""
        try:
            raw = json.loads(data)
            if raw.pop("version") != VERSION:
                raise ValueError("it was written by another version")
            record = cls(
                seq=int(raw.pop("seq")),
                adds=tuple(_parse_add(item) for item in raw.pop("adds")),
                removes=tuple(_parse_remove(item) for item in raw.pop("removes")),
                metadata=_metadata(raw.pop("metadata", None)),
                side_files=tuple(_parse_remove(item) for item in raw.pop("side_files", ())),
                **raw,
            )
            record.check()
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedTable(
                f"The journal record {where} is damaged ({error}); nothing was done with it.",
                path=where,
                hint="restore it from a backup, or move it away to give up the transaction it records",
                changed=None,
            ) from error
        return record

    def check(self) -> None:
        """Refuse names that could reach outside the dataset or its staging directory."""
        texts = (self.operation, self.root, *self.properties, *self.properties.values())
        if self.seq < 1 or not all(isinstance(text, str) for text in texts):
            raise ValueError("a field has the wrong type")
        if not _TXID.match(self.txid):
            raise ValueError(f"transaction id {self.txid!r}")
        for item in self.files:
            check_data_path(item.path)
        for item in self.side_files:
            check_side_path(item.path)
        names = [item.staged for item in self.adds]
        names += [item.kept for item in (*self.files, *self.side_files) if item.kept is not None]
        for name in names:
            if not _STAGED.match(name):
                raise ValueError(f"staged name {name!r}")

    @property
    def files(self) -> tuple[FileAdd | FileRemove, ...]:
        return (*self.adds, *self.removes)

    @property
    def directories(self) -> tuple[str, ...]:
        """Directories below the root that files are added to or removed from; "" is the root itself."""
        items = (*self.files, *self.side_files)
        return tuple(sorted({posixpath.dirname(item.path) for item in items}))


def check_data_path(path: str) -> None:
    """Raise UnsafePath unless ``path`` names a data file below the root and nothing else."""
    if not (_is_below(path) and is_data_path(path)):
        raise UnsafePath(f"{path!r} is not a safe name for a data file of a dataset.", path=path)


def check_side_path(path: str) -> None:
    """Raise UnsafePath unless ``path`` names a side file below the root and nothing else."""
    *directories, name = path.split("/")
    if not _is_below(path) or any(map(is_hidden, directories)) or not is_side_name(name):
        raise UnsafePath(f"{path!r} is not the name of a file that describes data files.", path=path)


def _is_below(path: str) -> bool:
    parts = path.split("/")
    return (
        "\0" not in path
        and all(part not in ("", ".", "..") for part in parts)
        and max(len(part.encode("utf-8", "surrogateescape")) for part in parts) <= _LONGEST_NAME
    )


def _metadata(raw: dict[str, Any] | None) -> DatasetMetadata | None:
    return None if raw is None else DatasetMetadata.from_json(raw)


def _parse_add(raw: dict[str, Any]) -> FileAdd:
    was = raw.pop("was")
    return FileAdd(was=None if was is None else _fingerprint(was), **raw)


def _parse_remove(raw: dict[str, Any]) -> FileRemove:
    return FileRemove(was=_fingerprint(raw.pop("was")), **raw)


def _fingerprint(raw: list[Any]) -> tuple[Any, ...]:
    size, mtime_ns, identity = raw
    return (size, mtime_ns, identity)
