"""What became of each file of a merge whose hits stayed with the tasks that found them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from intarsia.core.change import Hits, Matches, StagedFile
from intarsia.core.keys import arange
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.validation import SAMPLES
from intarsia.kernel.match import FileMatch, MergeMatcher
from intarsia.kernel.overlay import take_rows


@dataclass(frozen=True, slots=True)
class ValidationFailure:
    """What of one file makes a merge impossible; told when all files have been looked at."""

    nulls: Mapping[str, int] = field(default_factory=dict)
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
        return ValidationFailure(
            match.nulls, match.several, len(moved), take_rows(source, moved.slice(0, SAMPLES))
        )


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """What became of one file."""

    path: str
    hits: int
    drops: int
    emptied: bool
    staged: StagedFile | None
    matched: str | None = None
    """The file of numbers of source rows that found a match in it, where they are noted."""
    failure: ValidationFailure | None = None
    added: tuple[StagedFile, ...] = ()
    """New files that its rows were copied into, where files are never replaced."""
    positions: pa.Int64Array | None = None
    """Positions of the hits, where position deletes are written."""


def refuse(matcher: MergeMatcher, scans: Sequence[FilePlan], outcomes: Sequence[FileOutcome]) -> None:
    """Raise what makes the merge impossible, counted over all files; the matcher's own rows are not used."""
    failures = {one.path: one.failure for one in outcomes if one.failure is not None}
    found: list[FileMatch] = []
    samples = [matcher.source.table.slice(0, 0)]
    shown = 0
    for item in scans:
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
        match = FileMatch(item, Hits.empty(), nulls=dict(failure.nulls), moved=moved, several=failure.several)
        found.append(match)
    source = replace(matcher.source, table=pa.concat_tables(samples))
    replace(matcher, source=source).refuse(found)


def matches_of(plan: Plan, outcomes: Sequence[FileOutcome], inserted: int) -> Matches:
    """All of them together."""
    removed = plan.select("remove")
    dropped = {item.file.path for item in removed} | {o.path for o in outcomes if o.emptied}
    position_deletes = {
        o.path: Hits(o.positions) for o in outcomes if o.positions is not None and len(o.positions)
    }
    return Matches(
        hits={path: hits for path, hits in position_deletes.items() if path not in dropped},
        counts={o.path: o.hits for o in outcomes if o.hits and not o.emptied},
        dropped=frozenset(dropped),
        inserted=inserted,
        updated=sum(o.hits - o.drops for o in outcomes),
        deleted=sum(o.drops for o in outcomes) + sum(item.file.rows for item in removed),
        scanned_bytes=plan.bytes_to_scan,
    )
