"""Arguments that are wrong in themselves: errors name the operation, the path, what was given, a way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import intarsia as it
from intarsia.datasets.pyarrow import PyarrowDatasetIO, merge_parquet_dataset_pyarrow
from intarsia.errors import (
    ColumnNotFound,
    InputError,
    IntarsiaError,
    KeyColumnError,
    NothingMatched,
    PartitionColumnNotFound,
    SchemaMismatch,
)
from intarsia.tables.parquet import ParquetTable

IO = PyarrowDatasetIO()
ROWS = pa.table({"id": [1, 2, 3], "price": [1.0, 2.0, 3.0], "p": [{"amt": 1}] * 3, "day": ["a", "b", "c"]})
NEW = pa.table({"id": [2, 9], "price": [5.0, 6.0], "p": [{"amt": 1}] * 2, "day": ["b", "c"]})

CASES: dict[str, tuple[type[IntarsiaError], Any, tuple[str, ...]]] = {
    "key that is misspelt": (
        KeyColumnError,
        lambda r: it.merge(NEW, r, on="idd"),
        ("upsert: key column 'idd'", "did you mean 'id'?"),
    ),
    "key in the source that is misspelt": (
        KeyColumnError,
        lambda r: it.merge(NEW.rename_columns(["idd", "price", "p", "day"]), r, on="id"),
        ("source", "did you mean 'idd'?"),
    ),
    "column in the source of another case": (
        SchemaMismatch,
        lambda r: it.merge(NEW.rename_columns(["Id", "price", "p", "day"]), r, on="id"),
        ("upsert", "'Id'", "rename columns of the source to the target's spelling"),
    ),
    "keys in one text": (
        KeyColumnError,
        lambda r: IO.merge(NEW, r, strategy="upsert", key_columns="id,day"),
        ("upsert: key column 'id,day'", "as a list: ['id', 'day']"),
    ),
    "keys as a set": (
        KeyColumnError,
        lambda r: it.merge(NEW, r, on={"id"}),
        ("merge: the key columns", "a list of names, not {'id'}"),
    ),
    "keys as a set, dataset names": (
        KeyColumnError,
        lambda r: IO.merge(NEW, r, "upsert", {"id"}),
        ("merge: the key columns", "a list of names, not {'id'}"),
    ),
    "keys as a generator": (
        KeyColumnError,
        lambda r: merge_parquet_dataset_pyarrow(NEW, r, (name for name in ["id"]), "upsert"),
        ("merge: the key columns", "a list of names, not <generator"),
    ),
    "no key": (
        KeyColumnError,
        lambda r: it.merge(NEW, r, on=[]),
        ("merge: at least one key column", "not []"),
    ),
    "columns as a set": (InputError, lambda r: it.optimize(r, by={"id"}), ("optimize: by", "not {'id'}")),
    "column of where": (
        ColumnNotFound,
        lambda r: it.delete(r, "prise > 3"),
        ("delete: there is no column 'prise'", "did you mean 'price'?"),
    ),
    "column of where, in an update": (
        ColumnNotFound,
        lambda r: it.update(r, {"price": "3"}, "prise > 3"),
        ("update: there is no column 'prise'", "did you mean 'price'?"),
    ),
    "column of a value": (
        ColumnNotFound,
        lambda r: it.update(r, {"price": "prise + 1"}),
        ("update: there is no column 'prise'", "did you mean 'price'?"),
    ),
    "column to set": (
        ColumnNotFound,
        lambda r: it.update(r, {"prise": "1"}),
        ("update: column 'prise'", "did you mean 'price'?"),
    ),
    "field to set": (
        ColumnNotFound,
        lambda r: it.update(r, {"p.amnt": "1"}),
        ("update: column 'p.amnt'", "did you mean 'p.amt'?"),
    ),
    "column of a clause": (
        ColumnNotFound,
        lambda r: it.merge(NEW, r, on="id", clauses=[it.when_not_matched().insert({"idd": "1"})]),
        ("merge: column 'idd'", "did you mean 'id'?"),
    ),
    "assignment as text": (
        InputError,
        lambda r: it.update(r, "price = 3"),  # type: ignore[arg-type]
        ("update: assignments must be a dict", "not 'price = 3'", 'such as {"price"'),
    ),
    "assignment to a number": (
        InputError,
        lambda r: it.update(r, {3: "3"}),  # type: ignore[dict-item]
        ("update: assignments must be a dict", "{3: '3'}"),
    ),
    "partition filter as a dict": (
        InputError,
        lambda r: it.compact(r, partition_filter={"day": "a"}),
        ("compact: partition_filter {'day': 'a'}", '"column=value"'),
    ),
    "column of a partition filter": (
        PartitionColumnNotFound,
        lambda r: it.compact(r, partition_filter="dya=a"),
        ("compact: No matching Parquet files", "no partition column 'dya'", "did you mean 'day'?"),
    ),
    "column of one partition filter of several": (
        PartitionColumnNotFound,
        lambda r: it.optimize(r, by="id", partition_filter=["day=a", "price=3"]),
        ("optimize: ", "no partition column 'price'", "there is 'day'."),
    ),
    "source and target swapped": (
        InputError,
        lambda r: it.merge(r, NEW, on="id"),
        ("merge: the target must be a path", "not Table", "the source comes first, then the target"),
    ),
    "rows and target of a write swapped": (
        InputError,
        lambda r: it.write(ParquetTable(r), NEW),
        ("write: the target must be a path", "not Table", "the source comes first, then the target"),
    ),
    "value as where": (
        InputError,
        lambda r: it.delete(r, "price + 1"),
        ("delete: 'price + 1' is a value, not a condition", "compare it"),
    ),
    "expression that is no condition": (
        SchemaMismatch,
        lambda r: it.delete(r, pc.add(pc.field("price"), 1)),
        ("delete: ", "is a value, not a condition", "compare it"),
    ),
    "tuples as where": (
        InputError,
        lambda r: it.delete(r, [("price", ">", 1)]),
        ("delete: a predicate is SQL text", "[('price', '>', 1)]"),
    ),
    "source that is not there": (
        NothingMatched,
        lambda r: it.merge(str(r / "none.parquet"), r, on="id"),
        ("upsert: no source: There is no file or directory", "none.parquet", "a path, URL or glob"),
    ),
    "option": (
        InputError,
        lambda r: it.merge(NEW, r, on="id", kompression="zstd"),
        ("merge: there is no option 'kompression'", "did you mean compression?"),
    ),
    "filter of no kind": (
        InputError,
        lambda r: IO.read_parquet(r, filters=True),
        ("read_parquet: filters must be SQL text", "not True"),
    ),
    "column of a filter": (
        ColumnNotFound,
        lambda r: IO.read_parquet(r, filters=[("prise", ">", 1)]),
        ("read_parquet: the filter names column 'prise'", "did you mean 'price'?"),
    ),
    "column to read": (
        ColumnNotFound,
        lambda r: IO.read_parquet(r, columns=["ID"]),
        ("read_parquet: column 'ID'", "did you mean 'id'?"),
    ),
}
WITHOUT_ADVICE: dict[str, tuple[Any, tuple[str, ...]]] = {
    "dry_run": (
        lambda r: it.merge(NEW, r, on="id", dry_run="yes"),  # type: ignore[arg-type]
        ("merge: dry_run must be one of True, False", "'yes'"),
    ),
    "dry_run of a delete": (
        lambda r: it.delete(r, "true", dry_run="no"),  # type: ignore[arg-type]
        ("delete: dry_run", "'no'"),
    ),
    "single_writer": (
        lambda r: it.delete(r, "true", single_writer="yes"),
        ("delete: single_writer", "'yes'"),
    ),
    "progress": (lambda r: it.compact(r, progress="yes"), ("compact: progress", "called", "'yes'")),
    "lock": (lambda r: it.compact(r, lock=3), ("compact: lock", "called", "3")),
    "properties": (lambda r: it.compact(r, properties="x"), ("compact: properties must be a dict", "'x'")),
    "properties of numbers": (
        lambda r: it.compact(r, properties={"a": 1}),
        ("compact: properties must be a dict of texts", "{'a': 1}"),
    ),
    "storage options": (lambda r: it.compact(r, storage_options=3), ("compact: storage_options", "3")),
    "batch_rows of a reader": (lambda r: IO.read_parquet(r, batch_rows=0), ("read_parquet: batch_rows", "0")),
}


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    it.write(ROWS, tmp_path / "orders", partition_by="day")
    return tmp_path / "orders"


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_argument_is_named_with_the_operation_the_path_and_a_way_out(
    orders: Path, case: str, refused: Any
) -> None:
    kind, call, words = CASES[case]
    refused(orders, kind, lambda: call(orders), *words)


@pytest.mark.parametrize("case", WITHOUT_ADVICE)
def test_an_option_of_another_kind_is_named_with_what_it_may_be(
    orders: Path, case: str, refused: Any
) -> None:
    call, words = WITHOUT_ADVICE[case]
    refused(orders, InputError, lambda: call(orders), *words, advice=False)


def test_a_set_of_two_thousand_columns_is_not_listed_in_full(tmp_path: Path) -> None:
    it.write(pa.table({f"c{number}": [1] for number in range(2000)}), tmp_path / "wide")
    with pytest.raises(ColumnNotFound, match="and 1,988 more") as found:
        it.optimize(tmp_path / "wide", by="zzzz")
    assert len(str(found.value)) < 500
