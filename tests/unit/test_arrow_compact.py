from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from intarsia.core.change import Change, Matches
from intarsia.core.intent import CompactIntent, WriteOptions
from intarsia.core.plan import FileGroup
from intarsia.core.planning import plan_compact
from intarsia.errors import DamagedTable
from intarsia.kernel import write as kernel_write
from intarsia.kernel.compact import check_rows, stage_compact
from intarsia.kernel.threads import map_in_order
from intarsia.tables.parquet import ParquetTable


def silent(_step: str, _done: int, _total: int) -> None: ...


def compacted(root: Path, *, threads: int = 2, progress: Any = silent, **intent: Any) -> Change:
    options = WriteOptions(**intent.pop("options", {}))
    table = ParquetTable(root)
    with table.transaction("compact") as tx:
        plan = plan_compact(CompactIntent(options=options, **intent), tx.snapshot)
        change = plan.make_change(Matches(), stage_compact(plan, tx, threads=threads, progress=progress))
        tx.commit(change)
    return change


def files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.parquet"))


def write(root: Path, name: str, table: pa.Table, **writer: Any) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, root / name, **writer)


def group_rows(file: Path) -> list[int]:
    footer = pq.read_metadata(file)
    return [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_small_files_become_one_with_the_same_rows_in_their_order(
    tmp_path: Path, make_dataset: Any, leftovers: Any, threads: int
) -> None:
    names = [f"n{n}" for n in range(1000)]
    table = pa.table({"id": range(1000), "name": names, "tags": [["a", None]] * 1000})
    root = make_dataset(tmp_path / "d", table, files=20)
    change = compacted(root, threads=threads)
    (file,) = files(root)
    assert file.name.startswith("compact-")
    assert pq.read_table(file).equals(table)
    assert [staged.rows for staged in change.added] == [1000]
    assert len(change.removed) == len(change.planned) == 20
    assert not change.exclusive
    assert leftovers(root) == []


def test_partitions_are_compacted_by_themselves_and_keep_their_directory(
    tmp_path: Path, make_dataset: Any, rows: Any
) -> None:
    table = pa.table({"id": range(60), "day": [f"d{n % 3}" for n in range(60)]})
    root = make_dataset(tmp_path / "d", table, files=4, partition="day")
    before = rows(root)
    steps: list[tuple[str, int, int]] = []
    compacted(root, progress=lambda *step: steps.append(step))
    assert [file.parent.name for file in files(root)] == ["day=d0", "day=d1", "day=d2"]
    assert rows(root) == before
    assert pq.read_schema(files(root)[0]).names == ["id"]
    assert steps == [("write files", 1, 3), ("write files", 2, 3), ("write files", 3, 3)]


def test_a_partition_column_that_files_repeat_stays_in_the_file(tmp_path: Path) -> None:
    root = tmp_path / "d"
    write(root, "day=1/a.parquet", pa.table({"id": [1], "day": [1]}))
    write(root, "day=1/b.parquet", pa.table({"id": [2]}))
    compacted(root)
    (file,) = files(root)
    with pq.ParquetFile(file) as parquet:
        assert parquet.read().to_pydict() == {"id": [1, 2], "day": [1, 1]}


def test_columns_a_file_lacks_are_null_and_narrow_types_are_widened(tmp_path: Path) -> None:
    root = tmp_path / "d"
    write(root, "a.parquet", pa.table({"id": pa.array([1], pa.int32())}))
    write(root, "b.parquet", pa.table({"x": ["later"], "id": pa.array([2**40], pa.int64())}))
    compacted(root)
    (file,) = files(root)
    assert pq.read_table(file).to_pydict() == {"id": [1, 2**40], "x": [None, "later"]}


def test_small_row_groups_come_together_up_to_the_size_of_the_largest_file(tmp_path: Path) -> None:
    root = tmp_path / "d"
    write(root, "a.parquet", pa.table({"id": range(1000)}), row_group_size=400)
    for number in range(5):
        write(root, f"b{number}.parquet", pa.table({"id": range(100)}))
    compacted(root)
    (file,) = files(root)
    assert group_rows(file) == [400, 400, 400, 300]


def test_files_of_one_small_row_group_each_set_no_limit(tmp_path: Path, make_dataset: Any) -> None:
    root = make_dataset(tmp_path / "d", pa.table({"id": range(1000)}), files=10)
    compacted(root)
    assert group_rows(files(root)[0]) == [1000]


def test_options_decide_over_row_groups_and_compression(tmp_path: Path, make_dataset: Any) -> None:
    root = make_dataset(tmp_path / "d", pa.table({"id": range(1000)}), files=10, compression="gzip")
    compacted(root, options={"row_group_size": 300, "compression": "zstd"})
    (file,) = files(root)
    assert group_rows(file) == [300, 300, 300, 100]
    assert pq.read_metadata(file).row_group(0).column(0).compression == "ZSTD"


def test_the_codec_and_the_notes_that_all_files_share_are_kept(tmp_path: Path) -> None:
    root = tmp_path / "d"
    for number in range(3):
        notes = {"owner": "team", "part": str(number)}
        table = pa.table({"id": range(10)}).replace_schema_metadata(notes)
        write(root, f"{number}.parquet", table, compression="gzip")
    compacted(root)
    footer = pq.read_metadata(files(root)[0])
    assert footer.row_group(0).column(0).compression == "GZIP"
    assert footer.metadata[b"owner"] == b"team"
    assert b"part" not in footer.metadata  # which was true of one file each


def test_a_row_group_closes_when_it_is_large_in_memory(
    tmp_path: Path, make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_write, "PIECE_BYTES", 1000)
    root = make_dataset(tmp_path / "d", pa.table({"id": pa.array(range(1000), pa.int64())}), files=20)
    compacted(root, threads=1)
    assert group_rows(files(root)[0]) == [150] * 6 + [100]


def test_an_order_that_every_file_declares_stays_true(tmp_path: Path) -> None:
    root = tmp_path / "d"
    order = [pq.SortingColumn(1, descending=True), pq.SortingColumn(0)]
    for number in range(4):
        ids = [9 - number, 5, 1]
        write(root, f"{number}.parquet", pa.table({"n": [number] * 3, "id": ids}), sorting_columns=order)
    compacted(root)
    (file,) = files(root)
    assert list(pq.read_metadata(file).row_group(0).sorting_columns) == order
    found = pq.read_table(file)
    assert found["id"].to_pylist() == [9, 8, 7, 6, 5, 5, 5, 5, 1, 1, 1, 1]
    assert found["n"].to_pylist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]


