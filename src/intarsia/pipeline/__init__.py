"""Pipelines: sources, steps and targets declared in a file or in Python and run on Spark, with a report.

    >>> from intarsia import pipeline
    >>> report = pipeline.run_file("orders.toml", params={"day": "2025-03-04"})
    >>> report.check().html_path

Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.common.lazy import make_lazy_names as _lazily

if TYPE_CHECKING:
    from intarsia.pipeline.backfill import BackfillReport, BackfillRun, run_backfill
    from intarsia.pipeline.loading import check, load
    from intarsia.pipeline.model import (
        Compact,
        Deduplicate,
        Delete,
        Expect,
        LineageSettings,
        Merge,
        Optimize,
        Pipeline,
        Source,
        SparkSettings,
        Step,
        Stream,
        Target,
        Update,
        Write,
    )
    from intarsia.pipeline.parse import loads
    from intarsia.pipeline.quality.checks import Check
    from intarsia.pipeline.quality.evaluation import evaluate
    from intarsia.pipeline.reports.drawing import draw
    from intarsia.pipeline.reports.report import PipelineReport, StepReport, as_json
    from intarsia.pipeline.runner import run, run_file
    from intarsia.pipeline.testing.project import init_project
    from intarsia.pipeline.testing.runner import CaseReport, run_tests

_HOMES = {
    "BackfillReport": "backfill",
    "BackfillRun": "backfill",
    "CaseReport": "testing.runner",
    "Check": "quality.checks",
    "Compact": "model",
    "Deduplicate": "model",
    "Delete": "model",
    "Expect": "model",
    "LineageSettings": "model",
    "Merge": "model",
    "Optimize": "model",
    "Pipeline": "model",
    "PipelineReport": "reports.report",
    "Source": "model",
    "SparkSettings": "model",
    "Step": "model",
    "StepReport": "reports.report",
    "Stream": "model",
    "Target": "model",
    "Update": "model",
    "Write": "model",
    "as_json": "reports.report",
    "check": "loading",
    "draw": "reports.drawing",
    "evaluate": "quality.evaluation",
    "init_project": "testing.project",
    "load": "loading",
    "loads": "parse",
    "run": "runner",
    "run_backfill": "backfill",
    "run_file": "runner",
    "run_tests": "testing.runner",
}

__all__ = [
    "BackfillReport",
    "BackfillRun",
    "CaseReport",
    "Check",
    "Compact",
    "Deduplicate",
    "Delete",
    "Expect",
    "LineageSettings",
    "Merge",
    "Optimize",
    "Pipeline",
    "PipelineReport",
    "Source",
    "SparkSettings",
    "Step",
    "StepReport",
    "Stream",
    "Target",
    "Update",
    "Write",
    "as_json",
    "check",
    "draw",
    "evaluate",
    "init_project",
    "load",
    "loads",
    "run",
    "run_backfill",
    "run_file",
    "run_tests",
]

__getattr__, __dir__ = _lazily(__name__, {name: f"{__name__}.{home}" for name, home in _HOMES.items()})
