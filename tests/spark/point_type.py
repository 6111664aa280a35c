"""A type of Spark's that only Python knows: a point, stored as an array of two numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark.sql.types import ArrayType, DoubleType, UserDefinedType


class PointUDT(UserDefinedType):
    @classmethod
    def sqlType(cls) -> ArrayType:
        return ArrayType(DoubleType(), False)

    @classmethod
    def module(cls) -> str:
        return __name__

    def serialize(self, obj: Any) -> Any:
        return None if obj is None else [obj.x, obj.y]

    def deserialize(self, datum: Any) -> Any:
        return Point(*datum)


class Point(NamedTuple):
    x: float
    y: float


Point.__UDT__ = PointUDT()  # type: ignore[attr-defined]
