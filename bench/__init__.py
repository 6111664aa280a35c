"""Measures intarsia against what one would use instead, as ratios in one run: ``python -m bench --help``."""
