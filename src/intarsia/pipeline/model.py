"""What a pipeline is: sources, targets and steps as plain values; nothing here reads a file or runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Columns = str | tuple[str, ...]
"""One column, or several."""

Strategy = Literal["insert", "update", "upsert", "full_merge", "deduplicate"]


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The Spark session a pipeline runs on."""

    master: str | None = None
    """``local[*]``, ``spark://host:7077``, ``yarn``, ``k8s://...``, or ``sc://host`` for Spark Connect; None
    takes what spark-submit says, else all cores of this machine."""
    app_name: str | None = None
    """None is the pipeline's name."""
    config: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Settings of Spark, ``spark.sql.shuffle.partitions`` and the like."""


@dataclass(frozen=True, slots=True)
class Source:
    """Rows that come in: files, or a target that an earlier step has written."""

    path: str | tuple[str, ...] = ()
    """A file, a directory, a glob or a URL, or several of them."""
    format: Literal["parquet", "csv", "json"] | None = None
    """None goes by the endings of the files."""
    target: str | None = None
    """Instead of a path: the name of a target to read."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The columns to take and their SQL types; without it all columns, of text files with inferred types."""
    derive: Mapping[str, str] = field(default_factory=dict)
    """Columns to add or replace, as SQL over the row that was read."""
    where: str | None = None
    """Take only rows for which this SQL is TRUE, after ``derive``."""
    new_files_only: bool = False
    """A step takes each file once: those of its earlier successes are left out."""
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Of the reader: ``delimiter`` and ``null_value`` of CSV; on Spark also any option of ``spark.read``."""


@dataclass(frozen=True, slots=True)
class Target:
    """A table that steps write."""

    path: str
    kind: Literal["parquet", "iceberg"] = "parquet"
    partition_by: Columns = ()
    """For a dataset that does not exist yet."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """``storage_options``, ``control_path``, ``single_writer``, ``lock_timeout``, ``retain``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Set the rows of a source into a target by key."""

    target: str
    source: str
    on: Columns
    name: str = ""
    strategy: Strategy = "upsert"
    dedup_order_by: Columns = ()
    null_keys: Literal["error", "match"] = "error"
    missing: Literal["error", "null"] = "error"
    schema_evolution: Literal["add", "widen"] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def operation(self) -> str:
        return "merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Append a source's files, each of them once, or put its rows in the place of what is there."""

    target: str
    source: str
    name: str = ""
    mode: Literal["append", "overwrite", "overwrite_partitions"] = "append"
    missing: Literal["error", "null"] = "error"
    schema_evolution: Literal["add", "widen"] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def operation(self) -> str:
        return "write"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete the rows for which ``where`` is TRUE."""

    target: str
    where: str
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def operation(self) -> str:
        return "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Assign columns, as SQL, of the rows for which ``where`` is TRUE; of every row without it."""

    target: str
    set: Mapping[str, str]
    name: str = ""
    where: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def operation(self) -> str:
        return "update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compact:
    """Bring small files together."""

    target: str
    name: str = ""
    target_mb_per_file: float | None = None
    target_rows_per_file: int | None = None
    partition_filter: str | tuple[str, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def operation(self) -> str:
        return "compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimize:
    """Order the rows of each partition along a curve over columns."""

    target: str
    by: Columns
    name: str = ""
    curve: Literal["zorder", "hilbert", "linear"] = "zorder"
    target_mb_per_file: float | None = None
    target_rows_per_file: int | None = None
    partition_filter: str | tuple[str, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def operation(self) -> str:
        return "optimize"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplicate:
    """Leave one row per key; without keys, one of each set of equal rows."""

    target: str
    name: str = ""
    on: Columns = ()
    order_by: Columns = ()
    partition_filter: str | tuple[str, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def operation(self) -> str:
        return "deduplicate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """What must be true of a source or a target; where it is not, the run ends here.

    As with SQL's CHECK, a row fails where a condition is FALSE; a NULL fails ``not_null`` only.
    """

    name: str = ""
    source: str | None = None
    target: str | None = None
    not_null: Columns = ()
    unique: Columns = ()
    """Columns that together name a row."""
    min_rows: int | None = None
    max_rows: int | None = None
    accepted: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The values a column may have."""
    holds: str | tuple[str, ...] = ()
    """Conditions, as SQL."""

    @property
    def operation(self) -> str:
        return "expect"


Step = Merge | Write | Delete | Update | Compact | Optimize | Deduplicate | Expect

KINDS: Mapping[str, type[Step]] = {
    "merge": Merge,
    "write": Write,
    "delete": Delete,
    "update": Update,
    "compact": Compact,
    "optimize": Optimize,
    "deduplicate": Deduplicate,
    "expect": Expect,
}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Sources, targets, and the steps between them in the order they run.

    Relative paths mean the working directory; those of a file, the file's own directory.
    """

    name: str
    steps: tuple[Step, ...]
    sources: Mapping[str, Source] = field(default_factory=dict)
    targets: Mapping[str, Target] = field(default_factory=dict)
    engine: Literal["spark", "arrow"] = "spark"
    spark: SparkSettings = field(default_factory=SparkSettings)
    reports: str = "reports"
    """The directory that gets a JSON and an HTML file for each run."""
    state: str | None = None
    """The file that remembers what has been done; None is ``<name>.state.json`` beside the reports."""
    origin: str | None = field(default=None, compare=False)
    """The file it was read from."""


def names(columns: Columns | None) -> tuple[str, ...]:
    """One column or several, as a tuple."""
    if columns is None:
        return ()
    return (columns,) if isinstance(columns, str) else tuple(columns)


def source_of(step: Step) -> str | None:
    """The name of the source that a step reads, if it reads one."""
    return step.source if isinstance(step, (Merge, Write, Expect)) else None


def step_name(step: Step, number: int) -> str:
    """The name a step was given, or one made of its number and what it works on."""
    where = step.target or source_of(step) or ""
    return step.name or f"{number}-{step.operation}-{where}"
