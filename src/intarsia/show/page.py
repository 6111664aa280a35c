"""What there is to say about a value: facts, tables and notes in words; text and html lay them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from intarsia.core.inspection import ColumnFacts, Inspection, PartitionFacts
from intarsia.core.intent import Intent, Merge, Optimize, Write
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.report import MergeResult
from intarsia.core.snapshot import Snapshot
from intarsia.show import tiles, units
from intarsia.show.tiles import Drawable, Kind

MOST_FILES = 20
"""Up to here a table has a line for each file; beyond, one for each action and reason."""


@dataclass(frozen=True, slots=True)
class PageItem:
    """A number and what it counts; ``kind`` lends it the colour of its tiles."""

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
    """One line of a table; ``kind`` lends it the colour of its tiles."""

    cells: tuple[str, ...]
    kind: Kind | None = None


@dataclass(frozen=True, slots=True)
class PageTable:
    """Lines under a heading; columns whose name is in ``numbers`` stand to the right."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    numbers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Page:
    """Everything said about one value. All text is printable; none of it is escaped."""

    title: str
    path: str
    mark: str
    facts: tuple[Fact, ...]
    tables: tuple[PageTable, ...]
    notes: tuple[str, ...]


def page_of(value: Drawable, *, most_files: int = MOST_FILES) -> Page:
    """The page of a value; tables of more files than ``most_files`` are grouped."""
    match value:
        case Plan():
            return _plan_page(value, most_files)
        case MergeResult():
            return _result_page(value, most_files)
        case Inspection():
            return _inspection_page(value)
        case Snapshot():
            return _snapshot_page(value)


def title_of(intent: Intent) -> str:
    """The operation in a few words: ``merge (upsert)``, ``optimize (zorder by day, id)``."""
    match intent:
        case Merge():
            detail = intent.rule.name
        case Optimize():
            detail = f"{intent.curve} by {', '.join(intent.by)}"
        case _:
            detail = ""
    return units.printable(f"{intent.operation} ({detail})" if detail else intent.operation)


def _facts(*facts: tuple[str, Iterable[PageItem]]) -> tuple[Fact, ...]:
    made = (Fact(label, tuple(items)) for label, items in facts)
    return tuple(fact for fact in made if fact.items)


def _words(*texts: str) -> list[PageItem]:
    return [PageItem(units.printable(text)) for text in texts if text]


def _notes(notes: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(units.printable(" ".join(note.split())) for note in notes))


# Plans


def _plan_page(plan: Plan, most_files: int) -> Page:
    return Page(
        title_of(plan.intent),
        units.printable(plan.snapshot.root),
        "plan, rows not matched yet" if _is_open(plan) else "plan, nothing written",
        _facts(
            ("source", [PageItem(units.count(plan.source_rows), "rows")] if _has_source(plan.intent) else []),
            ("keys", _words(", ".join(plan.intent.keys)) if isinstance(plan.intent, Merge) else []),
            ("engine", _words(plan.engine + (f": {plan.engine_reason}" if plan.engine_reason else ""))),
            ("files", _plan_files(plan)),
            ("rows", _plan_rows(plan)),
            ("bytes", _plan_bytes(plan)),
        ),
        (_plan_table(plan, most_files),) if plan.files else (),
        _notes((*plan.snapshot.notes, *plan.notes)),
    )


def _has_source(intent: Intent) -> bool:
    return isinstance(intent, (Merge, Write))


def _plan_files(plan: Plan) -> list[PageItem]:
    outputs = plan.new_files if plan.new_files_exact else sum(group.outputs for group in plan.groups)
    kept = plan.count("keep")
    found = [
        PageItem(units.count(kept), "kept", "kept"),
        _some(plan.count("scan"), "to look into", "open"),
        _some(plan.count("add_deletes"), "with deletes", "rewritten"),
        PageItem(units.count(plan.count("rewrite")), "rewritten", "rewritten"),
        _some(plan.count("regroup"), "rewritten together", "regrouped"),
        PageItem(units.count(plan.count("remove")), "removed", "removed"),
        _some(outputs, "new", "new"),
    ]
    if not plan.new_files_exact and not outputs and (plan.inserted or plan.new_files):
        found.append(PageItem(f"at least {units.count(max(plan.new_files, 1))}", "new", "new"))
    return [item for item in found if item is not None]


