"""Matching: which rows of files are hit, by the keys of a merge's source or by a predicate.

Of a merge the key columns are read and looked up among the source's keys; of a predicate the columns that
it names, and every row is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.python_values import make_array, make_scalar
from intarsia.common.radix import sort_integers
from intarsia.core.change import Hits, Matches
from intarsia.core.evaluate import evaluate_mask, find_hit_positions
from intarsia.core.expr import Expr, find_columns
from intarsia.core.intent import MergeIntent, Predicate, UpdateIntent
from intarsia.core.keys import KeyIndex, OrderedKeys, arange, find, mark_numbers, to_array
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.prove import list_predicate_columns
from intarsia.core.prune import PartitionSet
from intarsia.core.rule import Action, Assign, Clause, Drop, Insert, Replace, Rule
from intarsia.core.snapshot import Snapshot
from intarsia.core.validation import refuse_null_target_keys, refuse_partition_moves, refuse_several_matches
from intarsia.kernel.overlay import take_rows
from intarsia.kernel.read import FileReader, make_constant_key

BATCH_ROWS = 500_000
MOST_BATCH_ROWS = 16_000_000


@dataclass(frozen=True, slots=True)
class SourceIndex:
    """The source side of a merge, indexed once and shared by all lookups."""

    table: pa.Table
    keys: KeyIndex | None
    """None if another engine finds the pairs."""
    repeated: bool
    """Whether several source rows may have the same key."""
    ordered: OrderedKeys | None
    """The keys in order, if there is one key column and no key repeats."""
    partitions: PartitionSet
    leaders: pa.Array | None
    """Per source row the first row of the same partition."""

    @staticmethod
    def of(source: pa.Table, keys: KeyIndex, partition_columns: Sequence[str]) -> SourceIndex:
        repeated = not keys.is_unique()
        ordered = keys.sort() if keys.single and not repeated else None
        bare = SourceIndex.without_keys(source, partition_columns, repeated=repeated)
        return replace(bare, keys=keys, ordered=ordered)

    @staticmethod
    def without_keys(source: pa.Table, partition_columns: Sequence[str], *, repeated: bool) -> SourceIndex:
        """The index without keys, for pairs that another engine finds."""
        path_columns = [name for name in partition_columns if name in source.column_names]
        partitions = PartitionSet.of(source, path_columns)
        leaders = None
        if partitions.index is not None:
            codes = partitions.index.codes
            leaders = to_array(find(codes, among=codes, null_match=True))
        return SourceIndex(source, None, repeated, None, partitions, leaders)


@dataclass(slots=True)
class FileMatch:
    """What the scan of one file found."""

    plan: FilePlan
    hits: Hits
    matched: list[pa.Array] = field(default_factory=list)
    """Source rows whose key is in the file."""
    nulls: dict[str, int] = field(default_factory=dict)
    moved: pa.Array | None = None
    """Source rows that belong to another partition than the row they would replace."""
    several: int = 0


@dataclass(frozen=True, slots=True)
class MergeMatcher:
    """Finds the hits of one merge, a few files at a time. Thread-safe."""

    plan: Plan
    intent: MergeIntent
    source: SourceIndex

    @property
    def rule(self) -> Rule:
        return self.intent.rule

    @property
    def acting(self) -> tuple[Clause, ...]:
        """The clauses that change rows of files, numbered as the hits' actions."""
        return tuple(clause for clause in self.rule.clauses if clause.side != "source_only")

    @property
    def actions(self) -> tuple[Action, ...]:
        """The actions, by the numbers that hits have."""
        return tuple(clause.action for clause in self.acting)

    def drops_all_rows(self, match: FileMatch) -> bool:
        """Whether every row of a file is deleted."""
        return 0 < match.plan.file.rows == self.count_drops(match)

    def count_drops(self, match: FileMatch) -> int:
        """How many rows of a file are deleted."""
        return sum(
            len(match.hits.select_action(number))
            for number, action in enumerate(self.actions)
            if isinstance(action, Drop)
        )

    def iterate_batches(self, scans: Sequence[FilePlan]) -> Iterator[list[FilePlan]]:
        """Files in batches, since each lookup builds the hash table of the source's keys."""
        limit = min(max(BATCH_ROWS, 2 * self.source.table.num_rows), MOST_BATCH_ROWS)
        batch: list[FilePlan] = []
        rows = 0
        for plan in scans:
            batch.append(plan)
            rows += plan.file.rows
            if rows >= limit:
                yield batch
                batch, rows = [], 0
        if batch:
            yield batch

    def scan(self, batch: Sequence[FilePlan]) -> list[FileMatch]:
        """Read the key columns of some files and find the rows that are hit."""
        found = {plan.file.path: FileMatch(plan, Hits.make_empty()) for plan in batch}
        parts: dict[str, list[_Classified]] = {}
        for pieces in self._iterate_portions(batch):
            self._look_up(pieces, found, parts)
        for path, classified in parts.items():
            found[path].hits = join_hits(classified)
        return list(found.values())

    def _iterate_portions(self, batch: Sequence[FilePlan]) -> Iterator[list[KeyPiece]]:
        """The pieces of each lookup: all, so that the hash table is built once, or ``batch_rows``."""
        columns = KeyColumns(self.plan.snapshot, self.intent)
        pieces = (piece for plan in batch for piece in columns.read_pieces(plan))
        if self.intent.options.batch_rows is not None:
            yield from ([piece] for piece in pieces)
        elif whole := list(pieces):
            yield whole

    def _look_up(
        self, pieces: list[KeyPiece], found: dict[str, FileMatch], parts: dict[str, list[_Classified]]
    ) -> None:
        answers = self._find_pairs(pieces)
        for piece, (there, here) in zip(pieces, answers, strict=True):
            result = found[piece.plan.file.path]
            strict = {name for name, _ in self.intent.never_null}
            for name, column in zip(self.intent.keys, piece.keys, strict=True):
                if column.null_count and name in strict:
                    result.nulls[name] = result.nulls.get(name, 0) + column.null_count
            if len(there) or self.rule.touches_target_only:
                parts.setdefault(piece.plan.file.path, []).append(self.classify(piece, there, here, result))

    def _find_pairs(self, pieces: Sequence[KeyPiece]) -> list[tuple[pa.Array, pa.Array]]:
        """Per piece the pairs (row of the piece, source row) with equal keys."""
        ordered = self.source.ordered
        pairs = [None if ordered is None else ordered.find_pairs(piece.keys[0]) for piece in pieces]
        rest = [piece for piece, known in zip(pieces, pairs, strict=True) if known is None]
        looked_up = iter(self._look_up_all(rest) if rest else ())
        return [next(looked_up) if known is None else known for known in pairs]

    def _look_up_all(self, pieces: Sequence[KeyPiece]) -> Iterator[tuple[pa.Array, pa.Array]]:
        """The pairs of keys in any order, found in one lookup for all pieces."""
        columns = [
            pa.chunked_array([piece.keys[number] for piece in pieces])
            for number in range(len(self.intent.keys))
        ]
        keys = self.source.keys
        assert keys is not None
        there, here = keys.find_pairs(columns) if self.source.repeated else keys.match(columns)
        lengths = make_array([piece.rows for piece in pieces], pa.int64())
        ends = pc.search_sorted(there, pc.cumulative_sum(lengths)).to_pylist()
        begin = offset = 0
        for piece, end in zip(pieces, ends, strict=True):
            rows = pc.subtract(there.slice(begin, end - begin), make_scalar(offset, pa.int64()))
            yield rows, here.slice(begin, end - begin)
            begin, offset = end, offset + piece.rows

    def classify(self, piece: KeyPiece, there: pa.Array, here: pa.Array, result: FileMatch) -> _Classified:
        """The action of each row of a piece, given the pairs of rows and source rows with equal keys."""
        if self.intent.residual is not None and len(there):
            kept = evaluate_mask(
                self.intent.residual, take_rows(piece.table, there), take_rows(self.source.table, here)
            )
            there, here = there.filter(kept), here.filter(kept)
        if len(here):
            result.matched.append(here)
        out = _Classified(piece.start, piece.at)
        if self.rule.touches_matched:
            rows, sources = there, here
            if self.source.repeated:
                rows, sources = self._keep_first_match(there, here, result)
            self._decide(piece, rows, sources, "matched", out)
        if self.rule.touches_target_only:
            alone = pc.indices_nonzero(pc.invert(pc.is_in(arange(piece.rows), value_set=there)))
            self._decide(piece, alone.cast(pa.int64()), None, "target_only", out)
        self._note_moves(piece.plan, out, result)
        return out

    def _keep_first_match(
        self, there: pa.Array, here: pa.Array, result: FileMatch
    ) -> tuple[pa.Array, pa.Array]:
        first = pc.index_in(pc.unique(there), value_set=there)
        if len(first) < len(there) and not self.rule.only_drops_matched:
            result.several += len(there) - len(first)
        return there.take(first), here.take(first)

    def _decide(
        self, piece: KeyPiece, rows: pa.Array, sources: pa.Array | None, side: str, out: _Classified
    ) -> None:
        """Give each row the first clause whose condition is TRUE."""
        for number, clause in enumerate(self.acting):
            if clause.side != side or not len(rows):
                continue
            if clause.condition is None:
                out.add(rows, sources, number)
                return
            hit = evaluate_mask(
                clause.condition,
                take_rows(piece.table, rows),
                None if sources is None else take_rows(self.source.table, sources),
            )
            out.add(rows.filter(hit), None if sources is None else sources.filter(hit), number)
            missed = pc.invert(hit)
            rows = rows.filter(missed)
            sources = None if sources is None else sources.filter(missed)

    def _note_moves(self, plan: FilePlan, out: _Classified, result: FileMatch) -> None:
        """Note source rows that belong to another partition than the row they replace."""
        leaders = self.source.leaders
        if leaders is None or not any(isinstance(action, Replace) for action in self.actions):
            return  # only whole rows have a partition; else the column may be of any type
        home = self.source.partitions.find_rows([plan.file])[0]
        if home == -1:
            return
        for number, clause in enumerate(self.acting):
            if not isinstance(clause.action, Replace):
                continue
            for sources in out.iterate_sources(number):
                theirs = leaders.take(sources)
                away = sources if home is None else sources.filter(pc.not_equal(theirs, make_scalar(home)))
                if len(away):
                    result.moved = away if result.moved is None else pa.concat_arrays([result.moved, away])

    def refuse(self, found: Sequence[FileMatch]) -> None:
        """Raise the errors that make the merge impossible."""
        snapshot, intent = self.plan.snapshot, self.intent
        refuse_null_target_keys(
            [(snapshot.show_path(m.plan.file), m.nulls) for m in found if m.nulls],
            operation=intent.rule.name,
            path=snapshot.root,
        )
        several = sum(m.several for m in found)
        if several:
            refuse_several_matches(several, intent.keys, operation=intent.rule.name, path=snapshot.root)
        moved = [(m.plan.file, m.moved) for m in found if m.moved is not None]
        if moved:
            refuse_partition_moves(moved, self.source.table, intent, snapshot)

    def resolve(self, found: Sequence[FileMatch], rest: pa.Array | None = None) -> Matches:
        """The matches of all files; raises the errors that make the merge impossible. Writes nothing.

        ``rest`` are the source rows without a match, if they are known already.
        """
        self.refuse(found)
        hits = {m.plan.file.path: m.hits for m in found if len(m.hits)}
        dropped = {p.file.path for p in self.plan.select("remove")}
        updated = deleted = 0
        for match in found:
            drops = self.count_drops(match)
            deleted += drops
            updated += len(match.hits) - drops
            if self.drops_all_rows(match):
                dropped.add(match.plan.file.path)
                hits.pop(match.plan.file.path)
        deleted += sum(p.file.rows for p in self.plan.select("remove"))
        inserts: tuple[tuple[Insert, pa.Array], ...] = ()
        if self.rule.inserts:
            inserts = self.choose_inserts(
                self.source.table, self.find_unmatched(found) if rest is None else rest
            )
        return Matches(
            actions=self.actions,
            hits=hits,
            dropped=frozenset(dropped),
            inserts=inserts,
            inserted=sum(len(rows) for _, rows in inserts),
            updated=updated,
            deleted=deleted,
            scanned_bytes=self.plan.bytes_to_scan,
        )

    def find_unmatched(self, found: Sequence[FileMatch]) -> pa.Array:
        """The source rows whose key is in none of the files."""
        rows = self.source.table.num_rows
        matched = [part for match in found for part in match.matched]
        if not matched:
            return arange(rows)
        return pc.indices_nonzero(pc.invert(mark_numbers(pa.chunked_array(matched), rows))).cast(pa.int64())

    def choose_inserts(self, source: pa.Table, rows: pa.Array) -> tuple[tuple[Insert, pa.Array], ...]:
        """Which source rows without a match are inserted, by which action."""
        chosen: list[tuple[Insert, pa.Array]] = []
        for clause in self.rule.list_clauses("source_only"):
            assert isinstance(clause.action, Insert)
            if not len(rows):
                break
            if clause.condition is None:
                chosen.append((clause.action, rows))
                break
            theirs = take_rows(source, rows)
            hit = evaluate_mask(clause.condition, theirs, theirs)
            chosen.append((clause.action, rows.filter(hit)))
            rows = rows.filter(pc.invert(hit))
        return tuple((action, taken) for action, taken in chosen if len(taken))


