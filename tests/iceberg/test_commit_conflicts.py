"""Two writers at once: what may happen between reading and committing, and what may not."""

from __future__ import annotations

from pathlib import Path

import pytest
from lake import Lake
from pyiceberg.transforms import BucketTransform

from intarsia.errors import CommitConflict
from intarsia.tables.iceberg.commit import Validation
from intarsia.tables.iceberg.snapshot_producer import FileChange


def nothing_left(lake: Lake, before: set[str]) -> None:
    """A known failure leaves no file of its own (data files are the transaction's)."""
    assert {name for name in lake.on_disk() - before if name.endswith(".avro")} == set()


def test_an_append_goes_on_top_of_whatever_came_first(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    base = lake.state()
    lake.append([1])
    lake.append([2], base=base)
    assert lake.ids() == [1, 2]


def test_a_file_that_was_read_and_removed_meanwhile_is_a_conflict(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1])
    lake.append([2])
    base, (one, two) = lake.state(), lake.entries()
    lake.commit(FileChange(removed_data=[one]))
    before = lake.on_disk()
    for validation in (Validation(existing=[one]), Validation(undisturbed=[one])):
        with pytest.raises(CommitConflict, match="removed 1 data file"):
            lake.append([3], base=base, validation=validation)
    nothing_left(lake, before)
    lake.append([3], base=base, validation=Validation(undisturbed=[two]))
    assert lake.ids() == [2, 3] or lake.ids() == [1, 3]


@pytest.mark.parametrize("version", [2, 3])
def test_new_deletes_of_a_file_that_is_rewritten_are_a_conflict(tmp_path: Path, version: int) -> None:
    lake = Lake.at(tmp_path, version)
    lake.commit(FileChange(added_data=[lake.data_file([1, 2]), lake.data_file([3, 4], "us")]))
    base, (eu, us) = lake.state(), lake.entries()
    lake.commit(FileChange(added_deletes=lake.write_deletes((eu, [0]))))
    change = FileChange(added_data=[lake.data_file([9])], removed_data=[eu])
    with pytest.raises(CommitConflict, match="added deletes of 1 data file"):
        lake.commit(change, Validation(undisturbed=[eu]), base=base)
    assert lake.ids() == [2, 3, 4]
    lake.commit(FileChange(removed_data=[us]), Validation(undisturbed=[us]), base=base)
    assert lake.ids() == [2]


def test_deletes_that_were_taken_back_are_a_conflict(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    first = lake.append([1, 2])
    (entry,) = lake.entries()
    lake.commit(FileChange(added_deletes=lake.write_deletes((entry, [0]))))
    base = lake.state()
    with lake.table().manage_snapshots() as refs:
        refs.set_current_snapshot(first.snapshot_id)
    with pytest.raises(CommitConflict, match="removed deletes"):
        lake.commit(FileChange(removed_data=[entry]), Validation(undisturbed=[entry]), base=base)
    assert lake.ids() == [1, 2]


def test_a_new_data_file_is_a_conflict_only_where_it_matters(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1])
    base = lake.state()
    lake.append([5])
    with pytest.raises(CommitConflict, match=r"added 1 data file\(s\) whose rows may matter"):
        lake.append([2], base=base, validation=Validation(exclusive=True))
    seen = []
    for matters in (True, False):
        validation = Validation(
            exclusive=True, may_concern=lambda entry, _, m=matters: bool(seen.append(entry)) or m
        )
        if matters:
            with pytest.raises(CommitConflict):
                lake.append([2], base=base, validation=validation)
        else:
            lake.append([2], base=base, validation=validation)
    assert [entry.file.record_count for entry in seen] == [1, 1]
    assert lake.ids() == [1, 2, 5]


