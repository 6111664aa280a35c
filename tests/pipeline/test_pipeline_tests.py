"""``intarsia test``: given rows go in, expected rows are compared, and nothing real is touched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from intarsia import errors, pipeline
from intarsia.cli.commands import cli
from intarsia.pipeline.testing.row_differences import compare_rows

DECLARED = """
engine = "duckdb"

[params]
least = 6

[sources.landing]
path = "landing/*.csv"
columns = { id = "bigint", customer = "varchar", amount = "decimal(10, 2)", placed = "timestamp" }
derive = { day = "cast(placed as date)" }
where = "amount > 0"

[sources.customers]
path = "customers.csv"

[sources.revenue]
sql = '''
select country, cast(sum(amount) as double) as total
from orders join customers using (customer)
where amount >= ${least}
group by country
'''

[sources.scores]
python = "transforms.py:score"

[targets.orders]
path = "lake/orders"
partition_by = "day"

[targets.revenue_by_country]
path = "lake/revenue"

[[steps]]
name = "sound"
operation = "expect"
source = "landing"
not_null = "id"

[[steps]]
name = "orders"
operation = "merge"
source = "landing"
target = "orders"
on = "id"

[[steps]]
name = "revenue"
operation = "merge"
source = "revenue"
target = "revenue_by_country"
on = "country"
strategy = "full_merge"
"""

TRANSFORMS = """
def score(orders):
    return orders.group_by("customer").aggregate([("amount", "sum")]).rename_columns(["customer", "score"])
"""

LANDING = """
[test.given.landing]
rows = [
  { id = 1, customer = "ann", amount = 20.10, placed = 2025-03-01T10:00:00 },
  { id = 2, customer = "bob", amount = 5, placed = 2025-03-01T11:00:00 },
  { id = 3, customer = "bob", amount = -1, placed = 2025-03-02T11:00:00 },
]
"""
CUSTOMERS = """
[test.given.customers]
csv = '''
customer,country
ann,France
bob,Peru
'''
"""


@pytest.fixture
def project(tmp_path: Path) -> Callable[[str], Path]:
    """``project(tests)``: a pipeline whose real sources are not there, and its tests."""

    def make(tests: str, declared: str = DECLARED) -> Path:
        (tmp_path / "shop.toml").write_text(declared)
        (tmp_path / "transforms.py").write_text(TRANSFORMS)
        (tmp_path / "shop.test.toml").write_text(tests)
        return tmp_path / "shop.toml"

    return make


def one(path: Path, **options: Any) -> pipeline.CaseReport:
    (report,) = pipeline.run_tests(path, **options)
    return report


def test_given_rows_go_through_every_step_and_computed_source(project: Callable[[str], Path]) -> None:
    file = project(f"""
[[test]]
name = "small orders do not count"
runs = 2
{LANDING}{CUSTOMERS}
[test.expect.orders]
rows = [{{ id = 1, amount = 20.1, day = 2025-03-01 }}, {{ id = 2, amount = 5.00, day = 2025-03-01 }}]
[test.expect.revenue_by_country]
rows = [{{ country = "France", total = 20.1 }}]
[test.expect.scores]
rows = [{{ customer = "bob", score = 5 }}, {{ customer = "ann", score = 20.10 }}]
""")
    report = one(file)
    assert report.describe() == []
    assert report.ok
    assert report.engine == "duckdb"


def test_nothing_is_left_beside_the_pipeline(project: Callable[[str], Path], tmp_path: Path) -> None:
    file = project(f'[[test]]\nname = "a"\n{LANDING}{CUSTOMERS}\n[test.expect.orders]\nrows = []')
    file.write_text(f'{DECLARED}\n[lineage]\nfile = "lineage.ndjson"\n')
    before = sorted(tmp_path.rglob("*"))
    assert not one(file).ok
    assert sorted(tmp_path.rglob("*")) == before


def test_differences_are_told_by_key_as_missing_and_as_unexpected(project: Callable[[str], Path]) -> None:
    file = project(f"""
