"""A pipeline as a test runs it: its own steps, on the given rows, in a scratch directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from intarsia import api
from intarsia.common.lazy import import_optional
from intarsia.common.names import suggest_names
from intarsia.common.types import is_nested
from intarsia.core.ports import Table
from intarsia.errors import InputError, IntarsiaError
from intarsia.options import TargetOptions
from intarsia.pipeline.computed import chain_streams
from intarsia.pipeline.graph import SourceGraph, order_steps
from intarsia.pipeline.inputs import Downloads, list_inputs, make_transform, read_streams
from intarsia.pipeline.model import (
    LineageSettings,
    Merge,
    Pipeline,
    Source,
    Target,
    Write,
    list_names,
    name_step,
)
from intarsia.pipeline.quality.references import list_referenced_sources
from intarsia.pipeline.row_transform import RowTransform, parse_type_name
from intarsia.pipeline.testing.cases import CaseTable, PipelineTestCase

__all__ = ["Sandbox"]

_SOURCES, _TARGETS = "sources.", "targets."


@dataclass(slots=True)
class Sandbox:
    """The scratch directory of one test, with its sources and targets in it.

    Raises InputError where the test gives or expects something that the pipeline does not have.
    """

    case: PipelineTestCase
    declared: Pipeline
    directory: str
    reader: TestRowsReader = field(init=False)
    graph: SourceGraph = field(init=False)
    given: dict[tuple[str, str], CaseTable] = field(init=False)
    """By kind (``sources.`` or ``targets.``) and name: the rows that are there before."""
    made: Pipeline | None = None

    def __post_init__(self) -> None:
        self.reader = TestRowsReader(self.directory)
        self.given = {self._resolve(name, table): table for name, table in self.case.given.items()}
        mocked = {
            name: Source(path="given") if (_SOURCES, name) in self.given else source
            for name, source in self.declared.sources.items()
        }
        self.graph = SourceGraph(replace(self.declared, sources=mocked))

    def make_pipeline(self) -> Pipeline:
        """Write what is given, and make the pipeline that reads and writes here.

        Where the test expects rows of sources alone, these are computed and no step runs.
        """
        outputs = [self._resolve(name, table) for name, table in self.case.expect.items()]
        expected = [name for kind, name in outputs if kind == _SOURCES]
        runs_steps = not outputs or len(expected) < len(outputs) or self.case.error is not None
        steps = self._list_steps() if runs_steps else ()
        read = [step.source for step in steps if step.source is not None]
        read += [name for step in steps for name in list_referenced_sources(step, self.declared)]
        used = {name for one in (*read, *expected) for name in self.graph.list_sources(one)}
        read_targets = {name for one in expected for name in self.graph.list_targets(one)}
        targets = {
            name: self._make_target(name) for name in self.declared.targets if steps or name in read_targets
        }
        checks = {name: Target(os.path.join(self.directory, "expected", name)) for name in expected}
        self.made = replace(
            self.declared,
            steps=(*steps, *(_make_check(name) for name in expected)),
            sources={
                name: self._make_source(name, source)
                for name, source in self.declared.sources.items()
                if name in used
            },
            targets={**targets, **{_name_check(name): target for name, target in checks.items()}},
            reports=os.path.join(self.directory, "reports"),
            state=os.path.join(self.directory, "state.json"),
            lineage=LineageSettings(enabled=False),
        )
        return self.made

    def find_output(self, name: str) -> str:
        """The target that has the rows of a target or source that the test names."""
        kind, found = self._resolve(name, self.case.expect[name])
        return found if kind == _TARGETS else _name_check(found)

    def open_output(self, target: str) -> str | Table:
        """A target of the pipeline that was made, to read it."""
        assert self.made is not None
        declared = self.made.targets[target]
        if declared.kind == "iceberg":
            return api.iceberg(declared.path, catalog=declared.catalog)
        return declared.path

    # Names

    def _resolve(self, written: str, table: CaseTable) -> tuple[str, str]:
        """The kind and the name of what a test names."""
        sources, targets = self.declared.sources, self.declared.targets
        if written.startswith(_SOURCES) and written.removeprefix(_SOURCES) in sources:
            return _SOURCES, written.removeprefix(_SOURCES)
        if written.startswith(_TARGETS) and written.removeprefix(_TARGETS) in targets:
            return _TARGETS, written.removeprefix(_TARGETS)
        if written in sources and written in targets:
            raise InputError(
                f"{table.place}: {written!r} is a source and a target.",
                hint=f'write "{_SOURCES}{written}" or "{_TARGETS}{written}", with its quotes.',
            )
        if written not in sources and written not in targets:
            known = sorted({*sources, *targets})
            raise InputError(
                f"{table.place}: the pipeline has no source or target {written!r}.",
                hint=suggest_names([written], known),
            )
        return (_SOURCES if written in sources else _TARGETS), written

    def _list_steps(self) -> tuple[Any, ...]:
        """The pipeline's steps with their names, in the order in which they run."""
        if self.graph.codes:
            return order_steps(self.graph.pipeline)
        return tuple(
            replace(step, name=name_step(step, number)) for number, step in enumerate(self.declared.steps, 1)
        )

    # Sources

    def _make_source(self, name: str, source: Source) -> Source:
        table = self.given.get((_SOURCES, name))
        if table is None and (source.is_computed or source.target is not None):
            return source
        types = parse_columns(source.columns)
        if table is None:
            if not types:
                raise InputError(
                    f"{self.case.file}, test {self.case.name!r}: no rows are given for the source {name!r},"
                    " and it declares no columns.",
                    hint=f"add [test.given.{name}] rows = [...].",
                )
            table = CaseTable(f"source {name!r}", rows=())
        rows = self.reader.read_given(table, types, is_closed=bool(types))
        path = os.path.join(self.directory, "given", f"{name}.parquet")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        pq.write_table(rows, path)
        return Source(
            path=(path,),
            format="parquet",
            columns=source.columns,
            derive=source.derive,
            where=source.where,
            new_files_only=source.new_files_only,
        )

    # Targets

    def _make_target(self, name: str) -> Target:
        declared = self.declared.targets[name]
        table = self.given.get((_TARGETS, name))
        if declared.kind == "iceberg":
            return self._make_iceberg(name, declared, table)
        by, types = declared.partition_by, self._find_types(name)
        if declared.kind == "spark_table":  # a directory stands for it, since a catalog is not the test's own
            by = () if table is None else table.partition_by
            table = table or (CaseTable(f"target {name!r}", rows=()) if types else None)
        target = Target(os.path.join(self.directory, "targets", name), partition_by=by)
        if table is not None:
            rows = self.reader.read_given(table, types)
            api.write(
                rows,
                target.path,
                mode="overwrite",
                partition_by=list(list_names(by)) or None,
                engine="arrow",
                progress=False,
            )
        return target

    def _make_iceberg(self, name: str, declared: Target, table: CaseTable | None) -> Target:
        """The same table in a catalog of its own."""
        types = self._find_types(name)
        if table is None and not types:
            raise InputError(
                f"{self.case.file}, test {self.case.name!r}: the columns of the Iceberg table {name!r} are"
                " not known.",
                hint=f'add [test.given.{name}] columns = {{ id = "bigint" }}.',
            )
        known = table or CaseTable(f"target {name!r}", rows=())
        rows = self.reader.read_given(known, types)
        warehouse = os.path.join(self.directory, "warehouse")
        catalog = import_optional("intarsia.tables.iceberg").embedded_catalog(warehouse)
        namespace = declared.path.rpartition(".")[0]
        catalog.create_namespace_if_not_exists(namespace)
        made = catalog.create_table(declared.path, schema=rows.schema)
        if known.partition_by:
            with made.update_spec() as spec:
                for column in list_names(known.partition_by):
                    spec.add_identity(column)
        options: TargetOptions = {}
        if (mode := declared.options.get("mode")) is not None:
            options["mode"] = mode
        target = replace(declared, catalog=warehouse, options=options)
        if rows.num_rows:
            api.write(rows, api.iceberg(target.path, catalog=warehouse), engine="arrow", progress=False)
        return target

    def _find_types(self, target: str) -> Mapping[str, pa.DataType]:
        """Types of a target's columns, as the sources that are merged into it declare them."""
        found: dict[str, pa.DataType] = {}
        for step in self.declared.steps:
            if step.target != target or step.source is None or not isinstance(step, (Merge, Write)):
                continue
            source = self.declared.sources[step.source]
            if source.columns:
                schema = pa.schema(list(parse_columns(source.columns).items()))
                made = make_transform(source, "parquet").make_schema(schema)
                found = {**{one.name: one.type for one in made}, **found}
        return found


