"""Polars by hand: a lazy anti-join and concat over the dataset, streamed into a new one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from bench.contenders.swap import beside, day_directory, link_others, swap


def prepare(job: dict[str, Any]) -> Callable[[], Any]:
    target, keys, rows = Path(job["target"]), job["keys"], job["file_rows"]
    source = _in_types(pl.read_parquet(job["source"]), target) if job["source"] else pl.DataFrame()
    new = beside(target)

    def rewrite(frame: pl.LazyFrame, file_rows: int = rows) -> None:
        _sink(frame, new, file_rows)
        swap(new, target)

    def whole() -> pl.LazyFrame:
        return pl.scan_parquet(target, hive_partitioning=False)

    match job["kind"]:
        case "upsert":
            return lambda: rewrite(_upserted(whole(), source, keys))
        case "upsert_day":
            return lambda: _upsert_day(target, source, [key for key in keys if key != "day"], rows)
        case "insert":
            return lambda: _insert(target, source, keys)
        case "append":
            return lambda: _append(target, source)
        case "delete":
            return lambda: _delete(target, source, keys, rows)
        case "sync":
            return lambda: rewrite(source.lazy())
        case "compact":
            return lambda: rewrite(whole(), job["large_rows"])
        case "zorder":
            return lambda: rewrite(_zordered(whole(), job["by"]))
        case "dedup":
            newest = whole().group_by(keys).agg(pl.col(job["by"]).max())
            return lambda: rewrite(whole().join(newest, on=[*keys, *job["by"]], how="semi"))
        case other:
            raise ValueError(other)


def _in_types(source: pl.DataFrame, target: Path) -> pl.DataFrame:
    """Polars reads Spark's timestamps as others than it writes, and joins no frames that differ in that."""
    types = pl.scan_parquet(target, hive_partitioning=False).collect_schema()
    return source.cast({name: dtype for name, dtype in types.items() if name in source.columns})


def _upserted(old: pl.LazyFrame, source: pl.DataFrame, keys: list[str]) -> pl.LazyFrame:
    return pl.concat([old.join(source.lazy(), on=keys, how="anti"), source.lazy()])


def _upsert_day(target: Path, source: pl.DataFrame, keys: list[str], rows: int) -> None:
    """Only the partitions that the source has rows of."""
    for (day,), part in source.partition_by("day", as_dict=True, include_key=False).items():
        directory = day_directory(target, day)
        new = beside(directory)
        _sink(_upserted(pl.scan_parquet(directory, hive_partitioning=False), part, keys), new, rows)
        swap(new, directory)


def _insert(target: Path, source: pl.DataFrame, keys: list[str]) -> None:
    known = pl.scan_parquet(target).select(keys)
    source.lazy().join(known, on=keys, how="anti").sink_parquet(
        target / "part-new.parquet", compression="snappy"
    )


def _append(target: Path, source: pl.DataFrame) -> None:
    draft = target / ".draft"  # so that no reader sees half a file
    source.write_parquet(draft, compression="snappy")
    draft.rename(target / "part-new.parquet")


def _delete(target: Path, source: pl.DataFrame, keys: list[str], rows: int) -> None:
    """Only the files that hold a key of the source."""
    known = pl.scan_parquet(target, include_file_paths="file").select(*keys, "file")
    hit = known.join(source.lazy(), on=keys, how="semi").select(pl.col("file").unique()).collect()
    files = hit["file"].to_list()
    if not files:
        return
    new = beside(target)
    _sink(pl.scan_parquet(files).join(source.lazy(), on=keys, how="anti"), new, rows)
    link_others(target, new, files)
    swap(new, target)


def _sink(frame: pl.LazyFrame, directory: Path, rows: int) -> None:
    frame.sink_parquet(
        pl.PartitionBy(directory, max_rows_per_file=rows, approximate_bytes_per_file=None),
        compression="snappy",
        row_group_size=rows,
        mkdir=True,
    )


def _zordered(frame: pl.LazyFrame, by: list[str]) -> pl.LazyFrame:
    low = frame.select(pl.col(by).min().to_physical()).collect().row(0)
    high = frame.select(pl.col(by).max().to_physical()).collect().row(0)
    curve = sum(
        (
            _spread((pl.col(name).to_physical().cast(pl.Int64) - first) * 65535 // max(1, last - first))
            * (1 << bit)
            for bit, (name, first, last) in enumerate(zip(by, low, high, strict=True))
        ),
        pl.lit(0, pl.Int64),
    )
    return frame.sort(curve)


def _spread(value: pl.Expr) -> pl.Expr:
    for times, mask in ((256, 0x00FF00FF), (16, 0x0F0F0F0F), (4, 0x33333333), (2, 0x55555555)):
        value = (value | value * times) & mask
    return value
