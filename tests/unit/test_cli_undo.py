"""``intarsia history`` and ``intarsia restore``: what they show, as text and JSON, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import intarsia as it
from intarsia.cli.commands import Exit, cli
from intarsia.tables.iceberg import embedded_catalog, object_catalog

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    it.write(ROWS, "orders", retain=5)
    it.delete("orders", "id = 1", retain=5)
    return tmp_path


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.mark.usefixtures("lake")
def test_history_lists_commits_as_text_and_as_json() -> None:
    shown = run("history", "orders").stdout
    assert shown.index("delete") < shown.index("append")
    told = json.loads(run("history", "orders", "--json").stdout)
    assert [one["operation"] for one in told["commits"]] == ["delete", "append"]
    assert told["commits"][0]["deleted"] == 1
    limited = json.loads(run("history", "orders", "--json", "--limit", "1").stdout)
    assert (len(limited["commits"]), limited["restorable"]) == (1, [2, 1])
    assert "2 from version 1" in run("history", "orders", "--limit", "1").stdout
    assert "no dataset" in run("history", "order", code=Exit.NOTHING).stderr


@pytest.mark.usefixtures("lake")
def test_restore_brings_a_version_back_and_says_which_it_can() -> None:
    told = json.loads(run("restore", "orders", "1", "--dry-run", "--json").stdout)
    assert (told["dry_run"], told["total"]) == (True, 3)
    assert it.snapshot("orders").rows == 2
    told = json.loads(run("restore", "orders", "1", "--json").stdout)
    assert (told["operation"], told["version"], told["total"]) == ("restore", 3, 3)
    assert it.snapshot("orders").rows == 3
    refused = run("restore", "orders", "77", code=Exit.ERROR).stderr
    assert "versions 1 to 3 can be restored" in refused
    run("restore", "orders", "first", code=Exit.USAGE)
    run("restore", "orders", "1", "--master", "local[1]", code=Exit.USAGE)


@pytest.mark.usefixtures("lake")
def test_both_take_the_table_of_a_catalog_be_it_a_database_or_one_object() -> None:
    for catalog in (embedded_catalog("warehouse"), object_catalog("bucket")):
        catalog.create_namespace("shop")
        catalog.create_table("shop.orders", schema=ROWS.schema)
    for name in ("./warehouse", "./bucket"):
        target = it.iceberg("shop.orders", catalog=name)
        it.write(ROWS, target)
        it.delete(target, "id = 1")
        assert (
            len(json.loads(run("history", "shop.orders", "--catalog", name, "--json").stdout)["commits"]) == 2
        )
        told = json.loads(run("restore", "shop.orders", "1", "--catalog", name, "--json").stdout)
        assert told["total"] == it.read(target).read_all().num_rows == 3
