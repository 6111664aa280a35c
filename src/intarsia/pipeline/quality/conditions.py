"""Expectations on single rows as conditions, and the columns that expectations are on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from intarsia.core.expr import Column, Expr, In, IsNull, Not, make_literal
from intarsia.errors import ColumnNotFound, InputError
from intarsia.pipeline.model import Expect, list_names
from intarsia.sql.parse import parse_predicate


def parse_conditions(step: Expect) -> list[tuple[str, Expr]]:
    """The expectations on single rows, each with the condition that is TRUE for a row that violates it."""
    found: list[tuple[str, Expr]] = []
    for name in list_names(step.not_null):
        found.append((f"{name} is not NULL", IsNull(Column((name,), exact=True))))
    for name, values in step.accepted.items():
        items = tuple(_make_literal(name, value) for value in values if value is not None)  # NULL passes
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


def describe_unique(step: Expect) -> str:
    return f"{', '.join(list_names(step.unique))} unique"


def check_columns(step: Expect, names: Sequence[str]) -> None:
    """Raise ColumnNotFound where an expectation is on a column that is not there."""
    fresh = (step.fresh["column"],) if step.fresh else ()
    keys = [name.strip() for columns in step.references for name in columns.split(",")]
    for name in (*list_names(step.not_null), *list_names(step.unique), *step.accepted, *fresh, *keys):
        if name not in names:
            raise ColumnNotFound(
                f"There is no column {name!r} to expect something of; there is {', '.join(names)}."
            )
