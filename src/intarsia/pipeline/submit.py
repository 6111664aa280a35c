"""The program that runs a pipeline file: for ``spark-submit``, and as ``python -m intarsia.pipeline``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from intarsia.core.report import MergeResult
from intarsia.errors import IntarsiaError
from intarsia.pipeline.backfill import BackfillRun, expand_range, run_backfill
from intarsia.pipeline.quality.checks import describe_outcomes
from intarsia.pipeline.reports.report import StepReport, describe_status, error_to_json
from intarsia.pipeline.runner import run_file
from intarsia.show import units

__all__ = ["main"]

DONE, FAILED, REFUSED = 0, 1, 2
_PASSED_ON = (
    *("dry_run", "engine", "master", "report_dir", "full_refresh"),
    *("mark_done", "continuous", "interval", "from_step", "env"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a file; the exit code is 0 when every step is done, 1 when one failed, 2 when none could start.

    Below ``spark-submit`` the session is the one that it has set up.
    """
    asked = _make_parser().parse_args(arguments)
    params = dict(asked.param)
    options: dict[str, Any] = {name: getattr(asked, name) for name in _PASSED_ON}
    options |= {"only": asked.only or None, "on_step": lambda step: _say(format_step(step))}
    try:
        over = {name: params.pop(name) for name, text in dict(asked.param).items() if expand_range(text)}
        if over:
            return _run_backfill(asked.file, over=over, params=params, start_over=asked.start_over, **options)
        report = run_file(asked.file, params=params, **options)
    except IntarsiaError as error:
        _say(f"{type(error).__name__}: {error}")
        return REFUSED
    _say(f"{report.pipeline}: {describe_status(report)} in {units.format_seconds(report.seconds)}")
    if report.html_path:
        _say(f"Report: {report.html_path}")
    return DONE if report.ok else FAILED


def _run_backfill(path: str, **options: Any) -> int:
    def say(one: BackfillRun) -> None:
        told = "" if one.error is None else f": {error_to_json(one.error)['message']}"
        _say(units.make_printable(f"{one.name}: {one.status}{told}"))

    made = run_backfill(path, on_run=say, **options)
    _say(f"{made.pipeline}: {made.describe()} ({units.format_seconds(made.seconds)})")
    return DONE if made.ok else FAILED


def format_step(step: StepReport) -> str:
    """The outcome of a step in one line."""
    told = f"{step.name}: {step.status}"
    if step.result is not None:
        told += f" ({_format_counts(step, step.result)})"
    if step.warned:
        told += f", {'; '.join(describe_outcomes(step.checks))}"
    if step.notes and step.error is None:
        told += f", {'; '.join(step.notes)}"
    if step.error is not None:
        told += f": {error_to_json(step.error)['message']}"
    return units.make_printable(f"{told}, {units.format_seconds(step.seconds)}")


def _format_counts(step: StepReport, result: MergeResult) -> str:
    counts = {"inserted": result.inserted, "updated": result.updated, "deleted": result.deleted}
    rows = ", ".join(f"{units.format_number(count)} {word}" for word, count in counts.items() if count)
    least = "" if step.files_exact else "at least "
    written = "to write" if result.dry_run else "written"
    files = f"{least}{units.format_count(step.files_written, 'file')} {written}"
    return f"{rows or 'no rows changed'}; {files}" if result.changed else "nothing to do"


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="intarsia.pipeline", description="Run a pipeline file.")
    parser.add_argument("file", help="the TOML or Python file")
    parser.add_argument("--dry-run", action="store_true", help="plan every step, write nothing")
    parser.add_argument("--full-refresh", action="store_true", help="take every input file again")
    parser.add_argument("--mark-done", action="store_true", help="run nothing, note every step as done")
    parser.add_argument("--continuous", action="store_true", help="stay, and take what streams bring")
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="between two looks")
    parser.add_argument("--only", action="append", metavar="STEP[,STEP]", help="run these steps only")
    parser.add_argument("--from", dest="from_step", metavar="STEP", help="run this step and those after it")
    parser.add_argument("--env", metavar="NAME", help="the environment, instead of INTARSIA_ENV's")
    parser.add_argument("--engine", choices=("spark", "arrow", "duckdb"), help="instead of the file's")
    parser.add_argument("--master", help="the Spark master, instead of the file's")
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        type=_parse_param,
        metavar="NAME=VALUE",
        help="a value, or a range as in day=2025-03-01..2025-03-31: one run per value",
    )
    parser.add_argument("--start-over", action="store_true", help="of a backfill: run every value again")
    parser.add_argument("--report-dir", help="where the reports go, instead of the file's directory")
    return parser


def _parse_param(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
