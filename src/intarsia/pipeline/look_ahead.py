"""Mistakes of later steps that can be known before the first one runs: missing targets and columns."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from intarsia.arguments import is_condition
from intarsia.common.lazy import import_optional
from intarsia.errors import (
    ColumnNotFound,
    InputError,
    IntarsiaError,
    KeyColumnError,
    NothingMatched,
    NotSupported,
)
from intarsia.kernel.read import SnapshotScan
from intarsia.pipeline.computed import SourceComputer, chain_streams, describe_place
from intarsia.pipeline.graph import NamedInput
from intarsia.pipeline.inputs import (
    InputFiles,
    check_portable,
    detect_format,
    is_web,
    make_transform,
    read_snapshot_frame,
    read_snapshot_stream,
    read_streams,
)
from intarsia.pipeline.local_modules import check_imports
from intarsia.pipeline.model import Expect, Merge, Source, Step, Write, find_written_target, list_names
from intarsia.pipeline.resources import RunResources, name_lost_columns
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
    """The first of the steps after the first whose query or function cannot run, with its error.

    A query is looked at where the columns of all that it reads are known, and no step before it may change
    them; of a function, whether what its file imports is there. No row is read, and no function is run.

    Args:
        run_state: the run.
        steps: the step about to run, and those after it.
    """
    ahead = _LookAhead(run_state.resources)
    for before, step in pairwise(steps):
        ahead.unsure |= _find_reshaped_targets(before) | run_state.unresolved.keys()
        try:
            _check_files(run_state, step)
            for name in run_state.resources.graph.list_sources(step.source) if step.source else ():
                ahead.find_columns(name)
            ahead.check_keys(step)
        except InputError as error:
            return step, error
    return None


def _check_files(run_state: RunState, step: Step) -> None:
    """Raise ColumnNotFound where local files that a step takes lack a column that their source declares."""
    if not isinstance(step, (Merge, Write)) or step.source is None:
        return
    if run_state.resources.graph.list_streams(step.source):  # its files are those of its checkpoint
        return
    sources, is_spark = run_state.pipeline.sources, run_state.pipeline.engine == "spark"
    try:
        selection = run_state.select_inputs(step, run_state.get_source(step))
    except (IntarsiaError, OSError):  # the step itself tells
        return
    if selection is None:
        return
    parts = selection.files.parts if selection.files.code else {step.source: selection.files}
    for name, listing in parts.items():
        source = sources[name]
        try:
            if (
                all(isinstance(file.filesystem, pafs.LocalFileSystem) for file in listing.files)
                and _is_read_ahead(source, listing)
                and not (is_spark and _is_sparks_own(source, listing))
            ):
                with name_lost_columns(name):
                    read_streams(source, listing)
        except ColumnNotFound:
            raise
        except (IntarsiaError, OSError, pa.ArrowException):
            continue


def _find_reshaped_targets(step: Step) -> set[str]:
    """The target whose columns a step may change."""
    target = find_written_target(step)
    reshapes = (
        isinstance(step, Expect)
        or step.schema_evolution is not None
        or (isinstance(step, Write) and step.mode != "append")
    )
    return {target} if reshapes and target is not None else set()


def _is_read_ahead(source: Source, listing: InputFiles) -> bool:
    """Whether the columns of files are looked up before the step that reads them."""
    if not listing.files or listing.fetched or len(listing.files) > _MOST_FILES:
        return False
    kind, size = detect_format(source, listing), sum(stamp.size for stamp in listing.stamps)
    return kind == "parquet" or (kind == "csv" and size <= _MOST_TEXT)


def _is_sparks_own(source: Source, listing: InputFiles) -> bool:
    """Whether Spark may find columns that are not in each file: by an option, or in another Parquet file."""
    try:
        check_portable(source)
    except NotSupported:
        return True
    return len(listing.files) > 1 and detect_format(source, listing) == "parquet"


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

    def check_keys(self, step: Step) -> None:
        """Raise KeyColumnError for a merge of a query whose columns are known, and lack a key."""
        source = None if step.source is None else self.resources.pipeline.sources[step.source]
        if not isinstance(step, Merge) or source is None or not source.is_computed or is_condition(step.on):
            return
        rows = self.find_columns(step.source or "")
        if rows is None:
            return
        there = list(rows.columns if self.resources.session is not None else rows.names)
        known = {name.lower() for name in there}
        lost = [name for name in list_names(step.on) if name.lower() not in known]
        if lost:
            told = f"key column {', '.join(map(repr, lost))} is missing from the source, which has"
            raise KeyColumnError(
                describe_place(
                    self.resources.graph.codes[step.source or ""], f"{told} {', '.join(map(repr, there))}."
                ),
                hint="name keys that both sides have.",
            )

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
            if listing is None or not _is_read_ahead(source, listing):
                return None
            schema = chain_streams(read_streams(source, listing)).schema
        session = self.resources.session
        if session is None:
            return schema
        types = import_optional("pyspark.sql.pandas.types")
        return session.createDataFrame([], types.from_arrow_schema(schema, prefer_timestamp_ntz=True))

    def _query(self, name: str, source: Source) -> Any:
        code = self.resources.graph.codes[name]
        if code.function is not None:
            check_imports(code.function.path, code.function.text, code.function.modules)
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
