"""What partitions and bounds prove of a predicate; a statistic never decides that a row goes."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from intarsia.core.expr import resolve
from intarsia.core.file_table import FileTuple
from intarsia.core.prove import judge_files
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.sql.parse import parse_predicate


def _file(name: str, table: pa.Table, rows: int = 2, **partition) -> DataFile:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=rows)
    footer = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    return DataFile(name, name, 1, table.num_rows, partition, footer=footer)


def _judge(where, *files: DataFile, partition=None):
    schema = pa.schema([("n", pa.int64()), ("f", pa.float64()), ("s", pa.string())])
    if partition is not None:
        schema = schema.append(partition)
    columns = () if partition is None else (partition.name,)
    snapshot = Snapshot("", FileTuple(files), schema, columns, pafs.LocalFileSystem())
    if isinstance(where, str):
        where = resolve(parse_predicate(where), schema, expect=pa.bool_())
    return judge_files(where, snapshot)


NUMBERS = _file(
    "n",
    pa.table({
        "n": [1, 2, 10, 20, None, None],
        "f": [0.5, math.nan, 1.0, 2.0, 3.0, None],
        "s": ["a", "b", "c", "d" * 40, "e", "f"],
    }),
)  # fmt: skip


@pytest.mark.parametrize(
    ("where", "groups"),
    [
        ("n > 5", (1,)),
        ("n = 2", (0,)),
        ("n < 0", ()),
        ("n is null", (2,)),
        ("n is not null", (0, 1)),
        ("n > 5 or s = 'a'", (0, 1)),
        ("n > 5 and s = 'a'", ()),
        ("n <> 1", (0, 1)),
        ("not (n > 5)", (0,)),
        ("n in (3, 15)", (1,)),
        ("f > 100", (0, 1, 2)),  # any row group of floats may hold NaN, which is greater
        ("f < 0.4", ()),
        ("s > 'zzz'", (1,)),  # its upper bound is too long to be trusted
        ("true", (0, 1, 2)),
        ("false", ()),
        ("null", ()),
    ],
)
def test_row_groups_in_which_the_predicate_cannot_be_true_are_left_out(where, groups):
    (found,) = _judge(where, NUMBERS)
    assert found.row_groups == groups
    assert found.never == (not groups)


def test_bounds_never_prove_that_a_row_goes():
    (found,) = _judge("n >= 1", _file("a", pa.table({"n": [1, 2], "f": [1.0, 2.0], "s": ["a", "b"]})))
    assert not found.always


@pytest.mark.parametrize(
    ("where", "never", "always"),
    [
        ("p = 'eu'", [False, True, True], [True, False, False]),
        ("p <> 'eu'", [True, False, True], [False, True, False]),
        ("p is null", [True, True, False], [False, False, True]),
        ("p = 'eu' and n = 1", [False, True, True], [False, False, False]),
        ("p = 'eu' or n = 1", [False, False, False], [True, False, False]),
        ("upper(p) = 'EU'", [False] * 3, [False] * 3),  # a function of it has to be looked at
    ],
)
def test_partition_values_decide_where_they_can(where, never, always):
    table = pa.table({"n": [1], "f": [1.0], "s": ["a"]})
    files = [_file(str(p), table, p=p) for p in ("eu", "us", None)]
    found = _judge(where, *files, partition=pa.field("p", pa.string()))
    assert [one.never for one in found] == never
    assert [one.always for one in found] == always


def test_an_unknown_partition_value_decides_nothing():
    file = _file("x", pa.table({"n": [1], "f": [1.0], "s": ["a"]}))
    (found,) = _judge("p = 'eu'", file, partition=pa.field("p", pa.string()))
    assert not found.never
    assert not found.always


def test_a_pyarrow_expression_or_no_predicate_decides_nothing():
    for where in (pc.field("n") > 100, None):
        (found,) = _judge(where, NUMBERS)
        assert (found.row_groups, found.never, found.always) == ((0, 1, 2), False, False)


def test_no_files_have_no_verdicts_whatever_the_names():
    nowhere = Snapshot("", FileTuple(), pa.schema([]), (), pafs.LocalFileSystem())
    assert judge_files(parse_predicate("id = 1"), nowhere) == []


def test_files_of_several_row_groups_are_told_apart():
    other = _file("o", pa.table({"n": [100], "f": [1.0], "s": ["a"]}))
    blind = DataFile("b", "b", 1, 5)
    found = _judge("n > 5", NUMBERS, blind, other)
    assert [one.row_groups for one in found] == [(1,), (0,), (0,)]
