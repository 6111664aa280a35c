"""One suite for every engine on every table: the ``lake`` fixture is where they meet.

To add an engine or a table, add its line to ``LAKES``; a table also needs its class in ``TABLES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.contract.iceberg_lakes import COW, MOR, EvolvedTable, Warehouse

import intarsia as it
from intarsia.datasets.pyarrow import PyarrowDatasetIO

LAKES = [
    ("arrow", "parquet"),
    ("duckdb", "parquet"),
    ("spark", "parquet"),
    ("arrow", "iceberg-cow"),
    ("arrow", "iceberg-mor"),
    ("arrow", "iceberg-v3"),
    ("duckdb", "iceberg-mor"),
    ("spark", "iceberg-mor"),
]

NOTHING = pa.schema([])

NOT_ON_SPARK = {
    "test_processes_that_upsert_the_same_keys_never_mix": "see tests/spark/test_two_drivers.py",
}

_WATCHED = "DuckDB reads by itself; see tests/duckdb/test_duckdb_limits.py"
_UNKEPT = "DuckDB's writer does not keep it, and the plan says so; see tests/duckdb/test_duckdb_writer.py"

NOT_ON_DUCKDB = {
    "test_no_call_reads_more_rows_than_asked_for": _WATCHED,
    "test_without_a_limit_a_row_group_is_the_most": _WATCHED,
    "test_only_key_columns_of_files_that_are_not_hit_are_read": _WATCHED,
    "test_codecs_of_single_columns_stay": _UNKEPT,
    "test_row_groups_keep_their_rows": _UNKEPT,
    "test_bloom_filters_and_the_page_index_stay": _UNKEPT,
    "test_a_declared_order_stays_true": _UNKEPT,
    "test_new_files_look_like_the_files_beside_them": _UNKEPT,
}

if duckdb.__version__ < "2":
    NOT_ON_DUCKDB["test_a_dictionary_is_given_only_where_it_pays"] = _UNKEPT

_NO_TABLE = "a table is made by its catalog, not by an operation"
_MOVES = "rows of an Iceberg table may move to another partition"
_OWN_SCHEMA = "an Iceberg table's schema has ids, and is evolved by update_schema()"

NOT_ON_ICEBERG = {
    "test_a_table_that_does_not_exist_is_made": _NO_TABLE,
    "test_a_table_that_does_not_exist_is_made_of_inserts": _NO_TABLE,
    "test_a_table_that_does_not_exist_is_an_error": _NO_TABLE,
    "test_nothing_to_compact_at_all_is_an_error": _NO_TABLE,
    "test_writes_and_clauses_take_any_source_too": _NO_TABLE,
    "test_columns_that_differ_only_by_case_are_refused_in_a_new_table": _NO_TABLE,
    "test_partition_columns_keep_their_type": _NO_TABLE,
    "test_partition_types_and_metadata_survive_a_rewrite_of_texts_that_repeat": _NO_TABLE,
    "test_a_key_must_not_move_to_a_partition_that_is_new": _MOVES,
    "test_partition_columns_cannot_be_assigned": _MOVES,
    "test_other_partition_columns_than_the_tables_are_refused": "its spec decides; see tests/iceberg",
    "test_a_predicate_on_the_partition_alone_reads_nothing": "files of the earlier spec have to be read",
    "test_overwrite_may_change_the_schema": _OWN_SCHEMA,
    "test_types_that_never_meet_are_refused_with_both_named": _OWN_SCHEMA,
    "test_moves_that_let_rows_be_seen_twice_are_noted": "a snapshot swaps all files at once",
    "test_a_key_named_like_the_path_of_a_struct_field_is_looked_for_by_its_own_bounds": "no such schema",
    "test_a_column_of_any_name_can_be_a_key_or_be_ordered_by": "no such schema: a.b beside a struct a",
    "test_a_quoted_name_is_a_column_and_a_plain_one_with_a_dot_a_field": "no such schema",
}

NO_ICEBERG_TYPE = {"uint64", "decimal256", "duration", "ns and us", "a negative number"}
"""Cases of types that Iceberg does not have, by the name of the case."""

TASKS_HERE = (
    "test_no_call_reads_more_rows_than_asked_for",
    "test_without_a_limit_a_row_group_is_the_most",
    "test_only_key_columns_of_files_that_are_not_hit_are_read",
)
"""These watch the reads of their own process, so Spark's tasks are run in it, packed as for a worker."""


