"""Which files are data: every name readers differ on, and everything that is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from intarsia.errors import DamagedTable, InputError, NotSupported, UnsafePath
from intarsia.storage import open_storage
from intarsia.tables.parquet import Listing, list_data_files, listing

TABLE = pa.table({"k": [1]})
Unchanged = Callable[[Path], Any]


def put(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(TABLE, root / path)
    return root


def listed(root: Path) -> Listing:
    return list_data_files(*open_storage(root))


def names(root: Path) -> list[str]:
    return [entry.path for entry in listed(root).entries]


def test_a_directory_that_is_not_there_has_no_files(tmp_path: Path) -> None:
    found = listed(tmp_path / "nothing")
    assert not found.exists
    assert found.entries == ()


def test_an_empty_directory_exists(tmp_path: Path) -> None:
    found = listed(tmp_path)
    assert found.exists
    assert found.entries == ()


def test_data_files_are_those_with_a_suffix_of_parquet_in_any_case(tmp_path: Path) -> None:
    put(tmp_path, "b.parquet", "A.PARQUET", "c.Parquet", "d.parq", "sub/e.parquet", "p=1/q=2/f.parquet")
    put(tmp_path, "x.parquet.tmp", "y.part", "README", "z.csv")
    assert names(tmp_path) == [
        "A.PARQUET",
        "b.parquet",
        "c.Parquet",
        "d.parq",
        "p=1/q=2/f.parquet",
        "sub/e.parquet",
    ]


def test_hidden_files_and_directories_are_not_data(tmp_path: Path) -> None:
    put(tmp_path, "a.parquet", ".b.parquet", "_c.parquet", ".d/e.parquet", "_f/g.parquet", "p=1/.x/h.parquet")
    put(tmp_path, ".p=1/hidden.parquet")
    assert names(tmp_path) == ["a.parquet"]


def test_a_partition_directory_is_one_also_with_an_underscore(tmp_path: Path) -> None:
    put(tmp_path, "_p=1/a.parquet")
    assert names(tmp_path) == ["_p=1/a.parquet"]


def test_the_staging_of_other_writers_is_left_out_and_noted(tmp_path: Path) -> None:
    put(tmp_path, "a.parquet", "tmp_a.parquet", "_temporary/0/b.parquet", ".spark-staging-1/c.parquet")
    found = listed(tmp_path)
    assert [entry.path for entry in found.entries] == ["a.parquet"]
    assert len(found.notes) == 3
    assert all(note.startswith("Another writer seems to be active") for note in found.notes)


def test_an_empty_file_that_duckdb_is_about_to_write_is_no_damage(tmp_path: Path) -> None:
    put(tmp_path, "p=1/a.parquet")
    (tmp_path / "p=1" / "tmp_a.parquet").touch()
    assert names(tmp_path) == ["p=1/a.parquet"]


def test_a_file_that_is_only_called_tmp_is_data(tmp_path: Path) -> None:
    put(tmp_path, "tmp_orders.parquet")
    assert names(tmp_path) == ["tmp_orders.parquet"]


@pytest.mark.parametrize("name", ["_metadata", "_common_metadata"])
def test_a_summary_that_will_be_out_of_date_is_noted(tmp_path: Path, name: str) -> None:
    put(tmp_path, "a.parquet", name)
    (note,) = listed(tmp_path).notes
    assert note.startswith(f"{name} ")


def test_a_link_to_a_file_that_is_no_data_is_left_alone_whatever_its_name(tmp_path: Path) -> None:
    put(tmp_path / "t", "a.parquet")
    (tmp_path / "note.csv").write_text("x")
    (tmp_path / "t" / "rate=high.csv").symlink_to(tmp_path / "note.csv")
    assert names(tmp_path / "t") == ["a.parquet"]


def test_the_log_of_a_streaming_sink_is_noted(tmp_path: Path) -> None:
    put(tmp_path, "a.parquet")
    (tmp_path / "_spark_metadata").mkdir()
    (note,) = listed(tmp_path).notes
    assert "_spark_metadata" in note


@pytest.mark.parametrize("many", [False, True])
def test_files_that_spark_has_written_in_buckets_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    if many:
        monkeypatch.setattr(listing, "MANY_FILES", 1)
    name = "part-00000-d3326090-7334-4e71-9c8f-8bde396900d0{}.snappy.parquet"
    put(tmp_path, name.format("-c000"), "a_00001.c.parquet", "x.c000.d/_00001.c000.d/a.parquet")
    assert listed(tmp_path).notes == ()
    put(tmp_path, f"day=1/{name.format('_00002.c000')}")
    (note,) = listed(tmp_path).notes
    assert "buckets" in note


def test_a_root_that_is_a_file_is_refused(tmp_path: Path, unchanged: Unchanged) -> None:
    put(tmp_path, "a.parquet")
    with unchanged(tmp_path), pytest.raises(InputError, match="a dataset is a directory"):
        listed(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    "foreign",
    [
        "_delta_log/00000000000000000000.json",
        "metadata/v1.metadata.json",
        ".hoodie/hoodie.properties",
        "sub/_delta_log/0.json",
    ],
)
def test_a_directory_of_a_table_format_is_refused(tmp_path: Path, foreign: str, unchanged: Unchanged) -> None:
    put(tmp_path, "a.parquet")
    (tmp_path / foreign).parent.mkdir(parents=True)
    (tmp_path / foreign).write_text("{}")
    with unchanged(tmp_path), pytest.raises(NotSupported, match=r"Delta|Iceberg|Hudi") as caught:
        listed(tmp_path)
    assert caught.value.hint


def test_a_directory_of_ducklake_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "main/t/ducklake-0195.parquet")
    with pytest.raises(NotSupported, match="DuckLake"):
        listed(tmp_path)


@pytest.mark.parametrize(
    ("log", "root"),
    [
        ("_delta_log/0.json", "p=1"),
        ("_delta_log/0.json", "p=1/q=2"),
        ("metadata/v1.metadata.json", "data"),
        ("metadata/v1.metadata.json", "data/p=1"),
    ],
)
def test_a_part_of_a_table_of_another_format_is_refused(tmp_path: Path, log: str, root: str) -> None:
    put(tmp_path, f"{root}/a.parquet")
    (tmp_path / log).parent.mkdir(parents=True)
    (tmp_path / log).write_text("{}")
    with pytest.raises(NotSupported, match="part of"):
        listed(tmp_path / root)


def test_a_directory_called_metadata_is_none_of_iceberg_by_its_name_alone(tmp_path: Path) -> None:
    put(tmp_path, "metadata/a.parquet")
    assert names(tmp_path) == ["metadata/a.parquet"]


@pytest.mark.parametrize("target", ["elsewhere.parquet", "nowhere.parquet", "directory"])
def test_a_symbolic_link_is_refused_by_name(tmp_path: Path, target: str, unchanged: Unchanged) -> None:
    root = put(tmp_path / "data", "a.parquet")
    put(tmp_path, "elsewhere.parquet", "directory/b.parquet")
    link = root / ("linked" if target == "directory" else "linked.parquet")
    link.symlink_to(tmp_path / target)
    with unchanged(root), pytest.raises(UnsafePath, match="symbolic link") as caught:
        listed(root)
    assert caught.value.path == str(link)


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "a.parquet")
    (tmp_path / "loop").symlink_to(tmp_path)
    with pytest.raises(UnsafePath, match="loop"):
        listed(tmp_path)


def test_a_link_that_holds_no_data_does_not_matter(tmp_path: Path) -> None:
    root = put(tmp_path / "data", "a.parquet")
    (root / "README").symlink_to(tmp_path)
    (root / ".hidden").symlink_to(tmp_path)
    (root / "NOTES").symlink_to(tmp_path / "nowhere")
    (root / "README").unlink()
    assert names(root) == ["a.parquet"]


def test_an_empty_data_file_is_refused_by_name(tmp_path: Path, unchanged: Unchanged) -> None:
    put(tmp_path, "a.parquet")
    (tmp_path / "b.parquet").touch()
    with unchanged(tmp_path), pytest.raises(DamagedTable, match=r"b\.parquet is empty"):
        listed(tmp_path)


def test_a_pipe_with_the_name_of_a_data_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.parquet")
    with pytest.raises(UnsafePath, match="not a regular file"):
        listed(tmp_path)


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "a.parquet")
    os.rename(tmp_path / "a.parquet", os.fsencode(tmp_path) + b"/\xff.parquet")
    with pytest.raises(UnsafePath, match="no UTF-8 text"):
        listed(tmp_path)


def test_a_store_without_directories_is_listed_by_the_same_rules() -> None:
    storage, root = open_storage("memory://listing-rules/d")
    for path in ("a.parquet", "p=1/b.PARQUET", ".h/c.parquet", "_h/d.parquet", "_p=1/e.parquet", "f.txt"):
        storage.make_directories(os.path.dirname(f"{root}/{path}"))
        storage.write(f"{root}/{path}", b"PAR1")
    found = list_data_files(storage, root)
    assert [entry.path for entry in found.entries] == ["_p=1/e.parquet", "a.parquet", "p=1/b.PARQUET"]
    storage.remove_tree("/listing-rules")


def test_names_of_any_letters_are_listed_as_they_are(tmp_path: Path) -> None:
    odd = ["p=ä %2F/it's; g[ab]*.parquet", "p=x=y/z.parquet"]
    put(tmp_path, *odd)
    assert names(tmp_path) == sorted(odd)
