"""What became of each file of a merge whose hits stayed with the tasks that found them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from intarsia.core.change import StagedFile
from intarsia.core.keys import arange
from intarsia.core.matches import Hits, Matches
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.problems import SAMPLES
from intarsia.engines.arrow.matching import FileMatch, MergeMatcher
from intarsia.engines.arrow.overlay import take_rows


@dataclass(frozen=True, slots=True)
class Trouble:
    """What of one file makes a merge impossible; told when all files have been looked at."""

    nulls: Mapping[str, int] = field(default_factory=dict)
    several: int = 0
    moved: int = 0
    samples: pa.Table | None = None
    """Some of the source rows that would have to leave the file's partition."""

    @staticmethod
    def of(match: FileMatch, source: pa.Table) -> Trouble | None:
        moved = match.moved
        if not (match.nulls or match.several or moved is not None):
            return None
        if moved is None:
            return Trouble(match.nulls, match.several)
        return Trouble(match.nulls, match.several, len(moved), take_rows(source, moved.slice(0, SAMPLES)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one file."""

    path: str
    hits: int
    drops: int
    emptied: bool
    staged: StagedFile | None
    matched: str | None = None
    """The file of numbers of source rows that found a match in it, where they are noted."""
    trouble: Trouble | None = None
    added: tuple[StagedFile, ...] = ()
    """New files that its rows were carried into, where files are never replaced."""
    positions: pa.Int64Array | None = None
    """Of the hits, where they are to be veiled."""


def refuse(matcher: MergeMatcher, scans: Sequence[FilePlan], outcomes: Sequence[Outcome]) -> None:
    """Raise what makes the merge impossible, counted over all files; the matcher's own rows are not used."""
    troubles = {one.path: one.trouble for one in outcomes if one.trouble is not None}
    found: list[FileMatch] = []
    samples = [matcher.source.table.slice(0, 0)]
    shown = 0
    for item in scans:
        trouble = troubles.get(item.file.path)
        if trouble is None:
            continue
        moved = None
        if trouble.samples is not None:
            first = arange(trouble.samples.num_rows, shown)
            rest = pa.repeat(first[0], trouble.moved - len(first))  # only counted
            moved = pa.concat_arrays([first, rest])
            shown += len(first)
            samples.append(trouble.samples)
        match = FileMatch(item, Hits.empty(), nulls=dict(trouble.nulls), moved=moved, several=trouble.several)
        found.append(match)
    source = replace(matcher.source, table=pa.concat_tables(samples))
    replace(matcher, source=source).refuse(found)


def matches_of(plan: Plan, outcomes: Sequence[Outcome], inserted: int) -> Matches:
    """All of them together."""
    removed = plan.chosen("remove")
    dropped = {item.file.path for item in removed} | {o.path for o in outcomes if o.emptied}
    veiled = {o.path: Hits(o.positions) for o in outcomes if o.positions is not None and len(o.positions)}
    return Matches(
        hits={path: hits for path, hits in veiled.items() if path not in dropped},
        counts={o.path: o.hits for o in outcomes if o.hits and not o.emptied},
        dropped=frozenset(dropped),
        inserted=inserted,
        updated=sum(o.hits - o.drops for o in outcomes),
        deleted=sum(o.drops for o in outcomes) + sum(item.file.rows for item in removed),
        scanned_bytes=plan.bytes_to_scan,
    )
