"""Parquet, Arrow, CSV and JSON files: one file in, a stream of batches out; finds no files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from intarsia.common.int96 import ParquetInput
from intarsia.common.partitions import (
    PARTITION_SCHEMA_KEY,
    decode_partition_schema,
    infer_partition_schema,
    parse_hive_partition_path,
    parse_partition,
)
from intarsia.common.paths import InputFile
from intarsia.common.schema import is_nested
from intarsia.common.text_files import (
    COMPRESSED,
    is_json_array,
    read_csv_file,
    read_json_file,
    stream_text,
    translate_file_errors,
)
from intarsia.errors import DamagedTable, InputError

__all__ = [
    "SUFFIXES",
    "Format",
    "detect_file_format",
    "is_json_array",
    "open_stream",
    "parse_partition_scalars",
    "read_csv_file",
    "read_json_file",
    "translate_file_errors",
    "unify_text_types",
]

Format = Literal["parquet", "arrow", "csv", "json"]

SUFFIXES: Mapping[Format, tuple[str, ...]] = {
    "parquet": (".parquet", ".parq"),
    "arrow": (".arrow", ".feather", ".ipc"),
    "csv": tuple(name + end for name in (".csv", ".tsv") for end in COMPRESSED),
    "json": tuple(name + end for name in (".json", ".jsonl", ".ndjson") for end in COMPRESSED),
}

_BATCH_ROWS = 1 << 17
_MAGIC: Mapping[bytes, Format] = {b"PAR1": "parquet", b"ARRO": "arrow"}


def detect_file_format(file: InputFile) -> Format:
    """The format of a file by its name, or by its first bytes where the name does not say.

    Raises:
        InputError: neither says which.
    """
    for kind, suffixes in SUFFIXES.items():
        if file.below.lower().endswith(suffixes):
            return kind
    with (
        translate_file_errors(file, "a data"),
        file.filesystem.open_input_stream(file.location, compression=None) as found,
    ):
        begins = found.read(4)
    if begins in _MAGIC:
        return _MAGIC[begins]
    raise InputError(
        f"{file.shown} is not known to be Parquet, Arrow, CSV or JSON by its name.",
        path=file.shown,
        hint="give it one of the endings " + ", ".join(ends[0] for ends in SUFFIXES.values()),
    )


def open_stream(
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
        with translate_file_errors(file, "a Parquet"):
            opened = ParquetInput(file.location, file.filesystem, shown=file.shown)
            return opened.schema, _read_parquet_batches(file, opened)
    if kind == "arrow":
        return _open_arrow_stream(file)
    return stream_text(file, kind, types=types)


def _read_parquet_batches(file: InputFile, opened: ParquetInput) -> Iterator[pa.RecordBatch]:
    with translate_file_errors(file, "a Parquet"), opened:
        yield from opened.read_batches(_BATCH_ROWS)


def _open_arrow_stream(file: InputFile) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """An IPC file (Feather's second version, too) or an IPC stream, distinguished by how it begins."""
    with translate_file_errors(file, "an Arrow"):
        opened = file.filesystem.open_input_file(file.location)
        begins = opened.read(6)
        opened.seek(0)
        if begins[:4] == b"FEA1":
            raise DamagedTable(
                f"{file.shown} is a Feather file of the first version, which is no Arrow file.",
                path=file.shown,
                hint="read it with pyarrow.feather.read_table and pass that",
            )
        reader = pa.ipc.open_file(opened) if begins == b"ARROW1" else pa.ipc.open_stream(opened)

    def read_batches() -> Iterator[pa.RecordBatch]:
        with translate_file_errors(file, "an Arrow"), opened:
            if isinstance(reader, pa.RecordBatchReader):
                yield from reader
                return
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)

    return reader.schema, read_batches()


def unify_text_types(schemas: Sequence[pa.Schema], types: pa.Schema | None) -> pa.Schema | None:
    """Types for the text files of one input: a column has the same type in all files as if they were one.

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


# ---------------------------------------------------------------------------------------------------
# Partition columns, from the names of directories.


def parse_partition_scalars(
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
    known = {field.name: _decode_field(field) for field in types or () if field.name in names}
    if kind == "parquet" and known.keys() < names:
        known = {field.name: _decode_field(field) for field in _read_declared_types(files, schemas)} | known
    readable = [field for field in known.values() if _reads_all(field, texts)]
    schema = infer_partition_schema(texts, pa.schema(readable))
    return [
        {name: _make_scalar(value, schema.field(name).type) for name, value in typed.items()}
        for typed in (parse_partition(v, schema, path=f.shown) for v, f in zip(texts, files, strict=True))
    ]


def _decode_field(field: pa.Field) -> pa.Field:
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


def _reads_all(field: pa.Field, texts: Sequence[Mapping[str, str | None]]) -> bool:
    alone = pa.schema([field])
    try:
        for text in {values.get(field.name) for values in texts}:
            parse_partition({field.name: text}, alone)
    except DamagedTable:
        return False
    return True


def _read_declared_types(files: Sequence[InputFile], schemas: Sequence[pa.Schema] | None) -> pa.Schema:
    """The types the partition columns were written with, if a file says so."""
    for number, file in enumerate(files):
        if schemas is not None:
            metadata = schemas[number].metadata or {}
        else:
            with translate_file_errors(file, "a Parquet"):
                metadata = pq.read_schema(file.location, filesystem=file.filesystem).metadata or {}
        if PARTITION_SCHEMA_KEY in metadata:
            return decode_partition_schema(metadata[PARTITION_SCHEMA_KEY], path=file.shown)
    return pa.schema([])


def _make_scalar(value: Any, data_type: pa.DataType) -> pa.Scalar:
    return value.cast(data_type) if isinstance(value, pa.Scalar) else pa.scalar(value, data_type)
