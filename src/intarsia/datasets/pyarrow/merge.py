"""The merge as a plain function that returns plain counts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from intarsia.common.arrow import adopt
from intarsia.common.log import logger, operation_log
from intarsia.core.incremental import partition_names
from intarsia.core.merge import compute_merge_stats, normalize_keys, validate_keys_and_schema
from intarsia.core.retype import with_types_of
from intarsia.core.rule import strategy_rule
from intarsia.datasets.pyarrow.io import PyarrowDatasetIO
from intarsia.request import TABLE_OPTIONS, shown

log = logger(__name__)

Path = str | os.PathLike[str]
Columns = str | Sequence[str]


def merge_parquet_dataset_pyarrow(
    source: Any,
    target_path: Path,
    key_columns: Columns,
    strategy: str = "upsert",
    *,
    dedup_order_by: Columns | None = None,
    partition_columns: Columns | None = None,
    partition_by: Columns | None = None,
    filesystem: Any = None,
    **options: Any,
) -> dict[str, int]:
    """Merge a table, or Parquet files, into a dataset; how many rows were inserted, updated and deleted.

    Atomic. Memory: the source (mapped from a spool where it is large) and a row group per thread;
    ``batch_rows`` limits how much of the target is handled at once. Options as of :func:`intarsia.merge`.

    Returns:
        ``inserted``, ``updated``, ``deleted``, and ``total``: the rows a reader then finds.

    Raises:
        KeyColumnError: keys missing, NULL or duplicate; nothing was written.
        SchemaMismatch: columns or values that do not fit; nothing was written.
    """
    with ExitStack() as stack:
        with operation_log(log, "merge", shown(target_path)):
            keys = normalize_keys(key_columns)
            rule = strategy_rule(strategy)
            opened = {name: options.pop(name) for name in TABLE_OPTIONS if name in options}
            io = PyarrowDatasetIO(filesystem, **opened)
            names = partition_names(partition_columns, partition_by)
            table = io.table(target_path)
            found = table.snapshot()
            spool = {name: options.pop(name) for name in ("spool_bytes", "spool_dir") if name in options}
            adopted = adopt(
                source,
                filesystem=filesystem,
                partition_columns=found.partition_columns if names is None else names,
                types=found.schema if found.settled else None,
                **spool,
            )
            taken = stack.enter_context(adopted)
            snapshot = with_types_of(taken.schema, found)
            validate_keys_and_schema(
                taken.schema if options.get("null_keys") == "match" else taken.table,
                snapshot.schema if snapshot.settled else None,
                keys,
                operation=rule.name,
                path=snapshot.root,
                missing=options.get("missing", "error"),
                schema_evolution=options.get("schema_evolution"),
                partition_columns=snapshot.partition_columns,
            )
        # Outside of the block above: the merge logs what it does not expect itself.
        result = io.merge(
            taken.table, table, rule.name, keys, partition_by=names, dedup_order_by=dedup_order_by, **options
        )
    return compute_merge_stats(
        inserted=result.inserted,
        updated=result.updated,
        deleted=result.deleted,
        previous_total=result.target_count_before,
    )
