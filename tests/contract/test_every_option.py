"""Every option in every operation, on every kind of table and engine: it has a stated effect, or is refused.

What is expected is written down here a second time, apart from the library's own table of options: a new
option fails these tests until somebody says where it has an effect.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

import intarsia as it
from intarsia.core import run as core_run
from intarsia.core.effects import CHANGES, OPTIONS
from intarsia.datasets.pyarrow import PyarrowDatasetIO
from intarsia.engine_choice import DeferredSession
from intarsia.engines.arrow import ArrowEngine
from intarsia.engines.duckdb import DuckDBEngine
from intarsia.errors import InputError
from intarsia.options import ALL_OPTIONS
from intarsia.pipeline import load, run
from intarsia.tables.iceberg.catalog import embedded_catalog
from intarsia.tables.parquet import ParquetTable

ROWS = pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]})
LOOKS = ("read", "inspect", "snapshot", "recover")
SOURCED = ("merge", "write")
TABLES = ("path", "opened", "copy-on-write", "merge-on-read")
ENGINES = ("auto", "arrow", "duckdb", "spark")
REFUSED = re.compile(r"would have no effect|goes with")


class Accepted(Exception):
    """The call went on to its work."""


VALUES: dict[str, Any] = {
    "filesystem": pafs.LocalFileSystem(),
    "storage_options": {"endpoint": "none"},
    "control_path": None,  # a directory of the test
    "single_writer": True,
    "lock_timeout": 5.0,
    "lock": nullcontext,
    "retain": 2,
    "branch": "main",
    "mode": "merge-on-read",
    "threads": 2,
    "memory_bytes": 1 << 30,
    "tasks": 3,
    "broadcast_bytes": 1 << 20,
    "compression": "zstd",
    "row_group_size": 1000,
    "max_rows_per_file": 1000,
    "batch_rows": 1000,
    "int96": "convert",
    "spool_bytes": 1 << 20,
    "spool_dir": None,
    "naive_timestamps": "utc",
    "columns": {"id": "bigint"},
    "dialect": "spark",
    "progress": lambda *_: None,
    "properties": {"by": "me"},
    "app_id": "app",
    "batch_id": 3,
    "measured_bytes": 1 << 20,
}


def has_effect(option: str, operation: str, table: str, engine: str) -> bool:
    """What is stated in docs/guide.md, of calls with keys in ``on=`` and SQL text in ``where=`` of delete."""
    changes, iceberg = operation in CHANGES, table in ("copy-on-write", "merge-on-read")
    deletes = operation in ("delete", "deduplicate")
    writes = changes and not (table == "merge-on-read" and deletes)
    match option:
        case "filesystem" | "storage_options" | "control_path":
            return table == "path"
        case "single_writer" | "lock_timeout" | "lock":
            return table == "path" and (changes or operation == "recover")
        case "retain":
            return table == "path" and changes
        case "branch":
            return iceberg
        case "mode":
            return iceberg and (deletes or operation in ("merge", "update"))
        case "threads":
            return operation == "read" or (changes and engine != "spark")
        case "memory_bytes":
            if operation == "optimize" or (operation == "deduplicate" and engine == "arrow"):
                return True
            return changes and engine in ("auto", "duckdb")
        case "tasks":
            return changes and engine == "spark"
        case "broadcast_bytes":
            return operation in SOURCED and engine == "spark"
        case "compression" | "row_group_size" | "int96":
            return writes
        case "max_rows_per_file":
            return operation in SOURCED or (iceberg and writes)
        case "batch_rows":
            return changes and operation != "write"
        case "spool_bytes" | "naive_timestamps":
            return operation in SOURCED
        case "spool_dir":
            spills = engine == "auto" and operation in ("optimize", "deduplicate")
            return operation in SOURCED or spills or (changes and engine in ("duckdb", "spark"))
        case "columns":
            return False  # of a source that is no text file
        case "dialect":
            return operation in ("delete", "update")
        case "progress" | "properties" | "app_id" | "batch_id":
            return changes
        case "measured_bytes":
            return False  # of calls that are no dry runs
    raise AssertionError(f"it is not stated where {option} has an effect")


def call(operation: str, target: Any, options: dict[str, Any]) -> Any:
    match operation:
        case "merge":
            return it.merge(ROWS, target, on="id", **options)
        case "write":
            return it.write(ROWS, target, **options)
        case "delete":
            return it.delete(target, "id = 1", **options)
        case "update":
            return it.update(target, {"v": "'x'"}, **options)
        case "optimize":
            return it.optimize(target, by="id", **options)
        case "deduplicate":
            return it.deduplicate(target, on="id", **options)
        case _:
            return getattr(it, operation)(target, **options)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls end where the work begins."""

    def accepted(*_: Any) -> Any:
        raise Accepted

    for place in (core_run, ArrowEngine, DuckDBEngine):
        monkeypatch.setattr(place, "prepare", accepted)


