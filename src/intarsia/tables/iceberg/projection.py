"""Columns of a data file as columns of the table, found by field id (Iceberg spec, "Column Projection")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from intarsia.core.ports import LAST_UPDATED, LINEAGE, ROW_ID
from intarsia.errors import DamagedTable, NotSupported
from intarsia.tables.iceberg.schemas import FIELD_ID, get_field_id, to_arrow_scalar


@dataclass(frozen=True, slots=True)
class FileField:
    """A field as a file holds it; elements, keys and values are called so, whatever the file says."""

    name: str
    number: int | None
    type: pa.DataType
    inner: tuple[FileField, ...] = ()


def list_file_fields(schema: pa.Schema) -> tuple[FileField, ...]:
    """The columns of a file."""
    return tuple(_make_file_field(one, one.name) for one in schema)


def _make_file_field(one: pa.Field, name: str) -> FileField:
    kind = one.type.storage_type if isinstance(one.type, pa.BaseExtensionType) else one.type
    inner = list_child_fields(kind)
    if pa.types.is_struct(kind):
        names = [child.name for child in inner]
    else:
        names = ["key", "value"] if len(inner) == 2 else ["element"]
    children = tuple(_make_file_field(child, called) for child, called in zip(inner, names, strict=False))
    return FileField(name, get_field_id(one), one.type, children)


def list_child_fields(kind: pa.DataType) -> list[pa.Field]:
    """The fields that a type has inside, as Iceberg counts them."""
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        return [kind.value_field]
    return []


class ArrayConversion(Protocol):
    """Turns an array of one type into one of another, row for row."""

    def of(self, values: pa.Array) -> pa.Array: ...


class ConversionPlanner:
    """Plans how columns of one file become the table's."""

    def __init__(self, path: str, constants: Mapping[int, Any]) -> None:
        self._path = path
        self._constants = constants

    def make_missing(self, known: NestedField | None, kind: pa.DataType, rows: int, path: str) -> pa.Array:
        """A column that the file lacks: its constant, or NULL."""
        return self._make_missing_field(known, kind, path).make_column(rows)

    def plan(
        self, held: FileField, kind: IcebergType, wanted: pa.DataType, path: str
    ) -> ArrayConversion | None:
        """None where nothing has to change.

        Raises:
            DamagedTable: no promotion leads from the file's type to the table's.
        """
        if isinstance(held.type, pa.BaseExtensionType):
            bare = FileField(held.name, held.number, held.type.storage_type, held.inner)
            return _UnwrapExtension(self.plan(bare, kind, wanted, path))
        match kind:
            case StructType():
                self._check(pa.types.is_struct(held.type) and pa.types.is_struct(wanted), held, wanted, path)
                return self._plan_struct(held, kind, wanted, path)
            case ListType():
                self._check(_is_list(held.type) and _is_list(wanted), held, wanted, path)
                inner = self.plan(held.inner[0], kind.element_type, wanted.value_type, f"{path}.element")
                return None if inner is None and held.type.equals(wanted) else _ConvertList(inner, wanted)
            case MapType():
                self._check(pa.types.is_map(held.type) and pa.types.is_map(wanted), held, wanted, path)
                keys = self.plan(held.inner[0], kind.key_type, wanted.key_type, f"{path}.key")
                items = self.plan(held.inner[1], kind.value_type, wanted.item_type, f"{path}.value")
                same = keys is None and items is None and held.type.equals(wanted)
                return None if same else _ConvertMap(keys, items, wanted)
        if held.type.equals(wanted):
            return None
        self._check(_is_promotable(_get_value_type(held.type), _get_value_type(wanted)), held, wanted, path)
        return _CastValues(wanted)

    def _plan_struct(
        self, held: FileField, kind: StructType, wanted: pa.DataType, path: str
    ) -> ArrayConversion | None:
        numbers = {known.name: known for known in kind.fields}
        places = {one.number: place for place, one in enumerate(held.inner) if one.number is not None}
        children: list[_StoredField | _MissingField] = []
        for child in wanted:
            known = numbers.get(child.name)
            place = places.get(known.field_id) if known is not None else None
            if known is None or place is None:
                children.append(self._make_missing_field(known, child.type, f"{path}.{child.name}"))
            else:
                inner = self.plan(held.inner[place], known.field_type, child.type, f"{path}.{child.name}")
                children.append(_StoredField(place, inner))
        untouched = [_StoredField(place, None) for place in range(len(held.inner))]
        return (
            None
            if children == untouched and held.type.equals(wanted)
            else _ConvertStruct(tuple(children), wanted)
        )

    def _make_missing_field(self, known: NestedField | None, kind: pa.DataType, path: str) -> _MissingField:
        value = self._constants.get(known.field_id) if known is not None else None
        if value is None and known is not None and known.required:
            raise DamagedTable(
                f"{self._path} lacks the column {path!r}, which is required and has no default.",
                path=self._path,
                hint="make the column optional, or rewrite the file with it.",
            )
        return _MissingField(value, kind)

    def _check(self, fits: bool, held: FileField, wanted: pa.DataType, path: str) -> None:
        if not fits:
            raise DamagedTable(
                f"{self._path} holds the column {path!r} as {held.type}, which cannot be read as {wanted}.",
                path=self._path,
                hint="rewrite the file with the type the table's schema says.",
            )


