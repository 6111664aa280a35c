"""The library's face: one small set of calls for every engine and table.

Every call that changes a table is atomic (all or nothing, also across a crash) and raises typed errors
from :mod:`intarsia.errors`; with ``dry_run=True`` it stops after the plan and writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import Any, Literal

import pyarrow.compute as pc

import intarsia.show  # noqa: F401  values learn to show themselves
from intarsia.common.arrow import Source, adopt
from intarsia.common.log import logger, operation_log
from intarsia.core.files import Snapshot
from intarsia.core.inspection import Inspection, inspect_snapshot
from intarsia.core.intent import (
    Compact,
    Deduplicate,
    Delete,
    Intent,
    Merge,
    Optimize,
    Update,
    Write,
    WriteOptions,
)
from intarsia.core.merge import normalize_keys
from intarsia.core.plan import Plan
from intarsia.core.planning import check_thresholds
from intarsia.core.ports import Engine, Progress, Table
from intarsia.core.report import MergeResult
from intarsia.core.rule import Assign, Clause, Insert, Rule, strategy_rule
from intarsia.core.run import explain, run, silent
from intarsia.engines.arrow import ArrowEngine
from intarsia.errors import InputError, NotSupported
from intarsia.sql.parse import parse_assignments, parse_expression, parse_merge_condition, parse_predicate
from intarsia.tables.parquet import ParquetTable

log = logger(__name__)

Target = Any
"""A path or URL of a Parquet dataset, or a table object."""

Columns = str | Sequence[str]
WriteMode = Literal["append", "overwrite", "overwrite_partitions"]
Curve = Literal["zorder", "hilbert", "linear"]

_MB = 1 << 20


@dataclass(frozen=True, slots=True)
class _Request:
    """The keyword options common to all operations, taken apart."""

    table: Table
    engine: Engine
    write: WriteOptions
    dialect: str | None
    progress: Progress
    spool: Mapping[str, Any]
    properties: Mapping[str, str]
    filesystem: Any

    def source(self, source: Any, stack: ExitStack, partition_columns: Sequence[str] | None) -> Source:
        """Take the source in; what comes from paths and has no type of its own gets the target's."""
        if not _has_paths(source):
            return stack.enter_context(adopt(source, **self.spool))
        target = self.table.snapshot()
        adopted = adopt(
            source,
            filesystem=self.filesystem,
            partition_columns=target.partition_columns if partition_columns is None else partition_columns,
            types=target.schema if target.files else None,
            **self.spool,
        )
        return stack.enter_context(adopted)

    def carry_out(self, intent: Intent, source: Source | None, *, dry_run: bool) -> MergeResult:
        return run(intent, self.table, self.engine, source, dry_run=dry_run, progress=self.progress)


_TABLE_OPTIONS = ("filesystem", "storage_options", "control_path", "single_writer", "lock_timeout", "lock",
                  "retain")
_ENGINE_OPTIONS = ("threads", "memory_bytes")
_WRITE_OPTIONS = tuple(field.name for field in fields(WriteOptions))
_SPOOL_OPTIONS = ("spool_bytes", "spool_dir")
_OTHER_OPTIONS = ("dialect", "progress", "properties", "app_id", "batch_id")
_ALL_OPTIONS = (*_TABLE_OPTIONS, *_ENGINE_OPTIONS, *_WRITE_OPTIONS, *_SPOOL_OPTIONS, *_OTHER_OPTIONS)