HERE = Path(__file__).parent
LAKE_FIXTURES = ("lake", "parquet_lake", "iceberg_lake")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop the cases that a lake cannot have."""
    run = [all(_is_had(item, *lake) for lake in _get_lakes(item)) for item in items]
    config.hook.pytest_deselected(items=[item for item, wanted in zip(items, run, strict=True) if not wanted])
    items[:] = [item for item, wanted in zip(items, run, strict=True) if wanted]


def _get_lakes(item: pytest.Item) -> list[tuple[str, str]]:
    parts = getattr(item, "callspec", None)
    if parts is None or item.path.parent != HERE:  # other suites have lakes of their own
        return []
    return [parts.params[name] for name in LAKE_FIXTURES if name in parts.params]


def _is_had(item: pytest.Item, engine: str, table: str) -> bool:
    assert isinstance(item, pytest.Function)
    never = {"duckdb": NOT_ON_DUCKDB, "spark": NOT_ON_SPARK}.get(engine, {})
    return item.originalname not in never and (table == "parquet" or _has_iceberg(item))


def _has_iceberg(item: pytest.Function) -> bool:
    parameters = item.callspec.params
    durations = any(
        isinstance(value, pa.Array) and pa.types.is_duration(value.type) for value in parameters.values()
    )
    return not (durations or item.originalname in NOT_ON_ICEBERG or parameters.get("name") in NO_ICEBERG_TYPE)


@dataclass
class ParquetDirectory:
    """A directory of plain Parquet files, made and read without intarsia."""

    root: Path
    make_dataset: Callable[..., Path]
    read: Callable[..., list[dict[str, Any]]]
    watch: Callable[[Path], AbstractContextManager[None]]
    new_columns_by = 'schema_evolution="add"'

    @property
    def target(self) -> Any:
        return self.root

    def create(self, table: pa.Table, files: Any, partition_by: Sequence[str], **writer: Any) -> None:
        self.make_dataset(self.root, table, files=files, partition=partition_by, **writer)

    def rows(self, schema: pa.Schema | None) -> list[dict[str, Any]]:
        return self.read(self.root, schema=schema) if self.root.exists() else []

    def intrude(self, table: pa.Table, number: int) -> None:
        """Add rows as a writer does that does not know intarsia."""
        pq.write_table(table, self.root / f"foreign-{number}.parquet")

    def own(self) -> pa.Table:
        """The rows as we read them ourselves."""
        return PyarrowDatasetIO().read_parquet(self.root)

    def check(self) -> None:
        """Nothing: what readers find is all there is."""

    def unchanged(self) -> AbstractContextManager[None]:
        return self.watch(self.root)


def _parquet(request: pytest.FixtureRequest) -> ParquetDirectory:
    found = map(request.getfixturevalue, ("make_dataset", "rows", "unchanged"))
    return ParquetDirectory(request.getfixturevalue("tmp_path") / "lake", *found)


def _iceberg(version: int, mode: str) -> Callable[[pytest.FixtureRequest], EvolvedTable]:
    def made(request: pytest.FixtureRequest) -> EvolvedTable:
        warehouse, rows = (request.getfixturevalue(name) for name in ("warehouse", "rows"))
        return EvolvedTable(warehouse, rows, version, mode)

    return made


TABLES: dict[str, Callable[[pytest.FixtureRequest], Any]] = {
    "parquet": _parquet,
    "iceberg-cow": _iceberg(2, COW),
    "iceberg-mor": _iceberg(2, MOR),
    "iceberg-v3": _iceberg(3, MOR),
}


@dataclass
class Lake:
    """One table under one engine: the verbs, and what an independent reader finds."""

    engine: str
    table: Any
    schema: pa.Schema = field(default_factory=lambda: NOTHING)

    def create(
        self, table: pa.Table, *, files: Any = 1, partition_by: str | Sequence[str] = (), **writer: Any
    ) -> Lake:
        """Make the table of these rows; ``files`` is a number, or the rows of each file."""
        names = [partition_by] if isinstance(partition_by, str) else list(partition_by)
        self.table.create(table, files, names, **writer)
        self.schema = table.schema
        return self

    @property
    def target(self) -> Any:
        return self.table.target

    def rows(self) -> list[dict[str, Any]]:
        """All rows as sorted dicts; partition values in the types the table was made with."""
        return self.table.rows(self.schema if self.schema.names else None)

    def unchanged(self) -> AbstractContextManager[None]:
        """Afterwards every byte of the table is as it was, and nothing has come."""
        return self.table.unchanged()  # type: ignore[no-any-return]

    def own(self) -> pa.Table:
        """All rows, as we read them ourselves."""
        return self.table.own()

    def values(self, *names: str) -> list[Any]:
        """Sorted values of one column, or tuples of several."""
        found = [tuple(row[name] for name in names) for row in self.rows()]
        found.sort(key=lambda row: [(value is None, repr(value) if _odd(value) else value) for value in row])
        return [row[0] for row in found] if len(names) == 1 else found

    def merge(self, source: Any, **options: Any) -> it.MergeResult:
        return it.merge(source, self.target, engine=self.engine, **options)

    def delete(self, where: Any, **options: Any) -> it.MergeResult:
        return it.delete(self.target, where, engine=self.engine, **options)

    def update(self, assignments: Any, where: Any = None, **options: Any) -> it.MergeResult:
        return it.update(self.target, assignments, where, engine=self.engine, **options)

    def write(self, source: Any, **options: Any) -> it.MergeResult:
        return it.write(source, self.target, engine=self.engine, **options)

    def compact(self, **options: Any) -> it.MergeResult:
        return it.compact(self.target, engine=self.engine, **options)

    def optimize(self, **options: Any) -> it.MergeResult:
        return it.optimize(self.target, engine=self.engine, **options)

    def deduplicate(self, **options: Any) -> it.MergeResult:
        return it.deduplicate(self.target, engine=self.engine, **options)

    def plan(self, operation: str, *before: Any, **options: Any) -> it.Plan:
        """``plan("merge", source, on="id")``, ``plan("delete", where)``, ``plan("compact")``."""
        if operation in ("merge", "write"):
            return it.plan(operation, before[0], self.target, engine=self.engine, **options)
        return it.plan(operation, self.target, *before, engine=self.engine, **options)

    def snapshot(self, **options: Any) -> Any:
        return it.snapshot(self.target, **options)


@dataclass
class ParquetLake(Lake):
    """A lake whose files can be looked at one by one."""

    @property
    def root(self) -> Path:
        return self.table.root  # type: ignore[no-any-return]

    @property
    def files(self) -> list[str]:
        """Names of all data files below the root, sorted."""
        return sorted(str(file.relative_to(self.root)) for file in self.root.rglob("*.parquet"))

    def file(self, name: str = "part-00000.parquet") -> pa.Table:
        return pq.ParquetFile(self.root / name).read()

    def identity(self, name: str) -> tuple[int, int]:
        """What stays the same only when nobody has written the file."""
        stat = (self.root / name).stat()
        return stat.st_ino, stat.st_mtime_ns

    def footer(self, name: str = "part-00000.parquet") -> pq.FileMetaData:
        return pq.read_metadata(self.root / name)


def _odd(value: Any) -> bool:
    return isinstance(value, (dict, list))


def _name(lake: tuple[str, str]) -> str:
    return "-".join(lake)


def _opened(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The engine and the table asked for; Spark's session is there before the test begins."""
    engine, table = request.param
    if engine == "spark":
        request.getfixturevalue("spark")
    return engine, table


