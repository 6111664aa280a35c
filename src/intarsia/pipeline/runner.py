"""One run of a pipeline, from opening its session to writing its report; step_runner runs the steps."""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict, Unpack

from intarsia import telemetry
from intarsia.common.log import redact
from intarsia.common.names import suggest_names
from intarsia.core.ports import Progress
from intarsia.core.run import ignore_progress
from intarsia.engine_choice import DeferredSession, SessionLike
from intarsia.errors import InputError, StorageError
from intarsia.pipeline.continuous import catch_signals, check_continuous, repeat, tell_changes
from intarsia.pipeline.graph import SourceGraph, order_steps
from intarsia.pipeline.lineage.emitter import close_lineage, open_lineage
from intarsia.pipeline.loading import load, resolve
from intarsia.pipeline.look_ahead import check_read_targets
from intarsia.pipeline.model import EngineOfPipeline, Pipeline, Step, StepGuard, name_step
from intarsia.pipeline.places import add_line
from intarsia.pipeline.quality.guards import list_guards
from intarsia.pipeline.quality.step_guards import expand_guards, find_made
from intarsia.pipeline.reports.diagram import make_graph
from intarsia.pipeline.reports.live import LiveReport
from intarsia.pipeline.reports.page import render_page
from intarsia.pipeline.reports.report import PipelineReport, StepReport, as_json
from intarsia.pipeline.reports.run_index import update_index
from intarsia.pipeline.resources import RunResources
from intarsia.pipeline.state.definitions import name_steps
from intarsia.pipeline.state.recovery import finish_commits, recover_state
from intarsia.pipeline.state.run_state import RunState
from intarsia.pipeline.state.state_file import (
    choose_state_path,
    find_old_state_path,
    lock_state,
    read_state,
    write_atomically,
)
from intarsia.pipeline.step_runner import OnStep, StepRunner
from intarsia.pipeline.streams.stream_steps import check_streams
from intarsia.pipeline.validation import check
from intarsia.show.progress import make_reporter

__all__ = ["OnStep", "RunOptions", "run", "run_file"]


class RunOptions(TypedDict, total=False):
    """Keyword arguments of :func:`run`, for what passes them on."""

    dry_run: bool
    engine: EngineOfPipeline | None
    master: str | None
    session: SessionLike | DeferredSession | None
    report_dir: str | os.PathLike[str] | None
    progress: Progress | bool | None
    on_step: OnStep | None
    full_refresh: bool
    mark_done: bool
    only: str | Sequence[str] | None
    from_step: str | None
    continuous: bool
    interval: float
    stop: threading.Event | None


