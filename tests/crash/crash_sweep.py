"""Runs under the preloaded shim: kills or fails an operation at each of its changing calls, and checks.

    python crash_sweep.py '{"operation": "compact", "directory": "...", "faults": [["kill", 60, 0]]}'

A fault is its name, how many of the calls to try, evenly spread (0: all, -1: those around commits), and for
"kill" at how many of the recovery's calls to kill that, and to fail it, too (0: none, -1: all). Each point is
one fork of this process, so that nothing has to be imported again. Prints a JSON list, one object for each
fault.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
from crash_checks import Answer, promises_broken
from crash_engines import own_connections
from crash_operations import CONTROLS, ERRORS, OPERATIONS, Operation

pa.set_cpu_count(1)
pa.set_io_thread_count(1)

SHIM = ctypes.CDLL(None)
KILL, TORN = 0, -1
AROUND = -1
"""As a number of points: every call from the one before a stretch that decides to two after it."""
MOST_VIOLATIONS = 20
DECIDING = {
    "claim": ("intarsia.tables.parquet.journal:Journal", "_claim"),
    "publish": ("intarsia.tables.parquet.journal:Journal", "publish"),
    "state": ("intarsia.pipeline.state.run_state", "write_atomically"),
    "catalog": ("pyiceberg.catalog.sql:SqlCatalog", "commit_table"),
    "checkpoint": ("intarsia.pipeline.streams.stream_steps", "write_checkpoint"),
}
"""What decides whether an operation took effect, and whether a pipeline knows."""


@dataclass
class Outcome:
    """What became of the child: killed, or "ACK", or the error it raised."""

    said: str
    calls: int = 0
    kinds: str = ""
    marks: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """By what is done there: the first and the last call of each stretch that decides."""
    modules: list[str] = field(default_factory=list)
    """What was imported, where there was no fault."""
    changed: bool | None = None
    hit_cleanup: bool = False
    """The fault hit a removal, so that something may be left until recovery."""

    @property
    def killed(self) -> bool:
        return not self.said


@dataclass
class Result:
    operation: str
    fault: str
    calls: int = 0
    points: int = 0
    double: int = 0
    """Kills of the recovery from a kill."""
    failed: int = 0
    """Errors in the recovery from a kill."""
    killed: int = 0
    acknowledged: int = 0
    raised: int = 0
    read: int = 0
    """Points at which Spark has read what was left."""
    violations: list[str] = field(default_factory=list)


class Sweep:
    """One operation, and faults at its points."""

    def __init__(self, operation: Operation, directory: str, enough: int = MOST_VIOLATIONS) -> None:
        """``enough``: violations after which nothing more is tried."""
        self.operation = operation
        self.enough = enough
        self.directory = directory
        self.root = f"{directory}/data"
        self.template = f"{directory}.template"
        self.crashed = f"{directory}.crashed"
        self.result = Result(operation.name, "")
        self.imported = False
        shutil.rmtree(self.template, ignore_errors=True)
        os.makedirs(self.template)
        operation.setup(f"{self.template}/data")

    def run(self, fault: str, points: int, again: int) -> Result:
        self.result = Result(self.operation.name, fault)
        if not self.imported:
            import_ahead(self._run_at(0, KILL).modules)
            self.imported = True
        baseline = self._run_at(0, KILL)
        self.result.calls = baseline.calls
        if baseline.said != "ACK":
            self.result.violations.append(f"fails without a fault: {baseline.said}")
            return self.result
        self._check(baseline, "without a fault")
        number = {"kill": KILL, "torn": TORN}.get(fault) or getattr(errno, fault, KILL)
        calls = [n for n in range(1, baseline.calls + 1) if fault != "torn" or baseline.kinds[n - 1] == "w"]
        for n in part_of(deciding(calls, points, baseline.marks)):
            if len(self.result.violations) >= self.enough:
                break
            outcome = self._run_at(n, number)
            outcome.hit_cleanup = baseline.kinds[n - 1] in "ux"
            self._count(outcome)
            where = f"{fault} at call {n} ({baseline.kinds[n - 1]})"
            if again and outcome.killed:
                self._crash_again(outcome, where, again, turn=n)
            else:
                self._check(outcome, where)
        return self.result

    def _run_at(self, n: int, fault: int) -> Outcome:
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.copytree(self.template, self.directory)
        return in_child(lambda: self.operation.run(self.root), n, fault)

    def _count(self, outcome: Outcome) -> None:
        self.result.points += 1
        self.result.killed += outcome.killed
        self.result.acknowledged += outcome.said == "ACK"
        self.result.raised += not outcome.killed and outcome.said != "ACK"

    def _crash_again(self, outcome: Outcome, where: str, again: int, *, turn: int) -> None:
        """Kill the recovery at its calls, and fail it there, with each error in turn; at others each time."""
        recover = self.operation.recover
        if recover is None:
            return
        copy_linked(self.directory, self.crashed)
        calls = in_child(lambda: recover(self.root), 0, KILL).calls
        for n in rotate(range(1, calls + 1), again, turn):
            error = ERRORS[(turn + n) % len(ERRORS)]
            copy_linked(self.crashed, self.directory)
            in_child(lambda: recover(self.root), n, KILL)
            self.result.double += 1
            self._check(outcome, f"{where}, recovery killed at its call {n}")
            copy_linked(self.crashed, self.directory)
            _armed(lambda: recover(self.root), n, getattr(errno, error))  # nobody dies of it: no fork
            self.result.failed += 1
            self._check(outcome, f"{where}, recovery failed with {error} at its call {n}")
        copy_linked(self.crashed, self.directory)
        self._check(outcome, where)

    def _check(self, outcome: Outcome, where: str) -> None:
        if outcome.said == "ACK" or outcome.changed is True:
            answer = Answer.NEW
        elif outcome.changed is False:
            answer = Answer.OLD
        else:
            answer = Answer.NONE
        tidy = outcome.changed is False and not outcome.hit_cleanup
        problems = promises_broken(self.operation, self.root, answer, tidy=tidy)
        for problem in problems[: MOST_VIOLATIONS - len(self.result.violations)]:
            self.result.violations.append(f"{where} ({outcome.said or 'killed'}): {problem}")


def spread(calls: Sequence[int], points: int) -> Sequence[int]:
    """So many of the calls, evenly spread, the first and the last among them; 0 or less is all of them."""
    if points <= 0 or points >= len(calls):
        return calls
    return sorted({calls[round(i * (len(calls) - 1) / max(1, points - 1))] for i in range(points)})


def rotate(calls: Sequence[int], points: int, turn: int) -> Sequence[int]:
    """So many of the calls, evenly spread, others in each turn, so that each has its turn; 0 or less: all."""
    if points <= 0 or points >= len(calls):
        return calls
    start = turn % -(-len(calls) // points)
    return sorted({calls[(start + i * len(calls) // points) % len(calls)] for i in range(points)})


def deciding(calls: Sequence[int], points: int, marks: dict[str, list[tuple[int, int]]]) -> Sequence[int]:
    """So many of the calls, those around commits and state writes first; 0 is all, AROUND all of the latter.

    First the last stretch of each kind, for nothing comes after it that could make good what it left undone;
    then of each other stretch one call, another one each time; then any, evenly spread.
    """
    if points == AROUND:
        near = {
            n for stretches in marks.values() for low, high in stretches for n in range(low - 1, high + 3)
        }
        return sorted(near.intersection(calls))
    if points <= 0 or points >= len(calls):
        return calls
    last = {n for stretches in marks.values() for n in range(stretches[-1][0], stretches[-1][1] + 2)}
    others = sorted(stretch for stretches in marks.values() for stretch in stretches[:-1])
    one_each = {low + number % (high + 2 - low) for number, (low, high) in enumerate(others)}
    chosen: set[int] = set()
    for wanted in (last, one_each, set(calls)):
        left = sorted(wanted.intersection(calls) - chosen)
        if left and len(chosen) < points:
            chosen.update(spread(left, points - len(chosen)))
    return sorted(chosen)


def part_of(calls: Sequence[int]) -> Sequence[int]:
    """What this process takes of a sweep that several share: INTARSIA_CRASH_PART is "2/3" for the second."""
    number, _, parts = os.environ.get("INTARSIA_CRASH_PART", "1/1").partition("/")
    return calls[int(number) - 1 :: int(parts)]


@contextmanager
def marked(marks: dict[str, list[tuple[int, int]]]) -> Iterator[None]:
    """Take down between which calls commits are made, published and finished, and states are written.

    Of what is imported: a fork takes the longer, the more there is in memory.
    """
    with ExitStack() as stack:
        for name, (place, attribute) in DECIDING.items():
            if (home := sys.modules.get(place.partition(":")[0])) is None:
                continue
            owner = getattr(home, place.partition(":")[2]) if ":" in place else home
            stack.callback(setattr, owner, attribute, getattr(owner, attribute))
            setattr(owner, attribute, _marking(getattr(owner, attribute), marks.setdefault(name, [])))
        yield
    for name in [name for name, found in marks.items() if not found]:
        del marks[name]


def _marking(real: Callable[..., Any], found: list[tuple[int, int]]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        low = SHIM.shim_calls() + 1
        try:
            return real(*args, **kwargs)
        finally:
            if SHIM.shim_calls() >= low:
                found.append((low, SHIM.shim_calls()))

    return call


def copy_linked(source: str, target: str) -> None:
    """A copy in which names of one file are again names of one file; times are kept."""
    shutil.rmtree(target, ignore_errors=True)
    copies: dict[int, str] = {}
    for directory, _, names in os.walk(source):
        there = target + directory[len(source) :]
        os.makedirs(there)
        for name in names:
            inode = os.stat(f"{directory}/{name}").st_ino
            if inode in copies:
                os.link(copies[inode], f"{there}/{name}")
            else:
                copies[inode] = shutil.copy2(f"{directory}/{name}", f"{there}/{name}")


def in_child(action: Callable[[], None], n: int, fault: int) -> Outcome:
    """Run an action in a fork with the shim armed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        answer = b""
        try:
            own_connections()
            answer = _armed(action, n, fault)
        finally:
            os.write(writer, answer)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return Outcome(**json.loads(answer)) if answer else Outcome("")


