"""The lines of a pipeline file where its sources, targets and steps are declared, for errors about them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from intarsia.errors import DamagedTable, InputError, IntarsiaError, NothingMatched, NotSupported

__all__ = ["add_line", "complete_place", "find_toml_lines"]

_TEXT = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|'
    r"'''.*?'{3,5}|"
    r'"(?:\\.|[^"\\\n])*"|'
    r"'[^'\n]*'|"
    r"#[^\n]*",
    re.DOTALL,
)
_HEADER = re.compile(r"\s*(\[{1,2})\s*([\w.\s-]+?)\s*\]")
_KEY = re.compile(r"\s*([\w-]+(?:\s*\.\s*[\w-]+)*)\s*=(.*)", re.DOTALL)
_PLACE = re.compile(r"(\[\[steps\]\] \d+|\[[a-z]+(?:\.[^\]]+)?\])( \w+)?")
_QUERY_LINE = re.compile(r": line (\d+): ")


def find_toml_lines(text: str, env: str | None = None) -> dict[str, int]:
    """By place, as in ``[sources.orders]`` and ``[sources.orders] sql``: the line of a valid TOML text.

    Of a text with several lines, that of its first one. What an environment overrides is where that says it.
    Names in quotes, and what is within inline tables, have no line of their own.
    """
    lines: dict[str, int] = {}
    overrides: dict[str, int] = {}
    table: tuple[str, ...] = ()
    steps = depth = 0
    originals = text.split("\n")
    for number, line in enumerate(_TEXT.sub(_blank, text).split("\n"), 1):
        within, depth = depth, max(0, depth + _count_brackets(line))
        if within:
            continue
        if header := _HEADER.match(line):
            table, depth = _split(header[2]), 0
            if header[1] == "[[" and table == ("steps",):
                steps += 1
                table = ("steps", str(steps))
            path = table
        elif key := _KEY.match(line):
            path = (*table, *_split(key[1]))
            number += bool(re.search(r"=\s*(\"\"\"|''')\r?$", originals[number - 1]))
        else:
            continue
        own, chosen = (path[2:], overrides) if path[:1] == ("env",) else (path, lines)
        if path[:1] == ("env",) and len(path) > 1:
            for place in (f"[env.{path[1]}]", " ".join((f"[env.{path[1]}]", *path[2:3]))):
                lines.setdefault(place, number)
        if path[:1] != ("env",) or path[1:2] == (env,):
            for place in _name_places(own):
                chosen.setdefault(place, number)
    return {**lines, **overrides}


@contextmanager
def add_line(lines: Mapping[str, int], origin: str | None) -> Iterator[None]:
    """Add the line of a declaration to an error that begins with the file and the place."""
    try:
        yield
    except (InputError, NotSupported, NothingMatched, DamagedTable) as error:
        start = f"{origin}, "
        met = _PLACE.match(error.message, len(start)) if error.message.startswith(start) else None
        if met is None:
            raise
        line, rest = lines.get(met[0], lines.get(met[1])), error.message[len(start) :]
        if line is None:
            raise
        found = _QUERY_LINE.match(error.message, met.end())
        if found is not None and met[0] in lines and met[0].endswith(" sql"):
            line = line + int(found[1]) - 1
            rest = f"{met[0]}: {error.message[found.end() :]}"
        raise type(error)(f"{start}line {line}, {rest}", path=error.path, hint=error.hint) from error


def complete_place(error: IntarsiaError, lines: Mapping[str, int], origin: str | None) -> None:
    """Add the file and the line to an error of a run that begins with a place, as in ``[sources.orders]``."""
    met = _PLACE.match(error.message)
    if met is None or origin is None:
        return
    line = lines.get(met[0], lines.get(met[1]))
    where = "" if line is None else f", line {line}"
    error.message = f"{os.path.basename(origin)}{where}, {error.message}"
    error.args = (error.message, *error.args[1:])


def _blank(met: re.Match[str]) -> str:
    """A text or comment without what it says, on as many lines."""
    return '""' + "\n" * met[0].count("\n")


def _count_brackets(line: str) -> int:
    return sum(line.count(one) for one in "[{") - sum(line.count(one) for one in "]}")


def _split(path: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in path.split("."))


def _name_places(path: tuple[str, ...]) -> Iterator[str]:
    """What errors call a path of keys: the table that it is in, and its key there."""
    if path[:1] == ("steps",) and len(path) > 1 and path[1].isdigit():
        table, keys = f"[[steps]] {path[1]}", path[2:]
    elif path[:1] in (("sources",), ("targets",)) and len(path) > 1:
        table, keys = f"[{path[0]}.{path[1]}]", path[2:]
    elif path:
        table, keys = f"[{path[0]}]", path[1:]
    else:
        return
    yield table
    if keys:
        yield f"{table} {keys[0]}"
