"""The way of every operation, seen with a table and an engine that only take notes."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from intarsia.common.arrow import ingest
from intarsia.core.change import (
    Change,
    Committed,
    Hits,
    Matches,
    Replacement,
    Staged,
    StagedFile,
    make_transaction_id,
)
from intarsia.core.file_table import FileTuple
from intarsia.core.intent import CompactIntent, DeleteIntent, MergeIntent, WriteIntent
from intarsia.core.ports import Execution
from intarsia.core.prepare import Prepared, prepare
from intarsia.core.rule import get_strategy_rule
from intarsia.core.run import ATTEMPTS, explain, run
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.errors import CommitConflict, DamagedTable, InputError, KeyColumnError

SCHEMA = pa.schema([("id", pa.int64())])
FILE = DataFile("a.parquet", "a.parquet", 100, 10)
SNAPSHOT = Snapshot("lake", FileTuple((FILE,)), SCHEMA, (), pafs.LocalFileSystem(), version=3)
UPSERT = MergeIntent(get_strategy_rule("upsert"), ("id",), ("id",))


@dataclass
class Notes:
    """A table and an engine in one, that write down what is asked of them."""

    conflicts: int = 0
    matches: Matches = field(default_factory=Matches)
    staged: Staged = field(default_factory=Staged)
    commits: list[Change] = field(default_factory=list)
    snapshot_: Snapshot = SNAPSHOT
    calls: list[str] = field(default_factory=list)
    name: str = "notes"
    txid: str = "t1"
    commit_attempts: int | None = None
    requests: None = None

    def snapshot(self) -> Snapshot:
        self.calls.append("snapshot")
        return self.snapshot_

    def check(self) -> None:
        """Nothing is wrong with this table."""

    def check_change(self, snapshot, change, staging=None) -> None:
        self.calls.append("check")

    @contextlib.contextmanager
    def transaction(self, operation: str) -> Any:
        self.calls.append(f"begin {operation}")
        try:
            yield Attempt(self)
        finally:
            self.calls.append("end")

    def prepare(self, intent, snapshot, source) -> Prepared:
        return prepare(intent, snapshot, source)

    def match(self, execution: Execution) -> Matches:
        self.calls.append("match")
        execution.progress("scan keys", 1, 1)
        return self.matches

    def stage(self, execution: Execution, matches: Matches) -> Staged:
        assert execution.plan.matched
        assert matches is self.matches
        self.calls.append("stage")
        return self.staged


@dataclass
class Attempt:
    notes: Notes

    @property
    def snapshot(self) -> Snapshot:
        return self.notes.snapshot_

    def commit(self, change: Change) -> Committed:
        self.notes.calls.append("commit")
        self.notes.commits.append(change)
        if self.notes.conflicts:
            self.notes.conflicts -= 1
            raise CommitConflict("another writer", path="lake")
        return Committed("t1", 4)


@pytest.fixture
def source():
    with ingest(pa.table({"id": [1, 2]})) as adopted:
        yield adopted


def test_an_operation_matches_stages_and_commits_within_one_transaction(source):
    notes = Notes()
    run(UPSERT, notes, notes, source)
    assert notes.calls == ["begin merge", "match", "stage", "commit", "end"]


def test_a_dry_run_takes_a_snapshot_matches_and_measures_and_that_is_all(source):
    notes = Notes(matches=Matches(inserted=2))
    result = run(UPSERT, notes, notes, source, dry_run=True)
    assert notes.calls == ["snapshot", "match", "stage", "check"]
    assert (result.dry_run, result.inserted, result.total, result.version) == (True, 2, 12, None)
    assert explain(UPSERT, notes, notes, source).bytes_exact


def test_a_dry_run_beyond_what_it_measures_matches_and_that_is_all(source):
    notes = Notes(matches=Matches(inserted=2))
    result = run(UPSERT, notes, notes, source, dry_run=True, measured_bytes=1)
    assert notes.calls == ["snapshot", "match", "check"]
    assert (result.inserted, result.bytes_exact) == (2, False)
    assert not explain(UPSERT, notes, notes, source, measured_bytes=1).bytes_exact


def test_a_conflict_is_planned_again_from_a_fresh_snapshot(source):
    notes = Notes(conflicts=2)
    result = run(UPSERT, notes, notes, source)
    assert result.attempts == 3
    assert notes.calls == ["begin merge", "match", "stage", "commit", "end"] * 3


def test_conflicts_without_end_are_an_error_after_some_attempts(source):
    notes = Notes(conflicts=100)
    with pytest.raises(CommitConflict):
        run(UPSERT, notes, notes, source)
    assert notes.calls.count("commit") == ATTEMPTS
    notes = Notes(conflicts=100)
    with pytest.raises(CommitConflict):
        run(UPSERT, notes, notes, source, attempts=1)
    assert notes.calls.count("commit") == 1


def test_what_is_wrong_is_said_before_anything_is_matched():
    notes = Notes()
    with ingest(pa.table({"id": [1, 1]})) as twice, pytest.raises(KeyColumnError):
        run(UPSERT, notes, notes, twice)
    assert notes.calls == ["begin merge", "end"]
    with pytest.raises(InputError), ingest(pa.table({"id": [1]})) as rows:
        run(WriteIntent("overwrite_partitions"), notes, notes, rows)
    assert "match" not in notes.calls


def test_the_report_counts_what_was_staged(source):
    new = StagedFile("s", "new.parquet", 1, 70)
    rewritten = StagedFile("r", "a.parquet", 10, 30)
    matches = Matches(hits={"a.parquet": Hits(pa.array([0, 1]))}, inserted=1, updated=2)
    notes = Notes(matches=matches, staged=Staged({"a.parquet": rewritten}, (new,)))
    result = run(UPSERT, notes, notes, source)
    assert (result.target_count_before, result.target_count_after) == (10, 11)
    assert result.inserted_files == ["lake/new.parquet"]
    assert result.rewritten_files == ["lake/a.parquet"]
    assert (result.bytes_written, result.version, result.txid) == (100, 4, "t1")
    (change,) = notes.commits
    assert change.replaced == (Replacement(FILE, rewritten),)
    assert (change.added, change.removed, change.planned, change.exclusive) == ((new,), (), (FILE,), True)
    assert (result.source_count, result.engine, result.strategy) == (2, "notes", "upsert")


def test_an_empty_change_has_no_transaction_to_name(source):
    notes = Notes()
    assert run(UPSERT, notes, notes, source).txid is None


def test_a_regrouping_that_loses_rows_tells_how_many():
    files = (FILE, DataFile("b.parquet", "b.parquet", 100, 10))
    staged = Staged(added=(StagedFile("s", "n.parquet", 17, 70),))
    notes = Notes(staged=staged, snapshot_=SNAPSHOT.with_files(files))
    result = run(CompactIntent(), notes, notes)
    assert (result.deleted, result.total) == (3, 17)
    (change,) = notes.commits
    assert (change.removed, change.planned, change.exclusive) == (files, files, False)


def test_progress_is_passed_on():
    heard = []
    notes = Notes()
    run(DeleteIntent(None), notes, notes, progress=lambda *what: heard.append(what))
    assert heard == [("list target", 0, 0), ("plan", 0, 0), ("scan keys", 1, 1), ("commit", 0, 0)]


@dataclass
class Restless(Notes):
    """Reading fails once; whether the files have changed meanwhile is for the test to say."""

    changes: bool = True
    failures: int = 1

    def match(self, execution: Execution) -> Matches:
        if self.failures:
            self.failures -= 1
            if self.changes:
                self.snapshot_ = SNAPSHOT.with_files([replace(FILE, fingerprint=(1,))])
            raise DamagedTable("half a file", path="lake/a.parquet")
        return super().match(execution)


def test_a_file_that_was_replaced_while_it_was_read_is_read_again(source):
    notes = Restless()
    assert run(UPSERT, notes, notes, source).attempts == 2


def test_files_that_keep_being_replaced_are_a_conflict_and_not_called_damaged(source):
    notes = Restless()
    with pytest.raises(CommitConflict, match="replaced by another writer"):
        run(UPSERT, notes, notes, source, attempts=1)
    assert notes.calls.count("commit") == 0


def test_a_file_that_is_simply_damaged_is_an_error(source):
    notes = Restless(changes=False)
    with pytest.raises(DamagedTable, match="half a file"):
        run(UPSERT, notes, notes, source)
    assert notes.calls.count("commit") == 0


def test_ids_of_transactions_grow_with_time():
    made = [make_transaction_id() for _ in range(500)]
    assert made == sorted(set(made))
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in made)
