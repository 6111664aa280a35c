"""What an Iceberg table has beside its files, in words for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.metadata import TableMetadata

from intarsia.tables.iceberg.entries import Content, Entry
from intarsia.tables.iceberg.specs import find_compatible_schema
from intarsia.tables.iceberg.state import State

Details = tuple[tuple[str, tuple[str, ...]], ...]


def details_of(state: State, data: Iterable[Entry], deletes: Iterable[Entry]) -> Details:
    """Format, partition specs with their files, manifests by spec, and delete files; pure."""
    metadata = state.metadata
    head = "no snapshot yet" if state.head is None else f"snapshot {state.head.snapshot_id}"
    files = Counter(entry.file.spec_id for entry in data)
    found = [
        ("format", (f"version {metadata.format_version}", f"branch {state.branch}", head)),
        ("specs", tuple(_spec(metadata, spec, files) for spec in metadata.partition_specs)),
        ("manifests", tuple(_manifests(state))),
        ("deletes", tuple(_deletes(deletes))),
    ]
    return tuple((word, said) for word, said in found if said)


def spec_text(metadata: TableMetadata, spec: PartitionSpec) -> str:
    """The fields of a spec as in ``day(ts), region``."""
    schema = find_compatible_schema(metadata, spec)
    parts = []
    for field in spec.fields:
        source = schema.find_column_name(field.source_id) or field.name
        transform = str(field.transform)
        if transform == "identity":
            parts.append(source)
        elif transform.endswith("]"):  # bucket[16], truncate[4]
            kind, _, argument = transform[:-1].partition("[")
            parts.append(f"{kind}({argument}, {source})")
        else:
            parts.append(f"{transform}({source})")
    return ", ".join(parts) or "unpartitioned"


def _spec(metadata: TableMetadata, spec: PartitionSpec, files: Counter[int]) -> str:
    default = " (default)" if spec.spec_id == metadata.default_spec_id else ""
    return f"{spec.spec_id}{default}: {spec_text(metadata, spec)}, {_counted(files[spec.spec_id], 'file')}"


def _manifests(state: State) -> Iterable[str]:
    kinds = Counter((m.partition_spec_id, m.content is Content.DATA) for m in state.manifests)
    for spec_id in sorted({spec for spec, _ in kinds}):
        said = [
            f"{kinds[spec_id, is_data]} of {'data' if is_data else 'deletes'}"
            for is_data in (True, False)
            if kinds[spec_id, is_data]
        ]
        yield f"spec {spec_id}: {', '.join(said)}"


def _deletes(deletes: Iterable[Entry]) -> Iterable[str]:
    counts: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for entry in deletes:
        file = entry.file
        kind = "equality delete file"
        if file.content is Content.POSITION_DELETES:
            kind = "deletion vector" if file.is_vector else "position delete file"
        counts[kind] += 1
        rows[kind] += file.record_count
    for kind, count in sorted(counts.items()):
        yield f"{_counted(count, kind)} with {_counted(rows[kind], 'row')}"


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
