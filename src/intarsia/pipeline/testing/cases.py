"""Tests of pipelines, read from TOML files: what is given and what is expected; nothing is run here."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from pathlib import Path
from typing import Any

from intarsia.common.names import suggest_names
from intarsia.errors import InputError, NothingMatched
from intarsia.pipeline.model import Columns
from intarsia.pipeline.parse import read_declaration

__all__ = ["ENDING", "CaseTable", "PipelineTestCase", "find_cases"]

ENDING = ".test.toml"
_PIPELINES = (".toml", ".py")
_ROWS = ("rows", "csv", "file")


@dataclass(frozen=True, slots=True)
class CaseTable:
    """Rows that a test gives or expects: in the file itself, as text, or in a file beside it."""

    place: str
    """Where it is declared, for errors."""
    rows: tuple[Mapping[str, Any], ...] | None = None
    csv: str | None = None
    file: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    """SQL types of columns, where the pipeline does not declare them."""
    key: Columns = ()
    """Of expected rows: the columns that identify a row, where no merge says so."""
    partition_by: Columns = ()
    """Of the given rows of a table of a catalog: its partition columns."""


@dataclass(frozen=True, slots=True)
class PipelineTestCase:
    """One test of a pipeline."""

    name: str
    file: str
    pipeline: str
    """The file of the pipeline."""
    given: Mapping[str, CaseTable] = field(default_factory=dict)
    """By source or target: the rows that are there before the run."""
    expect: Mapping[str, CaseTable] = field(default_factory=dict)
    """By target or source: the rows that are there after the run."""
    params: Mapping[str, str] = field(default_factory=dict)
    runs: int = 1
    """How often it is run; runs after the first must find nothing to do."""
    error: str | None = None
    """A part of the message with which the run must fail."""


def find_cases(path: str | os.PathLike[str]) -> tuple[PipelineTestCase, ...]:
    """Find the tests of a pipeline, of a test file, or of all pipelines in a directory.

    Test files end in ``.test.toml``, and are beside their pipeline or in a directory ``tests`` beside it.

    Raises:
        NothingMatched: there is no such file, or no test.
        InputError: a test file is not TOML, has an unknown key or a value of the wrong type.
    """
    asked = Path(path)
    if asked.name.endswith(ENDING):
        return tuple(_read_cases(asked))
    if not asked.exists():
        raise NothingMatched(f"There is no {asked}.", path=str(asked), hint="name a pipeline or a test file.")
    directory = asked if asked.is_dir() else asked.parent
    files = [file for place in (directory, directory / "tests") for file in sorted(place.glob(f"*{ENDING}"))]
    if asked.is_dir():
        found = [case for file in files for case in _read_cases(file)]
    else:
        ours = [file for file in files if os.path.samefile(_find_pipeline(file, _read_toml(file)), asked)]
        found = [case for file in ours for case in _read_cases(file)]
    if not found:
        stem = "orders" if asked.is_dir() else asked.stem
        where = f"in the directory {asked.resolve()}" if asked.is_dir() else f"of {asked}"
        raise NothingMatched(
            f"There is no test {where}.",
            path=str(asked),
            hint=f"write [[test]] tables into {stem}{ENDING} beside {stem}.toml.",
        )
    return tuple(found)


def _read_toml(file: Path) -> dict[str, Any]:
    text = read_declaration(file, "test")
    try:
        return tomllib.loads(text, parse_float=_parse_number)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file} is not TOML: {error}", path=str(file)) from error


def _parse_number(text: str) -> Decimal | float:
    """All digits of a number, for columns of decimals; infinity and NaN are floats."""
    return float(text) if text.strip("+-") in ("inf", "nan") else Decimal(text)


def _find_pipeline(file: Path, raw: Mapping[str, Any]) -> Path:
    """The pipeline that a test file is about: its key, else what its own name says."""
    if "pipeline" in raw:
        if not isinstance(raw["pipeline"], str):
            raise InputError(f"{file}: pipeline must be the path of a file.", path=str(file))
        named = file.parent / raw["pipeline"]
        if not named.is_file():
            raise NothingMatched(f"{file}: there is no pipeline {named}.", path=str(named))
        return named
    parts = file.name.removesuffix(ENDING).split(".")
    places = (file.parent, file.parent.parent) if file.parent.name == "tests" else (file.parent,)
    for length in range(len(parts), 0, -1):
        for place in places:
            for ending in _PIPELINES:
                found = place / f"{'.'.join(parts[:length])}{ending}"
                if found.is_file():
                    return found
    raise NothingMatched(
        f"{file}: there is no pipeline {parts[0]}.toml for it.",
        path=str(file),
        hint='say which it is: pipeline = "../orders.toml".',
    )


def _read_cases(file: Path) -> Iterator[PipelineTestCase]:
    raw = _read_toml(file)
    _check_keys(f"{file}", raw, ("pipeline", "test"))
    pipeline = _find_pipeline(file, raw)
    tests = raw.get("test", [])
    if not isinstance(tests, list) or not all(isinstance(one, dict) for one in tests):
        raise InputError(f"{file}: tests are tables: [[test]].", path=str(file))
    names: set[str] = set()
    for number, one in enumerate(tests, 1):
        case = _read_case(file, pipeline, number, one)
        if case.name in names:
            raise InputError(f"{file}: two tests are named {case.name!r}.", path=str(file))
        names.add(case.name)
        yield case


def _read_case(file: Path, pipeline: Path, number: int, raw: dict[str, Any]) -> PipelineTestCase:
    name = raw.get("name", f"test {number}")
    place = f"{file}, [[test]] {number} ({name})"
    _check_keys(place, raw, ("name", "given", "expect", "params", "runs", "error"))
    for key, kind, word in (
        ("name", str, "text"),
        ("given", dict, "a table"),
        ("expect", dict, "a table"),
        ("params", dict, "a table"),
        ("runs", int, "a whole number"),
        ("error", str, "text"),
    ):
        if not isinstance(raw.get(key, kind()), kind):
            raise InputError(f"{place}: {key} must be {word}.", path=str(file))
    if raw.get("runs", 1) < 1:
        raise InputError(f"{place}: runs must be at least 1.", path=str(file))
    if not raw.get("expect") and "error" not in raw and raw.get("runs", 1) < 2:
        raise InputError(
            f"{place}: it expects nothing.", path=str(file), hint="add [test.expect.<target>] rows = [...]."
        )
    given, expect = (
        {
            table: _read_table(f"{place}, {part} {table}", value, file.parent, without)
            for table, value in raw.get(part, {}).items()
        }
        for part, without in (("given", "key"), ("expect", "partition_by"))
    )
    params = {
        key: _format_param(f"{place}, params {key}", value) for key, value in raw.get("params", {}).items()
    }
    return PipelineTestCase(
        name, str(file), str(pipeline), given, expect, params, raw.get("runs", 1), raw.get("error")
    )


def _read_table(place: str, raw: Any, directory: Path, without: str) -> CaseTable:
    if not isinstance(raw, dict):
        raise InputError(f"{place}: it must be a table.", hint="write rows = [...] or file = ...")
    known = [one.name for one in fields(CaseTable) if one.name not in ("place", without)]
    _check_keys(place, raw, known)
    if sum(key in raw for key in _ROWS) > 1:
        raise InputError(f"{place}: rows are given in several ways.", hint=f"give one of {', '.join(_ROWS)}.")
    if not any(key in raw for key in (*_ROWS, "columns")):
        raise InputError(f"{place}: it has no rows.", hint=f"give one of {', '.join(_ROWS)}.")
    rows = raw.get("rows", None if "csv" in raw or "file" in raw else [])
    if rows is not None and not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
        raise InputError(f"{place}: rows must be a list of tables.", hint="such as [{ id = 1 }, { id = 2 }].")
    for key in ("csv", "file"):
        if not isinstance(raw.get(key, ""), str):
            raise InputError(f"{place}: {key} must be text.")
    columns = raw.get("columns", {})
    if not isinstance(columns, dict) or not all(isinstance(kind, str) for kind in columns.values()):
        raise InputError(f"{place}: columns must be names and SQL types.")
    file = None if "file" not in raw else str(directory / raw["file"])
    if file is not None and not os.path.isfile(file):
        raise NothingMatched(f"{place}: there is no file {file}.", path=file)
    names = {key: _read_names(place, key, raw.get(key, ())) for key in ("key", "partition_by")}
    return CaseTable(
        place=place,
        rows=None if rows is None else tuple(rows),
        csv=raw.get("csv"),
        file=file,
        columns=columns,
        **names,
    )


def _read_names(place: str, key: str, value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{place}: {key} must be a column or a list of columns.")
    return tuple(names)


def _format_param(place: str, value: Any) -> str:
    if isinstance(value, (dict, list)):
        raise InputError(f"{place}: it must be a single value.")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_keys(place: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            hint = suggest_names([key], sorted(known), otherwise=f"there is {', '.join(known)}.")
            raise InputError(f"{place}: the key {key!r} is not known.", hint=hint)
