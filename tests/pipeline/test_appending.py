from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from intarsia.errors import InputError
from intarsia.pipeline.state import state_file as memory
from intarsia.pipeline.state import state_file as state

Ids = Callable[[Any], list[int]]


@pytest.fixture
def log(shop: Any) -> Any:
    """A pipeline that appends what lands."""
    text = shop.file.read_text()
    head = text[: text.index("[[steps]]")]
    shop.declare(
        head + '[[steps]]\nname = "append"\noperation = "write"\nsource = "landing"\ntarget = "orders"\n'
    )
    return shop


def test_each_file_is_appended_once(log: Any, ids: Ids) -> None:
    log.lands("a.csv", {1: ("eu", 5.0)})
    assert log.statuses() == {"append": "done"}
    assert log.statuses() == {"append": "unchanged"}
    log.lands("b.csv", {2: ("eu", 5.0)})
    report = log.run()
    assert report.step("append").input_files == 1
    assert report.step("append").result.inserted == 1
    assert ids(log) == [1, 2]


def test_a_file_that_was_appended_and_has_changed_is_refused(log: Any, ids: Ids) -> None:
    log.lands("a.csv", {1: ("eu", 5.0)})
    log.run()
    log.lands("a.csv", {1: ("eu", 5.0), 2: ("eu", 6.0)})
    with pytest.raises(InputError, match=r"changed since they were appended.*merge"):
        log.run().check()
    assert ids(log) == [1]


def test_a_step_that_is_declared_otherwise_does_not_append_again(log: Any, ids: Ids) -> None:
    log.lands("a.csv", {1: ("eu", 5.0)})
    log.run()
    log.declare(log.file.read_text() + 'missing = "null"\n')
    assert log.statuses() == {"append": "unchanged"}
    assert ids(log) == [1]


def test_a_step_that_has_had_several_names_appends_nothing_twice(log: Any, ids: Ids) -> None:
    text = log.file.read_text()
    for number, name in enumerate(["append", "second", "third", "append", "second"], 1):
        log.lands(f"{number}.csv", {number: ("eu", 5.0)})
        log.declare(text.replace('name = "append"', f'name = "{name}"'))
        log.run().check()
        assert ids(log) == list(range(1, number + 1))


def test_a_target_that_is_gone_is_filled_again(log: Any, ids: Ids) -> None:
    log.lands("a.csv", {1: ("eu", 5.0)})
    log.run()
    for path in sorted(log.lake.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    log.lake.rmdir()
    assert log.statuses() == {"append": "done"}
    assert ids(log) == [1]


def test_a_crash_between_the_commit_and_the_state_appends_nothing_twice(
    log: Any, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.lands("a.csv", {1: ("eu", 5.0)})
    log.run()
    log.lands("b.csv", {2: ("eu", 5.0)})
    with monkeypatch.context() as patched:
        patched.setattr(memory.PipelineState, "note", _crash)
        with pytest.raises(KeyboardInterrupt):
            log.run()
    assert ids(log) == [1, 2]
    assert log.statuses() == {"append": "unchanged"}
    log.lands("c.csv", {3: ("eu", 5.0)})
    assert log.statuses() == {"append": "done"}
    assert ids(log) == [1, 2, 3]


def test_a_crash_before_the_commit_loses_nothing(log: Any, ids: Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    log.lands("a.csv", {1: ("eu", 5.0)})
    log.run()
    log.lands("b.csv", {2: ("eu", 5.0)})
    with monkeypatch.context() as patched:
        patched.setattr("intarsia.api.write", _crash)
        with pytest.raises(KeyboardInterrupt):
            log.run()
    assert state.read_state(log.state).pending
    assert log.statuses() == {"append": "done"}
    assert ids(log) == [1, 2]


def test_a_merge_takes_only_new_files_where_its_source_says_so(log: Any, rows: Callable[..., Any]) -> None:
    text = log.file.read_text().replace('operation = "write"', 'operation = "merge"\non = "id"')
    log.declare(text.replace("[targets.orders]", "new_files_only = true\n[targets.orders]"))
    log.lands("a.csv", {1: ("eu", 5.0)})
    log.run().check()
    log.lands("b.csv", {1: ("eu", 6.0)})  # with a.csv it would be the same key twice
    report = log.run().check()
    assert report.step("append").result.updated == 1
    assert [row["amount"] for row in rows(log.lake)] == [6.0]
    assert log.statuses() == {"append": "unchanged"}


def _crash(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt
