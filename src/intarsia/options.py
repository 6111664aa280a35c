"""Options of operations, besides their own arguments: the name, type and help of each, once.

``merge(..., **options: Unpack[MergeOptions])``: editors complete them and type checkers find a wrong one. The
command line and pipelines read them from here. Where an option can have an effect is in
:mod:`intarsia.core.effects`; what the arguments of an operation mean is in :mod:`intarsia.arguments`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, Protocol, TypedDict, get_args, get_origin, get_type_hints

import pyarrow as pa

from intarsia.common.names import find_near_names
from intarsia.core.effects import ENGINE_OPTIONS, OPTIONS
from intarsia.core.intent import WriteOptions
from intarsia.core.ports import Progress, Table
from intarsia.errors import InputError

__all__ = [
    "ALL_OPTIONS",
    "ICEBERG_OPTIONS",
    "KEYWORDS",
    "OPERATION_OPTIONS",
    "TABLE_OPTIONS",
    "CatalogSource",
    "CatalogTable",
    "Columns",
    "DeduplicateOptions",
    "DeleteOptions",
    "FrameOptions",
    "IOOptions",
    "InspectOptions",
    "IntoTable",
    "IntoTables",
    "Keyword",
    "MaintenanceOptions",
    "MergeOptions",
    "PartitionFilter",
    "ReadOptions",
    "RecoverOptions",
    "RestoreOptions",
    "RewriteOptions",
    "RowSource",
    "SparkTableOptions",
    "StepOptions",
    "StrategyName",
    "StreamOptions",
    "TableTarget",
    "TargetOptions",
    "WriteCallOptions",
    "check_choice",
    "check_values",
    "check_whole",
    "make_write_options",
    "select_address",
    "select_engine_options",
]

Columns = str | Sequence[str]
"""One column, or several."""
PartitionFilter = str | Sequence[str]
"""Partitions to work on: ``"day=2025-11-04/region=eu"``, or several of them."""
StrategyName = Literal["insert", "update", "upsert", "full_merge", "deduplicate"]


class ArrowStream(Protocol):
    """Gives an Arrow stream: tables and readers of pyarrow, polars, pandas, a DuckDB relation."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowArray(Protocol):
    """Gives an Arrow array: record batches."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object: ...


class SparkFrame(Protocol):
    """A DataFrame of Spark, classic or Connect."""

    @property
    def sparkSession(self) -> Any: ...


class ArrowDataset(Protocol):
    """A dataset or a scanner of pyarrow."""

    def to_reader(self) -> Any: ...


class ScannableDataset(Protocol):
    """A dataset of pyarrow."""

    def scanner(self, *args: Any, **kwargs: Any) -> Any: ...


IntoTable = (
    ArrowStream
    | ArrowArray
    | ArrowDataset
    | ScannableDataset
    | SparkFrame
    | str
    | os.PathLike[str]
    | Mapping[str, Any]
)
"""Rows: what gives Arrow data, a path, URL or glob of files, a dict of columns."""
IntoTables = Iterable[IntoTable]
"""Several of these, record batches, or a list of dicts."""
RowSource = IntoTable | IntoTables
"""What a merge and a write take rows from."""


class IcebergCatalog(Protocol):
    """A catalog of PyIceberg."""

    def load_table(self, identifier: Any, /) -> Any: ...


CatalogSource = str | os.PathLike[str] | IcebergCatalog
"""A catalog of PyIceberg, the name of a configured one, or a warehouse directory."""


class CatalogTable(Protocol):
    """A table of PyIceberg."""

    @property
    def catalog(self) -> Any: ...

    def name(self) -> tuple[str, ...]: ...


TableTarget = str | os.PathLike[str] | Table | CatalogTable
"""A path or URL of a Parquet dataset, a table of PyIceberg, or one that :func:`intarsia.iceberg` or
:func:`intarsia.spark_table` gave."""


class _Filesystem(TypedDict, total=False):
    filesystem: Annotated[Any, "The pyarrow or fsspec file system that the paths are on."]


class _Address(TypedDict, total=False):
    storage_options: Annotated[Mapping[str, Any] | None, "For opening a URL through fsspec."]
    control_path: Annotated[
        str | os.PathLike[str] | None, "Where the control directory is, if not beside the dataset."
    ]


class _Branch(TypedDict, total=False):
    branch: Annotated[str | None, "Branch of an Iceberg table; main without it."]


class _FileLock(TypedDict, total=False):
    single_writer: Annotated[bool, "The caller vouches that nobody else writes."]
    lock_timeout: Annotated[float | None, "Seconds to wait for another writer."]


class _SharedLock(TypedDict, total=False):
    lock: Annotated[
        Callable[..., AbstractContextManager[Any]] | None,
        "Gives a lock that every writer shares, instead of the file lock.",
    ]


class _Retain(TypedDict, total=False):
    retain: Annotated[int | None, "Keep the files replaced by this many last commits."]


class _DeleteMode(TypedDict, total=False):
    mode: Annotated[
        Literal["copy-on-write", "merge-on-read"] | None,
        "Of an Iceberg table: rewrite files, or write delete files beside them.",
    ]


class _Threads(TypedDict, total=False):
    threads: Annotated[int | None, "Threads for files, or for the columns of a few; cores without it."]


class _Tasks(TypedDict, total=False):
    tasks: Annotated[int | None, "Spark: tasks of a stage."]


class _Engine(_Threads, _Tasks, total=False):
    memory_bytes: Annotated[int | None, "Memory budget of the engine."]
    spool_dir: Annotated[str | os.PathLike[str] | None, "Directory of temporary files."]


class _Files(TypedDict, total=False):
    compression: Annotated[str | None, "Codec of new files: none, snappy, gzip, brotli, lz4, zstd."]
    row_group_size: Annotated[int | None, "Rows of a row group."]
    max_rows_per_file: Annotated[int | None, "Maximum rows of a new file."]
    batch_rows: Annotated[int | None, "Maximum rows handled at once."]
    int96: Annotated[
        Literal["keep", "convert"] | None, "INT96 timestamps in files that are written: keep or convert them."
    ]


class _Source(TypedDict, total=False):
    spool_bytes: Annotated[int | None, "Maximum bytes of a source held in memory."]
    naive_timestamps: Annotated[
        Literal["error", "utc"] | None, "Timestamps without a zone for a column of instants: refuse, or UTC."
    ]
    broadcast_bytes: Annotated[int | None, "Spark: maximum bytes of a source that is sent to every task."]


class _ColumnTypes(TypedDict, total=False):
    columns: Annotated[
        Mapping[str, str | pa.DataType] | pa.Schema | None, "Types of columns of CSV and JSON files."
    ]


class _Dialect(TypedDict, total=False):
    dialect: Annotated[str | None, "Dialect of SQL text: ANSI without it, or spark."]


class _Properties(TypedDict, total=False):
    properties: Annotated[Mapping[str, str] | None, "Text pairs that are recorded with the commit."]


class _Batch(TypedDict, total=False):
    app_id: Annotated[str | None, "Name of the application, recorded with the commit."]
    batch_id: Annotated[int | None, "Number of the application's batch, recorded with the commit."]


class _Commit(_Properties, total=False):
    progress: Annotated[Progress | Literal[False] | None, "Called with a step, what is done and the total."]
    measured_bytes: Annotated[int | None, "Maximum bytes that a dry run encodes to know the size of files."]


class _PathOptions(_Filesystem, _Address, _FileLock, _SharedLock, _Retain, total=False):
    """Options of a Parquet dataset that is given by its path."""


class _IcebergOptions(_Branch, _DeleteMode, total=False):
    """Options of an Iceberg table."""


class SparkTableOptions(_PathOptions, _IcebergOptions, total=False):
    """Options of :func:`intarsia.spark_table`: those of a Parquet dataset, or of an Iceberg table."""


class InspectOptions(_Filesystem, _Address, _Branch, total=False):
    """Options of ``inspect`` and ``snapshot``."""


class ReadOptions(InspectOptions, _Threads, _Dialect, total=False):
    """Options of ``read``."""


class FrameOptions(InspectOptions, _Tasks, _Dialect, total=False):
    """Options of :func:`intarsia.spark.read`."""


class RecoverOptions(InspectOptions, _FileLock, _SharedLock, total=False):
    """Options of ``recover``."""


class RestoreOptions(RecoverOptions, _Retain, _Properties, total=False):
    """Options of ``restore``."""


class _Rewrite(_Address, _Branch, _FileLock, _SharedLock, _Retain, _Engine, _Files, _Commit, total=False):
    """Options of every operation that writes, without those that some calls have as arguments."""


class StreamOptions(_Filesystem, _Rewrite, _Source, _Dialect, _DeleteMode, total=False):
    """Options of ``merge_batches``, which counts the batches itself."""


class RewriteOptions(_Rewrite, _Batch, total=False):
    """Options of ``compact`` and ``optimize`` where the file system is an argument of its own."""


class IOOptions(RewriteOptions, _Source, _ColumnTypes, _Dialect, _DeleteMode, total=False):
    """Options of a dataset IO for all its calls; its file system is an argument of its own."""


class MaintenanceOptions(_Filesystem, RewriteOptions, total=False):
    """Options of ``compact`` and ``optimize``."""


class DeduplicateOptions(MaintenanceOptions, _DeleteMode, total=False):
    """Options of ``deduplicate``."""


class DeleteOptions(DeduplicateOptions, _Dialect, total=False):
    """Options of ``delete`` and ``update``."""


class WriteCallOptions(MaintenanceOptions, _Source, _ColumnTypes, _Dialect, total=False):
    """Options of ``write``, which has a ``mode`` of its own."""


class MergeOptions(_Filesystem, IOOptions, total=False):
    """Options of ``merge``."""


class TargetOptions(_Address, _Branch, _FileLock, _Retain, _DeleteMode, total=False):
    """Options of a pipeline's target: those of a table that a file can say."""


