"""Spans and counters of OpenTelemetry for operations, runs of pipelines and their steps.

OpenTelemetry is imported by nobody but the program itself, or by :func:`enable`: without either, an operation
costs one look into a dictionary. Names are in docs/observability.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from intarsia import __version__
from intarsia.common.log import redact
from intarsia.core.observe import Facts, Kind, Observation, set_observer
from intarsia.core.report import MergeResult
from intarsia.errors import CommitConflict, NotSupported

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

__all__ = ["disable", "enable", "follow"]

_SCOPE = "intarsia"
_LOADED = "opentelemetry.trace"
"""A program that has set up OpenTelemetry has loaded this."""
_FILES = ("rewritten", "with_deletes", "inserted", "removed")
_state: Literal["unset", "on", "off"] = "unset"


def enable(
    *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Make spans and counters from now on, in this process.

    Not needed in a program that has set up OpenTelemetry before its first operation: that is found by itself.

    Args:
        tracer_provider: instead of the global one.
        meter_provider: instead of the global one.

    Raises:
        NotSupported: opentelemetry-api is not installed.

    Example:
        >>> from intarsia import telemetry
        >>> telemetry.enable()
        >>> telemetry.disable()
    """
    global _state
    try:
        set_observer(_make_observer(tracer_provider, meter_provider))
    except ModuleNotFoundError as error:
        raise NotSupported(
            "opentelemetry-api is needed here, which is not installed.", hint="pip install 'intarsia[otel]'."
        ) from error
    _state = "on"


def disable() -> None:
    """Make no spans and counters from now on, also where the program has set up OpenTelemetry.

    Example:
        >>> from intarsia import telemetry
        >>> telemetry.disable()
    """
    global _state
    set_observer(None)
    _state = "off"


def follow() -> None:
    """Turn it on where the program has loaded OpenTelemetry and nobody has decided; called by operations."""
    if _state == "unset" and _LOADED in sys.modules:
        enable()


def _make_observer(
    tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None
) -> _OtelObserver:
    from opentelemetry import metrics, trace

    meter = metrics.get_meter(_SCOPE, __version__, meter_provider)
    counters = {
        "intarsia.rows": ("{row}", "Rows that operations have inserted, updated or deleted."),
        "intarsia.files": (
            "{file}",
            "Files that operations have rewritten, added, removed or added deletes to.",
        ),
        "intarsia.io": ("By", "Bytes of data files that operations have read and written."),
        "intarsia.retries": ("{retry}", "Times that an operation was planned again."),
        "intarsia.conflicts": ("{conflict}", "Times that another writer came first."),
        "intarsia.requests": ("{request}", "Requests that operations have sent to a store."),
    }
    durations = {
        "operation": "Time that an operation took.",
        "pipeline": "Time that a run of a pipeline took.",
        "step": "Time that a step of a pipeline took.",
    }
    return _OtelObserver(
        trace.get_tracer(_SCOPE, __version__, tracer_provider),
        {name: meter.create_counter(name, unit, told) for name, (unit, told) in counters.items()},
        {
            kind: meter.create_histogram(f"intarsia.{kind}.duration", "s", told)
            for kind, told in durations.items()
        },
    )


@dataclass(frozen=True, slots=True)
class _OtelObserver:
    tracer: Any
    counters: Mapping[str, Any]
    durations: Mapping[str, Any]

    def observe(self, kind: Kind, name: str, facts: Facts) -> AbstractContextManager[Observation]:
        return self._watch(kind, name, facts)

    @contextmanager
    def _watch(self, kind: Kind, name: str, facts: Facts) -> Iterator[Observation]:
        known = {key: redact(value) if isinstance(value, str) else value for key, value in facts.items()}
        title = known.pop("title", name)
        begun = time.perf_counter()
        # Messages of errors may name values of keys, so the SDK is not to take them.
        with self.tracer.start_as_current_span(
            str(title), attributes=known, record_exception=False, set_status_on_exception=False
        ) as span:
            seen = _OtelObservation(self, span, _select_labels(kind, known))
            try:
                yield seen
            except BaseException as error:
                seen.fail(error)
                raise
            finally:
                self.durations[kind].record(time.perf_counter() - begun, seen.labels)


