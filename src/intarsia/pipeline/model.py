"""What a pipeline is: sources, targets and steps as plain values; nothing here reads a file or runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeGuard, cast

from intarsia.common.names import suggest_names
from intarsia.core.intent import Missing
from intarsia.core.rule import Clause
from intarsia.errors import InputError
from intarsia.options import StepOptions, StrategyName, TargetOptions
from intarsia.pipeline.declaration import Declaration, find_caller

EngineOfPipeline = Literal["spark", "arrow", "duckdb"]
Columns = str | tuple[str, ...]
"""One column, or several."""


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


FILE_STREAMS = ("json", "csv", "parquet", "orc", "text", "avro", "xml")
"""Formats of streams of files, which Spark wants a schema for (except ``text``)."""
TEXT_STREAMS = ("json", "csv", "xml")
"""Of these, the ones whose values are text that is read in the declared types."""


@dataclass(frozen=True, slots=True)
class Stream:
    """What Spark's ``readStream`` takes; see :class:`Source`."""

    format: str
    """``json``, ``csv``, ``parquet`` or another of files; ``kafka``, ``rate``, or any that Spark has."""
    path: str | None = None
    """The directory, or a pattern, of a stream of files."""
    schema: str | Mapping[str, str] | None = None
    """Columns and types in Spark's words, as in ``id bigint, tags array<string>``, or as a table of them.
    Files need it, unless the source has ``columns``."""
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict, repr=False)
    """Of Spark's reader: ``maxFilesPerTrigger``, ``subscribe``, ``rowsPerSecond`` and so on. They are not in
    the text of the value, since those of Kafka may be passwords."""
    checkpoint: str | None = None
    """The directory of the checkpoints, on a disk that this process and the driver see; None is
    ``<name>.checkpoints`` beside the state. Each step has one below it."""

    @property
    def reads_files(self) -> bool:
        return self.format.lower() in FILE_STREAMS

    @property
    def reads_text(self) -> bool:
        return self.format.lower() in TEXT_STREAMS


@dataclass(frozen=True, slots=True)
class LineageSettings:
    """Where OpenLineage events of a pipeline go; without ``file`` and ``url``, where OpenLineage's own
    variables (``OPENLINEAGE_URL`` and the like) or its ``openlineage.yml`` say."""

    enabled: bool = True
    """False sends nothing, whatever OpenLineage's variables say."""
    file: str | None = None
    """A file that gets a line of JSON for each event, after those that are there."""
    url: str | None = None
    """A server that takes events, such as Marquez: ``http://host:5000``."""
    namespace: str | None = None
    """Of the jobs; None is ``OPENLINEAGE_NAMESPACE``, else ``default``."""
    api_key: str | None = field(default=None, repr=False)
    """For the server."""
    timeout: float = 3.0
    """Seconds to wait for the server at one event, in which the run goes on."""

    def __post_init__(self) -> None:
        if self.file is not None and self.url is not None:
            raise InputError("events go to a file or to a url, not to both.")


@dataclass(frozen=True, slots=True)
class Source:
    """Rows to merge, write or check: of files, of a target that an earlier step has written, or computed.

    A computed source is a query or a function over other sources and targets of the pipeline.
    """

    path: str | tuple[str, ...] = ()
    """A file, a directory, a glob or a URL, or several of them."""
    format: Literal["parquet", "arrow", "csv", "json"] | None = None
    """None goes by the endings of the files."""
    target: str | None = None
    """Instead of a path: the name of a target to read."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The columns to take and their SQL types; without it all columns, of text files with inferred types."""
    derive: Mapping[str, str] = field(default_factory=dict)
    """Columns to add or replace, as SQL over the row that was read."""
    where: str | None = None
    """Take only rows for which this SQL is TRUE, after ``derive``."""
    new_files_only: bool | None = None
    """Whether a merge or write takes each file once, leaving out those it has taken before. None is yes, but
    no where the source stands for the whole target (``full_merge``, ``not matched by source``, ``overwrite``,
    ``overwrite_partitions``) and for files from the web. An append takes each file once in any case."""
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Of the reader: ``delimiter`` and ``null_value`` of CSV; on Spark also any option of ``spark.read``."""
    sql: str | None = None
    """Instead of a path: a query in the engine's SQL, whose tables are sources and targets by their names."""
    sql_file: str | None = None
    """Instead of a path: a file with such a query."""
    python: str | None = None
    """Instead of a path: ``file.py:function``; the function's parameters name sources and targets."""
    since: Literal["last run"] | None = None
    """With a target: only its rows that were added or changed since the step's last success, where that can
    be known exactly."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Values of the query's ``${name}``, which are bound and never pasted; or arguments of the function."""
    stream: Stream | None = None
    """Instead of a path: a stream, of which each run takes what is new; on Spark only."""

    @property
    def is_computed(self) -> bool:
        """Whether its rows are those of a query or of a function."""
        return self.sql is not None or self.sql_file is not None or self.python is not None