def run(
    pipeline: Pipeline,
    *,
    dry_run: bool = False,
    engine: EngineOfPipeline | None = None,
    master: str | None = None,
    session: SessionLike | DeferredSession | None = None,
    report_dir: str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
    on_step: OnStep | None = None,
    full_refresh: bool = False,
    mark_done: bool = False,
    only: str | Sequence[str] | None = None,
    from_step: str | None = None,
    continuous: bool = False,
    interval: float = 1.0,
    stop: threading.Event | None = None,
) -> PipelineReport:
    """Run a pipeline's steps in order, and leave a JSON and an HTML report.

    Each step is atomic: one that fails leaves its target as it was, the later ones do not run, and the
    report says so; :meth:`PipelineReport.check` raises its error. Each step takes effect once, also when the
    process is killed after its commit. Idempotent: a merge or an append takes each input file once, and any
    other step whose definition, input and target are what they were after its last success does nothing.
    (Changes of a target by later steps of the same pipeline do not count; those by anybody else do.) A run
    that ended early is finished first, before any step takes new input.

    Args:
        pipeline: what to run.
        dry_run: plan every step and write nothing, except the report where ``report_dir`` asks for it.
        engine: ``"spark"``, ``"arrow"`` or ``"duckdb"``, instead of the pipeline's own.
        master: the Spark master, instead of the pipeline's own.
        session: a Spark session to run on; it is left running. Else one is opened, and stopped in the end.
        report_dir: where the reports go, instead of the pipeline's own directory.
        progress: called with what is going on, done and total; None draws a line on a terminal, False
            is silent.
        on_step: called with the report of each step when it is over.
        full_refresh: merges and overwrites take all files of their sources again. Files that were
            appended are not appended twice.
        mark_done: run nothing; note that every step is done with the files and targets that are there. For
            targets that were filled otherwise, and for a state that was lost.
        only: the names of the steps to run; the others are reported as not run, and the state has nothing
            new of them. A run that ended early is then not finished first.
        from_step: the name of the first step to run; those above it are left out likewise.
        continuous: stay, and run all steps again and again, each time on what is new; for pipelines with
            streams. Ctrl-C or SIGTERM (in the main thread) ends it after the batch at hand; a second one
            interrupts. The report is that of the last pass that did something.
        interval: seconds between two passes of a run that stays.
        stop: an event that ends a run that stays, as a signal does.

    Raises:
        InputError: the pipeline is not consistent.
        NotSupported: Spark or DuckDB is not installed, or a target's kind is not part of this version.
        CommitConflict: another run of this pipeline is under way.
        DamagedTable: the state is damaged, or was lost: a table's log has commits that it does not know.
        StorageError: the state or the report cannot be written.

    The report has the errors of steps; CommitUnknown where a commit of an earlier run cannot be determined.

    Example:
        >>> from intarsia import pipeline
        >>> declared = pipeline.Pipeline(
        ...     name="orders",
        ...     engine="arrow",
        ...     sources={"changes": pipeline.Source(path="changes.csv")},
        ...     targets={"orders": pipeline.Target(path="lake/orders")},
        ...     steps=(pipeline.Merge(source="changes", target="orders", on="id"),),
        ... )
        >>> pipeline.run(declared, progress=False).check().steps[0].result.inserted
        1
    """
    telemetry.follow()
    pipeline = _resolve_steps(pipeline, engine)
    left_out = find_left_out(pipeline, only=only, from_step=from_step)
    if continuous:
        check_continuous(pipeline, interval=interval, once=dry_run or mark_done)
    if dry_run and mark_done:
        raise InputError("A dry run writes nothing, so it cannot mark steps as done.")
    path, old = choose_state_path(pipeline), find_old_state_path(pipeline)
    keep = not dry_run or report_dir is not None
    directory = Path(report_dir if report_dir is not None else pipeline.reports)
    if keep:
        make_report_directory(directory)
    with ExitStack() as sessions, ExitStack() as stack:  # what a session has is given back before it stops
        state = read_state(path, old) if dry_run else stack.enter_context(lock_state(path, old))
        watched = stack.enter_context(_open_progress(progress))
        stopping = stop or threading.Event()
        signals = stack.enter_context(catch_signals(stopping, wanted=continuous))
        opener = make_opener(pipeline, master, session, watched, sessions)
        if continuous and opener is not None:
            opener = signals.wrap(opener)
        resources = RunResources(pipeline, opener)
        resources.links.writes = not dry_run
        run_state = RunState(
            pipeline,
            resources,
            state,
            path,
            _make_run_id(),
            dry_run=dry_run,
            full_refresh=full_refresh,
            left_out=left_out,
            stop=stopping,
        )
        made = _Run(pipeline, resources, run_state, watched, on_step, directory if keep else None)
        stack.callback(made.close)
        if mark_done:
            return made.mark_done()
        recover_state(run_state)
        with add_line(pipeline.lines, pipeline.origin):
            check_streams(run_state)
            check_read_targets(run_state)
        report = made.run_all()
        return repeat(made.run_again, report, stopping, interval) if continuous else report


def _resolve_steps(pipeline: Pipeline, engine: EngineOfPipeline | None) -> Pipeline:
    """The pipeline checked, with its steps in the order of what they read, and its guards."""
    pipeline = resolve(pipeline, engine=engine)
    check(pipeline)
    if any(source.is_computed for source in pipeline.sources.values()):
        pipeline = replace(pipeline, steps=order_steps(pipeline))
    return expand_guards(pipeline)


