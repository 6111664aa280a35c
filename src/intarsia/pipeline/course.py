"""The course of one run: each step looked at, then done or left alone, and what is remembered of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from intarsia.common.log import logger, redact
from intarsia.core.files import Snapshot
from intarsia.core.ports import Progress
from intarsia.core.report import MergeResult
from intarsia.errors import InputError, IntarsiaError
from intarsia.pipeline import state as memory
from intarsia.pipeline.expect import failed
from intarsia.pipeline.foreign import spark_errors, told
from intarsia.pipeline.inputs import Arrived, Stamp
from intarsia.pipeline.model import Expect, Merge, Pipeline, Source, Step, Write, names, needed, step_name
from intarsia.pipeline.report import Status, StepReport
from intarsia.pipeline.steps import Workshop, carry_out

log = logger(__name__)

OnStep = Callable[[StepReport], None]


@dataclass(slots=True)
class Course:
    """One run under way: made with what it needs, then :meth:`go`, then :meth:`finished`."""

    pipeline: Pipeline
    shop: Workshop
    state: memory.State
    state_path: Path
    dry_run: bool
    progress: Progress
    on_step: OnStep | None
    reports: list[StepReport] = field(default_factory=list)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    """The targets as the last step left them."""
    seen: set[str] = field(default_factory=set)
    """Targets that were compared with the state in which the pipeline left them."""
    made: set[str] = field(default_factory=set)
    """In a dry run: targets that earlier steps would have changed."""

    def go(self) -> None:
        for number, step in enumerate(self.pipeline.steps, 1):
            report = self._one(replace(step, name=step_name(step, number)), number)
            self.reports.append(report)
            if self.on_step is not None:
                self.on_step(report)
            if report.status == "failed":
                return

    def finished(self) -> tuple[StepReport, ...]:
        """The reports so far, and of the steps that were not reached."""
        rest = list(enumerate(self.pipeline.steps, 1))[len(self.reports) :]
        left = [self._report(replace(step, name=step_name(step, number)), "not run") for number, step in rest]
        return (*self.reports, *left)

    def _one(self, step: Step, number: int) -> StepReport:
        begun = time.perf_counter()
        title = f"{number}/{len(self.pipeline.steps)} {step.name}"

        def progress(what: str, done: int, total: int) -> None:
            self.progress(f"{title}: {what}", done, total)

        progress("looking at its input", 0, 0)
        try:
            report = self._attempt(step, progress)
        except (IntarsiaError, OSError, pa.ArrowException, *spark_errors()) as error:
            ours = told(error)
            if isinstance(ours, IntarsiaError):  # one that Spark brought knows neither
                ours.place(_called(step), self._where(step))
            log.error("pipeline %s, step %s failed: %s", self.pipeline.name, step.name, ours, exc_info=error)
            report = self._failed(step, ours)
        seconds = time.perf_counter() - begun
        log.info("pipeline %s, step %s: %s in %.2f s", self.pipeline.name, step.name, report.status, seconds)
        return replace(report, seconds=seconds)

    def _failed(self, step: Step, error: BaseException) -> StepReport:
        """What is left of a step that failed: its target is looked at again, and told to be as it was."""
        report = replace(self._report(step, "failed"), error=error)
        before = self.snapshots.pop(step.target or "", None)
        if step.target is None or before is None:
            return report
        try:
            after = self._snapshot(step.target)
        except (IntarsiaError, OSError):  # it may be what failed the step
            return replace(report, before=before)
        same = memory.digest_of_snapshot(before) == memory.digest_of_snapshot(after)
        notes = ("the target is as it was",) if same else ()
        return replace(report, before=before, after=after, notes=notes)

    def _attempt(self, step: Step, progress: Progress) -> StepReport:
        source = self._source(step)
        there = self.shop.arrived(source) if source is not None else None
        definition = memory.definition_of(step, self.pipeline)
        wanted = self._wanted(step, source, there)
        before = self._snapshot(step.target) if step.target is not None else None
        taken = wanted if wanted is not None else there
        stamps = () if taken is None else taken.stamps
        report = replace(
            self._report(step, "unchanged"),
            before=before,
            after=before,
            input_files=len(stamps),
            input_bytes=sum(stamp.size for stamp in stamps),
        )
        if wanted is not None and not wanted.stamps:
            return replace(report, notes=("every file was taken before",))
        if self._is_current(step, definition, there):
            return report
        if self.dry_run and before is not None and not before.exists and step.target in self.made:
            return replace(report, status="planned", notes=("an earlier step makes the target",))
        return self._carried_out(step, report, definition, there, wanted, progress)

    def _carried_out(
        self,
        step: Step,
        report: StepReport,
        definition: str,
        there: Arrived | None,
        wanted: Arrived | None,
        progress: Progress,
    ) -> StepReport:
        """Do the step, and remember that it was done."""
        taken = wanted if wanted is not None else there
        extra = self._announced(step, taken)
        outcome = carry_out(
            step, self.shop, there=taken, dry_run=self.dry_run, progress=progress, extra=extra
        )
        done = replace(report, status="planned" if self.dry_run else "done")
        changed = False
        if isinstance(outcome, MergeResult):
            done = replace(done, result=outcome)
            changed = outcome.changed
        elif isinstance(step, Expect):
            done = replace(done, checks=tuple(outcome))
            error = failed(step, outcome, self._place(step))
            if error is not None:
                return replace(done, status="failed", error=error)
        if self.dry_run:
            return self._planned(step, done, changed)
        if changed and step.target is not None:
            self.snapshots.pop(step.target, None)
            done = replace(done, after=self._snapshot(step.target))
        once = taken.stamps if wanted is not None and taken is not None else ()
        self._remember(step, definition, there, changed=changed, once=once)
        return done

    def _planned(self, step: Step, report: StepReport, changed: bool) -> StepReport:
        notes = report.notes
        if step.target in self.made:
            notes = (*notes, "planned against the target as it is now, before the steps above")
        if changed and step.target is not None:
            self.made.add(step.target)
        return replace(report, after=None, notes=notes)

    # Memory

    def _is_current(self, step: Step, definition: str, there: Arrived | None) -> bool:
        """Whether nothing has happened since the last success of a step that could change its outcome."""
        record = self.state.record(step.name, definition)
        if record is None or record.input != self._input(there):
            return False
        touched = self._touched(step)
        if touched & self.made:
            return False
        for name in touched:
            self._snapshot(name)  # and with it whether somebody else has changed it
        by_others = [self.state.foreign.get(self._path(name), 0) for name in touched]
        return all(change <= record.at for change in (*by_others, *self._changes_above(step, touched)))

    def _changes_above(self, step: Step, touched: set[str]) -> Iterator[int]:
        """When the steps above this one last changed what it reads or writes."""
        for number, other in enumerate(self.pipeline.steps, 1):
            name = step_name(other, number)
            if name == step.name:
                return
            if other.target in touched:
                found = self.state.record(name, memory.definition_of(other, self.pipeline))
                if found is not None:
                    yield found.changed_at

    def _remember(
        self, step: Step, definition: str, there: Arrived | None, *, changed: bool, once: tuple[Stamp, ...]
    ) -> None:
        target = None if step.target is None else self._path(step.target)
        version = None if step.target is None else self._snapshot(step.target).version
        record = memory.Record(definition, self._input(there), 0, 0, target, version)
        left = {self._path(name): self._digest(name) for name in self._touched(step)}
        self.state.note(step.name, record, changed=changed, left=left, files=once)
        memory.write_atomically(self.state_path, self.state.as_json())

    def _wanted(self, step: Step, source: Source | None, there: Arrived | None) -> Arrived | None:
        """The files that a step which takes each file once has not taken yet; None for other steps."""
        appends = isinstance(step, Write) and step.mode == "append"
        if source is None or there is None or isinstance(step, Expect):
            return None
        if not (appends or source.new_files_only):
            return None
        assert step.target is not None
        if not self._snapshot(step.target).exists:
            return there
        self._settle(step)
        taken = self.state.taken(step.name, self._path(step.target))
        fresh = there.without(taken)
        again = {stamp.path for stamp in fresh.stamps} & {stamp.path for stamp in taken}
        if appends and again:
            raise InputError(
                f"{len(again)} file(s) have changed since they were appended, such as {min(again)}.",
                path=min(again),
                hint='use operation = "merge", which replaces rows by their keys.',
            )
        return fresh

    def _announced(self, step: Step, taken: Arrived | None) -> dict[str, Any]:
        """Before an append, write down what is about to be appended: a crash after the commit is found."""
        if not isinstance(step, Write) or step.mode != "append" or self.dry_run or taken is None:
            return {}
        app = self._app(step)
        target = needed(step.target)
        batch = (self.shop.table(target).last_batch(app) or 0) + 1
        self.state.pending[step.name] = memory.Pending(batch, self._path(target), taken.stamps)
        memory.write_atomically(self.state_path, self.state.as_json())
        return {"app_id": app, "batch_id": batch}

    def _settle(self, step: Step) -> None:
        """What an earlier run was appending when it ended was appended if the table's log has the batch."""
        pending = self.state.pending.get(step.name)
        if pending is None or step.target is None or pending.target != self._path(step.target):
            return
        if (self.shop.table(step.target).last_batch(self._app(step)) or 0) >= pending.batch:
            definition = memory.definition_of(step, self.pipeline)
            record = memory.Record(definition, "", 0, 0, pending.target)
            self.state.note(step.name, record, changed=True, left={}, files=pending.files)

    def _app(self, step: Step) -> str:
        return f"pipeline/{self.pipeline.name}/{step.name}"

    # Looking up

    def _source(self, step: Step) -> Source | None:
        name = step.source
        return None if name is None else self.pipeline.sources[name]

    def _touched(self, step: Step) -> set[str]:
        """The targets that a step reads or writes."""
        source = self._source(step)
        found = {step.target, source.target if source is not None else None}
        return {name for name in found if name is not None}

    def _path(self, target: str) -> str:
        return redact(str(self.pipeline.targets[target].path))

    def _input(self, there: Arrived | None) -> str:
        return "" if there is None else memory.digest_of_files(there.stamps)

    def _snapshot(self, target: str) -> Snapshot:
        if target not in self.snapshots:
            self.snapshots[target] = self.shop.table(target).snapshot()
            if target not in self.seen:
                self.seen.add(target)
                self.state.look(self._path(target), self._digest(target))
        return self.snapshots[target]

    def _digest(self, target: str) -> str:
        return memory.digest_of_snapshot(self._snapshot(target))

    def _where(self, step: Step) -> str:
        """The target of a step; where it has none, the paths of its source."""
        if step.target is not None:
            return self._path(step.target)
        source = self._source(step)
        return "" if source is None else ", ".join(map(redact, names(source.path)))

    def _place(self, step: Step) -> str:
        if step.target is not None:
            return self._path(step.target)
        return f"source {step.source!r}"

    def _report(self, step: Step, status: Status) -> StepReport:
        return StepReport(
            name=step.name,
            operation=step.operation,
            status=status,
            source=step.source,
            target=step.target,
            path=None if step.target is None else self._path(step.target),
        )


def _called(step: Step) -> str:
    """What errors of the library call the operation of a step."""
    if isinstance(step, Merge) and not step.when:
        return step.strategy or "upsert"
    return step.operation
