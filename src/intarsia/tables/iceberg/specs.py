"""Partition specs: their types and schemas, partition paths, and the partitioner of the default spec."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import IdentityTransform, UnknownTransform, VoidTransform
from pyiceberg.types import IcebergType, NestedField, PrimitiveType, StringType, StructType

from intarsia.core.partitioner import PartitionKey
from intarsia.core.snapshot import DataFile
from intarsia.errors import ColumnNotFound, DamagedTable, InputError
from intarsia.tables.iceberg.transforms import (
    AnyTransform,
    SourceRange,
    apply_transform,
    check_transform,
    find_source_range,
    to_human_string,
)


def find_spec(metadata: TableMetadata, spec_id: int | None) -> PartitionSpec:
    """The spec of an id; a file without one belongs to spec 0, as in format version 1.

    Raises:
        InputError: the table has no such spec.
    """
    wanted = 0 if spec_id is None else spec_id
    for spec in metadata.partition_specs:
        if spec.spec_id == wanted:
            return spec
    known = ", ".join(str(spec.spec_id) for spec in metadata.partition_specs)
    raise InputError(
        f"references unknown partition spec: {wanted}",
        path=metadata.location,
        hint=f"the table has the specs {known}",
    )


def find_compatible_schema(metadata: TableMetadata, spec: PartitionSpec) -> Schema:
    """A schema that has every source column of a spec, nested ones too, with a type its transform takes.

    The current one if it has them all, else the newest that does, else the current one with what it
    lacks added from older ones.

    Raises:
        DamagedTable: a source column is in no schema of the table.
    """
    for schema in _iterate_schemas_newest_first(metadata):
        if all(_find_source(schema, field) is not None for field in spec.fields):
            return schema
    return _merge_schemas(metadata, spec)


def make_partition_type(metadata: TableMetadata, spec: PartitionSpec) -> StructType:
    """The struct of a spec's values, every field optional, in the order of the spec.

    Raises:
        DamagedTable: a source column is in no schema of the table.
    """
    return StructType(
        *(
            NestedField(field.field_id, field.name, find_result_type(metadata, field), required=False)
            for field in spec.fields
        )
    )


def find_result_type(metadata: TableMetadata, field: PartitionField) -> PrimitiveType:
    """The type of a partition field's values: of its source as it is now, or was last."""
    if isinstance(field.transform, UnknownTransform):
        return StringType()
    result = field.transform.result_type(find_source_type(metadata, field))
    assert isinstance(result, PrimitiveType)
    return result


def find_source_type(metadata: TableMetadata, field: PartitionField) -> IcebergType:
    """The type of a partition field's source column as it is now, or was last.

    Raises:
        DamagedTable: no schema of the table has the column with a type the transform takes.
    """
    found = _find_newest_source(metadata, field)
    if found is not None:
        return found.field_type
    if isinstance(field.transform, VoidTransform):
        return StringType()  # its values are all NULL
    raise DamagedTable(
        f"no schema of the table has the source column {field.source_id} of partition field "
        f"{field.name!r} with a type that {field.transform} takes",
        path=metadata.location,
        hint="the table's metadata was changed by hand or lost its old schemas",
    )


def partition_to_path(metadata: TableMetadata, spec: PartitionSpec, values: Sequence[Any]) -> str:
    """The directory of a tuple, as Java's ``PartitionSpec.partitionToPath`` names it."""
    return format_partition_path(partition_to_texts(metadata, spec, values))


def format_partition_path(texts: Mapping[str, Any]) -> str:
    """The directory of a partition by the texts of its values; empty for an unpartitioned one."""
    return "/".join(f"{_escape(name)}={_escape(str(text))}" for name, text in texts.items())


def partition_to_texts(metadata: TableMetadata, spec: PartitionSpec, values: Sequence[Any]) -> dict[str, str]:
    """Each value of a tuple for people, by the name of its partition field."""
    _check_arity(metadata, spec, values)
    return {
        field.name: to_human_string(field.transform, find_result_type(metadata, field), value)
        for field, value in zip(spec.fields, values, strict=True)
    }


