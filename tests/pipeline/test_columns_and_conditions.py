"""Steps that leave columns out, keep those that the source lacks, or overwrite by a condition."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia import pipeline
from intarsia.errors import InputError

TEXT = """
name = "feed"
engine = "arrow"

[sources.changes]
path = "landing/changes"

[sources.tuesday]
path = "landing/tuesday"

[targets.lake]
path = "lake"

[[steps]]
operation = "merge"
source = "changes"
target = "lake"
on = "id"
missing = "keep"
except_columns = "op"

[[steps]]
operation = "write"
source = "tuesday"
target = "lake"
mode = "{mode}"
where = "day = 'tue'"
"""


def declared(tmp_path: Path, mode: str = "overwrite") -> Path:
    for name, table in {
        "changes": pa.table({"id": [1, 9], "day": ["mon", "sun"], "op": ["u", "i"]}),
        "tuesday": pa.table({"id": [20], "day": ["tue"], "n": [200]}),
    }.items():
        (tmp_path / "landing" / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(table, tmp_path / "landing" / name / "a.parquet")
    file = tmp_path / "feed.toml"
    file.write_text(TEXT.format(mode=mode))
    return file


def test_columns_are_left_out_and_kept_and_rows_overwritten_by_a_condition(tmp_path: Path) -> None:
    target = pa.table({"id": [1, 2, 3], "day": ["mon", "tue", "wed"], "n": [10, 20, 30]})
    it.write(target, tmp_path / "lake")
    report = pipeline.run(pipeline.load(declared(tmp_path)))
    assert report.ok
    found = it.snapshot(tmp_path / "lake").dataset().to_table().sort_by("id")
    assert found.to_pydict() == {
        "id": [1, 3, 9, 20],
        "day": ["mon", "wed", "sun", "tue"],
        "n": [10, 30, None, 200],
    }


def test_a_condition_goes_with_an_overwrite(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="where"):
        pipeline.run(pipeline.load(declared(tmp_path, mode="append")))
