from __future__ import annotations

import math
import struct
import tempfile
from collections.abc import Iterator
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
from intarsia.core.ports import Execution
from intarsia.core.prepare import prepare
from intarsia.engines.arrow import ArrowEngine
from intarsia.errors import ColumnNotFound, InputError, KeyColumnError, NotSupported
from intarsia.kernel.duplicates import match_duplicates as arrow_duplicates
from intarsia.tables.parquet import ParquetTable

duckdb = pytest.importorskip("duckdb")

from intarsia.engines.duckdb import DuckDBEngine  # noqa: E402
from intarsia.engines.duckdb.duplicates import match_duplicates  # noqa: E402
from intarsia.engines.duckdb.session import LEAST_BYTES, Session  # noqa: E402

NANS = [
    struct.unpack("<d", struct.pack("<Q", bits))[0]
    for bits in (0x7FF8 << 48, 0xFFF8 << 48, (0x7FF8 << 48) + 5)
]
"""Not a number, in three ways to write it."""


def silent(_step: str, _done: int, _total: int) -> None: ...


@pytest.fixture(scope="module", name="session")
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Session(temp_directory=str(tmp_path_factory.mktemp("spool"))) as session:
        yield session


def dataset(root: Path, *files: pa.Table, **writer: Any) -> Path:
    root.mkdir(exist_ok=True)
    for number, table in enumerate(files):
        pq.write_table(table, root / f"f{number:02d}.parquet", **writer)
    return root


def found(session: Session, root: Path, keys: Any = (), order_by: Any = (), **options: Any) -> Matches:
    plan = plan_deduplicate(DeduplicateIntent(tuple(keys), tuple(order_by)), ParquetTable(root).snapshot())
    return match_duplicates(
        plan, keys=tuple(keys), order_by=tuple(order_by), session=session, progress=silent, **options
    )


def by_arrow(root: Path, keys: Any = (), order_by: Any = ()) -> Matches:
    plan = plan_deduplicate(DeduplicateIntent(tuple(keys), tuple(order_by)), ParquetTable(root).snapshot())
    return arrow_duplicates(
        plan, keys=tuple(keys), order_by=tuple(order_by), threads=1, memory_bytes=1 << 30, progress=silent
    )


def shown(matches: Matches) -> Any:
    hits = {path: mine.positions.to_pylist() for path, mine in matches.hits.items()}
    return hits, matches.dropped, matches.deleted, matches.actions, matches.scanned_bytes


SCHEMA = pa.schema(
    [("k", pa.int64()), ("s", pa.string()), ("f", pa.float64()), ("g", pa.float32()), ("o", pa.float64())]
)
NUMBERS = st.none() | st.sampled_from([0.0, -0.0, *NANS, math.inf, -math.inf, 1.5, -2.5])
ROW = st.fixed_dictionaries(
    {
        "k": st.none() | st.integers(-3, 3),
        "s": st.none() | st.sampled_from(["", "a", "A", "ä", "a\x00", "a" * 40]),
        "f": NUMBERS,
        "g": st.none() | st.sampled_from([0.0, -0.0, math.nan, 1.5]),
        "o": NUMBERS,
    }
)


