"""S31: every step takes effect once, also when the process ends after its commit; on every table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia import pipeline
from intarsia.errors import CommitConflict, CommitUnknown, StorageError
from intarsia.pipeline.state import state_file as state
from intarsia.pipeline.state.run_state import RunState
from intarsia.tables.parquet.journal import Journal

ROWS = {"id": [1, 2, 3, 3], "v": [10, 20, 30, 30]}
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])

STEPS: dict[str, dict[str, Any]] = {
    "update": {"operation": "update", "set": {"v": "v + 1"}},
    "clauses": {
        "operation": "merge",
        "source": "landing",
        "on": "id",
        "when": "when matched then update set v = target.v + source.v"
        " when not matched then insert (id, v) values (source.id, source.v)",
    },
    "append": {"operation": "write", "source": "landing"},
    "upsert": {"operation": "merge", "source": "landing", "on": "id"},
    "overwrite": {"operation": "write", "source": "landing", "mode": "overwrite"},
    "delete": {"operation": "delete", "where": "v < 15"},
    "compact": {"operation": "compact"},
    "optimize": {"operation": "optimize", "by": ("v",)},
    "deduplicate": {"operation": "deduplicate", "on": "id"},
    "nothing": {"operation": "update", "set": {"v": "v + 1"}, "where": "v > 1000"},
}


class Lake:
    """One table with rows, and the pipeline over it."""

    def __init__(self, root: Path, kind: str, engine: str, session: Any = None) -> None:
        self.root, self.kind, self.engine, self.session = root, kind, engine, session
        (root / "landing").mkdir()
        self.lands("a", {"id": [2, 9], "v": [7, 90]})
        if kind == "iceberg":
            from intarsia.tables.iceberg.catalog import embedded_catalog

            self.catalog = embedded_catalog(root / "warehouse")
            self.catalog.create_namespace("db")
            self.catalog.create_table("db.t", SCHEMA)
            it.write(pa.table(ROWS, SCHEMA).slice(0, 2), self.table(), engine="arrow")
            it.write(pa.table(ROWS, SCHEMA).slice(2), self.table(), engine="arrow")
        else:
            it.write(pa.table(ROWS, SCHEMA).slice(0, 2), root / "t", engine="arrow")
            it.write(pa.table(ROWS, SCHEMA).slice(2), root / "t", engine="arrow")

    def lands(self, name: str, rows: dict[str, list[int]]) -> None:
        pq.write_table(pa.table(rows, SCHEMA), self.root / "landing" / f"{name}.parquet")

    def table(self) -> Any:
        return it.iceberg("db.t", catalog=self.catalog) if self.kind == "iceberg" else self.root / "t"

    def rows(self) -> list[tuple[int, int]]:
        if self.kind == "iceberg":
            found = self.catalog.load_table("db.t").scan().to_arrow()
        else:
            found = pq.read_table(self.root / "t")
        return sorted(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))

    def expire(self) -> None:
        """Expire every snapshot of the Iceberg table but the last."""
        from intarsia.tables.iceberg import expire_snapshots

        expired = expire_snapshots(self.table(), older_than=datetime.now(UTC), retain_last=1, dry_run=False)
        assert expired.snapshots

    def files(self) -> list[str]:
        return sorted(file.path for file in it.snapshot(self.table()).files)

    def pipeline(self, *steps: dict[str, Any]) -> pipeline.Pipeline:
        iceberg = {"kind": "iceberg", "catalog": f"{self.root}/warehouse"} if self.kind == "iceberg" else {}
        kinds = {kind.operation: kind for kind in pipeline.Step.__args__}
        made = []
        for number, step in enumerate(steps):
            said = {key: value for key, value in step.items() if key != "operation"}
            made.append(kinds[step["operation"]](**({"name": f"s{number}", "target": "t"} | said)))
        return pipeline.Pipeline(
            name="p",
            engine=self.engine,
            sources={"landing": pipeline.Source(f"{self.root}/landing/*.parquet")},
            targets={"t": pipeline.Target("db.t" if iceberg else f"{self.root}/t", **iceberg)},
            steps=tuple(made),
            reports=str(self.root / "reports"),
        )

    def run(self, *steps: dict[str, Any], **options: Any) -> pipeline.PipelineReport:
        return pipeline.run(self.pipeline(*steps), progress=False, session=self.session, **options)


@pytest.fixture(
    params=[
        ("parquet", "arrow"),
        ("parquet", "duckdb"),
        pytest.param(("parquet", "spark"), marks=pytest.mark.spark),
        ("iceberg", "arrow"),
        ("iceberg", "duckdb"),
        pytest.param(("iceberg", "spark"), marks=pytest.mark.spark),
    ],
    ids="-".join,
)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    kind, engine = request.param
    if kind == "iceberg":
        pytest.importorskip("pyiceberg")
    session = request.getfixturevalue("spark") if engine == "spark" else None
    return Lake(tmp_path, kind, engine, session)


@contextmanager
def ended(at: str, monkeypatch: pytest.MonkeyPatch, step: str | None = None) -> Iterator[None]:
    """The process ends before a method of the run_state is called, for a step: as a kill there would do."""
    with monkeypatch.context() as patched:
        real = getattr(RunState, at)

        def call(run_state: RunState, *args: Any, **kwargs: Any) -> Any:
            if step is None or args[0].name == step:
                raise KeyboardInterrupt
            return real(run_state, *args, **kwargs)

        patched.setattr(RunState, at, call)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.mark.parametrize("kind", STEPS)
def test_a_step_that_ended_after_its_commit_is_found_done(
    lake: Lake, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ended("note", monkeypatch):
        lake.run(STEPS[kind])
    rows, files = lake.rows(), lake.files()
    report = lake.run(STEPS[kind]).check()
    assert lake.rows() == rows
    assert lake.files() == files
    if kind != "nothing":
        assert [step.status for step in report.steps] == ["unchanged"]
    assert {step.status for step in lake.run(STEPS[kind]).check().steps} == {"unchanged"}
    assert lake.rows() == rows


@pytest.mark.parametrize("kind", STEPS)
def test_a_step_that_ended_before_its_commit_is_done_by_the_next_run(
    lake: Lake, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("intarsia.pipeline.step_runner.carry_out", _end)
        with pytest.raises(KeyboardInterrupt):
            lake.run(STEPS[kind])
    assert lake.rows() == [(1, 10), (2, 20), (3, 30), (3, 30)]
    assert [step.status for step in lake.run(STEPS[kind]).check().steps] == ["done"]
    assert {step.status for step in lake.run(STEPS[kind]).check().steps} == {"unchanged"}


def test_a_later_step_on_the_same_table_is_done_and_the_ones_before_it_are_not_repeated(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = (STEPS["update"], STEPS["clauses"], STEPS["update"] | {"set": {"v": "v * 2"}})
    with ended("note", monkeypatch, "s1"):
        lake.run(*steps)
    report = lake.run(*steps).check()
    assert [step.status for step in report.steps] == ["unchanged", "unchanged", "done"]
    assert lake.rows() == [(1, 22), (2, 56), (3, 62), (3, 62), (9, 180)]
    assert {step.status for step in lake.run(*steps).check().steps} == {"unchanged"}


def test_the_interrupted_run_is_finished_before_new_input_is_taken(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the second step would add to the rows of the first file twice, before the third resets them."""
    fresh = (
        STEPS["append"],
        {"operation": "update", "set": {"v": "v + 1000"}, "where": "v < 1000 and id = 9"},
        {"operation": "update", "set": {"v": "v + 1"}, "where": "v >= 1000 and v < 5000"},
        {"operation": "update", "set": {"v": "v + 5000"}, "where": "v >= 1000 and v < 5000"},
    )
    with ended("note", monkeypatch, "s2"):
        lake.run(*fresh)
    lake.lands("b", {"id": [9], "v": [91]})
    report = lake.run(*fresh).check()
    assert [step.status for step in report.steps] == ["done", "done", "done", "done"]
    first = report.finished_first
    assert [step.status for step in first.steps] == ["unchanged", "unchanged", "unchanged", "done"]
    assert first.resumes is not None
    assert [v for id, v in lake.rows() if id == 9] == [6091, 6092]
    assert len(list((lake.root / "reports").glob("*.json"))) == 3
    assert {step.status for step in lake.run(*fresh).check().steps} == {"unchanged"}


