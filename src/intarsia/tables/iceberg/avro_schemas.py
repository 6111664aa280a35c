"""Avro schemas of manifests and manifest lists for format versions 1 to 3.

Field for field those of Java's ``V1Metadata``, ``V2Metadata``, ``V3Metadata`` and ``DataFile.getType``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from intarsia.errors import NotSupported

Json = dict[str, Any]

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_PRIMITIVES: Mapping[type[IcebergType], Any] = {
    BooleanType: "boolean",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    BinaryType: "bytes",
    UnknownType: "null",
    DateType: {"type": "int", "logicalType": "date"},
    TimeType: {"type": "long", "logicalType": "time-micros"},
    TimestampType: {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    TimestamptzType: {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
    TimestampNanoType: {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": False},
    TimestamptzNanoType: {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": True},
    UUIDType: {"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"},
}


def compute_decimal_size(precision: int) -> int:
    """Bytes of the smallest signed integer that holds every decimal of a precision.

    Java's ``TypeUtil.decimalRequiredBytes``.
    """
    return ((10**precision - 1).bit_length() + 8) // 8


def make_compatible_name(name: str) -> str:
    """A name that Avro takes, escaped as by Java's ``AvroSchemaUtil.makeCompatibleName``.

    Java leaves letters beyond ASCII as they are. They are escaped here, since Avro's specification does not
    allow them and some readers refuse them; fields are found by their ids either way.
    """
    if _PLAIN_NAME.fullmatch(name):
        return name
    first = name[:1]
    if not first:
        return name
    if _PLAIN_NAME.fullmatch(first):
        head = first
    elif first.isdigit():
        head = f"_{first}"
    else:
        head = f"_x{ord(first):X}"
    return head + "".join(
        letter if re.fullmatch(r"[A-Za-z0-9_]", letter) else f"_x{ord(letter):X}" for letter in name[1:]
    )


def make_entry_schema(fields: Sequence[NestedField], format_version: int) -> Json:
    """The schema of a manifest's records; ``fields`` are those of its partition spec."""
    doc = _DOC["partition"] if format_version > 1 else None
    file = {
        "type": "record",
        "name": "r2",
        "fields": [
            _make_field(102, "partition", _make_partition(fields), doc) if part == "partition" else part
            for part in _FILE_FIELDS[format_version]
        ],
    }
    top = [_make_field(0, "status", "int"), _make_field(1, "snapshot_id", "long", optional=True)]
    if format_version > 1:
        top.append(_make_field(3, "sequence_number", "long", optional=True))
        top.append(_make_field(4, "file_sequence_number", "long", optional=True))
    return {"type": "record", "name": "manifest_entry", "fields": [*top, _make_field(2, "data_file", file)]}


def make_list_schema(format_version: int) -> Json:
    """The schema of a manifest list's records."""
    return {"type": "record", "name": "manifest_file", "fields": list(_LIST_FIELDS[format_version])}


def _make_partition(fields: Sequence[NestedField]) -> Json:
    named: set[str] = set()
    return {
        "type": "record",
        "name": "r102",
        "fields": [_make_partition_field(field, named) for field in fields],
    }


def _make_partition_field(field: NestedField, named: set[str]) -> Json:
    kind = _to_avro_type(field.field_type)
    if isinstance(kind, dict) and "name" in kind:
        # Avro declares a named type once and refers to it by its name afterwards.
        if kind["name"] in named:
            kind = kind["name"]
        else:
            named.add(kind["name"])
    name = make_compatible_name(field.name)
    made = _make_field(field.field_id, name, kind, optional=kind != "null")
    if name != field.name:
        made["iceberg-field-name"] = field.name
    return made


def _to_avro_type(kind: IcebergType) -> Any:
    match kind:
        case DecimalType():
            return {
                "type": "fixed",
                "name": f"decimal_{kind.precision}_{kind.scale}",
                "size": compute_decimal_size(kind.precision),
                "logicalType": "decimal",
                "precision": kind.precision,
                "scale": kind.scale,
            }
        case FixedType():
            return {"type": "fixed", "name": f"fixed_{len(kind)}", "size": len(kind)}
    made = _PRIMITIVES.get(type(kind))
    if made is None:
        raise NotSupported(f"a partition field of type {kind}", hint="Iceberg cannot partition by this type")
    return dict(made) if isinstance(made, dict) else made


def _make_field(
    field_id: int, name: str, kind: Any, doc: str | None = None, *, optional: bool = False
) -> Json:
    made: Json = {"name": name, "type": ["null", kind] if optional else kind}
    if doc is not None:
        made["doc"] = doc
    if optional:
        made["default"] = None
    made["field-id"] = field_id
    return made


def _make_map(key_id: int, value_id: int, value: str) -> Json:
    pair = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [_make_field(key_id, "key", "int"), _make_field(value_id, "value", value)],
    }
    return {"type": "array", "items": pair, "logicalType": "map"}


def _make_list(element_id: int, element: Any) -> Json:
    return {"type": "array", "items": element, "element-id": element_id}


_DOC = {
    "content": "Contents of the file: 0=data, 1=position deletes, 2=equality deletes",
    "file_path": "Location URI with FS scheme",
    "file_format": "File format name: avro, orc, or parquet",
    "partition": "Partition data tuple, schema based on the partition spec",
    "record_count": "Number of records in the file",
    "file_size_in_bytes": "Total file size in bytes",
    "column_sizes": "Map of column id to total size on disk",
    "value_counts": "Map of column id to total count, including null and NaN",
    "null_value_counts": "Map of column id to null value count",
    "nan_value_counts": "Map of column id to number of NaN values in the column",
    "lower_bounds": "Map of column id to lower bound",
    "upper_bounds": "Map of column id to upper bound",
    "key_metadata": "Encryption key metadata blob",
    "split_offsets": "Splittable offsets",
    "equality_ids": "Equality comparison field IDs",
    "sort_order_id": "Sort order ID",
    "first_row_id": "The first row ID assigned to the first row in the data file",
    "referenced_data_file": (
        "Fully qualified location (URI with FS scheme) of a data file that all deletes reference"
    ),
    "content_offset": "The offset in the file where the content starts",
    "content_size_in_bytes": "The length of referenced content stored in the file",
}


