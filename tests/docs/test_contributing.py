"""The architecture in CONTRIBUTING.md names modules and files that exist."""

from __future__ import annotations

import importlib
import re

import doc_pages
import pytest

ROOT = doc_pages.ROOT
PACKAGE = ROOT / "src" / "intarsia"
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`([\w./]+)`", TEXT)))
PACKAGES = {path.stem for path in PACKAGE.iterdir() if not path.name.startswith("__")}
DOTTED = [
    name for name in NAMES if "." in name and name.split(".")[0] in PACKAGES and not name.endswith(".py")
]
FILES = [name for name in NAMES if re.search(r"\.(py|md|toml)$", name)]


def test_some_names_are_found() -> None:
    assert "core.run.make_plan" in DOTTED
    assert "options.py" in FILES


@pytest.mark.parametrize("name", DOTTED)
def test_a_module_or_what_it_has_exists(name: str) -> None:
    parts = name.split(".")
    if (PACKAGE.joinpath(*parts)).with_suffix(".py").exists() or PACKAGE.joinpath(*parts).is_dir():
        return
    assert hasattr(importlib.import_module(".".join(["intarsia", *parts[:-1]])), parts[-1])


@pytest.mark.parametrize("name", FILES)
def test_a_file_exists(name: str) -> None:
    assert (
        (ROOT / name).exists() or (PACKAGE / name).exists() or list((PACKAGE / "engines").glob(f"*/{name}"))
    )
