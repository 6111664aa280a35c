"""Streams as sources: each run takes what is new, batch by batch, and every batch takes effect once."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia import pipeline
from intarsia.errors import DamagedTable, InputError, NothingMatched, NotSupported
from intarsia.pipeline.streams import batches as stream_batches

pytestmark = pytest.mark.spark
more = pytest.mark.skipif(os.environ.get("INTARSIA_SPARK") != "full", reason="make spark runs it")

ADDS = """when matched then update set n = target.n + source.n
when not matched then insert (id, n) values (source.id, source.n)"""
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
BY_STEP = {
    "add": {"operation": "merge", "on": "id", "when": ADDS},
    "append": {"operation": "write"},
    "upsert": {"operation": "merge", "on": "id"},
}


class Clicks:
    """A landing directory, a target, and a pipeline with a stream between them."""

    def __init__(self, root: Path, session: Any, kind: str = "parquet") -> None:
        self.root, self.session, self.kind = root, session, kind
        self.stream: dict[str, Any] = {
            "format": "json",
            "path": str(root / "in"),
            "options": {"maxFilesPerTrigger": 1},
        }
        self.source: dict[str, Any] = {"columns": {"id": "bigint", "n": "bigint"}}
        self.sources: dict[str, pipeline.Source] = {}
        self.landed = 0
        (root / "in").mkdir()
        if kind == "iceberg":
            pytest.importorskip("pyiceberg")
            from intarsia.tables.iceberg import embedded_catalog

            self.catalog = embedded_catalog(root / "warehouse")
            self.catalog.create_namespace("db")
            self.catalog.create_table("db.t", SCHEMA)

    @property
    def checkpoints(self) -> Path:
        return self.root / ".intarsia" / "clicks.checkpoints"

    def lands(self, *rows: tuple[int, int]) -> Path:
        """One file, which is one batch; Spark takes the oldest first."""
        self.landed += 1
        file = self.root / "in" / f"file {self.landed}.json"
        file.write_text("\n".join(json.dumps({"id": key, "n": n}) for key, n in rows))
        os.utime(file, (1_700_000_000 + self.landed,) * 2)
        return file

    def declare(self, *steps: str | pipeline.Step, source: str = "clicks") -> pipeline.Pipeline:
        kinds = {kind.operation: kind for kind in pipeline.Step.__args__}
        made = []
        for step in steps:
            if isinstance(step, str):
                said = {key: value for key, value in BY_STEP[step].items() if key != "operation"}
                kind = kinds[BY_STEP[step]["operation"]]
                step = kind(name=step, target="t", source=source, **said)
            made.append(step)
        target = pipeline.Target(str(self.root / "t"))
        if self.kind == "iceberg":
            target = pipeline.Target("db.t", kind="iceberg", catalog=f"{self.root}/warehouse")
        clicks = pipeline.Source(stream=pipeline.Stream(**self.stream), **self.source)
        return pipeline.Pipeline(
            name="clicks",
            sources={"clicks": clicks, **self.sources},
            targets={"t": target},
            steps=tuple(made),
            reports=str(self.root / "reports"),
        )

    def run(
        self, *steps: str | pipeline.Step, source: str = "clicks", **options: Any
    ) -> pipeline.PipelineReport:
        declared = self.declare(*steps, source=source)
        return pipeline.run(declared, session=self.session, progress=False, **options)

    def rows(self) -> list[tuple[int, int]]:
        if self.kind == "iceberg":
            found = self.catalog.load_table("db.t").scan().to_arrow()
        else:
            found = pq.read_table(self.root / "t")
        return sorted(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True))


@contextmanager
def failing_at_second(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The second batch of a query fails, after the first was committed."""
    original = stream_batches.StepBatch.__call__

    def fail(self: Any, frame: Any, batch_id: int) -> None:
        if batch_id == 1:
            raise InputError("stopped here")
        original(self, frame, batch_id)

    with monkeypatch.context() as patched:
        patched.setattr(stream_batches.StepBatch, "__call__", fail)
        yield


@pytest.fixture
def clicks(spark: Any, tmp_path: Path) -> Clicks:
    return Clicks(tmp_path, spark)


