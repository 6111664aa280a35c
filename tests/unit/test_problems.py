"""What is wrong with rows is told with names, counts and a few samples."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from intarsia.core.file_table import FileTuple
from intarsia.core.intent import MergeIntent
from intarsia.core.keys import KeyIndex
from intarsia.core.rule import get_strategy_rule
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.core.validation import (
    refuse_duplicate_source_keys,
    refuse_null_source_keys,
    refuse_null_target_keys,
    refuse_partition_moves,
    refuse_several_matches,
)
from intarsia.errors import KeyColumnError, PartitionMoveError

WHERE = {"operation": "upsert", "path": "lake"}


def _duplicates(table, *keys):
    index = KeyIndex([table[name] for name in keys])
    refuse_duplicate_source_keys(table, index, keys, **WHERE)


def test_nothing_is_said_where_nothing_is_wrong():
    refuse_null_source_keys({"id": 0}, **WHERE)
    refuse_null_target_keys([], **WHERE)
    _duplicates(pa.table({"id": [1, 2]}), "id")
    _duplicates(pa.table({"id": pa.array([], pa.int64())}), "id")


def test_null_keys_are_told_with_their_columns_and_counts():
    with pytest.raises(KeyColumnError) as caught:
        refuse_null_source_keys({"id": 1234, "k": 1, "ok": 0}, **WHERE)
    text = str(caught.value)
    assert (
        "upsert: Key column 'id' has 1,234 NULL values and Key column 'k' has 1 NULL value in the source"
        in text
    )
    assert 'null_keys="match"' in text
    assert "'ok'" not in text


def test_null_keys_of_the_target_name_the_first_file_and_count_the_rest():
    with pytest.raises(KeyColumnError) as caught:
        refuse_null_target_keys([("lake/a.parquet", {"id": 2}), ("lake/b.parquet", {"id": 1})], **WHERE)
    assert "has 2 NULL values in the target file lake/a.parquet (and 1 more file)" in str(caught.value)


def test_duplicates_are_told_with_three_samples_at_most():
    table = pa.table({"a": [1, 1, 2, 2, 3, 3, 4, 4, 5], "b": ["x"] * 9})
    with pytest.raises(KeyColumnError) as caught:
        _duplicates(table, "a", "b")
    text = str(caught.value)
    assert "4 duplicate keys in a, b (8 rows), such as (a=1, b='x'), (a=2, b='x'), (a=3, b='x')" in text
    assert "a=4" not in text


@pytest.mark.parametrize(
    "kind", [pa.timestamp("ns"), pa.time64("ns"), pa.duration("ns"), pa.timestamp("ns", "UTC")]
)
def test_nanoseconds_can_be_shown(kind):
    table = pa.table({"id": pa.array([1, 1], kind)})
    with pytest.raises(KeyColumnError, match="1 duplicate key in id"):
        _duplicates(table, "id")


def test_a_target_row_hit_twice_is_told_with_the_count():
    with pytest.raises(KeyColumnError, match="1 target row would be changed by more than one source row"):
        refuse_several_matches(1, ["id"], **WHERE)


def test_moves_are_told_with_both_partitions():
    source = pa.table({"id": [1, 2, 3, 4], "region": ["us", None, "us", "us"]})
    file = DataFile("region=eu/f.parquet", "f", 1, 4, {"region": "eu"})
    schema = pa.schema([("id", pa.int64()), ("region", pa.string())])
    snapshot = Snapshot("lake", FileTuple((file,)), schema, ("region",), pafs.LocalFileSystem())
    intent = MergeIntent(get_strategy_rule("upsert"), ("id",), ("id",))
    with pytest.raises(PartitionMoveError) as caught:
        refuse_partition_moves([(file, pa.array([0, 1, 2, 3]))], source, intent, snapshot)
    text = str(caught.value)
    assert "4 rows would move" in text
    assert "id=1 is in region=eu, the source says region=us" in text
    assert "id=4" not in text
