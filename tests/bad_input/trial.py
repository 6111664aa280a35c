"""What the bad-input tests share: one small dataset, every operation on it, and ways to spoil a file."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it

STRATEGIES = ("insert", "update", "upsert", "full_merge", "deduplicate")
UNIQUE = ("insert", "update", "upsert", "full_merge")
"""The strategies that take no key twice."""

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("n", pa.int64())])
BASE = pa.table(
    {"id": [1, 2, 3, 4, 5, 6], "name": ["a", "b", "c", "d", "e", "f"], "n": [10, 20, 30, 40, 50, 60]},
    schema=SCHEMA,
)
"""The rows of the target in most tests."""
SOURCE = pa.table({"id": [2, 5, 7], "name": ["B", "E", "G"], "n": [21, 51, 71]}, schema=SCHEMA)
"""Two of its keys, one in each half, and a new one."""

Operation = Callable[[Path], Any]


def _clauses(root: Path) -> Any:
    clauses = [
        it.when_matched("target.n > 0").update_all(),
        it.when_not_matched().insert_all(),
        it.when_not_matched_by_source("target.n < 0").delete(),
    ]
    return it.merge(SOURCE, root, on="id", clauses=clauses)


def merging(
    source: Any, *, on: Any = "id", strategies: Sequence[str] = STRATEGIES, **options: Any
) -> dict[str, Operation]:
    """A merge of this source by each strategy."""
    return {s: lambda root, s=s: it.merge(source, root, on=on, strategy=s, **options) for s in strategies}


def taking(source: Any) -> dict[str, Operation]:
    """Every operation that takes whole rows of a source into a dataset that is there."""
    return {**merging(source), "append": lambda root: it.write(source, root)}


MERGES: dict[str, Operation] = merging(SOURCE)
CHANGES: dict[str, Operation] = {
    **MERGES,
    "clauses": _clauses,
    "delete": lambda root: it.delete(root, "id = 2 or id = 5"),
    "update_rows": lambda root: it.update(root, {"n": "n + 1"}, "id = 2 or id = 5"),
    "compact": lambda root: it.compact(root),
    "optimize": lambda root: it.optimize(root, by="n"),
    "deduplicate_rows": lambda root: it.deduplicate(root, on="name"),
}
"""Every operation that reads rows of the target (whether it finds some to change or not)."""
OPERATIONS: dict[str, Operation] = {
    **CHANGES,
    "append": lambda root: it.write(SOURCE, root),
    "overwrite": lambda root: it.write(SOURCE, root, mode="overwrite"),
}
"""Every operation that writes."""
LOOKS: dict[str, Operation] = {"snapshot": it.snapshot, "inspect": it.inspect}

EVERYTHING = {**OPERATIONS, **LOOKS}

each_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


def column(values: list[Any], kind: pa.DataType, name: str = "id") -> pa.Table:
    """A table of one key column and an ordinary one."""
    return pa.table({name: pa.array(values, kind), "n": pa.array(range(len(values)), pa.int64())})


def files_of(root: Path) -> list[Path]:
    return sorted(root.rglob("*.parquet"))


def cut(file: Path, *, keep: int) -> None:
    """Leave the first bytes only; a negative number cuts from the end."""
    file.write_bytes(file.read_bytes()[:keep])


def swap(file: Path, old: bytes, new: bytes) -> None:
    """Change some bytes of a file in place, everywhere they stand."""
    data = file.read_bytes()
    assert old in data, f"{old!r} is not in {file}"
    assert len(old) == len(new), "the footer's offsets must stay"
    file.write_bytes(data.replace(old, new))


def lie_about_the_footer(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:-8] + struct.pack("<I", len(data) * 2) + data[-4:])


def flip_a_bit(file: Path, *, column: int, share: float = 0.5) -> None:
    """Damage the values of a column, somewhere within its last page."""
    chunk = pq.read_metadata(file).row_group(0).column(column)
    start = chunk.data_page_offset
    first = chunk.dictionary_page_offset if chunk.has_dictionary_page else start
    end = first + chunk.total_compressed_size
    data = bytearray(file.read_bytes())
    at = max(start + 40, int(start + (end - start) * share))  # behind the page's header
    assert at < end, "the page is too small to be damaged"
    data[at] ^= 0x10
    file.write_bytes(bytes(data))


def write_aside(file: Path, table: pa.Table) -> None:
    """What a careful writer that knows nothing of us does: a hidden file, then a rename."""
    draft = file.with_name(f".{file.name}.draft")
    pq.write_table(table, draft)
    later = time.time_ns() + 1_000_000
    os.utime(draft, ns=(later, later))
    draft.rename(file)
