"""The engine that ``engine=`` names, made when it is needed; what ``"auto"`` chooses, and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any, Literal, Protocol

import pyarrow.fs as pafs

from intarsia.common.arrow import SPOOL_BYTES
from intarsia.common.lazy import import_optional
from intarsia.common.source import IngestedSource
from intarsia.common.system import read_physical_memory
from intarsia.core.intent import DeduplicateIntent, Intent, MergeIntent, OptimizeIntent
from intarsia.core.plan import Plan
from intarsia.core.ports import Engine, Table
from intarsia.core.run import preview_plan
from intarsia.core.snapshot import DataFile
from intarsia.engines.arrow import ArrowEngine
from intarsia.errors import EngineError, InputError, NotSupported
from intarsia.options import RowSource
from intarsia.show import units
from intarsia.storage import PosixStorage

__all__ = [
    "INDEX_BYTES",
    "MEMORY_SHARE",
    "DeferredSession",
    "EngineChoice",
    "EngineLike",
    "LazyEngine",
    "check_engine",
    "choose_engine",
    "estimate_plan_bytes",
    "estimate_source_bytes",
    "is_duckdb",
    "is_spark",
    "list_engines",
    "read_memory_total",
]


MEMORY_SHARE = 4
"""The memory budget without ``memory_bytes``: the memory there is, divided by this."""
_OLDEST_DUCKDB = (1, 5)


@dataclass(frozen=True, slots=True)
class DeferredSession:
    """A Spark session as ``engine=`` that is opened when it is first needed."""

    session: Callable[[], Any]


class ConnectionLike(Protocol):
    """A connection of DuckDB."""

    def cursor(self) -> Any: ...

    def interrupt(self) -> None: ...


class SessionLike(Protocol):
    """A SparkSession, classic or Connect."""

    @property
    def createDataFrame(self) -> Any: ...


EngineName = Literal["auto", "arrow", "pyarrow", "duckdb", "spark"]
EngineLike = EngineName | Engine | ConnectionLike | SessionLike | DeferredSession
"""What ``engine=`` takes: a name, a DuckDB connection, a SparkSession, or an engine that the caller made."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine for one operation, and the reason; no reason where the caller named the engine."""

    engine: Engine
    reason: str = ""
    reingests: bool = False
    """Whether it has to ingest the source again, from the engine that ingested it first."""


class LazyEngine:
    """An engine that is made when it is needed, since a Spark session takes seconds to open.

    Errors that need no engine are raised before.
    """

    def __init__(
        self, made: Engine | None, make: Callable[[], Engine] | None = None, *, reason: str = ""
    ) -> None:
        self._made = made
        self._make = make
        self._reason = reason

    @property
    def is_pending(self) -> bool:
        return self._made is None

    def get(self) -> Engine:
        """The engine that ingests the source, made now if it was not."""
        if self._made is None:
            assert self._make is not None
            self._made = self._make()
        return self._made

    def make_spool_options(self, _given: Mapping[str, Any]) -> dict[str, Any]:
        """Options for ingesting the source, besides those that were given."""
        return {}

    def resolve(self, _intent: Intent, _source: IngestedSource | None, _table: Table) -> EngineChoice:
        """The engine that runs the operation."""
        return EngineChoice(self.get(), self._reason)


