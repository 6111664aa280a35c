"""Cases 74 to 79 and 93 to 95 of the bad-input catalogue: others at work on the same directory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.core.ext.parquet import read_parquet
from intarsia.core.run import ATTEMPTS
from intarsia.datasets.pyarrow import PyarrowDatasetIO
from intarsia.datasets.spark import SparkDatasetIO
from intarsia.engines.arrow import ArrowEngine
from intarsia.errors import CommitConflict, NotSupported
from tests.bad_input.conftest import check_error
from tests.bad_input.trial import BASE, EVERYTHING, OPERATIONS, SCHEMA, SOURCE, files_of, write_aside

LATE = pa.table({"id": [7, 8], "name": ["late", "late"], "n": [1, 2]}, schema=SCHEMA)
"""Rows of another writer; a merge of SOURCE has a key in common with them."""
REWRITING = {name: call for name, call in OPERATIONS.items() if name not in ("append", "deduplicate_rows")}
EXCLUSIVE = {
    name: call for name, call in REWRITING.items() if name not in ("compact", "optimize", "overwrite")
}
"""Operations whose result may depend on a file that was not there."""


def meddle(patch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Let another writer act in the middle of every attempt: after the plan, before the commit."""
    stage, attempts = ArrowEngine.stage, iter(range(1000))

    def staged(self: ArrowEngine, *arguments: Any) -> Any:
        change = stage(self, *arguments)
        act(next(attempts))
        return change

    patch.setattr(ArrowEngine, "stage", staged)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_case_74_file_that_another_writer_adds_meanwhile(
    root: Path, operation: Any, tmp_path: Path, make_dataset: Any, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = root / "late.parquet"
    with monkeypatch.context() as patch:
        meddle(patch, lambda attempt: None if attempt else write_aside(late, LATE))
        result = operation(root)
    if result.operation in ("overwrite", "append", "compact", "optimize"):
        assert late.exists(), "it was not known when the operation began"
    assert result.attempts in (1, 2)
    found = [row["id"] for row in rows(root)]
    if result.operation == "merge":
        assert len(found) == len(set(found)), "the key that both have is there once"
    assert result.total + (2 if late.exists() and result.attempts == 1 else 0) == len(found)


def test_case_74_writer_that_never_stops_adding(
    root: Path, rows: Any, tree_digest: Any, leftovers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, operation in EXCLUSIVE.items():
        before = tree_digest(root, control=False)
        added: list[str] = []

        def act(attempt: int, name: str = name, added: list[str] = added) -> None:
            added.append(f"{root.name}/{name}-{attempt}.parquet")
            write_aside(root / f"{name}-{attempt}.parquet", LATE.slice(0, 0))

        with monkeypatch.context() as patch:
            meddle(patch, act)
            with pytest.raises(CommitConflict) as caught:
                operation(root)
        words = (
            "another writer",
            "added 1 file",
            str(root),
            "run the operation again",
            "nothing was changed",
        )
        check_error(caught.value, CommitConflict, *words, changed=False)
        assert len(added) == ATTEMPTS, name
        after = tree_digest(root, control=False)
        assert {path: entry for path, entry in after.items() if path not in added} == before, name
        assert set(added) <= set(after), "files of others stay"
        assert leftovers(root) == [], name


REPLACED = BASE.slice(0, 3).set_column(2, "n", pa.array([-1, -2, -3], pa.int64()))


@pytest.mark.parametrize("operation", REWRITING.values(), ids=REWRITING)
def test_case_75_planned_file_that_another_writer_replaces(
    root: Path, operation: Any, tmp_path: Path, make_dataset: Any, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = files_of(root)[0]
    twin = make_dataset(tmp_path / "twin", pa.concat_tables([REPLACED, BASE.slice(3)]), files=2)
    operation(twin)
    with monkeypatch.context() as patch:
        meddle(patch, lambda attempt: None if attempt else write_aside(first, REPLACED))
        result = operation(root)
    assert rows(root) == rows(twin), "as if the other had come first"
    if result.operation == "merge" and result.strategy == "insert":
        return
    assert result.attempts == 2


def test_case_75_planned_file_that_is_replaced_again_and_again(
    root: Path, rows: Any, leftovers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = files_of(root)[0]
    for name, operation in REWRITING.items():
        if name == "insert":  # touches no file, and key 7 is still new
            continue
        with monkeypatch.context() as patch:
            meddle(patch, lambda _: write_aside(first, REPLACED))
            with pytest.raises(CommitConflict) as caught:
                operation(root)
        check_error(caught.value, CommitConflict, "was changed by another writer", str(first), changed=False)
        assert rows(root) == rows(pa.concat_tables([REPLACED, BASE.slice(3)])), name
        assert len(files_of(root)) == 2, name
        assert leftovers(root) == [], name


def test_case_75_planned_file_that_another_writer_removes(
    root: Path, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = files_of(root)[0]
    with monkeypatch.context() as patch:
        meddle(patch, lambda attempt: None if attempt else first.unlink())
        result = it.merge(SOURCE, root, on="id")
    assert (result.attempts, result.updated, result.inserted, result.total) == (2, 1, 2, 5)
    assert [row["id"] for row in rows(root)] == [2, 4, 5, 6, 7]


def test_case_76_two_mergers_at_once(root: Path, rows: Any) -> None:
    rounds, failures = 6, []

    def work(name: str) -> None:
        try:
            for number in range(rounds):
                source = pa.table(
                    {"id": [2, 100 + number], "name": [name] * 2, "n": [number] * 2}, schema=SCHEMA
                )
                it.merge(source, root, on="id")
                it.update(root, {"n": "n + 1"}, "id = 1")
        except it.IntarsiaError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    found = {row["id"]: row for row in rows(root)}
    assert len(found) == len(rows(root)) == 6 + rounds
    assert found[1]["n"] == 10 + 2 * rounds, "no update is lost"


def test_case_77_compaction_while_rows_are_deleted(
    root: Path, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []

    def compact() -> None:
        done.append(it.compact(root))

    thread = threading.Thread(target=compact)
    with monkeypatch.context() as patch:
        stage = ArrowEngine.stage

        def staged(self: ArrowEngine, *arguments: Any) -> Any:
            change = stage(self, *arguments)
            if not thread.ident:
                thread.start()
                time.sleep(0.1)  # it is waiting for the lock by now
            return change

        patch.setattr(ArrowEngine, "stage", staged)
        result = it.delete(root, "id = 2 or id = 5")
        thread.join()
    assert (result.deleted, len(done)) == (2, 1)
    assert [row["id"] for row in rows(root)] == [1, 3, 4, 6]
    assert len(files_of(root)) == 1


def test_case_77_recovery_while_a_merge_is_under_way(root: Path, rows: Any, monkeypatch: Any) -> None:
    with monkeypatch.context() as patch:
        meddle(
            patch,
            lambda _: check_error(
                conflict_of(lambda: it.recover(root, lock_timeout=0.01)),
                CommitConflict,
                "lock",
                "lock_timeout=",
                changed=False,
            ),
        )
        assert it.merge(SOURCE, root, on="id").updated == 2
    assert len(rows(root)) == 7


def conflict_of(call: Callable[[], Any]) -> CommitConflict:
    with pytest.raises(CommitConflict) as caught:
        call()
    return caught.value


def test_case_78_lock_and_staging_of_a_dead_writer(root: Path, rows: Any, leftovers: Any) -> None:
    control = root.parent / f".{root.name}.intarsia"
    staged = control / "tx" / f".staging_{'ab' * 16}" / "new"
    staged.mkdir(parents=True)
    (staged / "rewrite-00000.part").write_bytes(b"half a file")
    (control / "lock").write_text("pid 1, on a machine that burnt down")
    began = time.monotonic()
    result = it.merge(SOURCE, root, on="id")
    assert time.monotonic() - began < 10
    assert (result.updated, result.inserted) == (2, 1)
    assert leftovers(root) == []
    assert not staged.exists()


DAY = 86_400


@pytest.mark.parametrize("skew", [-DAY, DAY, -40 * 365 * DAY], ids=["yesterday", "tomorrow", "long ago"])
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_case_79_clock_that_is_wrong(
    root: Path, skew: int, operation: Any, tmp_path: Path, rows: Any, make_dataset: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    twin = make_dataset(tmp_path / "twin", BASE, files=2)
    operation(twin)
    for file in files_of(root):
        os.utime(file, (time.time() + skew, time.time() + skew))
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - skew)
    operation(root)
    assert rows(root) == rows(twin)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_case_93_files_that_are_no_data_stay(root: Path, operation: Any, rows: Any, tmp_path: Path,
                                             make_dataset: Any) -> None:  # fmt: skip
    twin = make_dataset(tmp_path / "twin", BASE, files=2)
    others = {
        "README.md": b"hello", "_SUCCESS": b"", "._SUCCESS.crc": b"\3", "notes.parquet.tmp": b"x",
        "_private/f.parquet": b"not parquet", ".hidden/f.parquet": b"not parquet",
        ".elsewhere.parquet.crc": b"\1\2",
    }  # fmt: skip
    described = {"_metadata": b"old", "_common_metadata": b"old"}
    for name, data in {**others, **described}.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(data)
    operation(twin)
    result = operation(root)
    assert {name: (root / name).read_bytes() for name in others} == others
    assert rows(root) == rows(twin)
    said = " ".join(result.notes)
    changed = result.rewritten_files or result.inserted_files or result.removed_files
    for name in described:  # describes the files, so it goes with the first change of one
        assert (root / name).exists() == (not changed)
        assert f"{name} describes the files as they are; a change removes it." in said


TABLES = {
    "Delta": ["_delta_log/00000000000000000000.json"],
    "Iceberg": ["metadata/v1.metadata.json", "metadata/snap-1.avro"],
    "Hudi": [".hoodie/hoodie.properties"],
    "DuckLake": ["ducklake-0190.parquet"],
}


@pytest.mark.parametrize("format", TABLES)
def test_case_94_directory_of_a_table_format(root: Path, format: str, each_refused: Any) -> None:
    for name in TABLES[format]:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("{}")
    each_refused(root, EVERYTHING, NotSupported, format, "corrupt", "its own table format")


class NoSession:
    """A Spark session on which nothing is run."""

    createDataFrame = None


READERS = {
    "Delta": 'spark.read.format("delta")', "Iceberg": "pyiceberg", "Hudi": "hudi", "DuckLake": "DuckDB"
}  # fmt: skip


@pytest.mark.parametrize("format", TABLES)
@pytest.mark.parametrize("how", ["read_parquet", "on spark", "ext", "source", "glob"])
def test_case_94_reading_a_table_format_names_the_reader(root: Path, format: str, how: str) -> None:
    for name in TABLES[format]:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("{}")
    calls: dict[str, Any] = {
        "read_parquet": lambda: PyarrowDatasetIO().read_parquet(root),
        "on spark": lambda: SparkDatasetIO(NoSession()).read_parquet(root),
        "ext": lambda: read_parquet(root),
        "source": lambda: it.write(root, root.with_name("new")),
        "glob": lambda: it.write(root.parent / "*/*.parquet", root.with_name("new")),
    }
    with pytest.raises(NotSupported) as caught:
        calls[how]()
    assert "rows that are gone" in str(caught.value)
    assert READERS[format] in (caught.value.hint or "")
    assert not root.with_name("new").exists()


@pytest.mark.parametrize("format", ["Delta", "Iceberg", "Hudi"])
def test_case_94_part_of_a_table_format_is_no_source(root: Path, format: str) -> None:
    part = root / ("data" if format == "Iceberg" else "day=1")
    part.mkdir()
    pq.write_table(BASE, part / "f.parquet")
    (root / "f.csv").write_text("id\n1\n")
    for name in TABLES[format]:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("{}")
    with pytest.raises(NotSupported, match=f"part of an? {format} table"):
        it.write(part, root.with_name("new"))
    assert it.write(part / "f.parquet", root.with_name("new")).total == BASE.num_rows  # named in full
    assert it.write(root / "*.csv", root.with_name("text")).total == 1


@pytest.mark.parametrize("format", ["Delta", "Iceberg", "Hudi"])
def test_case_94_part_of_a_table_format(root: Path, format: str, each_refused: Any) -> None:
    part = root / ("data" if format == "Iceberg" else "day=1")
    part.mkdir()
    pq.write_table(BASE, part / "f.parquet")
    for name in TABLES[format]:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("{}")
    calls = {"merge": OPERATIONS["upsert"], "compact": OPERATIONS["compact"]}
    each_refused(
        part, calls, NotSupported, f"part of a{'n' if format == 'Iceberg' else ''} {format}", "corrupt"
    )


@pytest.mark.parametrize(
    "staging",
    ["_temporary/0/task_1/part-1.parquet", ".spark-staging-77/part-1.parquet", "tmp_part-00000.parquet"],
)
def test_case_95_staging_of_another_writer(root: Path, staging: str, rows: Any) -> None:
    (root / staging).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(BASE, root / staging)
    result = it.merge(SOURCE, root, on="id")
    assert (result.updated, result.inserted, result.total) == (2, 1, 7)
    assert any("Another writer seems to be active" in note for note in result.notes)
    assert any("Another writer seems to be active" in note for note in it.plan("compact", root).notes)
    assert rows(pa.concat_tables(pq.read_table(f) for f in (root / staging,))) == rows(BASE)
