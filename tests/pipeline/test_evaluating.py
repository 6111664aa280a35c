"""Expectations evaluated on a table without a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import intarsia as it
from intarsia.errors import ColumnNotFound, InputError, NothingMatched
from intarsia.pipeline import Expect, evaluate
from intarsia.tables.iceberg import embedded_catalog

ROWS = pa.table({"id": [1, 2, 3, 3], "parent": [None, 1, 2, 9], "state": ["a", "b", "b", None]})


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    it.write(ROWS, tmp_path / "lake")
    return tmp_path / "lake"


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_each_expectation_is_counted(engine: Any, lake: Path, unchanged: Any) -> None:
    wanted = Expect(
        not_null=("id", "state"), unique="id", holds="id < 3", accepted={"state": ("a",)}, min_rows=4
    )
    with unchanged(lake):
        found = evaluate(wanted, lake, engine=engine)
    assert {check.expectation: (check.failing, check.outcome) for check in found} == {
        "at least 4 rows": (0, "held"),
        "id is not NULL": (0, "held"),
        "state is not NULL": (1, "failed"),
        "state is one of a": (2, "failed"),
        "id < 3": (2, "failed"),
        "id unique": (1, "failed"),
    }


def test_a_table_may_refer_to_itself_and_to_others(lake: Path, tmp_path: Path) -> None:
    it.write(pa.table({"name": ["a"]}), tmp_path / "states")
    wanted = Expect(references={"parent": "table.id", "state": "states.name"}, action="warn")
    found = evaluate(wanted, lake, tables={"states": tmp_path / "states"})
    assert [(check.failing, check.outcome) for check in found] == [(1, "warned"), (2, "warned")]


def test_an_iceberg_table_is_evaluated_without_its_deleted_rows(tmp_path: Path) -> None:
    catalog = embedded_catalog(tmp_path / "warehouse")
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.rows", ROWS.schema)
    it.write(ROWS, table)
    it.delete(table, "state is null", mode="merge-on-read")
    assert [check.ok for check in evaluate(Expect(not_null="state", unique="id"), table)] == [True, True]


def test_what_cannot_be_evaluated_is_refused(lake: Path, tmp_path: Path) -> None:
    with pytest.raises(NothingMatched):
        evaluate(Expect(not_null="id"), tmp_path / "none")
    with pytest.raises(ColumnNotFound):
        evaluate(Expect(not_null="ids"), lake)
    with pytest.raises(InputError, match="it expects nothing"):
        evaluate(Expect(), lake)
    with pytest.raises(InputError, match="its action is fail or warn"):
        evaluate(Expect(not_null="id", action="drop"), lake)
    with pytest.raises(InputError, match="which is the table that is checked"):
        evaluate(Expect(not_null="id"), lake, tables={"table": lake})
