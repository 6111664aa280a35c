from __future__ import annotations

import json
import logging
import os
import re
import threading
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser_pages import DARK, Browser, measure_brightness, measure_page

from intarsia.pipeline.reports import run_index
from intarsia.pipeline.reports.run_index import read_runs, update_index

ROWS = {number: ("eu" if number % 2 else "ap", float(number)) for number in range(1, 40)}
START = datetime(2025, 3, 1, tzinfo=UTC)


def _leave(directory: Path, number: int, *, name: str = "orders", page: bool = True, **told: Any) -> Path:
    """A report as a run leaves it."""
    started = START + timedelta(hours=number)
    run_id = f"{started:%Y%m%dT%H%M%S}-{number:06x}"
    result = {"inserted": 10 * number, "updated": number % 3, "deleted": number % 2}
    plain = {
        "pipeline": name,
        "run_id": run_id,
        "status": "done",
        "ok": True,
        "dry_run": False,
        "started": started.isoformat(timespec="milliseconds"),
        "seconds": 1.5 + number % 7,
        "engine": "arrow",
        "session": "",
        "steps": [{"name": "upsert", "status": "done", "bytes_written": 1000, "result": result}],
    }
    path = directory / f"{name}-{run_id}.json"
    path.write_text(json.dumps(plain | told))
    if page:
        path.with_suffix(".html").write_text("<!doctype html>")
    return path


def _links(directory: Path) -> list[str]:
    return re.findall(r'<td><a href="([^"]*)"', (directory / "index.html").read_text())


def test_every_run_is_in_the_index_with_a_link_to_its_report(shop: Any) -> None:
    shop.lands("a.csv", ROWS)
    reports = [shop.run()]
    shop.lands("b.csv", {100: ("eu", -1.0)})
    reports += [shop.run(), shop.run()]
    directory = shop.root / "reports"
    assert _links(directory) == [Path(report.html_path).name for report in reversed(reports)]
    first, second, third = (run for run in reversed(read_runs(directory).runs))
    assert (first.inserted, first.updated, first.deleted) == (39, 0, 0)
    assert (second.inserted, second.deleted, second.unchanged) == (1, 1, 0)
    assert (third.rows, third.unchanged) == (0, 3)
    text = (directory / "index.html").read_text()
    assert "nothing changed" in text
    assert "Runs of shop" in text


def test_a_failed_run_is_in_the_index(shop: Any) -> None:
    shop.lands("a.csv", ROWS)
    shop.lands("b.csv", {1: ("ap", 5.0)})
    shop.run()
    (run,) = read_runs(shop.root / "reports").runs
    assert not run.ok
    assert run.status == "failed at 'upsert'"
    assert "failed at &#x27;upsert&#x27;" in (shop.root / "reports" / "index.html").read_text()


def test_a_dry_run_leaves_no_index_where_it_leaves_no_report(shop: Any) -> None:
    shop.lands("a.csv", ROWS)
    shop.run(dry_run=True)
    assert not (shop.root / "reports").exists()


FOREIGN = {
    "orders-20250301T000000-aaaaaa.json": b"{ not json",
    "orders-20250301T000001-aaaaaa.json": b"[1, 2]",
    "orders-20250301T000002-aaaaaa.json": b"[" * 200_000,
    "orders-20250301T000003-aaaaaa.json": b'{"pipeline": 7, "started": "x", "steps": {}}',
    "orders-20250301T000004-aaaaaa.json": b"\xff\xfe\x00",
    "orders-20250301T000005-aaaaaa.json": b"",
    "settings.json": b'{"theme": "dark"}',
}


