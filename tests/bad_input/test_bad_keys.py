"""Cases 1 to 17 of the bad-input catalogue: what keys may be, and when two of them are one."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.core.incremental import ParquetMetadataAnalyzer, validate_partition_column_immutability
from intarsia.datasets.pyarrow import PyarrowDatasetIO, merge_parquet_dataset_pyarrow
from intarsia.errors import ColumnNotFound, InputError, KeyColumnError, PartitionMoveError, SchemaMismatch
from tests.bad_input.trial import BASE, SCHEMA, SOURCE, UNIQUE, column, each_strategy, files_of, merging

NAN = math.nan


def with_ids(ids: list[int | None]) -> pa.Table:
    return pa.table(
        {"id": ids, "name": ["x"] * len(ids), "n": list(range(len(ids)))},
        schema=SCHEMA,
    )


@pytest.mark.parametrize("dry_run", [False, True], ids=["run", "dry"])
def test_case_01_null_in_a_source_key(root: Path, dry_run: bool, each_refused: Any) -> None:
    calls = merging(with_ids([2, None, 9, None]), dry_run=dry_run)
    words = ("{operation}", "Key column 'id'", "2 NULL values", "source", 'null_keys="match"')
    each_refused(root, calls, KeyColumnError, *words)


def test_case_01_null_in_a_source_key_is_refused_at_every_door(root: Path, refused: Any) -> None:
    source = with_ids([2, None])
    words = ("Key column 'id'", "1 NULL value", "source")
    doors = [
        lambda: PyarrowDatasetIO().merge(source, str(root), "upsert", ["id"]),
        lambda: merge_parquet_dataset_pyarrow(source, str(root), ["id"]),
        lambda: it.merge(source, root, on="target.id = source.id"),
        lambda: it.merge(source, root, on="id", clauses=[it.when_matched().delete()]),
    ]
    for door in doors:
        refused(root, KeyColumnError, door, *words)


def test_case_02_null_in_one_part_of_a_composite_key(root: Path, each_refused: Any) -> None:
    source = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"], "n": [1, 2, 3]}, schema=SCHEMA)
    words = ("{operation}", "Key column 'name'", "1 NULL value")
    each_refused(root, merging(source, on=["id", "name"]), KeyColumnError, *words)


def test_case_03_null_key_in_the_target(tmp_path: Path, make_dataset: Any, each_refused: Any) -> None:
    root = make_dataset(tmp_path / "t", with_ids([1, None, 2, None, None, 5]), files=2)
    words = ("Key column 'id'", "1 NULL value", "target file", "1 more file", 'null_keys="match"')
    each_refused(root, merging(SOURCE), KeyColumnError, *words, where=root / "part-00000.parquet")


def test_case_03_null_keys_meet_when_asked_to(tmp_path: Path, make_dataset: Any, rows: Any) -> None:
    root = make_dataset(tmp_path / "t", with_ids([1, None]))
    source = pa.table({"id": [None], "name": ["new"], "n": [9]}, schema=SCHEMA)
    result = it.merge(source, root, on="id", null_keys="match")
    assert (result.updated, result.inserted) == (1, 0)
    assert rows(root) == [{"id": 1, "n": 0, "name": "x"}, {"id": None, "n": 9, "name": "new"}]


@each_strategy
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_case_04_nan_keys_are_equal(
    tmp_path: Path, strategy: str, kind: pa.DataType, make_dataset: Any, rows: Any
) -> None:
    root = make_dataset(tmp_path / "t", column([1.0, NAN, 2.0], kind), files=3)
    source = column([NAN, 3.0], kind)
    result = it.merge(source, root, on="id", strategy=strategy)
    replaces, inserts = strategy != "insert", strategy != "update"
    assert (result.updated, result.inserted) == (int(replaces), int(inserts))
    found = {str(row["id"]): row["n"] for row in rows(root)}
    assert found["nan"] == (0 if replaces else 1)
    assert len(found) == len(rows(root))


def test_case_04_nan_twice_is_a_duplicate(tmp_path: Path, make_dataset: Any, each_refused: Any) -> None:
    root = make_dataset(tmp_path / "t", column([1.0], pa.float64()))
    source = column([NAN, -NAN], pa.float64())
    each_refused(root, merging(source, strategies=UNIQUE), KeyColumnError, "1 duplicate key", "id", "nan")


@pytest.mark.parametrize(("here", "there"), [(0.0, -0.0), (-0.0, 0.0)])
@each_strategy
def test_case_05_minus_zero_is_zero(
    tmp_path: Path, here: float, there: float, strategy: str, make_dataset: Any, rows: Any
) -> None:
    root = make_dataset(tmp_path / "t", pa.table({"id": [there], "n": [7]}))
    result = it.merge(pa.table({"id": [here], "n": [8]}), root, on="id", strategy=strategy)
    assert result.inserted == 0
    assert [row["n"] for row in rows(root)] == [7 if strategy == "insert" else 8]


def test_case_05_both_zeros_are_a_duplicate(root: Path, each_refused: Any) -> None:
    source = column([0.0, -0.0], pa.float64())
    each_refused(root.parent / "new", merging(source, strategies=UNIQUE), KeyColumnError, "1 duplicate key")


@pytest.mark.parametrize("dry_run", [False, True], ids=["run", "dry"])
def test_case_06_duplicate_keys_in_the_source(root: Path, dry_run: bool, each_refused: Any) -> None:
    calls = merging(with_ids([1, 1, 2, 3, 3, 3, 8, 8, 9, 9]), strategies=UNIQUE, dry_run=dry_run)
    words = (
        "{operation}",
        "4 duplicate keys in id",
        "9 rows",
        "id=1",
        "id=3",
        "id=8",
        'strategy="deduplicate"',
    )
    each_refused(root, calls, KeyColumnError, *words)


def test_case_06_three_samples_of_duplicate_keys_are_enough(root: Path) -> None:
    with pytest.raises(KeyColumnError, match="9 rows") as caught:
        it.merge(with_ids([1, 1, 2, 3, 3, 3, 8, 8, 9, 9]), root, on="id")
    assert "id=9" not in str(caught.value)


@pytest.mark.parametrize("dtype", [pa.date32(), pa.timestamp("us", "UTC"), pa.duration("s")], ids=str)
def test_case_06_keys_that_python_has_no_value_for_are_shown(tmp_path: Path, dtype: pa.DataType) -> None:
    most = 2 ** (dtype.bit_width - 1) - 1  # DuckDB's infinite dates
    source = pa.table(
        {"k": pa.array([most, most], pa.int32() if most < 2**32 else pa.int64()).cast(dtype), "p": [1, 1]}
    )
    with pytest.raises(KeyColumnError, match=r"such as \(k='?[^N]+"):
        it.merge(source, tmp_path / "t", on="k")
    one = source.slice(1)
    it.write(one, tmp_path / "t", partition_by="p")
    with pytest.raises(PartitionMoveError, match="1 row would move"):
        it.merge(one.set_column(1, "p", pa.array([2])), tmp_path / "t", on="k")
    with pytest.raises(PartitionMoveError, match="1 row"):
        validate_partition_column_immutability(one, one.set_column(1, "p", pa.array([2])), ["k"], ["p"])
    [file] = ParquetMetadataAnalyzer().analyze_dataset_files(tmp_path / "t")
    assert file.column_stats["k"]["null_count"] == 0


def test_case_06_duplicate_keys_for_a_new_dataset(tmp_path: Path, each_refused: Any) -> None:
    source = with_ids([1, 1])
    each_refused(
        tmp_path / "new",
        merging(source, strategies=UNIQUE),
        KeyColumnError,
        "1 duplicate key",
        "2 rows",
        "id=1",
    )


def test_case_06_one_target_row_hit_by_two_clauses_rows(root: Path, refused: Any) -> None:
    call = lambda: it.merge(  # noqa: E731
        with_ids([2, 2]), root, on="id", clauses=[it.when_matched().update({"n": "source.n"})]
    )
    refused(root, KeyColumnError, call, "1 target row", "more than one source row", "id")


@pytest.mark.parametrize("order", [["n"], ["n", "name"]], ids=["one", "two"])
def test_case_07_equal_order_lets_the_last_row_win(root: Path, order: list[str], rows: Any) -> None:
    source = pa.table(
        {"id": [2, 2, 2, 2, 9, 9], "name": ["p", "q", "r", "r", "s", "t"], "n": [5, 6, 6, 6, None, None]},
        schema=SCHEMA,
    ).append_column("mark", pa.array([0, 1, 2, 3, 4, 5]))
    base = BASE.append_column("mark", pa.array([-1] * 6))
    pq.write_table(base.slice(0, 3), files_of(root)[0])
    pq.write_table(base.slice(3), files_of(root)[1])
    result = it.merge(source, root, on="id", strategy="deduplicate", dedup_order_by=order)
    assert (result.updated, result.inserted) == (1, 1)
    assert {row["id"]: row["mark"] for row in rows(root) if row["mark"] >= 0} == {2: 3, 9: 5}


def test_case_07_null_loses_against_any_order(root: Path, rows: Any) -> None:
    source = pa.table({"id": [2, 2, 2], "name": ["p", "q", "r"], "n": [None, -5, None]}, schema=SCHEMA)
    it.merge(source, root, on="id", strategy="deduplicate", dedup_order_by="n")
    assert [row["name"] for row in rows(root) if row["id"] == 2] == ["q"]


@each_strategy
def test_case_08_duplicate_keys_in_the_target_are_all_replaced(
    tmp_path: Path, strategy: str, make_dataset: Any, rows: Any
) -> None:
    root = make_dataset(tmp_path / "t", with_ids([1, 2, 2, 3, 2, 2]), files=2)
    source = pa.table({"id": [2, 3], "name": ["new", "new"], "n": [100, 100]}, schema=SCHEMA)
    result = it.merge(source, root, on="id", strategy=strategy)
    replaced = 0 if strategy == "insert" else 5
    gone = 1 if strategy == "full_merge" else 0
    assert (result.updated, result.inserted, result.deleted) == (replaced, 0, gone)
    found = rows(root)
    assert len(found) == result.total == 6 - gone
    assert sum(row["name"] == "new" for row in found) == replaced


def test_case_09_key_column_missing_from_the_source(root: Path, each_refused: Any) -> None:
    source = SOURCE.drop_columns(["id"])
    each_refused(root, merging(source), KeyColumnError, "'id'", "missing", "source", "'name'")


def test_case_09_key_column_missing_from_the_target(root: Path, each_refused: Any) -> None:
    source = SOURCE.append_column("code", pa.array([1, 2, 3]))
    each_refused(root, merging(source, on="code"), KeyColumnError, "'code'", "missing", "target", "'name'")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda root: it.optimize(root, by=["n", "size"]), "size"),
        (lambda root: it.optimize(root, by="n", deduplicate_on="code"), "code"),
        (lambda root: it.deduplicate(root, on=["id", "code"]), "code"),
        (lambda root: it.deduplicate(root, on="id", order_by="age"), "age"),
        (lambda root: it.delete(root, "code = 1"), "code"),
        (lambda root: it.update(root, {"code": "1"}), "code"),
        (lambda root: it.update(root, {"n": "code + 1"}), "code"),
        (lambda root: it.update(root, {"n": "1"}, "code = 1"), "code"),
        (lambda root: it.merge(SOURCE, root, on="id", strategy="deduplicate", dedup_order_by="age"), "age"),
        (lambda root: it.merge(SOURCE, root, on="target.id = source.id and target.code > 1"), "code"),
        (
            lambda root: it.merge(SOURCE, root, on="id", clauses=[it.when_matched("code > 1").delete()]),
            "code",
        ),
        (lambda root: it.write(SOURCE, root.parent / "new", partition_by="region"), "region"),
    ],
)
def test_case_09_any_other_column_that_is_not_there(root: Path, call: Any, name: str, refused: Any) -> None:
    refused(root, ColumnNotFound, lambda: call(root), repr(name), where=None)


@pytest.mark.parametrize(
    ("on", "words"),
    [
        ([], ["at least one key column"]),
        ((), ["at least one key column"]),
        (["id", "id"], ["'id'", "more than once"]),
        ([""], ["must be names", "''"]),
        ([7], ["must be a name or a list of names", "7"]),
        (7, ["a name or a list of names"]),
        (None, ["a name or a list of names"]),
    ],
    ids=str,
)
def test_case_10_key_columns_empty_or_repeated(
    root: Path, on: Any, words: list[str], each_refused: Any
) -> None:
    each_refused(root, merging(SOURCE, on=on), KeyColumnError, *words, where=None)


def test_case_10_a_single_name_and_a_list_of_one_mean_the_same(root: Path) -> None:
    one, other = it.plan("merge", SOURCE, root, on="id"), it.plan("merge", SOURCE, root, on=["id"])
    assert (one.updated, one.inserted) == (other.updated, other.inserted) == (2, 1)


NESTED = {
    "list": pa.array([[1], [2]], pa.list_(pa.int64())),
    "large_list": pa.array([[1], [2]], pa.large_list(pa.int64())),
    "fixed_list": pa.array([[1], [2]], pa.list_(pa.int64(), 1)),
    "struct": pa.array([{"a": 1}, {"a": 2}], pa.struct([("a", pa.int64())])),
    "map": pa.array([[("a", 1)], [("b", 2)]], pa.map_(pa.string(), pa.int64())),
}


@pytest.mark.parametrize("kind", NESTED)
def test_case_11_nested_key(tmp_path: Path, kind: str, make_dataset: Any, each_refused: Any) -> None:
    table = pa.table({"k": NESTED[kind], "n": [1, 2]})
    root = make_dataset(tmp_path / "t", table)
    each_refused(
        root,
        merging(table, on="k"),
        KeyColumnError,
        "'k'",
        str(table.schema.field("k").type).split("<")[0],
        "key",
    )


@pytest.mark.parametrize("kind", NESTED)
def test_case_11_nested_key_of_maintenance(
    tmp_path: Path, kind: str, make_dataset: Any, refused: Any
) -> None:
    root = make_dataset(tmp_path / "t", pa.table({"k": NESTED[kind], "n": [1, 2]}))
    refused(root, KeyColumnError, lambda: it.deduplicate(root, on="k"), "'k'", "deduplicate")
    refused(root, InputError, lambda: it.optimize(root, by="k"), "'k'", "optimize")


def test_case_11_a_field_of_a_struct_is_no_key(tmp_path: Path, make_dataset: Any, refused: Any) -> None:
    table = pa.table({"k": NESTED["struct"], "n": [1, 2]})
    root = make_dataset(tmp_path / "t", table)
    with pytest.raises(NotImplementedError, match=r"k\.a.*column of its own"):
        it.merge(table, root, on="target.k.a = source.k.a")


def test_case_11_an_extension_over_a_plain_type_is_a_key(
    tmp_path: Path, make_dataset: Any, rows: Any
) -> None:
    def table(letters: str, number: int) -> pa.Table:
        storage = pa.array([letter.encode() * 16 for letter in letters], pa.binary(16))
        ids = pa.ExtensionArray.from_storage(pa.uuid(), storage)
        return pa.table({"id": ids, "n": pa.array([number] * len(letters))})

    root = make_dataset(tmp_path / "t", table("abc", 1), files=2)
    result = it.merge(table("bd", 2), root, on="id")
    assert (result.updated, result.inserted) == (1, 1)
    assert pq.read_table(root).schema.field("id").type == pa.uuid()
    assert sorted(row["n"] for row in rows(root)) == [1, 1, 2, 2]


@each_strategy
def test_case_12_text_keys_are_compared_letter_by_letter(
    tmp_path: Path, strategy: str, make_dataset: Any, rows: Any
) -> None:
    there = ["\u00e4", "b ", "C"]
    here = ["a\u0308", "b", "c"]
    root = make_dataset(tmp_path / "t", column(there, pa.string()))
    result = it.merge(column(here, pa.string()), root, on="id", strategy=strategy)
    assert result.updated == 0
    assert result.inserted == (0 if strategy == "update" else 3)
    found = {row["id"] for row in rows(root)}
    kept = set() if strategy == "full_merge" else set(there)
    assert found == kept | (set() if strategy == "update" else set(here))


@pytest.mark.parametrize(
    ("there", "here"),
    [(pa.string(), pa.binary()), (pa.binary(), pa.string()), (pa.binary(1), pa.string())],
    ids=str,
)
def test_case_13_binary_against_string_key(
    tmp_path: Path, there: pa.DataType, here: pa.DataType, make_dataset: Any, each_refused: Any
) -> None:
    root = make_dataset(tmp_path / "t", column(["a", "b"], there))
    each_refused(
        root, merging(column(["a"], here)), SchemaMismatch, "'id'", str(there), str(here), "{operation}"
    )


@each_strategy
@pytest.mark.parametrize(
    ("there", "here"),
    [(pa.int64(), pa.int32()), (pa.int32(), pa.int64()), (pa.int8(), pa.uint64()), (pa.uint32(), pa.int16())],
    ids=str,
)
def test_case_14_narrow_against_wide_integer_key(
    tmp_path: Path, strategy: str, there: pa.DataType, here: pa.DataType, make_dataset: Any
) -> None:
    root = make_dataset(tmp_path / "t", column([1, 2, 3], there), files=3)
    result = it.merge(column([2, 9], here), root, on="id", strategy=strategy)
    assert result.updated == (0 if strategy == "insert" else 1)
    assert result.inserted == (0 if strategy == "update" else 1)
    assert pq.read_table(root).schema.field("id").type == there


@pytest.mark.parametrize(
    ("there", "here", "value"),
    [(pa.int64(), pa.uint64(), 2**63 + 1), (pa.uint64(), pa.int64(), -1), (pa.int8(), pa.int64(), 300)],
    ids=str,
)
def test_case_15_key_beyond_the_range_of_the_target(
    tmp_path: Path,
    there: pa.DataType,
    here: pa.DataType,
    value: int,
    make_dataset: Any,
    each_refused: Any,
) -> None:
    root = make_dataset(tmp_path / "t", column([1, 2], there))
    each_refused(
        root, merging(column([2, value], here)), SchemaMismatch, "'id'", str(value), str(there), "{operation}"
    )


def test_case_15_large_unsigned_keys_are_themselves(tmp_path: Path, make_dataset: Any, rows: Any) -> None:
    top = 2**64 - 1
    root = make_dataset(tmp_path / "t", column([1, 2**63, top], pa.uint64()), files=3)
    result = it.merge(column([2**63, top, 2**63 + 1], pa.uint64()), root, on="id")
    assert (result.updated, result.inserted) == (2, 1)
    assert [row["id"] for row in rows(root)] == [1, 2**63, 2**63 + 1, top]


@pytest.mark.parametrize(("there", "here"), [(pa.float64(), pa.int64()), (pa.int64(), pa.float64())], ids=str)
def test_case_16_integer_against_double_key(
    tmp_path: Path, there: pa.DataType, here: pa.DataType, make_dataset: Any, each_refused: Any
) -> None:
    root = make_dataset(tmp_path / "t", column([1, 2], there))
    value: Any = 2**53 + 1 if pa.types.is_integer(here) else 1.5
    each_refused(
        root, merging(column([value], here)), SchemaMismatch, "'id'", str(value), str(there), "{operation}"
    )


@each_strategy
@pytest.mark.parametrize(
    ("there", "here"),
    [
        (pa.decimal128(20, 4), pa.decimal128(10, 2)),
        (pa.decimal128(10, 2), pa.decimal128(20, 4)),
        (pa.decimal128(10, 2), pa.decimal256(50, 9)),
        (pa.decimal128(10, 2), pa.int64()),
        (pa.int64(), pa.decimal128(20, 4)),
    ],
    ids=str,
)
def test_case_17_decimal_keys_of_other_scale(
    tmp_path: Path, strategy: str, there: pa.DataType, here: pa.DataType, make_dataset: Any
) -> None:
    root = make_dataset(tmp_path / "t", column([Decimal(1), Decimal(2)], there), files=2)
    result = it.merge(column([Decimal(2), Decimal(7)], here), root, on="id", strategy=strategy)
    assert result.updated == (0 if strategy == "insert" else 1)
    assert result.inserted == (0 if strategy == "update" else 1)


def test_case_17_decimal_key_with_more_digits_than_the_target_has(
    tmp_path: Path, make_dataset: Any, each_refused: Any
) -> None:
    root = make_dataset(tmp_path / "t", column([Decimal("1.25")], pa.decimal128(10, 2)))
    source = column([Decimal("1.2501")], pa.decimal128(10, 4))
    each_refused(root, merging(source), SchemaMismatch, "'id'", "1.2501", "decimal128(10, 2)", "{operation}")


def test_a_key_of_every_orderable_type_is_found(tmp_path: Path, make_dataset: Any) -> None:
    kinds = {
        pa.time64("us"): [dt.time(1), dt.time(2)],
        pa.duration("s"): [dt.timedelta(1), dt.timedelta(2)],
        pa.bool_(): [False, True],
        pa.date64(): [dt.date(2020, 1, 1), dt.date(2020, 1, 2)],
        pa.float16(): [1.5, 2.5],
        pa.binary(2): [b"ab", b"cd"],
    }
    for number, (kind, values) in enumerate(kinds.items()):
        root = make_dataset(tmp_path / str(number), column(values, kind), files=2)
        result = it.merge(column(values[1:], kind), root, on="id")
        assert (result.updated, result.inserted) == (1, 0), kind
