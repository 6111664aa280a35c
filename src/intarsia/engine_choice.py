"""From ``engine=`` to an engine: what runs an operation, and when a session is opened for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import pyarrow.fs as pafs

from intarsia.common.arrow import SPOOL_BYTES
from intarsia.common.lazy import optional_module
from intarsia.common.machine import memory_total
from intarsia.common.source import Source
from intarsia.core.intent import Deduplicate, Intent, Optimize
from intarsia.core.need import plan_bytes, source_bytes
from intarsia.core.ports import Engine, Table
from intarsia.core.run import look
from intarsia.engines.arrow import ArrowEngine
from intarsia.errors import EngineError, InputError, NotSupported
from intarsia.show import units
from intarsia.storage import PosixStorage

__all__ = [
    "MEMORY_SHARE",
    "Chosen",
    "Opening",
    "Waiting",
    "check_engine",
    "chosen_engine",
    "engines_for",
    "is_duckdb",
    "is_spark",
]

MEMORY_SHARE = 4
"""Without ``memory_bytes``, work up to one part in so many of the memory there is fits."""
_OLDEST_DUCKDB = (1, 5)


@dataclass(frozen=True, slots=True)
class Chosen:
    """An engine for one operation, and why it is that one; nothing where the caller named it."""

    engine: Engine
    reason: str = ""
    adopts: bool = False
    """Whether it has to take over the source, which another engine took in."""


class Waiting:
    """An engine that is made ready when it is needed: a Spark session takes seconds to open.

    Whatever can be refused without it is refused before.
    """

    def __init__(
        self, made: Engine | None, make: Callable[[], Engine] | None = None, *, reason: str = ""
    ) -> None:
        self._made = made
        self._make = make
        self._reason = reason

    @property
    def waits(self) -> bool:
        return self._made is None

    def taker(self) -> Engine:
        """What takes the source in."""
        if self._made is None:
            assert self._make is not None
            self._made = self._make()
        return self._made

    def spooling(self, _given: Mapping[str, Any]) -> dict[str, Any]:
        """Options for taking the source in, besides those that were given."""
        return {}

    def ready(self, _intent: Intent, _source: Source | None, _table: Table) -> Chosen:
        """What carries the operation out."""
        return Chosen(self.taker(), self._reason)


class _ByNeed(Waiting):
    """PyArrow for work that fits the memory budget, else DuckDB, where it is installed."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(ArrowEngine(**_of(ArrowEngine, options)))
        self._options = options

    @property
    def _budget(self) -> int:
        given = self._options.get("memory_bytes")
        return memory_total() // MEMORY_SHARE if given is None else int(given)

    def spooling(self, given: Mapping[str, Any]) -> dict[str, Any]:
        if "memory_bytes" not in self._options:
            return {}
        return {"spool_bytes": min(given.get("spool_bytes", SPOOL_BYTES), self._budget // 4)}

    def ready(self, intent: Intent, source: Source | None, table: Table) -> Chosen:
        if source is not None:
            need = source_bytes(intent, source)
        elif isinstance(intent, (Optimize, Deduplicate)):
            need = plan_bytes(look(intent, table))
        else:
            return Chosen(self.taker(), "the work goes file by file")
        if need <= self._budget:
            return Chosen(self.taker(), "the work fits in memory")
        told = f"about {units.size(need)} of work, and {self._told()}"
        lacking = _lacks_duckdb(table)
        if lacking is not None:
            return Chosen(self.taker(), f"{told}; DuckDB would be chosen, but {lacking}")
        kind = optional_module("intarsia.engines.duckdb").DuckDBEngine
        engine: Engine = kind(**{**_of(kind, self._options), "memory_bytes": self._budget})
        return Chosen(engine, told, adopts=True)

    def _told(self) -> str:
        size = units.size(self._budget)
        if "memory_bytes" in self._options:
            return f"memory_bytes is {size}"
        return f"a quarter of the memory is {size}"


def chosen_engine(engine: Any, options: Mapping[str, Any], source: Any) -> Waiting:
    """The engine that ``engine=`` names.

    With ``"auto"`` it is Spark for a Spark DataFrame, DuckDB for work that does not fit the memory
    budget (``memory_bytes``, else a quarter of the memory there is), and PyArrow for everything else.

    Raises:
        InputError, NotSupported: there is no such engine.
    """
    if isinstance(engine, str) and engine == "auto":
        if not is_spark(source):
            return _ByNeed(options)
        return Waiting(_spark_engine(source.sparkSession, options), reason="the source is a Spark DataFrame")
    if isinstance(engine, str) and engine == "spark":
        sessions = optional_module("intarsia.spark.session")
        engine = sessions.active_session() or Opening(sessions.open_session)
    if isinstance(engine, Opening):
        return Waiting(None, lambda: _spark_engine(engine.session(), options))
    if is_spark(engine) and hasattr(engine, "createDataFrame"):
        return Waiting(_spark_engine(engine, options))
    if isinstance(engine, str) and engine in ("arrow", "pyarrow"):
        return Waiting(ArrowEngine(**_of(ArrowEngine, options)))
    if isinstance(engine, str) and engine == "duckdb":
        return Waiting(_duckdb_engine(None, options))
    if is_duckdb(engine):
        return Waiting(_duckdb_engine(engine, options))
    if hasattr(engine, "execute") and hasattr(engine, "adopt"):
        return Waiting(engine)
    raise InputError(
        f"Unknown engine {engine!r}.",
        hint='engines are "auto", "arrow", "duckdb", "spark", a DuckDB connection and a SparkSession.',
    )


def engines_for(engine: Any, operation: str, source: Any) -> frozenset[str]:
    """The engines that may do the work; with ``auto`` where the memory budget chooses, and ``object`` for
    one that the caller made, whose options are its own. Nothing where no rows are moved.
    """
    if operation in ("inspect", "snapshot", "recover"):
        return frozenset()
    if isinstance(engine, str) and engine == "auto":
        if is_spark(source):
            return frozenset(("auto", "spark"))
        by_size = source is not None or operation in ("optimize", "deduplicate")
        return frozenset(("auto", "arrow", *(("duckdb",) if by_size else ())))
    if isinstance(engine, Opening) or (is_spark(engine) and hasattr(engine, "createDataFrame")):
        return frozenset(("spark",))
    if isinstance(engine, str):
        return frozenset(("arrow" if engine == "pyarrow" else engine,))
    return frozenset(("duckdb" if is_duckdb(engine) else "object",))


def check_engine(engine: Any) -> None:
    """Raise InputError or NotSupported for what is no engine, or one that is not installed."""
    chosen_engine(engine, {}, None)


def is_spark(value: Any) -> bool:
    """Whether something is pyspark's, told without importing it."""
    return type(value).__module__.partition(".")[0] == "pyspark"


def is_duckdb(value: Any) -> bool:
    """Whether something is a connection of DuckDB, told without importing it."""
    return any(
        kind.__name__ == "DuckDBPyConnection" and kind.__module__.partition(".")[0] in ("duckdb", "_duckdb")
        for kind in type(value).__mro__
    )


@dataclass(frozen=True, slots=True)
class Opening:
    """A Spark session as ``engine=``, opened when the first thing has to be done with it."""

    session: Callable[[], Any]


def _spark_engine(session: Any, options: Mapping[str, Any]) -> Engine:
    if not optional_module("intarsia.spark.session").is_alive(session):
        raise EngineError(
            "The Spark session has been stopped.",
            hint="open another session, and make DataFrames anew there.",
        )
    kind = optional_module("intarsia.engines.spark").SparkEngine
    engine: Engine = kind(session, **_of(kind, options))
    return engine


def _duckdb_engine(connection: Any, options: Mapping[str, Any]) -> Engine:
    lacking = _lacks_duckdb()
    if lacking is not None:
        raise NotSupported(
            f"The engine DuckDB cannot be used: {lacking}.",
            hint="pip install 'intarsia[duckdb]', or use engine=\"arrow\".",
        )
    kind = optional_module("intarsia.engines.duckdb").DuckDBEngine
    engine: Engine = kind(connection, **_of(kind, options))
    return engine


def _lacks_duckdb(table: Table | None = None) -> str | None:
    """Why DuckDB cannot be used, for a table if one is named; None if it can."""
    if find_spec("duckdb") is None:
        return "duckdb is not installed"
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


def _of(kind: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that an engine has; another engine's mean nothing to it."""
    return {field.name: options[field.name] for field in fields(kind) if field.name in options}
