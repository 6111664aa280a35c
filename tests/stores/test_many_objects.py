"""Many files in a bucket: an operation after the first one plans from the cache of footers."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import botocore.session
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stores_bucket import KEY, REGION, SECRET, Bucket
from stores_faces import open_memory
from stores_faults import ROOT, TARGET, orders, prepared
from stores_memory import MemoryStore, Process

import intarsia as it
from intarsia.core.plan import Plan

FULL = os.environ.get("INTARSIA_STORES") == "full"
FILES = 10_000


def make_file(number: int) -> bytes:
    """Ten rows, whose keys no other file has."""
    sink = pa.BufferOutputStream()
    pq.write_table(orders([(10 * number + one, number) for one in range(10)]), sink)
    return sink.getvalue().to_pybytes()


def plan_timed(key: int, target: str, **how: Any) -> tuple[Plan, float]:
    started = time.perf_counter()
    plan = it.plan(it.merge, orders([(key, 0)]), target, on="id", **how)
    return plan, time.perf_counter() - started


def check_cached(target: str, **how: Any) -> tuple[Plan, Plan, float, float]:
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
def test_ten_thousand_objects_on_a_server_are_planned_in_a_tenth_of_the_time(
    lake: Bucket, record_property: Any
) -> None:
    fill(lake, FILES)
    target = f"{lake.name}/{ROOT}"
    first, again, slow, quick = check_cached(target, filesystem=lake.opened, engine="arrow")
    for name, plan, seconds in (("first", first, slow), ("again", again, quick)):
        record_property(name, f"{seconds:.2f} s, {plan.requests}")
        print(f"{FILES:,} objects, {name}: {seconds:.2f} s, {plan.requests}")
    assert quick * 10 < slow


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