def test_rows_that_a_compaction_moved_are_not_new(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    for number in (1, 2):
        lake.append([number])
    base, (two, one) = lake.state(), lake.entries()
    lake.commit(
        FileChange(
            added_data=[lake.data_file([1, 2])],
            removed_data=[one, two],
            rewrites=True,
            data_sequence_number=2,
        )
    )
    lake.append([3], base=base, validation=Validation(exclusive=True))
    assert lake.ids() == [1, 2, 3]
    with pytest.raises(CommitConflict, match="removed 2 data file"):
        lake.append([4], base=base, validation=Validation(undisturbed=[one, two]))


def test_a_spec_that_changed_meanwhile_is_kept_apart(tmp_path: Path) -> None:
    """Same number of fields: a manifest under the default spec of the commit would be silently wrong."""
    lake = Lake.at(tmp_path)
    lake.append([1])
    base, file = lake.state(), lake.data_file([503], "us")
    with lake.table().update_spec() as update:
        update.remove_field("region")
        update.add_field("id", BucketTransform(8), "id_bucket_8")
    lake.commit(FileChange(added_data=[lake.data_file([2], spec_id=1, partition=(3,))]))
    lake.commit(FileChange(added_data=[file]), base=base)
    assert lake.ids() == [1, 2, 503]
    assert lake.table().scan("id = 503").to_arrow()["id"].to_pylist() == [503]
    assert lake.table().scan("region = 'us'").to_arrow()["id"].to_pylist() == [503]
    entry = next(e for e in lake.entries() if e.file.file_path == file.file_path)
    assert (entry.file.spec_id, entry.file.partition) == (0, ("us",))


def test_position_deletes_do_not_get_into_a_table_upgraded_meanwhile(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1, 2])
    base, (entry,) = lake.state(), lake.entries()
    deletes = lake.write_deletes((entry, [0]))
    lake.upgrade(3)
    before = lake.on_disk()
    with pytest.raises(CommitConflict, match="upgraded to format version 3"):
        lake.commit(FileChange(added_deletes=deletes), Validation(position_deletes=True), base=base)
    nothing_left(lake, before)
    lake.append([3], base=base)  # data files do no harm
    assert lake.ids() == [1, 2, 3]


def test_a_table_of_the_same_name_is_not_the_same_table(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1])
    base = lake.state()
    table = lake.table()
    lake.catalog.drop_table("db.t")
    lake.catalog.create_table("db.t", table.schema(), partition_spec=table.spec())
    with pytest.raises(CommitConflict, match="replaced by another"):
        lake.append([2], base=base)


def test_a_batch_that_another_process_committed_is_a_conflict(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    base = lake.state()
    batch = {"app_id": "stream", "batch_id": "7"}
    lake.append([1], properties=batch)
    with pytest.raises(CommitConflict, match="batch 7 of 'stream'"):
        lake.append([1], base=base, properties=batch, validation=Validation(batch=("stream", 7)))
    lake.append([2], base=base, validation=Validation(batch=("stream", 8)))
    lake.append([3], base=base, validation=Validation(batch=("other", 7)))
    assert lake.ids() == [1, 2, 3]


def test_equality_deletes_spare_what_is_rewritten_under_its_old_number(tmp_path: Path) -> None:
    from dataclasses import replace

    from intarsia.tables.iceberg.manifests import DataFileContent

    lake = Lake.at(tmp_path)
    lake.append([1, 2])
    base, (entry,) = lake.state(), lake.entries()
    equality = replace(
        lake.data_file([1]), content=DataFileContent.EQUALITY_DELETES, equality_ids=(1,), sort_order_id=None
    )
    lake.commit(FileChange(added_deletes=[equality]))
    rewritten = FileChange(
        added_data=[lake.data_file([1, 2])], removed_data=[entry], rewrites=True, data_sequence_number=1
    )
    with pytest.raises(CommitConflict, match="added deletes"):
        lake.commit(rewritten, Validation(undisturbed=[entry]), base=base)
    lake.append([3], "us")
    lake.commit(rewritten, Validation(undisturbed=[entry], equalities=False), base=base)
    # Still there, and still about the rows that moved: the new file has the old sequence number.
    (delete,) = lake.entries(deletes=True)
    data = next(e for e in lake.entries() if e.file.record_count == 2)
    assert data.sequence_number < delete.sequence_number
