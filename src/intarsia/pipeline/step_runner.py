"""The steps of one run in order: each runs, or is left out where nothing has changed; errors become ours."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pyarrow as pa

from intarsia.common.log import get_logger, redact
from intarsia.core.observe import Facts, observe
from intarsia.core.ports import Progress
from intarsia.core.report import MergeResult
from intarsia.errors import InputError, IntarsiaError, StorageError
from intarsia.pipeline.computed import name_evaluated
from intarsia.pipeline.inputs import InputFiles, count_inputs
from intarsia.pipeline.look_ahead import find_bad_query
from intarsia.pipeline.model import (
    Expect,
    Merge,
    Pipeline,
    Step,
    StepGuard,
    Write,
    find_written_target,
    list_names,
    require,
)
from intarsia.pipeline.places import complete_place
from intarsia.pipeline.quality.checks import make_failure
from intarsia.pipeline.quality.guards import enter_step, judges_once, list_former_names
from intarsia.pipeline.quality.quarantine import quarantine_rows
from intarsia.pipeline.reports.report import Status, StepReport
from intarsia.pipeline.resources import RunResources
from intarsia.pipeline.state.definitions import digest_snapshot
from intarsia.pipeline.state.input_selection import Selection
from intarsia.pipeline.state.run_state import RunState
from intarsia.pipeline.steps import carry_out, check_layout
from intarsia.pipeline.streams.resolve import find_streams
from intarsia.pipeline.streams.stream_steps import add_batches, run_stream_step
from intarsia.spark.errors import find_known_failure, list_spark_error_types

log = get_logger(__name__)

OnStep = Callable[[StepReport], None]
OnStart = Callable[[Step], None]


class _BadQueryAhead(Exception):
    """A query of a later step that the engine refuses."""

    def __init__(self, step: Step, error: InputError) -> None:
        super().__init__(step.name)
        self.step, self.error = step, error


@dataclass(slots=True)
class StepRunner:
    """Runs the steps of a pipeline one after the other, until one fails."""

    pipeline: Pipeline
    resources: RunResources
    run_state: RunState
    progress: Progress
    on_step: OnStep | None = None
    on_start: OnStart | None = None
    """Called with each step that has something to do."""
    dry_run: bool = False
    done_before: int = 0
    """How many steps the run that this one finishes had done: they do not run again."""
    only_if: int = 0
    """Steps after this number run only if one up to it had something to do; 0 for no such limit."""
    reports: list[StepReport] = field(default_factory=list)
    made: set[str] = field(default_factory=set)
    """In a dry run: targets that earlier steps would have changed."""
    rehearsed: set[str] = field(default_factory=set)
    """In a dry run: targets that steps change in a scratch place."""
    held: list[int] = field(default_factory=list)
    """Reports of guards that are completed by the step of a stream below them."""
    has_looked: bool = False
    """Whether the queries of later steps were looked at."""

    def go(self) -> None:
        """Run the steps; what fails is in their reports."""
        name = self.pipeline.name
        facts: Facts = {
            "title": f"pipeline {name}",
            "intarsia.pipeline.name": name,
            "intarsia.pipeline.run_id": self.run_state.run_id,
            "intarsia.dry_run": self.dry_run,
        }
        with observe("pipeline", name, facts) as observation:
            self._run_steps()
            for report in self.reports:
                if report.error is not None:
                    observation.fail(report.error)

    def _run_steps(self) -> None:
        self.resources.guards.start()
        for number, step in enumerate(self.run_state.list_steps(), 1):
            if self.only_if and number > self.only_if and self.is_idle:
                return
            if step.name in self.run_state.left_out:
                self.reports.append(self._report_not_run(step))
                continue
            if isinstance(step, StepGuard) and find_streams(self.run_state, step):
                self.held.append(len(self.reports))
                note = f"a stream: judged batch by batch, by step {step.writer!r}"
                self.reports.append(replace(self._report(step, "unchanged"), notes=(note,)))
                continue
            try:
                report = self._run_one(step, number)
            except _BadQueryAhead as found:
                self._report_ahead(found)
                return
            for at in self.held:  # judged with the batches of the step below
                self._tell(self.reports[at])
            self.held.clear()
            self.reports.append(report)
            self._tell(report)
            if report.status == "failed":
                return

    def _look_ahead(self, step: Step) -> None:
        """Before the first step that has something to do: raise for a later query that cannot run."""
        if self.has_looked:
            return
        self.has_looked = True
        steps = [one for one in self.run_state.list_steps() if one.name not in self.run_state.left_out]
        at = next(number for number, one in enumerate(steps) if one.name == step.name)
        if found := find_bad_query(self.run_state, steps[at:]):
            raise _BadQueryAhead(*found)

    def _report_ahead(self, found: _BadQueryAhead) -> None:
        """Report a later step as failed, and those before it as not run."""
        self.held.clear()
        for step in self.run_state.list_steps()[len(self.reports) :]:
            if step.name != found.step.name:
                self.reports.append(self._report_not_run(step))
                continue
            complete_place(found.error, self.pipeline.lines, self.pipeline.origin)
            found.error.place(_name_operation(step), self._describe_place(step))
            log.error(
                "pipeline %s, step %s failed: %s",
                self.pipeline.name,
                step.name,
                found.error,
                exc_info=found.error,
            )
            notes = ("found before the steps above it ran",)
            self.reports.append(replace(self._report(step, "failed"), error=found.error, notes=notes))
            self._tell(self.reports[-1])
            return

    def _tell(self, report: StepReport) -> None:
        if self.on_step is not None:
            self.on_step(report)

    @property
    def is_idle(self) -> bool:
        """Whether no step has had anything to do so far."""
        return all(report.status == "unchanged" or report.left_out for report in self.reports)

    def mark_all(self) -> None:
        """Report every step as noted as done, without running it."""
        for step in self.run_state.list_steps():
            if step.name in self.run_state.left_out:
                self.reports.append(self._report_not_run(step))
                continue
            self.reports.append(replace(self._report(step, "unchanged"), notes=("noted as done, not run",)))
            if self.on_step is not None:
                self.on_step(self.reports[-1])

    def list_reports(self) -> tuple[StepReport, ...]:
        """The reports so far, and of the steps that were not reached."""
        left = self.run_state.list_steps()[len(self.reports) :]
        return (*self.reports, *map(self._report_not_run, left))

    def _report_not_run(self, step: Step) -> StepReport:
        reason = self.run_state.left_out.get(step.name)
        notes = () if reason is None else (reason,)
        return replace(self._report(step, "not run"), notes=notes, left_out=reason is not None)

    def _run_one(self, step: Step, number: int) -> StepReport:
        facts: Facts = {
            "title": f"step {step.name}",
            "intarsia.pipeline.name": self.pipeline.name,
            "intarsia.step.name": step.name,
            "intarsia.step.number": number,
            "db.operation.name": step.operation,
        }
        with observe("step", step.name, facts) as observation:
            report = self._run_watched(step, number)
            observation.note({"intarsia.step.status": report.status})
            if report.error is not None:
                observation.fail(report.error)
            return report

    def _run_watched(self, step: Step, number: int) -> StepReport:
        begun = time.perf_counter()
        title = f"{number}/{len(self.pipeline.steps)} {step.name}"

        def report_progress(what: str, done: int, total: int) -> None:
            self.progress(f"{title}: {what}", done, total)

        report_progress("looking at its input", 0, 0)
        try:
            enter_step(self.run_state, step)
            self.run_state.check_settled(step)
            if number <= self.done_before and not isinstance(step, Expect):
                report = self._report_done_before(step)
            else:
                report = self._attempt(step, report_progress)
        except (IntarsiaError, OSError, pa.ArrowException, *list_spark_error_types()) as error:
            if error is self.resources.unopened:  # no step could run
                raise
            ours = name_evaluated(self.resources.graph.codes.get(step.source or ""), translate_error(error))
            if isinstance(ours, IntarsiaError):  # one that Spark brought knows neither
                complete_place(ours, self.pipeline.lines, self.pipeline.origin)
                ours.place(_name_operation(step), self._describe_place(step))
            log.error("pipeline %s, step %s failed: %s", self.pipeline.name, step.name, ours, exc_info=error)
            report = self._report_failure(step, ours)
        finally:
            self.resources.increments = {}
            self.resources.links.close()
        seconds = time.perf_counter() - begun
        log.info("pipeline %s, step %s: %s in %.2f s", self.pipeline.name, step.name, report.status, seconds)
        return replace(report, seconds=seconds)

    def _report_done_before(self, step: Step) -> StepReport:
        snapshot = self.run_state.get_snapshot(step.target) if step.target is not None else None
        notes = ("done by the run that is finished first",)
        return replace(self._report(step, "unchanged"), before=snapshot, after=snapshot, notes=notes)

    def _report_failure(self, step: Step, error: BaseException) -> StepReport:
        """The report of a failed step, with a note where a new snapshot shows its target unchanged."""
        report = add_batches(step, self.run_state, replace(self._report(step, "failed"), error=error))
        target = find_shown_target(step)
        before = self.run_state.snapshots.get(target or "")
        if target is None or before is None:
            return report
        self.run_state.forget(target)
        try:
            after = self.run_state.get_snapshot(target)
        except (IntarsiaError, OSError):  # it may be what failed the step
            return replace(report, before=before)
        same = digest_snapshot(before) == digest_snapshot(after)
        notes = ("the target is as it was",) if same else ()
        return replace(report, before=before, after=after, notes=(*report.notes, *notes))

    def _attempt(self, step: Step, progress: Progress) -> StepReport:
        if isinstance(step, (Merge, Write)) and find_streams(self.run_state, step):
            return self._attempt_stream(step)
        source = self.run_state.get_source(step)
        selection = self.run_state.select_inputs(step, source)
        target = find_shown_target(step)
        before = self.run_state.get_snapshot(target) if target is not None else None
        if before is not None:
            check_layout(step, self.pipeline, before)
        stamps = () if selection is None else selection.files.stamps
        report = replace(
            self._report(step, "unchanged"),
            before=before,
            after=before,
            input_files=len(stamps),
            input_bytes=sum(stamp.size for stamp in stamps),
            skipped_files=0 if selection is None else selection.skipped,
            source_inputs={} if selection is None else count_inputs(step.source or "", selection.files),
            notes=() if selection is None else selection.notes,
        )
        if selection is not None and selection.once:
            if not stamps:
                return report
        elif self.run_state.is_current(step, None if selection is None else selection.files, self.made):
            return report
        if self.dry_run and self._waits_for(step):
            return replace(
                report, status="planned", notes=(*report.notes, "an earlier step makes the target")
            )
        return self._perform(step, report, selection, progress)

    def _attempt_stream(self, step: Merge | Write) -> StepReport:
        target = require(step.target)
        before = self.run_state.get_snapshot(target)
        check_layout(step, self.pipeline, before)
        report = replace(self._report(step, "unchanged"), before=before, after=before)
        self._look_ahead(step)
        guards = [self._begin_guard(self.reports[at]) for at in self.held]
        done, judged = run_stream_step(step, self.run_state, report, guards)
        for at, guard in zip(self.held, judged, strict=True):
            self.reports[at] = guard
        if done.status == "planned":
            self.made.add(target)
        return done

    def _begin_guard(self, report: StepReport) -> StepReport:
        """The report of a guard of a stream, with its quarantine as it is before the step below."""
        guard = next(one for one in self.run_state.list_steps() if one.name == report.name)
        self.run_state.check_settled(guard)
        before = None if guard.quarantine is None else self.run_state.get_snapshot(guard.quarantine)
        return replace(report, before=before, after=before)

    def _waits_for(self, step: Step) -> bool:
        """Whether a step of a dry run needs a target that does not exist, and of which there is no copy."""
        return any(
            name in self.made and not self.run_state.get_snapshot(name).exists
            for name in self.run_state.find_touched_targets(step)
        )

    def _perform(
        self, step: Step, report: StepReport, selection: Selection | None, progress: Progress
    ) -> StepReport:
        """Run a step and record its success in the state."""
        self._look_ahead(step)
        if self.on_start is not None:
            self.on_start(step)
        source = self.run_state.get_source(step)
        listing = None if source is None or selection is None else self.run_state.list_inputs(source)
        taken = None if selection is None else selection.files
        is_rehearsed = self.dry_run and not isinstance(step, Expect) and self._is_rehearsed(step)
        increments = self.run_state.fix_increments(step)
        self.resources.increments = increments
        report = replace(report, notes=(*report.notes, *(one.note for one in increments.values())))
        extra = {} if isinstance(step, Expect) else self.run_state.announce(step, listing, selection)
        with self.resources.rehearsal.explain_full_disk():
            outcome = carry_out(
                step,
                self.resources,
                listing=taken,
                dry_run=self.dry_run and not is_rehearsed,
                progress=progress,
                extra=extra,
            )
        done = replace(report, status="planned" if self.dry_run else "done")
        changed = False
        if isinstance(outcome, MergeResult):
            done = _with_result(done, outcome, dry_run=self.dry_run)
            changed = outcome.changed
        elif isinstance(step, Expect):
            done = replace(done, checks=tuple(outcome))
            error = make_failure(outcome, self._describe_source(step))
            if error is not None:
                return replace(done, status="failed", error=error)
            if step.quarantine is not None:
                done = self._quarantine(step, done, listing, selection, progress)
                changed = done.changed
        if self.dry_run:
            return self._report_plan(step, done, changed=changed)
        self.run_state.confirm(step, changed=changed)
        target = find_written_target(step)
        if done.result is not None and target is not None:
            self.run_state.forget(target)  # a commit that changes nothing is one, too
            done = replace(done, after=self.run_state.get_snapshot(target))
        self.run_state.note(step, listing, changed=changed)
        return done

    def _quarantine(
        self,
        step: Expect,
        report: StepReport,
        listing: InputFiles | None,
        selection: Selection | None,
        progress: Progress,
    ) -> StepReport:
        """Write the rows that violate an expectation into its quarantine, where there are any."""
        extra = self.run_state.announce(step, listing, selection)
        is_added = judges_once(self.run_state, step) or self.run_state.reads_new_rows(step)
        if is_added and not any(check.failing for check in report.checks):
            return report
        if self.dry_run and not self._is_rehearsed(step):
            extra = {"dry_run": True}
        result = quarantine_rows(
            step,
            self.resources,
            None if selection is None else selection.files,
            run_id=self.run_state.run_id,
            replaces=() if is_added else list_former_names(self.run_state, step),
            progress=progress,
            extra=extra,
        )
        return report if result is None else _with_result(report, result, dry_run=self.dry_run)

    def _report_plan(self, step: Step, report: StepReport, *, changed: bool) -> StepReport:
        notes = report.notes
        if (self.run_state.find_touched_targets(step) & self.made) - self.rehearsed:
            notes = (*notes, "planned against the target as it is now, before the steps above")
        target = find_written_target(step)
        if changed and target is not None:
            self.made.add(target)
            if target in self.rehearsed:
                self.run_state.forget(target)
        return replace(report, after=None, notes=notes)

    def _is_rehearsed(self, step: Step) -> bool:
        """Whether a step of a dry run changes its target in a scratch place, since later steps read that."""
        target = find_written_target(step)
        if target is None:
            return False
        later = self.run_state.list_steps()[len(self.reports) + 1 :]
        run = [other for other in later if other.name not in self.run_state.left_out]
        if not any(target in self.run_state.find_touched_targets(other) for other in run):
            return False
        if target not in self.rehearsed:
            if target in self.made or not self.resources.rehearse(target, step.options.get("spool_dir")):
                return False
            self.rehearsed.add(target)
        return True

    # Looking up

    def _describe_place(self, step: Step) -> str:
        """The path of a step's target; without a target, the paths of its source."""
        if step.target is not None:
            return self.run_state.show_target_path(step.target)
        source = self.run_state.get_source(step)
        return "" if source is None else ", ".join(map(redact, list_names(source.path)))

    def _describe_source(self, step: Step) -> str:
        if step.target is not None:
            return self.run_state.show_target_path(step.target)
        return f"source {step.source!r}"

    def _report(self, step: Step, status: Status) -> StepReport:
        target = find_shown_target(step)
        return StepReport(
            name=step.name,
            operation=step.operation,
            status=status,
            source=step.source,
            target=target,
            path=None if target is None else self.run_state.show_target_path(target),
        )


