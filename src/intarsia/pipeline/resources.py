"""What the steps of one run share: its engine, tables and sources; what a step does with them is in steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import pyarrow as pa

from intarsia.common.lazy import import_optional
from intarsia.core.ports import Table
from intarsia.core.snapshot import Snapshot
from intarsia.engine_choice import EngineLike
from intarsia.errors import ColumnNotFound, InputError, NothingMatched, NotSupported
from intarsia.kernel.read import SnapshotScan
from intarsia.pipeline import inputs
from intarsia.pipeline.computed import SourceComputer
from intarsia.pipeline.graph import NamedInput, SourceGraph
from intarsia.pipeline.inputs import Downloads, InputFiles, list_inputs
from intarsia.pipeline.model import Expect, Pipeline, Source, Target, is_guard, require
from intarsia.pipeline.places import complete_place
from intarsia.pipeline.quality.guards import SourceGuards, select_keys
from intarsia.pipeline.quality.references import Reference
from intarsia.pipeline.quality.row_judge import RowJudge
from intarsia.pipeline.rehearsal import Rehearsal
from intarsia.pipeline.since import Increment, read_difference
from intarsia.pipeline.streams.reader import read_stream
from intarsia.request import open_iceberg
from intarsia.spark.errors import list_spark_error_types
from intarsia.sql.query_columns import ColumnUse
from intarsia.tables.parquet import ParquetTable
from intarsia.tables.parquet.links import SnapshotLinks

__all__ = ["LoggedTable", "RunResources", "name_lost_columns", "open_target"]

_EVERY = ColumnUse()


class LoggedTable(Table, Protocol):
    """A table whose log says which steps have committed: what a pipeline's targets are."""

    def highest_batch(self, app_id: str) -> int | None:
        """The highest batch that was ever committed with this ``app_id``, also if it was rolled back."""

    def last_commits(self) -> Mapping[str, Mapping[str, str]]:
        """The properties of the last commit of each ``app_id``."""

    def knows_commits_since(self, version: int) -> bool:
        """Whether the log has every commit after a version."""

    def list_commits_since(self, version: int) -> Sequence[Mapping[str, str]]:
        """The properties of each commit after a version."""


@contextmanager
def name_lost_columns(name: str) -> Iterator[None]:
    """Add the place of a source to the error about a column that its files lack."""
    try:
        yield
    except ColumnNotFound as error:
        told = f"[sources.{name}]: {error.message}"
        raise ColumnNotFound(told, path=error.path, hint=error.hint) from error


def open_target(declared: Target, session: Callable[[], Any]) -> LoggedTable:
    """The table of a target; ``session`` gives the Spark session whose catalog may have it."""
    if declared.kind == "iceberg":
        return cast("LoggedTable", open_iceberg(declared.path, declared.catalog, **declared.options))
    if declared.kind == "spark_table":
        opened = import_optional("intarsia.catalog_tables")
        return cast("LoggedTable", opened.open_spark_table(declared.path, session(), **declared.options))
    return ParquetTable(declared.path, **dict(declared.options))  # type: ignore[arg-type]


