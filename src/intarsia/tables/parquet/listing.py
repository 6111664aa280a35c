"""Which files below a root are data files: the one listing every engine uses; no footer is read here."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.names import join_names
from intarsia.common.paths import LOGS, METADATA, find_sign, make_table_error
from intarsia.errors import DamagedTable, InputError, UnsafePath
from intarsia.storage import FileEntry, Storage
from intarsia.tables.parquet.entries import MANY_FILES, EntryCollector, EntryTable, sort_entries

_ACTIVE = "Another writer seems to be active"
_JOURNAL = re.compile(r"((?:[^/]+/)*)\.([^/]+)\.intarsia")
"""The control directory beside a dataset, and the dataset's directory and name in it."""
_IN_BUCKET = re.compile(r"_\d{5}\.c\d{3}\.[^/]*\Z")
"""How Spark ends the name of a file of a bucket, such as ``part-00000-<uuid>_00003.c000.snappy.parquet``."""
_APART = "which has a journal and a lock of its own"


@dataclass(frozen=True, slots=True)
class Listing:
    """The data files below a root, sorted by path, with sentences on what else was found."""

    entries: Sequence[FileEntry]
    exists: bool
    notes: tuple[str, ...] = ()
    owner_error: str | None = None
    """Whose the files are, as a predicate of the root, where datasets lie below it or around it."""
    side_files: Mapping[str, FileEntry] = field(default_factory=dict)
    """What other writers keep beside the data files to describe them, by path."""


def make_sibling_path(root: str) -> str:
    """Where the control directory of a dataset is by default."""
    parent, name = posixpath.split(root)
    if not name or (not parent.strip("/") and not root.startswith("/")):
        raise InputError(
            f"{root or '/'} has no directory beside it for the journal.",
            path=root,
            hint="name a control directory on the same store with control_path=",
        )
    return f"{parent.rstrip('/')}/.{name}.intarsia"


def is_hidden(name: str) -> bool:
    """Whether readers skip a directory or file of this name; ``_name=value`` is a partition."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def is_data_path(path: str) -> bool:
    """Whether a path below the root is a data file's by its name alone."""
    *directories, name = path.split("/")
    return is_data_name(name) and not any(map(is_hidden, directories))


def list_data_files(storage: Storage, root: str, *, names_only: bool = False) -> Listing:
    """List the data files below ``root``. Reads names and sizes only; one stat per file.

    With ``names_only`` entries may lack sizes and fingerprints, and there is no stat.

    Raises:
        InputError: the root is a file.
        NotSupported: the directory belongs to a table format, whose log decides which files count.
        UnsafePath: a data file or a directory is a symbolic link.
        DamagedTable: a data file is empty.
    """
    found = storage.stat(root)
    if found is None:
        return Listing((), exists=False, owner_error=_find_dataset_above(storage, root))
    if found.kind != "directory":
        raise InputError(
            f"{root} is a {found.kind}; a dataset is a directory of Parquet files.",
            path=root,
            hint="name the directory that holds the files",
        )
    _refuse_part_of_table(storage, root)
    found_files = _FoundFiles(root)
    odd: list[FileEntry] = []
    for entry in storage.walk(root, lambda name: not is_hidden(name), names_only=names_only):
        path = entry.path
        if entry.kind == "file" and is_data_name(path[path.rfind("/") + 1 :]):
            found_files.add(entry)
        else:
            odd.append(entry)
    files = found_files.build()
    _refuse_table(root, odd)
    _refuse_ducklake(root, files.list_paths("ducklake-"))
    for entry in odd:
        if _may_hold_data(entry):
            raise _make_unsafe_error(root, entry)
    found_files.refuse_undecodable()
    staged = _find_duckdb_staging(files)
    if not names_only and (empty := files.find_empty(staged)) is not None:
        raise _make_empty_error(root, empty)
    others = _find_datasets_below(odd, files) or _find_dataset_above(storage, root)
    sides = {e.path: e for e in odd if e.kind == "file" and is_side_name(posixpath.basename(e.path))}
    return Listing(
        files.leave_out(staged),
        exists=True,
        notes=_make_notes(odd, staged, bucketed=any(map(_IN_BUCKET.search, files.list_paths(".c0")))),
        owner_error=others,
        side_files=sides,
    )


