"""A read-only page to look at a lake, served on this machine alone."""

from __future__ import annotations

from intarsia.ui.server import serve

__all__ = ["serve"]
