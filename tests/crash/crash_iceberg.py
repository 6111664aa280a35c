"""Runs under the preloaded shim: kills or fails changes of an Iceberg table at their calls, and checks.

    python crash_iceberg.py '{"operation": "merge", "directory": "...", "faults": [["kill", 60, 0]]}'

As crash_sweep.py, on a table of an embedded catalog; PyIceberg says what is in it afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from crash_sweep import KILL, MOST_VIOLATIONS, TORN, Outcome, Result, import_ahead, in_child, spread
from pyiceberg.table.metadata import MetadataLogEntry, TableMetadataV3

import intarsia as it
from intarsia.errors import IntarsiaError
from intarsia.tables.iceberg import embedded_catalog

NAME = "db.events"
State = dict[int, str]
OLD: State = dict.fromkeys(range(8), "old")


def rows(ids: list[int], value: str) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "region": ["eu"] * len(ids), "v": [value] * len(ids)})


def make(warehouse: str, version: int) -> None:
    """Two files of two specs, written by PyIceberg."""
    catalog = embedded_catalog(warehouse)
    catalog.create_namespace("db")
    properties = {"format-version": "2", "commit.retry.num-retries": "1", "commit.retry.min-wait-ms": "1"}
    table = catalog.create_table(NAME, rows([0], "old").schema, properties=properties)
    table.append(rows([0, 1, 2, 3], "old"))
    with table.update_spec() as update:
        update.add_identity("region")
    table.append(rows([4, 5, 6, 7], "old"))
    if version == 3:
        upgrade(catalog, warehouse)


def upgrade(catalog: Any, warehouse: str) -> None:
    """To format version 3, as another writer would; PyIceberg's own door stops at version 2."""
    table = catalog.load_table(NAME)
    past = MetadataLogEntry(
        metadata_file=table.metadata_location, timestamp_ms=table.metadata.last_updated_ms
    )
    fields = {**dict(table.metadata), "format_version": 3, "next_row_id": 0}
    fields["metadata_log"] = [*table.metadata.metadata_log, past]
    location = table.metadata_location.replace(".metadata.json", "-up.metadata.json")
    catalog._write_metadata(TableMetadataV3.model_construct(**fields), table.io, location)
    with closing(sqlite3.connect(f"{warehouse}/catalog.db")) as connection, connection:
        connection.execute("UPDATE iceberg_tables SET metadata_location = ?", (location,))


def merge(warehouse: str) -> None:
    it.merge(rows([2, 5, 9], "new"), table_of(warehouse), on="id", mode="merge-on-read", **CALM)


def copy(warehouse: str) -> None:
    it.update(table_of(warehouse), {"v": "'new'"}, "id in (2, 5)", mode="copy-on-write", **CALM)


def delete_by_vectors(warehouse: str) -> None:
    it.delete(table_of(warehouse), "id in (2, 5)", mode="merge-on-read", **CALM)


CALM: dict[str, Any] = {"engine": "arrow", "threads": 1, "progress": False}
OPERATIONS: dict[str, tuple[Callable[[str], None], State, int]] = {
    "merge": (merge, {**OLD, 2: "new", 5: "new", 9: "new"}, 2),
    "copy": (copy, {**OLD, 2: "new", 5: "new"}, 2),
    "vectors": (delete_by_vectors, {n: v for n, v in OLD.items() if n not in (2, 5)}, 3),
}
"""What is done, what is then in the table, and the format version."""


def table_of(warehouse: str) -> Any:
    return it.iceberg(NAME, catalog=embedded_catalog(warehouse))


def state_of(warehouse: str) -> State:
    found = embedded_catalog(warehouse).load_table(NAME).scan().to_arrow()
    ids = found["id"].to_pylist()
    assert len(set(ids)) == len(ids), f"a row is there twice: {ids}"
    return dict(zip(ids, found["v"].to_pylist(), strict=True))


