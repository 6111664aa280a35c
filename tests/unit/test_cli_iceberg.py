"""The command line on Iceberg tables: every command by a table's name, its branches, and its upkeep."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import intarsia as it
from intarsia.cli.commands import Exit, cli
from intarsia.cli.operations import OPERATIONS
from intarsia.tables.iceberg.catalog import embedded_catalog

Run = Callable[..., Result]
RUNNING = [operation.name for operation in OPERATIONS]
TABLE = ["shop.orders", "--catalog", "./warehouse"]
ARGUMENTS = {
    "merge": ["changes.csv", *TABLE, "--on", "id"],
    "delete": [*TABLE, "--where", "id = 2"],
    "update": [*TABLE, "--set", "n=upper(n)", "--where", "id > 1"],
    "write": ["changes.csv", *TABLE],
    "compact": TABLE,
    "optimize": [*TABLE, "--by", "n", "--by", "id"],
    "deduplicate": [*TABLE, "--key", "n"],
}


class Shop:
    """The table ``shop.orders`` of three files under two specs, with a branch ``audit``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.catalog = embedded_catalog(directory / "warehouse")
        self.catalog.create_namespace("shop")
        table = self.catalog.create_table("shop.orders", pa.schema([("id", pa.int64()), ("n", pa.string())]))
        table.append(pa.table({"id": [1, 2], "n": ["a", "b"]}))
        with table.update_spec() as update:
            update.add_identity("n")
        table.append(pa.table({"id": [3, 4], "n": ["b", "d"]}))
        head = table.current_snapshot()
        table.manage_snapshots().create_branch(head.snapshot_id, "audit").commit()

    def table(self) -> Any:
        return self.catalog.load_table("shop.orders")

    def rows(self, branch: str | None = None) -> list[tuple[int, str]]:
        target = it.iceberg("shop.orders", catalog=self.catalog, branch=branch)
        return sorted((row["id"], row["n"]) for row in it.read(target).read_all().to_pylist())

    def snapshots(self) -> list[int]:
        return [snapshot.snapshot_id for snapshot in self.table().metadata.snapshots]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "changes.csv").write_text("id,n\n2,b\n9,z\n")
    return Shop(tmp_path)


@pytest.fixture
def run(shop: Shop) -> Run:
    def invoke(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    return invoke


@pytest.mark.parametrize("name", RUNNING)
def test_an_operation_takes_a_table_by_its_name(name: str, run: Run, shop: Shop) -> None:
    told = json.loads(run(name, *ARGUMENTS[name], "--json").stdout)
    assert told["path"] == "local.shop.orders"
    assert told["total"] == len(shop.rows())
    assert (told["dry_run"], told["changed"]) == (False, True)
    assert len(shop.snapshots()) == 3


@pytest.mark.parametrize("name", RUNNING)
def test_a_plan_and_a_dry_run_commit_nothing(name: str, run: Run, shop: Shop) -> None:
    before = shop.table().metadata_location
    assert json.loads(run(name, *ARGUMENTS[name], "--dry-run", "--json").stdout)["dry_run"] is True
    told = json.loads(run("plan", name, *ARGUMENTS[name], "--json").stdout)
    assert len(told["files"]) == 3
    assert shop.table().metadata_location == before


@pytest.mark.parametrize("name", RUNNING)
def test_a_branch_is_changed_and_main_stays(name: str, run: Run, shop: Shop) -> None:
    before, head = shop.rows(), shop.table().current_snapshot().snapshot_id
    told = json.loads(run(name, *ARGUMENTS[name], "--branch", "audit", "--json").stdout)
    assert shop.rows() == before
    assert shop.table().current_snapshot().snapshot_id == head
    assert len(shop.rows("audit")) == told["total"]
    assert shop.table().metadata.refs["audit"].snapshot_id != head


def test_a_merge_on_read_writes_deletes_and_copy_on_write_writes_files(run: Run, shop: Shop) -> None:
    run("delete", *ARGUMENTS["delete"], "--mode", "merge-on-read")
    assert shop.table().inspect.delete_files().num_rows == 1
    run("update", *ARGUMENTS["update"], "--mode", "copy-on-write")
    assert shop.rows() == [(1, "a"), (3, "B"), (4, "D")]
    assert shop.table().inspect.delete_files().num_rows == 1  # of the file that has row 1


def test_write_has_a_mode_of_its_own(run: Run, shop: Shop) -> None:
    run("write", "changes.csv", *TABLE, "--mode", "overwrite_partitions")
    assert shop.rows() == [(1, "a"), (2, "b"), (2, "b"), (4, "d"), (9, "z")]
    run("write", "changes.csv", *TABLE, "--mode", "merge-on-read", code=Exit.USAGE)
    run("write", "changes.csv", *TABLE, "--option", "mode=merge-on-read", code=Exit.USAGE)


def test_inspect_shows_specs_manifests_and_a_branch(run: Run) -> None:
    told = json.loads(run("inspect", *TABLE, "--branch", "audit", "--json").stdout)
    assert (told["path"], told["rows"], told["files"]) == ("local.shop.orders", 4, 3)
    assert "branch audit" in told["details"]["format"]
    assert told["details"]["specs"] == ["0: unpartitioned, 1 file", "1 (default): n, 2 files"]
    assert "1 (default): n, 2 files" in run("inspect", *TABLE).stdout


@pytest.mark.parametrize("more", [["--branch", "audit"], ["--mode", "merge-on-read"]])
def test_what_only_a_table_has_asks_for_its_catalog(more: list[str], run: Run) -> None:
    assert "--catalog" in run("delete", "orders", "--where", "true", *more, code=Exit.USAGE).stderr


@pytest.mark.parametrize("more", [["--control-path", "x"], ["--storage-option", "a=b"]])
@pytest.mark.parametrize("command", [["compact"], ["inspect"]])
def test_what_only_a_path_has_is_refused_with_a_catalog(
    command: list[str], more: list[str], run: Run
) -> None:
    assert more[0] in run(*command, *TABLE, *more, code=Exit.USAGE).stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["inspect", "shop.order", "--catalog", "./warehouse"], "no table shop.order"),
        (["inspect", "shop.orders", "--catalog", "./warehous"], "no catalog catalog.db in ./warehous"),
        (["inspect", "shop.orders", "--catalog", "nowhere"], "no usable catalog 'nowhere'"),
        (["inspect", *TABLE, "--branch", "audi"], "no branch 'audi'"),
    ],
)
def test_what_is_not_there_is_told_and_nothing_is_made(
    arguments: list[str], told: str, run: Run, shop: Shop
) -> None:
    assert told in run(*arguments, code=Exit.ERROR).stderr
    assert sorted(os.listdir(shop.directory)) == ["changes.csv", "warehouse"]


