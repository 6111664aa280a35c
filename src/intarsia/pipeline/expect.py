"""Expectations checked on a source or a target; how a failed one ends the run is in step_runner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from intarsia import api
from intarsia.core.expr import Column, Expr, In, IsNull, Not, make_literal, to_sql
from intarsia.core.ports import Progress, Table
from intarsia.engine_choice import EngineLike
from intarsia.errors import ColumnNotFound, InputError
from intarsia.pipeline.model import Expect, list_names
from intarsia.pipeline.row_transform import RowCounter
from intarsia.sql.parse import parse_predicate


@dataclass(frozen=True, slots=True)
class Check:
    """One expectation, and how many rows violate it."""

    expectation: str
    failing: int
    found: str = ""

    @property
    def ok(self) -> bool:
        return self.failing == 0


def parse_conditions(step: Expect) -> list[tuple[str, Expr]]:
    """The expectations on single rows, each with the condition that is TRUE for a row that violates it."""
    found: list[tuple[str, Expr]] = []
    for name in list_names(step.not_null):
        found.append((f"{name} is not NULL", IsNull(Column((name,), exact=True))))
    for name, values in step.accepted.items():
        items = tuple(_make_literal(name, value) for value in values)
        shown = ", ".join(map(str, values))
        found.append((f"{name} is one of {shown}", In(Column((name,), exact=True), items, negated=True)))
    for text in list_names(step.holds):
        found.append((text, Not(parse_predicate(text))))
    return found


def _make_literal(name: str, value: Any) -> Any:
    try:
        return make_literal(value)
    except (TypeError, pa.ArrowException) as error:
        raise InputError(f"accepted: {value!r} cannot be a value of {name!r}.") from error


def check_row_bounds(step: Expect, rows: int) -> list[Check]:
    """Check ``min_rows`` and ``max_rows``."""
    found = []
    if step.min_rows is not None:
        short = max(step.min_rows - rows, 0)
        found.append(Check(f"at least {step.min_rows:,} rows", short, f"{rows:,} rows"))
    if step.max_rows is not None:
        over = max(rows - step.max_rows, 0)
        found.append(Check(f"at most {step.max_rows:,} rows", over, f"{rows:,} rows"))
    return found


def make_failure(step: Expect, checks: Sequence[Check], where: str) -> InputError | None:
    """The error of failed checks; None where all hold."""
    wrong = [check for check in checks if not check.ok]
    if not wrong:
        return None
    told = "; ".join(_describe(check) for check in wrong)
    what = "expectation does" if len(wrong) == 1 else "expectations do"
    return InputError(f"{len(wrong)} {what} not hold of {where}: {told}.", path=where)


def _describe(check: Check) -> str:
    if check.found:
        return f"{check.expectation} (there are {check.found})"
    return f"{check.expectation} ({check.failing:,} {'row' if check.failing == 1 else 'rows'} against it)"


def _describe_unique(step: Expect) -> str:
    return f"{', '.join(list_names(step.unique))} unique"


# Targets: rows are counted by dry runs of the engine, which prune by statistics.


def check_target(step: Expect, table: Table, engine: EngineLike, progress: Progress) -> list[Check]:
    """Check a table; files that statistics decide are not read."""
    snapshot = table.snapshot()
    checks = check_row_bounds(step, snapshot.rows)
    wanted = parse_conditions(step)
    if not snapshot.files:
        return [*checks, *(Check(text, 0) for text, _ in wanted)]
    _check_columns(step, snapshot.schema.names)
    counting: dict[str, Any] = {
        "engine": engine,
        "dry_run": True,
        "measured_bytes": 0,
        "progress": progress,
    }
    for text, against in wanted:
        counted = api.delete(table, to_sql(against), **counting)
        checks.append(Check(text, counted.deleted))
    if list_names(step.unique):
        twice = api.deduplicate(table, on=list_names(step.unique), **counting)
        checks.append(Check(_describe_unique(step), twice.deleted))
    return checks


def _check_columns(step: Expect, names: Sequence[str]) -> None:
    for name in (*list_names(step.not_null), *list_names(step.unique), *step.accepted):
        if name not in names:
            raise ColumnNotFound(
                f"There is no column {name!r} to expect something of; there is {', '.join(names)}."
            )


# Sources


def check_streams(step: Expect, streams: Iterable[pa.RecordBatchReader]) -> list[Check]:
    """Check Arrow streams. Memory: the columns that must be unique."""
    wanted = parse_conditions(step)
    tally = RowCounter(tuple(against for _, against in wanted))
    keys = list(list_names(step.unique))
    totals = [0] * (len(wanted) + 1)
    kept: list[pa.Table] = []
    for stream in streams:
        _check_columns(step, stream.schema.names)
        for batch in stream:
            (counts,) = tally.count_batches([batch])
            totals = [total + counts.column(at)[0].as_py() for at, total in enumerate(totals)]
            if keys:
                kept.append(pa.Table.from_batches([batch]).select(keys))
    checks = check_row_bounds(step, totals[0])
    checks += [Check(text, count) for (text, _), count in zip(wanted, totals[1:], strict=True)]
    if keys:
        different = 0
        if kept:
            whole = pa.concat_tables(kept, promote_options="permissive")
            different = whole.group_by(keys).aggregate([]).num_rows
        checks.append(Check(_describe_unique(step), totals[0] - different))
    return checks


def check_frame(step: Expect, frame: Any) -> list[Check]:
    """Check a Spark DataFrame: one job for all conditions, one for the keys; only counts are collected."""
    from pyspark.sql import functions

    from intarsia.spark.collect import run_interruptible

    wanted = parse_conditions(step)
    _check_columns(step, frame.columns)
    tally = RowCounter(tuple(against for _, against in wanted))
    columns = ", ".join(f"{name} bigint" for name in tally.schema.names)
    sums = [functions.sum(name).alias(name) for name in tally.schema.names]
    summed = frame.mapInArrow(tally.count_batches, columns).agg(*sums)
    (counts,) = run_interruptible(frame.sparkSession, summed.collect)
    totals = [int(count or 0) for count in counts]
    checks = check_row_bounds(step, totals[0])
    checks += [Check(text, count) for (text, _), count in zip(wanted, totals[1:], strict=True)]
    if list_names(step.unique):
        keys = frame.select(*[f"`{name}`" for name in list_names(step.unique)]).distinct()
        different = run_interruptible(frame.sparkSession, keys.count)
        checks.append(Check(_describe_unique(step), totals[0] - different))
    return checks
