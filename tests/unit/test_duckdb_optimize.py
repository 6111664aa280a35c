"""Compacting and optimizing on DuckDB, with the Arrow engine as the oracle."""

from __future__ import annotations

import datetime
import decimal
import math
import os
import random
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

duckdb = pytest.importorskip("duckdb")

import intarsia  # noqa: E402
from intarsia.engines.duckdb import DuckDBEngine  # noqa: E402
from intarsia.engines.duckdb.optimize import CurveCodes  # noqa: E402
from intarsia.engines.duckdb.session import Session  # noqa: E402
from intarsia.errors import ColumnNotFound, InputError, IntarsiaError  # noqa: E402
from intarsia.kernel.sort import Order  # noqa: E402

ENGINES = pytest.mark.parametrize("engine", ["own instance", "connection without order"])


def engine_of(kind: str) -> DuckDBEngine:
    if kind == "own instance":
        return DuckDBEngine(threads=3)
    connection = duckdb.connect(
        config={"preserve_insertion_order": "false", "default_null_order": "nulls_first"}
    )
    return DuckDBEngine(connection)


def mixed(count: int, seed: int = 1) -> pa.Table:
    """Rows of many types with NULL, NaN and both zeros."""
    draw = random.Random(seed)

    def some(kind: pa.DataType, value: Callable[[], Any]) -> pa.Array:
        return pa.array([None if draw.random() < 0.05 else value() for _ in range(count)], kind)

    def moment() -> datetime.datetime:
        return datetime.datetime(2024, 1, 1) + datetime.timedelta(seconds=draw.randrange(10**7))

    floats = [math.nan, -0.0, 0.0, math.inf, -math.inf]
    return pa.table(
        {
            "row": pa.array(range(count), pa.int64()),
            "i": some(pa.int32(), lambda: draw.randrange(-5000, 5000)),
            "f": some(pa.float64(), lambda: draw.choice(floats) if draw.random() < 0.3 else draw.gauss(0, 1)),
            "s": some(pa.string(), lambda: "é" * draw.randrange(3) + str(draw.randrange(999))),
            "b": some(pa.bool_(), lambda: draw.random() < 0.3),
            "t": some(pa.timestamp("us"), moment),
            "z": some(pa.timestamp("us", "UTC"), moment),
            "d": some(pa.decimal128(38, 2), lambda: decimal.Decimal(draw.randrange(10**6)) / 100),
            "n": pa.nulls(count, pa.int64()),
            "k": some(pa.string(), lambda: draw.choice("abc")).dictionary_encode(),
            "u": some(pa.uint64(), lambda: draw.randrange(2**64)),
        }
    )


def twins(root: Path, tmp_path: Path) -> Path:
    """A copy for the Arrow engine."""
    return Path(shutil.copytree(root, tmp_path / "twin"))


def files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.parquet"))


def tables(root: Path) -> list[pa.Table]:
    """Every file as a table, in the order of their names."""
    found = []
    for file in files(root):
        with pq.ParquetFile(file) as parquet:
            found.append(parquet.read())
    return found


def told(table: pa.Table) -> list[str]:
    """Rows as texts, so that NaN equals NaN and -0.0 differs from 0.0."""
    return [repr(row) for row in table.to_pylist()]


def _declared(by: tuple[str, ...], curve: str) -> tuple[pq.SortingColumn, ...]:
    """What a file declares that is in the plain order of its columns; one along a curve declares nothing."""
    names = mixed(0).column_names
    return tuple(pq.SortingColumn(names.index(name)) for name in by if curve == "linear" or len(by) == 1)


def group_rows(file: Path) -> list[int]:
    footer = pq.read_metadata(file)
    return [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]


