"""Options that several commands have, and how their texts are parsed; no command is in here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import click
import click.shell_completion

from intarsia.cli.screen import get_screen
from intarsia.common.names import find_near_names
from intarsia.engine_choice import DeferredSession
from intarsia.options import ICEBERG_OPTIONS, KEYWORDS

__all__ = [
    "Decorator",
    "check_spark_table",
    "decorate",
    "engine_options",
    "library_options",
    "offer_paths",
    "open_engine",
    "parse_pairs",
    "place_options",
    "talk_options",
    "without_none",
]

Decorator = Callable[[Any], Any]

_FLAGS = ("dialect", *ICEBERG_OPTIONS)
"""Options that have a flag of their own."""
_NAMED = sorted(name for name, option in KEYWORDS.items() if option.is_text and name not in _FLAGS)


def offer_paths(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[click.shell_completion.CompletionItem]:
    """Shell completion of files and directories."""
    return [click.shell_completion.CompletionItem(incomplete, type="file")]


def decorate(function: Any, decorators: Sequence[Decorator]) -> Any:
    """Add options to a function, in the order in which the help shows them."""
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def parse_pairs(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """``name=text`` options as a dict; click.BadParameter without a name, or for one that is given twice."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not name=value.", ctx, param)
        if name in found:
            raise click.BadParameter(f"{name!r} is given twice.", ctx, param)
        found[name] = value
    return found


def _parse_options(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> dict[str, Any]:
    found = parse_pairs(ctx, param, given)
    for name in found:
        if name not in _NAMED:
            near = find_near_names(name, _NAMED)
            told = f"did you mean {near[0]!r}?" if near else f"There is {', '.join(_NAMED)}."
            raise click.BadParameter(f"there is no {name!r}. {told}", ctx, param)
    return {name: _parse_value(value) for name, value in found.items()}


def _parse_value(text: str) -> Any:
    """A number, true, false or null where the text is one; else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _note_flag(name: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def note(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            with ctx.scope(cleanup=False):
                setattr(get_screen(), name, True)

    return note


def _talk_option(flag: str, name: str, text: str) -> Decorator:
    return click.option(
        *flag.split("/"),
        name,
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_note_flag(name),
        help=text,
    )


talk_options: list[Decorator] = [
    _talk_option("--json", "json", "One JSON document on standard output; errors as JSON on standard error."),
    _talk_option("-q/--quiet", "quiet", "Say nothing but errors."),
    _talk_option("-v/--verbose", "verbose", "Tell what is done."),
    _talk_option("--debug", "debug", "Show where an error comes from."),
]

engine_options: list[Decorator] = [
    click.option(
        "--engine",
        type=click.Choice(["auto", "arrow", "duckdb", "spark"]),
        default="auto",
        show_default=True,
        help="What moves the rows.",
    ),
    click.option(
        "--master", metavar="URL", help="Where Spark runs: local[*], spark://, yarn, k8s://, sc://."
    ),
]

place_options: list[Decorator] = [
    click.option(
        "--storage-option",
        "storage_options",
        metavar="NAME=VALUE",
        multiple=True,
        callback=parse_pairs,
        help="For opening a URL; may be repeated.",
    ),
    click.option(
        "--control-path",
        metavar="PATH",
        shell_complete=offer_paths,
        help=KEYWORDS["control_path"].help,
    ),
]

library_options: list[Decorator] = [
    click.option(
        "--option",
        "options",
        metavar="NAME=VALUE",
        multiple=True,
        callback=_parse_options,
        help="Any other option of the library, such as compression=zstd or threads=4; may be repeated.",
    ),
    click.option("--dialect", help=KEYWORDS["dialect"].help),
]


def without_none(**given: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in given.items() if value is not None and value != () and value != {}}


def check_spark_table(engine: str, catalog: str | None, of_paths: Mapping[str, Any]) -> None:
    """Raise click.UsageError for what does not go with --spark-table."""
    others = {"--catalog": catalog, **of_paths}
    given = next((flag for flag, value in others.items() if value), None)
    if given is not None:
        raise click.UsageError(f"{given} does not go with --spark-table.")
    if engine not in ("auto", "spark"):
        raise click.UsageError(f"--spark-table goes with --engine spark, not with {engine}.")


@contextmanager
def open_engine(engine: str, master: str | None) -> Iterator[Any]:
    """The value for ``engine=``.

    A Spark session is opened when it is needed, and stopped afterwards unless it was active before.
    """
    if master is not None and engine not in ("auto", "spark"):
        raise click.UsageError(f"--master goes with --engine spark, not with {engine}.")
    if engine != "spark" and master is None:
        yield engine
        return
    from intarsia.spark.session import describe_master, session_on

    describe_master(master)  # raises InputError at once for a wrong one
    with ExitStack() as stack:
        yield DeferredSession(lambda: stack.enter_context(session_on(master)))