@dataclass(slots=True)
class RunResources:
    """The engine, the tables of targets and the rows of sources, shared by all steps of one run.

    Files are listed in :meth:`list_inputs`; :meth:`read_rows` reads every kind of source.
    """

    pipeline: Pipeline
    opening: Callable[[], Any] | None = None
    """Opens the Spark session when it is first needed; None where the engine is another."""
    opened: Any = None
    unopened: BaseException | None = None
    """Why no session could be opened."""
    tables: dict[str, LoggedTable] = field(default_factory=dict)
    frames: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    """DataFrames that are persisted, since several steps read them."""
    computer: SourceComputer = field(default_factory=SourceComputer)
    made_graph: SourceGraph | None = None
    guards: SourceGuards = field(init=False)
    web: Downloads = field(default_factory=Downloads)
    links: SnapshotLinks = field(default_factory=SnapshotLinks)
    rehearsal: Rehearsal = field(default_factory=Rehearsal)
    increments: dict[str, Increment] = field(default_factory=dict)
    """By target: what the step under way reads of it since its last success."""

    def __post_init__(self) -> None:
        self.guards = SourceGuards(self)

    def close(self) -> None:
        """Unpersist DataFrames, and remove downloads, links and what a dry run wrote. Idempotent."""
        self.computer.close()
        self.links.close()
        self.rehearsal.close()
        while self.frames:
            with suppress(*list_spark_error_types()):  # a session that is gone has nothing to give back
                self.frames.popitem()[1].unpersist()
        self.web.close()

    def persist(self, frame: Any) -> Any:
        """The DataFrame, persisted until the run ends."""
        kept = self.frames[("persisted", id(frame))] = frame.persist()
        return kept

    @property
    def session(self) -> Any:
        """The Spark session, opened now if it was not; None where the engine is another."""
        if self.opened is None and self.opening is not None:
            try:
                self.opened = self.opening()
            except BaseException as error:
                self.unopened = error
                raise
        return self.opened

    @property
    def engine(self) -> EngineLike:
        return self.pipeline.engine if self.session is None else self.session

    @property
    def graph(self) -> SourceGraph:
        """What the computed sources read, as their files said when this was first asked."""
        if self.made_graph is None:
            self.made_graph = SourceGraph(self.pipeline)
        return self.made_graph

    def get_table(self, target: str) -> LoggedTable:
        """The table of a target; one object for the whole run, which caches the footers it has read."""
        if target not in self.tables:
            with self._name_target(target):
                self.tables[target] = open_target(self.pipeline.targets[target], lambda: self.session)
        return self.tables[target]

    @contextmanager
    def _name_target(self, target: str) -> Iterator[None]:
        """Add the place of a target to the error about a table that is not there, or cannot be one."""
        try:
            yield
        except (InputError, NotSupported) as error:
            told = type(error)(f"[targets.{target}]: {error.message}", path=error.path, hint=error.hint)
            complete_place(told, self.pipeline.lines, self.pipeline.origin)
            raise told from error

    def rehearse(self, target: str, spool_dir: str | os.PathLike[str] | None = None) -> bool:
        """Use a table from now on that starts as the target and is changed in a scratch place, for a dry run.

        Returns False, and changes nothing, where there is no place to write to.
        """
        found = self.rehearsal.open(
            self.get_table(target), self.session, None if spool_dir is None else os.fspath(spool_dir)
        )
        if found is not None:
            self.tables[target] = found
        return found is not None

    def list_inputs(self, source: Source) -> InputFiles | None:
        """The files of a source; None where it is a target."""
        session = None if self.opening is None else lambda: self.session
        return None if source.target is not None else list_inputs(source, self.web, session)

    def read_rows(self, source: Source, listing: InputFiles | None, known: pa.Schema | None = None) -> Any:
        """The rows of a source: a DataFrame where Spark can read it, else Arrow streams.

        Rows that a step above drops or quarantines are left out.
        """
        name = self._name_source(source)
        return self.guards.read(name, lambda files: self._read_all_rows(source, files, known), listing)

    def judge_rows(self, step: Expect, listing: InputFiles | None) -> tuple[RowJudge, Callable[[], Any]]:
        """The judge of a step that drops or quarantines rows, and a function that opens these rows."""
        source = self.pipeline.sources[require(step.source)]
        judge, read = self.guards.make_judge(
            step, lambda files: self._read_all_rows(source, files, None), listing
        )
        return judge, lambda: read(listing)

    def _read_all_rows(self, source: Source, listing: InputFiles | None, known: pa.Schema | None) -> Any:
        if source.is_computed:
            name = self._name_source(source)
            return self._compute_rows(source, listing, self._take_snapshots(name))
        if source.target is not None:
            snapshot = self._take_snapshot(source.target)
            self._check_exists(self._name_source(source), source.target, snapshot)
            return self._read_target(source, snapshot)
        if source.stream is not None:
            frame = read_stream(source, f"[sources.{self._name_source(source)}]", self.session)
            return inputs.transform_frame(frame, inputs.make_transform(source, "parquet"))
        assert listing is not None
        with name_lost_columns(self._name_source(source)):
            if self.session is None or listing.fetched:
                inputs.check_portable(source)
                return inputs.read_streams(source, listing, known)
            return self._read_frame(source, listing, known)

    def _take_snapshot(self, target: str) -> Snapshot:
        """A target's current state; where an engine reads files by itself, of files that stay as they are."""
        if target in self.increments:
            return self.increments[target].snapshot
        table = self.get_table(target)
        return table.snapshot() if self.pipeline.engine == "arrow" else self.links.take_snapshot(table)

    def _read_target(self, source: Source, snapshot: Snapshot) -> Any:
        """The rows of a source that is a target: all of them, or those that are new to the step."""
        found = None if source.since is None else self.increments.get(source.target or "")
        if found is None:
            return self._read_snapshot(source, snapshot)
        if found.before is None:
            return self._read_snapshot(source, found.added)
        return read_difference(source, found.added, found.before, self.pipeline.engine, self.session)

    def _read_snapshot(
        self, source: Source, snapshot: Snapshot, columns: tuple[str, ...] | None = None
    ) -> Any:
        if self.session is None:
            return [inputs.read_snapshot_stream(source, snapshot)]
        return inputs.read_snapshot_frame(source, snapshot, self.session, columns)

    def read_columns(self, target: str, names: tuple[str, ...]) -> Any:
        """Some columns of a target: a DataFrame on Spark, else a list of one Arrow stream.

        Raises:
            NothingMatched: the target does not exist.
            ColumnNotFound: it has no such column.
        """
        snapshot = self.get_table(target).snapshot()
        if not snapshot.has_schema:
            raise NothingMatched(
                f"the target {target!r} does not exist yet.",
                path=snapshot.root,
                hint="a step that writes it has to run before.",
            )
        return inputs.read_snapshot_columns(snapshot, names, self.session)

    def read_keys(self, reference: Reference) -> Any:
        """The keys that foreign keys are looked up in, as of :meth:`read_columns`; of a source, all its rows.

        Raises as :meth:`read_columns` and as :meth:`read_rows` do.
        """
        if not reference.is_source:
            return self.read_columns(reference.name, reference.keys)
        source = self.pipeline.sources[reference.name]
        listing = None if self.guards.list_inputs is None else self.guards.list_inputs(source)
        return select_keys(reference, self.read_rows(source, listing), self.session)

    def _name_source(self, source: Source) -> str:
        return next(name for name, one in self.pipeline.sources.items() if one is source)

    def _compute_rows(
        self, source: Source, listing: InputFiles | None, snapshots: Mapping[str, Snapshot]
    ) -> Any:
        """The rows of a query or function, of its files and of one snapshot of each target."""
        code = self.graph.codes[self._name_source(source)]
        parts = {} if listing is None else listing.parts

        def read(one: NamedInput, columns: ColumnUse = _EVERY) -> Any:
            if one.is_target:
                snapshot = snapshots[one.name]
                chosen = columns.select_columns(one.written, snapshot.schema.names)
                if self.session is None and code.query is not None:
                    return SnapshotScan(snapshot, chosen)
                return self._read_snapshot(Source(target=one.name), snapshot, chosen)
            declared = self.pipeline.sources[one.name]
            if declared.is_computed:
                return self.guards.read(
                    one.name, lambda files: self._compute_rows(declared, files, snapshots), listing
                )
            if (target := declared.target) is not None:
                return self.guards.read(
                    one.name, lambda _: self._read_target(declared, snapshots[target]), None
                )
            return self.read_rows(declared, parts.get(one.name))

        if self.session is not None:
            return self.computer.compute_frame(source, code, read, self.session)
        return [self.computer.compute_stream(source, code, read)]

    def _take_snapshots(self, name: str) -> dict[str, Snapshot]:
        """The snapshots of the targets that a computed source reads.

        Raises NothingMatched for a target that does not exist.
        """
        found = {target: self._take_snapshot(target) for target in self.graph.list_targets(name)}
        for target, snapshot in found.items():
            self._check_exists(name, target, snapshot)
        return found

    def _check_exists(self, name: str, target: str, snapshot: Snapshot) -> None:
        if not snapshot.has_schema:
            raise NothingMatched(
                f"the source {name!r} reads the target {target!r}, which does not exist yet.",
                path=snapshot.root,
                hint="a step that writes it has to run before.",
            )

    def _read_frame(self, source: Source, listing: InputFiles, known: pa.Schema | None) -> Any:
        """A DataFrame of files; persisted where text would be parsed by several steps, or twice by one."""
        looks = sum(
            2 if isinstance(step, Expect) and (step.unique or is_guard(step)) else 1
            for step in self.pipeline.steps
            for name in (() if step.source is None else self.graph.list_sources(step.source))
            if self.pipeline.sources[name] is source
        )
        if looks < 2 or inputs.detect_format(source, listing) == "parquet":
            return inputs.read_frame(source, listing, self.session, known)
        key = (id(source), listing.stamps, None if source.columns or known is None else known.to_string())
        if key not in self.frames:
            self.frames[key] = inputs.read_frame(source, listing, self.session, known).persist()
        return self.frames[key]
