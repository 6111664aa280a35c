"""Writers in processes of their own on a real server that speaks S3 (versitygw), against the serial model.

The server is built by ``make stores``; without it these tests are skipped.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stores_bucket import KEY, REGION, SECRET, Bucket, s3
from stores_writer import BASE, orders, replay

import intarsia as it
from intarsia.errors import CommitConflict
from intarsia.storage import trial
from intarsia.tables.parquet import ParquetTable

FULL = os.environ.get("INTARSIA_STORES") == "full"
BUILT = Path(sys.prefix) / "stores" / "bin" / "versitygw"
ROOT = "lake/orders"
HERE = Path(__file__).parent
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    program = os.environ.get("INTARSIA_VERSITYGW", str(BUILT))
    if not os.access(program, os.X_OK):
        pytest.skip("versitygw is not built: make stores")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    data = tmp_path_factory.mktemp("gateway")
    environment = {**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
    command = [program, "--port", f"127.0.0.1:{port}", "posix", str(data)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            ends = time.monotonic() + 60
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    assert process.poll() is None, "the server has ended"
                    assert time.monotonic() < ends, "the server does not answer"
                    time.sleep(0.1)
            yield port
        finally:
            process.terminate()


@pytest.fixture
def lake(gateway: int) -> Bucket:
    trial.forget()
    name = f"many-{next(_NUMBERS)}"
    opened = s3(gateway, allow_bucket_creation=True)
    opened.create_dir(name)
    return Bucket(gateway, name, opened)


class Writers:
    """Writers in processes of their own; all that are left are killed in the end."""

    def __init__(self, bucket: Bucket, directory: Path) -> None:
        self._bucket, self._directory = bucket, directory
        self._started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self, seed: int, count: int, engine: str, *, compacts: bool) -> None:
        told = self._directory / f"writer-{seed}"
        command = [sys.executable, str(HERE / "stores_writer.py"), str(self._bucket.port)]
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


def _list_only(bucket: Bucket, client: Any) -> list[tuple[int, int]]:
    """The rows that somebody sees who lists objects and gets each of them, knowing nothing of a log."""
    tables = []
    for one in client.list_objects_v2(Bucket=bucket.name, Prefix=f"{ROOT}/")["Contents"]:
        data = client.get_object(Bucket=bucket.name, Key=one["Key"])["Body"].read()
        tables.append(pq.read_table(pa.BufferReader(data)))
    rows = pa.concat_tables(tables).select(["id", "v"]).to_pydict()
    return sorted(zip(rows["id"], rows["v"], strict=True))


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


def test_the_server_is_trusted_after_a_trial(lake: Bucket) -> None:
    table = ParquetTable(f"{lake.name}/{ROOT}", filesystem=lake.opened)
    assert table.try_store() is None
    assert lake.files() == []


@pytest.mark.parametrize("engine", ["arrow", "duckdb"] if FULL else ["arrow"])
def test_writers_on_the_same_keys_are_as_one_after_the_other(
    lake: Bucket, writers: Writers, engine: str
) -> None:
    _make_base(lake)
    before = len(_read_history(lake))
    for seed in range(4 if FULL else 2):
        writers.start(seed, 15 if FULL else 4, engine, compacts=False)
    client = botocore.session.get_session().create_client(
        "s3",
        region_name=REGION,
        endpoint_url=lake.endpoint,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
    )
    reads = 0
    while writers.are_running():
        try:
            keys = [n for n, _ in _list_only(lake, client)]
        except client.exceptions.NoSuchKey:  # all rows of a file were deleted, and so it is removed
            continue
        assert len(set(keys)) == len(keys), "a key is seen twice"
        assert set(BASE) <= set(keys), "a key is not seen"
        reads += 1
    client.close()
    assert not writers.read_errors()
    assert reads > 2
    _check_history(lake, writers.read(), before)
    assert not [key for key in lake.files() if "/tx/" in key]


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


def test_a_large_file_is_replaced_without_passing_through(
    lake: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    from intarsia.storage import s3 as client

    monkeypatch.setattr(client, "SMALL", 1000)
    monkeypatch.setattr(client, "PART", 5 << 20)
    target, how = f"{lake.name}/{ROOT}", {"filesystem": lake.opened}
    rows = 1_500_000
    it.write(pa.table({"id": range(rows), "v": [float(n) for n in range(rows)]}), target, **how)
    assert lake.opened.get_file_info(f"{lake.name}/{lake.data(ROOT)[0]}").size > client.PART
    result = it.merge(pa.table({"id": [5, rows], "v": [0.5, 0.5]}), target, on="id", **how)
    assert (result.updated, result.inserted) == (1, 1)
    assert it.snapshot(target, **how).rows == rows + 1
    assert it.read(target, where="id = 5", **how).read_all()["v"].to_pylist() == [0.5]
