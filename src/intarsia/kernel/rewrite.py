"""Rewriting one data file: its deleted rows are left out and its updated rows have new values.

A task is a plain value, so that threads of this process and executors elsewhere run the same code.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.int96 import find_int96_columns, read_arrow_schema
from intarsia.common.schema import cast_exact, check_categories, conform_table
from intarsia.common.types import get_value_type
from intarsia.core.change import Hits, StagedFile
from intarsia.core.clauses import add_column_to_errors
from intarsia.core.evaluate import evaluate, find_refused_values
from intarsia.core.expr import find_columns
from intarsia.core.intent import MergeIntent, WriteOptions
from intarsia.core.key_value_metadata import check_calendar, find_exact_columns, rewrite_metadata
from intarsia.core.keys import arange
from intarsia.core.layout import Layout, read_layout
from intarsia.core.plan import Plan
from intarsia.core.ports import OutputLocation
from intarsia.core.refusals import Refusal, ValuesRefused
from intarsia.core.rule import Action, Assign, Drop, Replace
from intarsia.core.snapshot import DataFile
from intarsia.errors import SchemaMismatch
from intarsia.kernel.chunk_copy import ChunkCopy
from intarsia.kernel.chunks import NotCopyable
from intarsia.kernel.overlay import Overlay, drop_rows, take_rows
from intarsia.kernel.read import FileReader, as_encoded, find_encoded_columns
from intarsia.kernel.write import FileWriter, RowGroups, make_file_metadata, sort_declared

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Everything needed to rewrite one file."""

    file: DataFile
    hits: Hits
    actions: tuple[Action, ...]
    schema: pa.Schema
    """The dataset's schema after the operation, partition columns included."""
    partition_columns: tuple[str, ...]
    location: str
    filesystem: pafs.FileSystem = field(repr=False)
    staging: pafs.FileSystem = field(repr=False)
    options: WriteOptions = field(default_factory=WriteOptions)
    metadata: Mapping[bytes, bytes] = field(default_factory=dict)
    operation: str = "merge"
    same: frozenset[str] = frozenset()
    """Columns that a source row shares with the row it replaces: its key."""
    widened: frozenset[str] = frozenset()
    """Columns that get another type in all files."""
    writes: bool = True
    """False where values are only evaluated."""
    exact: frozenset[str] | None = None
    """The columns that Spark does not shift where it shifts old dates and times of the file."""
    threads: int = 1
    """For this file alone: more than one where there are few files."""

    @staticmethod
    def of(
        file: DataFile,
        hits: Hits,
        plan: Plan,
        tx: OutputLocation,
        *,
        actions: tuple[Action, ...],
        label: str,
    ) -> Rewrite:
        """The task of rewriting one file of a plan."""
        snapshot, staging = plan.snapshot, tx.staging
        return Rewrite(
            file=file,
            hits=hits,
            actions=actions,
            schema=plan.schema,
            partition_columns=snapshot.partition_columns,
            location=staging.make_location(label),
            filesystem=snapshot.filesystem,
            staging=staging.filesystem,
            options=plan.intent.options,
            metadata=make_file_metadata(tx.txid, plan.schema, snapshot.partition_columns),
            operation=plan.operation,
            same=_find_shared_columns(plan),
            widened=find_widened_columns(plan),
            writes=staging.writes,
            exact=find_exact_columns(file),
        )


def _find_shared_columns(plan: Plan) -> frozenset[str]:
    """Key columns of the same name on both sides; not floats, where equal keys may differ: 0.0 and -0.0."""
    intent = plan.intent
    if not isinstance(intent, MergeIntent):
        return frozenset()
    return frozenset(
        name
        for name, other in zip(intent.keys, intent.source_keys, strict=True)
        if name == other and not pa.types.is_floating(get_value_type(plan.schema.field(name).type))
    )


def find_widened_columns(plan: Plan) -> frozenset[str]:
    """Columns whose type the operation changes in the whole dataset."""
    before = plan.snapshot.schema
    known = set(before.names)
    return frozenset(
        field.name
        for field in plan.schema
        if field.name in known and before.field(field.name).type != field.type
    )


def rewrite(task: Rewrite, source: pa.Table | None = None) -> StagedFile:
    """Write the file without deleted rows and with the new values of updated ones.

    Row group by row group, in the order and layout of the file it replaces, and with its schema; unchanged
    column chunks are copied undecoded where possible. If a new value does not fit the type that a column has
    in this file, but the dataset's, the column gets the dataset's type. Where values cannot be written, all
    such values of the file are counted, and the file is not written. Memory: one row group, or a piece of it
    where it is large.
    """
    if task.writes:
        try:
            return _rewrite_file(task, source)
        except ValuesRefused:
            logger.debug("%s is not written: values are refused", task.file.path, exc_info=True)
    return StagedFile.make_unwritten(find_refused_rows(task, source), task.file.path)


