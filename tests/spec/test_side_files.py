"""S25: what other writers keep beside data files follows them, so that they can read what they wrote."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.core.incremental import IncrementalFileManager

ENGINES = ["arrow", "duckdb", "spark"]
Row = tuple[int, str]

SOURCE = pa.table(
    {"id": pa.array([2, 20], pa.int64()), "v": ["new", "new"], "p": pa.array([0, 5], pa.int32())}
)


def rows_of(session: Any, path: Path) -> list[Row]:
    """As plain Spark reads it: Hadoop compares every file with the checksum beside it."""
    return sorted((row["id"], row["v"]) for row in session.read.parquet(str(path)).collect())


def by_spark(session: Any, path: Path, *, partition: bool, low: int = 0, mode: str = "error") -> None:
    frame = session.range(low, low + 12, 1, 3).selectExpr("id", "'old' as v", "cast(id % 2 as int) as p")
    writer = frame.write.mode(mode)
    (writer.partitionBy("p") if partition else writer).parquet(str(path))


def checksum(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def add_checksum(path: Path) -> None:
    """As Hadoop does."""
    data = path.read_bytes()
    sums = [zlib.crc32(data[at : at + 512]) for at in range(0, len(data), 512)]
    checksum(path).write_bytes(b"crc\0" + struct.pack(f">i{len(sums)}I", 512, *sums))


def checked(root: Path) -> None:
    """No checksum of a data file stands without it, or beside other bytes than its own."""
    for aside in root.rglob(".*.parquet.crc"):
        path = aside.with_name(aside.name[1:-4])
        assert path.exists(), f"{aside} was left behind"
        before = aside.read_bytes()
        add_checksum(path)
        assert aside.read_bytes() == before, f"{aside} is of other bytes"


def upsert(path: Path, engine: Any) -> None:
    it.merge(SOURCE, path, on="id", engine=engine)


def full_merge(path: Path, engine: Any) -> None:
    it.merge(SOURCE, path, on="id", strategy="full_merge", engine=engine)


def delete(path: Path, engine: Any) -> None:
    it.delete(path, "id in (1, 2)", engine=engine)


def delete_a_whole_file(path: Path, engine: Any) -> None:
    it.delete(path, "p = 1", engine=engine)


def update(path: Path, engine: Any) -> None:
    it.update(path, {"v": "'set'"}, "id < 4", engine=engine)


def append(path: Path, engine: Any) -> None:
    it.write(SOURCE, path, mode="append", engine=engine)


def overwrite(path: Path, engine: Any) -> None:
    it.write(SOURCE, path, mode="overwrite", engine=engine)


def compact(path: Path, engine: Any) -> None:
    it.compact(path, engine=engine)


def optimize(path: Path, engine: Any) -> None:
    it.optimize(path, by=["v", "id"], engine=engine)


def deduplicate(path: Path, engine: Any) -> None:
    it.deduplicate(path, on=["v"], engine=engine)


OLD = dict.fromkeys(range(12), "old")
EXPECTED: dict[Callable[[Path, Any], None], dict[int, str] | None] = {
    upsert: {**OLD, 2: "new", 20: "new"},
    full_merge: {2: "new", 20: "new"},
    delete: {k: v for k, v in OLD.items() if k not in (1, 2)},
    delete_a_whole_file: {k: v for k, v in OLD.items() if k % 2 == 0},
    update: {k: "set" if k < 4 else v for k, v in OLD.items()},
    overwrite: {2: "new", 20: "new"},
    compact: OLD,
    optimize: OLD,
    deduplicate: None,
}


def engine_named(name: str, session: Any) -> Any:
    return session if name == "spark" else name


@pytest.mark.parametrize("engine", ENGINES)
def test_s25_spark_reads_its_own_directory_after_every_operation(
    tmp_path: Path, spark: Any, engine: str
) -> None:
    for number, (operation, expected) in enumerate(EXPECTED.items()):
        path = tmp_path / f"{number}-{operation.__name__}"
        by_spark(spark, path, partition=number % 2 == 1)
        operation(path, engine_named(engine, spark))
        found = rows_of(spark, path)
        assert expected is None or found == sorted(expected.items()), operation.__name__
        checked(path)


@pytest.mark.parametrize("engine", ENGINES)
def test_s25_spark_reads_what_it_appended_to_our_dataset_after_a_merge(
    tmp_path: Path, spark: Any, engine: str
) -> None:
    path, chosen = tmp_path / "ds", engine_named(engine, spark)
    it.write(
        pa.table({"id": pa.array([100], pa.int64()), "v": ["ours"], "p": pa.array([0], pa.int32())}), path
    )
    by_spark(spark, path, partition=False, mode="append")
    upsert(path, chosen)
    assert rows_of(spark, path) == sorted({**EXPECTED[upsert], 100: "ours"}.items())
    by_spark(spark, path, partition=False, low=30, mode="append")
    append(path, chosen)
    delete(path, chosen)
    compact(path, chosen)
    assert len(rows_of(spark, path)) == 12 + 2 + 12 + 2 - 3
    checked(path)


def spark_like(path: Path) -> Path:
    """A dataset with Hadoop's checksums, made without Spark."""
    for number in range(2):
        part = pa.table({"id": pa.array([number * 2, number * 2 + 1], pa.int64()), "v": ["old"] * 2})
        path.mkdir(exist_ok=True)
        pq.write_table(part, path / f"part-{number}.parquet")
        add_checksum(path / f"part-{number}.parquet")
    return path