[[test]]
name = "wrong"
{LANDING}{CUSTOMERS}
[test.expect.orders]
rows = [{{ id = 1, amount = 20.11 }}, {{ id = 7, amount = 1 }}]
[test.expect.revenue_by_country]
rows = []
""")
    report = one(file)
    assert report.describe() == [
        "orders: 1 row differs, 1 row is missing, 1 row was not expected",
        "  different    id = 1: amount is 20.10, expected 20.11",
        "  missing      id = 7, amount = 1.00",
        "  unexpected   id = 2, amount = 5.00",
        "revenue_by_country: 1 row was not expected",
        "  unexpected   country = 'France', total = 20.1",
    ]


def test_a_query_is_tested_alone_and_no_step_runs(project: Callable[[str], Path]) -> None:
    """The source ``landing`` is not given, and its steps would find nothing."""
    file = project("""
[[test]]
name = "the query"
params = { least = 100 }
[test.given.orders]
rows = [{ customer = "ann", amount = 700 }, { customer = "ann", amount = 70.50 }]
[test.given.customers]
rows = [{ customer = "ann", country = "Peru" }]
[test.expect.revenue]
rows = [{ country = "Peru", total = 700 }]
""")
    assert one(file).describe() == []


def test_a_target_that_is_there_before_is_merged_into(project: Callable[[str], Path]) -> None:
    file = project(f"""
[[test]]
name = "the order changes"
{LANDING}{CUSTOMERS}
[test.given.orders]
rows = [{{ id = 1, customer = "ann", amount = 1, day = 2025-03-01 }}, {{ id = 9, day = 2025-02-01 }}]
[test.expect.orders]
rows = [{{ id = 1, amount = 20.10 }}, {{ id = 2, amount = 5 }}, {{ id = 9 }}]
""")
    assert one(file).describe() == []


def test_a_computed_source_may_be_given_instead(project: Callable[[str], Path]) -> None:
    file = project("""
[[test]]
name = "given revenue"
[test.given.revenue]
rows = [{ country = "Peru", total = 1.5 }]
[test.expect.revenue_by_country]
rows = [{ country = "Peru", total = 1.5 }]
""")
    assert one(file).describe() == []


def test_rows_may_be_in_files_beside_the_test(project: Callable[[str], Path], tmp_path: Path) -> None:
    file = project("""
[[test]]
name = "files"
[test.given.landing]
file = "tests/landing.csv"
[test.given.customers]
file = "tests/customers.parquet"
[test.expect.orders]
file = "tests/expected.csv"
""")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "landing.csv").write_text(
        "id,customer,amount,placed\n1,ann,2.50,2025-03-01 10:00:00\n"
    )
    (tmp_path / "tests" / "expected.csv").write_text("id,amount,day\n1,2.50,2025-03-01\n")
    pq.write_table(
        pa.table({"customer": ["ann"], "country": ["Peru"]}), tmp_path / "tests" / "customers.parquet"
    )
    assert one(file).describe() == []


def test_an_error_that_is_expected_passes_and_another_does_not(project: Callable[[str], Path]) -> None:
    given = f'[test.given.landing]\nrows = [{{ customer = "ann", amount = 1 }}]\n{CUSTOMERS}'
    file = project(f"""
