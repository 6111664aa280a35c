"""The workloads: which target, which source, which operation, and what the result must be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bench.data import DAYS, FILE_ROWS, STAY, Shape, rows_sql

FULL_ROWS = 20_000_000
SOURCE_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Setting:
    """What a workload is made for: its size, who wrote the files, and how much of a changed row differs."""

    scale: float
    writer: str = "pyarrow"
    every: bool = False
    """Whether every column but the key differs; else four of the ten stay."""


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


def _rows(setting: Setting, share: float = 1.0) -> tuple[int, int]:
    """Number of files and rows per file; small scales get smaller files instead of a single one."""
    rows = int(FULL_ROWS * setting.scale * share)
    per_file = min(FILE_ROWS, max(1000, rows // 20))
    return max(1, rows // per_file), per_file


def _plain(setting: Setting, share: float = 1.0) -> Shape:
    files, per_file = _rows(setting, share)
    return _shape(f"plain-{files}x{per_file}", files, per_file, setting)


def _shape(
    name: str, files: int, file_rows: int, setting: Setting, *, daily: bool = False, repeated: int = 0
) -> Shape:
    return Shape(
        f"{name}-{setting.writer}", files, file_rows, daily=daily, repeated=repeated, writer=setting.writer
    )


def _between(first: int, last: int, count: int, *, new: bool = False) -> str:
    """``count`` ids spread evenly, with jitter, over rows ``first`` to ``last``; odd ids are new ones."""
    count = max(1, count)
    step, odd = max(1, (last - first) // count), int(new)
    row = f"{first} + range * {step} + (hash(range, {odd}) % {step})::bigint"
    return f"select 2 * ({row}) + {odd} as n from range({count})"


def _changes(
    first: int,
    last: int,
    existing: int,
    new: int,
    *,
    stay: tuple[str, ...] = STAY,
    rows_per_day: int | None = None,
) -> str:
    """New versions of existing rows and new rows, in no order."""
    ids = f"{_between(first, last, existing)} union all {_between(first, last, new, new=True)}"
    return rows_sql(
        f"select n from ({ids}) order by hash(n)", version=2, stay=stay, rows_per_day=rows_per_day
    )


def _stay(setting: Setting, keys: tuple[str, ...] = ("id",)) -> tuple[str, ...]:
    return keys if setting.every else STAY


def _source_name(name: str, shape: Shape, setting: Setting) -> str:
    return f"{name}-{shape.name}{'-every' if setting.every else ''}"


def _clustered(name: str, shape: Shape, rows: int, setting: Setting, *, kind: str = "upsert") -> Workload:
    first = shape.rows * 2 // 5
    source = _changes(first, first + shape.rows // 20, rows // 2, rows // 2, stay=_stay(setting))
    return Workload(
        name,
        "upsert, source in 5 % of the key range",
        kind,
        shape,
        source=source,
        source_name=_source_name(f"clustered-{rows}", shape, setting),
    )


def _scattered(
    name: str, shape: Shape, rows: int, setting: Setting, *, keys: tuple[str, ...] = ("id",)
) -> Workload:
    source = _changes(0, shape.rows, rows, rows // 10, stay=_stay(setting, keys))
    return Workload(
        name,
        "upsert that touches every file, 0.5 % of rows",
        "upsert",
        shape,
        keys,
        source=source,
        source_name=_source_name(f"scattered-{rows}-by-{'-'.join(keys)}", shape, setting),
    )


def w1(setting: Setting) -> list[Workload]:
    return [_clustered("W1", _plain(setting), int(SOURCE_ROWS * setting.scale), setting)]


def w2(setting: Setting) -> list[Workload]:
    shape = _plain(setting)
    return [_scattered("W2", shape, shape.rows // 200, setting)]


def w3(setting: Setting) -> list[Workload]:
    files = DAYS * 3
    rows = int(FULL_ROWS * setting.scale) // files
    shape = _shape(f"daily-{rows}", files, rows, setting, daily=True)
    day = shape.file_rows * 3
    source = _changes(
        day * 17, day * 18, day // 40, day // 40, stay=_stay(setting), rows_per_day=shape.rows_per_day
    )
    return [
        Workload(
            "W3",
            "hive, 30 days x 3 files, upsert into one day, fixed costs included",
            "upsert_day",
            shape,
            ("day", "id"),
            source,
            _source_name("day", shape, setting),
        )
    ]


def w4(setting: Setting) -> list[Workload]:
    shape = _plain(setting)
    w = _scattered("W4", shape, shape.rows // 200, setting, keys=("country", "code"))
    return [replace(w, title="upsert by two string columns, every file touched")]


def w5(setting: Setting) -> list[Workload]:
    shape = _plain(setting)
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


def w6(setting: Setting) -> list[Workload]:
    shape = _plain(setting, 0.25)
    rows = shape.rows
    kept = f"select 2 * range as n from range({rows}) where hash(range) % 50 <> 0"
    changed = f"select n from ({kept}) where hash(n, 1) % 20 = 0"
    same = f"select n from ({kept}) where hash(n, 1) % 20 <> 0"
    new = _between(0, rows, rows // 50, new=True)
    later = rows_sql(f"{changed} union all {new}", version=2, stay=_stay(setting))
    return [
        Workload(
            "W6",
            "full sync: 5 % changed, 2 % gone, 2 % new",
            "sync",
            shape,
            source=f"{rows_sql(same)} union all {later}",
            source_name=_source_name("sync", shape, setting),
            affected="all",
        )
    ]


def w7(setting: Setting) -> list[Workload]:
    shape = _plain(setting)
    source = _changes(0, shape.rows, shape.rows // 5, shape.rows // 20, stay=_stay(setting))
    return [
        Workload(
            "W7",
            "upsert, source a quarter of the target",
            "upsert",
            shape,
            source=source,
            source_name=_source_name("quarter", shape, setting),
        )
    ]


def m1(setting: Setting) -> list[Workload]:
    rows = max(20, int(FULL_ROWS * setting.scale) // 500)
    shape = _shape(f"small-{rows}", 500, rows, setting)
    return [Workload("M1", "compact 500 small files to 128 MB", "compact", shape, affected="all")]


def m2(setting: Setting) -> list[Workload]:
    return [
        Workload(
            "M2",
            "z-order by two columns",
            "zorder",
            _plain(setting, 0.5),
            by=("customer", "ts"),
            affected="all",
        )
    ]


def m3(setting: Setting) -> list[Workload]:
    files, per_file = _rows(setting, 0.5)
    extra = max(1, files // 6)
    name = f"repeated-{files - extra}x{per_file}"
    shape = _shape(name, files - extra, per_file, setting, repeated=extra)
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


def m4(setting: Setting) -> list[Workload]:
    title = "compact files with large row groups to 128 MB"
    return [Workload("M4", title, "compact", _plain(setting), affected="all")]


def p1(setting: Setting) -> list[Workload]:
    plan = _clustered("P1", _many_files(setting), 10_000, setting, kind="plan")
    return [
        replace(plan, title="plan the upsert into 10,000 files", affected="none", only=("intarsia", "floor"))
    ]


def p2(setting: Setting) -> list[Workload]:
    w = _clustered("P2", _many_files(setting), 10_000, setting)
    return [replace(w, title="upsert into 5 % of 10,000 files")]


def _many_files(setting: Setting) -> Shape:
    return _shape("many-10000x200", 10_000, 200, setting)


def mem(setting: Setting) -> list[Workload]:
    """The same source into a target and one twice its size: memory must not follow the target."""
    made = []
    for times in (1, 2):
        shape = _plain(replace(setting, scale=setting.scale * times))
        rows = int(SOURCE_ROWS * setting.scale)
        made += [
            _clustered(f"MEM-W1-x{times}", shape, rows, setting),
            _scattered(f"MEM-W2-x{times}", shape, rows, setting),
        ]
    return [
        replace(w, title=f"{w.title}; {w.shape.rows:,} rows", only=("intarsia", "intarsia-duckdb"))
        for w in made
    ]


WORKLOADS: dict[str, Callable[[Setting], list[Workload]]] = {
    "W1": w1, "W2": w2, "W3": w3, "W4": w4, "W5": w5, "W6": w6, "W7": w7,
    "M1": m1, "M2": m2, "M3": m3, "M4": m4, "P1": p1, "P2": p2, "MEM": mem,
}  # fmt: skip


CHANGING = ("W1", "W2", "W3", "W4", "W6", "W7")
"""The workloads with changed rows, of which there are two kinds."""


def make_workloads(
    names: Sequence[str], scale: float, *, writers: Sequence[str], kinds: Sequence[str]
) -> list[Workload]:
    """Every workload for every writer of its files and, where rows change, for every kind of changed row."""
    made = []
    for name in names:
        for writer in writers:
            for every in [kind == "every" for kind in (kinds if name in CHANGING else kinds[:1])]:
                setting = Setting(scale, writer, every=every and name in CHANGING)
                mark = ("*" if setting.every else "") + ("" if writer == "pyarrow" else f" {writer}")
                made += [replace(w, name=w.name + mark) for w in WORKLOADS[name](setting)]
    return made


class Operation(Protocol):
    """What the right result of an operation depends on."""

    @property
    def kind(self) -> str: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def by(self) -> tuple[str, ...]: ...


def expected_sql(workload: Operation, target: str, source: str) -> str:
    """The rows that the operation must leave, as SQL over the two sides."""
    on = ", ".join(workload.keys)
    match workload.kind:
        case "upsert" | "upsert_day":
            kept = f"select * from {target} t anti join {source} s using ({on})"
            return f"{kept} union all by name select * from {source}"
        case "insert":
            new = f"select * from {source} s anti join {target} t using ({on})"
            return f"select * from {target} union all by name ({new})"
        case "append":
            return f"select * from {target} union all by name select * from {source}"
        case "delete":
            return f"select * from {target} t anti join {source} s using ({on})"
        case "sync":
            return f"select * from {source}"
        case "dedup":
            order = ", ".join(f"{name} desc" for name in workload.by)
            return (
                f"select * from {target} qualify row_number() over (partition by {on} order by {order}) = 1"
            )
        case _:
            return f"select * from {target}"
