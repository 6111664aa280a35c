"""The example of ibis, with the real package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ibis", reason="ibis has pins of its own: make doors")

import intarsia as it

SHOP = Path(__file__).parents[2] / "examples" / "integrations" / "ibis" / "shop.py"


def test_the_example_runs_twice(tmp_path: Path) -> None:
    for _ in range(2):
        command = [sys.executable, str(SHOP)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=True)
        assert "200 updated, 2 files rewritten" in done.stdout
        assert "Decimal('4900.00')" in done.stdout
        assert "Decimal('2450.00')" in done.stdout
    assert it.snapshot(tmp_path / "lake" / "orders").rows == 1000
