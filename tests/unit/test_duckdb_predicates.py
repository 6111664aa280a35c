from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.arguments import parse_where
from intarsia.core.change import Matches
from intarsia.core.expr import (
    And,
    Arithmetic,
    Column,
    Compare,
    Expr,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    find_columns,
    make_literal,
    resolve,
)
from intarsia.core.intent import DeleteIntent, UpdateIntent, WriteOptions
from intarsia.core.planning import plan_predicate
from intarsia.core.ports import Execution, Progress
from intarsia.core.prepare import prepare
from intarsia.engines.arrow import ArrowEngine
from intarsia.errors import InputError, IntarsiaError, SchemaMismatch
from intarsia.tables.parquet import ParquetTable

duckdb = pytest.importorskip("duckdb")

from intarsia.engines.duckdb import DuckDBEngine, predicate  # noqa: E402
from intarsia.engines.duckdb.predicate import compile_condition, split_predicate  # noqa: E402

TEXTS = ["", "a", "A", "ä", "'", '"', "%_\\", "a\nb", "\x00", "a\x00b", "𝄞", "x" * 70, "x" * 70 + "y", ";--"]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int64(), [-(2**63), -1, 0, 1, 7, 2**63 - 1]),
    "j": (pa.int64(), [-1, 0, 1, 7]),
    "u": (pa.uint64(), [0, 1, 2**63, 2**64 - 1]),
    "n": (pa.int8(), [-128, 0, 127]),
    "b": (pa.bool_(), [True, False]),
    "c": (pa.bool_(), [True, False]),
    "d": (pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)]),
    "t": (pa.timestamp("us"), [datetime(1, 1, 1), datetime(2024, 2, 29, 1, 2, 3, 4), datetime(1969, 12, 31)]),
    "tm": (pa.timestamp("ms"), [datetime(1960, 1, 1), datetime(2024, 2, 29, 1, 2, 3, 4000)]),
    "tn": (pa.timestamp("ns"), [0, 1, -1, 1_700_000_000_123_456_789]),
    "tz": (pa.timestamp("us", "Europe/Berlin"), [datetime(2024, 2, 29, tzinfo=UTC), datetime(1960, 1, 1)]),
    "h": (pa.time64("us"), [time(0), time(23, 59, 59, 999_999), time(12, 30)]),
    "hm": (pa.time32("ms"), [time(0), time(12, 30, 0, 1000)]),
    "hn": (pa.time64("ns"), [0, 1, 86_399_999_999_999]),
    "m": (pa.decimal128(20, 3), [Decimal("-1.001"), Decimal("0.000"), Decimal("99999999999999999.999")]),
    "big": (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(1 - 10**38), Decimal(0)]),
    "s": (pa.string(), TEXTS),
    "r": (pa.string(), TEXTS),
    "l": (pa.large_string(), TEXTS),
    "e": (pa.dictionary(pa.int32(), pa.string()), ["a", "b", ""]),
    "x": (pa.binary(), [b"", b"\x00", b"\xff'", b"a" * 70]),
    "y": (pa.binary(2), [b"ab", b"\x00\xff"]),
    "f": (pa.float64(), [0.0, -0.0, math.nan, 1.5, -math.inf]),
    "g": (pa.float32(), [0.0, -0.0, math.nan, 1.5]),
}
FLOATS = ("f", "g")
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])
COMPARED = ["=", "<>", "<", "<=", ">", ">="]
TWINS = {"i": "j", "b": "c", "s": "r", "r": "s", "j": "i", "c": "b"}


def silent(_step: str, _done: int, _total: int) -> None: ...


@pytest.fixture(scope="module", name="connection")
def _connection() -> Iterator[Any]:
    connection = duckdb.connect()
    yield connection
    connection.close()


def constant(column: str, value: Any) -> Literal:
    kind = VALUES[column][0]
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return make_literal(pa.scalar(value, plain))


