"""What there is to say about a value: facts, tables and notes in words; text and html lay them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from intarsia.core.files import Snapshot
from intarsia.core.inspection import ColumnFacts, Inspection, PartitionFacts
from intarsia.core.intent import Intent, Merge, Optimize, Write
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.report import MergeResult
from intarsia.show import tiles, units
from intarsia.show.tiles import Drawable, Kind

MOST_FILES = 20
"""Up to here a table has a line for each file; beyond, one for each action and reason."""


@dataclass(frozen=True, slots=True)
class Item:
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
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a table; ``kind`` lends it the colour of its tiles."""

    cells: tuple[str, ...]
    kind: Kind | None = None


@dataclass(frozen=True, slots=True)
class Table:
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
    tables: tuple[Table, ...]
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


def _facts(*facts: tuple[str, Iterable[Item]]) -> tuple[Fact, ...]:
    made = (Fact(label, tuple(items)) for label, items in facts)
    return tuple(fact for fact in made if fact.items)


def _words(*texts: str) -> list[Item]:
    return [Item(units.printable(text)) for text in texts if text]


def _notes(notes: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(units.printable(" ".join(note.split())) for note in notes))


# Plans


def _plan_page(plan: Plan, most_files: int) -> Page:
    return Page(
        title_of(plan.intent),
        units.printable(plan.snapshot.root),
        "plan, rows not matched yet" if _is_open(plan) else "plan, nothing written",
        _facts(
            ("source", [Item(units.count(plan.source_rows), "rows")] if _has_source(plan.intent) else []),
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


def _plan_files(plan: Plan) -> list[Item]:
    outputs = plan.new_files if plan.new_files_exact else sum(group.outputs for group in plan.groups)
    kept = plan.count("keep")
    found = [
        Item(units.count(kept), "kept", "kept"),
        _some(plan.count("scan"), "to look into", "open"),
        _some(plan.count("veil"), "with rows veiled", "rewritten"),
        Item(units.count(plan.count("rewrite")), "rewritten", "rewritten"),
        _some(plan.count("regroup"), "rewritten together", "regrouped"),
        Item(units.count(plan.count("remove")), "removed", "removed"),
        _some(outputs, "new", "new"),
    ]
    if not plan.new_files_exact and not outputs and (plan.inserted or plan.new_files):
        found.append(Item(f"at least {units.count(max(plan.new_files, 1))}", "new", "new"))
    return [item for item in found if item is not None]


def _some_veiled(result: MergeResult) -> list[Item]:
    found = _some(len(result.veiled_files), "with rows veiled", "rewritten")
    return [] if found is None else [found]


def _some(number: int, word: str, kind: Kind) -> Item | None:
    return Item(units.count(number), word, kind) if number else None


def _plan_rows(plan: Plan) -> list[Item]:
    if plan.matched:
        return _changes(plan.inserted, plan.updated, plan.deleted)
    return _words("counted once they are matched") if _is_open(plan) else []


def _changes(inserted: int, updated: int, deleted: int) -> list[Item]:
    return [
        Item(units.count(inserted), "inserted", "new" if inserted else None),
        Item(units.count(updated), "updated", "rewritten" if updated else None),
        Item(units.count(deleted), "deleted", "removed" if deleted else None),
    ]


def _is_open(plan: Plan) -> bool:
    """Whether it takes a look into files to know which of them are rewritten."""
    return not plan.matched and plan.count("scan") > 0


def _plan_bytes(plan: Plan) -> list[Item]:
    if _is_open(plan):
        most = plan.bytes_to_write + sum(entry.file.size for entry in plan.chosen("scan"))
        return [
            Item(units.size(plan.bytes_to_read), "to read first"),
            Item(f"at most {units.size(most)}", "to rewrite then"),
        ]
    search = f" ({units.size(plan.bytes_to_scan)} of it to find the rows)" if plan.bytes_to_scan else ""
    about = "" if plan.bytes_exact else "about "
    return [
        Item(units.size(plan.bytes_to_read), f"to read{search}"),
        Item(f"{about}{units.size(plan.bytes_to_write)}", "to write"),
    ]


_ACTIONS = {
    "keep": "kept",
    "scan": "look into",
    "rewrite": "rewritten",
    "veil": "rows veiled",
    "remove": "removed",
}
_NUMBERS = frozenset({"files", "rows", "size", "hits"})


def _plan_table(plan: Plan, most_files: int) -> Table:
    if len(plan.files) <= most_files:
        lines = [_plan_line(units.printable(entry.file.path), [entry]) for entry in plan.files]
        return Table("files", ("file", "action", "why", "rows", "size", "hits"), tuple(lines), _NUMBERS)
    groups: dict[tuple[Kind, str, str], list[FilePlan]] = {}
    for entry in plan.files:
        groups.setdefault((tiles.kind_of(entry), entry.action, entry.reason), []).append(entry)
    # What changes is what people look for: it comes first.
    order = {kind: -number for number, kind in enumerate(tiles.LEGEND)}
    ordered = sorted(groups.items(), key=lambda item: (order[item[0][0]], -len(item[1]), item[0][2]))
    lines = [_plan_line(units.count(len(entries)), entries) for _, entries in ordered]
    return Table("files", ("files", "action", "why", "rows", "size", "hits"), tuple(lines), _NUMBERS)


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
            ("source", [Item(units.count(result.source_count), "rows")] if result.source_count else []),
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


def _totals(result: MergeResult) -> list[Item]:
    return [
        Item(units.count(result.target_count_before), "before"),
        Item(units.count(result.target_count_after), "after"),
    ]


def _result_files(result: MergeResult) -> list[Item]:
    new = result.new_files if result.dry_run else len(result.inserted_files)
    least = "" if result.new_files_exact else "at least "
    return [
        *_some_veiled(result),
        Item(units.count(len(result.rewritten_files)), "rewritten", "rewritten"),
        Item(f"{least}{units.count(new)}", "new", "new"),
        Item(units.count(len(result.removed_files)), "removed", "removed"),
        Item(units.count(len(result.preserved_files)), "untouched", "kept"),
    ]


def _result_bytes(result: MergeResult) -> list[Item]:
    about = "" if result.bytes_exact else "about "
    return [
        Item(units.size(result.bytes_read), "read"),
        Item(f"{about}{units.size(result.bytes_written)}", "written"),
    ]


def _time(result: MergeResult) -> list[Item]:
    if result.seconds <= 0:
        return []
    source = result.source_count > 0
    number = result.source_count if source else result.target_count_before
    speed = Item(units.rate(number, result.seconds), "source rows/s" if source else "rows/s")
    return [Item(units.seconds(result.seconds)), *([speed] if number else [])]


def _commit(result: MergeResult) -> list[Item]:
    if result.dry_run or result.version is None:
        return []
    attempts = [Item(units.count(result.attempts), "attempts")] if result.attempts > 1 else []
    return [Item("version", units.count(result.version)), *attempts, *_words(result.txid or "")]


def _result_table(result: MergeResult, most_files: int) -> Table:
    rows = tiles.rows_of(result)
    found = [tile for row in rows for tile in row.tiles]
    if len(found) <= most_files:
        lines = [_tile_line(tile.title, [tile]) for tile in found]
        return Table("files", ("file", "what", "why", "rows", "size"), tuple(lines), _NUMBERS)
    groups: dict[tuple[Kind, str, str], list[tiles.Tile]] = {}
    for tile in found:
        groups.setdefault((tile.kind, tile.reason, tile.word), []).append(tile)
    order = {kind: -number for number, kind in enumerate(tiles.LEGEND)}
    ordered = sorted(groups.items(), key=lambda item: (order[item[0][0]], -len(item[1]), item[0][1]))
    lines = [_tile_line(units.count(len(alike)), alike) for _, alike in ordered]
    return Table("files", ("files", "what", "why", "rows", "size"), tuple(lines), _NUMBERS)


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
            ("rows", [Item(units.count(snapshot.rows))]),
            ("files", [Item(units.count(len(snapshot.files))), Item(units.size(snapshot.size))]),
            ("partitions", _words(", ".join(snapshot.partition_columns))),
            *_details(snapshot),
        ),
        (Table("columns", ("column", "type"), tuple(columns)),) if columns else (),
        _notes(snapshot.notes),
    )


