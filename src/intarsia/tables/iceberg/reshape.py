"""Arrays of one nested type as arrays of another, children found by field id; validity is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from intarsia.errors import DamagedTable
from intarsia.tables.iceberg.schemas import arrow_scalar, field_id


@dataclass(frozen=True, slots=True)
class Held:
    """A field as a file holds it; elements, keys and values are called so, whatever the file says."""

    name: str
    number: int | None
    type: pa.DataType
    inner: tuple[Held, ...] = ()


def held_fields(schema: pa.Schema) -> tuple[Held, ...]:
    """The columns of a file."""
    return tuple(_held(one, one.name) for one in schema)


def _held(one: pa.Field, name: str) -> Held:
    kind = one.type.storage_type if isinstance(one.type, pa.BaseExtensionType) else one.type
    inner = inner_fields(kind)
    if pa.types.is_struct(kind):
        names = [child.name for child in inner]
    else:
        names = ["key", "value"] if len(inner) == 2 else ["element"]
    children = tuple(_held(child, called) for child, called in zip(inner, names, strict=False))
    return Held(name, field_id(one), one.type, children)


def inner_fields(kind: pa.DataType) -> list[pa.Field]:
    """The fields that a type has inside, as Iceberg counts them."""
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        return [kind.value_field]
    return []


class Reshape(Protocol):
    """Turns an array of one type into one of another, row for row."""

    def of(self, values: pa.Array) -> pa.Array: ...


class Reshaper:
    """Plans how columns of one file become the table's."""

    def __init__(self, path: str, constants: Mapping[int, Any]) -> None:
        self._path = path
        self._constants = constants

    def missing(self, known: NestedField | None, kind: pa.DataType, rows: int, path: str) -> pa.Array:
        """A column that the file lacks: its constant, or NULL."""
        return self._absent(known, kind, path).column(rows)

    def plan(self, held: Held, kind: IcebergType, wanted: pa.DataType, path: str) -> Reshape | None:
        """None where nothing has to change.

        Raises:
            DamagedTable: no promotion leads from the file's type to the table's.
        """
        if isinstance(held.type, pa.BaseExtensionType):
            bare = Held(held.name, held.number, held.type.storage_type, held.inner)
            return _Bare(self.plan(bare, kind, wanted, path))
        match kind:
            case StructType():
                self._check(pa.types.is_struct(held.type) and pa.types.is_struct(wanted), held, wanted, path)
                return self._struct(held, kind, wanted, path)
            case ListType():
                self._check(_is_list(held.type) and _is_list(wanted), held, wanted, path)
                inner = self.plan(held.inner[0], kind.element_type, wanted.value_type, f"{path}.element")
                return None if inner is None and held.type.equals(wanted) else _List(inner, wanted)
            case MapType():
                self._check(pa.types.is_map(held.type) and pa.types.is_map(wanted), held, wanted, path)
                keys = self.plan(held.inner[0], kind.key_type, wanted.key_type, f"{path}.key")
                items = self.plan(held.inner[1], kind.value_type, wanted.item_type, f"{path}.value")
                same = keys is None and items is None and held.type.equals(wanted)
                return None if same else _Map(keys, items, wanted)
        if held.type.equals(wanted):
            return None
        self._check(_promotes(_plain(held.type), _plain(wanted)), held, wanted, path)
        return _Cast(wanted)

    def _struct(self, held: Held, kind: StructType, wanted: pa.DataType, path: str) -> Reshape | None:
        numbers = {known.name: known for known in kind.fields}
        places = {one.number: place for place, one in enumerate(held.inner) if one.number is not None}
        children: list[_Child | _Absent] = []
        for child in wanted:
            known = numbers.get(child.name)
            place = places.get(known.field_id) if known is not None else None
            if known is None or place is None:
                children.append(self._absent(known, child.type, f"{path}.{child.name}"))
            else:
                inner = self.plan(held.inner[place], known.field_type, child.type, f"{path}.{child.name}")
                children.append(_Child(place, inner))
        untouched = [_Child(place, None) for place in range(len(held.inner))]
        return (
            None if children == untouched and held.type.equals(wanted) else _Struct(tuple(children), wanted)
        )

    def _absent(self, known: NestedField | None, kind: pa.DataType, path: str) -> _Absent:
        value = self._constants.get(known.field_id) if known is not None else None
        if value is None and known is not None and known.required:
            raise DamagedTable(
                f"{self._path} lacks the column {path!r}, which is required and has no default.",
                path=self._path,
                hint="make the column optional, or rewrite the file with it.",
            )
        return _Absent(value, kind)

    def _check(self, fits: bool, held: Held, wanted: pa.DataType, path: str) -> None:
        if not fits:
            raise DamagedTable(
                f"{self._path} holds the column {path!r} as {held.type}, which cannot be read as {wanted}.",
                path=self._path,
                hint="rewrite the file with the type the table's schema says.",
            )


@dataclass(frozen=True, slots=True)
class _Absent:
    """A field that the file lacks."""

    value: Any
    kind: pa.DataType

    def column(self, rows: int) -> pa.Array:
        if self.value is None:
            return pa.nulls(rows, self.kind)
        if not pa.types.is_dictionary(self.kind):
            return pa.repeat(arrow_scalar(self.value, self.kind), rows)
        indices = pa.repeat(pa.scalar(0, self.kind.index_type), rows)
        dictionary = pa.array([self.value], self.kind.value_type)
        return pa.DictionaryArray.from_arrays(indices, dictionary)


