"""What a snapshot says of itself: Java's summary fields, counted from the files that come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from intarsia.tables.iceberg.entries import Content, ContentFile

_TOTALS = (
    ("total-records", "added-records", "deleted-records"),
    ("total-files-size", "added-files-size", "removed-files-size"),
    ("total-data-files", "added-data-files", "deleted-data-files"),
    ("total-delete-files", "added-delete-files", "removed-delete-files"),
    ("total-position-deletes", "added-position-deletes", "removed-position-deletes"),
    ("total-equality-deletes", "added-equality-deletes", "removed-equality-deletes"),
)
Places = Callable[[ContentFile], str]
"""Gives the path of a file's partition under its own spec; empty for an unpartitioned one."""


@dataclass(slots=True)
class Counts:
    """How many files, rows and bytes come and go; zero is left out."""

    values: dict[str, int] = field(default_factory=dict)

    def added(self, file: ContentFile) -> None:
        self._count(file, "added", "added", "added")

    def removed(self, file: ContentFile) -> None:
        self._count(file, "removed", "deleted", "deleted")

    def _count(self, file: ContentFile, verb: str, data_verb: str, row_verb: str) -> None:
        self._add(f"{verb}-files-size", size_of(file))
        match file.content:
            case Content.DATA:
                self._add(f"{data_verb}-data-files", 1)
                self._add(f"{row_verb}-records", file.record_count)
            case Content.POSITION_DELETES:
                self._add(f"{verb}-delete-files", 1)
                self._add(f"{verb}-dvs" if file.is_vector else f"{verb}-position-delete-files", 1)
                self._add(f"{verb}-position-deletes", file.record_count)
            case Content.EQUALITY_DELETES:
                self._add(f"{verb}-delete-files", 1)
                self._add(f"{verb}-equality-delete-files", 1)
                self._add(f"{verb}-equality-deletes", file.record_count)

    def _add(self, name: str, amount: int) -> None:
        if amount:
            self.values[name] = self.values.get(name, 0) + amount


def size_of(file: ContentFile) -> int:
    """The bytes a file takes: of a deletion vector its own, not those of the Puffin file around it."""
    if file.is_vector and file.content_size_in_bytes is not None:
        return file.content_size_in_bytes
    return file.file_size_in_bytes


def make_summary(
    added: Iterable[ContentFile],
    removed: Iterable[ContentFile],
    *,
    previous: Mapping[str, str] | None,
    place_of: Places,
    partition_limit: int,
    manifests: Mapping[str, int],
    properties: Mapping[str, str],
) -> dict[str, str]:
    """The fields beside the operation; what the caller adds never overrides a count.

    ``previous`` is the parent's summary, None where there is no parent: a total that the parent does
    not tell is not told here either. ``manifests`` are the counts of manifests by their field.
    """
    whole = Counts()
    parts: dict[str, Counts] = {}
    for file in added:
        whole.added(file)
        parts.setdefault(place_of(file), Counts()).added(file)
    for file in removed:
        whole.removed(file)
        parts.setdefault(place_of(file), Counts()).removed(file)
    fields = {name: str(value) for name, value in whole.values.items()}
    fields["changed-partition-count"] = str(len(parts))
    if parts and len(parts) <= partition_limit:
        fields["partition-summaries-included"] = "true"
        fields |= {f"partitions.{path}": _text(counts) for path, counts in parts.items()}
    fields |= {name: str(count) for name, count in manifests.items()}
    return {**properties, **fields, **_totals(whole, previous)}


def _text(counts: Counts) -> str:
    return ",".join(f"{name}={value}" for name, value in counts.values.items())


def _totals(counts: Counts, previous: Mapping[str, str] | None) -> dict[str, str]:
    totals: dict[str, str] = {}
    for total, plus, minus in _TOTALS:
        before = "0" if previous is None else previous.get(total)
        if before is None or not before.isdecimal():
            continue
        after = int(before) + counts.values.get(plus, 0) - counts.values.get(minus, 0)
        if after >= 0:
            totals[total] = str(after)
    return totals
