"""Arrow types: their kinds, the common type of two, rewriting them; knows no values and no schemas."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from intarsia.common.python_values import make_array, make_scalar
from intarsia.errors import NotSupported

__all__ = [
    "NUMBERS",
    "UUID",
    "as_decimal",
    "classify_type",
    "find_common_field",
    "find_common_type",
    "find_lacking_type",
    "get_bit_width",
    "holds_uuids",
    "is_encoded",
    "is_nested",
    "is_uuid",
    "list_like",
    "normalize_type",
    "parse_uuid",
    "parse_uuids",
    "rewrite_type",
    "to_large_type",
    "unwrap_type",
]


# ---------------------------------------------------------------------------------------------------
# Kinds: types of one kind hold the same sort of value and differ only in how wide they are.

NUMBERS = frozenset({"integer", "float", "decimal"})
_KINDS: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
    ("null", pt.is_null),
    ("boolean", pt.is_boolean),
    ("integer", pt.is_integer),
    ("float", pt.is_floating),
    ("decimal", pt.is_decimal),
    ("string", lambda t: pt.is_string(t) or pt.is_large_string(t) or pt.is_string_view(t)),
    (
        "binary",
        lambda t: (
            pt.is_binary(t) or pt.is_large_binary(t) or pt.is_binary_view(t) or pt.is_fixed_size_binary(t)
        ),
    ),
    ("date", pt.is_date),
    ("time", pt.is_time),
    ("zoned timestamp", lambda t: pt.is_timestamp(t) and t.tz is not None),
    ("timestamp", pt.is_timestamp),
    ("duration", pt.is_duration),
    ("struct", pt.is_struct),
    ("map", pt.is_map),
    (
        "list",
        lambda t: pt.is_list(t) or pt.is_large_list(t) or pt.is_fixed_size_list(t) or _is_list_view(t),
    ),
)
_UNITS = ("s", "ms", "us", "ns")


def _is_list_view(data_type: pa.DataType) -> bool:
    return bool(pt.is_list_view(data_type) or pt.is_large_list_view(data_type))


def is_encoded(data_type: pa.DataType) -> bool:
    """True for dictionaries and run-end encodings."""
    return bool(pt.is_dictionary(data_type) or pt.is_run_end_encoded(data_type))


def classify_type(data_type: pa.DataType) -> str | None:
    """The name of the type's kind; None for encoded, extension and other types."""
    return next((name for name, test in _KINDS if test(data_type)), None)


def get_value_type(data_type: pa.DataType) -> pa.DataType:
    """The type of what a dictionary stands for; any other type as it is."""
    return data_type.value_type if pt.is_dictionary(data_type) else data_type


def unwrap_type(data_type: pa.DataType) -> pa.DataType:
    """The type of the values themselves: without dictionary, run-end encoding or extension."""
    while True:
        if is_encoded(data_type):
            data_type = data_type.value_type
        elif isinstance(data_type, pa.BaseExtensionType):
            data_type = data_type.storage_type
        else:
            return data_type


def is_nested(data_type: pa.DataType) -> bool:
    """True for lists, structs, maps and unions, also inside a dictionary or an extension type."""
    return bool(pt.is_nested(unwrap_type(data_type)))


def get_bit_width(data_type: pa.DataType) -> int:
    return int(data_type.bit_width)


# ---------------------------------------------------------------------------------------------------
# The common type of two types.


