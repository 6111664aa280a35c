"""Links to the states of a dataset that lazy readers of this process may still read."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

import intarsia as it
from intarsia.tables.parquet import ParquetTable
from intarsia.tables.parquet.links import LinkedStates


@pytest.fixture
def states():
    made = LinkedStates()
    yield made
    made.close()


@pytest.fixture
def table(tmp_path: Path) -> ParquetTable:
    it.write(pa.table({"id": [1, 2]}), tmp_path / "t", engine="arrow")
    return ParquetTable(tmp_path / "t")


def _read(snapshot):
    return [row for file in snapshot.files for row in pa.parquet.read_table(file.location)["id"].to_pylist()]


def _list_links(table: ParquetTable) -> int:
    names = table.storage.names(table.control.snapshots)
    return len([name for name in names if not name.endswith(".lock")])


def _replace_rows(table: ParquetTable) -> None:
    it.update(table, {"id": "id + 10"}, engine="arrow")


def test_a_state_that_is_read_again_has_the_same_links(states, table):
    first, again = (states.link(table, table.snapshot()) for _ in range(2))
    assert first == again
    assert first.stat is None
    assert _list_links(table) == 1


def test_the_last_two_states_stay_and_older_ones_that_keep_replaced_files_go(states, table):
    found = []
    for _ in range(3):
        found.append(states.link(table, table.snapshot()))
        _replace_rows(table)
    assert [_read(state) for state in found[1:]] == [[11, 12], [21, 22]]
    assert not os.path.exists(found[0].files[0].location)
    assert _list_links(table) == 2


def test_states_whose_files_are_all_there_stay_up_to_a_number(states, table, monkeypatch):
    monkeypatch.setattr("intarsia.tables.parquet.links.MOST_STATES", 4)
    found = []
    for number in range(6):
        found.append(states.link(table, table.snapshot()))
        it.write(pa.table({"id": [100 + number]}), table, engine="arrow")
    assert [os.path.exists(state.files[0].location) for state in found] == [False] * 2 + [True] * 4
    assert [len(_read(state)) for state in found[2:]] == [4, 5, 6, 7]


def test_a_state_that_is_no_longer_the_current_one_is_not_linked(states, table):
    before = table.snapshot()
    _replace_rows(table)
    assert states.link(table, before) is None
    assert _list_links(table) == 0


def test_nothing_is_made_beside_a_dataset_that_others_have_written(states, tmp_path, make_dataset, unchanged):
    path = make_dataset(tmp_path / "t", pa.table({"id": [1]}))
    with unchanged(tmp_path):
        found = states.link(ParquetTable(path), ParquetTable(path).snapshot())
    assert found.stat is not None


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
def test_a_dataset_that_cannot_be_written_is_read_as_it_is(states, table):
    os.chmod(table.control.directory, 0o500)
    try:
        assert states.link(table, table.snapshot()).stat is not None
    finally:
        os.chmod(table.control.directory, 0o700)


def test_links_that_somebody_removed_are_made_anew(states, table):
    first = states.link(table, table.snapshot())
    table.storage.remove_tree(os.path.dirname(first.files[0].location))
    assert _read(states.link(table, table.snapshot())) == [1, 2]


def test_nothing_is_left_at_the_end(table):
    states = LinkedStates()
    states.link(table, table.snapshot())
    states.close()
    assert not os.path.exists(table.control.snapshots)


def test_a_process_that_was_forked_leaves_the_links_of_its_parent(states, table):
    found = states.link(table, table.snapshot())
    states.process = 1
    states.close()
    assert _read(found) == [1, 2]
    states.process = os.getpid()
