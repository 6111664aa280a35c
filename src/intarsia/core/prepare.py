"""From what was asked to what can run: names and types settled, the source cast and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.names import check_columns, listed_names
from intarsia.common.partitions import check_partition_columns
from intarsia.common.schema import check_key_types, conform_schema, convert_large_types_to_normal
from intarsia.common.source import Source, conformed, selected
from intarsia.core.clauses import resolve_assignments, resolve_rule
from intarsia.core.effects import check_overwrite
from intarsia.core.evaluate import hit_positions
from intarsia.core.expr import resolve
from intarsia.core.files import Snapshot
from intarsia.core.intent import Deduplicate, Delete, Intent, Merge, Optimize, Predicate, Update, Write
from intarsia.core.keys import KeyIndex, marked, winners
from intarsia.core.planning import SourceFacts
from intarsia.core.problems import (
    check_exists,
    duplicate_source_keys,
    missing_keys,
    null_source_keys,
    refuse_outside,
)
from intarsia.core.prune import KeyRange, PartitionSet
from intarsia.core.rule import STRATEGIES
from intarsia.core.spark_note import as_stored
from intarsia.core.spelling import spell_columns, spell_merge, spell_partitions
from intarsia.core.stars import resolve_star
from intarsia.errors import InputError, NotSupported, SchemaMismatch

_NOTHING = pa.table({})
_BEGIN_ANEW = 'the dataset has no rows but keeps its schema and partitions: mode="overwrite" gives it others'


@dataclass(frozen=True, slots=True)
class Prepared:
    """An intent that can be planned against one snapshot."""

    intent: Intent
    schema: pa.Schema
    """The dataset's schema after the operation."""
    partition_columns: tuple[str, ...]
    table: pa.Table = field(default_factory=lambda: _NOTHING, repr=False)
    """The source in the dataset's types, one row per key where the intent asks for that."""
    facts: SourceFacts = field(default_factory=lambda: SourceFacts(0))
    source_rows: int = 0
    index: KeyIndex | None = field(default=None, repr=False)
    """The source's keys, indexed."""
    remote: Any = field(default=None, repr=False)
    """What an engine keeps of the source elsewhere; ``table`` may have no row then."""
    notes: tuple[str, ...] = ()
    """What the plan should say besides."""
    shuffled: bool = False
    """Whether rows come to new files in an order that may differ from run to run, and with it their size."""

    @property
    def source_bytes(self) -> int:
        """The size of the source in memory."""
        return int(self.table.nbytes) if self.remote is None else int(self.remote.size)


def prepare(intent: Intent, snapshot: Snapshot, source: Source | None) -> Prepared:
    """Settle every name and type; raises InputError and its kin before anything is read or written.

    Raises NothingMatched where rows of a table that does not exist are to be deleted or updated.
    """
    match intent:
        case Merge():
            assert source is not None
            return _prepare_merge(intent, snapshot, _fitted(source, intent, snapshot))
        case Write():
            assert source is not None
            return _prepare_write(intent, snapshot, _fitted(source, intent, snapshot))
        case Delete():
            check_exists(snapshot, "delete")
            return _plain(replace(intent, where=_resolved_predicate(intent.where, snapshot)), snapshot)
        case Update():
            check_exists(snapshot, "update")
            return _plain(_resolved_update(intent, snapshot), snapshot)
        case Deduplicate():
            intent = spell_columns(intent, snapshot)
            _check_columns([*intent.keys, *intent.order_by], snapshot, "deduplicate")
            if snapshot.settled:  # without any file, planning says that there is nothing
                keys = intent.keys or snapshot.schema.names
                check_key_types(
                    snapshot.schema, keys, side="target", operation="deduplicate", path=snapshot.root
                )
            return _plain(intent, snapshot)
        case Optimize():
            intent = spell_columns(intent, snapshot)
            _check_columns(
                [*intent.by, *intent.deduplicate_keys, *intent.dedup_order_by], snapshot, "optimize"
            )
            return _plain(intent, snapshot)
        case _:
            return _plain(intent, snapshot)


def _fitted(source: Source, intent: Merge | Write, snapshot: Snapshot) -> Source:
    """The source with Spark's intervals as the files hold them; what is overwritten has no say."""
    if intent.operation == "overwrite":
        return source
    return as_stored(source, snapshot, operation=intent.operation)


