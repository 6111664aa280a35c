from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from intarsia import pipeline
from intarsia.errors import InputError, NothingMatched

MINIMAL = """
[sources.landing]
path = "landing/*.csv"
[targets.orders]
path = "lake/orders"
[[steps]]
operation = "merge"
source = "landing"
target = "orders"
on = "id"
"""


def _refused(text: str, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        pipeline.loads(text, origin="p.toml", **options)
    return str(caught.value)


def test_a_minimal_file_has_a_name_an_engine_and_paths_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "daily.toml"
    file.write_text(MINIMAL)
    made = pipeline.load(file)
    assert made.name == "daily"
    assert made.engine == "spark"
    assert made.sources["landing"].path == (str(tmp_path / "landing/*.csv"),)
    assert made.targets["orders"].path == str(tmp_path / "lake/orders")
    assert made.reports == str(tmp_path / "reports")
    assert made.steps == (pipeline.Merge(source="landing", target="orders", on="id"),)


def test_the_same_pipeline_can_be_declared_in_python(tmp_path: Path) -> None:
    made = pipeline.Pipeline(
        name="daily",
        sources={"landing": pipeline.Source(path=(str(tmp_path / "landing/*.csv"),))},
        targets={"orders": pipeline.Target(str(tmp_path / "lake/orders"))},
        steps=(pipeline.Merge(source="landing", target="orders", on="id"),),
        reports=str(tmp_path / "reports"),
    )
    assert made == pipeline.loads(MINIMAL, origin="daily.toml", directory=tmp_path)


def test_urls_stay_as_they_are() -> None:
    made = pipeline.loads(MINIMAL.replace("lake/orders", "s3://bucket/orders"))
    assert made.targets["orders"].path == "s3://bucket/orders"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('on = "id"', 'onn = "id"', ["p.toml", "[[steps]] 1", "'onn'", "did you mean 'on'?"]),
        ('on = "id"', "", ["[[steps]] 1", "'on' is missing"]),
        ('on = "id"', "on = 3", ["[[steps]] 1 on", "text or a list", "the number 3"]),
        ('on = "id"', "on = [1]", ["on[0]", "must be text"]),
        ('on = "id"', 'on = "id"\nstrategy = "upsrt"', ["strategy", "'upsrt'", "did you mean 'upsert'?"]),
        ('on = "id"', 'on = "id"\noptions = 1', ["options", "must be a table"]),
        ('operation = "merge"', "", ["'operation' is missing", "merge, write"]),
        ('operation = "merge"', 'operation = "merg"', ["operation", "did you mean 'merge'?"]),
        ('source = "landing"', 'source = "landng"', ["source", "'landng'", "did you mean 'landing'?"]),
        ('target = "orders"', 'target = "order"', ["target", "'order'", "did you mean 'orders'?"]),
        ('path = "landing/*.csv"', "", ["[sources.landing]", "needs a path or a target"]),
        ('path = "landing/*.csv"', "pth = 1", ["[sources.landing]", "'pth'", "did you mean 'path'"]),
        (
            'path = "landing/*.csv"',
            'path = "x"\ncolumns = {id = 1}',
            ["[sources.landing] columns.id", "must be text"],
        ),
        (
            'path = "landing/*.csv"',
            'path = "x"\nnew_files_only = "yes"',
            ["new_files_only", "true or false", "the text 'yes'"],
        ),
        ("[targets.orders]", "[target.orders]", ["'target'", "did you mean 'targets'?"]),
        ("[[steps]]", "[spark]\nmastr = 'x'\n[[steps]]", ["[spark]", "did you mean 'master'?"]),
        ("[[steps]]", "[steps]", ["steps", "[[steps]]"]),
        ("[sources.landing]", "engine = 'duck'\n[sources.landing]", ["engine", "'duck'"]),
        ("[sources.landing]", "name = 'a/b'\n[sources.landing]", ["name", "'a/b'"]),
        ("[sources.landing]", "[sources.landing", ["is not TOML", "line 2"]),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_a_hint(old: str, new: str, words: list[str]) -> None:
    assert old in MINIMAL
    told = _refused(MINIMAL.replace(old, new))
    assert [word for word in ["p.toml", *words] if word not in told] == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('"lake/orders"', '"lake/../lake/orders/"'),
        ('"s3://lake/orders"', '"s3://lake/orders/"'),
        ('"db.orders"\nkind = "iceberg"\ncatalog = "c"', '"db.orders"\nkind = "iceberg"\ncatalog = "c"'),
    ],
)
def test_a_table_that_two_targets_name_is_refused(first: str, second: str) -> None:
    one = MINIMAL.replace('"lake/orders"', first)
    told = _refused(one + f"[targets.bad]\npath = {second}\n")
    assert "[targets.bad] path: it is the table of target 'orders' as well" in told
    pipeline.loads(one + "[targets.bad]\npath = 'lake/other'\n")


