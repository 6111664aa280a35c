"""What there is to look at: tables below a directory or in a catalog, and reports; writes nothing."""

from __future__ import annotations

import hashlib
import os
import posixpath
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import pyarrow as pa
import pyarrow.fs as pafs

from intarsia.common.lazy import import_optional
from intarsia.common.log import redact
from intarsia.common.paths import redact_path
from intarsia.common.system import parse_file_url
from intarsia.core.ports import Table
from intarsia.errors import InputError, IntarsiaError, NothingMatched, StorageError
from intarsia.pipeline.reports.live import is_live_name
from intarsia.pipeline.reports.run_index import is_report_name
from intarsia.request import open_iceberg
from intarsia.storage import open_storage
from intarsia.tables.parquet import ParquetTable
from intarsia.tables.parquet.listing import is_data_name, is_hidden

__all__ = ["Contents", "Lake", "ReportDirectory", "TableRef", "open_lake", "stamp_path"]

MOST_DIRECTORIES = 5_000
"""Maximum directories that are looked into for tables."""
MOST_TABLES = 2_000
MOST_DEPTH = 10
MOST_NAMES = 20_000
"""Maximum names of one directory that are looked at."""
FRESH = 3.0
"""Seconds for which a list of tables is used again."""
MOST_OPEN = 16
"""Tables that stay open, with what is known of their files."""
CATALOG_FILE = "catalog.db"
_ICEBERG = "intarsia.tables.iceberg.catalog"
_OTHER_LOGS = ("_delta_log", ".hoodie")


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table by its name, in parts: directories below the root, or namespaces and the name in a catalog."""

    parts: tuple[str, ...]
    catalog: tuple[str, ...] | None = None
    """Of an Iceberg table: the warehouse, as directories below the root; empty for the lake's own catalog."""
    catalog_name: str = ""
    """Of an Iceberg table of a warehouse: its catalog, of which one file may hold several."""

    @property
    def is_iceberg(self) -> bool:
        return self.catalog is not None

    @property
    def title(self) -> str:
        """As people write it; empty for the root itself."""
        return ".".join(self.parts) if self.is_iceberg else "/".join(self.parts)

    @property
    def place(self) -> str:
        """The warehouse and the catalog that an Iceberg table is in, where that is not the lake's own."""
        return " · ".join(filter(None, ("/".join(self.catalog or ()), self.catalog_name)))

    @property
    def query(self) -> str:
        """The query of a URL that names it, in ASCII, whatever bytes are in the names."""
        if self.catalog is None:
            named = [("path", part) for part in self.parts]
        else:
            named = [("at", part) for part in self.catalog] + [("table", part) for part in self.parts]
            named += [("catalog", self.catalog_name)] if self.catalog_name else []
        return "&".join(f"{key}={quote(part, safe='', errors='surrogateescape')}" for key, part in named)

    @staticmethod
    def parse(query: str) -> TableRef:
        """The table that a query names; whether there is one is not looked at."""
        asked = _parse_query(query)
        if "of" in asked:  # a form gives the whole query in one field, for fields cannot hold any bytes
            asked = _parse_query(asked["of"][-1])
        if "table" in asked:
            named = asked.get("catalog", [""])[-1]
            return TableRef(tuple(asked["table"]), tuple(asked.get("at", ())), named)
        return TableRef(tuple(asked.get("path", ())))


def _parse_query(query: str) -> dict[str, list[str]]:
    asked: dict[str, list[str]] = {}
    for key, value in parse_qsl(query, keep_blank_values=True, errors="surrogateescape"):
        asked.setdefault(key, []).append(value)
    return asked


@dataclass(frozen=True, slots=True)
class ReportDirectory:
    """A directory with reports of pipelines."""

    path: Path
    title: str

    @property
    def key(self) -> str:
        """Its name in a URL, which says nothing of where it is."""
        return hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Contents:
    """What was found in a lake."""

    tables: tuple[TableRef, ...] = ()
    reports: tuple[ReportDirectory, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _OpenTable:
    """A table that stays open between requests; one request at a time looks at it."""

    table: Table | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True)
