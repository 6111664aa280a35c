"""The outermost frame of the command line: every error ends here, as a message and an exit code."""

from __future__ import annotations

import errno
from typing import Any

import click

from intarsia.cli.exits import Exit, exit_of
from intarsia.cli.screen import Screen, screen
from intarsia.errors import IntarsiaError

__all__ = ["Frame"]


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
