"""Parquet, CSV and JSON files as Arrow: one file in, a table or a stream of batches out; finds no files."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, assert_never

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from intarsia.common.partitions import (
    PARTITION_SCHEMA_KEY,
    decode_partition_schema,
    infer_partition_schema,
    parse_hive_partition_path,
    typed_partition,
)
from intarsia.common.paths import InputFile
from intarsia.common.schema import is_nested
from intarsia.errors import DamagedTable, InputError, IntarsiaError, StorageError

__all__ = [
    "SUFFIXES",
    "Format",
    "agreed_types",
    "file_errors",
    "format_of",
    "partition_scalars",
    "read_csv_file",
    "read_json_file",
    "stream",
]

Format = Literal["parquet", "csv", "json"]

_COMPRESSED = ("", ".gz", ".bz2", ".zst", ".lz4", ".br")
SUFFIXES: Mapping[Format, tuple[str, ...]] = {
    "parquet": (".parquet", ".parq"),
    "csv": tuple(".csv" + end for end in _COMPRESSED),
    "json": tuple(name + end for name in (".json", ".jsonl", ".ndjson") for end in _COMPRESSED),
}

_BATCH_ROWS = 1 << 17
_WHOLE_TEXT_BYTES = 256 << 20
"""A text file up to this size is read as a whole, so that its types are inferred from every row."""
_BLOCK = 8 << 20
_STREAM_BLOCK = 64 << 20


def format_of(file: InputFile) -> Format:
    """The format of a file by its name, or by its first bytes where the name does not say.

    Raises:
        InputError: neither tells.
    """
    for kind, suffixes in SUFFIXES.items():
        if file.below.lower().endswith(suffixes):
            return kind
    with (
        file_errors(file, "a data"),
        file.filesystem.open_input_stream(file.location, compression=None) as found,
    ):
        if found.read(4) == b"PAR1":
            return "parquet"
    raise InputError(
        f"{file.shown} is not known to be Parquet, CSV or JSON by its name.",
        path=file.shown,
        hint="give it one of the endings " + ", ".join(ends[0] for ends in SUFFIXES.values()),
    )


@contextmanager
def file_errors(file: InputFile, kind: str) -> Iterator[None]:
    """Let errors of reading a file leave as StorageError or DamagedTable with the file's path."""
    try:
        yield
    except IntarsiaError:
        raise
    except OSError as error:
        raise StorageError(
            f"Could not read {file.shown}: {error.strerror or error}", errno=error.errno, path=file.shown
        ) from error
    except (pa.ArrowException, ValueError) as error:
        raise DamagedTable(
            f"{file.shown} cannot be read as {kind} file: {error}",
            path=file.shown,
            hint="repair or remove the file",
        ) from error


