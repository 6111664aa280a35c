"""The entry point of the command line, which says what is not installed; the commands are not in here."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

__all__ = ["main"]

_INTERRUPTED = 130  # Exit.INTERRUPTED, which may not be loaded yet


def main(arguments: Sequence[str] | None = None, *, program: str = "intarsia") -> None:
    """Run the command line and exit with a code of :class:`intarsia.cli.commands.Exit`."""
    try:
        commands = importlib.import_module("intarsia.cli.commands")
    except KeyboardInterrupt:  # before there is anything to undo
        sys.stderr.write("Error: interrupted; nothing was begun\n")
        sys.exit(_INTERRUPTED)
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.stderr.write(
            f"The command line needs {error.name}, which is not installed: pip install 'intarsia[cli]'\n"
        )
        sys.exit(1)
    commands.cli(args=arguments, prog_name=program)
