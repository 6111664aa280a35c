"""The names for keys, strategies and statistics that every engine shares."""

from __future__ import annotations

import pyarrow as pa
import pytest

from intarsia.core.merge import MergeStrategy, compute_merge_stats, normalize_keys, validate_keys_and_schema
from intarsia.core.rule import STRATEGIES
from intarsia.errors import InputError, KeyColumnError, SchemaMismatch

SOURCE = pa.table({"id": [1, 2], "v": ["a", "b"]})


def test_there_are_as_many_strategies_as_rules_and_they_are_strings():
    assert [strategy.value for strategy in MergeStrategy] == list(STRATEGIES)
    assert MergeStrategy("upsert") == "upsert" == str(MergeStrategy.UPSERT)


@pytest.mark.parametrize(
    ("given", "keys"),
    [("id", ["id"]), (["id"], ["id"]), (("a", "b"), ["a", "b"]), (pa.array(["a"]).to_pylist(), ["a"])],
)
def test_keys_become_a_list(given, keys):
    assert normalize_keys(given) == keys


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "at least one"),
        ((), "at least one"),
        (None, "must be a name"),
        (3, "must be a name"),
        ([1], "must be a name or a list of names, not \\[1\\]"),
        ({"a": 1}, "a list of names, not {'a': 1}"),
        ({"a"}, "a list of names, not {'a'}"),
        (iter(["a"]), "a list of names, not <list_iterator"),
        (b"a", "a list of names, not b'a'"),
        ([""], "must be names"),
        ("", "must be names"),
        (["a", "b", "a"], "'a' is given more than once"),
    ],
)
def test_what_is_no_key_is_refused(given, said):
    with pytest.raises(KeyColumnError, match=said):
        normalize_keys(given)


def test_the_schema_after_a_merge_is_the_targets():
    target = pa.schema([("v", pa.string()), ("id", pa.int32())])
    assert validate_keys_and_schema(SOURCE, target, "id") == target
    assert validate_keys_and_schema(SOURCE, None, "id") == SOURCE.schema
    assert validate_keys_and_schema(SOURCE.schema, target, ["id"]) == target


def test_what_does_not_fit_is_refused():
    with pytest.raises(KeyColumnError, match="'k' is missing from the source"):
        validate_keys_and_schema(SOURCE, None, "k")
    with pytest.raises(KeyColumnError, match="'id' is missing from the target"):
        validate_keys_and_schema(SOURCE, pa.schema([("v", pa.string())]), "id")
    with pytest.raises(KeyColumnError, match=r"Key column 'id' has 1 NULL value\b"):
        validate_keys_and_schema(pa.table({"id": [1, None]}), None, "id")
    with pytest.raises(KeyColumnError, match="cannot be a key"):
        validate_keys_and_schema(pa.table({"id": [[1]]}), None, "id")
    with pytest.raises(SchemaMismatch, match="'v'"):
        validate_keys_and_schema(SOURCE, pa.schema([("id", pa.int64()), ("v", pa.int64())]), "id")


def test_statistics_add_up():
    found = compute_merge_stats(inserted=3, updated=2, deleted=1, previous_total=10)
    assert found == {"inserted": 3, "updated": 2, "deleted": 1, "total": 12}


@pytest.mark.parametrize("wrong", [{"inserted": -1}, {"updated": -1}, {"deleted": 11}])
def test_statistics_below_zero_are_refused(wrong):
    counts = {"inserted": 0, "updated": 0, "deleted": 0, **wrong}
    with pytest.raises(InputError, match="must not be negative"):
        compute_merge_stats(**counts, previous_total=10)
