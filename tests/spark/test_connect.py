"""Spark Connect: a client without a JVM of its own passes the core of what a classic session passes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import intarsia as it
from intarsia.errors import NotSupported
from intarsia.spark import find_java
from tests import sampling

TESTS = Path(__file__).parents[1]
FULL = os.environ.get("INTARSIA_SPARK") == "full"
STREAMS = [
    "spark/test_streaming.py::test_where_the_id_of_a_query_cannot_be_told_an_app_id_is_asked_for_at_once",
    "spark/test_streaming.py::test_a_query_has_every_batch_once_though_spark_gives_one_again",
]
SEEN = (
    "spark/test_session_refresh.py::test_what_was_read_before_sees_what_it_sees_after_a_write_of_sparks_own"
)
CATALOG = [
    f"spark/test_catalog_tables.py::{name}"
    for name in (
        "test_a_merge_registers_partitions_that_are_new",
        "test_a_new_column_is_added_to_the_catalog",
        "test_statistics_that_no_longer_hold_are_dropped",
        "test_partitions_with_locations_of_their_own_are_refused",
        "test_an_iceberg_table_is_opened_by_the_settings_of_its_catalog",
    )
]
FORMAT = [
    "spark/test_format_read.py::test_a_dataset_has_the_rows_and_types_of_read",
    "spark/test_format_write.py::test_rows_are_merged_by_key_in_one_commit",
    "spark/test_format_write.py::test_spark_raises_the_text_of_the_error_among_its_first_lines",
    "spark/test_format_stream.py::test_a_query_that_spark_repeats_is_written_once",
]
NATIVE = [
    f"spark/test_native_read.py::{name}"
    for name in (
        "test_filters_and_columns_of_spark_reach_the_files",
        "test_a_frame_gives_the_state_of_the_call_after_a_commit",
        "test_a_frame_of_a_state_that_is_given_up_fails",
    )
]
TABLES = [
    "pipeline/test_spark_table_targets.py::test_steps_write_and_read_tables_of_the_catalog",
    "pipeline/test_spark_table_targets.py::test_a_stream_is_merged_into_a_table_of_the_catalog",
]
BRIEF = [
    "contract/test_merge_strategies.py::test_a_strategy_leaves_the_rows_it_promises",
    "contract/test_delete_where.py",
    "spark/test_dataset_io.py",
    "spark/test_spark_read.py",
    *NATIVE,
    *CATALOG,
    TABLES[0],
    *FORMAT,
    "spark/test_int96.py::test_s26_spark_sees_the_same_wall_time_before_and_after_every_operation",
    SEEN,
    *STREAMS,
]
"""What the default run has time for; ``make spark`` runs the core."""
FIRST = [*BRIEF[:2], *NATIVE, CATALOG[0], TABLES[0], *FORMAT, SEEN, *STREAMS]
"""What few have time for."""
CORE = [
    "contract/test_merge_strategies.py::test_a_strategy_leaves_the_rows_it_promises",
    "contract/test_merge_matched.py",
    "contract/test_write_modes.py",
    "contract/test_delete_where.py",
    "contract/test_update_set.py",
    "contract/test_compact_files.py::test_small_files_become_one_with_rows_in_order",
    "contract/test_optimize_order.py::test_one_column_is_a_sort_with_nulls_last",
    "spark/test_dataset_io.py",
    "spark/test_spark_read.py",
    "spark/test_native_read.py",
    "spark/test_catalog_tables.py",
    *TABLES,
    *FORMAT,
    "spark/test_int96.py",
    "spark/test_dataframes.py::test_a_strategy_leaves_the_rows_it_promises",
    "spark/test_routed_sources.py::test_a_strategy_gives_what_it_gives_in_process",
    "spark/test_routed_sources.py::test_clauses_and_conditions_decide_as_in_process",
    "spark/test_session_refresh.py",
    "pipeline/test_computed_on_spark.py",
    *STREAMS,
    "spark/test_streaming.py::test_a_query_adds_every_batch_to_an_iceberg_table_once_though_spark_gives_one_again",
    *(
        f"pipeline/test_stream_sources.py::{name}"
        for name in (
            "test_each_run_takes_what_is_new_and_the_report_adds_up_the_batches",
            "test_a_batch_that_spark_gives_again_takes_effect_once",
            "test_a_query_over_a_stream_joins_what_stands_still",
            "test_a_bad_record_fails_its_batch_and_those_before_stay",
            "test_the_package_of_a_format_that_is_missing_is_named",
        )
    ),
]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a server; skips where pyspark, what Connect needs, or Java is missing."""
    for package in ("pyspark", "grpc"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    try:
        find_java()
    except NotSupported as error:
        pytest.skip(f"Spark cannot start: {error}")
    port = _free_port()
    command = [sys.executable, str(Path(__file__).with_name("connect_server.py")), str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield f"sc://127.0.0.1:{port}"
        process.stdin.close()
        process.wait(60)


def _without_java() -> dict[str, str]:
    """The environment of a client, in which a JVM of its own could not start."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return environment | {"JAVA_HOME": "/nonexistent"}


PIPELINE = """
name = "shop"

[sources.landing]
path = "landing/*.csv"
columns = { id = "bigint", amount = "double" }

[targets.orders]
path = "lake/orders"

[spark.config]
"spark.sql.shuffle.partitions" = 3
"spark.executor.memory" = "7g"
"spark.sql.extensions" = "none.Such"

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
where = "amount < 0"
"""


@pytest.mark.spark
@pytest.mark.slow
def test_a_pipeline_runs_on_a_connect_server(server: str, tmp_path: Path, rows: Any) -> None:
    pytest.importorskip("click", reason="click is not installed")
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.csv").write_text("id,amount\n1,5\n2,-5\n3,7\n")
    (tmp_path / "shop.toml").write_text(PIPELINE)
    command = [sys.executable, "-m", "intarsia", "run", "shop.toml", "--master", server, "--json"]
    statuses = []
    for opened in (True, False):  # a run in which nothing changed opens no session
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=_without_java(),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        report = json.loads(done.stdout)
        assert report["session"].endswith(", Connect") == opened
        warned = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
        assert len(warned) == opened, done.stderr
        assert all("spark.executor.memory, spark.sql.extensions cannot be set" in line for line in warned)
        statuses.append([step["status"] for step in report["steps"]])
    assert statuses == [["done", "done"], ["unchanged", "unchanged"]]
    assert rows(tmp_path / "lake" / "orders") == [{"id": 1, "amount": 5.0}, {"id": 3, "amount": 7.0}]


MODULE = """
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType

import helpers
from intarsia import pipeline

shop = pipeline.Pipeline("module")
shop.files("landing", "a.csv", columns={"id": "bigint", "amount": "double"})


@shop.source
def scored(spark, landing):
    def late(amount):
        import late_rules

        return amount + late_rules.EXTRA

    scale, later = F.udf(helpers.scale, DoubleType()), F.udf(late, DoubleType())
    return landing.select("id", scale("amount").alias("a"), later("amount").alias("b"))


shop.merge(scored, into="lake/scores", on="id")
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.more  # programs of its own; the pipeline above has none beside it
def test_modules_beside_a_python_pipeline_reach_a_connect_server(
    server: str, tmp_path: Path, rows: Any
) -> None:
    pytest.importorskip("click", reason="click is not installed")
    (tmp_path / "a.csv").write_text("id,amount\n1,5\n")
    (tmp_path / "helpers.py").write_text("def scale(amount):\n    return amount * 10\n")
    (tmp_path / "late_rules.py").write_text("EXTRA = 100\n")
    (tmp_path / "shop.py").write_text(MODULE)
    command = [sys.executable, "-m", "intarsia", "run", "shop.py", "--master", server]
    done = subprocess.run(
        command, cwd=tmp_path, env=_without_java(), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert rows(tmp_path / "lake" / "scores") == [{"id": 1, "a": 50.0, "b": 105.0}]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_connect_server_passes_the_core_of_the_contract(server: str) -> None:
    environment = _without_java() | {"INTARSIA_SPARK_REMOTE": server}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "spark", "-p", "no:cacheprovider", "-n0"]
    core = CORE if FULL else FIRST if sampling.FEW else BRIEF
    command += [f"--rootdir={TESTS.parent}", "--timeout=600", *core]
    done = subprocess.run(
        command, cwd=TESTS, env=environment, capture_output=True, text=True, timeout=7100, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > (80 if FULL else sampling.choose_number(10, 20))
    assert "skipped" not in done.stdout


INTERRUPTED = """
import signal, sys, intarsia as it
from intarsia.spark import open_session
def say(word): print(word, flush=True)
master, operation, path = sys.argv[1:]
spark = open_session(master)
rows = spark.range(0, 300_000, 1, 8).selectExpr("id * 2 as id", "cast(id as string) as a")
told = {"engine": spark, "progress": lambda step, *_: say(step)}
say("working")
try:
    match operation:
        case "merge": it.merge(rows, path, on="id", **told)
        case "write": it.write(rows, path, **told)
        case "update": it.update(path, {"a": "a || 'x'"}, "id % 3 = 0", **told)
        case "compact": it.compact(path, **told)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    say("done")
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    say("interrupted")
assert spark.range(7).count() == 7
say("usable")
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "step"),
    [
        ("merge", "read source"),
        ("merge", "probe and write files"),
        ("write", "read source"),
        ("update", "probe and write files"),
        ("compact", "write files"),
        ("compact", "commit"),
    ],
)
def test_ctrl_c_ends_an_operation_on_a_connect_server(
    server: str, tmp_path: Path, leftovers: Any, rows: Any, operation: str, step: str
) -> None:
    ids = range(300_000)
    it.write(
        pa.table({"id": ids, "a": [str(n) for n in ids]}),
        tmp_path / "t",
        max_rows_per_file=20_000,
        engine="arrow",
    )
    before = sorted((file.name, file.stat().st_ino) for file in (tmp_path / "t").iterdir())
    command = [sys.executable, "-c", INTERRUPTED, server, operation, str(tmp_path / "t")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=_without_java(), start_new_session=True
    ) as program:
        assert program.stdout is not None
        next(line for line in program.stdout if line.strip() == step)
        time.sleep(0 if step == "commit" else 0.5)
        pressed = time.monotonic()
        os.killpg(program.pid, signal.SIGINT)
        told = {line.strip(): time.monotonic() - pressed for line in program.stdout}
    assert program.returncode == 0
    assert "usable" in told
    assert "done" in told or told["interrupted"] < 10  # seconds; one or two are what it takes
    after = sorted((file.name, file.stat().st_ino) for file in (tmp_path / "t").iterdir())
    assert "commit" in (step, *told) or "done" in told or after == before
    assert it.recover(tmp_path / "t") == ()
    assert leftovers(tmp_path / "t") == []
    assert operation != "compact" or it.inspect(tmp_path / "t").rows == 300_000