def _plain(intent: Intent, snapshot: Snapshot) -> Prepared:
    return Prepared(intent, snapshot.schema, snapshot.partition_columns)


@dataclass(frozen=True, slots=True)
class MergeTerms:
    """A merge with every name and type settled by the two schemas alone."""

    intent: Merge
    schema: pa.Schema
    """The dataset's schema after the merge."""
    wanted: pa.Schema
    """What the source is cast to."""
    partition_columns: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What the plan should say besides."""

    @property
    def pruning(self) -> tuple[str, ...]:
        """The partition columns by which files can be ruled out.

        A rule that takes no whole row may hit a key in any partition, unless the partition is in the key.
        """
        if not (self.intent.rule.replaces_rows or self.intent.pins(self.partition_columns)):
            return ()
        return tuple(name for name in self.partition_columns if name in self.wanted.names)


def settle_merge(intent: Merge, snapshot: Snapshot, source: pa.Schema) -> MergeTerms:
    """Raises InputError and its kin for what the schemas alone make impossible."""
    intent = spell_merge(intent, snapshot, source)
    operation, path = intent.rule.name, snapshot.root
    _check_keys(intent, snapshot, source)
    star = resolve_star(intent, snapshot, source)
    asked = intent.partition_columns
    partition_columns = settle_partition_columns(asked, snapshot, star.columns, operation)
    schema = _merged_schema(intent, snapshot, star.columns, partition_columns, kept=star.kept)
    wanted = _with_key_types(intent, source, schema)
    if intent.rule.replaces_rows:
        wanted = star.wanted(wanted, schema, strict=operation in STRATEGIES)
    rule = resolve_rule(intent.rule, schema, wanted, partition_columns, path)
    residual = None
    if intent.residual is not None:
        residual = resolve(intent.residual, schema, source=wanted, expect=pa.bool_())
    settled = replace(intent, rule=rule, residual=residual)
    return MergeTerms(settled, schema, wanted, partition_columns, star.notes)


def _prepare_merge(intent: Merge, snapshot: Snapshot, source: Source) -> Prepared:
    path, rows = snapshot.root, source.rows
    terms = settle_merge(intent, snapshot, source.schema)
    source = conformed(source, terms.wanted, operation=terms.intent.rule.name, path=path)
    return prepared_merge(terms, source, path=path, rows=rows)


def prepared_merge(terms: MergeTerms, source: Source, *, path: str, rows: int) -> Prepared:
    """A settled merge and its rows, in the types it wants; columns that decide nothing may be left out."""
    intent = terms.intent
    table = _checked_rows(intent, source, path).table
    index = indexed_keys(intent, table, path)
    ranges = {
        name: KeyRange.of_index(index, number, table[other])
        for number, (name, other) in enumerate(zip(intent.keys, intent.source_keys, strict=True))
    }
    facts = SourceFacts(table.num_rows, ranges, PartitionSet.of(table, terms.pruning))
    return Prepared(
        intent, terms.schema, terms.partition_columns, table, facts, rows, index, notes=terms.notes
    )


def indexed_keys(intent: Merge, table: pa.Table, path: str) -> KeyIndex:
    """The index over a source's keys; raises KeyColumnError where one stands twice and must not."""
    index = KeyIndex([table[n] for n in intent.source_keys], null_match=intent.matches_null)
    operation = intent.rule.name
    if operation in STRATEGIES:  # of clauses, only a target row hit twice is an error
        duplicate_source_keys(table, index, intent.source_keys, operation=operation, path=path)
    return index


def _check_keys(intent: Merge, snapshot: Snapshot, source: pa.Schema) -> None:
    operation, path = intent.rule.name, snapshot.root
    absent = [name for name in intent.source_keys if name not in source.names]
    if absent:
        raise missing_keys(absent, source.names, side="source", operation=operation, path=path)
    check_key_types(source, intent.source_keys, side="source", operation=operation, path=path)
    what = "dedup_order_by column of the source"
    check_columns(intent.dedup_order_by, source.names, operation=operation, path=path, what=what)
    if not snapshot.settled:
        return
    absent = [name for name in intent.keys if name not in snapshot.schema.names]
    if absent:
        raise missing_keys(absent, snapshot.schema.names, side="target", operation=operation, path=path)
    check_key_types(snapshot.schema, intent.keys, side="target", operation=operation, path=path)


