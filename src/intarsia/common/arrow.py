"""Ingesting a source: tables, streams, frames, files and rows become one Arrow table, read exactly once."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from intarsia.common.exact import to_utc_table
from intarsia.common.formats import (
    SUFFIXES,
    Format,
    detect_file_format,
    open_stream,
    parse_partition_scalars,
    unify_text_types,
)
from intarsia.common.log import redact
from intarsia.common.names import check_columns, elide
from intarsia.common.paths import InputFile, find_input_files, to_path_text
from intarsia.common.rows import combine, tidy_schema
from intarsia.common.schema import conform_table, get_unreadable_reason, unify_schemas
from intarsia.common.source import IngestedSource, Intake, conform_batches
from intarsia.errors import InputError, IntarsiaError, NothingMatched, NotSupported, SchemaMismatch

__all__ = ["SPOOL_BYTES", "IngestedSource", "ingest"]

SPOOL_BYTES = 512 << 20

_TAKEN = (
    "a pyarrow Table, RecordBatch, RecordBatchReader, Dataset or Scanner, anything with __arrow_c_stream__ "
    "or __arrow_c_array__ (polars, pandas, DuckDB), an iterable of record batches, a path, URL or glob of "
    "Parquet, Arrow, CSV or JSON files, a dict of columns, a list of dicts, or a list of any of these"
)


def ingest(
    source: Any,
    *,
    spool_bytes: int = SPOOL_BYTES,
    spool_dir: str | os.PathLike[str] | None = None,
    partition_columns: Sequence[str] = (),
    types: pa.Schema | None = None,
    declared: Sequence[str] = (),
    filesystem: Any = None,
    utc_for: pa.Schema | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> IngestedSource:
    """Take in any source, reading it exactly once.

    Memory stays within ``spool_bytes`` and a little: what is more goes to a temporary file without a
    name, so nothing is left behind, whatever happens. Data that is an Arrow table already is neither
    copied nor spooled where it is larger than that. Views, narrow decimals and run-end encoded
    columns get plain types; extension types stay.

    Args:
        source: What to take in. In a list, columns meet by name in their common types.
        spool_bytes: How much to hold in memory.
        spool_dir: Where the temporary file is; else TMPDIR, else /var/tmp.
        partition_columns: Columns to take from a path's own ``name=value`` directories, also those
            above it, where the files lack them.
        types: Types for columns that have none of their own: of text files and of ``name=value``
            directories. What cannot be read so keeps the type its values suggest.
        declared: Columns of text files that must be there and be of the type in ``types``.
        filesystem: The pyarrow or fsspec file system that paths are on.
        utc_for: The target's columns, where timestamps without a zone are to be taken for UTC; None leaves
            them as they are.
        progress: called with the rows that were read, as ``"read source"``; how many there are is not known.

    Raises:
        InputError: this is no source, or it has no columns.
        SchemaMismatch: a column is there twice, or columns of a list do not meet.
        NotSupported: a Spark DataFrame.
        NothingMatched: a path without a data file.
        StorageError, DamagedTable: a file cannot be read.
    """
    reading = _Ingestion(tuple(partition_columns), types, filesystem, tuple(declared))
    report = None if progress is None else lambda rows: progress("read source", rows, 0)
    with Intake(spool_bytes, spool_dir, report=report) as intake:
        origin = reading.take_in(source, intake)
        tables = intake.finish()
        for table in tables:
            _check_columns(table.schema, origin)
        whole, respooled = _concatenate(tables, origin, spool_bytes, spool_dir)
        whole = whole if utc_for is None else to_utc_table(whole, utc_for)
        return IngestedSource(whole, origin=origin, spooled=intake.spooled or respooled)


def _check_columns(schema: pa.Schema, origin: str) -> None:
    if not schema.names:
        raise InputError(f"The source {origin} has no columns.", hint="give it those of the target.")
    twice = sorted(name for name, count in Counter(schema.names).items() if count > 1)
    if twice:
        raise SchemaMismatch(
            f"The source {origin} has more than one column {', '.join(map(repr, twice))}.",
            hint="rename or drop the others",
        )


def _concatenate(
    tables: list[pa.Table], origin: str, spool_bytes: int, spool_dir: str | os.PathLike[str] | None
) -> tuple[pa.Table, bool]:
    """The parts as one table, and whether some of it was spooled for that."""
    schema = tables[0].schema
    if any(not table.schema.equals(schema, check_metadata=True) for table in tables):
        schema = unify_schemas([table.schema for table in tables], operation="source", path=origin)
    size = sum(table.nbytes for table in tables)
    if size <= spool_bytes:
        tables = [_conform(table, schema, origin) for table in tables]
        return combine(pa.concat_tables(tables)), False
    # Larger than the limit: only parts with another schema are copied, and those into a spool.
    whole = []
    respooled = False
    for table in tables:
        if table.schema.equals(schema):
            whole.append(table.replace_schema_metadata(schema.metadata))
            continue
        with Intake(0, spool_dir) as intake:
            intake.add(schema, conform_batches(table, schema, "source", origin), as_is=True)
            whole += intake.finish()
            respooled = respooled or intake.spooled
    return pa.concat_tables(whole), respooled


def _conform(table: pa.Table, schema: pa.Schema, origin: str) -> pa.Table:
    if table.schema.equals(schema, check_metadata=True):
        return table
    return conform_table(table, schema, operation="source", path=origin)


@dataclass(frozen=True, slots=True)
class _Ingestion:
    """How to take in one source, and the sources inside a list."""

    partition_columns: tuple[str, ...]
    types: pa.Schema | None
    filesystem: Any
    declared: tuple[str, ...] = ()

    def take_in(self, source: Any, intake: Intake) -> str:
        """Feed a source to the intake; a short description of it."""
        origin = _describe_origin(source)
        _refuse_spark(source, origin)
        dataset = sys.modules.get("pyarrow.dataset")  # where it is not imported, the source is no dataset
        if isinstance(source, (str, os.PathLike)):
            return self._take_path(source, intake)
        if isinstance(source, pa.RecordBatch):
            source = pa.Table.from_batches([source])
        if isinstance(source, Mapping):
            source = _from_columns(source, origin)
        if isinstance(source, pa.Table):
            _take_table(source, intake)
        elif isinstance(source, pa.RecordBatchReader):
            intake.add(source.schema, source)
        elif dataset is not None and isinstance(source, dataset.Dataset):
            reader = source.scanner().to_reader()
            intake.add(reader.schema, reader)
        elif dataset is not None and isinstance(source, dataset.Scanner):
            reader = source.to_reader()
            intake.add(reader.schema, reader)
        elif hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
            _take_protocol(source, intake, origin)
        elif isinstance(source, (list, tuple)):
            return self._take_list(source, intake)
        elif isinstance(source, Iterable) and not isinstance(source, (bytes, bytearray, memoryview, set)):
            _take_batches(source, intake, origin)
        else:
            raise _make_source_error(origin)
        return origin

    def _take_list(self, sources: Sequence[Any], intake: Intake) -> str:
        if not sources:
            raise InputError(
                "The source is an empty list, which has no schema.", hint="pass a table with no rows"
            )
        if all(isinstance(row, Mapping) for row in sources):
            _take_table(_from_rows(sources), intake)
            return f"list of {len(sources)} dicts"
        names = [self.take_in(one, intake) for one in sources]
        return names[0] if len(names) == 1 else f"list of {len(names)} sources ({names[0]}, ...)"

    def _take_path(self, path: str | os.PathLike[str], intake: Intake) -> str:
        shown = redact(to_path_text(path))
        every = tuple(end for ends in SUFFIXES.values() for end in ends)
        try:
            files = find_input_files(path, filesystem=self.filesystem, suffixes=every)
        except NothingMatched as error:
            raise NothingMatched(
                f"no source: {error.message}",
                path=shown,
                hint=error.hint
                or "a source given as text is a path, URL or glob of Parquet, Arrow, CSV or JSON files",
            ) from error
        kind = _check_one_format(files, shown)
        partitions = parse_partition_scalars(files, kind, columns=self.partition_columns, types=self.types)
        types = self.types
        if kind in ("csv", "json") and len(files) > 1:
            # Their types are inferred, so files have to be sampled before any of them can be read.
            types = unify_text_types([open_stream(file, kind, types=types)[0] for file in files], types)
        for file, scalars in zip(files, partitions, strict=True):
            schema, batches = open_stream(file, kind, types=types)
            self._check_declared(schema, file, kind)
            extra = {name: scalar for name, scalar in scalars.items() if name not in schema.names}
            if extra:
                fields = [pa.field(name, scalar.type) for name, scalar in extra.items()]
                schema = pa.schema([*schema, *fields], schema.metadata)
                batches = _with_constants(batches, extra)
            intake.add(schema, batches)
        if files[0].shown == shown:
            return shown
        return f"{shown} ({len(files)} {kind if kind in ('parquet', 'arrow') else kind.upper()} files)"

    def _check_declared(self, schema: pa.Schema, file: InputFile, kind: Format) -> None:
        """Refuse a text file whose columns are not what the caller declared."""
        if not self.declared:
            return
        if kind not in ("csv", "json"):
            raise InputError(
                f"columns= declares the types of text files, and {file.shown} has its own.", path=file.shown
            )
        if kind == "csv":
            check_columns(self.declared, schema.names, operation="source", path=file.shown)
        for field in schema:
            if field.name in self.declared and get_unreadable_reason(field):
                raise SchemaMismatch(
                    f"column {field.name!r} is not what columns= says: {get_unreadable_reason(field)}.",
                    path=file.shown,
                    hint="correct the value, or declare another type.",
                )


def _with_constants(
    batches: Iterable[pa.RecordBatch], constants: Mapping[str, pa.Scalar]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for name, scalar in constants.items():
            batch = batch.append_column(name, pa.repeat(scalar, batch.num_rows))
        yield batch


def _check_one_format(files: list[InputFile], shown: str) -> Format:
    counts = Counter(detect_file_format(file) for file in files)
    kind = detect_file_format(files[0])
    if len(counts) > 1:
        listed = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise InputError(
            f"{shown} holds files of several formats: {listed}.",
            path=shown,
            hint="name the ones you mean with a glob, such as " + repr(f"{shown}/**/*{SUFFIXES[kind][0]}"),
        )
    return kind


def _describe_origin(source: Any) -> str:
    kind = type(source)
    package = kind.__module__.partition(".")[0]
    name = kind.__qualname__
    return name if package in ("builtins", "pyarrow") else f"{package.lstrip('_')}.{name}"


def _make_source_error(origin: str) -> InputError:
    lazy = origin.endswith("LazyFrame")
    hint = "pass what its .collect() gives" if lazy else f"pass {_TAKEN}"
    return InputError(f"A source cannot be of type {origin}.", hint=hint)


def _refuse_spark(source: Any, origin: str) -> None:
    if any(kind.__module__.partition(".")[0] == "pyspark" for kind in type(source).__mro__):
        raise NotSupported(
            f"{origin} cannot be taken in by this engine: its rows would all have to come to one machine.",
            hint='use engine="spark", or pass the DataFrame\'s toArrow() where it is small',
        )


def _take_table(table: pa.Table, intake: Intake) -> None:
    if tidy_schema(table.schema).equals(table.schema):
        intake.keep(table)
    else:
        intake.add(table.schema, table.to_batches())


def _take_protocol(source: Any, intake: Intake, origin: str) -> None:
    if _is_pandas(source) and _hides_index(source):
        source = source.reset_index()
    try:
        if hasattr(source, "__arrow_c_stream__"):
            reader = pa.RecordBatchReader.from_stream(source)
        else:
            batch = pa.record_batch(source)
            reader = pa.RecordBatchReader.from_batches(batch.schema, [batch])
    except IntarsiaError:
        raise
    except (ValueError, TypeError) as error:  # pyarrow's own, and pandas' of columns with one name
        raise InputError(f"{origin} is no table of columns: {error}", hint=f"pass {_TAKEN}") from error
    index = _find_unnamed_index(source, reader.schema)
    if not index:
        intake.add(reader.schema, reader)
        return
    # An index without a name is how pandas numbers its rows, and no data.
    names = [name for name in reader.schema.names if name not in index]
    schema = pa.schema([reader.schema.field(name) for name in names])
    intake.add(schema, (batch.select(names) for batch in reader))


def _is_pandas(source: Any) -> bool:
    return type(source).__module__.partition(".")[0] == "pandas"


def _hides_index(frame: Any) -> bool:
    """Whether pandas leaves an index with a name, which is data, out of its stream: one of equal steps."""
    index = getattr(frame, "index", None)
    name = getattr(index, "name", None)
    return type(index).__name__ == "RangeIndex" and name is not None and name not in frame.columns


def _find_unnamed_index(source: Any, schema: pa.Schema) -> list[str]:
    if not _is_pandas(source):
        return []
    return [name for name in schema.names if re.fullmatch(r"__index_level_\d+__", name)]


def _take_batches(batches: Iterable[Any], intake: Intake, origin: str) -> None:
    """Runs of batches with one schema become parts, which meet like the sources of a list."""
    rest = enumerate(batches)
    pending = next(rest, None)
    if pending is None:
        raise InputError(
            f"The source {origin} gave no record batch, so it has no schema.",
            hint="pass a RecordBatchReader, or a Table without rows.",
        )
    while pending is not None:
        schema = _check_batch_schema(pending, origin)
        following: list[tuple[int, Any]] = []

        def run(first: tuple[int, Any], schema: pa.Schema, following: list[tuple[int, Any]]) -> Iterator[Any]:
            yield from _list_batches(first[1])
            for found in rest:
                if not _check_batch_schema(found, origin).equals(schema):
                    following.append(found)
                    return
                yield from _list_batches(found[1])

        intake.add(schema, run(pending, schema, following))
        pending = following[0] if following else None


def _check_batch_schema(numbered: tuple[int, Any], origin: str) -> pa.Schema:
    number, found = numbered
    if not isinstance(found, (pa.RecordBatch, pa.Table)):
        raise InputError(
            f"Element {number} of the source {origin} is no record batch but a {_describe_origin(found)}.",
            hint=f"pass {_TAKEN}",
        )
    return found.schema


def _list_batches(found: Any) -> list[pa.RecordBatch]:
    return found.to_batches() if isinstance(found, pa.Table) else [found]


def _from_columns(columns: Mapping[Any, Any], origin: str) -> pa.Table:
    try:
        return pa.table({str(name): values for name, values in columns.items()})
    except (OverflowError, UnicodeEncodeError) as error:
        raise _make_value_error(columns, origin) from error
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError) as error:
        raise InputError(
            f"The columns of the {origin} are no table: {error}",
            hint="give every column as many values as the others, all of one type.",
        ) from error


def _make_value_error(columns: Mapping[Any, Any], origin: str) -> InputError:
    """The error for a number or a text that no Arrow value holds, found by trying them one by one."""
    for name, values in columns.items():
        for row, value in enumerate(values):
            try:
                pa.array([value])
            except (OverflowError, UnicodeEncodeError):
                return InputError(
                    f"Column {str(name)!r} of the {origin} has a value in row {row} that cannot be held:"
                    f" {elide(value)}.",
                    hint="an integer has 64 bits, text is Unicode; give larger numbers as decimal.Decimal.",
                )
    return InputError(f"The columns of the {origin} have names that are not Unicode text.")


def _from_rows(rows: Sequence[Mapping[Any, Any]]) -> pa.Table:
    # pa.Table.from_pylist would drop every column that the first row lacks.
    names = dict.fromkeys(name for row in rows for name in row)
    return _from_columns(
        {name: [row.get(name) for row in rows] for name in names}, f"list of {len(rows)} dicts"
    )
