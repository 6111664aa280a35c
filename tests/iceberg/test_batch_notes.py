"""The last batch of an application is known as long as its table: also after snapshots expired."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lake import NAME, Lake

import intarsia as it
from intarsia.errors import CommitUnknown
from intarsia.tables.iceberg import expire_snapshots
from intarsia.tables.iceberg.table import IcebergTable

ROWS = pa.table({"id": pa.array([1], pa.int64()), "region": ["eu"]})


def opened(lake: Lake, branch: str | None = None) -> IcebergTable:
    return IcebergTable(NAME, lake.directory, branch=branch)


def append(lake: Lake, batch: int | None = None, branch: str | None = None) -> bool:
    given: Any = {} if batch is None else {"app_id": "a/b c", "batch_id": batch}
    return it.write(ROWS, opened(lake, branch), engine="arrow", **given).changed


def expire(lake: Lake) -> None:
    expired = expire_snapshots(opened(lake), older_than=datetime.now(UTC), retain_last=1, dry_run=False)
    assert expired.snapshots


def roll_back(lake: Lake, to: int) -> None:
    """As ``rollback_to_snapshot`` of Spark does: the branch is set to an earlier snapshot."""
    table = lake.table()
    table.manage_snapshots().set_current_snapshot(to).commit()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.at(tmp_path)


def test_a_batch_is_known_after_other_writers_committed(lake: Lake) -> None:
    assert append(lake, 0)
    assert append(lake, 1)
    for _ in range(3):
        append(lake)
    assert not append(lake, 1)
    assert append(lake, 2)
    assert len(lake.ids()) == 6


def test_a_batch_whose_snapshot_has_expired_is_not_applied_twice(lake: Lake) -> None:
    append(lake, 4)
    append(lake)
    expire(lake)
    assert not append(lake, 4)
    assert not append(lake, 3)
    assert opened(lake).last_commits()["a/b c"] == {"app_id": "a/b c", "batch_id": "4"}
    assert append(lake, 5)
    assert len(lake.ids()) == 3


def test_the_note_is_of_the_commit_and_goes_with_no_other(lake: Lake) -> None:
    """A snapshot and its note are one commit: there is never one without the other."""
    for batch in (0, 1):
        append(lake, batch)
        metadata = lake.table().metadata
        (note,) = [value for key, value in metadata.properties.items() if key.startswith("intarsia.")]
        assert str(metadata.current_snapshot_id) in note
        assert f'"batch_id": "{batch}"' in note
    append(lake)
    assert [key for key in lake.table().properties if key.startswith("intarsia.")] == [
        "intarsia.last-batch/main/a%2Fb%20c"
    ]


def test_a_batch_that_was_rolled_back_is_noticed_and_not_applied_again(lake: Lake) -> None:
    append(lake, 0)
    start = lake.table().metadata.current_snapshot_id
    append(lake, 1)
    append(lake, 2)
    roll_back(lake, start)
    before = lake.table().metadata_location
    for batch in (1, 2):
        with pytest.raises(
            CommitUnknown, match=rf"Batch {batch} .* set back to batch 0 after batch 2"
        ) as caught:
            append(lake, batch)
        assert caught.value.changed is False
        assert "app_id" in (caught.value.hint or "")
    assert not append(lake, 0)
    assert lake.table().metadata_location == before
    assert append(lake, 3)  # what was rolled back is gone by intent; the query is beyond it
    assert len(lake.ids()) == 2


def test_a_rollback_is_noticed_also_when_the_rolled_back_snapshots_have_expired(lake: Lake) -> None:
    append(lake, 0)
    start = lake.table().metadata.current_snapshot_id
    append(lake, 1)
    roll_back(lake, start)
    lake.table().maintenance.expire_snapshots().by_ids(
        [one.snapshot_id for one in lake.table().metadata.snapshots if one.snapshot_id != start]
    ).commit()
    assert len(lake.table().metadata.snapshots) == 1
    with pytest.raises(CommitUnknown, match="set back"):
        append(lake, 1)


def test_branches_count_their_batches_apart(lake: Lake) -> None:
    append(lake, 7)
    table = lake.table()
    table.manage_snapshots().create_branch(table.metadata.current_snapshot_id, "audit").commit()
    append(lake, 9, branch="audit")
    assert opened(lake).last_batch("a/b c") == 7
    assert opened(lake, "audit").last_batch("a/b c") == 9
    assert append(lake, 8)


def test_what_others_put_into_such_a_property_is_no_note(lake: Lake) -> None:
    with lake.table().transaction() as change:
        change.set_properties({"intarsia.last-batch/main/x": "7", "intarsia.last-batch/main/y": "[]"})
    assert opened(lake).last_commits() == {}


def test_a_table_travels_as_its_name_and_the_settings_of_its_catalog(lake: Lake) -> None:
    reference = opened(lake).make_reference()
    assert reference.open() is reference.open()  # here it is the table itself
    travelled = pickle.loads(pickle.dumps(reference))
    assert travelled == reference
    assert travelled.opened is None
    assert travelled.open().metadata_location == lake.table().metadata_location
