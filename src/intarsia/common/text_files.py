"""CSV and JSON files as Arrow, in the types that are known; a bad value is reported with its line."""

from __future__ import annotations

import copy
import csv
import io
import json
import lzma
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from intarsia.common.log import is_store_error, redact
from intarsia.common.paths import InputFile
from intarsia.common.schema import UNREADABLE, is_nested
from intarsia.common.types import find_lacking_type
from intarsia.errors import DamagedTable, IntarsiaError, StorageError

__all__ = [
    "COMPRESSED",
    "is_json_array",
    "read_csv_file",
    "read_json_file",
    "stream_text",
    "translate_file_errors",
]

COMPRESSED = ("", ".gz", ".bz2", ".zst", ".lz4", ".br", ".xz")
"""What may follow the ending of a text file; PyArrow knows all of them but the last."""

_WHOLE_TEXT_BYTES = 256 << 20
"""A text file up to this size is read as a whole, so that its types are inferred from every row."""
_BLOCK = 8 << 20
_STREAM_BLOCK = 64 << 20
_BAD_VALUE = re.compile(r"In CSV column #(\d+): (?:Row #(\d+): )?(.*)", re.DOTALL)
_SPACE = re.compile(r"[ \t\n\r]*")
_BAD_ROW = re.compile(r"CSV parse error: (?:Row #(\d+): )?(.*)", re.DOTALL)


@contextmanager
def translate_file_errors(file: InputFile, kind: str) -> Iterator[None]:
    """Convert errors of reading a file to StorageError, NotSupported or DamagedTable with the file's path."""
    try:
        yield
    except IntarsiaError:
        raise
    except OSError as error:
        raise StorageError(
            f"Could not read {file.shown}: {error.strerror or error}", errno=error.errno, path=file.shown
        ) from error
    except (pa.ArrowException, ValueError) as error:
        if (lacking := find_lacking_type(file.shown, error)) is not None:
            raise lacking from error
        raise DamagedTable(
            f"{file.shown} cannot be read as {kind} file: {error}",
            path=file.shown,
            hint="repair or remove the file",
        ) from error
    except Exception as error:  # the clients of stores have errors of their own
        if not is_store_error(error):
            raise
        raise StorageError(f"Could not read {file.shown}: {redact(str(error))}", path=file.shown) from error


def open_text(file: InputFile) -> pa.NativeFile:
    """The file's text, decompressed as its name says."""
    if file.location.lower().endswith(".xz"):
        raw = file.filesystem.open_input_stream(file.location, compression=None)
        return pa.PythonFile(lzma.LZMAFile(raw), mode="r")
    return file.filesystem.open_input_stream(file.location)


