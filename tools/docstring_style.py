"""Makes docstrings fit the reference: examples become sections, Sphinx roles become links or code.

A Griffe extension, loaded by mkdocstrings (``zensical.toml``). Nothing is imported: Griffe reads the source.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr|exc):`~?([\w.]+)`")
_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
_TREE = re.compile(r"^::$", re.MULTILINE)


def list_documented() -> dict[str, str]:
    """The names that have an entry in the reference, by their path and by their last part."""
    paths = [
        path
        for page in sorted(REFERENCE.glob("*.md"))
        for path in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    return {path.rpartition(".")[2]: path for path in reversed(paths)} | {path: path for path in paths}


DOCUMENTED = list_documented()


def convert_docstring(text: str) -> str:
    """A docstring in the words of Markdown."""

    def link(role: re.Match[str]) -> str:
        if role[1].startswith("intarsia.options."):
            return "[keyword options][keyword-options]"
        path = DOCUMENTED.get(role[1])
        return f"[`{role[1]}`][{path}]" if path else f"`{role[1]}`"

    return _TREE.sub("", _EXAMPLE.sub("Examples:", _ROLE.sub(link, text)))


class DocstringStyle(griffe.Extension):
    """Converts every docstring when it is read."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = convert_docstring(obj.docstring.value)