@dataclass(frozen=True, slots=True)
class Target:
    """A table that steps write."""

    path: str
    """Of a Parquet dataset; of another table its name in the catalog, as in ``shop.orders``."""
    kind: Literal["parquet", "iceberg", "spark_table"] = "parquet"
    """``spark_table`` is a table of the Spark session's catalog; see :func:`intarsia.spark_table`."""
    partition_by: Columns = ()
    """For a dataset that does not exist yet."""
    catalog: str = ""
    """Of an Iceberg table: the name of a configured catalog, or a warehouse directory with its own."""
    options: TargetOptions = field(default_factory=TargetOptions)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Declared:
    """The fields of all kinds of steps; ``needs`` and ``takes`` of a kind say which of them it has.

    Raises InputError where a step lacks a field that its kind needs, or has one that its kind does not take.
    """

    operation: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ("target",)
    takes: ClassVar[tuple[str, ...]] = ()

    name: str = ""
    """Its name in the report and the state; without it, its number, operation and target."""
    source: str | None = None
    """The name of the source whose rows are merged, written or checked."""
    target: str | None = None
    """The name of the target that is changed or checked."""
    on: Columns = ()
    """Key columns; of a merge also a condition, as in ``target.id = source.id and target.open``."""
    strategy: StrategyName | None = None
    """None is ``upsert``, where there is no ``when``."""
    when: str | tuple[str | Clause, ...] = ()
    """Instead of a strategy: clauses, as in SQL's MERGE; the first that applies to a row decides."""
    dedup_order_by: Columns = ()
    """With the strategy ``deduplicate``: the source row with the highest values of these wins."""
    null_keys: Literal["error", "match"] = "error"
    """``match`` lets NULL equal NULL in a key."""
    missing: Missing = "error"
    """``null`` fills columns that the source lacks, ``keep`` leaves those of existing rows as they are."""
    schema_evolution: Literal["add", "widen"] | None = None
    """``add`` adds new columns, ``widen`` promotes types."""
    except_columns: Columns = ()
    """Columns of the source that are not written; conditions may read them."""
    mode: Literal["append", "overwrite", "overwrite_partitions"] = "append"
    set: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Columns and their new values, as SQL or plain numbers."""
    where: str | None = None
    """The rows that are deleted, updated or replaced, as SQL."""
    by: Columns = ()
    """The columns to order by."""
    curve: Literal["zorder", "hilbert", "linear"] = "zorder"
    order_by: Columns = ()
    """The row with the highest values of these stays, else the last."""
    target_mb_per_file: float | None = None
    target_rows_per_file: int | None = None
    partition_filter: str | tuple[str, ...] | None = None
    """Only these partitions, as in ``day=2025-03-01/region=eu``."""
    options: StepOptions = field(default_factory=StepOptions)
    not_null: Columns = ()
    unique: Columns = ()
    """Columns that together identify a row."""
    min_rows: int | None = None
    max_rows: int | None = None
    accepted: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The values a column may have."""
    holds: str | tuple[str, ...] = ()
    """Conditions, as SQL."""
    references: Mapping[str, str] = field(default_factory=dict)
    """Columns whose values are keys of another target or of a source: ``{"customer_id": "customers.id"}``."""
    fresh: Mapping[str, str] = field(default_factory=dict)
    """How old the newest value of a column may be: ``column``, ``within``, and ``as_of`` instead of now."""
    at_most: int | str | None = None
    """How many rows may violate each expectation: a number of rows, or a share such as ``"0.1 %"``."""
    action: Literal["fail", "warn", "drop", "quarantine"] = "fail"
    """What is done where an expectation does not hold."""
    quarantine: str | None = None
    """The name of the target that gets the violating rows."""
    writer: str | None = None
    """The step whose rows are judged, of a :class:`StepGuard`."""

    def __post_init__(self) -> None:
        given, known = self.list_given(), self.list_keys()
        foreign = [name for name in given if name not in known]
        if foreign:
            raise InputError(
                f"{self.operation} takes no {foreign[0]!r}.", hint=suggest_names([foreign[0]], known)
            )
        absent = [name for name in self.needs if name not in given]
        if absent:
            raise InputError(f"{self.operation} needs {absent[0]!r}.")

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.list_given().items())
        return f"{type(self).__name__}({given})"

    @classmethod
    def list_keys(cls) -> tuple[str, ...]:
        """The fields that a step of this kind may have."""
        return ("name", *cls.needs, *cls.takes)

    def list_given(self) -> dict[str, Any]:
        """The fields that are not at their defaults."""
        said = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: said[name] for name, usual in _USUAL.items() if said[name] != usual}


