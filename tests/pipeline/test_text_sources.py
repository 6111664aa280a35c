"""What files of text mean in a pipeline: the same on every engine, and no value is changed on the way."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import intarsia as it
from intarsia import pipeline
from intarsia.errors import InputError

ENGINES = ["arrow", "duckdb", "spark"]
TARGET = pa.table(
    {
        "id": [1],
        "n": pa.array([1], pa.int32()),
        "d": pa.array([Decimal("1.00")], pa.decimal128(24, 2)),
        "day": [date(2025, 1, 1)],
        "at": pa.array([datetime(2025, 1, 1)], pa.timestamp("ms")),
    }
)
TYPES = {"id": "bigint", "n": "int", "d": "decimal(24, 2)", "day": "date", "at": "timestamp_ms"}


def _run(
    root: Path, engine: str, request: pytest.FixtureRequest, files: Mapping[str, str], **source: Any
) -> list[dict[str, Any]]:
    """The rows that these files give to a target, or what was raised."""
    missing = "keep" if (root / "t").exists() else "error"
    (root / "in").mkdir()
    for name, text in files.items():
        (root / "in" / name).write_bytes(text.encode())
    declared = pipeline.Pipeline(
        name="text",
        engine=engine,  # type: ignore[arg-type]
        sources={"in": pipeline.Source(str(root / "in"), **source)},
        targets={"t": pipeline.Target(str(root / "t"))},
        steps=(pipeline.Merge(source="in", target="t", on="id", missing=missing),),
        reports=str(root / "reports"),
    )
    session = request.getfixturevalue("spark") if engine == "spark" else None
    pipeline.run(declared, session=session, progress=False).check()
    return sorted(it.read(root / "t").read_all().to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("engine", ENGINES)
def test_quotes_and_line_breaks_of_csv_are_those_of_everybody(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    text = 'id,text\n1,"a\n2,c"\n3,"say ""hi"", ok"\n4,"C:\\dir\\"\n5,""\n6,\n7, x \n'
    got = _run(tmp_path, engine, request, {"a.csv": text})
    assert [row["text"] for row in got] == ["a\n2,c", 'say "hi", ok', "C:\\dir\\", "", None, " x "]
    assert it.snapshot(tmp_path / "t").schema.field("id").type == pa.int64()


@pytest.mark.parametrize("engine", ENGINES)
def test_files_of_lines_beside_files_with_an_array_are_read_whole(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    lines = "".join(f'{{"id": {number}, "s": "x"}}\n' for number in range(3, 7))
    array = '[\n{"id": 1, "s": "a"},\n{"id": 2, "s": "b", "more": 1}]'
    got = _run(
        tmp_path, engine, request, {"a.json": array, "b.json": lines, "c.json": '{"id": 7, "s": "z"}\n'}
    )
    assert [row["id"] for row in got] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("declared", [False, True], ids=["of the target", "declared"])
@pytest.mark.parametrize("engine", ENGINES)
def test_numbers_keep_their_digits_and_integers_may_have_a_point(
    engine: str, declared: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    it.write(TARGET, tmp_path / "t", engine="arrow")
    files = {"a.json": '[{"id": 9007199254740993.0, "d": 12345678901234567.89, "n": 2.0}]'}
    got = _run(tmp_path, engine, request, files, columns=TYPES if declared else {})
    assert (got[1]["id"], got[1]["d"], got[1]["n"]) == (9007199254740993, Decimal("12345678901234567.89"), 2)


@pytest.mark.parametrize("declared", [False, True], ids=["of the target", "declared"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("column", "value"),
    [("n", "1.7"), ("d", "1.005"), ("day", "2025-01-01 10:30:00"), ("at", "2025-01-01 00:00:00.0005")],
)
def test_a_value_that_would_be_rounded_or_cut_ends_the_step(
    column: str, value: str, engine: str, declared: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    it.write(TARGET, tmp_path / "t", engine="arrow")
    row = {"id": "2", "n": "1", "d": "1.00", "day": "2025-01-01", "at": "2025-01-01 00:00:00"} | {
        column: value
    }
    with pytest.raises(InputError, match=repr(column)):
        _run(
            tmp_path,
            engine,
            request,
            {"a.csv": ",".join(row) + "\n" + ",".join(row.values()) + "\n"},
            columns=TYPES if declared else {},
        )
    assert it.read(tmp_path / "t").read_all().equals(TARGET)


@pytest.mark.parametrize("engine", ENGINES)
def test_units_and_unsigned_integers_of_a_target_are_no_hindrance(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    start = pa.table({"id": [1], "at": pa.array([0], pa.timestamp("ms")), "u": pa.array([1], pa.uint64())})
    it.write(start, tmp_path / "t", engine="arrow")
    text = "id,at,u\n2,2025-01-01 10:00:00.5,18446744073709551615\n"
    got = _run(tmp_path, engine, request, {"a.csv": text})
    assert got[1] == {"id": 2, "at": datetime(2025, 1, 1, 10, 0, 0, 500000), "u": 18446744073709551615}
