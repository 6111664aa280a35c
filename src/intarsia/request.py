"""The arguments of a call made into table, engine, options and values of core; the calls are not in here."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.lazy import optional_module
from intarsia.common.names import near_names
from intarsia.common.paths import find_input_files, path_text, shown_path
from intarsia.common.source import Source
from intarsia.core.effects import (
    ENGINE_OPTIONS,
    OPTIONS,
    Call,
    SourceKind,
    check_options,
    check_write_options,
)
from intarsia.core.expr import Expr
from intarsia.core.intent import Intent, Merge, Write, WriteOptions
from intarsia.core.merge import listed_columns, normalize_keys
from intarsia.core.planning import check_thresholds
from intarsia.core.ports import Progress, Table
from intarsia.core.rehearsal import MEASURED_BYTES
from intarsia.core.report import MergeResult
from intarsia.core.rule import Assign, Clause, Insert, Rule, strategy_rule
from intarsia.core.run import look, run, silent
from intarsia.engine_choice import Waiting, chosen_engine, engines_for, is_spark
from intarsia.error_terms import in_terms_of
from intarsia.errors import InputError, NotSupported
from intarsia.show.progress import Terminal, for_terminal
from intarsia.sql.clauses import parse_clauses
from intarsia.sql.parse import parse_assignments, parse_merge_condition, parse_predicate, parse_type
from intarsia.tables.parquet import ParquetTable

__all__ = [
    "ALL_OPTIONS",
    "ICEBERG_OPTIONS",
    "TABLE_OPTIONS",
    "Clauses",
    "Columns",
    "Request",
    "Target",
    "bytes_per_file",
    "call_of",
    "check_values",
    "check_whole",
    "column_names",
    "engine_options",
    "has_sql",
    "iceberg_table",
    "is_condition",
    "key_pairs",
    "merge_rule",
    "one_of",
    "predicate_of",
    "requested",
    "shown",
    "tell_spark",
]

Target = Any
"""A path or URL of a Parquet dataset, or a table object."""

Columns = str | Sequence[str]
Clauses = str | Clause | Sequence[str | Clause]
"""What a merge does: clauses, SQL text with one or more of them, or a list of these."""

_ALL_ROWS = 'the whole condition is one text, such as "id <> 5"; "true" takes every row.'
_MB = 1 << 20
_LARGEST = 2**63 - 1
_PATTERN = re.compile(r"[*?]|\[[^\]/]+\]")
_CONDITION = re.compile(r"=|\bdistinct\s+from\b", re.IGNORECASE)
"""What tells a condition from the name of a key column."""
_CODECS = ("none", "snappy", "gzip", "brotli", "lz4", "lz4_raw", "zstd")
TABLE_OPTIONS = (
    "filesystem",
    "storage_options",
    "control_path",
    "single_writer",
    "lock_timeout",
    "lock",
    "retain",
)
ICEBERG_OPTIONS = ("branch", "mode")
_WRITE_OPTIONS = tuple(field.name for field in fields(WriteOptions))
_SPOOL_OPTIONS = ("spool_bytes", "spool_dir")
ALL_OPTIONS = tuple(OPTIONS)


@dataclass(frozen=True, slots=True)
class Request:
    """The keyword options common to all operations, taken apart."""

    table: Table
    engine: Waiting
    write: WriteOptions
    dialect: str | None
    progress: AbstractContextManager[Progress]
    spool: Mapping[str, Any]
    properties: Mapping[str, str]
    filesystem: Any
    dry_run: bool = False
    columns: pa.Schema | None = None
    """Types that the caller declares for columns of text files."""
    measured_bytes: int = MEASURED_BYTES
    """How much a dry run encodes to know its size."""
    naive_timestamps: Literal["error", "utc"] = "error"
    """What timestamps of the source without a zone are taken for, where the target's are instants."""

    @property
    def writing(self) -> dict[str, Any]:
        """What every intent takes besides its own."""
        return {"options": self.write, "properties": self.properties}

    def source(self, source: Any, stack: ExitStack, intent: Merge | Write) -> Source:
        """Take the source in; what comes from paths and has no type of its own gets the target's.

        Progress is shown from here on, until the stack is left.
        """
        if intent.options != WriteOptions():  # before a source is read, which may take long
            check_write_options(intent, self.table.snapshot())
        progress = stack.enter_context(self._watched(intent))
        progress("read source", 0, 0)
        options = dict(self.spool)
        if _has_paths(source):
            if self.engine.waits:
                _check_paths(source, self.filesystem)
            target = self.table.snapshot()
            options |= {
                "filesystem": self.filesystem,
                "partition_columns": (
                    target.partition_columns if intent.partition_columns is None else intent.partition_columns
                ),
                "types": _with_declared(target.schema if target.files else None, self.columns),
                "declared": () if self.columns is None else tuple(self.columns.names),
            }
        if self.naive_timestamps == "utc":
            options["utc_for"] = self.table.snapshot().schema
        if self.engine.waits:
            progress("open Spark", 0, 0)
        engine = self.engine.taker()
        progress("read source", 0, 0)
        options |= self.engine.spooling(self.spool)
        options["progress"] = progress
        if engine.name == "spark":  # whose executors need a place that they can reach
            options |= {"shared": getattr(self.table, "workspace", None), "target": self.table.snapshot}
        return stack.enter_context(engine.adopt(source, **options))

    def _watched(self, intent: Intent) -> AbstractContextManager[Progress]:
        """Progress, which on a terminal says first what is done to what."""
        if isinstance(self.progress, Terminal):
            name = str(getattr(self.table, "root", "")).rstrip("/").rpartition("/")[2]
            self.progress.title = f"{intent.operation} {name}".rstrip()
        return self.progress

    def carry_out(self, intent: Intent, source: Source | None = None) -> MergeResult:
        """Run the operation; errors name the table and its options as the caller does."""
        with in_terms_of(self.table, intent):
            return self._run(intent, source)

    def _run(self, intent: Intent, source: Source | None) -> MergeResult:
        with ExitStack() as stack, self._watched(intent) as progress:
            if source is None:
                progress("list target", 0, 0)
            if source is None and self.engine.waits:
                look(intent, self.table)
                progress("open Spark", 0, 0)
            chosen = self.engine.ready(intent, source, self.table)
            if source is not None and chosen.adopts:
                source = stack.enter_context(chosen.engine.adopt(source))
            result = run(
                intent,
                self.table,
                chosen.engine,
                source,
                dry_run=self.dry_run,
                measured_bytes=self.measured_bytes,
                progress=progress,
                reason=chosen.reason,
            )
        if result.txid is None:  # nothing was committed
            return result
        return replace(result, notes=(*result.notes, *tell_spark(self.table, chosen.engine)))


