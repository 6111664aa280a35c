"""Sources that are queries and functions: what they read, when they run again, and what is refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import intarsia as it
from intarsia import pipeline
from intarsia.errors import InputError, IntarsiaError, NothingMatched, NotSupported
from intarsia.pipeline.graph import order_steps

Rows = Callable[..., list[dict[str, Any]]]

QUERY = """\
select r.country, cast(sum(o.amount) as double) as total, count(*) as orders
from orders o
join Regions r using (region)
where o.amount >= ${least}
group by r.country
"""

SALES = """
name = "sales"
engine = "duckdb"

[params]
least = 0

[sources.landing]
path = "landing/*.csv"
columns = { id = "bigint", region = "varchar", amount = "double" }

[sources.regions]
path = "regions.csv"

[sources.revenue]
sql = '''QUERY'''

[targets.orders]
path = "lake/orders"

[targets.countries]
path = "lake/countries"

[[steps]]
name = "orders"
operation = "merge"
source = "landing"
target = "orders"
on = "id"

[[steps]]
name = "countries"
operation = "merge"
source = "revenue"
target = "countries"
on = "country"
strategy = "full_merge"
""".replace("QUERY", QUERY)

SCORE = """
import pyarrow as pa

def score(orders, regions):
    joined = orders.join(regions, "region")
    return joined.group_by("country").aggregate([("amount", "sum"), ("id", "count")]).rename_columns(
        ["country", "total", "orders"]
    )
"""


class Sales:
    """A directory with a pipeline over two kinds of files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / "sales.toml"
        self.declare(SALES)
        (root / "landing").mkdir()
        self.land("a.csv", "1,eu,5\n2,us,7\n3,uk,-1\n")
        (root / "regions.csv").write_text("region,country\neu,France\nuk,Britain\nus,America\n")

    def declare(self, text: str) -> None:
        self.file.write_text(text, encoding="utf-8")

    def edit(self, old: str, new: str) -> None:
        text = self.file.read_text()
        assert old in text
        self.declare(text.replace(old, new))

    def find_line(self, text: str) -> int:
        lines = (self.root / "sales.toml").read_text().splitlines()
        return 1 + next(number for number, line in enumerate(lines) if text in line)

    def use_function(self, text: str = SCORE, engine: str = "arrow") -> None:
        """The function ``score`` instead of the query."""
        self.declare(SALES.replace(f"sql = '''{QUERY}'''", 'python = "transforms.py:score"'))
        self.edit('engine = "duckdb"', f'engine = "{engine}"')
        (self.root / "transforms.py").write_text(text)

    def land(self, name: str, lines: str) -> None:
        (self.root / "landing" / name).write_text("id,region,amount\n" + lines)

    def run(self, **options: Any) -> pipeline.PipelineReport:
        return pipeline.run_file(self.file, progress=False, **options)

    def statuses(self, **options: Any) -> list[str]:
        return [step.status for step in self.run(**options).check().steps]

    def fail(self, **options: Any) -> IntarsiaError:
        error = self.run(**options).failed.error
        assert isinstance(error, IntarsiaError)
        return error

    def refuse(self, **options: Any) -> str:
        """What is told before anything runs."""
        with pytest.raises((InputError, NotSupported)) as caught:
            self.run(**options)
        assert not (self.root / "lake").exists()
        assert not (self.root / ".intarsia").exists()
        return str(caught.value)


@pytest.fixture
def sales(tmp_path: Path) -> Sales:
    return Sales(tmp_path)


@pytest.fixture
def totals(rows: Rows) -> Callable[[Sales], dict[str, float]]:
    """Totals by country in the lake, read without intarsia."""
    return lambda sales: {row["country"]: row["total"] for row in rows(sales.root / "lake" / "countries")}


