"""A directory of Parquet files as a table: what a snapshot says, what a commit checks."""

from __future__ import annotations

import decimal
import multiprocessing
import os
import pickle
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import intarsia as it
from intarsia.common.partitions import PARTITION_SCHEMA_KEY, encode_partition_schema
from intarsia.core.change import Change, Replacement, StagedFile
from intarsia.core.ports import Table, Transaction
from intarsia.core.snapshot import DataFile
from intarsia.errors import (
    CommitConflict,
    DamagedTable,
    InputError,
    NotSupported,
    SchemaMismatch,
    StorageError,
    UnsafePath,
)
from intarsia.storage import RemoteStorage
from intarsia.tables.parquet import ParquetTable, ParquetTransaction, footers

Rows = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    for path, key in {"p=1/a.parquet": 1, "p=1/b.parquet": 2, "p=2/c.parquet": 3}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"k": [key], "v": ["x"]}), root / path)
    return root


def stage(
    tx: ParquetTransaction, label: str, table: pa.Table, path: str, *, rows: int | None = None
) -> StagedFile:
    staging = tx.staging
    location = staging.make_location(label)
    pq.write_table(table, location, filesystem=staging.filesystem)
    size = staging.filesystem.get_file_info(location).size
    return StagedFile(location, path, table.num_rows if rows is None else rows, size)


ROW = pa.table({"k": [9], "v": ["y"]})


def test_the_classes_are_what_the_core_asks_for(root: Path) -> None:
    table: Table = ParquetTable(root)
    with table.transaction("x") as tx:
        transaction: Transaction = tx
        assert transaction.snapshot.rows == 3


def test_a_snapshot_describes_every_file(root: Path) -> None:
    snapshot = ParquetTable(root).snapshot()
    assert [(file.path, file.rows, file.partition) for file in snapshot.files] == [
        ("p=1/a.parquet", 1, {"p": 1}),
        ("p=1/b.parquet", 1, {"p": 1}),
        ("p=2/c.parquet", 1, {"p": 2}),
    ]
    assert snapshot.schema == pa.schema([("k", pa.int64()), ("v", pa.string()), ("p", pa.int64())])
    assert snapshot.file_schema.names == ["k", "v"]
    assert snapshot.partition_columns == ("p",)
    assert snapshot.exists
    assert snapshot.uniform
    assert snapshot.version == 0
    assert snapshot.root == str(root)
    file = snapshot.files[0]
    assert file.location == f"{root}/p=1/a.parquet"
    assert file.size == os.path.getsize(file.location)
    assert file.footer is not None
    assert file.footer.num_rows == 1


def test_a_snapshot_writes_nothing(root: Path, tree_digest: Any) -> None:
    before = tree_digest(root)
    ParquetTable(root).snapshot()
    assert tree_digest(root) == before