class AutoEngine(LazyEngine):
    """PyArrow for work that fits the memory budget, else DuckDB, where it is installed."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(ArrowEngine(**_select_fields(ArrowEngine, options)))
        self._options = options

    @property
    def _budget(self) -> int:
        given = self._options.get("memory_bytes")
        return read_memory_total() // MEMORY_SHARE if given is None else int(given)

    def make_spool_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        if "memory_bytes" not in self._options:
            return {}
        return {"spool_bytes": min(given.get("spool_bytes", SPOOL_BYTES), self._budget // 4)}

    def resolve(self, intent: Intent, source: IngestedSource | None, table: Table) -> EngineChoice:
        if source is not None:
            need = estimate_source_bytes(intent, source)
        elif isinstance(intent, (OptimizeIntent, DeduplicateIntent)):
            need = estimate_plan_bytes(preview_plan(intent, table))
        else:
            return EngineChoice(self.get(), "the work goes file by file")
        if need <= self._budget:
            return EngineChoice(self.get(), "the work fits in memory")
        told = f"about {units.format_size(need)} of work, and {self._describe_budget()}"
        lacking = _lacks_duckdb(table)
        if lacking is not None:
            return EngineChoice(self.get(), f"{told}; DuckDB would be chosen, but {lacking}")
        kind = import_optional("intarsia.engines.duckdb").DuckDBEngine
        engine: Engine = kind(**{**_select_fields(kind, self._options), "memory_bytes": self._budget})
        return EngineChoice(engine, told, reingests=True)

    def _describe_budget(self) -> str:
        size = units.format_size(self._budget)
        if "memory_bytes" in self._options:
            return f"memory_bytes is {size}"
        return f"a quarter of the memory is {size}"


def choose_engine(engine: Any, options: Mapping[str, Any], source: Any) -> LazyEngine:
    """The engine that ``engine=`` names.

    With ``"auto"`` it is Spark for a Spark DataFrame, DuckDB for work that does not fit the memory
    budget (``memory_bytes``, else a quarter of the memory there is), and PyArrow for everything else.

    Raises:
        InputError, NotSupported: there is no such engine.
    """
    if isinstance(engine, str) and engine == "auto":
        if not is_spark(source):
            return AutoEngine(options)
        return LazyEngine(
            _make_spark_engine(source.sparkSession, options), reason="the source is a Spark DataFrame"
        )
    if isinstance(engine, str) and engine == "spark":
        sessions = import_optional("intarsia.spark.session")
        engine = sessions.active_session() or DeferredSession(sessions.open_session)
    if isinstance(engine, DeferredSession):
        return LazyEngine(None, lambda: _make_spark_engine(engine.session(), options))
    if is_spark(engine) and hasattr(engine, "createDataFrame"):
        return LazyEngine(_make_spark_engine(engine, options))
    if isinstance(engine, str) and engine in ("arrow", "pyarrow"):
        return LazyEngine(ArrowEngine(**_select_fields(ArrowEngine, options)))
    if isinstance(engine, str) and engine == "duckdb":
        return LazyEngine(_make_duckdb_engine(None, options))
    if is_duckdb(engine):
        return LazyEngine(_make_duckdb_engine(engine, options))
    if all(hasattr(engine, method) for method in ("ingest", "prepare", "match", "stage")):
        return LazyEngine(engine)
    raise InputError(
        f"Unknown engine {engine!r}.",
        hint='engines are "auto", "arrow", "duckdb", "spark", a DuckDB connection and a SparkSession.',
    )


def list_engines(engine: EngineLike, operation: str, source: RowSource | None) -> frozenset[str]:
    """Names of the engines that may run an operation; none where no rows are read.

    ``auto`` is among them where the memory budget chooses; ``object`` is an engine that the caller made.
    """
    if operation in ("inspect", "snapshot", "recover", "history", "restore"):
        return frozenset()
    if isinstance(engine, str) and engine == "auto":
        if is_spark(source):
            return frozenset(("auto", "spark"))
        by_size = source is not None or operation in ("optimize", "deduplicate")
        return frozenset(("auto", "arrow", *(("duckdb",) if by_size else ())))
    if isinstance(engine, DeferredSession) or (is_spark(engine) and hasattr(engine, "createDataFrame")):
        return frozenset(("spark",))
    if isinstance(engine, str):
        return frozenset(("arrow" if engine == "pyarrow" else engine,))
    return frozenset(("duckdb" if is_duckdb(engine) else "object",))


def check_engine(engine: EngineLike) -> None:
    """Raise InputError for a value that is no engine, NotSupported for one that is not installed."""
    choose_engine(engine, {}, None)


def is_spark(value: Any) -> bool:
    """Whether a value is of pyspark, without importing pyspark."""
    return type(value).__module__.partition(".")[0] == "pyspark"


def is_duckdb(value: Any) -> bool:
    """Whether a value is a connection of DuckDB, without importing DuckDB."""
    return any(
        kind.__name__ == "DuckDBPyConnection" and kind.__module__.partition(".")[0] in ("duckdb", "_duckdb")
        for kind in type(value).__mro__
    )


def _make_spark_engine(session: Any, options: Mapping[str, Any]) -> Engine:
    if not import_optional("intarsia.spark.session").is_alive(session):
        raise EngineError(
            "The Spark session has been stopped.",
            hint="open another session, and make DataFrames anew there.",
        )
    kind = import_optional("intarsia.engines.spark").SparkEngine
    engine: Engine = kind(session, **_select_fields(kind, options))
    return engine


def _make_duckdb_engine(connection: Any, options: Mapping[str, Any]) -> Engine:
    lacking = _lacks_duckdb()
    if lacking is not None:
        raise NotSupported(
            f"The engine DuckDB cannot be used: {lacking}.",
            hint="pip install 'intarsia[duckdb]', or use engine=\"arrow\".",
        )
    kind = import_optional("intarsia.engines.duckdb").DuckDBEngine
    engine: Engine = kind(connection, **_select_fields(kind, options))
    return engine


def _lacks_duckdb(table: Table | None = None) -> str | None:
    """Why DuckDB cannot be used, for a table if one is named; None if it can."""
    if find_spec("duckdb") is None:
        return "duckdb is not installed"
    from importlib import metadata  # a fiftieth of a small merge, and for this engine alone

    version = metadata.version("duckdb")
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < _OLDEST_DUCKDB:
        return f"duckdb {version} is installed, and 1.5 or newer is needed"
    local = table is None or _is_local(table)
    return None if local or find_spec("fsspec") else "fsspec is not installed"


def _is_local(table: Table) -> bool:
    """Whether a table's files are on a disk of this machine."""
    if isinstance(getattr(table, "storage", None), PosixStorage):
        return True
    filesystem, *_ = getattr(table, "workspace", None) or (None,)
    return isinstance(filesystem, pafs.LocalFileSystem)


