"""The progress of an operation: one line on a terminal, or nothing."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TextIO

from intarsia.core.ports import Progress
from intarsia.show import units

__all__ = ["Progress", "Silent", "Terminal", "make_reporter"]


class Silent:
    """A reporter that shows nothing."""

    def __call__(self, step: str, done: int, total: int, /) -> None:
        return None

    def close(self) -> None:
        return None

    def __enter__(self) -> Silent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Terminal:
    """Draws one line and redraws it in place; leaving the ``with`` block wipes it. Any thread may call it.

    Draws at most ten times a second, and nothing in the first quarter of one, so that a quick
    operation draws nothing. A step that came too early is drawn later, also when no other
    follows. A stream that fails is not written to again. ``title`` goes before every step.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        interval: float = 0.1,
        delay: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._interval = interval
        self._clock = clock
        self._next = clock() + delay
        self._drawn = False
        self._closed = False
        self._late: tuple[str, int, int] | None = None
        self._over = threading.Event()
        self._ticker: threading.Thread | None = None
        self.title = ""
        self._lock = threading.Lock()
        from intarsia.show import text  # a line is drawn on terminals only

        self._full, self._empty = ("█", "░") if text.takes_unicode(self._stream) else ("#", ".")

    def __call__(self, step: str, done: int, total: int, /) -> None:
        with self._lock:
            if self._closed:
                return
            self._late = (step, done, total)
            if not self._draw() and self._ticker is None:
                self._ticker = threading.Thread(target=self._draw_late, name="intarsia-progress", daemon=True)
                self._ticker.start()

    def close(self) -> None:
        """Wipe the line. Idempotent; later calls draw nothing."""
        with self._lock:
            if self._drawn and not self._closed:
                self._write("\r\x1b[K")
            self._closed = True
        self._over.set()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _draw_late(self) -> None:
        """Draw steps that came too early; runs in a thread until the line is wiped."""
        while not self._over.wait(max(self._interval, 0.05)):
            with self._lock:
                self._draw()

    def _draw(self) -> bool:
        """Draw the latest step if the interval is over; returns whether it did."""
        now = self._clock()
        if self._closed or self._late is None or now < self._next:
            return False
        self._next = now + self._interval
        self._drawn = True  # before it is: Ctrl-C may come right after
        self._write("\r" + self._make_line(*self._late) + "\x1b[K")
        self._late = None
        return True

    def _make_line(self, step: str, done: int, total: int) -> str:
        # The last column stays free: a terminal may wrap when it is written to.
        width = shutil.get_terminal_size().columns - 1
        step = f"{self.title}: {step}" if self.title else step
        if done <= 0 and total <= 0:  # nothing to count
            return units.elide(units.make_printable(step), width, mark="...")
        numbers = (
            f"{units.format_number(done)} / {units.format_number(total)}"
            if total > 0
            else units.format_number(done)
        )
        name = units.elide(units.make_printable(step), max(width - len(numbers) - 2, 1), mark="...")
        line = f"{name}  {numbers}"
        bar = min(width - units.measure_width(line) - 2, 24)
        if total <= 0 or bar < 8:
            return units.elide(line, width, mark="...")
        filled = min(max(done, 0), total) * bar // total
        return f"{name}  {self._full * filled}{self._empty * (bar - filled)}  {numbers}"

    def _write(self, what: str) -> None:
        try:
            self._stream.write(what)
            self._stream.flush()
        except (OSError, ValueError):  # gone, or closed: showing progress must not end the work
            self._closed = True


def make_reporter(
    stream: TextIO | None = None, *, environ: Mapping[str, str] | None = None
) -> Terminal | Silent:
    """A progress line on a terminal; elsewhere a silent one.

    Silent when the stream (standard error unless given) is no terminal, on a terminal that cannot
    redraw a line (``TERM=dumb``), and in CI.
    """
    stream = sys.stderr if stream is None else stream
    environ = os.environ if environ is None else environ
    in_ci = environ.get("CI", "").lower() not in ("", "0", "false")
    looked_at = stream is not None and not stream.closed and stream.isatty()
    if in_ci or environ.get("TERM") == "dumb" or not looked_at:
        return Silent()
    return Terminal(stream)
