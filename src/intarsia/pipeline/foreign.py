"""Errors that are not ours, told as ours: what Spark, Arrow and the system say; imports nothing of Spark."""

from __future__ import annotations

import re

import pyarrow as pa

from intarsia.common.log import redact
from intarsia.errors import InputError, IntarsiaError, StorageError
from intarsia.spark.failures import foreign_errors, known_failure

_CALL = re.compile(r"^An error occurred while calling [\w.]+\n?: (?:[\w.$]+: )?")
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.*(?:\n(?!\s*at |\s*\.\.\. |Caused by: |$).*)*)", re.MULTILINE)
_NOISE = re.compile(r"\n(?=JVM stacktrace|\s*at |Traceback|Driver stacktrace|== DataFrame ==)")
_LONGEST = 600


def told(error: BaseException) -> BaseException:
    """The error as one of ours, with the one it comes from as its cause; one of ours as it is."""
    made = _ours(error)
    if made is not error:
        made.__cause__ = error
    return made


def _ours(error: BaseException) -> BaseException:
    if isinstance(error, IntarsiaError):
        return error
    if isinstance(error, foreign_errors()):
        known = known_failure(error, "Spark could not do it")
        return known or InputError(f"Spark could not do it: {_by_spark(str(error))}", changed=None)
    if isinstance(error, pa.ArrowException) and not isinstance(error, OSError):
        return InputError(f"The data could not be read: {_short(str(error))}")
    if isinstance(error, OSError):
        path = None if error.filename is None else redact(str(error.filename))
        return StorageError(_short(str(error)), errno=error.errno, path=path, changed=None)
    return error


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
