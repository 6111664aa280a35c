"""Types that format version 3 adds, in tables of Java and Spark: refused by name, or kept."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.core.layout import read_elements
from intarsia.errors import NotSupported
from tests.cross.java_types import (
    FIRST_ID,
    append_records,
    append_rows,
    create_table,
    java_rows,
    make_table,
    types_of,
)
from tests.cross.lake import Lake, local
from tests.cross.readers import polars_rows, pyiceberg_rows, spark_rows
from tests.cross.sample_rows import ordered

ENGINES = ("arrow", "duckdb", "spark")
MODES = ("copy-on-write", "merge-on-read")
POINT = struct.pack("<bIdd", 1, 1, 8.5, 47.4)
"""In WKB."""


def _variants(lake: Lake) -> str:
    name = lake.fresh("variants")
    lake.sql(
        f"CREATE TABLE {lake.in_spark(name)} (id BIGINT, s STRING, c VARIANT) USING iceberg"
        " TBLPROPERTIES ('format-version' = '3')"
    )
    lake.sql(
        f"INSERT INTO {lake.in_spark(name)}"
        " SELECT id, 's' || id, parse_json('{\"a\":' || id || '}') FROM range(4)"
    )
    return name


def _of_type(kind: Callable[[Any], Any], value: Callable[[Any], Any]) -> Callable[[Lake], str]:
    def make(lake: Lake) -> str:
        types, name = types_of(lake), lake.fresh("v3_type")
        field = types.NestedField
        columns = [
            field.required(1, "id", types.LongType.get()),
            field.optional(2, "s", types.StringType.get()),
            field.optional(3, "c", kind(types)),
        ]
        table = create_table(lake, name, columns, 3)
        records = [{"id": FIRST_ID + n, "s": f"s{n}", "c": value(lake.spark._jvm)} for n in range(4)]
        append_records(lake, table, records)
        return name

    return make


def _point(jvm: Any) -> Any:
    return jvm.java.nio.ByteBuffer.wrap(POINT)


REFUSED: dict[str, tuple[Callable[[Lake], str], str]] = {
    "variant": (_variants, "Column 'c' of .* has the type variant"),
    "list of variants": (
        _of_type(lambda types: types.ListType.ofOptional(4, types.VariantType.get()), lambda _: None),
        r"Column 'c\.element' of .* has the type variant",
    ),
    "geometry": (_of_type(lambda types: types.GeometryType.crs84(), _point), "Column 'c' of .* geometry"),
    "geography": (_of_type(lambda types: types.GeographyType.crs84(), _point), "Column 'c' of .* geography"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_column_that_pyiceberg_cannot_load_is_refused_and_the_table_stays(lake: Lake, kind: str) -> None:
    make, wanted = REFUSED[kind]
    table = make(lake)
    shown = f"SELECT id, s, CAST(c AS STRING) c FROM {lake.in_spark(table)}" if kind == "variant" else None
    before = lake.sql(shown).to_pylist() if shown else java_rows(lake, table)
    files = set(lake.warehouse.rglob("*"))
    with pytest.raises(NotSupported, match=wanted) as caught:
        it.iceberg(table, catalog=lake.catalog)
    assert table in str(caught.value)
    assert "pydantic" not in str(caught.value)
    assert set(lake.warehouse.rglob("*")) == files
    assert (lake.sql(shown).to_pylist() if shown else java_rows(lake, table)) == before


@pytest.mark.parametrize("kind", ["variant", "geometry"])
def test_a_column_is_refused_by_name_behind_a_rest_catalog(rest: Lake, kind: str) -> None:
    make, wanted = REFUSED[kind]
    table = make(rest)
    with pytest.raises(NotSupported, match=wanted):
        it.iceberg(table, catalog=rest.catalog)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_table_that_gets_a_variant_is_refused_through_a_handle_that_is_kept(
    lake: Lake, engine: str
) -> None:
    name = lake.fresh("gets_a_variant")
    lake.sql(
        f"CREATE TABLE {lake.in_spark(name)} (id BIGINT) USING iceberg TBLPROPERTIES ('format-version' = '3')"
    )
    rows = pa.table({"id": [1, 2]})
    table = it.iceberg(name, catalog=lake.catalog)
    how: dict[str, Any] = {"engine": lake.spark if engine == "spark" else engine}
    it.write(rows, table, **how)
    lake.sql(f"ALTER TABLE {lake.in_spark(name)} ADD COLUMN v VARIANT")
    files = set(lake.warehouse.rglob("*"))
    for operation in (
        lambda dry: it.delete(table, "id = 1", dry_run=dry, **how),
        lambda dry: it.merge(rows, table, on="id", dry_run=dry, **how),
    ):
        for dry in (True, False):
            with pytest.raises(NotSupported, match=f"Column 'v' of {name} has the type variant"):
                operation(dry)
    assert set(lake.warehouse.rglob("*")) == files
    assert lake.sql(f"SELECT count(*) n FROM {lake.in_spark(name)}").to_pylist() == [{"n": 2}]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("engine", ENGINES)
def test_rows_beside_an_unknown_column_of_spark_are_changed(lake: Lake, engine: str, mode: str) -> None:
    name = lake.fresh("void")
    spark_name = lake.in_spark(name)
    lake.sql(
        f"CREATE TABLE {spark_name} (id BIGINT, c VOID, s STRING) USING iceberg"
        " TBLPROPERTIES ('format-version' = '3')"
    )
    lake.sql(f"INSERT INTO {spark_name} SELECT id, NULL, 's' || id FROM range(6)")
    table = it.iceberg(name, catalog=lake.catalog, mode=mode)
    how: dict[str, Any] = {"engine": lake.spark if engine == "spark" else engine}
    it.delete(table, "id = 1", **how)
    it.update(table, {"s": "'u'"}, "id = 2", **how)
    it.merge(pa.table({"id": [3, 9], "s": ["m", "n"]}), table, on="id", **how)
    it.write(pa.table({"id": [9], "s": ["n"]}), table, **how)
    it.deduplicate(table, on="id", **how)
    texts = {0: "s0", 2: "u", 3: "m", 4: "s4", 5: "s5", 9: "n"}
    wanted = [{"id": number, "c": None, "s": text} for number, text in texts.items()]
    for _ in range(2):
        for read in (spark_rows, pyiceberg_rows, polars_rows):
            assert read(lake, name) == ordered(wanted), read.__name__
        assert java_rows(lake, name) == {row["id"]: row for row in wanted}
        it.compact(table, **how)
    lake.sql(f"INSERT INTO {spark_name} VALUES (10, NULL, 'after')")
    assert len(spark_rows(lake, name)) == len(wanted) + 1


def _add_defaults(lake: Lake, java: Any, names: Collection[str]) -> None:
    """Columns with an initial default, which is the one of new rows as well."""
    jvm, types = lake.spark._jvm, types_of(lake)
    literal = jvm.org.apache.iceberg.expressions.Literal
    fixed, nanos = types.FixedType.ofLength(3), types.TimestampNanoType.withoutZone()
    moment, zoned = types.TimestampType.withoutZone(), types.TimestampType.withZone()
    abc = jvm.java.nio.ByteBuffer.wrap(b"abc")
    kinds = {
        "of_long": (types.LongType.get(), literal.of(FIRST_ID)),
        "of_decimal": (types.DecimalType.of(9, 2), literal.of(jvm.java.math.BigDecimal("12.50"))),
        "of_uuid": (types.UUIDType.get(), literal.of(jvm.java.util.UUID(FIRST_ID, FIRST_ID + 1))),
        "of_fixed": (fixed, literal.of(abc).to(fixed)),
        "of_binary": (types.BinaryType.get(), literal.of(abc)),
        "of_time": (types.TimeType.get(), literal.of("01:02:03.000004").to(types.TimeType.get())),
        "of_date": (types.DateType.get(), literal.of("1582-10-04").to(types.DateType.get())),
        "of_timestamp": (moment, literal.of("2024-01-01T00:00:00.000001").to(moment)),
        "of_instant": (zoned, literal.of("2024-01-01T00:00:00.000001+02:00").to(zoned)),
        "of_nanos": (nanos, literal.of("2024-01-01T00:00:00.000000001").to(nanos)),
    }
    change = java.updateSchema()
    for name, (kind, value) in kinds.items():
        if name in names:
            change = change.addColumn(name, kind, value)
    change.commit()


DEFAULTS = (
    *("of_long", "of_decimal", "of_uuid", "of_fixed", "of_binary"),
    *("of_time", "of_date", "of_timestamp", "of_instant"),
)


@pytest.fixture(scope="module")
def table_with_defaults(lake: Lake) -> str:
    """A file of before the defaults, one of after them, and what every type of Iceberg is written as."""
    name = make_table(lake, 3, files=1)
    java = lake.java_table(name)
    _add_defaults(lake, java, DEFAULTS)
    append_rows(lake, java, range(6, 12), 3)
    return name


def _elements(path: str) -> list[Any]:
    """What a file says of its columns, less those of row lineage."""
    found = read_elements(pq.read_metadata(local(path)))
    assert found is not None
    return [item for item in found.columns.items() if not item[0].startswith("_")]


@pytest.mark.parametrize("engine", ENGINES)
def test_files_beside_those_of_java_have_the_same_elements(
    lake: Lake, table_with_defaults: str, engine: str
) -> None:
    of_java = java_rows(lake, table_with_defaults)
    old, new = sorted(
        (task.file.file_path for task in lake.catalog.load_table(table_with_defaults).scan().plan_files()),
        key=lambda path: len(_elements(path)),
    )
    assert len(_elements(new)) == len(_elements(old)) + len(DEFAULTS)
    name = lake.clone(table_with_defaults, "defaults")
    table = it.iceberg(name, catalog=lake.catalog)
    how: dict[str, Any] = {"engine": lake.spark if engine == "spark" else engine}
    rows = it.read(table).read_all()
    some = rows.filter(pc.is_in(rows["id"], pa.array([FIRST_ID + 2, FIRST_ID + 9])))
    it.delete(table, "i in (1, 7)", **how)  # both files are written anew
    it.merge(some, table, on="id", mode="merge-on-read", **how)  # one that is new
    it.delete(table, "i = 3", mode="merge-on-read", **how)
    files = [task.file.file_path for task in lake.catalog.load_table(name).scan().plan_files()]
    assert len(files) > 1
    assert not {old, new} & set(files)
    for path in files:
        assert _elements(path) == _elements(new), path
    gone = {FIRST_ID + number for number in (1, 3, 7)}
    assert java_rows(lake, name) == {number: row for number, row in of_java.items() if number not in gone}
    it.compact(table, **how)
    assert java_rows(lake, name) == {number: row for number, row in of_java.items() if number not in gone}


def test_a_default_that_pyiceberg_cannot_load_is_refused_by_name(lake: Lake) -> None:
    name = make_table(lake, 3, files=1, rows=2)
    _add_defaults(lake, lake.java_table(name), ["of_nanos"])
    with pytest.raises(
        NotSupported, match=f"'of_nanos' of {name} has the type timestamp_ns with the initial-def"
    ):
        it.iceberg(name, catalog=lake.catalog)
    assert len(java_rows(lake, name)) == 2
