"""Keys that another table lacks, or that several rows have; as Arrow, by DuckDB or on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.lazy import import_optional
from intarsia.common.names import suggest_names
from intarsia.common.rows import tidy_schema
from intarsia.common.types import classify_type, find_common_type, unwrap_type
from intarsia.core.keys import to_comparable
from intarsia.engine_choice import MEMORY_SHARE, read_memory_total
from intarsia.errors import InputError
from intarsia.pipeline.model import Pipeline, Step

ROWS = "__intarsia_rows"
"""The column with the number of rows that have a key; a name that no source has."""
_FOUND = "__intarsia_found"
PIECE_ROWS = 1 << 20
"""How many keys of the other table are in memory at a time."""

Open = Callable[[], pa.RecordBatchReader]


@dataclass(frozen=True, slots=True)
class Reference:
    """Columns whose values must be a key of a target or source; a row with a NULL in one of them passes."""

    columns: tuple[str, ...]
    name: str
    """Of the target or source."""
    keys: tuple[str, ...]
    is_source: bool = False

    @property
    def expectation(self) -> str:
        return f"{', '.join(self.columns)} in {self.name}.{', '.join(self.keys)}"


def parse_references(step: Step, pipeline: Pipeline) -> tuple[Reference, ...]:
    """The foreign keys of ``{ column = "name.column" }``; several columns are separated by commas.

    A name that is a target's and a source's is the target's.

    Raises:
        InputError: a target or source that is not there, or other numbers of columns.
    """
    return tuple(_parse_reference(columns, text, pipeline) for columns, text in step.references.items())


def _parse_reference(columns: str, text: str, pipeline: Pipeline) -> Reference:
    known = dict.fromkeys((*pipeline.targets, *pipeline.sources))
    found = max((name for name in known if text.startswith(f"{name}.")), key=len, default=None)
    if found is None:
        named = text.partition(".")[0]
        raise InputError(
            f"references: {text!r} names no column of a target or source.",
            hint=suggest_names([named], sorted(known), otherwise='write { customer_id = "customers.id" }.'),
        )
    own, keys = _split_names(columns), _split_names(text.removeprefix(f"{found}."))
    if len(own) != len(keys) or not all((*own, *keys)):
        raise InputError(
            f"references: {columns!r} and {text!r} name different numbers of columns.",
            hint='write { "order_id, line" = "lines.order_id, line" }.',
        )
    return Reference(own, found, keys, found not in pipeline.targets)


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def list_referenced_targets(step: Step, pipeline: Pipeline) -> tuple[str, ...]:
    """The targets that an expectation's foreign keys are into; none for other steps."""
    return tuple(one.name for one in parse_references(step, pipeline) if not one.is_source)


def list_referenced_sources(step: Step, pipeline: Pipeline) -> tuple[str, ...]:
    """The sources that an expectation's foreign keys are into; none for other steps."""
    return tuple(one.name for one in parse_references(step, pipeline) if one.is_source)


def choose_key_type(data_type: pa.DataType) -> pa.DataType:
    """A type of the same values in which keys can be compared: no dictionary, view or half float."""
    (plain,) = tidy_schema(pa.schema([("key", unwrap_type(data_type))])).types
    return pa.float32() if pa.types.is_float16(plain) else plain


def find_key_types(
    reference: Reference, own: pa.Schema, other: pa.Schema, *, key: str = "references"
) -> tuple[pa.DataType, ...]:
    """The types in which keys are compared. Raises InputError where values could not be equal."""
    found = []
    for column, there in zip(reference.columns, reference.keys, strict=True):
        left, right = choose_key_type(own.field(column).type), choose_key_type(other.field(there).type)
        common = find_common_type(left, right)
        if common is None or pa.types.is_nested(common):
            raise InputError(
                f"{key}: {column!r} is {left}, and {reference.name}.{there} is {right}.",
                hint="cast one of them with derive.",
            )
        found.append(common)
    return tuple(found)


# Arrow and DuckDB


def find_missing_keys(
    reference: Reference, open_rows: Open, open_keys: Open, *, use_duckdb: bool
) -> pa.Table:
    """The keys of rows that the other table lacks, and in ``ROWS`` how many rows have each.

    Memory: DuckDB's limit, beyond which it works on disk; without it, the different keys of the rows.
    """
    rows, keys = open_rows(), open_keys()
    types = find_key_types(reference, rows.schema, keys.schema)
    names = [f"k{number}" for number in range(len(types))]
    if use_duckdb and all(map(_is_exact_in_duckdb, types)):
        rows.close()
        keys.close()
        missing = _find_by_duckdb(
            names,
            lambda: _select_keys(open_rows(), reference.columns, names, types),
            lambda: _select_keys(open_keys(), reference.keys, names, types),
        )
    else:
        missing = tally_keys(_select_keys(rows, reference.columns, names, types), names)
        for piece in _gather_pieces(_select_keys(keys, reference.keys, names, types)):
            if not missing.num_rows:
                break
            missing = missing.join(piece, names, join_type="left anti")
    schema = pa.schema([*zip(names, types, strict=True), (ROWS, pa.int64())])
    return missing.select(schema.names).cast(schema).rename_columns([*reference.columns, ROWS])


