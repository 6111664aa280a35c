"""S31: a merge or write takes each input file once, told by its bytes, unless a full refresh is asked for."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import intarsia as it
from intarsia import pipeline
from intarsia.errors import DamagedTable, InputError, NothingMatched
from intarsia.pipeline.inputs import FileStamp
from intarsia.pipeline.state.definitions import describe_definition, digest_files

Ids = Callable[[Any], list[int]]
Rows = Callable[..., list[dict[str, Any]]]
APPEND = '[[steps]]\nname = "append"\noperation = "write"\nsource = "landing"\ntarget = "orders"\n'


@pytest.fixture
def log(shop: Any) -> Any:
    """A pipeline that appends what lands."""
    text = shop.file.read_text()
    shop.declare(text[: text.index("[[steps]]")] + APPEND)
    return shop


def _amounts(shop: Any, rows: Rows) -> dict[int, float]:
    return {row["id"]: row["amount"] for row in rows(shop.lake)}


def test_one_new_file_does_not_merge_the_old_ones_again(shop: Any, rows: Rows) -> None:
    """Corrections and deletes that came after the old files stay."""
    shop.lands("a.csv", {1: ("eu", 5.0), 2: ("eu", 6.0), 3: ("eu", 7.0)})
    shop.run().check()
    it.delete(shop.lake, "id = 2")
    it.update(shop.lake, {"amount": "50.0"}, "id = 1")
    shop.lands("b.csv", {3: ("eu", 8.0), 4: ("eu", 9.0)})
    step = shop.run().check().step("upsert")
    assert (step.input_files, step.skipped_files) == (1, 1)
    assert step.notes == ("1 file was taken before",)
    assert _amounts(shop, rows) == {1: 50.0, 3: 8.0, 4: 9.0}
    step = shop.run().check().step("upsert")
    assert (step.status, step.notes) == ("unchanged", ("every file was taken before",))


def test_a_full_refresh_takes_all_files(shop: Any, rows: Rows) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0), 2: ("eu", 6.0)})
    shop.run().check()
    it.delete(shop.lake, "id = 2")
    step = shop.run(full_refresh=True).check().step("upsert")
    assert (step.status, step.input_files, step.skipped_files) == ("done", 1, 0)
    assert _amounts(shop, rows) == {1: 5.0, 2: 6.0}
    assert shop.run().check().step("upsert").status == "unchanged"


def test_a_full_refresh_appends_nothing_twice(log: Any, ids: Ids) -> None:
    log.lands("a.csv", {1: ("eu", 5.0)})
    log.run().check()
    log.lands("b.csv", {2: ("eu", 5.0)})
    assert log.run(full_refresh=True).check().step("append").input_files == 1
    assert ids(log) == [1, 2]


@pytest.mark.parametrize("step", ["merge", "append"])
def test_a_file_that_was_touched_is_the_same_file(shop: Any, ids: Ids, step: str) -> None:
    if step == "append":
        text = shop.file.read_text()
        shop.declare(text[: text.index("[[steps]]")] + APPEND)
    path = shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run().check()
    for time in (1_000_000_000, 2_000_000_000):
        os.utime(path, (time, time))
        assert set(shop.statuses().values()) == {"unchanged"}
        assert set(shop.statuses().values()) == {"unchanged"}
    assert ids(shop) == [1]


def test_a_touched_file_lets_a_step_that_takes_the_whole_source_rest(shop: Any) -> None:
    shop.declare(shop.file.read_text().replace('on = "id"', 'on = "id"\nstrategy = "full_merge"'))
    path = shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run().check()
    os.utime(path, (1_000_000_000, 1_000_000_000))
    assert set(shop.statuses().values()) == {"unchanged"}


def test_a_file_that_was_written_again_is_a_new_one_and_said_to_be(shop: Any, rows: Rows) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.lands("b.csv", {2: ("eu", 5.0)})
    shop.run().check()
    shop.lands("a.csv", {1: ("eu", 6.0)})  # of the same size
    step = shop.run().check().step("upsert")
    assert (step.input_files, step.skipped_files) == (1, 1)
    assert step.notes[1] == "1 file taken again with other bytes than before, such as a.csv"
    assert _amounts(shop, rows) == {1: 6.0, 2: 5.0}
    assert shop.run().check().step("upsert").status == "unchanged"


@pytest.mark.parametrize(
    "declared",
    [
        'operation = "merge"\non = "id"\nstrategy = "full_merge"',
        'operation = "merge"\non = "id"\nwhen = "when not matched then insert * '
        'when not matched by source then delete"',
        'operation = "write"\nmode = "overwrite"',
        'operation = "write"\nmode = "overwrite_partitions"',
    ],
    ids=["full_merge", "by source", "overwrite", "overwrite_partitions"],
)
def test_a_source_that_stands_for_the_whole_target_is_taken_whole(log: Any, ids: Ids, declared: str) -> None:
    log.declare(log.file.read_text().replace('operation = "write"', declared))
    log.lands("a.csv", {1: ("eu", 5.0)})
    log.run().check()
    log.lands("b.csv", {2: ("eu", 5.0)})
    assert log.run().check().step("append").input_files == 2
    assert ids(log) == [1, 2]


def test_a_step_that_is_declared_otherwise_says_how_to_take_files_again(shop: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run().check()
    shop.declare(shop.file.read_text().replace('on = "id"', 'on = "id"\nstrategy = "insert"'))
    step = shop.run().check().step("upsert")
    assert step.status == "unchanged"
    assert "declared otherwise; --full-refresh takes them again" in step.notes[0]


def test_a_parameter_that_chooses_rows_takes_the_same_files_for_each_of_its_values(
    log: Any, ids: Ids
) -> None:
    text = log.file.read_text().replace("[targets.orders]", 'where = "amount = ${n}"\n[targets.orders]')
    log.declare("[params]\nn = 1\n" + text.replace('name = "shop"', "").replace('engine = "arrow"', ""))
    log.lands("a.csv", {1: ("eu", 1.0), 2: ("eu", 2.0)})
    for n in ("1", "2", "1", "2"):
        log.run(engine="arrow", params={"n": n}).check()
    assert ids(log) == [1, 2]


def test_files_that_are_gone_after_they_were_taken_are_no_mistake(shop: Any, ids: Ids) -> None:
    path = shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run().check()
    path.unlink()
    step = shop.run().check().step("upsert")
    assert (step.status, step.notes) == ("unchanged", ("there is no file; those of before were taken",))
    assert ids(shop) == [1]


def test_a_source_without_files_fails_a_step_that_takes_it_whole(shop: Any, ids: Ids) -> None:
    shop.declare(shop.file.read_text().replace('on = "id"', 'on = "id"\nstrategy = "full_merge"'))
    path = shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run().check()
    path.unlink()
    with pytest.raises(NothingMatched):
        shop.run().check()
    assert ids(shop) == [1]


def test_an_expectation_of_a_source_looks_at_the_files_that_will_be_taken(shop: Any, rows: Rows) -> None:
    text = shop.file.read_text()
    sound = '[[steps]]\nname = "sound"\noperation = "expect"\nsource = "landing"\nunique = "id"\n\n'
    shop.declare(text.replace("[[steps]]", sound + "[[steps]]", 1))
    shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run().check()
    shop.lands("b.csv", {1: ("eu", 6.0)})  # the same key as in a file that was taken
    assert shop.run().check().step("sound").input_files == 1
    assert _amounts(shop, rows) == {1: 6.0}
    assert shop.run().check().step("sound").status == "unchanged"


def test_a_target_of_two_steps_that_is_gone_is_filled_by_both(shop: Any, ids: Ids) -> None:
    other = shop.file.read_text().replace(
        "[targets.orders]",
        '[sources.more]\npath = "more/*.csv"\n'
        'columns = { id = "bigint", region = "varchar", amount = "double" }\n[targets.orders]',
    )
    shop.declare(other + APPEND.replace('"landing"', '"more"'))
    shop.lands("a.csv", {1: ("eu", 5.0)})
    (shop.root / "more").mkdir()
    shop.lands("b.csv", {2: ("eu", 5.0)}).rename(shop.root / "more" / "b.csv")
    shop.run().check()
    shutil.rmtree(shop.lake)
    shop.run().check()
    assert ids(shop) == [1, 2]


# The state


def test_the_state_has_a_place_of_its_own(log: Any, ids: Ids) -> None:
    log.lands("a.csv", {1: ("eu", 5.0)})
    log.run().check()
    assert log.state.exists()
    shutil.rmtree(log.root / "reports")
    assert log.statuses() == {"append": "unchanged"}
    assert ids(log) == [1]


@pytest.mark.parametrize("left", ["nothing", "an old copy"])
def test_a_state_that_is_lost_is_noticed_from_the_log_of_the_table(
    shop: Any, ids: Ids, unchanged: Callable[..., Any], left: str
) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run().check()
    old = shop.state.read_bytes()
    shop.lands("b.csv", {2: ("eu", 5.0)})
    shop.run().check()
    shop.state.write_bytes(old) if left == "an old copy" else shop.state.unlink()
    with unchanged(shop.lake), pytest.raises(DamagedTable, match=r"'upsert'.*--mark-done.*--full-refresh"):
        shop.run()
    with pytest.raises(DamagedTable):
        shop.run(dry_run=True)
    shop.run(full_refresh=True).check()
    assert ids(shop) == [1, 2]
    assert set(shop.statuses().values()) == {"unchanged"}


def test_what_was_appended_is_not_appended_again_when_the_state_is_lost(log: Any, ids: Ids) -> None:
    log.lands("a.csv", {1: ("eu", 5.0)})
    log.run().check()
    log.state.unlink()
    for options in ({}, {"full_refresh": True}):
        with pytest.raises(DamagedTable, match="remove the target"):
            log.run(**options)
    report = log.run(mark_done=True)
    assert [step.notes for step in report.steps] == [("noted as done, not run",)]
    assert log.statuses() == {"append": "unchanged"}
    log.lands("b.csv", {2: ("eu", 5.0)})
    log.run().check()
    assert ids(log) == [1, 2]


def test_a_dry_run_cannot_mark_anything(shop: Any) -> None:
    with pytest.raises(InputError, match="writes nothing"):
        shop.run(dry_run=True, mark_done=True)


def test_a_lost_state_does_not_matter_when_the_target_is_gone(shop: Any, ids: Ids) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run().check()
    shop.state.unlink()
    shutil.rmtree(shop.lake)
    assert shop.run().check().step("upsert").status == "done"
    assert ids(shop) == [1]


# What earlier versions left


def _as_first_version(shop: Any, step: str, files: list[Path], *, appended: bool) -> Path:
    """Make of the state one that version 1 would have left in the reports."""
    declared = pipeline.load(shop.file)
    definition = next(describe_definition(one, declared) for one in declared.steps if one.name == step)
    stamps = [FileStamp(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    now = json.loads(shop.state.read_text())
    records = {name: one["successes"] for name, one in now["steps"].items()}
    for found in records.values():
        for one in found:
            one["files"] = []
            if one["definition"] == definition:
                one["files"] = [stamp.as_list() for stamp in stamps] if appended else []
                one["input"] = digest_files(stamps)
    old = shop.root / "reports" / "shop.state.json"
    plain = {"version": 1, "pending": {}, "steps": records}
    old.write_text(json.dumps(plain | {key: now[key] for key in ("counter", "targets", "foreign")}))
    shop.state.unlink()
    return old


def test_the_state_of_an_earlier_version_is_taken_over_for_appends(log: Any, ids: Ids) -> None:
    a = log.lands("a.csv", {1: ("eu", 5.0)})
    log.run().check()
    old = _as_first_version(log, "append", [a], appended=True)
    log.lands("b.csv", {2: ("eu", 5.0)})
    assert log.run(dry_run=True).check().step("append").input_files == 1
    assert old.exists()
    assert log.run().check().step("append").input_files == 1
    assert ids(log) == [1, 2]
    assert not old.exists()
    assert log.statuses() == {"append": "unchanged"}


def test_the_state_of_an_earlier_version_is_taken_over_for_merges(shop: Any, rows: Rows) -> None:
    a = shop.lands("a.csv", {1: ("eu", 5.0), 2: ("eu", 1.0)})
    shop.run().check()
    it.delete(shop.lake, "id = 2")
    _as_first_version(shop, "upsert", [a], appended=False)
    path = shop.lands("b.csv", {3: ("eu", 5.0)})
    os.utime(path, (path.stat().st_mtime + 5,) * 2)
    assert shop.run().check().step("upsert").input_files == 1
    assert _amounts(shop, rows) == {1: 5.0, 3: 5.0}


def _command(*arguments: str) -> Any:
    from intarsia.cli import main

    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


def test_the_command_line_takes_all_files_again_and_marks_steps_as_done(
    shop: Any, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    assert _command("run", str(shop.file)) == 0
    it.update(shop.lake, {"amount": "7.0"})
    assert _command("run", str(shop.file)) == 0
    assert _amounts(shop, rows) == {1: 7.0}
    capsys.readouterr()
    assert _command("run", str(shop.file), "--full-refresh") == 0
    assert "1 updated" in capsys.readouterr().out
    assert _amounts(shop, rows) == {1: 5.0}
    shop.state.unlink()
    assert _command("run", str(shop.file)) != 0
    assert "--mark-done" in capsys.readouterr().err
    assert _command("run", str(shop.file), "--mark-done") == 0
    assert "noted as done, not run" in capsys.readouterr().out
    assert set(shop.statuses().values()) == {"unchanged"}


def test_a_step_that_does_nothing_to_a_target_that_does_not_exist_makes_nothing(shop: Any) -> None:
    text = shop.file.read_text()
    text = text[: text.index('[[steps]]\nname = "purge"')]
    shop.declare(text.replace('on = "id"', 'on = "id"\nstrategy = "update"'))
    shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run().check()
    assert not shop.lake.parent.exists()


def test_a_declaration_that_was_changed_and_changed_back_is_carried_out_again(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,day,x\n1,a,2\n2,b,3\n")
    text = """
    engine = "arrow"
    params.day = "a"
    sources.raw = { path = "*.csv", derive = { y = "x * 2" }, where = "day = '${day}'" }
    targets.days = { path = "lake/days", partition_by = "day" }
    [[steps]]
    name = "days"
    operation = "write"
    source = "raw"
    target = "days"
    mode = "overwrite_partitions"
    """
    file = tmp_path / "days.toml"

    def run(times: int, day: str = "a") -> str:
        file.write_text(text.replace("x * 2", f"x * {times}"))
        return pipeline.run_file(file, progress=False, params={"day": day}).check().steps[0].status

    assert [run(2), run(2, "b"), run(2), run(3), run(2), run(2), run(2, "b")] == [
        *("done", "done", "unchanged"),
        *("done", "done", "unchanged", "unchanged"),
    ]
    rows = it.read(tmp_path / "lake" / "days").read_all().to_pylist()
    assert sorted(row["y"] for row in rows) == [4, 6]