@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_each_run_takes_what_is_new_and_the_report_adds_up_the_batches(
    spark: Any, tmp_path: Path, kind: str
) -> None:
    clicks = Clicks(tmp_path, spark, kind)
    clicks.lands((1, 1), (2, 1))
    clicks.lands((1, 10), (3, 10))
    (step,) = clicks.run("add").check().steps
    assert (step.status, step.batches, dict(step.result)) == (
        "done",
        2,
        {"inserted": 3, "updated": 1, "deleted": 0, "total": 3},
    )
    assert step.result.source_count == 4
    assert "2 batches of 4 rows" in step.notes
    assert clicks.rows() == [(1, 11), (2, 1), (3, 10)]
    (step,) = clicks.run("add").check().steps
    assert (step.status, step.notes) == ("unchanged", ("there is nothing new",))
    clicks.lands((3, 100))
    (step,) = clicks.run("add").check().steps
    assert (step.batches, step.result.updated) == (1, 1)
    assert clicks.rows() == [(1, 11), (2, 1), (3, 110)]
    said = json.loads(Path(clicks.run("add").json_path or "").read_text())
    assert said["steps"][0]["input"]["batches"] == 0


def test_a_run_with_nothing_new_opens_no_session(clicks: Clicks) -> None:
    clicks.lands((1, 1))
    clicks.run("append").check()
    clicks.session = None

    def refuse() -> None:
        raise AssertionError("a session was opened")

    declared = clicks.declare("append")
    from intarsia.pipeline import runner

    original = runner.make_opener
    try:
        runner.make_opener = lambda *_: refuse  # type: ignore[assignment]
        assert [step.status for step in pipeline.run(declared, progress=False).steps] == ["unchanged"]
        clicks.lands((2, 2))
        with pytest.raises(AssertionError, match="opened"):
            pipeline.run(declared, progress=False)
    finally:
        runner.make_opener = original


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        ("add", "iceberg"),
        ("append", "parquet"),
        pytest.param("add", "parquet", marks=more),
        pytest.param("append", "iceberg", marks=more),
    ],
)
def test_a_batch_that_spark_gives_again_takes_effect_once(
    spark: Any, tmp_path: Path, kind: str, step: str
) -> None:
    clicks = Clicks(tmp_path, spark, kind)
    clicks.lands((1, 1))
    clicks.lands((1, 10))
    clicks.run(step).check()
    rows = clicks.rows()
    (commits,) = clicks.checkpoints.glob("*/*/commits")
    (commits / "1").unlink()  # as though the driver had been killed before Spark noted its last batch
    (commits / ".1.crc").unlink(missing_ok=True)
    (told,) = clicks.run(step).check().steps
    assert (commits / "1").exists()  # it did give the batch again
    assert told.status == "unchanged"
    assert clicks.rows() == rows


def test_a_query_over_a_stream_joins_what_stands_still(clicks: Clicks) -> None:
    clicks.lands((1, 1), (2, 2), (3, 3))
    (clicks.root / "names.csv").write_text("id,factor\n1,10\n3,100\n")
    clicks.sources["names"] = pipeline.Source(
        str(clicks.root / "names.csv"), columns={"id": "bigint", "factor": "bigint"}
    )
    clicks.sources["scaled"] = pipeline.Source(
        sql="select id, n * factor as n from clicks join names using (id)"
    )
    clicks.run("append", source="scaled").check()
    clicks.lands((3, 4))
    clicks.run("append", source="scaled").check()
    assert clicks.rows() == [(1, 10), (3, 300), (3, 400)]


def test_a_function_over_a_stream_gives_a_stream(clicks: Clicks) -> None:
    file = clicks.root / "transforms.py"
    file.write_text('def double(clicks):\n    return clicks.selectExpr("id", "n * 2 as n")\n')
    clicks.sources["doubled"] = pipeline.Source(python=f"{file}:double", where="id > 1")
    clicks.lands((1, 1), (2, 2))
    clicks.run("append", source="doubled").check()
    assert clicks.rows() == [(2, 4)]
    file.write_text("def double(spark, clicks):\n    return spark.range(1)\n")
    clicks.lands((3, 3))
    with pytest.raises(InputError, match="is no stream, though it reads one"):
        clicks.run("append", source="doubled").check()


def test_a_stream_below_a_step_of_files_is_taken(clicks: Clicks) -> None:
    (clicks.root / "more.csv").write_text("id,n\n7,7\n")
    kinds = {"id": "bigint", "n": "bigint"}
    clicks.sources["more"] = pipeline.Source(str(clicks.root / "more.csv"), columns=kinds)
    clicks.lands((1, 1))
    clicks.run(pipeline.Merge(name="more", source="more", target="t", on="id"), "upsert").check()
    assert clicks.rows() == [(1, 1), (7, 7)]


