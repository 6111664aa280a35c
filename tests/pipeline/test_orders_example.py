"""The pipeline that ``make demo`` runs, small; and the files that the documentation shows."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from intarsia import pipeline

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "pipeline.md"
FENCE = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _demo(output: Path, *arguments: str) -> str:
    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "examples" / "pipeline_demo.py")),
            *("--days", "2", "--rows", "2000", "--output", str(output), *arguments),
        ],
        env={**os.environ, "COLUMNS": "96", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def _ends_with_a_report(told: str, output: Path) -> None:
    assert told.count("each as the model has it") == 3  # two days of orders, and the Iceberg table
    assert "10 steps unchanged" in told
    found = re.search(r"The report of the last day: file://(\S+\.html)\s*$", told)
    assert found is not None
    page = Path(found[1])
    assert page.parent == output / "reports"
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") >= 10
    assert not re.search(r"""src=|@import|url\((?!#)|<link|<script""", text)


def test_the_demo_runs_on_arrow_and_ends_with_its_report(tmp_path: Path) -> None:
    _ends_with_a_report(_demo(tmp_path, "--engine", "arrow"), tmp_path)


@pytest.mark.slow
def test_the_demo_runs_on_spark_and_ends_with_its_report(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed: the demo is not run on Spark")
    _ends_with_a_report(_demo(tmp_path), tmp_path)


def test_the_example_has_every_kind_of_step_the_demo_promises() -> None:
    made = pipeline.load(ROOT / "examples" / "orders.toml")
    assert {step.operation for step in made.steps} == {
        *("expect", "merge", "write", "deduplicate", "delete", "update", "compact", "optimize")
    }
    assert made.engine == "spark"


@pytest.mark.parametrize("number", range(len(FENCE.findall(DOC.read_text(encoding="utf-8")))))
def test_every_toml_file_in_the_documentation_is_a_pipeline(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = FENCE.findall(DOC.read_text(encoding="utf-8"))[number]
    monkeypatch.setenv("LAKE", "/lake")
    if "[[steps]]" not in text:  # a part of one
        text += '\n[targets.nothing]\npath = "x"\n[[steps]]\noperation = "compact"\ntarget = "nothing"\n'
    assert pipeline.loads(text).steps


def test_the_documentation_names_every_key_of_every_table() -> None:
    text = DOC.read_text(encoding="utf-8")
    kinds = [
        *(pipeline.Source, pipeline.Target, pipeline.SparkSettings, pipeline.Merge, pipeline.Write),
        *(pipeline.Delete, pipeline.Update, pipeline.Compact, pipeline.Optimize, pipeline.Deduplicate),
        pipeline.Expect,
    ]
    names = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []
