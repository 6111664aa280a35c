"""Pictures as self-contained SVG: the layout of files, and the ranges of a column in them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from html import escape
from typing import Any

from intarsia.core.inspection import FileRange, Inspection, compute_depth
from intarsia.core.plan import Plan
from intarsia.core.report import MergeResult
from intarsia.core.snapshot import Snapshot
from intarsia.show import page, tiles, units
from intarsia.show.tiles import Drawable, Kind

WIDTH = 860
_PAD, _TILE, _GAP, _LINE = 18, 16, 2, 20
_NAME = "\x00"
"""Placeholder for the picture's own id, until that is known; occurs in no text that is shown."""
_LETTER = 6.3
"""Approximate width of a letter at 11 px, for shortening labels."""
_CLASSES: dict[Kind, str] = {
    "kept": "k",
    "scanned": "s",
    "open": "o",
    "rewritten": "w",
    "regrouped": "w",
    "removed": "r",
    "new": "n",
}
_STYLE = """
.intarsia-svg{font:11px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}
.intarsia-svg .bg{fill:#ffffff}.intarsia-svg text{fill:#3b4754}
.intarsia-svg .h{font-size:13px;font-weight:600}
.intarsia-svg .q{fill:#76828f}.intarsia-svg .ln{stroke:#e4e9ee;stroke-width:1}
.intarsia-svg .k{fill:#c3d0de}.intarsia-svg .w{fill:#eda21b}.intarsia-svg .n{fill:#35a06a}
.intarsia-svg .r{fill:#fbe3e0;stroke:#d0453a;stroke-width:1.4}
.intarsia-svg .s{stroke:#b4c4d5;stroke-width:1}.intarsia-svg .o{stroke:#e2b65a;stroke-width:1}
.intarsia-svg .sf{fill:#f1f5f9}.intarsia-svg .sl{stroke:#a9bccf;stroke-width:1.6}
.intarsia-svg .of{fill:#fdf5e2}.intarsia-svg .ol{stroke:#e8bd62;stroke-width:1.6}
@media (prefers-color-scheme:dark){
.intarsia-svg .bg{fill:#14191f}.intarsia-svg text{fill:#d3dbe4}.intarsia-svg .q{fill:#8b98a6}
.intarsia-svg .ln{stroke:#28313b}
.intarsia-svg .k{fill:#46566a}.intarsia-svg .w{fill:#e0991c}.intarsia-svg .n{fill:#3fae76}
.intarsia-svg .r{fill:#3a1d1c;stroke:#e5695f}
.intarsia-svg .s{stroke:#52657a}.intarsia-svg .o{stroke:#96742c}
.intarsia-svg .sf{fill:#1d252e}.intarsia-svg .sl{stroke:#5d7289}
.intarsia-svg .of{fill:#2c2412}.intarsia-svg .ol{stroke:#a37f33}
}
"""


def layout(
    value: Drawable,
    *,
    width: int = WIDTH,
    most_rows: int = 48,
    most_tiles: int = 800,
    heading: bool = True,
    all_rows: Sequence[tiles.TileRow] | None = None,
) -> str:
    """The layout of files: a row for each partition, a tile for each file, as wide as it is big.

    The colour says what happens to the file, the tooltip why. Beyond ``most_rows`` partitions and
    ``most_tiles`` files neighbours are drawn together, so that the picture stays small; the legend
    says so. The same value gives the same text. ``all_rows`` are those that ``make_rows`` gave for the value,
    where they are known.
    """
    all_rows = tiles.make_rows(value) if all_rows is None else all_rows
    rows = tiles.fold_rows(all_rows, most_rows=most_rows, most_tiles=most_tiles)
    drawing = _Drawing(width)
    title, path = _make_heading(value)
    if heading:
        drawing.add_heading(title, path)
    if rows:
        _draw_rows(drawing, rows)
        _draw_legend(drawing, rows, actions=isinstance(value, Plan | MergeResult))
    else:
        drawing.add_text(_PAD, drawing.y + 12, "no files", "q")
        drawing.y += _LINE
    return drawing.finish(f"{title}: {path}")