def test_what_spark_refuses_of_a_stream_is_told_with_its_place(clicks: Clicks) -> None:
    clicks.sources["counted"] = pipeline.Source(sql="select id, count(*) as n from clicks group by id")
    clicks.lands((1, 1))
    with pytest.raises(
        InputError, match=r"\[sources.counted\]: Spark refuses it: .*aggregations without watermark"
    ):
        clicks.run("append", source="counted").check()
    assert not (clicks.root / "t").exists()


@more
def test_where_and_derive_of_a_stream_mean_what_they_mean_of_files(clicks: Clicks) -> None:
    clicks.source |= {"derive": {"n": "n * 2"}, "where": "id <> 2"}
    clicks.lands((1, 1), (2, 2))
    clicks.run("append").check()
    assert clicks.rows() == [(1, 2)]


@more
def test_a_schema_in_the_words_of_spark_is_taken(clicks: Clicks) -> None:
    clicks.source = {}
    clicks.stream["schema"] = {"id": "bigint", "n": "bigint"}
    clicks.lands((1, 1))
    clicks.run("append").check()
    clicks.stream["schema"] = "id bigint, n bigint"
    clicks.lands((2, 2))
    clicks.run("append").check()
    assert clicks.rows() == [(1, 1), (2, 2)]


def test_csv_of_a_stream_is_read_as_that_of_files(clicks: Clicks) -> None:
    clicks.stream["format"] = "csv"
    clicks.source = {"columns": {"id": "bigint", "n": "bigint", "note": "varchar"}}
    (clicks.root / "in" / "a.csv").write_text('id,n,note\n1,1.0,"a ""b""\nc"\n2,,""\n')
    step = pipeline.Write(name="append", source="clicks", target="t")
    clicks.run(step).check()
    assert pq.read_table(clicks.root / "t").to_pylist() == [
        {"id": 1, "n": 1, "note": 'a "b"\nc'},
        {"id": 2, "n": None, "note": ""},
    ]
    (clicks.root / "in" / "b.csv").write_text("n,id,note\n5,3,x\n")
    with pytest.raises(InputError, match="header"):  # another order of columns is not mixed up
        clicks.run(step).check()


@more
def test_a_stream_that_failed_at_first_goes_on_with_its_checkpoint(clicks: Clicks) -> None:
    """What it had begun to take is not forgotten: a topic would be begun at its end again."""
    bad = clicks.lands((1, 1))
    bad.write_text('{"id": 1, "n": "many"}\n')
    assert clicks.run("append").failed is not None
    (first,) = clicks.checkpoints.glob("append/*/metadata")
    bad.write_text('{"id": 1, "n": 1}\n')
    clicks.run("append").check()
    assert list(clicks.checkpoints.glob("append/*/metadata")) == [first]
    assert clicks.rows() == [(1, 1)]


def test_a_bad_record_fails_its_batch_and_those_before_stay(clicks: Clicks) -> None:
    clicks.lands((1, 1))
    bad = clicks.lands((2, 2))
    bad.write_text('{"id": 2, "n": "many"}\n')
    os.utime(bad, (1_700_000_000 + clicks.landed,) * 2)
    clicks.lands((3, 3))
    report = clicks.run("append")
    assert report.failed is not None
    assert "many" in str(report.failed.error)
    assert isinstance(report.failed.error, InputError)
    assert clicks.rows() == [(1, 1)]
    assert report.failed.notes == ("1 batch of 1 row was committed before",)
    assert report.failed.batches == 1
    assert report.failed.result is not None
    assert report.failed.result.inserted == 1
    again = clicks.run("append").failed
    assert again is not None
    assert (again.batches, again.result) == (None, None)
    assert again.notes == ("the target is as it was",)
    bad.write_text('{"id": 2, "n": 2}\n')
    clicks.run("append").check()
    assert clicks.rows() == [(1, 1), (2, 2), (3, 3)]


def test_a_dry_run_counts_new_files_and_touches_no_checkpoint(clicks: Clicks) -> None:
    clicks.lands((1, 1))
    clicks.lands((2, 2))
    (step,) = clicks.run("append", dry_run=True).steps
    assert (step.status, step.notes) == ("planned", ("a stream: 2 files that no batch has taken",))
    assert not clicks.checkpoints.exists()
    assert not (clicks.root / "t").exists()
    clicks.run("append").check()
    before = sorted(path for path in clicks.checkpoints.rglob("*"))
    clicks.lands((3, 3))
    (step,) = clicks.run("append", dry_run=True).steps
    assert step.notes == ("a stream: 1 file that no batch has taken",)
    assert sorted(path for path in clicks.checkpoints.rglob("*")) == before