class StepOptions(_Engine, _Files, _Source, _Dialect, _Properties, total=False):
    """Options of a pipeline's step: those of an operation that a file can say."""


OPERATION_OPTIONS: Mapping[str, type[Any]] = {
    "merge": MergeOptions,
    "delete": DeleteOptions,
    "update": DeleteOptions,
    "write": WriteCallOptions,
    "compact": MaintenanceOptions,
    "optimize": MaintenanceOptions,
    "deduplicate": DeduplicateOptions,
    "read": ReadOptions,
    "inspect": InspectOptions,
    "snapshot": InspectOptions,
    "recover": RecoverOptions,
    "history": InspectOptions,
    "restore": RestoreOptions,
}


@dataclass(frozen=True, slots=True)
class Keyword:
    """One option: its type, one line of help, and the operations that take it."""

    name: str
    type: Any
    help: str
    operations: frozenset[str]

    @property
    def is_text(self) -> bool:
        """Whether a value can be written as text: a number, a truth value, a word, a path."""
        parts = get_args(self.type) if get_origin(self.type) is not Literal else (self.type,)
        return all(
            part in (str, int, float, bool, type(None), os.PathLike[str]) or get_origin(part) is Literal
            for part in parts or (self.type,)
        )


def _collect_keywords() -> dict[str, Keyword]:
    takes: dict[str, set[str]] = {}
    hints: dict[str, Any] = {}
    for operation, options in OPERATION_OPTIONS.items():
        for name, hint in get_type_hints(options, include_extras=True).items():
            takes.setdefault(name, set()).add(operation)
            hints[name] = hint
    return {
        name: Keyword(name, get_args(hint)[0], hint.__metadata__[0], frozenset(takes[name]))
        for name, hint in hints.items()
    }


