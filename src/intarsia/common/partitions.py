"""Hive partitions: paths to values and back, and the types of the values; no file I/O."""

from __future__ import annotations

import base64
import binascii
import itertools
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.types as pt

from intarsia.common.names import check_columns
from intarsia.common.partition_values import (
    HIVE_NULL,
    escape,
    parse_partition_text,
    partition_text,
    to_python_value,
    unescape,
)
from intarsia.common.python_values import make_array
from intarsia.common.schema import cast_exact, convert_large_types_to_normal, is_nested
from intarsia.common.types import get_value_type
from intarsia.errors import DamagedTable, InputError, UnsafePath

__all__ = [
    "HIVE_NULL",
    "PARTITION_SCHEMA_KEY",
    "PartitionFilter",
    "check_partition_columns",
    "check_partition_names",
    "decode_partition_schema",
    "encode_partition_schema",
    "hive_path",
    "infer_partition_columns",
    "infer_partition_schema",
    "parse_hive_partition_path",
    "parse_partition",
    "parse_partition_filter",
    "partition_matches",
    "partition_text",
    "split_by_partition",
]


PARTITION_SCHEMA_KEY = b"intarsia.partitions"
"""Key-value metadata of a data file: the types of the partition columns, as encoded below."""

_NAME_MAX = 255


# ---------------------------------------------------------------------------------------------------
# Directories to text values.


