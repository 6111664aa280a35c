"""``it.spark_table`` on a Hive metastore: Spark's own jars with Derby, in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        os.environ.get("INTARSIA_SPARK") != "full", reason="needs a JVM of its own: make spark runs it"
    ),
]
DRIVER = """\
import json, sys
import intarsia as it
from intarsia.spark import prepare_environment
from pyspark.sql import SparkSession

root = sys.argv[1]
prepare_environment()
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").enableHiveSupport()
builder = builder.config("spark.sql.warehouse.dir", f"file:{root}/warehouse")
derby = f"jdbc:derby:;databaseName={root}/metastore;create=true"
spark = builder.config("spark.hadoop.javax.jdo.option.ConnectionURL", derby).getOrCreate()
spark.sql("create table orders (id bigint, n string, day string) using parquet partitioned by (day)")
spark.sql("insert into orders values (1, 'a', 'mon')")
spark.sql("create table of_hive (id bigint) stored as parquet")
changes = spark.createDataFrame([(1, "a2", "mon"), (2, "b", "tue")], "id long, n string, day string")
merged = it.merge(changes, it.spark_table("orders", session=spark), on="id")
try:
    it.spark_table("of_hive", session=spark)
    refused = ""
except it.errors.NotSupported as error:
    refused = str(error)
found = {
    "catalog": spark.conf.get("spark.sql.catalogImplementation"),
    "merged": [merged.inserted, merged.updated],
    "rows": sorted(map(list, spark.table("orders").collect())),
    "partitions": sorted(row.partition for row in spark.sql("show partitions orders").collect()),
    "refused": refused,
}
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_merge_registers_partitions_in_a_hive_metastore(tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(f"import intarsia.errors\n{DRIVER}")
    done = subprocess.run(
        [sys.executable, "driver.py", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert "is of the format hive, which cannot be changed here" in found.pop("refused")
    assert found == {
        "catalog": "hive",
        "merged": [1, 1],
        "rows": [[1, "a2", "mon"], [2, "b", "tue"]],
        "partitions": ["day=mon", "day=tue"],
    }
