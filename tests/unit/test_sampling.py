"""The cases that ``make test`` runs: few, the same each time, and none is lost."""

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

    def get_closest_marker(self, name: str) -> bool | None:
        return any("spark" in value for value in self.params.values() if isinstance(value, tuple)) or None


def make_cases(folder: str, **parameters: list[Any]) -> list[Any]:
    return [
        Case(f"tests/{folder}/test_x.py::test_y[{number}]", dict(zip(parameters, values, strict=True)))
        for number, values in enumerate(itertools.product(*parameters.values()))
    ]


def get_shown(cases: list[Any], name: str) -> set[Any]:
    return {case.params[name] for case in cases}


def test_every_value_of_every_parameter_is_in_a_case_that_is_run() -> None:
    cases = make_cases("contract", operation=["a", "b", "c", "d", "e"], kind=["x", "y", "z"])
    run, left = sampling.sample(cases)
    assert get_shown(run, "operation") == {"a", "b", "c", "d", "e"}
    assert get_shown(run, "kind") == {"x", "y", "z"}
    assert len(run) == 5
    assert len(left) == 10


def test_a_case_is_run_or_left_and_the_order_stays() -> None:
    cases = make_cases("contract", lake=LAKES, kind=list("abcdef"))
    run, left = sampling.sample(cases)
    assert sorted([*run, *left], key=cases.index) == cases
    assert run == sorted(run, key=cases.index)


def test_the_choice_does_not_depend_on_the_order() -> None:
    cases = make_cases("contract", lake=LAKES, kind=list("abcdef"))
    run, _ = sampling.sample(cases)
    backwards, _ = sampling.sample(cases[::-1])
    assert backwards == run[::-1]


def test_a_test_of_the_contract_is_run_once_on_spark_and_on_every_other_kind_of_lake() -> None:
    run, _ = sampling.sample(make_cases("contract", lake=LAKES, kind=list("abcdef")))
    assert get_shown(run, "kind") == set("abcdef")
    assert [case.params["lake"][0] for case in run].count("spark") == 1
    assert {("arrow", "parquet"), ("arrow", "iceberg-cow")} < get_shown(run, "lake")


@pytest.mark.parametrize(("folder", "number"), [("crash", 3), ("bad_input", 4), ("unit", 30)])
def test_where_a_case_takes_long_few_are_run(folder: str, number: int) -> None:
    run, _ = sampling.sample(make_cases(folder, operation=list(range(30))))
    assert len(run) == number


def test_a_test_without_parameters_is_run() -> None:
    cases: Any = [Case("tests/crash/test_x.py::test_one"), Case("tests/crash/test_x.py::test_two")]
    assert sampling.sample(cases) == (cases, [])
