"""Pipelines from files: TOML, or a Python module that declares them; both make the same values."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from intarsia.common.names import suggest_names
from intarsia.errors import InputError, IntarsiaError, NothingMatched
from intarsia.pipeline import validation
from intarsia.pipeline.local_modules import (
    LocalImports,
    describe_lines,
    find_local_modules,
    parse_module,
    read_text_file,
)
from intarsia.pipeline.model import EngineOfPipeline, Pipeline
from intarsia.pipeline.parse import TableReader, load_toml
from intarsia.pipeline.places import add_line

__all__ = ["check", "load", "resolve"]


def load(
    path: str | os.PathLike[str],
    *,
    params: Mapping[str, str] | None = None,
    env: str | None = None,
    engine: EngineOfPipeline | None = None,
) -> Pipeline:
    """Read a pipeline from a file, and check it.

    ``${name}`` in any text is the parameter of that name, else the environment variable; ``$$`` is a
    dollar sign. Relative paths are relative to the file. A Python file is run as a module of its own; what it
    imports from its directory is imported anew.

    Args:
        path: the TOML file, or a Python file that declares a pipeline; ``orders.py:daily`` chooses one of
            several by the name of its variable.
        params: values for parameters; they come before those of the file's own ``[params]``.
        env: the environment, whose ``[env.NAME]`` overrides what the file says; None takes the one that
            ``INTARSIA_ENV`` names, if it is set.
        engine: instead of the file's own.

    Raises:
        InputError: not TOML or Python, an unknown key, a value of the wrong type, an unknown name, a circle,
            a module that fails or declares no pipeline; with the line where there is one.
        NothingMatched: there is no such file.
        NotSupported: a target of a kind that this version does not have.

    Example:
        >>> from intarsia import pipeline
        >>> [step.operation for step in pipeline.load("orders.toml").steps]
        ['merge']
    """
    file, variable = split_path(os.fspath(path))
    if not file.endswith(".py"):
        return load_toml(path, params=params, env=env, engine=engine)
    return resolve(_load_module(file, variable), params=params, env=env, engine=engine)


def check(pipeline: Pipeline) -> None:
    """Check that names exist, steps can run and there is no circle. Reads no data.

    Args:
        pipeline: what :func:`load` gave, or one made in Python.

    Raises:
        InputError: the pipeline is not consistent; the message says where.
        NotSupported: a target of a kind that this version does not have.

    Example:
        >>> from intarsia import pipeline
        >>> pipeline.check(pipeline.load("orders.toml"))
    """
    validation.check(resolve(pipeline))


def resolve(
    pipeline: Pipeline,
    *,
    params: Mapping[str, str] | None = None,
    env: str | None = None,
    engine: EngineOfPipeline | None = None,
) -> Pipeline:
    """The value of an open pipeline: parameters and environment applied, paths absolute, all checked.

    One that is a value already is returned as it is.

    Raises:
        InputError: as :func:`load`; parameters or an environment for a pipeline that can have none.
    """
    if not pipeline.is_open:
        for word, given in (("parameter", next(iter(params or ()), None)), ("environment", env)):
            if given is not None:
                raise InputError(
                    f"pipeline {pipeline.name!r} has no {word} {given!r}.",
                    hint=f'it was made with all its steps; begin it with Pipeline("{pipeline.name}").',
                )
        return pipeline if engine is None else replace(pipeline, engine=engine)
    origin = pipeline.origin or f"pipeline {pipeline.name!r}"
    directory = os.path.dirname(pipeline.origin) if pipeline.origin else "."
    reader = TableReader(origin, Path(directory).absolute(), params or {})
    with add_line(pipeline.lines, origin):
        return reader.read_all(make_tables(pipeline), env=env, engine=engine, lines=pipeline.lines)


def make_tables(pipeline: Pipeline) -> dict[str, Any]:
    """An open pipeline as the tables that a file with the same declarations has."""
    made = {
        "name": pipeline.name,
        "engine": pipeline.engine,
        "reports": pipeline.reports,
        "state": pipeline.state,
        "params": pipeline.params,
        "spark": _list_given(pipeline.spark),
        "sources": {name: _list_given(source) for name, source in pipeline.sources.items()},
        "targets": {name: _list_given(target) for name, target in pipeline.targets.items()},
        "steps": [{"operation": step.operation, **step.list_given()} for step in pipeline.steps],
        "env": pipeline.environments,
    }
    return {key: _as_plain(value) for key, value in made.items() if value is not None}


def _list_given(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that are not at their defaults."""
    usual = {
        entry.name: entry.default_factory() if entry.default_factory is not MISSING else entry.default
        for entry in fields(value)
    }
    return {name: getattr(value, name) for name in usual if getattr(value, name) != usual[name]}


def _as_plain(value: Any) -> Any:
    """A value of Python as TOML would have it."""
    if isinstance(value, Mapping):
        return {str(key): _as_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_plain(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


# Modules


def split_path(path: str) -> tuple[str, str | None]:
    """The file and the variable in ``orders.py:daily``; None where no variable is named."""
    file, colon, variable = path.rpartition(":")
    return (file, variable) if colon and file.endswith(".py") else (path, None)


def _load_module(path: str, variable: str | None) -> Pipeline:
    """The pipeline that a Python file declares."""
    file = str(Path(path).absolute())
    if not os.path.exists(file):
        raise NothingMatched(f"There is no pipeline file {path}.", path=path)
    text = read_text_file(file)
    parse_module(file, text)
    name = f"intarsia_pipeline_{uuid.uuid4().hex}"
    try:
        imports = LocalImports(find_local_modules(file, text))
        with _translate_failure(file, path, imports):
            module = imports.run_file(name, file, text)
    finally:
        sys.modules.pop(name, None)
    found = {key: value for key, value in vars(module).items() if isinstance(value, Pipeline)}
    chosen = _choose(found, path, variable)
    return replace(chosen, origin=path) if chosen.is_open and chosen.origin == file else chosen


def _choose(found: Mapping[str, Pipeline], path: str, variable: str | None) -> Pipeline:
    names = ", ".join(sorted(found))
    if variable is not None:
        if variable not in found:
            there = f"there is {names}." if found else None
            raise InputError(
                f"{path} has no pipeline {variable!r}.",
                path=path,
                hint=suggest_names([variable], sorted(found), otherwise=there),
            )
        return found[variable]
    several = {id(value): value for value in found.values()}
    if not several:
        raise InputError(
            f"{path} declares no pipeline.",
            path=path,
            hint='begin it with orders = pipeline.Pipeline("orders"), at the top of the file.',
        )
    if len(several) > 1:
        raise InputError(
            f"{path} declares several pipelines: {names}.",
            path=path,
            hint=f"choose one, as in {path}:{min(found)}.",
        )
    return next(iter(several.values()))


@contextmanager
def _translate_failure(file: str, path: str, imports: LocalImports) -> Iterator[None]:
    """Translate whatever a module raises, with its file and line."""
    try:
        yield
    except (Exception, SystemExit) as error:  # a module may raise anything
        where = f"{path}{describe_lines(error, file, imports.modules)}"
        if isinstance(error, IntarsiaError):
            raise type(error)(f"{where}: {error.message}", path=path, hint=error.hint) from error
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise InputError(f"{where} failed: {said}", path=path) from error
