"""Whatever a pipeline does, the numbers of each step in a dry run are those of the run that follows."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest

import intarsia as it
from intarsia import pipeline
from intarsia.tables.iceberg.catalog import embedded_catalog

REGIONS = ["eu", "us", "ap"]
HEAD = """
name = "numbers"
engine = "{engine}"

[sources.landing]
path = "landing/*.csv"
columns = {{ id = "bigint", region = "varchar", amount = "double", note = "varchar" }}

[sources.first]
path = "first/*.csv"
columns = {{ id = "bigint", region = "varchar", amount = "double", note = "varchar" }}

[sources.back]
target = "orders"
where = "amount > 20"

[sources.sums]
{sums}

[targets.orders]
{orders}

[targets.summary]
path = "lake/summary"

[targets.copy]
path = "lake/copy"
partition_by = "region"
"""
SUMS = {
    "arrow": 'python = "sums.py:sums"',
    "duckdb": (
        "sql = 'select region, count(*) as orders, sum(cast(amount * 100 as bigint)) as cents from orders"
        " group by 1 order by 1'"
    ),
}
FUNCTION = """
def sums(orders):
    return orders.group_by("region").aggregate([("id", "sum"), ("amount", "max")]).sort_by("region")
"""
ORDERS = {
    "flat": 'path = "lake/orders"',
    "parts": 'path = "lake/orders"\npartition_by = "region"',
    "v2-mor": 'path = "shop.orders"\nkind = "iceberg"\ncatalog = "./warehouse"\n'
    'options = { mode = "merge-on-read" }',
    "v2-cow": 'path = "shop.orders"\nkind = "iceberg"\ncatalog = "./warehouse"',
    "v3-mor": 'path = "shop.orders"\nkind = "iceberg"\ncatalog = "./warehouse"\n'
    'options = { mode = "merge-on-read" }',
}
MERGE = {"operation": "merge", "source": "landing", "target": "orders", "on": ["id", "region"]}
DELETE = {"operation": "delete", "target": "orders"}
UPDATE = {"operation": "update", "target": "orders"}
APPEND = {"operation": "write", "source": "landing", "target": "orders"}
CLAUSES = [
    "when matched and source.amount < 0 then delete",
    "when matched then update set amount = target.amount + source.amount",
    "when not matched and source.id % 3 > 0 then insert *",
]
PIPELINES: dict[str, list[dict[str, Any]]] = {
    "upkeep": [
        MERGE,
        {**DELETE, "where": "amount < 10"},
        {"operation": "compact", "target": "orders", "target_rows_per_file": 900},
        {"operation": "expect", "target": "orders", "not_null": "id", "holds": "amount >= 10"},
    ],
    "clauses": [
        {**MERGE, "when": CLAUSES},
        {**UPDATE, "set": {"note": "note || '!'"}, "where": "amount > 50"},
        {**UPDATE, "set": {"amount": "amount + 1"}, "where": "region = 'eu'"},
        {"operation": "optimize", "target": "orders", "by": ["amount", "id"], "target_rows_per_file": 800},
        {**MERGE, "name": "again", "when": CLAUSES},
    ],
    "duplicates": [
        APPEND,
        {**APPEND, "name": "twice"},
        {"operation": "deduplicate", "target": "orders", "on": ["id", "region"]},
        {"operation": "optimize", "target": "orders", "by": "note"},
        {**DELETE, "where": "region = 'us'"},
        {"operation": "deduplicate", "target": "orders", "on": "note"},
    ],
    "emptied": [
        {**DELETE, "where": "true"},
        {**APPEND, "name": "filled", "options": {"max_rows_per_file": 170}},
        {"operation": "compact", "target": "orders"},
        {**MERGE, "name": "anew", "strategy": "update"},
    ],
    "derived": [
        MERGE,
        {"name": "sums", "operation": "merge", "source": "sums", "target": "summary", "on": "region"},
        {**DELETE, "where": "amount < 30"},
        {"name": "copy", "operation": "merge", "source": "back", "target": "copy", "on": ["id", "region"]},
        {"name": "sums again", "operation": "write", "mode": "overwrite", "source": "sums"}
        | {"target": "summary"},
        {"operation": "update", "target": "copy", "set": {"amount": "0"}, "where": "id % 2 = 0"},
        {"operation": "compact", "target": "copy"},
    ],
}


def _land(root: Path, place: str, name: str, first: int, rows: int) -> None:
    chosen = random.Random(first)
    table = {
        "id": list(range(first, first + rows)),
        "region": [chosen.choice(REGIONS) for _ in range(rows)],
        "amount": [chosen.randrange(-2000, 10_000) / 100 for _ in range(rows)],
        "note": [f"note {chosen.randrange(500)}" for _ in range(rows)],
    }
    (root / place).mkdir(exist_ok=True)
    pacsv.write_csv(pa.table(table), root / place / name)


def _create_table(root: Path, kind: str) -> None:
    catalog = embedded_catalog(root / "warehouse")
    catalog.create_namespace("shop")
    schema = pa.schema(
        [("id", pa.int64()), ("region", pa.string()), ("amount", pa.float64()), ("note", pa.string())]
    )
    properties = {
        "format-version": kind[1],
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "1",
    }
    table = catalog.create_table("shop.orders", schema, properties=properties)
    rows = {"id": [1, 2], "region": ["eu", "us"], "amount": [1.0, 2.0], "note": ["a", "b"]}
    it.write(pa.table(rows), it.iceberg("shop.orders", catalog=catalog))
    table.refresh()
    with table.update_spec() as update:
        update.add_identity("region")


def _declare(root: Path, engine: str, kind: str, steps: list[dict[str, Any]]) -> pipeline.Pipeline:
    sums = SUMS["arrow" if engine == "arrow" else "duckdb"]
    (root / "sums.py").write_text(FUNCTION, encoding="utf-8")
    text = HEAD.format(engine=engine, sums=sums, orders=ORDERS[kind])
    for step in steps:
        text += "\n[[steps]]\n" + "".join(f"{key} = {_quote(value)}\n" for key, value in step.items())
    (root / "numbers.toml").write_text(text, encoding="utf-8")
    return pipeline.load(root / "numbers.toml")


def _quote(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_quote(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_quote, value)) + "]"
    return str(value) if isinstance(value, int) else f'"{value}"'


def _numbers(report: pipeline.PipelineReport) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for step in report.steps:
        result = step.result
        said = {"files": step.files_written, "bytes": step.bytes_written, "input": step.input_files}
        said |= {"notes": step.notes, "status": "done" if step.status == "planned" else step.status}
        said["checks"] = [(check.expectation, check.failing) for check in step.checks]
        if result is not None:
            said |= dict(result)
            said |= {"new": result.new_files, "exact": (result.new_files_exact, result.bytes_exact)}
            for name in ("rewritten", "removed", "preserved"):
                said[name] = len(getattr(result, f"{name}_files"))
            said["with deletes"] = len(result.files_with_deletes)
        found[step.name] = said
    return found


@pytest.fixture
def scratch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory of dry runs."""
    found = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(found))
    return found


