"""Queries over targets: engines read files by themselves where that is exact, and of one state."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia import pipeline
from intarsia.core.snapshot import Snapshot
from intarsia.errors import DamagedTable, InputError, NotSupported
from intarsia.kernel.read import SnapshotScan
from intarsia.pipeline import Source, Target, Write
from intarsia.tables.parquet import ParquetTable

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "f": pa.array([1.0, math.nan, -0.0, None], pa.float64()),
        "name": pa.array(["a", None, "ü", ""], pa.string()),
        "price": pa.array([Decimal("1.10"), Decimal("-2.00"), None, Decimal("3.00")], pa.decimal128(10, 2)),
        "at": pa.array([datetime(1500, 1, 1, tzinfo=UTC)] * 4, pa.timestamp("us", "UTC")),
        "naive": pa.array([datetime(2025, 1, 1, 1)] * 4, pa.timestamp("us")),
        "small": pa.array([1, 2, 3, 4], pa.int16()),
        "blob": pa.array([b"x", None, b"", b"\xff"], pa.binary()),
        "born": pa.array([date(1400, 2, 3)] * 4, pa.date32()),
        "fine": pa.array([1000, 2000, 3000, 4000], pa.timestamp("ns")),
        "wide": pa.array([1, 2, 3, 2**63], pa.uint64()),
        "tags": pa.array([["a"], [], None, ["b", None]], pa.list_(pa.string())),
        "day": pa.array([date(2025, 3, 1), date(2025, 3, 1), date(2025, 3, 2), None], pa.date32()),
        "word": pa.array(["x", "y z", "é", None], pa.string()),
    }
)
PLAIN = [name for name in ROWS.column_names if name not in ("fine", "wide", "tags")]


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request: pytest.FixtureRequest) -> str:
    pytest.importorskip("duckdb" if request.param == "duckdb" else "pyspark")
    return str(request.param)


@pytest.fixture
def session(engine: str, request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("spark") if engine == "spark" else None


def _query(root: Path, engine: str, session: Any, source: Source, **targets: Target) -> list[dict[str, Any]]:
    made = pipeline.Pipeline(
        name="p",
        engine=engine,  # type: ignore[arg-type]
        sources={"asked": source},
        targets={"result": Target(str(root / "result")), **targets},
        steps=(Write(name="result", source="asked", target="result", mode="overwrite"),),
        reports=str(root / "reports"),
    )
    pipeline.run(made, session=session, progress=False).check()
    return _sorted(it.read(root / "result").read_all())


def _sorted(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=str)


def test_every_type_is_what_it_is_in_the_files(tmp_path: Path, engine: str, session: Any) -> None:
    it.write(ROWS, tmp_path / "t", partition_by=["day", "word"], engine="arrow")
    whole = Target(str(tmp_path / "t"))
    found = _query(tmp_path, engine, session, Source(sql="select * from t"), t=whole)
    names = ROWS.column_names
    if engine == "spark":  # which has microseconds and no unsigned numbers
        names = PLAIN
        found = [{name: row[name] for name in names} for row in found]
    assert str(sorted(found, key=str)) == str(_sorted(ROWS.select(names)))


@pytest.mark.parametrize("condition", ["f > 5", "f = 'NaN'", "not f <= 5", "f >= 0 and f < 1", "f is null"])
def test_a_filter_on_floats_finds_nan_that_bounds_leave_out(
    tmp_path: Path, engine: str, session: Any, condition: str
) -> None:
    it.write(ROWS.select(["id", "f"]), tmp_path / "t", engine="arrow")
    text = condition.replace("'NaN'", "cast('NaN' as double)")
    found = _query(
        tmp_path, engine, session, Source(sql=f"select id from t where {text}"), t=Target(str(tmp_path / "t"))
    )
    right = {"f >= 0 and f < 1": [3], "f is null": [4]}.get(condition, [2])
    assert [row["id"] for row in found] == right


def test_files_of_other_schemas_and_of_types_that_engines_lack_are_read_together(
    tmp_path: Path, engine: str, session: Any
) -> None:
    it.write(pa.table({"id": pa.array([1], pa.int64())}), tmp_path / "t", engine="arrow")
    pq.write_table(pa.table({"id": pa.array([2], pa.int32()), "v": [2.5]}), tmp_path / "t" / "other.parquet")
    pq.write_table(
        pa.table({"id": pa.array([3], pa.int64()), "v": [3.5], "n": ["x"]}), tmp_path / "t" / "third.parquet"
    )
    found = _query(
        tmp_path, engine, session, Source(sql="select id, v, n from t"), t=Target(str(tmp_path / "t"))
    )
    assert [tuple(row.values()) for row in found] == [(1, None, None), (2, 2.5, None), (3, 3.5, "x")]


def test_a_damaged_page_is_no_mistake_of_the_query(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    it.write(pa.table({"id": list(range(1000))}), tmp_path / "t", engine="arrow")
    (file,) = (tmp_path / "t").glob("*.parquet")
    chunk = pq.read_metadata(file).row_group(0).column(0)
    data = bytearray(file.read_bytes())
    data[(chunk.dictionary_page_offset or chunk.data_page_offset) + 60] ^= 255
    file.write_bytes(data)
    with pytest.raises(DamagedTable, match=r"^Cannot read part-[^:]*: could not verify"):
        _query(tmp_path, "duckdb", None, Source(sql="select * from t"), t=Target(str(tmp_path / "t")))


def test_an_iceberg_table_with_deletes_and_another_schema_is_read_as_it_is(
    tmp_path: Path, engine: str, session: Any
) -> None:
    pytest.importorskip("pyiceberg")
    from pyiceberg.types import StringType

    from intarsia.tables.iceberg.catalog import embedded_catalog

    catalog = embedded_catalog(tmp_path / "warehouse")
    catalog.create_namespace("db")
    catalog.create_table("db.t", ROWS.select(["id", "name", "small"]).schema)
    table = it.iceberg("db.t", catalog=catalog, mode="merge-on-read")
    few = ROWS.select(["id", "name", "small"])
    it.write(few, table, engine="arrow")
    it.delete(table, "id = 2", engine="arrow")
    with catalog.load_table("db.t").update_schema() as update:
        update.rename_column("name", "title")
    with catalog.load_table("db.t").update_schema() as update:
        update.add_column("name", StringType())
    late = pa.table({"id": [9], "title": ["late"], "small": pa.array([9], pa.int32()), "name": ["new"]})
    it.write(late, it.iceberg("db.t", catalog=catalog), engine="arrow")
    target = Target("db.t", kind="iceberg", catalog=str(tmp_path / "warehouse"))
    found = _query(tmp_path, engine, session, Source(sql="select id, title, name from t"), t=target)
    assert [tuple(row.values()) for row in found] == [
        (1, "a", None),
        (3, "ü", None),
        (4, "", None),
        (9, "late", "new"),
    ]


CHANGE = """
import intarsia as it
import pyarrow as pa

