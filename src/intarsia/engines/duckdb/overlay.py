"""New values laid over the rows of a file, in its order: DuckDB reads both side by side and takes either."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.spool import take
from intarsia.core.keys import arange, flat, places
from intarsia.core.matches import Hits
from intarsia.engines.arrow.overlay import take_rows
from intarsia.engines.duckdb.text import POS, name
from intarsia.engines.duckdb.types import sql_type
from intarsia.engines.duckdb.writing import PROVES_NOT_NULL

__all__ = ["Layer", "Overlay"]

BATCH_ROWS = 1 << 20
_GONE = "~gone"


@dataclass(frozen=True, slots=True)
class Layer:
    """Values that come in the place of others: those of some rows of a table."""

    positions: pa.Array
    """Where in the file, ascending."""
    table: pa.Table
    rows: pa.Array | None = None
    """The rows of the table to take; None takes all, in order."""

    def part(self, low: int, high: int) -> pa.Table:
        """The values of some of the positions."""
        if self.rows is None:
            return self.table.slice(low, high - low)
        return take_rows(self.table, self.rows.slice(low, high - low))

    def between(self, start: int, stop: int) -> range:
        """Which of the positions, from the first, lie in a range of places."""
        return _between(self.positions, start, stop)

    def has(self, column: str) -> bool:
        return column in self.table.column_names

    def of(self, columns: Collection[str]) -> Layer:
        """The same with some columns alone."""
        return replace(self, table=self.table.select([n for n in self.table.column_names if n in columns]))


@dataclass(frozen=True, slots=True)
class Overlay:
    """What becomes of the rows of one file: new values in layers, and rows that go.

    Memory: a batch of rows at a time, beside what the layers refer to.
    """

    rows: int
    layers: Sequence[Layer]
    gone: Hits
    start: int | None = None
    """The first of the rows, where they are not all of the file's."""

    def reader(self) -> pa.RecordBatchReader:
        """As many rows as there are: per layer whether it changes the row, and to which values."""
        return pa.RecordBatchReader.from_batches(self._schema(), self._batches())

    def sql(self, file: str, columns: Sequence[tuple[str, str]], view: str, schema: pa.Schema) -> str:
        """The file's rows as they are to be written, and their places.

        ``columns`` are names with the expressions by which the file, as ``t``, gives them.
        """
        chosen = [f"{self._value(each, old, schema)} AS {name(each)}" for each, old in columns]
        stays = f"NOT p.{name(_GONE)}" if len(self.gone) else "TRUE"
        apart = f"t.file_row_number IS DISTINCT FROM p.{name(POS)}"
        return (
            f"SELECT {', '.join(chosen)}, t.file_row_number AS {name(POS)}"
            f" FROM {self._file(file)} t POSITIONAL JOIN {view} p"
            f" WHERE CASE WHEN {apart} THEN error('rows were not read in order')::BOOLEAN ELSE {stays} END"
        )

    def _file(self, file: str) -> str:
        whole = f"read_parquet({file}, hive_partitioning=false)"
        if self.start is None:
            return whole
        here = f"file_row_number >= {self.start} AND file_row_number < {self.start + self.rows}"
        return f"(SELECT *, file_row_number FROM {whole} WHERE {here})"

    def _value(self, column: str, old: str, schema: pa.Schema) -> str:
        kind = sql_type(schema.field(column).type)
        cases = [
            f"WHEN p.{name(_flag(n))} THEN CAST(p.{name(_label(n, column))} AS {kind})"
            for n, layer in enumerate(self.layers)
            if column in layer.table.column_names
        ]
        if cases:
            return f"CASE {' '.join(cases)} ELSE {old} END"
        if PROVES_NOT_NULL and schema.field(column).nullable:  # which it would not stay otherwise
            return f"CASE WHEN t.file_row_number >= 0 THEN {old} END"
        return old

    def _schema(self) -> pa.Schema:
        fields = [pa.field(POS, pa.int64())]
        if len(self.gone):
            fields.append(pa.field(_GONE, pa.bool_()))
        for number, layer in enumerate(self.layers):
            fields.append(pa.field(_flag(number), pa.bool_()))
            fields += [pa.field(_label(number, f.name), _carried(f.type)) for f in layer.table.schema]
        return pa.schema(fields)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        schema = self._schema()
        first = self.start or 0
        for start in range(first, first + self.rows, BATCH_ROWS):
            stop = min(start + BATCH_ROWS, first + self.rows)
            columns: list[pa.Array] = [arange(stop - start, start)]
            if len(self.gone):
                slots, _, _ = _slots(self.gone.positions, start, stop)
                columns.append(pc.is_valid(slots))
            for layer in self.layers:
                slots, low, high = _slots(layer.positions, start, stop)
                columns.append(pc.is_valid(slots))
                part = layer.part(low, high)
                columns += [_carry(part[each], slots) for each in part.column_names]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _flag(number: int) -> str:
    return f"~{number}"


def _label(number: int, column: str) -> str:
    return f"{number}:{column}"


def _between(positions: pa.Array, start: int, stop: int) -> range:
    return range(*pc.search_sorted(positions, pa.array([start, stop], pa.int64())).to_pylist())


def _slots(positions: pa.Array, start: int, stop: int) -> tuple[pa.Array, int, int]:
    """Per row of a range the number, from the first, of the position that is it; and which positions."""
    here = _between(positions, start, stop)
    low, high = here.start, here.stop
    if not here:
        return pa.nulls(stop - start, pa.int32()), low, high
    local = pc.subtract(positions.slice(low, high - low), pa.scalar(start, pa.int64()))
    return places(local, stop - start), low, high


def _carried(kind: pa.DataType) -> pa.DataType:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return plain if _is_wide(plain) else pa.dictionary(pa.int32(), plain)


def _is_wide(kind: pa.DataType) -> bool:
    """Whether a type cannot be a dictionary's."""
    return bool(pa.types.is_nested(kind) or pa.types.is_null(kind))


def _carry(column: pa.ChunkedArray, slots: pa.Array) -> pa.Array:
    """The values where they go, without copying those that are not nested."""
    values = flat(column)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if _is_wide(values.type):
        return take(values, slots)
    return pa.DictionaryArray.from_arrays(slots, values)
