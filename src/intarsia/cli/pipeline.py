"""``intarsia run``: a declared pipeline, its progress step by step and where its report is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intarsia import pipeline
from intarsia.cli.screen import Screen, screen
from intarsia.pipeline.report import PipelineReport, StepReport, as_json, status_words
from intarsia.show import progress, units

__all__ = ["run_pipeline"]

_STYLES = {
    "done": "green",
    "unchanged": "dim",
    "planned": "cyan",
    "failed": "bold red",
    "not run": "dim",
}


def run_pipeline(
    path: str, *, dry_run: bool, master: str | None, report_dir: str | None, params: Mapping[str, str]
) -> None:
    """Run the pipeline in a file and show what became of it. Raises the error of a step that failed."""
    shown = screen()
    given: dict[str, Any] = {"params": dict(params)} if params else {}
    watched = progress.Silent() if shown.quiet or shown.json else progress.for_terminal()
    with shown.log(), watched as watch:
        report = pipeline.run_file(
            path, dry_run=dry_run, master=master, report_dir=report_dir, progress=watch, **given
        )
    if shown.json:
        shown.data({**as_json(report), "json_path": report.json_path, "html_path": report.html_path})
    _tell(shown, report)
    report.check()


def _tell(shown: Screen, report: PipelineReport) -> None:
    width = max((len(step.name) for step in report.steps), default=0)
    for step in report.steps:
        counts = " · ".join(_counts(step))
        shown.say((f"{step.status:<10}", _STYLES[step.status]), f"{step.name:<{width}}  {counts}".rstrip())
    shown.say((f"{report.pipeline}: {status_words(report)}", "bold"), f" in {units.seconds(report.seconds)}")
    if report.html_path is not None:
        shown.say(f"Report: {report.html_path}")


def _counts(step: StepReport) -> list[str]:
    """What the step did, in the order of interest; nothing for one that did nothing."""
    told = []
    if step.result is not None:
        for what in ("inserted", "updated", "deleted"):
            number = getattr(step.result, what)
            if number:
                told.append(f"{units.count(number)} {what}")
        if step.changed:
            files = len(step.result.rewritten_files) + len(step.result.inserted_files)
            told.append(units.counted(files, "file") + " written")
    met = sum(check.ok for check in step.checks)
    if step.checks:
        told.append(f"{met} of {units.counted(len(step.checks), 'expectation')} met")
    if step.seconds:
        told.append(units.seconds(step.seconds))
    return told
