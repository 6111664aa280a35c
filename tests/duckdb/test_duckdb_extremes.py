"""Values, NOT NULL and dictionaries at the edge of what DuckDB holds come through as on PyArrow."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.errors import KeyColumnError, SchemaMismatch

LATE = 10**16
"""Milliseconds since 1970; microseconds would not fit."""

TIMES = pa.table(
    {
        "id": [1, 2, 3, 4],
        "t": pa.array([0, LATE, -LATE, None], pa.timestamp("ms")),
        "n": [10, 20, 30, 40],
        "l": pa.array([[LATE], [0], [], None], pa.list_(pa.timestamp("ms"))),
    }
)
ROWS = pa.table({"id": [2, 9], "t": pa.array([5, -LATE], pa.timestamp("ms")), "n": [21, 90],
                 "l": pa.array([[1], [LATE]], pa.list_(pa.timestamp("ms")))})  # fmt: skip

OPERATIONS = {
    "upsert": lambda root, **k: it.merge(ROWS, root, on="id", **k),
    "upsert by time": lambda root, **k: it.merge(ROWS, root, on="t", null_keys="match", **k),
    "full_merge": lambda root, **k: it.merge(ROWS, root, on="id", strategy="full_merge", **k),
    "delete": lambda root, **k: it.delete(root, "n = 20", **k),
    "delete by time": lambda root, **k: it.delete(root, "t is null", **k),
    "update": lambda root, **k: it.update(root, {"n": "n + 1"}, "id > 1", **k),
    "compact": lambda root, **k: it.compact(root, **k),
    "optimize": lambda root, **k: it.optimize(root, by="n", **k),
    "optimize by time": lambda root, **k: it.optimize(root, by="t", **k),
    "deduplicate": lambda root, **k: it.deduplicate(root, on="t", order_by="id", **k),
    "write": lambda root, **k: it.write(ROWS, root, **k),
}


def _numbers(root):
    """The rows, times as numbers: Python has no dates that late."""
    tables = [pq.ParquetFile(file).read() for file in sorted(root.rglob("*.parquet"))]
    plain = pa.schema([("id", pa.int64()), ("t", pa.int64()), ("n", pa.int64()), ("l", pa.list_(pa.int64()))])
    found = [row for table in tables for row in table.cast(plain).to_pylist()]
    return sorted(found, key=lambda row: row["id"])


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("statistics", [True, False])
def test_times_beyond_microseconds_stay_what_they_are(tmp_path, make_dataset, operation, statistics):
    roots = [
        make_dataset(tmp_path / engine, TIMES, files=2, write_statistics=statistics)
        for engine in ("duckdb", "arrow")
    ]
    for root in roots:
        OPERATIONS[operation](root, engine=root.name)
    assert _numbers(roots[0]) == _numbers(roots[1])


def test_a_source_of_times_beyond_microseconds_meets_files_without_any(tmp_path, make_dataset):
    root = make_dataset(tmp_path / "t", TIMES.slice(0, 1).drop_columns("l"))
    for unit in ("ms", "s"):
        late = pa.array([0, LATE], pa.timestamp("ms")).cast(pa.timestamp(unit))
        source = pa.table({"id": [1, 2], "t": late, "n": [11, 22]})
        plan = it.plan("merge", source, root, on="t", engine="duckdb")
        assert (plan.updated, plan.inserted) == (1, 1)


def test_rows_with_times_beyond_microseconds_are_read(tmp_path, make_dataset):
    from intarsia.datasets.duckdb import DuckDBDatasetIO

    root = make_dataset(tmp_path / "t", TIMES)
    assert DuckDBDatasetIO().read_parquet(str(root)).equals(TIMES)


def test_a_file_without_columns_which_duckdb_refuses_holds_no_rows(tmp_path, make_dataset, rows):
    table = pa.table({"id": [1, 2, 3, 4], "n": [10, 20, 30, 40]})
    root = make_dataset(tmp_path / "t", table)
    pq.write_table(pa.table({}), root / "none.parquet")
    clauses = [it.when_not_matched_by_source("target.n < 20").delete()]
    it.merge(table.slice(1, 1), root, on="id", clauses=clauses, engine="duckdb")
    it.delete(root, "n is null or n = 40", engine="duckdb")
    it.optimize(root, by="n", engine="duckdb")
    assert rows(root) == table.slice(1, 2).to_pylist()


STRICT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("s", pa.string(), nullable=False),
        pa.field("l", pa.list_(pa.int64())),
        pa.field("x", pa.float64()),
    ]
)
STRICTER = pa.schema(
    [
        *STRICT,
        pa.field("m", pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False),
        pa.field("r", pa.struct([pa.field("a", pa.int64(), nullable=False)])),
    ]
)


def _strict(schema, ids):
    columns = {"id": ids, "s": [f"s{n}" for n in ids], "l": [[n] for n in ids], "x": [None for n in ids],
               "m": [[n] for n in ids], "r": [{"a": n} for n in ids]}  # fmt: skip
    return pa.table({name: pa.array(columns[name], schema.field(name).type) for name in schema.names},
                    schema=schema)  # fmt: skip


def _required(fields):
    """Per field whether it is NOT NULL, and the same of what is in it."""
    return [(not field.nullable, _required([field.type.field(n) for n in range(field.type.num_fields)]))
            for field in fields]  # fmt: skip


CHANGES = {
    "upsert": lambda root, rows, **k: it.merge(rows, root, on="id", **k),
    "full_merge": lambda root, rows, **k: it.merge(rows, root, on="id", strategy="full_merge", **k),
    "delete": lambda root, rows, **k: it.delete(root, "id = 1", **k),
    "update": lambda root, rows, **k: it.update(root, {"s": "'new'"}, "id = 1", **k),
    "compact": lambda root, rows, **k: it.compact(root, **k),
    "optimize": lambda root, rows, **k: it.optimize(root, by="s", **k),
    "optimize into parts": lambda root, rows, **k: it.optimize(root, by="s", target_rows_per_file=30, **k),
    "optimize along a curve": lambda root, rows, **k: it.optimize(root, by=["id", "s"], **k),
    "deduplicate": lambda root, rows, **k: it.deduplicate(root, on="x", order_by="id", **k),
    "append": lambda root, rows, **k: it.write(rows, root, **k),
}


@pytest.mark.parametrize("operation", CHANGES)
@pytest.mark.parametrize("schema", [STRICT, STRICTER], ids=["flat", "nested"])
@pytest.mark.parametrize("statistics", [True, False])
def test_not_null_stays_in_every_file(tmp_path, make_dataset, operation, schema, statistics):
    root = make_dataset(tmp_path / "t", _strict(schema, range(100)), files=3, write_statistics=statistics)
    CHANGES[operation](root, _strict(schema, [1, 200]), engine="duckdb")
    for file in root.rglob("*.parquet"):
        assert _required(pq.ParquetFile(file).schema.to_arrow_schema()) == _required(schema), file.name


POINT = pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])
OPTIONAL = pa.table(
    {
        "id": range(4),
        "s": [f"s{n}" for n in range(4)],
        "x": [None, 1.0, 2.0, None],
        "p": pa.array([None, {"a": 1, "b": "x"}, {"a": 2, "b": None}, None], POINT),
        "l": pa.array([[None, {"a": 1}], [], None, [None]], pa.list_(POINT)),
        "m": pa.array([[("k", None)], None, [("k", {"a": 1})], []], pa.map_(pa.string(), POINT)),
        "o": pa.array([None, {"p": None}, {"p": {"a": 1}}, None], pa.struct([("p", POINT)])),
    }
)
"""Structs that are NULL where they are not, whose fields are NOT NULL."""
ON_STRUCTS = {
    **CHANGES,
    "delete by a struct": lambda root, rows, **k: it.delete(root, "p is null and l is not null", **k),
    "merge on a condition": lambda root, rows, **k: it.merge(
        rows, root, on="target.id = source.id and (target.p is null or target.p.a = source.p.a)", **k
    ),
}


@pytest.mark.parametrize("operation", ON_STRUCTS)
def test_null_structs_with_fields_that_are_not_null_change_as_on_arrow(
    tmp_path, make_dataset, rows, operation
):
    found = {}
    for engine in ("arrow", "duckdb"):
        root = make_dataset(tmp_path / engine, OPTIONAL, files=2)
        ON_STRUCTS[operation](root, OPTIONAL.slice(1, 2), engine=engine)
        for file in root.rglob("*.parquet"):
            assert _required(pq.read_schema(file)) == _required(OPTIONAL.schema), file.name
        found[engine] = rows(root), _fields(root)
    assert found["duckdb"] == found["arrow"]


def test_null_structs_with_fields_that_are_not_null_are_read(tmp_path, make_dataset):
    from intarsia.datasets.duckdb import DuckDBDatasetIO

    root = make_dataset(tmp_path / "t", OPTIONAL)
    assert DuckDBDatasetIO().read_parquet(str(root)).equals(OPTIONAL)


@pytest.mark.parametrize("operation", sorted(set(CHANGES) - {"deduplicate"}))
def test_files_of_duckdb_change_as_on_arrow(tmp_path, rows, operation):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        for number in range(2):
            some = f"SELECT range AS id, 's' || range AS s FROM range({number * 50}, {number * 50 + 50})"
            duckdb.execute(f"COPY ({some}) TO '{tmp_path}/{name}/{number}.parquet'")
    source = pa.table({"id": [1, 200], "s": ["new", "more"]})
    CHANGES[operation](tmp_path / "here", source, engine="arrow")
    CHANGES[operation](tmp_path / "there", source, engine="duckdb")
    assert rows(tmp_path / "there") == rows(tmp_path / "here")
    assert _fields(tmp_path / "there") == _fields(tmp_path / "here")


def _fields(root):
    return {str(pq.read_schema(file).remove_metadata()) for file in root.rglob("*.parquet")}


@pytest.mark.parametrize("strategy", ["upsert", "insert"])
def test_null_for_a_column_that_is_not_null_is_refused(tmp_path, make_dataset, unchanged, strategy):
    root = make_dataset(tmp_path / "t", _strict(STRICT, range(10)))
    source = _strict(STRICT, [1, 50]).set_column(1, "s", pa.nulls(2, pa.string()))
    with unchanged(root), pytest.raises(SchemaMismatch, match="'s'"):
        it.merge(source, root, on="id", strategy=strategy, engine="duckdb")


NARROW = pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize("operation", ["upsert", "append", "compact", "optimize", "delete"])
def test_dictionaries_with_narrow_numbers_stay_readable(tmp_path, make_dataset, operation):
    texts = [f"text {number:03d}" for number in range(300)]

    def rows(low, high):
        return pa.table({"id": range(low, high), "s": range(low, high),
                         "d": pa.array(texts[low:high]).cast(NARROW)})  # fmt: skip

    root = make_dataset(tmp_path / "t", rows(0, 100))
    it.write(rows(100, 200), root, engine="arrow")
    source = rows(150, 270) if operation != "append" else rows(200, 300)
    done = {
        "upsert": lambda: it.merge(source, root, on="id", engine="duckdb"),
        "append": lambda: it.write(source, root, engine="duckdb"),
        "compact": lambda: it.compact(root, engine="duckdb"),
        "optimize": lambda: it.optimize(root, by="id", engine="duckdb"),
        "delete": lambda: it.delete(root, "id = 199", engine="duckdb"),
    }[operation]()
    expected = {"upsert": 270, "append": 300, "delete": 199}.get(operation, 200)
    assert done.total == expected
    found = []
    for file in root.rglob("*.parquet"):
        table = pq.ParquetFile(file).read()
        assert table.schema.field("d").type == NARROW
        found += table["d"].cast(pa.string()).to_pylist()
    assert sorted(found) == texts[:expected]


@pytest.mark.parametrize("strategy", ["upsert", "insert", "full_merge", "deduplicate"])
def test_keys_that_duckdb_knows_but_cannot_read_in_a_file_are_matched_by_pyarrow(tmp_path, rows, strategy):
    kind = pa.timestamp("ns")
    source = pa.table({"k": pa.array([2, 9], pa.timestamp("ns", "UTC")), "v": [20, 90]})
    found = {}
    for engine in ("arrow", "duckdb"):
        root = tmp_path / engine
        root.mkdir()
        table = pa.table({"k": pa.array([1, 2, 3], kind), "v": [1, 2, 3]})
        pq.write_table(table, root / "a.parquet", use_deprecated_int96_timestamps=True)
        result = it.merge(source, root, on="k", strategy=strategy, engine=engine)
        found[engine] = dict(result), rows(root)
    assert found["duckdb"] == found["arrow"]
    reason = "INT96" if duckdb.__version__ >= "2" else "has no type"  # 1.5 has none of nanoseconds in a zone
    assert any("matched by PyArrow" in note and reason in note for note in result.notes)


def test_a_key_that_stands_twice_is_refused_whoever_matches(tmp_path, unchanged):
    kind = pa.timestamp("ns")
    table = pa.table({"k": pa.array([1], kind), "v": [1]})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    source = pa.table({"k": pa.array([9, 9], pa.timestamp("ns", "UTC")), "v": [0, 1]})
    with unchanged(tmp_path), pytest.raises(KeyColumnError, match="1 duplicate key in k"):
        it.merge(source, tmp_path, on="k", engine="duckdb")