def _some_with_deletes(result: MergeResult) -> list[PageItem]:
    found = _some(len(result.files_with_deletes), "with deletes", "rewritten")
    return [] if found is None else [found]


def _some(number: int, word: str, kind: Kind) -> PageItem | None:
    return PageItem(units.count(number), word, kind) if number else None


def _plan_rows(plan: Plan) -> list[PageItem]:
    if plan.matched:
        return _changes(plan.inserted, plan.updated, plan.deleted)
    return _words("counted once they are matched") if _is_open(plan) else []


def _changes(inserted: int, updated: int, deleted: int) -> list[PageItem]:
    return [
        PageItem(units.count(inserted), "inserted", "new" if inserted else None),
        PageItem(units.count(updated), "updated", "rewritten" if updated else None),
        PageItem(units.count(deleted), "deleted", "removed" if deleted else None),
    ]


def _is_open(plan: Plan) -> bool:
    """Whether it takes a look into files to know which of them are rewritten."""
    return not plan.matched and plan.count("scan") > 0


def _plan_bytes(plan: Plan) -> list[PageItem]:
    if _is_open(plan):
        most = plan.bytes_to_write + sum(entry.file.size for entry in plan.select("scan"))
        return [
            PageItem(units.size(plan.bytes_to_read), "to read first"),
            PageItem(f"at most {units.size(most)}", "to rewrite then"),
        ]
    search = f" ({units.size(plan.bytes_to_scan)} of it to find the rows)" if plan.bytes_to_scan else ""
    about = "" if plan.bytes_exact else "about "
    return [
        PageItem(units.size(plan.bytes_to_read), f"to read{search}"),
        PageItem(f"{about}{units.size(plan.bytes_to_write)}", "to write"),
    ]


_ACTIONS = {
    "keep": "kept",
    "scan": "look into",
    "rewrite": "rewritten",
    "add_deletes": "with deletes",
    "remove": "removed",
}
_NUMBERS = frozenset({"files", "rows", "size", "hits"})


def _plan_table(plan: Plan, most_files: int) -> PageTable:
    if len(plan.files) <= most_files:
        lines = [_plan_line(units.printable(entry.file.path), [entry]) for entry in plan.files]
        return PageTable("files", ("file", "action", "why", "rows", "size", "hits"), tuple(lines), _NUMBERS)
    groups: dict[tuple[Kind, str, str], list[FilePlan]] = {}
    for entry in plan.files:
        groups.setdefault((tiles.kind_of(entry), entry.action, entry.reason), []).append(entry)
    # What changes is what people look for: it comes first.
    order = {kind: -number for number, kind in enumerate(tiles.LEGEND)}
    ordered = sorted(groups.items(), key=lambda item: (order[item[0][0]], -len(item[1]), item[0][2]))
    lines = [_plan_line(units.count(len(entries)), entries) for _, entries in ordered]
    return PageTable("files", ("files", "action", "why", "rows", "size", "hits"), tuple(lines), _NUMBERS)


def _plan_line(name: str, entries: Sequence[FilePlan]) -> Line:
    first = entries[0]
    hits = sum(entry.hits for entry in entries)
    return Line(
        (
            name,
            _ACTIONS.get(first.action, "rewritten"),
            units.printable(first.reason),
            units.count(sum(entry.file.rows for entry in entries)),
            units.size(sum(entry.file.size for entry in entries)),
            units.count(hits) if hits else "",
        ),
        tiles.kind_of(first),
    )


# Results


