"""A destination of dlt: loads are written to or merged into Parquet datasets and Iceberg tables.

dlt writes the rows of a load to Parquet files, and asks for one job a table when all of them are there. That
job is one commit, which knows its load: a job that is tried again after its commit does nothing.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Optional

import dlt
import pyarrow as pa
import pyarrow.parquet as pq
from dlt.common.configuration import configspec
from dlt.common.destination import Destination, DestinationCapabilitiesContext
from dlt.common.destination.client import (
    DestinationClientDwhConfiguration,
    JobClientBase,
    RunnableLoadJob,
)
from dlt.common.destination.exceptions import DestinationTerminalException, DestinationTransientException
from dlt.common.destination.utils import resolve_merge_strategy
from dlt.common.schema.utils import (
    get_columns_names_with_prop,
    get_dedup_sort_tuple,
    get_first_column_name_with_prop,
    is_nested_table,
)
from dlt.destinations.job_impl import (
    FinalizedLoadJob,
    FinalizedLoadJobWithFollowupJobs,
    ReferenceFollowupJobRequest,
)

import intarsia as it
from intarsia.common.lazy import import_optional
from intarsia.core.expr import Column, Expr, In, make_literal
from intarsia.errors import CommitError, EngineError, InputError, IntarsiaError, NotSupported, StorageError
from intarsia.options import select_address

if TYPE_CHECKING:
    from dlt.common.destination.client import FollowupJobRequest, LoadJob, PreparedTableSchema
    from dlt.common.storages.load_package import LoadJobInfo

    from intarsia.options import TableTarget

_BATCH_ROWS = 10_000
_LARGEST_SCOPE = 1000
"""Maximum values of a merge_key in one load: they become a condition."""


@configspec
class IntarsiaClientConfiguration(DestinationClientDwhConfiguration):
    """What ``[destination.intarsia]`` in dlt's configuration may say."""

    destination_type: Final[str] = dataclasses.field(
        default="intarsia", init=False, repr=False, compare=False
    )
    location: str | None = None
    """Directory or URL below which the datasets are, each in ``<location>/<dataset_name>/<table>``."""
    catalog: str | None = None
    """Of Iceberg tables: a warehouse directory, or the name of a catalog that PyIceberg knows."""
    options: Optional[dict[str, Any]] = None  # noqa: UP045  dlt reads the hint
    """Options of every merge and write, such as ``{"compression": "zstd"}``."""

    def data_location(self) -> str | None:
        return self.location


