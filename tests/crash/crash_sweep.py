"""Runs under the preloaded shim: kills or fails an operation at each of its changing calls, and checks.

    python crash_sweep.py '{"operation": "compact", "fault": "kill", "directory": "...", "every": 1}'

Each point is one fork of this process, so that nothing has to be imported again. Prints one JSON object:
points, killed, acknowledged, raised, and the violations found.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import pyarrow as pa
from crash_operations import CONTROLS, OPERATIONS, Operation, State, listing_problems, read_file, read_rows

from intarsia.errors import IntarsiaError
from intarsia.tables.parquet import ParquetTable

pa.set_cpu_count(1)
pa.set_io_thread_count(1)

SHIM = ctypes.CDLL(None)
KILL, TORN = 0, -1
MOST_VIOLATIONS = 20


@dataclass
class Outcome:
    """What became of the child: killed, or "ACK", or the error it raised."""

    said: str
    calls: int = 0
    kinds: str = ""
    changed: bool | None = None

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
    killed: int = 0
    acknowledged: int = 0
    raised: int = 0
    violations: list[str] = field(default_factory=list)


class Sweep:
    """One operation, one kind of fault, every point of it."""

    def __init__(self, operation: Operation, fault: str, directory: str) -> None:
        self.operation = operation
        self.fault = fault
        self.directory = directory
        self.root = f"{directory}/data"
        self.template = f"{directory}.template"
        self.crashed = f"{directory}.crashed"
        self.result = Result(operation.name, fault)
        shutil.rmtree(self.template, ignore_errors=True)
        os.makedirs(self.template)
        operation.setup(f"{self.template}/data")

    def run(self, every: int, double_every: int) -> Result:
        baseline = self._run_at(0, KILL)
        self.result.calls = baseline.calls
        self._check(baseline, "without a fault")
        number = {"kill": KILL, "torn": TORN}.get(self.fault) or getattr(errno, self.fault, KILL)
        for n in range(1, baseline.calls + 1, every):
            if self.fault == "torn" and baseline.kinds[n - 1] != "w":
                continue
            outcome = self._run_at(n, number)
            self._count(outcome)
            where = f"{self.fault} at call {n} ({baseline.kinds[n - 1]})"
            if double_every and outcome.killed:
                self._crash_again(outcome, where, double_every)
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

    def _crash_again(self, outcome: Outcome, where: str, every: int) -> None:
        """Kill the recovery at its calls, too."""
        recover = self.operation.recover
        if recover is None:
            return
        copy_linked(self.directory, self.crashed)
        calls = in_child(lambda: recover(self.root), 0, KILL).calls
        for n in range(1, calls + 1, every):
            copy_linked(self.crashed, self.directory)
            in_child(lambda: recover(self.root), n, KILL)
            self.result.double += 1
            self._check(outcome, f"{where}, recovery killed at its call {n}")
        copy_linked(self.crashed, self.directory)
        self._check(outcome, where)

    def _check(self, outcome: Outcome, where: str) -> None:
        """The promises: to readers at once, and to everybody after recovery."""
        operation = self.operation
        try:
            problems = [f"before recovery: {p}" for p in listing_problems(operation, read_rows(self.root))]
            if operation.recover is not None:
                problems += self._check_recovered(outcome, operation.recover)
            elif as_state(read_rows(self.root)) not in (operation.old, operation.new):
                problems.append("neither the old nor the new state, for ever")
        except (OSError, ValueError, IntarsiaError) as error:
            problems = [f"{type(error).__name__}: {error}"]
        for problem in problems[: MOST_VIOLATIONS - len(self.result.violations)]:
            self.result.violations.append(f"{where} ({outcome.said or 'killed'}): {problem}")

    def _check_recovered(self, outcome: Outcome, recover: Callable[[str], None]) -> list[str]:
        operation, problems = self.operation, []
        seen = snapshot_state(self.root)
        if seen not in (operation.old, operation.new):
            problems.append(f"a snapshot shows a state that never was: {seen}")
        expected = [operation.old, operation.new]
        if outcome.said == "ACK" or outcome.changed is True:
            expected = [operation.new]
        elif not outcome.killed and outcome.changed is False:
            expected = [operation.old]
        if seen not in expected:
            problems.append(f"the snapshot does not fit the answer (changed={outcome.changed})")
        for _ in range(2):  # it can be repeated
            recover(self.root)
        rows = read_rows(self.root)
        state = as_state(rows)
        if state != seen:
            problems.append(f"recovery made another state than the snapshot showed: {rows}")
        if state not in expected:
            problems.append(f"after recovery neither old nor new, or not what was answered: {rows}")
        problems += [f"left behind: {name}" for name in leftovers(self.root, committed=state == operation.new)]
        return problems


def as_state(rows: list[tuple[int, int, int]]) -> State | None:
    """The rows by key; None when a key is there twice."""
    state = {(p, k): v for p, k, v in rows}
    return state if len(state) == len(rows) else None


def snapshot_state(root: str) -> State | None:
    """What intarsia's own reader sees, without recovery."""
    files = ParquetTable(root).snapshot().files
    return as_state([row for file in files for row in read_file(file.location, file.partition["p"])])


def leftovers(root: str, *, committed: bool) -> list[str]:
    control = f"{os.path.dirname(root)}/.{os.path.basename(root)}.intarsia"
    found = [
        os.path.relpath(f"{directory}/{name}", control)
        for directory, _, names in os.walk(control)
        for name in names
    ]
    return [name for name in found if name != "lock" and not (name.startswith("log/") and name.endswith(".done"))]


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
    try:
        action()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it is, it is the outcome
        said, changed = f"{type(error).__name__}: {error}", getattr(error, "changed", None)
    finally:
        calls = SHIM.shim_calls()
        SHIM.shim_disarm()
    kinds = "".join(chr(SHIM.shim_kind(ctypes.c_long(i))) for i in range(1, calls + 1)) if n == 0 else ""
    return json.dumps({"said": said, "calls": calls, "kinds": kinds, "changed": changed}).encode()


def main() -> None:
    order = json.loads(sys.argv[1])
    operation = next(o for o in [*OPERATIONS, *CONTROLS] if o.name == order["operation"])
    sweep = Sweep(operation, order["fault"], order["directory"])
    try:
        result = sweep.run(order.get("every", 1), order.get("double_every", 0))
    finally:
        for directory in (sweep.directory, sweep.template, sweep.crashed):
            shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
