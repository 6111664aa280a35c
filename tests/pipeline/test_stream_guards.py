"""Rows of streams that are dropped or quarantined: batch by batch, each once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia import pipeline
from intarsia.errors import EngineError, InputError
from intarsia.pipeline.quality.step_guards import expand_guards
from intarsia.pipeline.streams import batches as stream_batches

more = pytest.mark.skipif(os.environ.get("INTARSIA_SPARK") != "full", reason="make spark runs it")
INTO = {"action": "quarantine", "quarantine": "bad"}
POSITIVE: dict[str, Any] = {"name": "sound", "holds": "n > 0"}
KNOWN: dict[str, Any] = {**POSITIVE, "references": {"id": "known.id"}}
APPEND = pipeline.Write(name="append", source="clicks", target="t")
UPSERT = pipeline.Merge(name="upsert", source="clicks", target="t", on="id")
QUARANTINE = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int64()),
        ("_reason", pa.string()),
        ("_step", pa.string()),
        ("_run", pa.string()),
        ("_at", pa.timestamp("us", "UTC")),
    ]
)


class Clicks:
    """A stream of files, each of which is one batch; a target, a quarantine, and keys that are known."""

    def __init__(self, root: Path, session: Any = None, kind: str = "parquet") -> None:
        self.root, self.session, self.kind, self.landed = root, session, kind, 0
        self.sources: dict[str, pipeline.Source] = {}
        (root / "in").mkdir()
        self.knows(1, 2, 3)
        if kind == "iceberg":
            pytest.importorskip("pyiceberg")
            from intarsia.tables.iceberg import embedded_catalog

            self.catalog = embedded_catalog(root / "warehouse")
            self.catalog.create_namespace("db")
            self.catalog.create_table("db.bad", QUARANTINE)

    def knows(self, *ids: int) -> None:
        it.write(pa.table({"id": list(ids)}), self.root / "known", mode="overwrite", engine="arrow")

    def lands(self, *rows: tuple[int, int]) -> None:
        self.landed += 1
        file = self.root / "in" / f"{self.landed}.json"
        file.write_text("\n".join(json.dumps({"id": key, "n": n}) for key, n in rows))
        os.utime(file, (1_700_000_000 + self.landed,) * 2)

    def declare(self, *steps: pipeline.Step) -> pipeline.Pipeline:
        stream = pipeline.Stream("json", str(self.root / "in"), options={"maxFilesPerTrigger": 1})
        clicks = pipeline.Source(stream=stream, columns={"id": "bigint", "n": "bigint"})
        targets = {name: pipeline.Target(str(self.root / name)) for name in ("t", "u", "known", "bad")}
        if self.kind == "iceberg":
            targets["bad"] = pipeline.Target("db.bad", kind="iceberg", catalog=f"{self.root}/warehouse")
        return pipeline.Pipeline(
            name="clicks",
            sources={"clicks": clicks, **self.sources},
            targets=targets,
            steps=steps,
            reports=str(self.root / "reports"),
        )

    def run(self, *steps: pipeline.Step, **options: Any) -> pipeline.PipelineReport:
        return pipeline.run(self.declare(*steps), session=self.session, progress=False, **options)

    def rows(self, target: str = "t") -> list[tuple[int, int]]:
        found = pq.read_table(self.root / target)
        return sorted(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True))

    def quarantined(self) -> list[tuple[Any, ...]]:
        if self.kind == "iceberg":
            found = self.catalog.load_table("db.bad").scan().to_arrow()
        elif (self.root / "bad").exists():
            found = pq.read_table(self.root / "bad")
        else:
            return []
        if not found.num_rows:
            return []
        return sorted(zip(*(found[name].to_pylist() for name in ("id", "n", "_reason")), strict=True))


@pytest.mark.spark
def test_rows_of_a_stream_are_quarantined_batch_by_batch(
    spark: Any, tmp_path: Path, list_persisted: Callable[[], set[int]]
) -> None:
    clicks = Clicks(tmp_path, spark)
    clicks.lands((1, 1), (2, -2))
    clicks.lands((3, 3), (9, -9))
    clicks.lands((2, 2))
    guard = pipeline.Expect(**KNOWN, target="t", **INTO)
    before = list_persisted()
    report = clicks.run(guard, APPEND).check()
    assert list_persisted() <= before, "a stream without end would keep the keys of every batch"
    assert clicks.rows() == [(1, 1), (2, 2), (3, 3)]
    assert clicks.quarantined() == [(2, -2, "n > 0"), (9, -9, "n > 0; id in known.id")]
    sound, append = report.steps
    assert (sound.status, sound.batches, append.batches) == ("done", 3, 3)
    assert [(one.expectation, one.failing, one.rows, one.outcome) for one in sound.checks] == [
        ("n > 0", 2, 5, "quarantined"),
        ("id in known.id", 1, 5, "quarantined"),
        ("all of these", 2, 5, "quarantined"),
    ]
    assert sound.result.inserted == 2
    told = json.loads(Path(report.json_path or "").read_text())["steps"][0]
    assert (told["target"], told["checks"][0]["failing"]) == ("bad", 2)
    assert [step.status for step in clicks.run(guard, APPEND).steps] == ["unchanged", "unchanged"]
    clicks.lands((1, -1))
    report = clicks.run(guard, APPEND, only="append").check()
    assert [step.status for step in report.steps] == ["done", "done"]
    assert [row[0] for row in clicks.quarantined()] == [1, 2, 9]
    planned = clicks.run(guard, APPEND, dry_run=True)
    assert "judged batch by batch" in planned.step("sound").notes[0]


@pytest.mark.spark
@pytest.mark.parametrize("kind", [pytest.param("parquet", marks=more), "iceberg"])
def test_a_batch_that_was_quarantined_and_not_taken_is_finished_as_it_was_judged(
    spark: Any, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clicks = Clicks(tmp_path, spark, kind)
    guard = pipeline.Expect(**KNOWN, source="clicks", **INTO)
    clicks.lands((1, 1), (9, 9), (2, 2), (3, -3))
    with monkeypatch.context() as patched:

        def end(*_: Any) -> None:
            raise EngineError("killed here")

        patched.setattr(stream_batches.StepBatch, "_take", end)
        assert clicks.run(guard, APPEND).failed is not None
    assert [row[0] for row in clicks.quarantined()] == [3, 9]
    clicks.knows(9)  # now 9 would pass, and 1 and 2 would not
    clicks.run(guard, APPEND).check()
    assert clicks.rows() == [(1, 1), (2, 2)]
    assert [row[0] for row in clicks.quarantined()] == [3, 9]
    (commits,) = (tmp_path / ".intarsia").glob("clicks.checkpoints/*/*/commits")
    (commits / "0").unlink()  # as though the driver had been killed before Spark noted the batch
    (commits / ".0.crc").unlink(missing_ok=True)
    clicks.lands((9, 10), (1, 11))
    clicks.run(guard, APPEND).check()
    assert clicks.rows() == [(1, 1), (2, 2), (9, 10)]
    assert [row[:2] for row in clicks.quarantined()] == [(1, 11), (3, -3), (9, 9)]


@pytest.mark.spark
def test_a_batch_with_more_than_may_be_ends_the_step_and_a_refresh_quarantines_anew(
    spark: Any, tmp_path: Path
) -> None:
    clicks = Clicks(tmp_path, spark)
    other = pipeline.Write(name="other", source="clicks", target="u")
    clicks.lands((1, 1), (2, -2))
    clicks.lands((3, -3), (4, -4))
    guards = [pipeline.Expect(**POSITIVE, target="t", at_most=at_most, **INTO) for at_most in (1, 2)]
    report = clicks.run(guards[0], UPSERT, other)
    assert report.failed.name == "upsert"
    assert "batch 1 of source 'clicks'" in str(report.failed.error)
    assert "2 of 2 rows against it, more than 1 row" in str(report.failed.error)
    assert clicks.rows() == [(1, 1)]
    assert [row[0] for row in clicks.quarantined()] == [2]
    clicks.run(guards[1], UPSERT, other).check()
    assert [row[0] for row in clicks.quarantined()] == [2, 3, 4]
    assert len(clicks.rows("u")) == 4
    clicks.run(guards[1], UPSERT, full_refresh=True).check()
    assert [row[0] for row in clicks.quarantined()] == [2, 3, 4]


@pytest.mark.spark
@more
def test_dropped_rows_of_a_stream_reach_none_of_its_steps(spark: Any, tmp_path: Path) -> None:
    clicks = Clicks(tmp_path, spark)
    clicks.sources["loud"] = pipeline.Source(sql="select id, n * 10 as n from clicks")
    other = pipeline.Merge(name="other", source="loud", target="u", on="id")
    clicks.lands((1, 1), (2, -2))
    steps = (
        APPEND,
        pipeline.Expect(**POSITIVE, source="loud", action="drop"),
        other,
    )
    report = clicks.run(*steps).check()
    assert clicks.rows() == [(1, 1), (2, -2)]
    assert clicks.rows("u") == [(1, 10)]
    assert report.step("sound").checks[0].failing == 1


@pytest.mark.spark
def test_keys_of_an_append_are_unique_in_a_batch_and_in_its_target(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clicks = Clicks(tmp_path, spark)
    guard = pipeline.Expect(name="sound", unique="id", source="clicks", **INTO)
    clicks.lands((1, 1), (2, 2), (2, 3))
    clicks.lands((1, 4), (3, 5))
    report = clicks.run(guard, APPEND).check()
    assert clicks.rows() == [(1, 1), (3, 5)]
    assert clicks.quarantined() == [(1, 4, "id unique"), (2, 2, "id unique"), (2, 3, "id unique")]
    assert [(one.expectation, one.failing, one.rows) for one in report.step("sound").checks] == [
        ("id unique", 3, 5)
    ]
    clicks.lands((1, 6), (2, 7))
    with monkeypatch.context() as patched:

        def end(*_: Any) -> None:
            raise EngineError("killed here")

        patched.setattr(stream_batches.StepBatch, "_take", end)
        assert clicks.run(guard, APPEND).failed is not None
    it.delete(tmp_path / "t", "id = 1", engine="arrow")  # now 1 would pass, and is in the quarantine
    clicks.run(guard, APPEND).check()
    assert clicks.rows() == [(2, 7), (3, 5)]
    assert [row[:2] for row in clicks.quarantined()] == [(1, 4), (1, 6), (2, 2), (2, 3)]


@pytest.mark.spark
def test_keys_of_a_merge_are_unique_in_a_batch_and_updated_by_a_later_one(spark: Any, tmp_path: Path) -> None:
    clicks = Clicks(tmp_path, spark)
    clicks.lands((1, 1), (2, 2), (2, 3))
    clicks.lands((1, 4), (3, 5))
    clicks.run(pipeline.Expect(name="sound", unique="id", source="clicks", action="drop"), UPSERT).check()
    assert clicks.rows() == [(1, 4), (3, 5)]


@pytest.mark.spark
def test_keys_of_a_stream_are_looked_up_in_a_source_as_one_run_reads_it(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, list_persisted: Callable[[], set[int]]
) -> None:
    clicks = Clicks(tmp_path, spark)
    pq.write_table(pa.table({"key": [1, 2, 2]}), tmp_path / "still.parquet")
    clicks.sources["still"] = pipeline.Source(str(tmp_path / "still.parquet"))
    known = pipeline.Expect(name="known", references={"id": "still.key"}, source="clicks", **INTO)
    sound = pipeline.Expect(name="sound", holds="n > 0", source="clicks", action="drop")
    clicks.lands((1, 1), (9, 9))
    before = list_persisted()
    with monkeypatch.context() as patched:

        def end(*_: Any) -> None:
            raise EngineError("killed here")

        patched.setattr(stream_batches.StepBatch, "_take", end)
        assert clicks.run(known, sound, APPEND).failed is not None
    pq.write_table(pa.table({"key": [9]}), tmp_path / "still.parquet")  # now 9 would pass, and 1 would not
    clicks.lands((9, 10), (1, 11), (9, -1))
    report = clicks.run(known, sound, APPEND).check()
    assert list_persisted() <= before
    assert clicks.rows() == [(1, 1), (9, 10)]
    assert clicks.quarantined() == [(1, 11, "id in still.key"), (9, 9, "id in still.key")]
    assert [one.failing for one in report.step("known").checks] == [1]
    assert sorted(pq.read_schema(next((tmp_path / "t").glob("*.parquet"))).names) == ["id", "n"]


@pytest.mark.spark
def test_a_batch_is_refused_or_taken_with_a_warning(spark: Any, tmp_path: Path) -> None:
    clicks = Clicks(tmp_path, spark)
    clicks.lands((1, 1))
    clicks.lands((2, -2), (3, 3))
    failing = pipeline.Expect(**POSITIVE, source="clicks")
    report = clicks.run(failing, APPEND)
    assert report.failed is not None
    assert "1 expectation does not hold of batch 1 of source 'clicks': n > 0" in str(report.failed.error)
    assert clicks.rows() == [(1, 1)]
    warning = pipeline.Expect(**POSITIVE, source="clicks", action="warn")
    report = clicks.run(warning, APPEND).check()
    assert clicks.rows() == [(1, 1), (2, -2), (3, 3)]
    assert [(one.failing, one.outcome) for one in report.step("sound").checks] == [(1, "warned")]


# What is refused, and what steps there are


def test_each_step_that_takes_the_stream_has_a_guard(tmp_path: Path) -> None:
    clicks = Clicks(tmp_path)
    other = pipeline.Write(name="other", source="clicks", target="u")
    declared = clicks.declare(pipeline.Expect(**POSITIVE, source="clicks", action="drop"), APPEND, other)
    pipeline.check(declared)
    names = [step.name for step in expand_guards(declared).steps]
    assert names == ["sound (append)", "append", "sound (other)", "other"]


ON_MORE = pipeline.Merge(
    name="upsert", source="clicks", target="t", on="target.id = source.id and target.n < source.n"
)
OTHER = pipeline.Write(name="other", source="clicks", target="u")
THROUGH = pipeline.Merge(name="loud", source="loud", target="u", on="id")


@pytest.mark.parametrize(
    ("given", "steps", "told"),
    [
        ({"source": "clicks", "unique": "n"}, (UPSERT,), "its key 'id' is not among them"),
        ({"source": "clicks", "unique": "id"}, (ON_MORE,), "its condition is on more than keys"),
        ({"target": "t", "unique": "id"}, (APPEND,), "unique is about all rows of the target"),
        ({"source": "clicks", "references": {"id": "loud.id"}}, (APPEND,), "source 'clicks' is a stream"),
        ({"source": "clicks", "min_rows": 1, "action": "warn"}, (APPEND,), "has them batch by batch"),
        ({"source": "clicks", **INTO}, (APPEND, OTHER), "steps 'append' and 'other' take the stream"),
        ({"source": "clicks"}, (THROUGH,), "step 'loud' reads the stream through source 'loud'"),
        ({"source": "clicks", "action": "fail"}, (THROUGH,), "reads the stream through source 'loud'"),
    ],
    ids=str,
)
def test_what_cannot_be_judged_in_batches_is_refused(
    tmp_path: Path, given: dict[str, Any], steps: tuple[Any, ...], told: str
) -> None:
    clicks = Clicks(tmp_path)
    clicks.sources["loud"] = pipeline.Source(sql="select id, n * 10 as n from clicks")
    clicks.sources["still"] = pipeline.Source(str(tmp_path / "still.parquet"))
    with pytest.raises(InputError, match=told) as refused:
        pipeline.check(clicks.declare(pipeline.Expect(**{**POSITIVE, "action": "drop", **given}), *steps))
    assert refused.value.hint


def test_a_guard_below_the_step_that_takes_the_stream_is_refused(tmp_path: Path) -> None:
    clicks = Clicks(tmp_path)
    with pytest.raises(InputError, match="no step below takes the stream"):
        pipeline.check(clicks.declare(APPEND, pipeline.Expect(**POSITIVE, source="clicks", action="drop")))
