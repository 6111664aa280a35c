"""Expectations counted on a source or a target; what follows from the counts is in checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia import api
from intarsia.core.ports import Progress
from intarsia.pipeline.computed import chain_streams
from intarsia.pipeline.inputs import InputFiles
from intarsia.pipeline.model import Expect, is_guard, list_names, require
from intarsia.pipeline.quality.checks import ANY, Check, judge_rows, judge_whole, refuse_check
from intarsia.pipeline.quality.conditions import check_columns, describe_unique, parse_conditions
from intarsia.pipeline.quality.freshness import Freshness, check_time_column, parse_freshness, read_instant
from intarsia.pipeline.quality.references import (
    ROWS,
    Reference,
    find_missing_frame,
    find_missing_keys,
    parse_references,
    quote_name,
    tally_keys,
)
from intarsia.pipeline.quality.row_judge import RowJudge
from intarsia.pipeline.resources import RunResources
from intarsia.pipeline.row_transform import RowCounter
from intarsia.show import units


def _check_row_bounds(step: Expect, rows: int) -> list[Check]:
    """Check ``min_rows`` and ``max_rows``."""
    found = []
    there = f"there {'is' if rows == 1 else 'are'} {units.format_count(rows, 'row')}"
    if step.min_rows is not None:
        short = max(step.min_rows - rows, 0)
        found.append(judge_whole(step, f"at least {step.min_rows:,} rows", short, there))
    if step.max_rows is not None:
        over = max(rows - step.max_rows, 0)
        found.append(judge_whole(step, f"at most {step.max_rows:,} rows", over, there))
    return found


def _check_freshness(step: Expect, fresh: Freshness, newest: int | None) -> Check:
    stale = fresh.find_staleness(newest)
    return judge_whole(step, fresh.expectation, int(bool(stale)), stale)


# Targets: rows are counted by dry runs of the engine, which prune by statistics.


def check_target(step: Expect, resources: RunResources, progress: Progress) -> list[Check]:
    """Check a table; files that statistics decide are not read."""
    target = require(step.target)
    table = resources.get_table(target)
    snapshot = table.snapshot()
    checks = _check_row_bounds(step, snapshot.rows)
    wanted = parse_conditions(step)
    fresh = parse_freshness(step.fresh)
    references = parse_references(step, resources.pipeline)
    if not snapshot.files:
        texts = [text for text, _ in wanted] + [describe_unique(step)] * bool(step.unique)
        checks += [judge_rows(step, text, 0, 0) for text in texts]
        checks += [judge_rows(step, one.expectation, 0, 0) for one in references]
        return checks if fresh is None else [*checks, _check_freshness(step, fresh, None)]
    check_columns(step, snapshot.schema.names)
    counting: dict[str, Any] = {
        "engine": resources.engine,
        "dry_run": True,
        "measured_bytes": 0,
        "progress": progress,
    }
    for text, against in wanted:
        counted = api.delete(table, against, **counting)  # not as text: bytes have none
        checks.append(judge_rows(step, text, counted.deleted, snapshot.rows))
    if list_names(step.unique):
        twice = api.deduplicate(table, on=list_names(step.unique), **counting)
        checks.append(judge_rows(step, describe_unique(step), twice.deleted, snapshot.rows))
    for one in references:
        missing = _count_missing(one, resources, lambda one=one: resources.read_columns(target, one.columns))
        checks.append(judge_rows(step, one.expectation, missing, snapshot.rows))
    if fresh is not None:
        check_time_column(fresh.column, snapshot.schema)
        newest = _find_newest(fresh, resources.read_columns(target, (fresh.column,)))
        checks.append(_check_freshness(step, fresh, newest))
    return checks


# Sources


def check_source(step: Expect, resources: RunResources, listing: InputFiles | None) -> list[Check]:
    """Check the rows of a source.

    On Spark only counts are collected. Else memory: the columns that must be unique, and as of references.
    """
    if is_guard(step):
        return _check_guarded(step, resources, listing)
    source = resources.pipeline.sources[require(step.source)]

    def open_rows() -> Any:
        return resources.read_rows(source, listing)

    rows = open_rows()
    checks, total = _check_streams(step, rows) if isinstance(rows, list) else _check_frame(step, rows)
    for one in parse_references(step, resources.pipeline):
        checks.append(judge_rows(step, one.expectation, _count_missing(one, resources, open_rows), total))
    return checks


def _check_guarded(step: Expect, resources: RunResources, listing: InputFiles | None) -> list[Check]:
    """Check the rows of a source, of which those that violate something are dropped or quarantined.

    Of rows with the same key, where it must be unique, all count: none can be told to be the right one.
    """
    judge, open_rows = resources.judge_rows(step, listing)
    return count_guarded(step, judge, open_rows)


def count_guarded(step: Expect, judge: RowJudge, open_rows: Callable[[], Any]) -> list[Check]:
    """The checks of rows, of which those that violate something are dropped or quarantined."""
    rows = open_rows()
    on_rows = Expect(source=step.source, not_null=step.not_null, accepted=step.accepted, holds=step.holds)
    counted, total = _check_streams(on_rows, rows) if isinstance(rows, list) else _check_frame(on_rows, rows)
    checks = [judge_rows(step, check.expectation, check.failing, total) for check in counted]
    checks += [judge_rows(step, one.expectation, one.failing, total) for one in judge.keys]
    if len(checks) > 1:
        checks.append(judge_rows(step, ANY, judge.count_rejected(open_rows()), total))
    if any(check.outcome == "failed" for check in checks):  # then no row is dropped
        checks = [check if check.outcome == "failed" else refuse_check(check) for check in checks]
    return checks


def _check_streams(step: Expect, streams: Iterable[pa.RecordBatchReader]) -> tuple[list[Check], int]:
    wanted = parse_conditions(step)
    tally = RowCounter(tuple(against for _, against in wanted))
    keys = list(list_names(step.unique))
    fresh = parse_freshness(step.fresh)
    totals = [0] * (len(wanted) + 1)
    instants: list[int] = []

    def count_batches() -> Iterator[pa.RecordBatch]:
        for stream in streams:
            check_columns(step, stream.schema.names)
            if fresh is not None:
                check_time_column(fresh.column, stream.schema)
            for batch in stream:
                (counts,) = tally.count_batches([batch])
                totals[:] = [total + counts.column(at)[0].as_py() for at, total in enumerate(totals)]
                if fresh is not None:
                    instants.extend(_read_newest(batch.column(fresh.column)))
                yield batch

    different = 0
    if keys:
        different = tally_keys(count_batches(), keys).num_rows
    else:
        for _ in count_batches():
            pass
    checks = _check_row_bounds(step, totals[0])
    for (text, _), count in zip(wanted, totals[1:], strict=True):
        checks.append(judge_rows(step, text, count, totals[0]))
    if keys:
        checks.append(judge_rows(step, describe_unique(step), totals[0] - different, totals[0]))
    if fresh is not None:
        checks.append(_check_freshness(step, fresh, max(instants, default=None)))
    return checks, totals[0]


def _check_frame(step: Expect, frame: Any) -> tuple[list[Check], int]:
    """Check a Spark DataFrame: one job for all conditions, one for the keys; only counts are collected."""
    from pyspark.sql import functions
    from pyspark.sql.pandas.types import to_arrow_schema

    from intarsia.spark.collect import run_interruptible

    wanted = parse_conditions(step)
    fresh = parse_freshness(step.fresh)
    check_columns(step, frame.columns)
    tally = RowCounter(tuple(against for _, against in wanted))
    columns = ", ".join(f"{name} bigint" for name in tally.schema.names)
    sums = [functions.sum(name).alias(name) for name in tally.schema.names]
    summed = frame.mapInArrow(tally.count_batches, columns).agg(*sums)
    (counts,) = run_interruptible(frame.sparkSession, summed.collect)
    totals = [int(count or 0) for count in counts]
    checks = _check_row_bounds(step, totals[0])
    for (text, _), count in zip(wanted, totals[1:], strict=True):
        checks.append(judge_rows(step, text, count, totals[0]))
    if list_names(step.unique):
        keys = frame.select(*[quote_name(name) for name in list_names(step.unique)]).distinct()
        different = run_interruptible(frame.sparkSession, keys.count)
        checks.append(judge_rows(step, describe_unique(step), totals[0] - different, totals[0]))
    if fresh is not None:
        check_time_column(fresh.column, to_arrow_schema(frame.schema))
        checks.append(_check_freshness(step, fresh, _find_newest(fresh, frame)))
    return checks, totals[0]


# Both


def _count_missing(reference: Reference, resources: RunResources, open_rows: Any) -> int:
    """How many rows have a key that the other table of a reference lacks."""
    rows = open_rows()
    keys = resources.read_keys(reference)
    if resources.session is None:
        missing = find_missing_keys(
            reference,
            lambda: chain_streams(open_rows()),
            lambda: chain_streams(resources.read_keys(reference)),
            use_duckdb=resources.engine == "duckdb",
        )
        return int(pc.sum(missing[ROWS]).as_py() or 0)
    from pyspark.sql import functions

    from intarsia.pipeline.computed import as_frame
    from intarsia.spark.collect import run_interruptible

    found = find_missing_frame(reference, as_frame(rows, resources.session), keys)
    (counted,) = run_interruptible(resources.session, found.agg(functions.sum(ROWS)).collect)
    return int(counted[0] or 0)


def _find_newest(fresh: Freshness, rows: Any) -> int | None:
    """The newest value of a column, as nanoseconds; None where there is none."""
    if isinstance(rows, list):
        found = [one for stream in rows for batch in stream for one in _read_newest(batch[fresh.column])]
        return max(found, default=None)
    from pyspark.sql import functions

    from intarsia.spark.collect import run_interruptible

    newest = rows.agg(functions.max(quote_name(fresh.column)).alias("newest"))
    return read_instant(run_interruptible(rows.sparkSession, newest.toArrow)["newest"][0])


def _read_newest(column: pa.Array) -> list[int]:
    newest = read_instant(pc.max(column))
    return [] if newest is None else [newest]
