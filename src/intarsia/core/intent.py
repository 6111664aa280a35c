"""What the caller wants, resolved and checked: one value per operation, no data in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from intarsia.core.rule import Rule

Missing = Literal["error", "null", "keep"]
"""What becomes of columns that the source lacks: refused, NULL, or kept in rows that are there already."""
MISSING: tuple[str, ...] = get_args(Missing)
Predicate = Any
"""An Expr of ours, or a pyarrow.compute.Expression; None means every row."""

ROWS_PER_FILE = 5_000_000


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How new files are written; None keeps what the table's files have, else the default."""

    compression: str | None = None
    row_group_size: int | None = None
    max_rows_per_file: int | None = None
    batch_rows: int | None = None
    """The most rows handled at once; None lets a row group decide."""
    int96: Literal["keep", "convert"] = "keep"
    """Whether INT96 columns of files that are written stay so, or become TIMESTAMP(MICROS) in UTC."""

    @property
    def rows_per_file(self) -> int:
        """The most rows of a new file."""
        return self.max_rows_per_file or ROWS_PER_FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Intent:
    """What every operation has: write options and commit properties."""

    options: WriteOptions = field(default_factory=WriteOptions)
    properties: Mapping[str, str] = field(default_factory=dict)
    """Recorded in the commit unchanged."""


@dataclass(frozen=True, slots=True)
class MergeIntent(_Intent):
    """Set source rows into the table by key."""

    operation: ClassVar[str] = "merge"

    rule: Rule
    keys: tuple[str, ...]
    source_keys: tuple[str, ...]
    residual: Any = None
    """What the ON condition asks beyond the equalities, as an Expr."""
    dedup_order_by: tuple[str, ...] = ()
    null_keys: Literal["error", "match"] = "error"
    null_safe: frozenset[int] = frozenset()
    """Numbers of the keys for which the ON condition itself lets NULL equal NULL (``<=>``)."""
    quoted: frozenset[tuple[str, str]] = frozenset()
    """Side and name of key columns that are to be found in exactly this spelling."""
    missing: Missing = "error"
    schema_evolution: Any = None
    partition_columns: tuple[str, ...] | None = None
    except_columns: tuple[str, ...] = ()
    """Source columns that whole rows leave out."""

    @property
    def matches_null(self) -> bool:
        """Whether NULL matches NULL in some key column; in the other key columns NULL is refused."""
        return self.null_keys == "match" or bool(self.null_safe)

    @property
    def never_null(self) -> tuple[tuple[str, str], ...]:
        """The keys, of target and source, in which NULL is refused."""
        if self.null_keys == "match":
            return ()
        pairs = zip(self.keys, self.source_keys, strict=True)
        return tuple(pair for number, pair in enumerate(pairs) if number not in self.null_safe)

    def has_equal_columns(self, columns: Collection[str]) -> bool:
        """Whether rows with equal keys are equal in all of these columns, by the same names."""
        same = {name for name, other in zip(self.keys, self.source_keys, strict=True) if name == other}
        return same.issuperset(columns)


@dataclass(frozen=True, slots=True)
class DeleteIntent(_Intent):
    """Remove the rows for which the predicate is TRUE."""

    operation: ClassVar[str] = "delete"

    where: Predicate


@dataclass(frozen=True, slots=True)
class UpdateIntent(_Intent):
    """Assign columns of the rows for which the predicate is TRUE."""

    operation: ClassVar[str] = "update"

    assignments: tuple[tuple[tuple[str, ...], Any], ...]
    where: Predicate = None


@dataclass(frozen=True, slots=True)
class WriteIntent(_Intent):
    """Add rows, or put them in the place of all rows or of their partitions' rows."""

    mode: Literal["append", "overwrite", "overwrite_partitions"]
    partition_columns: tuple[str, ...] | None = None
    missing: Missing = "error"
    schema_evolution: Any = None
    where: Predicate = None
    """With ``overwrite``: only the rows for which it is TRUE are replaced, by rows for which it is, too."""

    @property
    def operation(self) -> str:
        return self.mode

    @property
    def replaces_all(self) -> bool:
        """Whether every existing row is removed, so that the new rows decide the schema."""
        return self.mode == "overwrite" and self.where is None


@dataclass(frozen=True, slots=True)
class CompactIntent(_Intent):
    """Bring small files of a partition together into files of about the target size."""

    operation: ClassVar[str] = "compact"

    target_bytes: int | None = None
    target_rows: int | None = None
    partition_filter: Any = None


@dataclass(frozen=True, slots=True)
class OptimizeIntent(_Intent):
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

    @property
    def removes_duplicates(self) -> bool:
        return self.deduplicate or bool(self.deduplicate_keys)


@dataclass(frozen=True, slots=True)
class DeduplicateIntent(_Intent):
    """Leave one row per key; without keys, one of each set of equal rows."""

    operation: ClassVar[str] = "deduplicate"

    keys: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    partition_filter: Any = None


@dataclass(frozen=True, slots=True)
class RestoreIntent(_Intent):
    """Bring back the state after a version; made of whole files, so that no engine has a part in it."""

    operation: ClassVar[str] = "restore"

    version: int


Intent = (
    MergeIntent
    | DeleteIntent
    | UpdateIntent
    | WriteIntent
    | CompactIntent
    | OptimizeIntent
    | DeduplicateIntent
)
