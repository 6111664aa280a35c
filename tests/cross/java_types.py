"""Tables of every type that Iceberg has, whose files its own Java writer made; Spark knows some."""

from __future__ import annotations

from typing import Any

from tests.cross.lake import Lake

FIRST_ID = 1 << 33
"""Ids are beyond 32 bits, since smaller numbers come to Java as another type."""
UUID = "00000000-0369-d035-0000-000000000003"
"""Of the row with the fourth id."""


def make_table(lake: Lake, version: int, *, files: int = 2, rows: int = 6) -> str:
    """A table with files of some rows each; in every fifth all but the id is NULL."""
    name = lake.fresh(f"java_types_{version}")
    table = create_table(lake, name, _columns(lake, types_of(lake), version), version)
    for number in range(files):
        append_rows(lake, table, range(number * rows, number * rows + rows), version)
    return name


def types_of(lake: Lake) -> Any:
    """Iceberg's types in Java."""
    return lake.spark._jvm.org.apache.iceberg.types.Types


def create_table(lake: Lake, name: str, fields: list[Any], version: int) -> Any:
    """An empty table with these columns, in Java."""
    jvm = lake.spark._jvm
    columns = jvm.java.util.ArrayList()
    for field in fields:
        columns.add(field)
    catalog = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(lake.spark._jsparkSession, lake.name)
    properties = jvm.java.util.HashMap()
    properties.put("format-version", str(version))
    return catalog.createTable(
        jvm.org.apache.iceberg.catalog.TableIdentifier.parse(name),
        jvm.org.apache.iceberg.Schema(columns),
        jvm.org.apache.iceberg.PartitionSpec.unpartitioned(),
        properties,
    )


def java_rows(lake: Lake, table: str) -> dict[int, dict[str, Any]]:
    """By id what Iceberg's own generic reader finds, values that only Java has as it shows them."""
    jvm, java = lake.spark._jvm, lake.java_table(table)
    iceberg = jvm.org.apache.iceberg

    def shown(value: Any) -> Any:
        if not hasattr(value, "_target_id"):  # an object in Java
            return value
        buffer = jvm.java.nio.ByteBuffer._java_lang_class.isInstance(value)
        return iceberg.util.ByteBuffers.toByteArray(value) if buffer else value.toString()

    names = [column.name() for column in java.schema().columns()]
    rows = iceberg.data.IcebergGenerics.read(java).build()
    records = list(iceberg.relocated.com.google.common.collect.Lists.newArrayList(rows))
    rows.close()
    found = {row.getField("id"): {name: shown(row.getField(name)) for name in names} for row in records}
    assert len(found) == len(records)
    return found


def _columns(lake: Lake, types: Any, version: int) -> list[Any]:
    ids = iter(range(1, 100))
    field = types.NestedField

    def column(name: str, kind: Any) -> Any:
        return field.optional(next(ids), name, kind)

    def struct(*fields: Any) -> Any:
        array = lake.spark._sc._gateway.new_array(field, len(fields))
        for place, one in enumerate(fields):
            array[place] = one
        return types.StructType.of(array)

    found = [
        field.required(next(ids), "id", types.LongType.get()),
        column("b", types.BooleanType.get()),
        column("i", types.IntegerType.get()),
        column("f", types.FloatType.get()),
        column("d", types.DoubleType.get()),
        column("dt", types.DateType.get()),
        column("tm", types.TimeType.get()),
        column("ts", types.TimestampType.withoutZone()),
        column("tz", types.TimestampType.withZone()),
        column("s", types.StringType.get()),
        column("u", types.UUIDType.get()),
        column("fx", types.FixedType.ofLength(7)),
        column("bin", types.BinaryType.get()),
        column("d9", types.DecimalType.of(9, 2)),
        column("d18", types.DecimalType.of(18, 3)),
        column("d20", types.DecimalType.of(20, 3)),
        column("d38", types.DecimalType.of(38, 10)),
        column("l", types.ListType.ofOptional(next(ids), types.DecimalType.of(5, 1))),
        column("lu", types.ListType.ofRequired(next(ids), types.UUIDType.get())),
        column(
            "m",
            types.MapType.ofOptional(
                next(ids), next(ids), types.StringType.get(), types.TimestampType.withZone()
            ),
        ),
        column(
            "st",
            struct(column("x", types.TimeType.get()), field.required(next(ids), "z", types.UUIDType.get())),
        ),
    ]
    if version >= 3:
        found.append(column("tns", types.TimestampNanoType.withoutZone()))
        found.append(column("tzns", types.TimestampNanoType.withZone()))
    return found


