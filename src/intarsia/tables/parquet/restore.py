"""Earlier states of a dataset: which can be brought back, of what, and the commit that does it.

A commit with ``retain=`` keeps its record and the files that it has replaced or removed. Going through the
records from a version to the last one, the first that names a path has what was there after that version, and
the last one what is there now, unless a writer that does not know the log has changed it since.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from intarsia.core.change import Change, Committed, Replacement, StagedFile
from intarsia.core.file_table import FileTable
from intarsia.core.history import Commit, CommitInfo, History, RowCounts, parse_count, parse_time
from intarsia.core.layout import read_elements
from intarsia.core.restoration import Restoration, ReturningFile
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.errors import CommitConflict, RestoreError
from intarsia.storage import ObjectStorage
from intarsia.tables.parquet.control import Control
from intarsia.tables.parquet.footers import read_footers
from intarsia.tables.parquet.record import DatasetMetadata, FileAdd, FileRemove, Record, parse_metadata

if TYPE_CHECKING:
    from intarsia.tables.parquet.table import ParquetTransaction

__all__ = ["FoundRestoration", "commit_restoration", "find_restoration", "make_history"]

RESTORED = "restored_version"
"""Property of the commit of a restore: the version that it brought back."""
_FENCE = "sweep"
"""Operation of a record that only takes a number from a writer that is gone."""
_RETAINED = re.compile(r"^(\d{12})-([0-9a-f]{32})$")
_OWN = re.compile(r"-[0-9a-f]{32}-[0-9]{5,}\.parquet$")
_WORKERS = 8
Note = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CommitLog:
    """What is known of a dataset's commits: a note of each, and where the files are that some have kept."""

    control: Control
    version: int
    notes: Mapping[int, list[Note]]
    kept: Mapping[tuple[int, str], str]
    """By number and transaction: the directory of the files that it has replaced or removed."""
    pending: Mapping[tuple[int, str], Record]
    """Records of commits that are not cleaned up yet."""

    @staticmethod
    def read(control: Control) -> CommitLog:
        state = control.read_log()
        notes: dict[int, list[Note]] = {}
        for note in control.read_notes():
            notes.setdefault(note["seq"], []).append(note)
        found = (_RETAINED.match(name) for name in control.storage.names(control.retained))
        kept = {(int(one[1]), one[2]): f"{control.retained}/{one[0]}" for one in found if one}
        if control.storage.atomic:  # a power cut may bring back a part of what was removed
            kept = {key: one for key, one in kept.items() if control.storage.stat(f"{one}/intent.json")}
        pending = {(one.seq, one.txid): one for one in (*state.undone, *state.unclean) if one.retain}
        kept |= {key: f"{control.make_staging_path(key[1])}/old" for key in pending}
        return CommitLog(control, state.version, notes, kept, pending)

    def list_missing(self, number: int) -> list[Note]:
        """The commits of a number whose files are not kept; those that changed no file need none."""
        return [
            note
            for note in self.notes.get(number, [{}])
            if _has_files(note) and (number, str(note.get("txid"))) not in self.kept
        ]

    def find_oldest(self) -> int:
        """The oldest version that can be restored, as far as the log tells."""
        for number in range(self.version, 0, -1):
            if self.list_missing(number):
                return number
        return 0 if self.version and not self._began_here() else min(self.version, 1)

    def _began_here(self) -> bool:
        """Whether there was no dataset before the first commit."""
        return any(record.fresh for record, _ in self.iterate_records(0, 1))

    def list_versions(self) -> tuple[int, ...]:
        """The versions that can be restored, newest first."""
        return tuple(range(self.version, self.find_oldest() - 1, -1)) if self.version else ()

    def find_equal(self, version: int) -> int:
        """The latest version that is the same state: a restore of it, or a restore of that."""
        for number in range(self.version, version, -1):
            for note in self.notes.get(number, ()):
                said = parse_count(_get_properties(note).get(RESTORED))
                if note.get("operation") == "restore" and said == version:
                    return self.find_equal(number)
        return version

    def iterate_records(self, after: int, until: int) -> Iterator[tuple[Record, str]]:
        """The records of commits after a version up to another, with the directory of their files."""
        for key in sorted(key for key in self.kept if after < key[0] <= until):
            directory = self.kept[key]
            record = self.pending.get(key)
            if record is None:
                where = f"{directory}/intent.json"
                record = Record.from_json(self.control.storage.read(where), where)
            yield record, directory

    def find_metadata(self, version: int) -> DatasetMetadata | None:
        """Schema and partition columns after a version that had no file; None where it had some."""
        for note in self.notes.get(version, ()):
            found = parse_metadata(note.get("metadata"), f"{self.control.log}/{version:012d}.done")
            if found is not None:
                return found
        return None

    def find_after(self, version: int) -> CommitInfo:
        """What the commit of a version has noted of the state after it."""
        notes = self.notes.get(version, ())
        return CommitInfo.from_json(notes[0].get("info")) if len(notes) == 1 else CommitInfo()


