"""The pages of one table: what it looks like, its files, its commits, what an operation would do to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import Any, Protocol, cast
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.arguments import compute_file_bytes, parse_where
from intarsia.core.history import History
from intarsia.core.inspection import inspect_snapshot
from intarsia.core.intent import CompactIntent, DeleteIntent, Intent, OptimizeIntent
from intarsia.core.ports import Table
from intarsia.core.run import preview_plan
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.core.validation import check_exists
from intarsia.errors import InputError, IntarsiaError
from intarsia.pipeline.reports.page import escape_text, render_card, render_table
from intarsia.show import svg, tiles, units
from intarsia.show.page import Line, PageTable, make_page
from intarsia.show.tiles import Drawable
from intarsia.ui.chart import draw_history, draw_spark
from intarsia.ui.frame import (
    Link,
    format_age,
    render_error,
    render_frame,
    render_notes,
    render_pager,
    render_value,
)
from intarsia.ui.lake import TableRef

__all__ = ["render_card_of", "render_failed_card", "render_tab"]

TABS = {"": "Overview", "files": "Files", "history": "History", "plan": "Plan"}
FILES_PER_PAGE = 100
COMMITS_PER_PAGE = 50
PARTITIONS_PER_PAGE = 50
MOST_INSPECTED = 20_000
"""Files up to which every footer is looked at for sizes of columns and the like (about a second)."""
MOST_DELETES = 20
"""Files with deletes that are named."""
WIDE, NARROW = 1010, 400
"""Widths of the picture of files; the reader's window decides which one is shown."""
_ATTEMPTS = 3


class _Looked(Protocol):
    """A table that has commits to show."""

    def snapshot(self) -> Snapshot: ...

    def history(self) -> History: ...


@dataclass(frozen=True, slots=True)
class TableState:
    """One consistent state of a table, with the commits that led to it."""

    snapshot: Snapshot
    history: History

    @staticmethod
    def of(table: Table) -> TableState:
        """Raises NothingMatched where there is no such table."""
        looked = cast(_Looked, table)
        history, snapshot = looked.history(), looked.snapshot()
        for _ in range(_ATTEMPTS):  # a commit may come between the two
            if snapshot.version == history.version:
                break
            history, snapshot = looked.history(), looked.snapshot()
        check_exists(snapshot, "inspect")
        return TableState(snapshot, history)


def render_card_of(ref: TableRef, table: Table) -> str:
    """A table on the page of the lake: its size, its last commit and a line of its rows over time."""
    state = TableState.of(table)
    snapshot, commits = state.snapshot, state.history.commits
    last = next((commit for commit in commits if not commit.rolled_back), None)
    told = "no commit of intarsia yet" if not ref.is_iceberg else "no snapshot yet"
    if last is not None:
        when = "" if last.time is None else f", {format_age(last.time)}"
        told = f"{last.operation}{when}"
    facts = [
        f"<b>{units.format_number(snapshot.rows)}</b> rows",
        f"<b>{units.format_number(len(snapshot.files))}</b> file{'' if len(snapshot.files) == 1 else 's'}",
        f"<b>{units.format_size(snapshot.size)}</b>",
    ]
    return (
        f'<div class="facts">{"".join(f"<span>{fact}</span>" for fact in facts)}</div>{draw_spark(commits)}'
        f'<div class="quiet last">{escape_text(told)}</div>'
    )


def render_failed_card(error: IntarsiaError | OSError) -> str:
    """A table that cannot be looked at, and why, in a few lines."""
    message = error.message if isinstance(error, IntarsiaError) else str(error)
    return f'<div class="failed"><b>{type(error).__name__}</b> {escape_text(units.elide(message, 240))}</div>'


