"""The function that commits one micro-batch of a stream step, here or on a Spark Connect server."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from intarsia import api
from intarsia.core.report import MergeFileMetadata, MergeResult
from intarsia.core.report import as_json as result_as_json
from intarsia.errors import EngineError
from intarsia.pipeline.inputs import read_snapshot_columns
from intarsia.pipeline.model import StepGuard, Target, list_names
from intarsia.pipeline.quality.checks import Check, make_failure
from intarsia.pipeline.quality.conditions import check_columns, parse_conditions
from intarsia.pipeline.quality.expect import count_guarded
from intarsia.pipeline.quality.guards import REASON, RUN, STEP, Judgement, count_keys, select_quarantined_keys
from intarsia.pipeline.quality.quarantine import write_rejected
from intarsia.pipeline.quality.references import Reference, find_missing_frame
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
    """An expectation that drops or quarantines rows of each batch, before the step takes the others.

    What it quarantines is a commit of its own, before that of the step and under the batch's number. Where a
    batch is given again, and that commit is there, the rows in it stay out and all others pass.
    """

    step: StepGuard
    app_id: str
    run_id: str
    quarantine: StreamTarget | None = None
    references: tuple[tuple[Reference, StreamTarget], ...] = ()
    replaces: bool = False
    """Whether everything is taken again: the first batch removes what the guard had quarantined."""

    def judge(self, frame: Any, batch_id: int, persisted: ExitStack) -> tuple[Any, dict[str, Any]]:
        """The rows that pass, and what is to be reported; what it persists is given to the stack.

        Raises:
            InputError: more rows violate something than may.
        """
        table = None if self.quarantine is None else self.quarantine.open(frame.sparkSession)
        is_done = table is not None and find_done(table, self.app_id, batch_id)
        check_columns(self.step, frame.columns)
        keys = []
        for one, target in self.references:
            if is_done:
                found = self._read_quarantined(table, one, frame, batch_id)
                keys.append(BadKeys(one.expectation, one.columns, _persist(found, persisted), 0))
                continue
            there = _read_columns(target.open(frame.sparkSession), one.keys, frame)
            missing = _persist(find_missing_frame(one, frame, there), persisted)
            keys.append(count_keys(one.expectation, one.columns, missing))
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
        return judge.pass_frame(frame), told

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

    def _read_quarantined(self, table: Any, reference: Reference, frame: Any, batch_id: int) -> Any:
        """The keys that this batch has quarantined: the other table may have changed since."""
        run = table.last_commits().get(self.app_id, {}).get("run_id", "")
        rows = _read_columns(table, (*reference.columns, REASON, RUN, STEP), frame)
        by = Judgement(f"{run}/{batch_id}", self.step.name)
        return select_quarantined_keys(reference.expectation, reference.columns, rows, by)


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
            passing, told = _persist(frame, persisted), []
            for guard in self.guards:
                passing, outcome = guard.judge(passing, batch_id, persisted)
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


def combine_results(raw: list[dict[str, Any]]) -> MergeResult | None:
    """The results of batches as one: counts are added, files listed one after the other."""
    results = [
        MergeResult(**one | {"files": [MergeFileMetadata(**file) for file in one["files"]], "notes": ()})
        for one in raw
    ]
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
