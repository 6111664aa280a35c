"""Preparing an operation: names and types resolved, the source cast and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.names import check_columns, find_spelling, join_names
from intarsia.common.partitions import check_partition_columns
from intarsia.common.schema import check_key_types, conform_schema, convert_large_types_to_normal
from intarsia.common.source import IngestedSource, conform_source, select_rows
from intarsia.core.clauses import resolve_assignments, resolve_rule, resolve_star
from intarsia.core.effects import check_overwrite
from intarsia.core.evaluate import find_hit_positions
from intarsia.core.expr import resolve
from intarsia.core.intent import (
    DeduplicateIntent,
    DeleteIntent,
    Intent,
    MergeIntent,
    OptimizeIntent,
    Predicate,
    UpdateIntent,
    WriteIntent,
)
from intarsia.core.keys import KeyIndex, find_winners, mark_numbers
from intarsia.core.planning import SourceFacts
from intarsia.core.prune import KeyRange, PartitionSet
from intarsia.core.rule import STRATEGIES
from intarsia.core.snapshot import Snapshot
from intarsia.core.spark_metadata import conform_to_stored
from intarsia.core.validation import (
    check_exists,
    make_missing_keys_error,
    refuse_duplicate_source_keys,
    refuse_null_source_keys,
    refuse_outside,
)
from intarsia.errors import InputError, KeyColumnError, NotSupported, SchemaMismatch

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
    """What an engine keeps of the source outside of this process; ``table`` may be empty then."""
    notes: tuple[str, ...] = ()
    """Notes for the plan."""

    @property
    def source_bytes(self) -> int:
        """The size of the source in memory."""
        return int(self.table.nbytes) if self.remote is None else int(self.remote.size)


def prepare(intent: Intent, snapshot: Snapshot, source: IngestedSource | None) -> Prepared:
    """Resolve every name and type; raises InputError and related errors before anything is read or written.

    Raises NothingMatched where rows of a table that does not exist are to be deleted or updated.
    """
    match intent:
        case MergeIntent():
            assert source is not None
            return _prepare_merge(intent, snapshot, _fit_source(source, intent, snapshot))
        case WriteIntent():
            assert source is not None
            return _prepare_write(intent, snapshot, _fit_source(source, intent, snapshot))
        case DeleteIntent():
            check_exists(snapshot, "delete")
            return _make_prepared(replace(intent, where=_resolve_predicate(intent.where, snapshot)), snapshot)
        case UpdateIntent():
            check_exists(snapshot, "update")
            return _make_prepared(_resolve_update(intent, snapshot), snapshot)
        case DeduplicateIntent():
            intent = spell_columns(intent, snapshot)
            _check_columns([*intent.keys, *intent.order_by], snapshot, "deduplicate")
            if snapshot.has_schema:  # planning says so where there is no file
                keys = intent.keys or snapshot.schema.names
                check_key_types(
                    snapshot.schema, keys, side="target", operation="deduplicate", path=snapshot.root
                )
            return _make_prepared(intent, snapshot)
        case OptimizeIntent():
            intent = spell_columns(intent, snapshot)
            _check_columns(
                [*intent.by, *intent.deduplicate_keys, *intent.dedup_order_by], snapshot, "optimize"
            )
            return _make_prepared(intent, snapshot)
        case _:
            return _make_prepared(intent, snapshot)


def _fit_source(
    source: IngestedSource, intent: MergeIntent | WriteIntent, snapshot: Snapshot
) -> IngestedSource:
    """The source with Spark's own types as the files store them, unless all files are overwritten."""
    if intent.operation == "overwrite":
        return source
    return conform_to_stored(source, snapshot, operation=intent.operation)


def _make_prepared(intent: Intent, snapshot: Snapshot) -> Prepared:
    return Prepared(intent, snapshot.schema, snapshot.partition_columns)