@dataclass(slots=True)
class _Run:
    """A run under way, which first runs the steps that an interrupted run has left."""

    pipeline: Pipeline
    resources: RunResources
    run_state: RunState
    progress: Progress
    on_step: OnStep | None
    directory: Path | None
    """Where the reports go; None for no reports."""
    reports_idle: bool = True
    """Whether a pass in which no step had anything to do leaves a report."""

    def close(self) -> None:
        self.resources.close()

    def run_again(self) -> PipelineReport:
        """Run all steps once more, on what is there now; one with nothing to do leaves no report."""
        self.resources.close()
        if self.reports_idle:
            self.reports_idle, self.on_step = False, tell_changes(self.on_step)
        before = self.run_state
        self.resources = RunResources(self.pipeline, self.resources.opening, self.resources.opened)
        self.run_state = RunState(
            self.pipeline,
            self.resources,
            before.state,
            before.path,
            _make_run_id(),
            left_out=before.left_out,
            stop=before.stop,
        )
        return self.run_all()

    def run_all(self) -> PipelineReport:
        """Finish the run that ended early, if one did, then run all steps from the first.

        A step takes no new input before the steps after it have run on the old one. A full refresh that ended
        early is finished as one, and is not repeated where this run is one as well.
        """
        first: PipelineReport | None = None
        as_it_is = self.run_state.dry_run or self.run_state.left_out
        resumed = 0 if as_it_is else self.run_state.resume_at()
        unfinished = self.run_state.state.unfinished
        if unfinished is not None and 0 < resumed < len(self.pipeline.steps):
            asked, self.run_state.full_refresh = self.run_state.full_refresh, unfinished.full_refresh
            first = self._finish_first(resumed=resumed)
            self.run_state.full_refresh = asked and not unfinished.full_refresh
            if first is not None and first.ok:
                self.run_state.finish()
        again = first is not None and not first.ok
        if again:
            finish_commits(self.run_state)  # the step that failed may have committed
        second = self._finish_first(after=first, only_if=resumed if again else 0)
        if second is None:
            assert first is not None
            return first
        if second.ok:
            self.run_state.finish()
        return second

    def mark_done(self) -> PipelineReport:
        self.run_state.mark_done()
        course = self._make_step_runner(self.on_step)
        course.mark_all()
        return self._report(course, datetime.now(UTC), 0.0)

    def _finish_first(
        self, *, resumed: int = 0, after: PipelineReport | None = None, only_if: int = 0
    ) -> PipelineReport | None:
        """One pass over the steps; None where it had nothing to do and the other pass makes the report."""
        with LiveReport(self.directory) as live:
            return self._run_pass(live, resumed, after, only_if)

    def _run_pass(
        self, live: LiveReport, resumed: int, after: PipelineReport | None, only_if: int
    ) -> PipelineReport | None:
        begun, started = time.perf_counter(), datetime.now(UTC)
        self.run_state.run_id = _make_run_id()
        unfinished = self.run_state.state.unfinished
        waiting: list[StepReport] = []
        lineage = open_lineage(self.pipeline, self.resources, self.run_state)

        def tell(step: StepReport) -> None:
            """Report a step; in a second pass, steps with nothing to do only once one has something to do."""
            if lineage is not None:
                lineage.end_step(step)
            live.end_step(report)
            waiting.append(step)
            if self.on_step is None or (after is not None and course.is_idle and step.status == "unchanged"):
                return
            while waiting:
                self.on_step(waiting.pop(0))

        course = self._make_step_runner(tell, done_before=resumed, only_if=only_if)

        def begin(step: Step) -> None:
            if lineage is not None:
                lineage.begin_step(step)
            live.begin_step(report, step.name)

        course.on_start = begin

        def report() -> PipelineReport:
            made = self._report(course, started, time.perf_counter() - begun)
            if resumed and unfinished is not None:
                made = replace(made, resumes=unfinished.run)
            return replace(made, finished_first=after)

        try:
            course.go()
        except BaseException:  # an interrupted run leaves a report, too
            made = close_lineage(lineage, report(), interrupted=True)
            if self.resources.unopened is None:
                self._write(made)
            raise
        finally:
            self.run_state.close()
        made = close_lineage(lineage, report())
        if course.is_idle and (resumed or after is not None):
            return None
        return self._write(made) if self.reports_idle or not course.is_idle else made

    def _make_step_runner(
        self, on_step: OnStep | None, *, done_before: int = 0, only_if: int = 0
    ) -> StepRunner:
        return StepRunner(
            self.pipeline,
            self.resources,
            self.run_state,
            self.progress,
            on_step,
            dry_run=self.run_state.dry_run,
            done_before=done_before,
            only_if=only_if,
        )

    def _report(self, course: StepRunner, started: datetime, seconds: float) -> PipelineReport:
        return PipelineReport(
            pipeline=self.pipeline.name,
            run_id=self.run_state.run_id,
            started=started,
            steps=course.list_reports(),
            seconds=seconds,
            engine=self.pipeline.engine,
            session=_describe_session(self.resources.opened),
            dry_run=self.run_state.dry_run,
            origin=self.pipeline.origin,
            env=self.pipeline.env,
            graph=make_graph(self.pipeline, self.resources.graph),
        )

    def _write(self, report: PipelineReport) -> PipelineReport:
        return report if self.directory is None else write_report(report, self.directory)


