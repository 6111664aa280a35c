"""Numbers, sizes, durations and names formatted for people."""

from __future__ import annotations

import unicodedata

_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


def format_number(number: int) -> str:
    """``3412`` is ``3,412``."""
    return f"{number:,}"


def format_count(number: int, noun: str) -> str:
    """``1 file``, ``3,412 files``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_size(number: int | None) -> str:
    """Bytes in powers of a thousand: ``999 B``, ``1.2 MB``, ``123 MB``; ``?`` when not known."""
    if number is None:
        return "?"
    amount = float(number)
    for unit in _DECIMAL:
        # 999.95 would be shown as 1000.0; it belongs to the next unit.
        limit = 1000 if unit == "B" else 999.5
        if abs(amount) < limit or unit == _DECIMAL[-1]:
            break
        amount /= 1000
    if unit == "B":
        return f"{int(amount)} B"
    return f"{amount:.1f} {unit}" if abs(amount) < 99.95 else f"{amount:.0f} {unit}"


def format_seconds(number: float) -> str:
    """``12 ms``, ``0.84 s``, ``12.3 s``, ``2 min 05 s``, ``1 h 02 min``."""
    if number < 0.0995:
        return f"{number * 1000:.0f} ms" if number >= 0.0095 else f"{number * 1000:.1f} ms"
    if number < 9.995:
        return f"{number:.2f} s"
    if number < 59.95:
        return f"{number:.1f} s"
    whole = round(number)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(number / 60)
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def format_rate(number: int, elapsed: float) -> str:
    """Per second: ``4,062``, ``1.2 million``; empty when no time has passed."""
    if elapsed <= 0:
        return ""
    each = number / elapsed
    return f"{each / 1e6:,.1f} million" if each >= 999_999.5 else f"{each:,.0f}"


def format_percent(fraction: float) -> str:
    """``0 %`` and ``100 %`` only when it is exactly that."""
    if 0 < fraction < 0.001:
        return "< 0.1 %"
    if 0.999 < fraction < 1:
        return "> 99.9 %"
    return f"{fraction * 100:.1f} %" if fraction not in (0, 1) else f"{fraction * 100:.0f} %"


def make_printable(text: str) -> str:
    """The text with every character escaped that could control a terminal or break a line or a page.

    Control characters, direction marks and undecodable bytes of file names show as escapes.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def measure_width(text: str) -> int:
    """How many terminal columns the text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def elide(text: str, width: int, *, mark: str = "…") -> str:
    """The text in at most ``width`` columns; the middle is left out, since names differ at both ends."""
    if measure_width(text) <= width:
        return text
    room = max(width - len(mark), 0)
    left = room * 3 // 5
    head, tail = _cut_to_width(text, left), _cut_to_width(text[::-1], room - left)[::-1]
    return (head + mark + tail)[: max(width, 0)]


def _cut_to_width(text: str, width: int) -> str:
    """The longest prefix of the text that fits."""
    if text.isascii():
        return text[:width]
    used = 0
    for position, character in enumerate(text):
        used += measure_width(character)
        if used > width:
            return text[:position]
    return text


def pad(text: str, width: int, *, right: bool = False) -> str:
    """The text filled up with spaces to ``width`` columns."""
    fill = " " * max(width - measure_width(text), 0)
    return fill + text if right else text + fill
