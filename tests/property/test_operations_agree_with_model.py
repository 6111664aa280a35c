"""Random sequences of operations on a real dataset, each checked row for row against the model."""

from __future__ import annotations

import datetime as dt
import math
import shutil
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

import intarsia as it
from intarsia.common.partitions import parse_hive_partition_path
from intarsia.kernel import chunk_copy
from tests.property import model
from tests.sampling import choose_number

MERGES = ["insert", "update", "upsert", "full_merge"]


@dataclass(frozen=True)
class Kind:
    """A key type and the few values it takes, so that keys meet often."""

    name: str
    type: pa.DataType
    values: list[Any]


KINDS = [
    Kind("int64", pa.int64(), [-5, 0, 1, 2, 3, 2**62]),
    Kind("int8", pa.int8(), [-128, 0, 1, 2, 127]),
    Kind("uint64", pa.uint64(), [0, 1, 2**63, 2**64 - 1]),
    Kind("string", pa.string(), ["", "a", "A", "ä", "a\u0308", "x" * 70, "x" * 70 + "y", "b "]),
    Kind("large_string", pa.large_string(), ["a", "b", "c"]),
    Kind("binary", pa.binary(), [b"", b"\x00", b"\xff", b"ab"]),
    Kind("float64", pa.float64(), [float("nan"), 0.0, -0.0, 1.5, -math.inf, math.inf]),
    Kind("float32", pa.float32(), [float("nan"), 0.0, -0.0, 1.5]),
    Kind("bool", pa.bool_(), [True, False]),
    Kind("decimal", pa.decimal128(20, 4), [Decimal("1.0000"), Decimal("-2.5000"), Decimal("1.0001")]),
    Kind("date32", pa.date32(), [dt.date(2020, 1, 1), dt.date(1960, 2, 29), dt.date(2025, 1, 1)]),
    Kind("timestamp[us]", pa.timestamp("us"), [dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 0, 1)]),
    Kind(
        "timestamp[us, UTC]",
        pa.timestamp("us", "UTC"),
        [dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(1969, 1, 1, tzinfo=dt.UTC)],
    ),
    Kind("time64", pa.time64("us"), [dt.time(1), dt.time(2, 3, 4, 5)]),
    Kind("duration", pa.duration("us"), [dt.timedelta(1), dt.timedelta(-1)]),
    Kind("dictionary", pa.dictionary(pa.int32(), pa.string()), ["a", "b", "c"]),
]


@dataclass(frozen=True)
class Case:
    kinds: tuple[Kind, ...]
    partitioned: bool
    copies_chunks: bool
    """Chunks that stay are taken over as bytes though they are small."""

    @property
    def keys(self) -> list[str]:
        return [f"k{i}" for i in range(len(self.kinds))]

    @property
    def schema(self) -> pa.Schema:
        fields = [pa.field(name, kind.type) for name, kind in zip(self.keys, self.kinds, strict=True)]
        part = [pa.field("part", pa.string())] if self.partitioned else []
        return pa.schema(
            [
                *fields,
                pa.field("v", pa.int64()),
                pa.field("s", pa.string()),
                pa.field("l", pa.list_(pa.int32())),
                *part,
            ]
        )

    def table(self, rows: list[model.Row]) -> pa.Table:
        columns = {
            f.name: pa.array([r[f.name] for r in rows], f.type.value_type).dictionary_encode().cast(f.type)
            if pa.types.is_dictionary(f.type)
            else pa.array([r[f.name] for r in rows], f.type)
            for f in self.schema
        }
        return pa.table(columns, schema=self.schema)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=2))
    return Case(tuple(kinds), draw(st.booleans()), draw(st.booleans()))


@st.composite
def rows_of(draw: st.DrawFn, case: Case, *, unique: bool, most: int = 8) -> list[model.Row]:
    keys = draw(st.lists(st.tuples(*(st.sampled_from(k.values) for k in case.kinds)), max_size=most))
    rows, seen = [], set()
    for key in keys:
        row = dict(zip(case.keys, key, strict=True))
        mark = model.key_of(row, case.keys)
        if unique and mark in seen:
            continue
        seen.add(mark)
        row["v"] = draw(st.none() | st.integers(0, 3))
        row["s"] = draw(st.none() | st.sampled_from(["p", "q"]))
        row["l"] = draw(st.none() | st.lists(st.integers(0, 2), max_size=2))
        if case.partitioned:
            row["part"] = partition_of(row, case)
        rows.append(row)
    return rows


def partition_of(row: model.Row, case: Case) -> str:
    """A function of the key, so that no key ever has to move."""
    return "ab"[sum(map(ord, repr(model.key_of(row, case.keys)))) % 2]


def written(root: Path, case: Case, files: list[list[model.Row]], *, row_group_size: int = 2) -> None:
    chunk_copy.CHUNK_BYTES = 0 if case.copies_chunks else 1 << 20
    for number, rows in enumerate(files):
        by_part: dict[str, list[model.Row]] = {}
        for row in rows:
            by_part.setdefault(f"part={row['part']}" if case.partitioned else "", []).append(row)
        for directory, mine in by_part.items():
            path = root / directory / f"f{number}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            table = case.table(mine)
            stored = table.drop_columns(["part"]) if case.partitioned else table
            pq.write_table(stored, path, row_group_size=row_group_size)


