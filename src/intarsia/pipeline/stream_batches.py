"""The function that commits one micro-batch of a stream step, here or on a Spark Connect server."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from intarsia import api
from intarsia.core.report import MergeFileMetadata, MergeResult
from intarsia.core.report import as_json as result_as_json
from intarsia.errors import EngineError
from intarsia.pipeline.checkpoints import WRITTEN
from intarsia.pipeline.model import Target, list_names
from intarsia.pipeline.resources import open_target
from intarsia.spark.streaming import find_done

__all__ = ["BatchGate", "StepBatch", "StreamTarget", "combine_results"]


@dataclass(frozen=True, slots=True)
class StreamTarget:
    """A target as a value that pickles; in the process that made it, its open table is used."""

    declared: Target
    opened: Any = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamTarget, (self.declared,)

    def open(self) -> Any:
        return self.opened if self.opened is not None else open_target(self.declared)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The function for ``foreachBatch``: commits a batch, and leaves what it did for the report.

    Under Spark Connect it is pickled, and runs in a process of the server.
    """

    operation: Literal["merge", "write"]
    target: StreamTarget
    app_id: str
    arguments: Mapping[str, Any]
    results: str
    location: str
    """Spark's checkpoint."""

    def __call__(self, frame: Any, batch_id: int) -> None:
        table = self.target.open()
        if find_done(table, self.app_id, batch_id):
            Path(self.location, WRITTEN).touch()
            return
        given = dict(self.arguments)
        layout = list_names(self.target.declared.partition_by) or None
        if not table.snapshot().has_schema:
            given["partition_by"] = layout
        given |= {
            "app_id": self.app_id,
            "batch_id": batch_id,
            "engine": frame.sparkSession,
            "progress": False,
        }
        call: Any = api.merge if self.operation == "merge" else api.write
        result: MergeResult = call(frame, table, **given)
        if result.changed:
            Path(self.location, WRITTEN).touch()
        os.makedirs(self.results, exist_ok=True)
        draft = Path(self.results, f"{batch_id}.part")
        draft.write_text(json.dumps(result_as_json(result), default=str), "utf-8")
        draft.replace(draft.with_name(f"{batch_id}.json"))


@dataclass(slots=True)
class BatchGate:
    """A batch function of this process that can be told to take no other batch, after the one at hand."""

    batch: StepBatch
    lock: threading.Lock = field(default_factory=threading.Lock)
    closed: bool = False

    def __call__(self, frame: Any, batch_id: int) -> None:
        with self.lock:
            if self.closed:
                raise EngineError("The query was stopped before this batch.")
            self.batch(frame, batch_id)

    def close(self) -> None:
        """Wait for the batch at hand, and take no other."""
        with self.lock:
            self.closed = True


def combine_results(raw: list[dict[str, Any]]) -> MergeResult | None:
    """The results of batches as one: counts are added, files listed one after the other."""
    results = [
        MergeResult(**one | {"files": [MergeFileMetadata(**file) for file in one["files"]], "notes": ()})
        for one in raw
    ]
    if not results:
        return None

    def add(name: str) -> Any:
        values = [getattr(one, name) for one in results]
        return sum(values[1:], values[0])

    lists = ("files", "rewritten_files", "inserted_files", "removed_files", "files_with_deletes")
    counts = (
        "source_count",
        "inserted",
        "updated",
        "deleted",
        "bytes_read",
        "bytes_written",
        "seconds",
        "new_files",
    )
    return replace(
        results[-1],
        **{name: add(name) for name in (*lists, *counts)},
        target_count_before=results[0].target_count_before,
        created=any(one.created for one in results),
        attempts=max(one.attempts for one in results),
        notes=tuple(dict.fromkeys(note for one in raw for note in one["notes"])),
    )
