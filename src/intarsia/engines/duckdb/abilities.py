"""What the DuckDB engine says of itself; which types it leaves to Arrow is asked of the code that decides."""

from __future__ import annotations

import pyarrow as pa

from intarsia.core.abilities import Abilities
from intarsia.engines.duckdb.types import comparable, writable

__all__ = ["ABILITIES", "KINDS"]

KINDS: tuple[pa.DataType, ...] = (
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
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    pa.timestamp("s"),
    pa.timestamp("ms"),
    pa.timestamp("us"),
    pa.timestamp("ns"),
    pa.timestamp("ms", "UTC"),
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
"""One of each kind of type that a column may have."""


def _elsewhere() -> tuple[str, ...]:
    """The kinds that it cannot compare, or whose type its writer would change."""
    nested = pa.types.is_nested
    return tuple(
        f"{kind} ({'written' if comparable(kind) or nested(kind) else 'matched and written'})"
        for kind in KINDS
        if not writable(kind)
    )


ABILITIES = Abilities(
    engine="duckdb",
    title="DuckDB",
    install="`pip install 'intarsia[duckdb]'` (1.5 or newer)",
    named=('"duckdb"', "a DuckDB connection"),
    door="intarsia.datasets.duckdb.DuckDBDatasetIO",
    runs="in this process, in an instance of its own or beside a connection of yours",
    unit="SQL over all files to be matched; a file to be written",
    source="in memory, or mapped from a spool beyond a quarter of `memory_bytes`; its keys in DuckDB",
    memory="`memory_bytes` (DuckDB's own default without it), 16 bytes per row that changes",
    beyond_memory="joins, sorts and tables go to temporary files below `spool_dir`",
    options=("threads", "memory_bytes", "spool_dir"),
    unkept=(
        "codecs of single columns",
        "the rows of each row group",
        "the declaration of an order",
        "Bloom filters",
        "the page index",
        "page checksums",
    ),
    elsewhere=_elsewhere(),
)