# Queries


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_column_that_a_later_query_names_is_missed_before_the_first_step_runs(
    sales: Sales, dry_run: bool
) -> None:
    sales.run().check()
    sales.land("b.csv", "4,eu,9\n")
    sales.edit("sum(o.amount)", "sum(o.price)")
    before = sorted((sales.root / "lake").rglob("*"))
    report = sales.run(dry_run=dry_run)
    assert [step.status for step in report.steps] == ["not run", "failed"]
    assert report.failed.notes == ("found before the steps above it ran",)
    text = str(report.failed.error)
    assert "sales.toml" in text
    assert "line 1" in text
    assert '"price"' in text
    assert sorted((sales.root / "lake").rglob("*")) == before
    sales.edit("sum(o.price)", "sum(o.amount)")
    assert sales.statuses(dry_run=dry_run) == (["planned", "planned"] if dry_run else ["done", "done"])


@pytest.mark.parametrize("with_text", [False, True], ids=["evolved", "evolved and text"])
def test_a_column_that_an_earlier_step_adds_is_not_missed(
    sales: Sales, totals: Callable[[Sales], dict[str, float]], with_text: bool
) -> None:
    sales.run().check()
    sales.edit('amount = "double" }', 'amount = "double", price = "double" }')
    sales.edit('on = "id"', 'on = "id"\nschema_evolution = "add"')
    sales.edit("sum(o.amount)", "sum(o.price)")
    if with_text:
        sales.edit("join Regions r", "join (select * from Regions) r")
    (sales.root / "landing" / "a.csv").write_text("id,region,amount,price\n1,eu,5,50\n2,us,7,70\n")
    assert sales.statuses() == ["done", "done"]
    assert totals(sales) == {"France": 50.0, "America": 70.0}


def test_a_query_that_fails_only_without_rows_runs(sales: Sales) -> None:
    sales.run().check()
    sales.land("b.csv", "4,eu,9\n")
    some = "select case when count(*) = 0 then cast(error('no rows') as bigint) else count(*) end from orders"
    sales.edit("count(*) as orders", f"({some}) as orders")
    assert sales.statuses() == ["done", "done"]


def test_a_query_joins_a_target_with_files_and_sees_what_earlier_steps_wrote(
    sales: Sales, totals: Any
) -> None:
    assert sales.statuses() == ["done", "done"]
    assert totals(sales) == {"France": 5.0, "America": 7.0}
    assert sales.statuses() == ["unchanged", "unchanged"]
    sales.land("b.csv", "4,eu,10\n")
    assert sales.statuses() == ["done", "done"]
    assert totals(sales) == {"France": 15.0, "America": 7.0}


def test_a_query_runs_again_when_its_text_or_a_file_has_changed_also_when_changed_back(
    sales: Sales, totals: Any
) -> None:
    sales.run().check()
    text = sales.file.read_text()
    sales.edit("sum(o.amount)", "sum(o.amount * 2)")
    assert sales.statuses() == ["unchanged", "done"]
    assert totals(sales) == {"France": 10.0, "America": 14.0}
    sales.declare(text)
    assert sales.statuses() == ["unchanged", "done"]
    assert totals(sales) == {"France": 5.0, "America": 7.0}
    regions = sales.root / "regions.csv"
    regions.write_text(regions.read_text())  # the same bytes at another time
    assert sales.statuses() == ["unchanged", "unchanged"]
    regions.write_text(regions.read_text().replace("America", "USA"))
    assert sales.statuses() == ["unchanged", "done"]
    assert totals(sales) == {"France": 5.0, "USA": 7.0}


def test_a_query_from_a_file_is_read_with_the_pipeline(sales: Sales, totals: Any) -> None:
    query = sales.root / "revenue.sql"
    query.write_text(f"{QUERY}; -- all of it\n")
    sales.edit(f"sql = '''{QUERY}'''", 'sql_file = "revenue.sql"')
    assert sales.statuses() == ["done", "done"]
    assert totals(sales) == {"France": 5.0, "America": 7.0}
    query.write_text(query.read_text().replace(">= ${least}", "< ${least}"))
    assert sales.statuses() == ["unchanged", "done"]
    assert totals(sales) == {"Britain": -1.0}
    query.unlink()
    with pytest.raises(
        InputError, match=r"sales\.toml, line \d+, \[sources\.revenue\] sql_file: there is no file"
    ):
        sales.run()


