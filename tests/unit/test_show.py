"""How plans, results, snapshots and inspections look: the numbers, the words, and no harm."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from intarsia import show
from intarsia.core.file_table import FileTuple
from intarsia.core.inspection import FileRange, Inspection, compute_depth, find_file_ranges, inspect_snapshot
from intarsia.core.intent import CompactIntent, MergeIntent, OptimizeIntent
from intarsia.core.plan import FileGroup, FilePlan, Plan
from intarsia.core.report import MergeFileMetadata, MergeResult
from intarsia.core.rule import get_strategy_rule
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.errors import ColumnNotFound
from intarsia.show import html, progress, svg, text, tiles, units

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("amount", pa.float64())])
SVG = "{http://www.w3.org/2000/svg}"
UPSERT = MergeIntent(get_strategy_rule("upsert"), ("id",), ("id",))
EVIL = '<script>alert("x")</script>&\x1b[31m\n\u202e.parquet'


def _file(path: str, *, rows: int = 1000, size: int = 2_000_000, **partition: Any) -> DataFile:
    return DataFile(path, f"/x/{path}", size, rows, partition)


def _snapshot(files: Any, *, root: str = "/data/orders", notes: tuple[str, ...] = ()) -> Snapshot:
    files = tuple(files)
    names = tuple(files[0].partition) if files else ()
    return Snapshot(root, FileTuple(files), SCHEMA, names, pafs.LocalFileSystem(), version=12, notes=notes)


def _plan(files: Any, **changes: Any) -> Plan:
    files = tuple(files)
    snapshot = changes.pop("snapshot", None) or _snapshot(entry.file for entry in files)
    given = {"source_rows": 3412, "engine_reason": "the source fits in memory", **changes}
    return Plan(given.pop("intent", UPSERT), snapshot, files, SCHEMA, **given)


def _orders(days: int = 31, per_day: int = 4) -> Plan:
    """The last day is hit: one file rewritten, one looked into, one removed, one beyond the bounds."""
    found = []
    for day in range(1, days + 1):
        for number in range(per_day):
            name = f"day={day:05d}"
            file = _file(f"{name}/part-{number}.parquet", size=1_000_000 * (number + 1), day=f"{day:05d}")
            if day < days:
                found.append(FilePlan(file, "keep", "partition not in the source"))
            elif number == 0:
                found.append(
                    FilePlan(file, "rewrite", "key scan: rows hit", (0,), 5000, scanned=True, hits=77)
                )
            elif number == 1:
                found.append(FilePlan(file, "keep", "key scan: no row hit", (0,), 5000, scanned=True))
            elif number == 2:
                found.append(FilePlan(file, "remove", "every row goes", hits=1000))
            else:
                found.append(FilePlan(file, "keep", "bounds exclude every key"))
    return _plan(found, matched=True, inserted=1204, updated=77, deleted=1000, insert_bytes=1_200_000)


def _result(plan: Plan, **changes: Any) -> MergeResult:
    words = {"keep": "preserved", "rewrite": "rewritten", "remove": "removed"}
    files = [
        MergeFileMetadata(plan.snapshot.show_path(e.file), e.file.rows, words[e.action], e.file.size)
        for e in plan.files
    ]
    files.append(
        MergeFileMetadata(f"{plan.snapshot.root}/day=00031/new-1.parquet", 1204, "inserted", 1_200_000)
    )
    by = {word: [f.path for f in files if f.operation == word] for word in (*words.values(), "inserted")}
    given = {
        "path": plan.snapshot.root,
        "bytes_read": 412_000_000,
        "bytes_written": 398_111_222,
        "seconds": 0.84,
        "version": 13,
        "plan": plan,
        **changes,
    }
    before = plan.snapshot.rows
    return MergeResult(
        *("upsert", 3412, before, before + 204, 1204, 77, 1000),
        files,
        by["rewritten"],
        by["inserted"],
        by["preserved"],
        by["removed"],
        **given,
    )


def _written(root: Path, **writer: Any) -> Snapshot:
    """Three real files whose ids do not overlap but for the last two."""
    files = []
    for number, start in enumerate((0, 100, 150)):
        table = pa.table({
            "id": pa.array(range(start, start + 100), pa.int64()),
            "name": [None if row % 4 == 0 else f"n{row:03d}" for row in range(100)],
            "tags": [[row] for row in range(100)],
        })  # fmt: skip
        path = root / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=50, **writer)
        metadata = pq.read_metadata(path)
        files.append(DataFile(path.name, str(path), path.stat().st_size, metadata.num_rows, footer=metadata))
    return Snapshot(str(root), FileTuple(files), table.schema, (), pafs.LocalFileSystem())


def _tiles_of(picture: str, css: str) -> list[ET.Element]:
    return [
        rect
        for rect in ET.fromstring(picture).iter(f"{SVG}rect")
        if rect.get("class") == css and rect.get("rx")
    ]


# Units


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_234_567, "1.2 MB"), (99_940_000, "99.9 MB"),
        (99_960_000, "100 MB"), (999_499_000, "999 MB"), (999_600_000, "1.0 GB"),
        (10**13, "10.0 TB"), (None, "?"),
    ],
)  # fmt: skip
def test_sizes_have_two_or_three_digits_and_never_a_thousand(number, shown):
    assert units.format_size(number) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0.0004, "0.4 ms"), (0.012, "12 ms"), (0.0996, "0.10 s"), (0.84, "0.84 s"), (9.996, "10.0 s"),
        (59.96, "1 min 00 s"), (125, "2 min 05 s"), (3599.7, "1 h 00 min"), (3720, "1 h 02 min"),
    ],
)  # fmt: skip
def test_times_are_shown_in_the_unit_people_would_use(number, shown):
    assert units.format_seconds(number) == shown


def test_a_fraction_is_nought_or_all_only_when_it_is():
    assert [units.format_percent(f) for f in (0, 0.0000001, 0.25, 0.9999999, 1)] == [
        "0 %", "< 0.1 %", "25.0 %", "> 99.9 %", "100 %",
    ]  # fmt: skip


def test_rates_need_time_to_pass():
    assert units.format_rate(3412, 0.84) == "4,062"
    assert units.format_rate(10**7, 2) == "5.0 million"
    assert units.format_rate(5, 0) == ""


def test_printable_text_cannot_steer_a_terminal():
    assert units.make_printable("ä b/日本") == "ä b/日本"
    assert units.make_printable("a\x1b[31m\n\u202e\udcff") == r"a\x1b[31m\n\u202e\udcff"


@pytest.mark.parametrize("width", range(12))
def test_eliding_and_padding_count_columns_and_not_characters(width):
    for name in ("day=日本日本日本/x", "part-00000-0123456789.parquet"):
        assert units.measure_width(units.elide(name, width)) <= width
        assert units.measure_width(units.pad(units.elide(name, width), width)) == width


# Plans as text


def test_a_plan_tells_operation_path_source_engine_files_and_bytes():
    shown = text.render(_orders())
    assert "merge (upsert)  /data/orders  [plan, nothing written]" in shown
    assert "3,412 rows" in shown
    assert "arrow: the source fits in memory" in shown
    assert "122 kept · 1 rewritten · 1 removed · at least 1 new" in shown
    assert "1,204 inserted · 77 updated · 1,000 deleted" in shown
    assert "1.0 MB to read (10.0 kB of it to find the rows) · about 2.2 MB to write" in shown


def test_a_plan_of_many_files_groups_them_by_action_and_reason_and_changes_come_first():
    lines = text.render(_orders()).splitlines()
    table = lines[next(n for n, line in enumerate(lines) if line.startswith("files  action")) + 2 :]
    cells = [re.split(r"\s{2,}", line.strip()) for line in table]
    assert cells == [
        ["1", "removed", "every row goes", "1,000", "3.0 MB", "1,000"],
        ["1", "rewritten", "key scan: rows hit", "1,000", "1.0 MB", "77"],
        ["1", "kept", "key scan: no row hit", "1,000", "2.0 MB"],
        ["120", "kept", "partition not in the source", "120,000", "300 MB"],
        ["1", "kept", "bounds exclude every key", "1,000", "4.0 MB"],
    ]


def test_a_plan_of_few_files_names_each():
    plan = _orders(days=2)
    shown = text.render(plan)
    assert all(entry.file.path in shown for entry in plan.files)
    assert re.search(r"day=00002/part-0\.parquet +rewritten +key scan: rows hit +1,000 +1\.0 MB +77", shown)


def test_a_plan_before_matching_does_not_pretend_to_know():
    files = [FilePlan(_file(f"{n}.parquet"), "scan", "bounds include keys", (0,), 1000) for n in range(3)]
    shown = text.render(_plan(files))
    assert "[plan, rows not matched yet]" in shown
    assert "0 kept · 3 to look into" in shown
    assert "counted once they are matched" in shown
    assert "3.0 kB to read first · at most 6.0 MB to rewrite then" in shown


def test_a_compaction_shows_what_becomes_of_the_files():
    files = [_file(f"{n}.parquet") for n in range(6)]
    group = FileGroup(tuple(files), outputs=2)
    entries = [FilePlan(file, "regroup", "small: 2.0 MB") for file in files]
    shown = text.render(_plan(entries, intent=CompactIntent(), groups=(group,), source_rows=0))
    assert "compact  /data/orders" in shown
    assert "6 rewritten together" in shown
    assert "2 new" in shown
    assert "source" not in shown.replace("the source fits in memory", "")
    assert "optimize (hilbert by day, id)" in text.render(
        _plan(entries, intent=OptimizeIntent(("day", "id"), "hilbert"), groups=(group,))
    )


def test_notes_of_plan_and_snapshot_come_last_once_each_and_wrapped():
    warning = "Another writer seems to be active: " + "_temporary/ holds files. " * 6
    plan = replace(_orders(), notes=("Rewrites every file.", warning))
    plan = replace(plan, snapshot=replace(plan.snapshot, notes=(warning,)))
    shown = text.render(plan, width=80)
    assert shown.count("Another writer seems") == 1
    assert shown.splitlines()[-1] == "note: Rewrites every file."


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_asked(width):
    long = "/data/" + "very-long-directory-name/" * 10
    files = [FilePlan(_file(f"day=日本{n}/{'p' * 120}.parquet"), "keep", "because " * 12) for n in range(5)]
    plan = _plan(files, snapshot=_snapshot([f.file for f in files], root=long, notes=("word " * 60,)))
    plan = replace(plan, engine_reason="a reason that goes on " * 9)
    for shown in (
        text.render(plan, width=width),
        text.render(_result(_orders()), width=width),
        text.layout(plan, width=width),
        text.render(inspect_snapshot(plan.snapshot), width=width),
    ):
        assert max(map(units.measure_width, shown.splitlines())) <= width


def test_colour_comes_only_when_asked_and_changes_nothing_else():
    for shown in (text.render, text.layout):
        plain, painted = shown(_orders()), shown(_orders(), color=True)
        assert "\x1b" not in plain
        assert "\x1b[33m" in painted
        assert re.sub(r"\x1b\[\d+m", "", painted) == plain


def test_without_unicode_everything_is_ascii():
    for value in (_orders(), _orders(100), _result(_orders()), inspect_snapshot(_orders().snapshot)):
        assert text.render(value, unicode=False).isascii()
        assert text.layout(value, unicode=False).isascii()


def test_standard_output_decides_whether_blocks_can_be_printed():
    code = "from intarsia.show import text; print(text.takes_unicode())"
    for encoding, answer in (("ascii", "False"), ("latin-1", "False"), ("utf-8", "True")):
        done = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONIOENCODING": encoding}, capture_output=True, text=True
        )
        assert done.stdout.strip() == answer, done.stderr


def test_names_from_outside_cannot_steer_the_terminal():
    plan = _plan(
        [FilePlan(_file(EVIL, day=EVIL), "keep", EVIL)],
        snapshot=_snapshot([_file(EVIL, day=EVIL)], root=f"/{EVIL}", notes=(EVIL,)),
        engine_reason=EVIL,
    )
    for shown in (text.render(plan), text.layout(plan), text.render(_result(plan, notes=(EVIL,)))):
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert r"31m\n\u202e.parquet" in shown


# The layout as text


def test_the_text_layout_has_a_line_for_each_partition_and_a_block_for_each_file():
    lines = text.layout(_orders(days=3), unicode=True).splitlines()
    assert lines[:4] == ["day=00001  ░░░░", "day=00002  ░░░░", "day=00003  █▒×░", "new rows   +"]
    assert lines[-1] == "░ kept 9   ▒ looked into, kept 1   █ rewritten 1   × removed 1   + new"


def test_partitions_come_in_natural_order_and_null_has_a_name():
    days = ["10", "9", None, "1"]
    files = [_file(f"d/{n}.parquet", day=day) for n, day in enumerate(days)]
    lines = text.layout(_snapshot(files), unicode=False).splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["day=1", "day=9", "day=10", "day=NULL"]


def test_many_quiet_partitions_become_one_line_and_changed_ones_stay():
    shown = text.layout(_orders(days=1000), unicode=True)
    lines = shown.splitlines()
    assert lines[0].startswith("day=00001 … day=00999 (999)  ░")
    assert lines[1].split() == ["day=01000", "█▒×░"]
    assert "░ kept 3,997 " in shown
    assert "one block is up to 167 files" in shown


def test_an_empty_table_has_a_layout_and_a_text_too():
    snapshot = replace(_snapshot([]), exists=False)
    assert text.layout(snapshot) == "no files"
    assert "does not exist yet" in text.render(snapshot)
    assert "does not exist yet" in text.render(inspect_snapshot(snapshot))
    assert "no files" in svg.layout(snapshot)
    ET.fromstring(html.render(_plan([], snapshot=snapshot)))


@pytest.mark.parametrize("rows", [1, 3, 7, 48])
def test_folding_loses_no_file_no_row_no_byte_and_no_kind(rows):
    whole = tiles.make_rows(_orders(days=200, per_day=7))
    folded = tiles.fold_rows(whole, most_rows=rows, most_tiles=60)
    assert len(folded) <= rows
    assert tiles.count_kinds(folded) == tiles.count_kinds(whole)
    for count in ("rows", "size"):
        total = [sum(getattr(t, count) for row in side for t in row.tiles) for side in (whole, folded)]
        assert total[0] == total[1]
    assert sum(row.partitions for row in folded) == len(whole)


# Results


def test_a_result_tells_rows_totals_files_bytes_and_time():
    shown = text.render(_result(_orders()))
    assert "merge (upsert)  /data/orders  [done]" in shown
    assert "1,204 inserted · 77 updated · 1,000 deleted" in shown
    assert "124,000 before · 124,204 after" in shown
    assert "1 rewritten · 1 new · 1 removed · 122 untouched" in shown
    assert "412 MB read · 398 MB written" in shown
    assert "0.84 s · 4,062 source rows/s" in shown
    assert "version 13" in shown
    assert re.search(r"^ *1  looked into, kept +key scan: no row hit", shown, re.MULTILINE)


def test_a_dry_run_says_so_and_names_no_commit():
    shown = text.render(_result(_orders(), dry_run=True, notes=("Duplicates are possible for a moment.",)))
    assert "[dry run, nothing written]" in shown
    assert "version 13" not in shown
    assert shown.endswith("note: Duplicates are possible for a moment.")


def test_a_result_without_changes_time_or_source_is_short():
    shown = text.render(MergeResult("delete", 0, 10, 10, 0, 0, 0, operation="delete", path="/t"))
    assert "delete  /t  [done, nothing had to change]" in shown
    assert "rows/s" not in shown
    assert "source" not in shown
    assert "3 attempts" in text.render(_result(_orders(), attempts=3))


def test_a_result_shows_new_files_in_their_partition():
    assert text.layout(_result(_orders()), unicode=True).splitlines()[30] == "day=00031  █▒×░+"
    bare = replace(_result(_orders()), plan=None)
    assert text.layout(bare, unicode=True).splitlines()[30] == "day=00031  █░×░+"


# Inspections


def test_an_inspection_counts_what_the_footers_say(tmp_path):
    snapshot = _written(tmp_path, compression="zstd", sorting_columns=[pq.SortingColumn(0, descending=True)])
    seen = inspect_snapshot(snapshot, small_bytes=10**6, depth_of=["id"])
    assert (seen.files, seen.rows, seen.row_groups) == (3, 300, 6)
    assert seen.size == sum(file.size for file in snapshot.files)
    assert seen.average_size == seen.size // 3
    assert seen.small_files == 3
    assert seen.codecs == ("ZSTD",)
    assert seen.sorting == (("id desc", 3),)
    by_name = {column.name: column for column in seen.columns}
    assert by_name["id"].null_fraction == 0
    assert by_name["name"].null_fraction == 0.25
    assert by_name["tags"].null_fraction is None
    assert by_name["id"].depth == pytest.approx(5 / 3)
    assert by_name["name"].depth is None
    assert all(column.size for column in seen.columns)


def test_a_column_that_some_files_lack_is_null_there(tmp_path):
    snapshot = _written(tmp_path)
    pq.write_table(pa.table({"id": pa.array(range(100), pa.int64())}), tmp_path / "old.parquet")
    metadata = pq.read_metadata(tmp_path / "old.parquet")
    old = DataFile("old.parquet", "", 1, 100, footer=metadata)
    seen = inspect_snapshot(snapshot.with_files((*snapshot.files, old)))
    name = next(column for column in seen.columns if column.name == "name")
    assert name.null_fraction == (75 + 100) / 400


def test_an_inspection_compares_partitions():
    files = [_file("a/1", day="a"), _file("b/1", size=9_000_000, day="b"), _file("b/2", day="b")]
    seen = inspect_snapshot(_snapshot(files))
    assert seen.partitions == 2
    assert seen.biggest is not None
    assert (dict(seen.biggest.partition), seen.biggest.files, seen.biggest.size) == (
        {"day": "b"},
        2,
        11_000_000,
    )
    assert seen.smallest is not None
    assert (dict(seen.smallest.partition), seen.smallest.rows) == ({"day": "a"}, 1000)
    shown = text.render(seen)
    assert "2 by day · biggest day=b (2 files, 11.0 MB) · smallest day=a (1 file, 2.0 MB)" in shown
    assert "3 footers not read" in shown


def test_an_inspection_reads_well(tmp_path):
    shown = text.render(inspect_snapshot(_written(tmp_path), depth_of=["id"]))
    assert re.search(r"row groups +6\n", shown)
    assert re.search(r"compression +snappy\n", shown)
    assert re.search(r"small files +3 under 33\.6 MB", shown)
    assert re.search(r"id +int64 +0 % +[\d.]+ k?B +1\.7", shown)
    assert re.search(r"name +string +25\.0 %", shown)


def test_too_many_chunks_leave_columns_uncounted_but_not_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr("intarsia.core.inspection.MOST_CHUNKS", 5)
    seen = inspect_snapshot(_written(tmp_path))
    assert all(column.null_fraction is None and column.size is None for column in seen.columns)
    assert (seen.row_groups, seen.codecs) == (6, ("SNAPPY",))


def test_depth_of_an_unknown_column_is_refused(tmp_path):
    with pytest.raises(ColumnNotFound, match=r"'nope'.*there is 'id', 'name', 'tags'"):
        inspect_snapshot(_written(tmp_path), depth_of=["nope"])


def test_ranges_are_given_only_where_they_are_proven(tmp_path):
    snapshot = _written(tmp_path)
    assert [(r.lower, r.upper) for r in find_file_ranges(snapshot, "id")] == [(0, 99), (100, 199), (150, 249)]
    assert find_file_ranges(snapshot, "tags") == ()
    blind = replace(snapshot.files[0], footer=None)
    assert len(find_file_ranges(snapshot.with_files((blind, *snapshot.files[1:])), "id")) == 2


def test_depth_is_one_for_clustered_files_and_their_number_for_scattered_ones():
    def of(*pairs: tuple[int, int]) -> float | None:
        return compute_depth([FileRange(str(pair), *pair, 1, 1) for pair in pairs])

    assert of((0, 9), (10, 19), (20, 29)) == 1
    assert of((0, 9), (0, 9), (0, 9)) == 3
    assert of((0, 10), (10, 20)) == 2
    assert of() is None


# Values show themselves


def test_values_show_themselves_once_show_is_imported(tmp_path):
    plan = _orders()
    for value in (plan, _result(plan), inspect_snapshot(_written(tmp_path))):
        assert str(value) == text.render(value)
        assert value._repr_html_() == html.render(value)
    assert isinstance(inspect_snapshot(plan.snapshot), Inspection)
    assert sorted(show.__all__) == ["html", "progress", "svg", "text"]


# HTML and SVG


def test_html_is_one_well_formed_element_with_cards_picture_and_table():
    root = ET.fromstring(html.render(_orders()))
    assert (root.tag, root.get("class")) == ("div", "intarsia")
    cards = ["".join(e.itertext()) for e in root.iter("div") if e.get("class") == "card"]
    assert any("122 kept" in card and "1 rewritten" in card for card in cards)
    assert len(list(root.iter(f"{SVG}svg"))) == 1
    (details,) = root.iter("details")
    assert details.get("open") is None
    assert len(list(details.iter("tr"))) == 1 + 124
    assert "prefers-color-scheme:dark" in html.render(_orders())


def test_html_of_very_many_files_groups_them():
    root = ET.fromstring(html.render(_orders(days=2500)))
    assert len(list(root.iter("tr"))) == 1 + 5
    assert len(html.render(_orders(days=2500))) < 300_000


def test_html_refers_to_nothing_outside_of_itself():
    page = html.render(_result(_orders()))
    assert set(re.findall(r"https?://[^\s\"'<]*", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(script|link|img|iframe)|@import|url\((?!#)| on\w+=", page)


def test_every_style_rule_stays_inside_its_element():
    for picture, scope in ((html.render(_orders()), ".intarsia"), (svg.layout(_orders()), ".intarsia-svg")):
        for style in re.findall(r"<style>(.*?)</style>", picture, re.DOTALL):
            selectors = re.findall(r"(?:^|[{}\n])\s*([^{}@;]+)\{", style.replace("\n", " "))
            assert selectors
            for selector in selectors:
                assert all(part.strip().startswith(scope) for part in selector.split(",")), selector


def test_names_from_outside_are_escaped_everywhere():
    file = _file(EVIL, day=EVIL)
    schema = pa.schema([(EVIL, pa.int64())])
    snapshot = replace(_snapshot([file], root=f"/{EVIL}", notes=(EVIL,)), schema=schema)
    plan = _plan([FilePlan(file, "keep", EVIL)], snapshot=snapshot, engine_reason=EVIL, notes=(EVIL,))
    ranges = [FileRange(EVIL, EVIL, EVIL, 1, 1)]
    shown = [
        html.render(v) for v in (plan, _result(plan, notes=(EVIL,)), snapshot, inspect_snapshot(snapshot))
    ]
    shown += [svg.layout(v) for v in (plan, _result(plan), snapshot)]
    shown += [svg.key_ranges(ranges, column=EVIL)]
    for picture in shown:
        ET.fromstring(picture)
        assert "<script" not in picture
        assert "&lt;script&gt;" in picture
        assert not any(c in picture for c in "\x00\x1b\u202e")


def test_the_picture_has_a_tile_for_each_file_in_the_colour_of_what_happens():
    picture = svg.layout(_orders())
    legend = 1
    assert len(_tiles_of(picture, "k")) == 121 + legend
    assert len(_tiles_of(picture, "w")) == 1 + legend
    assert len(_tiles_of(picture, "s")) == 1 + legend
    assert len(_tiles_of(picture, "r")) == 1 + legend
    assert len(_tiles_of(picture, "n")) == 1 + legend
    assert _tiles_of(picture, "o") == []
    (rewritten,) = (t for tile in _tiles_of(picture, "w") for t in tile.iter(f"{SVG}title"))
    assert rewritten.text == "day=00031/part-0.parquet\n1,000 rows, 1.0 MB\nrewritten: key scan: rows hit"


def test_hatched_tiles_find_their_pattern():
    picture = svg.layout(_orders())
    names = set(re.findall(r'id="([^"]+)"', picture))
    assert set(re.findall(r"url\(#([^)]+)\)", picture)) == names
    assert len(names) == 1
    assert names.isdisjoint(re.findall(r'id="([^"]+)"', svg.layout(_orders(days=5))))


def test_wider_tiles_are_bigger_files():
    widths = [float(t.get("width", 0)) for t in _tiles_of(svg.layout(_orders().snapshot), "k")[:4]]
    assert widths == pytest.approx([widths[0] * n for n in (1, 2, 3, 4)], rel=0.02)


@pytest.mark.parametrize(("days", "per_day"), [(1, 10_000), (10_000, 1), (100, 100), (2500, 4), (40, 6)])
def test_no_tile_leaves_the_picture_and_ten_thousand_files_stay_small(days, per_day):
    picture = svg.layout(_orders(days=days, per_day=per_day))
    assert len(picture) < 300_000
    root = ET.fromstring(picture)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    assert height < 2500
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.get("x", 0)) + float(rect.get("width", 0)) <= width
        assert float(rect.get("y", 0)) + float(rect.get("height", 0)) <= height + 0.1
    assert ">rewritten 1<" in picture


def test_the_same_value_gives_the_same_picture():
    for draw in (svg.layout, html.render, text.render, text.layout):
        assert draw(_orders()) == draw(_orders())


def test_files_of_no_size_can_be_drawn():
    ET.fromstring(svg.layout(_snapshot([_file("a", size=0, rows=0), _file("b", size=0, rows=0)])))


def test_the_picture_of_a_compaction_shows_old_and_new_files():
    files = [_file(f"day=1/{n}.parquet", day="1") for n in range(6)]
    group = FileGroup(tuple(files), {"day": "1"}, outputs=2)
    plan = _plan([FilePlan(f, "regroup", "small") for f in files], intent=CompactIntent(), groups=(group,))
    assert text.layout(plan, unicode=False).splitlines()[0] == "day=1  ######++"
    assert len(_tiles_of(svg.layout(plan), "n")) == 2 + 1


def test_ranges_that_do_not_overlap_share_a_lane():
    def lanes(*pairs: tuple[Any, Any]) -> int:
        picture = svg.key_ranges([FileRange(str(p), *p, 1, 1) for p in pairs], column="id")
        return len({tile.get("y") for tile in _tiles_of(picture, "k")})

    assert lanes((0, 9), (20, 29), (40, 49)) == 1
    assert lanes((0, 9), (5, 29), (40, 49)) == 2
    assert lanes(("a", "c"), ("b", "d"), ("e", "f")) == 2
    assert lanes((7, 7)) == 1


def test_ranges_of_very_many_files_become_a_profile():
    ranges = [FileRange(str(n), n % 100, n % 100 + 50, 1, 1) for n in range(10_000)]
    picture = svg.key_ranges(ranges, column="id")
    ET.fromstring(picture)
    assert "up to 5,1" in picture
    assert len(picture) < 50_000
    assert "no ranges known" in svg.key_ranges([])


# Progress


class _Screen(io.StringIO):
    def __init__(self, *, tty: bool = True) -> None:
        super().__init__()
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_progress_draws_one_line_and_wipes_it():
    screen, clock = _Screen(), _Clock()
    with progress.Terminal(screen, clock=clock) as report:
        clock.now = 1.0
        report("rewrite", 3, 12)
        drawn = screen.getvalue()
    assert drawn.startswith("\rrewrite  ")
    assert drawn.endswith("  3 / 12\x1b[K")
    assert drawn.count("█") * 3 == drawn.count("░")
    assert "\n" not in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K")


def test_progress_is_drawn_ten_times_a_second_and_not_at_once():
    screen, clock = _Screen(), _Clock()
    report = progress.Terminal(screen, clock=clock)
    report("scan", 1, 1000)
    assert screen.getvalue() == ""
    for step in range(1000):
        clock.now = 1 + step / 1000
        report("scan", step, 1000)
    assert 9 <= screen.getvalue().count("\r") <= 11


def test_an_operation_that_was_quick_leaves_the_screen_alone():
    screen = _Screen()
    with progress.Terminal(screen, delay=60) as report:
        report("scan", 1, 1)
    assert screen.getvalue() == ""


def test_progress_after_the_end_draws_nothing():
    screen = _Screen()
    report = progress.Terminal(screen, delay=0)
    report.close()
    report("scan", 1, 2)
    report.close()
    assert screen.getvalue() == ""


def test_progress_fits_a_narrow_terminal_and_an_unknown_total(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    screen = _Screen()
    report = progress.Terminal(screen, delay=0, interval=0)
    report("a step with a name that is far too long \x1b[31m", 3, 12_000)
    report("rows", 5_000, 0)
    lines = [line.removesuffix("\x1b[K") for line in screen.getvalue().split("\r")[1:]]
    assert all(len(line) < 30 and "\x1b" not in line for line in lines)
    assert lines[0].endswith("3 / 12,000")
    assert lines[1] == "rows  5,000"


def test_a_screen_that_fails_does_not_stop_the_work():
    class Broken(_Screen):
        tries = 0

        def write(self, text: str) -> int:
            self.tries += 1
            raise BrokenPipeError

    screen = Broken()
    with progress.Terminal(screen, delay=0, interval=0) as report:
        report("scan", 1, 2)
        report("scan", 2, 2)
    assert screen.tries == 1


def test_progress_may_be_told_by_several_threads():
    screen = _Screen()
    with progress.Terminal(screen, delay=0, interval=0) as report:
        threads = [
            threading.Thread(target=lambda: [report("scan", n, 50) for n in range(50)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    frames = screen.getvalue().split("\r")[1:]
    assert len(frames) == 4 * 50 + 1
    assert all(re.fullmatch(r"scan  [█░]+  \d+ / 50\x1b\[K", frame) for frame in frames[:-1])


def test_progress_is_silent_where_nobody_looks_on():
    choose = progress.make_reporter
    assert isinstance(choose(_Screen(), environ={}), progress.Terminal)
    assert isinstance(choose(_Screen(), environ={"CI": "false", "TERM": "xterm"}), progress.Terminal)
    assert isinstance(choose(_Screen(tty=False), environ={}), progress.Silent)
    assert isinstance(choose(_Screen(), environ={"CI": "true"}), progress.Silent)
    assert isinstance(choose(_Screen(), environ={"TERM": "dumb"}), progress.Silent)
    closed = _Screen()
    closed.close()
    with choose(closed, environ={}) as report:
        report("scan", 1, 2)
    assert isinstance(report, progress.Silent)