def test_paths_are_shown_in_the_form_the_caller_gave(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    for target in ("data", "./data/", f"file://{root}"):
        snapshot = ParquetTable(target).snapshot()
        assert snapshot.show_path(snapshot.files[0]) == f"{target.rstrip('/')}/p=1/a.parquet"


def test_a_directory_that_is_not_there_and_one_that_is_empty(tmp_path: Path) -> None:
    absent = ParquetTable(tmp_path / "nothing").snapshot()
    assert (absent.exists, absent.files, absent.schema.names) == (False, (), [])
    empty = ParquetTable(tmp_path).snapshot()
    assert (empty.exists, empty.files) == (True, ())


def test_schemas_that_differ_are_unified_and_said_to_differ(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([1], pa.int32())}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": pa.array([1], pa.int64()), "b": ["x"]}), tmp_path / "2.parquet")
    snapshot = ParquetTable(tmp_path).snapshot()
    assert snapshot.schema == pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert not snapshot.uniform


def test_schemas_that_do_not_meet_are_an_error_with_the_path(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": [[1]]}), tmp_path / "2.parquet")
    with pytest.raises(SchemaMismatch, match="'a'") as caught:
        ParquetTable(tmp_path).snapshot()
    assert caught.value.path == str(tmp_path)


def test_partition_columns_have_the_type_the_files_declare(tmp_path: Path) -> None:
    declared = encode_partition_schema(pa.schema([("p", pa.string()), ("d", pa.date32())]))
    directory = tmp_path / "p=007" / "d=2024-05-06"
    directory.mkdir(parents=True)
    table = pa.table({"k": [1]}).replace_schema_metadata({PARTITION_SCHEMA_KEY: declared, "mine": "kept"})
    pq.write_table(table, directory / "a.parquet")
    snapshot = ParquetTable(tmp_path).snapshot()
    assert snapshot.schema.field("p").type == pa.string()
    assert snapshot.schema.field("d").type == pa.date32()
    assert snapshot.files[0].partition["p"] == "007"
    assert snapshot.schema.metadata == {b"mine": b"kept"}


def test_partition_columns_of_files_that_also_hold_them_have_the_type_they_have_there(tmp_path: Path) -> None:
    (tmp_path / "p=1").mkdir()
    pq.write_table(pa.table({"k": [1], "p": pa.array([1], pa.int16())}), tmp_path / "p=1" / "a.parquet")
    snapshot = ParquetTable(tmp_path).snapshot()
    assert snapshot.schema.names == ["k", "p"]
    assert snapshot.schema.field("p").type == pa.int16()
    assert snapshot.files[0].partition == {"p": 1}


def test_partition_directories_above_the_root_do_not_count(tmp_path: Path) -> None:
    root = tmp_path / "year=2024" / "data"
    (root / "p=1").mkdir(parents=True)
    pq.write_table(ROW, root / "p=1" / "a.parquet")
    assert ParquetTable(root).snapshot().partition_columns == ("p",)


def test_notes_of_the_listing_reach_the_snapshot(root: Path) -> None:
    (root / "_temporary").mkdir()
    assert "active" in ParquetTable(root).snapshot().notes[0]


def test_each_footer_is_read_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    honest = footers.read_listed_footer

    def count(storage: Any, file: Any) -> Any:
        read.append(file[1])
        return honest(storage, file)

    monkeypatch.setattr(footers, "read_listed_footer", count)
    table = ParquetTable(root)
    table.snapshot()
    assert len(read) == 3
    table.snapshot()
    with table.transaction("x"):
        pass
    assert len(read) == 3
    pq.write_table(ROW, root / "p=1" / "a.parquet")
    assert table.snapshot().rows == 3
    assert len(read) == 4


def test_footers_that_are_slow_to_come_are_read_in_parallel(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    honest, barrier = footers.read_footer, threading.Barrier(2, timeout=10)
    files = [f"{root}/p=1/a.parquet"] * 18

    def note(filesystem: Any, location: str) -> Any:
        threads.add(threading.get_ident())
        if threading.current_thread() is not threading.main_thread():
            barrier.wait()
        return honest(filesystem, location)

    monkeypatch.setattr(footers, "_SLOW_SECONDS", 0.0)
    monkeypatch.setattr(footers, "read_footer", note)
    table = ParquetTable(root)
    assert [footer.num_rows for footer in footers.read_footers(table.storage.filesystem, files)] == [1] * 18
    assert len(threads) == 3


def _truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _text(data: bytes) -> bytes:
    return b"id,name\n1,x\n"


def _lying_length(data: bytes) -> bytes:
    return data[:-8] + struct.pack("<I", 1 << 30) + b"PAR1"


def _broken_footer(data: bytes) -> bytes:
    (length,) = struct.unpack("<I", data[-8:-4])
    return data[: -8 - length] + b"\xff" * length + data[-8:]


@pytest.mark.parametrize("damage", [_truncated, _text, _lying_length, _broken_footer])
def test_a_file_that_is_no_parquet_file_is_named(
    root: Path, damage: Callable[[bytes], bytes], unchanged: Any
) -> None:
    path = root / "p=1" / "b.parquet"
    path.write_bytes(damage(path.read_bytes()))
    with unchanged(root), pytest.raises(DamagedTable, match=r"b\.parquet") as caught:
        ParquetTable(root).snapshot()
    assert caught.value.path == str(path)
    assert caught.value.changed is False


class _Kms(pe.KmsClient):
    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return key_bytes

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return wrapped_key


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_an_encrypted_file_is_named_as_encrypted(root: Path, unchanged: Any, plaintext_footer: bool) -> None:
    factory = pe.CryptoFactory(lambda _: _Kms())
    configuration = pe.EncryptionConfiguration(
        footer_key="f", column_keys={"k": ["k"]}, plaintext_footer=plaintext_footer
    )
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), configuration)
    with pq.ParquetWriter(root / "p=1" / "z.parquet", ROW.schema, encryption_properties=properties) as writer:
        writer.write_table(ROW)
    with unchanged(root), pytest.raises(DamagedTable, match="encrypted") as caught:
        ParquetTable(root).snapshot()
    assert "z.parquet" in str(caught.value)


def test_a_codec_that_is_not_known_is_named(root: Path, unchanged: Any) -> None:
    """pyarrow would end the process when it is asked for such a codec."""
    path = root / "p=1" / "b.parquet"
    pq.write_table(pa.table({"a.b": [1], "s": [{"x": 1}], "k": [1]}), path)
    data = path.read_bytes()
    for needle in (b"\x19\x18\x01k\x15\x02", b"\x19\x28\x01s\x01x\x15\x02"):
        assert needle in data
        path.write_bytes(data.replace(needle, needle[:-1] + b"\x28"))
        with unchanged(root), pytest.raises(DamagedTable, match="codec"):
            ParquetTable(root).snapshot()
    path.write_bytes(data)
    assert footers.read_footer(ParquetTable(root).storage.filesystem, str(path)).num_rows == 1


def test_structs_that_differ_in_name_only_are_two_columns(tmp_path: Path) -> None:
    """pyarrow calls such schemas equal: it compares the leaves, and both leaves are called x."""
    for name in ("a", "b"):
        table = pa.table({name: [{"x": 1}]})
        pq.write_table(table, tmp_path / f"{name}.parquet", store_schema=False)
    snapshot = ParquetTable(tmp_path).snapshot()
    assert snapshot.schema.names == ["a", "b"]
    assert not snapshot.uniform


def test_a_column_in_a_required_struct_is_not_taken_for_a_plain_one(tmp_path: Path) -> None:
    plain = pa.schema([pa.field("x", pa.int64())])
    within = pa.schema([pa.field("s", pa.struct([pa.field("x", pa.int64())]), nullable=False)])
    rows = {"plain": pa.table({"x": [1]}, plain), "within": pa.table({"s": [{"x": 2}]}, within)}
    for name, table in rows.items():
        pq.write_table(table, tmp_path / f"{name}.parquet", store_schema=False)
    assert ParquetTable(tmp_path).snapshot().schema.names == ["x", "s"]


@pytest.mark.parametrize("columns", [1, 12, 20, 300])
def test_files_of_one_schema_share_its_bytes_whatever_their_rows(tmp_path: Path, columns: int) -> None:
    for name, rows in (("a", 1), ("b", 1000)):
        table = pa.table({f"column_{n}": range(rows) for n in range(columns)})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    other = pa.table({f"column_{n}": [1.5] for n in range(columns)})
    pq.write_table(other, tmp_path / "c.parquet")
    filesystem = ParquetTable(tmp_path).storage.filesystem
    read = footers.read_footers(filesystem, [f"{tmp_path}/{name}.parquet" for name in "abc"])
    assert read[0].shape.schema == read[1].shape.schema
    assert read[0].shape.schema != read[2].shape.schema
    assert len(footers.collect_schemas(read)[0]) == 2
    assert len(read[0].shape.schema) < read[0].metadata.serialized_size


def test_a_footer_longer_than_one_read_is_read_whole(tmp_path: Path) -> None:
    wide = pa.table({f"column_{n}": [n] for n in range(900)})
    pq.write_table(wide, tmp_path / "a.parquet", row_group_size=1)
    footer = ParquetTable(tmp_path).snapshot().files[0].footer
    assert footer is not None
    assert footer.serialized_size > 1 << 16
    assert footer.num_columns == 900


def test_a_file_that_may_not_be_read_is_a_storage_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(footers, "_FooterFile", refuse)
    with pytest.raises(StorageError) as caught:
        ParquetTable(root).snapshot()
    assert caught.value.errno == 13
    assert not isinstance(caught.value, DamagedTable)


def test_the_place_of_a_new_file_is_its_partitions_directory_and_a_name_of_its_own(root: Path) -> None:
    with ParquetTable(root).transaction("x") as tx:
        assert tx.new_file_path({"p": 3}, "part", 7) == f"p=3/part-{tx.txid}-00007.parquet"
        assert tx.new_file_path({"p": None}, "part", 0).startswith("p=__HIVE_DEFAULT_PARTITION__/")
        assert tx.new_file_path({"p": "a/b"}, "part", 0).startswith("p=a%2Fb/")
        assert tx.new_file_path({}, "compacted", 0) == f"compacted-{tx.txid}-00000.parquet"
        for value in ("", "a\0b", "__HIVE_DEFAULT_PARTITION__", "x" * 300):
            with pytest.raises(UnsafePath):
                tx.new_file_path({"p": value}, "part", 0)
        with pytest.raises(UnsafePath):
            tx.new_file_path({"_p": 1}, "part", 0)


def test_partition_directories_are_nested_as_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "a=1" / "b=2").mkdir(parents=True)
    pq.write_table(ROW, tmp_path / "a=1" / "b=2" / "f.parquet")
    with ParquetTable(tmp_path).transaction("x") as tx:
        assert tx.new_file_path({"b": 4, "a": 3}, "part", 0).startswith("a=3/b=4/")


