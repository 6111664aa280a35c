"""The same random operations on every engine: all agree with the model row for row and error for error."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

import intarsia as it
from intarsia.errors import IntarsiaError, KeyColumnError
from tests.property import model
from tests.property.test_operations_agree_with_model import KINDS, Case, Kind, read, rows_of, written
from tests.sampling import choose_number

FULL = os.environ.get("INTARSIA_HYPOTHESIS") == "full"
STRUCTS = [{"a": 1, "b": None}, {"a": None, "b": ""}]
BESIDES = [
    Kind("float16", pa.float16(), [0.5, -0.25]),
    Kind("fixed binary", pa.binary(2), [b"ab", b"\x00\xff"]),
    Kind("date64", pa.date64(), [dt.date(1969, 12, 31), dt.date(2025, 1, 1)]),
    Kind("time32", pa.time32("s"), [dt.time(1), dt.time(23, 59, 59)]),
    Kind("milliseconds", pa.timestamp("ms"), [dt.datetime(2020, 1, 1, 0, 0, 0, 1000)]),
    Kind("zoned milliseconds", pa.timestamp("ms", "UTC"), [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]),
    Kind("decimal256", pa.decimal256(45, 2), [Decimal("1.50"), Decimal(10**40)]),
    Kind("small decimal", pa.decimal128(5, 2), [Decimal("1.50"), Decimal("-999.99")]),
    Kind(
        "struct",
        pa.struct([("a", pa.int16()), ("b", pa.string())]),
        [{"a": 1, "b": None}, {"a": None, "b": ""}],
    ),
    Kind("map", pa.map_(pa.string(), pa.int32()), [[("k", 1)], []]),
    Kind("structs", pa.list_(pa.struct([("a", pa.float64())])), [[{"a": 0.5}, None], []]),
]
"""Types of a column that is only carried along."""

STRATEGIES = ["insert", "update", "upsert", "full_merge", "deduplicate"]
PREDICATES: list[tuple[str, Callable[[model.Row], bool]]] = [
    ("v > 1", lambda r: r["v"] is not None and r["v"] > 1),
    ("v is null or s = 'p'", lambda r: r["v"] is None or r["s"] == "p"),
    ("not (s = 'q')", lambda r: r["s"] is not None and r["s"] != "q"),
    ("v in (0, 3) and n >= 0", lambda r: r["v"] in (0, 3)),
    ("upper(s) = 'P'", lambda r: r["s"] == "p"),
    ("n % 2 = 1", lambda r: r["n"] % 2 == 1),
    ("v <> v", lambda r: False),
]


@dataclass(frozen=True)
class WideCase(Case):
    """A case with a column of any type beside, and a number that tells every row from the others."""

    beside: Kind = field(default_factory=lambda: KINDS[0])

    @property
    def schema(self) -> pa.Schema:
        narrow = Case.schema.fget(self)  # type: ignore[attr-defined]
        own = [pa.field("x", self.beside.type), pa.field("n", pa.int64())]
        at = narrow.get_field_index("part") if self.partitioned else len(narrow)
        return pa.schema([*list(narrow)[:at], *own, *list(narrow)[at:]])


@st.composite
def wide_cases(draw: st.DrawFn) -> WideCase:
    kinds = tuple(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=2)))
    beside = draw(st.sampled_from([*KINDS, *BESIDES]))
    return WideCase(kinds, draw(st.booleans()), draw(st.booleans()), beside)


class Numbers:
    """A number for every row."""

    def __init__(self) -> None:
        self.last = 0

    def __call__(self) -> int:
        self.last += 1
        return self.last


@st.composite
def wide_rows(
    draw: st.DrawFn, case: WideCase, number: Numbers, *, unique: bool = False, most: int = 8
) -> list[model.Row]:
    rows = draw(rows_of(case, unique=unique, most=most))
    for row in rows:
        row["x"] = draw(st.none() | st.sampled_from(case.beside.values))
        row["n"] = number()
    return rows


@dataclass
class Step:
    """One operation, and what it is to leave behind: rows, or an error."""

    name: str
    run: Callable[[Path, Any], it.MergeResult]
    rows: list[model.Row]
    counts: dict[str, int] | None = None
    error: type[IntarsiaError] | None = None


def counted(before: list[model.Row], after: list[model.Row], updated: int = 0) -> dict[str, int]:
    more, fewer = max(len(after) - len(before), 0), max(len(before) - len(after), 0)
    return {"inserted": more, "updated": updated, "deleted": fewer, "total": len(after)}


def merge_step(data: st.DataObject, case: WideCase, state: list[model.Row], number: Numbers) -> Step:
    strategy = data.draw(st.sampled_from(STRATEGIES))
    source = data.draw(wide_rows(case, number, unique=strategy != "deduplicate"))
    trouble = data.draw(st.sampled_from(["none", "none", "none", "twice", "null"]))
    options: dict[str, Any] = {"on": case.keys, "strategy": strategy}
    if strategy == "deduplicate":
        options["dedup_order_by"] = ["v", "n"]
    if case.partitioned and not state:
        options["partition_by"] = "part"
    if data.draw(st.booleans()):
        options["batch_rows"] = 1
    error: type[IntarsiaError] | None = None
    if source and trouble == "twice" and strategy != "deduplicate":
        source, error = [*source, {**source[0], "n": number()}], KeyColumnError
    elif source and trouble == "null":
        source, error = [*source, {**source[0], "k0": None, "n": number()}], KeyColumnError
    table = case.table(source)
    after, counts = state, None
    if error is None:
        rows = source
        if strategy == "deduplicate":
            ordered = sorted(source, key=lambda r: (-1 if r["v"] is None else r["v"], r["n"]))
            rows = model.deduplicated_source(ordered, case.keys, None)
        after, counts = model.merge(
            state, rows, case.keys, "upsert" if strategy == "deduplicate" else strategy
        )
    return Step(strategy, lambda root, e: it.merge(table, root, engine=e, **options), after, counts, error)


def change_step(data: st.DataObject, case: WideCase, state: list[model.Row], number: Numbers) -> Step:
    text, test = data.draw(st.sampled_from(PREDICATES))
    if data.draw(st.booleans()):
        after = [row for row in state if not test(row)]
        return Step("delete", lambda root, e: it.delete(root, text, engine=e), after, counted(state, after))
    after = [
        {**r, "v": (r["v"] or 0) + 10, "s": None if r["s"] is None else r["s"] + "!"} if test(r) else r
        for r in state
    ]
    values = {"v": "coalesce(v, 0) + 10", "s": "s || '!'"}
    return Step(
        "update",
        lambda root, e: it.update(root, values, where=text, engine=e),
        after,
        counted(state, after, sum(map(test, state))),
    )


def write_step(data: st.DataObject, case: WideCase, state: list[model.Row], number: Numbers) -> Step:
    source = data.draw(wide_rows(case, number))
    modes = ["append", "overwrite", *(["overwrite_partitions"] if case.partitioned else [])]
    mode = data.draw(st.sampled_from(modes))
    kept = {"append": state, "overwrite": []}.get(mode)
    if kept is None:
        parts = {row["part"] for row in source}
        kept = [row for row in state if row["part"] not in parts]
    partition = {"partition_by": "part"} if case.partitioned else {}
    table = case.table(source)
    return Step(
        mode, lambda root, e: it.write(table, root, mode=mode, engine=e, **partition), [*kept, *source]
    )


def layout_step(data: st.DataObject, case: WideCase, state: list[model.Row], number: Numbers) -> Step:
    size = data.draw(st.sampled_from([2, 100]))
    name = data.draw(st.sampled_from(["compact", "zorder", "hilbert", "linear", "deduplicate"]))
    if name == "compact":
        return Step(name, lambda root, e: it.compact(root, target_rows_per_file=size, engine=e), state)
    if name == "deduplicate":
        ordered = sorted(state, key=lambda r: (-1 if r["v"] is None else r["v"], r["n"]))
        after = model.deduplicated_source(ordered, case.keys, None)
        return Step(
            name,
            lambda root, e: it.deduplicate(root, on=case.keys, order_by=["v", "n"], engine=e),
            after,
            counted(state, after),
        )
    by = [*case.keys, "v"]
    return Step(
        name, lambda root, e: it.optimize(root, by=by, curve=name, target_rows_per_file=size, engine=e), state
    )


def outcome(step: Step, root: Path, engine: Any) -> tuple[type, str] | dict[str, int]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return dict(step.run(root, engine))
    except IntarsiaError as error:
        return type(error), str(error).replace(str(root), "ROOT")


def drive(data: st.DataObject, base: Path, engines: dict[str, Any], steps: int) -> None:
    """Begin with the same files everywhere, then go on with the same operations."""
    shutil.rmtree(base)
    base.mkdir()
    number = Numbers()
    case = data.draw(wide_cases())
    files = data.draw(st.lists(wide_rows(case, number), min_size=1, max_size=3))
    groups = data.draw(st.sampled_from([2, 100]))
    state = [row for rows in files for row in rows]
    roots = {name: base / name / "t" for name in engines}
    for root in roots.values():
        written(root, case, files, row_group_size=groups)
    for turn in range(data.draw(st.integers(1, steps))):
        kinds = (
            [merge_step, write_step]
            if not state
            else [merge_step, merge_step, change_step, write_step, layout_step]
        )
        step = data.draw(st.sampled_from(kinds))(data, case, state, number)
        if not step.rows and not state:
            continue
        told = {name: outcome(step, root, engines[name]) for name, root in roots.items()}
        first = told["arrow"]
        if step.error is not None:
            assert isinstance(first, tuple), (step.name, first)
            assert first[0] is step.error, (step.name, first)
        else:
            assert isinstance(first, dict), (step.name, first)
            assert step.counts is None or first == step.counts, step.name
        for name, theirs in told.items():
            # Later on, files that an error may name have names of their own on each engine.
            same = theirs == first if turn == 0 or isinstance(first, dict) else theirs[0] is first[0]  # type: ignore[index]
            assert same, (name, step.name, theirs, first)
        for name, root in roots.items():
            assert model.bag(read(root, case) if root.exists() else []) == model.bag(step.rows), (
                name,
                step.name,
            )
        state = step.rows


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One place for all examples; each begins by emptying it."""
    return tmp_path_factory.mktemp("engines") / "base"


@pytest.fixture(scope="session")
def headstrong() -> Iterator[Any]:
    """A connection whose every setting that could matter is not the usual one."""
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        for setting, value in {
            "preserve_insertion_order": "false",
            "default_order": "'desc'",
            "default_null_order": "'nulls_first'",
            "default_collation": "'nocase'",
            "threads": "3",
            "TimeZone": "'Asia/Tokyo'",
        }.items():
            connection.execute(f"SET {setting} = {value}")
        yield connection


@given(st.data())
@settings(
    max_examples=500 if FULL else choose_number(12, 40),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_in_process_engines_agree_with_the_model(base: Path, headstrong: Any, data: st.DataObject) -> None:
    base.mkdir(exist_ok=True)
    drive(data, base, {"arrow": "arrow", "duckdb": "duckdb", "beside": headstrong}, steps=4)


@pytest.mark.spark
@given(st.data())
@settings(max_examples=100 if FULL else 5, deadline=None, suppress_health_check=list(HealthCheck))
def test_all_engines_agree_with_the_model(base: Path, spark: Any, data: st.DataObject) -> None:
    base.mkdir(exist_ok=True)
    drive(data, base, {"arrow": "arrow", "duckdb": "duckdb", "spark": spark}, steps=3)
