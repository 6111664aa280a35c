"""Whatever is given, only errors of intarsia come out: odd values of every argument, and what is missing."""

from __future__ import annotations

import datetime as dt
import errno
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pytest

import intarsia as it
from intarsia.common import paths
from intarsia.common.paths import with_time_limit
from intarsia.engines.duckdb.session import Session
from intarsia.errors import (
    DamagedTable,
    InputError,
    IntarsiaError,
    NotSupported,
    SchemaMismatch,
    StorageError,
)
from intarsia.storage.port import translate_storage_errors
from tests.bad_input.trial import BASE, SOURCE, files_of

ENGINES = pytest.mark.parametrize("engine", ["arrow", "duckdb"])


class OddPath:
    def __fspath__(self) -> int:
        return 5


ODD: list[Any] = [
    None,
    -1,
    float("nan"),
    10**30,
    True,
    "",
    "a\0b",
    "\udcff",
    b"t",
    [],
    {},
    [None],
    {1: 2},
    {"id"},
    object(),
    object,
    pc.field("id"),
    pa.array([1]),
    SOURCE,
    dt.date(2020, 1, 1),
    1j,
    ...,
    OddPath(),
    Path("file.txt"),
    "file.txt/below",
    "socket",
    "/dev/null",
    "foo://bar",
    "id = 99999999999999999999999999",
    "'",
]
CALLS: dict[str, Any] = {
    "merge": lambda given: it.merge(**{"source": SOURCE, "target": "t", "on": "id", **given}),
    "delete": lambda given: it.delete(**{"target": "t", "where": "id = 1", **given}),
    "update": lambda given: it.update(**{"target": "t", "assignments": {"n": "1"}, **given}),
    "write": lambda given: it.write(**{"source": SOURCE, "target": "t", **given}),
    "compact": lambda given: it.compact(**{"target": "t", **given}),
    "optimize": lambda given: it.optimize(**{"target": "t", "by": "id", **given}),
    "deduplicate": lambda given: it.deduplicate(**{"target": "t", "on": "id", **given}),
    "inspect": lambda given: it.inspect(**{"target": "t", **given}),
    "snapshot": lambda given: it.snapshot(**{"target": "t", **given}),
    "recover": lambda given: it.recover(**{"target": "t", **given}),
    "history": lambda given: it.history(**{"target": "t", **given}),
    "restore": lambda given: it.restore(**{"target": "t", "version": 0, **given}),
    "read": lambda given: it.read(**{"target": "t", **given}),
    "plan": lambda given: it.plan(given["operation"], "t", "id = 1"),
    "iceberg": lambda given: it.iceberg(**{"identifier": "a.b", "catalog": "./none", **given}),
}
ARGUMENTS: dict[str, list[str]] = {
    "merge": [
        *("source", "target", "on", "strategy", "clauses", "dedup_order_by", "null_keys", "missing"),
        *("schema_evolution", "partition_by", "engine", "dry_run", "control_path", "dialect", "filesystem"),
        *("storage_options", "lock", "lock_timeout", "retain", "threads", "row_group_size", "spool_dir"),
        *("max_rows_per_file", "compression", "properties"),
    ],
    "delete": ["target", "where", "dialect", "engine"],
    "update": ["target", "assignments", "where"],
    "write": ["source", "target", "mode", "partition_by", "missing", "schema_evolution", "max_rows_per_file"],
    "compact": ["target", "target_mb_per_file", "target_rows_per_file", "partition_filter"],
    "optimize": ["target", "by", "curve", "partition_filter", "deduplicate_on", "dedup_order_by"],
    "deduplicate": ["target", "on", "order_by", "partition_filter"],
    "inspect": ["target"],
    "snapshot": ["target"],
    "recover": ["target"],
    "history": ["target", "storage_options"],
    "restore": ["target", "version", "dry_run", "retain", "properties", "lock"],
    "read": ["target", "columns", "where"],
    "plan": ["operation"],
    "iceberg": ["identifier", "catalog", "branch", "mode"],
}
CASES = [(call, name) for call, names in ARGUMENTS.items() for name in names]


