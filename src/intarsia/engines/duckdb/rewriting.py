"""Files rewritten and new files written: DuckDB joins the rows that stay with those that come."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.int96 import arrow_schema
from intarsia.core.change import Change, StagedFile
from intarsia.core.keys import arange
from intarsia.core.layout import Layout, layout_of
from intarsia.core.matches import Hits, Matches
from intarsia.core.plan import Plan
from intarsia.core.ports import Progress, Transaction
from intarsia.core.prepare import Prepared
from intarsia.core.refusals import ValuesRefused
from intarsia.core.rule import Assign, Drop, Replace
from intarsia.engines.arrow.overlay import take_rows
from intarsia.engines.arrow.placing import NewFile
from intarsia.engines.arrow.rewrite import Rewrite, notes_of, retyped_columns, rewrite, stored_columns
from intarsia.engines.arrow.row_files import RowFiles
from intarsia.engines.arrow.threads import in_order
from intarsia.engines.duckdb.assigning import assigned_rows
from intarsia.engines.duckdb.checksums import verify
from intarsia.engines.duckdb.describing import OtherTypes
from intarsia.engines.duckdb.fitness import placing_beyond, rewrite_beyond, whole_rows_beyond
from intarsia.engines.duckdb.overlay import Layer, Overlay
from intarsia.engines.duckdb.scan import Scan
from intarsia.engines.duckdb.session import BATCH_ROWS, Session
from intarsia.engines.duckdb.splicing import Splicing, foresee, splices
from intarsia.engines.duckdb.text import POS, name, named
from intarsia.engines.duckdb.types import sql_type
from intarsia.engines.duckdb.writing import Target, declared_order, distinct_values, optional

__all__ = ["stage_rows"]

logger = logging.getLogger(__name__)


def stage_rows(
    plan: Plan, matches: Matches, prepared: Prepared, tx: Transaction, session: Session, progress: Progress
) -> Change:
    """Files rewritten under their names, and new files for new rows.

    What DuckDB cannot write as it was is written by the Arrow kernel; the plan's notes tell.
    """
    return _Staging(session, prepared.table, tx, RowFiles.of(plan, matches, prepared, tx)).change(progress)


@dataclass(frozen=True, slots=True)
class _Staging:
    session: Session
    source: pa.Table = field(repr=False)
    tx: Transaction = field(repr=False)
    files: RowFiles = field(repr=False)

    def change(self, progress: Progress) -> Change:
        plan, placing = self.files.plan, self.files.placing
        mine = [task.file for task in self.files.rewrites if self._fits(task)]
        scan = Scan.of(self.session, plan.snapshot, mine, plan.schema)
        dictionary = distinct_values(scan, mine[:1])
        foreseen = self._foreseen(scan)
        places = self._places()
        # New files first: they may be large, and one thread alone would be left with them.
        jobs: list[Callable[[], StagedFile]] = [
            *(
                (lambda file=file: self._new(file, dictionary))
                if places and file.action.values is None and self.tx.staging.writes
                else (lambda file=file: placing.write(file, self.source, self.tx))
                for file in self.files.new
            ),
            *(
                (lambda task=task: self._kept(task, scan, dictionary, foreseen))
                if task.file.path in scan.numbers
                else (lambda task=task: rewrite(task, self.source))
                for task in self.files.rewrites
            ),
        ]
        threads = min(self.session.threads, len(jobs))
        staged: list[StagedFile] = []
        for file in in_order(lambda job: job(), jobs, threads=threads, ahead=len(jobs)):
            staged.append(file)
            progress("write files", len(staged), len(jobs))
        new = len(self.files.new)
        return self.files.change(staged[new:] + staged[:new])

    def _fits(self, task: Rewrite) -> bool:
        if task.file.footer is None:
            return False
        stored = stored_columns(task.file.footer.schema.to_arrow_schema(), task)
        if rewrite_beyond(
            task.file,
            task.schema,
            stored,
            task.actions,
            widened=task.widened,
            row_group_size=task.options.row_group_size,
        ):
            return False
        replaces = any(isinstance(action, Replace) for action in task.actions)
        return not replaces or whole_rows_beyond(self.source, task.schema, stored) is None

    def _places(self) -> bool:
        """Whether DuckDB writes new files."""
        placing, rows = self.files.placing, sum(len(file.rows) for file in self.files.new)
        if whole_rows_beyond(self.source, placing.schema, placing.file_schema().names) is not None:
            return False
        return placing_beyond(placing, rows) is None

    def _foreseen(self, scan: Scan) -> Mapping[str, bool]:
        """Whether columns change where source rows replace others, judged by one file."""
        for task in self.files.rewrites:
            if task.file.path in scan.numbers and splices(task):
                replaced = [n for n, action in enumerate(task.actions) if isinstance(action, Replace)]
                names = [n for n in self.source.column_names if n in task.schema.names]
                values = self.source.select([each for each in names if each not in task.same])
                hits = [task.hits.only(n) for n in replaced]
                return foresee(task, [Layer(mine.positions, values, mine.sources) for mine in hits])
        return {}

    def _kept(
        self, task: Rewrite, scan: Scan, dictionary: int | None, foreseen: Mapping[str, bool]
    ) -> StagedFile:
        assert task.file.footer is not None
        if not task.writes:
            return rewrite(task, self.source)
        try:
            staged = self._rewritten(task, scan, dictionary, foreseen)
        except ValuesRefused:
            return rewrite(replace(task, writes=False), self.source)
        except OtherTypes:
            logger.debug("%s is written by PyArrow", task.file.path, exc_info=True)
            return rewrite(task, self.source)
        written = pa.schema([field for field in task.schema if field.name in task.widened])
        return replace(staged, retyped=retyped_columns(task.file.footer, written))

    def _new(self, file: NewFile, dictionary: int | None) -> StagedFile:
        try:
            return self._placed(file, dictionary)
        except OtherTypes:
            logger.debug("%s is written by PyArrow", file.path, exc_info=True)
            return self.files.placing.write(file, self.source, self.tx)

    def _rewritten(
        self, task: Rewrite, scan: Scan, dictionary: int | None, foreseen: Mapping[str, bool]
    ) -> StagedFile:
        file = task.file
        assert file.footer is not None
        verify(file, task.filesystem)
        physical = arrow_schema(file.footer)
        stored = stored_columns(physical, task)
        schema = pa.schema([task.schema.field(each) for each in stored])
        layout = _layout(task)
        notes = notes_of(task, layout, schema, physical, self.source)
        target = Target(task.location, task.staging, schema, layout, notes, dictionary)
        overlay = Overlay(file.rows, list(self._layers(task, scan, stored)), _dropped(task))
        with self.session.fork() as session, ExitStack() as stack:
            spliced = Splicing(task, target, overlay, scan, session, foreseen).staged()
            if spliced is not None:
                return spliced
            if len(task.hits):
                view = stack.enter_context(session.view(overlay.reader()))
                location = session.location(scan.snapshot.filesystem, file.location)
                rows = overlay.sql(location, scan.values(file, stored), view, task.schema)
            else:
                rows = optional(schema, f"SELECT {named([*stored, POS])} FROM ({scan.sql(stored, [file])})")
            query = f"SELECT {named(stored)} FROM ({rows}){_order(layout, schema, session.ordered)}"
            expected = file.rows - len(overlay.gone)
            kept = [each for each in stored if each not in task.widened]
            return target.write(session, query, file.path, file.partition, rows=expected, kept=kept)

    def _layers(self, task: Rewrite, scan: Scan, stored: Sequence[str]) -> Iterator[Layer]:
        """What is laid over the file's rows."""
        for action, what in enumerate(task.actions):
            mine = task.hits.only(action)
            if isinstance(what, Replace) and len(mine):
                values = self.source.select([each for each in stored if each not in task.same])
                yield Layer(mine.positions, values, mine.sources)
            elif isinstance(what, Assign) and len(mine):
                yield Layer(mine.positions, assigned_rows(task, what, mine, scan, self.source, self.session))

    def _taken(self, columns: Sequence[str], rows: pa.Array, session: Session, stack: ExitStack) -> str:
        """Some rows of the source, each with its place among them. Memory: a batch of rows at a time."""
        table = self.source.select(list(columns))

        def batches() -> Iterator[pa.RecordBatch]:
            for start in range(0, len(rows), BATCH_ROWS):
                part = take_rows(table, rows.slice(start, BATCH_ROWS))
                yield from part.append_column(POS, arange(part.num_rows, start)).to_batches()

        schema = table.schema.append(pa.field(POS, pa.int64()))
        view = stack.enter_context(session.view(pa.RecordBatchReader.from_batches(schema, batches())))
        chosen = [f"{_cast('s', each, self.files.plan.schema)} AS {name(each)}" for each in columns]
        return f"SELECT {', '.join(chosen)}, s.{name(POS)} FROM {view} s"

    def _placed(self, file: NewFile, dictionary: int | None) -> StagedFile:
        staging = self.tx.staging
        placing = self.files.placing
        schema = placing.file_schema()
        target = Target(
            staging.location(file.label),
            staging.filesystem,
            schema,
            placing.layout(),
            placing.metadata(staging.txid),
            dictionary,
        )
        with self.session.fork() as session, ExitStack() as stack:
            rows = self._taken(schema.names, file.rows, session, stack)
            order = "" if session.ordered else f" ORDER BY {name(POS)} ASC"
            query = f"SELECT {named(schema.names)} FROM ({optional(schema, rows)}){order}"
            return target.write(session, query, file.path, file.partition, rows=len(file.rows))


def _cast(of: str, column: str, schema: pa.Schema) -> str:
    return f"CAST({of}.{name(column)} AS {sql_type(schema.field(column).type)})"


def _layout(task: Rewrite) -> Layout:
    assert task.file.footer is not None
    layout, options = layout_of(task.file.footer), task.options
    if options.int96 == "convert":
        layout = layout.without_int96()
    if options.compression is not None:
        layout = layout.with_compression(options.compression)
    if options.row_group_size is not None:
        layout = layout.with_row_group_rows(options.row_group_size)
    return layout


def _dropped(task: Rewrite) -> Hits:
    """The rows that go."""
    parts = [task.hits.only(n).positions for n, a in enumerate(task.actions) if isinstance(a, Drop)]
    positions = pa.concat_arrays([Hits.empty().positions, *parts])
    return Hits(positions.take(pc.array_sort_indices(positions)))


def _order(layout: Layout, schema: pa.Schema, ordered: bool) -> str:
    """As the rows come, which is the file's own order; but within an order that the file declares."""
    declared = declared_order(layout, schema)
    return f" ORDER BY {', '.join([*declared, f'{name(POS)} ASC'])}" if declared or not ordered else ""
