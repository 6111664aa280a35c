"""An expectation evaluated on a table outside of a pipeline, for other orchestrators and for a look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from intarsia.core.run import ignore_progress
from intarsia.core.validation import check_exists
from intarsia.errors import InputError
from intarsia.options import TableTarget
from intarsia.pipeline import validation
from intarsia.pipeline.model import EngineOfPipeline, Expect, Pipeline, Target
from intarsia.pipeline.quality.checks import Check
from intarsia.pipeline.quality.expect import check_target
from intarsia.pipeline.resources import LoggedTable, RunResources
from intarsia.request import make_request

_SUBJECT = "table"
"""The name of the table where the expectation names none, by which it may reference itself."""


def evaluate(
    expectation: Expect,
    target: TableTarget,
    *,
    tables: Mapping[str, TableTarget] | None = None,
    engine: EngineOfPipeline = "arrow",
) -> tuple[Check, ...]:
    """Check a table by an expectation, as a step of a pipeline does; changes nothing.

    Files whose statistics answer a question are not read. Memory: as of a dry run of ``delete``, the
    columns that must be unique, and the different keys of references.

    Args:
        expectation: an :class:`Expect` without ``source``; its action is ``fail`` or ``warn``.
        target: the table, as in :func:`intarsia.merge`.
        tables: the other tables that its ``references`` name.
        engine: ``"arrow"`` or ``"duckdb"``.

    Raises:
        NothingMatched: there is no such table.
        ColumnNotFound, InputError: the expectation does not fit the table, or drops or quarantines rows.

    Example:
        >>> from intarsia import pipeline
        >>> checks = pipeline.evaluate(pipeline.Expect(not_null="id", holds="id < 2"), "lake/orders")
        >>> [(check.expectation, check.failing, check.outcome) for check in checks]
        [('id is not NULL', 0, 'held'), ('id < 2', 1, 'failed')]
    """
    if expectation.source is not None or expectation.action not in ("fail", "warn"):
        raise InputError(
            "an expectation on a table has no source, and its action is fail or warn.",
            hint="rows are dropped and quarantined by the pipeline that brings them.",
        )
    name = expectation.target or _SUBJECT
    if name in (tables or {}):
        raise InputError(f"tables= names {name!r}, which is the table that is checked.")
    found: dict[str, LoggedTable] = {}
    for one, place in {name: target, **(tables or {})}.items():
        found[one] = cast("LoggedTable", make_request("snapshot", "auto", place, {}).table)
        check_exists(found[one].snapshot(), "evaluate")
    step = replace(expectation, name=expectation.name or "expect", target=name)
    pipeline = Pipeline(
        name="evaluate",
        engine=engine,
        targets={one: Target(one) for one in found},
        steps=(step,),
    )
    validation.check(pipeline)
    resources = RunResources(pipeline, tables=found)
    try:
        return tuple(check_target(step, resources, ignore_progress))
    finally:
        resources.close()
