"""The plan as a value: what it adds up, and how matching resolves it."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from intarsia.core.change import Hits, Matches
from intarsia.core.file_table import FileTuple
from intarsia.core.intent import DeleteIntent, MergeIntent
from intarsia.core.plan import FileGroup, FilePlan, Plan, keep_all
from intarsia.core.rule import get_strategy_rule
from intarsia.core.snapshot import DataFile, Snapshot

SCHEMA = pa.schema([("id", pa.int64())])
FILES = tuple(
    DataFile(f"{name}.parquet", name, size, 10) for name, size in (("a", 100), ("b", 200), ("c", 400))
)
SCAN = FilePlan(FILES[0], "scan", "?")
SNAPSHOT = Snapshot("lake", FileTuple(FILES), SCHEMA, (), pafs.LocalFileSystem())


def _plan(*files: FilePlan) -> Plan:
    return Plan(DeleteIntent("x"), SNAPSHOT, files, SCHEMA)


def _hits(*positions: int) -> Hits:
    return Hits(pa.array(positions, pa.int64()))


def test_bytes_to_read_are_scans_and_whole_files_that_change():
    plan = _plan(
        FilePlan(FILES[0], "keep", "", scan_bytes=7),
        FilePlan(FILES[1], "rewrite", "", scan_bytes=3),
        FilePlan(FILES[2], "remove", ""),
    )
    assert (plan.bytes_to_scan, plan.bytes_to_read, plan.bytes_to_write) == (10, 210, 200)
    assert plan.count("keep") == 1
    assert [item.file.path for item in plan.select("remove")] == ["c.parquet"]
    assert plan.operation == "delete"


@pytest.mark.parametrize(
    ("before", "matches", "action", "reason", "hits"),
    [
        (SCAN, Matches(hits={"a.parquet": _hits(1, 2)}), "rewrite", "key scan: rows hit", 2),
        (SCAN, Matches(), "keep", "key scan: no row hit", 0),
        (replace(SCAN, is_move_check=True), Matches(), "keep", "key scan: key in no other partition", 0),
        (replace(SCAN, forced="widened"), Matches(), "rewrite", "widened", 0),
        (SCAN, Matches(dropped=frozenset({"a.parquet"})), "remove", "every row goes", 10),
        (FilePlan(FILES[0], "remove", "why"), Matches(dropped=frozenset({"a.parquet"})), "remove", "why", 10),
        (FilePlan(FILES[0], "keep", "why"), Matches(), "keep", "why", 0),
    ],
)
def test_matching_resolves_what_becomes_of_a_file(before, matches, action, reason, hits):
    (resolved,) = _plan(before).with_matches(matches).files
    assert (resolved.action, resolved.reason, resolved.hits) == (action, reason, hits)
    assert resolved.scanned == (before.action == "scan")


def test_a_resolved_plan_has_the_counts_and_the_first_one_stays_as_it_was():
    plan = _plan(FilePlan(FILES[0], "scan", "?"))
    resolved = plan.with_matches(Matches(inserted=1, updated=2, deleted=3), insert_bytes=50)
    assert (resolved.matched, resolved.inserted, resolved.updated, resolved.deleted) == (True, 1, 2, 3)
    assert resolved.bytes_to_write == 50
    assert (plan.matched, plan.inserted) == (False, 0)
    assert plan.select("scan")


def test_groups_and_snapshots_add_up_their_files():
    group = FileGroup(FILES[:2])
    assert (group.rows, group.size) == (20, 300)
    assert (SNAPSHOT.rows, SNAPSHOT.size) == (30, 700)
    assert [item.action for item in keep_all(FILES, "why")] == ["keep"] * 3


def test_a_snapshot_shows_files_below_the_root_as_it_was_given():
    assert SNAPSHOT.show_path(FILES[0]) == SNAPSHOT.show_path("a.parquet") == "lake/a.parquet"
    slashed = Snapshot("lake/", FileTuple(FILES), SCHEMA, (), pafs.LocalFileSystem())
    assert slashed.show_path(FILES[0]) == "lake/a.parquet"


def test_a_file_stores_all_columns_but_those_in_its_path():
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())], {"k": "v"})
    snapshot = Snapshot("lake", FileTuple(), schema, ("day",), pafs.LocalFileSystem())
    assert snapshot.file_schema == pa.schema([("id", pa.int64())])
    assert snapshot.file_schema.metadata == {b"k": b"v"}


def test_keys_pin_a_partition_only_by_the_same_name_on_both_sides():
    rule = get_strategy_rule("upsert")
    assert MergeIntent(rule, ("id", "day"), ("id", "day")).has_equal_columns(["day"])
    assert MergeIntent(rule, ("id",), ("id",)).has_equal_columns([])
    assert not MergeIntent(rule, ("id",), ("id",)).has_equal_columns(["day"])
    assert not MergeIntent(rule, ("id", "day"), ("id", "other")).has_equal_columns(["day"])


def test_hits_are_cut_to_a_range_and_to_an_action():
    hits = Hits(pa.array([1, 4, 6, 9]), pa.array([0, 1, 0, 1], pa.int8()), pa.array([10, 11, None, 13]))
    inside = hits.select_range(4, 9)
    assert inside.positions.to_pylist() == [4, 6]
    assert inside.sources.to_pylist() == [11, None]
    ones = hits.select_action(1)
    assert (ones.positions.to_pylist(), ones.sources.to_pylist(), ones.action) == ([4, 9], [11, 13], 1)
    assert len(hits.select_action(2)) == 0
    same = _hits(3)
    assert same.select_action(0) is same
    assert len(same.select_action(1)) == 0
    assert len(same.select_range(0, 3)) == 0
    assert len(Hits.make_empty().select_range(0, 10)) == 0
