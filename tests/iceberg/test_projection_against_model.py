"""Any nested column, evolved in any way, against a model that looks rows up field by field."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)
from tests.iceberg.scan_tools import data_entry, make_scan_context, schema_of, seen
from tests.sampling import choose_number

from intarsia.tables.iceberg.schemas import to_arrow_schema

DEFAULT = 77


@dataclass
class Numbers:
    """Field ids, each given once."""

    last: int = 100

    def next(self) -> int:
        self.last += 1
        return self.last


@st.composite
def old_types(draw: st.DrawFn, numbers: Numbers, depth: int) -> IcebergType:
    kinds = ["int", "float", "string"] + (["struct", "list", "map"] if depth else [])
    match draw(st.sampled_from(kinds)):
        case "int":
            return IntegerType()
        case "float":
            return FloatType()
        case "struct":
            count = draw(st.integers(1, 3))
            return StructType(
                *(
                    NestedField(numbers.next(), f"f{n}", draw(old_types(numbers, depth - 1)))
                    for n in range(count)
                )
            )
        case "list":
            return ListType(numbers.next(), draw(old_types(numbers, depth - 1)), False)
        case "map":
            return MapType(
                numbers.next(), StringType(), numbers.next(), draw(old_types(numbers, depth - 1)), False
            )
    return StringType()


@st.composite
def new_types(draw: st.DrawFn, old: IcebergType, numbers: Numbers) -> IcebergType:
    """The type after some evolution: promoted, renamed, reordered, added to, dropped from."""
    match old:
        case IntegerType():
            return draw(st.sampled_from([IntegerType(), LongType()]))
        case FloatType():
            return draw(st.sampled_from([FloatType(), DoubleType()]))
        case ListType():
            return ListType(old.element_id, draw(new_types(old.element_type, numbers)), False)
        case MapType():
            value = draw(new_types(old.value_type, numbers))
            return MapType(old.key_id, StringType(), old.value_id, value, False)
        case StructType():
            kept = [one for one in old.fields if draw(st.booleans())]
            fields = [
                NestedField(one.field_id, f"n{one.field_id}", draw(new_types(one.field_type, numbers)))
                for one in kept
            ]
            if draw(st.booleans()) or not fields:
                default = draw(st.sampled_from([None, DEFAULT]))
                number = numbers.next()
                fields.append(NestedField(number, f"n{number}", LongType(), initial_default=default))
            return StructType(*draw(st.permutations(fields)))
    return old


@st.composite
def values(draw: st.DrawFn, kind: IcebergType) -> Any:
    if draw(st.integers(0, 4)) == 0:
        return None
    match kind:
        case IntegerType():
            return draw(st.integers(-9, 9))
        case FloatType():
            return draw(st.sampled_from([0.5, -1.25]))
        case StructType():
            return {one.name: draw(values(one.field_type)) for one in kind.fields}
        case ListType():
            return draw(st.lists(values(kind.element_type), max_size=3))
        case MapType():
            keys = draw(st.lists(st.sampled_from("abc"), max_size=3, unique=True))
            return [(key, draw(values(kind.value_type))) for key in keys]
    return draw(st.sampled_from(["", "x", "yy"]))


def model(value: Any, old: IcebergType, new: IcebergType) -> Any:
    if value is None:
        return None
    match old, new:
        case ListType(), ListType():
            return [model(one, old.element_type, new.element_type) for one in value]
        case MapType(), MapType():
            return [(key, model(one, old.value_type, new.value_type)) for key, one in value]
        case StructType(), StructType():
            known = {one.field_id: one for one in old.fields}
            return {
                one.name: model(
                    value[known[one.field_id].name], known[one.field_id].field_type, one.field_type
                )
                if one.field_id in known
                else one.initial_default
                for one in new.fields
            }
    return value


@st.composite
def cases(draw: st.DrawFn) -> tuple[IcebergType, IcebergType, list[Any], int]:
    numbers = Numbers()
    old = draw(old_types(numbers, 3))
    new = draw(new_types(old, numbers))
    return old, new, draw(st.lists(values(old), min_size=1, max_size=6)), draw(st.integers(0, 5))


@settings(max_examples=choose_number(50, 150), deadline=None)
@given(cases())
def test_an_evolved_column_is_what_a_model_says(
    case: tuple[IcebergType, IcebergType, list[Any], int],
) -> None:
    old, new, rows, skipped = case
    before, after = schema_of((1, "c", old)), schema_of((1, "d", new))
    sink = io.BytesIO()
    pq.write_table(pa.table({"c": rows}, to_arrow_schema(before)), sink)
    parquet = pq.ParquetFile(sink)
    scan_task = make_scan_context(after).make_scan_task(data_entry())
    expected = [model(row, old, new) for row in rows]
    whole = seen(scan_task, parquet)
    whole.validate(full=True)
    assert whole.schema.equals(to_arrow_schema(after))
    assert whole["d"].to_pylist() == expected
    view = scan_task.project_columns(parquet.schema_arrow, to_arrow_schema(after))
    piece = view.project(parquet.read().slice(skipped), ["d"], start=skipped)
    piece.validate(full=True)
    assert piece["d"].to_pylist() == expected[skipped:]
