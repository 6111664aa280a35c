"""Iceberg tables on the command line: naming one, expiring snapshots, removing orphan files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import click

import intarsia
from intarsia import api
from intarsia.cli.options import Decorator
from intarsia.cli.screen import get_screen
from intarsia.options import KEYWORDS
from intarsia.show import units

__all__ = ["branch_options", "expire", "mode_option", "open_table", "open_target", "sweep", "upkeep_options"]

_AGE = re.compile(r"(\d+)([dhm])")
_UNITS = {"d": "days", "h": "hours", "m": "minutes"}

_CATALOG = click.option(
    "--catalog",
    metavar="CATALOG",
    help="TARGET is the name of an Iceberg table (shop.orders) in this catalog: one that PyIceberg is"
    " configured with, or a warehouse directory (./warehouse).",
)
branch_options: list[Decorator] = [
    _CATALOG,
    click.option(
        "--spark-table",
        is_flag=True,
        help="TARGET is the name of a table (lake.orders) in the catalog of the Spark session, which --master"
        " opens.",
    ),
    click.option("--branch", metavar="NAME", help=KEYWORDS["branch"].help),
]
mode_option: Decorator = click.option(
    "--mode",
    "delete_mode",  # since write has a mode of its own
    type=click.Choice(["copy-on-write", "merge-on-read"]),
    help=f"{KEYWORDS['mode'].help}  [default: the table's own]",
)


def open_target(
    target: str,
    *,
    catalog: str | None,
    branch: str | None = None,
    mode: Any = None,
    of_paths: Mapping[str, Any] | None = None,
    session: Any = None,
) -> Any:
    """The path as it is, or with a catalog, or a Spark session, the table of that name.

    ``of_paths`` are options that only a path can have, by their flags.
    """
    if session is not None:
        return intarsia.spark_table(target, session=session, branch=branch, mode=mode)
    if catalog is None:
        for flag, value in (("--branch", branch), ("--mode", mode)):
            if value is not None:
                raise click.UsageError(f"{flag} goes with an Iceberg table: name its --catalog, too.")
        return target
    for flag, value in (of_paths or {}).items():
        if value:
            raise click.UsageError(f"{flag} goes with the path of a dataset, not with --catalog.")
    return open_table(target, catalog=catalog, branch=branch, mode=mode)


def open_table(target: str, *, catalog: str, branch: str | None = None, mode: Any = None) -> Any:
    """The Iceberg table of a name in a catalog."""
    return api.iceberg(target, catalog=catalog, branch=branch, mode=mode)


def _parse_time(ctx: click.Context, param: click.Parameter, text: str | None) -> datetime | None:
    """Parse ``7d``, ``12h`` or ``30m`` (ago), or an ISO 8601 date or time, in UTC without a zone."""
    if text is None:
        return None
    age = _AGE.fullmatch(text.strip())
    try:
        if age is not None:
            return datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})
        found = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError) as error:
        wanted = "an age such as 7d, 12h or 30m, or a time such as 2025-03-01T12:00"
        raise click.BadParameter(f"{text!r} is not {wanted}.", ctx, param) from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _add_older_than(text: str) -> Decorator:
    return click.option("--older-than", metavar="AGE|TIME", callback=_parse_time, help=text)


_APPLY = click.option("--apply", is_flag=True, help="Do it; without it nothing is changed.")
_NEEDED = click.option(
    "--catalog", metavar="CATALOG", required=True, help="The catalog that has the table, or its warehouse."
)
upkeep_options: dict[str, list[Decorator]] = {
    "expire": [
        _NEEDED,
        _add_older_than(
            "Snapshots from before that may go: 7d, 12h, 2025-03-01.  [default: the table's own]"
        ),
        click.option(
            "--retain-last",
            type=click.IntRange(min=1),
            metavar="N",
            help="Snapshots of each branch that stay, however old.  [default: the table's own]",
        ),
        _APPLY,
    ],
    "sweep": [
        _NEEDED,
        _add_older_than("Only files from before that: 7d, 12h, 2025-03-01.  [default: 3d]"),
        _APPLY,
    ],
}


def expire(
    target: str, catalog: str, older_than: datetime | None, retain_last: int | None, apply: bool
) -> None:
    """``intarsia expire``: list snapshots that are too old, and with ``--apply`` remove them."""
    shown = get_screen()
    with shown.log():
        found = _import_maintenance().expire_snapshots(
            open_table(target, catalog=catalog),
            older_than=older_than,
            retain_last=retain_last,
            dry_run=not apply,
        )
    if shown.json:
        told = {"snapshots": found.snapshots, "refs": found.refs, "files": found.files}
        shown.show_json({"path": target, **told, "dry_run": found.dry_run})
    what = [
        units.format_count(len(found.snapshots), "snapshot"),
        units.format_count(len(found.files), "file"),
    ]
    if found.refs:
        what.insert(1, f"the branches and tags {', '.join(found.refs)}")
    _tell(", ".join(what), bool(found.snapshots or found.refs), found.dry_run)


def sweep(target: str, catalog: str, older_than: datetime | None, apply: bool) -> None:
    """``intarsia sweep``: list files that nothing refers to, and with ``--apply`` remove them."""
    shown = get_screen()
    with shown.log():
        found = _import_maintenance().remove_orphans(
            open_table(target, catalog=catalog), older_than=older_than, dry_run=not apply
        )
    if shown.json:
        shown.show_json(
            {"path": target, "files": found.files, "size_bytes": found.size, "dry_run": found.dry_run}
        )
    for path in found.files:
        shown.say(path)
    what = f"{units.format_count(len(found.files), 'orphan file')} of {units.format_size(found.size)}"
    _tell(what, bool(found.files), found.dry_run)


def _tell(what: str, some: bool, dry_run: bool) -> None:
    shown = get_screen()
    if not some:
        shown.say("There is nothing to remove.")
    elif dry_run:
        shown.say(f"To be removed: {what}. Nothing was changed; --apply does it.")
    else:
        shown.say(f"Removed: {what}.")


def _import_maintenance() -> Any:
    # PyIceberg is loaded for these commands alone.
    return import_module("intarsia.tables.iceberg.maintenance")