def append_rows(lake: Lake, table: Any, numbers: range, version: int) -> None:
    """One file of rows, as :func:`make_table` writes them."""
    append_records(
        lake,
        table,
        [
            {
                "id": FIRST_ID + number,
                **(_values(lake.spark._jvm, table, number, version) if number % 5 != 4 else {}),
            }
            for number in numbers
        ],
    )


def append_records(lake: Lake, table: Any, records: list[dict[str, Any]]) -> None:
    """One file of these records."""
    jvm = lake.spark._jvm
    iceberg = jvm.org.apache.iceberg
    builder = getattr(iceberg.data, "GenericFileWriterFactory$Builder")(table)
    factory = builder.dataFileFormat(iceberg.FileFormat.PARQUET).dataSchema(table.schema()).build()
    file = table.io().newOutputFile(f"{table.location()}/data/{jvm.java.util.UUID.randomUUID()}.parquet")
    encrypted = iceberg.encryption.EncryptedFiles.plainAsEncryptedOutput(file)
    writer = factory.newDataWriter(encrypted, table.spec(), None)
    for values in records:
        record = iceberg.data.GenericRecord.create(table.schema())
        for name, value in values.items():
            record.setField(name, value)
        writer.write(record)
    writer.close()
    table.newAppend().appendFile(writer.toDataFile()).commit()


def _values(jvm: Any, table: Any, number: int, version: int) -> dict[str, Any]:
    java = jvm.java
    decimal, moment = java.math.BigDecimal, java.time.LocalDateTime.of(2024, 3, 31, 1, 2, 3, number * 1000)
    zoned = moment.atOffset(java.time.ZoneOffset.UTC)

    def listed(*values: Any) -> Any:
        found = java.util.ArrayList()
        for value in values:
            found.add(value)
        return found

    def known(value: int) -> Any:
        return java.util.UUID(value * 0x1234567, value)

    mapped = java.util.HashMap()
    mapped.put("a", zoned)
    mapped.put("n", None)
    within = jvm.org.apache.iceberg.data.GenericRecord.create(table.schema().findType("st"))
    within.setField("x", java.time.LocalTime.ofNanoOfDay(number * 1000))
    within.setField("z", known(number))
    found = {
        "b": number % 2 == 0,
        "i": number,
        "d": number / 3,
        "dt": java.time.LocalDate.ofEpochDay(number * 100),
        "tm": java.time.LocalTime.ofNanoOfDay(number * 1_000_001_000),
        "ts": moment,
        "tz": zoned,
        "s": f"s{number}",
        "u": known(number),
        "fx": b"fixed%02d" % number,
        "bin": java.nio.ByteBuffer.wrap(b"bin%d" % number),
        "d9": decimal(f"{number - 5}.25"),
        "d18": decimal(f"-{number}.125"),
        "d20": decimal(f"{number - 7}99999999.125"),
        "d38": decimal(f"-{number}12345678901234567890.0123456789"),
        "l": listed(decimal(f"{number}.5"), None),
        "lu": listed(known(number + 1)),
        "m": mapped,
        "st": within,
    }
    if version >= 3:
        nanos = java.time.LocalDateTime.of(2024, 1, 1, 1, 2, 3, number * 1001)
        found |= {"tns": nanos, "tzns": nanos.atOffset(java.time.ZoneOffset.UTC)}
    return found
