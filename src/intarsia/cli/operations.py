"""The operations that change a table, each as a command that runs it and as one that plans it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from intarsia import api
from intarsia.cli.commands import COMMANDS
from intarsia.cli.iceberg import branch_options, mode_option, open_target
from intarsia.cli.options import (
    Decorator,
    check_spark_table,
    decorate,
    engine_options,
    library_options,
    offer_paths,
    open_engine,
    parse_pairs,
    place_options,
    talk_options,
    without_none,
)
from intarsia.cli.plain import plan_to_json, result_to_json
from intarsia.cli.screen import get_screen
from intarsia.core.dry_run import PLAN_BYTES
from intarsia.core.intent import MISSING
from intarsia.core.report import MergeResult
from intarsia.core.rule import STRATEGIES
from intarsia.sql.clauses import parse_clauses

__all__ = ["OPERATIONS", "Operation", "make_plan_command", "make_run_command"]


@dataclass(frozen=True, slots=True)
class Operation:
    """A call of the library with its own arguments as options."""

    name: str
    call: Callable[..., MergeResult]
    options: tuple[Decorator, ...]
    positional: tuple[str, ...] = ("target",)
    """The parameters that the call takes by position, in its order."""
    settle: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """Makes options into the call's arguments, before an engine is started; click.UsageError where they
    contradict each other."""

    def run(self, given: Mapping[str, Any], shared: Mapping[str, Any]) -> MergeResult:
        """Call the library with the options that were given; the others keep their defaults."""
        first = [given[name] for name in self.positional]
        rest = without_none(**{name: value for name, value in given.items() if name not in self.positional})
        return self.call(*first, **rest, **shared)


def _with_sources(given: dict[str, Any]) -> dict[str, Any]:
    sources = given.pop("sources")
    return given | {"source": sources[0] if len(sources) == 1 else list(sources)}


def _with_clauses(given: dict[str, Any]) -> dict[str, Any]:
    keys, condition, texts = given.pop("keys"), given.pop("on"), given.pop("when")
    if bool(keys) == bool(condition):
        raise click.UsageError("Name the key columns with --key, or a condition with --on; one of the two.")
    if texts and given["strategy"]:
        raise click.UsageError("--when stands instead of --strategy; give one of the two.")
    for text in texts:  # refused before an engine is started
        parse_clauses(text, dialect=given["dialect"])
    return _with_sources(given) | {"on": condition or list(keys), "clauses": list(texts) or None}


def make_run_command(operation: Operation) -> click.Command:
    """``intarsia merge ...``: the command that runs an operation, or with ``--dry-run`` plans it."""
    dry_run = click.option("--dry-run", is_flag=True, help="Plan and count; write nothing.")

    def run(dry_run: bool, **given: Any) -> None:
        result = _call(operation, given, dry_run=dry_run)
        get_screen().show_value(result, result_to_json(result))

    return _make_command(operation, run, COMMANDS[operation.name], [dry_run])


def make_plan_command(operation: Operation) -> click.Command:
    """``intarsia plan merge ...``: the command that shows the plan of an operation."""

    def run(**given: Any) -> None:
        given["options"] = {"measured_bytes": PLAN_BYTES, **given["options"]}
        plan = _call(operation, given, dry_run=True).plan
        assert plan is not None
        get_screen().show_value(plan, plan_to_json(plan))

    return _make_command(operation, run, f"The plan of {operation.name}: nothing is written.", [])


def _make_command(
    operation: Operation, run: Callable[..., None], text: str, more: list[Decorator]
) -> click.Command:
    decorators = [
        *operation.options,
        *more,
        *branch_options,
        *engine_options,
        *place_options,
        *library_options,
        *talk_options,
    ]
    made: click.Command = click.command(operation.name, help=text, no_args_is_help=True)(
        decorate(run, decorators)
    )
    return made


def _call(operation: Operation, given: dict[str, Any], *, dry_run: bool) -> MergeResult:
    shown = get_screen()
    given = operation.settle(given)
    of_paths = {"--storage-option": given.pop("storage_options"), "--control-path": given.pop("control_path")}
    named = {
        "catalog": given.pop("catalog"),
        "branch": given.pop("branch"),
        "mode": given.pop("delete_mode", None),
    }
    shared = without_none(
        storage_options=of_paths["--storage-option"],
        control_path=of_paths["--control-path"],
        dialect=given.pop("dialect"),
        progress=shown.progress,
    )
    shared |= given.pop("options")
    wanted, session = given.pop("engine"), None
    is_spark_table = given.pop("spark_table")
    if is_spark_table:
        check_spark_table(wanted, named["catalog"], of_paths)
        wanted = "spark"
    with shown.log(), open_engine(wanted, given.pop("master")) as engine:
        if is_spark_table:
            engine = session = engine.session()
        given["target"] = open_target(given["target"], **named, of_paths=of_paths, session=session)
        return operation.run(given, {**shared, "engine": engine, "dry_run": dry_run})


_TARGET = click.argument("target", shell_complete=offer_paths)
_SOURCES = click.argument("sources", nargs=-1, required=True, metavar="SOURCE...", shell_complete=offer_paths)
_PARTITION_BY = click.option(
    "--partition-by",
    metavar="COLUMN",
    multiple=True,
    help="For a dataset that does not exist yet: a column that becomes directories; may be repeated.",
)
_MISSING = click.option(
    "--missing",
    type=click.Choice(list(MISSING)),
    default="error",
    show_default=True,
    help="What to do where the source lacks a column: refuse it, write NULL, or keep what rows have.",
)
_EVOLUTION = click.option(
    "--schema-evolution",
    type=click.Choice(["add", "widen"]),
    help="Take new columns over, or let types grow.",
)
_TYPES = click.option(
    "--column",
    "columns",
    metavar="NAME=TYPE",
    multiple=True,
    callback=parse_pairs,
    help='The SQL type of a column of CSV or JSON files, as in "price=decimal(10, 2)"; may be repeated.',
)
_SIZES = (
    click.option("--target-mb", "target_mb_per_file", type=float, metavar="MB", help="Size of a file."),
    click.option("--target-rows", "target_rows_per_file", type=int, metavar="N", help="Rows in a file."),
)
_PARTITION = click.option(
    "--partition",
    "partition_filter",
    metavar="COLUMN=VALUE",
    multiple=True,
    help="Only this partition, as in day=2025-11-04/region=eu; may be repeated.",
)


def _add_columns_option(flag: str, name: str, text: str, *, required: bool = False) -> Decorator:
    return click.option(
        flag, name, metavar="COLUMN", multiple=True, required=required, help=f"{text}; may be repeated."
    )


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "merge",
        api.merge,
        (
            _SOURCES,
            _TARGET,
            _add_columns_option("--key", "keys", "A key column"),
            click.option(
                "--on", metavar="CONDITION", help="Instead of keys: 'target.id = source.id and target.open'."
            ),
            click.option(
                "--strategy",
                type=click.Choice(list(STRATEGIES)),
                help="What happens to rows that match, and to those that do not.  [default: upsert]",
            ),
            click.option(
                "--when",
                metavar="CLAUSE",
                multiple=True,
                help="Instead of a strategy, as in SQL's MERGE: 'matched and source.gone then delete',"
                " 'not matched then insert *'; the first that applies decides; may be repeated.",
            ),
            _add_columns_option(
                "--order-by", "dedup_order_by", "With deduplicate: the row with the highest value wins"
            ),
            click.option(
                "--null-keys",
                type=click.Choice(["error", "match"]),
                default="error",
                show_default=True,
                help="Whether NULL equals NULL in a key.",
            ),
            _MISSING,
            _EVOLUTION,
            _add_columns_option("--except", "except_columns", "A column of the source that is not written"),
            _PARTITION_BY,
            _TYPES,
            mode_option,
        ),
        ("source", "target"),
        _with_clauses,
    ),
    Operation(
        "delete",
        api.delete,
        (
            _TARGET,
            click.option("--where", required=True, metavar="SQL", help="Which rows go; true for all."),
            mode_option,
        ),
        ("target", "where"),
    ),
    Operation(
        "update",
        api.update,
        (
            _TARGET,
            click.option(
                "--set",
                "assignments",
                metavar="COLUMN=SQL",
                multiple=True,
                required=True,
                callback=parse_pairs,
                help="A column and its new value, as in \"note='late'\"; may be repeated.",
            ),
            click.option("--where", metavar="SQL", help="Which rows; all without it."),
            mode_option,
        ),
        ("target", "assignments", "where"),
    ),
    Operation(
        "write",
        api.write,
        (
            _SOURCES,
            _TARGET,
            click.option(
                "--mode",
                type=click.Choice(["append", "overwrite", "overwrite_partitions"]),
                default="append",
                show_default=True,
                help="Add the rows, or put them in the place of all, or of their partitions.",
            ),
            click.option(
                "--where",
                metavar="SQL",
                help="With overwrite: replace only the rows for which it is true; the source has no others.",
            ),
            _MISSING,
            _EVOLUTION,
            _PARTITION_BY,
            _TYPES,
        ),
        ("source", "target"),
        _with_sources,
    ),
    Operation(
        "compact",
        api.compact,
        (_TARGET, *_SIZES, _PARTITION),
    ),
    Operation(
        "optimize",
        api.optimize,
        (
            _TARGET,
            _add_columns_option("--by", "by", "A column to order by", required=True),
            click.option(
                "--curve",
                type=click.Choice(["zorder", "hilbert", "linear"]),
                default="zorder",
                show_default=True,
                help="How several columns make one order.",
            ),
            *_SIZES,
            _PARTITION,
        ),
    ),
    Operation(
        "deduplicate",
        api.deduplicate,
        (
            _TARGET,
            _add_columns_option("--key", "on", "A key column; without any, whole rows are compared"),
            _add_columns_option(
                "--order-by", "order_by", "The row with the highest value stays, else the last"
            ),
            _PARTITION,
            mode_option,
        ),
    ),
)
