"""Staging for tables whose files are never replaced: rows that go are veiled or left behind, others come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from queue import Empty, SimpleQueue

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.change import Change, StagedFile, Veil
from intarsia.core.files import DataFile
from intarsia.core.intent import Write
from intarsia.core.keys import arange
from intarsia.core.lens import LAST_UPDATED, LINEAGE, ROW_ID
from intarsia.core.matches import Hits, Matches
from intarsia.core.plan import Plan
from intarsia.core.ports import Progress, Workplace
from intarsia.core.prepare import Prepared
from intarsia.core.rule import Action, Assign, Drop, Insert, Replace
from intarsia.engines.arrow.fan_out import FanOut, FreshForm
from intarsia.engines.arrow.overlay import Overlay, between, take_rows, without
from intarsia.engines.arrow.placing import SLICE_ROWS, Placing
from intarsia.engines.arrow.reading import FileReader
from intarsia.engines.arrow.rewrite import Rewrite, apply_hits
from intarsia.engines.arrow.threads import in_order


@dataclass(frozen=True, slots=True)
class Carried:
    """One file that loses or changes rows, and what is to be carried over into new files."""

    rewrite: Rewrite = field(repr=False)
    copies: bool
    """Whether the rows that stay are carried over, too, since the file goes."""

    @property
    def file(self) -> DataFile:
        return self.rewrite.file

    @property
    def changing(self) -> bool:
        """Whether any row is given other values."""
        acting = enumerate(self.rewrite.actions)
        return any(not isinstance(action, Drop) and len(self.rewrite.hits.only(n)) for n, action in acting)

    def pieces(self, source: pa.Table | None, schema: pa.Schema) -> Iterator[pa.Table]:
        """The rows that come in place of the file's, row group by row group."""
        if not self.copies and not self.changing:
            return
        lineage = ROW_ID in schema.names
        needs_rows = self._needs_rows(source)
        if not needs_rows and not lineage:
            yield from self._replacements(source)
            return
        rewrite = self.rewrite
        with FileReader(rewrite.file, schema, rewrite.filesystem) as reader:
            columns = [f.name for f in schema] if needs_rows else list(LINEAGE)
            for group in range(reader.footer.num_row_groups):
                start = reader.start_of(group)
                stop = start + reader.footer.row_group(group).num_rows
                if not self.copies and not len(rewrite.hits.within(start, stop)):
                    continue
                for piece in reader.pieces(columns, group, batch_rows=rewrite.options.batch_rows):
                    hits = rewrite.hits.within(start, start + piece.num_rows)
                    yield self._carried(piece, start, hits, reader, source)
                    start += piece.num_rows

    @property
    def _only_replaces(self) -> bool:
        acting = enumerate(self.rewrite.actions)
        return not any(isinstance(action, Assign) and len(self.rewrite.hits.only(n)) for n, action in acting)

    def _needs_rows(self, source: pa.Table | None) -> bool:
        """Whether values of the file itself are to be carried over."""
        whole = len(self.rewrite.hits) == self.file.rows
        if (self.copies and not whole) or not self._only_replaces:
            return True
        return source is not None and not set(self.rewrite.schema.names) <= set(source.column_names)

    def _replacements(self, source: pa.Table | None) -> Iterator[pa.Table]:
        """Whole source rows: the file itself has nothing to add."""
        assert source is not None
        for number, action in enumerate(self.rewrite.actions):
            if not isinstance(action, Replace):
                continue
            rows = self.rewrite.hits.only(number).sources
            assert rows is not None
            for start in range(0, len(rows), SLICE_ROWS):
                yield take_rows(source, rows.slice(start, SLICE_ROWS))

    def _carried(
        self, piece: pa.Table, start: int, hits: Hits, reader: FileReader, source: pa.Table | None
    ) -> pa.Table:
        local = Hits(pc.subtract(hits.positions, pa.scalar(start, pa.int64())), hits.action, hits.sources)
        piece = self._touched(piece, local)
        if not self.copies or not self._needs_rows(source):
            return self._hit_rows(piece, local, source)
        changed, _ = apply_hits(piece, self._undropped(local), self.rewrite, source)
        gone = [local.only(n).positions for n, action in enumerate(self.rewrite.actions) if _drops(action)]
        if reader.dead is not None:
            dead = between(reader.dead, start, start + piece.num_rows)
            gone.append(pc.subtract(dead, pa.scalar(start, pa.int64())))
        return without(changed, pa.concat_arrays(gone)) if gone else changed

    def _hit_rows(self, piece: pa.Table, hits: Hits, source: pa.Table | None) -> pa.Table:
        """Only the rows that change, as they are afterwards."""
        kept = self._undropped(hits)
        rows = take_rows(piece, kept.positions)
        if not self._needs_rows(source):  # all but their identity comes from the source
            assert source is not None
            theirs = take_rows(source, kept.sources)
            for name in LINEAGE:
                theirs = theirs.append_column(name, rows[name])
            return theirs
        numbered = Hits(arange(len(kept)), kept.action, kept.sources)
        changed, _ = apply_hits(rows, numbered, self.rewrite, source)
        return changed

    def _undropped(self, hits: Hits) -> Hits:
        """The hits that leave a row behind."""
        drops = [n for n, action in enumerate(self.rewrite.actions) if _drops(action)]
        if not drops:
            return hits
        if isinstance(hits.action, int):
            return Hits.empty() if hits.action in drops else hits
        kept = pc.invert(pc.is_in(hits.action, value_set=pa.array(drops, pa.int8())))
        sources = None if hits.sources is None else hits.sources.filter(kept)
        return Hits(hits.positions.filter(kept), hits.action.filter(kept), sources)

    def _touched(self, piece: pa.Table, hits: Hits) -> pa.Table:
        """Rows that change forget when they last did."""
        changing = self._undropped(hits)
        if LAST_UPDATED not in piece.column_names or not len(changing):
            return piece
        nothing = pa.nulls(len(changing), pa.int64())
        return Overlay(piece.num_rows, changing.positions).apply(piece, {LAST_UPDATED: nothing})[0]


