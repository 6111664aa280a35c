"""Types of a DataFrame that Arrow or Parquet does not tell: how they travel, and what Spark notes of them."""

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

from intarsia.core.files import Snapshot
from intarsia.core.intent import Intent
from intarsia.core.spark_note import SPARK_SCHEMA, note_of, noted_types
from intarsia.errors import SchemaMismatch

if TYPE_CHECKING:
    from intarsia.engines.spark.source import SparkSource

_MONTHS = YearMonthIntervalType(YearMonthIntervalType.MONTH, YearMonthIntervalType.MONTH)


def year_months(frame: Any) -> dict[str, Any]:
    """Columns of a DataFrame with year-month intervals in them, and their types as Spark's JSON."""
    return {
        field.name: json.loads(field.dataType.json())
        for field in frame.schema.fields
        if _has(field.dataType, YearMonthIntervalType)
    }


def as_months(frame: Any) -> Any:
    """The DataFrame with its year-month intervals as numbers of months, which is how Spark stores them.

    Arrow's type for them is one that PySpark does not take.
    """
    names = year_months(frame)
    if not names:
        return frame
    columns = []
    for field in frame.schema.fields:
        column = frame[_quoted(field.name)]
        if field.name in names:
            months = column.cast(_with_months(field.dataType, _MONTHS))
            column = months.cast(_with_months(field.dataType, IntegerType())).alias(field.name)
        columns.append(column)
    return frame.select(*columns)


def spark_note(frame: Any) -> dict[bytes, bytes]:
    """Spark's schema of a DataFrame, where Parquet would not tell all of it."""
    schema = frame.schema
    told = any(_has(field.dataType, VariantType, CharType, VarcharType) for field in schema.fields)
    text = schema.json()
    if not (told or '"interval ' in text or "__CHAR_VARCHAR" in text or "__COLLATIONS" in text):
        return {}
    return {SPARK_SCHEMA: text.encode()}


def check_types(source: SparkSource, intent: Intent, snapshot: Snapshot) -> None:
    """Raise SchemaMismatch for columns of types that only Spark has, where the target has no column for them.

    These are year-month intervals, and ``void`` of a DataFrame, which Spark puts into no file either.
    """
    afresh = not snapshot.files or intent.operation == "overwrite"
    known = () if afresh and snapshot.spread is None else snapshot.schema.names
    void = [field.name for field in source.schema if field.name not in known and _has_void(field.type)]
    if void and source.origin == "DataFrame":  # Arrow's own tables have a type of NULLs that files can hold
        raise SchemaMismatch(
            f"{', '.join(map(repr, void))} is void in the source, and the target has no such column.",
            path=snapshot.root,
            hint="give it one, such as cast(null as string).",
        )
    if afresh and snapshot.spread is None:
        return
    noted = noted_types(note_of(snapshot)[0])
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


def _has(kind: DataType, *wanted: type[DataType]) -> bool:
    match kind:
        case StructType():
            return any(_has(field.dataType, *wanted) for field in kind.fields)
        case ArrayType():
            return _has(kind.elementType, *wanted)
        case MapType():
            return _has(kind.keyType, *wanted) or _has(kind.valueType, *wanted)
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


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