def tell_spark(table: Table, engine: Any = None) -> tuple[str, ...]:
    """Have Spark sessions at hand look at a changed table again; sentences about what failed.

    No session is opened for it, and pyspark is not imported where the caller has not.
    """
    if "pyspark.sql" not in sys.modules:
        return ()
    notes: tuple[str, ...] = import_module("intarsia.spark.refresh").refresh_sessions(
        table, own=getattr(engine, "spark", None)
    )
    return notes


def requested(
    operation: str,
    engine: Any,
    target: Target,
    options: Mapping[str, Any],
    *,
    source: Any = None,
    sql: Iterable[Any] = (),
    dry_run: bool = False,
) -> Request:
    """What a call was given besides its own arguments; ``sql`` are those of them that may hold SQL text.

    Raises:
        InputError: an option that is not known, is no such value, or could have no effect.
    """
    check_values({**options, "dry_run": dry_run})
    table_options = {n: options[n] for n in (*TABLE_OPTIONS, *ICEBERG_OPTIONS) if n in options}
    table = _table(target, table_options, source)
    call = call_of(operation, engine, target, source=source, sql=[*sql, options.get("columns")])
    check_options(replace(call, dry_run=dry_run), options)
    properties = dict(options.get("properties") or {})
    properties |= {n: str(options[n]) for n in ("app_id", "batch_id") if options.get(n) is not None}
    return Request(
        table=table,
        engine=chosen_engine(engine, engine_options(options), source),
        write=_write_options(options),
        dialect=options.get("dialect"),
        progress=_progress(options.get("progress")),
        spool={name: options[name] for name in _SPOOL_OPTIONS if options.get(name) is not None},
        properties=properties,
        filesystem=options.get("filesystem"),
        dry_run=bool(dry_run),
        columns=_declared(options.get("columns"), options.get("dialect")),
        measured_bytes=_given(options, "measured_bytes", MEASURED_BYTES),
        naive_timestamps=options.get("naive_timestamps") or "error",
    )