@dataclass(slots=True)
class _Classified:
    """Rows of one piece, and the action for each."""

    start: int
    at: pa.Array | None = None
    """The position of each row of the piece, counted from ``start``; None if no row is left out."""
    rows: list[pa.Array] = field(default_factory=list)
    sources: list[pa.Array] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)

    def add(self, rows: pa.Array, sources: pa.Array | None, action: int) -> None:
        if len(rows):
            self.rows.append(rows)
            self.sources.append(pa.nulls(len(rows), pa.int64()) if sources is None else sources)
            self.actions.append(action)

    def iterate_sources(self, action: int) -> Iterator[pa.Array]:
        for number, sources in zip(self.actions, self.sources, strict=True):
            if number == action:
                yield sources


def _concat(parts: Sequence[pa.Array]) -> pa.Array:
    """One array of the parts; never a slice, which would hold and pickle the whole array it is cut from."""
    if len(parts) == 1 and parts[0].get_total_buffer_size() <= 2 * parts[0].nbytes:
        return parts[0]
    return pa.concat_arrays(parts)


def join_hits(parts: Sequence[_Classified]) -> Hits:
    """The hits of one file from its pieces, by ascending position."""
    positions, sources, actions = [], [], []
    for part in parts:
        for rows, source, action in zip(part.rows, part.sources, part.actions, strict=True):
            theirs = rows if part.at is None else part.at.take(rows)
            positions.append(pc.add(theirs, make_scalar(part.start, pa.int64())) if part.start else theirs)
            sources.append(source)
            actions.append(action)
    if not positions:
        return Hits.make_empty()
    if len(set(actions)) == 1:  # row groups are in order already
        return Hits(_concat(positions), actions[0], _concat(sources))
    numbers = pa.concat_arrays(
        [
            pa.repeat(make_scalar(action, pa.int8()), len(rows))
            for action, rows in zip(actions, positions, strict=True)
        ]
    )
    rows = pa.concat_arrays(positions)
    order = sort_integers(rows)
    return Hits(rows.take(order), numbers.take(order), pa.concat_arrays(sources).take(order))


