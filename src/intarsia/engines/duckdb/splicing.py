"""Files of which DuckDB writes only the columns that change; the others' chunks are taken over as bytes."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.disk import local_path
from intarsia.core.change import StagedFile
from intarsia.core.elements import same_leaves
from intarsia.core.keys import arange
from intarsia.core.rule import Drop
from intarsia.engines.arrow import overlay as kernel
from intarsia.engines.arrow.chunks import Donor, Unspliceable
from intarsia.engines.arrow.reading import FileReader, encoded_columns
from intarsia.engines.arrow.rewrite import Rewrite
from intarsia.engines.arrow.splice import Splice
from intarsia.engines.duckdb.overlay import Layer, Overlay
from intarsia.engines.duckdb.scan import Scan
from intarsia.engines.duckdb.session import Session
from intarsia.engines.duckdb.text import POS, name, named
from intarsia.engines.duckdb.types import sql_type
from intarsia.engines.duckdb.writing import Target

__all__ = ["Splicing", "foresee", "splices"]

logger = logging.getLogger(__name__)

ROW_GROUP_BYTES = 1 << 20
"""Row groups smaller than this on average are written sooner than queries for each of them are planned."""
PAYS = 0.2
"""What has to stay of a file's bytes."""
PIECE_ROWS = 1 << 15
"""So many rows are looked at first: nearly always they tell that a column changes."""
_ENOUGH = 16
"""So many rows tell of others."""
_VECTOR_ROWS = 2_048


