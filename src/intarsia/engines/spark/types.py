"""Arrow values through Spark: types that Spark lacks travel as ones it has, and come back exactly."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    IntegerType,
    MapType,
    StructField,
    StructType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

from intarsia.common.schema import cast_exact
from intarsia.core.intent import Intent
from intarsia.core.snapshot import Snapshot
from intarsia.core.spark_metadata import SPARK_SCHEMA, read_spark_schema, read_spark_types
from intarsia.errors import NotSupported, SchemaMismatch

if TYPE_CHECKING:
    from intarsia.engines.spark.source import SparkSource


def to_spark_type(kind: pa.DataType) -> pa.DataType:
    """A type of Spark's that holds every value of ``kind``."""
    is_ = pa.types
    if is_.is_dictionary(kind):
        return to_spark_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return to_spark_type(kind.storage_type)
    if is_.is_uint64(kind):
        return pa.decimal128(20, 0)
    if is_.is_unsigned_integer(kind) or is_.is_time(kind) or is_.is_duration(kind):
        return pa.int64()
    if is_.is_timestamp(kind):
        return pa.int64() if kind.unit == "ns" else pa.timestamp("us", kind.tz)
    if is_.is_date(kind):
        return pa.date32()
    if is_.is_float16(kind):
        return pa.float32()
    if is_.is_large_string(kind) or is_.is_string_view(kind):
        return pa.string()
    if is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind) or is_.is_binary_view(kind):
        return pa.binary()
    if is_.is_null(kind):
        return pa.int32()
    if is_.is_decimal(kind):
        if kind.precision > 38:
            raise NotSupported(
                f"Spark has no decimal of {kind.precision} digits.", hint='use engine="arrow".'
            )
        return pa.decimal128(kind.precision, kind.scale)
    return _to_nested_type(kind) if is_.is_nested(kind) else kind


def _to_nested_type(kind: pa.DataType) -> pa.DataType:
    is_ = pa.types
    if is_.is_struct(kind):
        return pa.struct([field.with_type(to_spark_type(field.type)) for field in kind])
    if is_.is_map(kind):
        return pa.map_(to_spark_type(kind.key_type), to_spark_type(kind.item_type))
    return pa.list_(to_spark_type(kind.value_type))


def to_spark_types(table: pa.Table) -> pa.Table:
    """The table in carrier types."""
    columns = [_cast(column, to_spark_type(column.type)) for column in table.columns]
    return pa.table(columns, names=table.column_names)


def from_spark_types(table: pa.Table, schema: pa.Schema, *, operation: str, path: str) -> pa.Table:
    """The columns of ``schema``, which are the first that came back from Spark, in exactly its types."""
    columns = []
    for number, field in enumerate(schema):
        column = table.column(number)
        kind = field.type
        storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        if _is_counted(storage):
            column = _cast(_cast(column, pa.int64()), storage)
        columns.append(cast_exact(column, kind, column=field.name, operation=operation, path=path))
    return pa.table(columns, schema=schema)


def _is_counted(kind: pa.DataType) -> bool:
    """Types that travel as their count of units."""
    is_ = pa.types
    return bool(is_.is_time(kind) or is_.is_duration(kind) or (is_.is_timestamp(kind) and kind.unit == "ns"))


def _cast(column: Any, kind: pa.DataType) -> Any:
    if column.type == kind:
        return column
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if pa.types.is_time32(column.type):
        column = column.cast(pa.int32())
    if pa.types.is_time32(kind):
        column = column.cast(pa.int32())
    return column.cast(kind)


_MONTHS = YearMonthIntervalType(YearMonthIntervalType.MONTH, YearMonthIntervalType.MONTH)


def find_year_months(frame: Any) -> dict[str, Any]:
    """Columns of a DataFrame with year-month intervals in them, and their types as Spark's JSON."""
    return {
        field.name: json.loads(field.dataType.json())
        for field in frame.schema.fields
        if has_type(field.dataType, YearMonthIntervalType)
    }


