"""The rows that a guard rejects, written into its quarantine with the reason, in one commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from intarsia import api
from intarsia.core.ports import Progress, Table
from intarsia.core.report import MergeResult
from intarsia.errors import InputError
from intarsia.pipeline.inputs import InputFiles
from intarsia.pipeline.model import Expect, Target, list_names, require
from intarsia.pipeline.quality.guards import REASON, RUN, STEP
from intarsia.pipeline.resources import RunResources

AT = "_at"
ADDED = (REASON, STEP, RUN, AT)
"""The columns of a quarantine beside those of the source."""


def quarantine_rows(
    step: Expect,
    resources: RunResources,
    listing: InputFiles | None,
    *,
    run_id: str,
    replaces: tuple[str, ...],
    progress: Progress,
    extra: Mapping[str, Any],
) -> MergeResult | None:
    """Write the rejected rows; None where there is nothing to write.

    Args:
        step: the guard.
        resources: the engine, the tables and the rows of sources.
        listing: the files of the source that it judges.
        run_id: the run, for the rows.
        replaces: the names of steps whose rows these take the place of; none where they are added.
        progress: called with what is going on, done and total.
        extra: the id to commit under.
    """
    target = require(step.quarantine)
    judge, open_rows = resources.judge_rows(step, listing)
    return write_rejected(
        judge.reject_rows(open_rows()),
        resources.get_table(target),
        resources.pipeline.targets[target],
        step=step,
        run_id=run_id,
        replaces=replaces,
        extra={"engine": resources.engine, "progress": progress, **extra},
    )


def write_rejected(
    rejected: Any,
    table: Table,
    declared: Target,
    *,
    step: Expect,
    run_id: str,
    replaces: tuple[str, ...],
    extra: Mapping[str, Any],
) -> MergeResult | None:
    """Write rows, whose last column is the reason, into a quarantine; None where there is nothing to write.

    Raises:
        InputError: other rows are in it, or the rows have a column that it adds.
    """
    snapshot = table.snapshot()
    if snapshot.has_schema and STEP not in snapshot.schema.names and (replaces or snapshot.rows):
        raise InputError(
            f"the quarantine {step.quarantine!r} has no column {STEP}: other rows are in it.",
            path=snapshot.root,
            hint=f"name a target of its own; it has the source's columns and {', '.join(ADDED)}.",
        )
    layout = list_names(declared.partition_by) or None
    own = " OR ".join(f"{STEP} = '{name.replace(chr(39), chr(39) * 2)}'" for name in replaces)
    is_replacing = bool(replaces) and snapshot.has_schema and bool(snapshot.files)
    result = api.write(
        _add_columns(rejected, step.name, run_id),
        table,
        mode="overwrite" if is_replacing else "append",
        where=own if is_replacing else None,
        missing="null",
        schema_evolution=None if snapshot.format.owns_schema else "add,widen",
        partition_by=None if snapshot.has_schema else layout,
        **extra,
    )
    return result if result.changed else None


def _add_columns(rows: Any, step: str, run_id: str) -> Any:
    """Rejected rows with the step, the run and the time."""
    now = datetime.now(UTC)
    names = rows[0].schema.names if isinstance(rows, list) else rows.columns
    given = {name.casefold() for name in names[:-1]}
    taken = [name for name in ADDED if name in given]
    if taken:
        raise InputError(
            f"the source has a column {taken[0]!r} itself, which a quarantine adds.",
            hint="leave it out with columns, or rename it with derive.",
        )
    if isinstance(rows, list):
        return [_add_constants(one, step, run_id, now) for one in rows]
    from pyspark.sql import functions

    return (
        rows.withColumnRenamed(names[-1], REASON)
        .withColumn(STEP, functions.lit(step))
        .withColumn(RUN, functions.lit(run_id))
        .withColumn(AT, functions.lit(now))
    )


def _add_constants(
    stream: pa.RecordBatchReader, step: str, run_id: str, now: datetime
) -> pa.RecordBatchReader:
    values = {
        STEP: pa.scalar(step),
        RUN: pa.scalar(run_id),
        AT: pa.scalar(now, pa.timestamp("us", "UTC")),
    }
    given = [*list(stream.schema)[:-1], pa.field(REASON, pa.string())]
    schema = pa.schema([*given, *((name, value.type) for name, value in values.items())])

    def read() -> Iterator[pa.RecordBatch]:
        for batch in stream:
            constants = [pa.repeat(value, batch.num_rows) for value in values.values()]
            yield pa.RecordBatch.from_arrays([*batch.columns, *constants], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, read())
