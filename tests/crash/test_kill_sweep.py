"""Operations are killed and failed at their calls to the system; what they promise must hold all the same.

A small sample of the calls in ``make test``, those around commits first; a larger one with
INTARSIA_TESTS=more, twice that with INTARSIA_CRASH=sample (``make test-all``), every one of them with
INTARSIA_CRASH=full (``make crash``), where the recovery from each kill is killed and failed at each of its
calls.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_engines import NO_SPARK
from crash_operations import CONTROLS, ERRORS, OPERATIONS
from tests import sampling
from tests.fault_points import record_point

HERE = Path(__file__).parent
ASKED = os.environ.get("INTARSIA_CRASH") or ("few" if sampling.FEW else "quick")
FULL, EVERY = ASKED in ("full", "every"), ASKED == "every"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="the crash sweep needs a C compiler (cc, gcc or clang)"),
    pytest.mark.skipif(sys.platform != "linux", reason="the crash sweep preloads a library the Linux way"),
    pytest.mark.slow,
]

NAMES = [operation.name for operation in OPERATIONS]
ALL, EVERY_ONE = 0, -1
FEW = [("kill", 7, 0), ("torn", 2, 0), ("EIO", 4, 0), ("kill", 4, 3)]
QUICK = [("kill", 14, 0), ("torn", 3, 0), ("EIO", 7, 0), ("ENOSPC", 3, 0), ("EACCES", 3, 0), ("kill", 4, 3)]
SAMPLE = [("kill", 24, 0), ("torn", 6, 0), ("EIO", 12, 0), ("ENOSPC", 6, 0), ("EACCES", 6, 0), ("kill", 8, 3)]
WHOLE = [("kill", ALL, 0), ("torn", ALL, 0), *((error, ALL, 0) for error in ERRORS), ("kill", ALL, EVERY_ONE)]
FAULTS = WHOLE if FULL else SAMPLE if ASKED == "sample" else FEW if ASKED == "few" else QUICK
"""Fault, at how many calls, and at how many calls of the recovery that follows."""


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preloaded library, compiled once."""
    library = tmp_path_factory.mktemp("shim") / "killshim.so"
    command = [str(COMPILER), "-O1", "-shared", "-fPIC", "-o", str(library), str(HERE / "killshim.c"), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: a kill loses nothing that was written."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(dir=memory, prefix="intarsia-crash-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def sweep(
    shim: Path,
    directory: Path,
    operation: str,
    faults: list[tuple[str, int, int]],
    *,
    script: str = "crash_sweep.py",
    **more: Any,
) -> list[dict[str, Any]]:
    order = {"operation": operation, "directory": str(directory / "swept"), "faults": faults, **more}
    # In the common one, what other killed processes have left is swept, or not: calls that nobody counted.
    scratch = directory / "scratch"
    scratch.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, str(HERE / script), json.dumps(order)],
        # Without bytecode to write, the first run makes the same calls as the others.
        env={
            **os.environ,
            "LD_PRELOAD": str(shim),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(scratch),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == NO_SPARK:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    if operation not in {control.name for control in CONTROLS}:
        count_points(results, script)
    return results


def count_points(results: list[dict[str, Any]], script: str) -> None:
    """Where the recovery was killed as well, the first kills are those of another result, and not counted."""
    what = Path(script).stem.removeprefix("crash_").replace("_", " ")
    kind = "" if what == "sweep" else f"{what}, "
    for result in results:
        operation, _, engine = result["operation"].partition(" on ")
        twice = {"kill twice": result["double"], "kill, then error": result.get("failed", 0)}
        counts = twice if result["double"] else {result["fault"]: result["points"]}
        for fault, count in counts.items():
            if count:
                record_point("local", engine.lower() or "arrow", f"{kind}{operation}", fault, count=count)


@pytest.mark.parametrize("operation", NAMES)
def test_a_kill_or_an_error_at_any_call_leaves_the_old_or_the_new_state(
    shim: Path, directory: Path, operation: str
) -> None:
    results = sweep(shim, directory, operation, FAULTS)
    assert [violation for result in results for violation in result["violations"]] == []
    for result in results:
        assert result["calls"] > 30, "the shim has seen next to nothing"
        if result["fault"] in ("kill", "torn"):
            # Threads may make a call more or less, so that the last of them is not always reached.
            assert result["killed"] + result["acknowledged"] == result["points"] > 0
            assert result["killed"] > 0.8 * result["points"]
        else:
            assert result["killed"] == 0
            retried = result["fault"] == "EINTR"  # by Python itself, mostly
            few = result["points"] < 6
            assert retried or few or result["raised"] > result["acknowledged"], (
                "errors should mostly be errors"
            )
    assert results[-1]["double"] > 10, "recovery was hardly ever killed"


@pytest.mark.parametrize("control", [operation.name for operation in CONTROLS])
def test_the_sweep_catches_a_protocol_that_is_wrong(shim: Path, directory: Path, control: str) -> None:
    (result,) = sweep(shim, directory, control, [("kill", ALL, 0)], enough=1)
    assert result["violations"] != []