def same_rows_in_the_same_files(root: Path, twin: Path) -> None:
    """Names differ in the transaction's own part only, files and rows not at all."""
    mine, theirs = files(root), files(twin)
    assert [f.parent.relative_to(root) for f in mine] == [f.parent.relative_to(twin) for f in theirs]
    assert [_common(file) for file in mine] == [_common(file) for file in theirs]
    for one, other in zip(tables(root), tables(twin), strict=True):
        assert one.schema.equals(other.schema)
        assert told(one) == told(other)


def _common(file: Path) -> tuple[str, ...]:
    prefix, _, rest = file.stem.partition("-")
    return prefix, *rest.split("-")[1:]


# --- codes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("curve", ["zorder", "hilbert"])
@pytest.mark.parametrize(
    "by", ["it", "fs", "bi", "zdk", "ni", "nb", "ufsi", "ifsbtzd"], ids=lambda by: ",".join(by)
)
def test_codes_of_sql_are_those_of_the_curve(curve: str, by: str) -> None:
    table = mixed(3000)
    order = Order(tuple(by), curve).with_boundaries(table.slice(0, 1000))
    with Session() as session:
        codes = CurveCodes.of(session, order, table.schema, table="curve")
        with session.register_view(table) as view:
            query = f'SELECT "row", "{codes.column}" AS code FROM ({codes.make_sql(f"FROM {view}")})'
            found = session.fetch_arrow(f'SELECT code FROM ({query}) ORDER BY "row"')
    assert found["code"].to_pylist() == order.compute_codes(table).to_pylist()


def test_names_of_the_dataset_never_meet_those_of_the_codes() -> None:
    table = pa.table({"~code": [3, 1, 2], "~~at0": [1, 1, 1], "~Limits0": ["c", "a", "b"]})
    order = Order(("~code", "~Limits0"), "hilbert").with_boundaries(table)
    with Session() as session:
        codes = CurveCodes.of(session, order, table.schema, table="curve")
        with session.register_view(table) as view:
            found = session.fetch_arrow(codes.make_sql(f"FROM {view}"))
    assert found.select(table.column_names).equals(table)
    assert found[codes.column].to_pylist() == order.compute_codes(table).to_pylist()


# --- compact ----------------------------------------------------------------------------------------------


@ENGINES
@pytest.mark.parametrize("partition", [(), ("k",)], ids=["flat", "partitioned"])
def test_compacting_keeps_every_row_in_the_order_of_the_files(
    tmp_path: Path, make_dataset: Any, leftovers: Any, engine: str, partition: tuple[str, ...]
) -> None:
    root = make_dataset(tmp_path / "root", mixed(9000), files=7, partition=partition)
    twin = twins(root, tmp_path)
    result = intarsia.compact(root, engine=engine_of(engine))
    intarsia.compact(twin, engine="arrow")
    same_rows_in_the_same_files(root, twin)
    assert len(files(root)) == (4 if partition else 1)  # NULL has a directory, too
    assert all(file.name.startswith("compact-") for file in files(root))
    assert result.engine == "duckdb"
    assert not any("PyArrow" in note for note in result.notes)
    assert leftovers(root) == []


