"""The page of ``intarsia ui`` over a bucket."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stores_bucket import KEY, REGION, SECRET, Bucket

from intarsia.errors import StorageError
from intarsia.ui.lake import TableRef, open_lake
from intarsia.ui.table_pages import render_card_of, render_tab


@pytest.fixture(autouse=True)
def environment(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", REGION)


def test_tables_of_a_bucket_are_found_and_shown(bucket: Bucket) -> None:
    for key in ("lake/orders/day=1/a.parquet", "lake/orders/day=2/b.parquet", "lake/raw/visits/c.parquet"):
        pq.write_table(pa.table({"id": [1, 2, 3]}), f"{bucket.name}/{key}", filesystem=bucket.opened)
    before = bucket.contents()
    lake = open_lake(f"s3://{bucket.name}/lake")
    found = lake.list_contents().tables
    assert found == (TableRef(("orders",)), TableRef(("raw", "visits")))
    with lake.open_table(found[0]) as table:
        assert "<b>6</b> rows" in render_card_of(found[0], table)
        assert "day=2/b.parquet" in render_tab("files", found[0], table, {}, "lake")
    assert bucket.contents() == before


def test_a_bucket_that_is_not_there_is_an_error_of_the_page(bucket: Bucket) -> None:
    with pytest.raises(StorageError, match="Cannot list s3://no-such-bucket/lake"):
        open_lake("s3://no-such-bucket/lake").list_contents()
