"""Queries and functions as sources on Spark: lazily, with the caller's session left as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import intarsia as it
from intarsia import pipeline
from intarsia.errors import InputError
from intarsia.pipeline import Merge, Source, Target

pytest.importorskip("pyspark", reason="pyspark is not installed: pipelines are not run on Spark")

QUERY = """\
select c.country, cast(sum(o.amount) as double) as total, max(${note}) as note, '{x}' as braces
from Orders o
join orders again on o.id = again.id
join named c on o.customer = c.customer
where o.amount >= ${least}
group by c.country"""

SCORE = """
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType

FACTOR = 2.0

def double(amount):
    return amount * FACTOR

def score(spark, orders, factor=1):
    assert spark.range(1).count() == 1
    twice = F.udf(double, DoubleType())
    return orders.groupBy("customer").agg(F.sum(twice("amount")).alias("total"))
"""


@pytest.fixture
def shop(tmp_path: Path) -> pipeline.Pipeline:
    (tmp_path / "orders.csv").write_text("id,customer,amount\n1,ann,20\n2,bob,5\n3,ann,7\n4,cid,0\n")
    (tmp_path / "customers.csv").write_text("customer,country\nann,France\nbob,Peru\ncid,Peru\n")
    (tmp_path / "transforms.py").write_text(SCORE)
    (tmp_path / "lake").mkdir()
    columns = {"id": "bigint", "customer": "varchar", "amount": "double"}
    return pipeline.Pipeline(
        name="shop",
        sources={
            "landing": Source(str(tmp_path / "orders.csv"), columns=columns),
            "customers": Source(str(tmp_path / "customers.csv")),
            "named": Source(sql="select * from customers where country <> ''", derive={"n": "1"}),
            "revenue": Source(sql=QUERY, params={"least": 1, "note": "it's '; drop \" {y} :z"}),
            "scores": Source(python=f"{tmp_path / 'transforms.py'}:score", where="total > 0"),
        },
        targets={
            name: Target(str(tmp_path / "lake" / name)) for name in ("orders", "countries", "customer_scores")
        },
        steps=(
            Merge(name="revenue", source="revenue", target="countries", on="country"),
            pipeline.Expect(name="sound", source="scores", unique="customer", min_rows=2),
            Merge(name="scores", source="scores", target="customer_scores", on="customer"),
            Merge(name="orders", source="landing", target="orders", on="id"),
        ),
        reports=str(tmp_path / "reports"),
    )


def _run(made: pipeline.Pipeline, spark: Any, **options: Any) -> dict[str, str]:
    report = pipeline.run(made, session=spark, progress=False, **options).check()
    return {step.name: step.status for step in report.steps}


def test_queries_and_functions_run_once_and_leave_the_session_as_it_was(
    shop: pipeline.Pipeline, spark: Any, rows: Any, tmp_path: Path, tree_digest: Any
) -> None:
    spark.createDataFrame([(9,)], ["mine"]).createOrReplaceTempView("orders")
    try:
        before = sorted(table.name for table in spark.catalog.listTables())
        files = tree_digest(tmp_path)
        planned = _run(shop, spark, dry_run=True)
        assert tree_digest(tmp_path) == files
        assert set(planned.values()) == {"planned"}
        assert list(_run(shop, spark)) == ["orders", "revenue", "sound", "scores"]
        assert sorted(table.name for table in spark.catalog.listTables()) == before
        assert spark.table("orders").columns == ["mine"]
    finally:
        spark.catalog.dropTempView("orders")
    note = "it's '; drop \" {y} :z"
    assert rows(tmp_path / "lake" / "countries") == [
        {"country": "France", "total": 27.0, "note": note, "braces": "{x}"},
        {"country": "Peru", "total": 5.0, "note": note, "braces": "{x}"},
    ]
    assert rows(tmp_path / "lake" / "customer_scores") == [
        {"customer": "ann", "total": 54.0},
        {"customer": "bob", "total": 10.0},
    ]
    assert set(_run(shop, spark).values()) == {"unchanged"}
    (tmp_path / "transforms.py").write_text(SCORE.replace("FACTOR = 2.0", "FACTOR = 3.0"))
    done = {"orders": "unchanged", "revenue": "unchanged", "sound": "done", "scores": "done"}
    assert _run(shop, spark) == done
    assert rows(tmp_path / "lake" / "customer_scores")[0]["total"] == 81.0


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Source(sql="select *\nfrom orders\nwhere amont > 1"), ["revenue] sql, line 3: Spark", "amont"]),
        ("def score(orders):\n    return orders.select('amont')", ["score, line 2: Spark", "amont"]),
        ("def score(orders):\n    raise ValueError('x')", ["transforms.py:score, line 2 failed: ValueError"]),
        (
            "def double(x):\n    raise ValueError('bad row')\n\n"
            "def score(orders):\n    from pyspark.sql.functions import udf\n"
            "    bad = udf(double)('customer').alias('country')\n"
            "    return orders.selectExpr('*', '1.0 as total').select('*', bad)",
            ["transforms.py:score, line 2: The source", "ValueError: bad row"],
        ),
        (Source(sql="select id,\ncast(customer as int) as country from orders"), ["sql, line 2: The"]),
        ("def score(orders): ...", ["transforms.py:score, line 1 returned None"]),
        ("def score(orders):\n    return orders.collect()", ["returned a list", "a DataFrame of Spark"]),
    ],
)  # fmt: skip
def test_what_spark_refuses_fails_the_step_before_it_writes(
    shop: pipeline.Pipeline, spark: Any, tmp_path: Path, source: Any, words: list[str]
) -> None:
    if isinstance(source, str):
        (tmp_path / "transforms.py").write_text(source)
        source = shop.sources["scores"]
    shop = replace(shop, sources={**shop.sources, "revenue": source}, steps=(shop.steps[3], shop.steps[0]))
    it.merge(pa.table({"id": [1], "customer": ["ann"], "amount": [1.0]}), tmp_path / "lake/orders", on="id")
    report = pipeline.run(shop, session=spark, progress=False)
    assert report.failed is not None
    error = report.failed.error
    assert isinstance(error, InputError)
    assert [word for word in words if word not in str(error)] == []
    assert not (tmp_path / "lake" / "countries").exists()
    # of a query it is known before the step above runs
    assert report.steps[0].status == ("not run" if "amont" in str(source.sql) else "done")


def test_an_iceberg_table_is_read_by_a_query_without_its_deleted_rows(
    spark: Any, tmp_path: Path, rows: Any
) -> None:
    pytest.importorskip("pyiceberg")
    from intarsia.tables.iceberg.catalog import embedded_catalog

    catalog = embedded_catalog(str(tmp_path / "warehouse"))
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", pa.schema([("id", pa.int64()), ("v", pa.string())]))
    orders = it.iceberg("shop.orders", catalog=catalog)
    it.merge(pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]}), orders, on="id")
    made = pipeline.Pipeline(
        name="copy",
        sources={"all": Source(sql="select id, upper(v) as v from orders")},
        targets={
            "orders": Target("shop.orders", kind="iceberg", catalog=str(tmp_path / "warehouse")),
            "copy": Target(str(tmp_path / "copy")),
        },
        steps=(Merge(name="copy", source="all", target="copy", on="id", strategy="full_merge"),),
        reports=str(tmp_path / "reports"),
    )
    it.delete(orders, "id = 2", mode="merge-on-read")
    assert _run(made, spark) == {"copy": "done"}
    assert rows(tmp_path / "copy") == [{"id": 1, "v": "A"}, {"id": 3, "v": "C"}]
    it.delete(orders, "id = 3", mode="merge-on-read")
    assert _run(made, spark) == {"copy": "done"}
    assert rows(tmp_path / "copy") == [{"id": 1, "v": "A"}]
    assert _run(made, spark) == {"copy": "unchanged"}
