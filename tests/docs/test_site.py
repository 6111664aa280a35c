"""The site lists every page, its reference every public name; and a site that is not whole is found."""

from __future__ import annotations

import importlib
import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import doc_pages
import pytest

ROOT = doc_pages.ROOT
CONFIG = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
REFERENCE = ROOT / "docs" / "reference"
PUBLIC = (
    "intarsia",
    "intarsia.errors",
    "intarsia.pipeline",
    "intarsia.spark",
    "intarsia.tables.iceberg",
    "intarsia.datasets.pyarrow",
    "intarsia.datasets.duckdb",
    "intarsia.datasets.spark",
)


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SITE = _load("docs_site")


def _list_nav(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values():
                yield from _list_nav([value] if isinstance(value, str) else value)


def test_the_navigation_lists_every_page_once() -> None:
    listed = list(_list_nav(CONFIG["nav"]))
    assert len(listed) == len(set(listed))
    pages = {name for name in SITE.list_pages() if name.endswith(".md")}
    assert pages - set(listed) == set(), "add these to nav in zensical.toml"
    assert set(listed) - pages == set(), "these are in nav of zensical.toml, and are not there"


def _list_documented() -> list[str]:
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted(REFERENCE.glob("*.md")))
    return re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_reference_has_every_public_name(name: str) -> None:
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None) or [
        each for each, thing in vars(module).items() if isinstance(thing, type) and thing.__module__ == name
    ]
    assert names
    assert {f"{name}.{each}" for each in names} - set(_list_documented()) == set()


def test_the_reference_names_each_once_and_nothing_that_is_not_there() -> None:
    documented = _list_documented()
    assert len(documented) == len(set(documented))
    for path in documented:
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), path


@pytest.mark.parametrize("name", ["cli.md", "options.md"])
def test_the_reference_of_commands_and_options_is_what_the_code_says(name: str) -> None:
    made = _load("reference_pages").PAGES[name]()
    assert made == (REFERENCE / name).read_text(encoding="utf-8"), "run tools/reference_pages.py --write"


def test_the_reference_has_every_command() -> None:
    page = (REFERENCE / "cli.md").read_text(encoding="utf-8")
    commands = importlib.import_module("intarsia.cli.commands").COMMANDS
    assert [name for name in commands if f"\n## intarsia {name}\n" not in page] == []


def test_pages_are_staged_with_links_that_hold_on_the_site() -> None:
    changelog = SITE.convert_page("[many](docs/many-files.md#x), `docs/a.md`", "changelog.md")
    assert changelog == "[many](many-files.md#x), `docs/a.md`"
    assert SITE.convert_page("[new](../CHANGELOG.md)", "guide.md") == "[new](changelog.md)"
    assert SITE.convert_page("[new](../../CHANGELOG.md)", "how-to/undo.md") == "[new](../changelog.md)"
    fence = SITE.convert_page("```toml file=shop.toml\nname = 1\n```\n", "pipeline.md")
    assert fence == '```toml title="shop.toml"\nname = 1\n```\n'


def test_no_page_links_out_of_what_the_site_has() -> None:
    docs = ROOT / "docs"
    outside = [
        (page.name, link)
        for page in doc_pages.PAGES
        if page.is_relative_to(docs)
        for link in doc_pages.links(page.read_text(encoding="utf-8"))
        if not re.match(r"^[a-z]+:|^#", link)
        and not (target := (page.parent / link.partition("#")[0]).resolve()).is_relative_to(docs)
        and target.relative_to(ROOT).as_posix() not in SITE.OUTSIDE
    ]
    assert outside == []


GOOD = '<link href="a.css"><h1 id="top">x</h1><a href="b.html#there">b</a><a href="https://example.org">e</a>'
BAD = [
    ('<a href="c.html">c</a>', "no page c.html"),
    ('<a href="b.html#nowhere">b</a>', "no heading b.html#nowhere"),
    ('<a href="#nowhere">b</a>', "no heading #nowhere"),
    ('<script src="https://cdn.example.org/x.js"></script>', "fetches https://cdn.example.org/x.js"),
    ('<img src="//example.org/x.png">', "fetches //example.org/x.png"),
    ('<link href="https://fonts.example.org/css" rel="stylesheet">', "fetches https://fonts.example.org/css"),
]


@pytest.fixture
def built(tmp_path: Path) -> Path:
    (tmp_path / "a.css").write_text("p { background: url(data:image/png;base64,) }")
    (tmp_path / "b.html").write_text('<h2 id="there">x</h2>')
    (tmp_path / "index.html").write_text(GOOD)
    return tmp_path


def test_a_site_that_is_whole_and_fetches_nothing_passes(built: Path) -> None:
    assert SITE.check_site(built) == []


@pytest.mark.parametrize(("markup", "said"), BAD)
def test_a_link_that_leads_nowhere_and_a_request_to_elsewhere_are_found(
    built: Path, markup: str, said: str
) -> None:
    (built / "index.html").write_text(GOOD + markup)
    assert SITE.check_site(built) == [f"index.html: {said}"]


def test_a_style_that_fetches_from_elsewhere_is_found(built: Path) -> None:
    (built / "a.css").write_text('@import "https://fonts.example.org/css";')
    assert SITE.check_site(built) == ["a.css: fetches something from elsewhere"]