def test_sources_read_each_other_in_any_order_and_twice(sales: Sales, totals: Any) -> None:
    sales.edit("from orders o\n", "from good o join GOOD again using (id)\n")
    sales.edit("where o.amount >= ${least}", "where o.region <> ''")
    sales.edit("using (region)", "on r.region = o.region")
    sales.edit("least = 0", "")
    sales.edit(
        "[targets.orders]",
        '[sources.good]\nsql = "with orders as (select * from orders where amount > 5) from orders"\n'
        'derive = { amount = "amount * 10" }\nwhere = "id > 0"\n\n[targets.orders]',
    )
    sales.run().check()
    assert totals(sales) == {"America": 70.0}


def test_a_step_runs_after_those_that_write_what_its_query_reads(sales: Sales, totals: Any) -> None:
    first, second = SALES.index('[[steps]]\nname = "orders"'), SALES.index('[[steps]]\nname = "countries"')
    purge = '\n[[steps]]\nname = "purge"\noperation = "delete"\ntarget = "orders"\nwhere = "amount > 6"\n'
    sales.declare(SALES[:first] + SALES[second:] + "\n" + SALES[first:second] + purge)
    assert [step.name for step in sales.run().check().steps] == ["orders", "purge", "countries"]
    assert totals(sales) == {"France": 5.0}
    assert sales.statuses() == ["unchanged"] * 3


def test_a_value_that_cannot_be_computed_fails_the_step_with_the_query(sales: Sales) -> None:
    sales.edit("cast(sum(o.amount) as double)", "cast(max(o.region) as double)")
    error = sales.fail()
    assert isinstance(error, InputError)
    assert ", [sources.revenue] sql: DuckDB refuses the query" in error.message
    assert f"sales.toml, line {sales.find_line('select r.country')}," in error.message
    assert "Could not convert string" in error.message
    assert not (sales.root / "lake" / "countries").exists()


def test_steps_keep_their_order_but_for_what_is_written_below_them(tmp_path: Path) -> None:
    query = pipeline.Source(sql="select * from a")
    made = pipeline.Pipeline(
        name="p",
        engine="duckdb",
        sources={"q": query, "files": pipeline.Source("x.csv")},
        targets={name: pipeline.Target(name) for name in ("a", "b", "c")},
        steps=(
            pipeline.Expect(name="look", source="q", min_rows=1),
            pipeline.Merge(name="b", source="q", target="b", on="id"),
            pipeline.Compact(name="compact b", target="b"),
            pipeline.Merge(name="c", source="files", target="c", on="id"),
            pipeline.Merge(name="a", source="files", target="a", on="id"),
            pipeline.Delete(name="purge a", target="a", where="id < 0"),
            pipeline.Compact(name="compact c", target="c"),
        ),
    )
    order = [step.name for step in order_steps(made)]
    assert order == ["c", "a", "purge a", "look", "b", "compact b", "compact c"]
    settled = replace(made, steps=order_steps(made))
    assert order_steps(settled) == settled.steps


def test_parameters_are_bound_in_the_types_that_the_file_gives_them(sales: Sales, totals: Any) -> None:
    sales.run(params={"least": "6"}).check()
    assert totals(sales) == {"America": 7.0}
    assert sales.statuses() == ["unchanged", "done"]
    assert totals(sales) == {"France": 5.0, "America": 7.0}
    assert sales.statuses(params={"least": "6"}) == ["unchanged", "done"]
    assert totals(sales) == {"America": 7.0}
    with pytest.raises(InputError, match=r"\$\{least\} is '6; drop', and in \[params\] it is the number 0"):
        sales.run(params={"least": "6; drop"})


