"""Paths: from a path, URL, directory or glob to the files to read, and what a path is; reads no file."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from intarsia.common.log import is_store_error, redact
from intarsia.common.system import parse_file_url, to_slashes
from intarsia.errors import InputError, IntarsiaError, NothingMatched, NotSupported, StorageError

__all__ = [
    "LOGS",
    "METADATA",
    "InputFile",
    "find_input_files",
    "find_sign",
    "find_table_directory",
    "get_local_path",
    "is_encodable",
    "make_table_error",
    "open_filesystem",
    "redact_path",
    "refuse_sign_in",
    "start_writeback",
    "to_path_text",
    "with_time_limit",
]

LOGS: Mapping[str, str] = {"_delta_log": "Delta", ".hoodie": "Hudi"}
"""The directory in which a format keeps its log."""
METADATA = ".metadata.json"
"""How the names of Iceberg's metadata files end; they are in a directory ``metadata``."""
_DUCKLAKE = "ducklake-"
_READERS = {
    "Delta": 'with spark.read.format("delta"), or DeltaTable(path).to_pyarrow_table() of deltalake',
    "Iceberg": "with spark.table(name), or load_table(name).scan().to_arrow() of pyiceberg",
    "Hudi": 'with spark.read.format("hudi")',
    "DuckLake": "in DuckDB, which attaches its catalogue",
}
_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs")
"""Schemes of URLs in which a container stands before its account, where others have credentials."""
_SIGNED_IN = re.compile(r"[^/@:]+:(?!\d+(?:/|$))[^@]*@")
"""A name and a secret, which may have a slash in it; not a host with its port."""
_RETRY = "retry_limit_seconds"
GIVE_UP_SECONDS = 15
"""Seconds for which calls to Google Cloud Storage are retried, where the URL does not say; pauses add as
much."""
_MAGIC = re.compile(r"[*?\[]")
_PARQUET = (".parquet", ".parq")


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file to read. ``shown`` is its path in the form the caller gave, ``below`` that under the root."""

    location: str
    shown: str
    below: str
    size: int
    filesystem: pafs.FileSystem


def is_encodable(text: str) -> bool:
    """Whether a text can be written as UTF-8: one with a lone surrogate, a name in no encoding, cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def to_path_text(path: Any, what: str = "A path") -> str:
    """A path or URL as text. Raises InputError for what is none: no text, empty, not to be encoded."""
    try:
        text: Any = os.fspath(path)
    except TypeError:
        text = path
    if not isinstance(text, str) or not text or "\0" in text or not is_encodable(text):
        raise InputError(f"{what} must be a path or URL as text, not {text!r}.")
    return text


def redact_path(path: str | os.PathLike[str], what: str = "A path") -> str:
    """A path or URL as people get to see it: without credentials, and without options.

    >>> redact_path("s3://me:pw@bucket/lake/orders?region=x")
    's3://bucket/lake/orders'
    """
    text = to_path_text(path, what)
    if not _URL.match(text):
        return text
    scheme, _, rest = text.partition("://")
    return f"{scheme}://{rest.removeprefix(_find_credentials(text)).partition('?')[0]}"


def refuse_sign_in(url: str, path: str) -> None:
    """Raise InputError where a library took the credentials in a URL for a part of the path."""
    who = _find_credentials(url)
    if who and path.startswith(who):
        raise InputError(
            f"{redact_path(url)} is opened by a library that takes nobody's name and secret from a URL.",
            path=redact_path(url),
            hint="pass a file system as filesystem=, or for a target storage_options=",
        )


def _find_credentials(url: str) -> str:
    """The credentials in a URL, up to the ``@``; empty where there are none."""
    scheme, _, rest = url.partition("://")
    if secret := _SIGNED_IN.match(rest):
        return secret[0]
    name, at, _ = rest.partition("/")[0].rpartition("@")
    return "" if scheme.lower() in _CONTAINERS else name + at


