"""Tables of every kind, made and evolved by Spark (and, where Spark cannot, by Iceberg's Java API)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tests.cross.java_deletes import add_equality_deletes
from tests.cross.lake import Lake
from tests.cross.sample_rows import Values, moment, sample

BATCH = 48
BASE = "id BIGINT, region STRING, ts TIMESTAMP, amount INT, note STRING"
MERGE_ON_READ = {f"write.{verb}.mode": "merge-on-read" for verb in ("delete", "update", "merge")}


@dataclass(frozen=True)
class Kind:
    """How a table is made, and what may be done with it."""

    name: str
    make: Callable[[Build], None]
    version: int = 2
    filters: tuple[str, ...] = ("region", "ts")
    """Columns that reads are pruned by, by equality with values that are there."""
    moves: Mapping[str, str] = field(default_factory=lambda: {"region": "'moved'"})
    """An assignment that changes a row's partition."""
    values: Mapping[str, Values] = field(default_factory=dict)
    """What the columns of new rows hold, where it is not the usual."""
    branch: str | None = None
    spark_changes: bool = True
    """False where Spark's own UPDATE, DELETE and MERGE fail."""
    pyiceberg_reads: bool = True
    polars_reads: bool = True
    merge_on_read: bool = True
    partitioned: bool = True
    """Under its default spec."""

    def __str__(self) -> str:
        return self.name

    def rows(self, schema: pa.Schema, ids: Iterable[int]) -> pa.Table:
        return sample(schema, ids, self.values)


@dataclass
class Build:
    """A table that is being made: short words for the statements that all kinds need."""

    lake: Lake
    table: str
    kind: Kind

    @property
    def name(self) -> str:
        return self.lake.in_spark(self.table)

    def create(self, by: str = "", columns: str = BASE, **properties: str) -> None:
        settings = {"format-version": str(self.kind.version), "write.distribution-mode": "none"}
        settings |= {"write.spark.fanout.enabled": "true"}  # one task, and still one file per partition
        settings |= MERGE_ON_READ if self.kind.version > 1 else {}
        settings |= {key.replace("__", "-").replace("_", "."): value for key, value in properties.items()}
        shown = ", ".join(f"'{key}'='{value}'" for key, value in settings.items())
        clause = f"PARTITIONED BY ({by})" if by else ""
        self.lake.sql(f"CREATE TABLE {self.name} ({columns}) USING iceberg {clause} TBLPROPERTIES ({shown})")

    def insert(self, batch: int, place: str | None = None) -> None:
        """Add the rows of a batch, written by one task."""
        self.insert_ids(range(100 * batch + 1, 100 * batch + 1 + BATCH), place)

    def insert_ids(self, ids: Iterable[int], place: str | None = None) -> None:
        name = place or self.name
        schema = self.lake.spark.table(name).limit(0).toArrow().schema
        rows = self.lake.spark.createDataFrame(self.kind.rows(schema, ids))
        rows.coalesce(1).writeTo(name).append()

    def alter(self, *clauses: str) -> None:
        for clause in clauses:
            self.lake.sql(f"ALTER TABLE {self.name} {clause}")

    def delete(self, where: str) -> None:
        self.lake.sql(f"DELETE FROM {self.name} WHERE {where}")


def add_identity(b: Build) -> None:
    b.create("days(ts)")
    b.insert(1)
    b.alter("ADD PARTITION FIELD region")
    b.insert(2)


def drop_field(b: Build) -> None:
    b.create("days(ts), region")
    b.insert(1)
    b.alter("DROP PARTITION FIELD region")
    b.insert(2)


def day_to_hour(b: Build) -> None:
    b.create("days(ts)")
    b.insert(1)
    b.alter("REPLACE PARTITION FIELD ts_day WITH hours(ts)")
    b.insert(2)


def bucket_change(b: Build) -> None:
    b.create("bucket(4, id)")
    b.insert(1)
    b.alter("REPLACE PARTITION FIELD id_bucket WITH bucket(8, id)")
    b.insert(2)


