"""``engine="auto"``: Spark for a DataFrame, DuckDB for what does not fit in memory, else PyArrow; and why."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import intarsia as it
from intarsia import engine_choice
from intarsia.engine_choice import INDEX_BYTES

N = 5000
TABLE = pa.table({"id": range(N), "s": ["some text"] * N, "v": [n % 7 for n in range(N)]})
LITTLE = TABLE.nbytes // 10
MUCH = 10 * TABLE.nbytes + 100 * N


@pytest.fixture
def root(tmp_path: Path, make_dataset: Any) -> Path:
    path: Path = make_dataset(tmp_path / "lake", TABLE, files=2, compression="none", use_dictionary=False)
    return path


def _plan(operation: str, root: Path, **options: Any) -> it.Plan:
    match operation:
        case "merge":
            return it.plan("merge", TABLE, root, on="id", **options)
        case "write":
            return it.plan("write", TABLE, root, **options)
        case "optimize":
            return it.plan("optimize", root, by=["v", "s"], **options)
        case "deduplicate":
            return it.plan("deduplicate", root, on=["id"], **options)
        case "delete":
            return it.plan("delete", root, "v = 3", **options)
        case "update":
            return it.plan("update", root, {"v": "v + 1"}, **options)
    return it.plan("compact", root, **options)


HELD = ["merge", "write", "optimize", "deduplicate"]


@pytest.mark.parametrize("operation", HELD)
def test_work_that_fits_memory_bytes_is_done_by_pyarrow(root, operation):
    plan = _plan(operation, root, memory_bytes=MUCH)
    assert (plan.engine, plan.engine_reason) == ("arrow", "the work fits in memory")


@pytest.mark.parametrize("operation", HELD)
def test_work_beyond_memory_bytes_is_done_by_duckdb(root, operation):
    pytest.importorskip("duckdb")
    plan = _plan(operation, root, memory_bytes=LITTLE)
    assert plan.engine == "duckdb"
    assert plan.engine_reason.startswith("about ")
    assert "memory_bytes is" in plan.engine_reason
    assert plan.engine_reason in " ".join(str(plan).split())


@pytest.mark.parametrize("operation", ["delete", "update", "compact"])
def test_work_that_goes_file_by_file_always_fits(root, operation):
    plan = _plan(operation, root, memory_bytes=1)
    assert (plan.engine, plan.engine_reason) == ("arrow", "the work goes file by file")


def test_a_merge_needs_its_source_and_an_index_of_the_keys(root):
    pytest.importorskip("duckdb")
    need = TABLE.nbytes + INDEX_BYTES * N
    assert _plan("merge", root, memory_bytes=need).engine == "arrow"
    assert _plan("merge", root, memory_bytes=need - 1).engine == "duckdb"
    assert _plan("write", root, memory_bytes=TABLE.nbytes).engine == "arrow"


def test_a_deduplication_needs_only_what_it_compares(root):
    pytest.importorskip("duckdb")
    keys = TABLE.select(["id"]).nbytes * 3 // 2
    assert _plan("deduplicate", root, memory_bytes=keys).engine == "arrow"
    assert it.plan("deduplicate", root, memory_bytes=keys).engine == "duckdb"  # by all columns


def test_an_optimize_needs_its_largest_partition(tmp_path, make_dataset):
    pytest.importorskip("duckdb")
    root = make_dataset(tmp_path / "parts", TABLE, partition="v", compression="none", use_dictionary=False)
    assert it.plan("optimize", root, by=["id", "s"], memory_bytes=TABLE.nbytes // 3).engine == "arrow"
    assert it.plan("optimize", root, by=["id", "s"], memory_bytes=TABLE.nbytes // 20).engine == "duckdb"


def test_without_memory_bytes_a_quarter_of_the_memory_is_the_budget(root, monkeypatch):
    pytest.importorskip("duckdb")
    monkeypatch.setattr(engine_choice, "read_memory_total", lambda: LITTLE * 4)
    plan = _plan("merge", root)
    assert plan.engine == "duckdb"
    assert "a quarter of the memory is" in plan.engine_reason
    monkeypatch.setattr(engine_choice, "read_memory_total", lambda: MUCH * 4)
    assert _plan("merge", root).engine == "arrow"


def test_a_source_that_was_spooled_is_taken_over(root, tmp_path, rows):
    pytest.importorskip("duckdb")
    spool = tmp_path / "spool"
    spool.mkdir()
    changed = TABLE.set_column(1, "s", pa.array(["other"] * N))
    reader = pa.RecordBatchReader.from_batches(changed.schema, changed.to_batches(max_chunksize=500))
    result = it.merge(reader, root, on="id", memory_bytes=LITTLE, spool_dir=spool)
    assert (result.engine, result.updated) == ("duckdb", N)
    assert rows(root) == rows(changed)
    assert list(spool.iterdir()) == []


@pytest.mark.parametrize("operation", HELD)
def test_without_duckdb_pyarrow_does_it_and_says_so(root, monkeypatch, operation):
    found = importlib.util.find_spec
    monkeypatch.setattr(engine_choice, "find_spec", lambda name: None if name == "duckdb" else found(name))
    plan = _plan(operation, root, memory_bytes=LITTLE)
    assert plan.engine == "arrow"
    assert plan.engine_reason.endswith("DuckDB would be chosen, but duckdb is not installed")


def test_an_older_duckdb_is_not_chosen(root, monkeypatch):
    pytest.importorskip("duckdb")
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "1.4.2" if name == "duckdb" else version(name))
    plan = _plan("merge", root, memory_bytes=LITTLE)
    assert plan.engine == "arrow"
    assert "1.4.2 is installed, and 1.5 or newer is needed" in plan.engine_reason
    with pytest.raises(it.errors.NotSupported, match=r"1\.5 or newer"):
        it.delete(root, "id = 1", engine="duckdb")


def test_an_engine_that_is_named_needs_no_reason(root):
    for engine in ("arrow", "duckdb"):
        if engine == "arrow" or importlib.util.find_spec(engine):
            plan = _plan("merge", root, engine=engine)
            assert (plan.engine, plan.engine_reason) == (engine, "")


@pytest.mark.spark
def test_a_dataframe_is_done_by_its_session(spark, root):
    frame = spark.createDataFrame([(1, "x", 1)], "id long, s string, v long")
    plan = it.plan("merge", frame, root, on="id", memory_bytes=1)
    assert (plan.engine, plan.engine_reason) == ("spark", "the source is a Spark DataFrame")


def test_a_container_may_have_less_memory_than_its_machine(monkeypatch, tmp_path):
    whole = engine_choice.read_memory_total()
    assert whole > 1 << 20
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(engine_choice, "_LIMITS", (str(limit), str(tmp_path / "none")))
    limit.write_text("123456789\n")
    assert engine_choice.read_memory_total() == 123456789
    limit.write_text("max\n")
    assert engine_choice.read_memory_total() >= whole
