"""A dry run says what the run then does, also through targets that do not exist yet."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from intarsia import pipeline
from intarsia.errors import InputError, NotSupported, StorageError

CHAIN = """
[sources.bronze]
target = "orders"
derive = { cents = "cast(amount * 100 as bigint)" }

[targets.silver]
path = "lake/silver"

[[steps]]
name = "refine"
operation = "merge"
source = "bronze"
target = "silver"
on = "id"

[[steps]]
name = "rounded"
operation = "update"
target = "silver"
set = { cents = "cents + 1" }
where = "region = 'eu'"

[[steps]]
name = "sound"
operation = "expect"
target = "silver"
min_rows = 1
"""


def _counts(report: pipeline.PipelineReport) -> dict[str, Any]:
    return {
        step.name: (*dict(step.result).values(), step.files_written, step.bytes_written)
        for step in report.steps
        if step.result is not None
    }


@pytest.mark.parametrize("engine", ["arrow", "duckdb", pytest.param("spark", marks=pytest.mark.spark)])
def test_a_dry_run_of_a_new_pipeline_plans_through_the_targets_that_it_makes(
    shop: Any, engine: str, tree_digest: Callable[..., Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    options = {"session": request.getfixturevalue("spark")} if engine == "spark" else {}
    shop.declare(shop.file.read_text().replace('engine = "arrow"', f'engine = "{engine}"') + CHAIN)
    shop.lands("a.csv", {1: ("eu", 5.0), 2: ("ap", -1.0), 3: ("ap", 7.0)})
    before = tree_digest(tmp_path)
    planned = shop.run(dry_run=True, **options).check()
    assert tree_digest(tmp_path) == before
    assert {step.status for step in planned.steps} <= {"planned"}
    assert [step.notes for step in planned.steps] == [()] * len(planned.steps)
    assert {step.result.path for step in planned.steps if step.target == "orders"} == {str(shop.lake)}
    assert planned.step("sound").checks[0].ok
    done = shop.run(**options).check()
    for name, (*counts, size) in _counts(done).items():
        assert _counts(planned)[name] == (*counts, pytest.approx(size, rel=0.01))
        assert engine == "spark" or _counts(planned)[name][-1] == size  # Spark reads files in its own order
    assert _counts(done)["refine"][:5] == (2, 0, 0, 2, 1)
    assert _counts(done)["rounded"][:5] == (0, 1, 0, 2, 1)


def test_a_dry_run_plans_each_step_on_what_the_steps_above_would_leave(shop: Any) -> None:
    shop.lands("a.csv", dict.fromkeys(range(100), ("eu", 5.0)))
    shop.run().check()
    shop.lands("b.csv", {1: ("eu", -1.0), 2: ("eu", 7.0), 200: ("us", 1.0), 201: ("us", -1.0)})
    planned = shop.run(dry_run=True).check()
    assert planned.step("upsert").result.plan is not None
    assert all(step.result.dry_run and not step.result.inserted_files for step in planned.steps)
    done = shop.run().check()
    assert _counts(planned) == _counts(done)
    assert _counts(done)["purge"][:3] == (0, 0, 2)


def test_a_mistake_in_a_step_on_a_target_that_does_not_exist_is_found_by_the_dry_run(shop: Any) -> None:
    shop.declare(shop.file.read_text().replace("amount < 0", "price < 0"))
    shop.lands("a.csv", {1: ("eu", 5.0)})
    report = shop.run(dry_run=True)
    assert report.failed.name == "purge"
    with pytest.raises(InputError, match="price"):
        report.check()
    assert not shop.lake.exists()


def test_without_a_place_to_write_to_steps_say_that_they_are_planned_without_those_above(
    shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    shop.lands("a.csv", {1: ("eu", 5.0)})
    report = shop.run(dry_run=True).check()
    assert report.step("upsert").result.inserted == 1
    assert report.step("tidy").notes == ("an earlier step makes the target",)
    assert not shop.lake.exists()
    assert not shop.state.exists()
    shop.run().check()
    shop.lands("b.csv", {2: ("eu", -5.0)})
    report = shop.run(dry_run=True).check()
    assert "before the steps above" in report.step("purge").notes[0]


@pytest.fixture
def scratch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory of dry runs."""
    found = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(found))
    return found


