"""Runs a contender in a process of its own on a copy of the target, and checks what it left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.check import data_files, delta_files, digest, expected, range_reads
from bench.data import FILE_ROWS, copy_tree, files_hit, make_delta, make_source, make_target
from bench.workloads import Workload

CONTENDERS = ("intarsia", "intarsia-duckdb", "floor", "polars", "duckdb", "deltars")
"""A module of ``bench.contenders`` each; after a dash the engine."""
LIMITED = ("intarsia", "intarsia-duckdb", "duckdb")
"""Those that keep to a limit of memory."""
LARGE_BYTES = 128 << 20
SMALL_ROWS = 10_000
"""Nobody would write smaller files than this anew."""
SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Measured:
    """One pass of one contender; ``error`` says why there are no figures."""

    workload: str
    contender: str
    cpu: float = 0.0
    system: float = 0.0
    """The part of ``cpu`` spent in the kernel, which is what varies on a busy machine."""
    wall: float = 0.0
    peak_mb: float = 0.0
    before_mb: float = 0.0
    right: bool | None = None
    """None where there is no result to check."""
    notes: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Arena:
    """One workload with its data in place."""

    def __init__(self, workload: Workload, directory: Path, *, memory_bytes: int = 0) -> None:
        self.workload = workload
        self.memory_bytes = memory_bytes
        self.directory = directory
        self.target = make_target(workload.shape, directory)
        self.source: Path | None = None
        if workload.source is not None:
            self.source = make_source(
                workload.source_name, workload.source, directory, writer=workload.shape.writer
            )
        self.expected = expected(workload, self.target, self.source)

    def measure(self, contender: str) -> Measured:
        """One pass, on a fresh copy that is removed afterwards."""
        workload = self.workload
        room = self.directory / "room"
        shutil.rmtree(room, ignore_errors=True)
        room.mkdir(parents=True)
        try:
            copy, spool = room / "target", room / "spool"
            spool.mkdir()
            copy_tree(self._origin(contender), copy)
            os.sync()  # so that nobody pays for writing back the copy
            finished = subprocess.run(
                [sys.executable, "-m", "bench.child"],
                input=json.dumps(self._job(contender, copy, spool)),
                capture_output=True,
                text=True,
                timeout=SECONDS,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # idle threads of numpy's would spin
                check=False,
            )
            if finished.returncode:
                lines = finished.stderr.strip().splitlines() or [f"exit code {finished.returncode}"]
                return Measured(workload.name, contender, error=lines[-1])
            figures = json.loads(finished.stdout)
            if left := sorted(path.name for path in spool.iterdir()):
                figures["notes"]["left"] = left
            return Measured(workload.name, contender, **self._checked(contender, copy, figures))
        finally:
            shutil.rmtree(room)

    def _origin(self, contender: str) -> Path:
        if contender == "deltars":
            return make_delta(self.target, daily=self.workload.shape.daily)
        return self.target

    def _job(self, contender: str, copy: Path, spool: Path) -> dict[str, Any]:
        workload = self.workload
        module, _, engine = contender.partition("-")
        size = sum(path.stat().st_size for path in data_files(self.target))
        return {
            "contender": module,
            "engine": engine or "arrow",
            "memory_bytes": self.memory_bytes,
            "spool": str(spool),
            "kind": workload.kind,
            "target": str(copy),
            "source": None if self.source is None else str(self.source),
            "keys": workload.keys,
            "by": workload.by,
            "file_rows": workload.shape.file_rows if workload.shape.file_rows >= SMALL_ROWS else FILE_ROWS,
            "large_rows": max(1, workload.shape.rows * LARGE_BYTES // max(size, 1)),
            "affected": self._affected() if contender == "floor" else [],
        }

    def _affected(self) -> list[str]:
        match self.workload.affected:
            case "all":
                return [str(path.relative_to(self.target)) for path in data_files(self.target)]
            case "hit":
                assert self.source is not None
                return files_hit(self.target, self.source, self.workload.keys_in_files)
            case _:
                return []

    def _checked(self, contender: str, copy: Path, figures: dict[str, Any]) -> dict[str, Any]:
        if contender == "floor" or self.workload.kind == "plan":
            return figures
        files: list[Path | str] = [*(delta_files(copy) if contender == "deltars" else data_files(copy))]
        figures["right"] = digest(files, daily=self.workload.shape.daily) == self.expected
        figures["notes"]["files"] = len(files)
        figures["notes"]["mb"] = round(sum(os.path.getsize(file) for file in files) / 1e6)
        if self.workload.kind == "zorder":
            for column in self.workload.by:
                figures["notes"][f"reads_{column}"] = round(range_reads(files, column), 3)
        return figures