def test_a_full_refresh_merges_everything_again_and_appends_nothing_twice(clicks: Clicks) -> None:
    clicks.lands((1, 1))
    clicks.lands((2, 2))
    clicks.run("upsert", "append").check()
    assert clicks.rows() == [(1, 1), (1, 1), (2, 2), (2, 2)]
    it.delete(clicks.root / "t", "id = 2", engine="arrow")
    it.deduplicate(clicks.root / "t", engine="arrow")
    report = clicks.run("upsert", "append", full_refresh=True).check()
    assert [step.batches for step in report.steps] == [2, 0]
    assert clicks.rows() == [(1, 1), (2, 2)]
    assert [step.status for step in clicks.run("upsert", "append").steps] == ["unchanged", "unchanged"]


@more
def test_a_full_refresh_that_was_interrupted_is_gone_on_with(
    clicks: Clicks, monkeypatch: pytest.MonkeyPatch
) -> None:
    clicks.lands((1, 1))
    clicks.lands((1, 10))
    clicks.run("add").check()
    with failing_at_second(monkeypatch), pytest.raises(InputError, match="stopped here"):
        clicks.run("add", full_refresh=True).check()
    assert clicks.rows() == [(1, 12)]
    clicks.run("add", full_refresh=True).check()
    assert clicks.rows() == [(1, 22)]


@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_batches_of_a_run_that_failed_are_no_other_writer_for_whom_steps_above_run_again(
    spark: Any, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clicks = Clicks(tmp_path, spark, kind)
    target: Any = tmp_path / "t"
    if kind == "iceberg":
        target = it.iceberg("db.t", catalog=f"{tmp_path}/warehouse")
    it.write(pa.table({"id": [1], "n": [100]}, SCHEMA), target, engine="arrow", progress=False)
    clicks.lands((2, 2))
    clicks.lands((3, 3))
    steps = (pipeline.Update(name="plus one", target="t", set={"n": "n + 1"}), "append")
    with failing_at_second(monkeypatch), pytest.raises(InputError, match="stopped here"):
        clicks.run(*steps).check()
    assert clicks.rows() == [(1, 101), (2, 2)]
    clicks.run(*steps).check()
    assert clicks.rows() == [(1, 101), (2, 2), (3, 3)]
    clicks.run(*steps).check()
    assert clicks.rows() == [(1, 101), (2, 2), (3, 3)]
    it.write(pa.table({"id": [4], "n": [4]}, SCHEMA), target, engine="arrow", progress=False)
    clicks.run(*steps).check()
    assert clicks.rows() == [(1, 102), (2, 3), (3, 4), (4, 5)]


def test_a_target_that_was_removed_is_filled_again(clicks: Clicks) -> None:
    clicks.lands((1, 1))
    clicks.run("append").check()
    shutil.rmtree(clicks.root / "t")
    shutil.rmtree(clicks.root / ".t.intarsia", ignore_errors=True)
    (step,) = clicks.run("append").check().steps
    assert "there was no target, so everything is taken again" in step.notes
    assert clicks.rows() == [(1, 1)]


def test_a_renamed_step_keeps_its_checkpoint(clicks: Clicks) -> None:
    clicks.lands((1, 1))
    clicks.run("append").check()
    renamed = pipeline.Write(name="add clicks", source="clicks", target="t")
    assert [step.status for step in clicks.run(renamed).check().steps] == ["unchanged"]
    clicks.lands((2, 2))
    clicks.run(renamed).check()
    assert clicks.rows() == [(1, 1), (2, 2)]


def _change_path(clicks: Clicks) -> None:
    shutil.copytree(clicks.root / "in", clicks.root / "other")
    clicks.stream["path"] = str(clicks.root / "other")


def _change_format(clicks: Clicks) -> None:
    clicks.stream["format"] = "csv"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_change_path, r"is of json .*/in, and the step reads json .*/other"),
        pytest.param(_change_format, r"reads csv ", marks=more),
    ],
)
def test_the_checkpoint_of_another_stream_is_refused_before_any_step_runs(
    clicks: Clicks, change: Callable[[Clicks], None], told: str
) -> None:
    clicks.lands((1, 1))
    clicks.run("append").check()
    change(clicks)
    clicks.lands((2, 2))
    before = it.snapshot(clicks.root / "t").version
    delete = pipeline.Delete(name="delete", target="t", where="id = 1")
    with pytest.raises(InputError, match=told) as caught:
        clicks.run(delete, "append")
    assert "another name or checkpoint" in (caught.value.hint or "")
    assert it.snapshot(clicks.root / "t").version == before


