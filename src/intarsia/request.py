"""What a call means: the table, engine and options of its arguments, and how it is executed."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from intarsia import telemetry
from intarsia.arguments import Predicate, has_sql, parse_column_types, parse_where
from intarsia.common.lazy import import_optional
from intarsia.common.names import check_columns, find_spelling
from intarsia.common.paths import find_input_files, redact_path, to_path_text
from intarsia.common.requests import Requests
from intarsia.common.source import IngestedSource
from intarsia.core.effects import OperationCall, SourceKind, check_options, check_write_options
from intarsia.core.expr import resolve
from intarsia.core.intent import Intent, MergeIntent, WriteIntent, WriteOptions
from intarsia.core.ports import Progress, Table
from intarsia.core.report import MergeResult
from intarsia.core.run import ignore_progress, preview_plan, run
from intarsia.core.validation import check_exists
from intarsia.engine_choice import EngineLike, LazyEngine, choose_engine, is_spark, list_engines
from intarsia.errors import CommitConflict, InputError, IntarsiaError
from intarsia.kernel.read import SnapshotScan
from intarsia.options import (
    ICEBERG_OPTIONS,
    TABLE_OPTIONS,
    RowSource,
    TableTarget,
    check_values,
    make_write_options,
    select_engine_options,
)
from intarsia.show.progress import Terminal, make_reporter
from intarsia.tables.parquet import ParquetTable

__all__ = [
    "Request",
    "describe_call",
    "make_request",
    "open_iceberg",
    "refresh_spark",
    "show_target",
    "sync_catalog",
]

_PATTERN = re.compile(r"[*?]|\[[^\]/]+\]")
_READ_ATTEMPTS = 20
_SPOOL_OPTIONS = ("spool_bytes", "spool_dir")
_EVOLUTION = re.compile(r'schema_evolution="\w+"')
_OR_EVOLVE = re.compile(r',? or \w+ (?:it|them|the column) with schema_evolution="\w+"')


def _restart(
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    again: Callable[[], tuple[pa.Schema, Iterator[pa.RecordBatch]]],
) -> Iterator[pa.RecordBatch]:
    """The batches; of the state of now where a file was replaced before the first was given.

    For stores: files on a local disk are open by then.
    """
    for attempt in range(_READ_ATTEMPTS):
        given = False
        try:
            for batch in batches:
                given = True
                yield batch
            return
        except CommitConflict:
            if given or attempt + 1 == _READ_ATTEMPTS:
                raise
            now, batches = again()
            if now != schema:
                raise


@dataclass(frozen=True, slots=True)
class Request:
    """One call: its table, its engine and its options, each where it is used."""

    table: Table
    engine: LazyEngine
    write: WriteOptions
    dialect: str | None
    progress: AbstractContextManager[Progress]
    spool: Mapping[str, Any]
    properties: Mapping[str, str]
    filesystem: Any
    dry_run: bool = False
    columns: pa.Schema | None = None
    """``columns=``: types of columns of text files."""
    measured_bytes: int | None = None
    """Maximum bytes that a dry run encodes to know the size of files; None for no maximum."""
    naive_timestamps: Literal["error", "utc"] = "error"
    """What to do with timestamps without a zone where the target's column has one."""
    sent_before: Requests | None = None
    """What earlier operations on the table have sent to its store."""

    @property
    def writing(self) -> dict[str, Any]:
        """The fields that every intent has: write options and properties."""
        return {"options": self.write, "properties": self.properties}

    def ingest(
        self, source: RowSource, stack: ExitStack, intent: MergeIntent | WriteIntent
    ) -> IngestedSource:
        """Ingest the source; columns of text files get the target's types.

        Progress is shown until the stack is closed.
        """
        if intent.options != WriteOptions():  # before a source is read, which may take long
            check_write_options(intent, self.table.snapshot())
        progress = stack.enter_context(self._show_title(intent))
        stack.enter_context(self._lend_executors())
        progress("read source", 0, 0)
        options = dict(self.spool)
        if _has_paths(source):
            if self.engine.is_pending:
                _check_paths(source, self.filesystem)
            target = self.table.snapshot()
            options |= {
                "filesystem": self.filesystem,
                "partition_columns": (
                    target.partition_columns if intent.partition_columns is None else intent.partition_columns
                ),
                "types": _combine_types(target.schema if target.files else None, self.columns),
                "declared": () if self.columns is None else tuple(self.columns.names),
            }
        if self.naive_timestamps == "utc":
            options["utc_for"] = self.table.snapshot().schema
        if self.engine.is_pending:
            progress("open Spark", 0, 0)
        engine = self.engine.get()
        stack.enter_context(self._lend_executors())
        progress("read source", 0, 0)
        options |= self.engine.make_spool_options(self.spool)
        options["progress"] = progress
        if engine.name == "spark":  # whose executors need a place that they can reach
            options |= {"shared": getattr(self.table, "workspace", None), "target": self.table.snapshot}
        return stack.enter_context(engine.ingest(source, **options))

    def _show_title(self, intent: Intent) -> AbstractContextManager[Progress]:
        """The progress, on a terminal with operation and table as its title."""
        if isinstance(self.progress, Terminal):
            name = str(getattr(self.table, "root", "")).rstrip("/").rpartition("/")[2]
            self.progress.title = f"{intent.operation} {name}".rstrip()
        return self.progress

    @contextmanager
    def _lend_executors(self) -> Iterator[None]:
        """Let the table read footers on the engine's executors, where it has some, and has them now."""
        distribute = None if self.engine.is_pending else getattr(self.engine.get(), "distribute", None)
        if distribute is None or not isinstance(self.table, ParquetTable):
            yield
            return
        self.table.read_footers_with(distribute)
        try:
            yield
        finally:
            self.table.read_footers_with(None)

    def execute(self, intent: Intent, source: IngestedSource | None = None) -> MergeResult:
        """Run the operation; errors name an Iceberg table as the catalog does."""
        telemetry.follow()
        with _translate_errors(self.table, intent):
            return self._run(intent, source)

    def read(self, columns: tuple[str, ...], where: Predicate | None, threads: int) -> pa.RecordBatchReader:
        """Read rows of one consistent state; see :func:`intarsia.read`."""
        for attempt in range(_READ_ATTEMPTS):
            scan = self.make_scan(columns, where)
            try:
                batches = scan.read_batches(threads=threads)
            except CommitConflict:  # a commit came between listing and opening
                if attempt + 1 == _READ_ATTEMPTS:
                    raise
                continue
            if isinstance(self.table, ParquetTable) and not self.table.storage.atomic:
                again = partial(self._read_again, columns, where, threads)
                batches = _restart(scan.schema, batches, again)
            return pa.RecordBatchReader.from_batches(scan.schema, batches)
        raise AssertionError("unreachable")

    def _read_again(
        self, columns: tuple[str, ...], where: Predicate | None, threads: int
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        scan = self.make_scan(columns, where)
        return scan.schema, scan.read_batches(threads=threads)

    def make_scan(self, columns: tuple[str, ...], where: Predicate | None) -> SnapshotScan:
        """Resolve columns and a condition against the current state; reads no rows."""
        found = self.table.snapshot()
        check_exists(found, "read")
        names = find_spelling(columns, found.schema.names, path=found.root) or tuple(found.schema.names)
        check_columns(names, found.schema.names, operation="read", path=found.root)
        predicate = None if where is None else parse_where(where, self.dialect)
        if predicate is not None and not isinstance(predicate, pc.Expression):
            predicate = resolve(predicate, found.schema, expect=pa.bool_())
        return SnapshotScan(found, names, predicate)

    def _run(self, intent: Intent, source: IngestedSource | None) -> MergeResult:
        with ExitStack() as stack, self._show_title(intent) as progress:
            if source is None:
                progress("list target", 0, 0)
            if source is None and self.engine.is_pending:
                preview_plan(intent, self.table)
                progress("open Spark", 0, 0)
            stack.enter_context(self._lend_executors())
            chosen = self.engine.resolve(intent, source, self.table)
            if source is not None and chosen.reingests:
                source = stack.enter_context(chosen.engine.ingest(source))
            result = run(
                intent,
                self.table,
                chosen.engine,
                source,
                dry_run=self.dry_run,
                measured_bytes=self.measured_bytes,
                progress=progress,
                reason=chosen.reason,
                sent_before=self.sent_before,
            )
        if self.dry_run:
            return result
        # Also where nothing was committed, a catalog may lack what an earlier operation could not tell it.
        notes = sync_catalog(self.table, changed=result.txid is not None)
        if result.txid is not None:
            notes = (*notes, *refresh_spark(self.table, chosen.engine))
        return replace(result, notes=(*result.notes, *notes)) if notes else result


def sync_catalog(table: Table, *, changed: bool) -> tuple[str, ...]:
    """Tell the catalog of Spark that a table is of what its files are; a sentence for what was done."""
    sync = getattr(table, "sync_catalog", None)
    notes: tuple[str, ...] = () if sync is None else sync(changed=changed)
    return notes


def refresh_spark(table: Table, engine: Any = None) -> tuple[str, ...]:
    """Refresh a changed table in the Spark sessions of this process; a sentence for each failure.

    Opens no session, and does nothing where pyspark is not imported.
    """
    if "pyspark.sql" not in sys.modules or getattr(table, "is_scratch", False):
        return ()
    notes: tuple[str, ...] = import_module("intarsia.spark.refresh").refresh_sessions(
        table, own=getattr(engine, "spark", None)
    )
    return notes


def make_request(
    operation: str,
    engine: EngineLike,
    target: TableTarget,
    options: Mapping[str, Any],
    *,
    source: RowSource | None = None,
    sql: Iterable[Any] = (),
    dry_run: bool = False,
) -> Request:
    """Check the options of a call, open its table and choose its engine.

    ``sql`` are the arguments that may hold SQL text: without any, ``dialect=`` has no effect.

    Raises:
        InputError: an option that is unknown, has a wrong value, or would have no effect.
    """
    check_values({**options, "dry_run": dry_run})
    table_options = {n: options[n] for n in (*TABLE_OPTIONS, *ICEBERG_OPTIONS) if n in options}
    table = _open_table(target, table_options, source)
    sent_before = table.requests if table is target else None
    call = describe_call(operation, engine, target, source=source, sql=[*sql, options.get("columns")])
    check_options(replace(call, dry_run=dry_run), options)
    properties = dict(options.get("properties") or {})
    properties |= {n: str(options[n]) for n in ("app_id", "batch_id") if options.get(n) is not None}
    return Request(
        table=table,
        engine=choose_engine(engine, select_engine_options(options), source),
        write=make_write_options(options),
        dialect=options.get("dialect"),
        progress=_open_progress(options.get("progress")),
        spool={name: options[name] for name in _SPOOL_OPTIONS if options.get(name) is not None},
        properties=properties,
        filesystem=options.get("filesystem"),
        dry_run=bool(dry_run),
        columns=parse_column_types(options.get("columns"), options.get("dialect")),
        measured_bytes=options.get("measured_bytes"),
        naive_timestamps=options.get("naive_timestamps") or "error",
        sent_before=sent_before,
    )


def describe_call(
    operation: str,
    engine: EngineLike,
    target: TableTarget,
    *,
    source: RowSource | None = None,
    sql: Iterable[Any] = (),
) -> OperationCall:
    """The facts about a call that decide which options have an effect in it."""
    has_source = operation in ("merge", "write")
    return OperationCall(
        operation,
        target=_classify_target(target),
        engines=list_engines(engine, operation, source),
        source=_classify_source(source) if has_source else "none",
        has_sql=has_sql(list(sql)),
    )


def _classify_target(target: TableTarget) -> Literal["path", "parquet", "iceberg"]:
    if isinstance(target, (str, os.PathLike)):
        return "path"
    return "iceberg" if is_iceberg(target) or hasattr(target, "with_choice") else "parquet"


def _classify_source(source: Any) -> SourceKind:
    if _has_paths(source):
        return "paths"
    return "frame" if is_spark(source) else "rows"


def _combine_types(known: pa.Schema | None, declared: pa.Schema | None) -> pa.Schema | None:
    if declared is None:
        return known
    names = set(declared.names)
    rest = [] if known is None else [field for field in known if field.name not in names]
    return pa.schema([*declared, *rest])


def _open_progress(given: Any) -> AbstractContextManager[Progress]:
    """The caller's function; without one, a line on the terminal where there is one."""
    if given is None:
        return make_reporter()
    return nullcontext(ignore_progress if given is False else given)


def _has_paths(source: Any) -> bool:
    if isinstance(source, (list, tuple)):
        return any(_has_paths(part) for part in source)
    return isinstance(source, (str, os.PathLike))


def _check_paths(source: Any, filesystem: Any) -> None:
    """Raise NothingMatched for a local path without files."""
    if isinstance(source, (list, tuple)):
        for part in source:
            _check_paths(part, filesystem)
    elif isinstance(source, (str, os.PathLike)) and "://" not in os.fspath(source):
        find_input_files(source, filesystem=filesystem)


def _open_table(target: Any, options: Mapping[str, Any], source: Any) -> Table:
    chosen = {name: options[name] for name in ICEBERG_OPTIONS if options.get(name) is not None}
    is_path = isinstance(target, (str, os.PathLike))
    if chosen and (is_path or (_is_table(target) and not hasattr(target, "with_choice"))):
        raise InputError(
            f"{', '.join(f'{name}=' for name in chosen)} goes with an Iceberg table, not with"
            f" {'a path' if is_path else 'a Parquet dataset'}.",
            hint='name the table: intarsia.iceberg("db.orders", catalog=...).',
        )
    if isinstance(target, (str, os.PathLike)):
        given = {n: options[n] for n in TABLE_OPTIONS if options.get(n) is not None}
        text = to_path_text(target, "A target")
        if not _PATTERN.search(text.partition("?")[0] if "://" in text else text):
            return ParquetTable(target, **given)
        return _open_literal_path(text, target, given)
    if is_iceberg(target):
        _refuse_of_paths(options)
        return open_iceberg(target, **chosen)
    if _is_table(target):
        if hasattr(target, "with_choice"):
            _refuse_of_paths(options)
        table: Table = target.with_choice(**chosen) if chosen else target
        return table
    swapped = isinstance(source, (str, os.PathLike)) or _is_table(source)
    raise InputError(
        f"the target must be a path, a URL or a table, not {type(target).__name__}.",
        path=show_target(source) if swapped else None,
        hint="the source comes first, then the target." if swapped else None,
    )


def _open_literal_path(text: str, target: str | os.PathLike[str], options: Mapping[str, Any]) -> ParquetTable:
    """The dataset in a directory with the characters of a pattern in its name.

    Raises InputError where there is no such directory: then it is a pattern.
    """
    if "://" not in text:
        table = ParquetTable(target, **options)
        if table.storage.stat(table.control.root) is not None:
            return table
    raise InputError(
        f"{redact_path(text)} is a pattern, and a target is one dataset.",
        path=redact_path(text),
        hint="name the directory itself; a source may be a pattern.",
    )


def _refuse_of_paths(options: Mapping[str, Any]) -> None:
    """Raise InputError for options of paths beside an Iceberg table; ``filesystem`` may be the source's."""
    foreign = [name for name in TABLE_OPTIONS if options.get(name) is not None and name != "filesystem"]
    if foreign:
        raise InputError(
            f"{', '.join(f'{name}=' for name in foreign)} goes with the path of a Parquet dataset, not with"
            " an Iceberg table.",
            hint="leave it out; the catalog says how its tables are reached, and commits need no lock.",
        )


def is_iceberg(value: Any) -> bool:
    """Whether a value is a table of PyIceberg, without importing PyIceberg."""
    return any(
        kind.__name__ == "Table" and kind.__module__ == "pyiceberg.table" for kind in type(value).__mro__
    )


def open_iceberg(target: Any, catalog: Any = None, **options: Any) -> Table:
    """Open an Iceberg table: a table of PyIceberg, or its name in a catalog.

    Raises:
        NotSupported: PyIceberg is not installed.
    """
    kind = import_optional("intarsia.tables.iceberg.table").IcebergTable
    table: Table = kind.of(target, catalog, **options)
    return table


def _is_table(value: Any) -> bool:
    return hasattr(value, "transaction") and hasattr(value, "snapshot")


def show_target(target: Any) -> str:
    """The target as logs and errors name it; empty for a value that is no table."""
    if isinstance(target, (str, os.PathLike)):
        return redact_path(target, "A target")
    if is_iceberg(target):
        return ".".join((target.catalog.name, *target.name()))
    return str(getattr(target, "root", ""))


@contextmanager
def _translate_errors(table: Table, intent: Intent) -> Iterator[None]:
    """Change errors of an Iceberg table: its name for its location, no hint at options that it refuses."""
    try:
        yield
    except IntarsiaError as error:
        location = getattr(table, "location", None)
        if location is not None and (error.path or "").rstrip("/") == location.rstrip("/"):
            error.path = str(getattr(table, "root", error.path))
        if error.hint:
            error.hint = _rewrite_hint(error.hint, intent, owns_schema=location is not None)
        raise


def _rewrite_hint(hint: str, intent: Intent, *, owns_schema: bool) -> str:
    if not isinstance(intent, (MergeIntent, WriteIntent)):
        return _OR_EVOLVE.sub("", hint)
    return _EVOLUTION.sub("the table's own update_schema()", hint) if owns_schema else hint
