"""A pipeline read from a TOML file: every key, type and name is checked; nothing is run."""

from __future__ import annotations

import os
import re
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from intarsia.common.names import suggest_names
from intarsia.core.rule import Clause
from intarsia.errors import InputError, NothingMatched, StorageError
from intarsia.pipeline.environments import (
    apply_environment,
    check_additions,
    choose_environment,
    move_state,
)
from intarsia.pipeline.graph import SourceGraph, read_function, read_query_text
from intarsia.pipeline.model import (
    KINDS,
    EngineOfPipeline,
    LineageSettings,
    Pipeline,
    Source,
    SparkSettings,
    Step,
    Stream,
    Target,
    list_names,
    name_step,
)
from intarsia.pipeline.places import add_line, find_toml_lines
from intarsia.pipeline.quality.references import list_referenced_sources
from intarsia.pipeline.validation import check
from intarsia.sql.query import list_variables

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
_VARIABLE = re.compile(r"\$(\$)|\$\{([^}]*)\}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_]\w*")
_TOP = (
    *("name", "engine", "reports", "state", "params", "spark", "lineage"),
    *("sources", "targets", "steps", "env"),
)
_MEANT = {"key": "on", "keys": "on", "key_columns": "on", "order_by": "dedup_order_by", "columns": "by"}
"""Keys that other functions have, and what they are called here."""
_WORDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


def load_toml(
    path: str | os.PathLike[str],
    *,
    params: Mapping[str, str] | None = None,
    env: str | None = None,
    engine: EngineOfPipeline | None = None,
) -> Pipeline:
    """Read a pipeline from a TOML file, and check it; :func:`intarsia.pipeline.load` says how."""
    file = Path(path)
    text = read_declaration(file, "pipeline")
    return loads(text, origin=str(file), directory=file.parent, params=params, env=env, engine=engine)


