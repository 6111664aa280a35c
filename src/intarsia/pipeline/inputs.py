"""Sources of files and targets: listing them, and their rows as Spark DataFrames or Arrow streams."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.fs as pafs

from intarsia.common.formats import (
    SUFFIXES,
    Format,
    detect_file_format,
    is_json_array,
    open_stream,
    parse_partition_scalars,
    read_csv_file,
    unify_text_types,
)
from intarsia.common.log import redact
from intarsia.common.names import suggest_names
from intarsia.common.paths import InputFile, find_input_files
from intarsia.core.snapshot import Snapshot
from intarsia.errors import ColumnNotFound, InputError, NothingMatched, NotSupported, StorageError
from intarsia.kernel.read import SnapshotScan
from intarsia.pipeline.model import Source, list_names
from intarsia.pipeline.row_transform import (
    RowTransform,
    parse_derivations,
    parse_source_filter,
    parse_type_name,
)

_REMOTE = re.compile(r"^(?!file:|local:)[A-Za-z][A-Za-z0-9+.-]+://")
_PORTABLE = ("delimiter", "null_value")
_OPEN_FILES = 64


@dataclass(frozen=True, slots=True)
class FileStamp:
    """A file as it was when it was listed."""

    path: str
    size: int
    mtime_ns: int
    """Modification time; of a file from the web, which may have none, a digest of its bytes."""

    def as_list(self) -> list[Any]:
        return [self.path, self.size, self.mtime_ns]


@dataclass(frozen=True, slots=True)
class InputFiles:
    """The files of a source, listed once in a run."""

    stamps: tuple[FileStamp, ...]
    files: tuple[InputFile, ...] = ()
    """The files where this process can read them; empty where Spark reads them by their paths."""
    fetched: bool = False
    """Whether they were downloaded: only this process can read them."""
    parts: Mapping[str, InputFiles] = field(default_factory=dict)
    """Of a computed source: the files of each source that it reads, whose stamps these are."""
    code: tuple[FileStamp, ...] = ()
    """Of a computed source: its query or function, whose changes count as those of a file do."""

    @property
    def taken(self) -> tuple[FileStamp, ...]:
        """The files that are in the target once a step is done: none where rows are computed of them."""
        return () if self.code else self.stamps

    def without(self, known: Iterable[FileStamp]) -> InputFiles:
        """The files that are not known, by path, size and time."""
        old = set(known)
        kept = [number for number, stamp in enumerate(self.stamps) if stamp not in old]
        return InputFiles(
            tuple(self.stamps[number] for number in kept),
            tuple(self.files[number] for number in kept) if self.files else (),
            self.fetched,
        )


def count_inputs(name: str, listing: InputFiles) -> dict[str, tuple[int, int]]:
    """The files and bytes of each source of files that a source takes, which may be itself."""
    parts = listing.parts if listing.code else {name: listing}
    return {one: (len(part.stamps), sum(stamp.size for stamp in part.stamps)) for one, part in parts.items()}


def list_inputs(source: Source, web: Downloads, session: Callable[[], Any] | None = None) -> InputFiles:
    """List a source's files; a file that several of its paths name counts once.

    With a Spark session (opened only where needed), URLs of stores are listed by Spark, which will read them.
    Files from the web are downloaded.

    Raises:
        NothingMatched: a path without a file.
        StorageError, NotSupported: the store cannot be listed.
    """
    suffixes = SUFFIXES[source.format] if source.format else _list_suffixes()
    files: dict[str, InputFile] = {}
    remote: list[FileStamp] = []
    fetched: dict[str, tuple[InputFile, int]] = {}
    for path in list_names(source.path):
        if is_web(path):
            fetched[path] = web.fetch(path)
        elif session is not None and _REMOTE.match(path):
            remote += _list_by_spark(path, session())
        else:
            files |= {file.location: file for file in find_input_files(path, suffixes=suffixes)}
    if sum(map(bool, (files, remote, fetched))) > 1:
        raise InputError("A source has files of one kind of place.", hint="make several sources of it.")
    if fetched:
        stamps = (FileStamp(file.shown, file.size, digest) for file, digest in fetched.values())
        return InputFiles(tuple(stamps), tuple(file for file, _ in fetched.values()), fetched=True)
    if remote:
        return InputFiles(tuple(sorted(set(remote), key=lambda stamp: stamp.path)))
    return InputFiles(tuple(map(_make_stamp, files.values())), tuple(files.values()))


def _list_suffixes() -> tuple[str, ...]:
    return tuple(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)


def _make_stamp(file: InputFile) -> FileStamp:
    info = file.filesystem.get_file_info(file.location)
    return FileStamp(redact(file.location), info.size or 0, info.mtime_ns or 0)


def _list_by_spark(path: str, session: Any) -> list[FileStamp]:
    """Paths, sizes and times by Spark's ``binaryFile`` reader, which reads no file without its bytes."""
    found = session.read.format("binaryFile").option("recursiveFileLookup", "true").load(path)
    rows = found.select("path", "length", "modificationTime").toArrow()
    if not rows.num_rows:
        raise NothingMatched(f"No data file was found under {redact(path)}.", path=redact(path))
    times = rows["modificationTime"].cast(pa.timestamp("ns", "UTC"), safe=False).cast(pa.int64())
    columns = (rows["path"].to_pylist(), rows["length"].to_pylist(), times.to_pylist())
    return [FileStamp(*row) for row in zip(*columns, strict=True)]


