"""Changes of an Iceberg table are killed and failed at their calls to the system: old or new, nothing else.

A sample of the calls in the quick suite, every one of them with INTARSIA_CRASH=full (``make crash``).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from test_kill_sweep import ALL, ASKED, ERRORS, FULL, directory, pytestmark, shim, sweep

pytest.importorskip("pyiceberg")

__all__ = ["directory", "pytestmark", "shim"]  # fixtures and marks

FEW = [("kill", 6, 0), ("torn", 2, 0), ("EIO", 4, 0)]
QUICK = [("kill", 14, 0), ("torn", 4, 0), ("EIO", 10, 0), ("ENOSPC", 4, 0)]
WHOLE = [("kill", ALL, 0), ("torn", ALL, 0), *((error, ALL, 0) for error in ERRORS)]


@pytest.mark.parametrize("operation", ["merge", "copy", "vectors"])
def test_a_kill_or_an_error_at_any_call_leaves_an_iceberg_table_old_or_new(
    shim: Path,
    directory: Path,
    operation: str,
) -> None:
    faults = WHOLE if FULL else FEW if ASKED == "few" else QUICK
    results = sweep(shim, directory, operation, faults, script="crash_iceberg.py")
    assert [violation for result in results for violation in result["violations"]] == []
    for result in results:
        assert result["calls"] > 40, "the shim has seen next to nothing"
        if result["fault"] == "kill":
            assert result["killed"] > 0.8 * result["points"] > 0