def open_filesystem(path: str | os.PathLike[str], *, filesystem: Any = None) -> tuple[pafs.FileSystem, str]:
    """The file system a path or URL is on, and the path there.

    A URL that pyarrow does not know is opened through fsspec where that is installed.

    Raises:
        InputError: the path is no text, or ``filesystem`` is neither pyarrow's nor fsspec's.
        NotSupported: no installed library knows the URL's scheme.
        StorageError: the store refused.
    """
    text = to_path_text(path)
    if filesystem is not None:
        return _as_pyarrow(filesystem), text.split("://", 1)[1] if _URL.match(text) else text
    if not _URL.match(text):
        return pafs.LocalFileSystem(), to_slashes(os.path.abspath(os.path.expanduser(text)))
    if urlsplit(text).scheme.lower() in ("file", "local"):
        return pafs.LocalFileSystem(), parse_file_url(text)
    return _from_url(text)


def with_time_limit(url: str) -> str:
    """The URL with a retry limit for Google's client, which otherwise retries for 15 minutes."""
    parts = urlsplit(url)
    if parts.scheme.lower() not in ("gs", "gcs") or _RETRY in parts.query:
        return url
    return f"{url}{'&' if parts.query else '?'}{_RETRY}={GIVE_UP_SECONDS}"


def _from_url(url: str) -> tuple[pafs.FileSystem, str]:
    shown = redact(url)
    try:
        return pafs.FileSystem.from_uri(with_time_limit(url))
    except pa.ArrowInvalid:
        pass  # a scheme pyarrow does not know
    except OSError as error:
        raise _make_storage_error(error, shown) from error
    try:
        # pyarrow's own bridge to fsspec, which it imports itself.
        found, path = pafs.FileSystem.from_uri(f"fsspec+{url}")
    except (ValueError, ImportError) as error:
        raise NotSupported(
            f"No installed library can open {shown}: {redact(str(error))}",
            path=shown,
            hint="pip install 'intarsia[fsspec]' and the package for this scheme, or pass filesystem=",
        ) from error
    except OSError as error:
        raise _make_storage_error(error, shown) from error
    refuse_sign_in(url, path)
    return found, path


def _as_pyarrow(filesystem: Any) -> pafs.FileSystem:
    if isinstance(filesystem, pafs.FileSystem):
        return filesystem
    if not all(hasattr(filesystem, name) for name in ("protocol", "info", "find")):
        raise InputError(
            f"filesystem= must be a pyarrow or an fsspec file system, not {type(filesystem).__name__}."
        )
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))


def find_input_files(
    path: str | os.PathLike[str], *, filesystem: Any = None, suffixes: Collection[str] = ()
) -> list[InputFile]:
    """The files a path stands for, sorted by path: itself, those below a directory, or a glob's.

    Below a directory, files and directories whose names start with ``.`` or ``_`` are left out
    (``_name=value`` directories are partitions), and so is every file without one of the suffixes. A
    file named in full is taken whatever its name is. In a glob ``*`` stays within a directory and ``**``
    does not; a directory that matches stands for the files below it, and ``name=value`` directories right
    before the first wildcard are partitions like those after it.

    Raises:
        NothingMatched: there is no such file or directory, or no file of this kind in it.
        NotSupported: Parquet files of a Delta, Iceberg, Hudi or DuckLake table are among them.
        StorageError: the store refused.
    """
    where, location = open_filesystem(path, filesystem=filesystem)
    given = redact(os.fspath(path))
    try:
        info = where.get_file_info(location)
        if info.type == pafs.FileType.File:
            return [InputFile(location, given, posixpath.basename(location), info.size or 0, where)]
        if info.type == pafs.FileType.Directory:
            found, signs = _walk(where, location.rstrip("/"), given.rstrip("/"), suffixes)
            _refuse_tables(found, signs, given.rstrip("/"))
            if any(file.below.lower().endswith(_PARQUET) for file in found):
                _refuse_part(where, location.rstrip("/"), given)
        elif _MAGIC.search(location):
            found = _list_glob(where, location, given, suffixes)
        else:
            raise NothingMatched(f"There is no file or directory {given}.", path=given)
    except IntarsiaError:
        raise
    except Exception as error:  # the clients of stores have errors of their own
        if not (isinstance(error, OSError) or is_store_error(error)):
            raise
        raise _make_storage_error(error, given) from error
    if not found:
        raise NothingMatched(
            f"No data file was found under {given}.",
            path=given,
            hint=_explain_no_file(where, location, suffixes),
        )
    return found