@dataclass(frozen=True, slots=True)
class MergeTerms:
    """A merge with every name and type resolved by the two schemas alone."""

    intent: MergeIntent
    schema: pa.Schema
    """The dataset's schema after the merge."""
    wanted: pa.Schema
    """What the source is cast to."""
    partition_columns: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Notes for the plan."""

    @property
    def pruning(self) -> tuple[str, ...]:
        """The partition columns by which files can be ruled out.

        A rule that takes no whole row may hit a key in any partition, unless the partition is in the key.
        """
        if not (self.intent.rule.replaces_rows or self.intent.has_equal_columns(self.partition_columns)):
            return ()
        return tuple(name for name in self.partition_columns if name in self.wanted.names)


def resolve_merge(intent: MergeIntent, snapshot: Snapshot, source: pa.Schema) -> MergeTerms:
    """Raises InputError and related errors for what the schemas alone make impossible."""
    intent = spell_merge(intent, snapshot, source)
    operation, path = intent.rule.name, snapshot.root
    _check_keys(intent, snapshot, source)
    star = resolve_star(intent, snapshot, source)
    asked = intent.partition_columns
    partition_columns = resolve_partition_columns(asked, snapshot, star.columns, operation)
    schema = _merge_schema(intent, snapshot, star.columns, partition_columns, kept=star.kept)
    wanted = _with_key_types(intent, source, schema)
    if intent.rule.replaces_rows:
        wanted = star.make_source_schema(wanted, schema, strict=operation in STRATEGIES)
    rule = resolve_rule(intent.rule, schema, wanted, partition_columns, path)
    residual = None
    if intent.residual is not None:
        residual = resolve(intent.residual, schema, source=wanted, expect=pa.bool_())
    resolved = replace(intent, rule=rule, residual=residual)
    return MergeTerms(resolved, schema, wanted, partition_columns, star.notes)


def _prepare_merge(intent: MergeIntent, snapshot: Snapshot, source: IngestedSource) -> Prepared:
    path, rows = snapshot.root, source.rows
    terms = resolve_merge(intent, snapshot, source.schema)
    source = conform_source(source, terms.wanted, operation=terms.intent.rule.name, path=path)
    return prepare_rows(terms, source, path=path, rows=rows)


def prepare_rows(terms: MergeTerms, source: IngestedSource, *, path: str, rows: int) -> Prepared:
    """A resolved merge with its source rows in the wanted types, at least the columns that decide."""
    intent = terms.intent
    table = _check_rows(intent, source, path).table
    index = index_keys(intent, table, path)
    ranges = {
        name: KeyRange.of_index(index, number, table[other])
        for number, (name, other) in enumerate(zip(intent.keys, intent.source_keys, strict=True))
    }
    facts = SourceFacts(table.num_rows, ranges, PartitionSet.of(table, terms.pruning))
    return Prepared(
        intent, terms.schema, terms.partition_columns, table, facts, rows, index, notes=terms.notes
    )


def index_keys(intent: MergeIntent, table: pa.Table, path: str) -> KeyIndex:
    """The index over a source's keys; raises KeyColumnError for duplicate keys that are not allowed."""
    index = KeyIndex([table[n] for n in intent.source_keys], null_match=intent.matches_null)
    operation = intent.rule.name
    if operation in STRATEGIES:  # with clauses, only a target row that is hit twice is an error
        refuse_duplicate_source_keys(table, index, intent.source_keys, operation=operation, path=path)
    return index


def _check_keys(intent: MergeIntent, snapshot: Snapshot, source: pa.Schema) -> None:
    operation, path = intent.rule.name, snapshot.root
    absent = [name for name in intent.source_keys if name not in source.names]
    if absent:
        raise make_missing_keys_error(absent, source.names, side="source", operation=operation, path=path)
    check_key_types(source, intent.source_keys, side="source", operation=operation, path=path)
    what = "dedup_order_by column of the source"
    check_columns(intent.dedup_order_by, source.names, operation=operation, path=path, what=what)
    if not snapshot.has_schema:
        return
    absent = [name for name in intent.keys if name not in snapshot.schema.names]
    if absent:
        raise make_missing_keys_error(
            absent, snapshot.schema.names, side="target", operation=operation, path=path
        )
    check_key_types(snapshot.schema, intent.keys, side="target", operation=operation, path=path)


