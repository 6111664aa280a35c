"""The cache of footers: a repeat merge reads none twice, and nothing that is wrong or old is believed."""

from __future__ import annotations

import base64
import errno
import json
import os
import pickle
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec.implementations.memory
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.core.lazy_footer import LazyFooter
from intarsia.errors import CommitConflict, DamagedTable, StorageError
from intarsia.kernel.read import FileReader
from intarsia.storage import PosixStorage
from intarsia.tables.parquet import ParquetTable, footer_cache, footer_store, footers, listing, snapshot

pytestmark = pytest.mark.on_disk  # inodes are used again there, and times are those of a disk

FILES = 8
MAGIC = footer_cache._MAGIC
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture(autouse=True)
def _few_files_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footer_cache, "MANY_FILES", 4)
    monkeypatch.setattr(footer_cache, "_LEAST_ON_STORES", 4)
    monkeypatch.setattr(listing, "MANY_FILES", 4)
    monkeypatch.setattr(footer_cache, "_YOUNG_NS", 0)


def _write(path: Path, first: int, *, word: str = "old") -> None:
    pq.write_table(pa.table({"id": range(first, first + 10), "v": [word] * 10}, SCHEMA), path)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    root = tmp_path / "lake"
    root.mkdir()
    for number in range(FILES):
        _write(root / f"f{number}.parquet", number * 10)
    time.sleep(0.02)  # the clock of a file system ticks
    return root


def _cache(root: Path) -> Path:
    return root.parent / f".{root.name}.intarsia" / "footers.cache"


def _source(*ids: int, word: str = "new") -> pa.Table:
    return pa.table({"id": list(ids), "v": [word] * len(ids)}, SCHEMA)


