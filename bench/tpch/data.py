"""TPC-H's orders and lineitem as dbgen makes them, and the rows that refresh functions and merges bring.

The generator is tpchgen-cli, a port of dbgen that gives the same rows. It has no update sets (``dbgen -U``),
so the rows of RF1 are those that dbgen has right behind the table, at a scale that is a thousandth larger,
under the keys that an update set has.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import astuple, dataclass
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from bench.check import Digest, data_files, digest_rows, scan
from bench.data import make_once, run_query, write_file
from bench.workloads import expected_sql

KEYS = {"orders": ("o_orderkey",), "lineitem": ("l_orderkey", "l_linenumber")}
VALUES = {
    "orders": (
        "o_orderkey::bigint", "o_custkey::bigint", "o_orderstatus::varchar", "o_totalprice::decimal(15, 2)",
        "o_orderdate::date", "o_orderpriority::varchar", "o_clerk::varchar", "o_shippriority::int",
        "o_comment::varchar",
    ),
    "lineitem": (
        "l_orderkey::bigint", "l_partkey::bigint", "l_suppkey::bigint", "l_linenumber::int",
        "l_quantity::decimal(15, 2)", "l_extendedprice::decimal(15, 2)", "l_discount::decimal(15, 2)",
        "l_tax::decimal(15, 2)", "l_returnflag::varchar", "l_linestatus::varchar", "l_shipdate::date",
        "l_commitdate::date", "l_receiptdate::date", "l_shipinstruct::varchar", "l_shipmode::varchar",
        "l_comment::varchar",
    ),
}  # fmt: skip
"""The columns, in types that do not depend on who wrote them."""
ORDERS = 1_500_000
REFRESHED = 1500
"""Orders of the table, and of a refresh, at scale 1."""
WRITERS = ("pyarrow", "dbgen")
"""Who wrote the files, with its defaults; the generator (parquet-rs) has strings as views in the Arrow
schema, for which PyArrow lacks kernels that PyIceberg needs to apply deletes."""
FILE_BYTES = 128 << 20
_BYTES = {"orders": 61_000_000, "lineitem": 206_000_000}
"""Of the files at scale 1."""
_LEAST_FILES = {"orders": 2, "lineitem": 8}
"""So that small scales have files to leave alone as well."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on one of the tables."""

    table: str
    kind: str
    keys: tuple[str, ...]
    source: str
    """The rows that come, or the keys that go, as SQL over ``{table}`` and ``{new}``."""
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """Steps that are measured together."""

    name: str
    title: str
    steps: tuple[Step, ...]
    reads: bool = False
    """Whether the table is read before and afterwards, which is measured, too."""


def make_workloads(scale: float) -> dict[str, Workload]:
    """All of them, by name."""
    made = [
        _refresh("RF1", "insert new orders and their lineitems, keys as dbgen's update set", "insert", scale),
        _refresh("RF1-append", "the same without a look at keys", "append", scale),
        _refresh("RF2", "delete as many orders and their lineitems, keys as dbgen's", "delete", scale),
        _refresh("RF1-spread", "insert, keys spread over all of the table", "insert", scale, spread=True),
        _refresh("RF2-spread", "delete, keys spread over all of the table", "delete", scale, spread=True),
    ]
    made += [_merge_share(f"LH-{share}", share, scale) for share in ("0.0001", "0.001", "0.01", "0.1")]
    return {one.name: one for one in made}


def order_key(position: str, block: int = 0) -> str:
    """SQL for the key of an order by its number: eight keys in use, then room for three blocks of eight."""
    return f"((({position}) >> 3 << 5) | {block << 3} | (({position}) & 7))"


def _number(key: str) -> str:
    """SQL for the number of an order by its key."""
    return f"(({key} >> 5 << 3) | ({key} & 7))"


