"""The rows of computed sources: a query that the engine runs, or a function that is called."""

from __future__ import annotations

import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

import pyarrow as pa

from intarsia.common.arrow import ingest
from intarsia.common.lazy import import_optional
from intarsia.common.schema import conform_table, unify_schemas
from intarsia.engine_choice import MEMORY_SHARE, is_spark, read_memory_total
from intarsia.errors import InputError, IntarsiaError, NotSupported
from intarsia.kernel.read import SnapshotScan
from intarsia.pipeline.graph import Code, Function, NamedInput
from intarsia.pipeline.inputs import make_transform, transform_frame
from intarsia.pipeline.local_modules import LocalImports, describe_lines
from intarsia.pipeline.model import Source
from intarsia.spark.errors import (
    UNEVALUATED,
    find_known_failure,
    list_spark_error_types,
    summarize_error,
    translate_spark_errors,
)
from intarsia.sql.query import MARKER
from intarsia.sql.query_columns import ColumnUse

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class Read(Protocol):
    """Gives the rows of an input: a DataFrame on Spark, else a list of Arrow streams that are opened anew.

    For a query on DuckDB, a target is a scan of it. Columns that ``columns`` leaves out need not be there.
    """

    def __call__(self, one: NamedInput, columns: ColumnUse = ...) -> Any: ...


