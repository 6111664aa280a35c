"""Workflows, hooks and templates: what they call exists, and what they use is pinned."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONS = sorted((ROOT / ".github" / "actions").rglob("action.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))
each_workflow = pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)


def _read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _list_steps(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each step of a workflow or an action, with the matrix of its job."""
    content = _read(path)
    if "runs" in content:
        yield from ((step, {}) for step in content["runs"]["steps"])
    for job in content.get("jobs", {}).values():
        matrix = job.get("strategy", {}).get("matrix", {})
        yield from ((step, matrix) for step in job["steps"])


def _list_make_targets(path: Path) -> set[str]:
    found: set[str] = set()
    for step, matrix in _list_steps(path):
        for name in re.findall(r"\bmake (\$\{\{ matrix\.\w+ \}\}|[a-z-]+)", step.get("run", "")):
            variable = re.search(r"matrix\.(\w+)", name)
            found |= set(matrix[variable[1]]) if variable else {name}
    return found


@pytest.mark.parametrize("path", [*WORKFLOWS, *ACTIONS], ids=lambda path: path.name)
def test_every_make_target_that_a_workflow_calls_exists(path: Path) -> None:
    assert _list_make_targets(path) - TARGETS == set()


def test_the_workflows_call_what_they_are_there_for() -> None:
    called = set().union(*map(_list_make_targets, WORKFLOWS))
    assert called >= {"lint", "test", "docs", "doors", "release", "coverage", "duckdb-oldest"}
    assert called >= {"test-all", "crash", "property", "stores", "cluster", "kafka"}
    assert called >= {"engines-oldest", "engines-newest"}


@pytest.mark.parametrize("path", [*WORKFLOWS, *ACTIONS], ids=lambda path: path.name)
def test_every_action_is_pinned_to_a_commit_and_says_its_version(path: Path) -> None:
    used = re.findall(r"uses: *(.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    others = [line for line in used if not line.startswith("./")]
    assert others
    pinned = re.compile(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [line for line in others if not pinned.fullmatch(line)] == []


def test_an_action_has_one_version_everywhere() -> None:
    texts = (path.read_text(encoding="utf-8") for path in [*WORKFLOWS, *ACTIONS])
    used = {line for text in texts for line in re.findall(r"uses: *([\w./-]+@.+)$", text, re.MULTILINE)}
    assert len({line.partition("@")[0] for line in used}) == len(used)


@each_workflow
def test_a_workflow_may_read_alone_and_ends_in_time(workflow: Path) -> None:
    content = _read(workflow)
    assert content["permissions"] == {"contents": "read"}
    assert content["concurrency"]["group"].startswith(f"{workflow.stem}-")
    for job in content["jobs"].values():
        assert "permissions" not in job
        assert job["timeout-minutes"] <= 360
        checkouts = [step for step in job["steps"] if "checkout@" in step.get("uses", "")]
        assert [step["with"]["persist-credentials"] for step in checkouts] == [False]


@each_workflow
def test_actionlint_has_nothing_to_say(workflow: Path) -> None:
    program = shutil.which("actionlint")
    if program is None:
        pytest.skip("actionlint (github.com/rhysd/actionlint, 1.7.12) is not installed")
    done = subprocess.run([program, "-no-color", str(workflow)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_pythons_that_are_tested_are_those_that_are_named() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = {one.rpartition(" ")[2] for one in classifiers if re.search(r"Python :: 3\.\d+$", one)}
    jobs = _read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]
    assert named <= set(jobs["test"]["strategy"]["matrix"]["python"])
    assert "3.11" in named


def test_hooks_are_the_checks_of_make_lint_with_the_pinned_versions() -> None:
    (repository,) = _read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    used = {hook["entry"].split()[0] for hook in repository["hooks"]}
    lint = MAKEFILE[MAKEFILE.index("\nlint:") : MAKEFILE.index("\nformat:")]
    assert used == {f".venv/bin/{name}" for name in re.findall(r"\$\(BIN\)/([\w-]+)", lint)}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_has_what_github_asks_of_it(path: Path) -> None:
    content = _read(path)
    if path.name == "config.yml":
        assert set(content) <= {"blank_issues_enabled", "contact_links"}
        return
    assert {"name", "description", "body"} <= set(content)
    for part in content["body"]:
        assert part["type"] in ("markdown", "textarea", "input", "dropdown", "checkboxes")
        assert part["attributes"].get("label") or part["attributes"].get("value")
    identifiers = [part["id"] for part in content["body"] if "id" in part]
    assert len(identifiers) == len(set(identifiers))


def test_the_citation_has_what_the_format_asks_of_it() -> None:
    content = _read(ROOT / "CITATION.cff")
    assert content["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(content)
    assert content["license"] == "Apache-2.0"


@pytest.mark.parametrize(
    "page", ["RELEASING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", ".github/pull_request_template.md"]
)
def test_links_and_targets_of_a_page_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert set(re.findall(r"`make ([a-z-]+)", text)) - TARGETS == set()
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if not ((ROOT / page).parent / link.partition("#")[0]).exists()] == []
