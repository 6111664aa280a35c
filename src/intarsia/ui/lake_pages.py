"""The page of the lake: runs under way, tables, runs of pipelines and their expectations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from intarsia.pipeline.reports.diagram_svg import draw_svg
from intarsia.pipeline.reports.live import LiveRun, LiveStep
from intarsia.pipeline.reports.page import escape_text
from intarsia.pipeline.reports.run_index_page import (
    PastRun,
    RunList,
    describe_rows,
    render_mark,
    render_pipelines,
)
from intarsia.show import units
from intarsia.ui.frame import Link, format_age, render_frame, render_notes, render_pager
from intarsia.ui.lake import Contents, Lake, ReportDirectory, TableRef

__all__ = ["RunsOf", "render_home", "render_live", "render_runs"]

TABLES_PER_PAGE = 60
MOST_RUNS = 30
"""Runs of a pipeline whose expectations are shown."""
_LARGEST = 16 << 20
_TONES = {"running": "plan", "waiting": "calm", "done": "good", "failed": "bad", "planned": "plan"}


@dataclass(frozen=True, slots=True)
class RunsOf:
    """A directory of reports with the runs in it."""

    directory: ReportDirectory
    listed: RunList
    live: tuple[LiveRun, ...] = ()


# The lake


def render_home(lake: Lake, contents: Contents, runs: Sequence[RunsOf], asked: Mapping[str, str]) -> str:
    """The page of the lake; what is in each table is loaded by the page, one after the other."""
    wanted = asked.get("q", "")[:200]
    tables = [ref for ref in contents.tables if wanted.lower() in ref.title.lower()]
    pages = max(-(-len(tables) // TABLES_PER_PAGE), 1)
    text = asked.get("page", "1")
    page = min(max(int(text), 1) if text.isascii() and text.isdecimal() and len(text) < 9 else 1, pages)
    shown = tables[(page - 1) * TABLES_PER_PAGE : page * TABLES_PER_PAGE]
    cards = "".join(_render_table(lake, ref) for ref in shown)
    search = (
        '<form class="search" action="/" method="get"><input name="q" type="search"'
        f' value="{escape_text(wanted)}" placeholder="part of a name" aria-label="Part of a name">'
        "<button>Find</button></form>"
        if len(contents.tables) > 8 or wanted
        else ""
    )
    count = (
        units.format_count(len(tables), "table")
        if not wanted
        else f"{len(tables):,} of {len(contents.tables):,}"
    )
    empty = "" if cards else '<p class="quiet">No table here: no Parquet files, and no catalog.</p>'
    empty = f'<div id="empty">{empty}</div>'
    address = f"/?q={quote(wanted, safe='')}"
    body = (
        render_live(run for one in runs for run in one.live)
        + f'<div class="headline"><h2>Tables <span class="quiet">{count}</span></h2>{search}</div>'
        + f'<div class="grid">{cards}</div>{empty}{render_pager(address, page, pages)}'
        + render_notes(contents.notes)
        + _render_latest(runs)
    )
    return render_frame(lake.title, body, pulse="/pulse")


def _render_table(lake: Lake, ref: TableRef) -> str:
    kind = "Iceberg" if ref.is_iceberg else "Parquet"
    above, _, name = (ref.title or lake.title).rpartition("." if ref.is_iceberg else "/")
    above = " · ".join(filter(None, (ref.place, above)))
    place = f'<span class="quiet above">{escape_text(above)}</span>' if above else ""
    query, shown = escape_text(ref.query), escape_text(units.elide(name, 80))
    return (
        f'<article data-load="/card?{query}"><a class="cover" href="/table?{query}">{shown}</a>'
        f'<span class="kind">{kind}</span>{place}<div class="load"></div></article>'
    )


def _render_latest(runs: Sequence[RunsOf]) -> str:
    """The last run of each pipeline, by directory of reports."""
    parts = []
    for one in runs:
        latest: dict[str, PastRun] = {}
        for run in one.listed.runs:
            latest.setdefault(run.pipeline, run)
        lines = "".join(_render_run(one.directory, run) for run in latest.values())
        if not lines:
            continue
        parts.append(
            f'<section><h2><a href="/runs/{one.directory.key}/index.html">Runs</a>'
            f' <span class="quiet">{escape_text(one.directory.title)}</span></h2>'
            f'<div class="scroll"><table><tbody>{lines}</tbody></table></div></section>'
        )
    return f'<div id="runs">{"".join(parts)}</div>'


def _render_run(directory: ReportDirectory, run: PastRun) -> str:
    name = escape_text(run.pipeline)
    when = escape_text(format_age(run.started))
    if run.page is not None:
        when = f'<a href="/runs/{directory.key}/{escape_text(quote(run.page))}">{when}</a>'
    return (
        f'<tr><td><a href="/runs/{directory.key}/index.html">{name}</a></td><td>{render_mark(run)}</td>'
        f"<td>{when}</td><td>{escape_text(describe_rows(run))}</td>"
        f'<td class="num">{units.format_seconds(run.seconds)}</td></tr>'
    )


# Runs under way


def render_live(runs: Iterable[LiveRun]) -> str:
    """Each run under way: its steps, how far it is, and its graph; an empty place where there is none."""
    shown = "".join(map(_render_live_run, runs))
    return f'<div id="live">{shown}</div>'


def _render_live_run(run: LiveRun) -> str:
    now = datetime.now(UTC)
    passed = units.format_seconds(max((now - run.started).total_seconds(), 0.0))
    at = run.running
    told = "between two steps" if at is None else f"step {run.done + 1} of {len(run.steps)}: {at.name}"
    share = 100 * (run.done + (0.5 if at is not None else 0)) / max(len(run.steps), 1)
    steps = "".join(_render_live_step(run, step, now) for step in run.steps)
    graph = ""
    if run.graph is not None and run.graph.nodes:
        graph = f'<div class="scroll graph">{draw_svg(run.graph)}</div>'
    return (
        '<section class="live"><div class="top">'
        f'<h2><span class="dot"></span>{escape_text(run.pipeline)}</h2><span class="mark plan">running</span>'
        f'<span class="quiet">{escape_text(told)} · {passed}</span></div>'
        f'<div class="track"><span style="width:{share:.1f}%"></span></div>'
        f'<ol class="steps">{steps}</ol>{graph}</section>'
    )


def _render_live_step(run: LiveRun, step: LiveStep, now: datetime) -> str:
    tone = "plan" if step.warned else _TONES.get(step.status, "calm")
    seconds = step.seconds
    if step.status == "running" and run.step_started is not None:
        seconds = max((now - run.step_started).total_seconds(), 0.0)
    spent = units.format_seconds(seconds) if seconds else ""
    return (
        f'<li class="{tone}"><b>{escape_text(step.name)}</b> <span>{escape_text(step.status)}</span>'
        f' <span class="quiet">{escape_text(" · ".join(filter(None, (step.outcome, spent))))}</span></li>'
    )


# Runs that are over


def render_runs(lake: Lake, runs: RunsOf) -> str:
    """The runs of a directory: charts and a table for each pipeline, and its expectations over runs."""
    names = dict.fromkeys(run.pipeline for run in runs.listed.runs)
    parts = [
        render_expectations(runs.directory.path, [run for run in runs.listed.runs if run.pipeline == name])
        for name in names
    ]
    body = render_live(runs.live) + render_pipelines(runs.listed) + "".join(parts)
    return render_frame("Runs", body or "No run.", way=(Link(lake.title, "/"),), pulse="/pulse")


def render_expectations(directory: Path, runs: Sequence[PastRun]) -> str:
    """The expectations of a pipeline, with a square for each of its last runs, oldest first; may be empty."""
    outcomes: dict[tuple[str, str], dict[int, tuple[str, str]]] = {}
    real = [run for run in runs if not run.dry_run][:MOST_RUNS][::-1]
    for number, run in enumerate(real):
        for step, check in _read_checks(directory / run.data):
            tone, words = _judge(check)
            told = f"{run.started:%Y-%m-%d %H:%M} UTC: {words}"
            outcomes.setdefault((step, str(check.get("expectation", ""))), {})[number] = (tone, told)
    if not outcomes:
        return ""
    lines = "".join(
        f"<tr><td>{escape_text(text)}</td><td class='quiet'>{escape_text(step)}</td><td class='squares'>"
        + "".join(_render_square(found.get(number)) for number in range(len(real)))
        + "</td></tr>"
        for (step, text), found in list(outcomes.items())[:200]
    )
    return (
        f"<section><h2>Expectations of {escape_text(runs[0].pipeline)}</h2>"
        '<div class="scroll"><table><thead><tr><th>expectation</th><th>step</th>'
        f'<th class="squares">runs</th></tr></thead><tbody>{lines}</tbody></table></div></section>'
    )


def _render_square(outcome: tuple[str, str] | None) -> str:
    tone, told = outcome or ("none", "not checked")
    return f'<i class="{tone}" title="{escape_text(told)}"></i>'


def _judge(check: Mapping[str, Any]) -> tuple[str, str]:
    if check.get("ok") is True and not check.get("failing"):
        return "good", "holds"
    failing = check.get("failing")
    count = f", {units.format_count(failing, 'row')}" if isinstance(failing, int) and failing else ""
    outcome = str(check.get("outcome", ""))
    return ("bad" if outcome == "failed" else "plan"), f"{outcome}{count}"


def _read_checks(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """The expectations in the report of a run, each with its step; none where it cannot be read."""
    try:
        if path.stat().st_size > _LARGEST:
            return []
        steps = json.loads(path.read_bytes())["steps"]
        return [
            (str(step.get("name", "")), check)
            for step in steps
            for check in step.get("checks", ())
            if isinstance(check, Mapping)
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []
