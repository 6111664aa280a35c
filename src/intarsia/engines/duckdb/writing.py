"""Rows of a query into staged Parquet files, by DuckDB's own writer; knows what that writer cannot keep."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.fs as pafs

from intarsia.common.disk import hasten
from intarsia.core.change import StagedFile
from intarsia.core.files import DataFile
from intarsia.core.layout import Layout, layout_of
from intarsia.engines.duckdb.describing import describe, stored_otherwise
from intarsia.engines.duckdb.scan import Scan
from intarsia.engines.duckdb.session import Session
from intarsia.engines.duckdb.text import POS, name, text
from intarsia.engines.duckdb.types import numbers_fewer, sql_type, unwritable
from intarsia.errors import DamagedTable, StorageError

__all__ = ["PROVES_NOT_NULL", "Target", "beyond_writer", "declared_order", "optional", "unkept_notes"]

_CODECS = {"none": "uncompressed", "lz4_raw": "lz4"}
_LEAST_ROW_GROUP = 2_048
_SAMPLE_ROWS = 1 << 16
_LEAST_DICTIONARY = 1_024
_PAYS = 0.25
"""Distinct values among all, up to which a dictionary makes a column smaller."""
PROVES_NOT_NULL = int(duckdb.__version__.split(".", 1)[0]) >= 2
"""Whether the writer makes columns NOT NULL of which it knows that they hold no NULL."""
_CONFUSES_ZEROS = not PROVES_NOT_NULL
"""Whether -0.0 and 0.0 are one value to the writer's dictionaries, as they are before 2.0."""


@dataclass(frozen=True, slots=True)
class Target:
    """One file to be written."""

    location: str
    filesystem: pafs.FileSystem = field(repr=False)
    schema: pa.Schema
    """The columns it stores."""
    layout: Layout
    metadata: Mapping[bytes, bytes]
    dictionary: int | None = None
    """How many distinct values a dictionary may have; None leaves it to DuckDB."""

    def write(
        self,
        session: Session,
        query: str,
        path: str,
        partition: Mapping[str, Any],
        *,
        rows: int,
        kept: Collection[str] = (),
    ) -> StagedFile:
        """The file that comes in a place, staged, and described as the layout's files; else as :meth:`copy`.

        Columns that are ``kept`` are described exactly so. Raises OtherTypes where that cannot be.
        """
        self.copy(session, query, path, rows=rows)
        describe(self.location, self.filesystem, self.schema, self.layout, exactly=kept)
        try:
            size = self.filesystem.get_file_info(self.location).size
        except OSError as error:
            raise StorageError(
                f"Cannot find a staged file: {error}", errno=error.errno, path=self.location
            ) from error
        hasten(self.filesystem, self.location)
        return StagedFile(self.location, path, rows, size or 0, dict(partition))

    def copy(self, session: Session, query: str, path: str, *, rows: int) -> None:
        """Write the rows of a query whose columns are the target's, in its order.

        Raises DamagedTable where they are not as many as they have to be.
        """
        sql = f"COPY ({query}) TO {session.target(self.filesystem, self.location)} ({self._options()})"
        written = session.rows(sql)[0][0]
        if written != rows:
            raise DamagedTable(
                f"{path} would have {written:,} rows, but {rows:,} were to be written.",
                path=path,
                hint="nothing was changed; check the files with inspect() and run again.",
            )

    def _options(self) -> str:
        codec = self.layout.compression
        options = [
            "FORMAT parquet",
            f"COMPRESSION {text(_CODECS.get(codec, codec))}",
            f"ROW_GROUP_SIZE {max(self.layout.row_group_rows, _LEAST_ROW_GROUP)}",
            f"KV_METADATA {{{', '.join(f'{text(k)}: {v}' for k, v in self._notes())}}}",
            f"WRITE_BLOOM_FILTER {str(bool(self.layout.bloom_filters)).lower()}",
            "USE_TMP_FILE false",
        ]
        if _CONFUSES_ZEROS and any(_holds_floats(each.type) for each in self.schema):
            options.append("DICTIONARY_SIZE_LIMIT 0")
        elif self.dictionary is not None:
            options.append(f"DICTIONARY_SIZE_LIMIT {self.dictionary}")
        return ", ".join(options)

    def _notes(self) -> Iterable[tuple[str, str]]:
        notes = {**(self.schema.metadata or {}), **self.metadata}
        # Readers that find a schema of Arrow take the file's metadata from it, and from nowhere else.
        whole = self.schema.with_metadata(notes or None)
        notes[b"ARROW:schema"] = base64.b64encode(whole.serialize().to_pybytes())
        for known, value in notes.items():
            yield known.decode(), _bytes(value)


