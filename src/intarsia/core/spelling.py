"""Plain names of columns in the spelling that a schema has: case decides only where it has to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from intarsia.common.names import listed_names, spelled_as
from intarsia.core.files import Snapshot
from intarsia.core.intent import Deduplicate, Merge, Optimize
from intarsia.errors import KeyColumnError

__all__ = ["spell_columns", "spell_merge", "spell_partitions"]

Maintenance = TypeVar("Maintenance", Deduplicate, Optimize)
_COLUMNS = ("keys", "order_by", "by", "deduplicate_keys", "dedup_order_by")


def spell_merge(intent: Merge, snapshot: Snapshot, source: pa.Schema) -> Merge:
    """The merge with its keys and other columns in the spelling that each side has.

    Raises:
        InputError: a name that could be any of several columns.
        KeyColumnError: two names of one key column.
    """
    path = snapshot.root
    target = snapshot.schema if snapshot.settled else source
    quoted = {side: {name for where, name in intent.quoted if where == side} for side in ("target", "source")}
    keys = spelled_as(intent.keys, target.names, path=path, exact=quoted["target"])
    theirs = spelled_as(intent.source_keys, source.names, path=path, exact=quoted["source"])
    pairs = list(zip(keys, theirs, strict=True))
    twice = [pair[0] for number, pair in enumerate(pairs) if pair in pairs[:number]]
    if twice:
        raise KeyColumnError(
            f"key column {listed_names(twice)} is given more than once.", path=path, hint="name it once."
        )
    return replace(
        intent,
        keys=keys,
        source_keys=theirs,
        dedup_order_by=spelled_as(intent.dedup_order_by, source.names, path=path),
        except_columns=spelled_as(intent.except_columns, source.names, path=path),
        partition_columns=spell_partitions(intent.partition_columns, snapshot, source),
    )


def spell_partitions(
    asked: tuple[str, ...] | None, snapshot: Snapshot, source: pa.Schema
) -> tuple[str, ...] | None:
    """Partition columns in the dataset's spelling, else in the source's."""
    if asked is None:
        return None
    return spelled_as(asked, snapshot.partition_columns or source.names, path=snapshot.root)


def spell_columns(intent: Maintenance, snapshot: Snapshot) -> Maintenance:
    """The operation with its columns in the table's spelling, where it has one."""
    if not snapshot.settled:
        return intent
    names, path = snapshot.schema.names, snapshot.root
    given = {name: getattr(intent, name) for name in _COLUMNS if hasattr(intent, name)}
    spelled: dict[str, Any] = {name: spelled_as(value, names, path=path) for name, value in given.items()}
    return replace(intent, **spelled)
