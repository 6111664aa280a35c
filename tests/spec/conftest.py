"""For the scenario tests: the IO of each engine, and what an operation reads, seen from outside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from intarsia.datasets.duckdb import DuckDBDatasetIO
from intarsia.datasets.pyarrow import PyarrowDatasetIO
from intarsia.engines.duckdb.scan import Scan
from intarsia.kernel import read

IOS = {"duckdb": DuckDBDatasetIO, "pyarrow": PyarrowDatasetIO}


@pytest.fixture(params=sorted(IOS))
def io(request: pytest.FixtureRequest) -> Any:
    """The dataset IO of every engine there is."""
    return IOS[request.param]()


@dataclass(frozen=True)
class Read:
    """Some columns of some rows that were read from one data file."""

    path: str
    columns: tuple[str, ...]
    rows: int


@dataclass
class Reads:
    """Every read of rows from data files, in the order they happened; footers do not count."""

    all: list[Read] = field(default_factory=list)

    @property
    def paths(self) -> set[str]:
        return {read.path for read in self.all}

    @property
    def columns(self) -> set[str]:
        return {name for read in self.all for name in read.columns}

    def columns_of(self, path: str) -> set[str]:
        return {name for read in self.all if read.path == path for name in read.columns}

    @property
    def largest(self) -> int:
        return max((read.rows for read in self.all), default=0)

    def clear(self) -> None:
        self.all.clear()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    """Spies on the data files that are read in this process; what DuckDB is asked for counts no rows."""
    found = Reads()
    sql = Scan.make_sql

    def asked(self: Any, columns: Any, files: Any = None, **kwargs: Any) -> str:
        found.all += [Read(file.path, tuple(columns), 0) for file in (self.files if files is None else files)]
        return sql(self, columns, files, **kwargs)

    monkeypatch.setattr(Scan, "make_sql", asked)
    names: dict[int, str] = {}
    init = read.FileReader.__init__

    def opened(self: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        init(self, file, *args, **kwargs)
        names[id(self._parquet)] = file.path

    def note(parquet: Any, table: Any) -> Any:
        found.all.append(Read(names.get(id(parquet), "?"), tuple(table.schema.names), table.num_rows))
        return table

    def spied(method: Any) -> Any:
        return lambda self, *args, **kwargs: note(self, method(self, *args, **kwargs))

    def spied_batches(method: Any) -> Any:
        def batches(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            for batch in method(self, *args, **kwargs):
                yield note(self, batch)

        return batches

    def refused(*_args: Any, **_kwargs: Any) -> None:
        raise AssertionError("a whole dataset was read into memory")

    monkeypatch.setattr(read.FileReader, "__init__", opened)
    for name in ("read", "read_row_group", "read_row_groups"):
        monkeypatch.setattr(pq.ParquetFile, name, spied(getattr(pq.ParquetFile, name)))
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spied_batches(pq.ParquetFile.iter_batches))
    # A cdef class takes no patches, so the doors to one are watched.
    monkeypatch.setattr(ds, "dataset", refused)
    monkeypatch.setattr(pq, "read_table", refused)
    return found
