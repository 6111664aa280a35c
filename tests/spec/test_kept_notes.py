"""S25: notes of files (key-value metadata) stay true where rows change, come, go, or files become one."""

from __future__ import annotations

import datetime as dt
import json
import struct
from pathlib import Path
from typing import Any

import duckdb
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.core.key_value_metadata import is_legacy
from intarsia.core.spark_metadata import SPARK_SCHEMA
from intarsia.errors import NotSupported, SchemaMismatch

ENGINES = pytest.mark.parametrize("engine", ["arrow", "duckdb"])


def _point(x: float, y: float) -> bytes:
    return b"\x01\x01\x00\x00\x00" + struct.pack("<dd", x, y)


def _geo(box: list[float], *, kinds: tuple[str, ...] = ("Point",), **more: Any) -> bytes:
    column = {"encoding": "WKB", "geometry_types": list(kinds), "bbox": box, **more}
    return json.dumps({"version": "1.1.0", "primary_column": "g", "columns": {"g": column}}).encode()


def _points(ids: list[int], at: float = 0) -> pa.Table:
    return pa.table({"id": ids, "g": [_point(at + n, at + n) for n in range(len(ids))], "n": [0] * len(ids)})


def _lake(tmp_path: Path, *notes: dict[bytes, bytes]) -> Path:
    """Files of two rows each, with these notes."""
    root = tmp_path / "lake"
    root.mkdir()
    for number, each in enumerate(notes):
        table = _points([2 * number, 2 * number + 1], 10.0 * number)
        pq.write_table(table.replace_schema_metadata(each), root / f"{number}.parquet")
    return root


def _notes(path: Path) -> dict[bytes, bytes]:
    return pq.read_metadata(path).metadata or {}


def _extent(path: Path) -> tuple[Any, Any]:
    column = json.loads(_notes(path)[b"geo"])["columns"]["g"]
    return column.get("bbox"), column["geometry_types"]


def _new(root: Path, *old: str) -> Path:
    [found] = [path for path in root.glob("*.parquet") if path.name not in old]
    return found


@ENGINES
def test_s25_an_extent_that_new_rows_leave_is_not_told(tmp_path: Path, engine: str) -> None:
    root = _lake(tmp_path, {b"geo": _geo([0, 0, 1, 1])})
    it.update(root, {"n": "n + 1"}, "id = 0", engine=engine)
    assert _extent(root / "0.parquet") == ([0, 0, 1, 1], ["Point"])
    it.merge(_points([0, 9], 50), root, on="id", engine=engine)
    assert _extent(root / "0.parquet") == (None, [])
    inserted = _new(root, "0.parquet")
    assert _extent(inserted) == (None, [])
    it.write(_points([10], 70), root, mode="append", engine=engine)
    assert _extent(_new(root, "0.parquet", inserted.name)) == (None, [])
    with duckdb.connect() as connection:
        kinds = connection.execute(f"SELECT DISTINCT typeof(g) FROM '{root}/*.parquet'").fetchall()
    assert [kind.split("(")[0] for (kind,) in kinds] == ["GEOMETRY"]


@ENGINES
@pytest.mark.parametrize("operation", ["compact", "optimize"])
def test_s25_files_that_become_one_have_the_extent_of_all(
    tmp_path: Path, engine: str, operation: str
) -> None:
    root = _lake(tmp_path, {b"geo": _geo([0, 0, 1, 1])}, {b"geo": _geo([10, 10, 11, 11], kinds=("Polygon",))})
    if operation == "compact":
        it.compact(root, engine=engine)
    else:
        it.optimize(root, by="id", engine=engine)
    assert _extent(_new(root)) == ([0, 0, 11, 11], ["Point", "Polygon"])


@pytest.mark.parametrize(
    "other",
    [{b"geo": _geo([170, 0, -170, 1])}, {b"geo": _geo([0, 0, 0, 1, 1, 1])}, {}],
    ids=["line", "z", "none"],
)
def test_s25_an_extent_that_one_file_does_not_tell_is_told_of_none(
    tmp_path: Path, other: dict[bytes, bytes]
) -> None:
    root = _lake(tmp_path, {b"geo": _geo([0, 0, 1, 1])}, other)
    it.compact(root, engine="arrow")
    assert _extent(_new(root))[0] is None


