"""Matching a merge: DuckDB joins the keys of files and source; the kernel decides on each pair of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.python_values import make_scalar
from intarsia.core.change import Hits, Matches
from intarsia.core.intent import MergeIntent
from intarsia.core.keys import to_array
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.ports import Progress
from intarsia.core.prune import read_bounds
from intarsia.core.rule import STRATEGIES
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.engines.duckdb.scan import Scan
from intarsia.engines.duckdb.session import Session
from intarsia.engines.duckdb.source import LoadedKeys, refuse_duplicates
from intarsia.engines.duckdb.sql import FILE, POS, SRC, quote, quote_all, restore_types
from intarsia.kernel.match import FileMatch, KeyColumns, KeyPiece, MergeMatcher, SourceIndex, join_hits

__all__ = ["list_condition_columns", "match_merge"]

_PLACE_BITS = 40
"""Bits of a position: no file has more rows."""


def match_merge(plan: Plan, intent: MergeIntent, loaded: LoadedKeys, progress: Progress) -> Matches:
    """Which rows change. Memory: 16 bytes per pair of rows, and the columns of conditions for one file."""
    strategy = intent.rule.name in STRATEGIES  # its source keys have to be unique
    source = SourceIndex.without_keys(loaded.table, plan.snapshot.partition_columns, repeated=not strategy)
    matcher = MergeMatcher(plan, intent, source)
    scans = plan.select("scan")
    files = [item.file for item in scans]
    asked = list_condition_columns(plan.snapshot, intent)
    scan = Scan.of(loaded.session, plan.snapshot, files, plan.snapshot.schema, columns=(*intent.keys, *asked))
    nulls = _count_null_keys(scan, intent, scans)
    found: list[FileMatch] = []
    met_twice = False
    with loaded.session.fork() as apart:  # reads pairs while the other reads columns
        for number, (there, here) in enumerate(_join_keys(scan, intent, loaded, apart)):
            met_twice = met_twice or (strategy and _has_repeats(there))
            found.append(_classify_file(matcher, scans[number], scan, there, here, nulls.get(number, {})))
            progress("scan keys", number + 1, len(scans))
    rest = matcher.find_unmatched(found)
    if strategy:
        refuse_duplicates(loaded, intent, plan.snapshot.root, met_twice=met_twice, unmatched=rest)
    return matcher.resolve(found, rest)


def _has_repeats(ascending: pa.Array) -> bool:
    following = ascending.slice(1)
    return bool(pc.any(pc.equal(ascending.slice(0, len(following)), following), min_count=0).as_py())


def _join_keys(
    scan: Scan, intent: MergeIntent, loaded: LoadedKeys, session: Session
) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Per file, in order: positions of rows, and the source rows with the same key."""
    if not (scan.files and len(loaded.table)):
        yield from _cut_by_file(iter(()), len(scan.files))
        return
    same = "IS NOT DISTINCT FROM" if intent.matches_null else "="
    on = " AND ".join(
        f"t.{quote(there)} {same} s.{quote(here)}"
        for there, here in zip(intent.keys, intent.source_keys, strict=True)
    )
    sql = (
        # One number sorts faster than two.
        f"SELECT (t.{quote(FILE)} << {_PLACE_BITS}) | t.{quote(POS)}, s.{quote(SRC)}"
        f" FROM ({scan.make_sql(tuple(dict.fromkeys(intent.keys)), keys=True)}) t JOIN {loaded.sql} s ON {on}"
        f" ORDER BY 1 ASC{'' if intent.rule.name in STRATEGIES else ', 2 ASC'}"
    )
    yield from _cut_by_file(session.read_batches(sql), len(scan.files))