@pytest.mark.parametrize(("call", "name"), CASES, ids=[f"{call}-{name}" for call, name in CASES])
def test_odd_values_of_every_argument(
    tmp_path: Path, call: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    it.write(BASE, "t")
    Path("file.txt").write_text("hello")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        for value in ODD:
            with suppress(IntarsiaError):
                CALLS[call]({name: value})


VALUES = [
    lambda given: it.update("t", {"n": given}),
    lambda given: it.merge(SOURCE, "t", on="id", clauses=[it.when_matched(given).update_all()]),
    lambda given: it.merge(SOURCE, "t", on="id", clauses=[it.when_matched().update({"n": given})]),
    lambda given: it.merge(SOURCE, "t", on="id", clauses=[it.when_not_matched().insert({"id": given})]),
    lambda given: it.merge([{"id": given, "name": "x"}], "t", on="id", missing="null"),
    lambda given: it.merge([given], "t", on="id"),
]


@pytest.mark.parametrize("call", VALUES, ids=range(len(VALUES)))
def test_odd_values_inside_of_arguments(tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    it.write(BASE, "t")
    for value in ODD:
        with suppress(IntarsiaError):
            call(value)


@ENGINES
def test_an_integer_beyond_64_bits(root: Path, engine: Any) -> None:
    assert it.delete(root, f"n > {10**30}", engine=engine).deleted == 0
    assert it.delete(root, f"n < {10**30} and id = 1", engine=engine).deleted == 1
    with pytest.raises(SchemaMismatch, match="1" + "0" * 30):
        it.update(root, {"n": 10**30}, engine=engine)
    with pytest.raises(SchemaMismatch, match="1" + "0" * 30):
        it.update(root, {"n": str(10**30)}, engine=engine)
    with pytest.raises(NotSupported, match="76"):
        it.update(root, {"n": 10**90}, engine=engine)
    with pytest.raises(InputError, match=r"Column 'n' .* row 1 .*1000000") as caught:
        it.merge([{"id": 1, "n": 1}, {"id": 2, "n": 10**30}], root, on="id", missing="null", engine=engine)
    assert "Decimal" in str(caught.value.hint)


@pytest.mark.parametrize(
    "predicate",
    [
        "n = cast(id as decimal(0, 0))",
        "day + interval 999999999999999999999999999999 day > day",
        "day + interval '9999999999999999999' day > day",
        "n = 1e",
        "name = 'a\udcff'",
    ],
)
def test_sql_that_means_no_value(tmp_path: Path, predicate: str) -> None:
    it.write(BASE.append_column("day", pa.array([dt.date(2024, 1, 1)] * len(BASE))), tmp_path / "t")
    with pytest.raises((InputError, NotSupported)):
        it.delete(tmp_path / "t", predicate)


BLOCKED = """
import sys
sys.modules[{package!r}] = None
import intarsia as it
from intarsia.errors import NotSupported
try:
    {code}
except NotSupported as error:
    assert "intarsia[{extra}]" in str(error), str(error)
else:
    raise AssertionError("it went on")
"""
EXTRAS = {
    "embedded_catalog": ("pyiceberg", "iceberg", "from intarsia.tables.iceberg import embedded_catalog"),
    "iceberg": ("pyiceberg", "iceberg", "it.iceberg('a.b', catalog='./x')"),
    "deletes": ("pyroaring", "iceberg", "it.iceberg('a.b', catalog='./x')"),
    "transforms": ("pyiceberg_core", "iceberg", "it.iceberg('a.b', catalog='./x')"),
    "maintenance": ("pyiceberg", "iceberg", "from intarsia.tables.iceberg import expire_snapshots"),
    "sqlite": (
        "sqlalchemy",
        "iceberg",
        "from intarsia.tables.iceberg import embedded_catalog; embedded_catalog('x')",
    ),
    "duckdb": ("duckdb", "duckdb", "it.compact('t', engine='duckdb')"),
    "spark": ("pyspark", "spark", "it.compact('t', engine='spark')"),
    "sql": ("sqlglot", "sql", "it.delete('t', 'id = 1')"),
    "fsspec": ("fsspec", "fsspec", "it.compact('memory://t/x')"),
}


@pytest.mark.parametrize("case", EXTRAS)
def test_an_extra_that_is_not_installed(tmp_path: Path, case: str) -> None:
    package, extra, code = EXTRAS[case]
    it.write(BASE, tmp_path / "t")
    text = BLOCKED.format(package=package, extra=extra, code=code)
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_warehouse_that_cannot_be_one(tmp_path: Path) -> None:
    from intarsia.tables.iceberg import embedded_catalog

    (tmp_path / "file").write_text("no directory")
    with pytest.raises(StorageError, match="file") as caught:
        embedded_catalog(tmp_path / "file")
    assert caught.value.errno in (errno.EEXIST, errno.ENOTDIR)
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "catalog.db").write_text("this is no database at all, but it is long enough" * 40)
    with pytest.raises(StorageError, match=r"catalog\.db .*not a database"):
        embedded_catalog(tmp_path / "house")
    with pytest.raises(InputError):
        embedded_catalog("\0")


def test_a_full_disk_of_duckdb_has_its_errno() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with Session() as session, pytest.raises(StorageError, match="No space left") as caught:
        session.run("COPY (SELECT range FROM range(1000000)) TO '/dev/full' (FORMAT parquet)")
    assert caught.value.errno == errno.ENOSPC
    assert "free some space" in str(caught.value.hint)


def test_a_page_that_only_duckdb_stumbles_over_names_the_file(root: Path) -> None:
    file = files_of(root)[0]
    data = bytearray(file.read_bytes())
    data[4:40] = b"\xff" * 36  # the header of the first page
    file.write_bytes(data)
    with pytest.raises(DamagedTable, match=file.name):
        it.delete(root, "id > 0 and n < 1000", engine="duckdb")


def test_a_client_of_a_store_has_errors_of_its_own() -> None:
    class EndpointConnectionError(Exception):
        """As botocore's, which is no OSError."""

    EndpointConnectionError.__module__ = "botocore.exceptions"
    with (
        pytest.raises(StorageError, match="Could not list bucket/x: no route"),
        translate_storage_errors("list", "bucket/x"),
    ):
        raise EndpointConnectionError("no route")
    with pytest.raises(KeyError), translate_storage_errors("list", "bucket/x"):
        raise KeyError("a mistake of ours stays one")


GOOGLE = {
    "read": lambda url: it.read(url),
    "merge": lambda url: it.merge(pa.table({"id": [1]}), url, on="id"),
    "delete on DuckDB": lambda url: it.delete(url, "id = 1", engine="duckdb"),
}


@pytest.mark.skipif(not hasattr(pafs, "GcsFileSystem"), reason="pyarrow has no GcsFileSystem")
@pytest.mark.parametrize("call", GOOGLE)
def test_google_gives_up_where_nobody_answers(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "GIVE_UP_SECONDS", 1)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    begun = time.monotonic()
    with pytest.raises(StorageError, match="Could not"):
        GOOGLE[call](f"gs://anonymous@bucket/x?endpoint_override=127.0.0.1:{port}&scheme=http")
    assert time.monotonic() - begun < 30  # seconds; three to seven are what it takes


def test_google_gives_up_after_a_stated_time() -> None:
    assert with_time_limit("gs://b/x") == "gs://b/x?retry_limit_seconds=15"
    assert with_time_limit("gs://b/x?project_id=p") == "gs://b/x?project_id=p&retry_limit_seconds=15"
    assert with_time_limit("gs://b/x?retry_limit_seconds=5") == "gs://b/x?retry_limit_seconds=5"
    assert with_time_limit("s3://b/x") == "s3://b/x"
    if hasattr(pafs, "GcsFileSystem"):
        found, _ = pafs.FileSystem.from_uri(with_time_limit("gs://anonymous@b/x"))
        assert "retry_time_limit" in str(found.__reduce__())
        assert "seconds=15" in str(found.__reduce__())
