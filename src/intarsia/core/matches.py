"""Which rows an operation hits: the answer of an engine's matching, per file and exact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.change import Staged
from intarsia.core.rule import Action


@dataclass(frozen=True, slots=True)
class Hits:
    """The rows of one file that change.

    ``positions`` ascend (int64). ``action`` numbers an entry of ``Matches.actions`` for all rows,
    or per row as an int8 array. ``sources`` names the source row of each hit, NULL where the
    action needs none.
    """

    positions: pa.Int64Array
    action: int | pa.Int8Array = 0
    sources: pa.Int64Array | None = None

    def __len__(self) -> int:
        return len(self.positions)

    def within(self, start: int, stop: int) -> Hits:
        """The hits in a range of positions, still counted from the start of the file."""
        low, high = pc.search_sorted(self.positions, pa.array([start, stop], pa.int64())).to_pylist()
        return Hits(
            self.positions.slice(low, high - low),
            self.action if isinstance(self.action, int) else self.action.slice(low, high - low),
            None if self.sources is None else self.sources.slice(low, high - low),
        )

    def only(self, number: int) -> Hits:
        """The hits with one action."""
        if isinstance(self.action, int):
            return self if self.action == number else self.empty()
        chosen = pc.equal(self.action, number)
        return Hits(
            self.positions.filter(chosen),
            number,
            None if self.sources is None else self.sources.filter(chosen),
        )

    @staticmethod
    def empty() -> Hits:
        return Hits(pa.array([], pa.int64()), 0, pa.array([], pa.int64()))


@dataclass(frozen=True, slots=True)
class Matches:
    """All hits, and the source rows that become new rows."""

    actions: tuple[Action, ...] = ()
    hits: Mapping[str, Hits] = field(default_factory=dict)
    """By file path; a file without hits is absent."""
    dropped: frozenset[str] = frozenset()
    """Files that lose every row, known without positions."""
    inserts: tuple[tuple[Action, pa.Int64Array], ...] = ()
    """Source rows to insert, and how."""
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    scanned_bytes: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of changed rows by file, where their positions stayed on the executors that found them."""
    notes: tuple[str, ...] = ()
    """Notes for the plan."""
    staged: Staged = field(default_factory=Staged)
    """Files written during matching, by an engine that matches and writes in one pass."""
    done: frozenset[str] = frozenset()
    """Paths of the files that are completely written."""

    def hit_rows(self, path: str) -> int:
        """How many rows of a file change."""
        return len(self.hits[path]) if path in self.hits else self.counts.get(path, 0)