[[test]]
name = "no id"
error = "id is null"
{given}
[[test]]
name = "other"
error = "no such text"
{given}
[[test]]
name = "none"
error = "some"
{LANDING}{CUSTOMERS}
[[test]]
name = "unforeseen"
runs = 2
{given}
""")
    reports = {report.name: report for report in pipeline.run_tests(file)}
    told = {name: " ".join(report.describe()) for name, report in reports.items()}
    assert "id" in told["unforeseen"]
    assert "step 'sound'" in told["unforeseen"]
    assert told["none"] == "it was expected to fail with 'some', and did not."
    assert told["other"].startswith("it was expected to fail with 'no such text'; step 'sound'")


def test_a_second_run_that_finds_something_to_do_is_told(
    project: Callable[[str], Path], tmp_path: Path
) -> None:
    file = project("[[test]]\nruns = 2\ngiven.orders.rows = [{ day = 2025-03-01 }]\nexpect.scores.rows = []")
    (tmp_path / "transforms.py").write_text(
        "def score(orders):\n"
        "    with open(__file__, 'a') as file:\n"
        "        file.write('#')\n"
        "    return orders.slice(0, 0)\n"
    )
    (told,) = one(file).describe()
    assert told.startswith("run 2: step 'expected rows of scores' was not idle: no rows")


def test_values_that_do_not_fit_and_names_that_are_not_there_are_refused(
    project: Callable[[str], Path],
) -> None:
    def told(test: str) -> str:
        return " ".join(one(project(f'[[test]]\nname = "a"\n{test}')).describe())

    expect = "\nexpect.orders.rows = []"
    assert "the column 'amuont' is not among" in told(f"given.landing.rows = [{{ amuont = 1 }}]{expect}")
    assert "amount" in told(f'given.landing.rows = [{{ amount = "x" }}]{expect}')
    assert "several types" in told(f'given.landing.rows = [{{ id = 1 }}, {{ id = "x" }}]{expect}')
    assert "no source or target 'lading'" in told(f"given.lading.rows = [{{ id = 1 }}]{expect}")
    assert "no rows are given for the source 'customers'" in told(f"given.landing.rows = []{expect}")
    assert "there is no column 'nme'" in told(
        'given.landing.rows = []\ngiven.customers.columns = { customer = "varchar", country = "varchar" }\n'
        "expect.orders.rows = [{ nme = 1 }]"
    )
    assert "without rows its columns" in told(f"given.customers.rows = []{expect}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[tests]]", "'tests' is not known"),
        ('[[test]]\nname = "a"', "it expects nothing"),
        ("[[test]]\nexpct.orders.rows = []", "'expct' is not known"),
        ("[[test]]\nexpect.orders.row = []", "'row' is not known"),
        ("[[test]]\nexpect.orders.rows = [1]", "rows must be a list of tables"),
        ('[[test]]\nexpect.orders = { rows = [], csv = "" }', "in several ways"),
        ("[[test]]\nruns = 0", "at least 1"),
        ('[[test]]\nname = "a"\nruns = 2\n[[test]]\nname = "a"\nruns = 2', "two tests are named"),
        ("[[test]", "is not TOML"),
    ],
)
def test_a_test_file_that_cannot_be_read_is_refused_with_its_place(
    project: Callable[[str], Path], text: str, message: str
) -> None:
    with pytest.raises(errors.InputError, match=message) as refused:
        pipeline.run_tests(project(text))
    assert "shop.test.toml" in str(refused.value)


def test_tests_are_found_by_name_by_key_and_in_a_directory(
    project: Callable[[str], Path], tmp_path: Path
) -> None:
    test = '[[test]]\nname = "{}"\nruns = 2\ngiven.revenue.rows = [{{ country = "Peru", total = 1.5 }}]\n'
    file = project(test.format("beside"))
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "shop.more.test.toml").write_text(test.format("by its name"))
    (tmp_path / "tests" / "other.test.toml").write_text(f'pipeline = "../shop.toml"\n{test.format("by key")}')
    names = [report.name for report in pipeline.run_tests(file)]
    assert names == ["beside", "by key", "by its name"]
    assert [report.name for report in pipeline.run_tests(tmp_path, name="BY")] == names[1:]
    assert one(tmp_path / "tests" / "other.test.toml").name == "by key"
    with pytest.raises(errors.NothingMatched, match="has 'nothing' in its name"):
        pipeline.run_tests(file, name="nothing")
    (tmp_path / "alone.toml").write_text(DECLARED)
    with pytest.raises(errors.NothingMatched, match=r"There is no test of .*alone\.toml"):
        pipeline.run_tests(tmp_path / "alone.toml")


def test_a_name_that_is_a_source_and_a_target_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("""
engine = "arrow"
[sources.orders]
path = "orders.csv"
columns = { id = "int" }
[targets.orders]
path = "lake/orders"
[[steps]]
operation = "merge"
source = "orders"
target = "orders"
on = "id"
""")
    test = '[[test]]\nname = "a"\ngiven.{}.rows = [{{ id = 1 }}]\nexpect.{}.rows = [{{ id = 1 }}]\n'
    (tmp_path / "p.test.toml").write_text(test.format('"sources.orders"', '"targets.orders"'))
    assert one(tmp_path / "p.toml").describe() == []
    (tmp_path / "p.test.toml").write_text(test.format("orders", '"targets.orders"'))
    assert "is a source and a target" in one(tmp_path / "p.toml").describe()[0]


def test_a_pipeline_that_a_module_declares_is_tested_as_well(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("""
from intarsia import pipeline

