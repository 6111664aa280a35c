"""dlt: real pipelines, run several times with changes, and read by pyarrow and PyIceberg."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

dlt = pytest.importorskip("dlt", reason="dlt is not installed; make doors DOORS=dlt has it")

from dlt.common.destination.exceptions import DestinationTransientException
from dlt.pipeline.exceptions import PipelineStepFailed

import intarsia as it
from intarsia.errors import CommitConflict
from intarsia.integrations import dlt as door
from intarsia.tables.iceberg.catalog import open_catalog

EXAMPLE = Path(__file__).parents[2] / "examples" / "integrations" / "dlt"

Load = Callable[..., Any]
FORMATS = pytest.mark.parametrize("table_format", [None, "iceberg"], ids=["parquet", "iceberg"])


@pytest.fixture(autouse=True)
def in_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNTIME__DLTHUB_TELEMETRY", "false")
    monkeypatch.setenv("RUNTIME__LOG_LEVEL", "CRITICAL")
    monkeypatch.setenv("LOAD__RAISE_ON_MAX_RETRIES", "5")
    yield
    dlt.current.pipeline().deactivate()


def open_pipeline(directory: str = "pipelines", **options: Any) -> Any:
    destination = door.intarsia("lake", catalog="warehouse/", options=options)
    return dlt.pipeline("shop", destination=destination, dataset_name="shop", pipelines_dir=directory)


def load(rows: Any, *, name: str = "orders", **hints: Any) -> Any:
    return open_pipeline().run(dlt.resource(rows, name=name, **hints))


def read(table_format: str | None, name: str = "orders") -> list[dict[str, Any]]:
    """The rows as pyarrow or PyIceberg reads them, without dlt's own columns."""
    if table_format is None:
        table = ds.dataset(f"lake/shop/{name}", partitioning="hive").to_table()
    else:
        table = open_catalog("warehouse/").load_table(f"shop.{name}").scan().to_arrow()
    table = table.drop_columns([column for column in table.column_names if column.startswith("_dlt_")])
    return sorted(table.to_pylist(), key=lambda row: row["id"])


def count_commits(table_format: str | None, name: str = "orders") -> int:
    table = f"lake/shop/{name}" if table_format is None else it.iceberg(f"shop.{name}", catalog="warehouse/")
    return sum(commit.app_id is not None for commit in it.history(table))


def test_the_example_merges_evolves_and_deletes_run_by_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    run = importlib.import_module("shop").run
    for _ in range(3):
        run(tmp_path)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == shown[1]
    assert (
        shown[4:]
        == [str([{"id": 2, "state": "paid", "amount": 20}, {"id": 3, "state": "open", "amount": 30}])] * 2
    )


@FORMATS
def test_a_merge_replaces_by_primary_key_and_adds_columns(table_format: str | None) -> None:
    hints = {"primary_key": "id", "write_disposition": "merge", "table_format": table_format}
    load([{"id": 1, "state": "a"}, {"id": 2, "state": "b"}], **hints)
    load([{"id": 2, "state": "B", "note": "x"}, {"id": 3, "state": "c"}], **hints)
    assert read(table_format) == [
        {"id": 1, "state": "a", "note": None},
        {"id": 2, "state": "B", "note": "x"},
        {"id": 3, "state": "c", "note": None},
    ]
    assert count_commits(table_format) == 2


@FORMATS
def test_of_the_rows_of_a_key_the_last_decides_and_may_delete(table_format: str | None) -> None:
    columns = {"at": {"dedup_sort": "desc"}, "gone": {"data_type": "bool", "hard_delete": True}}
    hints = {
        "primary_key": "id",
        "write_disposition": "merge",
        "columns": columns,
        "table_format": table_format,
    }
    load([{"id": 1, "at": 1, "gone": False}, {"id": 2, "at": 1, "gone": None}], **hints)
    load(
        [
            {"id": 1, "at": 3, "gone": True},
            {"id": 1, "at": 2, "gone": False},
            {"id": 2, "at": 2, "gone": True},
            {"id": 2, "at": 3, "gone": False},
            {"id": 3, "at": 1, "gone": True},
        ],
        **hints,
    )
    assert read(table_format) == [{"id": 2, "at": 3, "gone": False}]


