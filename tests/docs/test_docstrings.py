"""Every public function says its arguments and errors and has an example, which runs here."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia
from intarsia import pipeline
from intarsia import spark as spark_facade
from intarsia.datasets import pyarrow as facade
from intarsia.datasets.duckdb import DuckDBDatasetIO
from intarsia.datasets.io import DatasetIO
from intarsia.datasets.spark import SparkDatasetIO
from intarsia.integrations import duckdb as relations
from intarsia.integrations.pandas import DataFrameAccessor
from intarsia.integrations.polars import DataFrameNamespace, LazyFrameNamespace
from pyspark_intarsia import DefaultSource

PIPELINE = """
name = "orders"
engine = "arrow"

[sources.changes]
path = "changes.csv"

[targets.orders]
path = "lake/orders"

[[steps]]
operation = "merge"
source = "changes"
target = "orders"
on = "id"
"""


def _public() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for module in (intarsia, pipeline, facade, spark_facade, relations):
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isfunction(thing) and thing.__module__ != "intarsia.common.schema":
                found[f"{module.__name__}.{name}"] = thing
    for name, method in inspect.getmembers(DatasetIO, inspect.isfunction):
        if not name.startswith("_"):
            found[f"DatasetIO.{name}"] = method
    found["SparkDatasetIO.read_parquet"] = SparkDatasetIO.read_parquet
    found["pyspark_intarsia.DefaultSource"] = DefaultSource
    found |= {kind.__name__: kind for kind in (facade.PyarrowDatasetIO, DuckDBDatasetIO, SparkDatasetIO)}
    return found


ON_FRAMES = (DataFrameAccessor, DataFrameNamespace, LazyFrameNamespace)
PUBLIC = _public()
RAISE_NOTHING = {"intarsia.pipeline.as_json", "intarsia.spark.active_session", "intarsia.spark.stop_session"}


def test_the_public_functions_are_found() -> None:
    assert {"intarsia.merge", "intarsia.pipeline.run", "DatasetIO.merge"} <= set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_docstring_names_every_argument_and_the_errors(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    parameters = [each for each in inspect.signature(PUBLIC[name]).parameters if each != "self"]
    assert ("\nArgs:\n" in text) == bool(parameters)
    assert ("\nRaises:\n" in text) == (name not in RAISE_NOTHING)
    assert [each for each in parameters if f"\n    {each}: " not in text] == []


ON_SPARK = {name for name, each in PUBLIC.items() if "_session(" in (inspect.getdoc(each) or "")}


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in ON_SPARK])
def test_the_example_in_a_docstring_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run_example(name, tmp_path, monkeypatch)


@pytest.mark.parametrize("name", sorted(ON_SPARK))
def test_the_example_in_a_docstring_runs_on_spark(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    _run_example(name, tmp_path, monkeypatch)


def _run_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lake/orders").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2], "n": ["a", "b"]}), "lake/orders/part-0.parquet")
    Path("changes.csv").write_text("id,n\n3,c\n", encoding="utf-8")
    Path("orders.toml").write_text(PIPELINE, encoding="utf-8")
    parsed = doctest.DocTestParser().get_doctest(inspect.getdoc(PUBLIC[name]) or "", {}, name, None, 0)
    assert parsed.examples
    told: list[str] = []
    failed = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(parsed, out=told.append).failed
    assert not failed, "".join(told)


@pytest.mark.parametrize("kind", ON_FRAMES)
def test_what_frames_have_says_its_arguments_and_its_example_runs(
    kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in (kind.merge_into, kind.write_to):  # type: ignore[attr-defined]
        text = inspect.getdoc(method) or ""
        names = [name for name in inspect.signature(method).parameters if name != "self"]
        assert [name for name in names if f"\n    {name}: " not in text] == []
        assert "\nRaises:\n" in text
    monkeypatch.setitem(PUBLIC, kind.__qualname__, kind)
    _run_example(kind.__qualname__, tmp_path, monkeypatch)
