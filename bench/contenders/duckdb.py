"""DuckDB by hand: one COPY of the query that gives the new dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from bench.contenders.swap import beside, day_directory, link_others, swap


def prepare(job: dict[str, Any]) -> Callable[[], Any]:
    target, rows = Path(job["target"]), job["file_rows"]
    on = ", ".join(job["keys"])
    connection = duckdb.connect(config=_limits(job))
    connection.execute("set preserve_insertion_order = false")
    if job["source"]:
        connection.execute(f"create table source as select * from read_parquet('{job['source']}')")
    old = f"read_parquet('{target}/**/*.parquet', hive_partitioning=false)"
    new = beside(target)

    def rewrite(query: str, file_rows: int = rows) -> None:
        _copy(connection, query, new, file_rows)
        swap(new, target)

    match job["kind"]:
        case "upsert":
            return lambda: rewrite(_upserted(old, "source", on))
        case "upsert_day":
            return lambda: _upsert_day(connection, target, [k for k in job["keys"] if k != "day"], rows)
        case "insert":
            name = target / "part-new.parquet"
            query = f"select * from source s anti join {old} t using ({on})"
            return lambda: connection.execute(f"copy ({query}) to '{name}' (format parquet)")
        case "append":
            return lambda: _append(connection, target)
        case "delete":
            return lambda: _delete(connection, target, on, rows)
        case "sync":
            return lambda: rewrite("select * from source")
        case "compact":
            return lambda: rewrite(f"select * from {old}", job["large_rows"])
        case "zorder":
            return lambda: rewrite(_zordered(connection, old, job["by"]))
        case "dedup":
            order = ", ".join(job["by"])
            newest = f"select {on}, max({order}) as {order} from {old} group by {on}"
            return lambda: rewrite(f"select * from {old} t semi join ({newest}) n using ({on}, {order})")
        case other:
            raise ValueError(other)


def _limits(job: dict[str, Any]) -> dict[str, Any]:
    if not job["memory_bytes"]:
        return {}
    return {"memory_limit": f"{job['memory_bytes'] // 1024}KiB", "temp_directory": job["spool"]}


def _upserted(old: str, source: str, on: str) -> str:
    return f"select * from {old} t anti join {source} s using ({on}) union all by name select * from {source}"


def _append(connection: duckdb.DuckDBPyConnection, target: Path) -> None:
    draft = target / ".draft"  # so that no reader sees half a file
    connection.execute(f"copy source to '{draft}' (format parquet, compression snappy)")
    draft.rename(target / "part-new.parquet")


def _delete(connection: duckdb.DuckDBPyConnection, target: Path, on: str, rows: int) -> None:
    """Only the files that hold a key of the source."""
    every = f"read_parquet('{target}/*.parquet', filename=true)"
    hit = [
        row[0]
        for row in connection.execute(
            f"select distinct t.filename from {every} t semi join source s using ({on})"
        ).fetchall()
    ]
    if not hit:
        return
    new = beside(target)
    query = f"select * from read_parquet({hit}) t anti join source s using ({on})"
    _copy(connection, query, new, rows)
    link_others(target, new, hit)
    swap(new, target)


def _upsert_day(connection: duckdb.DuckDBPyConnection, target: Path, keys: list[str], rows: int) -> None:
    """Only the partitions that the source has rows of."""
    for (day,) in connection.execute("select distinct day from source").fetchall():
        directory = day_directory(target, day)
        new = beside(directory)
        part = f"(select * exclude (day) from source where day = '{day}')"
        old = f"read_parquet('{directory}/*.parquet', hive_partitioning=false)"
        _copy(connection, _upserted(old, part, ", ".join(keys)), new, rows)
        swap(new, directory)


def _copy(connection: duckdb.DuckDBPyConnection, query: str, directory: Path, rows: int) -> None:
    directory.mkdir()
    connection.execute(
        f"copy ({query}) to '{directory}'"
        f" (format parquet, compression snappy, row_group_size {min(rows, 200_000)},"
        f" row_groups_per_file {max(1, rows // 200_000)})"
    )


def _zordered(connection: duckdb.DuckDBPyConnection, old: str, by: list[str]) -> str:
    terms = []
    for bit, name in enumerate(by):
        number = f"epoch_us({name})" if name == "ts" else f"{name}::bigint"
        found = connection.execute(f"select min({number}), max({number}) from {old}").fetchone()
        assert found is not None
        low, high = found
        terms.append(f"({_spread(f'(({number} - {low}) * 65535 // {max(1, high - low)})')} << {bit})")
    return f"select * from {old} order by {' | '.join(terms)}"


def _spread(value: str) -> str:
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        value = f"(({value} | ({value} << {shift})) & {mask})"
    return value
