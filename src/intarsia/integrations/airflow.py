"""Airflow: operators that run an operation or a pipeline; the events of their outlets say what was done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from airflow.sdk import Asset, BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException

import intarsia
from intarsia import pipeline as pipelines
from intarsia.common.log import redact
from intarsia.errors import InputError, IntarsiaError

__all__ = ["IntarsiaOperator", "IntarsiaPipelineOperator"]

_OPERATIONS = ("merge", "write", "delete", "update", "compact", "optimize", "deduplicate")
_WITH_SOURCE = ("merge", "write")
_COUNTS = ("inserted", "updated", "deleted", "total", "bytes_read", "bytes_written", "new_files", "seconds")


class IntarsiaOperator(BaseOperator):
    """Runs one operation on a table; a retry finds the old state or finishes what was committed.

    The result (counts of rows, files and bytes) is the task's return value, and the ``extra`` of the events
    of its outlets. What fails after the commit, or may have been committed, is not retried.

    Args:
        operation: ``merge``, ``write``, ``delete``, ``update``, ``compact``, ``optimize`` or ``deduplicate``.
        target: path or URL of the dataset, or the name of an Iceberg table.
        source: of a merge or write: a path, URL or glob of files, or several.
        catalog: of an Iceberg table: the name of a configured catalog, or a warehouse directory.
        arguments: keyword arguments of the operation, as in ``intarsia.merge(..., on="id")``.
        outlets: the assets that the table is in Airflow.

    Example:
        >>> from intarsia.integrations.airflow import IntarsiaOperator
        >>> upsert = IntarsiaOperator(
        ...     task_id="upsert", operation="merge", source="changes.csv", target="lake/orders",
        ...     arguments={"on": "id"},
        ... )
        >>> upsert.operation, upsert.target
        ('merge', 'lake/orders')
    """

    template_fields: Sequence[str] = ("source", "target", "catalog", "arguments")
    ui_color = "#e8d5b0"

    def __init__(
        self,
        *,
        operation: str,
        target: str,
        source: str | Sequence[str] | None = None,
        catalog: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if operation not in _OPERATIONS:
            raise InputError(
                f"there is no operation {operation!r}.", hint=f"there is {', '.join(_OPERATIONS)}."
            )
        if (source is None) == (operation in _WITH_SOURCE):
            raise InputError(f"{operation} {'needs a' if source is None else 'has no'} source.")
        self.operation = operation
        self.target = target
        self.source = source
        self.catalog = catalog
        self.arguments = dict(arguments or {})

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the operation; its counts, as plain JSON types."""
        with _fail_once_committed():
            table = intarsia.iceberg(self.target, catalog=self.catalog) if self.catalog else self.target
            places = (table,) if self.source is None else (self.source, table)
            result = getattr(intarsia, self.operation)(*places, progress=False, **self.arguments)
        done = {
            "operation": result.strategy,
            "path": redact(result.path),
            "changed": result.changed,
            **{name: getattr(result, name) for name in _COUNTS},
            "rewritten_files": len(result.rewritten_files),
            "removed_files": len(result.removed_files),
            "version": result.version,
        }
        _add_to_events(self.outlets, context, done)
        return done


class IntarsiaPipelineOperator(BaseOperator):
    """Runs a pipeline file; a retry does what is left to do, and nothing twice.

    The report, without its graph, is the task's return value; the status of each step is in the ``extra`` of
    the events of its outlets.

    Args:
        pipeline: the path of the TOML or Python file.
        params: values of its parameters, such as ``{"day": "{{ ds }}"}``.
        env: its environment.
        outlets: the assets that its targets are in Airflow.

    Example:
        >>> from intarsia.integrations.airflow import IntarsiaPipelineOperator
        >>> nightly = IntarsiaPipelineOperator(task_id="nightly", pipeline="orders.toml")
        >>> nightly.pipeline
        'orders.toml'
    """

    template_fields: Sequence[str] = ("pipeline", "params_of_pipeline", "env_of_pipeline")
    ui_color = "#e8d5b0"

    def __init__(
        self, *, pipeline: str, params: Mapping[str, str] | None = None, env: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.params_of_pipeline = dict(params or {})  # Airflow has params and env of its own
        self.env_of_pipeline = env

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the pipeline; its report, as plain JSON types."""
        with _fail_once_committed():
            report = pipelines.run_file(
                self.pipeline, params=self.params_of_pipeline, env=self.env_of_pipeline, progress=False
            ).check()
        done = {name: value for name, value in pipelines.as_json(report).items() if name != "graph"}
        steps = {step["name"]: step["status"] for step in done["steps"]}
        _add_to_events(self.outlets, context, {"run_id": done["run_id"], "steps": steps})
        return done


@contextmanager
def _fail_once_committed() -> Iterator[None]:
    """Fail the task without retries where an operation took effect, or may have."""
    try:
        yield
    except IntarsiaError as error:
        if error.changed is False:
            raise
        raise AirflowFailException(str(error)) from error


def _add_to_events(outlets: Sequence[Any], context: Context, done: Mapping[str, Any]) -> None:
    for outlet in outlets:
        if isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra |= done
