"""Manifests: nothing is lost between writing and reading, other readers agree, damage is named."""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from metadata_samples import IO, committed, entry, file, full_file, metadata, spec
from pyiceberg.manifest import DataFile as PyDataFile
from pyiceberg.manifest import DataFileContent as PyContent
from pyiceberg.manifest import FileFormat, ManifestContent
from pyiceberg.manifest import ManifestEntry as PyEntry
from pyiceberg.manifest import ManifestEntryStatus as PyStatus
from pyiceberg.manifest import ManifestFile as PyManifest
from pyiceberg.manifest import write_manifest as write_with_pyiceberg
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from intarsia.errors import DamagedTable, InputError, NotSupported
from intarsia.tables.iceberg import avro
from intarsia.tables.iceberg.avro_schemas import make_compatible_name, make_entry_schema, make_list_schema
from intarsia.tables.iceberg.manifest_writer import ManifestWriter, new_manifest_writer_for_spec
from intarsia.tables.iceberg.manifests import (
    ContentFile,
    DataFileContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    read_manifest,
)
from intarsia.tables.iceberg.specs import make_partition_type

_KINDS: list[tuple[IcebergType, Any, Any]] = [
    (BooleanType(), True, False),
    (IntegerType(), -(2**31), 2**31 - 1),
    (LongType(), -(2**63), 2**63 - 1),
    (FloatType(), -1.5, 2.5),
    (DoubleType(), -0.0, 0.0),
    (DateType(), -719_162, 20_000),
    (TimeType(), 0, 86_399_999_999),
    (TimestampType(), -1, 1_704_164_645_678_901),
    (TimestamptzType(), -1, 1_704_164_645_678_901),
    (TimestampNanoType(), -1, 1_704_164_645_678_901_234),
    (StringType(), "", "日本/é"),
    (BinaryType(), b"", b"\x00\xff"),
    (FixedType(3), b"abc", b"abd"),
    (UUIDType(), bytes(16), bytes(range(16))),
    (DecimalType(9, 2), Decimal("-1.28"), Decimal("1234567.89")),
    (DecimalType(38, 10), Decimal("-1234567890123456789012345678.0123456789"), Decimal("0E-10")),
]


# What PyIceberg reads in a manifest.
_READABLE = [kind for kind in _KINDS if not isinstance(kind[0], TimestampNanoType)]


def _all_kinds(
    location: Path, format_version: int = 2, kinds: Sequence[tuple[IcebergType, Any, Any]] = _KINDS
) -> TableMetadata:
    """A table partitioned by a column of each type."""
    columns = [NestedField(n, f"c{n}", kind, required=False) for n, (kind, _, _) in enumerate(kinds, 1)]
    fields = [PartitionField(n, 999 + n, IdentityTransform(), f"p {n}") for n in range(1, len(kinds) + 1)]
    return metadata(location, [Schema(*columns)], [spec(0, *fields)], format_version=format_version)


def _by_region(location: Path, format_version: int = 2) -> TableMetadata:
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "region", StringType(), required=False),
    )
    fields = PartitionField(2, 1000, IdentityTransform(), "region")
    return metadata(location, [schema], [spec(0, fields)], format_version=format_version)


def _writer(
    meta: TableMetadata, tmp_path: Path, content: DataFileContent = DataFileContent.DATA, **more: Any
) -> ManifestWriter:
    spec_id = more.pop("spec_id", meta.default_spec_id)
    one = next(one for one in meta.partition_specs if one.spec_id == spec_id)
    return new_manifest_writer_for_spec(
        meta,
        one,
        io=IO,
        path=f"{tmp_path}/m.avro",
        snapshot_id=more.pop("snapshot_id", 7),
        content=content,
        **more,
    )


def _written(
    meta: TableMetadata,
    tmp_path: Path,
    entries: Sequence[ManifestEntry],
    content: DataFileContent = DataFileContent.DATA,
    **more: Any,
) -> ManifestFile:
    writer = _writer(meta, tmp_path, content, **more)
    with writer:
        for one in entries:
            writer.write(one)
    return writer.to_manifest()


