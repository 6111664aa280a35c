"""Spark on object stores: the executors read and stage through the file system that the driver was given.

The JVM needs no connector for that (no s3a, no jar): files are read and written by PyArrow in Python workers,
with credentials that are given once. A source that is a DataFrame is read as its owner has it. The servers
are built by ``make stores``; without them these tests are skipped.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from stores_bucket import KEY, REGION, SECRET, Bucket, make_azure_options
from stores_processes import Writers, check_history, make_base
from stores_writer import BASE

import intarsia as it
from intarsia.errors import StorageError

pytestmark = pytest.mark.spark
FULL = os.environ.get("INTARSIA_STORES") == "full"
ROOT = "lake/orders"
WAYS = [("s3", "pyarrow"), ("s3", "options"), ("azure", "pyarrow"), ("azure", "options")]


def orders(rows: dict[int, int]) -> pa.Table:
    return pa.table({"id": pa.array(rows, pa.int64()), "v": pa.array(rows.values(), pa.int64())})


def name_target(lake: Bucket, way: str) -> tuple[str, dict[str, Any]]:
    """The target as a user names it: a path on a file system, or a URL with its options."""
    if way == "pyarrow":
        return f"{lake.name}/{ROOT}", {"filesystem": lake.opened}
    if lake.kind == "azure":
        return f"abfs://{lake.name}/{ROOT}", {"storage_options": make_azure_options(lake.port)}
    options = {"key": KEY, "secret": SECRET, "endpoint_url": lake.endpoint}
    return f"s3://{lake.name}/{ROOT}", {
        "storage_options": {**options, "client_kwargs": {"region_name": REGION}}
    }


@pytest.mark.parametrize(("lake", "way"), WAYS if FULL else WAYS[:1], indirect=["lake"])
def test_many_writers_and_every_operation_without_a_connector_in_the_jvm(
    lake: Bucket, way: str, spark: Any
) -> None:
    target, where = name_target(lake, way)
    how = {**where, "engine": spark}
    expected = dict.fromkeys(range(60), 0)

    def check() -> None:
        assert lake.rows(ROOT, "id", "v") == sorted(expected.items())
        assert not [key for key in lake.files() if "/tx/" in key or "/spools/" in key]

    for first in (0, 20, 40):
        it.write(orders(dict.fromkeys(range(first, first + 20), 0)), target, **how)
    check()
    new = {5: 1, 25: 1, 70: 1}
    frame = spark.createDataFrame(list(new.items()), "id long, v long")
    result = it.merge(frame, target, on="id", **how)
    assert (result.updated, result.inserted) == (2, 1)
    expected |= new
    check()
    assert it.delete(target, "id % 20 = 7", **how).deleted == 3
    expected = {n: v for n, v in expected.items() if n % 20 != 7}
    check()
    assert it.update(target, {"v": "v + 5"}, "id < 10", **how).updated == 9
    expected = {n: v + 5 if n < 10 else v for n, v in expected.items()}
    check()
    it.compact(target, **how)
    check()
    assert len(lake.data(ROOT)) == 1


@pytest.mark.more
def test_spark_that_lists_sees_every_key_once_while_others_write(
    lake: Bucket, writers: Writers, gateway_directory: Path, spark: Any
) -> None:
    """By its own reader of Parquet, on the server's objects as files: it has no connector to the store."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    before = make_base(lake)
    for seed in range(3 if FULL else 2):
        writers.start(400 + seed, 15 if FULL else 4, "arrow")
    reads, gone = 0, []
    while writers.are_running():
        try:
            found = (
                spark.read.parquet(f"file://{gateway_directory}/{lake.name}/{ROOT}").select("id").collect()
            )
        except (PySparkException, Py4JJavaError) as error:
            gone.append(str(error))
            continue
        keys = [row.id for row in found]
        assert len(set(keys)) == len(keys), "a key is seen twice"
        assert set(BASE) <= set(keys), "a key is not seen"
        reads += 1
    assert not writers.read_errors()
    # Its rows are being read, or its footer for the schema, which Spark looks for where the former one ended.
    replaced = ("FAILED_READ_FILE", "readParquetFootersInParallel")
    odd = [one for one in gone if not any(text in one for text in replaced)]
    assert not odd, f"other than that a file that was listed is replaced: {odd[0]}"
    assert reads > max(2, len(gone))
    check_history(lake, writers.read(), before)


def test_executors_without_the_drivers_environment_are_told_apart_from_a_store_that_refuses(
    lake: Bucket, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials of the environment stay where they are: the error names both places where they may be."""
    target = f"{lake.name}/{ROOT}"
    for first in (0, 20):
        it.write(orders(dict.fromkeys(range(first, first + 20), 0)), target, filesystem=lake.opened)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    opened = pafs.S3FileSystem(
        region=REGION, scheme="http", endpoint_override=f"127.0.0.1:{lake.port}", request_timeout=5
    )
    before = lake.contents()
    with pytest.raises(StorageError) as caught:
        it.update(target, {"v": "v + 1"}, "id >= 0", filesystem=opened, engine=spark)
    assert "filesystem= or storage_options=" in str(caught.value.hint)
    assert "on every executor" in str(caught.value.hint)
    assert SECRET not in f"{caught.value} {caught.value!r}"
    assert lake.contents() == before
