"""What an instance of its own is given, and what DuckDB is asked to read."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.datasets.duckdb import DuckDBDatasetIO
from intarsia.engine_choice import choose_engine
from intarsia.engines.duckdb import DuckDBEngine
from intarsia.engines.duckdb.session import Session

TABLE = pa.table(
    {"id": range(4000), "s": [f"s{n % 9}" for n in range(4000)], "n": [n % 100 for n in range(4000)]}
)


def _setting(session: Session, name: str) -> str:
    return str(session.fetch_rows(f"SELECT current_setting('{name}')::VARCHAR")[0][0])


def test_options_reach_the_instance(tmp_path):
    options = {"threads": 3, "memory_bytes": 300 << 20, "spool_dir": tmp_path, "tasks": 5}
    engine = choose_engine("duckdb", options, None).get()
    assert isinstance(engine, DuckDBEngine)
    with engine.open_session() as session:
        assert _setting(session, "threads") == "3"
        assert _setting(session, "memory_limit") == "300.0 MiB"
        assert Path(_setting(session, "temp_directory")).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_an_instance_of_its_own_loads_nothing_from_the_network():
    with DuckDBEngine().open_session() as session:
        assert _setting(session, "autoinstall_known_extensions") == "false"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The SQL that reads files, in the order it is run."""
    found: list[str] = []
    guard = threading.Lock()

    def watched(method: Any) -> Any:
        def call(self: Session, sql: str, *rest: Any) -> Any:
            with guard:
                if "read_parquet" in sql:
                    found.append(sql)
            return method(self, sql, *rest)

        return call

    for name in ("run", "fetch_rows", "open_reader"):
        monkeypatch.setattr(Session, name, watched(getattr(Session, name)))
    return found


def test_only_key_columns_of_files_that_are_not_hit_are_read(tmp_path, make_dataset, asked):
    root = make_dataset(tmp_path / "lake", pa.table({"id": [1, 9, 2, 8], "s": list("abcd")}), files=2)
    it.merge(pa.table({"id": [5], "s": ["x"]}), root, on="id", engine="duckdb")
    assert asked
    assert not [sql for sql in asked if '"s"' in sql]


def test_only_files_that_may_hold_a_key_are_read(tmp_path, make_dataset, asked):
    root = make_dataset(tmp_path / "lake", TABLE, files=4)
    result = it.merge(TABLE.slice(0, 1), root, on="id", engine="duckdb")
    assert result.rewritten_files == [str(root / "part-00000.parquet")]
    assert asked
    assert not [sql for sql in asked if "part-00001" in sql or "part-00002" in sql or "part-00003" in sql]


def test_rows_are_found_and_sorted_by_duckdb(tmp_path, make_dataset, monkeypatch):
    """The kernel writes, and reads what it rewrites; it matches and sorts nothing."""
    root = make_dataset(tmp_path / "lake", TABLE, files=2)

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("PyArrow does it")

    for name in ("match.MergeMatcher.scan", "local.find_predicate_hits", "duplicates.match_duplicates"):
        monkeypatch.setattr(f"intarsia.kernel.{name}", refused)
    monkeypatch.setattr("intarsia.kernel.optimize._SortTask.write", refused)
    source = TABLE.set_column(1, "s", pa.array(["x"] * TABLE.num_rows))
    assert it.merge(source, root, on="id", engine="duckdb").updated == TABLE.num_rows
    assert it.merge(source.slice(5, 5), root, on="id", strategy="full_merge", engine="duckdb").deleted == 3995
    assert it.write(TABLE, root, mode="overwrite", engine="duckdb", max_rows_per_file=1000).inserted == 4000
    assert it.delete(root, "n = 5", engine="duckdb").deleted == 40
    assert it.update(root, {"s": "s || '!'"}, "n < 10", engine="duckdb").updated == 360
    assert it.deduplicate(root, on=["n"], order_by="id", engine="duckdb").total == 99
    assert it.compact(root, engine="duckdb").total == 99
    assert it.optimize(root, by=["s", "n"], engine="duckdb").total == 99


def test_bounds_that_are_known_to_be_wrong_prune_nothing(tmp_path):
    root = tmp_path / "lake"
    root.mkdir()
    file = root / "a.parquet"
    pq.write_table(pa.table({"id": ["aaa", "bbb"], "n": [1, 2]}), file, use_dictionary=False)
    ours = pq.read_metadata(file).created_by.encode()
    theirs = b"parquet-mr version 1.4.3 (build abcdef)"[: len(ours)].ljust(len(ours))
    data = file.read_bytes()
    end = len(data) - int.from_bytes(data[-8:-4], "little") - 8
    file.write_bytes(data[:end] + data[end:].replace(b"bbb", b"aab").replace(ours, theirs))
    result = it.merge(pa.table({"id": ["bbb"], "n": [9]}), root, on="id", engine="duckdb")
    assert (result.updated, result.inserted) == (1, 0)
    assert DuckDBDatasetIO().read_parquet(root, filters="id = 'bbb'")["n"].to_pylist() == [9]