def test_branches_of_an_iceberg_table_are_targets_of_their_own() -> None:
    table = '"db.orders"\nkind = "iceberg"\ncatalog = "c"'
    other = f'[targets.audit]\npath = {table}\noptions = {{ branch = "audit" }}\n'
    made = pipeline.loads(MINIMAL.replace('"lake/orders"', table) + other)
    assert made.targets["audit"].options["branch"] == "audit"


def test_a_file_without_steps_is_refused() -> None:
    assert "no step" in _refused("name = 'x'")


def test_two_steps_of_one_name_are_refused() -> None:
    step = '[[steps]]\nname = "a"\noperation = "compact"\ntarget = "orders"\n'
    assert "same name" in _refused('[targets.orders]\npath = "x"\n' + step + step)


def test_an_expectation_of_nothing_is_refused() -> None:
    step = '[[steps]]\noperation = "expect"\ntarget = "orders"\n'
    assert "expects nothing" in _refused('[targets.orders]\npath = "x"\n' + step)


def test_an_iceberg_target_needs_a_catalog_and_has_its_own_partitions() -> None:
    iceberg = '"shop.orders"\nkind = "iceberg"'
    with pytest.raises(InputError, match=r"\[targets.orders\] catalog: an Iceberg table needs one"):
        pipeline.loads(MINIMAL.replace('"lake/orders"', iceberg))
    with pytest.raises(InputError, match="own partition spec decides"):
        pipeline.loads(MINIMAL.replace('"lake/orders"', f'{iceberg}\ncatalog = "lake"\npartition_by = "day"'))
    with pytest.raises(InputError, match="retain does not go with kind 'iceberg'"):
        pipeline.loads(
            MINIMAL.replace('"lake/orders"', f'{iceberg}\ncatalog = "lake"\noptions = {{ retain = 1 }}')
        )


def test_a_parquet_target_has_no_catalog_and_no_branch() -> None:
    with pytest.raises(InputError, match=r"\[targets.orders\] catalog: a Parquet dataset has none"):
        pipeline.loads(MINIMAL.replace('"lake/orders"', '"lake/orders"\ncatalog = "lake"'))
    with pytest.raises(InputError, match="branch does not go with kind 'parquet'"):
        pipeline.loads(MINIMAL.replace('"lake/orders"', '"lake/orders"\noptions = { branch = "x" }'))


def test_the_catalog_of_an_iceberg_target_may_be_a_directory_beside_the_file(tmp_path: Path) -> None:
    target = '"shop.orders"\nkind = "iceberg"\ncatalog = "./warehouse"\noptions = { mode = "merge-on-read" }'
    (tmp_path / "p.toml").write_text(MINIMAL.replace('"lake/orders"', target))
    declared = pipeline.load(tmp_path / "p.toml").targets["orders"]
    assert Path(declared.catalog).resolve() == tmp_path / "warehouse"
    assert (declared.path, declared.options["mode"]) == ("shop.orders", "merge-on-read")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NothingMatched, match=r"nothing\.toml"):
        pipeline.load(tmp_path / "nothing.toml")


CHAIN = """
[sources.a]
target = "a"
[sources.b]
target = "b"
[targets.a]
path = "a"
[targets.b]
path = "b"
[[steps]]
operation = "merge"
source = "a"
target = "b"
on = "id"
"""