def renamed_source(b: Build) -> None:
    b.create("region, days(ts)")
    b.insert(1)
    b.alter("RENAME COLUMN region TO area", "RENAME COLUMN ts TO at", "DROP PARTITION FIELD region")
    b.insert(2)
    b.alter("ADD PARTITION FIELD bucket(3, area)")
    b.insert(3)


def dropped_source(b: Build) -> None:
    b.create("region, days(ts)")
    b.insert(1)
    b.delete("id % 8 = 5")
    b.alter("DROP PARTITION FIELD region", "DROP COLUMN region")
    b.insert(2)


def dropped_sources_of_two_specs(b: Build) -> None:
    """No single schema of the past has the sources of both fields of the second spec."""
    b.create("region")
    b.insert(1)
    b.alter("ADD COLUMN later INT", "ADD PARTITION FIELD truncate(5, later)")
    b.insert(2)
    b.alter("DROP PARTITION FIELD region", "DROP COLUMN region")
    b.alter(
        "DROP PARTITION FIELD truncate(5, later)", "DROP COLUMN later", "ADD PARTITION FIELD bucket(2, id)"
    )
    b.insert(3)


def v1_void(b: Build) -> None:
    b.create("region, days(ts)")
    b.insert(1)
    b.alter("DROP PARTITION FIELD region")
    b.insert(2)


def v1_upgraded(b: Build) -> None:
    v1_void(b)
    settings = {"format-version": "2", **MERGE_ON_READ}
    b.alter("SET TBLPROPERTIES (" + ", ".join(f"'{k}'='{v}'" for k, v in settings.items()) + ")")
    b.insert(3)
    b.delete("id % 9 = 4")


def v3_vectors(b: Build) -> None:
    add_identity(b)
    b.delete("id % 7 = 2")


def v2_to_v3(b: Build) -> None:
    add_identity(b)
    b.delete("id % 7 = 2")
    b.alter("SET TBLPROPERTIES ('format-version'='3')")
    b.insert(3)
    b.delete("id % 10 = 5")


def v3_defaults(b: Build) -> None:
    """Columns with an initial default, of which older files know nothing."""
    b.create("days(ts)")
    b.insert(1)
    types = b.lake.spark._jvm.org.apache.iceberg.types.Types
    literal = b.lake.spark._jvm.org.apache.iceberg.expressions.Expressions.lit
    change = b.lake.java_table(b.table).updateSchema()
    change.addColumn("grade", types.IntegerType.get(), literal(7))
    change.addColumn("word", types.StringType.get(), literal("none yet"))
    change.commit()
    b.insert(2)
    b.alter("ADD PARTITION FIELD grade")
    b.insert(3)


def to_partitioned(b: Build) -> None:
    b.create()
    b.insert(1)
    b.delete("id % 9 = 4")
    b.alter("ADD PARTITION FIELD region")
    b.insert(2)


def to_unpartitioned(b: Build) -> None:
    b.create("region")
    b.insert(1)
    b.alter("DROP PARTITION FIELD region")
    b.insert(2)
    b.insert(3)


def two_fields_on_one_column(b: Build) -> None:
    b.create("bucket(3, id), truncate(25, id)")
    b.insert(1)
    b.alter("DROP PARTITION FIELD bucket(3, id)", "ADD PARTITION FIELD bucket(2, id)")
    b.insert(2)
    b.alter("DROP PARTITION FIELD bucket(2, id)", "ADD PARTITION FIELD id")
    b.insert_ids(range(301, 306))


def nested_source(b: Build) -> None:
    b.create("p.d", BASE + ", p STRUCT<d: DATE, amt: BIGINT, tag: STRING>")
    b.insert(1)
    b.alter("ADD PARTITION FIELD p.amt")
    b.insert(2)


def odd_values(b: Build) -> None:
    b.create("region")
    b.insert(1)
    b.alter("ADD PARTITION FIELD truncate(2, note)")
    b.insert(2)


def prior_file_deletes(b: Build) -> None:
    b.create("days(ts)", write_delete_granularity="file")
    b.insert(1)
    b.insert(2)
    b.delete("id % 5 = 1")
    b.alter("ADD PARTITION FIELD region")
    b.insert(3)
    b.delete("id % 7 = 2")


