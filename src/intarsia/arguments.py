"""Arguments of operations parsed and checked: keys, conditions, clauses, columns; not their options."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.expr import Expr
from intarsia.core.intent import Missing
from intarsia.core.merge import MergeStrategy, list_column_names, normalize_keys
from intarsia.core.planning import check_thresholds
from intarsia.core.rule import Assign, Clause, Insert, Rule, get_strategy_rule
from intarsia.errors import InputError, NotSupported
from intarsia.options import Columns, StrategyName
from intarsia.sql.clauses import parse_clauses
from intarsia.sql.parse import parse_assignments, parse_merge_condition, parse_predicate, parse_type

__all__ = [
    "Clauses",
    "Curve",
    "MatchArguments",
    "Operation",
    "Predicate",
    "SchemaEvolution",
    "SourceArguments",
    "Strategy",
    "WriteMode",
    "compute_file_bytes",
    "has_sql",
    "is_condition",
    "list_columns",
    "make_rule",
    "parse_column_types",
    "parse_keys",
    "parse_where",
]

Clauses = str | Clause | Sequence[str | Clause]
"""What a merge does: clauses, SQL text with one or more of them, or a list of these."""
WriteMode = Literal["append", "overwrite", "overwrite_partitions"]
Curve = Literal["zorder", "hilbert", "linear"]
Strategy = StrategyName | MergeStrategy
Evolution = Literal["add", "widen"]
SchemaEvolution = Evolution | Literal["add,widen"] | Collection[Evolution]
Operation = Literal["merge", "delete", "update", "write", "compact", "optimize", "deduplicate", "restore"]
Predicate = str | pc.Expression
"""A condition on rows: SQL text, or an expression of ``pyarrow.compute``."""


class SourceArguments(TypedDict, total=False):
    """Arguments of ``merge`` and ``write`` on the schema of the source, for facades that pass them on."""

    missing: Missing
    schema_evolution: SchemaEvolution | None


class MatchArguments(SourceArguments, total=False):
    """Arguments of ``merge`` besides keys and strategy, for facades that pass them on."""

    clauses: Clauses | None
    null_keys: Literal["error", "match"]
    except_columns: Columns | None


_ALL_ROWS = 'the whole condition is one text, such as "id <> 5"; "true" takes every row.'
_MB = 1 << 20
_CONDITION = re.compile(r"=|\bdistinct\s+from\b", re.IGNORECASE)
"""What tells a condition from the name of a key column."""


def has_sql(value: Any) -> bool:
    """Whether there is SQL text in an argument: a condition, assignments, clauses, names of types."""
    match value:
        case str():
            return True
        case Mapping():
            return any(map(has_sql, value.values()))
        case Clause():
            values = getattr(value.action, "values", None)
            return isinstance(value.condition, str) or has_sql(dict(values or ()))
        case list() | tuple():
            return any(map(has_sql, value))
    return False


def is_condition(on: Any) -> bool:
    """Whether ``on=`` is a condition and not names of columns."""
    return isinstance(on, str) and _CONDITION.search(on) is not None


def parse_keys(on: Any, dialect: str | None) -> dict[str, Any]:
    """``on=`` as fields of a merge intent: key columns of both sides, and the rest of a condition."""
    if not is_condition(on):
        keys = tuple(normalize_keys(on))
        return {"keys": keys, "source_keys": keys}
    pairs, rest = parse_merge_condition(on, dialect=dialect)
    columns = [column for pair in pairs for column in (pair.target, pair.source)]
    nested = [column.path for column in columns if len(column.path) > 1]
    if nested:
        raise NotSupported(
            f"A key cannot be a field inside a struct: {'.'.join(nested[0])!r}.",
            hint="bring it to a column of its own first.",
        )
    return {
        "keys": tuple(pair.target.path[0] for pair in pairs),
        "source_keys": tuple(pair.source.path[0] for pair in pairs),
        "residual": rest,
        "null_safe": frozenset(number for number, pair in enumerate(pairs) if pair.null_safe),
        "quoted": frozenset((str(column.side), column.path[0]) for column in columns if column.exact),
    }


def make_rule(strategy: str, clauses: Clauses | None, dialect: str | None) -> Rule:
    """The rule of the clauses, their texts parsed; that of the strategy where there are none."""
    if clauses is None:
        return get_strategy_rule(strategy)
    if strategy != "upsert":
        raise InputError(
            f"strategy={strategy!r} and clauses= were given, and one stands instead of the other.",
            hint="leave one of the two out.",
        )
    given: list[Any] = [clauses] if isinstance(clauses, (str, Clause)) else _make_list(clauses)
    if not given or not all(isinstance(clause, (str, Clause)) for clause in given):
        raise InputError(
            "clauses must be a list of when_matched(...), when_not_matched(...) or"
            " when_not_matched_by_source(...), each with an action, or SQL text.",
            hint='such as "when matched then update set *".',
        )
    made: list[Clause] = []
    for clause in given:
        made += [clause] if isinstance(clause, Clause) else parse_clauses(clause, dialect=dialect)
    return Rule("merge", tuple(_parse_clause(clause, dialect) for clause in made))


def _make_list(values: Any) -> list[Any]:
    """Several values as a list; a mapping, or what is no iterable, as a list of one, for the error."""
    return list(values) if isinstance(values, Iterable) and not isinstance(values, Mapping) else [values]


def _parse_clause(clause: Clause, dialect: str | None) -> Clause:
    condition = clause.condition
    if condition is not None and not isinstance(condition, Expr):
        condition = _parse_condition(condition, dialect)
    action = clause.action
    if isinstance(action, (Assign, Insert)) and action.values is not None:
        action = type(action)(parse_assignments(dict(action.values), dialect=dialect))
    return Clause(clause.side, action, condition)


def _parse_condition(condition: Any, dialect: str | None) -> Expr:
    if isinstance(condition, str):
        return parse_predicate(condition, dialect=dialect)
    raise InputError(
        f"the condition of a clause is SQL text, not {condition!r} ({type(condition).__name__}).",
        hint=_ALL_ROWS if isinstance(condition, bool) else "such as \"source.op = 'd'\".",
    )


def parse_where(where: Any, dialect: str | None) -> Any:
    """SQL text parsed; an expression of Arrow, or one that was parsed already, stays as it is.

    A Python bool is refused: ``"id" != 5`` is True in Python, and means every row to nobody who wrote it.
    """
    if isinstance(where, str):
        return parse_predicate(where, dialect=dialect)
    if isinstance(where, (pc.Expression, Expr)):
        return where
    raise InputError(
        f"a predicate is SQL text or a pyarrow.compute expression, not {where!r} ({type(where).__name__}).",
        hint=_ALL_ROWS if isinstance(where, bool) else "such as \"price > 3 and day = 'mon'\".",
    )


def list_columns(columns: Any, argument: str) -> tuple[str, ...]:
    """Columns as a tuple: none, a single name, or several. Raises InputError for anything but names."""
    return () if columns is None else tuple(list_column_names(columns, argument))


def compute_file_bytes(megabytes: float | None, rows: int | None) -> int | None:
    """The target size of a file in bytes. Raises InputError where either threshold is not above zero."""
    check_thresholds(megabytes, rows)
    return None if megabytes is None else max(1, int(megabytes * _MB))


def parse_column_types(columns: Any, dialect: str | None) -> pa.Schema | None:
    """The types of ``columns=``: a schema, or a dict of names and types, which may be SQL's names."""
    if columns is None or isinstance(columns, pa.Schema):
        return columns
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) for name in columns):
        raise InputError(
            f"columns must be a dict of names and types, not {columns!r}.",
            hint='such as {"id": "bigint", "price": "decimal(10, 2)"}, or a pyarrow schema.',
        )
    return pa.schema(
        [
            (name, kind if isinstance(kind, pa.DataType) else parse_type(kind, dialect=dialect))
            for name, kind in columns.items()
        ]
    )
