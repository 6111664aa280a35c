"""The commands, their exit codes, and how errors end them; those that change a table are in operations."""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import Any

import click

import intarsia
from intarsia import api
from intarsia.cli.iceberg import branch_options, expire, open_target, sweep, upkeep_options
from intarsia.cli.operations import OPERATIONS, make_plan_command, make_run_command
from intarsia.cli.options import decorate, offer_paths, parse_pairs, place_options, talk_options, without_none
from intarsia.cli.plain import inspection_to_json
from intarsia.cli.screen import Screen, get_screen
from intarsia.doctor import Finding, State, examine
from intarsia.errors import CommitConflict, CommitUnknown, IntarsiaError, NothingMatched
from intarsia.tables.parquet import ParquetTable

__all__ = ["Exit", "choose_exit_code", "cli"]

_HELP = {"help_option_names": ["-h", "--help"]}
_MARKS: dict[State, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "missing": ("missing", "dim"),
    "warning": ("warning", "yellow"),
    "problem": ("problem", "bold red"),
}


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

    def invoke(self, ctx: click.Context) -> Any:
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
    with ctx.scope(cleanup=False):
        shown = get_screen()
    if shown.debug:
        shown.show_traceback(error)
    return shown


@click.group(cls=Frame, context_settings=_HELP)
@click.version_option(intarsia.__version__, prog_name="intarsia", message="%(prog)s %(version)s")
def cli() -> None:
    """Set new rows into Parquet datasets and Iceberg tables without rewriting the lake."""


@cli.group(context_settings=_HELP)
def plan() -> None:
    """What an operation would do to each file, and why; writes nothing."""


for _operation in OPERATIONS:
    cli.add_command(make_run_command(_operation))
    plan.add_command(make_plan_command(_operation))


def _inspect(
    target: str,
    catalog: str | None,
    branch: str | None,
    storage_options: dict[str, str],
    control_path: str | None,
) -> None:
    shown = get_screen()
    of_paths = {"--storage-option": storage_options, "--control-path": control_path}
    with shown.log():
        inspection = api.inspect(
            open_target(target, catalog=catalog, branch=branch, of_paths=of_paths),
            **without_none(storage_options=storage_options, control_path=control_path),
        )
    if not inspection.snapshot.exists:
        raise NothingMatched(f"There is no dataset {target}.", path=target, hint="check the path.")
    shown.show_value(inspection, inspection_to_json(inspection))


def _recover(target: str, storage_options: dict[str, str], control_path: str | None) -> None:
    shown = get_screen()
    with shown.log():
        table = ParquetTable(
            target, **without_none(storage_options=storage_options, control_path=control_path)
        )
        if not table.control.exists() and table.storage.stat(table.control.root) is None:
            raise NothingMatched(f"There is no dataset {target}.", path=target, hint="check the path.")
        done = api.recover(table)
    if shown.json:
        shown.show_json({"path": target, "done": list(done)})
    for sentence in done or ("There was nothing to recover.",):
        shown.say(sentence)


def _doctor(path: str | None, start: bool, master: str | None, storage_options: dict[str, str]) -> None:
    shown = get_screen()
    with shown.log():
        findings = examine(path, start=start, master=master, storage_options=storage_options or None)
    bad = any(finding.state == "problem" for finding in findings)
    if shown.json:
        shown.show_json({"ok": not bad, "findings": [finding.as_json() for finding in findings]})
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        _tell(shown, finding, width)
    click.get_current_context().exit(Exit.ERROR if bad else Exit.OK)


def _tell(shown: Screen, finding: Finding, width: int) -> None:
    mark, style = _MARKS[finding.state]
    shown.say((f"{mark:<8}", style), f"{finding.subject:<{width}}  {finding.detail}")
    if finding.hint:
        shown.say(" " * (10 + width), (finding.hint, "italic"))


def _run(pipeline: str, **given: Any) -> None:
    # The pipeline's own modules are loaded for this command alone.
    from intarsia.cli.pipeline import run_pipeline

    run_pipeline(pipeline, **given)


