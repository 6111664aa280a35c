"""The tables of docs/engines.md, made of the values below; --write puts them there, a test checks them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from intarsia.engines.duckdb.sql import find_sql_type, is_comparable

PAGE = Path(__file__).parents[1] / "docs" / "engines.md"

OPERATIONS = ("merge", "delete", "update", "write", "compact", "optimize", "deduplicate", "read_parquet")


@dataclass(frozen=True, slots=True)
class EngineRow:
    """What the page says of one engine."""

    engine: str
    title: str
    install: str
    named: tuple[str, ...]
    """What ``engine=`` takes for it."""
    facade: str
    runs: str
    unit: str
    """What is worked on at a time."""
    source: str
    """Where the rows of the source are."""
    memory: str
    beyond_memory: str
    options: tuple[str, ...]
    """The options that are its own."""


ENGINES = (
    EngineRow(
        engine="arrow",
        title="PyArrow",
        install="always there",
        named=('"arrow"',),
        facade="intarsia.datasets.pyarrow.PyarrowDatasetIO",
        runs="in this process, files in parallel threads",
        unit="a file; of a file, a row group",
        source="in memory, or mapped from a spool beyond `spool_bytes`",
        memory="the source, an index of its keys, a row group per thread",
        beyond_memory="optimize and deduplicate spill beyond `memory_bytes`; a merge does not",
        options=("threads", "memory_bytes"),
    ),
    EngineRow(
        engine="duckdb",
        title="DuckDB",
        install="`pip install 'intarsia[duckdb]'` (1.5 or newer)",
        named=('"duckdb"', "a DuckDB connection"),
        facade="intarsia.datasets.duckdb.DuckDBDatasetIO",
        runs="in this process, in an instance of its own or beside a connection of yours",
        unit="SQL over all files to be matched or sorted; a file to be written",
        source="in memory, or mapped from a spool beyond a quarter of `memory_bytes`; its keys in DuckDB",
        memory="`memory_bytes` (DuckDB's own default without it), 16 bytes per row that changes,"
        " a row group per thread",
        beyond_memory="joins and sorts go to temporary files below `spool_dir`",
        options=("threads", "memory_bytes", "spool_dir"),
    ),
    EngineRow(
        engine="spark",
        title="Spark",
        install="`pip install 'intarsia[spark]'`",
        named=('"spark"', "a SparkSession"),
        facade="intarsia.datasets.spark.SparkDatasetIO",
        runs="on the executors of a session, classic or Connect",
        unit="a file per task; of optimize, a range",
        source="sent to every task where it is small; of a larger one the columns that decide, and its rows"
        " through storage; beyond `broadcast_bytes` of those, joined by Spark",
        memory="as the Arrow engine, per task",
        beyond_memory="more tasks and more executors",
        options=("tasks", "broadcast_bytes", "memory_bytes", "spool_dir"),
    ),
)

TYPES: tuple[pa.DataType, ...] = (
    pa.bool_(),
    pa.int64(),
    pa.uint64(),
    pa.float16(),
    pa.float64(),
    pa.decimal128(38, 2),
    pa.decimal256(50, 2),
    pa.string(),
    pa.binary(),
    pa.binary(16),
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time64("ns"),
    pa.timestamp("s"),
    pa.timestamp("ns"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("ns", "UTC"),
    pa.duration("us"),
    pa.null(),
    pa.list_(pa.int64()),
    pa.list_(pa.int64(), 2),
    pa.struct([("x", pa.int64())]),
    pa.map_(pa.string(), pa.int64()),
    pa.uuid(),
)
"""One of each type that a column may have."""


def make_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def make_overview(engines: Sequence[EngineRow] = ENGINES) -> str:
    """What each engine is."""
    rows = [
        ["`engine=`", *(" or ".join(_quote_names(each)) for each in engines)],
        ["install", *(each.install for each in engines)],
        ["runs", *(each.runs for each in engines)],
        ["works on", *(each.unit for each in engines)],
        ["the source is", *(each.source for each in engines)],
        ["memory", *(each.memory for each in engines)],
        ["work larger than memory", *(each.beyond_memory for each in engines)],
        ["operations", *("all" for _ in engines)],
        ["options", *(", ".join(f"`{name}`" for name in each.options) for each in engines)],
        ["IO", *(f"`{each.facade}`" for each in engines)],
    ]
    return make_table(["", *(each.title for each in engines)], rows)


def _quote_names(engine: EngineRow) -> list[str]:
    return [f"`{name}`" if name.startswith('"') else name for name in engine.named]


def list_types() -> str:
    """The types that DuckDB lacks, asked of the code that decides."""
    keys = [str(kind) for kind in TYPES if not is_comparable(kind) and not pa.types.is_nested(kind)]
    columns = [str(kind) for kind in TYPES if find_sql_type(kind) is None]
    return f"- as keys or in conditions: {', '.join(keys)}\n- in rows to be sorted: {', '.join(columns)}"


PARTS = {"overview": make_overview, "types": list_types}


def fill_page(page: str) -> str:
    """The page with its tables made again."""
    for name, make in PARTS.items():
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        page = f"{before}{begin}{make()}\n{end}{after}"
    return page


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print("\n\n".join(make() for make in PARTS.values()))
