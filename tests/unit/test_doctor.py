"""What the doctor finds: in this installation, at a place for data, and in a dataset's journal."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import intarsia as it
from intarsia import doctor
from intarsia.doctor import Finding, examine
from intarsia.errors import CommitUnknown, NotSupported, StorageError
from intarsia.spark import session
from intarsia.tables.parquet import ParquetTable
from intarsia.tables.parquet.journal import Journal


def _by_subject(findings: list[Finding]) -> dict[str, Finding]:
    found = {finding.subject: finding for finding in findings}
    assert len(found) == len(findings)
    return found


def _look(path: Path) -> dict[str, Finding]:
    return _by_subject(examine(path))


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    it.write(pa.table({"id": [1, 2, 3], "n": ["a", "b", "c"]}), tmp_path / "orders")
    return tmp_path / "orders"


def test_every_extra_is_looked_at_and_what_is_installed_has_its_version() -> None:
    found = _by_subject(examine())
    extras = {f"[{name}]" for name in metadata.metadata("intarsia").get_all("Provides-Extra") or ()}
    assert extras - {"[all]"} == {subject for subject in found if subject.startswith("[")}
    assert found["pyarrow"] == Finding("pyarrow", "ok", metadata.version("pyarrow"))
    assert found["[spark]"].state == "ok"
    assert f"pyspark {metadata.version('pyspark')}" in found["[spark]"].detail
    assert sys.executable in found["Python"].detail
    assert found["Temporary files"].state in ("ok", "warning")


def _without(monkeypatch: pytest.MonkeyPatch, *names: str, **others: str) -> None:
    """Make the metadata of installed packages say that some are gone, or of another version."""
    real = metadata.version

    def version(name: str) -> str:
        if name in names:
            raise metadata.PackageNotFoundError(name)
        return others.get(name) or real(name)

    monkeypatch.setattr(metadata, "version", version)


def test_a_missing_extra_is_no_problem_and_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "duckdb")
    found = _by_subject(examine())["[duckdb]"]
    assert found.state == "missing"
    assert "duckdb is not installed" in found.detail
    assert found.hint == "pip install 'intarsia[duckdb]'"


def test_a_package_that_is_too_old_or_too_new_is_told_with_what_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _without(monkeypatch, pyspark="4.2.0", pyarrow="14.0.1")
    found = _by_subject(examine())
    assert found["[spark]"].state == "missing"
    assert "pyspark 4.2.0 is installed" in found["[spark]"].detail
    assert found["pyarrow"].state == "problem"


def test_what_an_installed_package_needs_itself_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "grpcio")
    found = _by_subject(examine())["[spark]"]
    assert "grpcio, which pyspark needs, is not installed" in found.detail


def test_no_java_is_a_problem_only_where_pyspark_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise NotSupported("there is none", hint="get one")

    monkeypatch.setattr(doctor, "find_java", none)
    assert _by_subject(examine())["Java"] == Finding("Java", "problem", "there is none", "get one")
    _without(monkeypatch, "pyspark")
    assert _by_subject(examine())["Java"].state == "missing"


def test_it_tells_where_a_run_would_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert _by_subject(examine())["Spark runs on"].detail == "this machine (local[*])"
    monkeypatch.setenv("SPARK_REMOTE", "sc://head:15002/;token=hunter2")
    assert _by_subject(examine())["Spark runs on"].detail == "sc://head:15002/;token=*** (SPARK_REMOTE)"
    assert _by_subject(examine(master="yarn"))["Spark runs on"].detail == "yarn (--master)"
    monkeypatch.setenv("SPARK_REMOTE", "head:15002")
    found = _by_subject(examine())["Spark runs on"]
    assert (found.state, found.detail) == ("problem", "Unknown Spark master 'head:15002'. (SPARK_REMOTE)")
    _without(monkeypatch, "pyspark")
    assert "Spark runs on" not in _by_subject(examine())


def test_no_java_is_no_problem_where_a_run_goes_to_a_connect_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise NotSupported("there is none", hint="get one")

    monkeypatch.setattr(doctor, "find_java", none)
    monkeypatch.setenv("SPARK_REMOTE", "sc://head")
    assert _by_subject(examine())["Java"].state == "missing"
    assert _by_subject(examine(master="local[*]"))["Java"].state == "problem"


def test_the_session_is_started_where_a_run_would_start_it(
    deaf_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "active_session", lambda: None)
    monkeypatch.setenv("SPARK_REMOTE", f"sc://127.0.0.1:{deaf_port}")
    found = _by_subject(examine(start=True))["Spark session"]
    assert found.state == "problem"
    assert f"No Spark Connect server listens at 127.0.0.1:{deaf_port}" in found.detail


def test_a_session_that_does_not_start_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _by_subject(examine(start=True, master="mesos://x"))["Spark session"]
    assert found.state == "problem"
    assert "mesos" in found.detail


def test_a_local_disk_has_what_a_commit_needs_and_is_left_as_it_was(orders: Path, tree_digest: Any) -> None:
    before = tree_digest(orders.parent)
    found = _look(orders)
    assert found["File system"].state == "ok"
    assert "fsync, hard links, atomic rename and locks work" in found["File system"].detail
    assert "1 file, 3 rows" in found["Dataset"].detail
    assert found["Journal"] == Finding("Journal", "ok", "clean, version 1")
    assert tree_digest(orders.parent) == before


def test_a_dataset_that_does_not_exist_yet_is_not_made(tmp_path: Path) -> None:
    found = _look(tmp_path / "deep" / "down")
    assert found["File system"].state == "ok"
    assert "does not exist yet" in found["Dataset"].detail
    assert "nothing was committed" in found["Journal"].detail
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_hard_links_is_a_problem(orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, source: str, target: str) -> None:
        raise NotSupported("no hard links here")

    monkeypatch.setattr("intarsia.storage.posix.PosixStorage.make_hard_link", refuse)
    found = _look(orders)["File system"]
    assert found.state == "problem"
    assert "hard links failed: no hard links here" in found.detail
    assert found.hint is not None
    assert not list(orders.parent.glob(".intarsia-doctor-*"))


@pytest.mark.parametrize("place", ["file/below", "/proc/1/orders"])
def test_a_place_that_cannot_be_written_to_is_a_problem(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    found = _look(tmp_path / place)["File system"]
    assert found.state == "problem"
    assert "cannot write there" in found.detail


def test_a_full_disk_is_a_warning(orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 10**6, 10**6))
    found = _look(orders)
    assert (found["Temporary files"].state, found["Room for data"].state) == ("warning", "warning")
    assert found["Room for data"].detail.startswith("1.0 MB free")


def test_what_a_dead_writer_staged_is_a_warning_until_it_is_recovered(orders: Path) -> None:
    staged = orders.parent / ".orders.intarsia" / "tx" / f".staging_{'0a' * 16}" / "new"
    staged.mkdir(parents=True)
    found = _look(orders)["Journal"]
    assert found.state == "warning"
    assert "1 transaction staged and not committed" in found.detail
    assert "intarsia recover" in str(found.hint)
    it.recover(orders)
    assert _look(orders)["Journal"].state == "ok"


def test_a_commit_that_was_not_published_is_a_warning(orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, record: object) -> list[str]:
        raise StorageError("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "publish", refuse)
        with pytest.raises(CommitUnknown):
            it.delete(orders, "id = 2")
    found = _look(orders)
    assert found["Journal"].state == "warning"
    assert "1 commit not published yet" in found["Journal"].detail
    assert "2 rows" in found["Dataset"].detail  # it is committed all the same


def test_a_writer_at_work_is_not_taken_for_a_dead_one(orders: Path) -> None:
    with ParquetTable(orders).transaction("delete") as transaction:
        assert transaction.staging.directory
        found = _look(orders)["Journal"]
    assert found.state == "ok"
    assert "a writer is at work" in found.detail


def test_a_damaged_dataset_is_a_problem_and_the_rest_is_told(orders: Path) -> None:
    next(orders.glob("*.parquet")).write_bytes(b"no parquet")
    found = _look(orders)
    assert found["Dataset"].state == "problem"
    assert found["Journal"].state == "ok"


def test_a_store_without_atomic_rename_is_told(tmp_path: Path) -> None:
    found = _by_subject(examine("memory://bucket/orders"))
    assert found["File system"].state == "warning"
    assert "single_writer" in str(found["File system"].hint)


def test_a_url_that_nothing_opens_is_a_problem_and_shows_no_password() -> None:
    found = _by_subject(examine("nosuch://me:hunter2@host/orders"))
    assert found["Place"].state == "problem"
    assert "hunter2" not in str(found)


def test_findings_are_plain_json(orders: Path) -> None:
    plain = [finding.as_json() for finding in examine(orders)]
    assert json.loads(json.dumps(plain)) == plain


@pytest.mark.parametrize(
    ("version", "bounds", "within"),
    [
        ("4.1.4", "<4.2,>=4.1", True),
        ("4.2.0.dev1", "<4.2,>=4.1", False),
        ("4", ">=4.1", False),
        ("26.0.1", ">=26", True),
        ("9.0", ">=10", False),
        ("1.0", "==1.0.0", True),
        ("1.0", "", True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, bounds: str, within: bool) -> None:
    compare: Callable[[str, str], bool] = doctor._is_within
    assert compare(version, bounds) is within