@st.composite
def comparisons(draw: Any) -> Expr:
    name = draw(st.sampled_from(sorted(VALUES)))
    value = st.none() | st.sampled_from(VALUES[name][1])
    column = Column((name,))
    which = draw(st.integers(0, 5))
    if which == 0:
        return IsNull(column)
    if which == 1:
        items = draw(st.lists(value, max_size=3))
        return In(column, tuple(constant(name, each) for each in items), draw(st.booleans()))
    if which == 2 and name in TWINS:
        return Compare(draw(st.sampled_from(COMPARED)), column, Column((TWINS[name],)))
    if which == 3 and VALUES[name][0] == pa.bool_():
        return column
    return Compare(draw(st.sampled_from(COMPARED)), column, constant(name, draw(value)))


@st.composite
def others(draw: Any) -> Expr:
    """What DuckDB is not given: it fails for some rows, or has another meaning there."""
    return draw(
        st.sampled_from(
            [
                Compare(">", Arithmetic("/", make_literal(1.0), Column(("j",))), make_literal(0.0)),
                Compare("=", Arithmetic("+", Column(("i",)), make_literal(1)), make_literal(0)),
                Like(Column(("s",)), make_literal("a%")),
                Compare("<", Column(("n",)), Column(("j",))),
            ]
        )
    )


CONDITIONS = st.recursive(
    comparisons() | others(),
    lambda inner: st.builds(And, inner, inner) | st.builds(Or, inner, inner) | st.builds(Not, inner),
    max_leaves=6,
)
COMPILED = st.recursive(
    comparisons().filter(lambda each: not {path[0] for _, path in find_columns(each)} & set(FLOATS)),
    lambda inner: st.builds(And, inner, inner) | st.builds(Or, inner, inner) | st.builds(Not, inner),
    max_leaves=6,
)
ROWS = st.lists(
    st.fixed_dictionaries({n: st.none() | st.sampled_from(values) for n, (_, values) in VALUES.items()}),
    max_size=10,
)


def planned(root: Path, where: Any, *, progress: Progress = silent, **options: Any) -> Execution:
    snapshot = ParquetTable(root).snapshot()
    prepared = prepare(DeleteIntent(where, **options), snapshot, None)
    assert isinstance(prepared.intent, DeleteIntent)
    return Execution(plan_predicate(prepared.intent, snapshot), prepared, None, progress)


def outcome(engine: Any, root: Path, where: Any) -> Any:
    """What goes, or what is said."""
    try:
        matches = engine.match(planned(root, where))
    except IntarsiaError as error:
        return type(error), str(error)
    return shown(matches)


def shown(matches: Matches) -> Any:
    hits = {path: mine.positions.to_pylist() for path, mine in matches.hits.items()}
    return hits, matches.dropped, matches.deleted, matches.updated, matches.actions, matches.scanned_bytes


def written(root: Path, files: list[list[dict[str, Any]]], row_group_size: int) -> Path:
    """Files that differ: one lacks a column, one has a narrower one, and some lie in partitions."""
    for number, rows in enumerate(files):
        table = pa.Table.from_pylist(rows, SCHEMA)
        if number == 1:
            table = table.drop_columns(["s", "m"])
        if number == 2:
            small = pa.array(
                [None if value is None else max(min(value, 9), -9) for value in table["i"].to_pylist()]
            )
            table = table.set_column(0, "i", small.cast(pa.int32()))
        place = root / ("p=__HIVE_DEFAULT_PARTITION__" if number == 0 else f"p={number}")
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, place / f"f[{number}]*.parquet", row_group_size=row_group_size)
    return root


