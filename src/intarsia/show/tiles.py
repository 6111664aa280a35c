"""The tiles of a file layout, one row per partition; svg.py and text.py draw them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal
from urllib.parse import unquote

from intarsia.core.inspection import Inspection
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.report import MergeFileMetadata, MergeResult
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.show import units

Kind = Literal["kept", "scanned", "open", "rewritten", "regrouped", "removed", "new"]
Drawable = Plan | MergeResult | Snapshot | Inspection

LEGEND: Mapping[Kind, str] = {
    "kept": "kept",
    "scanned": "looked into, kept",
    "open": "to look into",
    "rewritten": "rewritten",
    "regrouped": "rewritten together",
    "removed": "removed",
    "new": "new",
}
"""Every kind of tile in the order of rows and legends, with its words."""

QUIET = 24
"""Maximum tiles for a run of partitions in which nothing happens."""

_ORDER = {kind: number for number, kind in enumerate(LEGEND)}
_OF_REPORT: Mapping[str, Kind] = {
    "rewritten": "rewritten",
    "with_deletes": "rewritten",
    "inserted": "new",
    "preserved": "kept",
    "removed": "removed",
}
_WHOLE = "all files"


@dataclass(frozen=True, slots=True)
class Tile:
    """One file, or several of one kind drawn as one; 0 files: the number is not known yet."""

    kind: Kind
    title: str
    rows: int
    size: int
    reason: str = ""
    files: int = 1
    position_deletes: bool = False
    """Whether the file stays and gets a delete file; it is drawn as a rewritten one."""

    @property
    def word(self) -> str:
        """Its kind in words, for a table."""
        return "with deletes" if self.position_deletes else LEGEND[self.kind]


@dataclass(frozen=True, slots=True)
class TileRow:
    """The tiles of one partition, or of several that are shown as one."""

    label: str
    tiles: tuple[Tile, ...]
    partitions: int = 1

    @property
    def files(self) -> int:
        return sum(tile.files for tile in self.tiles)

    @property
    def size(self) -> int:
        return sum(tile.size for tile in self.tiles)

    @property
    def quiet(self) -> bool:
        return all(tile.kind == "kept" for tile in self.tiles)


def choose_kind(plan: FilePlan) -> Kind:
    """The kind of tile for a file of a plan."""
    match plan.action:
        case "keep":
            return "scanned" if plan.scanned else "kept"
        case "scan":
            return "open"
        case "rewrite" | "add_deletes":
            return "rewritten"
        case "regroup":
            return "regrouped"
        case "remove":
            return "removed"


def make_rows(value: Drawable) -> tuple[TileRow, ...]:
    """Every file as a tile, partitions in natural order."""
    grouped: dict[str, list[Tile]] = {}
    for label, tile in _label_tiles(value):
        grouped.setdefault(label, []).append(tile)
    return tuple(TileRow(label, tuple(grouped[label])) for label in sorted(grouped, key=_make_natural_key))


def fold_rows(rows: Sequence[TileRow], *, most_rows: int, most_tiles: int) -> tuple[TileRow, ...]:
    """At most ``most_rows`` rows and about ``most_tiles`` tiles; no file is lost, no kind hidden.

    Neighbouring partitions in which nothing happens become one row first, then any neighbours; then
    neighbouring files of one kind become one tile.
    """
    result = list(rows)
    # With one kind of tile there is nothing to set off: all rows alike is the better picture.
    if len(result) > most_rows and not all(row.quiet for row in result):
        result = _fold_quiet(result)
    if len(result) > most_rows:
        step = -(-len(result) // most_rows)
        result = [_join_rows(result[at : at + step]) for at in range(0, len(result), step)]
    total = sum(len(row.tiles) for row in result)
    return thin_rows(result, -(-total // most_tiles)) if total > most_tiles else tuple(result)


def thin_rows(rows: Iterable[TileRow], step: int) -> tuple[TileRow, ...]:
    """Up to ``step`` neighbouring files of one kind as one tile."""
    if step <= 1:
        return tuple(rows)
    return tuple(TileRow(row.label, _thin_tiles(row.tiles, step), row.partitions) for row in rows)


def count_kinds(rows: Iterable[TileRow]) -> list[tuple[Kind, int]]:
    """The kinds that occur, with the number of files of each, in the order of the legend."""
    counts: dict[Kind, int] = {}
    for row in rows:
        for tile in row.tiles:
            counts[tile.kind] = counts.get(tile.kind, 0) + tile.files
    return sorted(counts.items(), key=lambda item: _ORDER[item[0]])


def make_legend(kind: Kind, files: int) -> str:
    """The legend of a kind, with the number of its files if known."""
    return f"{LEGEND[kind]} {units.format_number(files)}" if files else LEGEND[kind]


def count_files_per_tile(rows: Iterable[TileRow]) -> int:
    return max((tile.files for row in rows for tile in row.tiles), default=0)


def make_partition_label(partition: Mapping[str, Any], path: str = "") -> str:
    """``day=2025-01-03, region=eu``; without known values the directory, or a word for the root."""
    if partition:
        parts = [f"{name}={'NULL' if value is None else value}" for name, value in partition.items()]
        return units.make_printable(", ".join(parts))
    directory = path.rpartition("/")[0]
    if "://" in directory:  # of files named in full only the partition tells something
        directory = "/".join(part for part in directory.split("/") if "=" in part)
    if "=" in directory:
        directory = ", ".join(unquote(part) for part in directory.split("/"))
    return units.make_printable(directory) or _WHOLE


def _label_tiles(value: Drawable) -> list[tuple[str, Tile]]:
    match value:
        case Plan():
            return _make_plan_tiles(value)
        case MergeResult():
            return _make_result_tiles(value)
        case Inspection():
            return _make_snapshot_tiles(value.snapshot)
        case Snapshot():
            return _make_snapshot_tiles(value)


def _make_plan_tiles(plan: Plan) -> list[tuple[str, Tile]]:
    found = []
    for entry in plan.files:
        found.append(
            (_make_label(entry.file, plan.snapshot), _make_tile(entry.file, choose_kind(entry), entry.reason))
        )
    for group in plan.groups:
        label = (
            _make_label(group.files[0], plan.snapshot)
            if group.files
            else make_partition_label(group.partition)
        )
        outputs = max(group.outputs, 1)
        for number in range(outputs):
            rows, size = (
                _compute_share(group.rows, number, outputs),
                _compute_share(group.size, number, outputs),
            )
            found.append((label, Tile("new", "a new file", rows, size, "about this size")))
    if plan.inserted and not plan.groups:
        # The plan does not know which partitions the new rows go to, nor in how many files.
        tile = Tile("new", "new files", plan.inserted, plan.insert_bytes, "rows inserted", files=0)
        found.append(("new rows" if found else _WHOLE, tile))
    return found


def _make_snapshot_tiles(snapshot: Snapshot) -> list[tuple[str, Tile]]:
    return [(_make_label(file, snapshot), _make_tile(file, "kept", "")) for file in snapshot.files]


def _make_result_tiles(result: MergeResult) -> list[tuple[str, Tile]]:
    plans = {}
    if result.plan is not None:
        plans = {result.plan.snapshot.show_path(entry.file): entry for entry in result.plan.files}
    return [_make_result_tile(result, entry, plans.get(entry.path)) for entry in result.files]


def _make_result_tile(
    result: MergeResult, entry: MergeFileMetadata, plan: FilePlan | None
) -> tuple[str, Tile]:
    kind = _OF_REPORT[entry.operation]
    if plan is not None and plan.scanned and kind == "kept":
        kind = "scanned"
    if plan is not None and plan.action == "regroup":
        kind = "regrouped"
    path = entry.path.removeprefix(result.path.rstrip("/") + "/") if result.path else entry.path
    reason = plan.reason if plan is not None else ""
    tile = Tile(
        kind,
        units.make_printable(path),
        entry.row_count,
        entry.size_bytes or 0,
        units.make_printable(reason),
        position_deletes=entry.operation == "with_deletes",
    )
    if plan is None or result.plan is None:
        return make_partition_label({}, path), tile
    return _make_label(plan.file, result.plan.snapshot), tile


def _make_label(file: DataFile, snapshot: Snapshot) -> str:
    if snapshot.format.owns_schema:
        return make_partition_label(snapshot.partitioner.partition_of(file).values, "")
    return make_partition_label(file.partition, file.path)


def _make_tile(file: DataFile, kind: Kind, reason: str) -> Tile:
    return Tile(kind, units.make_printable(file.path), file.rows, file.size, units.make_printable(reason))


def _compute_share(total: int, number: int, parts: int) -> int:
    return total * (number + 1) // parts - total * number // parts


def _make_natural_key(label: str) -> tuple[Any, ...]:
    """``part=9`` before ``part=10``; ties by the text itself."""
    pieces = re.split(r"(\d+)", label)
    key = tuple((1, int(p), "") if p.isdecimal() and p.isascii() else (0, 0, p) for p in pieces)
    return key, label


def _fold_quiet(rows: Sequence[TileRow]) -> list[TileRow]:
    result: list[TileRow] = []
    quiet: Callable[[TileRow], bool] = lambda row: row.quiet  # noqa: E731
    for is_quiet, run in groupby(rows, key=quiet):
        together = list(run)
        if is_quiet and len(together) > 2:
            joined = _join_rows(together)
            result.append(
                TileRow(joined.label, _thin_tiles(joined.tiles, -(-joined.files // QUIET)), joined.partitions)
            )
        else:
            result.extend(together)
    return result


def _join_rows(rows: Sequence[TileRow]) -> TileRow:
    if len(rows) == 1:
        return rows[0]
    tiles = sorted((tile for row in rows for tile in row.tiles), key=lambda tile: _ORDER[tile.kind])
    number = sum(row.partitions for row in rows)
    first, last = rows[0].label.partition(" … ")[0], rows[-1].label.rpartition(" … ")[2]
    return TileRow(f"{first} … {last}", tuple(tiles), number)


def _thin_tiles(tiles: Sequence[Tile], step: int) -> tuple[Tile, ...]:
    """Join up to ``step`` tiles of one kind into one; kinds are in the order of the legend."""
    result = []
    for kind in LEGEND:
        alike = [tile for tile in tiles if tile.kind == kind]
        result += [_join_tiles(alike[at : at + step]) for at in range(0, len(alike), step)]
    return tuple(result)


def _join_tiles(tiles: Sequence[Tile]) -> Tile:
    if len(tiles) == 1:
        return tiles[0]
    files = sum(tile.files for tile in tiles)
    reasons = list(dict.fromkeys(tile.reason for tile in tiles if tile.reason))
    more = f" and {len(reasons) - 2} more reasons" if len(reasons) > 2 else ""
    return Tile(
        tiles[0].kind,
        units.format_count(files, "file"),
        sum(tile.rows for tile in tiles),
        sum(tile.size for tile in tiles),
        "; ".join(reasons[:2]) + more,
        files,
    )
