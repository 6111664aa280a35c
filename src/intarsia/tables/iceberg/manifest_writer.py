"""Writing manifests, each for one partition spec and one content (Java's ``ManifestWriter``).

The spec of a file is fixed when the file is written, so files of any number of specs can be committed
together: they are grouped by spec here, and every group gets manifests of its own.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from itertools import count
from types import TracebackType
from typing import Any, TypeVar

from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    PrimitiveType,
    StringType,
    UnknownType,
    UUIDType,
)

from intarsia.errors import InputError
from intarsia.tables.iceberg.avro import AvroFileWriter
from intarsia.tables.iceberg.avro_schemas import compute_decimal_size, make_compatible_name, make_entry_schema
from intarsia.tables.iceberg.conversions import to_bytes, unscale_decimal
from intarsia.tables.iceberg.file_io import write_bytes
from intarsia.tables.iceberg.manifests import (
    ContentFile,
    DataFileContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
)
from intarsia.tables.iceberg.specs import (
    find_compatible_schema,
    find_result_type,
    find_spec,
    make_partition_type,
)

TARGET_BYTES = 8 * 1024 * 1024
"""Java's default of ``commit.manifest.target-size-bytes``."""

_DEFAULT_BLOCK_BYTES = 64 * 1024 * 1024  # required in version 1; Java's V1Metadata always writes this
_CONVERTED_FIELDS = {"spec_id", "partition", "content"}
_FILE_FIELDS = tuple(field.name for field in fields(ContentFile) if field.name not in _CONVERTED_FIELDS)
_PYTHON_TYPES: Mapping[type[IcebergType], type | tuple[type, ...]] = {
    BooleanType: bool,
    FloatType: (float, int),
    DoubleType: (float, int),
    StringType: str,
    BinaryType: bytes,
    FixedType: bytes,
    UUIDType: bytes,
    DecimalType: Decimal,
    UnknownType: (),
}


def new_manifest_writer_for_spec(
    metadata: TableMetadata,
    spec: PartitionSpec,
    *,
    io: FileIO,
    path: str,
    snapshot_id: int,
    content: DataFileContent,
    format_version: int | None = None,
    compression: str = "gzip",
) -> ManifestWriter:
    """A writer of one manifest for files of one spec, whatever the table's default spec is.

    Args:
        metadata: of the table, for the types of the spec's values.
        spec: of every file that will be added.
        io: of the table.
        path: of the manifest, new.
        snapshot_id: of the commit.
        content: DATA, or either kind of delete for a manifest of delete files.
        format_version: of the table unless given.
        compression: as ``write.manifest.compression-codec`` names it.

    Raises:
        InputError: delete files in a table of version 1.
        DamagedTable: a source column of the spec is in no schema of the table.
    """
    version = format_version or metadata.format_version
    if version == 1 and content is not DataFileContent.DATA:
        raise InputError("delete files in a table of format version 1", path=metadata.location)
    return ManifestWriter(
        metadata,
        spec,
        io=io,
        path=path,
        snapshot_id=snapshot_id,
        content=content,
        format_version=version,
        compression=compression,
    )


