"""Tables that PyIceberg made and evolved and we filled and changed: Spark reads them and goes on."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

import intarsia as it
from tests.cross import FULL
from tests.cross.kinds import Build, Kind
from tests.cross.lake import Lake
from tests.cross.making import Made
from tests.cross.operations import COW, MOR, OPERATION, Case, Mode, source_for
from tests.cross.proof import Before, prove
from tests.cross.readers import our_rows, spark_rows
from tests.cross.sample_rows import difference
from tests.cross.test_engines_take_turns import check_after_spark, spark_goes_on, step

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "region", StringType()),
    NestedField(3, "ts", TimestamptzType()),
    NestedField(4, "amount", IntegerType()),
    NestedField(5, "note", StringType()),
)
ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("region", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("amount", pa.int32()),
        ("note", pa.string()),
    ]
)


def fill(build: Build) -> None:
    """Two specs and three batches, without Spark."""
    catalog = build.lake.catalog
    table = catalog.create_table(
        build.table,
        schema=SCHEMA,
        partition_spec=PartitionSpec(PartitionField(3, 1000, DayTransform(), "ts_day")),
        properties={"format-version": str(build.kind.version)},
    )
    append(build, range(101, 149))
    table = catalog.load_table(build.table)
    with table.update_spec() as spec:
        spec.add_identity("region")
        spec.add_field("id", BucketTransform(2), "id_bucket")
    append(build, range(201, 249))
    with catalog.load_table(build.table).update_spec() as spec:
        spec.remove_field("id_bucket")
    append(build, range(301, 349))


def append(build: Build, ids: range) -> None:
    it.write(build.kind.rows(ARROW, ids), it.iceberg(build.table, catalog=build.lake.catalog), engine="arrow")


V2 = Kind("made_without_spark", fill)
V3 = Kind("made_without_spark_v3", fill, version=3)


def make_without_spark(lake: Lake, kind: Kind) -> Made:
    table = lake.fresh(kind.name)
    kind.make(Build(lake, table, kind))
    rows = our_rows(lake, table)
    assert len(rows) == 3 * 48
    return Made(lake, kind, table, rows, source_for(kind, ARROW, rows))


@pytest.mark.parametrize("mode", [COW, MOR] if FULL else [MOR])
def test_spark_reads_and_changes_a_table_made_without_it(lake: Lake, mode: Mode) -> None:
    take_turns(make_without_spark(lake, V2), mode)


@pytest.mark.parametrize("mode", [COW, MOR] if FULL else [MOR])
def test_spark_reads_and_changes_a_table_of_version_3_made_without_it(rest: Lake, mode: Mode) -> None:
    take_turns(make_without_spark(rest, V3), mode)


def take_turns(made: Made, mode: Mode) -> None:
    case = Case(made.lake, made.kind, made.table, made.source)
    rows = made.rows
    assert not (told := difference(spark_rows(made.lake, made.table), rows)), told
    for name in ("upsert", "delete"):
        rows = step(case, name, mode, rows)
    rows = spark_goes_on(case, rows)
    check_after_spark(case, rows)
    rows = step(case, "merge_clauses", mode, rows)
    step(case, "zorder", None, rows)


def test_branches_made_without_spark_are_read_by_it(lake: Lake) -> None:
    made = make_without_spark(lake, V2)
    table = lake.catalog.load_table(made.table)
    current = table.current_snapshot()
    assert current is not None
    table.manage_snapshots().create_branch(current.snapshot_id, "audit").commit()
    kind = Kind("made_without_spark", fill, branch="audit")
    case = Case(lake, kind, made.table, made.source)
    before = Before.of(lake, kind, made.table)

    OPERATION["delete"].ours(case, {"engine": "arrow", "mode": MOR})

    prove(before, OPERATION["delete"].model(made.rows, [], kind))
    assert not (told := difference(spark_rows(lake, made.table), made.rows)), f"main was changed: {told}"
