"""What Spark raises, as errors of ours: which one it is, in a sentence, and what to do about it."""

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
from intarsia.common.log import redact
from intarsia.errors import EngineError, InputError, IntarsiaError, NotSupported, StorageError
from intarsia.spark.session import active_session

__all__ = [
    "brief_text",
    "find_known_failure",
    "is_interrupt",
    "raised_text",
    "spark_error_types",
    "spark_errors",
    "translate_error",
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


def spark_error_types() -> tuple[type[Exception], ...]:
    """What Spark raises in this process, as far as what raises it was imported; nothing is imported here."""
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
def spark_errors(*, source: bool = False) -> Iterator[None]:
    """What Spark raises meanwhile is raised as ours, with Spark's as its cause.

    Args:
        source: a DataFrame of the caller is evaluated, so what cannot be computed is the caller's.
    """
    with _record_interrupts() as pressed:
        try:
            yield
        except IntarsiaError:
            raise
        except spark_error_types() as error:
            if pressed or is_interrupt(error):
                raise KeyboardInterrupt from error
            raise translate_error(error, source=source) from error
        if pressed:
            raise KeyboardInterrupt


@contextmanager
def _record_interrupts() -> Iterator[list[int]]:
    """Remember Ctrl-C meanwhile: py4j logs what pyspark's handler raises, and raises another error itself."""
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
        if signal.getsignal(signal.SIGINT) is remember:  # else somebody has set another meanwhile
            signal.signal(signal.SIGINT, before)


def is_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C is what an error comes from: pyspark's handler speaks to the JVM in between, and what
    waited for an answer may get a wrong one."""
    while error is not None:
        frames = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
        if isinstance(error, KeyboardInterrupt) or any(code.co_name == "signal_handler" for code in frames):
            return True
        error = error.__cause__ or error.__context__
    return False


def translate_error(error: Exception, *, source: bool = False) -> IntarsiaError:
    """The error of ours that one of Spark's amounts to."""
    what = "The source DataFrame could not be evaluated" if source else "Spark could not do the work"
    known = find_known_failure(error, what)
    if known is not None:
        return known
    if source:
        return InputError(f"{what}: {brief_text(error)}", hint="the same error comes from its own collect().")
    return EngineError(f"{what}: {brief_text(error)}", hint="Spark's log has more of it.")


def find_known_failure(error: Exception, what: str) -> IntarsiaError | None:
    """The error of ours where Spark's tells its cause; ``what`` could not be done, as a sentence."""
    text = f"{type(error).__name__}: {error}"
    found = _find_python_failure(text) or _parse_own_error(text)
    if found is not None:
        return found
    if _contains_any(text, _STOPPED):
        return EngineError(
            f"The Spark session has been stopped: {brief_text(error)}",
            hint="open another session, and make DataFrames anew there.",
        )
    if _contains_any(text, _CANCELLED):
        return EngineError(
            f"The Spark job was cancelled: {brief_text(error)}", hint="run the operation again."
        )
    if isinstance(error, ConnectionError) or _contains_any(text, _UNREACHABLE) or "NetworkError" in text[:40]:
        return EngineError(
            f"The connection to Spark was lost: {brief_text(error)}",
            hint="check that the server or the driver's JVM runs, and open a session anew.",
        )
    if _contains_any(text, _MEMORY):
        return EngineError(
            f"A process of Spark ended, most likely out of memory: {brief_text(error)}", hint=_MORE_MEMORY
        )
    if _contains_any(text, _GONE):
        return StorageError(
            f"{what}: a file that it reads is not there: {brief_text(error)}",
            errno=errno.ENOENT,
            hint=_READ_AGAIN,
        )
    return None


def raised_text(error: IntarsiaError) -> str:
    """An error of ours as text that :func:`as_ours` finds in what Spark makes of it."""
    hint = f" Hint: {error.hint}" if error.hint else ""
    return f"intarsia {type(error).__name__}: {error.message}{hint}"


def brief_text(error: BaseException) -> str:
    """One line that says what happened: the last of a Python traceback, the innermost cause in Java."""
    text = str(error).strip()
    if "Traceback (most recent call last)" in text:
        lines = [line for line in text.splitlines() if re.match(r"[A-Za-z_][\w.]*(:|$)", line)]
        line = lines[-1] if lines else text.splitlines()[-1]
    else:
        line = _java_cause(text) or text.partition("\n")[0]
    line = re.sub(r"\s+", " ", redact(line or type(error).__name__)).strip()
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def _java_cause(text: str) -> str | None:
    """The innermost cause with a message, of a Java stack trace."""
    causes = [(kind, said) for kind, said in (*_JAVA.findall(text), *_CAUSE.findall(text)) if said.strip()]
    if not causes:
        return None
    kind, said = causes[-1]
    return f"{kind.rpartition('.')[2]}: {said}"


def _contains_any(text: str, signs: tuple[str, ...]) -> bool:
    return any(sign in text for sign in signs)


def _find_python_failure(text: str) -> IntarsiaError | None:
    """The executors have another Python, or lack something that is needed there."""
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
            f"The Python of the executors{name} did not start: {brief_text(Exception(text))}",
            hint="PYSPARK_PYTHON names it: a Python that every machine of Spark has under that name.",
        )
    lost = _LOST_MODULE.search(text)
    if lost is not None:
        return NotSupported(
            f"The Python of the executors cannot import {lost[1]!r}: {_describe_pythons()}.", hint=_SHIP
        )
    if "Can't get attribute" in text and "intarsia" in text:
        return NotSupported(
            f"The executors have another version of this package: {brief_text(Exception(text))}", hint=_SHIP
        )
    return None


def _parse_own_error(text: str) -> IntarsiaError | None:
    """An error of ours that was raised on an executor, where Spark made text of it."""
    found = _OF_OURS.search(text)
    kind = getattr(errors, found[1], None) if found is not None else None
    if found is None or not (isinstance(kind, type) and issubclass(kind, IntarsiaError)):
        return None
    message, _, hint = found[2].partition(" Hint: ")
    made: IntarsiaError = kind(message.strip(), hint=hint.split(" SQLSTATE:")[0].strip() or None)
    return made


def _describe_pythons() -> str:
    """Which Python runs where, as far as an executor can be asked."""
    here = f"this process runs {platform.python_version()} ({sys.executable})"
    session = active_session()
    if session is None:
        return here
    from pyspark.sql import functions

    # A lambda travels by value: nothing of ours can be imported there. Without Arrow, which may be missing.
    ask = functions.udf(
        lambda _: f"{__import__('platform').python_version()} ({__import__('sys').executable})",
        "string",
        useArrow=False,
    )
    try:
        (there,) = session.range(1).select(ask("id").alias("python")).collect()
    except spark_error_types():
        return here
    return f"executors run {there.python}, {here}"