@dataclass
class StageHere:
    """As much of a session as a stage needs; its tasks run in this process."""

    numbers: range = range(0)
    work: Any = None

    def range(self, start: int, stop: int, *_: int) -> StageHere:
        return StageHere(range(start, stop))

    def mapInArrow(self, work: Any, _schema: str) -> StageHere:
        return StageHere(self.numbers, work)

    def toArrow(self) -> pa.Table:
        tasks = (pa.record_batch({"id": pa.array([number], pa.int64())}) for number in self.numbers)
        return pa.Table.from_batches([row for task in tasks for row in self.work(iter([task]))])


@pytest.fixture(autouse=True)
def tasks_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the tasks of a stage in this process, for the tests that need it."""
    on_spark = request.node.get_closest_marker("spark") is not None
    if on_spark and request.node.originalname in TASKS_HERE:
        from intarsia.engines.spark import tasks
        from intarsia.engines.spark.engine import SparkEngine
        from intarsia.engines.spark.tasks import TaskRunner

        monkeypatch.setattr(tasks, "collect", StageHere.toArrow)

        monkeypatch.setattr(SparkEngine, "runner", property(lambda self: TaskRunner(StageHere(), 4)))


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    """The catalog of all Iceberg tables."""
    opened = Warehouse(tmp_path_factory.mktemp("warehouse"))
    yield opened
    opened.catalog.close()


@pytest.fixture(params=LAKES, ids=_name)
def lake(request: pytest.FixtureRequest) -> Iterator[Lake]:
    """Every engine on every table."""
    engine, table = _opened(request)
    made = Lake(engine, TABLES[table](request))
    yield made
    made.table.check()


@pytest.fixture(params=[pair for pair in LAKES if pair[1] == "parquet"], ids=_name)
def parquet_lake(request: pytest.FixtureRequest) -> ParquetLake:
    """Every engine on plain Parquet files, for what only they have: names, footers, directories."""
    engine, table = _opened(request)
    return ParquetLake(engine, TABLES[table](request))


@pytest.fixture(params=[pair for pair in LAKES if pair[1] != "parquet"], ids=_name)
def iceberg_lake(request: pytest.FixtureRequest) -> Lake:
    """Every engine on Iceberg tables, for what only they have: properties, snapshots that are staged."""
    engine, table = _opened(request)
    return Lake(engine, TABLES[table](request))
