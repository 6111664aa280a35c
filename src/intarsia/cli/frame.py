"""The outermost frame of the command line: every error ends here, as a message and an exit code."""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import Any

import click

from intarsia.cli.screen import Screen, screen
from intarsia.errors import CommitConflict, CommitUnknown, IntarsiaError, NothingMatched

__all__ = ["Exit", "Frame", "exit_of"]


class Frame(click.Group):
    """The top-level group. A traceback is shown with ``--debug`` only."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except IntarsiaError as error:
            shown = _screen(ctx, error)
            shown.error(error)
            ctx.exit(exit_of(error))
        except KeyboardInterrupt as error:
            _screen(ctx, error).complain("interrupted; what was not committed is undone")
            ctx.exit(Exit.INTERRUPTED)
        except Exception as error:  # the one place that catches broadly
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # nobody reads on; click ends quietly
            message = f"unexpected {type(error).__name__}: {error}"
            _screen(ctx, error).complain(message, "this is a mistake in intarsia; --debug shows where.")
            ctx.exit(Exit.UNEXPECTED)


def _screen(ctx: click.Context, error: BaseException) -> Screen:
    """The screen of the command that failed; with ``--debug`` it has the traceback already."""
    with ctx.scope(cleanup=False):
        shown = screen()
    if shown.debug:
        shown.traceback(error)
    return shown


class Exit(IntEnum):
    """The exit codes of every command."""

    OK = 0
    ERROR = 1
    """Refused, with a message that says why; nothing was changed."""
    USAGE = 2
    """The command line itself is wrong."""
    CONFLICT = 3
    """Another writer came first; nothing was changed, and trying again may help."""
    NOTHING = 4
    """There is no file to work on."""
    UNKNOWN = 5
    """Committed, but not known to be published: do not repeat it, run ``intarsia recover``. Of an Iceberg
    table: not known to be committed; the message names the snapshot to look for."""
    UNEXPECTED = 70
    """A mistake in intarsia; ``--debug`` shows where."""
    INTERRUPTED = 130


def exit_of(error: IntarsiaError) -> Exit:
    """The code that tells a script what kind of error it was."""
    match error:
        case CommitUnknown():
            return Exit.UNKNOWN
        case CommitConflict():
            return Exit.CONFLICT
        case NothingMatched():
            return Exit.NOTHING
        case _:
            return Exit.ERROR
