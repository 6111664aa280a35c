"""Many files in a bucket: an operation after the first one plans from the cache of footers."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import botocore.session
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.utils import parse_timestamp
from stores_bucket import KEY, REGION, SECRET, Bucket
from stores_faces import open_memory
from stores_faults import ROOT, TARGET, orders, prepared
from stores_memory import MemoryStore, Process

import intarsia as it
from intarsia.core.plan import Plan
from intarsia.storage.s3 import _parse_time

FULL = os.environ.get("INTARSIA_STORES") == "full"
FILES = 10_000


def make_file(number: int) -> bytes:
    """Ten rows, whose keys no other file has."""
    sink = pa.BufferOutputStream()
    pq.write_table(orders([(10 * number + one, number) for one in range(10)]), sink)
    return sink.getvalue().to_pybytes()


def plan_timed(key: int, target: str, **how: Any) -> tuple[Plan, str]:
    """The plan of a merge, and how long it took: for people to read, since it says as much of the machine."""
    started, worked = time.perf_counter(), time.process_time()
    plan = it.plan(it.merge, orders([(key, 0)]), target, on="id", **how)
    wall, cpu = time.perf_counter() - started, time.process_time() - worked
    return plan, f"{wall:.2f} s, {cpu:.2f} s of CPU"


def check_cached(target: str, **how: Any) -> tuple[Plan, Plan, str, str]:
    """A plan before and one after the first commit; the second sends a tenth of the requests at the most."""
    first, slow = plan_timed(15, target, **how)
    it.merge(orders([(15, 0)]), target, on="id", **how)
    again, quick = plan_timed(27, target, **how)
    assert first.requests is not None
    assert again.requests is not None
    assert len(again.files) == len(first.files)
    assert again.updated == 1
    assert again.requests.total * 10 < first.requests.total
    return first, again, slow, quick


def test_a_plan_from_the_cache_sends_a_tenth_of_the_requests() -> None:
    files = FILES if FULL else 500
    with prepared():
        server = MemoryStore()
        for number in range(files):
            server.request("put_object", Key=f"{ROOT}/{number:05d}.parquet", Body=make_file(number))
        first, again, _, _ = check_cached(TARGET, filesystem=open_memory(Process(server)), engine="arrow")
    assert first.requests is not None
    assert again.requests is not None
    assert first.requests["GET"] >= files, "each footer is read once"
    assert first.requests["GET"] < files + 20, "and in one request"
    assert again.requests["GET"] < 20
    assert again.requests["HEAD"] < 20


@pytest.mark.skipif(not FULL, reason="writes 10,000 objects: make stores")
def test_ten_thousand_objects_on_a_server_are_planned_with_a_tenth_of_the_requests(
    lake: Bucket, record_property: Any
) -> None:
    fill(lake, FILES)
    target = f"{lake.name}/{ROOT}"
    first, again, *times = check_cached(target, filesystem=lake.opened, engine="arrow")
    for name, plan, seconds in zip(("first", "again"), (first, again), times, strict=True):
        record_property(name, f"{seconds}, {plan.requests}")
        print(f"{FILES:,} objects, {name}: {seconds}, {plan.requests}")
    assert first.requests is not None
    assert again.requests is not None
    assert FILES <= first.requests["GET"] < FILES + 20
    assert again.requests["GET"] < 20
    assert again.requests["LIST"] < 20, "a thousand objects a request"


def fill(bucket: Bucket, files: int) -> None:
    """Put files by another client, many at once."""
    client = botocore.session.get_session().create_client(
        "s3",
        region_name=REGION,
        endpoint_url=bucket.endpoint,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
    )

    def put(number: int) -> None:
        client.put_object(Bucket=bucket.name, Key=f"{ROOT}/{number:05d}.parquet", Body=make_file(number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(files)))
    client.close()


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-18T17:49:58.000Z",
        "2026-11-18T17:49:58Z",
        "Wed, 18 Nov 2026 17:49:58 GMT",
        "1795024198",
        "20261118T174958Z",
        "18 Nov 2026 17:49:58 Z",
    ],
)
def test_times_of_answers_are_those_that_botocore_makes_of_them(text: str) -> None:
    assert _parse_time(text) == parse_timestamp(text) == datetime(2026, 11, 18, 17, 49, 58, tzinfo=UTC)