def _list_files(scratch: Path) -> list[str]:
    return [name for _, _, names in os.walk(scratch) for name in names]


EVERYTHING = os.environ.get("INTARSIA_TESTS") == "all"
CASES = [
    (engine, kind, name)
    for engine in ("arrow", "duckdb")
    for kind in ORDERS
    for name in PIPELINES
    if engine == "arrow" or kind in ("parts", "v2-mor") or EVERYTHING
]


@pytest.mark.parametrize(("engine", "kind", "name"), CASES)
def test_each_step_of_a_dry_run_says_what_the_run_does(
    tmp_path: Path, scratch: Path, tree_digest: Callable[..., Any], engine: str, kind: str, name: str
) -> None:
    _check(tmp_path, scratch, tree_digest, engine, kind, name)


SPARK_CASES = [("parts", "clauses"), ("v2-mor", "derived")]
if EVERYTHING:
    SPARK_CASES = [(kind, name) for kind in ORDERS for name in PIPELINES]


@pytest.mark.spark
@pytest.mark.more  # in process above; tests/spark compares single dry runs
@pytest.mark.parametrize(("kind", "name"), SPARK_CASES)
def test_each_step_of_a_dry_run_on_spark_says_what_the_run_does(
    tmp_path: Path, scratch: Path, tree_digest: Callable[..., Any], spark: Any, kind: str, name: str
) -> None:
    _check(tmp_path, scratch, tree_digest, "spark", kind, name, session=spark)


def _check(
    root: Path,
    scratch: Path,
    tree_digest: Callable[..., Any],
    engine: str,
    kind: str,
    name: str,
    **options: Any,
) -> None:
    steps = PIPELINES[name]
    if kind.startswith("v"):
        _create_table(root, kind)
    _land(root, "first", "a.csv", 0, 1500)
    first = _declare(root, "arrow", kind, [{**APPEND, "source": "first"}])
    pipeline.run(first, progress=False).check()
    declared = _declare(root, engine, kind, steps)
    for file, start in (("b.csv", 1000), ("c.csv", 2100)):
        _land(root, "landing", file, start, 700)
        before = tree_digest(root)
        planned = pipeline.run(declared, dry_run=True, progress=False, **options).check()
        assert tree_digest(root) == before
        assert not _list_files(scratch)
        done = pipeline.run(declared, progress=False, **options).check()
        assert _numbers(planned) == _numbers(done)
        assert {step.status for step in done.steps if step.source is not None} == {"done"}
        assert all(step.result.dry_run for step in planned.steps if step.result is not None)


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["parts", "v2-cow"] if EVERYTHING else ["v2-cow"])
def test_where_executors_are_elsewhere_a_dry_run_writes_beside_the_target(
    tmp_path: Path,
    scratch: Path,
    tree_digest: Callable[..., Any],
    spark: Any,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a cluster: a temporary directory of this machine is no place for executors."""
    monkeypatch.setattr("intarsia.engines.spark.source._is_local", lambda _: False)
    seen: list[str] = []

    def look(_: Any) -> None:
        written = [*tmp_path.rglob("*.part"), *tmp_path.rglob("*.parquet")]
        seen.extend(str(path) for path in written if "/spools/" in str(path))

    _check(tmp_path, scratch, tree_digest, "spark", kind, "upkeep", session=spark, on_step=look)
    expected = f"{tmp_path}/lake/.orders.intarsia/spools/" if kind == "parts" else "/orders/.intarsia/spools/"
    assert seen
    assert all(expected in path for path in seen)
