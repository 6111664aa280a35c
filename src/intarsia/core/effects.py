"""Options that cannot have an effect in a call are refused, instead of being passed over in silence.

One rule: an option that asks for something is refused where nothing in the call could follow it, be it the
operation, the kind of table, the engine or the source. What each option needs is in :data:`OPTIONS`, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, assert_never

from intarsia.core.intent import (
    CompactIntent,
    DeduplicateIntent,
    DeleteIntent,
    Intent,
    MergeIntent,
    OptimizeIntent,
    UpdateIntent,
    WriteIntent,
    WriteOptions,
)
from intarsia.core.rule import Drop
from intarsia.core.snapshot import Snapshot
from intarsia.errors import InputError

__all__ = [
    "CHANGES",
    "ENGINE_OPTIONS",
    "OPTIONS",
    "OperationCall",
    "SourceKind",
    "check_effects",
    "check_options",
    "check_overwrite",
    "check_write_options",
    "select_effective",
]

CHANGES = ("merge", "delete", "update", "write", "compact", "optimize", "deduplicate")
SourceKind = Literal["none", "rows", "paths", "frame"]
_NO_DATA_FILE = "the table is merge-on-read, and rows that go are noted beside its data files"


@dataclass(frozen=True, slots=True)
class OperationCall:
    """What is known of a call; what is not known yet counts as possible."""

    operation: str
    """A change, or ``read``, ``inspect``, ``snapshot``, ``history``, ``recover``, ``restore``."""
    target: Literal["path", "parquet", "iceberg"] = "path"
    """A path or URL; else a table that was opened before."""
    engines: frozenset[str] = frozenset(("arrow", "duckdb", "spark"))
    """Engines that may do the work; with ``auto`` where it is chosen by ``memory_bytes``, ``object`` where
    the caller made it."""
    source: SourceKind | None = None
    """Where rows come from; None is not known."""
    has_sql: bool = True
    reads_rows: bool = True
    """Whether rows of the table are read."""
    writes_files: bool = True
    """Whether data files are written."""
    adds_files: bool = True
    """Whether new data files are written, as opposed to files that are replaced."""
    dry_run: bool = True


@dataclass(frozen=True, slots=True)
class _Need:
    """A condition for an option to have an effect; otherwise why it has none, and what to do."""

    holds: Callable[[OperationCall], bool]
    why: Callable[[OperationCall], str]
    hint: str = "leave it out."


def _describe_engines(call: OperationCall) -> str:
    named = {"arrow": "PyArrow", "duckdb": "DuckDB", "spark": "Spark", "object": "an engine that you made"}
    shown = " or ".join(named[name] for name in sorted(call.engines) if name in named)
    return f"{call.operation} runs on {shown} here" if shown else f"{call.operation} moves no rows"


_PATH = _Need(
    lambda call: call.target == "path",
    lambda call: "it goes with the path of a Parquet dataset, and the table was opened before",
    "say it where the table is opened.",
)
_PLACE = _Need(
    lambda call: call.target == "path" or call.source in ("paths", None),
    lambda call: "the table was opened before, and no path of a source is looked for",
)
_ICEBERG = _Need(
    lambda call: call.target == "iceberg",
    lambda call: "it goes with an Iceberg table",
)
_DELETES = _Need(
    lambda call: call.operation in ("merge", "delete", "update", "deduplicate"),
    lambda call: f"{call.operation} writes whole files",
)
_CHANGE = _Need(lambda call: call.operation in CHANGES, lambda call: f"{call.operation} commits nothing")
_COMMIT = _Need(
    lambda call: call.operation in (*CHANGES, "restore"), lambda call: f"{call.operation} commits nothing"
)
_DRY_RUN = _Need(lambda call: call.dry_run, lambda call: "it is for dry runs, and this is none")
_LOCKED = _Need(
    lambda call: call.operation in (*CHANGES, "recover", "restore"),
    lambda call: f"{call.operation} takes no lock",
)
_IN_PROCESS = _Need(
    lambda call: bool(call.engines & {"arrow", "duckdb"}),
    _describe_engines,
    "on Spark it is tasks=.",
)
_SPARK = _Need(
    lambda call: "spark" in call.engines,
    _describe_engines,
    'it goes with engine="spark" or a Spark DataFrame.',
)
_SPILLS = _Need(
    lambda call: (
        bool(call.engines & {"auto", "duckdb"})
        or (call.operation == "optimize" and bool(call.engines & {"arrow", "spark"}))
        or (call.operation == "deduplicate" and "arrow" in call.engines)
    ),
    lambda call: f"{_describe_engines(call)}, where it limits nothing",
    'engine="auto" and engine="duckdb" work within it.',
)
_SPOOLED = _Need(
    lambda call: call.source != "none" and not (call.source == "frame" and "spark" in call.engines),
    lambda call: "executors keep the rows" if call.source == "frame" else f"{call.operation} has no source",
)
_SCRATCH = _Need(
    lambda call: call.source != "none" or bool(call.engines & {"duckdb", "spark"}),
    lambda call: f"{_describe_engines(call)}, and there is no source to keep",
)
_SOURCE = _Need(lambda call: call.source != "none", lambda call: f"{call.operation} has no source")
_TEXT_FILES = _Need(
    lambda call: call.source in ("paths", None),
    lambda call: "it declares the types of text files, and the source is no path",
)
_SQL = _Need(lambda call: call.has_sql, lambda call: "there is no SQL text in the call")
_DATA_FILE = _Need(lambda call: call.writes_files, lambda call: _NO_DATA_FILE)
_NEW_FILE = _Need(
    lambda call: call.writes_files and call.adds_files,
    lambda call: (
        _NO_DATA_FILE
        if not call.writes_files
        else "target_rows_per_file= says how many rows a file gets"
        if call.operation in ("compact", "optimize")
        else "files are rewritten under their names, and none is added"
    ),
    "leave it out; compact and optimize have target_rows_per_file=.",
)
_READS = _Need(
    lambda call: call.reads_rows and call.operation in CHANGES,
    lambda call: f"{call.operation} does not handle rows of the table in batches here",
)

OPTIONS: Mapping[str, tuple[_Need, ...]] = {
    "filesystem": (_PLACE,),
    "storage_options": (_PATH,),
    "control_path": (_PATH,),
    "single_writer": (_PATH, _LOCKED),
    "lock_timeout": (_PATH, _LOCKED),
    "lock": (_PATH, _LOCKED),
    "retain": (_PATH, _COMMIT),
    "branch": (_ICEBERG,),
    "mode": (_ICEBERG, _DELETES),
    "threads": (_IN_PROCESS,),
    "memory_bytes": (_SPILLS,),
    "tasks": (_SPARK,),
    "broadcast_bytes": (_SPARK, _SOURCE),
    "compression": (_CHANGE, _DATA_FILE),
    "row_group_size": (_CHANGE, _DATA_FILE),
    "max_rows_per_file": (_CHANGE, _NEW_FILE),
    "batch_rows": (_READS,),
    "int96": (_CHANGE, _DATA_FILE),
    "spool_bytes": (_SPOOLED,),
    "spool_dir": (_SCRATCH,),
    "naive_timestamps": (_SOURCE,),
    "columns": (_SOURCE, _TEXT_FILES),
    "dialect": (_SQL,),
    "progress": (_CHANGE,),
    "properties": (_COMMIT,),
    "app_id": (_CHANGE,),
    "batch_id": (_CHANGE,),
    "measured_bytes": (_CHANGE, _DRY_RUN),
}
"""Every option that operations take as a keyword besides their own arguments, and what it needs."""

ENGINE_OPTIONS = ("memory_bytes", "threads", "tasks", "broadcast_bytes")
"""Options of engines; every engine takes the first."""
_NOTHING_ASKED: Mapping[str, tuple[Any, ...]] = {
    "single_writer": (False,),
    "int96": ("keep",),
    "naive_timestamps": ("error",),
    "threads": (0,),
    "tasks": (0,),
    "properties": ({},),
    "storage_options": ({},),
    "progress": (False,),
}
"""Values that ask for the default."""


def _asks(name: str, value: Any) -> bool:
    return value is not None and not any(
        type(value) is type(one) and value == one for one in _NOTHING_ASKED.get(name, ())
    )


def _find_unmet(call: OperationCall, name: str) -> _Need | None:
    return next((need for need in OPTIONS[name] if not need.holds(call)), None)


def check_options(call: OperationCall, options: Mapping[str, Any]) -> None:
    """Raise InputError for an option that asks for something and cannot have an effect in the call."""
    for name, value in options.items():
        need = _find_unmet(call, name) if _asks(name, value) else None
        if need is not None:
            raise InputError(f"{name}= would have no effect: {need.why(call)}.", hint=need.hint)


def select_effective(call: OperationCall, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that have an effect in this call, of those that a caller gives to many calls."""
    return {name: value for name, value in options.items() if _find_unmet(call, name) is None}