def test_an_order_that_one_file_does_not_declare_is_dropped(tmp_path: Path) -> None:
    root = tmp_path / "d"
    write(root, "a.parquet", pa.table({"id": range(100)}), sorting_columns=[pq.SortingColumn(0)])
    write(root, "b.parquet", pa.table({"id": [3, 2]}))
    compacted(root)
    (file,) = files(root)
    assert pq.read_metadata(file).row_group(0).sorting_columns == ()
    assert pq.read_table(file)["id"].to_pylist() == [*range(100), 3, 2]


def test_files_without_rows_are_compacted_too(tmp_path: Path, make_dataset: Any) -> None:
    empty = pa.table({"id": pa.array([], pa.int64())})
    root = tmp_path / "d"
    for name in ("a", "b"):
        write(root, f"{name}.parquet", empty)
    compacted(root)
    (file,) = files(root)
    assert pq.read_table(file).equals(empty)


def test_dictionary_columns_of_different_dictionaries_come_together(tmp_path: Path) -> None:
    root = tmp_path / "d"
    for number, words in enumerate((["a", "b"], ["c", None], ["b", "d"])):
        column = pa.array(words).dictionary_encode()
        write(root, f"{number}.parquet", pa.table({"w": column}))
    compacted(root)
    found = pq.read_table(files(root)[0])["w"]
    assert pa.types.is_dictionary(found.type)
    assert found.to_pylist() == ["a", "b", "c", None, "b", "d"]


