"""Random merges whose rows are routed, with tasks in this process: as the in-process engine, row for row.

No JVM is needed, so there is time for many. Everything that tasks are given and give back is pickled, and
each of them runs twice, as if Spark had repeated it: what the first attempt left behind never counts.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import intarsia as it
from intarsia.arguments import make_rule
from intarsia.common.arrow import IngestedSource, ingest
from intarsia.engines.spark import SparkEngine, large_source, route, route_tasks, tasks
from intarsia.engines.spark.source import SparkSource, create_spool, spool_table
from intarsia.engines.spark.tasks import share_buffers
from tests.property.test_operations_agree_with_model import KINDS, rows_of
from tests.sampling import choose_number
from tests.spark.test_agrees_with_arrow import cases, made, merge_of, outcome, sources

many = settings(
    max_examples=1000 if os.environ.get("INTARSIA_HYPOTHESIS") == "full" else choose_number(8, 25),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class Conf:
    def get(self, name: str, default: Any = None) -> Any:
        return "local[2]" if name == "spark.master" else default


class Context:
    master = "none: tasks run here"


class Session:
    conf = Conf()
    sparkContext = Context()


@dataclass(frozen=True, slots=True)
class TasksHere(tasks.TaskRunner):
    """Does the work itself, all of it twice."""

    def run_each(self, work: Any, jobs: Any, *, shared: Any, weights: Any, room: Any = None) -> list[Any]:
        data = tasks.serialize((work, shared)) if room is None else share_buffers((work, shared), room)
        return [[self._done(data, job) for _ in range(2)][1] for job in jobs]

    def _done(self, data: Any, job: Any) -> Any:
        work, shared = tasks.load_work(data)
        return pickle.loads(pickle.dumps(work(shared, tasks.deserialize(tasks.serialize(job)))))


@dataclass(frozen=True, slots=True)
class HereEngine(SparkEngine):
    parts: int = 3

    @property
    def runner(self) -> tasks.TaskRunner:
        return TasksHere(self.spark, 3)

    def ingest(
        self, source: Any, *, shared: Any = None, target: Any = None, **options: Any
    ) -> IngestedSource:
        place = create_spool(self.spark, shared, None)
        spool = spool_table(ingest(source, **options).table, place, tasks=self.parts)
        return SparkSource(spool, origin="a table", ordered=True)


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("routed")
    return base / "arrow" / "t", base / "spark" / "t"


@pytest.fixture(autouse=True, scope="module")
def everything_is_routed() -> Iterator[None]:
    """In many small pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(route, "ROUTED_BYTES", 0)
        patch.setattr(route_tasks, "FILE_BATCH_BYTES", 64)
        patch.setattr(large_source, "SORTED_BYTES", 64)
        yield


CLAUSES = [
    [
        it.when_matched("source.v > target.v").update({"s": "source.s || 'x'"}),
        it.when_matched("source.v = 1").delete(),
        it.when_matched().update({"v": "target.v + 1"}),
        it.when_not_matched("v > 1").insert_all(),
        it.when_not_matched_by_source("v = 2").delete(),
    ],
    [
        it.when_matched("target.v is null").update_all(),
        it.when_matched().update({"v": "source.v"}),
        it.when_not_matched().insert_all(),
    ],
    [it.when_matched().delete(), it.when_not_matched_by_source("s = 'p'").update({"s": "'alone'"})],
    [it.when_matched("source.s = 'p'").update({"v": "7"}), it.when_not_matched_by_source().delete()],
]


def agree(data: st.DataObject, roots: tuple[Path, Path], *, clauses: bool) -> None:
    case = data.draw(cases(KINDS))
    files = data.draw(st.lists(rows_of(case, unique=False), min_size=int(clauses), max_size=3))
    made(roots, case, files)
    source = case.table(data.draw(sources(case)))
    options = merge_of(data, case, not any(files))
    if clauses:
        del options["strategy"]
        options.pop("dedup_order_by", None)
        options["clauses"] = data.draw(st.sampled_from(CLAUSES))
        if data.draw(st.booleans()):
            same = [f"target.{name} = source.{name}" for name in case.keys]
            options["on"] = " and ".join([*same, "source.v > 0"])
    rule = make_rule(options.get("strategy", "upsert"), options.get("clauses"), None)
    if rule.inserts and data.draw(st.booleans()):
        options["max_rows_per_file"] = 2
    engines = "arrow", HereEngine(Session(), parts=data.draw(st.integers(1, 4)))
    found = [
        outcome(lambda: it.merge(source, root, engine=engine, **options), root, case)  # noqa: B023
        for engine, root in zip(engines, roots, strict=True)
    ]
    assert found[1] == found[0]


@given(st.data())
@many
def test_routed_strategies_agree(roots: tuple[Path, Path], data: st.DataObject) -> None:
    agree(data, roots, clauses=False)


@given(st.data())
@many
def test_routed_clauses_agree(roots: tuple[Path, Path], data: st.DataObject) -> None:
    agree(data, roots, clauses=True)
