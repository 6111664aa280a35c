"""Compacting: the files of each group streamed into one staged file; which files is the plan's to say."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from intarsia.core.change import Change, StagedFile
from intarsia.core.files import DataFile
from intarsia.core.intent import Compact
from intarsia.core.plan import FileGroup, Plan
from intarsia.core.ports import Progress, Workplace
from intarsia.engines.arrow.fan_out import FreshForm, dealt_out
from intarsia.engines.arrow.indices import NarrowingSink, widen, widened
from intarsia.engines.arrow.reading import PIECE_BYTES
from intarsia.engines.arrow.regroup import check_rows, form_of, pieces_of, regrouped
from intarsia.engines.arrow.row_groups import RowGroups
from intarsia.engines.arrow.threads import in_order, shares


def stage_compact(plan: Plan, tx: Workplace, *, threads: int, progress: Progress) -> Change:
    """Write each group of the plan as one file, its rows in the order of the files.

    Small row groups come together up to the size the group's largest file has, or
    ``options.row_group_size``. Rows keep an order that every file of the group declares, within each
    row group. Memory: about a row group per group at work. Nothing of the table changes.

    Raises:
        DamagedTable: a file has not the rows its footer says.
    """
    groups = list(enumerate(plan.groups))
    outer, readers = shares(threads, len(groups))

    def work(item: tuple[int, FileGroup]) -> list[StagedFile]:
        number, group = item
        if plan.snapshot.spread is not None:
            return compact_dealt(group, plan, tx, number=number, readers=readers)
        return [compact_group(group, plan, tx, number=number, readers=readers)]

    staged: list[StagedFile] = []
    for done, files in enumerate(in_order(work, groups, threads=outer)):
        staged += files
        progress("write files", done + 1, len(groups))
    return regrouped(plan, staged, exclusive=False)


def compact_group(
    group: FileGroup, plan: Plan, tx: Workplace, *, number: int, readers: int = 1
) -> StagedFile:
    """One group as one staged file; ``number`` tells it from the plan's other groups."""
    form = form_of(group, plan, tx.txid)
    writer = form.writer(tx, f"compact-{number:05d}")
    try:
        row_groups = RowGroups(NarrowingSink(writer, form.schema), form.layout)
        wide = widened(form.schema)
        for piece in _rows(group, plan, form.schema, readers=readers):
            row_groups.add(widen(piece, wide))
        row_groups.finish()
        staged = writer.close(
            tx.place(group.partition, "compact", number, beside=group.files[0]), group.partition
        )
    finally:
        writer.abandon()
    check_rows([staged], group.rows, group)
    return staged


def compact_dealt(
    group: FileGroup, plan: Plan, tx: Workplace, *, number: int, readers: int = 1
) -> list[StagedFile]:
    """One group written anew under the table's own partitioning, without the rows that are dead."""
    intent = plan.intent
    assert isinstance(intent, Compact)
    form = FreshForm.of(plan, tx, lineage=True, target_bytes=intent.target_bytes, rows=intent.target_rows)
    staged = dealt_out(form, tx, f"compact-{number:05d}", _rows(group, plan, form.schema, readers=readers))
    check_rows(staged, group.rows, group)
    return staged


def _rows(group: FileGroup, plan: Plan, schema: pa.Schema, *, readers: int) -> Iterator[pa.Table]:
    """All rows in file order; small files are read ahead, large ones piece by piece."""

    def whole(file: DataFile) -> list[pa.Table]:
        return list(pieces_of(file, plan, schema, batch_rows=plan.intent.options.batch_rows))

    for small, run in _runs(group.files):
        if small:
            for pieces in in_order(whole, run, threads=readers):
                yield from pieces
        else:
            for file in run:
                yield from pieces_of(file, plan, schema, batch_rows=plan.intent.options.batch_rows)


def _runs(files: tuple[DataFile, ...]) -> Iterator[tuple[bool, list[DataFile]]]:
    """Neighbouring files that are all small enough to be held whole, or all not."""
    run: list[DataFile] = []
    kind = True
    for file in files:
        small = _memory(file) <= PIECE_BYTES // 4
        if run and small != kind:
            yield kind, run
            run = []
        run, kind = [*run, file], small
    if run:
        yield kind, run


def _memory(file: DataFile) -> int:
    footer = file.footer
    if footer is None:
        return file.size * 4
    return sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
