"""Backfills: one run per value of a parameter, and how they go on after a failure or a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from intarsia import pipeline
from intarsia.cli.commands import cli
from intarsia.errors import CommitConflict, DamagedTable, InputError, NothingMatched
from intarsia.pipeline.backfill import expand_range
from intarsia.pipeline.state.state_file import hold_lock
from intarsia.pipeline.submit import main

DAILY = """
engine = "arrow"

[params]
day = 2025-03-01
times = 1

[sources.landing]
path = "in/${day}.csv"
columns = { id = "bigint", amount = "double" }
derive = { day = "date '${day}'" }

[targets.orders]
path = "lake/orders"

[[steps]]
name = "append"
operation = "write"
source = "landing"
target = "orders"

[[steps]]
name = "multiply"
operation = "update"
target = "orders"
set = { amount = "amount * ${times}" }
where = "day = date '${day}'"

[env.dev.targets.orders]
path = "dev/orders"
"""
DAYS = "2025-03-01..2025-03-04"


class Daily:
    """A pipeline with a file for each day."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / "daily.toml"
        self.file.write_text(DAILY)
        (root / "in").mkdir()
        self.ledger = root / ".intarsia/daily.backfill.json"
        self.seen: list[tuple[str, str]] = []

    def lands(self, *days: int) -> None:
        for day in days:
            (self.root / f"in/2025-03-{day:02}.csv").write_text(f"id,amount\n{day},{day}.5\n")

    def run(self, over: Any = None, **options: Any) -> pipeline.BackfillReport:
        options.setdefault("progress", False)
        return pipeline.run_backfill(self.file, over=over or {"day": DAYS}, **options)

    def statuses(self, over: Any = None, **options: Any) -> list[str]:
        return [one.status for one in self.run(over, **options).runs]


@pytest.fixture
def daily(tmp_path: Path) -> Daily:
    return Daily(tmp_path)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("2025-02-27..2025-03-02", ("2025-02-27", "2025-02-28", "2025-03-01", "2025-03-02")),
        ("2024-12-31..2024-12-31", ("2024-12-31",)),
        ("2024-11..2025-02", ("2024-11", "2024-12", "2025-01", "2025-02")),
        ("8..11", ("8", "9", "10", "11")),
        ("08..11", ("08", "09", "10", "11")),
        ("-1..1", ("-1", "0", "1")),
        ("2025-03-01", None),
        ("../elsewhere", None),
        ("a..b", None),
        ("1...3", None),
        ("", None),
    ],
)
def test_ranges_of_days_months_and_numbers_are_values_and_other_texts_are_not(
    text: str, values: tuple[str, ...] | None
) -> None:
    assert expand_range(text) == values


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2025-03-02..2025-03-01", "ends before it begins"),
        ("2025-02-29..2025-03-01", "a day that does not exist: 2025-02-29"),
        ("2025-13..2026-01", "a month that does not exist"),
        ("3..1", "ends before it begins"),
        ("1..1000000000000", "at most 10,000"),
        ("0001-01-01..2025-01-01", "at most 10,000"),
    ],
)
def test_ranges_that_cannot_be_meant_are_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        expand_range(text)


def test_each_value_is_run_once_and_has_a_report(daily: Daily, rows: Any) -> None:
    daily.lands(1, 2, 3, 4)
    seen: list[str] = []
    report = daily.run(
        params={"times": "10"}, on_run=lambda one: seen.append(f"{one.name} {one.status}")
    ).check()
    assert seen == [f"day=2025-03-0{day} done" for day in (1, 2, 3, 4)]
    assert sorted((row["id"], row["amount"]) for row in rows(daily.root / "lake/orders")) == [
        (1, 15.0),
        (2, 25.0),
        (3, 35.0),
        (4, 45.0),
    ]
    assert report.ok
    assert report.describe() == "4 runs done"
    assert len({one.report.html_path for one in report.runs if one.report}) == 4
    assert not daily.ledger.exists()
    again = daily.run(params={"times": "10"})
    assert {step.status for one in again.runs if one.report for step in one.report.steps} == {"unchanged"}