def _rewrite_file(task: Rewrite, source: pa.Table | None) -> StagedFile:
    encoded = _find_encoded_columns(task)
    threaded = task.threads > 1
    with FileReader(task.file, task.schema, task.filesystem, encoded=encoded, threaded=threaded) as reader:
        task = replace(task, exact=find_exact_columns(task.file, reader.footer))
        stored = list_stored_columns(reader.physical, task)
        wide = pa.schema([task.schema.field(name) for name in stored])
        widened = task.widened
        if task.options.int96 == "convert":
            widened |= find_int96_columns(reader.footer.schema)
        own = choose_file_types(reader.footer, wide, widened)
        try:
            return _write_rows(reader, task, source, encoded, own)
        except ValuesRefused:
            raise
        except SchemaMismatch:
            if own.equals(wide):
                raise
            logger.debug("%s gets types of the dataset", task.file.path, exc_info=True)
        return _write_rows(reader, task, source, encoded, wide)


def find_refused_rows(task: Rewrite, source: pa.Table | None = None) -> list[Refusal]:
    """The values of a file's rows that the columns they are assigned to cannot take.

    Reads only the columns that the expressions do. Raises what else makes an assignment impossible.
    """
    acting = [(n, action) for n, action in enumerate(task.actions) if isinstance(action, Assign)]
    acting = [(n, action) for n, action in acting if len(task.hits.select_action(n))]
    if source is not None and task.exact is not None:
        replaces = [n for n, action in enumerate(task.actions) if isinstance(action, Replace)]
        for number in replaces:
            names = [name for name in source.column_names if name not in task.same]
            make_replacement_columns(source.select(names), task.hits.select_action(number), task)
    parts = {path[0] for _, action in acting for path, _ in action.values if len(path) > 1}
    columns = sorted(find_input_columns([action for _, action in acting]) | parts)
    found: list[Refusal] = []
    for rows, hits in _read_hit_pieces(task, columns) if acting else ():
        for number, action in acting:
            mine = hits.select_action(number)
            if len(mine):
                try:
                    values = _assign_hits(rows, mine, action, task, source)
                except ValuesRefused as error:
                    found += error.refusals
                else:
                    conform_written(pa.table(values), task.schema, task)
    return found


def _read_hit_pieces(task: Rewrite, columns: list[str]) -> Iterator[tuple[pa.Table, Hits]]:
    """Some columns of the row groups that are hit, in pieces, each with its own hits."""
    if not columns:  # the rows are only counted
        yield pa.table({"": task.hits.positions}), replace(task.hits, positions=arange(len(task.hits)))
        return
    with FileReader(task.file, task.schema, task.filesystem) as reader:
        for group in range(reader.footer.num_row_groups):
            start = reader.get_start(group)
            if not len(task.hits.select_range(start, start + reader.footer.row_group(group).num_rows)):
                continue
            for piece in reader.read_pieces(columns, group, batch_rows=task.options.batch_rows):
                yield piece, task.hits.select_range(start, start + piece.num_rows).shift(start)
                start += piece.num_rows


def choose_file_types(footer: pq.FileMetaData, schema: pa.Schema, widened: Collection[str]) -> pa.Schema:
    """The columns in the types of the file; in those of the schema if it lacks them or they are widened."""
    own = read_arrow_schema(footer)
    kept = set(own.names) - set(widened)
    return pa.schema(
        [own.field(each.name) if each.name in kept else each for each in schema],
        schema.metadata,
    )


def _write_rows(
    reader: FileReader, task: Rewrite, source: pa.Table | None, encoded: list[str], written: pa.Schema
) -> StagedFile:
    try:
        staged = _write_copied(reader, task, source, encoded, written)
    except NotCopyable:
        logger.debug("%s is decoded as a whole", task.file.path, exc_info=True)
        staged = None
    if staged is None:
        staged = _write_encoded(reader, task, source, encoded, written)
    retyped = find_retyped_columns(reader.footer, written)
    if task.options.int96 == "convert":
        retyped |= find_int96_columns(reader.footer.schema)
    return replace(staged, retyped=retyped)


def find_retyped_columns(footer: pq.FileMetaData, written: pa.Schema) -> frozenset[str]:
    """Columns whose type or nullability differs from the file's."""
    own = read_arrow_schema(footer)
    known = set(own.names)
    return frozenset(
        each.name
        for each in written
        if each.name in known
        and (own.field(each.name).type != each.type or own.field(each.name).nullable != each.nullable)
    )