@given(
    files=st.lists(st.lists(ROW, max_size=12), min_size=1, max_size=5),
    keys=st.lists(st.sampled_from(["k", "s", "f", "g", "p"]), unique=True, max_size=3),
    order_by=st.lists(st.sampled_from(["o", "s", "k", "g", "p"]), unique=True, max_size=2),
    row_group_size=st.sampled_from([1, 3, 100]),
)
def test_the_same_rows_lose_as_on_arrow(
    session: Session, files: Any, keys: Any, order_by: Any, row_group_size: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for number, rows in enumerate(files):
            table = pa.Table.from_pylist(rows, SCHEMA)
            if number == 1:
                table = table.drop_columns(["s"])
            if number == 2:
                table = table.set_column(0, "k", table["k"].cast(pa.int8()))
            place = root / f"p={number % 2}"
            place.mkdir(exist_ok=True)
            pq.write_table(table, place / f"{9 - number}.parquet", row_group_size=row_group_size)
        assert shown(found(session, root, keys, order_by)) == shown(by_arrow(root, keys, order_by))


VALUES = {
    "int8": (pa.int8(), [1, 2, -1]),
    "uint64": (pa.uint64(), [1, 2**64 - 1, 2**63]),
    "bool": (pa.bool_(), [True, False]),
    "float32": (pa.float32(), [0.5, -0.5, math.nan]),
    "date": (pa.date32(), [date(2020, 1, 1), date(1960, 1, 1)]),
    "timestamp": (pa.timestamp("us", "UTC"), [datetime(2020, 1, 1), datetime(1960, 1, 1)]),
    "milliseconds": (pa.timestamp("ms"), [datetime(2020, 1, 1), datetime(1960, 1, 1)]),
    "nanoseconds": (pa.timestamp("ns"), [1, 0, -1]),
    "decimal": (pa.decimal128(10, 2), [Decimal("1.10"), Decimal("-3.00"), Decimal("2.50")]),
    "large_string": (pa.large_string(), ["a", "b", "B", ""]),
    "binary": (pa.binary(), [b"a", b"\xff", b""]),
    "fixed": (pa.binary(2), [b"aa", b"ab"]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b"]),
    "time": (pa.time64("us"), [1, 2]),
    "nanotime": (pa.time64("ns"), [1, 2]),
    # What DuckDB has no type for goes to the Arrow kernel.
    "float16": (pa.float16(), [0.5, -0.5, math.nan]),
    "decimal256": (pa.decimal256(50, 2), [Decimal("1.10"), Decimal("-3.00"), Decimal("2.50")]),
    "duration": (pa.duration("s"), [1, 2]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_every_plain_type_can_be_a_key_and_an_order(tmp_path: Path, kind: str) -> None:
    data_type, values = VALUES[kind]
    column = pa.array([*values, None] * 3, data_type)
    table = pa.table({"k": column, "n": pa.array([number % 2 for number in range(len(column))])})
    snapshot = ParquetTable(dataset(tmp_path / "d", table, table, row_group_size=3)).snapshot()
    for intent in (DeduplicateIntent(("k",)), DeduplicateIntent(("n",), ("k",)), DeduplicateIntent()):
        prepared, plan = prepare(intent, snapshot, None), plan_deduplicate(intent, snapshot)
        execution = Execution(plan, prepared, None, silent)
        matches = DuckDBEngine(threads=1, spool_dir=tmp_path).match(execution)
        assert shown(matches) == shown(ArrowEngine().match(execution))
        elsewhere = any("matched by PyArrow" in note and "'k'" in note for note in matches.notes)
        assert elsewhere == (kind in ("float16", "decimal256", "duration"))


def test_the_last_row_in_path_order_wins_and_not_the_newest_file(tmp_path: Path, session: Session) -> None:
    one = pa.table({"id": [1, 2]})
    root = dataset(tmp_path / "d", one, one)
    pq.write_table(one, root / "a.parquet")
    matches = found(session, root, ["id"])
    assert matches.dropped == {"a.parquet", "f00.parquet"}
    assert not matches.hits
    assert matches.deleted == 4


def test_files_may_be_named_in_any_order(tmp_path: Path, session: Session) -> None:
    one = pa.table({"id": [1]})
    root = dataset(tmp_path / "d", one, one, one)
    files = ParquetTable(root).snapshot().files
    assert found(session, root, ["id"], files=[files[2], files[1]]).dropped == {"f01.parquet"}


def test_an_empty_file_and_an_empty_dataset_have_no_duplicates(tmp_path: Path, session: Session) -> None:
    empty = pa.table({"id": pa.array([], pa.int64())})
    assert found(session, dataset(tmp_path / "d", empty, empty), ["id"]).deleted == 0


def test_what_cannot_be_compared_is_refused_as_on_arrow(tmp_path: Path, session: Session) -> None:
    root = dataset(tmp_path / "d", pa.table({"id": [1], "tags": [["a"]]}))
    with pytest.raises(InputError, match="'tags' is nested"):
        found(session, root)
    with pytest.raises(KeyColumnError, match="tags"):
        found(session, root, ["tags"])
    with pytest.raises(InputError, match="no order: 'tags'"):
        found(session, root, ["id"], ["tags"])
    with pytest.raises(KeyColumnError, match="'nope'"):
        found(session, root, ["nope"])
    with pytest.raises(ColumnNotFound, match="'later'"):
        found(session, root, ["id"], ["later"])


def test_the_settings_of_a_connection_do_not_decide_who_wins(tmp_path: Path) -> None:
    texts, numbers = ["a", "A", "a", "b"], pa.array([1, 2, None, None], pa.int64())
    root = dataset(tmp_path / "d", pa.table({"s": texts, "o": numbers}))
    with duckdb.connect() as connection:
        connection.execute("SET default_collation = 'NOCASE'")
        connection.execute("SET default_order = 'DESC'")
        connection.execute("SET default_null_order = 'NULLS_FIRST'")
        connection.execute("SET preserve_insertion_order = false")
        with Session(connection) as session:
            assert found(session, root, ["s"], ["o"]).hits["f00.parquet"].positions.to_pylist() == [2]
            assert found(session, root, ["s"]).hits["f00.parquet"].positions.to_pylist() == [0]


def test_a_connection_whose_collation_is_locked_is_refused() -> None:
    with duckdb.connect() as connection:
        connection.execute("SET default_collation = 'NOCASE'")
        connection.execute("SET lock_configuration = true")
        with pytest.raises(NotSupported, match="NOCASE"):
            Session(connection)


def test_keys_larger_than_memory_are_grouped_on_disk_and_leave_nothing_there(tmp_path: Path) -> None:
    rows = 1_000_000
    numbers = pa.array([(number * 7919) % (rows // 2) for number in range(rows)], pa.int64())
    texts = pa.array([f"{number % (rows // 2):0200d}" for number in range(0, rows * 7919, 7919)])
    root = dataset(tmp_path / "d", pa.table({"s": texts, "n": numbers}), row_group_size=50_000)
    spool = tmp_path / "spool"
    spool.mkdir()
    with Session(memory_bytes=LEAST_BYTES, threads=1, temp_directory=str(spool)) as session:
        matches = found(session, root, ["s"], ["n"])
    assert matches.deleted == rows // 2
    assert matches.hits["f00.parquet"].positions.equals(pa.array(range(rows // 2), pa.int64()))
    assert not list(spool.iterdir())