def run_file(
    path: str | os.PathLike[str],
    *,
    params: Mapping[str, str] | None = None,
    env: str | None = None,
    **options: Unpack[RunOptions],
) -> PipelineReport:
    """Run the pipeline that a TOML or Python file declares.

    Args:
        path: the file, as of :func:`load`.
        params: values for parameters, as of :func:`load`.
        env: the environment, as of :func:`load`.
        options: as of :func:`run`.

    Raises:
        InputError, NothingMatched: as :func:`load`; else as :func:`run`.

    Example:
        >>> from intarsia import pipeline
        >>> pipeline.run_file("orders.toml", dry_run=True, progress=False).ok
        True
    """
    return run(load(path, params=params, env=env, engine=options.get("engine")), **options)


@contextmanager
def _open_progress(progress: Progress | bool | None) -> Iterator[Progress]:
    given: AbstractContextManager[Progress]
    if progress is None or progress is True:
        given = make_reporter()
    else:
        given = nullcontext(ignore_progress if progress is False else progress)
    with given as watched:
        yield watched


def make_opener(
    pipeline: Pipeline,
    master: str | None,
    session: SessionLike | DeferredSession | None,
    progress: Progress,
    stack: ExitStack,
) -> Callable[[], Any] | None:
    """A function that opens the Spark session of a run; None for another engine."""
    if pipeline.engine != "spark":
        if session is not None or master is not None:
            raise InputError(
                f"The engine of pipeline {pipeline.name!r} is {pipeline.engine}, not Spark.",
                hint='a master or a session goes with engine "spark".',
            )
        return None
    if isinstance(session, DeferredSession):
        return session.session
    if session is not None:
        return lambda: session
    from intarsia.spark.session import session_on, silence_query_errors

    settings = pipeline.spark

    def open_session() -> Any:
        progress("opening the Spark session", 0, 0)
        app = settings.app_name or pipeline.name
        opened = stack.enter_context(session_on(master or settings.master, app=app, config=settings.config))
        stack.enter_context(silence_query_errors())  # the report tells them
        return opened

    return open_session


def _make_run_id() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}"


def _describe_session(session: Any) -> str:
    if session is None:
        return ""
    if ".connect." in type(session).__module__:
        return f"Spark {session.version}, Connect"
    return redact(f"Spark {session.version}, {session.sparkContext.master}")


