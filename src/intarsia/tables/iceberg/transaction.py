"""One attempt to change a table: names for new files, delete files, and the commit of a change."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.table.metadata import TableMetadata

import intarsia
from intarsia.common.log import get_logger
from intarsia.core.change import BEGUN, Change, Committed, PositionDeletes, StagedFile, Staging
from intarsia.core.expr import Expr, find_columns
from intarsia.core.prove import Facts, is_never_true
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.errors import DamagedTable, InputError, IntarsiaError, NotSupported, StorageError
from intarsia.tables.iceberg.batches import check_not_rolled_back, find_last_batch
from intarsia.tables.iceberg.commit import CommitTarget, SnapshotCommit, Validation, validate_state
from intarsia.tables.iceberg.deletes import NO_DELETES, Deletes, merge_positions
from intarsia.tables.iceberg.deletion_vectors import DeleteFileNamer, write_vectors
from intarsia.tables.iceberg.file_io import DeleteCache, IcebergOutputLocation, LocationProvider, Store
from intarsia.tables.iceberg.manifests import ContentFile, DataFileContent, ManifestEntry
from intarsia.tables.iceberg.metrics import read_metrics
from intarsia.tables.iceberg.position_deletes import DeleteGranularity, write_position_deletes
from intarsia.tables.iceberg.properties import SERIALIZABLE, WriteProperties
from intarsia.tables.iceberg.rollback import make_summary_info
from intarsia.tables.iceberg.scan import IcebergScanTask, TableScanContext
from intarsia.tables.iceberg.schemas import to_arrow_scalar
from intarsia.tables.iceberg.snapshot_producer import FileChange, ManifestMergeOptions, SnapshotOptions
from intarsia.tables.iceberg.specs import find_spec, partition_to_texts
from intarsia.tables.iceberg.state import BranchState
from intarsia.tables.parquet.checks import check_batch, read_written

if TYPE_CHECKING:
    from intarsia.tables.iceberg.table import IcebergTable

log = get_logger(__name__)

_WAP_ID = "wap.id"
_REMOVALS = 3
_RESERVED = frozenset({"operation", "self"})
"""A summary's own field, and a name with which PyIceberg could not load the table any more."""


