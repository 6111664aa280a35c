"""A run that stays: the steps again and again until it is told to stop, by a signal or by the caller."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from intarsia.common.log import get_logger
from intarsia.errors import InputError
from intarsia.pipeline.model import Pipeline
from intarsia.pipeline.reports.report import PipelineReport, StepReport

__all__ = ["catch_signals", "check_continuous", "repeat", "tell_changes"]

log = get_logger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def check_continuous(pipeline: Pipeline, *, interval: float, once: bool) -> None:
    """Refuse a run that cannot stay.

    Raises:
        InputError: it has no stream, is a dry run or marks steps as done, or the interval is none.
    """
    if once:
        raise InputError(
            "A run that stays neither plans nor marks steps as done.", hint="leave one of the two out."
        )
    if interval < 0:
        raise InputError(f"interval= is a number of seconds, not {interval}.")
    if not any(source.stream is not None for source in pipeline.sources.values()):
        raise InputError(
            f"Pipeline {pipeline.name!r} has no stream, so there is nothing to stay for.",
            path=pipeline.origin,
            hint="declare a source with stream = { ... }, or run it again when there are new files.",
        )


class StopSignals:
    """Sets an event on the first Ctrl-C or SIGTERM; the second does what it did before."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Catch the signals. Again after a Spark session was opened, which sets a handler of its own."""
        if threading.current_thread() is not threading.main_thread() or self._stop.is_set():
            return
        for number in _SIGNALS:
            found = signal.getsignal(number)
            if found != self._handle:
                self._before[number] = found
                signal.signal(number, self._handle)

    def wrap(self, open_session: Callable[[], Any]) -> Callable[[], Any]:
        """A function that opens a session, and catches the signals again."""

        def open_and_install() -> Any:
            opened = open_session()
            self.install()
            return opened

        return open_and_install

    def remove(self) -> None:
        """Let the signals do what they did before."""
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        log.info("%s: stopping after the batch at hand", signal.Signals(number).name)
        self._stop.set()
        self.remove()


@contextmanager
def catch_signals(stop: threading.Event, *, wanted: bool) -> Iterator[StopSignals]:
    """Catch Ctrl-C and SIGTERM in the block, in the main thread and where it is wanted."""
    signals = StopSignals(stop)
    if wanted:
        signals.install()
    try:
        yield signals
    finally:
        signals.remove()


def repeat(
    run_pass: Callable[[], PipelineReport], first: PipelineReport, stop: threading.Event, interval: float
) -> PipelineReport:
    """Run passes until one fails or the event is set; the report of the last that did something."""
    last = first
    while last.ok and not stop.wait(interval):
        report = run_pass()
        if not report.ok or any(step.status != "unchanged" for step in report.steps if not step.left_out):
            last = report
    return last


def tell_changes(on_step: Callable[[StepReport], None] | None) -> Callable[[StepReport], None] | None:
    """The function for reports of steps, which gets only those that had something to do."""
    if on_step is None:
        return None
    return lambda step: None if step.status == "unchanged" else on_step(step)
