"""S25: a rewritten file has the schema elements of the file it replaces, and new files have them, too."""

from __future__ import annotations

import datetime as dt
import decimal
import os
import struct
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.common.thrift import BINARY, I8, I32, LIST, STRUCT, Struct, get, read_struct, write_struct
from intarsia.core.layout import list_leaves, read_elements, split
from intarsia.errors import DamagedTable, InputError, NotSupported

N = 600
ENGINES = pytest.mark.parametrize("engine", ["arrow", "duckdb"])
Edit = Callable[[list[Struct]], None]


def _table(**columns: Any) -> pa.Table:
    times = [dt.datetime(2024, 1, 1) + dt.timedelta(seconds=n) for n in range(N)]
    return pa.table({"id": range(N), "t": times, **columns})


def _schema(path: Path | str) -> list[Any]:
    found = read_elements(pq.read_metadata(path))
    assert found is not None
    return [found.root, *found.columns.items()]


def _edited(path: Path, edit: Edit) -> None:
    """Another writer's spelling: only the footer changes."""
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    footer, _ = read_struct(data[-8 - size : -8])
    elements = get(footer, 2)[1]
    edit(elements)
    _, columns = split(elements)
    leaves = [leaf for column in columns.values() for leaf in list_leaves(column)]
    for group in get(footer, 4)[1]:
        for chunk, leaf in zip(get(group, 1)[1], leaves, strict=True):
            get(chunk, 3)[3] = (LIST, (BINARY, [part.encode() for part in leaf.path]))
            if leaf.order is None:
                get(chunk, 3).pop(12, None)
    footer.pop(5, None)
    raw = write_struct(footer)
    path.write_bytes(data[: -8 - size] + raw + len(raw).to_bytes(4, "little") + b"PAR1")


def _element(elements: list[Struct], name: str) -> Struct:
    return next(one for one in elements if get(one, 4) == name.encode())


def _logical(number: int, converted: int | None = None, inner: Struct | None = None) -> Edit:
    def edit(elements: list[Struct]) -> None:
        one = _element(elements, "c")
        one.pop(6, None)
        one[10] = (STRUCT, {number: (STRUCT, inner or {})})
        if converted is not None:
            one[6] = (I32, converted)

    return edit


def _named(**names: str) -> Edit:
    def edit(elements: list[Struct]) -> None:
        for old, new in names.items():
            _element(elements, old)[4] = (BINARY, new.encode())

    return edit


def _precision(digits: int) -> Edit:
    def edit(elements: list[Struct]) -> None:
        decimals = {1: (I32, 2), 2: (I32, digits)}
        more = {6: (I32, 5), 7: (I32, 2), 8: (I32, digits), 10: (STRUCT, {5: (STRUCT, decimals)})}
        _element(elements, "c").update(more)

    return edit


def _two_levels(elements: list[Struct]) -> None:
    at = next(number for number, one in enumerate(elements) if get(one, 4) == b"list")
    del elements[at]
    elements[at][3], elements[at][4] = (I32, 2), (BINARY, b"array")


def _with_ids(elements: list[Struct]) -> None:
    for number, one in enumerate(elements[1:]):
        one[9] = (I32, 100 + number)


def _no_change(_: list[Struct]) -> None:
    pass