@dataclass(slots=True)
class SourceComputer:
    """Computes the rows of sources; modules, sessions and spooled rows are kept until :meth:`close`."""

    stack: ExitStack = field(default_factory=ExitStack)
    modules: dict[tuple[str, bytes], ModuleType] = field(default_factory=dict)
    imports: dict[str, LocalImports] = field(default_factory=dict)
    sessions: list[Any] = field(default_factory=list)

    def close(self) -> None:
        """Close what queries and functions have opened. Idempotent."""
        self.stack.close()
        self.modules.clear()
        self.imports.clear()
        self.sessions.clear()

    def compute_frame(self, source: Source, code: Code, read: Read, session: Any) -> Any:
        """The rows as a Spark DataFrame, which is analyzed here and evaluated by the step."""
        with _add_place(code), translate_spark_errors(), _translate_refusal(code):
            if code.query is not None:
                frame = self._query_frames(source, code, read, session)
            else:
                assert code.function is not None
                import_optional("intarsia.spark.modules").ship_modules(session, _list_files(code.function))
                tables = {one.written: as_frame(read(one), session) for one in code.inputs}
                frame = self._call(source, code, {**tables, "spark": session}, is_spark_engine=True)
                _check_frame(code, frame, streams=any(one.isStreaming for one in tables.values()))
            return transform_frame(frame, make_transform(source, "parquet"))

    def _query_frames(self, source: Source, code: Code, read: Read, session: Any) -> Any:
        """The DataFrame of a query; refused over the columns that it names, it is asked of all of them.

        So errors tell all columns that there are.
        """
        query = code.query
        assert query is not None
        run_query = import_optional("intarsia.spark.query").run_query
        params = _mark_params(source, code)

        def run(columns: ColumnUse) -> Any:
            tables = {one.written: as_frame(read(one, columns), session) for one in code.inputs}
            frame = run_query(session, query.text, tables, params=params)
            frame.schema  # noqa: B018  analyzed here also on Connect
            return frame

        try:
            return run(query.columns)
        except list_spark_error_types():
            return run(ColumnUse())

    def compute_stream(self, source: Source, code: Code, read: Read) -> pa.RecordBatchReader:
        """The rows as an Arrow stream. Memory: DuckDB's limit; of a function, its inputs and its result."""
        if code.query is not None:
            rows = self._run_query(source, code, read)
        else:
            rows = self._run_function(source, code, read)
        shape = make_transform(source, "parquet")
        if shape.trivial:
            return rows
        with _add_place(code):
            schema = shape.make_schema(rows.schema)
        return pa.RecordBatchReader.from_batches(schema, shape.transform_batches(rows.schema, rows))

    def _run_query(self, source: Source, code: Code, read: Read) -> pa.RecordBatchReader:
        assert code.query is not None
        with _add_place(code):
            try:
                made = self._open_query(source, code, read, code.query.columns)
            except InputError as error:  # over all columns, which its error then names
                try:
                    made = self._open_query(source, code, read, ColumnUse())
                except NotSupported:  # for a column that the query leaves out
                    raise error from error.__cause__
        self.stack.callback(made.close)
        return _name_rows(code, made.open_stream())

    def _open_query(self, source: Source, code: Code, read: Read, columns: ColumnUse) -> Any:
        assert code.query is not None
        return import_optional("intarsia.engines.duckdb.query").QueryRun(
            code.query.text,
            {one.written: _make_opener(read, one, columns) for one in code.inputs},
            params=_mark_params(source, code),
            memory_bytes=read_memory_total() // MEMORY_SHARE,
        )

    def _run_function(self, source: Source, code: Code, read: Read) -> pa.RecordBatchReader:
        assert code.function is not None
        inputs: dict[str, Any] = {}
        annotations = {one.name: one.annotation for one in code.function.parameters}
        for one in code.inputs:
            stream = chain_streams(read(one))
            wants_stream = annotations[one.written].endswith("RecordBatchReader")
            inputs[one.written] = stream if wants_stream else stream.read_all()
        if "connection" in annotations:
            inputs["connection"] = self._open_connection()
        result = self._call(source, code, inputs)
        if result is None or isinstance(result, (str, bytes, os.PathLike)):
            raise _make_result_error(code, result, "a table, a reader or whatever else merge takes as rows")
        with _add_place(code), _translate_failure(code, "gave rows that cannot be read"):
            taken = ingest(result)
        self.stack.callback(taken.close)
        return taken.table.to_reader()

    def _open_connection(self) -> Any:
        """DuckDB's connection for functions: one for the run, on an instance of its own."""
        if not self.sessions:
            kind = import_optional("intarsia.engines.duckdb.session").Session
            self.sessions.append(kind(memory_bytes=read_memory_total() // MEMORY_SHARE))
            self.stack.callback(self.sessions[0].close)
        return self.sessions[0].connection

    def _call(
        self, source: Source, code: Code, given: Mapping[str, Any], *, is_spark_engine: bool = False
    ) -> Any:
        assert code.function is not None
        wanted = [one.name for one in code.function.parameters]
        values = {**given, **source.params}
        with _translate_failure(code, "failed"):
            function = getattr(self._load(code.function, travels=is_spark_engine), code.function.name)
            with self._get_imports(code.function, travels=is_spark_engine).activate():
                return function(**{name: values[name] for name in wanted if name in values})

    def _load(self, function: Function, *, travels: bool) -> ModuleType:
        """The module of a function, run from the text that was read, once for all its functions.

        On Spark what the module defines is pickled with its code: executors do not have the file.
        """
        key = (function.path, function.text)
        if key not in self.modules:
            name = f"intarsia_source_{uuid.uuid4().hex}"
            self.stack.callback(sys.modules.pop, name, None)
            module = self._get_imports(function, travels=travels).run_file(name, function.path, function.text)
            self.modules[key] = module
        return self.modules[key]

    def _get_imports(self, function: Function, *, travels: bool) -> LocalImports:
        """The local modules of a function's file, each imported once in a run."""
        on_load = self._pickle_by_value if travels else None
        return self.imports.setdefault(function.path, LocalImports(function.modules, on_load))

    def _pickle_by_value(self, module: ModuleType) -> None:
        """Let Spark pickle what a module defines with its code, also where a worker knows an older one."""
        pickling = import_optional("pyspark.cloudpickle")
        if module.__name__ not in pickling.list_registry_pickle_by_value():
            pickling.register_pickle_by_value(module)
            self.stack.callback(pickling.unregister_pickle_by_value, module)


def _list_files(function: Function) -> dict[str, bytes]:
    """The local modules that a function's file imports, and the file itself, as executors are to have them.

    None where it imports none: what the file itself defines travels with the plan.
    """
    directory = os.path.dirname(function.path)
    found = {os.path.relpath(module.path, directory): module.text for module in function.modules}
    return {**found, os.path.basename(function.path): function.text} if found else {}


def as_frame(rows: Any, session: Any) -> Any:
    """Rows as a DataFrame; streams, such as of files from the web, pass through the driver."""
    return session.createDataFrame(chain_streams(rows).read_all()) if isinstance(rows, list) else rows


def chain_streams(streams: list[pa.RecordBatchReader]) -> pa.RecordBatchReader:
    """Several streams as one; columns meet by name in their common types, as in a merge."""
    if len(streams) == 1:
        return streams[0]
    schema = unify_schemas([one.schema for one in streams], operation="source", path="")

    def read() -> Iterator[pa.RecordBatch]:
        for stream in streams:
            for batch in stream:
                whole = pa.Table.from_batches([batch])
                yield from conform_table(whole, schema, operation="source", path="").to_batches()

    return pa.RecordBatchReader.from_batches(schema, read())


def _make_opener(
    read: Read, one: NamedInput, columns: ColumnUse
) -> SnapshotScan | Callable[[], pa.RecordBatchReader]:
    if one.is_target:
        scan: SnapshotScan = read(one, columns)
        return scan
    return lambda: chain_streams(read(one))


def _mark_params(source: Source, code: Code) -> dict[str, Any]:
    assert code.query is not None
    return {f"{MARKER}{name}": source.params[name] for name in code.query.parameters}


def _check_frame(code: Code, frame: Any, *, streams: bool) -> None:
    is_frame = is_spark(frame) and hasattr(frame, "mapInArrow")
    if not is_frame:
        raise _make_result_error(code, frame, "a DataFrame of Spark")
    if frame.isStreaming and not streams:
        raise InputError(
            f"{code.place} returned a streaming DataFrame.",
            hint="read it without readStream, or declare the stream as a source of the pipeline.",
        )


def _make_result_error(code: Code, result: Any, wanted: str) -> InputError:
    assert code.function is not None
    name, owner = type(result).__name__, type(result).__module__.partition(".")[0]
    kind = f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
    kind = "None" if result is None else kind if owner == "builtins" else f"{kind} of {owner}"
    line = f", line {code.function.line}"
    return InputError(f"{code.place}{line} returned {kind}.", path=code.path, hint=f"return {wanted}.")


@contextmanager
def _add_place(code: Code) -> Iterator[None]:
    """Add the file, line and place of a query or function to an error."""
    try:
        yield
    except (InputError, NotSupported) as error:
        file, _, key = code.place.partition(", ")
        if error.message.startswith(code.place) or re.match(
            rf"{re.escape(file)}, line \d+, {re.escape(key)}", error.message
        ):
            raise
        told = describe_place(code, error.message)
        raise type(error)(told, path=error.path or code.path, hint=error.hint) from error


def describe_place(code: Code, message: str) -> str:
    """A message with its place before it; of a query in a pipeline file, with the line of that file."""
    met = re.match(r"line (\d+): ", message)
    if code.first_line is not None:
        line = code.first_line + (int(met[1]) - 1 if met else 0)
        file, _, key = code.place.partition(", ")
        return f"{file}, line {line}, {key}: {message[met.end() :] if met else message}"
    own = f", line {code.function.line}" if code.function is not None else ""
    return f"{code.place}{', ' if message.startswith('line ') else f'{own}: '}{message}"


def _name_rows(code: Code, rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """The rows, with the place of their query in errors that come while they are read."""

    def read() -> Iterator[pa.RecordBatch]:
        with _add_place(code):
            yield from rows

    return pa.RecordBatchReader.from_batches(rows.schema, read())


@contextmanager
def _translate_refusal(code: Code) -> Iterator[None]:
    """Translate Spark's error about a query or a DataFrame that it cannot analyze, with the line."""
    try:
        yield
    except list_spark_error_types() as error:
        known = find_known_failure(error, "Spark could not do it")
        where = "" if code.query is None else _find_line(error)
        if code.function is not None:
            where = describe_lines(error, code.function.path, code.function.modules).removeprefix(", ")
        told = f"{where}: Spark refuses it" if where else "Spark refuses it"
        raise known or InputError(f"{told}: {summarize_error(error)}") from error


def name_evaluated(code: Code | None, error: BaseException) -> BaseException:
    """Spark's error while it evaluated a computed source, with the file and line of the code; others stay."""
    if code is None or not isinstance(error, InputError) or UNEVALUATED not in error.message:
        return error
    said, message = str(error.__cause__ or error), error.message[error.message.index(UNEVALUATED) :]
    if code.function is None:
        line = _find_line(said)
        told = describe_place(code, f"{line}: {message}" if line else message)
    else:
        paths = {code.function.path, *(module.path for module in code.function.modules)}
        frames = [(path, line) for path, line in _FRAME.findall(said) if path in paths]
        own = [line for path, line in frames if path == code.function.path]
        told = f"{code.place}, line {own[-1] if own else code.function.line}"
        if frames and frames[-1][0] != code.function.path:
            told += f" ({os.path.basename(frames[-1][0])}, line {frames[-1][1]})"
        told = f"{told}: {message}"
    named = InputError(told, path=code.path, hint=error.hint, changed=error.changed)
    named.__cause__ = error
    return named


def _find_line(error: BaseException | str) -> str:
    """The line of a query that Spark names, such as in ``; line 2 pos 7``; empty where it names none."""
    found = re.search(r"\bline (\d+),? ?\(?pos", str(error))
    return f"line {found[1]}" if found else ""


@contextmanager
def _translate_failure(code: Code, what: str) -> Iterator[None]:
    """Translate whatever the code of a function raises; errors of intarsia and of Spark stay."""
    assert code.function is not None
    try:
        yield
    except (Exception, SystemExit) as error:  # a function may raise anything
        if isinstance(error, (IntarsiaError, *list_spark_error_types())):
            raise
        path = code.function.path
        line = describe_lines(error, path, code.function.modules)
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise InputError(f"{code.place}{line} {what}: {said}", path=path) from error