@pytest.mark.parametrize("text", ["'; drop table x; --", "it's", '"', "$$", "${x}", "\\'", ":a ?"])
def test_a_parameter_is_a_value_whatever_is_in_it(tmp_path: Path, rows: Rows, text: str) -> None:
    made = pipeline.Pipeline(
        name="p",
        engine="duckdb",
        sources={
            "one": pipeline.Source(
                sql="select 1 as id, ${v} as v, ${d} as d", params={"v": text, "d": dt.date(2025, 3, 1)}
            )
        },
        targets={"t": pipeline.Target(str(tmp_path / "t"))},
        steps=(pipeline.Merge(source="one", target="t", on="id"),),
        reports=str(tmp_path / "reports"),
    )
    pipeline.run(made, progress=False).check()
    assert rows(tmp_path / "t") == [{"id": 1, "v": text, "d": dt.date(2025, 3, 1)}]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("from orders o", "from ordrs o", ["revenue] sql", "line 17, ", "'ordrs'", "mean 'orders'?"]),
        ("from orders o", "from lake.orders o", ["line 17, ", "lake.orders", "by their names alone"]),
        ("from orders o", "from read_parquet('x') o", ["line 17, ", "read_parquet", "a source of its own"]),
        ("from orders o", "frm orders o", ["[sources.revenue] sql", "line 17, ", "cannot be read"]),
        ("from orders o", "from {{ ref('orders') }} o", ["line 17, ", "there are no templates"]),
        ("where o.amount", "{% if is_incremental() %} where o.amount", ["line 19", "there are no templates"]),
        ("from orders o", "from revenue o", ["line 17, ", "reads itself"]),
        (">= ${least}", ">= '${least}'", ["line 19, ", "${least} is in quotes", "leave the quotes out"]),
        ("from orders o", "from ${least} o", ["line 17, ", "stands for a name", "never pasted"]),
        (">= ${least}", ">= ${lest}", ["${lest}", "--param lest"]),
        ("select r.country", "delete from orders; select r.country", ["several statements"]),
        ('engine = "duckdb"', 'engine = "arrow"', ["'arrow' runs no queries", '"duckdb"', '"spark"']),
        ("[sources.revenue]", "[sources.revenue]\npath = 'x'", ["path and sql", "one of them"]),
        ("[sources.revenue]", "[sources.revenue]\nnew_files_only = true", ["new_files_only", "all its rows"]),
        ("[sources.revenue]", "[sources.revenue]\noptions = {header = 1}", ["options", "goes with a path"]),
        ("[sources.revenue]", "[sources.revenue]\nparams = {x = 1}", ["there is no parameter 'x'"]),
        ('target = "countries"', 'target = "orders"', ["line 36, [[steps]] 2 (", "circle: orders -> orders"]),
        (SALES[SALES.index('operation = "merge"\nsource = "revenue"') :],
         'operation = "write"\nsource = "revenue"\ntarget = "countries"',
         ["appending a computed source again", "overwrite"]),
        (
            "[sources.regions]\npath = \"regions.csv\"",
            '[sources.regions]\nsql = "select * from landing, revenue"',
            ["in a circle", "regions -> revenue -> regions"],
        ),
        ("[targets.countries]", "[targets.regions]\npath = 'x'\n[targets.countries]", ["more than one"]),
    ],
)  # fmt: skip
def test_a_query_that_cannot_run_is_refused_before_anything_does(
    sales: Sales, old: str, new: str, words: list[str]
) -> None:
    sales.edit(old, new)
    told = sales.refuse()
    assert [word for word in ["sales.toml", *words] if word not in told] == []


def test_a_column_that_is_not_there_fails_the_step_before_it_writes(sales: Sales) -> None:
    sales.edit("sum(o.amount)", "sum(o.amont)")
    error = sales.fail()
    assert isinstance(error, InputError)
    assert ", [sources.revenue] sql: DuckDB refuses the query" in error.message
    assert f"sales.toml, line {sales.find_line('select r.country')}," in error.message
    assert error.path == str(sales.root / "sales.toml")
    assert "amont" in error.message
    assert not (sales.root / "lake" / "countries").exists()
    sales.edit("sum(o.amont)", "sum(o.amount)")
    assert sales.statuses() == ["unchanged", "done"]


