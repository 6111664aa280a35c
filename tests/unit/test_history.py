"""The commits of a dataset: what is noted of each, how it is shown, and that no secret gets in."""

from __future__ import annotations

import datetime as dt
import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest

import intarsia as it
from intarsia.common import process
from intarsia.core.history import CommitInfo, parse_count
from intarsia.errors import NothingMatched
from intarsia.tables.parquet import ParquetTable, control


def orders(*ids: int, v: str = "a") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([v] * len(ids))})


def test_a_history_says_who_when_what_and_how_much(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    begun = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    it.write(orders(1, 2, 3), path)
    it.merge(orders(3, 4, v="b"), path, on="id", app_id="loader", batch_id=7, properties={"job": "nightly"})
    it.delete(path, "id = 1")
    found = it.history(path)
    assert [(one.version, one.operation) for one in found] == [(3, "delete"), (2, "merge"), (1, "append")]
    merged = found[1]
    assert (merged.inserted, merged.updated, merged.deleted, merged.rows_after) == (1, 1, 0, 4)
    assert (merged.files_added, merged.files_replaced, merged.files_removed) == (1, 1, 0)
    assert merged.bytes_written is not None
    assert merged.bytes_written > 500
    assert found[0].bytes_after == sum(one.stat().st_size for one in path.glob("*.parquet"))
    assert (merged.app_id, merged.batch_id, merged.properties) == ("loader", 7, {"job": "nightly"})
    assert merged.user == process.describe_user()
    assert merged.engine == "arrow"
    assert merged.time is not None
    assert begun <= merged.time <= dt.datetime.now(dt.UTC)
    assert (len(found), found.version, found[0].txid is not None) == (3, 3, True)


def test_a_history_is_json_text_and_a_page(tmp_path: Path) -> None:
    path = tmp_path / "<orders>"
    it.write(orders(1), path, app_id="<app>", batch_id=1)
    found = it.history(path)
    plain = json.loads(json.dumps(found.as_json()))
    assert plain["commits"][0]["operation"] == "append"
    assert plain["commits"][0]["time"].endswith("+00:00")
    assert plain["version"] == 1
    assert "append" in repr(found)
    assert "<app> 1" in repr(found)
    page = found._repr_html_()
    ElementTree.fromstring(page)
    assert "&lt;app&gt;" in page
    assert "prefers-color-scheme:dark" in page
    assert 'open="open"' in page


def test_a_commit_is_listed_before_it_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "orders"
    it.write(orders(1), path)
    monkeypatch.setattr("intarsia.tables.parquet.journal.Journal.publish", _fail)
    with pytest.raises(it.IntarsiaError):
        it.write(orders(2), path)
    assert [one.version for one in it.history(path)] == [2, 1]


def _fail(*_: Any) -> None:
    raise OSError("no")


def test_commits_that_are_folded_stay_in_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_FOLD_ABOVE", 4)
    monkeypatch.setattr(control, "_FOLD_KEEPS", 2)
    path = tmp_path / "orders"
    for number in range(12):
        it.write(orders(number), path, app_id="loader", batch_id=number)
    assert [one.batch_id for one in it.history(path)] == list(range(11, -1, -1))
    assert len(list((tmp_path / ".orders.intarsia" / "log").glob("*.done"))) <= 5
    monkeypatch.setattr(control, "_ARCHIVES", 1)
    for number in range(12, 20):
        it.write(orders(number), path)
    found = it.history(path)
    assert 5 < len(found) < 20
    assert "are not listed any more" in found.notes[0]


def test_a_history_of_no_dataset_is_refused_and_one_of_others_is_empty(
    tmp_path: Path, make_dataset: Any
) -> None:
    with pytest.raises(NothingMatched):
        it.history(tmp_path / "nothing")
    path = make_dataset(tmp_path / "theirs", orders(1))
    found = it.history(path)
    assert (len(found), found.version) == (0, 0)
    assert "history" in repr(found)


def test_damaged_notes_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    for number in range(2):
        it.write(orders(number), path)
    log = tmp_path / ".orders.intarsia" / "log"
    (log / "000000000001.done").write_bytes(b"{")
    (log / "history-000000000001.json").write_bytes(b"[1, {}, {")
    assert [one.version for one in it.history(path)] == [2]
    raw = {"time": 3, "user": ["x"], "inserted": True, "deleted": 2, "engine": "arrow"}
    assert CommitInfo.from_json(raw) == CommitInfo(engine="arrow", deleted=2)
    assert CommitInfo.from_json("x") == CommitInfo()


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["/jobs/load_orders.py", "--password", "hunter2"], "load_orders.py"),
        (["-c", "secret = 'hunter2'"], ""),
        (["/env/lib/airflow/__main__.py", "token=hunter2"], "airflow"),
        (["/jobs/token=hunter2"], "token=***"),
        ([], ""),
    ],
)
def test_no_argument_and_no_secret_is_noted(
    argv: list[str], shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setenv("LOGNAME", "password=hunter2\n")
    process.describe_user.cache_clear()
    try:
        assert process.describe_program() == shown
        it.write(orders(1), tmp_path / "orders", retain=1)
        it.delete(tmp_path / "orders", "true", retain=1)
    finally:
        process.describe_user.cache_clear()
    for file in (tmp_path / ".orders.intarsia").rglob("*"):
        assert not file.is_file() or b"hunter2" not in file.read_bytes()
    assert "hunter2" not in json.dumps(it.history(tmp_path / "orders").as_json())


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.getpass, "getuser", _no_user)
    process.describe_user.cache_clear()
    try:
        assert process.describe_user().startswith("uid-")
    finally:
        process.describe_user.cache_clear()


def _no_user() -> str:
    raise KeyError("getpwuid(): uid not found: 1001")


def test_a_table_without_a_log_of_its_own_is_refused(tmp_path: Path) -> None:
    class Odd:
        root = "odd"
        transaction = snapshot = requests = None

    with pytest.raises(it.IntarsiaError, match="keeps no history"):
        it.history(Odd())  # type: ignore[arg-type]
    assert ParquetTable(tmp_path / "orders").history().commits == ()


@pytest.mark.parametrize("text", ["9" * 5000, "²", "-1", "1.5", ""])
def test_a_number_that_is_none_is_not_shown(text: str) -> None:
    assert parse_count(text) is None
    assert parse_count("17") == 17
