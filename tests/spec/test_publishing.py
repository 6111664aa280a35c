"""The rules of publishing: what any reader can see, at every instant and after a crash."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from spec_tables import table_of

import intarsia as it
from intarsia.core import snapshot
from intarsia.core.change import StagedFile
from intarsia.engines.arrow import ArrowEngine
from intarsia.errors import CommitConflict, DamagedTable, NotSupported
from intarsia.kernel import chunk_copy
from intarsia.kernel.chunk_copy import ChunkCopy
from intarsia.kernel.write import FileWriter
from intarsia.storage import PosixStorage
from intarsia.tables.parquet import ParquetTable


@pytest.fixture
def at_every_step(monkeypatch):
    """``at_every_step(look)`` calls ``look`` before and after everything that changes a file or directory."""

    def watch(look: Callable[[], None]) -> list[int]:
        steps: list[int] = []

        def watched(method):
            def step(self, *args, **kwargs):
                look()
                result = method(self, *args, **kwargs)
                steps.append(1)
                look()
                return result

            return step

        for name in ("publish", "move", "remove", "remove_directory", "claim", "make_hard_link", "write"):
            monkeypatch.setattr(PosixStorage, name, watched(getattr(PosixStorage, name)))
        return steps

    return watch


# --- P1 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["upsert", "update", "update where", "delete"])
def test_p1_a_reader_that_only_lists_sees_every_key_once_at_every_instant(
    tmp_path, make_dataset, rows, at_every_step, operation
):
    path = make_dataset(tmp_path / "ds", table_of(range(12)), files=4)
    names = {file.name for file in path.iterdir()}

    def look() -> None:
        found = Counter(row["id"] for row in rows(path))
        assert set(found.values()) <= {1}
        assert set(found) >= (set(range(1, 12, 2)) if operation == "delete" else set(range(12)))

    steps = at_every_step(look)
    if operation == "delete":
        it.delete(path, "id % 2 = 0")
    elif operation == "update where":
        it.update(path, {"v": "'new'"}, where="id in (0, 4, 11)")
    else:
        it.merge(table_of([0, 4, 11, 77], "new"), path, on="id", strategy=operation)
    assert len(steps) > 5
    after = {file.name for file in path.iterdir()}
    assert names <= after  # replaced under the same names
    assert all(name.startswith("insert-") for name in after - names)


def test_p1_holds_even_after_a_crash_that_nobody_has_recovered_from(tmp_path, make_dataset, rows):
    path = make_dataset(tmp_path / "ds", table_of(range(12)), files=4)
    _crash(path, "it.merge(pa.table({'id': [0, 4, 11, 77], 'v': ['new'] * 4}), path, on='id')", publishes=2)
    found = [(row["id"], row["v"]) for row in rows(path)]
    assert Counter(key for key, _ in found if key != 77) == Counter(range(12))
    assert 0 < sum(value == "new" for _, value in found) < 4  # some old, some new


# --- P2 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["compact", "optimize", "overwrite"])
def test_p2_rows_that_move_between_files_may_be_seen_twice_but_never_missed(
    tmp_path, make_dataset, rows, io, at_every_step, operation
):
    path = make_dataset(tmp_path / "ds", table_of(range(12)), files=4)
    calls = {
        "compact": lambda **options: it.compact(path, **options),
        "optimize": lambda **options: it.optimize(path, by="id", **options),
        "overwrite": lambda **options: it.write(
            table_of(range(12), "new"), path, mode="overwrite", **options
        ),
    }
    assert any("twice for a moment" in note for note in calls[operation](dry_run=True).plan.notes)
    seen = []

    def look() -> None:
        seen.append({row["id"] for row in rows(path)})
        # Through the library it is one state or the other, never a mix.
        for table in (io.read_parquet(path), it.snapshot(path).dataset().to_table()):
            assert sorted(table["id"].to_pylist()) == list(range(12))
            assert len(set(table["v"].to_pylist())) == 1

    at_every_step(look)
    calls[operation]()
    assert len(seen) > 10
    assert all(ids == set(range(12)) for ids in seen)


_LATE_READS = {
    "table": lambda data: data.to_table(),
    "batches": lambda data: pa.Table.from_batches(data.to_batches(), data.schema),
    "reader": lambda data: data.scanner().to_reader().read_all(),
    "polars": lambda data: pl.scan_pyarrow_dataset(data).collect().to_arrow(),
    "duckdb": lambda data: duckdb.from_arrow(data).to_arrow_table(),
}


def _by_id(table: pa.Table) -> list[dict]:
    return table.select(["id", "v", "p"]).sort_by("id").to_pylist()


@pytest.mark.parametrize("read", _LATE_READS)
@pytest.mark.parametrize("partition", ["p", ()])
def test_p2_a_snapshot_that_is_read_late_is_still_that_state(tmp_path, make_dataset, read, partition):
    table = table_of(range(12)).append_column("p", pa.array(["a", "b", None] * 4))
    path = make_dataset(tmp_path / "ds", table, files=4, partition=partition)
    data = it.snapshot(path).dataset()
    it.merge(table.slice(4, 1).set_column(1, "v", pa.array(["new"])), path, on="id")
    for _ in range(2):  # a dataset can be read more than once
        assert _by_id(_LATE_READS[read](data)) == table.to_pylist()
    it.compact(path)
    it.write(table.slice(0, 1), path, mode="overwrite")
    assert _by_id(_LATE_READS[read](data)) == table.to_pylist()
    reader = data.filter(pc.field("id") > 5).scanner(batch_size=1).to_reader()
    del data  # the files stay open for what still reads them
    assert sorted(reader.read_all()["id"].to_pylist()) == list(range(6, 12))
    assert it.snapshot(path).dataset().to_table().num_rows == 1


@pytest.mark.parametrize("operation", ["replaced", "removed"])
def test_p2_a_dataset_of_a_snapshot_whose_files_are_gone_is_a_conflict(tmp_path, make_dataset, operation):
    path = make_dataset(tmp_path / "ds", table_of(range(12)), files=4)
    snapshot = it.snapshot(path)
    if operation == "replaced":
        it.merge(table_of([4], "new"), path, on="id")
        gone = f"{path}/part-00001.parquet"
    else:
        it.compact(path)
        gone = f"{path}/part-00000.parquet"
    with pytest.raises(CommitConflict, match="replaced or removed since the snapshot") as caught:
        snapshot.dataset()
    assert gone in str(caught.value)
    assert "read_parquet" in str(caught.value)


def test_p2_more_files_than_may_be_open_are_refused_with_a_way_out(tmp_path, make_dataset, monkeypatch):
    path = make_dataset(tmp_path / "ds", table_of(range(12)), files=4)
    monkeypatch.setattr(snapshot, "open_limit", lambda: 6)
    with pytest.raises(NotSupported, match=r"4 files, of which 3 may be open.*materialise"):
        it.snapshot(path).dataset()
    with ParquetTable(path).materialise() as linked:
        assert linked.snapshot.dataset().to_table().num_rows == 12


def test_p2_a_dataset_of_links_outlives_commits(tmp_path, make_dataset):
    path = make_dataset(tmp_path / "ds", table_of(range(12)), files=4)
    with ParquetTable(path).materialise() as linked:
        data = linked.snapshot.dataset()
        it.merge(table_of([4], "new"), path, on="id")
        it.compact(path)
        assert data.to_table()["v"].to_pylist() == ["old"] * 12


# --- P3 ------------------------------------------------------------------------------------------------

_CRASH = """
import os, sys
import pyarrow as pa
import intarsia as it
from intarsia.storage import PosixStorage