def test_a_target_that_no_step_has_made_is_told(sales: Sales) -> None:
    first, second = SALES.index('[[steps]]\nname = "orders"'), SALES.index('[[steps]]\nname = "countries"')
    sales.declare(SALES[:first] + SALES[second:])
    with pytest.raises(NothingMatched, match=r"\[sources.revenue\]: the target 'orders' does not exist"):
        sales.run()
    assert not (sales.root / "lake").exists()


def test_an_error_in_what_a_query_reads_stays_what_it_is(sales: Sales) -> None:
    sales.edit("from orders o", "from landing o")
    sales.land("b.csv", "x,eu,1\n")
    sales.edit('source = "landing"\n', 'source = "regions"\n')
    sales.edit('on = "id"', 'on = "region"')
    error = sales.fail()
    assert "b.csv: Column 'id' of the source" in error.message


def test_expectations_columns_and_dry_runs_go_through_a_query(
    sales: Sales, totals: Any, tree_digest: Any
) -> None:
    sales.edit("[sources.revenue]", '[sources.revenue]\ncolumns = { country = "varchar", total = "double" }')
    check = '[[steps]]\nname = "sound"\noperation = "expect"\nsource = "revenue"\nunique = "country"\n'
    sales.edit('[[steps]]\nname = "countries"', f'{check}max_rows = 2\n\n[[steps]]\nname = "countries"')
    before = tree_digest(sales.root)
    planned = sales.run(dry_run=True).check()
    assert tree_digest(sales.root) == before
    assert planned.step("countries").result.inserted == 2
    assert planned.step("sound").checks[0].ok
    assert sales.run().check().step("countries").result.inserted == 2
    assert sales.statuses() == ["unchanged"] * 3
    assert sales.statuses(full_refresh=True) == ["done"] * 3
    sales.land("b.csv", "4,uk,10\n")
    assert sales.run().failed.name == "sound"
    assert totals(sales) == {"France": 5.0, "America": 7.0}


def test_an_iceberg_table_is_read_without_its_deleted_rows(sales: Sales, totals: Any) -> None:
    pytest.importorskip("pyiceberg")
    from intarsia.tables.iceberg.catalog import embedded_catalog

    catalog = embedded_catalog(str(sales.root / "warehouse"))
    catalog.create_namespace("shop")
    schema = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.float64())])
    catalog.create_table("shop.orders", schema)
    sales.edit('path = "lake/orders"', 'kind = "iceberg"\npath = "shop.orders"\ncatalog = "./warehouse"\n'
               'options = { mode = "merge-on-read" }')  # fmt: skip
    assert sales.statuses() == ["done", "done"]
    it.delete(it.iceberg("shop.orders", catalog=catalog), "id = 2", mode="merge-on-read")
    assert sales.statuses()[1] == "done"
    assert totals(sales) == {"France": 5.0}
    assert sales.statuses() == ["unchanged", "unchanged"]


@pytest.mark.parametrize("kind", ["query", "function"])
def test_a_step_that_ended_after_its_commit_is_not_done_again(
    sales: Sales, monkeypatch: pytest.MonkeyPatch, totals: Any, kind: str
) -> None:
    if kind == "function":
        sales.use_function()
        sales.edit("columns = { id", 'where = "amount > 0"\ncolumns = { id')
    sales.edit('strategy = "full_merge"',
               'when = "when matched then update set total = target.total + source.total'
               ' when not matched then insert *"')  # fmt: skip
    sales.run().check()
    sales.land("b.csv", "4,eu,10\n")

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("intarsia.pipeline.state.run_state.RunState.confirm", die)
        with pytest.raises(KeyboardInterrupt):
            sales.run()
        with pytest.raises(KeyboardInterrupt):
            sales.run()
    assert totals(sales) == {"France": 20.0, "America": 14.0}
    assert sales.statuses() == ["unchanged", "unchanged"]
    assert totals(sales) == {"France": 20.0, "America": 14.0}


