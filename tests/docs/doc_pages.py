"""Fenced blocks and links of a Markdown file; running Python blocks and commands with the output they claim.

What follows the language on the line of a fence is not shown to readers: ``toml file=shop.toml`` writes the
block to that file, ``append=`` adds it at the end.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^```(\w*)(?: (\w+=\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)
_ID = re.compile(r"\b[0-9a-f]{8,32}(?![0-9a-f])")
_MEASURED = re.compile(r"\b\d+(\.\d+)? (m?s|k?B)\b")
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """Python code of a page; ``shown`` is the text block right after it, which is what it prints."""

    language: str
    code: str
    line: int
    shown: str | None = None
    info: str = ""


def blocks(text: str) -> list[Block]:
    found = []
    fences = list(_FENCE.finditer(text))
    for number, fence in enumerate(fences):
        after = fences[number + 1] if number + 1 < len(fences) else None
        follows = after is not None and after[1] == "text" and not text[fence.end() : after.start()].strip()
        shown = after[3] if after is not None and follows else None
        line = text.count("\n", 0, fence.start()) + 2
        found.append(Block(fence[1], fence[3], line, shown, fence[2] or ""))
    return found


def without_code(text: str) -> str:
    return _FENCE.sub("", text)


def links(text: str) -> list[str]:
    return _LINK.findall(without_code(text))


def anchors(text: str) -> set[str]:
    """The names that headings can be linked by."""
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(without_code(text)))
    return {heading.replace(" ", "-") for heading in plain}


def run(block: Block, namespace: dict[str, Any], page: str) -> None:
    """Run the statements of a block one by one.

    ``print(x)  # text`` must print that text; a text block right after the code is all that it prints,
    with ``...`` for what differs from run to run.
    """
    printed = io.StringIO()
    lines = block.code.splitlines()
    for statement in ast.parse(block.code).body:
        code = compile("\n" * (block.line - 1) + _source(lines, statement), page, "exec")
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(code, namespace)
        printed.write(output.getvalue())
        claimed = _claimed(lines, statement)
        if claimed is not None:
            _compare(claimed, output.getvalue(), page, block.line + statement.lineno - 1)
    if block.shown is not None:
        _compare(block.shown, printed.getvalue(), page, block.line)


def run_page(text: str, page: str) -> None:
    """Do in the working directory what a page tells: its Python, its files, its commands."""
    namespace: dict[str, Any] = {"__name__": "example"}
    for block in blocks(text):
        if block.info:
            _write(block)
        elif block.language == "python":
            run(block, namespace, page)
        elif block.language == "console":
            _run_commands(block, page)


def _write(block: Block) -> None:
    how, _, name = block.info.partition("=")
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open({"file": "w", "append": "a"}[how], encoding="utf-8") as file:
        file.write(block.code if how == "file" else "\n" + block.code)


def _run_commands(block: Block, page: str) -> None:
    """Run the lines after ``$``; those below are all that they print, but for times and sizes."""
    from click.testing import CliRunner  # an extra, without which the Python of a page runs

    from intarsia.cli.commands import cli

    line = block.line
    for part in re.split(r"^(?=\$ )", block.code, flags=re.MULTILINE)[1:]:
        command, _, claimed = part.partition("\n")
        words = shlex.split(command.removeprefix("$ "), comments=True)
        if words[0] == "cd":
            os.chdir(words[1])
        else:
            assert words[0] == "intarsia", f"{page}:{line} {command}"
            printed = CliRunner().invoke(cli, words[1:], catch_exceptions=False).output
            claimed, printed = (_MEASURED.sub("#", text) for text in (claimed, printed))
            _compare(claimed, printed, page, line)
        line += part.count("\n")


def _source(lines: list[str], statement: ast.stmt) -> str:
    assert statement.end_lineno is not None
    decorators = getattr(statement, "decorator_list", ())  # above the line that a function says it is in
    first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
    return "\n" * (first - 1) + "\n".join(lines[first - 1 : statement.end_lineno])


def _claimed(lines: list[str], statement: ast.stmt) -> str | None:
    """What the comment behind a print says it prints."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Name(id="print"))):
            assert statement.end_lineno is not None
            rest = lines[statement.end_lineno - 1].encode()[statement.end_col_offset :].decode().strip()
            return rest.removeprefix("#").strip() if rest.startswith("#") else None
    return None


def _compare(claimed: str, printed: str, page: str, line: int) -> None:
    # Transactions have another name on each run.
    expected, got = (_ID.sub("#", text.strip()) + "\n" for text in (claimed, printed))
    same = doctest.OutputChecker().check_output(expected, got, _OPTIONS)
    assert same, f"{page}:{line} claims\n{claimed}\nbut prints\n{printed}"
