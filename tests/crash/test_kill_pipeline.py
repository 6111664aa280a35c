"""S31: a pipeline is killed and failed at its calls to the system, and run again: each step took effect once.

A sample of the calls in the quick suite, every one of them with INTARSIA_CRASH=full (``make crash``).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from test_kill_sweep import ALL, ERRORS, FULL, directory, pytestmark, shim, sweep

pytest.importorskip("pyiceberg")

__all__ = ["directory", "pytestmark", "shim"]  # fixtures and marks

QUICK = [("kill", 16, 0), ("torn", 4, 0), ("EIO", 8, 0), ("kill", 3, 2)]
WHOLE = [("kill", ALL, 0), ("torn", ALL, 0), *((error, ALL, 0) for error in ERRORS), ("kill", 60, 3)]


@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_s31_steps_take_effect_once_wherever_a_run_is_killed(shim: Path, directory: Path, kind: str) -> None:
    results = sweep(shim, directory, kind, WHOLE if FULL else QUICK, script="crash_pipeline.py")
    assert [violation for result in results for violation in result["violations"]] == []
    for result in results:
        assert result["calls"] > 100, "the shim has seen next to nothing"
        if result["fault"] == "kill":
            assert result["killed"] > 0.8 * result["points"] > 0
