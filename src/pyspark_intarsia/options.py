"""Options of the format: texts that Spark hands over, as arguments and options of the library."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from intarsia import api
from intarsia.common.names import find_near_names
from intarsia.engines.spark.tasks import leave_missing_directory
from intarsia.errors import InputError
from intarsia.options import ICEBERG_OPTIONS, KEYWORDS, FrameOptions, TableTarget

__all__ = ["ReadCall", "WriteCall", "parse_read_options", "parse_write_options"]

_OF_SPARK = frozenset(("checkpointlocation", "location", "owner", "provider", "queryname"))
"""Options that Spark adds by itself: of a table in its catalog, and of a stream."""
_COLUMNS = ("on", "dedup_order_by", "except_columns", "partition_by", "schema_evolution")
_MERGE_TEXTS = ("strategy", "clauses", "null_keys")
_WRITE_TEXTS = ("where",)
_BOTH_TEXTS = ("missing", "engine")
_OBJECTS = frozenset(
    ("filesystem", "lock", "progress", "measured_bytes", "columns", "tasks", "broadcast_bytes")
)
"""Options of the library that no text can say, or that nothing follows here."""
_DICTS = ("properties", "storage_options")
OVERWRITE = "partitionoverwritemode"
MAX_BYTES = 1 << 30
"""Maximum bytes of staged rows, as Arrow, that the driver's Python commits without ``max_bytes``."""


@dataclass(frozen=True, slots=True)
class ReadCall:
    """What a query reads."""

    target: TableTarget
    columns: tuple[str, ...] = ()
    where: str | None = None
    tasks: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WriteCall:
    """What is written where; pickles, and opens the table anew in each process."""

    path: str
    catalog: str | None
    arguments: Mapping[str, Any]
    """Of :func:`intarsia.merge` where there are keys, else of :func:`intarsia.write`."""
    max_bytes: int = MAX_BYTES
    spool_dir: str | None = None

    @property
    def merges(self) -> bool:
        return "on" in self.arguments

    def open_target(self) -> TableTarget:
        """The path of a dataset, or the Iceberg table that a catalog has under the name."""
        return _open_target(self.path, self.catalog)

    def run(self, source: Any, **more: Any) -> Any:
        """Merge or write the rows; the result of the operation."""
        operation: Callable[..., Any] = api.merge if self.merges else api.write
        return operation(source, self.open_target(), **self.arguments, progress=False, **more)


def _open_target(path: str, catalog: str | None) -> TableTarget:
    leave_missing_directory()  # each of a query's steps has a worker of its own
    return path if catalog is None else api.iceberg(path, catalog=catalog)


def parse_read_options(given: Mapping[str, str]) -> ReadCall:
    """Options of ``spark.read``. Raises InputError for one that is unknown, or has no such value."""
    own = ("columns", "where", "tasks")
    every = sorted(set(get_type_hints(FrameOptions)) - {"filesystem", "tasks"})
    texts = _select(given, ("path", "catalog", *own, *every), "reading")
    path, catalog = _parse_place(texts)
    return ReadCall(
        _open_target(path, catalog),
        _parse_names(texts["columns"]) if "columns" in texts else (),
        texts.get("where"),
        _parse_number("tasks", texts.get("tasks", "0")),
        {name: _parse(name, texts[name]) for name in every if name in texts},
    )


def parse_write_options(given: Mapping[str, str], *, overwrite: bool) -> WriteCall:
    """Options of ``df.write``. Raises InputError for one that is unknown, or does not go with the mode."""
    merges = "on" in given
    takes = "merge" if merges else "write"
    library = [n for n, one in KEYWORDS.items() if {"merge", "write"} & one.operations and n not in _OBJECTS]
    own = ("path", "catalog", "max_bytes", OVERWRITE)
    arguments = (*_COLUMNS, *_MERGE_TEXTS, *_WRITE_TEXTS, *_BOTH_TEXTS)
    texts = _select(given, (*own, *arguments, *library), "writing")
    path, catalog = _parse_place(texts)
    _check_together(texts, overwrite=overwrite)
    found: dict[str, Any] = {}
    for name, text in texts.items():
        if name in own or name == "spool_dir":
            continue
        if name in library and takes not in KEYWORDS[name].operations:
            raise InputError(f"the option {name} goes with a merge, and no option on was given.")
        found[name] = _parse_argument(name, text)
    if found.get("engine", "auto") not in ("auto", "arrow", "duckdb"):
        raise InputError(
            f"engine must be auto, arrow or duckdb here, it is {found['engine']!r}.",
            hint="the driver commits without a session; intarsia.merge(df, target, on=...) runs on Spark.",
        )
    if not merges:
        dynamic = _parse_overwrite(texts) == "dynamic"
        found["mode"] = ("overwrite_partitions" if dynamic else "overwrite") if overwrite else "append"
    return WriteCall(
        path if catalog is not None or "://" in path else os.path.abspath(path),
        catalog,
        found,
        _parse_number("max_bytes", texts.get("max_bytes", str(MAX_BYTES))),
        texts.get("spool_dir"),
    )


