"""Small manifests become larger ones, per spec and content, as the table's properties say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from intarsia.tables.iceberg.entries import Entry, Manifest, Status
from intarsia.tables.iceberg.state import State
from intarsia.tables.iceberg.writing import ManifestFactory


@dataclass(frozen=True, slots=True)
class Merging:
    """When manifests are merged."""

    enabled: bool = True
    target_bytes: int = 8 << 20
    min_count: int = 100
    """So many must come together before the newest is merged."""


@dataclass(frozen=True, slots=True)
class Merged:
    """Manifests after merging, and how many of older snapshots they replace."""

    manifests: tuple[Manifest, ...]
    replaced: int = 0


def merged(manifests: Sequence[Manifest], factory: ManifestFactory, merging: Merging, head: State) -> Merged:
    """Merge manifests of one content, the newest first, as Java's ManifestMergeManager does."""
    if not merging.enabled or not manifests:
        return Merged(tuple(manifests))
    groups: dict[int, list[Manifest]] = defaultdict(list)
    for manifest in manifests:
        groups[manifest.partition_spec_id].append(manifest)
    result: list[Manifest] = []
    replaced = 0
    for spec_id in sorted(groups, reverse=True):
        for bin_ in _packed(groups[spec_id], merging.target_bytes):
            if len(bin_) == 1 or (manifests[0] in bin_ and len(bin_) < merging.min_count):
                result += bin_
                continue
            replaced += sum(not factory.wrote(manifest) for manifest in bin_)
            result += factory.write([e for manifest in bin_ for e in _entries(manifest, factory, head)])
    return Merged(tuple(result), replaced)


def _entries(manifest: Manifest, factory: ManifestFactory, head: State) -> Sequence[Entry]:
    """What a merged manifest says of each file: only this snapshot's additions and removals are news."""
    if factory.wrote(manifest):
        return factory.entries(manifest)
    return [replace(entry, status=Status.EXISTING) for entry in head.shelf.entries(manifest)]


def _packed(manifests: Sequence[Manifest], target: int) -> list[list[Manifest]]:
    """Neighbours together up to a size, filled from the end, so that the newest bin is the open one."""
    bins: list[list[Manifest]] = []
    size = 0
    for manifest in reversed(manifests):
        if not bins or size + manifest.manifest_length > target:
            bins.append([])
            size = 0
        bins[-1].append(manifest)
        size += manifest.manifest_length
    return [bin_[::-1] for bin_ in reversed(bins)]
