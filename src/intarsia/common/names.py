"""Names in messages: suggestions for wrong ones, and lists that stay short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Any

import pyarrow as pa

from intarsia.errors import ColumnNotFound, InputError, SchemaMismatch

__all__ = [
    "CAST_IT",
    "check_columns",
    "elide",
    "find_near_names",
    "find_spelling",
    "join_names",
    "make_mismatch_error",
    "name_problems",
    "suggest_names",
]


_MOST = 12


def elide(value: Any, most: int = 60) -> str:
    """A value as an error shows it, the middle of a long one left out."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 4 :]}"


def find_near_names(name: str, names: Sequence[str]) -> list[str]:
    """The names that may have been meant: those that differ only by case, else those spelt alike."""
    import difflib  # only errors need it

    folded = [other for other in names if other.casefold() == name.casefold()]
    return folded or difflib.get_close_matches(name, names, n=3)


def join_names(names: Sequence[str]) -> str:
    """Names in quotes; of very many the first."""
    shown = ", ".join(map(repr, names[:_MOST]))
    return shown if len(names) <= _MOST else f"{shown} and {len(names) - _MOST:,} more"


def find_spelling(
    named: Iterable[str], names: Sequence[str], *, path: str | None = None, exact: Container[str] = ()
) -> tuple[str, ...]:
    """Names in the spelling that a schema has: as given, else the one that differs by case alone.

    Names that are not there stay as they are, and so do ``exact`` ones. Raises InputError where several
    columns differ by case alone and none is spelled as given.
    """
    return tuple(
        name if name in names or name in exact else _find_folded(name, names, path) for name in named
    )


def _find_folded(name: str, names: Sequence[str], path: str | None) -> str:
    found = [other for other in names if other.casefold() == name.casefold()]
    if len(found) > 1:
        raise InputError(
            f"column {name!r} could be any of {join_names(found)}.",
            path=path,
            hint="spell it as the column that is meant.",
        )
    return found[0] if found else name


def suggest_names(absent: Sequence[str], names: Sequence[str], *, otherwise: str | None = None) -> str:
    """What to write instead of names that are not there: near ones, a list, else what there is."""
    parts = [part.strip() for part in absent[0].split(",")]
    if len(absent) == 1 and len(parts) > 1 and set(parts) <= set(names):
        return f"several columns are given as a list: [{join_names(parts)}]."
    close = list(dict.fromkeys(near for name in absent for near in find_near_names(name, names)))
    if close:
        return f"did you mean {join_names(close)}?"
    return otherwise or (f"there is {join_names(names)}." if names else "there are none.")


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
        message = f"{what} {join_names(absent)} does not exist."
        raise ColumnNotFound(
            f"{operation}: {message}" if operation else message,
            path=path,
            hint=suggest_names(absent, names),
        )


CAST_IT = "cast the column of the source to the target's type"


def name_problems(schemas: Sequence[pa.Schema]) -> list[str]:
    """Names that are there twice in one schema, or that two schemas spell in different case."""
    spellings: dict[str, set[tuple[str, ...]]] = {}
    problems: dict[str, None] = {}
    for schema in schemas:
        counts = Counter(schema.names)
        problems |= {f"{name!r} is there {n} times": None for name, n in counts.items() if n > 1}
        folded: dict[str, list[str]] = {}
        for name in sorted(counts):
            folded.setdefault(name.casefold(), []).append(name)
        for key, names in folded.items():
            spellings.setdefault(key, set()).add(tuple(names))
    for variants in spellings.values():
        if len(variants) > 1:
            names = sorted({name for variant in variants for name in variant})
            problems[" and ".join(map(repr, names)) + " differ only by case, which is ambiguous"] = None
    return list(problems)


def make_mismatch_error(
    problems: Sequence[str], operation: str, path: str | None, hint: str
) -> SchemaMismatch:
    """One error, to be raised, that lists all problems."""
    where = f" at {path}" if path else ""
    columns = "1 column does" if len(problems) == 1 else f"{len(problems)} columns do"
    message = f"{operation}: {columns} not fit{where}: {'; '.join(problems)}."
    return SchemaMismatch(message, path=path, hint=hint)