CENTS = [decimal.Decimal(n - 50) / 100 for n in range(N)]
POINTS = [b"\x01\x01\x00\x00\x00" + struct.pack("<dd", n, 1) for n in range(N)]
VARIANT = pa.struct([pa.field("metadata", pa.binary(), False), pa.field("value", pa.binary(), False)])
CASES: dict[str, tuple[pa.Table, Edit, dict[str, Any]]] = {
    "plain": (_table(), _no_change, {}),
    "field ids": (_table(), _with_ids, {}),
    "root": (_table(), lambda e: e[0].update({4: (BINARY, b"spark_schema")}), {}),
    "uuid": (_table(c=pa.array([os.urandom(16) for _ in range(N)], pa.binary(16))), _logical(14), {}),
    "interval": (
        _table(c=pa.array([os.urandom(12) for _ in range(N)], pa.binary(12))),
        lambda e: _element(e, "c").update({6: (I32, 21)}),
        {},
    ),
    "enum": (_table(c=[f"x{n % 9}" for n in range(N)]), _logical(4, 4), {}),
    "json": (_table(c=[f'{{"a":{n % 9}}}' for n in range(N)]), _logical(12, 19), {}),
    "bson": (_table(c=POINTS), _logical(13, 20), {}),
    "geometry": (_table(c=POINTS), _logical(17), {}),
    "geography": (_table(c=POINTS), _logical(18), {}),
    "float16": (_table(c=pa.array([float(n % 100) for n in range(N)], pa.float16())), _no_change, {}),
    "variant": (
        _table(c=pa.array([{"metadata": b"m", "value": b"%d" % n} for n in range(N)], VARIANT)),
        _logical(16, None, {1: (I8, 1)}),
        {},
    ),
    "decimal in 16 bytes": (_table(c=pa.array(CENTS, pa.decimal128(38, 2))), _precision(10), {}),
    "decimal in INT64": (
        _table(c=pa.array(CENTS, pa.decimal128(18, 2))),
        _precision(9),
        {"store_decimal_as_integer": True},
    ),
    "decimal in INT32": (
        _table(c=pa.array(CENTS, pa.decimal128(7, 2))),
        _no_change,
        {"store_decimal_as_integer": True},
    ),
    "decimals of PyArrow": (_table(c=pa.array(CENTS, pa.decimal128(7, 2))), _no_change, {}),
    "decimal in BYTE_ARRAY": (
        _table(c=[int(value * 100).to_bytes(5, "big", signed=True) for value in CENTS]),
        _precision(10),
        {},
    ),
    "INT96": (_table(), _no_change, {"use_deprecated_int96_timestamps": True}),
    "uint32 in INT64": (_table(c=pa.array(range(N), pa.uint32())), _no_change, {"version": "1.0"}),
    "unsigned": (
        _table(c=pa.array(range(N), pa.uint32()), b=pa.array([n % 200 for n in range(N)], pa.uint8())),
        _no_change,
        {},
    ),
    "nanoseconds": (_table(c=pa.array(range(N), pa.timestamp("ns"))), _no_change, {}),
    "bag": (
        _table(c=pa.array([[n, None] if n % 3 else None for n in range(N)], pa.list_(pa.int64()))),
        _named(list="bag", element="array_element"),
        {},
    ),
    "two levels": (
        _table(
            c=pa.array(
                [[n, 1] if n % 3 else None for n in range(N)],
                pa.list_(pa.field("element", pa.int64(), False)),
            )
        ),
        _two_levels,
        {},
    ),
    "map": (
        _table(c=pa.array([[("a", n)] for n in range(N)], pa.map_(pa.string(), pa.int64()))),
        _named(key_value="map"),
        {},
    ),
    "converted types alone": (
        _table(c=pa.array(range(N), pa.timestamp("ms", "UTC"))),
        lambda e: _element(e, "c").pop(10),
        {},
    ),
    "times in UTC": (
        _table(c=pa.array([dt.time(1, 2)] * N, pa.time64("us"))),
        _no_change,
        {"write_time_adjusted_to_utc": True},
    ),
}


def _rows(root: Path) -> pa.Table:
    return it.snapshot(root).dataset().to_table()


OPERATIONS: dict[str, Callable[[Path, str], Any]] = {
    "delete": lambda root, engine: it.delete(root, "id = 7", engine=engine),
    "update": lambda root, engine: it.update(root, {"id": "id + 10000"}, "id = 8", engine=engine),
    "upsert": lambda root, engine: it.merge(_rows(root).slice(10, 3), root, on="id", engine=engine),
    "append": lambda root, engine: it.write(_rows(root).slice(0, 3), root, mode="append", engine=engine),
    "compact": lambda root, engine: it.compact(root, engine=engine),
    "optimize": lambda root, engine: it.optimize(root, by="id", engine=engine),
    "overwrite": lambda root, engine: it.write(_rows(root), root, mode="overwrite", engine=engine),
    "overwrite where": lambda root, engine: it.write(
        _rows(root).filter(pc.less(_rows(root)["id"], 50)),
        root,
        mode="overwrite",
        where="id < 50",
        engine=engine,
    ),
    "deduplicate": lambda root, engine: it.deduplicate(root, on="id", engine=engine),
}


