from __future__ import annotations

import math
import random
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.core.change import Change, Matches
from intarsia.core.curve import choose_bits, compute_curve_codes, sample_boundaries
from intarsia.core.intent import OptimizeIntent, WriteOptions
from intarsia.core.planning import plan_optimize
from intarsia.errors import ColumnNotFound, DamagedTable, InputError, StorageError
from intarsia.kernel import compact, optimize
from intarsia.kernel.optimize import stage_optimize
from intarsia.kernel.sort import Cuts, Ladder, Order
from intarsia.kernel.spill import Portion, Spill, assign_spans
from intarsia.tables.parquet import ParquetTable

PLENTY = 1 << 30
BOTH = pytest.mark.parametrize("memory", [4_000, PLENTY], ids=["on disk", "in memory"])


def silent(_step: str, _done: int, _total: int) -> None: ...


def optimized(root: Path, by: Any, *, memory: int = PLENTY, threads: int = 2, **intent: Any) -> Change:
    options = WriteOptions(**intent.pop("options", {}))
    table = ParquetTable(root)
    with table.transaction("optimize") as tx:
        plan = plan_optimize(OptimizeIntent(tuple(by), options=options, **intent), tx.snapshot)
        staged = stage_optimize(plan, tx, threads=threads, memory_bytes=memory, progress=silent)
        change = plan.make_change(Matches(), staged)
        tx.commit(change)
    return change


def files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.parquet"))


def read(root: Path) -> pa.Table:
    """The rows of all files in the order of their names."""
    tables = []
    for file in files(root):
        with pq.ParquetFile(file) as parquet:
            tables.append(parquet.read())
    return pa.concat_tables(tables)


def shuffled(count: int, seed: int = 1) -> pa.Table:
    draw = random.Random(seed)
    numbers = list(range(count))
    draw.shuffle(numbers)
    return pa.table(
        {
            "n": pa.array(numbers, pa.int64()),
            "a": pa.array([draw.randrange(1000) for _ in numbers], pa.int64()),
            "b": pa.array([None if draw.random() < 0.05 else draw.random() for _ in numbers], pa.float64()),
            "s": [f"word {number % 37}" for number in numbers],
        }
    )


def _place(value: Any) -> tuple[int, Any]:
    if value is None:
        return (2, 0)
    if isinstance(value, float) and math.isnan(value):
        return (1, 0)
    return (0, value)


def in_order(table: pa.Table, by: list[str]) -> bool:
    rows = [tuple(_place(row[name]) for name in by) for row in table.select(by).to_pylist()]
    return all(one <= other for one, other in pairwise(rows))


@BOTH
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("by", [["n"], ["s"], ["b"], ["s", "b"], ["b", "a", "n"]])
def test_linear_order_holds_over_all_files(
    tmp_path: Path, make_dataset: Any, rows: Any, leftovers: Any, by: list[str], memory: int, threads: int
) -> None:
    table = shuffled(3000)
    root = make_dataset(tmp_path / "d", table, files=7, row_group_size=200)
    change = optimized(root, by, memory=memory, threads=threads, curve="linear", target_rows=700)
    assert rows(root) == rows(table)
    assert in_order(read(root), by)
    names = [file.name for file in files(root)]
    assert all(name.startswith("optimized-") for name in names)
    assert len(names) in (4, 5)
    counts = [pq.read_metadata(file).num_rows for file in files(root)]
    assert max(counts) < 1.6 * 700
    assert len(change.removed) == 7
    assert not change.exclusive
    assert leftovers(root) == []


@BOTH
@pytest.mark.parametrize("curve", ["zorder", "hilbert"])
def test_files_and_row_groups_follow_the_curve(
    tmp_path: Path, make_dataset: Any, rows: Any, curve: str, memory: int
) -> None:
    table = shuffled(4000)
    root = make_dataset(tmp_path / "d", table, files=5, row_group_size=500)
    optimized(root, ["n", "a"], memory=memory, curve=curve, target_rows=1000, options={"row_group_size": 250})
    assert rows(root) == rows(table)
    found = read(root)
    # The whole is the sample here, so that the boundaries are those of the operation.
    bits = min(choose_bits(2), 12)
    limits = [sample_boundaries(table[name], bits) for name in ("n", "a")]
    codes = compute_curve_codes([found["n"], found["a"]], curve=curve, boundaries=limits).to_pylist()
    assert codes == sorted(codes)
    share = {name: _share(root, name) for name in ("n", "a")}
    assert share["n"] < 0.45
    assert share["a"] < 0.45


