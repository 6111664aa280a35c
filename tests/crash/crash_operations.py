"""What the crash tests crash: named operations on a small dataset, and how to read its rows without intarsia.

To put another operation under test, add an Operation to OPERATIONS. Rows are (p, k, v); k is the key.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from crash_side_files import add_side_files

import intarsia
from intarsia.core.change import Change, Replacement, StagedFile
from intarsia.storage import PosixStorage
from intarsia.tables.parquet import ParquetTable, ParquetTransaction, footer_cache
from intarsia.tables.parquet.journal import Journal
from intarsia.tables.parquet.record import Record

ERRORS = ("EIO", "ENOSPC", "EACCES", "EDQUOT", "EMFILE", "EINTR")
"""What calls fail with."""
Row = tuple[int, int, int]
State = dict[tuple[int, int], int]
"""(p, k) to v."""

FILES: dict[str, list[Row]] = {
    "p=0/a.parquet": [(0, 1, 0), (0, 2, 0)],
    "p=0/b.parquet": [(0, 3, 0), (0, 4, 0)],
    "p=1/c.parquet": [(1, 5, 0), (1, 6, 0)],
    "p=1/d.parquet": [(1, 7, 0), (1, 8, 0)],
}
OLD: State = {(p, k): v for rows in FILES.values() for p, k, v in rows}


@dataclass(frozen=True)
class Operation:
    """``run`` turns the rows ``old`` into ``new`` and is one transaction.

    ``in_place`` says that rows stay in their file (or go, or come in files of their own), so that a reader
    which only lists the directory must see every key once, at every instant. Otherwise it may see rows
    twice, but never lose one.
    """

    name: str
    run: Callable[[str], None]
    new: State
    old: State
    in_place: bool
    recover: Callable[[str], None] | None = None
    fresh: bool = False
    files: int | None = None
    """How many files there are afterwards; tells old from new where the rows cannot."""
    side_files: bool = False
    """Hadoop and Dask have been here: every file has a checksum beside it, and all of them a summary."""

    before: Callable[[str], None] | None = None
    """Makes the old state of the dataset, with what it retains."""

    def setup(self, root: str) -> None:
        if not self.fresh:
            make_dataset(root)
        if self.before is not None:
            self.before(root)
        if self.side_files:
            add_side_files(root)


def make_dataset(root: str) -> None:
    for path, rows in FILES.items():
        os.makedirs(os.path.dirname(f"{root}/{path}"), exist_ok=True)
        write_file(f"{root}/{path}", rows)


def as_table(rows: Iterable[Row]) -> pa.Table:
    found = list(rows)
    keys = pa.array([k for _, k, _ in found], pa.int64())
    return pa.table({"k": keys, "v": pa.array([v for _, _, v in found], pa.int64())})


def write_file(path: str, rows: Iterable[Row]) -> None:
    pq.write_table(as_table(rows), path)


def read_rows(root: str) -> list[Row]:
    """The rows that a reader sees who lists the directory, file by file."""
    found: list[Row] = []
    for directory, _, names in os.walk(root):
        for name in names:
            if name.endswith(".parquet"):
                part = os.path.basename(directory).removeprefix("p=")
                found += read_file(f"{directory}/{name}", int(part))
    return found


def count_files(root: str) -> int:
    return sum(name.endswith(".parquet") for _, _, names in os.walk(root) for name in names)


def read_file(path: str, partition: int) -> list[Row]:
    with pq.ParquetFile(path) as file:
        table = file.read(use_threads=False)
    return [(partition, k, v) for k, v in zip(*table.to_pydict().values(), strict=True)]


def listing_problems(operation: Operation, rows: list[Row]) -> list[str]:
    """What a reader that only lists must never see, whatever was interrupted."""
    found = Counter((p, k) for p, k, _ in rows)
    allowed = {
        *((*pk, v) for pk, v in operation.old.items()),
        *((*pk, v) for pk, v in operation.new.items()),
    }
    problems = [f"row {row} was never written" for row in rows if row not in allowed]
    kept = operation.old.keys() & operation.new.keys()
    if operation.in_place:
        problems += [f"key {key} seen {count} times" for key, count in found.items() if count > 1]
        problems += [f"key {key} lost" for key in kept if key not in found]
    else:
        seen = set(rows)
        whole = [{(*pk, v) for pk, v in state.items()} <= seen for state in (operation.old, operation.new)]
        problems += [] if any(whole) else ["neither all old nor all new rows are there"]
    return problems


# The four shapes of a transaction, straight on the table.


def stage(transaction: ParquetTransaction, label: str, rows: list[Row], path: str) -> StagedFile:
    location = transaction.staging.make_location(label)
    pq.write_table(as_table(rows), location, write_page_checksum=True)
    return StagedFile(location, path, len(rows), os.path.getsize(location), {"p": rows[0][0]})


def replace_and_add(root: str) -> None:
    """As an upsert does: two files replaced, rows added to an old partition and to a new one."""
    with ParquetTable(root).transaction("upsert") as transaction:
        files = {file.path: file for file in transaction.snapshot.files}
        replaced = tuple(
            Replacement(
                files[path], stage(transaction, f"r{n}", [(p, k, 1) for p, k, _ in FILES[path]], path)
            )
            for n, path in enumerate(("p=0/a.parquet", "p=1/c.parquet"))
        )
        added = tuple(
            stage(transaction, f"a{p}", [(p, 9, 1)], transaction.new_file_path({"p": p}, "part", p))
            for p in (1, 2)
        )
        planned = transaction.snapshot.files
        transaction.commit(Change("upsert", replaced=replaced, added=added, planned=planned))


def remove_and_replace(root: str) -> None:
    """As a delete or full_merge does: a partition goes, a file loses a row."""
    with ParquetTable(root).transaction("delete") as transaction:
        files = {file.path: file for file in transaction.snapshot.files}
        new = stage(transaction, "r", [(0, 2, 0)], "p=0/a.parquet")
        transaction.commit(
            Change(
                "delete",
                replaced=(Replacement(files["p=0/a.parquet"], new),),
                removed=(files["p=1/c.parquet"], files["p=1/d.parquet"]),
                planned=transaction.snapshot.files,
            )
        )


def compact(root: str) -> None:
    """Rows move to new files, the old ones go."""
    with ParquetTable(root).transaction("compact") as transaction:
        rows = {p: [row for row in OLD_ROWS if row[0] == p] for p in (0, 1)}
        added = tuple(
            stage(transaction, f"c{p}", rows[p], transaction.new_file_path({"p": p}, "compacted", p))
            for p in (0, 1)
        )
        files = transaction.snapshot.files
        transaction.commit(Change("compact", added=added, removed=files, planned=files))


def overwrite(root: str) -> None:
    """Other rows, in one partition that is new; all that was there goes."""
    with ParquetTable(root).transaction("overwrite") as transaction:
        added = tuple(
            stage(
                transaction, f"o{p}", [(p, 1, 2), (p, 9, 2)], transaction.new_file_path({"p": p}, "part", p)
            )
            for p in (1, 3)
        )
        transaction.commit(
            Change("overwrite", added=added, removed=transaction.snapshot.files, exclusive=False)
        )


def create(root: str) -> None:
    """A dataset that was not there."""
    with ParquetTable(root).transaction("write") as transaction:
        added = tuple(
            stage(transaction, f"n{p}", [(p, 1, 2)], transaction.new_file_path({"p": p}, "part", p))
            for p in (0, 1)
        )
        transaction.commit(Change("write", added=added))


def recover(root: str) -> None:
    ParquetTable(root).recover()


# The same as a user runs it.


def source(rows: Iterable[Row]) -> pa.Table:
    found = list(rows)
    return as_table(found).append_column("p", pa.array([p for p, _, _ in found], pa.int64()))


def api_upsert(root: str) -> None:
    intarsia.merge(source((p, k, 1) for p, k in [*CHANGED, (1, 9), (2, 9)]), root, on=["p", "k"])


def _cache_footers() -> None:
    """Keep a cache of footers of few files, too, however young; in this process."""
    footer_cache.MANY_FILES = 1
    footer_cache._YOUNG_NS = -(10**9)


def cached_upsert(root: str) -> None:
    """With a cache that is written after the commit."""
    _cache_footers()
    api_upsert(root)


def cached_recover(root: str) -> None:
    """Whoever comes next meets the cache as it was left."""
    _cache_footers()
    api_recover(root)
    intarsia.inspect(root)


def api_full_merge(root: str) -> None:
    rows = [(p, k, v) for (p, k), v in MERGED.items()]
    intarsia.merge(source(rows), root, on=["p", "k"], strategy="full_merge")


def api_compact(root: str) -> None:
    intarsia.compact(root)


def api_overwrite(root: str) -> None:
    rows = [(p, k, v) for (p, k), v in OVERWRITTEN.items()]
    intarsia.write(source(rows), root, mode="overwrite", partition_by=["p"])


def duckdb_upsert(root: str) -> None:
    intarsia.merge(
        source((p, k, 1) for p, k in [*CHANGED, (1, 9), (2, 9)]),
        root,
        on=["p", "k"],
        engine="duckdb",
        threads=1,
        spool_dir=os.path.dirname(root),
    )


def duckdb_compact(root: str) -> None:
    intarsia.compact(root, engine="duckdb", threads=1, spool_dir=os.path.dirname(root))


def api_delete_all(root: str) -> None:
    intarsia.delete(root, "true")


def api_create_empty(root: str) -> None:
    intarsia.write(source([]), root, partition_by=["p"])


def api_recover(root: str) -> None:
    intarsia.recover(root)


def delete_retaining(root: str) -> None:
    intarsia.delete(root, "p = 1 or k = 1", retain=5)


def upsert_retaining(root: str) -> None:
    intarsia.merge(source((p, k, 1) for p, k in [*CHANGED, (1, 9), (2, 9)]), root, on=["p", "k"], retain=5)


def empty_and_overwrite_retaining(root: str) -> None:
    intarsia.delete(root, "true", retain=5)
    rows = [(p, k, v) for (p, k), v in OVERWRITTEN.items()]
    intarsia.write(source(rows), root, mode="overwrite", partition_by=["p"], retain=5)


def api_restore_first(root: str) -> None:
    """The state before the first commit, which other programs have made."""
    intarsia.restore(root, 0)


def api_restore_empty(root: str) -> None:
    intarsia.restore(root, 1, retain=0)


CHANGED = [(0, 1), (0, 2), (1, 5), (1, 6)]
MERGED: State = {(0, 1): 1, (0, 3): 0, (3, 1): 1}
OLD_ROWS: list[Row] = [row for rows in FILES.values() for row in rows]
UPSERTED: State = OLD | {(0, 1): 1, (0, 2): 1, (1, 5): 1, (1, 6): 1}
UPSERTED |= {(1, 9): 1, (2, 9): 1}
DELETED: State = {(0, 2): 0, (0, 3): 0, (0, 4): 0}
OVERWRITTEN: State = {(1, 1): 2, (1, 9): 2, (3, 1): 2, (3, 9): 2}

OPERATIONS = [
    Operation("replace and add", replace_and_add, UPSERTED, OLD, in_place=True, recover=recover),
    Operation("remove and replace", remove_and_replace, DELETED, OLD, in_place=True, recover=recover),
    Operation("compact", compact, OLD, OLD, in_place=False, recover=recover, files=2),
    Operation("overwrite", overwrite, OVERWRITTEN, OLD, in_place=False, recover=recover),
    Operation("create", create, {(0, 1): 2, (1, 1): 2}, {}, in_place=True, recover=recover, fresh=True),
    Operation("intarsia.merge, upsert", api_upsert, UPSERTED, OLD, in_place=True, recover=api_recover),
    Operation("intarsia.merge, full_merge", api_full_merge, MERGED, OLD, in_place=True, recover=api_recover),
    Operation("intarsia.compact", api_compact, OLD, OLD, in_place=False, recover=api_recover, files=2),
    Operation(
        "intarsia.write overwrite", api_overwrite, OVERWRITTEN, OLD, in_place=False, recover=api_recover
    ),
    Operation(
        "upsert with a cache of footers", cached_upsert, UPSERTED, OLD, in_place=True, recover=cached_recover
    ),
    Operation("upsert on DuckDB", duckdb_upsert, UPSERTED, OLD, in_place=True, recover=api_recover),
    Operation("compact on DuckDB", duckdb_compact, OLD, OLD, in_place=False, recover=api_recover, files=2),
    Operation("intarsia.delete of all rows", api_delete_all, {}, OLD, in_place=True, recover=api_recover),
    Operation(
        "intarsia.write without rows",
        api_create_empty,
        {},
        {},
        in_place=True,
        recover=api_recover,
        fresh=True,
    ),
    Operation(
        "intarsia.restore after a delete",
        api_restore_first,
        OLD,
        DELETED,
        in_place=True,
        recover=api_recover,
        before=delete_retaining,
    ),
    Operation(
        "intarsia.restore after an upsert",
        api_restore_first,
        OLD,
        UPSERTED,
        in_place=True,
        recover=api_recover,
        before=upsert_retaining,
    ),
    Operation(
        "intarsia.restore of no rows",
        api_restore_empty,
        {},
        OVERWRITTEN,
        in_place=True,
        recover=api_recover,
        before=empty_and_overwrite_retaining,
    ),
    Operation(
        "side files, replace and add",
        replace_and_add,
        UPSERTED,
        OLD,
        in_place=True,
        recover=recover,
        side_files=True,
    ),
    Operation(
        "side files, remove and replace",
        remove_and_replace,
        DELETED,
        OLD,
        in_place=True,
        recover=recover,
        side_files=True,
    ),
    Operation(
        "side files, intarsia.compact",
        api_compact,
        OLD,
        OLD,
        in_place=False,
        recover=api_recover,
        files=2,
        side_files=True,
    ),
    Operation(
        "side files, upsert on DuckDB",
        duckdb_upsert,
        UPSERTED,
        OLD,
        in_place=True,
        recover=api_recover,
        side_files=True,
    ),
]


def merge_retaining(root: str) -> None:
    """No two files have the same bytes: the model of a disk knows files by them."""
    intarsia.merge(source([(0, 1, 1), (1, 5, 1), (1, 9, 1), (2, 10, 1)]), root, on=["p", "k"], retain=5)


def delete_retaining_one(root: str) -> None:
    intarsia.delete(root, "p = 1 or k = 1", retain=1)


MERGED_RETAINING: State = OLD | {(0, 1): 1, (1, 5): 1, (1, 9): 1, (2, 10): 1}
RETAINING = [
    Operation("delete with retain=", delete_retaining, DELETED, OLD, in_place=True, recover=api_recover),
    Operation(
        "merge with retain=", merge_retaining, MERGED_RETAINING, OLD, in_place=True, recover=api_recover
    ),
    Operation(
        "delete with retain=1",
        delete_retaining_one,
        DELETED | {(2, 10): 1},
        MERGED_RETAINING,
        in_place=True,
        recover=api_recover,
        before=merge_retaining,
    ),
]
"""What is undone after a power cut; where something was retained before, it goes."""


# Ways to get it wrong. A sweep that does not catch each of them proves nothing.

_DISK = PosixStorage()
_NEW = {path: [(p, k, 1) for p, k, _ in FILES[path]] for path in ("p=0/a.parquet", "p=1/c.parquet")}
CONTROLLED: State = OLD | {(p, k): v for rows in _NEW.values() for p, k, v in rows}


def _staged_aside(root: str, prefix: str = "") -> dict[str, str]:
    """The new files, written and synced beside the dataset: where each is to go, and where it is."""
    aside = f"{os.path.dirname(root)}/aside"
    _DISK.make_directories(aside)
    staged = {}
    for path, rows in _NEW.items():
        directory, name = os.path.split(path)
        staged[f"{directory}/{prefix}{name}"] = where = f"{aside}/{name}.part"
        write_file(where, rows)
        _DISK.sync(where)
    return staged


def remove_first(root: str) -> None:
    staged = _staged_aside(root)
    for path in staged:
        _DISK.remove(f"{root}/{path}")
    for path, where in staged.items():
        _DISK.move(where, f"{root}/{path}")


def add_first(root: str) -> None:
    for path, where in _staged_aside(root, "new-").items():
        _DISK.move(where, f"{root}/{path}")
    for path in _NEW:
        _DISK.remove(f"{root}/{path}")


def overwrite_in_place(root: str) -> None:
    for path, where in _staged_aside(root).items():
        _DISK.write(f"{root}/{path}", _DISK.read(where))


def _consume(self: PosixStorage, source: str, spare: str, target: str) -> None:
    self.move(source, target)


def consume_the_staged_file(root: str) -> None:
    """The journal as it is, but for publishing the only staged name instead of a twin."""
    honest = PosixStorage.publish
    PosixStorage.publish = _consume  # type: ignore[method-assign]
    try:
        replace_and_add(root)
    finally:
        PosixStorage.publish = honest  # type: ignore[method-assign]


def _recover_consuming(root: str) -> None:
    honest = PosixStorage.publish
    PosixStorage.publish = _consume  # type: ignore[method-assign]
    try:
        recover(root)
    finally:
        PosixStorage.publish = honest  # type: ignore[method-assign]


def _side_files_last(self: Journal, record: Record) -> None:
    """Nothing is removed before files change."""


def leave_side_files(root: str) -> None:
    """The journal as it is, but for what describes the files as they were."""
    honest = Journal._remove_side_files
    Journal._remove_side_files = _side_files_last  # type: ignore[method-assign]
    try:
        replace_and_add(root)
    finally:
        Journal._remove_side_files = honest  # type: ignore[method-assign]


def side_files_unsynced(root: str) -> None:
    """The journal as it is, but for the sync between the removal of a checksum and its file's replacement."""
    remove, sync = Journal._remove_side_files, Journal._sync_all

    def unsynced(self: Journal, record: Record) -> None:
        Journal._sync_all = _sync_nothing  # type: ignore[method-assign]
        try:
            remove(self, record)
        finally:
            Journal._sync_all = sync  # type: ignore[method-assign]

    Journal._remove_side_files = unsynced  # type: ignore[method-assign]
    try:
        replace_and_add(root)
    finally:
        Journal._remove_side_files = remove  # type: ignore[method-assign]


def _sync_nothing(self: Journal, directories: set[str]) -> None:
    """As if the call were not there."""


CONTROLS = [
    Operation("remove first", remove_first, CONTROLLED, OLD, in_place=True),
    Operation("add first", add_first, CONTROLLED, OLD, in_place=True),
    Operation("in place", overwrite_in_place, CONTROLLED, OLD, in_place=True),
    Operation("consume", consume_the_staged_file, UPSERTED, OLD, in_place=True, recover=_recover_consuming),
    Operation("side files left", leave_side_files, UPSERTED, OLD, in_place=True, side_files=True),
]
UNSYNCED = Operation(
    "side files unsynced", side_files_unsynced, UPSERTED, OLD, in_place=True, recover=recover, side_files=True
)
"""A control of the power cut only: a kill loses nothing that was removed."""
