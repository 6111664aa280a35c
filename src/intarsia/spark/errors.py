"""Spark's exceptions translated into errors of intarsia, with a short message and a hint."""

from __future__ import annotations

import errno
import platform
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from intarsia import errors
from intarsia.common.log import is_refused_access, redact
from intarsia.errors import CommitConflict, EngineError, InputError, IntarsiaError, NotSupported, StorageError
from intarsia.spark.session import active_session

__all__ = [
    "explain_refusal",
    "find_known_failure",
    "format_raised",
    "is_interrupt",
    "is_late_python",
    "list_spark_error_types",
    "summarize_error",
    "translate_error",
    "translate_spark_errors",
]

_LONGEST = 400
_SHIP = (
    'install the package there, or ship it with the job (docs/spark.md, "Python on executors");'
    " PYSPARK_PYTHON names the Python that executors run."
)
_READ_AGAIN = (
    "a DataFrame lists its files when it is read: read it again, or keep its rows (cache, checkpoint) before"
    " they are replaced."
)
_BOTH_PLACES = (
    "executors open the store with what filesystem= or storage_options= says: put the credentials there, or,"
    " where they come from the environment (variables, profiles, the machine's role), have them on every"
    " executor as on the driver."
)
_MORE_MEMORY = (
    "give executors more memory (spark.executor.memory, spark.executor.memoryOverhead; on a local session"
    " spark.driver.memory), or each task less to do (tasks=)."
)

_LOST_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
_VERSIONS = re.compile(r"different version: (\S+) than that in driver:? (\d+\.\d+)")
_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')
_OF_OURS = re.compile(r"(?:intarsia\.errors\.|intarsia )(\w+): (.*)")
_CAUSE = re.compile(r"^Caused by: ([\w.$]+)(?:: (.*))?$", re.MULTILINE)
_JAVA = re.compile(r"^: ([\w.$]+)(?:: (.*))?$", re.MULTILINE)

_LINK = re.compile(r"/snap/[0-9a-f]{32}/")
"""In the path of a link to a file of a dataset."""
_GONE = ("FILE_NOT_EXIST", "FileNotFoundException", "PATH_NOT_FOUND")
_NO_PYTHON = ("from pyspark.daemon", "Cannot run program")
_CANCELLED = ("JOB_CANCELLED", "OPERATION_CANCELED", " cancelled", "InterruptedException")
_STOPPED = (
    "stopped SparkContext",
    "SparkContext was shut down",
    "SESSION_CLOSED",
    "SESSION_NOT_FOUND",
    "SESSION_CHANGED",
    "Session was closed",
    "Channel closed",
)
_UNREACHABLE = ("StatusCode.UNAVAILABLE", "RETRIES_EXCEEDED", "failed to connect", "Connection refused")
_MEMORY = (
    "OutOfMemory",
    "OUT_OF_MEMORY",
    "MemoryError",
    "ExecutorLostFailure",
    "Python worker exited unexpectedly",
    "exit code: 137",
    "Container killed",
)


UNEVALUATED = "The source DataFrame could not be evaluated"
"""How errors begin that come from the rows of a source."""


def list_spark_error_types() -> tuple[type[Exception], ...]:
    """The exception types of Spark, py4j and gRPC, of those that are imported; imports none."""
    known = [
        getattr(sys.modules.get(module), name, None)
        for module, name in (
            ("pyspark.errors", "PySparkException"),
            ("py4j.protocol", "Py4JError"),
            ("grpc", "RpcError"),
        )
    ]
    return (*(kind for kind in known if kind is not None), ConnectionError)


@contextmanager
def translate_spark_errors(*, source: bool = False) -> Iterator[None]:
    """Translate exceptions of Spark in the block into errors of intarsia, with the original as cause.

    Args:
        source: whether a DataFrame of the caller is evaluated: what cannot be computed is then InputError.
    """
    with _record_interrupts() as pressed:
        try:
            yield
        except IntarsiaError:
            raise
        except list_spark_error_types() as error:
            if pressed or is_interrupt(error):
                raise KeyboardInterrupt from error
            raise translate_error(error, source=source) from error
        if pressed:
            raise KeyboardInterrupt


