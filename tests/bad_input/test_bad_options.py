"""Cases 90 to 92 of the bad-input catalogue: options that make no sense, and sources that fail or change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import intarsia as it
from intarsia import engine_choice
from intarsia.datasets.pyarrow import PyarrowDatasetIO
from intarsia.engines.arrow import ArrowEngine
from intarsia.errors import ColumnNotFound, InputError, IntarsiaError, NotSupported, SchemaMismatch
from tests.bad_input.trial import BASE, MERGES, SCHEMA, SOURCE, STRATEGIES, files_of, write_aside

WRONG: dict[str, tuple[Any, tuple[str, ...]]] = {
    "strategy": (lambda r: it.merge(SOURCE, r, on="id", strategy="replace"), ("replace", *STRATEGIES)),
    "no strategy": (lambda r: it.merge(SOURCE, r, on="id", strategy=""), STRATEGIES),
    "strategy of another type": (lambda r: it.merge(SOURCE, r, on="id", strategy=7), STRATEGIES),
    "mode": (lambda r: it.write(SOURCE, r, mode="replace"), ("mode", "'append'", "'overwrite'", "'replace'")),
    "curve": (lambda r: it.optimize(r, by="n", curve="peano"), ("curve", "'zorder'", "'hilbert'", "'peano'")),
    "nothing to order by": (lambda r: it.optimize(r), ("by=",)),
    "target size zero": (
        lambda r: it.compact(r, target_mb_per_file=0),
        ("target_mb_per_file", "greater than zero"),
    ),
    "target size below": (lambda r: it.compact(r, target_mb_per_file=-1), ("target_mb_per_file",)),
    "target rows zero": (lambda r: it.compact(r, target_rows_per_file=0), ("target_rows_per_file",)),
    "target rows below": (
        lambda r: it.optimize(r, by="n", target_rows_per_file=-5),
        ("target_rows_per_file",),
    ),
    "target size without end": (
        lambda r: it.compact(r, target_mb_per_file=float("inf")),
        ("target_mb_per_file",),
    ),
    "target size nan": (lambda r: it.compact(r, target_mb_per_file=float("nan")), ("target_mb_per_file",)),
    "target rows text": (
        lambda r: it.compact(r, target_rows_per_file="many"),
        ("target_rows_per_file", "'many'"),
    ),
    "null_keys": (
        lambda r: it.merge(SOURCE, r, on="id", null_keys="skip"),
        ("null_keys", "'match'", "'skip'"),
    ),
    "missing": (lambda r: it.merge(SOURCE, r, on="id", missing="zero"), ("missing", "'null'", "'zero'")),
    "evolution": (
        lambda r: it.merge(SOURCE, r, on="id", schema_evolution="all"),
        ("schema_evolution", "'all'"),
    ),
    "order without deduplicate": (
        lambda r: it.merge(SOURCE, r, on="id", dedup_order_by="n"),
        ("dedup_order_by",),
    ),
    "unknown option": (lambda r: it.merge(SOURCE, r, on="id", overwrite=True), ("overwrite", "options are")),
    "engine": (lambda r: it.merge(SOURCE, r, on="id", engine="pandas"), ("engine", "'pandas'")),
    "codec": (lambda r: it.write(SOURCE, r, compression="rar"), ("compression", "'rar'", "zstd")),
    "row group": (lambda r: it.write(SOURCE, r, row_group_size=0), ("row_group_size", "0")),
    "rows per file": (lambda r: it.write(SOURCE, r, max_rows_per_file=-1), ("max_rows_per_file", "-1")),
    "batch rows": (lambda r: it.merge(SOURCE, r, on="id", batch_rows=1.5), ("batch_rows", "1.5")),
    "retain": (lambda r: it.merge(SOURCE, r, on="id", retain=-1), ("retain", "-1")),
    "no predicate": (lambda r: it.delete(r, None), ("predicate", "true")),
    "predicate of another type": (lambda r: it.delete(r, 7), ("predicate", "int")),
    "value as predicate": (lambda r: it.delete(r, "1 + 1"), ("condition",)),
    "no assignment": (lambda r: it.update(r, {}), ("assignment",)),
    "assigned twice": (lambda r: it.update(r, {"n": "1", '"n"': "2"}), ("n", "both")),
    "no clause": (lambda r: it.merge(SOURCE, r, on="id", clauses=[]), ("clauses", "when_matched")),
    "clause without action": (
        lambda r: it.merge(SOURCE, r, on="id", clauses=[it.when_matched()]),
        ("clauses",),
    ),
    "no equality": (lambda r: it.merge(SOURCE, r, on="target.id >= source.id"), ("equality",)),
    "source of no kind": (lambda r: it.merge(7, r, on="id"), ("source", "int")),
    "no source": (lambda r: it.merge(None, r, on="id"), ("source", "NoneType")),
    "source without columns": (lambda r: it.merge(pa.table({}), r, on="id"), ("no columns",)),
    "empty list": (lambda r: it.merge([], r, on="id"), ("empty list",)),
    "target of no kind": (lambda r: it.merge(SOURCE, 7, on="id"), ("target", "int")),
    "empty target": (lambda r: it.merge(SOURCE, "", on="id"), ("target", "''")),
    "target with a NUL": (lambda r: it.merge(SOURCE, "a\0b", on="id"), ("target",)),
    "other partitions": (lambda r: it.write(SOURCE, r, partition_by="name"), ("'name'", "nothing")),
    "partitions of none": (lambda r: it.write(SOURCE, r, mode="overwrite_partitions"), ("partition_by=",)),
    "threads": (lambda r: it.merge(SOURCE, r, on="id", threads=-1), ("threads", "-1")),
    "threads of words": (lambda r: it.merge(SOURCE, r, on="id", threads="all"), ("threads", "'all'")),
    "memory": (lambda r: it.optimize(r, by="n", memory_bytes="1 GB"), ("memory_bytes", "'1 GB'")),
    "spool": (lambda r: it.merge(SOURCE, r, on="id", spool_bytes=-1), ("spool_bytes", "-1")),
    "time to wait": (lambda r: it.merge(SOURCE, r, on="id", lock_timeout="long"), ("lock_timeout", "'long'")),
    "order by a number": (lambda r: it.optimize(r, by=7), ("name", "7")),
    "partition by a number": (lambda r: it.write(SOURCE, r, partition_by=[7]), ("name", "7")),
    "filter of numbers": (lambda r: it.compact(r, partition_filter=[7]), ("partition_filter", "7")),
    "filter that is a number": (lambda r: it.compact(r, partition_filter=7), ("partition_filter", "7")),
    "list of assignments": (lambda r: it.update(r, ["n"]), ("assignment",)),
    "operation to plan": (lambda r: it.plan("vacuum", r), ("'vacuum'", "merge", "compact")),
    "half a batch": (lambda r: it.merge(SOURCE, r, on="id", app_id="x"), ("app_id", "batch_id")),
    "batch of words": (
        lambda r: it.merge(SOURCE, r, on="id", app_id="x", batch_id="y"),
        ("app_id", "batch_id"),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_case_90_option_that_makes_no_sense(root: Path, name: str, refused: Any) -> None:
    call, words = WRONG[name]
    refused(root, InputError, lambda: call(root), *words, where=None, advice=False)


def test_case_90_predicate_of_pyarrow_that_is_none(root: Path, refused: Any) -> None:
    for predicate, kind in (
        (pc.field("n") + 1, SchemaMismatch),
        (pc.field("n") == "x", SchemaMismatch),
        (pc.field("code") == 1, ColumnNotFound),
    ):
        refused(root, kind, lambda p=predicate: it.delete(root, p), "predicate", where=None, advice=False)


UNWRITABLE = {
    "interval": pa.array([pa.MonthDayNano([1, 2, 3])]),
    "union": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
    "struct of nothing": pa.array([{}], pa.struct([])),
}


@pytest.mark.parametrize("kind", UNWRITABLE)
def test_case_90_type_that_parquet_does_not_have(root: Path, kind: str, each_refused: Any) -> None:
    new = root.parent / "new"
    source = pa.table({"id": [9], "name": ["x"], "n": [1], "odd": UNWRITABLE[kind]})
    calls = {
        "new": lambda _: it.write(source, new),
        "merge": lambda root: it.merge(source, root, on="id", schema_evolution="add"),
        "append": lambda root: it.write(source, root, schema_evolution="add"),
    }
    each_refused(root, calls, NotSupported, "Parquet", "cast it", where=None)
    assert not new.exists()


def test_case_90_engines_that_are_not_here_say_so(
    root: Path, refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_choice, "find_spec", lambda name: None)
    call = lambda: it.merge(SOURCE, root, on="id", engine="duckdb")  # noqa: E731
    refused(root, NotSupported, call, "duckdb", "pip install", 'engine="arrow"', where=None)


IO_WRONG: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "full_merge": (
        {"strategy": "full_merge", "key_columns": "id", "rewrite_mode": "incremental"},
        ("full_merge",),
    ),
    "rewrite_mode": (
        {"strategy": "upsert", "key_columns": "id", "rewrite_mode": "partly"},
        ("rewrite_mode",),
    ),
    "append": ({"strategy": "upsert", "mode": "append"}, ("append", "not supported", "upsert")),
    **{s: ({"strategy": s}, ("key_columns", s)) for s in ("upsert", "update", "full_merge", "deduplicate")},
}


@pytest.mark.parametrize("name", IO_WRONG)
def test_case_90_modes_that_contradict_each_other(root: Path, name: str, unchanged: Any) -> None:
    options, words = IO_WRONG[name]
    with unchanged(root), pytest.raises(InputError) as caught:
        PyarrowDatasetIO().write_parquet_dataset(SOURCE, str(root), **options)
    assert all(word in str(caught.value) for word in words), caught.value


def breaking(kind: type[BaseException]) -> Iterator[pa.RecordBatch]:
    yield from SOURCE.slice(0, 2).to_batches()
    raise kind("the other side hung up")


@pytest.mark.parametrize(
    "kind", [OSError, ValueError, RuntimeError, MemoryError, KeyboardInterrupt, pa.ArrowInvalid]
)
@pytest.mark.parametrize("reader", [False, True], ids=["generator", "reader"])
def test_case_91_source_that_raises_half_way(
    root: Path, kind: type[BaseException], reader: bool, unchanged: Any, tmp_path: Path
) -> None:
    def source() -> Any:
        batches = breaking(kind)
        return pa.RecordBatchReader.from_batches(SCHEMA, batches) if reader else batches

    calls = [
        *(lambda s=s: it.merge(source(), root, on="id", strategy=s) for s in MERGES),
        lambda: it.write(source(), root),
        lambda: it.write(source(), root, mode="overwrite"),
        lambda: it.write(source(), tmp_path / "new"),
        lambda: it.merge(source(), root, on="id", spool_bytes=1),
    ]
    for call in calls:
        with unchanged(root), pytest.raises((kind, IntarsiaError)):
            call()
    assert not (tmp_path / "new").exists()
    assert not (root.parent / f".{root.name}.intarsia").exists()


def test_case_92_source_that_can_be_read_once(root: Path, rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def once() -> Iterator[pa.RecordBatch]:
        asked.append(1)
        yield from SOURCE.to_batches()

    stage, attempts = ArrowEngine.stage, iter(range(9))

    def staged(self: ArrowEngine, *arguments: Any) -> Any:
        change = stage(self, *arguments)
        if next(attempts) < 2:  # two conflicts, so the merge is planned three times
            write_aside(files_of(root)[0], BASE.slice(0, 3))
        return change

    monkeypatch.setattr(ArrowEngine, "stage", staged)
    result = it.merge(once(), root, on="id")
    assert (result.attempts, result.updated, result.inserted) == (3, 2, 1)
    assert asked == [1]
    assert [row["id"] for row in rows(root)] == [1, 2, 3, 4, 5, 6, 7]


def test_case_92_source_that_says_something_else_each_time(root: Path, rows: Any) -> None:
    class Fickle:
        schema = SCHEMA
        calls = 0

        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            Fickle.calls += 1
            table = pa.table({"id": [100 * Fickle.calls], "name": ["x"], "n": [1]}, schema=SCHEMA)
            return table.__arrow_c_stream__(requested_schema)

    result = it.merge(Fickle(), root, on="id")
    assert (Fickle.calls, result.inserted, result.source_count) == (1, 1, 1)
    assert [row["id"] for row in rows(root)][-1] == 100


def test_case_92_the_target_as_its_own_source(root: Path, rows: Any) -> None:
    before = rows(root)
    assert it.merge(root, root, on="id", strategy="full_merge").updated == 6
    assert rows(root) == before
    assert it.write(root, root, mode="overwrite").total == 6
    assert rows(root) == before


def test_predicates_of_pyarrow_are_taken_too(root: Path) -> None:
    assert it.plan("delete", root, pc.field("id") == 2).deleted == 1