class intarsia(Destination[IntarsiaClientConfiguration, "IntarsiaClient"]):
    """The destination: ``dlt.pipeline("shop", destination=intarsia("lake"), dataset_name="shop")``.

    Args:
        location: directory or URL below which the datasets are.
        catalog: for tables with ``table_format="iceberg"``: a warehouse directory, or the name of a
            catalog that PyIceberg is configured with.
        options: options of every merge and write, see the guide.
        kwargs: as for any destination of dlt.
    """

    spec = IntarsiaClientConfiguration

    def __init__(
        self,
        location: str | None = None,
        *,
        catalog: str | None = None,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(location=location, catalog=catalog, options=options, **kwargs)

    @property
    def client_class(self) -> type[IntarsiaClient]:
        return IntarsiaClient

    def _raw_capabilities(self) -> DestinationCapabilitiesContext:
        found = DestinationCapabilitiesContext.generic_capabilities(
            "parquet",
            supported_table_formats=["iceberg"],
            supported_merge_strategies=["delete-insert", "upsert", "insert-only"],
        )
        found.supported_loader_file_formats = ["parquet", "reference"]
        found.supported_replace_strategies = ["insert-from-staging"]
        found.has_case_sensitive_identifiers = True
        found.max_table_nesting = 0  # a row and what is nested in it are one row: one key, one commit
        return found


class IntarsiaClient(JobClientBase):
    """Makes one job of the files that a load has for a table."""

    config: IntarsiaClientConfiguration

    def initialize_storage(self, truncate_tables: Iterable[str] | None = None) -> None:
        """Nothing is truncated: a replacement is one commit."""

    def is_storage_initialized(self) -> bool:
        return True

    def drop_storage(self) -> None:
        raise DestinationTerminalException("intarsia drops no tables: remove the datasets by hand.")

    def complete_load(self, load_id: str) -> None:
        """Each table has its commit already."""

    def __enter__(self) -> IntarsiaClient:
        return self

    def __exit__(self, *error: object) -> None:
        """There is no connection to close."""

    def create_load_job(
        self, table: PreparedTableSchema, file_path: str, load_id: str, restore: bool = False
    ) -> LoadJob:
        if table["name"].startswith(self.schema._dlt_tables_prefix):
            return FinalizedLoadJob(file_path)
        if ReferenceFollowupJobRequest.is_reference_job(file_path):
            return CommitJob(file_path)
        return FinalizedLoadJobWithFollowupJobs(file_path)

    def create_table_chain_completed_followup_jobs(
        self,
        table_chain: Sequence[PreparedTableSchema],
        completed_table_chain_jobs: Sequence[LoadJobInfo] | None = None,
    ) -> list[FollowupJobRequest]:
        files: dict[str, list[str]] = {}
        for job in completed_table_chain_jobs or ():
            if job.job_file_info.file_format == "parquet":
                files.setdefault(job.job_file_info.table_name, []).append(job.file_path)
        return [ReferenceFollowupJobRequest(paths[0].rpartition("/")[2], paths) for paths in files.values()]


class CommitJob(RunnableLoadJob):
    """Writes or merges the files of one table of a load, in one commit."""

    def run(self) -> None:
        """Do it, unless an earlier attempt has.

        Raises:
            DestinationTerminalException: the rows or hints do not fit; the table is as it was.
            DestinationTransientException: another writer or the storage was in the way; dlt tries again.
        """
        with _raise_for_dlt(), tempfile.TemporaryDirectory(prefix="intarsia-dlt-") as scratch:
            paths = ReferenceFollowupJobRequest.resolve_references(self._file_path)
            schemas = [pq.read_schema(path) for path in paths]
            schema = pa.unify_schemas(schemas, promote_options="permissive").remove_metadata()
            source = pa.RecordBatchReader.from_batches(schema, _read_files(paths, schema))
            table, options = self._open(schema)
            self._check_order(table, options)
            match self._load_table["write_disposition"]:
                case "replace":
                    if self._is_iceberg:
                        it.write(source, table, mode="overwrite", **options)
                    else:
                        it.write(source, table, mode="overwrite", partition_by=self._partitions, **options)
                case "merge":
                    self._merge(source, table, options, f"{scratch}/rows", paths)
                case _:
                    it.write(source, table, **options, **self._evolution)

    @property
    def _is_iceberg(self) -> bool:
        return self._load_table.get("table_format") == "iceberg"

    @property
    def _partitions(self) -> list[str]:
        return get_columns_names_with_prop(self._load_table, "partition")

    @property
    def _evolution(self) -> dict[str, Any]:
        return {"missing": "null"} if self._is_iceberg else {"missing": "null", "schema_evolution": "add"}

    def _open(self, schema: pa.Schema) -> tuple[TableTarget, dict[str, Any]]:
        """The table, made or widened where it has to be, and the options of the commit."""
        config = self._job_client.config
        name, dataset = self._load_table["name"], config.normalize_dataset_name(self._schema)
        options = {
            **(config.options or {}),
            "app_id": f"dlt/{dlt.current.pipeline().pipeline_name}/{self._schema.name}/{name}",
            "batch_id": int(Decimal(self._load_id) * 10**7),
            "properties": {"dlt.load_id": self._load_id},
        }
        if self._is_iceberg:
            if not config.catalog:
                raise InputError(f"table {name} is an Iceberg table, which needs a catalog.")
            return self._open_iceberg(f"{dataset}.{name}", schema), options
        if not config.location:
            raise InputError("the destination needs a location for its datasets.")
        path = f"{config.location.rstrip('/')}/{dataset}/{name}"
        address = select_address(options)
        if not it.snapshot(path, **address).exists:
            it.write(schema.empty_table(), path, partition_by=self._partitions or None, **address)
        return path, options

    def _open_iceberg(self, identifier: str, schema: pa.Schema) -> TableTarget:
        iceberg = import_optional("intarsia.tables.iceberg.catalog")
        catalog = iceberg.open_catalog(self._job_client.config.catalog)
        catalog.create_namespace_if_not_exists(identifier.split(".")[0])
        if not catalog.table_exists(identifier):
            made = catalog.create_table(identifier, schema)
            with made.update_spec() as spec:
                for name in self._partitions:
                    spec.add_identity(name)
        table = catalog.load_table(identifier)
        known = table.schema().column_names
        new = [field.with_nullable(True) for field in schema if field.name not in known]
        if new:
            with table.update_schema() as update:
                update.union_by_name(pa.schema(new))
        return it.iceberg(identifier, catalog=catalog)

    def _check_order(self, table: TableTarget, options: Mapping[str, Any]) -> None:
        """Refuse a load that is older than one of the same pipeline: its number would be taken for done."""
        app, batch = options["app_id"], options["batch_id"]
        commits = it.history(table, **select_address(options))
        done = [commit.batch_id or 0 for commit in commits if commit.app_id == app]
        if batch not in done and any(number > batch for number in done):
            raise InputError(
                f"load {self._load_id} is older than another load of {app}, which is committed already.",
                hint="let one run of a pipeline end before the next begins, or give them different names.",
            )

    def _merge(
        self, source: Any, table: TableTarget, options: Mapping[str, Any], scratch: str, paths: Sequence[str]
    ) -> None:
        described = self._load_table
        strategy = resolve_merge_strategy(self._schema.tables, described, self._job_client.capabilities)
        keys = get_columns_names_with_prop(described, "primary_key")
        scope = get_columns_names_with_prop(described, "merge_key")
        deleted = get_first_column_name_with_prop(described, "hard_delete")
        column, order = get_dedup_sort_tuple(described) or (None, "desc")
        if is_nested_table(described):
            raise NotSupported(f"table {described['name']} is nested in another, and cannot be merged alone.")
        if order != "desc":
            raise NotSupported(f"dedup_sort of {column!r} must be 'desc': the highest value is kept.")
        if scope and set(scope) != set(keys):
            if keys or deleted or len(scope) != 1:
                raise NotSupported(
                    "a merge_key is one column, without a primary_key or hard_delete beside it."
                )
            where = _match_values(paths, source.schema.field(scope[0]))
            if where is not None:
                it.write(source, table, mode="overwrite", where=where, **options, **self._evolution)
            return
        if not keys:  # as dlt does everywhere
            it.write(source, table, **options, **self._evolution)
            return
        rule: dict[str, Any] = {"strategy": "deduplicate", "dedup_order_by": column}
        if strategy == "insert-only" or deleted:  # of the rows of a key one is chosen first
            it.merge(source, scratch, on=keys, **rule)
            source = it.read(scratch)
            rule = (
                {"strategy": "insert"} if strategy == "insert-only" else {"clauses": self._clauses(deleted)}
            )
        it.merge(source, table, on=keys, **rule, **options, **self._evolution)

    def _clauses(self, deleted: str) -> list[Any]:
        name = '"' + deleted.replace('"', '""') + '"'
        flag = self._load_table["columns"][deleted].get("data_type") == "bool"
        gone = f"coalesce(source.{name}, false)" if flag else f"source.{name} is not null"
        return [
            it.when_matched(gone).delete(),
            it.when_matched().update_all(),
            it.when_not_matched(f"not ({gone})").insert_all(),
        ]


def _read_files(paths: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows as they are asked for, without reading ahead; a column that a file lacks is NULL."""
    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                columns = [
                    batch.column(field.name).cast(field.type)
                    if field.name in batch.schema.names
                    else pa.nulls(batch.num_rows, field.type)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _match_values(paths: Sequence[str], column: pa.Field) -> Expr | None:
    """A condition for the rows with a value that a column has in the files; None where these have no rows."""
    values: set[Any] = set()
    for batch in _read_files(paths, pa.schema([column])):
        values.update(batch.column(0).unique().to_pylist())
        if len(values) > _LARGEST_SCOPE or None in values:
            raise NotSupported(
                f"merge_key {column.name!r} has NULL, or more than {_LARGEST_SCOPE} values in this load.",
                hint="merge by a primary_key.",
            )
    items = tuple(map(make_literal, pa.array(values, column.type)))
    return In(Column((column.name,), exact=True), items) if items else None


@contextmanager
def _raise_for_dlt() -> Iterator[None]:
    """Errors in dlt's two kinds: what another attempt may mend, and what it cannot."""
    try:
        yield
    except (CommitError, StorageError, EngineError) as error:
        raise DestinationTransientException(str(error)) from error
    except IntarsiaError as error:
        raise DestinationTerminalException(str(error)) from error