def test_expire_tells_and_with_apply_removes(run: Run, shop: Shop) -> None:
    before = shop.snapshots()
    arguments = ("expire", *TABLE, "--older-than", "0m", "--retain-last", "1")
    told = json.loads(run(*arguments, "--json").stdout)
    assert (told["snapshots"], told["refs"], told["dry_run"]) == (before[:1], [], True)
    assert "--apply does it" in run(*arguments).stdout
    assert shop.snapshots() == before
    assert run(*arguments, "--apply").stdout.startswith("Removed: 1 snapshot, 1 file")
    assert shop.snapshots() == before[1:]
    assert "nothing to remove" in run(*arguments, "--apply").stdout
    assert len(shop.rows()) == 4


def test_expire_keeps_what_is_young_or_asked_for(run: Run, shop: Shop) -> None:
    for more in (["--older-than", "1d"], ["--older-than", "2001-01-01"], ["--retain-last", "2"], []):
        assert "nothing to remove" in run("expire", *TABLE, *more, "--apply").stdout
    assert len(shop.snapshots()) == 2


def test_sweep_lists_orphans_and_with_apply_removes_them(run: Run, shop: Shop) -> None:
    data = shop.directory / "warehouse" / "shop" / "orders" / "data"
    old, young = data / "old.parquet", data / "young.parquet"
    for path in (old, young):
        path.write_bytes(b"x" * 10)
    os.utime(old, (time.time() - 4 * 86_400,) * 2)
    told = json.loads(run("sweep", *TABLE, "--json").stdout)
    assert ([Path(path).name for path in told["files"]], told["size_bytes"]) == ([old.name], 10)
    shown = run("sweep", *TABLE).stdout
    assert str(old) in shown
    assert "1 orphan file of 10 B" in shown
    assert old.exists()
    run("sweep", *TABLE, "--apply")
    assert (old.exists(), young.exists()) == (False, True)
    assert len(shop.rows()) == 4


@pytest.mark.parametrize("text", ["yesterday", "7", "7w", "2025-13-01", "99999999999d"])
def test_a_time_that_is_none_is_a_mistake_in_the_command_line(text: str, run: Run) -> None:
    assert text in run("expire", *TABLE, "--older-than", text, code=Exit.USAGE).stderr


def test_upkeep_needs_a_catalog(run: Run) -> None:
    for command in ("expire", "sweep"):
        assert "--catalog" in run(command, "shop.orders", code=Exit.USAGE).stderr