def _cut_by_file(batches: Iterator[pa.RecordBatch], files: int) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Split batches of (file and position, source row), which are ascending, by file."""
    number = 0
    held: list[pa.RecordBatch] = []
    for batch in batches:
        while batch.num_rows:
            edge = make_scalar((number + 1) << _PLACE_BITS, pa.int64())
            end = pc.search_sorted(batch.column(0), edge, side="left").as_py()
            held.append(batch.slice(0, end))
            batch = batch.slice(end)
            if batch.num_rows:
                yield _concat_rows(held)
                held, number = [], number + 1
    for _ in range(number, files):
        yield _concat_rows(held)
        held = []


def _concat_rows(batches: Sequence[pa.RecordBatch]) -> tuple[pa.Array, pa.Array]:
    places = to_array(pa.chunked_array([batch.column(0) for batch in batches], pa.int64()))
    # A copy, so that the batches are freed.
    beside = pa.concat_arrays([pa.nulls(0, pa.int64()), *(batch.column(1) for batch in batches)])
    return pc.bit_wise_and(places, make_scalar((1 << _PLACE_BITS) - 1, pa.int64())), beside


def _count_null_keys(scan: Scan, intent: MergeIntent, scans: Sequence[FilePlan]) -> dict[int, dict[str, int]]:
    """The number of NULL keys, by file and column, in the row groups to scan."""
    if not scans:
        return {}
    strict = dict.fromkeys(there for there, _ in intent.never_null)
    keys = [each for each in strict if _has_possible_null(scan, each)]
    if not keys:
        return {}
    missing = [f"(count(*) - count({quote(each)}))" for each in keys]
    looked_at = scan.select_row_groups([(item.file, item.row_groups) for item in scans])
    rows = scan.session.fetch_rows(
        f"SELECT {quote(FILE)}, {', '.join(missing)} FROM ({scan.make_sql(keys)})"
        f"{'' if looked_at is None else f' WHERE {looked_at}'}"
        f" GROUP BY 1 HAVING {' + '.join(missing)} > 0"
    )
    return {row[0]: {each: n for each, n in zip(keys, row[1:], strict=True) if n} for row in rows}


def _has_possible_null(scan: Scan, column: str) -> bool:
    """Whether some value may be NULL, as far as partition values and footers tell."""
    if any(file.partition.get(column, column) is None for file in scan.files):
        return True
    stored = [file for file in scan.files if column not in file.partition]
    known = read_bounds(stored, column, scan.schema.field(column).type).null_count
    return bool(
        pc.any(pc.fill_null(pc.not_equal(known, make_scalar(0)), make_scalar(True)), min_count=0).as_py()
    )


def list_condition_columns(snapshot: Snapshot, intent: MergeIntent) -> list[str]:
    """The target columns that conditions read; a key if they read none, to count rows by."""
    columns = KeyColumns(snapshot, intent)
    return columns.list_condition_columns() or (list(intent.keys[:1]) if columns.conditions else [])


def _classify_file(
    matcher: MergeMatcher,
    item: FilePlan,
    scan: Scan,
    there: pa.Array,
    here: pa.Array,
    nulls: dict[str, int],
) -> FileMatch:
    result = FileMatch(item, Hits.make_empty(), nulls=nulls)
    if len(there) or matcher.rule.touches_target_only:
        columns = list_condition_columns(scan.snapshot, matcher.intent)
        live = scan.list_live(item.file)
        if live is not None:  # positions among the live rows
            there = pc.search_sorted(live, there).cast(pa.int64())
        rows = item.file.record_count if live is None else len(live)
        piece = KeyPiece(item, 0, rows, [], _read_columns(scan, item.file, columns), live)
        result.hits = join_hits([matcher.classify(piece, there, here, result)])
    return result


def _read_columns(scan: Scan, file: DataFile, columns: Sequence[str]) -> pa.Table:
    """Some columns of a whole file, in the order of its rows."""
    if not columns:
        return pa.table({})
    sql = f"SELECT {quote_all(columns)} FROM ({scan.make_sql(columns, [file])}) ORDER BY {quote(POS)} ASC"
    return restore_types(scan.session.fetch_arrow(sql), scan.schema)
