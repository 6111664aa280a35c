"""Errors name the line of the pipeline file, and what can be known is told before the first step writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from intarsia import pipeline
from intarsia.errors import InputError
from intarsia.pipeline.places import complete_place, find_toml_lines

TEXT = """\
name = "shop"  # [sources.fake]
sources.raw.path = "raw.csv"

[sources.totals]
columns = [
  "region",
  "[sources.lost]",
]
sql = \"\"\"
select region,
  sum(amount)
from raw
\"\"\"
where = "region <> '#'"

[targets]
lake.path = 'lake'

[[steps]]
operation = "merge"

[[steps]]
operation = "compact"

[env.dev.sources.totals]
sql = 'select 1'
"""


def test_places_have_the_lines_of_the_file() -> None:
    lines = find_toml_lines(TEXT)
    text = TEXT.splitlines()
    assert text[lines["[sources.raw] path"] - 1].startswith("sources.raw.path")
    assert text[lines["[sources.totals]"] - 1] == "[sources.totals]"
    assert text[lines["[sources.totals] sql"] - 1] == "select region,"
    assert text[lines["[sources.totals] where"] - 1].startswith("where")
    assert text[lines["[targets.lake] path"] - 1].startswith("lake.path")
    assert [lines[f"[[steps]] {number}"] for number in (1, 2)] == [19, 22]
    assert not [place for place in lines if "fake" in place or "lost" in place]
    assert text[lines["[env.dev]"] - 1] == "[env.dev.sources.totals]"
    assert text[lines["[env.dev] sources"] - 1] == "[env.dev.sources.totals]"
    assert text[find_toml_lines(TEXT, "dev")["[sources.totals] sql"] - 1] == "sql = 'select 1'"


SHOP = """
engine = "duckdb"

[sources.raw]
path = "raw.csv"

[sources.totals]
SOURCE

[targets.lake]
path = "lake"

[targets.out]
path = "out"

[[steps]]
name = "lake"
operation = "merge"
source = "raw"
target = "lake"
on = "id"

[[steps]]
name = "out"
operation = "merge"
source = "totals"
target = "out"
on = "id"
"""


def declare(root: Path, source: str) -> Path:
    (root / "raw.csv").write_text("id,amount\n1,2.5\n")
    (root / "shop.toml").write_text(SHOP.replace("SOURCE", source))
    return root / "shop.toml"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ('sql = """\nselect id\nfrom rw\n"""', "line 10, [sources.totals] sql: there is no source or"),
        ('sql = "select id from rw"', "line 8, [sources.totals] sql: there is no source or target 'rw'"),
        ("sql = 'select ${x} as id from raw'", "line 8, [sources.totals] sql: ${x} is neither"),
        ("sql = 'select * from more'\n[sources.more]\nsql = 'select * from totals'", "line 7, [sources.to"),
        ("sql = 'select id from raw'\nwher = 'x'", "line 7, [sources.totals]: the key 'wher'"),
    ],
)  # fmt: skip
def test_a_mistake_is_refused_with_its_line(tmp_path: Path, source: str, told: str) -> None:
    file = declare(tmp_path, source)
    with pytest.raises(InputError) as caught:
        pipeline.load(file)
    assert str(caught.value).startswith(f"{file}, {told}")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ('sql = """\nselect id,\namuont\nfrom raw\n"""', "shop.toml, line 10, [sources.totals] sql: DuckDB"),
        ('sql = "select amount from raw"', "shop.toml, line 8, [sources.totals] sql: key column 'id' is"),
        (
            'path = "raw.csv"\ncolumns = { id = "bigint", price = "double" }',
            "shop.toml, line 7, [sources.totals]: {root}/raw.csv: The source has no column 'price'; it has",
        ),
        ('python = "functions.py:score"', "functions.py, line 2: there is no module 'not_installed'"),
    ],
)  # fmt: skip
def test_what_is_known_of_a_later_step_is_told_before_the_first_writes(
    tmp_path: Path, source: str, told: str
) -> None:
    functions = "import os\nimport not_installed\n\n\ndef score(raw):\n    return raw\n"
    (tmp_path / "functions.py").write_text(functions)
    report = pipeline.run_file(declare(tmp_path, source), progress=False)
    assert [step.status for step in report.steps] == ["not run", "failed"]
    assert told.replace("{root}", str(tmp_path)) in str(report.steps[1].error)
    assert not (tmp_path / "lake").exists()


def test_columns_that_only_files_taken_before_lack_are_no_mistake(tmp_path: Path) -> None:
    raw = 'path = "totals*.csv"\ncolumns = { id = "bigint", amount = "double" }'
    (tmp_path / "totals1.csv").write_text("id,amount\n1,5\n")
    pipeline.run_file(declare(tmp_path, raw), progress=False).check()
    (tmp_path / "totals2.csv").write_text("id,amount,price\n2,5,7\n")
    file = declare(tmp_path, raw.replace("amount", "price"))
    (tmp_path / "raw.csv").write_text("id,amount\n1,6\n")
    file.write_text(file.read_text() + 'schema_evolution = "add"\nmissing = "null"\n')
    report = pipeline.run_file(file, progress=False).check()
    assert [step.status for step in report.steps] == ["done", "done"]


def test_an_error_of_a_run_that_names_a_declaration_gets_its_file_and_line() -> None:
    lines = {"[sources.clicks]": 3, "[sources.clicks] sql": 4}
    for told, completed in (
        ("[sources.clicks]: Spark refuses it.", "web.toml, line 3, [sources.clicks]: Spark refuses it."),
        ("[sources.clicks] stream: no.", "web.toml, line 3, [sources.clicks] stream: no."),
        ("[sources.other]: no.", "web.toml, [sources.other]: no."),
        ("web.toml, line 9, [sources.clicks] sql: no.", "web.toml, line 9, [sources.clicks] sql: no."),
        ("The source has no column 'x'.", "The source has no column 'x'."),
    ):
        error = InputError(told)
        complete_place(error, lines, "/lake/web.toml")
        assert error.message == completed
        assert str(error) == completed


def test_an_import_that_is_only_tried_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(
        "import rules\n\ntry:\n    import not_installed\nexcept ImportError:\n    not_installed = None\n\n\n"
        "def score(raw):\n    return raw\n"
    )
    (tmp_path / "rules.py").write_text("LEAST = 0\n")
    report = pipeline.run_file(declare(tmp_path, 'python = "functions.py:score"'), progress=False)
    assert [step.status for step in report.check().steps] == ["done", "done"]
