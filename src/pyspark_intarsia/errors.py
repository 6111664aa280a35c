"""Errors of the library as Spark shows them: the message, without the traceback of the library before it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from intarsia.errors import IntarsiaError

__all__ = ["shorten_errors", "shorten_errors_of_rows"]

P = ParamSpec("P")
R = TypeVar("R")


def shorten_errors(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which raises errors of the library as if it had made them itself."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except IntarsiaError as error:
            raised = copy.copy(error)
        raise raised

    return call


def shorten_errors_of_rows(function: Callable[P, Iterator[R]]) -> Callable[P, Iterator[R]]:
    """The same for a function that yields."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        try:
            yield from function(*args, **kwargs)
        except IntarsiaError as error:
            raised = copy.copy(error)
        else:
            return
        raise raised

    return call
