"""Datasets and tables of many files, and what planning a merge into them takes; run by :mod:`bench.files`.

What is real: of a Parquet dataset every file, up to a million, where most are links to a few files and the
cache of footers is prepared; of an Iceberg table the manifests, and the data files that the merge hits.
"""

from __future__ import annotations

import gc
import json
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROWS = 10
HITS = 10
MANIFEST = 1000
"""Files of a commit, and so of a manifest and a partition."""
_LINKS = 50_000
"""A file of ext4 has at most 65,000 names."""


def main() -> None:
    action, kind, root, files, what = sys.argv[1:]
    if action == "make":
        _MAKERS[kind](Path(root), int(files))
    else:
        measure = _measure_parquet if kind == "parquet" else _measure_iceberg
        print(json.dumps(measure(Path(root), what)))


def make_parquet(root: Path, files: int) -> None:
    data = root / "data"
    data.mkdir(parents=True)
    for number in range(files):
        _write_file(data / _name(number), number)
    _write_source(root, files)


def make_linked(root: Path, files: int) -> None:
    """Files that are links to a few, with a cache that tells of each what a file of its own would say."""
    from intarsia.tables.parquet import ParquetTable, footer_cache
    from intarsia.tables.parquet.entries import EntryTable
    from intarsia.tables.parquet.footer_store import BOUND_NAMES, COUNT_SCHEMA, ColumnBounds, KnownFooters
    from intarsia.tables.parquet.footers import read_footer
    from intarsia.tables.parquet.listing import list_data_files

    data, seeds = root / "data", root / "seeds"
    data.mkdir(parents=True)
    seeds.mkdir()
    for first in range(0, files, _LINKS):
        seed = seeds / str(first)
        _write_file(seed, 0)
        for number in range(first, min(first + _LINKS, files)):
            os.link(seed, data / _name(number))
    for number in _pick(files):
        (data / _name(number)).unlink()
        _write_file(data / _name(number), number)
    _write_source(root, files)
    time.sleep(2.5)  # younger files are not cached
    table = ParquetTable(data)
    entries = list_data_files(table.storage, table.control.root).entries
    assert isinstance(entries, EntryTable)
    footer = read_footer(table.storage.filesystem, str(data / _name(0)))
    values = (ROWS, 1, footer.metadata.serialized_size, 0)
    counts = [
        pa.repeat(pa.scalar(value, field.type), files)
        for value, field in zip(values, COUNT_SCHEMA, strict=True)
    ]
    low = pc.multiply(pa.array(range(files), pa.int64()), ROWS)
    columns = (
        pa.array(range(files), pa.int32()),
        pa.repeat(pa.scalar(0, pa.int32()), files),
        pa.repeat(pa.scalar(ROWS, pa.int64()), files),
        low,
        pc.add(low, ROWS - 1),
        pa.repeat(pa.scalar(0, pa.int64()), files),
    )
    bounds = ColumnBounds(pa.int64(), pa.table(dict(zip(BOUND_NAMES, columns, strict=True))))
    counted = pa.Table.from_arrays(counts, schema=COUNT_SCHEMA)
    known = KnownFooters(entries.make_keys(), counted, [footer], {"id": bounds})
    every = pa.chunked_array([pa.repeat(pa.scalar(True), files)])
    os.makedirs(table.control.directory, exist_ok=True)
    Path(table.control.footers).write_bytes(footer_cache._encode(known, table.control.root, every))


