"""Names, texts and paths as DuckDB's SQL takes them; everything that comes from outside goes through here."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["FILE", "POS", "SRC", "listed", "name", "named", "path", "text"]

FILE, POS, SRC = "~file", "~pos", "~src"
"""Columns of our own beside those of a dataset: the file's number, the row's place in it, the source row."""

_WILD = frozenset("*?[")


def name(identifier: str) -> str:
    """A name of a column or a table."""
    return '"' + identifier.replace('"', '""') + '"'


def named(identifiers: Iterable[str], of: str | None = None) -> str:
    """Some columns with commas between them, of one table if that is named."""
    before = "" if of is None else f"{of}."
    return ", ".join(before + name(identifier) for identifier in identifiers)


def text(value: str) -> str:
    """A text."""
    return "'" + value.replace("'", "''") + "'"


def path(location: str) -> str:
    """Exactly this file, whatever its name holds: none of its characters stands for others."""
    return text("".join(f"[{c}]" if c in _WILD else c for c in location))


def listed(values: Iterable[str]) -> str:
    """A list of expressions."""
    return f"[{', '.join(values)}]"