def _merged_schema(
    intent: Merge | Write,
    snapshot: Snapshot,
    source: pa.Schema,
    partition_columns: Sequence[str],
    *,
    kept: Sequence[str] = (),
) -> pa.Schema:
    """The dataset's schema afterwards; ``kept`` are columns that rows keep their values of."""
    operation = intent.rule.name if isinstance(intent, Merge) else intent.mode
    if not snapshot.settled:
        _check_new_names(source, operation, snapshot.root)
        return _fresh(source, partition_columns)
    if isinstance(intent, Merge) and not intent.rule.replaces_rows:
        return snapshot.schema
    if intent.schema_evolution is not None and snapshot.spread is not None:
        raise NotSupported(
            f"{operation}: schema_evolution= is for Parquet datasets; a table's schema has ids of its own.",
            path=snapshot.root,
            hint="evolve the schema with the table's own update_schema() first.",
        )
    # Rows that are only updated may keep any column; a new row needs those that cannot be NULL.
    inserts = not isinstance(intent, Merge) or intent.rule.inserts
    apart = () if inserts else tuple(kept)
    target = pa.schema([f for f in snapshot.schema if f.name not in apart], snapshot.schema.metadata)
    try:
        merged = conform_schema(
            source,
            target,
            operation=operation,
            path=snapshot.root,
            missing=intent.missing,
            schema_evolution=intent.schema_evolution,
            partition_columns=snapshot.partition_columns,
            options=_options_for(intent, snapshot),
        )
    except SchemaMismatch as error:
        if not snapshot.files and snapshot.spread is None:
            error.hint = f"{error.hint}; {_BEGIN_ANEW}"
        raise
    if not apart:
        return merged
    fields = {field.name: field for field in (*snapshot.schema, *merged)}
    return pa.schema(list(fields.values()), merged.metadata)


def _options_for(intent: Merge | Write, snapshot: Snapshot) -> frozenset[str]:
    """The options that a hint may name, since they would be taken."""
    owns_schema = snapshot.spread is not None
    merges = {"keep", "except_columns"} if isinstance(intent, Merge) else set()
    return frozenset({"null", *merges, *(() if owns_schema else ("schema_evolution",))})


def _fresh(source: pa.Schema, partition_columns: Sequence[str]) -> pa.Schema:
    """The schema of a dataset that is made from this source: partition columns come last."""
    normal = convert_large_types_to_normal(source)
    stored = [f for f in normal if f.name not in partition_columns]
    apart = [normal.field(name) for name in partition_columns]
    apart = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in apart]
    return pa.schema([*stored, *apart], normal.metadata)


def _check_new_names(schema: pa.Schema, operation: str, path: str) -> None:
    seen: dict[str, str] = {}
    for name in schema.names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise SchemaMismatch(
                f"{operation}: columns {other!r} and {name!r} differ only by case;"
                " several engines cannot tell them apart.",
                path=path,
                hint="rename one of them.",
            )


def _with_key_types(intent: Merge, source: pa.Schema, target: pa.Schema) -> pa.Schema:
    """The source's own columns, its keys in the target's types."""
    kinds = dict(zip(intent.source_keys, (target.field(name).type for name in intent.keys), strict=True))
    return pa.schema([f.with_type(kinds.get(f.name, f.type)) for f in source])


def _checked_rows(intent: Merge, source: Source, path: str) -> Source:
    """The source without NULL keys, and with one row per key where that is asked for."""
    operation, keys, table = intent.rule.name, intent.source_keys, source.table
    nulls = {name: table[name].null_count for _, name in intent.never_null}
    null_source_keys(nulls, operation=operation, path=path)
    if operation == "deduplicate":
        kept = winners(
            [table[n] for n in keys],
            [table[n] for n in intent.dedup_order_by],
            null_match=intent.matches_null,
        )
        return source if len(kept) == table.num_rows else selected(source, kept)
    return source


