"""Catalogs that refuse, lose answers or are busy: tried again, found out, tidied, or left alone."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lake import Lake
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ForbiddenError
from pyiceberg.table import CommitTableRequest

from intarsia.errors import CommitConflict, CommitError, CommitUnknown
from intarsia.tables.iceberg._pyiceberg import prepare_catalog
from intarsia.tables.iceberg.snapshot_producer import FileChange


class Moody(SqlCatalog):
    """A catalog that does what ``moods`` say, one for each commit, before or after the real one."""

    moods: list[Callable[[Callable[[], Any]], Any]]

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        def really() -> Any:
            return SqlCatalog.commit_table(self, table, requirements, updates)

        return self.moods.pop(0)(really) if self.moods else really()


def moody(directory: Path) -> Catalog:
    catalog = Moody("local", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}")
    catalog.moods = []
    return prepare_catalog(catalog)


def refusing(error: BaseException) -> Callable[[Callable[[], Any]], Any]:
    def mood(_: Callable[[], Any]) -> Any:
        raise error

    return mood


def losing(error: BaseException) -> Callable[[Callable[[], Any]], Any]:
    def mood(really: Callable[[], Any]) -> Any:
        really()
        raise error

    return mood


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake.at(tmp_path, catalog=moody)
    made.append([1])
    return made


def lists(lake: Lake) -> list[str]:
    return sorted(name for name in lake.on_disk() if name.startswith("snap-"))


@pytest.mark.parametrize("times", [1, 4])
def test_a_refused_commit_is_tried_again_and_leaves_one_list(lake: Lake, times: int) -> None:
    lake.catalog.moods = [refusing(CommitFailedException("busy"))] * times
    before = lake.on_disk()
    lake.append([2])
    assert lake.ids() == [1, 2]
    new = lake.on_disk() - before
    assert sum(name.startswith("snap-") for name in new) == 1
    assert sum("-m" in name for name in new) == 1


def test_after_too_many_tries_nothing_is_left(lake: Lake) -> None:
    lake.catalog.moods = [refusing(CommitFailedException("busy"))] * 5
    file = lake.data_file([2])
    before = lake.on_disk()
    with pytest.raises(CommitConflict, match="5 tries"):
        lake.commit(FileChange(added_data=[file]))
    assert lake.on_disk() == before


def test_between_tries_the_table_is_looked_at_again(lake: Lake) -> None:
    from intarsia.tables.iceberg.commit import Validation

    (entry,) = lake.entries()

    def another_comes_first(_: Callable[[], Any]) -> Any:
        lake.catalog.moods = []
        lake.commit(FileChange(removed_data=[entry]))
        raise CommitFailedException("too late")

    lake.catalog.moods = [another_comes_first]
    with pytest.raises(CommitConflict, match="removed 1 data file"):
        lake.commit(FileChange(removed_data=[entry]), Validation(existing=[entry]))
    assert lake.ids() == []


@pytest.mark.parametrize(
    "error", [CommitStateUnknownException("504"), ConnectionResetError(), RuntimeError("any"), TimeoutError()]
)
def test_a_lost_answer_is_found_by_the_snapshot(lake: Lake, error: BaseException) -> None:
    lake.catalog.moods = [losing(error)]
    receipt = lake.append([2])
    assert lake.ids() == [1, 2]
    assert lake.table().metadata.current_snapshot_id == receipt.snapshot_id


def test_a_lost_answer_said_to_be_a_refusal_is_not_committed_twice(lake: Lake) -> None:
    lake.catalog.moods = [losing(CommitFailedException("409 of a repeated request"))]
    lake.append([2])
    assert lake.ids() == [1, 2]
    assert len(lake.table().metadata.snapshots) == 2


def test_an_unknown_outcome_removes_nothing_and_says_what_to_look_for(lake: Lake) -> None:
    lake.catalog.moods = [refusing(CommitStateUnknownException("504"))]
    commit = lake.begin(FileChange(added_data=[lake.data_file([2])]))
    before = lake.on_disk()
    with pytest.raises(CommitUnknown, match="look at the table's snapshots later") as caught:
        commit.run()
    assert caught.value.changed is None
    assert commit.in_flight
    new = lake.on_disk() - before
    assert {name.split("-")[0] for name in new} >= {"snap"}
    snapshot = next(name for name in new if name.startswith("snap-")).split("-")[1]
    assert snapshot in str(caught.value)


def test_a_refusal_that_cannot_be_looked_at_is_not_certain(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> Any:
        raise ConnectionError("away")

    def refuse_and_leave(_: Callable[[], Any]) -> Any:
        monkeypatch.setattr(lake.catalog, "load_table", away)
        raise CommitFailedException("409")

    commit = lake.begin(FileChange(added_data=[lake.data_file([2])]))
    before = lake.on_disk()
    lake.catalog.moods = [refuse_and_leave]
    with pytest.raises(CommitUnknown):
        commit.run()
    assert commit.in_flight
    assert lake.on_disk() > before


@pytest.mark.parametrize("mood", [losing, refusing])
@pytest.mark.parametrize("answer", [CommitFailedException("409"), TimeoutError()])
def test_a_table_that_meanwhile_has_a_type_unknown_here_leaves_the_outcome_open(
    lake: Lake, mood: Any, answer: Exception
) -> None:
    def retype(really: Callable[[], Any]) -> Any:
        try:
            mood(answer)(really)
        finally:
            path = Path(lake.table().metadata_location.removeprefix("file://"))
            path.write_text(path.read_text().replace('"type":"string"', '"type":"variant"'))

    commit = lake.begin(FileChange(added_data=[lake.data_file([2])]))
    before = lake.on_disk()
    lake.catalog.moods = [retype]
    with pytest.raises(CommitUnknown) as caught:
        commit.run()
    assert caught.value.changed is None
    assert commit.in_flight
    assert lake.on_disk() > before


def test_an_interrupt_while_the_catalog_answers_removes_nothing(lake: Lake) -> None:
    lake.catalog.moods = [losing(KeyboardInterrupt())]
    with pytest.raises(KeyboardInterrupt):
        lake.append([2])
    assert lake.ids() == [1, 2]


def test_an_interrupt_before_that_leaves_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from intarsia.tables.iceberg import snapshot_producer

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    file = lake.data_file([2])
    before = lake.on_disk()
    monkeypatch.setattr(snapshot_producer, "write_manifest_list", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lake.commit(FileChange(added_data=[file]))
    assert lake.on_disk() == before


def test_a_refusal_for_good_is_an_error_and_leaves_nothing(lake: Lake) -> None:
    lake.catalog.moods = [refusing(ForbiddenError("no"))]
    file = lake.data_file([2])
    before = lake.on_disk()
    with pytest.raises(CommitError, match="refused the commit: ForbiddenError") as caught:
        lake.commit(FileChange(added_data=[file]))
    assert not isinstance(caught.value, (CommitConflict, CommitUnknown))
    assert lake.on_disk() == before


def test_a_locked_database_is_waited_for(lake: Lake) -> None:
    lake.catalog.moods = [refusing(sqlite3.OperationalError("database is locked"))] * 2
    lake.append([2])
    assert lake.ids() == [1, 2]


def test_a_sequence_number_taken_by_another_branch_is_passed_over(lake: Lake) -> None:
    with lake.table().manage_snapshots() as refs:
        refs.create_branch(lake.table().metadata.current_snapshot_id, "audit")

    def another_branch_comes_first(really: Callable[[], Any]) -> Any:
        lake.catalog.moods = []
        lake.append([7], branch="audit")
        return really()

    lake.catalog.moods = [another_branch_comes_first]
    lake.append([2])
    assert (lake.ids(), lake.ids("audit")) == ([1, 2], [1, 7])
    numbers = [s.sequence_number for s in lake.table().metadata.snapshots]
    assert len(set(numbers)) == len(numbers)


def test_the_metadata_file_of_a_lost_race_is_removed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between writing its metadata file and moving the pointer, a catalog may be overtaken."""
    real = Moody._update_and_stage_table
    done = []

    def overtaken(self: Any, *args: Any) -> Any:
        staged = real(self, *args)
        if not done:
            done.append(True)
            lake.append([7])
        return staged

    monkeypatch.setattr(Moody, "_update_and_stage_table", overtaken)
    lake.append([2])
    assert lake.ids() == [1, 2, 7]
    table = lake.table()
    named = {os.path.basename(entry.metadata_file) for entry in table.metadata.metadata_log}
    named.add(os.path.basename(table.metadata_location))
    assert {name for name in lake.on_disk() if name.endswith(".metadata.json")} == named