def make_report_directory(directory: Path) -> None:
    """Make the directory of the reports, before a step runs.

    Raises:
        StorageError: it cannot be made or written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise StorageError(
            f"No report can be left in {directory}: {error.strerror or error}",
            errno=error.errno,
            path=str(directory),
            hint="name another directory with reports, or --report-dir.",
        ) from error


def write_report(report: PipelineReport, directory: Path) -> PipelineReport:
    """Write ``<pipeline>-<run>.json`` and ``.html``, and the index of runs; returns the report with paths.

    Raises:
        StorageError: the directory cannot be written.
    """
    name = re.sub(r"[^\w.\-]", "-", f"{report.pipeline}-{report.run_id}")
    written = replace(
        report, json_path=str(directory / f"{name}.json"), html_path=str(directory / f"{name}.html")
    )
    data = json.dumps(as_json(written), indent=1, default=str).encode() + b"\n"
    write_atomically(directory / f"{name}.json", data)
    write_atomically(directory / f"{name}.html", render_page(written).encode())
    update_index(directory)
    return written


def find_left_out(
    pipeline: Pipeline, *, only: str | Sequence[str] | None = None, from_step: str | None = None
) -> Mapping[str, str]:
    """The steps that a run leaves out, each with the reason; none where it is not limited.

    An expectation that drops rows which a step of the run reads is not left out: it counts them.

    Args:
        pipeline: its steps are in the order in which they run.
        only: the steps to run; one text may name several, with commas.
        from_step: the first step to run; those above it are left out.

    Raises:
        InputError: an unknown step, no step, or both limits.
    """
    names = [name_step(step, number) for number, step in enumerate(pipeline.steps, 1)]
    if only is not None and from_step is not None:
        raise InputError("A run has --only or --from, not both.", hint="name all steps with --only.")
    if from_step is not None:
        first = next(iter(find_made(pipeline, from_step)), from_step)
        _check_names(pipeline, [first], names)
        return _keep_guards(pipeline, names[: names.index(first)], f"left out: --from {from_step}")
    if only is None:
        return {}
    chosen = split_names([only] if isinstance(only, str) else only, names)
    chosen = [made for name in chosen for made in find_made(pipeline, name) or [name]]
    if not chosen:
        raise InputError("--only names no step.", hint=f"there is {', '.join(map(repr, names))}.")
    _check_names(pipeline, chosen, names)
    reason = f"left out: --only {', '.join(name for name in names if name in chosen)}"
    return _keep_guards(pipeline, [name for name in names if name not in chosen], reason)


def _keep_guards(pipeline: Pipeline, left_out: Sequence[str], reason: str) -> Mapping[str, str]:
    """The steps to leave out without those that drop rows of what the others read; and with guards of streams
    exactly where their step is left out, since they are a part of it."""
    graph, steps = SourceGraph(pipeline), name_steps(pipeline)
    chosen = [step for step in steps if step.name not in left_out]
    kept = {step.name for step in chosen}
    for step in chosen:
        read = () if step.source is None else graph.list_sources(step.source)
        guards = [one for one in list_guards(steps, step) if one.source in read]
        kept |= {one.name for one in guards if one.quarantine is None}
    for step in steps:
        if isinstance(step, StepGuard) and graph.list_streams(step.source or ""):
            kept = kept | {step.name} if step.writer in kept else kept - {step.name}
    return dict.fromkeys([step.name for step in steps if step.name not in kept], reason)


def split_names(given: Sequence[str], known: Sequence[str]) -> list[str]:
    """Names from texts that have one each, or several with commas; a known name may have commas itself."""
    found: list[str] = []
    for text in given:
        found += [text] if text in known else [part.strip() for part in text.split(",") if part.strip()]
    return found


def _check_names(pipeline: Pipeline, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            where = pipeline.origin or f"pipeline {pipeline.name!r}"
            raise InputError(
                f"{where}: there is no step {name!r}.",
                path=pipeline.origin,
                hint=suggest_names([name], known, otherwise=f"there is {', '.join(map(repr, known))}."),
            )
