"""Events of OpenLineage for a pipeline and its steps: who read what, and wrote what, with which outcome.

This module needs the package openlineage-python, and is loaded where lineage is asked for.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    data_quality_assertions_dataset,
    data_quality_metrics_input_dataset,
    dataset_version_dataset,
    error_message_run,
    input_statistics_input_dataset,
    job_type_job,
    lifecycle_state_change_dataset,
    output_statistics_output_dataset,
    parent_run,
    processing_engine_run,
    schema_dataset,
    sql_job,
    symlinks_dataset,
)

from intarsia.common.log import redact
from intarsia.core.snapshot import Snapshot
from intarsia.pipeline.model import Expect, Pipeline, Source, Step, Stream, Write, list_names
from intarsia.pipeline.quality.checks import Check
from intarsia.pipeline.reports.report import StepReport, error_to_json

__all__ = ["EventMaker", "RunState", "TableFacts"]

PRODUCER = f"urn:intarsia:{version('intarsia')}"
PARENT = "OPENLINEAGE_PARENT_ID"
"""The environment variable in which a scheduler says which run this one belongs to."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What is known of a target."""

    location: str
    """A path or URL."""
    catalog: str = ""
    """Of an Iceberg table: where its catalog is."""
    table: str = ""
    """Of an Iceberg table: its name in the catalog."""
    alias: tuple[str, str] | None = None
    """Of a table of a catalog of Spark: the namespace and the name that it has there."""
    snapshot: Snapshot | None = None
    whole: bool = True
    """Whether all rows of the snapshot are read."""