def _explain_no_file(where: pafs.FileSystem, location: str, suffixes: Collection[str]) -> str | None:
    """Why no file was found: no such directory, else none of the names that were looked for."""
    base = _split_magic(location)[0] if _MAGIC.search(location) else location
    if where.get_file_info(base).type == pafs.FileType.NotFound:
        return f"there is no directory {base}."
    plain = [suffix for suffix in suffixes if suffix.count(".") == 1]
    if not plain:
        return None
    return f"looked for {', '.join(plain)}{', also compressed' if len(plain) < len(suffixes) else ''}."


def _walk(
    where: pafs.FileSystem, root: str, shown: str, suffixes: Collection[str]
) -> tuple[list[InputFile], dict[str, str]]:
    """The data files below a directory, and files that belong to a table format, with the format's name."""
    selector = pafs.FileSelector(root or "/", recursive=True, allow_not_found=True)
    found: list[InputFile] = []
    signs: dict[str, str] = {}
    for info in where.get_file_info(selector):
        # Some stores list with a leading slash what was named without one.
        below = info.path.strip("/").removeprefix(root.strip("/")).lstrip("/")
        directory = info.type == pafs.FileType.Directory
        kind = find_sign(below, directory=directory)
        if kind is not None:
            signs[below] = kind
        if not directory and info.type == pafs.FileType.File and _is_data(below, suffixes):
            found.append(InputFile(info.path, f"{shown}/{below}", below, info.size or 0, where))
    return sorted(found, key=lambda file: file.below), signs


def _refuse_tables(files: Collection[InputFile], signs: Mapping[str, str], shown: str) -> None:
    """Refuse Parquet files that are in the directory of a table format."""
    for sign, kind in signs.items():
        table = find_table_directory(sign)
        inside = f"{table}/" if table else ""
        if any(file.below.startswith(inside) and file.below.lower().endswith(_PARQUET) for file in files):
            raise make_table_error(
                f"{shown}/{table}".rstrip("/"), posixpath.relpath(sign, table or "."), kind
            )


def _refuse_part(where: pafs.FileSystem, root: str, shown: str) -> None:
    """Refuse the data directory or a partition of a table whose log is further up."""
    above, name = posixpath.split(root)
    while above.strip("/") and ("=" in name or name == "data"):
        beside = [f"{above}/{log}" for log in LOGS]
        metadata = pafs.FileSelector(f"{above}/metadata", allow_not_found=True)
        for info in (*where.get_file_info(beside), *where.get_file_info(metadata)):
            kind = find_sign(info.path, directory=info.type == pafs.FileType.Directory)
            if kind is not None and info.type != pafs.FileType.NotFound:
                raise make_table_error(shown, f"../{posixpath.relpath(info.path, above)}", kind, part=True)
        above, name = posixpath.split(above)


def _is_data(below: str, suffixes: Collection[str]) -> bool:
    *directories, name = below.split("/")
    if name.startswith((".", "_")) or any(
        part.startswith(".") or (part.startswith("_") and "=" not in part) for part in directories
    ):
        return False
    return not suffixes or name.lower().endswith(tuple(suffixes))


def _list_glob(
    where: pafs.FileSystem, location: str, given: str, suffixes: Collection[str]
) -> list[InputFile]:
    base, rest = _split_magic(location)
    root = _find_partition_root(base)
    fixed = base[len(root) :].lstrip("/")
    matches = re.compile(re.escape(f"{fixed}/" if fixed else "") + _translate(rest)).fullmatch
    found = []
    shown = _split_magic(given)[0]
    walked, signs = _walk(where, base, shown, ())
    for file in walked:
        below = f"{fixed}/{file.below}" if fixed else file.below
        if matches(below) or (_is_data(below, suffixes) and any(map(matches, _list_parents(below)))):
            found.append(file)
    _refuse_tables(found, signs, shown)
    return [replace(file, below=f"{fixed}/{file.below}") for file in found] if fixed else found


