"""The page on engines says what examples/engines.py holds, and that is true of the engines."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import fields
from typing import Any

import doc_pages
import pytest

ROOT = doc_pages.ROOT


def _script() -> Any:
    pytest.importorskip("duckdb")
    spec = importlib.util.spec_from_file_location("engines_page", ROOT / "examples" / "engines.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    importlib.import_module("sys").modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_script() -> None:
    duckdb = pytest.importorskip("duckdb")
    if int(duckdb.__version__.split(".", 1)[0]) < 2:
        pytest.skip("the page is made with the newest DuckDB; older versions have fewer types")
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    assert _script().fill_page(page) == page, "run examples/engines.py --write"


def test_a_page_that_says_something_else_is_found() -> None:
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    other = page.replace("| operations | all |", "| operations | some |")
    assert other != page
    assert _script().fill_page(other) != other


def test_what_the_page_says_is_there() -> None:
    script = _script()
    for engine in script.ENGINES:
        package, _, name = engine.facade.rpartition(".")
        if engine.engine == "spark" and not importlib.util.find_spec("pyspark"):
            continue
        facade = getattr(importlib.import_module(package), name)
        assert facade.engine == engine.engine
        calls = {"write": "write_dataset", "read_parquet": "read_parquet"}
        for operation in script.OPERATIONS:
            call = calls.get(operation, operation)
            assert hasattr(facade, call) or hasattr(facade, f"{call}_parquet_dataset")
        kinds = importlib.import_module(f"intarsia.engines.{engine.engine}")
        made = next(thing for key, thing in vars(kinds).items() if key.endswith("Engine"))
        assert set(engine.options) <= {field.name for field in fields(made)}
