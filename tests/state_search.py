"""Looks at every state that a model of a protocol can reach."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


class Model(Protocol[S]):
    """What a protocol begins with, what can happen next, and what must never be."""

    def start(self) -> S: ...

    def follow(self, state: S) -> Iterator[S]: ...

    def find_violation(self, state: S) -> str | None: ...

    def find_final_violation(self, state: S) -> str | None:
        """Once nothing moves any more."""
        ...


def search(model: Model[S]) -> tuple[str | None, int]:
    """The first violation that some order of events leads to, and how many states were looked at."""
    first = model.start()
    seen, queue = {first}, deque([first])
    while queue:
        state = queue.popleft()
        violation = model.find_violation(state)
        if violation is not None:
            return violation, len(seen)
        moved = False
        for after in model.follow(state):
            moved = True
            if after not in seen:
                seen.add(after)
                queue.append(after)
        if not moved and (violation := model.find_final_violation(state)) is not None:
            return violation, len(seen)
    return None, len(seen)
