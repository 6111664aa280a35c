"""dbt with dbt-duckdb: real builds of small projects, run twice, and read by others than intarsia."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

pytest.importorskip("dbt.adapters.duckdb", reason="dbt-duckdb is not installed; make doors DOORS=dbt has it")

from dbt.adapters.duckdb.connections import DuckDBConnectionManager
from dbt.cli.main import dbtRunner

import intarsia as it
from intarsia.integrations.dbt import MACROS
from intarsia.tables.iceberg.catalog import open_catalog

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # dbt's log files and event loop

EXAMPLE = Path(__file__).parents[2] / "examples" / "integrations" / "dbt"
DBT = Path(sys.executable).with_name("dbt")

PROFILE = """
shop:
  target: dev
  outputs:
    dev:
      type: duckdb
      path: "{path}"
      external_root: lake
      plugins:
        - module: intarsia.integrations.dbt
          alias: intarsia
          config: {{catalog: warehouse/}}
"""
PROJECT = """
name: shop
version: "1.0"
profile: shop
flags: {send_anonymous_usage_stats: false}
on-run-start: ["{{ register_intarsia_models() }}"]
"""

Build = Callable[..., dict[str, Any]]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """``build(*arguments, orders="select ...")``: the models written, one dbt build; its results by name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DBT_SEND_ANONYMOUS_USAGE_STATS", "false")
    Path("models").mkdir()
    Path("macros").mkdir()
    shutil.copy(MACROS, "macros/intarsia.sql")
    Path("dbt_project.yml").write_text(PROJECT)
    Path("profiles.yml").write_text(PROFILE.format(path=":memory:"))

    def run(*arguments: str, command: str = "build", **models: str) -> dict[str, Any]:
        for name, text in models.items():
            suffix = "py" if text.startswith("def ") else "sql"
            Path("models", f"{name}.{suffix}").write_text(text)
        found = dbtRunner().invoke([command, "--quiet", *arguments])
        DuckDBConnectionManager.close_all_connections()  # as at the end of a process: nothing in memory lasts
        DuckDBConnectionManager._ENV = None
        if found.exception is not None:
            raise found.exception
        return {result.node.name: result for result in found.result.results}

    return run


def model(select: str, **config: Any) -> str:
    said = ", ".join(f"{name}={value!r}" for name, value in {"materialized": "intarsia", **config}.items())
    return f"{{{{ config({said}) }}}}\n{select}"


def values(*rows: str, columns: str = "id, state, region") -> str:
    return f"select * from (values {', '.join(rows)}) as t({columns})"


def read(path: str) -> list[dict[str, Any]]:
    """The rows as pyarrow lists and reads them."""
    found: list[dict[str, Any]] = ds.dataset(path, partitioning="hive").to_table().to_pylist()
    return sorted(found, key=lambda row: row["id"])


def states(path: str) -> dict[int, str]:
    return {row["id"]: row["state"] for row in read(path)}