def check_write_options(intent: Intent, snapshot: Snapshot) -> None:
    """Raise InputError for an option about written files where the operation writes none."""
    call = _describe_writing(intent, snapshot)
    check_options(call, {field.name: getattr(intent.options, field.name) for field in fields(WriteOptions)})


def _describe_writing(intent: Intent, snapshot: Snapshot) -> OperationCall:
    """What an operation does to the files of a table."""
    call = OperationCall(intent.operation if not isinstance(intent, WriteIntent) else "write")
    owns_files = not snapshot.replaces_in_place  # rows are copied into new files there
    match intent:
        case MergeIntent():
            drops = all(isinstance(clause.action, Drop) for clause in intent.rule.clauses)
            adds = owns_files or intent.rule.inserts
        case WriteIntent():
            call = replace(call, reads_rows=intent.where is not None)
            drops, adds = False, True
        case DeleteIntent() | DeduplicateIntent():
            drops, adds = True, owns_files
        case UpdateIntent():
            drops, adds = False, owns_files
        case CompactIntent() | OptimizeIntent():
            drops, adds = False, owns_files and intent.target_rows is None
        case _:
            assert_never(intent)
    noted = snapshot.format.merge_on_read.get(intent.operation, False)
    return replace(call, writes_files=not (noted and drops), adds_files=adds)