def _details(snapshot: Snapshot) -> list[tuple[str, list[Item]]]:
    return [(word, [Item(units.printable(text)) for text in said]) for word, said in snapshot.details]


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
            ("rows", [Item(units.count(seen.rows))]),
            ("files", [Item(units.count(seen.files)), Item(units.size(seen.size)), *_average(seen)]),
            ("small files", [Item(units.count(seen.small_files), f"under {units.size(seen.small_bytes)}")]),
            ("row groups", _row_groups(seen) if seen.snapshot.spread is None else []),
            ("partitions", _partitions(seen)),
            *_details(seen.snapshot),
            ("compression", _words(", ".join(codec.lower() for codec in seen.codecs))),
            (
                "sorted by",
                [Item(units.printable(order), f"in {units.counted(n, 'file')}") for order, n in seen.sorting],
            ),
        ),
        (_column_table(seen),) if seen.columns else (),
        _notes(seen.notes),
    )


def _row_groups(seen: Inspection) -> list[Item]:
    unread = f"{units.counted(seen.unread, 'footer')} not read" if seen.unread else ""
    known = [Item(units.count(seen.row_groups))] if seen.unread < seen.files or not seen.files else []
    return [*known, *_words(unread)]


def _average(seen: Inspection) -> list[Item]:
    return [Item(units.size(seen.average_size), "on average")] if seen.files else []


def _partitions(seen: Inspection) -> list[Item]:
    if not seen.partitions or seen.biggest is None or seen.smallest is None:
        return []
    by = units.printable(", ".join(seen.snapshot.partition_columns))
    found = [Item(units.count(seen.partitions), f"by {by}" if by else "")]
    if seen.partitions > 1:
        found += [_partition("biggest", seen.biggest), _partition("smallest", seen.smallest)]
    return found


def _partition(word: str, part: PartitionFacts) -> Item:
    label = tiles.partition_label(part.partition)
    return Item(word, f"{label} ({units.counted(part.files, 'file')}, {units.size(part.size)})")


def _column_table(seen: Inspection) -> Table:
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
    return Table("columns", tuple(names), lines, frozenset({"nulls", "size", "depth"}))


def _stored_type(column: ColumnFacts, files: int) -> str:
    shown = units.printable(str(column.type))
    if not column.int96_files:
        return shown
    some = "" if column.int96_files == files else f" in {units.counted(column.int96_files, 'file')}"
    return f"{shown} (INT96{some})"


def _known(value: Any, shown: Any) -> str:
    return "" if value is None else str(shown(value))
