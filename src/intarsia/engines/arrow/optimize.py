"""Optimizing: the rows of each group in the order of a curve, in new files; on disk where memory is short."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import pyarrow as pa

from intarsia.common.schema import is_nested
from intarsia.core.change import Change, StagedFile
from intarsia.core.curve import CURVES, bits_for
from intarsia.core.files import DataFile
from intarsia.core.intent import Optimize
from intarsia.core.matches import Hits, Matches
from intarsia.core.plan import FileGroup, Plan
from intarsia.core.ports import Progress, Workplace
from intarsia.engines.arrow.duplicates import match_duplicates
from intarsia.engines.arrow.ordering import Cuts, Order
from intarsia.engines.arrow.overlay import take_rows
from intarsia.engines.arrow.regroup import Form, check_rows, form_of, pieces_of
from intarsia.engines.arrow.row_groups import RowGroups
from intarsia.engines.arrow.sampling import SAMPLE_ROWS, sample_rows, spread_rows
from intarsia.engines.arrow.spill import Bucket, Spill
from intarsia.engines.arrow.threads import in_order, shares
from intarsia.engines.arrow.writing import FileWriter
from intarsia.errors import ColumnNotFound, InputError

ROW_GROUP_ROWS = 122_880
"""Small row groups, so that their bounds exclude much."""
_MOST_BUCKETS = 128
_LEAST_BATCH = 1024
_OFF_TARGET = 0.25
"""By how much of a file a cut may miss, to save sorting a bucket for two files."""

_Source = Callable[[], Iterator[pa.Table]]


def stage_optimize(
    plan: Plan,
    tx: Workplace,
    *,
    threads: int,
    memory_bytes: int,
    progress: Progress,
    drops: Matches | None = None,
) -> Change:
    """Write the rows of each group anew, ordered along the curve over all of the group's new files.

    Duplicates, if asked for, are looked for over all groups and left out, unless ``drops`` names them. A
    group that does not fit in ``memory_bytes`` is sorted through temporary files in the staging
    directory, which are gone afterwards in every case. Nothing of the table changes.

    Raises:
        ColumnNotFound: a clustering column is not there.
        InputError: a clustering column is nested, there are too many, or the curve is unknown.
        DamagedTable: a file has not the rows its footer says.
    """
    intent = plan.intent
    assert isinstance(intent, Optimize)
    order = _order(plan, intent)
    files = tuple(file for group in plan.groups for file in group.files)
    deduplicate = intent.deduplicate or bool(intent.deduplicate_keys)
    if drops is None and deduplicate:
        drops = match_duplicates(
            plan,
            keys=intent.deduplicate_keys,
            order_by=intent.dedup_order_by,
            threads=threads,
            memory_bytes=memory_bytes,
            progress=progress,
            files=files,
        )
    outer, inner = shares(threads, len(plan.groups))
    tasks = list(_tasks(plan, tx, order, drops or Matches()))

    def work(task: _Task) -> list[StagedFile]:
        return replace(task, threads=inner, memory_bytes=max(memory_bytes // outer, 1)).staged()

    staged: list[StagedFile] = []
    for number, written in enumerate(in_order(work, tasks, threads=outer)):
        staged += written
        progress("write files", number + 1, len(tasks))
    return Change(
        plan.operation,
        added=tuple(staged),
        removed=files,
        planned=files,
        exclusive=deduplicate,
        properties=intent.properties,
    )


def _order(plan: Plan, intent: Optimize) -> Order:
    path, schema = plan.snapshot.root, plan.schema
    if intent.curve not in CURVES:
        known = ", ".join(map(repr, CURVES))
        raise InputError(
            f"{plan.operation}: curve={intent.curve!r} is not known.", path=path, hint=f"use one of {known}."
        )
    absent = [name for name in intent.by if name not in schema.names]
    if absent:
        raise ColumnNotFound(
            f"{plan.operation}: there is no column {', '.join(map(repr, absent))} to order by.",
            path=path,
            hint=f"the columns are {', '.join(schema.names)}.",
        )
    bad = [
        name
        for name in intent.by
        if is_nested(schema.field(name).type) or pa.types.is_interval(schema.field(name).type)
    ]
    if bad:
        raise InputError(
            f"{plan.operation}: {', '.join(f'{name!r} ({schema.field(name).type})' for name in bad)}"
            " has no order to cluster by.",
            path=path,
            hint="name columns of plain types.",
        )
    # Constant within a directory, so it orders nothing there.
    fixed = set(plan.snapshot.partition_columns)
    by = tuple(dict.fromkeys(name for name in intent.by if name not in fixed))
    if intent.curve != "linear" and len(by) > 1:
        bits_for(len(by))
    return Order(by, intent.curve)


def _tasks(plan: Plan, tx: Workplace, order: Order, drops: Matches) -> Iterator[_Task]:
    first = 0
    for group in plan.groups:
        files = tuple(file for file in group.files if file.rows and file.path not in drops.dropped)
        skip = {file.path: drops.hits[file.path] for file in files if file.path in drops.hits}
        rows = sum(file.rows for file in files) - sum(len(hits) for hits in skip.values())
        form = _form(group, plan, tx, order)
        yield _Task(plan, tx, group, files, skip, rows, order, form, first)
        first += max(group.outputs, 1)


def _form(group: FileGroup, plan: Plan, tx: Workplace, order: Order) -> Form:
    form = form_of(group, plan, tx.txid)
    sorting = tuple((name, False, False) for name in order.by) if order.plain else ()
    layout = replace(form.layout, sorting=sorting, plain=frozenset())
    if plan.intent.options.row_group_size is None:
        layout = layout.with_row_group_rows(min(layout.row_group_rows, ROW_GROUP_ROWS))
    return replace(form, layout=layout)


@dataclass(frozen=True, slots=True)
class _Task:
    """One group of files to be ordered."""

    plan: Plan
    tx: Workplace
    group: FileGroup
    files: tuple[DataFile, ...]
    """Those with rows that stay."""
    skip: dict[str, Hits]
    rows: int
    order: Order
    form: Form
    first: int
    """The number of the first new file."""
    threads: int = 1
    memory_bytes: int = 0

    def staged(self) -> list[StagedFile]:
        """The new files. A group without rows becomes one empty file, unless duplicates emptied it."""
        if not self.rows and self.group.rows:
            return []
        if not self.order.by:
            staged = self._as_they_are()
        else:
            tables = self._in_memory()
            staged = self._on_disk() if tables is None else self._sorted_in_memory(tables)
        check_rows(staged, self.rows, self.group)
        return staged

    def _pieces(self, file: DataFile, batch_rows: int | None = None) -> Iterator[pa.Table]:
        rows = self.plan.intent.options.batch_rows or batch_rows
        return pieces_of(file, self.plan, self.form.schema, skip=self.skip.get(file.path), batch_rows=rows)

    @property
    def _bytes(self) -> int:
        return sum(_stored_bytes(file) for file in self.files)

    def _edges(self) -> list[int]:
        """Where each new file begins and the last one ends, in rows."""
        count = max(1, min(self.group.outputs, self.rows))
        return [self.rows * number // count for number in range(count + 1)]

    def _in_memory(self) -> list[pa.Table] | None:
        """All rows, or None as soon as they turn out not to fit."""
        if self._bytes > self.memory_bytes:
            return None
        size = 0
        tables: list[pa.Table] = [self.form.schema.empty_table()]
        # Footers tell encoded sizes: what a dictionary holds once may be there a thousand times.
        with closing(in_order(lambda f: list(self._pieces(f)), self.files, threads=self.threads)) as read:
            for pieces in read:
                tables += pieces
                size += sum(piece.nbytes for piece in pieces)
                if size > self.memory_bytes:
                    return None
        return tables

    def _sorted_in_memory(self, tables: list[pa.Table]) -> list[StagedFile]:
        table, indices = _with_order(tables, self.order)
        edges = self._edges()

        def write(number: int) -> StagedFile:
            mine = indices.slice(edges[number], edges[number + 1] - edges[number])
            size = _even_rows(len(mine), self.form.layout.row_group_rows)
            with self._writer(number) as writer:
                for start in range(0, len(mine), size):
                    writer.write(take_rows(table, mine.slice(start, size)))
                return writer.close(self._place(number), self.group.partition)

        return list(in_order(write, range(len(edges) - 1), threads=self.threads))

    def _as_they_are(self) -> list[StagedFile]:
        """With no column to order by, the rows file by file."""
        staged: list[StagedFile] = []
        pieces = (piece for file in self.files for piece in self._pieces(file))
        left = self.form.schema.empty_table()
        for number, (low, high) in enumerate(pairwise(self._edges())):
            with self._writer(number) as writer:
                row_groups = self._row_groups(writer, high - low)
                missing = high - low
                while missing:
                    piece = left if left.num_rows else next(pieces)
                    row_groups.add(piece.slice(0, missing))
                    left = piece.slice(missing)
                    missing -= min(missing, piece.num_rows)
                row_groups.finish()
                staged.append(writer.close(self._place(number), self.group.partition))
        return staged

    @contextmanager
    def _writer(self, number: int) -> Iterator[FileWriter]:
        writer = self.form.writer(self.tx, f"optimized-{self.first + number:05d}")
        try:
            yield writer
        finally:
            writer.abandon()

    def _place(self, number: int) -> str:
        return self.tx.place(
            self.group.partition, "optimized", self.first + number, beside=self.group.files[0]
        )

    def _row_groups(self, writer: FileWriter, rows: int) -> RowGroups:
        """Row groups for rows that come in order."""
        size = _even_rows(rows, self.form.layout.row_group_rows)
        return RowGroups(writer, replace(self.form.layout, row_group_rows=size, sorting=()))

    def _on_disk(self) -> list[StagedFile]:
        """Deal rows out into buckets along the order, then sort and write bucket by bucket."""
        staging = self.tx.staging
        directory = f"{staging.directory}/sort-{self.first:05d}"
        with Spill(staging.filesystem, directory, self.form.schema) as spill:
            order, buckets = self._dealt(spill)
            outputs = list(enumerate(_spans(buckets, self.group.outputs)))

            def write(item: tuple[int, list[_Span]]) -> StagedFile:
                number, spans = item
                with self._writer(number) as writer:
                    row_groups = self._row_groups(writer, sum(span.stop - span.start for span in spans))
                    for span in spans:
                        for piece in self._ordered(spill, order, span):
                            row_groups.add(piece)
                    row_groups.finish()
                    return writer.close(self._place(number), self.group.partition)

            return list(in_order(write, outputs, threads=self.threads))

    @property
    def _share(self) -> int:
        """The memory for one bucket that is being sorted."""
        return max(self.memory_bytes // self.threads, 1)

    def _dealt(self, spill: Spill) -> tuple[Order, list[Bucket]]:
        sample = sample_rows(self.files, self.order.by, self.plan, threads=self.threads)
        order = self.order.measured(sample)
        parts = max(self.group.outputs, -(-2 * self._bytes // self._share))
        cuts = Cuts.of(sample, order, parts=max(2, min(parts, _MOST_BUCKETS)))
        batch_rows = max(_LEAST_BATCH, self.rows * self._share // (4 * max(self._bytes, 1)))

        def rows(file: DataFile) -> Iterator[pa.Table]:
            return self._pieces(file, batch_rows)

        buckets = self._deal(spill, cuts, [partial(rows, file) for file in self.files])
        return order, [small for bucket in buckets for small in self._split(spill, bucket, order)]

    def _deal(self, spill: Spill, cuts: Cuts, sources: Sequence[_Source]) -> list[Bucket]:
        deal = spill.deal(cuts.even, most_bytes=self._share)

        def one(source: _Source) -> None:
            for piece in source():
                deal.add(piece, cuts.buckets(piece))

        try:
            for _ in in_order(one, sources, threads=self.threads):
                pass
            return deal.finish()
        finally:
            deal.abandon()

    def _split(self, spill: Spill, bucket: Bucket, order: Order) -> list[Bucket]:
        """A bucket that is too large to be sorted in memory, as smaller ones."""
        if bucket.even or bucket.bytes <= self._share:
            return [bucket]
        share = SAMPLE_ROWS / bucket.rows
        sample = pa.concat_tables(
            spread_rows(piece.select(order.by), int(piece.num_rows * share) + 1)
            for piece in spill.read(bucket)
        )
        parts = max(2, min(-(-2 * bucket.bytes // self._share), _MOST_BUCKETS))
        smaller = self._deal(spill, Cuts.of(sample, order, parts=parts), [partial(spill.read, bucket)])
        spill.remove(bucket)
        if len(smaller) == 1:  # no cut was found
            return smaller
        return [leaf for small in smaller for leaf in self._split(spill, small, order)]

    def _ordered(self, spill: Spill, order: Order, span: _Span) -> Iterator[pa.Table]:
        """The rows of a span in order; those of an even bucket as they come."""
        if span.bucket.even:
            start = 0
            for piece in spill.read(span.bucket):
                low, high = max(span.start - start, 0), min(span.stop - start, piece.num_rows)
                start += piece.num_rows
                if low < high:
                    yield piece.slice(low, high - low)
            return
        table, indices = _with_order(list(spill.read(span.bucket)), order)
        indices = indices.slice(span.start, span.stop - span.start)
        size = self.form.layout.row_group_rows
        for start in range(0, len(indices), size):
            yield take_rows(table, indices.slice(start, size))


@dataclass(frozen=True, slots=True)
class _Span:
    """Some rows of a bucket, counted in its order."""

    bucket: Bucket
    start: int
    stop: int


def _spans(buckets: Sequence[Bucket], outputs: int) -> list[list[_Span]]:
    """The buckets dealt out to files of about equal rows, cut between buckets where that comes close."""
    ends = [0]
    for bucket in buckets:
        ends.append(ends[-1] + bucket.rows)
    total = ends[-1]
    target = total / max(outputs, 1)
    cuts = {0, total}
    for number in range(1, outputs):
        ideal = round(number * target)
        edge = min(ends, key=lambda end: abs(end - ideal))
        cuts.add(edge if abs(edge - ideal) <= target * _OFF_TARGET else ideal)
    ordered = sorted(cuts)
    result = []
    for low, high in pairwise(ordered):
        spans = [
            _Span(bucket, max(low - begin, 0), min(high - begin, bucket.rows))
            for bucket, begin in zip(buckets, ends, strict=False)
            if begin < high and begin + bucket.rows > low
        ]
        result.append(spans)
    return result


def _even_rows(rows: int, most: int) -> int:
    """The size of row groups that are all about equal and none larger than ``most``."""
    return max(1, -(-rows // max(1, -(-rows // most))))


def _with_order(tables: list[pa.Table], order: Order) -> tuple[pa.Table, pa.Array]:
    """All rows, and their numbers in order. Empties the list, so that memory holds each column once.

    Columns are in one piece, where their type allows: gathering rows is then many times faster.
    """
    table = pa.concat_tables(tables)
    tables.clear()
    indices = order.indices(table)
    schema, columns = table.schema, table.columns
    del table
    for number, column in enumerate(columns):
        columns[number] = column.combine_chunks()
        del column
    return pa.table(columns, schema=schema), indices


def _stored_bytes(file: DataFile) -> int:
    footer = file.footer
    if footer is None:
        return file.size * 4
    return sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