def check_effects(intent: Intent) -> None:
    """Raise InputError for an argument that contradicts the operation itself."""
    match intent:
        case MergeIntent():
            if not intent.rule.replaces_rows:
                options = _list_column_options(intent)
                why = "no clause takes whole rows (`update set *`, `insert *`)"
                _refuse(options, why, "name the columns in the clauses.")
            if intent.dedup_order_by and intent.rule.name != "deduplicate":
                raise InputError('dedup_order_by goes with strategy="deduplicate".')
        case WriteIntent():
            if intent.where is not None and intent.mode != "overwrite":
                raise InputError(
                    f'where= goes with mode="overwrite", not with {intent.mode!r}.',
                    hint="leave it out, or filter the source.",
                )
        case OptimizeIntent():
            if intent.dedup_order_by and not intent.deduplicate:
                raise InputError("dedup_order_by= goes with deduplicate_on=.", hint="name the keys there.")
        case DeduplicateIntent():
            if intent.order_by and not intent.keys:
                raise InputError(
                    "order_by= goes with on=: rows that are equal in every column leave nothing to choose.",
                    hint="name the key columns in on=.",
                )
        case _:
            pass


def check_overwrite(intent: WriteIntent, snapshot: Snapshot) -> None:
    """Raise InputError for options about columns where the new rows decide the columns."""
    if intent.replaces_all and not snapshot.format.owns_schema:
        why = 'mode="overwrite" replaces the schema with the rows'
        _refuse(_list_column_options(intent), why, "leave it out, or replace a part of the rows with where=.")


def _list_column_options(intent: MergeIntent | WriteIntent) -> list[str]:
    options = ["missing="] if intent.missing != "error" else []
    return [*options, "schema_evolution="] if intent.schema_evolution else options


def _refuse(options: list[str], why: str, hint: str) -> None:
    if options:
        raise InputError(f"{' and '.join(options)} would have no effect: {why}.", hint=hint)
