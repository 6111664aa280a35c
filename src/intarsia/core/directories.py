"""The directories that partitions of a dataset have: used under the names their writers gave them.

Writers escape differently: ``city=New York`` of Spark is ``city=New%20York`` of DuckDB, PyArrow and Polars,
and DuckDB escapes the names of columns, too. To each of them it is one partition; here it is one directory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from intarsia.common.partition_values import HIVE_NULL, escape, partition_text, unescape
from intarsia.common.partitions import hive_path
from intarsia.core.files import DataFile

Key = tuple[str, ...]
"""A directory as we would name it, part by part: the same for every spelling of a partition."""


@dataclass(frozen=True, slots=True)
class PartitionDirectories:
    """How directories are named, where that is not how we would name them; small, so that it can travel."""

    names: Mapping[Key, str] = field(default_factory=dict)
    """Directories whose name does not follow from ours and that of the directory above."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column to its spelling in directories."""
    twins: Mapping[str, str] = field(default_factory=dict)
    """Directories of a partition that has a larger one, which is the one to use."""

    @classmethod
    def of(cls, files: Iterable[DataFile]) -> PartitionDirectories:
        """The directories that some files lie in; those that are no partitions' do not count."""
        sizes: Counter[str] = Counter()
        keys: dict[str, Key] = {}
        for file in files:
            directory = file.path.rpartition("/")[0]
            if directory not in keys:
                key = partition_key(directory, file.partition)
                keys[directory] = () if key is None else key
            sizes[directory] += file.rows
        if all("/".join(key) == directory for directory, key in keys.items()) and not _has_empty(keys):
            return cls()
        return _collected(keys, sizes)

    def directory(self, values: Mapping[str, Any], *, path: str | None = None) -> str:
        """The directory of a partition: the one that is there, else a new one beside its like.

        Raises UnsafePath where a new one is needed, as :func:`~intarsia.common.partitions.hive_path` does.
        """
        key = tuple(_part(name, value) for name, value in values.items())
        for known in range(len(key), 0, -1):
            found = self.names.get(key[:known])
            if found is not None:
                rest = dict(list(values.items())[known:])
                return "/".join([found, *self._new(rest, path)])
        return "/".join(self._new(values, path))

    def _new(self, values: Mapping[str, Any], path: str | None) -> list[str]:
        if not values:
            return []
        parts = hive_path(values, path=path).split("/")
        if not self.columns:
            return parts
        return [
            f"{self.columns.get(name, escape(name))}={part.partition('=')[2]}"
            for name, part in zip(values, parts, strict=True)
        ]


def partition_key(directory: str, partition: Mapping[str, Any]) -> Key | None:
    """The directory as we would name it; None where some part of it is no ``name=value``.

    Args:
        directory: below the root; "" is the root itself.
        partition: the typed values that the directory stands for.
    """
    if not directory:
        return ()
    key = []
    for part in directory.split("/"):
        name, equals, _ = part.partition("=")
        column = unescape(name)
        if not (name and equals) or column not in partition:
            return None
        key.append(_part(column, partition[column]))
    return tuple(key)


def _part(name: str, value: Any) -> str:
    """As hive_path names it, also a value that it refuses because other readers could not tell it."""
    if value is None or (isinstance(value, pa.Scalar) and not value.is_valid):
        return f"{escape(name)}={HIVE_NULL}"
    try:
        return f"{escape(name)}={escape(partition_text(value))}"
    except (UnicodeError, pa.ArrowInvalid):  # no directory has such a name; a new one is refused
        return f"{escape(name)}\0"


def _has_empty(keys: Mapping[str, Key]) -> bool:
    """Whether a directory stands for the empty string, which some writers give one of its own."""
    return any(part.endswith("=") for key in keys.values() for part in key)


def _collected(keys: Mapping[str, Key], sizes: Counter[str]) -> PartitionDirectories:
    columns = _column_names(keys, sizes)
    found: dict[Key, Counter[str]] = {}
    leaves: dict[Key, list[str]] = {}
    for directory, key in keys.items():
        leaves.setdefault(key, []).append(directory)
        parts = directory.split("/")
        for depth in range(1, len(key) + 1):
            above = found.setdefault(key[:depth], Counter())
            above["/".join(parts[:depth])] += sizes[directory]
    names: dict[Key, str] = {}
    twins: dict[str, str] = {}
    derived: dict[Key, str] = {(): ""}
    for key in sorted(found, key=len):
        candidates = {name: found[key][name] for name in leaves.get(key, found[key])}
        chosen = min(candidates, key=lambda name: (-candidates[name], name))
        column, _, text = key[-1].partition("=")
        expected = f"{derived[key[:-1]]}/{columns.get(unescape(column), column)}={text}".lstrip("/")
        derived[key] = chosen
        if chosen != expected or not text:
            names[key] = chosen
        if key in leaves:
            twins |= {directory: chosen for directory in leaves[key] if directory != chosen}
    return PartitionDirectories(names, columns, twins)


def _column_names(keys: Mapping[str, Key], sizes: Counter[str]) -> dict[str, str]:
    """How each column is spelled in most of the directories, where that is not our way."""
    spelled: dict[str, Counter[str]] = {}
    for directory, key in keys.items():
        if key:
            for part in directory.split("/"):
                name = part.partition("=")[0]
                spelled.setdefault(unescape(name), Counter())[name] += sizes[directory]
    usual = {column: min(names, key=lambda n: (-names[n], n)) for column, names in spelled.items()}
    return {column: name for column, name in usual.items() if name != escape(column)}