def _share(root: Path, name: str) -> float:
    """How many of the row groups a filter for one value has to read, on average."""
    ranges = []
    for file in files(root):
        footer = pq.read_metadata(file)
        leaf = footer.schema.names.index(name)
        for number in range(footer.num_row_groups):
            stats = footer.row_group(number).column(leaf).statistics
            ranges.append((stats.min, stats.max))
    low, high = min(one for one, _ in ranges), max(other for _, other in ranges)
    probes = [low + (high - low) * step / 50 for step in range(51)]
    return sum(one <= probe <= other for probe in probes for one, other in ranges) / len(ranges) / 51


@BOTH
def test_nulls_come_last_and_nan_just_before(tmp_path: Path, make_dataset: Any, memory: int) -> None:
    values = [None, math.nan, 1.0, -0.0, 0.0, math.inf, None, -math.inf, math.nan, -5.0] * 50
    table = pa.table({"x": pa.array(values, pa.float64()), "pad": ["p" * 50] * 500})
    root = make_dataset(tmp_path / "d", table, files=4)
    optimized(root, ["x"], memory=memory)
    found = read(root)["x"].to_pylist()
    assert found[-100:] == [None] * 100
    assert all(math.isnan(value) for value in found[-200:-100])
    assert found[:-200] == sorted(found[:-200])


@BOTH
def test_one_value_repeated_is_cut_into_files_all_the_same(
    tmp_path: Path, make_dataset: Any, rows: Any, memory: int
) -> None:
    table = pa.table({"x": [7] * 1900 + list(range(100)), "n": range(2000)})
    root = make_dataset(tmp_path / "d", table, files=4, row_group_size=100)
    optimized(root, ["x"], memory=memory, target_rows=500)
    assert rows(root) == rows(table)
    assert in_order(read(root), ["x"])
    counts = [pq.read_metadata(file).num_rows for file in files(root)]
    assert len(counts) == 4
    assert max(counts) <= 700