def asked({session}t):
    it.write(pa.table({{"id": [7]}}), {path!r}, mode="overwrite", engine="arrow")
    return t
"""


@pytest.mark.spark
def test_a_commit_while_a_step_reads_changes_nothing_of_what_it_reads(tmp_path: Path, spark: Any) -> None:
    it.write(pa.table({"id": [1, 2]}), tmp_path / "t", engine="arrow")
    code = tmp_path / "change.py"
    code.write_text(CHANGE.format(session="spark, ", path=str(tmp_path / "t")))
    source = Source(python=f"{code}:asked")
    found = _query(tmp_path, "spark", spark, source, t=Target(str(tmp_path / "t")))
    assert [row["id"] for row in found] == [1, 2]
    assert not list((tmp_path / ".t.intarsia").glob("snap/*"))


@pytest.mark.spark
def test_spark_reads_the_columns_that_are_asked_for_by_itself(tmp_path: Path, spark: Any) -> None:
    from intarsia.frames import make_frame

    it.write(ROWS, tmp_path / "t", partition_by="day", engine="arrow")
    with ParquetTable(tmp_path / "t").materialise() as linked:
        state: Snapshot = linked.snapshot
        frame = make_frame(spark, SnapshotScan(state, (*PLAIN,)))
        plan = frame.where("id = 1 and day = date '2025-03-01'").select("name")._jdf.queryExecution()
        said = plan.executedPlan().toString()
        assert "MapInArrow" not in said
        assert "ReadSchema: struct<id:bigint,name:string>" in said
        assert "EqualTo(id,1)" in said
        mixed = make_frame(spark, SnapshotScan(state, ("id", "fine")))
        assert "MapInArrow" in mixed._jdf.queryExecution().executedPlan().toString()
        assert mixed.count() == 4
    # Without links a file may be replaced at any time, so that tasks read and check it.
    checked = make_frame(spark, SnapshotScan(ParquetTable(tmp_path / "t").snapshot(), ("id",)))
    assert "MapInArrow" in checked._jdf.queryExecution().executedPlan().toString()


# Files of other tools


def test_days_begin_in_utc_whatever_the_zone_of_the_machine(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    late = pa.array([datetime(2025, 3, 1, 20, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"id": [1], "seen": late}), tmp_path / "landing.parquet")
    (tmp_path / "days.toml").write_text(
        "name = 'days'\nengine = 'duckdb'\n"
        "[sources.landing]\npath = 'landing.parquet'\n"
        "[sources.days]\n"
        "sql = 'select id, seen, cast(seen as date) as day, seen::varchar as said from landing'\n"
        "[targets.result]\npath = 'result'\n"
        "[[steps]]\noperation = 'write'\nsource = 'days'\ntarget = 'result'\nmode = 'overwrite'\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "intarsia", "run", "days.toml"],
        cwd=tmp_path,
        env={**os.environ, "TZ": "Asia/Kolkata"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = it.read(tmp_path / "result").read_all()
    assert found.schema.field("seen").type == pa.timestamp("us", "UTC")
    assert found["day"].to_pylist() == [date(2025, 3, 1)]
    assert found["said"].to_pylist() == ["2025-03-01 20:00:00+00"]


ODD = {
    "half": pa.array([1.5, None], pa.float16()),
    "halves": pa.array([[1.5], None], pa.list_(pa.float16())),
    "wait": pa.array([-1_500_000, None], pa.duration("us")),
    "slow": pa.array([-1, None], pa.duration("s")),
    "quick": pa.array([5000, None], pa.duration("ns")),
    "wide": pa.array([Decimal("1.10"), None], pa.decimal256(20, 2)),
    "key": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef", None], pa.binary(16))),
    "word": pa.array(["a", None]).dictionary_encode(),
    "view": pa.array(["a", None], pa.string_view()),
    "none": pa.nulls(2),
    "fine": pa.array([-1, None], pa.timestamp("ns", "America/New_York")),
    "time": pa.array([1, None], pa.time64("ns")),
    "big": pa.array([2**64 - 1, None], pa.uint64()),
}


@pytest.mark.parametrize("own", [True, False], ids=["linked", "of others alone"])
@pytest.mark.parametrize("name", list(ODD))
def test_duckdb_gives_odd_types_of_other_tools_as_read_does(tmp_path: Path, name: str, own: bool) -> None:
    pytest.importorskip("duckdb")
    rows = pa.table({"id": [1, 2], "v": ODD[name]})
    if own:
        it.write(rows.slice(0, 0), tmp_path / "t", engine="arrow")
    (tmp_path / "t").mkdir(exist_ok=True)
    pq.write_table(rows, tmp_path / "t" / "theirs.parquet")
    right = it.read(tmp_path / "t").read_all()
    _query(tmp_path, "duckdb", None, Source(sql="select * from t"), t=Target(str(tmp_path / "t")))
    found = it.read(tmp_path / "result").read_all()
    assert found.cast(right.schema).equals(right)
    assert pa.types.is_duration(right["v"].type) == pa.types.is_duration(found["v"].type)
    assert (right["v"].type == pa.uuid()) == (found["v"].type == pa.uuid())


def test_durations_that_duckdb_would_cut_and_decimals_it_lacks_are_refused_by_column(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    (tmp_path / "t").mkdir()
    rows = {
        "id": [1],
        "wait": pa.array([1], pa.duration("ns")),
        "wide": pa.array([Decimal(1)], pa.decimal256(50, 2)),
    }
    pq.write_table(pa.table(rows), tmp_path / "t" / "theirs.parquet")
    target = Target(str(tmp_path / "t"))
    with pytest.raises(InputError, match=r"'t' has the column 'wait' of type duration\[ns\].*: 1\."):
        _query(tmp_path, "duckdb", None, Source(sql="select id, wait from t"), t=target)
    with pytest.raises(NotSupported, match=r"'t' has the column 'wide' of type decimal256\(50, 2\)"):
        _query(tmp_path, "duckdb", None, Source(sql="select id, wide from t"), t=target)
    assert not (tmp_path / "result").exists()
    assert _query(tmp_path, "duckdb", None, Source(sql="select id from t"), t=target) == [{"id": 1}]


def test_a_difference_of_times_is_a_duration_and_months_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    it.write(ROWS.select(["id", "naive"]), tmp_path / "t", engine="arrow")
    target = Target(str(tmp_path / "t"))
    far = "select id, naive - timestamp '0001-01-01' as age, naive as naive_1 from t where id = 1"
    (found,) = _query(tmp_path, "duckdb", None, Source(sql=far), t=target)
    assert found["age"] == datetime(2025, 1, 1, 1) - datetime(1, 1, 1)
    with pytest.raises(InputError, match=r"interval of months"):
        _query(tmp_path, "duckdb", None, Source(sql="select interval 1 month as m from t"), t=target)


@pytest.mark.spark
@pytest.mark.parametrize(
    "written",
    [
        {"compression": "brotli"},
        {"use_dictionary": False, "column_encoding": {"f": "BYTE_STREAM_SPLIT"}},
        {"use_dictionary": False, "column_encoding": {"id": "DELTA_BINARY_PACKED"}, "compression": "lz4"},
    ],
    ids=str,
)
def test_files_that_spark_cannot_decode_are_read_by_the_kernel(
    tmp_path: Path, spark: Any, written: dict[str, Any]
) -> None:
    rows = ROWS.select(["id", "f"])
    it.write(rows.slice(0, 0), tmp_path / "t", engine="arrow")
    (tmp_path / "t").mkdir(exist_ok=True)
    pq.write_table(rows, tmp_path / "t" / "theirs.parquet", **written)
    found = _query(tmp_path, "spark", spark, Source(sql="select * from t"), t=Target(str(tmp_path / "t")))
    assert str(found) == str(_sorted(rows))