@given(
    files=st.lists(ROWS, min_size=1, max_size=4),
    where=CONDITIONS,
    place=st.none() | st.sampled_from(["=", "<>", "<"]),
    row_group_size=st.sampled_from([1, 3, 100]),
)
def test_the_same_rows_are_hit_and_the_same_errors_said_as_by_arrow(
    connection: Any, files: Any, where: Any, place: Any, row_group_size: int
) -> None:
    if place is not None:
        where = And(Compare(place, Column(("p",)), make_literal(2)), where)
    with tempfile.TemporaryDirectory() as directory:
        root = written(Path(directory), files, row_group_size)
        expected = outcome(ArrowEngine(threads=1), root, where)
        assert outcome(DuckDBEngine(connection), root, where) == expected


@given(rows=ROWS, where=COMPILED)
def test_what_is_compiled_means_the_same_in_duckdb(connection: Any, rows: Any, where: Any) -> None:
    """Without plan, pruning and evaluation beside it: the bare condition on one file."""
    resolved = resolve(where, SCHEMA, expect=pa.bool_())
    sql = compile_condition(resolved, SCHEMA)
    if sql is None:  # a text with a zero byte, or a constant that was folded away
        return
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), root / "one.parquet")
        expected = outcome(ArrowEngine(threads=1), root, where)
        found = connection.execute(
            f"SELECT file_row_number FROM read_parquet('{root}/one.parquet') WHERE {sql} ORDER BY 1"
        ).fetchall()
        assert len(found) == expected[2]


@pytest.mark.parametrize(
    "where",
    [
        "i between 1 and 7",
        "i in (1, 2, null) and not (d < '2024-01-01' or s is null)",
        "b and not c",
        "s = 'it''s' or x = 'a' or t >= '2024-01-01 00:00:00.5'",
        "tz < '2024-01-01' and h > '12:00:00' and m <= 1.5 and u > 3",
        "i = j and s <> r",
        "i = 2.5",
        "y = 'ab' and hn >= '00:00:00.000000001' and tn < '2024-01-01' and tm > '2020-01-01'",
    ],
)
def test_plain_conditions_are_left_to_duckdb_as_a_whole(where: str) -> None:
    resolved = resolve(parse_where(where, None), SCHEMA, expect=pa.bool_())
    picked, rest = split_predicate(resolved, SCHEMA)
    assert picked is not None
    assert rest is None


@pytest.mark.parametrize("where", ["f > 1", "g = 1", "n < j", "i + 1 > 2", "lower(s) = 'a'", "s like 'a%'"])
def test_what_computes_converts_or_may_be_nan_is_not_left_to_duckdb(where: str) -> None:
    resolved = resolve(parse_where(where, None), SCHEMA, expect=pa.bool_())
    assert compile_condition(resolved, SCHEMA) is None
    assert split_predicate(resolved, SCHEMA) == (None, resolved)


def test_parts_that_cannot_fail_are_picked_by_first_and_only_the_others_are_evaluated() -> None:
    resolved = resolve(parse_where("i > 1 and f > 2 and s is null", None), SCHEMA, expect=pa.bool_())
    picked, rest = split_predicate(resolved, SCHEMA)
    assert picked == """("i" > CAST('1' AS BIGINT)) AND ("s" IS NULL)"""
    assert {path for _, path in find_columns(rest)} == {("f",)}


def test_before_a_part_that_can_fail_only_rows_that_it_never_sees_are_left_out() -> None:
    resolved = resolve(parse_where("i > 1 and 1 / j > 0 and b", None), SCHEMA, expect=pa.bool_())
    picked, rest = split_predicate(resolved, SCHEMA)
    assert picked == """(("i" > CAST('1' AS BIGINT)) IS DISTINCT FROM FALSE)"""
    assert rest == resolved


