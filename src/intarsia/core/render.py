"""The hook by which values show themselves; ``intarsia.show`` fills it, the core knows no pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_renderers: dict[str, Callable[[Any], str]] = {}


def register(*, text: Callable[[Any], str], html: Callable[[Any], str]) -> None:
    """Name the functions that draw a value for a terminal and for a notebook."""
    _renderers.update(text=text, html=html)


def render_text(value: Any) -> str:
    return _renderers["text"](value) if "text" in _renderers else object.__repr__(value)


def render_html(value: Any) -> str:
    return _renderers["html"](value) if "html" in _renderers else f"<pre>{object.__repr__(value)}</pre>"
