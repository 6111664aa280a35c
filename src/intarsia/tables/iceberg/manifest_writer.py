"""Writing manifests, each for one partition spec and one content."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from decimal import Decimal
from types import TracebackType
from typing import Any

from pyiceberg.conversions import to_bytes
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
from intarsia.tables.iceberg.avro import Encoder
from intarsia.tables.iceberg.avro_schemas import compatible_name, decimal_size, entry_schema
from intarsia.tables.iceberg.entries import Content, ContentFile, Entry, FieldSummary, Manifest, Status
from intarsia.tables.iceberg.metadata_files import write_bytes
from intarsia.tables.iceberg.specs import find_compatible_schema, partition_type, result_type

TARGET_BYTES = 8 * 1024 * 1024
"""Java's default of ``commit.manifest.target-size-bytes``."""

_DEFAULT_BLOCK_BYTES = 64 * 1024 * 1024  # always this in version 1, where the field is required
_OTHERWISE = {"spec_id", "partition", "content"}
_FILE_FIELDS = tuple(field.name for field in fields(ContentFile) if field.name not in _OTHERWISE)
_PYTHON: Mapping[type[IcebergType], type | tuple[type, ...]] = {
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
    content: Content,
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
    if version == 1 and content is not Content.DATA:
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
        content: Content,
        format_version: int,
        compression: str,
    ) -> None:
        self._io = io
        self._path = path
        self._snapshot_id = snapshot_id
        self._spec = spec
        self._content = Content.DATA if content is Content.DATA else Content.POSITION_DELETES
        self._version = format_version
        self._types = [result_type(metadata, field) for field in spec.fields]
        self._names = [compatible_name(field.name) for field in spec.fields]
        self._writers = [_value_writer(kind) for kind in self._types]
        schema = find_compatible_schema(metadata, spec)
        header = {
            "schema": schema.model_dump_json(),
            "schema-id": str(schema.schema_id),
            "partition-spec": json.dumps([field.model_dump(mode="json") for field in spec.fields]),
            "partition-spec-id": str(spec.spec_id),
            "format-version": str(format_version),
        }
        if format_version > 1:
            header["content"] = "data" if self._content is Content.DATA else "deletes"
        self._encoder = Encoder(
            entry_schema(partition_type(metadata, spec).fields, format_version), header, compression
        )
        self._files = dict.fromkeys(Status, 0)
        self._rows = dict.fromkeys(Status, 0)
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

    def add(self, entry: Entry) -> None:
        """A file that this commit adds; its sequence number is inherited unless it has one."""
        self._append(
            replace(entry, status=Status.ADDED, snapshot_id=self._snapshot_id, file_sequence_number=None)
        )

    def existing(self, entry: Entry) -> None:
        """A file that was there before, kept as it is."""
        self._append(replace(entry, status=Status.EXISTING))

    def delete(self, entry: Entry) -> None:
        """A file that this commit removes."""
        self._append(replace(entry, status=Status.DELETED, snapshot_id=self._snapshot_id))

    def write(self, entry: Entry) -> None:
        """A file as its status says."""
        match entry.status:
            case Status.ADDED:
                self.add(entry)
            case Status.EXISTING:
                self.existing(entry)
            case Status.DELETED:
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

    def to_manifest(self) -> Manifest:
        """How a manifest list names it; its sequence number is not known yet. Closes it."""
        self.close()
        assert self._length is not None
        return Manifest(
            manifest_path=self._path,
            manifest_length=self._length,
            partition_spec_id=self._spec.spec_id,
            content=self._content,
            sequence_number=None,
            min_sequence_number=self._least_sequence,
            added_snapshot_id=self._snapshot_id,
            added_files_count=self._files[Status.ADDED],
            existing_files_count=self._files[Status.EXISTING],
            deleted_files_count=self._files[Status.DELETED],
            added_rows_count=self._rows[Status.ADDED],
            existing_rows_count=self._rows[Status.EXISTING],
            deleted_rows_count=self._rows[Status.DELETED],
            partitions=tuple(
                _summary(kind, [values[place] for values in self._tuples.values()])
                for place, kind in enumerate(self._types)
            ),
        )

    def _append(self, entry: Entry) -> None:
        self._check(entry)
        self._encoder.append(self._record(entry))
        file, sequence = entry.file, entry.sequence_number
        self._files[entry.status] += 1
        self._rows[entry.status] += file.record_count
        self._tuples[repr(file.partition) if self._floating else file.partition] = file.partition
        if entry.status is not Status.DELETED and sequence is not None:
            least = self._least_sequence
            self._least_sequence = sequence if least is None else min(least, sequence)

    def _check(self, entry: Entry) -> None:
        file = entry.file
        if file.spec_id != self._spec.spec_id:
            raise self._refused(file, f"is of partition spec {file.spec_id}, not of {self._spec.spec_id}")
        if (file.content is Content.DATA) != (self._content is Content.DATA):
            raise self._refused(file, f"holds {file.content.name}, and the manifest does not")
        if self._version < 3 and (file.is_vector or file.content_offset is not None):
            raise self._refused(file, f"is a deletion vector in a table of format version {self._version}")
        if len(file.partition) != len(self._types):
            raise self._refused(
                file,
                f"has {len(file.partition)} partition values; spec {self._spec.spec_id} has "
                f"{len(self._types)} fields",
            )
        for field, kind, value in zip(self._spec.fields, self._types, file.partition, strict=True):
            if value is not None and not _fits(kind, value):
                raise self._refused(
                    file,
                    f"has the value {value!r} ({type(value).__name__}) for partition field {field.name!r} "
                    f"of type {kind}",
                )
        if entry.sequence_number is None and entry.status is not Status.ADDED and self._version > 1:
            raise self._refused(file, "was there before, but comes without its sequence number")

    def _refused(self, file: ContentFile, why: str) -> InputError:
        return InputError(f"{file.file_path} {why}", path=self._path)

    def _record(self, entry: Entry) -> dict[str, Any]:
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


