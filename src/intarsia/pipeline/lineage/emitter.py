"""Lineage of a run for OpenLineage: where events go, and which step has which datasets.

The events themselves are in events; nothing here fails a run once it has begun.
"""

from __future__ import annotations

import importlib
import logging
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.common.log import get_logger, redact
from intarsia.errors import InputError, NotSupported
from intarsia.pipeline.model import Expect, LineageSettings, Pipeline, Step, find_written_target
from intarsia.pipeline.places import complete_place
from intarsia.pipeline.quality.references import list_referenced_sources, list_referenced_targets
from intarsia.pipeline.reports.report import PipelineReport, StepReport
from intarsia.pipeline.resources import RunResources
from intarsia.pipeline.state.run_state import RunState

if TYPE_CHECKING:
    from intarsia.pipeline.lineage.events import EventMaker, TableFacts

__all__ = ["LineageRun", "close_lineage", "open_lineage"]

log = get_logger(__name__)

ENDPOINT = "api/v1/lineage"
HASTE = 1.0
"""Maximum seconds that a run which is interrupted waits for its last events."""
_ENVIRONMENT = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")


def open_lineage(pipeline: Pipeline, resources: RunResources, run_state: RunState) -> LineageRun | None:
    """The lineage of a run that is about to begin; None where nobody asks for it, and of a dry run.

    Raises:
        InputError: the settings are not consistent, or OpenLineage's own configuration cannot be read.
        NotSupported: the pipeline asks for lineage, and openlineage-python is not installed.
    """
    settings = pipeline.lineage
    if run_state.dry_run or os.environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return None
    if (settings is None and not _is_configured()) or (settings is not None and not settings.enabled):
        return None
    try:
        events = importlib.import_module("intarsia.pipeline.lineage.events")
        client = _make_client(settings or LineageSettings())
    except ModuleNotFoundError as error:
        if settings is None:
            log.info("no lineage is sent: %s is not installed", error.name)
            return None
        raise NotSupported(
            f"[lineage] needs {error.name}, which is not installed.", hint="pip install 'intarsia[lineage]'"
        ) from error
    except (ValueError, RuntimeError, TypeError, KeyError, OSError) as error:
        where = "" if settings is None else "[lineage]: "
        refused = InputError(f"{where}Lineage cannot be sent as it is configured: {error}")
        complete_place(refused, pipeline.lines, pipeline.origin)
        raise refused from error
    namespace = (settings and settings.namespace) or os.environ.get("OPENLINEAGE_NAMESPACE") or "default"
    maker = events.EventMaker(pipeline, run_state.run_id, namespace)
    return LineageRun(pipeline, resources, run_state, maker, LineageSender(client.emit))


def close_lineage(
    lineage: LineageRun | None, report: PipelineReport, *, interrupted: bool = False
) -> PipelineReport:
    """The report, with a note where its lineage could not be sent."""
    problem = None if lineage is None else lineage.close(None if interrupted else report)
    return report if problem is None else replace(report, notes=(*report.notes, problem))


def _is_configured() -> bool:
    """Whether OpenLineage's own variables or its file say where events go."""
    if any(os.environ.get(name) for name in _ENVIRONMENT):
        return True
    if any(name.startswith("OPENLINEAGE__TRANSPORT") for name in os.environ):
        return True
    files = (Path("openlineage.yml"), Path("~/.openlineage/openlineage.yml").expanduser())
    return any(file.is_file() for file in files)


def _make_client(settings: LineageSettings) -> Any:
    from openlineage.client import OpenLineageClient

    own = logging.getLogger("openlineage")
    if own.level == logging.NOTSET:  # what it warns of is told in the report
        own.setLevel(logging.ERROR)
    transport: dict[str, Any] | None = None
    if settings.file is not None:
        Path(settings.file).parent.mkdir(parents=True, exist_ok=True)
        transport = {"type": "file", "log_file_path": settings.file, "append": True}
    elif settings.url is not None:
        url = settings.url.rstrip("/").removesuffix(f"/{ENDPOINT}")
        transport = {"type": "http", "url": url, "timeout": settings.timeout, "retry": {"total": 1}}
        if settings.api_key is not None:
            transport["auth"] = {"type": "api_key", "apiKey": settings.api_key}
    if transport is None:
        return OpenLineageClient()
    from openlineage.client.transport import get_default_factory

    return OpenLineageClient(transport=get_default_factory().create(transport))