@given(
    values=st.lists(st.tuples(st.integers(0, 3) | st.none(), st.sampled_from(["", "a", "b"])), max_size=200),
    by=st.sampled_from([["k"], ["s", "k"], ["k", "s"]]),
    curve=st.sampled_from(["zorder", "hilbert", "linear"]),
    memory=st.sampled_from([1, 1000, PLENTY]),
    outputs=st.integers(1, 5),
)
def test_no_row_is_lost_whatever_the_values_and_the_memory(
    values: Any, by: list[str], curve: str, memory: int, outputs: int, make_dataset: Any, rows: Any
) -> None:
    schema = pa.schema([("k", pa.int64()), ("s", pa.string())])
    table = pa.Table.from_pylist([{"k": k, "s": s} for k, s in values], schema)
    with tempfile.TemporaryDirectory() as directory:
        root = make_dataset(Path(directory) / "d", table, files=3, row_group_size=16)
        optimized(root, by, memory=memory, curve=curve, target_rows=-(-len(values) // outputs) or 1)
        assert rows(root) == rows(table)
        if curve == "linear" or len(by) == 1:
            assert in_order(read(root), by)


def test_each_partition_is_ordered_by_itself_and_its_column_is_no_key(
    tmp_path: Path, make_dataset: Any, rows: Any
) -> None:
    table = pa.table({"id": list(range(90))[::-1], "day": [f"d{n % 3}" for n in range(90)]})
    root = make_dataset(tmp_path / "d", table, files=2, partition="day")
    before = rows(root)
    change = optimized(root, ["day", "id"], curve="zorder")
    assert rows(root) == before
    assert [file.parent.name for file in files(root)] == ["day=d0", "day=d1", "day=d2"]
    for file in files(root):
        with pq.ParquetFile(file) as parquet:
            assert in_order(parquet.read(), ["id"])
            assert len(parquet.metadata.row_group(0).sorting_columns) == 1
    assert len({staged.path for staged in change.added}) == 3


@BOTH
def test_with_only_partition_columns_rows_stay_in_their_order(
    tmp_path: Path, make_dataset: Any, memory: int
) -> None:
    table = pa.table({"id": list(range(900))[::-1], "day": ["x"] * 900})
    root = make_dataset(tmp_path / "d", table, files=4, partition="day")
    optimized(root, ["day"], memory=memory, target_rows=300)
    assert [pq.read_metadata(file).num_rows for file in files(root)] == [300, 300, 300]
    assert read(root)["id"].to_pylist() == table["id"].to_pylist()


@BOTH
def test_columns_of_few_words_stay_small_dictionaries_and_readers_see_plain_values(
    tmp_path: Path, memory: int
) -> None:
    root, size = tmp_path / "d", 4000
    root.mkdir()
    for n in range(3):
        words = [None if i % 40 == 0 else f"a rather long word {n} {i % 7}" for i in range(size)]
        ids = [(i * 7919 + n) % size for i in range(size)]
        pq.write_table(pa.table({"id": ids, "w": words, "n": [n] * size}), root / f"{n}.parquet")
    before = read(root).sort_by([("id", "ascending"), ("n", "ascending")])
    optimized(root, ["id"], memory=memory)
    after = read(root)
    assert after.schema.field("w").type == pa.string()
    assert after["id"].to_pylist() == sorted(after["id"].to_pylist())
    assert after.sort_by([("id", "ascending"), ("n", "ascending")]).equals(before)
    for file in files(root):
        footer = pq.read_metadata(file)
        for number in range(footer.num_row_groups):
            column = footer.row_group(number).column(1)
            assert column.total_uncompressed_size < 2 * column.num_values + 1000


def test_plain_orders_are_declared_and_curves_are_not(tmp_path: Path, make_dataset: Any) -> None:
    nested = pa.table({"p": [{"x": 1, "y": 2}] * 50, "id": list(range(50))[::-1], "k": [1] * 50})
    root = make_dataset(tmp_path / "d", nested, files=2)
    optimized(root, ["k", "id"], curve="linear")
    footer = pq.read_metadata(files(root)[0])
    assert [(c.column_index, c.descending, c.nulls_first) for c in footer.row_group(0).sorting_columns] == [
        (3, False, False),
        (2, False, False),
    ]
    optimized(root, ["k", "id"], curve="zorder")
    assert pq.read_metadata(files(root)[0]).row_group(0).sorting_columns == ()


@BOTH
def test_row_groups_are_even_and_small_enough(tmp_path: Path, make_dataset: Any, memory: int) -> None:
    root = make_dataset(tmp_path / "d", shuffled(1000), files=2)
    optimized(root, ["n"], memory=memory, options={"row_group_size": 300})
    footer = pq.read_metadata(files(root)[0])
    assert [footer.row_group(n).num_rows for n in range(footer.num_row_groups)] == [250] * 4


@BOTH
def test_duplicates_are_left_out_over_all_partitions(
    tmp_path: Path, make_dataset: Any, rows: Any, memory: int
) -> None:
    table = pa.table(
        {
            "id": [n % 100 for n in range(400)],
            "v": list(range(400)),
            "day": [f"d{(n // 100) % 2}" for n in range(400)],
            "pad": ["p" * 20] * 400,
        }
    )
    root = make_dataset(tmp_path / "d", table, files=3, partition="day")
    change = optimized(root, ["v"], memory=memory, deduplicate_keys=("id",), dedup_order_by=("v",))
    assert rows(root) == rows(table.slice(300))
    assert change.exclusive
    assert sum(file.rows for file in change.removed) - sum(file.rows for file in change.added) == 300
    # The other partition lost every row, and with them its files.
    assert [file.parent.name for file in files(root)] == ["day=d1"]


def test_equal_rows_count_as_one_without_keys(tmp_path: Path, make_dataset: Any, rows: Any) -> None:
    table = pa.table({"a": [1, 1, 2, 1], "b": ["x", "x", None, "y"]})
    root = make_dataset(tmp_path / "d", table, files=2)
    optimized(root, ["a"], deduplicate=True)
    assert rows(root) == rows([{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": None}])


def test_a_dataset_without_rows_keeps_its_schema(tmp_path: Path, make_dataset: Any) -> None:
    empty = pa.table({"id": pa.array([], pa.int64())})
    root = make_dataset(tmp_path / "d", empty, files=2)
    optimized(root, ["id"])
    (file,) = files(root)
    assert pq.read_table(file).equals(empty)


def test_nested_and_encoded_columns_travel_along(tmp_path: Path, make_dataset: Any, rows: Any) -> None:
    count = 300
    table = pa.table(
        {
            "id": list(range(count))[::-1],
            "tags": [["a", None, "b"][: n % 4] for n in range(count)],
            "p": [{"x": n, "y": [n] * (n % 3)} if n % 5 else None for n in range(count)],
            "w": pa.array([f"w{n % 7}" for n in range(count)]).dictionary_encode(),
            "view": pa.array([f"a long enough view {n}" for n in range(count)], pa.string_view()),
        }
    )
    root = make_dataset(tmp_path / "d", table, files=3, row_group_size=50)
    for memory in (2000, PLENTY):
        optimized(root, ["w", "id"], memory=memory)
        assert rows(root) == rows(table)
        assert read(root).schema.equals(table.schema)


@BOTH
@pytest.mark.parametrize("by", [["id"], ["w", "id"]])
def test_dictionaries_of_all_files_may_be_more_than_their_indices_number(
    tmp_path: Path, rows: Any, by: list[str], memory: int
) -> None:
    root = tmp_path / "d"
    root.mkdir()
    kind = pa.dictionary(pa.int8(), pa.string())
    for number in range(4):
        words = pa.array([f"{number} {n % 100}" for n in range(300)]).dictionary_encode().cast(kind)
        columns = {
            "id": [(n * 37) % 300 for n in range(300)],
            "w": words,
            "list": pa.ListArray.from_arrays(pa.array(range(301), pa.int32()), words),
            "struct": pa.StructArray.from_arrays([words], ["x"]),
        }
        pq.write_table(pa.table(columns), root / f"{number}.parquet")
    before, schema = rows(root), pq.read_schema(files(root)[0])
    optimized(root, by, memory=8 * memory)
    with pq.ParquetFile(files(root)[0]) as parquet:
        assert parquet.schema_arrow.equals(schema)
        found = [row for n in range(parquet.num_row_groups) for row in parquet.read_row_group(n).to_pylist()]
    assert rows(found) == before


@BOTH
def test_views_can_be_ordered_by(tmp_path: Path, make_dataset: Any, rows: Any, memory: int) -> None:
    words = [f"a view that is long enough {n * 7 % 1000:04}" for n in range(1000)]
    table = pa.table({"v": pa.array(words, pa.string_view())})
    root = make_dataset(tmp_path / "d", table, files=3)
    optimized(root, ["v"], memory=memory)
    assert read(root)["v"].to_pylist() == sorted(words)


@BOTH
@pytest.mark.parametrize("curve", ["zorder", "hilbert"])
def test_rows_with_null_come_last_along_a_curve(
    tmp_path: Path, make_dataset: Any, rows: Any, curve: str, memory: int
) -> None:
    table = shuffled(2000)
    root = make_dataset(tmp_path / "d", table, files=3, row_group_size=200)
    optimized(root, ["b", "a"], memory=memory, curve=curve, target_rows=500)
    assert rows(root) == rows(table)
    nulls = [value is None for value in read(root)["b"].to_pylist()]
    assert any(nulls)
    assert nulls == sorted(nulls)


def test_a_group_that_grows_too_large_when_decoded_is_sorted_on_disk(
    tmp_path: Path, make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"id": list(range(5000))[::-1], "same": ["x" * 500] * 5000})
    root = make_dataset(tmp_path / "d", table, files=4, row_group_size=500)
    used: list[str] = []

    class Noting(Spill):
        def __enter__(self) -> Spill:
            used.append(self._directory)
            return super().__enter__()

    monkeypatch.setattr(optimize, "Spill", Noting)
    assert sum(file.stat().st_size for file in files(root)) < 200_000
    optimized(root, ["id"], memory=1_000_000)
    assert len(used) == 1
    assert not Path(used[0]).exists()
    assert read(root).equals(table.sort_by("id"))


@pytest.mark.parametrize("by", [["nope"], ["id", "gone"]])
def test_a_clustering_column_that_is_not_there_is_named(
    tmp_path: Path, make_dataset: Any, unchanged: Any, by: list[str]
) -> None:
    root = make_dataset(tmp_path / "d", pa.table({"id": [1]}), files=1)
    with unchanged(root), pytest.raises(ColumnNotFound, match=f"'{by[-1]}'.*there is 'id'"):
        optimized(root, by)


def test_what_cannot_be_ordered_is_refused_before_anything_is_written(
    tmp_path: Path, make_dataset: Any, unchanged: Any
) -> None:
    names = [f"c{n}" for n in range(25)]
    table = pa.table({"tags": [["a"]], **{name: [1] for name in names}})
    root = make_dataset(tmp_path / "d", table, files=1)
    with unchanged(root), pytest.raises(InputError, match=r"'tags' \(list"):
        optimized(root, ["tags"])
    with unchanged(root), pytest.raises(InputError, match="spiral"):
        optimized(root, ["c1"], curve="spiral")
    with unchanged(root), pytest.raises(InputError, match="20 columns"):
        optimized(root, names)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_half_way_leaves_no_temporary_file(
    tmp_path: Path, make_dataset: Any, unchanged: Any, threads: int
) -> None:
    root = make_dataset(tmp_path / "d", shuffled(30_000), files=3, compression="none", use_dictionary=False)
    bad = files(root)[2]
    data = bytearray(bad.read_bytes())
    data[4:40] = bytes(36)
    bad.write_bytes(data)
    with unchanged(root), pytest.raises(DamagedTable, match=r"part-00002\.parquet"):
        optimized(root, ["s"], memory=10_000, threads=threads)


def test_a_full_disk_is_told_with_its_errno(
    tmp_path: Path, make_dataset: Any, unchanged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_dataset(tmp_path / "d", shuffled(3000), files=3)

    def full(self: Any, table: pa.Table) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("intarsia.kernel.spill._Open.write", full)
    with unchanged(root), pytest.raises(StorageError, match="No space left") as caught:
        optimized(root, ["n"], memory=4000)
    assert caught.value.errno == 28


def test_rows_that_do_not_add_up_are_refused(
    tmp_path: Path, make_dataset: Any, unchanged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_dataset(tmp_path / "d", shuffled(300), files=3)
    whole = compact.conform_written
    monkeypatch.setattr(compact, "conform_written", lambda table, *a, **k: whole(table.slice(1), *a, **k))
    with unchanged(root), pytest.raises(DamagedTable):
        optimized(root, ["n"])


ROWS = st.tuples(st.integers(0, 5) | st.none(), st.sampled_from([0.5, 1.5, math.nan, None]))


@given(given_rows=st.lists(ROWS, min_size=1, max_size=6), probes=st.lists(ROWS, min_size=1, max_size=20))
def test_a_ladder_compares_rows_as_they_are(given_rows: Any, probes: Any) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.float64())])

    def table(rows: Any) -> pa.Table:
        return pa.Table.from_pylist([{"a": a, "b": b} for a, b in rows], schema)

    ladder = Ladder.of(table(given_rows))
    assert ladder.exact
    steps = ladder.compute_codes(table(given_rows)).to_pylist()
    codes = ladder.compute_codes(table(probes)).to_pylist()
    for row, code in zip(probes, codes, strict=True):
        mine = tuple(map(_place, row))
        for other, step in zip(given_rows, steps, strict=True):
            theirs = tuple(map(_place, other))
            assert (mine < theirs, mine == theirs) == (code < step, code == step)


def test_a_place_that_fills_a_part_has_a_bucket_of_its_own() -> None:
    sample = pa.table({"x": [1, 2, 3] + [5] * 40 + [8, 9]})
    cuts = Cuts.of(sample, Order(("x",)), parts=4)
    numbers = cuts.assign_buckets(pa.table({"x": [1, 4, 5, 6, 9, None]})).to_pylist()
    assert numbers == sorted(numbers)
    assert cuts.even[numbers[2]]
    assert numbers[1] < numbers[2] < numbers[3]
    assert not cuts.even[numbers[1]]
    assert not cuts.even[numbers[3]]


def test_buckets_are_dealt_out_to_files_of_about_equal_rows() -> None:
    def lengths(sizes: list[int], outputs: int) -> list[list[tuple[int, int]]]:
        portions = [Portion(rows, rows, even=False, read=lambda: iter(())) for rows in sizes]
        return [[(one.start, one.stop) for one in mine] for mine in assign_spans(portions, outputs)]

    assert lengths([10, 11, 9, 10], 2) == [[(0, 10), (0, 11)], [(0, 9), (0, 10)]]
    assert lengths([100], 4) == [[(0, 25)], [(25, 50)], [(50, 75)], [(75, 100)]]
    assert lengths([90, 10], 2) == [[(0, 50)], [(50, 90), (0, 10)]]
    assert lengths([1], 3) == [[(0, 1)]]
