from __future__ import annotations

import doctest
import importlib.util
import inspect
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.errors import InputError, KeyColumnError, NothingMatched

if importlib.util.find_spec("airflow") is None:
    pytest.skip("make doors DOORS=airflow runs this", allow_module_level=True)

DAGS = Path(__file__).parents[2] / "examples" / "integrations" / "airflow" / "dags"
BIN = Path(sys.executable).parent

pytestmark = [pytest.mark.timeout(1200), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home of Airflow with an empty database; set before Airflow is imported, which makes one otherwise."""
    made = tmp_path_factory.mktemp("airflow")
    said = {
        "AIRFLOW_HOME": str(made),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "SHOP": str(made / "shop"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in said.items():
            patch.setenv(name, value)
        yield made


@pytest.fixture
def operators(home: Path) -> Any:
    from intarsia.integrations import airflow

    return airflow


@pytest.fixture
def changes(tmp_path: Path) -> str:
    pq.write_table(pa.table({"id": [2, 3], "n": ["b2", "c"]}), tmp_path / "changes.parquet")
    return str(tmp_path / "changes.parquet")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    it.write(pa.table({"id": [1, 2], "n": ["a", "b"]}), tmp_path / "lake")
    return tmp_path / "lake"


def _execute(operator: Any) -> Any:
    """Run the operator's own code, without the runner of Airflow around it."""
    return type(operator).execute.__wrapped__(operator, {})


def test_an_operation_returns_its_counts_as_json(operators: Any, changes: str, lake: Path) -> None:
    merge = operators.IntarsiaOperator(
        task_id="merge", operation="merge", source=changes, target=str(lake), arguments={"on": "id"}
    )
    done = json.loads(json.dumps(_execute(merge)))
    assert (done["operation"], done["inserted"], done["updated"], done["total"]) == ("upsert", 1, 1, 3)
    assert done["changed"]
    again = _execute(merge)
    assert (again["inserted"], again["total"]) == (0, 3)


@pytest.mark.parametrize(
    ("operation", "arguments", "total"),
    [
        ("delete", {"where": "id = 1"}, 1),
        ("update", {"assignments": {"n": "'x'"}}, 2),
        ("compact", {}, 2),
        ("optimize", {"by": "n"}, 2),
        ("deduplicate", {"on": "id"}, 2),
    ],
)
def test_every_operation_can_be_run(
    operation: str, arguments: dict[str, Any], total: int, operators: Any, lake: Path
) -> None:
    run = operators.IntarsiaOperator(
        task_id="run", operation=operation, target=str(lake), arguments=arguments
    )
    assert _execute(run)["total"] == total


def test_what_is_refused_leaves_every_byte(
    operators: Any, changes: str, lake: Path, tmp_path: Path, unchanged: Any
) -> None:
    make = operators.IntarsiaOperator
    with pytest.raises(InputError, match="no operation 'mrege'"):
        make(task_id="run", operation="mrege", target=str(lake))
    with pytest.raises(InputError, match="merge needs a source"):
        make(task_id="run", operation="merge", target=str(lake))
    with pytest.raises(InputError, match="delete has no source"):
        make(task_id="run", operation="delete", source=changes, target=str(lake))
    with unchanged(lake), pytest.raises(KeyColumnError):
        said = {"on": "key"}
        _execute(make(task_id="run", operation="merge", source=changes, target=str(lake), arguments=said))
    with unchanged(lake), pytest.raises(NothingMatched):
        gone = str(tmp_path / "gone.csv")
        _execute(make(task_id="run", operation="write", source=gone, target=str(lake)))


def test_what_may_have_been_committed_is_not_retried(operators: Any, lake: Path, monkeypatch: Any) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from intarsia.errors import CommitError

    def fail(*_: Any, **__: Any) -> None:
        raise CommitError("the answer was lost.", changed=None)

    monkeypatch.setattr(it, "delete", fail, raising=False)
    run = operators.IntarsiaOperator(
        task_id="run", operation="delete", target=str(lake), arguments={"where": "true"}
    )
    with pytest.raises(AirflowFailException, match="the answer was lost"):
        _execute(run)


PIPELINE = """
name = "shop"
engine = "arrow"
[sources.changes]
path = "{changes}"
[targets.orders]
path = "{lake}"
[[steps]]
name = "upsert"
operation = "merge"
source = "changes"
target = "orders"
on = "{key}"
"""


def test_a_pipeline_returns_its_report_and_fails_as_its_step_does(
    operators: Any, changes: str, lake: Path, tmp_path: Path, unchanged: Any
) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(PIPELINE.format(changes=changes, lake=lake, key="id"), encoding="utf-8")
    run = operators.IntarsiaPipelineOperator(task_id="run", pipeline=str(file))
    report = json.loads(json.dumps(_execute(run)))
    assert [(step["name"], step["status"]) for step in report["steps"]] == [("upsert", "done")]
    assert "graph" not in report
    wrong = PIPELINE.format(changes=changes, lake=lake, key="nothing").replace('"shop"', '"wrong"')
    file.write_text(wrong, encoding="utf-8")
    with unchanged(lake), pytest.raises(KeyColumnError):
        _execute(run)


def _airflow(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / "airflow", *arguments], capture_output=True, text=True, check=False)


def test_the_example_runs_in_airflow_and_its_asset_gets_an_event(home: Path) -> None:
    landing = home / "shop" / "landing"
    landing.mkdir(parents=True)
    (landing / "2025-03-01.csv").write_text("order_id,amount\n1,9.50\n2,20.00\n", encoding="utf-8")
    migrated = _airflow("db", "migrate")
    assert migrated.returncode == 0, migrated.stderr
    tested = _airflow("dags", "test", "shop", "2025-03-01")
    assert tested.returncode == 0, tested.stdout + tested.stderr
    orders = it.read(home / "shop" / "lake" / "orders").read_all()
    assert orders.schema.field("amount").type == pa.decimal128(10, 2)
    with sqlite3.connect(home / "airflow.db") as database:
        ((name, extra),) = database.execute(
            "select asset.name, event.extra from asset_event event join asset on asset.id = event.asset_id"
        ).fetchall()
        ((state,),) = database.execute("select state from dag_run").fetchall()
    database.close()
    assert (name, state) == ("orders", "success")
    assert (json.loads(extra)["inserted"], json.loads(extra)["total"]) == (2, 2)


def test_the_command_line_gives_json_and_exit_codes(lake: Path, changes: str, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "intarsia", *arguments, "--json"]
        return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})

    done = run("merge", changes, str(lake), "--key", "id")
    assert (done.returncode, json.loads(done.stdout)["inserted"]) == (0, 1)
    refused = run("merge", changes, str(lake), "--key", "key")
    assert (refused.returncode, json.loads(refused.stderr)["error"]) == (1, "KeyColumnError")
    assert json.loads(refused.stderr)["changed"] is False
    absent = run("merge", str(tmp_path / "gone.csv"), str(lake), "--key", "id")
    assert (absent.returncode, json.loads(absent.stderr)["error"]) == (4, "NothingMatched")


@pytest.mark.parametrize("name", ["IntarsiaOperator", "IntarsiaPipelineOperator"])
def test_the_example_in_a_docstring_runs(name: str, operators: Any) -> None:
    text = inspect.getdoc(getattr(operators, name)) or ""
    parsed = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert parsed.examples
    assert not doctest.DocTestRunner().run(parsed).failed
