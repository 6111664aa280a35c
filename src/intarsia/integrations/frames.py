"""What a frame has as ``df.intarsia``, whichever library it is of."""

from __future__ import annotations

from typing import Any

from intarsia import api
from intarsia.core.report import MergeResult
from intarsia.options import Columns, TableTarget

__all__ = ["FrameMethods"]


class FrameMethods:
    """A frame as the source of a merge or a write."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def merge_into(self, target: TableTarget, *, on: Columns, **arguments: Any) -> MergeResult:
        """Merge the rows into a table by key; see :func:`intarsia.merge` for everything else.

        Args:
            target: as in :func:`intarsia.merge`.
            on: key columns, or a condition.
            arguments: ``strategy=``, ``clauses=``, ``dry_run=`` and so on, as of :func:`intarsia.merge`.

        Raises:
            IntarsiaError: as :func:`intarsia.merge`.
        """
        return api.merge(self._open_source(), target, on=on, **arguments)

    def write_to(self, target: TableTarget, **arguments: Any) -> MergeResult:
        """Append the rows, or put them in the place of others; see :func:`intarsia.write`.

        Args:
            target: as in :func:`intarsia.write`.
            arguments: ``mode=``, ``where=``, ``partition_by=`` and so on, as of :func:`intarsia.write`.

        Raises:
            IntarsiaError: as :func:`intarsia.write`.
        """
        return api.write(self._open_source(), target, **arguments)

    def _open_source(self) -> Any:
        return self._frame