@dataclass(frozen=True, slots=True)
class KeyPiece:
    """The key columns of one row group, and the columns that conditions read."""

    plan: FilePlan
    start: int
    rows: int
    keys: list[pa.Array]
    table: pa.Table
    at: pa.Int64Array | None = None
    """The position of each row, counted from ``start``; None if no deleted row is left out."""


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """Reads key pieces, file by file."""

    snapshot: Snapshot
    intent: MergeIntent

    def read_pieces(self, plan: FilePlan) -> Iterator[KeyPiece]:
        """The row groups that may be hit, one after the other."""
        snapshot = self.snapshot
        needed = [name for name in self.intent.keys if name not in plan.file.partition]
        extra = [name for name in self.list_condition_columns() if name not in needed]
        if not (needed or extra) and self.conditions:
            needed = list(self.intent.keys)  # so that the table has as many rows
        with FileReader(plan.file, snapshot.schema, snapshot.filesystem) as reader:
            wanted = set(plan.row_groups)
            start = 0
            for group in range(reader.footer.num_row_groups):
                rows = reader.footer.row_group(group).num_rows
                if group in wanted:
                    offset = start
                    for count, table in self._read(reader, [*needed, *extra], group):
                        live = reader.find_live_rows(offset, count)
                        left = count if live is None else len(live)
                        table = table if live is None else take_rows(table, live)
                        yield KeyPiece(plan, offset, left, self._make_keys(plan, table, left), table, live)
                        offset += count
                start += rows

    def _read(self, reader: FileReader, columns: list[str], group: int) -> Iterator[tuple[int, pa.Table]]:
        """The columns of a row group and the number of rows, which a table without columns does not have."""
        limit = self.intent.options.batch_rows
        if limit is None or not columns:
            yield reader.footer.row_group(group).num_rows, reader.read(columns, group)
            return
        for piece in reader.read_pieces(columns, group, batch_rows=limit):
            yield piece.num_rows, piece

    def _make_keys(self, plan: FilePlan, table: pa.Table, rows: int) -> list[pa.Array]:
        keys = []
        for name in self.intent.keys:
            dtype = self.snapshot.schema.field(name).type
            if name in plan.file.partition:
                keys.append(make_constant_key(plan.file.partition[name], dtype, rows))
            elif name in self.snapshot.partition_columns:
                column = to_array(table[name])  # not in the path: a dictionary as in other files
                keys.append(column if pa.types.is_dictionary(column.type) else column.dictionary_encode())
            else:
                keys.append(to_array(table[name]))
        return keys

    @property
    def conditions(self) -> list[Expr]:
        """The conditions on target rows beyond the equality of keys."""
        acting = (clause.condition for clause in self.intent.rule.clauses if clause.side != "source_only")
        return [condition for condition in (self.intent.residual, *acting) if condition is not None]

    def list_condition_columns(self) -> list[str]:
        """Target columns that conditions read."""
        used = {
            path[0]
            for condition in self.conditions
            for side, path in find_columns(condition)
            if side != "source"
        }
        return [name for name in self.snapshot.schema.names if name in used]


