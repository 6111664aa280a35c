"""Iceberg tables whose files are in an object store, across two partition specs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import DayTransform, IdentityTransform
from stores_bucket import KEY, REGION, SECRET, Bucket

import intarsia as it
from intarsia.tables.iceberg import expire_snapshots, remove_orphans

COW, MOR = "copy-on-write", "merge-on-read"
SCHEMA = pa.schema(
    [("id", pa.int64()), ("ts", pa.timestamp("us")), ("region", pa.string()), ("v", pa.int64())]
)


def visits(numbers: Sequence[int], v: int = 0) -> pa.Table:
    times = [dt.datetime(2025, 1, 1) + dt.timedelta(hours=7 * n) for n in numbers]
    regions = [f"r{n % 2}" for n in numbers]
    return pa.table([list(numbers), times, regions, [v] * len(numbers)], schema=SCHEMA)


@pytest.fixture
def catalog(bucket: Bucket, tmp_path: Path) -> Iterator[SqlCatalog]:
    properties = {
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{bucket.name}/warehouse",
        "s3.endpoint": bucket.endpoint,
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "s3.region": REGION,
    }
    with closing(SqlCatalog("lake", **properties)) as found:
        found.create_namespace("db")
        yield found


@pytest.mark.parametrize(
    ("engine", "mode"),
    [("arrow", COW), ("arrow", MOR), ("duckdb", MOR), pytest.param("spark", MOR, marks=pytest.mark.spark)],
    indirect=["engine"],
)
def test_a_table_in_a_bucket_has_every_operation(
    bucket: Bucket, catalog: SqlCatalog, engine: Any, mode: str
) -> None:
    made = catalog.create_table("db.visits", SCHEMA)
    with made.update_spec() as spec:
        spec.add_field("ts", DayTransform(), "day")
    target = it.iceberg("db.visits", catalog=catalog)
    how: dict[str, Any] = {"engine": engine}
    expected = dict.fromkeys(range(20), 0)

    def check() -> None:
        read = catalog.load_table("db.visits").scan().to_arrow()
        assert sorted(zip(*read.select(["id", "v"]).to_pydict().values(), strict=True)) == sorted(
            expected.items()
        )

    it.write(visits(range(10)), target, **how)
    with catalog.load_table("db.visits").update_spec() as spec:
        spec.add_field("region", IdentityTransform(), "region")
    it.write(visits(range(10, 20)), target, **how)
    check()
    result = it.merge(visits([3, 13, 23], v=1), target, on="id", mode=mode, **how)
    assert (result.updated, result.inserted) == (2, 1)
    expected |= {3: 1, 13: 1, 23: 1}
    check()
    assert it.update(target, {"v": "v + 5"}, "id % 4 = 1", mode=mode, **how).updated == 5
    expected = {n: v + 5 if n % 4 == 1 else v for n, v in expected.items()}
    check()
    assert it.delete(target, "id in (2, 12)", mode=mode, **how).deleted == 2
    del expected[2], expected[12]
    check()
    it.compact(target, **how)
    check()
    it.write(visits([4, 14], v=-1), target, **how)
    assert it.deduplicate(target, on=["id"], order_by=["v"], mode=mode, **how).deleted == 2
    check()
    current = catalog.load_table("db.visits")
    assert {task.file.spec_id for task in current.scan().plan_files()} == {current.spec().spec_id}
    assert it.read(target).read_all().num_rows == len(expected)


def test_old_snapshots_and_orphans_leave_the_bucket(bucket: Bucket, catalog: SqlCatalog) -> None:
    catalog.create_table("db.visits", SCHEMA)
    target = it.iceberg("db.visits", catalog=catalog)
    for number in range(3):
        it.write(visits([number]), target, mode="overwrite")
    assert len(bucket.data("warehouse")) == 3
    now = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
    expired = expire_snapshots(target, older_than=now, retain_last=1, dry_run=False)
    assert len(expired.snapshots) == 2
    assert len(bucket.data("warehouse")) == 1
    stray = bucket.data("warehouse")[0].rpartition("/")[0] + "/stray.parquet"
    with bucket.opened.open_output_stream(f"{bucket.name}/{stray}") as sink:
        sink.write(b"nothing")
    found = remove_orphans(target, older_than=now, dry_run=False)
    assert [path.removeprefix(f"{bucket.name}/") for path in found.files] == [stray]
    assert stray not in bucket.files("warehouse")
    assert catalog.load_table("db.visits").scan().to_arrow()["id"].to_pylist() == [2]