def call_of(
    operation: str, engine: Any, target: Target, *, source: Any = None, sql: Iterable[Any] = ()
) -> Call:
    """What the arguments of a call say of the options that can have an effect in it."""
    has_source = operation in ("merge", "write")
    return Call(
        operation,
        target=_kind_of_target(target),
        engines=engines_for(engine, operation, source),
        source=_kind_of_source(source) if has_source else "none",
        has_sql=has_sql(list(sql)),
    )


def _kind_of_target(target: Target) -> Literal["path", "parquet", "iceberg"]:
    if isinstance(target, (str, os.PathLike)):
        return "path"
    return "iceberg" if is_iceberg(target) or hasattr(target, "choosing") else "parquet"


def _kind_of_source(source: Any) -> SourceKind:
    if _has_paths(source):
        return "paths"
    return "frame" if is_spark(source) else "rows"


def has_sql(value: Any) -> bool:
    """Whether there is SQL text in an argument: a condition, assignments, clauses, names of types."""
    match value:
        case str():
            return True
        case Mapping():
            return any(map(has_sql, value.values()))
        case Clause():
            values = getattr(value.action, "values", None)
            return isinstance(value.condition, str) or has_sql(dict(values or ()))
        case list() | tuple():
            return any(map(has_sql, value))
    return False


def check_values(options: Mapping[str, Any]) -> None:
    """Raise InputError on an option that is not known, or whose value is none that it can have."""
    given = {name: value for name, value in options.items() if name != "dry_run"}
    unknown = [name for name in given if name not in ALL_OPTIONS]
    if unknown:
        near = [other for name in unknown for other in near_names(name, ALL_OPTIONS)]
        every = f"options are {', '.join(sorted(ALL_OPTIONS))}."
        raise InputError(
            f"there is no option {', '.join(map(repr, unknown))}.",
            hint=f"did you mean {', '.join(near)}?" if near else every,
        )
    _check_numbers(options)
    _check_kinds(options)
    _write_options(options)
    one_of(options.get("naive_timestamps") or "error", "naive_timestamps", ("error", "utc"))


def _given(options: Mapping[str, Any], name: str, default: Any) -> Any:
    return default if options.get(name) is None else options[name]


def _declared(columns: Any, dialect: str | None) -> pa.Schema | None:
    """The types of ``columns=``: a schema, or a dict of names and types, which may be SQL's names."""
    if columns is None or isinstance(columns, pa.Schema):
        return columns
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) for name in columns):
        raise InputError(
            f"columns must be a dict of names and types, not {columns!r}.",
            hint='such as {"id": "bigint", "price": "decimal(10, 2)"}, or a pyarrow schema.',
        )
    return pa.schema(
        [
            (name, kind if isinstance(kind, pa.DataType) else parse_type(kind, dialect=dialect))
            for name, kind in columns.items()
        ]
    )