class ManifestWriter:
    """Collects the entries of one manifest in memory and writes it when it is closed.

    As a context manager it is closed when the block ends without an error; nothing is written otherwise.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        spec: PartitionSpec,
        *,
        io: FileIO,
        path: str,
        snapshot_id: int,
        content: DataFileContent,
        format_version: int,
        compression: str,
    ) -> None:
        self._io = io
        self._path = path
        self._snapshot_id = snapshot_id
        self._spec = spec
        self._content = (
            DataFileContent.DATA if content is DataFileContent.DATA else DataFileContent.POSITION_DELETES
        )
        self._version = format_version
        self._types = [find_result_type(metadata, field) for field in spec.fields]
        self._names = [make_compatible_name(field.name) for field in spec.fields]
        self._writers = [_make_value_writer(kind) for kind in self._types]
        schema = find_compatible_schema(metadata, spec)
        header = {
            "schema": schema.model_dump_json(),
            "schema-id": str(schema.schema_id),
            "partition-spec": json.dumps([field.model_dump(mode="json") for field in spec.fields]),
            "partition-spec-id": str(spec.spec_id),
            "format-version": str(format_version),
        }
        if format_version > 1:
            header["content"] = "data" if self._content is DataFileContent.DATA else "deletes"
        self._encoder = AvroFileWriter(
            make_entry_schema(make_partition_type(metadata, spec).fields, format_version), header, compression
        )
        self._files = dict.fromkeys(ManifestEntryStatus, 0)
        self._rows = dict.fromkeys(ManifestEntryStatus, 0)
        self._least_sequence: int | None = None
        self._tuples: dict[Any, tuple[Any, ...]] = {}
        # 0.0 and -0.0 are different values but equal keys.
        self._floating = any(isinstance(kind, (FloatType, DoubleType)) for kind in self._types)
        self._length: int | None = None

    def __enter__(self) -> ManifestWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()

    @property
    def size(self) -> int:
        """About how many bytes it has by now."""
        return self._encoder.size

    @property
    def count(self) -> int:
        """How many entries it has by now."""
        return sum(self._files.values())

    def add(self, entry: ManifestEntry) -> None:
        """A file that this commit adds; its sequence number is inherited unless it has one."""
        self._append(
            replace(
                entry,
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                file_sequence_number=None,
            )
        )

    def add_existing(self, entry: ManifestEntry) -> None:
        """A file that was there before, kept as it is."""
        self._append(replace(entry, status=ManifestEntryStatus.EXISTING))

    def delete(self, entry: ManifestEntry) -> None:
        """A file that this commit removes."""
        self._append(replace(entry, status=ManifestEntryStatus.DELETED, snapshot_id=self._snapshot_id))

    def write(self, entry: ManifestEntry) -> None:
        """A file as its status says."""
        match entry.status:
            case ManifestEntryStatus.ADDED:
                self.add(entry)
            case ManifestEntryStatus.EXISTING:
                self.add_existing(entry)
            case ManifestEntryStatus.DELETED:
                self.delete(entry)

    def close(self) -> None:
        """Write the manifest. Closing twice does nothing more.

        Raises:
            InputError: it has no entries.
            StorageError: it cannot be written.
        """
        if self._length is not None:
            return
        if not self.count:
            raise InputError("a manifest without entries", path=self._path)
        data = self._encoder.finish()
        write_bytes(self._io, self._path, data, "manifest")
        self._length = len(data)

    def to_manifest(self) -> ManifestFile:
        """How a manifest list names it; its sequence number is not known yet. Closes it."""
        self.close()
        assert self._length is not None
        return ManifestFile(
            manifest_path=self._path,
            manifest_length=self._length,
            partition_spec_id=self._spec.spec_id,
            content=self._content,
            sequence_number=None,
            min_sequence_number=self._least_sequence,
            added_snapshot_id=self._snapshot_id,
            added_files_count=self._files[ManifestEntryStatus.ADDED],
            existing_files_count=self._files[ManifestEntryStatus.EXISTING],
            deleted_files_count=self._files[ManifestEntryStatus.DELETED],
            added_rows_count=self._rows[ManifestEntryStatus.ADDED],
            existing_rows_count=self._rows[ManifestEntryStatus.EXISTING],
            deleted_rows_count=self._rows[ManifestEntryStatus.DELETED],
            partitions=tuple(
                _summarize_field(kind, [values[place] for values in self._tuples.values()])
                for place, kind in enumerate(self._types)
            ),
        )

    def _append(self, entry: ManifestEntry) -> None:
        self._check(entry)
        self._encoder.append(self._record(entry))
        file, sequence = entry.file, entry.sequence_number
        self._files[entry.status] += 1
        self._rows[entry.status] += file.record_count
        self._tuples[repr(file.partition) if self._floating else file.partition] = file.partition
        if entry.status is not ManifestEntryStatus.DELETED and sequence is not None:
            least = self._least_sequence
            self._least_sequence = sequence if least is None else min(least, sequence)

    def _check(self, entry: ManifestEntry) -> None:
        file = entry.file
        if file.spec_id != self._spec.spec_id:
            raise self._make_refusal(
                file, f"is of partition spec {file.spec_id}, not of {self._spec.spec_id}"
            )
        if (file.content is DataFileContent.DATA) != (self._content is DataFileContent.DATA):
            raise self._make_refusal(file, f"holds {file.content.name}, and the manifest does not")
        if self._version < 3 and (file.is_vector or file.content_offset is not None):
            raise self._make_refusal(
                file, f"is a deletion vector in a table of format version {self._version}"
            )
        if len(file.partition) != len(self._types):
            raise self._make_refusal(
                file,
                f"has {len(file.partition)} partition values; spec {self._spec.spec_id} has "
                f"{len(self._types)} fields",
            )
        for part, kind, value in zip(self._spec.fields, self._types, file.partition, strict=True):
            if value is not None and not _is_instance(kind, value):
                raise self._make_refusal(
                    file,
                    f"has the value {value!r} ({type(value).__name__}) for partition field {part.name!r} "
                    f"of type {kind}",
                )
        if (
            entry.sequence_number is None
            and entry.status is not ManifestEntryStatus.ADDED
            and self._version > 1
        ):
            raise self._make_refusal(file, "was there before, but comes without its sequence number")

    def _make_refusal(self, file: ContentFile, why: str) -> InputError:
        return InputError(f"{file.file_path} {why}", path=self._path)

    def _record(self, entry: ManifestEntry) -> dict[str, Any]:
        file = entry.file
        record: dict[str, Any] = {name: getattr(file, name) for name in _FILE_FIELDS}
        record["content"] = int(file.content)
        record["block_size_in_bytes"] = _DEFAULT_BLOCK_BYTES
        record["partition"] = {
            name: value if write is None or value is None else write(value)
            for name, write, value in zip(self._names, self._writers, file.partition, strict=True)
        }
        return {
            "status": int(entry.status),
            "snapshot_id": entry.snapshot_id,
            "sequence_number": entry.sequence_number,
            "file_sequence_number": entry.file_sequence_number,
            "data_file": record,
        }


def write_rolling_manifests(
    open_writer: Callable[[], ManifestWriter],
    entries: Iterable[ManifestEntry],
    *,
    target_bytes: int = TARGET_BYTES,
) -> Iterator[ManifestFile]:
    """Entries of one spec and content in manifests of about a size, as Java's ``RollingManifestWriter``."""
    writer: ManifestWriter | None = None
    for entry in entries:
        if writer is None:
            writer = open_writer()
        writer.write(entry)
        if writer.size >= target_bytes:
            yield writer.to_manifest()
            writer = None
    if writer is not None:
        yield writer.to_manifest()


