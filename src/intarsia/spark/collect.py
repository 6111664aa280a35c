"""Rows of a DataFrame collected to the driver; Ctrl-C cancels the jobs that compute them, and no others."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import pyarrow as pa

from intarsia.spark.errors import list_spark_error_types
from intarsia.spark.session import is_connect

__all__ = ["collect", "run_interruptible"]

R = TypeVar("R")

_PATIENCE = 1.0
"""Seconds to wait for cancelled jobs after Ctrl-C; a thread goes on cancelling those that take longer."""
_AGAIN = 0.2


def collect(frame: Any) -> pa.Table:
    """The rows of a DataFrame."""
    table: pa.Table = run_interruptible(frame.sparkSession, frame.toArrow)
    return table


def run_interruptible(spark: Any, work: Callable[[], R]) -> R:
    """The result of ``work``, which runs jobs of a session; Ctrl-C cancels these.

    pyspark blocks in a read while a job runs: without its own signal handler (notebooks set another) Ctrl-C
    may wait for ever, and with it an error of Spark replaces the KeyboardInterrupt. So the work runs in
    another thread, and the main thread, which alone gets signals, waits for it.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    from pyspark import InheritableThread

    tag = f"intarsia-{uuid.uuid4().hex}"
    found: Future[R] = Future()

    def run_tagged() -> R:
        spark.addTag(tag)  # of this thread alone
        if not is_connect(spark):  # where it is so anyhow
            spark.sparkContext.setLocalProperty("spark.job.interruptOnCancel", "true")
        return work()

    thread = InheritableThread(target=_run_into, args=(run_tagged, found), session=spark, daemon=True)
    try:
        thread.start()
        return found.result()
    except KeyboardInterrupt:
        ending = threading.Thread(target=_cancel, args=(spark, tag, thread), daemon=True)
        ending.start()
        ending.join(_PATIENCE)
        raise


def _run_into(work: Callable[[], R], found: Future[R]) -> None:
    try:
        found.set_result(work())
    except BaseException as error:  # noqa: BLE001  raised by who waits
        found.set_exception(error)


def _cancel(spark: Any, tag: str, work: threading.Thread) -> None:
    """Cancel jobs with a tag until the work ends: another job may be about to begin."""
    with suppress(*list_spark_error_types()):
        while work.is_alive():
            spark.interruptTag(tag)
            work.join(_AGAIN)