class IcebergTransaction:
    """One attempt, begun by :meth:`IcebergTable.transaction`; nothing is locked meanwhile."""

    def __init__(self, table: IcebergTable, context: ChangeContext, operation: str) -> None:
        self.txid = uuid.uuid4().hex
        self.snapshot = context.snapshot
        self.operation = operation
        self._table = table
        self._context = context
        self._state = context.state
        self._store = context.store
        self._locations = LocationProvider.of(context.state.metadata)
        root = context.state.metadata.location.rstrip("/")
        self._directory = context.store.filesystem_path(f"{root}/staging-{self.txid}")
        self._staged = False
        self._travelled = False
        self._placed: dict[str, str] = {}
        self._commit: SnapshotCommit | None = None
        self._finished = False

    @property
    def staging(self) -> Staging:
        """A directory for files not yet in the table; made on first use, removed with the transaction."""
        if not self._staged:
            self._store.make_parent(f"{self._directory}/x")
            self._staged = True
        return Staging(filesystem=self._store.filesystem, directory=self._directory, txid=self.txid)

    def new_file_path(
        self, partition: Mapping[str, Any], prefix: str, ordinal: int, *, beside: DataFile | None = None
    ) -> str:
        """The final URI of a new data file in the partition with these values."""
        path = self._make_output().new_file_path(partition, prefix, ordinal, beside=beside)
        self._placed[path] = self._store.filesystem_path(path)
        return path

    def filesystem_path(self, path: str) -> str:
        """Where on the file system a file is written that was given a place."""
        return self._store.filesystem_path(path)

    def output(self) -> IcebergOutputLocation:
        """Where to write and what to call files, as a value for another process."""
        self._travelled = True
        _ = self.staging  # whose directory has to be there
        return self._make_output()

    def last_batch(self, app_id: str) -> int | None:
        """The highest batch that was committed with this ``app_id`` before the attempt began, or None."""
        return find_last_batch(self._state, app_id)

    def commit(self, change: Change) -> Committed:
        """Put the change into effect as one snapshot; one that changes nothing is only checked.

        Raises:
            CommitConflict: another writer is in the way; nothing changed.
            CommitUnknown: the catalog's answer was lost; nothing was removed.
            CommitError: the catalog refused; nothing changed.
            DamagedTable: a new file is not what it was said to be; nothing changed.
            NotSupported: delete files in a table of format version 1; nothing changed.
        """
        if self._finished:
            raise InputError(f"Transaction {self.txid} was committed already.", txid=self.txid)
        self.check(change)
        stage_only = _WAP_ID in change.properties
        validation = make_validation(change, self._context)
        if change.empty:
            head = BranchState.of(self._table.load(), self._state.branch, self._state.cache)
            validate_state(validation, self._state, head)
            self._finished = True
            return Committed(self.txid, self.snapshot.version)
        footers = self.check_written(change.added, self._store.filesystem)
        self._move_staged_files(change.added)
        added = [
            make_data_file(f, footer, self._context) for f, footer in zip(change.added, footers, strict=True)
        ]
        files = make_file_change(change, added, self._context, self._name_delete_file)
        target = CommitTarget(
            self._table.load,
            self._state,
            self._locations,
            self.txid,
            self._make_summary_properties(change),
            stage_only,
        )
        self._commit = SnapshotCommit(
            target,
            files,
            validation,
            make_snapshot_options(self._context.properties),
            retry=self._context.properties.commit_retry,
            status=self._context.properties.status_retry,
        )
        receipt = self._commit.run()
        self._finished = True
        used = {file.file_path for file in (*files.added_data, *files.added_deletes)}
        self._remove([location for path, location in self._placed.items() if path not in used])
        self._remove(self._find_failed_attempts(change.added))
        self._table.refresh(receipt.metadata, receipt.metadata_location)
        rebased = receipt.parent_id != self._state.head_id and not stage_only
        rows = self._count_rows() if rebased else None
        return Committed(self.txid, receipt.sequence_number or len(receipt.metadata.snapshots), rows)

    def close(self) -> None:
        """Remove what was written, unless it was committed or may have been."""
        if not self._finished:
            if self._commit is not None and self._commit.in_flight:
                return
            if self._staged:
                self._remove_staging()  # first: without it a task that is still at work begins no other file
            self._remove(list(self._placed.values()))
            if self._travelled:
                self._remove(self._find_files_by_mark({self.txid}))
        elif self._staged:
            self._remove_staging()

    def _count_rows(self) -> int | None:
        try:
            return self._table.snapshot().rows
        except IntarsiaError as error:  # the change is in effect all the same
            log.warning("%s: its rows could not be counted after the commit: %s", self.snapshot.root, error)
            return None

    def _make_output(self) -> IcebergOutputLocation:
        staging = Staging(filesystem=self._store.filesystem, directory=self._directory, txid=self.txid)
        return IcebergOutputLocation(self.txid, self._store, self._locations, staging)

    def _make_summary_properties(self, change: Change) -> dict[str, str]:
        """What the snapshot says beside its counts."""
        ours = {
            "engine-name": "intarsia",
            "engine-version": intarsia.__version__,
            "intarsia.operation": change.operation,
            "intarsia.txid": self.txid,
            **make_summary_info(change.counts, change.engine),
        }
        return {**change.properties, **ours}

    def _check_staged_only(self) -> None:
        """Write-audit-publish: with ``wap.id`` the snapshot is added, and no branch moves."""
        if self._state.metadata.properties.get("write.wap.enabled", "false").lower() != "true":
            raise InputError(
                f"{_WAP_ID} stages a snapshot, which this table does not allow.",
                path=self.snapshot.root,
                hint="set the table property write.wap.enabled = true",
            )
        if self._table.branch is not None:
            raise InputError(f"{_WAP_ID} and a branch do not go together.", path=self.snapshot.root)

    def check(self, change: Change) -> None:
        """Refuse a change that cannot be committed whatever other writers do; :meth:`commit` begins with it.

        Raises:
            InputError: half an idempotency key, a reserved property, a ``wap.id`` that the table does not
                allow, or files that are replaced or named twice.
            CommitUnknown: the batch was committed before, and rolled back.
            NotSupported: delete files in a table of format version 1.
        """
        check_batch(change.properties)
        if (batch := _parse_batch(change.properties)) is not None:
            check_not_rolled_back(self._state, *batch)
        for name in _RESERVED.intersection(change.properties):
            raise InputError(
                f"The summary of a snapshot has no room for a property {name!r}.",
                path=self.snapshot.root,
                hint="give it another name",
            )
        if _WAP_ID in change.properties:
            self._check_staged_only()
        if change.replaced:
            raise InputError(
                "Files of an Iceberg table are never replaced under their names.", path=self.snapshot.root
            )
        if change.position_deletes and self._state.metadata.format_version == 1:
            raise NotSupported("A table of format version 1 has no delete files.", path=self.snapshot.root)
        paths = [file.path for file in change.added]
        paths += [
            file.path
            for file in (*change.removed, *(delete_rows.file for delete_rows in change.position_deletes))
        ]
        if len(set(paths)) != len(paths):
            raise InputError("A change names one file twice.", path=self.snapshot.root)

    def check_written(
        self, added: Sequence[StagedFile], filesystem: pafs.FileSystem
    ) -> list[pq.FileMetaData]:
        """The footers of new files; raises DamagedTable where one is not what it was said to be."""
        try:
            footers = read_written(filesystem, added)
        except FileNotFoundError as error:
            raise DamagedTable(f"A new file is gone: {error}", path=self.snapshot.root) from error
        for file, footer in zip(added, footers, strict=True):
            if footer.num_rows != file.rows:
                raise DamagedTable(
                    f"The new file {file.path} has {footer.num_rows} rows instead of {file.rows}.",
                    path=file.location,
                )
        return footers

    def _move_staged_files(self, added: Sequence[StagedFile]) -> None:
        """Move files that were written to staging to their final paths."""
        for file in added:
            location = self._store.filesystem_path(file.path)
            if self.txid in file.path:  # named by this transaction, which has to remove it
                self._placed[file.path] = location
            if file.location == location:
                continue
            self._store.make_parent(location)
            try:
                self._store.filesystem.move(file.location, location)
            except OSError as error:
                raise StorageError(
                    f"Cannot move a new file to {file.path}: {error}", errno=error.errno, path=file.path
                ) from error

    def _name_delete_file(
        self, spec_id: int, partition: tuple[Any, ...] | None, suffix: str
    ) -> tuple[str, str]:
        """A name for a delete file, which lies where data files of its partition do."""
        number = len(self._placed)
        name = f"deletes-{self.txid}-{number:05d}.{suffix}"
        metadata = self._state.metadata
        texts = {}
        if partition is not None:
            texts = partition_to_texts(metadata, find_spec(metadata, spec_id), partition)
        path = self._locations.make_data_location(name, texts)
        location = self._store.filesystem_path(path)
        self._store.make_parent(location)
        self._placed[path] = location
        return path, location

    def _find_failed_attempts(self, added: Sequence[StagedFile]) -> list[str]:
        """Files of attempts in other processes that failed or were overtaken, which noted that they began."""
        if not self._travelled:
            return []
        selector = pafs.FileSelector(self._directory, allow_not_found=True)
        try:
            infos = self._store.filesystem.get_file_info(selector)
        except OSError as error:
            log.warning("%s could not be listed for failed attempts: %s", self._directory, error)
            return []
        begun = {i.base_name.removeprefix(BEGUN) for i in infos if i.base_name.startswith(BEGUN)}
        marks = {mark for mark in begun if not any(mark in file.path for file in added)}
        return self._find_files_by_mark(marks) if marks else []

    def _find_files_by_mark(self, marks: Set[str]) -> list[str]:
        """Files that other processes have written for this transaction, found by marks in their names."""
        root = self._store.filesystem_path(self._locations.data)
        selector = pafs.FileSelector(root, allow_not_found=True, recursive=True)
        try:
            infos = self._store.filesystem.get_file_info(selector)
        except OSError as error:
            log.warning("%s could not be listed for files of a failed attempt: %s", root, error)
            return []
        return [info.path for info in infos if info.is_file and any(m in info.base_name for m in marks)]

    def _remove(self, locations: Sequence[str]) -> None:
        for location in locations:
            try:
                self._store.filesystem.delete_file(location)
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("%s is not needed and could not be removed: %s", location, error)

    def _remove_staging(self) -> None:
        for left in reversed(range(_REMOVALS)):  # a task may add a note while the others are removed
            try:
                self._store.filesystem.delete_dir(self._directory)
            except FileNotFoundError:
                return
            except OSError as error:
                if not left:
                    log.warning("%s is not needed and could not be removed: %s", self._directory, error)
            else:
                return


