from __future__ import annotations

from datetime import time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import intarsia as it
import intarsia.integrations.pandas  # registers df.intarsia
from intarsia.errors import InputError, KeyColumnError, SchemaMismatch


def test_a_frame_is_merged_by_key(tmp_path: Path, rows: Any) -> None:
    first = pd.DataFrame({"id": [1, 2], "n": ["a", "b"]}).intarsia.write_to(tmp_path / "lake")
    result = pd.DataFrame({"id": [2, 3], "n": ["b2", "c"]}).intarsia.merge_into(tmp_path / "lake", on="id")
    assert (first.total, result.updated, result.inserted) == (2, 1, 1)
    assert rows(tmp_path / "lake") == [{"id": 1, "n": "a"}, {"id": 2, "n": "b2"}, {"id": 3, "n": "c"}]


def test_an_index_with_a_name_is_a_column_and_others_are_not(tmp_path: Path, rows: Any) -> None:
    frame = pd.DataFrame({"day": [1, 1, 2], "id": [1, 2, 3], "n": [5, 6, 7]})
    frame[frame["n"] > 5].intarsia.write_to(tmp_path / "lake")
    assert list(rows(tmp_path / "lake")[0]) == ["day", "id", "n"]
    levels = frame.set_index(["day", "id"])
    assert levels.intarsia.merge_into(tmp_path / "lake", on=["day", "id"]).inserted == 1


TIMES = pd.Series(pd.to_datetime(["2025-03-30 01:30", None, "2025-10-26 02:30"]))
ODD = {
    "nullable integer": (pd.Series([1, None, 2**62], dtype="Int64"), pa.int64()),
    "nullable boolean": (pd.Series([True, None, False], dtype="boolean"), pa.bool_()),
    "nullable float": (pd.Series([1.5, None, -0.0], dtype="Float32"), pa.float32()),
    "text": (pd.Series(["é", None, ""], dtype="str"), pa.string()),
    "category": (
        pd.Series(["b", None, "a"], dtype="category"),
        pa.dictionary(pa.int8(), pa.string()),
    ),
    "zone": (TIMES.dt.tz_localize("UTC").dt.tz_convert("Europe/Paris"), pa.timestamp("us", "Europe/Paris")),
    "naive": (TIMES, pa.timestamp("us")),
    "duration": (pd.Series(pd.to_timedelta([1, None, -2], unit="s")), pa.duration("s")),
    "decimal of Arrow": (
        pd.Series([Decimal("1.25"), None, Decimal("-3.5")], dtype=pd.ArrowDtype(pa.decimal128(20, 2))),
        pa.decimal128(20, 2),
    ),
    "list of Arrow": (
        pd.Series([[1, None], [], None], dtype=pd.ArrowDtype(pa.list_(pa.int16()))),
        pa.list_(pa.int16()),
    ),
    "struct of Arrow": (
        pd.Series([{"x": 1}, None, {"x": None}], dtype=pd.ArrowDtype(pa.struct([("x", pa.int8())]))),
        pa.struct([("x", pa.int8())]),
    ),
    "time of Arrow": (
        pd.Series([time(1, 2), None, time.max], dtype=pd.ArrowDtype(pa.time64("us"))),
        pa.time64("us"),
    ),
    "zone of Arrow": (
        pd.Series([TIMES[0], None, TIMES[2]], dtype=pd.ArrowDtype(pa.timestamp("ms", "Asia/Kathmandu"))),
        pa.timestamp("ms", "Asia/Kathmandu"),
    ),
    "objects of Decimal": (pd.Series([Decimal("1.25"), None, Decimal("3.50")]), pa.decimal128(3, 2)),
    "objects of bytes": (pd.Series([b"\x00", None, b""]), pa.binary()),
}


@pytest.mark.parametrize("name", ODD)
def test_every_dtype_is_stored_in_its_type_and_value(name: str, tmp_path: Path) -> None:
    series, kind = ODD[name]
    frame = pd.DataFrame({"id": [1, 2, 3], "value": series})
    frame.head(2).intarsia.merge_into(tmp_path / "lake", on="id", schema_evolution="widen")
    frame.tail(2).intarsia.merge_into(tmp_path / "lake", on="id", schema_evolution="widen")
    found = it.read(tmp_path / "lake").read_all().sort_by("id")
    wanted = pa.Table.from_pandas(frame, preserve_index=False)["value"]
    assert found["value"].to_pylist() == wanted.to_pylist()
    assert found.schema.field("value").type in (kind, wanted.type)


def test_values_that_are_absent_are_null(tmp_path: Path, rows: Any) -> None:
    frame = pd.DataFrame({"id": [1, 2], "x": pd.array([pd.NA, 1], "Int8"), "t": [pd.NaT, pd.Timestamp(0)]})
    frame.intarsia.write_to(tmp_path / "lake")
    assert rows(tmp_path / "lake")[0] == {"id": 1, "x": None, "t": None}


REFUSED: dict[str, tuple[pd.DataFrame, type[Exception]]] = {
    "keys twice": (pd.DataFrame({"id": [1, 1], "n": ["a", "b"]}), KeyColumnError),
    "no key": (pd.DataFrame({"n": ["a"]}), KeyColumnError),
    "objects of several types": (pd.DataFrame({"id": [1, 2], "n": ["a", 5]}), InputError),
    "a value that does not fit": (pd.DataFrame({"id": [1], "n": [timedelta(1)]}), SchemaMismatch),
    "columns with one name": (pd.DataFrame([[1, "a", "b"]], columns=["id", "n", "n"]), it.IntarsiaError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_leaves_every_byte(name: str, tmp_path: Path, unchanged: Any) -> None:
    pd.DataFrame({"id": [1, 2], "n": ["a", "b"]}).intarsia.write_to(tmp_path / "lake")
    frame, error = REFUSED[name]
    with unchanged(tmp_path / "lake"), pytest.raises(error):
        frame.intarsia.merge_into(tmp_path / "lake", on="id")
