"""The arguments of a call made into table, engine, options and values of core; the calls are not in here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pyarrow.compute as pc

from intarsia.common.names import near_names
from intarsia.common.paths import find_input_files, shown_path
from intarsia.common.source import Source
from intarsia.core.intent import Intent, WriteOptions
from intarsia.core.merge import listed_columns, normalize_keys
from intarsia.core.planning import check_thresholds
from intarsia.core.ports import Progress, Table
from intarsia.core.report import MergeResult
from intarsia.core.rule import Assign, Clause, Insert, Rule, strategy_rule
from intarsia.core.run import look, run, silent
from intarsia.engine_choice import Waiting, chosen_engine
from intarsia.errors import InputError, NotSupported
from intarsia.show.progress import for_terminal
from intarsia.sql.clauses import parse_clauses
from intarsia.sql.parse import parse_assignments, parse_expression, parse_merge_condition, parse_predicate
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
    "check_whole",
    "column_names",
    "engine_options",
    "iceberg_table",
    "key_pairs",
    "merge_rule",
    "one_of",
    "predicate_of",
    "requested",
    "shown",
]

Target = Any
"""A path or URL of a Parquet dataset, or a table object."""

Columns = str | Sequence[str]
Clauses = str | Clause | Sequence[str | Clause]
"""What a merge does: clauses, SQL text with one or more of them, or a list of these."""

_MB = 1 << 20
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
_ENGINE_OPTIONS = ("threads", "memory_bytes", "tasks", "broadcast_bytes")
_WRITE_OPTIONS = tuple(field.name for field in fields(WriteOptions))
_SPOOL_OPTIONS = ("spool_bytes", "spool_dir")
_OTHER_OPTIONS = ("dialect", "progress", "properties", "app_id", "batch_id")
ALL_OPTIONS = (
    *TABLE_OPTIONS,
    *ICEBERG_OPTIONS,
    *_ENGINE_OPTIONS,
    *_WRITE_OPTIONS,
    *_SPOOL_OPTIONS,
    *_OTHER_OPTIONS,
)


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

    @property
    def writing(self) -> dict[str, Any]:
        """What every intent takes besides its own."""
        return {"options": self.write, "properties": self.properties}

    def source(self, source: Any, stack: ExitStack, partition_columns: Sequence[str] | None) -> Source:
        """Take the source in; what comes from paths and has no type of its own gets the target's."""
        options = dict(self.spool)
        if _has_paths(source):
            if self.engine.waits:
                _check_paths(source, self.filesystem)
            target = self.table.snapshot()
            options |= {
                "filesystem": self.filesystem,
                "partition_columns": (
                    target.partition_columns if partition_columns is None else partition_columns
                ),
                "types": target.schema if target.files else None,
            }
        engine = self.engine.taker()
        options |= self.engine.spooling(self.spool)
        if engine.name == "spark":  # whose executors need a place that they can reach
            options["shared"] = getattr(self.table, "workspace", None)
        return stack.enter_context(engine.adopt(source, **options))

    def carry_out(self, intent: Intent, source: Source | None = None) -> MergeResult:
        if source is None and self.engine.waits:
            look(intent, self.table)
        chosen = self.engine.ready(intent, source, self.table)
        with ExitStack() as stack, self.progress as progress:
            if source is not None and chosen.adopts:
                source = stack.enter_context(chosen.engine.adopt(source))
            return run(
                intent,
                self.table,
                chosen.engine,
                source,
                dry_run=self.dry_run,
                progress=progress,
                reason=chosen.reason,
            )


def requested(
    engine: Any, target: Target, options: Mapping[str, Any], source: Any = None, *, dry_run: bool = False
) -> Request:
    """What a call was given besides its own arguments. Raises InputError on an option that is not known."""
    unknown = [name for name in options if name not in ALL_OPTIONS]
    if unknown:
        near = [other for name in unknown for other in near_names(name, ALL_OPTIONS)]
        every = f"options are {', '.join(sorted(ALL_OPTIONS))}."
        raise InputError(
            f"there is no option {', '.join(map(repr, unknown))}.",
            hint=f"did you mean {', '.join(near)}?" if near else every,
        )
    _check_numbers(options)
    _check_kinds({**options, "dry_run": dry_run})
    table_options = {n: options[n] for n in (*TABLE_OPTIONS, *ICEBERG_OPTIONS) if n in options}
    properties = dict(options.get("properties") or {})
    properties |= {n: str(options[n]) for n in ("app_id", "batch_id") if options.get(n) is not None}
    return Request(
        table=_table(target, table_options, source),
        engine=chosen_engine(engine, engine_options(options), source),
        write=_write_options({name: options[name] for name in _WRITE_OPTIONS if name in options}),
        dialect=options.get("dialect"),
        progress=_progress(options.get("progress")),
        spool={name: options[name] for name in _SPOOL_OPTIONS if options.get(name) is not None},
        properties=properties,
        filesystem=options.get("filesystem"),
        dry_run=bool(dry_run),
    )


