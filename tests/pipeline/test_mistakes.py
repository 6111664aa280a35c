"""Mistakes that people make with a pipeline, and whether what they are told helps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from intarsia import pipeline
from intarsia.common.log import redact
from intarsia.errors import InputError, IntarsiaError, NothingMatched, NotSupported, StorageError
from intarsia.pipeline.parse import load_toml
from intarsia.pipeline.row_transform import RowTransform, parse_type_name
from intarsia.pipeline.step_runner import translate_error


def _failed(shop: Any) -> IntarsiaError:
    (step,) = [step for step in shop.run().steps if step.status == "failed"]
    assert isinstance(step.error, IntarsiaError)
    return step.error


def _edited(shop: Any, old: str, new: str) -> None:
    text = shop.file.read_text()
    assert old in text
    shop.declare(text.replace(old, new))


def test_a_key_that_is_called_key_is_told_and_not_taken_for_a_secret(shop: Any) -> None:
    with pytest.raises(InputError) as caught:
        _edited(shop, 'on = "id"', 'key = "id"')
        pipeline.load(shop.file)
    assert "the key 'key' is not known. Hint: did you mean 'on'?" in redact(str(caught.value))


def test_a_pipeline_file_that_is_not_there_is_told_with_those_that_are(tmp_path: Path, shop: Any) -> None:
    with pytest.raises(NothingMatched) as caught:
        pipeline.load(tmp_path / "empty" / "orders.toml")
    assert caught.value.hint == "intarsia init writes a project with one."
    near = shop.file.with_name(shop.file.name.replace(".toml", ".tml"))
    with pytest.raises(NothingMatched) as caught:
        load_toml(near)
    assert caught.value.hint == f"did you mean {shop.file.name!r}?"


def test_an_expectation_that_fails_a_run_is_told_with_what_else_there_is(shop: Any) -> None:
    expecting = '[[steps]]\noperation = "expect"\nsource = "landing"\nholds = "amount > 5"\n{}\n[[steps]]'
    before = shop.file.read_text()
    shop.lands("a.csv", {1: ("eu", 5.0)})
    for more, told in (("", 'action = "quarantine" or "drop"'), ("at_most = 0", "None")):
        shop.declare(before.replace("[[steps]]", expecting.format(more), 1))
        assert told in str(_failed(shop).hint)


def test_a_source_whose_directory_is_not_there_is_told_so(shop: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    _edited(shop, "landing/*.csv", "landig/*.csv")
    assert _failed(shop).hint == f"there is no directory {shop.root / 'landig'}."


def test_a_source_without_a_file_is_told_what_was_looked_for_in_short(shop: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    _edited(shop, "landing/*.csv", "landing/*.txt")
    hint = _failed(shop).hint
    assert hint is not None
    assert ".csv, .tsv, .json" in hint
    assert ".gz" not in hint


def test_a_value_that_does_not_fit_is_told_with_its_file(shop: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    bad = shop.root / "landing" / "b.csv"
    bad.write_text("id,region,amount\nx,eu,1\n")
    error = _failed(shop)
    assert error.path == str(bad)
    assert f"{bad}: Column 'id' of the source: 'x' is no bigint." in error.message
    assert "try_cast" in str(error.hint)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("decimal(10, 2)", "12.50", "12,50"),
        ("decimal(10, 2)", "12.5", "12.505"),
        ("bigint", "1.0", "1.7"),
        ("tinyint", "1e2", "300"),
        ("date", "2025-03-01", "2025-02-30"),
    ],
)
def test_a_text_that_is_none_of_its_type_is_told_as_it_stands_in_the_file(
    kind: str, good: str, bad: str
) -> None:
    rows = RowTransform({"c": parse_type_name(kind)})
    schema = pa.schema([("c", pa.string())])
    for value, shown in ((bad, bad), ("x" * 500, "x" * 60 + "...")):
        batch = pa.record_batch({"c": [None, good, value]})
        told = re.escape(f"Column 'c' of the source: {shown!r} is no {kind}.")
        with pytest.raises(InputError, match=told):
            list(rows.transform_batches(schema, [batch]))


def test_a_column_that_a_file_lacks_is_told_with_the_file(shop: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    bad = shop.root / "landing" / "b.csv"
    bad.write_text("idd,region,amount\n1,eu,1\n")
    error = _failed(shop)
    assert f"{bad}: The source has no column 'id'" in error.message
    assert error.hint == "did you mean 'idd'?"


def test_a_step_that_only_looks_at_a_source_names_it_in_its_error(shop: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    expecting = '[[steps]]\noperation = "expect"\nsource = "landing"\nnot_null = "idd"\n\n[[steps]]'
    shop.declare(shop.file.read_text().replace("[[steps]]", expecting, 1))
    error = _failed(shop)
    assert error.message.startswith("expect: ")
    assert error.path == str(shop.root / "landing" / "*.csv")


def test_another_layout_than_the_dataset_has_is_refused(shop: Any, unchanged: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    assert shop.run().ok
    _edited(shop, 'partition_by = "region"', 'partition_by = "id"')
    with unchanged(shop.lake):
        error = _failed(shop)
    assert "declared with partition_by 'id', but the dataset that is there has 'region'" in error.message


def test_reports_that_cannot_be_kept_are_told_before_anything_runs(shop: Any, tmp_path: Path) -> None:
    shop.lands("a.csv", {1: ("eu", 5.0)})
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="No report can be left in"):
        shop.run(report_dir=tmp_path / "file" / "reports")
    assert not shop.lake.exists()


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ('on = "id"', 'keys = "id"', "did you mean 'on'?"),
        ('on = "id"', 'key_columns = "id"', "did you mean 'on'?"),
        ('"bigint"', '"bigit"', "did you mean 'BIGINT', 'UBIGINT'?"),
    ],
)
def test_a_word_of_elsewhere_or_misspelt_is_told_with_the_right_one(
    shop: Any, old: str, new: str, hint: str
) -> None:
    _edited(shop, old, new)
    with pytest.raises((InputError, NotSupported)) as caught:
        pipeline.load(shop.file)
    assert caught.value.hint == hint


FROM_SPARK = """An error occurred while calling o109.collectToPython.
: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file a.csv.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:904)
Caused by: org.apache.spark.SparkRuntimeException: [MALFORMED_CSV_RECORD] Malformed record: 4,eu
\tat org.apache.spark.sql.catalyst.csv.UnivocityParser.parse(UnivocityParser.scala:1)
\t... 12 more
Caused by: java.lang.IllegalArgumentException: CSV header does not conform to the schema.
 Header: idd
 Schema: id
\tat org.apache.spark.sql.catalyst.csv.CSVHeaderChecker.check(CSVHeaderChecker.scala:1)
"""


def test_an_error_of_spark_is_told_with_the_reason_that_it_gives_last() -> None:
    errors = pytest.importorskip("pyspark.errors", reason="pyspark is not installed")
    made = translate_error(errors.PySparkException(FROM_SPARK))
    assert isinstance(made, InputError)
    assert made.message == (
        "Spark could not do it: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file a.csv."
        " (CSV header does not conform to the schema. Header: idd Schema: id)"
    )


def test_a_directory_is_no_pipeline_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name the pipeline file"):
        pipeline.load(tmp_path)
