"""The notebook of the docs runs and shows what it says, and can be read in a notebook of either theme."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "notebooks" / "tour.ipynb"
VARIES = [
    (re.compile(r"\b[0-9a-f]{16,32}\b"), "ID"),
    (re.compile(r"\S*…\S*\.parquet"), "PATH"),  # of which ids are a part
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:…| )[\d:]*\d:\d\d"), "TIME"),
    (re.compile(r"[\d,.]+(?: million)? (source )?rows/s"), "SPEED"),
    (re.compile(r"\b[\d.]+ (?:ms|s|min \d+ s|k?B|MB)\b"), "MEASURE"),
    (re.compile(r"─+"), " "),  # columns are as wide as what varies
]
# What JupyterLab and the classic notebook say of every table in an output.
JUPYTER = """<style>
.out table{border-collapse:collapse;border:none;color:#000;font-size:12px;table-layout:fixed}
.out td,.out th,.out tr{vertical-align:middle;padding:.5em;max-width:none;border:none;text-align:right}
.out th{font-weight:bold}
.out tbody tr:nth-child(odd){background:#fff}.out tbody tr:nth-child(even){background:#f5f5f5}
.out tbody tr:hover{background:#e3f2fd}</style>"""
MEASURE = """<script>addEventListener('load', () => {
  const light = color => { const [r, g, b, a] = color.match(/[\\d.]+/g).map(Number);
    return a === 0 ? null : (r + g + b) / 3 };
  const paper = element => { for (let at = element; at; at = at.parentElement) {
    const found = light(getComputedStyle(at).backgroundColor);
    if (found !== null) return found } return 255 };
  const cells = [...document.querySelectorAll('.out td, .out th, .out .card b, .out .top b, .out .path')];
  const told = cells.map(cell => ({text: cell.textContent, contrast:
    Math.abs(light(getComputedStyle(cell).color) - paper(cell)), align: getComputedStyle(cell).textAlign,
    name: cell.className, over: cell.scrollWidth - cell.clientWidth}));
  document.body.dataset.told = JSON.stringify(told) })</script>"""


def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return found


def _code_cells() -> list[dict[str, Any]]:
    return [cell for cell in _read()["cells"] if cell["cell_type"] == "code"]


class _Text(HTMLParser):
    """The text of HTML, without styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self._hidden = "", False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden = tag == "style"
        self.text += " "

    def handle_endtag(self, tag: str) -> None:
        self._hidden = False

    def handle_data(self, data: str) -> None:
        self.text += "" if self._hidden else data


def _simplify(output: dict[str, Any]) -> list[list[str]]:
    """The words of an output, without what differs from run to run; files are in the order of their ids."""
    data = output.get("data", {})
    html = "".join(data.get("text/html", ()))
    texts = ["".join(output.get("text", ())), "".join(data.get("text/plain", ())), _Text(html).text]
    for pattern, word in VARIES:
        texts = [pattern.sub(word, text) for text in texts]
    return [sorted(text.split()) for text in texts]


def test_the_notebook_shows_what_its_cells_do() -> None:
    script = str(ROOT / "examples" / "notebook.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    ran = json.loads(done.stdout)
    cells = _code_cells()
    assert len(ran) == len(cells) > 5
    for cell, outputs in zip(cells, ran, strict=True):
        stored = [_simplify(output) for output in cell["outputs"]]
        assert stored == [_simplify(output) for output in outputs], "run examples/notebook.py --write"


def test_the_notebook_is_one_that_jupyter_opens() -> None:
    notebook = _read()
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[\w-]{1,64}", name) for name in names)
    keys = {"markdown": {"cell_type", "id", "metadata", "source"}}
    keys["code"] = keys["markdown"] | {"execution_count", "outputs"}
    for cell in notebook["cells"]:
        assert set(cell) == keys[cell["cell_type"]]
    for number, cell in enumerate(_code_cells(), 1):
        assert cell["execution_count"] == number
        for output in cell["outputs"]:
            assert output["output_type"] in ("stream", "execute_result")


def test_links_of_the_notebook_lead_to_pages() -> None:
    text = "".join("".join(cell["source"]) for cell in _read()["cells"] if cell["cell_type"] == "markdown")
    found = re.findall(r"\]\(([^)]+)\)", text)
    assert found
    assert [link for link in found if not (NOTEBOOK.parent / link).exists()] == []


def test_the_notebook_names_no_machine() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert "ada@laptop" in text
    assert "/tmp" not in text


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_values_can_be_read_in_a_notebook_of_either_theme(tmp_path: Path, theme: str) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine: the notebook is not looked at in a browser")
    outputs = [output for cell in _code_cells() for output in cell["outputs"]]
    shown = [
        "".join(output["data"]["text/html"]) for output in outputs if "text/html" in output.get("data", {})
    ]
    assert len(shown) == 5  # an inspection, a plan, two results, a history
    body = "".join(f'<div class="out">{one}</div>' for one in shown).replace("<details>", "<details open>")
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><meta charset=utf-8>{JUPYTER}{MEASURE}<body>{body}</body>")
    flags = ["--blink-settings=preferredColorScheme=0"] if theme == "dark" else []
    quiet = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
    ]
    command = [chromium, *quiet, f"--user-data-dir={tmp_path / 'profile'}", *flags]
    command += ["--virtual-time-budget=4000", "--window-size=1000,900", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r'data-told="([^"]*)"', done.stdout)
    assert found is not None, done.stderr[-2000:]
    cells = json.loads(unescape(found[1]))
    assert len(cells) > 100
    assert [cell for cell in cells if cell["contrast"] < 60] == []
    assert {cell["align"] for cell in cells if cell["name"] == "num"} == {"right"}
    assert [cell for cell in cells if cell["over"] > 1] == []
