"""Pipelines that a Python module declares: what they mean, when their steps run again, what is refused."""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import intarsia as it
from intarsia import pipeline
from intarsia.cli.commands import cli
from intarsia.cli.completion import offer_environments, offer_steps
from intarsia.errors import InputError, NothingMatched

ORDERS = '''"""Orders of a day, cleaned."""

from datetime import date

import pyarrow.compute as pc

from intarsia import pipeline

orders = pipeline.Pipeline("orders", engine="duckdb")
day = orders.param("day", date(2025, 3, 1))
landing = orders.files("landing", f"in/{day}.csv", columns={"order_id": "bigint", "amount": "double"})


@orders.source
def clean(landing, day):
    assert isinstance(day, date)
    return landing.filter(pc.field("amount") > 0)


orders.sql("large", f"select * from orders where amount > 4 and date '2025-03-01' <= {day}")
orders.expect(clean, name="sound", not_null="order_id")
orders.merge(clean, into="lake/orders", on="order_id", name="upsert")
orders.write("large", into="lake/large", mode="overwrite", name="large")
orders.delete("orders", "amount > 1000", name="cap")
orders.environment("dev", targets={"orders": {"path": "dev/orders"}, "large": {"path": "dev/large"}})
'''
SAME = """
name = "orders"
engine = "duckdb"
[params]
day = 2025-03-01
[sources.landing]
path = "in/${day}.csv"
columns = { order_id = "bigint", amount = "double" }
[sources.clean]
python = "orders.py:clean"
[sources.large]
sql = "select * from orders where amount > 4 and date '2025-03-01' <= ${day}"
[targets.orders]
path = "lake/orders"
[targets.large]
path = "lake/large"
[[steps]]
name = "sound"
operation = "expect"
source = "clean"
not_null = "order_id"
[[steps]]
name = "upsert"
operation = "merge"
source = "clean"
target = "orders"
on = "order_id"
[[steps]]
name = "large"
operation = "write"
source = "large"
target = "large"
mode = "overwrite"
[[steps]]
name = "cap"
operation = "delete"
target = "orders"
where = "amount > 1000"
[env.dev.targets.orders]
path = "dev/orders"
[env.dev.targets.large]
path = "dev/large"
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/2025-03-01.csv").write_text("order_id,amount\n1,5\n2,-1\n")
    (tmp_path / "in/2025-03-02.csv").write_text("order_id,amount\n3,2\n")
    file = tmp_path / "orders.py"
    file.write_text(ORDERS)
    return file


def _statuses(file: Path, **options: Any) -> dict[str, str]:
    return {
        step.name: step.status for step in pipeline.run_file(file, progress=False, **options).check().steps
    }


def _change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def _refused(file: Path, text: str, path: str | None = None) -> str:
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        pipeline.load(path or file)
    return str(caught.value)


@pytest.mark.parametrize("options", [{}, {"env": "dev"}, {"params": {"day": "2025-03-02"}}])
def test_a_module_and_a_file_that_say_the_same_make_the_same_pipeline(
    module: Path, options: dict[str, Any]
) -> None:
    file = module.with_name("orders.toml")
    file.write_text(SAME)
    made, read = pipeline.load(module, **options), pipeline.load(file, **options)
    assert made == read
    assert made.scopes == read.scopes != {}
    assert made.params == read.params
    assert made.origin == str(module)


def test_a_module_runs_as_a_file_does_and_once(module: Path, rows: Any) -> None:
    done = dict.fromkeys(("sound", "upsert", "large", "cap"), "done")
    assert _statuses(module) == done
    assert [row["order_id"] for row in rows(module.parent / "lake/orders")] == [1]
    assert [row["order_id"] for row in rows(module.parent / "lake/large")] == [1]
    assert set(_statuses(module).values()) == {"unchanged"}
    file = module.with_name("orders.toml")
    file.write_text(SAME)
    assert set(_statuses(file).values()) == {"unchanged"}  # the same pipeline, also for the state
    assert _statuses(module, params={"day": "2025-03-02"})["upsert"] == "done"
    assert sorted(row["order_id"] for row in rows(module.parent / "lake/orders")) == [1, 3]


def test_the_command_line_runs_a_module_with_parameters_and_environments(module: Path, rows: Any) -> None:
    arguments = ["run", str(module), "--param", "day=2025-03-02", "--env", "dev", "--only", "upsert"]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert [row["order_id"] for row in rows(module.parent / "dev/orders")] == [3]
    assert not (module.parent / "lake").exists()
    assert offer_steps(str(module), "u") == ["upsert"]
    assert offer_environments(f"{module}:orders", "") == ["dev"]


def test_a_function_runs_again_when_it_has_changed_and_not_when_only_steps_have(module: Path) -> None:
    _statuses(module)
    _change(
        module,
        '''orders.delete("orders"''',
        '''# a comment\norders.compact("orders")\norders.delete("orders"''',
    )
    assert _statuses(module)["upsert"] == "unchanged"
    _change(module, 'pc.field("amount") > 0', 'pc.field("amount") > -5')
    assert _statuses(module)["upsert"] == "done"
    _change(module, "import pyarrow.compute as pc", "import pyarrow.compute as pc\n\nLEAST = 0")
    assert _statuses(module)["upsert"] == "done"  # the function might use it


def test_another_source_counts_where_the_function_calls_it(module: Path) -> None:
    other = "@orders.source\ndef other(landing):\n    return keep(landing, 0)\n\n\n"
    _change(module, "@orders.source\n", f"{other}@orders.source\n")
    _change(module, "def clean", "def clean")
    _statuses(module, only="upsert")
    _change(module, "keep(landing, 0)", "keep(landing, 1)")
    assert _statuses(module, only="upsert")["upsert"] == "unchanged"
    _change(module, "    assert isinstance", "    other and None\n    assert isinstance")
    assert _statuses(module, only="upsert")["upsert"] == "done"
    _change(module, "keep(landing, 1)", "keep(landing, 2)")
    assert _statuses(module, only="upsert")["upsert"] == "done"


def test_modules_beside_the_file_are_imported_anew_and_count_as_changed(module: Path, rows: Any) -> None:
    root = module.parent
    (root / "rules").mkdir()
    (root / "rules/limits.py").write_text("from . import base\nLEAST = base.ZERO\n")
    (root / "rules/base.py").write_text("ZERO = 0\n")
    (root / "helpers.py").write_text("from rules.limits import LEAST\n")
    _change(module, "import pyarrow.compute as pc", "import pyarrow.compute as pc\nimport helpers")
    _change(
        module, "    return landing", "    from rules import limits\n\n    assert limits\n    return landing"
    )
    _change(module, "> 0)", "> helpers.LEAST)")
    assert _statuses(module)["upsert"] == "done"
    assert _statuses(module)["upsert"] == "unchanged"
    (root / "rules/base.py").write_text("ZERO = -9\n")
    assert _statuses(module)["upsert"] == "done"
    assert sorted(row["order_id"] for row in rows(root / "lake/orders")) == [1, 2]
    assert not {"helpers", "rules", "rules.limits", "orders"} & set(sys.modules)
    assert not list(root.rglob("*.pyc"))


def test_a_file_of_functions_has_modules_beside_it_as_well(module: Path) -> None:
    root = module.parent
    (root / "transforms.py").write_text(
        "import helpers\ndef clean(landing, day):\n    return helpers.keep(landing)\n"
    )
    (root / "helpers.py").write_text("def keep(rows):\n    return rows\n")
    file = root / "orders.toml"
    file.write_text(SAME.replace("orders.py:clean", "transforms.py:clean"))
    assert _statuses(file)["upsert"] == "done"
    assert _statuses(file)["upsert"] == "unchanged"
    (root / "helpers.py").write_text("def keep(rows):\n    return rows.slice(1)\n")
    assert _statuses(file)["upsert"] == "done"
    (root / "helpers.py").write_text("def keep(rows)\n    return rows\n")
    with pytest.raises(InputError, match=r"helpers\.py, line 1: it is not Python"):
        pipeline.load(file)


def test_a_module_of_the_same_name_that_is_imported_stays_what_it_is(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = type(sys)("helpers")
    monkeypatch.setitem(sys.modules, "helpers", mine)
    (module.parent / "helpers.py").write_text("LEAST = 0\n")
    _change(module, "import pyarrow.compute as pc", "import pyarrow.compute as pc\nfrom helpers import LEAST")
    assert pipeline.load(module).name == "orders"
    assert sys.modules["helpers"] is mine


def test_a_script_can_run_its_own_pipeline(module: Path, tmp_path: Path, rows: Any) -> None:
    run = "\n\nif __name__ == '__main__':\n    pipeline.run(orders, progress=False).check()\n"
    module.write_text(module.read_text() + run)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    subprocess.run([sys.executable, str(module)], check=True, cwd=elsewhere, timeout=120)
    assert [row["order_id"] for row in rows(tmp_path / "lake/orders")] == [1]
    assert set(_statuses(module).values()) == {"unchanged"}


def test_one_of_several_pipelines_is_chosen_by_its_variable(module: Path) -> None:
    more = '\nnightly = pipeline.Pipeline("tidy", engine="arrow")\nnightly.compact("./lake/orders")\n'
    module.write_text(module.read_text() + more)
    assert pipeline.load(f"{module}:nightly").name == "tidy"
    assert pipeline.load(f"{module}:orders").name == "orders"
    with pytest.raises(InputError, match=r"several pipelines: nightly, orders.*orders\.py:nightly"):
        pipeline.load(module)
    with pytest.raises(InputError, match=r"no pipeline 'order'.*did you mean 'orders'"):
        pipeline.load(f"{module}:order")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", ["declares no pipeline", "pipeline.Pipeline("]),
        ("x = (\n", ["orders.py, line 1", "not Python"]),
        ("x = 1\nx / 0\n", ["orders.py, line 2", "ZeroDivisionError"]),
        ("import nowhere_at_all\n", ["orders.py, line 1", "nowhere_at_all"]),
        ("raise SystemExit('stop')\n", ["orders.py, line 1", "stop"]),
        (ORDERS.replace("not_null=", "not_nul="), ["orders.py, line 21", "did you mean 'not_null'"]),
        (ORDERS.replace("columns=", "colums="), ["line 11", "[sources.landing]", "did you mean 'columns'"]),
        (ORDERS.replace('delete("orders"', 'delete("ordrs"'), ["line 24", "did you mean 'orders'"]),
        (
            ORDERS.replace('on="order_id"', "on=3"),
            ["orders.py, line 22", "[[steps]] 2 (upsert) on", "the number 3"],
        ),
        (ORDERS.replace('write("large"', 'write("lage"'), ["line 23", "[[steps]] 3", "did you mean 'large'"]),
        (ORDERS.replace("select *", "selec *"), ["orders.py, line 20", "[sources.large]"]),
        (ORDERS.replace("def clean(landing,", "def clean(landin,"), ["line 14", "did you mean 'landing'"]),
        (
            ORDERS.replace("(landing, day)", "(landing)"),
            ["orders.py:clean uses the parameter 'day'", "def clean(..., day)"],
        ),
        (ORDERS + 'orders.files("landing", "x.csv")\n', ["line 26", "declared already"]),
        (ORDERS + 'orders.compact("other/orders")\n', ["line 26", "lake/orders, not other/orders"]),
        (ORDERS + "orders.source(lambda landing: landing)\n", ["line 26", "no function at the top"]),
        (ORDERS + 'orders.environment("test", engin="arrow")\n', ["[env.test]", "did you mean 'engine'"]),
        (ORDERS.replace("merge(clean, ", "merge(cleaned, "), ["orders.py, line 22", "NameError"]),
    ],
)
def test_mistakes_in_a_module_are_told_with_their_line(module: Path, text: str, words: list[str]) -> None:
    said = _refused(module, text)
    for word in words:
        assert word in said
    assert not (module.parent / "lake").exists()


def test_a_module_that_is_not_there_is_no_match(tmp_path: Path) -> None:
    with pytest.raises(NothingMatched, match="no pipeline file"):
        pipeline.load(tmp_path / "gone.py")


def test_a_function_fails_with_its_file_and_line(module: Path) -> None:
    _change(module, "    assert isinstance(day, date)", "    raise ValueError('no such day')")
    failed = pipeline.run_file(module, progress=False).failed
    assert failed is not None
    assert "orders.py:clean, line 16 failed: ValueError: no such day" in str(failed.error)


def test_a_failure_in_a_module_beside_the_file_is_told_with_both_lines(module: Path) -> None:
    helpers = module.with_name("helpers.py")
    helpers.write_text("def keep(rows):\n    raise ValueError('not these')\n")
    _change(module, "import pyarrow.compute as pc", "import helpers")
    _change(module, '    return landing.filter(pc.field("amount") > 0)', "    return helpers.keep(landing)")
    failed = pipeline.run_file(module, progress=False).failed
    assert failed is not None
    assert "orders.py:clean, line 17 (helpers.py, line 2) failed: ValueError: not these" in str(failed.error)
    helpers.write_text("1 / 0\n")
    with pytest.raises(InputError, match=r"orders\.py, line 5 \(helpers\.py, line 1\) failed: ZeroDivision"):
        pipeline.load(module)


def test_what_is_declared_can_be_looked_at_and_functions_stay_functions(tmp_path: Path) -> None:
    made = pipeline.Pipeline("orders", engine="arrow")
    rows = made.files("landing", tmp_path / "*.csv")
    assert (
        made.merge(rows, into=tmp_path / "lake/orders", on=["a", "b"], when=(it.when_matched().delete(),))
        == "orders"
    )
    assert made.is_open
    assert made.steps[0].on == ["a", "b"]
    assert made.targets["orders"].path == str(tmp_path / "lake/orders")
    made.source(_score)
    assert made.sources["_score"].python == f"{__file__}:_score"
    assert _score(3) == 3
    pipeline.check(made)


def _score(landing: Any) -> Any:
    return landing


def test_a_pipeline_with_its_steps_is_a_value_to_which_nothing_is_added(tmp_path: Path) -> None:
    made = pipeline.Pipeline(
        "a", (pipeline.Compact(target="t"),), targets={"t": pipeline.Target(str(tmp_path))}
    )
    for add in (lambda: made.compact("t"), lambda: made.files("f", "x.csv"), lambda: made.param("p", 1)):
        with pytest.raises(InputError, match="has all its steps"):
            add()
    assert pickle.loads(pickle.dumps(made)) == made
    module = tmp_path / "p.py"
    module.write_text(
        "from intarsia import pipeline\n"
        "p = pipeline.Pipeline('p', (pipeline.Compact(target='t'),), targets={'t': pipeline.Target('x')},"
        " engine='arrow')\n"
    )
    assert pipeline.load(module).name == "p"
    with pytest.raises(InputError, match="has no parameter 'day'"):
        pipeline.load(module, params={"day": "1"})


def test_a_parameter_of_a_file_reaches_a_function_with_its_type(module: Path) -> None:
    file = module.with_name("orders.toml")
    file.write_text(SAME)
    assert pipeline.load(file, params={"day": "2025-03-02"}).sources["clean"].params == {
        "day": date(2025, 3, 2)
    }
    with pytest.raises(InputError, match=r"'soon', and in .* it is a date"):
        pipeline.load(file, params={"day": "soon"})
