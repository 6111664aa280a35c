"""``intarsia graph``: what a pipeline reads and writes, as a tree, a picture, Mermaid or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import click

from intarsia import pipeline
from intarsia.cli.screen import get_screen
from intarsia.errors import InputError, StorageError

__all__ = ["FORMATS", "show_graph"]

Format = Literal["text", "svg", "mermaid", "json"]
FORMATS: tuple[Format, ...] = ("text", "svg", "mermaid", "json")
_ENDINGS: Mapping[str, Format] = {
    ".svg": "svg",
    ".mmd": "mermaid",
    ".mermaid": "mermaid",
    ".json": "json",
    ".txt": "text",
}


def show_graph(
    path: str, *, params: Mapping[str, str], env: str | None, format: Format | None, output: str | None
) -> None:
    """Write the graph of a pipeline file to standard output or to a file; nothing is run.

    Raises:
        InputError: the pipeline is not consistent, or the ending of ``output`` says no format.
        StorageError: the file cannot be written.
    """
    shown = get_screen()
    chosen = _choose_format(format, output, is_json=shown.json)
    with shown.log():
        drawn = pipeline.draw(pipeline.load(path, params=params, env=env), chosen)
    text = drawn if drawn.endswith("\n") else f"{drawn}\n"
    if output is None or output == "-":
        click.echo(text, nl=False)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"Could not write {output}: {error.strerror}", errno=error.errno, path=output
        ) from error
    if shown.json:
        shown.show_json({"output": output, "graph": json.loads(text) if chosen == "json" else None})
    shown.say(f"Graph: {output}")


def _choose_format(asked: Format | None, output: str | None, *, is_json: bool) -> Format:
    if asked is not None:
        return asked
    if output is None or output == "-":
        return "json" if is_json else "text"
    found = _ENDINGS.get(Path(output).suffix.lower())
    if found is None:
        raise InputError(
            f"The name {output} does not say what to write.",
            hint=f"end it in {', '.join(_ENDINGS)}, or give --format.",
        )
    return found
