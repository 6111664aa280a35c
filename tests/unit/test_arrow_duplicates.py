from __future__ import annotations

import math
import tempfile
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.core.change import Matches
from intarsia.core.intent import DeduplicateIntent
from intarsia.core.planning import plan_deduplicate
from intarsia.core.rule import Drop
from intarsia.errors import ColumnNotFound, InputError, KeyColumnError
from intarsia.kernel import duplicates
from intarsia.kernel.duplicates import match_duplicates
from intarsia.kernel.equal_keys import KeySpan, cut_cells, find_components, find_losers, find_repeats
from intarsia.tables.parquet import ParquetTable

PLENTY = 1 << 30


def silent(_step: str, _done: int, _total: int) -> None: ...


def found(root: Path, keys: Any = (), order_by: Any = (), **options: Any) -> Matches:
    plan = plan_deduplicate(DeduplicateIntent(tuple(keys), tuple(order_by)), ParquetTable(root).snapshot())
    given = {"threads": 2, "memory_bytes": PLENTY, "progress": silent, **options}
    return match_duplicates(plan, keys=tuple(keys), order_by=tuple(order_by), **given)


def losers(matches: Matches, root: Path) -> dict[str, list[int]]:
    rows = {name: list(range(pq.read_metadata(root / name).num_rows)) for name in matches.dropped}
    return {**{name: hits.positions.to_pylist() for name, hits in matches.hits.items()}, **rows}


def dataset(root: Path, *files: pa.Table, **writer: Any) -> Path:
    root.mkdir(exist_ok=True)
    for number, table in enumerate(files):
        pq.write_table(table, root / f"f{number:02d}.parquet", **writer)
    return root


def _key(value: Any) -> Any:
    if isinstance(value, float):
        return ("NaN",) if math.isnan(value) else value + 0.0
    return value


def _rank(value: Any) -> tuple[int, Any]:
    if value is None:
        return (0, 0)
    if isinstance(value, float) and math.isnan(value):
        return (2, 0)
    return (1, value)


def model(files: list[list[dict[str, Any]]], keys: list[str], order_by: list[str]) -> dict[str, list[int]]:
    """What has to go, told one row at a time."""
    best: dict[Any, tuple[Any, str, int]] = {}
    gone: dict[str, list[int]] = {}
    for number, rows in enumerate(files):
        for position, row in enumerate(rows):
            key = tuple(_key(row[name]) for name in keys)
            rank = tuple(_rank(row[name]) for name in order_by)
            name = f"f{number:02d}.parquet"
            if key in best and best[key][0] > rank:
                gone.setdefault(name, []).append(position)
                continue
            if key in best:
                gone.setdefault(best[key][1], []).append(best[key][2])
            best[key] = (rank, name, position)
    return {name: sorted(positions) for name, positions in gone.items()}


SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string()), ("f", pa.float64()), ("o", pa.float64())])
ROW = st.fixed_dictionaries(
    {
        "k": st.none() | st.integers(-3, 3),
        "s": st.none() | st.sampled_from(["", "a", "b", "ä", "a" * 40]),
        "f": st.none() | st.sampled_from([0.0, -0.0, math.nan, 1.5, -math.inf]),
        "o": st.none() | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, -2.5, 3.0]),
    }
)