def find_implied_ranges(
    metadata: TableMetadata, spec: PartitionSpec, values: Sequence[Any]
) -> dict[int, SourceRange]:
    """What a tuple proves of the source columns of every row, by field id; for leaving files out only.

    Low and high are in the source's own form, integers for dates and timestamps; None is unbounded.
    """
    _check_arity(metadata, spec, values)
    proved: dict[int, SourceRange] = {}
    for part, value in zip(spec.fields, values, strict=True):
        if isinstance(part.transform, (VoidTransform, UnknownTransform)):
            continue
        found = find_source_range(part.transform, find_source_type(metadata, part), value)
        if found is not None:
            before = proved.get(part.source_id)
            proved[part.source_id] = found if before is None else before.intersect(found)
    return proved


@dataclass(frozen=True, slots=True)
class SpecPartitioner:
    """The partitioner of a table's default spec; see :class:`intarsia.core.partitioner.Partitioner`.

    A value: what it needs of the table's metadata is in it, so it pickles and works in another process.
    """

    spec_id: int
    fields: tuple[SpecField, ...]
    sorting: tuple[tuple[str, bool, bool], ...] = ()
    """The table's sort order, as far as it is one of top-level columns: column, descending, NULLs first."""
    shown: Mapping[int, tuple[PartitionFieldText, ...]] = field(default_factory=dict)
    """The fields of every spec of the table."""

    @classmethod
    def of(cls, metadata: TableMetadata, schema: pa.Schema) -> SpecPartitioner:
        """The partitioner of the default spec for rows of an Arrow schema.

        Raises:
            NotSupported: a transform is not known, so rows cannot be written by this spec.
            ColumnNotFound: the schema lacks a source column.
        """
        spec = find_spec(metadata, metadata.default_spec_id)
        return cls(
            spec.spec_id,
            tuple(_make_spec_field(metadata, field, schema) for field in spec.fields),
            _find_sort_columns(metadata),
            {spec.spec_id: _list_field_texts(metadata, spec) for spec in metadata.partition_specs},
        )

    def partition_of(self, file: DataFile) -> PartitionKey:
        """The partition of a file, of whatever spec; its tag is the file's spec id and tuple."""
        known = file.tag.file
        fields = self.shown.get(known.spec_id, ())
        texts = {f.name: f.format_value(value) for f, value in zip(fields, known.partition, strict=False)}
        return PartitionKey(values=texts, tag=(known.spec_id, known.partition))

    def is_old_spec(self, file: DataFile) -> bool:
        """Whether a file was written under another spec than the default one."""
        return bool(file.tag.file.spec_id != self.spec_id)

    @property
    def columns(self) -> tuple[str, ...]:
        """The top-level columns that the spec's sources are in."""
        return tuple(dict.fromkeys(field.path[0] for field in self.fields if field.path))

    def partition_rows(self, table: pa.Table) -> Sequence[tuple[PartitionKey, pa.Int64Array | None]]:
        """The partitions that rows belong to, each with its rows ascending; None is all rows.

        The tag of a key is the spec's id and the tuple of values in Iceberg's own form.
        """
        if not table.num_rows:
            return []
        if not self.fields:
            return [(self._make_partition_key(()), None)]
        columns = [field.compute_values(table) for field in self.fields]
        return [
            (
                self._make_partition_key(
                    tuple(field.tidy(value) for field, value in zip(self.fields, values, strict=True))
                ),
                rows,
            )
            for values, rows in group_rows(columns)
        ]

    def _make_partition_key(self, values: tuple[Any, ...]) -> PartitionKey:
        texts = {
            field.name: to_human_string(field.transform, field.kind, value)
            for field, value in zip(self.fields, values, strict=True)
        }
        return PartitionKey(values=texts, tag=(self.spec_id, values))