def _name_check(source: str) -> str:
    return f"expected rows of {source}"


def _make_check(source: str) -> Write:
    """A step that writes the rows of a source, so that they can be compared."""
    return Write(name=_name_check(source), source=source, target=_name_check(source), mode="overwrite")


def parse_columns(columns: Mapping[str, str]) -> dict[str, pa.DataType]:
    """Arrow types of columns by their SQL types. Raises InputError or NotSupported."""
    return {name: parse_type_name(kind) for name, kind in columns.items()}


@dataclass(slots=True)
class TestRowsReader:
    """Reads the rows of tests; CSV text passes through files in a scratch directory."""

    directory: str
    count: int = 0

    def read_given(
        self, table: CaseTable, types: Mapping[str, pa.DataType], *, is_closed: bool = False
    ) -> pa.Table:
        """Given rows, in the types that the pipeline declares; columns that are left out are NULL.

        With ``is_closed`` the table has no other columns than ``types``.

        Raises:
            InputError: a column that is not declared, a value that does not fit, a column without a type.
        """
        typed = {**types, **self._parse(table)}
        rows = self._read(table, typed)
        absent = [name for name in rows.column_names if name not in typed]
        if is_closed and table.file is None and absent:
            raise InputError(
                f"{table.place}: the column {absent[0]!r} is not among those that are declared.",
                hint=suggest_names(absent[:1], sorted(typed)),
            )
        untyped = [one.name for one in rows.schema if pa.types.is_null(one.type)]
        if untyped:
            raise InputError(
                f"{table.place}: the column {untyped[0]!r} has no value, and so no type.",
                hint=f'give it one: columns = {{ {untyped[0]} = "varchar" }}.',
            )
        for name, kind in typed.items():
            if name not in rows.column_names:
                rows = rows.append_column(name, pa.nulls(rows.num_rows, kind))
        if not rows.num_columns:
            raise InputError(
                f"{table.place}: without rows its columns are not known.",
                hint='declare them: columns = { id = "bigint" }.',
            )
        return rows

    def read_expected(self, table: CaseTable, schema: pa.Schema) -> pa.Table:
        """Expected rows, in the types of the columns that are there. Raises InputError."""
        typed = {one.name: one.type for one in schema}
        absent = [name for name in table.columns if name not in typed]
        rows = self._read(table, {**typed, **self._parse(table)})
        absent += [name for name in rows.column_names if name not in typed]
        if absent:
            raise InputError(
                f"{table.place}: there is no column {absent[0]!r}.",
                hint=suggest_names(absent[:1], sorted(typed)),
            )
        return self._convert(table, rows, typed)

    def _parse(self, table: CaseTable) -> dict[str, pa.DataType]:
        try:
            return parse_columns(table.columns)
        except IntarsiaError as error:
            raise InputError(f"{table.place}, columns: {error.message}", hint=error.hint) from error

    def _read(self, table: CaseTable, types: Mapping[str, pa.DataType]) -> pa.Table:
        if table.rows is not None:
            return self._convert(table, _make_table(table, types), types)
        path = table.file
        if path is None:
            self.count += 1
            path = os.path.join(self.directory, f"text-{self.count}.csv")
            Path(path).write_text((table.csv or "").lstrip(), encoding="utf-8")
        source, known = Source(path), pa.schema(list(types.items())) if types else None
        try:
            return self._convert(
                table,
                chain_streams(read_streams(source, list_inputs(source, Downloads()), known)).read_all(),
                types,
            )
        except (IntarsiaError, pa.ArrowInvalid) as error:
            told = error.message if isinstance(error, IntarsiaError) else str(error)
            raise InputError(f"{table.place}: {told}", hint=getattr(error, "hint", None)) from error

    def _convert(self, table: CaseTable, rows: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
        """The rows with their columns in these types, where no value changes by it."""
        if not rows.num_columns:
            return rows
        plain = {
            name: kind for name, kind in types.items() if name in rows.column_names and not is_nested(kind)
        }
        shape = RowTransform(types=plain)
        try:
            schema = shape.make_schema(rows.schema)
            return pa.Table.from_batches(shape.transform_batches(rows.schema, rows.to_batches()), schema)
        except IntarsiaError as error:
            raise InputError(f"{table.place}: {error.message}") from error


def _make_table(table: CaseTable, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Rows of TOML as columns in the types that their values have."""
    assert table.rows is not None
    names = list(dict.fromkeys(name for row in table.rows for name in row))
    columns = {}
    for name in names:
        values = [row.get(name) for row in table.rows]
        try:
            columns[name] = _make_column(values, types.get(name))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise InputError(f"{table.place}, column {name!r}: {error}") from error
    return pa.table(columns)


def _make_column(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    if kind is not None and is_nested(kind):
        return pa.array(values, kind)
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, Decimal}:
        kinds, values = {Decimal}, [None if value is None else Decimal(value) for value in values]
    if len(kinds) > 1:
        raise pa.ArrowInvalid(f"it has values of several types: {', '.join(sorted(map(_name_kind, kinds)))}")
    if kinds == {Decimal} and kind is None:
        values = [None if value is None else float(value) for value in values]
    return pa.array(values)


def _name_kind(kind: type) -> str:
    words = {str: "text", bool: "truth", int: "whole number", Decimal: "number", float: "number"}
    return words.get(kind, kind.__name__)
