"""The order of a large group of files, built by many tasks: sampled, cut into ranges, written range by range.

Executors sample the clustering columns, and the driver cuts the order into ranges of about equal rows.
Executors deal all rows out to the ranges, in runs on the staging storage; each range is then sorted and
written by itself, so that the files of the group follow each other in the order. Rows stay Arrow all the
way: a type that Spark lacks loses nothing. Names of runs and files are of one attempt, and only those that
a successful task returns are read or committed; whatever else there is goes with the transaction.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import pyarrow as pa

from intarsia.core.change import StagedFile
from intarsia.core.files import DataFile
from intarsia.core.matches import Hits, Matches
from intarsia.core.plan import FileGroup, Plan
from intarsia.core.ports import Progress, Workplace
from intarsia.engines.arrow.indices import widen, widened
from intarsia.engines.arrow.optimize import NewFiles, order_of, stored_bytes
from intarsia.engines.arrow.ordering import Cuts, Order
from intarsia.engines.arrow.portions import Portion, Sorter
from intarsia.engines.arrow.regroup import check_rows, pieces_of
from intarsia.engines.arrow.runs import Run, RunWriter, read_batches
from intarsia.engines.arrow.sampling import (
    MOST_GROUPS,
    SAMPLE_ROWS,
    RowGroup,
    sample_row_groups,
    spread_row_groups,
)
from intarsia.engines.spark.crew import Attempt, Crew, balanced

RANGE_BYTES = 128 << 20
"""A group that fits in memory is built by ranges only above this size, where cores would be idle."""
_CORES_THAT_PAY = 3
"""Rows are written and read once more on the way, so two cores would gain nothing over one."""
MOST_RANGES = 2048
_RANGES_PER_FILE = 4
"""Several, so that files can be cut between them and a range fits in memory."""
LEAST_MEMORY = 1 << 16
"""Less is not worth a file of its own, however little memory a task is given."""
_RUN_BATCH = 1 << 16
_LEAST_BATCH = 1024

RUN = "run"


def planned_ranges(plan: Plan, *, memory_bytes: int, cores: int) -> dict[int, int]:
    """The groups that are built by ranges, by their number in the plan, and how many ranges at most.

    A group that becomes one file is one task's work, and so is one that fits in memory while other groups
    keep the cores busy.
    """
    if not order_of(plan).by:
        return {}
    sizes = [stored_bytes(group.files) for group in plan.groups]
    total = sum(sizes)
    found: dict[int, int] = {}
    for number, (group, size) in enumerate(zip(plan.groups, sizes, strict=True)):
        long = size > RANGE_BYTES and size * cores > _CORES_THAT_PAY * total
        known = all(file.footer is not None for file in group.files)
        if known and group.outputs > 1 and group.rows > 1 and (size > memory_bytes or long):
            wanted = max(_RANGES_PER_FILE * group.outputs, -(-4 * size // max(memory_bytes, LEAST_MEMORY)))
            found[number] = min(wanted, group.rows, MOST_RANGES)
    return found


def range_note(ranges: Mapping[int, int]) -> tuple[str, ...]:
    """What a plan says of the groups that are built by ranges."""
    if not ranges:
        return ()
    where = "one directory" if len(ranges) == 1 else f"{len(ranges):,} directories"
    return (f"The order of {where} is cut into up to {sum(ranges.values()):,} ranges, sorted independently.",)


def optimize_ranges(
    crew: Crew,
    plan: Plan,
    workplace: Workplace,
    ranges: Mapping[int, int],
    *,
    drops: Matches,
    memory_bytes: int,
    progress: Progress,
) -> list[StagedFile]:
    """Write the groups that :func:`planned_ranges` names, in order over all files of a group.

    Memory: a task needs a few times ``memory_bytes``; the driver a sample of the clustering columns and
    some bytes per run and range. Storage: the rows once more until the transaction ends.
    """
    work = RangeWork(_without_files(plan), workplace, memory_bytes)
    groups = [_Ranged(plan.groups[number], count) for number, count in ranges.items()]
    if not groups:
        return []
    size = sum(group.size for group in groups)
    crew = replace(crew, tasks=max(crew.tasks, -(-size // (8 * max(memory_bytes, LEAST_MEMORY)))))
    steps = len(groups)
    progress("sample rows", 0, steps)
    terms = _cut(crew, work, order_of(plan), groups)
    progress("deal out rows", 0, steps)
    runs = _dealt(crew, work, terms, groups, drops)
    jobs = [
        job for group, one, mine in zip(groups, terms, runs, strict=True) for job in _jobs(group, one, mine)
    ]
    progress("write files", 0, len(jobs))
    written = crew.each(write_range, jobs, shared=work, weights=[job.size for job in jobs])
    progress("write files", len(jobs), len(jobs))
    for number, group in enumerate(groups):
        mine = [
            file
            for job, files in zip(jobs, written, strict=True)
            if job.terms is terms[number]
            for file in files
        ]
        check_rows(mine, _rows_left(group.group, drops), group.group)
    return [file for files in written for file in files]


@dataclass(frozen=True, slots=True)
class RangeWork:
    """What every task knows."""

    plan: Plan
    workplace: Workplace
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class _Ranged:
    group: FileGroup
    ranges: int

    @property
    def size(self) -> int:
        return stored_bytes(self.group.files)


@dataclass(frozen=True, slots=True)
class Terms:
    """How the rows of one group are dealt out and written."""

    cuts: Cuts
    new: NewFiles
    read_rows: int
    """The most rows to read at once."""
    part_rows: int
    """About what a range holds; one that holds a single place of the order is cut into such parts."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Row groups of one file, and the rows of that file that are left out."""

    file: DataFile
    row_groups: range
    skip: Hits | None


