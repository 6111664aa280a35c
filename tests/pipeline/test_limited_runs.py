"""Runs that are limited to some steps: what runs, what the report says, and what the state remembers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from intarsia import pipeline
from intarsia.cli.commands import cli
from intarsia.cli.completion import offer_environments, offer_steps
from intarsia.errors import InputError

ADD = """
[[steps]]
name = "add"
operation = "update"
target = "orders"
set = { amount = "amount + 1" }
"""


def test_only_runs_the_steps_it_names_and_reports_the_others_with_the_reason(shop: Any, ids: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0), 2: ("eu", -1.0)})
    report = shop.run(only="upsert, tidy")
    assert [step.status for step in report.steps] == ["done", "not run", "done"]
    assert report.ok
    purge = report.step("purge")
    assert purge.left_out
    assert purge.notes == ("left out: --only upsert, tidy",)
    assert ids(shop) == [1, 2]
    written = json.loads(Path(report.json_path or "").read_text())
    assert [step["left_out"] for step in written["steps"]] == [False, True, False]
    assert "left out: --only upsert, tidy" in Path(report.html_path or "").read_text()
    assert "A step before it failed" not in Path(report.html_path or "").read_text()


def test_a_step_that_was_left_out_is_not_done(shop: Any, ids: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0), 2: ("eu", -1.0)})
    shop.run(only=["upsert"]).check()
    assert shop.statuses() == {"upsert": "unchanged", "purge": "done", "tidy": "done"}
    assert ids(shop) == [1]
    assert set(shop.statuses().values()) == {"unchanged"}


def test_from_leaves_out_the_steps_above(shop: Any, ids: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0), 2: ("eu", -1.0)})
    shop.run(only="upsert").check()
    shop.lands("b.csv", {3: ("eu", 5.0)})
    report = shop.run(from_step="purge")
    assert [step.status for step in report.steps] == ["not run", "done", "done"]
    assert report.steps[0].notes == ("left out: --from purge",)
    assert ids(shop) == [1]
    assert shop.statuses()["upsert"] == "done"
    assert ids(shop) == [1, 3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"only": "upsrt"}, ["there is no step 'upsrt'", "did you mean 'upsert'?"]),
        ({"only": ["upsert", "nothing like it"]}, ["'nothing like it'", "'upsert', 'purge', 'tidy'"]),
        ({"only": ","}, ["names no step"]),
        ({"from_step": "Tidy"}, ["there is no step 'Tidy'", "did you mean 'tidy'?"]),
        ({"from_step": "tidy", "only": "tidy"}, ["--only or --from, not both"]),
    ],
)
def test_unknown_steps_are_refused_before_anything_runs(
    shop: Any, options: dict[str, Any], words: list[str]
) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    with pytest.raises(InputError) as caught:
        shop.run(**options)
    for word in words:
        assert word in str(caught.value)
    assert not shop.lake.exists()
    assert not (shop.root / "reports").exists()


def test_a_name_with_a_comma_is_one_name(shop: Any) -> None:
    shop.declare(shop.file.read_text().replace('"purge"', '"purge, and more"'))
    shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run().check()
    report = shop.run(only="purge, and more")
    assert [step.status for step in report.steps] == ["not run", "unchanged", "not run"]


def test_a_limited_run_after_a_failed_one_leaves_the_rest_to_a_whole_run(shop: Any, rows: Any) -> None:
    shop.declare(shop.file.read_text() + ADD)
    shop.lands("a.csv", {1: ("eu", 5.0)})
    broken = shop.file.read_text()
    shop.declare(broken.replace('where = "amount < 0"', 'where = "amout < 0"'))
    assert shop.run().failed is not None
    shop.declare(broken)
    shop.lands("b.csv", {2: ("eu", 7.0)})
    shop.run(only="purge").check()
    report = shop.run()
    assert report.finished_first is not None  # "add" on the old input, before "upsert" takes the new one
    assert [step.status for step in report.finished_first.steps][1:] == ["unchanged", "done", "done"]
    amounts = {row["id"]: row["amount"] for row in rows(shop.lake)}
    assert amounts == {1: 7.0, 2: 8.0}


def test_a_full_refresh_can_be_limited(shop: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run().check()
    report = shop.run(only="upsert", full_refresh=True)
    assert [step.status for step in report.steps] == ["done", "not run", "not run"]
    assert report.steps[0].input_files == 1


def test_marking_as_done_can_be_limited(shop: Any, ids: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run().check()
    shop.state.unlink()
    shop.lands("b.csv", {2: ("eu", 6.0)})
    report = shop.run(mark_done=True, only="upsert")
    assert [step.status for step in report.steps] == ["unchanged", "not run", "not run"]
    assert ids(shop) == [1]


def test_a_limited_dry_run_plans_the_named_steps(shop: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    report = shop.run(only="upsert", dry_run=True)
    assert [step.status for step in report.steps] == ["planned", "not run", "not run"]
    assert not shop.lake.exists()


KILLED = """
import os, signal, sys
from intarsia import pipeline
from intarsia.pipeline.state.run_state import RunState
RunState.note = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # after the commit, before the state
pipeline.run_file(sys.argv[1], only="add", progress=False)
"""


def test_a_limited_run_that_is_killed_after_its_commit_has_an_effect_once(shop: Any, rows: Any) -> None:
    shop.declare(shop.file.read_text() + ADD)
    shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run(only="upsert").check()
    done = subprocess.run([sys.executable, "-c", KILLED, str(shop.file)], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    report = shop.run()
    assert report.finished_first is None
    assert [step.status for step in report.steps] == ["unchanged", "done", "done", "unchanged"]
    assert [row["amount"] for row in rows(shop.lake)] == [6.0]


def test_the_command_line_limits_a_run_and_shows_what_was_left_out(shop: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    done = CliRunner().invoke(cli, ["run", str(shop.file), "--only", "upsert,tidy"])
    assert done.exit_code == 0, done.output
    assert "not run   purge" in done.output
    assert "left out: --only upsert, tidy" in done.output
    refused = CliRunner().invoke(cli, ["run", str(shop.file), "--from", "purg"])
    assert refused.exit_code == 1
    assert "did you mean 'purge'?" in refused.output


def test_spark_submit_takes_the_same_limits(shop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from intarsia.pipeline.submit import main

    shop.lands("a.csv", {1: ("eu", 5.0)})
    assert main([str(shop.file), "--only", "upsert"]) == 0
    assert main([str(shop.file), "--from", "upsrt"]) == 2
    assert "did you mean 'upsert'?" in capsys.readouterr().out


def test_a_query_that_only_duckdb_reads_passes_where_duckdb_is_asked_for(shop: Any) -> None:
    shop.declare(
        """
        [sources.numbers]
        sql = "select (7 // 2)::bigint as id"
        [targets.numbers]
        path = "lake/numbers"
        [[steps]]
        operation = "merge"
        source = "numbers"
        target = "numbers"
        on = "id"
        """
    )
    with pytest.raises(InputError, match=r"sources\.numbers"):
        pipeline.load(shop.file)
    result = shop.run(engine="duckdb").check().steps[0].result
    assert result is not None
    assert result.inserted == 1


def test_tab_completes_steps_and_environments(shop: Any) -> None:
    shop.declare(shop.file.read_text() + "\n[env.dev]\nreports = 'elsewhere'\n")
    given = str(shop.file)
    assert offer_steps(given, "") == ["upsert", "purge", "tidy"]
    assert offer_steps(given, "upsert,t") == ["upsert,tidy"]
    assert offer_environments(given, "") == ["dev"]
    assert offer_steps(str(shop.root / "gone.toml"), "") == []
    for text in ("= no toml", "steps = 3\nenv = 4", "steps = [1]\nenv = ['dev']"):
        shop.file.write_text(text)
        assert offer_steps(given, "") == []
        assert offer_environments(given, "") == []


def test_a_shell_is_offered_the_steps(shop: Any) -> None:
    asked = {"_INTARSIA_COMPLETE": "bash_complete", "COMP_CWORD": "4"}
    words = f"intarsia run {shop.file} --only p"
    program = "from intarsia.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **asked, "COMP_WORDS": words},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "purge" in done.stdout
    assert "tidy" not in done.stdout


def test_the_command_line_of_mark_done_does_not_say_that_nothing_had_changed(shop: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    told = CliRunner().invoke(cli, ["run", str(shop.file), "--mark-done"])
    assert told.exit_code == 0
    assert told.stdout.splitlines()[-1].endswith(": noted as done, nothing was run")


def test_an_interval_goes_with_continuous_alone(shop: Any) -> None:
    told = CliRunner().invoke(cli, ["run", str(shop.file), "--interval", "3"])
    assert told.exit_code == 2
    assert "--interval goes with --continuous" in told.stderr
