"""Table properties that concern writing; those that cannot be followed are refused by name."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from intarsia.core.layout import DEFAULT_ROW_GROUP_ROWS, Layout
from intarsia.errors import InputError, NotSupported
from intarsia.tables.iceberg.metrics import MetricsConfig
from intarsia.tables.iceberg.schemas import make_annotated_footer

COPY_ON_WRITE, MERGE_ON_READ = "copy-on-write", "merge-on-read"
SERIALIZABLE, SNAPSHOT = "serializable", "snapshot"
DATA_PATH = "write.data.path"
METADATA_PATH = "write.metadata.path"
_LEGACY_PATHS = ("write.object-storage.path", "write.folder-storage.path")
_PROVIDERS = ("write.location-provider.impl", "write.py-location-provider.impl")
OPERATIONS = ("delete", "update", "merge")

_CODECS = {
    "uncompressed": "none",
    "none": "none",
    "snappy": "snappy",
    "gzip": "gzip",
    "zstd": "zstd",
    "brotli": "brotli",
    "lz4": "lz4",
    "lz4_raw": "lz4",
}
_LEVELLED = ("gzip", "zstd", "brotli")
_BLOOM = "parquet.bloom-filter-enabled.column."
_BLOOM_FPP = 0.05
_LEAST_GROUP_ROWS = 100
_CHECKED_CHOICES = {
    "write.distribution-mode": ("none", "hash", "range"),
    "write.metadata.compression-codec": ("none", "gzip"),
}
_CHECKED_NUMBERS = {
    "write.metadata.previous-versions-max": 0,
    "history.expire.max-snapshot-age-ms": 0,
    "history.expire.min-snapshots-to-keep": 1,
    "history.expire.max-ref-age-ms": 0,
}
"""Properties that the catalog, other engines or ``maintenance`` follow, with their choices or least values.

An invalid value is refused before anything is written."""
_MANIFEST_CODECS = ("gzip", "zstd", "snappy", "deflate", "uncompressed", "none")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of retries, and the time to wait between them."""

    retries: int
    min_wait_ms: int
    max_wait_ms: int
    total_ms: int


@dataclass(frozen=True, slots=True)
class WriteProperties:
    """What ``write.*`` and ``commit.*`` ask for; the defaults are those of Java's ``TableProperties``.

    Only the codec's differs: zstd, as all tables made since Iceberg 1.4 say anyway.
    """

    layout: Layout
    """Of new data files."""
    delete_layout: Layout
    """Of new position delete files."""
    target_bytes: int
    delete_target_bytes: int
    delete_granularity: str
    """``file`` or ``partition``; by default ``file``, as in Spark (``SparkWriteConf.deleteGranularity``)."""
    modes: Mapping[str, str]
    """By operation (delete, update, merge): copy-on-write or merge-on-read."""
    isolation: Mapping[str, str]
    """By operation: serializable or snapshot."""
    metrics: MetricsConfig
    manifest_codec: str
    manifest_target_bytes: int
    manifest_min_merge: int
    manifest_merge: bool
    partition_limit: int
    """Partitions up to which the summary of a snapshot lists them."""
    commit_retry: RetryPolicy
    status_retry: RetryPolicy

    @staticmethod
    def of(metadata: TableMetadata) -> WriteProperties:
        """The properties of a table.

        Raises:
            NotSupported: one asks for what cannot be done: Avro or ORC files, encryption, a location
                provider; it is named.
            InputError: the value of one is none.
        """
        said = metadata.properties
        refuse_unsupported(said)
        for name, among in _CHECKED_CHOICES.items():
            property_as_choice(said, name, "none", among)
        for name, least in _CHECKED_NUMBERS.items():
            property_as_int(said, name, least, least=least)
        row_bytes = _estimate_row_bytes(metadata)
        return WriteProperties(
            layout=_read_layout(said, "write.", metadata.schema(), row_bytes),
            delete_layout=_read_layout(said, "write.delete.", None, None),
            target_bytes=property_as_int(said, "write.target-file-size-bytes", 512 << 20, least=1),
            delete_target_bytes=property_as_int(
                said, "write.delete.target-file-size-bytes", 64 << 20, least=1
            ),
            delete_granularity=property_as_choice(
                said, "write.delete.granularity", "file", ("file", "partition")
            ),
            modes={
                name: property_as_choice(
                    said, f"write.{name}.mode", COPY_ON_WRITE, (COPY_ON_WRITE, MERGE_ON_READ)
                )
                for name in OPERATIONS
            },
            isolation={
                name: property_as_choice(
                    said, f"write.{name}.isolation-level", SERIALIZABLE, (SERIALIZABLE, SNAPSHOT)
                )
                for name in OPERATIONS
            },
            metrics=MetricsConfig.of(
                said, metadata.schema(), metadata.sort_order_by_id(metadata.default_sort_order_id)
            ),
            manifest_codec=property_as_choice(
                said, "write.manifest.compression-codec", "gzip", _MANIFEST_CODECS
            ),
            manifest_target_bytes=property_as_int(
                said, "commit.manifest.target-size-bytes", 8 << 20, least=1
            ),
            manifest_min_merge=property_as_int(said, "commit.manifest.min-count-to-merge", 100),
            manifest_merge=property_as_bool(said, "commit.manifest-merge.enabled", True),
            partition_limit=property_as_int(said, "write.summary.partition-limit", 0),
            commit_retry=_read_retry_policy(said, "commit.retry", 4, 100),
            status_retry=_read_retry_policy(said, "commit.status-check", 3, 1000),
        )