def test_a_run_in_which_no_query_has_changed_opens_no_session(
    sales: Sales, monkeypatch: pytest.MonkeyPatch
) -> None:
    sales.run().check()

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotSupported("no session, please")

    monkeypatch.setattr("intarsia.spark.session.session_on", refuse)
    assert set(sales.statuses(engine="spark")) == {"unchanged"}
    sales.edit("sum(o.amount)", "max(o.amount)")
    with pytest.raises(NotSupported, match="no session, please"):
        sales.run(engine="spark")


# Functions


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_a_function_is_given_what_its_parameters_name(sales: Sales, totals: Any, engine: str) -> None:
    sales.use_function(engine=engine)
    assert sales.statuses() == ["done", "done"]
    assert totals(sales) == {"France": 5.0, "America": 7.0, "Britain": -1.0}
    assert sales.statuses() == ["unchanged", "unchanged"]
    (sales.root / "transforms.py").write_text(SCORE.replace('"sum"', '"max"') + "# more\n")
    assert sales.statuses() == ["unchanged", "done"]
    assert sales.run(dry_run=True).check().ok
    sales.land("b.csv", "4,eu,10\n")
    assert sales.statuses() == ["done", "done"]
    assert totals(sales)["France"] == 10.0


@pytest.mark.parametrize(
    ("engine", "body"),
    [
        ("arrow", "def score(orders, least=3):\n    import polars\n    orders = polars.from_arrow(orders)\n"
                  "    return orders.rename({'region': 'country', 'amount': 'total'}).drop('id')"),
        ("arrow", "import pyarrow as pa\ndef score(orders: pa.RecordBatchReader):\n"
                  "    for batch in orders:\n"
                  "        yield batch.select([1, 2]).rename_columns(['country', 'total'])"),
        ("duckdb", "def score(connection, orders):\n"
                   "    return connection.sql('select region as country, amount as total from orders')"),
        ("duckdb", "def score(orders):\n    return [{'country': 'eu', 'total': float(orders.num_rows + 2)},"
                   " {'country': 'us', 'total': 7.0}, {'country': 'uk', 'total': -1.0}]"),
    ],
)  # fmt: skip
def test_a_function_returns_whatever_a_merge_takes(sales: Sales, totals: Any, engine: str, body: str) -> None:
    sales.use_function(body, engine)
    sales.run().check()
    assert totals(sales) == {"eu": 5.0, "us": 7.0, "uk": -1.0}


def test_a_function_takes_parameters_of_the_file_as_arguments(sales: Sales, totals: Any) -> None:
    sales.use_function(
        "def score(*, orders, factor):\n    return {'country': ['x'], 'total': [float(factor)]}"
    )
    sales.edit(
        'python = "transforms.py:score"', 'python = "transforms.py:score"\nparams = { factor = "${least}" }'
    )
    sales.run(params={"least": "7"}).check()
    assert totals(sales) == {"x": 7.0}
    assert sales.statuses(params={"least": "7"}) == ["unchanged", "unchanged"]
    assert sales.statuses() == ["unchanged", "done"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def scor(orders): ...", ["defines no function 'score'", "did you mean 'scor'?"]),
        ("def score(ordrs): ...", ["transforms.py:score, line 1", "'ordrs'", "did you mean 'orders'?"]),
        ("x = 1\ndef score(orders:", ["transforms.py, line 2", "not Python"]),
        ("def score(*inputs): ...", ["must be names"]),
        ("import os\nasync def score(orders): ...", ["transforms.py:score, line 2: it is async"]),
        ("def score(spark, orders): ...", ["'spark' is the session of spark", "engine is arrow"]),
        ("def score(revenue): ...", ["reads itself"]),
        (None, ["there is no file"]),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_before_anything_runs(
    sales: Sales, body: str | None, words: list[str]
) -> None:
    sales.use_function(body or "")
    if body is None:
        (sales.root / "transforms.py").unlink()
    told = sales.refuse()
    assert [word for word in ["[sources.revenue] python", *words] if word not in told] == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def score(orders):\n    raise ValueError('no score')", ["line 2 failed: ValueError: no score"]),
        ("import sys\ndef score(orders):\n    sys.exit(0)", ["line 3 failed: SystemExit: 0"]),
        ("1 / 0\ndef score(orders): ...", ["line 1 failed: ZeroDivisionError"]),
        ("def score(orders): ...", ["transforms.py:score, line 1 returned None"]),
        ("def score(orders):\n    return 3", ["transforms.py:score, line 1: A source cannot be of type int"]),
        ("def score(orders):\n    return 'x.csv'", ["returned a str"]),
        ("def score(orders):\n    yield orders\n    raise KeyError('late')", ["line 3", "KeyError: 'late'"]),
    ],
)
def test_a_function_that_fails_is_told_with_its_place_and_changes_nothing(
    sales: Sales, body: str, words: list[str]
) -> None:
    sales.use_function(body)
    error = sales.fail()
    assert isinstance(error, InputError)
    assert [word for word in ["transforms.py:score", *words] if word not in error.message] == []
    assert not (sales.root / "lake" / "countries").exists()
    (sales.root / "transforms.py").write_text(SCORE)
    assert sales.statuses() == ["unchanged", "done"]


