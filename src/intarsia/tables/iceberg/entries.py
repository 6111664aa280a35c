"""What manifests and manifest lists say, as plain values; nothing here reads or writes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any


class Content(IntEnum):
    """What a file holds."""

    DATA = 0
    POSITION_DELETES = 1
    EQUALITY_DELETES = 2


class Status(IntEnum):
    """What a manifest says of a file."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


@dataclass(frozen=True, slots=True)
class ContentFile:
    """A data file or delete file, every field of its manifest record kept as it was written.

    ``partition`` are the values of the spec's fields, in their order, in Iceberg's own form: ``int`` for
    dates (days), times and timestamps (micros or nanos), ``decimal.Decimal``, ``bytes`` for fixed,
    binary and UUID. ``spec_id`` is fixed when the file is written and never looked up again.
    """

    content: Content
    file_path: str
    """Byte for byte as it was recorded; delete files name it so."""
    file_format: str
    spec_id: int
    partition: tuple[Any, ...]
    record_count: int
    file_size_in_bytes: int
    column_sizes: Mapping[int, int] | None = None
    value_counts: Mapping[int, int] | None = None
    null_value_counts: Mapping[int, int] | None = None
    nan_value_counts: Mapping[int, int] | None = None
    lower_bounds: Mapping[int, bytes] | None = None
    upper_bounds: Mapping[int, bytes] | None = None
    key_metadata: bytes | None = None
    split_offsets: tuple[int, ...] | None = None
    equality_ids: tuple[int, ...] | None = None
    sort_order_id: int | None = None
    first_row_id: int | None = None
    referenced_data_file: str | None = None
    content_offset: int | None = None
    content_size_in_bytes: int | None = None

    @property
    def is_vector(self) -> bool:
        """Whether it is a deletion vector: a blob inside a Puffin file."""
        return self.content is Content.POSITION_DELETES and self.file_format.upper() == "PUFFIN"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as one manifest lists it.

    Sequence numbers are None in what a commit adds: they are inherited from the manifest, so that a
    manifest survives a retry. Entries read through a manifest have them filled in.
    """

    status: Status
    snapshot_id: int | None
    file: ContentFile
    sequence_number: int | None = None
    """The data sequence number."""
    file_sequence_number: int | None = None


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """What a manifest list says of one partition field over all files of a manifest."""

    contains_null: bool
    contains_nan: bool | None = None
    lower_bound: bytes | None = None
    upper_bound: bytes | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest as a manifest list names it: always of one content and one spec."""

    manifest_path: str
    manifest_length: int
    partition_spec_id: int
    content: Content
    """DATA, or POSITION_DELETES for a manifest of delete files of either kind."""
    sequence_number: int | None
    """None until the commit that adds it knows its own."""
    min_sequence_number: int | None
    added_snapshot_id: int
    added_files_count: int | None = None
    existing_files_count: int | None = None
    deleted_files_count: int | None = None
    added_rows_count: int | None = None
    existing_rows_count: int | None = None
    deleted_rows_count: int | None = None
    partitions: tuple[FieldSummary, ...] | None = None
    key_metadata: bytes | None = None
    first_row_id: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the record that are not known here, kept."""
