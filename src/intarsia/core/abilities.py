"""What an engine says of itself: where it runs, what it holds and keeps; docs/engines.md is made of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KEPT", "OPERATIONS", "Abilities"]

OPERATIONS = ("merge", "delete", "update", "write", "compact", "optimize", "deduplicate", "read_parquet")

KEPT = (
    "rows and their order",
    "types, also where files differ",
    "key-value metadata",
    "the codec",
    "codecs of single columns",
    "the rows of each row group",
    "NOT NULL",
    "the declaration of an order",
    "Bloom filters",
    "the page index",
    "page checksums",
)
"""What a rewrite keeps of the file it replaces, or gives it."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """One engine; texts are for the page, the other fields are checked against what the engine does."""

    engine: str
    title: str
    install: str
    named: tuple[str, ...]
    """What ``engine=`` takes for it."""
    door: str
    runs: str
    unit: str
    """What is worked on at a time."""
    source: str
    """Where the rows that come are."""
    memory: str
    beyond_memory: str
    operations: tuple[str, ...] = OPERATIONS
    options: tuple[str, ...] = ()
    """The options that are its own."""
    unkept: tuple[str, ...] = ()
    """What it does not keep, of :data:`KEPT`; its plans say so."""
    elsewhere: tuple[str, ...] = ()
    """Types of columns that it leaves to the Arrow kernel, file by file; its plans say so."""
