"""Writers in processes of their own on real servers (versitygw, Azurite), against the serial model.

The servers are built by ``make stores``; without them these tests are skipped.
"""

from __future__ import annotations

import os
import time

import pyarrow as pa
import pytest
from stores_bucket import Bucket, ListingReader
from stores_processes import ROOT, Writers, check_history, make_base
from stores_proxy import run_proxy
from stores_readers import LIBRARIES, read_keys
from stores_writer import BASE
from tests.fault_points import record_point

import intarsia as it
from intarsia.errors import CommitConflict
from intarsia.storage import azure, s3
from intarsia.tables.parquet import ParquetTable

FULL = os.environ.get("INTARSIA_STORES") == "full"
SERVERS = {"s3": "versitygw", "azure": "Azurite"}
EVERYWHERE = pytest.mark.parametrize("lake", ["s3", "azure"], indirect=True)


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
    before = make_base(lake)
    for seed in range(4 if FULL else 2):
        writers.start(seed, 15 if FULL else 4, engine)
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
    check_history(lake, writers.read(), before)
    assert not [key for key in lake.files() if "/tx/" in key]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_that_lists_sees_every_key_once_while_others_write(
    lake: Bucket, writers: Writers, library: str
) -> None:
    before = make_base(lake)
    for seed in range(3 if FULL else 2):
        writers.start(200 + seed, 15 if FULL else 4, "arrow")
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
    check_history(lake, writers.read(), before)


@pytest.mark.parametrize(
    ("lake", "engine", "count"),
    # Azure's client waits for a quarter of a minute before it sends a request again.
    [("s3", "arrow", 25), ("s3", "duckdb", 25), ("azure", "arrow", 4)] if FULL else [("s3", "arrow", 4)],
    indirect=["lake"],
)
def test_writers_whose_requests_fail_at_random_are_as_one_after_the_other(
    lake: Bucket, writers: Writers, engine: str, count: int
) -> None:
    before = make_base(lake)
    with run_proxy(lake.port) as proxy:
        proxy.rage(0.03, seed=7)
        for seed in range(4 if FULL else 2):
            writers.start(300 + seed, count, engine, "compacts", "may fail", port=proxy.port)
        while writers.are_running():
            time.sleep(0.1)
        proxy.arm()
        proxy.release()
    assert not writers.read_errors()
    for fault, times in proxy.met.items():
        record_point(SERVERS[lake.kind], engine, "writers at once", fault, count=times)
    assert proxy.met
    ParquetTable(f"{lake.name}/{ROOT}", filesystem=lake.opened).recover()
    told = writers.read()
    assert sum("txid" in one for one in told) > len(told) / 2, "hardly anything succeeds"
    check_history(lake, told, before)


@EVERYWHERE
def test_writers_that_are_killed_leave_what_the_next_one_finishes(lake: Bucket, writers: Writers) -> None:
    before = make_base(lake)
    for part in range(6 if FULL else 2):
        known = len(writers.read())
        for number in range(2):
            writers.start(100 + 2 * part + number, 100, "arrow", "compacts")
        ends = time.monotonic() + 600  # a machine with other work takes minutes to start two writers
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
    check_history(lake, writers.read(), before)


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
