"""Requests are counted: in memory against what the store was sent, on versitygw against its access log."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pyarrow as pa
import pytest
from stores_bucket import KEY, REGION, SECRET, s3
from stores_faces import KINDS, open_memory
from stores_faults import (
    BY_NAME,
    OPERATIONS,
    TARGET,
    Operation,
    lay_out,
    make_how,
    make_server,
    orders,
    prepared,
)
from stores_memory import MemoryStore, Process
from stores_servers import LoggedServer, find_port, run_versitygw, running

import intarsia as it
from intarsia.common.requests import PART_BYTES, RequestCounter, Requests, watch_botocore
from intarsia.core.report import as_json
from intarsia.storage import trial
from intarsia.tables.parquet.table import ParquetTable

IN_MEMORY = {
    "list_objects_v2": "LIST",
    "list_multipart_uploads": "LIST",
    "get_object": "GET",
    "head_object": "HEAD",
    "put_object": "PUT",
    "create_multipart_upload": "PUT",
    "complete_multipart_upload": "PUT",
    "commit_blocks": "PUT",
    "copy_object": "COPY",
    "upload_part_copy": "COPY",
    "rewrite_object": "COPY",
    "stage_block": "COPY",
    "delete_object": "DELETE",
    "abort_multipart_upload": "DELETE",
}


def count_sent(process: Process) -> dict[str, int]:
    found = Counter(IN_MEMORY[one.partition(" ")[0]] for one in process.sent)
    return {kind: found[kind] for kind in Requests()}


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[MemoryStore]:
    with prepared():
        yield make_server(request.param)


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_a_result_has_every_request_that_the_store_was_sent(
    server: MemoryStore, operation: Operation, engine: str
) -> None:
    process = Process(lay_out(server, operation))
    result = operation.run(**make_how(process, engine))
    assert dict(result.requests) == count_sent(process)
    assert result.requests.total == len(process.sent) > 0


def test_files_that_are_copied_in_parts_are_counted(server: MemoryStore) -> None:
    with prepared(large=True):
        process = Process(server)
        result = BY_NAME["merge"].run(**make_how(process))
    assert dict(result.requests) == count_sent(process)
    assert result.requests["COPY"] > 2


def test_a_plan_and_a_dry_run_have_what_they_have_sent(server: MemoryStore) -> None:
    process = Process(server)
    plan = it.plan(it.merge, orders([(1, 7)]), TARGET, on="id", **make_how(process))
    assert dict(plan.requests) == count_sent(process)
    assert plan.requests["PUT"] == plan.requests["COPY"] == plan.requests["DELETE"] == 0
    shown = f"{plan.requests['GET']} GET"
    assert shown in repr(plan)
    assert "sent to plan" in repr(plan)
    process = Process(server)
    result = it.merge(orders([(1, 7)]), TARGET, on="id", dry_run=True, **make_how(process))
    assert dict(result.requests) == count_sent(process)


def test_a_restore_has_what_it_has_sent(server: MemoryStore) -> None:
    BY_NAME["merge"].run(retain=2, **make_how(Process(server)))
    process = Process(server)
    plan = it.plan(it.restore, TARGET, 3, filesystem=open_memory(process))
    assert dict(plan.requests) == count_sent(process)
    process = Process(server)
    result = it.restore(TARGET, 3, filesystem=open_memory(process))
    assert dict(result.requests) == count_sent(process)
    assert result.requests["COPY"] + result.requests["PUT"] > 2


def test_operations_on_one_table_have_their_own_each(server: MemoryStore) -> None:
    process = Process(server)
    table = ParquetTable(TARGET, filesystem=open_memory(process), retain=2)
    operations: list[Any] = [
        lambda: it.merge(orders([(1, 7)]), table, on="id"),
        lambda: it.delete(table, "id = 2", dry_run=True),
        lambda: it.plan(it.delete, table, "id = 2"),
        lambda: it.delete(table, "id = 2"),
        lambda: it.restore(table, 4),
        lambda: it.plan(it.restore, table, 5),
    ]
    for operation in operations:
        process.sent.clear()
        assert dict(operation().requests) == count_sent(process)
        assert process.sent


def test_a_client_that_outlives_operations_forgets_their_counters() -> None:
    session = botocore.session.get_session()
    client = session.create_client(
        "s3", region_name=REGION, aws_access_key_id=KEY, aws_secret_access_key=SECRET
    )

    def send() -> int:
        return len(client.meta.events.emit("before-send.s3.HeadObject", request=None))

    alone = send()
    for _ in range(3):
        counter = RequestCounter()
        watch_botocore(client, counter)
        watch_botocore(client, counter)
        assert send() == alone + 1
        assert counter.requests == Requests(HEAD=1)
        del counter
        gc.collect()
        assert send() == alone


def test_what_a_conflict_cost_is_counted_as_well(server: MemoryStore) -> None:
    alone = Process(server.copy())
    BY_NAME["merge"].run(**make_how(alone))
    at = next(n for n, one in enumerate(alone.sent, 1) if one.startswith("put_object") and "/log/" in one)
    other = Process(server)
    process = Process(server, at=at, fault="meanwhile", then=lambda: BY_NAME["update"].run(**make_how(other)))
    result = BY_NAME["merge"].run(**make_how(process))
    assert result.attempts == 2
    assert dict(result.requests) == count_sent(process)
    assert result.requests.total > len(alone.sent)


def test_results_show_requests_as_text_and_html(server: MemoryStore) -> None:
    result = BY_NAME["append"].run(**make_how(Process(server)))
    requests = result.requests
    assert f"{requests['PUT']} PUT" in repr(result)
    assert "requests" in result._repr_html_()
    assert str(requests) == ", ".join(f"{n} {kind}" for kind, n in requests.items() if n)
    with pytest.raises(KeyError):
        requests["PATCH"]


def test_on_a_disk_there_are_none(tmp_path: Path) -> None:
    result = it.write(orders([(1, 1)]), tmp_path / "orders")
    assert result.requests is None
    assert "requests" not in repr(result)
    assert it.plan(it.delete, tmp_path / "orders", "id = 1").requests is None


# Footers.


def _make_many(server: MemoryStore, files: int) -> None:
    for first in range(0, files, 10):
        rows = [(1000 + n, 0) for n in range(first, min(first + 10, files))]
        it.write(orders(rows), TARGET, max_rows_per_file=1, **make_how(Process(server)))


def _count_reads(process: Process, what: str) -> int:
    return sum(one.startswith("get_object") and what in one for one in process.sent)


def test_a_footer_takes_one_request(server: MemoryStore) -> None:
    process = Process(server)
    it.snapshot(TARGET, filesystem=open_memory(process))
    data = [one for one in process.sent if one.endswith(".parquet")]
    assert len(data) == 3
    assert all(one.startswith("get_object") for one in data)


def test_a_second_merge_reads_no_footer_of_an_unchanged_file_again(server: MemoryStore) -> None:
    _make_many(server, 40)
    first = Process(server)
    it.merge(orders([(1, 5)]), TARGET, on="id", **make_how(first))
    again = Process(server)
    result = it.merge(orders([(5, 5)]), TARGET, on="id", **make_how(again))
    assert result.updated == 1
    assert _count_reads(first, ".parquet") > 40
    # Those of the first merge's new file, of the one that is rewritten, and its rows.
    assert _count_reads(again, "/orders/") <= 6
    assert result.requests.total < len(first.sent) - 30


def test_footers_of_a_file_that_was_replaced_since_it_was_listed_are_not_taken(server: MemoryStore) -> None:
    alone = Process(server.copy())
    it.snapshot(TARGET, filesystem=open_memory(alone))
    at = next(n for n, one in enumerate(alone.sent, 1) if one.startswith("get") and one.endswith(".parquet"))
    process = Process(
        server, at=at, fault="meanwhile", then=lambda: BY_NAME["update"].run(**make_how(Process(server)))
    )
    found = it.snapshot(TARGET, filesystem=open_memory(process))
    assert found.version == 4
    assert found.rows == 12


# Real servers, by what they log: moto wherever the tests run, versitygw where it is built.


@pytest.fixture(scope="module", params=["moto", "versitygw"])
def logged(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoggedServer]:
    directory = tmp_path_factory.mktemp("logged")
    log = directory / "log"
    if request.param == "moto":
        pytest.importorskip("moto", reason="moto is not installed")
        port = find_port()
        with running(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port, log=log
        ):
            yield LoggedServer(port, log)
    else:
        (directory / "data").mkdir()
        with run_versitygw(directory / "data", "--access-log", str(log)) as port:
            yield LoggedServer(port, log)


def open_logged(server: LoggedServer, library: str) -> Any:
    if library == "pyarrow":
        return s3(server.port)
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    return s3fs.S3FileSystem(
        key=KEY,
        secret=SECRET,
        endpoint_url=f"http://127.0.0.1:{server.port}",
        client_kwargs={"region_name": REGION},
        skip_instance_cache=True,
    )


@pytest.mark.parametrize(
    "engine", ["arrow", "duckdb", pytest.param("spark", marks=pytest.mark.spark)], indirect=True
)
@pytest.mark.parametrize("library", ["pyarrow", "s3fs"])
def test_a_result_has_every_request_that_a_server_has_logged(
    logged: LoggedServer, library: str, engine: Any
) -> None:
    bucket = f"counted-{library}-{engine if isinstance(engine, str) else 'spark'}"
    s3(logged.port, allow_bucket_creation=True).create_dir(bucket)
    trial.forget()
    target = f"{bucket}/lake/orders"
    how = {"filesystem": open_logged(logged, library), "engine": engine, "single_writer": True}
    rows = pa.table({"id": range(20), "v": [0.5] * 20, "w": [{"x": "a", "y": 1}] * 20})
    new = pa.table({"id": [3, 30], "v": [1.0, 1.0], "w": [{"x": "b", "y": 2}] * 2})
    for operation in (
        lambda: it.write(rows, target, **how),
        lambda: it.merge(new, target, on="id", **how),
        lambda: it.update(target, {"v": "v + 1"}, "id < 3", **how),
        lambda: it.delete(target, "id = 5", **how),
        lambda: it.compact(target, **how),
    ):
        before = logged.count()
        sent = dict(operation().requests)
        sent["PUT"] += sent.pop("COPY")
        answered = logged.count() - before
        assert {kind: count for kind, count in sent.items() if count} == dict(answered)


def test_parts_of_large_files_are_counted(logged: LoggedServer) -> None:
    s3(logged.port, allow_bucket_creation=True).create_dir("counted-parts")
    trial.forget()
    noise = pa.array([os.urandom(1 << 10) for _ in range(25_000)])
    before = logged.count()
    result = it.write(
        pa.table({"noise": noise}), "counted-parts/orders", filesystem=s3(logged.port), single_writer=True
    )
    assert result.bytes_written > 2 * PART_BYTES
    sent = dict(result.requests)
    assert sent["PUT"] + sent["COPY"] == (logged.count() - before)["PUT"]


def test_a_result_has_them_as_json(server: MemoryStore) -> None:
    result = BY_NAME["append"].run(**make_how(Process(server)))
    assert json.loads(json.dumps(as_json(result)))["requests"] == dict(result.requests)