@pytest.mark.parametrize(
    ("where", "fails"),
    [
        ("j <> 0 and 1 / j > 0", False),
        ("1 / j > 0 and j <> 0", True),
        ("i > 5 and 1 / j > 0", True),  # i is NULL where j is zero, so the division is still asked for
        ("b and 1 / j > 0", False),
    ],
)
def test_a_division_fails_where_it_does_on_arrow(
    tmp_path: Path, connection: Any, where: str, fails: bool
) -> None:
    table = pa.table({"i": pa.array([None, 9], pa.int64()), "j": [0, 1], "b": [False, True]})
    pq.write_table(table, tmp_path / "a.parquet")
    found = outcome(DuckDBEngine(connection), tmp_path, parse_where(where, None))
    assert found == outcome(ArrowEngine(), tmp_path, parse_where(where, None))
    assert (found[0] is InputError) == fails


def test_row_groups_that_bounds_exclude_are_not_evaluated(tmp_path: Path, connection: Any) -> None:
    table = pa.table({"i": [1, 2, 8, 9], "j": [0, 0, 1, 1]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    where = parse_where("1 / j > 0 and i > 5", None)
    matches = DuckDBEngine(connection).match(planned(tmp_path, where))
    assert matches.hits["a.parquet"].positions.to_pylist() == [2, 3]


@pytest.mark.parametrize(
    "where",
    [
        pc.field("i") > 1,
        pc.field("f") == 1.5,
        (pc.field("s") == "ä") | pc.field("b"),
        pc.is_null(pc.field("p")),
        pc.field("nope") > 1,
        pc.field("i") + 1,
        pc.field("s") > 1,
        pc.field("e") == "a",
        pc.field("tz") > pa.scalar(datetime(2000, 1, 1, tzinfo=UTC)),
    ],
    ids=str,
)
def test_pyarrow_expressions_have_their_own_meaning(tmp_path: Path, connection: Any, where: Any) -> None:
    rows = [{n: values[k % len(values)] for n, (_, values) in VALUES.items()} for k in range(5)]
    root = written(tmp_path / "d", [rows, rows, rows, []], 2)
    assert outcome(DuckDBEngine(connection), root, where) == outcome(ArrowEngine(), root, where)


def test_bounds_that_leave_nan_out_hide_no_row(tmp_path: Path, connection: Any) -> None:
    pq.write_table(pa.table({"f": [1.0, math.nan], "i": [1, 2]}), tmp_path / "a.parquet")
    where = parse_where("f > 5 and i > 0", None)
    matches = DuckDBEngine(connection).match(planned(tmp_path, where))
    assert matches.hits["a.parquet"].positions.to_pylist() == [1]


def test_an_update_without_a_condition_hits_every_row(tmp_path: Path, connection: Any) -> None:
    for number in range(3):
        pq.write_table(
            pa.table({"i": list(range(number))}, pa.schema([("i", pa.int64())])),
            tmp_path / f"{number}.parquet",
        )
    snapshot = ParquetTable(tmp_path).snapshot()
    prepared = prepare(UpdateIntent(((("i",), make_literal(1)),)), snapshot, None)
    plan = plan_predicate(prepared.intent, snapshot)  # type: ignore[arg-type]
    execution = Execution(plan, prepared, None, silent)
    matches = DuckDBEngine(connection).match(execution)
    assert shown(matches) == shown(ArrowEngine().match(execution))
    assert matches.updated == 3


def test_many_files_are_read_some_at_a_time_and_told_of(
    tmp_path: Path, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicate, "FILES_AT_ONCE", 2)
    for number in range(5):
        pq.write_table(pa.table({"i": [number, 10 + number, 5]}), tmp_path / f"{number}.parquet")
    told: list[tuple[str, int, int]] = []
    where = parse_where("i < 8", None)
    execution = planned(tmp_path, where, progress=lambda *step: told.append(step))
    matches = DuckDBEngine(connection).match(execution)
    assert {path: hits.positions.to_pylist() for path, hits in matches.hits.items()} == {
        f"{number}.parquet": [0, 2] for number in range(5)
    }
    assert told == [("scan rows", 2, 5), ("scan rows", 4, 5), ("scan rows", 5, 5)]


def test_order_is_kept_on_a_connection_that_keeps_none(tmp_path: Path) -> None:
    numbers = pa.array(range(300_000), pa.int64())
    table = pa.table({"i": numbers, "f": numbers.cast(pa.float64())})
    for number in range(3):
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=20_000)
    with duckdb.connect(config={"preserve_insertion_order": "false"}) as connection:
        for where in ("i >= 1000", "f >= 1000.0", "i >= 500 and f >= 1000.0"):
            matches = DuckDBEngine(connection).match(planned(tmp_path, parse_where(where, None)))
            for hits in matches.hits.values():
                assert hits.positions.equals(pa.array(range(1000, 300_000), pa.int64()))


def test_a_collation_of_the_connection_does_not_decide_which_texts_are_equal(tmp_path: Path) -> None:
    pq.write_table(pa.table({"s": ["a", "A", "b"]}), tmp_path / "a.parquet")
    with duckdb.connect() as connection:
        connection.execute("SET default_collation = 'NOCASE'")
        matches = DuckDBEngine(connection).match(planned(tmp_path, parse_where("s = 'a'", None)))
        assert matches.hits["a.parquet"].positions.to_pylist() == [0]
        assert connection.execute("SELECT 'a' = 'A'").fetchall() == [(True,)]


def test_types_that_duckdb_lacks_are_matched_by_pyarrow_and_the_plan_says_so(
    tmp_path: Path, connection: Any
) -> None:
    table = pa.table({"d": pa.array([1, 2], pa.duration("s")), "i": [1, 2]})
    pq.write_table(table, tmp_path / "a.parquet")
    where = pc.field("i") > 1
    matches = DuckDBEngine(connection).match(planned(tmp_path, where))
    assert matches.deleted == 1
    assert any("matched by PyArrow" in note and "'d' (duration[s])" in note for note in matches.notes)
    only_i = DuckDBEngine(connection).match(planned(tmp_path, parse_where("i > 1", None)))
    assert not any("matched by PyArrow" in note for note in only_i.notes)


def test_a_file_that_contradicts_its_directory_is_refused(tmp_path: Path, connection: Any) -> None:
    place = tmp_path / "p=1"
    place.mkdir()
    pq.write_table(pa.table({"i": [1, 2], "p": [1, 1]}), place / "a.parquet")
    where = parse_where("p = 1 and i > 1", None)
    agreed = DuckDBEngine(connection).match(planned(tmp_path, where))
    assert agreed.hits["p=1/a.parquet"].positions.to_pylist() == [1]
    pq.write_table(pa.table({"i": [1, 2], "p": [1, 2]}), place / "a.parquet")
    with pytest.raises(SchemaMismatch, match="other values than the partition directory"):
        DuckDBEngine(connection).match(planned(tmp_path, where))


def test_deep_and_long_conditions_stay_within_what_duckdb_takes(tmp_path: Path, connection: Any) -> None:
    pq.write_table(pa.table({"i": list(range(50))}), tmp_path / "a.parquet")
    long: Expr = Compare("=", Column(("i",)), make_literal(-1))
    deep: Expr = Compare("=", Column(("i",)), make_literal(3))
    for number in range(220):
        long = Or(long, Compare("=", Column(("i",)), make_literal(2 * number)))
        deep = Not(deep)
    for where in (long, deep, In(Column(("i",)), tuple(make_literal(n) for n in range(0, 20_000, 7)))):
        assert outcome(DuckDBEngine(connection), tmp_path, where) == outcome(ArrowEngine(), tmp_path, where)


def test_small_batches_give_the_same(tmp_path: Path, connection: Any) -> None:
    pq.write_table(pa.table({"f": [float(n % 7) for n in range(5000)]}), tmp_path / "a.parquet")
    execution = planned(tmp_path, parse_where("f > 5", None), options=WriteOptions(batch_rows=100))
    matches = DuckDBEngine(connection).match(execution)
    assert matches.hits["a.parquet"].positions.to_pylist() == [n for n in range(5000) if n % 7 == 6]
