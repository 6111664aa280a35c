"""Errors that are not ours, told as ours: what Spark, Arrow and the system say; imports nothing of Spark."""

from __future__ import annotations

import re
import sys

import pyarrow as pa

from intarsia import errors
from intarsia.common.log import redact
from intarsia.errors import InputError, IntarsiaError, StorageError

_OURS = re.compile(r"^intarsia\.errors\.(\w+): (.*(?:\n(?!\s|$).*)*)", re.MULTILINE)
_CALL = re.compile(r"^An error occurred while calling [\w.]+\n?: (?:[\w.$]+: )?")
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.*(?:\n(?!\s*at |\s*\.\.\. |Caused by: |$).*)*)", re.MULTILINE)
_NOISE = re.compile(r"\n(?=JVM stacktrace|\s*at |Traceback|Driver stacktrace|== DataFrame ==)")
_LONGEST = 600


def spark_errors() -> tuple[type[BaseException], ...]:
    """The classes of errors that Spark raises, where it is in use."""
    found: list[type[BaseException]] = []
    for module, name in (("pyspark.errors", "PySparkException"), ("py4j.protocol", "Py4JError")):
        if module in sys.modules:
            found.append(getattr(sys.modules[module], name))
    return tuple(found)


def told(error: BaseException) -> BaseException:
    """The error as one of ours, with the one it comes from as its cause; one of ours as it is."""
    made = _ours(error)
    if made is not error:
        made.__cause__ = error
    return made


def _ours(error: BaseException) -> BaseException:
    if isinstance(error, IntarsiaError):
        return error
    if isinstance(error, spark_errors()):
        return _carried(error) or InputError(f"Spark could not do it: {_by_spark(str(error))}", changed=None)
    if isinstance(error, pa.ArrowException) and not isinstance(error, OSError):
        return InputError(f"The data could not be read: {_short(str(error))}")
    if isinstance(error, OSError):
        path = None if error.filename is None else redact(str(error.filename))
        return StorageError(_short(str(error)), errno=error.errno, path=path, changed=None)
    return error


def _carried(error: BaseException) -> IntarsiaError | None:
    """The error of ours that a Python worker of Spark raised, where there is one."""
    found = _OURS.search(str(error))
    kind = getattr(errors, found[1], None) if found else None
    if found is None or not (isinstance(kind, type) and issubclass(kind, IntarsiaError)):
        return None
    message, _, hint = found[2].partition(" Hint: ")
    return kind(message.strip(), hint=hint.strip() or None)


def _by_spark(text: str) -> str:
    """What Spark says first, and the reason, which it may say last."""
    said = _short(_CALL.sub("", text))
    causes = _CAUSE.findall(text)
    reason = _short(causes[-1]) if causes else ""
    return said if not reason or reason in said else f"{said} ({' '.join(reason.split())})"


def _short(text: str) -> str:
    """What is said, without the stack that some say it with."""
    said = redact(_NOISE.split(text, maxsplit=1)[0].strip())
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}..."