KEPT_BYTES = 32
"""Bytes per hit of values that are kept: about four numbers."""


def find_predicate_hits(
    plan: FilePlan, where: Predicate, snapshot: Snapshot, batch_rows: int | None, *, keep: bool = False
) -> Hits:
    """The positions in one file where the predicate is TRUE; reads only the columns it names.

    With ``keep``, the hits have the values of these columns where they are small: whoever copies the rows
    decodes them once less.
    """
    if where is None and plan.file.scan_task is None:
        return Hits(arange(plan.file.rows))
    columns = list_predicate_columns(where, snapshot.schema)
    wanted = set(plan.row_groups)
    found: list[pa.Array] = []
    values: list[pa.Table] = []
    with FileReader(plan.file, snapshot.schema, snapshot.filesystem) as reader:
        start = 0
        for group in range(reader.footer.num_row_groups):
            rows = reader.footer.row_group(group).num_rows
            if group in wanted:
                offset = start
                for piece in reader.read_pieces(columns, group, batch_rows=batch_rows):
                    live = reader.find_live_rows(offset, piece.num_rows)
                    hit = _find_hits_among(where, piece, live)
                    found.append(pc.add(hit, make_scalar(offset, pa.int64())))
                    if keep and columns:
                        values.append(take_rows(piece.select(columns), hit))
                        keep = values[-1].nbytes <= KEPT_BYTES * max(len(hit), 1)
                    offset += piece.num_rows
            start += rows
    if not found:
        return Hits.make_empty()
    return Hits(pa.concat_arrays(found), values=pa.concat_tables(values) if keep and values else None)


