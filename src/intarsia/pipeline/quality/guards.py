"""Guards: expectations that drop or quarantine rows of a source, for every later step that reads it.

Whoever reads the source below a guard reads through it, whether the guard ran just now or in an earlier run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.names import suggest_names
from intarsia.common.rows import filter_rows
from intarsia.core.ports import Table
from intarsia.engine_choice import EngineLike
from intarsia.errors import ColumnNotFound, InputError
from intarsia.pipeline.computed import as_frame, chain_streams
from intarsia.pipeline.inputs import FileStamp, InputFiles, detect_format, is_web
from intarsia.pipeline.model import Expect, Pipeline, Source, Step, is_guard, list_names, require
from intarsia.pipeline.quality.conditions import check_columns, describe_unique, parse_conditions
from intarsia.pipeline.quality.references import (
    ROWS,
    Reference,
    find_missing_frame,
    find_missing_keys,
    find_repeated_frame,
    find_repeated_keys,
    parse_references,
    quote_name,
)
from intarsia.pipeline.quality.row_judge import SEPARATOR, BadKeys, RowJudge
from intarsia.pipeline.state.input_selection import Selection, is_taken_once, select_files

REASON, STEP, RUN = "_reason", "_step", "_run"
"""Columns of a quarantine."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A run in which a quarantine has judged, and the name of its step; empty where both were only noted."""

    run: str
    step: str


Read = Callable[[InputFiles | None], Any]
"""The rows of a source, of some files: a DataFrame, or a list of Arrow streams."""


class GuardResources(Protocol):
    """What guards need of a run."""

    pipeline: Pipeline

    @property
    def session(self) -> Any: ...

    @property
    def engine(self) -> EngineLike: ...

    def get_table(self, target: str) -> Table: ...

    def read_columns(self, target: str, names: tuple[str, ...]) -> Any: ...

    def read_keys(self, reference: Reference) -> Any: ...

    def persist(self, frame: Any) -> Any: ...


def list_guards(steps: Iterable[Step], until: Step) -> tuple[Expect, ...]:
    """The guards above a step through which it reads: of sources, and of the target that it writes."""
    found: list[Expect] = []
    for step in steps:
        if step.name == until.name:
            break
        if is_guard(step) and step.writer in (None, until.name, until.writer):
            found.append(step)
    return tuple(found)


