"""The files of a table at one moment, as plain values; nothing here opens a file."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.int96 import check_instants, find_int96_columns, read_int96
from intarsia.common.partitions import (
    PARTITION_SCHEMA_KEY,
    parse_hive_partition_path,
    parse_partition,
    partition_text,
)
from intarsia.common.python_values import make_scalar
from intarsia.common.requests import find_base
from intarsia.common.schema import find_common_type
from intarsia.common.store_access import FindAccess
from intarsia.common.types import get_value_type, rewrite_type
from intarsia.core import render
from intarsia.core.file_table import Files, FileTuple
from intarsia.core.partitioner import HivePartitioner, Partitioner
from intarsia.errors import CommitConflict, DamagedTable, IntarsiaError, NotSupported, StorageError

if TYPE_CHECKING:
    import pyarrow.dataset as ds

    from intarsia.core.layout import Layout
    from intarsia.core.ports import FileScanTask


@dataclass(frozen=True, slots=True)
class DataFile:
    """One data file as a table lists it.

    ``path`` names it inside the table (relative to the root, ``/`` between parts); ``location`` is
    where its bytes are right now on the snapshot's file system (they differ while a commit is being
    published). ``partition`` holds typed values of the partition columns that are known for this
    file: None is NULL, an absent column is unknown and never prunes.
    """

    path: str
    location: str
    size: int
    rows: int
    partition: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: tuple[Any, ...] = ()
    footer: pq.FileMetaData | None = field(default=None, compare=False, repr=False)
    tag: Any = field(default=None, compare=False, repr=False)
    """The table's own note on the file (an Iceberg table keeps its manifest entry here)."""
    scan_task: FileScanTask | None = field(default=None, compare=False, repr=False)
    """How the file is read, where its columns are found by id and its rows may be deleted; ``rows`` then
    leaves out the deleted ones as far as they are known without reading."""

    @property
    def record_count(self) -> int:
        """The rows that have a position in the file, deleted ones included."""
        return self.rows if self.scan_task is None else self.scan_task.record_count


@dataclass(frozen=True, slots=True)
class TableFormat:
    """What differs between kinds of tables, each by its name; the default is a directory of Parquet files."""

    replaces_in_place: bool = True
    """Whether a rewritten file takes the name of the old one. Otherwise files are never replaced: rows are
    copied into new files, which are written where they stay."""
    owns_schema: bool = False
    """Whether the table has a schema and a partition spec of its own, also without files."""
    ordered_by_commit: bool = False
    """Whether the snapshot lists files in the order they were committed, rather than by their names."""
    keeps_row_ids: bool = False
    """Whether rows have an identity that they keep when they are copied."""
    merge_on_read: Mapping[str, bool] = field(default_factory=dict)
    """By operation: whether deleted rows are named in delete files, instead of their file being rewritten."""
    partitioner: Partitioner | None = None
    """Of a table with a partition spec; that of a directory follows from its partition columns."""
    layout: Layout | None = None
    """How new files are laid out, where the table says so."""
    target_bytes: int | None = None
    """About how large new files are to be, where the table says so."""


