"""The files of a large group, written from runs: each takes neighbouring ranges and sorts them one by one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import pyarrow as pa

from intarsia.core.change import StagedFile
from intarsia.core.ports import Workplace
from intarsia.engines.arrow.indices import widened
from intarsia.engines.arrow.portions import Portion, Sorter
from intarsia.engines.arrow.regroup import check_rows
from intarsia.engines.arrow.runs import Run, read_batches
from intarsia.engines.spark.attempts import attempt_at
from intarsia.engines.spark.range_terms import LEAST_MEMORY, Ranged, RangeWork, Terms

_RUN = "run"


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


def range_jobs(one: Ranged, terms: Terms, runs: Sequence[Run]) -> list[RangeJob]:
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
    with attempt_at(work.workplace, work.plan.snapshot) as tx:
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


def _portion(tx: Workplace, stretch: Stretch, locations: Sequence[str]) -> Portion:
    return Portion(stretch.rows, stretch.bytes, stretch.even, _reading(tx, stretch, locations))


def _reading(tx: Workplace, stretch: Stretch, locations: Sequence[str]) -> Callable[[], Iterator[pa.Table]]:
    runs, batches = stretch.contents[_RUN].to_pylist(), stretch.contents["batch"].to_pylist()

    def read() -> Iterator[pa.Table]:
        filesystem = tx.staging.filesystem
        for run, members in groupby(zip(runs, batches, strict=True), key=lambda pair: pair[0]):
            yield from read_batches(filesystem, locations[run], [batch for _, batch in members])

    return read