def _decoded(path: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    with path.open("rb") as stream:
        reader = fastavro.reader(stream)
        return list(reader), reader.metadata


class TestRoundTrip:
    @pytest.mark.parametrize("format_version", [1, 2, 3])
    def test_every_field_of_a_data_file_survives(self, tmp_path: Path, format_version: int) -> None:
        meta = _all_kinds(tmp_path, format_version)
        files = [
            full_file(f"f{n}", 0, tuple(kind[1 + n] for kind in _KINDS), format_version=format_version)
            for n in range(2)
        ]
        files.append(file("bare", 0, (None,) * len(_KINDS)))
        manifest = committed(_written(meta, tmp_path, [entry(one) for one in files]), 5)
        found = read_manifest(IO, manifest)
        assert [one.file for one in found] == files
        # -0.0 == 0.0: the sign has to be looked at.
        assert str(found[0].file.partition[4]) == "-0.0"

    @pytest.mark.parametrize("codec", ["gzip", "zstd", "snappy", "uncompressed"])
    def test_every_codec_is_read_again(self, tmp_path: Path, codec: str) -> None:
        meta = _by_region(tmp_path)
        files = [full_file(f"data/{n}.parquet", 0, (f"r{n % 3}",)) for n in range(2000)]
        manifest = committed(_written(meta, tmp_path, map(entry, files), compression=codec), 1)
        assert [one.file for one in read_manifest(IO, manifest)] == files
        if codec in ("gzip", "uncompressed"):  # others need one more library
            assert len(_decoded(tmp_path / "m.avro")[0]) == 2000
        if codec != "snappy":
            assert len(_as_pyiceberg(manifest).fetch_manifest_entry(IO)) == 2000

    def test_delete_files_keep_what_only_they_have(self, tmp_path: Path) -> None:
        meta = _by_region(tmp_path, 3)
        files = [
            file("dv.puffin", 0, ("eu",), content=DataFileContent.POSITION_DELETES, file_format="PUFFIN",
                 referenced_data_file="data/a.parquet", content_offset=4, content_size_in_bytes=40),
            file("eq.parquet", 0, ("eu",), content=DataFileContent.EQUALITY_DELETES, equality_ids=(1, 2)),
            file("pos.parquet", 0, (None,), content=DataFileContent.POSITION_DELETES,
                 referenced_data_file="b"),
        ]  # fmt: skip
        written = _written(meta, tmp_path, [entry(one) for one in files], DataFileContent.POSITION_DELETES)
        assert written.content is DataFileContent.POSITION_DELETES
        assert [one.file for one in read_manifest(IO, committed(written, 2))] == files
        assert _decoded(tmp_path / "m.avro")[1]["content"] == "deletes"

    def test_zeros_of_both_signs_stay_apart(self, tmp_path: Path) -> None:
        column = NestedField(1, "x", DoubleType(), required=False)
        by_x = spec(0, PartitionField(1, 1000, IdentityTransform(), "x"))
        meta = metadata(tmp_path, [Schema(column)], [by_x])
        entries = [entry(file(partition=(value,))) for value in (0.0, -0.0)]
        found = read_manifest(IO, committed(_written(meta, tmp_path, entries), 5))
        assert [str(one.file.partition[0]) for one in found] == ["0.0", "-0.0"]

    def test_entries_pickle(self, tmp_path: Path) -> None:
        meta = _by_region(tmp_path)
        manifest = committed(_written(meta, tmp_path, [entry(full_file("f", 0, ("eu",)))]), 5)
        found = read_manifest(IO, manifest)
        assert pickle.loads(pickle.dumps(found)) == found
        assert found[0].file == pickle.loads(pickle.dumps(found[0].file))

    def test_kept_entries_are_written_again_to_the_byte(self, tmp_path: Path) -> None:
        meta = _by_region(tmp_path, 3)
        old = {"snapshot_id": 2, "sequence_number": 2, "file_sequence_number": 3}
        entries = [
            entry(full_file(f"f{n}", 0, ("eu",), format_version=3), ManifestEntryStatus.EXISTING, **old)
            for n in range(3)
        ]
        manifest = committed(_written(meta, tmp_path, entries), 5)
        before = avro.parse_avro((tmp_path / "m.avro").read_bytes(), "m")
        _written(meta, tmp_path, read_manifest(IO, manifest))
        assert avro.parse_avro((tmp_path / "m.avro").read_bytes(), "m").blocks == before.blocks


class TestInheritance:
    def test_added_files_take_numbers_and_snapshot_from_the_manifest(self, tmp_path: Path) -> None:
        meta = _by_region(tmp_path)
        manifest = committed(_written(meta, tmp_path, [entry(file(partition=("eu",)))]), 9)
        (found,) = read_manifest(IO, manifest)
        assert (found.sequence_number, found.file_sequence_number, found.snapshot_id) == (9, 9, 7)
        record = _decoded(tmp_path / "m.avro")[0][0]
        assert (record["sequence_number"], record["file_sequence_number"]) == (None, None)

    def test_an_added_file_may_bring_its_own_data_sequence_number(self, tmp_path: Path) -> None:
        meta = _by_region(tmp_path)
        written = _written(meta, tmp_path, [entry(file(partition=("eu",)), sequence_number=3)])
        assert written.min_sequence_number == 3
        (found,) = read_manifest(IO, committed(written, 9))
        assert (found.sequence_number, found.file_sequence_number) == (3, 9)

    def test_kept_and_removed_files_keep_their_own(self, tmp_path: Path) -> None:
        meta = _by_region(tmp_path)
        old = {"snapshot_id": 2, "sequence_number": 2, "file_sequence_number": 3}
        entries = [
            entry(file("kept", 0, ("eu",)), ManifestEntryStatus.EXISTING, **old),
            entry(file("removed", 0, ("us",)), ManifestEntryStatus.DELETED, **old),
        ]
        manifest = committed(_written(meta, tmp_path, entries), 9)
        assert [one.file.file_path for one in read_manifest(IO, manifest)] == ["kept"]
        kept, removed = read_manifest(IO, manifest, live_only=False)
        assert kept == entries[0]
        assert removed == replace(entries[1], snapshot_id=7)
        assert manifest.min_sequence_number == 2

    def test_version_1_has_sequence_number_0(self, tmp_path: Path) -> None:
        meta = _by_region(tmp_path, 1)
        entries = [entry(file(partition=("eu",)), ManifestEntryStatus.EXISTING, snapshot_id=3)]
        (found,) = read_manifest(IO, committed(_written(meta, tmp_path, entries), 0))
        assert (found.sequence_number, found.file_sequence_number, found.snapshot_id) == (0, 0, 3)

    def test_row_ids_are_dealt_out_to_files_without_one(self, tmp_path: Path) -> None:
        meta = _by_region(tmp_path, 3)
        old = {"snapshot_id": 2, "sequence_number": 2, "file_sequence_number": 2}
        entries = [
            entry(file("new", 0, ("eu",), record_count=10)),
            entry(
                file("kept", 0, ("eu",), first_row_id=4, record_count=5), ManifestEntryStatus.EXISTING, **old
            ),
            entry(file("gone", 0, ("eu",), record_count=5), ManifestEntryStatus.DELETED, **old),
            entry(file("upgraded", 0, ("eu",), record_count=7), ManifestEntryStatus.EXISTING, **old),
            entry(file("last", 0, ("eu",), record_count=1)),
        ]
        manifest = replace(committed(_written(meta, tmp_path, entries), 9), first_row_id=100)
        found = {
            one.file.file_path: one.file.first_row_id for one in read_manifest(IO, manifest, live_only=False)
        }
        assert found == {"new": 100, "kept": 4, "gone": None, "upgraded": 110, "last": 117}

    def test_without_a_first_row_id_files_have_none(self, tmp_path: Path) -> None:
        meta = _by_region(tmp_path, 3)
        manifest = committed(_written(meta, tmp_path, [entry(file(partition=("eu",)))]), 9)
        assert read_manifest(IO, manifest)[0].file.first_row_id is None

    def test_a_kept_file_without_sequence_number_is_damage(self, tmp_path: Path) -> None:
        meta = _by_region(tmp_path, 1)
        entries = [entry(file(partition=("eu",)), ManifestEntryStatus.EXISTING, snapshot_id=3)]
        manifest = committed(_written(meta, tmp_path, entries), 4)
        with pytest.raises(DamagedTable, match="without its sequence number"):
            read_manifest(IO, manifest)


class TestToManifest:
    def test_it_counts_files_and_rows_of_each_status(self, tmp_path: Path) -> None:
        meta = _by_region(tmp_path)
        old = {"snapshot_id": 2, "sequence_number": 2, "file_sequence_number": 2}
        found = _written(
            meta,
            tmp_path,
            [
                entry(file(partition=("b",), record_count=1)),
                entry(file(partition=("c",), record_count=2)),
                entry(file(partition=(None,), record_count=4), ManifestEntryStatus.EXISTING, **old),
                entry(file(partition=("a",), record_count=8), ManifestEntryStatus.DELETED, **old),
            ],
        )
        assert found == ManifestFile(
            manifest_path=f"{tmp_path}/m.avro",
            manifest_length=(tmp_path / "m.avro").stat().st_size,
            partition_spec_id=0,
            content=DataFileContent.DATA,
            sequence_number=None,
            min_sequence_number=2,
            added_snapshot_id=7,
            added_files_count=2,
            existing_files_count=1,
            deleted_files_count=1,
            added_rows_count=3,
            existing_rows_count=4,
            deleted_rows_count=8,
            partitions=(PartitionFieldSummary(True, False, b"a", b"c"),),
        )

    def test_removed_files_do_not_count_for_the_least_sequence_number(self, tmp_path: Path) -> None:
        entries = [
            entry(
                file(partition=("a",)),
                status,
                snapshot_id=2,
                sequence_number=number,
                file_sequence_number=number,
            )
            for status, number in ((ManifestEntryStatus.DELETED, 1), (ManifestEntryStatus.EXISTING, 4))
        ]
        assert _written(_by_region(tmp_path), tmp_path, entries).min_sequence_number == 4

    def test_bounds_leave_out_null_and_nan(self, tmp_path: Path) -> None:
        column = NestedField(1, "x", DoubleType(), required=False)
        meta = metadata(
            tmp_path, [Schema(column)], [spec(0, PartitionField(1, 1000, IdentityTransform(), "x"))]
        )
        values = [float("nan"), 0.0, -0.0, None]
        found = _written(meta, tmp_path, [entry(file(partition=(value,))) for value in values])
        assert found.partitions == (PartitionFieldSummary(True, True, b"\0" * 7 + b"\x80", b"\0" * 8),)

    def test_only_nulls_have_no_bounds(self, tmp_path: Path) -> None:
        found = _written(_by_region(tmp_path), tmp_path, [entry(file(partition=(None,)))])
        assert found.partitions == (PartitionFieldSummary(True, False, None, None),)

    def test_unpartitioned_has_no_summaries(self, tmp_path: Path) -> None:
        meta = metadata(tmp_path, [Schema(NestedField(1, "id", LongType()))], [spec(0)])
        assert _written(meta, tmp_path, [entry(file())]).partitions == ()


class TestWriter:
    def test_an_error_in_the_block_writes_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(KeyError), _writer(_by_region(tmp_path), tmp_path) as writer:
            writer.add(entry(file(partition=("eu",))))
            raise KeyError
        assert not (tmp_path / "m.avro").exists()

    def test_no_entries_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="without entries"):
            _writer(_by_region(tmp_path), tmp_path).close()

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (file(spec_id=3, partition=("eu",)), "is of partition spec 3, not of 0"),
            (file(partition=("eu", 1)), "has 2 partition values; spec 0 has 1 fields"),
            (file(partition=(5,)), r"value 5 \(int\) for partition field 'region' of type string"),
            (file(partition=("eu",), content=DataFileContent.POSITION_DELETES), "holds POSITION_DELETES"),
        ],
        ids=["spec", "arity", "type", "content"],
    )
    def test_a_file_that_does_not_belong_is_refused(
        self, tmp_path: Path, wrong: ContentFile, message: str
    ) -> None:
        writer = _writer(_by_region(tmp_path), tmp_path)
        with pytest.raises(InputError, match=message):
            writer.add(entry(wrong))
        assert writer.count == 0

    @pytest.mark.parametrize(
        ("value", "kind"), [(True, IntegerType()), (1.5, LongType()), (1, StringType())], ids=str
    )
    def test_values_of_another_type_are_refused(self, tmp_path: Path, value: Any, kind: IcebergType) -> None:
        column = NestedField(1, "x", kind, required=False)
        meta = metadata(
            tmp_path, [Schema(column)], [spec(0, PartitionField(1, 1000, IdentityTransform(), "x"))]
        )
        with pytest.raises(InputError, match="for partition field 'x'"):
            _writer(meta, tmp_path).add(entry(file(partition=(value,))))

    def test_a_kept_file_needs_its_sequence_number(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="without its sequence number"):
            _writer(_by_region(tmp_path), tmp_path).add_existing(entry(file(partition=("eu",))))

    def test_version_1_has_no_delete_files(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="delete files in a table of format version 1"):
            _writer(_by_region(tmp_path, 1), tmp_path, DataFileContent.EQUALITY_DELETES)

    def test_version_2_has_no_deletion_vectors(self, tmp_path: Path) -> None:
        vector = file(
            partition=("eu",),
            content=DataFileContent.POSITION_DELETES,
            file_format="PUFFIN",
            content_offset=4,
        )
        with pytest.raises(InputError, match="deletion vector in a table of format version 2"):
            _writer(_by_region(tmp_path), tmp_path, DataFileContent.POSITION_DELETES).add(entry(vector))

    def test_an_unknown_codec_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"write.manifest.compression-codec is 'brotli'"):
            _writer(_by_region(tmp_path), tmp_path, compression="brotli")

    def test_a_spec_whose_source_was_dropped_keeps_its_values(self, tmp_path: Path) -> None:
        schemas = [
            Schema(NestedField(1, "id", LongType()), NestedField(2, "d", DecimalType(9, 2)), schema_id=0),
            Schema(NestedField(1, "id", LongType()), schema_id=1),
        ]
        specs = [
            spec(0, PartitionField(2, 1000, IdentityTransform(), "d")),
            spec(1, PartitionField(1, 1001, BucketTransform(4), "b")),
        ]
        meta = metadata(tmp_path, schemas, specs)
        one = file(partition=(Decimal("1.50"),))
        manifest = committed(_written(meta, tmp_path, [entry(one)], spec_id=0), 1)
        assert read_manifest(IO, manifest)[0].file == one
        header = _decoded(tmp_path / "m.avro")[1]
        assert (header["schema-id"], header["partition-spec-id"]) == ("0", "0")


