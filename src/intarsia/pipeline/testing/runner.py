"""Runs tests of pipelines in scratch directories, and compares what they leave with what is expected."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from intarsia import reading
from intarsia.common.lazy import import_optional
from intarsia.engine_choice import SessionLike
from intarsia.errors import InputError, IntarsiaError, NothingMatched
from intarsia.pipeline.loading import load
from intarsia.pipeline.model import EngineOfPipeline, Merge, Pipeline, list_names
from intarsia.pipeline.reports.report import PipelineReport, StepReport, error_to_json
from intarsia.pipeline.runner import run
from intarsia.pipeline.testing.cases import PipelineTestCase, find_cases
from intarsia.pipeline.testing.row_differences import RowDifferences, compare_rows
from intarsia.pipeline.testing.sandbox import Sandbox
from intarsia.show import units

__all__ = ["CaseReport", "run_tests"]


@dataclass(frozen=True, slots=True)
class CaseReport:
    """What came of one test."""

    name: str
    file: str
    """The test file."""
    pipeline: str
    """The pipeline's file."""
    engine: str
    seconds: float
    problems: tuple[str, ...] = ()
    """Why it failed, one sentence each; none where it passed."""
    differences: Mapping[str, RowDifferences] = field(default_factory=dict)
    """By target or source: the rows that differ."""

    @property
    def ok(self) -> bool:
        """Whether it passed."""
        return not self.problems and not self.differences

    def describe(self) -> list[str]:
        """Why it failed, line by line; nothing where it passed."""
        lines = list(self.problems)
        for name, found in self.differences.items():
            lines.append(f"{name}: {_count_differences(found)}")
            lines += [f"  {line}" for line in found.describe()]
        return lines

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "name": self.name,
            "ok": self.ok,
            "file": self.file,
            "pipeline": self.pipeline,
            "engine": self.engine,
            "seconds": self.seconds,
            "problems": list(self.problems),
            "differences": {name: found.as_json() for name, found in self.differences.items()},
        }


def run_tests(
    path: str | os.PathLike[str] = ".",
    *,
    name: str | None = None,
    engine: EngineOfPipeline | None = None,
    session: SessionLike | None = None,
    on_case: Callable[[CaseReport], None] | None = None,
) -> tuple[CaseReport, ...]:
    """Run the tests of a pipeline on the rows that they give, and compare the rows that they expect.

    Each test runs in a temporary directory of its own: the pipeline's sources, targets, state and reports
    are neither read nor written. Queries and functions run as they are. Spark runs on this machine, whatever
    master the pipeline names.

    Args:
        path: a pipeline, a file of tests (``orders.test.toml``), or a directory with pipelines.
        name: run only tests with this text in their names; upper and lower case count as equal.
        engine: ``"spark"``, ``"arrow"`` or ``"duckdb"``, instead of the pipeline's own.
        session: a Spark session to run on; it is left running. Else a local one is opened where needed.
        on_case: called with the report of each test when it is over.

    Returns:
        A report of each test, in the order of the files.

    Raises:
        NothingMatched: there is no test, or none of this name.
        InputError: a test file cannot be read, or has an unknown key.

    A pipeline that is refused fails its tests, except where ``error`` expects it.

    Example:
        >>> from pathlib import Path
        >>> from intarsia import pipeline
        >>> written = Path("orders.test.toml").write_text('''
        ... [[test]]
        ... name = "an order is inserted"
        ... given.changes.rows = [{ id = 7, amount = 3 }]
        ... expect.orders.rows = [{ id = 7, amount = 3 }]
        ... ''')
        >>> [case.ok for case in pipeline.run_tests("orders.toml")]
        [True]
    """
    cases = find_cases(path)
    chosen = [case for case in cases if name is None or name.casefold() in case.name.casefold()]
    if not chosen:
        names = ", ".join(repr(case.name) for case in cases[:10])
        raise NothingMatched(
            f"No test of {os.fspath(path)} has {name!r} in its name.", hint=f"there is {names}."
        )
    reports = []
    with _Sessions(session) as sessions:
        for case in chosen:
            reports.append(_run_case(case, engine, sessions))
            if on_case is not None:
                on_case(reports[-1])
    return tuple(reports)


@dataclass(slots=True)
class _Sessions:
    """The Spark session of the tests: one for all with the same settings, opened when first needed."""

    given: SessionLike | None
    settings: Mapping[str, Any] | None = None
    opened: Any = None
    stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> _Sessions:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def get(self, pipeline: Pipeline) -> SessionLike | None:
        if pipeline.engine != "spark" or self.given is not None:
            return None if pipeline.engine != "spark" else self.given
        settings = {"spark.sql.shuffle.partitions": 2, **pipeline.spark.config}
        if settings != self.settings:
            self.stack.close()
            session_on = import_optional("intarsia.spark.session").session_on
            self.opened = self.stack.enter_context(session_on("local[*]", app="tests", config=settings))
            self.settings = settings
        return self.opened


