"""The past runs of a directory of reports, read from their JSON files; their page is in run_index_page.

Nothing here fails a run: what cannot be read is left out, and what cannot be written is logged.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from intarsia.common.log import get_logger
from intarsia.pipeline.reports.run_index_page import MARK, PastRun, RunList, render_index

__all__ = ["INDEX", "is_report_name", "read_runs", "replace_file", "update_index"]

log = get_logger(__name__)

INDEX = "index.html"
MOST_RUNS = 300
"""Maximum number of runs of a directory that are read; each pipeline in it has an equal share."""
LEAST_RUNS = 20
"""Runs of each pipeline that are read in any case."""
MOST_BYTES = 64 << 20
"""Maximum bytes of JSON that are read for an index."""
_LARGEST = 16 << 20
_NAME = re.compile(r"(?P<pipeline>.+)-(?P<stamp>\d{8}T\d{6})-[0-9a-f]{6}\.json")
_MOST = 1 << 63
_ATTEMPTS = 20
_ABANDONED = 3600.0
"""Seconds after which nobody is writing a draft any more."""


@dataclass(frozen=True, slots=True)
class _ReportFile:
    name: str
    pipeline: str
    """As in the name of the file."""
    stamp: str
    size: int


def update_index(directory: Path) -> None:
    """Rewrite ``index.html`` from the reports of a directory, atomically.

    Runs that end at the same time may each write it: whoever has written it looks whether a report has come
    meanwhile, and then writes it again, so that the last one has all of them. An ``index.html`` that is not
    ours is left as it is.
    """
    path = directory / INDEX
    try:
        if not _is_ours(path):
            log.warning("%s is not an index of runs, and is left as it is", path)
            return
        _remove_drafts(path)
        written: list[_ReportFile] | None = None
        for _ in range(_ATTEMPTS):
            found = _list_files(directory)
            if found == written:
                return
            replace_file(path, render_index(_read_files(directory, found)).encode())
            written = found
    except OSError as error:
        log.warning("the index of runs could not be written: %s", error)


def read_runs(directory: Path) -> RunList:
    """The runs whose reports are in a directory, newest first; older ones beyond the limits are counted."""
    return _read_files(directory, _list_files(directory))


def is_report_name(name: str) -> bool:
    """Whether a file is named as the JSON of a run."""
    return _NAME.fullmatch(name) is not None


def _is_ours(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return MARK.encode() in file.read(2000)
    except FileNotFoundError:
        return True


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically; it can be made again at any time, so nothing is synced."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        draft.write_bytes(data)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _remove_drafts(path: Path) -> None:
    """Remove what runs that were killed at this moment have left."""
    for draft in path.parent.glob(f".{path.name}.*.part"):
        with suppress(FileNotFoundError):
            if time.time() - draft.stat().st_mtime > _ABANDONED:
                draft.unlink()


def _list_files(directory: Path) -> list[_ReportFile]:
    """The files named as reports, newest first."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            try:
                if match is not None and entry.is_file():
                    size = entry.stat().st_size
                    found.append(_ReportFile(entry.name, match["pipeline"], match["stamp"], size))
            except FileNotFoundError:  # somebody cleans up
                continue
    return sorted(found, key=lambda file: (file.stamp, file.name), reverse=True)


def _read_files(directory: Path, files: Iterable[_ReportFile]) -> RunList:
    runs: list[PastRun] = []
    listed = list(files)
    pages = {name for name in os.listdir(directory) if name.endswith(".html")}
    share = max(LEAST_RUNS, MOST_RUNS // max(len({file.pipeline for file in listed}), 1))
    taken: Counter[str] = Counter()
    older: Counter[str] = Counter()
    oldest: dict[str, str] = {}
    left, unread = MOST_BYTES, 0
    for file in listed:
        if taken[file.pipeline] >= share or file.size > left:
            older[file.pipeline] += 1
            oldest[file.pipeline] = file.stamp
            continue
        taken[file.pipeline] += 1
        left -= file.size
        run = None if file.size > _LARGEST else _read_run(directory, file.name, pages)
        if run is None:
            unread += 1
        else:
            runs.append(run)
    runs.sort(key=lambda run: (run.started, run.data), reverse=True)  # names have no more than seconds
    first = min(oldest.values(), default=None)
    return RunList(
        tuple(runs), sum(older.values()), first and f"{first[:4]}-{first[4:6]}-{first[6:8]}", unread
    )


def _read_run(directory: Path, name: str, pages: set[str]) -> PastRun | None:
    """A run from its report; None where the file is not one."""
    try:
        told = json.loads((directory / name).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(told, Mapping):
        return None
    started = _parse_time(told.get("started"))
    steps = told.get("steps")
    if started is None or not isinstance(told.get("pipeline"), str) or not isinstance(steps, list):
        return None
    steps = [step for step in steps if isinstance(step, Mapping)]
    results = [step["result"] for step in steps if isinstance(step.get("result"), Mapping)]
    page = f"{name.removesuffix('.json')}.html"
    return PastRun(
        pipeline=told["pipeline"],
        run_id=str(told.get("run_id", "")),
        started=started,
        seconds=_read_number(told, "seconds"),
        status=str(told.get("status", "")),
        ok=told.get("ok") is True,
        dry_run=told.get("dry_run") is True,
        engine=str(told.get("session") or told.get("engine") or ""),
        steps=len(steps),
        unchanged=sum(step.get("status") == "unchanged" for step in steps),
        inserted=_sum_rows(results, "inserted"),
        updated=_sum_rows(results, "updated"),
        deleted=_sum_rows(results, "deleted"),
        bytes_written=sum(int(_read_number(step, "bytes_written")) for step in steps),
        page=page if page in pages else None,
        data=name,
    )


def _parse_time(value: Any) -> datetime | None:
    try:
        parsed = datetime.fromisoformat(value)
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return None


def _sum_rows(results: Iterable[Mapping[str, Any]], key: str) -> int:
    return sum(int(_read_number(result, key)) for result in results)


def _read_number(table: Mapping[str, Any], key: str) -> float:
    """A number that is not negative; 0 for anything else, such as one that no run could count to."""
    value = table.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < _MOST:
        return 0
    return value
