"""How columns that do not fit are found by name and said in one error; decides about no types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from intarsia.errors import SchemaMismatch

__all__ = ["CAST_IT", "mismatch", "name_problems"]

CAST_IT = "cast the column of the source to the target's type"


def name_problems(schemas: Sequence[pa.Schema]) -> list[str]:
    """Names that are there twice in one schema, or that two schemas spell in different case."""
    spellings: dict[str, set[tuple[str, ...]]] = {}
    problems: dict[str, None] = {}
    for schema in schemas:
        counts = Counter(schema.names)
        problems |= {f"{name!r} is there {n} times": None for name, n in counts.items() if n > 1}
        folded: dict[str, list[str]] = {}
        for name in sorted(counts):
            folded.setdefault(name.casefold(), []).append(name)
        for key, names in folded.items():
            spellings.setdefault(key, set()).add(tuple(names))
    for variants in spellings.values():
        if len(variants) > 1:
            names = sorted({name for variant in variants for name in variant})
            problems[" and ".join(map(repr, names)) + " differ only by case, which is ambiguous"] = None
    return list(problems)


def mismatch(problems: Sequence[str], operation: str, path: str | None, hint: str) -> SchemaMismatch:
    """One error, to be raised, that lists all problems."""
    where = f" at {path}" if path else ""
    columns = "1 column does" if len(problems) == 1 else f"{len(problems)} columns do"
    message = f"{operation}: {columns} not fit{where}: {'; '.join(problems)}."
    return SchemaMismatch(message, path=path, hint=hint)