def _is_exact_in_duckdb(kind: pa.DataType) -> bool:
    return classify_type(kind) in ("boolean", "integer", "string", "date") or pa.types.is_decimal128(kind)


def _select_keys(
    rows: pa.RecordBatchReader,
    columns: tuple[str, ...],
    names: list[str],
    types: tuple[pa.DataType, ...],
) -> pa.RecordBatchReader:
    """The key columns under their new names and types, without rows that have a NULL in them."""
    schema = pa.schema(list(zip(names, types, strict=True)))

    def read() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            picked = pa.Table.from_batches([batch]).select(list(columns)).rename_columns(names).cast(schema)
            whole = reduce(pc.and_, (pc.is_valid(column) for column in picked.columns))
            yield from level_floats(picked).filter(whole).to_batches()

    return pa.RecordBatchReader.from_batches(schema, read())


def level_floats(keys: pa.Table) -> pa.Table:
    """Keys as they are compared bit by bit: -0.0 is 0.0, and every NaN is the same."""
    for at, field in enumerate(keys.schema):
        if pa.types.is_floating(field.type):
            keys = keys.set_column(at, field.name, to_comparable(keys.column(at)))
    return keys


def tally_keys(rows: Iterable[pa.RecordBatch], names: list[str]) -> pa.Table:
    """The different keys, and in ``ROWS`` how many rows have each; NULLs are equal. Memory: the keys."""
    counted: list[pa.Table] = []
    held = limit = 0
    for batch in rows:
        table = level_floats(pa.Table.from_batches([batch]).select(names))
        counted.append(_count_groups(table.append_column(ROWS, pa.repeat(1, table.num_rows)), names))
        held += counted[-1].num_rows
        if held > max(2 * limit, PIECE_ROWS):
            counted = [_count_groups(pa.concat_tables(counted, promote_options="permissive"), names)]
            held = limit = counted[0].num_rows
    if not counted:
        return pa.table({name: pa.array([], pa.int64()) for name in (*names, ROWS)})
    return _count_groups(pa.concat_tables(counted, promote_options="permissive"), names)


def _count_groups(table: pa.Table, names: list[str]) -> pa.Table:
    found = table.group_by(names).aggregate([(ROWS, "sum")])
    return found.select([*names, f"{ROWS}_sum"]).rename_columns([*names, ROWS])