def key_ranges(
    ranges: Sequence[FileRange], *, column: str = "", width: int = WIDTH, most_lanes: int = 40
) -> str:
    """Bars from the smallest to the largest value of each file; bars that overlap lie on each other.

    A column along which the files are clustered is one flat line of bars, a scattered one a tall
    stack. With more bars than can be told apart, the picture is the height of that stack instead.
    Numbers, dates and times are to scale; other values stand in their order.
    """
    drawing = _Drawing(width)
    overlap = compute_depth(ranges)
    told = (
        f"{units.format_count(len(ranges), 'file')}, {overlap:.1f} deep on average"
        if overlap
        else "no ranges known"
    )
    drawing.add_heading(f"ranges of {units.make_printable(column)}" if column else "ranges", told)
    if ranges:
        _draw_ranges(drawing, ranges, most_lanes)
    return drawing.finish(f"ranges of {units.make_printable(column)}")


class _Drawing:
    """An SVG drawing built from top to bottom; ``y`` is where the next piece starts."""

    def __init__(self, width: int) -> None:
        self.width = max(width, 320)
        self.y = _PAD
        self._parts: list[str] = []

    def add_heading(self, title: str, rest: str) -> None:
        room = int((self.width - 2 * _PAD) / 7.4)
        title = units.elide(title, room)
        left = max(room - len(title) - 2, 0)
        tail = (
            f'<tspan class="q" font-weight="400" dx="8">{_escape(units.elide(rest, left))}</tspan>'
            if left
            else ""
        )
        self._parts.append(f'<text class="h" x="{_PAD}" y="{self.y + 11}">{_escape(title)}{tail}</text>')
        self.y += 28

    def add_text(
        self, x: float, y: float, text: str, css: str = "", *, end: bool = False, title: str = ""
    ) -> None:
        attributes = (f' class="{css}"' if css else "") + (' text-anchor="end"' if end else "")
        tip = f"<title>{_escape(title)}</title>" if title else ""
        self._parts.append(
            f'<text x="{_format_px(x)}" y="{_format_px(y)}"{attributes}>{_escape(text)}{tip}</text>'
        )

    def add_tile(
        self, x: float, y: float, width: float, css: str, *, title: str = "", height: float = _TILE
    ) -> None:
        tip = f"<title>{_escape(title)}</title>" if title else ""
        # An outline is drawn on the edge; half a pixel inwards keeps all tiles of one size.
        inset = 0.7 if css in ("r", "s", "o") else 0
        x, y, width, height = x + inset, y + inset, max(width - 2 * inset, 1), height - 2 * inset
        fill = f' fill="url(#{_NAME}{css})"' if css in ("s", "o") else ""
        self._parts.append(
            f'<rect class="{css}"{fill} x="{_format_px(x)}" y="{_format_px(y)}" width="{_format_px(width)}" '
            f'height="{_format_px(height)}" rx="2">{tip}</rect>'
        )

    def add_line(self, y: float) -> None:
        self._parts.append(
            f'<line class="ln" x1="{_PAD}" x2="{self.width - _PAD}"'
            f' y1="{_format_px(y)}" y2="{_format_px(y)}"/>'
        )

    def add_markup(self, markup: str) -> None:
        self._parts.append(markup)

    def finish(self, label: str) -> str:
        height = round(self.y + _PAD - 4)
        body = "\n".join(self._parts)
        # Names of patterns are shared by all pictures of a page: the content makes them unique.
        mark = f"intarsia-{zlib.crc32(body.encode()):08x}"
        hatches = "".join(_hatch(f"{mark}-{css}", css) for css in ("s", "o") if _NAME + css in body)
        defs = f"<defs>{hatches}</defs>" if hatches else ""
        return (
            f'<svg class="intarsia-svg" xmlns="http://www.w3.org/2000/svg" role="img" width="{self.width}" '
            f'height="{height}" viewBox="0 0 {self.width} {height}">'
            f"<title>{_escape(label)}</title><style>{_STYLE}</style>{defs}"
            f'<rect class="bg" width="{self.width}" height="{height}" rx="8"/>\n'
            f"{body.replace(_NAME, mark + '-')}\n</svg>"
        )


def _hatch(name: str, css: str) -> str:
    return (
        f'<pattern id="{name}" width="5" height="5" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect class="{css}f" width="5" height="5"/>'
        f'<line class="{css}l" x1="2.5" y1="0" x2="2.5" y2="5"/></pattern>'
    )


