"""Sends lineage events from a thread of its own, so that no step waits for whoever takes them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from intarsia.common.log import get_logger, redact

__all__ = ["LineageSender"]

log = get_logger(__name__)

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
