"""S31: a pipeline is killed and failed at its calls to the system, and run again: each step took effect once.

A sample of the calls in the quick suite, those around commits and state writes first. With
INTARSIA_CRASH=full (``make crash``) a run on Arrow is killed at every one of them, and failed, and killed on
the other engines, at a larger sample: the operations themselves are swept whole elsewhere.
INTARSIA_CRASH=every takes all, for hours. On Spark the driver is killed, while its session lives on.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from test_kill_sweep import ALL, ERRORS, EVERY, FULL, directory, pytestmark, shim, sweep
from tests.sampling import choose_number

pytest.importorskip("pyiceberg")

__all__ = ["directory", "pytestmark", "shim"]  # fixtures and marks

QUICK = {
    "arrow": [
        ("kill", choose_number(8, 26), 0),
        ("torn", 2, 0),
        ("EIO", choose_number(2, 5), 0),
        ("kill", 2, 2),
    ],
    "duckdb": [("kill", choose_number(3, 7), 0)],
    "spark": [("kill", 2, 0)],
}
EACH = ALL if EVERY else 40
WHOLE = {
    "arrow": [("kill", ALL, 0), ("torn", EACH, 0), *((error, EACH, 0) for error in ERRORS), ("kill", 40, 3)],
    "duckdb": [("kill", ALL if EVERY else 150, 0), ("torn", EACH, 0), ("EIO", EACH, 0)],
    "spark": [("kill", EACH, 0)],
}
AROUND = -1  # as in crash_sweep.py
STREAMS = [("kill", AROUND, 0)]
PARTS = 8
"""Each has a JVM of its own: one that had outlived killed drivers for an hour ended, twice."""
FAULTS = WHOLE if FULL else QUICK
ON_SPARK = pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.more])  # a JVM for each kill


@pytest.mark.only(
    lambda engine, kind: FULL or (engine, kind) != ("spark", "iceberg"), "a minute more: INTARSIA_CRASH=full"
)
@pytest.mark.parametrize("engine", ["arrow", "duckdb", ON_SPARK])
@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_s31_steps_take_effect_once_wherever_a_run_is_killed(
    shim: Path, directory: Path, kind: str, engine: str
) -> None:
    pytest.importorskip("duckdb" if engine == "duckdb" else "pyspark" if engine == "spark" else "pyarrow")
    results = sweep(shim, directory, f"{kind} on {engine}", FAULTS[engine], script="crash_pipeline.py")
    assert [violation for result in results for violation in result["violations"]] == []
    for result in results:
        assert result["calls"] > 100, "the shim has seen next to nothing"
        if result["fault"] == "kill":
            # A run may be a call shorter than the one that was counted, so that the last is not reached.
            assert result["killed"] >= 0.8 * (result["points"] - 1) > 0


IN_FULL = [("kill", ALL, 0), ("torn", EACH, 0), ("EIO", EACH, 0), ("kill", 40, 3)]
ON_DUCKDB = [("kill", ALL if EVERY else 100, 0), ("torn", EACH, 0), ("EIO", EACH, 0)]
COMPUTED = {
    "arrow": IN_FULL if FULL else [("kill", 3, 0)],
    "duckdb": ON_DUCKDB if FULL else [("kill", choose_number(4, 12), 0), ("kill", 1, 2)],
    "spark": [("kill", EACH, 0)] if FULL else [("kill", 2, 0)],
}


@pytest.mark.parametrize("engine", ["arrow", "duckdb", ON_SPARK])
def test_s31_steps_of_queries_and_functions_take_effect_once_wherever_a_run_is_killed(
    shim: Path, directory: Path, engine: str
) -> None:
    pytest.importorskip("duckdb" if engine == "duckdb" else "pyspark" if engine == "spark" else "pyarrow")
    results = sweep(shim, directory, f"computed on {engine}", COMPUTED[engine], script="crash_pipeline.py")
    assert [violation for result in results for violation in result["violations"]] == []
    assert all(result["calls"] > 100 for result in results), "the shim has seen next to nothing"
    kills = [result for result in results if result["fault"] == "kill"]
    assert sum(result["killed"] for result in kills) >= 0.8 * (sum(one["points"] for one in kills) - 1) > 0


GUARDED = {
    "arrow": IN_FULL if FULL else [("kill", choose_number(5, 10), 0), ("EIO", 2, 0), ("kill", 1, 2)],
    "duckdb": ON_DUCKDB if FULL else [("kill", 2, 0)],
}


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_rows_are_quarantined_once_wherever_a_run_is_killed(shim: Path, directory: Path, engine: str) -> None:
    pytest.importorskip("duckdb" if engine == "duckdb" else "pyarrow")
    results = sweep(shim, directory, f"guarded on {engine}", GUARDED[engine], script="crash_pipeline.py")
    assert [violation for result in results for violation in result["violations"]] == []
    assert all(result["calls"] > 100 for result in results), "the shim has seen next to nothing"
    assert all(result["killed"] > 0 for result in results if result["fault"] == "kill")


@pytest.mark.only(lambda engine: FULL or engine == "arrow", "as on Arrow: INTARSIA_CRASH=full")
@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
@pytest.mark.parametrize("kind", ["since", "backfill"])
def test_what_is_new_is_given_once_and_each_day_filled_once_wherever_a_run_is_killed(
    shim: Path, directory: Path, kind: str, engine: str
) -> None:
    pytest.importorskip("duckdb" if engine == "duckdb" else "pyarrow")
    faults = (ON_DUCKDB if engine == "duckdb" else IN_FULL) if FULL else [("kill", choose_number(3, 6), 0)]
    results = sweep(shim, directory, f"{kind} on {engine}", faults, script="crash_pipeline.py")
    assert [violation for result in results for violation in result["violations"]] == []
    assert all(result["calls"] > 100 for result in results), "the shim has seen next to nothing"
    assert all(result["killed"] > 0 for result in results if result["fault"] == "kill")


@pytest.mark.spark
@pytest.mark.skipif(not FULL, reason="minutes: INTARSIA_CRASH=full")
@pytest.mark.parametrize("part", [f"{number}/{PARTS}" for number in range(1, PARTS + 1)])
@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_batches_of_a_stream_take_effect_once_wherever_a_run_is_killed(
    shim: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, kind: str, part: str
) -> None:
    """Kills around the commits of whole batches, with the JVM, are in tests/pipeline/test_stream_kills.py."""
    pytest.importorskip("pyspark")
    monkeypatch.setenv("INTARSIA_CRASH_PART", part)
    results = sweep(shim, directory, f"{kind} stream on spark", STREAMS, script="crash_pipeline.py")
    assert [violation for result in results for violation in result["violations"]] == []
    assert all(result["killed"] > 0 for result in results)
