"""The modules beside a file that it imports: found without running it, and imported from the text found."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from intarsia.errors import InputError

__all__ = [
    "LocalImports",
    "LocalModule",
    "describe_lines",
    "find_local_modules",
    "parse_module",
    "read_text_file",
]


OnLoad = Callable[[ModuleType], None]


@dataclass(frozen=True, slots=True)
class LocalModule:
    """A module in the directory of a file, or in a package there."""

    name: str
    """As it is imported."""
    path: str
    text: bytes


def read_text_file(path: str) -> bytes:
    """The bytes of a file of UTF-8 text. Raises InputError."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        data.decode("utf-8")
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}.", path=path) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.", path=path) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error}.", path=path) from error
    return data


def parse_module(path: str, text: bytes) -> ast.Module:
    """The syntax tree of a Python file. Raises InputError with the line."""
    try:
        return ast.parse(text, path)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 0
        said = getattr(error, "msg", None) or str(error)
        shown = os.path.basename(path)
        raise InputError(f"{shown}, line {line}: it is not Python: {said}.", path=path) from error


def find_local_modules(path: str, text: bytes) -> tuple[LocalModule, ...]:
    """The modules of the file's own directory that it imports, also through others, sorted by name.

    Imports are found wherever they are in the code. Names of the standard library never mean local files.

    Raises:
        InputError: one of them is not Python, or cannot be read.
    """
    directory = os.path.dirname(path)
    found: dict[str, LocalModule] = {}
    left = [("", path, text)]
    while left:
        package, where, code = left.pop()
        for name in _list_imports(parse_module(where, code), package):
            for module in _find_modules(directory, name):
                if module.name not in found:
                    found[module.name] = module
                    is_package = os.path.basename(module.path) == "__init__.py"
                    inner = module.name if is_package else module.name.rpartition(".")[0]
                    left.append((inner, module.path, module.text))
    return tuple(found[name] for name in sorted(found))


def check_imports(path: str, text: bytes, modules: Iterable[LocalModule] = ()) -> None:
    """Check that what a file and its modules import at their top is installed; nothing is run.

    Raises:
        InputError: a package is not there, with the file and line.
    """
    local = {module.name.partition(".")[0] for module in modules}
    for where, code in ((path, text), *((module.path, module.text) for module in modules)):
        for node in parse_module(where, code).body:
            if isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            else:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in names:
                root = name.partition(".")[0]
                if root not in local and not _is_installed(root):
                    raise InputError(
                        f"{os.path.basename(where)}, line {node.lineno}: there is no module {root!r}.",
                        path=where,
                        hint=f"install it, or put {root}.py beside the file.",
                    )


def _is_installed(name: str) -> bool:
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # found, and odd: importing it tells
        return True


def _list_imports(module: ast.Module, package: str) -> Iterator[str]:
    """The names that may be modules in the imports of a module, with all their parts."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if package else []
                base = ".".join([*above, *([base] if base else [])])
            if base:
                yield base
            yield from (f"{base}.{one.name}" if base else one.name for one in node.names if one.name != "*")


def _find_modules(directory: str, name: str) -> Iterator[LocalModule]:
    """The module of a name and the packages around it, as far as they are files of the directory."""
    parts = name.split(".")
    if parts[0] in sys.stdlib_module_names:
        return
    for number in range(1, len(parts) + 1):
        place = os.path.join(directory, *parts[:number])
        own = ".".join(parts[:number])
        package = os.path.join(place, "__init__.py")
        if os.path.isfile(package):
            yield LocalModule(own, package, read_text_file(package))
        elif os.path.isfile(f"{place}.py"):
            yield LocalModule(own, f"{place}.py", read_text_file(f"{place}.py"))
        elif number < len(parts) and os.path.isfile(os.path.join(place, f"{parts[number]}.py")):
            yield LocalModule(own, package, b"")  # a package without a file of its own
        else:
            return


class TextLoader(importlib.abc.SourceLoader):
    """Imports a file from the text that was read and checked; writes no bytecode."""

    def __init__(self, path: str, text: bytes, on_load: OnLoad | None = None) -> None:
        self._path = path
        self._text = text
        self._on_load = on_load

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: Any) -> bytes:
        return self._text

    def exec_module(self, module: ModuleType) -> None:
        if self._on_load is not None:
            self._on_load(module)
        super().exec_module(module)

    def __reduce__(self) -> tuple[Any, ...]:
        return TextLoader, (self._path, self._text)  # a module that is pickled has its loader


class _TextFinder(importlib.abc.MetaPathFinder):
    def __init__(self, modules: Iterable[LocalModule], on_load: OnLoad | None) -> None:
        self._modules = {module.name: module for module in modules}
        self._on_load = on_load

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        found = self._modules.get(fullname)
        if found is None:
            return None
        loader = TextLoader(found.path, found.text, self._on_load)
        return importlib.util.spec_from_loader(fullname, loader, origin=found.path)


@dataclass(slots=True)
class LocalImports:
    """Lets code import local modules from their texts, in blocks; outside of them nothing of it is seen.

    Modules of the same names that are imported already are out of the way meanwhile.
    """

    modules: tuple[LocalModule, ...]
    on_load: OnLoad | None = None
    """Called with each module before it is run."""
    loaded: dict[str, ModuleType] = field(default_factory=dict)

    def run_file(self, name: str, path: str, text: bytes) -> ModuleType:
        """A module of a name of its own, made by running a text; it is left in ``sys.modules``."""
        loader = TextLoader(path, text, self.on_load)
        spec = importlib.util.spec_from_loader(name, loader, origin=path)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        module.__file__ = path  # by which a file finds others beside it
        sys.modules[name] = module
        with self.activate():
            loader.exec_module(module)
        return module

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Let imports in the block find the local modules."""
        names = {module.name for module in self.modules}
        hidden = _take_out(names)
        sys.modules.update(self.loaded)
        finder = _TextFinder(self.modules, self.on_load)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            self.loaded.update(_take_out(names))
            sys.modules.update(hidden)


def describe_lines(error: BaseException, path: str, modules: Iterable[LocalModule] = ()) -> str:
    """Where in a file an error comes from, and where in a local module it was raised; empty for neither."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one.lineno for one in frames if one.filename == path]
    local = {module.path for module in modules}
    last = next((one for one in reversed(frames) if one.filename == path or one.filename in local), None)
    told = f", line {own[-1]}" if own else ""
    if last is not None and last.filename != path:
        told += f" ({os.path.basename(last.filename)}, line {last.lineno})"
    return told


def _take_out(names: Iterable[str]) -> Mapping[str, ModuleType]:
    return {name: sys.modules.pop(name) for name in names if name in sys.modules}