def _make_heading(value: Drawable) -> tuple[str, str]:
    match value:
        case Plan():
            return page.make_title(value.intent), units.make_printable(value.snapshot.root)
        case MergeResult():
            return page.make_page(value).title, units.make_printable(value.path)
        case Inspection() | Snapshot():
            snapshot = value if isinstance(value, Snapshot) else value.snapshot
            files = units.format_count(len(snapshot.files), "file")
            return f"{files}, {units.format_size(snapshot.size)}", units.make_printable(snapshot.root)


def _draw_rows(drawing: _Drawing, rows: Sequence[tiles.TileRow]) -> None:
    labels = [_make_row_label(row) for row in rows]
    left = min(max(len(label) for label in labels) * _LETTER + 14, drawing.width * 0.3)
    totals = [_make_row_total(row) for row in rows]
    right = max(len(text) for text in totals) * _LETTER * 0.95 + 10
    start, room = _PAD + left, drawing.width - 2 * _PAD - left - right
    scale = _scale(rows, room)
    for row, label, total in zip(rows, labels, totals, strict=True):
        shown = units.elide(label, int((left - 14) / _LETTER) + 1)
        drawing.add_text(_PAD, drawing.y + 12, shown, title=label if shown != label else "")
        drawing.add_text(drawing.width - _PAD, drawing.y + 12, total, "q", end=True)
        x = 0.0
        most = room / len(row.tiles) - _GAP if row.partitions > 1 else room
        for tile in row.tiles:
            width = min(max(tile.size * scale, 5.0), max(most, 5.0))
            if x and x + width > room + 0.01:
                x, drawing.y = 0.0, drawing.y + _TILE + _GAP
            drawing.add_tile(start + x, drawing.y, width, _CLASSES[tile.kind], title=_make_tooltip(tile))
            x += width + _GAP
        drawing.y += _LINE + 2


def _make_row_label(row: tiles.TileRow) -> str:
    return f"{row.label} ({units.format_number(row.partitions)})" if row.partitions > 1 else row.label


def _make_row_total(row: tiles.TileRow) -> str:
    files = f"{units.format_count(row.files, 'file')}, " if row.files else ""
    return files + units.format_size(row.size)


def _scale(rows: Sequence[tiles.TileRow], room: float) -> float:
    """Pixels per byte: rows of few tiles fit one line, many tiles wrap into about ten lines."""
    # Several partitions in one row are out of scale with single ones, and are made to fit.
    rows = [row for row in rows if row.partitions == 1] or rows
    number = sum(len(row.tiles) for row in rows)
    mean = sum(row.size for row in rows) / number
    if not mean:
        return 0.0
    if max(len(row.tiles) for row in rows) * (8 + _GAP) <= room:
        fitting = min((room - _GAP * len(row.tiles)) / row.size for row in rows if row.size)
        return min(fitting, 48 / mean)
    return min(max(room * 10 / number - _GAP, 10), 32) / mean


def _make_tooltip(tile: tiles.Tile) -> str:
    what = tiles.LEGEND[tile.kind] + (f": {tile.reason}" if tile.reason else "")
    lines = [
        units.elide(tile.title, 90),
        f"{units.format_count(tile.rows, 'row')}, {units.format_size(tile.size)}",
    ]
    return "\n".join([*lines, units.elide(what, 120)])


def _draw_legend(drawing: _Drawing, rows: Sequence[tiles.TileRow], *, actions: bool) -> None:
    drawing.y += 4
    drawing.add_line(drawing.y)
    drawing.y += 10
    x = float(_PAD)
    for kind, number in tiles.count_kinds(rows) if actions else []:
        text = tiles.make_legend(kind, number)
        needed = 20 + len(text) * _LETTER + 14
        if x > _PAD and x + needed > drawing.width - _PAD:
            x, drawing.y = float(_PAD), drawing.y + 18
        drawing.add_tile(x, drawing.y, 14, _CLASSES[kind], height=12)
        drawing.add_text(x + 20, drawing.y + 10, text)
        x += needed
    most = tiles.count_files_per_tile(rows)
    hint = (
        f"a tile is up to {units.format_number(most)} files, as wide as they are big"
        if most > 1
        else ("a tile is a file, as wide as it is big")
    )
    if x > _PAD and x + len(hint) * _LETTER > drawing.width - _PAD:
        drawing.y += 18
    drawing.add_text(drawing.width - _PAD, drawing.y + 10, hint, "q", end=True)
    drawing.y += 14


