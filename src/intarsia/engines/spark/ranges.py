"""The ranges of a large group of files: its order cut by a sample, rows written as runs, files from runs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import pyarrow as pa

from intarsia.core.change import Hits, Matches, StagedFile, Staging
from intarsia.core.plan import FileGroup, Plan
from intarsia.core.ports import OutputLocation
from intarsia.core.snapshot import DataFile
from intarsia.engines.spark.staging import AttemptOutput, open_attempt
from intarsia.engines.spark.tasks import TaskRunner, balance
from intarsia.kernel.compact import check_rows, read_pieces
from intarsia.kernel.optimize import NewFiles, count_stored_bytes
from intarsia.kernel.sort import (
    MOST_GROUPS,
    SAMPLE_ROWS,
    Cuts,
    Order,
    RowGroup,
    sample_row_groups,
    spread_row_groups,
)
from intarsia.kernel.spill import Portion, RunWriter, Sorter, SpilledRun, read_batches
from intarsia.kernel.write import widen, widen_schema

RANGES_PER_FILE = 4
"""Several, so that files can be cut between them and a range fits in memory."""
LEAST_MEMORY = 1 << 16
"""Less is not worth a file of its own, however little memory a task is given."""
_LEAST_BATCH = 1024
_RUN_BATCH = 1 << 16
_RUN = "run"


@dataclass(frozen=True, slots=True)
class RangeWork:
    """What every task knows."""

    plan: Plan
    output: OutputLocation
    memory_bytes: int
    runs: Staging
    """Where rows wait between their files and their range: storage that every task can read."""


@dataclass(frozen=True, slots=True)
class RangedGroup:
    """A group of files, and into how many ranges its order is cut."""

    group: FileGroup
    ranges: int

    @property
    def size(self) -> int:
        return count_stored_bytes(self.group.files)


@dataclass(frozen=True, slots=True)
class RangeTerms:
    """How the rows of one group are divided into ranges and written."""

    cuts: Cuts
    new: NewFiles
    read_rows: int
    """The most rows to read at once."""
    part_rows: int
    """About what a range holds; one that holds a single place of the order is cut into such parts."""


def cut_ranges(
    runner: TaskRunner, work: RangeWork, order: Order, groups: Sequence[RangedGroup]
) -> list[RangeTerms]:
    """Executors sample the clustering columns of each group, and its order is cut by the sample."""
    jobs: list[tuple[tuple[str, ...], list[RowGroup], float]] = []
    owners: list[int] = []
    for number, one in enumerate(groups):
        chosen = spread_row_groups(one.group.files, max(MOST_GROUPS, 2 * one.ranges))
        share = max(SAMPLE_ROWS, 32 * one.ranges) / max(sum(item.rows for item in chosen), 1)
        for mine in balance([item.rows for item in chosen], runner.tasks):
            jobs.append((order.by, [chosen[at] for at in mine], share))
            owners.append(number)
    weights = [sum(item.rows for item in chosen) for _, chosen, _ in jobs]
    samples = runner.run_each(sample_range_keys, jobs, shared=work, weights=weights)
    return [
        _make_terms(
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


def _make_terms(work: RangeWork, order: Order, one: RangedGroup, sample: pa.Table) -> RangeTerms:
    order = order.with_boundaries(sample)
    group = one.group
    new = NewFiles.of(group, work.plan, work.output, order)
    light = replace(group, files=group.files[:1])
    return RangeTerms(
        Cuts.of(sample, order, parts=one.ranges),
        replace(new, group=light),
        read_rows=max(_LEAST_BATCH, group.rows * work.memory_bytes // (4 * max(one.size, 1))),
        part_rows=max(group.rows // (RANGES_PER_FILE * group.outputs), 1),
    )


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Row groups of one file, and the rows of that file that are left out."""

    file: DataFile
    row_groups: range
    skip: Hits | None