class TestOtherReaders:
    def test_fastavro_sees_the_values(self, tmp_path: Path) -> None:
        meta = _all_kinds(tmp_path)
        one = full_file("f", 0, tuple(kind[2] for kind in _KINDS))
        _written(meta, tmp_path, [entry(one)])
        (record,), header = _decoded(tmp_path / "m.avro")
        data = record["data_file"]
        assert (record["status"], record["snapshot_id"]) == (1, 7)
        assert data["column_sizes"] == [{"key": k, "value": v} for k, v in (one.column_sizes or {}).items()]
        assert data["lower_bounds"] == [{"key": k, "value": v} for k, v in (one.lower_bounds or {}).items()]
        assert data["split_offsets"] == [4, 2**33]
        assert data["partition"]["p_x206"].isoformat() == "2024-10-04"
        assert data["partition"]["p_x2016"] == Decimal("0E-10")
        assert (header["format-version"], header["content"]) == ("2", "data")
        assert json.loads(header["partition-spec"])[0]["field-id"] == 1000

    @pytest.mark.parametrize("format_version", [1, 2, 3])
    def test_pyiceberg_sees_the_entries(self, tmp_path: Path, format_version: int) -> None:
        meta = _all_kinds(tmp_path, format_version, _READABLE)
        old = {"snapshot_id": 2, "sequence_number": 2, "file_sequence_number": 3}
        partition = tuple(kind[1] for kind in _READABLE)
        entries = [
            entry(full_file("new", 0, partition, format_version=format_version)),
            entry(file("kept", 0, (None,) * len(_READABLE)), ManifestEntryStatus.EXISTING, **old),
        ]
        manifest = committed(_written(meta, tmp_path, entries), 0 if format_version == 1 else 9)
        new, kept = _as_pyiceberg(manifest).fetch_manifest_entry(IO)
        one = entries[0].file
        seen = [new.data_file.partition[n] for n in range(len(_READABLE))]
        assert [getattr(value, "bytes", value) for value in seen] == list(partition)
        assert new.data_file.lower_bounds == one.lower_bounds
        assert new.data_file.column_sizes == {
            key: value % 2**64 for key, value in (one.column_sizes or {}).items()
        }
        assert (new.status, kept.status) == (PyStatus.ADDED, PyStatus.EXISTING)
        assert (kept.snapshot_id, kept.sequence_number) == (2, 0 if format_version == 1 else 2)

    @pytest.mark.parametrize("format_version", [1, 2])
    def test_what_pyiceberg_wrote_is_read(self, tmp_path: Path, format_version: int) -> None:
        meta = _all_kinds(tmp_path, format_version)
        one = full_file("f", 0, tuple(kind[2] for kind in _KINDS))
        path = f"{tmp_path}/theirs.avro"
        with write_with_pyiceberg(
            format_version, meta.spec(), meta.schema(), IO.new_output(path), 7, "deflate"
        ) as writer:
            writer.add_entry(_pyiceberg_entry(one))
        theirs = writer.to_manifest_file()
        manifest = ManifestFile(path, theirs.manifest_length, 0, DataFileContent.DATA, 4, 4, 7)
        (found,) = read_manifest(IO, manifest)
        assert (found.status, found.snapshot_id, found.sequence_number) == (ManifestEntryStatus.ADDED, 7, 4)
        assert found.file == one