class Lake:
    """A directory, a URL or a catalog, with the tables in it."""

    title: str
    root: str | None = None
    """The path or URL of the directory; None for a catalog."""
    catalog: Any = None
    """The catalog of PyIceberg, if the lake is one."""
    extra_reports: tuple[Path, ...] = ()
    _found: tuple[float, Contents] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: OrderedDict[TableRef, _OpenTable] = field(default_factory=OrderedDict)

    def list_contents(self) -> Contents:
        """Its tables and reports, as of a few seconds ago at most.

        Raises:
            StorageError: the root or the catalog cannot be listed.
        """
        with self._lock:
            if self._found is None or time.monotonic() - self._found[0] > FRESH:
                self._found = (time.monotonic(), self._look())
            return self._found[1]

    @property
    def is_cheap_to_list(self) -> bool:
        """Whether it may be listed again every few seconds: a store is asked, and paid, by the request."""
        return self.root is not None and "://" not in self.root

    def list_report_paths(self) -> tuple[Path, ...]:
        """The directories with reports; a store is not listed for them, for it has none."""
        if not self.is_cheap_to_list:
            return self.extra_reports
        return tuple(found.path for found in self.list_contents().reports)

    def find_reports(self, key: str) -> ReportDirectory:
        """A directory of reports by its key. Raises NothingMatched."""
        for found in self.list_contents().reports:
            if found.key == key:
                return found
        raise NothingMatched("There is no such directory of reports.")

    @contextmanager
    def open_table(self, ref: TableRef) -> Iterator[Table]:
        """The table of a name; others wait while it is looked at.

        Raises:
            InputError: a name that leads elsewhere, or no such table in a catalog.
            NotSupported: PyIceberg is not installed.
        """
        with self._lock:
            opened = self._open.pop(ref, None) or _OpenTable()
            self._open[ref] = opened
            while len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
        with opened.lock:
            if opened.table is None:  # only those who want this one wait for its catalog or store
                opened.table = self._open_new(ref)
            yield opened.table

    def _open_new(self, ref: TableRef) -> Table:
        if ref.catalog is None:
            if self.root is None:
                raise InputError("There are no paths in a catalog.")
            return ParquetTable(_join(self.root, ref.parts))
        if not ref.parts:
            raise InputError("A table of a catalog has a name.")
        if not ref.catalog and self.catalog is not None:
            return open_iceberg(ref.parts, self.catalog)
        iceberg = import_optional(_ICEBERG)
        warehouse = Path(self._find_warehouse(ref.catalog))
        return open_iceberg(
            ref.parts, iceberg.open_to_read(warehouse, ref.catalog_name or iceberg.CATALOG_NAME)
        )

    def _find_warehouse(self, parts: tuple[str, ...]) -> str:
        if self.root is None or "://" in self.root:
            raise InputError("There is no warehouse below a URL or in a catalog.")
        return _join(self.root, parts)

    def stamp(self, ref: TableRef) -> str:
        """Changes when a commit is made, as far as a look at two directories tells; empty where none can."""
        if self.root is None or not self.is_cheap_to_list:
            return ""
        if ref.catalog is not None:
            places = [f"{self._find_warehouse(ref.catalog)}/{CATALOG_FILE}"]
        else:
            path = _join(self.root, ref.parts)
            places = [
                path,
                posixpath.join(posixpath.dirname(path), f".{posixpath.basename(path)}.intarsia/log"),
            ]
        return " ".join(map(stamp_path, places))

    # Looking for tables

    def _look(self) -> Contents:
        given = tuple(ReportDirectory(path, str(path)) for path in self.extra_reports)
        if self.root is None:
            found = islice(import_optional(_ICEBERG).list_tables(self.catalog), MOST_TABLES)
            return Contents(tuple(TableRef(identifier, ()) for identifier in found), given)
        search = _Search(self.root, reports=list(given))
        search.go()
        return Contents(
            tuple(sorted(search.tables, key=lambda ref: (ref.is_iceberg, ref.title))),
            tuple(search.reports),
            tuple(search.notes),
        )