def _armed(action: Callable[[], None], n: int, fault: int) -> bytes:
    SHIM.shim_arm(ctypes.c_long(n), ctypes.c_int(fault))
    said, changed = "ACK", None
    marks: dict[str, list[tuple[int, int]]] = {}
    try:
        with marked(marks) if n == 0 else nullcontext():
            action()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it is, it is the outcome
        said, changed = f"{type(error).__name__}: {error}", getattr(error, "changed", None)
    finally:
        calls = SHIM.shim_calls()
        SHIM.shim_disarm()
    kinds = "".join(chr(SHIM.shim_kind(ctypes.c_long(i))) for i in range(1, calls + 1)) if n == 0 else ""
    answer = {"said": said, "calls": calls, "kinds": kinds, "marks": marks, "changed": changed}
    return json.dumps(answer | {"modules": list(sys.modules) if n == 0 else []}).encode()


def import_ahead(modules: Sequence[str]) -> None:
    """Import what children import, so that none has to: most of what a short run takes."""
    for name in modules:
        with suppress(ImportError):
            importlib.import_module(name)


def main() -> None:
    order = json.loads(sys.argv[1])
    operation = next(o for o in [*OPERATIONS, *CONTROLS] if o.name == order["operation"])
    sweep = Sweep(operation, order["directory"], order.get("enough", MOST_VIOLATIONS))
    try:
        results = [sweep.run(fault, points, again) for fault, points, again in order["faults"]]
    finally:
        for directory in (sweep.directory, sweep.template, sweep.crashed):
            shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps([asdict(result) for result in results]))


if __name__ == "__main__":
    main()
