"""Matching a merge: DuckDB joins the keys of files and source; what becomes of a pair is the shared rule's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.files import DataFile, Snapshot
from intarsia.core.intent import Merge
from intarsia.core.keys import flat
from intarsia.core.matches import Hits, Matches
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.ports import Progress
from intarsia.engines.arrow.key_columns import KeyColumns, Piece
from intarsia.engines.arrow.matching import FileMatch, MergeMatcher, SourceIndex, joined
from intarsia.engines.duckdb.results import restored
from intarsia.engines.duckdb.scan import Scan
from intarsia.engines.duckdb.session import Session
from intarsia.engines.duckdb.source import Loaded
from intarsia.engines.duckdb.text import FILE, POS, SRC, name, named

__all__ = ["asked_for", "by_file", "match_merge"]


def match_merge(plan: Plan, intent: Merge, loaded: Loaded, progress: Progress) -> Matches:
    """Which rows change. Memory: 16 bytes per pair of rows, and what conditions ask of one file."""
    source = SourceIndex.without_keys(loaded.table, plan.snapshot.partition_columns, repeated=loaded.repeated)
    matcher = MergeMatcher(plan, intent, source)
    scans = plan.chosen("scan")
    scan = Scan.of(loaded.session, plan.snapshot, [item.file for item in scans], plan.snapshot.schema)
    nulls = _null_keys(scan, intent, scans)
    found = []
    with loaded.session.fork() as apart:  # where the pairs come from while conditions are looked at
        for number, (there, here) in enumerate(_pairs(scan, intent, loaded, apart)):
            found.append(_classified(matcher, scans[number], scan, there, here, nulls.get(number, {})))
            progress("scan keys", number + 1, len(scans))
    return matcher.settle(found)


def _pairs(
    scan: Scan, intent: Merge, loaded: Loaded, session: Session
) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Per file, in order: places of rows, and the source rows with the same key."""
    if not (scan.files and len(loaded.table)):
        yield from by_file(iter(()), len(scan.files))
        return
    same = "IS NOT DISTINCT FROM" if intent.null_keys == "match" else "="
    on = " AND ".join(
        f"t.{name(there)} {same} s.{name(here)}"
        for there, here in zip(intent.keys, intent.source_keys, strict=True)
    )
    sql = (
        f"SELECT t.{name(FILE)}, t.{name(POS)}, s.{name(SRC)}"
        f" FROM ({scan.sql(tuple(dict.fromkeys(intent.keys)), keys=True)}) t JOIN {loaded.sql} s ON {on}"
        f" ORDER BY 1, 2, 3"
    )
    yield from by_file(session.batches(sql), len(scan.files))


def by_file(batches: Iterator[pa.RecordBatch], files: int) -> Iterator[tuple[pa.Array, ...]]:
    """Batches whose first column is the ascending number of a file, as the other columns of each file."""
    number = 0
    held: list[pa.RecordBatch] = []
    width: pa.Schema | None = None
    for batch in batches:
        width = batch.schema
        while batch.num_rows:
            end = pc.search_sorted(batch.column(0), pa.scalar(number, pa.int64()), side="right").as_py()
            held.append(batch.slice(0, end))
            batch = batch.slice(end)
            if batch.num_rows:
                yield _columns(held, width)
                held, number = [], number + 1
    for _ in range(number, files):
        yield _columns(held, width)
        held = []


def _columns(batches: Sequence[pa.RecordBatch], schema: pa.Schema | None) -> tuple[pa.Array, ...]:
    if schema is None:
        none = pa.array([], pa.int64())
        return none, none
    table = pa.Table.from_batches(batches, schema)
    return tuple(flat(table.column(n)) for n in range(1, table.num_columns))


def _null_keys(scan: Scan, intent: Merge, scans: Sequence[FilePlan]) -> dict[int, dict[str, int]]:
    """How many keys are NULL, by file and column, in the row groups that have to be looked at."""
    if intent.null_keys == "match" or not scans:
        return {}
    keys = tuple(dict.fromkeys(intent.keys))
    missing = [f"(count(*) - count({name(each)}))" for each in keys]
    looked_at = _looked_at(scans)
    rows = scan.session.rows(
        f"SELECT {name(FILE)}, {', '.join(missing)} FROM ({scan.sql(keys)}){looked_at}"
        f" GROUP BY 1 HAVING {' + '.join(missing)} > 0"
    )
    return {row[0]: {each: n for each, n in zip(keys, row[1:], strict=True) if n} for row in rows}


def _looked_at(scans: Sequence[FilePlan]) -> str:
    """A condition that leaves out row groups whose bounds exclude every key; nothing where none is."""
    parts, some = [], False
    for number, item in enumerate(scans):
        footer = item.file.footer
        assert footer is not None
        if len(item.row_groups) == footer.num_row_groups:
            parts.append(f"{name(FILE)} = {number}")
            continue
        some, start, wanted = True, 0, set(item.row_groups)
        for group in range(footer.num_row_groups):
            stop = start + footer.row_group(group).num_rows
            if group in wanted:
                parts.append(f"({name(FILE)} = {number} AND {name(POS)} >= {start} AND {name(POS)} < {stop})")
            start = stop
    return f" WHERE {' OR '.join(parts) or 'false'}" if some else ""


def asked_for(snapshot: Snapshot, intent: Merge) -> list[str]:
    """The target's columns that conditions look at; a key where they look at none, to count rows by."""
    columns = KeyColumns(snapshot, intent)
    return columns.condition_columns() or (list(intent.keys[:1]) if columns.conditions else [])


def _classified(
    matcher: MergeMatcher,
    item: FilePlan,
    scan: Scan,
    there: pa.Array,
    here: pa.Array,
    nulls: dict[str, int],
) -> FileMatch:
    result = FileMatch(item, Hits.empty(), nulls=nulls)
    if len(there) or matcher.rule.touches_target_only:
        columns = asked_for(scan.snapshot, matcher.intent)
        piece = Piece(item, 0, item.file.rows, [], _table(scan, item.file, columns))
        result.hits = joined([matcher.classify(piece, there, here, result)])
    return result


def _table(scan: Scan, file: DataFile, columns: Sequence[str]) -> pa.Table:
    """Some columns of a whole file, in the order of its rows."""
    if not columns:
        return pa.table({})
    sql = f"SELECT {named(columns)} FROM ({scan.sql(columns, [file])}) ORDER BY {name(POS)}"
    return restored(scan.session.arrow(sql), scan.schema)
