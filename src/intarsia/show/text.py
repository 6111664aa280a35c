"""Values as plain text for a terminal, and the layout of files as lines of blocks."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

from intarsia.core.history import History
from intarsia.show import tiles, units
from intarsia.show.page import Fact, Line, Page, PageTable, make_page
from intarsia.show.tiles import Drawable, Kind

WIDTH = 96
_BLOCKS: dict[Kind, str] = {
    "kept": "░",
    "scanned": "▒",
    "open": "▓",
    "rewritten": "█",
    "regrouped": "█",
    "removed": "×",
    "new": "+",
}
_ASCII: dict[Kind, str] = {
    "kept": ".",
    "scanned": ":",
    "open": "?",
    "rewritten": "#",
    "regrouped": "#",
    "removed": "x",
    "new": "+",
}
_COLORS: dict[Kind, str] = {
    "kept": "2",
    "scanned": "36",
    "open": "33",
    "rewritten": "33",
    "regrouped": "33",
    "removed": "31",
    "new": "32",
}


def render(
    value: Drawable | History, *, width: int = WIDTH, color: bool = False, unicode: bool | None = None
) -> str:
    """The value in words and numbers, in lines of at most ``width`` columns.

    Args:
        color: Colour by what happens to files; the caller knows whether a terminal reads along.
        unicode: False keeps to ASCII (names of the table's own excepted); None asks standard output.
    """
    style = _Style(width=max(width, 40), color=color, unicode=takes_unicode() if unicode is None else unicode)
    return style.render_page(make_page(value))


def layout(
    value: Drawable,
    *,
    width: int = WIDTH,
    most_rows: int = 40,
    color: bool = False,
    unicode: bool | None = None,
) -> str:
    """The files of each partition as a line of blocks, one per file, with a legend.

    Many partitions in which nothing happens become one line, many files one block; the legend says so.
    """
    style = _Style(width=max(width, 40), color=color, unicode=takes_unicode() if unicode is None else unicode)
    return style.render_layout(tiles.make_rows(value), most_rows)


def takes_unicode(stream: object = None) -> bool:
    """Whether a stream (standard output unless given) can carry the block characters."""
    encoding = getattr(sys.stdout if stream is None else stream, "encoding", None)
    try:
        "".join(_BLOCKS.values()).encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class _Style:
    """Width, characters and colours of the text."""

    def __init__(self, *, width: int, color: bool, unicode: bool) -> None:
        self.width = width
        self.color = color
        self.blocks = _BLOCKS if unicode else _ASCII
        self.between = " · " if unicode else " | "
        self.rule = "─" if unicode else "-"
        self.dots = "…" if unicode else "..."

    def render_page(self, page: Page) -> str:
        parts = [self._draw_head(page)]
        if page.facts:
            parts.append("\n".join(self._draw_facts(page.facts)))
        parts += ["\n".join(self._draw_table(table)) for table in page.tables]
        if page.notes:
            parts.append("\n".join(line for note in page.notes for line in self._note(note)))
        return "\n\n".join(parts)

    def render_layout(self, rows: Sequence[tiles.TileRow], most_rows: int) -> str:
        if not rows:
            return "no files"
        rows = tiles.fold_rows(rows, most_rows=most_rows, most_tiles=sys.maxsize)
        names = [self._make_row_label(row) for row in rows]
        room = min(max(map(units.measure_width, names)), self.width // 2)
        space = self.width - room - 2
        rows = _fit_rows(rows, space)
        lines = [
            f"{units.pad(units.elide(name, room, mark=self.dots), room)}  {self._draw_row_blocks(row)}"
            for name, row in zip(names, rows, strict=True)
        ]
        return "\n".join([*lines, "", *self._draw_legend(rows)])

    def _make_row_label(self, row: tiles.TileRow) -> str:
        label = row.label.replace("…", self.dots)
        return f"{label} ({units.format_number(row.partitions)})" if row.partitions > 1 else label

    def _draw_row_blocks(self, row: tiles.TileRow) -> str:
        return "".join(self._paint(self.blocks[tile.kind], tile.kind) for tile in row.tiles)

    def _draw_legend(self, rows: Sequence[tiles.TileRow]) -> list[str]:
        entries = [
            (kind, f"{self.blocks[kind]} {tiles.make_legend(kind, number)}")
            for kind, number in tiles.count_kinds(rows)
        ]
        lines = self._join(entries, "   ", self.width)
        most = tiles.count_files_per_tile(rows)
        return [*lines, f"one block is up to {units.format_number(most)} files"] if most > 1 else lines

    def _join(self, entries: Sequence[tuple[Kind | None, str]], glue: str, room: int) -> list[str]:
        """Entries joined into as many lines as they need."""
        lines: list[str] = []
        used = room + 1
        for kind, text in entries:
            taken = units.measure_width(text)
            if used + len(glue) + taken > room:
                lines.append(self._paint(text, kind))
                used = taken
            else:
                lines[-1] += glue + self._paint(text, kind)
                used += len(glue) + taken
        return lines

    def _draw_head(self, page: Page) -> str:
        mark = f"[{page.mark}]"
        used = units.measure_width(page.title) + units.measure_width(mark) + 4
        path = units.elide(page.path, max(self.width - used, 12), mark=self.dots)
        title = self._make_bold(page.title) + (f"  {path}" if path else "")
        return f"{title}  {mark}\n{self.rule * self.width}"

    def _draw_facts(self, facts: Sequence[Fact]) -> list[str]:
        room = max(units.measure_width(fact.label) for fact in facts) + 2
        lines = []
        for fact in facts:
            entries = [
                (item.kind, piece) for item in fact.items for piece in self._wrap_text(str(item), room)
            ]
            for number, line in enumerate(self._join(entries, self.between, self.width - room)):
                lines.append(units.pad("" if number else fact.label, room) + line)
        return lines

    def _wrap_text(self, text: str, room: int) -> list[str]:
        """Wrap a text that is too long for a line between words."""
        if units.measure_width(text) <= self.width - room:
            return [text]
        return textwrap.wrap(text, self.width - room)

    def _draw_table(self, table: PageTable) -> list[str]:
        table = _fill(table)
        columns = list(zip(table.columns, *(line.cells for line in table.lines), strict=True))
        widths = [max(map(units.measure_width, column)) for column in columns]
        widths = _shrink_widths(widths, self.width - 2 * (len(widths) - 1))
        heading = Line(table.columns)
        underline = "  ".join(self.rule * width for width in widths)
        lines = [self._draw_line(line, table, widths) for line in table.lines]
        return [self._make_bold(self._draw_line(heading, table, widths)), underline, *lines]

    def _draw_line(self, line: Line, table: PageTable, widths: Sequence[int]) -> str:
        cells = [
            units.pad(units.elide(cell, width, mark=self.dots), width, right=name in table.numbers)
            for name, cell, width in zip(table.columns, line.cells, widths, strict=True)
        ]
        return self._paint("  ".join(cells).rstrip(), line.kind)

    def _note(self, note: str) -> list[str]:
        return textwrap.wrap(note, self.width, initial_indent="note: ", subsequent_indent="      ")

    def _paint(self, text: str, kind: Kind | None) -> str:
        return f"\x1b[{_COLORS[kind]}m{text}\x1b[0m" if self.color and kind is not None else text

    def _make_bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.color else text


def _fit_rows(rows: Sequence[tiles.TileRow], space: int) -> tuple[tiles.TileRow, ...]:
    """The rows scaled alike so that the longest fits the width."""
    longest = max(len(row.tiles) for row in rows)
    if longest <= space:
        return tuple(rows)
    step = -(-longest // space)
    result = tiles.thin_rows(rows, step)
    # A rest of each kind takes a block, too; there are few kinds, so a few steps end this.
    while max(len(row.tiles) for row in result) > space:
        step += 1
        result = tiles.thin_rows(rows, step)
    return result


def _fill(table: PageTable) -> PageTable:
    """The table without empty columns: a terminal is narrow."""
    used = [number for number in range(len(table.columns)) if any(line.cells[number] for line in table.lines)]
    lines = tuple(Line(tuple(line.cells[number] for number in used), line.kind) for line in table.lines)
    columns = tuple(table.columns[number] for number in used)
    return PageTable(table.title, columns, lines, table.numbers, table.is_open)


def _shrink_widths(widths: Sequence[int], room: int) -> list[int]:
    """Column widths that fit the line; the widest are shortened first, to a readable minimum."""
    result = list(widths)
    while sum(result) > room and max(result) > 8:
        widest = max(result)
        result[result.index(widest)] -= 1
    return result
