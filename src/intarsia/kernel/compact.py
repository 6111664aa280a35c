"""Compacting: the rows of each group of files written to new files; the plan chooses the groups."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.python_values import make_scalar
from intarsia.common.schema import check_categories, conform_table
from intarsia.core.change import Hits, Staged, StagedFile
from intarsia.core.intent import CompactIntent
from intarsia.core.plan import FileGroup, Plan
from intarsia.core.ports import OutputLocation, Progress
from intarsia.core.snapshot import DataFile
from intarsia.errors import DamagedTable
from intarsia.kernel.chunk_copy import concatenate
from intarsia.kernel.chunks import NotCopyable
from intarsia.kernel.file_format import FileFormat
from intarsia.kernel.output_format import OutputFormat
from intarsia.kernel.overlay import drop_rows, select_positions
from intarsia.kernel.partitioned_writer import write_file, write_partitioned
from intarsia.kernel.read import PIECE_BYTES, FileReader, as_encoded
from intarsia.kernel.threads import map_in_order, share_threads
from intarsia.kernel.write import widen, widen_schema

logger = logging.getLogger(__name__)


def stage_compact(plan: Plan, tx: OutputLocation, *, threads: int, progress: Progress) -> Staged:
    """Write each group of the plan as one file, its rows in the order of the files.

    Row groups that are large already are copied as they are, where the plan says so. Small ones are joined
    up to the size that those of the group's largest file have, or ``options.row_group_size``. An order that
    every file of the group declares is kept within each row group. Memory: about a row group for each group
    in progress. The table is not changed.

    Raises:
        DamagedTable: a file has not the rows its footer says.
    """
    groups = list(enumerate(plan.groups))
    outer, readers = share_threads(threads, len(groups))

    def compact_one(item: tuple[int, FileGroup]) -> list[StagedFile]:
        number, group = item
        if not plan.snapshot.replaces_in_place:
            return compact_partitioned(group, plan, tx, number=number, readers=readers)
        return [compact_group(group, plan, tx, number=number, readers=readers)]

    staged: list[StagedFile] = []
    for done, files in enumerate(map_in_order(compact_one, groups, threads=outer)):
        staged += files
        progress("write files", done + 1, len(groups))
    return Staged(added=tuple(staged))


def compact_group(
    group: FileGroup, plan: Plan, tx: OutputLocation, *, number: int, readers: int = 1
) -> StagedFile:
    """One group as one staged file; ``number`` tells it from the plan's other groups."""
    form = OutputFormat.of_group(group, plan, tx.txid)
    label = f"compact-{number:05d}"
    path = tx.new_file_path(group.partition, "compact", number, beside=group.files[0])
    staged = _concatenate(group, plan, tx, form, label, path) if group.concatenated else None
    if staged is None:
        form = form.with_encoded(group.files)
        wide = widen_schema(form.given)
        staged = write_file(
            form,
            tx,
            label,
            (widen(piece, wide) for piece in _read_rows(group, plan, form, readers=readers)),
            path=path,
            partition=group.partition,
        )
    check_rows([staged], group.rows, group)
    return staged


def _concatenate(
    group: FileGroup, plan: Plan, tx: OutputLocation, form: OutputFormat, label: str, path: str
) -> StagedFile | None:
    """One group as one staged file of the same row groups; None where they have to be decoded."""
    staging = tx.staging
    try:
        made = concatenate(
            group.files,
            plan.schema,
            staging.make_location(label),
            FileFormat.of(form.schema, form.layout, metadata=form.metadata),
            source=plan.snapshot.filesystem,
            filesystem=staging.filesystem,
        )
    except NotCopyable as error:
        logger.debug("the row groups of %s and others are decoded: %s", group.files[0].path, error)
        return None
    if made is None:
        return None
    return StagedFile(made.location, path, made.rows, made.place, dict(group.partition), footer=made.footer)


