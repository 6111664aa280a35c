"""Every operation three times: our call, Spark's statement, and a model on plain rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

import intarsia as it
from tests.cross.kinds import Kind
from tests.cross.lake import Lake
from tests.cross.sample_rows import Row, ordered

Mode = Literal["copy-on-write", "merge-on-read"]
COW: Mode = "copy-on-write"
MOR: Mode = "merge-on-read"


@dataclass(frozen=True)
class Case:
    """A table to change, and the source rows to change it with."""

    lake: Lake
    kind: Kind
    table: str
    source: pa.Table

    def target(self) -> Any:
        return it.iceberg(self.table, catalog=self.lake.catalog, branch=self.kind.branch)

    @property
    def in_spark(self) -> str:
        branch = f".branch_{self.kind.branch}" if self.kind.branch else ""
        return self.lake.in_spark(self.table) + branch

    @property
    def view(self) -> str:
        self.lake.spark.createDataFrame(self.source).createOrReplaceTempView("source_rows")
        return "source_rows"


@dataclass(frozen=True)
class Operation:
    """One thing to do to a table."""

    name: str
    ours: Callable[[Case, Mapping[str, Any]], Any]
    spark: Callable[[Case], None] | None
    """None where rows stay, or where Spark has no statement for it."""
    model: Callable[[list[Row], list[Row], Kind], list[Row]]
    modes: tuple[Mode, ...] = (COW, MOR)
    """Both where it deletes rows; one where it only writes files."""
    prepare: Callable[[Case], None] | None = None

    @property
    def is_row_level(self) -> bool:
        return len(self.modes) > 1

    def __str__(self) -> str:
        return self.name


def source_for(kind: Kind, schema: pa.Schema, rows: list[Row]) -> pa.Table:
    """A quarter of the rows there are, each with the other values of its neighbour, and some new ones.

    No remainder here or below is one that partitions follow: files are hit in part.
    """
    ids = [row["id"] for row in rows if row["id"] % 11 in (1, 2, 3)] + [9001, 9002, 9003, 9004, 9005, 9006]
    made = kind.rows(schema, [number + 1 for number in ids])
    place = made.schema.get_field_index("id")
    return made.set_column(place, made.schema.field(place), pa.array(ids, made.schema.field(place).type))


DELETE_WHERE = "id % 5 = 2 and amount > 0"
UPDATE_WHERE = "id % 5 = 1"
MOVE_WHERE = "id % 7 = 3"
SET = {"amount": "amount + 1000", "note": "'changed'"}
CLAUSES = """
when matched and source.id % 2 = 0 then delete
when matched and target.amount % 2 = 1 then
  update set note = source.note, amount = target.amount + source.amount
when matched then update set *
when not matched and source.id % 2 = 0 then insert *
when not matched by source and target.id % 5 = 0 then update set note = 'stale'
when not matched by source and target.id % 7 = 0 then delete
"""


def _delete(case: Case, how: Mapping[str, Any]) -> Any:
    return it.delete(case.target(), DELETE_WHERE, **how)


def _delete_in_spark(case: Case) -> None:
    case.lake.sql(f"DELETE FROM {case.in_spark} WHERE {DELETE_WHERE}")


def _delete_model(rows: list[Row], source: list[Row], kind: Kind) -> list[Row]:
    return [row for row in rows if not (row["id"] % 5 == 2 and row["amount"] > 0)]


def _delete_all(case: Case, how: Mapping[str, Any]) -> Any:
    return it.delete(case.target(), "id >= 0", **how)


def _delete_all_in_spark(case: Case) -> None:
    case.lake.sql(f"DELETE FROM {case.in_spark} WHERE id >= 0")


def _update(case: Case, how: Mapping[str, Any]) -> Any:
    return it.update(case.target(), SET, UPDATE_WHERE, **how)


def _update_in_spark(case: Case) -> None:
    assigned = ", ".join(f"{name} = {value}" for name, value in SET.items())
    case.lake.sql(f"UPDATE {case.in_spark} SET {assigned} WHERE {UPDATE_WHERE}")


def _update_model(rows: list[Row], source: list[Row], kind: Kind) -> list[Row]:
    changed = (
        {"amount": row["amount"] + 1000, "note": "changed"} if row["id"] % 5 == 1 else {} for row in rows
    )
    return [{**row, **new} for row, new in zip(rows, changed, strict=True)]


def _move(case: Case, how: Mapping[str, Any]) -> Any:
    return it.update(case.target(), case.kind.moves, MOVE_WHERE, **how)


def _move_in_spark(case: Case) -> None:
    assigned = ", ".join(f"{name} = {value}" for name, value in case.kind.moves.items())
    case.lake.sql(f"UPDATE {case.in_spark} SET {assigned} WHERE {MOVE_WHERE}")


def _move_model(rows: list[Row], source: list[Row], kind: Kind) -> list[Row]:
    return [{**row, **moved(row, kind)} if row["id"] % 7 == 3 else row for row in rows]


def moved(row: Row, kind: Kind) -> Row:
    """What the kind's move assigns; only for kinds that the model is needed for."""
    import datetime as dt

    ((name, text),) = kind.moves.items()
    if added := re.fullmatch(r"(\w+) \+ (\d+)", text):
        return {name: row[added[1]] + int(added[2])}
    if text.startswith("timestamp"):
        return {name: dt.datetime.fromisoformat(text.split("'")[1]).replace(tzinfo=dt.UTC)}
    return {name: int(text) if text.isdigit() else text.strip("'")}