def prior_partition_deletes(b: Build) -> None:
    b.create("days(ts)", write_delete_granularity="partition")
    b.insert(1)
    b.insert(2)
    b.delete("id % 5 = 1")
    b.alter("ADD PARTITION FIELD region")
    b.insert(3)
    b.insert(4)
    b.delete("id % 7 = 2")


def branches(b: Build) -> None:
    add_identity(b)
    b.alter("CREATE BRANCH audit")
    b.insert(3, f"{b.name}.branch_audit")
    b.lake.sql(f"DELETE FROM {b.name}.branch_audit WHERE id % 7 = 2")
    b.insert(4)


def equality_deletes(b: Build) -> None:
    """As Flink leaves them: some in one partition, some under an unpartitioned spec, thus for all files."""
    b.create()
    b.insert(1)
    add_equality_deletes(b.lake, b.table, pa.table({"id": pa.array([102, 105, 999], pa.int64())}))
    b.insert_ids([102])  # comes back: only older rows go
    b.alter("ADD PARTITION FIELD region")
    b.insert(2)
    keys = pa.table({"amount": pa.array([607, 595], pa.int32()), "note": pa.array(["note 209", "other"])})
    add_equality_deletes(b.lake, b.table, keys, partition="region=us")
    nulls = pa.table({"note": pa.array([None], pa.string())})
    add_equality_deletes(b.lake, b.table, nulls, spec_id=0)
    b.insert(3)


def equality_deletes_of_changed_columns(b: Build) -> None:
    """The columns that the deletes compare were renamed, promoted and dropped since."""
    b.create("bucket(2, id)", BASE + ", k INT")
    b.insert(1)
    add_equality_deletes(b.lake, b.table, pa.table({"k": pa.array([-2, 3], pa.int32())}), all_partitions=True)
    add_equality_deletes(b.lake, b.table, pa.table({"region": pa.array(["asia"])}), all_partitions=True)
    b.alter("RENAME COLUMN k TO kk", "ALTER COLUMN kk TYPE BIGINT", "DROP COLUMN region")
    b.insert(2)


def nested_evolution(b: Build) -> None:
    nested = (
        ", p STRUCT<a: INT, b: STRING>, l ARRAY<STRUCT<x: INT, y: STRING>>, m MAP<STRING, STRUCT<u: FLOAT>>"
    )
    b.create("days(ts)", BASE + nested)
    b.insert(1)
    b.alter("ADD COLUMN p.c DATE AFTER a", "RENAME COLUMN p.b TO bee", "ALTER COLUMN p.a TYPE BIGINT")
    b.alter("ADD COLUMN l.element.z DOUBLE", "DROP COLUMN l.element.x", "ADD COLUMN m.value.w INT")
    b.insert(2)
    b.alter("ADD PARTITION FIELD p.c", "ALTER COLUMN note FIRST")
    b.insert(3)


def promoted_truncate(b: Build) -> None:
    b.create("truncate(3, k)", BASE + ", k INT")
    b.insert(1)
    b.alter("ADD PARTITION FIELD k", "ALTER COLUMN k TYPE BIGINT")
    b.insert(2)


def back_to_the_first_spec(b: Build) -> None:
    b.create("days(ts)")
    b.insert(1)
    b.alter("ADD PARTITION FIELD region")
    b.insert(2)
    b.alter("DROP PARTITION FIELD region")
    b.insert(3)


def later_column(b: Build) -> None:
    b.create("days(ts)")
    b.insert(1)
    b.alter("ADD COLUMN grade INT", "ADD PARTITION FIELD truncate(4, grade)")
    b.insert(2)