def find_common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds every value of both exactly; None when there is none.

    Between representations of the same values (string and large_string, list and large_list,
    dictionary and plain) the left one is kept. A finer time unit wins over a coarser one, although
    it covers fewer years: casting tells. Boolean, integer, string and binary never mix, nor do
    timestamps with and without a zone.

    >>> find_common_type(pa.int32(), pa.uint32())
    DataType(int64)
    >>> find_common_type(pa.string(), pa.int64()) is None
    True
    """
    if left.equals(right) or pt.is_null(right):
        return left
    if pt.is_null(left):
        return right
    if isinstance(left, pa.BaseExtensionType) or isinstance(right, pa.BaseExtensionType):
        return _find_common_extension(left, right)
    if is_encoded(left) or is_encoded(right):
        return _find_common_encoded(left, right)
    kinds = {classify_type(left), classify_type(right)}
    if kinds <= NUMBERS:
        return _find_common_number(left, right)
    rule = _COMMON.get(classify_type(left) or "")
    return rule(left, right) if rule is not None and len(kinds) == 1 else None


def _find_common_extension(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """An extension type and its own storage are the same values; two extensions never are."""
    if isinstance(left, pa.BaseExtensionType) and isinstance(right, pa.BaseExtensionType):
        return None
    return left if unwrap_type(left).equals(unwrap_type(right)) else None


def _find_common_encoded(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    values = find_common_type(unwrap_type(left), unwrap_type(right))
    if values is None or not pt.is_dictionary(left):
        return values
    if not pt.is_dictionary(right):
        return left if values.equals(left.value_type) else values
    index = _find_common_integer(left.index_type, right.index_type) or pa.int64()
    return pa.dictionary(index, values, ordered=left.ordered and right.ordered)


def _find_common_number(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pt.is_floating(left) and pt.is_floating(right):
        return max(left, right, key=get_bit_width)
    if pt.is_integer(left) and pt.is_integer(right):
        return _find_common_integer(left, right)
    if pt.is_floating(left) or pt.is_floating(right):
        number, floating = (right, left) if pt.is_floating(left) else (left, right)
        return _find_float(number, get_bit_width(floating)) if pt.is_integer(number) else None
    return _find_common_decimal(as_decimal(left), as_decimal(right))


def _find_common_integer(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pt.is_signed_integer(left) == pt.is_signed_integer(right):
        return max(left, right, key=get_bit_width)
    signed, unsigned = (left, right) if pt.is_signed_integer(left) else (right, left)
    width = max(get_bit_width(signed), 2 * get_bit_width(unsigned))
    return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(width)


def _find_float(integer: pa.DataType, least: int) -> pa.DataType | None:
    """The narrowest float of at least that many bits whose mantissa holds every value."""
    digits = get_bit_width(integer) - int(pt.is_signed_integer(integer))
    for data_type, mantissa in ((pa.float16(), 11), (pa.float32(), 24), (pa.float64(), 53)):
        if get_bit_width(data_type) >= least and mantissa >= digits:
            return data_type
    return None


def as_decimal(data_type: pa.DataType) -> pa.DataType:
    """The decimal that holds every value of an integer type; other types stay."""
    if not pt.is_integer(data_type):
        return data_type
    greatest = 1 << (get_bit_width(data_type) - int(pt.is_signed_integer(data_type)))
    return pa.decimal128(len(str(greatest)), 0)


def _find_common_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    scale = max(left.scale, right.scale)
    digits = max(left.precision - left.scale, right.precision - right.scale) + scale
    width = max(get_bit_width(left), get_bit_width(right))
    for bits, most, make in (
        (32, 9, pa.decimal32),
        (64, 18, pa.decimal64),
        (128, 38, pa.decimal128),
        (256, 76, pa.decimal256),
    ):
        if bits >= width and digits <= most:
            return make(digits, scale)
    return None


def _find_finer_unit(left: pa.DataType, right: pa.DataType) -> str:
    return _UNITS[max(_UNITS.index(left.unit), _UNITS.index(right.unit))]


def _find_common_time(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    unit = _find_finer_unit(left, right)
    return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)


def _find_common_binary(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if not pt.is_fixed_size_binary(left):
        return left
    return pa.binary() if pt.is_fixed_size_binary(right) else right


def find_common_field(left: pa.Field, right: pa.Field) -> pa.Field | None:
    """The left field in the :func:`find_common_type`, nullable where either is; None without such a type."""
    data_type = find_common_type(left.type, right.type)
    if data_type is None:
        return None
    return left.with_type(data_type).with_nullable(left.nullable or right.nullable)


def _find_common_list(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    item = find_common_field(left.value_field, right.value_field)
    if item is None:
        return None
    if not pt.is_fixed_size_list(left):
        return list_like(left, item)
    if not pt.is_fixed_size_list(right):
        return list_like(right, item)
    return list_like(left, item) if left.list_size == right.list_size else pa.list_(item)


def list_like(like: pa.DataType, item: pa.Field) -> pa.DataType:
    """A list of that item, in the representation of the list type ``like``."""
    if pt.is_fixed_size_list(like):
        return pa.list_(item, like.list_size)
    if pt.is_large_list(like):
        return pa.large_list(item)
    if pt.is_list_view(like):
        return pa.list_view(item)
    return pa.large_list_view(item) if pt.is_large_list_view(like) else pa.list_(item)


def _find_common_map(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    key = find_common_field(left.key_field, right.key_field)
    item = find_common_field(left.item_field, right.item_field)
    if key is None or item is None:
        return None
    return pa.map_(key, item, keys_sorted=left.keys_sorted and right.keys_sorted)


def _find_common_struct(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The children of both by name; one that only one side has becomes nullable."""
    ours, theirs = ({f.name: f for f in t.fields} for t in (left, right))
    if len(ours) < left.num_fields or len(theirs) < right.num_fields:
        return None
    fields = []
    for name in dict.fromkeys((*ours, *theirs)):
        if name in ours and name in theirs:
            field = find_common_field(ours[name], theirs[name])
        else:
            field = (ours | theirs)[name].with_nullable(True)
        if field is None:
            return None
        fields.append(field)
    return pa.struct(fields)


_COMMON: dict[str, Callable[[pa.DataType, pa.DataType], pa.DataType | None]] = {
    "string": lambda left, right: left,
    "binary": _find_common_binary,
    "date": lambda left, right: pa.date64(),
    "time": _find_common_time,
    "timestamp": lambda left, right: pa.timestamp(_find_finer_unit(left, right)),
    "zoned timestamp": lambda left, right: pa.timestamp(_find_finer_unit(left, right), left.tz),
    "duration": lambda left, right: pa.duration(_find_finer_unit(left, right)),
    "list": _find_common_list,
    "map": _find_common_map,
    "struct": _find_common_struct,
}