def parse_hive_partition_path(
    file_path: str | os.PathLike[str],
    partition_columns: Sequence[str] | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """The partition values in a file's path, as text, outermost first; None is NULL.

    Only directories count, not the file's own name, and with ``root`` only those below it.

    Args:
        file_path: Of a file; a relative path is taken as below the root.
        partition_columns: The only columns to return; all by default.
        root: The dataset.

    Raises:
        InputError: The file is not below the root.

    >>> parse_hive_partition_path("/data/year=2024/city=S%C3%A3o Paulo/file.parquet")
    {'year': '2024', 'city': 'São Paulo'}
    """
    path = os.fspath(file_path)
    if root is not None:
        path = _strip_root(path, os.fspath(root))
    directory = path.rpartition("/")[0]
    return {
        name: value
        for name, value in _parse_directory(directory)
        if partition_columns is None or name in partition_columns
    }


def _strip_root(path: str, root: str) -> str:
    base = root.rstrip("/") + "/"
    if path.startswith(base):
        return path[len(base) :]
    if path.startswith("/") or "://" in path:
        raise InputError(f"the file {path} is not below {root}", path=path)
    return path


@lru_cache(maxsize=65536)
def _parse_directory(directory: str) -> tuple[tuple[str, str | None], ...]:
    """Name and text of each ``name=value`` part. Cached: files of a partition share their directory."""
    pairs = []
    for part in directory.split("/"):
        name, equals, value = part.partition("=")
        if name and equals:
            pairs.append((unescape(name), None if value == HIVE_NULL else unescape(value)))
    return tuple(pairs)


def infer_partition_columns(paths: Iterable[str]) -> tuple[str, ...]:
    """The partition columns of a dataset from its files' paths below the root, outermost first.

    Files may lie at different depths; a column that a file's path lacks is unknown for it.

    Raises:
        DamagedTable: Two paths nest the same columns in opposite order, or one names a column twice.
    """
    layouts: dict[tuple[str, ...], str] = {}
    for path in paths:
        directory = path.rpartition("/")[0]
        layouts.setdefault(tuple(name for name, _ in _parse_directory(directory)), path)
    order: TopologicalSorter[str] = TopologicalSorter()
    for layout, path in layouts.items():
        if len(set(layout)) < len(layout):
            raise DamagedTable(
                f"the path {path} names a partition column twice",
                path=path,
                hint="move the files so that each column has one directory in a path",
            )
        for outer, inner in zip((None, *layout), layout, strict=False):
            order.add(inner, *([] if outer is None else [outer]))
    try:
        return tuple(order.static_order())
    except CycleError as error:
        names = list(dict.fromkeys(error.args[1]))
        samples = [path for layout, path in layouts.items() if len(set(layout) & set(names)) > 1][:2]
        raise DamagedTable(
            f"the partition columns {', '.join(map(repr, names))} are nested in different orders: "
            f"{' and '.join(samples)}",
            path=samples[0],
            hint="move the files so that all directories nest the columns in one order",
        ) from error


# ---------------------------------------------------------------------------------------------------
# Typed values to directories.


def hive_path(values: Mapping[str, Any], *, path: str | None = None) -> str:
    """The directory of a partition, such as ``day=2025-11-04/city=a%2Fb``, escaped as Hive and Spark do.

    Args:
        values: Column to typed value (as :func:`split_by_partition` gives them), outermost first.
        path: The dataset, named in errors.

    Raises:
        UnsafePath: A value that would not read back as itself: an empty string, one with a NUL, the
            name Hive has for NULL, bytes that are no text, or one too long for a directory's name.
    """
    check_partition_names(values, path=path)
    return "/".join(_make_directory_name(name, value, path) for name, value in values.items())


def _make_directory_name(name: str, value: Any, path: str | None) -> str:
    if value is None or (isinstance(value, pa.Scalar) and not value.is_valid):
        return f"{escape(name)}={HIVE_NULL}"
    try:
        text = partition_text(value)
        part = f"{escape(name)}={escape(text)}"
        size = len(part.encode())
    except UnicodeError as error:
        raise _make_unsafe_error(name, value, "is no UTF-8 text", path) from error
    except pa.ArrowInvalid as error:
        raise _make_unsafe_error(name, value, "has no text that reads back", path) from error
    if not text:
        raise _make_unsafe_error(name, value, "is empty, which Hive cannot tell from NULL", path)
    if "\0" in text:
        raise _make_unsafe_error(name, value, "holds a NUL character", path)
    if text == HIVE_NULL:
        raise _make_unsafe_error(name, value, "is what Hive writes for NULL", path)
    if size > _NAME_MAX:
        raise _make_unsafe_error(
            name, value, f"makes a directory name of {size} bytes, {_NAME_MAX} is the most", path
        )
    return part


def _make_unsafe_error(name: str, value: Any, why: str, path: str | None) -> UnsafePath:
    # The repr of an Arrow scalar goes through Python, which may not have the value.
    shown = str(value.cast(pa.string())) if isinstance(value, pa.Scalar) else repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    hint = "change the value, or partition by another column"
    return UnsafePath(f"partition column {name!r}: the value {shown} {why}", path=path, hint=hint)


def check_partition_names(names: Iterable[str], *, path: str | None = None) -> None:
    """Raise UnsafePath where a name cannot be a partition column: empty, with a NUL, or hidden."""
    for name in names:
        if not name or "\0" in name:
            raise UnsafePath(f"{name!r} cannot be a partition column", path=path)
        if name[0] in "._":
            raise UnsafePath(
                f"{name!r} cannot be a partition column: readers skip directories with a leading {name[0]!r}",
                path=path,
                hint="rename the column",
            )


def check_partition_columns(schema: pa.Schema, columns: Sequence[str], *, path: str | None = None) -> None:
    """Raise unless rows of this schema can be partitioned by the columns.

    Raises:
        ColumnNotFound: A column is not there.
        UnsafePath: A column's name would hide its directory.
        InputError: A column is named twice or has a type that has no text, or no other column is left.
    """
    check_columns(columns, schema.names, path=path, what="partition column")
    if len(set(columns)) < len(columns):
        raise InputError(
            f"a partition column is named twice: {list(columns)}", path=path, hint="name each one once"
        )
    check_partition_names(columns, path=path)
    bad = [
        f"{name!r} ({schema.field(name).type})" for name in columns if not _has_text(schema.field(name).type)
    ]
    if bad:
        raise InputError(
            f"cannot partition by {', '.join(bad)}",
            path=path,
            hint="partition by numbers, strings, booleans, dates, times or timestamps",
        )
    if columns and len(columns) == len(schema.names):
        raise InputError(
            "every column is a partition column, nothing would be left in the files",
            path=path,
            hint="leave out at least one",
        )


def _has_text(data_type: pa.DataType) -> bool:
    plain = get_value_type(data_type)
    kept_apart = isinstance(plain, pa.BaseExtensionType)  # its values have no text that reads back
    return not (kept_apart or is_nested(plain) or pt.is_duration(plain) or pt.is_interval(plain))


# ---------------------------------------------------------------------------------------------------
# Text values to typed ones.


def parse_partition(
    values: Mapping[str, str | None], schema: pa.Schema, *, path: str | None = None
) -> dict[str, Any]:
    """The typed values of a file's partition columns; a column the schema lacks stays text.

    Cheap for many files: each text is read once per type.

    Args:
        values: As :func:`parse_hive_partition_path` gives them.
        schema: The types of the partition columns.
        path: The file, named in errors.

    Raises:
        DamagedTable: A text is no value of its column's type.
    """
    typed: dict[str, Any] = {}
    for name, text in values.items():
        index = schema.get_field_index(name)
        if text is None or index < 0:
            typed[name] = text
            continue
        data_type = schema.field(index).type
        try:
            typed[name] = parse_partition_text(text, data_type)
        except (ValueError, pa.ArrowNotImplementedError) as error:
            raise DamagedTable(
                f"partition column {name!r}: {text!r} is no {data_type}",
                path=path,
                hint="rename the directory, or move its files out of the dataset",
            ) from error
    return typed


def infer_partition_schema(
    values: Iterable[Mapping[str, str | None]], declared: pa.Schema | None = None
) -> pa.Schema:
    """The types of the partition columns, given the text values of all files.

    A declared type wins: it is the type the column was written with. Otherwise a column has the first
    of int64, date32, timestamp[us] and timestamp[us, UTC] in which every text reads back as itself, so
    that what is written later goes to the directories that are there; "007" or "1e5" make it a string.

    Args:
        values: As :func:`parse_hive_partition_path` gives them, one per file.
        declared: Types that are known, such as from :func:`decode_partition_schema`.
    """
    texts: dict[str, set[str]] = {}
    for partition in values:
        for name, text in partition.items():
            found = texts.setdefault(name, set())
            if text is not None:
                found.add(text)
    known = {} if declared is None else {field.name: field for field in declared}
    if not texts:
        return pa.schema(list(known.values()))
    return pa.schema([known.get(name) or pa.field(name, _infer_type(found)) for name, found in texts.items()])


_INFERRED = (pa.int64(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"))


def _infer_type(texts: Collection[str]) -> pa.DataType:
    for data_type in _INFERRED if texts else ():
        if all(_reads_back(text, data_type) for text in texts):
            return data_type
    return pa.string()


def _reads_back(text: str, data_type: pa.DataType) -> bool:
    try:
        return partition_text(parse_partition_text(text, data_type)) == text
    except pa.ArrowInvalid:
        return False


def encode_partition_schema(schema: pa.Schema) -> bytes:
    """The types of partition columns as text for a data file's key-value metadata."""
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes())


def decode_partition_schema(encoded: bytes, *, path: str | None = None) -> pa.Schema:
    """The inverse of :func:`encode_partition_schema`.

    Raises:
        DamagedTable: The text is something else.
    """
    try:
        return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(encoded, validate=True)))
    except (binascii.Error, pa.ArrowException, OSError) as error:
        raise DamagedTable(
            f"the metadata {PARTITION_SCHEMA_KEY.decode()!r} of a file is damaged", path=path
        ) from error