@dataclass(slots=True)
class LineageRun:
    """Tells of the steps of one run. A run in which no step had anything to do is not told of."""

    pipeline: Pipeline
    resources: RunResources
    run_state: RunState
    maker: EventMaker
    sender: LineageSender
    under_way: dict[str, Step] = field(default_factory=dict)
    told: bool = False

    def begin_step(self, step: Step) -> None:
        """A step is about to do something."""
        self._begin_run()
        self.under_way[step.name] = step
        self._send("START", step)

    def end_step(self, report: StepReport) -> None:
        """A step is over; one that did nothing is left out."""
        step = self.under_way.pop(report.name, None)
        if step is None and report.status not in ("done", "failed"):
            return
        if step is None:  # it failed before it began, or was a stream
            step = next(one for one in self.run_state.list_steps() if one.name == report.name)
            self._begin_run()
            self._send("START", step)
        self._send("FAIL" if report.status == "failed" else "COMPLETE", step, report)

    def close(self, report: PipelineReport | None) -> str | None:
        """The run is over, with a report, or interrupted; what went wrong with sending, in a sentence."""
        for step in self.under_way.values():
            self._send("ABORT", step)
        if self.told:
            failed = None if report is None else report.failed
            state = "ABORT" if report is None else "FAIL" if failed is not None else "COMPLETE"
            self.sender.send(
                self.maker.make_run_event(_get_state(state), None if failed is None else failed.error)
            )
        return self.sender.close(HASTE if report is None else None)

    def _begin_run(self) -> None:
        if not self.told:
            self.told = True
            self.sender.send(self.maker.make_run_event(_get_state("START")))

    def _send(self, state: str, step: Step, report: StepReport | None = None) -> None:
        graph = self.resources.graph
        read = dict.fromkeys(graph.list_targets(step.source))
        if isinstance(step, Expect):
            read |= {} if step.target is None or step.source is not None else {step.target: None}
            read |= dict.fromkeys(list_referenced_targets(step, self.pipeline))
        referenced = list_referenced_sources(step, self.pipeline)
        for name in referenced:
            read |= dict.fromkeys(graph.list_targets(name))
        named = (*(() if step.source is None else (step.source,)), *referenced)
        declared = {one: self.pipeline.sources[one] for name in named for one in graph.list_sources(name)}
        sources = {name: one for name, one in declared.items() if one.path or one.stream is not None}
        parts = {one.target for one in declared.values() if one.since is not None}
        code = graph.codes.get(step.source or "")
        after = None if report is None else report.after
        target = find_written_target(step)
        self.sender.send(
            self.maker.make_step_event(
                _get_state(state),
                step,
                read={name: replace(self._find_table(name), whole=name not in parts) for name in read},
                sources=sources,
                written=None if target is None else self._find_table(target, after),
                query=None if code is None or code.query is None else code.query.text,
                report=report,
            )
        )

    def _find_table(self, name: str, snapshot: Any = None) -> TableFacts:
        """What is known of a target, without looking at it again."""
        from intarsia.pipeline.lineage.events import TableFacts

        declared = self.pipeline.targets[name]
        known = snapshot or self.run_state.snapshots.get(name)
        if declared.kind == "parquet":
            return TableFacts(declared.path, snapshot=known)
        table = self.resources.tables.get(name)
        location = getattr(table, "location", None)
        if declared.kind == "spark_table":
            alias = getattr(table, "catalog_name", None)
            if alias is None and location is not None:  # an Iceberg table: its root is its whole name
                alias = ("iceberg", table.root)  # type: ignore[union-attr]
            place = location or getattr(table, "root", None) or f"spark://{declared.path}"
            return TableFacts(place, alias=alias, snapshot=known)
        return TableFacts(
            location or f"iceberg://{declared.catalog.strip('/')}/{declared.path}",
            catalog=declared.catalog,
            table=declared.path,
            snapshot=known,
        )


def _get_state(name: str) -> Any:
    from openlineage.client.event_v2 import RunState as EventState

    return EventState[name]


PATIENCE = 5.0
"""Maximum seconds that the end of a run waits for events that are not sent yet."""
_MOST_FAILURES = 3
"""After so many failures in a row nothing more is tried in this run."""
# What transports raise: requests and sockets (OSError), the client itself, what it cannot serialize.
_FAILURES = (OSError, RuntimeError, ValueError, TypeError, LookupError, AttributeError)


class LineageSender:
    """Sends events in order, until it is closed; a failure is counted and never raised."""

    def __init__(self, emit: Callable[[Any], Any]) -> None:
        self._emit = emit
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._given = 0
        self._sent = 0
        self._failure = ""
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="intarsia-lineage", daemon=True)
        self._thread.start()

    def send(self, event: Any) -> None:
        """Send an event soon; returns at once."""
        self._given += 1
        self._queue.put(event)

    def close(self, patience: float | None = None) -> str | None:
        """Wait a little for what is not sent yet; what went wrong, in a sentence, or None."""
        self._queue.put(None)
        self._thread.join(PATIENCE if patience is None else patience)
        self._stopped = True
        lost = self._given - self._sent
        if not lost:
            return None
        why = self._failure or "there was no answer in time"
        told = f"{lost} of {self._given} lineage events could not be sent: {why}"
        log.warning("%s", told)
        return told

    def _work(self) -> None:
        failures = 0
        while not self._stopped and (event := self._queue.get()) is not None:
            if failures >= _MOST_FAILURES:
                continue
            try:
                self._emit(event)
            except _FAILURES as error:
                failures += 1
                self._failure = redact(f"{type(error).__name__}: {error}")[:300]
            else:
                failures = 0
                self._sent += 1
