"""What a change of the core means for an Iceberg table: its files, its delete files, what must still hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table.metadata import TableMetadata

from intarsia.core.change import Change, StagedFile, Veil
from intarsia.core.expr import Expr, columns
from intarsia.core.files import DataFile, Snapshot
from intarsia.core.prove import Facts, never_true
from intarsia.errors import InputError
from intarsia.tables.iceberg.dead import merge_old
from intarsia.tables.iceberg.delete_cache import DeleteCache
from intarsia.tables.iceberg.delete_files import Granularity, Place, write_position_deletes, write_vectors
from intarsia.tables.iceberg.deletes import NO_DELETES, Deletes
from intarsia.tables.iceberg.entries import Content, ContentFile, Entry
from intarsia.tables.iceberg.file_system import Store
from intarsia.tables.iceberg.lens import FileLens, TableLens
from intarsia.tables.iceberg.metrics import metrics_of
from intarsia.tables.iceberg.properties import SERIALIZABLE, WriteProperties
from intarsia.tables.iceberg.schemas import arrow_scalar
from intarsia.tables.iceberg.snapshots import FileChange
from intarsia.tables.iceberg.state import State
from intarsia.tables.iceberg.validate import Validation

REWRITES = frozenset({"compact", "optimize"})
"""Operations after which the same rows are in other files."""
WRITES_AS = {
    "delete": "delete",
    "update": "update",
    "merge": "merge",
    "deduplicate": "delete",
    "overwrite": "delete",
}
"""Which of ``write.*.mode`` and ``write.*.isolation-level`` an operation goes by."""


def is_rewrite(change: Change) -> bool:
    """Whether a change leaves the rows as they are; one that drops duplicates meanwhile does not."""
    return change.operation in REWRITES and not change.exclusive


@dataclass(frozen=True, slots=True)
class Setting:
    """What a change is turned into files with."""

    state: State
    """The state it was planned on."""
    snapshot: Snapshot
    store: Store
    properties: WriteProperties


def added_file(staged: StagedFile, footer: pq.FileMetaData, setting: Setting) -> ContentFile:
    """The manifest's record of a new data file, whose spec and tuple are those it was written for."""
    if staged.tag is None:
        raise InputError(f"{staged.path} comes without the partition it was written for.", path=staged.path)
    spec_id, partition = staged.tag
    metrics = metrics_of(footer, setting.state.metadata.schema(), setting.properties, staged.nans)
    return ContentFile(
        content=Content.DATA,
        file_path=staged.path,
        file_format="PARQUET",
        spec_id=spec_id,
        partition=tuple(partition),
        record_count=footer.num_rows,
        file_size_in_bytes=staged.size,
        sort_order_id=0,
        **metrics,
    )


def file_change(change: Change, added: Sequence[ContentFile], setting: Setting, place: Place) -> FileChange:
    """The change in terms of manifests; delete files are written here.

    Raises:
        InputError: a file is not one of this table's.
        StorageError: a delete file could not be written.
    """
    deletes, superseded = _veiled(change.veiled, setting, place)
    head = setting.state.head
    rewrites = is_rewrite(change)
    number = head.sequence_number if rewrites and head is not None else None
    return FileChange(
        added_data=tuple(added),
        added_deletes=deletes,
        removed_data=tuple(map(entry_of, change.removed)),
        removed_deletes=superseded,
        rewrites=rewrites,
        data_sequence_number=number if setting.state.metadata.format_version > 1 else None,
    )


def _veiled(
    veils: Sequence[Veil], setting: Setting, place: Place
) -> tuple[tuple[ContentFile, ...], tuple[Entry, ...]]:
    """Delete files for rows that go, and the older ones that they replace."""
    if not veils:
        return (), ()
    vectors = setting.state.metadata.format_version >= 3
    granularity = Granularity(setting.properties.delete_granularity)
    filesystem = setting.store.filesystem
    targets: list[tuple[Entry, pa.Int64Array]] = []
    superseded: list[Entry] = []
    cache = DeleteCache()
    for veil in veils:
        entry, positions = entry_of(veil.file), veil.positions
        if vectors or granularity is Granularity.FILE:
            merged = merge_old(
                positions,
                _deletes_of(veil.file),
                entry.file.file_path,
                filesystem=filesystem,
                locate=setting.store.locate,
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
            target_bytes=setting.properties.delete_target_bytes,
            layout=setting.properties.delete_layout,
        )
    return tuple(written), tuple(superseded)


def validation_of(change: Change, setting: Setting) -> Validation:
    """What must still hold at the commit, by the operation and its isolation level.

    Files that go or are veiled must be there; whoever writes rows anew must also see no new deletes of the
    files that were read, nor, under serializable isolation, new files that it would have read.
    """
    operation = change.operation
    removed = list(map(entry_of, change.removed))
    veiled = [entry_of(veil.file) for veil in change.veiled]
    batch = _batch(change.properties)
    version = setting.state.metadata.format_version
    if is_rewrite(change):
        specs = frozenset(file.tag[0] for file in change.added if file.tag is not None)
        return Validation(undisturbed=removed, equalities=version == 1, specs=specs, batch=batch)
    isolation = setting.properties.isolation[WRITES_AS.get(operation, "merge")]
    # To delete a row twice does no harm, but a vector has to hold all deletes of its file.
    careless = operation == "delete" and not change.added and version == 2
    planned = change.planned if operation in WRITES_AS and operation != "delete" else ()
    return Validation(
        existing=veiled if careless else (),
        undisturbed=[*removed, *(() if careless else veiled), *map(entry_of, planned)],
        exclusive=change.exclusive and isolation == SERIALIZABLE,
        may_concern=_concern(change.reads, setting),
        position_deletes=bool(veiled) and version == 2,
        batch=batch,
    )


def _batch(properties: Mapping[str, str]) -> tuple[str, int] | None:
    return (properties["app_id"], int(properties["batch_id"])) if "app_id" in properties else None


def _concern(
    reads: Expr | pc.Expression | None, setting: Setting
) -> Callable[[Entry, TableMetadata], bool] | None:
    """Whether the condition that an operation reads by may hold in a file, by the file's metrics.

    None where every file may concern it: an expression of Arrow does not tell what it is about.
    """
    if reads is None or isinstance(reads, pc.Expression):
        return None
    names = sorted({path[0] for _, path in columns(reads) if len(path) == 1})
    schema = setting.snapshot.schema
    known = [name for name in names if name in schema.names]

    def may_concern(entry: Entry, metadata: TableMetadata) -> bool:
        lens = TableLens(metadata, setting.state.metadata.schema(), setting.store).lens(entry)
        facts: dict[tuple[str, ...], Facts] = {
            (name,): _facts(lens, name, schema.field(name).type) for name in known
        }
        return not never_true(reads, facts)

    return may_concern


def _facts(lens: FileLens, name: str, kind: pa.DataType) -> Facts:
    low, high, nulls = lens.bounds(name)
    return Facts(
        None if low is None else arrow_scalar(low, kind),
        None if high is None else arrow_scalar(high, kind),
        nulls,
        lens.entry.file.record_count,
        type=kind,
    )


def entry_of(file: DataFile) -> Entry:
    """The manifest entry that a data file of a snapshot was made from."""
    if not isinstance(file.tag, Entry):
        raise InputError(f"{file.path} is not a file of an Iceberg table.", path=file.path)
    return file.tag


def _deletes_of(file: DataFile) -> Deletes:
    return file.lens.deletes if isinstance(file.lens, FileLens) else NO_DELETES
