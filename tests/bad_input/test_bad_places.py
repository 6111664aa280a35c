"""Cases 37 to 48 of the bad-input catalogue: empty sources and targets, and partition values as paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.errors import DamagedTable, NothingMatched, PartitionMoveError, SchemaMismatch, UnsafePath
from tests.bad_input.trial import (
    BASE,
    EVERYTHING,
    SCHEMA,
    SOURCE,
    Operation,
    each_strategy,
    files_of,
    merging,
)

NOTHING = SCHEMA.empty_table()


@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "deduplicate"])
@pytest.mark.parametrize("dry_run", [False, True], ids=["run", "dry"])
def test_case_37_empty_source_changes_nothing(
    root: Path, strategy: str, dry_run: bool, unchanged: Any
) -> None:
    with unchanged(root):
        result = it.merge(NOTHING, root, on="id", strategy=strategy, dry_run=dry_run)
    assert (result.inserted, result.updated, result.deleted, result.total) == (0, 0, 0, 6)
    assert not (root.parent / f".{root.name}.intarsia").exists()


def test_case_37_appending_nothing_changes_nothing(root: Path, unchanged: Any) -> None:
    with unchanged(root):
        assert it.write(NOTHING, root).total == 6


@pytest.mark.parametrize("partition", [(), "name"], ids=["flat", "partitioned"])
def test_case_38_empty_source_of_a_full_merge_deletes_every_row(
    tmp_path: Path, partition: Any, make_dataset: Any
) -> None:
    root = make_dataset(tmp_path / "t", BASE, partition=partition)
    (root / "README.md").write_text("ours")
    result = it.merge(NOTHING, root, on="id", strategy="full_merge")
    assert (result.deleted, result.total, result.inserted, result.updated) == (6, 0, 0, 0)
    assert files_of(root) == []
    assert (root / "README.md").read_text() == "ours"


@pytest.mark.parametrize("strategy", ["insert", "upsert", "full_merge", "deduplicate"])
@pytest.mark.parametrize("made", [False, True], ids=["missing", "empty"])
def test_case_39_target_that_is_not_there_is_made(
    tmp_path: Path, strategy: str, made: bool, rows: Any
) -> None:
    root = tmp_path / "deep" / "er" / "t"
    if made:
        root.mkdir(parents=True)
    result = it.merge(SOURCE, root, on="id", strategy=strategy)
    assert (result.inserted, result.total) == (3, 3)
    assert rows(root) == rows(SOURCE)


@pytest.mark.parametrize("made", [False, True], ids=["missing", "empty"])
def test_case_39_update_of_a_target_that_is_not_there_does_nothing(tmp_path: Path, made: bool) -> None:
    root = tmp_path / "deep" / "t"
    if made:
        root.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    result = it.merge(SOURCE, root, on="id", strategy="update")
    assert (result.inserted, result.updated, result.total) == (0, 0, 0)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "call",
    [
        lambda root: it.compact(root),
        lambda root: it.optimize(root, by="n"),
        lambda root: it.deduplicate(root, on="id"),
        lambda root: it.compact(root, dry_run=True),
    ],
    ids=["compact", "optimize", "deduplicate", "dry"],
)
@pytest.mark.parametrize("made", [False, True], ids=["missing", "empty"])
def test_case_39_maintenance_of_a_target_that_is_not_there(
    tmp_path: Path, call: Any, made: bool, refused: Any
) -> None:
    root = tmp_path / "deep" / "t"
    if made:
        root.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    error = refused(root, NothingMatched, lambda: call(root), "No matching Parquet files")
    assert isinstance(error, FileNotFoundError)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        ("delete", lambda root: it.delete(root, "id = 1")),
        ("update", lambda root: it.update(root, {"n": "1"})),
        ("delete", lambda root: it.delete(root, pc.field("id") == 1, dry_run=True)),
        ("update", lambda root: it.plan("update", root, {"n": "1"}, "id = 1")),
        ("inspect", it.inspect),
    ],
    ids=["delete", "update", "dry", "plan", "inspect"],
)
def test_case_39_rows_of_a_target_that_is_not_there_cannot_be_changed_or_looked_at(
    tmp_path: Path, operation: str, call: Any, refused: Any
) -> None:
    root = tmp_path / "deep" / "t"
    said = f"{operation}: there is no dataset at {root}."
    error = refused(root, NothingMatched, lambda: call(root), said)
    assert isinstance(error, FileNotFoundError)
    assert error.path == str(root)
    assert list(tmp_path.iterdir()) == []


def test_case_39_delete_and_update_rows_of_an_empty_target_do_nothing(tmp_path: Path) -> None:
    root = tmp_path / "t"
    root.mkdir()
    assert it.delete(root, "id = 1").deleted == 0
    assert it.update(root, {"n": "1"}).updated == 0
    assert it.inspect(root).rows == 0
    assert list(tmp_path.rglob("*")) == [root]


EVIL = [
    "../../evil",
    "..",
    ".",
    "/etc/passwd",
    "a/b",
    "a=b",
    "%2F",
    "%",
    "'",
    '"; drop',
    "x\ny",
    "50 %",
    "ä*?[z]",
]


@pytest.mark.parametrize("value", EVIL)
def test_case_40_partition_value_that_looks_like_a_path(tmp_path: Path, value: str, rows: Any) -> None:
    root = tmp_path / "inner" / "t"
    table = pa.table({"id": [1, 2], "n": [1, 2], "p": [value, "plain"]})
    it.write(table, root, partition_by="p")
    assert it.merge(table.set_column(1, "n", pa.array([7, 8])), root, on="id").updated == 2
    assert it.merge(pa.table({"id": [3], "n": [3], "p": [value]}), root, on=["id", "p"]).inserted == 1
    outside = [p for p in tmp_path.rglob("*") if p.is_file() and root not in p.parents]
    assert all(".t.intarsia" in p.parts for p in outside), outside
    assert len({file.parent for file in files_of(root)}) == 2
    assert {(row["id"], row["n"], row["p"]) for row in rows(root)} == {
        (1, 7, value), (2, 8, "plain"), (3, 3, value),
    }  # fmt: skip
    assert it.snapshot(root).partition_columns == ("p",)
    assert it.delete(root, "p = 'plain'").deleted == 1


@pytest.fixture
def parted(tmp_path: Path, make_dataset: Any) -> Path:
    table = pa.table({"id": [1, 2, 3], "n": [1, 2, 3], "p": ["x", "y", "x"]})
    root: Path = make_dataset(tmp_path / "parted", table, partition="p")
    return root


def parted_row(value: str) -> pa.Table:
    return pa.table({"id": [8, 9], "n": [8, 9], "p": ["x", value]})


def placing(value: str) -> dict[str, Operation]:
    """Every way for a row to come to a new partition of this value."""
    source = parted_row(value)
    return {
        **merging(source, strategies=["insert", "upsert", "full_merge", "deduplicate"]),
        "append": lambda root: it.write(source, root),
        "overwrite": lambda root: it.write(source, root, mode="overwrite"),
        "overwrite_partitions": lambda root: it.write(source, root, mode="overwrite_partitions"),
        "new": lambda root: it.write(source, root.parent / "new", partition_by="p"),
        "new_merge": lambda root: it.merge(source, root.parent / "new", on="id", partition_by="p"),
    }


def test_case_41_partition_value_with_a_nul(parted: Path, each_refused: Any) -> None:
    each_refused(parted, placing("a\0b"), UnsafePath, "'p'", "a\\x00b", "NUL", where=parted.parent)
    assert not (parted.parent / "new").exists()


def test_case_42_empty_partition_value(parted: Path, each_refused: Any) -> None:
    each_refused(parted, placing(""), UnsafePath, "'p'", "''", "empty", "NULL", where=parted.parent)
    assert not (parted.parent / "new").exists()


def test_case_43_partition_value_that_is_the_name_of_null(parted: Path, each_refused: Any) -> None:
    each_refused(
        parted,
        placing("__HIVE_DEFAULT_PARTITION__"),
        UnsafePath,
        "'p'",
        "__HIVE_DEFAULT_PARTITION__",
        "NULL",
        where=parted.parent,
    )
    assert not (parted.parent / "new").exists()


def test_case_43_a_real_null_has_that_directory(parted: Path, rows: Any) -> None:
    it.write(pa.table({"id": [9], "n": [9], "p": pa.array([None], pa.string())}), parted)
    assert (parted / "p=__HIVE_DEFAULT_PARTITION__").is_dir()
    assert [row["p"] for row in rows(parted) if row["id"] == 9] == [None]
    assert it.delete(parted, "p is null").deleted == 1


def test_case_44_directories_01_and_1_are_two(tmp_path: Path, rows: Any) -> None:
    root = tmp_path / "t"
    for text, number in (("01", 1), ("1", 2)):
        (root / f"p={text}").mkdir(parents=True)
        pq.write_table(pa.table({"id": [number], "n": [number]}), root / f"p={text}" / "f.parquet")
    assert it.snapshot(root).schema.field("p").type == pa.string()
    untouched = (root / "p=01" / "f.parquet").read_bytes()
    result = it.merge(pa.table({"id": [2, 3], "n": [20, 30], "p": ["1", "01"]}), root, on="id")
    assert (result.updated, result.inserted) == (1, 1)
    assert (root / "p=01" / "f.parquet").read_bytes() == untouched
    assert {(row["id"], row["n"], row["p"]) for row in rows(root)} == {
        (1, 1, "01"),
        (2, 20, "1"),
        (3, 30, "01"),
    }


def test_case_44_a_number_against_such_directories_is_refused(tmp_path: Path, refused: Any) -> None:
    root = tmp_path / "t"
    for text in ("01", "1"):
        (root / f"p={text}").mkdir(parents=True)
        pq.write_table(pa.table({"id": [1], "n": [1]}), root / f"p={text}" / "f.parquet")
    call = lambda: it.merge(pa.table({"id": [2], "n": [2], "p": [1]}), root, on="id")  # noqa: E731
    refused(root, SchemaMismatch, call, "'p'", "string", "int64")


@pytest.mark.parametrize("name", ["_p", ".p"])
def test_case_45_partition_column_that_would_be_hidden(tmp_path: Path, name: str, refused: Any) -> None:
    table = pa.table({"id": [1], name: ["x"]})
    root = tmp_path / "new"
    for call in (
        lambda: it.write(table, root, partition_by=name),
        lambda: it.merge(table, root, on="id", partition_by=[name]),
    ):
        refused(root, UnsafePath, call, repr(name), "leading", "rename the column")
    assert not root.exists()


def test_case_46_partition_value_too_long_for_a_name(parted: Path, each_refused: Any) -> None:
    each_refused(parted, placing("ä" * 150), UnsafePath, "'p'", "ää", "302 bytes", "255", where=parted.parent)
    assert not (parted.parent / "new").exists()


def test_case_46_the_longest_value_that_fits(parted: Path, rows: Any) -> None:
    value = "v" * (255 - len("p="))
    assert it.merge(parted_row(value), parted, on="id").inserted == 2
    assert [row["p"] for row in rows(parted) if row["id"] == 9] == [value]


def test_case_47_file_outside_of_the_layout_is_never_left_out(parted: Path, rows: Any) -> None:
    pq.write_table(pa.table({"id": [5, 6], "n": [5, 6], "p": ["y", "z"]}), parted / "loose.parquet")
    result = it.merge(pa.table({"id": [6], "n": [60], "p": ["z"]}), parted, on="id")
    assert (result.updated, result.inserted) == (1, 0)
    assert it.delete(parted, "p = 'y'").deleted == 2
    assert {(row["id"], row["n"], row["p"]) for row in rows(parted)} == {
        (1, 1, "x"),
        (3, 3, "x"),
        (6, 60, "z"),
    }


def test_case_47_partitions_nested_in_two_orders(root: Path, each_refused: Any) -> None:
    for directory in ("a=1/b=2", "b=2/a=1"):
        (root / directory).mkdir(parents=True)
        pq.write_table(BASE, root / directory / "f.parquet")
    words = ("'a'", "'b'", "different orders", "a=1/b=2", "b=2/a=1")
    each_refused(root, EVERYTHING, DamagedTable, *words, where=None)


@each_strategy
def test_case_48_key_that_exists_in_another_partition(
    parted: Path, strategy: str, refused: Any, unchanged: Any
) -> None:
    source = pa.table({"id": [2, 3], "n": [20, 30], "p": ["x", "y"]})
    call = lambda: it.merge(source, parted, on="id", strategy=strategy)  # noqa: E731
    if strategy == "insert":  # such keys exist, so their rows are ignored
        with unchanged(parted):
            assert call().inserted == 0
        return
    words = ("partition columns cannot change", "2 rows", "id=2", "p=y", "p=x", "delete those keys first")
    refused(parted, PartitionMoveError, call, *words)


def test_case_48_a_partition_column_cannot_be_assigned(parted: Path, refused: Any) -> None:
    call = lambda: it.update(parted, {"p": "'z'"}, "id = 2")  # noqa: E731
    refused(parted, PartitionMoveError, call, "partition columns cannot change", "'p'")