def refuse_unsupported(properties: Mapping[str, str]) -> None:
    """Refuse the first property that asks for something unsupported.

    Raises:
        NotSupported: there is one.
    """
    for name in ("write.format.default", "write.delete.format.default"):
        chosen = properties.get(name, "parquet").strip().lower()
        if chosen != "parquet":
            raise NotSupported(
                f"The table property {name}={chosen} asks for {chosen} files; only Parquet is written.",
                hint=f"set {name}=parquet; the table may go on holding files of other formats.",
            )
    for name in properties:
        if name.startswith("encryption."):
            raise NotSupported(
                f"The table property {name} asks for encryption, which is not supported.",
                hint="write the table with an engine that has its keys.",
            )
    refuse_location_providers(properties)


def refuse_location_providers(properties: Mapping[str, str]) -> None:
    """Refuse properties by which another class chooses locations, and deprecated ones.

    Raises:
        NotSupported: naming the property.
    """
    for name in _PROVIDERS:
        if name in properties:
            raise NotSupported(
                f"The table property {name}={properties[name]} chooses the places of files, which only the"
                " library it belongs to can do.",
                hint=f"remove it; {DATA_PATH} and write.object-storage.enabled are followed.",
            )
    for name in _LEGACY_PATHS:
        if name in properties and DATA_PATH not in properties:
            raise NotSupported(
                f"The table property {name} was given up by Iceberg.", hint=f"set {DATA_PATH} instead."
            )


def _read_layout(
    said: Mapping[str, str], prefix: str, schema: Schema | None, row_bytes: float | None
) -> Layout:
    """The layout of data files or delete files; properties of data files are the default for delete files."""
    own = {
        name: said.get(f"{prefix}{name}", said.get(f"write.{name}"))
        for name in (
            "parquet.compression-codec",
            "parquet.compression-level",
            "parquet.page-size-bytes",
            "parquet.page-row-limit",
            "parquet.dict-size-bytes",
            "parquet.row-group-size-bytes",
            "parquet.row-group-limit",
        )
    }
    known = {f"{prefix}{name}": text for name, text in own.items() if text is not None}
    codec = _read_codec(known, f"{prefix}parquet.compression-codec")
    level = property_as_int(known, f"{prefix}parquet.compression-level", 0, least=-(2**31))
    levelled = f"{prefix}parquet.compression-level" in known and codec in _LEVELLED
    limit = property_as_int(known, f"{prefix}parquet.row-group-limit", DEFAULT_ROW_GROUP_ROWS, least=1)
    group_bytes = property_as_int(known, f"{prefix}parquet.row-group-size-bytes", 128 << 20, least=1)
    rows = limit if row_bytes is None else min(limit, max(_LEAST_GROUP_ROWS, int(group_bytes / row_bytes)))
    annotated = None if schema is None else make_annotated_footer(schema)
    return Layout(
        compression=codec,
        compression_level=level if levelled else None,
        row_group_rows=rows,
        row_group_bytes=group_bytes,
        row_bytes=row_bytes,
        page_bytes=property_as_int(known, f"{prefix}parquet.page-size-bytes", 1 << 20, least=1),
        page_rows=property_as_int(known, f"{prefix}parquet.page-row-limit", 20_000, least=1),
        dictionary_bytes=property_as_int(known, f"{prefix}parquet.dict-size-bytes", 2 << 20, least=1),
        page_index=True,
        bloom_filters={} if schema is None else _read_bloom_filters(said, schema),
        integer_decimals=True,  # up to 18 digits: Iceberg spec, appendix A, "Parquet"
        like=() if annotated is None else (annotated,),
        keeps_root=False,
    )


