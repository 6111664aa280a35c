"""What a table looks like, computed from its snapshot's footers alone; nothing here opens a file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from intarsia.common.int96 import find_int96_columns, list_leaf_types
from intarsia.common.names import check_columns
from intarsia.core import render
from intarsia.core.prune import read_bounds
from intarsia.core.snapshot import DataFile, Snapshot

SMALL_BYTES = 32 * 1024 * 1024
MOST_CHUNKS = 200_000
"""Column chunks up to which columns are summed up one by one (about half a second); beyond, they are not."""


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One column of the dataset over all files; None is unknown."""

    name: str
    type: pa.DataType
    size: int | None = None
    """Compressed bytes."""
    null_fraction: float | None = None
    codecs: tuple[str, ...] = ()
    depth: float | None = None
    """How many files, on average, cover a file's range of values, itself included; 1.0 is clustered."""
    int96_files: int = 0
    """How many files store it, or a part of it, as INT96."""


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The files of one partition together."""

    partition: Mapping[str, Any]
    files: int
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class FileRange:
    """The values of one column in one file: the smallest and the largest, both inside."""

    path: str
    lower: Any
    upper: Any
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """The state of a table in numbers. Two inspections of one state are equal."""

    snapshot: Snapshot = field(repr=False)
    row_groups: int
    """Of the files whose footer is known; ``unread`` counts the others."""
    columns: tuple[ColumnFacts, ...] = field(repr=False)
    codecs: tuple[str, ...]
    partitions: int
    """How many there are; 0 where the table is not partitioned."""
    biggest: PartitionFacts | None
    smallest: PartitionFacts | None
    sorting: tuple[tuple[str, int], ...]
    """Sort orders that files declare, as text, and how many files declare each."""
    small_files: int
    small_bytes: int = SMALL_BYTES
    unread: int = 0

    @property
    def root(self) -> str:
        return self.snapshot.root

    @property
    def schema(self) -> pa.Schema:
        return self.snapshot.schema

    @property
    def files(self) -> int:
        return len(self.snapshot.files)

    @property
    def rows(self) -> int:
        return self.snapshot.rows

    @property
    def size(self) -> int:
        return self.snapshot.size

    @property
    def average_size(self) -> int:
        return self.size // self.files if self.files else 0

    @property
    def notes(self) -> tuple[str, ...]:
        return self.snapshot.notes

    def __repr__(self) -> str:
        return render.render_text(self)

    def _repr_html_(self) -> str:
        return render.render_html(self)


def inspect_snapshot(
    snapshot: Snapshot, *, small_bytes: int = SMALL_BYTES, depth_of: Sequence[str] = ()
) -> Inspection:
    """Look at a snapshot: pure, reads nothing.

    Args:
        small_bytes: Files under this size count as small.
        depth_of: Columns whose clustering depth is computed from the files' bounds.

    Raises:
        ColumnNotFound: ``depth_of`` names a column that the table does not have.
    """
    check_columns(depth_of, snapshot.schema.names, operation="inspect", path=snapshot.root)
    footers = [file.footer for file in snapshot.files if file.footer is not None]
    chunks = _collect_chunks(footers)
    parts = _inspect_partitions(snapshot)
    orders = Counter(text for text in map(_describe_declared_order, footers) if text)
    times = any(pa.types.is_timestamp(dtype) for dtype in list_leaf_types(snapshot.schema))
    int96 = Counter(name for footer in footers if times for name in find_int96_columns(footer.schema))
    return Inspection(
        snapshot=snapshot,
        row_groups=sum(footer.num_row_groups for footer in footers),
        columns=tuple(
            replace(
                _inspect_column(snapshot, entry, chunks, name_depth=depth_of), int96_files=int96[entry.name]
            )
            for entry in snapshot.schema
        ),
        codecs=_find_codecs(footers, chunks),
        partitions=len(parts),
        biggest=max(parts, key=lambda part: part.size) if parts else None,
        smallest=min(parts, key=lambda part: part.size) if parts else None,
        sorting=tuple(sorted(orders.items(), key=lambda item: (-item[1], item[0]))),
        small_files=sum(file.size < small_bytes for file in snapshot.files),
        small_bytes=small_bytes,
        unread=len(snapshot.files) - len(footers),
    )


def find_file_ranges(snapshot: Snapshot, column: str) -> tuple[FileRange, ...]:
    """The range of a column in each file whose footer proves one; files without one are left out."""
    files = [file for file in snapshot.files if file.rows]
    bounds = read_bounds(files, column, snapshot.schema.field(column).type)
    if not len(bounds.file) or len(bounds.lower) != len(bounds.file):
        return ()
    per_group = pa.table({
        "file": bounds.file,
        "lower": _to_python_precision(bounds.lower),
        "upper": _to_python_precision(bounds.upper),
        # A row group of NULLs alone has no bounds and needs none.
        "open": pc.and_(
            pc.or_(pc.is_null(bounds.lower), pc.is_null(bounds.upper)),
            pc.fill_null(pc.less(bounds.null_count, bounds.rows), True),
        ),
    })  # fmt: skip
    wanted = [("lower", "min"), ("upper", "max"), ("open", "any")]
    whole = per_group.group_by("file", use_threads=False).aggregate(wanted)
    known = whole.filter(pc.and_(pc.invert(whole["open_any"]), pc.is_valid(whole["lower_min"])))
    return tuple(
        FileRange(files[number].path, lower, upper, files[number].rows, files[number].size)
        for number, lower, upper in zip(
            known["file"].to_pylist(),
            known["lower_min"].to_pylist(),
            known["upper_max"].to_pylist(),
            strict=True,
        )
    )


def _to_python_precision(values: pa.Array) -> pa.Array:
    """The values in a type that Python has, too: microseconds instead of nanoseconds."""
    dtype = values.type
    if pa.types.is_timestamp(dtype) and dtype.unit == "ns":
        return values.cast(pa.timestamp("us", dtype.tz), safe=False)
    if pa.types.is_time64(dtype) and dtype.unit == "ns":
        return values.cast(pa.time64("us"), safe=False)
    return values


def compute_depth(ranges: Sequence[FileRange]) -> float | None:
    """How many files cover a file's range, on average, itself included; None without ranges."""
    if not ranges:
        return None
    # One sweep over the ends: a range starts at its lower end before another one stops there.
    ends = sorted([(r.lower, 0) for r in ranges] + [(r.upper, 1) for r in ranges])
    opened = active = pairs = 0
    for _, closing in ends:
        if closing:
            active -= 1
        else:
            pairs += active
            active += 1
            opened += 1
    return 1 + 2 * pairs / opened