def test_s25_checksums_of_files_that_stay_stay(tmp_path: Path) -> None:
    path = spark_like(tmp_path / "ds")
    it.delete(path, "id = 0")
    assert not checksum(path / "part-0.parquet").exists()
    assert checksum(path / "part-1.parquet").exists()
    checked(path)


def test_s25_a_replaced_files_checksum_is_retained_with_it(tmp_path: Path) -> None:
    path = spark_like(tmp_path / "ds")
    before = checksum(path / "part-0.parquet").read_bytes()
    it.delete(path, "id = 0", retain=1)
    (kept,) = (tmp_path / ".ds.intarsia" / "retained").iterdir()
    record = json.loads((kept / "intent.json").read_text())
    (side,) = record["side_files"]
    assert side["path"] == ".part-0.parquet.crc"
    assert (kept / side["kept"]).read_bytes() == before


def test_s25_a_checksum_left_of_a_file_that_is_gone_does_not_spoil_one_of_its_name(tmp_path: Path) -> None:
    path = spark_like(tmp_path / "ds")
    (path / "part-0.parquet").unlink()
    pq.write_table(pa.table({"id": pa.array([7], pa.int64()), "v": ["old"]}), tmp_path / "new.parquet")
    IncrementalFileManager().atomic_replace_files([tmp_path / "new.parquet"], [path / "part-0.parquet"])
    checked(path)


def with_summaries(path: Path) -> Path:
    """As Dask and pyarrow's documentation write it."""
    table = pa.table({"id": pa.array([1, 2], pa.int64()), "v": ["a", "b"]})
    collected: list[pq.FileMetaData] = []
    pq.write_to_dataset(table, path, metadata_collector=collected)
    pq.write_metadata(table.schema, path / "_common_metadata")
    pq.write_metadata(table.schema, path / "_metadata", metadata_collector=collected)
    for name in ("_metadata", "_common_metadata"):
        add_checksum(path / name)
    return path


@pytest.mark.parametrize("engine", ENGINES)
def test_s25_summaries_go_with_the_first_change_and_the_result_says_so(
    tmp_path: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    path = with_summaries(tmp_path / "ds")
    chosen = request.getfixturevalue("spark") if engine == "spark" else engine
    dry = it.delete(path, "id = 1", engine=chosen, dry_run=True)
    nothing = it.delete(path, "id = 5", engine=chosen)
    assert any("a change removes it" in note for note in dry.notes)
    assert not any("Removed" in note for note in (*dry.notes, *nothing.notes))
    assert ds.parquet_dataset(path / "_metadata").to_table().num_rows == 2
    result = it.delete(path, "id = 1", engine=chosen)
    assert [note for note in result.notes if "Removed _common_metadata, _metadata" in note]
    assert sorted(p.name for p in path.iterdir() if p.suffix != ".parquet") == []
    assert it.delete(path, "id = 2", engine=chosen).notes == ()


def test_s25_a_new_file_makes_a_summary_stale_too_also_one_of_its_partition(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    for value in ("a", "b"):
        with_summaries(path / f"p={value}")
    it.write(pa.table({"id": pa.array([3], pa.int64()), "v": ["c"], "p": ["a"]}), path)
    assert not (path / "p=a" / "_metadata").exists()
    assert (path / "p=b" / "_metadata").exists(), "nothing below it has changed"