def _without_files(plan: Plan) -> Plan:
    return replace(plan, files=(), groups=(), snapshot=replace(plan.snapshot, files=()))


def _rows_left(group: FileGroup, drops: Matches) -> int:
    kept = [file for file in group.files if file.path not in drops.dropped]
    return sum(file.rows - len(drops.hits.get(file.path, ())) for file in kept)


# ---------------------------------------------------------------------------------------------------
# Sampling and cutting.


def _cut(crew: Crew, work: RangeWork, order: Order, groups: Sequence[_Ranged]) -> list[Terms]:
    jobs: list[tuple[tuple[str, ...], list[RowGroup], float]] = []
    owners: list[int] = []
    for number, one in enumerate(groups):
        chosen = spread_row_groups(one.group.files, max(MOST_GROUPS, 2 * one.ranges))
        share = max(SAMPLE_ROWS, 32 * one.ranges) / max(sum(item.rows for item in chosen), 1)
        for mine in balanced([item.rows for item in chosen], crew.tasks):
            jobs.append((order.by, [chosen[at] for at in mine], share))
            owners.append(number)
    weights = [sum(item.rows for item in chosen) for _, chosen, _ in jobs]
    samples = crew.each(sample_range_keys, jobs, shared=work, weights=weights)
    return [
        _terms(
            work,
            order,
            one,
            pa.concat_tables(s for s, owner in zip(samples, owners, strict=True) if owner == n),
        )
        for n, one in enumerate(groups)
    ]


def sample_range_keys(work: RangeWork, job: tuple[tuple[str, ...], list[RowGroup], float]) -> pa.Table:
    """Some rows of the clustering columns; runs on an executor."""
    columns, chosen, share = job
    return sample_row_groups(chosen, columns, work.plan, share=share)


