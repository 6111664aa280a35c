"""A pipeline run from opening its session to writing its report; what becomes of each step is in course."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from intarsia.common.log import redact
from intarsia.core.ports import Progress
from intarsia.core.run import silent
from intarsia.errors import InputError
from intarsia.pipeline import state as memory
from intarsia.pipeline.check import check
from intarsia.pipeline.course import Course, OnStep
from intarsia.pipeline.declare import load
from intarsia.pipeline.files import report_directory, write_report
from intarsia.pipeline.model import Pipeline
from intarsia.pipeline.report import PipelineReport
from intarsia.pipeline.steps import Workshop
from intarsia.show.progress import for_terminal


def run(
    pipeline: Pipeline,
    *,
    dry_run: bool = False,
    engine: Literal["spark", "arrow", "duckdb"] | None = None,
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
        engine: ``"spark"``, ``"arrow"`` or ``"duckdb"``, instead of the pipeline's own.
        master: the Spark master, instead of the pipeline's own.
        session: a Spark session to run on; it is left running. Else one is opened, and stopped in the end.
        report_dir: where the reports go, instead of the pipeline's own directory.
        progress: called with what is going on, done and total; None draws a line on a terminal, False
            is silent.
        on_step: called with the report of each step when it is over.

    Raises:
        InputError: the pipeline does not hang together.
        NotSupported: Spark or DuckDB is not installed, or a target's kind is not part of this version.
        CommitConflict: another run of this pipeline is under way.
        StorageError: the state or the report cannot be written.
    """
    if engine is not None:
        pipeline = replace(pipeline, engine=engine)
    check(pipeline)
    begun = time.perf_counter()
    started = datetime.now(UTC)
    path = memory.state_path(pipeline)
    keep = not dry_run or report_dir is not None
    directory = Path(report_dir if report_dir is not None else pipeline.reports)
    if keep:
        report_directory(directory)
    with ExitStack() as stack:
        state = memory.read(path) if dry_run else stack.enter_context(memory.held(path))
        watched = stack.enter_context(_watched(progress))
        spark = stack.enter_context(_session(pipeline, master, session, watched))
        shop = Workshop(pipeline, spark)
        stack.callback(shop.close)
        made = Course(pipeline, shop, state, path, dry_run, watched, on_step)
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
    """The Spark session of the run; None where the engine is another."""
    if pipeline.engine != "spark":
        if session is not None or master is not None:
            raise InputError(
                f"The engine of pipeline {pipeline.name!r} is {pipeline.engine}, not Spark.",
                hint='a master or a session goes with engine "spark".',
            )
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


__all__ = ["OnStep", "run", "run_file"]