@dataclass(slots=True)
class _Chunks:
    """Sums over the chunks of one top-level column."""

    size: int = 0
    nulls: int | None = 0
    values: int = 0
    codecs: set[str] = field(default_factory=set)


def _collect_chunks(footers: Sequence[pq.FileMetaData]) -> dict[str, _Chunks] | None:
    """Per top-level column; None where there are too many chunks to look at."""
    if sum(footer.num_row_groups * footer.num_columns for footer in footers) > MOST_CHUNKS:
        return None
    found: dict[str, _Chunks] = defaultdict(_Chunks)
    for footer in footers:
        names = [footer.schema.column(number).path for number in range(footer.num_columns)]
        for group in range(footer.num_row_groups):
            meta = footer.row_group(group)
            for number, name in enumerate(names):
                _add(found[name.partition(".")[0]], meta.column(number), flat="." not in name)
    return found


def _add(sums: _Chunks, chunk: Any, *, flat: bool) -> None:
    sums.size += chunk.total_compressed_size
    sums.codecs.add(chunk.compression)
    statistics = chunk.statistics if flat and sums.nulls is not None else None
    if statistics is None or not statistics.has_null_count or sums.nulls is None:
        sums.nulls = None  # a nested column's leaves say nothing on the column itself
    else:
        sums.nulls += statistics.null_count
        sums.values += chunk.num_values


def _inspect_column(
    snapshot: Snapshot, entry: pa.Field, chunks: Mapping[str, _Chunks] | None, *, name_depth: Sequence[str]
) -> ColumnFacts:
    if pa.types.is_null(entry.type):
        return ColumnFacts(entry.name, entry.type, null_fraction=1.0)
    covered = compute_depth(find_file_ranges(snapshot, entry.name)) if entry.name in name_depth else None
    sums = chunks.get(entry.name) if chunks else None
    if sums is None:
        return ColumnFacts(entry.name, entry.type, depth=covered)
    return ColumnFacts(
        entry.name,
        entry.type,
        sums.size,
        _compute_null_fraction(
            sums, sum(file.footer.num_rows for file in snapshot.files if file.footer is not None)
        ),
        tuple(sorted(sums.codecs)),
        covered,
    )


def _compute_null_fraction(sums: _Chunks, rows: int) -> float | None:
    if sums.nulls is None or not rows:
        return None
    return (sums.nulls + rows - sums.values) / rows  # a file that lacks the column reads as NULL


def _find_codecs(footers: Sequence[pq.FileMetaData], chunks: Mapping[str, _Chunks] | None) -> tuple[str, ...]:
    if chunks is not None:
        return tuple(sorted({codec for sums in chunks.values() for codec in sums.codecs}))
    filled = [footer for footer in footers if footer.num_row_groups and footer.num_columns]
    return tuple(sorted({footer.row_group(0).column(0).compression for footer in filled}))


def _inspect_partitions(snapshot: Snapshot) -> list[PartitionFacts]:
    groups: dict[tuple[Any, ...], list[DataFile]] = defaultdict(list)
    for file in snapshot.files:
        values = _get_partition(file, snapshot)
        if values:
            groups[tuple(values.items())].append(file)
    return [
        PartitionFacts(
            dict(values), len(files), sum(file.rows for file in files), sum(file.size for file in files)
        )
        for values, files in groups.items()
    ]


def _get_partition(file: DataFile, snapshot: Snapshot) -> Mapping[str, Any]:
    if snapshot.format.owns_schema:
        return snapshot.partitioner.partition_of(file).values
    return {name: file.partition.get(name) for name in snapshot.partition_columns}


def _describe_declared_order(footer: pq.FileMetaData) -> str:
    """The order that the first row group declares, as in ``day, price desc``."""
    if not footer.num_row_groups:
        return ""
    return ", ".join(
        footer.schema.column(entry.column_index).path + (" desc" if entry.descending else "")
        for entry in footer.row_group(0).sorting_columns
    )
