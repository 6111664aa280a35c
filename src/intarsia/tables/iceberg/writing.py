"""Writes the manifests of one commit, and remembers what it has written."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.table.metadata import TableMetadata

from intarsia.tables.iceberg.entries import Content, Entry, Manifest
from intarsia.tables.iceberg.transaction import ManifestSite, group_entries_by_spec, write_manifests


class ManifestFactory:
    """Manifests of one snapshot and one format version; nothing of them counts until a list names them."""

    def __init__(self, site: ManifestSite) -> None:
        self._site = site
        self._entries: dict[str, tuple[Entry, ...]] = {}

    @property
    def paths(self) -> list[str]:
        """Of all manifests begun, also of those that failed."""
        return self._site.written

    def see(self, metadata: TableMetadata) -> None:
        """Take the metadata of a further try, which may know more specs; the format version is the same."""
        self._site.metadata = metadata

    def write(self, entries: Sequence[Entry]) -> list[Manifest]:
        """Entries of one content, each as its status says, in as few manifests as specs and sizes allow."""
        written: list[Manifest] = []
        for group in group_entries_by_spec(entries).values():
            deletes = group[0].file.content is not Content.DATA
            content = Content.POSITION_DELETES if deletes else Content.DATA
            at = 0
            for manifest in write_manifests(self._site, group, content):
                size = _count(manifest)
                self._entries[manifest.manifest_path] = tuple(group[at : at + size])
                at += size
                written.append(manifest)
        return written

    def wrote(self, manifest: Manifest) -> bool:
        return manifest.manifest_path in self._entries

    def entries(self, manifest: Manifest) -> Sequence[Entry]:
        """What a manifest of this factory lists."""
        return self._entries[manifest.manifest_path]


def _count(manifest: Manifest) -> int:
    counts = (manifest.added_files_count, manifest.existing_files_count, manifest.deleted_files_count)
    return sum(count or 0 for count in counts)
