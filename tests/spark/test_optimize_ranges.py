"""A large directory is ordered range by range: many tasks, one order over all new files, nothing lost."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import pickle
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.core.change import Change, Matches
from intarsia.core.curve import choose_bits, compute_curve_codes, sample_boundaries
from intarsia.core.intent import OptimizeIntent
from intarsia.core.plan import Plan
from intarsia.core.planning import plan_compact, plan_optimize
from intarsia.core.report import MergeResult
from intarsia.errors import ColumnNotFound, DamagedTable
from intarsia.kernel.duplicates import match_duplicates
from intarsia.kernel.optimize import NewFiles
from intarsia.kernel.sort import Order
from intarsia.kernel.spill import Bucket
from intarsia.tables.parquet import ParquetTable

pytest.importorskip("pyspark", reason="pyspark is not installed")

from intarsia.engines.spark import optimize, ranges
from intarsia.engines.spark.staging import AttemptOutput

LITTLE = 20_000
"""Bytes of memory: a few thousand rows are many ranges then."""


def silent(_step: str, _done: int, _total: int) -> None: ...


@dataclass(frozen=True)
class HereTwice:
    """Tasks in this process: every job travels as bytes and is done twice, as if overtaken by a copy."""

    tasks: int = 3

    def run_each(self, work: Any, jobs: Sequence[Any], *, shared: Any, weights: Sequence[int]) -> list[Any]:
        assert len(weights) == len(jobs)
        sent = [pickle.dumps((work, shared, job)) for job in jobs]
        results = []
        for _ in range(2):
            results = [pickle.dumps(one(common, job)) for one, common, job in map(pickle.loads, sent)]
        return [pickle.loads(result) for result in results]


def by_ranges(
    root: Path, by: Sequence[str], *, memory: int = LITTLE, target_rows: int = 500, **intent: Any
) -> tuple[Plan, Change]:
    """Order a dataset by ranges, without Spark."""
    with ParquetTable(root).transaction("optimize") as tx:
        plan = plan_optimize(OptimizeIntent(tuple(by), target_rows=target_rows, **intent), tx.snapshot)
        found = optimize.plan_ranges(plan, memory_bytes=memory, cores=2)
        assert len(found) == len(plan.groups)
        files = tuple(file for group in plan.groups for file in group.files)
        drops = Matches()
        if plan.intent.deduplicate_keys:
            drops = match_duplicates(
                plan,
                keys=plan.intent.deduplicate_keys,
                order_by=plan.intent.dedup_order_by,
                threads=1,
                memory_bytes=1 << 30,
                progress=silent,
                files=files,
            )
        added = optimize.optimize_ranges(
            HereTwice(),  # type: ignore[arg-type]
            plan,
            tx.output(),
            found,
            drops=drops,
            memory_bytes=memory,
            progress=silent,
        )
        change = Change(plan.operation, added=tuple(added), removed=files, planned=files)
        tx.commit(change)
    return plan, change


def files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.parquet"))


def tables(root: Path) -> list[pa.Table]:
    found = []
    for file in files(root):
        with pq.ParquetFile(file) as parquet:
            found.append(parquet.read())
    return found


def place(value: Any) -> tuple[int, Any]:
    if value is None:
        return (2, 0)
    if isinstance(value, float) and math.isnan(value):
        return (1, 0)
    return (0, value)


def in_order(root: Path, by: Sequence[str]) -> bool:
    """Whether rows are in the plain order of some columns, NULLs last, over all files by their names."""
    rows = [
        tuple(place(row[name]) for name in by)
        for table in tables(root)
        for row in table.select(list(by)).to_pylist()
    ]
    return all(one <= other for one, other in pairwise(rows))


def follows_the_curve(root: Path, by: Sequence[str], curve: Any, whole: pa.Table) -> bool:
    """The whole is the sample here, so that the boundaries are those of the operation."""
    bits = min(choose_bits(len(by)), 12)
    limits = [sample_boundaries(whole[name], bits) for name in by]
    found = pa.concat_tables(tables(root))
    codes = compute_curve_codes([found[name] for name in by], curve=curve, boundaries=limits).to_pylist()
    return codes == sorted(codes)


def shuffled(count: int, seed: int = 1) -> pa.Table:
    draw = random.Random(seed)
    numbers = draw.sample(range(count), count)
    return pa.table(
        {
            "n": pa.array(numbers, pa.int64()),
            "a": pa.array([draw.randrange(1000) if draw.random() > 0.1 else None for _ in numbers]),
            "b": pa.array([None if draw.random() < 0.05 else draw.random() for _ in numbers], pa.float64()),
            "s": [f"word {number % 37}" for number in numbers],
        }
    )


D = decimal.Decimal


def every_type(count: int) -> pa.Table:
    """Types that Spark has not, or holds with less, beside plain ones; each NULL now and then."""
    draw = random.Random(7)
    numbers = draw.sample(range(count), count)

    def values(make: Any) -> list[Any]:
        return [None if number % 11 == 5 else make(number) for number in numbers]

    columns = {
        "i8": pa.array(values(lambda n: n % 100), pa.int8()),
        "u64": pa.array(values(lambda n: 2**63 + n), pa.uint64()),
        "f16": pa.array(values(lambda n: float(n % 50)), pa.float32()).cast(pa.float16()),
        "flag": pa.array(values(lambda n: n % 2 == 0)),
        "ns": pa.array(values(lambda n: 10**18 + n * 7 + 1), pa.timestamp("ns", "Europe/Berlin")),
        "t32": pa.array(values(lambda n: n % 86_400), pa.time32("s")),
        "t64": pa.array(values(lambda n: n * 1001), pa.time64("ns")),
        "day": pa.array(values(lambda n: dt.date(2025, 1, 1) + dt.timedelta(n % 365))),
        "took": pa.array(values(lambda n: n), pa.duration("ns")),
        "dec": pa.array(values(lambda n: D(n).scaleb(-2)), pa.decimal128(9, 2)),
        "wide": pa.array(values(lambda n: D(n) * 10**40), pa.decimal256(60, 0)),
        "large": pa.array(values(lambda n: f"large {n}"), pa.large_string()),
        "view": pa.array(values(lambda n: f"a view of some length {n}"), pa.string_view()),
        "raw": pa.array(values(lambda n: n.to_bytes(4, "big")), pa.binary(4)),
        "word": pa.array(values(lambda n: f"w{n % 9}")).dictionary_encode(),
        "short": pa.array(values(lambda n: f"w{n % 90}")).cast(pa.dictionary(pa.int8(), pa.string())),
        "tags": pa.array(values(lambda n: ["a", None, "b"][: n % 4]), pa.list_(pa.string())),
        "point": pa.array(
            values(lambda n: {"x": n, "when": n * 3}),
            pa.struct([("x", pa.uint32()), ("when", pa.timestamp("ns"))]),
        ),
        "map": pa.array(values(lambda n: [(f"k{n % 3}", n)]), pa.map_(pa.string(), pa.int64())),
        "none": pa.nulls(count),
    }
    schema = pa.schema(
        [pa.field(name, column.type, metadata={"unit": name}) for name, column in columns.items()]
        + [pa.field("id", pa.int64(), nullable=False)],
        metadata={"owner": "tests"},
    )
    return pa.table([*columns.values(), pa.array(numbers, pa.int64())], schema=schema)


PLAIN = ["u64", "f16", "flag", "ns", "t32", "wide", "view", "raw", "word", "short", "none", "id"]


@pytest.mark.parametrize("curve", ["zorder", "hilbert", "linear"])
def test_on_spark_one_order_runs_through_all_files(
    spark: Any, tmp_path: Path, make_dataset: Any, rows: Any, leftovers: Any, curve: Any
) -> None:
    table = shuffled(4000)
    root = make_dataset(tmp_path / "d", table, files=[1500, 0, 2000, 500], row_group_size=400)
    by = ["n", "a"]
    result = it.optimize(
        root, by=by, curve=curve, engine=spark, target_rows_per_file=500, memory_bytes=LITTLE, tasks=3
    )
    assert rows(root) == rows(table)
    assert in_order(root, by) if curve == "linear" else follows_the_curve(root, by, curve, table)
    nulls = [row["a"] is None for table in tables(root) for row in table.to_pylist()]
    assert curve == "linear" or nulls == sorted(nulls)
    counts = [table.num_rows for table in tables(root)]
    assert len(counts) in (7, 8, 9)
    assert max(counts) < 1.4 * 500
    assert any("ranges, sorted independently" in note for note in result.notes)
    assert leftovers(root) == []


def test_on_spark_every_type_comes_back_as_it_was(
    spark: Any, tmp_path: Path, make_dataset: Any, rows: Any
) -> None:
    table = every_type(1200)
    here = make_dataset(tmp_path / "here", table, files=4, row_group_size=100)
    there = make_dataset(tmp_path / "there", table, files=4, row_group_size=100)
    options: dict[str, Any] = {"by": ["ns", "word"], "target_rows_per_file": 300}
    it.optimize(here, engine="arrow", **options)
    it.optimize(there, engine=spark, memory_bytes=LITTLE, **options)
    assert rows(there) == rows(table)
    expected = tables(here)[0].schema
    assert not expected.field("id").nullable
    for one in tables(there):
        assert one.schema.equals(expected)
        assert [field.metadata for field in one.schema] == [field.metadata for field in expected]


def test_on_spark_duplicates_are_left_out(
    spark: Any, tmp_path: Path, make_dataset: Any, rows: Any, leftovers: Any
) -> None:
    table = pa.table({"id": [n % 600 for n in range(2400)], "v": range(2400), "pad": ["p" * 40] * 2400})
    root = make_dataset(tmp_path / "d", table, files=3, row_group_size=200)
    result = it.optimize(
        root,
        by="v",
        engine=spark,
        target_rows_per_file=500,
        memory_bytes=LITTLE,
        deduplicate_on="id",
        dedup_order_by="v",
    )
    assert any("ranges" in note for note in result.notes)
    assert rows(root) == rows(table.slice(1800))
    assert in_order(root, ["v"])
    assert (result.deleted, result.total) == (1800, 600)
    assert leftovers(root) == []


def test_on_spark_only_large_directories_are_cut_into_ranges(
    spark: Any, tmp_path: Path, make_dataset: Any, rows: Any
) -> None:
    table = shuffled(3000).append_column("day", pa.array(["big"] * 2900 + ["small"] * 100))
    root = make_dataset(tmp_path / "d", table, files=2, partition="day", row_group_size=500)
    before = rows(root)
    options = {"by": "n", "engine": spark, "target_rows_per_file": 500, "memory_bytes": LITTLE}
    plan = it.plan("optimize", root, **options)
    assert any(note.startswith("The order of one directory") for note in plan.notes), plan.notes
    guess = it.plan("optimize", root, measured_bytes=0, **options)
    assert "There may be more new files than 2: executors cut files where ranges of rows end." in guess.notes
    result = it.optimize(root, **options)
    assert result.notes == plan.notes
    assert (result.new_files, result.bytes_written) == (plan.new_files, plan.bytes_to_write)
    assert rows(root) == before
    assert [file.parent.name for file in files(root)].count("day=small") == 1
    for day in ("day=big", "day=small"):
        assert in_order(root / day, ["n"])


@pytest.mark.parametrize("curve", ["zorder", "hilbert", "linear"])
@pytest.mark.parametrize(("memory", "least"), [(1, ranges.LEAST_MEMORY), (1, 3000), (50_000, 1)])
def test_ranges_make_one_order_with_any_memory(
    tmp_path: Path,
    make_dataset: Any,
    rows: Any,
    leftovers: Any,
    monkeypatch: pytest.MonkeyPatch,
    curve: Any,
    memory: int,
    least: int,
) -> None:
    for module in (optimize, ranges):  # a range that is larger is cut again on disk
        monkeypatch.setattr(module, "LEAST_MEMORY", least)
    monkeypatch.setattr(optimize, "MOST_RANGES", 16)
    table = shuffled(3000)
    root = make_dataset(tmp_path / "d", table, files=5, row_group_size=250)
    by = ["b", "a"]
    _, change = by_ranges(root, by, curve=curve, memory=memory)
    assert rows(root) == rows(table)
    assert in_order(root, by) if curve == "linear" else follows_the_curve(root, by, curve, table)
    assert len(change.added) in (5, 6, 7)
    assert leftovers(root) == []


@pytest.mark.parametrize("name", PLAIN)
def test_any_plain_type_can_be_ordered_by(tmp_path: Path, make_dataset: Any, rows: Any, name: str) -> None:
    table = every_type(300).select(["id", *({name} - {"id"})])
    root = make_dataset(tmp_path / "d", table, files=2, row_group_size=50)
    types = tables(root)[0].schema.types  # a time of seconds becomes one of milliseconds in Parquet
    by_ranges(root, [name], memory=400, target_rows=100)
    assert rows(root) == rows(table)
    assert in_order(root, [name])
    assert all(one.schema.types == types for one in tables(root))


def test_one_value_in_half_of_the_rows_is_spread_over_files_and_tasks(
    tmp_path: Path, make_dataset: Any, rows: Any
) -> None:
    draw = random.Random(2)
    values = [500 if n % 2 else draw.randrange(1000) for n in range(8000)]
    table = pa.table({"x": values, "n": range(8000)})
    root = make_dataset(tmp_path / "d", table, files=8, row_group_size=100)
    _, change = by_ranges(root, ["x"], target_rows=1000)
    assert rows(root) == rows(table)
    assert in_order(root, ["x"])
    counts = [one.num_rows for one in tables(root)]
    assert len(counts) >= 7
    assert max(counts) <= 2000
    only = [one for one in tables(root) if set(one["x"].to_pylist()) == {500}]
    assert len(only) >= 2
    # Attempts have names of their own: files of one attempt were written by one task.
    attempts = {Path(file.location).name.split("-", 2)[2] for file in change.added}
    assert len(attempts) == len(change.added)


def test_a_column_of_one_value_only_keeps_the_number_of_files(
    tmp_path: Path, make_dataset: Any, rows: Any
) -> None:
    table = pa.table({"x": [7] * 4000, "n": range(4000)})
    root = make_dataset(tmp_path / "d", table, files=4, row_group_size=100)
    by_ranges(root, ["x"], target_rows=1000)
    assert rows(root) == rows(table)
    counts = [one.num_rows for one in tables(root)]
    assert len(counts) == 4
    assert max(counts) <= 1250


@pytest.mark.parametrize("curve", ["zorder", "hilbert", "linear"])
def test_a_column_of_nulls_orders_by_the_other(
    tmp_path: Path, make_dataset: Any, rows: Any, curve: Any
) -> None:
    table = pa.table({"x": pa.nulls(2000, pa.int64()), "n": random.Random(4).sample(range(2000), 2000)})
    root = make_dataset(tmp_path / "d", table, files=4, row_group_size=100)
    by_ranges(root, ["x", "n"], curve=curve)
    assert rows(root) == rows(table)
    assert in_order(root, ["n"])


def test_one_huge_file_is_dealt_out_by_several_tasks(
    tmp_path: Path, make_dataset: Any, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = shuffled(4000)
    root = make_dataset(tmp_path / "d", table, files=1, row_group_size=100)
    jobs: list[Sequence[Any]] = []
    run_each = HereTwice.run_each

    def noting(self: HereTwice, work: Any, mine: Sequence[Any], **options: Any) -> list[Any]:
        if work is ranges.write_run:
            jobs.append(mine)
        return run_each(self, work, mine, **options)

    monkeypatch.setattr(HereTwice, "run_each", noting)
    by_ranges(root, ["n"])
    assert len(jobs[0]) == 3
    assert rows(root) == rows(table)
    assert in_order(root, ["n"])


def test_duplicates_may_empty_files_and_the_whole(tmp_path: Path, make_dataset: Any, rows: Any) -> None:
    table = pa.table({"id": [*range(1000), *range(1000)], "v": range(2000), "pad": ["p" * 40] * 2000})
    root = make_dataset(tmp_path / "d", table, files=4, row_group_size=100)
    by_ranges(root, ["v"], deduplicate_keys=("id",), dedup_order_by=("v",))
    assert rows(root) == rows(table.slice(1000))
    assert in_order(root, ["v"])


def test_narrow_dictionaries_of_many_files_are_more_than_their_indices_number(
    tmp_path: Path, rows: Any
) -> None:
    root = tmp_path / "d"
    root.mkdir()
    kind = pa.dictionary(pa.int8(), pa.string())
    whole = []
    for number in range(4):
        words = pa.array([f"{number} {n % 100}" for n in range(300)]).dictionary_encode().cast(kind)
        whole.append(pa.table({"id": [n * 4 + number for n in range(300)], "w": words}))
        pq.write_table(whole[-1], root / f"{number}.parquet")
    before = rows(root)
    by_ranges(root, ["id", "w"], memory=2000, target_rows=400)
    assert rows(root) == before
    assert all(one.schema.field("w").type == kind for one in tables(root))


def test_a_damaged_file_is_told_and_nothing_is_left(
    spark: Any, tmp_path: Path, make_dataset: Any, unchanged: Any
) -> None:
    root = make_dataset(tmp_path / "d", shuffled(30_000), files=3, compression="none", use_dictionary=False)
    bad = files(root)[2]
    data = bytearray(bad.read_bytes())
    data[4:40] = bytes(36)
    bad.write_bytes(data)
    with unchanged(root), pytest.raises(DamagedTable, match=r"part-00002\.parquet"):
        it.optimize(root, by="s", engine=spark, target_rows_per_file=5000, memory_bytes=LITTLE)
    with unchanged(root), pytest.raises(ColumnNotFound, match="'nope'"):
        it.optimize(root, by="nope", engine=spark, target_rows_per_file=5000, memory_bytes=LITTLE)


def stop(*_: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("ends", ["well", "damaged", "interrupted"])
def test_a_dry_run_leaves_none_of_the_rows_that_wait_for_their_range(
    spark: Any,
    tmp_path: Path,
    make_dataset: Any,
    unchanged: Any,
    monkeypatch: pytest.MonkeyPatch,
    ends: str,
) -> None:
    root = make_dataset(tmp_path / "d", shuffled(6000), files=3, compression="none", use_dictionary=False)
    spools = tmp_path / "spools"
    waited: list[Any] = []
    run_jobs = optimize.make_range_jobs

    def noting(*given: Any) -> Any:
        waited.extend(spools.rglob("run-*"))
        return run_jobs(*given)

    monkeypatch.setattr(optimize, "make_range_jobs", stop if ends == "interrupted" else noting)
    if ends == "damaged":
        bad = files(root)[2]
        bad.write_bytes(bad.read_bytes()[:4] + bytes(36) + bad.read_bytes()[40:])
    options = {"by": "s", "engine": spark, "target_rows_per_file": 2000, "memory_bytes": LITTLE}
    with unchanged(root):
        if ends == "well":
            assert it.optimize(root, dry_run=True, spool_dir=str(spools), **options).bytes_exact
            assert waited
        else:
            with pytest.raises(DamagedTable if ends == "damaged" else KeyboardInterrupt):
                it.optimize(root, dry_run=True, spool_dir=str(spools), **options)
    assert [path for path in spools.rglob("*") if path.is_file()] == []
    assert not any(path.is_dir() for path in spools.glob("*"))


def plan_of(root: Path, **intent: Any) -> Plan:
    with ParquetTable(root).transaction("optimize") as tx:
        return plan_optimize(OptimizeIntent(("n",), **intent), tx.snapshot)


def test_what_one_task_does_best_is_left_to_one(
    tmp_path: Path, make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_dataset(tmp_path / "d", shuffled(2000), files=2)
    plenty, one = 1 << 30, plan_of(root)
    several = plan_of(root, target_rows=500)
    assert optimize.plan_ranges(one, memory_bytes=1000, cores=8) == {}  # one file has one writer
    assert optimize.plan_ranges(several, memory_bytes=plenty, cores=8) == {}  # small
    monkeypatch.setattr(optimize, "RANGE_BYTES", 1000)
    assert optimize.plan_ranges(several, memory_bytes=plenty, cores=2) == {}  # nothing to gain
    assert optimize.plan_ranges(several, memory_bytes=plenty, cores=8) == {0: 16}
    assert optimize.plan_ranges(several, memory_bytes=1000, cores=2) == {0: 16}
    monkeypatch.setattr(optimize, "LEAST_MEMORY", 1)
    assert optimize.plan_ranges(several, memory_bytes=1000, cores=2)[0] > 16
    in_place = plan_optimize(OptimizeIntent((), target_rows=500), several.snapshot)
    assert optimize.plan_ranges(in_place, memory_bytes=1, cores=8) == {}
    busy = replace(several, groups=several.groups * 8)
    assert optimize.plan_ranges(busy, memory_bytes=plenty, cores=8) == {}  # as many groups as cores


def test_two_attempts_sort_on_disk_without_meeting(tmp_path: Path, make_dataset: Any) -> None:
    root = make_dataset(tmp_path / "d", shuffled(100), files=1)
    with ParquetTable(root).transaction("optimize") as tx:
        plan = plan_optimize(OptimizeIntent(("n",)), tx.snapshot)
        new = NewFiles.of(plan.groups[0], plan, tx.output(), Order(("n",)))
        schema = pa.schema([("n", pa.int64())])
        one, other = (replace(new, tx=AttemptOutput.at(tx.output())) for _ in range(2))
        with one.spill(schema) as mine:
            bucket = mine.open()
            bucket.write(pa.table({"n": [1]}, schema=schema))
            with other.spill(schema) as theirs:
                theirs.open().close()
            bucket.close()
            kept = Bucket(bucket.location, bucket.rows, bucket.bytes, even=False)
            assert [piece.to_pylist() for piece in mine.read(kept)] == [[{"n": 1}]]


def test_files_are_cut_between_ranges_where_rows_are_about_equal() -> None:
    assert list(ranges.cut_files([10, 10, 10, 10], 2)) == [(0, 2, 1), (2, 4, 1)]
    assert list(ranges.cut_files([10, 14, 6, 10], 2)) == [(0, 2, 1), (2, 4, 1)]
    assert list(ranges.cut_files([100], 4)) == [(0, 1, 4)]
    assert list(ranges.cut_files([5, 90, 5], 4)) == [(0, 1, 1), (1, 2, 4), (2, 3, 1)]
    assert list(ranges.cut_files([], 3)) == []
    assert [files for *_, files in ranges.cut_files([1] * 100, 10)] == [1] * 10


def test_compaction_of_one_directory_is_many_tasks(
    spark: Any, tmp_path: Path, make_dataset: Any, rows: Any
) -> None:
    from intarsia.core.intent import CompactIntent

    table = shuffled(2000)
    root = make_dataset(tmp_path / "d", table, files=40)
    with ParquetTable(root).transaction("compact") as tx:
        plan = plan_compact(CompactIntent(target_rows=200), tx.snapshot)
    assert len(plan.groups) == 10
    result: MergeResult = it.compact(root, engine=spark, target_rows_per_file=200)
    assert len(result.inserted_files) == 10
    assert rows(root) == rows(table)
