"""Whether a contender's result is right, by DuckDB over the files it left; nothing here is timed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from bench.workloads import Workload, expected_sql

_VALUES = (
    "id::bigint",
    "customer::int",
    "quantity::int",
    "amount::double",
    "score::double",
    "country::varchar",
    "status::varchar",
    "code::varchar",
    "epoch_us(ts)",
    "price::decimal(12, 2)",
)


@dataclass(frozen=True, slots=True)
class Digest:
    """A table without regard to the order of its rows: how many, the sum of ids, a checksum of all values."""

    rows: int
    ids: str
    values: str


def digest(files: Iterable[Path | str], *, daily: bool) -> Digest:
    """The digest of a dataset given as its data files."""
    return _digest(f"select * from {scan(files, daily=daily)}", daily=daily)


def expected(workload: Workload, target: Path, source: Path | None) -> Digest:
    """The digest of the right result, worked out once and kept beside the target."""
    name = f"{target.name}-{workload.kind}-{workload.source_name}-{'-'.join(workload.keys)}.expected.json"
    kept = target.with_name(name)
    if not kept.exists():
        daily = workload.shape.daily
        old = scan(data_files(target), daily=daily)
        new = f"read_parquet('{source}')"
        kept.write_text(json.dumps(astuple(_digest(expected_sql(workload, old, new), daily=daily))))
    return Digest(*json.loads(kept.read_text()))


def data_files(root: Path) -> list[Path]:
    """The Parquet files of a plain dataset."""
    return sorted(path for path in root.rglob("*.parquet") if not _hidden(path.relative_to(root)))


def delta_files(root: Path) -> list[str]:
    """The Parquet files that a Delta table consists of."""
    from deltalake import DeltaTable

    return [uri.removeprefix("file://") for uri in DeltaTable(str(root)).file_uris()]


def scan(files: Iterable[Path | str], *, daily: bool) -> str:
    names = ", ".join(f"'{file}'" for file in files)
    return f"read_parquet([{names}], hive_partitioning={str(daily).lower()}, union_by_name=true)"


def range_reads(files: Iterable[Path | str], column: str) -> float:
    """The mean share of rows that a filter on 1 % of a column's rows still reads, by row-group statistics."""
    spans: list[tuple[Any, Any, int]] = []
    names = list(files)
    for name in names:
        footer = pq.read_metadata(name)
        index = footer.schema.names.index(column)
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            statistics = group.column(index).statistics
            spans.append((statistics.min, statistics.max, group.num_rows))
    marks = ", ".join(f"{number / 100}" for number in range(101))
    row = duckdb.execute(
        f"select quantile_disc({column}, [{marks}]) from {scan(names, daily=False)}"
    ).fetchone()
    assert row is not None
    edges = row[0]
    rows = sum(span[2] for span in spans)
    read = [
        sum(count for low, high, count in spans if low <= to and high >= start)
        for start, to in pairwise(edges)
    ]
    return sum(read) / len(read) / rows


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def digest_rows(
    query: str, key: str, values: Sequence[str], connection: duckdb.DuckDBPyConnection | None = None
) -> Digest:
    """The digest of a query's rows; ``values`` are expressions whose types do not depend on who wrote."""
    run = duckdb.execute if connection is None else connection.execute
    (row,) = run(
        f"select count(*), sum({key})::varchar, sum(hash({', '.join(values)}))::varchar from ({query})"
    ).fetchall()
    return Digest(*row)


def _digest(query: str, *, daily: bool) -> Digest:
    return digest_rows(query, "id", [*_VALUES, *(["day::varchar"] if daily else [])])
