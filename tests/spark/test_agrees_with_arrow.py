"""Random merges, deletes and updates: Spark and the in-process engine agree row for row, error for error."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import intarsia as it
from intarsia.core.rule import STRATEGIES
from intarsia.engines.spark import route
from tests.property import model
from tests.property.test_operations_agree_with_model import KINDS, Case, read, rows_of, written

NATIVE = [
    kind for kind in KINDS if kind.name not in ("uint64", "time64", "duration", "dictionary", "large_string")
]
"""What a DataFrame can hold as it is."""

few = settings(
    max_examples=200 if os.environ.get("INTARSIA_HYPOTHESIS") == "full" else 8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@st.composite
def cases(draw: st.DrawFn, kinds: list[Any]) -> Case:
    keys = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=2))
    return Case(tuple(keys), partitioned=draw(st.booleans()), copies_chunks=draw(st.booleans()))


@st.composite
def sources(draw: st.DrawFn, case: Case) -> list[model.Row]:
    """Mostly fine; sometimes with a key twice, a key that is NULL, or one that would move."""
    rows = draw(rows_of(case, unique=True))
    match draw(st.sampled_from(["fine", "fine", "fine", "twice", "null", "moved"])):
        case "twice" if rows:
            rows = [*rows, {**rows[0], "v": 7}]
        case "null" if rows:
            rows = [*rows, {**rows[0], "k0": None}]
        case "moved" if rows and case.partitioned:
            rows = [{**rows[0], "part": "c"}, *rows[1:]]
    for number, row in enumerate(rows):
        row["v"] = number  # an order without ties
    return rows


@pytest.fixture(scope="session")
def roots(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two places for the same dataset; each example begins by emptying them."""
    base = tmp_path_factory.mktemp("agree")
    return base / "arrow" / "t", base / "spark" / "t"


def made(roots: tuple[Path, Path], case: Case, files: list[list[model.Row]]) -> None:
    for root in roots:
        shutil.rmtree(root.parent, ignore_errors=True)
        root.parent.mkdir(parents=True)
        written(root, case, files)


def outcome(call: Callable[[], it.MergeResult], root: Path, case: Case) -> Any:
    """Counts and which files were touched, or the error; and the rows that are there then."""
    told: Any
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            result = call()
    except it.IntarsiaError as error:
        told = (type(error), str(error).replace(str(root), "ROOT"))
    else:
        touched = sorted(result.rewritten_files), sorted(result.removed_files)
        told = (
            dict(result),
            result.source_count,
            [[str(Path(p).relative_to(root)) for p in t] for t in touched],
        )
    return told, model.bag(read(root, case) if root.exists() else [])


def merge_of(data: st.DataObject, case: Case, empty: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"on": case.keys, "strategy": data.draw(st.sampled_from(sorted(STRATEGIES)))}
    if options["strategy"] == "deduplicate":
        options["dedup_order_by"] = "v"
    if data.draw(st.booleans()):
        options["null_keys"] = "match"
    if case.partitioned and empty:
        options["partition_by"] = "part"
    return options


@given(st.data())
@few
def test_merges_of_arrow_tables_agree(spark: Any, roots: tuple[Path, Path], data: st.DataObject) -> None:
    case = data.draw(cases(KINDS))
    files = data.draw(st.lists(rows_of(case, unique=False), max_size=3))
    made(roots, case, files)
    source = case.table(data.draw(sources(case)))
    options = merge_of(data, case, not any(files))
    found = [
        outcome(lambda: it.merge(source, root, engine=engine, **options), root, case)  # noqa: B023
        for engine, root in zip(("arrow", spark), roots, strict=True)
    ]
    assert found[1] == found[0]


@pytest.mark.parametrize("way", ["small", "routed", "large"])
@given(st.data())
@few
def test_merges_of_dataframes_agree(
    spark: Any, roots: tuple[Path, Path], way: str, data: st.DataObject
) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    case = data.draw(cases(NATIVE))
    files = data.draw(st.lists(rows_of(case, unique=False), max_size=3))
    made(roots, case, files)
    table = case.table(data.draw(sources(case)))
    frame = spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))
    options = merge_of(data, case, not any(files))
    here, there = roots
    expected = outcome(lambda: it.merge(table, here, engine="arrow", **options), here, case)
    options["broadcast_bytes"] = 1 if way == "large" else 64 << 20
    with pytest.MonkeyPatch.context() as patch:
        if way == "routed":
            patch.setattr(route, "ROUTED_BYTES", 0)
        found = outcome(lambda: it.merge(frame, there, **options), there, case)
    assert found == expected


@given(st.data())
@few
def test_deletes_and_updates_agree(spark: Any, roots: tuple[Path, Path], data: st.DataObject) -> None:
    case = data.draw(cases(KINDS))
    files = data.draw(st.lists(rows_of(case, unique=False), min_size=1, max_size=3))
    made(roots, case, files)
    where = data.draw(
        st.sampled_from(
            [
                "v > 1",
                "v is null or s = 'p'",
                "not (s = 'q')",
                "true",
                "v / (v - 1) > 0",
                "nope = 1",
                "v || 1",
            ]
        )
    )
    assigned = data.draw(
        st.none()
        | st.sampled_from([{"v": "v + 1", "s": "s || '!'"}, {"v": "cast(1 / v as bigint)"}, {"v": "'x'"}])
    )
    found = []
    for engine, root in zip(("arrow", spark), roots, strict=True):
        if assigned is None:
            found.append(outcome(lambda: it.delete(root, where, engine=engine), root, case))  # noqa: B023
        else:
            found.append(outcome(lambda: it.update(root, assigned, where, engine=engine), root, case))  # noqa: B023
    assert found[1] == found[0]
