from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import intarsia as it
from intarsia import pipeline, telemetry
from intarsia.common.requests import KINDS, Requests
from intarsia.core.observe import observe
from intarsia.core.report import MergeResult
from intarsia.core.run import ATTEMPTS
from intarsia.errors import CommitConflict, KeyColumnError, NotSupported
from intarsia.tables.parquet.table import ParquetTransaction

SECRET = "4711-4712-4713"
OBSERVABILITY = (Path(__file__).parents[2] / "docs/observability.md").read_text(encoding="utf-8")


class Recorded:
    """What was exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.spans_to = TracerProvider()
        self.spans_to.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.metrics_to = MeterProvider([self.reader])

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def count(self, name: str, **labels: Any) -> float:
        """The sum of a counter, or the number of measurements, with these attributes."""
        data = self.reader.get_metrics_data()
        found = [
            point
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
            if all((point.attributes or {}).get(key) == value for key, value in labels.items())
        ]
        return sum(getattr(point, "value", 0) or getattr(point, "count", 0) for point in found)


@pytest.fixture
def recorded(orders: Path) -> Iterator[Recorded]:
    """From here on; the table is there already."""
    made = Recorded()
    telemetry.enable(tracer_provider=made.spans_to, meter_provider=made.metrics_to)
    yield made
    telemetry.disable()
    made.metrics_to.shutdown()
    telemetry._state = "unset"


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "orders"
    it.write(pa.table({"id": [1, 2, 3], "n": ["a", "b", "c"]}), path)
    return path


def test_an_operation_is_a_span_with_its_rows_files_and_bytes(recorded: Recorded, orders: Path) -> None:
    result = it.merge(pa.table({"id": [3, 4], "n": ["x", "y"]}), orders, on="id")
    span = recorded.spans["merge orders"]
    told = dict(span.attributes or {})
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.name == "intarsia"
    assert told["db.operation.name"] == "merge"
    assert told["db.collection.name"] == str(orders)
    assert told["intarsia.engine"] == result.engine
    rows = [told[f"intarsia.rows.{name}"] for name in ("source", "inserted", "updated", "deleted", "total")]
    assert rows == [2, 1, 1, 0, 4]
    assert told["intarsia.files.rewritten"] == len(result.rewritten_files)
    assert told["intarsia.bytes.written"] == result.bytes_written
    assert (told["intarsia.attempts"], told["intarsia.table.version"]) == (1, result.version)
    assert span.status.status_code is StatusCode.UNSET


def test_counters_add_up_over_operations(recorded: Recorded, orders: Path) -> None:
    first = it.merge(pa.table({"id": [3, 4], "n": ["x", "y"]}), orders, on="id")
    second = it.delete(orders, "id < 3")
    it.delete(orders, "id = 4", dry_run=True)
    assert recorded.count("intarsia.rows", **{"intarsia.action": "deleted"}) == 2
    assert recorded.count("intarsia.rows", **{"db.operation.name": "merge"}) == 2
    written = first.bytes_written + second.bytes_written
    assert recorded.count("intarsia.io", **{"intarsia.io.direction": "write"}) == written
    assert recorded.count("intarsia.operation.duration", **{"db.operation.name": "delete"}) == 2
    assert recorded.count("intarsia.operation.duration", **{"intarsia.dry_run": True}) == 1


def test_an_error_is_named_by_its_type_and_no_value_of_a_row_is_told(
    recorded: Recorded, orders: Path
) -> None:
    with pytest.raises(KeyColumnError, match=SECRET):
        it.merge(pa.table({"id": [9, 9], "n": [SECRET, SECRET]}), orders, on="n")
    span = recorded.spans["merge orders"]
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "KeyColumnError"
    assert SECRET not in span.to_json()
    assert recorded.count("intarsia.operation.duration", **{"error.type": "KeyColumnError"}) == 1


def test_conflicts_and_retries_are_counted(
    recorded: Recorded, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, refusals = ParquetTransaction.commit, 2

    def refuse(self: ParquetTransaction, change: Any) -> Any:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise CommitConflict(f"{SECRET} came first", path=str(orders))
        return commit(self, change)

    monkeypatch.setattr(ParquetTransaction, "commit", refuse)
    assert it.delete(orders, "id = 1").attempts == 3
    span = recorded.spans["delete orders"]
    assert [event.name for event in span.events] == ["intarsia.retry"] * 2
    assert [dict(event.attributes or {}) for event in span.events] == [{"error.type": "CommitConflict"}] * 2
    assert (recorded.count("intarsia.retries"), recorded.count("intarsia.conflicts")) == (2, 2)
    refusals = 100
    with pytest.raises(CommitConflict):
        it.delete(orders, "id = 2")
    assert recorded.count("intarsia.retries") == 2 + ATTEMPTS - 1
    assert recorded.count("intarsia.conflicts") == 2 + ATTEMPTS
    assert SECRET not in span.to_json()


def test_requests_to_a_store_are_counted_where_a_result_has_them(recorded: Recorded) -> None:
    made = MergeResult("upsert", 1, 1, 1, 0, 0, 0, requests=Requests(GET=3, PUT=1))
    with observe("operation", "merge", {}) as seen:
        seen.end(made)
    assert (recorded.spans["merge"].attributes or {})["intarsia.requests.GET"] == 3
    assert recorded.count("intarsia.requests", **{"intarsia.request": "GET"}) == 3
    assert recorded.count("intarsia.requests") == 4


def test_a_restore_is_an_operation(recorded: Recorded, orders: Path) -> None:
    it.delete(orders, "true", retain=2)
    it.restore(orders, 1)
    assert (recorded.spans["restore orders"].attributes or {})["intarsia.rows.total"] == 3


def test_credentials_in_a_path_are_not_told(recorded: Recorded) -> None:
    with observe("operation", "merge", {"db.collection.name": "s3://me:hidden@host/orders"}):
        pass
    assert "hidden" not in recorded.spans["merge"].to_json()


PIPELINE = """
name = "shop"
engine = "arrow"
sources.landing.path = "landing.parquet"
targets.orders.path = "sales"

