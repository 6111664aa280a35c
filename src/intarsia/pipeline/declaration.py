"""The methods by which a Python module declares a pipeline, one source, target and step after the other.

They make what the keys of a pipeline file make; the values themselves are in model.
"""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

from intarsia.common.names import suggest_names
from intarsia.errors import InputError

__all__ = ["Declaration", "find_caller"]

F = TypeVar("F", bound=Callable[..., Any])
SourceLike = str | Callable[..., Any]
"""A source: its name, or the function that computes it."""


class Declaration(ABC):
    """What the methods of :class:`intarsia.pipeline.Pipeline` declare; each returns a name for later ones.

    Every other keyword is a key of a pipeline file, with the same meaning. ``${name}`` in a text is a
    parameter, and relative paths are relative to the module's file.
    """

    __slots__ = ()
    sources: Mapping[str, Any]
    targets: Mapping[str, Any]

    @abstractmethod
    def add_source(self, name: str, **keys: Any) -> str:
        """Declare a source of any kind by the keys of ``[sources.NAME]``; returns its name."""

    @abstractmethod
    def target(self, name: str, path: str | os.PathLike[str], **keys: Any) -> str:
        """Declare a target by the keys of ``[targets.NAME]``; returns its name."""

    @abstractmethod
    def add_step(self, operation: str, **keys: Any) -> None:
        """Declare a step by the keys of ``[[steps]]``."""

    # Sources

    def files(self, name: str, path: str | os.PathLike[str] | Sequence[str], **keys: Any) -> str:
        """Declare files as a source; ``columns``, ``derive``, ``where`` and the like as in a file."""
        return self.add_source(name, path=path, **keys)

    def stream(
        self,
        name: str,
        format: str,
        path: str | os.PathLike[str] | None = None,
        *,
        schema: str | Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        **keys: Any,
    ) -> str:
        """Declare a stream as a source; ``columns``, ``derive`` and ``where`` as in a file."""
        given = {"format": format, "path": path, "schema": schema, "options": options}
        given |= {"checkpoint": checkpoint}
        stream = {
            key: os.fspath(value) if isinstance(value, os.PathLike) else value
            for key, value in given.items()
            if value is not None
        }
        return self.add_source(name, stream=stream, **keys)

    def sql(
        self, name: str, query: str | None = None, *, file: str | os.PathLike[str] | None = None, **keys: Any
    ) -> str:
        """Declare a query as a source: its text, or the file that has it."""
        return self.add_source(name, sql=query, sql_file=file, **keys)

    @overload
    def source(self, function: F, /) -> F: ...

    @overload
    def source(self, /, **keys: Any) -> Callable[[F], F]: ...

    def source(self, function: F | None = None, /, **keys: Any) -> F | Callable[[F], F]:
        """Declare a function as a source of its name, as a decorator, with or without keys.

        Its parameters name sources, targets, parameters of the pipeline, or the session. The function itself
        stays what it is.

        Raises:
            InputError: it is no function at the top of a file.
        """

        def declare(given: F) -> F:
            self.add_source(given.__name__, python=describe_function(given), **keys)
            return given

        return declare if function is None else declare(function)

    # Steps

    def merge(
        self, source: SourceLike, into: str | os.PathLike[str], *, on: str | Sequence[str], **keys: Any
    ) -> str:
        """Declare a merge of a source into a target, which is a name or a path; returns the target's name."""
        target = self._find_target(into)
        self.add_step("merge", source=name_source(source), target=target, on=on, **keys)
        return target

    def write(self, source: SourceLike, into: str | os.PathLike[str], **keys: Any) -> str:
        """Declare that a source is appended to a target, or replaces rows of it by ``mode``."""
        target = self._find_target(into)
        self.add_step("write", source=name_source(source), target=target, **keys)
        return target

    def delete(self, target: str | os.PathLike[str], where: str, **keys: Any) -> None:
        """Declare that the rows of a condition are deleted."""
        self.add_step("delete", target=self._find_target(target), where=where, **keys)

    def update(
        self, target: str | os.PathLike[str], set: Mapping[str, Any], where: str | None = None, **keys: Any
    ) -> None:
        """Declare that columns are assigned, of the rows of a condition or of all."""
        self.add_step("update", target=self._find_target(target), set=set, where=where, **keys)

    def compact(self, target: str | os.PathLike[str], **keys: Any) -> None:
        """Declare that small files are brought together."""
        self.add_step("compact", target=self._find_target(target), **keys)

    def optimize(self, target: str | os.PathLike[str], by: str | Sequence[str], **keys: Any) -> None:
        """Declare that rows are ordered along columns."""
        self.add_step("optimize", target=self._find_target(target), by=by, **keys)

    def deduplicate(self, target: str | os.PathLike[str], **keys: Any) -> None:
        """Declare that one row per key stays."""
        self.add_step("deduplicate", target=self._find_target(target), **keys)

    def expect(self, of: SourceLike, **keys: Any) -> None:
        """Declare what must be true of a source or of a target; a quarantine is a name or a path."""
        if keys.get("quarantine") is not None:
            keys["quarantine"] = self._find_target(keys["quarantine"])
        name = name_source(of)
        if name in self.sources and name in self.targets:
            raise InputError(f"{name!r} is a source and a target.", hint="rename one of them.")
        if name in self.sources or callable(of):
            self.add_step("expect", source=name, **keys)
        else:
            self.add_step("expect", target=self._find_target(name), **keys)

    def _find_target(self, given: str | os.PathLike[str]) -> str:
        """The name of a target; a path that is none yet is declared, under the name of its last part."""
        text = os.fspath(given)
        if text in self.targets:
            return text
        if "/" not in text and os.sep not in text:
            hint = f'declare it as target("{text}", path), or give its path, as in "lake/{text}".'
            raise InputError(
                f"there is no target {text!r}.",
                hint=suggest_names([text], sorted(self.targets), otherwise=hint),
            )
        known = [name for name, target in self.targets.items() if target.path == text]
        if known:
            return known[0]
        name = text.rstrip("/").rpartition("/")[2]
        if name in self.targets:
            raise InputError(
                f"the target {name!r} is {self.targets[name].path}, not {text}.",
                hint=f'give this one a name: target("other_{name}", "{text}").',
            )
        return self.target(name, text)


def name_source(source: SourceLike) -> str:
    """The name of a source that is given by its name or its function."""
    return source if isinstance(source, str) else source.__name__


def describe_function(function: Callable[..., Any]) -> str:
    """``file.py:function`` of a function. Raises InputError where it is none at the top of a file."""
    plain = inspect.unwrap(function)
    is_at_top = inspect.isfunction(plain) and plain.__qualname__.isidentifier()
    if not is_at_top:
        raise InputError(f"{plain!r} is no function at the top of a file.", hint="make it a def there.")
    path = plain.__code__.co_filename
    if not path.endswith(".py") or not os.path.isfile(path):
        raise InputError(
            f"the function {plain.__name__!r} is in no file, which executors and the state need.",
            hint="put it into a module beside the pipeline.",
        )
    return f"{path}:{plain.__name__}"


def find_caller() -> tuple[str | None, int]:
    """The file and line outside of this package that is declaring something; None for what is no file."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("intarsia.pipeline."):
        frame = frame.f_back
    if frame is None or not os.path.isfile(frame.f_code.co_filename):
        return None, 0
    return frame.f_code.co_filename, frame.f_lineno
