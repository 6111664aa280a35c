"""The files a run leaves behind: its report as JSON and as a page."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path

from intarsia.errors import StorageError
from intarsia.pipeline.page import page
from intarsia.pipeline.report import PipelineReport, as_json
from intarsia.pipeline.state_file import write_atomically


def report_directory(directory: Path) -> None:
    """Make the directory of the reports before anything is run for them.

    Raises:
        StorageError: it cannot be made or written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise StorageError(
            f"No report can be left in {directory}: {error.strerror or error}",
            errno=error.errno,
            path=str(directory),
            hint="name another directory with reports, or --report-dir.",
        ) from error


def write_report(report: PipelineReport, directory: Path) -> PipelineReport:
    """Write ``<pipeline>-<run>.json`` and ``.html``; the report with their paths.

    Raises:
        StorageError: the directory cannot be written.
    """
    name = re.sub(r"[^\w.\-]", "-", f"{report.pipeline}-{report.run_id}")
    written = replace(
        report, json_path=str(directory / f"{name}.json"), html_path=str(directory / f"{name}.html")
    )
    data = json.dumps(as_json(written), indent=1, default=str).encode() + b"\n"
    write_atomically(directory / f"{name}.json", data)
    write_atomically(directory / f"{name}.html", page(written).encode())
    return written