def _gather_pieces(rows: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """The different keys of about ``PIECE_ROWS`` rows at a time."""
    held: list[pa.RecordBatch] = []
    for batch in rows:
        held.append(batch)
        if sum(one.num_rows for one in held) >= PIECE_ROWS:
            yield pa.Table.from_batches(held).group_by(rows.schema.names).aggregate([])
            held = []
    if held:
        yield pa.Table.from_batches(held).group_by(rows.schema.names).aggregate([])


def _find_by_duckdb(names: list[str], open_rows: Open, open_keys: Open) -> pa.Table:
    columns = ", ".join(names)
    same = " and ".join(f"own.{name} = other.{name}" for name in names)
    query = f"select {columns}, count(*) as {ROWS} from own anti join other on {same} group by {columns}"
    return _run_duckdb(query, {"own": open_rows, "other": open_keys})


def find_repeated_keys(columns: tuple[str, ...], open_rows: Open, *, use_duckdb: bool) -> pa.Table:
    """The keys that several rows have, and in ``ROWS`` how many; NULLs are equal.

    Memory: as of :func:`find_missing_keys`.
    """
    rows = open_rows()
    types = [choose_key_type(rows.schema.field(name).type) for name in columns]
    names = [f"k{number}" for number in range(len(types))]
    schema = pa.schema(list(zip(names, types, strict=True)))

    def read(batches: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            picked = pa.Table.from_batches([batch]).select(list(columns)).rename_columns(names)
            yield from picked.cast(schema).to_batches()

    if use_duckdb and all(map(_is_exact_in_duckdb, types)):
        rows.close()
        listed = ", ".join(names)
        query = f"select {listed}, count(*) as {ROWS} from own group by {listed} having count(*) > 1"
        found = _run_duckdb(
            query, {"own": lambda: pa.RecordBatchReader.from_batches(schema, read(open_rows()))}
        )
    else:
        found = tally_keys(read(rows), names)
        found = found.filter(pc.greater(found[ROWS], 1))
    whole = pa.schema([*schema, (ROWS, pa.int64())])
    return found.select(whole.names).cast(whole).rename_columns([*columns, ROWS])


def _run_duckdb(query: str, tables: Mapping[str, Open]) -> pa.Table:
    made = import_optional("intarsia.engines.duckdb.query").QueryRun(
        query, tables, params={}, memory_bytes=read_memory_total() // MEMORY_SHARE
    )
    found: pa.Table = made.open_stream().read_all()
    return found


# Spark


def find_missing_frame(reference: Reference, rows: Any, keys: Any) -> Any:
    """The keys of rows that the other table lacks, with their number of rows, as a DataFrame."""
    from pyspark.sql import functions
    from pyspark.sql.pandas.types import to_arrow_schema

    find_key_types(reference, to_arrow_schema(rows.schema), to_arrow_schema(keys.schema))
    own = rows.select(*[functions.col(quote_name(name)) for name in reference.columns])
    for name in reference.columns:
        own = own.where(own[quote_name(name)].isNotNull())
    names = [f"__key{number}" for number in range(len(reference.keys))]
    other = keys.select(
        *[functions.col(quote_name(key)).alias(name) for key, name in zip(reference.keys, names, strict=True)]
    )
    same = [
        own[quote_name(column)] == other[name] for column, name in zip(reference.columns, names, strict=True)
    ]
    counted = own.join(other, same, "left_anti").groupBy(*[quote_name(name) for name in reference.columns])
    return counted.agg(functions.count(functions.lit(1)).alias(ROWS))


def find_repeated_frame(columns: tuple[str, ...], rows: Any, taken: Any = None) -> Any:
    """The keys that several rows have, with their number of rows, as a DataFrame; NULLs are equal.

    With rows that were taken before, also the keys that one of those has, in columns of the same names.
    """
    from pyspark.sql import functions

    counted = rows.groupBy(*[quote_name(name) for name in columns])
    found = counted.agg(functions.count(functions.lit(1)).alias(ROWS))
    if taken is None:
        return found.where(found[ROWS] > 1)
    both = _join_keys(columns, found, taken.distinct(), columns, null_safe=True)
    return both.where((both[ROWS] > 1) | both[_FOUND].isNotNull()).drop(_FOUND)


def mark_found(reference: Reference, rows: Any, keys: Any, name: str) -> Any:
    """Rows, also of a stream, with a column that is TRUE where another table has their key, else NULL."""
    from pyspark.sql.pandas.types import to_arrow_schema

    find_key_types(reference, to_arrow_schema(rows.schema), to_arrow_schema(keys.schema))
    both = _join_keys(reference.columns, rows, keys, reference.keys, null_safe=False)
    return both.withColumnRenamed(_FOUND, name)


def select_unmarked(reference: Reference, rows: Any, name: str) -> Any:
    """The different keys of rows that :func:`mark_found` did not find; none of them has a NULL."""
    lost = rows.where(rows[name].isNull())
    for column in reference.columns:
        lost = lost.where(lost[quote_name(column)].isNotNull())
    return lost.select(*[quote_name(column) for column in reference.columns]).distinct()


def count_known_keys(reference: Reference, rows: Any, keys: Any) -> Any:
    """Those of some different keys that rows have, with their number of rows, as a DataFrame."""
    from pyspark.sql import functions

    both = _join_keys(reference.columns, rows, keys, reference.columns, null_safe=False)
    counted = both.where(both[_FOUND]).groupBy(*[quote_name(name) for name in reference.columns])
    return counted.agg(functions.count(functions.lit(1)).alias(ROWS))


def _join_keys(
    columns: tuple[str, ...], rows: Any, keys: Any, names: tuple[str, ...], *, null_safe: bool
) -> Any:
    """Rows with a column that is TRUE where their key is among some different ones, else NULL."""
    from pyspark.sql import functions

    aliases = [f"__intarsia_key{number}" for number in range(len(names))]
    other = keys.select(
        *[functions.col(quote_name(name)).alias(alias) for name, alias in zip(names, aliases, strict=True)],
        functions.lit(True).alias(_FOUND),
    )
    same = [
        rows[quote_name(column)].eqNullSafe(other[alias])
        if null_safe
        else rows[quote_name(column)] == other[alias]
        for column, alias in zip(columns, aliases, strict=True)
    ]
    return rows.join(other, same, "left").drop(*aliases)


def quote_name(name: str) -> str:
    """A column's name as Spark takes it, also with a dot in it."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"