def _refresh(name: str, title: str, kind: str, scale: float, *, spread: bool = False) -> Workload:
    """New orders have keys of the second block, the deleted ones are those that dbgen made first."""
    steps = []
    for table, (key, *_) in KEYS.items():
        count, each = max(1, round(REFRESHED * scale)), (ORDERS // REFRESHED if spread else 1)
        if kind == "delete":
            position = f"range * {each}" + (f" - {each // 2}" if spread else "")
            source = f"select {order_key(position)}::bigint as {key} from range(1, {count + 1})"
            steps.append(Step(table, kind, (key,), source))
            continue
        number = f"({_number(key)} - {round(ORDERS * scale)})"
        new_key = f"{order_key(f'{number} * {each}', block=1)}::bigint as {key}"
        source = f"select * replace ({new_key}) from {{new}} where {number} between 1 and {count}"
        steps.append(Step(table, kind, KEYS[table], source))
    return Workload(name, title, tuple(steps))


def _merge_share(name: str, share: str, scale: float) -> Workload:
    """Rows picked from all of lineitem, with values of others; half of them under keys beyond the last."""
    per_million = float(share) / 2 * 1_000_000

    def picked(salt: int, key: str) -> str:
        chosen = f"hash(l_orderkey, l_linenumber, {salt}) % 1000000 < {per_million:.0f}"
        return f"select {key} as l_orderkey, l_linenumber from {{table}} where {chosen}"

    beyond = f"l_orderkey + {ORDERS * 4 * max(1, math.ceil(scale))}"
    keys = f"{picked(1, 'l_orderkey')} union all {picked(2, beyond)}"
    chosen = f"hash(l_orderkey, l_linenumber, 3) % 1000000 < {per_million * 2.2 + 20:.0f}"
    values = f"select * exclude (l_orderkey, l_linenumber) from {{table}} where {chosen}"
    columns = ", ".join(value.split("::")[0] for value in VALUES["lineitem"])
    source = (
        f"select {columns}"
        f" from (select *, row_number() over (order by hash(l_orderkey, l_linenumber)) as n from ({keys})) k"
        f" join (select *, row_number() over (order by hash(l_partkey, l_comment)) as n from ({values})) v"
        " using (n)"
    )
    title = f"upsert of {share} of lineitem: half updates of rows anywhere, half new rows"
    return Workload(name, title, (Step("lineitem", "upsert", KEYS["lineitem"], source),), reads=True)


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one scale in a directory, made once and kept."""

    directory: Path
    scale: float
    writer: str = "pyarrow"
    """One of ``WRITERS``."""

    @property
    def root(self) -> Path:
        return self.directory / f"tpch-{self.scale:g}-{self.writer}"

    def make(self) -> Tables:
        make_once(self.root, self._generate)
        return self

    def path(self, table: str) -> Path:
        return self.root / table

    def count_rows(self, table: str) -> int:
        return sum(pq.read_metadata(path).num_rows for path in data_files(self.path(table)))

    def source(self, workload: Workload, step: Step) -> Path:
        """The step's rows as one Parquet file."""

        def write(path: Path) -> None:
            names = {name: scan(data_files(self.root / below), daily=False) for name, below in places.items()}
            path.mkdir()
            rows = step.source.format(**names)
            duckdb.execute(f"copy ({rows}) to '{path}/source.parquet' (format parquet, compression snappy)")

        places = {"table": step.table, "new": f"new/{step.table}"}
        return make_once(self._beside(workload, step, "source"), write) / "source.parquet"

    def expected(self, workload: Workload, step: Step) -> Digest:
        """What must be in the table afterwards."""

        def work_out(path: Path) -> None:
            path.mkdir()
            old = scan(data_files(self.path(step.table)), daily=False)
            rows = expected_sql(step, old, f"read_parquet('{self.source(workload, step)}')")
            found = digest_rows(rows, step.keys[0], VALUES[step.table])
            (path / "digest.json").write_text(json.dumps(astuple(found)))

        kept = make_once(self._beside(workload, step, "expected"), work_out) / "digest.json"
        return Digest(*json.loads(kept.read_text()))

    def _beside(self, workload: Workload, step: Step, what: str) -> Path:
        return self.directory / f"{self.root.name}-{workload.name}-{step.table}-{what}"

    def _generate(self, path: Path) -> None:
        for table, size in _BYTES.items():
            files = max(_LEAST_FILES[table], round(size * self.scale / FILE_BYTES))
            _run_dbgen(path, table, self.scale, files)
            for file in data_files(path / table) if self.writer != "dbgen" else ():
                write_file(run_query(f"select * from read_parquet('{file}')"), file, self.writer)
            _run_dbgen(path / "new", table, self.scale * 1.001, 1001, only=1001)


def _run_dbgen(directory: Path, table: str, scale: float, parts: int, *, only: int | None = None) -> None:
    """The files of a table as the generator writes them: snappy, row groups of 7 MB before compression."""
    beside = Path(sys.executable).parent
    program = shutil.which("tpchgen-cli", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if program is None:
        raise SystemExit("tpchgen-cli makes the data and is not installed: see requirements/bench.in")
    command = [program, "parquet", "-s", f"{scale:.6f}", "-T", table, "-p", str(parts), "-o", str(directory)]
    if only is not None:
        command += ["--part", str(only)]
    subprocess.run([*command, "--field-ids", "false", "--quiet"], check=True)