@dataclass(frozen=True, slots=True)
class _MissingField:
    """A field that the file lacks."""

    value: Any
    kind: pa.DataType

    def make_column(self, rows: int) -> pa.Array:
        if self.value is None:
            return pa.nulls(rows, self.kind)
        if not pa.types.is_dictionary(self.kind):
            return pa.repeat(to_arrow_scalar(self.value, self.kind), rows)
        indices = pa.repeat(pa.scalar(0, self.kind.index_type), rows)
        dictionary = pa.array([self.value], self.kind.value_type)
        return pa.DictionaryArray.from_arrays(indices, dictionary)


@dataclass(frozen=True, slots=True)
class _StoredField:
    """A field of a struct that the file has."""

    place: int
    reshape: ArrayConversion | None


@dataclass(frozen=True, slots=True)
class _UnwrapExtension:
    """Replaces an extension array by its storage."""

    then: ArrayConversion | None

    def of(self, values: pa.Array) -> pa.Array:
        return _apply_conversion(self.then, values.storage)


@dataclass(frozen=True, slots=True)
class _ConvertStruct:
    children: tuple[_StoredField | _MissingField, ...]
    kind: pa.DataType

    def of(self, values: pa.Array) -> pa.Array:
        mask = pc.is_null(values) if values.null_count else None
        if not self.children:
            return _make_empty_structs(pc.is_null(values), self.kind)
        arrays = [
            child.make_column(len(values))
            if isinstance(child, _MissingField)
            else _apply_conversion(child.reshape, values.field(child.place))
            for child in self.children
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(self.kind), mask=mask)


@dataclass(frozen=True, slots=True)
class _ConvertList:
    inner: ArrayConversion | None
    kind: pa.DataType

    def of(self, values: pa.Array) -> pa.Array:
        values = _to_plain_list(values)
        offsets, first, count, mask = _find_extent(values)
        elements = _apply_conversion(self.inner, values.values.slice(first, count))
        return pa.ListArray.from_arrays(offsets, elements, type=self.kind, mask=mask)


@dataclass(frozen=True, slots=True)
class _ConvertMap:
    keys: ArrayConversion | None
    items: ArrayConversion | None
    kind: pa.DataType

    def of(self, values: pa.Array) -> pa.Array:
        offsets, first, count, mask = _find_extent(values)
        keys = _apply_conversion(self.keys, values.keys.slice(first, count))
        items = _apply_conversion(self.items, values.items.slice(first, count))
        return pa.MapArray.from_arrays(offsets, keys, items, self.kind, mask=mask)


@dataclass(frozen=True, slots=True)
class _CastValues:
    kind: pa.DataType

    def of(self, values: pa.Array) -> pa.Array:
        if pa.types.is_null(self.kind):
            return pa.nulls(len(values))
        if pa.types.is_dictionary(values.type):
            if not pa.types.is_dictionary(self.kind) or values.type.value_type != self.kind.value_type:
                values = values.dictionary_decode()
            else:
                return values.cast(self.kind)
        plain = _get_value_type(self.kind)
        if pa.types.is_timestamp(plain) and pa.types.is_timestamp(values.type):
            values = _convert_unit(values, plain)
        elif not values.type.equals(plain):
            values = values.cast(plain)
        return values.dictionary_encode().cast(self.kind) if pa.types.is_dictionary(self.kind) else values


