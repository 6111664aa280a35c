"""The commit protocol of object stores as a model, whose every reachable state is looked at.

Two writers append their number to the objects ``f`` and ``g`` and add an object each, or the second removes
what the first has added (a compaction), or sets everything back to what was before (a restore); a third
process may only finish what others have committed. Any of them may be paused at any point and for ever, one
may die, and one request may be carried out at any later time, or never, while its sender knows nothing. The
store is what :mod:`intarsia.storage.conditional` expects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Rules:
    """The protocol; each rule can be left out, to see that it is needed."""

    replaces_if_match: bool = True
    finishes_others_first: bool = True
    reads_log_before_listing: bool = True
    resolves_no_answer: bool = True
    resolves_refusal: bool = True
    claims_if_absent: bool = True
    keeps_tombstones: bool = True
    restores_to_new_names: bool = True
    second_compacts: bool = False
    second_restores: bool = False
    has_helper: bool = False
    crashes: int = 1


class Writer(NamedTuple):
    step: str
    base: int | None = 0
    f: tuple[int, ...] | None = None
    g: tuple[int, ...] | None = None
    todo: tuple[Any, ...] = ()
    tries: int = 0
    dead: bool = False
    acknowledged: bool = False

    def at(self, step: str, **more: Any) -> Writer:
        return self._replace(step=step, **more)

    def again(self) -> Writer:
        """Plan again, once."""
        fresh = Writer("start" if self.tries < 1 else "end", tries=self.tries + 1)
        return fresh._replace(acknowledged=self.acknowledged)


class State(NamedTuple):
    log: tuple[tuple[int, tuple[Any, ...]], ...]
    done: frozenset[int]
    objects: tuple[tuple[str, Any], ...]
    writers: tuple[Writer, ...]
    under_way: frozenset[Any]
    deaths: int


def apply_items(objects: dict[str, Any], items: tuple[Any, ...]) -> None:
    for kind, name, _, new in items:
        if kind == "remove":
            objects.pop(name, None)
        else:
            objects[name] = new


class Model:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def start(self) -> State:
        helper = Writer("help" if self.rules.has_helper else "end")
        return State(
            (),
            frozenset(),
            (("f", ()), ("g", ())),
            (Writer("start"), Writer("start"), helper),
            frozenset(),
            0,
        )

    # The store.

    def carry_out(self, state: State, request: Any) -> tuple[bool, State]:
        match request:
            case ("claim", slot, record):
                if len(state.log) == slot:
                    return True, state._replace(log=(*state.log, record))
                if self.rules.claims_if_absent:
                    return False, state
                return True, state._replace(log=(*state.log[:slot], record))
            case ("done", slot):
                return True, state._replace(done=state.done | {slot})
            case ("item", (kind, name, old, new)):
                objects = dict(state.objects)
                if kind == "replace":
                    allowed = not self.rules.replaces_if_match or objects.get(name) == old
                else:
                    allowed = (name in objects) == (kind == "remove")
                if allowed:
                    apply_items(objects, ((kind, name, old, new),))
                return allowed, state._replace(objects=tuple(sorted(objects.items())))
        raise AssertionError(request)

    # What every state must be.

    def serial(self, state: State) -> dict[str, Any]:
        objects: dict[str, Any] = {"f": (), "g": ()}
        for _, items in state.log:
            apply_items(objects, items)
        return objects

    def snapshot(self, state: State) -> dict[str, Any]:
        """What our own readers see: the listing, corrected by the log."""
        objects = dict(state.objects)
        if self.rules.keeps_tombstones:
            for _, items in state.log:
                apply_items(objects, tuple(item for item in items if item[0] == "remove"))
        for slot, (_, items) in enumerate(state.log):
            if slot not in state.done:
                apply_items(objects, items)
        return objects

    def find_violation(self, state: State) -> str | None:
        objects = dict(state.objects)
        order = [who for who, items in state.log if any(item[0] == "replace" for item in items)]
        for name in ("f", "g"):
            if name not in objects and f"restored-{name}" in objects:
                continue
            if name not in objects or list(objects[name]) != order[: len(objects[name])]:
                return "somebody who only lists sees a lost or a doubled change"
        committed = [who for who, _ in state.log]
        undone = [slot for slot in range(len(committed)) if slot not in state.done]
        if len(undone) <= 1 and self.snapshot(state) != self.serial(state):
            return "a reader sees what is no state"
        if len(set(committed)) != len(committed):
            return "a transaction took effect twice"
        for number, writer in enumerate(state.writers[:2], start=1):
            if writer.acknowledged and number not in committed:
                return "an acknowledged transaction is lost"
        return None

    def find_final_violation(self, state: State) -> str | None:
        """Once nothing moves any more, and the next writer has removed what came back."""
        objects = dict(state.objects)
        if self.rules.keeps_tombstones:
            for _, items in state.log:
                apply_items(objects, tuple(item for item in items if item[0] == "remove"))
        if state.done >= set(range(len(state.log))) and objects != self.serial(state):
            return "the listing is not the serial state"
        return None

    # What can happen next.

    def follow(self, state: State) -> Iterator[State]:
        for request in state.under_way:
            _, after = self.carry_out(state, request)
            yield after._replace(under_way=after.under_way - {request})
        for number, writer in enumerate(state.writers):
            if writer.dead or writer.step == "end":
                continue
            if state.deaths < self.rules.crashes:
                yield self._put(state, number, writer._replace(dead=True))._replace(deaths=state.deaths + 1)
            yield from getattr(self, f"_{writer.step}")(state, number, writer)

    def _put(self, state: State, number: int, writer: Writer) -> State:
        writers = (*state.writers[:number], writer, *state.writers[number + 1 :])
        return state._replace(writers=writers)

    def _send(
        self, state: State, number: int, request: Any, yes: Writer, no: Writer, unknown: Writer | None
    ) -> Iterator[State]:
        done, after = self.carry_out(state, request)
        yield self._put(after, number, yes if done else no)
        if unknown is not None and not state.under_way:
            yield self._put(state, number, unknown)._replace(under_way=frozenset({request}))

    def _start(self, state: State, number: int, writer: Writer) -> Iterator[State]:
        undone = [slot for slot in range(len(state.log)) if slot not in state.done]
        if undone and self.rules.finishes_others_first:
            todo = state.log[undone[0]][1]
            yield self._put(state, number, writer.at("finish", base=undone[0], todo=todo))
        else:
            base = len(state.log) if self.rules.reads_log_before_listing else None
            yield self._put(state, number, writer.at("list_f", base=base))

    def _help(self, state: State, number: int, writer: Writer) -> Iterator[State]:
        undone = [slot for slot in range(len(state.log)) if slot not in state.done]
        if undone:
            todo = state.log[undone[0]][1]
            yield self._put(state, number, writer.at("finish", base=undone[0], todo=todo))

    def _list_f(self, state: State, number: int, writer: Writer) -> Iterator[State]:
        yield self._put(state, number, writer.at("list_g", f=dict(state.objects)["f"]))

    def _list_g(self, state: State, number: int, writer: Writer) -> Iterator[State]:
        added = tuple(item for item in state.objects if item[0].startswith("added"))
        listed = writer.at("claim", g=dict(state.objects)["g"], todo=added)
        if self.rules.second_restores and number == 1 and not self._make_items(number, listed):
            listed = writer.at("end")  # all is as it was
        yield self._put(state, number, listed)

    def _make_items(self, number: int, writer: Writer) -> tuple[Any, ...]:
        who = number + 1
        if self.rules.second_compacts and who == 2:
            removed = tuple(("remove", name, old, None) for name, old in writer.todo)
            return (("add", "compacted", None, writer.todo), *removed)
        assert writer.f is not None
        assert writer.g is not None
        if self.rules.second_restores and who == 2:
            changed = [(name, now) for name, now in (("f", writer.f), ("g", writer.g)) if now]
            removed = tuple(("remove", name, old, None) for name, old in writer.todo)
            if not self.rules.restores_to_new_names:
                return (*(("replace", name, now, ()) for name, now in changed), *removed)
            back = tuple(("add", f"restored-{name}", None, ()) for name, _ in changed)
            return (*back, *(("remove", name, now, None) for name, now in changed), *removed)
        return (
            ("replace", "f", writer.f, (*writer.f, who)),
            ("replace", "g", writer.g, (*writer.g, who)),
            ("add", f"added{who}", None, (who,)),
        )

    def _claim(self, state: State, number: int, writer: Writer) -> Iterator[State]:
        slot = writer.base if writer.base is not None else len(state.log)
        items = self._make_items(number, writer)
        yes = Writer("publish", base=slot, todo=items, tries=writer.tries, acknowledged=writer.acknowledged)
        resolve = writer.at("resolve", base=slot)
        no = resolve if self.rules.resolves_refusal else writer.again()
        unknown = resolve if self.rules.resolves_no_answer else writer.again()
        yield from self._send(state, number, ("claim", slot, (number + 1, items)), yes, no, unknown)

    def _resolve(self, state: State, number: int, writer: Writer) -> Iterator[State]:
        slot = writer.base
        assert slot is not None
        if len(state.log) <= slot:
            yield self._put(state, number, writer.at("claim"))
        elif state.log[slot][0] == number + 1:
            mine = writer.at("publish", f=None, g=None, todo=state.log[slot][1])
            yield self._put(state, number, mine)
        else:
            yield self._put(state, number, writer.again())

    def _publish(self, state: State, number: int, writer: Writer) -> Iterator[State]:
        if writer.todo:
            rest = writer._replace(todo=writer.todo[1:])
            yield from self._send(state, number, ("item", writer.todo[0]), rest, rest, writer)
        else:
            yield self._put(state, number, writer.at("verify", todo=(writer.step,)))

    _finish = _publish

    def _verify(self, state: State, number: int, writer: Writer) -> Iterator[State]:
        slot, (back,) = writer.base, writer.todo
        assert slot is not None
        objects = dict(state.objects)
        there = all(
            (name not in objects)
            if kind == "remove"
            else objects.get(name) == new or (kind == "add" and name in objects)
            for kind, name, _, new in state.log[slot][1]
        )
        if not (there or slot in state.done or len(state.log) > slot + 1):
            yield self._put(state, number, writer.at(back, todo=state.log[slot][1]))
            return
        if number == 2:
            after = Writer("help")
        elif back == "finish":
            after = Writer("start", tries=writer.tries, acknowledged=writer.acknowledged)
        else:
            after = Writer("end", tries=writer.tries, acknowledged=True)
        yield from self._send(state, number, ("done", slot), after, after, None)