def make_snapshot_options(properties: WriteProperties) -> SnapshotOptions:
    """How manifests are written, as the table's properties say."""
    return SnapshotOptions(
        ManifestMergeOptions(
            properties.manifest_merge, properties.manifest_target_bytes, properties.manifest_min_merge
        ),
        properties.manifest_codec,
        properties.partition_limit,
    )


REWRITE_OPERATIONS = frozenset({"compact", "optimize"})
"""Operations that move rows to other files and do not change them."""
ROW_LEVEL_COMMANDS = {
    "delete": "delete",
    "update": "update",
    "merge": "merge",
    "deduplicate": "delete",
    "overwrite": "delete",
}
"""Which of ``write.*.mode`` and ``write.*.isolation-level`` an operation goes by."""


def is_rewrite(change: Change) -> bool:
    """Whether a change leaves the rows as they are; one that drops duplicates meanwhile does not."""
    return change.operation in REWRITE_OPERATIONS and not change.exclusive


@dataclass(frozen=True, slots=True)
class ChangeContext:
    """The state, properties and file system that a change is committed with."""

    state: BranchState
    """The state it was planned on."""
    snapshot: Snapshot
    store: Store
    properties: WriteProperties


def make_data_file(staged: StagedFile, footer: pq.FileMetaData, context: ChangeContext) -> ContentFile:
    """The manifest's record of a new data file, whose spec and tuple are those it was written for."""
    if staged.tag is None:
        raise InputError(f"{staged.path} comes without the partition it was written for.", path=staged.path)
    spec_id, partition = staged.tag
    metrics = read_metrics(footer, context.state.metadata.schema(), context.properties.metrics, staged.nans)
    return ContentFile(
        content=DataFileContent.DATA,
        file_path=staged.path,
        file_format="PARQUET",
        spec_id=spec_id,
        partition=tuple(partition),
        record_count=footer.num_rows,
        file_size_in_bytes=staged.size,
        sort_order_id=0,
        **metrics,
    )