def merge(
    source: Any,
    target: Target,
    *,
    on: Columns,
    strategy: str = "upsert",
    clauses: Sequence[Clause] | None = None,
    dedup_order_by: Columns | None = None,
    null_keys: Literal["error", "match"] = "error",
    missing: Literal["error", "null"] = "error",
    schema_evolution: Any = None,
    partition_by: Columns | None = None,
    engine: Any = "auto",
    dry_run: bool = False,
    **options: Any,
) -> MergeResult:
    """Set source rows into a table by key; only files that really change are rewritten.

    Args:
        source: a table, record batches, a dataset, anything with an Arrow stream (polars, pandas, a
            DuckDB relation), or paths of Parquet, CSV or JSON files.
        target: path or URL of a Parquet dataset; insert and upsert make it when it does not exist.
        on: key columns, or a condition such as ``"target.id = source.id and target.open"``.
        strategy: ``insert``, ``update``, ``upsert``, ``full_merge`` or ``deduplicate``.
        clauses: instead of a strategy, :func:`when_matched` and its kin; the first that applies decides.
        dedup_order_by: with ``deduplicate``, the row with the highest values of these wins.
        null_keys: ``"match"`` lets NULL equal NULL instead of refusing NULL keys.
        missing: ``"null"`` fills columns that the source lacks instead of refusing it.
        schema_evolution: ``"add"`` takes new columns over, ``"widen"`` promotes types.
        partition_by: for a dataset that does not exist yet.
        engine: ``"auto"`` or ``"arrow"``.
        dry_run: plan and count, write nothing.
        options: table (``filesystem``, ``storage_options``, ``control_path``, ``single_writer``,
            ``lock_timeout``, ``retain``), writing (``compression``, ``row_group_size``,
            ``max_rows_per_file``, ``batch_rows``), engine (``threads``, ``memory_bytes``), source
            (``spool_bytes``, ``spool_dir``), and ``dialect``, ``progress``, ``properties``.

    Raises:
        KeyColumnError: keys missing, NULL, duplicate or of a nested type.
        PartitionMoveError: an existing key would change its partition.
        SchemaMismatch: a column or a value that does not fit.
        CommitConflict: another writer kept getting in between.

    Example:
        >>> import pyarrow as pa, intarsia as it
        >>> result = it.merge(pa.table({"id": [2, 3], "n": ["b2", "c"]}), orders, on="id")
        >>> result.updated, result.inserted
        (1, 1)
    """
    request = _request(engine, target, options)
    keys, source_keys, residual = _on(on, request.dialect)
    rule = _rule(strategy, clauses, request.dialect)
    intent = Merge(
        rule=rule,
        keys=keys,
        source_keys=source_keys,
        residual=residual,
        dedup_order_by=_columns(dedup_order_by),
        null_keys=_one_of(null_keys, "null_keys", ("error", "match")),
        missing=_one_of(missing, "missing", ("error", "null")),
        schema_evolution=schema_evolution,
        partition_columns=None if partition_by is None else _columns(partition_by),
        options=request.write,
        properties=request.properties,
    )
    if intent.dedup_order_by and rule.name != "deduplicate":
        raise InputError('dedup_order_by goes with strategy="deduplicate".')
    with operation_log(log, rule.name, _shown(target)), ExitStack() as stack:
        adopted = request.source(source, stack, intent.partition_columns)
        return request.carry_out(intent, adopted, dry_run=dry_run)


def delete(
    target: Target, where: Any, *, engine: Any = "auto", dry_run: bool = False, **options: Any
) -> MergeResult:
    """Delete the rows for which ``where`` is TRUE (not NULL).

    ``where`` is SQL text (``"price < 0 and region = 'eu'"``) or a ``pyarrow.compute`` expression. Files
    whose partition or bounds decide the question are not read; a file that loses every row is removed.
    """
    request = _request(engine, target, options)
    if where is None:
        raise InputError("delete needs a predicate.", hint='pass where="true" to delete every row.')
    intent = Delete(_predicate(where, request.dialect), request.write, request.properties)
    with operation_log(log, "delete", _shown(target)):
        return request.carry_out(intent, None, dry_run=dry_run)