def _is_instance(kind: IcebergType, value: Any) -> bool:
    wanted = _PYTHON_TYPES.get(type(kind), int)
    return isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))


def _make_value_writer(kind: IcebergType) -> Callable[[Any], Any] | None:
    match kind:
        case DecimalType():
            size, scale = compute_decimal_size(kind.precision), kind.scale
            return lambda value: unscale_decimal(value, scale).to_bytes(size, "big", signed=True)
        case FloatType() | DoubleType():
            return float
    return None


def _summarize_field(kind: PrimitiveType, values: list[Any]) -> PartitionFieldSummary:
    """Nulls, NaNs and bounds of one partition field (Java's ``PartitionSummary``)."""
    nulls = any(value is None for value in values)
    nans = any(value != value for value in values)
    proper = [value for value in values if value is not None and value == value]
    if not proper:
        return PartitionFieldSummary(nulls, nans)
    low, high = min(proper, key=_make_sort_key), max(proper, key=_make_sort_key)
    return PartitionFieldSummary(nulls, nans, to_bytes(kind, low), to_bytes(kind, high))


def _make_sort_key(value: Any) -> Any:
    # -0.0 comes before 0.0 in Iceberg's order.
    return (value, math.copysign(1.0, value)) if isinstance(value, float) else value


_Grouped = TypeVar("_Grouped")


@dataclass(slots=True)
class ManifestOutput:
    """Where and how one commit writes its manifests."""

    metadata: TableMetadata
    io: FileIO
    snapshot_id: int
    commit_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    format_version: int | None = None
    """The table's unless given."""
    compression: str = ""
    """As ``write.manifest.compression-codec`` names it, and says unless given."""
    target_bytes: int = 0
    """What ``commit.manifest.target-size-bytes`` says unless given."""
    written: list[str] = field(default_factory=list)
    """Paths of the manifests begun so far: what to remove if the commit fails."""
    _numbers: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        properties = self.metadata.properties
        self.format_version = self.format_version or self.metadata.format_version
        self.compression = self.compression or properties.get("write.manifest.compression-codec", "gzip")
        self.target_bytes = self.target_bytes or int(
            properties.get("commit.manifest.target-size-bytes", TARGET_BYTES)
        )

    @property
    def location(self) -> str:
        """The directory of the table's metadata."""
        own = self.metadata.properties.get("write.metadata.path")
        return (own or f"{self.metadata.location.rstrip('/')}/metadata").rstrip("/")

    def make_path(self) -> str:
        """The path of one more manifest."""
        path = f"{self.location}/{self.commit_id}-m{next(self._numbers)}.avro"
        self.written.append(path)
        return path


