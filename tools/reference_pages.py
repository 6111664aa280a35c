"""Makes pages of docs/reference from the code: the commands with click, the options that calls share.

``--write`` puts them there, a test compares. Docstrings are read when the site is built, and not here.
"""

from __future__ import annotations

import collections.abc
import inspect
import os
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import click

from intarsia.cli.commands import cli
from intarsia.options import KEYWORDS, OPERATION_OPTIONS

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
COMMANDS = """\
# intarsia (command)

<!-- made by tools/reference_pages.py --write; a test compares -->

Every command and option, as `--help`, which all have, tells it. [The command line](../cli.md) explains
them with examples, exit codes and output for scripts.
"""
OPTIONS = """\
# Keyword options

<!-- made by tools/reference_pages.py --write; a test compares -->

Options that several calls of [intarsia](intarsia.md) share; what each call has for itself is in its
signature. The [guide](../guide.md#options) has defaults, and where an option can have no effect: there it is
refused.

| option | type | | taken by |
|---|---|---|---|
"""


def list_commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, the groups below included."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        path = f"{context.info_name} {name}"
        yield path, command
        if isinstance(command, click.Group):
            yield from list_commands(command, click.Context(command, info_name=path, parent=None))


def make_options() -> str:
    """The page of keyword options."""
    rows = []
    for name, keyword in sorted(KEYWORDS.items()):
        taken = [operation for operation in OPERATION_OPTIONS if operation in keyword.operations]
        told = "all" if len(taken) == len(OPERATION_OPTIONS) else ", ".join(taken)
        rows.append(f"| `{name}` | {_name_type(keyword.type)} | {keyword.help} | {told} |")
    return OPTIONS + "\n".join(rows) + "\n"


def _name_type(hint: Any) -> str:
    match get_origin(hint):
        case typing.Union | types.UnionType:
            parts = [_name_type(part) for part in get_args(hint) if part is not types.NoneType]
            return " or ".join(dict.fromkeys(parts))
        case typing.Literal:
            return " or ".join(f"`{value!r}`".replace("'", '"') for value in get_args(hint))
        case collections.abc.Callable:
            return "function"
        case collections.abc.Mapping:
            return "mapping"
        case origin:
            kind = origin or hint
            return {Any: "object", os.PathLike: "path"}.get(kind) or f"`{kind.__name__}`"


def make_commands() -> str:
    """The page of the command line."""
    context = click.Context(cli, info_name="intarsia")
    parts = [COMMANDS, describe_command("intarsia", cli, heading="## Options of the program")]
    parts += [describe_command(path, command) for path, command in list_commands(cli, context)]
    return "\n".join(parts)


def describe_command(path: str, command: click.Command, *, heading: str | None = None) -> str:
    """A section: usage, help, and a table of options."""
    context = click.Context(command, info_name=path)
    usage = command.collect_usage_pieces(context)
    text = inspect.cleandoc(command.help or "").partition("\f")[0].strip()
    lines = [heading or f"## {path}", "", "```sh", " ".join([path, *usage]), "```", "", text, ""]
    # All have --help, under names that depend on who has asked for them first.
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if options:
        lines += ["| option | |", "|---|---|"]
    lines += [f"| {_name_option(one, context)} | {_describe_option(one, context)} |" for one in options]
    return "\n".join([*lines, ""])


def _name_option(option: click.Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if option.is_flag or option.count or isinstance(option.type, click.Choice):
        return names
    return f"{names} `{option.make_metavar(context)}`"


def _describe_option(option: click.Option, context: click.Context) -> str:
    text = " ".join((option.help or "").split()).replace("|", "\\|")
    default = option.get_help_extra(context).get("default")
    notes = ["required"] if option.required else []
    if isinstance(option.type, click.Choice):
        notes.append("one of " + ", ".join(f"`{choice}`" for choice in option.type.choices))
    notes += [f"default `{default}`"] if default else []
    notes += ["may be repeated"] if option.multiple and "repeated" not in text else []
    return f"{text} ({'; '.join(notes)})" if notes else text


PAGES = {"cli.md": make_commands, "options.md": make_options}


if __name__ == "__main__":
    for name, make in PAGES.items():
        if "--write" in sys.argv:
            (REFERENCE / name).write_text(make(), encoding="utf-8")
        else:
            sys.stdout.write(make())
