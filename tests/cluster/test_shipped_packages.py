"""spark-submit with everything that executors need in an archive: they have nothing of it installed.

As the page on pipelines tells it for YARN, here on a standalone cluster: ``make cluster``.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cluster_processes import HOST, QUICK, Cluster, environment

from intarsia.pipeline import submit

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not os.environ.get("INTARSIA_CLUSTER"), reason="make cluster runs it"),
    pytest.mark.skipif(sys.platform != "linux", reason="the workers are on two addresses of Linux' loopback"),
]

PIPELINE = """
[sources.landing]
path = "landing/*.csv"
columns = { id = "bigint", amount = "double" }
derive = { kind = "case when amount < 0 then 'debt' else 'sale' end" }

[targets.orders]
path = "lake/orders"
partition_by = "kind"

[[steps]]
name = "upsert"
operation = "merge"
source = "landing"
target = "orders"
on = "id"

[[steps]]
name = "purge"
operation = "delete"
target = "orders"
where = "amount = 7"
"""
AFTER = [{"id": 1, "amount": 5.0, "kind": "sale"}, {"id": 2, "amount": -5.0, "kind": "debt"}]

Submit = Callable[..., "subprocess.CompletedProcess[str]"]


def bare_environment(place: Path, packages: Sequence[str]) -> Path:
    """A virtual environment with copies of some packages and nothing else; its interpreter."""
    venv.create(place, symlinks=True)
    (there,) = place.glob("lib/python*/site-packages")
    for name in packages:
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        shutil.copytree(Path(found.origin).parent, there / name, ignore=shutil.ignore_patterns("__pycache__"))
    return place / "bin" / "python"


@pytest.fixture
def submitted(cluster: Cluster, tmp_path: Path) -> Submit:
    """``submitted(*options, python=..., driver=...)``: the pipeline by spark-submit."""
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.csv").write_text("id,amount\n1,5\n2,-5\n3,7\n")
    (tmp_path / "orders.toml").write_text(PIPELINE)
    environ = environment(tmp_path, HOST)
    settings = {
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.executor.extraJavaOptions": QUICK,
    }

    def submit_it(*options: str, python: str, driver: str) -> subprocess.CompletedProcess[str]:
        command = [f"{environ['SPARK_HOME']}/bin/spark-submit", "--master", cluster.url, *options]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        return subprocess.run(
            [*command, submit.__file__, "orders.toml"],
            cwd=tmp_path,
            env=environ | {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": driver},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    return submit_it


@pytest.mark.timeout(400)
def test_a_packed_environment_is_all_that_executors_need(
    submitted: Submit, tmp_path: Path, rows: Any, leftovers: Any
) -> None:
    bare_environment(tmp_path / "environment", ["intarsia", "pyarrow", "sqlglot"])
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(tmp_path / "environment", arcname=".")
    shutil.rmtree(tmp_path / "environment")  # the driver's directory is no executor's
    shipped = ("--archives", "environment.tar.gz#environment")
    done = submitted(*shipped, python="./environment/bin/python", driver=sys.executable)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert rows(tmp_path / "lake" / "orders") == rows(AFTER)
    assert leftovers(tmp_path / "lake" / "orders") == []


@pytest.mark.timeout(400)
def test_the_package_alone_travels_as_a_zip(submitted: Submit, tmp_path: Path, rows: Any) -> None:
    python = str(bare_environment(tmp_path / "bare", ["pyarrow", "sqlglot"]))
    without = submitted(python=python, driver=sys.executable)
    assert without.returncode == 1
    assert "No module named 'intarsia'" in without.stdout + without.stderr
    assert not (tmp_path / "lake" / "orders").exists()

    package = Path(submit.__file__).parents[1]
    shutil.make_archive(str(tmp_path / "intarsia"), "zip", package.parent, package.name)
    done = submitted("--py-files", "intarsia.zip", python=python, driver=sys.executable)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert rows(tmp_path / "lake" / "orders") == rows(AFTER)
