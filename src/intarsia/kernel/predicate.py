"""Matching a predicate: which rows of a file make it TRUE, as SQL text or a pyarrow expression says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.change import Hits, Matches
from intarsia.core.evaluate import hit_positions
from intarsia.core.intent import Predicate, Update
from intarsia.core.keys import arange
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.prove import predicate_columns
from intarsia.core.rule import Assign, Drop
from intarsia.core.snapshot import Snapshot
from intarsia.kernel.new_rows import all_rows
from intarsia.kernel.overlay import take_rows
from intarsia.kernel.read import FileReader

__all__ = ["hit_positions", "predicate_hits", "resolve_hits", "with_new_rows"]


def predicate_hits(plan: FilePlan, where: Predicate, snapshot: Snapshot, batch_rows: int | None) -> Hits:
    """The positions in one file where the predicate is TRUE; reads only the columns it names."""
    if where is None and plan.file.scan_task is None:
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
                    live = reader.live_rows(offset, piece.num_rows)
                    hit = _hits_among(where, piece, live)
                    found.append(pc.add(hit, pa.scalar(offset, pa.int64())))
                    offset += piece.num_rows
            start += rows
    return Hits(pa.concat_arrays(found)) if found else Hits.empty()


def _hits_among(where: Predicate, piece: pa.Table, live: pa.Array | None) -> pa.Array:
    """The rows of a piece that are hit; deleted rows are left out."""
    rows = piece if live is None else take_rows(piece, live)
    hit = arange(rows.num_rows) if where is None else hit_positions(where, rows)
    return hit if live is None else live.take(hit)


def resolve_hits(plan: Plan, scans: Sequence[FilePlan], found: Sequence[Hits]) -> Matches:
    """The hits of a predicate over all files; a file that loses every row is dropped."""
    hits = {item.file.path: mine for item, mine in zip(scans, found, strict=True) if len(mine)}
    whole = plan.select("remove")
    count = sum(len(mine) for mine in hits.values()) + sum(item.file.rows for item in whole)
    scanned = plan.bytes_to_scan
    if isinstance(plan.intent, Update):
        return Matches((Assign(plan.intent.assignments),), hits, updated=count, scanned_bytes=scanned)
    emptied = {item.file.path for item in scans if len(hits.get(item.file.path, ())) == item.file.rows > 0}
    dropped = frozenset(emptied | {item.file.path for item in whole})
    kept = {path: mine for path, mine in hits.items() if path not in emptied}
    return Matches((Drop(),), kept, dropped, deleted=count, scanned_bytes=scanned)


def with_new_rows(found: Matches, rows: pa.Table) -> Matches:
    """What an overwrite removes, and all rows of its source as new ones."""
    return replace(found, inserts=tuple(all_rows(rows)), inserted=rows.num_rows)
