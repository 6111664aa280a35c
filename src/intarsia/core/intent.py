"""What the caller wants, resolved and checked: one value per operation, no data in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from intarsia.core.rule import Rule

Predicate = Any
"""An Expr of ours, or a pyarrow.compute.Expression; None means every row."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How new files are written; None keeps what the table's files have, else the default."""

    compression: str | None = None
    row_group_size: int | None = None
    max_rows_per_file: int = 5_000_000
    batch_rows: int | None = None
    """The most rows handled at once; None lets a row group decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    """What every operation says of what it writes."""

    options: WriteOptions = field(default_factory=WriteOptions)
    properties: Mapping[str, str] = field(default_factory=dict)
    """Kept in the commit, as they are."""


@dataclass(frozen=True, slots=True)
class Merge(_Writing):
    """Set source rows into the table by key."""

    operation: ClassVar[str] = "merge"

    rule: Rule
    keys: tuple[str, ...]
    source_keys: tuple[str, ...]
    residual: Any = None
    """What the ON condition asks beyond the equalities, as an Expr."""
    dedup_order_by: tuple[str, ...] = ()
    null_keys: Literal["error", "match"] = "error"
    missing: Literal["error", "null"] = "error"
    schema_evolution: Any = None
    partition_columns: tuple[str, ...] | None = None

    def pins(self, columns: Collection[str]) -> bool:
        """Whether rows with equal keys are equal in all of these columns, by the same names."""
        same = {name for name, other in zip(self.keys, self.source_keys, strict=True) if name == other}
        return same.issuperset(columns)


@dataclass(frozen=True, slots=True)
class Delete(_Writing):
    """Remove the rows for which the predicate is TRUE."""

    operation: ClassVar[str] = "delete"

    where: Predicate


@dataclass(frozen=True, slots=True)
class Update(_Writing):
    """Assign columns of the rows for which the predicate is TRUE."""

    operation: ClassVar[str] = "update"

    assignments: tuple[tuple[tuple[str, ...], Any], ...]
    where: Predicate = None


@dataclass(frozen=True, slots=True)
class Write(_Writing):
    """Add rows, or put them in the place of all rows or of their partitions' rows."""

    mode: Literal["append", "overwrite", "overwrite_partitions"]
    partition_columns: tuple[str, ...] | None = None
    missing: Literal["error", "null"] = "error"
    schema_evolution: Any = None

    @property
    def operation(self) -> str:
        return self.mode


@dataclass(frozen=True, slots=True)
class Compact(_Writing):
    """Bring small files of a partition together into files of about the target size."""

    operation: ClassVar[str] = "compact"

    target_bytes: int | None = None
    target_rows: int | None = None
    partition_filter: Any = None


@dataclass(frozen=True, slots=True)
class Optimize(_Writing):
    """Order the rows of each partition along a curve over the given columns, in new files."""

    operation: ClassVar[str] = "optimize"

    by: tuple[str, ...]
    curve: Literal["zorder", "hilbert", "linear"] = "zorder"
    target_bytes: int | None = None
    target_rows: int | None = None
    partition_filter: Any = None
    deduplicate_keys: tuple[str, ...] = ()
    deduplicate: bool = False
    """With no ``deduplicate_keys``: rows that are equal in every column count as one."""
    dedup_order_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Deduplicate(_Writing):
    """Leave one row per key; without keys, one of each set of equal rows."""

    operation: ClassVar[str] = "deduplicate"

    keys: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    partition_filter: Any = None


Intent = Merge | Delete | Update | Write | Compact | Optimize | Deduplicate
