"""Values as text, as HTML for notebooks, as pictures; importing it registers the renderers with core."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from intarsia.core import render as _hook

__all__ = ["html", "progress", "svg", "text"]


def __getattr__(name: str) -> Any:
    """A module of this package, which is loaded when it is first used: most runs show nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


def _render_text(value: Any) -> str:
    drawn: str = __getattr__("text").render(value)
    return drawn


def _render_html(value: Any) -> str:
    drawn: str = __getattr__("html").render(value)
    return drawn


_hook.register(text=_render_text, html=_render_html)
