from __future__ import annotations

import inspect
from itertools import product
from typing import Any, Unpack, get_args, get_origin, get_type_hints

import pytest

import intarsia as it
from intarsia import api, pipeline
from intarsia.core.effects import OPTIONS, OperationCall, select_effective
from intarsia.datasets.io import DatasetIO
from intarsia.options import (
    ALL_OPTIONS,
    ICEBERG_OPTIONS,
    KEYWORDS,
    OPERATION_OPTIONS,
    TABLE_OPTIONS,
    StepOptions,
    TargetOptions,
)
from intarsia.pipeline.runner import RunOptions
from intarsia.spark.streaming import BatchArguments, merge_batches

WITH_SQL = ("merge", "delete", "update", "write", "read")
ENGINES = {
    "read": ["arrow"],
    "inspect": [],
    "snapshot": [],
    "recover": [],
    "history": [],
    "restore": [],
}


def _effective(operation: str) -> set[str]:
    """The options that can have an effect in some call of an operation."""
    found: set[str] = set()
    engines = ENGINES.get(operation, ["arrow", "duckdb", "spark", "auto"])
    sources: tuple[Any, ...] = ("rows", "paths", "frame") if operation in ("merge", "write") else ("none",)
    for target, engine, source in product(("path", "iceberg"), engines or [None], sources):
        call = OperationCall(
            operation,
            target=target,  # type: ignore[arg-type]
            engines=frozenset(() if engine is None else (engine,)),
            source=source,
            has_sql=operation in WITH_SQL,
        )
        found |= set(select_effective(call, dict.fromkeys(OPTIONS)))
    return found


@pytest.mark.parametrize("operation", OPERATION_OPTIONS)
def test_an_operation_declares_exactly_the_options_that_can_have_an_effect(operation: str) -> None:
    assert set(get_type_hints(OPERATION_OPTIONS[operation])) == _effective(operation)


@pytest.mark.parametrize("operation", OPERATION_OPTIONS)
def test_a_public_function_takes_the_options_that_are_declared_for_it(operation: str) -> None:
    function = getattr(it, operation)
    options = get_type_hints(function)["options"]
    assert get_origin(options) is Unpack
    assert get_args(options) == (OPERATION_OPTIONS[operation],)
    assert not set(get_type_hints(OPERATION_OPTIONS[operation])) & set(inspect.signature(function).parameters)


def test_every_option_has_a_type_and_one_line_of_help() -> None:
    assert set(KEYWORDS) == set(ALL_OPTIONS) == set(OPTIONS)
    assert [name for name, each in KEYWORDS.items() if not each.help.endswith(".") or "\n" in each.help] == []


def test_options_of_pipelines_are_options_of_the_library() -> None:
    assert set(get_type_hints(StepOptions)) | set(get_type_hints(TargetOptions)) <= set(ALL_OPTIONS)
    assert set(TABLE_OPTIONS) | set(ICEBERG_OPTIONS) <= set(ALL_OPTIONS)


def test_what_cannot_be_written_as_text_is_known() -> None:
    values = {name for name, each in KEYWORDS.items() if not each.is_text}
    assert values == {"columns", "filesystem", "lock", "progress", "properties", "storage_options"}


def _keywords(function: Any, options: Any = None) -> set[str]:
    """The names of a function's parameters, and of what it takes besides."""
    names = {name for name in inspect.signature(function).parameters if name not in ("self", "options")}
    taken = options or get_args(get_type_hints(function)["options"])[0]
    return names | set(get_type_hints(taken))


RENAMED = {
    "merge": {"source": "data", "target": "path", "on": "key_columns"},
    "write": {"source": "data", "target": "path"},
    "delete": {"target": "path"},
    "update": {"target": "path"},
    "compact": {"target": "path"},
    "optimize": {"target": "path", "by": "zorder_columns", "deduplicate_on": "deduplicate_key_columns"},
    "deduplicate": {"target": "path", "on": "key_columns", "order_by": "dedup_order_by"},
}
METHODS = {
    "write": "write_dataset",
    **{name: f"{name}_parquet_dataset" for name in ("compact", "optimize", "deduplicate")},
}


@pytest.mark.parametrize("operation", RENAMED)
def test_a_dataset_io_takes_what_the_function_takes_but_for_the_engine(operation: str) -> None:
    method = _keywords(getattr(DatasetIO, METHODS.get(operation, operation)))
    function = {RENAMED[operation].get(name, name) for name in _keywords(getattr(api, operation))}
    assert method - {"partition_columns"} == function - {"engine"}


def test_a_merge_of_batches_takes_what_a_merge_takes_but_for_what_the_stream_decides() -> None:
    renamed = {"source": "", "on": "key_columns"}
    merge = {renamed.get(name, name) for name in _keywords(api.merge)}
    of_the_stream = {"", "batch_id", "dry_run", "columns"}
    assert _keywords(merge_batches, BatchArguments) == merge - of_the_stream


def test_a_pipeline_file_is_run_with_the_arguments_of_run() -> None:
    keywords = {name for name in inspect.signature(pipeline.run).parameters if name != "pipeline"}
    assert set(get_type_hints(RunOptions)) == keywords