# ---------------------------------------------------------------------------------------------------
# Types rewritten throughout, nested ones too.


def rewrite_type(data_type: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with ``leaf`` applied at every level; field names, nullability and metadata stay."""

    def rewrite_field(field: pa.Field) -> pa.Field:
        return field.with_type(rewrite_type(field.type, leaf))

    kind = classify_type(data_type)
    if pt.is_dictionary(data_type):
        return pa.dictionary(
            data_type.index_type, rewrite_type(data_type.value_type, leaf), data_type.ordered
        )
    if kind == "struct":
        return pa.struct([rewrite_field(field) for field in data_type.fields])
    if kind == "map":
        key, item = rewrite_field(data_type.key_field), rewrite_field(data_type.item_field)
        return pa.map_(key, item, keys_sorted=data_type.keys_sorted)
    if kind == "list":
        return list_like(leaf(data_type), rewrite_field(data_type.value_field))
    return leaf(data_type)


def normalize_type(data_type: pa.DataType) -> pa.DataType:
    """The outermost level as plain ``string``, ``binary`` or ``list``, where it is a variant of these."""
    kind = classify_type(data_type)
    if kind == "string":
        return pa.string()
    if kind == "binary" and not pt.is_fixed_size_binary(data_type):
        return pa.binary()
    if kind == "list" and not pt.is_fixed_size_list(data_type):
        return pa.list_(data_type.value_field)
    return data_type


def to_large_type(data_type: pa.DataType) -> pa.DataType:
    """As :func:`normalize_type`, but the large variant."""
    normal = normalize_type(data_type)
    if pt.is_string(normal):
        return pa.large_string()
    if pt.is_binary(normal):
        return pa.large_binary()
    return pa.large_list(normal.value_field) if pt.is_list(normal) else normal


UUID = pa.uuid()
_BYTES = 16
_SHAPE = r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"
_PAIRS = make_array([f"{number:02x}" for number in range(256)], pa.string())


def is_uuid(kind: pa.DataType) -> bool:
    """Whether a type is that of UUIDs."""
    return isinstance(kind, pa.UuidType)


def holds_uuids(kind: pa.DataType) -> bool:
    """Whether a column of the type may hold UUIDs: their own type, or sixteen bytes, as Iceberg has them."""
    return is_uuid(kind) or (pa.types.is_fixed_size_binary(kind) and kind.byte_width == _BYTES)


def parse_uuid(text: str) -> bytes | None:
    """The bytes of a UUID; None where the text is none."""
    try:
        return uuid.UUID(text.strip()).bytes
    except ValueError:
        return None


def parse_uuids(texts: Any) -> Any:
    """Texts, an array or a scalar, as the bytes of the UUIDs they name; pa.ArrowInvalid for other texts."""
    if isinstance(texts, pa.Scalar):
        return parse_uuids(pa.array([texts.as_py()], pa.string()))[0]
    plain = pc.utf8_lower(pc.utf8_trim_whitespace(pc.cast(texts, pa.string())))
    wrong = pc.invert(pc.fill_null(pc.match_substring_regex(plain, _SHAPE), True))
    if pc.any(wrong, min_count=0).as_py():
        raise pa.ArrowInvalid(f"{plain.filter(wrong)[0].as_py()!r} is no UUID")
    if isinstance(plain, pa.ChunkedArray):
        plain = plain.combine_chunks()
    count = len(plain)
    digits = pc.replace_substring(pc.fill_null(plain, "00" * _BYTES), "-", "")
    columns = [
        pc.index_in(pc.utf8_slice_codeunits(digits, 2 * at, 2 * at + 2), value_set=_PAIRS).cast(pa.uint8())
        for at in range(_BYTES)
    ]
    # From one array per byte to all bytes of each value.
    number = _count_up(_BYTES * count)
    places = pc.add(pc.multiply(pc.bit_wise_and(number, _BYTES - 1), count), pc.shift_right(number, 4))
    data = pa.concat_arrays(columns).take(places)
    valid = None if not plain.null_count else plain.is_valid().buffers()[1]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(_BYTES), count, [valid, data.buffers()[1]])


def _count_up(count: int) -> pa.Array:
    """The integers from 0 to ``count`` - 1."""
    return pc.subtract(pc.cumulative_sum(pa.repeat(make_scalar(1), count)), 1)


_NO_WIDE_INTEGERS = "Integers with more than 64 bits not implemented"
"""What PyArrow says of Polars' Int128 (parquet/schema.cc)."""


def find_lacking_type(location: str, error: BaseException) -> NotSupported | None:
    """The error for a Parquet file that is whole, and has a type that PyArrow lacks; None for any other."""
    if _NO_WIDE_INTEGERS not in str(error):
        return None
    return NotSupported(
        f"{location} has a type that PyArrow cannot read: {error}",
        path=location,
        hint="write the column again in another type, such as decimal, with the tool that wrote it",
    )