def test_s25_geometries_of_other_coordinates_do_not_come_together(tmp_path: Path) -> None:
    mercator = {"id": {"authority": "EPSG", "code": 3857}}
    root = _lake(tmp_path, {b"geo": _geo([0, 0, 1, 1])}, {b"geo": _geo([0, 0, 1, 1], crs=mercator)})
    with pytest.raises(SchemaMismatch, match="different notes 'geo'"):
        it.compact(root, engine="arrow", dry_run=True)
    source = _points([7]).replace_schema_metadata({b"geo": _geo([0, 0, 1, 1], crs=mercator)})
    (root / "1.parquet").unlink()
    with pytest.raises(SchemaMismatch, match="in EPSG:3857 in the source, and in OGC:CRS84 in the target"):
        it.merge(source, root, on="id", engine="arrow")


@ENGINES
def test_s25_a_range_index_of_pandas_goes_with_its_rows(tmp_path: Path, engine: str) -> None:
    root = tmp_path / "lake"
    root.mkdir()
    frame = pandas.DataFrame({"id": range(4), "v": pandas.array([1, 2, 3, 4], dtype="Int32")})
    frame.index = pandas.RangeIndex(100, 104)
    frame.to_parquet(root / "a.parquet")
    it.update(root, {"v": "v + 1"}, "id = 3", engine=engine)
    assert list(pandas.read_parquet(root / "a.parquet").index) == [100, 101, 102, 103]
    it.optimize(root, by="v", engine=engine)
    [path] = root.glob("*.parquet")
    assert json.loads(_notes(path)[b"pandas"])["index_columns"] == []
    source = pa.table({"id": [0], "v": [1 << 40]})
    it.merge(source, root, on="id", schema_evolution="widen", engine=engine)
    assert sorted(pandas.read_parquet(root)["v"]) == [2, 3, 5, 1 << 40]


@ENGINES
def test_s25_notes_that_tell_of_rows_go_and_those_all_agree_on_stay(tmp_path: Path, engine: str) -> None:
    shared = {b"owner": b"us", b"hoodie_max_record_key": b"3", b"iceberg.schema": b"{}"}
    root = _lake(tmp_path, {**shared, b"rows": b"1"}, {**shared, b"rows": b"2"}, {})
    it.update(root, {"n": "1"}, "id = 0", engine=engine)
    kept = _notes(root / "0.parquet")
    assert (kept[b"owner"], kept[b"rows"], kept[b"iceberg.schema"]) == (b"us", b"1", b"{}")
    assert b"hoodie_max_record_key" not in kept
    it.write(_points([20]), root, engine=engine)
    it.compact(root, engine=engine)
    kept = _notes(_new(root))
    assert kept[b"owner"] == b"us"
    assert not {b"rows", b"hoodie_max_record_key"} & kept.keys()
    more = _points([20]).append_column("z", pa.array([1]))
    it.merge(more, root, on="id", schema_evolution="add", missing="keep", engine=engine)
    assert b"iceberg.schema" not in _notes(_new(root))


INTERVAL = {"name": "i", "type": "interval day to second", "nullable": True, "metadata": {}}
ID = {"name": "id", "type": "long", "nullable": True, "metadata": {"comment": "the key"}}


def _spark_note(*fields: Any) -> dict[bytes, bytes]:
    return {SPARK_SCHEMA: json.dumps({"type": "struct", "fields": fields}).encode()}


def _spark_types(path: Path) -> dict[str, Any]:
    return {field["name"]: field for field in json.loads(_notes(path)[SPARK_SCHEMA])["fields"]}


