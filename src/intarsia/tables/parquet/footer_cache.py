"""The cache of footers in the control directory: its format, its bounds, and which files it may tell of.

It is safe to delete, and never needed: one that is damaged, of another dataset or of another version is not
used. A wrong one would make an operation miss rows, so whoever may write to the control directory is trusted
with that, as with the journal and the data beside it. Nothing in it is executed or unpickled.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import intarsia
from intarsia.common.log import get_logger
from intarsia.common.system import find_filesystem_type, is_network
from intarsia.core.prune import read_bounds
from intarsia.errors import SchemaMismatch, StorageError
from intarsia.storage import Storage
from intarsia.tables.parquet.control import Control
from intarsia.tables.parquet.entries import KEY_SCHEMA, MANY_FILES
from intarsia.tables.parquet.footer_store import (
    BOUND_NAMES,
    COUNT_SCHEMA,
    ColumnBounds,
    KnownFooters,
    ParquetFooterStore,
    is_sorted,
)
from intarsia.tables.parquet.footers import parse_footer, strip_values

log = get_logger(__name__)

_MAGIC = b"intarsia footers 2\n"
_START = len(_MAGIC) + 4
_ALIGNMENT = 16
"""Of the tables in it, which Arrow would warn of otherwise, wherever it works on them."""
_VERSIONS = [intarsia.__version__, pa.__version__]
"""Another one may trust other statistics, and give other bounds."""
_DRAFT = ".part"
_YOUNG_NS = 2_000_000_000
"""A file that changed less than this before it was listed may change again under the same times: the
coarsest clock of a file system (FAT) ticks every two seconds."""
_MOST_BYTES = 256 << 20
_MOST_COLUMNS = 8
_MOST_KINDS = 1000
_KIND = COUNT_SCHEMA.get_field_index("kind")
_LEAST_ON_STORES = 16
_STALE = 0.05
"""The cache is written again when more than this share of the files is not in it."""


def get_least_files(storage: Storage) -> int:
    """How many files a dataset has at least that has a cache.

    Reading it takes two requests to a store, and writing it two after a commit that makes it stale.
    """
    return MANY_FILES if storage.atomic else _LEAST_ON_STORES


def load_cache(control: Control) -> KnownFooters | None:
    """What the cache of a dataset tells; None where there is none that can be used. Writes nothing."""
    try:
        if not _is_possible(control):
            return None
        found = control.storage.stat(control.footers)
        if found is None or found.kind != "file" or found.size > _MOST_BYTES:
            return None
        known = _decode(control.storage.read(control.footers), control.root)
        return None if known is None else replace(known, fingerprint=found.fingerprint)
    except StorageError as error:
        log.debug("%s: the cache of footers cannot be read: %s", control.root, error)
    except (pa.ArrowException, SchemaMismatch, OSError, ValueError, KeyError, TypeError) as error:
        log.info("%s: the cache of footers is damaged and not used: %s", control.root, error)
    return None


def save_cache(control: Control, store: ParquetFooterStore, gone: Collection[str] = ()) -> None:
    """Put what a store knows into the cache, where that pays; a refusal is logged, none raised.

    Nothing is kept of a file that is not there any more: its rows may have been deleted for good.

    Args:
        control: of a dataset to which something was committed; its lock is held where there is one.
        store: the footers, from before the commit.
        gone: the paths of files that the commit has replaced or removed.
    """
    columns = frozenset(name for name, bounds in store.bounds.items() if not bounds.missing)
    removed = pa.array(list(gone), pa.string())
    outdated = (
        store.outdated
        or pc.any(pc.is_in(store.cached, value_set=removed)).as_py()
        or _stat_cache(control) != store.fingerprint  # another writer's, of other files
    )
    if not outdated and store.unread <= _STALE * len(store.files) and columns <= store.saved_columns:
        return
    kept = pc.and_(_find_trusted(store), pc.invert(pc.is_in(store.keys["path"], value_set=removed)))
    few = (
        len(store.files) < get_least_files(control.storage)
        or len(store.models) > _MOST_KINDS
        or not pc.any(kept).as_py()
    )
    try:
        if not _is_possible(control):
            return
        data = b"" if few else _encode(store.known, control.root, kept)
        if data and len(data) <= _MOST_BYTES:
            _write_cache(control, data, store.keys["path"].filter(kept)[0].as_py())
            store.unread, store.saved_columns, store.fingerprint = 0, columns, _stat_cache(control)
            store.cached, store.outdated = store.keys["path"].filter(kept).combine_chunks(), False
            return
    except (StorageError, ValueError) as error:  # ValueError: a footer of a later format
        log.info("%s: the cache of footers was not written: %s", control.root, error)
    drop_cache(control)
    store.forget_cache()


def _write_cache(control: Control, data: bytes, model: str) -> None:
    """Put data into the cache, which those may read who may read a data file."""
    storage, draft = control.storage, f"{control.footers}{_DRAFT}"
    if not storage.atomic:  # an object appears whole
        storage.write(control.footers, data)
        return
    storage.remove(draft)  # which a crash may have left
    storage.write(draft, data)
    storage.copy_mode(f"{control.root}/{model}", draft)
    storage.move(draft, control.footers)


def _stat_cache(control: Control) -> tuple[int, int, int | str | None] | None:
    try:
        found = control.storage.stat(control.footers)
    except StorageError:
        return None
    return None if found is None else found.fingerprint


def drop_cache(control: Control) -> None:
    """Remove the cache, if there is one, and what a crash left of one. A refusal is logged."""
    try:
        draft = f"{control.footers}{_DRAFT}"
        for path in (control.footers, draft) if control.storage.atomic else (control.footers,):
            if control.storage.stat(path) is not None:
                control.storage.remove(path)
    except StorageError as error:
        log.warning("%s: the cache of footers could not be removed: %s", control.root, error)


def _is_possible(control: Control) -> bool:
    """Whether what a listing tells can be relied on: a network file system may tell what was."""
    return not (control.storage.atomic and is_network(find_filesystem_type(control.root)))


def _find_trusted(store: ParquetFooterStore) -> pa.ChunkedArray:
    """Whether each file is old enough: it cannot change again under the same times."""
    old = pc.less_equal(store.keys["changed_ns"], pc.subtract(store.listed, _YOUNG_NS))
    return pc.fill_null(pc.and_(old, pc.is_valid(store.keys["identity"])), False)


def _encode(known: KnownFooters, root: str, trusted: pa.ChunkedArray) -> bytes:
    numbers = pc.indices_nonzero(trusted).cast(pa.int32())
    columns = dict(list(known.bounds.items())[-_MOST_COLUMNS:])
    counts = known.counts.filter(trusted)
    kinds = pc.unique(counts["kind"])  # others are of files that are gone
    models = [strip_values(known.models[kind].raw) for kind in kinds.to_pylist()]
    counts = counts.set_column(_KIND, "kind", pc.index_in(counts["kind"], value_set=kinds))
    footers = pa.table({"footer": pa.array(models, pa.binary())})
    parts = [_to_ipc(known.keys.filter(trusted)), _to_ipc(counts), _to_ipc(footers)]
    described = []
    for name, bounds in columns.items():
        if bounds.missing:
            continue
        place = pc.index_in(bounds.table["file"].combine_chunks(), value_set=numbers)
        table = bounds.table.set_column(0, "file", place).filter(pc.is_valid(place))
        parts.append(_to_ipc(table))
        dtype = pa.schema([pa.field("", bounds.dtype)]).serialize().to_pybytes()
        described.append({"name": name, "type": base64.b64encode(dtype).decode()})
    header = {
        "root": root,
        "versions": _VERSIONS,
        "parts": [len(part) for part in parts],
        "bounds": described,
    }
    head = json.dumps(header).encode()
    padding = b" " * (-(_START + len(head) + 1) % _ALIGNMENT)
    payload = b"".join((head, padding, b"\n", *parts))
    return _MAGIC + zlib.crc32(payload).to_bytes(4, "little") + payload


def _decode(data: bytes, root: str) -> KnownFooters | None:
    """Raises where it is not what we would write; None where it is another dataset's or version's."""
    if data[: len(_MAGIC)] != _MAGIC or zlib.crc32(memoryview(data)[_START:]) != int.from_bytes(
        data[len(_MAGIC) : _START], "little"
    ):
        raise ValueError("its checksum is another")
    end = data.index(b"\n", _START)
    header = json.loads(data[_START:end])
    if header["root"] != root or header["versions"] != _VERSIONS:
        return None
    parts, at = [], end + 1
    for size in header["parts"]:
        parts.append(_from_ipc(memoryview(data)[at : at + size]))
        at += size
    keys, counts, models, *rest = parts
    if not keys.schema.equals(KEY_SCHEMA) or not counts.schema.equals(COUNT_SCHEMA):
        raise ValueError("its columns are others")
    footers = [parse_footer(raw) for raw in models["footer"].to_pylist()]
    _check_range(counts["kind"], len(footers))
    if keys.num_rows != counts.num_rows or keys["path"].null_count or counts["kind"].null_count:
        raise ValueError("its tables do not match")
    bounds = {
        one["name"]: _check_bounds(one, table, counts["row_groups"])
        for one, table in zip(header["bounds"], rest, strict=True)
    }
    return KnownFooters(keys, counts, footers, bounds)


def _check_bounds(described: Any, table: pa.Table, row_groups: pa.ChunkedArray) -> ColumnBounds:
    """The bounds of a column, which must have one entry for each row group of each file."""
    raw = base64.b64decode(described["type"], validate=True)
    dtype = pa.ipc.read_schema(pa.BufferReader(raw)).field(0).type
    empty = read_bounds([], described["name"], dtype)
    wanted = [getattr(empty, name).type for name in BOUND_NAMES]
    if table.column_names != list(BOUND_NAMES) or table.schema.types != wanted:
        raise ValueError(f"the bounds of {described['name']!r} have other columns")
    _check_range(table["file"], len(row_groups))
    count = pc.sum(row_groups).as_py() or 0
    group = table["row_group"]
    inside = pc.and_(pc.greater_equal(group, 0), pc.less(group, row_groups.take(table["file"])))
    if table.num_rows != count or not is_sorted(table) or not pc.all(inside, skip_nulls=False).as_py():
        raise ValueError(f"the bounds of {described['name']!r} are of other row groups")
    return ColumnBounds(dtype, table)


def _check_range(numbers: pa.ChunkedArray, count: int) -> None:
    if (
        numbers.null_count
        or not pc.all(pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, count))).as_py()
    ):
        raise ValueError("a number in it is out of range")


def _to_ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _from_ipc(data: memoryview) -> pa.Table:
    table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    table.validate(full=True)  # offsets beyond a buffer must not be followed
    return table.combine_chunks()
