"""Expiring snapshots and removing orphan files; a dry run unless asked otherwise.

As Java's ``RemoveSnapshots`` and Spark's ``DeleteOrphanFilesSparkAction``.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow.fs as pafs
from pyiceberg.exceptions import CommitFailedException, WaitingForLockException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
)

from intarsia.common.log import get_logger
from intarsia.errors import (
    CommitConflict,
    CommitError,
    CommitUnknown,
    InputError,
    IntarsiaError,
    NotSupported,
    StorageError,
)
from intarsia.tables.iceberg.commit import CATALOG_REFUSALS, is_sqlite_busy, remove_old_metadata
from intarsia.tables.iceberg.file_io import Store, open_store
from intarsia.tables.iceberg.properties import property_as_bool, property_as_int
from intarsia.tables.iceberg.snapshot_producer import remove_files
from intarsia.tables.iceberg.state import ManifestCache, has_live_files, iterate_ancestors
from intarsia.tables.iceberg.table import IcebergTable

log = get_logger(__name__)

_MAX_AGE_MS = 5 * 24 * 3600 * 1000
_ORPHAN_AGE = datetime.timedelta(days=3)
_FOREVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Expired:
    """Snapshots that expire, and the files that only they needed."""

    snapshots: tuple[int, ...]
    refs: tuple[str, ...]
    """Branches and tags that have outlived their own ``max-ref-age-ms``."""
    files: tuple[str, ...] = field(repr=False)
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Orphans:
    """Files below a table's location that no snapshot and no metadata file refers to."""

    files: tuple[str, ...] = field(repr=False)
    size: int
    dry_run: bool


def expire_snapshots(
    target: IcebergTable | Table,
    *,
    older_than: datetime.datetime | None = None,
    retain_last: int | None = None,
    dry_run: bool = True,
) -> Expired:
    """Remove snapshots that are too old, then the files that no other snapshot needs.

    ``target`` is a table of PyIceberg or one of :func:`intarsia.iceberg`.

    Heads of branches and tags stay, and of every branch the last ``retain_last`` snapshots and those
    younger than ``older_than``; what a branch or tag says of itself goes first, then the arguments, then
    ``history.expire.*``. Files go only after the catalog has forgotten the snapshots.

    Raises:
        NotSupported: ``gc.enabled`` is false.
        CommitConflict: a branch moved, or another process expired the same, meanwhile; nothing was changed.
        CommitError: the catalog refused; nothing was changed.
        CommitUnknown: the catalog's answer was lost; no file was removed.
    """
    if retain_last is not None and retain_last < 1:
        raise InputError(f"retain_last= must be at least 1, it is {retain_last}.")
    _check_zone(older_than)
    target = _open_target(target)
    with _name_table_in_errors(target):
        return _run_expire(target, older_than, retain_last, dry_run=dry_run)


def _run_expire(
    target: IcebergTable, older_than: datetime.datetime | None, retain_last: int | None, *, dry_run: bool
) -> Expired:
    table = target.load()
    metadata = table.metadata
    _check_gc(metadata, "expire snapshots")
    refs = _find_expired_refs(metadata)
    gone = _find_expired_snapshots(metadata, refs, older_than, retain_last)
    kept = [s for s in metadata.snapshots if s.snapshot_id not in gone]
    lost = [s for s in metadata.snapshots if s.snapshot_id in gone]
    cache = ManifestCache(table.io)
    files = (
        sorted(_find_reachable_files(cache, metadata, lost) - _find_reachable_files(cache, metadata, kept))
        if lost
        else []
    )
    result = Expired(tuple(sorted(gone)), tuple(sorted(refs)), tuple(files), dry_run)
    if dry_run or not (gone or refs):
        return result
    after = _commit_expiry(table, gone, refs)
    ids = {snapshot.snapshot_id for snapshot in kept}
    # Another writer may have created a branch on one of the expired snapshots.
    came = [snapshot for snapshot in after.snapshots if snapshot.snapshot_id not in ids]
    if came:
        files = sorted(set(files) - _find_reachable_files(cache, after, came))
        result = replace(result, files=tuple(files))
    remove_files(table.io, files)
    log.info("%s: %d snapshots expired, %d files removed", target.root, len(gone), len(files))
    return result


def remove_orphans(
    target: IcebergTable | Table, *, older_than: datetime.datetime | None = None, dry_run: bool = True
) -> Orphans:
    """Remove files below the table's location that nothing refers to, such as a crashed writer leaves.

    Places outside of it, as ``write.data.path`` may name one, are not looked at: other tables may have
    their files there.

    Only files last changed before ``older_than`` (three days ago unless given) are looked at: younger ones
    may belong to a writer at work. Files and directories whose names begin with ``.`` or ``_`` are left.

    Raises:
        NotSupported: ``gc.enabled`` is false, another table lies inside this one's location, the location
            has two names, or the table refers to files on other stores.
    """
    _check_zone(older_than)
    before = older_than or datetime.datetime.now(datetime.UTC) - _ORPHAN_AGE
    target = _open_target(target)
    with _name_table_in_errors(target):
        return _run_remove_orphans(target, before, dry_run=dry_run)


