"""The workloads: which target, which source, which operation, and what the result must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bench.data import DAYS, FILE_ROWS, Shape, rows_sql

FULL_ROWS = 20_000_000
SOURCE_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Workload:
    """One operation on one dataset; ``source`` is SQL, ``kind`` what the contenders look up."""

    name: str
    title: str
    kind: str
    shape: Shape
    keys: tuple[str, ...] = ("id",)
    source: str | None = None
    source_name: str = ""
    by: tuple[str, ...] = ()
    """What to order by."""
    affected: str = "hit"
    """Which files the floor decodes and encodes: those ``hit``, ``all`` or ``none``."""
    only: tuple[str, ...] | None = None
    """The contenders that take part; None means all."""

    @property
    def keys_in_files(self) -> tuple[str, ...]:
        """The keys without the partition column, which is not unique without them either."""
        return tuple(key for key in self.keys if key != "day")


def _rows(scale: float, share: float = 1.0) -> tuple[int, int]:
    """Number of files and rows per file; small scales get smaller files instead of a single one."""
    rows = int(FULL_ROWS * scale * share)
    per_file = min(FILE_ROWS, max(1000, rows // 20))
    return max(1, rows // per_file), per_file


def _plain(scale: float, share: float = 1.0) -> Shape:
    files, per_file = _rows(scale, share)
    return Shape(f"plain-{files}x{per_file}", files, per_file)


def _between(first: int, last: int, count: int, *, new: bool = False) -> str:
    """``count`` ids spread evenly, with jitter, over rows ``first`` to ``last``; odd ids are new ones."""
    count = max(1, count)
    step, odd = max(1, (last - first) // count), int(new)
    row = f"{first} + range * {step} + (hash(range, {odd}) % {step})::bigint"
    return f"select 2 * ({row}) + {odd} as n from range({count})"


def _changes(first: int, last: int, existing: int, new: int, *, rows_per_day: int | None = None) -> str:
    """New versions of existing rows and new rows, in no order."""
    ids = f"{_between(first, last, existing)} union all {_between(first, last, new, new=True)}"
    return rows_sql(f"select n from ({ids}) order by hash(n)", version=2, rows_per_day=rows_per_day)


def _clustered(name: str, shape: Shape, rows: int, *, kind: str = "upsert") -> Workload:
    first = shape.rows * 2 // 5
    source = _changes(first, first + shape.rows // 20, rows // 2, rows // 2)
    return Workload(
        name,
        "upsert, source in 5 % of the key range",
        kind,
        shape,
        source=source,
        source_name=f"clustered-{shape.name}-{rows}",
    )


def _scattered(name: str, shape: Shape, rows: int) -> Workload:
    source = _changes(0, shape.rows, rows, rows // 10)
    return Workload(
        name,
        "upsert that touches every file, 0.5 % of rows",
        "upsert",
        shape,
        source=source,
        source_name=f"scattered-{shape.name}-{rows}",
    )


def w1(scale: float) -> list[Workload]:
    return [_clustered("W1", _plain(scale), int(SOURCE_ROWS * scale))]


def w2(scale: float) -> list[Workload]:
    shape = _plain(scale)
    return [_scattered("W2", shape, shape.rows // 200)]


def w3(scale: float) -> list[Workload]:
    files = DAYS * 3
    shape = Shape(
        f"daily-{int(FULL_ROWS * scale) // files}", files, int(FULL_ROWS * scale) // files, daily=True
    )
    day = shape.file_rows * 3
    source = _changes(day * 17, day * 18, day // 40, day // 40, rows_per_day=shape.rows_per_day)
    return [
        Workload(
            "W3",
            "hive, 30 days x 3 files, upsert into one day",
            "upsert_day",
            shape,
            ("day", "id"),
            source,
            f"day-{shape.name}",
        )
    ]


def w4(scale: float) -> list[Workload]:
    w = w2(scale)[0]
    return [
        replace(
            w, name="W4", title="upsert by two string columns, every file touched", keys=("country", "code")
        )
    ]


def w5(scale: float) -> list[Workload]:
    shape = _plain(scale)
    source = _changes(0, shape.rows, shape.rows // 40, shape.rows // 40)
    return [
        Workload(
            "W5",
            "insert, half of the keys exist (5 % of rows)",
            "insert",
            shape,
            source=source,
            source_name=f"half-{shape.name}",
            affected="none",
        )
    ]


def w6(scale: float) -> list[Workload]:
    shape = _plain(scale, 0.25)
    rows = shape.rows
    kept = f"select 2 * range as n from range({rows}) where hash(range) % 50 <> 0"
    changed = f"select n from ({kept}) where hash(n, 1) % 20 = 0"
    same = f"select n from ({kept}) where hash(n, 1) % 20 <> 0"
    new = _between(0, rows, rows // 50, new=True)
    source = f"{rows_sql(same)} union all {rows_sql(f'{changed} union all {new}', version=2)}"
    return [
        Workload(
            "W6",
            "full sync: 5 % changed, 2 % gone, 2 % new",
            "sync",
            shape,
            source=source,
            source_name=f"sync-{shape.name}",
            affected="all",
        )
    ]


def w7(scale: float) -> list[Workload]:
    shape = _plain(scale)
    source = _changes(0, shape.rows, shape.rows // 5, shape.rows // 20)
    return [
        Workload(
            "W7",
            "upsert, source a quarter of the target",
            "upsert",
            shape,
            source=source,
            source_name=f"quarter-{shape.name}",
        )
    ]


def m1(scale: float) -> list[Workload]:
    rows = max(20, int(FULL_ROWS * scale) // 500)
    shape = Shape(f"small-{rows}", 500, rows)
    return [Workload("M1", "compact 500 small files to 128 MB", "compact", shape, affected="all")]


def m2(scale: float) -> list[Workload]:
    return [
        Workload(
            "M2",
            "z-order by two columns",
            "zorder",
            _plain(scale, 0.5),
            by=("customer", "ts"),
            affected="all",
        )
    ]


def m3(scale: float) -> list[Workload]:
    files, per_file = _rows(scale, 0.5)
    extra = max(1, files // 6)
    shape = Shape(f"repeated-{files - extra}x{per_file}", files - extra, per_file, repeated=extra)
    return [
        Workload(
            "M3",
            "deduplicate, newest wins, a fifth of the keys twice",
            "dedup",
            shape,
            affected="all",
            by=("ts",),
            only=("intarsia", "intarsia-duckdb", "floor", "polars", "duckdb"),
        )
    ]


def p1(scale: float) -> list[Workload]:
    shape = _many_files()
    plan = _clustered("P1", shape, 10_000, kind="plan")
    return [
        replace(plan, title="plan the upsert into 10,000 files", affected="none", only=("intarsia", "floor"))
    ]


def p2(scale: float) -> list[Workload]:
    w = _clustered("P2", _many_files(), 10_000)
    return [replace(w, title="upsert into 5 % of 10,000 files")]


def _many_files() -> Shape:
    return Shape("many-10000x200", 10_000, 200)


def mem(scale: float) -> list[Workload]:
    """The same source into a target and one twice its size: memory must not follow the target."""
    made = []
    for times in (1, 2):
        shape = _plain(scale * times)
        rows = int(SOURCE_ROWS * scale)
        made += [_clustered(f"MEM-W1-x{times}", shape, rows), _scattered(f"MEM-W2-x{times}", shape, rows)]
    return [
        replace(w, title=f"{w.title}; {w.shape.rows:,} rows", only=("intarsia", "intarsia-duckdb"))
        for w in made
    ]


WORKLOADS: dict[str, Callable[[float], list[Workload]]] = {
    "W1": w1, "W2": w2, "W3": w3, "W4": w4, "W5": w5, "W6": w6, "W7": w7,
    "M1": m1, "M2": m2, "M3": m3, "P1": p1, "P2": p2, "MEM": mem,
}  # fmt: skip


def expected_sql(workload: Workload, target: str, source: str) -> str:
    """The rows that the operation must leave, as SQL over the two sides."""
    on = ", ".join(workload.keys)
    match workload.kind:
        case "upsert" | "upsert_day":
            kept = f"select * from {target} t anti join {source} s using ({on})"
            return f"{kept} union all by name select * from {source}"
        case "insert":
            new = f"select * from {source} s anti join {target} t using ({on})"
            return f"select * from {target} union all by name ({new})"
        case "sync":
            return f"select * from {source}"
        case "dedup":
            order = ", ".join(f"{name} desc" for name in workload.by)
            return (
                f"select * from {target} qualify row_number() over (partition by {on} order by {order}) = 1"
            )
        case _:
            return f"select * from {target}"
