"""S26: INT96 timestamps are instants in UTC, in every operation, without losing any."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.core.ext.parquet import read_parquet
from intarsia.datasets.duckdb import DuckDBDatasetIO
from intarsia.datasets.pyarrow import PyarrowDatasetIO
from intarsia.errors import NotSupported, SchemaMismatch

NAIVE = pa.timestamp("us")
UTC = pa.timestamp("us", "UTC")
NEW_YORK = pa.timestamp("us", "America/New_York")
NOON = dt.datetime(2025, 7, 1, 12, tzinfo=dt.UTC)
TIMES = [0, 253_402_300_799_999_999, -62_135_596_800_000_000, NOON, None]
"""1970, the last microsecond of 9999, the first of year 1: all that Spark can write."""

engines = pytest.mark.parametrize("engine", ["arrow", "duckdb"])
SPARK_NOTE = {b"org.apache.spark.version": b"4.1.4"}


def micros(values: list, kind: pa.DataType = UTC) -> pa.Array:
    return pa.array(values, kind)


def write(root: Path, table: pa.Table, name: str = "a.parquet", **options) -> Path:
    root.mkdir(exist_ok=True)
    pq.write_table(table, root / name, use_deprecated_int96_timestamps=True, **options)
    return root


def noted(path: Path) -> dict:
    return pq.read_metadata(path).metadata or {}


def physical(root: Path) -> set[tuple[str, ...]]:
    found = (pq.read_metadata(file).schema for file in root.glob("*.parquet"))
    return {tuple(schema.column(n).physical_type for n in range(len(schema))) for schema in found}


@pytest.fixture
def spark_like(tmp_path: Path) -> Path:
    root = tmp_path / "t"
    root.mkdir()
    table = pa.table({"id": pa.array(range(len(TIMES)), pa.int64()), "at": micros(TIMES, NAIVE)})
    with pq.ParquetWriter(
        root / "a.parquet", table.schema, use_deprecated_int96_timestamps=True, store_schema=False
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(SPARK_NOTE)
    return root


def instants(root: Path) -> dict:
    table = PyarrowDatasetIO().read_parquet(root)
    assert table.schema.field("at").type == UTC
    return dict(zip(table["id"].to_pylist(), table["at"].cast(pa.int64()).to_pylist(), strict=True))


EXPECTED = dict(enumerate(micros(TIMES).cast(pa.int64()).to_pylist()))


def test_s26_every_reader_gives_the_same_instants(spark_like):
    assert instants(spark_like) == EXPECTED
    tables = [
        DuckDBDatasetIO().read_parquet(spark_like),
        it.snapshot(spark_like).dataset().to_table(),
        read_parquet(spark_like),
        read_parquet(spark_like / "a.parquet", columns=["at", "id"]),
    ]
    for table in tables:
        assert table.schema.field("at").type == UTC
        assert table["at"].cast(pa.int64()).to_pylist() == list(EXPECTED.values())


@engines
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "+05:30"])
def test_s26_zoned_sources_fit_whatever_their_zone(spark_like, engine, zone):
    source = pa.table({"id": [1, 9], "at": micros([NOON, NOON], pa.timestamp("ms", zone))})
    result = it.merge(source, spark_like, on="id", engine=engine)
    assert (result.updated, result.inserted) == (1, 1)
    noon = pa.scalar(NOON, UTC).cast(pa.int64()).as_py()
    assert instants(spark_like) == {**EXPECTED, 1: noon, 9: noon}
    assert physical(spark_like) == {("INT64", "INT96")}


@engines
def test_s26_every_operation_keeps_the_other_rows_and_the_physical_type(spark_like, engine):
    expected = dict(EXPECTED)
    it.delete(spark_like, "id = 0", engine=engine)
    del expected[0]
    assert instants(spark_like) == expected
    it.update(spark_like, {"at": "at + interval '1 hour'"}, where="id = 3", engine=engine)
    expected[3] += 3_600_000_000
    assert instants(spark_like) == expected
    it.write(pa.table({"id": [7], "at": micros([NOON], NEW_YORK)}), spark_like, engine=engine)
    expected[7] = expected[3] - 3_600_000_000
    assert instants(spark_like) == expected
    it.compact(spark_like, engine=engine)
    assert instants(spark_like) == expected
    it.optimize(spark_like, by=["at"], engine=engine)
    assert instants(spark_like) == expected
    it.write(it.snapshot(spark_like).dataset().to_table(), spark_like, engine=engine)
    it.deduplicate(spark_like, engine=engine)
    assert instants(spark_like) == expected
    assert physical(spark_like) == {("INT64", "INT96")}
    files = [str(file) for file in spark_like.glob("*.parquet")]
    shown = duckdb.sql(f'select id, epoch_us("at") from read_parquet({files}) order by id').fetchall()
    assert dict(shown) == expected
    assert pl.read_parquet(files).shape == (len(expected), 2)


@engines
def test_s26_keys_meet_as_instants(spark_like, engine):
    source = pa.table({"id": [300], "at": micros([NOON], NEW_YORK)})
    result = it.merge(source, spark_like, on="at", null_keys="match", engine=engine)
    assert (result.updated, result.inserted) == (1, 0)
    assert set(instants(spark_like)) == {0, 1, 2, 300, 4}


@engines
def test_s26_predicates_compare_instants_and_prune_nothing(spark_like, engine):
    result = it.delete(spark_like, "at = timestamptz '2025-07-01 08:00:00-04:00'", engine=engine)
    assert result.deleted == 1
    assert 3 not in instants(spark_like)


@pytest.mark.parametrize(
    "filters",
    [
        [("at", ">", "2025-01-01"), ("id", "=", 3)],
        [("at", "=", "2025-07-01 12:00:00")],
        [("at", "=", "2025-07-01 08:00:00-04:00")],
        [("at", "=", NOON)],
        "at = '2025-07-01 12:00:00'",
        pc.field("at") == pa.scalar(NOON, UTC),
    ],
)
def test_s26_filters_of_readers_compare_instants(spark_like, filters):
    for io in (PyarrowDatasetIO(), DuckDBDatasetIO()):
        assert io.read_parquet(spark_like, filters=filters)["id"].to_pylist() == [3]


@engines
def test_s26_naive_sources_are_refused_and_nothing_changes(spark_like, engine, unchanged):
    source = pa.table({"id": [1], "at": micros([NOON.replace(tzinfo=None)], NAIVE)})
    with unchanged(spark_like), pytest.raises(SchemaMismatch, match="'at' is timestamp") as caught:
        it.merge(source, spark_like, on="id", engine=engine)
    assert "zone" in str(caught.value)
    assert 'naive_timestamps="utc"' in caught.value.hint


@engines
@pytest.mark.parametrize(
    "clauses",
    [
        "when matched then update set *",
        "when not matched then insert *",
        "when matched then update set at = source.at",
        "when not matched then insert (id, at) values (source.id, source.at + interval 1 day)",
    ],
)
def test_s26_clauses_refuse_naive_sources_too(spark_like, engine, clauses, unchanged):
    source = pa.table({"id": [1, 9], "at": micros([5, 6], NAIVE)})
    with unchanged(spark_like), pytest.raises(SchemaMismatch, match="at") as caught:
        it.merge(source, spark_like, on="id", clauses=clauses, engine=engine)
    assert 'naive_timestamps="utc"' in caught.value.hint
    it.merge(source, spark_like, on="id", clauses=clauses, engine=engine, naive_timestamps="utc")


@engines
def test_s26_a_cast_in_a_clause_says_that_naive_is_utc(spark_like, engine):
    source = pa.table({"id": [1], "time": micros([5], NAIVE)})
    clauses = "when matched then update set at = cast(source.time as timestamptz)"
    it.merge(source, spark_like, on="id", clauses=clauses, engine=engine)
    assert instants(spark_like)[1] == 5


def nested_table() -> pa.Table:
    day = dt.datetime(2500, 1, 1)
    return pa.table(
        {
            "id": pa.array([1, 2, 3], pa.int64()),
            "s": pa.array([{"at": day}, {"at": None}, None], pa.struct([("at", NAIVE)])),
            "l": pa.array([[day, None], [], None], pa.list_(NAIVE)),
            "m": pa.array([[(day, day)], [], None], pa.map_(NAIVE, NAIVE)),
        }
    )


@engines
@pytest.mark.parametrize("stored", [True, False], ids=["by Arrow", "by another"])
def test_s26_nested_columns_are_instants_too(tmp_path, engine, stored):
    root = write(tmp_path / "t", nested_table(), store_schema=stored)
    schema = it.snapshot(root).schema
    assert schema.field("s").type.field("at").type == UTC
    assert (schema.field("l").type.value_type, schema.field("m").type.key_type) == (UTC, UTC)
    before = PyarrowDatasetIO().read_parquet(root)
    row = before.slice(0, 1).set_column(0, "id", pa.array([4], pa.int64()))
    it.merge(row, root, on="id", engine=engine)
    it.delete(root, "id = 2", engine=engine)
    after = PyarrowDatasetIO().read_parquet(root).sort_by("id")
    assert after.slice(0, 1).equals(before.slice(0, 1))
    assert after["s"].to_pylist() == [*before["s"].to_pylist()[:3:2], row["s"][0].as_py()]
    assert physical(root) == {("INT64", "INT96", "INT96", "INT96", "INT96")}


# --- Values that not every unit can hold.

FINE = pa.array([1_751_371_200_123_456_789, -1], pa.timestamp("ns"))


@engines
def test_s26_nanoseconds_stay_where_the_file_says_it_has_them(tmp_path, engine):
    root = write(tmp_path / "t", pa.table({"id": [1, 2], "at": FINE}))
    assert it.snapshot(root).schema.field("at").type == pa.timestamp("ns", "UTC")
    it.merge(pa.table({"id": [3], "at": micros([NOON])}), root, on="id", engine=engine)
    it.update(root, {"id": "id + 10"}, where="id = 2", engine=engine)
    it.compact(root, engine=engine)
    found = PyarrowDatasetIO().read_parquet(root).sort_by("id")
    assert found["at"].type == pa.timestamp("ns", "UTC")
    assert found["at"].cast(pa.int64()).to_pylist()[0] == FINE.cast(pa.int64())[0].as_py()
    assert found["at"].cast(pa.int64()).to_pylist()[2] == -1


@engines
def test_s26_nanoseconds_that_nobody_announced_are_refused_not_cut(tmp_path, engine, unchanged):
    root = write(tmp_path / "t", pa.table({"id": [1, 2], "at": FINE}), store_schema=False)
    source = pa.table({"id": [1], "at": micros([NOON])})
    with unchanged(root):
        for operation in (
            lambda: PyarrowDatasetIO().read_parquet(root),
            lambda: it.snapshot(root).dataset(),
            lambda: it.merge(source, root, on="id", engine=engine),
            lambda: it.merge(str(root / "a.parquet"), tmp_path / "new", on="id", engine=engine),
            lambda: read_parquet(root),
        ):
            with pytest.raises(NotSupported, match=r"2 INT96 timestamps in column 'at' of .*nanoseconds"):
                operation()


def test_s26_years_beyond_nanoseconds_are_refused_in_a_dataset_of_nanoseconds(tmp_path):
    root = write(tmp_path / "t", pa.table({"id": [1, 2], "at": FINE}))
    write(root, pa.table({"id": [3], "at": micros([253_402_300_799_999_999], NAIVE)}), "b.parquet")
    write(root, pa.table({"id": [4], "at": micros([0], NAIVE)}), "c.parquet", store_schema=False)
    io = PyarrowDatasetIO()
    with pytest.raises(SchemaMismatch, match="9999-12-31"):
        io.read_parquet(root)
    (root / "b.parquet").unlink()
    assert io.read_parquet(root)["at"].cast(pa.int64()).to_pylist() == [*FINE.cast(pa.int64()).to_pylist(), 0]
    table = pa.table({"id": [5], "at": micros([253_402_300_799_999_999], NAIVE)})
    write(root, table, "d.parquet", store_schema=False)
    with pytest.raises(NotSupported, match="1677 to 2262"):
        io.read_parquet(root)


def test_s26_large_row_groups_are_read_in_pieces(tmp_path):
    count = 5_000
    kind = pa.timestamp("us")
    table = pa.table({"id": range(count), "at": pa.array(range(count), kind), "s": ["x" * 50] * count})
    root = write(tmp_path / "t", table, store_schema=False)
    found = PyarrowDatasetIO().read_parquet(root, batch_rows=700)
    assert found["at"].cast(pa.int64()).to_pylist() == list(range(count))


# --- Calendars.


@engines
@pytest.mark.parametrize(
    "note", [{b"org.apache.spark.legacyINT96": b""}, {b"org.apache.spark.version": b"3.0.3"}]
)
def test_s26_instants_of_the_hybrid_calendar_are_never_reinterpreted(tmp_path, engine, note, unchanged):
    root = tmp_path / "t"
    for folder, times in ((root, [0, 1]), (tmp_path / "old", [0, -62_135_596_800_000_000])):
        folder.mkdir()
        table = pa.table({"id": [1, 2], "at": micros(times, NAIVE)})
        with pq.ParquetWriter(
            folder / "a.parquet", table.schema, use_deprecated_int96_timestamps=True, store_schema=False
        ) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({**SPARK_NOTE, **note})
    with unchanged(tmp_path / "old"), pytest.raises(NotSupported, match=r"1 INT96 timestamps.*before 1900"):
        it.delete(tmp_path / "old", "id = 1", engine=engine)
    ancient = pa.table({"id": [1], "at": micros([-62_135_596_800_000_000])})
    it.merge(ancient, root, on="id", engine=engine)
    notes = noted(root / "a.parquet")
    assert b"org.apache.spark.legacyINT96" not in notes  # by which Spark would shift the new row
    assert notes[b"org.apache.spark.version"] >= b"3.1"
    assert instants(root) == {1: -62_135_596_800_000_000, 2: 1}


# --- Datasets with both physical types.


@engines
def test_s26_int96_and_timestamps_of_utc_are_one_column(spark_like, engine):
    more = pa.table({"id": pa.array([10, 11], pa.int64()), "at": micros([NOON, None])})
    pq.write_table(more, spark_like / "b.parquet")
    noon = EXPECTED[3]
    assert instants(spark_like) == {**EXPECTED, 10: noon, 11: None}
    source = pa.table({"id": [0, 11], "at": micros([NOON, NOON], NEW_YORK)})
    it.merge(source, spark_like, on="id", engine=engine)
    assert instants(spark_like) == {**EXPECTED, 0: noon, 10: noon, 11: noon}
    kinds = {f.name: pq.read_metadata(f).schema.column(1).physical_type for f in spark_like.glob("*.parquet")}
    assert kinds == {"a.parquet": "INT96", "b.parquet": "INT64"}


def test_s26_int96_and_times_without_a_zone_are_no_column(spark_like):
    more = pa.table({"id": pa.array([10], pa.int64()), "at": micros([0], NAIVE)})
    pq.write_table(more, spark_like / "b.parquet")
    with pytest.raises(SchemaMismatch, match="'at' is timestamp"):
        it.snapshot(spark_like)


@engines
def test_s26_int96_files_are_sources_of_instants(spark_like, tmp_path, engine):
    target = tmp_path / "target"
    it.write(pa.table({"id": pa.array([0], pa.int64()), "at": micros([NOON])}), target)
    result = it.merge(str(spark_like), target, on="id", engine=engine)
    assert (result.updated, result.inserted) == (1, len(TIMES) - 1)
    assert instants(target) == EXPECTED


def test_s26_a_pyarrow_dataset_reads_what_was_rewritten(spark_like):
    it.merge(pa.table({"id": [1], "at": micros([NOON])}), spark_like, on="id")
    found = ds.dataset(spark_like).to_table(columns=["id", "at"])
    assert found.schema.field("at").type == pa.timestamp("ns")


# --- Sources without a zone.


@engines
def test_s26_naive_sources_are_utc_when_asked(spark_like, engine):
    naive = NOON.replace(tzinfo=None)
    source = pa.table({"id": [1, 9], "at": pa.array([naive, naive], pa.timestamp("ms"))})
    it.merge(source, spark_like, on="id", engine=engine, naive_timestamps="utc")
    it.write(source.slice(1), spark_like, engine=engine, naive_timestamps="utc")
    assert instants(spark_like) == {**EXPECTED, 1: EXPECTED[3], 9: EXPECTED[3]}
    clauses = "when matched then update set at = source.time"
    renamed = source.rename_columns(["id", "time"]).slice(0, 1)
    on = "target.id = source.id and target.at = source.time"
    result = it.merge(renamed, spark_like, on=on, clauses=clauses, engine=engine, naive_timestamps="utc",
                      null_keys="match")  # fmt: skip
    assert result.updated == 1


@engines
def test_s26_naive_nested_and_text_sources_are_utc_when_asked(tmp_path, engine):
    root = write(tmp_path / "t", nested_table())
    it.merge(nested_table(), root, on="id", engine=engine, naive_timestamps="utc")
    assert PyarrowDatasetIO().read_parquet(root)["s"][0].as_py()["at"] == dt.datetime(
        2500, 1, 1, tzinfo=dt.UTC
    )
    flat = write(tmp_path / "flat", pa.table({"id": [1], "at": micros([0], NAIVE)}))
    (tmp_path / "new.csv").write_text("id,at\n1,2025-07-01 12:00:00\n")
    with pytest.raises(SchemaMismatch, match="'at'"):
        it.merge(tmp_path / "new.csv", flat, on="id", engine=engine)
    it.merge(tmp_path / "new.csv", flat, on="id", engine=engine, naive_timestamps="utc")
    assert instants(flat) == {1: EXPECTED[3]}


def test_s26_columns_without_a_zone_stay_so_when_naive_sources_are_utc(tmp_path):
    both = {"at": micros([0]), "wall": micros([0], NAIVE)}
    it.write(pa.table({"id": [1], **both}), tmp_path / "t")
    naive = pa.table({"id": [1], "at": micros([5], NAIVE), "wall": micros([6], NAIVE)})
    it.merge(naive, tmp_path / "t", on="id", naive_timestamps="utc")
    found = PyarrowDatasetIO().read_parquet(tmp_path / "t")
    assert [found.schema.field(name).type for name in ("at", "wall")] == [UTC, NAIVE]
    assert [found[name].cast(pa.int64())[0].as_py() for name in ("at", "wall")] == [5, 6]
    with pytest.raises(SchemaMismatch, match="local_timestamp"):
        it.merge(pa.table({"id": [1], "at": micros([5]), "wall": micros([6])}), tmp_path / "t", on="id")
    with pytest.raises(it.errors.InputError, match="naive_timestamps must be one of"):
        it.merge(naive, tmp_path / "t", on="id", naive_timestamps="local")


@engines
def test_s26_columns_without_a_zone_never_become_int96(spark_like, engine):
    times = micros([NOON], UTC)
    wall = micros([NOON.replace(tzinfo=None)], NAIVE)
    source = pa.table({"id": pa.array([1], pa.int64()), "at": times, "wall": wall})
    it.merge(source, spark_like, on="id", schema_evolution="add", engine=engine)
    found = PyarrowDatasetIO().read_parquet(spark_like).sort_by("id")
    assert [found.schema.field(name).type for name in ("at", "wall")] == [UTC, NAIVE]
    assert found["wall"].to_pylist() == [None, wall[0].as_py(), None, None, None]
    assert physical(spark_like) == {("INT64", "INT96", "INT64")}
    it.write(source.select(["id", "wall"]), spark_like, mode="overwrite", engine=engine)
    assert PyarrowDatasetIO().read_parquet(spark_like)["wall"].type == NAIVE


# --- Conversion.


@engines
def test_s26_int96_becomes_a_timestamp_of_microseconds_in_utc_when_asked(spark_like, engine):
    source = pa.table({"id": [1, 9], "at": micros([NOON, NOON], NEW_YORK)})
    planned = it.merge(source, spark_like, on="id", engine=engine, int96="convert", dry_run=True)
    assert any("TIMESTAMP(MICROS)" in note for note in planned.notes)
    it.merge(source, spark_like, on="id", engine=engine, int96="convert")
    assert instants(spark_like) == {**EXPECTED, 1: EXPECTED[3], 9: EXPECTED[3]}
    assert physical(spark_like) == {("INT64", "INT64")}
    for file in spark_like.glob("*.parquet"):
        assert "isAdjustedToUTC=true, timeUnit=microseconds" in str(
            pq.read_metadata(file).schema.column(1).logical_type
        )
    again = it.delete(spark_like, "id = 9", engine=engine, int96="convert")
    assert any("nothing to do" in note for note in again.notes)


@engines
@pytest.mark.parametrize("operation", ["compact", "optimize", "deduplicate", "update", "delete", "write"])
def test_s26_every_operation_can_convert(spark_like, operation, engine):
    write(spark_like, pa.table({"id": pa.array([0], pa.int64()), "at": micros([0], NAIVE)}), "b.parquet")
    expected = dict(EXPECTED)
    match operation:
        case "compact":
            it.compact(spark_like, engine=engine, int96="convert")
        case "optimize":
            it.optimize(spark_like, by="id", engine=engine, int96="convert")
        case "deduplicate":
            it.deduplicate(spark_like, on="id", engine=engine, int96="convert")
        case "update":
            it.update(spark_like, {"id": "id + 0"}, engine=engine, int96="convert")
        case "delete":
            it.delete(spark_like, "id = 0", engine=engine, int96="convert")
            del expected[0]
        case "write":
            table = pa.table({"id": pa.array([5], pa.int64()), "at": micros([5])})
            it.write(table, spark_like, engine=engine, int96="convert")
            expected[5] = 5
    kinds = {f.name: pq.read_metadata(f).schema.column(1).physical_type for f in spark_like.glob("*.parquet")}
    if operation == "write":
        assert sorted(kinds.values()) == ["INT64", "INT96", "INT96"]
    elif operation != "deduplicate":  # which only removes the file of the row that is there twice
        assert set(kinds.values()) == {"INT64"}
    assert instants(spark_like) == expected


@engines
def test_s26_nanoseconds_are_refused_when_converted_never_cut(tmp_path, engine, unchanged):
    whole = pa.array([1_751_371_200_123_456_000, -1000], pa.timestamp("ns"))
    root = write(tmp_path / "whole", pa.table({"id": [1, 2], "at": whole}))
    it.update(root, {"id": "id + 1"}, engine=engine, int96="convert")
    assert physical(root) == {("INT64", "INT64")}
    assert it.snapshot(root).schema.field("at").type == UTC
    assert sorted(instants(root).values()) == [-1, 1_751_371_200_123_456]
    root = write(tmp_path / "fine", pa.table({"id": [1, 2], "at": FINE}))
    with unchanged(root), pytest.raises(SchemaMismatch, match=r"'at' is timestamp.us, tz=UTC., which cannot"):
        it.update(root, {"id": "id + 1"}, engine=engine, int96="convert")


def test_s26_other_words_for_int96_are_refused(spark_like):
    with pytest.raises(it.errors.InputError, match="int96 must be one of 'keep', 'convert'"):
        it.delete(spark_like, "id = 0", int96="drop")


def test_s26_inspect_tells_which_columns_are_int96(spark_like):
    facts = {column.name: column for column in it.inspect(spark_like).columns}
    assert (facts["at"].int96_files, facts["id"].int96_files) == (1, 0)
    assert "timestamp[us, tz=UTC] (INT96)" in str(it.inspect(spark_like))
    pq.write_table(pa.table({"id": pa.array([9], pa.int64()), "at": micros([0])}), spark_like / "b.parquet")
    assert "timestamp[us, tz=UTC] (INT96 in 1 file)" in str(it.inspect(spark_like))


# --- Iceberg tables with files that Spark's add_files brought in.


@engines
@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
@pytest.mark.parametrize("zone", ["UTC", None])
def test_s26_int96_files_of_an_iceberg_table_are_read_exactly_and_written_as_it_says(
    tmp_path, engine, mode, zone
):
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    catalog = sql.SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("db")
    kind = pa.timestamp("us", zone)
    times = [0, 253_402_300_799_999_999, -62_135_596_800_000_000]
    file = tmp_path / "imported.parquet"
    pq.write_table(pa.table({"id": [1, 2, 3], "at": micros(times, kind)}), file)
    table = catalog.create_table("db.t", schema=pa.schema([("id", pa.int64()), ("at", kind)]))
    table.add_files([f"file://{file}"])  # PyIceberg takes no INT96, Spark does
    pq.write_table(
        pa.table({"id": [1, 2, 3], "at": micros(times, NAIVE)}),
        file,
        use_deprecated_int96_timestamps=True,
        store_schema=False,
    )
    it.update(catalog.load_table("db.t"), {"at": "at + interval '1 hour'"}, where="id = 1",
              engine=engine, mode=mode)  # fmt: skip
    it.merge(
        pa.table({"id": [4], "at": micros([7], kind)}), catalog.load_table("db.t"), on="id", engine=engine
    )
    found = it.read(catalog.load_table("db.t")).read_all().sort_by("id")
    assert found["at"].type == kind
    assert found["at"].cast(pa.int64()).to_pylist() == [3_600_000_000, *times[1:], 7]
    new = [path for path in tmp_path.rglob("*.parquet") if path != file and "delete" not in path.name]
    assert {pq.read_metadata(path).schema.column(1).physical_type for path in new} <= {"INT64"}
