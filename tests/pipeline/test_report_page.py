from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

ROWS = {number: ("eu" if number % 2 else "ap", float(number)) for number in range(1, 40)}
Browser = Callable[..., str]


def _page(shop: Any) -> Path:
    shop.lands("a.csv", ROWS)
    report = shop.run()
    assert report.html_path is not None
    return Path(report.html_path)


def test_the_json_has_rows_files_bytes_times_plans_and_layouts(shop: Any) -> None:
    shop.lands("a.csv", ROWS)
    shop.run()
    shop.lands("b.csv", {100: ("eu", -1.0)})
    report = shop.run(full_refresh=True)
    told = json.loads(Path(report.json_path).read_text())
    upsert = told["steps"][0]
    assert upsert["result"]["inserted"] == 1
    assert upsert["result"]["updated"] == 39
    assert upsert["result"]["bytes_written"] > 0
    assert upsert["seconds"] > 0
    counts = {"rewritten": 2, "with_deletes": 0, "inserted": 1, "preserved": 0, "removed": 0}
    assert upsert["result"]["file_counts"] == counts
    assert upsert["plan"]["actions"] == {"rewrite": 2}
    assert upsert["plan"]["reasons"][0]["reason"]
    assert upsert["before"]["rows"] == 39
    assert upsert["after"] | {"version": 0} == upsert["after"] | {"version": 0, "rows": 40, "files": 3}
    assert upsert["input"]["files"] == 2
    assert told["engine"] == "arrow"


def test_the_json_says_which_files_were_taken_before(shop: Any) -> None:
    shop.lands("a.csv", ROWS)
    shop.run()
    shop.lands("b.csv", {100: ("eu", -1.0)})
    told = json.loads(Path(shop.run().json_path).read_text())
    assert told["steps"][0]["input"]["files"] == 1
    assert told["steps"][0]["input"]["skipped_files"] == 1
    assert told["steps"][0]["notes"] == ["1 file was taken before"]


def test_every_run_leaves_its_own_report(shop: Any) -> None:
    shop.lands("a.csv", ROWS)
    paths = {shop.run().html_path for _ in range(3)}
    assert len(paths) == 3
    assert all(Path(path).exists() for path in paths)


def test_the_page_loads_nothing_from_anywhere(shop: Any) -> None:
    text = _page(shop).read_text()
    assert not re.search(r"""src=|@import|url\((?!#)|<link|<script|https?://(?!www\.w3\.org)""", text)
    steps = {f"#step-{number}-body" for number in (1, 2, 3)}
    assert set(re.findall(r'href="([^"]*)"', text)) == {*steps, "index.html"}


class _Balanced(HTMLParser):
    """Every tag that is opened is closed, in order."""

    void = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"


def test_the_page_is_well_formed(shop: Any) -> None:
    parser = _Balanced()
    parser.feed(_page(shop).read_text())
    assert parser.open == []


def test_text_from_outside_cannot_become_part_of_the_page(shop: Any) -> None:
    shop.declare(shop.file.read_text().replace('name = "purge"', """name = "<img src=x onerror='1'>" """))
    shop.lands("a.csv", {1: ("<script>alert(1)</script>", 1.0)})
    text = Path(shop.run().html_path).read_text()
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;img" in text


def test_a_browser_shows_every_step_with_pictures_of_its_layout(shop: Any, browser: Browser) -> None:
    dom = browser(_page(shop), "--dump-dom")
    assert "<h1>shop</h1>" in dom
    assert re.findall(r'<details class="step" id="step-\d"[^>]*><summary><b>(.*?)</b>', dom) == [
        "1. upsert",
        "2. purge",
        "3. tidy",
    ]
    opened = re.search(r'<details class="step" id="step-1" open="">(.*?)</details>', dom, re.DOTALL)
    assert opened is not None
    assert opened[1].count("<svg") == 2
    assert "before: 0 rows in 0 files" in opened[1]
    assert "after: 39 rows in 2 files" in opened[1]


MEASURE = """<script>addEventListener('load', () => {
  const root = document.documentElement, style = getComputedStyle(document.body);
  const pictures = [...document.querySelectorAll('details[open] svg')];
  const cells = [...document.querySelectorAll('td.wide')];
  parent.postMessage(JSON.stringify({
    width: root.clientWidth,
    over: root.scrollWidth - root.clientWidth,
    drawn: pictures.filter(picture => picture.getBoundingClientRect().height > 20).length,
    hidden: cells.filter(cell => cell.offsetParent === null).length,
    ink: style.color,
    paper: style.backgroundColor,
  }), '*');
});</script>"""
# A frame is as narrow as it is told to be; a window is not.
FRAME = """<!doctype html><body><script>onmessage = told => {document.body.dataset.seen = told.data}</script>
<iframe width="WIDTH" height="3000" style="border:0" src="measured.html"></iframe></body>"""


def _seen(browser: Browser, page: Path, width: int, *flags: str) -> dict[str, Any]:
    """What a page measures in a browser; the script that measures is put into a copy of it."""
    page.with_name("measured.html").write_text(page.read_text().replace("</body>", f"{MEASURE}</body>"))
    frame = page.with_name("frame.html")
    frame.write_text(FRAME.replace("WIDTH", str(width)))
    dom = browser(frame, "--dump-dom", "--virtual-time-budget=3000", "--window-size=1200,900", *flags)
    found = re.search(r'data-seen="([^"]*)"', dom)
    assert found is not None, dom[:500]
    measured: dict[str, Any] = json.loads(found[1].replace("&quot;", '"'))
    return measured


def test_the_page_fits_a_phone(shop: Any, browser: Browser) -> None:
    seen = _seen(browser, _page(shop), 360)
    assert seen["width"] == 360
    assert seen["over"] <= 0
    assert seen["drawn"] >= 2
    assert seen["hidden"] > 0  # columns that a phone has no room for


def test_the_page_follows_a_dark_setting(shop: Any, browser: Browser) -> None:
    page = _page(shop)
    light = _seen(browser, page, 900)
    dark = _seen(browser, page, 900, "--blink-settings=preferredColorScheme=0")
    assert _brightness(light["paper"]) > 200 > 100 > _brightness(light["ink"])
    assert _brightness(dark["paper"]) < 50 < 180 < _brightness(dark["ink"])


def _brightness(color: str) -> float:
    channels = [int(value) for value in re.findall(r"\d+", color)[:3]]
    return sum(channels) / 3


@pytest.mark.parametrize("word", ["failed at", "KeyColumnError", "The target is as it was", "not run"])
def test_the_page_of_a_failed_run_says_what_and_that_nothing_was_lost(shop: Any, word: str) -> None:
    shop.lands("a.csv", ROWS)
    shop.lands("b.csv", {1: ("ap", 5.0)})
    assert word in Path(shop.run().html_path).read_text()
