"""Names of columns, partitions and pipeline files made to do harm, tried at random: rows are right, and no
file appears outside of the dataset. What a name cannot be is refused by an error of ours."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import example, given, settings
from hypothesis import strategies as st

import intarsia as it
from intarsia import pipeline
from intarsia.errors import IntarsiaError

EXAMPLES = 400 if os.environ.get("INTARSIA_HYPOTHESIS") == "full" else 15
PIECES = [
    "..", ".", "/", "\\", "=", "%2F", "%", "'", '"', "`", ";", "--", "/*", "*/", "$", "{", "}", "{0}", "%s",
    "\n", "\r", "\t", "\x00", "\x1b[2J", "\u202e", "\ud7ff", "😀", "é", "e\u0301", " ", "*", "?", "[ab]", "~",
    "COPY", "DROP TABLE", "SELECT", "null", "__HIVE_DEFAULT_PARTITION__", "_", ".hidden", "_hidden", "a", "A",
    "con", "file://", "s3://", "http://x", "${HOME}", "$(id)", "&&", "|", "<script>", "id", "v",
]  # fmt: skip
names = st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join)
ENGINES = st.sampled_from(["arrow", "duckdb"])


def _list_tree(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir()}


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@settings(max_examples=EXAMPLES, deadline=None)
@given(name=names, engine=ENGINES)
def test_a_column_can_have_any_name_or_is_refused(name: str, engine: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "orders"
        try:
            source = pa.table({"key": [1, 2, 3], name: [10, 20, 30]})
            it.write(source, root, engine=engine)
            it.merge(pa.table({"key": [3, 4], name: [31, 40]}), root, on="key", engine=engine)
            it.delete(root, f"{_quote(name)} = 10", engine=engine)
            it.optimize(root, by=[name], engine=engine)
        except (IntarsiaError, UnicodeEncodeError):
            pass
        else:
            found = it.read(root).read_all()
            assert sorted(found[name].to_pylist()) == [20, 31, 40]
        assert _list_tree(Path(directory)) <= {"orders", ".orders.intarsia"}


@settings(max_examples=EXAMPLES, deadline=None)
@given(value=names, column=st.one_of(st.just("part"), names), engine=ENGINES)
def test_a_partition_can_have_any_name_and_value_or_is_refused(value: str, column: str, engine: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "orders"
        rows = pa.table({"key": [1, 2], column: [value, "other"]})
        try:
            it.write(rows, root, partition_by=column, engine=engine)
            it.merge(pa.table({"key": [2, 3], column: ["other", value]}), root, on="key", engine=engine)
        except (IntarsiaError, UnicodeEncodeError):
            pass
        else:
            found = it.read(root).read_all().select(["key", column]).to_pylist()
            expected = {1: value, 2: "other", 3: value}
            assert {row["key"]: row[column] for row in found} == expected
        assert _list_tree(Path(directory)) <= {"orders", ".orders.intarsia"}


@settings(max_examples=EXAMPLES, deadline=None)
@given(title=names, source=names, target=names, column=names)
@example(title="shop", source="raw", target="orders", column="v")
def test_a_pipeline_file_of_any_names_runs_or_is_refused(
    title: str, source: str, target: str, column: str
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        rows = pa.table({"key": [1, 2], column: ["a", "b"]})
        pq.write_table(rows, place / "in.parquet")
        file = place / "shop.toml"
        file.write_text(
            f"name = {_to_toml(title)}\nengine = 'arrow'\n"
            f"[sources.{_to_toml(source)}]\npath = 'in.parquet'\n"
            f"[targets.{_to_toml(target)}]\npath = 'lake/orders'\n"
            f"[[steps]]\nname = 'only'\noperation = 'merge'\nsource = {_to_toml(source)}\n"
            f"target = {_to_toml(target)}\non = 'key'\n",
            encoding="utf-8",
        )
        try:
            report = pipeline.run_file(file)
        except IntarsiaError:
            assert not (place / "lake").exists()
            assert not all(name.isidentifier() for name in (title, source, target, column))
        else:
            assert report.ok
            found = it.read(place / "lake" / "orders").read_all()
            assert sorted(found[column].to_pylist()) == ["a", "b"]
        kept = {"in.parquet", "shop.toml", "lake", "reports"}
        assert {name for name in _list_tree(place) if not name.startswith(".")} <= kept
        assert not (place / "lake").exists() or _list_tree(place / "lake") <= {"orders", ".orders.intarsia"}


def _to_toml(text: str) -> str:
    """A basic string of TOML: as in JSON, but for what is beyond 16 bits."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