DIRECTORY = TableFormat()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent state of a table.

    ``schema`` is the schema of the whole dataset: the files' columns unified, then the partition
    columns that live in paths only. ``partition_columns`` are in directory order, outermost first.
    """

    root: str
    """The path in the form the caller gave; results show files below it."""
    files: Files
    """In the table's order; where there are many, as columns."""
    schema: pa.Schema
    partition_columns: tuple[str, ...]
    filesystem: pafs.FileSystem = field(repr=False)
    exists: bool = True
    """False when there is no such directory yet; True with no files is an empty dataset."""
    version: int = 0
    """Number of the last commit known to the table's log."""
    notes: tuple[str, ...] = ()
    """Sentences for the plan, such as that another writer seems to be active."""
    owner_error: str | None = None
    """What the root is part of, as a predicate, where files have to be changed under another root."""
    unwritable: IntarsiaError | None = field(default=None, compare=False, repr=False)
    """Why the table can be read only."""
    unstored: tuple[str, ...] = ()
    """Columns of the schema that no file may hold: they are NULL in every row."""
    uniform: bool = True
    """True when every file has exactly the dataset's file schema."""
    stat: StatFile | None = field(default=None, compare=False, repr=False)
    """Returns the fingerprint at a file's location now; None where files never change once written."""
    format: TableFormat = field(default=DIRECTORY, compare=False, repr=False)
    """What the table can do and asks for, beyond being a set of files."""
    details: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Details of the table's kind, for people: a word and its values."""
    side_files: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Files of other writers that describe data files (such as ``_metadata``), by path."""
    model: pq.FileMetaData | None = field(default=None, compare=False, repr=False)
    """The footer of a former file, in a dataset that has no file left."""
    footer_loader: Callable[[Sequence[DataFile]], Sequence[DataFile]] | None = field(
        default=None, compare=False, repr=False
    )
    """Gives back files with their footers, where a snapshot is taken without them."""
    find_access: FindAccess | None = field(default=None, compare=False, repr=False)
    """How an engine may read the files by itself; None where it reads them through the file system only."""

    @property
    def has_schema(self) -> bool:
        """Whether the schema is the table's own, and not yet to be taken from the first rows."""
        return bool(self.files) or self.format.owns_schema or bool(self.schema.names)

    @property
    def replaces_in_place(self) -> bool:
        return self.format.replaces_in_place

    @property
    def partitioner(self) -> Partitioner:
        """Which partition a row or a file belongs to."""
        return self.format.partitioner or HivePartitioner(self.partition_columns)

    def with_files(self, files: Iterable[DataFile] = ()) -> Snapshot:
        """The same table with these files only; its schema stays."""
        return replace(self, files=FileTuple(files))

    def without_files(self) -> Snapshot:
        """The same table without files and schema, for an operation that decides both itself."""
        return replace(self, files=FileTuple(), schema=pa.schema([]), partition_columns=(), model=None)

    @property
    def model_footer(self) -> pq.FileMetaData | None:
        """The footer of the file that new ones are like; None where there is none."""
        models = self.files.list_models()
        return next((file.footer for file in models if file.footer is not None), self.model)

    @property
    def rows(self) -> int:
        return self.files.total_rows

    @property
    def footer_bytes(self) -> int:
        """The size of all footers, as far as they are known."""
        return self.files.footer_bytes

    def with_footers(self, files: Sequence[DataFile]) -> Snapshot:
        """The same state, with the footers and exact row counts of some files."""
        assert self.footer_loader is not None
        return replace(self, files=self.files.with_known(self.footer_loader(files)))

    @property
    def size(self) -> int:
        return self.files.total_bytes

    def sort_files(self, files: Iterable[DataFile]) -> list[DataFile]:
        """Files in order, which decides between rows with equal keys.

        By path; in a table that is ordered by commit, in the snapshot's order.
        """
        if not self.format.ordered_by_commit:
            return sorted(files, key=lambda file: file.path)
        places = {path: place for place, path in enumerate(self.files.paths.to_pylist())}
        return sorted(files, key=lambda file: places.get(file.path, len(places)))

    @property
    def file_schema(self) -> pa.Schema:
        """The columns a new file stores: all but the partition columns that live in its path."""
        names = [n for n in self.schema.names if n not in self.partition_columns]
        return pa.schema([self.schema.field(n) for n in names], self.schema.metadata)

    def show_path(self, file: DataFile | str) -> str:
        """A file's path in the form the caller gave the root."""
        path = file if isinstance(file, str) else file.path
        if not self.replaces_in_place:  # its files have full paths
            return path
        return f"{self.root.rstrip('/')}/{path}"

    def dataset(self) -> ds.FileSystemDataset:
        """Exactly these files as a pyarrow dataset: columns, filters and batches are pyarrow's own.

        One consistent state, however late and however long it is read: the files are opened here and
        stay open until the dataset and its scanners are gone, so that a commit that replaces or removes
        one changes nothing. On a store other than a local file system they are opened when they are
        scanned, and a file that is replaced meanwhile may be met. Memory is pyarrow's. INT96 columns are
        instants; where nothing tells in which unit they are exact, they are read through here once.

        Raises:
            CommitConflict: a file was replaced or removed since the snapshot was taken.
            NotSupported: there are more files than half of those the process may have open, or the table
                is not what its files hold, or an INT96 value is beyond its unit; the hint says what to do.
        """
        if not self.replaces_in_place:  # deleted rows and columns found by id are beyond a dataset
            raise NotSupported(
                "The files of an Iceberg table are not its rows: deletes and columns by id are apart.",
                path=self.root,
                hint="stream it with intarsia.read(table).",
            )
        import pyarrow.dataset as ds  # brings pandas along, which nothing else here needs

        formats = [
            ds.ParquetFileFormat(coerce_int96_timestamp_unit=self._choose_int96_unit(f)) for f in self.files
        ]
        opened = open_files(self)
        filesystem = find_base(self.filesystem)  # what its reader sends is nobody's operation
        fragments = []
        for number, (file, parquet) in enumerate(zip(self.files, formats, strict=True)):
            place = self._make_partition_expression(file)
            if opened is None:
                fragment = parquet.make_fragment(file.location, filesystem, partition_expression=place)
            else:
                fragment = parquet.make_fragment(opened[number], partition_expression=place)
            fragments.append(fragment)
        return ds.FileSystemDataset(fragments, self.schema, ds.ParquetFileFormat(), filesystem)

    def _choose_int96_unit(self, file: DataFile) -> str:
        """The unit in which pyarrow reads INT96 columns of a file exactly."""
        known = None if file.footer is None else read_int96(file.footer)
        if known is None:
            return "us"
        if known.legacy or not known.proven:
            check_instants(file.location, self.filesystem, shown=self.show_path(file))
        return known.unit

    def _make_partition_expression(self, file: DataFile) -> ds.Expression:
        place = pc.scalar(True)
        for name, value in file.partition.items():
            dtype = self.schema.field(name).type
            known = pc.field(name).is_null() if value is None else pc.field(name) == make_scalar(value, dtype)
            place = place & known
        return place

    def __repr__(self) -> str:
        return render.render_text(self)

    def _repr_html_(self) -> str:
        return render.render_html(self)


