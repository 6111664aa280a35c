"""Rows of a DataFrame brought to the driver, so that Ctrl-C ends what computes them and nothing else."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import pyarrow as pa

from intarsia.spark.errors import spark_error_types
from intarsia.spark.session import is_connect

__all__ = ["collect", "run_interruptible"]

R = TypeVar("R")

_PATIENCE = 1.0
"""Seconds that Ctrl-C waits for jobs to end; those that need longer are seen to without it."""
_AGAIN = 0.2


def collect(frame: Any) -> pa.Table:
    """The rows of a DataFrame."""
    table: pa.Table = run_interruptible(frame.sparkSession, frame.toArrow)
    return table


def run_interruptible(spark: Any, work: Callable[[], R]) -> R:
    """What ``work`` gives, which runs jobs of a session; Ctrl-C cancels these.

    pyspark itself waits for a job that it collects from, reading nothing meanwhile: without the handler
    that it sets (notebooks set another) Ctrl-C may wait for good, and with it an error of Spark takes the
    interrupt's place. So another thread waits, and this one, the only one that Ctrl-C comes to, looks on.
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
    """Cancel what runs under a tag until the work is over: a job may be about to begin."""
    with suppress(*spark_error_types()):
        while work.is_alive():
            spark.interruptTag(tag)
            work.join(_AGAIN)