def _upsert(case: Case, how: Mapping[str, Any]) -> Any:
    return it.merge(case.source, case.target(), on="id", **how)


def _upsert_in_spark(case: Case) -> None:
    case.lake.sql(
        f"MERGE INTO {case.in_spark} AS target USING {case.view} AS source ON target.id = source.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def _upsert_model(rows: list[Row], source: list[Row], kind: Kind) -> list[Row]:
    fresh = {row["id"]: row for row in source}
    return [row for row in rows if row["id"] not in fresh] + source


def _merge(case: Case, how: Mapping[str, Any]) -> Any:
    return it.merge(case.source, case.target(), on="id", clauses=CLAUSES, **how)


def _merge_in_spark(case: Case) -> None:
    case.lake.sql(
        f"MERGE INTO {case.in_spark} AS target USING {case.view} AS source ON target.id = source.id {CLAUSES}"
    )


def _merge_model(rows: list[Row], source: list[Row], kind: Kind) -> list[Row]:
    fresh = {row["id"]: row for row in source}
    kept = []
    for row in rows:
        new = fresh.pop(row["id"], None)
        if new is None:
            if row["id"] % 5 == 0:
                kept.append({**row, "note": "stale"})
            elif row["id"] % 7 != 0:
                kept.append(row)
        elif new["id"] % 2 == 0:
            continue
        elif row["amount"] % 2 == 1:
            kept.append({**row, "note": new["note"], "amount": row["amount"] + new["amount"]})
        else:
            kept.append(new)
    return kept + [row for row in fresh.values() if row["id"] % 2 == 0]


def _append(case: Case, how: Mapping[str, Any]) -> Any:
    return it.write(case.source, case.target(), mode="append", **how)


def _append_in_spark(case: Case) -> None:
    case.lake.sql(f"INSERT INTO {case.in_spark} SELECT * FROM {case.view}")


def _append_model(rows: list[Row], source: list[Row], kind: Kind) -> list[Row]:
    return rows + source


def _overwrite(case: Case, how: Mapping[str, Any]) -> Any:
    return it.write(case.source, case.target(), mode="overwrite", **how)


def _overwrite_in_spark(case: Case) -> None:
    _insert_overwrite(case, "static")


def _overwrite_model(rows: list[Row], source: list[Row], kind: Kind) -> list[Row]:
    return source


def _insert_overwrite(case: Case, how: str) -> None:
    case.lake.spark.conf.set("spark.sql.sources.partitionOverwriteMode", how)
    case.lake.sql(f"INSERT OVERWRITE {case.in_spark} SELECT * FROM {case.view}")


def _dynamic(case: Case, how: Mapping[str, Any]) -> Any:
    return it.write(case.source, case.target(), mode="overwrite_partitions", **how)


def _dynamic_in_spark(case: Case) -> None:
    _insert_overwrite(case, "dynamic")


def _no_model(rows: list[Row], source: list[Row], kind: Kind) -> list[Row]:
    raise NotImplementedError


def _same(rows: list[Row], source: list[Row], kind: Kind) -> list[Row]:
    return rows


def _compact(case: Case, how: Mapping[str, Any]) -> Any:
    return it.compact(case.target(), **how)


def _zorder(case: Case, how: Mapping[str, Any]) -> Any:
    return it.optimize(case.target(), by=["id", "amount"], **how)


def _deduplicate(case: Case, how: Mapping[str, Any]) -> Any:
    return it.deduplicate(case.target(), on="id", order_by="amount", **how)


def _deduplicate_model(rows: list[Row], source: list[Row], kind: Kind) -> list[Row]:
    best: dict[int, Row] = {}
    for row in rows:
        held = best.get(row["id"])
        if held is None or held["amount"] < row["amount"]:
            best[row["id"]] = row
    return list(best.values())


OPERATIONS = (
    Operation("delete", _delete, _delete_in_spark, _delete_model),
    Operation("update", _update, _update_in_spark, _update_model),
    Operation("update_moving", _move, _move_in_spark, _move_model),
    Operation("upsert", _upsert, _upsert_in_spark, _upsert_model),
    Operation("merge_clauses", _merge, _merge_in_spark, _merge_model),
    Operation("append", _append, _append_in_spark, _append_model, modes=(COW,)),
    Operation("overwrite", _overwrite, _overwrite_in_spark, _overwrite_model, modes=(COW,)),
    Operation("overwrite_partitions", _dynamic, _dynamic_in_spark, _no_model, modes=(COW,)),
    Operation("delete_all", _delete_all, _delete_all_in_spark, lambda rows, source, kind: [], modes=(COW,)),
    Operation("compact", _compact, None, _same, modes=(COW,)),
    Operation("zorder", _zorder, None, _same, modes=(COW,)),
    Operation("deduplicate", _deduplicate, None, _deduplicate_model, prepare=_append_in_spark),
)
OPERATION = {operation.name: operation for operation in OPERATIONS}


def expected(operation: Operation, kind: Kind, rows: list[Row], source: pa.Table) -> list[Row]:
    """What the model says becomes of the rows."""
    return ordered(operation.model(rows, ordered(source.to_pylist()), kind))
