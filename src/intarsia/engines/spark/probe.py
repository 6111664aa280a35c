"""What a merge of a large source finds in files: tasks note hits and the source rows that they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.rows import take_rows
from intarsia.core.change import Hits, Matches
from intarsia.core.expr import find_columns
from intarsia.core.keys import arange
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.rule import Action, Assign, Replace
from intarsia.core.validation import SAMPLES
from intarsia.engines.spark.copies import is_copy_on_write
from intarsia.engines.spark.large_source import MATCHED, ArrowStore, route_rows, write_routes
from intarsia.engines.spark.tasks import TaskRunner
from intarsia.kernel.match import FileMatch, MergeMatcher

_HITS = pa.schema([("position", pa.int64()), ("source", pa.int64()), ("action", pa.int8())])


@dataclass(frozen=True, slots=True)
class NoteWork:
    """Where a task notes what it finds in files."""

    store: ArrowStore
    starts: pa.Array
    """The source row with which each part begins."""
    hits: bool
    """Whether hits are noted, to be written; False where they are only counted."""


@dataclass(frozen=True, slots=True)
class ProbeWork:
    """A merge whose source is there with the columns by which it is decided."""

    matcher: MergeMatcher
    numbers: pa.Array | None
    """Which row of all the parts each of the matcher's is; None where they are the same."""
    notes: NoteWork


@dataclass(frozen=True, slots=True)
class ValidationFailure:
    """What of one file makes a merge impossible; raised when all files have been scanned."""

    nulls: Mapping[str, int]
    several: int = 0
    moved: int = 0
    samples: pa.Table | None = None
    """Some of the source rows that would have to leave the file's partition."""

    @staticmethod
    def of(match: FileMatch, source: pa.Table) -> ValidationFailure | None:
        moved = match.moved
        if not (match.nulls or match.several or moved is not None):
            return None
        if moved is None:
            return ValidationFailure(match.nulls, match.several)
        samples = take_rows(source, moved.slice(0, SAMPLES))
        return ValidationFailure(match.nulls, match.several, len(moved), samples)


@dataclass(frozen=True, slots=True)
class FileHits:
    """What is known of one file; its hits wait where ``noted`` says: a file, and the number of its batch."""

    number: int
    hits: int
    drops: int
    emptied: bool
    needed: int = 0
    """How many source rows go into the rewritten file."""
    noted: tuple[str, int] | None = None
    failure: ValidationFailure | None = None
    positions: pa.Int64Array | None = None
    """Positions of the hits, where position deletes are written."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What one task found."""

    files: list[FileHits]
    routes: str | None
    """The note that says which source row goes to which file, and which others found a match."""


class HitNotes:
    """What one task finds in its files; written as two notes when it has seen them all."""

    def __init__(self, work: NoteWork) -> None:
        self._work = work
        self._files: list[FileHits] = []
        self._hits: list[pa.RecordBatch] = []
        self._routes: list[pa.RecordBatch] = []

    def add(self, number: int, match: FileMatch, matcher: MergeMatcher, numbers: pa.Array | None) -> None:
        """Add what was found in one file, by a matcher whose source rows have these numbers."""
        hits, emptied = match.hits, matcher.drops_all_rows(match)
        positions = None if is_copy_on_write(matcher.plan) else hits.positions
        failure = ValidationFailure.of(match, matcher.source.table)
        one = FileHits(
            number, len(hits), matcher.count_drops(match), emptied, failure=failure, positions=positions
        )
        rows = arange(0)
        if self._work.hits and one.hits and not emptied:
            hits = hits if numbers is None else replace(hits, sources=_translate_sources(hits, numbers))
            rows = find_needed_rows(hits, matcher.actions)
            one = replace(one, needed=len(rows), noted=("", len(self._hits)))
            self._hits.append(_make_hits_batch(hits))
            self._routes.append(route_rows(number, rows))
        self._files.append(one)
        if matcher.rule.inserts and match.matched:
            matched = pc.unique(pa.concat_arrays(match.matched))
            if len(matched) != len(rows):  # rows that are needed are among those that match
                matched = matched if numbers is None else numbers.take(matched)
                others = matched.filter(pc.invert(pc.is_in(matched, value_set=rows)))
                self._routes.append(route_rows(MATCHED, others))

    def finish(self) -> ProbeResult:
        """Write the notes."""
        found, store = self._files, self._work.store
        if self._hits:
            location = store.put(_HITS, self._hits)
            found = [
                one if one.noted is None else replace(one, noted=(location, one.noted[1])) for one in found
            ]
        routes = write_routes(store, self._routes, self._work.starts) if self._routes else None
        return ProbeResult(found, routes)