KEYWORDS: Mapping[str, Keyword] = _collect_keywords()
ALL_OPTIONS = tuple(OPTIONS)
TABLE_OPTIONS = tuple(_PathOptions.__annotations__)
ICEBERG_OPTIONS = tuple(_IcebergOptions.__annotations__)

_WRITE_OPTIONS = tuple(field.name for field in fields(WriteOptions))
_LARGEST = 2**63 - 1
_CODECS = ("none", "snappy", "gzip", "brotli", "lz4", "lz4_raw", "zstd")


def check_values(options: Mapping[str, Any]) -> None:
    """Raise InputError on an option that is not known, or whose value is none that it can have."""
    given = {name: value for name, value in options.items() if name != "dry_run"}
    unknown = [name for name in given if name not in ALL_OPTIONS]
    if unknown:
        near = [other for name in unknown for other in find_near_names(name, ALL_OPTIONS)]
        every = f"options are {', '.join(sorted(ALL_OPTIONS))}."
        raise InputError(
            f"there is no option {', '.join(map(repr, unknown))}.",
            hint=f"did you mean {', '.join(near)}?" if near else every,
        )
    _check_numbers(options)
    _check_kinds(options)
    make_write_options(options)
    check_choice(options.get("naive_timestamps") or "error", "naive_timestamps", ("error", "utc"))


def _check_numbers(options: Mapping[str, Any]) -> None:
    for name in (*ENGINE_OPTIONS, "measured_bytes", "spool_bytes", "retain", "lock_timeout"):
        value = options.get(name)
        kinds = (int, float) if name == "lock_timeout" else int
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or not value >= 0):
            raise InputError(f"{name} must be a number that is not negative, it is {value!r}.")


def _check_kinds(options: Mapping[str, Any]) -> None:
    for name in ("dry_run", "single_writer"):
        check_choice(options.get(name, False), name, (True, False))
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


def select_address(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options that a call which only looks at the same dataset needs, too."""
    return {name: options[name] for name in _Address.__annotations__ if name in options}


def select_engine_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options that are an engine's."""
    known = (*ENGINE_OPTIONS, "spool_dir")
    return {name: options[name] for name in known if options.get(name) is not None}


def make_write_options(given: Mapping[str, Any]) -> WriteOptions:
    options = WriteOptions(**{name: given[name] for name in _WRITE_OPTIONS if given.get(name) is not None})
    for name in ("row_group_size", "max_rows_per_file", "batch_rows"):
        check_whole(name, getattr(options, name))
    check_choice(options.int96, "int96", ("keep", "convert"))
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


def check_choice(value: Any, name: str, allowed: tuple[Any, ...]) -> Any:
    try:
        known = value in allowed
    except (TypeError, ValueError):  # an expression or an array, which has no truth value
        known = False
    if not known:
        raise InputError(f"{name} must be one of {', '.join(map(repr, allowed))}, it is {value!r}.")
    return value
