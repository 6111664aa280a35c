"""Values that a column cannot take: counted per task, summed over the operation, raised as one error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from intarsia.errors import SchemaMismatch

__all__ = ["Refusal", "ValuesRefused", "refuse", "sum_refusals"]

_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class Refusal:
    """Values of one expression that its column cannot take, for one reason."""

    expression: str
    wanted: str
    """The type of the column, in SQL's words."""
    count: int
    samples: tuple[tuple[Any, str], ...]
    """The smallest few of them, each as a sort key and as text."""
    hint: str
    column: str = ""
    inserted: bool = False
    """Whether they are in inserted rows; else in updated rows."""

    def describe(self, rows: int) -> str:
        """What is wrong, with how many of so many rows."""
        texts = [text for _, text in self.samples]
        shown = texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
        are = "is" if len(texts) == 1 else "are"
        return (
            f"{self.expression} gives {shown}, which {are} no {self.wanted},"
            f" in {self.count:,} of {rows:,} rows"
        )


class ValuesRefused(SchemaMismatch):
    """Some values do not fit their columns; the caller goes on counting in the operation's other rows."""

    refusals: tuple[Refusal, ...] = ()

    @staticmethod
    def of(refusals: Sequence[Refusal], rows: int) -> ValuesRefused:
        """The error of some refusals, at least one, among so many rows."""
        first = refusals[0]
        column = f"column {first.column!r} cannot be set: " if first.column else ""
        error = ValuesRefused(f"{column}{first.describe(rows)}", hint=first.hint)
        error.refusals = tuple(refusals)
        return error


def sum_refusals(refusals: Iterable[Refusal]) -> tuple[Refusal, ...]:
    """One refusal for each column, expression and reason, in the order of their first."""
    found: dict[Refusal, Refusal] = {}
    for one in refusals:
        kind = replace(one, count=0, samples=())
        before = found.get(kind)
        if before is not None:
            samples = sorted({*before.samples, *one.samples})[:_SAMPLES]
            one = replace(one, count=before.count + one.count, samples=tuple(samples))
        found[kind] = one
    return tuple(found.values())


def refuse(
    refusals: Iterable[Refusal], order: Sequence[str], *, updated: int, inserted: int, path: str
) -> None:
    """Raise SchemaMismatch if there are any, with the counts of the whole operation.

    The columns are named in the ``order`` in which they are assigned, whichever task found them first.
    """
    places = {column: number for number, column in enumerate(order)}
    found = sorted(
        sum_refusals(refusals),
        key=lambda one: (one.inserted, places.get(one.column, len(places)), one.expression, one.hint),
    )
    if not found:
        return
    sentences = [
        f"column {one.column!r} cannot be set: {one.describe(inserted if one.inserted else updated)}"
        for one in found
    ]
    hints = list(dict.fromkeys(one.hint for one in found))
    raise SchemaMismatch("; ".join(sentences), path=path, hint="; ".join(hints))