def _write_encoded(
    reader: FileReader, task: Rewrite, source: pa.Table | None, encoded: list[str], written: pa.Schema
) -> StagedFile:
    """Write the file with every column of every row group decoded and encoded again."""
    stored = written.names
    wanted = [*stored, *(name for name in _find_partition_inputs(task) if name not in stored)]
    layout = _choose_layout(reader, task.options)
    writer = FileWriter(
        task.location,
        written,
        filesystem=task.staging,
        layout=layout,
        metadata=make_rewritten_metadata(task, layout, as_encoded(written, encoded), reader.physical, source),
        encoded=encoded,
        threads=task.threads,
    )
    order = layout.make_sort_keys(writer.schema)
    recut = task.options.row_group_size is not None
    row_groups = RowGroups(writer, layout)
    try:
        start = 0
        for group in range(reader.footer.num_row_groups):
            whole = not recut and reader.choose_piece_rows(group, task.options.batch_rows) is None
            for piece in reader.read_pieces(wanted, group, batch_rows=task.options.batch_rows):
                hits = task.hits.select_range(start, start + piece.num_rows)
                changed, _ = apply_hits(piece, hits.shift(start), task, source)
                start += piece.num_rows
                changed = conform_written(changed.select(stored), writer.schema, task)
                if whole:
                    writer.write(sort_declared(changed, order) if len(hits) else changed)
                else:
                    row_groups.add(changed)
            if not recut:
                row_groups.finish()
        row_groups.finish()
        return writer.close(task.file.path, task.file.partition)
    finally:
        writer.abandon()


def _write_copied(
    reader: FileReader, task: Rewrite, source: pa.Table | None, encoded: list[str], written: pa.Schema
) -> StagedFile | None:
    """Write the file with unchanged column chunks copied; None where that is not possible or not worth it."""
    if task.options.compression is not None or task.options.row_group_size is not None:
        return None
    layout = _choose_layout(reader, task.options)
    parts = _split_by_row_group(reader, task)
    if any(
        len(hits) and reader.choose_piece_rows(n, task.options.batch_rows) for n, hits in enumerate(parts)
    ):
        return None
    copy = ChunkCopy.of(
        reader,
        task.location,
        written,
        filesystem=task.staging,
        layout=layout,
        metadata=make_rewritten_metadata(task, layout, as_encoded(written, encoded), reader.physical, source),
        encoded=encoded,
        threads=task.threads,
    )
    if copy is None:
        return None
    order = layout.make_sort_keys(copy.schema)
    try:
        for group, hits in enumerate(parts):
            copy.add(group, _make_new_columns(reader, group, hits, task, source, copy, order))
        return copy.close(task.file.path, task.file.partition)
    finally:
        copy.abandon()


def _make_new_columns(
    reader: FileReader,
    group: int,
    hits: Hits,
    task: Rewrite,
    source: pa.Table | None,
    copy: ChunkCopy,
    order: Sequence[tuple[str, str, str]],
) -> pa.Table:
    """The columns of a row group that have to be encoded: all if rows are deleted or change their order."""
    read, moving = list_columns_to_decode(hits, task, source, copy, order)
    if not read:
        return pa.table({})
    wanted = [*read, *(name for name in _find_partition_inputs(task) if name not in read)]
    before = reader.read(wanted, group)
    after, changed = apply_hits(before, hits, task, source)
    fresh = copy.select_fresh(
        after.select(read), changed, rows_before=before.num_rows, order=order if moving else ()
    )
    return conform_written(fresh, copy.schema, task)


def list_columns_to_decode(
    hits: Hits,
    task: Rewrite,
    source: pa.Table | None,
    copy: ChunkCopy,
    order: Sequence[tuple[str, str, str]],
) -> tuple[list[str], bool]:
    """The columns of a row group that cannot just be copied, and whether rows are deleted or may move."""
    acting = [action for number, action in enumerate(task.actions) if len(hits.select_action(number))]
    may_change = find_changing_columns(acting, task, source)
    moving = any(isinstance(action, Drop) for action in acting) or any(key in may_change for key, *_ in order)
    looked_at = may_change | find_input_columns(acting)
    return [n for n in copy.schema.names if moving or n in looked_at or n not in copy.copyable], moving


def _split_by_row_group(reader: FileReader, task: Rewrite) -> list[Hits]:
    """The hits of each row group, counted from its start."""
    parts, start = [], 0
    for group in range(reader.footer.num_row_groups):
        rows = reader.footer.row_group(group).num_rows
        parts.append(task.hits.select_range(start, start + rows).shift(start))
        start += rows
    return parts


