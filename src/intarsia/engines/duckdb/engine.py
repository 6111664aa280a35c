"""The out-of-core engine: DuckDB in this process matches, joins, sorts and writes, on disk if it has to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow.fs as pafs

from intarsia.common.arrow import SPOOL_BYTES, adopt
from intarsia.common.source import Source
from intarsia.core.change import Change, Staging
from intarsia.core.files import Snapshot
from intarsia.core.intent import Compact, Deduplicate, Delete, Intent, Merge, Optimize, Update, Write
from intarsia.core.matches import Matches
from intarsia.core.plan import Plan
from intarsia.core.ports import Progress, Transaction
from intarsia.core.prepare import Prepared, indexed_keys, prepare, settle_merge
from intarsia.core.rehearsal import in_scratch, nowhere
from intarsia.core.run import settled
from intarsia.core.spark_note import as_stored
from intarsia.engines.arrow import ArrowEngine
from intarsia.engines.arrow.afresh import stage_afresh
from intarsia.engines.arrow.fan_out import BUFFERED_BYTES
from intarsia.engines.arrow.predicates import with_new_rows
from intarsia.engines.duckdb.checksums import naming_files, verify_each
from intarsia.engines.duckdb.duplicates import match_duplicates
from intarsia.engines.duckdb.fitness import (
    beyond_matching,
    looked_at,
    merge_beyond,
    optimize_beyond,
    writing_notes,
)
from intarsia.engines.duckdb.matching import match_merge
from intarsia.engines.duckdb.optimizing import stage_optimize
from intarsia.engines.duckdb.predicates import match_predicate
from intarsia.engines.duckdb.regroup import stage_compact
from intarsia.engines.duckdb.rewriting import stage_rows
from intarsia.engines.duckdb.session import Session
from intarsia.engines.duckdb.source import DuckSource, Loaded, prepare_merge
from intarsia.errors import InputError

__all__ = ["DuckDBEngine"]


@dataclass(frozen=True, slots=True)
class DuckDBEngine:
    """Moves rows with DuckDB.

    With the caller's ``connection`` it works beside it and touches none of its settings. Without one it
    has an instance of its own: ``memory_bytes`` is its limit, beyond which it works on disk, below
    ``spool_dir``.

    Memory: DuckDB's limit; 16 bytes per row that changes; the source, mapped from a spool where it is
    large. What DuckDB cannot hold or write exactly (a few types, see the docs) the Arrow engine does, and
    the plan says so.
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

    @property
    def _arrow(self) -> ArrowEngine:
        memory: dict[str, Any] = {} if self.memory_bytes is None else {"memory_bytes": self.memory_bytes // 2}
        return ArrowEngine(threads=self.threads, **memory)

    def session(self) -> Session:
        """DuckDB, for one operation; to be closed."""
        directory = None if self.spool_dir is None else os.fspath(self.spool_dir)
        return Session(
            self.connection, memory_bytes=self.memory_bytes, threads=self.threads, temp_directory=directory
        )

    def adopt(self, source: Any, **options: Any) -> Source:
        """As the Arrow engine does; a source of more than a quarter of the memory is spooled.

        What another engine took in already is taken over as it is.
        """
        if isinstance(source, Source):
            return DuckSource(source, self.session)
        if self.memory_bytes is not None:
            given = options.get("spool_bytes", SPOOL_BYTES)
            options["spool_bytes"] = min(given, self.memory_bytes // 4)
        if self.spool_dir is not None:
            options.setdefault("spool_dir", self.spool_dir)
        return DuckSource(adopt(source, **options), self.session)

    def prepare(self, intent: Intent, snapshot: Snapshot, source: Source | None) -> Prepared:
        """Names and types settled; of a merge, keys in DuckDB and checked there."""
        if not isinstance(intent, Merge):
            return prepare(intent, snapshot, source)
        assert isinstance(source, DuckSource)
        fitted = as_stored(source, snapshot, operation=intent.operation)
        terms = settle_merge(intent, snapshot, fitted.schema)
        reason = merge_beyond(terms, source.table)
        if fitted is not source:
            reason = "intervals or VARIANT are stored as Spark does"
        if reason is not None:
            prepared = prepare(intent, snapshot, source)
            return replace(prepared, notes=(*prepared.notes, _elsewhere("matched", reason)))
        return prepare_merge(terms, snapshot, source)

    def match(self, plan: Plan, prepared: Prepared, progress: Progress) -> Matches:
        """Which rows change; writes nothing."""
        with self._session(prepared) as session, naming_files(plan):
            return self._match(plan, prepared, session, progress)

    def execute(
        self, plan: Plan, prepared: Prepared, tx: Transaction, progress: Progress
    ) -> tuple[Plan, Change]:
        """Match, then write the files that come to staging."""
        with self._session(prepared) as session, naming_files(plan):
            matches = self._match(plan, prepared, session, progress)
            plan = settled(plan, prepared, matches)
            return plan, self._stage(plan, matches, prepared, tx, session, progress)

    def measuring(self, plan: Plan) -> AbstractContextManager[Staging | None]:
        """DuckDB writes to this machine's disk, and to other storage otherwise than there."""
        if plan.snapshot.spread is not None:  # whose files PyArrow writes
            return nullcontext(nowhere())
        if not isinstance(plan.snapshot.filesystem, pafs.LocalFileSystem):
            return nullcontext(None)
        return in_scratch(None if self.spool_dir is None else os.fspath(self.spool_dir))

    @contextmanager
    def _session(self, prepared: Prepared) -> Iterator[Session]:
        """That of the source, or one for as long as it takes."""
        if isinstance(prepared.remote, Loaded):
            yield prepared.remote.session
        else:
            with self.session() as session:
                yield session

    def _match(self, plan: Plan, prepared: Prepared, session: Session, progress: Progress) -> Matches:
        reason = beyond_matching(plan)
        if reason is None:
            _verify_scans(plan, session.threads)
        match plan.intent:
            case Merge() as intent if isinstance(prepared.remote, Loaded) and reason is None:
                matches = match_merge(plan, intent, prepared.remote, progress)
            case Delete() | Update() as intent if reason is None:
                matches = match_predicate(plan, intent, session, progress)
            case Write() as intent if reason is None and plan.chosen("scan"):
                found = match_predicate(plan, intent, session, progress)
                matches = with_new_rows(found, prepared.table)
            case Deduplicate(keys, order_by) if reason is None:
                matches = match_duplicates(
                    plan, keys=keys, order_by=order_by, session=session, progress=progress
                )
            case Merge() as intent if isinstance(prepared.remote, Loaded):  # what DuckDB has is of no use
                index = indexed_keys(intent, prepared.table, plan.snapshot.root)
                matches = self._arrow.match(plan, replace(prepared, index=index), progress)
            case _:
                matches = self._arrow.match(plan, prepared, progress)
        notes = [] if reason is None else [_elsewhere("matched", reason)]
        return replace(matches, notes=(*matches.notes, *notes, *writing_notes(plan, matches, prepared.table)))

    def _stage(
        self,
        plan: Plan,
        matches: Matches,
        prepared: Prepared,
        tx: Transaction,
        session: Session,
        progress: Progress,
    ) -> Change:
        dealt = plan.snapshot.spread is not None
        match plan.intent:
            case Compact() if not dealt:
                return stage_compact(plan, tx, session, progress)
            case Optimize() as intent if optimize_beyond(plan) is None:
                every = [(file, None) for group in plan.groups for file in group.files]
                verify_each(every, plan.snapshot.filesystem, threads=session.threads)
                drops = _drops(plan, intent, session, progress)
                writers = self._writers(session) if dealt else None
                return stage_optimize(plan, tx, session, progress, drops, writers=writers)
            case Compact() | Optimize():
                return self._arrow.stage(plan, matches, prepared, tx, progress)
            case Merge() | Delete() | Update() | Write() | Deduplicate() if dealt:
                threads = self._writers(session)
                return stage_afresh(plan, matches, prepared, tx, threads=threads, progress=progress)
            case Merge() | Delete() | Update() | Write() | Deduplicate():
                return stage_rows(plan, matches, prepared, tx, session, progress)

    def _writers(self, session: Session) -> int:
        """How many threads PyArrow writes new files with; each holds rows that wait for their row group."""
        if self.memory_bytes is None:
            return session.threads
        return max(1, min(session.threads, self.memory_bytes // (4 * BUFFERED_BYTES)))


def _verify_scans(plan: Plan, threads: int) -> None:
    """Damaged pages are found before they decide about rows."""
    columns = frozenset(looked_at(plan))
    if columns:
        parts = ((item.file, item.row_groups) for item in plan.chosen("scan"))
        verify_each(parts, plan.snapshot.filesystem, columns=columns, threads=threads)


def _drops(plan: Plan, intent: Optimize, session: Session, progress: Progress) -> Matches:
    """The duplicates that are left out, over all groups."""
    if not (intent.deduplicate or intent.deduplicate_keys):
        return Matches()
    return match_duplicates(
        plan,
        keys=intent.deduplicate_keys,
        order_by=intent.dedup_order_by,
        session=session,
        progress=progress,
        files=[file for group in plan.groups for file in group.files],
    )


def _elsewhere(what: str, reason: str) -> str:
    return f"Rows are {what} by PyArrow: {reason}."