@contextmanager
def _record_interrupts() -> Iterator[list[int]]:
    """Record Ctrl-C in the block: py4j may log the KeyboardInterrupt and raise another error instead."""
    pressed: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield pressed
        return

    def remember(number: int, frame: FrameType | None) -> None:
        try:
            before(number, frame)
        except BaseException:
            pressed.append(number)
            raise

    signal.signal(signal.SIGINT, remember)
    try:
        yield pressed
    finally:
        if signal.getsignal(signal.SIGINT) is remember:  # else another was set meanwhile
            signal.signal(signal.SIGINT, before)


def is_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused an error.

    pyspark's signal handler calls the JVM, and a call that was waiting may get the answer of that one.
    """
    while error is not None:
        frames = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
        if isinstance(error, KeyboardInterrupt) or any(code.co_name == "signal_handler" for code in frames):
            return True
        error = error.__cause__ or error.__context__
    return False


def translate_error(error: Exception, *, source: bool = False) -> IntarsiaError:
    """The error of intarsia for one of Spark."""
    what = UNEVALUATED if source else "Spark could not do the work"
    known = find_known_failure(error, what)
    if known is not None:
        return known
    if source:
        return InputError(
            f"{what}: {summarize_error(error)}", hint="the same error comes from its own collect()."
        )
    return EngineError(f"{what}: {summarize_error(error)}", hint="Spark's log has more of it.")


def is_late_python(error: Exception) -> bool:
    """Whether Spark gave up waiting for a Python process that it had started."""
    return "waiting for the Python worker to connect back" in str(error)


def find_known_failure(error: Exception, what: str) -> IntarsiaError | None:
    """The error of intarsia where Spark's text has a known cause, else None; ``what`` begins its message."""
    text = f"{type(error).__name__}: {error}"
    found = _find_python_failure(text) or _parse_own_error(text)
    if found is not None:
        return explain_refusal(found)
    if _contains_any(text, _STOPPED):
        return EngineError(
            f"The Spark session has been stopped: {summarize_error(error)}",
            hint="open another session, and make DataFrames anew there.",
        )
    if _contains_any(text, _CANCELLED):
        return EngineError(
            f"The Spark job was cancelled: {summarize_error(error)}", hint="run the operation again."
        )
    if is_late_python(error):
        return EngineError(
            "A Python process of Spark did not start in time: it did not connect back to Spark.",
            hint="the machine of the Spark server or executor is busy, or imports slowly: run it again.",
        )
    if isinstance(error, ConnectionError) or _contains_any(text, _UNREACHABLE) or "NetworkError" in text[:40]:
        return EngineError(
            f"The connection to Spark was lost: {summarize_error(error)}",
            hint="check that the server or the driver's JVM runs, and open a session anew.",
        )
    if _contains_any(text, _MEMORY):
        return EngineError(
            f"A process of Spark ended, most likely out of memory: {summarize_error(error)}",
            hint=_MORE_MEMORY,
        )
    if _contains_any(text, _GONE) and _LINK.search(text):
        return CommitConflict(
            f"{what}: the state of a dataset that it reads is gone, as later ones were read since.",
            hint="read it again, or keep the rows (cache, checkpoint) before the dataset changes.",
        )
    if _contains_any(text, _GONE):
        return StorageError(
            f"{what}: a file that it reads is not there: {summarize_error(error)}",
            errno=errno.ENOENT,
            hint=_READ_AGAIN,
        )
    return None


def explain_refusal(error: IntarsiaError) -> IntarsiaError:
    """An error of an executor; where a store refused it, with a hint where credentials are looked for."""
    if isinstance(error, StorageError) and is_refused_access(error.message):
        error.hint = _BOTH_PLACES
    return error


