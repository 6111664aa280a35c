"""Rows of a source on the way to a step: casts, derived columns, a filter, counts; in Arrow batches.

The same functions run in this process and in Spark's Python workers, so a pipeline means the
same on every engine. Values here are small and pickle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.exact import cast_exact
from intarsia.common.names import suggest_names
from intarsia.common.rows import filter_rows
from intarsia.common.types import NUMBERS, classify_type
from intarsia.core.evaluate import evaluate, evaluate_mask
from intarsia.core.expr import Cast, Column, Expr, find_type, resolve
from intarsia.core.expr.assign import assign
from intarsia.core.expr.types import is_text, name_type
from intarsia.errors import ColumnNotFound, InputError
from intarsia.sql.parse import parse_expression, parse_predicate

_SHOWN = 60
"""Characters of a bad value that an error shows."""


@dataclass(frozen=True, slots=True)
class RowTransform:
    """Casts, derived columns and the filter of one source."""

    types: Mapping[str, pa.DataType]
    only: bool = False
    """Whether the columns of ``types`` are all that is taken, in their order; else other columns stay."""
    absent_is_null: bool = False
    """Whether a column that a file lacks is NULL: JSON leaves out values that are not set."""
    derive: tuple[tuple[str, Expr], ...] = ()
    where: Expr | None = None

    @property
    def trivial(self) -> bool:
        return not (self.types or self.derive or self.where)

    def make_schema(self, given: pa.Schema) -> pa.Schema:
        """The schema after the transformation. Raises what resolving the expressions raises."""
        typed = self._make_typed_schema(given)
        for name, expr in self.derive:
            kind = find_type(expr, typed)
            at = typed.get_field_index(name)
            field = pa.field(name, kind)
            typed = typed.append(field) if at < 0 else typed.set(at, field)
        if self.where is not None:
            resolve(self.where, typed, expect=pa.bool_())
        return typed

    def transform_batches(
        self, given: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """The transformed batches, without empty ones."""
        schema = self.make_schema(given)
        for batch in batches:
            shaped = self._transform(batch, schema)
            if shaped.num_rows:
                yield shaped

    def _transform(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        typed = self._cast_columns(batch)
        derived = dict(zip(typed.schema.names, typed.columns, strict=True))
        for name, expr in self.derive:
            so_far = pa.RecordBatch.from_arrays(list(derived.values()), names=list(derived))
            derived[name] = evaluate(expr, so_far)
        made = pa.RecordBatch.from_arrays([derived[name] for name in schema.names], schema=schema)
        return made if self.where is None else filter_rows(made, evaluate_mask(self.where, made))

    def _make_typed_schema(self, given: pa.Schema) -> pa.Schema:
        if not self.only:
            return pa.schema([pa.field(f.name, self.types.get(f.name, f.type)) for f in given])
        missing = [name for name in self.types if name not in given.names]
        if missing and not self.absent_is_null:
            raise ColumnNotFound(
                f"The source has no column {', '.join(map(repr, missing))}; it has {', '.join(given.names)}.",
                hint=suggest_names(missing, given.names, otherwise="correct the columns of the source."),
            )
        return pa.schema(list(self.types.items()))

    def _cast_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self._make_typed_schema(batch.schema)
        columns = [self._convert_column(batch, field) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _convert_column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        at = batch.schema.get_field_index(field.name)
        if at < 0:
            return pa.nulls(batch.num_rows, field.type)
        column = batch.column(at)
        if column.type == field.type:
            return column
        try:
            return _convert(batch, field, column.type)
        except InputError as error:
            told = _describe_misfit(batch, field) if is_text(column.type) else None
            raise InputError(
                f"Column {field.name!r} of the source: {told or error.message}",
                hint="correct the files; or declare it as varchar, and derive it with try_cast or round.",
            ) from error


def _convert(batch: pa.RecordBatch, field: pa.Field, given: pa.DataType) -> pa.Array:
    """A column in its declared type; InputError for a value that SQL's cast would round or truncate."""
    target = field.type
    if pa.types.is_timestamp(given):
        return assign(batch.column(field.name), target, Column((field.name,)), batch.num_rows)
    if classify_type(given) in NUMBERS and classify_type(target) in ("integer", "decimal"):
        return _cast_exact(batch.column(field.name), field)
    if is_text(given) and pa.types.is_decimal(target):
        return _cast_exact(_cast(batch, field.with_type(pa.decimal256(76, max(target.scale, 38)))), field)
    if is_text(given) and pa.types.is_integer(target):
        try:
            return _cast(batch, field)
        except InputError as error:  # 1.0 and 1e3 are integers, too
            try:
                return _cast_exact(_cast(batch, field.with_type(pa.decimal128(38, 18))), field)
            except InputError:
                raise error from None
    return _cast(batch, field)


def _describe_misfit(batch: pa.RecordBatch, field: pa.Field) -> str | None:
    """The first text that is none of the declared type, as it stands in the file; None where all are."""
    text = batch.column(field.name)
    exact = pa.types.is_integer(field.type) or pa.types.is_decimal(field.type)
    wide = _try_cast(
        text, pa.decimal256(76, max(getattr(field.type, "scale", 0), 38)) if exact else field.type
    )
    fits = pc.is_valid(wide)
    if exact:
        fits = pc.fill_null(pc.equal(_try_cast(_try_cast(wide, field.type), wide.type), wide), False)
    misfits = text.filter(pc.and_(pc.is_valid(text), pc.invert(fits)))
    if not len(misfits):
        return None
    value = misfits[0].as_py()
    shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
    return f"{shown!r} is no {name_type(field.type).lower()}."


def _try_cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return evaluate(Cast(Column(("x",)), kind, try_=True), pa.RecordBatch.from_arrays([column], names=["x"]))


def _cast(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    return evaluate(Cast(Column((field.name,), exact=True), field.type), batch)


def _cast_exact(column: pa.Array, field: pa.Field) -> pa.Array:
    cast = cast_exact(column, field.type, column=field.name, operation="source")
    return cast.chunk(0) if cast.num_chunks == 1 else cast.combine_chunks()


def parse_type_name(name: str) -> pa.DataType:
    """The Arrow type of an SQL type's name. Raises InputError or NotSupported."""
    parsed = parse_expression(f"cast(x as {name})")
    if not isinstance(parsed, Cast) or parsed.operand != Column(("x",)):
        raise InputError(f"{name!r} is not the name of a type.")
    return parsed.type


def parse_derivations(derive: Mapping[str, str]) -> tuple[tuple[str, Expr], ...]:
    """The expressions of derived columns, parsed."""
    return tuple((name, parse_expression(text)) for name, text in derive.items())


def parse_source_filter(text: str | None) -> Expr | None:
    return None if text is None else parse_predicate(text)


@dataclass(frozen=True, slots=True)
class RowCounter:
    """Counts rows, and for each condition the rows for which it is TRUE."""

    conditions: tuple[Expr, ...]

    @property
    def schema(self) -> pa.Schema:
        names = [f"c{number}" for number in range(len(self.conditions) + 1)]
        return pa.schema([pa.field(name, pa.int64()) for name in names])

    def count_batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row: the number of rows, then the count of each condition."""
        totals = [0] * (len(self.conditions) + 1)
        for batch in batches:
            totals[0] += batch.num_rows
            for number, condition in enumerate(self.conditions, 1):
                totals[number] += pc.sum(evaluate_mask(condition, batch)).as_py() or 0
        yield pa.RecordBatch.from_arrays([pa.array([total]) for total in totals], schema=self.schema)
