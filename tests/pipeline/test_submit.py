from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from intarsia.pipeline import submit
from intarsia.pipeline.submit import main

Ids = Callable[[Any], list[int]]


def test_a_file_is_run_and_each_step_told(shop: Any, ids: Ids, capsys: pytest.CaptureFixture[str]) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0), 2: ("eu", -5.0)})
    assert main([str(shop.file)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("upsert: done (2 inserted; 1 file written), ")
    assert told[1].startswith("purge: done (1 deleted; 1 file written), ")
    assert told[3].startswith("shop: done in ")
    assert told[4].startswith("Report: ")
    assert ids(shop) == [1]


def test_a_failed_step_gives_exit_code_1_and_its_message(
    shop: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(shop.file)]) == 1
    told = capsys.readouterr().out
    assert "upsert: failed: " in told
    assert "shop: failed at 'upsert'" in told


def test_a_file_that_is_wrong_gives_exit_code_2_and_says_where(
    shop: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.declare(shop.file.read_text().replace("where", "wher"))
    assert main([str(shop.file)]) == 2
    told = capsys.readouterr().out
    assert "InputError" in told
    assert "did you mean 'where'?" in told


def test_a_dry_run_writes_nothing(shop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    assert main([str(shop.file), "--dry-run"]) == 0
    assert "dry run, nothing written" in capsys.readouterr().out
    assert not shop.lake.exists()


def test_parameters_and_the_engine_are_options(shop: Any, ids: Ids) -> None:
    text = (
        shop.file.read_text().replace("*.csv", "${day}.csv").replace('engine = "arrow"', 'engine = "spark"')
    )
    shop.declare(text)
    shop.lands("mon.csv", {1: ("eu", 5.0)})
    assert main([str(shop.file), "--param", "day=mon", "--engine", "arrow"]) == 0
    assert ids(shop) == [1]


def test_a_parameter_without_a_value_is_refused(shop: Any) -> None:
    with pytest.raises(SystemExit):
        main([str(shop.file), "--param", "day"])


def test_no_module_beside_the_program_hides_one_that_python_brings() -> None:
    """A program's own directory comes first on the path."""
    beside = {path.stem for path in Path(submit.__file__).parent.glob("*.py")} - {"__init__", "__main__"}
    assert beside & set(sys.stdlib_module_names) == set()


def test_the_package_can_be_run(shop: Any, ids: Ids) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    command = [sys.executable, "-W", "error", "-m", "intarsia.pipeline", str(shop.file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ids(shop) == [1]