def _offer_steps(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from intarsia.cli.completion import offer_steps

    return offer_steps(ctx.params.get("pipeline") or next(iter(ctx.args), ""), incomplete)


def _offer_environments(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from intarsia.cli.completion import offer_environments

    return offer_environments(ctx.params.get("pipeline") or next(iter(ctx.args), ""), incomplete)


def _test(path: str, **given: Any) -> None:
    from intarsia.cli.project import test_pipeline

    test_pipeline(path, **given)


def _init(directory: str, engine: Any) -> None:
    from intarsia.cli.project import init

    init(directory, engine=engine)


def _graph(pipeline: str, **given: Any) -> None:
    from intarsia.cli.graph import show_graph

    show_graph(pipeline, **given)


def _add_command(function: Any, name: str, text: str, *decorators: Any) -> None:
    cli.add_command(click.command(name, help=text)(decorate(function, [*decorators, *talk_options])))


_TARGET = click.argument("target", shell_complete=offer_paths)
_MASTER = click.option(
    "--master", metavar="URL", help="Where Spark runs: local[*], spark://, yarn, k8s://, sc://."
)

_add_command(
    _inspect,
    "inspect",
    "What TARGET looks like: files, rows, partitions, columns.",
    _TARGET,
    *branch_options,
    *place_options,
)
_add_command(
    _recover,
    "recover",
    "Finish or undo what a crashed writer left in the dataset TARGET.",
    _TARGET,
    *place_options,
)
_add_command(
    expire,
    "expire",
    "Which snapshots of the Iceberg table TARGET are too old; --apply removes them and their files.",
    _TARGET,
    *upkeep_options["expire"],
)
_add_command(
    sweep,
    "sweep",
    "Which files at the Iceberg table TARGET nothing refers to; --apply removes them.",
    _TARGET,
    *upkeep_options["sweep"],
)
_PARAMS = click.option(
    "--param",
    "params",
    metavar="NAME=VALUE",
    multiple=True,
    callback=parse_pairs,
    help="A value for ${NAME} in the file; may be repeated.",
)
_ENV = click.option(
    "--env",
    metavar="NAME",
    shell_complete=_offer_environments,
    help="The environment: [env.NAME] overrides what the file says; INTARSIA_ENV names it otherwise.",
)
_add_command(
    _graph,
    "graph",
    "Draw what a declared pipeline reads and writes; runs nothing.",
    click.argument("pipeline", metavar="PIPELINE", shell_complete=offer_paths),
    click.option(
        "--output", "-o", metavar="PATH", help="Write to this file: .svg, .mmd (Mermaid), .json or .txt."
    ),
    click.option(
        "--format",
        type=click.Choice(["text", "svg", "mermaid", "json"]),
        help="A tree (the default), a picture, a diagram for Markdown, or nodes and edges.",
    ),
    _ENV,
    _PARAMS,
)
_add_command(
    _run,
    "run",
    "Run the pipeline that a TOML or Python file declares, on Spark unless it says otherwise."
    " PIPELINE is the file, or orders.py:daily for one of several pipelines in it.",
    click.argument("pipeline", metavar="PIPELINE", shell_complete=offer_paths),
    click.option("--dry-run", is_flag=True, help="Plan every step; write nothing."),
    click.option(
        "--full-refresh", is_flag=True, help="Take every input file again, also those that were taken before."
    ),
    click.option(
        "--only",
        metavar="STEP[,STEP]",
        multiple=True,
        shell_complete=_offer_steps,
        help="Run these steps only; may be repeated.",
    ),
    click.option(
        "--from",
        "from_step",
        metavar="STEP",
        shell_complete=_offer_steps,
        help="Run this step and those after it only.",
    ),
    _ENV,
    click.option(
        "--continuous",
        is_flag=True,
        help="Stay, and take what streams bring, until Ctrl-C or SIGTERM; then end after the batch at hand.",
    ),
    click.option(
        "--interval",
        metavar="SECONDS",
        type=click.FloatRange(min=0),
        default=1.0,
        show_default=True,
        help="With --continuous: the time between two looks for what is new.",
    ),
    click.option(
        "--mark-done", is_flag=True, help="Run nothing; note every step as done with what is there now."
    ),
    click.option("--engine", type=click.Choice(["spark", "arrow", "duckdb"]), help="Instead of the file's."),
    _MASTER,
    click.option("--report-dir", metavar="PATH", help="Where the reports go, if not where the file says."),
    click.option(
        "--param",
        "params",
        metavar="NAME=VALUE",
        multiple=True,
        callback=parse_pairs,
        help="A value for ${NAME} in the file; may be repeated. A range, as in day=2025-03-01..2025-03-31,"
        " 2025-01..2025-06 or 1..12, is a backfill: one run per value, which goes on where it was stopped.",
    ),
    click.option(
        "--start-over",
        is_flag=True,
        help="Of a backfill that was stopped: run every value again, also those that are done.",
    ),
)
_add_command(
    _test,
    "test",
    "Run the tests of a pipeline, or of a directory, on rows that they give; real tables are not touched.",
    click.argument("path", metavar="[PIPELINE]", default=".", shell_complete=offer_paths),
    click.option("-k", "name", metavar="TEXT", help="Only tests with this text in their names."),
    click.option(
        "--engine", type=click.Choice(["spark", "arrow", "duckdb"]), help="Instead of the pipeline's."
    ),
)
_add_command(
    _init,
    "init",
    "Write a small project that runs: a pipeline with a query, a function, tests and some rows.",
    click.argument("directory", default=".", shell_complete=offer_paths),
    click.option("--engine", type=click.Choice(["spark", "duckdb"]), help="What it runs on."),
)
_add_command(
    _doctor,
    "doctor",
    "What is installed, what is missing and how to get it; at PATH, what a dataset there can rely on.",
    click.argument("path", required=False, shell_complete=offer_paths),
    click.option("--start", is_flag=True, help="Start a Spark session, too, and count with it."),
    _MASTER,
    place_options[0],
)
