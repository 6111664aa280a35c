"""The seeds' names for merge strategies, keys and statistics; thin, shared by every engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import StrEnum
from typing import Any, Literal

import pyarrow as pa

from intarsia.common.names import find_spelling
from intarsia.common.schema import check_key_types, conform_schema
from intarsia.core.validation import make_missing_keys_error, refuse_null_source_keys
from intarsia.errors import InputError, KeyColumnError

_SUCH_AS = 'such as ["id", "day"].'


class MergeStrategy(StrEnum):
    """What happens to rows in both sides, only in the source, and only in the target."""

    INSERT = "insert"
    UPDATE = "update"
    UPSERT = "upsert"
    FULL_MERGE = "full_merge"
    DEDUPLICATE = "deduplicate"


def normalize_keys(key_columns: str | Iterable[str]) -> list[str]:
    """Key columns as a list: a single name becomes a list of one.

    Raises:
        KeyColumnError: none given, one twice, or something that is not a name.
    """
    keys = list_column_names(key_columns, "the key columns", error=KeyColumnError)
    if not all(keys):
        raise KeyColumnError("the key columns must be names, not ''.", hint=_SUCH_AS)
    if not keys:
        raise KeyColumnError(f"at least one key column is needed, not {key_columns!r}.", hint=_SUCH_AS)
    repeated = sorted({key for key in keys if keys.count(key) > 1})
    if repeated:
        raise KeyColumnError(
            f"key column {', '.join(map(repr, repeated))} is given more than once.", hint="name it once."
        )
    return keys


def list_column_names(columns: Any, argument: str, *, error: type[InputError] = InputError) -> list[str]:
    """Columns as a list: a single name, or several in an order that holds.

    Raises:
        InputError: anything else; ``error`` is the class to raise.
    """
    if isinstance(columns, str):
        return [columns]
    # A set has no order, a mapping means something else, and an iterator may be exhausted.
    refused = isinstance(columns, (bytes, Mapping, Set, Iterator))
    names = [] if refused or not isinstance(columns, Iterable) else list(columns)
    if refused or not isinstance(columns, Iterable) or not all(isinstance(name, str) for name in names):
        raise error(f"{argument} must be a name or a list of names, not {columns!r}.", hint=_SUCH_AS)
    return names


def validate_keys_and_schema(
    source: pa.Table | pa.Schema,
    target_schema: pa.Schema | None,
    key_columns: str | Sequence[str],
    *,
    operation: str = "merge",
    path: str = "",
    missing: Literal["error", "null", "keep"] = "error",
    schema_evolution: Any = None,
    partition_columns: Sequence[str] = (),
) -> pa.Schema:
    """Check keys and schemas of a merge, and give the schema the target will have.

    ``missing``, ``schema_evolution`` and ``partition_columns`` are those of the merge.

    Raises:
        KeyColumnError: a key column is missing from either side, nested, or NULL in the source.
        SchemaMismatch: columns that cannot be brought together.
    """
    keys = normalize_keys(key_columns)
    schema = source.schema if isinstance(source, pa.Table) else source
    keys = list(find_spelling(keys, schema.names, path=path))
    for side, names in (("source", schema.names), ("target", getattr(target_schema, "names", keys))):
        absent = [key for key in find_spelling(keys, names, path=path) if key not in names]
        if absent:
            raise make_missing_keys_error(absent, names, side=side, operation=operation, path=path)
    check_key_types(schema, keys, side="source", operation=operation, path=path)
    if isinstance(source, pa.Table):
        refuse_null_source_keys({key: source[key].null_count for key in keys}, operation=operation, path=path)
    if target_schema is None:
        return schema
    return conform_schema(
        schema,
        target_schema,
        operation=operation,
        path=path,
        missing=missing,
        schema_evolution=schema_evolution,
        partition_columns=partition_columns,
    )


def compute_merge_stats(*, inserted: int, updated: int, deleted: int, previous_total: int) -> dict[str, int]:
    """The canonical statistics; ``total`` is what a reader finds afterwards."""
    counts: dict[str, Any] = {"inserted": inserted, "updated": updated, "deleted": deleted}
    negative = [name for name, count in counts.items() if count < 0]
    total = previous_total + inserted - deleted
    if negative or total < 0:
        raise InputError(f"Merge statistics must not be negative: {counts}, previous {previous_total}.")
    return {**counts, "total": total}