def settle_write(intent: Write, snapshot: Snapshot, source: pa.Schema) -> tuple[pa.Schema, tuple[str, ...]]:
    """The dataset's schema after a write, and its partition columns."""
    intent = replace(intent, partition_columns=spell_partitions(intent.partition_columns, snapshot, source))
    check_overwrite(intent, snapshot)
    operation, replaces_all = intent.mode, intent.replaces_all
    base = snapshot.unsettled() if replaces_all and snapshot.spread is None else snapshot
    wanted = intent.partition_columns
    if replaces_all and wanted is None and set(snapshot.partition_columns) <= set(source.names):
        wanted = snapshot.partition_columns
    partition_columns = settle_partition_columns(wanted, base, source, operation)
    decide = partition_columns if snapshot.spread is None else snapshot.spread.columns
    if operation == "overwrite_partitions" and not decide:
        raise InputError(
            "overwrite_partitions needs a partitioned dataset.",
            path=snapshot.root,
            hint='name partition_by=, or use mode="overwrite".',
        )
    return _merged_schema(intent, base, source, partition_columns), partition_columns


def _prepare_write(intent: Write, snapshot: Snapshot, source: Source) -> Prepared:
    operation = intent.mode
    schema, partition_columns = settle_write(intent, snapshot, source.schema)
    intent = resolve_overwrite(intent, schema)
    table = conformed(source, schema, operation=operation, path=snapshot.root).table
    if intent.where is not None:
        outside = rows_outside(intent.where, table)
        refuse_outside(table, outside, len(outside), intent, rows=table.num_rows, path=snapshot.root)
    apart = PartitionSet.of(table, partition_columns if operation == "overwrite_partitions" else ())
    facts = SourceFacts(table.num_rows, {}, apart, _parts(operation, table, snapshot))
    return Prepared(intent, schema, partition_columns, table, facts, source.rows)


def resolve_overwrite(intent: Write, schema: pa.Schema) -> Write:
    """The write with every name and type of its condition settled."""
    if intent.where is None or isinstance(intent.where, pc.Expression):
        return intent
    return replace(intent, where=resolve(intent.where, schema, expect=pa.bool_()))


def rows_outside(where: Predicate, table: pa.Table) -> pa.Array:
    """The rows, ascending, for which a condition is not TRUE."""
    inside = marked(hit_positions(where, table), table.num_rows)
    return pc.indices_nonzero(pc.invert(inside)).cast(pa.int64())


def _parts(operation: str, table: pa.Table, snapshot: Snapshot) -> frozenset[Any] | None:
    """The partitions that a dynamic overwrite replaces, where the table deals rows out by itself."""
    if operation != "overwrite_partitions" or snapshot.spread is None:
        return None
    chosen = table.select(list(snapshot.spread.columns))
    return frozenset(part.key for part, _ in snapshot.spread.split(chosen)) if table.num_rows else frozenset()


def settle_partition_columns(
    asked: Sequence[str] | None, snapshot: Snapshot, source: pa.Schema, operation: str
) -> tuple[str, ...]:
    """The columns the dataset is partitioned by: its layout decides, a new one follows the caller."""
    found = snapshot.partition_columns
    if snapshot.spread is not None:
        if asked:
            raise InputError(
                f"{operation}: partition columns {listed_names(asked)} were asked for, but the table's own"
                " partition spec decides.",
                path=snapshot.root,
                hint="leave partition_by out, or evolve the table's spec.",
            )
        return ()
    if snapshot.settled:
        if asked is not None and set(asked) != set(found):
            raise InputError(
                f"{operation}: partition columns {listed_names(asked) or 'none'} were asked for, but the"
                f" dataset is partitioned by {listed_names(found) or 'nothing'}.",
                path=snapshot.root,
                hint="leave partition_columns out, or write a new dataset."
                if snapshot.files
                else f"leave partition_columns out; {_BEGIN_ANEW}",
            )
        return found
    columns = tuple(asked or ())
    check_partition_columns(source, columns, path=snapshot.root)
    return columns


def _resolved_predicate(where: Any, snapshot: Snapshot) -> Any:
    if where is None or isinstance(where, pc.Expression) or not snapshot.settled:
        return where
    return resolve(where, snapshot.schema, expect=pa.bool_())


def _resolved_update(intent: Update, snapshot: Snapshot) -> Update:
    if not snapshot.settled:
        return intent
    values = resolve_assignments(
        intent.assignments,
        snapshot.schema,
        left=snapshot.schema,
        other=None,
        apart=snapshot.partition_columns,
        path=snapshot.root,
    )
    return replace(intent, assignments=values, where=_resolved_predicate(intent.where, snapshot))


def _check_columns(names: Sequence[str], snapshot: Snapshot, operation: str) -> None:
    if snapshot.settled:
        check_columns(names, snapshot.schema.names, operation=operation, path=snapshot.root)
