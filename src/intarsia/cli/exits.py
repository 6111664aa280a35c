"""What the command line exits with, so that scripts can tell what happened."""

from __future__ import annotations

from enum import IntEnum

from intarsia.errors import CommitConflict, CommitUnknown, IntarsiaError, NothingMatched

__all__ = ["Exit", "exit_of"]


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