@dataclass(slots=True)
class EventMaker:
    """Makes the events of one run of a pipeline."""

    pipeline: Pipeline
    run_id: str
    """That of the report, from which OpenLineage's UUIDs follow."""
    namespace: str
    begun: dict[str, str] = field(default_factory=dict)

    @property
    def run_uuid(self) -> uuid.UUID:
        """The run's id in OpenLineage."""
        return uuid.uuid5(uuid.NAMESPACE_URL, f"intarsia:{self.namespace}/{self.pipeline.name}/{self.run_id}")

    def make_run_event(self, state: RunState, error: BaseException | None = None) -> RunEvent:
        """An event of the whole run."""
        facets = self._make_run_facets(error)
        parent = _find_parent()
        if parent is not None:
            facets["parent"] = parent
        job = Job(self.namespace, self.pipeline.name, facets=self._make_job_facets("PIPELINE"))
        return RunEvent(
            eventTime=_tell_time(),
            producer=PRODUCER,
            eventType=state,
            run=Run(str(self.run_uuid), facets=facets),
            job=job,
            inputs=[],
            outputs=[],
        )

    def make_step_event(
        self,
        state: RunState,
        step: Step,
        *,
        read: Mapping[str, TableFacts],
        sources: Mapping[str, Source],
        written: TableFacts | None,
        query: str | None = None,
        report: StepReport | None = None,
    ) -> RunEvent:
        """An event of a step: with its report, what was measured.

        Args:
            state: START, COMPLETE, FAIL or ABORT.
            step: which.
            read: the targets that it reads or checks, by name.
            sources: the sources of files that it reads, by name.
            written: its target, where it changes one.
            query: the SQL of its source.
            report: what came of it.
        """
        facets = self._make_run_facets(None if report is None else report.error)
        facets["parent"] = self._make_parent()
        job_facets = self._make_job_facets("STEP")
        if query is not None:
            job_facets["sql"] = _make(sql_job.SQLJobFacet, query=redact(query), dialect=self.pipeline.engine)
        inputs = [
            one for name, source in sources.items() for one in self._make_files(name, source, step, report)
        ]
        inputs += [self._make_read_table(name, facts, step, report) for name, facts in read.items()]
        return RunEvent(
            eventTime=_tell_time(),
            producer=PRODUCER,
            eventType=state,
            run=Run(str(uuid.uuid5(self.run_uuid, step.name)), facets=facets),
            job=Job(self.namespace, f"{self.pipeline.name}.{step.name}", facets=job_facets),
            inputs=inputs,
            outputs=[] if written is None else [_make_output(written, step, report)],
        )

    # Facets of runs and jobs

    def _make_run_facets(self, error: BaseException | None) -> dict[str, Any]:
        facets: dict[str, Any] = {
            "processing_engine": _make(
                processing_engine_run.ProcessingEngineRunFacet,
                version=version("intarsia"),
                name=f"intarsia on {self.pipeline.engine}",
                openlineageAdapterVersion=version("openlineage-python"),
            )
        }
        if error is not None:
            told = error_to_json(error)
            message = f"{told['type']}: {told['message']}"
            facets["errorMessage"] = _make(
                error_message_run.ErrorMessageRunFacet, message=message, programmingLanguage="PYTHON"
            )
        return facets

    def _make_job_facets(self, kind: str) -> dict[str, Any]:
        made = _make(
            job_type_job.JobTypeJobFacet, processingType="BATCH", integration="INTARSIA", jobType=kind
        )
        return {"jobType": made}

    def _make_parent(self) -> Any:
        above = _find_parent()
        run, job = str(self.run_uuid), self.pipeline.name
        root = parent_run.Root(
            run=parent_run.RootRun(run if above is None else above.run.runId),
            job=parent_run.RootJob(
                self.namespace if above is None else above.job.namespace,
                job if above is None else above.job.name,
            ),
        )
        return _make(
            parent_run.ParentRunFacet,
            run=parent_run.Run(run),
            job=parent_run.Job(self.namespace, job),
            root=root,
        )

    # Inputs

    def _make_files(
        self, name: str, source: Source, step: Step, report: StepReport | None
    ) -> list[InputDataset]:
        """The datasets of a source of files; what was measured, where they are one."""
        if source.stream is not None:
            names = dict.fromkeys(name_stream(source.stream))
        else:
            names = dict.fromkeys(map(name_dataset, list_names(source.path)))
        facets: dict[str, Any] = {}
        if source.columns:
            columns = [(column, kind) for column, kind in source.columns.items()]
            facets["schema"] = _make_schema(columns)
        measured = self._measure_files(name, step, report) if len(names) == 1 else {}
        return [InputDataset(one.namespace, one.name, facets=facets, inputFacets=measured) for one in names]

    def _measure_files(self, name: str, step: Step, report: StepReport | None) -> dict[str, Any]:
        if report is None:
            return {}
        facets: dict[str, Any] = {}
        is_own = name == step.source
        if name in report.source_inputs:
            files, size = report.source_inputs[name]
            counts = [] if report.result is None else [report.result.source_count]
            if isinstance(step, Expect):  # its result is that of its quarantine
                counts = [check.rows for check in report.checks if check.rows is not None]
            rows = counts[0] if counts and is_own else None
            facets["inputStatistics"] = _make(
                input_statistics_input_dataset.InputStatisticsInputDatasetFacet,
                rowCount=rows,
                size=size,
                fileCount=files,
            )
        if isinstance(step, Expect) and is_own:
            facets |= _make_quality(step, report)
        return facets

    def _make_read_table(
        self, name: str, facts: TableFacts, step: Step, report: StepReport | None
    ) -> InputDataset:
        found, facets = _describe_table(facts)
        measured: dict[str, Any] = {}
        if report is not None and isinstance(step, Expect) and step.target == name:
            measured = _make_quality(step, report)
        elif report is not None and facts.snapshot is not None and facts.whole:
            measured["inputStatistics"] = _make(
                input_statistics_input_dataset.InputStatisticsInputDatasetFacet,
                rowCount=facts.snapshot.rows,
                size=facts.snapshot.size,
                fileCount=len(facts.snapshot.files),
            )
        return InputDataset(found.namespace, found.name, facets=facets, inputFacets=measured)