@dataclass(slots=True)
class _Search:
    """A look through directories, from the top, with limits; symbolic links are not followed."""

    root: str
    reports: list[ReportDirectory]
    tables: list[TableRef] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warehouses: set[tuple[str, ...]] = field(default_factory=set)
    filesystem: pafs.FileSystem | None = None
    base: str = ""

    def go(self) -> None:
        if "://" in self.root:
            storage, self.base = open_storage(self.root)
            self.filesystem = storage.filesystem
        waiting: deque[tuple[str, ...]] = deque([()])
        looked = 0
        while waiting:
            if looked == MOST_DIRECTORIES or len(self.tables) >= MOST_TABLES:
                self.notes.append(
                    f"There may be more: the search stopped after {looked:,} directories and"
                    f" {len(self.tables):,} tables. Name a directory further down."
                )
                return
            parts = waiting.popleft()
            looked += 1
            try:
                found = self._list(parts)
            except (OSError, pa.ArrowException, StorageError) as error:
                if not parts:
                    raise StorageError(
                        f"Cannot list {redact_path(self.root)}: {redact(str(error))}",
                        errno=getattr(error, "errno", None),
                        path=redact_path(self.root),
                    ) from error
                self.notes.append(f"{'/'.join(parts)} cannot be listed: {redact(str(error))}")
                continue
            below = self._sort_out(parts, found)
            if len(parts) < MOST_DEPTH:
                waiting.extend((*parts, name) for name in below)

    def _sort_out(self, parts: tuple[str, ...], found: dict[str, bool]) -> list[str]:
        """Note what a directory is; returns the names of those below it that may hold tables."""
        if self.filesystem is None and any(is_report_name(name) or is_live_name(name) for name in found):
            path = Path(_join(self.root, parts))
            if all(path != known.path for known in self.reports):
                self.reports.append(ReportDirectory(path, "/".join(parts) or str(path)))
        if self.filesystem is None and found.get(CATALOG_FILE) is False:
            try:
                self.tables += _list_warehouse(Path(_join(self.root, parts)), parts)
                self.warehouses.add(parts)
            except IntarsiaError as error:
                self.notes.append(f"The catalog in {'/'.join(parts) or '.'} cannot be read: {error}")
        if found.get("metadata") and any(parts[:depth] in self.warehouses for depth in range(len(parts))):
            return []  # the directory of a table of that catalog, or of one that was dropped
        if _is_dataset(found):
            self.tables.append(TableRef(parts))
            return []
        known = [name[1 : -len(".intarsia")] for name in found if _is_control(name)]
        self.tables += [TableRef((*parts, name)) for name in known if found.get(name)]
        return sorted(
            name for name, is_dir in found.items() if is_dir and not is_hidden(name) and name not in known
        )

    def _list(self, parts: tuple[str, ...]) -> dict[str, bool]:
        """The names in a directory, and whether each is a directory."""
        if self.filesystem is not None:
            selector = pafs.FileSelector("/".join((self.base, *parts)))
            infos = self.filesystem.get_file_info(selector)[:MOST_NAMES]
            return {info.base_name: info.type == pafs.FileType.Directory for info in infos}
        with os.scandir(_join(self.root, parts)) as entries:
            return {one.name: one.is_dir(follow_symlinks=False) for one in islice(entries, MOST_NAMES)}


def _is_control(name: str) -> bool:
    return name.startswith(".") and name.endswith(".intarsia") and len(name) > len("..intarsia")


def _is_dataset(found: dict[str, bool]) -> bool:
    """Whether a directory holds rows: data files, partitions, or the log of a table format."""
    if any(found.get(name) for name in _OTHER_LOGS) or (found.get("metadata") and found.get("data")):
        return True
    if any(not is_dir and is_data_name(name) for name, is_dir in found.items()):
        return True
    below = [name for name, is_dir in found.items() if is_dir and not is_hidden(name)]
    return bool(below) and all("=" in name for name in below)


def _list_warehouse(warehouse: Path, place: tuple[str, ...]) -> Iterator[TableRef]:
    iceberg = import_optional(_ICEBERG)
    for name, identifier in iceberg.list_stored_tables(warehouse)[:MOST_TABLES]:
        yield TableRef(identifier, place, "" if name == iceberg.CATALOG_NAME else name)


def _join(root: str, parts: tuple[str, ...]) -> str:
    """A path below the root; no part of it can lead anywhere else.

    Raises:
        InputError: a part that is no plain name, or a symbolic link on the way.
    """
    for part in parts:
        if part in ("", ".", "..") or "/" in part or "\x00" in part or (os.sep != "/" and os.sep in part):
            raise InputError(f"{part!r} is not the name of a directory.")
    path = root
    for part in parts:
        path = f"{path.rstrip('/')}/{part}"
        if "://" not in root and os.path.islink(path):
            raise InputError(f"{'/'.join(parts)} is behind a symbolic link, which is not followed.")
    return path


def stamp_path(path: str | Path) -> str:
    """Changes when a file does, or when one is added to a directory, removed or replaced."""
    try:
        found = os.stat(path)
    except OSError:
        return "-"
    return f"{found.st_mtime_ns}.{found.st_size}"


def open_lake(place: str, *, reports: tuple[str, ...] = ()) -> Lake:
    """The lake of a directory, a URL, or the name of a catalog that PyIceberg is configured with.

    Args:
        place: a directory is taken before a catalog of the same name.
        reports: further directories of reports.

    Raises:
        NothingMatched: there is neither a directory nor a catalog of this name.
        InputError, StorageError: the catalog cannot be opened.
    """
    extra = tuple(Path(path).expanduser().resolve() for path in reports)
    for path in extra:
        if not path.is_dir():
            raise NothingMatched(f"There is no directory {path}.", path=str(path), hint="check --reports.")
    if place.startswith("file:"):  # a directory, whose links are not followed either
        place = parse_file_url(place)
    if "://" in place:
        open_storage(place)
        return Lake(redact_path(place), place.rstrip("/"), extra_reports=extra)
    directory = Path(place).expanduser()
    if directory.is_dir():
        found = directory.resolve()
        return Lake(found.name or str(found), str(found), extra_reports=extra)
    if "/" in place or directory.exists():
        raise NothingMatched(f"There is no directory {place}.", path=place, hint="check the path.")
    return Lake(
        f"catalog {place}", catalog=import_optional(_ICEBERG).open_catalog(place), extra_reports=extra
    )
