"""UUIDs of Iceberg tables: annotated in data files, and found by their texts."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, FixedType, ListType, LongType, NestedField, UUIDType

import intarsia as it

KEYS = [uuid.UUID(int=(number * 7919 + 1) << 90) for number in range(5)]
BYTES = pa.binary(16)
COLUMNS = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "u", UUIDType()),
    NestedField(3, "l", ListType(4, UUIDType(), element_required=False)),
    NestedField(5, "f", FixedType(16)),
    NestedField(6, "d", DecimalType(9, 2)),
)
STORED = {
    "u": ("UUID", "FIXED_LEN_BYTE_ARRAY"),
    "l.list.element": ("UUID", "FIXED_LEN_BYTE_ARRAY"),
    "f": ("NONE", "FIXED_LEN_BYTE_ARRAY"),
    "d": ("DECIMAL", "INT32"),
}


def _rows(ids: list[int], keys: list[uuid.UUID]) -> pa.Table:
    data = [key.bytes for key in keys]
    return pa.table(
        {
            "id": ids,
            "u": pa.array(data, BYTES),
            "l": pa.array([[one] for one in data], pa.list_(BYTES)),
            "f": pa.array(data, BYTES),
            "d": pa.array([1] * len(ids), pa.decimal128(9, 2)),
        }
    )


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_uuids_are_annotated_and_found_by_text(tmp_path: Path, engine: str, mode: str) -> None:
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=tmp_path.as_uri())
    try:
        catalog.create_namespace("n")
        modes = {f"write.{name}.mode": mode for name in ("delete", "update", "merge")}
        catalog.create_table("n.t", COLUMNS, properties=modes)

        def table() -> Any:
            return catalog.load_table("n.t")

        it.write(_rows([0, 1, 2, 3, 4], KEYS), table(), mode="append", engine=engine)
        assert it.delete(table(), f"u = '{KEYS[1]}'", engine=engine).deleted == 1
        assert it.update(table(), {"u": f"uuid '{KEYS[4]}'"}, "id = 0", engine=engine).updated == 1
        assert it.merge(_rows([77], [KEYS[2]]), table(), on="u", engine=engine).updated == 1
        it.compact(table(), engine=engine)
        assert sorted(table().scan().to_arrow()["id"].to_pylist()) == [0, 3, 4, 77]
        found = table().scan(row_filter=f"u == '{KEYS[4]}'").to_arrow()
        assert sorted(found["id"].to_pylist()) == [0, 4]
    finally:
        catalog.close()
    for path in tmp_path.rglob("*.parquet"):
        schema = pq.read_metadata(path).schema
        leaves = {leaf.path: leaf for leaf in map(schema.column, range(len(schema)))}
        if "u" in leaves:  # and no delete file
            kinds = {name: (leaf.logical_type.type, leaf.physical_type) for name, leaf in leaves.items()}
            assert {name: kinds[name] for name in STORED} == STORED
