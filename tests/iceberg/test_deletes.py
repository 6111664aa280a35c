"""Which deletes apply to which data file."""

from __future__ import annotations

import pickle
import time
from types import SimpleNamespace
from typing import Any

import pytest
from delete_samples import entry
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import DayTransform, VoidTransform

from intarsia.errors import DamagedTable
from intarsia.tables.iceberg.deletes import NO_DELETES, DeleteFileIndex, Deletes, find_unpartitioned_specs
from intarsia.tables.iceberg.manifests import (
    PATH_ID,
    DataFileContent,
    ManifestEntry,
    find_referenced_data_file,
)

POSITIONS, EQUALITY = DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES


def vector(of: str, **fields: Any) -> ManifestEntry:
    return entry(f"dv-{of}", content=POSITIONS, file_format="PUFFIN", referenced_data_file=of, **fields)


def bounds(low: str, high: str) -> dict[str, Any]:
    return {"lower_bounds": {PATH_ID: low.encode()}, "upper_bounds": {PATH_ID: high.encode()}}


def found(deletes: list[ManifestEntry], data: ManifestEntry, **options: Any) -> list[str]:
    applying = DeleteFileIndex.of(deletes, **options).find_deletes(data)
    both = (*applying.positions, *applying.equalities)
    return ([applying.vector.file.file_path] if applying.vector else []) + [e.file.file_path for e in both]


@pytest.mark.parametrize(("sequence", "applies"), [(4, False), (5, True), (6, True)])
def test_position_deletes_apply_to_files_as_old_as_they_are(sequence: int, applies: bool) -> None:
    data = entry("a", sequence=5)
    for scope in ({}, {"referenced_data_file": "a"}, bounds("a", "a")):
        delete = entry("p", content=POSITIONS, sequence=sequence, **scope)
        assert found([delete], data) == (["p"] if applies else [])


@pytest.mark.parametrize(("sequence", "applies"), [(4, False), (5, False), (6, True)])
def test_equality_deletes_apply_to_older_files_only(sequence: int, applies: bool) -> None:
    for partition in ((), (1,)):
        delete = entry("e", content=EQUALITY, sequence=sequence, partition=partition, equality_ids=(1,))
        assert found([delete], entry("a", sequence=5, partition=partition)) == (["e"] if applies else [])


def test_partition_scoped_deletes_apply_within_their_spec_and_tuple() -> None:
    for content in (POSITIONS, EQUALITY):
        delete = entry("d", content=content, sequence=2, spec=1, partition=(7, None), equality_ids=(1,))
        assert found([delete], entry("a", spec=1, partition=(7, None))) == ["d"]
        assert found([delete], entry("a", spec=1, partition=(8, None))) == []
        assert found([delete], entry("a", spec=2, partition=(7, None))) == []


def test_equality_deletes_of_an_unpartitioned_spec_are_global() -> None:
    plain = entry("e", content=EQUALITY, sequence=2, spec=0, equality_ids=(1,))
    void = entry("v", content=EQUALITY, sequence=2, spec=3, partition=(None,), equality_ids=(1,))
    assert found([plain, void], entry("a", spec=1, partition=(7,)), unpartitioned={3}) == ["e", "v"]
    assert found([plain, void], entry("a", spec=1, partition=(7,))) == ["e"]


def test_position_deletes_of_an_unpartitioned_spec_are_not_global() -> None:
    delete = entry("p", content=POSITIONS, sequence=2, spec=0)
    assert found([delete], entry("a", spec=1, partition=(7,))) == []


def test_specs_of_void_fields_are_unpartitioned() -> None:
    def spec(number: int, *transforms: Any) -> PartitionSpec:
        fields = [PartitionField(1, 1000 + n, t, f"f{n}") for n, t in enumerate(transforms)]
        return PartitionSpec(*fields, spec_id=number)

    specs = [
        spec(0),
        spec(1, DayTransform()),
        spec(2, VoidTransform()),
        spec(3, VoidTransform(), DayTransform()),
    ]
    assert find_unpartitioned_specs(SimpleNamespace(partition_specs=specs)) == {0, 2}  # type: ignore[arg-type]


def test_nan_is_one_partition_and_the_two_zeros_are_two() -> None:
    nan = entry("p", content=POSITIONS, sequence=2, partition=(float("nan"),))
    zero = entry("z", content=POSITIONS, sequence=2, partition=(0.0,))
    assert found([nan, zero], entry("a", partition=(float("nan"),))) == ["p"]
    assert found([nan, zero], entry("a", partition=(-0.0,))) == []
    assert found([nan, zero], entry("a", partition=(0.0,))) == ["z"]


def test_a_vector_supersedes_position_deletes_and_not_equality_deletes() -> None:
    deletes = [
        entry("p", content=POSITIONS, sequence=3, referenced_data_file="a"),
        entry("q", content=POSITIONS, sequence=3),
        entry("e", content=EQUALITY, sequence=3, equality_ids=(1,)),
        vector("a", sequence=3, rows=4),
    ]
    assert found(deletes, entry("a")) == ["dv-a", "e"]
    assert found(deletes, entry("b")) == ["q", "e"]


def test_bounds_that_differ_narrow_down_and_are_no_single_path() -> None:
    delete = entry("p", content=POSITIONS, sequence=2, **bounds("b", "d"))
    assert find_referenced_data_file(delete.file) is None
    assert [path for path in "abcde" if found([delete], entry(path))] == ["b", "c", "d"]


