"""Shell completion of the steps and environments of a pipeline file, which is read and never run."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from intarsia.pipeline.environments import name_raw_step
from intarsia.pipeline.model import KINDS

__all__ = ["offer_environments", "offer_steps"]


def offer_steps(pipeline: str, incomplete: str) -> list[str]:
    """The steps of a pipeline file that begin with what is typed."""
    before, comma, last = incomplete.rpartition(",")
    tables, calls = _read(pipeline)
    steps = tables.get("steps")
    steps = steps if isinstance(steps, list) else []  # a file that is being written may have anything
    known = [name_raw_step(step, number) for number, step in enumerate(steps, 1) if isinstance(step, dict)]
    known += [name for operation in KINDS for name in _list_texts(calls, operation, "name")]
    return [f"{before}{comma}{name}" for name in known if name.startswith(last)]


def offer_environments(pipeline: str, incomplete: str) -> list[str]:
    """The environments of a pipeline file that begin with what is typed."""
    tables, calls = _read(pipeline)
    declared = tables.get("env")
    known = [*(declared if isinstance(declared, dict) else ()), *_list_texts(calls, "environment", "name")]
    return [name for name in known if name.startswith(incomplete)]


def _read(path: str) -> tuple[dict[str, Any], list[ast.Call]]:
    """The tables of a TOML file, or the calls in a Python file."""
    try:
        file, python, _ = path.partition(".py")  # orders.py:daily
        text = Path(f"{file}{python}").read_text("utf-8")
        if not python:
            return tomllib.loads(text), []
        return {}, [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    except (OSError, ValueError, SyntaxError):  # a shell is not told of errors
        return {}, []


def _list_texts(calls: list[ast.Call], method: str, keyword: str) -> Iterator[str]:
    """The texts that calls of a method give for a keyword; of ``environment``, for its first argument."""
    for call in calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != method:
            continue
        given = [one.value for one in call.keywords if one.arg == keyword]
        given += call.args[:1] if method == "environment" else []
        for value in given:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value
