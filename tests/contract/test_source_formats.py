"""Files as sources: every format and compression on every engine, and what is said of a bad value."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.errors import ColumnNotFound, DamagedTable, InputError, SchemaMismatch

ROWS = pa.table(
    {"id": pa.array([1, 2, 3], pa.int64()), "n": ["a\u00e4", "b, c", None], "v": [1.5, 2.5, None]}
)


def _csv(path: Path, delimiter: str = ",") -> bytes:
    pacsv.write_csv(ROWS, path, pacsv.WriteOptions(delimiter=delimiter))
    return path.read_bytes()


def _lines() -> bytes:
    return "".join(json.dumps(row) + "\n" for row in ROWS.to_pylist()).encode()


def _zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(data)
    return sink.getvalue().to_pybytes()


PACK: dict[str, Any] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": _zstd,
}


def make(path: Path) -> Path:
    """A file with the rows, in the format that its name says."""
    plain = path.with_name("plain")
    pack = PACK.get(path.suffix, bytes)
    if ".csv" in path.suffixes:
        path.write_bytes(pack(_csv(plain)))
    elif ".tsv" in path.suffixes:
        path.write_bytes(pack(_csv(plain, "\t")))
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, ROWS.schema) as writer:
            writer.write_table(ROWS, max_chunksize=2)
    elif path.suffix == ".ipc":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, ROWS.schema) as writer:
            writer.write_table(ROWS, max_chunksize=2)
    elif path.suffix == ".feather":
        feather.write_feather(ROWS, str(path), compression="zstd")
    else:
        path.write_bytes(pack(_lines()))
    plain.unlink(missing_ok=True)
    return path


NAMES = [
    *("s.csv", "s.tsv", "s.csv.gz", "s.csv.bz2", "s.csv.xz", "s.csv.zst", "s.tsv.gz", "s.tsv.xz"),
    *("s.json", "s.jsonl", "s.ndjson", "s.ndjson.gz", "s.jsonl.zst", "s.json.xz"),
    *("s.arrow", "s.ipc", "s.feather"),
]


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_every_format_is_a_source(tmp_path: Path, name: str, engine: Any) -> None:
    file = make(tmp_path / name)
    root = tmp_path / "t"
    it.write(ROWS.slice(0, 1), root)
    result = it.merge(file, root, on="id", engine=engine)
    assert (result.updated, result.inserted) == (1, 2)
    assert it.read(root).read_all().sort_by("id").to_pylist() == ROWS.to_pylist()


@pytest.mark.spark
def test_files_of_every_format_are_sources_on_spark(tmp_path: Path, spark: Any) -> None:
    for name in ("s.tsv.gz", "s.ndjson.xz", "s.arrow", "s.feather"):
        root = tmp_path / f"t-{name}"
        it.write(ROWS.slice(0, 1), root)
        it.merge(make(tmp_path / name), root, on="id", engine=spark)
        assert it.read(root).read_all().sort_by("id").to_pylist() == ROWS.to_pylist()


def test_a_directory_of_arrow_files_is_a_source(tmp_path: Path) -> None:
    (tmp_path / "in" / "day=1").mkdir(parents=True)
    make(tmp_path / "in" / "day=1" / "a.arrow")
    make(tmp_path / "in" / "day=1" / "b.feather")
    assert it.write(tmp_path / "in", tmp_path / "t").inserted == 6
    assert set(it.read(tmp_path / "t").read_all()["day"].to_pylist()) == {1}


def test_a_damaged_arrow_file_is_named(tmp_path: Path) -> None:
    file = make(tmp_path / "s.arrow")
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(DamagedTable, match=r"s\.arrow"):
        it.write(file, tmp_path / "t")
    (tmp_path / "old.feather").write_bytes(b"FEA1" + b"\0" * 40)
    with pytest.raises(DamagedTable, match="first version"):
        it.write(tmp_path / "old.feather", tmp_path / "t")


TARGET = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("price", pa.float64()), ("n", pa.string())])
LINES = ["id,day,price,n", "1,2024-01-01,1.5,007", "", '2,2024-01-02,2.5,"x\ny"', "3,2024-01-03,3.5,008"]


@pytest.fixture
def typed(tmp_path: Path) -> Path:
    it.write(
        pa.table({"id": [9], "day": [None], "price": [None], "n": [None]}, schema=TARGET), tmp_path / "t"
    )
    return tmp_path / "t"


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("4,2024-01-04,oops,009", "'oops' is no double, in line 7"),
        ("4,2024-13-04,1.0,009", "'2024-13-04' is no date32"),
    ],
)
def test_a_bad_value_is_told_with_its_line_and_no_good_column(
    tmp_path: Path, typed: Path, line: str, said: str, engine: Any
) -> None:
    (tmp_path / "s.csv").write_text("\n".join([*LINES, line, "5,2024-01-05,5.5,010"]))
    with pytest.raises(SchemaMismatch, match=said) as caught:
        it.merge(tmp_path / "s.csv", typed, on="id", engine=engine)
    assert "'n'" not in str(caught.value)
    assert "1 column does not fit" in str(caught.value)
    assert "line 7" in str(caught.value)


def test_a_row_of_other_length_is_told_with_its_line(tmp_path: Path, typed: Path) -> None:
    (tmp_path / "s.csv").write_text("\n".join([*LINES, "4,2024-01-04"]))
    with pytest.raises(DamagedTable, match=r"s\.csv .* line 7: Expected 4 columns, got 2"):
        it.merge(tmp_path / "s.csv", typed, on="id")


def test_dates_in_json_get_the_type_of_the_target(tmp_path: Path, typed: Path) -> None:
    row = {"id": 1, "day": "2024-01-01", "price": 1, "n": "007"}
    (tmp_path / "s.json").write_text(json.dumps(row))
    assert it.merge(tmp_path / "s.json", typed, on="id").inserted == 1
    (tmp_path / "s.json").write_text(json.dumps(row | {"day": "2024-15-01"}))
    with pytest.raises(SchemaMismatch, match=r"'day'.*2024-15-01"):
        it.merge(tmp_path / "s.json", typed, on="id")


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_columns_declare_the_types_of_text(tmp_path: Path, engine: Any) -> None:
    (tmp_path / "s.csv").write_text("\n".join(LINES))
    columns = {"price": "decimal(10, 2)", "n": pa.string(), "id": "int"}
    it.write(tmp_path / "s.csv", tmp_path / "t", columns=columns, engine=engine)
    found = it.read(tmp_path / "t").read_all()
    assert found.schema.field("price").type == pa.decimal128(10, 2)
    assert found.schema.field("id").type == pa.int32()
    assert found.schema.field("day").type == pa.date32()
    assert sorted(found["n"].to_pylist()) == ["007", "008", "x\ny"]
    assert not any(field.metadata for field in pq.read_schema(next((tmp_path / "t").glob("*.parquet"))))


def test_columns_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    file.write_text("\n".join(LINES))
    with pytest.raises(SchemaMismatch, match=r"'n' .*'x\\ny' is no int64, in line 4"):
        it.write(file, tmp_path / "t", columns={"n": "bigint"})
    with pytest.raises(ColumnNotFound, match="nope"):
        it.write(file, tmp_path / "t", columns={"nope": "bigint"})
    with pytest.raises(InputError, match="no path"):
        it.write(ROWS, tmp_path / "t", columns={"id": "bigint"})
    with pytest.raises(InputError, match="dict of names"):
        it.write(file, tmp_path / "t", columns=["id"])
    pq.write_table(ROWS, tmp_path / "s.parquet")
    with pytest.raises(InputError, match="has its own"):
        it.write(tmp_path / "s.parquet", tmp_path / "t", columns={"id": "bigint"})
    assert not (tmp_path / "t").exists()
