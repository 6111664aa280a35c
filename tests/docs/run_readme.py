"""Runs the README's examples on the intarsia that is installed, for `make release`; pytest is not needed.

A block that needs an extra which is not installed is left out, and named: without extras some must run, with
those that the README uses all must.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import doc_pages

import intarsia
from intarsia.errors import NotSupported

SOURCE = Path(doc_pages.ROOT, "src", "intarsia", "__init__.py")


def check_package() -> None:
    """The package is the installed one, of the version that the source tells, and brings its types."""
    here = Path(intarsia.__file__).parent
    assert Path(sys.prefix) in here.parents, f"{here} is not of this environment"
    told = re.search(r'^__version__ = "(.+)"$', SOURCE.read_text(encoding="utf-8"), re.MULTILINE)
    assert told is not None
    assert told[1] == intarsia.__version__ == metadata.version("intarsia")
    assert (here / "py.typed").exists()


def run_examples(text: str) -> tuple[int, list[str]]:
    """How many blocks have run, and why others have not."""
    namespace: dict[str, Any] = {"__name__": "example"}
    done, left = 0, []
    for block in doc_pages.blocks(text):
        if block.language != "python":
            continue
        try:
            doc_pages.run(block, namespace, "README.md")
        except (NotSupported, ModuleNotFoundError) as error:
            left.append(f"line {block.line}: {error}")
        else:
            done += 1
    return done, left


def main() -> None:
    check_package()
    text = Path(doc_pages.ROOT, "README.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        done, left = run_examples(text)
        os.chdir(doc_pages.ROOT)
    has_extras = find_spec("pyiceberg") is not None
    how = "with" if has_extras else "without"
    print(f"README.md: {done} examples run {how} extras; left out: {left or 'none'}")
    if done == 0 or (has_extras and left):
        sys.exit(1)


if __name__ == "__main__":
    main()
