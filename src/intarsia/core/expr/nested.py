"""Lists, structs and maps in expressions: building, converting and comparing them.

Inside nested values NULL equals NULL, as in DuckDB; the entries of a map are compared in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from intarsia.core.expr.casts import to_working
from intarsia.core.expr.kernels import compare
from intarsia.core.expr.nodes import Expr, Literal
from intarsia.core.expr.types import find_common_type, find_working_type
from intarsia.errors import SchemaMismatch

LIST, STRUCT, MAP, ROW = "list_value", "struct_pack", "map_value", "row"
MAKERS = (LIST, STRUCT, MAP, ROW)
"""Calls that make nested values: of items; of names and values; of keys and values; of fields in order."""


_NO_ENTRIES = pa.map_(pa.string(), pa.null())
"""The type of a map of nothing; a key is never of the null type."""


def is_list(type: pa.DataType) -> bool:
    return pt.is_list(type) or pt.is_large_list(type) or pt.is_fixed_size_list(type)


def find_common_nested(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type in which two types, nested or not, are compared; None if they cannot be.

    Fields of structs are matched by name, ignoring case; those of ``row(...)`` by position.
    """
    if left == right or pt.is_null(right):
        return left
    if pt.is_null(left):
        return right
    if is_list(left) and is_list(right):
        inner = find_common_nested(left.value_type, right.value_type)
        return None if inner is None else pa.large_list(inner) if _is_large(left, right) else pa.list_(inner)
    if pt.is_map(left) and pt.is_map(right):
        if _NO_ENTRIES in (left, right):
            return left if right == _NO_ENTRIES else right
        key, item = (
            find_common_nested(left.key_type, right.key_type),
            find_common_nested(left.item_type, right.item_type),
        )
        return None if key is None or item is None else pa.map_(key, item)
    if pt.is_struct(left) and pt.is_struct(right):
        return _find_common_struct(left, right)
    if pt.is_nested(left) or pt.is_nested(right):
        return None
    return find_common_type(find_working_type(left), find_working_type(right))


def _is_large(*types: pa.DataType) -> bool:
    return any(pt.is_large_list(type) for type in types)