def _select_fields(kind: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options that an engine has as fields."""
    return {field.name: options[field.name] for field in fields(kind) if field.name in options}


INDEX_BYTES = 40
"""Estimated bytes per source row in the index of keys."""


def estimate_source_bytes(intent: Intent, source: IngestedSource) -> int:
    """Estimated bytes of a source's rows, and of the index of their keys where there is one."""
    index = INDEX_BYTES * source.rows if isinstance(intent, MergeIntent) else 0
    return int(source.table.nbytes) + index


def estimate_plan_bytes(plan: Plan) -> int:
    """Estimated decoded bytes of the rows that are sorted together, or the columns that are compared.

    0 for an operation that goes file by file. Sizes are from footers.
    """
    match plan.intent:
        case OptimizeIntent():
            return max((sum(map(_estimate_decoded, group.files)) for group in plan.groups), default=0)
        case DeduplicateIntent() as intent:
            columns = {*intent.keys, *intent.order_by} if intent.keys else None
            return sum(_estimate_decoded(item.file, columns) for item in plan.select("scan"))
    return 0


def _estimate_decoded(file: DataFile, columns: Collection[str] | None = None) -> int:
    footer = file.footer
    if footer is None:
        return file.size
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    if columns is None:
        return sum(group.total_byte_size for group in groups)
    leaves = _find_leaves(footer, columns)
    return sum(group.column(leaf).total_uncompressed_size for group in groups for leaf in leaves)


def _find_leaves(footer: Any, columns: Collection[str]) -> list[int]:
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    return [number for number, path in enumerate(paths) if path.split(".", 1)[0] in columns]


_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with a container's memory limit: control groups of version 2, and of version 1."""


def read_memory_total() -> int:
    """Bytes of memory: of the machine, or of the container where that has less."""
    found = [read_physical_memory()]
    for place in _LIMITS:
        try:
            with open(place, encoding="ascii") as file:
                told = file.read().strip()
        except OSError:
            continue
        if told.isdecimal():  # "max" is no limit
            found.append(int(told))
    return min(found)
