"""A pipeline run from its first step to its report: what is done, what is left alone, where it stops."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from intarsia.common.log import logger, redact
from intarsia.core.files import Snapshot
from intarsia.core.ports import Progress
from intarsia.core.report import MergeResult
from intarsia.core.run import silent
from intarsia.errors import InputError, IntarsiaError
from intarsia.pipeline import state as memory
from intarsia.pipeline.check import check
from intarsia.pipeline.declare import load
from intarsia.pipeline.expect import failed
from intarsia.pipeline.files import write_report
from intarsia.pipeline.inputs import Arrived, Stamp
from intarsia.pipeline.model import Expect, Pipeline, Source, Step, Write, source_of, step_name
from intarsia.pipeline.report import PipelineReport, StepReport
from intarsia.pipeline.spark_errors import spark_errors, told_by_spark
from intarsia.pipeline.steps import Workshop, carry_out
from intarsia.show.progress import for_terminal

log = logger(__name__)

OnStep = Callable[[StepReport], None]


def run(
    pipeline: Pipeline,
    *,
    dry_run: bool = False,
    engine: Literal["spark", "arrow"] | None = None,
    master: str | None = None,
    session: Any = None,
    report_dir: str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
    on_step: OnStep | None = None,
) -> PipelineReport:
    """Run a pipeline's steps in order, and leave a JSON and an HTML report.

    Each step is atomic: one that fails leaves its target as it was, the later ones do not run, and the
    report says so; :meth:`PipelineReport.check` raises its error. Idempotent: a step whose definition, input
    and target are what they were after its last success does nothing. (Changes of a target by later steps of
    the same pipeline do not count; those by anybody else do.)

    Args:
        pipeline: what to run.
        dry_run: plan every step against the targets as they are and write nothing, except the report
            where ``report_dir`` asks for it.
        engine: ``"spark"`` or ``"arrow"``, instead of the pipeline's own.
        master: the Spark master, instead of the pipeline's own.
        session: a Spark session to run on; it is left running. Else one is opened, and stopped in the end.
        report_dir: where the reports go, instead of the pipeline's own directory.
        progress: called with what is going on, done and total; None draws a line on a terminal, False
            is silent.
        on_step: called with the report of each step when it is over.

    Raises:
        InputError: the pipeline does not hang together.
        NotSupported: Spark is not installed, or a target's kind is not part of this version.
        CommitConflict: another run of this pipeline is under way.
        StorageError: the state or the report cannot be written.
    """
    if engine is not None:
        pipeline = replace(pipeline, engine=engine)
    check(pipeline)
    begun = time.perf_counter()
    started = datetime.now(UTC)
    path = memory.state_path(pipeline)
    with ExitStack() as stack:
        state = memory.read(path) if dry_run else stack.enter_context(memory.held(path))
        watched = stack.enter_context(_watched(progress))
        spark = stack.enter_context(_session(pipeline, master, session, watched))
        shop = Workshop(pipeline, spark)
        stack.callback(shop.close)
        made = _Run(pipeline, shop, state, path, dry_run, watched, on_step)
        report = PipelineReport(
            pipeline=pipeline.name,
            run_id=f"{started:%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}",
            started=started,
            steps=(),
            engine=pipeline.engine,
            session=_described(spark),
            dry_run=dry_run,
            origin=pipeline.origin,
        )
        keep = not dry_run or report_dir is not None
        directory = Path(report_dir if report_dir is not None else pipeline.reports)

        def reported() -> PipelineReport:
            whole = replace(report, steps=made.finished(), seconds=time.perf_counter() - begun)
            return write_report(whole, directory) if keep else whole

        try:
            made.go()
        except BaseException:  # an interrupted run leaves a report, too
            reported()
            raise
        return reported()


def run_file(
    path: str | os.PathLike[str], *, params: Mapping[str, str] | None = None, **options: Any
) -> PipelineReport:
    """Run the pipeline that a TOML file declares; ``options`` are those of :func:`run`."""
    return run(load(path, params=params), **options)


@contextmanager
def _watched(progress: Progress | bool | None) -> Iterator[Progress]:
    given: AbstractContextManager[Progress]
    if progress is None or progress is True:
        given = for_terminal()
    else:
        given = nullcontext(silent if progress is False else progress)
    with given as watched:
        yield watched


@contextmanager
def _session(pipeline: Pipeline, master: str | None, session: Any, progress: Progress) -> Iterator[Any]:
    """The Spark session of the run; None where the engine is Arrow."""
    if pipeline.engine != "spark":
        if session is not None or master is not None:
            raise InputError(f"The engine of pipeline {pipeline.name!r} is {pipeline.engine}, not Spark.")
        yield None
    elif session is not None:
        yield session
    else:
        from intarsia.spark.session import session_on

        settings = pipeline.spark
        progress("opening the Spark session", 0, 0)
        app = settings.app_name or pipeline.name
        with session_on(master or settings.master, app=app, config=settings.config) as opened:
            yield opened


def _described(session: Any) -> str:
    if session is None:
        return ""
    if ".connect." in type(session).__module__:
        return f"Spark {session.version}, Connect"
    return redact(f"Spark {session.version}, {session.sparkContext.master}")


@dataclass(slots=True)
class _Run:
    """One run under way."""

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
            told = told_by_spark(error)
            log.error("pipeline %s, step %s failed: %s", self.pipeline.name, step.name, told)
            report = replace(self._report(step, "failed"), error=told, before=self._known(step))
        seconds = time.perf_counter() - begun
        log.info("pipeline %s, step %s: %s in %.2f s", self.pipeline.name, step.name, report.status, seconds)
        return replace(report, seconds=seconds)

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
        if any(self.state.targets.get(self._path(name)) != self._digest(name) for name in touched):
            return False
        if touched & self.made:
            return False
        return all(changed <= record.at for changed in self._changes_above(step, touched))

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
        batch = (self.shop.table(step.target).last_batch(app) or 0) + 1
        self.state.pending[step.name] = memory.Pending(batch, self._path(step.target), taken.stamps)
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
        name = source_of(step)
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
        return self.snapshots[target]

    def _known(self, step: Step) -> Snapshot | None:
        return self.snapshots.get(step.target or "")

    def _digest(self, target: str) -> str:
        return memory.digest_of_snapshot(self._snapshot(target))

    def _place(self, step: Step) -> str:
        if step.target is not None:
            return self._path(step.target)
        return f"source {source_of(step)!r}"

    def _report(self, step: Step, status: Any) -> StepReport:
        return StepReport(
            name=step.name,
            operation=step.operation,
            status=status,
            source=source_of(step),
            target=step.target,
            path=None if step.target is None else self._path(step.target),
        )


__all__ = ["OnStep", "run", "run_file"]