def test_the_pipeline_of_the_tutorial_runs_without_spark_as_well(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "tutorials" / "spark-pipeline.md"
    fence = "```toml file=shop.toml\n"
    (tmp_path / "shop.toml").write_text(
        page.read_text(encoding="utf-8").partition(fence)[2].partition("```")[0]
    )
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.csv").write_text("id,customer,amount\n1,7,2.5\n2,7,3\n3,8,1\n")
    declared = replace(pipeline.load(tmp_path / "shop.toml"), engine="duckdb")
    pipeline.run(declared, progress=False).check()
    found = it.read(tmp_path / "lake" / "revenue").read_all().sort_by("customer")
    assert [(row["customer"], float(row["amount"])) for row in found.to_pylist()] == [(7, 5.5), (8, 1.0)]


# Parameters


def test_a_target_that_other_parameters_have_replaced_is_filled_again(sales: Sales, totals: Any) -> None:
    assert sales.statuses() == ["done", "done"]
    first = totals(sales)
    assert sales.statuses(params={"least": "6"}) == ["unchanged", "done"]
    assert set(totals(sales)) == {"America"}
    assert sales.statuses(dry_run=True) == ["unchanged", "planned"]
    assert sales.statuses() == ["unchanged", "done"]
    assert totals(sales) == first
    assert sales.statuses() == ["unchanged", "unchanged"]
    sales.edit('strategy = "full_merge"', "")  # an upsert has a memory for each set of parameters
    assert sales.statuses() == ["unchanged", "done"]
    assert sales.statuses(params={"least": "6"}) == ["unchanged", "done"]
    assert sales.statuses() == ["unchanged", "unchanged"]


@pytest.mark.parametrize("where", ["", 'where = "country is not null"'])
def test_an_overwrite_of_all_rows_does_not_keep_those_of_other_parameters(
    sales: Sales, totals: Any, where: str
) -> None:
    sales.edit('operation = "merge"\nsource = "revenue"', 'operation = "write"\nsource = "revenue"')
    sales.edit('on = "country"\nstrategy = "full_merge"', f'mode = "overwrite"\n{where}')
    for least in ("0", "6"):
        assert sales.statuses(params={"least": least})[1] == "done"
    assert sales.statuses()[1] == ("unchanged" if where else "done")


def test_a_query_reads_what_a_step_did_alone_under_other_parameters(sales: Sales, totals: Any) -> None:
    sales.edit('path = "landing/*.csv"', 'path = "landing/${file}.csv"')
    sales.edit("[params]", '[params]\nfile = "a"')
    sales.land("b.csv", "4,eu,100\n")
    assert sales.statuses() == ["done", "done"]
    assert sales.run(params={"file": "b"}, only="orders").check().steps[0].status == "done"
    assert sales.statuses() == ["unchanged", "done"]
    assert totals(sales)["France"] == 105
    assert sales.statuses() == ["unchanged", "unchanged"]