def _result_page(result: MergeResult, most_files: int) -> Page:
    detail = f" ({result.strategy})" if result.strategy not in ("", result.operation) else ""
    return Page(
        units.printable(result.operation + detail),
        units.printable(result.path),
        _result_mark(result),
        _facts(
            ("rows", _changes(result.inserted, result.updated, result.deleted)),
            ("total", _totals(result)),
            ("source", [PageItem(units.count(result.source_count), "rows")] if result.source_count else []),
            ("files", _result_files(result)),
            ("bytes", _result_bytes(result)),
            ("time", _time(result)),
            ("engine", _words(result.engine)),
            ("commit", _commit(result)),
        ),
        (_result_table(result, most_files),) if result.files else (),
        _notes(result.notes),
    )


def _result_mark(result: MergeResult) -> str:
    if result.dry_run:
        return "dry run, nothing written"
    return "done" if result.changed else "done, nothing had to change"


def _totals(result: MergeResult) -> list[PageItem]:
    return [
        PageItem(units.count(result.target_count_before), "before"),
        PageItem(units.count(result.target_count_after), "after"),
    ]


def _result_files(result: MergeResult) -> list[PageItem]:
    new = result.new_files if result.dry_run else len(result.inserted_files)
    least = "" if result.new_files_exact else "at least "
    return [
        *_some_with_deletes(result),
        PageItem(units.count(len(result.rewritten_files)), "rewritten", "rewritten"),
        PageItem(f"{least}{units.count(new)}", "new", "new"),
        PageItem(units.count(len(result.removed_files)), "removed", "removed"),
        PageItem(units.count(len(result.preserved_files)), "untouched", "kept"),
    ]


def _result_bytes(result: MergeResult) -> list[PageItem]:
    about = "" if result.bytes_exact else "about "
    return [
        PageItem(units.size(result.bytes_read), "read"),
        PageItem(f"{about}{units.size(result.bytes_written)}", "written"),
    ]


def _time(result: MergeResult) -> list[PageItem]:
    if result.seconds <= 0:
        return []
    source = result.source_count > 0
    number = result.source_count if source else result.target_count_before
    speed = PageItem(units.rate(number, result.seconds), "source rows/s" if source else "rows/s")
    return [PageItem(units.seconds(result.seconds)), *([speed] if number else [])]


def _commit(result: MergeResult) -> list[PageItem]:
    if result.dry_run or result.version is None:
        return []
    attempts = [PageItem(units.count(result.attempts), "attempts")] if result.attempts > 1 else []
    return [PageItem("version", units.count(result.version)), *attempts, *_words(result.txid or "")]


def _result_table(result: MergeResult, most_files: int) -> PageTable:
    rows = tiles.rows_of(result)
    found = [tile for row in rows for tile in row.tiles]
    if len(found) <= most_files:
        lines = [_tile_line(tile.title, [tile]) for tile in found]
        return PageTable("files", ("file", "what", "why", "rows", "size"), tuple(lines), _NUMBERS)
    groups: dict[tuple[Kind, str, str], list[tiles.Tile]] = {}
    for tile in found:
        groups.setdefault((tile.kind, tile.reason, tile.word), []).append(tile)
    order = {kind: -number for number, kind in enumerate(tiles.LEGEND)}
    ordered = sorted(groups.items(), key=lambda item: (order[item[0][0]], -len(item[1]), item[0][1]))
    lines = [_tile_line(units.count(len(alike)), alike) for _, alike in ordered]
    return PageTable("files", ("files", "what", "why", "rows", "size"), tuple(lines), _NUMBERS)


def _tile_line(name: str, alike: Sequence[tiles.Tile]) -> Line:
    rows, size = sum(tile.rows for tile in alike), sum(tile.size for tile in alike)
    first = alike[0]
    return Line(
        (name, first.word, first.reason, units.count(rows), units.size(size) if size else ""), first.kind
    )


# Snapshots and inspections


def _snapshot_page(snapshot: Snapshot) -> Page:
    columns = [
        Line((units.printable(entry.name), units.printable(str(entry.type)))) for entry in snapshot.schema
    ]
    return Page(
        "snapshot",
        units.printable(snapshot.root),
        _state(snapshot),
        _facts(
            ("rows", [PageItem(units.count(snapshot.rows))]),
            ("files", [PageItem(units.count(len(snapshot.files))), PageItem(units.size(snapshot.size))]),
            ("partitions", _words(", ".join(snapshot.partition_columns))),
            *_details(snapshot),
        ),
        (PageTable("columns", ("column", "type"), tuple(columns)),) if columns else (),
        _notes(snapshot.notes),
    )


