"""What queries and functions read: their code, the sources and targets they name, the order that follows."""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from intarsia.common.names import suggest_names
from intarsia.errors import InputError, NotSupported
from intarsia.pipeline.function_source import describe_function_source
from intarsia.pipeline.local_modules import LocalModule, find_local_modules, parse_module, read_text_file
from intarsia.pipeline.model import (
    Merge,
    Pipeline,
    Source,
    Step,
    Write,
    find_written_target,
    is_guard,
    name_step,
)
from intarsia.pipeline.quality.references import list_referenced_sources, list_referenced_targets
from intarsia.sql.query import Query, check_dialect, list_variables, parse_query

SESSIONS = {"spark": "spark", "connection": "duckdb"}
"""Parameters of functions that get the session of an engine, and that engine."""


@dataclass(frozen=True, slots=True)
class NamedInput:
    """A source or a target that a query or a function reads."""

    name: str
    """In the pipeline."""
    written: str
    """In the query or function; SQL does not distinguish upper and lower case."""
    is_target: bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function."""

    name: str
    line: int
    has_default: bool
    annotation: str = ""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a Python file, which is read and not yet run."""

    path: str
    name: str
    text: bytes
    parameters: tuple[Parameter, ...]
    modules: tuple[LocalModule, ...] = ()
    """What its file imports from its own directory, also through others."""
    line: int = 0
    """Of its def."""


@dataclass(frozen=True, slots=True)
class Code:
    """The query or the function of a source, with the sources and targets that it reads."""

    place: str
    """Where it is, for errors."""
    query: Query | None
    function: Function | None
    digest: str
    inputs: tuple[NamedInput, ...] = ()
    path: str | None = None
    """The file that it is in; None where the pipeline is of no file."""
    first_line: int | None = None
    """Of a query within a pipeline file: the line of the file that it begins on."""


def split_function(text: str) -> tuple[str, str]:
    """The file and the name in ``file.py:function``. Raises InputError."""
    path, _, name = text.rpartition(":")
    if not path.endswith(".py") or not name.isidentifier():
        raise InputError(f"{text!r} names no function.", hint='write it as "transforms.py:score".')
    return path, name


def read_query_text(source: Source) -> str:
    """The query of a source, from its file where it has one. Raises InputError."""
    if source.sql_file is None:
        return source.sql or ""
    return read_text_file(source.sql_file).decode("utf-8")


