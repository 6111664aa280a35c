"""The rows of a large group of files dealt out to the ranges of its order, as runs on the staging storage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from intarsia.core.files import DataFile
from intarsia.core.matches import Hits, Matches
from intarsia.core.plan import FileGroup
from intarsia.engines.arrow.indices import widen, widened
from intarsia.engines.arrow.regroup import pieces_of
from intarsia.engines.arrow.runs import Run, RunWriter
from intarsia.engines.spark.crew import Attempt, Crew, balanced
from intarsia.engines.spark.range_terms import LEAST_MEMORY, Ranged, RangeWork, Terms

_RUN_BATCH = 1 << 16


@dataclass(frozen=True, slots=True)
class Slice:
    """Row groups of one file, and the rows of that file that are left out."""

    file: DataFile
    row_groups: range
    skip: Hits | None


def dealt(
    crew: Crew, work: RangeWork, terms: Sequence[Terms], groups: Sequence[Ranged], drops: Matches
) -> list[list[Run]]:
    """The runs of each group."""
    total = max(sum(group.size for group in groups), 1)
    jobs: list[tuple[Terms, list[Slice]]] = []
    owners: list[int] = []
    weights: list[int] = []
    for number, one in enumerate(groups):
        tasks = -(-crew.tasks * one.size // total)
        slices = list(_slices(one.group, drops, most=max(one.size // max(2 * tasks, 1), 1)))
        sizes = [_slice_bytes(item) for item in slices]
        for mine in balanced(sizes, tasks):
            jobs.append((terms[number], [slices[at] for at in mine]))
            owners.append(number)
            weights.append(sum(sizes[at] for at in mine))
    done = crew.each(deal_rows, jobs, shared=work, weights=weights)
    return [
        [run for runs, owner in zip(done, owners, strict=True) if owner == number for run in runs]
        for number in range(len(groups))
    ]


def _slices(group: FileGroup, drops: Matches, *, most: int) -> Iterator[Slice]:
    """The files with rows that stay; a large one in several slices of about ``most`` bytes."""
    for file in group.files:
        if not file.rows or file.path in drops.dropped:
            continue
        assert file.footer is not None
        begin, size = 0, 0
        for number in range(file.footer.num_row_groups):
            size += file.footer.row_group(number).total_byte_size
            if size >= most or number + 1 == file.footer.num_row_groups:
                yield Slice(file, range(begin, number + 1), drops.hits.get(file.path))
                begin, size = number + 1, 0


def _slice_bytes(one: Slice) -> int:
    assert one.file.footer is not None
    return sum(one.file.footer.row_group(number).total_byte_size for number in one.row_groups)


def deal_rows(work: RangeWork, job: tuple[Terms, list[Slice]]) -> list[Run]:
    """Write rows of some files as runs; runs on an executor."""
    terms, slices = job
    staging = Attempt.at(work.workplace).staging
    stored = terms.new.form.schema
    wide = widened(stored)
    writer = RunWriter(
        staging.filesystem,
        lambda number: staging.location(f"run-{number:05d}"),
        wide,
        terms.cuts,
        most_bytes=max(work.memory_bytes // 4, LEAST_MEMORY),
        batch_rows=min(terms.part_rows, _RUN_BATCH),
    )
    batch_rows = work.plan.intent.options.batch_rows or terms.read_rows
    for one in slices:
        pieces = pieces_of(
            one.file, work.plan, stored, skip=one.skip, batch_rows=batch_rows, row_groups=one.row_groups
        )
        for piece in pieces:
            writer.add(widen(piece, wide))
    return writer.finish()