def test_staging_travels_to_another_process(root: Path) -> None:
    with ParquetTable(root).transaction("x") as tx:
        staging = pickle.loads(pickle.dumps(tx.staging))
        assert staging == tx.staging
        assert os.path.isdir(staging.directory)


def test_a_commit_replaces_adds_and_removes(root: Path, rows: Rows) -> None:
    table = ParquetTable(root)
    with table.transaction("upsert") as tx:
        a, b, _ = tx.snapshot.files
        change = Change(
            "upsert",
            replaced=(Replacement(a, stage(tx, "r", pa.table({"k": [1], "v": ["new"]}), a.path)),),
            added=(stage(tx, "n", ROW, tx.new_file_path({"p": 5}, "part", 0)),),
            removed=(b,),
            planned=tx.snapshot.files,
        )
        committed = tx.commit(change)
    assert committed.txid == tx.txid
    assert committed.version == table.snapshot().version == 1
    assert rows(root) == [
        {"k": 1, "p": "1", "v": "new"},
        {"k": 3, "p": "2", "v": "x"},
        {"k": 9, "p": "5", "v": "y"},
    ]
    assert [file.partition["p"] for file in table.snapshot().files] == [1, 2, 5]


def test_a_hard_link_to_a_replaced_file_keeps_the_old_rows(root: Path, tmp_path: Path, rows: Rows) -> None:
    os.link(root / "p=1" / "a.parquet", tmp_path / "backup.parquet")
    with ParquetTable(root).transaction("upsert") as tx:
        a = tx.snapshot.files[0]
        tx.commit(Change("upsert", replaced=(Replacement(a, stage(tx, "r", ROW, a.path)),)))
    assert rows(pq.read_table(tmp_path / "backup.parquet")) == [{"k": 1, "v": "x"}]