_USUAL = {
    entry.name: entry.default if entry.default_factory is MISSING else entry.default_factory()
    for entry in fields(Declared)
}


class Merge(Declared):
    """Set the rows of a source into a target by key."""

    __slots__ = ()
    operation = "merge"
    needs = ("target", "source", "on")
    takes = (
        *("strategy", "when", "dedup_order_by", "null_keys"),
        *("missing", "schema_evolution", "except_columns", "options"),
    )


class Write(Declared):
    """Append a source's files, each of them once, or put its rows in the place of what is there."""

    __slots__ = ()
    operation = "write"
    needs = ("target", "source")
    takes = ("mode", "where", "missing", "schema_evolution", "options")


class Delete(Declared):
    """Delete the rows for which ``where`` is TRUE."""

    __slots__ = ()
    operation = "delete"
    needs = ("target", "where")
    takes = ("options",)


class Update(Declared):
    """Assign columns, as SQL, of the rows for which ``where`` is TRUE; of every row without it."""

    __slots__ = ()
    operation = "update"
    needs = ("target", "set")
    takes = ("where", "options")


class Compact(Declared):
    """Bring small files together."""

    __slots__ = ()
    operation = "compact"
    takes = ("target_mb_per_file", "target_rows_per_file", "partition_filter", "options")


class Optimize(Declared):
    """Order the rows of each partition along a curve over columns."""

    __slots__ = ()
    operation = "optimize"
    needs = ("target", "by")
    takes = ("curve", *Compact.takes)


class Deduplicate(Declared):
    """Leave one row per key; without keys, one of each set of equal rows."""

    __slots__ = ()
    operation = "deduplicate"
    takes = ("on", "order_by", "partition_filter", "options")


class Expect(Declared):
    """What must be true of a source or a target; where it is not, ``action`` says what follows.

    As with SQL's CHECK, a row fails where a condition is FALSE; a NULL fails ``not_null`` only.
    """

    __slots__ = ()
    operation = "expect"
    needs: ClassVar[tuple[str, ...]] = ()
    takes = (
        *("source", "target", "not_null", "unique", "min_rows", "max_rows", "accepted", "holds"),
        *("references", "fresh", "at_most", "action", "quarantine"),
    )


class StepGuard(Expect):
    """An expectation on the rows that one step reads, which judges them on their way into its target.

    It is not declared: the runner makes it of one on the target that drops or quarantines, or of any on a
    stream.
    """

    __slots__ = ()
    needs = ("source", "writer")


Step = Merge | Write | Delete | Update | Compact | Optimize | Deduplicate | Expect

KINDS: Mapping[str, type[Step]] = {
    kind.operation: kind for kind in (Merge, Write, Delete, Update, Compact, Optimize, Deduplicate, Expect)
}


class OpenSteps(list[Step]):
    """The steps of a pipeline that a module declares, to which its methods add."""


