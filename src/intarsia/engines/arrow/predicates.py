"""Matching a predicate: which rows of a file make it TRUE, as SQL text or a pyarrow expression says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.spool import tidy_schema
from intarsia.core.evaluate import true_mask
from intarsia.core.files import Snapshot
from intarsia.core.intent import Predicate, Update
from intarsia.core.keys import arange, flat
from intarsia.core.matches import Hits, Matches
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.planning import predicate_columns
from intarsia.core.rule import Assign, Drop
from intarsia.engines.arrow.overlay import take_rows
from intarsia.engines.arrow.reading import FileReader
from intarsia.errors import ColumnNotFound, InputError, SchemaMismatch

_ROW = "__row__"


def predicate_hits(plan: FilePlan, where: Predicate, snapshot: Snapshot, batch_rows: int | None) -> Hits:
    """The positions in one file where the predicate is TRUE; reads only the columns it names."""
    if where is None and plan.file.lens is None:
        return Hits(arange(plan.file.rows))
    columns = predicate_columns(where, snapshot.schema)
    wanted = set(plan.row_groups)
    found: list[pa.Array] = []
    with FileReader(plan.file, snapshot.schema, snapshot.filesystem) as reader:
        start = 0
        for group in range(reader.footer.num_row_groups):
            rows = reader.footer.row_group(group).num_rows
            if group in wanted:
                offset = start
                for piece in reader.pieces(columns, group, batch_rows=batch_rows):
                    live = reader.alive(offset, piece.num_rows)
                    hit = _hits_among(where, piece, live)
                    found.append(pc.add(hit, pa.scalar(offset, pa.int64())))
                    offset += piece.num_rows
            start += rows
    return Hits(pa.concat_arrays(found)) if found else Hits.empty()


def _hits_among(where: Predicate, piece: pa.Table, live: pa.Array | None) -> pa.Array:
    """The rows of a piece that are hit; rows that are dead are not looked at."""
    rows = piece if live is None else take_rows(piece, live)
    hit = arange(rows.num_rows) if where is None else hit_positions(where, rows)
    return hit if live is None else live.take(hit)


def settle_predicate(plan: Plan, scans: Sequence[FilePlan], found: Sequence[Hits]) -> Matches:
    """The hits of a DELETE or UPDATE over all files; a file that loses every row is dropped."""
    hits = {item.file.path: mine for item, mine in zip(scans, found, strict=True) if len(mine)}
    whole = plan.chosen("remove")
    count = sum(len(mine) for mine in hits.values()) + sum(item.file.rows for item in whole)
    scanned = plan.bytes_to_scan
    if isinstance(plan.intent, Update):
        return Matches((Assign(plan.intent.assignments),), hits, updated=count, scanned_bytes=scanned)
    emptied = {item.file.path for item in scans if len(hits.get(item.file.path, ())) == item.file.rows > 0}
    dropped = frozenset(emptied | {item.file.path for item in whole})
    kept = {path: mine for path, mine in hits.items() if path not in emptied}
    return Matches((Drop(),), kept, dropped, deleted=count, scanned_bytes=scanned)


def hit_positions(where: Any, table: pa.Table) -> pa.Array:
    """The rows of a table, ascending, where the predicate is TRUE."""
    if not isinstance(where, pc.Expression):
        return pc.indices_nonzero(true_mask(where, table)).cast(pa.int64())
    tidy = tidy_schema(table.schema)
    table = table if tidy.equals(table.schema) else table.cast(tidy)
    row = _ROW
    while row in table.column_names:
        row += "_"
    try:
        kept = table.append_column(row, arange(table.num_rows)).filter(where)
    except pa.ArrowInvalid as error:
        if "No match for FieldRef" in str(error):
            raise ColumnNotFound(
                f"The predicate {where} names a column that is not there;"
                f" there is {', '.join(map(repr, table.column_names))}."
            ) from error
        raise InputError(f"The predicate cannot be evaluated: {error}") from error
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        if "must evaluate to bool" in str(error):
            raise SchemaMismatch(
                f"{where} is a value, not a condition.", hint="compare it with something."
            ) from error
        raise SchemaMismatch(
            f"The types in the predicate {where} do not go together: {error}",
            hint="cast the constant to the column's type.",
        ) from error
    return flat(kept[row])