def _make_output(facts: TableFacts, step: Step, report: StepReport | None) -> OutputDataset:
    found, facets = _describe_table(facts)
    measured: dict[str, Any] = {}
    result = None if report is None else report.result
    if report is not None and result is not None:
        measured["outputStatistics"] = _make(
            output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet,
            rowCount=result.inserted + result.updated,
            size=report.bytes_written,
            fileCount=report.files_written,
        )
        replaces = isinstance(step, Write) and step.mode == "overwrite" and step.where is None
        change = "CREATE" if result.created else "OVERWRITE" if replaces and result.changed else None
        if change is not None:
            facets["lifecycleStateChange"] = _make(
                lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet, lifecycleStateChange=change
            )
    return OutputDataset(found.namespace, found.name, facets=facets, outputFacets=measured)


def _describe_table(facts: TableFacts) -> tuple[DatasetName, dict[str, Any]]:
    facets: dict[str, Any] = {}
    snapshot = facts.snapshot
    if snapshot is not None and snapshot.exists:
        columns = [(entry.name, entry.type) for entry in snapshot.schema]
        facets["schema"] = _make_schema(columns)
        facets["version"] = _make(
            dataset_version_dataset.DatasetVersionDatasetFacet, datasetVersion=str(snapshot.version)
        )
    if facts.table:
        catalog = (
            name_dataset(facts.catalog) if "/" in facts.catalog else DatasetName("iceberg", facts.catalog)
        )
        where = catalog.namespace if catalog.namespace == "iceberg" else f"{catalog.namespace}:{catalog.name}"
        facets["symlinks"] = _make_symlink(where, facts.table)
    if facts.alias is not None:
        facets["symlinks"] = _make_symlink(*facts.alias)
    return name_dataset(facts.location), facets


def _make_symlink(namespace: str, name: str) -> Any:
    identifier = symlinks_dataset.Identifier(namespace=redact(namespace), name=name, type="TABLE")
    return _make(symlinks_dataset.SymlinksDatasetFacet, identifiers=[identifier])


def _make_schema(columns: list[tuple[str, Any]]) -> Any:
    fields = [_make_field(name, kind, at) for at, (name, kind) in enumerate(columns, 1)]
    return _make(schema_dataset.SchemaDatasetFacet, fields=fields)


def _make_field(name: str, kind: Any, position: int) -> schema_dataset.SchemaDatasetFacetFields:
    """A column; those of structs have fields of their own."""
    nested = []
    if isinstance(kind, pa.StructType):
        inner = [kind.field(at) for at in range(kind.num_fields)]
        nested = [_make_field(one.name, one.type, at) for at, one in enumerate(inner, 1)]
    shown = "struct" if nested else str(kind)
    return schema_dataset.SchemaDatasetFacetFields(
        name=name, type=shown, ordinal_position=position, fields=nested
    )


# Expectations


def _make_quality(step: Expect, report: StepReport) -> dict[str, Any]:
    """The outcome of expectations, as facets of the dataset that was checked."""
    if not report.checks:
        return {}
    asserted = [_make_assertion(step, check) for check in report.checks]
    facets: dict[str, Any] = {
        "dataQualityAssertions": _make(
            data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet, assertions=asserted
        )
    }
    rows = next((check.rows for check in report.checks if check.rows is not None), None)
    if rows is not None:
        facets["dataQualityMetrics"] = _make(
            data_quality_metrics_input_dataset.DataQualityMetricsInputDatasetFacet,
            columnMetrics={},
            rowCount=rows,
        )
    return facets


def _make_assertion(step: Expect, check: Check) -> data_quality_assertions_dataset.Assertion:
    kind, column = _classify(step, check)
    return data_quality_assertions_dataset.Assertion(
        assertion=kind,
        success=check.ok,
        column=column,
        severity="error" if step.action == "fail" else "warn",
        name=redact(f"{step.name}: {check.expectation}"),
        actual=redact(check.found) or f"{check.failing} rows against it",
    )