def find_changing_columns(actions: Sequence[Action], task: Rewrite, source: pa.Table | None) -> set[str]:
    """Columns that some action sets."""
    names: set[str] = set()
    for action in actions:
        if isinstance(action, Replace):
            assert source is not None
            names |= set(source.column_names) - task.same
        elif isinstance(action, Assign):
            names |= {target[0] for target, _ in action.values}
        elif not isinstance(action, Drop):  # an Insert changes no existing row
            raise AssertionError(f"{action} cannot apply to rows of a file")
    return names


def find_set_columns(action: Action, task: Rewrite, source: pa.Table | None) -> set[str]:
    """Columns that an action sets as a whole, whatever their value was; not parts of structs."""
    if isinstance(action, Assign):
        parts = {target[0] for target, _ in action.values if len(target) > 1}
        return {target[0] for target, _ in action.values} - parts
    return find_changing_columns([action], task, source)


def find_input_columns(actions: Sequence[Action]) -> set[str]:
    """Columns of the target that assignments read."""
    return {
        path[0]
        for action in actions
        if isinstance(action, Assign)
        for _, expression in action.values
        for side, path in find_columns(expression)
        if side != "source"
    }


def make_rewritten_metadata(
    task: Rewrite, layout: Layout, schema: pa.Schema, before: pa.Schema, source: pa.Table | None
) -> Mapping[bytes, bytes]:
    """The key-value metadata that stays true when a file is rewritten with the columns of ``schema``."""
    acting = [action for number, action in enumerate(task.actions) if len(task.hits.select_action(number))]
    changed = find_changing_columns(acting, task, source)
    moved = bool(layout.sorting) or any(isinstance(action, Drop) for action in acting)
    kept = rewrite_metadata(layout.key_value_metadata, schema, before, changed=changed, moved=moved)
    return {**kept, **task.metadata}


def list_stored_columns(physical: pa.Schema, task: Rewrite) -> list[str]:
    """The file's own columns in its own order, then those that are new to it."""
    known, mine = set(task.schema.names), set(physical.names)
    own = [name for name in physical.names if name in known]
    path_columns = set(task.partition_columns)
    if any(isinstance(action, Replace) for action in task.actions):
        path_columns &= task.file.partition.keys()  # others are stored in the file
    return own + [name for name in task.schema.names if name not in path_columns and name not in mine]


def _find_encoded_columns(task: Rewrite) -> list[str]:
    """Columns that can stay dictionaries: no expression reads or sets their values."""
    looked_at = {
        path[0]
        for action in task.actions
        if isinstance(action, Assign)
        for target, value in action.values
        for path in (target, *(path for _, path in find_columns(value)))
    }
    return [
        name
        for name in find_encoded_columns(task.file, task.schema)
        if name not in looked_at and name not in task.partition_columns
    ]


def _choose_layout(reader: FileReader, options: WriteOptions) -> Layout:
    layout = read_layout(reader.footer)
    if options.int96 == "convert":
        layout = layout.without_int96()
    if options.compression is not None:
        layout = layout.with_compression(options.compression)
    if options.row_group_size is not None:
        layout = layout.with_row_group_rows(options.row_group_size)
    return layout


def _find_partition_inputs(task: Rewrite) -> list[str]:
    """Partition columns that an assignment reads."""
    used = find_input_columns(task.actions)
    return [name for name in task.partition_columns if name in used]


def apply_hits(
    table: pa.Table, hits: Hits, task: Rewrite, source: pa.Table | None
) -> tuple[pa.Table, frozenset[str]]:
    """The table with the hits applied, and the columns in which remaining rows have changed."""
    gone: list[pa.Array] = []
    changed: frozenset[str] = frozenset()
    refused: list[Refusal] = []
    for number, action in enumerate(task.actions):
        mine = hits.select_action(number)
        if not len(mine):
            continue
        match action:
            case Drop():
                gone.append(mine.positions)
                continue
            case Replace():
                assert source is not None
                given = set(source.column_names) - task.same
                names = [name for name in table.column_names if name in given]
                values: Mapping[str, Any] = make_replacement_columns(source.select(names), mine, task)
            case Assign():
                try:
                    values = _assign_hits(table, mine, action, task, source)
                except ValuesRefused as error:
                    refused += error.refusals
                    continue
            case _:  # an Insert changes no existing row
                raise AssertionError(f"{action} cannot apply to rows of a file")
        table, set_ = Overlay(table.num_rows, mine.positions).apply(table, values)
        changed |= set_
    if refused:
        raise ValuesRefused.of(refused, table.num_rows)
    return drop_rows(table, pa.concat_arrays(gone)) if gone else table, changed


