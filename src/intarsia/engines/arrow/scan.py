"""The rows of a snapshot as a stream, seen through each file's lens; pruned, filtered, dead rows left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from intarsia.core.files import DataFile, Snapshot
from intarsia.core.intent import Predicate
from intarsia.core.opened import check_same, open_limit, opened_files
from intarsia.core.planning import predicate_columns
from intarsia.core.verdicts import verdicts
from intarsia.engines.arrow.overlay import take_rows
from intarsia.engines.arrow.predicates import hit_positions
from intarsia.engines.arrow.reading import FileReader
from intarsia.engines.arrow.threads import in_order

_Job = tuple[Snapshot, DataFile, int, pa.NativeFile | None]


@dataclass(frozen=True, slots=True)
class Scan:
    """Some columns of the rows for which a condition is TRUE, of one snapshot."""

    snapshot: Snapshot
    columns: tuple[str, ...]
    where: Predicate = None
    """Resolved against the snapshot's schema; None is every row."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([self.snapshot.schema.field(name).with_nullable(True) for name in self.columns])

    def batches(self, *, threads: int) -> Iterator[pa.RecordBatch]:
        """Record batches in the order of files and positions. Memory: a row group per thread.

        The files are opened here, where that keeps them as they are; see :func:`opened_files`.

        Raises:
            CommitConflict: a file was replaced or removed since the snapshot was taken.
        """
        snapshot = self._looked_into()
        few = len(snapshot.files) <= open_limit() // 2
        handles = (opened_files(snapshot) if few else None) or [None] * len(snapshot.files)
        jobs = [
            (snapshot, file, group, handle)
            for file, handle, verdict in zip(
                snapshot.files, handles, verdicts(self.where, snapshot), strict=True
            )
            for group in verdict.row_groups
        ]
        return self._stream(jobs, threads)

    def _stream(self, jobs: list[_Job], threads: int) -> Iterator[pa.RecordBatch]:
        for tables in in_order(lambda job: list(self._rows(*job)), jobs, threads=threads):
            for table in tables:
                yield from table.cast(self.schema).to_batches()

    def _looked_into(self) -> Snapshot:
        """The snapshot with the footers of the files that may have rows to show, and no others."""
        snapshot = self.snapshot
        pairs = zip(snapshot.files, verdicts(self.where, snapshot), strict=True)
        chosen = [file for file, verdict in pairs if not verdict.never]
        if snapshot.closer is not None:
            chosen = list(snapshot.closer(chosen))
        return replace(snapshot, files=tuple(chosen))

    def _rows(
        self, snapshot: Snapshot, file: DataFile, group: int, handle: pa.NativeFile | None
    ) -> Iterator[pa.Table]:
        asked = [] if self.where is None else predicate_columns(self.where, snapshot.schema)
        read = list(dict.fromkeys([*self.columns, *asked])) or list(snapshot.schema.names[:1])
        with FileReader(file, snapshot.schema, snapshot.filesystem, handle=handle) as reader:
            if handle is None:
                check_same(snapshot, file)  # after opening: what is open is what the snapshot names
            for piece in reader.live_pieces(read, group):
                if self.where is not None:
                    piece = take_rows(piece, hit_positions(self.where, piece))
                if piece.num_rows:
                    yield piece.select(list(self.columns))
