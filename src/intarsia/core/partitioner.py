"""The partition of a row: the port, and the partitioner of a directory of Parquet files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from intarsia.common.partition_values import HIVE_NULL, escape, partition_text, unescape
from intarsia.common.partitions import hive_path, split_by_partition
from intarsia.core.file_table import Files
from intarsia.core.keys import arange

if TYPE_CHECKING:
    from intarsia.core.snapshot import DataFile


_ROW = "__row__"


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """One partition that rows go to."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """For people and paths."""
    tag: Any = None
    """The table's own value for the partition, copied to every file written for it; hashable."""

    @property
    def key(self) -> Any:
        """Identifies the partition, the same in every process: NaN equals NaN, and 0.0 differs from -0.0.

        The tag alone does neither: two NaN objects are not equal, and both zeros are.
        """
        return _to_bits_key(self.tag)


def _to_bits_key(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_to_bits_key, value))
    return value.hex() if isinstance(value, float) else value


class Partitioner(Protocol):
    """Decides which partition a row belongs to. A value: it pickles, and works in another process."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The top-level columns that decide."""

    @property
    def sorting(self) -> tuple[tuple[str, bool, bool], ...]:
        """The order that new files are written in: column, descending, NULLs first; none for none."""

    def partition_of(self, file: DataFile) -> PartitionKey:
        """The partition that a file of the table belongs to."""

    def is_old_spec(self, file: DataFile) -> bool:
        """Whether a file was written under an earlier partition spec than new files are."""

    def partition_rows(self, table: pa.Table) -> Sequence[tuple[PartitionKey, pa.Int64Array | None]]:
        """The partitions that rows of a table belong to, each with its rows ascending; None is all rows."""


@dataclass(frozen=True, slots=True)
class HivePartitioner:
    """Partitions as directories ``name=value``, one level for each column."""

    columns: tuple[str, ...] = ()
    sorting: tuple[tuple[str, bool, bool], ...] = ()

    def partition_of(self, file: DataFile) -> PartitionKey:
        """The directory that a file lies in; spellings of one partition are one."""
        directory = file.path.rpartition("/")[0]
        return PartitionKey(file.partition, make_partition_key(directory, file.partition) or directory)

    def is_old_spec(self, _file: DataFile) -> bool:
        """Directories have no earlier partitioning."""
        return False

    def partition_rows(self, table: pa.Table) -> Sequence[tuple[PartitionKey, pa.Int64Array | None]]:
        """Rows by the values of the partition columns."""
        if not self.columns:
            return [(PartitionKey(), None)]
        rows = table.select(list(self.columns)).append_column(_ROW, arange(table.num_rows))
        return [
            (
                PartitionKey(values, tuple(_make_part(n, v) for n, v in values.items())),
                part[_ROW].combine_chunks(),
            )
            for values, part in split_by_partition(rows, list(self.columns))
        ]


Key = tuple[str, ...]
"""A partition's directory in canonical spelling, part by part."""


@dataclass(frozen=True, slots=True)
class PartitionDirectories:
    """Directory names that differ from the canonical ones; a small value that pickles."""

    names: Mapping[Key, str] = field(default_factory=dict)
    """Names of directories that do not follow from the canonical spelling and the parent's name."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column to its spelling in directories."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Directories of a partition that has a larger directory, to that one, which is used."""

    @classmethod
    def of(cls, files: Files) -> PartitionDirectories:
        """The directories of some files; those that are no partition's do not count."""
        sizes: Counter[str] = Counter()
        keys: dict[str, Key] = {}
        for directory, values, rows in files.group_directories():
            keys[directory] = make_partition_key(directory, values) or ()
            sizes[directory] = rows
        return cls() if _is_canonical(keys) else _collect_directories(keys, sizes)

    def choose_directory(self, values: Mapping[str, Any], *, path: str | None = None) -> str:
        """The directory of a partition: the existing one, else a new one spelled like its siblings.

        Raises UnsafePath where a new one is needed, as :func:`~intarsia.common.partitions.hive_path` does.
        """
        key = tuple(_make_part(name, value) for name, value in values.items())
        for known in range(len(key), 0, -1):
            found = self.names.get(key[:known])
            if found is not None:
                rest = dict(list(values.items())[known:])
                return "/".join([found, *self._make_directory(rest, path)])
        return "/".join(self._make_directory(values, path))

    def _make_directory(self, values: Mapping[str, Any], path: str | None) -> list[str]:
        if not values:
            return []
        parts = hive_path(values, path=path).split("/")
        if not self.columns:
            return parts
        return [
            f"{self.columns.get(name, escape(name))}={part.partition('=')[2]}"
            for name, part in zip(values, parts, strict=True)
        ]


def make_partition_key(directory: str, partition: Mapping[str, Any]) -> Key | None:
    """The directory in canonical spelling; None where some part of it is no ``name=value``.

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
        key.append(_make_part(column, partition[column]))
    return tuple(key)


def _make_part(name: str, value: Any) -> str:
    """One part as hive_path spells it, also for values that hive_path refuses."""
    if value is None or (isinstance(value, pa.Scalar) and not value.is_valid):
        return f"{escape(name)}={HIVE_NULL}"
    try:
        return f"{escape(name)}={escape(partition_text(value))}"
    except (UnicodeError, pa.ArrowInvalid):  # no directory has such a name; a new one is refused
        return f"{escape(name)}\0"


def _is_canonical(keys: Mapping[str, Key]) -> bool:
    """Whether directories are called as we would call them."""
    return all("/".join(key) == directory for directory, key in keys.items()) and not _has_empty(keys)


def _has_empty(keys: Mapping[str, Key]) -> bool:
    """Whether some directory is that of the empty string."""
    return any(part.endswith("=") for key in keys.values() for part in key)


def _collect_directories(keys: Mapping[str, Key], sizes: Counter[str]) -> PartitionDirectories:
    columns = _find_column_names(keys, sizes)
    found: dict[Key, Counter[str]] = {}
    leaves: dict[Key, list[str]] = {}
    for directory, key in keys.items():
        leaves.setdefault(key, []).append(directory)
        parts = directory.split("/")
        for depth in range(1, len(key) + 1):
            above = found.setdefault(key[:depth], Counter())
            above["/".join(parts[:depth])] += sizes[directory]
    names: dict[Key, str] = {}
    aliases: dict[str, str] = {}
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
            aliases |= {directory: chosen for directory in leaves[key] if directory != chosen}
    return PartitionDirectories(names, columns, aliases)


def _find_column_names(keys: Mapping[str, Key], sizes: Counter[str]) -> dict[str, str]:
    """The spelling of each column in most directories, where it is not the canonical one."""
    spelled: dict[str, Counter[str]] = {}
    for directory, key in keys.items():
        if key:
            for part in directory.split("/"):
                name = part.partition("=")[0]
                spelled.setdefault(unescape(name), Counter())[name] += sizes[directory]
    usual = {column: min(names, key=lambda n: (-names[n], n)) for column, names in spelled.items()}
    return {column: name for column, name in usual.items() if name != escape(column)}