def _with_declared(known: pa.Schema | None, declared: pa.Schema | None) -> pa.Schema | None:
    if declared is None:
        return known
    rest = [] if known is None else [field for field in known if field.name not in declared.names]
    return pa.schema([*declared, *rest])


def engine_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options that are an engine's."""
    known = (*ENGINE_OPTIONS, "spool_dir")
    return {name: options[name] for name in known if options.get(name) is not None}


def _check_numbers(options: Mapping[str, Any]) -> None:
    for name in (*ENGINE_OPTIONS, "measured_bytes", "spool_bytes", "retain", "lock_timeout"):
        value = options.get(name)
        kinds = (int, float) if name == "lock_timeout" else int
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or not value >= 0):
            raise InputError(f"{name} must be a number that is not negative, it is {value!r}.")


def _check_kinds(options: Mapping[str, Any]) -> None:
    for name in ("dry_run", "single_writer"):
        one_of(options.get(name, False), name, (True, False))
    for name in ("properties", "storage_options"):
        value = options.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise InputError(f"{name} must be a dict, not {value!r}.")
    properties = options.get("properties") or {}
    if not all(isinstance(part, str) for pair in properties.items() for part in pair):
        raise InputError(f"properties must be a dict of texts, not {properties!r}.")
    for name in ("progress", "lock"):
        value = options.get(name)
        if not (value is None or callable(value) or (name == "progress" and value is False)):
            raise InputError(f"{name} must be something that can be called, not {value!r}.")


def _progress(given: Any) -> AbstractContextManager[Progress]:
    """What the caller watches with; else a line in the terminal, where there is one to look at."""
    if given is None:
        return for_terminal()
    return nullcontext(silent if given is False else given)


def _has_paths(source: Any) -> bool:
    if isinstance(source, (list, tuple)):
        return any(_has_paths(part) for part in source)
    return isinstance(source, (str, os.PathLike))


def _check_paths(source: Any, filesystem: Any) -> None:
    """Raise NothingMatched for a path of this machine that leads nowhere."""
    if isinstance(source, (list, tuple)):
        for part in source:
            _check_paths(part, filesystem)
    elif isinstance(source, (str, os.PathLike)) and "://" not in os.fspath(source):
        find_input_files(source, filesystem=filesystem)


def _table(target: Target, options: Mapping[str, Any], source: Any) -> Table:
    chosen = {name: options[name] for name in ICEBERG_OPTIONS if options.get(name) is not None}
    is_path = isinstance(target, (str, os.PathLike))
    if chosen and (is_path or (_is_table(target) and not hasattr(target, "choosing"))):
        raise InputError(
            f"{', '.join(f'{name}=' for name in chosen)} goes with an Iceberg table, not with"
            f" {'a path' if is_path else 'a Parquet dataset'}.",
            hint='name the table: intarsia.iceberg("db.orders", catalog=...).',
        )
    if isinstance(target, (str, os.PathLike)):
        given = {n: options[n] for n in TABLE_OPTIONS if options.get(n) is not None}
        text = path_text(target, "A target")
        if not _PATTERN.search(text.partition("?")[0] if "://" in text else text):
            return ParquetTable(target, **given)
        return _literal_path(text, target, given)
    if is_iceberg(target):
        _refuse_of_paths(options)
        return iceberg_table(target, **chosen)
    if _is_table(target):
        if hasattr(target, "choosing"):
            _refuse_of_paths(options)
        table: Table = target.choosing(**chosen) if chosen else target
        return table
    swapped = isinstance(source, (str, os.PathLike)) or _is_table(source)
    raise InputError(
        f"the target must be a path, a URL or a table, not {type(target).__name__}.",
        path=shown(source) if swapped else None,
        hint="the source comes first, then the target." if swapped else None,
    )