def read_declaration(file: Path, what: str) -> str:
    """The text of a file that declares a pipeline or tests of one."""
    try:
        return file.read_bytes().decode("utf-8")
    except FileNotFoundError as error:
        beside = sorted(one.name for one in file.parent.glob("*.toml") if not one.name.endswith(".test.toml"))
        start = "intarsia init writes a project with one." if what == "pipeline" else None
        raise NothingMatched(
            f"There is no {what} file {file}.",
            path=str(file),
            hint=suggest_names([file.name], beside) if beside else start,
        ) from error
    except IsADirectoryError as error:
        raise InputError(
            f"{file} is a directory.",
            path=str(file),
            hint=f"name the {what} file, such as {file / 'orders.toml'}.",
        ) from error
    except OSError as error:
        raise StorageError(
            f"Could not read {file}: {error.strerror}", errno=error.errno, path=str(file)
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text: {error}", path=str(file)) from error


def loads(
    text: str,
    *,
    origin: str = "pipeline",
    directory: str | os.PathLike[str] = ".",
    params: Mapping[str, str] | None = None,
    env: str | None = None,
    engine: EngineOfPipeline | None = None,
) -> Pipeline:
    """Read a pipeline from text, and check it, as :func:`load` does.

    Args:
        text: TOML.
        origin: what errors call it.
        directory: what relative paths are relative to.
        params: values for parameters; they come before those of the text's own ``[params]``.
        env: the environment, as of :func:`load`.
        engine: instead of the text's own.

    Raises:
        InputError: not TOML, an unknown key, a value of the wrong type, an unknown name, a circle.
        NotSupported: a target of a kind that this version does not have.

    Example:
        >>> from pathlib import Path
        >>> from intarsia import pipeline
        >>> pipeline.loads(Path("orders.toml").read_text()).name
        'orders'
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{origin} is not TOML: {error}", path=origin) from error
    reader = TableReader(origin, Path(directory).absolute(), params or {})
    lines = find_toml_lines(text, choose_environment(env))
    with add_line(lines, origin):
        return reader.read_all(raw, env=env, engine=engine, lines=lines)


class TableReader:
    """Reads the tables of a pipeline file, or the same tables that a module declares."""

    def __init__(self, origin: str, directory: Path, params: Mapping[str, str]) -> None:
        self.origin = origin
        self.directory = directory
        self.given = params
        self.own: dict[str, str] = {}
        self.typed: dict[str, Any] = {}
        """The parameters of the file as they stand there: their types are those of bound values."""
        self.tables: set[str] = set()
        """The names of sources and targets."""
        self.used: set[str] = set()
        self.variables: dict[str, dict[str, str]] = {}
        """By place: the variables that were substituted there, and their values."""

    def read_all(
        self, raw: dict[str, Any], *, env: str | None, engine: str | None, lines: Mapping[str, int]
    ) -> Pipeline:
        """The pipeline of a file's tables, with those of an environment over them, checked."""
        env = choose_environment(env)
        self._check_keys("the file", raw, _TOP)
        tables = apply_environment(raw, env, _TOP, self.make_error)
        pipeline = self.read_pipeline(tables if engine is None else {**tables, "engine": engine})
        pipeline = replace(pipeline, lines=lines)
        if env is not None:
            own = raw["env"][env]
            reports, state = move_state(
                pipeline.name, env, reports=pipeline.reports, state=pipeline.state, own=own
            )
            pipeline = replace(pipeline, env=env, reports=reports, state=state)
        check(pipeline)
        if env is not None:
            check_additions(raw, pipeline, self.make_error)
        return replace(pipeline, scopes=self.find_scopes(pipeline))

    def read_pipeline(self, raw: dict[str, Any]) -> Pipeline:
        self.typed = self._check_table("[params]", raw.get("params", {}))
        self.tables = {name for key in ("sources", "targets") for name, _ in self._list_named(raw, key)}
        self.own = self._read_texts("[params]", self.typed)
        steps = raw.get("steps", [])
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            raise self.make_error("steps", "steps are tables: [[steps]].")
        pipeline = Pipeline(
            name=self._read_value("name", raw.get("name", Path(self.origin).stem), str),
            engine=self._read_value("engine", raw.get("engine", "spark"), EngineOfPipeline),
            reports=self.resolve_path(self._read_value("reports", raw.get("reports", "reports"), str)),
            state=self.resolve_path(self._read_value("state", raw["state"], str)) if "state" in raw else None,
            spark=self._make_value("[spark]", raw.get("spark", {}), SparkSettings),
            lineage=self._read_lineage(raw["lineage"]) if "lineage" in raw else None,
            sources={
                name: self._read_source(name, entry) for name, entry in self._list_named(raw, "sources")
            },
            targets={
                name: self._read_target(name, entry) for name, entry in self._list_named(raw, "targets")
            },
            steps=tuple(self._read_step(number, step) for number, step in enumerate(steps, 1)),
            origin=self.origin,
        )
        unused = [name for name in self.given if name not in self.used and name not in self.own]
        if unused:
            known = sorted({*self.own, *self.used})
            raise self.make_error(
                "params", f"it has no parameter {unused[0]!r}.", suggest_names([unused[0]], known)
            )
        met = {name for variables in self.variables.values() for name in variables}
        declared = [name for name in {**self.own, **self.given} if name in met]
        return replace(pipeline, params={name: self._read_param(name) for name in declared})

    def _read_param(self, name: str) -> Any:
        return self._convert_parameter("[params]", name, self.fill_variables("[params]", f"${{{name}}}"))

    def find_scopes(self, pipeline: Pipeline) -> dict[str, str]:
        """By step: its variables in SQL texts and fields; those in paths and credentials select no rows.

        Of a step with a computed source, all variables of the sources that it reads.
        """
        graph = SourceGraph(pipeline)
        scopes = {}
        for number, step in enumerate(pipeline.steps, 1):
            name = name_step(step, number)
            own = _describe_step(number, step.name)
            named = [step.source, *list_referenced_sources(step, pipeline)]
            places = [f"[sources.{source}] {key}" for source in named for key in ("where", "derive")]
            places += [f"{own} {key}" for key in step.list_given() if key not in ("name", "options")]
            read = [one for name in named if name in graph.codes for one in graph.list_sources(name)]
            below = tuple(f"[sources.{one}] " for one in read)
            met: dict[str, str] = {}
            for found, variables in self.variables.items():
                if found.startswith(below) or any(
                    found == place or found.startswith((f"{place}.", f"{place}[")) for place in places
                ):
                    met |= variables
            if met:
                scopes[name] = ", ".join(f"{key}={value}" for key, value in sorted(met.items()))
        return scopes

    def make_error(self, place: str, message: str, hint: str | None = None) -> InputError:
        return InputError(f"{self.origin}, {place}: {message}", path=self.origin, hint=hint)

    def resolve_path(self, path: str) -> str:
        """A path of the file, which may be relative to it, as an absolute one."""
        if not path or _URL.match(path):
            return path
        return os.path.join(self.directory, os.path.expanduser(path))

    # Tables

    def _list_named(self, raw: dict[str, Any], key: str) -> list[tuple[str, Any]]:
        return list(self._check_table(f"[{key}]", raw.get(key, {})).items())

    def _check_table(self, place: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.make_error(place, f"it must be a table, not {_describe_kind(value)}.")
        return value

    def _check_keys(self, place: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
        for key in table:
            if key not in known:
                meant = _MEANT.get(key)
                hint = f"did you mean {meant!r}?" if meant in known else suggest_names([key], sorted(known))
                raise self.make_error(place, f"the key {key!r} is not known.", hint)

    def _make_value(self, place: str, raw: Any, kind: type[Any]) -> Any:
        """The value of a dataclass from a table with its fields as keys."""
        needed = [
            entry.name
            for entry in fields(kind)
            if entry.default is MISSING and entry.default_factory is MISSING
        ]
        known = tuple(entry.name for entry in fields(kind))
        return kind(**self._check_type(place, self._check_table(place, raw), kind, known, needed))

    def _check_type(
        self,
        place: str,
        table: Mapping[str, Any],
        kind: Any,
        known: Sequence[str],
        needed: Sequence[str] = (),
    ) -> dict[str, Any]:
        """The entries of a table, each of the type that the kind has for it."""
        self._check_keys(place, table, known)
        for name in needed:
            if name not in table:
                raise self.make_error(place, f"the key {name!r} is missing.")
        hints = get_type_hints(kind)
        return {key: self._read_value(f"{place} {key}", value, hints[key]) for key, value in table.items()}

    def _read_lineage(self, raw: Any) -> LineageSettings:
        table = self._check_table("[lineage]", raw)
        known = tuple(entry.name for entry in fields(LineageSettings))
        try:
            made = LineageSettings(**self._check_type("[lineage]", table, LineageSettings, known))
        except InputError as error:
            if error.path is not None:
                raise
            raise self.make_error("[lineage]", error.message) from error
        return made if made.file is None else replace(made, file=self.resolve_path(made.file))

    def _read_source(self, name: str, raw: Any) -> Source:
        place = f"[sources.{name}]"
        table = self._check_table(place, raw)
        query = table.get("sql")  # its parameters are bound, not substituted
        if query is not None and not isinstance(query, str):
            raise self.make_error(f"{place} sql", f"it must be text, not {_describe_kind(query)}.")
        rest = {key: value for key, value in table.items() if key not in ("sql", "stream")}
        stream = self._read_stream(f"{place} stream", table["stream"]) if "stream" in table else None
        made: Source = replace(self._make_value(place, rest, Source), sql=query, stream=stream)
        made = replace(made, path=tuple(map(self.resolve_path, list_names(made.path))))
        if made.sql_file is not None:
            made = replace(made, sql_file=self.resolve_path(made.sql_file))
        if made.python is not None:
            return self._bind_arguments(place, replace(made, python=self.resolve_path(made.python)))
        return made if made.sql is None and made.sql_file is None else self._bind_parameters(place, made)

    def _bind_arguments(self, place: str, source: Source) -> Source:
        """The source with a value for each parameter of its function that is one of the pipeline."""
        try:
            names = [one.name for one in read_function(source.python or "").parameters]
        except InputError:  # the graph of sources says what is wrong, with its place
            return source
        bound: dict[str, Any] = {}
        for name in names:
            if name in {*self.own, *self.given} - {*self.tables, *source.params}:
                value = self.fill_variables(f"{place} python", f"${{{name}}}")
                bound[name] = self._convert_parameter(f"{place} python", name, value)
        return replace(source, params={**source.params, **bound})

    def _read_stream(self, place: str, raw: Any) -> Stream:
        made: Stream = self._make_value(place, raw, Stream)
        if made.path is not None:
            made = replace(made, path=self.resolve_path(made.path))
        if made.checkpoint is not None:
            made = replace(made, checkpoint=self.resolve_path(made.checkpoint))
        return made

    def _bind_parameters(self, place: str, source: Source) -> Source:
        """The source with a value for each parameter of its query."""
        key = "sql" if source.sql_file is None else "sql_file"
        try:
            text = read_query_text(source)
        except InputError as error:
            raise self.make_error(f"{place} {key}", error.message, error.hint) from error
        bound: dict[str, Any] = {}
        for name in list_variables(text):
            if name not in source.params:
                value = self.fill_variables(f"{place} {key}", f"${{{name}}}")
                bound[name] = self._convert_parameter(f"{place} {key}", name, value)
        return replace(source, params={**source.params, **bound})

    def _convert_parameter(self, place: str, name: str, text: str) -> Any:
        """A parameter's value in the type that it has in ``[params]``; text where it has none there."""
        usual = self.typed.get(name, "")
        try:
            match usual:
                case bool():
                    return {"true": True, "false": False}[text.lower()]
                case int() | float():
                    return type(usual)(text)
                case datetime() | date() | time():
                    return type(usual).fromisoformat(text)
        except (ValueError, KeyError) as error:
            raise self.make_error(
                place, f"${{{name}}} is {text!r}, and in [params] it is {_describe_kind(usual)}."
            ) from error
        return text

    def _read_target(self, name: str, raw: Any) -> Target:
        made: Target = self._make_value(f"[targets.{name}]", raw, Target)
        options = made.options.copy()
        if (path := options.get("control_path")) is not None:
            options["control_path"] = self.resolve_path(os.fspath(path))
        return replace(
            made,
            path=self.resolve_path(made.path) if made.kind == "parquet" else made.path,
            partition_by=list_names(made.partition_by),
            catalog=self.resolve_path(made.catalog) if "/" in made.catalog else made.catalog,
            options=options,
        )

    def _read_step(self, number: int, raw: dict[str, Any]) -> Step:
        place = _describe_step(number, raw.get("name"))
        if "operation" not in raw:
            raise self.make_error(
                place, "the key 'operation' is missing.", f"it is one of {', '.join(KINDS)}."
            )
        operation = self._read_value(f"{place} operation", raw["operation"], str)
        if operation not in KINDS:
            raise self.make_error(
                f"{place} operation", f"there is no {operation!r}.", suggest_names([operation], sorted(KINDS))
            )
        kind = KINDS[operation]
        rest = {key: value for key, value in raw.items() if key != "operation"}
        typed = self._check_type(place, rest, kind, kind.list_keys(), kind.needs)
        try:
            return kind(**typed)
        except InputError as error:
            raise self.make_error(place, error.message, error.hint) from error

    # Values

    def _read_value(self, place: str, value: Any, hint: Any) -> Any:
        """The value with variables substituted; InputError where it is not of the type."""
        origin = get_origin(hint)
        if isinstance(value, Clause):  # of a pipeline that is declared in Python
            return value
        if hint is Any:
            return self._read_any(place, value)
        if origin in (Union, types.UnionType):
            return self._read_union(place, value, get_args(hint))
        if origin is Literal:
            return self._read_word(place, value, get_args(hint))
        if is_typeddict(hint):
            return self._check_type(place, self._check_table(place, value), hint, tuple(get_type_hints(hint)))
        if origin is tuple:
            return self._read_list(place, value, get_args(hint)[0])
        if origin is not None and issubclass(origin, Mapping):
            inner = get_args(hint)[1]
            table = self._check_table(place, value)
            return {key: self._read_value(f"{place}.{key}", item, inner) for key, item in table.items()}
        if not _is(value, hint):
            raise self.make_error(place, f"it must be {_WORDS[hint]}, not {_describe_kind(value)}.")
        return self.fill_variables(place, value) if hint is str else value

    def _read_union(self, place: str, value: Any, kinds: tuple[Any, ...]) -> Any:
        wanted = [kind for kind in kinds if kind in _WORDS or get_origin(kind) is not None]
        for kind in wanted:
            if get_origin(kind) is tuple and isinstance(value, list):
                return self._read_value(place, value, kind)
            if get_origin(kind) is Mapping and isinstance(value, dict):
                return self._read_value(place, value, kind)
            if get_origin(kind) is None and _is(value, kind):
                return self._read_value(place, value, kind)
        if len(wanted) == 1:
            return self._read_value(place, value, wanted[0])
        words = [_WORDS.get(kind, "a list" if get_origin(kind) is tuple else "a table") for kind in wanted]
        quoted = 'a key with dots is quoted, as in "kafka.bootstrap.servers" = ...'
        hint = quoted if isinstance(value, dict) and " options." in place else None
        raise self.make_error(place, f"it must be {' or '.join(words)}, not {_describe_kind(value)}.", hint)

    def _read_word(self, place: str, value: Any, words: tuple[str, ...]) -> str:
        word = self._read_value(place, value, str)
        if word not in words:
            raise self.make_error(
                place, f"{word!r} is not one of {', '.join(words)}.", suggest_names([word], sorted(words))
            )
        return str(word)

    def _read_list(self, place: str, value: Any, inner: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise self.make_error(place, f"it must be a list, not {_describe_kind(value)}.")
        return tuple(self._read_value(f"{place}[{number}]", item, inner) for number, item in enumerate(value))

    def _read_any(self, place: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._read_any(f"{place}.{key}", item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._read_any(place, item) for item in value]
        return self.fill_variables(place, value) if isinstance(value, str) else value

    def _read_texts(self, place: str, table: Mapping[str, Any]) -> dict[str, str]:
        return {key: self._read_text(f"{place} {key}", value) for key, value in table.items()}

    def _read_text(self, place: str, value: Any) -> str:
        if isinstance(value, (dict, list)):
            raise self.make_error(place, f"it must be a single value, not {_describe_kind(value)}.")
        return str(value).lower() if isinstance(value, bool) else str(value)

    # Variables

    def fill_variables(self, place: str, text: str, within: tuple[str, ...] = ()) -> str:
        """The text with its variables substituted."""
        return _VARIABLE.sub(lambda match: self._substitute(place, match, within), text)

    def _substitute(self, place: str, match: re.Match[str], within: tuple[str, ...]) -> str:
        value = self._get_variable(place, match, within)
        if not within and not match[1]:
            self.variables.setdefault(place, {})[match[2]] = value
        return value

    def _get_variable(self, place: str, match: re.Match[str], within: tuple[str, ...]) -> str:
        if match[1]:
            return "$"
        name = match[2]
        if not _VARIABLE_NAME.fullmatch(name):
            raise self.make_error(place, f"{match[0]} names no variable.", "write $${ for the characters ${")
        if name in within:
            raise self.make_error(place, f"${{{name}}} stands for itself: {' -> '.join((*within, name))}.")
        if name in self.given:
            self.used.add(name)
            return str(self.given[name])
        if name in self.own:
            return self.fill_variables(f"[params] {name}", self.own[name], (*within, name))
        if name in os.environ:
            return os.environ[name]
        raise self.make_error(
            place,
            f"${{{name}}} is neither a parameter nor an environment variable.",
            f"pass --param {name}=..., or set {name}.",
        )


def _describe_step(number: int, name: Any) -> str:
    return f"[[steps]] {number} ({name})" if isinstance(name, str) and name else f"[[steps]] {number}"


def _is(value: Any, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _describe_kind(value: Any) -> str:
    """A TOML value described for an error."""
    match value:
        case bool():
            return f"the truth value {str(value).lower()}"
        case str():
            return f"the text {value!r}"
        case int() | float():
            return f"the number {value}"
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return f"a {type(value).__name__}"