def target_of(table: str, place: Any, make_dataset: Any) -> Any:
    if table in ("path", "opened"):
        path = make_dataset(place / "lake", ROWS)
        return path if table == "path" else ParquetTable(path)
    catalog = embedded_catalog(place / "warehouse")
    catalog.create_namespace("db")
    modes = {f"write.{name}.mode": table for name in ("delete", "update", "merge")}
    made = catalog.create_table("db.t", ROWS.schema, properties={"format-version": "2", **modes})
    made.append(ROWS)
    return it.iceberg("db.t", catalog=catalog)


def not_opened() -> Any:
    raise Accepted


def test_every_option_is_stated_and_documented() -> None:
    assert set(VALUES) == set(ALL_OPTIONS) == set(OPTIONS)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.usefixtures("stopped")
def test_an_option_has_a_stated_effect_or_is_refused(
    table: str, engine: str, tmp_path: Any, make_dataset: Any
) -> None:
    target = target_of(table, tmp_path, make_dataset)
    operations = CHANGES if engine != "arrow" else (*CHANGES, *LOOKS)
    chosen = DeferredSession(not_opened) if engine == "spark" else engine
    wrong: list[tuple[str, ...]] = []
    errors: list[InputError] = []
    for option, value in VALUES.items():
        for operation in operations:
            if (option, operation) in (("mode", "write"), ("columns", "read")):  # arguments of their own
                continue
            given = {option: str(tmp_path / "place") if value is None else value}
            if operation in CHANGES:
                given["engine"] = chosen
            try:
                call(operation, target, given)
            except Accepted:
                accepted = True
            except InputError as error:
                errors.append(error)
                accepted = False
            else:
                accepted = operation in LOOKS
            if accepted != has_effect(option, operation, table, engine):
                wrong.append((option, operation, "accepted" if accepted else "refused"))
    assert wrong == []
    assert [error for error in errors if not (error.hint and REFUSED.search(str(error)))] == []


CASES = {
    "max_rows_per_file of rows that are only updated": lambda path: it.merge(
        ROWS, path, on="id", strategy="update", max_rows_per_file=2
    ),
    "max_rows_per_file of clauses that insert nothing": lambda path: it.merge(
        ROWS, path, on="id", clauses="when matched then delete", max_rows_per_file=2
    ),
    "a dialect of an expression": lambda path: it.delete(path, pa.compute.field("id") == 1, dialect="spark"),
    "a dialect of keys": lambda path: it.merge(ROWS, path, on=["id"], dialect="spark"),
    "types of text files, of rows": lambda path: it.merge(ROWS, path, on="id", columns={"id": "bigint"}),
    "options of an engine that was made": lambda path: it.delete(
        path, "id = 1", engine=ArrowEngine(), threads=2
    ),
    "tasks where Spark is not chosen": lambda path: it.merge(ROWS, path, on="id", tasks=2),
}


@pytest.mark.parametrize("case", CASES)
def test_an_option_that_the_arguments_leave_no_room_for_is_refused(
    case: str, tmp_path: Any, make_dataset: Any, unchanged: Any
) -> None:
    path = make_dataset(tmp_path / "lake", ROWS)
    with unchanged(path), pytest.raises(InputError, match="would have no effect"):
        CASES[case](path)


