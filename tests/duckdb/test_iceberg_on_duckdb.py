"""Every operation on Iceberg tables by DuckDB: the rows, counts and errors of the in-process engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.bad_input.trial import flip_a_bit
from tests.duckdb.iceberg_tables import large, many_rows, mapped, promoted, struck, wide
from tests.spark.iceberg_twins import Twin, Twins, evolved, rows, unpartitioned

import intarsia as it
from intarsia.core.ports import LINEAGE
from intarsia.engines.duckdb import DuckDBEngine
from intarsia.engines.duckdb.session import Session
from intarsia.errors import DamagedTable, KeyColumnError

COPY, VEIL = "copy-on-write", "merge-on-read"
SOURCE = rows([*range(100, 130), *range(230, 260)], v=1000.0, name="new")
MOVED = rows([*range(50, 80), *range(150, 160)], v=1000.0, name="moved", shift=1)
TWICE = pa.concat_tables([SOURCE, rows(range(110, 120), v=5000.0, name="again")])

CLAUSES = """
when matched and source.v < 1105 then delete
when matched and target.id % 2 = 0 then update set v = target.v + source.v, name = 'both'
when matched then update set *
when not matched and source.id % 3 = 0 then insert (id, region, v) values (source.id, 'eu', -1)
when not matched then insert *
when not matched by source and target.id < 20 then delete
when not matched by source and target.id = 25 then update set name = upper(name)
"""

Operation = Callable[[Any, Any], it.MergeResult]


def merging(source: pa.Table, on: str = "id", **options: Any) -> Operation:
    return lambda target, engine: it.merge(source, target, engine=engine, on=on, **options)


def writing(source: pa.Table, mode: str) -> Operation:
    return lambda target, engine: it.write(source, target, mode=mode, engine=engine)


CONDITION = "target.id = source.id and target.v < 115"
MATCHED = """
when matched then update set v = source.v
when not matched and source.id > 250 then insert *
"""

OPERATIONS: dict[str, Operation] = {
    "upsert": merging(SOURCE),
    "insert": merging(SOURCE, strategy="insert"),
    "update": merging(SOURCE, strategy="update"),
    "full merge": merging(SOURCE, strategy="full_merge"),
    "deduplicate": merging(TWICE, strategy="deduplicate", dedup_order_by="v"),
    "rows move": merging(MOVED),
    "clauses": merging(SOURCE, clauses=CLAUSES),
    "condition": merging(SOURCE, CONDITION, clauses=MATCHED),
    "append": writing(SOURCE, "append"),
    "overwrite": writing(SOURCE, "overwrite"),
    "delete": lambda t, e: it.delete(t, "v > 90 and name != 'old 150'", engine=e),
    "delete all": lambda t, e: it.delete(t, "true", engine=e),
    "update rows": lambda t, e: it.update(
        t, {"v": "v * 2", "region": "'us'"}, "id between 55 and 125", engine=e
    ),
    "update all": lambda t, e: it.update(t, {"name": "name || '!'"}, engine=e),
    "compact": lambda t, e: it.compact(t, engine=e),
    "optimize": lambda t, e: it.optimize(t, by=["ts", "v"], engine=e),
    "hilbert": lambda t, e: it.optimize(
        t, by=["ts", "id"], curve="hilbert", target_rows_per_file=20, engine=e
    ),
    "sort out": lambda t, e: it.optimize(t, by=["v"], deduplicate_on=["region", "ts"], engine=e),
    "drop duplicates": lambda t, e: it.deduplicate(t, on=["region", "ts"], order_by=["v"], engine=e),
    "drop the earlier": lambda t, e: it.deduplicate(t, on=["region", "ts"], engine=e),
}


COPIED = [(name, COPY) for name in ("clauses", "update rows", "drop duplicates")]
SEEKING = ("upsert", "full merge", "clauses", "condition", "delete", "delete all", "update all", "hilbert",
           "sort out", "drop the earlier")  # fmt: skip


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    return Twins(tmp_path_factory.mktemp("twins"))


def content(twin: Twin) -> list[str]:
    """All rows, as they are read here: PyIceberg does not apply deletes by value."""
    return sorted(map(repr, it.read(twin.target).read_all().to_pylist()))


def named(twin: Twin) -> set[str]:
    """The data and delete files that the table has now."""
    state = twin.target.read_state()
    entries = [entry for deletes in (False, True) for entry in state.iterate_entries(deletes=deletes)]
    return {entry.file.file_path.removeprefix("file://") for entry in entries}


def lineage(twin: Twin, before: set[int]) -> dict[int, tuple[int, int]]:
    return {key: row for key, row in twin.lineage().items() if key in before}


def agree(pair: tuple[Twin, Twin], operation: Operation, engine: Any = "duckdb") -> it.MergeResult:
    """The same counts, the same files that go, the same rows, and those of before with the same identity."""
    arrow, other = pair
    keeps = other.table().format_version == 3
    before = set(other.lineage()) if keeps else set()
    files = other.data_files()
    expected = operation(arrow.target, "arrow")
    files |= arrow.data_files()
    result = operation(other.target, engine)
    assert dict(result) == dict(expected)
    for name in ("source_count", "target_count_before", "target_count_after", "operation", "strategy"):
        assert getattr(result, name) == getattr(expected, name), name
    for name in ("rewritten_files", "removed_files", "preserved_files", "files_with_deletes"):
        assert sorted(getattr(result, name)) == sorted(getattr(expected, name)), name
    assert content(other) == content(arrow)
    if keeps:
        assert lineage(other, before) == lineage(arrow, before)
    assert other.data_files() - files <= named(other)
    return result


@pytest.mark.parametrize("mode", [COPY, VEIL])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_evolved_table_with_deleted_rows_agrees(twins: Twins, name: str, mode: str) -> None:
    agree(twins(evolved, 2, mode), OPERATIONS[name])


@pytest.mark.parametrize(("name", "mode"), [*((name, VEIL) for name in OPERATIONS), *COPIED])
def test_a_table_of_version_3_agrees_and_rows_keep_their_identity(twins: Twins, name: str, mode: str) -> None:
    agree(twins(evolved, 3, mode), OPERATIONS[name])


@pytest.mark.parametrize("name", ["rows move", "clauses", "delete", "update rows", "optimize", "hilbert"])
def test_a_table_of_version_1_agrees(twins: Twins, name: str) -> None:
    agree(twins(evolved, 1, COPY), OPERATIONS[name])


@pytest.mark.parametrize("name", ["upsert", "full merge", "compact", "hilbert", "drop duplicates"])
def test_a_table_without_partitions_agrees(twins: Twins, name: str) -> None:
    agree(twins(unpartitioned, 2, VEIL), OPERATIONS[name])


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_dynamic_overwrite_agrees(twins: Twins, version: int) -> None:
    agree(twins(evolved, version, None), writing(SOURCE, "overwrite_partitions"))


@pytest.mark.parametrize(("name", "mode"), [*((name, VEIL) for name in SEEKING), *COPIED])
def test_rows_deleted_by_value_stay_deleted(twins: Twins, name: str, mode: str) -> None:
    pair = twins(struck, 2, mode)
    assert len(content(pair[0])) == 240 - 40 - 20 + 5
    agree(pair, OPERATIONS[name])


def many(ids: Any, version: int = 2) -> pa.Table:
    names = ["id", "f", "d", "at", "u", "b", "day", "tags", "again", "late"]
    kinds = [
        pa.int64(), pa.float64(), pa.decimal128(18, 2), pa.timestamp("us", "UTC"), pa.binary(16),
        pa.binary(), pa.date32(), pa.list_(pa.string()), pa.string(), pa.string(),
    ]  # fmt: skip
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    return many_rows(ids, schema)


KINDS: dict[str, Operation] = {
    "promoted key": merging(many(range(60, 220)), strategy="insert", missing="null"),
    "several keys": lambda t, e: it.merge(
        many(range(60, 220, 3)), t, on=["u", "day", "d"], engine=e, null_keys="match", missing="null"
    ),
    "float key": merging(
        many(range(3)).select(["f"]), "target.f = source.f",
        clauses="when matched then update set late = 'hit'", null_keys="match",
    ),
    "uuid key": merging(
        many(range(50, 160, 4)).select(["u", "late"]), "u",
        clauses="when matched and target.again is null then update set late = source.late",
    ),
    "constants": lambda t, e: it.delete(t, "late is null and again is null and id > 60", engine=e),
    "promoted": lambda t, e: it.update(t, {"d": "d + 0.25", "f": "1.0"}, "f = 2.25 or d > 30", engine=e),
    "times": lambda t, e: it.delete(
        t, "at > timestamptz '2026-03-02 00:00:00+00:00' and day < date '2026-01-05'", engine=e
    ),
    "bytes": lambda t, e: it.delete(t, pc.field("b") == b"\2\0\xff", engine=e),
    "nested alike": lambda t, e: it.update(t, {"late": "'tagged'"}, "tags is not null", engine=e),
    "nested changed": lambda t, e: it.delete(t, "point.z is null and point.x < 70", engine=e),
    "duplicates": lambda t, e: it.deduplicate(t, on=["f", "day", "again"], order_by=["u"], engine=e),
    "of bytes": lambda t, e: it.deduplicate(t, on=["b", "late"], order_by=["d", "at"], engine=e),
    "optimize": lambda t, e: it.optimize(t, by=["f", "u"], engine=e),
}  # fmt: skip


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", KINDS)
def test_columns_that_were_promoted_renamed_and_added_agree(twins: Twins, name: str, version: int) -> None:
    agree(twins(promoted, version, VEIL), KINDS[name])


def test_a_default_of_files_that_lack_the_column_is_seen(twins: Twins) -> None:
    counts = pa.table({"c": [11, 150]})
    operations: list[tuple[Operation, int]] = [
        (lambda t, e: it.delete(t, "count = 11", engine=e), 140 - 16),
        (merging(counts, "target.count = source.c", clauses="when matched then delete"), 125),
        (lambda t, e: it.deduplicate(t, on="count", engine=e), 123),
    ]
    for operation, count in operations:
        assert agree(twins(promoted, 3, VEIL), operation).deleted == count


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("constants", ()),
        ("nested alike", ()),
        ("nested changed", ("matched by PyArrow", "'point' is stored as")),
        ("optimize", ("ordered by PyArrow", "'point' is stored as")),
    ],
)
def test_what_duckdb_cannot_read_is_said(twins: Twins, name: str, said: tuple[str, ...]) -> None:
    notes = " ".join(KINDS[name](twins(promoted, 2, VEIL)[1].target, "duckdb").notes)
    assert all(part in notes for part in said)
    assert ("by PyArrow: " in notes) == bool(said)


def test_rows_are_matched_and_ordered_by_duckdb(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyArrow writes, and reads what it writes anew; it finds nothing."""

    names = ("upsert", "clauses", "delete", "update rows", "drop duplicates", "sort out")
    targets = [twins(evolved, 2, VEIL)[1].target for _ in names]

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("PyArrow does it")

    for name in ("match.MergeMatcher.scan", "local.find_predicate_hits", "duplicates.match_duplicates"):
        monkeypatch.setattr(f"intarsia.kernel.{name}", refused)
    monkeypatch.setattr("intarsia.kernel.optimize._SortTask.write", refused)
    for name, target in zip(names, targets, strict=True):
        OPERATIONS[name](target, "duckdb")