def render_tab(tab: str, ref: TableRef, table: Table, asked: Mapping[str, str], lake: str) -> str:
    """One of the pages of a table, as a whole page.

    Raises:
        NothingMatched, InputError: there is no such table, or no such page of it.
        IntarsiaError: it cannot be read; the message says why.
    """
    match tab:
        case "":
            state = TableState.of(table)
            mark, body = _describe_version(state.snapshot.version), _render_overview(ref, state)
        case "files":
            snapshot = table.snapshot()
            check_exists(snapshot, "inspect")
            mark, body = _describe_version(snapshot.version), _render_files(ref, snapshot, asked)
        case "history":
            history = TableState.of(table).history
            mark, body = _describe_version(history.version), _render_history(ref, history, asked)
        case "plan":
            mark, body = "nothing is run", _render_plan(ref, table, asked)
        case _:
            raise InputError("There is no such page of a table.")
    kind = "Iceberg" if ref.is_iceberg else "Parquet"
    marks = f'<span class="mark calm">{kind}</span><span class="mark good">{escape_text(mark)}</span>'
    title = ref.title or lake
    return render_frame(
        title,
        body,
        way=(Link(lake, "/"),),
        tabs=[Link(word, f"{_address(name)}?{ref.query}", name == tab) for name, word in TABS.items()],
        mark=marks,
        pulse=f"/pulse?{ref.query}" if tab != "plan" else "",
    )


def _describe_version(version: int) -> str:
    return f"version {version:,}" if version else "no commit yet"


def _address(tab: str) -> str:
    return f"/table/{tab}" if tab else "/table"


def _read_page(asked: Mapping[str, str], key: str = "page") -> int:
    text = asked.get(key, "1")
    return max(int(text), 1) if text.isascii() and text.isdecimal() and len(text) < 9 else 1


# Overview


def _render_overview(ref: TableRef, state: TableState) -> str:
    snapshot = state.snapshot
    page = make_page(snapshot if len(snapshot.files) > MOST_INSPECTED else inspect_snapshot(snapshot))
    charts = draw_history(state.history.commits)
    over_time = f'<section><h2>Over time</h2><div class="charts">{charts}</div></section>' if charts else ""
    columns = [table for table in page.tables if table.title == "columns"]
    return (
        render_value(page, tables=(), leave_out=("deletes",))
        + f"<section><h2>Files by partition</h2>{_draw_files(snapshot)}</section>"
        + over_time
        + _render_deletes(snapshot)
        + "".join(f"<section><h2>Columns</h2>{render_table(table)}</section>" for table in columns)
    )


def _draw_files(value: Drawable) -> str:
    """The picture for a wide window and one for a narrow one."""
    rows = tiles.make_rows(value)
    wide = svg.layout(value, width=WIDE, heading=False, most_rows=40, most_tiles=800, all_rows=rows)
    narrow = svg.layout(value, width=NARROW, heading=False, most_rows=24, most_tiles=300, all_rows=rows)
    return f'<div class="picture wide-only">{wide}</div><div class="picture narrow-only">{narrow}</div>'


def _render_deletes(snapshot: Snapshot) -> str:
    """Delete files of an Iceberg table, and the files that most of their rows are deleted from."""
    said = dict(snapshot.details).get("deletes", ())
    if not said:
        return ""
    found = [file for file in snapshot.files if file.scan_task is not None and file.scan_task.has_deletes]
    most = nlargest(MOST_DELETES, found, key=lambda file: file.record_count - file.rows)
    lines = [_make_deletes_line(snapshot, file) for file in most]
    numbers = frozenset({"rows", "deleted", "share"})
    table = PageTable("", ("file", "partition", "rows", "deleted", "share"), tuple(lines), numbers)
    told = (
        f"{units.format_count(len(found), 'file')} of {units.format_number(len(snapshot.files))} have deletes"
    )
    rest = f"; the {len(most)} with the most are shown" if len(found) > len(most) else ""
    cards = "".join(render_card("delete files", [text]) for text in said)
    return (
        f'<section><h2>Deletes</h2><div class="cards">{cards}</div>'
        f'<p class="quiet gap">{told}{rest}. compact() leaves none.</p>{render_table(table)}</section>'
    )


def _make_deletes_line(snapshot: Snapshot, file: DataFile) -> Line:
    deleted = file.record_count - file.rows
    share = units.format_percent(deleted / file.record_count) if file.record_count else ""
    about = "" if file.scan_task is None or file.scan_task.has_exact_count else "about "
    return Line(
        (
            units.elide(_show_path(snapshot, file), 80),
            _show_partition(snapshot, file),
            units.format_number(file.rows),
            f"{about}{units.format_number(deleted)}",
            f"{about}{share}" if share else "",
        )
    )


