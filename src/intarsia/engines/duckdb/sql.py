"""Names, texts and paths as DuckDB's SQL takes them; everything that comes from outside goes through here."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["FILE", "POS", "SRC", "quote", "quote_all", "quote_list", "quote_path", "quote_text"]

FILE, POS, SRC = "~file", "~pos", "~src"
"""Columns of our own beside those of a dataset: the file's number, the row's place in it, the source row."""

_WILD = frozenset("*?[")


def quote(identifier: str) -> str:
    """A name of a column or a table."""
    return '"' + identifier.replace('"', '""') + '"'


def quote_all(identifiers: Iterable[str], of: str | None = None) -> str:
    """Some columns with commas between them, of one table if that is named."""
    before = "" if of is None else f"{of}."
    return ", ".join(before + quote(identifier) for identifier in identifiers)


def quote_text(value: str) -> str:
    """A text."""
    return "'" + value.replace("'", "''") + "'"


def quote_path(location: str) -> str:
    """Exactly this file, whatever its name holds: none of its characters stands for others."""
    return quote_text("".join(f"[{c}]" if c in _WILD else c for c in location))


def quote_list(values: Iterable[str]) -> str:
    """A list of expressions."""
    return f"[{', '.join(values)}]"