def _run_remove_orphans(target: IcebergTable, before: datetime.datetime, *, dry_run: bool) -> Orphans:
    table = target.load()
    _check_gc(table.metadata, "remove orphan files")
    store = open_store(table.io, table.metadata.location)
    # Listed before the table is loaded again, so that files committed in between are known to be in use.
    listed = _list_files(table.metadata, store)
    found = {info.path: info for info in listed if _is_old(info, before)}
    root = store.filesystem_path(table.metadata.location).rstrip("/")
    table = target.load()
    metadata = table.metadata
    cache = ManifestCache(table.io)
    used = {
        store.filesystem_path(path) for path in _find_reachable_files(cache, metadata, metadata.snapshots)
    }
    used |= {store.filesystem_path(path) for path in _list_metadata_files(table)}
    _check_no_other_table(metadata, (info.path for info in listed), used)
    orphans = sorted(path for path in found if path not in used)
    _check_no_alias(metadata, root, orphans, used - {info.path for info in listed})
    size = sum(found[path].size or 0 for path in orphans)
    if not dry_run:
        for path in orphans:
            try:
                store.filesystem.delete_file(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StorageError(f"Cannot remove {path}: {error}", errno=error.errno, path=path) from error
        log.info("%s: %d orphan files removed", target.root, len(orphans))
    return Orphans(tuple(orphans), size, dry_run)


def _open_target(target: IcebergTable | Table) -> IcebergTable:
    return target if isinstance(target, IcebergTable) else IcebergTable(target)


@contextmanager
def _name_table_in_errors(target: IcebergTable) -> Iterator[None]:
    """Make errors name the table as the catalog does, and not by its location."""
    try:
        yield
    except IntarsiaError as error:
        if (error.path or "").rstrip("/") == target.location.rstrip("/"):
            error.path = target.root
        raise


def _check_zone(moment: datetime.datetime | None) -> None:
    if moment is not None and moment.tzinfo is None:
        raise InputError("older_than= needs a time zone.", hint="datetime.now(timezone.utc) has one")


def _check_gc(metadata: TableMetadata, what: str) -> None:
    if not property_as_bool(metadata.properties, "gc.enabled", True):
        raise NotSupported(
            f"gc.enabled is false: files may be shared with another table, so this one must not {what}.",
            path=metadata.location,
        )


def _find_expired_refs(metadata: TableMetadata) -> set[str]:
    """Branches and tags older than ``max-ref-age-ms``, never main (Java's ``computeRetainedRefs``)."""
    now = int(time.time() * 1000)
    general = property_as_int(metadata.properties, "history.expire.max-ref-age-ms", _FOREVER)
    found = set()
    for name, ref in metadata.refs.items():
        snapshot = metadata.snapshot_by_id(ref.snapshot_id)
        age = ref.max_ref_age_ms or general
        if name != MAIN_BRANCH and (snapshot is None or now - snapshot.timestamp_ms > age):
            found.add(name)
    return found


def _find_expired_snapshots(
    metadata: TableMetadata, refs: set[str], older_than: datetime.datetime | None, retain_last: int | None
) -> set[int]:
    """Snapshots that no branch, tag or age retains (Iceberg spec, "Snapshot Retention Policy")."""
    now = int(time.time() * 1000)
    properties = metadata.properties
    general = now - property_as_int(properties, "history.expire.max-snapshot-age-ms", _MAX_AGE_MS)
    cutoff = general if older_than is None else int(older_than.timestamp() * 1000)
    count = retain_last or property_as_int(properties, "history.expire.min-snapshots-to-keep", 1)
    kept: set[int] = set()
    on_branches: set[int] = set()
    for name, ref in metadata.refs.items():
        if name in refs:
            continue
        kept.add(ref.snapshot_id)
        if ref.snapshot_ref_type == SnapshotRefType.BRANCH:
            line = list(iterate_ancestors(metadata.snapshot_by_id(ref.snapshot_id), metadata))
            on_branches |= {snapshot.snapshot_id for snapshot in line}
            kept |= _find_retained(line, ref, count, cutoff, now)
    # Snapshots on no branch, such as those rolled back, expire by their age alone.
    kept |= {
        s.snapshot_id
        for s in metadata.snapshots
        if s.snapshot_id not in on_branches and s.timestamp_ms >= cutoff
    }
    return {snapshot.snapshot_id for snapshot in metadata.snapshots} - kept


def _find_retained(line: Sequence[Snapshot], ref: SnapshotRef, count: int, cutoff: int, now: int) -> set[int]:
    least = ref.min_snapshots_to_keep or count
    since = cutoff if ref.max_snapshot_age_ms is None else now - ref.max_snapshot_age_ms
    return {s.snapshot_id for place, s in enumerate(line) if place < least or s.timestamp_ms >= since}


def _commit_expiry(table: Table, gone: set[int], refs: set[str]) -> TableMetadata:
    metadata = table.metadata
    requirements: tuple[TableRequirement, ...] = (
        AssertTableUUID(uuid=metadata.table_uuid),
        *(
            AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": ref.snapshot_id})
            for name, ref in metadata.refs.items()
        ),
    )
    updates: list[TableUpdate] = [
        RemoveSnapshotRefUpdate.model_validate({"ref-name": name}) for name in sorted(refs)
    ]
    updates += [
        RemovePartitionStatisticsUpdate.model_validate({"snapshot-id": found.snapshot_id})
        for found in metadata.partition_statistics
        if found.snapshot_id in gone
    ]
    if gone:
        updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": sorted(gone)}))
    try:
        response = table.catalog.commit_table(table, requirements, tuple(updates))
    except Exception as error:  # a catalog may raise anything, and may have committed all the same
        raise _to_commit_error(error, metadata.location) from error
    remove_old_metadata(table, response)
    return response.metadata


def _to_commit_error(error: Exception, where: str) -> CommitError:
    """What an error of the catalog means for an expiry."""
    busy = isinstance(error, (CommitFailedException, WaitingForLockException)) or is_sqlite_busy(error)
    if busy or type(error) is ValueError:  # PyIceberg's own checks, before anything is sent
        return CommitConflict(
            f"A branch moved while snapshots were expired, or another process expired them: {error}",
            path=where,
            hint="nothing was changed; run it again",
        )
    if isinstance(error, CATALOG_REFUSALS):
        return CommitError(
            f"The catalog refused to expire snapshots: {type(error).__name__}: {error}",
            path=where,
            hint="nothing was changed",
        )
    return CommitUnknown(
        f"The catalog's answer to an expiry was lost ({type(error).__name__}: {error}).",
        path=where,
        changed=None,
        hint="no file was removed; run it again, and remove_orphans() for files of snapshots that are gone",
    )


def _find_reachable_files(
    cache: ManifestCache, metadata: TableMetadata, snapshots: Iterable[Snapshot]
) -> set[str]:
    """All files of some snapshots, by their live entries (Java's ``ReachableFileCleanup``)."""
    paths: set[str] = set()
    ids = set()
    seen: set[str] = set()
    for snapshot in snapshots:
        ids.add(snapshot.snapshot_id)
        paths.add(snapshot.manifest_list)
        for manifest in cache.read_manifests(snapshot.manifest_list):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            if has_live_files(manifest):
                paths.update(entry.file.file_path for entry in cache.read_entries(manifest))
    statistics = (*metadata.statistics, *metadata.partition_statistics)
    return paths | seen | {found.statistics_path for found in statistics if found.snapshot_id in ids}


def _list_metadata_files(table: Table) -> set[str]:
    log = (entry.metadata_file for entry in table.metadata.metadata_log)
    hint = f"{table.metadata.location.rstrip('/')}/metadata/version-hint.text"
    return {table.metadata_location, hint, *log}


def _list_files(metadata: TableMetadata, store: Store) -> list[pafs.FileInfo]:
    """All files below the table's location, but hidden ones."""
    root = metadata.location
    location = store.filesystem_path(root).rstrip("/")
    selector = pafs.FileSelector(location, allow_not_found=True, recursive=True)
    try:
        infos = store.filesystem.get_file_info(selector)
    except OSError as error:
        raise StorageError(f"Cannot list {root}: {error}", errno=error.errno, path=root) from error
    return [i for i in infos if i.is_file and not _is_hidden(i.path[len(location) + 1 :])]


def _is_hidden(path: str) -> bool:
    return any(part[:1] in (".", "_") and "=" not in part for part in path.split("/"))


def _is_old(info: pafs.FileInfo, before: datetime.datetime) -> bool:
    return info.mtime is not None and info.mtime < before


def _check_no_other_table(metadata: TableMetadata, found: Iterable[str], used: set[str]) -> None:
    """Refuse where another table's metadata lies below: its files would all seem orphans."""
    own = {path.rpartition("/")[0] for path in used if path.endswith(".metadata.json")}
    for path in found:
        if path.endswith(".metadata.json") and path.rpartition("/")[0] not in own:
            raise NotSupported(
                f"{path} is of another table inside this one's location: its files would seem to be orphans.",
                path=metadata.location,
            )


def _check_no_alias(metadata: TableMetadata, root: str, orphans: Iterable[str], unseen: set[str]) -> None:
    """Refuse where files in use were recorded under another name of the same place, such as a link's."""
    by_name: dict[str, list[str]] = {}
    for path in unseen:
        by_name.setdefault(path.rpartition("/")[2], []).append(path)
    for orphan in orphans:
        below = orphan[len(root) :]
        for path in by_name.get(orphan.rpartition("/")[2], ()):
            if path.endswith(below):
                raise NotSupported(
                    f"{orphan} may be {path} by another name, which is in use.",
                    path=metadata.location,
                    hint="set the table's location to the name that its files are recorded by",
                )
