from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from intarsia.cli.commands import cli
from intarsia.cli.screen import Screen
from intarsia.errors import InputError

ROWS = {1: ("eu", 5.0), 2: ("eu", -1.0), 3: ("ap", 7.0)}


def _expecting(shop: Any, where: str, *lines: str) -> None:
    """The expectation on the source comes first, that on the target last."""
    text = shop.file.read_text()
    head, rest = text[: text.index("[[steps]]")], text[text.index("[[steps]]") :]
    step = '[[steps]]\nname = "sound"\noperation = "expect"\n' + "\n".join(lines) + "\n"
    if where == "source":
        shop.declare(head + step + 'source = "landing"\n' + rest)
    else:
        upsert = rest[: rest.index('[[steps]]\nname = "purge"')]
        shop.declare(head + upsert + step + 'target = "orders"\n')


HOLD = [
    ('not_null = ["id", "region"]',),
    ('unique = "id"',),
    ('unique = ["id", "region"]',),
    ("min_rows = 3", "max_rows = 3"),
    ('accepted = { region = ["eu", "ap"], id = [1, 2, 3] }',),
    ('holds = "amount > -2"',),
    ('holds = ["amount > -2", "length(region) = 2"]',),
]
FAIL = [
    ('unique = "region"', "region unique (1 row against it)"),
    ("min_rows = 4", "at least 4 rows (there are 3 rows)"),
    ("max_rows = 2", "at most 2 rows (there are 3 rows)"),
    ('accepted = { region = ["eu"] }', "region is one of eu (1 row against it)"),
    ('holds = ["amount > 0", "id < 3"]', "2 expectations do not hold"),
    ('not_null = "amount"', None),
]


@pytest.mark.parametrize("where", ["source", "target"])
@pytest.mark.parametrize("lines", HOLD, ids=str)
def test_what_holds_lets_the_run_go_on(shop: Any, where: str, lines: tuple[str, ...]) -> None:
    _expecting(shop, where, *lines)
    shop.lands("a.csv", ROWS)
    report = shop.run().check()
    assert all(check.ok for check in report.step("sound").checks)
    assert report.step("sound").checks
    assert shop.statuses()["sound"] == "unchanged"


@pytest.mark.parametrize("where", ["source", "target"])
@pytest.mark.parametrize(("line", "told"), FAIL[:-1], ids=str)
def test_what_does_not_hold_ends_the_run(shop: Any, where: str, line: str, told: str) -> None:
    _expecting(shop, where, line)
    shop.lands("a.csv", ROWS)
    report = shop.run()
    assert report.failed.name == "sound"
    with pytest.raises(InputError) as caught:
        report.check()
    assert told in str(caught.value)
    assert shop.lake.exists() == (where == "target")
    assert report.failed.checks
    assert shop.statuses()["sound"] == "failed"  # a failure is not remembered as done


@pytest.mark.parametrize("where", ["source", "target"])
def test_a_null_fails_not_null_and_nothing_else(shop: Any, where: str) -> None:
    (shop.root / "landing").mkdir()
    (shop.root / "landing" / "a.csv").write_text("id,region,amount\n1,eu,\n2,eu,3\n")
    lines = ('not_null = "amount"', "accepted = { amount = [3.0] }", 'holds = "amount > 2"')
    _expecting(shop, where, *lines)
    checks = shop.run().failed.checks
    assert [(check.expectation, check.failing) for check in checks] == [
        ("amount is not NULL", 1),
        ("amount is one of 3.0", 0),
        ("amount > 2", 0),
    ]


@pytest.mark.parametrize("where", ["source", "target"])
def test_a_column_that_is_not_there_is_named(shop: Any, where: str) -> None:
    _expecting(shop, where, 'not_null = "prize"')
    shop.lands("a.csv", ROWS)
    assert "prize" in str(shop.run().failed.error)


def test_expectations_of_a_target_write_nothing(shop: Any, unchanged: Callable[..., Any]) -> None:
    shop.lands("a.csv", ROWS)
    shop.run()
    _expecting(shop, "target", 'unique = "region"', 'holds = "amount > 100"')
    with unchanged(shop.lake):
        assert shop.run().failed.name == "sound"


def test_a_target_that_does_not_exist_has_no_rows(shop: Any) -> None:
    text = shop.file.read_text()
    head = text[: text.index("[[steps]]")]
    step = '[[steps]]\nname = "sound"\noperation = "expect"\ntarget = "orders"\nunique = "id"\n'
    shop.declare(head + step + "max_rows = 0\n")
    assert shop.run().ok
    shop.declare(head + step + "min_rows = 1\n")
    assert "there are 0 rows" in str(shop.run().failed.error)


def test_lines_of_a_run_are_wrapped_to_a_terminal_and_nowhere_else(
    shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _expecting(shop, "source", 'unique = "region"', "min_rows = 100", 'action = "warn"')
    shop.lands("a.csv", ROWS)
    plain = CliRunner().invoke(cli, ["run", str(shop.file), "--dry-run"]).stdout
    assert "a warning" in next(line for line in plain.splitlines() if " sound " in line)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=60, color_system=None, highlight=False)
    monkeypatch.setattr(Screen, "out", property(lambda _: console))
    assert CliRunner().invoke(cli, ["run", str(shop.file), "--dry-run"]).exit_code == 0
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    first = next(number for number, line in enumerate(lines) if " sound " in line)
    assert lines[first + 1].startswith(" " * 10)
