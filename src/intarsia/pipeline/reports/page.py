"""The report of a run as one self-contained HTML page; its values are in report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from intarsia.common.log import redact
from intarsia.core.report import MergeResult
from intarsia.core.snapshot import Snapshot
from intarsia.pipeline.quality.checks import Check
from intarsia.pipeline.reports.diagram_svg import draw_svg
from intarsia.pipeline.reports.measures import describe_outcome, measure_graph
from intarsia.pipeline.reports.report import PipelineReport, StepReport, describe_status, error_to_json
from intarsia.show import svg, units
from intarsia.show.page import Fact, PageTable, make_page
from intarsia.show.tiles import Drawable

PICTURE = 430
"""Width of a picture in pixels: two fit side by side on a desktop, one on a phone."""

__all__ = ["STYLE", "escape_text", "render_card", "render_fact", "render_page", "render_table"]

_TONES = {"done": "good", "unchanged": "calm", "planned": "plan", "failed": "bad", "not run": "calm"}
STYLE = """
:root{color-scheme:light dark;--bg:#f5f7f9;--card:#fff;--fg:#25303b;--quiet:#66727f;--edge:#dfe5ea;
--good:#1d7a49;--bad:#b8322a;--plan:#8a5a00;--calm:#5b6b7c;--tint:#eef2f5;--bar:#8fa9c4}
@media (prefers-color-scheme:dark){:root{--bg:#0e1216;--card:#14191f;--fg:#dbe3ea;--quiet:#93a0ad;
--edge:#28313b;--good:#5cc48d;--bad:#f0857d;--plan:#efb04a;--calm:#9db0c4;--tint:#1b222a;--bar:#46607c}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);-webkit-text-size-adjust:100%;
font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}
main{max-width:980px;margin:0 auto;padding:20px 14px 48px}
h1{font-size:24px;line-height:1.25;margin:0;overflow-wrap:anywhere}
header p,.quiet{color:var(--quiet);margin:2px 0 0;overflow-wrap:anywhere}
.top{display:flex;flex-wrap:wrap;gap:6px 12px;align-items:center}
.mark{border:1px solid currentColor;border-radius:99px;padding:1px 11px;font-size:13px;font-weight:600;
white-space:nowrap}
.good{color:var(--good)}.bad{color:var(--bad)}.plan{color:var(--plan)}.calm{color:var(--calm)}
section,details.step{background:var(--card);border:1px solid var(--edge);border-radius:12px;
margin:14px 0 0;padding:12px 14px}
h2{font-size:16px;margin:0 0 8px}h3{font-size:13px;margin:14px 0 5px;color:var(--quiet);font-weight:600}
.cards{display:flex;flex-wrap:wrap;gap:8px}
.card{background:var(--tint);border-radius:8px;padding:6px 11px;min-width:92px;max-width:100%}
.card i{display:block;font-style:normal;font-size:12px;color:var(--quiet)}
.card div{overflow-wrap:anywhere}.card b,.num{font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th,td{text-align:left;padding:5px 10px 5px 0;border-bottom:1px solid var(--edge);vertical-align:top;
overflow-wrap:break-word}
th{color:var(--quiet);font-weight:500;font-size:12px}tr:last-child td{border-bottom:0}
.num{text-align:right;white-space:nowrap}
td a,header a{color:inherit}
.bar{display:block;height:5px;border-radius:3px;background:var(--bar);min-width:2px;margin:4px 0 0 auto}
summary{cursor:pointer}
details.step>summary{display:flex;flex-wrap:wrap;gap:4px 10px;align-items:center;list-style:none}
details.step>summary::-webkit-details-marker{display:none}
details.step>summary::before{content:"\\25B8";color:var(--quiet);width:12px}
details.step[open]>summary::before{content:"\\25BE"}
details.step>summary b{overflow-wrap:anywhere}
details.step>summary .end{margin-left:auto}
.body{margin-top:10px;scroll-margin-top:64px}details.step:has(:target){border-color:var(--calm)}
section.graph{width:max-content;min-width:100%;max-width:calc(100vw - 28px);position:relative;left:50%;
transform:translateX(-50%)}section.graph svg{display:block;margin:0 auto}
.body p.quiet{margin:0 0 8px}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(280px,1fr));gap:12px;align-items:start}
figure{margin:0;min-width:0}figcaption{font-size:13px;color:var(--quiet);margin:0 0 4px}
figure svg{display:block;width:100%;height:auto;border:1px solid var(--edge);border-radius:8px}
.error{border-left:4px solid var(--bad);background:var(--tint);border-radius:6px;padding:8px 12px;
white-space:pre-wrap;overflow-wrap:anywhere;font-size:14px;max-height:420px;overflow:auto}
.note{background:var(--tint);border-radius:6px;padding:6px 10px;margin:8px 0 0;font-size:14px;
overflow-wrap:anywhere}
ul.checks{list-style:none;margin:0;padding:0}ul.checks li{padding:3px 0;overflow-wrap:anywhere}
footer{color:var(--quiet);font-size:13px;margin-top:18px}
@media (max-width:620px){.wide{display:none}main{padding:14px 10px 40px}h1{font-size:21px}}
@media print{details.step{break-inside:avoid}}
"""


def render_page(report: PipelineReport) -> str:
    """The report as a page. Every text from outside is escaped; nothing is loaded from anywhere."""
    steps = "".join(_render_step(number, step) for number, step in enumerate(report.steps, 1))
    title = escape_text(f"{report.pipeline}: {describe_status(report)}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title}</title><style>{STYLE}</style></head>\n"
        f"<body><main>{_render_header(report)}{_render_totals(report)}"
        f"{_render_graph(report)}{_render_overview(report)}{steps}"
        f"<footer>Run {escape_text(report.run_id)}. Every tile in a picture is a file;"
        " point at it for its name.</footer></main></body></html>\n"
    )


def _render_header(report: PipelineReport) -> str:
    is_yellow = report.dry_run or any(step.warned for step in report.steps)
    tone = "bad" if not report.ok else "plan" if is_yellow else "good"
    engine = report.session or report.engine
    facts = [f"{report.started:%Y-%m-%d %H:%M:%S} UTC", units.format_seconds(report.seconds), engine]
    facts += [f"environment {report.env}"] if report.env else []
    origin = f"{escape_text(report.origin)} · " if report.origin else ""
    notes = "".join(f'<p class="note">{escape_text(note)}</p>' for note in report.notes)
    return (
        f'<header><div class="top"><h1>{escape_text(report.pipeline)}</h1>'
        f'<span class="mark {tone}">{escape_text(describe_status(report))}</span></div>'
        f"<p>{escape_text(' · '.join(filter(None, facts)))}</p>"
        f'<p>{origin}<a href="index.html">all runs</a></p>{notes}</header>'
    )


def _render_totals(report: PipelineReport) -> str:
    results = [step.result for step in report.steps if step.result is not None]
    if not results:
        return ""
    planned = " planned" if report.dry_run else ""
    cards = [
        ("rows inserted", units.format_number(sum(result.inserted for result in results))),
        ("rows updated", units.format_number(sum(result.updated for result in results))),
        ("rows deleted", units.format_number(sum(result.deleted for result in results))),
        (f"files written{planned}", _describe_files(report.steps)),
        (f"bytes written{planned}", _describe_bytes(report.steps)),
        ("steps", f"{len(report.steps)} ({_count_steps(report, 'unchanged')} unchanged)"),
    ]
    shown = "".join(render_card(label, [text]) for label, text in cards)
    return f'<section><div class="cards">{shown}</div></section>'


def _describe_files(steps: Sequence[StepReport]) -> str:
    least = "" if all(step.files_exact for step in steps) else "at least "
    return f"{least}{units.format_number(sum(step.files_written for step in steps))}"


def _describe_bytes(steps: Sequence[StepReport]) -> str:
    about = "" if all(step.bytes_exact for step in steps) else "about "
    return f"{about}{units.format_size(sum(step.bytes_written for step in steps))}"


def _count_steps(report: PipelineReport, status: str) -> int:
    return sum(step.status == status for step in report.steps)


def _render_graph(report: PipelineReport) -> str:
    """The graph with what this run measured; it scrolls by itself where the page is too narrow for it."""
    if report.graph is None or not report.graph.nodes:
        return ""
    picture = draw_svg(measure_graph(report.graph, report), anchor="#step-{}-body")
    return f'<section class="graph"><h2>Graph</h2><div class="scroll">{picture}</div></section>'


def _render_overview(report: PipelineReport) -> str:
    longest = max((step.seconds for step in report.steps), default=0.0)
    lines = "".join(_render_line(number, step, longest) for number, step in enumerate(report.steps, 1))
    return (
        '<section><h2>Steps</h2><div class="scroll"><table><thead><tr><th>step</th><th>status</th>'
        '<th>rows</th><th class="num wide">files written</th><th class="num wide">bytes written</th>'
        f'<th class="num">time</th></tr></thead><tbody>{lines}</tbody></table></div></section>'
    )


def _render_line(number: int, step: StepReport, longest: float) -> str:
    share = 100 * step.seconds / longest if longest > 0 else 0
    files, size = ("", "") if step.result is None else (_describe_files([step]), _describe_bytes([step]))
    spent = units.format_seconds(step.seconds) if step.status != "not run" else ""
    bar = f'<span class="bar" style="width:{share:.1f}%"></span>' if spent else ""
    return (
        f'<tr><td><a href="#step-{number}-body">{escape_text(step.name)}</a></td>'
        f'<td class="{_choose_tone(step)}">{escape_text(step.status)}</td>'
        f"<td>{escape_text(describe_outcome(step))}</td>"
        f'<td class="num wide">{files}</td><td class="num wide">{size}</td>'
        f'<td class="num">{spent}{bar}</td></tr>'
    )


def _choose_tone(step: StepReport) -> str:
    return "plan" if step.warned else _TONES[step.status]


def _render_step(number: int, step: StepReport) -> str:
    is_open = " open" if step.changed or step.warned or step.status == "failed" else ""
    way = " → ".join(name for name in (step.source, step.target) if name)
    spent = units.format_seconds(step.seconds) if step.status != "not run" else ""
    return (
        f'<details class="step" id="step-{number}"{is_open}><summary>'
        f"<b>{number}. {escape_text(step.name)}</b>"
        f'<span class="quiet">{escape_text(step.operation)} {escape_text(way)}</span>'
        f'<span class="end quiet">{spent}</span>'
        f'<span class="mark {_choose_tone(step)}">{escape_text(step.status)}</span></summary>'
        f'<div class="body" id="step-{number}-body">{"".join(_render_body(step))}</div></details>'
    )


def _render_body(step: StepReport) -> list[str]:
    parts = []
    if step.error is not None:
        parts.append(_render_error(step.error))
    if step.checks:
        parts.append(_render_checks(step))
    if step.input_files:
        read = f"{units.format_count(step.input_files, 'file')}, {units.format_size(step.input_bytes)}"
        if step.skipped_files:
            read += f"; {units.format_count(step.skipped_files, 'file')} left out that it took before"
        parts.append(f'<p class="quiet">Input: {escape_text(read)}.</p>')
    if step.path:
        parts.append(f'<p class="quiet">Target: {escape_text(step.path)}</p>')
    if step.result is not None:
        parts += _render_result(step, step.result)
    elif step.status == "unchanged" and not step.notes:
        parts.append(
            '<p class="quiet">Neither its input nor its target has changed since its last success.</p>'
        )
    elif step.status == "not run" and not step.left_out:
        parts.append('<p class="quiet">A step before it failed.</p>')
    parts += [f'<p class="note">{escape_text(note)}</p>' for note in step.notes]
    return parts


def _render_result(step: StepReport, result: MergeResult) -> list[str]:
    told = make_page(result)
    notes = told.notes
    parts = [f'<div class="cards">{"".join(render_fact(fact) for fact in told.facts)}</div>']
    if step.changed:
        parts.append(_render_pictures(step, result))
    if result.plan is not None:
        plan = make_page(result.plan, most_files=0)
        notes = tuple(dict.fromkeys((*notes, *plan.notes)))
        parts += [f"<h3>Plan</h3>{render_table(table)}" for table in plan.tables]
    parts += [f'<p class="note">{escape_text(note)}</p>' for note in notes]
    return parts


def _render_pictures(step: StepReport, result: MergeResult) -> str:
    """The files before, coloured by action, and after, coloured by origin."""
    figures = []
    if step.before is not None and result.plan is not None:
        planned = result.plan if result.dry_run else replace(result.plan, groups=(), inserted=0)
        figures.append(_render_figure("before", step.before, planned))
    if step.after is not None and not result.dry_run:
        there = replace(result, files=[file for file in result.files if file.operation != "removed"])
        figures.append(_render_figure("after", step.after, there))
    return f'<h3>Layout</h3><div class="pair">{"".join(figures)}</div>' if figures else ""


def _render_figure(caption: str, snapshot: Snapshot, drawn: Drawable) -> str:
    files = f"{units.format_count(len(snapshot.files), 'file')}, {units.format_size(snapshot.size)}"
    told = f"{caption}: {units.format_count(snapshot.rows, 'row')} in {files}"
    return f"<figure><figcaption>{escape_text(told)}</figcaption>{_draw_picture(drawn)}</figure>"


def _draw_picture(value: Drawable) -> str:
    return svg.layout(value, width=PICTURE, heading=False, most_rows=16, most_tiles=400)


def _render_error(error: BaseException) -> str:
    told = error_to_json(error)
    hint = f"\n\nHint: {told['hint']}" if told["hint"] else ""
    kept = "\n\nThe target is as it was." if told["target_changed"] is False else ""
    message = escape_text(told["message"] + hint + kept)
    return f'<div class="error"><b>{escape_text(told["type"])}</b>: {message}</div>'


def _render_checks(step: StepReport) -> str:
    """A table of expectations: rows checked, rows that violate each, and what was done."""
    if all(check.ok and not check.failing for check in step.checks):
        lines = "".join(
            f'<li><span class="good">✓</span> {escape_text(check.expectation)}</li>' for check in step.checks
        )
        return f'<ul class="checks">{lines}</ul>'
    lines = "".join(map(_render_check, step.checks))
    return (
        '<div class="scroll"><table><thead><tr><th>expectation</th><th class="num">rows</th>'
        '<th class="num">against it</th><th class="num wide">share</th><th>outcome</th></tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _render_check(check: Check) -> str:
    tone = "good" if check.ok else "bad" if check.outcome == "failed" else "plan"
    sign = {"good": "✓", "bad": "✗", "plan": "!"}[tone]
    share = "" if check.share is None else f"{check.share:.3%}"
    outcome = f"{check.outcome} into {check.into}" if check.outcome == "quarantined" else check.outcome
    asked = f"{check.expectation} (at most {check.limit})" if check.limit else check.expectation
    told = f"{asked}: {check.found}" if check.found and check.failing else asked
    rows = "" if check.rows is None else units.format_number(check.rows)
    failing = "" if check.rows is None else units.format_number(check.failing)
    return (
        f'<tr><td><span class="{tone}">{sign}</span> {escape_text(told)}</td><td class="num">{rows}</td>'
        f'<td class="num">{failing}</td><td class="num wide">{share}</td>'
        f'<td class="{tone}">{escape_text(outcome)}</td></tr>'
    )


def render_fact(fact: Fact) -> str:
    # The name of the transaction is for the log, and in the JSON.
    items = fact.items[:1] if fact.label == "commit" else fact.items
    return render_card(fact.label, [str(item) for item in items])


def render_card(label: str, texts: Sequence[str]) -> str:
    lines = "".join(f"<div>{_render_value(text)}</div>" for text in texts)
    return f'<div class="card"><i>{escape_text(label)}</i>{lines}</div>'


def _render_value(text: str) -> str:
    """A text with its leading number in bold."""
    number, _, words = text.partition(" ")
    return f"<b>{escape_text(number)}</b> {escape_text(words)}" if number[:1].isdigit() else escape_text(text)


def render_table(table: PageTable) -> str:
    number = [' class="num"' if name in table.numbers else "" for name in table.columns]
    heads = "".join(
        f"<th{css}>{escape_text(name)}</th>" for css, name in zip(number, table.columns, strict=True)
    )
    lines = "".join(
        "<tr>"
        + "".join(f"<td{css}>{escape_text(cell)}</td>" for css, cell in zip(number, line.cells, strict=True))
        + "</tr>"
        for line in table.lines
    )
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'


def escape_text(text: str) -> str:
    """Escaped for HTML, without credentials, control characters and direction marks; line ends stay."""
    return escape("\n".join(map(units.make_printable, redact(text).splitlines())), quote=True)
