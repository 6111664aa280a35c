from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import intarsia as it
from intarsia.errors import ColumnNotFound, InputError, NothingMatched, NotSupported
from intarsia.integrations.duckdb import list_files, relation
from intarsia.tables.iceberg import embedded_catalog


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    it.write(
        pa.table({"id": range(1000), "day": [i // 100 for i in range(1000)]}),
        tmp_path / "lake",
        partition_by="day",
    )
    return tmp_path / "lake"


def test_a_relation_is_read_whenever_it_is_evaluated(lake: Path, connection: Any) -> None:
    orders = relation(lake, connection)
    assert orders.aggregate("count(*), sum(id)").fetchall() == [(1000, 499_500)]
    it.delete(lake, "id >= 10")
    assert orders.aggregate("count(*), sum(id)").fetchall() == [(10, 45)]
    assert orders.filter("id > 7").order("id").fetchall() == [(8, 0), (9, 0)]


def test_a_relation_of_a_snapshot_stays_as_it_is_and_prunes(lake: Path, connection: Any) -> None:
    state = relation(it.snapshot(lake), connection)
    assert state.filter("day = 9 and id < 902").project("id, day").order("id").fetchall() == [
        (900, 9),
        (901, 9),
    ]
    it.delete(lake, "id >= 10")
    it.update(lake, {"id": "id + 5000"})
    assert state.aggregate("count(*), max(id)").fetchall() == [(1000, 999)]
    assert "Filters" in state.filter("id = 5").explain()
    with pytest.raises(InputError, match="of all rows"):
        relation(it.snapshot(lake), connection, where="id = 5")


def test_a_relation_is_a_view_that_queries_join(lake: Path, connection: Any) -> None:
    relation(lake, connection).create_view("orders")
    query = "select count(*) from orders join orders as others using (id) where orders.day = 3"
    assert connection.sql(query).fetchall() == [(100,)]


def test_columns_and_a_condition_prune_files(lake: Path, connection: Any) -> None:
    for file in lake.glob("day=[0-8]/*.parquet"):
        file.write_bytes(
            b"\xff" * 4 + file.read_bytes()[4:40].translate(b"\xff" * 256) + file.read_bytes()[40:]
        )
    few = relation(lake, connection, columns="id", where="day = 9 and id < 902")
    assert few.fetchall() == [(900,), (901,)]
    with pytest.raises(duckdb.Error, match="Cannot read day=0"):
        relation(lake, connection).fetchall()


def test_a_relation_is_a_source_for_its_own_table(lake: Path, connection: Any) -> None:
    later = relation(lake, connection, where="day = 9").project("id + 1000 as id, day")
    assert it.merge(later, lake, on="id").inserted == 100


def test_deletes_of_an_iceberg_table_are_applied(tmp_path: Path, connection: Any) -> None:
    catalog = embedded_catalog(tmp_path / "warehouse")
    catalog.create_namespace("shop")
    rows = pa.table({"id": range(10)})
    table = catalog.create_table("shop.orders", rows.schema)
    it.write(rows, table)
    orders = relation(table, connection)
    it.delete(table, "id % 2 = 0", mode="merge-on-read")
    assert orders.order("id").fetchall() == [(1,), (3,), (5,), (7,), (9,)]


def test_types_are_those_of_duckdb(tmp_path: Path, connection: Any) -> None:
    odd = pa.table(
        {
            "zone": pa.array([0], pa.timestamp("us", "Europe/Paris")),
            "price": pa.array([1], pa.decimal128(12, 2)),
            "tags": pa.array([["a", None]], pa.list_(pa.string())),
            "kind": pa.array(["x"]).dictionary_encode(),
            "took": pa.array([1], pa.duration("us")),
        }
    )
    it.write(odd, tmp_path / "odd")
    found = relation(tmp_path / "odd", connection)
    assert [str(kind) for kind in found.types[:4]] == [
        "TIMESTAMP WITH TIME ZONE",
        "DECIMAL(12,2)",
        "VARCHAR[]",
        "VARCHAR",
    ]
    assert found.project("epoch_us(zone), price, tags, kind").fetchall()[0][2] == ["a", None]


def test_files_of_a_snapshot_and_of_a_result_are_relations(lake: Path, connection: Any) -> None:
    result = it.merge(pa.table({"id": [5, 905], "day": [0, 9]}), lake, on="id")
    touched = list_files(result, connection).filter("operation = 'rewritten'")
    assert touched.aggregate("count(*), sum(rows)").fetchall() == [(2, 200)]
    every = list_files(it.snapshot(lake), connection)
    assert every.aggregate("count(*), sum(rows)").fetchall() == [(10, 1000)]
    assert every.set_alias("e").join(touched.set_alias("t"), "e.path = t.path").aggregate(
        "count(*)"
    ).fetchall() == [(2,)]


def test_what_does_not_fit_is_told_when_the_relation_is_made(
    tmp_path: Path, lake: Path, connection: Any
) -> None:
    with pytest.raises(NothingMatched):
        relation(tmp_path / "none", connection)
    with pytest.raises(ColumnNotFound):
        relation(lake, connection, columns=["name"])
    it.write(pa.table({"half": pa.array([1.0], pa.float16())}), tmp_path / "half")
    with pytest.raises(NotSupported, match="DuckDB lacks the type"):
        relation(tmp_path / "half", connection)


def test_other_columns_than_before_end_the_evaluation(lake: Path, connection: Any) -> None:
    orders = relation(lake, connection)
    it.merge(
        pa.table({"id": [1], "day": [0], "n": ["a"]}), lake, on="id", schema_evolution="add", missing="null"
    )
    with pytest.raises(duckdb.Error, match="make the relation again"):
        orders.fetchall()
