"""The TPC-H benchmark: keys as dbgen gives them, and a run at a tiny scale where there is a generator."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from bench.tpch.data import make_workloads, order_key
from bench.tpch.on_spark import make_statement

ROOT = Path(__file__).parents[2]
GENERATOR = shutil.which("tpchgen-cli", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def _keys(last: int, block: int) -> list[int]:
    sql = f"select {order_key('range', block)} from range(1, {last + 1})"
    return [row[0] for row in duckdb.execute(sql).fetchall()]


def test_orders_have_dbgens_sparse_keys():
    assert _keys(17, 0) == [1, 2, 3, 4, 5, 6, 7, *range(32, 40), 64, 65]


def test_orders_of_an_update_set_have_keys_in_the_gaps_that_dbgen_leaves():
    assert _keys(9, 1) == [9, 10, 11, 12, 13, 14, 15, 40, 41]
    assert not set(_keys(5000, 1)) & set(_keys(5000, 0))


def test_a_refresh_deletes_a_thousandth_of_the_orders_once_each():
    for name in ("RF2", "RF2-spread"):
        orders, lineitem = make_workloads(1)[name].steps
        assert lineitem.keys == ("l_orderkey",)
        found = duckdb.execute(
            f"select count(*), count(distinct o_orderkey) from ({orders.source})"
        ).fetchall()
        assert found == [(1500, 1500)]
        existing = f"select {order_key('range')} as o_orderkey from range(1, 1500001)"
        missing = duckdb.execute(f"select * from ({orders.source}) anti join ({existing}) using (o_orderkey)")
        assert missing.fetchall() == []


def test_peers_on_spark_delete_by_keys_in_one_statement():
    assert make_statement("delete", "t1", "s1", ("l_orderkey",)) == (
        "MERGE INTO t1 t USING s1 s ON t.l_orderkey = s.l_orderkey WHEN MATCHED THEN DELETE"
    )


@pytest.mark.skipif(GENERATOR is None, reason="tpchgen-cli is not installed: make bench-tpch installs it")
def test_results_are_right_at_a_tiny_scale(tmp_path):
    command = [sys.executable, "-m", "bench.tpch", "RF1", "RF2", "--scale", "0.01", "--warm", "0"]
    peers = ["intarsia", "intarsia-mor", "duckdb"]
    done = subprocess.run(
        [*command, "--passes", "1", "--dir", str(tmp_path), "--peers", *peers],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("  right") == 2 * len(peers)
    assert list(tmp_path.rglob("*.parquet")) == []
