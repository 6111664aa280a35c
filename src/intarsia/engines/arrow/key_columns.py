"""The columns of files that a merge is decided by: its keys, and what its conditions ask for; no matching."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from intarsia.core.expr import Expr
from intarsia.core.expr import columns as columns_of
from intarsia.core.files import Snapshot
from intarsia.core.intent import Merge
from intarsia.core.keys import flat
from intarsia.core.plan import FilePlan
from intarsia.engines.arrow.overlay import take_rows
from intarsia.engines.arrow.reading import FileReader, constant_key


@dataclass(frozen=True, slots=True)
class Piece:
    """The key columns of one row group, and what conditions need beside them."""

    plan: FilePlan
    start: int
    rows: int
    keys: list[pa.Array]
    table: pa.Table
    at: pa.Int64Array | None = None
    """Which rows these are, counted from ``start``, where dead ones are left out; None is all of them."""


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """Reads them, file by file."""

    snapshot: Snapshot
    intent: Merge

    def pieces(self, plan: FilePlan) -> Iterator[Piece]:
        """The row groups that may be hit, read one after the other."""
        snapshot = self.snapshot
        needed = [name for name in self.intent.keys if name not in plan.file.partition]
        extra = [name for name in self.condition_columns() if name not in needed]
        if not (needed or extra) and self.conditions:
            needed = list(self.intent.keys)  # so that the rows of the table can be counted
        with FileReader(plan.file, snapshot.schema, snapshot.filesystem) as reader:
            wanted = set(plan.row_groups)
            start = 0
            for group in range(reader.footer.num_row_groups):
                rows = reader.footer.row_group(group).num_rows
                if group in wanted:
                    offset = start
                    for count, table in self._read(reader, [*needed, *extra], group):
                        live = reader.alive(offset, count)
                        left = count if live is None else len(live)
                        table = table if live is None else take_rows(table, live)
                        yield Piece(plan, offset, left, self._keys(plan, table, left), table, live)
                        offset += count
                start += rows

    def _read(self, reader: FileReader, columns: list[str], group: int) -> Iterator[tuple[int, pa.Table]]:
        """A row group's columns with their length, which a table of no columns does not know."""
        limit = self.intent.options.batch_rows
        if limit is None or not columns:
            yield reader.footer.row_group(group).num_rows, reader.read(columns, group)
            return
        for piece in reader.pieces(columns, group, batch_rows=limit):
            yield piece.num_rows, piece

    def _keys(self, plan: FilePlan, table: pa.Table, rows: int) -> list[pa.Array]:
        keys = []
        for name in self.intent.keys:
            kind = self.snapshot.schema.field(name).type
            if name in plan.file.partition:
                keys.append(constant_key(plan.file.partition[name], kind, rows))
            elif name in self.snapshot.partition_columns:
                column = flat(table[name])  # unknown from the path: the same form as its siblings
                keys.append(column if pa.types.is_dictionary(column.type) else column.dictionary_encode())
            else:
                keys.append(flat(table[name]))
        return keys

    @property
    def conditions(self) -> list[Expr]:
        """What is asked of target rows beyond the equality of keys."""
        acting = (clause.condition for clause in self.intent.rule.clauses if clause.side != "source_only")
        return [condition for condition in (self.intent.residual, *acting) if condition is not None]

    def condition_columns(self) -> list[str]:
        """Target columns that conditions read."""
        used = {
            path[0]
            for condition in self.conditions
            for side, path in columns_of(condition)
            if side != "source"
        }
        return [name for name in self.snapshot.schema.names if name in used]
