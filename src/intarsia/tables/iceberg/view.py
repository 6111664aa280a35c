"""A data file's columns seen as the table's: found by field id at every level; reads no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import NestedField

from intarsia.core.lens import LAST_UPDATED, LINEAGE, ROW_ID
from intarsia.errors import DamagedTable, NotSupported
from intarsia.tables.iceberg.reshape import Held, Reshape, Reshaper, held_fields
from intarsia.tables.iceberg.schemas import FIELD_ID

ROW_ID_FIELD = 2147483540
LAST_UPDATED_FIELD = 2147483539
LINEAGE_FIELDS = {ROW_ID: ROW_ID_FIELD, LAST_UPDATED: LAST_UPDATED_FIELD}

Names = Mapping[str, tuple[int | None, "Names"]]
"""A name mapping: by a field's name its id, and the names inside it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of the file beyond its bytes."""

    path: str
    first_row_id: int | None = None
    sequence_number: int | None = None
    constants: Mapping[int, Any] = field(default_factory=dict)
    """By field id what a field reads as where the file lacks it: partition values before defaults."""


class FileView:
    """Implements ``core.lens.View`` for one file of a table.

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
        names: Names | None,
        origin: Origin,
    ) -> None:
        """``columns`` are the table's own by name; a wanted one that is not among them reads as NULL."""
        self._physical = physical
        self._wanted = wanted
        self._columns = columns
        self._origin = origin
        fields = ids_of(held_fields(physical), names)
        if physical.names and not any_id(fields):
            raise NotSupported(
                f"{origin.path} has no field ids and the table has no name mapping, so its columns"
                " cannot be told.",
                path=origin.path,
                hint="set the table property schema.name-mapping.default.",
            )
        self._by_id = {held.number: held for held in reversed(fields) if held.number is not None}
        self._reshaper = Reshaper(origin.path, origin.constants)
        self._plans: dict[str, Reshape | None] = {}

    @property
    def stored(self) -> frozenset[str]:
        """The table's columns that the file itself holds, at least in part."""
        return frozenset(name for name in self._wanted.names if self._held(name) is not None)

    def physical(self, columns: Sequence[str]) -> list[str]:
        """The file's own columns to be read for some of the table's."""
        held = (self._held(name) for name in columns)
        return list(dict.fromkeys(one.name for one in held if one is not None))

    def seen(self, table: pa.Table, columns: Sequence[str], *, start: int) -> pa.Table:
        """What was read as columns of the table; ``start`` is the position of the first row."""
        fields = [_LINEAGE.get(name) or self._wanted.field(name) for name in columns]
        arrays = [
            self._lineage(name, table, start) if name in _LINEAGE else self._column(name, table)
            for name in columns
        ]
        if not columns:
            return table.select([])
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields, self._wanted.metadata))

    def _held(self, name: str) -> Held | None:
        number = LINEAGE_FIELDS.get(name)
        if number is None:
            known = self._columns.get(name)
            number = known.field_id if known is not None else None
        return self._by_id.get(number) if number is not None else None

    def _column(self, name: str, table: pa.Table) -> Any:
        held, kind = self._held(name), self._wanted.field(name).type
        if held is None:
            return self._reshaper.missing(self._columns.get(name), kind, table.num_rows, name)
        column = table.column(held.name)
        if name not in self._plans:
            known = self._columns.get(name)
            assert known is not None
            self._plans[name] = self._reshaper.plan(_as_read(held, column.type), known.field_type, kind, name)
        plan = self._plans[name]
        if plan is None:
            return column
        try:
            return pa.chunked_array([plan.of(chunk) for chunk in column.chunks], kind)
        except pa.ArrowInvalid as error:
            raise DamagedTable(
                f"Column {name!r} of {self._origin.path} has values that {kind} cannot hold: {error}",
                path=self._origin.path,
            ) from error

    def _lineage(self, name: str, table: pa.Table, start: int) -> Any:
        """What the file stores, or inherits where that is NULL; NULL where the file predates lineage."""
        origin, rows = self._origin, table.num_rows
        inherited: Any = None
        if origin.first_row_id is not None:
            if name == ROW_ID:
                first = origin.first_row_id + start
                inherited = pa.arange(first, first + rows)
            elif origin.sequence_number is not None:
                inherited = pa.repeat(pa.scalar(origin.sequence_number, pa.int64()), rows)
        held = self._held(name)
        if held is None:
            return inherited if inherited is not None else pa.nulls(rows, pa.int64())
        stored = table.column(held.name).cast(pa.int64())
        if inherited is None or stored.null_count == 0:
            return stored
        return pc.coalesce(stored, inherited)


_LINEAGE = {
    name: pa.field(name, pa.int64(), True, {FIELD_ID: str(LINEAGE_FIELDS[name]).encode()}) for name in LINEAGE
}


def _as_read(held: Held, kind: pa.DataType) -> Held:
    """The column with the type it was read in: a reader may have been asked for a dictionary."""
    if held.type.equals(kind) or not pa.types.is_dictionary(kind):
        return held
    return Held(held.name, held.number, kind, held.inner)


def any_id(fields: Sequence[Held]) -> bool:
    return any(one.number is not None or any_id(one.inner) for one in fields)


def ids_of(fields: tuple[Held, ...], names: Names | None) -> tuple[Held, ...]:
    """The fields with the ids a name mapping gives them, where the file has none at all."""
    return fields if names is None or any_id(fields) else _named(fields, names)


def _named(fields: Sequence[Held], names: Names) -> tuple[Held, ...]:
    """The fields with the ids that a name mapping gives them; containers' fields have names of their own."""
    found = []
    for one in fields:
        number, inside = names.get(one.name, (None, {}))
        found.append(Held(one.name, number, one.type, _named(one.inner, inside)))
    return tuple(found)
