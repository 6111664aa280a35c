"""The program that runs a pipeline file: for ``spark-submit``, and as ``python -m intarsia.pipeline``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from intarsia.core.report import MergeResult
from intarsia.errors import IntarsiaError
from intarsia.pipeline.checks import describe_outcome
from intarsia.pipeline.report import StepReport, describe_status, error_to_json
from intarsia.pipeline.runner import run_file
from intarsia.show import units

__all__ = ["main"]

DONE, FAILED, REFUSED = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a file; the exit code is 0 when every step is done, 1 when one failed, 2 when none could start.

    Below ``spark-submit`` the session is the one that it has set up.
    """
    asked = _make_parser().parse_args(arguments)
    try:
        report = run_file(
            asked.file,
            params=dict(asked.param),
            dry_run=asked.dry_run,
            engine=asked.engine,
            master=asked.master,
            report_dir=asked.report_dir,
            full_refresh=asked.full_refresh,
            mark_done=asked.mark_done,
            continuous=asked.continuous,
            interval=asked.interval,
            only=asked.only or None,
            from_step=asked.from_step,
            env=asked.env,
            on_step=lambda step: _say(format_step(step)),
        )
    except IntarsiaError as error:
        _say(f"{type(error).__name__}: {error}")
        return REFUSED
    _say(f"{report.pipeline}: {describe_status(report)} in {units.format_seconds(report.seconds)}")
    if report.html_path:
        _say(f"Report: {report.html_path}")
    return DONE if report.ok else FAILED


def format_step(step: StepReport) -> str:
    """The outcome of a step in one line."""
    told = f"{step.name}: {step.status}"
    if step.result is not None:
        told += f" ({_format_counts(step, step.result)})"
    if step.warned:
        told += f" ({'; '.join(describe_outcome(check) for check in step.checks if not check.ok)})"
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
    parser.add_argument("--param", action="append", default=[], type=_parse_param, metavar="NAME=VALUE")
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
