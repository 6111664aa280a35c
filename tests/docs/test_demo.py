from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest

ROOT = Path(__file__).parents[2]


def _run(script: str, *arguments: str, cwd: Path) -> str:
    plain = {**os.environ, "COLUMNS": "96", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / script), *arguments],
        cwd=cwd,
        env=plain,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    directory = tmp_path_factory.mktemp("demo")
    return _run("demo.py", "--rows", "20000", cwd=directory), directory / "demo-output"


def test_the_demo_tells_why_files_are_kept_or_rewritten(demo: tuple[str, Path]) -> None:
    told, _ = demo
    for reason in (
        "partition: not in the source",
        "bounds exclude every key",
        "key scan: no row hit",
        "key scan: rows hit",
        "partition values prove every row goes",
    ):
        assert reason in told


def test_the_demo_stays_within_the_width_of_a_terminal(demo: tuple[str, Path]) -> None:
    told, _ = demo
    # Lines of code and the address of the page are not broken.
    wide = [
        line for line in told.splitlines() if len(line) > 96 and ">>>" not in line and "file:" not in line
    ]
    assert wide == []


def test_the_demo_leaves_a_dataset_that_others_read_and_nothing_staged(demo: tuple[str, Path]) -> None:
    told, output = demo
    counted = re.findall(r"([\d,]+) after$", told, re.MULTILINE)
    rows = ds.dataset(output / "orders", partitioning="hive").count_rows()
    assert rows == int(counted[-1].replace(",", ""))
    staged = output / ".orders.intarsia" / "tx"
    assert not staged.exists() or not list(staged.iterdir())


def test_the_demo_writes_a_page_that_needs_nothing_else(demo: tuple[str, Path]) -> None:
    told, output = demo
    page = (output / "page.html").read_text(encoding="utf-8")
    assert (output / "page.html").as_uri() in told
    assert page.count("<svg") >= 8
    assert not re.search(r"""(src|href)=["']|@import|url\((?!#)""", page)


def test_the_picture_in_the_readme_is_of_the_plan_that_its_script_makes(tmp_path: Path) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import layout; print(layout.draw())"
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "examples")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    kept = (ROOT / "docs" / "layout.svg").read_text(encoding="utf-8")
    # Sizes in bytes may differ by release of pyarrow; which files are what may not.
    tiles = re.compile(r'<rect class="(\w+)"')
    assert tiles.findall(done.stdout) == tiles.findall(kept)
    assert len(tiles.findall(kept)) > 90