def cast_to_months(frame: Any) -> Any:
    """The DataFrame with its year-month intervals as numbers of months, which is how Spark stores them.

    Arrow's type for them is one that PySpark does not take.
    """
    names = find_year_months(frame)
    if not names:
        return frame
    columns = []
    for field in frame.schema.fields:
        column = frame[_quote(field.name)]
        if field.name in names:
            months = column.cast(_with_months(field.dataType, _MONTHS))
            column = months.cast(_with_months(field.dataType, IntegerType())).alias(field.name)
        columns.append(column)
    return frame.select(*columns)


def make_spark_note(schema: StructType) -> dict[bytes, bytes]:
    """Spark's schema of a DataFrame, where Parquet would not tell all of it."""
    told = any(has_type(field.dataType, VariantType, CharType, VarcharType) for field in schema.fields)
    text = schema.json()
    if not (told or '"interval ' in text or "__CHAR_VARCHAR" in text or "__COLLATIONS" in text):
        return {}
    return {SPARK_SCHEMA: text.encode()}


def check_types(source: SparkSource, intent: Intent, snapshot: Snapshot) -> None:
    """Raise SchemaMismatch for columns of types that only Spark has, where the target has no column for them.

    These are year-month intervals, and ``void`` of a DataFrame, which Spark puts into no file either.
    """
    is_new = not snapshot.files or intent.operation == "overwrite"
    known = () if is_new and not snapshot.format.owns_schema else snapshot.schema.names
    void = [field.name for field in source.schema if field.name not in known and _has_void(field.type)]
    if void and source.origin == "DataFrame":  # Arrow's own tables have a type of NULLs that files can hold
        raise SchemaMismatch(
            f"{', '.join(map(repr, void))} is void in the source, and the target has no such column.",
            path=snapshot.root,
            hint="give it one, such as cast(null as string).",
        )
    if is_new and not snapshot.format.owns_schema:
        return
    noted = read_spark_types(read_spark_schema(snapshot)[0])
    others = [name for name, kind in source.year_months.items() if not _is_noted(kind, noted.get(name))]
    if others:
        raise SchemaMismatch(
            f"{', '.join(map(repr, others))} has year-month intervals in the source, and the target has no"
            " such column.",
            path=snapshot.root,
            hint="cast them to numbers of months, such as cast(cast(c as interval month) as int).",
        )


def _has_void(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_void(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_null(kind))


def _is_noted(kind: Any, noted: Any) -> bool:
    """Whether Spark notes a year-month interval wherever a type has one."""
    if isinstance(kind, str):
        return not _is_year_month(kind) or (isinstance(noted, str) and _is_year_month(noted))
    if not isinstance(noted, dict) or noted.get("type") != kind["type"]:
        return "interval" not in json.dumps(kind)
    match kind["type"]:
        case "struct":
            theirs = {field["name"]: field["type"] for field in noted["fields"]}
            return all(_is_noted(field["type"], theirs.get(field["name"])) for field in kind["fields"])
        case "array":
            return _is_noted(kind["elementType"], noted["elementType"])
        case "map":
            return all(_is_noted(kind[part], noted[part]) for part in ("keyType", "valueType"))
        case _:
            return True


def _is_year_month(name: str) -> bool:
    return name.startswith("interval ") and name.split()[1] in ("year", "month")


def has_type(kind: DataType, *wanted: type[DataType]) -> bool:
    """Whether a type is one of those, or has one inside."""
    match kind:
        case StructType():
            return any(has_type(field.dataType, *wanted) for field in kind.fields)
        case ArrayType():
            return has_type(kind.elementType, *wanted)
        case MapType():
            return has_type(kind.keyType, *wanted) or has_type(kind.valueType, *wanted)
        case _:
            return isinstance(kind, wanted)


def _with_months(kind: DataType, months: DataType) -> DataType:
    match kind:
        case YearMonthIntervalType():
            return months
        case StructType():
            return StructType(
                [StructField(f.name, _with_months(f.dataType, months), f.nullable, f.metadata) for f in kind]
            )
        case ArrayType():
            return ArrayType(_with_months(kind.elementType, months), kind.containsNull)
        case MapType():
            key, value = _with_months(kind.keyType, months), _with_months(kind.valueType, months)
            return MapType(key, value, kind.valueContainsNull)
        case _:
            return kind


def _quote(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
