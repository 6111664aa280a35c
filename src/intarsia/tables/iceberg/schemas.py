"""Iceberg's types as Arrow's, with field ids at every level; values and defaults in their internal form.

The internal form of a value is the one of manifests: ``int`` for dates (days), times and timestamps
(micros or nanos), ``decimal.Decimal``, ``bytes`` for fixed, binary and UUID.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema, index_by_id
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
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from intarsia.common.thrift import BINARY, I32, LIST, STRUCT, get, read_struct, write_struct
from intarsia.errors import NotSupported

FIELD_ID = b"PARQUET:field_id"
"""The key under which an Arrow field carries its id, in memory and in Parquet."""
UTC = "UTC"
_ELEMENTS, _NAME, _CHILDREN, _CONVERTED, _LOGICAL = 2, 4, 5, 6, 10
"""Fields of Parquet's FileMetaData and SchemaElement."""
_TIME, _TIME_MICROS = 7, 8
"""The logical type, and the converted one."""

ARROW_TYPES: dict[type[IcebergType], pa.DataType] = {
    BooleanType: pa.bool_(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    DateType: pa.date32(),
    TimeType: pa.time64("us"),
    TimestampType: pa.timestamp("us"),
    TimestamptzType: pa.timestamp("us", UTC),
    TimestampNanoType: pa.timestamp("ns"),
    TimestamptzNanoType: pa.timestamp("ns", UTC),
    StringType: pa.string(),
    BinaryType: pa.binary(),
    UUIDType: pa.binary(16),
    UnknownType: pa.null(),
}


def to_arrow_schema(schema: Schema) -> pa.Schema:
    """The columns of a table as Arrow's, ids in their metadata.

    Raises:
        NotSupported: a column has a type that is not handled; it is named.
    """
    return pa.schema([to_arrow_field(field) for field in schema.fields])


def make_annotated_footer(schema: Schema) -> pq.FileMetaData | None:
    """The footer of a data file as Java's ``TypeToMessageType`` makes it; None if PyArrow's own is the same.

    UUIDs are sixteen bytes everywhere else, and have to be annotated in files. Times have the older
    annotation beside the newer one.
    """
    if not any(isinstance(field.field_type, (UUIDType, TimeType)) for field in index_by_id(schema).values()):
        return None
    plain = to_arrow_schema(schema)
    fields = [
        field.with_type(_annotate_type(field.type, known.field_type))
        for field, known in zip(plain, schema.fields, strict=True)
    ]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, pa.schema(fields), store_schema=False, store_decimal_as_integer=True):
        pass
    raw = sink.getvalue().to_pybytes()
    footer, _ = read_struct(raw[-8 - int.from_bytes(raw[-8:-4], "little") : -8])
    root, *others = get(footer, _ELEMENTS)[1]
    for element in others:
        if _TIME in get(element, _LOGICAL, {}):
            element[_CONVERTED] = (I32, _TIME_MICROS)
    named = {_NAME: (BINARY, b"table"), _CHILDREN: root[_CHILDREN]}
    written = write_struct({**footer, _ELEMENTS: (LIST, (STRUCT, [named, *others]))})
    return pq.read_metadata(pa.BufferReader(b"PAR1" + written + len(written).to_bytes(4, "little") + b"PAR1"))


def _annotate_type(kind: pa.DataType, known: IcebergType) -> pa.DataType:
    match known:
        case UUIDType():
            return pa.uuid()
        case StructType():
            children = zip(kind.fields, known.fields, strict=True)
            return pa.struct([f.with_type(_annotate_type(f.type, child.field_type)) for f, child in children])
        case ListType():
            item = kind.value_field
            return pa.list_(item.with_type(_annotate_type(item.type, known.element_type)))
        case MapType():
            key, item = kind.key_field, kind.item_field
            return pa.map_(
                key.with_type(_annotate_type(key.type, known.key_type)),
                item.with_type(_annotate_type(item.type, known.value_type)),
            )
    return kind


def to_arrow_field(field: NestedField, *, path: str = "") -> pa.Field:
    """One column or field of a struct, with its id."""
    path = f"{path}.{field.name}" if path else field.name
    return _make_field(field.name, field.field_id, field.field_type, not field.required, path)


