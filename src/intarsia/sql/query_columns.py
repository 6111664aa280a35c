"""Which columns of its tables a query may read, found by their names; what it does with them is not asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from intarsia.sql.parse import import_sqlglot

__all__ = ["ColumnUse", "find_column_use"]


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """The names in a query, and its tables of which it may read columns that it does not name.

    A column whose name is nowhere in the query is read by a star, a natural join and the like alone.
    """

    names: frozenset[str] = frozenset()
    """Every word of the query, in lower case."""
    whole: frozenset[str] | None = None
    """The tables, in lower case, of which all columns may be read; None is all tables."""

    def select_columns(self, table: str, columns: Sequence[str]) -> tuple[str, ...]:
        """The columns of a table that the query may read, in their order; at least one."""
        if self.whole is None or table.casefold() in self.whole:
            return tuple(columns)
        named = tuple(name for name in columns if name.casefold() in self.names)
        return named or tuple(columns[:1])


def find_column_use(tree: Any, words: Iterable[str]) -> ColumnUse:
    """What a query that was parsed says of columns; ``words`` are all its tokens, quotes left out."""
    exp = import_sqlglot().exp
    if _has_unnamed_columns(tree, exp):
        return ColumnUse()
    whole: set[str] = set()
    for table in tree.find_all(exp.Table):
        if table.parent_select is None:
            return ColumnUse()
    for star in tree.find_all(exp.Star):
        if isinstance(star.parent, exp.Count):
            continue
        select = star.find_ancestor(exp.Select)
        while select is not None:  # also those around it, whose columns a subquery may see
            whole |= {table.name.casefold() for table in _list_own_tables(select, exp)}
            select = select.find_ancestor(exp.Select)
    return ColumnUse(frozenset(word.casefold() for word in words), frozenset(whole))


def _has_unnamed_columns(tree: Any, exp: Any) -> bool:
    """Whether columns may be meant otherwise than by their names or a star."""
    kinds = (exp.Pivot, exp.Columns, exp.PositionalColumn, exp.Summarize, exp.Describe)
    if any(tree.find(kind) for kind in kinds):
        return True
    if any(join.args.get("method") for join in tree.find_all(exp.Join)):  # natural, positional, asof
        return True
    if any(isinstance(group.this, exp.Table) and group.alias for group in tree.find_all(exp.Subquery)):
        return True  # a join in parentheses, whose name is a row of all its tables
    tables = list(tree.find_all(exp.Table))
    if any(table.args.get("alias") and table.args["alias"].args.get("columns") for table in tables):
        return True  # they are renamed by their positions
    known = {name.casefold() for table in tables for name in (table.name, table.alias) if name}
    return any(column.name.casefold() in known for column in tree.find_all(exp.Column))  # a row as a struct


def _list_own_tables(select: Any, exp: Any) -> Iterator[Any]:
    """The tables of a SELECT, those of subqueries left out."""
    for table in select.find_all(exp.Table):
        if table.parent_select is select:
            yield table