def test_a_failed_value_stops_and_the_same_backfill_goes_on_there(daily: Daily, rows: Any) -> None:
    daily.lands(1, 2, 4)
    report = daily.run()
    assert [one.status for one in report.runs] == ["done", "done", "failed", "not run"]
    assert report.describe() == (
        "stopped at day=2025-03-03: 2 of 4 runs done, 1 not run;"
        " start the same backfill again to go on from there"
    )
    with pytest.raises(NothingMatched, match="2025-03-03"):
        report.check()
    daily.lands(3)
    assert daily.statuses() == ["done before", "done before", "done", "done"]
    assert sorted(row["id"] for row in rows(daily.root / "lake/orders")) == [1, 2, 3, 4]
    assert daily.statuses() == ["done"] * 4


def test_another_backfill_does_not_count_as_the_same(daily: Daily) -> None:
    daily.lands(1, 2)
    assert daily.statuses() == ["done", "done", "failed", "not run"]
    assert daily.statuses({"day": "2025-03-01..2025-03-02"}) == ["done", "done"]
    assert daily.statuses(params={"times": "2"})[:2] == ["done", "done"]
    assert daily.statuses(full_refresh=True)[:2] == ["done", "done"]
    assert daily.statuses(full_refresh=True)[:2] == ["done before", "done before"]
    assert daily.statuses(only="append")[:2] == ["done", "done"]
    assert daily.statuses(env="dev")[:2] == ["done", "done"]
    assert daily.statuses()[:2] == ["done before", "done before"]
    assert daily.statuses(start_over=True)[:2] == ["done", "done"]


def test_a_backfill_that_started_over_and_failed_at_once_goes_on_at_its_first_value(daily: Daily) -> None:
    daily.lands(1, 2)
    assert daily.statuses() == ["done", "done", "failed", "not run"]
    first = daily.root / "in/2025-03-01.csv"
    first.write_text("id,amount\n1,much\n")
    assert daily.statuses(start_over=True, dry_run=True)[0] == "failed"
    assert daily.ledger.exists()
    assert daily.statuses(start_over=True) == ["failed"] + ["not run"] * 3
    daily.lands(1)
    assert daily.statuses()[:2] == ["done", "done"]


def test_a_dry_run_of_a_backfill_writes_nothing(daily: Daily) -> None:
    daily.lands(1, 2, 3, 4)
    report = daily.run(dry_run=True)
    assert report.describe() == "4 runs planned"
    assert sorted(path.name for path in daily.root.iterdir()) == ["daily.toml", "in"]


def test_all_values_are_checked_before_the_first_run(daily: Daily) -> None:
    daily.lands(1, 2, 3, 4)
    text = DAILY.replace('where = "day = ', 'where = "${times} = 1 and day = ')
    daily.file.write_text(text.replace("times = 1", "times = '1'"))
    with pytest.raises(InputError, match="is not SQL"):
        daily.run({"day": DAYS, "times": ["1", "1", "'"]})
    assert not (daily.root / "lake").exists()
    for over, words in (({}, "needs a parameter"), ({"day": "soon"}, "no range"), ({"day": []}, "no range")):
        with pytest.raises(InputError, match=words):
            pipeline.run_backfill(daily.file, over=over)
    with pytest.raises(InputError, match="--continuous does not go with it"):
        daily.run(continuous=True)
    with pytest.raises(InputError, match="combinations"):
        daily.run({"day": "2025-01-01..2025-12-31", "times": "1..100"})
    with pytest.raises(InputError, match="did you mean 'day'"):
        daily.run({"dy": DAYS})


def test_several_parameters_are_all_combinations_and_lists_have_any_values(daily: Daily) -> None:
    daily.lands(1, 2)
    report = daily.run({"day": [date(2025, 3, 1), date(2025, 3, 2)], "times": [1, 2]})
    assert [one.name for one in report.check().runs] == [
        "day=2025-03-01 times=1",
        "day=2025-03-01 times=2",
        "day=2025-03-02 times=1",
        "day=2025-03-02 times=2",
    ]


def test_two_backfills_at_once_are_refused(daily: Daily) -> None:
    daily.lands(1, 2, 3, 4)
    with hold_lock(daily.ledger), pytest.raises(CommitConflict):
        daily.run()


def test_a_damaged_list_of_runs_is_told(daily: Daily) -> None:
    daily.lands(1)
    daily.run()
    daily.ledger.write_text("{")
    with pytest.raises(DamagedTable, match="remove it"):
        daily.run()


