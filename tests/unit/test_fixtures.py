"""The fixtures that other tests lean on can tell right from wrong."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

TABLE = pa.table(
    {
        "id": [3, 1, 2, 4],
        "value": [1.0, float("nan"), None, -1.0],
        "day": pa.array([dt.date(2024, 1, 1), dt.date(2024, 1, 1), None, dt.date(2024, 1, 2)], pa.date32()),
        "label": ["a/b", "x=y", "50 %", "ä"],
    }
)


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_a_partitioned_dataset_reads_back_as_the_rows_it_was_made_of(tmp_path, make_dataset, rows):
    path = make_dataset(tmp_path / "orders", TABLE, files=2, partition=["day", "label"])
    assert rows(path, schema=TABLE.schema) == rows(TABLE)
    assert rows(path, schema=TABLE.schema) != rows(TABLE.slice(1))


def test_partition_values_are_strings_without_a_schema(tmp_path, make_dataset, rows):
    path = make_dataset(tmp_path / "orders", TABLE, partition="day")
    assert {row["day"] for row in rows(path)} == {"2024-01-01", "2024-01-02", None}


def test_a_dataset_has_the_files_and_row_counts_asked_for(tmp_path, make_dataset):
    path = make_dataset(tmp_path / "orders", TABLE, files=[1, 3])
    assert [pq.read_metadata(file).num_rows for file in sorted(path.iterdir())] == [1, 3]


def test_a_column_that_a_file_lacks_reads_as_none_and_hidden_files_do_not_read(tmp_path, make_dataset, rows):
    path = make_dataset(tmp_path / "orders", pa.table({"id": [1]}))
    pq.write_table(pa.table({"id": [2], "new": ["x"]}), path / "more.PARQUET")
    pq.write_table(pa.table({"id": [3]}), path / "_hidden.parquet")
    assert rows(path) == [{"id": 1, "new": None}, {"id": 2, "new": "x"}]


def test_a_tree_that_stays_is_unchanged_whichever_block_is_outside(tmp_path, make_dataset, unchanged):
    path = make_dataset(tmp_path / "orders", TABLE)
    with unchanged(path), pytest.raises(ValueError, match="refused"):
        raise ValueError("refused")
    with pytest.raises(ValueError, match="refused"), unchanged(path):
        raise ValueError("refused")


@pytest.mark.parametrize(
    ("word", "harm"),
    [
        ("changed", lambda file: file.write_bytes(file.read_bytes())),
        ("gone", lambda file: file.unlink()),
        ("new", lambda file: (file.parent / "day=1").mkdir()),
        (
            "left behind",
            lambda file: _touch(file.parent.parent / ".orders.intarsia" / "tx" / "1" / "new.part"),
        ),
    ],
)
def test_harm_to_a_tree_is_noticed(tmp_path, make_dataset, unchanged, word, harm):
    path = make_dataset(tmp_path / "orders", TABLE)
    with pytest.raises(AssertionError, match=word), unchanged(path):
        harm(path / "part-00000.parquet")


def test_a_dataset_that_was_not_there_must_not_appear(tmp_path, unchanged):
    with unchanged(tmp_path / "none"):
        pass
    with pytest.raises(AssertionError, match="new"), unchanged(tmp_path / "none"):
        (tmp_path / "none").mkdir()


def test_the_lock_and_small_log_records_are_no_leftovers(tmp_path, leftovers, tree_digest):
    control = tmp_path / ".orders.intarsia"
    for name in ("lock", "log/1.json", "log/1.done"):
        _touch(control / name)
    (control / "tx").mkdir()
    assert leftovers(tmp_path / "orders") == []
    assert ".orders.intarsia/log/1.done" in tree_digest(tmp_path / "orders")
    (control / "log" / "2.json").write_bytes(b" " * (2 << 20))
    assert leftovers(tmp_path / "orders") == [".orders.intarsia/log/2.json"]


@given(st.lists(st.one_of(st.none(), st.integers(), st.floats(), st.text()), max_size=5))
def test_rows_compare_equal_in_any_order(rows, values):
    found = [{"value": value} for value in values]
    assert rows(found) == rows(found[::-1])