def format_raised(error: IntarsiaError) -> str:
    """An error of intarsia as text that :func:`find_known_failure` recognises in an error of Spark."""
    hint = f" Hint: {error.hint}" if error.hint else ""
    return f"intarsia {type(error).__name__}: {error.message}{hint}"


def summarize_error(error: BaseException) -> str:
    """One line: the last of a Python traceback, or the innermost cause of a Java stack trace."""
    text = str(error).strip()
    if "Traceback (most recent call last)" in text:
        lines = [line for line in text.splitlines() if re.match(r"[A-Za-z_][\w.]*(:|$)", line)]
        line = lines[-1] if lines else text.splitlines()[-1]
    else:
        line = _find_java_cause(text) or text.partition("\n")[0]
    line = re.sub(r"\s+", " ", redact(line or type(error).__name__)).strip()
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def _find_java_cause(text: str) -> str | None:
    """The innermost cause with a message, of a Java stack trace."""
    causes = [(kind, said) for kind, said in (*_JAVA.findall(text), *_CAUSE.findall(text)) if said.strip()]
    if not causes:
        return None
    kind, said = causes[-1]
    return f"{kind.rpartition('.')[2]}: {said}"


def _contains_any(text: str, signs: tuple[str, ...]) -> bool:
    return any(sign in text for sign in signs)


def _find_python_failure(text: str) -> IntarsiaError | None:
    """NotSupported where the executors have another Python, or lack a package; else None."""
    versions = _VERSIONS.search(text)
    if versions is not None:
        return NotSupported(
            f"The executors run Python {versions[1]}, and this process runs Python {versions[2]}"
            f" ({sys.executable}).",
            hint="both must be of one minor version: set PYSPARK_PYTHON to such a Python before the session"
            " is opened, on every machine.",
        )
    if _contains_any(text, _NO_PYTHON):
        asked = _PROGRAM.search(text)
        name = f" ({asked[1]})" if asked is not None else ""
        return NotSupported(
            f"The Python of the executors{name} did not start: {summarize_error(Exception(text))}",
            hint="PYSPARK_PYTHON names it: a Python that every machine of Spark has under that name.",
        )
    lost = _LOST_MODULE.search(text)
    if lost is not None:
        return NotSupported(
            f"The Python of the executors cannot import {lost[1]!r}: {_describe_pythons()}.", hint=_SHIP
        )
    if "Can't get attribute" in text and "intarsia" in text:
        return NotSupported(
            f"The executors have another version of this package: {summarize_error(Exception(text))}",
            hint=_SHIP,
        )
    return None


def _parse_own_error(text: str) -> IntarsiaError | None:
    """An error of intarsia that was raised on an executor, restored from Spark's text; else None."""
    found = _OF_OURS.search(text)
    kind = getattr(errors, found[1], None) if found is not None else None
    if found is None or not (isinstance(kind, type) and issubclass(kind, IntarsiaError)):
        return None
    message, _, hint = found[2].partition(" Hint: ")
    made: IntarsiaError = kind(message.strip(), hint=hint.split(" SQLSTATE:")[0].strip() or None)
    return made


def _describe_pythons() -> str:
    """The Python versions of this process and, where a session is active, of an executor."""
    here = f"this process runs {platform.python_version()} ({sys.executable})"
    session = active_session()
    if session is None:
        return here
    from pyspark.sql import functions

    # A lambda is pickled by value: it needs no import of intarsia there. Without Arrow, which may be missing.
    ask = functions.udf(
        lambda _: f"{__import__('platform').python_version()} ({__import__('sys').executable})",
        "string",
        useArrow=False,
    )
    try:
        (there,) = session.range(1).select(ask("id").alias("python")).collect()
    except list_spark_error_types():
        return here
    return f"executors run {there.python}, {here}"
