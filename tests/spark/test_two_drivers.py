"""Two Spark drivers that write one dataset at once: one order or the other, never a mix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from intarsia.tables.parquet import ParquetTable

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(os.environ.get("INTARSIA_SPARK") != "full", reason="make spark runs it"),
]
KEYS = list(range(60))
SECONDS = 180.0


@contextmanager
def _drivers(path: Path, place: Path) -> Iterator[list[subprocess.Popen[str]]]:
    environ = {**os.environ, "TMPDIR": str(place), "SPARK_LOCAL_DIRS": str(place)}
    script = str(Path(__file__).with_name("writing_driver.py"))
    started = []
    try:
        for base in (10, 20):
            with open(place / f"stderr-{base}", "w") as errors:
                command = [sys.executable, "-W", "ignore::ResourceWarning", script]
                started.append(
                    subprocess.Popen(
                        [*command, str(path), str(place), str(base)],
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        text=True,
                        env=environ,
                    )
                )
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _version(path: Path) -> int:
    """The one version that a reader sees, of every key."""
    with ParquetTable(path).materialise() as view:  # which no later commit changes
        found = view.snapshot.dataset().to_table()
    assert sorted(found["id"].to_pylist()) == KEYS
    (version,) = set(found["version"].to_pylist())
    return version


def test_drivers_in_two_processes_take_turns_and_never_mix(tmp_path, make_dataset, rows, leftovers):
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    path = make_dataset(tmp_path / "t", pa.table({"id": KEYS, "version": [0] * len(KEYS)}), files=3)
    place = tmp_path / "place"
    place.mkdir()
    with _drivers(path, place) as drivers:
        deadline = time.monotonic() + SECONDS
        while len(list(place.glob("ready-*"))) < 2:
            assert all(process.poll() is None for process in drivers), _errors(place)
            assert time.monotonic() < deadline, _errors(place)
            time.sleep(0.05)
        (place / "go").touch()
        while any(process.poll() is None for process in drivers):
            assert _version(path) in {0, 10, 11, 12, 20, 21, 22}
            assert time.monotonic() < deadline, _errors(place)
        answers = [process.stdout.read() for process in drivers if process.stdout is not None]
        assert [process.returncode for process in drivers] == [0, 0], _errors(place)
    done = sorted(tuple(one) for answer in answers for one in json.loads(answer))
    assert [version for version, _, _ in done] == [1, 2, 3, 4, 5, 6]
    assert all(updated == len(KEYS) for _, _, updated in done)
    for base in (10, 20):
        assert [value for _, value, _ in done if value // 10 == base // 10] == [base, base + 1, base + 2]
    assert _version(path) == done[-1][1]
    assert rows(path) == [{"id": key, "version": done[-1][1]} for key in KEYS]
    assert leftovers(path) == []
    assert list(place.glob("intarsia-*/*")) == []


def _errors(place: Path) -> str:
    return "\n".join(Path(place, f"stderr-{base}").read_text()[-2000:] for base in (10, 20))
