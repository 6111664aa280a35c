"""The out-of-core engine: DuckDB in this process matches, joins and sorts, on disk if needed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb

from intarsia.common.arrow import SPOOL_BYTES, ingest
from intarsia.common.paths import get_local_path
from intarsia.common.source import IngestedSource
from intarsia.core.change import Matches, Staged
from intarsia.core.intent import (
    DeduplicateIntent,
    DeleteIntent,
    Intent,
    MergeIntent,
    OptimizeIntent,
    UpdateIntent,
    WriteIntent,
)
from intarsia.core.plan import Plan
from intarsia.core.ports import Execution
from intarsia.core.prepare import Prepared, index_keys, prepare, resolve_merge
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.core.spark_metadata import conform_to_stored
from intarsia.engines.duckdb.checksums import verify_each
from intarsia.engines.duckdb.duplicates import match_duplicates
from intarsia.engines.duckdb.match import match_merge
from intarsia.engines.duckdb.optimize import stage_optimize
from intarsia.engines.duckdb.predicate import match_predicate
from intarsia.engines.duckdb.session import Session
from intarsia.engines.duckdb.source import DuckSource, LoadedKeys, prepare_merge
from intarsia.engines.duckdb.support import (
    explain_unsupported_match,
    explain_unsupported_merge,
    explain_unsupported_optimize,
    list_matched_columns,
)
from intarsia.errors import DamagedTable, InputError, NotSupported
from intarsia.kernel.local import Resources, match_rows, stage_files
from intarsia.kernel.match import with_new_rows
from intarsia.kernel.partitioned_writer import BUFFERED_BYTES
from intarsia.kernel.read import FileReader

__all__ = ["DuckDBEngine"]

MEMORY_BYTES = 512 << 20
"""Memory of the kernel for sorting and comparing, if DuckDB has no limit."""


@dataclass(frozen=True, slots=True)
class DuckDBEngine:
    """Finds and sorts rows with DuckDB; the kernel writes them.

    With the caller's ``connection`` it works beside it and touches none of its settings. Without one it
    has an instance of its own: ``memory_bytes`` is its limit, beyond which it works on disk, below
    ``spool_dir``.

    Memory: DuckDB's limit; 16 bytes per row that changes; the source, mapped from a spool where it is
    large; a row group for each file being written. What DuckDB cannot hold exactly (a few types, see the
    docs) the kernel does with PyArrow, and the plan says so.
    """

    connection: Any = field(default=None, repr=False)
    threads: int = 0
    memory_bytes: int | None = None
    spool_dir: str | os.PathLike[str] | None = None
    name: str = "duckdb"

    def __post_init__(self) -> None:
        given = [n for n in ("threads", "memory_bytes") if getattr(self, n)]
        if self.connection is not None and given:
            raise InputError(
                f"{', '.join(given)} cannot be set on a connection of yours, whose settings stay untouched.",
                hint="SET threads or memory_limit there, or pass no connection.",
            )

    def open_session(self) -> Session:
        """DuckDB, for one operation; to be closed."""
        directory = None if self.spool_dir is None else os.fspath(self.spool_dir)
        return Session(
            self.connection, memory_bytes=self.memory_bytes, threads=self.threads, temp_directory=directory
        )

    def ingest(self, source: Any, **options: Any) -> IngestedSource:
        """As the Arrow engine does; a source of more than a quarter of the memory is spooled.

        A source that another engine has ingested is used as it is.
        """
        if isinstance(source, IngestedSource):
            return DuckSource(source, self.open_session)
        if self.memory_bytes is not None:
            given = options.get("spool_bytes", SPOOL_BYTES)
            options["spool_bytes"] = min(given, self.memory_bytes // 4)
        if self.spool_dir is not None:
            options.setdefault("spool_dir", self.spool_dir)
        return DuckSource(ingest(source, **options), self.open_session)

    def prepare(self, intent: Intent, snapshot: Snapshot, source: IngestedSource | None) -> Prepared:
        """Names and types resolved; of a merge, keys loaded into DuckDB and checked there."""
        if not isinstance(intent, MergeIntent):
            return prepare(intent, snapshot, source)
        assert isinstance(source, DuckSource)
        fitted = conform_to_stored(source, snapshot, operation=intent.operation)
        terms = resolve_merge(intent, snapshot, fitted.schema)
        reason = explain_unsupported_merge(terms, source.table)
        if fitted is not source:
            reason = "intervals or VARIANT are stored as Spark does"
        if reason is not None:
            prepared = prepare(intent, snapshot, source)
            return replace(prepared, notes=(*prepared.notes, _note_arrow("matched", reason)))
        return prepare_merge(terms, snapshot, source)

    def match(self, execution: Execution) -> Matches:
        """Which rows change; writes nothing."""
        with self._use_session(execution.prepared) as session, name_damaged_file(execution.plan):
            _open_files(session, execution.plan)
            return self._match(execution, session)

    def stage(self, execution: Execution, matches: Matches) -> Staged:
        """DuckDB sorts where rows are to be in order; the kernel writes the files."""
        plan = execution.plan
        with self._use_session(execution.prepared) as session, name_damaged_file(plan):
            _open_files(session, plan)
            if not isinstance(plan.intent, OptimizeIntent) or explain_unsupported_optimize(plan) is not None:
                return stage_files(execution, matches, self._compute_resources(session))
            every = [(file, None) for group in plan.groups for file in group.files]
            verify_each(every, plan.snapshot.filesystem, threads=session.threads)
            drops = _find_drops(execution, plan.intent, session)
            resources = self._compute_resources(session)
            return stage_optimize(
                plan,
                execution.transaction,
                session,
                execution.progress,
                drops,
                threads=resources.threads,
                memory_bytes=resources.memory_bytes,
            )

    @contextmanager
    def _use_session(self, prepared: Prepared) -> Iterator[Session]:
        """The session of the source, or a new one for this step."""
        if isinstance(prepared.remote, LoadedKeys):
            yield prepared.remote.session
        else:
            with self.open_session() as session:
                yield session

    def _match(self, execution: Execution, session: Session) -> Matches:
        plan, prepared, progress = execution.plan, execution.prepared, execution.progress
        reason = explain_unsupported_match(plan)
        if reason is None:
            _verify_scans(plan, session.threads)
        match plan.intent:
            case MergeIntent() as intent if isinstance(prepared.remote, LoadedKeys) and reason is None:
                return match_merge(plan, intent, prepared.remote, progress)
            case DeleteIntent() | UpdateIntent() as intent if reason is None:
                return match_predicate(plan, intent, session, progress)
            case WriteIntent() as intent if reason is None and plan.select("scan"):
                found = match_predicate(plan, intent, session, progress)
                return with_new_rows(found, prepared.table)
            case DeduplicateIntent(keys, order_by) if reason is None:
                return match_duplicates(
                    plan, keys=keys, order_by=order_by, session=session, progress=progress
                )
            case OptimizeIntent():
                reason = explain_unsupported_optimize(plan)
                return Matches(notes=() if reason is None else (_note_arrow("ordered", reason),))
            case MergeIntent() as intent if isinstance(prepared.remote, LoadedKeys):  # unusable here
                index = index_keys(intent, prepared.table, plan.snapshot.root)
                execution = replace(execution, prepared=replace(prepared, index=index))
        matches = match_rows(execution, self._compute_resources(session))
        notes = () if reason is None else (_note_arrow("matched", reason),)
        return replace(matches, notes=(*matches.notes, *notes))

    def _compute_resources(self, session: Session) -> Resources:
        """Threads and memory of the kernel beside DuckDB; each thread holds the rows of open row groups."""
        if self.memory_bytes is None:
            return Resources(session.threads, MEMORY_BYTES)
        threads = max(1, min(session.threads, self.memory_bytes // (4 * BUFFERED_BYTES)))
        return Resources(threads, self.memory_bytes // 2)


def _verify_scans(plan: Plan, threads: int) -> None:
    """Verify the pages that decide which rows change."""
    columns = frozenset(list_matched_columns(plan))
    if columns:
        parts = ((item.file, item.row_groups) for item in plan.select("scan"))
        verify_each(parts, plan.snapshot.filesystem, columns=columns, threads=threads)


def _find_drops(execution: Execution, intent: OptimizeIntent, session: Session) -> Matches:
    """The duplicates in the files of all groups, which are left out."""
    if not intent.removes_duplicates:
        return Matches()
    plan = execution.plan
    return match_duplicates(
        plan,
        keys=intent.deduplicate_keys,
        order_by=intent.dedup_order_by,
        session=session,
        progress=execution.progress,
        files=[file for group in plan.groups for file in group.files],
    )


def _open_files(session: Session, plan: Plan) -> None:
    """Let DuckDB reach the files of a plan, and an instance of our own nothing else."""
    local: set[str] = set()
    others: dict[str, str] = {}
    grouped = (file for group in plan.groups for file in group.files)
    for file in itertools.chain((item.file for item in plan.touched), grouped):
        place = get_local_path(plan.snapshot.filesystem, file.location)
        if place is None:
            others[file.location] = _find_directory(file.location, file.path)
        else:
            local.add(_find_directory(place, file.path))
    session.use_httpfs(plan.snapshot.filesystem, plan.snapshot.find_access, others)
    session.restrict(local)


def _find_directory(place: str, path: str) -> str:
    """That of the dataset, for a file whose place there is its path; else what is above partitions."""
    if place.endswith(f"/{path}"):
        return place.removesuffix(f"/{path}")
    above = os.path.dirname(place)
    while "=" in os.path.basename(above):
        above = os.path.dirname(above)
    return above


def _note_arrow(what: str, reason: str) -> str:
    return f"Rows are {what} by PyArrow: {reason}."


@contextmanager
def name_damaged_file(plan: Plan) -> Iterator[None]:
    """Name the damaged file in an error of DuckDB that names none: the one that PyArrow cannot read."""
    try:
        yield
    except (DamagedTable, NotSupported) as error:
        if error.path is not None or not isinstance(error.__cause__, duckdb.Error):
            raise
        chosen = [item.file for item in plan.touched if item.action != "keep"]
        for file in chosen:
            _decode_whole(file, plan.snapshot)
        several = f"one of {len(chosen)} files, the first is " if len(chosen) > 1 else ""
        said = f"{error.message} [{several}{plan.snapshot.show_path(chosen[0])}]" if chosen else error.message
        raise type(error)(said, hint=error.hint) from error.__cause__


def _decode_whole(file: DataFile, snapshot: Snapshot) -> None:
    """Decode every page; raises DamagedTable or StorageError with the file's name."""
    with FileReader(file, snapshot.schema, snapshot.filesystem) as reader:
        for group in range(reader.footer.num_row_groups):
            for _ in reader.read_pieces(snapshot.schema.names, group):
                pass