def make_iceberg(root: Path, files: int, *, partitioned: bool = False) -> None:
    """A commit, and a manifest, for every thousand files."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

    from intarsia.tables.iceberg.catalog import embedded_catalog, load_table
    from intarsia.tables.iceberg.commit import CommitTarget, SnapshotCommit, Validation
    from intarsia.tables.iceberg.file_io import LocationProvider
    from intarsia.tables.iceberg.properties import RetryPolicy
    from intarsia.tables.iceberg.snapshot_producer import FileChange, ManifestMergeOptions, SnapshotOptions
    from intarsia.tables.iceberg.state import BranchState, ManifestCache

    root.mkdir(parents=True)
    catalog = embedded_catalog(root)
    catalog.create_namespace("db")
    kinds = (("id", LongType()), ("v", DoubleType()), ("s", StringType()), ("part", IntegerType()))
    schema = Schema(*(NestedField(place, name, kind) for place, (name, kind) in enumerate(kinds, 1)))
    by_part = PartitionField(4, 1000, IdentityTransform(), "part")
    catalog.create_table(
        "db.t", schema, partition_spec=PartitionSpec(by_part) if partitioned else PartitionSpec()
    )
    (root / "db" / "t" / "data").mkdir(parents=True, exist_ok=True)
    retry, options = RetryPolicy(4, 1, 10, 60_000), SnapshotOptions(ManifestMergeOptions(enabled=False))
    cache, picked = ManifestCache(load_table(catalog, "db.t").io), set(_pick(files))
    for first in range(0, files, MANIFEST):
        table = load_table(catalog, "db.t")
        added = [
            _make_entry(root, number, is_real=number in picked, partitioned=partitioned)
            for number in range(first, min(first + MANIFEST, files))
        ]
        target = CommitTarget(
            lambda: load_table(catalog, "db.t"),
            BranchState.of(table, None, cache),
            LocationProvider.of(table.metadata),
            "bench",
        )
        change = FileChange(added_data=added)
        SnapshotCommit(target, change, Validation(), options, retry=retry, status=retry).run()
    _write_source(root, files, parts=True)


def _make_entry(root: Path, number: int, *, is_real: bool, partitioned: bool) -> Any:
    from intarsia.tables.iceberg.manifests import ContentFile, DataFileContent

    path, part, size = root / "db" / "t" / "data" / _name(number), number // MANIFEST, 1500
    if is_real:
        _write_file(path, number, part=part)
        size = path.stat().st_size
    low, high = (
        {1: struct.pack("<q", key), 2: struct.pack("<d", 0.5), 3: b"old", 4: struct.pack("<i", part)}
        for key in (number * ROWS, number * ROWS + ROWS - 1)
    )
    every = (1, 2, 3, 4)
    return ContentFile(
        DataFileContent.DATA,
        f"file://{path}",
        "PARQUET",
        0,
        (part,) if partitioned else (),
        ROWS,
        size,
        column_sizes=dict.fromkeys(every, 100),
        value_counts=dict.fromkeys(every, ROWS),
        null_value_counts=dict.fromkeys(every, 0),
        nan_value_counts={2: 0},
        lower_bounds=low,
        upper_bounds=high,
        split_offsets=(4,),
        sort_order_id=0,
    )


_MAKERS: dict[str, Callable[[Path, int], None]] = {
    "parquet": make_parquet,
    "linked": make_linked,
    "iceberg": make_iceberg,
    "iceberg_partitioned": lambda root, files: make_iceberg(root, files, partitioned=True),
}


def _name(number: int) -> str:
    return f"part-{number:07d}.parquet"


def _pick(files: int) -> list[int]:
    """The files that the merge hits."""
    return [number * (files // HITS) for number in range(HITS)]


def _write_file(path: Path, number: int, *, part: int | None = None) -> None:
    columns: dict[str, Any] = {
        "id": pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64()),
        "v": pa.array([0.5] * ROWS),
        "s": pa.array(["old"] * ROWS),
    }
    table = pa.table(columns)
    if part is not None:
        table = table.append_column("part", pa.array([part] * ROWS, pa.int32()))
        ids = [
            field.with_metadata({"PARQUET:field_id": str(place)})
            for place, field in enumerate(table.schema, 1)
        ]
        table = table.cast(pa.schema(ids))
    pq.write_table(table, path, store_schema=False)


def _write_source(root: Path, files: int, *, parts: bool = False) -> None:
    picked = _pick(files)
    rows = pa.table({"id": [n * ROWS + 3 for n in picked], "v": [1.5] * HITS, "s": ["new"] * HITS})
    if parts:
        rows = rows.append_column("part", pa.array([n // MANIFEST for n in picked], pa.int32()))
    pq.write_table(rows, root / "source.parquet")


def _measure_parquet(root: Path, what: str) -> dict[str, float]:
    import intarsia
    from intarsia.tables.parquet import ParquetTable, list_data_files

    rows, table = pq.read_table(root / "source.parquet"), ParquetTable(root / "data")
    works: dict[str, Callable[[], Any]] = {
        "scandir": lambda: _scan(root / "data"),
        "list": lambda: list_data_files(table.storage, table.control.root),
        "plan": lambda: _plan(table, rows),
        "merge": lambda: intarsia.merge(rows, root / "data", on="id", engine="arrow"),
    }
    return _measure(works[what])


def _measure_iceberg(root: Path, what: str) -> dict[str, float]:
    import intarsia
    from intarsia.tables.iceberg import IcebergTable
    from intarsia.tables.iceberg.catalog import embedded_catalog, load_table
    from intarsia.tables.iceberg.state import BranchState, ManifestCache

    rows, loaded = pq.read_table(root / "source.parquet"), load_table(embedded_catalog(root), "db.t")
    table = IcebergTable(loaded)

    def read_manifests() -> Any:
        state = BranchState.of(loaded, None, ManifestCache(loaded.io))
        return list(state.iterate_entries(deletes=False))

    works: dict[str, Callable[[], Any]] = {
        "list": read_manifests,
        "plan": lambda: _plan(table, rows),
        "plan again": lambda: _plan(table, rows),
        "merge": lambda: intarsia.merge(rows, loaded, on="id", engine="arrow"),
    }
    if what == "plan again":
        _plan(table, rows)
    return _measure(works[what])


def _scan(directory: Path) -> list[os.stat_result]:
    with os.scandir(directory) as found:
        return [entry.stat(follow_symlinks=False) for entry in found]


def _plan(table: Any, rows: pa.Table) -> Any:
    """What a merge does up to its plan: listing, footers or manifests, bounds."""
    from intarsia.arguments import make_rule, parse_keys
    from intarsia.core.intent import MergeIntent
    from intarsia.core.run import _make_engine_plan, ignore_progress
    from intarsia.engines.arrow import ArrowEngine

    engine, intent = (
        ArrowEngine(),
        MergeIntent(rule=make_rule("upsert", None, None), **parse_keys("id", None)),
    )
    with engine.ingest(rows) as source:
        found = table.snapshot()
        prepared = engine.prepare(intent, found, source)
        plan = _make_engine_plan(prepared, found, engine, reason="", progress=ignore_progress)
    assert plan.count("scan") == HITS
    return plan


def _measure(work: Callable[[], Any]) -> dict[str, float]:
    import intarsia
    import intarsia.core.run
    import intarsia.engines.arrow

    _ = intarsia.merge  # which is imported when it is asked for
    gc.collect()
    before, began = _count_resident_bytes(), time.process_time()
    held = work()
    cpu = time.process_time() - began
    found = {"cpu": cpu, "bytes": _count_resident_bytes() - before}
    del held
    return found


def _count_resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