_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UNIT_NAMES = {"s": "second", "ms": "millisecond", "us": "microsecond"}


def _convert_unit(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Timestamps in another unit, rounded down as other readers do; the time zone does not change values."""
    bare = values.view(pa.timestamp(values.type.unit))
    if _PER_SECOND[values.type.unit] > _PER_SECOND[kind.unit]:
        bare = pc.floor_temporal(bare, unit=_UNIT_NAMES[kind.unit])
    return bare.cast(pa.timestamp(kind.unit)).view(kind)


def _apply_conversion(reshape: ArrayConversion | None, values: pa.Array) -> pa.Array:
    return values if reshape is None else reshape.of(values)


def _find_extent(values: pa.Array) -> tuple[pa.Array, int, int, pa.Array | None]:
    """Offsets from zero, where the children start and how many they are, and which lists are NULL."""
    offsets = values.offsets
    if not len(values):
        return pa.array([0], offsets.type), 0, 0, None
    first, last = offsets[0].as_py(), offsets[len(offsets) - 1].as_py()
    # Also without a shift: a mask cannot be set on offsets that are a slice themselves.
    offsets = pc.subtract(offsets, pa.scalar(first, offsets.type))
    return offsets, first, last - first, pc.is_null(values) if values.null_count else None


def _to_plain_list(values: pa.Array) -> pa.Array:
    """Lists of any kind as plain ones."""
    kind = values.type
    if pa.types.is_list(kind):
        return values
    return values.cast(pa.list_(kind.value_field))


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_nested(kind) and not (
        pa.types.is_struct(kind) or pa.types.is_map(kind) or pa.types.is_union(kind)
    )


def _make_empty_structs(mask: pa.Array, kind: pa.DataType) -> pa.Array:
    """Structs without a field: only their validity is a value."""
    validity = pc.invert(mask)
    return pa.StructArray.from_buffers(kind, len(mask), [validity.buffers()[1]], children=[])


def _get_value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_promotable(held: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether one primitive type is read as another: by the spec's "Schema Evolution", or a similar type."""
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


# Iceberg spec, "Reserved Field IDs" and "Row Lineage".
ROW_ID_FIELD = 2147483540
LAST_UPDATED_FIELD = 2147483539
LINEAGE_FIELDS = {ROW_ID: ROW_ID_FIELD, LAST_UPDATED: LAST_UPDATED_FIELD}

NameMapping = Mapping[str, tuple[int | None, "NameMapping"]]
"""A name mapping: by a field's name its id, and the names inside it."""


@dataclass(frozen=True, slots=True)
class DataFileOrigin:
    """What the table's metadata says of a data file."""

    path: str
    first_row_id: int | None = None
    sequence_number: int | None = None
    constants: Mapping[int, Any] = field(default_factory=dict)
    """By field id what a field reads as where the file lacks it: partition values before defaults."""


class FieldIdProjection:
    """Implements ``core.ports.ColumnProjection`` for one file of a table.

    Nothing is copied where a column has the table's type already. Raises only for columns that are
    asked for: ``DamagedTable`` for a required column that is nowhere, or a type that no promotion leads
    from; ``NotSupported`` for a file without ids in a table without a name mapping.
    """

    def __init__(
        self,
        physical: pa.Schema,
        wanted: pa.Schema,
        *,
        columns: Mapping[str, NestedField],
        names: NameMapping | None,
        origin: DataFileOrigin,
    ) -> None:
        """``columns`` are the table's own by name; a wanted one that is not among them reads as NULL."""
        self._physical = physical
        self._wanted = wanted
        self._columns = columns
        self._origin = origin
        fields = apply_name_mapping(list_file_fields(physical), names)
        if physical.names and not has_field_ids(fields):
            raise NotSupported(
                f"{origin.path} has no field ids and the table has no name mapping, so its columns"
                " cannot be identified.",
                path=origin.path,
                hint="set the table property schema.name-mapping.default.",
            )
        self._by_id = {held.number: held for held in reversed(fields) if held.number is not None}
        self._reshaper = ConversionPlanner(origin.path, origin.constants)
        self._plans: dict[tuple[str, pa.DataType], ArrayConversion | None] = {}
        """By the column and the type that it was read in."""

    @property
    def stored(self) -> frozenset[str]:
        """The table's columns that the file itself holds, at least in part."""
        return frozenset(name for name in self._wanted.names if self._find_held(name) is not None)

    def list_physical_columns(self, columns: Sequence[str]) -> list[str]:
        """The file's own columns to be read for some of the table's."""
        held = (self._find_held(name) for name in columns)
        return list(dict.fromkeys(one.name for one in held if one is not None))

    def project(
        self, table: pa.Table, columns: Sequence[str], *, start: int, rows: pa.Int64Array | None = None
    ) -> pa.Table:
        """What was read as columns of the table; ``start`` is the position of the first row.

        With ``rows``, only these were read, counted from ``start``.
        """
        fields = [_LINEAGE_ARROW_FIELDS.get(name) or self._wanted.field(name) for name in columns]
        arrays = [
            self._make_lineage(name, table, start, rows)
            if name in _LINEAGE_ARROW_FIELDS
            else self._make_column(name, table)
            for name in columns
        ]
        if not columns:
            return table.select([])
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields, self._wanted.metadata))

    def _find_held(self, name: str) -> FileField | None:
        number = LINEAGE_FIELDS.get(name)
        if number is None:
            known = self._columns.get(name)
            number = known.field_id if known is not None else None
        return self._by_id.get(number) if number is not None else None

    def _make_column(self, name: str, table: pa.Table) -> Any:
        held, kind = self._find_held(name), self._wanted.field(name).type
        if held is None:
            return self._reshaper.make_missing(self._columns.get(name), kind, table.num_rows, name)
        column = table.column(held.name)
        if (name, column.type) not in self._plans:
            known = self._columns.get(name)
            assert known is not None
            self._plans[name, column.type] = self._reshaper.plan(
                _with_read_type(held, column.type), known.field_type, kind, name
            )
        plan = self._plans[name, column.type]
        if plan is None:
            return column
        try:
            return pa.chunked_array([plan.of(chunk) for chunk in column.chunks], kind)
        except pa.ArrowInvalid as error:
            raise DamagedTable(
                f"Column {name!r} of {self._origin.path} has values that {kind} cannot hold: {error}",
                path=self._origin.path,
            ) from error

    def _make_lineage(self, name: str, table: pa.Table, start: int, rows: pa.Int64Array | None) -> Any:
        """What the file stores, or inherits where that is NULL; NULL where the file predates lineage."""
        origin, count = self._origin, table.num_rows
        inherited: Any = None
        if origin.first_row_id is not None:
            if name == ROW_ID:
                first = origin.first_row_id + start
                inherited = pa.arange(first, first + count) if rows is None else pc.add(rows, first)
            elif origin.sequence_number is not None:
                inherited = pa.repeat(pa.scalar(origin.sequence_number, pa.int64()), count)
        held = self._find_held(name)
        if held is None:
            return inherited if inherited is not None else pa.nulls(count, pa.int64())
        stored = table.column(held.name).cast(pa.int64())
        if inherited is None or stored.null_count == 0:
            return stored
        return pc.coalesce(stored, inherited)


