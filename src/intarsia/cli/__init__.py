"""The entry point of the command line, which says what is not installed; the commands are not in here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import NoReturn

__all__ = ["exit_before_start", "main"]

_INTERRUPTED = 130  # Exit.INTERRUPTED, which may not be loaded yet


def main(arguments: Sequence[str] | None = None, *, program: str = "intarsia") -> None:
    """Run the command line and exit with a code of :class:`intarsia.cli.commands.Exit`."""
    for name in ("click", "rich"):
        if find_spec(name) is None:
            sys.stderr.write(
                f"The command line needs {name}, which is not installed: pip install 'intarsia[cli]'\n"
            )
            sys.exit(1)
    try:
        commands = import_module("intarsia.cli.commands")
    except KeyboardInterrupt:
        exit_before_start()
    commands.cli(args=arguments, prog_name=program)


def exit_before_start() -> NoReturn:
    """End after Ctrl-C while the program loads: there is nothing to undo."""
    sys.stderr.write("Error: interrupted; nothing was begun\n")
    sys.exit(_INTERRUPTED)