def test_a_checkpoint_of_a_query_of_ones_own_is_refused(clicks: Clicks) -> None:
    (clicks.root / "mine" / "append").mkdir(parents=True)
    (clicks.root / "mine" / "append" / "metadata").write_text('{"id": "x"}')
    clicks.stream["checkpoint"] = str(clicks.root / "mine")
    with pytest.raises(InputError, match=r"\[sources.clicks\] stream: .* belongs to another query"):
        clicks.run("append")
    shutil.rmtree(clicks.root / "mine")
    (clicks.root / "mine" / "offsets").mkdir(parents=True)  # the directory that is named is one itself
    (clicks.root / "mine" / "metadata").write_text('{"id": "x"}')
    with pytest.raises(InputError, match=r"mine is not empty.* belongs to another query"):
        clicks.run("append")
    shutil.rmtree(clicks.root / "mine")
    clicks.lands((1, 1))
    clicks.run("append").check()
    assert (clicks.root / "mine" / "append" / "intarsia.json").exists()


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param("the checkpoint", marks=more),
        pytest.param("Spark's part", marks=more),
        "the checkpoint and the state",
    ],
)
def test_a_checkpoint_that_was_lost_is_noticed(clicks: Clicks, lost: str) -> None:
    clicks.lands((1, 1))
    clicks.run("add").check()
    if lost == "Spark's part":
        shutil.rmtree(next(clicks.checkpoints.glob("add/*/offsets")).parent)
    else:
        shutil.rmtree(clicks.checkpoints if lost == "the checkpoint" else clicks.root / ".intarsia")
    clicks.lands((1, 10))
    with pytest.raises(DamagedTable, match=r"is not in .* any more, while .* has batches of it"):
        clicks.run("add")
    assert clicks.rows() == [(1, 1)]
    clicks.run("add", full_refresh=True).check()
    assert clicks.rows() == [(1, 12)]


@more
def test_a_checkpoint_goes_on_when_only_the_state_was_lost(clicks: Clicks) -> None:
    clicks.lands((1, 1))
    clicks.run("add").check()
    (clicks.root / ".intarsia" / "clicks.state.json").unlink()
    clicks.lands((1, 10))
    clicks.run("add").check()
    assert clicks.rows() == [(1, 11)]


def test_a_path_that_is_not_there_is_told_before_any_step_runs(clicks: Clicks) -> None:
    clicks.stream["path"] = str(clicks.root / "inn")
    with pytest.raises(NothingMatched, match=r"\[sources.clicks\] stream path: there is no .*/inn"):
        clicks.run("append")


def test_the_package_of_a_format_that_is_missing_is_named(clicks: Clicks) -> None:
    """Before any step runs, and nothing is left that another topic would find."""
    options = {"subscribe": "clicks", "kafka.bootstrap.servers": "127.0.0.1:1"}
    clicks.stream = {"format": "kafka", "options": options}
    clicks.source = {}
    with pytest.raises(NotSupported, match=r"\[sources.clicks\] stream: the Spark session has no") as caught:
        clicks.run("append")
    assert "org.apache.spark:spark-sql-kafka-0-10_2.13:" in (caught.value.hint or "")
    assert not list(clicks.root.rglob("*.checkpoints"))


@more
def test_a_rate_stream_is_taken_as_far_as_it_is(clicks: Clicks) -> None:
    clicks.stream = {"format": "rate", "options": {"rowsPerSecond": 1000}}
    clicks.source = {"derive": {"id": "value", "n": "1"}, "columns": {"value": "bigint"}}
    step = pipeline.Write(name="rate", source="clicks", target="t")
    for _ in range(3):
        clicks.run(step).check()
        time.sleep(1.1)  # the rate counts whole seconds, and a run may take less than one
    found = pq.read_table(clicks.root / "t", columns=["value"])["value"].to_pylist()
    assert sorted(found) == list(range(len(found)))  # each value once
    assert len(found) >= 1000


def test_a_stop_ends_a_stream_after_the_batch_at_hand(
    clicks: Clicks, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        clicks.lands((number, number))
    original = stream_batches.StepBatch.__call__
    stop = threading.Event()

    def stop_in_second(self: Any, frame: Any, batch_id: int) -> None:
        if batch_id == 1:
            stop.set()
        original(self, frame, batch_id)

    with monkeypatch.context() as patched:
        patched.setattr(stream_batches.StepBatch, "__call__", stop_in_second)
        report = clicks.run("append", continuous=True, stop=stop).check()
    assert [step.status for step in report.steps] == ["done"]
    taken = clicks.rows()
    assert taken[:2] == [(0, 0), (1, 1)]
    assert len(taken) < 4
    clicks.run("append").check()
    assert clicks.rows() == [(number, number) for number in range(4)]