def update(
    target: Target,
    assignments: Mapping[str, Any],
    where: Any = None,
    *,
    engine: Any = "auto",
    dry_run: bool = False,
    **options: Any,
) -> MergeResult:
    """Assign columns of the rows for which ``where`` is TRUE; of every row without it.

    Values are SQL text over the row as it was: ``{"price": "price * 1.1", "note": "'x'"}``; a nested
    field is named ``"p.amt"``. Partition columns cannot be assigned.
    """
    request = _request(engine, target, options)
    if not assignments:
        raise InputError("update needs at least one assignment.")
    parsed = parse_assignments(assignments, dialect=request.dialect)
    predicate = None if where is None else _predicate(where, request.dialect)
    intent = Update(parsed, predicate, request.write, request.properties)
    with operation_log(log, "update", _shown(target)):
        return request.carry_out(intent, None, dry_run=dry_run)


def write(
    source: Any,
    target: Target,
    *,
    mode: WriteMode = "append",
    partition_by: Columns | None = None,
    missing: Literal["error", "null"] = "error",
    schema_evolution: Any = None,
    engine: Any = "auto",
    dry_run: bool = False,
    **options: Any,
) -> MergeResult:
    """Add rows, or put them in the place of all rows or of the partitions they belong to.

    New files appear first, then the old ones go: a reader sees too much for a moment, never too little.
    Files that are not Parquet data stay.
    """
    request = _request(engine, target, options)
    intent = Write(
        mode=_one_of(mode, "mode", ("append", "overwrite", "overwrite_partitions")),
        partition_columns=None if partition_by is None else _columns(partition_by),
        missing=_one_of(missing, "missing", ("error", "null")),
        schema_evolution=schema_evolution,
        options=request.write,
        properties=request.properties,
    )
    with operation_log(log, mode, _shown(target)), ExitStack() as stack:
        adopted = request.source(source, stack, intent.partition_columns)
        return request.carry_out(intent, adopted, dry_run=dry_run)


def compact(
    target: Target,
    *,
    target_mb_per_file: float | None = None,
    target_rows_per_file: int | None = None,
    partition_filter: Any = None,
    engine: Any = "auto",
    dry_run: bool = False,
    **options: Any,
) -> MergeResult:
    """Bring small files of each partition together into files of about the target size.

    Idempotent: run again, it finds nothing to do. Rows and their order within a file stay.
    """
    request = _request(engine, target, options)
    target_bytes = _target_bytes(target_mb_per_file, target_rows_per_file)
    intent = Compact(target_bytes, target_rows_per_file, partition_filter, request.write, request.properties)
    with operation_log(log, "compact", _shown(target)):
        return request.carry_out(intent, None, dry_run=dry_run)


def optimize(
    target: Target,
    *,
    by: Columns = (),
    curve: Curve = "zorder",
    target_mb_per_file: float | None = None,
    target_rows_per_file: int | None = None,
    partition_filter: Any = None,
    deduplicate_on: Columns | None = None,
    dedup_order_by: Columns | None = None,
    engine: Any = "auto",
    dry_run: bool = False,
    **options: Any,
) -> MergeResult:
    """Order the rows of each partition along a curve over ``by``, so that filters on them read less.

    One column is a sort; several follow a z-order or Hilbert curve, or with ``curve="linear"`` the
    plain order of the columns. NULLs come last. ``deduplicate_on`` leaves one row per key meanwhile.
    """
    request = _request(engine, target, options)
    target_bytes = _target_bytes(target_mb_per_file, target_rows_per_file)
    intent = Optimize(
        by=_columns(by),
        curve=_one_of(curve, "curve", ("zorder", "hilbert", "linear")),
        target_bytes=target_bytes,
        target_rows=target_rows_per_file,
        partition_filter=partition_filter,
        deduplicate_keys=_columns(deduplicate_on),
        deduplicate=deduplicate_on is not None,
        dedup_order_by=_columns(dedup_order_by),
        options=request.write,
        properties=request.properties,
    )
    if not intent.by and not intent.deduplicate:
        raise InputError("optimize needs the columns to order by.", hint="pass by=[...].")
    with operation_log(log, "optimize", _shown(target)):
        return request.carry_out(intent, None, dry_run=dry_run)


