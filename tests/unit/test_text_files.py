"""CSV and JSON as people write them: quoted line breaks, arrays, numbers with many digits, long fields."""

from __future__ import annotations

import csv
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import intarsia as it
from intarsia.errors import DamagedTable, SchemaMismatch


def _merged(path: Path, target: Path, start: pa.Table) -> list[dict[str, object]]:
    """The rows that a file adds to a dataset of this schema, in the order of their ids."""
    it.write(start, target, engine="arrow")
    it.merge(path, target, on="id", engine="arrow")
    return it.read(target, where="id > 1").read_all().sort_by("id").to_pylist()


def test_line_breaks_in_quoted_fields_are_text_wherever_a_block_ends(tmp_path: Path) -> None:
    rows = [(number, f"{number},x\n" * 1000) for number in range(2, 2000)]  # more than one block
    with open(tmp_path / "a.csv", "w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *rows])
    got = _merged(tmp_path / "a.csv", tmp_path / "t", pa.table({"id": [1], "text": ["a"]}))
    assert [(row["id"], row["text"]) for row in got] == rows


@pytest.mark.parametrize("name", ["a.csv", "a.ndjson"])
def test_integers_with_a_point_keep_every_digit(name: str, tmp_path: Path) -> None:
    large = "9007199254740993.0"
    text = f"id,n\n{large},2e3\n" if name == "a.csv" else f'{{"id": {large}, "n": 2e3}}\n'
    (tmp_path / name).write_text(text)
    got = _merged(tmp_path / name, tmp_path / "t", pa.table({"id": [1], "n": [1]}))
    assert got == [{"id": 9007199254740993, "n": 2000}]


def test_numbers_in_a_json_array_keep_every_digit(tmp_path: Path) -> None:
    first = '{"id": 2, "d": 12345678901234567.89,\r\n "s": "\\u2028\u2028 \\n"}'
    rows = f'[\n {first},{{"id": 3, "d": 1, "s": null}} ]\n'
    (tmp_path / "a.json").write_text(rows, encoding="utf-8")
    amounts = pa.array([Decimal("1.00")], pa.decimal128(24, 2))
    got = _merged(tmp_path / "a.json", tmp_path / "t", pa.table({"id": [1], "d": amounts, "s": ["x"]}))
    assert [(row["d"], row["s"]) for row in got] == [
        (Decimal("12345678901234567.89"), "\u2028\u2028 \n"),
        (Decimal("1.00"), None),
    ]


@pytest.mark.parametrize(
    "text",
    [
        '[{"id": 2},]',
        '[{"id": 2}',
        '[{"id": 2}] x',
        '[{"id": 2} {"id": 3}]',
        "[,]",
        '[{"id": 2, "id": 3}]',
        "[1]",
    ],
)
def test_an_array_that_is_none_is_refused_with_its_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DamagedTable, match=r"a\.json"):
        it.write(tmp_path / "a.json", tmp_path / "t", engine="arrow")
    assert not (tmp_path / "t").exists()


def test_a_bad_value_after_a_very_long_field_is_told(tmp_path: Path) -> None:
    with open(tmp_path / "a.csv", "w", newline="") as file:
        csv.writer(file).writerows([("id", "text", "v"), (2, "x" * 200_000, 1.5), (3, "y", "bad")])
    with pytest.raises(SchemaMismatch, match=r"'bad' is no double, in .*a\.csv"):
        _merged(tmp_path / "a.csv", tmp_path / "t", pa.table({"id": [1], "text": ["a"], "v": [1.0]}))


def test_empty_arrays_and_spaces_are_read_as_json_has_them(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(" [ \n" + json.dumps({"id": 2, "s": "[,]"}, indent=2) + "\t] \n")
    assert _merged(tmp_path / "a.json", tmp_path / "t", pa.table({"id": [1], "s": ["a"]})) == [
        {"id": 2, "s": "[,]"}
    ]