@pytest.mark.parametrize("again", [False, True])
def test_a_full_refresh_that_ended_early_is_finished_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    lake = Lake(tmp_path, "parquet", "arrow")
    steps = (STEPS["clauses"], STEPS["update"], STEPS["clauses"], STEPS["clauses"] | {"name": "last"})
    lake.run(*steps).check()
    with ended("note", monkeypatch, "s2"):
        lake.run(*steps, full_refresh=True)
    lake.run(*steps, full_refresh=again).check()
    assert lake.rows() == [(1, 12), (2, 64), (3, 32), (3, 32), (9, 90 * 6 + 2)]
    assert {step.status for step in lake.run(*steps).check().steps} == {"unchanged"}


def test_a_file_that_lands_after_the_end_is_taken_alone(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    with ended("note", monkeypatch):
        lake.run(STEPS["clauses"])
    lake.lands("b", {"id": [2], "v": [100]})
    report = lake.run(STEPS["clauses"]).check()
    assert report.steps[0].input_files == 1
    assert lake.rows() == [(1, 10), (2, 127), (3, 30), (3, 30), (9, 90)]


def test_a_change_by_somebody_else_after_the_end_is_seen(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    with ended("note", monkeypatch):
        lake.run(STEPS["delete"] | {"where": "v < 25"})
    it.write(pa.table({"id": [5], "v": [5]}, SCHEMA), lake.table(), engine="arrow")
    assert [step.status for step in lake.run(STEPS["delete"] | {"where": "v < 25"}).check().steps] == ["done"]
    assert lake.rows() == [(3, 30), (3, 30)]


def test_two_runs_with_states_of_their_own_do_a_step_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on two machines, which start at once: each has announced the same batch."""
    real = RunState.announce

    def announced(run_state: RunState, *args: Any, **kwargs: Any) -> dict[str, Any]:
        said = real(run_state, *args, **kwargs)
        monkeypatch.setattr(RunState, "announce", real)
        other = pipeline.run(
            _elsewhere(lake.pipeline(STEPS["update"]), tmp_path), progress=False, session=lake.session
        )
        other.check()
        return said

    monkeypatch.setattr(RunState, "announce", announced)
    with pytest.raises(CommitConflict, match="has committed step 's0' meanwhile"):
        lake.run(STEPS["update"]).check()
    assert lake.rows() == [(1, 11), (2, 21), (3, 31), (3, 31)]


def _elsewhere(made: pipeline.Pipeline, root: Path) -> pipeline.Pipeline:
    from dataclasses import replace

    return replace(made, state=str(root / "elsewhere.json"))


def test_every_commit_of_a_pipeline_bears_its_step_and_run(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    lake = Lake(tmp_path, "iceberg", "arrow")
    report = lake.run(STEPS["update"], STEPS["delete"]).check()
    said = [s.summary.additional_properties for s in lake.catalog.load_table("db.t").snapshots()][-2:]
    assert [one["app_id"] for one in said] == ["pipeline/p/s0", "pipeline/p/s1"]
    assert {one["run_id"] for one in said} == {report.run_id}


def test_the_run_of_a_commit_is_known_after_the_log_was_folded(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet", "arrow")
    report = lake.run(STEPS["update"]).check()
    for number in range(40):
        it.update(tmp_path / "t", {"v": "v + 1"}, "id = 1", app_id="other", batch_id=number, engine="arrow")
    table = it.tables.parquet.ParquetTable(tmp_path / "t")
    assert dict(table.last_commits()["pipeline/p/s0"]) == {
        "app_id": "pipeline/p/s0",
        "batch_id": "1",
        "run_id": report.run_id,
    }
    assert table.last_commits()["other"]["batch_id"] == "39"


def test_a_step_that_was_moved_or_renamed_is_not_repeated(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet", "arrow")
    lake.run(STEPS["append"] | {"name": ""}, STEPS["update"] | {"name": ""}).check()
    rows = lake.rows()
    report = lake.run(
        {"operation": "expect", "min_rows": 1, "name": ""},
        STEPS["append"] | {"name": ""},
        STEPS["update"] | {"name": "plus one"},
    ).check()
    assert [step.status for step in report.steps] == ["done", "unchanged", "unchanged"]
    assert lake.rows() == rows


def test_a_draft_of_the_state_that_a_kill_left_is_swept(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet", "arrow")
    draft = tmp_path / ".intarsia" / ".p.state.json.123.part"
    draft.parent.mkdir()
    draft.touch()
    lake.run(STEPS["update"]).check()
    assert not draft.exists()
    assert json.loads((tmp_path / ".intarsia" / "p.state.json").read_text())["version"] == 2
    assert state.read_state(tmp_path / ".intarsia" / "p.state.json").unfinished is None


def _end(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.only(lambda lake: lake[0] != "iceberg", "an Iceberg commit is published by its catalog")
def test_what_was_committed_and_not_published_is_seen_in_the_directory_after_the_next_run(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left for that run to write, so no transaction of its own would publish it."""
    with _ended_before_publishing(monkeypatch):
        lake.run(STEPS["update"])
    assert lake.rows() == [(1, 10), (2, 20), (3, 30), (3, 30)]
    lake.run(STEPS["update"], dry_run=True)
    assert lake.rows() == [(1, 10), (2, 20), (3, 30), (3, 30)], "a dry run writes nothing"
    assert [step.status for step in lake.run(STEPS["update"]).check().steps] == ["unchanged"]
    assert lake.rows() == [(1, 11), (2, 21), (3, 31), (3, 31)]
    assert not list((lake.root / ".t.intarsia" / "tx").iterdir())


def test_marking_steps_as_done_publishes_what_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, "parquet", "arrow")
    with _ended_before_publishing(monkeypatch):
        lake.run(STEPS["update"])
    lake.run(STEPS["update"], mark_done=True)
    assert lake.rows() == [(1, 11), (2, 21), (3, 31), (3, 31)]
    assert [step.status for step in lake.run(STEPS["update"]).check().steps] == ["unchanged"]


@contextmanager
def _ended_before_publishing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "publish", _end)
        with pytest.raises(KeyboardInterrupt):
            yield


