"""Every scenario has a test of its name."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent


def _slug(title: str) -> str:
    plain = re.sub(r"\(modified\)", "", title.lower())
    return "test_scenario_" + re.sub(r"[^a-z0-9]+", "_", plain).strip("_")


def _listed() -> Counter[tuple[str, str]]:
    lines = (HERE / "scenarios.txt").read_text().splitlines()
    return Counter((line[:3], _slug(line[5:])) for line in lines if line)


@cache
def _tests(seed: str) -> list[str]:
    tree = ast.parse((HERE / f"test_seed_{seed}.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def test_every_scenario_has_a_test_named_after_it():
    missing = [
        f"{seed}: {name} ({count})"
        for (seed, name), count in _listed().items()
        if sum(test == name or test.startswith(f"{name}__") for test in _tests(seed)) < count
    ]
    assert missing == []


def test_every_scenario_test_belongs_to_a_scenario():
    known = {name for _, name in _listed()}
    for seed in {seed for seed, _ in _listed()}:
        strays = [test for test in _tests(seed) if test.startswith("test_scenario_")]
        assert [test for test in strays if test.split("__")[0] not in known] == []


def test_every_settled_answer_and_publishing_rule_has_a_test():
    settled = (HERE / "test_settled.py").read_text()
    publishing = (HERE / "test_publishing.py").read_text()
    assert [n for n in range(1, 25) if f"def test_s{n:02d}_" not in settled] == []
    assert [n for n in range(1, 7) if f"def test_p{n}_" not in publishing] == []