def engine_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options that are an engine's."""
    known = (*_ENGINE_OPTIONS, "spool_dir")
    return {name: options[name] for name in known if options.get(name) is not None}


def _check_numbers(options: Mapping[str, Any]) -> None:
    for name in (*_ENGINE_OPTIONS, "spool_bytes", "retain", "lock_timeout"):
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
    if isinstance(target, (str, os.PathLike)):
        if chosen:
            raise InputError(
                f"{', '.join(f'{name}=' for name in chosen)} goes with an Iceberg table, not with a path.",
                hint='name the table: intarsia.iceberg("db.orders", catalog=...).',
            )
        return ParquetTable(target, **{n: value for n, value in options.items() if n in TABLE_OPTIONS})
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
    if find_spec("pyiceberg") is None:
        raise NotSupported("Iceberg tables need PyIceberg.", hint="pip install 'intarsia[iceberg]'.")
    kind = import_module("intarsia.tables.iceberg.table").IcebergTable
    table: Table = kind.of(target, catalog, **options)
    return table


def _is_table(value: Any) -> bool:
    return hasattr(value, "transaction") and hasattr(value, "snapshot")


def _write_options(given: Mapping[str, Any]) -> WriteOptions:
    options = WriteOptions(**{name: value for name, value in given.items() if value is not None})
    for name in ("row_group_size", "max_rows_per_file", "batch_rows"):
        check_whole(name, getattr(options, name))
    if options.compression is not None:
        _check_codec(options.compression)
    return options


def check_whole(name: str, value: Any) -> None:
    """Raise InputError unless a number, where one is given, is whole and above zero."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value <= 0):
        raise InputError(f"{name} must be a whole number greater than zero, it is {value!r}.")


def _check_codec(codec: Any) -> None:
    if not isinstance(codec, str) or codec.lower() not in (*_CODECS, "uncompressed"):
        raise InputError(f"Unknown compression {codec!r}; it must be one of {', '.join(_CODECS)}.")


def key_pairs(on: Any, dialect: str | None) -> tuple[tuple[str, ...], tuple[str, ...], Any]:
    """Key columns of both sides, and what else the ON condition asks."""
    if isinstance(on, str) and "=" in on:
        pairs, rest = parse_merge_condition(on, dialect=dialect)
        nested = [path for pair in pairs for path in pair if len(path) > 1]
        if nested:
            raise NotSupported(
                f"A key cannot be a field inside a struct: {'.'.join(nested[0])!r}.",
                hint="bring it to a column of its own first.",
            )
        return tuple(pair[0][0] for pair in pairs), tuple(pair[1][0] for pair in pairs), rest
    keys = tuple(normalize_keys(on))
    return keys, keys, None


def merge_rule(strategy: str, clauses: Clauses | None, dialect: str | None) -> Rule:
    """The rule of the clauses, their texts parsed; that of the strategy where there are none."""
    if clauses is None:
        return strategy_rule(strategy)
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
    if isinstance(condition, str):
        condition = parse_predicate(condition, dialect=dialect)
    action = clause.action
    if isinstance(action, (Assign, Insert)) and action.values is not None:
        action = type(action)(parse_assignments(dict(action.values), dialect=dialect))
    return Clause(clause.side, action, condition)


def predicate_of(where: Any, dialect: str | None) -> Any:
    """SQL text parsed; an expression of Arrow stays as it is."""
    if isinstance(where, str):
        return parse_predicate(where, dialect=dialect)
    if isinstance(where, bool):
        return parse_expression("true" if where else "false")
    if isinstance(where, pc.Expression):
        return where
    raise InputError(
        f"a predicate is SQL text or a pyarrow.compute expression, not {where!r} ({type(where).__name__}).",
        hint="such as \"price > 3 and day = 'mon'\".",
    )


def column_names(columns: Any, argument: str) -> tuple[str, ...]:
    """Columns as a tuple: none, a single name, or several. Raises InputError for anything but names."""
    return () if columns is None else tuple(listed_columns(columns, argument))


def bytes_per_file(megabytes: float | None, rows: int | None) -> int | None:
    """The target size of a file in bytes. Raises InputError where either threshold is not above zero."""
    check_thresholds(megabytes, rows)
    return None if megabytes is None else max(1, int(megabytes * _MB))


def one_of(value: Any, name: str, allowed: tuple[Any, ...]) -> Any:
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(map(repr, allowed))}, it is {value!r}.")
    return value


def shown(target: Target) -> str:
    """The target as logs and errors name it; nothing for what is no table."""
    if isinstance(target, (str, os.PathLike)):
        return shown_path(target)
    if is_iceberg(target):
        return ".".join(target.name())
    return str(getattr(target, "root", ""))
