"""The port for whoever watches operations; nobody does by default, and spans are made elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Literal, Protocol

from intarsia.core.report import MergeResult

__all__ = ["Facts", "Kind", "Observation", "Observer", "describe_operation", "observe", "set_observer"]

Facts = Mapping[str, str | int | float | bool]
"""What is known of something; neither values of rows nor secrets."""
Kind = Literal["operation", "pipeline", "step"]


class Observation(Protocol):
    """Something that is under way; an error that leaves its block is noted by itself."""

    def retry(self, error: Exception) -> None:
        """It is tried again after this error."""

    def end(self, result: MergeResult) -> None:
        """It is done."""

    def note(self, facts: Facts) -> None:
        """More is known of it."""

    def fail(self, error: BaseException) -> None:
        """It has failed with an error that does not leave the block."""


class Observer(Protocol):
    """Watches operations, runs of pipelines and their steps."""

    def observe(self, kind: Kind, name: str, facts: Facts) -> AbstractContextManager[Observation]:
        """A block in which something of this name is under way."""


class _Nobody:
    """An observation that nobody makes."""

    __slots__ = ()

    def __enter__(self) -> _Nobody:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def retry(self, error: Exception) -> None:
        return None

    def end(self, result: MergeResult) -> None:
        return None

    def note(self, facts: Facts) -> None:
        return None

    def fail(self, error: BaseException) -> None:
        return None


_NOBODY = _Nobody()
_observer: Observer | None = None


def set_observer(observer: Observer | None) -> None:
    """Have an observer watch everything from now on; None for nobody."""
    global _observer
    _observer = observer


def observe(kind: Kind, name: str, facts: Facts) -> AbstractContextManager[Observation]:
    """A block in which something is under way; where nobody watches, it does nothing.

    The fact ``title`` is what a span is called, if not by the name; the others are attributes.
    """
    return _NOBODY if _observer is None else _observer.observe(kind, name, facts)


def describe_operation(operation: str, table: object, *, dry_run: bool, engine: str | None = None) -> Facts:
    """What is known of an operation on a table when it begins."""
    root = str(getattr(table, "root", ""))
    facts: Facts = {
        "title": f"{operation} {root.rstrip('/').rpartition('/')[2]}".rstrip(),
        "db.system.name": "intarsia",
        "db.operation.name": operation,
        "db.collection.name": root,
        "intarsia.dry_run": dry_run,
    }
    return facts if engine is None else {**facts, "intarsia.engine": engine}