def _list_parents(below: str) -> list[str]:
    parts = below.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _find_partition_root(base: str) -> str:
    """The directory above the ``name=value`` ones that a glob starts with: they are partitions, too."""
    while "=" in posixpath.basename(base):
        base = posixpath.dirname(base)
    return base


def _split_magic(path: str) -> tuple[str, str]:
    """The part of a glob that is plain directories, and the rest."""
    first = _MAGIC.search(path)
    cut = path.rfind("/", 0, first.start()) if first else -1
    return (path[:cut], path[cut + 1 :]) if cut >= 0 else (".", path)


def _translate(pattern: str) -> str:
    """A glob as a regular expression; ``**/`` is any number of directories, also none."""
    expression = ""
    position = 0
    while position < len(pattern):
        for glob, regex in (("**/", "(?:.*/)?"), ("**", ".*"), ("*", "[^/]*"), ("?", "[^/]")):
            if pattern.startswith(glob, position):
                expression += regex
                position += len(glob)
                break
        else:
            choice = re.compile(r"\[(!?)(\]?[^\]]*)\]").match(pattern, position)
            if choice:
                inside = choice.group(2).replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
                expression += f"[{'^' if choice.group(1) else ''}{inside}]"
                position = choice.end()
            else:
                expression += re.escape(pattern[position])
                position += 1
    return expression


def _make_storage_error(error: Exception, shown: str) -> StorageError:
    reason = redact(getattr(error, "strerror", None) or str(error) or type(error).__name__)
    number = getattr(error, "errno", None)
    return StorageError(f"Could not look at {shown}: {reason}", errno=number, path=shown)


# Files on this machine's own disks.


def get_local_path(filesystem: pafs.FileSystem, location: str) -> str | None:
    """The path of a file on this machine's own file system; None for any other."""
    if isinstance(filesystem, pafs.SubTreeFileSystem):
        return get_local_path(filesystem.base_fs, filesystem.base_path.rstrip("/") + "/" + location)
    return location if isinstance(filesystem, pafs.LocalFileSystem) else None


def start_writeback(filesystem: pafs.FileSystem, location: str) -> None:
    """Have the system begin to write a finished file to disk, without waiting for it.

    A commit waits until all its files are on disk; begun early, that happens while others are being written.
    """
    path = get_local_path(filesystem, location)
    if path is None or not hasattr(os, "posix_fadvise"):
        return
    with suppress(OSError):  # it is only advice
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


# Directories of Parquet files that belong to a table format, known by other names in them.


def find_sign(path: str, *, directory: bool) -> str | None:
    """The table format that a file or directory of this name is a sign of."""
    above, name = posixpath.split(path)
    if directory or posixpath.basename(above) in LOGS:  # an object store may list no directories
        return LOGS.get(name if directory else posixpath.basename(above))
    if name.endswith(METADATA) and posixpath.basename(above) == "metadata":
        return "Iceberg"
    return "DuckLake" if name.startswith(_DUCKLAKE) else None


def find_table_directory(sign: str) -> str:
    """The directory of the table that a sign is found in."""
    above, name = posixpath.split(sign)
    inner = name.endswith(METADATA) or posixpath.basename(above) in LOGS
    return posixpath.dirname(above) if inner else above


def make_table_error(root: str, sign: str, kind: str, *, part: bool = False) -> NotSupported:
    """The error for a directory of a table format, whose files are not exactly the table's rows."""
    what = f"a{'n' if kind == 'Iceberg' else ''} {kind} table"
    return NotSupported(
        f"{root} is {'part of ' if part else ''}{what} (it has {sign}): read as a plain dataset it would show"
        " rows that are gone, and changing its files would corrupt it.",
        path=root,
        hint=f"read it {_READERS[kind]}; change it through its own table format.",
    )