def _is_fence(note: Note) -> bool:
    return note.get("operation") == _FENCE


def _has_files(note: Note) -> bool:
    files = note.get("files")
    return not (isinstance(files, list) and len(files) == 3 and not any(files))


def _get_properties(note: Note) -> dict[str, str]:
    raw = note.get("properties")
    return {str(key): str(value) for key, value in raw.items()} if isinstance(raw, dict) else {}


# History


def make_history(control: Control, shown: str) -> History:
    """The commits that the log knows, newest first."""
    log = CommitLog.read(control)
    oldest = log.find_oldest()
    commits = [
        _make_commit(note, restorable=number >= oldest)
        for number in sorted(log.notes, reverse=True)
        for note in log.notes[number]
        if not _is_fence(note)
    ]
    first = min(log.notes, default=0)
    notes = (f"Commits before version {first} are not listed any more.",) if first > 1 else ()
    fences = {number for number, found in log.notes.items() if all(map(_is_fence, found))}
    restorable = tuple(number for number in log.list_versions() if number not in fences)
    return History(shown, tuple(commits), log.version, notes=notes, restorable=restorable)


def _make_commit(note: Note, *, restorable: bool) -> Commit:
    info, said = CommitInfo.from_json(note.get("info")), _get_properties(note)
    files = note.get("files")
    known = isinstance(files, list) and len(files) == 3 and all(type(count) is int for count in files)
    added, replaced, removed = files if known and isinstance(files, list) else (None, None, None)
    return Commit(
        version=note["seq"],
        operation=str(note.get("operation", "")),
        time=parse_time(info.time),
        user=info.user,
        program=info.program,
        engine=info.engine,
        inserted=info.inserted,
        updated=info.updated,
        deleted=info.deleted,
        files_added=added,
        files_replaced=replaced,
        files_removed=removed,
        bytes_written=info.bytes_written,
        rows_after=info.rows_after,
        bytes_after=info.bytes_after,
        app_id=said.get("app_id"),
        batch_id=parse_count(said.get("batch_id")),
        txid=str(note["txid"]) if "txid" in note else None,
        restorable=restorable,
        properties={key: value for key, value in said.items() if key not in ("app_id", "batch_id")},
    )