def deduplicate(
    target: Target,
    *,
    on: Columns | None = None,
    order_by: Columns | None = None,
    partition_filter: Any = None,
    engine: Any = "auto",
    dry_run: bool = False,
    **options: Any,
) -> MergeResult:
    """Leave one row per key: the one with the highest ``order_by``, else the last.

    Without ``on``, one of each set of rows that are equal in every column. Only files that lose a row
    are rewritten. Idempotent.
    """
    request = _request(engine, target, options)
    intent = Deduplicate(_columns(on), _columns(order_by), partition_filter, request.write, request.properties)
    with operation_log(log, "deduplicate", _shown(target)):
        return request.carry_out(intent, None, dry_run=dry_run)


def plan(operation: str, *args: Any, **kwargs: Any) -> Plan:
    """The plan of any operation, by its name: ``plan("merge", source, target, on="id")``.

    Tells for each file whether it is kept, rewritten or removed and why, and how many bytes will be
    read and written. Reads what the operation would read to decide; writes nothing.
    """
    calls = {call.__name__: call for call in (merge, delete, update, write, compact, optimize, deduplicate)}
    if operation not in calls:
        raise InputError(f"There is no operation {operation!r} to plan; there is {', '.join(calls)}.")
    made = calls[operation](*args, **{**kwargs, "dry_run": True}).plan
    assert made is not None
    return made


def snapshot(target: Target, **options: Any) -> Snapshot:
    """One consistent state of a table, also while a commit is under way or after a crash."""
    return _request("auto", target, options).table.snapshot()


def inspect(target: Target, **options: Any) -> Inspection:
    """What a table looks like: files, rows, bytes, partitions, small files; from footers alone."""
    return inspect_snapshot(snapshot(target, **options))


def recover(target: Target, **options: Any) -> tuple[str, ...]:
    """Finish or undo what a crashed writer left; the sentences say what was done. Idempotent.

    Never needed: the next operation that writes does the same.
    """
    return _request("auto", target, options).table.recover()


def _has_paths(source: Any) -> bool:
    if isinstance(source, (list, tuple)):
        return any(_has_paths(part) for part in source)
    return isinstance(source, (str, os.PathLike))


def _request(engine: Any, target: Target, options: Mapping[str, Any]) -> _Request:
    unknown = [name for name in options if name not in _ALL_OPTIONS]
    if unknown:
        raise InputError(f"Unknown option {', '.join(map(repr, unknown))}.",
                         hint=f"options are {', '.join(sorted(_ALL_OPTIONS))}.")
    table_options = {name: options[name] for name in _TABLE_OPTIONS if name in options}
    engine_options = {name: options[name] for name in _ENGINE_OPTIONS if options.get(name) is not None}
    properties = dict(options.get("properties") or {})
    properties |= {n: str(options[n]) for n in ("app_id", "batch_id") if options.get(n) is not None}
    return _Request(
        table=_table(target, table_options),
        engine=_engine(engine, engine_options),
        write=_write_options({name: options[name] for name in _WRITE_OPTIONS if name in options}),
        dialect=options.get("dialect"),
        progress=options.get("progress") or silent,
        spool={name: options[name] for name in _SPOOL_OPTIONS if options.get(name) is not None},
        properties=properties,
        filesystem=options.get("filesystem"),
    )


def _table(target: Target, options: Mapping[str, Any]) -> Table:
    if isinstance(target, (str, os.PathLike)):
        return ParquetTable(target, **options)
    if hasattr(target, "transaction") and hasattr(target, "snapshot"):
        table: Table = target
        return table
    raise InputError(f"The target must be a path, a URL or a table, not {type(target).__name__}.")