@dataclass(slots=True)
class SourceGuards:
    """The guards above the step that runs now, and how they have judged."""

    resources: GuardResources
    above: tuple[Expect, ...] = ()
    judged: Mapping[str, Mapping[FileStamp, Judgement]] = field(default_factory=dict)
    """By guard that judges each file once: the files that it has judged, with when it did."""
    batches: dict[str, InputFiles] = field(default_factory=dict)
    """By guard: the files that it judges in this run; a key counts as repeated among them."""
    judges: dict[tuple[Any, ...], RowJudge] = field(default_factory=dict)
    list_inputs: Callable[[Source], InputFiles | None] | None = None
    """The files of a source whose keys are looked up, as they were listed in this run."""

    def start(self) -> None:
        """Forget what was judged, as a pass over the steps begins."""
        self.batches.clear()
        self.judges.clear()

    def read(self, name: str, read: Read, listing: InputFiles | None) -> Any:
        """The rows of a source that all guards above let pass."""
        return self._make_reader(name, read)(listing)

    def _make_reader(self, name: str, read: Read) -> Read:
        guards = [guard for guard in self.above if guard.source == name]
        if guards:
            read = self._open_frames(read)
        for guard in guards:
            read = self._guard(guard, read)
        return read

    def _open_frames(self, read: Read) -> Read:
        """On Spark, rows that only the driver can read as a DataFrame, too."""
        session = self.resources.session
        return read if session is None else lambda files: as_frame(read(files), session)

    def _guard(self, guard: Expect, read: Read) -> Read:
        def read_passing(listing: InputFiles | None) -> Any:
            self._check_types(guard, listing)
            parts = [
                self._find_judge(guard, read, files, run).pass_rows(read(files))
                for files, run in self._split(guard, listing)
            ]
            if isinstance(parts[0], list):
                return [stream for part in parts for stream in part]
            return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)

        return read_passing

    def _check_types(self, guard: Expect, listing: InputFiles | None) -> None:
        """Refuse text without declared types: steps might read it in different types, and judge otherwise."""
        source = self.resources.pipeline.sources[require(guard.source)]
        if listing is None or source.is_computed or source.columns or not listing.stamps:
            return
        if detect_format(source, listing) in ("csv", "json"):
            raise InputError(
                f"the types of source {guard.source!r} are inferred, and rows are judged by their types.",
                hint=f"declare its columns, so that {guard.action} means the same in every step.",
            )

    def _split(
        self, guard: Expect, listing: InputFiles | None
    ) -> Iterator[tuple[InputFiles | None, Judgement | None]]:
        """The files to read, by the earlier judgement of them; None for that of this run.

        Raises:
            InputError: the guard has not judged some of the files.
        """
        known = self.judged.get(guard.name)
        if known is None or listing is None:
            yield listing, None
            return
        now = self.batches.get(guard.name, InputFiles(()))
        runs: dict[Judgement | None, list[FileStamp]] = {}
        for stamp in listing.stamps:
            if stamp not in known and stamp not in now.stamps:
                raise InputError(
                    f"step {guard.name!r} quarantines rows of {guard.source!r}, and has not judged"
                    f" {stamp.path}.",
                    path=stamp.path,
                    hint="run it as well: it is above this step.",
                )
            runs.setdefault(None if stamp in now.stamps else known[stamp], []).append(stamp)
        if not self._has_keys(guard) or not runs:
            yield listing, None
            return
        for run, stamps in runs.items():
            yield listing.without([stamp for stamp in listing.stamps if stamp not in stamps]), run

    def _has_keys(self, guard: Expect) -> bool:
        return bool(guard.unique or guard.references)

    # Judges

    def make_judge(self, guard: Expect, read: Read, listing: InputFiles | None) -> tuple[RowJudge, Read]:
        """The judge of a guard that runs now, and the reader of the rows that reach it."""
        self._check_types(guard, listing)
        if guard.name in self.judged and listing is not None:
            self.batches[guard.name] = listing
        reader = self._make_reader(require(guard.source), self._open_frames(read))
        return self._find_judge(guard, reader, listing, None), reader

    def _find_judge(
        self, guard: Expect, read: Read, files: InputFiles | None, run: Judgement | None
    ) -> RowJudge:
        together = files if run is not None else self.batches.get(guard.name, files)
        stamps = None if together is None or together.code else together.stamps
        key = (guard.name, run, stamps)
        # What was quarantined does not pass, though tables may have changed since the guard ran.
        if key in self.judges and (stamps is not None or guard.quarantine is not None):
            return self.judges[key]
        conditions = tuple(parse_conditions(guard))
        if not self._has_keys(guard):
            return RowJudge(conditions)
        if run is None:
            with self._stand_above(guard):
                keys = tuple(self._find_keys(guard, lambda: read(together)))
        else:
            keys = tuple(self._read_quarantined(guard, run))
        self.judges[key] = RowJudge(conditions, keys)
        return self.judges[key]

    @contextmanager
    def _stand_above(self, guard: Expect) -> Iterator[None]:
        """Read as the guard itself does: through the guards above it, not through itself or those below."""
        above = self.above
        at = next((number for number, one in enumerate(above) if one.name == guard.name), len(above))
        self.above = above[:at]
        try:
            yield
        finally:
            self.above = above

    def _find_keys(self, guard: Expect, open_rows: Callable[[], Any]) -> Iterator[BadKeys]:
        """The keys whose rows violate what is expected of all rows, or of another table."""
        use_duckdb = self.resources.engine == "duckdb"
        session = self.resources.session
        rows = None if session is None else as_frame(open_rows(), session)
        check_columns(guard, rows.columns if rows is not None else chain_streams(open_rows()).schema.names)
        columns = list_names(guard.unique)
        if columns:
            found = (
                find_repeated_keys(columns, lambda: chain_streams(open_rows()), use_duckdb=use_duckdb)
                if rows is None
                else find_repeated_frame(columns, rows)
            )
            yield self._count_keys(describe_unique(guard), columns, found)
        for one in parse_references(guard, self.resources.pipeline):
            found = (
                self._find_missing(one, open_rows, use_duckdb=use_duckdb)
                if rows is None
                else find_missing_frame(one, rows, self.resources.read_keys(one))
            )
            yield self._count_keys(one.expectation, one.columns, found)

    def _find_missing(
        self, reference: Reference, open_rows: Callable[[], Any], *, use_duckdb: bool
    ) -> pa.Table:
        def open_keys() -> pa.RecordBatchReader:
            return chain_streams(self.resources.read_keys(reference))

        return find_missing_keys(
            reference, lambda: chain_streams(open_rows()), open_keys, use_duckdb=use_duckdb
        )

    def _count_keys(self, expectation: str, columns: tuple[str, ...], found: Any) -> BadKeys:
        """The keys with their number of rows; on Spark they are kept, since the tables may change below."""
        if isinstance(found, pa.Table):
            return BadKeys(expectation, columns, found, int(pc.sum(found[ROWS]).as_py() or 0))
        return count_keys(expectation, columns, self.resources.persist(found))

    def _read_quarantined(self, guard: Expect, by: Judgement) -> Iterator[BadKeys]:
        """The keys that an earlier run has quarantined: the other tables may have changed since."""
        target = require(guard.quarantine)
        checks = [(describe_unique(guard), list_names(guard.unique))] if guard.unique else []
        references = parse_references(guard, self.resources.pipeline)
        checks += [(one.expectation, one.columns) for one in references]
        if not self.resources.get_table(target).snapshot().has_schema:
            return
        for expectation, columns in checks:
            rows = self.resources.read_columns(target, (*columns, REASON, RUN, STEP))
            told = f"{SEPARATOR}{expectation}{SEPARATOR}"
            if isinstance(rows, list):
                found = _select_quarantined(chain_streams(rows), by, told)
                keys = found.select(list(columns)).group_by(list(columns)).aggregate([])
                yield BadKeys(expectation, columns, keys, 0)
                continue
            keys = self.resources.persist(select_quarantined_keys(expectation, columns, rows, by))
            yield BadKeys(expectation, columns, keys, 0)


