"""Lineage of runs as OpenLineage has it."""