@ENGINES
@pytest.mark.parametrize("operation", ["compact", "append"])
def test_s25_what_any_file_notes_for_spark_is_noted_of_the_new_one(
    tmp_path: Path, engine: str, operation: str
) -> None:
    root = tmp_path / "lake"
    root.mkdir()
    first = pa.table({"id": [1]}).replace_schema_metadata(_spark_note(ID))
    second = pa.table({"id": [2], "i": [5]}).replace_schema_metadata(_spark_note(ID, INTERVAL))
    pq.write_table(first, root / "a.parquet")
    pq.write_table(second, root / "b.parquet")
    if operation == "compact":
        it.compact(root, engine=engine)
    else:
        it.write(pa.table({"id": [3], "i": [6]}), root, engine=engine)
    assert _spark_types(_new(root, "a.parquet", "b.parquet")) == {"id": ID, "i": INTERVAL}


@ENGINES
def test_s25_the_note_for_spark_follows_columns_that_change(tmp_path: Path, engine: str) -> None:
    root = tmp_path / "lake"
    root.mkdir()
    kind = pa.struct([("i", pa.int64())])
    noted = {"name": "s", "type": {"type": "struct", "fields": [INTERVAL]}, "nullable": True, "metadata": {}}
    table = pa.table({"id": pa.array([1], pa.int32()), "s": pa.array([{"i": 1}], kind)})
    small = {**ID, "type": "integer"}
    pq.write_table(table.replace_schema_metadata(_spark_note(small, noted)), root / "a.parquet")
    source = pa.table({"id": [1 << 40], "s": [{"i": 1}], "u": pa.array([1], pa.uint32())})
    it.merge(source, root, on="id", schema_evolution=["add", "widen"], engine=engine)
    found = _spark_types(_new(root, "a.parquet"))
    assert (found["id"], found["s"], found["u"]["type"]) == (ID, noted, "long")


def _ancient(root: Path, name: str, days: int, notes: dict[bytes, bytes]) -> None:
    table = pa.table({"id": [1], "d": pa.array([days], pa.date32())})
    pq.write_table(table.replace_schema_metadata(notes), root / name)


@pytest.mark.parametrize(("days", "refused"), [(-200_000, True), (0, False)], ids=["ancient", "modern"])
def test_s25_dates_of_two_calendars_do_not_come_together(tmp_path: Path, days: int, refused: bool) -> None:
    root = tmp_path / "lake"
    root.mkdir()
    _ancient(root, "a.parquet", days, {b"org.apache.spark.version": b"2.4.8"})
    _ancient(root, "b.parquet", days, {b"org.apache.spark.version": b"4.1.0"})
    if refused:
        with pytest.raises(SchemaMismatch, match=r"1 of 2 files .* calendar of Spark 2"):
            it.compact(root, engine="arrow")
    else:
        it.compact(root, engine="arrow")
        assert _notes(_new(root))[b"org.apache.spark.version"] == b"4.1.0"


ANCIENT = dt.date(1500, 1, 1)
OLD_FILES = [
    {b"org.apache.spark.version": b"2.4.8"},
    {b"org.apache.spark.version": b"3.5.1", b"org.apache.spark.legacyDateTime": b""},
]


def _of_spark_2(root: Path, notes: dict[bytes, bytes]) -> None:
    root.mkdir()
    table = pa.table(
        {
            "id": [1, 2, 3],
            "d": pa.array([dt.date(1400, 1, 1), dt.date(2000, 1, 1), None]),
            "at": pa.array([None, 0, -(10**16)], pa.timestamp("us")),
            "s": ["a", "b", "c"],
        }
    )
    pq.write_table(table.replace_schema_metadata(notes), root / "a.parquet")


def _with_moments(kind: pa.DataType, *years: int) -> pa.Table:
    moments = [dt.datetime(year, 1, 1) for year in years]
    at, dates = pa.array(moments, kind), pa.array([dt.date(2020, 1, 1)] * len(years))
    return pa.table({"id": list(range(1, len(years) + 1)), "d": dates, "at": at, "s": ["z"] * len(years)})