def test_old_metadata_files_go_where_the_table_asks_for_it(tmp_path: Path) -> None:
    lake = Lake.at(
        tmp_path,
        properties={
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "2",
        },
    )
    for number in range(5):
        lake.append([number])
    assert sum(name.endswith(".metadata.json") for name in lake.on_disk()) == 3
    assert lake.ids() == [0, 1, 2, 3, 4]


def test_version_3_metadata_of_the_embedded_catalog_is_whole(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path, 3)
    lake.append([1, 2])
    text = Path(lake.table().metadata_location.removeprefix("file://")).read_text()
    said = json.loads(text)
    assert (said["format-version"], said["next-row-id"], said["last-sequence-number"]) == (3, 2, 1)
    assert (said["snapshots"][0]["first-row-id"], said["snapshots"][0]["added-rows"]) == (0, 2)


@pytest.mark.parametrize("version", [2, 3])
def test_writers_at_once_all_come_through(tmp_path: Path, version: int) -> None:
    lake = Lake.at(tmp_path, version)
    files = [lake.data_file([number]) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda file: lake.commit(FileChange(added_data=[file])), files))
    assert lake.ids() == [0, 1, 2, 3]
    assert sorted(s.sequence_number for s in lake.table().metadata.snapshots) == [1, 2, 3, 4]
    assert len(lists(lake)) == 4


@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_request_to_a_catalog_behind_a_server_is_as_its_protocol_has_it(
    tmp_path: Path, version: int
) -> None:
    lake = Lake.at(tmp_path, version, catalog=moody)
    sent = []

    class Recording(Moody):
        def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
            request = CommitTableRequest(
                identifier={"namespace": ["db"], "name": "t"}, requirements=requirements, updates=updates
            )
            sent.append(json.loads(request.model_dump_json()))
            return super().commit_table(table, requirements, updates)

    lake.catalog.__class__ = Recording
    receipt = lake.append([1, 2])
    (request,) = sent
    metadata = lake.table().metadata
    assert request["requirements"] == [
        {"type": "assert-table-uuid", "uuid": str(metadata.table_uuid)},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
    ]
    add, move = request["updates"]
    assert move == {
        "action": "set-snapshot-ref",
        "ref-name": "main",
        "type": "branch",
        "snapshot-id": receipt.snapshot_id,
    }
    snapshot = add["snapshot"]
    assert (add["action"], snapshot["snapshot-id"]) == ("add-snapshot", receipt.snapshot_id)
    assert "parent-snapshot-id" not in snapshot
    assert snapshot["summary"]["operation"] == "append"
    lineage = (snapshot.get("first-row-id"), snapshot.get("added-rows"))
    assert lineage == ((0, 2) if version == 3 else (None, None))