def _terms(work: RangeWork, order: Order, one: _Ranged, sample: pa.Table) -> Terms:
    order = order.measured(sample)
    group = one.group
    new = NewFiles.of(group, work.plan, work.workplace, order)
    light = replace(group, files=group.files[:1])
    return Terms(
        Cuts.of(sample, order, parts=one.ranges),
        replace(new, group=light),
        read_rows=max(_LEAST_BATCH, group.rows * work.memory_bytes // (4 * max(one.size, 1))),
        part_rows=max(group.rows // (_RANGES_PER_FILE * group.outputs), 1),
    )


# ---------------------------------------------------------------------------------------------------
# Dealing rows out.


def _dealt(
    crew: Crew, work: RangeWork, terms: Sequence[Terms], groups: Sequence[_Ranged], drops: Matches
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


# ---------------------------------------------------------------------------------------------------
# Writing the ranges.


@dataclass(frozen=True, slots=True)
class Stretch:
    """Batches of runs whose rows follow each other in the order: a range, or a part of an even one."""

    even: bool
    contents: pa.Table
    """As the runs tell, with the number of the run."""

    @property
    def rows(self) -> int:
        return sum(self.contents["rows"].to_pylist())

    @property
    def bytes(self) -> int:
        return sum(self.contents["bytes"].to_pylist())


@dataclass(frozen=True, slots=True)
class RangeJob:
    """Neighbouring ranges that become files of their own."""

    terms: Terms
    first: int
    """The number of the first file."""
    outputs: int
    stretches: tuple[Stretch, ...]
    locations: tuple[str, ...]
    """Of all runs of the group."""

    @property
    def size(self) -> int:
        return sum(stretch.bytes for stretch in self.stretches)


def _jobs(one: _Ranged, terms: Terms, runs: Sequence[Run]) -> list[RangeJob]:
    """The ranges of a group dealt out to files of about equal rows, cut between ranges."""
    locations = tuple(run.location for run in runs)
    stretches = list(_stretches(runs, terms))
    rows = [stretch.rows for stretch in stretches]
    jobs: list[RangeJob] = []
    first = 0
    for low, high, files in file_cuts(rows, one.group.outputs):
        jobs.append(RangeJob(terms, first, files, tuple(stretches[low:high]), locations))
        first += files
    return jobs


def _stretches(runs: Sequence[Run], terms: Terms) -> Iterator[Stretch]:
    """What all runs hold of each range, in order; an even range in parts, since any part may come first."""
    numbered = [
        run.contents.append_column(RUN, pa.repeat(pa.scalar(number, pa.int32()), run.contents.num_rows))
        for number, run in enumerate(runs)
    ]
    if not numbered:
        return
    keys = [("range", "ascending"), (RUN, "ascending"), ("batch", "ascending")]
    contents = pa.concat_tables(numbered).sort_by(keys).combine_chunks()
    even = terms.cuts.even
    ranges, rows = contents["range"].to_pylist(), contents["rows"].to_pylist()
    start = 0
    for number, members in groupby(ranges):
        stop = start + len(list(members))
        for low, high in _parts(rows, start, stop, terms.part_rows) if even[number] else [(start, stop)]:
            # Taken, not sliced: a slice would travel with all the rest.
            yield Stretch(even[number], contents.take(pa.array(range(low, high), pa.int64())))
        start = stop


def _parts(rows: Sequence[int], start: int, stop: int, most: int) -> Iterator[tuple[int, int]]:
    begin, count = start, 0
    for at in range(start, stop):
        count += rows[at]
        if count >= most or at + 1 == stop:
            yield begin, at + 1
            begin, count = at + 1, 0


def file_cuts(rows: Sequence[int], outputs: int) -> Iterator[tuple[int, int, int]]:
    """Neighbouring items (from, to) and how many files they make, so that files have about equal rows."""
    ends = [0]
    for count in rows:
        ends.append(ends[-1] + count)
    target = ends[-1] / max(outputs, 1)
    cuts = {0, len(rows)}
    for number in range(1, outputs):
        ideal = number * target
        at = bisect_left(ends, ideal)
        cuts.add(at if ends[at] - ideal <= ideal - ends[at - 1] else at - 1)
    for low, high in pairwise(sorted(cuts)):
        yield low, high, max(1, round((ends[high] - ends[low]) / target))


def write_range(work: RangeWork, job: RangeJob) -> list[StagedFile]:
    """Sort some ranges and write their files; runs on an executor."""
    tx = Attempt.at(work.workplace)
    new = replace(job.terms.new, tx=tx, first=job.first)
    sorter = Sorter(job.terms.cuts.order, max(work.memory_bytes, LEAST_MEMORY))
    portions = [_portion(tx, stretch, job.locations) for stretch in job.stretches]
    if all(map(sorter.fits, portions)):
        staged = new.write_portions(portions, job.outputs, sorter)
    else:
        with new.spill(widened(new.form.schema)) as spill:
            small = [leaf for portion in portions for leaf in sorter.split(spill, portion)]
            staged = new.write_portions(small, job.outputs, sorter)
    check_rows(staged, sum(portion.rows for portion in portions), new.group)
    return staged


def _portion(tx: Attempt, stretch: Stretch, locations: Sequence[str]) -> Portion:
    return Portion(stretch.rows, stretch.bytes, stretch.even, _reading(tx, stretch, locations))


def _reading(tx: Attempt, stretch: Stretch, locations: Sequence[str]) -> Callable[[], Iterator[pa.Table]]:
    runs, batches = stretch.contents[RUN].to_pylist(), stretch.contents["batch"].to_pylist()

    def read() -> Iterator[pa.Table]:
        filesystem = tx.staging.filesystem
        for run, members in groupby(zip(runs, batches, strict=True), key=lambda pair: pair[0]):
            yield from read_batches(filesystem, locations[run], [batch for _, batch in members])

    return read