@pytest.mark.parametrize("measured", [None, 0], ids=["measured", "not measured"])
@pytest.mark.parametrize("notes", OLD_FILES, ids=["version", "note"])
@ENGINES
def test_s25_new_dates_that_spark_would_shift_are_refused(
    tmp_path: Path, engine: str, notes: dict[bytes, bytes], measured: int | None
) -> None:
    root = tmp_path / "lake"
    _of_spark_2(root, notes)
    rows = pq.read_table(root).to_pylist()
    source = pa.table(
        {"id": [2, 9], "d": [ANCIENT] * 2, "at": pa.array([0, 0], pa.timestamp("us")), "s": ["z"] * 2}
    )
    old = _with_moments(pa.timestamp("us"), 2000, 1850)
    for dry in ({"dry_run": True, **({} if measured is None else {"measured_bytes": 0})}, {}):
        how: dict[str, Any] = {"engine": engine, **dry}
        with pytest.raises(NotSupported, match=r"1 new value of column 'd', such as 1500-01-01.*a\.parquet"):
            it.merge(source, root, on="id", **how)
        with pytest.raises(NotSupported, match=r"column 'at', such as 1850.* before 1900"):
            it.merge(old, root, on="id", **how)
        with pytest.raises(NotSupported, match="column 'd'"):
            it.update(root, {"d": "DATE '1582-10-14'"}, "id = 2", **how)
    assert [path.name for path in root.glob("*.parquet")] == ["a.parquet"]
    assert pq.read_table(root).to_pylist() == rows


@pytest.mark.parametrize("notes", OLD_FILES, ids=["version", "note"])
@ENGINES
def test_s25_old_dates_stay_beside_new_ones_that_no_calendar_shifts(
    tmp_path: Path, engine: str, notes: dict[bytes, bytes]
) -> None:
    root = tmp_path / "lake"
    _of_spark_2(root, notes)
    it.update(root, {"s": "'x'"}, "id = 1", engine=engine)  # the old date itself stays as it is stored
    it.update(root, {"d": "DATE '1582-10-15'"}, "id = 2", engine=engine)
    new = pa.table({"id": [9], "d": [ANCIENT], "at": pa.array([0], pa.timestamp("us")), "s": ["n"]})
    it.merge(new, root, on="id", engine=engine)  # into a file of its own, without the notes
    it.delete(root, "id = 3", engine=engine)
    found = {row["id"]: (row["d"], row["s"]) for row in pq.read_table(root).to_pylist()}
    assert found == {
        1: (dt.date(1400, 1, 1), "x"),
        2: (dt.date(1582, 10, 15), "b"),
        9: (ANCIENT, "n"),
    }
    for path in root.glob("*.parquet"):
        ids, kept = pq.read_table(path)["id"].to_pylist(), _notes(path)
        assert is_legacy(kept) == (9 not in ids)


@ENGINES
def test_s25_dates_beside_int96_keep_their_calendar(tmp_path: Path, engine: str) -> None:
    root = tmp_path / "lake"
    root.mkdir()
    table = pa.table(
        {"id": [1, 2], "d": [dt.date(1400, 1, 1), None], "at": pa.array([0, 1], pa.timestamp("us"))}
    )
    notes = {b"org.apache.spark.version": b"2.4.8", b"org.apache.spark.sql.parquet.row.metadata": b"{}"}
    with pq.ParquetWriter(
        root / "a.parquet", table.schema, use_deprecated_int96_timestamps=True, store_schema=False
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(notes)
    it.delete(root, "id = 2", engine=engine)
    (path,) = root.glob("*.parquet")
    assert is_legacy(_notes(path))  # Spark goes on to shift the date
    assert pq.read_table(path)["d"].to_pylist() == [dt.date(1400, 1, 1)]
    ancient = pa.table({"id": [1], "at": pa.array([-(10**16)], pa.timestamp("us", "UTC"))})
    it.merge(ancient, root, on="id", missing="keep", engine=engine)  # of INT96 nothing is shifted any more
    with pytest.raises(NotSupported, match="column 'd'"):
        it.update(root, {"d": "DATE '1500-01-01'"}, "id = 1", engine=engine)
