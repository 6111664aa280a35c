"""The history of an Iceberg branch, and setting it back."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ForbiddenError

import intarsia as it
from intarsia.common.process import describe_user
from intarsia.errors import CommitConflict, CommitError, CommitUnknown, InputError, RestoreError
from intarsia.tables.iceberg import embedded_catalog, expire_snapshots

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "v": ["a", "b", "c"]})


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    found = embedded_catalog(tmp_path)
    found.create_namespace("shop")
    return found


@pytest.fixture(params=["1", "2", "3"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make_table(catalog: Catalog, version: str = "2") -> Any:
    catalog.create_table("shop.orders", schema=ROWS.schema, properties={"format-version": version})
    target = it.iceberg("shop.orders", catalog=catalog)
    it.write(ROWS, target)
    it.merge(ROWS.slice(0, 1).set_column(1, "v", pa.array(["z"])), target, on="id", app_id="a", batch_id=4)
    it.delete(target, "id = 3")
    return target


def rows(target: Any) -> list[tuple[int, str]]:
    return sorted(tuple(row.values()) for row in it.read(target).read_all().to_pylist())


STATES = [
    [(1, "a"), (2, "b"), (3, "c")],
    [(1, "z"), (2, "b"), (3, "c")],
    [(1, "z"), (2, "b")],
]


def test_every_state_of_the_branch_comes_back(catalog: Catalog, version: str) -> None:
    target = make_table(catalog, version)
    found = it.history(target)
    assert [one.operation for one in found] == ["delete", "merge", "append"]
    numbers = [one.version for one in reversed(found)]
    if version != "1":
        assert numbers == [1, 2, 3]
    for place in (0, 2, 1, 0):
        told = it.restore(target, numbers[place], dry_run=True)
        done = it.restore(target, numbers[place])
        assert rows(target) == STATES[place]
        assert told.total == done.total == len(STATES[place])
        assert (done.changed, done.version) == (True, numbers[place])
    again = it.restore(target, numbers[0])
    assert (again.changed, again.txid) == (False, None)
    assert sorted(one.rolled_back for one in it.history(target)) == [False, True, True]
    by_id = it.history(target)[0]
    assert by_id.snapshot_id is not None
    it.restore(target, by_id.snapshot_id)
    assert rows(target) == STATES[2]


def test_a_snapshot_says_who_made_it_and_how_many_rows_it_changed(catalog: Catalog) -> None:
    target = make_table(catalog)
    found = it.history(target)
    merged = found[1]
    assert (merged.inserted, merged.updated, merged.deleted, merged.rows_after) == (0, 1, 0, 3)
    assert (merged.user, merged.engine, merged.app_id, merged.batch_id) == (describe_user(), "arrow", "a", 4)
    assert (merged.files_added, merged.files_removed) == (1, 1)
    assert found.branch == "main"
    it.restore(target, 1)
    (note,) = it.history(target).notes
    assert f"by {describe_user()}" in note
    catalog.load_table("shop.orders").append(ROWS)
    theirs = it.history(target)[0]
    assert (theirs.operation, theirs.user, theirs.inserted, theirs.rows_after) == ("append", None, None, 6)


def test_newer_snapshots_stay_until_they_expire_and_other_branches_are_not_touched(catalog: Catalog) -> None:
    target = make_table(catalog)
    table = catalog.load_table("shop.orders")
    head = table.metadata.current_snapshot_id
    assert head is not None
    table.manage_snapshots().create_branch(head, "other").create_tag(head, "release").commit()
    result = it.restore(target, 1)
    assert "2 newer snapshots are no longer part of branch 'main'" in result.notes[0]
    after = catalog.load_table("shop.orders")
    assert len(after.metadata.snapshots) == 3
    assert after.metadata.refs["other"].snapshot_id == after.metadata.refs["release"].snapshot_id == head
    other = it.iceberg("shop.orders", catalog=catalog, branch="other")
    assert rows(other) == STATES[2]
    it.restore(other, 2)
    assert rows(other) == STATES[1]
    assert rows(target) == STATES[0]
    with pytest.raises(RestoreError, match="it was never a state of branch 'other'"):
        it.restore(other, 3)


def test_a_snapshot_that_has_expired_is_refused_with_those_that_are_there(catalog: Catalog) -> None:
    target = make_table(catalog)
    later = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
    expire_snapshots(target, older_than=later, retain_last=2, dry_run=False)
    with pytest.raises(RestoreError, match="has expired") as refused:
        it.restore(target, 1)
    assert refused.value.versions == (3, 2)
    assert it.history(target).notes == ("Snapshots before version 2 have expired, or are of other branches.",)
    for wrong in (0, 77, 2**60):
        with pytest.raises(RestoreError, match="there is no such snapshot"):
            it.restore(target, wrong)
    for wrong in (True, "1", -3):
        with pytest.raises(InputError):
            it.restore(target, wrong)  # type: ignore[arg-type]
    assert rows(target) == STATES[2]


def _commit_meanwhile(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = catalog.commit_table

    def commit(*given: Any) -> Any:
        monkeypatch.undo()
        catalog.load_table("shop.orders").append(ROWS)
        return honest(*given)

    monkeypatch.setattr(catalog, "commit_table", commit)


def test_a_commit_in_between_is_a_conflict_and_nothing_is_lost(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make_table(catalog)
    _commit_meanwhile(catalog, monkeypatch)
    with pytest.raises(CommitConflict) as conflict:
        it.restore(target, 1)
    assert conflict.value.changed is False
    assert len(rows(target)) == 5


@pytest.mark.parametrize(
    ("error", "carried_out", "raised"),
    [
        (TimeoutError("lost"), True, None),
        (TimeoutError("lost"), False, CommitUnknown),
        (CommitFailedException("no"), False, CommitConflict),
        (CommitFailedException("repeated"), True, None),
        (ForbiddenError("no"), False, CommitError),
    ],
)
def test_an_answer_that_is_lost_is_found_out(
    error: Exception,
    carried_out: bool,
    raised: type[Exception] | None,
    catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = make_table(catalog)
    honest = catalog.commit_table

    def commit(*given: Any) -> Any:
        if carried_out:
            honest(*given)
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(catalog, "commit_table", commit)
        if raised is None:
            assert it.restore(target, 1).version == 1
        else:
            with pytest.raises(raised):
                it.restore(target, 1)
    assert rows(target) == STATES[0 if carried_out else 2]


def test_a_schema_that_has_grown_since_stays(catalog: Catalog) -> None:
    target = make_table(catalog)
    with catalog.load_table("shop.orders").update_schema() as schema:
        schema.add_column("more", schema._schema.find_field("id").field_type)
    it.restore(target, 1)
    found = it.read(target).read_all()
    assert found.column_names == ["id", "v", "more"]
    assert found["more"].null_count == 3


def test_a_table_without_a_snapshot_has_no_history(catalog: Catalog) -> None:
    catalog.create_table("shop.empty", schema=ROWS.schema)
    target = it.iceberg("shop.empty", catalog=catalog)
    assert len(it.history(target)) == 0
    with pytest.raises(RestoreError, match="none can be restored"):
        it.restore(target, 1)