def _make_file_field(field_id: int, name: str, kind: Any, *, optional: bool = False) -> Json:
    return _make_field(field_id, name, kind, _DOC.get(name), optional=optional)


_CONTENT = _make_file_field(134, "content", "int")
_HEAD = (
    _make_file_field(100, "file_path", "string"),
    _make_file_field(101, "file_format", "string"),
    "partition",
    _make_file_field(103, "record_count", "long"),
    _make_file_field(104, "file_size_in_bytes", "long"),
)
_BLOCK_SIZE = _make_file_field(105, "block_size_in_bytes", "long")
_METRICS = (
    _make_file_field(108, "column_sizes", _make_map(117, 118, "long"), optional=True),
    _make_file_field(109, "value_counts", _make_map(119, 120, "long"), optional=True),
    _make_file_field(110, "null_value_counts", _make_map(121, 122, "long"), optional=True),
    _make_file_field(137, "nan_value_counts", _make_map(138, 139, "long"), optional=True),
    _make_file_field(125, "lower_bounds", _make_map(126, 127, "bytes"), optional=True),
    _make_file_field(128, "upper_bounds", _make_map(129, 130, "bytes"), optional=True),
    _make_file_field(131, "key_metadata", "bytes", optional=True),
    _make_file_field(132, "split_offsets", _make_list(133, "long"), optional=True),
)
_EQUALITY = _make_file_field(135, "equality_ids", _make_list(136, "int"), optional=True)
_SORT = _make_file_field(140, "sort_order_id", "int", optional=True)
_REFERENCED = _make_file_field(143, "referenced_data_file", "string", optional=True)
_FILE_FIELDS: Mapping[int, tuple[Any, ...]] = {
    1: (*_HEAD, _BLOCK_SIZE, *_METRICS, _SORT),
    2: (_CONTENT, *_HEAD, *_METRICS, _EQUALITY, _SORT, _REFERENCED),
    3: (
        _CONTENT,
        *_HEAD,
        *_METRICS,
        _EQUALITY,
        _SORT,
        _make_file_field(142, "first_row_id", "long", optional=True),
        _REFERENCED,
        _make_file_field(144, "content_offset", "long", optional=True),
        _make_file_field(145, "content_size_in_bytes", "long", optional=True),
    ),
}

_SUMMARY = {
    "type": "record",
    "name": "r508",
    "fields": [
        _make_field(509, "contains_null", "boolean", "True if any file has a null partition value"),
        _make_field(
            518, "contains_nan", "boolean", "True if any file has a nan partition value", optional=True
        ),
        _make_field(510, "lower_bound", "bytes", "Partition lower bound for all files", optional=True),
        _make_field(511, "upper_bound", "bytes", "Partition upper bound for all files", optional=True),
    ],
}


def _make_counts(*, optional: bool) -> tuple[Json, ...]:
    return (
        _make_field(504, "added_files_count", "int", "Added entry count", optional=optional),
        _make_field(505, "existing_files_count", "int", "Existing entry count", optional=optional),
        _make_field(506, "deleted_files_count", "int", "Deleted entry count", optional=optional),
    )


def _make_row_counts(*, optional: bool) -> tuple[Json, ...]:
    return (
        _make_field(512, "added_rows_count", "long", "Added rows count", optional=optional),
        _make_field(513, "existing_rows_count", "long", "Existing rows count", optional=optional),
        _make_field(514, "deleted_rows_count", "long", "Deleted rows count", optional=optional),
    )


_LIST_HEAD = (
    _make_field(500, "manifest_path", "string", "Location URI with FS scheme"),
    _make_field(501, "manifest_length", "long", "Total file size in bytes"),
    _make_field(502, "partition_spec_id", "int", "Spec ID used to write"),
)
_SEQUENCE = (
    _make_field(517, "content", "int", "Contents of the manifest: 0=data, 1=deletes"),
    _make_field(515, "sequence_number", "long", "Sequence number when the manifest was added"),
    _make_field(516, "min_sequence_number", "long", "Lowest sequence number in the manifest"),
)
_ADDED_BY = _make_field(503, "added_snapshot_id", "long", "Snapshot ID that added the manifest")
_PARTITIONS = _make_field(
    507, "partitions", _make_list(508, _SUMMARY), "Summary for each partition", optional=True
)
_KEY = _make_field(519, "key_metadata", "bytes", "Encryption key metadata blob", optional=True)
_LIST_2 = (
    *_LIST_HEAD,
    *_SEQUENCE,
    _ADDED_BY,
    *_make_counts(optional=False),
    *_make_row_counts(optional=False),
    _PARTITIONS,
    _KEY,
)
_LIST_FIELDS: Mapping[int, tuple[Json, ...]] = {
    1: (
        *_LIST_HEAD,
        _ADDED_BY,
        *_make_counts(optional=True),
        _PARTITIONS,
        *_make_row_counts(optional=True),
        _KEY,
    ),
    2: _LIST_2,
    3: (
        *_LIST_2,
        _make_field(
            520,
            "first_row_id",
            "long",
            "Starting row ID to assign to new rows in ADDED data files",
            optional=True,
        ),
    ),
}