@dataclass(frozen=True, slots=True)
class PartitionFieldText:
    """A partition field as people see its values."""

    name: str
    transform: AnyTransform
    kind: PrimitiveType

    def format_value(self, value: Any) -> str:
        return to_human_string(self.transform, self.kind, value)


def _list_field_texts(metadata: TableMetadata, spec: PartitionSpec) -> tuple[PartitionFieldText, ...]:
    return tuple(PartitionFieldText(f.name, f.transform, find_result_type(metadata, f)) for f in spec.fields)


def _find_sort_columns(metadata: TableMetadata) -> tuple[tuple[str, bool, bool], ...]:
    """The leading fields of the default sort order that are top-level columns as they are."""
    orders = [one for one in metadata.sort_orders if one.order_id == metadata.default_sort_order_id]
    names = {column.field_id: column.name for column in metadata.schema().fields}
    found = []
    for part in orders[0].fields if orders else ():
        if not isinstance(part.transform, IdentityTransform) or part.source_id not in names:
            break
        descending = part.direction is SortDirection.DESC
        found.append((names[part.source_id], descending, part.null_order is NullOrder.NULLS_FIRST))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class SpecField:
    """One partition field, and where its source is found in a row."""

    name: str
    path: tuple[str, ...]
    """Names from the top-level column down; empty where the value is NULL whatever the row."""
    transform: AnyTransform
    source: IcebergType
    kind: PrimitiveType

    def compute_values(self, table: pa.Table) -> pa.Array:
        """The partition value of every row."""
        if not self.path:
            return pa.nulls(table.num_rows)
        column = table.column(self.path[0])
        for name in self.path[1:]:
            # A field of a NULL struct is NULL.
            column = pc.struct_field(column, name)
        return apply_transform(self.transform, self.source, column)

    def tidy(self, value: Any) -> Any:
        """The value, with every NaN as one object, so that equal tuples compare equal."""
        return math.nan if isinstance(value, float) and math.isnan(value) else value


def _make_spec_field(metadata: TableMetadata, field: PartitionField, schema: pa.Schema) -> SpecField:
    if isinstance(field.transform, VoidTransform):
        kind = find_result_type(metadata, field)
        return SpecField(field.name, (), field.transform, kind, kind)
    source = find_source_type(metadata, field)
    check_transform(field.transform, source)
    path = _find_source_path(metadata.schema(), field)
    if schema.get_field_index(path[0]) < 0:
        raise ColumnNotFound(
            f"column {path[0]!r} decides the partition of a row and is not in the data",
            path=metadata.location,
        )
    return SpecField(field.name, path, field.transform, source, find_result_type(metadata, field))


def _find_source_path(schema: Schema, field: PartitionField) -> tuple[str, ...]:
    def search(fields: Sequence[NestedField], above: tuple[str, ...]) -> tuple[str, ...] | None:
        for part in fields:
            path = (*above, part.name)
            if part.field_id == field.source_id:
                return path
            if isinstance(part.field_type, StructType):
                found = search(part.field_type.fields, path)
                if found is not None:
                    return found
        return None

    found = search(schema.fields, ())
    if found is None:
        raise DamagedTable(
            f"the source column {field.source_id} of partition field {field.name!r} is not in the "
            "table's current schema, so no rows can be written by its default partition spec",
            hint="drop the partition field, or set another default spec",
        )
    return found


def _check_arity(metadata: TableMetadata, spec: PartitionSpec, values: Sequence[Any]) -> None:
    if len(values) != len(spec.fields):
        raise InputError(
            f"a partition tuple of {len(values)} values for partition spec {spec.spec_id}, which has "
            f"{len(spec.fields)} fields",
            path=metadata.location,
        )


