"""Random operations on Iceberg tables whose spec, schema and version change meanwhile, against the model."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DecimalType, DoubleType, FloatType, IntegerType, LongType, StringType

import intarsia as it
from intarsia.errors import KeyColumnError
from tests.contract.iceberg_lakes import Warehouse
from tests.cross.checks import problems
from tests.cross.decoded import decode
from tests.cross.lake import local
from tests.cross.plain_transforms import transform
from tests.property import model
from tests.sampling import choose_number

FULL = os.environ.get("INTARSIA_HYPOTHESIS") == "full"
MODES = ["copy-on-write", "merge-on-read"]
STRATEGIES = ["insert", "update", "upsert", "full_merge", "deduplicate"]

NESTED = pa.struct([("a", pa.int32()), ("u", pa.string())])
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "k": (pa.int64(), [-5, 0, 1, 2, 3, 7, 2**40]),
    "r": (pa.string(), [None, "eu", "us", "a/b c=d", "", "ä", "eulalia"]),
    "t": (
        pa.timestamp("us"),
        [
            None,
            dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
            dt.datetime(2024, 2, 29, 12, 30),
            dt.datetime(2024, 3, 1),
            dt.datetime(2024, 3, 1, 7),
        ],
    ),
    "v": (pa.int32(), [None, -7, 0, 1, 2, 3, 25]),
    "f": (pa.float32(), [None, 0.5, -0.25, 3.0]),
    "c": (pa.decimal128(9, 2), [None, Decimal("-1.10"), Decimal("0.00"), Decimal("12345.67")]),
    "d": (pa.date32(), [None, dt.date(1960, 2, 29), dt.date(2024, 3, 1)]),
    "p": (NESTED, [None, {"a": 1, "u": "x"}, {"a": None, "u": None}, {"a": 9, "u": ""}]),
    "l": (pa.list_(pa.int32()), [None, [], [1, None], [2]]),
    "n": (pa.int64(), []),
}
"""The columns a table begins with. ``k`` is the key, ``n`` tells every row from the others."""

FIELDS = {
    "k": ["identity", "bucket[3]", "truncate[4]"],
    "r": ["identity", "bucket[4]", "truncate[2]"],
    "t": ["year", "month", "day", "hour", "identity", "bucket[2]"],
    "v": ["identity", "bucket[2]", "truncate[10]"],
    "c": ["identity", "bucket[2]", "truncate[50]"],
    "d": ["identity", "month", "day", "bucket[2]"],
    "p.a": ["identity", "bucket[2]"],
}
"""What a table may be partitioned by."""

PREDICATES: list[tuple[str, str, Callable[[Any], bool]]] = [
    ("v", "{} > 1", lambda v: v is not None and v > 1),
    ("v", "{} is null", lambda v: v is None),
    ("v", "not ({} = 0)", lambda v: v is not None and v != 0),
    ("r", "{} = 'eu'", lambda r: r == "eu"),
    ("r", "{} is null or {} like 'e%'", lambda r: r is None or r.startswith("e")),
    ("r", "{} <> 'eu'", lambda r: r is not None and r != "eu"),
    ("t", "{} >= timestamp '2024-03-01 00:00:00'", lambda t: t is not None and t >= dt.datetime(2024, 3, 1)),
    ("t", "{} < timestamp '1970-01-01 00:00:00'", lambda t: t is not None and t < dt.datetime(1970, 1, 1)),
    ("d", "{} = date '2024-03-01'", lambda d: d == dt.date(2024, 3, 1)),
    ("c", "{} < 0", lambda c: c is not None and c < 0),
    ("k", "{} in (1, 2, 1099511627776)", lambda k: k in (1, 2, 2**40)),
    ("n", "{} % 2 = 1", lambda n: n % 2 == 1),
    ("n", "{} < 0", lambda n: False),
]


@dataclass
class World:
    """A table, and what the model thinks of it."""

    warehouse: Warehouse
    name: str
    names: dict[str, str] = field(default_factory=lambda: {name: name for name in COLUMNS})
    """What each column is called now; those that were dropped are not here."""
    kinds: dict[str, pa.DataType] = field(
        default_factory=lambda: {name: kind for name, (kind, _) in COLUMNS.items()}
    )
    rows: list[model.Row] = field(default_factory=list)
    """By the names that columns began with."""
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    words: Iterator[int] = field(default_factory=itertools.count)

    @property
    def table(self) -> Table:
        return self.warehouse.catalog.load_table(self.name)

    @property
    def target(self) -> Any:
        return it.iceberg(self.name, catalog=self.warehouse.catalog)

    @property
    def key(self) -> str:
        return self.names["k"]

    def arrow(self, rows: list[model.Row]) -> pa.Table:
        columns = {
            now: pa.array([row[name] for row in rows], self.kinds[name]) for name, now in self.names.items()
        }
        return pa.table(columns)

    def draw_rows(self, data: st.DataObject, *, unique: bool, least: int = 0) -> list[model.Row]:
        keys = data.draw(
            st.lists(st.sampled_from(COLUMNS["k"][1]), min_size=least, max_size=6, unique=unique)
        )
        return [
            {
                name: key
                if name == "k"
                else next(self.numbers)
                if name == "n"
                else data.draw(st.sampled_from(COLUMNS[name][1] if name in COLUMNS else [None, "z"]))
                for name in self.names
            }
            for key in keys
        ]

    def check(self, told: it.MergeResult | None) -> None:
        """Two readers find the model's rows, and the files of the table fit each other."""
        table = self.table
        expected = model.bag([{now: row[name] for name, now in self.names.items()} for row in self.rows])
        assert model.bag(it.read(self.target).read_all().to_pylist()) == expected, "our own reader"
        if not _names_a_type_twice(table):
            assert model.bag(table.scan().to_arrow().to_pylist()) == expected, "PyIceberg's reader"
        assert told is None or told.total == len(self.rows)
        if told is None or not told.changed:  # what was checked before may be of an earlier version
            return
        wrong = problems(decode(local(table.metadata_location)), ours=True)
        assert not wrong, "\n".join(wrong)