StatFile = Callable[[str], tuple[Any, ...] | None]
"""The fingerprint of the file at a location as it is now, or None when there is none."""

_USUAL_LIMIT = 1024


def open_files(snapshot: Snapshot) -> list[pa.NativeFile] | None:
    """The snapshot's files, open: an open file stays what it is when a commit puts another in its place.

    None where files never change (``stat`` is None), or where the file system is not local.

    Raises:
        CommitConflict: a file was replaced or removed since the snapshot was taken.
        NotSupported: there are more files than half of those the process may have open.
    """
    if snapshot.stat is None or not isinstance(snapshot.filesystem, pafs.LocalFileSystem):
        return None
    most = open_limit() // 2
    if len(snapshot.files) > most:
        raise NotSupported(
            f"{snapshot.root} has {len(snapshot.files)} files, of which {most} may be open at once.",
            path=snapshot.root,
            hint="use read_parquet, or the dataset of ParquetTable(path).materialise(), which keeps links"
            " instead, or raise the limit of open files (ulimit -n)",
        )
    return [_open_file(snapshot, file) for file in snapshot.files]


def open_limit() -> int:
    """How many files this process may have open."""
    try:
        import resource
    except ImportError:  # not a Unix
        return _USUAL_LIMIT
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _open_file(snapshot: Snapshot, file: DataFile) -> pa.NativeFile:
    try:
        found = snapshot.filesystem.open_input_file(file.location)
    except FileNotFoundError as error:
        raise _make_conflict(snapshot, file) from error
    except OSError as error:
        raise StorageError(
            f"Could not open {snapshot.show_path(file)}: {error.strerror or error}",
            errno=error.errno or errno.EIO,
            path=snapshot.root,
        ) from error
    # Checked after opening: while its name still stands for the file of the snapshot, that was opened.
    try:
        check_same(snapshot, file)
    except CommitConflict:
        found.close()
        raise
    return found


def check_same(snapshot: Snapshot, file: DataFile) -> None:
    """Raise CommitConflict where another file has taken the place of one of the snapshot."""
    if snapshot.stat is not None and file.fingerprint and snapshot.stat(file.location) != file.fingerprint:
        raise _make_conflict(snapshot, file)