def _as_pyiceberg(manifest: ManifestFile) -> PyManifest:
    return PyManifest.from_args(
        manifest_path=manifest.manifest_path,
        manifest_length=manifest.manifest_length,
        partition_spec_id=manifest.partition_spec_id,
        content=ManifestContent.DATA,
        sequence_number=manifest.sequence_number,
        min_sequence_number=manifest.min_sequence_number,
        added_snapshot_id=manifest.added_snapshot_id,
    )


def _pyiceberg_entry(one: ContentFile) -> PyEntry:
    names = ("record_count", "file_size_in_bytes", "column_sizes", "value_counts", "null_value_counts",
             "nan_value_counts", "lower_bounds", "upper_bounds", "key_metadata", "sort_order_id")  # fmt: skip
    data = PyDataFile.from_args(
        content=PyContent.DATA,
        file_path=one.file_path,
        file_format=FileFormat.PARQUET,
        partition=Record(*one.partition),
        split_offsets=list(one.split_offsets or ()),
        **{name: getattr(one, name) for name in names},
    )
    return PyEntry.from_args(status=PyStatus.ADDED, snapshot_id=7, data_file=data)


class TestForeignForms:
    def test_fields_are_known_by_their_ids_not_their_names(self, tmp_path: Path) -> None:
        meta = _by_region(tmp_path)
        manifest = committed(_written(meta, tmp_path, [entry(full_file("f", 0, ("eu",)))]), 3)
        text = (
            json.dumps(_schema(tmp_path))
            .replace('"file_size_in_bytes"', '"size"')
            .replace('"content"', '"kind"')
        )
        _rewrite(tmp_path, json.loads(text))
        assert read_manifest(IO, manifest)[0].file == full_file("f", 0, ("eu",))

    def test_a_partition_field_that_the_records_lack_is_null(self, tmp_path: Path) -> None:
        both = [
            PartitionField(2, 1000, IdentityTransform(), "region"),
            PartitionField(1, 1001, BucketTransform(4), "b"),
        ]
        schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "region", StringType()))
        only = metadata(tmp_path, [schema], [spec(0, both[1])])
        manifest = committed(_written(only, tmp_path, [entry(file(partition=(3,)))]), 3)
        _reheader(tmp_path, {"partition-spec": json.dumps([one.model_dump(mode="json") for one in both])})
        assert read_manifest(IO, manifest)[0].file.partition == (None, 3)

    def test_a_uuid_as_text_is_its_bytes(self, tmp_path: Path) -> None:
        meta = _by_region(tmp_path)
        text = "00010203-0405-0607-0809-0a0b0c0d0e0f"
        manifest = committed(_written(meta, tmp_path, [entry(file(partition=(text,)))]), 3)
        changed = json.dumps(_schema(tmp_path)).replace(
            '"name": "region", "type": ["null", "string"]',
            '"name": "region", "type": ["null", {"type": "string", "logicalType": "uuid"}]',
        )
        _rewrite(tmp_path, json.loads(changed))
        assert read_manifest(IO, manifest)[0].file.partition == (bytes(range(16)),)

    def test_void_fields_are_null(self, tmp_path: Path) -> None:
        schema = Schema(NestedField(1, "id", LongType()))
        void = spec(0, PartitionField(9, 1000, VoidTransform(), "gone"))
        meta = metadata(tmp_path, [schema], [void], format_version=1)
        manifest = committed(_written(meta, tmp_path, [entry(file(partition=(None,)))]), 0)
        assert read_manifest(IO, manifest)[0].file.partition == (None,)


