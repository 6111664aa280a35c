"""The tables of docs/engines.md, made of what the engines say of themselves; --write puts them there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from intarsia.core.abilities import KEPT, Abilities
from intarsia.engines.arrow.abilities import ABILITIES as ARROW
from intarsia.engines.duckdb.abilities import ABILITIES as DUCKDB
from intarsia.engines.spark.abilities import ABILITIES as SPARK

PAGE = Path(__file__).parents[1] / "docs" / "engines.md"
ENGINES = (ARROW, DUCKDB, SPARK)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def overview(engines: Sequence[Abilities] = ENGINES) -> str:
    """What each engine is."""
    rows = [
        ["`engine=`", *(" or ".join(_named(each)) for each in engines)],
        ["install", *(each.install for each in engines)],
        ["runs", *(each.runs for each in engines)],
        ["works on", *(each.unit for each in engines)],
        ["the source is", *(each.source for each in engines)],
        ["memory", *(each.memory for each in engines)],
        ["work larger than memory", *(each.beyond_memory for each in engines)],
        ["operations", *("all" if _all(each) else ", ".join(each.operations) for each in engines)],
        ["options", *(", ".join(f"`{name}`" for name in each.options) for each in engines)],
        ["IO", *(f"`{each.door}`" for each in engines)],
    ]
    return _table(["", *(each.title for each in engines)], rows)


def _named(engine: Abilities) -> list[str]:
    return [f"`{name}`" if name.startswith('"') else name for name in engine.named]


def _all(engine: Abilities) -> bool:
    return engine.operations == Abilities.__dataclass_fields__["operations"].default


def kept(engines: Sequence[Abilities] = ENGINES) -> str:
    """What a file keeps that is rewritten."""
    rows = [[what, *("no" if what in each.unkept else "yes" for each in engines)] for what in KEPT]
    return _table(["a rewrite keeps", *(each.title for each in engines)], rows)


def elsewhere(engines: Sequence[Abilities] = ENGINES) -> str:
    """The types that an engine leaves to the Arrow kernel."""
    lines = [f"- {each.title}: {', '.join(each.elsewhere)}" for each in engines if each.elsewhere]
    return "\n".join(lines)


TABLES = {"overview": overview, "kept": kept, "elsewhere": elsewhere}


def filled(page: str) -> str:
    """The page with its tables made anew."""
    for name, make in TABLES.items():
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        page = f"{before}{begin}{make()}\n{end}{after}"
    return page


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print("\n\n".join(make() for make in TABLES.values()))