def make_replacement_columns(source: pa.Table, hits: Hits, task: Rewrite) -> dict[str, Any]:
    """The columns of the source rows that replace rows of a file."""
    rows = take_rows(source, hits.sources)
    values = dict(zip(rows.column_names, rows.columns, strict=True))
    check_calendar(values, task.exact, task.file.path)
    return values


def _assign_hits(
    table: pa.Table, hits: Hits, action: Assign, task: Rewrite, source: pa.Table | None
) -> dict[str, Any]:
    rows = take_rows(table, hits.positions)
    other = None
    if source is not None and hits.sources is not None and not hits.sources.null_count:
        other = take_rows(source, hits.sources)
    return assign_in(task, rows, action, other)


def assign_in(task: Rewrite, rows: pa.Table, action: Assign, source: pa.Table | None) -> dict[str, Any]:
    """The new values of some rows of a file; see :func:`assign_values`."""
    path = task.file.path
    values = assign_values(
        rows, action, source=source, schema=task.schema, operation=task.operation, path=path
    )
    check_calendar(values, task.exact, path)
    return values


def assign_values(
    rows: pa.Table,
    action: Assign,
    *,
    source: pa.Table | None,
    schema: pa.Schema,
    operation: str,
    path: str,
) -> dict[str, Any]:
    """The new values of the assigned columns; every expression sees the row as it was.

    Raises ValuesRefused with every value of these rows that its column cannot take.
    """
    try:
        return _evaluate_values(rows, action, source=source, schema=schema, operation=operation, path=path)
    except ValuesRefused:
        refused: list[Refusal] = []
        for target, expression in action.values:
            with add_column_to_errors(target):
                some = find_refused_values(expression, rows, source)
            refused += [replace(one, column=".".join(target)) for one in some]
        raise ValuesRefused.of(refused, rows.num_rows) from None


def _evaluate_values(
    rows: pa.Table,
    action: Assign,
    *,
    source: pa.Table | None,
    schema: pa.Schema,
    operation: str,
    path: str,
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    given = set(rows.column_names)
    for target, expression in action.values:
        name = target[0]
        dtype = _find_type_at(schema.field(name).type, target[1:])
        with add_column_to_errors(target):
            value = evaluate(expression, rows, source)
        chunked = value if isinstance(value, pa.ChunkedArray) else pa.chunked_array([value])
        new = cast_exact(chunked, dtype, column=".".join(target), operation=operation, path=path)
        current = values.get(name, rows[name] if name in given else None)
        values[name] = new if len(target) == 1 else _with_child(current, target[1:], new)
    for name in {target[0] for target, _ in action.values if len(target) > 1}:
        whole = pa.chunked_array([values[name]])
        dtype = schema.field(name).type
        values[name] = cast_exact(whole, dtype, column=name, operation=operation, path=path)
    return values


def _find_type_at(dtype: pa.DataType, path: tuple[str, ...]) -> pa.DataType:
    for name in path:
        dtype = dtype.field(name).type
    return dtype


def _with_child(column: Any, path: tuple[str, ...], value: Any) -> pa.Array:
    """A struct column with one field, at any depth, replaced; NULL becomes a struct with that field alone."""
    struct = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(struct, pa.ChunkedArray):
        struct = pa.concat_arrays(struct.chunks)
    fields, children = list(struct.type), []
    for position, child in enumerate(fields):
        old = pc.struct_field(struct, [position])
        if child.name != path[0]:
            children.append(old)
        elif len(path) == 1:
            flat = value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value
            children.append(flat)
        else:
            children.append(_with_child(old, path[1:], value))
    # NOT NULL is checked once all fields are assigned: others may follow.
    loose = [field.with_nullable(True) for field in fields]
    loose = [field.with_type(child.type) for field, child in zip(loose, children, strict=True)]
    return pa.StructArray.from_arrays(children, fields=loose)


def conform_written(table: pa.Table, schema: pa.Schema, task: Rewrite) -> pa.Table:
    """The columns in exactly the types that are written; NULL in a NOT NULL column is refused."""
    wanted = pa.schema([schema.field(name) for name in table.column_names], schema.metadata)
    check_categories(table, wanted, operation=task.operation, path=task.file.path)
    if table.schema.equals(wanted) and not any(table[f.name].null_count for f in wanted if not f.nullable):
        return table
    return conform_table(table, wanted, operation=task.operation, path=task.file.path)
