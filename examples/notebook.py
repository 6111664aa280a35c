"""Runs the notebook docs/notebooks/tour.ipynb cell by cell; ``--write`` puts what it shows into the file.

Cells are run as Jupyter runs them, without Jupyter: the value of the last line is shown, as text and as HTML.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebooks" / "tour.ipynb"


def run_cells(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The outputs of each code cell, run in the working directory in one namespace."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    codes = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [_run_cell(code, number, namespace) for number, code in enumerate(codes, 1)]


def _run_cell(code: str, number: int, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    body = ast.parse(code).body
    last = ast.Expression(body.pop().value) if body and isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), f"<cell {number}>", "exec"), namespace)
        value = None if last is None else eval(compile(last, f"<cell {number}>", "eval"), namespace)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": text})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
        outputs.append(
            {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}
        )
    return outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put what the cells show into the file")
    asked = parser.parse_args()
    # Commits note who made them: the notebook is nobody's in particular.
    os.environ["LOGNAME"] = "ada"
    platform.node = lambda: "laptop"  # type: ignore[assignment]
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        outputs = run_cells(notebook)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, shown) in enumerate(zip(cells, outputs, strict=True), 1):
        cell["outputs"], cell["execution_count"] = shown, number
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    if asked.write:
        NOTEBOOK.write_text(text, encoding="utf-8")
    else:
        print(json.dumps(outputs))


if __name__ == "__main__":
    main()
