"""S25: notes of files (key-value metadata) stay true where rows change, come, go, or files become one."""

from __future__ import annotations

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
from intarsia.core.spark_note import SPARK_SCHEMA
from intarsia.errors import SchemaMismatch

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
