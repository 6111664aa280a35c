"""Staging for tables whose files are never replaced: changed and remaining rows are copied into new files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.log import get_logger
from intarsia.common.python_values import make_array, make_scalar
from intarsia.common.radix import sort_integers
from intarsia.core.change import Hits, Matches, Staged, StagedFile
from intarsia.core.intent import WriteIntent
from intarsia.core.keys import arange
from intarsia.core.layout import read_layout
from intarsia.core.partitioner import Partitioner
from intarsia.core.plan import Plan
from intarsia.core.ports import LAST_UPDATED, LINEAGE, ROW_ID, Execution, OutputLocation
from intarsia.core.refusals import ValuesRefused
from intarsia.core.rule import Action, Assign, Drop, Insert, Replace
from intarsia.core.snapshot import DataFile
from intarsia.errors import SchemaMismatch
from intarsia.kernel.chunk_copy import ChunkCopy
from intarsia.kernel.chunks import NotCopyable
from intarsia.kernel.output_format import OutputFormat, has_fields_of
from intarsia.kernel.overlay import Overlay, drop_rows, select_positions, take_rows
from intarsia.kernel.partitioned_writer import SLICE_ROWS, NewRowWriter, Piece, WholeFile, write_partitioned
from intarsia.kernel.read import FileReader
from intarsia.kernel.rewrite import (
    Rewrite,
    apply_hits,
    conform_written,
    find_input_columns,
    find_refused_rows,
    find_set_columns,
    list_columns_to_decode,
)
from intarsia.kernel.threads import map_in_order, split_by_weight

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CopyTask:
    """One file that loses or changes rows, and the rows of it that are copied into new files."""

    rewrite: Rewrite = field(repr=False)
    copies: bool
    """Whether the unchanged rows are copied, too, since the file is removed."""

    @property
    def file(self) -> DataFile:
        return self.rewrite.file

    @property
    def changing(self) -> bool:
        """Whether any row gets new values."""
        acting = enumerate(self.rewrite.actions)
        return any(
            not isinstance(action, Drop) and len(self.rewrite.hits.select_action(n)) for n, action in acting
        )

    def make_pieces(self, source: pa.Table | None, form: OutputFormat) -> Iterator[Piece]:
        """The rows for new files, row group by row group, or the values that are refused.

        A file that is removed and stays in its partition is a piece as a whole, so that column chunks that
        stay as they are can be copied.
        """
        if not self.copies and not self.changing:
            return
        if not self.rewrite.writes:
            if refused := find_refused_rows(self.rewrite, source):
                yield ValuesRefused.of(refused, len(self.rewrite.hits))
            return
        if self._may_copy_chunks(form) and self._needs_rows(source):
            yield WholeFile(
                form.partitioner.partition_of(self.file),
                partial(self._copy_chunks, source, form),
                partial(self._make_rows, source, form.schema),
            )
            return
        yield from self._make_rows(source, form.schema)

    def _make_rows(self, source: pa.Table | None, schema: pa.Schema) -> Iterator[pa.Table | ValuesRefused]:
        lineage = ROW_ID in schema.names
        needs_rows = self._needs_rows(source)
        if not needs_rows and not lineage:
            yield from self._iterate_replacements(source)
            return
        rewrite = self.rewrite
        with FileReader(rewrite.file, schema, rewrite.filesystem) as reader:
            for group in range(reader.footer.num_row_groups):
                start = reader.get_start(group)
                hits = rewrite.hits.select_range(start, start + reader.footer.row_group(group).num_rows)
                if self.copies and needs_rows:
                    yield from self._copy_group(reader, group, schema.names, source)
                elif len(kept := self._select_undropped(hits).shift(start)):
                    columns = self._list_needed(schema.names, source) if needs_rows else list(LINEAGE)
                    for rows, mine in self._read_hits(reader, group, columns, kept):
                        try:
                            yield self._update_rows(rows, mine, schema, source)
                        except ValuesRefused as error:
                            yield error

    def _copy_group(
        self, reader: FileReader, group: int, columns: list[str], source: pa.Table | None
    ) -> Iterator[pa.Table | ValuesRefused]:
        """The remaining rows of a row group, with new values where they are updated."""
        start = reader.get_start(group)
        for piece in reader.read_pieces(columns, group, batch_rows=self.rewrite.options.batch_rows):
            hits = self.rewrite.hits.select_range(start, start + piece.num_rows).shift(start)
            try:
                yield self._copy_piece(piece, start, hits, reader, source)
            except ValuesRefused as error:
                yield error
            start += piece.num_rows

    def _may_copy_chunks(self, form: OutputFormat) -> bool:
        """Whether the remaining rows may be one new file, written like the one that is removed."""
        options = self.rewrite.options
        return (
            self.copies
            and options.compression is None
            and options.row_group_size is None
            and (form.max_rows is None or form.max_rows >= self.file.rows)
            and not form.partitioner.is_old_spec(self.file)
        )

    def _copy_chunks(
        self, source: pa.Table | None, form: OutputFormat, path: str, location: str
    ) -> StagedFile | None:
        """Write the remaining rows as one file, with unchanged column chunks copied.

        None where no chunk stays as it is, or where a row changes its partition. Memory: a row group.
        """
        rewrite = self.rewrite
        with FileReader(rewrite.file, form.schema, rewrite.filesystem) as reader:
            task = replace(rewrite, actions=(*rewrite.actions, Drop()))
            parts = [self._find_group_hits(reader, group) for group in range(reader.footer.num_row_groups)]
            copy = self._open_copy(reader, form, location)
            if copy is None:
                return None
            order = form.layout.make_sort_keys(copy.schema)
            read = [list_columns_to_decode(hits, task, source, copy, order) for hits in parts]
            if all(len(names) == len(copy.schema.names) for names, _ in read) or any(
                len(hits) and reader.choose_piece_rows(group, rewrite.options.batch_rows)
                for group, hits in enumerate(parts)
            ):
                return None
            try:
                for group, hits in enumerate(parts):
                    fresh = self._make_columns(reader, group, hits, task, source, copy, form)
                    if fresh is None:
                        return None
                    copy.add(group, fresh)
                return copy.close(path, form.partitioner.partition_of(rewrite.file).values)
            except (NotCopyable, ValuesRefused, SchemaMismatch):  # the same rows one by one say more
                log.debug("%s is decoded as a whole", self.file.path, exc_info=True)
                return None
            finally:
                copy.abandon()

    def _find_group_hits(self, reader: FileReader, group: int) -> Hits:
        """The hits of a row group, counted from its start; rows deleted before are hit, too."""
        start = reader.get_start(group)
        stop = start + reader.footer.row_group(group).num_rows
        hits = self.rewrite.hits.select_range(start, stop)
        gone = None if reader.deleted is None else select_positions(reader.deleted, start, stop)
        if gone is None or not len(gone):
            return hits.shift(start)
        count, drop = len(self.rewrite.actions), pa.int8()  # the number of the action that drops them
        acting = (
            pa.repeat(make_scalar(hits.action, drop), len(hits))
            if isinstance(hits.action, int)
            else hits.action
        )
        positions = pa.concat_arrays([hits.positions, gone])
        order = sort_integers(positions)
        action = pa.concat_arrays([acting, pa.repeat(make_scalar(count, drop), len(gone))]).take(order)
        sources = hits.sources
        if sources is not None:
            sources = pa.concat_arrays([sources, pa.nulls(len(gone), pa.int64())]).take(order)
        return Hits(positions.take(order), action, sources).shift(start)

    def _open_copy(self, reader: FileReader, form: OutputFormat, location: str) -> ChunkCopy | None:
        """The new file; None where chunks of the old one would not be what the table's columns are."""
        layout = read_layout(reader.footer)
        if (
            layout.compression != form.layout.compression
            or layout.sorting != form.layout.sorting
            or not has_fields_of(reader.physical, form.schema)
        ):
            return None
        copy = ChunkCopy.of(
            reader,
            location,
            form.schema,
            filesystem=self.rewrite.staging,
            layout=replace(form.layout, like=(reader.footer,)),
            metadata=form.metadata,
            encoded=(),
        )
        if copy is not None:
            copy.copyable -= set(LINEAGE)  # what the file stores may be NULL, which is the row's position
        return copy

    def _make_columns(
        self,
        reader: FileReader,
        group: int,
        hits: Hits,
        task: Rewrite,
        source: pa.Table | None,
        copy: ChunkCopy,
        form: OutputFormat,
    ) -> pa.Table | None:
        """The columns of a row group that have to be encoded; None where a row changes its partition."""
        order = form.layout.make_sort_keys(copy.schema)
        read, moving = list_columns_to_decode(hits, task, source, copy, order)
        if not read:
            return pa.table({})
        deciding = form.partitioner.columns
        places = deciding if set(deciding).intersection(read) else ()
        before = reader.read([*read, *(name for name in places if name not in read)], group)
        before = self._clear_last_updated(before, hits)
        after, changed = apply_hits(before, hits, task, source)
        if changed.intersection(deciding) and not self._stays(after, form.partitioner):
            return None
        fresh = copy.select_fresh(
            after.select(read), changed, rows_before=before.num_rows, order=order if moving else ()
        )
        return conform_written(fresh, copy.schema, task)

    def _stays(self, rows: pa.Table, partitioner: Partitioner) -> bool:
        """Whether rows belong to the partition of the file."""
        home = partitioner.partition_of(self.file).key
        return all(part.key == home for part, _ in partitioner.partition_rows(rows))

    @property
    def _only_replaces(self) -> bool:
        acting = enumerate(self.rewrite.actions)
        return not any(
            isinstance(action, Assign) and len(self.rewrite.hits.select_action(n)) for n, action in acting
        )

    def _needs_rows(self, source: pa.Table | None) -> bool:
        """Whether values of the file itself are copied."""
        whole = len(self.rewrite.hits) == self.file.rows
        if (self.copies and not whole) or not self._only_replaces:
            return True
        return source is not None and not set(self.rewrite.schema.names) <= set(source.column_names)

    def _iterate_replacements(self, source: pa.Table | None) -> Iterator[pa.Table]:
        """The source rows themselves: no value of the file is kept."""
        assert source is not None
        for number, action in enumerate(self.rewrite.actions):
            if not isinstance(action, Replace):
                continue
            rows = self.rewrite.hits.select_action(number).sources
            assert rows is not None
            for start in range(0, len(rows), SLICE_ROWS):
                yield take_rows(source, rows.slice(start, SLICE_ROWS))

    def _copy_piece(
        self, piece: pa.Table, start: int, hits: Hits, reader: FileReader, source: pa.Table | None
    ) -> pa.Table:
        piece = self._clear_last_updated(piece, hits)
        changed, _ = apply_hits(piece, self._select_undropped(hits), self.rewrite, source)
        gone = [
            hits.select_action(n).positions
            for n, action in enumerate(self.rewrite.actions)
            if _is_drop(action)
        ]
        if reader.deleted is not None:
            deleted = select_positions(reader.deleted, start, start + piece.num_rows)
            gone.append(pc.subtract(deleted, make_scalar(start, pa.int64())))
        return drop_rows(changed, pa.concat_arrays(gone)) if gone else changed

    def _read_hits(
        self, reader: FileReader, group: int, columns: list[str], hits: Hits
    ) -> Iterator[tuple[pa.Table, Hits]]:
        """The rows of a row group that are hit, with their hits; in pieces where they are many."""
        batch_rows = self.rewrite.options.batch_rows
        limit = reader.choose_piece_rows(group, batch_rows)
        if limit is None or len(hits) <= limit:
            kept = _select_kept_values(hits, columns, reader.schema)
            if not kept.num_columns:
                yield reader.read_rows(columns, group, hits.positions, batch_rows=batch_rows), hits
                return
            read = [name for name in columns if name not in kept.column_names]
            if read:
                rows = reader.read_rows(read, group, hits.positions, batch_rows=batch_rows)
                for each in rows.schema:
                    kept = kept.append_column(each, rows[each.name])
            yield kept.select(columns), hits
            return
        start = 0
        for piece in reader.read_pieces(columns, group, batch_rows=batch_rows):
            mine = hits.select_range(start, start + piece.num_rows)
            yield take_rows(piece, mine.shift(start).positions), mine
            start += piece.num_rows

    def _update_rows(
        self, rows: pa.Table, hits: Hits, schema: pa.Schema, source: pa.Table | None
    ) -> pa.Table:
        """Rows that are hit, with their new values."""
        numbered = Hits(arange(len(hits)), hits.action, hits.sources)
        rows = self._clear_last_updated(rows, numbered)
        if not self._needs_rows(source):  # only their row lineage is that of the file
            assert source is not None
            theirs = take_rows(source, hits.sources)
            for name in LINEAGE:
                theirs = theirs.append_column(name, rows[name])
            return theirs
        given = set(rows.column_names)
        for each in schema:  # a column of which no value stays, and none is read
            if each.name not in given:
                rows = rows.append_column(each, pa.nulls(len(hits), each.type))
        changed, _ = apply_hits(rows, numbered, self.rewrite, source)
        return changed

    def _list_needed(self, columns: list[str], source: pa.Table | None) -> list[str]:
        """The columns of updated rows that are read: those that stay in some row, or are in an expression."""
        acting = enumerate(self.rewrite.actions)
        actions = [a for n, a in acting if not _is_drop(a) and len(self.rewrite.hits.select_action(n))]
        set_by = (find_set_columns(action, self.rewrite, source) for action in actions)
        unread = set(columns).intersection(*set_by) - find_input_columns(actions)
        return [name for name in columns if name not in unread]

    def _select_undropped(self, hits: Hits) -> Hits:
        """The hits that update a row, and do not delete it."""
        drops = [n for n, action in enumerate(self.rewrite.actions) if _is_drop(action)]
        if not drops:
            return hits
        if isinstance(hits.action, int):
            return Hits.make_empty() if hits.action in drops else hits
        kept = pc.invert(pc.is_in(hits.action, value_set=make_array(drops, pa.int8())))
        sources = None if hits.sources is None else hits.sources.filter(kept)
        return Hits(hits.positions.filter(kept), hits.action.filter(kept), sources)

    def _clear_last_updated(self, piece: pa.Table, hits: Hits) -> pa.Table:
        """Changed rows without the sequence number of their last change."""
        changing = self._select_undropped(hits)
        if LAST_UPDATED not in piece.column_names or not len(changing):
            return piece
        nothing = pa.nulls(len(changing), pa.int64())
        return Overlay(piece.num_rows, changing.positions).apply(piece, {LAST_UPDATED: nothing})[0]


