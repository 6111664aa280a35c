"""The examples of packages that are in the development environment; the others are run by their own tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import intarsia as it

EXAMPLES = Path(__file__).parents[2] / "examples" / "integrations"


@pytest.mark.parametrize(
    ("name", "shown"),
    [("polars", "1650.00"), ("pandas", "9       999     999"), ("duckdb", "Decimal('2450.00')")],
)
def test_an_example_runs_twice(name: str, shown: str, tmp_path: Path) -> None:
    script = EXAMPLES / name / "shop.py"
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=True,
        )
    assert shown in done.stdout
    assert it.snapshot(tmp_path / "lake" / "orders").rows == 1000