def many_types(b: Build) -> None:
    columns = ", d DATE, tn TIMESTAMP_NTZ, dec DECIMAL(9,2), big DECIMAL(25,3), flag BOOLEAN"
    b.create("months(d), truncate(100, dec)", BASE + columns + ", f FLOAT, x DOUBLE, raw BINARY")
    b.insert(1)
    b.alter("ADD PARTITION FIELD years(tn)", "ADD PARTITION FIELD bucket(4, raw)", "ADD PARTITION FIELD flag")
    b.insert(2)
    b.alter("DROP PARTITION FIELD truncate(100, dec)", "DROP PARTITION FIELD bucket(4, raw)")
    b.alter(
        "ADD PARTITION FIELD dec",
        "ADD PARTITION FIELD bucket(4, big)",
        "ADD PARTITION FIELD truncate(1, raw)",
    )
    b.insert(3)


ODD = ("", "a/b c=d", "ünï 雪", None, "%2F", "null", ".", "a+b&c#d?")
NESTED = {
    "p": lambda n: None if n % 10 == 9 else {"d": dt.date(2024, 1, 1 + n % 3), "amt": n % 2, "tag": f"t{n}"}
}
NO_REGION: dict[str, Any] = {"filters": ("ts",), "moves": {"ts": "timestamp '2024-02-02 02:02:02'"}}

KINDS = (
    Kind("add_identity", add_identity),
    Kind("drop_field", drop_field),
    Kind("day_to_hour", day_to_hour, moves=NO_REGION["moves"]),
    Kind("bucket_change", bucket_change, filters=("id", "region"), moves={"id": "id + 5000"}),
    Kind(
        "renamed_source",
        renamed_source,
        filters=("area", "at"),
        moves={"area": "'moved'"},
        values={"at": moment},
    ),
    Kind("dropped_source", dropped_source, spark_changes=False, **NO_REGION),
    Kind("dropped_source_v3", dropped_source, version=3, spark_changes=False, **NO_REGION),
    Kind(
        "dropped_sources_of_two_specs",
        dropped_sources_of_two_specs,
        filters=("id",),
        moves={"id": "id + 5000"},
        spark_changes=False,
    ),
    Kind("v1_void", v1_void, version=1, merge_on_read=False),
    Kind("v1_upgraded", v1_upgraded, version=1),
    Kind("v3_vectors", v3_vectors, version=3),
    Kind("v2_to_v3", v2_to_v3),
    Kind(
        "v3_defaults",
        v3_defaults,
        version=3,
        filters=("ts", "grade"),
        moves={"grade": "99"},
        values={"grade": lambda n: n % 3},
    ),
    Kind("to_partitioned", to_partitioned),
    Kind("to_unpartitioned", to_unpartitioned, partitioned=False),
    Kind(
        "two_fields_on_one_column",
        two_fields_on_one_column,
        filters=("id", "region"),
        moves={"id": "id + 5000"},
    ),
    Kind("nested_source", nested_source, filters=("p.d", "p.amt"), moves={"p.amt": "77"}, values=NESTED),
    Kind("odd_values", odd_values, filters=("region", "note"), values={"region": lambda n: ODD[n % 8]}),
    Kind("prior_file_deletes", prior_file_deletes),
    Kind("prior_partition_deletes", prior_partition_deletes),
    Kind("branches", branches, branch="audit"),
    Kind("equality_deletes", equality_deletes, pyiceberg_reads=False, polars_reads=False),
    Kind(
        "equality_deletes_of_changed_columns",
        equality_deletes_of_changed_columns,
        filters=("id", "kk"),
        moves={"id": "id + 5000"},
        pyiceberg_reads=False,
        polars_reads=False,
    ),
    Kind(
        "nested_evolution",
        nested_evolution,
        filters=("ts", "p.c"),
        moves=NO_REGION["moves"],
        pyiceberg_reads=False,  # it takes a NULL list of structs for an empty one
    ),
    Kind("promoted_truncate", promoted_truncate, filters=("k", "region"), moves={"k": "k + 5000"}),
    Kind("back_to_the_first_spec", back_to_the_first_spec),
    Kind("later_column", later_column, filters=("ts", "grade"), moves={"grade": "99"}),
    Kind("many_types", many_types, filters=("d", "dec", "flag", "raw"), moves={"dec": "123.45"}),
)
BY_NAME = {kind.name: kind for kind in KINDS}