SHARE_BYTES = 8 << 20
"""Bytes to copy per thread: less is not worth another thread, which means another file."""


def _select_kept_values(hits: Hits, columns: Sequence[str], schema: pa.Schema) -> pa.Table:
    """Those of the columns whose values the hits have, in the types of the schema."""
    if hits.values is None:
        return pa.table({})
    held = hits.values.schema
    return hits.values.select(
        [name for name in held.names if name in columns and held.field(name).type == schema.field(name).type]
    )


def _is_drop(action: Action) -> bool:
    return isinstance(action, Drop)


def make_copy_tasks(plan: Plan, matches: Matches, tx: OutputLocation) -> list[CopyTask]:
    """Every file that loses or changes rows, with whether it is removed."""
    items = [*plan.select("rewrite"), *plan.select("add_deletes")]
    found = []
    for item in items:
        hits = matches.hits.get(item.file.path, Hits.make_empty())
        task = Rewrite.of(item.file, hits, plan, tx, actions=matches.actions, label="")
        found.append(CopyTask(task, copies=item.action == "rewrite"))
    return found


@dataclass(frozen=True, slots=True)
class _Job:
    """Rows of one file, or new rows, and about how many bytes they will be."""

    pieces: Callable[[], Iterator[Piece]]
    size: int


