"""Staging for tables whose files are never replaced: changed and remaining rows are copied into new files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.change import Hits, Matches, Staged, StagedFile
from intarsia.core.intent import WriteIntent
from intarsia.core.keys import arange
from intarsia.core.plan import Plan
from intarsia.core.ports import LAST_UPDATED, LINEAGE, ROW_ID, Execution, OutputLocation
from intarsia.core.refusals import ValuesRefused
from intarsia.core.rule import Action, Assign, Drop, Insert, Replace
from intarsia.core.snapshot import DataFile
from intarsia.kernel.output_format import OutputFormat
from intarsia.kernel.overlay import Overlay, drop_rows, select_positions, take_rows
from intarsia.kernel.partitioned_writer import SLICE_ROWS, NewRowWriter, write_partitioned
from intarsia.kernel.read import FileReader
from intarsia.kernel.rewrite import Rewrite, apply_hits, find_refused_rows
from intarsia.kernel.threads import map_in_order, split_by_weight


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

    def make_pieces(self, source: pa.Table | None, schema: pa.Schema) -> Iterator[pa.Table | ValuesRefused]:
        """The rows for new files, row group by row group, or the values that are refused."""
        if not self.copies and not self.changing:
            return
        if not self.rewrite.writes:
            if refused := find_refused_rows(self.rewrite, source):
                yield ValuesRefused.of(refused, len(self.rewrite.hits))
            return
        lineage = ROW_ID in schema.names
        needs_rows = self._needs_rows(source)
        if not needs_rows and not lineage:
            yield from self._iterate_replacements(source)
            return
        rewrite = self.rewrite
        with FileReader(rewrite.file, schema, rewrite.filesystem) as reader:
            columns = [f.name for f in schema] if needs_rows else list(LINEAGE)
            for group in range(reader.footer.num_row_groups):
                start = reader.get_start(group)
                stop = start + reader.footer.row_group(group).num_rows
                if not self.copies and not len(rewrite.hits.select_range(start, stop)):
                    continue
                for piece in reader.read_pieces(columns, group, batch_rows=rewrite.options.batch_rows):
                    hits = rewrite.hits.select_range(start, start + piece.num_rows)
                    try:
                        yield self._copy_piece(piece, start, hits, reader, source)
                    except ValuesRefused as error:
                        yield error
                    start += piece.num_rows

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
        local = Hits(pc.subtract(hits.positions, pa.scalar(start, pa.int64())), hits.action, hits.sources)
        piece = self._clear_last_updated(piece, local)
        if not self.copies or not self._needs_rows(source):
            return self._make_hit_rows(piece, local, source)
        changed, _ = apply_hits(piece, self._select_undropped(local), self.rewrite, source)
        gone = [
            local.select_action(n).positions
            for n, action in enumerate(self.rewrite.actions)
            if _is_drop(action)
        ]
        if reader.deleted is not None:
            deleted = select_positions(reader.deleted, start, start + piece.num_rows)
            gone.append(pc.subtract(deleted, pa.scalar(start, pa.int64())))
        return drop_rows(changed, pa.concat_arrays(gone)) if gone else changed

    def _make_hit_rows(self, piece: pa.Table, hits: Hits, source: pa.Table | None) -> pa.Table:
        """Only the updated rows, with their new values."""
        kept = self._select_undropped(hits)
        rows = take_rows(piece, kept.positions)
        if not self._needs_rows(source):  # only their row lineage is that of the file
            assert source is not None
            theirs = take_rows(source, kept.sources)
            for name in LINEAGE:
                theirs = theirs.append_column(name, rows[name])
            return theirs
        numbered = Hits(arange(len(kept)), kept.action, kept.sources)
        changed, _ = apply_hits(rows, numbered, self.rewrite, source)
        return changed

    def _select_undropped(self, hits: Hits) -> Hits:
        """The hits that update a row, and do not delete it."""
        drops = [n for n, action in enumerate(self.rewrite.actions) if _is_drop(action)]
        if not drops:
            return hits
        if isinstance(hits.action, int):
            return Hits.make_empty() if hits.action in drops else hits
        kept = pc.invert(pc.is_in(hits.action, value_set=pa.array(drops, pa.int8())))
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

    pieces: Callable[[], Iterator[pa.Table | ValuesRefused]]
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
    jobs = [_Job(partial(one.make_pieces, source, form.schema), _estimate_size(one)) for one in active]
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