def _find_hits_among(where: Predicate, piece: pa.Table, live: pa.Array | None) -> pa.Array:
    """The rows of a piece that are hit; never deleted rows."""
    rows = piece if live is None else take_rows(piece, live)
    hit = arange(rows.num_rows) if where is None else find_hit_positions(where, rows)
    return hit if live is None else live.take(hit)


def resolve_hits(plan: Plan, scans: Sequence[FilePlan], found: Sequence[Hits]) -> Matches:
    """The matches of a predicate in all files; a file whose rows are all deleted is dropped."""
    hits = {item.file.path: mine for item, mine in zip(scans, found, strict=True) if len(mine)}
    whole = plan.select("remove")
    count = sum(len(mine) for mine in hits.values()) + sum(item.file.rows for item in whole)
    scanned = plan.bytes_to_scan
    if isinstance(plan.intent, UpdateIntent):
        return Matches((Assign(plan.intent.assignments),), hits, updated=count, scanned_bytes=scanned)
    emptied = {item.file.path for item in scans if len(hits.get(item.file.path, ())) == item.file.rows > 0}
    dropped = frozenset(emptied | {item.file.path for item in whole})
    kept = {path: mine for path, mine in hits.items() if path not in emptied}
    return Matches((Drop(),), kept, dropped, deleted=count, scanned_bytes=scanned)


def with_new_rows(found: Matches, rows: pa.Table) -> Matches:
    """The rows that an overwrite deletes, and all rows of its source as new ones."""
    return replace(found, inserts=tuple(insert_all_rows(rows)), inserted=rows.num_rows)


def insert_all_rows(source: pa.Table) -> list[tuple[Insert, pa.Array]]:
    """Every source row as a new row, with the values it has."""
    return [(Insert(), arange(source.num_rows))] if source.num_rows else []