@dataclass(slots=True)
class SourceGraph:
    """The computed sources of a pipeline, each with what it reads; made without running anything.

    Raises:
        InputError: a query or function that cannot be read, an unknown name, sources that read each other in
            a circle; with the place.
        NotSupported: a query, or a function that asks for a session, on an engine that has none.
    """

    pipeline: Pipeline
    codes: dict[str, Code] = field(default_factory=dict)
    """By the name of a computed source: its code."""

    def __post_init__(self) -> None:
        for name, source in self.pipeline.sources.items():
            if source.is_computed:
                self.codes[name] = self._read_code(name, source)
        for name in self.codes:
            self._check_circle(name)

    def list_sources(self, name: str) -> tuple[str, ...]:
        """A source and the sources that it reads, also through others."""
        found = [name]
        for one in found:
            for read in self.codes[one].inputs if one in self.codes else ():
                if not read.is_target and read.name not in found:
                    found.append(read.name)
        return tuple(found)

    def list_streams(self, name: str) -> tuple[str, ...]:
        """The sources that are streams, of those that a source reads or is."""
        return tuple(one for one in self.list_sources(name) if self.pipeline.sources[one].stream is not None)

    def list_targets(self, name: str | None) -> tuple[str, ...]:
        """The targets whose rows a source takes, also through other sources."""
        found: dict[str, None] = {}
        for one in () if name is None else self.list_sources(name):
            target = self.pipeline.sources[one].target
            read = self.codes[one].inputs if one in self.codes else ()
            found |= dict.fromkeys(each.name for each in read if each.is_target)
            found |= {} if target is None else {target: None}
        return tuple(found)

    # Reading code

    def _read_code(self, name: str, source: Source) -> Code:
        key = "python" if source.python is not None else "sql_file" if source.sql_file is not None else "sql"
        place = f"[sources.{name}] {key}"
        try:
            code = self._parse_function(source) if source.python is not None else self._parse_query(source)
            origin = self.pipeline.origin
            own = place if origin is None else f"{os.path.basename(origin)}, {place}"
            first_line = self.pipeline.lines.get(place) if key == "sql" else None
            code = replace(code, place=code.place or own, path=code.path or origin, first_line=first_line)
            return replace(code, inputs=tuple(self._find_inputs(name, source, code)))
        except (InputError, NotSupported) as error:
            where = self.pipeline.origin or f"pipeline {self.pipeline.name!r}"
            told = f"{where}, {place}: {error.message}"
            raise type(error)(told, path=error.path or self.pipeline.origin, hint=error.hint) from error

    def _parse_query(self, source: Source) -> Code:
        dialect = check_dialect(self.pipeline.engine)
        text = read_query_text(source)
        place = "" if source.sql_file is None else os.path.basename(source.sql_file)
        try:
            query = parse_query(text, dialect)
        except InputError as error:
            if not place:
                raise
            raise InputError(f"{place}: {error.message}", path=source.sql_file, hint=error.hint) from error
        _check_params(source, list_variables(text))
        lost = [name for name in query.parameters if name not in source.params]
        if lost:
            raise InputError(f"${{{lost[0]}}} has no value.", hint=f'give params={{"{lost[0]}": ...}}.')
        digest = hashlib.sha256(text.encode()).hexdigest()
        return Code(place, query, None, digest, path=source.sql_file)

    def _parse_function(self, source: Source) -> Code:
        function = read_function(source.python or "")
        place = f"{os.path.basename(function.path)}:{function.name}"
        _check_params(source, [one.name for one in function.parameters])
        for parameter in function.parameters:
            engine = SESSIONS.get(parameter.name, self.pipeline.engine)
            if engine != self.pipeline.engine:
                raise NotSupported(
                    f"{place}, line {parameter.line}: {parameter.name!r} is the session of {engine}, and the"
                    f" engine is {self.pipeline.engine}.",
                    hint=f'use engine = "{engine}", or leave the parameter out.',
                )
        return Code(place, None, function, _digest_function(function), path=function.path)

    # Names

    def _find_inputs(self, own: str, source: Source, code: Code) -> Iterator[NamedInput]:
        if code.query is not None:
            for table in code.query.tables:
                where = f"{os.path.basename(source.sql_file)}, " if source.sql_file else ""
                yield self._resolve_name(own, table.name, f"{where}line {table.line}", exact=False)
            return
        assert code.function is not None
        for parameter in code.function.parameters:
            if parameter.name in SESSIONS or parameter.name in source.params:
                continue
            known = parameter.name in self.pipeline.sources or parameter.name in self.pipeline.targets
            if parameter.has_default and not known:
                continue
            yield self._resolve_name(own, parameter.name, f"{code.place}, line {parameter.line}", exact=True)

    def _resolve_name(self, own: str, written: str, where: str, *, exact: bool) -> NamedInput:
        sources, targets = self.pipeline.sources, self.pipeline.targets
        found = {name for name in (*sources, *targets) if name == written}
        if not found and not exact:
            found = {name for name in (*sources, *targets) if name.casefold() == written.casefold()}
        if not found:
            known = sorted({*sources, *targets} - {own})
            raise InputError(
                f"{where}: there is no source or target {written!r}.",
                hint=suggest_names([written], known, otherwise=f"there is {', '.join(known)}."),
            )
        name = min(found)
        if len(found) > 1 or (name in sources and name in targets):
            raise InputError(
                f"{where}: {written!r} is more than one source or target.", hint="rename one of them."
            )
        if name == own:
            raise InputError(f"{where}: the source reads itself.")
        return NamedInput(name, written, name in targets)

    def _check_circle(self, start: str) -> None:
        ways: list[tuple[str, ...]] = [(start,)]
        seen: set[str] = set()
        while ways:
            way = ways.pop()
            for read in self.codes[way[-1]].inputs if way[-1] in self.codes else ():
                if read.is_target or read.name in seen:
                    continue
                if read.name == start:
                    where = self.pipeline.origin or f"pipeline {self.pipeline.name!r}"
                    circle = " -> ".join((*way, start))
                    raise InputError(
                        f"{where}, [sources.{start}]: sources read each other in a circle: {circle}.",
                        path=self.pipeline.origin,
                    )
                seen.add(read.name)
                ways.append((*way, read.name))


def read_function(text: str) -> Function:
    """The function of ``file.py:function``, with what its file imports. Raises InputError."""
    path, name = split_function(text)
    data = read_text_file(path)
    definition = _find_definition(path, name, data)
    parameters = tuple(_find_parameters(path, definition))
    modules = find_local_modules(path, data)
    return Function(path, name, data, parameters, modules, definition.lineno)


def _digest_function(function: Function) -> str:
    """A digest of a function's source and of the local modules that its file imports."""
    own = describe_function_source(function.path, function.name, function.text)
    digest = hashlib.sha256(own + function.name.encode())
    for module in function.modules:
        digest.update(f"\0{module.name}\0".encode() + hashlib.sha256(module.text).digest())
    return digest.hexdigest()