def _holds_floats(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _holds_floats(kind.value_type)
    parts = [kind.field(number) for number in range(kind.num_fields)]
    return bool(pa.types.is_floating(kind)) or any(_holds_floats(part.type) for part in parts)


def _bytes(value: bytes) -> str:
    return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::BLOB"


def optional(schema: pa.Schema, rows: str) -> str:
    """The rows of a query, with no column NOT NULL that is not so in the schema.

    The writer looks at what can be known of a column, so each gets a NULL that might be there. The
    query's columns are the schema's and the row's place.
    """
    if not PROVES_NOT_NULL or not any(each.nullable for each in schema):
        return rows
    if all(each.nullable for each in schema):
        nothing = ", ".join(f"CAST(NULL AS {sql_type(each.type)})" for each in schema)
        return f"({rows}) UNION ALL (SELECT {nothing}, -1 WHERE random() < -1)"
    columns = [
        f"CASE WHEN {name(POS)} >= 0 THEN {name(each.name)} END AS {name(each.name)}"
        if each.nullable
        else name(each.name)
        for each in schema
    ]
    return f"SELECT {', '.join(columns)}, {name(POS)} FROM ({rows})"


def declared_order(layout: Layout, schema: pa.Schema) -> list[str]:
    """The order that a layout declares, as terms of SQL."""
    return [
        f"{name(column)} {'DESC' if way == 'descending' else 'ASC'}"
        f" NULLS {'FIRST' if nulls == 'at_start' else 'LAST'}"
        for column, way, nulls in layout.sort_keys(schema)
    ]


def distinct_values(scan: Scan, files: Sequence[DataFile]) -> int | None:
    """How large the dictionaries of such files are, at most, so that DuckDB tries no larger ones in vain."""
    columns = [each.name for each in scan.schema if not pa.types.is_nested(each.type)]
    columns = [each for each in columns if sql_type(scan.schema.field(each).type) is not None]
    if not files or not columns:
        return None
    counted = ", ".join(f"approx_count_distinct({name(each)})" for each in columns)
    head = f"SELECT * FROM ({scan.sql(columns, files)}) LIMIT {_SAMPLE_ROWS}"
    rows, *distinct = scan.session.rows(f"SELECT count(*), {counted} FROM ({head})")[0]
    return max([_LEAST_DICTIONARY, *(2 * count for count in distinct if count <= rows * _PAYS)])


def beyond_writer(
    schema: pa.Schema,
    layout: Layout,
    *,
    rows: int,
    file: DataFile | None = None,
    tabled: bool = False,
    row_group_size: int | None = None,
) -> str | None:
    """Why DuckDB's writer cannot write so many rows as such a file; None if it can, but for what notes tell.

    ``tabled`` says that the rows come from a table of DuckDB: of its columns the writer knows, from version
    2 on, which hold no NULL. ``file`` is the one it replaces, or is like. ``row_group_size`` is what the
    caller asks for.
    """
    if row_group_size is not None and row_group_size < rows and not _holds(row_group_size):
        return f"DuckDB's writer would not hold row_group_size={row_group_size:,}"
    changed = unwritable(schema)
    if changed:
        return f"DuckDB's writer would change the type of {', '.join(changed)}"
    proven = tabled and PROVES_NOT_NULL
    for each in schema:
        if not each.nullable and (pa.types.is_nested(each.type) or not proven):
            return f"DuckDB's writer would not leave {each.name!r} NOT NULL"
        if numbers_fewer(each.type, rows):
            return f"{each.name!r} ({each.type}) may have more values than a dictionary of its type"
    if layout.int96_timestamps:
        return "timestamps are stored as INT96"
    if file is not None and file.footer is not None:
        other = stored_otherwise(schema, file.footer)
        if other is not None:
            return f"DuckDB's writer would store {other!r} as another physical type"
        known = file.footer.schema.to_arrow_schema().names
    else:
        known = []
    new = [each for each in schema if each.name not in known]
    if any(each.metadata and b"PARQUET:field_id" in each.metadata for each in new):
        return "columns have field ids"
    try:
        for known in layout.key_value_metadata:
            known.decode()
    except UnicodeDecodeError:
        return "its metadata has a key that is no text"
    return None


def _holds(row_group_size: int) -> bool:
    """Whether every row group has so many rows; before version 2 the last ones may come together."""
    return PROVES_NOT_NULL and row_group_size % _LEAST_ROW_GROUP == 0


def unkept_notes(files: Sequence[DataFile], row_group_size: int | None = None) -> tuple[str, ...]:
    """What the plan says of files that DuckDB writes anew, or as the ones beside them."""
    layouts = [layout_of(file.footer) for file in files if file.footer is not None]
    lost = ["page checksums"]
    cut = any(file.footer is not None and file.footer.num_row_groups > 1 for file in files)
    if cut and row_group_size is None:
        lost.append(f"the rows of each row group (it fills them by {_LEAST_ROW_GROUP:,})")
    if any(layout.page_index for layout in layouts):
        lost.append("the page index")
    if any(layout.bloom_filters for layout in layouts):
        lost.append("Bloom filters (it makes those it thinks fit)")
    if any(layout.sorting for layout in layouts):
        lost.append("the declaration of an order (rows are kept in it)")
    if any(layout.compression_of for layout in layouts):
        lost.append("codecs of single columns")
    schemas = [file.footer.schema.to_arrow_schema() for file in files if file.footer is not None]
    if _CONFUSES_ZEROS and any(_holds_floats(each.type) for schema in schemas for each in schema):
        lost.append("dictionaries (in which this version takes -0.0 for 0.0)")
    return (f"DuckDB's writer does not keep {_and(lost)}.",)


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
