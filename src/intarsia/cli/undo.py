"""Looking back on the command line: the commits of a table, and bringing back the state after one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click

from intarsia import undo
from intarsia.cli.iceberg import open_target
from intarsia.cli.options import check_spark_table, open_engine, without_none
from intarsia.cli.plain import result_to_json
from intarsia.cli.screen import get_screen
from intarsia.options import KEYWORDS

__all__ = ["limit_option", "restore", "restore_options", "show_history"]


@contextmanager
def _open(
    target: str,
    catalog: str | None,
    branch: str | None,
    spark_table: bool,
    master: str | None,
    storage_options: dict[str, str],
    control_path: str | None,
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The target, and the options of a path for a call."""
    of_paths = {"--storage-option": storage_options, "--control-path": control_path}
    if spark_table:
        check_spark_table("spark", catalog, of_paths)
    elif master is not None:
        raise click.UsageError("--master goes with --spark-table.")
    with get_screen().log(), open_engine("spark" if spark_table else "auto", master) as engine:
        session = engine.session() if spark_table else None
        opened = open_target(target, catalog=catalog, branch=branch, of_paths=of_paths, session=session)
        yield opened, without_none(storage_options=storage_options, control_path=control_path)


def show_history(limit: int | None, **given: Any) -> None:
    """``intarsia history TARGET``."""
    with _open(**given) as (target, options):
        found = undo.history(target, **options)
    if limit is not None:
        found = replace(found, commits=found.commits[:limit])
    get_screen().show_value(found, found.as_json())


def restore(version: int, dry_run: bool, retain: int | None, **given: Any) -> None:
    """``intarsia restore TARGET VERSION``."""
    with _open(**given) as (target, options):
        result = undo.restore(target, version, dry_run=dry_run, **without_none(retain=retain, **options))
    get_screen().show_value(result, result_to_json(result))


limit_option = click.option(
    "--limit", metavar="NUMBER", type=click.IntRange(min=1), help="Only the newest commits."
)
restore_options = [
    click.option("--dry-run", is_flag=True, help="Plan and count; write nothing."),
    click.option("--retain", metavar="NUMBER", type=click.IntRange(min=0), help=KEYWORDS["retain"].help),
]
