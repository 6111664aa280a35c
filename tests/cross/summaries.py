"""The numbers of a snapshot's summary against those that its manifests give."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tests.cross.decoded import ADDED, DATA, DELETED, POSITIONS, File, State


def check_summary(state: State, *, ours: bool) -> Iterator[str]:
    """``ours`` asks for every number that is not zero, and for all totals, as Java writes them."""
    said = state.summary
    for key, value in recount(state).items():
        if key in said and int(said[key]) != value:
            yield f"summary: {key} is {said[key]}, recounted {value}"
        elif key not in said and ours and (value or key.startswith("total-")):
            yield f"summary: no {key}, recounted {value}"


def recount(state: State) -> dict[str, int]:
    """The numbers of Java's summary, counted in the manifests."""
    assert state.snapshot is not None
    own = state.snapshot["snapshot-id"]
    every = [file for manifest in state.manifests for file in manifest.files]
    added = [file for file in every if file.status == ADDED and file.snapshot_id == own]
    removed = [file for file in every if file.status == DELETED and file.snapshot_id == own]
    found = {
        "total-data-files": len(state.data),
        "total-delete-files": len(state.deletes),
        "total-records": sum(file.rows for file in state.data),
        "total-files-size": sum(file.counted_bytes for file in state.live),
        "total-position-deletes": sum(f.rows for f in state.deletes if f.content == POSITIONS),
        "total-equality-deletes": sum(f.rows for f in state.deletes if f.content > POSITIONS),
        "manifests-created": sum(m.record["added_snapshot_id"] == own for m in state.manifests),
        "manifests-kept": sum(m.record["added_snapshot_id"] != own for m in state.manifests),
        "changed-partition-count": len({_partition(state, file) for file in added + removed}),
    }
    for files, data_word, word in ((added, "added", "added"), (removed, "deleted", "removed")):
        data, deletes = [f for f in files if f.content == DATA], [f for f in files if f.content != DATA]
        parquet = [f for f in deletes if f.content == POSITIONS and not f.is_vector]
        equal = [f for f in deletes if f.content > POSITIONS]
        found |= {
            f"{data_word}-data-files": len(data),
            f"{data_word}-records": sum(file.rows for file in data),
            f"{word}-delete-files": len(deletes),
            f"{word}-position-delete-files": len(parquet),
            f"{word}-equality-delete-files": len(equal),
            f"{word}-dvs": sum(file.is_vector for file in deletes),
            f"{word}-files-size": sum(file.counted_bytes for file in files),
            f"{word}-position-deletes": sum(f.rows for f in deletes if f.content == POSITIONS),
            f"{word}-equality-deletes": sum(file.rows for file in equal),
        }
    return found


def _partition(state: State, file: File) -> tuple[Any, ...]:
    """As Java tells partitions apart in a summary: by path, whatever the spec; void fields are part of it."""
    fields = state.specs.get(file.spec_id, ())
    return tuple((f["name"], _text(value)) for f, value in zip(fields, file.tuple, strict=False))


def _text(value: Any) -> Any:
    if value is None:
        return "null"
    return "NaN" if isinstance(value, float) and math.isnan(value) else value