# Files


def _render_files(ref: TableRef, snapshot: Snapshot, asked: Mapping[str, str]) -> str:
    wanted = asked.get("q", "")[:200]
    field = (
        '<form class="search" action="/table/files" method="get">'
        + _render_hidden(ref)
        + f'<input name="q" type="search" value="{escape_text(wanted)}" placeholder="part of a path"'
        ' aria-label="Part of a path"><button>Find</button></form>'
    )
    return _render_partitions(ref, snapshot, asked) + (
        f"<section><h2>Files</h2>{field}{_render_file_list(ref, snapshot, wanted, asked)}</section>"
    )


def _render_partitions(ref: TableRef, snapshot: Snapshot, asked: Mapping[str, str]) -> str:
    """A line for each partition, biggest first, as many as fit a page."""
    rows = tiles.make_rows(snapshot)
    if len(rows) < 2:
        return ""
    ordered = sorted(rows, key=lambda row: -row.size)
    pages = -(-len(ordered) // PARTITIONS_PER_PAGE)
    page = min(_read_page(asked, "partitions"), pages)
    shown = ordered[(page - 1) * PARTITIONS_PER_PAGE : page * PARTITIONS_PER_PAGE]
    most = max(ordered[0].size, 1)
    lines = "".join(
        f"<tr><td>{escape_text(row.label)}</td>"
        f'<td class="num">{units.format_number(row.files)}</td>'
        f'<td class="num">{units.format_number(sum(tile.rows for tile in row.tiles))}</td>'
        f'<td class="num">{units.format_size(row.size)}'
        f'<span class="bar" style="width:{100 * row.size / most:.1f}%"></span></td></tr>'
        for row in shown
    )
    pager = render_pager(f"/table/files?{ref.query}", page, pages).replace("&amp;page=", "&amp;partitions=")
    return (
        f"<section><h2>{units.format_count(len(rows), 'partition')}</h2>"
        '<div class="scroll"><table><thead><tr><th>partition</th><th class="num">files</th>'
        '<th class="num">rows</th><th class="num size">size</th></tr></thead>'
        f"<tbody>{lines}</tbody></table></div>{pager}</section>"
    )


def _render_file_list(ref: TableRef, snapshot: Snapshot, wanted: str, asked: Mapping[str, str]) -> str:
    numbers: Sequence[int] = range(len(snapshot.files))
    if wanted:
        found = pc.match_substring(snapshot.files.paths, wanted, ignore_case=True)
        numbers = pc.indices_nonzero(found).cast(pa.int64()).to_pylist()
    if not numbers:
        return '<p class="quiet">No file.</p>'
    pages = -(-len(numbers) // FILES_PER_PAGE)
    page = min(_read_page(asked), pages)
    shown = numbers[(page - 1) * FILES_PER_PAGE : page * FILES_PER_PAGE]
    files = [snapshot.files[number] for number in shown]
    lines = tuple(
        Line(
            (
                _show_path(snapshot, file),
                _show_partition(snapshot, file),
                units.format_number(file.rows),
                units.format_size(file.size),
            )
        )
        for file in files
    )
    table = PageTable("", ("file", "partition", "rows", "size"), lines, frozenset({"rows", "size"}))
    address = f"/table/files?{ref.query}" + (f"&q={quote(wanted, safe='')}" if wanted else "")
    told = f"{units.format_count(len(numbers), 'file')}"
    return f'<p class="quiet gap">{told}</p>{render_table(table)}{render_pager(address, page, pages)}'


def _show_path(snapshot: Snapshot, file: DataFile) -> str:
    """The path of a file below its table; an Iceberg file has a full path, whose end tells it apart."""
    if snapshot.replaces_in_place:
        return units.make_printable(file.path)
    return units.make_printable("/".join(file.path.rsplit("/", 3)[-3:]))


def _show_partition(snapshot: Snapshot, file: DataFile) -> str:
    if snapshot.format.owns_schema:
        values: Mapping[str, Any] = snapshot.partitioner.partition_of(file).values
    else:
        values = file.partition
    return tiles.make_partition_label(values) if values else ""


def _render_hidden(ref: TableRef) -> str:
    """The table of a form, in one field that is not shown."""
    return f'<input type="hidden" name="of" value="{escape_text(ref.query)}">'


# History


def _render_history(ref: TableRef, history: History, asked: Mapping[str, str]) -> str:
    if not history.commits:
        return '<section><p class="quiet">No commit is known: others have written this table.</p></section>'
    pages = -(-len(history.commits) // COMMITS_PER_PAGE)
    page = min(_read_page(asked), pages)
    part = history.commits[(page - 1) * COMMITS_PER_PAGE : page * COMMITS_PER_PAGE]
    charts = draw_history(history.commits)
    told = make_page(history)
    lines = make_page(replace(history, commits=part)).tables
    shown = f'<section><div class="charts">{charts}</div></section>' if charts and page == 1 else ""
    return (
        render_value(replace(told, notes=()), tables=())
        + shown
        + "".join(f"<section><h2>Commits</h2>{render_table(table)}" for table in lines)
        + f"{render_pager(f'/table/history?{ref.query}', page, pages)}</section>{render_notes(told.notes)}"
    )


# Plan


OPERATIONS = ("compact", "optimize", "delete")


def _render_plan(ref: TableRef, table: Table, asked: Mapping[str, str]) -> str:
    operation = asked.get("operation", "compact")
    form = _render_form(ref, operation, asked)
    try:
        plan = preview_plan(_make_intent(operation, asked), table)
    except IntarsiaError as error:
        return form + f"<section>{render_error(error)}</section>"
    page = make_page(plan, most_files=0)
    facts = replace(page, facts=tuple(fact for fact in page.facts if fact.label != "engine"))
    return (
        form
        + render_value(facts, tables=())
        + f"<section><h2>Files by partition</h2>{_draw_files(plan)}</section>"
        + "".join(f"<section><h2>Why</h2>{render_table(one)}</section>" for one in page.tables)
    )


def _make_intent(operation: str, asked: Mapping[str, str]) -> Intent:
    size = compute_file_bytes(_read_size(asked.get("mb", "")), None)
    match operation:
        case "compact":
            return CompactIntent(size)
        case "optimize":
            by = tuple(part.strip() for part in asked.get("by", "").split(",") if part.strip())
            if not by:
                raise InputError("The columns to order by are needed.", hint="write them with commas.")
            return OptimizeIntent(by, target_bytes=size)
        case "delete":
            if not asked.get("where", "").strip():
                raise InputError("A condition is needed.", hint="such as: amount < 5")
            return DeleteIntent(parse_where(asked["where"], None))
        case _:
            raise InputError(
                f"{operation!r} cannot be planned here.", hint=f"choose {', '.join(OPERATIONS)}."
            )


def _read_size(text: str) -> float | None:
    if not text.strip():
        return None
    try:
        size = float(text)
    except ValueError as error:
        raise InputError(f"{text!r} is no size in MB.") from error
    if not math.isfinite(size):
        raise InputError(f"{text!r} is no size in MB.")
    return size


def _render_form(ref: TableRef, operation: str, asked: Mapping[str, str]) -> str:
    choices = "".join(
        f"<option{' selected' if name == operation else ''}>{name}</option>" for name in OPERATIONS
    )
    fields = "".join(
        f'<label class="for-{goes}">{word}<input name="{name}" placeholder="{hint}"'
        f' value="{escape_text(asked.get(name, "")[:2000])}"></label>'
        for name, word, goes, hint in (
            ("mb", "MB per file", "size", "as the table says"),
            ("by", "by columns", "optimize", "region, day"),
            ("where", "where", "delete", "amount &lt; 5"),
        )
    )
    return (
        '<section><form class="planner" action="/table/plan" method="get">'
        f'{_render_hidden(ref)}<label>operation<select name="operation">{choices}</select></label>{fields}'
        "<button>Plan</button></form>"
        '<p class="quiet gap">What the operation would do to each file, as footers and statistics tell it.'
        " No row is read, and nothing is written.</p></section>"
    )
