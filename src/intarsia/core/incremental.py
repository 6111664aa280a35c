"""The names of incremental rewriting: listing, statistics, pruning, staging and merge, each a thin call.

Nothing is decided here: the Parquet table lists and swaps files, :mod:`intarsia.core.prune` prunes,
an engine matches.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia import api
from intarsia.common.log import get_logger, operation_log
from intarsia.common.partitions import infer_partition_schema, parse_hive_partition_path, parse_partition
from intarsia.common.schema import conform_table, unify_schemas
from intarsia.core.candidates import (
    Columns,
    ConservativeMembershipChecker,
    Keys,
    ParquetFileMetadata,
    PartitionPruner,
    make_key_table,
)
from intarsia.core.file_table import FileTuple
from intarsia.core.intent import ROWS_PER_FILE
from intarsia.core.keys import KeyIndex, to_array
from intarsia.core.merge import list_column_names, normalize_keys
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.prune import Bounds, read_bounds
from intarsia.core.report import MergeFileMetadata, MergeResult
from intarsia.core.rule import when_matched
from intarsia.core.snapshot import DataFile, Snapshot, retype
from intarsia.core.validation import refuse_null_source_keys, to_python_rows
from intarsia.errors import InputError, KeyColumnError, NothingMatched, NotSupported, PartitionMoveError
from intarsia.storage import open_storage
from intarsia.tables.parquet import ParquetTable, list_data_files
from intarsia.tables.parquet.footers import collect_schemas, read_footers
from intarsia.tables.parquet.replace import IncrementalFileManager

__all__ = [
    "ConservativeMembershipChecker",
    "IncrementalFileManager",
    "IncrementalRewritePlan",
    "MergeFileMetadata",
    "MergeResult",
    "ParquetFileMetadata",
    "ParquetMetadataAnalyzer",
    "PartitionPruner",
    "confirm_affected_files",
    "list_dataset_files",
    "merge",
    "parse_hive_partition_path",
    "plan_incremental_rewrite",
    "validate_no_null_keys",
    "validate_partition_column_immutability",
]

log = get_logger(__name__)

Path = str | os.PathLike[str]


class _UnaskedText(str):
    """A default for new datasets only: existing files keep what they have."""


class _UnaskedNumber(int):
    """As above, of a number."""


_SNAPPY = _UnaskedText("snappy")
_ROW_GROUP_SIZE = _UnaskedNumber(500_000)
_ROWS_PER_FILE = _UnaskedNumber(ROWS_PER_FILE)


def merge(
    data: Any,
    path: Path | ParquetTable,
    strategy: api.Strategy,
    key_columns: Columns,
    *,
    partition_columns: Columns | None = None,
    partition_by: Columns | None = None,
    filesystem: Any = None,
    compression: str = _SNAPPY,
    max_rows_per_file: int = _ROWS_PER_FILE,
    row_group_size: int = _ROW_GROUP_SIZE,
    **options: Any,
) -> MergeResult:
    """Merge rows into a Parquet dataset, rewriting only the files that hold matching keys.

    Atomic. Matching keys are replaced as whole rows, and may not change their partition.

    Args:
        data: any source that :func:`intarsia.merge` takes.
        path: path or URL of the dataset.
        strategy: ``insert``, ``update``, ``upsert``, ``full_merge`` or ``deduplicate``.
        key_columns: a name or several.
        partition_columns: of a dataset that does not exist yet; else its layout decides.
        partition_by: another name for ``partition_columns``.
        filesystem: the pyarrow or fsspec file system that ``path`` is on.
        compression: for all files written; by default a rewritten file keeps its own.
        max_rows_per_file: of new files.
        row_group_size: in rows; by default a rewritten file keeps its own.
        options: as of :func:`intarsia.merge`.

    Raises:
        KeyColumnError, PartitionMoveError, SchemaMismatch, CommitConflict: as :func:`intarsia.merge`.
    """
    with operation_log(log, "merge", str(path)):
        keys = normalize_keys(key_columns)
        path_columns = list_partition_names(partition_columns, partition_by)
    return api.merge(
        data,
        path,
        on=keys,
        strategy=strategy,
        partition_by=path_columns,
        filesystem=filesystem,
        compression=None if isinstance(compression, _UnaskedText) else compression,
        row_group_size=None if isinstance(row_group_size, _UnaskedNumber) else row_group_size,
        max_rows_per_file=None if isinstance(max_rows_per_file, _UnaskedNumber) else max_rows_per_file,
        **options,
    )


def list_partition_names(partition_columns: Columns | None, partition_by: Columns | None) -> list[str] | None:
    """The two spellings of one option as a list; None when neither was given."""
    named = {"partition_columns": partition_columns, "partition_by": partition_by}
    given = [list_column_names(value, name) for name, value in named.items() if value is not None]
    if len(given) == 2 and given[0] != given[1]:
        raise InputError(f"partition_columns {given[0]} and partition_by {given[1]} say different things.")
    return given[0] if given else None


def list_dataset_files(dataset_path: Path, filesystem: Any = None) -> list[str]:
    """The Parquet data files below a path, sorted, in the form the path was given.

    Raises:
        NothingMatched: there is no such directory.
    """
    shown = os.fspath(dataset_path)
    storage, root = open_storage(dataset_path, filesystem=filesystem)
    listing = list_data_files(storage, root)
    if not listing.exists:
        raise _make_missing_error(shown)
    return [f"{shown.rstrip('/')}/{entry.path}" for entry in listing.entries]


def _make_missing_error(path: str) -> NothingMatched:
    return NothingMatched(f"There is no dataset at {path}.", path=path)


class ParquetMetadataAnalyzer:
    """Reads the footers of a dataset, each once; no row is read."""

    def analyze_dataset_files(self, dataset_path: Path, filesystem: Any = None) -> list[ParquetFileMetadata]:
        """The metadata of every file, sorted by path; raises NothingMatched where there is no dataset."""
        snapshot = ParquetTable(dataset_path, filesystem=filesystem).snapshot()
        if not snapshot.exists:
            raise _make_missing_error(snapshot.root)
        files = snapshot.files
        stats: list[dict[str, dict[str, Any]]] = [{} for _ in files]
        for column in snapshot.file_schema:
            if pa.types.is_nested(column.type):
                continue
            found = _collect_column_stats(
                read_bounds(files, column.name, column.type), column.type, len(files)
            )
            for mine, theirs in zip(stats, found, strict=True):
                mine[column.name] = theirs
        return [
            ParquetFileMetadata(
                path=snapshot.show_path(file),
                row_group_count=file.footer.num_row_groups if file.footer is not None else 1,
                total_rows=file.rows,
                column_stats=mine,
                partition_values=dict(file.partition) if snapshot.partition_columns else None,
            )
            for file, mine in zip(files, stats, strict=True)
        ]


def _collect_column_stats(bounds: Bounds, dtype: pa.DataType, count: int) -> list[dict[str, Any]]:
    """The bounds of whole files; unknown where one row group has none."""
    low, high = _to_python_values(bounds.lower, dtype), _to_python_values(bounds.upper, dtype)
    found: list[list[tuple[Any, Any]]] = [[] for _ in range(count)]
    nulls: list[int | None] = [0] * count
    counts = zip(bounds.file.to_pylist(), bounds.null_count.to_pylist(), bounds.rows.to_pylist(), strict=True)
    for (file, missing, rows), lower, upper in zip(counts, low, high, strict=True):
        known = nulls[file]
        nulls[file] = None if known is None or missing is None else known + missing
        if missing != rows:
            found[file].append((lower, upper))
    return [
        {
            "min": _find_extreme(min, [pair[0] for pair in pairs]),
            "max": _find_extreme(max, [pair[1] for pair in pairs]),
            "null_count": null_count,
        }
        for pairs, null_count in zip(found, nulls, strict=True)
    ]


def _find_extreme(choose: Any, values: list[Any]) -> Any:
    if not values or any(value is None for value in values):
        return None
    return choose(values, key=lambda value: value.value if isinstance(value, pa.Scalar) else value)


def _to_python_values(values: pa.Array, dtype: pa.DataType) -> list[Any]:
    if values.null_count == len(values):
        return [None] * len(values)
    typed = values.cast(dtype.value_type if pa.types.is_dictionary(dtype) else dtype)
    try:
        return list(typed.to_pylist())
    except (ValueError, OverflowError):  # nanoseconds and far years, which Python's own types lack
        return [scalar if scalar.is_valid else None for scalar in typed]


def confirm_affected_files(
    candidate_files: Sequence[Path], key_columns: Columns, source_keys: Keys, filesystem: Any = None
) -> list[str]:
    """The files that really hold one of the keys; reads key columns only, of row groups that may have one.

    A key column that a file lacks is taken from its path. Raises NothingMatched where a file is not there.
    """
    given = [os.fspath(path) for path in dict.fromkeys(candidate_files)]
    keys = make_key_table(source_keys, key_columns)
    if not given or not keys.num_rows:
        return []
    hit = {
        plan.file.path
        for plan in _list_hit_files(
            _plan_touched(keys, make_files_snapshot(given, keys.column_names, filesystem=filesystem))
        )
    }
    return [path for path in given if path in hit]


def make_files_snapshot(paths: Sequence[str], columns: Sequence[str], *, filesystem: Any = None) -> Snapshot:
    """Some files as if they were a table; those of ``columns`` that they lack come from their paths."""
    opened = [open_storage(path, filesystem=filesystem) for path in paths]
    storage = opened[0][0]
    locations = [location for _, location in opened]
    try:
        footers = read_footers(storage.filesystem, locations)
    except FileNotFoundError as error:
        raise NothingMatched(f"A candidate file is not there: {error}") from error
    stored = unify_schemas(collect_schemas(footers)[0], operation="confirm_affected_files")
    path_columns = [name for name in columns if name not in stored.names]
    texts = [parse_hive_partition_path(path, path_columns) for path in paths]
    partitions = infer_partition_schema(texts)
    files = FileTuple(
        DataFile(
            path,
            location,
            size=0,
            rows=footer.num_rows,
            partition=parse_partition(text, partitions, path=path),
            footer=footer.metadata,
        )
        for path, location, footer, text in zip(paths, locations, footers, texts, strict=True)
    )
    schema = pa.schema([*stored, *partitions])
    return Snapshot("", files, schema, tuple(partitions.names), storage.filesystem)


@dataclass(frozen=True, slots=True)
class _Fixed:
    """A table that stays as it is: enough to plan on."""

    state: Snapshot

    @property
    def requests(self) -> None:
        """Not counted: what was listed before is looked at."""

    def snapshot(self) -> Snapshot:
        return self.state

    def check(self) -> None:
        """Does nothing: nothing is committed."""

    def check_change(self, *_: Any) -> None:
        """Nothing: nothing is committed."""

    def transaction(self, operation: str) -> Any:
        raise NotSupported(f"{operation}: these files can only be looked at.")


def _plan_touched(keys: pa.Table, snapshot: Snapshot) -> Plan:
    """The resolved plan of a merge that touches every row with one of the keys."""
    clause = when_matched().delete()  # needs no column but the keys
    on = keys.column_names
    return api.plan(
        "merge", keys, _Fixed(snapshot), on=on, clauses=[clause], null_keys="match", measured_bytes=0
    )


def _list_hit_files(plan: Plan) -> list[FilePlan]:
    return [*plan.select("rewrite"), *plan.select("remove")]


@dataclass(frozen=True, slots=True)
class IncrementalRewritePlan:
    """Which files a rewrite by key touches. ``new_files`` get their names only when they are written."""

    affected_files: list[str]
    unaffected_files: list[str]
    new_files: list[str]
    affected_rows: int


def plan_incremental_rewrite(
    dataset_path: Path,
    source_keys: Keys,
    key_columns: Columns,
    filesystem: Any = None,
    partition_schema: pa.Schema | None = None,
) -> IncrementalRewritePlan:
    """Which files hold one of the keys: by partition, then by bounds, then by reading key columns.

    Writes nothing. ``partition_schema`` gives the types of partition columns where those that the
    dataset suggests are not the keys'.
    """
    snapshot = ParquetTable(dataset_path, filesystem=filesystem).snapshot()
    keys = make_key_table(source_keys, key_columns)
    if not snapshot.files or not keys.num_rows:
        return IncrementalRewritePlan([], [snapshot.show_path(file) for file in snapshot.files], [], 0)
    if partition_schema is not None:
        snapshot = retype(snapshot, partition_schema)
    plan = _plan_touched(keys, snapshot)
    return IncrementalRewritePlan(
        affected_files=sorted(snapshot.show_path(item.file) for item in _list_hit_files(plan)),
        unaffected_files=sorted(snapshot.show_path(item.file) for item in plan.select("keep")),
        new_files=[],
        affected_rows=sum(item.file.rows for item in _list_hit_files(plan)),
    )


def validate_no_null_keys(source_table: pa.Table, key_columns: Columns) -> None:
    """Raise KeyColumnError (a ValueError) where a key column is missing or holds NULL."""
    keys = normalize_keys(key_columns)
    absent = [name for name in keys if name not in source_table.column_names]
    if absent:
        raise KeyColumnError(f"Key column {', '.join(map(repr, absent))} is missing from the source.")
    refuse_null_source_keys(
        {name: source_table[name].null_count for name in keys}, operation="merge", path=""
    )


def validate_partition_column_immutability(
    source_table: pa.Table, target_table: pa.Table, key_columns: Columns, partition_columns: Columns
) -> None:
    """Raise PartitionMoveError (a ValueError) where an existing key has another partition in the source.

    For tables in memory; a merge checks the same of the files it touches.
    """
    keys, path_columns = normalize_keys(key_columns), normalize_keys(partition_columns)
    names = list(dict.fromkeys([*keys, *path_columns]))
    source, target = _conform_both(source_table.select(names), target_table.select(names))
    there, here = KeyIndex([source[name] for name in keys]).find_pairs([target[name] for name in keys])
    homes = KeyIndex([source[name] for name in path_columns], null_match=True)
    asked = to_array(homes.lookup([source[name] for name in path_columns])).take(here)
    actual = to_array(homes.lookup([target[name] for name in path_columns])).take(there)
    moves = pc.indices_nonzero(pc.fill_null(pc.not_equal(asked, actual), True))
    if not len(moves):
        return
    first = moves[0].as_py()
    [key] = to_python_rows(source.select(keys).slice(here[first].as_py(), 1))
    [old] = to_python_rows(target.select(path_columns).slice(there[first].as_py(), 1))
    [new] = to_python_rows(source.select(path_columns).slice(here[first].as_py(), 1))
    raise PartitionMoveError(
        f"Partition columns cannot change for existing keys: {len(moves):,} row(s) would move to another"
        f" partition, such as {key} from {old} to {new}.",
        hint="delete those keys first and insert them anew, or leave them out of the source.",
    )


def _conform_both(left: pa.Table, right: pa.Table) -> tuple[pa.Table, pa.Table]:
    schema = unify_schemas([left.schema, right.schema], operation="merge")
    return (
        conform_table(left, schema, operation="merge", path=""),
        conform_table(right, schema, operation="merge", path=""),
    )
