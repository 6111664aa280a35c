"""S25: every operation on a directory that plain Spark wrote is killed at its calls, and Spark reads it.

A sample of the calls in the quick suite, those around commits first; every one of them with
INTARSIA_CRASH=full (``make crash``), where real Spark has written what is killed and reads it at every tenth
call. Elsewhere what Hadoop's checksum file system would compare is compared.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from test_kill_sweep import ALL, FULL, directory, pytestmark, shim, sweep

__all__ = ["directory", "pytestmark", "shim"]  # fixtures and marks

OPERATIONS = ("merge", "update", "delete", "append", "overwrite", "overwrite where")
OPERATIONS += ("compact", "optimize", "deduplicate")
Fault = tuple[str, int, int]
FAULTS: list[Fault] = [("kill", ALL, 0), ("kill", 6, 3)] if FULL else [("kill", 3, 0)]
READ = 10 if FULL and find_spec("pyspark") else 0


def swept(shim: Path, directory: Path, names: list[str], faults: list[Fault], read: int) -> None:
    script = "crash_spark_written.py"
    results = sweep(shim, directory, ", ".join(names), faults, script=script, read=read)
    assert [violation for result in results for violation in result["violations"]] == []
    assert len(results) == len(names) * len(faults)
    for result in results:
        assert result["calls"] > 30, "the shim has seen next to nothing"
        # A run may be a call shorter than the one that was counted, so that the last is not reached.
        assert result["killed"] >= 0.8 * (result["points"] - 1) > 0
        assert bool(result["read"]) == bool(read)


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_s25_checksums_fit_their_files_wherever_an_operation_is_killed(
    shim: Path, directory: Path, engine: str
) -> None:
    pytest.importorskip("duckdb" if engine == "duckdb" else "pyarrow")
    swept(shim, directory, [f"{operation} on {engine}" for operation in OPERATIONS], FAULTS, READ)


@pytest.mark.spark
@pytest.mark.more  # with a JVM, what the test above compares without one
@pytest.mark.parametrize("operation", OPERATIONS if FULL else ["merge"])
def test_s25_spark_reads_what_it_wrote_wherever_an_operation_is_killed(
    shim: Path, directory: Path, operation: str
) -> None:
    pytest.importorskip("pyspark")
    others = [] if FULL else ["delete on arrow", "compact on duckdb"]
    names = [f"{operation} on spark", *others]
    swept(shim, directory, names, [("kill", ALL, 0)] if FULL else [("kill", 2, 0)], READ or 2)
