"""Every kind of table under every operation: what we make of it is what Spark makes of its twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cross import FULL
from tests.cross.kinds import KINDS, Kind
from tests.cross.lake import Lake
from tests.cross.making import Made
from tests.cross.operations import COW, MOR, OPERATIONS, Mode, Operation
from tests.cross.proof import Before, added, prove

ENGINES = ("arrow", "duckdb", "spark") if FULL else ("arrow",)
ALWAYS = {("delete", MOR), ("merge_clauses", MOR)}
EACH = 1
"""In the short run, how many more operations each kind is tried with: others for each kind."""


def cells() -> Iterator[Any]:
    for number, kind in enumerate(KINDS):
        every = [(op, mode) for op in OPERATIONS for mode in op.modes if mode == COW or kind.merge_on_read]
        if not kind.partitioned:  # it is refused
            every = [cell for cell in every if cell[0].name != "overwrite_partitions"]
        others = [cell for cell in every if (cell[0].name, cell[1]) not in ALWAYS]
        turn = [others[(number * EACH + place) % len(others)] for place in range(EACH)]
        for operation, mode in every:
            if FULL or (operation, mode) in turn or (operation.name, mode) in ALWAYS:
                short = "mor" if mode == MOR else "cow"
                yield pytest.param(kind, operation, mode, id=f"{kind}-{operation}-{short}")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("kind", "operation", "mode"), list(cells()))
def test_what_we_make_of_a_table_is_what_spark_makes_of_its_twin(
    lake: Lake,
    made: Callable[[Kind], Made],
    kind: Kind,
    operation: Operation,
    mode: Mode,
    engine: str,
) -> None:
    case, rows = made(kind).prepared(operation)
    wanted = made(kind).expected(operation, rows)
    before = Before.of(lake, kind, case.table)

    operation.ours(case, options(operation, mode, lake.spark if engine == "spark" else engine))

    after = prove(before, wanted)
    check_way(operation, mode, before, after)


def options(operation: Operation, mode: Mode, engine: Any) -> dict[str, Any]:
    return {"engine": engine, "mode": mode} if operation.is_row_level else {"engine": engine}


def check_way(operation: Operation, mode: Mode, before: Before, after: Any) -> None:
    """Rows are deleted the way that was asked for; a rewrite leaves nothing of old specs and dead rows."""
    deletes = [file for file in added(after) if file.content != 0]
    if operation.is_row_level:
        assert bool(deletes) == (mode == MOR), f"{len(deletes)} delete files with {mode}"
    elif operation.name in ("compact", "zorder"):
        assert {file.spec_id for file in after.data} <= {after.default_spec}
        assert not after.deletes, "deletes that cover nothing any more"
