"""We and Spark change one table in turns, in both directions, and each goes on from what the other left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import intarsia as it
from intarsia.errors import InputError
from tests.cross import FULL
from tests.cross.checks import problems
from tests.cross.decoded import decode
from tests.cross.kinds import BY_NAME, KINDS, Kind
from tests.cross.lake import Lake
from tests.cross.making import Made
from tests.cross.operations import COW, MOR, OPERATION, Case, expected
from tests.cross.proof import Before, prove
from tests.cross.readers import spark_rows
from tests.cross.sample_rows import Row, difference, ordered

CORE = ("add_identity", "v2_to_v3", "nested_source", "prior_partition_deletes")
CHOSEN = [kind for kind in KINDS if kind.spark_changes and (FULL or kind.name in CORE)]


def spark_goes_on(case: Case, rows: list[Row]) -> list[Row]:
    """An UPDATE and a DELETE by Spark; the rows that follow by the model."""
    case.lake.sql(f"UPDATE {case.in_spark} SET note = 'by Spark', amount = amount - 1 WHERE id % 5 = 3")
    case.lake.sql(f"DELETE FROM {case.in_spark} WHERE id % 11 = 4")
    changed = [
        {**row, "note": "by Spark", "amount": row["amount"] - 1} if row["id"] % 5 == 3 else row
        for row in rows
    ]
    return ordered(row for row in changed if row["id"] % 11 != 4)


def check_after_spark(case: Case, wanted: list[Row]) -> None:
    assert not (told := difference(spark_rows(case.lake, case.table, case.kind.branch), wanted)), told
    state = decode(case.lake.metadata_file(case.table), case.kind.branch)
    assert not (wrong := problems(state)), "\n".join(wrong)


@pytest.mark.parametrize("kind", CHOSEN, ids=str)
def test_spark_changes_and_rewrites_our_table_and_we_go_on(
    lake: Lake, made: Callable[[Kind], Made], kind: Kind
) -> None:
    case, rows = made(kind).clone(), made(kind).rows
    mode = MOR if kind.merge_on_read else COW
    step(case, "merge_clauses", mode, rows)
    rows = expected(OPERATION["merge_clauses"], kind, rows, case.source)

    rows = spark_goes_on(case, rows)
    check_after_spark(case, rows)

    rows = step(case, "update", COW, rows)
    if kind.branch is None:
        lake.sql(f"CALL {lake.name}.system.rewrite_data_files(table => '{case.table}', options => {REWRITE})")
        check_after_spark(case, rows)

    rows = step(case, "delete", mode, rows)
    step(case, "compact", None, rows)


REWRITE = "map('rewrite-all', 'true')"


def step(case: Case, name: str, mode: str | None, rows: list[Row]) -> list[Row]:
    """One operation of ours, proved against the model."""
    operation = OPERATION[name]
    before = Before.of(case.lake, case.kind, case.table)
    how: dict[str, Any] = {"engine": "arrow"} | ({"mode": mode} if mode else {})
    result = operation.ours(case, how)
    assert result.changed or name == "compact"  # which Spark may have left nothing to do
    wanted = expected(operation, case.kind, rows, case.source)
    prove(before, wanted, changed=result.changed)
    return wanted


@pytest.mark.parametrize("mode", [COW, MOR])
def test_what_changes_nothing_commits_nothing(lake: Lake, made: Callable[[Kind], Made], mode: str) -> None:
    kind = BY_NAME["add_identity"]
    case = made(kind).clone()
    before = Before.of(lake, kind, case.table)

    it.delete(case.target(), "id = -5", mode=mode, engine="arrow")
    it.update(case.target(), {"note": "'x'"}, "id = -5", mode=mode, engine="arrow")

    prove(before, made(kind).rows, changed=False)


def test_partitions_are_not_overwritten_where_there_are_none(
    lake: Lake, made: Callable[[Kind], Made]
) -> None:
    kind = BY_NAME["to_unpartitioned"]
    case = made(kind).clone()
    before = Before.of(lake, kind, case.table)

    with pytest.raises(InputError, match="overwrite_partitions needs a partitioned"):
        it.write(case.source, case.target(), mode="overwrite_partitions", engine="arrow")

    prove(before, made(kind).rows, changed=False)


@pytest.mark.parametrize("name", ["v3_vectors", "v2_to_v3"])
@pytest.mark.parametrize("mode", [COW, MOR])
def test_rows_keep_their_ids_when_they_are_updated_or_moved(
    lake: Lake, made: Callable[[Kind], Made], name: str, mode: str
) -> None:
    kind = BY_NAME[name]
    case = made(kind).clone()
    before = lineage(case)

    it.update(case.target(), {"note": "'changed'"}, "id % 5 = 1", mode=mode, engine="arrow")
    updated = lineage(case)
    it.compact(case.target(), engine="arrow")
    moved = lineage(case)

    sequence = decode(lake.metadata_file(case.table)).metadata["last-sequence-number"] - 1
    assert updated == {
        number: (row, sequence if number % 5 == 1 else last) for number, (row, last) in before.items()
    }
    assert moved == updated


def lineage(case: Case) -> dict[int, tuple[int, int]]:
    """By id: the row's id and the sequence number of its last change, as Spark reads them."""
    found = case.lake.sql(f"SELECT id, _row_id r, _last_updated_sequence_number s FROM {case.in_spark}")
    return {row["id"]: (row["r"], row["s"]) for row in found.to_pylist()}
