"""``since = "last run"``: each step is given the rows of a target that are new to it, and those alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia import pipeline
from intarsia.errors import InputError, StorageError
from intarsia.kernel.difference import subtract_rows
from intarsia.pipeline import Merge, Source, Target, Write
from intarsia.pipeline.since import read_difference
from intarsia.pipeline.state.run_state import RunState
from intarsia.tables.parquet.journal import Journal

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.float64())])
COUNTS = (
    "when matched then update set v = source.v, times = target.times + 1"
    " when not matched then insert (id, v, times) values (source.id, source.v, 1)"
)


class Lake:
    """A table that others change, and a pipeline that counts how often it is given each of its rows."""

    def __init__(self, root: Path, kind: str, engine: str, session: Any, *, retain: int = 9) -> None:
        self.root, self.kind, self.engine, self.session, self.retain = root, kind, engine, session, retain
        if kind == "iceberg":
            from intarsia.tables.iceberg.catalog import embedded_catalog

            self.catalog = embedded_catalog(root / "warehouse")
            self.catalog.create_namespace("db")
            self.catalog.create_table("db.t", SCHEMA)
        counted = SCHEMA.append(pa.field("times", pa.int64()))
        it.write(counted.empty_table(), root / "counts", engine="arrow")
        self.append({"id": [1, 2], "v": [10, 20]})
        self.append({"id": [3], "v": [30]})

    def table(self) -> Any:
        if self.kind == "iceberg":
            return it.iceberg("db.t", catalog=self.catalog, mode="merge-on-read")
        return it.tables.parquet.ParquetTable(self.root / "t", retain=self.retain)

    def append(self, rows: dict[str, list[Any]]) -> None:
        it.write(pa.table(rows, SCHEMA), self.table(), engine="arrow")

    def merge(self, rows: dict[str, list[Any]]) -> None:
        it.merge(pa.table(rows, SCHEMA), self.table(), on="id", engine="arrow")

    def pipeline(self, **sources: Source) -> pipeline.Pipeline:
        target = Target(str(self.root / "t"), options={"retain": self.retain})
        if self.kind == "iceberg":
            target = Target("db.t", kind="iceberg", catalog=f"{self.root}/warehouse")
        return pipeline.Pipeline(
            name="p",
            engine=self.engine,  # type: ignore[arg-type]
            sources={"news": Source(target="t", since="last run"), **sources},
            targets={"t": target, "counts": Target(f"{self.root}/counts")},
            steps=(
                Merge(
                    name="count",
                    source="asked" if "asked" in sources else "news",
                    target="counts",
                    on="id",
                    when=COUNTS,
                ),
            ),
            reports=str(self.root / "reports"),
        )

    def run(self, made: pipeline.Pipeline | None = None, **options: Any) -> tuple[dict[int, int], str]:
        """How often each row was given so far, and the notes of the step."""
        report = pipeline.run(
            made or self.pipeline(), session=self.session, progress=False, **options
        ).check()
        return self.counts(), " ".join(report.steps[0].notes)

    def counts(self) -> dict[int, int]:
        found = pq.read_table(self.root / "counts").sort_by("id")
        return dict(zip(found["id"].to_pylist(), found["times"].to_pylist(), strict=True))


ENGINES = ["arrow", "duckdb", pytest.param("spark", marks=pytest.mark.spark)]


@pytest.fixture(params=["parquet", "iceberg"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "iceberg":
        pytest.importorskip("pyiceberg")
    return str(request.param)


@pytest.fixture(params=ENGINES)
def lake(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> Lake:
    if request.param == "duckdb":
        pytest.importorskip("duckdb")
    session = request.getfixturevalue("spark") if request.param == "spark" else None
    return Lake(tmp_path, kind, request.param, session)


@contextmanager
def ended(at: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process ends before a method of the run's state is called: as a kill there would do."""
    with monkeypatch.context() as patched:

        def end(*_: Any, **__: Any) -> Any:
            raise KeyboardInterrupt

        patched.setattr(RunState, at, end)
        with pytest.raises(KeyboardInterrupt):
            yield


def test_each_row_is_given_when_it_is_added_or_changed_and_then_never_again(lake: Lake) -> None:
    counts, notes = lake.run()
    assert counts == {1: 1, 2: 1, 3: 1}
    assert "all rows of t are read" in notes
    lake.append({"id": [4, 5], "v": [float("nan"), None]})
    counts, notes = lake.run()
    assert counts == {1: 1, 2: 1, 3: 1, 4: 1, 5: 1}
    assert "what is new since the last run: 1 file" in notes
    lake.merge({"id": [2, 1, 4], "v": [21, 10, float("nan")]})  # of which two are what they were
    it.compact(lake.table(), engine="arrow")
    it.delete(lake.table(), "id = 1", engine="arrow")
    assert lake.run()[0] == {1: 1, 2: 2, 3: 1, 4: 1, 5: 1}


