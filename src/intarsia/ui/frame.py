"""What every page has: head, way back, tabs, and the places of its own that follow what happens meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from intarsia.common.log import redact
from intarsia.errors import IntarsiaError
from intarsia.pipeline.reports.page import escape_text, render_fact, render_table
from intarsia.show.page import Page, PageTable

__all__ = [
    "Link",
    "format_age",
    "render_error",
    "render_frame",
    "render_notes",
    "render_pager",
    "render_value",
]


@dataclass(frozen=True, slots=True)
class Link:
    """A word that leads somewhere; the address is a URL already."""

    word: str
    address: str
    is_here: bool = False


def render_frame(
    title: str,
    body: str,
    *,
    way: Sequence[Link] = (),
    tabs: Sequence[Link] = (),
    mark: str = "",
    pulse: str = "",
) -> str:
    """A whole page; ``body`` and ``mark`` are HTML, all other texts are not.

    Args:
        title: the heading.
        body: what is below it.
        way: the pages above this one.
        tabs: the pages beside it.
        mark: something small after the heading.
        pulse: the address that tells whether anything has changed; the page then loads itself again.
    """
    back = "".join(
        f'<a href="{escape_text(link.address)}">{escape_text(link.word)}</a><i>/</i>' for link in way
    )
    row = "".join(
        f'<a href="{escape_text(link.address)}"{" aria-current=page" if link.is_here else ""}>'
        f"{escape_text(link.word)}</a>"
        for link in tabs
    )
    beat = f' data-pulse="{escape_text(pulse)}"' if pulse else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<title>{escape_text(title)} · intarsia</title><link rel="icon" href="/icon.svg">'
        '<link rel="stylesheet" href="/style.css"><script src="/page.js" defer></script></head>\n'
        f'<body><main class="ui"{beat}><header><nav class="way">{back}</nav>'
        f'<div class="top"><h1>{escape_text(title)}</h1>{mark}</div>'
        f"{f'<nav class=tabs>{row}</nav>' if row else ''}</header>"
        f'<div id="content">{body}</div>'
        '<footer>intarsia ui · read-only, on this machine alone<span id="beat"></span></footer>'
        "</main></body></html>\n"
    )


def render_value(
    page: Page, *, tables: Iterable[PageTable] | None = None, leave_out: Sequence[str] = ()
) -> str:
    """Facts, tables and notes of a value, as sections; facts named in ``leave_out`` are not shown."""
    facts = "".join(render_fact(fact) for fact in page.facts if fact.label not in leave_out)
    parts = [f'<section><div class="cards">{facts}</div></section>'] if facts else []
    for table in page.tables if tables is None else tables:
        parts.append(
            f"<section><h2>{escape_text(table.title.capitalize())}</h2>{render_table(table)}</section>"
        )
    return "".join(parts) + render_notes(page.notes)


def render_notes(notes: Iterable[str]) -> str:
    return "".join(f'<p class="note">{escape_text(note)}</p>' for note in notes)


def render_error(error: IntarsiaError | OSError) -> str:
    """An error with its hint, without credentials."""
    message = error.message if isinstance(error, IntarsiaError) else str(error)
    hint = error.hint if isinstance(error, IntarsiaError) else None
    told = f"{message}\n\nHint: {hint}" if hint else message
    return f'<div class="error"><b>{type(error).__name__}</b>: {escape_text(redact(told))}</div>'


def render_pager(address: str, page: int, pages: int) -> str:
    """Links to the pages before and after; ``address`` is a URL with a query."""
    if pages < 2:
        return ""
    links = [
        f'<a href="{escape_text(f"{address}&page={number}")}" rel="{rel}">{word}</a>'
        for number, rel, word in ((page - 1, "prev", "← previous"), (page + 1, "next", "next →"))
        if 1 <= number <= pages
    ]
    return f'<nav class="pager"><span class="quiet">page {page:,} of {pages:,}</span>{"".join(links)}</nav>'


def format_age(time: datetime, now: datetime | None = None) -> str:
    """``just now``, ``5 min ago``, ``3 h ago``, ``12 days ago``; a time to come is shown as it is."""
    passed = ((now or datetime.now(UTC)) - time).total_seconds()
    if passed < -60:
        return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    for limit, size, word in ((90, 1, ""), (5400, 60, "min"), (129_600, 3600, "h")):
        if passed < limit:
            return "just now" if not word else f"{passed / size:.0f} {word} ago"
    return f"{passed / 86_400:,.0f} days ago"