_LABELS: Mapping[Kind, tuple[str, ...]] = {
    "operation": ("db.operation.name", "intarsia.engine", "intarsia.dry_run"),
    "pipeline": ("intarsia.pipeline.name",),
    "step": ("intarsia.pipeline.name", "intarsia.step.name", "db.operation.name"),
}
"""The attributes of measurements, of which there are few values; the table is one of spans alone."""


def _select_labels(kind: Kind, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: facts[name] for name in _LABELS[kind] if name in facts}


@dataclass(slots=True)
class _OtelObservation:
    observer: _OtelObserver
    span: Span
    labels: dict[str, Any]

    def retry(self, error: Exception) -> None:
        self.span.add_event("intarsia.retry", {"error.type": _name_error(error)})
        self._count("intarsia.retries", 1, {"error.type": _name_error(error)})
        if isinstance(error, CommitConflict):
            self._count("intarsia.conflicts", 1)

    def note(self, facts: Facts) -> None:
        self.span.set_attributes(
            {key: redact(value) if isinstance(value, str) else value for key, value in facts.items()}
        )

    def fail(self, error: BaseException) -> None:
        """Note the type of an error, and neither its message nor its traceback."""
        from opentelemetry.trace import StatusCode

        name = _name_error(error)
        self.labels["error.type"] = name
        self.span.set_attribute("error.type", name)
        self.span.set_status(StatusCode.ERROR, name)
        if isinstance(error, CommitConflict) and "intarsia.engine" in self.labels:
            self._count("intarsia.conflicts", 1)

    def end(self, result: MergeResult) -> None:
        requests: Mapping[str, int] = result.requests or {}
        self.note(
            {
                "intarsia.rows.source": result.source_count,
                "intarsia.rows.inserted": result.inserted,
                "intarsia.rows.updated": result.updated,
                "intarsia.rows.deleted": result.deleted,
                "intarsia.rows.total": result.target_count_after,
                "intarsia.files.preserved": len(result.preserved_files),
                "intarsia.bytes.read": result.bytes_read,
                "intarsia.bytes.written": result.bytes_written,
                "intarsia.attempts": result.attempts,
                "intarsia.changed": result.changed,
                **{f"intarsia.files.{kind}": len(getattr(result, _name_files(kind))) for kind in _FILES},
                **{f"intarsia.requests.{name}": count for name, count in requests.items()},
                **({} if result.version is None else {"intarsia.table.version": result.version}),
            }
        )
        if result.dry_run:  # which has changed nothing
            return
        for action in ("inserted", "updated", "deleted"):
            self._count("intarsia.rows", getattr(result, action), {"intarsia.action": action})
        for kind in _FILES:
            self._count("intarsia.files", len(getattr(result, _name_files(kind))), {"intarsia.action": kind})
        self._count("intarsia.io", result.bytes_read, {"intarsia.io.direction": "read"})
        self._count("intarsia.io", result.bytes_written, {"intarsia.io.direction": "write"})
        for name, count in requests.items():
            self._count("intarsia.requests", count, {"intarsia.request": name})

    def _count(self, name: str, number: int, labels: Mapping[str, str] | None = None) -> None:
        if number:
            self.observer.counters[name].add(number, {**self.labels, **(labels or {})})


def _name_files(kind: str) -> str:
    return "files_with_deletes" if kind == "with_deletes" else f"{kind}_files"


def _name_error(error: BaseException) -> str:
    """The class of an error, with its module where it is not ours."""
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ in ("builtins", "intarsia.errors")
        else (f"{kind.__module__}.{kind.__qualname__}")
    )
