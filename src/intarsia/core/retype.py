"""The types of a snapshot's columns that an operation sees otherwise.

Partition columns that stand in paths only, where a source knows better than their text; and INT96 columns
that are to become timestamps.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from intarsia.common.int96 import int96_columns
from intarsia.common.partitions import (
    PARTITION_SCHEMA_KEY,
    parse_hive_partition_path,
    partition_text,
    typed_partition,
)
from intarsia.common.schema import common_type
from intarsia.common.types import rewrite_type, value_type
from intarsia.core.snapshot import Snapshot
from intarsia.errors import DamagedTable


def retype(snapshot: Snapshot, types: pa.Schema) -> Snapshot:
    """The snapshot with its partition values read as ``types`` says; other columns stay.

    Raises:
        DamagedTable: a directory's text is no value of the type.
    """
    path_columns = [name for name in snapshot.partition_columns if name in types.names]
    fields = [
        field.with_type(value_type(types.field(field.name).type)) if field.name in path_columns else field
        for field in snapshot.schema
    ]
    schema = pa.schema(fields, snapshot.schema.metadata)
    files = tuple(
        replace(file, partition=typed_partition(parse_hive_partition_path(file.path), schema, path=file.path))
        for file in snapshot.files
    )
    return replace(snapshot, schema=schema, files=files)


def with_types_of(source: pa.Schema, snapshot: Snapshot) -> Snapshot:
    """The snapshot with the source's types for partition columns whose own is only a guess.

    A directory ``day=2025-01-01`` of a dataset that does not say is taken for a date. Rows that come
    with ``day`` as text then decide that it is text, as long as every directory reads back as itself.
    """
    names = [
        name for name in snapshot.partition_columns if name in source.names and _clash(name, source, snapshot)
    ]
    guessed = [name for name in names if not _declared(name, snapshot)]
    if not guessed:
        return snapshot
    types = pa.schema([source.field(name) for name in guessed])
    try:
        read = retype(snapshot, types)
    except DamagedTable:  # a text that is no such value: the guess stands
        return snapshot
    for file in read.files:
        texts = parse_hive_partition_path(file.path, guessed)
        if any(
            text is not None and partition_text(file.partition[name]) != text for name, text in texts.items()
        ):
            return snapshot
    return read


def with_microseconds(snapshot: Snapshot) -> Snapshot:
    """The snapshot with columns that are INT96 in every file in microseconds, to which they are converted.

    Whether the values fit is known when they are read.
    """
    if snapshot.format.owns_schema:
        nothing = 'int96="convert" has no meaning here: an Iceberg table has no INT96 columns of its own.'
        return replace(snapshot, notes=(*snapshot.notes, nothing))
    footers = [file.footer for file in snapshot.files if file.footer is not None]
    known = {name for footer in footers for name in int96_columns(footer.schema)}
    note = (
        f"Of the columns {', '.join(name for name in snapshot.schema.names if name in known)}, what is INT96"
        " becomes TIMESTAMP(MICROS) in UTC in the files that are written; other files keep it."
        if known
        else 'int96="convert" finds nothing to do: no file has an INT96 column.'
    )
    for footer in footers:
        known -= set(footer.schema.to_arrow_schema().names) - int96_columns(footer.schema)
    fields = [f.with_type(rewrite_type(f.type, _micros)) if f.name in known else f for f in snapshot.schema]
    schema = pa.schema(fields, snapshot.schema.metadata)
    return replace(snapshot, schema=schema, notes=(*snapshot.notes, note))


def _micros(dtype: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", dtype.tz) if pa.types.is_timestamp(dtype) else dtype


def _clash(name: str, source: pa.Schema, snapshot: Snapshot) -> bool:
    theirs, ours = (value_type(schema.field(name).type) for schema in (source, snapshot.schema))
    return common_type(theirs, ours) is None


def _declared(name: str, snapshot: Snapshot) -> bool:
    """Whether a file says the column's type, in its metadata or by holding the column; or the log does."""
    if not snapshot.files:
        return True
    footers = (file.footer for file in snapshot.files if file.footer is not None)
    return any(
        PARTITION_SCHEMA_KEY in (footer.metadata or {}) or name in footer.schema.names for footer in footers
    )