def _read_codec(known: Mapping[str, str], name: str) -> str:
    chosen = known.get(name, "zstd").strip().lower()
    if chosen not in _CODECS:
        raise NotSupported(
            f"The table property {name}={chosen} names a codec that cannot be written.",
            hint=f"set it to one of {', '.join(_CODECS)}.",
        )
    return _CODECS[chosen]


def _read_bloom_filters(said: Mapping[str, str], schema: Schema) -> dict[str, int]:
    """By leaf the distinct values that a filter of the largest size has room for; one too large is folded."""
    wanted = [name.removeprefix(f"write.{_BLOOM}") for name in said if name.startswith(f"write.{_BLOOM}")]
    chosen = {name for name in wanted if property_as_bool(said, f"write.{_BLOOM}{name}", False)}
    if not chosen:
        return {}
    size = property_as_int(said, "write.parquet.bloom-filter-max-bytes", 1 << 20, least=32)
    room = int(-size * math.log(1 - _BLOOM_FPP ** (1 / 8)))
    return {
        path: max(1, room) for name, path in _list_leaf_paths(schema.as_struct(), "", "") if name in chosen
    }


def _list_leaf_paths(kind: IcebergType, name: str, path: str) -> list[tuple[str, str]]:
    """Dotted names of leaves, with the paths they have in Parquet."""
    match kind:
        case StructType():
            dot = "." if name else ""
            inner = [(one.field_type, f"{dot}{one.name}", f"{dot}{one.name}") for one in kind.fields]
        case ListType():
            inner = [(kind.element_type, ".element", ".list.element")]
        case MapType():
            inner = [
                (kind.key_type, ".key", ".key_value.key"),
                (kind.value_type, ".value", ".key_value.value"),
            ]
        case _:
            return [(name, path)]
    return [leaf for one, more, deeper in inner for leaf in _list_leaf_paths(one, name + more, path + deeper)]


def _estimate_row_bytes(metadata: TableMetadata) -> float | None:
    """Average bytes of a row in the table's files; None if unknown."""
    snapshot = metadata.current_snapshot()
    summary: Any = snapshot.summary if snapshot is not None else None
    if summary is None:
        return None
    totals = summary.additional_properties
    rows, size = totals.get("total-records", ""), totals.get("total-files-size", "")
    if not (rows.isdigit() and size.isdigit() and int(rows) and int(size)):
        return None
    return int(size) / int(rows)


def _read_retry_policy(said: Mapping[str, str], prefix: str, retries: int, wait: int) -> RetryPolicy:
    total = f"{prefix}.total-timeout-ms"
    return RetryPolicy(
        property_as_int(said, f"{prefix}.num-retries", retries),
        property_as_int(said, f"{prefix}.min-wait-ms", wait),
        property_as_int(said, f"{prefix}.max-wait-ms", 60_000),
        property_as_int(said, total, property_as_int(said, f"{prefix}.total-time-ms", 1_800_000)),
    )


def property_as_bool(properties: Mapping[str, str], name: str, default: bool) -> bool:
    """A boolean property; anything but ``true`` is false (Java's ``PropertyUtil.propertyAsBoolean``)."""
    text = properties.get(name)
    return default if text is None else text.strip().lower() == "true"


def property_as_int(properties: Mapping[str, str], name: str, default: int, *, least: int = 0) -> int:
    """A whole number.

    Raises:
        InputError: it is none, or less than it can be.
    """
    text = properties.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError as error:
        raise _make_property_error(name, text, f"a whole number of at least {least}") from error
    if value < least:
        raise _make_property_error(name, text, f"a whole number of at least {least}")
    return value


def property_as_choice(properties: Mapping[str, str], name: str, default: str, among: Collection[str]) -> str:
    """One of several words, whatever its case.

    Raises:
        InputError: it is another.
    """
    text = properties.get(name, default).strip().lower()
    if text not in among:
        raise _make_property_error(name, text, f"one of {', '.join(among)}")
    return text


def _make_property_error(name: str, text: str, wanted: str) -> InputError:
    return InputError(f"The table property {name} is {text!r}, not {wanted}.", hint=f"set {name} anew.")