def count_keys(expectation: str, columns: tuple[str, ...], kept: Any) -> BadKeys:
    """Keys of a DataFrame that is persisted, with their number of rows."""
    from pyspark.sql import functions

    from intarsia.spark.collect import run_interruptible

    (counted,) = run_interruptible(kept.sparkSession, kept.agg(functions.sum(ROWS)).collect)
    return BadKeys(expectation, columns, kept, int(counted[0] or 0))


def select_quarantined_keys(expectation: str, columns: tuple[str, ...], rows: Any, by: Judgement) -> Any:
    """The keys that a judgement has put into a quarantine, whose rows are a DataFrame."""
    from pyspark.sql import functions

    reason = functions.concat(functions.lit(SEPARATOR), rows[REASON], functions.lit(SEPARATOR))
    told = f"{SEPARATOR}{expectation}{SEPARATOR}"
    mine = (rows[RUN] == by.run) & (rows[STEP] == by.step) & reason.contains(told)
    return rows.where(mine).select(*[quote_name(name) for name in columns]).distinct()


def select_keys(reference: Reference, rows: Any, session: Any) -> Any:
    """The keys of a source: a DataFrame with a session, else a list of one Arrow stream."""
    stream = chain_streams(rows) if isinstance(rows, list) else None
    there = rows.columns if stream is None else stream.schema.names
    lost = [name for name in reference.keys if name not in there]
    if lost:
        raise ColumnNotFound(
            f"source {reference.name!r} has no column {lost[0]!r}; it has {', '.join(there)}.",
            hint=suggest_names(lost, there),
        )
    if stream is None:
        return rows.select(*map(quote_name, reference.keys))
    keys = list(reference.keys)
    schema = pa.schema([stream.schema.field(name) for name in keys])
    picked = pa.RecordBatchReader.from_batches(schema, (batch.select(keys) for batch in stream))
    return [picked] if session is None else as_frame([picked], session)