def test_a_plan_and_a_dry_run_count_and_write_nothing(twins: Twins) -> None:
    arrow, other = twins(evolved, 2, VEIL)
    before, seen = other.data_files(), content(other)
    dry: list[Operation] = [
        merging(SOURCE, dry_run=True),
        merging(SOURCE, clauses=CLAUSES, dry_run=True),
        lambda t, e: it.delete(t, "v > 90", engine=e, dry_run=True),
        lambda t, e: it.update(t, {"v": "0"}, "id < 90", engine=e, dry_run=True),
        lambda t, e: it.deduplicate(t, on="region", engine=e, dry_run=True),
    ]
    for operation in dry:
        assert dict(operation(other.target, "duckdb")) == dict(operation(arrow.target, "arrow"))
    plan = it.plan("delete", other.target, "id < 20", engine="duckdb")
    assert (plan.engine, plan.deleted) == ("duckdb", 18)
    assert (other.data_files(), content(other)) == (before, seen)


def test_tables_optimized_into_many_files_are_in_order(twins: Twins) -> None:
    _, twin = twins(unpartitioned, 2, VEIL)
    it.optimize(twin.target, by="name", engine="duckdb", target_rows_per_file=60)
    snapshot = twin.target.snapshot()
    assert len(snapshot.files) == 4
    paths = sorted(file.path for file in snapshot.files)
    names = []
    for path in paths:
        table = pq.read_table(path.removeprefix("file://"))
        names += table["name"].to_pylist()
        assert not set(LINEAGE) & set(table.column_names)
    assert names == sorted(names)