@dataclass(frozen=True, slots=True)
class Splicing:
    """One file to be written from its own column chunks and from new ones."""

    task: Rewrite
    target: Target
    overlay: Overlay
    """What is laid over the file's rows, none of which go."""
    scan: Scan = field(repr=False)
    session: Session = field(repr=False)
    foreseen: Mapping[str, bool] = field(default_factory=dict)
    """Columns that will surely change where rows do, and need no look; and those that will not, it seems."""

    def staged(self) -> StagedFile | None:
        """The file; None where nothing would be won or it cannot be done.

        Memory: DuckDB's, for the columns that change; the encoded chunks of one row group; a column of one
        that is compared, or a piece of it.
        """
        task = self.task
        if not splices(task):
            return None
        encoded = [n for n in encoded_columns(task.file, task.schema) if n not in task.partition_columns]
        with FileReader(task.file, task.schema, task.filesystem, encoded=encoded) as reader:
            splice = Splice.of(
                reader,
                task.location,
                self.target.schema,
                filesystem=task.staging,
                layout=self.target.layout,
                metadata=self.target.metadata,
                encoded=encoded,
                writer=str(reader.footer.created_by).encode(),
            )
            if splice is None or not self._pays(reader, [set(splice.schema.names) - splice.alike]):
                return None
            try:
                return self._spliced(reader, splice)
            except Unspliceable:
                logger.debug("%s is written as a whole", task.file.path, exc_info=True)
                return None
            finally:
                splice.abandon()

    def _pays(self, reader: FileReader, written: Sequence[Collection[str]]) -> bool:
        """Whether enough stays, if these columns are written in each row group, or in all."""
        kept = total = 0
        for group in range(reader.footer.num_row_groups):
            meta = reader.footer.row_group(group)
            for number in range(meta.num_columns):
                chunk = meta.column(number)
                total += chunk.total_uncompressed_size
                if chunk.path_in_schema.split(".", 1)[0] not in written[min(group, len(written) - 1)]:
                    kept += chunk.total_uncompressed_size
        return kept >= PAYS * total

    def _spliced(self, reader: FileReader, splice: Splice) -> StagedFile | None:
        groups = range(reader.footer.num_row_groups)
        written = self._agreed(reader, [self._new(reader, splice, group) for group in groups])
        moving = set[str]().union(*written)
        order = self.target.layout.sort_keys(splice.schema)
        if any(key in moving for key, *_ in order) or not self._pays(reader, written):
            return None
        for group, columns in enumerate(written):
            if columns:
                with self._part(reader, group, [n for n in splice.schema.names if n in columns]) as part:
                    splice.join(group, part)
            else:
                splice.add(group, pa.table({}))
        return splice.close(self.task.file.path, self.task.file.partition)

    def _new(self, reader: FileReader, splice: Splice, group: int) -> set[str]:
        """The columns of a row group that have to be written."""
        start = reader.start_of(group)
        stop = start + reader.footer.row_group(group).num_rows
        layers = [layer for layer in self.overlay.layers if len(layer.between(start, stop))]
        return {
            column
            for column in splice.schema.names
            if column not in splice.alike
            or self._changes(reader, group, column, [each for each in layers if each.has(column)])
        }

    def _changes(self, reader: FileReader, group: int, column: str, layers: Sequence[Layer]) -> bool:
        if layers and self.foreseen.get(column):
            return True
        return _changes(reader, group, column, layers, None if column in self.foreseen else PIECE_ROWS)

    def _agreed(self, reader: FileReader, written: list[set[str]]) -> list[set[str]]:
        """The same, if DuckDB stores columns of some row groups in the way of the file; else Unspliceable."""
        partly = set[str]().union(*written).difference(set[str].intersection(*written))
        if not partly:
            return written
        names = sorted(partly)
        nothing = [
            f"CAST(NULL AS {sql_type(self.task.schema.field(each).type)}) AS {name(each)}" for each in names
        ]
        query = f"SELECT {', '.join(nothing)} WHERE random() < -1"
        old = reader.donor().columns()
        with self._copied(names, query, 0) as made:
            new = made.columns()
        if not all(same_leaves(old[each], new[each]) for each in names):
            raise Unspliceable("DuckDB stores a column in another way than the file")
        return written

    @contextmanager
    def _part(self, reader: FileReader, group: int, columns: Sequence[str]) -> Iterator[Donor]:
        """A file of one row group: some columns of one, as they are to be."""
        task, rows = self.task, reader.footer.row_group(group).num_rows
        start = reader.start_of(group) if reader.footer.num_row_groups > 1 else None
        layers = [layer.of(columns) for layer in self.overlay.layers]
        overlay = replace(self.overlay, rows=rows, start=start, layers=layers)
        location = self.session.location(task.filesystem, task.file.location)
        with self.session.view(overlay.reader()) as view:
            found = overlay.sql(location, self.scan.values(task.file, columns), view, task.schema)
            order = "" if self.session.ordered else f" ORDER BY {name(POS)} ASC"
            query = f"SELECT {named(columns)} FROM ({found}){order}"
            with self._copied(columns, query, rows) as donor:
                if len(donor.groups()) != 1:
                    raise Unspliceable(f"DuckDB made {len(donor.groups())} row groups of one")
                yield donor

    @contextmanager
    def _copied(self, columns: Sequence[str], query: str, rows: int) -> Iterator[Donor]:
        """The rows of a query in a file of their own, which is gone afterwards."""
        task = self.task
        target = replace(
            self.target,
            location=f"{task.location}.columns",
            schema=pa.schema([task.schema.field(each) for each in columns]),
            layout=self.target.layout.with_row_group_rows((rows // _VECTOR_ROWS + 1) * _VECTOR_ROWS),
            metadata={},
        )
        try:
            target.copy(self.session, query, task.file.path, rows=rows)
            with _mapped(task.staging, target.location) as donor:
                yield donor
        finally:
            with suppress(OSError):  # else it is swept with the transaction
                task.staging.delete_file(target.location)


@contextmanager
def _mapped(filesystem: pafs.FileSystem, location: str) -> Iterator[Donor]:
    """A file that we made ourselves, on a local disk: nobody cuts it short while it is mapped."""
    with ExitStack() as stack:
        try:
            handle = stack.enter_context(pa.memory_map(str(local_path(filesystem, location))))
            donor = Donor.of_file(pq.read_metadata(handle), handle)
        except (pa.ArrowInvalid, OSError) as error:
            raise Unspliceable(f"{location} cannot be read: {error}") from error
        yield donor


def splices(task: Rewrite) -> bool:
    """Whether it is worth a look, which columns of a file change."""
    footer, options = task.file.footer, task.options
    if footer is None or task.file.lens is not None or not len(task.hits):
        return False
    if any(isinstance(action, Drop) and len(task.hits.only(n)) for n, action in enumerate(task.actions)):
        return False
    if options.compression is not None or options.row_group_size is not None:
        return False
    return (
        task.file.size >= ROW_GROUP_BYTES * footer.num_row_groups
        and local_path(task.staging, task.location) is not None
    )


def foresee(task: Rewrite, layers: Sequence[Layer]) -> Mapping[str, bool]:
    """Whether columns change where rows do, in files beside this one, too: as the first such rows tell.

    Memory: some ten thousand values.
    """
    found: dict[str, bool] = {}
    layers = [layer for layer in layers if len(layer.positions)]
    if not layers:
        return found
    encoded = encoded_columns(task.file, task.schema)
    with FileReader(task.file, task.schema, task.filesystem, encoded=encoded) as reader:
        for layer in layers:
            first = layer.positions[0].as_py()
            group = bisect_right(range(reader.footer.num_row_groups), first, key=reader.start_of) - 1
            for column in (each for each in layer.table.column_names if _is_as_stored(reader, each)):
                old, new = next(_compared(reader, group, column, [layer], PIECE_ROWS))
                if len(old) >= _ENOUGH:
                    found[column] = found.get(column, False) or _differ(old, new)
    return found


def _is_as_stored(reader: FileReader, column: str) -> bool:
    names = reader.physical.names
    return column in names and reader.physical.field(column).type == reader.schema.field(column).type


def _changes(
    reader: FileReader, group: int, column: str, layers: Sequence[Layer], piece_rows: int | None
) -> bool:
    """Whether values of a column in a row group become others."""
    return any(_differ(old, new) for old, new in _compared(reader, group, column, layers, piece_rows))


def _differ(old: pa.ChunkedArray, new: pa.ChunkedArray) -> bool:
    """Whether values are not the same, bit for bit."""
    return kernel.Overlay(len(old), arange(len(old))).changes(old, new)


def _compared(
    reader: FileReader, group: int, column: str, layers: Sequence[Layer], piece_rows: int | None
) -> Iterator[tuple[pa.ChunkedArray, pa.ChunkedArray]]:
    """Piece by piece of a row group, the values of a column that go and those that come."""
    if not layers:
        return
    start = reader.start_of(group)
    for piece in reader.pieces([column], group, batch_rows=piece_rows):
        stop = start + piece.num_rows
        for layer in layers:
            here = layer.between(start, stop)
            if here:
                places = layer.positions.slice(here.start, len(here))
                old = kernel.take_rows(piece, pc.subtract(places, pa.scalar(start, pa.int64())))
                yield old[column], layer.of([column]).part(here.start, here.stop)[column]
        start = stop
