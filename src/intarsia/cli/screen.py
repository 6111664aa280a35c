"""The output of commands: text for people, JSON for scripts, errors on standard error."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import format_exception
from typing import Any, TextIO

import click
from rich.console import Console
from rich.text import Text

from intarsia.common.log import redact
from intarsia.errors import IntarsiaError
from intarsia.show import text, units

__all__ = ["Screen", "get_screen"]

_KEY = "intarsia.screen"
_MOST_COLUMNS = 140


@dataclass(slots=True)
class Screen:
    """How one invocation writes; set by the options that every command has."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    debug: bool = False

    @property
    def out(self) -> Console:
        return _make_console(sys.stdout)

    @property
    def err(self) -> Console:
        return _make_console(sys.stderr, stderr=True)

    @property
    def progress(self) -> Any:
        """For the library's ``progress=``: None draws on a terminal, False is silent."""
        return False if self.quiet or self.json else None

    def show_value(self, value: Any, plain: Mapping[str, Any]) -> None:
        """Show a value of the library as text, or with ``--json`` the same as JSON."""
        if self.json:
            self.show_json(plain)
        elif not self.quiet:
            console = self.out
            width = min(console.width, _MOST_COLUMNS) if console.is_terminal else text.WIDTH
            self._print_ansi(console, text.render(value, width=width, color=_has_color(console)))

    def say(self, *parts: str | tuple[str, str]) -> None:
        """Write a line of text; a part may have a style. Nothing with ``--json`` or ``--quiet``."""
        if not self.json and not self.quiet:
            clean = [
                units.make_printable(p) if isinstance(p, str) else (units.make_printable(p[0]), p[1])
                for p in parts
            ]
            self.out.print(Text.assemble(*clean), soft_wrap=True)

    def show_json(self, plain: Any) -> None:
        """Write one JSON document to standard output."""
        click.echo(json.dumps(plain, indent=2, ensure_ascii=False, default=str))

    def show_error(self, error: IntarsiaError) -> None:
        """Write an error and its hint to standard error, or with ``--json`` as JSON."""
        if self.json:
            plain = {
                "error": type(error).__name__,
                "message": redact(error.message),
                "hint": error.hint,
                "path": None if error.path is None else redact(error.path),
                "changed": error.changed,
                "txid": error.txid,
            }
            click.echo(json.dumps(plain, ensure_ascii=False), err=True)
            return
        where = f" [{error.path}]" if error.path and error.path not in error.message else ""
        self.complain(f"{error.message}{where}", error.hint)

    def complain(self, message: str, hint: str | None = None) -> None:
        console = self.err
        console.print(
            Text.assemble(("Error: ", "bold red"), units.make_printable(redact(message))), soft_wrap=True
        )
        if hint:
            console.print(
                Text.assemble(("Hint: ", "bold"), units.make_printable(redact(hint))), soft_wrap=True
            )

    def show_traceback(self, error: BaseException) -> None:
        """Write the traceback of an error to standard error."""
        click.echo(redact("".join(format_exception(error))), err=True, nl=False)

    @contextmanager
    def log(self) -> Iterator[None]:
        """Write the library's log and warnings to standard error in the block."""
        handler = _Lines(self)
        loud = logging.getLogger("intarsia")
        before = loud.level
        loud.addHandler(handler)
        loud.setLevel(logging.DEBUG if self.debug else logging.INFO if self.verbose else logging.WARNING)
        try:
            with warnings.catch_warnings():
                warnings.showwarning = self._show_warning
                yield
        finally:
            loud.setLevel(before)
            loud.removeHandler(handler)

    def _show_warning(self, message: Warning | str, *_: Any, **__: Any) -> None:
        """A Python warning as a line like those of the log."""
        if not self.quiet:
            _print_line(self.err, "warning", redact(str(message)))

    @staticmethod
    def _print_ansi(console: Console, rendered: str) -> None:
        console.print(Text.from_ansi(rendered), soft_wrap=True)


def get_screen() -> Screen:
    """The screen of the command that is running."""
    found: Screen = click.get_current_context().meta.setdefault(_KEY, Screen())
    return found


class _Lines(logging.Handler):
    """A line on standard error for each log record, but for errors, which the command writes itself."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or (self._screen.quiet and record.levelno < logging.ERROR):
            return
        _print_line(self._screen.err, record.levelname.lower(), record.getMessage())


def _print_line(console: Console, level: str, message: str) -> None:
    console.print(Text.assemble((f"{level}: ", "dim"), units.make_printable(message)), soft_wrap=True)


def _make_console(stream: TextIO, *, stderr: bool = False) -> Console:
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    plain = in_ci or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return Console(
        stderr=stderr, force_terminal=False if plain else None, highlight=False, markup=False, emoji=False
    )


def _has_color(console: Console) -> bool:
    return console.color_system is not None and not console.no_color
