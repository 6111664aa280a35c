"""Everything that leans on private names of PyIceberg; no other module does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.serializers import Compressor, ToOutputFile
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3
from pyiceberg.typedef import IcebergBaseModel

_written: ContextVar[list[str] | None] = ContextVar("written", default=None)


def prepare_catalog(catalog: Catalog) -> Catalog:
    """Let a catalog whose client writes the metadata file write version 3, and say what it has written.

    Only this one object is changed. Catalogs behind a server need nothing.
    """
    if isinstance(catalog, MetastoreCatalog) and "_write_metadata" not in vars(catalog):
        vars(catalog)["_write_metadata"] = _write_metadata
    return catalog


@contextmanager
def metadata_files() -> Iterator[list[str]]:
    """The metadata files that prepared catalogs write inside the block, by this thread.

    A catalog that loses the race for its own pointer leaves behind the file it had written.
    """
    paths: list[str] = []
    token = _written.set(paths)
    try:
        yield paths
    finally:
        _written.reset(token)


def _write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
    paths = _written.get()
    if paths is not None:
        _check_sequence(metadata)
        paths.append(metadata_path)
    if not isinstance(metadata, TableMetadataV3):
        ToOutputFile.table_metadata(metadata, io.new_output(metadata_path))
        return
    # PyIceberg refuses to dump version 3, though its model is whole.
    whole = metadata.model_copy(update={"next_row_id": next_row_id(metadata)})
    text = IcebergBaseModel.model_dump_json(whole)
    data = Compressor.get_compressor(metadata_path).bytes_compressor()(text.encode())
    with io.new_output(metadata_path).create() as stream:
        stream.write(data)


def _check_sequence(metadata: TableMetadata) -> None:
    """A commit to another branch may have come first; PyIceberg looks at the numbers in version 2 only."""
    if metadata.format_version < 3 or not metadata.snapshots:
        return
    *before, new = (snapshot.sequence_number or 0 for snapshot in metadata.snapshots)
    if before and new <= max(before):
        raise CommitFailedException(f"Sequence number {new} was taken by a commit to another branch")


def next_row_id(metadata: TableMetadata) -> int:
    """The first row id that is free; a table that was just made or upgraded may not say so."""
    known = getattr(metadata, "next_row_id", None)
    if known is not None:
        return int(known)
    return max(
        (s.first_row_id + (s.added_rows or 0) for s in metadata.snapshots if s.first_row_id is not None),
        default=0,
    )