def test_the_example_merges_what_changed_on_the_second_build(tmp_path: Path) -> None:
    project = shutil.copytree(
        EXAMPLE, tmp_path / "shop", ignore=shutil.ignore_patterns("target", "logs", "lake")
    )

    def dbt(*arguments: str) -> str:
        done = subprocess.run(
            [DBT, "--no-use-colors", "build", *arguments], cwd=project, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    macros = subprocess.run(
        [sys.executable, "-m", "intarsia.integrations.dbt"], capture_output=True, check=True
    )
    (project / "macros").mkdir(exist_ok=True)
    (project / "macros" / "intarsia.sql").write_bytes(macros.stdout)
    assert "4 inserted, 0 updated, 0 deleted" in dbt()
    [untouched] = (project / "lake/orders/region=eu").glob("*.parquet")
    before = (untouched.stat().st_ino, untouched.stat().st_mtime_ns)

    assert "1 inserted, 1 updated, 0 deleted" in dbt("--vars", "{feed: feed/tuesday.csv}")
    query = (
        f"select order_id, region, status from read_parquet('{project}/lake/orders/*/*.parquet') order by 1"
    )
    assert duckdb.sql(query).fetchall() == [
        (1, "eu", "open"),
        (2, "eu", "paid"),
        (3, "us", "paid"),
        (4, "us", "paid"),
        (5, "asia", "paid"),
    ]
    assert (untouched.stat().st_ino, untouched.stat().st_mtime_ns) == before


def test_every_strategy_changes_the_dataset_as_it_says(build: Build) -> None:
    first = values("(1, 'a', 'eu')", "(2, 'b', 'eu')", "(3, 'c', 'us')")
    second = values("(2, 'B', 'eu')", "(4, 'D', 'eu')")
    twice = values("(2, 'old', 'eu')", "(2, 'new', 'eu')", "(4, 'D', 'eu')")
    configs: dict[str, dict[str, Any]] = {
        "merged": {"unique_key": "id"},
        "by_two": {
            "unique_key": ["id", "region"],
            "incremental_strategy": "merge",
            "partition_by": ["region"],
        },
        "inserted": {"unique_key": "id", "incremental_strategy": "insert"},
        "updated": {"unique_key": "id", "incremental_strategy": "update"},
        "mirrored": {"unique_key": "id", "incremental_strategy": "full_merge"},
        "appended": {},
        "replaced": {"incremental_strategy": "insert_overwrite", "partition_by": "region"},
        "deduplicated": {
            "unique_key": "id",
            "incremental_strategy": "deduplicate",
            "dedup_order_by": "state",
        },
        "by_clauses": {
            "unique_key": "id",
            "merge_clauses": "when matched then delete when not matched then insert *",
        },
    }
    sources = {name: twice if name == "deduplicated" else second for name in configs}
    text = "{{% if is_incremental() %}} {} {{% else %}} {} {{% endif %}}"
    models = {name: model(text.format(sources[name], first), **config) for name, config in configs.items()}
    downstream = "{{ config(materialized='table') }} select count(*) as n from {{ ref('merged') }}"
    for result in build(**models, downstream=downstream).values():
        assert result.status == "success", result.message
    assert all(states(f"lake/{name}") == {1: "a", 2: "b", 3: "c"} for name in configs)

    found = build()
    assert found["merged"].message == "1 inserted, 1 updated, 0 deleted"
    assert found["merged"].adapter_response["rows_affected"] == 2
    merged = {1: "a", 2: "B", 3: "c", 4: "D"}
    assert {name: states(f"lake/{name}") for name in configs if name != "appended"} == {
        "merged": merged,
        "by_two": merged,
        "inserted": {1: "a", 2: "b", 3: "c", 4: "D"},
        "updated": {1: "a", 2: "B", 3: "c"},
        "mirrored": {2: "B", 4: "D"},
        "replaced": {2: "B", 3: "c", 4: "D"},
        "deduplicated": {**merged, 2: "old"},
        "by_clauses": {1: "a", 3: "c", 4: "D"},
    }
    assert [row["id"] for row in read("lake/appended")] == [1, 2, 2, 3, 4]


def test_keys_that_are_wrong_fail_the_model_and_leave_every_byte(
    build: Build, unchanged: Callable[..., Any], tmp_path: Path
) -> None:
    first = values("(1, 'a', 'eu')", "(2, 'b', 'us')")
    build(orders=model(first, unique_key="id", partition_by="region"))

    def fail(*arguments: str, **config: Any) -> str:
        text = model(config.pop("select", first), **{"unique_key": "id", "partition_by": "region", **config})
        with unchanged("lake/orders"):
            result = build(*arguments, orders=text)["orders"]
        assert result.status == "error"
        return " ".join(result.message.split())

    twice = values("(2, 'x', 'us')", "(2, 'y', 'us')")
    said = "upsert: the source has 1 duplicate key in id (2 rows), such as (id=2)."
    assert said in fail(select=twice)
    assert f"{said} [lake/orders]" in fail("--full-refresh", select=twice)
    assert "order_key" in fail(unique_key="order_key")
    assert "NULL" in fail(select=values("(null, 'x', 'us')"))
    assert "'note' (varchar) is new" in fail(select=first.replace("*", "*, 'n' as note")).replace(
        "string", "varchar"
    )
    moved = fail(select=values("(2, 'b', 'eu')"))
    assert "partition" in moved
    assert "there is no 'scd2' here. [lake/orders] Hint: it may be append," in fail(
        incremental_strategy="scd2"
    )
    assert "'insert' needs a unique_key" in fail(unique_key=None, incremental_strategy="insert")
    assert "there is no 'sync_all_columns' here" in fail(on_schema_change="sync_all_columns")
    assert "merge_exclude_columns cannot be followed" in fail(merge_exclude_columns=["state"])
    assert "a location cannot have *, ? or [ in it. [lake/[a]]" in fail(location="lake/[a]")
    assert not list(Path(os.environ.get("TMPDIR", "/tmp")).glob("intarsia-dbt-*/*/rows.parquet"))


def test_a_full_refresh_makes_the_dataset_anew(build: Build) -> None:
    build(orders=model(values("(1, 'a', 'eu')", "(2, 'b', 'us')"), unique_key="id", partition_by="region"))
    other = model(values("(3, 'c', 9)", columns="id, state, size"), unique_key="id", partition_by="size")
    assert build("--full-refresh", orders=other)["orders"].message == "1 inserted, 0 updated, 2 deleted"
    assert read("lake/orders") == [{"id": 3, "state": "c", "size": 9}]


def test_new_columns_are_added_where_the_model_says_so(build: Build) -> None:
    build(orders=model(values("(1, 'a', 'eu')"), unique_key="id"))
    wider = values("(2, 'b', 'gift')", columns="id, state, note")
    build(
        orders=model(wider, unique_key="id", on_schema_change="append_new_columns"),
        seen="{{ config(materialized='table') }} select * from {{ ref('orders') }} where note = 'gift'",
    )
    assert duckdb.sql(
        "select id, region, note from read_parquet('lake/orders/*.parquet', union_by_name=true) order by id"
    ).fetchall() == [
        (1, "eu", None),
        (2, None, "gift"),
    ]


def test_a_model_without_rows_has_its_columns_and_takes_rows_later(build: Build) -> None:
    text = "{% if var('full', false) %} {} {% else %} {} where false {% endif %}"
    rows = "select 1 as id, date '2026-03-01' as day, 'a' as state"
    text = model(text.replace("{}", rows), unique_key="id", partition_by="day")
    count = "{{ config(materialized='external', location='count.parquet') }}"
    count += " select count(*) as n, any_value(typeof(day)) as kind from {{ ref('orders') }}"
    found = build(orders=text, counted=count)
    assert [found[name].status for name in ("orders", "counted")] == ["success", "success"]
    assert duckdb.sql("select n from 'count.parquet'").fetchall() == [(0,)]
    build("--vars", "{full: true}")
    assert duckdb.sql("select n, kind from 'count.parquet'").fetchall() == [(1, "DATE")]
    build("--full-refresh")
    assert duckdb.sql("select n from 'count.parquet'").fetchall() == [(0,)]


def test_a_python_model_is_merged_as_well(build: Build) -> None:
    text = """def model(dbt, session):
    dbt.config(materialized="intarsia", unique_key="id")
    state = "b" if dbt.is_incremental else "a"
    return session.sql(f"select 1 as id, '{state}' as state")
"""
    assert build(orders=text)["orders"].message == "1 inserted, 0 updated, 0 deleted"
    assert build()["orders"].message == "0 inserted, 1 updated, 0 deleted"
    assert len(read("lake/orders")) == 1


def test_a_model_alone_reads_models_of_earlier_runs(build: Build) -> None:
    build(orders=model(values("(1, 'a', 'eu')"), unique_key="id", partition_by="region"))
    text = "{{ config(materialized='external', location='seen.parquet') }} select * from {{ ref('orders') }}"
    assert build("--select", "seen", seen=text)["seen"].status == "success"
    assert duckdb.sql("select id, region from 'seen.parquet'").fetchall() == [(1, "eu")]


def test_other_materializations_are_what_they_were(build: Build) -> None:
    Path("profiles.yml").write_text(PROFILE.format(path="shop.duckdb"))
    text = model(
        "select {{ 2 if is_incremental() else 1 }} as id", materialized="incremental", unique_key="id"
    )
    build(ids=text)
    build(ids=text)
    with duckdb.connect("shop.duckdb") as connection:
        assert connection.sql("select id from ids order by id").fetchall() == [(1,), (2,)]

    build(ids=model("select 3 as id", unique_key="id"))  # a table gives way to the view
    with duckdb.connect("shop.duckdb") as connection:
        assert connection.sql("select id from ids").fetchall() == [(3,)]


def test_sources_are_one_state_of_a_dataset_or_an_iceberg_table(build: Build) -> None:
    table = pa.table({"id": [1, 2], "day": ["mon", "tue"]})
    it.write(table, "lake/visits", partition_by="day")
    catalog = open_catalog("warehouse/")
    catalog.create_namespace("shop")
    catalog.create_table("shop.visits", table.schema).append(table)
    Path("models/sources.yml").write_text(
        """
sources:
  - name: shop
    config: {plugin: intarsia}
    tables:
      - name: visits
        config: {location: "lake/{name}"}
      - name: seen
        config: {location: lake/visits, materialization: view}
      - name: iceberg
        config: {iceberg_table: shop.visits}
"""
    )
    union = " union all ".join(
        f"select '{name}' as name, * from {{{{ source('shop', '{name}') }}}}"
        for name in ("visits", "seen", "iceberg")
    )
    text = f"{{{{ config(materialized='external', location='all.parquet') }}}} {union}"
    assert build(copied=text)["copied"].status == "success"
    assert duckdb.sql(
        "select name, list((id, day) order by id) from 'all.parquet' group by 1 order by 1"
    ).fetchall() == [(name, [(1, "mon"), (2, "tue")]) for name in ("iceberg", "seen", "visits")]
