"""The same on a REST catalog, and what only such a catalog does: losing its answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cross import FULL
from tests.cross.kinds import BY_NAME
from tests.cross.lake import Lake
from tests.cross.making import Made, make
from tests.cross.operations import COW, MOR, OPERATION, Mode
from tests.cross.proof import Before, prove

TABLES: dict[str, Made] = {}
CELLS: list[tuple[str, Mode | None]] = [("merge_clauses", MOR), ("compact", None)]
if FULL:
    CELLS += [("delete", MOR), ("delete", COW), ("upsert", COW), ("append", None), ("overwrite", None)]


def table_of(rest: Lake, name: str) -> Made:
    if name not in TABLES:
        TABLES[name] = make(rest, BY_NAME[name])
    return TABLES[name]


@pytest.mark.parametrize(("operation", "mode"), CELLS)
@pytest.mark.parametrize("name", ["prior_partition_deletes", "v2_to_v3"])
def test_operations_are_right_on_a_rest_catalog(
    rest: Lake, name: str, operation: str, mode: Mode | None
) -> None:
    made, chosen = table_of(rest, name), OPERATION[operation]
    case, rows = made.prepared(chosen)
    wanted = made.expected(chosen, rows)
    before = Before.of(rest, made.kind, case.table)

    how: dict[str, Any] = {"engine": "arrow"} | ({"mode": mode} if mode else {})
    chosen.ours(case, how)

    prove(before, wanted)


@pytest.mark.parametrize("name", ["prior_partition_deletes", "v2_to_v3"])
def test_a_commit_whose_answer_is_lost_is_found_or_told_and_loses_nothing(rest: Lake, name: str) -> None:
    made, chosen = table_of(rest, name), OPERATION["merge_clauses"]
    case = made.clone()
    wanted = made.expected(chosen, made.rows)
    before = Before.of(rest, made.kind, case.table)
    rest.server.lose_the_next_answer()

    chosen.ours(case, {"engine": "arrow", "mode": MOR})

    prove(before, wanted)
