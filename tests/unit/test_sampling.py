"""The cases that are run at the levels few and more: the same each time, and none is lost."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from tests import sampling

LAKES = [("arrow", "parquet"), ("spark", "parquet"), ("arrow", "iceberg-cow"), ("spark", "iceberg-mor")]


@dataclass(eq=False)
class Case:
    """As much of an item as the choice looks at."""

    nodeid: str
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def callspec(self) -> SimpleNamespace:
        return SimpleNamespace(params=self.params)

    marks: tuple[str, ...] = ()

    def get_closest_marker(self, name: str) -> bool | None:
        lakes = [value for value in self.params.values() if isinstance(value, tuple)]
        return name in self.marks or (name == "spark" and any("spark" in lake for lake in lakes)) or None


def make_cases(folder: str, **parameters: list[Any]) -> list[Any]:
    return [
        Case(f"tests/{folder}/test_x.py::test_y[{number}]", dict(zip(parameters, values, strict=True)))
        for number, values in enumerate(itertools.product(*parameters.values()))
    ]


def get_shown(cases: list[Any], name: str) -> set[Any]:
    return {case.params[name] for case in cases}


def test_every_value_of_every_parameter_is_in_a_case_that_is_run() -> None:
    cases = make_cases("contract", operation=["a", "b", "c", "d", "e"], kind=["x", "y", "z"])
    run, left = sampling.sample(cases, "more")
    assert get_shown(run, "operation") == {"a", "b", "c", "d", "e"}
    assert get_shown(run, "kind") == {"x", "y", "z"}
    assert len(run) == 5
    assert len(left) == 10


def test_a_case_is_run_or_left_and_the_order_stays() -> None:
    cases = make_cases("contract", lake=LAKES, kind=list("abcdef"))
    run, left = sampling.sample(cases, "more")
    assert sorted([*run, *left], key=cases.index) == cases
    assert run == sorted(run, key=cases.index)


def test_the_choice_does_not_depend_on_the_order() -> None:
    cases = make_cases("contract", lake=LAKES, kind=list("abcdef"))
    run, _ = sampling.sample(cases, "more")
    backwards, _ = sampling.sample(cases[::-1], "more")
    assert backwards == run[::-1]


def test_a_test_of_the_contract_is_run_on_spark_and_on_every_other_kind_of_lake() -> None:
    run, _ = sampling.sample(make_cases("contract", lake=LAKES, kind=list("abcdef")), "more")
    assert get_shown(run, "kind") == set("abcdef")
    # Alone in its file, it has to show both kinds of table on Spark; else it is one case.
    assert [case.params["lake"][0] for case in run].count("spark") == 2
    assert {("arrow", "parquet"), ("arrow", "iceberg-cow")} < get_shown(run, "lake")


@pytest.mark.parametrize(("folder", "number"), [("crash", 3), ("bad_input", 4), ("unit", 30)])
def test_where_a_case_takes_long_few_are_run(folder: str, number: int) -> None:
    run, _ = sampling.sample(make_cases(folder, operation=list(range(30))), "more")
    assert len(run) == number


def test_a_test_without_parameters_is_run() -> None:
    cases: Any = [Case("tests/crash/test_x.py::test_one"), Case("tests/crash/test_x.py::test_two")]
    assert sampling.sample(cases, "more") == (cases, [])


@pytest.mark.parametrize("folder", ["contract", "stores", "spec"])
def test_few_are_among_more(folder: str) -> None:
    cases = make_cases(folder, lake=LAKES, io=["arrow", "duckdb"], operation=list(range(30)))
    few, more = (set(map(id, sampling.sample(cases, level)[0])) for level in ("few", "more"))
    assert few <= more


def make_tests_on_lakes() -> Any:
    lakes = [*LAKES, ("duckdb", "parquet"), ("duckdb", "iceberg-mor")]
    return [
        Case(f"tests/contract/test_x.py::test_{test}[{number}]", {"lake": lake})
        for test in "abcdefghijkl"
        for number, lake in enumerate(lakes)
    ]


def test_few_of_each_test_show_every_engine_in_process_and_every_kind_of_table() -> None:
    run, _ = sampling.sample(make_tests_on_lakes(), "few")
    for test in "abcdefghijkl":
        lakes = [case.params["lake"] for case in run if f"test_{test}[" in case.nodeid]
        assert {"arrow", "duckdb"} <= {engine for engine, _ in lakes}
        assert {"parquet", "iceberg"} <= {table.partition("-")[0] for _, table in lakes}


def test_few_of_a_file_show_every_engine_with_every_kind_of_table_and_once_on_spark() -> None:
    run, left = sampling.sample(make_tests_on_lakes(), "few")
    lakes = [(case.params["lake"][0], case.params["lake"][1].partition("-")[0]) for case in run]
    assert set(lakes) == {
        (one, kind) for one in ("arrow", "duckdb", "spark") for kind in ("parquet", "iceberg")
    }
    assert [engine for engine, _ in lakes].count("spark") == 2
    assert len(run) < len(left)


def test_a_test_that_is_run_on_spark_alone_is_among_few() -> None:
    cases: Any = [
        Case(f"tests/contract/test_x.py::test_{test}[{number}]", {"lake": lake})
        for test in "abcdef"
        for number, lake in enumerate(LAKES)
        if lake[0] == "spark"
    ]
    run, _ = sampling.sample(cases, "few")
    assert {case.nodeid.partition("[")[0][-1] for case in run} == set("abcdef")


def test_among_few_every_row_of_a_table_of_cases_is_run_on_one_engine() -> None:
    run, left = sampling.sample(make_cases("spec", io=["arrow", "duckdb"], row=list(range(30))), "few")
    assert sorted(case.params["row"] for case in run) == list(range(30))
    assert get_shown(run, "io") == {"arrow", "duckdb"}
    assert len(left) == 30


def test_what_is_marked_more_is_not_among_few() -> None:
    cases: Any = [
        Case("tests/spark/test_x.py::test_one", marks=("more",)),
        Case("tests/spark/test_x.py::test_two"),
    ]
    assert sampling.sample(cases, "few") == (cases[1:], cases[:1])
    assert sampling.sample(cases, "more") == (cases, [])
