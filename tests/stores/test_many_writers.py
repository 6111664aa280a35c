"""Writers in processes of their own on real servers (versitygw, Azurite), against the serial model.

The servers are built by ``make stores``; without them these tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from stores_bucket import Bucket, ListingReader
from stores_readers import LIBRARIES, read_keys
from stores_writer import BASE, orders, replay

import intarsia as it
from intarsia.errors import CommitConflict
from intarsia.storage import azure, s3
from intarsia.tables.parquet import ParquetTable

FULL = os.environ.get("INTARSIA_STORES") == "full"
ROOT = "lake/orders"
HERE = Path(__file__).parent
EVERYWHERE = pytest.mark.parametrize("lake", ["s3", "azure"], indirect=True)


class Writers:
    """Writers in processes of their own; all that are left are killed in the end."""

    def __init__(self, bucket: Bucket, directory: Path) -> None:
        self._bucket, self._directory = bucket, directory
        self._started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self, seed: int, count: int, engine: str, *, compacts: bool) -> None:
        told = self._directory / f"writer-{seed}"
        command = [sys.executable, str(HERE / "stores_writer.py"), self._bucket.kind]
        command += [str(self._bucket.port)]
        command += [f"{self._bucket.name}/{ROOT}", str(seed), str(count), engine, "yes" if compacts else "no"]
        path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
        with told.open("wb") as out, Path(f"{told}.errors").open("wb") as errors:
            process = subprocess.Popen(
                command, stdout=out, stderr=errors, env={**os.environ, "PYTHONPATH": path}
            )
        self._started.append((process, told))

    def are_running(self) -> bool:
        return any(process.poll() is None for process, _ in self._started)

    def kill(self) -> None:
        for process, _ in self._started:
            process.kill()
        for process, _ in self._started:
            process.wait()

    def read(self) -> list[dict[str, Any]]:
        """What they have told so far."""
        lines = [line for _, told in self._started for line in told.read_text().splitlines(keepends=True)]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def read_errors(self) -> str:
        return "".join(Path(f"{told}.errors").read_text() for _, told in self._started)


@pytest.fixture
def writers(lake: Bucket, tmp_path: Path) -> Iterator[Writers]:
    found = Writers(lake, tmp_path)
    yield found
    found.kill()


def _read_history(bucket: Bucket) -> dict[int, dict[str, Any]]:
    """What the log says was done, by the number of the commit."""
    found = {}
    for key in bucket.files("lake/.orders.intarsia/log"):
        if key.endswith(".json") and "summary" not in key:
            with bucket.opened.open_input_stream(f"{bucket.name}/{key}") as stream:
                record = json.loads(stream.read())
            found[record["seq"]] = record
    return found


def _make_base(bucket: Bucket) -> None:
    for first in range(0, len(BASE), 15):
        rows = dict.fromkeys(BASE[first : first + 15], 0)
        it.write(orders(rows), f"{bucket.name}/{ROOT}", filesystem=bucket.opened)


def _check_history(bucket: Bucket, acknowledged: list[dict[str, Any]], before: int) -> None:
    history = _read_history(bucket)
    assert sorted(history) == list(range(1, len(history) + 1)), "a slot is missing"
    ids = [record["txid"] for record in history.values()]
    assert len(set(ids)) == len(ids), "a transaction is in the log twice"
    rows = dict.fromkeys(BASE, 0)
    for number in range(before + 1, len(history) + 1):
        if "did" in history[number]["properties"]:
            replay(rows, json.loads(history[number]["properties"]["did"]))
    assert bucket.rows(ROOT, "id", "v") == sorted(rows.items()), "the rows are not those of the log, in order"
    for one in acknowledged:
        assert one["txid"] is None or history[one["version"]]["txid"] == one["txid"], "acknowledged, and lost"


@EVERYWHERE
def test_the_server_is_trusted_after_a_trial(lake: Bucket) -> None:
    table = ParquetTable(f"{lake.name}/{ROOT}", filesystem=lake.opened)
    assert table.try_store() is None
    assert lake.files() == []


@EVERYWHERE
@pytest.mark.parametrize("engine", ["arrow", "duckdb"] if FULL else ["arrow"])
def test_writers_on_the_same_keys_are_as_one_after_the_other(
    lake: Bucket, writers: Writers, engine: str
) -> None:
    _make_base(lake)
    before = len(_read_history(lake))
    for seed in range(4 if FULL else 2):
        writers.start(seed, 15 if FULL else 4, engine, compacts=False)
    reader = ListingReader(lake)
    reads = 0
    while writers.are_running():
        try:
            keys = reader.read(ROOT)["id"].to_pylist()
        except FileNotFoundError:  # all rows of a file were deleted, and so it is removed
            continue
        assert len(set(keys)) == len(keys), "a key is seen twice"
        assert set(BASE) <= set(keys), "a key is not seen"
        reads += 1
    reader.close()
    assert not writers.read_errors()
    assert reads > 2
    _check_history(lake, writers.read(), before)
    assert not [key for key in lake.files() if "/tx/" in key]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_that_lists_sees_every_key_once_while_others_write(
    lake: Bucket, writers: Writers, library: str
) -> None:
    _make_base(lake)
    before = len(_read_history(lake))
    for seed in range(3 if FULL else 2):
        writers.start(200 + seed, 15 if FULL else 4, "arrow", compacts=False)
    reader = ListingReader(lake)
    reads = 0
    while writers.are_running():
        keys = read_keys(library, reader, ROOT)
        if keys is None:  # all rows of a file were deleted, and so it is removed
            continue
        assert len(set(keys)) == len(keys), "a key is seen twice"
        assert set(BASE) <= set(keys), "a key is not seen"
        reads += 1
    reader.close()
    assert not writers.read_errors()
    assert reads > 2
    _check_history(lake, writers.read(), before)


@EVERYWHERE
def test_writers_that_are_killed_leave_what_the_next_one_finishes(lake: Bucket, writers: Writers) -> None:
    _make_base(lake)
    before = len(_read_history(lake))
    for part in range(6 if FULL else 2):
        known = len(writers.read())
        for number in range(2):
            writers.start(100 + 2 * part + number, 100, "arrow", compacts=True)
        ends = time.monotonic() + 60
        while len(writers.read()) < known + 3 + part and time.monotonic() < ends:
            try:
                found = it.read(f"{lake.name}/{ROOT}", filesystem=lake.opened, columns=["id"]).read_all()
            except CommitConflict:
                continue
            keys = found["id"].to_pylist()
            assert len(set(keys)) == len(keys)
            assert set(BASE) <= set(keys)
        writers.kill()
        assert len(writers.read()) > known
    assert "Error" not in writers.read_errors()
    ParquetTable(f"{lake.name}/{ROOT}", filesystem=lake.opened).recover()
    _check_history(lake, writers.read(), before)


@EVERYWHERE
def test_a_large_file_is_replaced_in_parts(lake: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for client in (s3, azure):
        monkeypatch.setattr(client, "SMALL", 1000)
        monkeypatch.setattr(client, "PART", 5 << 20)
    target, how = f"{lake.name}/{ROOT}", {"filesystem": lake.opened}
    rows = 1_500_000
    it.write(pa.table({"id": range(rows), "v": [float(n) for n in range(rows)]}), target, **how)
    assert lake.opened.get_file_info(f"{lake.name}/{lake.data(ROOT)[0]}").size > s3.PART
    result = it.merge(pa.table({"id": [5, rows], "v": [0.5, 0.5]}), target, on="id", **how)
    assert (result.updated, result.inserted) == (1, 1)
    assert it.snapshot(target, **how).rows == rows + 1
    assert it.read(target, where="id = 5", **how).read_all()["v"].to_pylist() == [0.5]