def _literal_path(text: str, target: Target, options: Mapping[str, Any]) -> ParquetTable:
    """The dataset in a directory whose name looks like a pattern; without such a directory it is one."""
    if "://" not in text:
        table = ParquetTable(target, **options)
        if table.storage.stat(table.control.root) is not None:
            return table
    raise InputError(
        f"{shown_path(text)} is a pattern, and a target is one dataset.",
        path=shown_path(text),
        hint="name the directory itself; a source may be a pattern.",
    )


def _refuse_of_paths(options: Mapping[str, Any]) -> None:
    """An Iceberg table is reached through its catalog; a file system may still be the source's."""
    foreign = [name for name in TABLE_OPTIONS if options.get(name) is not None and name != "filesystem"]
    if foreign:
        raise InputError(
            f"{', '.join(f'{name}=' for name in foreign)} goes with the path of a Parquet dataset, not with"
            " an Iceberg table.",
            hint="leave it out; the catalog says how its tables are reached, and commits need no lock.",
        )


def is_iceberg(value: Any) -> bool:
    """Whether something is a table of PyIceberg, told without importing it."""
    return any(
        kind.__name__ == "Table" and kind.__module__ == "pyiceberg.table" for kind in type(value).__mro__
    )


def iceberg_table(target: Any, catalog: Any = None, **options: Any) -> Table:
    """An Iceberg table, by the object of PyIceberg or by its name in a catalog.

    Raises:
        NotSupported: PyIceberg is not installed.
    """
    kind = optional_module("intarsia.tables.iceberg.table").IcebergTable
    table: Table = kind.of(target, catalog, **options)
    return table


def _is_table(value: Any) -> bool:
    return hasattr(value, "transaction") and hasattr(value, "snapshot")


def _write_options(given: Mapping[str, Any]) -> WriteOptions:
    options = WriteOptions(**{name: given[name] for name in _WRITE_OPTIONS if given.get(name) is not None})
    for name in ("row_group_size", "max_rows_per_file", "batch_rows"):
        check_whole(name, getattr(options, name))
    one_of(options.int96, "int96", ("keep", "convert"))
    if options.compression is not None:
        _check_codec(options.compression)
    return options


