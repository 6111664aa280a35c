"""``row_group_size=`` holds, whoever writes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

TARGET = pa.table({"id": list(range(7_000)), "n": list(range(7_000))})
CHANGES = pa.table({"id": list(range(6_500, 13_000)), "n": [0] * 6_500})

CALLS = {
    "merge": lambda lake, size: lake.merge(CHANGES, on="id", row_group_size=size),
    "append": lambda lake, size: lake.write(CHANGES, row_group_size=size),
    "overwrite": lambda lake, size: lake.write(CHANGES, mode="overwrite", row_group_size=size),
    "overwrite where": lambda lake, size: lake.write(
        CHANGES, mode="overwrite", where="id >= 6500", row_group_size=size
    ),
    "delete": lambda lake, size: lake.delete("id = 3", row_group_size=size),
    "update": lambda lake, size: lake.update({"n": "n + 1"}, "id < 10", row_group_size=size),
    "compact": lambda lake, size: lake.compact(row_group_size=size),
    "optimize": lambda lake, size: lake.optimize(by="n", row_group_size=size),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("size", [1_000, 3_000, 4_096])
def test_the_rows_of_row_groups_are_those_asked_for(parquet_lake, call, size):
    parquet_lake.create(TARGET, files=2)
    before = {name: parquet_lake.identity(name) for name in parquet_lake.files}
    CALLS[call](parquet_lake, size)
    written = [n for n in parquet_lake.files if before.get(n) != parquet_lake.identity(n)]
    assert written
    for name in written:
        footer = pq.read_metadata(parquet_lake.root / name)
        groups = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
        assert len(groups) == -(-footer.num_rows // size)
        assert max(groups) <= size
        if call != "optimize":  # which makes them alike
            assert all(rows == size for rows in groups[:-1])


def test_an_overwrite_keeps_the_sources_not_null_whoever_wrote_before(parquet_lake):
    fixed = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64())])
    parquet_lake.write(TARGET)
    parquet_lake.write(CHANGES.cast(fixed), mode="overwrite")
    assert [field.nullable for field in parquet_lake.snapshot().schema] == [False, True]