def make_transform(source: Source, kind: Format, known: pa.Schema | None = None) -> RowTransform:
    """The transformation of a source's rows; ``known`` gives types of text columns that are not declared."""
    declared = {name: parse_type_name(text) for name, text in source.columns.items()}
    types = declared
    if not declared and known is not None and kind in ("csv", "json"):
        types = {field.name: field.type for field in known if not pa.types.is_nested(field.type)}
    return RowTransform(
        types=types,
        only=bool(declared),
        absent_is_null=kind == "json",
        derive=parse_derivations(source.derive),
        where=parse_source_filter(source.where),
    )


def detect_format(source: Source, listing: InputFiles) -> Format:
    """The one format of a source's files. Raises InputError where they have several."""
    if source.format is not None:
        return source.format
    if listing.files:
        kinds = {detect_file_format(file) for file in listing.files}
    else:
        kinds = {
            kind for kind, ends in SUFFIXES.items() for s in listing.stamps if s.path.lower().endswith(ends)
        }
    if len(kinds) == 1:
        return kinds.pop()
    found = f"files of {' and '.join(sorted(kinds))}" if kinds else "files of no known ending"
    raise InputError(f"A source has {found}.", hint="give it a format, or make several sources of it.")


_NO_TEXT = "\x00"
"""Spark's ``nullValue``: with its default, a quoted empty text would be NULL as well."""
_NOT_SPARKS = (".xz", ".br", ".zst")
"""Endings of compressed files for which a plain Spark has no codec."""


# Arrow


def check_portable(source: Source) -> None:
    """Raise NotSupported where a source has options that only Spark's readers have."""
    others = [name for name in source.options if name not in _PORTABLE]
    if others:
        raise NotSupported(
            f"the reader option {others[0]!r} is Spark's.",
            hint=f'there are {" and ".join(_PORTABLE)}, or use engine = "spark".',
        )


def read_streams(
    source: Source, listing: InputFiles, known: pa.Schema | None = None
) -> list[pa.RecordBatchReader]:
    """The transformed rows of the files, one stream per file, read lazily."""
    kind = detect_format(source, listing)
    shape = make_transform(source, kind, known)
    types = pa.schema(list(shape.types.items())) if shape.types else None
    partitions = parse_partition_scalars(list(listing.files), kind, types=types)
    if kind in ("csv", "json") and len(listing.files) > 1:
        types = unify_text_types([_open_file(source, file, kind, types)[0] for file in listing.files], types)
    found = []
    for file, scalars in zip(listing.files, partitions, strict=True):
        schema, batches = _open_file(source, file, kind, types)
        extra = {name: scalar for name, scalar in scalars.items() if name not in schema.names}
        whole = pa.schema([*schema, *(pa.field(name, scalar.type) for name, scalar in extra.items())])
        batches = _add_constants(batches, extra)
        with _add_file_to_errors(file):
            made = shape.make_schema(whole)
        named = _name_file(file, shape.transform_batches(whole, batches))
        found.append(pa.RecordBatchReader.from_batches(made, named))
    return found


