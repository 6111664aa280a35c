"""Staging for tables whose files are never replaced: rows that go are veiled or left behind, others come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

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
from intarsia.core.refusals import ValuesRefused
from intarsia.core.rule import Action, Assign, Drop, Insert, Replace
from intarsia.engines.arrow.fan_out import FreshForm, dealt_out
from intarsia.engines.arrow.overlay import Overlay, between, take_rows, without
from intarsia.engines.arrow.placing import SLICE_ROWS, Placing
from intarsia.engines.arrow.reading import FileReader
from intarsia.engines.arrow.rewrite import Rewrite, apply_hits, refused_rows
from intarsia.engines.arrow.threads import in_line, in_order


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

    def pieces(self, source: pa.Table | None, schema: pa.Schema) -> Iterator[pa.Table | ValuesRefused]:
        """The rows that come in place of the file's, row group by row group, or what is wrong with them."""
        if not self.copies and not self.changing:
            return
        if not self.rewrite.writes:
            if refused := refused_rows(self.rewrite, source):
                yield ValuesRefused.of(refused, len(self.rewrite.hits))
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
                    try:
                        yield self._carried(piece, start, hits, reader, source)
                    except ValuesRefused as error:
                        yield error
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


SHARE_BYTES = 8 << 20
"""Work that is worth a thread of its own, and so a file more."""


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


@dataclass(frozen=True, slots=True)
class _Job:
    """Rows that come from one file, or are new, and about how large they will be."""

    pieces: Callable[[], Iterator[pa.Table | ValuesRefused]]
    size: int


def stage_afresh(
    plan: Plan,
    matches: Matches,
    prepared: Prepared,
    tx: Workplace,
    *,
    threads: int,
    progress: Progress,
) -> Change:
    """Write the rows that come, and say which files and rows go. Memory: row groups, per thread.

    Which rows come into one file follows from the plan alone, so that the same work gives the same files:
    neighbours of one partition go to one thread, and little work to one thread altogether.
    """
    carried = carried_files(plan, matches, tx)
    form = FreshForm.of(plan, tx, lineage=any(one.copies or one.changing for one in carried))
    source = prepared.table
    placing = Placing(plan.snapshot, plan.schema, (), plan.intent.options, plan.operation)
    active = _by_home(plan, [one for one in carried if one.copies or one.changing])
    row_bytes = prepared.source_bytes / max(prepared.facts.rows, 1)
    jobs = [_Job(partial(one.pieces, source, form.schema), _size(one)) for one in active]
    for action, rows in _sliced(matches.inserts):
        jobs.append(_Job(partial(placing.pieces, action, rows, source, tx), int(len(rows) * row_bytes)))
    sizes = [job.size for job in jobs]
    shares = in_line(jobs, sizes, max(1, min(threads, -(-sum(sizes) // SHARE_BYTES)))) if jobs else []

    def write(item: tuple[int, list[_Job]]) -> list[StagedFile]:
        number, mine = item
        pieces = (piece for job in mine for piece in job.pieces())
        return dealt_out(form, tx, f"{prefix_of(plan)}-{number:03d}", pieces)

    added: list[StagedFile] = []
    done = 0
    written = in_order(write, enumerate(shares), threads=max(1, len(shares)))
    for mine, files in zip(shares, written, strict=True):
        added += files
        done += len(mine)
        progress("write files", done, len(jobs))
    return change_of(plan, carried, added)


def _by_home(plan: Plan, carried: Sequence[Carried]) -> list[Carried]:
    """The files of one partition one after the other."""
    assert plan.snapshot.spread is not None
    homes: dict[Any, list[Carried]] = {}
    for one in carried:
        homes.setdefault(plan.snapshot.spread.home(one.file).key, []).append(one)
    return [one for mine in homes.values() for one in mine]


def _size(one: Carried) -> int:
    """About how many bytes of a file come into new ones."""
    file = one.file
    return file.size if one.copies else file.size * len(one.rewrite.hits) // max(file.rows, 1)


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