def _merge_schema(
    intent: MergeIntent | WriteIntent,
    snapshot: Snapshot,
    source: pa.Schema,
    partition_columns: Sequence[str],
    *,
    kept: Sequence[str] = (),
) -> pa.Schema:
    """The dataset's schema after the merge; ``kept`` are columns whose values rows keep."""
    operation = intent.rule.name if isinstance(intent, MergeIntent) else intent.mode
    if not snapshot.has_schema:
        _check_new_names(source, operation, snapshot.root)
        return _make_new_schema(source, partition_columns)
    if isinstance(intent, MergeIntent) and not intent.rule.replaces_rows:
        return snapshot.schema
    if intent.schema_evolution is not None and snapshot.format.owns_schema:
        raise NotSupported(
            f"{operation}: schema_evolution= is for Parquet datasets; a table's schema has ids of its own.",
            path=snapshot.root,
            hint="evolve the schema with the table's own update_schema() first.",
        )
    # Rows that are only updated may keep any column; a new row needs those that cannot be NULL.
    inserts = not isinstance(intent, MergeIntent) or intent.rule.inserts
    path_columns = () if inserts else tuple(kept)
    target = pa.schema([f for f in snapshot.schema if f.name not in path_columns], snapshot.schema.metadata)
    try:
        merged = conform_schema(
            source,
            target,
            operation=operation,
            path=snapshot.root,
            missing=intent.missing,
            schema_evolution=intent.schema_evolution,
            partition_columns=snapshot.partition_columns,
            options=_list_hint_options(intent, snapshot),
        )
    except SchemaMismatch as error:
        if not snapshot.files and not snapshot.format.owns_schema:
            error.hint = f"{error.hint}; {_BEGIN_ANEW}"
        raise
    if not path_columns:
        return merged
    fields = {field.name: field for field in (*snapshot.schema, *merged)}
    return pa.schema(list(fields.values()), merged.metadata)


def _list_hint_options(intent: MergeIntent | WriteIntent, snapshot: Snapshot) -> frozenset[str]:
    """The options that a hint may suggest, because the operation accepts them."""
    owns_schema = snapshot.format.owns_schema
    merges = {"keep", "except_columns"} if isinstance(intent, MergeIntent) else set()
    return frozenset({"null", *merges, *(() if owns_schema else ("schema_evolution",))})


def _make_new_schema(source: pa.Schema, partition_columns: Sequence[str]) -> pa.Schema:
    """The schema of a dataset that is made from this source: partition columns come last."""
    normal = convert_large_types_to_normal(source)
    stored = [f for f in normal if f.name not in partition_columns]
    path_columns = [normal.field(name) for name in partition_columns]
    path_columns = [
        f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in path_columns
    ]
    return pa.schema([*stored, *path_columns], normal.metadata)


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


def _with_key_types(intent: MergeIntent, source: pa.Schema, target: pa.Schema) -> pa.Schema:
    """The source's own columns, its keys in the target's types."""
    kinds = dict(zip(intent.source_keys, (target.field(name).type for name in intent.keys), strict=True))
    return pa.schema([f.with_type(kinds.get(f.name, f.type)) for f in source])


def _check_rows(intent: MergeIntent, source: IngestedSource, path: str) -> IngestedSource:
    """The source without NULL keys, and with one row per key where that is asked for."""
    operation, keys, table = intent.rule.name, intent.source_keys, source.table
    nulls = {name: table[name].null_count for _, name in intent.never_null}
    refuse_null_source_keys(nulls, operation=operation, path=path)
    if operation == "deduplicate":
        kept = find_winners(
            [table[n] for n in keys],
            [table[n] for n in intent.dedup_order_by],
            null_match=intent.matches_null,
        )
        return source if len(kept) == table.num_rows else select_rows(source, kept)
    return source