def make_file_change(
    change: Change, added: Sequence[ContentFile], context: ChangeContext, place: DeleteFileNamer
) -> FileChange:
    """The change in terms of manifests; delete files are written here.

    Raises:
        InputError: a file is not one of this table's.
        StorageError: a delete file could not be written.
    """
    deletes, superseded = _write_deletes(change.position_deletes, context, place)
    head = context.state.head
    rewrites = is_rewrite(change)
    number = head.sequence_number if rewrites and head is not None else None
    return FileChange(
        added_data=tuple(added),
        added_deletes=deletes,
        removed_data=tuple(map(get_entry, change.removed)),
        removed_deletes=superseded,
        rewrites=rewrites,
        data_sequence_number=number if context.state.metadata.format_version > 1 else None,
    )


def _write_deletes(
    position_deletes: Sequence[PositionDeletes], context: ChangeContext, place: DeleteFileNamer
) -> tuple[tuple[ContentFile, ...], tuple[ManifestEntry, ...]]:
    """Delete files for deleted rows, and the older delete files that they replace."""
    if not position_deletes:
        return (), ()
    vectors = context.state.metadata.format_version >= 3
    granularity = DeleteGranularity(context.properties.delete_granularity)
    filesystem = context.store.filesystem
    targets: list[tuple[ManifestEntry, pa.Int64Array]] = []
    superseded: list[ManifestEntry] = []
    cache = DeleteCache()
    for delete_rows in position_deletes:
        entry, positions = get_entry(delete_rows.file), delete_rows.positions
        if vectors or granularity is DeleteGranularity.FILE:
            merged = merge_positions(
                positions,
                _get_deletes(delete_rows.file),
                entry.file.file_path,
                filesystem=filesystem,
                filesystem_path=context.store.filesystem_path,
                replaced_only=not vectors,
                cache=cache,
            )
            positions = merged.positions
            superseded += merged.superseded
        targets.append((entry, positions))
    if vectors:
        written = write_vectors(targets, place=place, filesystem=filesystem)
    else:
        written = write_position_deletes(
            targets,
            place=place,
            filesystem=filesystem,
            granularity=granularity,
            target_bytes=context.properties.delete_target_bytes,
            layout=context.properties.delete_layout,
        )
    return tuple(written), tuple(superseded)


