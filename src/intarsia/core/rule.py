"""What a merge does with rows: clauses as data, and the five strategies spelled in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from intarsia.errors import InputError

Side = Literal["matched", "source_only", "target_only"]
Condition = Any
"""None, an Expr, or SQL text that has not been parsed yet."""


@dataclass(frozen=True, slots=True)
class Replace:
    """The target row becomes the source row, in every column."""


@dataclass(frozen=True, slots=True)
class Assign:
    """Some columns of the target row get new values; pairs of a column path and an expression."""

    values: tuple[tuple[Any, Any], ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """The target row is deleted."""


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row: the whole source row, or the given columns with the rest NULL."""

    values: tuple[tuple[Any, Any], ...] | None = None


Action = Replace | Assign | Drop | Insert


@dataclass(frozen=True, slots=True)
class Clause:
    """One WHEN of a merge; the first clause of a side whose condition is TRUE decides."""

    side: Side
    action: Action
    condition: Condition = None


@dataclass(frozen=True, slots=True)
class Rule:
    """All clauses of a merge, in order, under the name that reports show."""

    name: str
    clauses: tuple[Clause, ...]

    def list_clauses(self, side: Side) -> tuple[Clause, ...]:
        return tuple(clause for clause in self.clauses if clause.side == side)

    @property
    def inserts(self) -> bool:
        return bool(self.list_clauses("source_only"))

    @property
    def touches_matched(self) -> bool:
        return bool(self.list_clauses("matched"))

    @property
    def touches_target_only(self) -> bool:
        return bool(self.list_clauses("target_only"))

    @property
    def replaces_rows(self) -> bool:
        """True when some clause takes the whole source row, so that it needs every column."""
        return any(
            isinstance(c.action, Replace) or (isinstance(c.action, Insert) and c.action.values is None)
            for c in self.clauses
        )

    @property
    def only_drops_matched(self) -> bool:
        """True when a target row that is hit twice is no contradiction: it is deleted either way."""
        matched = self.list_clauses("matched")
        return bool(matched) and all(isinstance(c.action, Drop) and c.condition is None for c in matched)


_REPLACE = Clause("matched", Replace())
_INSERT = Clause("source_only", Insert())
_SYNC = Clause("target_only", Drop())

STRATEGIES: Mapping[str, Rule] = {
    "insert": Rule("insert", (_INSERT,)),
    "update": Rule("update", (_REPLACE,)),
    "upsert": Rule("upsert", (_REPLACE, _INSERT)),
    "full_merge": Rule("full_merge", (_REPLACE, _INSERT, _SYNC)),
    "deduplicate": Rule("deduplicate", (_REPLACE, _INSERT)),
}


def get_strategy_rule(name: str) -> Rule:
    """The rule of a strategy; raises InputError naming the five for any other name."""
    try:
        return STRATEGIES[str(name).lower()]
    except KeyError:
        raise InputError(
            f"Unknown merge strategy {name!r}; it must be one of {', '.join(STRATEGIES)}."
        ) from None


@dataclass(frozen=True, slots=True)
class When:
    """The left half of a clause; one of its methods completes it."""

    side: Side
    condition: Condition = None

    def update_all(self) -> Clause:
        """Replace the target row by the source row."""
        self._check_side("matched", "update_all")
        return Clause(self.side, Replace(), self.condition)

    def update(self, assignments: Mapping[str, Any]) -> Clause:
        """Set some columns; values are SQL text or expressions over ``target.x`` and ``source.x``."""
        if self.side == "source_only":
            raise InputError("when_not_matched() has no target row to update; use insert() or insert_all().")
        return Clause(self.side, Assign(_make_pairs(assignments, "update")), self.condition)

    def delete(self) -> Clause:
        """Delete the target row."""
        if self.side == "source_only":
            raise InputError("when_not_matched() has no target row to delete.")
        return Clause(self.side, Drop(), self.condition)

    def insert_all(self) -> Clause:
        """Insert the source row as it is."""
        self._check_side("source_only", "insert_all")
        return Clause(self.side, Insert(), self.condition)

    def insert(self, values: Mapping[str, Any]) -> Clause:
        """Insert a row of these columns; the others are NULL."""
        self._check_side("source_only", "insert")
        return Clause(self.side, Insert(_make_pairs(values, "insert")), self.condition)

    def _check_side(self, side: Side, method: str) -> None:
        if self.side != side:
            names = {"matched": "when_matched()", "source_only": "when_not_matched()"}
            raise InputError(f"{method}() belongs to {names[side]}.")


def _make_pairs(values: Any, method: str) -> tuple[tuple[Any, Any], ...]:
    if not isinstance(values, Mapping) or not values:
        raise InputError(
            f"{method}() needs a dict of at least one column and its value, not {values!r}.",
            hint='such as {"price": "source.price"}.',
        )
    return tuple(values.items())


def when_matched(condition: Condition = None) -> When:
    """Begin a clause for target rows whose key is in the source; a method of it names the action.

    Args:
        condition: SQL text over ``source`` and ``target`` that has to be TRUE, too.

    Raises:
        InputError: from :func:`intarsia.merge`, where the condition is not SQL text.

    Example:
        >>> import pyarrow as pa, intarsia as it
        >>> rows = pa.table({"id": [2, 3], "n": pa.array([None, "c"])})
        >>> gone = it.when_matched("source.n is null").delete()
        >>> result = it.merge(rows, "lake/orders", on="id", clauses=gone)
        >>> result.deleted, result.inserted
        (1, 0)
    """
    return When("matched", condition)


def when_not_matched(condition: Condition = None) -> When:
    """Begin a clause for source rows whose key is not in the target; a method of it names the action.

    Args:
        condition: SQL text over ``source`` and ``target`` that has to be TRUE, too.

    Raises:
        InputError: from :func:`intarsia.merge`, where the condition is not SQL text.

    Example:
        >>> import pyarrow as pa, intarsia as it
        >>> rows = pa.table({"id": [2, 3], "n": pa.array([None, "c"])})
        >>> result = it.merge(rows, "lake/orders", on="id", clauses=it.when_not_matched().insert_all())
        >>> result.deleted, result.inserted
        (0, 1)
    """
    return When("source_only", condition)


def when_not_matched_by_source(condition: Condition = None) -> When:
    """Begin a clause for target rows whose key is not in the source; a method of it names the action.

    Args:
        condition: SQL text over ``source`` and ``target`` that has to be TRUE, too.

    Raises:
        InputError: from :func:`intarsia.merge`, where the condition is not SQL text.

    Example:
        >>> import pyarrow as pa, intarsia as it
        >>> rows = pa.table({"id": [2, 3], "n": pa.array([None, "c"])})
        >>> result = it.merge(rows, "lake/orders", on="id", clauses=it.when_not_matched_by_source().delete())
        >>> result.deleted, result.inserted
        (1, 0)
    """
    return When("target_only", condition)