def _rows(root: Path) -> dict[int, str]:
    found = [pq.read_table(path).to_pydict() for path in sorted(root.rglob("*.parquet"))]
    pairs = [pair for table in found for pair in zip(table["id"], table["v"], strict=True)]
    assert len(pairs) == len(dict(pairs))
    return dict(pairs)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of data files whose footers are read."""
    names: list[str] = []
    real = footers.read_listed_footer

    def note(storage: Any, file: Any) -> Any:
        names.append(os.path.basename(file[1]))
        return real(storage, file)

    monkeypatch.setattr(footers, "read_listed_footer", note)
    return names


@pytest.fixture
def cached(lake: Path, read: list[str]) -> Path:
    """A dataset with a cache, which does not know the file that the merge has replaced."""
    it.merge(_source(5), lake, on="id")
    assert _cache(lake).is_file()
    time.sleep(0.02)
    read.clear()
    return lake


def test_a_second_merge_reads_the_footers_of_changed_and_of_hit_files_only(
    cached: Path, read: list[str]
) -> None:
    result = it.merge(_source(15, 1000), cached, on="id")
    assert (result.updated, result.inserted) == (1, 1)
    assert sorted(set(read)) == ["f0.parquet", "f1.parquet"]
    assert _rows(cached)[15] == "new"


def test_arrow_has_nothing_to_say_of_the_cache(cached: Path, capfd: pytest.CaptureFixture[str]) -> None:
    it.merge(_source(15), cached, on="id")
    assert capfd.readouterr().err == ""


def test_the_cache_is_not_written_again_for_a_few_new_files(
    cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footer_cache, "_STALE", 0.5)
    before = _cache(cached).read_bytes()
    it.write(_source(1000), cached, mode="append")
    it.write(_source(1001), cached, mode="append")
    assert _cache(cached).read_bytes() == before
    monkeypatch.setattr(footer_cache, "_STALE", 0.0)
    it.write(_source(1002), cached, mode="append")
    assert _cache(cached).read_bytes() != before


def _hide(root: Path, name: str) -> None:
    """Put a value into a file, and with it into the cache: as bounds, and as statistics of its footer."""
    rows = pa.table({"id": range(20, 30), "v": [name] * 10}, SCHEMA)
    pq.write_table(rows, root / "f2.parquet")
    time.sleep(0.02)
    it.merge(pa.table({"id": [1035], "v": ["zzz"]}, SCHEMA), root, on=["id", "v"], strategy="insert")
    it.merge(pa.table({"id": [1036], "v": ["zzz"]}, SCHEMA), root, on=["id", "v"], strategy="insert")
    assert _holds(root, name)


def _holds(root: Path, name: str) -> bool:
    control = _cache(root).parent
    return any(name.encode() in path.read_bytes() for path in control.rglob("*") if path.is_file())


def test_the_cache_keeps_no_value_of_a_deleted_row(lake: Path) -> None:
    _hide(lake, "somebody")
    it.delete(lake, "v = 'somebody'")
    assert not _holds(lake, "somebody")
    assert _cache(lake).is_file(), "what it tells of the other files stays"
    assert "somebody" not in _rows(lake).values()


def test_the_cache_keeps_no_value_of_a_file_that_others_removed(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hide(lake, "somebody")
    monkeypatch.setattr(footer_cache, "_STALE", 1.0)
    (lake / "f2.parquet").unlink()
    it.write(_source(1000), lake, mode="append")
    assert not _holds(lake, "somebody")


def test_there_is_no_cache_of_files_that_became_few(lake: Path) -> None:
    _hide(lake, "somebody")
    it.delete(lake, "v = 'somebody'")
    it.compact(lake, target_mb_per_file=1)
    assert not _cache(lake).exists()
    _cache(lake).write_bytes(b"somebody")  # left by a process that was killed
    it.write(_source(1000), lake, mode="append")
    assert not _cache(lake).exists()


def test_one_table_object_keeps_bounds_of_some_files_of_one_column_and_of_all_of_another(
    tmp_path: Path,
) -> None:
    root = tmp_path / "lake"
    for number in range(FILES):
        part = root / f"p={number % 2}"
        part.mkdir(parents=True, exist_ok=True)
        ids = range(number * 10, number * 10 + 10)
        pq.write_table(pa.table({"id": ids, "k": ids}), part / f"f{number}.parquet")
    table = ParquetTable(root)
    it.merge(pa.table({"id": [1], "k": [1], "p": [0]}), table, on=["p", "id"])
    pq.write_table(pa.table({"id": [500], "k": [500]}), root / "p=0" / "a.parquet")  # bounds of id: not asked
    assert it.delete(table, "k = 41").deleted == 1
    assert it.delete(table, "k = 42").deleted == 1
    assert it.delete(table, "k = 500").deleted == 1
    assert it.merge(pa.table({"id": [43], "k": [43], "p": [0]}), table, on=["p", "id"]).updated == 1


def test_one_table_object_keeps_nothing_of_many_files_that_became_few(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ParquetTable(lake)
    it.merge(_source(5), table, on="id")
    it.compact(table, target_mb_per_file=1)
    monkeypatch.setattr(footer_cache, "get_least_files", lambda _: 0)
    it.write(_source(1000), table, mode="append")
    assert not _cache(lake).exists()


def test_the_cache_keeps_no_metadata_of_a_file_that_is_gone(lake: Path) -> None:
    rows = pa.table({"id": range(20, 30), "v": ["old"] * 10}, SCHEMA)
    pq.write_table(rows.replace_schema_metadata({"geo": "bbox of somebody"}), lake / "f2.parquet")
    time.sleep(0.02)
    it.merge(_source(5), lake, on="id")
    assert b"somebody" in _cache(lake).read_bytes()
    it.delete(lake, "id between 20 and 29")
    assert not _holds(lake, "somebody")
    assert _cache(lake).is_file()


def test_the_cache_of_another_process_keeps_no_value_of_a_row_that_this_one_deleted(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ParquetTable(lake)
    it.merge(_source(5), table, on="id")
    monkeypatch.setattr(footer_cache, "_STALE", 1.0)
    other = ParquetTable(lake)
    rows = pa.table({"id": [2000], "v": ["somebody"]}, SCHEMA)
    it.write(rows, other, mode="append")
    time.sleep(0.02)
    table.snapshot()
    it.delete(other, "v = 'nobody'")
    it.delete(other, "id = 45")
    assert _holds(lake, "somebody")
    it.delete(table, "id = 2000")
    assert not _holds(lake, "somebody")


@pytest.mark.parametrize("method", ["write", "move"])
def test_a_cache_that_cannot_be_written_anew_is_removed(
    lake: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    _hide(lake, "somebody")
    _refuse_cache(monkeypatch, method)
    it.delete(lake, "v = 'somebody'")
    assert not _holds(lake, "somebody")


def test_what_a_crash_left_of_a_cache_goes_with_it(cached: Path) -> None:
    draft = _cache(cached).with_name("footers.cache.part")
    draft.write_bytes(b"torn")
    draft.chmod(0o444)
    it.merge(_source(45), cached, on="id")
    assert not draft.exists()
    draft.write_bytes(b"torn")
    it.compact(cached, target_mb_per_file=1)
    assert not draft.exists()


def test_the_cache_is_as_private_as_the_data_files(lake: Path) -> None:
    for path in lake.iterdir():
        path.chmod(0o600)
    time.sleep(0.02)
    it.merge(_source(5), lake, on="id")
    assert _cache(lake).stat().st_mode & 0o777 == 0o600


def test_a_footer_with_a_field_of_a_later_format_fails_no_commit(lake: Path) -> None:
    path = lake / "f0.parquet"  # the first of its kind
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - size : -9] + bytes([0x0B, 100, 0, 0])  # field 50, an empty map, and the end
    path.write_bytes(data[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    time.sleep(0.02)
    assert it.merge(_source(5), lake, on="id").updated == 1
    assert it.merge(_source(35), lake, on="id").updated == 1


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "operate",
    [
        lambda root: it.merge(_source(3, 33, 333), root, on="id", strategy="full_merge"),
        lambda root: it.merge(_source(3, 33, 333), root, on="id", engine="duckdb"),
        lambda root: it.merge(_source(*range(80)), root, on="id", strategy="update"),
        lambda root: it.delete(root, "id between 18 and 22"),
        lambda root: it.update(root, {"v": "'x'"}, "id >= 70"),
        lambda root: it.deduplicate(root, on="id"),
        lambda root: it.compact(root, target_mb_per_file=1),
        lambda root: it.optimize(root, by="v"),
        lambda root: it.write(_source(500), root),
    ],
)
def test_every_operation_does_the_same_with_and_without_a_cache(
    cached: Path, operate: Callable[[Path], Any], known: bool
) -> None:
    if not known:
        _cache(cached).unlink()
    rows = _rows(cached)
    result = operate(cached)
    after = _rows(cached)
    assert result.target_count_after == len(after)
    assert len(after) == len(rows) + result.inserted - result.deleted
    if result.operation == "merge":
        assert all(after[key] == "new" for key in (3, 33))
    inspected = it.inspect(cached)
    assert inspected.rows == len(after)
    assert inspected.row_groups == inspected.files


def test_what_is_read_is_the_same_with_a_cache(cached: Path) -> None:
    found = it.read(cached, where="id in (5, 15, 79)").read_all().sort_by("id").to_pydict()
    assert found == {"id": [5, 15, 79], "v": ["new", "old", "old"]}


def _replace_in_place(path: Path) -> None:
    """The same inode, size and time of modification, other rows: only ctime tells."""
    before = path.stat()
    other = path.with_name("other")
    _write(other, 1010)
    data = other.read_bytes()
    other.unlink()
    assert len(data) == before.st_size
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (
        before.st_ino,
        before.st_size,
        before.st_mtime_ns,
    )


def _replace_by_rename(path: Path) -> None:
    before = path.stat()
    other = path.with_name("other")
    _write(other, 1010)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.rename(other, path)


@pytest.mark.parametrize("replace", [_replace_in_place, _replace_by_rename])
def test_a_file_that_was_replaced_is_read_again_also_with_the_same_size_and_time(
    cached: Path, replace: Callable[[Path], None]
) -> None:
    replace(cached / "f4.parquet")
    assert it.merge(_source(45), cached, on="id").inserted == 1
    assert it.merge(_source(1015), cached, on="id").updated == 1
    assert _rows(cached)[1015] == "new"


def test_a_file_younger_than_the_tick_of_a_clock_is_not_cached(
    lake: Path, monkeypatch: pytest.MonkeyPatch, read: list[str]
) -> None:
    monkeypatch.setattr(footer_cache, "_YOUNG_NS", 60_000_000_000)
    it.merge(_source(5), lake, on="id")
    assert not _cache(lake).exists()
    monkeypatch.setattr(footer_cache, "_YOUNG_NS", 0)
    it.merge(_source(6), lake, on="id")
    assert _cache(lake).exists()


def test_a_file_that_changes_after_it_was_listed_is_not_cached_as_it_is_then(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = snapshot.list_data_files

    def list_and_change(*given: Any, **options: Any) -> Any:
        found = real(*given, **options)
        if not _cache(lake).parent.joinpath("log").exists():
            return found
        monkeypatch.setattr(snapshot, "list_data_files", real)
        _replace_in_place(lake / "f4.parquet")
        return found

    monkeypatch.setattr(snapshot, "list_data_files", list_and_change)
    it.merge(_source(5), lake, on="id")
    assert it.merge(_source(45), lake, on="id").inserted == 1
    assert it.merge(_source(1015), lake, on="id").updated == 1


def _sign(payload: bytes) -> bytes:
    return MAGIC + zlib.crc32(payload).to_bytes(4, "little") + payload


def _edit_header(data: bytes, edit: Callable[[dict[str, Any]], None]) -> bytes:
    """A cache with another header and a right checksum, as an attacker would make it."""
    head, _, body = data[len(MAGIC) + 4 :].partition(b"\n")
    header = json.loads(head)
    edit(header)
    return _sign(json.dumps(header).encode() + b"\n" + body)


def _flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "magic alone": lambda data: MAGIC,
    "truncated": lambda data: data[: len(data) // 2],
    "one byte short": lambda data: data[:-1],
    "a flipped byte": lambda data: _flip(data, len(data) // 2),
    "something else": lambda data: b"PAR1" * 100,
    "a pickle": lambda data: pickle.dumps({"a": 1}),
    "a signed pickle": lambda data: _sign(pickle.dumps({"a": 1}) + b"\n"),
    "no header": lambda data: _sign(b"x"),
    "a header that is a list": lambda data: _sign(b"[]\n"),
    "of another version": lambda data: _edit_header(data, lambda header: header.update(versions=["0", "1"])),
    "no parts": lambda data: _edit_header(data, lambda header: header.update(parts=[])),
    "parts of the wrong type": lambda data: _edit_header(data, lambda header: header.update(parts="abc")),
    "negative parts": lambda data: _edit_header(data, lambda header: header.update(parts=[-1, -5, 3, 4])),
    "bounds of another type": lambda data: _edit_header(
        data, lambda header: header["bounds"][0].update(type=_STRING_TYPE)
    ),
    "bounds of no type": lambda data: _edit_header(data, lambda header: header["bounds"][0].update(type="!")),
    "bounds of a row group twice": lambda data: _double_bounds(data),
    "more bounds than tables": lambda data: _edit_header(
        data, lambda header: header["bounds"].append(header["bounds"][0])
    ),
}


def _double_bounds(data: bytes) -> bytes:
    root = json.loads(data[len(MAGIC) + 4 :].partition(b"\n")[0])["root"]
    known = footer_cache._decode(data, root)
    assert known is not None
    bounds = known.bounds["id"]
    doubled = footer_store.ColumnBounds(bounds.dtype, pa.concat_tables([bounds.table, bounds.table[:1]]))
    changed = footer_store.KnownFooters(known.keys, known.counts, known.models, {"id": doubled})
    every = pa.chunked_array([pa.array([True] * known.counts.num_rows)])
    return footer_cache._encode(changed, root, every)


_STRING_TYPE = base64.b64encode(pa.schema([pa.field("", pa.string())]).serialize().to_pybytes()).decode()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_hostile_cache_is_ignored_and_made_anew(cached: Path, damage: str) -> None:
    before = _cache(cached).read_bytes()
    _cache(cached).write_bytes(DAMAGES[damage](before))
    assert footer_cache.load_cache(ParquetTable(cached).control) is None
    assert it.merge(_source(45, 1000), cached, on="id").updated == 1
    assert _rows(cached)[45] == "new"
    known = footer_cache.load_cache(ParquetTable(cached).control)
    assert known is not None
    assert set(known.bounds) == {"id"}


def test_no_byte_of_the_cache_can_change_unnoticed(cached: Path) -> None:
    whole = _cache(cached).read_bytes()
    control = ParquetTable(cached).control
    assert footer_cache.load_cache(control) is not None
    for place in range(0, len(whole), 11):
        _cache(cached).write_bytes(_flip(whole, place))
        assert footer_cache.load_cache(control) is None


def test_bytes_changed_under_a_right_checksum_never_end_the_process(cached: Path) -> None:
    whole = _cache(cached).read_bytes()[len(MAGIC) + 4 :]
    control = ParquetTable(cached).control
    for place in range(0, len(whole), 7):
        _cache(cached).write_bytes(_sign(_flip(_flip(whole, place), (place * 7919) % len(whole))))
        footer_cache.load_cache(control)


def test_the_cache_of_another_dataset_is_not_used(cached: Path) -> None:
    other = cached.parent / "other"
    cached.rename(other)
    _cache(cached).parent.rename(_cache(other).parent)
    assert footer_cache.load_cache(ParquetTable(other).control) is None


@pytest.mark.parametrize("method", ["read", "stat"])
def test_a_cache_that_cannot_be_read_is_done_without(
    cached: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    real = getattr(PosixStorage, method)

    def refuse(self: PosixStorage, path: str) -> Any:
        if path.endswith("footers.cache"):
            raise StorageError("no", errno=errno.EACCES, path=path)
        return real(self, path)

    monkeypatch.setattr(PosixStorage, method, refuse)
    assert it.merge(_source(45), cached, on="id").updated == 1


@pytest.mark.parametrize("method", ["write", "move"])
def test_a_cache_that_cannot_be_written_does_not_fail_a_merge(
    lake: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    _refuse_cache(monkeypatch, method)
    assert it.merge(_source(45), lake, on="id").updated == 1
    assert not _cache(lake).exists()


def _refuse_cache(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    real = getattr(PosixStorage, method)

    def refuse(self: PosixStorage, path: str, *more: Any) -> Any:
        if "footers.cache" in path:
            raise StorageError("full", errno=errno.ENOSPC, path=path)
        return real(self, path, *more)

    monkeypatch.setattr(PosixStorage, method, refuse)


def test_readers_and_dry_runs_write_nothing(lake: Path, cached: Path, unchanged: Any) -> None:
    with unchanged(cached.parent):
        it.merge(_source(45), cached, on="id", dry_run=True)
        it.read(cached).read_all()
        it.inspect(cached)
    _cache(cached).unlink()
    with unchanged(cached.parent):
        it.merge(_source(45), cached, on="id", dry_run=True)
        it.inspect(cached)
    assert not _cache(cached).exists()


def test_a_dataset_that_we_never_wrote_to_gets_no_directory(lake: Path) -> None:
    it.inspect(lake)
    it.merge(_source(45), lake, on="id", dry_run=True)
    it.merge(_source(), lake, on="id")
    assert sorted(os.listdir(lake.parent)) == ["lake"]


def test_readers_that_list_the_directory_do_not_see_the_cache(cached: Path) -> None:
    assert sorted(os.listdir(cached)) == [f"f{number}.parquet" for number in range(FILES)]
    assert not _cache(cached).is_relative_to(cached)


def test_few_files_have_no_cache(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footer_cache, "MANY_FILES", FILES + 1)
    it.merge(_source(5), lake, on="id")
    assert not _cache(lake).exists()


@pytest.mark.parametrize(("name", "value"), [("_MOST_BYTES", 100), ("_MOST_KINDS", 0)])
def test_the_cache_is_bounded(lake: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: int) -> None:
    monkeypatch.setattr(footer_cache, name, value)
    it.merge(_source(5), lake, on="id")
    assert not _cache(lake).exists()


def test_on_a_network_file_system_there_is_no_cache(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footer_cache, "is_network", lambda kind: True)
    control = ParquetTable(cached).control
    assert footer_cache.load_cache(control) is None
    _cache(cached).unlink()
    it.merge(_source(5), cached, on="id")
    assert not _cache(cached).exists()


def test_a_file_that_is_replaced_before_its_footer_is_read_is_a_conflict(cached: Path) -> None:
    files = ParquetTable(cached).snapshot().files
    _replace_in_place(cached / "f4.parquet")
    (cached / "f5.parquet").unlink()
    os.utime(cached / "f4.parquet")
    for number in (4, 5):
        footer = files[number].footer
        assert isinstance(footer, LazyFooter)
        with pytest.raises(CommitConflict, match="since it was listed"):
            footer.load()


def test_footers_of_a_linked_state_are_read_of_its_links(cached: Path) -> None:
    with ParquetTable(cached).materialise() as linked:
        it.merge(_source(45), cached, on="id")
        it.delete(cached, "id between 50 and 59")
        found = linked.snapshot
        assert all(isinstance(file.footer, LazyFooter) for file in found.files)
        for file in found.files[4:6]:
            with FileReader(file, found.schema, found.filesystem) as reader:
                assert reader.read(["v"], 0)["v"].to_pylist() == ["old"] * 10
    assert _rows(cached)[45] == "new"


def test_a_merge_plans_again_when_a_file_is_replaced_before_its_footer_is_read(
    cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = footer_store.ParquetFooterStore.read_bounds

    def replace_first(self: Any, *given: Any) -> Any:
        monkeypatch.setattr(footer_store.ParquetFooterStore, "read_bounds", real)
        found = real(self, *given)
        _write(cached / "f4.parquet", 40, word="other")
        return found

    monkeypatch.setattr(footer_store.ParquetFooterStore, "read_bounds", replace_first)
    result = it.merge(_source(45), cached, on="id")
    assert (result.updated, result.attempts) == (1, 2)
    assert _rows(cached)[44] == "other"


def test_a_cache_with_a_wrong_count_is_found_out_and_named(cached: Path) -> None:
    control = ParquetTable(cached).control
    known = footer_cache.load_cache(control)
    assert known is not None
    wrong = pa.array([99] * known.counts.num_rows, pa.int64())
    counts = known.counts.set_column(0, "rows", wrong)
    every = pa.chunked_array([pa.array([True] * counts.num_rows)])
    changed = footer_store.KnownFooters(known.keys, counts, known.models, known.bounds)
    data = footer_cache._encode(changed, control.root, every)
    _cache(cached).write_bytes(data)
    with pytest.raises(DamagedTable, match="the cache of footers says 99") as caught:
        it.merge(_source(45), cached, on="id")
    assert "footers.cache" in str(caught.value.hint)


def test_a_column_of_a_wider_type_is_not_pruned_by_bounds_of_the_narrow_one(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    root.mkdir()
    for number in range(FILES):
        narrow = pa.table({"id": pa.array(range(number * 10, number * 10 + 10), pa.int32())})
        pq.write_table(narrow, root / f"f{number}.parquet")
    time.sleep(0.02)
    it.merge(pa.table({"id": pa.array([5], pa.int32())}), root, on="id")
    pq.write_table(pa.table({"id": [1 << 40]}), root / "wide.parquet")
    result = it.merge(pa.table({"id": [15, 1 << 40, 3 << 40]}), root, on="id")
    assert (result.updated, result.inserted) == (2, 1)


def test_files_of_several_schemas_and_partitions_are_told_apart(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    for number in range(FILES):
        part = root / f"p={number % 2}"
        part.mkdir(parents=True, exist_ok=True)
        columns = {"id": range(number * 10, number * 10 + 10), "v": ["old"] * 10}
        if number > 5:
            columns["w"] = [1.5] * 10
        pq.write_table(pa.table(columns), part / f"f{number}.parquet")
    time.sleep(0.02)
    before = it.snapshot(root)
    it.merge(pa.table({"id": [5], "v": ["new"], "w": [0.5], "p": [0]}), root, on="id")
    assert _cache(root).exists()
    after = it.snapshot(root)
    assert after.schema.equals(before.schema)
    assert after.partition_columns == ("p",)
    assert [file.rows for file in after.files] == [10] * FILES
    assert it.merge(pa.table({"id": [75], "v": ["n"], "w": [2.5], "p": [1]}), root, on="id").updated == 1


def test_a_footer_travels_to_another_process_as_itself(cached: Path) -> None:
    file = ParquetTable(cached).snapshot().files[3]
    assert isinstance(file.footer, LazyFooter)
    found = pickle.loads(pickle.dumps(file))
    assert isinstance(found.footer, pq.FileMetaData)
    assert found.footer.equals(pq.read_metadata(cached / "f3.parquet"))
    assert file.footer.serialized_size == found.footer.serialized_size
    assert file.footer.num_row_groups == 1
    assert file.footer.row_group(0).num_rows == file.footer.num_rows == 10


def test_footers_that_are_asked_for_in_turn_are_read_ahead(
    cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    real = footer_store.read_listed_footers

    def note(storage: Any, files: Any) -> Any:
        calls.append(len(files))
        return real(storage, files)

    files = ParquetTable(cached).snapshot().files
    monkeypatch.setattr(footer_store, "read_listed_footers", note)
    assert sum(file.footer.row_group(0).num_rows for file in files) == FILES * 10
    assert len(calls) < FILES
    assert sum(calls) == FILES - 1  # the first was read for the snapshot: the merge had replaced it


def test_a_store_of_many_more_files_keeps_bytes_instead_of_objects(
    cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footer_store, "_PARSED", 2)
    _cache(cached).unlink()
    table = ParquetTable(cached)
    store = table.snapshot().files[0].footer.store
    assert (len(store._parsed), len(store._raw)) == (0, FILES)
    assert it.merge(_source(45), cached, on="id").updated == 1


class _Tagged(fsspec.implementations.memory.MemoryFileSystem):
    """A store whose listings carry entity tags; or, without, times only."""

    protocol = "tagged"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    cachable = False
    tags = True

    def _tag(self, info: dict[str, Any]) -> dict[str, Any]:
        if info["type"] == "file" and self.tags:
            info["ETag"] = str(zlib.crc32(self.store[info["name"]].getvalue()))
        return info

    def info(self, path: str, **kwargs: Any) -> Any:
        return self._tag(super().info(path, **kwargs))

    def find(self, path: str, **kwargs: Any) -> Any:
        found = super().find(path, **{**kwargs, "detail": True})
        return {name: self._tag(info) for name, info in found.items()}


@pytest.mark.parametrize("tags", [True, False])
def test_on_a_store_entity_tags_decide_and_without_them_there_is_no_cache(
    monkeypatch: pytest.MonkeyPatch, read: list[str], tags: bool
) -> None:
    store = _Tagged()
    monkeypatch.setattr(_Tagged, "store", {})
    monkeypatch.setattr(_Tagged, "tags", tags)
    for number in range(FILES):
        with store.open(f"/lake/f{number}.parquet", "wb") as file:
            pq.write_table(pa.table({"id": range(number * 10, number * 10 + 10), "v": ["old"] * 10}), file)

    def merge(*ids: int) -> Any:
        return it.merge(_source(*ids), "/lake", on="id", filesystem=store, single_writer=True)

    assert merge(5).updated == 1
    assert store.exists("/.lake.intarsia/footers.cache") is tags
    read.clear()
    assert merge(15).updated == 1
    wanted = {"f0.parquet", "f1.parquet"} if tags else {f"f{number}.parquet" for number in range(FILES)}
    assert set(read) == wanted
    with store.open("/lake/f4.parquet", "wb") as file:
        pq.write_table(pa.table({"id": range(1010, 1020), "v": ["old"] * 10}), file)
    assert merge(1015).updated == 1