def probe_files(work: ProbeWork, files: Sequence[tuple[int, FilePlan]]) -> ProbeResult:
    """Look for the source's keys in some files, and note what is hit."""
    matcher, notes = work.matcher, HitNotes(work.notes)
    matches = [
        match
        for batch in matcher.iterate_batches([item for _, item in files])
        for match in matcher.scan(batch)
    ]
    for (number, _), match in zip(files, matches, strict=True):
        notes.add(number, match, matcher, work.numbers)
    return notes.finish()


def _translate_sources(hits: Hits, numbers: pa.Array) -> pa.Array:
    return None if hits.sources is None else numbers.take(hits.sources)


def find_needed_rows(hits: Hits, actions: Sequence[Action]) -> pa.Array:
    """The source rows whose values go into a file, ascending, each once."""
    parts = [
        hits.select_action(number).sources for number, action in enumerate(actions) if _takes_values(action)
    ]
    rows = pc.unique(pa.concat_arrays([pa.array([], pa.int64()), *(p for p in parts if p is not None)]))
    rows = rows.drop_null()
    return rows.take(pc.array_sort_indices(rows))


def _takes_values(action: Action) -> bool:
    if isinstance(action, Assign):
        return any(side == "source" for _, value in action.values for side, _ in find_columns(value))
    return isinstance(action, Replace)


def _make_hits_batch(hits: Hits) -> pa.RecordBatch:
    count = len(hits)
    sources = pa.nulls(count, pa.int64()) if hits.sources is None else hits.sources
    action = hits.action
    numbers = pa.repeat(pa.scalar(action, pa.int8()), count) if isinstance(action, int) else action
    return pa.record_batch([hits.positions, sources, numbers], schema=_HITS)


def read_hits(batch: pa.RecordBatch) -> Hits:
    """The hits that a batch of a note has."""
    positions, sources, action = batch.columns
    one = pc.min_max(action).as_py()
    return Hits(positions, action if one["min"] != one["max"] else one["min"], sources)


def probe_index(
    runner: TaskRunner, work: ProbeWork, files: Sequence[tuple[int, FilePlan]]
) -> list[ProbeResult]:
    """Look for the keys of the driver's index, which goes to every task, in numbered files."""
    weights = [item.file.size for _, item in files]
    shares = runner.make_shares(weights) if files else []
    return runner.run_each(
        probe_files,
        [[files[number] for number in share] for share in shares],
        shared=work,
        weights=[sum(weights[number] for number in share) for share in shares],
        room=work.notes.store,
    )


def refuse(matcher: MergeMatcher, scans: Sequence[FilePlan], found: Sequence[FileHits]) -> None:
    """Raise what makes the merge impossible, counted over all files; the matcher's own rows are not used."""
    failures = {scans[one.number].file.path: one.failure for one in found if one.failure is not None}
    matches: list[FileMatch] = []
    samples = [matcher.source.table.slice(0, 0)]
    shown = 0
    for item in matcher.plan.select("scan"):  # errors name the first of the plan's files
        failure = failures.get(item.file.path)
        if failure is None:
            continue
        moved = None
        if failure.samples is not None:
            first = arange(failure.samples.num_rows, shown)
            rest = pa.repeat(first[0], failure.moved - len(first))  # only counted
            moved = pa.concat_arrays([first, rest])
            shown += len(first)
            samples.append(failure.samples)
        match = FileMatch(
            item, Hits.make_empty(), nulls=dict(failure.nulls), moved=moved, several=failure.several
        )
        matches.append(match)
    source = replace(matcher.source, table=pa.concat_tables(samples))
    replace(matcher, source=source).refuse(matches)


def count_matches(plan: Plan, scans: Sequence[FilePlan], found: Sequence[FileHits], inserted: int) -> Matches:
    """What was found in all files together."""
    removed = plan.select("remove")
    paths = [(scans[one.number].file.path, one) for one in found]
    dropped = {item.file.path for item in removed} | {path for path, one in paths if one.emptied}
    return Matches(
        hits={
            path: Hits(one.positions)
            for path, one in paths
            if one.positions is not None and len(one.positions) and path not in dropped
        },
        counts={path: one.hits for path, one in paths if one.hits and not one.emptied},
        dropped=frozenset(dropped),
        inserted=inserted,
        updated=sum(one.hits - one.drops for one in found),
        deleted=sum(one.drops for one in found) + sum(item.file.rows for item in removed),
        scanned_bytes=plan.bytes_to_scan,
    )
