"""Spark Declarative Pipelines: a project of ``spark-pipelines`` upserts through a sink, reads our tables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.errors import NotSupported
from intarsia.spark import find_java

SPEC = """\
name: shop
storage: file://{root}/storage
libraries:
  - glob:
      include: transformations/**
"""
FLOWS = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
dp.create_sink("orders", format="intarsia", options={{"path": "{root}/lake/orders", "on": "id"}})


@dp.append_flow(target="orders")
def changed_orders():
    landing = spark.readStream.schema("id long, state string").option("maxFilesPerTrigger", 1)
    return landing.json("{root}/landing")


@dp.materialized_view
def open_customers():
    return spark.read.format("intarsia").load("{root}/lake/customers").where("open")
"""
TWO_FLOWS = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
dp.create_sink("orders", format="intarsia", options={{"path": "{root}/lake/orders", "on": "id"}})


@dp.append_flow(target="orders")
def changed_orders():
    return spark.readStream.schema("id long, state string").json("{root}/landing")


@dp.append_flow(target="orders")
def more_orders():
    return spark.readStream.schema("id long, state string").json("{root}/more")
"""


def find_java_home() -> str:
    try:
        return find_java().home
    except NotSupported as error:
        pytest.skip(f"Spark cannot start: {error}")


def run_pipelines(project: Path, *arguments: str) -> None:
    scripts = Path(sys.executable).parent
    environment = {
        **os.environ,
        "JAVA_HOME": find_java_home(),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
    }
    for name in ("SPARK_REMOTE", "SPARK_HOME", "SPARK_CONNECT_MODE_ENABLED"):
        environment.pop(name, None)
    done = subprocess.run(
        [str(scripts / "spark-pipelines"), "run", *arguments],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def read_states(orders: str) -> dict[int, str]:
    return {row["id"]: row["state"] for row in it.read(orders).read_all().to_pylist()}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_pipeline_upserts_into_plain_parquet_and_reads_it(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="spark-pipelines needs pyyaml")
    (tmp_path / "transformations").mkdir()
    (tmp_path / "landing").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(root=tmp_path))
    (tmp_path / "transformations" / "orders.py").write_text(FLOWS.format(root=tmp_path))
    (tmp_path / "landing" / "0.json").write_text('{"id": 1, "state": "open"}\n{"id": 2, "state": "open"}')
    (tmp_path / "landing" / "1.json").write_text('{"id": 2, "state": "paid"}\n{"id": 3, "state": "open"}')
    os.utime(
        tmp_path / "landing" / "0.json", (1_000_000_000, 1_000_000_000)
    )  # Spark takes the older one first
    orders, customers = str(tmp_path / "lake" / "orders"), str(tmp_path / "lake" / "customers")
    it.write(pa.table({"id": [1, 9], "state": ["new", "kept"]}), orders, engine="arrow")
    it.write(pa.table({"id": [1, 2], "open": [True, False]}), customers, engine="arrow")

    run_pipelines(tmp_path)

    assert read_states(orders) == {1: "open", 2: "paid", 3: "open", 9: "kept"}
    assert pq.read_table(tmp_path / "spark-warehouse" / "open_customers")["id"].to_pylist() == [1]


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_further_runs_take_what_is_new_and_a_full_refresh_takes_all_again(tmp_path: Path) -> None:
    """Several flows have one sink; what was changed between runs stays, until a full refresh."""
    pytest.importorskip("yaml", reason="spark-pipelines needs pyyaml")
    for name in ("transformations", "landing", "more"):
        (tmp_path / name).mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(root=tmp_path))
    (tmp_path / "transformations" / "orders.py").write_text(TWO_FLOWS.format(root=tmp_path))
    (tmp_path / "landing" / "0.json").write_text('{"id": 1, "state": "open"}')
    (tmp_path / "more" / "0.json").write_text('{"id": 20, "state": "other"}')
    orders = str(tmp_path / "lake" / "orders")
    it.write(pa.table({"id": [9], "state": ["kept"]}), orders, engine="arrow")

    run_pipelines(tmp_path)
    assert read_states(orders) == {1: "open", 9: "kept", 20: "other"}

    it.update(orders, {"state": "'by hand'"}, "id = 1", engine="arrow")
    (tmp_path / "landing" / "1.json").write_text('{"id": 2, "state": "second"}')
    run_pipelines(tmp_path)
    assert read_states(orders) == {1: "by hand", 2: "second", 9: "kept", 20: "other"}

    run_pipelines(tmp_path, "--full-refresh-all")
    assert read_states(orders) == {1: "open", 2: "second", 9: "kept", 20: "other"}
