"""``intarsia run``: runs a pipeline file, and shows its progress, the outcome of each step and its report."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

from intarsia import pipeline
from intarsia.cli.screen import Screen, get_screen
from intarsia.pipeline.backfill import expand_range
from intarsia.pipeline.quality.checks import describe_outcomes
from intarsia.pipeline.reports.report import StepReport, as_json, describe_status
from intarsia.show import progress, units

__all__ = ["run_pipeline"]

_STYLES = {
    "done": "green",
    "done before": "dim",
    "unchanged": "dim",
    "planned": "cyan",
    "failed": "bold red",
    "not run": "dim",
}


def run_pipeline(path: str, *, params: Mapping[str, str], only: Sequence[str] = (), **options: Any) -> None:
    """Run a pipeline file and show the outcome of each step. Raises the error of a step that failed.

    A parameter with a range makes it a backfill: one run per value. ``options`` are those of
    :func:`intarsia.pipeline.run_file`.
    """
    shown = get_screen()
    over = {name: text for name, text in params.items() if expand_range(text) is not None}
    if over:
        rest = {name: text for name, text in params.items() if name not in over}
        _run_backfill(shown, path, over=over, params=rest, only=only or None, **options)
        return
    if options.pop("start_over", False):
        raise click.UsageError("--start-over goes with a range, as in --param day=2025-03-01..2025-03-31.")
    asked = click.get_current_context().get_parameter_source("interval")
    if asked == ParameterSource.COMMANDLINE and not options.get("continuous"):
        raise click.UsageError("--interval goes with --continuous.")
    watch = _Watch(shown)
    with shown.log(), watch:
        report = pipeline.run_file(
            path, params=params, only=only or None, progress=watch, on_step=watch.report, **options
        )
    for step in report.steps:
        if step.status == "not run":
            watch.report(step)
    if shown.json:
        shown.show_json({**as_json(report), "json_path": report.json_path, "html_path": report.html_path})
    if options.get("mark_done"):
        shown.say((f"{report.pipeline}: noted as done, nothing was run", "bold"))
        return
    shown.say(
        (f"{report.pipeline}: {describe_status(report)}", "bold"),
        f" in {units.format_seconds(report.seconds)}",
    )
    if report.finished_first is not None and report.finished_first.html_path is not None:
        shown.say(f"Report of the run that was finished first: {report.finished_first.html_path}")
    if report.html_path is not None:
        shown.say(f"Report: {report.html_path}")
    if shown.quiet and not report.ok:
        shown.complain(f"{report.pipeline}: {describe_status(report)}")
    report.check()


def _run_backfill(shown: Screen, path: str, **options: Any) -> None:
    """Run a backfill, and show one line per value; of a value that failed, also its steps."""
    watch = _Watch(shown)

    def report(one: pipeline.BackfillRun) -> None:
        for step in () if one.report is None or one.status != "failed" else one.report.steps:
            watch.report(step)
        is_planned = one.status == "done" and one.report is not None and one.report.dry_run
        watch.say("planned" if is_planned else one.status, one.name, _describe_run(one), width=12)

    with shown.log(), watch:
        made = pipeline.run_backfill(path, progress=watch, on_run=report, **options)
    if shown.json:
        shown.show_json(made.as_json())
    told = f"{made.pipeline}: {made.describe()}"
    shown.say((told, "bold"), f" ({units.format_seconds(made.seconds)})")
    if shown.quiet and not made.ok:
        shown.complain(told)
    made.check()


def _describe_run(one: pipeline.BackfillRun) -> list[str]:
    """The rows of a value's run, its time and its report."""
    if one.report is None:
        return []
    results = [step.result for step in one.report.steps if step.result is not None]
    told = []
    for what in ("inserted", "updated", "deleted"):
        number = sum(getattr(result, what) for result in results)
        told += [f"{units.format_number(number)} {what}"] if number else []
    if one.status == "done" and not told:
        told = [describe_status(one.report)]
    return [*told, units.format_seconds(one.report.seconds)]


class _Watch:
    """Shows the progress of a step, and its outcome at its end."""

    def __init__(self, shown: Screen) -> None:
        self._shown = shown
        self._line = self._open_line()

    def __call__(self, step: str, done: int, total: int, /) -> None:
        self._line(step, done, total)

    def report(self, step: StepReport) -> None:
        style = "yellow" if step.warned else _STYLES[step.status]
        self.say(step.status, step.name, _describe_counts(step), style=style)

    def say(
        self, status: str, name: str, counts: Sequence[str], *, style: str | None = None, width: int = 10
    ) -> None:
        """Write a line: a status, a name, and what is to be said of it."""
        self._line.close()  # wiped before the next line
        told = f"{status:<{width}}{name:<24}  {' · '.join(counts)}".rstrip()
        first, *rest = [told]
        if self._shown.out.is_terminal:
            first, *rest = textwrap.wrap(
                told,
                max(self._shown.out.width, 40),
                subsequent_indent=" " * width,
                break_long_words=False,
                break_on_hyphens=False,
            )
        self._shown.say((first[:width], style or _STYLES[status]), first[width:])
        for line in rest:
            self._shown.say(line)
        self._line = self._open_line()

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()

    def _open_line(self) -> progress.Terminal | progress.Silent:
        quiet = self._shown.quiet or self._shown.json
        return progress.Silent() if quiet else progress.make_reporter()


def _describe_counts(step: StepReport) -> list[str]:
    """Counts and notes of a step, the most interesting first."""
    told = []
    if step.result is not None:
        for what in ("inserted", "updated", "deleted"):
            number = getattr(step.result, what)
            if number:
                told.append(f"{units.format_number(number)} {what}")
        if step.changed and step.files_written:
            least = "" if step.files_exact else "at least "
            about = "" if step.bytes_exact else "about "
            files = f"{least}{units.format_count(step.files_written, 'file')}"
            files = f"{files} ({about}{units.format_size(step.bytes_written)})"
            told.append(f"{files} {'to write' if step.result.dry_run else 'written'}")
    single = [check for check in step.checks if not check.is_total]
    if single:
        met = sum(check.ok for check in single)
        told.append(f"{met} of {units.format_count(len(single), 'expectation')} met")
    if step.status != "failed":
        told += describe_outcomes(step.checks)
    told += step.notes
    if step.seconds:
        told.append(units.format_seconds(step.seconds))
    return told