def split_by_partition(table: pa.Table, columns: Sequence[str]) -> list[tuple[dict[str, Any], pa.Table]]:
    """The rows of each partition, with its typed values; partitions in order of first appearance.

    Rows keep their order, and all columns stay. NULL is a partition of its own, NaN is one value, -0.0
    is 0.0. One sort however many partitions there are; memory: one copy of the table, which the parts
    share. A table whose partitions lie together already is not copied.
    """
    if not table.num_rows:
        return []
    if not columns:
        return [({}, table)]
    keys = [_to_comparable(table[name]) for name in columns]
    codes = _encode_rows(keys[0])
    for key in keys[1:]:
        inner = _encode_rows(key)
        width = pc.max(inner).as_py() + 1
        # Dense codes stay below 2^31, so their product fits 64 bits.
        codes = _encode_rows(pa.chunked_array([pc.add(pc.multiply(codes, width), inner)]))
    counts = pc.value_counts(codes).field("counts").to_pylist()
    order = None
    if not pc.all(pc.greater_equal(codes[1:], codes[:-1]), min_count=0).as_py():
        order = pc.array_sort_indices(codes)  # stable
        table = _take(table, order)
    starts = [0, *itertools.accumulate(counts)][:-1]
    firsts = make_array(starts, pa.int64()) if order is None else order.take(make_array(starts, pa.int64()))
    values = [[to_python_value(scalar) for scalar in key.take(firsts)] for key in keys]
    return [
        (dict(zip(columns, found, strict=True)), table.slice(start, count))
        for start, count, *found in zip(starts, counts, *values, strict=True)
    ]