def test_broken_and_foreign_files_do_not_fail_a_run(shop: Any) -> None:
    directory = shop.root / "reports"
    directory.mkdir()
    for name, data in FOREIGN.items():
        (directory / name).write_bytes(data)
    (directory / "orders-20250301T000006-aaaaaa.json").mkdir()
    os.mkfifo(directory / "orders-20250301T000007-aaaaaa.json")  # would never be read to its end
    os.symlink("nowhere", directory / "orders-20250301T000008-aaaaaa.json")
    shop.lands("a.csv", ROWS)
    assert shop.run().ok
    assert len(_links(directory)) == 1
    assert "6 files are named like a report and could not be read" in (directory / "index.html").read_text()
    for name, data in FOREIGN.items():
        assert (directory / name).read_bytes() == data


@pytest.mark.parametrize(
    "told",
    [
        {"seconds": "long"},
        {"seconds": float("nan")},
        {"seconds": -3},
        {"seconds": 10**400, "steps": [{"result": {"inserted": 10**400}}]},
        {"steps": [None, 3, {"result": {"inserted": "many"}}, {"result": []}]},
        {"status": None, "ok": "yes", "engine": 7},
        {"started": "2025-03-01T00:00:00"},
    ],
)
def test_fields_of_a_wrong_type_do_not_spoil_the_page(tmp_path: Path, told: dict[str, Any]) -> None:
    _leave(tmp_path, 1, **told)
    _leave(tmp_path, 2)
    update_index(tmp_path)
    assert len(_links(tmp_path)) == 2


def test_a_time_that_no_clock_has_does_not_fail_a_run(tmp_path: Path) -> None:
    _leave(tmp_path, 1, started="9999-12-31T23:59:59-23:00")
    _leave(tmp_path, 2)
    update_index(tmp_path)
    assert len(_links(tmp_path)) == 1


def test_an_index_of_somebody_else_is_left_as_it_is(shop: Any, caplog: pytest.LogCaptureFixture) -> None:
    directory = shop.root / "reports"
    directory.mkdir()
    (directory / "index.html").write_text("<h1>My site</h1>")
    shop.lands("a.csv", ROWS)
    with caplog.at_level(logging.WARNING, logger="intarsia"):
        assert shop.run().ok
    assert (directory / "index.html").read_text() == "<h1>My site</h1>"
    assert "is not an index of runs" in caplog.text


def test_an_index_that_cannot_be_written_does_not_fail_the_run(
    shop: Any, caplog: pytest.LogCaptureFixture
) -> None:
    directory = shop.root / "reports"
    (directory / "index.html").mkdir(parents=True)
    shop.lands("a.csv", ROWS)
    with caplog.at_level(logging.WARNING, logger="intarsia"):
        assert shop.run().ok
    assert "could not be written" in caplog.text
    assert [path.name for path in directory.iterdir() if path.name.startswith(".")] == []


def test_old_runs_are_counted_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_index, "MOST_RUNS", 30)
    for number in range(50):
        _leave(tmp_path, number)
    found = read_runs(tmp_path)
    assert [run.inserted for run in found.runs] == [10 * number for number in range(49, 19, -1)]
    assert (found.older, found.oldest) == (20, "2025-03-01")
    update_index(tmp_path)
    assert "20 older runs, the oldest of 2025-03-01" in (tmp_path / "index.html").read_text()


def test_a_busy_pipeline_does_not_crowd_out_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_index, "MOST_RUNS", 40)
    _leave(tmp_path, 1, name="monthly")
    for number in range(10, 60):
        _leave(tmp_path, number, name="hourly")
    assert {run.pipeline for run in read_runs(tmp_path).runs} == {"hourly", "monthly"}


def test_no_more_bytes_are_read_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = max(_leave(tmp_path, number).stat().st_size for number in range(10))
    monkeypatch.setattr(run_index, "MOST_BYTES", 4 * size)
    found = read_runs(tmp_path)
    assert len(found.runs) == 4
    assert found.older == 6


def test_runs_of_one_second_are_in_the_order_in_which_they_started(tmp_path: Path) -> None:
    for number, name in enumerate(("ffffff", "888888", "000000")):
        path = _leave(tmp_path, 0, started=f"2025-03-01T00:00:00.{number}00+00:00", run_id=name)
        path.rename(path.with_name(path.name.replace("000000.json", f"{name}.json")))
    assert [run.run_id for run in read_runs(tmp_path).runs] == ["000000", "888888", "ffffff"]


