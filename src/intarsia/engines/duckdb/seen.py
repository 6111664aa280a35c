"""Where the columns of a table are in one of its files, and which of the file's rows are dead; no SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from intarsia.core.files import DataFile
from intarsia.core.keys import arange
from intarsia.core.lens import FIELD_ID, LINEAGE, with_lineage
from intarsia.core.plan import Plan
from intarsia.engines.arrow.reading import FileReader
from intarsia.engines.arrow.threads import in_order

__all__ = ["Sight", "dead_rows", "live_rows", "moved_schema", "own_names", "same_inside", "sight"]


@dataclass(frozen=True, slots=True)
class Sight:
    """Some columns of a table in one file; one that is neither held nor told is NULL throughout."""

    held: Mapping[str, pa.Field]
    """The file's own columns."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """What stands in for a column: the value of all rows, or what identities of rows are counted from."""


def moved_schema(plan: Plan) -> pa.Schema:
    """The columns of rows that are written anew, with what tells them apart where the table keeps that."""
    return with_lineage(plan.schema) if plan.snapshot.lineage else plan.schema


def sight(file: DataFile, columns: Iterable[str], schema: pa.Schema) -> Sight:
    """How some columns of ``schema`` are seen in a file whose footer is known.

    Raises as reading them does: DamagedTable for a column that is required and nowhere, or whose type in
    the file cannot become the table's.
    """
    assert file.footer is not None
    physical = file.footer.schema.to_arrow_schema()
    names = list(columns)
    if file.lens is None:
        told = {each: file.partition[each] for each in names if each in file.partition}
        held = {each: physical.field(each) for each in names if each in physical.names and each not in told}
        return Sight(held, told)
    view = file.lens.view(physical, schema)
    own = {each: view.physical([each]) for each in names}
    held = {each: physical.field(theirs[0]) for each, theirs in own.items() if theirs}
    # One row of NULLs tells what the lens puts in the place of a column that is not there.
    nothing = {known.name: pa.nulls(1, known.type) for known in held.values()} or {"": pa.nulls(1)}
    row = view.seen(pa.table(nothing), names, start=0)
    told = {each: row[each][0] for each in names if each not in held or each in LINEAGE}
    return Sight(held, {each: value for each, value in told.items() if value.is_valid})


def own_names(file: DataFile, columns: Collection[str]) -> frozenset[str]:
    """What some columns of a table are called in a file that has them."""
    if file.lens is None or file.footer is None:
        return frozenset(columns)
    view = file.lens.view(file.footer.schema.to_arrow_schema(), pa.schema([]))
    return frozenset(view.physical(list(columns)))


def dead_rows(
    files: Sequence[DataFile], filesystem: pafs.FileSystem, *, threads: int
) -> dict[str, pa.Int64Array]:
    """The positions of dead rows, ascending, by the path of each file that has any."""

    def look(file: DataFile) -> pa.Int64Array | None:
        with FileReader(file, pa.schema([]), filesystem) as reader:
            return reader.dead

    some = [file for file in files if file.lens is not None and file.lens.has_dead]
    found = in_order(look, some, threads=max(1, min(threads, len(some))))
    pairs = zip(some, found, strict=True)
    return {file.path: rows for file, rows in pairs if rows is not None and len(rows)}


def live_rows(file: DataFile, dead: pa.Int64Array | None) -> pa.Int64Array:
    """The positions of the rows of a file that are left."""
    rows = arange(file.records)
    return rows if dead is None else rows.filter(pc.invert(pc.is_in(rows, value_set=dead)))


def same_inside(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two nested types have the same fields, by their ids at every level."""
    if not pa.types.is_nested(one):
        return bool(one.equals(other))
    mine, theirs = _fields(one), _fields(other)
    if one.id != other.id or len(mine) != len(theirs):
        return False
    named = pa.types.is_struct(one)
    return all(
        _field_id(a) is not None
        and _field_id(a) == _field_id(b)
        and (a.name == b.name or not named)
        and same_inside(a.type, b.type)
        for a, b in zip(mine, theirs, strict=True)
    )


def _fields(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(number) for number in range(kind.num_fields)]


def _field_id(known: pa.Field) -> bytes | None:
    return (known.metadata or {}).get(FIELD_ID)