@dataclass(frozen=True, slots=True)
class _Bar:
    start: float
    stop: float
    title: str


def _draw_ranges(drawing: _Drawing, ranges: Sequence[FileRange], most_lanes: int) -> None:
    room = drawing.width - 2 * _PAD
    bars = _make_bars(ranges, room)
    lanes = _assign_lanes(bars)
    height = 9
    if len(bars) <= 600 and len(lanes) <= most_lanes:
        for lane in lanes:
            for bar in lane:
                drawing.add_tile(
                    _PAD + bar.start, drawing.y, bar.stop - bar.start, "k", title=bar.title, height=height
                )
            drawing.y += height + 2
    else:
        _draw_depth(drawing, bars, room)
    drawing.add_line(drawing.y + 3)
    drawing.y += 18
    lowest, highest = min(r.lower for r in ranges), max(r.upper for r in ranges)
    drawing.add_text(_PAD, drawing.y, units.elide(units.make_printable(str(lowest)), 50), "q")
    drawing.add_text(
        drawing.width - _PAD, drawing.y, units.elide(units.make_printable(str(highest)), 50), "q", end=True
    )


def _make_bars(ranges: Sequence[FileRange], room: float) -> list[_Bar]:
    ends = sorted({end for r in ranges for end in (r.lower, r.upper)})
    if all(isinstance(end, (bool, int, float, Decimal, date, datetime)) for end in ends):
        span = _measure_distance(ends[0], ends[-1])
        at = {end: _measure_distance(ends[0], end) / span if span else 0.0 for end in ends}
    else:
        at = {end: number / max(len(ends) - 1, 1) for number, end in enumerate(ends)}
    bars = []
    for r in sorted(ranges, key=lambda r: (r.lower, r.upper, r.path)):
        start = min(at[r.lower] * room, room - 2)
        limits = units.make_printable(f"{r.lower} .. {r.upper}")
        words = f"{units.elide(units.make_printable(r.path), 90)}\n{limits}"
        title = f"{words}\n{units.format_count(r.rows, 'row')}, {units.format_size(r.size)}"
        bars.append(_Bar(start, max(at[r.upper] * room, start + 2), title))
    return bars


def _measure_distance(start: Any, stop: Any) -> float:
    gap = stop - start
    return float(gap.total_seconds()) if hasattr(gap, "total_seconds") else float(gap)


def _assign_lanes(bars: Sequence[_Bar]) -> list[list[_Bar]]:
    """Put each bar into the first free lane; the number of lanes is the maximum overlap."""
    lanes: list[list[_Bar]] = []
    for bar in bars:
        for lane in lanes:
            if lane[-1].stop + 1 <= bar.start:
                lane.append(bar)
                break
        else:
            lanes.append([bar])
            if len(lanes) > 200:  # too many to draw, so no need to know how many more
                break
    return lanes


def _draw_depth(drawing: _Drawing, bars: Sequence[_Bar], room: float) -> None:
    """How many files cover each point, as a filled line."""
    steps = [0] * (int(room) + 2)
    for bar in bars:
        steps[int(bar.start)] += 1
        steps[min(int(bar.stop) + 1, len(steps) - 1)] -= 1
    covered, heights = 0, []
    for step in steps[:-1]:
        covered += step
        heights.append(covered)
    top, tall = max(heights), 120
    points = " ".join(
        f"H{_PAD + x}V{_format_px(drawing.y + 14 + tall - tall * n / top)}" for x, n in enumerate(heights)
    )
    base = drawing.y + 14 + tall
    drawing.add_text(_PAD, drawing.y + 8, f"up to {units.format_count(top, 'file')} deep", "q")
    drawing.add_markup(f'<path class="k" d="M{_PAD} {base}{points.replace(" ", "")}V{base}Z"/>')
    drawing.y = base


def _format_px(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _escape(text: str) -> str:
    return escape(text, quote=False)
