"""The in-process PyArrow engine."""

from intarsia.engines.arrow.engine import ArrowEngine

__all__ = ["ArrowEngine"]