def check_whole(name: str, value: Any) -> None:
    """Raise InputError unless a number, where one is given, is whole, above zero and of 64 bits."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value <= 0):
        raise InputError(f"{name} must be a whole number greater than zero, it is {value!r}.")
    if value is not None and value > _LARGEST:
        raise InputError(f"{name} must be at most {_LARGEST:,}, it is {value!r}.")


def _check_codec(codec: Any) -> None:
    if not isinstance(codec, str) or codec.lower() not in (*_CODECS, "uncompressed"):
        raise InputError(f"Unknown compression {codec!r}; it must be one of {', '.join(_CODECS)}.")


def is_condition(on: Any) -> bool:
    """Whether ``on=`` is a condition and not names of columns."""
    return isinstance(on, str) and _CONDITION.search(on) is not None


def key_pairs(on: Any, dialect: str | None) -> dict[str, Any]:
    """What ``on=`` says, as fields of an intent: key columns of both sides, and what else it asks."""
    if not is_condition(on):
        keys = tuple(normalize_keys(on))
        return {"keys": keys, "source_keys": keys}
    pairs, rest = parse_merge_condition(on, dialect=dialect)
    columns = [column for pair in pairs for column in (pair.target, pair.source)]
    nested = [column.path for column in columns if len(column.path) > 1]
    if nested:
        raise NotSupported(
            f"A key cannot be a field inside a struct: {'.'.join(nested[0])!r}.",
            hint="bring it to a column of its own first.",
        )
    return {
        "keys": tuple(pair.target.path[0] for pair in pairs),
        "source_keys": tuple(pair.source.path[0] for pair in pairs),
        "residual": rest,
        "null_safe": frozenset(number for number, pair in enumerate(pairs) if pair.null_safe),
        "quoted": frozenset((str(column.side), column.path[0]) for column in columns if column.exact),
    }


def merge_rule(strategy: str, clauses: Clauses | None, dialect: str | None) -> Rule:
    """The rule of the clauses, their texts parsed; that of the strategy where there are none."""
    if clauses is None:
        return strategy_rule(strategy)
    if strategy != "upsert":
        raise InputError(
            f"strategy={strategy!r} and clauses= were given, and one stands instead of the other.",
            hint="leave one of the two out.",
        )
    given: list[Any] = [clauses] if isinstance(clauses, (str, Clause)) else _listed(clauses)
    if not given or not all(isinstance(clause, (str, Clause)) for clause in given):
        raise InputError(
            "clauses must be a list of when_matched(...), when_not_matched(...) or"
            " when_not_matched_by_source(...), each with an action, or SQL text.",
            hint='such as "when matched then update set *".',
        )
    made: list[Clause] = []
    for clause in given:
        made += [clause] if isinstance(clause, Clause) else parse_clauses(clause, dialect=dialect)
    return Rule("merge", tuple(_parsed(clause, dialect) for clause in made))


def _listed(values: Any) -> list[Any]:
    """Several values as a list; what is none, or says more than its parts, is one of an unknown kind."""
    return list(values) if isinstance(values, Iterable) and not isinstance(values, Mapping) else [values]


def _parsed(clause: Clause, dialect: str | None) -> Clause:
    condition = clause.condition
    if condition is not None and not isinstance(condition, Expr):
        condition = _condition_of(condition, dialect)
    action = clause.action
    if isinstance(action, (Assign, Insert)) and action.values is not None:
        action = type(action)(parse_assignments(dict(action.values), dialect=dialect))
    return Clause(clause.side, action, condition)


def _condition_of(condition: Any, dialect: str | None) -> Expr:
    if isinstance(condition, str):
        return parse_predicate(condition, dialect=dialect)
    raise InputError(
        f"the condition of a clause is SQL text, not {condition!r} ({type(condition).__name__}).",
        hint=_ALL_ROWS if isinstance(condition, bool) else "such as \"source.op = 'd'\".",
    )


def predicate_of(where: Any, dialect: str | None) -> Any:
    """SQL text parsed; an expression of Arrow stays as it is.

    A Python bool is refused: ``"id" != 5`` is True in Python, and means every row to nobody who wrote it.
    """
    if isinstance(where, str):
        return parse_predicate(where, dialect=dialect)
    if isinstance(where, pc.Expression):
        return where
    raise InputError(
        f"a predicate is SQL text or a pyarrow.compute expression, not {where!r} ({type(where).__name__}).",
        hint=_ALL_ROWS if isinstance(where, bool) else "such as \"price > 3 and day = 'mon'\".",
    )


def column_names(columns: Any, argument: str) -> tuple[str, ...]:
    """Columns as a tuple: none, a single name, or several. Raises InputError for anything but names."""
    return () if columns is None else tuple(listed_columns(columns, argument))


def bytes_per_file(megabytes: float | None, rows: int | None) -> int | None:
    """The target size of a file in bytes. Raises InputError where either threshold is not above zero."""
    check_thresholds(megabytes, rows)
    return None if megabytes is None else max(1, int(megabytes * _MB))


def one_of(value: Any, name: str, allowed: tuple[Any, ...]) -> Any:
    try:
        known = value in allowed
    except (TypeError, ValueError):  # an expression or an array, which cannot be compared so
        known = False
    if not known:
        raise InputError(f"{name} must be one of {', '.join(map(repr, allowed))}, it is {value!r}.")
    return value


def shown(target: Target) -> str:
    """The target as logs and errors name it; nothing for what is no table."""
    if isinstance(target, (str, os.PathLike)):
        return shown_path(target, "A target")
    if is_iceberg(target):
        return ".".join((target.catalog.name, *target.name()))
    return str(getattr(target, "root", ""))