def stage_copies(execution: Execution, matches: Matches, *, threads: int) -> Staged:
    """Write new rows, updated rows, and the remaining rows of files that are removed.

    The plan alone decides which rows each new file gets, so that the same work makes the same files:
    files of one partition are copied by one thread, and little work is done by a single thread. Memory: row
    groups per thread.
    """
    plan, prepared, tx = execution.plan, execution.prepared, execution.transaction
    tasks = make_copy_tasks(plan, matches, tx)
    form = OutputFormat.of(plan, tx, lineage=any(one.copies or one.changing for one in tasks))
    source = prepared.table
    placing = NewRowWriter(plan.snapshot, plan.schema, (), plan.intent.options, plan.operation)
    active = _group_by_partition(plan, [one for one in tasks if one.copies or one.changing])
    row_bytes = prepared.source_bytes / max(prepared.facts.rows, 1)
    jobs = [_Job(partial(one.make_pieces, source, form), _estimate_size(one)) for one in active]
    for action, rows in _slice_inserts(matches.inserts):
        jobs.append(_Job(partial(placing.make_pieces, action, rows, source, tx), int(len(rows) * row_bytes)))
    sizes = [job.size for job in jobs]
    shares = split_by_weight(jobs, sizes, max(1, min(threads, -(-sum(sizes) // SHARE_BYTES)))) if jobs else []

    def write(item: tuple[int, list[_Job]]) -> list[StagedFile]:
        number, mine = item
        pieces = (piece for job in mine for piece in job.pieces())
        return write_partitioned(form, tx, f"{choose_prefix(plan)}-{number:03d}", pieces)

    added: list[StagedFile] = []
    done = 0
    written = map_in_order(write, enumerate(shares), threads=max(1, len(shares)))
    for mine, files in zip(shares, written, strict=True):
        added += files
        done += len(mine)
        execution.progress("write files", done, len(jobs))
    return Staged(added=tuple(added))


def _group_by_partition(plan: Plan, tasks: Sequence[CopyTask]) -> list[CopyTask]:
    """The tasks with files of one partition next to each other."""
    homes: dict[Any, list[CopyTask]] = {}
    for one in tasks:
        homes.setdefault(plan.snapshot.partitioner.partition_of(one.file).key, []).append(one)
    return [one for mine in homes.values() for one in mine]


def _estimate_size(one: CopyTask) -> int:
    """About how many bytes of a file are copied into new ones."""
    file = one.file
    return file.size if one.copies else file.size * len(one.rewrite.hits) // max(file.rows, 1)


def _slice_inserts(inserts: Sequence[tuple[Action, pa.Array]]) -> Iterator[tuple[Insert, pa.Array]]:
    """Source rows in slices of about a row group, so that few files are started."""
    for action, rows in inserts:
        assert isinstance(action, Insert)
        for start in range(0, len(rows), SLICE_ROWS):
            yield action, rows.slice(start, SLICE_ROWS)


def choose_prefix(plan: Plan) -> str:
    """What the names of new files begin with."""
    return "part" if isinstance(plan.intent, WriteIntent) else plan.operation