@ENGINES
def test_files_of_several_forms_are_compacted_in_their_order(tmp_path: Path, engine: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for number in range(9):
        values = list(range(number * 1000, number * 1000 + 1000))
        columns: dict[str, Any] = {"a": pa.array(values, pa.int32() if number % 3 else pa.int64())}
        if number % 2:
            columns["more"] = [f"row {value}" for value in values]
        pq.write_table(pa.table(columns), root / f"part-{number}.parquet")
    twin = twins(root, tmp_path)
    intarsia.compact(root, engine=engine_of(engine))
    intarsia.compact(twin, engine="arrow")
    same_rows_in_the_same_files(root, twin)
    assert tables(root)[0]["a"].to_pylist() == list(range(9000))


def test_an_order_that_every_file_declares_holds_in_the_compacted_file(
    tmp_path: Path, make_dataset: Any
) -> None:
    table = mixed(5000).sort_by([("s", "descending")])
    sorting = [pq.SortingColumn(table.column_names.index("s"), descending=True, nulls_first=False)]
    root = make_dataset(tmp_path / "root", table, files=3, sorting_columns=sorting)
    intarsia.compact(root, engine=DuckDBEngine())
    assert pq.read_metadata(files(root)[0]).row_group(0).sorting_columns == tuple(sorting)
    found = tables(root)[0]["s"].to_pylist()
    values = [value for value in found if value is not None]
    assert values == sorted(values, key=lambda text: text.encode(), reverse=True)
    assert found == [*values, *[None] * (len(found) - len(values))]


@pytest.mark.parametrize(
    ("operation", "options"),
    [("compact", {}), ("optimize", {"by": "id"}), ("optimize", {"by": "id", "target_rows_per_file": 15_000})],
    ids=["compact", "optimize", "optimize to several files"],
)
def test_the_layout_stays_as_it_was(tmp_path: Path, operation: str, options: dict[str, Any]) -> None:
    root = tmp_path / "root"
    root.mkdir()
    fields = [pa.field("id", pa.int64(), nullable=False), ("v", pa.string())]
    schema = pa.schema(fields, metadata={b"made by": b"us \xff"})
    for number in range(3):
        table = pa.table({"id": range(10_000), "v": ["x"] * 10_000}, schema=schema)
        pq.write_table(table, root / f"{number}.parquet", compression="zstd", row_group_size=4096)
    result = getattr(intarsia, operation)(root, engine=DuckDBEngine(), **options)
    assert not any("PyArrow" in note for note in result.notes)
    for file in files(root):
        footer = pq.read_metadata(file)
        assert {footer.row_group(0).column(n).compression for n in range(2)} == {"ZSTD"}
        assert max(group_rows(file)) <= 4096
        assert len(group_rows(file)) == -(-footer.num_rows // 4096)
        assert footer.metadata[b"made by"] == b"us \xff"
        assert pq.read_schema(file).types == schema.types
        assert footer.schema.column(1).max_definition_level == 1  # nullable, though there is no NULL
        assert footer.schema.column(0).max_definition_level == 0


def test_codec_and_row_groups_can_be_chosen_anew(tmp_path: Path, make_dataset: Any) -> None:
    root = make_dataset(tmp_path / "root", mixed(9000), files=3, compression="snappy")
    intarsia.compact(root, engine=DuckDBEngine(), compression="gzip", row_group_size=2048)
    (file,) = files(root)
    assert pq.read_metadata(file).row_group(0).column(0).compression == "GZIP"
    assert group_rows(file) == [2048] * 4 + [9000 - 4 * 2048]


def test_groups_of_other_columns_and_types_are_compacted_as_by_the_arrow_engine(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    (root / "p=1").mkdir(parents=True)
    (root / "p=2").mkdir()
    day = pa.array([datetime.date(2024, 1, 1)] * 10)
    for number in range(2):
        pq.write_table(
            pa.table({"a": range(10), "d": day}), root / "p=1" / f"{number}.parquet", store_schema=False
        )
        footer_free = pa.table({"a": range(10), "d": day, "_": pa.array([b"ab"] * 10, pa.binary(2))})
        pq.write_table(footer_free, root / "p=2" / f"{number}.parquet")
    twin = twins(root, tmp_path)
    result = intarsia.compact(root, engine=DuckDBEngine())
    intarsia.compact(twin, engine="arrow")
    same_rows_in_the_same_files(root, twin)
    assert not any("PyArrow" in note for note in result.notes)


def test_null_where_none_may_be_is_refused_as_by_the_arrow_engine(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    strict = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    pq.write_table(pa.table({"a": [1]}, schema=strict), root / "0.parquet")
    pq.write_table(pa.table({"a": pa.array([None, 2], pa.int64())}), root / "1.parquet")
    twin = twins(root, tmp_path)
    outcomes = []
    for path, engine in ((root, DuckDBEngine()), (twin, "arrow")):
        try:
            intarsia.compact(path, engine=engine)
            outcomes.append(told(tables(path)[0]))
        except IntarsiaError as error:
            outcomes.append([type(error).__name__])
    assert outcomes[0] == outcomes[1]


# --- optimize ---------------------------------------------------------------------------------------------


@ENGINES
@pytest.mark.parametrize("per_file", [None, 1800], ids=["one file", "several files"])
@pytest.mark.parametrize("curve", ["linear", "zorder", "hilbert"])
@pytest.mark.parametrize("by", [("f", "s"), ("i",), ("k", "t", "b")], ids=",".join)
def test_rows_come_in_the_very_order_of_the_arrow_engine(
    tmp_path: Path,
    make_dataset: Any,
    leftovers: Any,
    engine: str,
    per_file: int | None,
    curve: Any,
    by: tuple[str, ...],
) -> None:
    root = make_dataset(tmp_path / "root", mixed(7000), files=3)
    twin = twins(root, tmp_path)
    result = intarsia.optimize(
        root, by=by, curve=curve, target_rows_per_file=per_file, engine=engine_of(engine)
    )
    intarsia.optimize(twin, by=by, curve=curve, target_rows_per_file=per_file, engine="arrow")
    same_rows_in_the_same_files(root, twin)
    assert [pq.read_metadata(f).num_rows for f in files(root)] == ([1750] * 4 if per_file else [7000])
    assert all(file.name.startswith("optimized-") for file in files(root))
    assert not any("PyArrow" in note for note in result.notes)
    for one, other in zip(files(root), files(twin), strict=True):
        assert group_rows(one) == group_rows(other)
        assert [pq.read_metadata(each).row_group(0).sorting_columns for each in (one, other)] == [
            _declared(by, curve)
        ] * 2
    assert leftovers(root) == []


@pytest.mark.parametrize("per_file", [None, 500], ids=["one file each", "several files each"])
def test_every_partition_is_ordered_by_itself(
    tmp_path: Path, make_dataset: Any, per_file: int | None
) -> None:
    root = make_dataset(tmp_path / "root", mixed(6000), files=2, partition=("k",))
    twin = twins(root, tmp_path)
    for path, engine in ((root, DuckDBEngine(threads=4)), (twin, "arrow")):
        intarsia.optimize(path, by=["k", "i", "f"], target_rows_per_file=per_file, engine=engine)
    same_rows_in_the_same_files(root, twin)


@pytest.mark.parametrize("by", [(), ("i", "t")], ids=["as they are", "zorder"])
def test_duplicates_are_left_out_over_all_groups(
    tmp_path: Path, make_dataset: Any, by: tuple[str, ...]
) -> None:
    table = mixed(4000)
    keys = pa.array([number % 1500 for number in range(4000)], pa.int64())
    table = table.append_column("key", keys)
    root = make_dataset(tmp_path / "root", table, files=3, partition=("k",))
    twin = twins(root, tmp_path)
    for path, engine in ((root, DuckDBEngine()), (twin, "arrow")):
        result = intarsia.optimize(
            path, by=by, deduplicate_on="key", dedup_order_by="t", target_rows_per_file=300, engine=engine
        )
        assert result.target_count_after == 1500
    same_rows_in_the_same_files(root, twin)


@pytest.mark.parametrize("by", ["a", ("a", "b")], ids=["sorted", "along a curve"])
def test_a_group_that_duplicates_emptied_has_no_file_and_an_empty_one_stays_empty(
    tmp_path: Path, by: Any
) -> None:
    root = tmp_path / "root"
    for place, values in (("p=1", [1, 2]), ("p=2", [2, 1]), ("p=3", [])):
        (root / place).mkdir(parents=True)
        numbers = pa.array(values, pa.int64())
        pq.write_table(pa.table({"a": numbers, "b": numbers}), root / place / "x.parquet")
    intarsia.optimize(root, by=by, deduplicate_on="a", engine=DuckDBEngine())
    assert [file.parent.name for file in files(root)] == ["p=2", "p=3"]
    assert [table["a"].to_pylist() for table in tables(root)] == [[1, 2], []]


def test_row_groups_are_as_narrow_as_those_of_the_arrow_engine(tmp_path: Path) -> None:
    draw = random.Random(5)
    root, count = tmp_path / "root", 200_000
    root.mkdir()
    columns = {name: pa.array([draw.randrange(10**6) for _ in range(count)], pa.int64()) for name in "ab"}
    for number in range(4):
        part = pa.table(columns).slice(number * count // 4, count // 4)
        pq.write_table(part, root / f"{number}.parquet")
    twin = twins(root, tmp_path)
    shares = []
    for path, engine in ((root, DuckDBEngine()), (twin, "arrow")):
        intarsia.optimize(
            path, by=["a", "b"], target_rows_per_file=100_000, row_group_size=4096, engine=engine
        )
        shares.append([_read_share(path, column) for column in "ab"])
    assert pc.sum(pa.concat_tables(tables(root))["a"]).as_py() == pc.sum(columns["a"]).as_py()
    assert all(mine < 0.3 and mine < 1.2 * theirs for mine, theirs in zip(*shares, strict=True))


def _read_share(root: Path, column: str) -> float:
    """The share of row groups that a filter on 1 % of the values still reads."""
    spans = []
    for file in files(root):
        footer = pq.read_metadata(file)
        index = footer.schema.names.index(column)
        for number in range(footer.num_row_groups):
            statistics = footer.row_group(number).column(index).statistics
            spans.append((statistics.min, statistics.max))
    cuts = range(0, 10**6 + 1, 10**4)
    read = [sum(low < to and high >= start for low, high in spans) for start, to in pairwise(cuts)]
    return sum(read) / len(read) / len(spans)


@pytest.mark.parametrize(
    ("by", "curve", "error"),
    [("nothing", "zorder", ColumnNotFound), ("l", "linear", InputError), (("i", "l"), "zorder", InputError)],
    ids=str,
)
def test_what_has_no_order_is_refused_as_by_the_arrow_engine(
    tmp_path: Path, make_dataset: Any, by: Any, curve: Any, error: type[IntarsiaError]
) -> None:
    table = pa.table({"i": [1, 2], "l": [[1], [2]]})
    root = make_dataset(tmp_path / "root", table, files=2)
    said = []
    for engine in (DuckDBEngine(), "arrow"):
        with pytest.raises(error) as raised:
            intarsia.optimize(root, by=by, curve=curve, engine=engine)
        said.append(str(raised.value))
    assert said[0] == said[1]


def test_types_that_duckdb_lacks_are_ordered_by_pyarrow_and_the_plan_says_so(
    tmp_path: Path, make_dataset: Any
) -> None:
    table = mixed(100).append_column("x", pa.array(range(100), pa.duration("us")))
    root = make_dataset(tmp_path / "root", table, files=2)
    result = intarsia.optimize(root, by=["i", "t"], engine=DuckDBEngine())
    assert any(note.startswith("Rows are ordered by PyArrow: ") and "'x'" in note for note in result.notes)
    assert pq.read_schema(files(root)[0]).field("x").type == pa.duration("us")


@pytest.mark.parametrize("kind", [pa.binary(2), pa.time32("ms"), pa.date64(), pa.timestamp("s")], ids=str)
def test_types_that_duckdb_holds_as_another_come_back_as_they_were(
    tmp_path: Path, make_dataset: Any, kind: pa.DataType
) -> None:
    values = (
        [b"ab", b"cd"]
        if pa.types.is_fixed_size_binary(kind)
        else [0, 86_400_000 if kind == pa.date64() else 7]
    )
    table = mixed(100).append_column(
        "x",
        pa.array(values * 50).cast(pa.int32()).cast(kind)
        if kind == pa.time32("ms")
        else pa.array(values * 50, kind),
    )
    root = make_dataset(tmp_path / "root", table, files=2)
    twin = twins(root, tmp_path)
    result = intarsia.optimize(root, by=["x", "t"], engine=DuckDBEngine())
    intarsia.optimize(twin, by=["x", "t"], engine="arrow")
    assert not any("PyArrow" in note for note in result.notes)
    same_rows_in_the_same_files(root, twin)


# --- temporary files --------------------------------------------------------------------------------------


def wide(count: int) -> pa.Table:
    draw = random.Random(2)
    numbers = pa.array([draw.randrange(2**62) for _ in range(count)], pa.int64())
    filler = pc.binary_repeat(numbers.cast(pa.string()), 8)
    return pa.table({"a": numbers, "b": pc.bit_wise_xor(numbers, 12345), "filler": filler})


class Watch:
    """The most bytes that files below a directory had."""

    def __init__(self, directory: Path) -> None:
        self.most = 0
        self._directory = directory
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._done.wait(0.005):
            sizes = 0
            for directory, _, names in os.walk(self._directory):
                for name in names:
                    with suppress(FileNotFoundError):
                        sizes += os.stat(os.path.join(directory, name)).st_size
            self.most = max(self.most, sizes)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


@pytest.mark.parametrize("per_file", [None, 100_000], ids=["one file", "several files"])
def test_more_than_memory_holds_is_sorted_on_disk_and_nothing_of_it_stays(
    tmp_path: Path, make_dataset: Any, per_file: int | None
) -> None:
    root = make_dataset(tmp_path / "root", wide(600_000), files=3)
    spool = tmp_path / "spool"
    spool.mkdir()
    engine = DuckDBEngine(memory_bytes=128 << 20, threads=2, spool_dir=spool)
    with Watch(spool) as watch:
        intarsia.optimize(
            root, by=["a", "b"], target_rows_per_file=per_file, row_group_size=20_480, engine=engine
        )
    assert watch.most > 10 << 20
    assert list(spool.iterdir()) == []
    assert sum(pq.read_metadata(file).num_rows for file in files(root)) == 600_000


def test_an_error_leaves_no_temporary_file_and_the_table_as_it_was(
    tmp_path: Path, make_dataset: Any, leftovers: Any
) -> None:
    root = make_dataset(tmp_path / "root", wide(200_000), files=2)
    damaged = files(root)[1]
    raw = bytearray(damaged.read_bytes())
    chunk = pq.read_metadata(damaged).row_group(0).column(2)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    raw[start : start + 400] = b"\xff" * 400
    damaged.write_bytes(raw)
    before = {file.name: file.read_bytes() for file in files(root)}
    spool = tmp_path / "spool"
    spool.mkdir()
    for call in (
        lambda engine: intarsia.optimize(root, by=["a", "b"], target_rows_per_file=50_000, engine=engine),
        lambda engine: intarsia.compact(root, engine=engine),
    ):
        with pytest.raises(IntarsiaError):
            call(DuckDBEngine(spool_dir=spool))
        assert list(spool.iterdir()) == []
        assert {file.name: file.read_bytes() for file in files(root)} == before
        assert leftovers(root) == []


def test_nothing_of_ours_stays_on_the_connection(tmp_path: Path, make_dataset: Any) -> None:
    root = make_dataset(tmp_path / "root", mixed(3000), files=3)
    with duckdb.connect() as connection:
        settings = connection.execute("FROM duckdb_settings()").fetchall()
        intarsia.optimize(root, by=["i", "t"], target_rows_per_file=500, engine=DuckDBEngine(connection))
        intarsia.compact(root, engine=DuckDBEngine(connection))
        assert connection.execute("FROM duckdb_settings()").fetchall() == settings
        assert connection.execute("SELECT count(*) FROM duckdb_tables()").fetchall() == [(0,)]
        names = connection.execute("SELECT database_name FROM duckdb_databases()").fetchall()
        assert not any(each.startswith("intarsia") for (each,) in names)