def _engine(engine: Any, options: Mapping[str, Any]) -> Engine:
    if isinstance(engine, str) and engine in ("auto", "arrow", "pyarrow"):
        return ArrowEngine(**options)
    if isinstance(engine, ArrowEngine):
        return engine
    if isinstance(engine, str) and engine in ("duckdb", "spark"):
        raise NotSupported(f"The {engine} engine is not part of this version.", hint='use engine="arrow".')
    raise InputError(f"Unknown engine {engine!r}.", hint='engines are "auto" and "arrow".')


def _write_options(given: Mapping[str, Any]) -> WriteOptions:
    options = WriteOptions(**{name: value for name, value in given.items() if value is not None})
    for name in ("row_group_size", "max_rows_per_file", "batch_rows"):
        value = getattr(options, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value <= 0):
            raise InputError(f"{name} must be a whole number greater than zero, it is {value!r}.")
    if options.compression is not None:
        _check_codec(options.compression)
    return options


_CODECS = ("none", "snappy", "gzip", "brotli", "lz4", "lz4_raw", "zstd")


def _check_codec(codec: str) -> None:
    if not isinstance(codec, str) or codec.lower() not in (*_CODECS, "uncompressed"):
        raise InputError(f"Unknown compression {codec!r}; it must be one of {', '.join(_CODECS)}.")


def _on(on: Any, dialect: str | None) -> tuple[tuple[str, ...], tuple[str, ...], Any]:
    """Key columns of both sides, and what else the ON condition asks."""
    if isinstance(on, str) and "=" in on:
        pairs, rest = parse_merge_condition(on, dialect=dialect)
        nested = [path for pair in pairs for path in pair if len(path) > 1]
        if nested:
            raise NotSupported(f"A key cannot be a field inside a struct: {'.'.join(nested[0])!r}.",
                               hint="bring it to a column of its own first.")
        return tuple(pair[0][0] for pair in pairs), tuple(pair[1][0] for pair in pairs), rest
    keys = tuple(normalize_keys(on))
    return keys, keys, None


def _rule(strategy: str, clauses: Sequence[Clause] | None, dialect: str | None) -> Rule:
    if clauses is None:
        return strategy_rule(strategy)
    given = [clauses] if isinstance(clauses, Clause) else list(clauses)
    if not given or not all(isinstance(clause, Clause) for clause in given):
        raise InputError("clauses must be a list of when_matched(...), when_not_matched(...) or"
                         " when_not_matched_by_source(...), each with an action.")
    return Rule("merge", tuple(_parsed(clause, dialect) for clause in given))


def _parsed(clause: Clause, dialect: str | None) -> Clause:
    condition = clause.condition
    if isinstance(condition, str):
        condition = parse_predicate(condition, dialect=dialect)
    action = clause.action
    if isinstance(action, (Assign, Insert)) and action.values is not None:
        action = type(action)(parse_assignments(dict(action.values), dialect=dialect))
    return Clause(clause.side, action, condition)


def _predicate(where: Any, dialect: str | None) -> Any:
    if isinstance(where, str):
        return parse_predicate(where, dialect=dialect)
    if isinstance(where, bool):
        return parse_expression("true" if where else "false")
    if isinstance(where, pc.Expression):
        return where
    raise InputError(f"A predicate is SQL text or a pyarrow.compute expression, not {type(where).__name__}.")


def _columns(columns: Columns | None) -> tuple[str, ...]:
    if columns is None:
        return ()
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _target_bytes(megabytes: float | None, rows: int | None) -> int | None:
    target = None if megabytes is None else int(megabytes * _MB) or (1 if megabytes > 0 else 0)
    check_thresholds(target, rows)
    return target


def _one_of(value: Any, name: str, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(map(repr, allowed))}, it is {value!r}.")
    return value


def _shown(target: Target) -> str:
    if isinstance(target, (str, os.PathLike)):
        return os.fspath(target)
    return str(getattr(target, "root", target))