def _select_quarantined(rows: pa.RecordBatchReader, by: Judgement, told: str) -> pa.Table:
    found = []
    for batch in rows:
        reason = pc.binary_join_element_wise(SEPARATOR, batch[REASON], SEPARATOR, "")
        mine = pc.and_(pc.equal(batch[RUN], by.run), pc.equal(batch[STEP], by.step))
        found.append(filter_rows(batch, pc.and_(mine, pc.match_substring(reason, told))))
    return pa.Table.from_batches(found, rows.schema)


if TYPE_CHECKING:
    from intarsia.pipeline.state.run_state import RunState


def enter_step(run_state: RunState, step: Step) -> None:
    """Set the guards through which a step reads its source."""
    guards = run_state.resources.guards
    guards.list_inputs = run_state.list_inputs
    streams = run_state.resources.graph.list_streams  # whose batches are judged as they come
    above = list_guards(run_state.list_steps(), step)
    guards.above = tuple(one for one in above if not streams(require(one.source)))
    judging = (*guards.above, step) if is_guard(step) else guards.above
    guards.judged = {
        guard.name: find_judged(run_state, guard) for guard in judging if judges_once(run_state, guard)
    }


def select_unjudged(run_state: RunState, step: Expect, listing: InputFiles) -> Selection:
    """The files that a quarantine has not judged, of those that steps below are about to take."""
    if not judges_once(run_state, step):
        return Selection(listing)
    source = run_state.pipeline.sources[require(step.source)]
    wanted: set[FileStamp] = set()
    for reader in _iterate_readers(run_state, step):
        is_once = reader.source == step.source and is_taken_once(
            reader, source, listing, full_refresh=run_state.full_refresh
        )
        wanted |= set(run_state.select_new(reader, listing).files.stamps if is_once else listing.stamps)
    judged = find_judged(run_state, step)
    known = [stamp for stamp in listing.stamps if stamp not in wanted or stamp in judged]
    return select_files(listing, known)[0]


def judges_once(run_state: RunState, step: Expect) -> bool:
    """Whether a quarantine judges each file once, since a step below takes each once.

    Else it judges all rows whenever one has changed, and its rows take the place of those before.
    """
    source = run_state.pipeline.sources[require(step.source)]
    if step.quarantine is None or source.is_computed or source.target is not None:
        return False
    listing = InputFiles((), fetched=any(map(is_web, list_names(source.path))))
    return any(
        other.source == step.source and is_taken_once(other, source, listing)
        for other in _iterate_readers(run_state, step)
    )


def find_judged(run_state: RunState, step: Expect) -> dict[FileStamp, Judgement]:
    """The files that a quarantine has judged as it is declared now, each with when it did."""
    found: dict[FileStamp, Judgement] = {}
    for judgement, files in _iterate_judgements(run_state, step):
        found |= dict.fromkeys(files, judgement)
    return found


def list_former_names(run_state: RunState, step: Expect) -> tuple[str, ...]:
    """The names under which a quarantine has judged, and its own."""
    names = [judgement.step for judgement, _ in _iterate_judgements(run_state, step)]
    return tuple(dict.fromkeys((step.name, *filter(None, names))))


def _iterate_judgements(
    run_state: RunState, step: Expect
) -> Iterator[tuple[Judgement, tuple[FileStamp, ...]]]:
    memory = run_state.state.steps.get(step.name)
    target = run_state.make_target_key(require(step.quarantine))
    scope = run_state.compute_scope(step)
    for known, files in ({} if memory is None else memory.taken.get(target, {})).items():
        if known.startswith(scope):
            run, _, name = known.removeprefix(scope).partition(" ")
            yield Judgement(run, name), files


def _iterate_readers(run_state: RunState, step: Expect) -> Iterator[Step]:
    """The steps below a guard that read its source through it, also through other sources."""
    is_below = False
    for other in run_state.list_steps():
        if step.writer not in (None, other.name):
            pass
        elif is_below and other.source is not None and not isinstance(other, Expect):
            read = run_state.resources.graph.list_sources(other.source)
            if step.source in read:
                yield other
        is_below |= other.name == step.name
