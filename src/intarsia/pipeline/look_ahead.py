"""Mistakes of later steps that can be known before the first one runs: missing targets and columns."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa

from intarsia.common.lazy import import_optional
from intarsia.errors import InputError, IntarsiaError, NothingMatched
from intarsia.kernel.read import SnapshotScan
from intarsia.pipeline.computed import SourceComputer, chain_streams
from intarsia.pipeline.graph import NamedInput
from intarsia.pipeline.inputs import (
    detect_format,
    is_web,
    make_transform,
    read_snapshot_frame,
    read_snapshot_stream,
    read_streams,
)
from intarsia.pipeline.model import Expect, Source, Step, Write, find_written_target
from intarsia.pipeline.resources import RunResources
from intarsia.pipeline.state.run_state import RunState
from intarsia.spark.errors import list_spark_error_types
from intarsia.sql.query_columns import ColumnUse

_MOST_FILES = 64
"""Of more files the columns are not looked up before the step that reads them."""
_MOST_TEXT = 4 << 20
"""Bytes of text that are read for the types of its columns."""
_EVERY = ColumnUse()


def check_read_targets(run_state: RunState) -> None:
    """Refuse a source of a target that does not exist and that no step writes, before any step runs.

    Raises:
        NothingMatched: there is no such table.
    """
    steps = [step for step in run_state.list_steps() if step.name not in run_state.left_out]
    written = {find_written_target(step) for step in steps}
    graph, pipeline = run_state.resources.graph, run_state.pipeline
    for name in {name for step in steps if step.source for name in graph.list_sources(step.source)}:
        code = graph.codes.get(name)
        read = (
            [pipeline.sources[name].target]
            if code is None
            else [one.name for one in code.inputs if one.is_target]
        )
        for target in read:
            if target is None or target in written or target in run_state.unresolved:
                continue
            if not run_state.get_snapshot(target).has_schema:
                where = pipeline.origin or f"pipeline {pipeline.name!r}"
                raise NothingMatched(
                    f"{where}, [sources.{name}]: the target {target!r} does not exist, and no step of this"
                    " run writes it.",
                    path=run_state.show_target_path(target),
                    hint="correct its path, or run the step or pipeline that writes it before.",
                )


def find_bad_query(run_state: RunState, steps: Sequence[Step]) -> tuple[Step, InputError] | None:
    """The first of the steps after the first whose query the engine refuses, with its error; None if none is.

    A query is looked at where the columns of all that it reads are known, and no step before it may change
    them. No row is read.

    Args:
        run_state: the run.
        steps: the step about to run, and those after it.
    """
    ahead = _LookAhead(run_state.resources)
    for before, step in pairwise(steps):
        ahead.unsure |= _find_reshaped_targets(before) | run_state.unresolved.keys()
        try:
            for name in run_state.resources.graph.list_sources(step.source) if step.source else ():
                ahead.find_columns(name)
        except InputError as error:
            return step, error
    return None


def _find_reshaped_targets(step: Step) -> set[str]:
    """The target whose columns a step may change."""
    target = find_written_target(step)
    reshapes = (
        isinstance(step, Expect)
        or step.schema_evolution is not None
        or (isinstance(step, Write) and step.mode != "append")
    )
    return {target} if reshapes and target is not None else set()


@dataclass(slots=True)
class _LookAhead:
    """What sources will give, as far as it is known: a DataFrame without rows on Spark, else a schema."""

    resources: RunResources
    unsure: set[str] = field(default_factory=set)
    """Targets that may have other columns when they are read."""
    found: dict[str, Any] = field(default_factory=dict)

    def find_columns(self, name: str) -> Any:
        """The columns of a source; None where they are not known yet.

        Raises InputError for a query that the engine refuses.
        """
        if name not in self.found:
            source = self.resources.pipeline.sources[name]
            self.found[name] = self._query(name, source) if source.is_computed else self._look_up(source)
        return self.found[name]

    def _look_up(self, source: Source) -> Any:
        try:
            return self._look_up_target(source) if source.target is not None else self._look_up_files(source)
        except (IntarsiaError, OSError, pa.ArrowException, *list_spark_error_types()):
            return None  # the step that reads it tells

    def _look_up_target(self, source: Source) -> Any:
        snapshot = self._take_snapshot(source.target or "")
        if snapshot is None:
            return None
        if self.resources.session is None:
            return read_snapshot_stream(source, snapshot).schema
        return read_snapshot_frame(source, snapshot, self.resources.session)

    def _take_snapshot(self, target: str) -> Any:
        """The target without its files; None where it does not exist, or where its columns may change."""
        if target in self.unsure:
            return None
        snapshot = self.resources.get_table(target).snapshot()
        return snapshot.with_files() if snapshot.has_schema else None

    def _look_up_files(self, source: Source) -> Any:
        if source.stream is not None:
            return None
        shape = make_transform(source, "csv")
        if shape.only:
            schema = shape.make_schema(pa.schema(list(shape.types.items())))
        elif any(map(is_web, [source.path] if isinstance(source.path, str) else source.path or ())):
            return None
        else:
            listing = self.resources.list_inputs(source)
            if listing is None or not 0 < len(listing.files) <= _MOST_FILES:
                return None
            kind, size = detect_format(source, listing), sum(stamp.size for stamp in listing.stamps)
            if kind != "parquet" and (kind != "csv" or size > _MOST_TEXT):
                return None
            schema = chain_streams(read_streams(source, listing)).schema
        session = self.resources.session
        if session is None:
            return schema
        types = import_optional("pyspark.sql.pandas.types")
        return session.createDataFrame([], types.from_arrow_schema(schema, prefer_timestamp_ntz=True))

    def _query(self, name: str, source: Source) -> Any:
        code = self.resources.graph.codes[name]
        if code.query is None:
            return None
        given = {}
        for one in code.inputs:
            rows = self._look_up(Source(target=one.name)) if one.is_target else self.find_columns(one.name)
            if rows is None:
                return None
            given[one.written] = rows
        session = self.resources.session

        def read(one: NamedInput, columns: ColumnUse = _EVERY) -> Any:
            rows = given[one.written]
            if session is not None:
                return rows
            if one.is_target:
                snapshot = self._take_snapshot(one.name)
                return SnapshotScan(snapshot, columns.select_columns(one.written, snapshot.schema.names))
            return [pa.RecordBatchReader.from_batches(rows, [])]

        computer = SourceComputer()
        try:
            if session is not None:
                return computer.compute_frame(source, code, read, session)
            return computer.compute_stream(source, code, read).schema
        except IntarsiaError as error:
            if isinstance(error, InputError) and _is_refused(error):
                raise
            return None  # of rows that are not these
        finally:
            computer.close()


def _is_refused(error: InputError) -> bool:
    """Whether an engine refuses a query whatever the rows: for a name or a type."""
    return any(isinstance(cause, _list_refusals()) for cause in _list_causes(error))


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _list_refusals() -> tuple[type[BaseException], ...]:
    """What an engine raises that is loaded."""
    found: list[type[BaseException]] = []
    if "duckdb" in sys.modules:
        duckdb = import_optional("duckdb")
        found += [duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException]
    if "pyspark.errors" in sys.modules:
        found.append(import_optional("pyspark.errors").AnalysisException)
    return tuple(found)