@given(
    files=st.lists(st.lists(ROW, max_size=12), min_size=1, max_size=5),
    keys=st.lists(st.sampled_from(["k", "s", "f"]), unique=True, max_size=3),
    order_by=st.lists(st.sampled_from(["o", "s", "k"]), unique=True, max_size=2),
    memory=st.sampled_from([1, 200, 2_000, PLENTY]),
    threads=st.sampled_from([1, 2]),
    row_group_size=st.sampled_from([1, 3, 100]),
)
def test_the_same_rows_lose_as_in_a_plain_model_whatever_the_memory(
    files: Any, keys: Any, order_by: Any, memory: int, threads: int, row_group_size: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        tables = [pa.Table.from_pylist(rows, SCHEMA) for rows in files]
        root = dataset(Path(directory) / "d", *tables, row_group_size=row_group_size)
        matches = found(root, keys, order_by, memory_bytes=memory, threads=threads)
        expected = model(files, keys or SCHEMA.names, order_by)
        assert losers(matches, root) == expected
        assert matches.deleted == sum(map(len, expected.values()))
        assert matches.actions == (Drop(),)
        assert matches.dropped == {
            f"f{n:02d}.parquet"
            for n, rows in enumerate(files)
            if rows and len(expected.get(f"f{n:02d}.parquet", [])) == len(rows)
        }


VALUES = {
    "int8": (pa.int8(), [1, 2, -1]),
    "uint64": (pa.uint64(), [1, 2**64 - 1, 2**63]),
    "bool": (pa.bool_(), [True, False]),
    "float16": (pa.float16(), [0.5, -0.5, math.nan]),
    "float32": (pa.float32(), [0.5, -0.5, math.nan]),
    "date": (pa.date32(), [date(2020, 1, 1), date(1960, 1, 1)]),
    "timestamp": (pa.timestamp("us", "UTC"), [datetime(2020, 1, 1), datetime(1960, 1, 1)]),
    "nanoseconds": (pa.timestamp("ns"), [datetime(2020, 1, 1), datetime(1960, 1, 1)]),
    "decimal": (pa.decimal128(10, 2), [Decimal("1.10"), Decimal("-3.00"), Decimal("2.50")]),
    "decimal256": (pa.decimal256(50, 2), [Decimal("1.10"), Decimal("-3.00"), Decimal("2.50")]),
    "large_string": (pa.large_string(), ["a", "b", ""]),
    "string_view": (pa.string_view(), ["a", "b", "longer than twelve bytes"]),
    "binary": (pa.binary(), [b"a", b"b", b""]),
    "fixed": (pa.binary(2), [b"aa", b"ab"]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b"]),
    "time": (pa.time64("us"), [1, 2]),
    "duration": (pa.duration("s"), [1, 2]),
}


@pytest.mark.parametrize("memory", [64, PLENTY])
@pytest.mark.parametrize("kind", VALUES)
def test_every_plain_type_can_be_a_key_and_an_order(tmp_path: Path, kind: str, memory: int) -> None:
    data_type, values = VALUES[kind]
    column = pa.array([*values, None] * 3, data_type)
    first = pa.table({"k": column, "n": pa.array(range(len(column)))})
    root = dataset(tmp_path / "d", first, first, row_group_size=3)
    matches = found(root, ["k"], memory_bytes=memory)
    assert matches.dropped == {"f00.parquet"}
    assert matches.hits["f01.parquet"].positions.to_pylist() == list(range(2 * len(column) // 3))

    constant = pa.table({"k": column, "n": pa.array([1] * len(column))})
    root = dataset(tmp_path / "e", constant, row_group_size=3)
    matches = found(root, ["n"], ["k"], memory_bytes=memory)
    ranked = sorted(range(len(column)), key=lambda n: (_rank(constant["k"][n].as_py()), n))
    gone = matches.hits["f00.parquet"].positions.to_pylist()
    assert sorted(set(range(len(column))) - set(gone)) == [ranked[-1]]


def test_a_uuid_is_compared_by_its_bytes(tmp_path: Path) -> None:
    stored = pa.array([b"a" * 16, b"b" * 16, b"a" * 16], pa.binary(16))
    ids = pa.ExtensionArray.from_storage(pa.uuid(), stored)
    root = dataset(tmp_path / "d", pa.table({"id": ids}))
    assert losers(found(root, ["id"]), root) == {"f00.parquet": [0]}


def test_the_last_row_in_path_order_wins_and_not_the_newest_file(tmp_path: Path) -> None:
    one = pa.table({"id": [1, 2]})
    root = dataset(tmp_path / "d", one, one)
    pq.write_table(one, root / "a.parquet")
    matches = found(root, ["id"])
    assert matches.dropped == {"a.parquet", "f00.parquet"}
    assert not matches.hits
    assert matches.deleted == 4


def test_partition_columns_take_part_as_keys_and_as_order(tmp_path: Path, make_dataset: Any) -> None:
    table = pa.table({"id": [1, 1, 1, 2], "day": ["a", "b", "a", "b"]})
    root = make_dataset(tmp_path / "d", table, partition="day")
    assert losers(found(root, ["id", "day"]), root) == {"day=a/part-00000.parquet": [0]}
    by_day = found(root, ["id"], ["day"])
    assert by_day.dropped == {"day=a/part-00000.parquet"}
    assert by_day.deleted == 2
    of_a_day = found(root, ["day"])
    assert losers(of_a_day, root) == {"day=a/part-00000.parquet": [0], "day=b/part-00000.parquet": [0]}
    assert found(root).deleted == 1


def test_a_column_that_a_file_lacks_is_null_there(tmp_path: Path) -> None:
    root = dataset(tmp_path / "d", pa.table({"id": [1, 2]}), pa.table({"id": [1, 2], "x": [5, None]}))
    assert losers(found(root, ["id", "x"]), root) == {"f00.parquet": [1]}


def test_only_the_chosen_files_are_looked_at(tmp_path: Path) -> None:
    one = pa.table({"id": [1]})
    root = dataset(tmp_path / "d", one, one, one)
    snapshot = ParquetTable(root).snapshot()
    assert found(root, ["id"], files=snapshot.files[1:]).dropped == {"f01.parquet"}


def test_an_empty_file_and_an_empty_dataset_have_no_duplicates(tmp_path: Path) -> None:
    empty = pa.table({"id": pa.array([], pa.int64())})
    root = dataset(tmp_path / "d", empty, empty)
    assert found(root, ["id"]).deleted == 0


def test_nested_columns_are_refused_by_name_when_every_column_is_the_key(tmp_path: Path) -> None:
    root = dataset(tmp_path / "d", pa.table({"id": [1], "tags": [["a"]]}))
    with pytest.raises(InputError, match="'tags' is nested"):
        found(root)
    with pytest.raises(KeyColumnError, match="tags"):
        found(root, ["tags"])
    with pytest.raises(InputError, match="no order: 'tags'"):
        found(root, ["id"], ["tags"])


def test_columns_that_are_not_there_are_named(tmp_path: Path) -> None:
    root = dataset(tmp_path / "d", pa.table({"id": [1]}))
    with pytest.raises(KeyColumnError, match="'nope'"):
        found(root, ["nope"])
    with pytest.raises(ColumnNotFound, match="'later'"):
        found(root, ["id"], ["later"])


def test_files_apart_by_bounds_or_partition_share_no_component(tmp_path: Path, make_dataset: Any) -> None:
    tables = [pa.table({"id": ids}) for ids in ([1, 5], [4, 9], [20, 30], [10, 11], [31, 32])]
    snapshot = ParquetTable(dataset(tmp_path / "d", *tables)).snapshot()
    sets = [[file.path[:3] for file in files] for files in find_components(snapshot.files, ["id"], snapshot)]
    assert sets == [["f00", "f01"], ["f02"], ["f03"], ["f04"]]

    table = pa.table({"id": [1, 2, 1, 2], "p": [0, 0, 1, 1]})
    apart = ParquetTable(make_dataset(tmp_path / "e", table, partition="p", files=2)).snapshot()
    assert len(find_components(apart.files, ["id"], apart)) == 2
    assert len(find_components(apart.files, ["p", "id"], apart)) == 4
    assert len(find_components(apart.files, ["p"], apart)) == 2


def test_files_with_nulls_belong_together(tmp_path: Path) -> None:
    ids = ([1, None], [5, 6], [None, 9], [None, None])
    tables = [pa.table({"id": pa.array(values, pa.int64())}) for values in ids]
    root = dataset(tmp_path / "d", *tables)
    snapshot = ParquetTable(root).snapshot()
    sets = [[file.path[:3] for file in files] for files in find_components(snapshot.files, ["id"], snapshot)]
    assert sets == [["f00", "f02", "f03"], ["f01"]]
    assert losers(found(root, ["id"]), root) == {"f00.parquet": [1], "f02.parquet": [0], "f03.parquet": [0]}


def test_files_without_statistics_are_kept_together(tmp_path: Path) -> None:
    one, other = pa.table({"id": [1, 2]}), pa.table({"id": [8, 9]})
    root = dataset(tmp_path / "d", one, other, write_statistics=False)
    snapshot = ParquetTable(root).snapshot()
    assert len(find_components(snapshot.files, ["id"], snapshot)) == 1


def test_small_memory_means_more_passes_that_skip_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 40_000
    ids = pa.array([n // 2 for n in range(count)])
    table = pa.table({"id": ids, "o": pa.array(range(count))})
    root = dataset(tmp_path / "d", table, row_group_size=1000)
    read: list[int] = []

    class Counting(duplicates.FileReader):
        def read(self, columns: Any, row_group: int) -> Any:
            read.append(row_group)
            return super().read(columns, row_group)

    monkeypatch.setattr(duplicates, "FileReader", Counting)
    steps: list[tuple[int, int]] = []
    matches = found(
        root,
        ["id"],
        ["o"],
        memory_bytes=400_000,
        threads=1,
        progress=lambda _step, done, total: steps.append((done, total)),
    )
    assert losers(matches, root) == {"f00.parquet": list(range(0, count, 2))}
    assert steps[-1][0] == steps[-1][1] > 3
    # Each row group for its key and once more for its order, and a few of them by two neighbours.
    assert len(read) < 2 * 40 + 4 * steps[-1][1]


@pytest.mark.parametrize("kind", ["int", "string", "float", "decimal", "date"])
def test_long_columns_are_hashed_in_buckets_with_the_same_result(kind: str) -> None:
    count = 150_000
    numbers = [(n * 7919) % 70_001 for n in range(count)]
    values = pa.array([None if n % 1000 == 0 else n for n in numbers], pa.int64())
    column = {
        "int": values,
        "string": values.cast(pa.string()),
        "float": values.cast(pa.float64()),
        "decimal": values.cast(pa.decimal128(20, 0)),
        "date": values.cast(pa.int32()).cast(pa.date32()),
    }[kind]
    last: dict[Any, int] = {}
    repeats: dict[Any, int] = {}
    for row, value in enumerate(values.to_pylist()):
        last[value] = row
        repeats[value] = repeats.get(value, 0) + 1
    answer = find_repeats(column, threads=2)
    shown = values.to_pylist()
    assert sorted(answer.rows.to_pylist()) == [row for row in range(count) if repeats[shown[row]] > 1]
    groups: dict[int, set[Any]] = {}
    for row, group in zip(answer.rows.to_pylist(), answer.groups.to_pylist(), strict=True):
        groups.setdefault(group, set()).add(shown[row])
    assert len(groups) == answer.count == sum(many > 1 for many in repeats.values())
    assert all(len(equal) == 1 for equal in groups.values())
    assert find_losers([column], []).to_pylist() == [row for row in range(count) if last[shown[row]] != row]


def test_cells_hold_every_key_once_and_few_rows_each() -> None:
    count = 5_000
    sample = pa.table(
        {
            "a": pa.array([None if n % 10 == 0 else n % 3 for n in range(count)], pa.int64()),
            "b": pa.array([float("nan") if n % 17 == 0 else n * 1.5 for n in range(count)]),
        }
    )
    found_cells = cut_cells(sample, rows=count, most_rows=100)
    inside = [0] * count
    for cell in found_cells:
        mask = [True] * count
        for span in cell:
            of_span = span.mask(sample[span.column].combine_chunks()).to_pylist()
            mask = [a and b for a, b in zip(mask, of_span, strict=True)]
        assert 0 < sum(mask) <= 450  # the NaN of one value of a cannot be cut
        inside = [a + b for a, b in zip(inside, mask, strict=True)]
    assert inside == [1] * count
    assert len(found_cells) > 30


def test_equal_keys_cannot_be_cut() -> None:
    assert cut_cells(pa.table({"a": [7] * 100}), rows=1000, most_rows=10) == [()]


def test_the_open_span_has_null_and_nan() -> None:
    values = pa.array([1.0, 2.0, float("nan"), None])
    assert KeySpan("x", pa.scalar(2.0), None).mask(values).to_pylist() == [False, True, True, True]
    assert KeySpan("x", None, pa.scalar(2.0)).mask(values).to_pylist() == [True, False, False, False]