def _classify(step: Expect, check: Check) -> tuple[str, str | None]:
    """What an expectation is in OpenLineage's words, and its column where it is on one."""
    told = check.expectation
    for name in list_names(step.not_null):
        if told == f"{name} is not NULL":
            return "not_null", name
    for name in step.accepted:
        if told.startswith(f"{name} is one of "):
            return "accepted_values", name
    unique = list_names(step.unique)
    if unique and told == f"{', '.join(unique)} unique":
        return "unique", unique[0] if len(unique) == 1 else None
    if told in list_names(step.holds):
        return "custom_sql", None
    return "row_count" if told.endswith(" rows") else "custom", None


# Small parts


def _make(facet: Any, **fields: Any) -> Any:
    return facet(producer=PRODUCER, **fields)


def _tell_time() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _find_parent() -> Any:
    """The run that this one belongs to, where ``OPENLINEAGE_PARENT_ID`` says ``namespace/job/run``."""
    parts = os.environ.get(PARENT, "").rsplit("/", 2)
    try:
        namespace, name, run = parts
        uuid.UUID(run)
    except ValueError:
        return None
    return _make(parent_run.ParentRunFacet, run=parent_run.Run(run), job=parent_run.Job(namespace, name))


_GLOB = re.compile(r"[*?\[]")
_SETTINGS = re.compile(r"\?(?=[\w.-]+=)")
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_CONTAINERS = frozenset({"abfs", "abfss", "wasb", "wasbs"})
"""Schemes whose part before the @ is a container, and no user."""
_ROOTED = frozenset({"hdfs", "webhdfs", "abfs", "abfss", "http", "https"})
"""Schemes whose names start with a slash; names in buckets do not."""


@dataclass(frozen=True, slots=True)
class DatasetName:
    """What identifies a dataset in OpenLineage."""

    namespace: str
    name: str


def name_dataset(location: str) -> DatasetName:
    """The name of what is at a path or URL; of a glob, that of the directory that it looks into.

    Neither credentials nor the settings of a URL (``?region=...``) are in it.

    >>> name_dataset("s3://bucket/landing/2025/*.csv")
    DatasetName(namespace='s3://bucket', name='landing/2025')
    >>> name_dataset("/data/orders")
    DatasetName(namespace='file', name='/data/orders')
    """
    scheme, separator, rest = location.partition("://")
    if not separator:
        return DatasetName("file", redact(os.path.normpath(os.path.abspath(_cut_glob(location)))))
    if scheme == "file":
        return DatasetName("file", redact(os.path.normpath(_cut_glob(unquote(urlsplit(location).path)))))
    if scheme not in _CONTAINERS:
        rest = redact(location).partition("://")[2]
    host, slash, path = _SETTINGS.split(rest, maxsplit=1)[0].partition("/")
    if scheme in ("http", "https"):
        path = path.partition("?")[0].partition("#")[0]
    owner, at, place = host.rpartition("@")
    if at and scheme in _CONTAINERS:
        place = f"{owner.partition(':')[0]}@{place}"
    name = _cut_glob(f"{slash}{path}").rstrip("/")
    name = name or "/" if scheme in _ROOTED else name.lstrip("/") or "/"
    return DatasetName(f"{_SCHEMES.get(scheme, scheme)}://{place}", redact(name))


def name_stream(stream: Stream) -> tuple[DatasetName, ...]:
    """The names of what a stream reads: its directory, or the topics of Kafka; none for other streams."""
    if stream.path is not None:
        return (name_dataset(stream.path),)
    options = {key.lower(): str(value) for key, value in stream.options.items()}
    servers, topics = options.get("kafka.bootstrap.servers"), options.get("subscribe")
    if not servers or not topics:
        return ()
    first = servers.split(",")[0].strip()
    return tuple(DatasetName(f"kafka://{first}", topic.strip()) for topic in topics.split(","))


def _cut_glob(path: str) -> str:
    """The directories of a path before the first that is a pattern."""
    found = _GLOB.search(path)
    return path if found is None else path[: path.rfind("/", 0, found.start()) + 1] or "."