def _check_params(source: Source, known: Collection[str]) -> None:
    for name in source.params:
        if name not in known:
            raise InputError(f"there is no parameter {name!r}.", hint=suggest_names([name], sorted(known)))


def _find_definition(path: str, name: str, text: bytes) -> ast.FunctionDef:
    """The definition of a function, found without running its file."""
    module = parse_module(path, text)
    functions = {one.name: one for one in module.body if isinstance(one, ast.FunctionDef)}
    waits = [one for one in module.body if isinstance(one, ast.AsyncFunctionDef) and one.name == name]
    if waits and name not in functions:
        raise InputError(
            f"{os.path.basename(path)}:{name}, line {waits[0].lineno}: it is async.",
            path=path,
            hint="write it as a plain def, which the run calls and waits for.",
        )
    if name not in functions:
        raise InputError(
            f"{os.path.basename(path)} defines no function {name!r}.",
            path=path,
            hint=suggest_names([name], sorted(functions), otherwise="it is a def at the top of the file."),
        )
    return functions[name]


def _find_parameters(path: str, definition: ast.FunctionDef) -> Iterator[Parameter]:
    given, place = definition.args, f"{os.path.basename(path)}:{definition.name}, line {definition.lineno}"
    if given.posonlyargs or given.vararg or given.kwarg:
        raise InputError(
            f"{place}: its parameters must be names, without / and *.",
            path=path,
            hint="name each source and target that it reads.",
        )
    plain = len(given.args) - len(given.defaults)
    for number, one in enumerate(given.args):
        yield _make_parameter(one, has_default=number >= plain)
    for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield _make_parameter(one, has_default=default is not None)


def _make_parameter(given: ast.arg, *, has_default: bool) -> Parameter:
    annotation = "" if given.annotation is None else ast.unparse(given.annotation).strip("'\"")
    return Parameter(given.arg, given.lineno, has_default, annotation)


def order_steps(pipeline: Pipeline) -> tuple[Step, ...]:
    """The steps in the order they run, each with its name.

    That of the pipeline, but a step whose query or function reads a target that no step above it writes, and
    one below does, comes after all steps of that target; steps that have to do with its own target follow it.
    """
    graph = SourceGraph(pipeline)
    steps = [replace(step, name=name_step(step, number)) for number, step in enumerate(pipeline.steps, 1)]
    awaited = [_find_awaited(graph, steps, number) for number in range(len(steps))]
    touched = [
        {
            *graph.list_targets(step.source),
            *list_referenced_targets(step, pipeline),
            *(one for name in list_referenced_sources(step, pipeline) for one in graph.list_targets(name)),
            *(step.target, find_written_target(step)),
        }
        for step in steps
    ]
    written = [find_written_target(step) or step.target for step in steps]
    guards = [_find_guards(graph, steps, number) for number in range(len(steps))]
    left = list(range(len(steps)))

    def is_ready(number: int) -> bool:
        above = [other for other in left if other < number and number not in awaited[other]]
        return not (awaited[number] | guards[number]) & set(left) and not any(
            written[other] in touched[number] - {None} or written[number] in touched[other] - {None}
            for other in above
        )

    order = []
    while left:
        order.append(next(filter(is_ready, left), left[0]))
        left.remove(order[-1])
    return tuple(steps[number] for number in order)


def _find_guards(graph: SourceGraph, steps: list[Step], at: int) -> set[int]:
    """The steps above one that drop or quarantine rows of a source that it reads: they stay above it."""
    named = [steps[at].source, *list_referenced_sources(steps[at], graph.pipeline)]
    read = {one for name in named if name is not None for one in graph.list_sources(name)}
    return {number for number in range(at) if is_guard(steps[number]) and steps[number].source in read}


def _find_awaited(graph: SourceGraph, steps: list[Step], at: int) -> set[int]:
    """The steps below one, of targets that it reads by a query or function and no step above it writes."""
    read = [steps[at].source, *list_referenced_sources(steps[at], graph.pipeline)]
    found: set[int] = set()
    for target in [one for name in read if name in graph.codes for one in graph.list_targets(name)]:
        of_target = [
            number for number, one in enumerate(steps) if target in (one.target, find_written_target(one))
        ]
        writers = [number for number in of_target if isinstance(steps[number], (Merge, Write))]
        writers += [number for number in of_target if steps[number].quarantine == target]
        if writers and min(writers) > at:
            found |= {number for number in of_target if number > at}
    return found