def test_a_target_may_be_the_source_of_another() -> None:
    assert pipeline.loads(CHAIN).sources["a"].target == "a"


def test_data_that_goes_round_in_a_circle_is_refused() -> None:
    back = '[[steps]]\noperation = "merge"\nsource = "b"\ntarget = "a"\non = "id"\n'
    told = _refused(CHAIN + back)
    assert "circle: a -> b -> a" in told or "circle: b -> a -> b" in told


def test_a_target_that_is_made_from_itself_is_refused() -> None:
    assert "circle: a -> a" in _refused(CHAIN.replace('target = "b"\non', 'target = "a"\non'))


def test_variables_come_from_parameters_then_from_the_file_then_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = '[params]\nday = "monday"\nwhere = "${ROOT}/${day}"\n' + MINIMAL.replace(
        "landing/*.csv", "${where}"
    )
    monkeypatch.setenv("ROOT", "/base")
    monkeypatch.setenv("day", "never")
    path = pipeline.loads(text).sources["landing"].path
    assert path == ("/base/monday",)
    path = pipeline.loads(text, params={"day": "friday"}).sources["landing"].path
    assert path == ("/base/friday",)


def test_two_dollars_are_one() -> None:
    made = pipeline.loads(MINIMAL.replace("landing/*.csv", "/a$${b}"))
    assert made.sources["landing"].path == ("/a${b}",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("${NOBODY_SET_THIS}", ["NOBODY_SET_THIS", "--param NOBODY_SET_THIS="]),
        ("${}", ["names no variable"]),
        ("${a b}", ["names no variable"]),
    ],
)
def test_a_variable_that_nobody_knows_is_refused(text: str, words: list[str]) -> None:
    told = _refused(MINIMAL.replace("landing/*.csv", text))
    assert [word for word in ["[sources.landing] path", *words] if word not in told] == []


def test_parameters_that_stand_for_each_other_are_refused() -> None:
    text = '[params]\na = "${b}"\nb = "${a}"\n' + MINIMAL.replace("landing/*.csv", "${a}")
    assert "a -> b -> a" in _refused(text)


def test_a_parameter_that_the_file_does_not_have_is_refused() -> None:
    text = '[params]\nday = "x"\n' + MINIMAL
    told = _refused(text, params={"dya": "1"})
    assert "'dya'" in told
    assert "did you mean 'day'?" in told


def test_every_kind_of_step_can_be_declared() -> None:
    steps = """
[[steps]]
operation = "write"
source = "landing"
target = "orders"
mode = "overwrite_partitions"
[[steps]]
operation = "update"
target = "orders"
set = { price = "price * 1.1" }
where = "region = 'eu'"
[[steps]]
operation = "deduplicate"
target = "orders"
on = ["id", "region"]
order_by = "at"
[[steps]]
operation = "compact"
target = "orders"
target_mb_per_file = 128
[[steps]]
operation = "optimize"
target = "orders"
by = ["a", "b"]
curve = "hilbert"
partition_filter = ["day=1", "day=2"]
[[steps]]
operation = "expect"
target = "orders"
accepted = { region = ["eu", "ap"], open = [true] }
max_rows = 10
"""
    made = pipeline.loads(MINIMAL + steps)
    assert [step.operation for step in made.steps] == [
        *("merge", "write", "update", "deduplicate", "compact", "optimize", "expect")
    ]
    assert made.steps[-1] == pipeline.Expect(
        target="orders", accepted={"region": ("eu", "ap"), "open": (True,)}, max_rows=10
    )
    assert made.steps[4] == pipeline.Compact(target="orders", target_mb_per_file=128)


def test_the_settings_of_spark_are_kept_as_given() -> None:
    text = MINIMAL + '[spark]\nmaster = "spark://h:7077"\n[spark.config]\n"spark.a" = 8\n"spark.b" = true\n'
    made = pipeline.loads(text)
    assert made.spark == pipeline.SparkSettings("spark://h:7077", None, {"spark.a": 8, "spark.b": True})
