"""The commit protocol of local disks as a model, whose every reachable state is looked at.

One writer replaces the files ``f`` and ``g``, another one replaces them by one file (a compaction), a third
process recovers. Each may be paused at any call and for ever, some may die, whose lock the kernel frees, and
the power may go. Then each name that was changed since its directory was synced is as it was at any moment
since then, whatever the others are, and a file whose bytes were not synced is torn. ``crash_power.py`` does
the latter to the code itself, with one writer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

File = tuple[str, tuple[str, ...]]
"""What it is, and its rows: one with the letter of each of the first files, and what has changed it."""
Names = tuple[tuple[str, Any], ...]
FILES: dict[str, File] = {"f": ("old f", ("f",)), "g": ("old g", ("g",))}
TORN = ("torn",)
SLOTS = range(3)
MERGER, COMPACTER, RECOVERER = 0, 1, 2


@dataclass(frozen=True)
class Rules:
    """The protocol; each rule can be left out, to see that it is needed."""

    takes_lock: bool = True
    recovers_first: bool = True
    records_first: bool = True
    syncs_files: bool = True
    syncs_staged_names: bool = True
    syncs_slot: bool = True
    keeps_staged_name: bool = True
    syncs_before_removing: bool = True
    syncs_before_done: bool = True
    syncs_what_it_finds: bool = True
    deaths: int = 1
    cuts: int = 1


class Process(NamedTuple):
    step: str
    todo: tuple[Any, ...] = ()
    acknowledged: bool = False
    dead: bool = False


class State(NamedTuple):
    names: Names
    """Every name that there is now, with its directory."""
    perhaps: Names
    """Of each name that was changed and not synced: all that a power cut may leave of it."""
    synced: frozenset[str]
    """The files whose bytes survive."""
    log: tuple[Any, ...]
    """The commits there have been, in order."""
    processes: tuple[Process, ...]
    lock: int | None = None
    deaths: int = 0
    cuts: int = 0


class Model:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def start(self) -> State:
        names = tuple((f"data/{name}", file) for name, file in FILES.items())
        processes = (Process("start"),) * 3
        return State(names, (), frozenset(file[0] for file in FILES.values()), (), processes)

    # What every state must be.

    def serial(self, state: State) -> dict[str, File]:
        return apply_records(dict(FILES), state.log)

    def snapshot(self, state: State) -> dict[str, File]:
        """What our own readers see: the listing, corrected by the commits that are not published."""
        there = dict(state.names)
        files = list_data(there)
        for _, items in list_undone(there):
            for kind, name, was, new in items:
                if kind == "remove":
                    files.pop(name, None)
                elif files.get(name) == was and f"new/{new[0]}" in there:
                    files[name] = there[f"new/{new[0]}"]
        return files

    def find_violation(self, state: State) -> str | None:
        there = dict(state.names)
        rows = [row[0] for file in list_data(there).values() for row in file[1]]
        undone = list_undone(there)
        is_moving = any(item[0] == "remove" for _, items in undone for item in items)
        if not {"f", "g"} <= set(rows) or (len(rows) > 2 and not is_moving):
            return f"somebody who only lists sees {rows}"
        if len(undone) <= 1 and self.snapshot(state) != self.serial(state):
            return "a reader sees what is no state"
        for number, process in enumerate(state.processes):
            if process.acknowledged and number not in [who for who, _ in state.log]:
                return "an acknowledged transaction is lost"
        return None

    def find_final_violation(self, state: State) -> str | None:
        """Once nothing moves any more."""
        there = dict(state.names)
        if not list_undone(there) and list_data(there) != self.serial(state):
            return "the listing is not the serial state"
        return None

    # What can happen next.

    def follow(self, state: State) -> Iterator[State]:
        for number, process in enumerate(state.processes):
            if process.dead or process.step == "end":
                continue
            if state.deaths < self.rules.deaths:
                lock = None if state.lock == number else state.lock
                died = self._put(state, number, process._replace(dead=True, todo=()))
                yield died._replace(lock=lock, deaths=state.deaths + 1)
            if process.todo:
                done = self._put(state, number, process._replace(todo=process.todo[1:]))
                yield self._call(done, number, process.todo[0])
            elif process.step != "start" or self._may_start(state):
                yield getattr(self, f"_{process.step}")(state, number)
        if state.cuts < self.rules.cuts:
            yield from self._cut(state)

    def _may_start(self, state: State) -> bool:
        return not self.rules.takes_lock or state.lock is None

    def _put(self, state: State, number: int, process: Process) -> State:
        return state._replace(processes=(*state.processes[:number], process, *state.processes[number + 1 :]))

    def _go(self, state: State, number: int, step: str, *todo: Any, **more: Any) -> State:
        return self._put(state, number, state.processes[number]._replace(step=step, todo=todo, **more))

    def _cut(self, state: State) -> Iterator[State]:
        """The power goes: everybody is gone, and somebody recovers."""
        changed = dict(state.perhaps)
        gone = tuple(process._replace(dead=True, todo=()) for process in state.processes[:RECOVERER])
        for chosen in itertools.product(*changed.values()):
            there = dict(state.names) | dict(zip(changed, chosen, strict=True))
            names = {
                name: (file[0], TORN) if name.startswith(STAGED) and file[0] not in state.synced else file
                for name, file in there.items()
                if file is not None
            }
            known = [
                slot for slot in range(len(state.log)) if {f"log/{slot}", f"log/{slot}.done"} & set(names)
            ]
            yield State(
                tuple(sorted(names.items())),
                (),
                state.synced | {file[0] for name, file in names.items() if name.startswith(STAGED)},
                tuple(state.log[slot] for slot in known),
                (*gone, Process("start")),
                deaths=state.deaths,
                cuts=state.cuts + 1,
            )

    # Calls.

    def _call(self, state: State, number: int, call: Any) -> State:
        there = dict(state.names)
        match call:
            case ("link", source, target):
                return change(state, {target: there[source]}) if source in there else state
            case ("rename", source, target):
                return change(state, {source: None, target: there[source]}) if source in there else state
            case ("write", name, value):
                return change(state, {name: value})
            case ("sync bytes", file):
                return state._replace(synced=state.synced | {file})
            case ("sync", *directories):
                kept = [one for one in state.perhaps if one[0].partition("/")[0] not in directories]
                return state._replace(perhaps=tuple(kept))
            case ("claim", slot, record):
                if f"log/{slot}" in there or f"log/{slot}.done" in there:
                    return self._go(state, number, "start")._replace(lock=None)
                return change(state, {f"log/{slot}": record})._replace(log=(*state.log, record))
            case ("publish", item):
                return self._publish(state, number, item)
        raise AssertionError(call)

    def _publish(self, state: State, number: int, item: Any) -> State:
        """Look at one name, and do what is to be done as the next calls."""
        kind, name, was, new = item
        there = dict(state.names)
        found = there.get(f"data/{name}")
        if found != was:
            return state
        if kind == "remove":
            calls: tuple[Any, ...] = (("write", f"data/{name}", None),)
        elif self.rules.keeps_staged_name:
            link = ("link", f"new/{new[0]}", f"pub/{new[0]}")
            calls = (*(() if f"pub/{new[0]}" in there else (link,)), rename("pub", new, name))
        else:
            calls = (rename("new", new, name),)
        process = state.processes[number]
        return self._put(state, number, process._replace(todo=(*calls, *process.todo)))

    # Steps.

    def _start(self, state: State, number: int) -> State:
        state = state._replace(lock=number)
        if number != RECOVERER and not self.rules.recovers_first:
            return self._go(state, number, "plan")
        return self._recover(state, number)

    def _recover(self, state: State, number: int) -> State:
        there = dict(state.names)
        first = [("sync", "log")] if self.rules.syncs_what_it_finds else []
        if list_undone(there):
            slot = min(slot for slot in SLOTS if is_undone(there, slot))
            return self._go(state, number, "recover", *first, *self._list_calls(slot, there[f"log/{slot}"]))
        slots = [f"log/{slot}" for slot in SLOTS if f"log/{slot}" in there]
        staged = [name for name in there if name.startswith(("new/", "pub/"))]
        todo = [*(first if slots else []), *(("write", name, None) for name in (*staged, *slots))]
        return self._go(state, number, "finish" if number == RECOVERER else "plan", *todo)

    def _plan(self, state: State, number: int) -> State:
        there = dict(state.names)
        files = list_data(there)
        slot = sum(f"log/{n}.done" in there or f"log/{n}" in there for n in SLOTS)
        items = tuple(make_items(number, files))
        new = [new for _, _, _, new in items if new is not None]
        record = (number, items)
        stage: list[Any] = [("write", f"new/{file[0]}", file) for file in new]
        stage += [("sync bytes", file[0]) for file in new if self.rules.syncs_files]
        if self.rules.keeps_staged_name:
            stage += [("link", f"new/{file[0]}", f"pub/{file[0]}") for file in new]
        stage += [("sync", "new", "pub")] if self.rules.syncs_staged_names else []
        claim: list[Any] = [("claim", slot, record)]
        claim += [("sync", "log")] if self.rules.syncs_slot else []
        publish = self._list_calls(slot, record)
        if self.rules.records_first:
            return self._go(state, number, "acknowledge", *stage, *claim, *publish)
        changes = tuple(call for call in publish if call[0] == "publish")
        return self._go(state, number, "acknowledge", *stage, *changes, *claim, *publish)

    def _list_calls(self, slot: int, record: Any) -> tuple[Any, ...]:
        """What publishes a commit; can be done again."""
        rules, (_, items) = self.rules, record
        puts = [("publish", item) for item in items if item[0] != "remove"]
        removes = [("publish", item) for item in items if item[0] == "remove"]
        between = [("sync", "data")] if rules.syncs_before_removing and removes else []
        last = [("sync", "data")] if rules.syncs_before_done else []
        return (*puts, *between, *removes, *last, ("write", f"log/{slot}.done", record), ("sync", "log"))

    def _acknowledge(self, state: State, number: int) -> State:
        there = dict(state.names)
        slots = [f"log/{slot}" for slot in SLOTS if f"log/{slot}" in there]
        own = [name for name in there if name.startswith(("new/", "pub/"))]
        todo = [("write", name, None) for name in (*own, *slots)]
        return self._go(state, number, "finish", *todo, acknowledged=True)

    def _finish(self, state: State, number: int) -> State:
        return self._go(state, number, "end")._replace(lock=None)


STAGED = ("data/", "new/", "pub/")


def rename(directory: str, file: File, name: str) -> Any:
    return ("rename", f"{directory}/{file[0]}", f"data/{name}")


def make_items(number: int, files: dict[str, File]) -> Iterator[Any]:
    """What a writer does to the files that it finds: kind, name, what was there, what is to be."""
    if number == COMPACTER:
        rows = tuple(sorted(row for file in files.values() for row in file[1]))
        yield "add", "compacted", None, ("compacted", rows)
        yield from (("remove", name, file, None) for name, file in files.items())
        return
    for name, file in files.items():
        yield "replace", name, file, (f"new {name}", tuple(f"{row}+" for row in file[1]))


def list_data(there: dict[str, Any]) -> dict[str, File]:
    return {name[5:]: file for name, file in there.items() if name.startswith("data/")}


def is_undone(there: dict[str, Any], slot: int) -> bool:
    return f"log/{slot}" in there and f"log/{slot}.done" not in there


def list_undone(there: dict[str, Any]) -> list[Any]:
    return [there[f"log/{slot}"] for slot in SLOTS if is_undone(there, slot)]


def apply_records(files: dict[str, File], records: tuple[Any, ...]) -> dict[str, File]:
    for _, items in records:
        for kind, name, _, new in items:
            if kind == "remove":
                files.pop(name, None)
            else:
                files[name] = new
    return files


def change(state: State, names: dict[str, Any]) -> State:
    """Give names to files, or take them away; until their directory is synced, what was may come back."""
    there, perhaps = dict(state.names), dict(state.perhaps)
    for name, file in names.items():
        known = perhaps.get(name, (there.get(name),))
        perhaps[name] = known if file in known else (*known, file)
        if file is None:
            there.pop(name, None)
        else:
            there[name] = file
    return state._replace(names=tuple(sorted(there.items())), perhaps=tuple(sorted(perhaps.items())))