def stream(
    file: InputFile, kind: Format, *, types: pa.Schema | None = None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema of a file and its batches, in order.

    Memory: some batches; a text file of up to 256 MiB is held as a whole.

    Args:
        file: What to read.
        kind: Its format.
        types: Types of columns that a text file may have; without them types are inferred.
    """
    if kind == "parquet":
        with file_errors(file, "a Parquet"):
            opened = pq.ParquetFile(file.location, filesystem=file.filesystem)
            return opened.schema_arrow, _parquet_batches(file, opened)
    if file.size > _WHOLE_TEXT_BYTES and not (kind == "json" and _is_array(file)):
        return _stream_text(file, kind, types)
    if kind == "csv":
        table = read_csv_file(file, types=types)
    elif kind == "json":
        table = read_json_file(file, types=types)
    else:
        assert_never(kind)
    return table.schema, iter(table.to_batches())


def _parquet_batches(file: InputFile, opened: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    with file_errors(file, "a Parquet"), opened:
        yield from opened.iter_batches(batch_size=_BATCH_ROWS)


def _stream_text(
    file: InputFile, kind: Literal["csv", "json"], types: pa.Schema | None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    def opened(explicit: pa.Schema | None) -> Any:
        source = file.filesystem.open_input_stream(file.location)
        if kind == "csv":
            options = _csv_options({}, True, block_size=_STREAM_BLOCK, explicit=explicit)
            return pacsv.open_csv(source, **options)
        return pajson.open_json(
            source, **_json_options({}, True, block_size=_STREAM_BLOCK, explicit=explicit)
        )

    with file_errors(file, f"a {kind.upper()}"):
        reader = opened(None)
        explicit = _explicit(reader.schema, types)
        if explicit is not None:
            reader = opened(explicit)

    def batches() -> Iterator[pa.RecordBatch]:
        with file_errors(file, f"a {kind.upper()}"):
            yield from reader

    return reader.schema, batches()


def _explicit(inferred: pa.Schema, types: pa.Schema | None) -> pa.Schema | None:
    """The inferred schema with the types that are known better; None when there is none."""
    if types is None:
        return None
    known = {field.name: field.type for field in types if not is_nested(field.type)}
    better = pa.schema([field.with_type(known.get(field.name, field.type)) for field in inferred])
    return None if better.equals(inferred) else better


def _with_types(read: Callable[[pa.Schema | None], pa.Table], types: pa.Schema | None) -> pa.Table:
    """Read with the known types where the texts allow; what they do not allow is left as inferred."""
    table = read(None)
    explicit = _explicit(table.schema, types)
    if explicit is None:
        return table
    try:
        return read(explicit)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return table


def agreed_types(schemas: Sequence[pa.Schema], types: pa.Schema | None) -> pa.Schema | None:
    """Types for text files of one input, so that a column has in all of them what it would have in one.

    Integers in one file and fractions in another are float64; any other mix of plain types is text.
    """
    found: dict[str, set[pa.DataType]] = {}
    for schema in schemas:
        for field in schema:
            if not pa.types.is_null(field.type):
                found.setdefault(field.name, set()).add(field.type)
    agreed = {} if types is None else {field.name: field.type for field in types}
    for name, kinds in found.items():
        if len(kinds) > 1 and name not in agreed and not any(map(is_nested, kinds)):
            agreed[name] = pa.float64() if kinds == {pa.int64(), pa.float64()} else pa.string()
    return pa.schema(list(agreed.items())) if agreed else None


def read_csv_file(
    file: InputFile,
    *,
    types: pa.Schema | None = None,
    use_threads: bool = True,
    options: Mapping[str, Any] | None = None,
) -> pa.Table:
    """One CSV file with a header. An empty field is NULL, a quoted empty one is an empty string.

    Args:
        file: What to read.
        types: Types of columns, used where every text can be read so.
        use_threads: Execution only; rows and types are the same.
        options: ``read_options``, ``parse_options`` and ``convert_options`` of pyarrow.csv instead of ours.
    """

    def read(explicit: pa.Schema | None, block_size: int = _BLOCK) -> pa.Table:
        with file.filesystem.open_input_stream(file.location) as source:
            return pacsv.read_csv(
                source, **_csv_options(options or {}, use_threads, block_size=block_size, explicit=explicit)
            )

    with file_errors(file, "a CSV"):
        return _with_types(_in_larger_blocks(read, file), types)


def _csv_options(
    given: Mapping[str, Any], use_threads: bool, *, block_size: int, explicit: pa.Schema | None
) -> dict[str, Any]:
    # Only an empty field is NULL: "NA" and "null" may be someone's data. As Spark and DuckDB read it.
    options: dict[str, Any] = {
        "convert_options": pacsv.ConvertOptions(
            null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
        "read_options": pacsv.ReadOptions(block_size=block_size),
        **copy.deepcopy(dict(given)),  # the caller's stay as they are
    }
    options["read_options"].use_threads = use_threads
    if explicit is not None:
        options["convert_options"].column_types = explicit
    return options


def read_json_file(
    file: InputFile,
    *,
    types: pa.Schema | None = None,
    use_threads: bool = True,
    options: Mapping[str, Any] | None = None,
) -> pa.Table:
    """One file of JSON objects: one per line, or one array of them (which is held in memory as text).

    Args:
        file: What to read.
        types: Types of columns, used where every value can be read so.
        use_threads: Execution only; rows and types are the same.
        options: ``read_options`` and ``parse_options`` of pyarrow.json instead of ours.
    """
    lines = _array_as_lines(file) if _is_array(file) else None
    if lines is not None and not len(lines):
        return pa.table({})

    def read(explicit: pa.Schema | None, block_size: int = _BLOCK) -> pa.Table:
        if lines is not None:
            source = pa.BufferReader(lines)
        else:
            source = file.filesystem.open_input_stream(file.location)
        with source:
            return pajson.read_json(
                source, **_json_options(options or {}, use_threads, block_size=block_size, explicit=explicit)
            )

    with file_errors(file, "a JSON"):
        return _with_types(_in_larger_blocks(read, file), types)


def _json_options(
    given: Mapping[str, Any], use_threads: bool, *, block_size: int, explicit: pa.Schema | None
) -> dict[str, Any]:
    options: dict[str, Any] = {
        "read_options": pajson.ReadOptions(block_size=block_size),
        "parse_options": pajson.ParseOptions(),
        **copy.deepcopy(dict(given)),
    }
    options["read_options"].use_threads = use_threads
    if explicit is not None:
        options["parse_options"].explicit_schema = explicit
    return options


def _in_larger_blocks(
    read: Callable[..., pa.Table], file: InputFile
) -> Callable[[pa.Schema | None], pa.Table]:
    """Read again with larger blocks where a row is longer than one."""

    def again(explicit: pa.Schema | None) -> pa.Table:
        size = _BLOCK
        while True:
            try:
                return read(explicit, size)
            except pa.ArrowInvalid as error:
                if "straddl" not in str(error) or size >= 1 << 30:
                    raise
                size *= 8

    return again


def _is_array(file: InputFile) -> bool:
    with file_errors(file, "a JSON"), file.filesystem.open_input_stream(file.location) as source:
        while block := source.read(4096):
            text = block.removeprefix(b"\xef\xbb\xbf").lstrip()
            if text:
                return bool(text.startswith(b"["))
    return False


def _array_as_lines(file: InputFile) -> bytes:
    """The objects of an array one per line, so that both forms get their types from one parser."""
    with file_errors(file, "a JSON"), file.filesystem.open_input_stream(file.location) as source:
        rows = json.loads(source.read())
        wrong = [number for number, row in enumerate(rows) if not isinstance(row, dict)]
        if wrong:
            raise DamagedTable(
                f"{file.shown} is an array with {len(wrong)} elements that are not objects, "
                f"the first is element {wrong[0]}.",
                path=file.shown,
            )
        return "".join(json.dumps(row) + "\n" for row in rows).encode()


# ---------------------------------------------------------------------------------------------------
# Columns that are in the directories' names.


def partition_scalars(
    files: Sequence[InputFile],
    kind: Format,
    *,
    columns: Sequence[str] = (),
    types: pa.Schema | None = None,
    schemas: Sequence[pa.Schema] | None = None,
) -> list[dict[str, pa.Scalar]]:
    """For each file the values of its ``name=value`` directories, typed.

    A type is the one in ``types``, else what a Parquet file says the column was written with, else what
    every value of the column reads back as.

    Args:
        files: All files of the input.
        kind: Their format.
        columns: Columns to look for above the input, too.
        types: Types that are known; one that a text cannot be read in is not used.
        schemas: The files' schemas, where they were read already.
    """
    texts = [
        parse_hive_partition_path(file.location, columns) | parse_hive_partition_path(file.below)
        for file in files
    ]
    names = {name for values in texts for name in values}
    if not names:
        return [{} for _ in files]
    known = {field.name: _value_field(field) for field in types or () if field.name in names}
    if kind == "parquet" and known.keys() < names:
        known = {field.name: _value_field(field) for field in _declared(files, schemas)} | known
    readable = [field for field in known.values() if _reads_all(field, texts)]
    schema = infer_partition_schema(texts, pa.schema(readable))
    return [
        {name: _scalar(value, schema.field(name).type) for name, value in typed.items()}
        for typed in (typed_partition(v, schema, path=f.shown) for v, f in zip(texts, files, strict=True))
    ]


def _value_field(field: pa.Field) -> pa.Field:
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


def _reads_all(field: pa.Field, texts: Sequence[Mapping[str, str | None]]) -> bool:
    alone = pa.schema([field])
    try:
        for text in {values.get(field.name) for values in texts}:
            typed_partition({field.name: text}, alone)
    except DamagedTable:
        return False
    return True


def _declared(files: Sequence[InputFile], schemas: Sequence[pa.Schema] | None) -> pa.Schema:
    """The types the partition columns were written with, if a file says so."""
    for number, file in enumerate(files):
        if schemas is not None:
            metadata = schemas[number].metadata or {}
        else:
            with file_errors(file, "a Parquet"):
                metadata = pq.read_schema(file.location, filesystem=file.filesystem).metadata or {}
        if PARTITION_SCHEMA_KEY in metadata:
            return decode_partition_schema(metadata[PARTITION_SCHEMA_KEY], path=file.shown)
    return pa.schema([])


def _scalar(value: Any, data_type: pa.DataType) -> pa.Scalar:
    return value.cast(data_type) if isinstance(value, pa.Scalar) else pa.scalar(value, data_type)
