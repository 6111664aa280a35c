"""Matching a merge: pairs, clauses and what makes a merge impossible, on real files."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.common.arrow import ingest
from intarsia.core.intent import MergeIntent, WriteOptions
from intarsia.core.keys import arange
from intarsia.core.ports import Execution
from intarsia.core.prepare import prepare
from intarsia.core.rule import Rule, get_strategy_rule, when_matched, when_not_matched_by_source
from intarsia.core.run import ignore_progress, make_plan
from intarsia.engines.arrow import ArrowEngine
from intarsia.errors import KeyColumnError, PartitionMoveError
from intarsia.kernel import match
from intarsia.sql.parse import parse_predicate
from intarsia.tables.parquet import ParquetTable


def _matches(root, source, *, rule="upsert", keys=("id",), **options):
    rule = get_strategy_rule(rule) if isinstance(rule, str) else rule
    intent = MergeIntent(rule, keys, keys, **options)
    snapshot = ParquetTable(root).snapshot()
    with ingest(source) as adopted:
        prepared = prepare(intent, snapshot, adopted)
        execution = Execution(make_plan(prepared, snapshot), prepared, None, ignore_progress)
        return ArrowEngine(threads=1).match(execution)


def _flat(matches):
    return {path: list(zip(h.positions.to_pylist(), h.sources.to_pylist(), strict=True))
            for path, h in matches.hits.items()}  # fmt: skip


def test_hits_name_the_position_in_the_file_and_the_source_row(tmp_path, make_dataset):
    root = make_dataset(tmp_path / "t", pa.table({"id": range(10)}), files=2, row_group_size=2)
    found = _matches(root, pa.table({"id": [9, 3, 50, 4]}))
    assert _flat(found) == {"part-00000.parquet": [(3, 1), (4, 3)], "part-00001.parquet": [(4, 0)]}
    assert [rows.to_pylist() for _, rows in found.inserts] == [[2]]
    assert (found.inserted, found.updated, found.deleted) == (1, 3, 0)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("batch_rows", [None, 1, 3])
@settings(max_examples=20)
@given(data=st.data())
def test_sorted_and_unsorted_files_match_alike(tmp_path_factory, make_dataset, shuffled, batch_rows, data):
    ids = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=30))
    ids = ids if shuffled else sorted(ids)
    wanted = data.draw(st.lists(st.integers(0, 30), unique=True, max_size=6))
    root = make_dataset(tmp_path_factory.mktemp("m") / "t", pa.table({"id": ids}), row_group_size=7)
    found = _matches(root, pa.table({"id": pa.array(wanted, pa.int64())}),
                     options=WriteOptions(batch_rows=batch_rows))  # fmt: skip
    expected = [(place, wanted.index(value)) for place, value in enumerate(ids) if value in wanted]
    assert _flat(found).get("part-00000.parquet", []) == expected
    new = [row for _, rows in found.inserts for row in rows.to_pylist()]
    assert new == [row for row, value in enumerate(wanted) if value not in ids]


def test_few_rows_at_a_time_make_several_batches_of_files(tmp_path, make_dataset, monkeypatch):
    root = make_dataset(tmp_path / "t", pa.table({"id": range(100)}), files=10)
    whole = _flat(_matches(root, pa.table({"id": range(0, 100, 9)})))
    monkeypatch.setattr(match, "BATCH_ROWS", 25)
    monkeypatch.setattr(match, "MOST_BATCH_ROWS", 25)
    assert _flat(_matches(root, pa.table({"id": range(0, 100, 9)}))) == whole


def test_clauses_number_the_actions_of_their_rows(tmp_path, make_dataset):
    root = make_dataset(tmp_path / "t", pa.table({"id": range(6), "v": range(6)}))
    rule = Rule("merge", (
        when_matched(parse_predicate("target.v > 3")).delete(),
        when_matched().update_all(),
        when_not_matched_by_source(parse_predicate("v = 0")).delete(),
    ))  # fmt: skip
    found = _matches(root, pa.table({"id": [2, 4, 5], "v": [0, 0, 0]}), rule=rule)
    hits = found.hits["part-00000.parquet"]
    assert hits.positions.to_pylist() == [0, 2, 4, 5]
    assert hits.action.to_pylist() == [2, 1, 0, 0]
    assert hits.sources.to_pylist() == [None, 0, 1, 2]
    assert (found.updated, found.deleted) == (1, 3)


def test_a_file_of_which_every_row_goes_is_dropped_whole(tmp_path, make_dataset):
    root = make_dataset(tmp_path / "t", pa.table({"id": range(4)}), files=2)
    rule = Rule("merge", (when_matched().delete(),))
    found = _matches(root, pa.table({"id": [0, 1, 2]}), rule=rule)
    assert found.dropped == {"part-00000.parquet"}
    assert list(found.hits) == ["part-00001.parquet"]
    assert found.deleted == 3


def test_repeated_source_keys_pair_with_every_row(tmp_path, make_dataset):
    root = make_dataset(tmp_path / "t", pa.table({"id": [1, 2, 1], "v": [0, 0, 0]}), files=3)
    rule = Rule("merge", (when_matched().delete(),))
    assert _matches(root, pa.table({"id": [1, 1]}), rule=rule).deleted == 2
    update = Rule("merge", (when_matched().update_all(),))
    with pytest.raises(KeyColumnError, match="2 target rows would be changed by more than one"):
        _matches(root, pa.table({"id": [1, 1], "v": [1, 2]}), rule=update)


def test_what_makes_a_merge_impossible_is_raised_before_anything_is_staged(tmp_path, make_dataset):
    table = pa.table({"id": [1, None, 3], "p": ["a", "a", "b"]})
    root = make_dataset(tmp_path / "t", table, partition="p")
    with pytest.raises(KeyColumnError, match=r"'id' has 1 NULL value in the target file .*p=a"):
        _matches(root, pa.table({"id": [1], "p": ["a"]}))
    with pytest.raises(PartitionMoveError, match="id=3 is in p=b, the source says p=c"):
        _matches(root, pa.table({"id": [3], "p": ["c"]}))


def test_a_file_whose_partition_is_not_known_is_matched_by_its_own_column(tmp_path, make_dataset):
    root = make_dataset(tmp_path / "t", pa.table({"id": [1, 2], "p": ["a", "b"]}), partition="p")
    make_dataset(root, pa.table({"id": [7], "p": ["a"]}))  # beside the partitions, not in one
    found = _matches(root, pa.table({"id": [7, 1], "p": ["a", "a"]}), keys=("id", "p"))
    assert found.updated == 2


def test_hits_hold_and_pickle_nothing_but_themselves() -> None:
    many = arange(100_000)
    part = match._Classified(0)
    part.add(many.slice(5, 10), many.slice(7, 10), 0)
    found = match.join_hits([part])
    assert (found.positions.to_pylist(), found.sources.to_pylist()) == ([*range(5, 15)], [*range(7, 17)])
    assert len(pickle.dumps(found)) < 2_000
    whole = match._Classified(0)
    whole.add(many, many, 0)
    assert match.join_hits([whole]).positions is many