@contextmanager
def _add_file_to_errors(file: InputFile) -> Iterator[None]:
    """Add the path of a file to an error about its rows."""
    try:
        yield
    except InputError as error:
        if error.path is not None:
            raise
        raise type(error)(f"{file.shown}: {error.message}", path=file.shown, hint=error.hint) from error


def _name_file(file: InputFile, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with _add_file_to_errors(file):
        yield from batches


def _open_file(
    source: Source, file: InputFile, kind: Format, types: pa.Schema | None
) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    if kind != "csv" or not source.options:
        return open_stream(file, kind, types=types)
    null = str(source.options.get("null_value", ""))
    options = {
        "parse_options": pacsv.ParseOptions(
            delimiter=str(source.options.get("delimiter", _choose_delimiter(file.location))),
            newlines_in_values=True,
        ),
        "convert_options": pacsv.ConvertOptions(
            null_values=["", null], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    }
    table = read_csv_file(file, types=types, options=options)
    return table.schema, table.to_batches()


def _add_constants(
    batches: Iterable[pa.RecordBatch], extra: dict[str, pa.Scalar]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for name, scalar in extra.items():
            batch = batch.append_column(name, pa.repeat(scalar, batch.num_rows))
        yield batch


def read_snapshot_stream(source: Source, snapshot: Snapshot) -> pa.RecordBatchReader:
    """The transformed rows of a snapshot; CommitConflict where a file is replaced meanwhile."""
    shape = make_transform(source, "parquet")
    return pa.RecordBatchReader.from_batches(
        shape.make_schema(snapshot.schema),
        shape.transform_batches(snapshot.schema, _read_snapshot_rows(snapshot)),
    )


def _read_snapshot_rows(snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
    """Rows of a snapshot, some files at a time, since a dataset of pyarrow keeps its files open."""
    if not snapshot.replaces_in_place:
        yield from SnapshotScan(snapshot, tuple(snapshot.schema.names)).read_batches(
            threads=os.cpu_count() or 1
        )
        return
    for start in range(0, len(snapshot.files), _OPEN_FILES):
        some = snapshot.with_files(snapshot.files[start : start + _OPEN_FILES])
        yield from some.dataset().to_batches()


# Spark


def read_frame(source: Source, listing: InputFiles, session: Any, known: pa.Schema | None = None) -> Any:
    """The transformed rows of the files as a Spark DataFrame; malformed text fails when it is read."""
    kind = detect_format(source, listing)
    if listing.files and (
        kind == "arrow" or any(s.path.lower().endswith(_NOT_SPARKS) for s in listing.stamps)
    ):
        check_portable(source)
        rows = pa.concat_tables([one.read_all() for one in read_streams(source, listing, known)])
        return session.createDataFrame(rows)  # through the driver: Spark has no reader for these
    paths = [_to_spark_path(stamp.path) for stamp in listing.stamps]
    reader = session.read.options(**_make_reader_options(source, listing, kind))
    base = _find_partition_base(listing)
    if base is not None:
        reader = reader.option("basePath", _to_spark_path(base, glob=True))
    shape = make_transform(source, kind, known)
    if kind == "parquet":
        found = reader.option("mergeSchema", "true").parquet(*paths)
    elif kind == "csv":
        found = reader.csv(paths)
    else:
        found = _read_json_frame(source, listing, reader, paths, shape)
    if kind == "csv" and not source.columns:
        shape = _infer_types(shape, reader, paths)
    return transform_frame(found, shape)


def _read_json_frame(
    source: Source, listing: InputFiles, reader: Any, paths: Sequence[str], shape: RowTransform
) -> Any:
    """Rows of JSON files; files of lines and files with an array are read separately."""
    arrays = [is_json_array(file) for file in listing.files] or [False] * len(paths)
    found = None
    for is_array in sorted(set(arrays)):
        some = [path for path, one in zip(paths, arrays, strict=True) if one == is_array]
        rows = reader.option("multiLine", is_array) if "multiLine" not in source.options else reader
        frame = rows.schema(_infer_json_schema(source, rows, some, shape)).json(some)
        found = frame if found is None else found.unionByName(frame, allowMissingColumns=True)
    return found


def _infer_json_schema(source: Source, reader: Any, paths: list[str], shape: RowTransform) -> Any:
    """The schema to read with: text for numbers of a known type, which keeps all digits for the cast."""
    from pyspark.sql import types as sparks

    if source.columns:
        return sparks.StructType([sparks.StructField(name, sparks.StringType()) for name in source.columns])
    inferred = reader.json(paths).schema
    return sparks.StructType(
        [
            sparks.StructField(field.name, sparks.StringType())
            if field.name in shape.types and isinstance(field.dataType, sparks.FractionalType)
            else field
            for field in inferred
        ]
    )


def _infer_types(shape: RowTransform, reader: Any, paths: Sequence[str]) -> RowTransform:
    """Add inferred types for columns of CSV files that have none."""
    from pyspark.sql.pandas.types import to_arrow_schema

    inferred = to_arrow_schema(reader.option("inferSchema", "true").csv(list(paths)).schema)
    wide = {pa.int32(): pa.int64()}  # as it is in process
    types = {field.name: shape.types.get(field.name, wide.get(field.type, field.type)) for field in inferred}
    return replace(shape, types=types)


def read_snapshot_frame(
    source: Source, snapshot: Snapshot, session: Any, columns: tuple[str, ...] | None = None
) -> Any:
    """The transformed rows of a snapshot as a Spark DataFrame, of some columns.

    Spark reads what it reads exactly, the kernel the other files: one of these that was replaced since fails
    the step. Partition columns have their types.
    """
    from intarsia.frames import make_frame  # needs pyspark

    scan = SnapshotScan(snapshot, tuple(snapshot.schema.names) if columns is None else columns)
    found = make_frame(session, scan, since="the step looked at it")
    return transform_frame(found, make_transform(source, "parquet"))


def read_snapshot_columns(snapshot: Snapshot, names: tuple[str, ...], session: Any) -> Any:
    """Some columns of a snapshot: a DataFrame with a session, else a list of one Arrow stream."""
    lost = [name for name in names if name not in snapshot.schema.names]
    if lost:
        raise ColumnNotFound(
            f"{redact(snapshot.root)} has no column {lost[0]!r}; it has {', '.join(snapshot.schema.names)}.",
            path=redact(snapshot.root),
            hint=suggest_names(lost, snapshot.schema.names),
        )
    scan = SnapshotScan(snapshot, names)
    if session is not None:
        from intarsia.frames import make_frame  # needs pyspark

        return make_frame(session, scan, since="the step looked at it")
    batches = scan.read_batches(threads=os.cpu_count() or 1)
    return [pa.RecordBatchReader.from_batches(scan.schema, batches)]


def transform_frame(frame: Any, shape: RowTransform) -> Any:
    """A DataFrame whose rows Spark's Python workers transform."""
    if shape.trivial:
        return frame
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    from intarsia.frames import make_readable_type

    given = to_arrow_schema(frame.schema)
    made = shape.make_schema(given)
    # Spark has microseconds and no unsigned integers; the merge casts to the target's types.
    sent = pa.schema([field.with_type(make_readable_type(field.type, field.type)) for field in made])

    def transform_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in shape.transform_batches(given, batches):
            columns = [pc.cast(column, field.type) for column, field in zip(batch.columns, sent, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=sent)

    return frame.mapInArrow(transform_rows, from_arrow_schema(sent, prefer_timestamp_ntz=True))


def _make_reader_options(source: Source, listing: InputFiles, kind: Format) -> dict[str, Any]:
    options = make_text_options(kind)
    if kind == "csv":
        options["sep"] = _choose_delimiter(listing.stamps[0].path)
    renamed = {"delimiter": "sep", "null_value": "nullValue"}
    given = {renamed.get(name, name): value for name, value in source.options.items()}
    return options | {name: _format_option(value) for name, value in given.items()}


def make_text_options(kind: str) -> dict[str, str]:
    """What Spark's readers of text files are told unless the source says otherwise."""
    if kind not in ("csv", "json", "xml"):
        return {}
    options = {"mode": "FAILFAST"}  # else a bad record would become NULLs
    if kind == "csv":
        # Spark compares headers: files with another order of columns are refused, not mixed up.
        options |= {"header": "true", "enforceSchema": "false"}
        # As in RFC 4180 and pyarrow: quotes are doubled, quoted text may have line breaks, "" is not NULL.
        options |= {"escape": '"', "multiLine": "true", "nullValue": _NO_TEXT, "emptyValue": ""}
    return options


def _choose_delimiter(path: str) -> str:
    return "\t" if ".tsv" in posixpath.basename(path).lower() else ","


def _format_option(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _find_partition_base(listing: InputFiles) -> str | None:
    """Spark's ``basePath``: the directory above ``name=value`` directories; None without any."""
    for file in listing.files:
        if "=" in posixpath.dirname(file.below):
            return file.location.removesuffix(file.below)
    return None


def _to_spark_path(path: str, *, glob: bool = False) -> str:
    """A path for Spark's readers, with the characters of glob patterns escaped."""
    if _REMOTE.match(path):
        return path
    plain = path if glob else re.sub(r"([\\{}\[\]*?])", r"\\\1", path)
    return plain if plain.startswith("file:") else f"file://{plain}"


_WEB = re.compile(r"^https?://", re.IGNORECASE)
_TIMEOUT = 60.0
_PIECE = 1 << 20


def is_web(path: str) -> bool:
    return _WEB.match(path) is not None


@dataclass(slots=True)
class Downloads:
    """Downloads of one run: each URL once, in a directory that :meth:`close` removes."""

    fetched: dict[str, tuple[InputFile, int]] = field(default_factory=dict)
    directory: tempfile.TemporaryDirectory[str] | None = None

    def fetch(self, url: str) -> tuple[InputFile, int]:
        """Download a URL, once: the file, and a digest of its bytes as a number.

        Raises:
            NothingMatched: the server has no such file.
            InputError: the URL has a pattern in it, which a web server cannot answer.
            StorageError: the server did not answer, or not in full.
        """
        if url not in self.fetched:
            self.fetched[url] = self._fetch(url)
        return self.fetched[url]

    def close(self) -> None:
        """Remove what was fetched. Idempotent."""
        self.fetched.clear()
        if self.directory is not None:
            self.directory.cleanup()
            self.directory = None

    def _fetch(self, url: str) -> tuple[InputFile, int]:
        shown, path = redact(url), urlsplit(url).path
        if "*" in path:
            raise InputError(f"A web server lists no files: {shown}.", path=shown, hint="name each file.")
        if self.directory is None:
            self.directory = tempfile.TemporaryDirectory(prefix="intarsia-web-")
        name = posixpath.basename(unquote(path)).replace("/", "_") or "index"
        place = os.path.join(tempfile.mkdtemp(dir=self.directory.name), name)
        try:
            size, digest = _download(url, place)
        except HTTPError as error:
            error.close()
            if error.code in (404, 410):
                raise NothingMatched(f"There is no file {shown}: HTTP {error.code}.", path=shown) from error
            raise StorageError(f"Could not fetch {shown}: HTTP {error.code}.", path=shown) from error
        except (URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise StorageError(f"Could not fetch {shown}: {redact(str(reason))}.", path=shown) from error
        return InputFile(place, shown, name, size, pafs.LocalFileSystem()), digest


def _download(url: str, place: str) -> tuple[int, int]:
    """Download to a file; returns size and digest. Memory: one piece."""
    digest, size = hashlib.sha256(), 0
    asked = Request(url, headers={"User-Agent": "intarsia", "Accept-Encoding": "identity"})
    with urlopen(asked, timeout=_TIMEOUT) as answer, open(place, "wb") as file:
        while piece := answer.read(_PIECE):
            digest.update(piece)
            size += len(piece)
            file.write(piece)
        expected = answer.headers.get("Content-Length")
    if expected is not None and int(expected) != size:
        raise OSError(f"{size:,} bytes came of {int(expected):,}")
    return size, int.from_bytes(digest.digest()[:7], "big")
