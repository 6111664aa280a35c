"""What the Arrow engine says of itself."""

from __future__ import annotations

from intarsia.core.abilities import Abilities

__all__ = ["ABILITIES"]

ABILITIES = Abilities(
    engine="arrow",
    title="PyArrow",
    install="always there",
    named=('"arrow"',),
    door="intarsia.datasets.pyarrow.PyarrowDatasetIO",
    runs="in this process, files in parallel threads",
    unit="a file; of a file, a row group",
    source="in memory, or mapped from a spool beyond `spool_bytes`",
    memory="the source, an index of its keys, a row group per thread",
    beyond_memory="optimize and deduplicate spill beyond `memory_bytes`; a merge does not",
    options=("threads", "memory_bytes"),
)
