"""Runs under the preloaded shim: kills or fails a pipeline at its calls, runs it again, and checks the rows.

    python crash_pipeline.py '{"operation": "iceberg on arrow", "directory": ..., "faults": [["kill", 9, 0]]}'

As crash_sweep.py; no step is idempotent, so that a step which took effect twice, or never, is seen. The kind
"computed" is a pipeline of queries and functions (crash_computed.py), "guarded" one with quarantines, "since"
one that reads what is new in its own tables, "backfill" several runs of one.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import asdict
from typing import Any

import crash_backfill
import crash_computed
import crash_guarded
import crash_since
import pyarrow as pa
import pyarrow.parquet as pq
from crash_checks import leftovers
from crash_engines import calm_options, spark_session, stop_spark
from crash_sweep import (
    DECIDING,
    KILL,
    MOST_VIOLATIONS,
    TORN,
    Outcome,
    Result,
    deciding,
    errno,
    import_ahead,
    in_child,
    part_of,
    spread,
)

import intarsia as it
from intarsia import pipeline
from intarsia.tables.iceberg import embedded_catalog

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
State = list[tuple[int, int]] | dict[str, list[tuple[int, int]]]
OTHERS: dict[str, Any] = {
    "backfill": crash_backfill,
    "computed": crash_computed,
    "guarded": crash_guarded,
    "since": crash_since,
}
"""Pipelines of several tables, in modules of their own."""
SHORT = ("add", "plus one", "append", "deduplicate")
"""What is run on Spark, where a step takes a second."""
AFTER: State = [(1, 203), (1, 205), (2, 403), (2, 405), (4, 5), (5, 5), (6, 5), (7, 17), (7, 19), (8, 19)]
AFTER += [(8, 21)]
AFTER_SHORT: State = [(1, 100), (1, 101), (2, 200), (2, 201), (3, 1), (4, 1), (5, 1), (6, 1), (7, 7), (7, 8)]
AFTER_SHORT += [(8, 8), (8, 9)]


def rows(ids: list[int], values: list[int]) -> pa.Table:
    return pa.table({"id": ids, "v": values}, SCHEMA)


def make(kind: str, engine: str, root: str) -> None:
    """A table of two files, and two that have landed."""
    if kind in OTHERS:
        OTHERS[kind].make(root, engine)
        return
    os.makedirs(f"{root}/landing")
    pq.write_table(rows([1, 7], [100, 7]), f"{root}/landing/a.parquet")
    pq.write_table(rows([2, 8], [200, 8]), f"{root}/landing/b.parquet")
    if kind.startswith("iceberg"):
        catalog = embedded_catalog(f"{root}/warehouse")
        catalog.create_namespace("db")
        properties = {"commit.retry.num-retries": "1", "commit.retry.min-wait-ms": "1"}
        catalog.create_table("db.t", SCHEMA, properties=properties)
    for ids in ([1, 2, 3], [4, 5, 6, 6]):
        is_iceberg = kind.startswith("iceberg")
        target = it.iceberg("db.t", catalog=f"{root}/warehouse") if is_iceberg else f"{root}/t"
        it.write(rows(ids, [0] * len(ids)), target, engine="arrow", threads=1, progress=False)


def declared(kind: str, engine: str, root: str) -> pipeline.Pipeline:
    if kind in OTHERS:
        return OTHERS[kind].declare(engine, root)
    calm = calm_options(engine, root)
    target = pipeline.Target(f"{root}/t")
    landing = pipeline.Source(f"{root}/landing/*.parquet")
    if kind.endswith("stream"):  # each file is a batch
        stream = pipeline.Stream("parquet", f"{root}/landing", options={"maxFilesPerTrigger": 1})
        landing = pipeline.Source(stream=stream, columns={"id": "bigint", "v": "bigint"})
    if kind.startswith("iceberg"):
        target = pipeline.Target("db.t", kind="iceberg", catalog=f"{root}/warehouse")
    changes = (
        pipeline.Merge(
            name="add",
            source="landing",
            target="t",
            on="id",
            when="when matched then update set v = target.v + source.v"
            " when not matched then insert (id, v) values (source.id, source.v)",
            options=calm,
        ),
        pipeline.Update(name="plus one", target="t", set={"v": "v + 1"}, options=calm),
        pipeline.Write(name="append", source="landing", target="t", options=calm),
        pipeline.Delete(name="delete", target="t", where="id = 3", options=calm),
        pipeline.Update(name="nothing", target="t", set={"v": "v + 1"}, where="id = 99", options=calm),
    )
    upkeep = (
        pipeline.Compact(name="compact", target="t", options=calm),
        pipeline.Update(name="double", target="t", set={"v": "v * 2"}, options=calm),
        pipeline.Optimize(name="optimize", target="t", by="v", options=calm),
        pipeline.Update(name="plus three", target="t", set={"v": "v + 3"}, options=calm),
        pipeline.Deduplicate(name="deduplicate", target="t", options=calm),
        pipeline.Expect(name="rows", target="t", min_rows=1),
    )
    return pipeline.Pipeline(
        name="p",
        engine=engine,
        sources={"landing": landing},
        targets={"t": target},
        steps=tuple(step for step in (*changes, *upkeep) if engine != "spark" or step.name in SHORT),
        reports=f"{root}/reports",
    )


def run(kind: str, engine: str, root: str) -> None:
    if hasattr(OTHERS.get(kind), "run"):
        OTHERS[kind].run(engine, root)
        return
    session = spark_session() if engine == "spark" else None
    for query in session.streams.active if kind.endswith("stream") else ():
        query.stop()  # of a driver that was killed, whose JVM would be gone with it
    pipeline.run(declared(kind, engine, root), progress=False, session=session).check()


def expected_after(kind: str, engine: str) -> State:
    if kind in OTHERS:
        return dict(sorted(OTHERS[kind].AFTER.items()))
    return AFTER_SHORT if engine == "spark" else AFTER


def state_of(kind: str, root: str) -> State:
    if kind in OTHERS:
        return OTHERS[kind].read_state(root)
    if kind.startswith("iceberg"):
        found = embedded_catalog(f"{root}/warehouse").load_table("db.t").scan().to_arrow()
    else:
        found = pq.read_table(f"{root}/t")
    return sorted(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


class Sweep:
    """One pipeline, and faults at its points; ``again`` also kills the run that comes after."""

    def __init__(self, kind: str, engine: str, directory: str) -> None:
        self.kind, self.engine = kind, engine
        self.directory, self.template = directory, f"{directory}.template"
        shutil.rmtree(directory, ignore_errors=True)
        make(kind, engine, directory)
        shutil.rmtree(self.template, ignore_errors=True)
        shutil.move(directory, self.template)  # the catalog has absolute paths in it: copies go back there
        self.result = Result(f"{kind} on {engine}", "")
        self.expected: State = []
        self.imported = False

    def run(self, fault: str, points: int, again: int) -> Result:
        self.result = Result(f"{self.kind} on {self.engine}", fault)
        if self.engine != "spark" and not self.imported:
            import_ahead(self._run_at(0, KILL).modules)
            self.imported = True
        baseline = self._run_at(0, KILL)
        self.result.calls = baseline.calls
        self.expected = state_of(self.kind, self.directory)
        if baseline.said != "ACK" or self.expected != expected_after(self.kind, self.engine):
            self.result.violations.append(f"fails without a fault: {baseline.said} {self.expected}")
            return self.result
        number = {"kill": KILL, "torn": TORN}.get(fault) or getattr(errno, fault, KILL)
        calls = [n for n in range(1, baseline.calls + 1) if fault != "torn" or baseline.kinds[n - 1] == "w"]
        for n in part_of(deciding(calls, points, baseline.marks)):
            outcome = self._run_at(n, number)
            self.result.points += 1
            self.result.killed += outcome.killed
            where = f"{fault} at call {n} ({baseline.kinds[n - 1]})"
            for second in spread(range(1, baseline.calls + 1), again) if again else ():
                self._next(second)
                self.result.double += 1
                where += f", the next run killed at {second}"
            self._check(where, outcome)
            if len(self.result.violations) >= MOST_VIOLATIONS:
                break
        return self.result

    def _run_at(self, n: int, fault: int) -> Outcome:
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.copytree(self.template, self.directory)  # with the times of the files that have landed
        if hasattr(OTHERS.get(self.kind), "prepare"):  # copies of files are others to what was noted of them
            in_child(lambda: OTHERS[self.kind].prepare(self.engine, self.directory), 0, KILL)
        return in_child(lambda: run(self.kind, self.engine, self.directory), n, fault)

    def _next(self, n: int = 0) -> Outcome:
        return in_child(lambda: run(self.kind, self.engine, self.directory), n, KILL)

    def _leftovers(self, outcome: Outcome) -> list[str]:
        """What is left; an error after all was published leaves a record for the next writer, or recover."""
        tables = {"parquet": ("t",), "parquet stream": ("t",), "computed": ("orders", "scores")}
        tables |= {
            "guarded": ("orders", "raw", "negative", "large"),
            "since": ("orders", "sums"),
            "backfill": ("orders",),
        }
        names = tables.get(self.kind, ())
        found = []
        for root in (f"{self.directory}/{name}" for name in names):
            # Links to files that were being read are swept by the next writer of their table, or recover.
            if leftovers(root) and (outcome.said == "ACK" or self.kind in ("computed", "since")):
                it.recover(root)
            found += [name for name in leftovers(root) if not name.startswith("retained/")]  # as asked for
        return found

    def _check(self, where: str, outcome: Outcome) -> None:
        following = self._next()
        found = state_of(self.kind, self.directory)
        resting = self._next()
        if following.said != "ACK" or resting.said != "ACK":
            told = f"{following.said} {resting.said}"
        elif found != self.expected:
            told = f"{found} instead of {self.expected}"
        elif state_of(self.kind, self.directory) != found:
            told = "a third run changed the rows again"
        elif left := self._leftovers(outcome):
            told = f"left behind: {left}"
        else:
            return
        self.result.violations.append(f"{where} ({outcome.said or 'killed'}): {told}")


def main() -> None:
    order = json.loads(sys.argv[1])
    kind, _, engine = order["operation"].partition(" on ")
    import_ahead([place.partition(":")[0] for place, _ in DECIDING.values()])
    if engine == "spark":
        spark_session()  # before any fork
    sweep = Sweep(kind, engine, order["directory"])
    try:
        results = [sweep.run(fault, points, again) for fault, points, again in order["faults"]]
    finally:
        for directory in (sweep.directory, sweep.template):
            shutil.rmtree(directory, ignore_errors=True)
        stop_spark()
    print(json.dumps([asdict(result) for result in results]))


if __name__ == "__main__":
    main()