def stream_text(
    file: InputFile, kind: Literal["csv", "json"], *, types: pa.Schema | None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema of a text file and its batches; one of up to 256 MiB is held as a whole."""
    if file.size > _WHOLE_TEXT_BYTES and not (kind == "json" and is_json_array(file)):
        return _open_large_stream(file, kind, types)
    table = (read_csv_file if kind == "csv" else read_json_file)(file, types=types)
    return table.schema, iter(table.to_batches())


def _choose_delimiter(file: InputFile) -> str:
    return "\t" if ".tsv" in file.location.lower().rpartition("/")[2] else ","


def _open_large_stream(
    file: InputFile, kind: Literal["csv", "json"], types: pa.Schema | None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    def open_reader(explicit: pa.Schema | None) -> Any:
        source = open_text(file)
        if kind == "csv":
            options = _make_csv_options(
                {}, True, block_size=_STREAM_BLOCK, explicit=explicit, delimiter=_choose_delimiter(file)
            )
            return pacsv.open_csv(source, **options)
        return pajson.open_json(
            source, **_make_json_options({}, True, block_size=_STREAM_BLOCK, explicit=explicit)
        )

    with translate_file_errors(file, f"a {kind.upper()}"):
        reader = open_reader(None)
        explicit = _merge_known_types(reader.schema, types)
        if explicit is not None:
            reader = open_reader(explicit)

    def read_batches() -> Iterator[pa.RecordBatch]:
        with translate_file_errors(file, f"a {kind.upper()}"):
            yield from reader

    return reader.schema, read_batches()


def _merge_known_types(inferred: pa.Schema, types: pa.Schema | None) -> pa.Schema | None:
    """The inferred schema with the types that are known better; None when there is none."""
    if types is None:
        return None
    known = {field.name: field.type for field in types if not is_nested(field.type)}
    better = pa.schema([field.with_type(known.get(field.name, field.type)) for field in inferred])
    return None if better.equals(inferred) else better


def _with_types(
    read: Callable[[pa.Schema | None], pa.Table],
    types: pa.Schema | None,
    reason: Callable[[pa.Field, Exception], str],
) -> pa.Table:
    """Read with the known types; a column that cannot be read so stays as inferred, with the reason noted."""
    table = read(None)
    explicit = _merge_known_types(table.schema, types)
    if explicit is None:
        return table
    try:
        return read(explicit)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    good, notes = table.schema, {}
    exact: dict[int, pa.ChunkedArray] = {}
    for number, field in enumerate(explicit):
        inferred = table.schema.field(number).type
        if field.type == inferred:
            continue
        try:
            read(table.schema.set(number, field))
            good = good.set(number, field)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if pa.types.is_integer(field.type) and pa.types.is_floating(inferred):
                try:
                    exact[number] = _read_through_decimals(read, table.schema, number, field)
                    continue
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                    pass
            notes[number] = reason(field, error)
    found = table if good.equals(table.schema) else read(good)
    for number, column in exact.items():
        found = found.set_column(number, explicit.field(number), column)
    schema = found.schema
    for number, note in notes.items():
        schema = schema.set(number, schema.field(number).with_metadata({UNREADABLE: note}))
    return found.cast(schema)


def _read_through_decimals(
    read: Callable[[pa.Schema | None], pa.Table], schema: pa.Schema, number: int, field: pa.Field
) -> pa.ChunkedArray:
    """Integers written as 1.0 or 1e3, read as decimals: as float64, those above 2**53 would be rounded."""
    as_decimal = schema.set(number, field.with_type(pa.decimal128(38, 18)))  # 20 digits before the point
    return read(as_decimal).column(number).cast(field.type)


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
        with open_text(file) as source:
            return pacsv.read_csv(source, **make_options(explicit, block_size, use_threads))

    def make_options(explicit: pa.Schema | None, block_size: int, threads: bool) -> dict[str, Any]:
        return _make_csv_options(
            options or {},
            threads,
            block_size=block_size,
            explicit=explicit,
            delimiter=_choose_delimiter(file),
        )

    def explain_error(field: pa.Field, error: Exception) -> str:
        return _explain_bad_value(file, field, error, make_options(pa.schema([field]), 1 << 30, False))

    with translate_file_errors(file, "a CSV"):
        try:
            return _with_types(_retry_larger_blocks(read, file), types, explain_error)
        except pa.ArrowInvalid as error:
            raise _make_bad_row_error(file, error, make_options(None, 1 << 30, False)) from error


def _make_csv_options(
    given: Mapping[str, Any],
    use_threads: bool,
    *,
    block_size: int,
    explicit: pa.Schema | None,
    delimiter: str,
) -> dict[str, Any]:
    # Only an empty field is NULL: "NA" and "null" may be someone's data. As Spark and DuckDB read it.
    options: dict[str, Any] = {
        "convert_options": pacsv.ConvertOptions(
            null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
        "read_options": pacsv.ReadOptions(block_size=block_size),
        # Otherwise a file is split at any line break, also in a quoted field: rows would be refused or wrong.
        "parse_options": pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
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
    lines = _convert_array_to_lines(file) if is_json_array(file) else None
    if lines is not None and not len(lines):
        return pa.table({})

    def read(explicit: pa.Schema | None, block_size: int = _BLOCK) -> pa.Table:
        if lines is not None:
            source = pa.BufferReader(lines)
        else:
            source = open_text(file)
        with source:
            found = pajson.read_json(
                source,
                **_make_json_options(
                    options or {}, use_threads, block_size=block_size, explicit=_as_text(explicit)
                ),
            )
            return found if explicit is None else found.cast(explicit)

    def explain_error(field: pa.Field, error: Exception) -> str:
        return f"{file.shown} cannot be read so: {error}"

    with translate_file_errors(file, "a JSON"):
        return _with_types(_retry_larger_blocks(read, file), types, explain_error)


def _as_text(schema: pa.Schema | None) -> pa.Schema | None:
    """The schema with text for dates and times, which PyArrow's parser of JSON does not know."""
    if schema is None:
        return None
    known = [
        field.with_type(pa.string())
        if pa.types.is_date(field.type) or pa.types.is_time(field.type)
        else field
        for field in schema
    ]
    return pa.schema(known)


def _make_json_options(
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


def _retry_larger_blocks(
    read: Callable[..., pa.Table], file: InputFile
) -> Callable[[pa.Schema | None], pa.Table]:
    """Read again with larger blocks where a row is longer than one."""

    def read_again(explicit: pa.Schema | None) -> pa.Table:
        size = _BLOCK
        while True:
            try:
                return read(explicit, size)
            except pa.ArrowInvalid as error:
                if "straddl" not in str(error) or size >= 1 << 30:
                    raise
                size *= 8

    return read_again


def is_json_array(file: InputFile) -> bool:
    """Whether a JSON file is one array, rather than an object per line."""
    with translate_file_errors(file, "a JSON"), open_text(file) as source:
        while block := source.read(4096):
            text = block.removeprefix(b"\xef\xbb\xbf").lstrip()
            if text:
                return bool(text.startswith(b"["))
    return False


def _convert_array_to_lines(file: InputFile) -> bytes:
    """The objects of an array one per line, so that both forms get their types from one parser.

    Each is the text that stands in the file: as a Python float a number would lose digits.
    """
    with translate_file_errors(file, "a JSON"), open_text(file) as source:
        data = source.read()
        text = data.decode(json.detect_encoding(data), "surrogatepass").removeprefix("\ufeff")
        lines: list[str] = []
        wrong: list[int] = []
        for number, (start, end) in enumerate(_iterate_elements(text)):
            if text[start] != "{":
                wrong.append(number)
            lines.append(text[start:end].replace("\r", " ").replace("\n", " ") + "\n")
        if wrong:
            raise DamagedTable(
                f"{file.shown} is an array with {len(wrong)} elements that are not objects, "
                f"the first is element {wrong[0]}.",
                path=file.shown,
            )
        return "".join(lines).encode()


def _iterate_elements(text: str) -> Iterator[tuple[int, int]]:
    """Where each element of an array begins and ends; raises JSONDecodeError, a ValueError."""
    decoder = json.JSONDecoder()
    place = _skip_space(text, _skip_space(text, 0) + 1)
    while text[place : place + 1] != "]":
        _, end = decoder.raw_decode(text, place)
        yield place, end
        place = _skip_space(text, end)
        if text[place : place + 1] == ",":
            place = _skip_space(text, place + 1)
            if text[place : place + 1] == "]":
                raise json.JSONDecodeError("Illegal trailing comma before end of array", text, place)
        elif text[place : place + 1] != "]":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, place)
    if (place := _skip_space(text, place + 1)) != len(text):
        raise json.JSONDecodeError("Extra data", text, place)


def _skip_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    assert found is not None
    return found.end()


def _explain_bad_value(file: InputFile, field: pa.Field, error: Exception, options: dict[str, Any]) -> str:
    """Which value of a column, in which line, is not of its type; found by reading once more, in order."""
    try:
        with open_text(file) as source:
            options["convert_options"].include_columns = [field.name]
            pacsv.read_csv(source, **options)
    except pa.ArrowInvalid as again:
        error = again
    found = _BAD_VALUE.match(str(error))
    if found is None:
        return f"{file.shown} cannot be read so: {error}"
    line = _find_line(file, int(found[2]), options) if found[2] else None
    value = re.search(r"(?:invalid value|The string) '(.*)'", found[3], re.DOTALL)
    said = f"{value[1]!r} is no {field.type}" if value else found[3]
    return f"{said}, in line {line} of {file.shown}" if line else f"{said}, in {file.shown}"


def _make_bad_row_error(file: InputFile, error: pa.ArrowInvalid, options: dict[str, Any]) -> Exception:
    """The error for a row that has more or fewer fields than the header, with its line."""
    found = _BAD_ROW.match(str(error))
    if found is None:
        return error
    try:
        with open_text(file) as source:
            pacsv.read_csv(source, **options)
    except pa.ArrowInvalid as again:
        found = _BAD_ROW.match(str(again)) or found
    number = _find_line(file, int(found[1]), options) if found[1] else None
    line = f"line {number}: " if number else ""
    return DamagedTable(
        f"{file.shown} cannot be read as a CSV file: {line}{found[2].splitlines()[0]}",
        path=file.shown,
        hint="correct that line; fields with the delimiter or a line break in them are quoted",
    )


def _find_line(file: InputFile, row: int, options: Mapping[str, Any]) -> int | None:
    """The line in which a row begins; empty lines are no rows, and a quoted field may have several.

    None where a field before it is longer than Python's reader takes.
    """
    with open_text(file) as source, io.TextIOWrapper(source, "utf-8", errors="replace", newline="") as text:
        lines = csv.reader(text, delimiter=options["parse_options"].delimiter)
        begins = 1
        try:
            for fields in lines:
                row -= bool(fields)
                if not row:
                    return begins
                begins = lines.line_num + 1
        except csv.Error:
            return None
    return begins
