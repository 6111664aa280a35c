"""Seed 002, integration: DELETE, UPDATE and MERGE on tables whose partition spec has evolved."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fastavro import reader
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestampType

import intarsia as it
from intarsia.tables.iceberg.catalog import embedded_catalog

DATA, DELETES = 0, 1


def _rows(ids: list[int], region: str = "eu", note: str = "old") -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "ts": pa.array([datetime(2024, 1, 1 + number % 2) for number in ids], pa.timestamp("us")),
            "region": [region] * len(ids),
            "note": [note] * len(ids),
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """Made by ``day(ts)``, evolved by ``region``, written again; all of it without intarsia."""
    catalog = embedded_catalog(tmp_path / "warehouse")
    catalog.create_namespace("db")
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "ts", TimestampType()),
        NestedField(3, "region", StringType()),
        NestedField(4, "note", StringType()),
    )
    made = catalog.create_table("db.events", schema, properties={"format-version": "2"})
    with made.update_spec() as update:
        update.add_field("ts", DayTransform(), "ts_day")
    made.append(_rows([0, 1, 2, 3]))
    with made.update_spec() as update:
        update.add_identity("region")
    made.append(_rows([4, 5, 6, 7], "us"))
    return made


def _local(path: str) -> str:
    return path.removeprefix("file://")


def _avro(path: str) -> tuple[list[Any], dict[str, Any]]:
    with open(_local(path), "rb") as file:
        found = reader(file)
        return list(found), dict(found.metadata)


def _manifests(table: Any) -> Iterator[tuple[dict[str, Any], list[Any], dict[str, Any]]]:
    """The manifests of the current snapshot by a decoder that knows nothing of Iceberg."""
    snapshot = table.catalog.load_table(table.name()).current_snapshot()
    for manifest in _avro(snapshot.manifest_list)[0]:
        entries, header = _avro(manifest["manifest_path"])
        yield manifest, [entry for entry in entries if entry["status"] != 2], header


def _check_one_spec_per_manifest(table: Any) -> dict[tuple[int, int], int]:
    """Live files by content and spec; every manifest says the same of itself as the list says of it."""
    found: dict[tuple[int, int], int] = {}
    fields = {spec.spec_id: [field.name for field in spec.fields] for spec in table.specs().values()}
    for manifest, entries, header in _manifests(table):
        spec_id = manifest["partition_spec_id"]
        assert int(header["partition-spec-id"]) == spec_id
        for entry in entries:
            assert list(entry["data_file"]["partition"]) == fields[spec_id]
        key = (manifest["content"], spec_id)
        found[key] = found.get(key, 0) + len(entries)
    return found


def _added(table: Any, content: int) -> list[tuple[int, dict[str, Any]]]:
    """Spec and record of the files that the current snapshot has added."""
    now = table.catalog.load_table(table.name()).current_snapshot().snapshot_id
    return [
        (manifest["partition_spec_id"], entry["data_file"])
        for manifest, entries, _ in _manifests(table)
        for entry in entries
        if manifest["content"] == content and entry["status"] == 1 and entry["snapshot_id"] in (None, now)
        if manifest["added_snapshot_id"] == now
    ]


def _content(table: Any) -> dict[int, str]:
    found = table.catalog.load_table(table.name()).scan().to_arrow()
    return dict(zip(found["id"].to_pylist(), found["note"].to_pylist(), strict=True))


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_delete_with_partition_evolution(table: Any, mode: str) -> None:
    result = it.delete(table, "id in (1, 2, 5)", mode=mode)
    assert (result.deleted, result.total) == (3, 5)
    assert set(_content(table)) == {0, 3, 4, 6, 7}
    files = _check_one_spec_per_manifest(table)
    assert {spec for content, spec in files if content == DELETES and files[content, spec]} == (
        {1, 2} if mode == "merge-on-read" else set()
    )


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_update_with_partition_evolution(table: Any, mode: str) -> None:
    result = it.update(table, {"note": "'new'"}, "id in (1, 2, 5)", mode=mode)
    assert (result.updated, result.total) == (3, 8)
    assert _content(table) == {n: "new" if n in (1, 2, 5) else "old" for n in range(8)}
    _check_one_spec_per_manifest(table)


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_merge_with_partition_evolution(table: Any, mode: str) -> None:
    result = it.merge(_rows([2, 5, 9], "ap", "new"), table, on="id", mode=mode)
    assert (result.updated, result.inserted, result.total) == (2, 1, 9)
    assert _content(table) == {n: "new" if n in (2, 5, 9) else "old" for n in (*range(8), 9)}
    _check_one_spec_per_manifest(table)


def test_position_delete_inherits_the_spec_and_the_tuple_of_its_data_file(table: Any) -> None:
    where = {
        entry["data_file"]["file_path"]: (manifest["partition_spec_id"], entry["data_file"]["partition"])
        for manifest, entries, _ in _manifests(table)
        for entry in entries
    }
    it.delete(table, "id in (1, 5)", mode="merge-on-read")
    added = _added(table, DELETES)
    assert sorted(spec for spec, _ in added) == [1, 2]
    for spec, file in added:
        assert (spec, file["partition"]) == where[file["referenced_data_file"]]


def test_update_writes_new_files_with_default_spec(table: Any) -> None:
    it.update(table, {"note": "'new'"}, "id in (1, 5)", mode="merge-on-read")
    default = table.catalog.load_table(table.name()).metadata.default_spec_id
    assert {spec for spec, _ in _added(table, DATA)} == {default}
    assert sorted(spec for spec, _ in _added(table, DELETES)) == [1, 2]
    assert sorted(file["partition"]["region"] for _, file in _added(table, DATA)) == ["eu", "us"]
