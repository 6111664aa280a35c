"""Errors in terms of the call they come from: one name for a table, and hints that its options can follow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from intarsia.core.intent import Intent, Merge, Write
from intarsia.core.ports import Table
from intarsia.errors import IntarsiaError

__all__ = ["in_terms_of"]

_EVOLUTION = re.compile(r'schema_evolution="\w+"')
_OR_EVOLVE = re.compile(r',? or \w+ (?:it|them|the column) with schema_evolution="\w+"')


@contextmanager
def in_terms_of(table: Table, intent: Intent) -> Iterator[None]:
    """Let errors leave that name the table as the catalog does, and no option that it would refuse."""
    try:
        yield
    except IntarsiaError as error:
        location = getattr(table, "location", None)
        if location is not None and (error.path or "").rstrip("/") == location.rstrip("/"):
            error.path = str(getattr(table, "root", error.path))
        if error.hint:
            error.hint = _followable(error.hint, intent, owns_schema=location is not None)
        raise


def _followable(hint: str, intent: Intent, *, owns_schema: bool) -> str:
    if not isinstance(intent, (Merge, Write)):
        return _OR_EVOLVE.sub("", hint)
    return _EVOLUTION.sub("the table's own update_schema()", hint) if owns_schema else hint
