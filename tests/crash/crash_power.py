"""A power cut, modelled: every directory an operation might leave behind, materialised and checked.

The calls of the local storage are recorded while an operation runs. After each of them the power may go.
What was synced survives. Of the rest, each directory entry survives or not, independently of all others
(so the two halves of a rename may be split, and a new directory may be lost with all in it), and each file
that was not synced may be empty, half written or whole. This is harsher than any real file system. A
directory that was moved has one name all the same, and with it go the files that are in it.
"""

from __future__ import annotations

import copy
import itertools
import os
import random
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from crash_checks import Answer, as_state, promises_broken
from crash_operations import Operation, read_rows

from intarsia.common import system
from intarsia.errors import IntarsiaError
from intarsia.storage import posix

Call = tuple[str, ...]
DIRECTORY = -1


class RecordingOs:
    """The ``os`` module with its changing calls written down."""

    def __init__(self, vault: str) -> None:
        self.calls: list[Call] = []
        self.data: dict[int, bytes] = {}
        self.vault = vault
        self._paths: dict[int, str] = {}
        self._known: set[str] = set()
        self._one_at_a_time = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        with self._one_at_a_time:
            new = not os.path.lexists(path)
            descriptor = os.open(path, flags, mode)
            self._paths[descriptor] = path
            if flags & (os.O_CREAT | os.O_TRUNC) and (new or flags & os.O_TRUNC):
                self.calls.append(("create", path))
                self._known.add(path)
            return descriptor

    def write(self, descriptor: int, data: Any) -> int:
        with self._one_at_a_time:
            done = os.write(descriptor, data)
            self._wrote(self._paths[descriptor], bytes(data)[:done])
            return done

    def _wrote(self, path: str, data: bytes) -> None:
        self.data[len(self.calls)] = data
        self.calls.append(("data", path, str(len(self.calls))))

    def fsync(self, descriptor: int) -> None:
        with self._one_at_a_time:
            os.fsync(descriptor)
            path = self._paths[descriptor]
            if os.path.isdir(path):
                self.calls.append(("sync directory", path))
                return
            self._meet(path)
            self.calls.append(("sync", path))

    def _meet(self, path: str) -> None:
        """A file that was written by somebody else, such as pyarrow: write down that it came to be."""
        if path not in self._known and path.endswith(".part"):
            self._known.add(path)
            self.calls.append(("create", path))
            with open(path, "rb") as file:
                self._wrote(path, file.read())
            keep(path, self.vault)

    def link(self, source: str, target: str) -> None:
        with self._one_at_a_time:
            os.link(source, target)
            self._known.add(target)
            self.calls.append(("link", source, target))

    def replace(self, source: str, target: str) -> None:
        with self._one_at_a_time:
            os.replace(source, target)
            self._known.add(target)
            self.calls.append(("rename", source, target))

    def unlink(self, path: str) -> None:
        with self._one_at_a_time:
            os.unlink(path)
            self.calls.append(("unlink", path))

    def mkdir(self, path: str) -> None:
        with self._one_at_a_time:
            os.mkdir(path)
            self.calls.append(("mkdir", path))

    def rmdir(self, path: str) -> None:
        with self._one_at_a_time:
            os.rmdir(path)
            self.calls.append(("rmdir", path))


def keep(path: str, vault: str) -> None:
    """Hold on to a file's inode, so that a state made later has the very same file."""
    os.link(path, f"{vault}/{uuid.uuid4().hex}")


@contextmanager
def recorded(vault: str) -> Iterator[RecordingOs]:
    recording = RecordingOs(vault)
    posix.os = system.os = recording  # type: ignore[attr-defined]
    try:
        yield recording
    finally:
        posix.os = system.os = os  # type: ignore[attr-defined]