def resolve_write(
    intent: WriteIntent, snapshot: Snapshot, source: pa.Schema
) -> tuple[pa.Schema, tuple[str, ...]]:
    """The dataset's schema after a write, and its partition columns."""
    intent = replace(intent, partition_columns=spell_partitions(intent.partition_columns, snapshot, source))
    check_overwrite(intent, snapshot)
    operation, replaces_all = intent.mode, intent.replaces_all
    base = snapshot.without_files() if replaces_all and not snapshot.format.owns_schema else snapshot
    wanted = intent.partition_columns
    if replaces_all and wanted is None and set(snapshot.partition_columns) <= set(source.names):
        wanted = snapshot.partition_columns
    partition_columns = resolve_partition_columns(wanted, base, source, operation)
    decide = snapshot.partitioner.columns if snapshot.format.owns_schema else partition_columns
    if operation == "overwrite_partitions" and not decide:
        raise InputError(
            "overwrite_partitions needs a partitioned dataset.",
            path=snapshot.root,
            hint='name partition_by=, or use mode="overwrite".',
        )
    return _merge_schema(intent, base, source, partition_columns), partition_columns


def _prepare_write(intent: WriteIntent, snapshot: Snapshot, source: IngestedSource) -> Prepared:
    operation = intent.mode
    schema, partition_columns = resolve_write(intent, snapshot, source.schema)
    intent = resolve_overwrite(intent, schema)
    table = conform_source(source, schema, operation=operation, path=snapshot.root).table
    if intent.where is not None:
        outside = find_rows_outside(intent.where, table)
        refuse_outside(table, outside, len(outside), intent, rows=table.num_rows, path=snapshot.root)
    path_columns = PartitionSet.of(table, partition_columns if operation == "overwrite_partitions" else ())
    facts = SourceFacts(
        table.num_rows, {}, path_columns, _find_replaced_partitions(operation, table, snapshot)
    )
    return Prepared(intent, schema, partition_columns, table, facts, source.rows)


def resolve_overwrite(intent: WriteIntent, schema: pa.Schema) -> WriteIntent:
    """The write with every name and type of its condition resolved."""
    if intent.where is None or isinstance(intent.where, pc.Expression):
        return intent
    return replace(intent, where=resolve(intent.where, schema, expect=pa.bool_()))


def find_rows_outside(where: Predicate, table: pa.Table) -> pa.Array:
    """The rows, ascending, for which a condition is not TRUE."""
    inside = mark_numbers(find_hit_positions(where, table), table.num_rows)
    return pc.indices_nonzero(pc.invert(inside)).cast(pa.int64())


def _find_replaced_partitions(operation: str, table: pa.Table, snapshot: Snapshot) -> frozenset[Any] | None:
    """The partitions that a dynamic overwrite replaces, where the table's spec decides."""
    if operation != "overwrite_partitions" or not snapshot.format.owns_schema:
        return None
    chosen = table.select(list(snapshot.partitioner.columns))
    return (
        frozenset(part.key for part, _ in snapshot.partitioner.partition_rows(chosen))
        if table.num_rows
        else frozenset()
    )


