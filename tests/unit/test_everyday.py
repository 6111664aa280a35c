"""Results that print short, paths that are read as tables are, datasets that are made with a word."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import intarsia as it
from intarsia.cli.commands import Exit, cli
from intarsia.core import snapshot
from intarsia.errors import ColumnNotFound, CommitConflict, InputError, NothingMatched

ROWS = pa.table({"id": [1, 2, 3, 4], "n": ["a", "b", "c", "d"], "day": ["x", "x", "y", "y"]})


def ids(root: Any, **options: Any) -> list[int]:
    return sorted(it.read(root, **options).read_all()["id"].to_pylist())


def test_repr_is_the_printed_form_and_stays_short(tmp_path: Path) -> None:
    root = tmp_path / "t"
    root.mkdir()
    for number in range(600):
        pq.write_table(pa.table({"id": [number]}), root / f"{number}.parquet")
    plan = it.plan("delete", root, "id % 2 = 0")
    result = it.delete(root, "id % 2 = 0", dry_run=True)
    for value in (plan, result, it.snapshot(root), it.inspect(root)):
        assert repr(value) == str(value)
        assert len(repr(value)) < 2_000
        assert len(value._repr_html_()) < 200_000


@pytest.mark.parametrize("partition_by", [None, "day"])
def test_read_streams_a_dataset(tmp_path: Path, partition_by: str | None) -> None:
    root = tmp_path / "t"
    it.write(ROWS, root, partition_by=partition_by)
    found = it.read(root).read_all()
    assert sorted(found.column_names) == ["day", "id", "n"]
    assert ids(root) == [1, 2, 3, 4]
    assert ids(root, where="day = 'y' and id > 3") == [4]
    assert ids(root, where=pc.field("id") < 3) == [1, 2]
    assert it.read(root, columns="day").read_all().column_names == ["day"]
    assert it.read(root, columns=["day", "id"]).read_all().column_names == ["day", "id"]
    with pytest.raises(ColumnNotFound, match="nope"):
        it.read(root, columns="nope")
    with pytest.raises(ColumnNotFound, match="nope"):
        it.read(root, where="nope = 1")


def test_read_keeps_the_state_that_it_began_with(tmp_path: Path) -> None:
    root = tmp_path / "t"
    it.write(ROWS, root, partition_by="day")
    reader = it.read(root)
    it.delete(root, "id = 1")
    it.write(ROWS.slice(0, 1), root)
    it.compact(root)
    it.write(ROWS.slice(0, 0), root, mode="overwrite")
    assert sorted(reader.read_all()["id"].to_pylist()) == [1, 2, 3, 4]


def test_read_of_more_files_than_may_be_open_notices_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "t"
    for number in range(4):
        it.write(pa.table({"id": [number]}), root)
    monkeypatch.setattr("intarsia.kernel.read.open_limit", lambda: 2)
    assert ids(root) == [0, 1, 2, 3]
    reader = it.read(root, threads=1)
    it.update(root, {"id": "id + 10"})
    with pytest.raises(CommitConflict, match="replaced"):
        reader.read_all()
    assert snapshot.open_limit() > 2


def test_read_of_what_is_missing_or_empty(tmp_path: Path) -> None:
    with pytest.raises(NothingMatched, match="no dataset"):
        it.read(tmp_path / "nothing")
    root = tmp_path / "t"
    it.write(ROWS, root)
    it.delete(root, "true")
    assert it.read(root).read_all().num_rows == 0


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_a_dataset_that_is_made_is_told(
    tmp_path: Path, engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "t"
    planned = it.merge(ROWS, root, on="id", dry_run=True, engine=engine)
    assert planned.created
    assert "would be made" in str(planned)
    assert not root.exists()
    with caplog.at_level(logging.INFO, "intarsia"):
        made = it.merge(ROWS, root, on="id", engine=engine)
    assert made.created
    assert f"There was no dataset at {root}: it was made." in made.notes
    assert "it was made" in caplog.text
    again = it.write(ROWS, root, engine=engine)
    assert not again.created
    assert not any("no dataset" in note for note in again.notes)
    assert not it.merge(ROWS, tmp_path / "other", on="id", strategy="update", engine=engine).created


def test_the_command_line_tells_that_a_dataset_was_made(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "s.parquet")
    run = [sys.executable, "-m", "intarsia", "write", "s.parquet", "t"]
    told = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "There was no dataset at t: it was made." in " ".join(told.stdout.split())
    plain = subprocess.run([*run, "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(plain.stdout)["created"] is False


@pytest.mark.parametrize("name", ["lake/*", "lake/day=*/x", "lak?", "lake/[ab]", "s3://bucket/lake/*"])
def test_a_pattern_is_no_target(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for call in (
        lambda: it.write(ROWS, name),
        lambda: it.merge(ROWS, name, on="id"),
        lambda: it.delete(name, "id = 1"),
        lambda: it.inspect(name),
        lambda: it.read(name),
    ):
        with pytest.raises(InputError, match="pattern"):
            call()
    assert os.listdir() == []


def test_a_directory_with_such_a_name_is_a_target(tmp_path: Path) -> None:
    root = tmp_path / "copy [1]"
    root.mkdir()
    pq.write_table(ROWS, root / "a.parquet")
    assert it.write(ROWS, root).total == 8


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("intarsia mer", "plain,merge"),
        ("intarsia merge la", "file,la"),
        ("intarsia merge a.csv la", "file,la"),
        ("intarsia inspect la", "file,la"),
        ("intarsia run da", "file,da"),
        ("intarsia doctor da", "file,da"),
        ("intarsia compact t --control-path x", "file,x"),
        ("intarsia merge a.csv t --strategy up", "plain,upsert"),
    ],
)
def test_the_tab_key_offers_paths(words: str, offered: str) -> None:
    asked = {"_INTARSIA_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    code = "from intarsia.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True
    )
    assert offered in done.stdout.splitlines()


def test_a_command_that_is_misspelt_is_told_the_nearest() -> None:
    told = CliRunner().invoke(cli, ["merg"])
    assert told.exit_code == Exit.USAGE
    assert "No such command 'merg'. Did you mean 'merge'?" in told.output
    assert "Did you mean" not in CliRunner().invoke(cli, ["xyz"]).output


def test_ctrl_c_while_the_program_loads_is_no_traceback(tmp_path: Path) -> None:
    code = (
        "import importlib, intarsia.cli as cli\n"
        "def interrupted(name): raise KeyboardInterrupt\n"
        "importlib.import_module = interrupted\n"
        "cli.main(['inspect', 't'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "Error: interrupted; nothing was begun\n")


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
@pytest.mark.parametrize("after", [0.0, 0.3])
def test_ctrl_c_ends_the_program_and_leaves_nothing(tmp_path: Path, engine: str, after: float) -> None:
    rows = 400_000
    table = pa.table({"id": range(rows), "a": [n * 7919 % 1_000_003 for n in range(rows)]})
    it.write(table, tmp_path / "t", max_rows_per_file=rows // 8)
    before = sorted(os.listdir(tmp_path / "t"))
    run = [sys.executable, "-m", "intarsia", "optimize", "t", "--by", "a", "--by", "id", "--engine", engine]
    # Where it is measured what tests reach (make coverage), the measuring is interrupted, too, and says so.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    program = subprocess.Popen(
        run, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    control = tmp_path / ".t.intarsia"
    while program.poll() is None and not list(control.glob("tx/*")):
        time.sleep(0.01)
    time.sleep(after)
    program.send_signal(signal.SIGINT)
    _, told = program.communicate(timeout=60)
    # Python itself ends so where it was leaving already.
    assert program.returncode in (0, 130, -signal.SIGINT), told
    assert "Traceback" not in told
    after_it = sorted(os.listdir(tmp_path / "t"))
    assert after_it == before or all(name.startswith("optimized-") for name in after_it)
    assert it.read(tmp_path / "t").read_all().num_rows == rows
    assert not list(control.rglob("*.parquet"))


def test_columns_to_read_are_found_whatever_their_case(tmp_path: Path) -> None:
    it.write(pa.table({"Id": [1], "name": ["a"]}), tmp_path / "t", engine="arrow")
    assert it.read(tmp_path / "t", columns=["ID"]).read_all().to_pydict() == {"Id": [1]}