@dataclass
class Disk:
    """What may be found after the power came back.

    ``entries`` has for each path the files it may name, the last being the one it names if all survives;
    ``contents`` has for each file what may be in it. Where there is one candidate, it is durable.
    """

    entries: dict[str, list[int | None]] = field(default_factory=dict)
    contents: dict[int, list[bytes]] = field(default_factory=dict)
    moved: list[tuple[str, str]] = field(default_factory=list)
    """Directories: from where to where. What is in them is known by both names, as one list."""

    def load(self, root: str) -> None:
        for directory, _, names in os.walk(root):
            self.entries[directory] = [DIRECTORY]
            for name in names:
                with open(f"{directory}/{name}", "rb") as file:
                    self.entries[f"{directory}/{name}"] = [self._file(file.read())]

    def _file(self, data: bytes) -> int:
        number = len(self.contents)
        self.contents[number] = [data]
        return number

    def apply(self, call: Call, data: dict[int, bytes]) -> None:
        match call:
            case ("create", path) if (number := self._at(path)) is not None:
                self.contents[number].append(b"")
            case ("create", path):
                self._name(path, self._file(b""))
            case ("data", path, index):
                whole = data[int(index)]
                self.contents[self._file_at(path)] += [whole[: len(whole) // 2], whole]
            case ("sync", path):
                number = self._file_at(path)
                self.contents[number] = self.contents[number][-1:]
            case ("sync directory", path):
                for name in self.entries:
                    if os.path.dirname(name) == path:
                        del self.entries[name][:-1]
            case ("link", source, target):
                self._name(target, self._file_at(source))
            case ("rename", source, target) if self._at(source) == DIRECTORY:
                self._move_directory(source, target)
            case ("rename", source, target):
                self._name(target, self._file_at(source))
                self._name(source, None)
            case ("unlink" | "rmdir", path):
                self._name(path, None)
            case ("mkdir", path):
                self._name(path, DIRECTORY)

    def _move_directory(self, source: str, target: str) -> None:
        within = [path for path in self.entries if path.startswith(f"{source}/")]
        self.entries |= {f"{target}{path.removeprefix(source)}": self.entries[path] for path in within}
        self._name(target, DIRECTORY)
        self._name(source, None)
        self.moved.append((source, target))

    def _at(self, path: str) -> int | None:
        return self.entries.get(path, [None])[-1]

    def _file_at(self, path: str) -> int:
        number = self._at(path)
        assert number is not None, path
        return number

    def _name(self, path: str, number: int | None) -> None:
        self.entries.setdefault(path, [None]).append(number)

    def states(self, most: int, chance: random.Random) -> Iterator[dict[str, tuple[int, bytes | None]]]:
        """Up to ``most`` states: nothing unsynced survives, all of it does, then others by chance."""
        paths = [path for path, found in self.entries.items() if len(found) > 1]
        files = [number for number, found in self.contents.items() if len(found) > 1]
        sizes = [len(self.entries[path]) for path in paths] + [len(self.contents[n]) for n in files]
        total = 1
        for size in sizes:
            total *= size
        if total <= most:
            picks: Any = itertools.product(*(range(size) for size in sizes))
        else:
            extremes = [[0] * len(sizes), [size - 1 for size in sizes]]
            others = ([chance.randrange(size) for size in sizes] for _ in range(most - 2))
            picks = itertools.chain(extremes, others)
        for pick in picks:
            chosen = dict(zip([*paths, *files], pick, strict=True))
            yield self.make_state(chosen)

    def make_state(self, chosen: dict[Any, int]) -> dict[str, tuple[int, bytes | None]]:
        """A state by the places of what survives; the last of those that are not named."""
        state: dict[str, tuple[int, bytes | None]] = {}
        for path in sorted(self.entries):
            number = self.entries[path][chosen.get(path, -1)]
            parent = os.path.dirname(path)
            if number is None or (parent in self.entries and parent not in state):
                continue
            state[path] = (
                number,
                None if number == DIRECTORY else self.contents[number][chosen.get(number, -1)],
            )
        for source, target in self.moved:
            if target in state:
                state = {path: one for path, one in state.items() if not f"{path}/".startswith(f"{source}/")}
        return state


@dataclass
class Found:
    states: int = 0
    violations: list[str] = field(default_factory=list)


class PowerCut:
    """One operation, and the power going after each of its calls."""

    def __init__(self, operation: Operation, directory: str) -> None:
        self.operation = operation
        self.directory = directory
        self.root = f"{directory}/data"
        self.vault = f"{directory}.vault"

    def run(self, most: int, *, ignore: tuple[str, ...] = (), seed: int = 0, enough: int = 20) -> Found:
        """Check up to ``most`` states after each call; calls named in ``ignore`` count as not made.

        Stops when ``enough`` violations were found.
        """
        disk, calls, data = self._record_run()
        calls = [call for call in calls if call[0] not in ignore]
        return self._cut_everywhere(disk, calls, data, most, enough, random.Random(seed))

    def run_recovery(self, most: int, *, seed: int = 0, enough: int = 20) -> Found:
        """The same while somebody recovers from a kill: one after each call that has changed the log."""
        assert self.operation.recover is not None
        disk, calls, data = self._record_run()
        found = Found()
        for number, call in enumerate(calls, 1):
            disk.apply(call, data)
            if not any("/log/" in part for part in call[1:]):
                continue
            killed = copy.deepcopy(disk)
            self._materialise(killed.make_state({}), self._find_kept())
            with recorded(self.vault) as recording:
                self.operation.recover(self.root)
            chance = random.Random(seed)
            recorded_before = any(one[0] == "link" and one[2].endswith(".json") for one in calls[:number])
            one = self._cut_everywhere(
                killed, recording.calls, recording.data, most, enough, chance, recorded=recorded_before
            )
            found.states += one.states
            found.violations += [f"killed after call {number} {call[:2]}, {told}" for told in one.violations]
        return found

    def run_acknowledged(self, most: int, undo: Callable[[str], None], *, seed: int = 0) -> Found:
        """The power goes after the last call, and the old state is asked for by ``undo``."""
        disk, calls, data = self._record_run()
        for call in calls:
            disk.apply(call, data)
        return self._undo_everywhere(disk, most, undo, seed, "power cut after the last call")

    def run_acknowledged_recovery(self, most: int, undo: Callable[[str], None], *, seed: int = 0) -> Found:
        """The same after the recovery from a kill, one after each call from the commit on."""
        assert self.operation.recover is not None
        disk, calls, data = self._record_run()
        found, committed = Found(), False
        for number, call in enumerate(calls, 1):
            disk.apply(call, data)
            committed |= call[0] == "link" and call[2].endswith(".json")
            if not committed:
                continue
            killed = copy.deepcopy(disk)
            self._materialise(killed.make_state({}), self._find_kept())
            with recorded(self.vault) as recording:
                self.operation.recover(self.root)
            for one in recording.calls:
                killed.apply(one, recording.data)
            where = f"killed after call {number} {call[:2]}, power cut after the recovery"
            undone = self._undo_everywhere(killed, most, undo, seed, where)
            found.states += undone.states
            found.violations += undone.violations
        return found

    def _undo_everywhere(
        self, disk: Disk, most: int, undo: Callable[[str], None], seed: int, where: str
    ) -> Found:
        found, kept, seen = Found(), self._find_kept(), set()
        for state in disk.states(most, random.Random(seed)):
            if (key := frozenset(state.items())) in seen:
                continue
            seen.add(key)
            found.states += 1
            self._materialise(state, kept)
            try:
                undo(self.root)
                rows = read_rows(self.root)
            except (OSError, ValueError, IntarsiaError) as error:
                found.violations.append(f"{where}: {type(error).__name__}: {error}")
            else:
                if as_state(rows) != self.operation.old:
                    found.violations.append(f"{where}: undone, there is {rows}")
        return found

    def _record_run(self) -> tuple[Disk, list[Call], dict[int, bytes]]:
        """The disk before the operation, and what it calls."""
        for directory in (self.directory, self.vault):
            shutil.rmtree(directory, ignore_errors=True)
            os.makedirs(directory)
        self.operation.setup(self.root)
        disk = Disk()
        disk.load(self.directory)
        for path in disk.entries:
            if path.endswith(".parquet"):
                keep(path, self.vault)
        with recorded(self.vault) as recording:
            self.operation.run(self.root)
        return disk, recording.calls, recording.data

    def _find_kept(self) -> dict[bytes, str]:
        return {
            self._bytes(f"{self.vault}/{name}"): f"{self.vault}/{name}" for name in os.listdir(self.vault)
        }

    def _cut_everywhere(
        self,
        disk: Disk,
        calls: list[Call],
        data: dict[int, bytes],
        most: int,
        enough: int,
        chance: random.Random,
        *,
        recorded: bool | None = None,
    ) -> Found:
        """``recorded``: of a recovery, whether there is a commit to finish."""
        found = Found()
        kept = self._find_kept()
        last = Answer.OLD if recorded is False else Answer.NEW
        committed, seen = False, set()
        for number in range(len(calls) + 1):
            if number:
                call = calls[number - 1]
                disk.apply(call, data)
                recorded = recorded or (call[0] == "link" and call[2].endswith(".json"))
                committed |= recorded and call[0] == "sync directory" and call[1].endswith("/log")
            answer = Answer.NEW if committed else last if number == len(calls) else Answer.NONE
            for state in disk.states(most, chance):
                key = (frozenset(state.items()), answer)
                if key in seen:
                    continue
                if len(found.violations) >= enough:
                    return found
                seen.add(key)
                found.states += 1
                self._materialise(state, kept)
                where = (
                    f"power cut after call {number} of {len(calls)} {calls[number - 1][:2] if number else ()}"
                )
                problems = promises_broken(self.operation, self.root, answer)
                found.violations += [f"{where}: {problem}" for problem in problems]
        return found

    def _materialise(self, state: dict[str, tuple[int, bytes | None]], kept: dict[bytes, str]) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        os.makedirs(self.directory)
        made: dict[int, str] = {}
        for path, (number, data) in state.items():
            if data is None:
                os.makedirs(path, exist_ok=True)
            elif number in made:
                os.link(made[number], path)
            else:
                made[number] = path
                if data in kept:
                    os.link(kept[data], path)
                else:
                    with open(path, "wb") as file:
                        file.write(data)

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.rmtree(self.vault, ignore_errors=True)

    @staticmethod
    def _bytes(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()


def cut_power(
    operation: Operation,
    directory: str,
    most: int,
    *,
    ignore: tuple[str, ...] = (),
    recovers: bool = False,
    enough: int = 20,
) -> Found:
    """Every promise broken by a power cut during the operation, or while somebody recovers from its death.

    ``directory`` is made and removed.
    """
    power_cut = PowerCut(operation, directory)
    try:
        if recovers:
            return power_cut.run_recovery(most, enough=enough)
        return power_cut.run(most, ignore=ignore, enough=enough)
    finally:
        power_cut.remove()


def cut_power_and_undo(
    operation: Operation, directory: str, most: int, undo: Callable[[str], None], *, recovers: bool = False
) -> Found:
    """What cannot be undone when the power goes after the operation, or after the recovery from its death.

    ``directory`` is made and removed.
    """
    power_cut = PowerCut(operation, directory)
    try:
        if recovers:
            return power_cut.run_acknowledged_recovery(most, undo)
        return power_cut.run_acknowledged(most, undo)
    finally:
        power_cut.remove()
