"""Duplicate rows of a table, found by Spark over key columns alone; each file then loses its own."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.sql import Window
from pyspark.sql import functions as F

from intarsia.core.change import Hits, Matches
from intarsia.core.keys import arange, decode_dictionary, to_array, to_comparable
from intarsia.core.plan import Plan
from intarsia.core.rule import Drop
from intarsia.core.snapshot import DataFile
from intarsia.engines.spark.join import FILE, POSITION, make_frame, name_keys, with_keys
from intarsia.engines.spark.source import Spool
from intarsia.engines.spark.staging import without_files
from intarsia.engines.spark.tasks import TaskRunner
from intarsia.engines.spark.types import to_spark_types
from intarsia.kernel.duplicates import check_keys, check_order
from intarsia.kernel.overlay import take_rows
from intarsia.kernel.read import FileReader
from intarsia.spark.collect import collect


def find_duplicates(
    runner: TaskRunner,
    plan: Plan,
    place: Spool,
    *,
    files: Sequence[DataFile],
    keys: tuple[str, ...],
    order_by: tuple[str, ...],
) -> Matches:
    """The rows that lose against another of the same key; the highest order wins, then the last row.

    The driver gets the positions of the losers, eight bytes each.
    """
    names = check_keys(plan, keys)
    check_order(plan, order_by)
    files = plan.snapshot.sort_files(files)
    work = RankWork(without_files(plan), names, order_by, place.filesystem, place.directory)
    jobs = list(enumerate(files))
    written = runner.run_each(write_ranks, jobs, shared=work, weights=[file.size for file in files])
    locations = [location for location in written if location is not None]
    if not locations:
        return Matches((Drop(),))
    order = [F.col(_name_order_column(number)).desc_nulls_last() for number in range(len(order_by))]
    last = [F.col(FILE).desc(), F.col(POSITION).desc()]
    window = Window.partitionBy(*name_keys(len(work.keys))).orderBy(*order, *last)
    ranked = make_frame(runner, locations, place.filesystem).withColumn(
        "__place", F.row_number().over(window)
    )
    lost = collect(ranked.where("__place > 1").select(FILE, POSITION))
    return _make_matches(files, lost)


def _name_order_column(number: int) -> str:
    return f"__o{number}"


def _make_matches(files: Sequence[DataFile], lost: pa.Table) -> Matches:
    hits: dict[str, Hits] = {}
    dropped: set[str] = set()
    numbers, positions = to_array(lost[FILE]), to_array(lost[POSITION])
    for number in pc.unique(numbers).to_pylist():
        mine = positions.filter(pc.equal(numbers, number))
        file = files[number]
        if len(mine) == file.rows:
            dropped.add(file.path)
        else:
            hits[file.path] = Hits(mine.take(pc.array_sort_indices(mine)))
    return Matches((Drop(),), hits, frozenset(dropped), deleted=lost.num_rows)


@dataclass(frozen=True, slots=True)
class RankWork:
    """Writes what decides between duplicates."""

    plan: Plan
    keys: tuple[str, ...]
    order_by: tuple[str, ...]
    filesystem: pafs.FileSystem
    directory: str


def write_ranks(work: RankWork, job: tuple[int, DataFile]) -> str | None:
    """Key and order of every row of one file that is not dead, with its place; runs on an executor."""
    number, file = job
    snapshot = work.plan.snapshot
    columns = list(dict.fromkeys([*work.keys, *work.order_by]))
    location = f"{work.directory}/{uuid.uuid4().hex}.parquet"
    writer: pq.ParquetWriter | None = None
    start = 0
    with FileReader(file, snapshot.schema, snapshot.filesystem) as reader:
        for group in range(reader.footer.num_row_groups):
            for table in reader.read_pieces(columns, group):
                sent = _rank_columns(table, work, number, start)
                live = reader.find_live_rows(start, table.num_rows)
                start += table.num_rows
                sent = sent if live is None else take_rows(sent, live)
                if writer is None:
                    writer = pq.ParquetWriter(location, sent.schema, filesystem=work.filesystem)
                writer.write_table(sent)
    if writer is None:
        return None
    writer.close()
    return location


def _rank_columns(table: pa.Table, work: RankWork, number: int, start: int) -> pa.Table:
    rows = table.num_rows
    place: dict[str, Any] = {
        FILE: pa.repeat(pa.scalar(number, pa.int32()), rows),
        POSITION: arange(rows, start),
    }
    sent = with_keys(pa.table(place), [table[name] for name in work.keys])
    for order, name in enumerate(work.order_by):
        plain = pa.table({"order": decode_dictionary(to_comparable(table[name]))})
        sent = sent.append_column(_name_order_column(order), to_spark_types(plain)["order"])
    return sent