@ENGINES
@pytest.mark.parametrize("case", CASES)
def test_s25_every_operation_keeps_the_elements(tmp_path: Path, case: str, engine: str) -> None:
    table, edit, options = CASES[case]
    root = tmp_path / "lake"
    root.mkdir()
    pq.write_table(table, root / "a.parquet", **options)
    _edited(root / "a.parquet", edit)
    before, rows = _schema(root / "a.parquet"), pq.read_table(root / "a.parquet")
    for name, operation in OPERATIONS.items():
        operation(root, engine)
        for path in root.glob("*.parquet"):
            assert _schema(path) == before, name
    moved = pc.if_else(pc.equal(rows["id"], 8), pc.add(rows["id"], 10000), rows["id"])
    kept = rows.set_column(0, "id", moved).filter(pc.not_equal(rows["id"], 7))
    expected = kept.sort_by("id")  # the rows that were appended twice are deduplicated
    found = pq.read_table(root).select(expected.column_names).sort_by("id")
    assert found.to_pylist() == expected.to_pylist()


KEY_CASES = ["uuid", "interval", "enum", "json", "bson", "geometry", "float16", "unsigned", "nanoseconds"]
KEY_CASES += ["uint32 in INT64", "converted types alone", *(case for case in CASES if "decimal" in case)]
KEY_CASES.remove("decimal in BYTE_ARRAY")  # which is made of bytes, whose bounds are not those of decimals


@ENGINES
@pytest.mark.parametrize("case", KEY_CASES)
def test_s25_odd_types_are_keys(tmp_path: Path, case: str, engine: str) -> None:
    table, edit, options = CASES[case]
    root = tmp_path / "lake"
    root.mkdir()
    table = table.filter(pc.less(table["id"], 9))
    values = table.num_rows
    table = pa.concat_tables([table, table]).set_column(0, "id", pa.array(range(2 * values)))
    for name, part in (("a", table.slice(0, values)), ("b", table.slice(values))):
        pq.write_table(part, root / f"{name}.parquet", **options)
        _edited(root / f"{name}.parquet", edit)
    before = _schema(root / "a.parquet")
    source = _rows(root).filter(pc.equal(_rows(root)["id"], 3))
    assert it.merge(source, root, on="c", strategy="update", engine=engine).updated == 2
    assert it.deduplicate(root, on="c", order_by="id", engine=engine).deleted == values
    assert it.merge(source, root, on="c", strategy="insert", engine=engine).inserted == 0
    assert all(_schema(path) == before for path in root.glob("*.parquet"))
    assert sorted(pq.read_table(root)["id"].to_pylist()) == [
        3,
        *(n + values for n in range(values) if n != 3),
    ]


@ENGINES
def test_s25_a_struct_with_fields_that_are_not_null_may_be_null(tmp_path: Path, engine: str) -> None:
    root = tmp_path / "lake"
    uuids = _uuids(KEYS[:2])
    fields = [pa.field("u", pa.uuid(), False), pa.field("v", pa.binary(), False)]
    column = pa.StructArray.from_arrays([uuids, pa.array([b"a", b"b"])], fields=fields)
    it.write(pa.table({"id": [1, 2], "c": column}), root, engine=engine)
    [path] = root.glob("*.parquet")
    before = _schema(path)
    it.update(root, {"c": "null"}, "id = 1", engine=engine)
    assert pq.ParquetFile(path).read()["c"].to_pylist() == [None, {"u": KEYS[1], "v": b"b"}]
    it.update(root, {"c": "null"}, engine=engine)
    it.optimize(root, by="id", engine=engine)
    [path] = root.glob("*.parquet")
    assert pq.ParquetFile(path).read()["c"].to_pylist() == [None, None]
    assert _schema(path) == before


DUCKDB = {
    "u": "uuid()",
    "iv": "INTERVAL '1 month 2 days 3 hours'",
    "js": "'{\"a\":1}'::JSON",
    "tns": "TIMESTAMP_NS '2020-01-01 00:00:00.123456789'",
    "ts": "'2020-01-01'::TIMESTAMP_S",
    "tm": "TIME '12:00:00'",
    "ttz": "'12:00:00+02'::TIMETZ",
    "tstz": "'2020-01-01 00:00:00+02'::TIMESTAMPTZ",
    "b": "'ab'::BLOB",
    "u8": "(i % 200)::UTINYINT",
    "u64": "i::UBIGINT",
    "d4": "i::DECIMAL(4,1)",
    "d18": "i::DECIMAL(18,2)",
    "d38": "i::DECIMAL(38,2)",
    "l": "[i, i + 1]",
    "st": "{'a': i, 'b': uuid()}",
    "m": "MAP{'a': i}",
    "lu": "[uuid()]",
    "hi": "i::HUGEINT",
}