def write_runs(
    runner: TaskRunner,
    work: RangeWork,
    terms: Sequence[RangeTerms],
    groups: Sequence[RangedGroup],
    drops: Matches,
) -> list[list[SpilledRun]]:
    """The runs of each group."""
    total = max(sum(group.size for group in groups), 1)
    jobs: list[tuple[RangeTerms, list[FileSlice]]] = []
    owners: list[int] = []
    weights: list[int] = []
    for number, one in enumerate(groups):
        tasks = -(-runner.tasks * one.size // total)
        slices = list(_slice_files(one.group, drops, most=max(one.size // max(2 * tasks, 1), 1)))
        sizes = [_count_bytes(item) for item in slices]
        for mine in balance(sizes, tasks):
            jobs.append((terms[number], [slices[at] for at in mine]))
            owners.append(number)
            weights.append(sum(sizes[at] for at in mine))
    done = runner.run_each(write_run, jobs, shared=work, weights=weights)
    return [
        [run for runs, owner in zip(done, owners, strict=True) if owner == number for run in runs]
        for number in range(len(groups))
    ]


def _slice_files(group: FileGroup, drops: Matches, *, most: int) -> Iterator[FileSlice]:
    """The files with rows that stay; a large one in several slices of about ``most`` bytes."""
    for file in group.files:
        if not file.rows or file.path in drops.dropped:
            continue
        assert file.footer is not None
        begin, size = 0, 0
        for number in range(file.footer.num_row_groups):
            size += file.footer.row_group(number).total_byte_size
            if size >= most or number + 1 == file.footer.num_row_groups:
                yield FileSlice(file, range(begin, number + 1), drops.hits.get(file.path))
                begin, size = number + 1, 0


def _count_bytes(one: FileSlice) -> int:
    assert one.file.footer is not None
    return sum(one.file.footer.row_group(number).total_byte_size for number in one.row_groups)


def write_run(work: RangeWork, job: tuple[RangeTerms, list[FileSlice]]) -> list[SpilledRun]:
    """Write rows of some files as runs; runs on an executor."""
    terms, slices = job
    staging = replace(work.runs, attempt=AttemptOutput.at(work.output).attempt)
    stored = terms.new.form.schema
    wide = widen_schema(stored)
    writer = RunWriter(
        staging.filesystem,
        lambda number: staging.make_location(f"run-{number:05d}"),
        wide,
        terms.cuts,
        most_bytes=max(work.memory_bytes // 4, LEAST_MEMORY),
        batch_rows=min(terms.part_rows, _RUN_BATCH),
    )
    batch_rows = work.plan.intent.options.batch_rows or terms.read_rows
    for one in slices:
        pieces = read_pieces(
            one.file, work.plan, stored, skip=one.skip, batch_rows=batch_rows, row_groups=one.row_groups
        )
        for piece in pieces:
            writer.add(widen(piece, wide))
    return writer.finish()


@dataclass(frozen=True, slots=True)
class RangePiece:
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

    terms: RangeTerms
    first: int
    """The number of the first file."""
    outputs: int
    pieces: tuple[RangePiece, ...]
    locations: tuple[str, ...]
    """Of all runs of the group."""

    @property
    def size(self) -> int:
        return sum(piece.bytes for piece in self.pieces)


def make_range_jobs(one: RangedGroup, terms: RangeTerms, runs: Sequence[SpilledRun]) -> list[RangeJob]:
    """The ranges of a group divided into files of about equal rows, cut between ranges."""
    locations = tuple(run.location for run in runs)
    pieces = list(_iterate_range_pieces(runs, terms))
    rows = [piece.rows for piece in pieces]
    jobs: list[RangeJob] = []
    first = 0
    for low, high, files in cut_files(rows, one.group.outputs):
        jobs.append(RangeJob(terms, first, files, tuple(pieces[low:high]), locations))
        first += files
    return jobs


def _iterate_range_pieces(runs: Sequence[SpilledRun], terms: RangeTerms) -> Iterator[RangePiece]:
    """What all runs hold of each range, in order; an even range in parts, since any part may come first."""
    numbered = [
        run.contents.append_column(_RUN, pa.repeat(pa.scalar(number, pa.int32()), run.contents.num_rows))
        for number, run in enumerate(runs)
    ]
    if not numbered:
        return
    keys = [("range", "ascending"), (_RUN, "ascending"), ("batch", "ascending")]
    contents = pa.concat_tables(numbered).sort_by(keys).combine_chunks()
    even = terms.cuts.even
    ranges, rows = contents["range"].to_pylist(), contents["rows"].to_pylist()
    start = 0
    for number, members in groupby(ranges):
        stop = start + len(list(members))
        for low, high in (
            _split_parts(rows, start, stop, terms.part_rows) if even[number] else [(start, stop)]
        ):
            # Taken, not sliced: a slice would travel with all the rest.
            yield RangePiece(even[number], contents.take(pa.array(range(low, high), pa.int64())))
        start = stop


def _split_parts(rows: Sequence[int], start: int, stop: int, most: int) -> Iterator[tuple[int, int]]:
    begin, count = start, 0
    for at in range(start, stop):
        count += rows[at]
        if count >= most or at + 1 == stop:
            yield begin, at + 1
            begin, count = at + 1, 0


def cut_files(rows: Sequence[int], outputs: int) -> Iterator[tuple[int, int, int]]:
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
    with open_attempt(work.output, work.plan.snapshot) as tx:
        new = replace(job.terms.new, tx=tx, first=job.first)
        sorter = Sorter(job.terms.cuts.order, max(work.memory_bytes, LEAST_MEMORY))
        portions = [_make_portion(work.runs, piece, job.locations) for piece in job.pieces]
        if all(map(sorter.fits, portions)):
            staged = new.write_portions(portions, job.outputs, sorter)
        else:
            with new.spill(widen_schema(new.form.schema)) as spill:
                small = [leaf for portion in portions for leaf in sorter.split(spill, portion)]
                staged = new.write_portions(small, job.outputs, sorter)
        check_rows(staged, sum(portion.rows for portion in portions), new.group)
        return staged


def _make_portion(runs: Staging, piece: RangePiece, locations: Sequence[str]) -> Portion:
    return Portion(piece.rows, piece.bytes, piece.even, _make_reader(runs, piece, locations))


def _make_reader(
    at: Staging, piece: RangePiece, locations: Sequence[str]
) -> Callable[[], Iterator[pa.Table]]:
    runs, batches = piece.contents[_RUN].to_pylist(), piece.contents["batch"].to_pylist()

    def read() -> Iterator[pa.Table]:
        for run, members in groupby(zip(runs, batches, strict=True), key=lambda pair: pair[0]):
            yield from read_batches(at.filesystem, locations[run], [batch for _, batch in members])

    return read