def _drops(action: Action) -> bool:
    return isinstance(action, Drop)


def carried_files(plan: Plan, matches: Matches, tx: Workplace) -> list[Carried]:
    """Every file that loses or changes rows, with whether it goes."""
    items = [*plan.chosen("rewrite"), *plan.chosen("veil")]
    found = []
    for item in items:
        hits = matches.hits.get(item.file.path, Hits.empty())
        task = Rewrite.of(item.file, hits, plan, tx, actions=matches.actions, label="")
        found.append(Carried(task, copies=item.action == "rewrite"))
    return found


class Dealers:
    """A few fan-outs that work is lent to, so that as few files as possible are begun."""

    def __init__(self, form: FreshForm, tx: Workplace, label: str) -> None:
        self.form = form
        self._tx = tx
        self._label = label
        self._free: SimpleQueue[FanOut] = SimpleQueue()
        self._all: list[FanOut] = []
        self._numbers = count()

    @contextmanager
    def lent(self) -> Iterator[FanOut]:
        """One that nobody else uses meanwhile."""
        try:
            fan_out = self._free.get_nowait()
        except Empty:
            fan_out = FanOut(self.form, self._tx, f"{self._label}-{next(self._numbers):03d}")
            self._all.append(fan_out)
        yield fan_out
        self._free.put(fan_out)

    def close(self, threads: int) -> list[StagedFile]:
        return [staged for files in in_order(FanOut.close, self._all, threads=threads) for staged in files]

    def abandon(self) -> None:
        for fan_out in self._all:
            fan_out.abandon()


def stage_afresh(
    plan: Plan,
    matches: Matches,
    prepared: Prepared,
    tx: Workplace,
    *,
    threads: int,
    progress: Progress,
) -> Change:
    """Write the rows that come, and say which files and rows go. Memory: row groups, per thread."""
    carried = carried_files(plan, matches, tx)
    form = FreshForm.of(plan, tx, lineage=any(one.copies or one.changing for one in carried))
    dealers = Dealers(form, tx, prefix_of(plan))
    source = prepared.table
    placing = Placing(plan.snapshot, plan.schema, (), plan.intent.options, plan.operation)

    def carry(one: Carried) -> None:
        with dealers.lent() as out:
            for piece in one.pieces(source, form.schema):
                out.add(piece)

    def insert(item: tuple[Insert, pa.Array]) -> None:
        action, rows = item
        with dealers.lent() as out:
            out.add(placing.built(rows, action, source))

    jobs: list[Callable[[], None]] = [
        *(lambda one=one: carry(one) for one in carried if one.copies or one.changing),
        *(lambda item=item: insert(item) for item in _sliced(matches.inserts)),
    ]
    try:
        for done, _ in enumerate(in_order(lambda job: job(), jobs, threads=max(1, min(threads, len(jobs))))):
            progress("write files", done + 1, len(jobs))
        added = dealers.close(threads)
    finally:
        dealers.abandon()
    return change_of(plan, carried, added)


def _sliced(inserts: Sequence[tuple[Action, pa.Array]]) -> Iterator[tuple[Insert, pa.Array]]:
    """Source rows in shares that fill a row group or more, so that few files are begun."""
    for action, rows in inserts:
        assert isinstance(action, Insert)
        for start in range(0, len(rows), SLICE_ROWS):
            yield action, rows.slice(start, SLICE_ROWS)


def prefix_of(plan: Plan) -> str:
    """What new files are called after."""
    return "part" if isinstance(plan.intent, Write) else plan.operation


def change_of(plan: Plan, carried: Sequence[Carried], added: Sequence[StagedFile]) -> Change:
    """What goes and what comes, as one commit."""
    removed = [item.file for item in plan.chosen("remove")]
    veiled: list[Veil] = []
    for one in carried:
        if one.copies:
            removed.append(one.file)
        else:
            veiled.append(Veil(one.file, one.rewrite.hits.positions))
    intent = plan.intent
    return Change(
        plan.operation,
        added=tuple(added),
        removed=tuple(removed),
        veiled=tuple(veiled),
        planned=tuple(item.file for item in plan.files if item.scanned or item.action != "keep"),
        exclusive=plan.exclusive,
        properties=intent.properties,
        reads=plan.reads,
    )