def _schema(tmp_path: Path) -> Any:
    return avro.parse_avro((tmp_path / "m.avro").read_bytes(), "m").schema


def _rewrite(tmp_path: Path, schema: Any) -> None:
    """The same blocks under another schema."""
    _reheader(tmp_path, {}, schema)


def _reheader(tmp_path: Path, changed: dict[str, str], schema: Any = None) -> None:
    path = tmp_path / "m.avro"
    old = avro.parse_avro(path.read_bytes(), "m")
    header = {key: value.decode() for key, value in old.metadata.items() if not key.startswith("avro.")}
    encoder = avro.AvroFileWriter(schema or old.schema, header | changed, "uncompressed")
    encoder._count, encoder._block = old.blocks[0][0], bytearray(old.blocks[0][1])
    path.write_bytes(encoder.finish())


class TestDamage:
    def test_a_missing_manifest_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(DamagedTable, match="named by the table but does not exist") as caught:
            read_manifest(IO, ManifestFile(f"{tmp_path}/none.avro", 1, 0, DataFileContent.DATA, 1, 1, 1))
        assert caught.value.path == f"{tmp_path}/none.avro"

    def test_what_is_no_avro_file_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "x.avro").write_bytes(b"PAR1 and more")
        with pytest.raises(DamagedTable, match="not an Avro file"):
            read_manifest(IO, ManifestFile(f"{tmp_path}/x.avro", 1, 0, DataFileContent.DATA, 1, 1, 1))

    @pytest.mark.parametrize("codec", ["gzip", "uncompressed", "snappy", "zstd"])
    def test_a_manifest_cut_anywhere_is_damaged(self, tmp_path: Path, codec: str) -> None:
        meta = _by_region(tmp_path)
        files = [full_file(f"data/{n}.parquet", 0, ("eu",)) for n in range(3)]
        manifest = committed(_written(meta, tmp_path, map(entry, files), compression=codec), 1)
        path = tmp_path / "m.avro"
        data = path.read_bytes()
        header = len(data) - len(data.split(avro.parse_avro(data, "m").blocks and data[-16:], 1)[1])
        for size in [*range(0, header, 97), *range(header + 1, len(data), 7)]:
            path.write_bytes(data[:size])
            with pytest.raises(DamagedTable):
                read_manifest(IO, manifest)

    def test_changed_bytes_never_do_worse_than_an_error(self, tmp_path: Path) -> None:
        meta = _by_region(tmp_path)
        manifest = committed(
            _written(meta, tmp_path, [entry(full_file("f", 0, ("eu",)))], compression="uncompressed"), 1
        )
        path = tmp_path / "m.avro"
        data = path.read_bytes()
        start = len(data) - 700
        for place in range(start, len(data), 3):
            for value in (0x00, 0x7F, 0x80, 0xFF):
                path.write_bytes(data[:place] + bytes([value]) + data[place + 1 :])
                with contextlib.suppress(DamagedTable, NotSupported):
                    read_manifest(IO, manifest)


