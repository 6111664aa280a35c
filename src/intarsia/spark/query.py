"""A query of the caller's over DataFrames, run by Spark, classic or Connect; nothing is collected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["run_query"]


def run_query(spark: Any, text: str, tables: Mapping[str, Any], *, params: Mapping[str, Any]) -> Any:
    """The DataFrame of a query, analyzed and not yet evaluated.

    The tables are CTEs around the query: no view of the caller's session is hidden or replaced for others.
    (A classic session names the DataFrames by temporary views of its own, and drops them again.)

    Args:
        spark: the session.
        text: the query, with markers for parameters.
        tables: DataFrames by the names that the query has for them.
        params: values by marker; they become literals of the plan, and never text.
    """
    frames = {f"frame{number}": frame for number, frame in enumerate(tables.values())}
    ctes = [
        f"{quote_name(name)} AS (SELECT * FROM {{{frame}}})"
        for name, frame in zip(tables, frames, strict=True)
    ]
    body = f"SELECT * FROM ({text}\n)"
    if frames:  # Spark formats the text only then; braces of the query stand for themselves
        body = f"WITH {', '.join(ctes)} {_escape_braces(body)}"
    return spark.sql(body, args=dict(params) or None, **frames)


def quote_name(name: str) -> str:
    """A name in Spark's quotes, also inside of a text that Spark formats."""
    return f"`{_escape_braces(name.replace('`', '``'))}`"


def _escape_braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