shop = pipeline.Pipeline("shop", engine="arrow")
landing = shop.files("landing", "landing/*.csv", columns={"id": "bigint", "amount": "double"})


@shop.source
def clean(landing):
    import pyarrow.compute as pc

    return landing.filter(pc.field("amount") > 0)


shop.merge(clean, into="lake/orders", on="id")
""")
    (tmp_path / "shop.test.toml").write_text("""
[[test]]
name = "debts are left out"
runs = 2
given.landing.rows = [{ id = 1, amount = 2.5 }, { id = 2, amount = -1 }]
expect.orders.rows = [{ id = 1, amount = 2.5 }]
""")
    assert one(tmp_path / "shop.py").describe() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shop.py", "shop.test.toml"]


def test_a_stream_that_is_given_stands_still_and_runs_on_any_engine(tmp_path: Path) -> None:
    (tmp_path / "web.toml").write_text("""
[sources.clicks]
stream = { format = "json", path = "landing/clicks" }
columns = { id = "bigint", page = "varchar" }
where = "page is not null"
[targets.clicks_by_id]
path = "lake/clicks"
[[steps]]
name = "clicks"
operation = "merge"
source = "clicks"
target = "clicks_by_id"
on = "id"
""")
    (tmp_path / "web.test.toml").write_text("""
[[test]]
runs = 2
given.clicks.rows = [{ id = 1, page = "/" }, { id = 2 }]
expect.clicks_by_id.rows = [{ id = 1, page = "/" }]
""")
    assert one(tmp_path, engine="arrow").describe() == []
    assert not list(tmp_path.rglob("*.checkpoints"))


def test_rows_in_quarantine_are_compared_as_any_target(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("""
engine = "arrow"
[sources.landing]
path = "landing/*.csv"
columns = { id = "bigint", customer = "varchar", amount = "double" }
[targets.customers]
path = "lake/customers"
[targets.orders]
path = "lake/orders"
[targets.bad]
path = "lake/bad"
[[steps]]
name = "sound"
operation = "expect"
source = "landing"
holds = "amount > 0"
references = { customer = "customers.name" }
action = "quarantine"
quarantine = "bad"
[[steps]]
name = "orders"
operation = "merge"
source = "landing"
target = "orders"
on = "id"
""")
    (tmp_path / "p.test.toml").write_text("""
[[test]]
runs = 2
given.customers.rows = [{ name = "ann" }]
given.landing.csv = '''
id,customer,amount
1,ann,2.5
2,ann,-1
3,bob,1
'''
expect.orders.rows = [{ id = 1 }]
expect.bad.rows = [{ id = 2, _reason = "amount > 0" }, { id = 3, _reason = "customer in customers.name" }]
""")
    assert one(tmp_path).describe() == []


def test_iceberg_tables_are_made_for_the_test(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    (tmp_path / "p.toml").write_text("""
engine = "arrow"
[sources.visits]
path = "visits.json"
columns = { id = "bigint", page = "varchar" }
[targets.web]
kind = "iceberg"
path = "web.visits"
catalog = "nowhere"
options = { mode = "merge-on-read", branch = "audit" }
[[steps]]
name = "visits"
operation = "merge"
source = "visits"
target = "web"
on = "id"
""")
    (tmp_path / "p.test.toml").write_text("""
[[test]]
name = "into an empty table"
given.visits.rows = [{ id = 1, page = "a" }]
expect.web.rows = [{ id = 1, page = "a" }]

