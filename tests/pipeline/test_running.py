from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import intarsia as it
from intarsia import pipeline
from intarsia.errors import CommitConflict, DamagedTable, InputError, NothingMatched, NotSupported
from intarsia.pipeline.state import state_file as state
from intarsia.pipeline.step_runner import StepRunner

Ids = Callable[[Any], list[int]]
ALL = {"upsert", "purge", "tidy"}


def test_the_steps_run_in_order_and_each_is_reported(shop: Any, ids: Ids) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0), 2: ("eu", -1.0), 3: ("ap", 7.0)})
    report = shop.run()
    assert report.ok
    assert [step.name for step in report.steps] == ["upsert", "purge", "tidy"]
    assert report.step("upsert").result.inserted == 3
    assert report.step("purge").result.deleted == 1
    assert report.step("upsert").input_files == 1
    assert report.step("upsert").before.rows == 0
    assert report.step("upsert").after.rows == 3
    assert ids(shop) == [1, 3]
    assert {path.name for path in shop.lake.iterdir()} == {"region=eu", "region=ap"}


def test_what_a_run_has_in_its_session_is_given_back_before_that_is_stopped(
    shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DataFrames that several steps read are persisted; once Spark is stopped, unpersisting them fails."""
    told = []

    class Frame:
        def unpersist(self) -> None:
            told.append("unpersist")

    @contextmanager
    def session_on(*_: Any, **__: Any) -> Iterator[Any]:
        yield object()
        told.append("stop")

    def go(self: StepRunner) -> None:
        assert self.resources.session is not None
        self.resources.frames["landing",] = Frame()

    monkeypatch.setattr("intarsia.spark.session.session_on", session_on)
    monkeypatch.setattr("intarsia.pipeline.runner._describe_session", lambda _: "")
    monkeypatch.setattr(StepRunner, "go", go)
    shop.run(engine="spark")
    assert told == ["unpersist", "stop"]


def test_a_second_run_does_nothing(shop: Any, tree_digest: Callable[..., Any]) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0), 2: ("eu", -1.0)})
    shop.run()
    before = tree_digest(shop.lake)
    assert set(shop.statuses().values()) == {"unchanged"}
    assert tree_digest(shop.lake) == before


def test_a_new_file_makes_the_steps_run_again_that_it_concerns(shop: Any, ids: Ids) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run()
    shop.lands("b.csv", {2: ("eu", -1.0), 3: ("eu", 1.0)})
    assert shop.statuses()["upsert"] == "done"
    assert ids(shop) == [1, 3]
    assert set(shop.statuses().values()) == {"unchanged"}


def test_a_file_that_has_changed_is_merged_again(shop: Any, rows: Callable[..., Any]) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run()
    shop.lands("a.csv", {1: ("eu", 50.0)})
    assert shop.statuses()["upsert"] == "done"
    assert [row["amount"] for row in rows(shop.lake)] == [50.0]


def test_a_step_that_is_declared_otherwise_runs_again_and_the_others_do_not(shop: Any, ids: Ids) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0), 2: ("eu", 15.0)})
    shop.run()
    shop.declare(shop.file.read_text().replace("amount < 0", "amount < 10"))
    found = shop.statuses()
    assert found["upsert"] == "unchanged"
    assert found["purge"] == "done"
    assert ids(shop) == [2]


def test_a_target_that_somebody_else_has_changed_makes_its_steps_run_again(shop: Any, ids: Ids) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0), 2: ("eu", 6.0)})
    shop.run()
    it.delete(shop.lake, "id = 2")
    assert shop.statuses() == {"upsert": "unchanged", "purge": "done", "tidy": "done"}
    assert ids(shop) == [1]  # the file was taken once


def test_a_step_that_takes_all_files_each_time_restores_what_somebody_else_has_changed(
    shop: Any, ids: Ids
) -> None:
    text = shop.file.read_text()
    shop.declare(text.replace("[targets.orders]", "new_files_only = false\n[targets.orders]"))
    shop.lands("a.csv", {1: ("eu", 5.0), 2: ("eu", 6.0)})
    shop.run()
    it.delete(shop.lake, "id = 2")
    assert shop.statuses()["upsert"] == "done"
    assert ids(shop) == [1, 2]


def test_a_change_by_somebody_else_concerns_every_step_of_the_target(shop: Any, ids: Ids) -> None:
    shop.declare(shop.file.read_text().replace('on = "id"', 'on = "id"\nstrategy = "insert"'))
    shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run()
    it.write(pa.table({"id": [9], "region": ["eu"], "amount": [-9.0]}), shop.lake)
    report = shop.run()
    assert not report.step("upsert").changed  # so that is not why the next one runs
    assert report.step("purge").status == "done"
    assert ids(shop) == [1]
    assert set(shop.statuses().values()) == {"unchanged"}


def test_a_step_after_one_that_changed_its_target_runs_even_when_it_failed_in_between(
    shop: Any, ids: Ids
) -> None:
    text = shop.file.read_text()
    shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run()
    shop.lands("b.csv", {2: ("eu", -1.0)})
    # The same step, which fails in this run: its options are not part of what it means to the others.
    shop.declare(text.replace('where = "amount < 0"', 'where = "amount < nothing"'))
    assert shop.statuses() == {"upsert": "done", "purge": "failed", "tidy": "not run"}
    shop.declare(text)
    assert shop.statuses()["purge"] == "done"
    assert ids(shop) == [1]


def test_a_failed_step_leaves_its_target_as_it_was_and_ends_the_run(
    shop: Any, unchanged: Callable[..., Any]
) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run()
    shop.lands("b.csv", {1: ("eu", 5.0)})
    shop.lands("c.csv", {1: ("eu", 6.0)})  # the same key twice in the source
    with unchanged(shop.lake):
        report = shop.run()
    assert not report.ok
    assert report.failed.name == "upsert"
    assert [step.status for step in report.steps] == ["failed", "not run", "not run"]
    with pytest.raises(InputError, match="id"):
        report.check()
    told = json.loads(Path(report.json_path).read_text())
    assert told["status"] == "failed at 'upsert'"
    assert told["steps"][0]["error"]["type"] == "KeyColumnError"
    assert told["steps"][0]["error"]["target_changed"] is False


def test_a_failed_step_runs_again_and_the_ones_before_it_do_not(shop: Any, ids: Ids) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0), 2: ("eu", -5.0)})
    text = shop.file.read_text()
    shop.declare(text.replace("amount < 0", "price < 0"))
    assert shop.statuses() == {"upsert": "done", "purge": "failed", "tidy": "not run"}
    shop.declare(text)
    assert shop.statuses()["upsert"] == "unchanged"
    assert ids(shop) == [1]


def test_a_source_without_files_fails_its_step(shop: Any) -> None:
    report = shop.run()
    assert report.failed.name == "upsert"
    assert isinstance(report.failed.error, NothingMatched)
    assert not shop.lake.exists()


def test_a_dry_run_plans_every_step_and_writes_nothing(
    shop: Any, tree_digest: Callable[..., Any], tmp_path: Path
) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run()
    shop.lands("b.csv", {2: ("ap", -5.0)})
    before = tree_digest(tmp_path)
    report = shop.run(dry_run=True)
    assert tree_digest(tmp_path) == before
    assert [step.status for step in report.steps] == ["planned"] * 3
    assert report.step("upsert").result.inserted == 1
    assert report.step("purge").result.deleted == 1  # the row that the step above would bring
    assert report.html_path is None


def test_a_dry_run_leaves_a_report_where_it_is_asked_to(shop: Any, tmp_path: Path) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    report = shop.run(dry_run=True, report_dir=tmp_path / "plans")
    assert Path(report.html_path).parent == tmp_path / "plans"
    assert "dry run, nothing written" in Path(report.html_path).read_text()


def test_a_backfill_of_an_earlier_day_does_nothing_twice(shop: Any, rows: Callable[..., Any]) -> None:
    text = shop.file.read_text().replace("landing/*.csv", "landing/${day}.csv")
    shop.declare('[params]\nday = "1"\n' + text.replace('name = "shop"', "").replace('engine = "arrow"', ""))
    shop.lands("1.csv", {1: ("eu", 1.0)})
    shop.lands("2.csv", {1: ("eu", 2.0)})
    for day in ("1", "2"):
        assert shop.statuses(engine="arrow", params={"day": day})["upsert"] == "done"
    assert shop.statuses(engine="arrow", params={"day": "1"})["upsert"] == "unchanged"
    assert [row["amount"] for row in rows(shop.lake)] == [2.0]


CHAIN = """
[sources.bronze]
target = "orders"
derive = { cents = "cast(amount * 100 as bigint)" }
where = "amount > 1"

[targets.silver]
path = "lake/silver"

[[steps]]
name = "refine"
operation = "merge"
source = "bronze"
target = "silver"
on = "id"
strategy = "full_merge"
"""


def test_a_target_feeds_another_and_comes_to_rest(shop: Any, rows: Callable[..., Any]) -> None:
    shop.declare(shop.file.read_text() + CHAIN)
    shop.lands("a.csv", {1: ("eu", 5.0), 2: ("ap", 0.5), 3: ("ap", 2.25)})
    assert set(shop.statuses().values()) == {"done"}
    silver = shop.root / "lake" / "silver"
    assert sorted((row["id"], row["cents"], row["region"]) for row in rows(silver)) == [
        (1, 500, "eu"),
        (3, 225, "ap"),
    ]
    assert set(shop.statuses().values()) == {"unchanged"}
    shop.lands("b.csv", {4: ("eu", 4.0)})
    assert shop.statuses()["refine"] == "done"
    assert len(rows(silver)) == 3


def test_changes_below_a_reader_do_not_count_as_changes_of_its_input(shop: Any) -> None:
    """Compacting what a step has read, after it, is no reason to read it again."""
    text = shop.file.read_text() + CHAIN
    text += '[[steps]]\nname = "later"\noperation = "delete"\ntarget = "orders"\nwhere = "amount = 5"\n'
    shop.declare(text)
    shop.lands("a.csv", {1: ("eu", 5.0), 2: ("ap", 3.0)})
    shop.run()
    assert set(shop.statuses().values()) == {"unchanged"}


def test_types_that_are_not_declared_are_those_of_the_target(shop: Any, rows: Callable[..., Any]) -> None:
    text = shop.file.read_text()
    shop.declare(text.replace('columns = { id = "bigint", region = "varchar", amount = "double" }', ""))
    it.write(pa.table({"id": ["007"], "region": ["eu"], "amount": [1.0]}), shop.lake, partition_by="region")
    (shop.root / "landing").mkdir()
    (shop.root / "landing" / "a.csv").write_text("id,region,amount\n008,eu,2\n")
    shop.run().check()
    assert [(row["id"], row["amount"]) for row in rows(shop.lake)] == [("007", 1.0), ("008", 2.0)]


def test_a_text_that_does_not_fit_its_type_is_named_with_its_column(shop: Any) -> None:
    (shop.root / "landing").mkdir()
    (shop.root / "landing" / "a.csv").write_text("id,region,amount\n1,eu,many\n")
    report = shop.run()
    with pytest.raises(InputError, match=r"Column 'amount'.*many"):
        report.check()


def test_columns_that_are_not_declared_are_not_taken(shop: Any, rows: Callable[..., Any]) -> None:
    (shop.root / "landing").mkdir()
    (shop.root / "landing" / "a.csv").write_text("note,amount,region,id\nx,1.5,eu,1\n")
    shop.run().check()
    assert rows(shop.lake) == [{"id": 1, "amount": 1.5, "region": "eu"}]


def test_json_and_parquet_and_hive_directories_are_sources_too(
    tmp_path: Path, rows: Callable[..., Any], make_dataset: Callable[..., Path]
) -> None:
    (tmp_path / "a.json").write_text('{"id": 1, "n": 1.5}\n{"id": 2}\n')
    make_dataset(
        tmp_path / "b", pa.table({"id": [3, 4], "n": [3.5, 4.5], "day": ["1", "2"]}), partition="day"
    )
    made = pipeline.Pipeline(
        name="both",
        engine="arrow",
        sources={
            "json": pipeline.Source(str(tmp_path / "a.json"), columns={"id": "bigint", "n": "double"}),
            "parquet": pipeline.Source(str(tmp_path / "b"), columns={"id": "bigint", "day": "int"}),
        },
        targets={"t": pipeline.Target(str(tmp_path / "t")), "u": pipeline.Target(str(tmp_path / "u"))},
        steps=(
            pipeline.Merge(source="json", target="t", on="id"),
            pipeline.Merge(source="parquet", target="u", on="id"),
        ),
        reports=str(tmp_path / "reports"),
    )
    pipeline.run(made, progress=False).check()
    assert rows(tmp_path / "t") == [{"id": 1, "n": 1.5}, {"id": 2, "n": None}]
    assert rows(tmp_path / "u") == [{"id": 3, "day": 1}, {"id": 4, "day": 2}]


def test_a_csv_may_have_another_delimiter_and_a_word_for_null(shop: Any, rows: Callable[..., Any]) -> None:
    options = 'options = { delimiter = ";", null_value = "NA" }'
    shop.declare(shop.file.read_text().replace("[targets.orders]", options + "\n[targets.orders]"))
    (shop.root / "landing").mkdir()
    (shop.root / "landing" / "a.csv").write_text("id;region;amount\n1;eu;NA\n")
    shop.run().check()
    assert rows(shop.lake) == [{"id": 1, "amount": None, "region": "eu"}]


def test_options_of_spark_alone_are_refused_on_arrow(shop: Any) -> None:
    shop.declare(
        shop.file.read_text().replace("[targets.orders]", "options = { samplingRatio = 1 }\n[targets.orders]")
    )
    with pytest.raises(NotSupported, match="samplingRatio"):
        pipeline.load(shop.file)


def test_progress_names_the_step_that_is_under_way(shop: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    seen: list[str] = []
    over: list[str] = []
    shop.run(
        progress=lambda step, _done, _total: seen.append(step), on_step=lambda step: over.append(step.name)
    )
    assert any(step.startswith("1/3 upsert: ") for step in seen)
    assert any(step.startswith("3/3 tidy: ") for step in seen)
    assert over == ["upsert", "purge", "tidy"]


def test_a_run_that_is_interrupted_leaves_a_report_and_its_finished_steps(shop: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})

    def interrupt(step: pipeline.StepReport) -> None:
        if step.name == "purge":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shop.run(on_step=interrupt)
    (report,) = (json.loads(path.read_text()) for path in (shop.root / "reports").glob("shop-*.json"))
    assert [step["status"] for step in report["steps"]] == ["done", "done", "not run"]
    assert report["status"] == "stopped"
    assert shop.statuses() == {"upsert": "unchanged", "purge": "unchanged", "tidy": "done"}


def test_two_runs_at_once_are_refused(shop: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    with state.lock_state(shop.state), pytest.raises(CommitConflict, match="under way"):
        shop.run()
    assert shop.run().ok


def test_a_damaged_state_is_refused_and_says_what_to_do(shop: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    shop.run()
    shop.state.write_text(shop.state.read_text()[:-40])
    with pytest.raises(DamagedTable, match="remove it"):
        shop.run()


def test_the_state_holds_no_secret(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    shop.declare(shop.file.read_text() + '[spark.config]\n"spark.hadoop.fs.s3a.secret.key" = "${TOKEN}"\n')
    shop.lands("a.csv", {1: ("eu", 5.0)})
    report = shop.run()
    for path in (shop.state, report.json_path, report.html_path):
        assert "hunter2" not in Path(path).read_text()


def test_an_option_that_does_not_exist_is_refused_with_a_hint(shop: Any) -> None:
    shop.declare(shop.file.read_text().replace('on = "id"', 'on = "id"\noptions = { compresion = "zstd" }'))
    with pytest.raises(InputError, match=r"\(upsert\) options.*did you mean 'compression'\?"):
        pipeline.load(shop.file)


def test_a_spark_master_is_refused_where_the_engine_is_arrow(shop: Any) -> None:
    with pytest.raises(InputError, match="not Spark"):
        shop.run(master="local[1]")