def _names_a_type_twice(table: Table) -> bool:
    """Whether a partition has two fields of one decimal type, as in V1 after one was dropped and added again.

    Avro names the second by the first, as Java writes it; PyIceberg 0.12 does not look such names up.
    """
    for spec in table.specs().values():
        kinds = [one.field_type for one in spec.partition_type(table.schema()).fields]
        named = [kind for kind in kinds if isinstance(kind, DecimalType)]
        if len(set(named)) < len(named):
            return True
    return False


def merge_step(data: st.DataObject, world: World, options: dict[str, Any]) -> it.MergeResult | None:
    strategy = data.draw(st.sampled_from(STRATEGIES))
    source = world.draw_rows(data, unique=strategy != "deduplicate")
    chosen = {"on": world.key, "strategy": strategy, **options}
    if strategy == "deduplicate":
        chosen["dedup_order_by"] = world.names["n"]
    if source and strategy != "deduplicate" and data.draw(st.integers(0, 5)) == 0:
        before = world.table.metadata_location
        with pytest.raises(KeyColumnError):
            it.merge(world.arrow([*source, source[0]]), world.target, **chosen)
        assert world.table.metadata_location == before
        return None
    result = it.merge(world.arrow(source), world.target, **chosen)
    rows = model.deduplicated_source(source, ["k"], "n") if strategy == "deduplicate" else source
    world.rows, counts = model.merge(
        world.rows, rows, ["k"], "upsert" if strategy == "deduplicate" else strategy
    )
    assert dict(result) == counts
    return result


def draw_predicate(data: st.DataObject, world: World) -> tuple[str, Callable[[model.Row], bool]]:
    name, text, test = data.draw(st.sampled_from([one for one in PREDICATES if one[0] in world.names]))
    return text.replace("{}", world.names[name]), lambda row: test(row[name])


def delete_step(data: st.DataObject, world: World, options: dict[str, Any]) -> it.MergeResult:
    text, test = draw_predicate(data, world)
    result = it.delete(world.target, text, **options)
    gone = [row for row in world.rows if test(row)]
    world.rows = [row for row in world.rows if not test(row)]
    assert result.deleted == len(gone)
    return result


def update_step(data: st.DataObject, world: World, options: dict[str, Any]) -> it.MergeResult:
    """Also of columns that the table is partitioned by: the rows move."""
    text, test = draw_predicate(data, world)
    values: dict[str, tuple[str, Callable[[model.Row], Any]]] = {
        "r": ("'moved'", lambda row: "moved"),
        "v": ("coalesce({}, 0) + 10", lambda row: (row["v"] or 0) + 10),
        "t": ("timestamp '2025-01-01 00:00:00'", lambda row: dt.datetime(2025, 1, 1)),
        "d": ("null", lambda row: None),
    }
    chosen = data.draw(st.sampled_from([name for name in (*values, "n") if name in world.names]))
    sql, made = values.get(chosen, ("{} + 1000", lambda row: row["n"] + 1000))
    result = it.update(
        world.target, {world.names[chosen]: sql.replace("{}", world.names[chosen])}, text, **options
    )
    assert result.updated == sum(map(test, world.rows))
    world.rows = [{**row, chosen: made(row)} if test(row) else row for row in world.rows]
    return result


