"""Every operation on Iceberg tables by executors: the rows and counts of the in-process engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import intarsia as it
from tests.spark.iceberg_twins import Twin, Twins, evolved, rows

FULL = os.environ.get("INTARSIA_SPARK") == "full"
COPY, VEIL = "copy-on-write", "merge-on-read"

SOURCE = rows([*range(100, 130), *range(230, 260)], v=1000.0, name="new")
MOVED = rows([*range(50, 80), *range(150, 160)], v=1000.0, name="moved", shift=1)
TWICE = pa.concat_tables([SOURCE, rows(range(110, 120), v=5000.0, name="again")])

CLAUSES = """
when matched and source.v < 1105 then delete
when matched and target.id % 2 = 0 then update set v = target.v + source.v, name = 'both'
when matched then update set *
when not matched and source.id % 3 = 0 then insert (id, region, v) values (source.id, 'eu', -1)
when not matched then insert *
when not matched by source and target.id < 20 then delete
when not matched by source and target.id = 25 then update set name = upper(name)
"""

Operation = Callable[[Any, Any, Any], it.MergeResult]


def merging(source: pa.Table, **options: Any) -> tuple[pa.Table, Operation]:
    return source, lambda given, target, engine: it.merge(given, target, engine=engine, on="id", **options)


def writing(source: pa.Table, mode: str) -> tuple[pa.Table, Operation]:
    return source, lambda given, target, engine: it.write(given, target, mode=mode, engine=engine)


MERGES = {
    "upsert": merging(SOURCE),
    "insert": merging(SOURCE, strategy="insert"),
    "update": merging(SOURCE, strategy="update"),
    "full merge": merging(SOURCE, strategy="full_merge"),
    "deduplicate": merging(TWICE, strategy="deduplicate", dedup_order_by="v"),
    "rows move": merging(MOVED),
    "clauses": merging(SOURCE, clauses=CLAUSES),
    "condition": (
        SOURCE,
        lambda given, target, engine: it.merge(
            given, target, on="target.id = source.id and target.v < 115", engine=engine, clauses="""
            when matched then update set v = source.v
            when not matched and source.id > 250 then insert *""",
        ),
    ),
}  # fmt: skip
WRITES = {
    "append": writing(SOURCE, "append"),
    "overwrite": writing(SOURCE, "overwrite"),
    "partitions": writing(SOURCE, "overwrite_partitions"),
}
OTHERS: dict[str, tuple[None, Operation]] = {
    "delete": (None, lambda _, t, e: it.delete(t, "v > 90 and name != 'old 150'", engine=e)),
    "delete all": (None, lambda _, t, e: it.delete(t, engine=e)),
    "update rows": (
        None,
        lambda _, t, e: it.update(t, {"v": "v * 2", "region": "'us'"}, "id between 55 and 125", engine=e),
    ),
    "compact": (None, lambda _, t, e: it.compact(t, engine=e)),
    "optimize": (None, lambda _, t, e: it.optimize(t, by=["ts", "v"], engine=e)),
    "sort out": (None, lambda _, t, e: it.optimize(t, by=["v"], deduplicate_on=["region", "ts"], engine=e)),
    "drop duplicates": (
        None,
        lambda _, t, e: it.deduplicate(t, on=["region", "ts"], order_by=["v"], engine=e),
    ),
}
OPERATIONS: dict[str, tuple[pa.Table | None, Operation]] = {**MERGES, **WRITES, **OTHERS}


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    return Twins(tmp_path_factory.mktemp("twins"))


def compared(result: it.MergeResult, again: it.MergeResult, pair: tuple[Twin, Twin]) -> None:
    """The same counts, the same files that go, the same rows."""
    assert dict(again) == dict(result)
    for name in ("source_count", "target_count_before", "target_count_after", "operation", "strategy"):
        assert getattr(again, name) == getattr(result, name), name
    for name in ("rewritten_files", "removed_files", "preserved_files"):
        assert len(getattr(again, name)) == len(getattr(result, name)), name
    assert pair[1].rows() == pair[0].rows()


def run_both(pair: tuple[Twin, Twin], spark: Any, name: str, given: Any = None) -> None:
    source, operation = OPERATIONS[name]
    arrow, other = pair
    expected = operation(source, arrow.target, "arrow")
    before = other.data_files()
    compared(expected, operation(source if given is None else given, other.target, spark), pair)
    assert other.strangers(before) == set()


@pytest.mark.parametrize("mode", [COPY, VEIL])
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_an_evolved_table_of_version_2(spark: Any, twins: Twins, name: str, mode: str) -> None:
    run_both(twins(evolved, 2, mode), spark, name)