def orphans(warehouse: str) -> list[str]:
    """Files below the table that no metadata of it leads to."""
    table = embedded_catalog(warehouse).load_table(NAME)
    known = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    for snapshot in table.metadata.snapshots:
        known.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            known.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            known |= {entry.data_file.file_path for entry in entries}
    root = table.location().removeprefix("file://")
    there = [os.path.join(directory, name) for directory, _, names in os.walk(root) for name in names]
    return sorted(path for path in there if f"file://{path}" not in known)


class IcebergSweep:
    """One operation, and faults at its points; the warehouse is always at one place, which it names."""

    def __init__(self, name: str, directory: str) -> None:
        self.name = name
        self.run_it, self.new, version = OPERATIONS[name]
        self.warehouse, self.template = f"{directory}/warehouse", f"{directory}/template"
        shutil.rmtree(directory, ignore_errors=True)
        make(self.warehouse, version)
        shutil.copytree(self.warehouse, self.template)
        self.result = Result(name, "")
        self.imported = False

    def run(self, fault: str, points: int) -> Result:
        self.result = result = Result(self.name, fault)
        if not self.imported:
            import_ahead(self._run_at(0, KILL).modules)
            self.imported = True
        baseline = self._run_at(0, KILL)
        result.calls = baseline.calls
        if baseline.said != "ACK":
            result.violations.append(f"fails without a fault: {baseline.said}")
            return result
        self._check(baseline, "without a fault", clean=False)
        number = {"kill": KILL, "torn": TORN}.get(fault) or getattr(__import__("errno"), fault, KILL)
        calls = [n for n in range(1, baseline.calls + 1) if fault != "torn" or baseline.kinds[n - 1] == "w"]
        for n in spread(calls, points):
            if len(result.violations) >= MOST_VIOLATIONS:
                break
            outcome = self._run_at(n, number)
            result.points += 1
            result.killed += outcome.killed
            result.acknowledged += outcome.said == "ACK"
            result.raised += not outcome.killed and outcome.said != "ACK"
            kind = baseline.kinds[n - 1]
            self._check(outcome, f"{fault} at call {n} ({kind})", clean=kind in "ux")
        return result

    def _run_at(self, n: int, fault: int) -> Outcome:
        shutil.rmtree(self.warehouse, ignore_errors=True)
        shutil.copytree(self.template, self.warehouse)
        return in_child(lambda: self.run_it(self.warehouse), n, fault)

    def _check(self, outcome: Outcome, where: str, *, clean: bool) -> None:
        try:
            problems = self._problems(outcome, clean)
        except (OSError, ValueError, AssertionError, IntarsiaError) as error:
            problems = [f"{type(error).__name__}: {error}"]
        self.result.violations += [f"{where} ({outcome.said or 'killed'}): {p}" for p in problems]

    def _problems(self, outcome: Outcome, clean: bool) -> list[str]:
        found = state_of(self.warehouse)
        if outcome.said == "ACK" or outcome.changed is True:
            allowed = [self.new]
        else:
            allowed = [OLD] if outcome.changed is False else [OLD, self.new]
        problems = [] if found in allowed else [f"neither old nor new, or not what was answered: {found}"]
        if outcome.changed is False and not clean:
            problems += [f"left behind by a failure: {path}" for path in orphans(self.warehouse)]
        if found == OLD and not problems:  # whatever is left is in nobody's way
            self.run_it(self.warehouse)
            again = state_of(self.warehouse)
            problems += [] if again == self.new else [f"run again, it gives {again}"]
        return problems


def main() -> None:
    order = json.loads(sys.argv[1])
    sweep = IcebergSweep(order["operation"], order["directory"])
    try:
        results = [sweep.run(fault, points) for fault, points, _ in order["faults"]]
    finally:
        shutil.rmtree(order["directory"], ignore_errors=True)
    print(json.dumps([asdict(result) for result in results]))


if __name__ == "__main__":
    main()
