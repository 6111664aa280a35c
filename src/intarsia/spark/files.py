"""Data files that Spark's own Parquet reader reads as the kernel does, and DataFrames of them."""

from __future__ import annotations

import operator
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from intarsia.common.partitions import parse_hive_partition_path, partition_text
from intarsia.common.paths import get_local_path
from intarsia.core.expr import And, Column, Compare, Expr, In, IsNull, Literal, Not, Or
from intarsia.core.expr.nodes import CompareOp
from intarsia.core.snapshot import DataFile, Snapshot

__all__ = ["NativeFiles", "has_condition", "make_condition", "read_native", "select_column"]

_GLOB = re.compile(r"([\\{}\[\]*?])")
_SPARK_VERSION = b"org.apache.spark.version"
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_OLDEST_SPARK = 3
"""The first version that writes dates and times in the calendar that everybody else has."""
_CODECS = frozenset({"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "LZ4", "LZ4_RAW"})
"""What Spark has without further jars."""
_ENCODINGS = frozenset(
    {
        *("PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"),
        *("DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"),
    }
)
"""What Spark's reader of batches decodes: not BYTE_STREAM_SPLIT."""
_UNIQUE = re.compile(r"[0-9a-f]{8}(-?)(?:[0-9a-f]{4}\1){3}[0-9a-f]{12}")
"""What writers put into the names of files, so that no two have one."""
_OPTIONS = {
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}


@dataclass(slots=True)
class NativeFiles:
    """Tells which files of a snapshot Spark's reader reads exactly as the kernel does, in some columns.

    These are files that nobody replaces (of Iceberg tables, or hard links), without deleted rows, whose
    columns have the types that Spark itself would write for them. Everything else is the kernel's.
    """

    snapshot: Snapshot
    columns: Sequence[str]
    lasting: bool = False
    """Whether only files count whose names nobody writes twice: others may write into a file anew, links or
    not."""
    is_possible: bool = field(init=False)
    base: str | None = field(default=None, init=False)
    """The directory that the paths of files are relative to, where partition columns are read from paths."""
    known: list[tuple[pq.ParquetSchema, bool]] = field(default_factory=list, init=False)
    """Schemas of files that were looked at."""

    def __post_init__(self) -> None:
        names = [name.casefold() for name in self.snapshot.schema.names]
        self.is_possible = (
            self.snapshot.stat is None
            and len(set(names)) == len(names)
            and get_local_path(self.snapshot.filesystem, "/") is not None
        )

    @property
    def path_columns(self) -> list[str]:
        """The partition columns, all of which Spark finds in paths."""
        return [] if self.snapshot.format.owns_schema else list(self.snapshot.partition_columns)

    def has(self, file: DataFile) -> bool:
        """Whether Spark reads a file exactly; one whose footer is not known is not."""
        if not self.is_possible or file.footer is None or _is_hidden(posixpath.basename(file.location)):
            return False
        if self.lasting and not _UNIQUE.search(posixpath.basename(file.path)):
            return False
        if file.scan_task is not None and (file.scan_task.has_deletes or file.partition):
            return False
        return (
            self._has_plain_metadata(file.footer)
            and self._has_schema(file)
            and self._has_paths(file)
            and self._has_encodings(file.footer)
        )

    def _has_plain_metadata(self, footer: pq.FileMetaData) -> bool:
        notes = footer.metadata or {}
        if any(key in notes for key in _LEGACY):
            return False
        major = notes.get(_SPARK_VERSION, b"").decode("utf-8", "replace").split(".")[0]
        return not major or (major.isdecimal() and int(major) >= _OLDEST_SPARK)

    def _has_schema(self, file: DataFile) -> bool:
        assert file.footer is not None
        schema = file.footer.schema
        for known, verdict in reversed(self.known):
            if known.equals(schema):
                return verdict
        verdict = self._compare_schema(file, schema)
        self.known.append((schema, verdict))
        return verdict

    def _compare_schema(self, file: DataFile, schema: pq.ParquetSchema) -> bool:
        physical = schema.to_arrow_schema()
        folded = [name.casefold() for name in physical.names]
        if len(set(folded)) != len(folded):
            return False
        leaves = {leaf.path: leaf for leaf in (schema.column(number) for number in range(len(schema)))}
        view = None
        if file.scan_task is not None:
            view = file.scan_task.project_columns(physical, self.snapshot.schema)
        for name in self.columns:
            if name in self.path_columns:
                if name.casefold() in folded:  # in the file and in its path, which have to agree
                    return False
                continue
            if view is not None and list(view.list_physical_columns([name])) != [name]:
                return False
            if name not in physical.names:
                if view is not None or name.casefold() in folded:
                    return False
                continue  # NULL, here and there
            wanted, leaf = self.snapshot.schema.field(name).type, leaves.get(name)
            if leaf is None or leaf.max_repetition_level or not _is_spark_type(leaf, wanted):
                return False
        return True

    def _has_encodings(self, footer: pq.FileMetaData) -> bool:
        """Whether Spark decompresses and decodes the columns of a file."""
        schema = footer.schema
        wanted = [number for number in range(len(schema)) if schema.column(number).path in self.columns]
        chunks = (
            footer.row_group(group).column(number)
            for group in range(footer.num_row_groups)
            for number in wanted
        )
        return all(
            chunk.compression in _CODECS and _ENCODINGS.issuperset(chunk.encodings) for chunk in chunks
        )

    def _has_paths(self, file: DataFile) -> bool:
        """Whether Spark reads the partition columns of a file from its path as they are here."""
        columns = self.path_columns
        if not columns:
            return True
        local = get_local_path(self.snapshot.filesystem, file.location)
        if local is None or not local.endswith(f"/{file.path}"):
            return False
        base = local.removesuffix(f"/{file.path}")
        if self.base not in (None, base):
            return False
        texts = parse_hive_partition_path(file.path)
        if list(texts) != columns or posixpath.dirname(file.path).count("/") + 1 != len(columns):
            return False
        if not all(
            _is_plain_value(file.partition.get(name), texts[name], self.snapshot.schema.field(name).type)
            for name in columns
        ):
            return False
        self.base = base
        return True


def read_native(
    spark: Any, files: Sequence[DataFile], native: NativeFiles, make_schema: Callable[[list[str]], Any]
) -> Any:
    """A DataFrame of files that :meth:`NativeFiles.has` has accepted; Spark prunes columns and row groups.

    Args:
        spark: the session, classic or Connect.
        files: at least one.
        native: what accepted them.
        make_schema: gives Spark's schema of columns by name.
    """
    stored = [name for name in native.columns if name not in native.path_columns]
    reader = spark.read.schema(make_schema([*stored, *native.path_columns])).options(**_OPTIONS)
    if native.base is not None:
        reader = reader.option("basePath", f"file://{native.base}")
    paths = [get_local_path(native.snapshot.filesystem, file.location) or "" for file in files]
    found = reader.parquet(*(f"file://{_GLOB.sub(_escape, path)}" for path in paths))
    return found.select(*(_select_comparable(found, name, native.snapshot.schema) for name in native.columns))


def _escape(found: re.Match[str]) -> str:
    return f"\\{found[1]}"


def _select_comparable(frame: Any, name: str, schema: pa.Schema) -> Any:
    quoted = select_column(frame, name)
    if not pa.types.is_floating(schema.field(name).type):
        return quoted
    from pyspark.sql import functions

    # Bounds in Parquet files leave NaN out, which is above every number in Spark: no filter on the column
    # may choose row groups.
    return functions.nanvl(quoted, quoted).alias(name)


def select_column(frame: Any, name: str) -> Any:
    """A column of a DataFrame by its name, whatever characters that has."""
    return frame[f"`{name.replace('`', '``')}`"]


def has_condition(where: Expr, schema: pa.Schema) -> bool:
    """Whether Spark decides a resolved condition as the kernel does: comparisons of columns with constants.

    Not those of floating-point numbers, where NaN differs, and not what is calculated.
    """
    match where:
        case And(left, right) | Or(left, right):
            return has_condition(left, schema) and has_condition(right, schema)
        case Not(operand):
            return has_condition(operand, schema)
        case IsNull(Column() as column):
            return len(column.path) == 1 and column.path[0] in schema.names
        case Column():
            return _find_type(where, schema) == pa.bool_()
        case Literal(value, dtype):
            return value is not None and pa.types.is_boolean(dtype)
        case Compare(_, Column() as column, Literal() as literal):
            return _is_comparable(literal, _find_type(column, schema))
        case In(Column() as column, items):
            dtype = _find_type(column, schema)
            return all(isinstance(item, Literal) and _is_comparable(item, dtype) for item in items)
        case _:
            return False


def _find_type(column: Column, schema: pa.Schema) -> pa.DataType | None:
    if len(column.path) != 1 or column.path[0] not in schema.names:
        return None
    dtype = schema.field(column.path[0]).type
    return dtype.value_type if pa.types.is_dictionary(dtype) else dtype


def _is_comparable(literal: Literal, dtype: pa.DataType | None) -> bool:
    if literal.value is None or literal.type != dtype:
        return False
    is_ = pa.types
    if is_.is_timestamp(dtype):
        return dtype.unit == "us" and dtype.tz is not None
    kinds = (is_.is_signed_integer, is_.is_boolean, is_.is_string, is_.is_large_string)
    return is_.is_date32(dtype) or is_.is_decimal128(dtype) or any(kind(dtype) for kind in kinds)


def make_condition(frame: Any, where: Expr) -> Any:
    """A condition that :func:`has_condition` has accepted, over the columns of a DataFrame."""
    from pyspark.sql import functions

    match where:
        case And(left, right):
            return make_condition(frame, left) & make_condition(frame, right)
        case Or(left, right):
            return make_condition(frame, left) | make_condition(frame, right)
        case Not(operand):
            return ~make_condition(frame, operand)
        case IsNull(operand):
            return make_condition(frame, operand).isNull()
        case Column(path):
            return select_column(frame, path[0])
        case Compare(op, left, right):
            return _COMPARE[op](make_condition(frame, left), make_condition(frame, right))
        case In(operand, items, negated):
            found = make_condition(frame, operand).isin([make_condition(frame, item) for item in items])
            return ~found if negated else found
        case Literal(value, dtype):
            if pa.types.is_date32(dtype):
                return functions.date_from_unix_date(functions.lit(value))
            if pa.types.is_timestamp(dtype):
                return functions.timestamp_micros(functions.lit(value))
            if pa.types.is_decimal(dtype):
                return functions.lit(value).cast(f"decimal({dtype.precision},{dtype.scale})")
            return functions.lit(value)
    raise AssertionError(f"{where!r} was not accepted")


_COMPARE: Mapping[CompareOp, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _is_hidden(name: str) -> bool:
    """Whether Spark leaves a file out for its name."""
    return name.startswith(("_", ".")) or name.endswith("._COPYING_")


def _is_plain_value(value: Any, text: str | None, dtype: pa.DataType) -> bool:
    """Whether a partition directory's text can only be one value of a type, for whoever reads it."""
    if value is None or text is None:
        return value is None and text is None
    plain = pa.types.is_string(dtype) or pa.types.is_date32(dtype) or dtype in (pa.int32(), pa.int64())
    return bool(plain and text and text.isascii() and partition_text(value) == text)


def _is_spark_type(leaf: pq.ColumnSchema, wanted: pa.DataType) -> bool:
    """Whether a flat column is stored as Spark expects it of the type that it has here."""
    stored, kind = leaf.physical_type, str(leaf.logical_type.type)
    is_ = pa.types
    if is_.is_dictionary(wanted):
        wanted = wanted.value_type
    if is_.is_signed_integer(wanted):
        physical = "INT64" if is_.is_int64(wanted) else "INT32"
        bits = f"bitWidth={wanted.bit_width}, isSigned=true"
        bare = kind == "NONE" and wanted in (pa.int32(), pa.int64())
        return stored == physical and (bare or (kind == "INT" and bits in str(leaf.logical_type)))
    if is_.is_timestamp(wanted):
        zone = f"isAdjustedToUTC={'false' if wanted.tz is None else 'true'}"
        said = str(leaf.logical_type)
        fits = wanted.unit == "us" and stored == "INT64" and kind == "TIMESTAMP"
        return fits and zone in said and "timeUnit=microseconds" in said
    if is_.is_decimal(wanted):
        said = f"precision={wanted.precision}, scale={wanted.scale})"
        return kind == "DECIMAL" and wanted.precision <= 38 and said in str(leaf.logical_type)
    plain = {
        pa.bool_(): ("BOOLEAN", "NONE"),
        pa.float32(): ("FLOAT", "NONE"),
        pa.float64(): ("DOUBLE", "NONE"),
        pa.string(): ("BYTE_ARRAY", "STRING"),
        pa.large_string(): ("BYTE_ARRAY", "STRING"),
        pa.binary(): ("BYTE_ARRAY", "NONE"),
        pa.large_binary(): ("BYTE_ARRAY", "NONE"),
        pa.date32(): ("INT32", "DATE"),
    }
    return plain.get(wanted) == (stored, kind)
