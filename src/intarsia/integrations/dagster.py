"""Dagster: an IO manager that replaces or merges partitions of assets, and asset checks of expectations."""

# No annotations from __future__: Dagster looks at that of a check's context, and takes no text.
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import dagster as dg
import pyarrow as pa

from intarsia import api, reading
from intarsia.core.evaluate import find_hit_positions
from intarsia.core.expr import Expr, resolve
from intarsia.core.report import MergeResult
from intarsia.errors import InputError, NotSupported
from intarsia.integrations.dagster_partitions import choose_directories, make_condition
from intarsia.options import TableTarget
from intarsia.pipeline.model import Expect
from intarsia.pipeline.quality.checks import describe_failing
from intarsia.pipeline.quality.evaluation import evaluate

__all__ = ["IntarsiaIOManager", "build_asset_check"]

_MERGE = ("on", "strategy", "dedup_order_by", "null_keys", "except_columns")
_BOTH = ("missing", "schema_evolution")
"""Arguments of a merge, and of a merge or a write, that are taken from an asset's metadata."""


class IntarsiaIOManager(dg.ConfigurableIOManager):
    """Stores each asset in a Parquet dataset, or in an Iceberg table that is there, and loads it as Arrow.

    The metadata of an asset says how: ``on`` (and ``strategy`` and so on) merges its rows by key. Without it
    they replace those of the asset's partitions, or all of them where it has none; ``mode`` ``"append"`` or
    ``"overwrite_partitions"`` is as in :func:`intarsia.write`. ``partition_expr`` names the column of the
    asset's partitions, or, by dimension, their columns. Either is one commit, and run again leaves the same
    rows (but for an append).

    Args:
        root: the directory or URL that has a dataset for each asset, by the parts of its key.
        catalog: of Iceberg tables, instead of ``root``: the name of a catalog or a warehouse directory. An
            asset's key is the name of its table.

    Example:
        >>> import dagster as dg, pyarrow as pa
        >>> from intarsia.integrations.dagster import IntarsiaIOManager
        >>> @dg.asset(metadata={"on": "id"})
        ... def orders() -> pa.Table:
        ...     return pa.table({"id": [1, 2], "n": ["a", "b2"]})
        >>> done = dg.materialize([orders], resources={"io_manager": IntarsiaIOManager(root="lake")})
        >>> done.success
        True
    """

    root: str | None = None
    catalog: str | None = None

    def open_target(self, key: dg.AssetKey) -> TableTarget:
        """The table of an asset, as the functions of intarsia take it."""
        if (self.root is None) == (self.catalog is None):
            raise InputError("IntarsiaIOManager has a root or a catalog, one of the two.")
        if self.catalog is not None:
            return api.iceberg(tuple(key.path), catalog=self.catalog)
        return "/".join((str(self.root).rstrip("/"), *key.path))

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Merge or write the rows; what was done is in the metadata of the materialization."""
        if not context.has_asset_key:
            raise NotSupported("IntarsiaIOManager stores assets, and this is the output of an op.")
        target = self.open_target(context.asset_key)
        said = _read_metadata(context.definition_metadata)
        rows = _open_rows(obj)
        partition = make_condition(context, said.get("partition_expr"), rows.schema)
        chosen: dict[str, Any] = {name: said[name] for name in _BOTH if name in said}
        if not reading.snapshot(target).exists:
            chosen["partition_by"] = said.get("partition_by") or choose_directories(
                said.get("partition_expr"), rows.schema
            )
        if "on" in said:
            if "mode" in said:
                raise InputError("an asset is merged by on= or written by mode=, one of the two.")
            chosen |= {name: said[name] for name in _MERGE if name in said}
            result = api.merge(_check_rows(rows, partition), target, **chosen)
        else:
            mode = said.get("mode", "overwrite")
            if mode != "overwrite":
                rows, partition = _check_rows(rows, partition), None
            elif context.has_asset_partitions and partition is None:
                raise InputError(
                    f"{context.asset_key.to_user_string()} has partitions, and no column that says which"
                    " row is in which.",
                    hint='name it: metadata={"partition_expr": "day"}; or merge by a key: {"on": "id"}.',
                )
            result = api.write(rows, target, mode=mode, where=partition, **chosen)
        replaced = context.has_asset_partitions and "on" not in said
        context.add_output_metadata(_describe(result, target, partition_rows=replaced))

    def load_input(self, context: dg.InputContext) -> Any:
        """The rows of the input's partitions, of one consistent state, as the type that the input has.

        ``columns`` in the metadata of the input (``AssetIn``) reads only these.
        """
        if not context.has_asset_key or context.upstream_output is None:
            raise NotSupported("IntarsiaIOManager loads assets, and this is the output of an op.")
        target = self.open_target(context.asset_key)
        said = _read_metadata(context.upstream_output.definition_metadata)
        partition = make_condition(context, said.get("partition_expr"), reading.snapshot(target).schema)
        columns = _read_metadata(context.definition_metadata).get("columns")
        reader = reading.read(target, columns=columns, where=partition)
        return _convert(reader, context.dagster_type.typing_type)


def build_asset_check(
    asset: Any,
    expectation: Expect,
    *,
    tables: Mapping[str, Any] | None = None,
    blocking: bool = False,
    io_manager_key: str = "io_manager",
) -> dg.AssetChecksDefinition:
    """An asset check of Dagster: an expectation on the table that the IO manager has for the asset.

    The check passes where the expectation holds, of all rows of the table or of as many as ``at_most`` says;
    where its action is ``warn``, it fails as a warning.

    Args:
        asset: the asset, or its key.
        expectation: as of a pipeline; its name is that of the check.
        tables: the assets, or their keys, that its ``references`` name.
        blocking: whether assets downstream wait for it, and are not materialized where it fails.
        io_manager_key: the resource that is an :class:`IntarsiaIOManager`.

    Raises:
        InputError: the expectation has no name.

    Example:
        >>> from intarsia.integrations.dagster import build_asset_check
        >>> from intarsia.pipeline import Expect
        >>> build_asset_check("orders", Expect(name="orders_have_ids", not_null="id", unique="id"))
        <dagster...AssetChecksDefinition object at ...>
    """
    if not expectation.name:
        raise InputError(
            "the expectation needs a name, which is that of the check.", hint='Expect(name="ids", ...).'
        )
    key = _find_key(asset)
    others = {name: _find_key(other) for name, other in (tables or {}).items()}

    def run_check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        manager: IntarsiaIOManager = getattr(context.resources, io_manager_key)
        checks = evaluate(
            expectation,
            manager.open_target(key),
            tables={name: manager.open_target(other) for name, other in others.items()},
        )
        told = [f"{check.expectation}: {describe_failing(check)}" for check in checks if not check.ok]
        return dg.AssetCheckResult(
            passed=not told,
            severity=_SEVERITY[expectation.action],
            description="; ".join(told) or None,
            metadata={check.expectation: check.failing for check in checks},
        )

    return dg.asset_check(
        asset=asset,
        name=expectation.name,
        blocking=blocking,
        required_resource_keys={io_manager_key},
    )(run_check)


_SEVERITY = {"fail": dg.AssetCheckSeverity.ERROR, "warn": dg.AssetCheckSeverity.WARN}


def _find_key(asset: Any) -> dg.AssetKey:
    return asset.key if hasattr(asset, "key") else dg.AssetKey.from_coercible(asset)


def _read_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """The metadata of an asset or an input, as plain values."""
    return {
        name: value.value if isinstance(value, dg.MetadataValue) else value
        for name, value in (metadata or {}).items()
    }


def _open_rows(rows: Any) -> pa.RecordBatchReader:
    if isinstance(rows, pa.RecordBatchReader):
        return rows
    if type(rows).__module__.startswith("polars.") and hasattr(rows, "collect_batches"):
        reader: pa.RecordBatchReader = import_module("intarsia.integrations.polars").open_reader(rows)
        return reader
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(rows)
    raise InputError(
        f"an asset is rows, such as a table of Arrow, Polars or pandas, not {type(rows).__name__}.",
        hint="an asset that stores its rows itself is annotated -> None.",
    )


def _check_rows(rows: pa.RecordBatchReader, partition: Expr | None) -> pa.RecordBatchReader:
    """The rows, of which every one must be in the partition; they are read before anything is written."""
    if partition is None:
        return rows
    condition = resolve(partition, rows.schema, expect=pa.bool_())

    def check() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            inside = len(find_hit_positions(condition, pa.Table.from_batches([batch])))
            if inside < batch.num_rows:
                raise InputError(
                    f"{batch.num_rows - inside:,} of {batch.num_rows:,} rows are not in the partition.",
                    hint="leave them out, or materialize their partitions.",
                )
            yield batch

    return pa.RecordBatchReader.from_batches(rows.schema, check())


def _convert(reader: pa.RecordBatchReader, wanted: Any) -> Any:
    """The rows as the type that an input is annotated with; a table of Arrow where it has none."""
    module, name = getattr(wanted, "__module__", "").partition(".")[0], getattr(wanted, "__name__", "")
    match module, name:
        case "pyarrow", "RecordBatchReader":
            return reader
        case ("pyarrow", "Table") | ("typing", "Any"):
            return reader.read_all()
        case "pandas", "DataFrame":
            return reader.read_pandas()
        case "polars", "DataFrame" | "LazyFrame":
            frame = wanted(reader.read_all())
            return frame
    raise NotSupported(
        f"an input of type {wanted!r} cannot be loaded.",
        hint="annotate it as pyarrow.Table or RecordBatchReader, polars.DataFrame or LazyFrame, or"
        " pandas.DataFrame.",
    )


def _describe(result: MergeResult, target: TableTarget, *, partition_rows: bool) -> dict[str, Any]:
    """What an operation did, as metadata of a materialization; under Dagster's names where it has some."""
    columns = [dg.TableColumn(field.name, str(field.type)) for field in reading.snapshot(target).schema]
    found: dict[str, Any] = {
        "dagster/row_count": result.total,
        "dagster/column_schema": dg.TableSchema(columns),
        "path": dg.MetadataValue.path(result.path),
        "operation": result.strategy,
        "rows_inserted": result.inserted,
        "rows_updated": result.updated,
        "rows_deleted": result.deleted,
        "files_rewritten": len(result.rewritten_files),
        "files_new": result.new_files,
        "files_removed": len(result.removed_files),
        "bytes_read": result.bytes_read,
        "bytes_written": result.bytes_written,
        "seconds": result.seconds,
    }
    return {**found, "dagster/partition_row_count": result.source_count} if partition_rows else found
