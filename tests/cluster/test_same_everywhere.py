"""One pipeline file on a local session, a standalone cluster, by spark-submit and on Spark Connect.

The tables are the same, and the reports are but for times and paths. As long as that takes: ``make cluster``.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import shop_project as shop
from cluster_processes import HOST, SECONDS, SETTINGS, Cluster, die_with_parent, end, environment

from intarsia.pipeline import submit

pytest.importorskip("pyiceberg")
pytest.importorskip("click")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not os.environ.get("INTARSIA_CLUSTER"), reason="make cluster runs it"),
    pytest.mark.skipif(sys.platform != "linux", reason="the workers are on two addresses of Linux' loopback"),
]

SERVER = Path(__file__).parents[1] / "spark" / "connect_server.py"
Command = Sequence[str]


def run(root: Path, command: Command, environ: dict[str, str]) -> None:
    done = subprocess.run(
        command, cwd=root, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def run_twice(root: Path, command: Command, environ: dict[str, str]) -> None:
    """A run, and one that finds nothing new."""
    shop.make(root)
    settings = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in SETTINGS.items()]
    with open(root / "shop.toml", "a") as file:
        file.write("\n".join(["[spark.config]", *settings, ""]))
    run(root, command, environ)
    run(root, command, environ)


@contextmanager
def serve(place: Path, master: str) -> Iterator[str]:
    """The URL of a Connect server whose executors are the cluster's."""
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    with (
        open(place / "server.log", "wb") as log,
        subprocess.Popen(
            [sys.executable, str(SERVER), str(port), master, json.dumps(SETTINGS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment(place, HOST),
            cwd=place,
            start_new_session=True,
            preexec_fn=die_with_parent,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", (place / "server.log").read_text()[-3000:]
            yield f"sc://{HOST}:{port}"
        finally:
            end(process)


def test_the_same_file_makes_the_same_tables_and_reports_everywhere(cluster: Cluster, tmp_path: Path) -> None:
    environ = environment(tmp_path, HOST)
    command = [sys.executable, "-m", "intarsia", "run", "shop.toml", "--master"]
    submitted = [f"{environ['SPARK_HOME']}/bin/spark-submit", "--master", cluster.url, submit.__file__]
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    places = {name: tmp_path / f"shop-{name}" for name in ("local", "cluster", "submit", "connect")}

    run_twice(places["local"], [*command, "local[2]"], environ)
    run_twice(places["cluster"], [*command, cluster.url], environ)
    run_twice(places["submit"], [*submitted, "shop.toml"], environ | python)
    with serve(tmp_path, cluster.url) as url:
        run_twice(places["connect"], [*command, url], environ | {"JAVA_HOME": "/nonexistent"})

    expected = shop.expect_tables(1)
    for name, root in places.items():
        assert shop.read_tables(root) == expected, name
    reports = {name: shop.read_reports(root) for name, root in places.items()}
    assert [report["status"] for report in reports["local"]] == [
        "done, 2 warnings",  # rows in quarantine
        "done, nothing had changed",
    ]
    for name in ("cluster", "submit", "connect"):
        assert reports[name] == reports["local"], name
