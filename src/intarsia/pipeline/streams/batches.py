"""The function that commits one micro-batch of a stream step, here or on a Spark Connect server."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from intarsia import api
from intarsia.common.requests import Requests
from intarsia.core.report import MergeFileMetadata, MergeResult
from intarsia.core.report import as_json as result_as_json
from intarsia.errors import EngineError
from intarsia.pipeline.inputs import read_snapshot_columns
from intarsia.pipeline.model import StepGuard, Target, list_names
from intarsia.pipeline.quality.checks import Check, make_failure
from intarsia.pipeline.quality.conditions import check_columns, describe_unique, parse_conditions
from intarsia.pipeline.quality.expect import count_guarded
from intarsia.pipeline.quality.guards import REASON, RUN, STEP, Judgement, count_keys, select_quarantined_keys
from intarsia.pipeline.quality.quarantine import write_rejected
from intarsia.pipeline.quality.references import (
    Reference,
    count_known_keys,
    find_key_types,
    find_missing_frame,
    find_repeated_frame,
    select_unmarked,
)
from intarsia.pipeline.quality.row_judge import BadKeys, RowJudge
from intarsia.pipeline.resources import open_target
from intarsia.pipeline.streams.checkpoints import CHECKS, WRITTEN
from intarsia.spark.streaming import find_done

__all__ = ["BatchGate", "BatchGuard", "StepBatch", "StreamTarget", "combine_checks", "combine_results"]


@dataclass(frozen=True, slots=True)
class StreamTarget:
    """A target as a value that pickles; in the process that made it, its open table is used."""

    declared: Target
    opened: Any = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamTarget, (self.declared,)

    def open(self, session: Any) -> Any:
        return self.opened if self.opened is not None else open_target(self.declared, lambda: session)


@dataclass(frozen=True, slots=True)
class BatchGuard:
    """An expectation on the rows of each batch, before the step takes them or those that pass.

    What it quarantines is a commit of its own, before that of the step and under the batch's number. Where a
    batch is given again, and that commit is there, the rows in it stay out and all others pass.
    """

    step: StepGuard
    app_id: str
    run_id: str
    quarantine: StreamTarget | None = None
    references: tuple[tuple[Reference, StreamTarget | str], ...] = ()
    """Each with the target that it is into; of a source, the column that says whether the key is there."""
    appended: StreamTarget | None = None
    """The target that the step appends to: a key in it is taken, where keys must be unique."""
    replaces: bool = False
    """Whether everything is taken again: the first batch removes what the guard had quarantined."""

    def judge(
        self, frame: Any, batch_id: int, lost: Mapping[str, Any], persisted: ExitStack
    ) -> tuple[Any, dict[str, Any]]:
        """The rows that pass, and what is to be reported; what it persists is given to the stack.

        Args:
            frame: the rows of the batch that reach it.
            batch_id: the batch's number.
            lost: by the columns for keys of sources: the keys of the batch that are not there.
            persisted: unpersists what is given to it.

        Raises:
            InputError: more rows violate something than may.
        """
        table = None if self.quarantine is None else self.quarantine.open(frame.sparkSession)
        is_done = table is not None and find_done(table, self.app_id, batch_id)
        check_columns(self.step, frame.columns)
        keys = []
        for expectation, columns, find in self._list_keys(frame, lost):
            if is_done:
                found = self._read_quarantined(table, expectation, columns, frame, batch_id)
                keys.append(BadKeys(expectation, columns, _persist(found, persisted), 0))
            else:
                keys.append(count_keys(expectation, columns, _persist(find(), persisted)))
        judge = RowJudge(tuple(parse_conditions(self.step)), tuple(keys))
        checks = count_guarded(self.step, judge, lambda: frame)
        failure = (
            None if is_done else make_failure(checks, f"batch {batch_id} of source {self.step.source!r}")
        )
        if failure is not None:
            raise failure
        result = None
        if table is not None and not is_done:
            result = self._set_aside(judge, frame, table, batch_id, any(one.failing for one in checks))
        told = {
            "guard": self.step.name,
            "checks": [asdict(one) for one in checks],
            "result": None if result is None else result_as_json(result),
        }
        return (frame if self.step.action in ("fail", "warn") else judge.pass_frame(frame)), told

    def _list_keys(
        self, frame: Any, lost: Mapping[str, Any]
    ) -> Iterator[tuple[str, tuple[str, ...], Callable[[], Any]]]:
        """Expectations on keys: each with its columns, and what finds the keys of a batch that violate it."""
        columns = list_names(self.step.unique)
        if columns:
            yield describe_unique(self.step), columns, lambda: self._find_repeated(columns, frame)
        for one, where in self.references:
            if isinstance(where, str):
                find = partial(count_known_keys, one, frame, lost[where])
            else:
                find = partial(self._find_missing, one, where, frame)
            yield one.expectation, one.columns, find

    def _find_missing(self, reference: Reference, target: StreamTarget, frame: Any) -> Any:
        there = _read_columns(target.open(frame.sparkSession), reference.keys, frame)
        return find_missing_frame(reference, frame, there)

    def _find_repeated(self, columns: tuple[str, ...], frame: Any) -> Any:
        """The keys that several rows of a batch have, or one of them and one of the target of an append."""
        if self.appended is None:
            return find_repeated_frame(columns, frame)
        snapshot = self.appended.open(frame.sparkSession).snapshot()
        known = tuple(name for name in columns if snapshot.has_schema and name in snapshot.schema.names)
        if not known:  # the table is made now, or gets the columns now
            return find_repeated_frame(columns, frame)
        from pyspark.sql import functions
        from pyspark.sql.pandas.types import to_arrow_schema

        taken = read_snapshot_columns(snapshot, known, frame.sparkSession)
        same = Reference(known, "the target", known)
        find_key_types(same, to_arrow_schema(frame.schema), to_arrow_schema(taken.schema), key="unique")
        for name in columns:
            if name not in known:  # a column that is added now is NULL in the rows that are there
                taken = taken.withColumn(name, functions.lit(None).cast(frame.schema[name].dataType))
        return find_repeated_frame(columns, frame, taken)

    def _set_aside(
        self, judge: RowJudge, frame: Any, table: Any, batch_id: int, has_failing: bool
    ) -> MergeResult | None:
        replaces = (self.step.name,) if self.replaces and batch_id == 0 else ()
        if not has_failing and not replaces:
            return None
        assert self.quarantine is not None
        return write_rejected(
            judge.reject_frame(frame),
            table,
            self.quarantine.declared,
            step=self.step,
            run_id=f"{self.run_id}/{batch_id}",
            replaces=replaces,
            extra={
                "app_id": self.app_id,
                "batch_id": batch_id,
                "engine": frame.sparkSession,
                "progress": False,
                "properties": {"run_id": self.run_id},
            },
        )

    def _read_quarantined(
        self, table: Any, expectation: str, columns: tuple[str, ...], frame: Any, batch_id: int
    ) -> Any:
        """The keys that this batch has quarantined: the other table may have changed since."""
        run = table.last_commits().get(self.app_id, {}).get("run_id", "")
        rows = _read_columns(table, (*columns, REASON, RUN, STEP), frame)
        by = Judgement(f"{run}/{batch_id}", self.step.name)
        return select_quarantined_keys(expectation, columns, rows, by)


def _persist(frame: Any, persisted: ExitStack) -> Any:
    """The DataFrame, persisted until the stack is closed."""
    kept = frame.persist()
    persisted.callback(kept.unpersist)
    return kept


def _read_columns(table: Any, names: tuple[str, ...], frame: Any) -> Any:
    return read_snapshot_columns(table.snapshot(), names, frame.sparkSession)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The function for ``foreachBatch``: commits a batch, and leaves what it did for the report.

    Under Spark Connect it is pickled, and runs in a process of the server.
    """

    operation: Literal["merge", "write"]
    target: StreamTarget
    app_id: str
    arguments: Mapping[str, Any]
    results: str
    location: str
    """Spark's checkpoint."""
    guards: tuple[BatchGuard, ...] = ()

    def __call__(self, frame: Any, batch_id: int) -> None:
        table = self.target.open(frame.sparkSession)
        if find_done(table, self.app_id, batch_id):
            Path(self.location, WRITTEN).touch()
            return
        if not self.guards:
            self._take(frame, table, batch_id)
            return
        with ExitStack() as persisted:
            # It is read several times, and a row must be the same each time.
            whole, told = _persist(frame, persisted), []
            marks = {
                name: one for guard in self.guards for one, name in guard.references if isinstance(name, str)
            }
            lost = {
                name: _persist(select_unmarked(one, whole, name), persisted) for name, one in marks.items()
            }
            passing = whole.drop(*marks)
            for guard in self.guards:
                passing, outcome = guard.judge(passing, batch_id, lost, persisted)
                told.append(outcome)
            self._take(passing, table, batch_id)
            self._leave(f"{CHECKS}{batch_id}", told)

    def _take(self, frame: Any, table: Any, batch_id: int) -> None:
        given = dict(self.arguments)
        layout = list_names(self.target.declared.partition_by) or None
        if not table.snapshot().has_schema:
            given["partition_by"] = layout
        given |= {
            "app_id": self.app_id,
            "batch_id": batch_id,
            "engine": frame.sparkSession,
            "progress": False,
        }
        call: Any = api.merge if self.operation == "merge" else api.write
        result: MergeResult = call(frame, table, **given)
        if result.changed:
            Path(self.location, WRITTEN).touch()
        self._leave(str(batch_id), result_as_json(result))

    def _leave(self, name: str, value: Any) -> None:
        """Leave something for the report."""
        os.makedirs(self.results, exist_ok=True)
        draft = Path(self.results, f"{name}.part")
        draft.write_text(json.dumps(value, default=str), "utf-8")
        draft.replace(draft.with_name(f"{name}.json"))