def make_validation(change: Change, context: ChangeContext) -> Validation:
    """What must still hold at the commit, by the operation and its isolation level.

    Files that are removed or get deletes must exist; an operation that copies rows must see no new deletes
    of the files that were read, nor, under serializable isolation, new files that it would have read.
    """
    operation = change.operation
    removed = list(map(get_entry, change.removed))
    position_deletes = [get_entry(delete_rows.file) for delete_rows in change.position_deletes]
    batch = _parse_batch(change.properties)
    version = context.state.metadata.format_version
    if is_rewrite(change):
        specs = frozenset(file.tag[0] for file in change.added if file.tag is not None)
        return Validation(undisturbed=removed, equalities=version == 1, specs=specs, batch=batch)
    isolation = context.properties.isolation[ROW_LEVEL_COMMANDS.get(operation, "merge")]
    # A row may be deleted twice by position delete files, but a vector has to hold all deletes of its file.
    allows_new_deletes = operation == "delete" and not change.added and version == 2
    planned = change.planned if operation in ROW_LEVEL_COMMANDS and operation != "delete" else ()
    return Validation(
        existing=position_deletes if allows_new_deletes else (),
        undisturbed=[*removed, *(() if allows_new_deletes else position_deletes), *map(get_entry, planned)],
        exclusive=change.exclusive and isolation == SERIALIZABLE,
        may_concern=_make_conflict_filter(change.reads, context),
        position_deletes=bool(position_deletes) and version == 2,
        batch=batch,
    )


def _parse_batch(properties: Mapping[str, str]) -> tuple[str, int] | None:
    return (properties["app_id"], int(properties["batch_id"])) if "app_id" in properties else None


def _make_conflict_filter(
    reads: Expr | pc.Expression | None, context: ChangeContext
) -> Callable[[ManifestEntry, TableMetadata], bool] | None:
    """Whether the condition that an operation reads by may hold in a file, by the file's metrics.

    None where every file may concern it: an expression of Arrow does not tell what it is about.
    """
    if reads is None or isinstance(reads, pc.Expression):
        return None
    names = sorted({path[0] for _, path in find_columns(reads) if len(path) == 1})
    schema = context.snapshot.schema
    known = [name for name in names if name in schema.names]
    scan: tuple[TableMetadata, TableScanContext] | None = None

    def may_concern(entry: ManifestEntry, metadata: TableMetadata) -> bool:
        nonlocal scan
        if scan is None or scan[0] is not metadata:  # once for all files that have appeared
            scan = metadata, TableScanContext(metadata, context.state.metadata.schema(), context.store)
        scan_task = scan[1].make_scan_task(entry)
        facts: dict[tuple[str, ...], Facts] = {
            (name,): _make_facts(scan_task, name, schema.field(name).type) for name in known
        }
        return not is_never_true(reads, facts)

    return may_concern


def _make_facts(scan_task: IcebergScanTask, name: str, kind: pa.DataType) -> Facts:
    low, high, nulls = scan_task.get_bounds(name)
    return Facts(
        None if low is None else to_arrow_scalar(low, kind),
        None if high is None else to_arrow_scalar(high, kind),
        nulls,
        scan_task.entry.file.record_count,
        type=kind,
    )


def get_entry(file: DataFile) -> ManifestEntry:
    """The manifest entry that a data file of a snapshot was made from."""
    if not isinstance(file.tag, ManifestEntry):
        raise InputError(f"{file.path} is not a file of an Iceberg table.", path=file.path)
    return file.tag


def _get_deletes(file: DataFile) -> Deletes:
    return file.scan_task.deletes if isinstance(file.scan_task, IcebergScanTask) else NO_DELETES
