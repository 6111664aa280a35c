"""Datasets on an object store: every operation for a single writer, and appends for many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from stores_bucket import KEY, REGION, SECRET, Bucket

import intarsia as it
from intarsia.errors import KeyColumnError, NothingMatched, NotSupported, StorageError

WAYS = [
    ("pyarrow", "arrow"),
    ("pyarrow", "duckdb"),
    pytest.param("pyarrow", "spark", marks=pytest.mark.spark),
    ("s3fs", "arrow"),
    ("s3fs", "duckdb"),
]
ROOT = "lake/orders"


def orders(numbers: Sequence[int], v: int = 0) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "region": [f"r{n % 3}" for n in numbers],
            "v": [v] * len(numbers),
        }
    )


@pytest.mark.parametrize(("store", "engine"), WAYS, indirect=True)
def test_a_single_writer_has_every_operation(bucket: Bucket, store: Callable[[], Any], engine: Any) -> None:
    root, how = f"{bucket.name}/{ROOT}", {"engine": engine, "filesystem": store(), "single_writer": True}
    expected = dict.fromkeys(range(60), 0)

    def check() -> None:
        assert bucket.rows(ROOT, "id", "v") == sorted(expected.items())
        assert not [key for key in bucket.files() if "/tx/" in key], "something that was staged is left"

    it.write(orders(range(40)), root, partition_by=["region"], **how)
    it.write(orders(range(40, 60)), root, **how)
    check()
    before = bucket.data(ROOT)
    result = it.merge(orders([1, 4, 61], v=1), root, on=["id", "region"], **how)
    assert (result.updated, result.inserted, len(result.rewritten_files)) == (2, 1, 1)
    assert set(before) < set(bucket.data(ROOT))
    expected |= {1: 1, 4: 1, 61: 1}
    check()
    assert it.delete(root, "id % 10 = 3", **how).deleted == 6
    expected = {n: v for n, v in expected.items() if n % 10 != 3}
    check()
    assert it.update(root, {"v": "v + 5"}, "region = 'r2'", **how).updated
    expected = {n: v + 5 if n % 3 == 2 else v for n, v in expected.items()}
    check()
    it.compact(root, **how)
    check()
    assert len(bucket.data(ROOT)) == 3
    it.optimize(root, by=["v", "id"], **how)
    check()
    it.write(orders([1, 2]), root, **how)
    it.deduplicate(root, on=["id"], order_by=["v"], **how)
    check()
    it.write(orders([7], v=7), root, mode="overwrite", **how)
    expected = {7: 7}
    check()


@pytest.mark.parametrize(("store", "engine"), WAYS, indirect=True)
def test_many_writers_may_add_rows_and_no_more(bucket: Bucket, store: Callable[[], Any], engine: Any) -> None:
    root, how = f"{bucket.name}/{ROOT}", {"engine": engine, "filesystem": store()}
    it.write(orders(range(10)), root, **how)
    assert it.merge(orders(range(5, 15), v=9), root, on="id", strategy="insert", **how).inserted == 5
    assert bucket.rows(ROOT, "id", "v") == [(n, 0 if n < 10 else 9) for n in range(15)]
    before = bucket.contents()
    for change in (
        lambda: it.merge(orders([3], v=1), root, on="id", **how),
        lambda: it.delete(root, "id = 3", **how),
        lambda: it.update(root, {"v": "1"}, "id = 3", **how),
        lambda: it.compact(root, **how),
    ):
        with pytest.raises(NotSupported, match="single_writer=True"):
            change()
        assert bucket.contents() == before


def test_a_mistake_leaves_every_object_as_it_was(bucket: Bucket, store: Callable[[], Any]) -> None:
    root, how = f"{bucket.name}/{ROOT}", {"filesystem": store(), "single_writer": True}
    it.write(orders(range(10)), root, **how)
    before = bucket.contents()
    with pytest.raises(KeyColumnError, match="duplicate"):
        it.merge(orders([3, 3]), root, on="id", **how)
    with pytest.raises(NothingMatched):
        it.delete(f"{root}s", "id = 3", **how)
    assert bucket.contents() == before


def _url(bucket: Bucket, path: str) -> str:
    options = f"scheme=http&endpoint_override=127.0.0.1:{bucket.port}&region={REGION}"
    return f"s3://{KEY}:{SECRET}@{bucket.name}/{path}?{options}"


def test_a_url_names_target_and_source_and_nobody_gets_to_see_its_secret(
    bucket: Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    url = _url(bucket, ROOT)
    told: list[Any] = [it.write(orders(range(10)), url)]
    told.append(it.plan("merge", orders([1], v=1), url, on="id", single_writer=True))
    told.append(it.merge(orders([1], v=1), url, on="id", single_writer=True))
    told += [it.inspect(url), it.snapshot(url), it.merge(url, tmp_path / "copy", on="id")]
    assert it.snapshot(tmp_path / "copy").rows == 10
    assert told[2].rewritten_files[0].startswith(f"s3://{bucket.name}/{ROOT}/")
    for wrong in (
        lambda: it.merge(orders([1]), url, on="nothing", single_writer=True),
        lambda: it.merge(orders([1, 1]), url, on="id", single_writer=True),
        lambda: it.merge(orders([1]), url, on="id"),
        lambda: it.delete(_url(bucket, "elsewhere"), "id = 1"),
        lambda: it.delete(url, "nothing = 1", single_writer=True),
        lambda: it.merge(_url(bucket, "elsewhere"), tmp_path / "copy", on="id"),
        lambda: it.write(orders([1]), _url(bucket, ROOT).replace(bucket.name, "no-such-bucket")),
    ):
        with pytest.raises(
            (KeyColumnError, NotSupported, NothingMatched, StorageError, LookupError)
        ) as caught:
            wrong()
        told.append(caught.value)
    for one in told:
        shown = f"{one} {one!r} {getattr(one, '_repr_html_', str)()} {getattr(one, '__dict__', '')}"
        assert KEY not in shown, type(one)
        assert SECRET not in shown, type(one)
    assert SECRET not in caplog.text