def rolled_manifests(
    open_writer: Callable[[], ManifestWriter], entries: Iterable[Entry], *, target_bytes: int = TARGET_BYTES
) -> Iterator[Manifest]:
    """Entries of one spec and content in as many manifests as their size asks for."""
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


def _fits(kind: IcebergType, value: Any) -> bool:
    wanted = _PYTHON.get(type(kind), int)
    return isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))


def _value_writer(kind: IcebergType) -> Callable[[Any], Any] | None:
    match kind:
        case DecimalType():
            size, scale = decimal_size(kind.precision), kind.scale
            return lambda value: unscaled(value, scale).to_bytes(size, "big", signed=True)
        case FloatType() | DoubleType():
            return float
    return None


def unscaled(value: Decimal, scale: int) -> int:
    """A decimal's digits at a scale, exactly.

    Raises:
        InputError: it has more digits after the point.
    """
    sign, digits, exponent = value.as_tuple()
    shift = int(exponent) + scale
    number = int("".join(map(str, digits)) or "0")
    number, rest = (number * 10**shift, 0) if shift >= 0 else divmod(number, 10**-shift)
    if rest:
        raise InputError(f"the decimal {value} has more than {scale} digits after the point")
    return -number if sign else number


def _summary(kind: PrimitiveType, values: list[Any]) -> FieldSummary:
    nulls = any(value is None for value in values)
    nans = any(value != value for value in values)
    proper = [value for value in values if value is not None and value == value]
    if not proper:
        return FieldSummary(nulls, nans)
    low, high = min(proper, key=_order), max(proper, key=_order)
    return FieldSummary(nulls, nans, _bytes(kind, low), _bytes(kind, high))


def _order(value: Any) -> Any:
    # -0.0 comes before 0.0 in Iceberg's order.
    return (value, math.copysign(1.0, value)) if isinstance(value, float) else value


def _bytes(kind: PrimitiveType, value: Any) -> bytes:
    if isinstance(kind, DecimalType):
        digits = tuple(map(int, str(abs(unscaled(value, kind.scale)))))
        value = Decimal((value < 0, digits, -kind.scale))
    return to_bytes(kind, value)
