"""Operations on Iceberg tables beyond the contract: snapshots, branches, dry runs, mistakes, failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from operation_tools import EU_US, House
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.transforms import BucketTransform, IdentityTransform
from tests.contract.iceberg_lakes import COW, MOR, Warehouse

import intarsia as it
from intarsia.errors import (
    ColumnNotFound,
    CommitConflict,
    CommitUnknown,
    InputError,
    IntarsiaError,
    KeyColumnError,
    NotSupported,
    SchemaMismatch,
)

KINDS = [(2, COW), (2, MOR), (3, MOR)]
SOURCE = pa.table({"id": [1, 2, 100], "region": ["us", "ap", "eu"], "v": ["x", "y", "z"]})

OPERATIONS: dict[str, Callable[..., Any]] = {
    "merge": lambda target, **k: it.merge(SOURCE, target, on="id", **k),
    "full_merge": lambda target, **k: it.merge(SOURCE, target, on="id", strategy="full_merge", **k),
    "clauses": lambda target, **k: it.merge(
        SOURCE, target, on="id", clauses="when not matched by source and target.id > 5 then delete", **k
    ),
    "delete": lambda target, **k: it.delete(target, "id in (1, 4)", **k),
    "update": lambda target, **k: it.update(target, {"v": "'w'"}, "region = 'eu'", **k),
    "move": lambda target, **k: it.update(target, {"region": "'ap'"}, "id < 3", **k),
    "append": lambda target, **k: it.write(SOURCE, target, **k),
    "overwrite": lambda target, **k: it.write(SOURCE, target, mode="overwrite", **k),
    "overwrite_partitions": lambda target, **k: it.write(SOURCE, target, mode="overwrite_partitions", **k),
    "compact": lambda target, **k: it.compact(target, **k),
    "optimize": lambda target, **k: it.optimize(target, by="id", **k),
    "deduplicate": lambda target, **k: it.deduplicate(target, on="region", order_by="id", **k),
}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    warehouse = Warehouse(tmp_path)
    yield House(warehouse)
    warehouse.catalog.close()


def evolved(house: House, version: int = 2, mode: str = MOR, **properties: str) -> House:
    """Four rows in buckets, four by region as well."""
    house.make(
        EU_US.schema, EU_US.slice(0, 4), mode=mode, by=[("id", BucketTransform(2))], properties=properties
    )
    house.evolve(("region", IdentityTransform()))
    house.table.append(EU_US.slice(4))
    if version == 3:
        house.warehouse.upgrade(house.name)
    return house


@pytest.mark.parametrize(("version", "mode"), KINDS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_one_operation_is_one_snapshot_and_a_dry_run_is_none(
    house: House, name: str, version: int, mode: str
) -> None:
    evolved(house, version, mode)
    before = house.snapshots()
    with house.unchanged():
        told = OPERATIONS[name](house.target, dry_run=True)
    assert told.dry_run
    assert told.plan is not None
    done = OPERATIONS[name](house.target)
    assert dict(told) == dict(done)
    assert house.snapshots() == before + 1
    assert done.total == len(house.rows())
    assert house.orphans() == set()
    house.check()


UNMOVED: dict[str, Callable[[Any], Any]] = {
    "delete": lambda target: it.delete(target, "id > 1000"),
    "update": lambda target: it.update(target, {"v": "'w'"}, "id > 1000"),
    "merge": lambda target: it.merge(EU_US.slice(0, 0), target, on="id"),
    "insert": lambda target: it.merge(EU_US, target, on="id", strategy="insert"),
    "append": lambda target: it.write(EU_US.slice(0, 0), target),
    "overwrite_partitions": lambda target: it.write(EU_US.slice(0, 0), target, mode="overwrite_partitions"),
    "deduplicate": lambda target: it.deduplicate(target, on="id"),
}


@pytest.mark.parametrize("name", UNMOVED)
def test_an_operation_that_changes_nothing_commits_nothing(house: House, name: str) -> None:
    evolved(house)
    with house.unchanged():
        assert not UNMOVED[name](house.target).changed


def test_a_second_compaction_finds_nothing_to_do(house: House) -> None:
    evolved(house)
    it.delete(house.target, "id = 6")
    it.compact(house.target)
    assert house.rows("id") == [0, 1, 2, 3, 4, 5, 7]
    assert house.decoded().deletes == ()
    assert {file.spec_id for file in house.decoded().data} == {house.table.spec().spec_id}
    with house.unchanged():
        assert not it.compact(house.target).changed


MISTAKES: dict[str, tuple[Callable[[Any], Any], type[IntarsiaError]]] = {
    "duplicate keys": (lambda t: it.merge(pa.concat_tables([SOURCE, SOURCE]), t, on="id"), KeyColumnError),
    "NULL keys": (
        lambda t: it.merge(SOURCE.set_column(0, "id", pa.nulls(3, pa.int64())), t, on="id"),
        KeyColumnError,
    ),
    "a missing column": (lambda t: it.merge(SOURCE.drop_columns(["v"]), t, on="id"), SchemaMismatch),
    "a new column": (lambda t: it.write(SOURCE.append_column("w", pa.array([1] * 3)), t), SchemaMismatch),
    "a cast that loses": (
        lambda t: it.write(SOURCE.set_column(0, "id", pa.array([0.5, 1.5, 2.5])), t),
        SchemaMismatch,
    ),
    "no such column": (lambda t: it.delete(t, "nope = 1"), ColumnNotFound),
    "no condition": (lambda t: it.delete(t, "id + 1"), InputError),
    "division by zero": (lambda t: it.update(t, {"v": "cast(1 / (id - 4) as varchar)"}), InputError),
    "a row matched twice": (
        lambda t: it.merge(
            pa.table({"region": ["eu", "eu"], "w": [1, 2]}), t, on="region",
            clauses="when matched then update set v = cast(source.w as varchar)",
        ),
        KeyColumnError,
    ),
    "schema evolution": (
        lambda t: it.write(SOURCE.append_column("w", pa.array([1] * 3)), t, schema_evolution="add"),
        NotSupported,
    ),
    "partition_by": (lambda t: it.write(SOURCE, t, partition_by="region"), InputError),
    "no such mode": (lambda t: it.delete(t, "id = 1", mode="merge-on-write"), InputError),
    "no such branch": (lambda t: it.delete(t, "id = 1", branch="nope"), InputError),
    "a partition that nothing is by": (lambda t: it.compact(t, partition_filter="day=1"), IntarsiaError),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_leaves_every_byte_as_it_was(house: House, name: str) -> None:
    run, error = MISTAKES[name]
    evolved(house, 3 if len(name) % 2 else 2)
    with house.unchanged(), pytest.raises(error) as caught:
        run(house.target)
    assert str(caught.value)


def test_a_branch_is_read_and_changed_alone(house: House) -> None:
    evolved(house)
    head = house.table.current_snapshot().snapshot_id
    house.table.manage_snapshots().create_branch(head, "audit").commit()
    result = it.delete(house.target, "id < 6", branch="audit")
    assert (result.deleted, result.total) == (6, 2)
    assert house.rows("id", branch="audit") == [6, 7]
    assert house.rows("id") == list(range(8))
    it.merge(SOURCE, it.iceberg(house.name, catalog=house.catalog, branch="audit"), on="id")
    it.update(house.target, {"v": "'main'"}, "id = 0")
    assert house.rows("id", "v", branch="audit") == [(1, "x"), (2, "y"), (6, "v6"), (7, "v7"), (100, "z")]
    assert house.rows("id", "v")[0] == (0, "main")
    refs = house.table.metadata.refs
    lineage = house.table.metadata.snapshot_by_id(refs["audit"].snapshot_id)
    assert house.table.metadata.snapshot_by_id(lineage.parent_snapshot_id).parent_snapshot_id == head


def test_a_tag_and_a_branch_that_is_not_there_are_refused_by_name(house: House) -> None:
    evolved(house)
    house.table.manage_snapshots().create_tag(house.table.current_snapshot().snapshot_id, "v1").commit()
    with house.unchanged():
        with pytest.raises(InputError, match="'v1' is a tag"):
            it.delete(house.target, "id = 1", branch="v1")
        with pytest.raises(InputError, match="no branch 'nope'"):
            it.delete(house.target, "id = 1", branch="nope")
        with pytest.raises(InputError, match="not with a path"):
            it.delete(house.warehouse.directory / "plain", "id = 1", branch="nope")


def test_a_table_of_pyiceberg_is_a_target_and_knows_what_was_done_to_it(house: House) -> None:
    evolved(house)
    table = house.table
    it.delete(table, "id < 4")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [4, 5, 6, 7]
    it.write(SOURCE, table)
    assert table.scan().to_arrow().num_rows == 7


def test_the_argument_overrides_what_the_properties_say(house: House) -> None:
    evolved(house, mode=COW)
    it.delete(house.target, "id = 1", mode=MOR)
    assert [file.content for file in house.decoded().deletes] == [1]
    it.delete(house.target, "id = 4")
    assert len(house.decoded().deletes) == 1
    with pytest.raises(InputError, match="merge-on-write"):
        it.iceberg(house.name, catalog=house.catalog, mode="merge-on-write")


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_commit_that_is_always_refused_leaves_no_file(
    house: House, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    evolved(house, **{"commit.retry.num-retries": "1"})
    target = house.target

    def refuse(*_: Any) -> None:
        raise CommitFailedException("somebody was faster")

    with monkeypatch.context() as patch:
        patch.setattr(house.catalog, "commit_table", refuse)
        with house.unchanged(), pytest.raises(CommitConflict) as caught:
            OPERATIONS[name](target)
    assert caught.value.changed is False
    assert OPERATIONS[name](target).changed  # and it works as soon as it may


@pytest.mark.parametrize("name", ["merge", "delete", "compact"])
def test_a_commit_whose_outcome_is_not_known_removes_nothing(
    house: House, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    evolved(
        house,
        **{"commit.status-check.num-retries": "1", "commit.status-check.min-wait-ms": "1"},
    )
    before = house.bytes()
    really = house.catalog.commit_table

    def lost(*_: Any) -> None:
        raise CommitStateUnknownException("the answer was lost")

    monkeypatch.setattr(house.catalog, "commit_table", lost)
    with pytest.raises(CommitUnknown) as caught:
        OPERATIONS[name](house.target)
    assert str(caught.value)
    after = house.bytes()
    assert after.keys() > before.keys()
    assert all(after[path] == content for path, content in before.items())

    def late(*args: Any) -> None:
        really(*args)
        raise CommitStateUnknownException("the answer was lost")

    monkeypatch.setattr(house.catalog, "commit_table", late)
    result = OPERATIONS[name](house.target)  # found by its snapshot
    monkeypatch.undo()
    assert result.total == len(house.rows())
    house.check()


def test_a_writer_that_gets_in_between_is_seen(house: House) -> None:
    evolved(house)
    foreign = pa.table({"id": [100, 200], "region": ["eu", "eu"], "v": ["theirs", "theirs"]})
    done: list[str] = []

    def progress(step: str, _done: int, _total: int) -> None:
        if step == "write files" and not done:
            done.append(step)
            house.table.append(foreign)

    result = it.merge(SOURCE, house.target, on="id", progress=progress)
    assert result.attempts == 2
    assert [row for row in house.rows("id", "v") if row[0] >= 100] == [(100, "z"), (200, "theirs")]
    assert house.orphans() == set()


def test_the_total_counts_what_others_have_committed_meanwhile(house: House) -> None:
    evolved(house)

    def progress(step: str, _done: int, _total: int) -> None:
        if step == "write files" and len(house.rows()) == len(EU_US):
            house.table.append(pa.table({"id": [200, 201], "region": ["eu", "eu"], "v": ["theirs"] * 2}))

    result = it.write(SOURCE, house.target, progress=progress)
    assert result.attempts == 1  # an append is in nobody's way
    assert (result.inserted, result.total) == (3, len(EU_US) + 5)
    assert result.total == len(house.rows())


@pytest.mark.parametrize(("version", "mode"), KINDS)
def test_a_partition_that_goes_whole_is_not_read(house: House, version: int, mode: str) -> None:
    house.make(EU_US.schema, mode=mode, by=[("region", IdentityTransform())])
    house.table.append(EU_US)
    if version == 3:
        house.warehouse.upgrade(house.name)
    before = {file.path for file in it.snapshot(house.target).files}
    plan = it.plan("delete", house.target, "region = 'eu'")
    assert (plan.count("remove"), plan.count("keep"), plan.bytes_to_read) == (1, 1, 0)
    result = it.delete(house.target, "region = 'eu'")
    assert (result.deleted, result.total) == (4, 4)
    assert {file.path for file in it.snapshot(house.target).files} < before
    assert {row[0] for row in house.rows("region", "id")} == {"us"}
    house.check()