def test_errors_are_those_of_the_in_process_engine(twins: Twins) -> None:
    pair = twins(evolved, 2, VEIL)
    before = pair[1].data_files()
    attempts: list[Callable[[Any, Any], Any]] = [
        merging(TWICE),
        merging(TWICE, clauses="when matched then update set v = source.v"),
        merging(SOURCE.set_column(0, "id", pa.nulls(SOURCE.num_rows, pa.int64()))),
        merging(SOURCE, on="region", strategy="insert"),
        lambda t, e: it.update(t, {"v": "100 / (id - 150)"}, engine=e),
        lambda t, e: it.optimize(t, by="nothing", engine=e),
    ]
    for attempt in attempts:
        said = []
        for twin, engine in zip(pair, ("arrow", "duckdb"), strict=True):
            with pytest.raises(it.IntarsiaError) as caught:
                attempt(twin.target, engine)
            said.append((type(caught.value), str(caught.value).replace(twin.name, "t")))
        assert said[0] == said[1]
    assert pair[1].data_files() == before


def test_a_null_key_of_a_row_that_is_dead_is_no_error(twins: Twins) -> None:
    """Rows with a NULL region make a merge on it impossible, until they are deleted."""
    merge = merging(SOURCE.slice(0, 1), on="region", strategy="insert")
    pair = twins(unpartitioned, 2, VEIL)
    for twin, engine in zip(pair, ("arrow", "duckdb"), strict=True):
        with pytest.raises(KeyColumnError):
            merge(twin.target, engine)
        it.delete(twin.target, "region is null", engine=engine)
    agree(pair, merge)