@dataclass(frozen=True, slots=True)
class Pipeline(Declaration):
    """Sources, targets, and the steps between them in the order they run.

    With its steps it is a value; relative paths mean the working directory, and those of a file the file's
    own directory. Without them it is open: its methods add sources, targets and steps, as a module declares
    them, and :func:`load` and :func:`run` make the value of it that a file with the same declarations makes.
    Parameters, environments and relative paths then mean what they mean in a file.

    Args:
        name: names the reports and the state.
        steps: in the order in which they run; without them the pipeline is open.
        sources: by name.
        targets: by name.
        engine: ``"spark"``, ``"arrow"`` or ``"duckdb"``.
        spark: the session it runs on.
        reports: the directory of the reports.
        state: the file of the state.

    Raises:
        InputError: a method is called that has a key which is not known, or the pipeline is not open.

    Example:
        >>> from intarsia import pipeline
        >>> orders = pipeline.Pipeline("orders", engine="arrow")
        >>> changes = orders.files("changes", "changes.csv")
        >>> orders.merge(changes, into="lake/orders", on="id")
        'orders'
        >>> pipeline.run(orders, progress=False).check().steps[0].result.inserted
        1
    """

    name: str
    steps: Sequence[Step] = field(default_factory=OpenSteps)
    sources: Mapping[str, Source] = field(default_factory=dict)
    targets: Mapping[str, Target] = field(default_factory=dict)
    engine: EngineOfPipeline = "spark"
    spark: SparkSettings = field(default_factory=SparkSettings)
    lineage: LineageSettings | None = None
    reports: str = "reports"
    """The directory that gets a JSON and an HTML file for each run."""
    state: str | None = None
    """The file that remembers what has been done; None is ``.intarsia/<name>.state.json`` beside the
    directory of the reports."""
    scopes: Mapping[str, str] = field(default_factory=dict)
    """By the name of a step: what chooses its rows beside its files, such as a day in ``where``; each file is
    taken once for each. Of a pipeline file, the variables in such places."""
    env: str | None = None
    """The environment, whose overrides are part of what is above; None for none."""
    origin: str | None = field(default=None, compare=False)
    """The file it was read from."""
    params: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The values of its parameters; where it is open, their defaults."""
    environments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)
    """Where it is open: the overrides of its environments."""
    lines: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    """The lines of its sources, targets and steps in its file, by what errors call these."""

    def __post_init__(self) -> None:
        if self.is_open:
            for name in ("sources", "targets", "params", "environments", "lines"):
                object.__setattr__(self, name, dict(getattr(self, name)))
            object.__setattr__(self, "origin", self.origin or find_caller()[0])

    @property
    def is_open(self) -> bool:
        """Whether methods may add to it."""
        return isinstance(self.steps, OpenSteps)

    def add_source(self, name: str, **keys: Any) -> str:
        """Declare a source of any kind by the keys of ``[sources.NAME]``; returns its name."""
        self._add("sources", name, Source, keys)
        return name

    def target(self, name: str, path: str | os.PathLike[str], **keys: Any) -> str:
        """Declare a target by the keys of ``[targets.NAME]``; returns its name."""
        self._add("targets", name, Target, {"path": os.fspath(path), **keys})
        return name

    def add_step(self, operation: str, **keys: Any) -> None:
        """Declare a step by the keys of ``[[steps]]``."""
        if not isinstance(self.steps, OpenSteps):
            raise _make_closed_error(self)
        kind = KINDS[operation]
        _check_keys(operation, keys, kind.list_keys())
        self.steps.append(kind(**_without_none(keys)))
        self._note_line(f"[[steps]] {len(self.steps)}")

    def param(self, name: str, default: Any = None) -> str:
        """Declare a parameter and its default, whose type it has; returns ``${name}`` for texts.

        ``--param name=value`` replaces it. A function gets its value by a parameter of the same name.
        """
        if not self.is_open:
            raise _make_closed_error(self)
        if default is not None:
            cast("dict[str, Any]", self.params)[name] = default
        return f"${{{name}}}"

    def environment(self, name: str, **overrides: Any) -> None:
        """Declare what is otherwise in an environment, by the keys of ``[env.NAME]``."""
        if not self.is_open:
            raise _make_closed_error(self)
        cast("dict[str, Any]", self.environments)[name] = overrides

    def _add(self, table: str, name: str, kind: type[Any], keys: Mapping[str, Any]) -> None:
        if not self.is_open:
            raise _make_closed_error(self)
        place = f"[{table}.{name}]"
        known: dict[str, Any] = getattr(self, table)
        if name in known:
            raise InputError(f"{place} is declared already.", hint="give this one another name.")
        _check_keys(place, keys, [entry.name for entry in fields(kind)])
        known[name] = kind(**_without_none(keys))
        self._note_line(place)

    def _note_line(self, place: str) -> None:
        cast("dict[str, int]", self.lines)[place] = find_caller()[1]


def _make_closed_error(pipeline: Pipeline) -> InputError:
    return InputError(
        f"pipeline {pipeline.name!r} has all its steps: nothing can be added to it.",
        hint=f'begin it with Pipeline("{pipeline.name}"), without steps.',
    )


def _check_keys(place: str, keys: Iterable[str], known: Sequence[str]) -> None:
    for key in keys:
        if key not in known:
            raise InputError(f"{place} takes no {key!r}.", hint=suggest_names([key], sorted(known)))


def _without_none(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in keys.items() if value is not None}


def list_names(columns: Columns | None) -> tuple[str, ...]:
    """One column or several, as a tuple."""
    if columns is None:
        return ()
    return (columns,) if isinstance(columns, str) else tuple(columns)


def require(value: str | None) -> str:
    """A field that steps of the kind always have."""
    assert value is not None
    return value


def is_guard(step: Step) -> TypeGuard[Expect]:
    """Whether a step drops or quarantines rows of a source, for the steps below it that read the source.

    Or judges those of one step, whatever follows from it.
    """
    if isinstance(step, StepGuard):
        return True
    return isinstance(step, Expect) and step.source is not None and step.action in ("drop", "quarantine")


def guards_target(step: Step) -> TypeGuard[Expect]:
    """Whether a declared step drops or quarantines the rows of the steps that write a target."""
    return isinstance(step, Expect) and step.source is None and step.action in ("drop", "quarantine")


def find_written_target(step: Step) -> str | None:
    """The target that a step commits to; None for an expectation that only looks."""
    return step.quarantine if isinstance(step, Expect) else step.target


def name_step(step: Step, number: int) -> str:
    """The name a step was given, or one made of its number and what it works on."""
    where = step.target or step.source or ""
    return step.name or f"{number}-{step.operation}-{where}"
