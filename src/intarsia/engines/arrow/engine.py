"""The in-process engine: every operation with PyArrow, files in parallel threads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from intarsia.common.arrow import ingest
from intarsia.common.source import IngestedSource
from intarsia.core.change import Matches, Staged
from intarsia.core.intent import Intent
from intarsia.core.ports import Execution
from intarsia.core.prepare import Prepared, prepare
from intarsia.core.snapshot import Snapshot
from intarsia.kernel.local import Resources, match_rows, stage_files

MEMORY_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class ArrowEngine:
    """Finds and writes rows with PyArrow in this process.

    Memory: the source (memory-mapped when it was spooled), its keys, and a row group per thread;
    sorts and deduplications spill beyond ``memory_bytes``.
    """

    threads: int = 0
    memory_bytes: int = MEMORY_BYTES
    name: str = "arrow"

    @property
    def _resources(self) -> Resources:
        return Resources(self.threads or os.cpu_count() or 1, self.memory_bytes)

    def ingest(self, source: Any, **options: Any) -> IngestedSource:
        """Any Arrow data, or paths; see :func:`intarsia.common.arrow.ingest`."""
        return ingest(source, **options)

    def prepare(self, intent: Intent, snapshot: Snapshot, source: IngestedSource | None) -> Prepared:
        """The source in the target's types, checked, its keys indexed."""
        return prepare(intent, snapshot, source)

    def match(self, execution: Execution) -> Matches:
        """Which rows change; reads key columns (or a predicate's), writes nothing."""
        return match_rows(execution, self._resources)

    def stage(self, execution: Execution, matches: Matches) -> Staged:
        """Write the files of a resolved plan."""
        return stage_files(execution, matches, self._resources)
