"""The page on engines says what the engines' code declares, and the declarations hold."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import fields
from typing import Any

import doc_pages
import pytest

from intarsia.core.abilities import KEPT, OPERATIONS

ROOT = doc_pages.ROOT


def _script() -> Any:
    spec = importlib.util.spec_from_file_location("engines_page", ROOT / "examples" / "engines.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _engines() -> list[Any]:
    pytest.importorskip("duckdb")
    return list(_script().ENGINES)


def test_the_tables_are_those_that_the_code_declares() -> None:
    duckdb = pytest.importorskip("duckdb")
    if int(duckdb.__version__.split(".", 1)[0]) < 2:
        pytest.skip("the page is made with the newest DuckDB; older versions have fewer types")
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    assert _script().filled(page) == page, "run examples/engines.py --write"


def test_a_page_that_says_something_else_is_found() -> None:
    pytest.importorskip("duckdb")
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    assert _script().filled(page.replace("| page checksums | yes", "| page checksums | no")) == page


def test_what_is_declared_is_there() -> None:
    for engine in _engines():
        assert set(engine.unkept) <= set(KEPT)
        package, _, name = engine.door.rpartition(".")
        if engine.engine != "spark" or importlib.util.find_spec("pyspark"):
            door = getattr(importlib.import_module(package), name)
            assert door.engine == engine.engine
            calls = {"write": "write_dataset", "read_parquet": "read_parquet"}
            for operation in engine.operations:
                call = calls.get(operation, operation)
                assert hasattr(door, call) or hasattr(door, f"{call}_parquet_dataset")
            kinds = importlib.import_module(f"intarsia.engines.{engine.engine}")
            made = next(thing for key, thing in vars(kinds).items() if key.endswith("Engine"))
            assert set(engine.options) <= {field.name for field in fields(made)}
        assert engine.operations == OPERATIONS
