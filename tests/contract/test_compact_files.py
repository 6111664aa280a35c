"""compact: small files become few, rows and their order stay, and a second run finds nothing to do."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from intarsia.errors import InputError, NothingMatched

TABLE = pa.table({"id": range(100), "s": [f"s{n % 7}" for n in range(100)]})


def test_small_files_become_one_with_rows_in_order(parquet_lake):
    parquet_lake.create(TABLE, files=10)
    result = parquet_lake.compact()
    assert len(parquet_lake.files) == 1
    assert parquet_lake.file(parquet_lake.files[0]).equals(TABLE)
    assert (result.total, result.deleted) == (100, 0)
    assert (len(result.removed_files), len(result.inserted_files)) == (10, 1)


def test_a_second_run_changes_nothing(lake):
    lake.create(TABLE, files=10).compact(target_rows_per_file=30)
    with lake.unchanged():
        assert not lake.compact(target_rows_per_file=30).changed


def test_row_groups_that_are_large_already_are_concatenated(parquet_lake):
    table = pa.table(
        {"id": range(200_000), "s": [None if n % 9 == 0 else f"s{n % 7}" for n in range(200_000)]}
    )
    parquet_lake.create(table, files=2, write_page_index=True)
    before = [parquet_lake.footer(name).row_group(0).column(0).to_dict() for name in parquet_lake.files]
    parquet_lake.compact()
    footer = parquet_lake.footer(parquet_lake.files[0])
    after = [footer.row_group(number).column(0) for number in range(footer.num_row_groups)]
    assert [column.statistics.to_dict() for column in after] == [known["statistics"] for known in before]
    assert all(column.has_offset_index and column.has_column_index for column in after)
    assert parquet_lake.file(parquet_lake.files[0]).equals(table)


@pytest.mark.parametrize("most", [1, 20, 35, 1000])
def test_files_are_packed_by_rows(parquet_lake, most):
    parquet_lake.create(TABLE, files=10).compact(target_rows_per_file=most)
    counts = [parquet_lake.footer(name).num_rows for name in parquet_lake.files]
    assert sum(counts) == 100
    assert max(counts) <= max(most, 10)
    assert len(counts) == {1: 10, 20: 5, 35: 4, 1000: 1}[most]
    assert parquet_lake.values("id") == list(range(100))


def test_files_are_packed_by_size(parquet_lake):
    parquet_lake.create(pa.table({"id": range(80_000)}), files=8, compression="none", use_dictionary=False)
    size = (parquet_lake.root / "part-00000.parquet").stat().st_size
    parquet_lake.compact(target_mb_per_file=size * 4.2 / 2**20)
    assert len(parquet_lake.files) == 2
    assert parquet_lake.values("id") == list(range(80_000))


def test_files_of_about_the_target_size_stay(parquet_lake):
    parquet_lake.create(TABLE, files=[90, 2, 3, 5])
    before = parquet_lake.identity("part-00000.parquet")
    parquet_lake.compact(target_rows_per_file=90)
    assert parquet_lake.identity("part-00000.parquet") == before
    assert len(parquet_lake.files) == 2


def test_partitions_are_compacted_apart(parquet_lake):
    parquet_lake.create(TABLE, files=3, partition_by="s").compact()
    assert sorted(name.split("/")[0] for name in parquet_lake.files) == [f"s=s{n}" for n in range(7)]
    assert parquet_lake.values("id") == list(range(100))


@pytest.mark.parametrize("chosen", ["s=s1", ["s=s1", "s=s2"]])
def test_a_filter_leaves_other_partitions_alone(parquet_lake, chosen):
    parquet_lake.create(TABLE, files=2, partition_by="s")
    before = {name: parquet_lake.identity(name) for name in parquet_lake.files}
    parquet_lake.compact(partition_filter=chosen)
    wanted = [chosen] if isinstance(chosen, str) else chosen
    for name, identity in before.items():
        if name.split("/")[0] in wanted:
            assert name not in parquet_lake.files
        else:
            assert parquet_lake.identity(name) == identity
    assert len(parquet_lake.files) == 14 - len(wanted)


def test_a_filter_that_selects_no_file_is_an_error(lake):
    lake.create(TABLE, partition_by="s")
    with pytest.raises(NothingMatched, match="s=none"):
        lake.compact(partition_filter="s=none")


def test_nothing_to_compact_at_all_is_an_error(lake):
    with pytest.raises(FileNotFoundError):
        lake.compact()


def test_files_of_several_schemas_become_one_of_the_common_schema(parquet_lake):
    parquet_lake.create(pa.table({"id": pa.array([1, 2], pa.int32())}))
    pq.write_table(pa.table({"s": ["x"], "id": [2**40]}), parquet_lake.root / "wide.parquet")
    parquet_lake.compact()
    (name,) = parquet_lake.files
    assert parquet_lake.file(name).schema.remove_metadata() == pa.schema(
        [("id", pa.int64()), ("s", pa.string())]
    )
    assert parquet_lake.values("id", "s") == [(1, None), (2, None), (2**40, "x")]


def test_compact_does_not_care_for_empty_files(parquet_lake):
    parquet_lake.create(TABLE, files=[0, 50, 0, 50]).compact()
    assert parquet_lake.values("id") == list(range(100))
    assert len(parquet_lake.files) == 1


@pytest.mark.parametrize("options", [{"target_rows_per_file": 0}, {"target_mb_per_file": -1}])
def test_thresholds_must_be_greater_than_zero(lake, options):
    with pytest.raises(InputError, match="greater than zero"):
        lake.create(TABLE).compact(**options)
