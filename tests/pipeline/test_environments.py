"""Environments: what they override, what stays apart, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from intarsia import pipeline
from intarsia.cli.commands import cli
from intarsia.errors import DamagedTable, InputError

DEV = """
[env.dev.params]
least = 3

[env.dev.targets.orders]
path = "dev/orders"

[env.dev.steps.purge]
where = "amount < ${least}"

[env.empty]
"""


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INTARSIA_ENV", raising=False)


@pytest.fixture
def with_dev(shop: Any) -> Any:
    text = shop.file.read_text().replace("[sources.landing]", "[params]\nleast = 0\n[sources.landing]")
    shop.declare(text + DEV)
    shop.lands("a.csv", {1: ("eu", 5.0), 2: ("eu", 1.0)})
    return shop


def test_an_environment_overrides_tables_key_by_key_and_steps_by_name(with_dev: Any) -> None:
    plain, dev = pipeline.load(with_dev.file), pipeline.load(with_dev.file, env="dev")
    assert (plain.env, dev.env) == (None, "dev")
    assert dev.targets["orders"].path == str(with_dev.root / "dev/orders")
    assert dev.targets["orders"].partition_by == plain.targets["orders"].partition_by == ("region",)
    assert dev.sources == plain.sources
    assert [step.where for step in dev.steps] == [None, "amount < 3", None]
    assert [step.where for step in plain.steps] == [None, "amount < 0", None]
    assert pipeline.load(with_dev.file, env="dev", params={"least": "4"}).steps[1].where == "amount < 4"


def test_state_and_reports_of_an_environment_are_apart(with_dev: Any, rows: Any) -> None:
    dev = with_dev.run(env="dev").check()
    assert Path(dev.html_path or "").parent == with_dev.root / "reports" / "dev"
    assert "environment dev" in Path(dev.html_path or "").read_text()
    assert (with_dev.root / ".intarsia/shop.dev.state.json").exists()
    assert not with_dev.state.exists()
    assert [row["id"] for row in rows(with_dev.root / "dev/orders")] == [1]
    assert with_dev.statuses() == {"upsert": "done", "purge": "done", "tidy": "done"}
    assert sorted(row["id"] for row in rows(with_dev.lake)) == [1, 2]
    assert set(with_dev.statuses(env="dev").values()) == {"unchanged"}


def test_an_environment_may_say_where_its_state_and_reports_are(shop: Any) -> None:
    text = shop.file.read_text().replace('engine = "arrow"', 'engine = "arrow"\nstate = "kept/state.json"')
    shop.declare(text + '[env.dev]\nreports = "pages"\n[env.same]\nstate = "kept/state.json"\n')
    dev, same = pipeline.load(shop.file, env="dev"), pipeline.load(shop.file, env="same")
    assert (dev.reports, dev.state) == (str(shop.root / "pages"), str(shop.root / "kept/state.dev.json"))
    assert same.state == str(shop.root / "kept/state.json")


def test_the_environment_is_the_variables_where_none_is_given(
    with_dev: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTARSIA_ENV", "dev")
    assert pipeline.load(with_dev.file).env == "dev"
    assert pipeline.load(with_dev.file, env="empty").env == "empty"
    monkeypatch.setenv("INTARSIA_ENV", "")
    assert pipeline.load(with_dev.file).env is None
    monkeypatch.setenv("INTARSIA_ENV", "staging")
    with pytest.raises(InputError, match="no environment 'staging'"):
        pipeline.load(with_dev.file)


def test_an_environment_may_give_a_source_of_another_kind(shop: Any) -> None:
    dev = '[env.dev]\nengine = "duckdb"\n[env.dev.sources.landing]\nsql = "select 1 as id"\n'
    shop.declare(shop.file.read_text() + dev)
    made = pipeline.load(shop.file, env="dev")
    assert made.sources["landing"].path == ()
    assert made.sources["landing"].sql == "select 1 as id"
    assert made.engine == "duckdb"


def test_an_environment_that_writes_the_tables_of_another_is_refused(with_dev: Any) -> None:
    with_dev.run().check()
    with pytest.raises(DamagedTable) as caught:
        with_dev.run(env="empty")
    assert "a target of its own ([env.empty.targets.orders])" in str(caught.value)
    assert "--full-refresh" not in str(caught.value), "which would write its rows into the tables of another"


@pytest.mark.parametrize(
    ("more", "env", "words"),
    [
        ("", "dev", ["there is no environment 'dev'", "declare it as [env.dev]"]),
        ("[env.dev]\n", "devv", ["no environment 'devv'", "did you mean 'dev'?"]),
        ("[env.dev]\n[env.prod]\n", "x", ["there is dev, prod"]),
        (
            "[env.dev]\nengin = 'arrow'\n",
            None,
            ["[env.dev]: the key 'engin' is not known", "did you mean 'engine'?"],
        ),
        ("[env.dev.steps.upsrt]\non = 'a'\n", None, ["[env.dev] steps", "'upsrt'", "did you mean 'upsert'?"]),
        ("[env.dev]\nsteps = []\n", None, ["steps are overridden by their names"]),
        ("[env.dev.sources.landing]\npth = 'a'\n", "dev", ["[sources.landing]", "'pth'"]),
        ("[env]\ndev = 1\n", None, ["[env.dev]", "must be a table"]),
        ("[env.'a/b']\n", None, ["cannot be part of the name of a file"]),
    ],
)
def test_what_an_environment_cannot_mean_is_refused(
    shop: Any, more: str, env: str | None, words: list[str]
) -> None:
    shop.declare(shop.file.read_text() + more)
    with pytest.raises(InputError) as caught:
        pipeline.load(shop.file, env=env)
    for word in words:
        assert word in str(caught.value)


def test_the_command_line_chooses_an_environment(with_dev: Any, rows: Any) -> None:
    done = CliRunner().invoke(cli, ["run", str(with_dev.file), "--env", "dev", "--only", "upsert"])
    assert done.exit_code == 0, done.output
    assert not with_dev.lake.exists()
    assert len(rows(with_dev.root / "dev/orders")) == 2


@pytest.mark.parametrize(
    ("key", "name", "near"), [("targets", "odrers", "orders"), ("sources", "landign", "landing")]
)
def test_a_mistyped_name_of_an_environment_is_no_new_source_or_target(
    shop: Any, key: str, name: str, near: str
) -> None:
    shop.declare(shop.file.read_text() + f'[env.dev.{key}.{name}]\npath = "dev/orders"\n')
    words = rf"shop.toml, \[env.dev.{key}.{name}\]: it overrides no {key[:-1]} .*did you mean '{near}'"
    with pytest.raises(InputError, match=words):
        pipeline.load(shop.file, env="dev")
    assert pipeline.load(shop.file).env is None


def test_an_environment_may_declare_what_its_steps_use(shop: Any) -> None:
    added = """
    [env.dev.sources.sample]
    path = "sample/*.csv"
    [env.dev.targets.samples]
    path = "dev/samples"
    [env.dev.steps.upsert]
    source = "sample"
    [env.dev.steps.tidy]
    target = "samples"
    """
    shop.declare(shop.file.read_text() + added)
    made = pipeline.load(shop.file, env="dev")
    assert (made.steps[0].source, made.steps[2].target) == ("sample", "samples")