@ENGINES
def test_s25_types_of_duckdb_stay_what_they_are(tmp_path: Path, engine: str) -> None:
    root = tmp_path / "lake"
    root.mkdir()
    made = ", ".join(f"{kind} AS {name}" for name, kind in DUCKDB.items())
    path = f"'{root}/a.parquet'"
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT i AS id, {made} FROM range(100) t(i)) TO {path}")

        def texts(where: str = "") -> Any:
            return connection.execute(
                f"SELECT columns(*)::VARCHAR FROM {path} {where} ORDER BY id"
            ).fetchall()

        def kinds() -> Any:
            return connection.execute(f"DESCRIBE FROM {path}").fetchall()

        before, rows, types = _schema(root / "a.parquet"), texts("WHERE id <> 5"), kinds()
        it.delete(root, "id = 5", engine=engine)
        it.update(root, {"u8": "u8"}, "id = 6", engine=engine)
        assert _schema(root / "a.parquet") == before
        assert (texts(), kinds()) == (rows, types)
        it.optimize(root, by=["u", "d38"], engine=engine)
        it.deduplicate(root, on=["u", "iv", "js", "tns", "u64", "hi"], engine=engine)
        [moved] = root.glob("*.parquet")
        moved.rename(root / "a.parquet")
        assert _schema(root / "a.parquet") == before
        assert (texts(), kinds()) == (rows, types)


@ENGINES
def test_s25_types_of_polars_stay_what_they_are(tmp_path: Path, engine: str) -> None:
    root = tmp_path / "lake"
    root.mkdir()
    frame = polars.DataFrame(
        {
            "id": range(50),
            "e": polars.Series(["a", "b"] * 25, dtype=polars.Enum(["a", "b"])),
            "d": polars.Series([decimal.Decimal(1)] * 50, dtype=polars.Decimal(20, 3)),
            "t": polars.Series([dt.time(1, 2)] * 50),
            "s": polars.Series([dt.timedelta(seconds=1)] * 50),
            "l": [[1, None]] * 50,
        }
    )
    frame.write_parquet(root / "a.parquet")
    before = _schema(root / "a.parquet")
    it.delete(root, "id = 5", engine=engine)
    assert _schema(root / "a.parquet") == before
    assert polars.read_parquet(root / "a.parquet").equals(frame.filter(polars.col("id") != 5))


@ENGINES
def test_s25_int96_beside_other_timestamps_stays(tmp_path: Path, engine: str) -> None:
    root = tmp_path / "lake"
    root.mkdir()
    pq.write_table(_table(), root / "old.parquet", use_deprecated_int96_timestamps=True)
    it.merge(
        _rows(root).append_column("z", pa.array([dt.datetime(2024, 1, 1)] * N)),
        root,
        on="id",
        schema_evolution="add",
        engine=engine,
    )
    kinds = {
        c.path: c.physical_type for c in map(pq.ParquetFile(root / "old.parquet").schema.column, range(3))
    }
    assert kinds["t"] == "INT96"


@ENGINES
def test_s25_files_of_one_dataset_keep_each_its_own(tmp_path: Path, engine: str) -> None:
    root = tmp_path / "lake"
    root.mkdir()
    pq.write_table(_table(c=pa.array(CENTS, pa.decimal128(7, 2))), root / "a.parquet")
    other = _table(c=pa.array(CENTS, pa.decimal128(7, 2)))
    other = other.set_column(0, "id", pc.add(other["id"], N))
    pq.write_table(other, root / "b.parquet", store_decimal_as_integer=True)
    before = [_schema(root / name) for name in ("a.parquet", "b.parquet")]
    it.delete(root, f"id in (3, {N + 3})", engine=engine)
    assert [_schema(root / name) for name in ("a.parquet", "b.parquet")] == before


