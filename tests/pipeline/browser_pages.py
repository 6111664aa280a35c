"""Measures pages in a real browser: what overflows, what overlaps, where a click leads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

Browser = Callable[..., str]
DARK = "--blink-settings=preferredColorScheme=0"

MEASURE = """<script>addEventListener('load', () => {
  const root = document.documentElement, style = getComputedStyle(document.body);
  const box = element => element.getBoundingClientRect();
  const drawn = [...document.querySelectorAll('svg text')];
  const texts = drawn.filter(text => text.textContent && box(text).width);
  const name = text => text.textContent;
  const meets = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
  const overlaps = [], outside = [];
  texts.forEach((one, at) => {
    const mine = box(one), picture = box(one.closest('svg'));
    if (mine.left < picture.left - 1 || mine.right > picture.right + 1 || mine.top < picture.top - 1
      || mine.bottom > picture.bottom + 1) outside.push(name(one));
    texts.slice(at + 1).forEach(other => {
      if (meets(mine, box(other))) overlaps.push([name(one), name(other)]);
    });
    const cards = [...document.querySelectorAll('svg .card')].filter(card => meets(mine, box(card)));
    cards.forEach(card => {
      if (mine.left < box(card).left + 2 || mine.right > box(card).right - 2) outside.push(name(one));
    });
  });
  const links = [...document.querySelectorAll('a')].map(link => link.getAttribute('href'));
  const told = {
    width: root.clientWidth, over: root.scrollWidth - root.clientWidth,
    texts: texts.length, overlaps, outside, links,
    lost: links.filter(href => href.startsWith('#') && !document.getElementById(href.slice(1))),
    cut: [...document.querySelectorAll('td, th, h1, h2, .card, .mark')].filter(
      cell => cell.tagName !== 'rect' && cell.offsetParent && cell.scrollWidth > cell.clientWidth + 1
    ).map(cell => cell.textContent),
    ink: style.color, paper: style.backgroundColor,
  };
  const link = document.querySelector('CLICK');
  if (link) {
    const step = document.querySelector(link.getAttribute('href'));
    told.was_open = step.closest('details').open;
    link.dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true, view: window}));
    setTimeout(() => {
      told.is_open = step.closest('details').open;
      told.hash = location.hash;
      parent.postMessage(JSON.stringify(told), '*');
    }, 300);
  } else parent.postMessage(JSON.stringify(told), '*');
});</script>"""
# A frame is as narrow as it is told to be; a window is not.
FRAMES = """<!doctype html><body><script>const seen = [];
onmessage = told => {seen.push(told.data); document.body.dataset.seen = '[' + seen + ']'}</script>"""
FRAME = '<iframe width="WIDTH" height="20000" style="border:0" src="measured.html"></iframe>'


def measure_page(
    browser: Browser, page: Path, *flags: str, widths: tuple[int, ...] = (1400, 390), click: str = "nothing"
) -> list[dict[str, Any]]:
    """What a page measures at each width; the script that measures is put into a copy of it."""
    script = MEASURE.replace("CLICK", click)
    page.with_name("measured.html").write_text(page.read_text().replace("</body>", f"{script}</body>"))
    frames = page.with_name("frames.html")
    frames.write_text(FRAMES + "".join(FRAME.replace("WIDTH", str(width)) for width in widths) + "</body>")
    dom = browser(frames, "--dump-dom", "--virtual-time-budget=5000", "--window-size=1500,900", *flags)
    found = re.search(r'data-seen="([^"]*)"', dom)
    assert found is not None, dom[:500]
    measured: list[dict[str, Any]] = json.loads(unescape(found[1]))
    assert sorted(seen["width"] for seen in measured) == sorted(widths)
    return sorted(measured, key=lambda seen: widths.index(seen["width"]))


def measure_brightness(color: str) -> float:
    channels = [int(value) for value in re.findall(r"\d+", color)[:3]]
    return sum(channels) / 3
