"""A writer in a process of its own, which changes a dataset until it is told to stop or has done enough.

Each operation is in the log with what it did, so that the log is the history to compare the rows with.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import pyarrow as pa
from stores_bucket import open_store

import intarsia as it
from intarsia.errors import IntarsiaError

Rows = dict[int, int]
BASE, NEW = range(60), range(100, 120)


def make_operation(chance: random.Random, *, compacts: bool) -> dict[str, Any]:
    value = chance.randrange(1_000_000)
    kinds = ["merge", "merge", "update", "insert", "delete", *(["compact"] if compacts else [])]
    match chance.choice(kinds):
        case "merge":
            return {"op": "merge", "ids": chance.sample([*BASE, *NEW], 4), "v": value}
        case "update":
            return {"op": "update", "rest": chance.randrange(7)}
        case "insert":
            return {"op": "insert", "ids": chance.sample(NEW, 3), "v": value}
        case "delete":
            return {"op": "delete", "ids": chance.sample(NEW, 2)}
    return {"op": "compact"}


def replay(rows: Rows, operation: dict[str, Any]) -> None:
    """The operation on a dictionary."""
    match operation["op"]:
        case "merge":
            rows.update(dict.fromkeys(operation["ids"], operation["v"]))
        case "update":
            rows.update({n: v + 1 for n, v in rows.items() if n % 7 == operation["rest"]})
        case "insert":
            rows.update({n: operation["v"] for n in operation["ids"] if n not in rows})
        case "delete":
            for n in operation["ids"]:
                rows.pop(n, None)


def orders(rows: Rows) -> pa.Table:
    return pa.table({"id": pa.array(rows, pa.int64()), "v": pa.array(rows.values(), pa.int64())})


def carry_out(operation: dict[str, Any], target: str, **how: Any) -> Any:
    noted = {**how, "properties": {"did": json.dumps(operation)}}
    match operation["op"]:
        case "merge":
            return it.merge(orders(dict.fromkeys(operation["ids"], operation["v"])), target, on="id", **noted)
        case "update":
            return it.update(target, {"v": "v + 1"}, f"id % 7 = {operation['rest']}", **noted)
        case "insert":
            new = orders(dict.fromkeys(operation["ids"], operation["v"]))
            return it.merge(new, target, on="id", strategy="insert", **noted)
        case "delete":
            ids = ", ".join(map(str, operation["ids"]))
            return it.delete(target, f"id in ({ids})", **noted)
    return it.compact(target, **noted)


def attempt(operation: dict[str, Any], target: str, *, may_fail: bool, **how: Any) -> dict[str, Any]:
    """What the writer was told: where it may fail, of an error, too."""
    try:
        result = carry_out(operation, target, **how)
    except (IntarsiaError, OSError) as error:
        if not may_fail:
            raise
        failed = f"{type(error).__name__}: {error}"
        return {"failed": failed, "changed": getattr(error, "changed", None), **operation}
    return {"version": result.version, "txid": result.txid, "attempts": result.attempts, **operation}


def main(kind: str, port: str, target: str, seed: str, count: str, engine: str, *more: str) -> None:
    chance = random.Random(int(seed))
    filesystem = open_store(kind, int(port), patient="may fail" not in more)
    for number in range(int(count)):
        operation = make_operation(chance, compacts="compacts" in more) | {"id": f"{seed}-{number}"}
        may_fail = "may fail" in more
        told = attempt(operation, target, may_fail=may_fail, filesystem=filesystem, engine=engine)
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