def validate_added_data_files(metadata: TableMetadata, files: Iterable[ContentFile]) -> None:
    """Accept files of every spec the table has or had.

    Raises:
        InputError: a file names a spec that the table does not know; the message has its id.
    """
    known = {spec.spec_id for spec in metadata.partition_specs}
    for file in files:
        spec_id = _get_spec_id(file)
        if spec_id not in known:
            raise InputError(
                f"data file {file.file_path} references unknown partition spec: {spec_id}",
                path=metadata.location,
                hint=f"the table has the specs {', '.join(map(str, sorted(known)))}",
            )


def group_files_by_spec(files: Iterable[ContentFile]) -> dict[int, list[ContentFile]]:
    """Files by the id of their spec, ids ascending; a file without one belongs to spec 0."""
    return _group_by_spec(files, _get_spec_id)


def group_entries_by_spec(entries: Iterable[ManifestEntry]) -> dict[int, list[ManifestEntry]]:
    """Entries by the id of their file's spec, ids ascending; a file without one belongs to spec 0."""
    return _group_by_spec(entries, lambda entry: _get_spec_id(entry.file))


def write_added_manifests(site: ManifestOutput, files: Sequence[ContentFile]) -> list[ManifestFile]:
    """Manifests of data files that a commit adds, one per spec, more only beyond the target size.

    Raises:
        InputError: a file names a spec the table does not know, or does not fit its own.
        StorageError: a manifest cannot be written; ``site.written`` says which were begun.
    """
    validate_added_data_files(site.metadata, files)
    return write_manifests(site, [_make_added_entry(file) for file in files], DataFileContent.DATA)


def write_delete_manifests(site: ManifestOutput, files: Sequence[ContentFile]) -> list[ManifestFile]:
    """Manifests of delete files that a commit adds, one per spec: that of the data they delete from.

    Raises:
        InputError: a file names a spec the table does not know, or does not fit its own.
        StorageError: a manifest cannot be written; ``site.written`` says which were begun.
    """
    validate_added_data_files(site.metadata, files)
    return write_manifests(
        site, [_make_added_entry(file) for file in files], DataFileContent.POSITION_DELETES
    )


def write_deleted_data_manifests(
    site: ManifestOutput, entries: Sequence[ManifestEntry]
) -> list[ManifestFile]:
    """Manifests of data files that a commit removes, one per spec."""
    removed = [replace(entry, status=ManifestEntryStatus.DELETED) for entry in entries]
    return write_manifests(site, removed, DataFileContent.DATA)


def write_existing_data_manifests(
    site: ManifestOutput, entries: Sequence[ManifestEntry]
) -> list[ManifestFile]:
    """Manifests of data files that stay, with everything they had, one per spec."""
    kept = [replace(entry, status=ManifestEntryStatus.EXISTING) for entry in entries]
    return write_manifests(site, kept, DataFileContent.DATA)


def write_manifests(
    site: ManifestOutput, entries: Sequence[ManifestEntry], content: DataFileContent
) -> list[ManifestFile]:
    """Manifests of one content for entries of any specs, each written as its status says.

    Removed and kept entries of one spec may share a manifest. Order is kept within a spec.
    """
    if not entries:
        return []
    first = _get_spec_id(entries[0].file)
    if all(_get_spec_id(entry.file) == first for entry in entries):
        return _write_spec(site, first, entries, content)
    return [
        manifest
        for spec_id, group in group_entries_by_spec(entries).items()
        for manifest in _write_spec(site, spec_id, group, content)
    ]


def _write_spec(
    site: ManifestOutput, spec_id: int, entries: Iterable[ManifestEntry], content: DataFileContent
) -> list[ManifestFile]:
    spec = find_spec(site.metadata, spec_id)

    def open_writer() -> ManifestWriter:
        return new_manifest_writer_for_spec(
            site.metadata,
            spec,
            io=site.io,
            path=site.make_path(),
            snapshot_id=site.snapshot_id,
            content=content,
            format_version=site.format_version,
            compression=site.compression,
        )

    return list(write_rolling_manifests(open_writer, entries, target_bytes=site.target_bytes))


def _get_spec_id(file: ContentFile) -> int:
    # Version 1 knows files without one.
    spec_id: int | None = file.spec_id
    return 0 if spec_id is None else spec_id


def _group_by_spec(
    items: Iterable[_Grouped], spec_of: Callable[[_Grouped], int]
) -> dict[int, list[_Grouped]]:
    groups: dict[int, list[_Grouped]] = {}
    for item in items:
        groups.setdefault(spec_of(item), []).append(item)
    return dict(sorted(groups.items()))


def _make_added_entry(file: ContentFile) -> ManifestEntry:
    return ManifestEntry(ManifestEntryStatus.ADDED, None, file)