def to_arrow_type(kind: IcebergType, *, path: str = "") -> pa.DataType:
    """The Arrow type of a column at ``path``, which errors name."""
    match kind:
        case StructType():
            return pa.struct([to_arrow_field(field, path=path) for field in kind.fields])
        case ListType():
            element = kind.element_type
            return pa.list_(
                _make_field("element", kind.element_id, element, not kind.element_required, f"{path}.element")
            )
        case MapType():
            return pa.map_(
                _make_field("key", kind.key_id, kind.key_type, False, f"{path}.key"),
                _make_field(
                    "value", kind.value_id, kind.value_type, not kind.value_required, f"{path}.value"
                ),
            )
        case DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case FixedType():
            return pa.binary(len(kind))
    plain = ARROW_TYPES.get(type(kind))
    if plain is None:
        raise NotSupported(
            f"Column {path!r} has the type {kind}, which is not supported.",
            hint="leave the column out of the table, or use an engine that knows the type.",
        )
    return plain


def _make_field(name: str, number: int, kind: IcebergType, nullable: bool, path: str) -> pa.Field:
    return pa.field(name, to_arrow_type(kind, path=path), nullable, {FIELD_ID: str(number).encode()})


def get_field_id(field: pa.Field) -> int | None:
    """The id an Arrow field carries; None for none."""
    number = (field.metadata or {}).get(FIELD_ID)
    if number is None:
        return None
    return int(number) if int(number) >= 0 else None


def iterate_fields(schema: Schema) -> Iterator[NestedField]:
    """All fields of a schema, outer before inner; elements, keys and values of containers too."""
    yield from _iterate_type(schema.as_struct())


def _iterate_type(kind: IcebergType) -> Iterator[NestedField]:
    for field in list_inner_fields(kind):
        yield field
        yield from _iterate_type(field.field_type)


def list_inner_fields(kind: IcebergType) -> tuple[NestedField, ...]:
    """The fields right inside a type: of a struct, or the element, key and value of a list or map."""
    match kind:
        case StructType():
            return tuple(kind.fields)
        case ListType():
            return (kind.element_field,)
        case MapType():
            return (kind.key_field, kind.value_field)
    return ()


def collect_initial_defaults(schema: Schema) -> dict[int, Any]:
    """By field id what a row reads as where its file was written before the field was added."""
    return {
        field.field_id: to_internal_value(field.initial_default, field.field_type)
        for field in iterate_fields(schema)
        if field.initial_default is not None
    }


_EPOCH = dt.datetime(1970, 1, 1)
_MICRO = dt.timedelta(microseconds=1)


def to_internal_value(value: Any, kind: IcebergType) -> Any:
    """A value of Python's own types in its internal form; one that is internal already stays."""
    match value:
        case dt.datetime():
            instant = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
            micros = (instant - _EPOCH) // _MICRO
            nanos = isinstance(kind, (TimestampNanoType, TimestamptzNanoType))
            return micros * 1000 if nanos else micros
        case dt.date():
            return (value - _EPOCH.date()).days
        case dt.time():
            return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        case uuid.UUID():
            return value.bytes
    return value


def to_arrow_scalar(value: Any, kind: pa.DataType) -> pa.Scalar[Any]:
    """An internal value as a scalar of the Arrow type of its column."""
    return pa.scalar(value, kind)


def refuse_unwritable(schema: Schema) -> None:
    """Refuse tables with a column that cannot be stored in a data file.

    Raises:
        NotSupported: naming the first one and its type.
    """
    to_arrow_schema(schema)
    columns = {field.field_id for field in schema.fields}
    for field in iterate_fields(schema):
        if isinstance(field.field_type, UnknownType) and field.field_id not in columns:
            raise NotSupported(
                f"{schema.find_column_name(field.field_id)!r} is of the type unknown, which has no place in a"
                " data file, inside another column.",
                hint="give it a type first, or drop it.",
            )


def find_unstored_columns(schema: Schema) -> tuple[str, ...]:
    """The columns that data files leave out: those of type unknown (Iceberg spec, appendix A, "Parquet")."""
    return tuple(field.name for field in schema.fields if isinstance(field.field_type, UnknownType))
