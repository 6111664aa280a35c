"""Names in messages: those that come near a wrong one, and lists that stay short."""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterable, Sequence
from typing import Any

from intarsia.errors import ColumnNotFound, InputError

__all__ = ["check_columns", "elided", "listed_names", "near_names", "spelled_as", "suggestion"]

_MOST = 12


def elided(value: Any, most: int = 60) -> str:
    """A value as an error shows it, the middle of a long one left out."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 4 :]}"


def near_names(name: str, names: Sequence[str]) -> list[str]:
    """The names that may have been meant: those that differ only by case, else those spelt alike."""
    folded = [other for other in names if other.casefold() == name.casefold()]
    return folded or difflib.get_close_matches(name, names, n=3)


def listed_names(names: Sequence[str]) -> str:
    """Names in quotes; of very many the first."""
    shown = ", ".join(map(repr, names[:_MOST]))
    return shown if len(names) <= _MOST else f"{shown} and {len(names) - _MOST:,} more"


def spelled_as(
    named: Iterable[str], names: Sequence[str], *, path: str | None = None, exact: Container[str] = ()
) -> tuple[str, ...]:
    """Names in the spelling that a schema has: as given, else the one that differs by case alone.

    Names that are not there stay as they are, and so do ``exact`` ones. Raises InputError where several
    columns differ by case alone and none is spelled as given.
    """
    return tuple(name if name in names or name in exact else _folded(name, names, path) for name in named)


def _folded(name: str, names: Sequence[str], path: str | None) -> str:
    found = [other for other in names if other.casefold() == name.casefold()]
    if len(found) > 1:
        raise InputError(
            f"column {name!r} could be any of {listed_names(found)}.",
            path=path,
            hint="spell it as the column that is meant.",
        )
    return found[0] if found else name


def suggestion(absent: Sequence[str], names: Sequence[str], *, otherwise: str | None = None) -> str:
    """What to write instead of names that are not there: near ones, a list, else what there is."""
    parts = [part.strip() for part in absent[0].split(",")]
    if len(absent) == 1 and len(parts) > 1 and set(parts) <= set(names):
        return f"several columns are given as a list: [{listed_names(parts)}]."
    close = list(dict.fromkeys(near for name in absent for near in near_names(name, names)))
    if close:
        return f"did you mean {listed_names(close)}?"
    return otherwise or (f"there is {listed_names(names)}." if names else "there are none.")


def check_columns(
    named: Iterable[str],
    names: Sequence[str],
    *,
    operation: str | None = None,
    path: str | None = None,
    what: str = "column",
) -> None:
    """Raise ColumnNotFound where some of the columns that were named are not there."""
    known = set(names)
    absent = [name for name in named if name not in known]
    if absent:
        told = f"{what} {listed_names(absent)} does not exist."
        raise ColumnNotFound(
            f"{operation}: {told}" if operation else told,
            path=path,
            hint=suggestion(absent, names),
        )
