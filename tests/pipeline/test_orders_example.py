"""The pipelines of the examples and of ``make demo``, small; and the files that the documentation shows."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from intarsia import pipeline
from intarsia.pipeline.model import KINDS

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "examples" / "shop" / "shop.toml"
PAGES = [ROOT / "docs" / "pipeline.md", *sorted((ROOT / "docs" / "pipeline").glob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOC = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
FENCE = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _demo(script: str, output: Path, *arguments: str) -> str:
    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "examples" / script)),
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


def _ends_with_a_report(told: str, output: Path) -> str:
    found = re.search(r"The report of the last day: file://(\S+\.html)\s*$", told)
    assert found is not None
    page = Path(found[1])
    assert page.parent == output / "reports"
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"""src=|@import|url\((?!#)|<link|<script""", text)
    return text


def test_every_operation_runs_on_some_days_of_orders(tmp_path: Path) -> None:
    told = _demo("orders_demo.py", tmp_path, "--engine", "arrow")
    assert told.count("each as the model has it") == 3  # two days of orders, and the Iceberg table
    assert "10 steps unchanged" in told
    assert _ends_with_a_report(told, tmp_path).count("<svg") >= 10


@pytest.mark.slow
def test_the_demo_runs_on_spark_and_ends_with_its_report(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed: the demo is not run on Spark")
    told = _demo("pipeline_demo.py", tmp_path)
    assert told.count("every table as the model has it") == 2
    assert f"{len(pipeline.load(SHOP).steps)} steps unchanged" in told
    assert "web.visits" in told  # the graph
    assert _ends_with_a_report(told, tmp_path).count("<svg") >= 8


def test_the_demo_has_every_kind_of_source_and_target_that_it_promises() -> None:
    made = pipeline.load(SHOP)
    kinds = ("path", "stream", "sql", "sql_file", "python")
    assert {kind for kind in kinds for source in made.sources.values() if getattr(source, kind)} == set(kinds)
    assert {target.kind for target in made.targets.values()} == {"parquet", "iceberg"}
    assert {step.mode for step in made.steps} >= {"overwrite_partitions"}
    assert {step.action for step in made.steps if isinstance(step, pipeline.Expect)} >= {"quarantine"}
    assert made.engine == "spark"


def test_the_queries_of_the_demo_pass_their_tests() -> None:
    pytest.importorskip("duckdb")
    reports = pipeline.run_tests(SHOP, name="query", engine="duckdb")
    assert [report.describe() for report in reports] == [[], []]


def test_the_example_has_every_kind_of_step() -> None:
    made = pipeline.load(ROOT / "examples" / "orders.toml")
    assert {step.operation for step in made.steps} == {
        *("expect", "merge", "write", "deduplicate", "delete", "update", "compact", "optimize")
    }
    assert made.engine == "spark"


@pytest.mark.parametrize("number", range(len(FENCE.findall(README + DOC))))
def test_every_toml_file_in_the_documentation_is_a_pipeline(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = FENCE.findall(README + DOC)[number]
    monkeypatch.setenv("LAKE", "/lake")
    monkeypatch.setenv("LINEAGE_KEY", "secret")
    if "[[steps]]" not in text:  # a part of one
        text += '\n[targets.nothing]\npath = "x"\n[[steps]]\noperation = "compact"\ntarget = "nothing"\n'
    assert pipeline.loads(text).steps


def test_the_documentation_names_every_key_of_every_table() -> None:
    tables = (pipeline.Source, pipeline.Target, pipeline.SparkSettings, pipeline.Stream)
    names = {field.name for kind in (*tables, pipeline.LineageSettings) for field in dataclasses.fields(kind)}
    names |= {name for kind in KINDS.values() for name in kind.list_keys()}
    assert [name for name in sorted(names) if f"`{name}`" not in DOC] == []