def test_a_row_is_given_once_across_kills_and_again_by_a_full_refresh(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.run()
    lake.merge({"id": [3], "v": [31]})
    with ended("note", monkeypatch):  # killed after the commit
        lake.run()
    assert lake.counts() == {1: 1, 2: 1, 3: 2}
    lake.append({"id": [6], "v": [60]})
    with ended("announce", monkeypatch):  # killed before it
        lake.run()
    assert lake.run()[0] == {1: 1, 2: 1, 3: 2, 6: 1}
    counts, notes = lake.run(full_refresh=True)
    assert counts == {1: 2, 2: 2, 3: 3, 6: 2}
    assert "--full-refresh" in notes


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_a_query_joins_new_rows_with_a_target_as_a_whole(
    tmp_path: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    session = request.getfixturevalue("spark") if engine == "spark" else None
    lake = Lake(tmp_path, "parquet", engine, session)
    asked = Source(sql="select n.id, (select sum(v) from t) as v from news n join t on t.id = n.id")
    assert lake.run(lake.pipeline(asked=asked))[0] == {1: 1, 2: 1, 3: 1}
    lake.append({"id": [4], "v": [40]})
    assert lake.run(lake.pipeline(asked=asked))[0] == {1: 1, 2: 1, 3: 1, 4: 1}
    assert pq.read_table(tmp_path / "counts", filters=[("id", "=", 4)])["v"].to_pylist() == [100.0]
    assert lake.run(lake.pipeline(asked=asked))[0] == {1: 1, 2: 1, 3: 1, 4: 1}
    other = Source(sql="select id, v + 1 as v from news")
    counts, notes = lake.run(lake.pipeline(asked=other))
    assert counts == {1: 2, 2: 2, 3: 2, 4: 2}
    assert "declared otherwise" in notes


def test_all_rows_are_read_where_a_step_is_declared_otherwise_and_then_as_before(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet", "arrow", None)
    made = lake.pipeline()
    other = replace(made, sources={"news": Source(target="t", since="last run", derive={"v": "v * 2"})})
    assert lake.run(made)[0] == {1: 1, 2: 1, 3: 1}
    assert lake.run(other)[0] == {1: 2, 2: 2, 3: 2}
    lake.append({"id": [4], "v": [40]})
    counts, notes = lake.run(made)
    assert counts == {1: 3, 2: 3, 3: 3, 4: 1}
    assert "declared otherwise" in notes
    lake.append({"id": [5], "v": [50]})
    assert lake.run(made)[0] == {1: 3, 2: 3, 3: 3, 4: 1, 5: 1}


def test_each_set_of_parameters_has_its_own_position(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet", "arrow", None)
    one, two = (
        replace(
            lake.pipeline(),
            sources={"news": Source(target="t", since="last run", where=f"id % 2 = {rest}")},
            scopes={"count": f"rest={rest}"},
        )
        for rest in (0, 1)
    )
    lake.run(one)
    assert lake.run(two)[0] == {1: 1, 2: 1, 3: 1}
    lake.append({"id": [4, 5], "v": [40, 50]})
    lake.run(one)
    assert lake.run(two)[0] == {1: 1, 2: 1, 3: 1, 4: 1, 5: 1}


def test_a_dry_run_plans_the_new_rows_and_writes_nothing(tmp_path: Path, tree_digest: Any) -> None:
    lake = Lake(tmp_path, "parquet", "arrow", None)
    made = lake.pipeline()
    lake.run()
    lake.merge({"id": [2], "v": [22]})
    before = tree_digest(tmp_path)
    report = pipeline.run(made, progress=False, dry_run=True).check()
    assert report.steps[0].result is not None
    assert report.steps[0].result.updated == 1
    assert tree_digest(tmp_path) == before
    assert lake.run()[0] == {1: 1, 2: 2, 3: 1}


def test_a_dry_run_plans_what_is_new_after_the_steps_above(tmp_path: Path, kind: str) -> None:
    lake = Lake(tmp_path, kind, "arrow", None)
    update = pipeline.Update(name="raise", target="t", set={"v": "v + 1"}, where="id = 2")
    made = replace(lake.pipeline(), steps=(update, *lake.pipeline().steps))
    pipeline.run(made, progress=False).check()
    lake.merge({"id": [3], "v": [31]})
    planned = pipeline.run(made, progress=False, dry_run=True).check().steps
    done = pipeline.run(made, progress=False).check().steps
    assert [dict(step.result) for step in planned] == [dict(step.result) for step in done]  # type: ignore[call-overload]
    assert planned[1].notes == done[1].notes
    assert done[1].result is not None
    assert done[1].result.updated == 2


@pytest.mark.parametrize("retain", [0, 1, 2, 3])
def test_a_dry_run_reads_former_files_only_where_the_run_would_have_kept_them(
    tmp_path: Path, retain: int
) -> None:
    """Two steps and another writer replace the file, and one to three commits keep theirs."""
    lake = Lake(tmp_path, "parquet", "arrow", None, retain=retain)
    steps = [
        pipeline.Update(name=f"raise {n}", target="t", set={"v": "v + 1"}, where=f"id = {n}") for n in (1, 2)
    ]
    made = replace(lake.pipeline(), steps=(*steps, *lake.pipeline().steps))
    pipeline.run(made, progress=False).check()
    lake.merge({"id": [1], "v": [31]})
    planned = pipeline.run(made, progress=False, dry_run=True).check().steps
    done = pipeline.run(made, progress=False).check().steps
    assert [dict(step.result) for step in planned] == [dict(step.result) for step in done]  # type: ignore[call-overload]
    assert [step.notes for step in planned] == [step.notes for step in done]
    assert ("not kept" in done[2].notes[0]) == (retain < 3)


def test_all_rows_are_read_where_those_of_before_are_not_kept(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet", "arrow", None, retain=0)
    lake.run()
    pq.write_table(pa.table({"id": [7], "v": [7.0]}, SCHEMA), tmp_path / "t" / "other.parquet")
    assert lake.run()[0] == {1: 1, 2: 1, 3: 1, 7: 1}  # a file of another writer is new
    lake.merge({"id": [2], "v": [22]})
    counts, notes = lake.run()
    assert counts == {1: 2, 2: 2, 3: 2, 7: 2}
    assert "1 file of before was replaced or removed, and is not kept" in notes


@pytest.mark.parametrize("by", [None, "day"])
def test_all_rows_are_read_where_those_of_before_have_other_types(tmp_path: Path, by: str | None) -> None:
    lake = Lake(tmp_path, "parquet", "arrow", None)
    it.write(pa.table({"id": [1], "day": ["first"]}), tmp_path / "u", partition_by=by, retain=9)
    asked = replace(
        lake.pipeline(),
        sources={"news": Source(target="u", since="last run", columns={"id": "bigint"}, derive={"v": "1.0"})},
        targets={**lake.pipeline().targets, "u": Target(str(tmp_path / "u"), options={"retain": 9})},
    )
    assert lake.run(asked)[0] == {1: 1}
    changed = pa.table({"id": [1, 2], "day": [1, 2]})
    it.write(changed, tmp_path / "u", mode="overwrite", retain=9)
    counts, notes = lake.run(asked)
    assert counts == {1: 2, 2: 1}
    assert "is not kept (retain of the target), or in other types" in notes


@pytest.mark.parametrize(
    "dtype", [pa.duration("us"), pa.float16(), pa.decimal256(50, 2), pa.timestamp("ns", "UTC"), pa.null()]
)
@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_rows_are_compared_in_types_that_an_engine_does_not_have(
    tmp_path: Path, engine: str, dtype: pa.DataType
) -> None:
    pytest.importorskip("duckdb")
    lake = Lake(tmp_path, "parquet", engine, None)
    odd = pa.array([None, None] if pa.types.is_null(dtype) else [1, 2]).cast(dtype)
    it.write(pa.table({"id": [1, 2], "odd": odd}), tmp_path / "u", engine="arrow", retain=9)
    asked = replace(
        lake.pipeline(),
        sources={"news": Source(target="u", since="last run", columns={"id": "bigint"}, derive={"v": "1.0"})},
        targets={**lake.pipeline().targets, "u": Target(str(tmp_path / "u"), options={"retain": 9})},
    )
    assert lake.run(asked)[0] == {1: 1, 2: 1}
    it.update(tmp_path / "u", {"id": "3"}, "id = 2", engine="arrow", retain=9)
    counts, notes = lake.run(asked)
    assert counts == {1: 1, 2: 1, 3: 1}
    assert "less the rows of 1 file of before" in notes


def test_all_rows_are_read_where_the_snapshot_has_expired(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    from datetime import UTC, datetime, timedelta

    from intarsia.tables.iceberg.maintenance import expire_snapshots

    lake = Lake(tmp_path, "iceberg", "arrow", None)
    lake.run()
    lake.append({"id": [4], "v": [40]})
    later = datetime.now(UTC) + timedelta(days=1)
    expire_snapshots(lake.table(), older_than=later, retain_last=1, dry_run=False)
    counts, notes = lake.run()
    assert counts == {1: 2, 2: 2, 3: 2, 4: 1}
    assert "has expired" in notes


def test_a_column_that_is_renamed_meanwhile_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyiceberg")
    from intarsia.tables.iceberg.table import IcebergTable

    lake = Lake(tmp_path, "iceberg", "arrow", None)
    lake.run()
    lake.merge({"id": [2], "v": [22]})
    find = IcebergTable.snapshot_at

    def find_later(table: IcebergTable, snapshot_id: int) -> Any:
        with lake.catalog.load_table("db.t").update_schema() as update:
            update.rename_column("v", "w")
        return find(table, snapshot_id)

    monkeypatch.setattr(IcebergTable, "snapshot_at", find_later)
    assert lake.run()[0] == {1: 1, 2: 2, 3: 1}


def test_since_is_refused_where_new_rows_would_be_taken_for_all(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet", "arrow", None)
    made = lake.pipeline()
    for step in (
        Write(source="news", target="counts", mode="overwrite"),
        Merge(source="news", target="counts", on="id", strategy="full_merge"),
    ):
        with pytest.raises(InputError, match="source 'news' has new rows alone"):
            pipeline.run(replace(made, steps=(step,)), progress=False)
    odd = replace(made, sources={"news": Source(f"{tmp_path}/*.csv", since="last run")})
    with pytest.raises(InputError, match="since: it goes with a target"):
        pipeline.run(odd, progress=False)


def test_rows_are_subtracted_as_often_as_they_are_there() -> None:
    nan = float("nan")
    now = pa.table({"a": [1, 1, 1, 2, None, None], "b": [nan, nan, 0.0, -0.0, None, None]})
    before = pa.table({"a": [1, 2, None], "b": [nan, 0.0, None]})
    assert str(subtract_rows(now, before).to_pylist()) == str(
        [{"a": 1, "b": nan}, {"a": 1, "b": 0.0}, {"a": None, "b": None}]
    )
    assert subtract_rows(now, before.slice(0, 0)) is now


@pytest.mark.parametrize(
    "kind", [pa.string_view(), pa.binary_view(), pa.uuid(), pa.float16(), pa.duration("ns")], ids=str
)
def test_rows_of_types_that_have_few_kernels_are_subtracted(kind: pa.DataType) -> None:
    plain = {pa.uuid(): pa.array([b"0" * 16, b"1" * 16, None], pa.binary(16))}
    values = plain.get(kind, pa.array([1, 2, None], pa.int64()))
    if kind in (pa.string_view(), pa.binary_view()):
        values = values.cast(pa.string())
    column = pa.ExtensionArray.from_storage(kind, values) if kind == pa.uuid() else values.cast(kind)
    rows = pa.table({"v": column})
    assert subtract_rows(rows, rows.slice(0, 1)).equals(rows.slice(1))
    assert subtract_rows(rows, rows.slice(2)).equals(rows.slice(0, 2))


@pytest.mark.parametrize("engine", ENGINES)
def test_new_rows_have_their_own_values(request: pytest.FixtureRequest, tmp_path: Path, engine: str) -> None:
    """Rows are compared as numbers are (-0.0 is 0.0, NaN is NaN) and given as they are."""
    if engine == "duckdb":
        pytest.importorskip("duckdb")
    session = request.getfixturevalue("spark") if engine == "spark" else None
    states = {
        "now": pa.table({"id": [1, 2, 3, 3, 4, 5], "a.b": [-0.0, math.nan, 5.0, 5.0, -0.0, None]}),
        "before": pa.table({"id": [3, 4, 6], "a.b": [5.0, 0.0, 1.0]}),
    }
    for name, rows in states.items():
        it.write(rows, tmp_path / name, engine="arrow")
    now, before = (it.snapshot(tmp_path / name) for name in states)
    found = read_difference(Source(), now, before, engine, session)
    table = found.toArrow() if session is not None else found[0].read_all()
    given = sorted((row["id"], repr(row["a.b"])) for row in table.to_pylist())
    assert given == [(1, "-0.0"), (2, "nan"), (3, "5.0"), (5, "None")]


def test_former_files_are_found_where_cleaning_up_after_a_commit_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, "parquet", "arrow", None)
    assert lake.run()[0] == {1: 1, 2: 1, 3: 1}

    def fail(self: Journal, record: Any) -> None:
        raise StorageError("Could not write intent.json: Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_retain", fail)
        lake.merge({"id": [2], "v": [21]})
    counts, notes = lake.run()
    assert counts == {1: 1, 2: 2, 3: 1}, "all rows were read: those of before lie where they were staged"
    assert "what is new" in notes