def write_step(data: st.DataObject, world: World, options: dict[str, Any]) -> it.MergeResult:
    source = world.draw_rows(data, unique=False)
    options = {"engine": options["engine"]}  # the others would have no effect, which is refused
    mode = data.draw(st.sampled_from(["append", "append", "overwrite", "overwrite_partitions"]))
    fields = _default_fields(world)
    if mode == "overwrite_partitions" and (not fields or _has_stale(world)):
        mode = "append"
    result = it.write(world.arrow(source), world.target, mode=mode, **options)
    kept = world.rows if mode == "append" else []
    if mode == "overwrite_partitions":
        parts = {_partition(row, fields) for row in source}
        kept = [row for row in world.rows if _partition(row, fields) not in parts]
    assert (result.inserted, result.deleted) == (len(source), len(world.rows) - len(kept))
    world.rows = [*kept, *source]
    return result


def _default_fields(world: World) -> list[tuple[str, str]]:
    """The columns and transforms of the default spec, but void ones."""
    table = world.table
    began = {now: name for name, now in world.names.items()}
    found = []
    for one in table.spec().fields:
        if str(one.transform) != "void":
            first, *rest = table.schema().find_column_name(one.source_id).split(".")
            found.append((".".join([began[first], *rest]), str(one.transform)))
    return found


def _partition(row: model.Row, fields: list[tuple[str, str]]) -> tuple[Any, ...]:
    values = []
    for name, word in fields:
        value: Any = row
        for part in name.split("."):
            value = None if value is None else value[part]
        values.append(transform(word, value))
    return tuple(values)


def _has_stale(world: World) -> bool:
    current = world.table.spec().spec_id
    return any(file.tag.file.spec_id != current for file in world.target.snapshot().files)


def layout_step(data: st.DataObject, world: World, options: dict[str, Any]) -> it.MergeResult | None:
    if not world.rows:
        return None
    name = data.draw(st.sampled_from(["compact", "zorder", "linear", "deduplicate"]))
    size = data.draw(st.sampled_from([2, 100]))
    rest = {key: value for key, value in options.items() if key != "mode"}
    if name == "compact":
        return it.compact(world.target, target_rows_per_file=size, **rest)
    if name == "deduplicate":
        world.rows = model.deduplicated_source(world.rows, ["k"], "n")
        return it.deduplicate(world.target, on=world.key, order_by=world.names["n"], **options)
    by = [world.key, world.names["n"]]
    return it.optimize(world.target, by=by, curve=name, target_rows_per_file=size, **rest)


def spec_step(data: st.DataObject, world: World, _: dict[str, Any]) -> None:
    table = world.table
    present = [one for one in table.spec().fields if str(one.transform) != "void"]
    if present and data.draw(st.booleans()):
        with table.update_spec() as evolution:
            evolution.remove_field(data.draw(st.sampled_from([one.name for one in present])))
        return
    source = data.draw(st.sampled_from([name for name in FIELDS if name.split(".")[0] in world.names]))
    word = data.draw(st.sampled_from(FIELDS[source]))
    now = ".".join([world.names[source.split(".")[0]], *source.split(".")[1:]])
    if any(
        str(one.transform) == word and table.schema().find_column_name(one.source_id) == now
        for one in present
    ):
        return
    times = ("year", "month", "day", "hour")
    if word in times and any(
        str(one.transform) in times and table.schema().find_column_name(one.source_id) == now
        for one in present
    ):
        return
    with table.update_spec() as evolution:
        evolution.add_field(now, parse_transform(word), f"p{next(world.words)}")