@dataclass(frozen=True, slots=True)
class _Child:
    """A field of a struct that the file has."""

    place: int
    reshape: Reshape | None


@dataclass(frozen=True, slots=True)
class _Bare:
    """Takes an extension type off."""

    then: Reshape | None

    def of(self, values: pa.Array) -> pa.Array:
        return _reshaped(self.then, values.storage)


@dataclass(frozen=True, slots=True)
class _Struct:
    children: tuple[_Child | _Absent, ...]
    kind: pa.DataType

    def of(self, values: pa.Array) -> pa.Array:
        mask = pc.is_null(values) if values.null_count else None
        if not self.children:
            return _empty_structs(pc.is_null(values), self.kind)
        arrays = [
            child.column(len(values))
            if isinstance(child, _Absent)
            else _reshaped(child.reshape, values.field(child.place))
            for child in self.children
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(self.kind), mask=mask)


@dataclass(frozen=True, slots=True)
class _List:
    inner: Reshape | None
    kind: pa.DataType

    def of(self, values: pa.Array) -> pa.Array:
        values = _as_list(values)
        offsets, first, count, mask = _extent(values)
        elements = _reshaped(self.inner, values.values.slice(first, count))
        return pa.ListArray.from_arrays(offsets, elements, type=self.kind, mask=mask)


@dataclass(frozen=True, slots=True)
class _Map:
    keys: Reshape | None
    items: Reshape | None
    kind: pa.DataType

    def of(self, values: pa.Array) -> pa.Array:
        offsets, first, count, mask = _extent(values)
        keys = _reshaped(self.keys, values.keys.slice(first, count))
        items = _reshaped(self.items, values.items.slice(first, count))
        return pa.MapArray.from_arrays(offsets, keys, items, self.kind, mask=mask)


@dataclass(frozen=True, slots=True)
class _Cast:
    kind: pa.DataType

    def of(self, values: pa.Array) -> pa.Array:
        if pa.types.is_null(self.kind):
            return pa.nulls(len(values))
        if pa.types.is_dictionary(values.type):
            if not pa.types.is_dictionary(self.kind) or values.type.value_type != self.kind.value_type:
                values = values.dictionary_decode()
            else:
                return values.cast(self.kind)
        plain = _plain(self.kind)
        if pa.types.is_timestamp(plain) and pa.types.is_timestamp(values.type):
            values = _at_unit(values, plain)
        elif not values.type.equals(plain):
            values = values.cast(plain)
        return values.dictionary_encode().cast(self.kind) if pa.types.is_dictionary(self.kind) else values


_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UNIT_NAMES = {"s": "second", "ms": "millisecond", "us": "microsecond"}


def _at_unit(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Timestamps in another unit, rounded down as other readers do; a zone is a note, not a shift."""
    bare = values.view(pa.timestamp(values.type.unit))
    if _PER_SECOND[values.type.unit] > _PER_SECOND[kind.unit]:
        bare = pc.floor_temporal(bare, unit=_UNIT_NAMES[kind.unit])
    return bare.cast(pa.timestamp(kind.unit)).view(kind)


def _reshaped(reshape: Reshape | None, values: pa.Array) -> pa.Array:
    return values if reshape is None else reshape.of(values)


def _extent(values: pa.Array) -> tuple[pa.Array, int, int, pa.Array | None]:
    """Offsets from zero, where the children start and how many they are, and which lists are NULL."""
    offsets = values.offsets
    if not len(values):
        return pa.array([0], offsets.type), 0, 0, None
    first, last = offsets[0].as_py(), offsets[len(offsets) - 1].as_py()
    # Also without a shift: a mask cannot be set on offsets that are a slice themselves.
    offsets = pc.subtract(offsets, pa.scalar(first, offsets.type))
    return offsets, first, last - first, pc.is_null(values) if values.null_count else None


def _as_list(values: pa.Array) -> pa.Array:
    """Lists of any kind as plain ones."""
    kind = values.type
    if pa.types.is_list(kind):
        return values
    return values.cast(pa.list_(kind.value_field))


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_nested(kind) and not (
        pa.types.is_struct(kind) or pa.types.is_map(kind) or pa.types.is_union(kind)
    )


def _empty_structs(mask: pa.Array, kind: pa.DataType) -> pa.Array:
    """Structs without a field: only their validity is a value."""
    validity = pc.invert(mask)
    return pa.StructArray.from_buffers(kind, len(mask), [validity.buffers()[1]], children=[])


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _promotes(held: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one primitive type are read as another: Iceberg's promotions, and kindred types."""
    kinds: Sequence[tuple[Any, Any]] = (
        (pa.types.is_integer, pa.types.is_integer),
        (pa.types.is_floating, lambda kind: pa.types.is_floating(kind) and kind.bit_width >= held.bit_width),
        (_is_text_or_bytes, _is_text_or_bytes),
        (pa.types.is_time, pa.types.is_time),
        (pa.types.is_date, pa.types.is_date),
        (pa.types.is_date32, lambda kind: pa.types.is_timestamp(kind) and kind.tz is None),
        (pa.types.is_timestamp, pa.types.is_timestamp),
        (pa.types.is_null, lambda _: True),
        (lambda _: True, pa.types.is_null),
    )
    if pa.types.is_decimal(held) and pa.types.is_decimal(wanted):
        return bool(held.scale == wanted.scale)
    return any(source(held) and target(wanted) for source, target in kinds)


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )
