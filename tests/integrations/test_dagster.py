from __future__ import annotations

import doctest
import inspect
import runpy
from collections.abc import Callable, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import intarsia as it
from intarsia.errors import ColumnNotFound, InputError, KeyColumnError, NotSupported
from intarsia.pipeline import Expect

dg = pytest.importorskip("dagster", reason="make doors DOORS=dagster runs this")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

from intarsia.integrations.dagster import IntarsiaIOManager, build_asset_check
from intarsia.tables.iceberg import embedded_catalog

DAYS = dg.DailyPartitionsDefinition("2025-03-01", end_date="2025-03-10")
EXAMPLE = Path(__file__).parents[2] / "examples" / "integrations" / "dagster" / "shop.py"

Materialize = Callable[..., Any]


@pytest.fixture
def instance() -> Any:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def materialize(tmp_path: Path, instance: Any) -> Materialize:
    def run(*assets: Any, partition: str | None = None, **options: Any) -> Any:
        resources = {"io_manager": IntarsiaIOManager(root=str(tmp_path / "lake"))}
        return dg.materialize(
            list(assets), partition_key=partition, resources=resources, instance=instance, **options
        )

    return run


def _make_asset(rows: Callable[[Any], Any], name: str = "events", **options: Any) -> Any:
    @dg.asset(name=name, **options)
    def made(context):  # type: ignore[no-untyped-def]
        return rows(context)

    return made


def _day_rows(context: Any) -> pa.Table:
    day = date.fromisoformat(context.partition_key)
    return pa.table({"id": [day.day * 10 + i for i in range(3)], "day": [day] * 3, "n": ["a", "b", "c"]})


EVENTS = _make_asset(_day_rows, partitions_def=DAYS, metadata={"partition_expr": "day"})


def _metadata(result: Any, asset: str = "events") -> dict[str, Any]:
    (made,) = result.asset_materializations_for_node(asset)
    return {name: value.value for name, value in made.metadata.items()}


def test_a_partition_is_replaced_as_often_as_it_is_materialized(
    materialize: Materialize, tmp_path: Path
) -> None:
    for day in ("2025-03-01", "2025-03-02", "2025-03-01"):
        result = materialize(EVENTS, partition=day)
    found = it.read(tmp_path / "lake" / "events").read_all()
    assert sorted(found["id"].to_pylist()) == [10, 11, 12, 20, 21, 22]
    told = _metadata(result)
    assert (told["dagster/row_count"], told["dagster/partition_row_count"]) == (6, 3)
    assert (told["rows_deleted"], told["files_removed"], told["files_new"]) == (3, 1, 1)
    assert told["bytes_written"] > 0
    assert [column.name for column in told["dagster/column_schema"].columns] == ["id", "n", "day"]
    assert sorted(path.name for path in (tmp_path / "lake" / "events").iterdir()) == [
        "day=2025-03-01",
        "day=2025-03-02",
    ]


def test_a_partition_that_has_no_rows_any_more_is_empty(materialize: Materialize, tmp_path: Path) -> None:
    materialize(EVENTS, partition="2025-03-01")
    materialize(EVENTS, partition="2025-03-02")
    none = _make_asset(
        lambda context: _day_rows(context).slice(0, 0),
        partitions_def=DAYS,
        metadata={"partition_expr": "day"},
    )
    materialize(none, partition="2025-03-01")
    assert sorted(it.read(tmp_path / "lake" / "events").read_all()["id"].to_pylist()) == [20, 21, 22]


def test_an_asset_without_partitions_is_replaced_and_with_keys_merged(
    materialize: Materialize, tmp_path: Path
) -> None:
    rows = [pa.table({"id": [1, 2], "n": ["a", "b"]}), pa.table({"id": [2, 3], "n": ["b2", "c"]})]
    for at in (0, 1, 1):
        materialize(_make_asset(lambda _, at=at: rows[at], name="whole"))
        result = materialize(_make_asset(lambda _, at=at: rows[at], name="merged", metadata={"on": "id"}))
    assert it.read(tmp_path / "lake" / "whole").read_all().to_pylist() == rows[1].to_pylist()
    merged = it.read(tmp_path / "lake" / "merged").read_all().sort_by("id")
    assert merged["n"].to_pylist() == ["a", "b2", "c"]
    assert _metadata(result, "merged")["operation"] == "upsert"


def test_a_merge_takes_its_arguments_from_metadata(materialize: Materialize, tmp_path: Path) -> None:
    first = pa.table({"id": [1, 2], "n": ["a", "b"]})
    materialize(_make_asset(lambda _: first, metadata={"on": ["id"], "strategy": "insert"}))
    later = pa.table({"id": [2, 3], "n": ["no", "c"], "new": [1, 2]})
    said = {"on": ["id"], "strategy": "insert", "schema_evolution": "add"}
    assert _metadata(materialize(_make_asset(lambda _: later, metadata=said)))["rows_inserted"] == 1
    found = it.read(tmp_path / "lake" / "events").read_all().sort_by("id")
    assert found.to_pylist()[1] == {"id": 2, "n": "b", "new": None}


def test_changes_of_a_day_are_merged_into_rows_of_any_day(materialize: Materialize, tmp_path: Path) -> None:
    changes = _make_asset(
        lambda context: pa.table({"id": [1, date.fromisoformat(context.partition_key).day], "at": [0, 1]}),
        partitions_def=dg.DailyPartitionsDefinition("2025-03-02"),
        metadata={"on": "id"},
    )
    materialize(changes, partition="2025-03-02")
    materialize(changes, partition="2025-03-03")
    assert sorted(it.read(tmp_path / "lake" / "events").read_all()["id"].to_pylist()) == [1, 2, 3]


LOADED: list[Any] = []


def _make_reader(kind: Any, **options: Any) -> Any:
    def reader(events):  # type: ignore[no-untyped-def]
        LOADED.append(events.read_all() if isinstance(events, pa.RecordBatchReader) else events)

    reader.__annotations__ = {"events": kind, "return": None}
    said = options.pop("asset_in", {})
    return dg.asset(name="reader", ins={"events": dg.AssetIn(**said)}, **options)(reader)


@pytest.mark.parametrize(
    "kind", [pa.Table, pa.RecordBatchReader, Any, pd.DataFrame, pl.DataFrame, pl.LazyFrame], ids=str
)
def test_an_input_is_loaded_as_its_type_with_the_rows_of_its_partition(
    kind: Any, materialize: Materialize
) -> None:
    LOADED.clear()
    reader = _make_reader(kind, partitions_def=DAYS)
    materialize(EVENTS, partition="2025-03-01")
    materialize(EVENTS, reader, partition="2025-03-02")
    (found,) = LOADED
    if kind not in (Any, pa.RecordBatchReader):
        assert isinstance(found, kind)
    ids = (found.collect() if kind is pl.LazyFrame else found)["id"]
    assert (ids.to_pylist() if isinstance(ids, pa.ChunkedArray) else ids.to_list()) == [20, 21, 22]


def test_an_input_may_want_some_columns_and_all_partitions(materialize: Materialize) -> None:
    LOADED.clear()
    for day in ("2025-03-01", "2025-03-02"):
        materialize(EVENTS, partition=day)
    mapping = {"partition_mapping": dg.AllPartitionMapping(), "metadata": {"columns": ["n"]}}
    reader = _make_reader(pa.Table, asset_in=mapping)
    only = dg.DailyPartitionsDefinition("2025-03-01", end_date="2025-03-03")
    events = _make_asset(_day_rows, partitions_def=only, metadata={"partition_expr": "day"})
    materialize(events, reader, selection=[reader])
    assert LOADED[0].column_names == ["n"]
    assert LOADED[0].num_rows == 6


TYPES: dict[str, tuple[Any, str, Callable[[Any], Any], pa.DataType]] = {
    "date": (DAYS, "2025-03-02", lambda _: date(2025, 3, 2), pa.date32()),
    "text": (DAYS, "2025-03-02", lambda _: "2025-03-02", pa.string()),
    "instants of another zone": (
        dg.DailyPartitionsDefinition("2025-03-29", timezone="Europe/Paris"),
        "2025-03-30",
        lambda _: datetime.fromisoformat("2025-03-30T21:59:59+00:00"),
        pa.timestamp("us", "UTC"),
    ),
    "times without a zone": (
        dg.DailyPartitionsDefinition("2025-03-29", timezone="Europe/Paris"),
        "2025-03-30",
        lambda _: datetime(2025, 3, 30, 23, 59, 59),
        pa.timestamp("ms"),
    ),
    "hours": (
        dg.HourlyPartitionsDefinition("2025-03-01-00:00"),
        "2025-03-01-05:00",
        lambda _: datetime(2025, 3, 1, 5, 59),
        pa.timestamp("s"),
    ),
    "months": (
        dg.MonthlyPartitionsDefinition("2025-01-01"),
        "2025-02-01",
        lambda _: date(2025, 2, 28),
        pa.date32(),
    ),
    "names": (dg.StaticPartitionsDefinition(["eu", "us"]), "us", lambda _: "us", pa.string()),
    "numbers": (dg.StaticPartitionsDefinition(["1", "2"]), "2", lambda _: 2, pa.int16()),
}


@pytest.mark.parametrize("name", TYPES)
def test_partitions_of_every_kind_are_replaced_and_loaded(
    name: str, materialize: Materialize, tmp_path: Path
) -> None:
    LOADED.clear()
    definition, key, value, kind = TYPES[name]

    def rows(context: Any) -> pa.Table:
        return pa.table({"id": [1, 2], "part": pa.array([value(context)] * 2, kind)})

    events = _make_asset(rows, partitions_def=definition, metadata={"partition_expr": "part"})
    reader = _make_reader(pa.Table, partitions_def=definition)
    materialize(events, partition=key)
    materialize(events, reader, partition=key)
    assert LOADED[0]["id"].to_pylist() == [1, 2]
    assert it.snapshot(tmp_path / "lake" / "events").rows == 2


def test_partitions_of_two_dimensions_are_replaced(materialize: Materialize, tmp_path: Path) -> None:
    LOADED.clear()
    both = dg.MultiPartitionsDefinition({"day": DAYS, "region": dg.StaticPartitionsDefinition(["eu", "us"])})

    def rows(context: Any) -> pa.Table:
        said = context.partition_key.keys_by_dimension
        return pa.table({"day": [date.fromisoformat(said["day"])], "region": [said["region"]]})

    columns = {"day": "day", "region": "region"}
    events = _make_asset(rows, partitions_def=both, metadata={"partition_expr": columns})
    reader = _make_reader(pa.Table, partitions_def=both)
    for region in ("eu", "us", "us"):
        key = dg.MultiPartitionKey({"day": "2025-03-02", "region": region})
        materialize(events, reader, partition=key)
    assert [loaded["region"].to_pylist() for loaded in LOADED] == [["eu"], ["us"], ["us"]]
    assert it.snapshot(tmp_path / "lake" / "events").rows == 2


@pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")  # Dagster calls it beta
def test_a_range_of_partitions_in_one_run_is_replaced(
    materialize: Materialize, tmp_path: Path, instance: Any
) -> None:
    def rows(context: Any) -> pa.Table:
        days = [date.fromisoformat(key) for key in context.partition_keys]
        return pa.table({"id": range(len(days)), "day": days})

    events = _make_asset(
        rows,
        partitions_def=DAYS,
        metadata={"partition_expr": "day"},
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    tags = {
        "dagster/asset_partition_range_start": "2025-03-02",
        "dagster/asset_partition_range_end": "2025-03-05",
    }
    for _ in range(2):
        materialize(events, tags=tags)
    assert it.snapshot(tmp_path / "lake" / "events").rows == 4


def test_tables_of_an_iceberg_catalog_are_assets(tmp_path: Path, instance: Any) -> None:
    catalog = embedded_catalog(tmp_path / "warehouse")
    catalog.create_namespace("shop")
    catalog.create_table(
        "shop.events", pa.schema([("id", pa.int64()), ("day", pa.date32()), ("n", pa.string())])
    )
    events = _make_asset(
        _day_rows, key_prefix="shop", partitions_def=DAYS, metadata={"partition_expr": "day"}
    )
    manager = IntarsiaIOManager(catalog=str(tmp_path / "warehouse"))
    for day in ("2025-03-01", "2025-03-02", "2025-03-01"):
        dg.materialize([events], partition_key=day, resources={"io_manager": manager}, instance=instance)
    table = it.iceberg("shop.events", catalog=str(tmp_path / "warehouse"))
    assert it.read(table).read_all().num_rows == 6


REFUSED: Mapping[str, tuple[dict[str, Any], Callable[[Any], Any], type[Exception]]] = {
    "rows of another partition": (
        {"partition_expr": "day"},
        lambda context: _day_rows(context).set_column(1, "day", pa.array([date(2025, 3, 9)] * 3)),
        InputError,
    ),
    "rows of another partition, merged": (
        {"partition_expr": "day", "on": "id"},
        lambda context: _day_rows(context).set_column(1, "day", pa.array([date(2025, 3, 9)] * 3)),
        InputError,
    ),
    "no column of partitions": ({}, _day_rows, InputError),
    "a column that is not there": ({"partition_expr": "dya"}, _day_rows, ColumnNotFound),
    "keys twice": (
        {"on": "id", "partition_expr": "day"},
        lambda context: pa.concat_tables([_day_rows(context)] * 2),
        KeyColumnError,
    ),
    "a merge and a mode": ({"on": "id", "mode": "append"}, _day_rows, InputError),
    "no rows at all": ({"partition_expr": "day"}, lambda _: 5, InputError),
    "partitions that are no values": (
        {"partition_expr": "id"},
        _day_rows,
        InputError,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_leaves_every_byte(
    name: str, materialize: Materialize, tmp_path: Path, unchanged: Any
) -> None:
    materialize(EVENTS, partition="2025-03-01")
    said, rows, error = REFUSED[name]
    with unchanged(tmp_path / "lake" / "events"), pytest.raises(error):
        materialize(_make_asset(rows, partitions_def=DAYS, metadata=said), partition="2025-03-02")


def test_an_input_of_an_unknown_type_is_refused(materialize: Materialize) -> None:
    with pytest.raises(NotSupported, match="annotate it"):
        materialize(EVENTS, _make_reader(dict, partitions_def=DAYS), partition="2025-03-02")


def _evaluate(materialize: Materialize, *expectations: Expect, **options: Any) -> dict[str, Any]:
    checks = [build_asset_check(EVENTS, one, **options) for one in expectations]
    done = materialize(EVENTS, *checks, partition="2025-03-01", raise_on_error=False)
    return {one.check_name: one for one in done.get_asset_check_evaluations()}


def test_expectations_are_asset_checks_that_pass_and_fail(materialize: Materialize) -> None:
    found = _evaluate(
        materialize,
        Expect(name="ids", not_null="id", unique="id", min_rows=3),
        Expect(name="small", holds=("id < 12", "id > 0")),
        Expect(name="warned", accepted={"n": ("a", "b")}, action="warn"),
        Expect(name="mostly", holds="id < 12", at_most="50 %"),
    )
    assert {name: one.passed for name, one in found.items()} == {
        "ids": True,
        "small": False,
        "warned": False,
        "mostly": True,
    }
    assert found["small"].severity == dg.AssetCheckSeverity.ERROR
    assert found["warned"].severity == dg.AssetCheckSeverity.WARN
    assert {name: value.value for name, value in found["small"].metadata.items()} == {
        "id < 12": 1,
        "id > 0": 0,
    }
    assert found["small"].description == "id < 12: 1 row against it"


def test_a_check_looks_keys_up_in_another_asset(materialize: Materialize) -> None:
    names = _make_asset(lambda _: pa.table({"name": ["a", "b"]}), name="names")
    materialize(names)
    known = Expect(name="known", references={"n": "names.name"})
    assert not _evaluate(materialize, known, tables={"names": names})["known"].passed
    assert not _evaluate(materialize, known, tables={"names": "names"})["known"].passed


def test_a_blocking_check_that_fails_keeps_what_is_downstream_from_running(materialize: Materialize) -> None:
    LOADED.clear()
    reader = _make_reader(pa.Table, partitions_def=DAYS)
    check = build_asset_check(EVENTS, Expect(name="none", max_rows=0), blocking=True)
    assert not materialize(EVENTS, reader, check, partition="2025-03-01", raise_on_error=False).success
    assert LOADED == []


def test_a_check_needs_a_name() -> None:
    with pytest.raises(InputError, match="needs a name"):
        build_asset_check(EVENTS, Expect(not_null="id"))


def test_the_example_project_runs_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    shop = runpy.run_path(str(EXAMPLE))
    for _ in range(2):
        shop["run"](instance)
    revenue = it.read("lake/revenue").read_all().to_pylist()
    assert len(revenue) == 3
    assert it.snapshot("lake/orders").rows == 300


@pytest.mark.parametrize("thing", [IntarsiaIOManager, build_asset_check])
def test_the_example_in_a_docstring_runs(thing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(thing) or ""
    parsed = doctest.DocTestParser().get_doctest(text, {"__name__": "example"}, "example", None, 0)
    assert parsed.examples
    assert not doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(parsed).failed