def _check_together(texts: Mapping[str, str], *, overwrite: bool) -> None:
    merges = "on" in texts
    if merges and overwrite:
        raise InputError(
            'the option on merges rows, and mode("overwrite") replaces them.',
            hint='use mode("append") with on, or leave on out.',
        )
    stray = [
        n for n in (*_COLUMNS, *_MERGE_TEXTS) if n in texts and n not in ("partition_by", "schema_evolution")
    ]
    if stray and not merges:
        raise InputError(
            f"the option {', '.join(stray)} goes with a merge, and no option on was given.",
            hint='name the key columns, such as option("on", "id").',
        )
    if (OVERWRITE in texts or "where" in texts) and not overwrite:
        name = "partitionOverwriteMode" if OVERWRITE in texts else "where"
        raise InputError(f'the option {name} goes with mode("overwrite").')
    if texts.get("mode") and not merges:
        raise InputError("the option mode says how an Iceberg table deletes rows, and goes with a merge.")


def _parse_overwrite(texts: Mapping[str, str]) -> str:
    said = texts.get(OVERWRITE, "static").lower()
    if said not in ("static", "dynamic"):
        raise InputError(f"partitionOverwriteMode must be static or dynamic, it is {said!r}.")
    return said


def _select(given: Mapping[str, str], known: tuple[str, ...], doing: str) -> dict[str, str]:
    """The options without those of Spark's own; raises InputError for one that is not known."""
    texts = {name.lower(): text for name, text in given.items() if name.lower() not in _OF_SPARK}
    if "paths" in texts:
        raise InputError("one path is needed, and several were given.", hint="a table is one directory.")
    for name in texts:
        if name not in known:
            near = find_near_names(name, known) or find_near_names(name.replace("by", "_by"), known)
            every = ", ".join(sorted(known))
            raise InputError(
                f"there is no option {name!r} for {doing} the format intarsia.",
                hint=f"did you mean {' or '.join(near)}?" if near else f"options are {every}.",
            )
    return texts


def _parse_place(texts: Mapping[str, str]) -> tuple[str, str | None]:
    path, catalog = texts.get("path", ""), texts.get("catalog")
    if not path.strip():
        raise InputError(
            "a path is needed.",
            hint="load(path) or save(path) names the dataset, or with the option catalog an Iceberg table;"
            " of a table that was made with USING intarsia Spark 4.1 tells no path.",
        )
    if catalog is None:
        if path.startswith("file:/") and not path.startswith("file://"):
            path = path.removeprefix("file:")  # as a table of Spark's catalog has it
        stray = [name for name in ICEBERG_OPTIONS if name in texts]
        if stray:
            raise InputError(
                f"the option {', '.join(stray)} goes with an Iceberg table.",
                hint='name its catalog: option("catalog", ...), and the table as the path.',
            )
    return path, catalog


def _parse_argument(name: str, text: str) -> Any:
    if name in _COLUMNS:
        return text if name == "schema_evolution" or (name == "on" and "=" in text) else _parse_names(text)
    return _parse(name, text) if name in KEYWORDS and name != "engine" else text


def _parse_names(text: str) -> tuple[str, ...]:
    """Names of columns: ``a, b``, or a list in JSON where a name has a comma."""
    if text.lstrip().startswith("["):
        found = _parse_json("columns", text, list)
        if all(isinstance(name, str) for name in found):
            return tuple(found)
        raise InputError(f"names of columns must be texts, not {text!r}.")
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise InputError(f"names of columns are needed, such as 'id, day', not {text!r}.")
    return names


def _parse(name: str, text: str) -> Any:
    """A text as a value of the option's type."""
    if name in _DICTS:
        return _parse_json(name, text, dict)
    kinds = _list_kinds(KEYWORDS[name].type)
    if bool in kinds:
        if text.lower() not in ("true", "false"):
            raise InputError(f"{name} must be true or false, it is {text!r}.")
        return text.lower() == "true"
    if float in kinds or int in kinds:
        return _parse_number(name, text, float if float in kinds else int)
    return text


def _list_kinds(hint: Any) -> set[Any]:
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return {str if get_origin(part) is Literal else part for part in parts}


def _parse_number(name: str, text: str, kind: Callable[[str], Any] = int) -> Any:
    try:
        number = kind(text)
    except ValueError:
        raise InputError(f"{name} must be a number, it is {text!r}.") from None
    if number < 0:
        raise InputError(f"{name} must be a number that is not negative, it is {text!r}.")
    return number


def _parse_json(name: str, text: str, kind: type) -> Any:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, kind):
        shape = '{"name": "value"}' if kind is dict else '["a", "b"]'
        raise InputError(f"{name} must be JSON such as {shape}, it is {text[:40]!r}.")
    return found