def _run_case(case: PipelineTestCase, engine: EngineOfPipeline | None, sessions: _Sessions) -> CaseReport:
    begun = time.perf_counter()
    report = CaseReport(case.name, case.file, case.pipeline, engine or "", 0.0)
    try:
        declared = load(case.pipeline, params=case.params)
        declared = declared if engine is None else replace(declared, engine=engine)
        report = replace(report, engine=declared.engine)
        with tempfile.TemporaryDirectory(prefix="intarsia-test-") as directory:
            sandbox = Sandbox(case, declared, directory)
            report = _run_in(sandbox, report, sessions)
    except IntarsiaError as error:  # the pipeline, or what the test gives, is refused
        report = replace(report, problems=tuple(_judge_error(case, error)))
    return replace(report, seconds=time.perf_counter() - begun)


def _run_in(sandbox: Sandbox, report: CaseReport, sessions: _Sessions) -> CaseReport:
    case = sandbox.case
    pipeline = sandbox.make_pipeline()
    problems: list[str] = []
    session = sessions.get(pipeline)
    done = run(pipeline, progress=False, session=session)
    failed = next((step for step in done.steps if step.error is not None), None)
    if failed is not None or case.error is not None:
        problems += _judge_error(case, None if failed is None else failed.error, failed)
    for number in range(2, case.runs + 1):
        if failed is None:
            problems += _list_repeated(run(pipeline, progress=False, session=session), number)
    differences: dict[str, RowDifferences] = {}
    if failed is None or case.error is not None:
        for name in case.expect:
            try:
                found = _compare(sandbox, name, pipeline)
            except InputError as error:
                problems.append(_tell(error))
                continue
            if found.count:
                differences[name] = found
    return replace(report, problems=tuple(problems), differences=differences)


def _compare(sandbox: Sandbox, name: str, pipeline: Pipeline) -> RowDifferences:
    """The differences between the rows that a test expects of a target or source and those that are there."""
    expected = sandbox.case.expect[name]
    target = sandbox.find_output(name)
    try:
        found = reading.read(sandbox.open_output(target)).read_all()
    except NothingMatched as error:
        raise InputError(f"{name}: no rows were written to it.") from error
    rows = sandbox.reader.read_expected(expected, found.schema)
    columns = rows.column_names or found.column_names
    if not rows.num_columns:
        rows = found.slice(0, 0)
    return compare_rows(
        rows.select(columns).cast(found.select(columns).schema),
        found.select(columns),
        key=list_names(expected.key) or _find_key(pipeline, target),
    )


def _find_key(pipeline: Pipeline, target: str) -> tuple[str, ...]:
    """The columns by which a merge finds the rows of a target; none where a condition does."""
    for step in pipeline.steps:
        if isinstance(step, Merge) and step.target == target:
            return list_names(step.on)
    return ()


def _judge_error(
    case: PipelineTestCase, error: BaseException | None, step: StepReport | None = None
) -> Iterator[str]:
    """What is wrong about the error of a run, or about there being none."""
    where = "" if step is None else f"step {step.name!r}: "
    if error is None:
        yield f"it was expected to fail with {case.error!r}, and did not."
    elif case.error is None:
        yield f"{where}{_tell(error)}"
    elif case.error.casefold() not in str(error).casefold():
        yield f"it was expected to fail with {case.error!r}; {where}{_tell(error)}"


def _tell(error: BaseException) -> str:
    told = error_to_json(error)
    return f"{told['message']} ({told['hint']})" if told.get("hint") else str(told["message"])


def _list_repeated(done: PipelineReport, number: int) -> Iterator[str]:
    """What a run did that should have found nothing to do."""
    for step in done.steps:
        if step.error is not None:
            yield f"run {number}: step {step.name!r}: {_tell(step.error)}"
        elif step.status != "unchanged":
            counts = () if step.result is None else dict(step.result).items()
            told = [f"{count} {what}" for what, count in counts if count and what != "total"]
            yield f"run {number}: step {step.name!r} was not idle: {', '.join(told) or 'no rows'}"


def _count_differences(found: RowDifferences) -> str:
    parts = (
        (found.found.num_rows, "differs", "differ"),
        (found.missing.num_rows, "is missing", "are missing"),
        (found.unexpected.num_rows, "was not expected", "were not expected"),
    )
    told = [
        f"{units.format_count(number, 'row')} {one if number == 1 else many}"
        for number, one, many in parts
        if number
    ]
    return ", ".join(told)