KILLED = """
import os, signal, sys
from intarsia import pipeline
from intarsia.pipeline.state.run_state import RunState

left = int(sys.argv[2])
usual = RunState.note

def note(self, step, *given, **options):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)  # after the commit, before the state has it
    usual(self, step, *given, **options)

RunState.note = note
report = pipeline.run_backfill(
    sys.argv[1], over={"day": "2025-03-01..2025-03-04"}, params={"times": "10"}, progress=False
)
print(*(one.status for one in report.runs), sep=",")
"""


def test_a_backfill_that_is_killed_goes_on_and_every_step_takes_effect_once(daily: Daily, rows: Any) -> None:
    daily.lands(1, 2, 3, 4)

    def run(steps: int) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-c", KILLED, str(daily.file), str(steps)]
        return subprocess.run(program, check=False, timeout=120, capture_output=True, text=True)

    assert run(3).returncode == -signal.SIGKILL  # in the second step of the second day
    assert json.loads(daily.ledger.read_text())["backfills"]
    assert run(3).returncode == -signal.SIGKILL  # in the second step of the last
    done = run(100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "done before,done before,done before,done"
    amounts = sorted((row["id"], row["amount"]) for row in rows(daily.root / "lake/orders"))
    assert amounts == [(1, 15.0), (2, 25.0), (3, 35.0), (4, 45.0)]


def test_the_command_line_runs_a_range_and_says_how_to_go_on(daily: Daily) -> None:
    daily.lands(1, 2)
    arguments = ["run", str(daily.file), "--param", "day=2025-03-01..2025-03-03"]
    stopped = CliRunner().invoke(cli, arguments)
    assert stopped.exit_code == 4
    for words in (
        "done        day=2025-03-02",
        "failed      day=2025-03-03",
        "start the same backfill again",
    ):
        assert words in stopped.output
    daily.lands(3)
    done = CliRunner().invoke(cli, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["status"] == "3 runs done, 2 of them before"
    assert [one["status"] for one in told["runs"]] == ["done before", "done before", "done"]
    assert told["runs"][2]["values"] == {"day": "2025-03-03"}
    assert os.path.exists(told["runs"][2]["html_path"])
    alone = CliRunner().invoke(cli, ["run", str(daily.file), "--start-over"])
    assert alone.exit_code == 2
    assert "goes with a range" in alone.output


def test_spark_submit_takes_a_range_as_well(daily: Daily, capsys: pytest.CaptureFixture[str]) -> None:
    daily.lands(1, 2)
    assert main([str(daily.file), "--param", "day=2025-03-01..2025-03-02"]) == 0
    assert "2 runs done" in capsys.readouterr().out
    assert main([str(daily.file), "--param", "day=2025-03-02..2025-03-03"]) == 1
    assert main([str(daily.file), "--param", "day=2025-03-02..2025-03-01"]) == 2


def test_a_module_has_backfills_as_well(daily: Daily, rows: Any) -> None:
    daily.lands(1, 2)
    module = daily.root / "daily.py"
    module.write_text(
        "from datetime import date\n"
        "from intarsia import pipeline\n"
        "daily = pipeline.Pipeline('daily', engine='arrow')\n"
        "day = daily.param('day', date(2025, 1, 1))\n"
        "daily.files('landing', f'in/{day}.csv')\n"
        "@daily.source\n"
        "def dated(landing, day):\n"
        "    return landing.append_column('day', [[day] * landing.num_rows])\n"
        "daily.merge(dated, into='lake/days', on='id')\n"
    )
    report = pipeline.run_backfill(module, over={"day": "2025-03-01..2025-03-02"}, progress=False).check()
    assert report.count("done") == 2
    found = sorted((row["id"], row["day"]) for row in rows(daily.root / "lake/days"))
    assert found == [(1, date(2025, 3, 1)), (2, date(2025, 3, 2))]


def test_the_command_line_of_a_dry_run_says_planned(daily: Daily) -> None:
    daily.lands(1, 2)
    told = CliRunner().invoke(
        cli, ["run", str(daily.file), "--param", "day=2025-03-01..2025-03-02", "--dry-run"]
    )
    assert [line.split()[0] for line in told.stdout.splitlines()[:2]] == ["planned", "planned"]