class _FoundFiles:
    """The data files that a walk finds, until all are known."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._collected = EntryCollector()
        self._undecodable: list[str] = []

    def add(self, entry: FileEntry) -> None:
        if not entry.path.isascii() and not _is_decodable(entry.path):
            self._undecodable.append(entry.path)
        else:
            self._collected.add(entry)

    def refuse_undecodable(self) -> None:
        for path in sorted(self._undecodable):
            shown = path.encode("utf-8", "backslashreplace").decode()
            raise UnsafePath(
                f"The name {shown} below {self._root} is no UTF-8 text.",
                path=self._root,
                hint="rename the file or directory",
            )

    def build(self) -> _FewEntries | _ManyEntries:
        if len(self._collected) < MANY_FILES:
            few = {entry.path: entry for entry in self._collected.few}
            return _FewEntries(tuple(few[path] for path in sorted(few)))
        return _ManyEntries(sort_entries(self._collected.build()))


def _is_decodable(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _FewEntries:
    """Entries sorted by path."""

    entries: tuple[FileEntry, ...]

    def list_paths(self, text: str) -> list[str]:
        """The paths in which a text is."""
        return [entry.path for entry in self.entries if text in entry.path]

    def find(self, paths: Sequence[str]) -> set[str]:
        """Those of some paths that are here."""
        return {entry.path for entry in self.entries}.intersection(paths)

    def has_below(self, directory: str) -> bool:
        """Whether one is below a directory."""
        return any(entry.path.startswith(f"{directory}/") for entry in self.entries)

    def find_empty(self, out: Collection[str]) -> FileEntry | None:
        """The first without bytes, some paths left out."""
        return next((entry for entry in self.entries if entry.size == 0 and entry.path not in out), None)

    def leave_out(self, paths: Collection[str]) -> tuple[FileEntry, ...]:
        return tuple(entry for entry in self.entries if entry.path not in paths)


@dataclass(frozen=True, slots=True)
class _ManyEntries:
    """The same as columns; see :class:`_FewEntries`."""

    entries: EntryTable

    def list_paths(self, text: str) -> list[str]:
        paths = self.entries.paths
        return list(paths.filter(pc.match_substring(paths, text)).to_pylist())

    def find(self, paths: Sequence[str]) -> set[str]:
        wanted = pa.array(paths, pa.string())
        return set(wanted.filter(pc.is_in(wanted, value_set=self.entries.paths)).to_pylist())

    def has_below(self, directory: str) -> bool:
        return bool(pc.any(pc.starts_with(self.entries.paths, f"{directory}/")).as_py())

    def find_empty(self, out: Collection[str]) -> FileEntry | None:
        numbers = pc.indices_nonzero(pc.equal(self.entries.sizes, 0)).to_pylist()
        empty = (self.entries[number] for number in numbers)
        return next((entry for entry in empty if entry.path not in out), None)

    def leave_out(self, paths: Collection[str]) -> Sequence[FileEntry]:
        if not paths:
            return self.entries
        out = pc.is_in(self.entries.paths, value_set=pa.array(list(paths), pa.string()))
        return EntryTable(self.entries.table.filter(pc.invert(out)).combine_chunks())


def _may_hold_data(entry: FileEntry) -> bool:
    """Whether something that is no data file would be taken for one, or for a directory of them."""
    name = posixpath.basename(entry.path)
    is_gone = entry.identity == "missing" and "=" in name  # a partition, on what is not mounted
    if entry.kind == "symlink" and (entry.identity == "directory" or is_gone):
        return not is_hidden(name)
    return entry.kind != "directory" and is_data_name(name)


def _make_unsafe_error(root: str, entry: FileEntry) -> UnsafePath:
    what = "a symbolic link" if entry.kind == "symlink" else "not a regular file"
    return UnsafePath(
        f"{root}/{entry.path} is {what}; replacing it would not replace what it stands for.",
        path=f"{root}/{entry.path}",
        hint="move the real file or directory into the dataset",
    )


def _make_empty_error(root: str, entry: FileEntry) -> DamagedTable:
    return DamagedTable(
        f"{root}/{entry.path} is empty (0 bytes), so it is not a Parquet file.",
        path=f"{root}/{entry.path}",
        hint="remove it, or restore it from where it was copied",
    )


def _find_duckdb_staging(files: _FewEntries | _ManyEntries) -> set[str]:
    """DuckDB replaces ``x.parquet`` through ``tmp_x.parquet`` beside it."""
    replaced = {}
    for path in files.list_paths("tmp_"):
        directory, name = posixpath.split(path)
        if name.startswith("tmp_"):
            replaced[path] = posixpath.join(directory, name[4:])
    there = files.find(list(replaced.values())) if replaced else set()
    return {path for path, target in replaced.items() if target in there}


def _make_notes(odd: Sequence[FileEntry], staged: set[str], *, bucketed: bool) -> tuple[str, ...]:
    notes = [
        f"{_ACTIVE}: {path} looks like a file it is writing, and is left out." for path in sorted(staged)
    ]
    for entry in odd:
        name = posixpath.basename(entry.path)
        if name == "_temporary" or name.startswith(".spark-staging"):
            notes.append(f"{_ACTIVE}: its staging directory {entry.path} is left out.")
        elif name == "_spark_metadata":
            notes.append(
                "A Spark streaming sink wrote here; Spark reads only the files named in _spark_metadata."
            )
        elif entry.kind == "file" and is_summary(entry.path):
            notes.append(f"{entry.path} describes the files as they are; a change removes it.")
    if bucketed:
        notes.append(
            "Spark has written these files in buckets, which it knows by their names: by its name it does not"
            " read such a table with files of other names, nor find rows whose bucket columns change; by its"
            " path it does."
        )
    return tuple(sorted(set(notes)))


def _find_datasets_below(odd: Sequence[FileEntry], files: _FewEntries | _ManyEntries) -> str | None:
    """Whether there are whole datasets below the root."""
    journals = (_JOURNAL.fullmatch(entry.path) for entry in odd)
    names = sorted({f"{found[1]}{found[2]}" for found in journals if found})
    inner = [name for name in names if files.has_below(name)]
    if not inner:
        return None
    each = "each with a journal and a lock of its own" if inner[1:] else _APART
    return f"is no dataset, but above {join_names(inner)}, {each}"


def _find_dataset_above(storage: Storage, root: str) -> str | None:
    """Whether the root is a partition of a dataset."""
    above, name = posixpath.split(root)
    while posixpath.dirname(above) and above.strip("/") and "=" in name:
        if storage.stat(f"{make_sibling_path(above)}/log") is not None:
            return f"is a part of the dataset {above}, {_APART}"
        above, name = posixpath.split(above)
    return None


def _refuse_table(root: str, odd: Sequence[FileEntry]) -> None:
    for entry in odd:
        kind = find_sign(entry.path, directory=entry.kind == "directory")
        if kind is not None:
            raise make_table_error(root, entry.path, kind)


def _refuse_ducklake(root: str, paths: Iterable[str]) -> None:
    for path in paths:
        if (kind := find_sign(path, directory=False)) is not None:
            raise make_table_error(root, path, kind)


def _refuse_part_of_table(storage: Storage, root: str) -> None:
    """Refuse the data directory or a partition of a table whose log is further up."""
    above, name = posixpath.split(root)
    while above.strip("/") and ("=" in name or name == "data"):
        for log, kind in LOGS.items():
            if storage.stat(f"{above}/{log}") is not None:
                raise make_table_error(root, f"../{log}", kind, part=True)
        if any(found.endswith(METADATA) for found in storage.names(f"{above}/metadata")):
            raise make_table_error(root, "../metadata", "Iceberg", part=True)
        above, name = posixpath.split(above)


SUMMARIES = ("_metadata", "_common_metadata")
_SUFFIXES = (".parquet", ".parq")
_HIDING = (".", "_")


def is_data_name(name: str) -> bool:
    """Whether a file of this name is a data file."""
    return name[:1] not in _HIDING and (name.endswith(_SUFFIXES) or name.lower().endswith(_SUFFIXES))


def is_summary(path: str) -> bool:
    return posixpath.basename(path) in SUMMARIES


def find_described_name(name: str) -> str | None:
    """The file that a checksum file is about, by its name alone; None where it is no such file."""
    if name.startswith(".") and name.endswith(".crc"):
        inner = name[1:-4]
        if is_data_name(inner) or inner in SUMMARIES:
            return inner
    return None


def is_side_name(name: str) -> bool:
    return name in SUMMARIES or find_described_name(name) is not None


def make_checksum_path(path: str) -> str:
    """Where Hadoop keeps the checksum of a file."""
    directory, name = posixpath.split(path)
    return posixpath.join(directory, f".{name}.crc")


def list_outdated(changed: Collection[str], found: Mapping[str, FileEntry]) -> list[FileEntry]:
    """The side files that would be wrong once the files at these paths have changed; sorted by path.

    Args:
        changed: paths of data files that are added, replaced or removed.
        found: the side files that are there, by path.
    """
    if not found:
        return []
    summaries = _list_summaries(changed).intersection(found)
    described = [*changed, *summaries]
    ended = summaries | {make_checksum_path(path) for path in described}.intersection(found)
    return [found[path] for path in sorted(ended)]


def stat_side_files(storage: Storage, root: str, changed: Collection[str]) -> dict[str, FileEntry]:
    """The side files that describe these data files, as a listing has them; one stat for each that may be."""
    summaries = _list_summaries(changed)
    found = {}
    for path in (*summaries, *map(make_checksum_path, (*changed, *summaries))):
        entry = storage.stat(f"{root}/{path}")
        if entry is not None and entry.kind == "file":
            found[path] = replace(entry, path=path)
    return found


def _list_summaries(changed: Collection[str]) -> set[str]:
    """Where a summary of these data files may be."""
    above = {directory for path in changed for directory in _iterate_above(path)}
    return {posixpath.join(directory, name) for directory in above for name in SUMMARIES}


def _iterate_above(path: str) -> Iterator[str]:
    """The directories above a path, the root ("") last."""
    while path:
        path = posixpath.dirname(path)
        yield path


def make_removal_notes(removed: Iterable[str]) -> tuple[str, ...]:
    """What to say of side files that a commit removed: summaries are somebody's, checksums come and go."""
    summaries = sorted(path for path in removed if is_summary(path))
    if not summaries:
        return ()
    return (f"Removed {', '.join(summaries)}: the files are no longer what was described there.",)