def _make_conflict(snapshot: Snapshot, file: DataFile) -> CommitConflict:
    return CommitConflict(
        f"{snapshot.show_path(file)} was replaced or removed since the snapshot was taken.",
        path=snapshot.root,
        hint="take a snapshot again; read_parquet does so by itself",
    )


# Columns that an operation sees in another type: partition columns that stand in paths only, where a source
# knows better than their text, and INT96 columns that become timestamps.


def retype(snapshot: Snapshot, types: pa.Schema) -> Snapshot:
    """The snapshot with its partition values read as ``types`` says; other columns stay.

    Raises:
        DamagedTable: a directory's text is no value of the type.
    """
    path_columns = [name for name in snapshot.partition_columns if name in types.names]
    fields = [
        field.with_type(get_value_type(types.field(field.name).type)) if field.name in path_columns else field
        for field in snapshot.schema
    ]
    schema = pa.schema(fields, snapshot.schema.metadata)
    files = snapshot.files.map_partitions(lambda path: _parse_path(path, schema))
    return replace(snapshot, schema=schema, files=files)


def _parse_path(path: str, schema: pa.Schema) -> dict[str, Any]:
    return parse_partition(parse_hive_partition_path(path), schema, path=path)


def with_target_types(source: pa.Schema, snapshot: Snapshot) -> Snapshot:
    """The snapshot with the source's types for partition columns whose own is only a guess.

    A directory ``day=2025-01-01`` of a dataset that does not say is taken for a date. Rows that come
    with ``day`` as text then decide that it is text, as long as every directory reads back as itself.
    """
    names = [
        name
        for name in snapshot.partition_columns
        if name in source.names and _has_clash(name, source, snapshot)
    ]
    guessed = [name for name in names if not _is_declared(name, snapshot)]
    if not guessed:
        return snapshot
    types = pa.schema([source.field(name) for name in guessed])
    try:
        read = retype(snapshot, types)
    except DamagedTable:  # a text that is no such value: the guess stands
        return snapshot
    for path, partition in read.files.list_partitions():
        texts = parse_hive_partition_path(path, guessed)
        if any(text is not None and partition_text(partition[name]) != text for name, text in texts.items()):
            return snapshot
    return read


def with_microseconds(snapshot: Snapshot) -> Snapshot:
    """The snapshot with columns that are INT96 in every file in microseconds, to which they are converted.

    Whether the values fit is known when they are read.
    """
    if snapshot.format.owns_schema:
        nothing = 'int96="convert" has no meaning here: an Iceberg table has no INT96 columns of its own.'
        return replace(snapshot, notes=(*snapshot.notes, nothing))
    footers = [file.footer for file in snapshot.files.list_kinds() if file.footer is not None]
    known = {name for footer in footers for name in find_int96_columns(footer.schema)}
    note = (
        f"Of the columns {', '.join(name for name in snapshot.schema.names if name in known)}, what is INT96"
        " becomes TIMESTAMP(MICROS) in UTC in the files that are written; other files keep it."
        if known
        else 'int96="convert" finds nothing to do: no file has an INT96 column.'
    )
    for footer in footers:
        known -= set(footer.schema.to_arrow_schema().names) - find_int96_columns(footer.schema)
    fields = [
        f.with_type(rewrite_type(f.type, _to_micros)) if f.name in known else f for f in snapshot.schema
    ]
    schema = pa.schema(fields, snapshot.schema.metadata)
    return replace(snapshot, schema=schema, notes=(*snapshot.notes, note))


def _to_micros(dtype: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", dtype.tz) if pa.types.is_timestamp(dtype) else dtype


def _has_clash(name: str, source: pa.Schema, snapshot: Snapshot) -> bool:
    theirs, ours = (get_value_type(schema.field(name).type) for schema in (source, snapshot.schema))
    return find_common_type(theirs, ours) is None


def _is_declared(name: str, snapshot: Snapshot) -> bool:
    """Whether the column's type is declared: in a file's metadata, by a file that holds it, or in the log."""
    if not snapshot.files:
        return True
    footers = (file.footer for file in snapshot.files.list_kinds() if file.footer is not None)
    return any(
        PARTITION_SCHEMA_KEY in (footer.metadata or {}) or name in footer.schema.names for footer in footers
    )