def _details(snapshot: Snapshot) -> list[tuple[str, list[PageItem]]]:
    return [(word, [PageItem(units.printable(text)) for text in said]) for word, said in snapshot.details]


def _state(snapshot: Snapshot) -> str:
    if not snapshot.exists:
        return "does not exist yet"
    return f"version {units.count(snapshot.version)}" if snapshot.files else "empty"


def _inspection_page(seen: Inspection) -> Page:
    return Page(
        "inspection",
        units.printable(seen.root),
        _state(seen.snapshot),
        _facts(
            ("rows", [PageItem(units.count(seen.rows))]),
            ("files", [PageItem(units.count(seen.files)), PageItem(units.size(seen.size)), *_average(seen)]),
            (
                "small files",
                [PageItem(units.count(seen.small_files), f"under {units.size(seen.small_bytes)}")],
            ),
            ("row groups", _row_groups(seen) if seen.snapshot.footer_loader is None else []),
            ("partitions", _partitions(seen)),
            *_details(seen.snapshot),
            ("compression", _words(", ".join(codec.lower() for codec in seen.codecs))),
            (
                "sorted by",
                [
                    PageItem(units.printable(order), f"in {units.counted(n, 'file')}")
                    for order, n in seen.sorting
                ],
            ),
        ),
        (_column_table(seen),) if seen.columns else (),
        _notes(seen.notes),
    )


def _row_groups(seen: Inspection) -> list[PageItem]:
    unread = f"{units.counted(seen.unread, 'footer')} not read" if seen.unread else ""
    known = [PageItem(units.count(seen.row_groups))] if seen.unread < seen.files or not seen.files else []
    return [*known, *_words(unread)]


def _average(seen: Inspection) -> list[PageItem]:
    return [PageItem(units.size(seen.average_size), "on average")] if seen.files else []


def _partitions(seen: Inspection) -> list[PageItem]:
    if not seen.partitions or seen.biggest is None or seen.smallest is None:
        return []
    by = units.printable(", ".join(seen.snapshot.partition_columns))
    found = [PageItem(units.count(seen.partitions), f"by {by}" if by else "")]
    if seen.partitions > 1:
        found += [_partition("biggest", seen.biggest), _partition("smallest", seen.smallest)]
    return found


def _partition(word: str, part: PartitionFacts) -> PageItem:
    label = tiles.partition_label(part.partition)
    return PageItem(word, f"{label} ({units.counted(part.files, 'file')}, {units.size(part.size)})")


def _column_table(seen: Inspection) -> PageTable:
    """Columns that say nothing on this table are left out."""
    cells: dict[str, list[str]] = {
        "column": [units.printable(column.name) for column in seen.columns],
        "type": [_stored_type(column, len(seen.snapshot.files)) for column in seen.columns],
        "nulls": [_known(column.null_fraction, units.percent) for column in seen.columns],
        "size": [_known(column.size, units.size) for column in seen.columns],
        "depth": [_known(column.depth, lambda depth: f"{depth:,.1f}") for column in seen.columns],
    }
    names = [name for name, texts in cells.items() if any(texts)]
    lines = tuple(Line(texts) for texts in zip(*(cells[name] for name in names), strict=True))
    return PageTable("columns", tuple(names), lines, frozenset({"nulls", "size", "depth"}))


def _stored_type(column: ColumnFacts, files: int) -> str:
    shown = units.printable(str(column.type))
    if not column.int96_files:
        return shown
    some = "" if column.int96_files == files else f" in {units.counted(column.int96_files, 'file')}"
    return f"{shown} (INT96{some})"


def _known(value: Any, shown: Any) -> str:
    return "" if value is None else str(shown(value))
