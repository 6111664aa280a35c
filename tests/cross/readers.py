"""The same table through readers that know nothing of each other: Spark, PyIceberg and Polars."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import polars as pl

import intarsia as it
from tests.cross.decoded import State, decode
from tests.cross.kinds import Kind
from tests.cross.lake import Lake
from tests.cross.sample_rows import Row, comparable, difference, rows_of


def spark_rows(lake: Lake, table: str, branch: str | None = None) -> list[Row]:
    return rows_of(lake.sql(f"SELECT * FROM {_in_spark(lake, table, branch)}"))


def pyiceberg_rows(lake: Lake, table: str, branch: str | None = None) -> list[Row]:
    found = lake.catalog.load_table(table)
    scan = found.scan().use_ref(branch) if branch else found.scan()
    return rows_of(scan.to_arrow())


def polars_rows(lake: Lake, table: str, branch: str | None = None) -> list[Row]:
    found = lake.catalog.load_table(table)
    snapshot = found.metadata.snapshot_by_name(branch).snapshot_id if branch else None  # type: ignore[union-attr]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a part of it may change
        frame = pl.scan_iceberg(found, snapshot_id=snapshot).collect()
    return rows_of(frame.to_arrow())


def our_rows(lake: Lake, table: str, branch: str | None = None) -> list[Row]:
    return rows_of(it.read(it.iceberg(table, catalog=lake.catalog, branch=branch)).read_all())


def disagreements(lake: Lake, kind: Kind, table: str, wanted: list[Row]) -> list[str]:
    """Which reader sees other rows than wanted, or other rows when it may leave out files."""
    readers: list[tuple[str, Callable[..., list[Row]]]] = [("Spark", spark_rows), ("we", our_rows)]
    if kind.pyiceberg_reads:
        readers.append(("PyIceberg", pyiceberg_rows))
    if kind.polars_reads:
        readers.append(("Polars", polars_rows))
    found = []
    for name, read in readers:
        if told := difference(read(lake, table, kind.branch), wanted):
            found.append(f"{name}: {told}")
    found += pruned_disagreements(lake, kind, table, wanted)
    if kind.branch is None:
        found += metadata_disagreements(lake, table)
    return found


def pruned_disagreements(lake: Lake, kind: Kind, table: str, wanted: list[Row]) -> list[str]:
    """Filtered reads in Spark, one for some values of each filter column, all in one job."""
    asked = [(path, value) for path in kind.filters for value in _some_values(wanted, path)]
    asked.append(("id", -1))
    name = _in_spark(lake, table, kind.branch)
    parts = [
        f"SELECT {n} AS filter, id FROM {name} WHERE {_condition(p, v)}" for n, (p, v) in enumerate(asked)
    ]
    answer = lake.sql(" UNION ALL ".join(parts)).to_pylist()
    found = []
    for number, (path, value) in enumerate(asked):
        ids = sorted(row["id"] for row in answer if row["filter"] == number)
        right = sorted(row["id"] for row in wanted if _at(row, path) == comparable(value))
        if ids != right:
            found.append(f"Spark where {_condition(path, value)}: {ids}, not {right}")
        target = it.iceberg(table, catalog=lake.catalog, branch=kind.branch)
        ids = sorted(
            it.read(target, columns=["id"], where=_condition(path, value), dialect="spark")
            .read_all()["id"]
            .to_pylist()
        )
        if ids != right:
            found.append(f"we where {_condition(path, value)}: {ids}, not {right}")
    return found


def _some_values(rows: list[Row], path: str) -> Iterator[Any]:
    values = {repr(value): value for value in (_at(row, path) for row in rows) if value == value}
    chosen = sorted(values)
    yield from (values[key] for key in chosen[:: max(1, len(chosen) // 3)][:4])
    if "None" in values:
        yield None


def _at(row: Row, path: str) -> Any:
    found: Any = row
    for name in path.split("."):
        found = None if found is None else found[name]
    return found


def _condition(path: str, value: Any) -> str:
    return f"{path} IS NULL" if value is None else f"{path} = {_literal(value)}"


def _literal(value: Any) -> str:
    match value:
        case bool() | int() | Decimal():
            return str(value)
        case dt.datetime():
            kind = "TIMESTAMP" if value.tzinfo else "TIMESTAMP_NTZ"
            return f"{kind} '{value.replace(tzinfo=None).isoformat(sep=' ')}'"  # the session is in UTC
        case dt.date():
            return f"DATE '{value}'"
        case bytes():
            return f"X'{value.hex()}'"
        case _:
            return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"


def metadata_disagreements(lake: Lake, table: str) -> list[str]:
    """Spark's metadata tables against what the Avro files say."""
    state = decode(lake.metadata_file(table))
    name = lake.in_spark(table)
    file = "file_path, content, spec_id, record_count"
    manifest = "path, content, partition_spec_id" + "".join(
        f", {status}_{kind}_files_count"
        for status in ("added", "existing", "deleted")
        for kind in ("data", "delete")
    )
    columns = {
        "files": file,
        "delete_files": file,
        "manifests": manifest,
        "entries": "data_file.file_path, status, sequence_number",
    }
    queries = {
        key: f"SELECT '{key}' t, concat_ws('|', {names}) v FROM {name}.{key}"
        for key, names in columns.items()
    }
    answer = lake.sql(" UNION ALL ".join(queries.values())).to_pylist()
    seen = {key: sorted(row["v"] for row in answer if row["t"] == key) for key in queries}
    found = []
    for key, wanted in _wanted(state).items():
        if seen[key] != wanted:
            found.append(f"Spark's .{key}: {seen[key][:3]}..., the manifests say {wanted[:3]}...")
    found += _partition_disagreements(lake, name, state)
    return found


def _wanted(state: State) -> dict[str, list[str]]:
    def shown(files: Any) -> list[str]:
        return sorted(f"{f.path}|{f.content}|{f.spec_id}|{f.rows}" for f in files)

    return {
        "files": shown(state.live),
        "delete_files": shown(state.deletes),
        "manifests": sorted(_manifest(one) for one in state.manifests),
        "entries": sorted(f"{f.path}|{f.status}|{f.sequence}" for m in state.manifests for f in m.files),
    }


def _manifest(manifest: Any) -> str:
    counts = [sum(f.status == status for f in manifest.files) for status in (1, 0, 2)]
    if manifest.content == 0:
        pairs = [(count, 0) for count in counts]
    else:
        pairs = [(0, count) for count in counts]
    numbers = "|".join(str(number) for pair in pairs for number in pair)
    return f"{manifest.record['manifest_path']}|{manifest.content}|{manifest.spec_id}|{numbers}"


def _partition_disagreements(lake: Lake, name: str, state: State) -> list[str]:
    totals = "sum(record_count) r, sum(file_count) f, sum(position_delete_record_count) p"
    (seen,) = lake.sql(f"SELECT {totals} FROM {name}.partitions").to_pylist()
    right = {
        "r": sum(f.rows for f in state.data) if state.data else None,
        "f": len(state.data) if state.live else None,
        "p": sum(f.rows for f in state.deletes if f.content == 1) if state.live else None,
    }
    if not state.data and state.deletes:
        right["r"] = 0
    return [] if seen == right else [f"Spark's .partitions: {seen}, the manifests say {right}"]


def _in_spark(lake: Lake, table: str, branch: str | None) -> str:
    return lake.in_spark(table) + (f".branch_{branch}" if branch else "")