# Restoring


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A former file: where it was, and where it is kept."""

    path: str
    location: str
    was: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class FoundRestoration:
    """What a restore does, and the files that it does it with, in the order of ``value.returning``."""

    value: Restoration
    files: tuple[KeptFile, ...] = ()
    metadata: DatasetMetadata | None = field(default=None, repr=False)


def find_restoration(control: Control, now: Snapshot, version: int) -> FoundRestoration:
    """How the state after a version is brought back; reads records and footers, writes nothing.

    Raises:
        RestoreError: the version is unknown, its files are not retained, or others have changed files since.
    """
    log = CommitLog.read(control)
    if log.version != now.version:
        raise CommitConflict(f"{now.root} was changed while it was read.", path=now.root)
    _check_known(log, now, version)
    start = log.find_equal(version)
    if start == log.version:
        return FoundRestoration(Restoration(version, now, is_empty=True))
    wanted, left = _go_back(log, start)
    current = _select_files(now, left)
    _check_untouched(log, now, version, current, left, wanted)
    in_place = control.storage.atomic
    different = [
        (path, kept) for path, kept in sorted(wanted.items()) if not _is_there(current.get(path), kept)
    ]
    files = tuple(_check_kept(log, version, kept) for _, kept in different if kept is not None)
    footers = read_footers(control.storage.filesystem, [file.location for file in files])
    returning = tuple(
        ReturningFile(
            file.path,
            footer.metadata.num_rows,
            int(file.was[0]),
            current.get(file.path) if in_place else None,
        )
        for file, footer in zip(files, footers, strict=True)
    )
    removed = tuple(
        current[path] for path, kept in different if path in current and (kept is None or not in_place)
    )
    metadata = log.find_metadata(start)
    found = Restoration(
        version,
        now,
        returning,
        removed,
        schema=None if metadata is None else metadata.to_arrow_schema(),
        bytes_copied=0 if in_place else sum(file.size for file in returning),
        is_empty=not different and metadata == log.find_metadata(log.version),
    )
    notes = (*_note_others(log, found, start), *_note_names(found, in_place=in_place))
    return FoundRestoration(replace(found, notes=notes), files, metadata)


def _check_known(log: CommitLog, now: Snapshot, version: int) -> None:
    if not now.exists and not log.version:
        raise RestoreError("there is no such dataset.", path=now.root, hint="check the path.")
    if version > log.version:
        raise _make_error(log, now, version, f"the last commit is version {log.version}")
    if version < log.find_oldest() and log.find_equal(version) < log.find_oldest():
        raise _make_error(log, now, version, _explain_oldest(log))


def _explain_oldest(log: CommitLog) -> str:
    oldest = log.find_oldest()
    missing = log.list_missing(oldest)
    if not missing:
        return "there was no dataset before the first commit"
    if not missing[0]:
        return f"what commit {oldest} has changed is not known any more"
    info = CommitInfo.from_json(missing[0].get("info"))
    by = f" by {info.user}" if info.user else ""
    what = missing[0].get("operation")
    return f"what version {oldest} (operation {what}{by}) has replaced and removed is not retained"


def _make_error(log: CommitLog, now: Snapshot, version: int, why: str) -> RestoreError:
    versions = log.list_versions()
    can = f"versions {versions[-1]} to {versions[0]} can be restored" if versions else "none can be restored"
    return RestoreError(
        f"version {version} of {now.root} cannot be restored: {why}; {can}.",
        path=now.root,
        hint="history() lists the versions; retain= of an operation keeps what it replaces.",
        versions=versions,
    )


def _go_back(
    log: CommitLog, version: int
) -> tuple[dict[str, KeptFile | None], dict[str, tuple[Record, FileAdd | None]]]:
    """By path: what was there after a version, and what the last commit has left there since."""
    wanted: dict[str, KeptFile | None] = {}
    left: dict[str, tuple[Record, FileAdd | None]] = {}
    for record, directory in log.iterate_records(version, log.version):
        for item in record.files:
            wanted.setdefault(item.path, _find_former(item, directory))
            left[item.path] = (record, item if isinstance(item, FileAdd) else None)
    return wanted, left


def _find_former(item: FileAdd | FileRemove, directory: str) -> KeptFile | None:
    if item.was is None or item.kept is None:
        return None
    return KeptFile(item.path, f"{directory}/{item.kept}", item.was)


def _select_files(now: Snapshot, paths: Iterable[str]) -> dict[str, DataFile]:
    wanted = set(paths)
    if isinstance(now.files, FileTable):
        return {file.path: file for file in (now.files[one] for one in now.files.find_numbers(wanted))}
    return {file.path: file for file in now.files if file.path in wanted}


def _check_untouched(
    log: CommitLog,
    now: Snapshot,
    version: int,
    current: Mapping[str, DataFile],
    left: Mapping[str, tuple[Record, FileAdd | None]],
    wanted: Mapping[str, KeptFile | None],
) -> None:
    """Refuse where somebody who does not know the log has changed a file that the restore is about."""
    gone = [path for path, (_, add) in left.items() if add is not None and path not in current]
    anew = [path for path, (_, add) in left.items() if add is None and path in current and wanted[path]]
    ours = [(current[path], *one) for path, one in left.items() if path in current and one[1] is not None]
    with ThreadPoolExecutor(_WORKERS, "intarsia-restore") as pool:
        same = list(pool.map(lambda one: _is_ours(log.control, *one), ours))
    changed = [file.path for (file, *_), is_same in zip(ours, same, strict=True) if not is_same]
    for paths, what in ((gone, "removed"), (changed, "changed"), (anew, "written again")):
        if paths:
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            raise _make_error(
                log,
                now,
                version,
                f"another writer has {what} {now.show_path(min(paths))}{more} since the last commit",
            )


def _is_ours(control: Control, file: DataFile, record: Record, add: FileAdd | None) -> bool:
    """Whether a file is what a commit has put there."""
    if add is None or add.made is None:
        return False
    if control.storage.atomic:
        return _is_same(file.fingerprint, add.made)
    if file.size != add.made[0]:
        return False
    storage = control.storage
    if not isinstance(storage, ObjectStorage) or not storage.conditional:
        return True  # whoever calls vouches that nobody else writes
    staged = f"{control.make_staging_path(record.txid)}/"
    return file.location.startswith(staged) or storage.find_writer(file.location) == record.txid


def _is_same(found: tuple[Any, ...], was: tuple[Any, ...]) -> bool:
    """By size and time of change; a copy of the whole dataset has other inodes."""
    return tuple(found[:2]) == tuple(was[:2])


def _is_there(file: DataFile | None, kept: KeptFile | None) -> bool:
    if file is None or kept is None:
        return file is None and kept is None
    return tuple(file.fingerprint) == tuple(kept.was)


def _check_kept(log: CommitLog, version: int, kept: KeptFile) -> KeptFile:
    """Refuse a kept file that is gone, or that was written to: a hard link shares its bytes."""
    entry = log.control.storage.stat(kept.location)
    same = (
        entry is not None
        and entry.kind == "file"
        and (
            _is_same(entry.fingerprint, kept.was) if log.control.storage.atomic else entry.size == kept.was[0]
        )
    )
    if not same:
        what = "is gone" if entry is None else "was written to"
        raise RestoreError(
            f"version {version} cannot be restored: the former {kept.path}, kept as {kept.location}, {what}.",
            path=log.control.root,
        )
    return kept


def _note_others(log: CommitLog, found: Restoration, version: int) -> tuple[str, ...]:
    """What other writers have done to files that no commit names stays; a note where it shows."""
    known = log.find_after(version).rows_after
    if known is None or known == found.rows_after:
        return ()
    return (
        f"There were {known:,} rows after version {found.version}, and there will be {found.rows_after:,}:"
        " files that writers without the log have added, changed or removed stay as they are.",
    )


def _note_names(found: Restoration, *, in_place: bool) -> tuple[str, ...]:
    if in_place or not found.returning:
        return ()
    return (
        "On this store files come back under new names, and then the others go: who lists the directory"
        " meanwhile may see rows twice, never too few.",
    )


def commit_restoration(
    transaction: ParquetTransaction, found: FoundRestoration, properties: Mapping[str, str]
) -> tuple[Restoration, Committed]:
    """Stage the former files and commit the change."""
    value, storage, staging = found.value, transaction.storage, transaction.staging
    staged: list[StagedFile] = []
    replaced: list[Replacement] = []
    returning: list[ReturningFile] = []
    for number, (file, back) in enumerate(zip(found.files, value.returning, strict=True)):
        path = file.path if storage.atomic else _make_name(transaction, file, number)
        location = staging.make_location(f"restored-{number:05d}")
        storage.make_hard_link(file.location, location)
        one = StagedFile(location, path, back.rows, back.size, retyped=_list_columns(back.replaces))
        returning.append(replace(back, path=path))
        if back.replaces is None:
            staged.append(one)
        else:
            replaced.append(Replacement(back.replaces, one))
    metadata = found.metadata
    difference = value.rows_after - value.now.rows
    change = Change(
        "restore",
        replaced=tuple(replaced),
        added=tuple(staged),
        removed=value.removed,
        exclusive=False,
        properties={**properties, RESTORED: str(value.version)},
        schema=None if metadata is None else metadata.to_arrow_schema(),
        partition_columns=() if metadata is None else metadata.partition_columns,
        counts=RowCounts(max(difference, 0), 0, max(-difference, 0)),
    )
    transaction.former_metadata = metadata
    return replace(value, returning=tuple(returning)), transaction.commit(change)


def _make_name(transaction: ParquetTransaction, file: KeptFile, number: int) -> str:
    """A name that nobody had: on a store, a late request may still be on its way to the former one."""
    name = posixpath.basename(file.path)
    prefix = _OWN.sub("", name).removesuffix(".parquet")
    beside = DataFile(file.path, "", 0, 0)
    return transaction.new_file_path({}, prefix, number, beside=beside)


def _list_columns(replaced: DataFile | None) -> frozenset[str]:
    """Every column of a file: the one that comes back may store each otherwise."""
    elements = None if replaced is None or replaced.footer is None else read_elements(replaced.footer)
    return frozenset() if elements is None else frozenset(elements.columns)