def _to_comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column in a type Arrow can hash and take from, with one NaN and one zero."""
    plain = get_value_type(column.type)
    normal = convert_large_types_to_normal(pa.schema([("", plain)])).field(0).type
    if pt.is_decimal32(plain) or pt.is_decimal64(plain):
        normal = pa.decimal128(plain.precision, plain.scale)
    if pt.is_float16(plain):
        normal = pa.float32()
    column = cast_exact(column, normal, column="", operation="split_by_partition")
    if not pt.is_floating(normal):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(math.nan, normal), pc.add(column, pa.scalar(0.0, normal)))


def _encode_rows(column: pa.ChunkedArray) -> pa.Array:
    """A number per row from 0, in order of first appearance; NULL has its own."""
    encoded = column.dictionary_encode(null_encoding="encode")
    indices = [chunk.indices for chunk in encoded.chunks]
    return pc.cast(pa.concat_arrays(indices), pa.int64())


def _take(table: pa.Table, order: pa.Array) -> pa.Table:
    columns = []
    for field, column in zip(table.schema, table.columns, strict=True):
        try:
            columns.append(column.take(order))
        except pa.ArrowNotImplementedError:  # views: through their normal type and back
            normal = convert_large_types_to_normal(pa.schema([field])).field(0).type
            there = cast_exact(column, normal, column=field.name).take(order)
            columns.append(cast_exact(there, field.type, column=field.name))
    return pa.Table.from_arrays(columns, schema=table.schema)


PartitionFilter = tuple[tuple[tuple[str, str | None], ...], ...]
"""Alternatives; each is met when all of its (column, text) pairs are."""


def parse_partition_filter(partition_filter: str | Sequence[str] | None) -> PartitionFilter:
    """A filter such as ``"date=2025-11-04"`` or ``"date=2025-11-04/region=eu"``, or a list: any of them.

    The text is only taken apart, never evaluated. Values are escaped as in paths (``%2F`` for ``/``).
    None is no filter.

    Raises:
        InputError: The text is anything else than column=value, parted by slashes.
    """
    if partition_filter is None:
        return ()
    listed = isinstance(partition_filter, (list, tuple, set, frozenset))
    texts = list(partition_filter) if listed else [partition_filter]
    if not texts:
        raise InputError("partition_filter is an empty list", hint="use None for all partitions")
    return tuple(_parse_filter(text) for text in texts)


def _parse_filter(text: Any) -> tuple[tuple[str, str | None], ...]:
    if not isinstance(text, str):
        raise _make_filter_error(text)
    pairs = []
    for part in text.strip("/").split("/"):
        name, equals, value = part.partition("=")
        # An operator, as in "day>=1" or "day == 1", would be a column that no file has.
        if not (name and equals) or name.strip(" <>!~") != name or "=" in value:
            raise _make_filter_error(text)
        pairs.append((unescape(name), None if value == HIVE_NULL else unescape(value)))
    return tuple(pairs)


def _make_filter_error(text: Any) -> InputError:
    return InputError(
        f"partition_filter {text!r} is not understood",
        hint='write "column=value" or "column=value/column=value"; "=" in a value is %3D, "/" is %2F',
    )


def partition_matches(partition: Mapping[str, Any], partition_filter: PartitionFilter) -> bool:
    """True where a file with these values, text or typed, passes a parsed filter.

    A column that is not known for the file does not match.
    """
    if not partition_filter:
        return True
    return any(
        all(name in partition and _is_same_value(partition[name], text) for name, text in alternative)
        for alternative in partition_filter
    )


def _is_same_value(value: Any, text: str | None) -> bool:
    if value is None or text is None:
        return value is None and text is None
    return partition_text(value) == text