@dataclass(slots=True)
class BatchGate:
    """A batch function of this process that can be told to take no other batch, after the one at hand."""

    batch: StepBatch
    lock: threading.Lock = field(default_factory=threading.Lock)
    closed: bool = False

    def __call__(self, frame: Any, batch_id: int) -> None:
        with self.lock:
            if self.closed:
                raise EngineError("The query was stopped before this batch.")
            self.batch(frame, batch_id)

    def close(self) -> None:
        """Wait for the batch at hand, and take no other."""
        with self.lock:
            self.closed = True


def _read_result(raw: dict[str, Any]) -> MergeResult:
    """A result from the JSON of a batch; its notes are told for all batches together."""
    files = [MergeFileMetadata(**file) for file in raw["files"]]
    sent = raw.get("requests")  # which batches of earlier versions lack
    return MergeResult(
        **raw | {"files": files, "notes": (), "requests": None if sent is None else Requests(**sent)}
    )


def combine_results(raw: list[dict[str, Any]]) -> MergeResult | None:
    """The results of batches as one: counts are added, files listed one after the other."""
    results = [_read_result(one) for one in raw]
    if not results:
        return None

    def add(name: str) -> Any:
        values = [getattr(one, name) for one in results]
        return sum(values[1:], values[0])

    lists = ("files", "rewritten_files", "inserted_files", "removed_files", "files_with_deletes")
    counts = (
        "source_count",
        "inserted",
        "updated",
        "deleted",
        "bytes_read",
        "bytes_written",
        "seconds",
        "new_files",
    )
    return replace(
        results[-1],
        **{name: add(name) for name in (*lists, *counts)},
        target_count_before=results[0].target_count_before,
        created=any(one.created for one in results),
        attempts=max(one.attempts for one in results),
        requests=None if any(one.requests is None for one in results) else add("requests"),
        notes=tuple(dict.fromkeys(note for one in raw for note in one["notes"])),
    )


def combine_checks(told: list[dict[str, Any]]) -> tuple[tuple[Check, ...], MergeResult | None]:
    """What a guard has found in batches as one: rows are added; and what it has quarantined."""
    found: dict[str, Check] = {}
    for check in (Check(**one) for batch in told for one in batch["checks"]):
        before = found.setdefault(check.expectation, replace(check, failing=0, rows=0, outcome="held"))
        found[check.expectation] = replace(
            before,
            failing=before.failing + check.failing,
            rows=(before.rows or 0) + (check.rows or 0),
            outcome=before.outcome if check.ok else check.outcome,
        )
    written = [batch["result"] for batch in told if batch["result"] is not None]
    return tuple(found.values()), combine_results(written)