def test_a_step_is_not_repeated_while_nobody_can_say_whether_it_was_committed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = (STEPS["update"], STEPS["clauses"])
    with ended("note", monkeypatch, "s1"):
        lake.run(*steps)
    rows = lake.rows()
    table = type(it.tables.parquet.ParquetTable(lake.root / "t"))
    if lake.kind == "iceberg":
        table = type(lake.table())
    real, failures = table.last_commits, [StorageError("The disk is away.", errno=5)]

    def last_commits(self: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(self)

    monkeypatch.setattr(table, "last_commits", last_commits)
    with pytest.raises(StorageError, match="The disk is away"):
        lake.run(*steps).check()
    assert lake.rows() == rows
    assert {step.status for step in lake.run(*steps).check().steps} == {"unchanged"}
    assert lake.rows() == rows


def test_a_step_that_committed_and_failed_is_not_repeated_by_the_pass_that_takes_new_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its failure is told after the commit point, as when the disk fails while files are published."""
    lake = Lake(tmp_path, "parquet", "arrow")
    steps = (STEPS["upsert"], STEPS["clauses"])
    with ended("announce", monkeypatch, "s1"):
        lake.run(*steps)
    lake.lands("b", {"id": [11], "v": [1]})
    real, failures = Journal.publish, [StorageError("The disk is away.", errno=5)]

    def publish(self: Journal, record: Any) -> list[str]:
        if failures:
            raise failures.pop()
        return real(self, record)

    monkeypatch.setattr(Journal, "publish", publish)
    lake.run(*steps)
    assert failures == []
    lake.run(*steps).check()
    assert lake.rows() == [(1, 10), (2, 14), (3, 30), (3, 30), (9, 180), (11, 1)]


def test_a_step_that_is_renamed_after_it_was_interrupted_is_not_repeated(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    double = STEPS["update"] | {"set": {"v": "v * 2"}, "name": "double"}
    with ended("note", monkeypatch, "s0"):
        lake.run(STEPS["update"], double)
    expect = {"operation": "expect", "min_rows": 1, "name": "some rows"}
    report = lake.run(expect, STEPS["update"] | {"name": "plus one"}, double).check()
    assert [step.status for step in report.steps] == ["done", "unchanged", "done"]
    assert report.resumes is not None
    assert lake.rows() == [(1, 22), (2, 42), (3, 62), (3, 62)]


def test_a_step_is_not_repeated_when_the_history_that_would_tell_of_it_has_expired(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ended("note", monkeypatch):
        lake.run(STEPS["update"])
    it.write(pa.table({"id": [5], "v": [5]}, SCHEMA), lake.table(), engine="arrow")
    if lake.kind == "iceberg":
        lake.expire()
        with lake.catalog.load_table("db.t").transaction() as change:  # as of an earlier version
            change.remove_properties("intarsia.last-batch/main/pipeline%2Fp%2Fs0")
    else:
        shutil.rmtree(lake.root / ".t.intarsia")
    rows = lake.rows()
    with pytest.raises(CommitUnknown, match=r"Nobody can say whether run \S+ has committed step 's0'"):
        lake.run(STEPS["update"]).check()
    assert lake.rows() == rows
    lake.run(STEPS["update"], mark_done=True)
    assert {step.status for step in lake.run(STEPS["update"]).check().steps} == {"unchanged"}
    assert lake.rows() == rows


def test_a_step_whose_snapshot_has_expired_is_known_by_the_note_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyiceberg")
    lake = Lake(tmp_path, "iceberg", "arrow")
    with ended("note", monkeypatch):
        lake.run(STEPS["append"])
    it.write(pa.table({"id": [5], "v": [5]}, SCHEMA), lake.table(), engine="arrow")
    lake.expire()
    rows = lake.rows()
    assert [step.status for step in lake.run(STEPS["append"]).check().steps] == ["unchanged"]
    assert lake.rows() == rows