class TestSchemas:
    """Against the schemas in files that Iceberg 1.12 wrote."""

    _JAVA = json.loads((Path(__file__).parent / "java_schemas.json").read_text())
    _COLUMNS = (
        ("ts", TimestamptzType(), DayTransform(), "ts_day"),
        ("tn", TimestampType(), IdentityTransform(), "tn"),
        ("dt", DateType(), IdentityTransform(), "dt"),
        ("dc", DecimalType(20, 2), IdentityTransform(), "dc"),
        ("nm", StringType(), IdentityTransform(), "nm"),
        ("bn", BinaryType(), IdentityTransform(), "bn_trunc"),
        ("fl", FloatType(), IdentityTransform(), "fl"),
        ("db", DoubleType(), IdentityTransform(), "db"),
        ("bo", BooleanType(), IdentityTransform(), "bo"),
        ("odd name", IntegerType(), IdentityTransform(), "odd name"),
        ("id", LongType(), BucketTransform(4), "id_bucket"),
    )

    @pytest.mark.parametrize("format_version", [1, 2, 3])
    def test_manifests_are_as_java_writes_them(self, format_version: int) -> None:
        columns = [
            NestedField(n, name, kind, required=False) for n, (name, kind, _, _) in enumerate(self._COLUMNS)
        ]
        fields = [
            PartitionField(n, 1000 + n, transform, name)
            for n, (_, _, transform, name) in enumerate(self._COLUMNS)
        ]
        meta = metadata("t", [Schema(*columns)], [PartitionSpec(*fields)])
        made = make_entry_schema(make_partition_type(meta, meta.spec()).fields, format_version)
        assert made == self._JAVA[f"manifest_{format_version}"]

    @pytest.mark.parametrize("format_version", [1, 2, 3])
    def test_lists_are_as_java_writes_them(self, format_version: int) -> None:
        assert make_list_schema(format_version) == self._JAVA[f"list_{format_version}"]

    @pytest.mark.parametrize(
        ("name", "made"),
        [
            ("plain_1", "plain_1"),
            ("odd name", "odd_x20name"),
            ("1st", "_1st"),
            ("é", "_xE9"),
            ("a.b-c", "a_x2Eb_x2Dc"),
        ],
    )
    def test_names_avro_does_not_take_are_replaced(self, name: str, made: str) -> None:
        assert make_compatible_name(name) == made