def test_warnings_are_told(tmp_path: Path) -> None:
    _leave(tmp_path, 1, status="done, 2 warnings")
    update_index(tmp_path)
    assert '<span class="mark plan" title="done, 2 warnings">' in (tmp_path / "index.html").read_text()


def test_a_report_whose_page_was_deleted_has_no_link(tmp_path: Path) -> None:
    _leave(tmp_path, 1, page=False)
    _leave(tmp_path, 2)
    update_index(tmp_path)
    assert len(_links(tmp_path)) == 1


def test_runs_of_several_pipelines_that_end_at_once_are_all_in_the_index(tmp_path: Path) -> None:
    seen: list[str] = []

    def run(name: str) -> None:
        for number in range(12):
            _leave(tmp_path, number, name=name)
            update_index(tmp_path)
            seen.append((tmp_path / "index.html").read_text()[-8:])

    threads = [threading.Thread(target=run, args=(f"p{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {"</html>\n"}  # never half of it
    assert len(_links(tmp_path)) == 48
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


def test_what_a_killed_run_has_left_is_removed_in_time(tmp_path: Path) -> None:
    old, new = tmp_path / ".index.html.a.part", tmp_path / ".index.html.b.part"
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (1, 1))
    update_index(tmp_path)
    assert not old.exists()
    assert new.exists()  # somebody may be writing it


def test_text_from_outside_cannot_become_part_of_the_index(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    _leave(tmp_path, 1)
    for path in (_leave(tmp_path, 2), _leave(tmp_path, 3)):
        told = json.loads(path.read_text())
        path.write_text(json.dumps(told | {"pipeline": evil, "status": evil, "ok": False, "engine": evil}))
    update_index(tmp_path)
    text = (tmp_path / "index.html").read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert not re.search(r"""src=|@import|url\(|<link|https?://""", text)


class _Balanced(HTMLParser):
    """Every tag that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def past(tmp_path: Path) -> Path:
    """Runs of two pipelines, some of which failed, one of them with a long name."""
    for number in range(60):
        failed = number % 9 == 4
        status = "failed at 'the orders of all regions are sound'" if failed else "done"
        _leave(tmp_path, number, ok=not failed, status=status, session="Spark 4.1.4, local[*]")
    for number in range(3):
        _leave(tmp_path, number, name="a-pipeline-whose-name-is-very-long-and-has-no-space-to-break-it-at")
    _leave(tmp_path, 100, dry_run=True, status="dry run, nothing written")
    update_index(tmp_path)
    return tmp_path / "index.html"


def test_the_index_is_well_formed(past: Path) -> None:
    parser = _Balanced()
    parser.feed(past.read_text())
    assert parser.open == []


def test_charts_show_durations_and_rows_and_lead_to_the_reports(past: Path) -> None:
    text = past.read_text()
    duration = re.search(r'aria-label="Duration of runs">(.*?)</svg>', text, re.DOTALL)
    assert duration is not None
    assert duration[1].count("<a ") == 60  # the dry run is not among them
    assert len(re.findall(r'<rect class="failed"', duration[1])) == 7
    assert "up to 7.50 s" in text
    assert "Rows changed by runs" in text


@pytest.mark.parametrize("flags", [(), (DARK,)], ids=["light", "dark"])
def test_a_browser_shows_the_index_on_a_desktop_and_a_phone(
    past: Path, browser: Browser, flags: tuple[str, ...]
) -> None:
    for seen in measure_page(browser, past, *flags):
        assert seen["over"] <= 0
        assert seen["cut"] == []
        assert all((past.parent / link).exists() for link in seen["links"])
        assert (measure_brightness(seen["paper"]) < 100) is bool(flags)