FITTING = {
    "a dialect of a condition": lambda path: it.merge(
        ROWS, path, on="target.id = source.id", dialect="spark"
    ),
    "a dialect of clauses": lambda path: it.merge(
        ROWS, path, on="id", clauses=["when matched then delete"], dialect="spark"
    ),
    "a dialect of made clauses": lambda path: it.merge(
        ROWS, path, on="id", clauses=it.when_matched("source.id > 1").delete(), dialect="spark"
    ),
    "a dialect of assignments": lambda path: it.update(path, {"v": "`v`"}, dialect="spark"),
    "a dialect of a part that is overwritten": lambda path: it.write(
        ROWS.slice(0, 1), path, mode="overwrite", where="`id` = 1", dialect="spark", batch_rows=2
    ),
    "values that ask for what is so anyhow": lambda path: it.compact(
        path, single_writer=False, int96="keep", naive_timestamps="error", tasks=0, threads=0, properties={}
    ),
    "a budget": lambda path: it.delete(path, "id = 1", memory_bytes=1 << 30),
    "nothing": lambda path: it.compact(path, dialect=None, tasks=None, columns=None),
}


@pytest.mark.parametrize("case", FITTING)
def test_an_option_that_has_something_to_say_is_taken(case: str, tmp_path: Any, make_dataset: Any) -> None:
    FITTING[case](make_dataset(tmp_path / "lake", ROWS))


def test_types_of_text_files_and_a_file_system_of_a_source_are_taken(
    tmp_path: Any, make_dataset: Any
) -> None:
    path = make_dataset(tmp_path / "lake", ROWS)
    (tmp_path / "rows.csv").write_text("id,v\n7,x\n")
    options = {"columns": {"id": "bigint"}, "dialect": "spark", "filesystem": pafs.LocalFileSystem()}
    for target in (path, ParquetTable(path)):
        assert it.merge(str(tmp_path / "rows.csv"), target, on="id", **options).total == 4


def test_options_of_an_io_go_to_the_calls_that_they_have_an_effect_in(
    tmp_path: Any, make_dataset: Any
) -> None:
    path = make_dataset(tmp_path / "lake", ROWS, files=2)
    io = PyarrowDatasetIO(
        memory_bytes=1 << 30,
        max_rows_per_file=2,
        batch_rows=2,
        dialect="spark",
        spool_bytes=1 << 20,
        retain=1,
    )
    assert io.merge(ROWS, path, "update", ["id"]).updated == 3
    assert io.delete(path, "id = 1").deleted == 1
    assert len(io.write_dataset(ROWS, path).files) == 2
    io.compact_parquet_dataset(path)
    io.deduplicate_parquet_dataset(io.table(path), ["id"])
    assert io.plan("delete", path, "id = 2").deleted == 1
    with pytest.raises(InputError, match="would have no effect"):
        io.delete(path, "id = 1", max_rows_per_file=2)
    with pytest.raises(InputError, match="tasks= would have no effect: this IO"):
        PyarrowDatasetIO(tasks=2)


def pipeline(place: Any, option: str) -> Any:
    (place / "p.toml").write_text(
        f"""
        name = "shop"
        engine = "arrow"
        [targets.lake]
        path = "lake"
        [[steps]]
        operation = "delete"
        target = "lake"
        where = "id = 1"
        options = {{ {option} }}
        """
    )
    return load(place / "p.toml")


def test_a_step_leaves_out_options_of_other_engines_and_says_so(tmp_path: Any, make_dataset: Any) -> None:
    make_dataset(tmp_path / "lake", ROWS)
    (step,) = run(pipeline(tmp_path, "tasks = 3, threads = 2")).steps
    assert [note for note in step.result.notes if "tasks=" in note and "threads" not in note]
    assert step.result.deleted == 1


def test_a_step_whose_option_has_no_effect_on_any_engine_is_refused_at_once(
    tmp_path: Any, make_dataset: Any
) -> None:
    make_dataset(tmp_path / "lake", ROWS)
    for option in ("max_rows_per_file = 5", "spool_bytes = 10", "broadcast_bytes = 10"):
        with pytest.raises(InputError, match=r"options: .* would have no effect"):
            run(pipeline(tmp_path, option))
