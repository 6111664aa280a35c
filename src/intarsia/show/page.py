"""The content shown for a value: facts, tables and notes; text.py and html.py lay it out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from intarsia.common.requests import Requests
from intarsia.core.history import Commit, History
from intarsia.core.inspection import ColumnFacts, Inspection, PartitionFacts
from intarsia.core.intent import Intent, MergeIntent, OptimizeIntent, WriteIntent
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.report import MergeResult
from intarsia.core.snapshot import Snapshot
from intarsia.show import tiles, units
from intarsia.show.tiles import Drawable, Kind

MOST_FILES = 20
"""Up to here a table has a line for each file; beyond, one for each action and reason."""


@dataclass(frozen=True, slots=True)
class PageItem:
    """A number and what it counts, in the colour of the tiles of ``kind``."""

    value: str
    word: str = ""
    kind: Kind | None = None

    def __str__(self) -> str:
        return f"{self.value} {self.word}".rstrip()


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of the summary."""

    label: str
    items: tuple[PageItem, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a table, in the colour of the tiles of ``kind``."""

    cells: tuple[str, ...]
    kind: Kind | None = None


@dataclass(frozen=True, slots=True)
class PageTable:
    """Lines under a heading; columns named in ``numbers`` are right-aligned."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    numbers: frozenset[str] = frozenset()
    is_open: bool = False
    """Whether a notebook shows it at once."""


@dataclass(frozen=True, slots=True)
class Page:
    """All content for one value. Text is printable and not escaped."""

    title: str
    path: str
    mark: str
    facts: tuple[Fact, ...]
    tables: tuple[PageTable, ...]
    notes: tuple[str, ...]


def make_page(value: Drawable | History, *, most_files: int = MOST_FILES) -> Page:
    """The page of a value; tables of more files than ``most_files`` are grouped."""
    match value:
        case History():
            return _make_history_page(value)
        case Plan():
            return _make_plan_page(value, most_files)
        case MergeResult():
            return _make_result_page(value, most_files)
        case Inspection():
            return _make_inspection_page(value)
        case Snapshot():
            return _make_snapshot_page(value)


def make_title(intent: Intent) -> str:
    """The operation in a few words: ``merge (upsert)``, ``optimize (zorder by day, id)``."""
    match intent:
        case MergeIntent():
            detail = intent.rule.name
        case OptimizeIntent():
            detail = f"{intent.curve} by {', '.join(intent.by)}"
        case _:
            detail = ""
    return units.make_printable(f"{intent.operation} ({detail})" if detail else intent.operation)


def _make_facts(*facts: tuple[str, Iterable[PageItem]]) -> tuple[Fact, ...]:
    made = (Fact(label, tuple(items)) for label, items in facts)
    return tuple(fact for fact in made if fact.items)


def _make_words(*texts: str) -> list[PageItem]:
    return [PageItem(units.make_printable(text)) for text in texts if text]


def _clean_notes(notes: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(units.make_printable(" ".join(note.split())) for note in notes))


# Plans


def _make_plan_page(plan: Plan, most_files: int) -> Page:
    return Page(
        make_title(plan.intent),
        units.make_printable(plan.snapshot.root),
        "plan, rows not matched yet" if _is_open(plan) else "plan, nothing written",
        _make_facts(
            (
                "source",
                [PageItem(units.format_number(plan.source_rows), "rows")] if _has_source(plan.intent) else [],
            ),
            (
                "keys",
                _make_words(", ".join(plan.intent.keys)) if isinstance(plan.intent, MergeIntent) else [],
            ),
            ("engine", _make_words(plan.engine + (f": {plan.engine_reason}" if plan.engine_reason else ""))),
            ("files", _list_plan_files(plan)),
            ("rows", _list_plan_rows(plan)),
            ("bytes", _list_plan_bytes(plan)),
            ("requests", _list_plan_requests(plan)),
        ),
        (_make_plan_table(plan, most_files),) if plan.files else (),
        _clean_notes((*plan.snapshot.notes, *plan.notes)),
    )


def _has_source(intent: Intent) -> bool:
    return isinstance(intent, (MergeIntent, WriteIntent))


def _list_plan_files(plan: Plan) -> list[PageItem]:
    outputs = plan.new_files if plan.new_files_exact else sum(group.outputs for group in plan.groups)
    kept = plan.count("keep")
    found = [
        PageItem(units.format_number(kept), "kept", "kept"),
        _make_item(plan.count("scan"), "to look into", "open"),
        _make_item(plan.count("add_deletes"), "with deletes", "rewritten"),
        PageItem(units.format_number(plan.count("rewrite")), "rewritten", "rewritten"),
        _make_item(plan.count("regroup"), "rewritten together", "regrouped"),
        PageItem(units.format_number(plan.count("remove")), "removed", "removed"),
        _make_item(outputs, "new", "new"),
    ]
    if not plan.new_files_exact and not outputs and (plan.inserted or plan.new_files):
        found.append(PageItem(f"at least {units.format_number(max(plan.new_files, 1))}", "new", "new"))
    return [item for item in found if item is not None]


def _list_files_with_deletes(result: MergeResult) -> list[PageItem]:
    found = _make_item(len(result.files_with_deletes), "with deletes", "rewritten")
    return [] if found is None else [found]


def _make_item(number: int, word: str, kind: Kind) -> PageItem | None:
    return PageItem(units.format_number(number), word, kind) if number else None


def _list_plan_rows(plan: Plan) -> list[PageItem]:
    if plan.matched:
        return _list_changes(plan.inserted, plan.updated, plan.deleted)
    return _make_words("counted once they are matched") if _is_open(plan) else []


def _list_changes(inserted: int, updated: int, deleted: int) -> list[PageItem]:
    return [
        PageItem(units.format_number(inserted), "inserted", "new" if inserted else None),
        PageItem(units.format_number(updated), "updated", "rewritten" if updated else None),
        PageItem(units.format_number(deleted), "deleted", "removed" if deleted else None),
    ]


def _is_open(plan: Plan) -> bool:
    """Whether files must be read to know which of them are rewritten."""
    return not plan.matched and plan.count("scan") > 0


def _list_plan_bytes(plan: Plan) -> list[PageItem]:
    if _is_open(plan):
        most = plan.bytes_to_write + sum(entry.file.size for entry in plan.select("scan"))
        return [
            PageItem(units.format_size(plan.bytes_to_read), "to read first"),
            PageItem(f"at most {units.format_size(most)}", "to rewrite then"),
        ]
    search = (
        f" ({units.format_size(plan.bytes_to_scan)} of it to find the rows)" if plan.bytes_to_scan else ""
    )
    about = "" if plan.bytes_exact else "about "
    return [
        PageItem(units.format_size(plan.bytes_to_read), f"to read{search}"),
        PageItem(f"{about}{units.format_size(plan.bytes_to_write)}", "to write"),
    ]


def _list_plan_requests(plan: Plan) -> list[PageItem]:
    sent = _list_requests(plan.requests)
    return [*sent, PageItem("sent to plan")] if sent else []


_ACTIONS = {
    "keep": "kept",
    "scan": "look into",
    "rewrite": "rewritten",
    "add_deletes": "with deletes",
    "remove": "removed",
}
_NUMBERS = frozenset({"files", "rows", "size", "hits"})


def _make_plan_table(plan: Plan, most_files: int) -> PageTable:
    if len(plan.files) <= most_files:
        lines = [_make_plan_line(units.make_printable(entry.file.path), [entry]) for entry in plan.files]
        return PageTable("files", ("file", "action", "why", "rows", "size", "hits"), tuple(lines), _NUMBERS)
    groups: dict[tuple[Kind, str, str], list[FilePlan]] = {}
    for entry in plan.files:
        groups.setdefault((tiles.choose_kind(entry), entry.action, entry.reason), []).append(entry)
    # What changes is what people look for: it comes first.
    order = {kind: -number for number, kind in enumerate(tiles.LEGEND)}
    ordered = sorted(groups.items(), key=lambda item: (order[item[0][0]], -len(item[1]), item[0][2]))
    lines = [_make_plan_line(units.format_number(len(entries)), entries) for _, entries in ordered]
    return PageTable("files", ("files", "action", "why", "rows", "size", "hits"), tuple(lines), _NUMBERS)


def _make_plan_line(name: str, entries: Sequence[FilePlan]) -> Line:
    first = entries[0]
    hits = sum(entry.hits for entry in entries)
    return Line(
        (
            name,
            _ACTIONS.get(first.action, "rewritten"),
            units.make_printable(first.reason),
            units.format_number(sum(entry.file.rows for entry in entries)),
            units.format_size(sum(entry.file.size for entry in entries)),
            units.format_number(hits) if hits else "",
        ),
        tiles.choose_kind(first),
    )


# Results


def _make_result_page(result: MergeResult, most_files: int) -> Page:
    detail = f" ({result.strategy})" if result.strategy not in ("", result.operation) else ""
    return Page(
        units.make_printable(result.operation + detail),
        units.make_printable(result.path),
        _make_result_mark(result),
        _make_facts(
            ("rows", _list_changes(result.inserted, result.updated, result.deleted)),
            ("total", _list_totals(result)),
            (
                "source",
                [PageItem(units.format_number(result.source_count), "rows")] if result.source_count else [],
            ),
            ("files", _list_result_files(result)),
            ("bytes", _list_result_bytes(result)),
            ("requests", _list_requests(result.requests)),
            ("time", _list_time(result)),
            ("engine", _make_words(result.engine)),
            ("commit", _commit(result)),
        ),
        (_make_result_table(result, most_files),) if result.files else (),
        _clean_notes(result.notes),
    )


def _make_result_mark(result: MergeResult) -> str:
    if result.dry_run:
        return "dry run, nothing written"
    return "done" if result.changed else "done, nothing had to change"


def _list_totals(result: MergeResult) -> list[PageItem]:
    return [
        PageItem(units.format_number(result.target_count_before), "before"),
        PageItem(units.format_number(result.target_count_after), "after"),
    ]


def _list_result_files(result: MergeResult) -> list[PageItem]:
    new = result.new_files if result.dry_run else len(result.inserted_files)
    least = "" if result.new_files_exact else "at least "
    return [
        *_list_files_with_deletes(result),
        PageItem(units.format_number(len(result.rewritten_files)), "rewritten", "rewritten"),
        PageItem(f"{least}{units.format_number(new)}", "new", "new"),
        PageItem(units.format_number(len(result.removed_files)), "removed", "removed"),
        PageItem(units.format_number(len(result.preserved_files)), "untouched", "kept"),
    ]


def _list_result_bytes(result: MergeResult) -> list[PageItem]:
    about = "" if result.bytes_exact else "about "
    return [
        PageItem(units.format_size(result.bytes_read), "read"),
        PageItem(f"{about}{units.format_size(result.bytes_written)}", "written"),
    ]


def _list_requests(requests: Requests | None) -> list[PageItem]:
    sent = {} if requests is None else requests
    return [PageItem(units.format_number(count), kind) for kind, count in sent.items() if count]


def _list_time(result: MergeResult) -> list[PageItem]:
    if result.seconds <= 0:
        return []
    source = result.source_count > 0
    number = result.source_count if source else result.target_count_before
    speed = PageItem(units.format_rate(number, result.seconds), "source rows/s" if source else "rows/s")
    return [PageItem(units.format_seconds(result.seconds)), *([speed] if number else [])]


def _commit(result: MergeResult) -> list[PageItem]:
    if result.dry_run or result.version is None:
        return []
    attempts = [PageItem(units.format_number(result.attempts), "attempts")] if result.attempts > 1 else []
    return [
        PageItem("version", units.format_number(result.version)),
        *attempts,
        *_make_words(result.txid or ""),
    ]


def _make_result_table(result: MergeResult, most_files: int) -> PageTable:
    rows = tiles.make_rows(result)
    found = [tile for row in rows for tile in row.tiles]
    if len(found) <= most_files:
        lines = [_make_tile_line(tile.title, [tile]) for tile in found]
        return PageTable("files", ("file", "what", "why", "rows", "size"), tuple(lines), _NUMBERS)
    groups: dict[tuple[Kind, str, str], list[tiles.Tile]] = {}
    for tile in found:
        groups.setdefault((tile.kind, tile.reason, tile.word), []).append(tile)
    order = {kind: -number for number, kind in enumerate(tiles.LEGEND)}
    ordered = sorted(groups.items(), key=lambda item: (order[item[0][0]], -len(item[1]), item[0][1]))
    lines = [_make_tile_line(units.format_number(len(alike)), alike) for _, alike in ordered]
    return PageTable("files", ("files", "what", "why", "rows", "size"), tuple(lines), _NUMBERS)


def _make_tile_line(name: str, alike: Sequence[tiles.Tile]) -> Line:
    rows, size = sum(tile.rows for tile in alike), sum(tile.size for tile in alike)
    first = alike[0]
    return Line(
        (name, first.word, first.reason, units.format_number(rows), units.format_size(size) if size else ""),
        first.kind,
    )


# Snapshots and inspections


def _make_snapshot_page(snapshot: Snapshot) -> Page:
    columns = [
        Line((units.make_printable(entry.name), units.make_printable(str(entry.type))))
        for entry in snapshot.schema
    ]
    return Page(
        "snapshot",
        units.make_printable(snapshot.root),
        _describe_state(snapshot),
        _make_facts(
            ("rows", [PageItem(units.format_number(snapshot.rows))]),
            (
                "files",
                [
                    PageItem(units.format_number(len(snapshot.files))),
                    PageItem(units.format_size(snapshot.size)),
                ],
            ),
            ("partitions", _make_words(", ".join(snapshot.partition_columns))),
            *_list_details(snapshot),
        ),
        (PageTable("columns", ("column", "type"), tuple(columns)),) if columns else (),
        _clean_notes(snapshot.notes),
    )


def _list_details(snapshot: Snapshot) -> list[tuple[str, list[PageItem]]]:
    return [
        (word, [PageItem(units.make_printable(text)) for text in said]) for word, said in snapshot.details
    ]


def _describe_state(snapshot: Snapshot) -> str:
    if not snapshot.exists:
        return "does not exist yet"
    return f"version {units.format_number(snapshot.version)}" if snapshot.files else "empty"


def _make_inspection_page(seen: Inspection) -> Page:
    return Page(
        "inspection",
        units.make_printable(seen.root),
        _describe_state(seen.snapshot),
        _make_facts(
            ("rows", [PageItem(units.format_number(seen.rows))]),
            (
                "files",
                [
                    PageItem(units.format_number(seen.files)),
                    PageItem(units.format_size(seen.size)),
                    *_list_average(seen),
                ],
            ),
            (
                "small files",
                [
                    PageItem(
                        units.format_number(seen.small_files), f"under {units.format_size(seen.small_bytes)}"
                    )
                ],
            ),
            ("row groups", _list_row_groups(seen) if seen.snapshot.footer_loader is None else []),
            ("partitions", _list_partitions(seen)),
            *_list_details(seen.snapshot),
            ("compression", _make_words(", ".join(codec.lower() for codec in seen.codecs))),
            (
                "sorted by",
                [
                    PageItem(units.make_printable(order), f"in {units.format_count(n, 'file')}")
                    for order, n in seen.sorting
                ],
            ),
        ),
        (_make_column_table(seen),) if seen.columns else (),
        _clean_notes(seen.notes),
    )


def _list_row_groups(seen: Inspection) -> list[PageItem]:
    unread = f"{units.format_count(seen.unread, 'footer')} not read" if seen.unread else ""
    known = (
        [PageItem(units.format_number(seen.row_groups))] if seen.unread < seen.files or not seen.files else []
    )
    return [*known, *_make_words(unread)]


def _list_average(seen: Inspection) -> list[PageItem]:
    return [PageItem(units.format_size(seen.average_size), "on average")] if seen.files else []


def _list_partitions(seen: Inspection) -> list[PageItem]:
    if not seen.partitions or seen.biggest is None or seen.smallest is None:
        return []
    by = units.make_printable(", ".join(seen.snapshot.partition_columns))
    found = [PageItem(units.format_number(seen.partitions), f"by {by}" if by else "")]
    if seen.partitions > 1:
        found += [
            _make_partition_item("biggest", seen.biggest),
            _make_partition_item("smallest", seen.smallest),
        ]
    return found


def _make_partition_item(word: str, part: PartitionFacts) -> PageItem:
    label = tiles.make_partition_label(part.partition)
    return PageItem(
        word, f"{label} ({units.format_count(part.files, 'file')}, {units.format_size(part.size)})"
    )


def _make_column_table(seen: Inspection) -> PageTable:
    """The table of columns, without those of its columns that are empty."""
    cells: dict[str, list[str]] = {
        "column": [units.make_printable(column.name) for column in seen.columns],
        "type": [_show_stored_type(column, len(seen.snapshot.files)) for column in seen.columns],
        "nulls": [_show_known(column.null_fraction, units.format_percent) for column in seen.columns],
        "size": [_show_known(column.size, units.format_size) for column in seen.columns],
        "depth": [_show_known(column.depth, lambda depth: f"{depth:,.1f}") for column in seen.columns],
    }
    names = [name for name, texts in cells.items() if any(texts)]
    lines = tuple(Line(texts) for texts in zip(*(cells[name] for name in names), strict=True))
    return PageTable("columns", tuple(names), lines, frozenset({"nulls", "size", "depth"}))


def _show_stored_type(column: ColumnFacts, files: int) -> str:
    shown = units.make_printable(str(column.type))
    if not column.int96_files:
        return shown
    some = "" if column.int96_files == files else f" in {units.format_count(column.int96_files, 'file')}"
    return f"{shown} (INT96{some})"


# Histories


def _make_history_page(history: History) -> Page:
    commits = history.commits
    times = [commit.time for commit in commits if commit.time is not None]
    can = sorted(history.restorable)
    lines = tuple(_make_commit_line(commit) for commit in commits)
    columns = ("version", "time", "operation", "by", "rows", "files", "written", "total", "batch", "state")
    return Page(
        "history",
        units.make_printable(history.root),
        f"version {units.format_number(history.version)}",
        _make_facts(
            ("branch", _make_words(history.branch or "")),
            ("commits", [PageItem(units.format_number(len(commits)))]),
            ("since", _make_words(_show_time(min(times)) if times else "")),
            (
                "restorable",
                [PageItem(units.format_number(len(can)), f"from version {can[0]}")]
                if can
                else _make_words("none"),
            ),
        ),
        (PageTable("commits", columns, lines, frozenset({"version", "written", "total"}), is_open=True),)
        if lines
        else (),
        _clean_notes(history.notes),
    )


def _make_commit_line(commit: Commit) -> Line:
    batch = "" if commit.app_id is None else f"{commit.app_id} {_show_known(commit.batch_id, str)}".strip()
    state = "rolled back" if commit.rolled_back else "restorable" if commit.restorable else ""
    cells = (
        str(commit.version),
        _show_known(commit.time, _show_time),
        commit.operation,
        commit.user or commit.engine or "",
        _show_signed(("+", commit.inserted), ("~", commit.updated), ("-", commit.deleted)),
        _show_signed(("+", commit.files_added), ("~", commit.files_replaced), ("-", commit.files_removed)),
        _show_known(commit.bytes_written, units.format_size),
        _show_known(commit.rows_after, units.format_number),
        batch,
        state,
    )
    return Line(tuple(map(units.make_printable, cells)), "removed" if commit.rolled_back else None)


def _show_time(time: dt.datetime) -> str:
    return time.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _show_signed(*counts: tuple[str, int | None]) -> str:
    """As in ``+3 ~1 -2``: inserted or added, changed, and gone; empty where nothing is known."""
    known = [(mark, count) for mark, count in counts if count is not None]
    return " ".join(f"{mark}{count:,}" for mark, count in known if count) or ("0" if known else "")


def _show_known(value: Any, shown: Any) -> str:
    return "" if value is None else str(shown(value))
