"""Every command with its arguments and options; those that change a table are made in operations."""

from __future__ import annotations

from typing import Any

import click

from intarsia import api, reading
from intarsia.cli.commands import COMMANDS, HELP_NAMES, Exit
from intarsia.cli.iceberg import branch_options, expire, open_target, sweep, upkeep_options
from intarsia.cli.operations import OPERATIONS, make_plan_command, make_run_command
from intarsia.cli.options import (
    check_spark_table,
    decorate,
    offer_paths,
    open_engine,
    parse_pairs,
    place_options,
    talk_options,
    without_none,
)
from intarsia.cli.plain import inspection_to_json
from intarsia.cli.screen import Screen, get_screen
from intarsia.cli.undo import limit_option, restore, restore_options, show_history
from intarsia.doctor import Finding, State, examine
from intarsia.errors import NothingMatched
from intarsia.show.units import format_size
from intarsia.spark import archive_classes
from intarsia.tables.parquet import ParquetTable

__all__ = ["DECLARED"]

_MARKS: dict[State, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "missing": ("missing", "dim"),
    "warning": ("warning", "yellow"),
    "problem": ("problem", "bold red"),
}

DECLARED: dict[str, click.Command] = {operation.name: make_run_command(operation) for operation in OPERATIONS}
"""The commands by their names, which are those of :data:`~intarsia.cli.commands.COMMANDS`."""
DECLARED["plan"] = click.Group(
    "plan",
    [make_plan_command(operation) for operation in OPERATIONS],
    help=COMMANDS["plan"],
    context_settings=HELP_NAMES,
)


def _inspect(
    target: str,
    catalog: str | None,
    branch: str | None,
    spark_table: bool,
    master: str | None,
    storage_options: dict[str, str],
    control_path: str | None,
) -> None:
    shown = get_screen()
    of_paths = {"--storage-option": storage_options, "--control-path": control_path}
    if spark_table:
        check_spark_table("spark", catalog, of_paths)
    elif master is not None:
        raise click.UsageError("--master goes with --spark-table.")
    with shown.log(), open_engine("spark" if spark_table else "auto", master) as engine:
        session = engine.session() if spark_table else None
        inspection = reading.inspect(
            open_target(target, catalog=catalog, branch=branch, of_paths=of_paths, session=session),
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


def _prepare_spark() -> None:
    shown = get_screen()
    with shown.log():
        archive = archive_classes()
    size = archive.stat().st_size
    if shown.json:
        shown.show_json({"path": str(archive), "bytes": size})
    shown.say(f"Local sessions start from {archive} ({format_size(size)}); it may be deleted at any time.")


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


def _ui(place: str, **given: Any) -> None:
    from intarsia.cli.ui import show_ui

    show_ui(place, **given)


def _declare(function: Any, name: str, *decorators: Any) -> None:
    DECLARED[name] = click.command(name, help=COMMANDS[name])(
        decorate(function, [*decorators, *talk_options])
    )


_TARGET = click.argument("target", shell_complete=offer_paths)
_MASTER = click.option(
    "--master", metavar="URL", help="Where Spark runs: local[*], spark://, yarn, k8s://, sc://."
)

_declare(
    _inspect,
    "inspect",
    _TARGET,
    *branch_options,
    _MASTER,
    *place_options,
)
_declare(
    _recover,
    "recover",
    _TARGET,
    *place_options,
)
_declare(
    show_history,
    "history",
    _TARGET,
    limit_option,
    *branch_options,
    _MASTER,
    *place_options,
)
_declare(
    restore,
    "restore",
    _TARGET,
    click.argument("version", type=click.IntRange(min=0)),
    *restore_options,
    *branch_options,
    _MASTER,
    *place_options,
)
_declare(
    expire,
    "expire",
    _TARGET,
    *upkeep_options["expire"],
)
_declare(
    sweep,
    "sweep",
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
_declare(
    _graph,
    "graph",
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
_declare(
    _run,
    "run",
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
_declare(
    _test,
    "test",
    click.argument("path", metavar="[PIPELINE]", default=".", shell_complete=offer_paths),
    click.option("-k", "name", metavar="TEXT", help="Only tests with this text in their names."),
    click.option(
        "--engine", type=click.Choice(["spark", "arrow", "duckdb"]), help="Instead of the pipeline's."
    ),
)
_declare(
    _init,
    "init",
    click.argument("directory", default=".", shell_complete=offer_paths),
    click.option("--engine", type=click.Choice(["spark", "duckdb"]), help="What it runs on."),
)
_declare(
    _ui,
    "ui",
    click.argument("place", default=".", shell_complete=offer_paths),
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=8585,
        show_default=True,
        help="Where to listen, on this machine alone; 0 for any that is free.",
    ),
    click.option(
        "--reports",
        metavar="PATH",
        multiple=True,
        help="A directory with reports of pipelines that is not below PLACE; may be repeated.",
    ),
    click.option("--open", "open_browser", is_flag=True, help="Open the page in a browser."),
)
_declare(
    _doctor,
    "doctor",
    click.argument("path", required=False, shell_complete=offer_paths),
    click.option("--start", is_flag=True, help="Start a Spark session, too, and count with it."),
    _MASTER,
    place_options[0],
)
_declare(_prepare_spark, "prepare-spark")
