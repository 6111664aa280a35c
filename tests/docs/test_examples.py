from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import doc_pages
import pytest

import intarsia
from intarsia import errors

ROOT = doc_pages.ROOT
ON_SPARK = {"spark.md", "spark-pipeline.md"}


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _with_marks(page: Path) -> Any:
    marks: tuple[Any, ...] = ()
    if page.name in ON_SPARK:
        # The first page on Spark starts the session, which takes minutes on a machine that is busy.
        marks = (pytest.mark.spark, pytest.mark.session_at_hand, pytest.mark.timeout(900))
    elif page.parent.name == "integrations":  # packages warn of each other
        marks = (pytest.mark.filterwarnings("ignore::DeprecationWarning"),)
    return pytest.param(page, marks=marks)


@pytest.mark.parametrize("page", [_with_marks(page) for page in doc_pages.PAGES], ids=_name)
def test_every_example_runs_and_prints_what_it_claims(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if request.node.get_closest_marker("spark") is not None:
        request.getfixturevalue("spark")
    if page.parent.name == "integrations" and page.stem != "index":
        pytest.importorskip(page.stem, reason=f"make doors DOORS={page.stem} runs this page")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    doc_pages.run_page(page.read_text(encoding="utf-8"), _name(page))


def test_a_block_that_prints_something_else_than_it_claims_is_found() -> None:
    wrong = doc_pages.blocks("```python\nprint(1 + 1)  # 3\n```\n")
    with pytest.raises(AssertionError, match="claims"):
        doc_pages.run(wrong[0], {}, "page")
    wrong = doc_pages.blocks("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    with pytest.raises(AssertionError, match="claims"):
        doc_pages.run(wrong[0], {}, "page")


def test_a_decorator_is_part_of_its_statement() -> None:
    text = "```python\nimport functools\n\n\n@functools.cache\ndef f():\n    pass\n\n\nf.cache_clear()\n```\n"
    doc_pages.run_page(text, "page")


def test_a_command_that_prints_something_else_than_the_page_claims_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = "```toml file=lake/a.toml\nname = 1\n```\n\n```console\n$ intarsia graph lake/a.toml\n{}\n```\n"
    doc_pages.run_page(page.format("Error: lake/a.toml, name: ..."), "page")
    with pytest.raises(AssertionError, match="claims"):
        doc_pages.run_page(page.format("name  1"), "page")


def test_the_readme_opens_with_one_screen_that_has_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    screen = text.partition("\n## ")[0]
    assert len(screen.splitlines()) <= 40
    assert screen.count("](docs/layout.svg)") == 1
    opening = "\n".join(text.splitlines()[:20])
    assert "make demo" in opening
    assert "make test" in opening
    first = next(block for block in doc_pages.blocks(text) if block.language == "python")
    assert len([line for line in first.code.splitlines() if line.strip()]) <= 10


def test_every_error_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    names = [
        name
        for name, thing in vars(errors).items()
        if isinstance(thing, type) and issubclass(thing, errors.IntarsiaError)
    ]
    assert len(names) > 10
    assert [name for name in names if f"`{name}`" not in text] == []


def test_every_public_name_is_in_the_guide() -> None:
    text = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    assert [name for name in intarsia.__all__ if name not in text] == []


def test_every_option_is_in_the_guide() -> None:
    text = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    options = importlib.import_module("intarsia.options").ALL_OPTIONS
    assert [name for name in options if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    "page", [*doc_pages.PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=_name
)
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    broken = []
    for link in doc_pages.links(page.read_text(encoding="utf-8")):
        if re.match(r"^[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert broken == []


def _anchors(page: Path) -> set[str]:
    return doc_pages.anchors(page.read_text(encoding="utf-8"))


def test_every_page_in_docs_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        links = (link.partition("#")[0] for link in doc_pages.links(page.read_text(encoding="utf-8")))
        found = {(page.parent / link).resolve() for link in links if link.endswith(".md") and ":" not in link}
        waiting += found - reached
    assert set(doc_pages.PAGES) - reached == set()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_make_target_that_is_named_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    in_code = re.findall(r"`make ([a-z-]+)", text) + re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)
    assert in_code
    assert set(in_code) - targets == set()
