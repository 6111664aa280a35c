"""Mistakes that were made once: each of these lost a value, counted wrong, or failed for no good reason."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.datasets.pyarrow import PyarrowDatasetIO, merge_parquet_dataset_pyarrow
from intarsia.errors import ColumnNotFound, InputError

N = 6000
SPARK_NOTE = "org.apache.spark.sql.parquet.row.metadata"


@pytest.mark.parametrize("encoded", [False, True], ids=["plain", "dictionary"])
def test_a_file_that_declares_an_order_of_texts_that_repeat_can_be_rewritten(parquet_lake, encoded):
    texts = pa.array([f"g{n * 7 // N}" for n in range(N)])
    table = pa.table({"g": texts.dictionary_encode() if encoded else texts, "id": range(N)})
    parquet_lake.create(table, row_group_size=2500, sorting_columns=[pq.SortingColumn(0)])
    parquet_lake.merge(pa.table({"g": ["zz", "a"], "id": [3, 5500]}), on="id")
    file = pq.ParquetFile(parquet_lake.root / parquet_lake.files[0])
    for number in range(file.num_row_groups):
        found = file.read_row_group(number)["g"].to_pylist()
        assert found == sorted(found)
    assert file.read().filter(pa.compute.field("id") == 3)["g"].to_pylist() == ["zz"]


def test_a_table_ordered_by_a_text_that_repeats_takes_an_upsert(lake):
    lake.create(pa.table({"id": range(N), "g": [f"g{n % 7}" for n in range(N)]}))
    lake.optimize(by="g")
    assert lake.merge(pa.table({"id": [3, N], "g": ["zz", "a"]}), on="id").updated == 1
    assert "zz" in lake.values("g")
    assert len(lake.rows()) == N + 1


def test_the_note_by_which_spark_reads_a_file_stays_when_the_columns_do(parquet_lake):
    table = pa.table({"id": range(N), "g": [f"g{n % 7}" for n in range(N)]})
    parquet_lake.create(table.replace_schema_metadata({SPARK_NOTE: "{}", "mine": "x"}))
    parquet_lake.merge(pa.table({"id": [3], "g": ["zz"]}), on="id")
    assert {SPARK_NOTE.encode(), b"mine"} <= set(parquet_lake.footer(parquet_lake.files[0]).metadata)


def test_a_partition_column_in_the_key_can_be_widened(parquet_lake):
    kinds = pa.schema([("id", pa.int32()), ("region", pa.int32()), ("v", pa.int64())])
    parquet_lake.create(pa.table([[1, 2, 3], [1, 1, 2], [1, 2, 3]], schema=kinds), partition_by="region")
    source = pa.table({"id": [1, 9], "region": [1, 2**40], "v": [10, 20]})
    result = parquet_lake.merge(source, on=["id", "region"], schema_evolution="widen")
    assert (result.inserted, result.updated) == (1, 1)
    found = PyarrowDatasetIO().read_parquet(parquet_lake.root).sort_by("id").to_pylist()
    assert [tuple(row[n] for n in ("id", "region", "v")) for row in found] == [
        (1, 1, 10),
        (2, 1, 2),
        (3, 2, 3),
        (9, 2**40, 20),
    ]


def test_clauses_that_take_no_whole_row_leave_a_column_named_as_a_partition_alone(lake):
    lake.create(
        pa.table({"id": [1, 2, 3], "region": ["eu", "eu", "us"], "v": [1, 2, 3]}), partition_by="region"
    )
    source = pa.table({"id": [1, 3], "region": [7, 8], "v": [10, 30]})
    lake.merge(source, on="id", clauses=[it.when_matched().update({"v": "source.v"})])
    assert lake.values("id", "region", "v") == [(1, "eu", 10), (2, "eu", 2), (3, "us", 30)]


def test_a_key_named_like_the_path_of_a_struct_field_is_looked_for_by_its_own_bounds(lake):
    struct = pa.array([{"b": n + 10 * N} for n in range(N)])
    lake.create(pa.table({"a": struct, "a.b": range(N), "v": range(N)}), row_group_size=2000)
    result = lake.merge(pa.table({"a": pa.array([{"b": 1}]), "a.b": [5], "v": [-1]}), on=["a.b"])
    assert (result.inserted, result.updated) == (0, 1)
    assert len(lake.rows()) == N


@pytest.mark.parametrize("name", ["__rows__", "__row__"])
def test_no_column_name_is_taken(lake, name):
    lake.create(pa.table({"id": [1, 2, 3], name: [1, 2, 3]}))
    lake.merge(pa.table({"id": [2, 9], name: [20, 90]}), on="id")
    lake.delete("id = 1")
    lake.compact()
    lake.optimize(by=[name, "id"])
    lake.deduplicate(on="id")
    assert lake.values("id", name) == [(2, 20), (3, 3), (9, 90)]
    assert sorted(lake.own()[name].to_pylist()) == [3, 20, 90]


def test_a_row_replaced_outside_of_the_partitions_keeps_its_partition_value(parquet_lake):
    (parquet_lake.root / "region=eu").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2], "v": [1, 2]}), parquet_lake.root / "stray.parquet")
    pq.write_table(pa.table({"id": [3], "v": [3]}), parquet_lake.root / "region=eu/a.parquet")
    parquet_lake.merge(pa.table({"id": [1], "v": [10], "region": ["eu"]}), on="id")
    found = PyarrowDatasetIO().read_parquet(parquet_lake.root).sort_by("id").to_pylist()
    assert [(row["id"], row["v"], row["region"]) for row in found] == [
        (1, 10, "eu"),
        (2, 2, None),
        (3, 3, "eu"),
    ]


def test_the_plain_function_keeps_replaced_files_when_asked_to(tmp_path):
    target = tmp_path / "lake"
    it.write(pa.table({"id": [1], "v": [1]}), target)
    merge_parquet_dataset_pyarrow(pa.table({"id": [1], "v": [2]}), target, ["id"], retain=1)
    (kept,) = (tmp_path / ".lake.intarsia/retained").glob("*/*.part")
    assert pq.read_table(kept)["v"].to_pylist() == [1]


@pytest.mark.parametrize("wrong", [True, 1, ["add", None], "grow"])
def test_a_schema_evolution_that_is_not_known_is_said_to_be(tmp_path, wrong):
    it.write(pa.table({"id": [1]}), tmp_path / "lake")
    with pytest.raises(InputError, match="schema_evolution"):
        it.merge(pa.table({"id": [1]}), tmp_path / "lake", on="id", schema_evolution=wrong)


def test_a_text_in_double_quotes_is_told_how_to_be_written(tmp_path):
    it.write(pa.table({"id": [1], "region": ["eu"]}), tmp_path / "lake")
    with pytest.raises(ColumnNotFound) as caught:
        it.delete(tmp_path / "lake", 'region = "eu"')
    assert "single quotes: 'eu'" in str(caught.value)


def test_partition_types_and_metadata_survive_a_rewrite_of_texts_that_repeat(lake):
    rows = 20_000
    table = pa.table(
        {"id": range(rows), "s": [f"s{n % 5}" for n in range(rows)], "p": pa.array([7] * rows, pa.int32())}
    )
    lake.write(table.replace_schema_metadata({"owner": "me"}), partition_by="p")
    lake.delete("id % 3 = 0")
    schema = lake.snapshot().schema
    assert schema.field("p").type == pa.int32()
    assert schema.metadata[b"owner"] == b"me"


def test_timestamps_inside_of_lists_keep_their_unit(parquet_lake):
    values = pa.array([[0, 1], None, [2]], pa.list_(pa.timestamp("ms")))
    parquet_lake.create(pa.table({"id": [1, 2, 3], "c": values}))
    parquet_lake.delete("id = 2")
    assert parquet_lake.file().schema.field("c").type == values.type
