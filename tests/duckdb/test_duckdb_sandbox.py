"""An instance of our own reaches the files of the dataset and nothing else, whatever SQL it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.engines.duckdb.engine import DuckDBEngine
from intarsia.engines.duckdb.query import QueryRun
from intarsia.engines.duckdb.session import Session
from intarsia.errors import IntarsiaError

ROWS = pa.table({"id": [1, 2, 3], "part": [1, 1, 2], "v": [1, 2, 3]})


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Session]]:
    """The sessions of operations, which stay open until the test is over."""
    found: list[Session] = []
    honest = Session.restrict

    def restrict(self: Session, directories: Any = ()) -> None:
        honest(self, directories)
        found.append(self)

    monkeypatch.setattr(Session, "restrict", restrict)
    with monkeypatch.context() as patched:
        patched.setattr(Session, "close", lambda _: None)
        yield found
    for session in dict.fromkeys(found):
        session.close()


def _list_attempts(tmp_path: Path) -> list[str]:
    other = tmp_path / "other.parquet"
    pq.write_table(ROWS, other)
    return [
        f"SELECT * FROM read_parquet('{other}')",
        f"SELECT * FROM read_parquet('{tmp_path}/lake/../other.parquet')",
        f"SELECT * FROM '{other}'",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM glob('/etc/*')",
        f"COPY (SELECT 1) TO '{tmp_path}/stolen.csv'",
        f"ATTACH '{tmp_path}/stolen.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET allowed_directories = ['/']",
        "SET lock_configuration = false",
    ]


@pytest.mark.parametrize("operation", ["merge", "delete", "optimize", "deduplicate"])
def test_an_operations_instance_reaches_the_dataset_only(
    tmp_path: Path, seen: list[Session], operation: str
) -> None:
    root = tmp_path / "lake"
    it.write(ROWS, root, partition_by="part")
    calls = {
        "merge": lambda: it.merge(ROWS.slice(1), root, on="id", engine="duckdb"),
        "delete": lambda: it.delete(root, "v = 3", engine="duckdb"),
        "optimize": lambda: it.optimize(root, by="v", engine="duckdb"),
        "deduplicate": lambda: it.deduplicate(root, on="v", engine="duckdb"),
    }
    calls[operation]()
    assert seen
    session = seen[0]
    inside = next(root.rglob("*.parquet"))
    assert session.fetch_rows(f"SELECT count(*) FROM read_parquet('{inside}')")[0][0] > 0
    for sql in _list_attempts(tmp_path):
        with pytest.raises(IntarsiaError):
            session.run(sql)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lake.intarsia", "lake", "other.parquet"]


def test_a_query_of_a_pipeline_reaches_its_tables_only(tmp_path: Path) -> None:
    tables = {"orders": ROWS.to_reader}
    with QueryRun("SELECT sum(v) AS v FROM orders", tables, params={}).open_stream() as stream:
        assert stream.read_all()["v"].to_pylist() == [6]
    for sql in _list_attempts(tmp_path):
        if sql.startswith("SELECT"):
            with pytest.raises(IntarsiaError):
                QueryRun(sql, tables, params={}).open_stream().read_all()


def test_the_callers_connection_keeps_its_settings(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    it.write(ROWS, root)
    with duckdb.connect() as connection:
        it.merge(ROWS.slice(1), root, on="id", engine=connection)
        assert connection.execute("SELECT current_setting('enable_external_access')").fetchall() == [(True,)]
        assert connection.execute("SELECT current_setting('lock_configuration')").fetchall() == [(False,)]


def test_a_plan_made_again_reaches_the_files_that_have_come_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "lake"
    it.write(ROWS, root)
    honest, others = DuckDBEngine.stage, [ROWS.set_column(0, "id", pa.array([7, 8, 9]))]

    def stage(self: DuckDBEngine, *given: Any) -> Any:
        staged = honest(self, *given)
        while others:  # another writer is faster, once
            pq.write_table(others.pop(), root / "other.parquet")
        return staged

    monkeypatch.setattr(DuckDBEngine, "stage", stage)
    source = ROWS.set_column(0, "id", pa.array([8, 9, 10]))
    result = it.merge(source, root, on="id", engine="duckdb")
    assert result.attempts == 2
    assert (result.updated, result.inserted) == (2, 1)