def _list_files(place: Path) -> list[str]:
    return [name for _, _, names in os.walk(place) for name in names]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StorageError("disk full", errno=errno.ENOSPC)])
def test_nothing_is_left_of_a_dry_run_that_ends_early(
    shop: Any, scratch: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Ctrl-C or a full disk hits the second step, when the first has written to the scratch place."""
    shop.lands("a.csv", {1: ("eu", -5.0), 2: ("us", 5.0)})
    met: list[list[str]] = []

    def fail(*_: Any, **__: Any) -> Any:
        met.append([name for name in _list_files(scratch) if name.endswith(".part")])
        raise error

    monkeypatch.setattr("intarsia.api.delete", fail)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            shop.run(dry_run=True)
    else:
        report = shop.run(dry_run=True)
        assert report.failed.name == "purge"
        with pytest.raises(StorageError, match=r"no room for what the steps of a dry run write.*TMPDIR"):
            report.check()
    assert len(met[0]) == 2
    assert not _list_files(scratch)
    assert not shop.lake.exists()


def test_a_step_that_no_later_one_reads_needs_no_room(shop: Any, scratch: Path) -> None:
    text = shop.file.read_text()
    shop.declare(text[: text.index('[[steps]]\nname = "purge"')])
    shop.lands("a.csv", {1: ("eu", 5.0)})
    written: list[list[str]] = []
    shop.run(dry_run=True, on_step=lambda _: written.append(_list_files(scratch))).check()
    assert written == [[]]


def test_a_dry_run_of_a_target_on_a_store_writes_nothing_to_it(
    shop: Any, scratch: Path, memory_store: Any
) -> None:
    options = 'path = "memory://lake/orders"\noptions = { single_writer = true }'
    shop.declare(shop.file.read_text().replace('path = "lake/orders"', options))
    shop.lands("a.csv", dict.fromkeys(range(50), ("eu", 5.0)))
    shop.run().check()
    shop.lands("b.csv", {1: ("eu", -1.0), 2: ("eu", 7.0), 200: ("us", 1.0), 201: ("us", -1.0)})
    before = memory_store()
    planned = shop.run(dry_run=True).check()
    assert memory_store() == before
    assert not _list_files(scratch)
    done = shop.run().check()
    assert _counts(planned) == _counts(done)
    assert _counts(done)["purge"][:3] == (0, 0, 2)


@pytest.fixture
def memory_store() -> Iterator[Callable[[], dict[str, bytes]]]:
    """The files of fsspec's store in memory, by their paths; emptied afterwards."""
    store = pytest.importorskip("fsspec").filesystem("memory")
    yield lambda: {path: store.cat(path) for path in store.find("/lake")}
    store.rm("/lake", recursive=True)


def test_a_run_in_which_nothing_has_changed_opens_no_session(
    shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps are done on Arrow; what they remember does not depend on the engine."""
    shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run().check()

    def opened(*_: Any, **__: Any) -> Any:
        raise NotSupported("no session, please")

    monkeypatch.setattr("intarsia.spark.session.session_on", opened)
    report = shop.run(engine="spark").check()
    assert {step.status for step in report.steps} == {"unchanged"}
    assert report.session == ""
    shop.lands("b.csv", {2: ("eu", 5.0)})
    with pytest.raises(NotSupported, match="no session, please"):
        shop.run(engine="spark")
    assert shop.run().check().step("upsert").status == "done"


def test_a_dry_run_says_which_files_were_taken_before(shop: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run().check()
    shop.lands("b.csv", {2: ("eu", 5.0)})
    step = shop.run(dry_run=True).check().step("upsert")
    assert (step.input_files, step.skipped_files) == (1, 1)
    assert step.result.inserted == 1
    assert shop.run(dry_run=True, full_refresh=True).check().step("upsert").input_files == 2
