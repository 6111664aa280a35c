"""Checks that a pipeline is consistent: names that exist, steps that can run, no circle; reads no data."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, get_type_hints

from intarsia.arguments import compute_file_bytes, has_sql, is_condition, make_rule, parse_keys, parse_where
from intarsia.common.names import suggest_names
from intarsia.common.partitions import parse_partition_filter
from intarsia.core.effects import OperationCall, check_options
from intarsia.core.rule import Clause
from intarsia.engine_choice import check_engine
from intarsia.errors import InputError, NotSupported
from intarsia.options import ICEBERG_OPTIONS, TABLE_OPTIONS, StepOptions, TargetOptions, check_values
from intarsia.pipeline.graph import SourceGraph
from intarsia.pipeline.inputs import check_portable
from intarsia.pipeline.model import (
    KINDS,
    Compact,
    Deduplicate,
    Delete,
    Expect,
    Merge,
    Optimize,
    Pipeline,
    Source,
    Step,
    Target,
    Update,
    Write,
    find_written_target,
    guards_target,
    list_names,
    name_step,
    require,
)
from intarsia.pipeline.quality.checks import parse_limit
from intarsia.pipeline.quality.conditions import parse_conditions
from intarsia.pipeline.quality.freshness import parse_freshness
from intarsia.pipeline.quality.references import parse_references
from intarsia.pipeline.quality.step_guards import check_stream_guard, check_target_guard, expand_guards
from intarsia.pipeline.row_transform import parse_derivations, parse_source_filter, parse_type_name
from intarsia.pipeline.streams.declared import check_stream_source, check_stream_step
from intarsia.spark.catalog import split_name
from intarsia.sql.parse import parse_assignments

_NAME = re.compile(r"^[\w][\w .\-]*$")


def check(pipeline: Pipeline) -> None:
    """Check a pipeline that is a value, as :func:`intarsia.pipeline.check` says."""
    _Check(pipeline).run()


def list_clauses(step: Merge) -> str | tuple[str | Clause, ...] | None:
    """The clauses of a merge as :func:`intarsia.merge` takes them; None where it has a strategy."""
    return step.when if isinstance(step.when, str) else tuple(step.when) or None


class _Check:
    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.where = pipeline.origin or f"pipeline {pipeline.name!r}"
        self.graph: SourceGraph

    def make_error(self, place: str, message: str, hint: str | None = None) -> InputError:
        path = self.pipeline.origin
        return InputError(f"{self.where}, {place}: {message}", path=path, hint=hint)

    def run(self) -> None:
        pipeline = self.pipeline
        if not _NAME.match(pipeline.name):
            raise self.make_error(
                "name", f"{pipeline.name!r} cannot be the name of files.", "use letters, digits, - _"
            )
        if pipeline.engine not in ("spark", "arrow", "duckdb"):
            raise self.make_error(
                "engine", f"there is no {pipeline.engine!r}.", "it is spark, arrow or duckdb."
            )
        if pipeline.engine == "duckdb":
            with self.add_place_to_errors("engine"):
                check_engine("duckdb")
        if not pipeline.steps:
            raise self.make_error("steps", "there is no step to run.")
        for name, target in pipeline.targets.items():
            if not target.path:
                raise self.make_error(f"[targets.{name}] path", "it is empty.")
            self._check_kind(name, target)
            self._check_options(f"[targets.{name}] options", target.options, TargetOptions)
        self._check_tables()
        self._check_sources()
        self._check_steps()
        self._check_circles()

    def _check_tables(self) -> None:
        """Refuse a table that two targets name: a run would read it before it has what it wrote there."""
        names: dict[tuple[Any, ...], str] = {}
        for name, target in self.pipeline.targets.items():
            is_local = target.kind == "parquet" and "://" not in target.path
            path = os.path.abspath(target.path) if is_local else target.path.rstrip("/")
            branch = target.options.get("branch")
            other = names.setdefault((target.kind, path, str(target.catalog), branch), name)
            if other != name:
                raise self.make_error(
                    f"[targets.{name}] path",
                    f"it is the table of target {other!r} as well, {target.path}.",
                    f"use {other!r} in all steps; or give {name!r} a path of its own.",
                )

    def _check_kind(self, name: str, target: Target) -> None:
        """Check the fields that only one kind of table has."""
        place = f"[targets.{name}]"
        if target.kind == "iceberg":
            if not target.catalog:
                raise self.make_error(
                    f"{place} catalog",
                    "an Iceberg table needs one.",
                    "name a configured catalog, or a warehouse directory.",
                )
            if list_names(target.partition_by):
                raise self.make_error(f"{place} partition_by", "the table's own partition spec decides.")
        elif target.kind == "spark_table":
            self._check_spark_table(place, target)
        elif target.kind != "parquet":
            raise self.make_error(
                f"{place} kind", f"there is no {target.kind!r}.", "it is parquet, iceberg or spark_table."
            )
        elif target.catalog:
            raise self.make_error(f"{place} catalog", "a Parquet dataset has none.", 'set kind = "iceberg".')
        unfit = {"parquet": ICEBERG_OPTIONS, "iceberg": TABLE_OPTIONS}
        others = unfit.get(target.kind, ())  # a table of a catalog of Spark may be of either kind
        foreign = [option for option in target.options if option in others]
        if foreign:
            raise self.make_error(f"{place} options", f"{foreign[0]} does not go with kind {target.kind!r}.")

    def _check_spark_table(self, place: str, target: Target) -> None:
        if self.pipeline.engine != "spark":
            raise self.make_error(
                f"{place} kind",
                f"only Spark has a catalog with {target.path!r}, and the engine is {self.pipeline.engine}.",
                'set engine = "spark", or name the directory of the table as its path.',
            )
        if target.catalog:
            raise self.make_error(
                f"{place} catalog", "the session's catalogs are meant.", "put its name before the table's."
            )
        if list_names(target.partition_by):
            raise self.make_error(f"{place} partition_by", "the table of the catalog decides.")
        with self.add_place_to_errors(f"{place} path"):
            split_name(target.path)

    def _check_sources(self) -> None:
        for name, source in self.pipeline.sources.items():
            place = f"[sources.{name}]"
            self._check_kind_of_source(place, source)
            if source.target is not None:
                self._check_known(place, "target", source.target, self.pipeline.targets)
                if source.new_files_only:
                    raise self.make_error(
                        f"{place} new_files_only", "a target's files are rewritten, so none of them is new."
                    )
            if source.since is not None and source.target is None:
                raise self.make_error(
                    f"{place} since",
                    "it goes with a target.",
                    "files of a path are taken once anyway.",
                )
            if source.since not in (None, "last run"):
                raise self.make_error(f"{place} since", f"it is {source.since!r}.", 'write "last run".')
            self._check_source_texts(place, source)
        self.graph = SourceGraph(self.pipeline)

    def _check_kind_of_source(self, place: str, source: Source) -> None:
        """Check that a source is of one kind, and has no key of another."""
        kinds = {"path": list_names(source.path) or None, "target": source.target}
        kinds |= {"sql": source.sql, "sql_file": source.sql_file, "python": source.python}
        kinds |= {"stream": None if source.stream is None else source.stream.format}
        given = [name for name, value in kinds.items() if value is not None]
        if len(given) > 1:
            raise self.make_error(place, f"it has {' and '.join(given)}, and can have one of them.")
        if not given:
            raise self.make_error(place, "it needs a path or a target, or sql, sql_file, python or stream.")
        if not source.is_computed:
            if source.params:
                raise self.make_error(f"{place} params", "they go with sql, sql_file or python.")
            if source.stream is not None:
                with self.add_place_to_errors(f"{place} stream"):
                    check_stream_source(source, self.pipeline.engine)
            return
        for name in ("format", "options", "new_files_only"):
            if getattr(source, name) not in (None, {}):
                raise self.make_error(
                    f"{place} {name}",
                    "it goes with a path.",
                    "a computed source takes all its rows whenever something has changed."
                    if name == "new_files_only"
                    else "give it to the source of files that is read.",
                )

    def _check_steps(self) -> None:
        seen: dict[str, int] = {}
        for number, step in enumerate(self.pipeline.steps, 1):
            name = name_step(step, number)
            place = f"[[steps]] {number} ({name})"
            if not isinstance(step, tuple(KINDS.values())):
                raise self.make_error(place, f"{type(step).__name__} is no step.")
            if name in seen:
                raise self.make_error(f"{place} name", f"step {seen[name]} has the same name.")
            seen[name] = number
            if step.target is not None:
                self._check_known(place, "target", step.target, self.pipeline.targets)
            if step.source is not None:
                self._check_known(place, "source", step.source, self.pipeline.sources)
            self._check_options(f"{place} options", step.options, StepOptions)
            with self.add_place_to_errors(f"{place} options"):
                check_values(step.options)
            self._check_step(place, step)
            streams = () if step.source is None else self.graph.list_streams(step.source)
            if streams and not isinstance(step, Expect):
                with self.add_place_to_errors(f"{place} source"):
                    check_stream_step(step)
            if not isinstance(step, Expect):
                with self.add_place_to_errors(f"{place} options"):
                    check_options(self._call(step), step.options)

    def _check_since(self, place: str, step: Merge | Write) -> None:
        """Refuse a step that would take the new rows of a target for all that there is, or reads a stream."""
        read = self.graph.list_sources(require(step.source))
        part = [name for name in read if self.pipeline.sources[name].since is not None]
        if not part:
            return
        streams = self.graph.list_streams(require(step.source))
        if streams:
            raise self.make_error(
                f"{place} source",
                f"it reads the stream {streams[0]!r}, whose batches would each need the rows of {part[0]!r}.",
                "leave since out: a target beside a stream is read as a whole.",
            )
        is_whole = isinstance(step, Write)
        if isinstance(step, Merge):
            rule = make_rule(step.strategy or "upsert", list_clauses(step), step.options.get("dialect"))
            is_whole = rule.touches_target_only
        if is_whole:
            raise self.make_error(
                f"{place} source",
                f"it replaces rows that its source lacks, and source {part[0]!r} has new rows alone.",
                "use a merge that inserts and updates, or leave since out.",
            )

    def _check_step(self, place: str, step: Step) -> None:
        dialect = step.options.get("dialect")
        match step:
            case Expect():
                self._expect(place, step)
            case Merge():
                self._merge(place, step)
                self._check_since(place, step)
            case Write():
                self._check_since(place, step)
                source = self.pipeline.sources[require(step.source)]
                is_whole = source.is_computed and not self.graph.list_streams(require(step.source))
                if step.mode == "append" and (source.target is not None or is_whole):
                    whole = "a computed source" if source.target is None else f"the target {source.target!r}"
                    raise self.make_error(
                        f"{place} source",
                        f"appending {whole} again and again would double its rows.",
                        'use operation = "merge", or mode = "overwrite".',
                    )
                if step.where is not None:
                    if step.mode != "overwrite":
                        raise self.make_error(f"{place} where", 'it goes with mode = "overwrite".')
                    with self.add_place_to_errors(f"{place} where"):
                        parse_where(step.where, dialect)
            case Delete() | Update():
                if step.where is not None:
                    with self.add_place_to_errors(f"{place} where"):
                        parse_where(step.where, dialect)
                if step.set:
                    with self.add_place_to_errors(f"{place} set"):
                        parse_assignments(step.set, dialect=dialect)
            case Compact() | Optimize() | Deduplicate():
                with self.add_place_to_errors(f"{place} partition_filter"):
                    parse_partition_filter(step.partition_filter)
                with self.add_place_to_errors(place):
                    compute_file_bytes(step.target_mb_per_file, step.target_rows_per_file)

    def _call(self, step: Step) -> OperationCall:
        """The call that a step makes, for checking its options; the engine is known when it runs."""
        on = step.on if is_condition(step.on) else None
        adds = isinstance(step, Write)
        if isinstance(step, Merge):
            adds = make_rule(
                step.strategy or "upsert", list_clauses(step), step.options.get("dialect")
            ).inserts
        return OperationCall(
            step.operation,
            target="parquet",
            source="rows" if isinstance(step, (Merge, Write)) else "none",
            has_sql=has_sql((on, step.when, step.where, dict(step.set))),
            reads_rows=not isinstance(step, Write) or step.where is not None,
            adds_files=adds or self.pipeline.targets[require(step.target)].kind != "parquet",
        )

    def _expect(self, place: str, step: Expect) -> None:
        if (step.source is None) == (step.target is None):
            raise self.make_error(place, "it looks at a source or at a target, one of the two.")
        manner = ("name", "source", "target", "at_most", "action", "quarantine")
        if all(name in manner for name in step.list_given()):
            wanted = "give not_null, unique, min_rows, max_rows, accepted, holds, references or fresh."
            raise self.make_error(place, "it expects nothing.", wanted)
        if step.min_rows is not None and step.max_rows is not None and step.min_rows > step.max_rows:
            raise self.make_error(f"{place} min_rows", f"it is above max_rows, which is {step.max_rows}.")
        with self.add_place_to_errors(place):
            parse_conditions(step)
            for one in parse_references(step, self.pipeline):
                if one.is_source:
                    self._check_referenced(one.name)
            parse_freshness(step.fresh)
        with self.add_place_to_errors(f"{place} at_most"):
            parse_limit(step.at_most)
        self._action(place, step)

    def _check_referenced(self, source: str) -> None:
        """Refuse foreign keys into a source that never has all its rows."""
        read = self.graph.list_sources(source)
        streams = self.graph.list_streams(source)
        part = [name for name in read if self.pipeline.sources[name].since is not None]
        if streams or part:
            told = "is a stream" if streams else "has the new rows of a target alone"
            raise InputError(
                f"references: source {(*streams, *part)[0]!r} {told}, and keys are looked up in all rows.",
                hint="write its rows into a target, and name that.",
            )

    def _action(self, place: str, step: Expect) -> None:
        if (step.quarantine is None) == (step.action == "quarantine"):
            if step.quarantine is None:
                raise self.make_error(
                    f"{place} action",
                    "quarantine needs a target for the rows.",
                    'quarantine = "<target>" names it.',
                )
            raise self.make_error(f"{place} quarantine", 'it goes with action = "quarantine".')
        is_streamed = step.source is not None and bool(self.graph.list_streams(step.source))
        if step.action in ("fail", "warn") and not is_streamed:
            return
        for name in ("min_rows", "max_rows", "fresh"):
            if name in step.list_given():
                raise self.make_error(
                    f"{place} {name}",
                    "it is about all rows together, and a stream has them batch by batch."
                    if is_streamed
                    else f"it is about all rows together, so there are none to {step.action}.",
                    "expect it of the target, below the step that writes it."
                    if is_streamed
                    else "give it a step of its own.",
                )
        if guards_target(step):
            with self.add_place_to_errors(f"{place} action"):
                check_target_guard(step, self.pipeline)
        if any(map(self.graph.list_streams, self._list_judged(step))):
            with self.add_place_to_errors(f"{place} action"):
                check_stream_guard(step, self.pipeline, self.graph)
        if step.quarantine is not None:
            if step.quarantine not in self.pipeline.targets:
                raise self.make_error(
                    f"{place} quarantine",
                    f"there is no target {step.quarantine!r}.",
                    suggest_names(
                        [step.quarantine],
                        sorted(self.pipeline.targets),
                        otherwise=f"declare it: [targets.{step.quarantine}] with its path.",
                    ),
                )
            self._check_quarantine(place, step.quarantine)
            self._check_since_judged(place, step)

    def _check_since_judged(self, place: str, step: Expect) -> None:
        """Refuse keys that are quarantined among the new rows of a target."""
        if not step.unique and not step.references:
            return
        for source in self._list_judged(step):
            for name in self.graph.list_sources(source):
                if self.pipeline.sources[name].since is not None:
                    raise self.make_error(
                        f"{place} source",
                        f"keys are judged among all rows, and source {name!r} has new rows alone.",
                        "leave since out, or expect it of the source that feeds the target.",
                    )

    def _list_judged(self, step: Expect) -> list[str]:
        """The sources whose rows an expectation drops or quarantines; of a target, of all that write it."""
        if step.source is not None:
            return [step.source]
        writers = [one for one in self.pipeline.steps if isinstance(one, (Merge, Write))]
        found = [require(one.source) for one in writers if one.target == step.target]
        return [name for name in found if name in self.pipeline.sources]

    def _check_quarantine(self, place: str, target: str) -> None:
        for number, other in enumerate(self.pipeline.steps, 1):
            if other.target == target and isinstance(other, (Merge, Write, Update)):
                raise self.make_error(
                    f"{place} quarantine",
                    f"step {number} ({name_step(other, number)}) writes the target {target!r} as well.",
                    "give the rows a target of their own.",
                )

    def _merge(self, place: str, step: Merge) -> None:
        dialect = step.options.get("dialect")
        with self.add_place_to_errors(f"{place} on"):
            parse_keys(step.on, dialect)
        if step.when and step.strategy is not None:
            raise self.make_error(
                f"{place} when", "it stands instead of a strategy.", "leave one of the two out."
            )
        if step.dedup_order_by and step.strategy != "deduplicate":
            raise self.make_error(f"{place} dedup_order_by", 'it goes with strategy = "deduplicate".')
        with self.add_place_to_errors(f"{place} when"):
            make_rule(step.strategy or "upsert", list_clauses(step), dialect)

    def _check_source_texts(self, place: str, source: Source) -> None:
        for name, text in source.columns.items():
            with self.add_place_to_errors(f"{place} columns.{name}"):
                parse_type_name(text)
        for name, text in source.derive.items():
            with self.add_place_to_errors(f"{place} derive.{name}"):
                parse_derivations({name: text})
        with self.add_place_to_errors(f"{place} where"):
            parse_source_filter(source.where)
        if self.pipeline.engine != "spark":
            with self.add_place_to_errors(f"{place} options"):
                check_portable(source)

    def _check_options(self, place: str, given: Mapping[str, Any], known: type[Any]) -> None:
        names_known = sorted(get_type_hints(known))
        for name in given:
            if name not in names_known:
                raise self.make_error(
                    place, f"the option {name!r} is not known.", suggest_names([name], names_known)
                )

    @contextmanager
    def add_place_to_errors(self, place: str) -> Iterator[None]:
        """Add the place in the file to an error."""
        try:
            yield
        except (InputError, NotSupported) as error:
            told = f"{self.where}, {place}: {error.message}"
            raise type(error)(told, path=self.pipeline.origin, hint=error.hint) from error

    def _check_known(self, place: str, key: str, name: str, known: Iterable[str]) -> None:
        if name not in known:
            raise self.make_error(
                f"{place} {key}", f"there is no {key} {name!r}.", suggest_names([name], sorted(known))
            )

    def _check_circles(self) -> None:
        """Refuse a target that is made from itself, also through others: every run would change it again."""
        flows: dict[str, list[str]] = {}
        places: dict[tuple[str, str], str] = {}
        names = [name_step(step, number) for number, step in enumerate(self.pipeline.steps, 1)]
        named = [replace(step, name=name) for step, name in zip(self.pipeline.steps, names, strict=True)]
        for step in expand_guards(replace(self.pipeline, steps=tuple(named))).steps:
            written = find_written_target(step)
            if isinstance(step, (Merge, Write, Expect)) and written is not None:
                own = f" {names.index(step.name) + 1} ({step.name})" if step.name in names else ""
                for start in self.graph.list_targets(step.source):
                    flows.setdefault(start, []).append(written)
                    places.setdefault((start, written), f"[[steps]]{own}")
        for start in flows:
            circle = _find_way_back(start, flows)
            if circle:
                raise self.make_error(
                    places[circle[-2], start],
                    f"the data goes round in a circle: {' -> '.join(circle)}.",
                    "write into another target; clauses of a merge (when) see what its own target has.",
                )


def _find_way_back(start: str, flows: dict[str, list[str]]) -> Sequence[str]:
    """The targets on the way from a target back to itself; empty where there is no way."""
    ways = [[start]]
    seen: set[str] = set()
    while ways:
        way = ways.pop()
        for target in flows.get(way[-1], ()):
            if target == start:
                return [*way, start]
            if target not in seen:
                seen.add(target)
                ways.append([*way, target])
    return []
