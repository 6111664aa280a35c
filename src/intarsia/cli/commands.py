"""The top-level command, its exit codes, and how errors end it; a command is loaded when it is named."""

from __future__ import annotations

import errno
from difflib import get_close_matches
from enum import IntEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

import intarsia
from intarsia.cli import exit_before_start

if TYPE_CHECKING:
    from intarsia.cli.screen import Screen
    from intarsia.errors import IntarsiaError

__all__ = ["COMMANDS", "HELP_NAMES", "Exit", "choose_exit_code", "cli"]

HELP_NAMES = {"help_option_names": ["-h", "--help"]}
COMMANDS = {
    "compact": "Bring small files of TARGET together into files of about the target size.",
    "deduplicate": "Leave one row per key in TARGET.",
    "delete": "Delete the rows of TARGET for which a predicate is true.",
    "doctor": "What is installed, what is missing and how to get it;"
    " at PATH, what a dataset there can rely on.",
    "expire": "Which snapshots of the Iceberg table TARGET are too old;"
    " --apply removes them and their files.",
    "graph": "Draw what a declared pipeline reads and writes; runs nothing.",
    "history": "The commits of TARGET, newest first: who, when, what, and how much.",
    "init": "Write a small project that runs: a pipeline with a query, a function, tests and some rows.",
    "inspect": "What TARGET looks like: files, rows, partitions, columns.",
    "merge": "Set the rows of SOURCE files (Parquet, Arrow, CSV, JSON) into the table TARGET by key.",
    "optimize": "Order the rows of TARGET so that filters on some columns read less.",
    "plan": "What an operation would do to each file, and why; writes nothing.",
    "prepare-spark": "Let local Spark sessions start in about half the time: keeps Spark's classes in the"
    " cache directory (half a minute, some 170 MB).",
    "recover": "Finish or undo what a crashed writer left in the dataset TARGET.",
    "restore": "Bring back the state of TARGET after VERSION, as history lists it, in one commit.",
    "run": "Run the pipeline that a TOML or Python file declares, on Spark unless it says otherwise."
    " PIPELINE is the file, or orders.py:daily for one of several pipelines in it.",
    "sweep": "Which files at the Iceberg table TARGET nothing refers to; --apply removes them.",
    "test": "Run the tests of a pipeline, or of a directory, on rows that they give;"
    " real tables are not touched.",
    "ui": "Look at a lake in the browser: tables, files, history, plans, runs of pipelines."
    " PLACE is a directory, a URL, or the name of an Iceberg catalog.",
    "update": "Assign columns of the rows of TARGET for which a predicate is true.",
    "write": "Write the rows of SOURCE files (Parquet, Arrow, CSV, JSON) to the table TARGET.",
}
"""The help of every command: known here, so that ``intarsia --help`` loads neither pyarrow nor an engine."""


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


def choose_exit_code(error: IntarsiaError) -> Exit:
    """The code that tells a script what kind of error it was."""
    from intarsia.errors import CommitConflict, CommitUnknown, NothingMatched  # which load pyarrow

    match error:
        case CommitUnknown():
            return Exit.UNKNOWN
        case CommitConflict():
            return Exit.CONFLICT
        case NothingMatched():
            return Exit.NOTHING
        case _:
            return Exit.ERROR


class Frame(click.Group):
    """The top-level group, which ends every error as a message and an exit code.

    A traceback is shown with ``--debug`` only.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = import_module("intarsia.cli.declarations").DECLARED[cmd_name]
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], COMMANDS, 1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", error.ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What click writes, without loading the commands."""
        limit = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, click.Command(name, help=COMMANDS[name]).get_short_help_str(limit))
                    for name in sorted(COMMANDS)
                ]
            )

    def invoke(self, ctx: click.Context) -> Any:
        try:
            from intarsia.errors import IntarsiaError

            import_module("intarsia.cli.declarations")
        except KeyboardInterrupt:
            exit_before_start()
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except IntarsiaError as error:
            shown = _find_screen(ctx, error)
            shown.show_error(error)
            ctx.exit(choose_exit_code(error))
        except KeyboardInterrupt as error:
            _find_screen(ctx, error).complain("interrupted; what was not committed is undone")
            ctx.exit(Exit.INTERRUPTED)
        except Exception as error:  # the one place that catches broadly
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # the reader of a pipe has closed it; click ends quietly
            message = f"unexpected {type(error).__name__}: {error}"
            _find_screen(ctx, error).complain(message, "this is a mistake in intarsia; --debug shows where.")
            ctx.exit(Exit.UNEXPECTED)


def _find_screen(ctx: click.Context, error: BaseException) -> Screen:
    """The screen of the command that failed; with ``--debug`` it has the traceback already."""
    from intarsia.cli.screen import get_screen

    with ctx.scope(cleanup=False):
        shown = get_screen()
    if shown.debug:
        shown.show_traceback(error)
    return shown


@click.group(cls=Frame, context_settings=HELP_NAMES)
@click.version_option(intarsia.__version__, prog_name="intarsia", message="%(prog)s %(version)s")
def cli() -> None:
    """Set new rows into Parquet datasets and Iceberg tables without rewriting the lake."""