def find_shown_target(step: Step) -> str | None:
    """The target that a step writes, else the one that it looks at."""
    return find_written_target(step) or step.target


def _with_result(report: StepReport, result: MergeResult, *, dry_run: bool) -> StepReport:
    """The report with a result; new files of a dry run are left out, since they are removed."""
    files = len(result.rewritten_files) + result.new_files
    if dry_run and not result.dry_run:
        lasting = [file for file in result.files if file.operation != "inserted"]
        result = replace(result, files=lasting, inserted_files=[], dry_run=True, txid=None, version=None)
    return replace(report, result=result, files_written=files, bytes_written=result.bytes_written)


def _name_operation(step: Step) -> str:
    """The operation of a step as errors of the library name it."""
    if isinstance(step, Merge) and not step.when:
        return step.strategy or "upsert"
    return step.operation


_CALL = re.compile(r"^An error occurred while calling [\w.]+\n?: (?:[\w.$]+: )?")
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.*(?:\n(?!\s*at |\s*\.\.\. |Caused by: |$).*)*)", re.MULTILINE)
_NOISE = re.compile(r"\n(?=JVM stacktrace|\s*at |Traceback|Driver stacktrace|== DataFrame ==)")
_LONGEST = 600


def translate_error(error: BaseException) -> BaseException:
    """The error as an IntarsiaError with the original as its cause; an IntarsiaError is returned as it is."""
    made = _as_intarsia_error(error)
    if made is not error:
        made.__cause__ = error
    return made


def _as_intarsia_error(error: BaseException) -> BaseException:
    if isinstance(error, IntarsiaError):
        return error
    if isinstance(error, list_spark_error_types()):
        known = find_known_failure(error, "Spark could not do it")
        return known or InputError(f"Spark could not do it: {_shorten_spark(str(error))}", changed=None)
    if isinstance(error, pa.ArrowException) and not isinstance(error, OSError):
        return InputError(f"The data could not be read: {_shorten(str(error))}")
    if isinstance(error, OSError):
        path = None if error.filename is None else redact(str(error.filename))
        return StorageError(_shorten(str(error)), errno=error.errno, path=path, changed=None)
    return error


def _shorten_spark(text: str) -> str:
    """The first sentence of a Spark error, and its last "Caused by"."""
    said = _shorten(_CALL.sub("", text))
    causes = _CAUSE.findall(text)
    reason = _shorten(causes[-1]) if causes else ""
    return said if not reason or reason in said else f"{said} ({' '.join(reason.split())})"


def _shorten(text: str) -> str:
    """A message without its stack trace, in at most ``_LONGEST`` characters."""
    said = redact(_NOISE.split(text, maxsplit=1)[0].strip())
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}..."