def resolve_partition_columns(
    asked: Sequence[str] | None, snapshot: Snapshot, source: pa.Schema, operation: str
) -> tuple[str, ...]:
    """The columns the dataset is partitioned by: its layout decides, a new one follows the caller."""
    found = snapshot.partition_columns
    if snapshot.format.owns_schema:
        if asked:
            raise InputError(
                f"{operation}: partition columns {join_names(asked)} were asked for, but the table's own"
                " partition spec decides.",
                path=snapshot.root,
                hint="leave partition_by out, or evolve the table's spec.",
            )
        return ()
    if snapshot.has_schema:
        if asked is not None and set(asked) != set(found):
            raise InputError(
                f"{operation}: partition columns {join_names(asked) or 'none'} were asked for, but the"
                f" dataset is partitioned by {join_names(found) or 'nothing'}.",
                path=snapshot.root,
                hint="leave partition_columns out, or write a new dataset."
                if snapshot.files
                else f"leave partition_columns out; {_BEGIN_ANEW}",
            )
        return found
    columns = tuple(asked or ())
    check_partition_columns(source, columns, path=snapshot.root)
    return columns


def _resolve_predicate(where: Any, snapshot: Snapshot) -> Any:
    if where is None or isinstance(where, pc.Expression) or not snapshot.has_schema:
        return where
    return resolve(where, snapshot.schema, expect=pa.bool_())


def _resolve_update(intent: UpdateIntent, snapshot: Snapshot) -> UpdateIntent:
    if not snapshot.has_schema:
        return intent
    values = resolve_assignments(
        intent.assignments,
        snapshot.schema,
        left=snapshot.schema,
        other=None,
        path_columns=snapshot.partition_columns,
        path=snapshot.root,
    )
    return replace(intent, assignments=values, where=_resolve_predicate(intent.where, snapshot))


def _check_columns(names: Sequence[str], snapshot: Snapshot, operation: str) -> None:
    if snapshot.has_schema:
        check_columns(names, snapshot.schema.names, operation=operation, path=snapshot.root)


Maintenance = TypeVar("Maintenance", DeduplicateIntent, OptimizeIntent)
_COLUMNS = ("keys", "order_by", "by", "deduplicate_keys", "dedup_order_by")


def spell_merge(intent: MergeIntent, snapshot: Snapshot, source: pa.Schema) -> MergeIntent:
    """The merge with its keys and other columns in the spelling that each side has.

    Raises:
        InputError: a name that could be any of several columns.
        KeyColumnError: two names of one key column.
    """
    path = snapshot.root
    target = snapshot.schema if snapshot.has_schema else source
    quoted = {side: {name for where, name in intent.quoted if where == side} for side in ("target", "source")}
    keys = find_spelling(intent.keys, target.names, path=path, exact=quoted["target"])
    theirs = find_spelling(intent.source_keys, source.names, path=path, exact=quoted["source"])
    pairs = list(zip(keys, theirs, strict=True))
    twice = [pair[0] for number, pair in enumerate(pairs) if pair in pairs[:number]]
    if twice:
        raise KeyColumnError(
            f"key column {join_names(twice)} is given more than once.", path=path, hint="name it once."
        )
    return replace(
        intent,
        keys=keys,
        source_keys=theirs,
        dedup_order_by=find_spelling(intent.dedup_order_by, source.names, path=path),
        except_columns=find_spelling(intent.except_columns, source.names, path=path),
        partition_columns=spell_partitions(intent.partition_columns, snapshot, source),
    )


def spell_partitions(
    asked: tuple[str, ...] | None, snapshot: Snapshot, source: pa.Schema
) -> tuple[str, ...] | None:
    """Partition columns in the dataset's spelling, else in the source's."""
    if asked is None:
        return None
    return find_spelling(asked, snapshot.partition_columns or source.names, path=snapshot.root)


def spell_columns(intent: Maintenance, snapshot: Snapshot) -> Maintenance:
    """The operation with its columns in the table's spelling, where it has one."""
    if not snapshot.has_schema:
        return intent
    names, path = snapshot.schema.names, snapshot.root
    given = {name: getattr(intent, name) for name in _COLUMNS if hasattr(intent, name)}
    spelled: dict[str, Any] = {name: find_spelling(value, names, path=path) for name, value in given.items()}
    return replace(intent, **spelled)