def read(root: Path, case: Case) -> list[model.Row]:
    """Every row, by a reader of its own: file by file, partition values from the path."""
    rows: list[model.Row] = []
    for path in sorted(root.rglob("*.parquet")):
        table = pq.ParquetFile(path).read()
        parts = parse_hive_partition_path(str(path.relative_to(root)))
        rows += [{**row, **parts} for row in table.to_pylist()]
    return rows


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One place for all examples; each begins by emptying it."""
    return tmp_path_factory.mktemp("property") / "t"


def fresh(root: Path) -> None:
    shutil.rmtree(root.parent)
    root.parent.mkdir()


@given(st.data())
def test_merges_agree_with_the_model(root: Path, data: st.DataObject) -> None:
    fresh(root)
    case = data.draw(cases())
    files = data.draw(st.lists(rows_of(case, unique=False), max_size=3))
    written(root, case, files)
    state = [row for rows in files for row in rows]
    for _ in range(data.draw(st.integers(1, 3))):
        strategy = data.draw(st.sampled_from(MERGES))
        source = data.draw(rows_of(case, unique=True))
        choices = [{}, {"batch_rows": 1}, {"threads": 1}]
        options = data.draw(
            st.sampled_from(choices if strategy == "update" else [*choices, {"max_rows_per_file": 2}])
        )
        partition = {"partition_by": "part"} if case.partitioned and not state else {}
        if not state:
            fresh(root)
        result = it.merge(case.table(source), root, on=case.keys, strategy=strategy, **partition, **options)
        state, counts = model.merge(state, source, case.keys, strategy)
        assert dict(result) == counts
        assert model.bag(read(root, case)) == model.bag(state)
        assert result.target_count_after == len(state)


@given(st.data())
def test_deduplicating_merges_agree_with_the_model(root: Path, data: st.DataObject) -> None:
    fresh(root)
    case = data.draw(cases())
    target = data.draw(rows_of(case, unique=True))
    written(root, case, [target])
    source = data.draw(rows_of(case, unique=False))
    order_by = data.draw(st.sampled_from([None, "v"]))
    partition = {"partition_by": "part"} if case.partitioned and not target else {}
    result = it.merge(
        case.table(source), root, on=case.keys, strategy="deduplicate", dedup_order_by=order_by, **partition
    )
    expected, counts = model.merge(
        target, model.deduplicated_source(source, case.keys, order_by), case.keys, "upsert"
    )
    assert dict(result) == counts
    assert model.bag(read(root, case)) == model.bag(expected)


@given(st.data())
def test_delete_and_update_agree_with_the_model(root: Path, data: st.DataObject) -> None:
    fresh(root)
    case = data.draw(cases())
    files = data.draw(st.lists(rows_of(case, unique=False), min_size=1, max_size=3))
    written(root, case, files)
    state = [row for rows in files for row in rows]
    if not state:
        return
    predicates: list[tuple[str, Any]] = [
        ("v > 1", lambda r: r["v"] is not None and r["v"] > 1),
        ("v is null or s = 'p'", lambda r: r["v"] is None or r["s"] == "p"),
        ("not (s = 'q')", lambda r: r["s"] is not None and r["s"] != "q"),
        ("v in (0, 3)", lambda r: r["v"] in (0, 3)),
        ("true", lambda r: True),
        ("v <> v", lambda r: False),
    ]
    if case.partitioned:
        predicates += [
            ("part = 'a'", lambda r: r["part"] == "a"),
            ("part = 'a' and v >= 2", lambda r: r["part"] == "a" and (r["v"] or 0) >= 2),
        ]
    text, test = data.draw(st.sampled_from(predicates))
    if data.draw(st.booleans()):
        result = it.update(root, {"v": "coalesce(v, 0) + 10", "s": "s || '!'"}, where=text)
        changed = sum(map(test, state))
        state = [
            {**r, "v": (r["v"] or 0) + 10, "s": None if r["s"] is None else r["s"] + "!"} if test(r) else r
            for r in state
        ]
        assert (result.updated, result.deleted) == (changed, 0)
    else:
        result = it.delete(root, text)
        kept = [row for row in state if not test(row)]
        assert (result.updated, result.deleted) == (0, len(state) - len(kept))
        state = kept
    assert result.total == len(state)
    assert model.bag(read(root, case)) == model.bag(state)


@given(st.data())
@settings(max_examples=choose_number(12, 30))
def test_layout_operations_lose_and_invent_nothing(root: Path, data: st.DataObject) -> None:
    fresh(root)
    case = data.draw(cases())
    files = data.draw(st.lists(rows_of(case, unique=False), min_size=1, max_size=5))
    written(root, case, files)
    state = [row for rows in files for row in rows]
    if not state:
        return
    operation = data.draw(st.sampled_from(["compact", "zorder", "hilbert", "linear", "deduplicate"]))
    if operation == "compact":
        it.compact(root, target_rows_per_file=data.draw(st.sampled_from([3, 100])))
    elif operation == "deduplicate":
        result = it.deduplicate(root, on=case.keys, memory_bytes=data.draw(st.sampled_from([1, 1 << 20])))
        kept = {model.key_of(row, case.keys) for row in state}
        found = read(root, case)
        assert len(found) == len(kept) == result.total
        assert {model.key_of(row, case.keys) for row in found} == kept
        return
    else:
        it.optimize(
            root,
            by=[*case.keys, "v"],
            curve=operation,
            target_rows_per_file=data.draw(st.sampled_from([2, 100])),
            memory_bytes=data.draw(st.sampled_from([1, 1 << 20])),
        )
    assert model.bag(read(root, case)) == model.bag(state)