def test_a_replaced_file_and_what_is_staged_stay_as_private_as_they_were(root: Path) -> None:
    root.chmod(0o750)
    (root / "p=1" / "a.parquet").chmod(0o600)
    with ParquetTable(root).transaction("upsert") as tx:
        a, b, _ = tx.snapshot.files
        replaced = tuple(Replacement(f, stage(tx, f.path[-9], ROW, f.path)) for f in (a, b))
        tx.commit(Change("upsert", replaced=replaced))
    modes = {name: (root / "p=1" / name).stat().st_mode & 0o777 for name in ("a.parquet", "b.parquet")}
    assert modes["a.parquet"] == 0o600
    assert modes["b.parquet"] != 0o600
    assert (root.parent / ".data.intarsia").stat().st_mode & 0o777 == 0o750


def test_a_file_where_a_partition_should_be_is_told_before_the_commit_point(
    root: Path, unchanged: Any
) -> None:
    (root / "p=5").write_text("not a directory")
    with unchanged(root), pytest.raises(StorageError) as caught, ParquetTable(root).transaction("x") as tx:
        tx.commit(Change("x", added=(stage(tx, "n", ROW, tx.new_file_path({"p": 5}, "part", 0)),)))
    assert caught.value.changed is False


def test_a_transaction_commits_once(root: Path) -> None:
    with ParquetTable(root).transaction("append") as tx:
        tx.commit(Change("append", added=(stage(tx, "a", ROW, tx.new_file_path({"p": 1}, "part", 0)),)))
        with pytest.raises(InputError, match="already"):
            tx.commit(Change("append", added=(stage(tx, "b", ROW, tx.new_file_path({"p": 1}, "part", 1)),)))


