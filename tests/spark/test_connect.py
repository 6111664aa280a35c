"""Spark Connect: a client without a JVM of its own passes the core of what a classic session passes."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from intarsia.errors import NotSupported
from intarsia.spark import find_java

TESTS = Path(__file__).parents[1]
FULL = os.environ.get("INTARSIA_SPARK") == "full"
BRIEF = [
    "contract/test_merge_strategies.py::test_a_strategy_leaves_the_rows_it_promises",
    "contract/test_delete_where.py",
    "spark/test_dataset_io.py",
]
"""What the default run has time for; ``make spark`` runs the core."""
CORE = [
    "contract/test_merge_strategies.py::test_a_strategy_leaves_the_rows_it_promises",
    "contract/test_merge_matched.py",
    "contract/test_write_modes.py",
    "contract/test_delete_where.py",
    "contract/test_update_set.py",
    "contract/test_compact_files.py::test_small_files_become_one_with_rows_in_order",
    "contract/test_optimize_order.py::test_one_column_is_a_sort_with_nulls_last",
    "spark/test_dataset_io.py",
    "spark/test_dataframes.py::test_a_strategy_leaves_the_rows_it_promises",
]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a server; skips where pyspark, what Connect needs, or Java is missing."""
    for package in ("pyspark", "grpc"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    try:
        find_java()
    except NotSupported as error:
        pytest.skip(f"Spark cannot start: {error}")
    port = _free_port()
    command = [sys.executable, str(Path(__file__).with_name("connect_server.py")), str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield f"sc://127.0.0.1:{port}"
        process.stdin.close()
        process.wait(60)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_connect_server_passes_the_core_of_the_contract(server: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"INTARSIA_SPARK_REMOTE": server, "JAVA_HOME": "/nonexistent"}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "spark", "-p", "no:cacheprovider", "-n0"]
    command += [f"--rootdir={TESTS.parent}", "--timeout=120", *(CORE if FULL else BRIEF)]
    done = subprocess.run(
        command, cwd=TESTS, env=environment, capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > (80 if FULL else 20)
    assert "skipped" not in done.stdout
