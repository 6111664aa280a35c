"""``intarsia init`` writes a project, ``intarsia test`` runs its tests and shows how rows differ."""

from __future__ import annotations

import time
from typing import Any

import click

from intarsia import pipeline
from intarsia.cli.screen import get_screen
from intarsia.pipeline.testing.project import list_missing_extras
from intarsia.pipeline.testing.runner import CaseReport
from intarsia.show import units

__all__ = ["init", "test_pipeline"]

_FAILED = 1
"""``Exit.ERROR``."""


def test_pipeline(path: str, *, name: str | None, engine: Any) -> None:
    """Run tests and show the outcome of each; the exit code is 1 where one failed."""
    shown = get_screen()
    begun = time.perf_counter()

    def show(case: CaseReport) -> None:
        word, style = ("passed", "green") if case.ok else ("failed", "bold red")
        shown.say((f"{word:<8}", style), f"{case.name}  ", (units.format_seconds(case.seconds), "dim"))
        for line in case.describe():
            shown.say(f"        {line}")

    with shown.log():
        cases = pipeline.run_tests(path, name=name, engine=engine, on_case=show)
    failed = sum(not case.ok for case in cases)
    if shown.json:
        shown.show_json({"ok": not failed, "tests": [case.as_json() for case in cases]})
    told = f"{units.format_count(len(cases), 'test')}: {len(cases) - failed} passed, {failed} failed"
    shown.say((told, "bold"), f" in {units.format_seconds(time.perf_counter() - begun)}")
    if shown.quiet and failed:
        shown.complain(told)
    click.get_current_context().exit(_FAILED if failed else 0)


def init(directory: str, *, engine: Any) -> None:
    """Write a small project, and say what was written and what to do next."""
    shown = get_screen()
    with shown.log():
        written = pipeline.init_project(directory, engine=engine)
    if shown.json:
        shown.show_json({"written": list(written)})
    for path in written:
        shown.say(("wrote   ", "green"), path)
    missing = list_missing_extras(engine)
    first = f"pip install 'intarsia[{','.join(missing)}]'; " if missing else ""
    shown.say(f"Next: {first}intarsia test {directory}; intarsia run {written[0]}")