@FORMATS
def test_append_replace_and_insert_only(table_format: str | None) -> None:
    first, second = [{"id": 1, "n": "a"}], [{"id": 1, "n": "b"}, {"id": 2, "n": "c"}]
    for rows in (first, second):
        load(rows, name="appended", write_disposition="append", table_format=table_format)
        load(rows, name="replaced", write_disposition="replace", table_format=table_format)
        only = {"disposition": "merge", "strategy": "insert-only"}
        load(rows, name="inserted", primary_key="id", write_disposition=only, table_format=table_format)
    assert [row["id"] for row in read(table_format, "appended")] == [1, 1, 2]
    assert read(table_format, "replaced") == second
    assert read(table_format, "inserted") == [{"id": 1, "n": "a"}, {"id": 2, "n": "c"}]
    load([], name="replaced", write_disposition="replace", table_format=table_format)
    assert read(table_format, "replaced") == []


@FORMATS
def test_a_merge_key_replaces_all_rows_that_share_its_values(table_format: str | None) -> None:
    hints = {"merge_key": "day", "write_disposition": "merge", "table_format": table_format}
    columns = {"day": {"partition": True}}
    load([{"id": n, "day": day} for n, day in enumerate(["mon", "mon", "tue"])], columns=columns, **hints)
    load([{"id": 7, "day": "mon"}, {"id": 8, "day": "wed"}], **hints)
    assert read(table_format) == [{"id": 2, "day": "tue"}, {"id": 7, "day": "mon"}, {"id": 8, "day": "wed"}]
    if table_format is None:
        assert sorted(path.name for path in Path("lake/shop/orders").iterdir()) == [
            "day=mon",
            "day=tue",
            "day=wed",
        ]


def test_a_merge_key_reads_no_file_without_its_values() -> None:
    hints = {"merge_key": "day", "write_disposition": "merge", "columns": {"day": {"partition": True}}}
    load([{"id": n, "day": day} for n, day in enumerate(["mon", "tue"])], **hints)
    (other,) = Path("lake/shop/orders/day=tue").glob("*.parquet")
    damaged = other.read_bytes()
    damaged = damaged[:4] + b"\xff" * 40 + damaged[44:]
    other.write_bytes(damaged)
    load([{"id": 7, "day": "mon"}], **hints)
    assert other.read_bytes() == damaged


