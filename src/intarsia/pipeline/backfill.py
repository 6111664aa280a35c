"""A backfill: a pipeline run once for each value of a parameter, which goes on where it was stopped."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Unpack

from intarsia.core.run import ignore_progress
from intarsia.engine_choice import DeferredSession
from intarsia.errors import DamagedTable, InputError, IntarsiaError
from intarsia.pipeline.loading import load
from intarsia.pipeline.model import Pipeline
from intarsia.pipeline.reports.report import PipelineReport, describe_status, error_to_json
from intarsia.pipeline.runner import RunOptions, make_opener, run
from intarsia.pipeline.state.state_file import choose_state_path, hold_lock, write_atomically
from intarsia.show import units

__all__ = ["BackfillReport", "BackfillRun", "expand_range", "run_backfill"]

MOST_VALUES = 10_000
"""Maximum number of runs of one backfill."""
_DAYS = re.compile(r"(\d{4}-\d{2}-\d{2})\.\.(\d{4}-\d{2}-\d{2})")
_MONTHS = re.compile(r"(\d{4})-(\d{2})\.\.(\d{4})-(\d{2})")
_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)")


@dataclass(frozen=True, slots=True)
class BackfillRun:
    """The run of one value, or of one combination of values.

    ``done before``: it succeeded when the same backfill was started earlier. ``not run``: one before failed.
    """

    values: Mapping[str, str]
    status: Literal["done", "done before", "failed", "not run"]
    report: PipelineReport | None = None
    error: BaseException | None = None

    @property
    def name(self) -> str:
        """The values, as on the command line."""
        return " ".join(f"{name}={value}" for name, value in self.values.items())


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """The runs of a backfill, in the order of the values."""

    pipeline: str
    runs: tuple[BackfillRun, ...]
    seconds: float = 0.0
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        return all(one.status in ("done", "done before") for one in self.runs)

    @property
    def failed(self) -> BackfillRun | None:
        """The run that failed, if one did."""
        return next((one for one in self.runs if one.status == "failed"), None)

    def count(self, status: str) -> int:
        """How many runs have a status."""
        return sum(one.status == status for one in self.runs)

    def check(self) -> BackfillReport:
        """The report itself; raises the error of the run that failed, if one did."""
        if self.failed is not None and self.failed.error is not None:
            raise self.failed.error
        return self

    def describe(self) -> str:
        """The backfill in one sentence; where a run failed, how to go on."""
        total = units.format_count(len(self.runs), "run")
        before = self.count("done before")
        known = f", {before} of them before" if before else ""
        if self.failed is None:
            return f"{total} {'planned' if self.dry_run else 'done'}{known}"
        done = self.count("done") + before
        return (
            f"stopped at {self.failed.name}: {done} of {total} done, {self.count('not run')} not run;"
            " start the same backfill again to go on from there"
        )

    def as_json(self) -> dict[str, Any]:
        """The backfill as plain JSON types, without credentials."""
        return {
            "pipeline": self.pipeline,
            "status": self.describe(),
            "ok": self.ok,
            "dry_run": self.dry_run,
            "seconds": round(self.seconds, 3),
            "runs": [_run_to_json(one) for one in self.runs],
        }


def _run_to_json(one: BackfillRun) -> dict[str, Any]:
    report = one.report
    return {
        "values": dict(one.values),
        "status": one.status,
        "run_id": None if report is None else report.run_id,
        "outcome": None if report is None else describe_status(report),
        "seconds": None if report is None else round(report.seconds, 3),
        "json_path": None if report is None else report.json_path,
        "html_path": None if report is None else report.html_path,
        "error": None if one.error is None else error_to_json(one.error),
    }


def expand_range(text: str) -> tuple[str, ...] | None:
    """The values of ``2025-03-01..2025-03-31``, ``2025-01..2025-06`` or ``1..12``; None for other texts.

    Both ends are values. Numbers keep the zeros of the first one.

    Raises:
        InputError: a range from a later to an earlier value, an impossible date, or a very long one.
    """
    if met := _DAYS.fullmatch(text):
        first, last = (_parse_day(text, one) for one in met.groups())
        numbers = range((last - first).days + 1)
        _check_length(text, len(numbers))
        return tuple((first + timedelta(days=number)).isoformat() for number in numbers)
    if met := _MONTHS.fullmatch(text):
        years = [int(met[1]) * 12 + int(met[2]) - 1, int(met[3]) * 12 + int(met[4]) - 1]
        if not all(1 <= int(month) <= 12 for month in (met[2], met[4])):
            raise InputError(f"{text!r} has a month that does not exist.")
        _check_length(text, years[1] - years[0] + 1)
        return tuple(f"{one // 12:04}-{one % 12 + 1:02}" for one in range(years[0], years[1] + 1))
    if met := _NUMBERS.fullmatch(text):
        _check_length(text, int(met[2]) - int(met[1]) + 1)
        width = len(met[1]) if met[1].lstrip("-").startswith("0") else 0
        return tuple(f"{number:0{width}}" for number in range(int(met[1]), int(met[2]) + 1))
    return None


def _parse_day(text: str, day: str) -> date:
    try:
        return date.fromisoformat(day)
    except ValueError as error:
        raise InputError(f"{text!r} has a day that does not exist: {day}.") from error


def _check_length(text: str, length: int) -> None:
    if length < 1:
        raise InputError(f"{text!r} ends before it begins.", hint="give the first value first.")
    if length > MOST_VALUES:
        raise InputError(
            f"{text!r} has {length:,} values; a backfill has at most {MOST_VALUES:,}.",
            hint="run it in several parts.",
        )


def run_backfill(
    path: str | os.PathLike[str],
    *,
    over: Mapping[str, str | Sequence[Any]],
    params: Mapping[str, str] | None = None,
    env: str | None = None,
    start_over: bool = False,
    on_run: Callable[[BackfillRun], None] | None = None,
    **options: Unpack[RunOptions],
) -> BackfillReport:
    """Run a pipeline once for each value of a parameter, one after the other, until one fails.

    All values are checked before the first run. Resumable: values that have succeeded are not run again when
    the same backfill (pipeline, values, other parameters and options) is started after it failed or was
    killed; once all have succeeded, it starts from the beginning. All runs share one Spark session.

    Args:
        path: the pipeline's file, as of :func:`load`.
        over: by parameter, a range as of ``--param`` (``"2025-03-01..2025-03-31"``) or a list of values; of
            several parameters, all combinations, of which the last changes fastest.
        params: values of other parameters.
        env: the environment, as of :func:`load`.
        start_over: run every value, also those that have succeeded before.
        on_run: called with the outcome of each value when it is known.
        options: as of :func:`run`, for each run.

    Returns:
        A report of all values, also when one has failed; its ``check()`` raises that error.

    Raises:
        InputError: no values, a wrong range, or a pipeline that is not consistent with one of the values.
        CommitConflict: the same backfill is under way.
        IntarsiaError: what keeps every run from starting, as in :func:`run_file`.

    Example:
        >>> from pathlib import Path
        >>> from intarsia import pipeline
        >>> written = Path("daily.toml").write_text('''
        ... engine = "arrow"
        ... sources.changes = { path = "changes.csv", derive = { day = "date '${day}'" } }
        ... targets.days.path = "lake/days"
        ... steps = [{ operation = "merge", source = "changes", target = "days", on = ["id", "day"] }]
        ... ''')
        >>> over = {"day": "2025-03-01..2025-03-02"}
        >>> [(one.name, one.status) for one in pipeline.run_backfill("daily.toml", over=over).check().runs]
        [('day=2025-03-01', 'done'), ('day=2025-03-02', 'done')]
    """
    begun = time.perf_counter()
    if options.get("continuous"):
        raise InputError("A backfill ends with its last value: --continuous does not go with it.")
    values = list(_combine(over))
    pipelines = [
        load(path, params={**(params or {}), **one}, env=env, engine=options.get("engine")) for one in values
    ]
    dry_run = options.get("dry_run", False)
    ledger = Ledger.open(pipelines[0], _identify(values, params, options))
    runs: list[BackfillRun] = []
    with ExitStack() as stack:
        stack.enter_context(nullcontext() if dry_run else hold_lock(ledger.path))
        ledger.read(start_over=start_over)
        if start_over and not dry_run:
            ledger.finish()  # also where the first value fails
        _share_session(pipelines[0], options, stack)
        for number, one in enumerate(values):
            if ledger.has(one):
                made = BackfillRun(one, "done before")
            elif any(before.status == "failed" for before in runs):
                made = BackfillRun(one, "not run")
            else:
                made = _run_one(pipelines[number], one, options)
                if made.status == "done" and not dry_run:
                    ledger.add(one)
            runs.append(made)
            if on_run is not None:
                on_run(made)
        report = BackfillReport(pipelines[0].name, tuple(runs), time.perf_counter() - begun, dry_run)
        if report.ok and not dry_run:
            ledger.finish()
    return report


def _combine(over: Mapping[str, str | Sequence[Any]]) -> Iterator[dict[str, str]]:
    """The values of all parameters, in order."""
    lists: list[Sequence[str]] = []
    for name, given in over.items():
        found = expand_range(given) if isinstance(given, str) else [_as_text(value) for value in given]
        if not found:
            raise InputError(
                f"The parameter {name!r} has no range of values, but {given!r}.",
                hint="write 2025-03-01..2025-03-31, 2025-01..2025-06 or 1..12, or give a list in Python.",
            )
        lists.append(found)
    if not lists:
        raise InputError("A backfill needs a parameter with several values.")
    total = functools.reduce(lambda count, one: count * len(one), lists, 1)
    if total > MOST_VALUES:
        raise InputError(f"{total:,} combinations; a backfill has at most {MOST_VALUES:,}.")
    yield from (dict(zip(over, chosen, strict=True)) for chosen in itertools.product(*lists))


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _run_one(pipeline: Pipeline, values: Mapping[str, str], options: RunOptions) -> BackfillRun:
    try:
        report = run(pipeline, **options)
    except IntarsiaError as error:  # this value could not start
        return BackfillRun(values, "failed", error=error)
    failed = report.failed
    if report.ok or failed is None:
        return BackfillRun(values, "done" if report.ok else "failed", report)
    return BackfillRun(values, "failed", report, failed.error)


def _share_session(pipeline: Pipeline, options: RunOptions, stack: ExitStack) -> None:
    """Let all runs use one Spark session, which is opened when the first of them needs it."""
    if options.get("session") is not None:
        return
    opening = make_opener(pipeline, options.pop("master", None), None, ignore_progress, stack)
    if opening is not None:
        options["session"] = DeferredSession(functools.cache(opening))


_WHAT = ("full_refresh", "only", "from_step", "mark_done")
"""Options of a run that make it another backfill."""


def _identify(
    values: Sequence[Mapping[str, str]], params: Mapping[str, str] | None, options: Mapping[str, Any]
) -> str:
    """A digest of what makes two backfills the same."""
    what = {name: options.get(name) or None for name in _WHAT}
    text = json.dumps([list(values), dict(params or {}), what], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(slots=True)
class Ledger:
    """The values that have succeeded, of the backfills of a pipeline that have not ended yet; a JSON file."""

    path: Path
    key: str
    others: dict[str, Any] = field(default_factory=dict)
    done: list[dict[str, str]] = field(default_factory=list)
    started: str = ""

    @classmethod
    def open(cls, pipeline: Pipeline, key: str) -> Ledger:
        """The ledger beside the state of a pipeline, not read yet."""
        state = choose_state_path(pipeline)
        return cls(
            state.with_name(f"{state.name.removesuffix('.json').removesuffix('.state')}.backfill.json"), key
        )

    def read(self, *, start_over: bool) -> None:
        """Read what has succeeded. Raises DamagedTable."""
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            self.others = dict(json.loads(self.path.read_bytes())["backfills"])
            own = self.others.pop(self.key, None)
            if own is not None and not start_over:
                self.done, self.started = [dict(one) for one in own["done"]], str(own["started"])
        except FileNotFoundError:
            return
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedTable(
                f"The list of runs of backfills, {self.path}, is damaged ({error}).",
                path=str(self.path),
                hint="remove it; backfills then begin at their first value.",
            ) from error

    def has(self, values: Mapping[str, str]) -> bool:
        return values in self.done

    def add(self, values: Mapping[str, str]) -> None:
        """Note that a run has succeeded."""
        self.done.append(dict(values))
        self._write({**self.others, self.key: {"started": self.started, "done": self.done}})

    def finish(self) -> None:
        """Forget the backfill: started again, it begins at its first value."""
        if self.others:
            self._write(self.others)
        else:
            self.path.unlink(missing_ok=True)

    def _write(self, backfills: Mapping[str, Any]) -> None:
        data = json.dumps({"version": 1, "backfills": backfills}, indent=1).encode()
        write_atomically(self.path, data + b"\n")