def _find_common_struct(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    places = find_field_places(left, right)
    if places is None or len(places) != len(list(right)):
        return None
    fields = []
    for field, place in zip(left, places, strict=True):
        other = right.field(place)
        inner = find_common_nested(field.type, other.type)
        if inner is None:
            return None
        fields.append(pa.field(field.name or other.name, inner))
    return pa.struct(fields)


def find_field_places(fields: pa.DataType, inside: pa.DataType) -> list[int] | None:
    """The position in one struct of each field of another, matched by name, or by position if unnamed."""
    unnamed = not all(field.name for field in (*fields, *inside))
    if unnamed:
        return list(range(len(list(fields)))) if len(list(fields)) == len(list(inside)) else None
    folded = [field.name.lower() for field in inside]
    wanted = [field.name.lower() for field in fields]
    if len(set(folded)) < len(folded) or len(set(wanted)) < len(wanted) or not set(wanted) <= set(folded):
        return None
    return [folded.index(name) for name in wanted]


def convert(value: Any, target: pa.DataType) -> Any:
    """Cast nested values to a common type or to the type of a column."""
    source = value.type
    if source == target:
        return value
    if not pt.is_nested(target):
        return pc.cast(to_working(value), target)
    if pt.is_null(source):
        return pa.nulls(len(value), target)
    mask = pc.is_null(value) if value.null_count else None
    if pt.is_struct(target):
        places = find_field_places(target, source)
        assert places is not None
        parts = []
        for place, field in zip(places, target, strict=True):
            parts.append(convert(pc.struct_field(value, [place]), field.type))
            _check_required(parts[-1] if mask is None else parts[-1].filter(pc.invert(mask)), field)
        return pa.StructArray.from_arrays(parts, fields=list(target), mask=mask)
    listed = _as_list(value)
    starts = _starts(pc.fill_null(pc.list_value_length(listed), 0))
    inside = listed.flatten()
    if pt.is_map(target):
        keys = convert(pc.struct_field(inside, [0]), target.key_type)
        items = convert(pc.struct_field(inside, [1]), target.item_type)
        _check_required(items, target.item_field)
        return pa.MapArray.from_arrays(pc.cast(starts, pa.int32()), keys, items, type=target, mask=mask)
    inner = convert(inside, target.value_type)
    _check_required(inner, target.value_field)
    if pt.is_large_list(target):
        return pa.LargeListArray.from_arrays(starts, inner, type=target, mask=mask)
    plain = pa.list_(target.value_field) if pt.is_fixed_size_list(target) else target
    made = pa.ListArray.from_arrays(pc.cast(starts, pa.int32()), inner, type=plain, mask=mask)
    return made if plain == target else pc.cast(made, target)


def _check_required(values: pa.Array, field: pa.Field) -> None:
    if values.null_count and not field.nullable:
        raise SchemaMismatch(
            f"{field.name!r} is NOT NULL in the column, and NULL in {values.null_count:,} values"
        )


def _starts(lengths: pa.Array) -> pa.Array:
    ends = pc.cumulative_sum(pc.cast(lengths, pa.int64()))
    return pa.concat_arrays([pa.array([0], pa.int64()), ends])


def _as_list(value: pa.Array) -> pa.Array:
    """A map as the list of its entries; pyarrow's kernels for lists do not take maps."""
    if not pt.is_map(value.type):
        return value
    entry = pa.struct([pa.field("key", value.type.key_type, nullable=False), value.type.item_field])
    return value.cast(pa.list_(entry))


def find_made_type(name: str, args: Sequence[Expr], types: Sequence[pa.DataType]) -> pa.DataType:
    """The type that ``list``, ``struct``, ``row`` or ``map`` gives for arguments of these types."""
    if name == LIST:
        return pa.list_(types[0] if types else pa.null())
    if name == MAP:
        return pa.map_(*types[:2]) if types else _NO_ENTRIES
    if name == ROW:
        return pa.struct([pa.field("", type) for type in types])
    names = [arg.value for arg in args[::2] if isinstance(arg, Literal)]
    return pa.struct([pa.field(each, type) for each, type in zip(names, types[1::2], strict=True)])


def make(name: str, args: Sequence[pa.Array], type: pa.DataType, length: int) -> pa.Array:
    """Build one nested value per row from arrays of that length."""
    if name in (STRUCT, ROW):
        parts = args[1::2] if name == STRUCT else args
        return pa.StructArray.from_arrays(list(parts), fields=list(type))
    if name == LIST:
        items = _interleave(args, type.value_type, length)
        return pa.ListArray.from_arrays(_count_steps(len(args), length), items)
    keys = _interleave(args[::2], type.key_type, length)
    items = _interleave(args[1::2], type.item_type, length)
    if keys.null_count:
        raise pa.ArrowInvalid("a key of a map is NULL")
    rows = pc.divide(_count_up(len(keys)), max(len(args) // 2, 1))
    pairs = pa.table({"row": rows, "key": keys})
    if pairs.group_by(["row", "key"]).aggregate([]).num_rows < len(keys):
        raise pa.ArrowInvalid("a key of a map is there twice")
    return pa.MapArray.from_arrays(_count_steps(len(args) // 2, length), keys, items)


def _count_up(length: int) -> pa.Array:
    return pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), length)), 1)


def _count_steps(width: int, length: int) -> pa.Array:
    return pc.cast(pc.multiply(_count_up(length + 1), width), pa.int32())


def _interleave(args: Sequence[pa.Array], type: pa.DataType, length: int) -> pa.Array:
    """The values in row order, given one array per argument."""
    if not args:
        return pa.nulls(0, type)
    place = _count_up(length * len(args))
    row = pc.divide(place, len(args))
    argument = pc.subtract(place, pc.multiply(row, len(args)))
    return pa.concat_arrays(list(args)).take(pc.add(pc.multiply(argument, length), row))


def is_equal(left: Any, right: Any) -> pa.BooleanArray:
    """Whether values of one nested type are equal; NULL where one of them is NULL."""
    either = pc.or_(pc.is_null(left), pc.is_null(right))
    return pc.if_else(either, pa.scalar(None, pa.bool_()), _is_same(left, right))


def _is_same(left: pa.Array, right: pa.Array) -> pa.BooleanArray:
    """Equality that is never NULL: NULL equals NULL."""
    nothing = pc.and_(pc.is_null(left), pc.is_null(right))
    both = pc.and_(pc.is_valid(left), pc.is_valid(right))
    return pc.or_(nothing, pc.and_(both, pc.fill_null(_is_same_valid(left, right, both), False)))


def _is_same_valid(left: pa.Array, right: pa.Array, both: pa.BooleanArray) -> pa.BooleanArray:
    type = left.type
    if not pt.is_nested(type):
        return compare("=", to_working(left), to_working(right))
    if pt.is_struct(type):
        found = pa.repeat(pa.scalar(True), len(left))
        for place in range(len(list(type))):
            found = pc.and_(found, _is_same(pc.struct_field(left, [place]), pc.struct_field(right, [place])))
        return found
    left, right = _as_list(left), _as_list(right)
    alike = pc.and_(
        both, pc.fill_null(pc.equal(pc.list_value_length(left), pc.list_value_length(right)), False)
    )
    one, other = left.filter(alike), right.filter(alike)
    same = _is_same(one.flatten(), other.flatten())
    wrong = pc.unique(pc.list_parent_indices(one).filter(pc.invert(same)))
    fine = pc.invert(pc.is_in(_count_up(len(one)), value_set=pc.cast(wrong, pa.int64())))
    return pc.is_in(_count_up(len(left)), value_set=_count_up(len(left)).filter(alike).filter(fine))