path, left = sys.argv[1], [int(sys.argv[2])]
publish = PosixStorage.publish

def dies(self, *args):
    if not left[0]:
        os._exit(9)
    left[0] -= 1
    return publish(self, *args)

PosixStorage.publish = dies
{operation}
"""


def _crash(path: Path, operation: str, *, publishes: int) -> None:
    """Carry out an operation in a process that dies after publishing so many files."""
    script = _CRASH.format(operation=operation)
    done = subprocess.run([sys.executable, "-c", script, str(path), str(publishes)], timeout=60, check=False)
    assert done.returncode == 9


_UPSERT = "it.merge(pa.table({'id': [0, 4, 77], 'v': ['new'] * 3}), path, on='id')"


@pytest.mark.parametrize(
    ("operation", "finish"),
    [(_UPSERT, "recover"), ("it.compact(path)", "next writer")],
    ids=["upsert", "compact"],
)
def test_p3_what_a_crash_left_is_seen_right_at_once_and_finished_by_the_next_writer(
    tmp_path, make_dataset, rows, io, leftovers, finish, operation
):
    path = make_dataset(tmp_path / "ds", table_of(range(12)), files=4)
    _crash(path, operation, publishes=0)
    expected = dict.fromkeys(range(12), "old")
    if operation == _UPSERT:
        expected |= dict.fromkeys((0, 4, 77), "new")
    assert dict(zip(*io.read_parquet(path).to_pydict().values(), strict=True)) == expected
    assert it.snapshot(path).rows == len(expected)
    if finish == "recover":
        assert it.recover(path) != ()
        assert it.recover(path) == ()
    else:
        io.write_dataset(table_of([500]), path)
        expected[500] = "old"
    assert {row["id"]: row["v"] for row in rows(path)} == expected
    assert len(rows(path)) == len(expected)
    assert leftovers(path) == []


def test_p3_after_success_or_failure_the_control_directory_holds_small_records_only(
    tmp_path, make_dataset, io, leftovers
):
    path = make_dataset(tmp_path / "ds", table_of(range(12)), files=4)
    io.merge(table_of([0, 99], "new"), path, "upsert", "id")
    assert leftovers(path) == []
    with pytest.raises(ValueError, match="duplicate"):
        io.merge(table_of([5, 5]), path, "upsert", "id")
    assert leftovers(path) == []
    io.merge(table_of([1], "kept"), path, "upsert", "id", retain=1)
    assert leftovers(path) != []  # only where it was asked for


# --- P4 ------------------------------------------------------------------------------------------------


def test_p4_two_writers_take_turns(tmp_path, make_dataset, rows):
    path = make_dataset(tmp_path / "ds", table_of(range(20)), files=4)
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for number in range(4):
                it.merge(table_of([1, 19, 100 + number], name), path, on="id")
        except BaseException as error:  # noqa: BLE001  told to the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    found = {row["id"]: row["v"] for row in rows(path)}
    assert sorted(found) == [*range(20), *range(100, 104)]
    assert len(rows(path)) == 24
    assert found[1] == found[19] == found[103]  # both from the one that came last


@pytest.fixture
def meanwhile(monkeypatch):
    """``meanwhile(act)``: another writer acts each time an operation has planned and not committed."""

    def interrupt(act: Callable[[], None]) -> None:
        stage = ArrowEngine.stage

        def staged(self, *args, **kwargs):
            act()
            return stage(self, *args, **kwargs)

        monkeypatch.setattr(ArrowEngine, "stage", staged)

    return interrupt


def test_p4_a_foreign_file_is_looked_at_again_and_never_deleted(tmp_path, make_dataset, rows, meanwhile):
    path = make_dataset(tmp_path / "ds", table_of(range(4)), files=2)

    def append() -> None:
        if not (path / "foreign.parquet").exists():
            pq.write_table(table_of([7, 8], "foreign"), path / "foreign.parquet")

    meanwhile(append)
    result = it.merge(table_of([3, 7], "new"), path, on="id")
    assert (result.attempts, result.updated, result.inserted) == (2, 2, 0)
    found = [(row["id"], row["v"]) for row in rows(path)]
    assert found == [(0, "old"), (1, "old"), (2, "old"), (3, "new"), (7, "new"), (8, "foreign")]


def test_p4_overwrite_and_compaction_leave_a_file_that_came_meanwhile(
    tmp_path, make_dataset, rows, meanwhile
):
    path = make_dataset(tmp_path / "ds", table_of(range(4)), files=2)
    ids = iter((98, 99))

    def append() -> None:
        new = next(ids)
        pq.write_table(table_of([new]), path / f"foreign-{new}.parquet")

    meanwhile(append)
    it.compact(path)
    assert [row["id"] for row in rows(path)] == [0, 1, 2, 3, 98]
    it.write(table_of([50]), path, mode="overwrite")
    assert [row["id"] for row in rows(path)] == [50, 99]


def test_p4_a_writer_that_never_wins_gives_up_and_changes_nothing(
    tmp_path, make_dataset, meanwhile, leftovers
):
    path = make_dataset(tmp_path / "ds", table_of(range(4)), files=2)
    tick = iter(range(100))
    meanwhile(lambda: pq.write_table(table_of([next(tick)], "other"), path / "part-00000.parquet"))
    with pytest.raises(CommitConflict) as caught:
        it.merge(table_of([0, 3], "new"), path, on="id", strategy="full_merge")
    assert caught.value.changed is False
    assert next(tick) > 1  # it planned again, a few times
    assert pq.ParquetFile(path / "part-00001.parquet").read()["v"].to_pylist() == ["old", "old"]
    assert leftovers(path) == []


# --- P5, P6 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "marker"),
    [
        ("Delta", "_delta_log/00000000000000000000.json"),
        ("Iceberg", "metadata/v1.metadata.json"),
        ("Hudi", ".hoodie/hoodie.properties"),
        ("DuckLake", "ducklake-0190.parquet"),
    ],
)
def test_p5_the_directory_of_a_table_format_is_refused(tmp_path, make_dataset, unchanged, kind, marker):
    path = make_dataset(tmp_path / "ds", table_of([1]))
    (path / marker).parent.mkdir(exist_ok=True)
    (path / marker).write_text("{}")
    for call in (
        lambda: it.merge(table_of([1], "new"), path, on="id"),
        lambda: it.delete(path, "id = 1"),
        lambda: it.write(table_of([2]), path),
        lambda: it.write(table_of([2]), path, mode="overwrite"),
        lambda: it.update(path, {"v": "'x'"}),
        lambda: it.compact(path),
        lambda: it.optimize(path, by="id"),
        lambda: it.deduplicate(path, on="id"),
        lambda: it.plan("delete", path, "id = 1"),
        lambda: it.snapshot(path),
    ):
        with unchanged(path), pytest.raises(NotSupported, match=kind):
            call()


@pytest.mark.parametrize("writer", [FileWriter, ChunkCopy])
def test_p6_a_staged_file_with_other_rows_than_it_should_have_is_not_committed(
    tmp_path, make_dataset, unchanged, monkeypatch, writer
):
    monkeypatch.setattr(chunk_copy, "CHUNK_BYTES", 0 if writer is ChunkCopy else 1 << 20)
    path = make_dataset(tmp_path / "ds", table_of(range(5)))
    close = writer.close

    def miscounts(self, *args, **kwargs) -> StagedFile:
        staged = close(self, *args, **kwargs)
        return StagedFile(staged.location, staged.path, staged.rows + 1, staged.size, staged.partition)

    monkeypatch.setattr(writer, "close", miscounts)
    with unchanged(path), pytest.raises(DamagedTable, match="5 rows instead of 6") as caught:
        it.merge(table_of([1], "new"), path, on="id")
    assert caught.value.changed is False


def test_p6_page_checksums_are_written_and_verified_when_a_file_is_rewritten(tmp_path, unchanged):
    path = tmp_path / "ds"
    (file,) = it.write(table_of(range(1000), "x" * 10), path, compression="none").inserted_files
    content = bytearray(Path(file).read_bytes())
    offset = pq.read_metadata(file).row_group(0).column(0).data_page_offset + 400
    content[offset] ^= 1  # a single bit, within a page
    Path(file).write_bytes(content)
    with unchanged(path), pytest.raises(pa.ArrowInvalid, match=Path(file).name):
        it.merge(table_of([1], "new"), path, on="id")