def test_the_path_a_delete_file_is_about_is_that_of_java() -> None:
    assert find_referenced_data_file(entry("p", content=POSITIONS, **bounds("ä", "ä")).file) == "ä"
    assert (
        find_referenced_data_file(
            entry("p", content=POSITIONS, referenced_data_file="x", **bounds("a", "b")).file
        )
        == "x"
    )
    assert find_referenced_data_file(entry("p", content=POSITIONS, lower_bounds={PATH_ID: b"a"}).file) is None
    assert find_referenced_data_file(entry("e", content=EQUALITY, **bounds("a", "a")).file) is None


@pytest.mark.parametrize(
    "wrong", [{"spec": 1, "partition": (1,)}, {"partition": (2,)}, {"partition": (None,)}]
)
def test_a_delete_of_one_file_with_another_partition_is_damage(wrong: dict[str, Any]) -> None:
    data = entry("a", partition=(1,))
    for delete in (
        vector("a", sequence=2, **wrong),
        entry("p", content=POSITIONS, referenced_data_file="a", **wrong),
    ):
        index = DeleteFileIndex.of([delete])
        with pytest.raises(DamagedTable, match="has spec 0") as caught:
            index.find_deletes(data)
        assert caught.value.path == "a"
        assert index.find_deletes(entry("b", partition=(1,))) == NO_DELETES


def test_vectors_that_cannot_be_are_damage() -> None:
    with pytest.raises(DamagedTable, match="two deletion vectors"):
        DeleteFileIndex.of([vector("a"), vector("a")])
    with pytest.raises(DamagedTable, match="older than its data file"):
        DeleteFileIndex.of([vector("a", sequence=4)]).find_deletes(entry("a", sequence=5))
    with pytest.raises(DamagedTable, match="names no data file"):
        DeleteFileIndex.of([entry("dv", content=POSITIONS, file_format="puffin")])
    with pytest.raises(DamagedTable, match="no sequence number"):
        DeleteFileIndex.of([entry("p", content=POSITIONS, sequence=None)])


def test_what_metadata_proves_of_the_count() -> None:
    one = vector("a", rows=4)
    other = entry("p", content=POSITIONS)
    assert Deletes(one).exact_count == 4
    assert Deletes(one, (), (other,)).exact_count is None
    assert Deletes(None, (other,)).exact_count is None
    assert NO_DELETES.exact_count == 0
    assert not NO_DELETES
    assert Deletes(None, (), (other,))


def test_what_a_vector_replaces_is_about_its_file_alone() -> None:
    own = entry("p", content=POSITIONS, referenced_data_file="a")
    shared = entry("q", content=POSITIONS)
    equal = entry("e", content=EQUALITY)
    assert Deletes(None, (own, shared), (equal,)).replaceable_entries == (own,)
    assert Deletes(vector("a"), (), (equal,)).replaceable_entries == (vector("a"),)


def test_deletes_and_the_index_pickle() -> None:
    index = DeleteFileIndex.of([vector("a"), entry("e", content=EQUALITY, sequence=2, equality_ids=(1,))])
    again = pickle.loads(pickle.dumps(index))
    assert again.find_deletes(entry("a")) == index.find_deletes(entry("a"))
    assert index
    assert not DeleteFileIndex.of([entry("a")])


deletes_of_any_kind = st.builds(
    lambda content, sequence, spec, value, path: entry(
        f"{content.name}-{sequence}-{spec}-{value}-{path}",
        content=content,
        sequence=sequence,
        spec=spec,
        partition=() if spec == 0 else (value,),
        equality_ids=(1,),
        **({} if path is None or content is EQUALITY else bounds(path, path)),
    ),
    st.sampled_from([POSITIONS, EQUALITY]),
    st.integers(0, 4),
    st.integers(0, 1),
    st.integers(0, 1),
    st.sampled_from([None, "a0", "a1"]),
)


@given(st.lists(deletes_of_any_kind, max_size=12), st.integers(0, 4))
def test_the_index_finds_what_the_rules_say(deletes: list[ManifestEntry], sequence: int) -> None:
    """Against the rules in their plainest form; a file ``aN`` is in spec N with value N."""
    for number in (0, 1):
        data = entry(f"a{number}", sequence=sequence, spec=number, partition=() if number == 0 else (number,))
        expected, damaged = [], False
        for delete in deletes:
            file = delete.file
            same = (file.spec_id, file.partition) == (data.file.spec_id, data.file.partition)
            age = (delete.sequence_number or 0) - sequence
            if file.content is EQUALITY:
                if age > 0 and (same or not file.partition):
                    expected.append(delete)
            elif age >= 0 and find_referenced_data_file(file) in (None, data.file.file_path):
                if same:
                    expected.append(delete)
                else:
                    damaged |= find_referenced_data_file(file) is not None
        index = DeleteFileIndex.of(deletes)
        if damaged:
            with pytest.raises(DamagedTable):
                index.find_deletes(data)
            continue
        found = index.find_deletes(data)
        assert sorted(map(repr, (*found.positions, *found.equalities))) == sorted(map(repr, expected))


def test_many_files_with_many_deletes_take_no_time() -> None:
    count = 20_000
    deletes = [
        entry(f"d{n}", content=POSITIONS, sequence=2, partition=(n % 1_000,), referenced_data_file=f"f{n}")
        for n in range(count)
    ]
    deletes += [entry(f"q{n}", content=POSITIONS, sequence=2, partition=(n,)) for n in range(1_000)]
    data = [entry(f"f{n}", partition=(n % 1_000,)) for n in range(count)]
    start = time.process_time()
    index = DeleteFileIndex.of(deletes)
    assert sum(len(index.find_deletes(one).positions) for one in data) == 2 * count
    assert time.process_time() - start < 5  # a tenth of a second on an idle machine