def compact_partitioned(
    group: FileGroup, plan: Plan, tx: OutputLocation, *, number: int, readers: int = 1
) -> list[StagedFile]:
    """One group written to new files by the current partition spec, without deleted rows."""
    intent = plan.intent
    assert isinstance(intent, CompactIntent)
    form = OutputFormat.of(plan, tx, lineage=True, target_bytes=intent.target_bytes, rows=intent.target_rows)
    staged = write_partitioned(
        form, tx, f"compact-{number:05d}", _read_rows(group, plan, form, readers=readers)
    )
    check_rows(staged, group.rows, group)
    return staged


def _read_rows(group: FileGroup, plan: Plan, form: OutputFormat, *, readers: int) -> Iterator[pa.Table]:
    """All rows in file order; small files are read ahead, large ones piece by piece."""
    batch_rows = plan.intent.options.batch_rows

    def read_file(file: DataFile) -> Iterator[pa.Table]:
        return read_pieces(file, plan, form.schema, encoded=form.encoded, batch_rows=batch_rows)

    def read_whole(file: DataFile) -> list[pa.Table]:
        return list(read_file(file))

    for small, run in _iterate_runs(group.files):
        if small:
            for pieces in map_in_order(read_whole, run, threads=readers):
                yield from pieces
        else:
            for file in run:
                yield from read_file(file)


def _iterate_runs(files: tuple[DataFile, ...]) -> Iterator[tuple[bool, list[DataFile]]]:
    """Neighbouring files that are all small enough to be held whole, or all not."""
    run: list[DataFile] = []
    kind = True
    for file in files:
        small = _estimate_memory(file) <= PIECE_BYTES // 4
        if run and small != kind:
            yield kind, run
            run = []
        run, kind = [*run, file], small
    if run:
        yield kind, run


def _estimate_memory(file: DataFile) -> int:
    footer = file.footer
    if footer is None:
        return file.size * 4
    return sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))


def read_pieces(
    file: DataFile,
    plan: Plan,
    schema: pa.Schema,
    *,
    skip: Hits | None = None,
    encoded: Sequence[str] = (),
    batch_rows: int | None = None,
    row_groups: range | None = None,
) -> Iterator[pa.Table]:
    """The rows of a file in exactly the columns and types of ``schema``, less those to skip.

    ``encoded`` columns are read as dictionaries, of files without a scan task. ``row_groups`` are the only
    ones to read, if given. Memory: one row group, or a piece of it where it is large.
    """
    seen = plan.schema if file.scan_task is None else schema  # the latter may have row lineage
    with FileReader(file, seen, plan.snapshot.filesystem, encoded=encoded) as reader:
        schema = as_encoded(schema, encoded)
        wanted = range(reader.footer.num_row_groups) if row_groups is None else row_groups
        start = reader.get_start(wanted.start)
        for group in wanted:
            for piece in reader.read_pieces(schema.names, group, batch_rows=batch_rows):
                count = piece.num_rows
                gone = [] if skip is None else [skip.select_range(start, start + count).positions]
                gone += (
                    [] if reader.deleted is None else [select_positions(reader.deleted, start, start + count)]
                )
                if gone:
                    positions = pc.subtract(pa.concat_arrays(gone), make_scalar(start, pa.int64()))
                    piece = drop_rows(piece, positions)
                start += count
                if piece.num_rows:
                    yield conform_written(piece, schema, operation=plan.operation, path=file.path)
        if start != file.record_count and row_groups is None:
            raise DamagedTable(
                f"{file.path} has {start:,} rows, but its footer says {file.record_count:,}.", path=file.path
            )


def conform_written(table: pa.Table, schema: pa.Schema, *, operation: str, path: str) -> pa.Table:
    """The table in exactly the types that are written; NULL in a NOT NULL column is refused."""
    check_categories(table, schema, operation=operation, path=path)
    if table.schema.equals(schema):
        return table
    return conform_table(table, schema, operation=operation, path=path)


def check_rows(staged: Sequence[StagedFile], expected: int, group: FileGroup) -> None:
    """Raise if rows were lost or written twice."""
    found = sum(file.rows for file in staged)
    if found != expected:
        raise DamagedTable(
            f"{len(group.files):,} files with {expected:,} rows to write became {found:,} rows.",
            path=group.files[0].path,
            hint="nothing was changed; check the files with inspect() and run again.",
        )
