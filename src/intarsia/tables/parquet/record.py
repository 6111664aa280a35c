"""The record of one transaction in the journal: its JSON, its checks, the metadata of an empty dataset."""

from __future__ import annotations

import base64
import binascii
import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from intarsia.core.change import Change
from intarsia.core.history import CommitInfo
from intarsia.core.snapshot import Snapshot
from intarsia.errors import DamagedTable, UnsafePath
from intarsia.tables.parquet.footers import strip_values
from intarsia.tables.parquet.listing import is_data_path, is_hidden, is_side_name

VERSION = 1
_TXID = re.compile(r"^[0-9a-f]{32}$")
_STAGED = re.compile(r"^[^/\0]+\.part$")
_LONGEST_NAME = 255
_MAGIC = b"PAR1"


@dataclass(frozen=True, slots=True)
class DatasetMetadata:
    """Schema, partition columns and footer of a dataset without files, as text that can stand in JSON.

    While there are files, they tell all of that, and the log says nothing. The record of the commit after
    which there is none carries it instead, as Delta's ``metaData`` action does; the last record alone counts.
    """

    schema: str
    partition_columns: tuple[str, ...] = ()
    footer: str | None = None
    """Of a file that there was, with one row group and without statistics: new files are written like it."""

    @classmethod
    def of(
        cls, schema: pa.Schema, partition_columns: tuple[str, ...], footer: pq.FileMetaData | None = None
    ) -> DatasetMetadata:
        encoded = None if footer is None else base64.b64encode(_without_rows(footer)).decode()
        return cls(base64.b64encode(schema.serialize().to_pybytes()).decode(), partition_columns, encoded)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> DatasetMetadata:
        """Read back; ValueError, TypeError or KeyError where it is not what we would write."""
        columns = tuple(raw["partition_columns"])
        found = cls(raw["schema"], columns, raw.get("footer"))
        missing = [name for name in columns if name not in found.to_arrow_schema().names]
        if missing:
            raise ValueError(f"partition columns {missing} are not in the schema")
        found.to_file_metadata()
        return found

    def to_arrow_schema(self) -> pa.Schema:
        try:
            return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(self.schema, validate=True)))
        except (binascii.Error, pa.ArrowException, OSError) as error:
            raise ValueError(f"its schema cannot be read: {error}") from error

    def to_file_metadata(self) -> pq.FileMetaData | None:
        if self.footer is None:
            return None
        try:
            raw = base64.b64decode(self.footer, validate=True)
            return pq.read_metadata(pa.BufferReader(raw))
        except (binascii.Error, pa.ArrowException, OSError) as error:
            raise ValueError(f"its footer cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class FileAdd:
    """An added file: ``staged`` under ``new/`` gets the name ``path``; ``was`` is what it replaces."""

    path: str
    staged: str
    was: tuple[Any, ...] | None = None
    kept: str | None = None
    """Name under ``old/`` of the replaced file."""
    made: tuple[Any, ...] | None = None
    """Fingerprint of the new file, as far as it is known before it has its name."""


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
    info: CommitInfo = field(default_factory=CommitInfo)

    def to_json(self) -> bytes:
        plain = {"version": VERSION, **asdict(self), "info": self.info.to_json()}
        return json.dumps(plain, separators=(",", ":")).encode() + b"\n"

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
                metadata=_parse_metadata(raw.pop("metadata", None)),
                side_files=tuple(_parse_remove(item) for item in raw.pop("side_files", ())),
                info=CommitInfo.from_json(raw.pop("info", None)),
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


def _parse_metadata(raw: dict[str, Any] | None) -> DatasetMetadata | None:
    return None if raw is None else DatasetMetadata.from_json(raw)


def _parse_add(raw: dict[str, Any]) -> FileAdd:
    was, made = raw.pop("was"), raw.pop("made", None)
    return FileAdd(
        was=None if was is None else _parse_fingerprint(was),
        made=None if made is None else _parse_fingerprint(made),
        **raw,
    )


def _parse_remove(raw: dict[str, Any]) -> FileRemove:
    return FileRemove(was=_parse_fingerprint(raw.pop("was")), **raw)


def _parse_fingerprint(raw: list[Any]) -> tuple[Any, ...]:
    size, mtime_ns, identity = raw
    return (size, mtime_ns, identity)


def move_partitions_last(schema: pa.Schema, partition_columns: tuple[str, ...]) -> pa.Schema:
    """The schema in the order that a dataset with files has: partition columns last."""
    stored = [field for field in schema if field.name not in partition_columns]
    return pa.schema([*stored, *(schema.field(name) for name in partition_columns)], schema.metadata)


def decides_metadata(change: Change, before: Snapshot) -> bool:
    """Whether a change makes a dataset without files, or gives one another schema or partitions."""
    if change.schema is None or not change.schema.names or has_files_after(change, before):
        return False
    schema = move_partitions_last(change.schema, change.partition_columns)
    same = schema.equals(before.schema, check_metadata=True)
    return not (same and change.partition_columns == before.partition_columns)


def make_metadata_after(change: Change, before: Snapshot) -> DatasetMetadata | None:
    """What the log has to keep after a change: all that files would tell, where none is left."""
    if has_files_after(change, before):
        return None
    schema, columns = before.schema, before.partition_columns
    if change.schema is not None:
        columns = change.partition_columns
        schema = move_partitions_last(change.schema, columns)
    if not schema.names:
        return None
    same = schema.equals(before.schema) and columns == before.partition_columns
    return DatasetMetadata.of(schema, columns, before.model_footer if same else None)


def has_files_after(change: Change, before: Snapshot) -> bool:
    """Whether any file is there after a change."""
    removed = {file.path for file in change.removed}
    return bool(change.added) or any(file.path not in removed for file in before.files)


def parse_metadata(raw: Mapping[str, Any] | None, where: str) -> DatasetMetadata | None:
    """The metadata in a record of the log, if it has any; raises DamagedTable."""
    if raw is None:
        return None
    try:
        return DatasetMetadata.from_json(raw)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedTable(
            f"The journal record {where} is damaged ({error}): the schema of an empty dataset is lost.",
            path=where,
            hint="restore it from a backup, or remove it to let the next write decide the schema",
        ) from error


def _without_rows(footer: pq.FileMetaData) -> bytes:
    """A Parquet file without data that has this footer, less what tells of rows."""
    sink = pa.BufferOutputStream()
    footer.write_metadata_file(sink)
    raw = sink.getvalue().to_pybytes()
    return _MAGIC + strip_values(raw[len(_MAGIC) :])