def test_s25_a_column_that_cannot_be_kept_is_copied_or_refused(tmp_path: Path) -> None:
    """Decimals of any length within a list are nothing that PyArrow writes."""
    root = tmp_path / "lake"
    root.mkdir()
    cents = [[int(value * 100).to_bytes(5, "big", signed=True)] for value in CENTS]
    pq.write_table(_table(c=cents), root / "a.parquet", row_group_size=N // 2)

    def as_decimals(elements: list[Struct]) -> None:
        more = {1: (I32, 2), 2: (I32, 10)}
        _element(elements, "element").update(
            {6: (I32, 5), 7: (I32, 2), 8: (I32, 10), 10: (STRUCT, {5: (STRUCT, more)})}
        )

    _edited(root / "a.parquet", as_decimals)
    before, rows = _schema(root / "a.parquet"), pq.read_table(root / "a.parquet").to_pylist()
    it.update(root, {"t": "timestamp '2020-01-01'"}, "id = 3", engine="arrow")
    assert _schema(root / "a.parquet") == before
    found = pq.read_table(root / "a.parquet").to_pylist()
    assert [row["c"] for row in found] == [row["c"] for row in rows]
    content = (root / "a.parquet").read_bytes()
    with pytest.raises(NotSupported, match="'c' cannot be written as the file that is there stores it"):
        it.delete(root, "id = 3", engine="arrow")
    assert (root / "a.parquet").read_bytes() == content


def test_s25_a_file_stored_otherwise_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from intarsia.kernel import rewrite

    root = tmp_path / "lake"
    root.mkdir()
    pq.write_table(_table(c=pa.array([os.urandom(16) for _ in range(N)], pa.binary(16))), root / "a.parquet")
    _edited(root / "a.parquet", _logical(14))
    content = (root / "a.parquet").read_bytes()
    layout = rewrite._choose_layout
    monkeypatch.setattr(rewrite, "_choose_layout", lambda *given: rewrite.replace(layout(*given), like=()))
    with pytest.raises(DamagedTable, match="stores 'c' otherwise"):
        it.delete(root, "id = 3", engine="arrow")
    assert (root / "a.parquet").read_bytes() == content


def test_s25_bounds_that_mean_nothing_are_left_out(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    root.mkdir()
    table = _table(c=pa.array([os.urandom(12) for _ in range(N)], pa.binary(12)))
    pq.write_table(table, root / "a.parquet", write_page_index=True)
    _edited(root / "a.parquet", lambda e: _element(e, "c").update({6: (I32, 21)}))
    it.delete(root, "id = 7", engine="arrow")
    group = pq.read_metadata(root / "a.parquet").row_group(0)
    assert (group.column(0).has_column_index, group.column(2).has_column_index) == (True, False)
    assert group.column(0).statistics.has_min_max
    assert not group.column(2).statistics.has_min_max


KEYS = [uuid.UUID(int=(n * 7919 + 1) << 90) for n in range(5)]
NEW = uuid.UUID(int=12345)


def _uuids(values: list[uuid.UUID]) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array([one.bytes for one in values], pa.binary(16)))


@ENGINES
@pytest.mark.parametrize("noted", [True, False], ids=["arrow schema", "no note"])
def test_s25_uuids_are_found_by_text(tmp_path: Path, engine: str, noted: bool) -> None:
    root = tmp_path / "lake"
    root.mkdir()
    pq.write_table(pa.table({"id": range(5), "u": _uuids(KEYS)}), root / "a.parquet", store_schema=noted)
    assert it.delete(root, f"u = '{KEYS[1]}'", engine=engine).deleted == 1
    assert it.delete(root, f"u = uuid '{KEYS[2]}'", engine=engine).deleted == 1
    assert it.delete(root, f"u in ('{str(KEYS[3]).upper()}', '{NEW}')", engine=engine).deleted == 1
    assert it.update(root, {"u": f"'{NEW}'"}, "id = 0", engine=engine).updated == 1
    assert it.update(root, {"id": "7"}, f"u = cast('{NEW}' as uuid)", engine=engine).updated == 1
    source = pa.table({"id": [8, 9], "u": _uuids([NEW, KEYS[2]])})
    done = it.merge(source, root, on="u", engine=engine)
    assert (done.updated, done.inserted) == (1, 1)
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT id FROM '{root}/*.parquet' WHERE u = '{NEW}'").fetchall()
        kinds = connection.execute(f"SELECT DISTINCT typeof(u) FROM '{root}/*.parquet'").fetchall()
    assert (found, kinds) == ([(8,)], [("UUID",)])
    if noted:
        with pytest.raises(InputError, match="'nonsense' is no UUID"):
            it.delete(root, "u = 'nonsense'", engine=engine)
