"""Filters of Spark as conditions of the library; only such as keep every row that Spark keeps."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as spark

from intarsia.core.expr import And, Column, Compare, Expr, In, IsNull, Literal, Not, make_literal, resolve
from intarsia.errors import IntarsiaError

__all__ = ["convert_filters"]

_OPERATORS: dict[type, Any] = {
    spark.EqualTo: "=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
}


def convert_filters(filters: Sequence[spark.Filter], schema: pa.Schema) -> Expr | None:
    """The condition that follows from some of the filters; None where it follows from none.

    Rows for which every filter is TRUE are rows for which the condition is. Comparisons of floating point
    numbers are left out (to Spark, NaN is larger than any number), and so are fields of structs and types
    that Spark shows as others.
    """
    found: Expr | None = None
    for one in filters:
        made = _convert(one, schema)
        if made is not None:
            found = made if found is None else And(found, made)
    return found


def _convert(given: spark.Filter, schema: pa.Schema) -> Expr | None:
    made = _make(given, schema)
    if made is None:
        return None
    try:
        return resolve(made, schema, expect=pa.bool_())
    except IntarsiaError:  # Spark compares what cannot be compared here
        return None


def _make(given: spark.Filter, schema: pa.Schema) -> Expr | None:
    match given:
        case spark.Not(child=spark.EqualNullSafe()):
            return None
        case spark.Not(child=child):
            made = _make(child, schema)
            return None if made is None else Not(made)
        case spark.IsNull(attribute=path):
            return _find_null(path, schema)
        case spark.IsNotNull(attribute=path):
            absent = _find_null(path, schema)
            return None if absent is None else Not(absent)
        case spark.EqualNullSafe(attribute=path, value=None):
            return _find_null(path, schema)
        case spark.EqualNullSafe(attribute=path, value=value):
            return _make(spark.EqualTo(path, value), schema)
        case spark.In(attribute=path, value=values):
            column, kind = _find(path, schema)
            items = [None if column is None else _make_constant(value, kind) for value in values]
            if column is None or not items or any(item is None for item in items):
                return None
            return In(column, tuple(item for item in items if item is not None))
    operator = _OPERATORS.get(type(given))
    if operator is None:
        return None
    column, kind = _find(given.attribute, schema)  # type: ignore[attr-defined]
    constant = _make_constant(given.value, kind)  # type: ignore[attr-defined]
    return None if column is None or constant is None else Compare(operator, column, constant)


def _find_null(path: Sequence[str], schema: pa.Schema) -> Expr | None:
    return IsNull(Column((path[0],), exact=True)) if len(path) == 1 and path[0] in schema.names else None


def _find(path: Sequence[str], schema: pa.Schema) -> tuple[Column | None, pa.DataType]:
    if len(path) != 1 or path[0] not in schema.names:
        return None, pa.null()
    kind = schema.field(path[0]).type
    return Column((path[0],), exact=True), kind.value_type if pa.types.is_dictionary(kind) else kind


def _make_constant(value: Any, kind: pa.DataType) -> Literal | None:
    """The constant where column and value are of types that both compare alike; else None."""
    is_ = pa.types
    match value:
        case bool():
            fits = is_.is_boolean(kind)
        case int():
            fits = is_.is_signed_integer(kind)
        case str():
            fits = is_.is_string(kind) or is_.is_large_string(kind)
        case Decimal():
            fits = is_.is_decimal(kind) and value.is_finite()
        case datetime.datetime():
            fits = is_.is_timestamp(kind) and (kind.tz is None) == (value.tzinfo is None)
        case datetime.date():
            fits = is_.is_date(kind)
        case _:
            fits = False
    return make_literal(value) if fits else None
