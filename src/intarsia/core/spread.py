"""Which new file a new row goes to, where the table and not the path's columns decide it; the port."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from intarsia.core.files import DataFile


@dataclass(frozen=True, slots=True)
class Part:
    """One partition that rows go to."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """For people and paths."""
    tag: Any = None
    """The table's own note, fixed here and taken over by every file written for it; hashable."""

    @property
    def key(self) -> Any:
        """Tells partitions apart, the same in every process: NaN is NaN, and 0.0 is not -0.0.

        Of a tag alone neither holds: two NaN that were read apart are not equal, and both zeros are.
        """
        return _by_bits(self.tag)


def _by_bits(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_by_bits, value))
    return value.hex() if isinstance(value, float) else value


class Spread(Protocol):
    """How rows are dealt out over partitions. A value: it pickles, and works in another process."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The top-level columns that decide."""

    @property
    def sorting(self) -> tuple[tuple[str, bool, bool], ...]:
        """The order that new files are written in: column, descending, NULLs first; none for none."""

    def home(self, file: DataFile) -> Part:
        """The partition that a file of the table belongs to."""

    def stale(self, file: DataFile) -> bool:
        """Whether a file was written under another partitioning than new ones are."""

    def split(self, table: pa.Table) -> Sequence[tuple[Part, pa.Int64Array | None]]:
        """The partitions that rows of a table belong to, each with its rows ascending; None is all rows."""