def test_small_dictionaries_of_several_files_become_one_and_readers_see_plain_values(tmp_path: Path) -> None:
    """Of several dictionaries in one row group PyArrow would store plain values, which are larger."""
    schema = pa.schema([("s", pa.string()), ("b", pa.binary()), ("id", pa.int64())])
    tables = []
    for n in range(4):
        words = [None if i % 50 == 0 else f"a rather long word {n} {i % 5}" for i in range(2000)]
        encoded = [None if word is None else word.encode() for word in words]
        tables.append(pa.table([words, encoded, range(n * 2000, n * 2000 + 2000)], schema=schema))
        write(tmp_path / "d", f"{n}.parquet", tables[-1])
    compacted(tmp_path / "d")
    (file,) = files(tmp_path / "d")
    assert pq.read_table(file).equals(pa.concat_tables(tables))
    assert pq.read_schema(file).equals(schema)
    footer = pq.read_metadata(file)
    assert group_rows(file) == [8000]
    for number in (0, 1):
        column = footer.row_group(0).column(number)
        assert column.has_dictionary_page
        assert column.total_uncompressed_size < 2 * 8000  # indices and twenty words


def test_a_column_that_one_file_stores_otherwise_is_read_as_plain_values(tmp_path: Path) -> None:
    words = [f"w{n % 3}" for n in range(2000)]
    many = [f"w{n}" for n in range(2000)]
    root = tmp_path / "d"
    write(root, "a.parquet", pa.table({"s": words, "l": pa.array(words, pa.large_string())}))
    write(root, "b.parquet", pa.table({"s": many, "l": pa.array(words, pa.large_string())}))
    write(root, "c.parquet", pa.table({"s": pa.array([], pa.string()), "l": pa.array([], pa.large_string())}))
    compacted(root)
    (file,) = files(root)
    assert pq.read_table(file)["s"].to_pylist() == [*words, *many]
    assert pq.read_table(file)["l"].to_pylist() == [*words, *words]


def test_a_damaged_file_fails_by_name_and_leaves_everything_as_it_was(
    tmp_path: Path, make_dataset: Any, unchanged: Any
) -> None:
    root = make_dataset(tmp_path / "d", pa.table({"id": range(30_000)}), files=3, compression="none")
    bad = root / "part-00001.parquet"
    data = bytearray(bad.read_bytes())
    data[4:40] = bytes(36)
    bad.write_bytes(data)
    with unchanged(root), pytest.raises(DamagedTable, match=r"part-00001\.parquet"):
        compacted(root)


def test_a_row_count_that_does_not_add_up_is_refused(tmp_path: Path, make_dataset: Any) -> None:
    root = make_dataset(tmp_path / "d", pa.table({"id": range(10)}), files=2)
    snapshot = ParquetTable(root).snapshot()
    group = FileGroup(snapshot.files)
    with pytest.raises(DamagedTable, match="10 rows to write became 0"):
        check_rows([], group.rows, group)


def test_results_of_threads_come_in_order_and_an_error_ends_the_rest() -> None:
    assert list(map_in_order(lambda n: n * n, range(50), threads=3)) == [n * n for n in range(50)]
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        if number == 3:
            raise ValueError("three")
        return number

    with pytest.raises(ValueError, match="three"):
        list(map_in_order(work, range(1000), threads=2))
    assert len(begun) < 20


def test_results_may_wait_for_one_that_takes_long() -> None:
    """The first work ends only when all others have."""
    others = threading.Semaphore(0)

    def work(number: int) -> int:
        if number:
            others.release()
        else:
            for _ in range(30):
                assert others.acquire(timeout=10)
        return number

    assert list(map_in_order(work, range(31), threads=2, ahead=31)) == [*range(31)]