@pytest.mark.parametrize("name", ["upsert", "clauses", "delete", "update rows", "optimize", "sort out"])
def test_files_without_ids_or_their_partition_column_agree(twins: Twins, name: str) -> None:
    agree(twins(mapped, 2, VEIL), OPERATIONS[name])


def test_with_little_memory_rows_go_to_disk_and_nothing_stays_there(twins: Twins, tmp_path: Path) -> None:
    engine = DuckDBEngine(memory_bytes=64 << 20, spool_dir=tmp_path / "spool", threads=2)
    (tmp_path / "spool").mkdir()
    pair = twins(large, 2, VEIL)
    source = wide(range(100_000, 400_000, 2), "new")
    pq.write_table(source, tmp_path / "source.parquet", row_group_size=20_000)
    operations: list[Operation] = [
        merging(str(tmp_path / "source.parquet")),  # type: ignore[arg-type]
        lambda t, e: it.deduplicate(t, on="group", order_by="text", engine=e),
        lambda t, e: it.optimize(t, by=["text", "group"], engine=e),
    ]
    for operation in operations:
        arrow, other = pair
        assert dict(operation(other.target, engine)) == dict(operation(arrow.target, "arrow"))
        assert list((tmp_path / "spool").iterdir()) == []
    both = [it.read(twin.target).read_all().sort_by("id") for twin in pair]
    assert both[0].equals(both[1])


def test_auto_takes_duckdb_for_what_does_not_fit(twins: Twins) -> None:
    target = twins(large, 2, VEIL)[1].target
    planned = it.plan("deduplicate", target, on="group", order_by="text", memory_bytes=1 << 20)
    assert planned.engine == "duckdb"
    assert "memory_bytes is" in planned.engine_reason


def test_a_damaged_page_of_a_renamed_column_is_found_before_it_decides(tmp_path: Path) -> None:
    twin = Twins(tmp_path)(evolved, 2, VEIL)[1]
    snapshot = twin.target.snapshot()
    first = next(file.location for file in snapshot.files if "title" in pq.read_schema(file.location).names)
    flip_a_bit(Path(first), column=pq.read_schema(first).names.index("title"))
    before = twin.data_files()
    with pytest.raises(DamagedTable, match=Path(first).name):
        it.delete(twin.target, "name like 'old%'", engine="duckdb")
    assert twin.data_files() == before
    assert it.delete(twin.target, "id < 0", engine="duckdb").deleted == 0  # of which nothing is looked at


@pytest.fixture
def connection() -> Any:
    with duckdb.connect() as opened:
        for name, value in (
            ("preserve_insertion_order", "false"),
            ("default_order", "'desc'"),
            ("default_null_order", "'nulls_first'"),
            ("TimeZone", "'Asia/Tokyo'"),
            ("threads", "3"),
        ):
            opened.execute(f"set {name} = {value}")
        yield opened


def _state(connection: Any) -> list[Any]:
    return [
        connection.execute(f"select * from {what}() order by all").fetchall()
        for what in ("duckdb_settings", "duckdb_databases", "duckdb_tables", "duckdb_views")
    ]


@pytest.mark.parametrize("name", ["upsert", "clauses", "delete", "hilbert", "sort out", "drop duplicates"])
def test_a_connection_of_the_callers_stays_as_it_is(twins: Twins, connection: Any, name: str) -> None:
    before = [len(part) for part in _state(connection)], _state(connection)[0]
    agree(twins(evolved, 3, VEIL), OPERATIONS[name], connection)
    assert ([len(part) for part in _state(connection)], _state(connection)[0]) == before


def test_only_key_columns_of_files_that_are_not_hit_are_read(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for method in ("run", "fetch_rows", "open_reader"):
        plain = getattr(Session, method)

        def watched(self: Session, sql: str, *rest: Any, plain: Any = plain) -> Any:
            asked.append(sql)
            return plain(self, sql, *rest)

        monkeypatch.setattr(Session, method, watched)
    it.merge(SOURCE, twins(evolved, 2, VEIL)[1].target, on="id", engine="duckdb")
    assert [sql for sql in asked if "read_parquet" in sql]
    assert not [sql for sql in asked if '"v"' in sql or '"title"' in sql or '"name"' in sql]