def schema_step(data: st.DataObject, world: World, _: dict[str, Any]) -> None:
    table = world.table
    by = {source.split(".")[0] for source, _ in _default_fields(world)}
    kind = data.draw(st.sampled_from(["rename", "add", "drop", "promote"]))
    with table.update_schema() as evolution:
        if kind == "rename":
            name = data.draw(st.sampled_from(sorted(world.names)))
            new = f"{name}{next(world.words)}"
            evolution.rename_column(world.names[name], new)
            world.names[name] = new
        elif kind == "add":
            name = f"x{next(world.words)}"
            evolution.add_column(name, StringType())
            world.names[name], world.kinds[name] = name, pa.string()
            world.rows = [{**row, name: None} for row in world.rows]
        elif kind == "drop":
            name = data.draw(st.sampled_from(sorted(world.names)))
            if name not in ("k", "n") and name not in by:
                evolution.delete_column(world.names.pop(name))
                world.rows = [{key: v for key, v in row.items() if key != name} for row in world.rows]
        else:
            for name, old, new, wide in (
                ("v", IntegerType(), LongType(), pa.int64()),
                ("f", FloatType(), DoubleType(), pa.float64()),
            ):
                if name in world.names and table.schema().find_type(world.names[name]) == old:
                    evolution.update_column(world.names[name], new)
                    world.kinds[name] = wide


def version_step(data: st.DataObject, world: World, _: dict[str, Any]) -> None:
    table = world.table
    if table.metadata.format_version == 1:
        with table.transaction() as transaction:
            transaction.upgrade_table_version(2)
    elif table.metadata.format_version == 2:
        world.warehouse.upgrade(world.name)


CHANGES = [merge_step, merge_step, delete_step, update_step, write_step, layout_step]
EVOLUTIONS = [spec_step, spec_step, schema_step, version_step]


def begin(data: st.DataObject, warehouse: Warehouse) -> World:
    """A table of one or two files, by PyIceberg's own writer or by ours."""
    version = data.draw(st.sampled_from([1, 2, 2, 3]))
    world = World(warehouse, warehouse.fresh())
    properties = {
        "format-version": str(min(version, 2)),
        "write.delete.granularity": data.draw(st.sampled_from(["file", "partition"])),
        "write.parquet.row-group-limit": data.draw(st.sampled_from(["2", "1000"])),
        "commit.manifest.min-count-to-merge": data.draw(st.sampled_from(["2", "100"])),
    }
    warehouse.catalog.create_table(world.name, world.arrow([]).schema, properties=properties)
    if data.draw(st.booleans()):
        spec_step(data, world, {})
    if version == 3:
        warehouse.upgrade(world.name)
    for _ in range(data.draw(st.integers(1, 2))):
        rows = world.draw_rows(data, unique=False, least=1)
        nested = any("." in name for name, _ in _default_fields(world))
        if version < 3 and not nested and data.draw(st.booleans()):
            world.table.append(world.arrow(rows))
        else:
            it.write(world.arrow(rows), world.target, engine="arrow", row_group_size=2)
        world.rows += rows
    return world


def drive(data: st.DataObject, warehouse: Warehouse, engine: Any, most: int) -> None:
    world = begin(data, warehouse)
    world.check(None)
    for _ in range(data.draw(st.integers(2, most))):
        if data.draw(st.booleans()):
            data.draw(st.sampled_from(EVOLUTIONS))(data, world, {})
        version = world.table.metadata.format_version
        mode = data.draw(st.sampled_from(MODES if version > 1 else MODES[:1]))
        options: dict[str, Any] = {"mode": mode, "engine": engine}
        if data.draw(st.integers(0, 3)) == 0:
            options["batch_rows"] = 1
        step = data.draw(st.sampled_from(CHANGES))
        before = len(world.table.metadata.snapshots)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            told = step(data, world, options)
        commits = len(world.table.metadata.snapshots) - before
        assert commits == (told is not None and told.changed)
        world.check(told)
        text, test = draw_predicate(data, world)
        found = it.read(world.target, where=text).read_all()[world.names["n"]].to_pylist()
        assert sorted(found) == sorted(row["n"] for row in world.rows if test(row)), text


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    opened = Warehouse(tmp_path_factory.mktemp("iceberg"))
    yield opened
    opened.catalog.close()


def emptied(warehouse: Warehouse) -> Warehouse:
    """Without the tables of the examples before."""
    for path in warehouse.directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    return warehouse


@given(st.data())
@settings(
    max_examples=400 if FULL else choose_number(8, 20), deadline=None, suppress_health_check=list(HealthCheck)
)
def test_arrow_on_iceberg_agrees_with_the_model(warehouse: Warehouse, data: st.DataObject) -> None:
    drive(data, emptied(warehouse), "arrow", most=6 if FULL else 4)


@given(st.data())
@settings(max_examples=200 if FULL else 8, deadline=None, suppress_health_check=list(HealthCheck))
def test_duckdb_on_iceberg_agrees_with_the_model(warehouse: Warehouse, data: st.DataObject) -> None:
    drive(data, emptied(warehouse), "duckdb", most=6 if FULL else 4)