@FORMATS
def test_a_job_that_is_tried_again_after_its_commit_adds_nothing(
    table_format: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, attempts = door.CommitJob.run, []

    def run_and_fail(job: Any) -> None:
        run(job)
        attempts.append(job)
        if len(attempts) < 3:
            raise DestinationTransientException("the connection was lost after the commit")

    monkeypatch.setattr(door.CommitJob, "run", run_and_fail)
    load([{"id": 1}, {"id": 2}], write_disposition="append", table_format=table_format)
    assert len(attempts) == 3
    assert [row["id"] for row in read(table_format)] == [1, 2]


def test_a_conflict_with_another_writer_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = it.write, []

    def conflict_once(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:  # the first makes the dataset
            raise CommitConflict("another writer came first")
        return write(*args, **options)

    monkeypatch.setattr(door.it, "write", conflict_once)
    load([{"id": 1}], write_disposition="append")
    assert read(None) == [{"id": 1}]


@FORMATS
def test_all_files_of_a_load_are_one_commit_whatever_columns_each_has(
    table_format: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORMALIZE__DATA_WRITER__FILE_MAX_ITEMS", "2")
    monkeypatch.setenv("NORMALIZE__DATA_WRITER__BUFFER_MAX_ITEMS", "2")
    rows = [{"id": n, **({"late": n} if n > 3 else {})} for n in range(6)]
    info = load(rows, primary_key="id", write_disposition="merge", table_format=table_format)
    jobs = [job.job_file_info for job in info.load_packages[0].jobs["completed_jobs"]]
    assert sum(job.table_name == "orders" and job.file_format == "parquet" for job in jobs) == 3
    assert [row["late"] for row in read(table_format)] == [None] * 4 + [4, 5]
    assert count_commits(table_format) == 1


def test_what_is_nested_stays_in_its_row() -> None:
    row = {"id": 1, "customer": {"name": "Ann"}, "lines": [{"sku": "a"}, {"sku": "b"}]}
    load([row], primary_key="id", write_disposition="merge")
    load([{**row, "lines": [{"sku": "c"}]}], primary_key="id", write_disposition="merge")
    assert sorted(path.name for path in Path("lake/shop").glob("[!.]*")) == ["orders"]
    [found] = read(None)
    assert found["lines"] == '[{"sku":"c"}]'


@pytest.mark.parametrize(
    ("hints", "message"),
    [
        (
            {"primary_key": "id", "columns": {"at": {"dedup_sort": "asc"}}},
            "dedup_sort of 'at' must be 'desc'",
        ),
        ({"primary_key": "id", "merge_key": "at"}, "a merge_key is one column, without a primary_key"),
        ({"merge_key": "id"}, "has NULL, or more than 1000 values in this load"),
        ({"merge_key": ["id", "at"]}, "a merge_key is one column"),
    ],
)
def test_hints_and_rows_that_cannot_be_followed_fail_and_leave_every_byte(
    hints: dict[str, Any], message: str, unchanged: Callable[..., Any]
) -> None:
    rows = pa.table({"id": range(1001), "at": range(1001)})
    load(rows, write_disposition="append")
    with unchanged("lake/shop/orders"), pytest.raises(PipelineStepFailed, match=message):
        load(rows, write_disposition="merge", **hints)


@pytest.mark.parametrize("options", [{}, {"control_path": "control"}], ids=["beside", "control_path"])
def test_a_load_that_is_older_than_a_committed_one_is_refused(options: dict[str, Any]) -> None:
    early = open_pipeline("one", **options)
    early.extract(dlt.resource([{"id": 1}], name="orders", write_disposition="append"))
    early.normalize()
    open_pipeline("two", **options).run(dlt.resource([{"id": 2}], name="orders", write_disposition="append"))
    early.activate()
    with pytest.raises(PipelineStepFailed, match="is older than another load of dlt/shop"):
        early.load()
    assert read(None) == [{"id": 2}]


def test_an_iceberg_table_without_a_catalog_is_refused() -> None:
    pipeline = dlt.pipeline("shop", destination=door.intarsia("lake"), pipelines_dir="pipelines")
    with pytest.raises(PipelineStepFailed, match="orders is an Iceberg table, which needs a catalog"):
        pipeline.run(dlt.resource([{"id": 1}], name="orders", table_format="iceberg"))


MEMORY = """
import sys
import dlt, pyarrow as pa
from intarsia.integrations.dlt import intarsia

def batches():
    for number in range(80):
        ids = pa.array(range(number * 20_000, (number + 1) * 20_000))
        yield pa.table({"id": ids, "text": pa.repeat("x" * 512, len(ids))})

options = {"spool_bytes": 1 << 22, "row_group_size": 10_000}
destination = intarsia("lake", catalog="warehouse/", options=options)
pipeline = dlt.pipeline("shop", destination=destination, dataset_name="shop", pipelines_dir="pipelines")
pipeline.run(dlt.resource(
    batches(), name="orders", primary_key="id", write_disposition="merge", table_format=sys.argv[1] or None))
print(pa.default_memory_pool().max_memory() >> 20)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("table_format", "limit"), [("", 400), ("iceberg", 650)], ids=["parquet", "iceberg"])
def test_a_load_is_never_in_memory_as_a_whole(table_format: str, limit: int) -> None:
    arguments = [sys.executable, "-c", MEMORY, table_format]
    peak = int(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)
    assert peak < limit, f"819 MB of rows took {peak} MB"


def test_parquet_datasets_need_no_pyiceberg() -> None:
    script = """
import sys
for name in ("pyiceberg", "pydantic", "pyroaring", "sqlalchemy"):
    sys.modules[name] = None  # an import of it now fails
import intarsia.integrations.dlt
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
