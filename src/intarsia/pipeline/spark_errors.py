"""Errors of Spark: which classes they are, and what of ours they carry; imports nothing of Spark."""

from __future__ import annotations

import re
import sys

from intarsia import errors

_OURS = re.compile(r"^intarsia\.errors\.(\w+): (.*(?:\n(?!\s|$).*)*)", re.MULTILINE)


def spark_errors() -> tuple[type[BaseException], ...]:
    """The classes of errors that Spark raises, where it is in use."""
    found: list[type[BaseException]] = []
    for module, name in (("pyspark.errors", "PySparkException"), ("py4j.protocol", "Py4JError")):
        if module in sys.modules:
            found.append(getattr(sys.modules[module], name))
    return tuple(found)


def told_by_spark(error: BaseException) -> BaseException:
    """The error of ours that a Python worker of Spark raised, where there is one; else the error as it is."""
    if not isinstance(error, spark_errors()):
        return error
    found = _OURS.search(str(error))
    kind = getattr(errors, found[1], None) if found else None
    if found is None or not (isinstance(kind, type) and issubclass(kind, errors.IntarsiaError)):
        return error
    message, _, hint = found[2].partition(" Hint: ")
    told = kind(message.strip(), hint=hint.strip() or None)
    told.__cause__ = error
    return told