_LINEAGE_ARROW_FIELDS = {
    name: pa.field(name, pa.int64(), True, {FIELD_ID: str(LINEAGE_FIELDS[name]).encode()}) for name in LINEAGE
}


def _with_read_type(held: FileField, kind: pa.DataType) -> FileField:
    """The column with the type it was read in: a reader may have been asked for a dictionary."""
    if held.type.equals(kind) or not pa.types.is_dictionary(kind):
        return held
    return FileField(held.name, held.number, kind, held.inner)


def has_field_ids(fields: Sequence[FileField]) -> bool:
    return any(one.number is not None or has_field_ids(one.inner) for one in fields)


def apply_name_mapping(fields: tuple[FileField, ...], names: NameMapping | None) -> tuple[FileField, ...]:
    """The fields with the ids a name mapping gives them, where the file has none at all."""
    return fields if names is None or has_field_ids(fields) else _assign_field_ids(fields, names)


def _assign_field_ids(fields: Sequence[FileField], names: NameMapping) -> tuple[FileField, ...]:
    """The fields with the ids that a name mapping gives them; containers' fields have names of their own."""
    found = []
    for one in fields:
        number, inside = names.get(one.name, (None, {}))
        found.append(FileField(one.name, number, one.type, _assign_field_ids(one.inner, inside)))
    return tuple(found)
