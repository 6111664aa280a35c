"""The command line: every command on real datasets, exit codes, JSON, and errors without tracebacks."""

from __future__ import annotations

import json
import logging
import os
import pty
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import intarsia as it
from intarsia import api
from intarsia.cli.commands import COMMANDS, Exit, cli
from intarsia.cli.declarations import DECLARED
from intarsia.cli.operations import OPERATIONS
from intarsia.errors import CommitConflict, CommitUnknown, StorageError

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., Result]
RUNNING = [operation.name for operation in OPERATIONS]
ARGUMENTS = {
    "merge": ["changes.csv", "orders", "--key", "id"],
    "delete": ["orders", "--where", "id = 2"],
    "update": ["orders", "--set", "n=upper(n)", "--where", "id > 1"],
    "write": ["changes.csv", "orders"],
    "compact": ["orders"],
    "optimize": ["orders", "--by", "n", "--by", "id"],
    "deduplicate": ["orders", "--key", "n"],
}


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_dataset: Any) -> Path:
    """A dataset ``orders`` of two files and some changes, in the directory the commands run in."""
    monkeypatch.chdir(tmp_path)
    for name in ("CI", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    make_dataset(tmp_path / "orders", pa.table({"id": [1, 2, 3, 4], "n": ["a", "b", "b", "d"]}), files=2)
    (tmp_path / "changes.csv").write_text("id,n\n2,B\n9,z\n")
    return tmp_path


@pytest.fixture
def run(lake: Path) -> Iterator[Run]:
    before = list(logging.getLogger("intarsia").handlers)

    def invoke(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    yield invoke
    assert logging.getLogger("intarsia").handlers == before


def _ids(rows: Callable[..., Any], path: Path) -> list[int]:
    return [row["id"] for row in rows(path)]


def test_every_operation_of_the_library_has_a_command() -> None:
    assert set(RUNNING) == set(ARGUMENTS)
    others = {"plan", "inspect", "recover", "expire", "sweep", "run", "graph", "init", "test", "doctor"}
    others |= {"history", "prepare-spark", "restore", "ui"}
    assert others | set(RUNNING) == set(COMMANDS) == set(DECLARED)
    assert set(DECLARED["plan"].commands) == set(RUNNING)  # type: ignore[attr-defined]
    assert all(DECLARED[name].help == text for name, text in COMMANDS.items())


@pytest.mark.parametrize("name", RUNNING)
def test_an_operation_runs_and_its_json_is_the_result(name: str, run: Run, lake: Path, rows: Any) -> None:
    told = json.loads(run(name, *ARGUMENTS[name], "--json").stdout)
    assert told["operation"] == (name if name != "write" else "append")
    assert told["changed"] is True
    assert told["path"] == "orders"
    assert told["total"] == told["target_count_after"] == len(rows(lake / "orders"))
    assert told["dry_run"] is False
    assert told["version"] == 1


@pytest.mark.parametrize("name", RUNNING)
def test_a_dry_run_says_what_would_be_and_writes_nothing(
    name: str, run: Run, lake: Path, unchanged: Any
) -> None:
    with unchanged(lake / "orders"):
        told = json.loads(run(name, *ARGUMENTS[name], "--dry-run", "--json").stdout)
    assert (told["dry_run"], told["changed"], told["version"]) == (True, True, None)


@pytest.mark.parametrize("name", RUNNING)
def test_a_plan_tells_of_each_file_and_writes_nothing(
    name: str, run: Run, lake: Path, unchanged: Any
) -> None:
    with unchanged(lake / "orders"):
        told = json.loads(run("plan", name, *ARGUMENTS[name], "--json").stdout)
        shown = run("plan", name, *ARGUMENTS[name]).stdout
    assert told["operation"] == (name if name != "write" else "append")
    assert sorted(file["path"] for file in told["files"]) == [
        "orders/part-00000.parquet",
        "orders/part-00001.parquet",
    ]
    assert all(file["reason"] for file in told["files"])
    assert "nothing written" in shown


@pytest.mark.parametrize("name", RUNNING)
def test_people_are_shown_a_result_without_colour_when_it_is_no_terminal(name: str, run: Run) -> None:
    shown = run(name, *ARGUMENTS[name])
    assert shown.stdout.startswith(name if name != "write" else "append")
    assert "\x1b" not in shown.output
    assert shown.stderr == ""


@pytest.mark.parametrize("name", RUNNING)
def test_quiet_says_nothing(name: str, run: Run) -> None:
    assert run(name, *ARGUMENTS[name], "--quiet").output == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, run: Run) -> None:
    assert "Usage:" in run(name, "--help").stdout


def test_a_merge_takes_strategy_keys_partitions_and_several_sources(run: Run, lake: Path, rows: Any) -> None:
    pq.write_table(pa.table({"id": [20], "n": ["b"]}), lake / "more.parquet")
    run("merge", "changes.csv", "more.parquet", "new", "--key", "id", "--partition-by", "n")
    assert _ids(rows, lake / "new") == [2, 9, 20]
    assert sorted(path.name for path in (lake / "new").iterdir()) == ["n=B", "n=b", "n=z"]
    run("merge", "changes.csv", "orders", "--key", "id", "--strategy", "insert")
    assert _ids(rows, lake / "orders") == [1, 2, 3, 4, 9]
    assert {"id": 2, "n": "b"} in rows(lake / "orders")


def test_a_merge_takes_a_condition(run: Run, lake: Path, rows: Any) -> None:
    run("merge", "changes.csv", "orders", "--on", "target.id = source.id and target.n = 'none'")
    assert {"id": 2, "n": "b"} in rows(lake / "orders")


def test_a_merge_takes_clauses(run: Run, lake: Path, rows: Any) -> None:
    clauses = (
        *("--when", "matched and target.n = 'b' then update set n = source.n || '!'"),
        *("--when", "when not matched by source and target.id > 3 then delete"),
    )
    run("plan", "merge", "changes.csv", "orders", "--key", "id", *clauses)
    assert len(rows(lake / "orders")) == 4
    told = json.loads(run("merge", "changes.csv", "orders", "--key", "id", *clauses, "--json").stdout)
    assert [told["updated"], told["deleted"], told["inserted"]] == [1, 1, 0]
    assert {"id": 2, "n": "B!"} in rows(lake / "orders")
    assert _ids(rows, lake / "orders") == [1, 2, 3]


def test_a_clause_that_cannot_be_read_is_refused_before_spark_starts(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from intarsia.spark import session

    monkeypatch.setattr(session, "session_on", lambda *_: pytest.fail("a session was opened"))
    failed = run(
        *("merge", "changes.csv", "orders", "--key", "id", "--when", "matchd then delete"),
        *("--engine", "spark"),
        code=Exit.ERROR,
    )
    assert "did you mean 'MATCHED'?" in failed.stderr
    failed = run("delete", "orders", "--where", "idd = 2", "--engine", "spark", code=Exit.ERROR)
    assert "'idd'" in failed.stderr
    failed = run("delete", "orders", "--where", "id = 2", "--master", "mesos://x", code=Exit.ERROR)
    assert "Unknown Spark master" in failed.stderr


def test_a_source_with_a_key_twice_is_deduplicated_by_the_highest(run: Run, lake: Path, rows: Any) -> None:
    (lake / "twice.csv").write_text("id,n\n2,x\n2,w\n")
    run("merge", "twice.csv", "orders", "--key", "id", code=Exit.ERROR)
    run("merge", "twice.csv", "orders", "--key", "id", "--strategy", "deduplicate", "--order-by", "n")
    assert {"id": 2, "n": "x"} in rows(lake / "orders")


def test_update_sets_several_columns_with_equal_signs_in_them(run: Run, lake: Path, rows: Any) -> None:
    run("update", "orders", "--set", "n='a=b'", "--set", "id = id + 10", "--where", "id = 1")
    assert {"id": 11, "n": "a=b"} in rows(lake / "orders")
    assert len(rows(lake / "orders")) == 4


def test_write_overwrites_when_told_to(run: Run, lake: Path, rows: Any) -> None:
    run("write", "changes.csv", "orders", "--mode", "overwrite")
    assert _ids(rows, lake / "orders") == [2, 9]


def test_write_overwrites_the_rows_of_a_condition(run: Run, lake: Path, rows: Any) -> None:
    before = _ids(rows, lake / "orders")
    run("write", "changes.csv", "orders", "--mode", "overwrite", "--where", "id in (2, 9)")
    assert _ids(rows, lake / "orders") == sorted({*before, 2, 9})


def test_layout_operations_keep_to_the_partition_and_the_size(
    run: Run, lake: Path, make_dataset: Any
) -> None:
    table = pa.table({"d": ["x"] * 6 + ["y"] * 6, "id": list(range(12))})
    make_dataset(lake / "days", table, files=3, partition="d")
    told = json.loads(run("compact", "days", "--partition", "d=x", "--target-rows", "100", "--json").stdout)
    assert len(told["removed_files"]) == 3
    assert all("d=x" in path for path in told["removed_files"])
    assert run("compact", "days", "--target-rows", "0", code=Exit.ERROR).stderr.startswith("Error: ")


def test_options_of_the_library_are_passed_on_with_their_types(run: Run, lake: Path) -> None:
    given = ["--option", "compression=gzip", "--option", "max_rows_per_file=1", "--option", "retain=2"]
    run("write", "changes.csv", "fresh", *given)
    files = sorted((lake / "fresh").glob("*.parquet"))
    assert len(files) == 2
    assert pq.read_metadata(files[0]).row_group(0).column(0).compression == "GZIP"


@pytest.mark.parametrize(
    "arguments",
    [
        ["merge", "changes.csv", "orders"],
        ["merge", "changes.csv", "orders", "--key", "id", "--on", "target.id = source.id"],
        ["merge", "orders", "--key", "id"],
        ["merge", "changes.csv", "orders", "--key", "id", "--strategy", "guess"],
        [
            "merge",
            "changes.csv",
            "orders",
            "--key",
            "id",
            "--strategy",
            "insert",
            "--when",
            "matched then delete",
        ],
        ["merge", "changes.csv", "orders", "--key", "id", "--option", "nonsense=1"],
        ["merge", "changes.csv", "orders", "--key", "id", "--option", "threads"],
        ["merge", "changes.csv", "orders", "--key", "id", "--engine", "arrow", "--master", "local[1]"],
        ["delete", "orders"],
        ["update", "orders"],
        ["update", "orders", "--set", "n"],
        ["update", "orders", "--set", "n=1", "--set", "n=2"],
        ["optimize", "orders"],
        ["inspect"],
        ["nonsense"],
        ["plan"],
        [],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_exits_with_2_and_changes_nothing(
    arguments: Sequence[str], run: Run, lake: Path, unchanged: Any
) -> None:
    with unchanged(lake / "orders"):
        assert "Usage:" in run(*arguments, code=Exit.USAGE).stderr


def test_an_option_that_is_misspelt_is_told_with_the_right_one(run: Run) -> None:
    failed = run("compact", "orders", "--option", "thread=4", code=Exit.USAGE)
    assert "there is no 'thread'. did you mean 'threads'?" in failed.stderr


def test_an_error_is_one_line_and_a_hint_on_standard_error(run: Run) -> None:
    failed = run("merge", "changes.csv", "orders", "--key", "nope", code=Exit.ERROR)
    assert failed.stdout == ""
    first, second = failed.stderr.splitlines()
    assert first.startswith("Error: upsert: key column 'nope' is missing")
    assert second.startswith("Hint: ")


def test_an_error_is_json_for_scripts_that_ask_for_it(run: Run) -> None:
    failed = run("delete", "orders", "--where", "nope = 1", "--json", code=Exit.ERROR)
    assert failed.stdout == ""
    told = json.loads(failed.stderr)
    assert told["error"] == "ColumnNotFound"
    assert told["changed"] is False
    assert "nope" in told["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["merge", "gone.csv", "orders", "--key", "id"],
        ["compact", "gone"],
        ["optimize", "gone", "--by", "id"],
        ["inspect", "gone"],
        ["run", "gone.toml"],
    ],
    ids=" ".join,
)
def test_nothing_to_work_on_exits_with_4(arguments: Sequence[str], run: Run, lake: Path) -> None:
    run(*arguments, code=Exit.NOTHING)
    assert not (lake / "gone").exists()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommitConflict("another writer came first"), Exit.CONFLICT),
        (CommitUnknown("committed, not published", changed=True, txid="t1"), Exit.UNKNOWN),
        (StorageError("no room", errno=28), Exit.ERROR),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_exit_code_tells_what_kind_of_error_it_was(
    error: Exception, code: Exit, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(api, "recover", fail)
    assert f"Error: {error.args[0]}\n" in run("recover", "orders", code=code).stderr


def test_a_lock_held_by_another_writer_is_a_conflict(run: Run, lake: Path) -> None:
    from intarsia.tables.parquet import ParquetTable

    with ParquetTable(lake / "orders").transaction("delete"):
        failed = run(
            "delete", "orders", "--where", "true", "--option", "lock_timeout=0.1", code=Exit.CONFLICT
        )
    assert "held the lock" in failed.stderr


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh no, token=hunter2")

    monkeypatch.setattr(api, "recover", fail)


@pytest.mark.usefixtures("broken")
def test_an_unexpected_error_has_its_own_code_and_no_traceback(run: Run) -> None:
    failed = run("recover", "orders", code=Exit.UNEXPECTED)
    assert "unexpected ZeroDivisionError: oh no" in failed.stderr
    assert "--debug" in failed.stderr
    assert "hunter2" not in failed.output


@pytest.mark.usefixtures("broken", "lake")
def test_debug_shows_the_traceback_of_any_error() -> None:
    failed = CliRunner().invoke(cli, ["recover", "orders", "--debug"])
    assert failed.exit_code == Exit.UNEXPECTED
    assert "Traceback" in failed.stderr
    assert "hunter2" not in failed.output
    ours = CliRunner().invoke(cli, ["delete", "orders", "--where", "nope = 1", "--debug"])
    assert ours.exit_code == Exit.ERROR
    assert "Traceback" in ours.stderr


def test_an_interrupt_exits_with_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "recover", interrupt)
    assert "interrupted" in run("recover", "orders", code=Exit.INTERRUPTED).stderr


def test_inspect_shows_the_dataset_and_as_json_its_columns(run: Run) -> None:
    assert "rows         4" in run("inspect", "orders").stdout
    told = json.loads(run("inspect", "orders", "--json").stdout)
    assert (told["files"], told["rows"]) == (2, 4)
    assert [(column["name"], column["type"]) for column in told["columns"]] == [
        ("id", "int64"),
        ("n", "string"),
    ]


def test_inspect_names_typed_partitions(run: Run, lake: Path) -> None:
    table = pa.table({"d": pa.array([datetime(2025, 1, 2, tzinfo=UTC).date(), None]), "id": [1, 2]})
    it.write(table, lake / "days", partition_by="d")
    told = json.loads(run("inspect", "days", "--json").stdout)
    assert told["partition_columns"] == ["d"]
    assert {told["biggest"]["partition"]["d"], told["smallest"]["partition"]["d"]} <= {"2025-01-02", None}


def test_recover_says_what_it_did(run: Run, lake: Path) -> None:
    assert "There is no dataset order." in run("recover", "order", code=Exit.NOTHING).stderr
    assert "nothing to recover" in run("recover", "orders").stdout
    (lake / ".orders.intarsia" / "tx" / f".staging_{'0a' * 16}").mkdir(parents=True)
    told = json.loads(run("recover", "orders", "--json").stdout)
    assert len(told["done"]) == 1
    assert json.loads(run("recover", "orders", "--json").stdout)["done"] == []


def test_the_journal_can_be_kept_elsewhere(run: Run, lake: Path) -> None:
    run("delete", "orders", "--where", "id = 1", "--control-path", "journal")
    assert (lake / "journal" / "log").is_dir()
    assert not (lake / ".orders.intarsia").exists()


def test_doctor_lists_findings_and_exits_by_them(run: Run, lake: Path) -> None:
    shown = run("doctor", "orders").stdout
    assert "pyarrow" in shown
    assert "Journal" in shown
    told = json.loads(run("doctor", "orders", "--json").stdout)
    assert told["ok"] is True
    assert {finding["subject"] for finding in told["findings"]} >= {"Python", "Java", "File system"}
    (lake / "orders" / "part-00000.parquet").write_bytes(b"no parquet")
    told = json.loads(run("doctor", "orders", "--json", code=Exit.ERROR).stdout)
    assert told["ok"] is False
    assert run("doctor", "orders", "--quiet", code=Exit.ERROR).output == ""


def test_a_name_that_could_steer_the_terminal_is_shown_as_escapes(run: Run) -> None:
    failed = run("inspect", "gone\x1b[31m[red]x", code=Exit.ERROR)
    assert "\x1b" not in failed.output
    assert "[red]" in failed.stderr  # and is no markup either


def test_a_warning_of_the_library_is_a_line_on_standard_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn(*_: object, **__: object) -> tuple[str, ...]:
        logging.getLogger("intarsia.tables").warning("could not tidy %s", "x")
        logging.getLogger("intarsia.tables").info("all well")
        warnings.warn("which row is the last is not defined", UserWarning, stacklevel=1)
        return ()

    monkeypatch.setattr(api, "recover", warn)
    warnings.simplefilter("always")
    told = "warning: could not tidy x\nwarning: which row is the last is not defined\n"
    assert run("recover", "orders").stderr == told
    assert run("recover", "orders", "--verbose").stderr.count("info: all well\n") == 1
    assert run("recover", "orders", "--quiet").stderr == ""


# The pipeline itself is tested where it is; here, what the command makes of it.

PIPELINE = """
name = "daily"
engine = "arrow"

[sources.changes]
path = "${input}"

[targets.orders]
path = "orders"

[[steps]]
name = "land"
operation = "merge"
source = "changes"
target = "orders"
on = "id"

[[steps]]
name = "enough"
operation = "expect"
target = "orders"
min_rows = 4
"""


@pytest.fixture
def daily(lake: Path) -> list[str]:
    (lake / "daily.toml").write_text(PIPELINE)
    return ["run", "daily.toml", "--param", "input=changes.csv", "--report-dir", "told"]


def test_run_tells_each_step_and_where_the_report_is(run: Run, daily: list[str], lake: Path) -> None:
    land, enough, over, report = run(*daily).stdout.splitlines()
    assert land.startswith("done      land")
    assert "1 inserted · 1 updated" in land
    assert "1 of 1 expectation met" in enough
    assert over.startswith("daily: done in ")
    assert Path(report.removeprefix("Report: ")).is_relative_to("told")
    assert Path(report.removeprefix("Report: ")).is_file()
    assert run(*daily).stdout.startswith("unchanged land")


def test_a_dry_run_of_a_pipeline_writes_nothing(
    run: Run, daily: list[str], lake: Path, unchanged: Any
) -> None:
    with unchanged(lake / "orders"):
        assert run(*daily, "--dry-run").stdout.startswith("planned   land")


def test_run_gives_the_report_as_json_and_nothing_when_quiet(run: Run, daily: list[str]) -> None:
    told = json.loads(run(*daily, "--json").stdout)
    assert [step["status"] for step in told["steps"]] == ["done", "done"]
    assert Path(told["html_path"]).is_file()
    assert run(*daily, "--quiet").output == ""


def test_a_step_that_failed_is_told_and_decides_the_exit_code(run: Run, daily: list[str], lake: Path) -> None:
    (lake / "daily.toml").write_text(PIPELINE.replace("min_rows = 4", "min_rows = 40"))
    failed = run(*daily, code=Exit.ERROR)
    assert "failed    enough" in failed.stdout
    assert "daily: failed at 'enough'" in failed.stdout
    assert failed.stderr.startswith("Error: ")
    assert json.loads(run(*daily, "--json", code=Exit.ERROR).stdout)["ok"] is False


def test_a_mistake_in_the_pipeline_file_is_an_error(run: Run, daily: list[str], lake: Path) -> None:
    (lake / "daily.toml").write_text(PIPELINE.replace("engine", "engin"))
    assert "'engin'" in run(*daily, code=Exit.ERROR).stderr
    assert run("run", "daily.toml", "--param", "input", code=Exit.USAGE)


def test_run_passes_the_master_on(run: Run, daily: list[str]) -> None:
    failed = run(*daily, "--master", "local[1]", code=Exit.ERROR)
    assert "engine" in failed.stderr  # which is not Spark here


# As a program.


def _program(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "intarsia", *arguments],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_package_runs_as_a_program(lake: Path) -> None:
    done = _program("merge", "changes.csv", "orders", "--key", "id", "--json", cwd=lake)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["inserted"] == 1
    done = _program("inspect", "gone", cwd=lake)
    assert (done.returncode, done.stdout) == (4, "")
    assert _program("--version", cwd=lake).stdout == f"intarsia {it.__version__}\n"


@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_click_or_rich_the_program_names_the_extra(lake: Path, package: str) -> None:
    script = f"import sys; sys.modules[{package!r}] = None; from intarsia.cli import main; main([])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        f"The command line needs {package}, which is not installed: pip install 'intarsia[cli]'\n"
    )


def _on_a_terminal(lake: Path, **environ: str) -> str:
    """What a person sees: standard output and error are a terminal."""
    master, slave = pty.openpty()
    clean = {k: v for k, v in os.environ.items() if k not in ("CI", "NO_COLOR", "FORCE_COLOR", "TERM")}
    program = subprocess.Popen(
        [sys.executable, "-m", "intarsia", "plan", "merge", *ARGUMENTS["merge"]],
        cwd=lake,
        env={**clean, "TERM": "xterm-256color", **environ},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    seen = b""
    while chunk := _read(master):
        seen += chunk
    os.close(master)
    assert program.wait() == 0
    return seen.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end is closed, and all of it was read
        return b""


def test_a_terminal_gets_colours_unless_told_otherwise(lake: Path) -> None:
    assert "\x1b[" in _on_a_terminal(lake)
    for quiet in ({"NO_COLOR": "1"}, {"CI": "true"}, {"TERM": "dumb"}):
        assert "\x1b[3" not in _on_a_terminal(lake, **quiet)


def test_the_exit_codes_are_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [code for code in Exit if f"| {int(code)} |" not in text] == []


def test_every_command_and_option_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    wanted = [f"`{name}`" for name in COMMANDS]
    for command in DECLARED.values():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                wanted.append(parameter.opts[-1])
    assert [name for name in wanted if name not in text] == []
