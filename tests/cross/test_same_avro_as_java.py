"""Manifests and manifest lists of ours have the schemas and header keys that Iceberg's Java writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import fastavro
import pytest

from tests.cross.decoded import State, decode
from tests.cross.kinds import BY_NAME, Kind
from tests.cross.lake import local
from tests.cross.making import Made
from tests.cross.operations import COW, MOR, OPERATION


def shape(kind: Any) -> Any:
    """An Avro schema without names of records and documentation: fields with their ids, in order."""
    match kind:
        case list():
            return [shape(one) for one in kind]
        case {"type": "record"}:
            return [(f["name"], f.get("field-id"), shape(f["type"]), "default" in f) for f in kind["fields"]]
        case {"type": "array"}:
            return ("array", kind.get("element-id"), kind.get("logicalType"), shape(kind["items"]))
        case {"type": "map"}:
            return ("map", kind.get("key-id"), kind.get("value-id"), shape(kind["values"]))
        case {"type": "fixed"}:
            return ("fixed", kind["size"], kind.get("logicalType"))
        case {"type": inner}:
            details = {k: v for k, v in kind.items() if k not in ("type", "name", "doc")}
            return (shape(inner), sorted(details.items())) if details else shape(inner)
        case _:
            return kind


def header_keys(header: Iterable[str]) -> list[str]:
    """But for one that only Java's reader of Avro wants, and one that is optional and that it leaves out."""
    return sorted(
        key for key in header if not key.startswith("avro.") and key not in ("iceberg.schema", "schema-id")
    )


def written(state: State) -> dict[str, Any]:
    """The shapes and header keys of what the current snapshot wrote, by content."""
    assert state.snapshot is not None
    own = state.snapshot["snapshot-id"]
    found: dict[str, Any] = {}
    for manifest in state.manifests:
        if manifest.record["added_snapshot_id"] == own and manifest.spec_id == state.default_spec:
            keys = header_keys(manifest.header)
            found[f"manifest of content {manifest.content}"] = (keys, shape(manifest.schema))
    with local(state.snapshot["manifest-list"]).open("rb") as stream:
        reader = fastavro.reader(stream)
        keys = header_keys(reader.metadata)
        found["manifest list"] = (keys, shape(reader.writer_schema))
    return found


@pytest.mark.parametrize("name", ["v1_void", "many_types", "v3_vectors"])
def test_what_we_write_has_the_schema_of_what_java_writes(made: Callable[[Kind], Made], name: str) -> None:
    table = made(BY_NAME[name])
    ours, theirs = table.clone(), table.clone()
    mode = MOR if table.kind.merge_on_read else COW
    operation = OPERATION["upsert"]

    operation.ours(ours, {"engine": "arrow", "mode": mode})
    assert operation.spark is not None
    operation.spark(theirs)

    found, wanted = (written(decode(table.lake.metadata_file(one.table))) for one in (ours, theirs))
    for part in found.keys() & wanted.keys():
        (keys, ours_shape), (java_keys, java_shape) = found[part], wanted[part]
        assert keys == java_keys, part
        for own, java in zip(ours_shape, java_shape, strict=True):
            assert own == java, part
    assert "manifest of content 0" in found.keys() & wanted.keys()
