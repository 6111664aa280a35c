"""The command line on tables of a Spark session's catalog: ``--spark-table``."""

from __future__ import annotations

import json
import uuid

import pytest
from click.testing import CliRunner

from intarsia.cli.commands import Exit, cli


def run(*arguments, code=Exit.OK):
    found = CliRunner().invoke(cli, [*map(str, arguments)])
    assert found.exit_code == code, found.output
    return found


@pytest.fixture
def name(spark, tmp_path):
    lake = f"lake{uuid.uuid4().hex}"
    spark.sql(f"CREATE DATABASE {lake} LOCATION 'file:{tmp_path}/managed'")
    spark.sql(f"CREATE TABLE {lake}.orders (id BIGINT, day STRING) USING parquet PARTITIONED BY (day)")
    yield f"{lake}.orders"
    spark.sql(f"DROP DATABASE {lake} CASCADE")


def test_operations_take_a_table_of_the_catalog_by_its_name(spark, name, tmp_path):
    (tmp_path / "changes.csv").write_text("id,day\n1,mon\n2,tue\n")
    table = (name, "--spark-table")
    plan = json.loads(run("plan", "merge", tmp_path / "changes.csv", *table, "--key", "id", "--json").stdout)
    assert spark.table(name).count() == 0
    assert plan["operation"] == "merge"
    merged = run("merge", tmp_path / "changes.csv", *table, "--key", "id", "--json")
    assert json.loads(merged.stdout)["inserted"] == 2
    assert sorted(row[0] for row in spark.sql(f"SHOW PARTITIONS {name}").collect()) == ["day=mon", "day=tue"]
    run("delete", *table, "--where", "id = 1", "--engine", "spark")
    assert [tuple(row) for row in spark.table(name).collect()] == [(2, "tue")]
    assert json.loads(run("inspect", *table, "--json").stdout)["rows"] == 1


def test_a_table_that_is_not_there_has_the_code_of_nothing(spark, name):
    said = run("delete", f"{name}x", "--spark-table", "--where", "true", code=Exit.NOTHING)
    assert f"no table {name}x" in said.output


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--engine", "arrow"], "--spark-table goes with --engine spark"),
        (["--catalog", "./warehouse"], "--catalog does not go with --spark-table"),
        (["--control-path", "x"], "--control-path does not go with --spark-table"),
    ],
)
def test_what_does_not_go_with_it_is_refused_without_a_session(more, said):
    found = run("delete", "lake.orders", "--spark-table", "--where", "true", *more, code=Exit.USAGE)
    assert said in found.output