[[steps]]
name = "upsert"
operation = "merge"
source = "landing"
target = "orders"
on = "id"

[[steps]]
name = "purge"
operation = "delete"
target = "orders"
where = "COLUMN < 2"
"""


@pytest.mark.parametrize("column", ["id", "absent"])
def test_steps_are_the_parents_of_operations_and_the_run_that_of_steps(
    recorded: Recorded, tmp_path: Path, column: str
) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "landing.parquet")
    (tmp_path / "shop.toml").write_text(PIPELINE.replace("COLUMN", column))
    report = pipeline.run_file(tmp_path / "shop.toml", progress=False)
    spans = recorded.spans
    run, step = spans["pipeline shop"], spans["step upsert"]
    assert run.parent is None
    assert step.parent is not None
    assert step.parent.span_id == run.context.span_id
    operation = spans["merge sales"].parent
    assert operation is not None
    assert operation.span_id == step.context.span_id
    assert (run.attributes or {})["intarsia.pipeline.run_id"] == report.run_id
    purge = spans["step purge"]
    failed = column == "absent"
    assert (purge.attributes or {})["intarsia.step.status"] == ("failed" if failed else "done")
    for one in (run, purge):
        assert one.status.status_code is (StatusCode.ERROR if failed else StatusCode.UNSET)
        assert (one.attributes or {}).get("error.type") == ("ColumnNotFound" if failed else None)
    assert recorded.count("intarsia.step.duration", **{"intarsia.step.name": "upsert"}) == 1
    assert recorded.count("intarsia.pipeline.duration") == 1


class Instruments(MeterProvider):
    """Notes which instruments are made, by name with their unit."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[str, str] = {}

    def get_meter(self, *about: Any, **more: Any) -> Any:
        return self

    def create_counter(self, name: str, unit: str, description: str) -> None:
        self.made[name] = unit

    def create_histogram(self, name: str, unit: str, description: str) -> None:
        self.made[name] = f"{unit} (histogram)"


def _read_rows(heading: str) -> list[list[str]]:
    """The cells of every table of a section of the documentation."""
    section = OBSERVABILITY.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ") and "`" in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_documentation_lists_every_metric_with_its_unit() -> None:
    instruments = Instruments()
    telemetry.enable(meter_provider=instruments)
    telemetry.disable()
    telemetry._state = "unset"
    instruments.shutdown()
    rows = _read_rows("Metrics")
    assert {row[0].strip("`"): row[1] for row in rows if row[0].startswith("`")} == instruments.made


def test_the_documentation_lists_every_attribute_of_a_span(recorded: Recorded, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "landing.parquet")
    (tmp_path / "shop.toml").write_text(PIPELINE.replace("COLUMN", "absent"))
    pipeline.run_file(tmp_path / "shop.toml", progress=False)
    with observe("operation", "merge", {}) as seen:
        seen.end(MergeResult("upsert", 1, 1, 1, 0, 0, 0, requests=Requests(GET=3)))
    told = {name for span in recorded.exporter.get_finished_spans() for name in span.attributes or {}}
    listed: set[str] = set()
    for row in _read_rows("Spans"):
        stem = ""
        for name in re.findall(r"`([a-z_.A-Z]+)`", row[2] if len(row) == 3 else row[0]):
            stem = name.rpartition(".")[0] if not name.startswith(".") else stem
            listed.add(f"{stem}{name}" if name.startswith(".") else name)
    assert "intarsia.requests.KIND" in listed
    listed = listed - {"intarsia.requests.KIND"} | {f"intarsia.requests.{kind}" for kind in KINDS}
    assert listed == told


def test_nobody_watches_after_disable(recorded: Recorded, orders: Path) -> None:
    telemetry.disable()
    it.delete(orders, "id = 1")
    assert recorded.spans == {}


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(NotSupported, match="opentelemetry-api"):
        telemetry.enable()


def _run(script: str, cwd: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-I", "-c", script],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


OPERATION = """
import json, sys, pyarrow as pa, intarsia as it
SETUP
it.write(pa.table({"id": [1]}), "orders")
print(json.dumps(RESULT))
"""


def test_a_program_without_opentelemetry_never_loads_it(tmp_path: Path) -> None:
    script = OPERATION.replace("SETUP", "").replace(
        "RESULT", "[name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    assert _run(script, tmp_path) == []


def test_a_program_that_has_set_it_up_gets_spans_without_another_word(tmp_path: Path) -> None:
    setup = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""
    script = OPERATION.replace("SETUP", setup).replace(
        "RESULT", "[span.name for span in exporter.get_finished_spans()]"
    )
    assert _run(script, tmp_path) == ["append orders"]


@pytest.mark.spark
def test_an_operation_on_spark_is_a_span_of_the_driver(recorded: Recorded, orders: Path, spark: Any) -> None:
    it.delete(orders, "id = 1", engine="spark")
    assert (recorded.spans["delete orders"].attributes or {})["intarsia.engine"] == "spark"