def _iterate_schemas_newest_first(metadata: TableMetadata) -> Iterator[Schema]:
    current = metadata.current_schema_id
    yield from (schema for schema in metadata.schemas if schema.schema_id == current)
    older = [schema for schema in metadata.schemas if schema.schema_id != current]
    yield from sorted(older, key=lambda schema: schema.schema_id, reverse=True)


def _find_newest_source(metadata: TableMetadata, field: PartitionField) -> NestedField | None:
    for schema in _iterate_schemas_newest_first(metadata):
        found = _find_source(schema, field)
        if found is not None:
            return found
    return None


def _find_source(schema: Schema, field: PartitionField) -> NestedField | None:
    try:
        found = schema.find_field(field.source_id)
    except ValueError:
        return None
    # What a transform of a newer version takes cannot be known; its source still has to be there.
    takes = isinstance(field.transform, UnknownTransform) or field.transform.can_transform(found.field_type)
    return found if takes else None


def _merge_schemas(metadata: TableMetadata, spec: PartitionSpec) -> Schema:
    current = metadata.schema()
    names = set(current.column_names)
    added = []
    for source_id, part in {part.source_id: part for part in spec.fields}.items():
        if _find_source(current, part) is not None:
            continue
        found = _find_newest_source(metadata, part)
        if found is None:
            if isinstance(part.transform, VoidTransform):
                continue
            find_source_type(metadata, part)  # raises, and names the missing one
            continue
        # A column of the same name may have been added since: the id tells them apart.
        name = found.name if found.name not in names else f"{found.name}_{source_id}"
        added.append(NestedField(source_id, name, found.field_type, required=False))
    return Schema(*current.fields, *added, schema_id=current.schema_id)


def _escape(text: str) -> str:
    # As java.net.URLEncoder: it keeps the star and escapes the tilde.
    return quote_plus(text, safe="*").replace("~", "%7E")


_MAX_COMBINED_CODE = 2**62


def group_rows(columns: Sequence[pa.Array]) -> list[tuple[tuple[Any, ...], pa.Int64Array | None]]:
    """The distinct tuples of several columns in order of first appearance, each with its rows ascending.

    NULL equals NULL, NaN equals NaN, and 0.0 is not -0.0. The rows of the only tuple are None: all.
    """
    encoded = [_encode_column(column) for column in columns]
    groups = _combine_columns([(part.indices, len(part.dictionary)) for part in encoded])
    count = len(groups.dictionary)
    if count == 1:
        return [(_get_values(columns, 0), None)]
    codes = groups.indices.cast(pa.int64())
    order = pc.array_sort_indices(codes).cast(pa.int64())  # stable: rows stay ascending
    sizes = pc.value_counts(codes)
    # Codes are given in order of appearance, and so are the counts.
    starts = 0
    found = []
    for size in sizes.field("counts").to_pylist():
        rows = order.slice(starts, size)
        found.append((_get_values(columns, rows[0].as_py()), rows))
        starts += size
    return found


def _get_values(columns: Sequence[pa.Array], row: int) -> tuple[Any, ...]:
    return tuple(column[row].as_py() for column in columns)


def _encode_column(column: pa.Array) -> pa.DictionaryArray:
    return pc.dictionary_encode(_to_bits(column), null_encoding="encode")


def _to_bits(column: pa.Array) -> pa.Array:
    if not pa.types.is_floating(column.type):
        return column
    one_nan = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
    return one_nan.view(pa.int32() if column.type == pa.float32() else pa.int64())


def _combine_columns(parts: Sequence[tuple[pa.Array, int]]) -> pa.DictionaryArray:
    codes, size = parts[0][0].cast(pa.int64()), parts[0][1]
    for more, width in parts[1:]:
        if size * width > _MAX_COMBINED_CODE:
            packed = pc.dictionary_encode(codes)
            codes, size = packed.indices.cast(pa.int64()), len(packed.dictionary)
        codes = pc.add(pc.multiply(codes, width), more.cast(pa.int64()))
        size *= width
    return pc.dictionary_encode(codes)