def _rewrite(root: Path) -> None:
    pq.write_table(pa.table({"k": [1], "v": ["other"]}), root / "p=1" / "a.parquet")


def _swap(root: Path) -> None:
    path = root / "p=1" / "a.parquet"
    data, stat = path.read_bytes(), path.stat()
    path.rename(root.parent / "old.parquet")  # keeps its inode busy
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _remove(root: Path) -> None:
    (root / "p=1" / "a.parquet").unlink()


@pytest.mark.parametrize("meddle", [_rewrite, _swap, _remove])
def test_a_planned_file_that_changed_underneath_is_a_conflict(
    root: Path, meddle: Callable[[Path], None], unchanged: Any
) -> None:
    with (
        pytest.raises(CommitConflict, match=r"a\.parquet was") as caught,
        ParquetTable(root).transaction("x") as tx,
    ):
        staged = stage(tx, "n", ROW, tx.new_file_path({"p": 1}, "part", 0))
        meddle(root)
        with unchanged_data(root):
            tx.commit(Change("x", added=(staged,), planned=tx.snapshot.files))
    assert caught.value.changed is False
    assert caught.value.txid == tx.txid
    with unchanged(root):
        pass


class unchanged_data:
    """The data files stay as they are; the control directory may hold what is staged."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _now(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self._root.rglob("*") if path.is_file()}

    def __enter__(self) -> None:
        self._before = self._now()

    def __exit__(self, *_: object) -> None:
        assert self._now() == self._before


@pytest.mark.parametrize("meddle", [_rewrite, _swap, _remove])
@pytest.mark.parametrize("kind", ["replaced", "removed"])
def test_a_file_to_be_replaced_or_removed_is_planned_on_by_that(
    root: Path, kind: str, meddle: Callable[[Path], None]
) -> None:
    with pytest.raises(CommitConflict), ParquetTable(root).transaction("x") as tx:
        a = tx.snapshot.files[0]
        replaced = (Replacement(a, stage(tx, "r", ROW, a.path)),) if kind == "replaced" else ()
        meddle(root)
        tx.commit(Change("x", replaced=replaced, removed=() if replaced else (a,)))


def test_a_file_that_another_writer_added_is_a_conflict_for_an_exclusive_change_only(
    root: Path, rows: Rows
) -> None:
    for exclusive in (True, False):
        with ParquetTable(root).transaction("x") as tx:
            added = (stage(tx, "n", ROW, tx.new_file_path({"p": 1}, "part", 0)),)
            pq.write_table(ROW, root / f"foreign-{exclusive}.parquet")
            change = Change("x", added=added, planned=tx.snapshot.files, exclusive=exclusive)
            if exclusive:
                with pytest.raises(CommitConflict, match=r"has added 1 file\(s\).*foreign-True"):
                    tx.commit(change)
            else:
                tx.commit(change)
    assert len(rows(root)) == 6


def test_a_new_file_never_takes_a_name_that_is_there(root: Path) -> None:
    (root / "p=1" / "tmp_a.parquet").write_bytes(b"somebody is writing this")
    for path in ("p=1/a.parquet", "p=1/tmp_a.parquet"):
        with pytest.raises(CommitConflict, match="exists already"), ParquetTable(root).transaction("x") as tx:
            tx.commit(Change("x", added=(stage(tx, "n", ROW, path),)))
    assert (root / "p=1" / "tmp_a.parquet").read_bytes() == b"somebody is writing this"


def test_a_staged_file_with_other_rows_than_said_is_not_committed(root: Path, unchanged: Any) -> None:
    wrong = pytest.raises(DamagedTable, match="1 rows instead of 2")
    with unchanged(root), wrong, ParquetTable(root).transaction("x") as tx:
        tx.commit(Change("x", added=(stage(tx, "n", ROW, tx.new_file_path({"p": 1}, "part", 0), rows=2),)))


def test_a_staged_file_that_is_torn_or_gone_is_not_committed(root: Path, unchanged: Any) -> None:
    for spoil in (lambda path: os.truncate(path, 50), os.unlink):
        with unchanged(root), pytest.raises(DamagedTable), ParquetTable(root).transaction("x") as tx:
            staged = stage(tx, "n", ROW, tx.new_file_path({"p": 1}, "part", 0))
            spoil(staged.location)
            tx.commit(Change("x", added=(staged,)))


def test_changes_that_make_no_sense_are_refused(root: Path, unchanged: Any) -> None:
    def other_transaction(tx: ParquetTransaction) -> Change:
        (root.parent / "elsewhere.part").write_bytes(b"")
        return Change("x", added=(StagedFile(str(root.parent / "elsewhere.part"), "n.parquet", 1, 1),))

    def twice(tx: ParquetTransaction) -> Change:
        staged = stage(tx, "n", ROW, "n.parquet")
        return Change("x", added=(staged, staged))

    def renamed(tx: ParquetTransaction) -> Change:
        return Change("x", replaced=(Replacement(tx.snapshot.files[0], stage(tx, "n", ROW, "n.parquet")),))

    def outside(tx: ParquetTransaction) -> Change:
        return Change("x", added=(stage(tx, "n", ROW, "../n.parquet"),))

    def not_data(tx: ParquetTransaction) -> Change:
        return Change("x", removed=(DataFile("README", f"{root}/README", 1, 0),))

    def no_text(tx: ParquetTransaction) -> Change:
        properties: Any = {"note": 7}
        return Change("x", added=(stage(tx, "n", ROW, "n.parquet"),), properties=properties)

    for make in (other_transaction, twice, renamed, outside, not_data, no_text):
        with unchanged(root), pytest.raises(InputError), ParquetTable(root).transaction("x") as tx:
            tx.commit(make(tx))


def test_readers_of_a_frozen_view_see_one_state_whatever_comes_after(root: Path, rows: Rows) -> None:
    table = ParquetTable(root)
    with table.materialise() as linked:
        with table.transaction("delete") as tx:
            tx.commit(Change("delete", removed=tx.snapshot.files))
        assert rows(root) == []
        assert [row["k"] for row in rows(linked.directory)] == [1, 2, 3]
        assert [row["p"] for row in rows(pq.read_table(linked.directory))] == [1, 1, 2]
        seen = pa.concat_tables(pq.read_table(file.location) for file in linked.snapshot.files)
        assert len(seen) == 3
        assert table.recover() == (), "a reader that is alive is left alone"
        assert os.path.isdir(linked.directory)
    assert not os.path.exists(linked.directory)
    assert table.snapshot().files == ()


def test_a_frozen_view_of_a_dataset_without_a_journal_leaves_nothing(root: Path, unchanged: Any) -> None:
    with unchanged(root), ParquetTable(root).materialise() as linked:
        assert linked.snapshot.rows == 3
    assert not (root.parent / ".data.intarsia").exists()


def _die_reading(root: str) -> None:
    with ParquetTable(root).materialise():
        os._exit(0)


def test_the_frozen_view_of_a_dead_reader_is_swept(root: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_die_reading, args=(str(root),))
    process.start()
    process.join()
    links = root.parent / ".data.intarsia" / "snap"
    assert len(os.listdir(links)) == 2
    ParquetTable(root).recover()
    assert not links.exists()


def test_writers_in_threads_take_turns_and_lose_nothing(root: Path) -> None:
    def work(number: int) -> None:
        for i in range(4):
            with ParquetTable(root).transaction("append") as tx:
                table = pa.table({"k": [number * 10 + i], "v": ["t"]})
                tx.commit(
                    Change("append", added=(stage(tx, "n", table, tx.new_file_path({"p": 7}, "part", 0)),))
                )

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    snapshot = ParquetTable(root).snapshot()
    assert snapshot.version == 16
    assert snapshot.rows == 3 + 16


def test_a_snapshot_taken_while_commits_are_published_is_one_state(tmp_path: Path) -> None:
    """Every commit rewrites both files with one number; a snapshot never shows two."""
    for name in ("a", "b"):
        pq.write_table(pa.table({"k": [0]}), tmp_path / f"{name}.parquet")
    stop, seen = threading.Event(), set()

    def read() -> None:
        table = ParquetTable(tmp_path)
        while not stop.is_set():
            try:
                with table.materialise() as linked:
                    found = {pq.read_table(file.location)["k"][0].as_py() for file in linked.snapshot.files}
            except CommitConflict:  # no quiet moment; that is an answer, too
                continue
            seen.add(len(found))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 26):
        with ParquetTable(tmp_path).transaction("update") as tx:
            new = pa.table({"k": [number]})
            replaced = tuple(Replacement(f, stage(tx, f.path, new, f.path)) for f in tx.snapshot.files)
            tx.commit(Change("update", replaced=replaced, planned=tx.snapshot.files))
    stop.set()
    reader.join()
    assert seen == {1}


# Stores without atomic rename.


@pytest.fixture
def memory() -> Iterator[str]:
    filesystem = fsspec.filesystem("memory")
    base = f"/{uuid.uuid4().hex}"
    for path, key in {"p=1/a.parquet": 1, "p=2/b.parquet": 2}.items():
        filesystem.makedirs(f"{base}/data/{path.split('/')[0]}")
        with filesystem.open(f"{base}/data/{path}", "wb") as file:
            pq.write_table(pa.table({"k": [key], "v": ["x"]}), file)
    yield f"memory:/{base}/data"
    filesystem.rm(base, recursive=True)


def keys(url: str) -> list[int]:
    """The keys a reader sees who lists the store."""
    filesystem = fsspec.filesystem("memory")
    found = []
    for path in filesystem.find(url.removeprefix("memory:/")):
        if path.endswith(".parquet"):
            with filesystem.open(path) as file:
                found += pq.read_table(file)["k"].to_pylist()
    return sorted(found)


def staged_in_memory(url: str) -> list[str]:
    base = url.removeprefix("memory:/").removesuffix("/data")
    return [path for path in fsspec.filesystem("memory").find(base) if path.endswith(".part")]


def test_a_store_without_atomic_rename_can_be_read_and_appended_to(memory: str) -> None:
    table = ParquetTable(memory)
    assert table.appends_only
    assert table.snapshot().rows == 2
    with table.transaction("append") as tx:
        tx.commit(Change("append", added=(stage(tx, "n", ROW, tx.new_file_path({"p": 3}, "part", 0)),)))
    assert keys(memory) == [1, 2, 9]
    assert table.snapshot().version == 1
    assert [file.partition["p"] for file in table.snapshot().files] == [1, 2, 3]
    assert staged_in_memory(memory) == []


def test_a_store_without_atomic_rename_refuses_to_replace_and_to_remove(memory: str) -> None:
    for change in (
        lambda tx: Change("x", removed=tx.snapshot.files),
        lambda tx: Change(
            "x", replaced=(Replacement(tx.snapshot.files[0], stage(tx, "r", ROW, tx.snapshot.files[0].path)),)
        ),
    ):
        with (
            pytest.raises(NotSupported, match="single_writer=True"),
            ParquetTable(memory).transaction("x") as tx,
        ):
            tx.commit(change(tx))
    assert keys(memory) == [1, 2]
    assert staged_in_memory(memory) == []


def test_a_single_writer_may_replace_and_remove_on_any_store(memory: str) -> None:
    table = ParquetTable(memory, single_writer=True)
    with table.transaction("x") as tx:
        a, b = tx.snapshot.files
        new = stage(tx, "r", pa.table({"k": [7], "v": ["z"]}), a.path)
        tx.commit(Change("x", replaced=(Replacement(a, new),), removed=(b,), planned=tx.snapshot.files))
    assert keys(memory) == [7]
    assert staged_in_memory(memory) == []
    with table.transaction("overwrite") as tx:
        added = (stage(tx, "n", ROW, tx.new_file_path({"p": 1}, "part", 0)),)
        tx.commit(Change("overwrite", added=added, removed=tx.snapshot.files))
    assert keys(memory) == [9]
    assert table.snapshot().version == 2


def test_a_foreign_change_is_a_conflict_on_any_store(memory: str) -> None:
    with pytest.raises(CommitConflict), ParquetTable(memory, single_writer=True).transaction("x") as tx:
        a = tx.snapshot.files[0]
        staged = stage(tx, "r", ROW, a.path)
        with fsspec.filesystem("memory").open(a.location, "wb") as file:
            pq.write_table(pa.table({"k": [5], "v": ["x"]}), file)
        tx.commit(Change("x", replaced=(Replacement(a, staged),)))
    assert keys(memory) == [2, 5]


@pytest.mark.parametrize("published", [0, 1, 2])
def test_a_crash_on_a_store_without_links_is_recovered_from(
    memory: str, published: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(BaseException):
        pass

    honest, left = RemoteStorage.publish, published

    def crash(self: RemoteStorage, source: str, spare: str, target: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Crash
        honest(self, source, spare, target)

    table = ParquetTable(memory, single_writer=True)
    with monkeypatch.context() as patched:
        patched.setattr(RemoteStorage, "publish", crash)
        with pytest.raises(Crash), table.transaction("x") as tx:
            replaced = tuple(
                Replacement(f, stage(tx, f"r{n}", pa.table({"k": [10 + n], "v": ["z"]}), f.path))
                for n, f in enumerate(tx.snapshot.files)
            )
            added = (stage(tx, "n", ROW, tx.new_file_path({"p": 1}, "part", 0)),)
            tx.commit(Change("x", replaced=replaced, added=added, planned=tx.snapshot.files))
    seen = table.snapshot()
    read = pa.concat_tables(pq.read_table(file.location, filesystem=seen.filesystem) for file in seen.files)
    assert sorted(read["k"].to_pylist()) == [9, 10, 11]
    with pytest.raises(NotSupported, match="single_writer"):
        ParquetTable(memory).recover()
    assert len(table.recover()) == 1
    assert keys(memory) == [9, 10, 11]
    assert staged_in_memory(memory) == []


def test_two_appenders_without_a_lock_do_not_sweep_each_other(memory: str) -> None:
    with ParquetTable(memory).transaction("append") as first:
        mine = stage(first, "n", pa.table({"k": [20], "v": ["a"]}), first.new_file_path({"p": 1}, "part", 0))
        with ParquetTable(memory).transaction("append") as second:
            other = stage(
                second, "n", pa.table({"k": [21], "v": ["a"]}), second.new_file_path({"p": 1}, "part", 0)
            )
            second.commit(Change("append", added=(other,), exclusive=False))
        first.commit(Change("append", added=(mine,), exclusive=False))
    assert keys(memory) == [1, 2, 20, 21]


def test_a_snapshot_of_many_types_keeps_them(tmp_path: Path) -> None:
    table = pa.table(
        {
            "dec": pa.array([decimal.Decimal("1.10")]),
            "ts": pa.array([1], pa.timestamp("ns", "Europe/Berlin")),
            "dict": pa.array(["x"]).dictionary_encode(),
            "large": pa.array(["x"], pa.large_string()),
            "list": pa.array([[1]], pa.list_(pa.int32())),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    assert ParquetTable(tmp_path).snapshot().schema.equals(pq.read_schema(tmp_path / "a.parquet"))


def test_later_files_come_last_though_the_clock_was_set_back(tmp_path, monkeypatch):
    now = [2 * 10**18]
    monkeypatch.setattr("intarsia.core.change.time", SimpleNamespace(time_ns=lambda: now[0]))
    it.write(pa.table({"id": [1], "v": ["old"]}), tmp_path / "t", engine="arrow")
    now[0] = 10**18
    it.write(pa.table({"id": [1], "v": ["new"]}), tmp_path / "t", engine="arrow")
    it.write(pa.table({"id": [1], "v": ["newest"]}), tmp_path / "t", engine="arrow")
    assert it.deduplicate(tmp_path / "t", on="id", engine="arrow").deleted == 2
    assert it.read(tmp_path / "t").read_all()["v"].to_pylist() == ["newest"]


def test_a_name_with_the_last_time_there_is_leaves_ids_as_they_are(tmp_path):
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "t" / f"part-{'f' * 32}-00000.parquet")
    it.write(pa.table({"id": [2]}), tmp_path / "t", engine="arrow")
    assert sorted(it.read(tmp_path / "t").read_all()["id"].to_pylist()) == [1, 2]
    assert len({len(path.name) for path in (tmp_path / "t").glob("*.parquet")}) == 1
