"""The page over past runs: status, duration and rows of each run, and small charts of them over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from urllib.parse import quote

from intarsia.pipeline.reports import page
from intarsia.show import units

__all__ = [
    "MARK",
    "STYLE",
    "PastRun",
    "RunList",
    "describe_rows",
    "render_index",
    "render_mark",
    "render_pipelines",
]

MARK = '<meta name="generator" content="intarsia: index of runs">'
"""How a page is known as ours."""
_BARS = 60
"""Maximum number of runs in a chart."""
_SLOTS = 12
"""Bars that a chart has room for at least."""
_OPEN = 25
"""Runs of a pipeline that are shown before the others are folded away."""
STYLE = """
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(260px,1fr));gap:10px 22px;margin:0 0 12px}
.chart .head{display:flex;justify-content:space-between;gap:10px;font-size:13px;color:var(--quiet)}
.chart svg{display:block;width:100%;height:72px;border-bottom:1px solid var(--edge);margin:3px 0}
.chart .done{fill:var(--bar)}.chart .failed{fill:var(--bad)}.chart .new{fill:var(--good)}
.chart .changed{fill:#d9941f}.chart .gone{fill:var(--bad)}.chart a:hover rect,.chart a:focus rect{opacity:.6}
.key{display:inline-block;width:9px;height:9px;border-radius:2px;margin:0 4px 0 8px}
.latest{display:flex;flex-wrap:wrap;gap:4px 12px;align-items:center;margin:0 0 10px}.latest h2{margin:0}
td .mark{font-size:12px;padding:0 8px;white-space:normal;border-radius:10px;display:inline-block}
.nowrap{white-space:nowrap}details.more>summary{color:var(--quiet);font-size:13.5px;padding:8px 0}
"""


@dataclass(frozen=True, slots=True)
class PastRun:
    """One run, as its report tells it."""

    pipeline: str
    run_id: str
    started: datetime
    seconds: float
    status: str
    ok: bool
    dry_run: bool
    engine: str
    steps: int
    unchanged: int
    inserted: int
    updated: int
    deleted: int
    bytes_written: int
    page: str | None
    """The name of its HTML report, where that is still there."""
    data: str
    """The name of its JSON report."""

    @property
    def rows(self) -> int:
        return self.inserted + self.updated + self.deleted


@dataclass(frozen=True, slots=True)
class RunList:
    """The runs of a directory, newest first."""

    runs: tuple[PastRun, ...]
    older: int = 0
    """How many reports were not read, since there are newer ones enough."""
    oldest: str | None = None
    """The day of the oldest of these."""
    unread: int = 0
    """How many files are named as reports and are none."""


def render_index(listed: RunList) -> str:
    """The page; nothing is loaded from anywhere, and every text from outside is escaped."""
    names = list(dict.fromkeys(run.pipeline for run in listed.runs))
    title = f"Runs of {names[0]}" if len(names) == 1 else "Runs"
    count = units.format_count(len(listed.runs), "run")
    of = f" of {units.format_count(len(names), 'pipeline')}" if len(names) > 1 else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{MARK}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{_escape(title)}</title><style>{page.STYLE}{STYLE}</style></head>\n"
        f'<body><main><header><div class="top"><h1>{_escape(title)}</h1></div><p>{count}{of}, newest first.'
        f" Times are UTC.</p></header>{render_pipelines(listed)}<footer>{_describe_rest(listed)}</footer>"
        "</main></body></html>\n"
    )


def render_pipelines(listed: RunList) -> str:
    """A section for each pipeline: charts and a table of its runs."""
    names = dict.fromkeys(run.pipeline for run in listed.runs)
    return "".join(_render_pipeline([run for run in listed.runs if run.pipeline == name]) for name in names)


def _describe_rest(listed: RunList) -> str:
    told = []
    if listed.older:
        since = f", the oldest of {listed.oldest}" if listed.oldest else ""
        told.append(f"{units.format_count(listed.older, 'older run')}{since}, are in this directory as well.")
    if listed.unread:
        what = "file is" if listed.unread == 1 else "files are"
        told.append(f"{units.format_number(listed.unread)} {what} named like a report and could not be read.")
    return " ".join(told)


def _render_pipeline(runs: Sequence[PastRun]) -> str:
    latest = runs[0]
    lines = [_render_line(run, max(other.seconds for other in runs)) for run in runs]
    table = _render_table(lines[:_OPEN])
    if lines[_OPEN:]:
        more = units.format_count(len(lines) - _OPEN, "earlier run")
        table += f'<details class="more"><summary>{more}</summary>{_render_table(lines[_OPEN:])}</details>'
    return (
        f'<section><div class="latest"><h2>{_escape(latest.pipeline)}</h2>{render_mark(latest)}'
        f'<span class="quiet">{_describe_success(runs)}</span></div>'
        f"{_render_charts([run for run in runs if not run.dry_run][:_BARS][::-1])}{table}</section>"
    )


def _describe_success(runs: Sequence[PastRun]) -> str:
    real = [run for run in runs if not run.dry_run]
    failed = sum(not run.ok for run in real)
    return f"{failed} of {units.format_count(len(real), 'run')} failed" if failed else ""


# Charts


def _render_charts(runs: Sequence[PastRun]) -> str:
    """Duration and rows of runs, the oldest at the left; nothing for a single run."""
    if len(runs) < 2:
        return ""
    longest = max(run.seconds for run in runs)
    most = max(run.rows for run in runs)
    first, last = (f"{run.started:%Y-%m-%d %H:%M}" for run in (runs[0], runs[-1]))
    # A few bars stand at the right, as new ones will.
    days = f"<span>{first}</span><span>{last}</span>"
    if len(runs) < _SLOTS:
        days = f"<span></span><span>{first} to {last}</span>"
    days = f'<div class="head">{days}</div>'
    colors = (("var(--good)", "inserted"), ("#d9941f", "updated"), ("var(--bad)", "deleted"))
    keys = "".join(f'<span class="key" style="background:{color}"></span>{word}' for color, word in colors)
    duration = _draw_bars(runs, "Duration of runs", longest, _stack_seconds)
    rows = _draw_bars(runs, "Rows changed by runs", float(most), _stack_rows)
    return (
        f'<div class="charts"><div class="chart"><div class="head"><span>duration</span>'
        f"<span>up to {units.format_seconds(longest)}</span></div>{duration}{days}</div>"
        f'<div class="chart"><div class="head"><span>rows{keys}</span>'
        f"<span>up to {units.format_number(most)}</span></div>{rows}{days}</div></div>"
    )


def _stack_seconds(run: PastRun) -> list[tuple[str, float]]:
    return [("done" if run.ok else "failed", run.seconds)]


def _stack_rows(run: PastRun) -> list[tuple[str, float]]:
    return [("new", run.inserted), ("changed", run.updated), ("gone", run.deleted)]


def _draw_bars(
    runs: Sequence[PastRun], title: str, most: float, stack: Callable[[PastRun], list[tuple[str, float]]]
) -> str:
    height, step = 100.0, 10.0
    parts = []
    for at, run in enumerate(runs, max(_SLOTS - len(runs), 0)):
        y = height
        bars = (
            f'<rect x="{at * step:.1f}" y="0" width="{step:.1f}" height="{height:.0f}" fill="transparent"/>'
        )
        for css, amount in stack(run):
            tall = max(height * amount / most, 1.5) if amount and most else 0.0
            y -= tall
            bars += (
                f'<rect class="{css}" x="{at * step + 1:.1f}" y="{y:.2f}" width="{step - 2:.1f}"'
                f' height="{tall:.2f}"/>'
                if tall
                else ""
            )
        tip = f"<title>{_escape(_describe_run(run))}</title>"
        if run.page is None:
            parts.append(f"<g>{tip}{bars}</g>")
        else:
            label = _escape(_describe_run(run))
            parts.append(f'<a href="{_escape(quote(run.page))}" aria-label="{label}">{tip}{bars}</a>')
    return (
        f'<svg viewBox="0 0 {max(len(runs), _SLOTS) * step:.0f} {height:.0f}" preserveAspectRatio="none"'
        f' role="group" aria-label="{title}">{"".join(parts)}</svg>'
    )


def _describe_run(run: PastRun) -> str:
    rows = describe_rows(run) or "no rows changed"
    return f"{run.started:%Y-%m-%d %H:%M:%S}: {run.status}, {units.format_seconds(run.seconds)}, {rows}"


# The table


def _render_table(lines: Sequence[str]) -> str:
    return (
        '<div class="scroll"><table><thead><tr><th>started</th><th>status</th><th>rows</th>'
        '<th class="num wide">bytes written</th><th class="wide">steps</th><th class="wide">engine</th>'
        f'<th class="num">time</th></tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )


def _render_line(run: PastRun, longest: float) -> str:
    when = (
        f'<span class="nowrap">{run.started:%Y-%m-%d}</span> '
        f'<span class="nowrap">{run.started:%H:%M:%S}</span>'
    )
    link = when if run.page is None else f'<a href="{_escape(quote(run.page))}">{when}</a>'
    share = 100 * run.seconds / longest if longest > 0 else 0
    steps = f"{run.steps}" + (f" ({run.unchanged} unchanged)" if run.unchanged else "")
    return (
        f"<tr><td>{link}</td><td>{render_mark(run)}</td><td>{_escape(describe_rows(run))}</td>"
        f'<td class="num wide">{units.format_size(run.bytes_written) if run.bytes_written else ""}</td>'
        f'<td class="wide">{steps}</td><td class="wide">{_escape(run.engine)}</td>'
        f'<td class="num">{units.format_seconds(run.seconds)}'
        f'<span class="bar" style="width:{share:.1f}%"></span></td></tr>'
    )


def render_mark(run: PastRun) -> str:
    tone, word = _describe_status(run)
    return f'<span class="mark {tone}" title="{_escape(run.status)}">{_escape(units.elide(word, 28))}</span>'


def _describe_status(run: PastRun) -> tuple[str, str]:
    """The tone and the words of a run's status."""
    if not run.ok:
        return "bad", run.status
    if run.dry_run:
        return "plan", "dry run"
    if "warning" in run.status:
        return "plan", run.status
    return ("calm", "nothing changed") if "nothing had changed" in run.status else ("good", "done")


def describe_rows(run: PastRun) -> str:
    counts = (("+", run.inserted), ("~", run.updated), ("−", run.deleted))
    return " ".join(f"{sign}{units.format_number(count)}" for sign, count in counts if count)


def _escape(text: str) -> str:
    return escape("\n".join(map(units.make_printable, text.splitlines())), quote=True)
