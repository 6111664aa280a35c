"""Values as text, as HTML for notebooks, as pictures; importing it registers the renderers with core."""

from __future__ import annotations

from intarsia.core import render as _hook
from intarsia.show import html, progress, svg, text

__all__ = ["html", "progress", "svg", "text"]

_hook.register(text=text.render, html=html.render)