[[test]]
name = "into rows"
runs = 2
given.visits.rows = [{ id = 1, page = "b" }]
given.web = { rows = [{ id = 1, page = "a" }, { id = 2 }], partition_by = "page" }
expect.web.rows = [{ id = 1, page = "b" }, { id = 2 }]
""")
    assert [report.describe() for report in pipeline.run_tests(tmp_path)] == [[], []]


def test_the_command_tells_and_its_exit_code_says_whether_all_passed(
    project: Callable[[str], Path],
) -> None:
    file = project(f"""
[[test]]
name = "good"
{LANDING}{CUSTOMERS}
[test.expect.orders]
rows = [{{ id = 1 }}, {{ id = 2 }}]
[[test]]
name = "bad"
{LANDING}{CUSTOMERS}
[test.expect.orders]
rows = [{{ id = 1 }}]
""")
    done = CliRunner().invoke(cli, ["test", str(file)])
    assert done.exit_code == 1
    assert "passed  good" in done.output
    assert "failed  bad" in done.output
    assert "unexpected   id = 2" in done.output
    assert "2 tests: 1 passed, 1 failed" in done.output
    assert CliRunner().invoke(cli, ["test", str(file), "-k", "good"]).exit_code == 0
    told = json.loads(CliRunner().invoke(cli, ["test", str(file), "-k", "bad", "--json"]).stdout)
    assert told["ok"] is False
    assert told["tests"][0]["differences"]["orders"]["unexpected"] == [{"id": 2}]
    assert CliRunner().invoke(cli, ["test", str(file.parent / "none.toml")]).exit_code == 4


def test_rows_are_compared_with_their_repetitions_nulls_and_nested_values() -> None:
    def compare(
        expected: list[dict[str, Any]], found: list[dict[str, Any]], **how: Any
    ) -> tuple[int, int, int]:
        schema = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.int64())), ("c", pa.float64())])
        told = compare_rows(
            pa.Table.from_pylist(expected, schema), pa.Table.from_pylist(found, schema), **how
        )
        assert len(told.describe()) == told.count
        return told.missing.num_rows, told.unexpected.num_rows, told.found.num_rows

    nan = float("nan")
    row, other = {"a": 1, "b": [1, 2], "c": nan}, {"a": None, "b": None, "c": None}
    assert compare([], []) == (0, 0, 0)
    assert compare([row, other], [other, row]) == (0, 0, 0)
    assert compare([row, row, other], [row, other, other]) == (1, 1, 0)
    assert compare([row, row], [row]) == (1, 0, 0)
    assert compare([row], [{**row, "b": [2, 1]}], key=("a",)) == (0, 0, 1)
    assert compare([row], [{**row, "a": 2}], key=("a",)) == (1, 1, 0)
    assert compare([row, row], [{**row, "c": 1.0}] * 2, key=("a",)) == (2, 2, 0)
    assert compare([row], [{**row, "c": 1.0}], key=("a", "gone")) == (1, 1, 0)


@pytest.mark.spark
def test_tests_run_on_spark_as_well(project: Callable[[str], Path], spark: Any, tmp_path: Path) -> None:
    file = project(f"""
[[test]]
name = "on Spark"
runs = 2
{LANDING}{CUSTOMERS}
[test.expect.orders]
rows = [
  {{ id = 1, amount = 20.1, placed = 2025-03-01T10:00:00 }},
  {{ id = 2, amount = 5, placed = 2025-03-01T11:00:00 }},
]
[test.expect.revenue_by_country]
rows = [{{ country = "France", total = 20.1 }}]
[test.expect.scores]
rows = [{{ customer = "bob", score = 5 }}, {{ customer = "ann", score = 20.10 }}]
""")
    file.write_text(DECLARED.replace('engine = "duckdb"', '[spark]\nmaster = "spark://not-there:7077"\n'))
    (tmp_path / "transforms.py").write_text(
        'def score(orders):\n    return orders.groupBy("customer").sum("amount").toDF("customer", "score")\n'
    )
    report = one(file, session=spark)
    assert report.describe() == []
    assert report.engine == "spark"
