"""Somebody else commits between our plan and our commit: a right table or a conflict that leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import intarsia as it
from intarsia.errors import CommitConflict
from tests.cross import FULL
from tests.cross.checks import problems
from tests.cross.decoded import decode
from tests.cross.kinds import BY_NAME, Kind
from tests.cross.lake import Lake
from tests.cross.making import Made
from tests.cross.operations import CLAUSES, COW, MOR, OPERATION, Case, expected
from tests.cross.proof import files_of, named
from tests.cross.readers import spark_rows
from tests.cross.sample_rows import Row, difference, ordered

MEANWHILE = {
    "spec_replaced": "ALTER TABLE {t} REPLACE PARTITION FIELD region WITH bucket(8, id)",
    "spec_grown": "ALTER TABLE {t} ADD PARTITION FIELD bucket(8, id)",
    "rows_appended": "INSERT INTO {t} VALUES (7001, 'eu', timestamp '2024-01-01 00:00:00', 1, 'appended')",
    "same_rows_deleted": "DELETE FROM {t} WHERE id % 5 = 1",
    "other_rows_deleted": "DELETE FROM {t} WHERE id % 5 = 2",
    "rewritten": "CALL {c}.system.rewrite_data_files(table => '{n}', options => map('rewrite-all', 'true'))",
    "upgraded": "ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '3')",
    "column_added": "ALTER TABLE {t} ADD COLUMN extra INT",
}


class Interrupted(SqlCatalog):
    """A catalog in which somebody else is always first, once."""

    meanwhile: Callable[[], Any] | None = None

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        if (happens := self.meanwhile) is not None:
            self.meanwhile = None
            happens()
        return super().commit_table(table, requirements, updates)


@pytest.fixture
def interrupted(lake: Lake) -> Interrupted:
    return Interrupted(lake.catalog.name, **lake.catalog.properties)


@pytest.mark.parametrize("mode", [COW, MOR] if FULL else [MOR])
@pytest.mark.parametrize("what", MEANWHILE)
def test_an_update_meets_another_commit(
    made: Callable[[Kind], Made], interrupted: Interrupted, what: str, mode: str
) -> None:
    def update(case: Case) -> None:
        target = it.iceberg(case.table, catalog=interrupted)
        it.update(target, {"note": "'ours'"}, "id % 5 = 1", mode=mode, engine="arrow")

    def model(case: Case, rows: list[Row]) -> list[Row]:
        return [{**row, "note": "ours"} if row["id"] % 5 == 1 else row for row in rows]

    meet(made(BY_NAME["add_identity"]), interrupted, what, update, model)


@pytest.mark.parametrize("what", MEANWHILE if FULL else ["spec_replaced", "upgraded", "rows_appended"])
def test_a_merge_meets_another_commit(
    made: Callable[[Kind], Made], interrupted: Interrupted, what: str
) -> None:
    def merge(case: Case) -> None:
        target = it.iceberg(case.table, catalog=interrupted)
        it.merge(case.source, target, on="id", clauses=CLAUSES, mode=MOR, missing="null", engine="arrow")

    def model(case: Case, rows: list[Row]) -> list[Row]:
        bare = [{key: value for key, value in row.items() if key != "extra"} for row in rows]
        found = expected(OPERATION["merge_clauses"], case.kind, bare, case.source)
        return [{**row, "extra": None} for row in found] if "extra" in rows[0] else found

    meet(made(BY_NAME["add_identity"]), interrupted, what, merge, model)


@pytest.mark.parametrize("what", ["same_rows_deleted", "rewritten", "other_rows_deleted"])
def test_vectors_meet_another_commit(
    made: Callable[[Kind], Made], interrupted: Interrupted, what: str
) -> None:
    def delete(case: Case) -> None:
        it.delete(it.iceberg(case.table, catalog=interrupted), "id % 5 = 1", mode=MOR, engine="arrow")

    def model(case: Case, rows: list[Row]) -> list[Row]:
        return [row for row in rows if row["id"] % 5 != 1]

    meet(made(BY_NAME["v3_vectors"]), interrupted, what, delete, model)


def meet(
    table: Made,
    catalog: Interrupted,
    what: str,
    ours: Callable[[Case], None],
    model: Callable[[Case, list[Row]], list[Row]],
) -> None:
    """Run ours with the other commit in between: it counts as the first of the two, or the only one."""
    case, lake = table.clone(), table.lake
    known = files(case)

    def happens() -> None:
        before = files(case)
        run(case, what)
        known.update(files(case) - before)

    catalog.meanwhile = happens
    try:
        ours(case)
        done = True
    except CommitConflict:
        done = False

    assert catalog.meanwhile is None, "the other commit did not happen"
    assert not (wrong := problems(decode(lake.metadata_file(case.table)))), "\n".join(wrong)
    left = files(case) - known - named(decode(lake.metadata_file(case.table)))
    twin = table.clone()
    run(twin, what)
    theirs = spark_rows(lake, twin.table)
    wanted = ordered(model(case, theirs)) if done else theirs
    assert not (told := difference(spark_rows(lake, case.table), wanted)), told
    assert not left, left


def run(case: Case, what: str) -> None:
    case.lake.sql(MEANWHILE[what].format(t=case.in_spark, n=case.table, c=case.lake.name))


def files(case: Case) -> set[Path]:
    return set(files_of(decode(case.lake.metadata_file(case.table))))
