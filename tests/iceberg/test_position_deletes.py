"""Position delete files: as written, as PyIceberg reads them, and read back for one data file at a time."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delete_samples import LOCAL, Places, access, entry, locate, position_delete
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO, _read_deletes
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.manifest import DataFileContent as PyContent

from intarsia.core.layout import Layout
from intarsia.errors import DamagedTable, InputError, NotSupported, StorageError
from intarsia.tables.iceberg.deletes import Deletes, merge_positions, read_deleted_positions
from intarsia.tables.iceberg.deletion_vectors import write_vectors
from intarsia.tables.iceberg.equality_deletes import EqualityColumns
from intarsia.tables.iceberg.file_io import DeleteCache
from intarsia.tables.iceberg.manifests import (
    PATH_ID,
    POS_ID,
    ContentFile,
    DataFileContent,
    ManifestEntry,
    ManifestEntryStatus,
    find_referenced_data_file,
)
from intarsia.tables.iceberg.position_deletes import DeleteGranularity, read_positions, write_position_deletes


def ints(values: list[int]) -> pa.Int64Array:
    return pa.array(values, pa.int64())


def added(file: ContentFile) -> ManifestEntry:
    return ManifestEntry(ManifestEntryStatus.ADDED, 1, file, 2, 2)


def theirs(file: ContentFile) -> dict[str, list[int]]:
    data_file = DataFile.from_args(
        content=PyContent.POSITION_DELETES,
        file_path=file.file_path,
        file_format=FileFormat[file.file_format],
    )
    found = _read_deletes(PyArrowFileIO(), data_file)
    return {path: positions.to_pylist() for path, positions in found.items()}


TARGETS = [
    (entry("file:/t/b", partition=(1,)), ints([9, 2, 2])),
    (entry("file:/t/a", partition=(1,)), ints([1 << 33, 0])),
    (entry("file:/t/c", partition=(2,)), ints([4])),
    (entry("file:/t/d", spec=1, partition=()), ints([5])),
    (entry("file:/t/b", partition=(1,)), ints([3])),
    (entry("file:/t/none", partition=(1,)), ints([])),
]


def test_one_file_for_each_spec_and_tuple(tmp_path: Path) -> None:
    places = Places(tmp_path)
    files = write_position_deletes(TARGETS, place=places, filesystem=LOCAL)
    assert places.asked == [(0, (1,), "parquet"), (0, (2,), "parquet"), (1, (), "parquet")]
    assert [(f.spec_id, f.partition, f.record_count) for f in files] == [
        (0, (1,), 5),
        (0, (2,), 1),
        (1, (), 1),
    ]
    assert theirs(files[0]) == {"file:/t/a": [0, 1 << 33], "file:/t/b": [2, 3, 9]}


def test_one_file_for_each_data_file(tmp_path: Path) -> None:
    files = write_position_deletes(
        TARGETS, place=Places(tmp_path), filesystem=LOCAL, granularity=DeleteGranularity.FILE
    )
    assert [f.referenced_data_file for f in files] == ["file:/t/a", "file:/t/b", "file:/t/c", "file:/t/d"]
    assert [f.spec_id for f in files] == [0, 0, 0, 1]
    assert [find_referenced_data_file(f) for f in files] == [f.referenced_data_file for f in files]


def test_rows_are_sorted_and_columns_are_those_of_the_format(tmp_path: Path) -> None:
    file, *_ = write_position_deletes(TARGETS, place=Places(tmp_path), filesystem=LOCAL)
    parquet = pq.ParquetFile(locate(file.file_path))
    rows = [tuple(row.values()) for row in parquet.read().to_pylist()]
    assert rows == sorted(rows)
    assert b"ARROW:schema" not in parquet.metadata.metadata
    schema = parquet.schema_arrow
    assert [(f.name, f.type, f.nullable, f.metadata[b"PARQUET:field_id"]) for f in schema] == [
        ("file_path", pa.string(), False, b"2147483546"),
        ("pos", pa.int64(), False, b"2147483545"),
    ]
    notes = parquet.metadata.metadata
    assert notes[b"delete-type"] == b"position"
    assert [f["id"] for f in json.loads(notes[b"iceberg.schema"])["fields"]] == [PATH_ID, POS_ID]
    assert parquet.metadata.row_group(0).sorting_columns == (pq.SortingColumn(0), pq.SortingColumn(1))


def test_bounds_say_that_a_file_is_about_one_data_file_and_are_left_out_otherwise(tmp_path: Path) -> None:
    """As Java: whole paths, positions in eight bytes, no counts of the two columns."""
    path = "file:/t/" + "x" * 200
    several, one = write_position_deletes(
        [
            (entry("a", partition=(1,)), ints([1])),
            (entry("b", partition=(1,)), ints([1])),
            (entry(path, partition=(2,)), ints([7, 300])),
        ],
        place=Places(tmp_path),
        filesystem=LOCAL,
    )
    assert (several.lower_bounds, several.upper_bounds, several.referenced_data_file) == (None, None, None)
    assert one.lower_bounds == {PATH_ID: path.encode(), POS_ID: (7).to_bytes(8, "little")}
    assert one.upper_bounds == {PATH_ID: path.encode(), POS_ID: (300).to_bytes(8, "little")}
    assert one.referenced_data_file == path
    for file in (several, one):
        assert file.content is DataFileContent.POSITION_DELETES
        assert (file.value_counts, file.null_value_counts, file.nan_value_counts) == (None, None, None)
        assert (file.sort_order_id, file.equality_ids, file.content_offset) == (None, None, None)
        footer = pq.read_metadata(locate(file.file_path))
        group = footer.row_group(0)
        assert file.column_sizes == {
            PATH_ID: group.column(0).total_compressed_size,
            POS_ID: group.column(1).total_compressed_size,
        }
        assert file.split_offsets == (4,)
        assert file.file_size_in_bytes == Path(locate(file.file_path)).stat().st_size


def test_a_file_that_is_large_enough_is_followed_by_another(tmp_path: Path) -> None:
    wanted = sorted(random.Random(1).sample(range(1 << 40), 5_000))
    targets = [(entry("file:/a"), ints(wanted)), (entry("file:/b"), ints([1]))]
    files = write_position_deletes(
        targets,
        place=Places(tmp_path),
        filesystem=LOCAL,
        target_bytes=8_000,
        layout=Layout(row_group_rows=500),
    )
    assert len(files) > 2
    assert files[0].referenced_data_file == "file:/a"
    assert files[-1].referenced_data_file is None
    assert all(8_000 <= f.file_size_in_bytes < 30_000 for f in files[:-1])
    assert len(files[0].split_offsets or ()) == pq.read_metadata(locate(files[0].file_path)).num_row_groups
    assert [p for f in files for p in theirs(f)["file:/a"]] == wanted


def test_positions_that_cannot_be_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    targets = [(entry("a"), ints([1])), (entry("b"), ints([-1]))]
    with pytest.raises(InputError, match="-1"):
        write_position_deletes(targets, place=Places(tmp_path), filesystem=LOCAL)
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"deletes-\d+"):
        write_position_deletes([(entry("a"), ints([1]))], place=Places(tmp_path / "none"), filesystem=LOCAL)


rows = st.lists(st.tuples(st.sampled_from(["a", "b", "c", "ä", "b/b"]), st.integers(0, 30)), max_size=40)


@given(rows, st.booleans(), st.booleans(), st.booleans(), st.integers(1, 5))
def test_every_way_of_reading_finds_the_same_positions(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, int]],
    ordered: bool,
    statistics: bool,
    cached: bool,
    size: int,
) -> None:
    """Also where rows are not in the order that the format asks for."""
    delete = position_delete(
        tmp_path_factory.mktemp("p"),
        sorted(rows) if ordered else rows,
        row_group_size=size,
        statistics=statistics,
    )
    near = access(1 << 20 if cached else 0)
    for path in ["a", "b", "c", "ä", "b/b", "aa", ""]:
        found = read_positions(delete, path, near)
        assert sorted(found.to_pylist()) == sorted(at for name, at in rows if name == path)


@given(rows)
def test_what_is_written_is_read_by_us_and_by_pyiceberg(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int]]
) -> None:
    targets = [(entry(path), ints([at])) for path, at in rows]
    files = write_position_deletes(targets, place=Places(tmp_path_factory.mktemp("w")), filesystem=LOCAL)
    expected: dict[str, list[int]] = {}
    for path, at in sorted(set(rows)):
        expected.setdefault(path, []).append(at)
    assert [theirs(file) for file in files] == ([expected] if expected else [])
    for path, positions in expected.items():
        assert read_positions(added(files[0]), path, access()).to_pylist() == positions


def test_row_groups_of_other_data_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    delete = position_delete(tmp_path, [(f"f{n // 10:02}", n) for n in range(300)], row_group_size=10)
    read: list[list[str]] = []
    whole = pq.ParquetFile.read_row_group

    def watched(self: pq.ParquetFile, group: int, columns: list[str], **rest: object) -> pa.Table:
        read.append(columns)
        return whole(self, group, columns, **rest)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", watched)
    assert read_positions(delete, "f07", access(0)).to_pylist() == list(range(70, 80))
    assert read == [["pos"]]


def test_a_file_about_many_data_files_is_decoded_once(tmp_path: Path) -> None:
    delete = position_delete(tmp_path, [(f"f{n}", n) for n in range(50)])
    near = access()
    assert read_positions(delete, "f7", near).to_pylist() == [7]
    Path(delete.file.file_path).unlink()
    assert read_positions(delete, "f8", near).to_pylist() == [8]
    assert read_positions(delete, "none", near).to_pylist() == []
    assert 0 < near.cache.size < 1_000


def test_positions_as_short_integers_are_read(tmp_path: Path) -> None:
    path = tmp_path / "short.parquet"
    table = pa.table({"file_path": ["a", "b"], "pos": pa.array([3, 4], pa.int32())})
    pq.write_table(table, path)
    delete = entry(str(path), content=DataFileContent.POSITION_DELETES, rows=2)
    assert read_positions(delete, "b", access(0)).to_pylist() == [4]
    assert read_positions(delete, "b", access()).type == pa.int64()


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_damage_in_a_delete_file_is_named(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "bad.parquet"
    delete = entry(str(path), content=DataFileContent.POSITION_DELETES, rows=2)

    def read() -> None:
        read_positions(delete, "a", access(limit))

    with pytest.raises(StorageError, match=r"bad\.parquet"):
        read()
    path.write_bytes(b"no Parquet")
    with pytest.raises(DamagedTable, match=r"bad\.parquet"):
        read()
    for table, words in [
        (pa.table({"file_path": ["a"], "row": [1]}), "no columns file_path and pos"),
        (pa.table({"file_path": ["a"], "pos": [-4]}), "-4 as a position"),
        (pa.table({"file_path": ["a"], "pos": pa.array([None], pa.int64())}), "NULL as a position"),
    ]:
        pq.write_table(table, path)
        with pytest.raises(DamagedTable, match=words):
            read()


@pytest.mark.parametrize("kind", ["AVRO", "ORC"])
def test_delete_files_of_other_formats_are_refused_by_name(kind: str) -> None:
    delete = entry("d", content=DataFileContent.POSITION_DELETES, file_format=kind)
    with pytest.raises(NotSupported, match=kind):
        read_positions(delete, "a", access())


def test_a_vector_takes_over_what_older_deletes_say(tmp_path: Path) -> None:
    own = position_delete(tmp_path, [("a", 1), ("a", 2)], referenced_data_file="a")
    shared = position_delete(tmp_path, [("a", 5), ("b", 6)])
    old = Deletes(None, (own, shared))

    def merged(deletes: Deletes, **options: bool) -> tuple[list[int], tuple[ManifestEntry, ...]]:
        found = merge_positions(
            ints([9, 2]), deletes, "a", filesystem=LOCAL, filesystem_path=locate, **options
        )
        return found.positions.to_pylist(), found.superseded

    assert merged(old) == ([1, 2, 5, 9], (own,))
    assert merged(old, replaced_only=True) == ([1, 2, 9], (own,))
    assert merged(Deletes()) == ([2, 9], ())
    (file,) = write_vectors([(entry("a"), ints([3]))], place=Places(tmp_path), filesystem=LOCAL)
    vector = added(file)
    assert merged(Deletes(vector)) == ([2, 3, 9], (vector,))


def test_dead_rows_are_those_of_all_deletes_within_the_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "a.parquet")
    parquet = pq.ParquetFile(tmp_path / "a.parquet")
    one = position_delete(tmp_path, [("a", 4), ("a", 1), ("b", 2), ("a", 4)])
    other = position_delete(tmp_path, [("a", 1), ("a", 9), ("a", 10), ("a", 1 << 40)])

    def deleted(deletes: Deletes) -> list[int] | None:
        found = read_deleted_positions(
            deletes, "a", parquet, LOCAL, locate, EqualityColumns(), cache=DeleteCache()
        )
        return None if found is None else found.to_pylist()

    assert deleted(Deletes(None, (one, other))) == [1, 4, 9]
    assert deleted(Deletes()) is None
    assert deleted(Deletes(None, (position_delete(tmp_path, [("b", 2)]),))) is None
    (file,) = write_vectors([(entry("a"), ints([3, 77]))], place=Places(tmp_path), filesystem=LOCAL)
    assert deleted(Deletes(added(file), (one,))) == [3]
