from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser_pages import DARK, Browser, measure_brightness, measure_page
from starlette.requests import Request
from ui_site import Answer, Site, Tags, make_rows, serve, wait_until

import intarsia as it
from intarsia.errors import NothingMatched, StorageError
from intarsia.pipeline.reports.live import LiveReport
from intarsia.ui.lake import Lake, open_lake
from intarsia.ui.server import Pages, bind_loopback

HOSTILE = "<img src=x onerror=alert(1)>"
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of several kinds, some of which cannot be read; made once, for nothing here writes."""
    root = tmp_path_factory.mktemp("ui") / "shop"
    orders = root / "lake" / "orders"
    for number in range(3):
        it.write(make_rows(100, number * 100), orders, partition_by="region")
    it.delete(orders, "amount < 5")
    plain = root / "lake" / "raw" / HOSTILE
    plain.mkdir(parents=True)
    pq.write_table(pa.table({SCRIPT: [1, 2, 3]}), plain / "part-0.parquet")
    parted = root / "lake" / "raw" / "events" / f"kind={quote(SCRIPT, safe='')}"
    parted.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), parted / f"{HOSTILE}.parquet")
    broken = root / "lake" / "broken"
    broken.mkdir()
    (broken / "x.parquet").write_text("no Parquet")
    (root / "lake" / "delta" / "_delta_log").mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), root / "lake" / "delta" / "part-0.parquet")
    outside = root.parent / "outside"
    it.write(pa.table({"secret_column": [1]}), outside)
    (root / "lake" / "link").symlink_to(outside, target_is_directory=True)
    (root.parent / "secret.txt").write_text("the secret")
    return root


@pytest.fixture(scope="module")
def site(lake: Path) -> Iterator[Site]:
    with serve(lake) as running:
        yield running


def walk(site: Site) -> dict[str, Answer]:
    """Every page that can be reached by links, and every card."""
    waiting, seen = ["/"], {}
    while waiting:
        target = waiting.pop()
        if target in seen:
            continue
        seen[target] = site.ask(target)
        if "text/html" in seen[target].headers["content-type"]:
            tags = Tags(seen[target].text)
            found = [*tags.list_links(), *tags.list_cards()]
            if "/runs/" in target:  # names of reports are relative
                found = [
                    one if one.startswith("/") else f"{target.rpartition('/')[0]}/{one}" for one in found
                ]
            waiting += [one for one in found if one.startswith("/") and "#" not in one]
    return seen


def test_the_page_has_every_table_and_none_that_is_outside(site: Site) -> None:
    tags = Tags(site.get("/"))
    words = [one.removeprefix("/card?") for one in tags.list_cards()]
    hostile = quote(HOSTILE, safe="")
    assert words == [
        "path=lake&path=broken",
        "path=lake&path=delta",
        "path=lake&path=orders",
        f"path=lake&path=raw&path={hostile}",
        "path=lake&path=raw&path=events",
    ]


def test_the_url_of_a_directory_shows_what_the_directory_does(lake: Path, site: Site) -> None:
    with serve(lake.as_uri()) as other:
        assert Tags(other.get("/")).list_cards() == Tags(site.get("/")).list_cards()
        assert other.ask("/table?path=lake&path=link").code == 404


def test_each_card_tells_rows_files_and_the_last_commit(site: Site) -> None:
    told = Tags(site.get("/card?path=lake&path=orders")).text
    assert "285 rows" in told
    assert "6 files" in told
    assert "delete, just now" in told
    assert "no commit of intarsia yet" in site.get("/card?path=lake&path=raw&path=events")


def test_a_table_that_cannot_be_read_says_why_and_the_page_is_there(site: Site) -> None:
    assert "DamagedTable" in site.get("/card?path=lake&path=broken")
    assert "Delta" in site.get("/card?path=lake&path=delta")
    page = site.ask("/table?path=lake&path=broken")
    assert (page.code, "cannot be read as Parquet" in page.text) == (500, True)


def test_the_pages_of_a_table_show_its_files_commits_and_plans(site: Site) -> None:
    query = "path=lake&path=orders"
    overview = site.get(f"/table?{query}")
    assert overview.count("<figure") == 0
    assert "region=eu" in overview
    for title in ("rows after each commit", "size after each commit", "bytes written by each commit"):
        assert title in overview
    files = Tags(site.get(f"/table/files?{query}")).text
    assert "6 files" in files
    assert "region=us" in files
    assert "delete" in Tags(site.get(f"/table/history?{query}")).text
    plan = Tags(site.get(f"/table/plan?{query}&operation=delete&where=region+%3D+%27eu%27")).text
    assert "partition values exclude every row" in plan
    assert "would be" not in plan
    assert "6 rewritten together" in Tags(site.get(f"/table/plan?{query}&operation=compact")).text


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("operation=delete&where=", "A condition is needed"),
        ("operation=delete&where=nonsense+%3D+1", "nonsense"),
        ("operation=delete&where=%3Cscript%3E", "something is missing"),
        ("operation=optimize&by=", "columns to order by"),
        ("operation=optimize&by=absent", "absent"),
        ("operation=drop", "cannot be planned"),
        ("operation=compact&mb=many", "no size"),
        ("operation=compact&mb=-1", "greater than zero"),
        ("operation=compact&mb=inf", "no size"),
        ("operation=compact&mb=nan", "no size"),
    ],
)
def test_a_plan_that_cannot_be_made_says_why(site: Site, asked: str, told: str) -> None:
    page = Tags(site.get(f"/table/plan?path=lake&path=orders&{asked}"))
    assert told in page.text
    assert [attrs.get("src") for tag, attrs in page.found if tag == "script"] == ["/page.js"]


def test_files_are_found_by_a_part_of_their_path(site: Site) -> None:
    found = Tags(site.get("/table/files?path=lake&path=orders&q=REGION%3Deu")).text
    assert "3 files" in found
    assert "No file." in site.get("/table/files?path=lake&path=orders&q=nowhere")


def test_names_from_outside_are_text_and_never_markup(site: Site) -> None:
    seen = walk(site)
    assert len(seen) > 15
    for target, answer in seen.items():
        tags = Tags(answer.text)
        scripts = [attrs.get("src") for tag, attrs in tags.found if tag == "script"]
        assert set(scripts) <= {"/page.js"}, target
        assert not [tag for tag, _ in tags.found if tag in ("img", "iframe", "object")], target
        assert not [name for _, attrs in tags.found for name in attrs if name.startswith("on")], target
    texts = " ".join(Tags(answer.text).text for answer in seen.values())
    assert HOSTILE in texts
    assert SCRIPT in texts


def test_every_answer_forbids_what_it_does_not_need(site: Site) -> None:
    for target in ("/", "/style.css", "/page.js", "/nowhere", "/table?path=..", "/pulse", "/card"):
        headers = site.ask(target).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "script-src 'self';" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


def test_nothing_is_asked_of_another_machine(site: Site) -> None:
    pages = [answer.text for answer in walk(site).values()]
    for text in [*pages, site.get("/style.css"), site.get("/page.js")]:
        known = text.replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"""(?:src|href|url\(|fetch\(|import)[^>]{0,3}["'(]?(?:https?:)?//""", known) == []


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "[::1]:{port}", ""]
)
def test_a_request_for_another_host_is_refused(site: Site, host: str) -> None:
    answer = site.ask("/", headers={"Host": host.format(port=site.port)})
    assert answer.code in (400, 421)
    assert "orders" not in answer.text


def test_localhost_is_this_machine(site: Site) -> None:
    assert site.ask("/", headers={"Host": f"localhost:{site.port}"}).code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_there_is_no_request_that_writes(site: Site, method: str) -> None:
    assert site.ask("/table?path=lake&path=orders", method=method).code == 405


def test_scripts_of_other_sites_get_nothing(site: Site) -> None:
    sent = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert site.ask("/table?path=lake&path=orders", headers=sent).code == 403
    assert site.ask("/", headers=sent | {"Sec-Fetch-Mode": "navigate"}).code == 200


@pytest.mark.parametrize(
    "target",
    [
        "/table?path=..&path=outside",
        "/table?path=../outside",
        "/table?path=%2e%2e%2foutside",
        "/table?path=lake&path=..&path=..&path=outside",
        "/table?path=lake&path=link",
        "/table?path=lake%2Forders",
        "/table?path=%00",
        "/table?path=",
        "/table?at=..&table=outside",
        "/table?at=lake&table=outside",
        "/table?table=outside",
        "/table/../../secret.txt",
        "/runs/../secret.txt",
        "/runs/0123456789ab/..%2fsecret.txt",
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "//etc/passwd",
    ],
)
def test_no_address_leads_out_of_the_lake(site: Site, target: str) -> None:
    for address in (target, target.replace("/table?", "/card?"), target.replace("/table?", "/table/files?")):
        answer = site.ask(address)
        assert answer.code == 404 or "/card?" in address
        assert "secret_column" not in answer.text
        assert "the secret" not in answer.text


def test_looking_changes_no_byte_and_reads_no_row(
    lake: Path, tree_digest: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("rows are read")

    for name in ("read", "read_row_group", "read_row_groups", "iter_batches"):
        monkeypatch.setattr(pq.ParquetFile, name, refuse)
    before = tree_digest(lake)
    with serve(lake) as site:
        answers = walk(site)
        answers["plan"] = site.ask("/table/plan?path=lake&path=orders&operation=delete&where=amount+%3C+5")
    assert tree_digest(lake) == before
    assert {answer.code for answer in answers.values()} <= {200, 500}
    assert [target for target, answer in answers.items() if "rows are read" in answer.text] == []


def test_a_page_of_many_files_stays_small(tmp_path: Path) -> None:
    root = tmp_path / "many"
    pq.write_table(pa.table({"a": [1]}), tmp_path / "one.parquet")
    for number in range(3000):
        directory = root / f"part={number % 150}"
        directory.mkdir(parents=True, exist_ok=True)
        os.link(tmp_path / "one.parquet", directory / f"{number:05}.parquet")
    with serve(root) as site:
        for target in ("/table", "/table/files", "/table/history", "/table/plan?operation=compact"):
            page = site.get(target)
            assert page.count("<rect") < 1400, target
            assert len(Tags(page).found) < 4000, target
        assert "3,000 files" in Tags(site.get("/card")).text
        first, last = site.get("/table/files"), site.get("/table/files?page=30")
        assert (first.count("</tr>"), last.count("</tr>")) == (152, 152)
        assert "page 30 of 30" in last
        assert site.get("/table/files?page=999").count("page 30 of 30") == 1


def test_a_lake_of_many_tables_has_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(130):
        (tmp_path / f"t{number:03}").mkdir()
        pq.write_table(pa.table({"a": [1]}), tmp_path / f"t{number:03}" / "a.parquet")
    with serve(tmp_path) as site:
        assert len(Tags(site.get("/")).list_cards()) == 60
        assert Tags(site.get("/?page=3")).list_cards()[-1] == "/card?path=t129"
        assert Tags(site.get("/?q=T12")).list_cards() == [f"/card?path=t12{n}" for n in range(10)]
    monkeypatch.setattr("intarsia.ui.lake.MOST_DIRECTORIES", 50)
    with serve(tmp_path) as site:
        assert "There may be more" in site.get("/")


def test_iceberg_tables_of_a_warehouse_show_their_deletes(tmp_path: Path) -> None:
    from intarsia.tables.iceberg.catalog import embedded_catalog

    catalog = embedded_catalog(tmp_path / "house")
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", make_rows(1).schema)
    catalog.create_table("shop.empty", make_rows(1).schema)
    table = it.iceberg("shop.orders", catalog=catalog, mode="merge-on-read")
    it.write(make_rows(100), table)
    it.delete(table, "amount < 5")
    with serve(tmp_path) as site:
        assert Tags(site.get("/")).list_cards() == [
            "/card?at=house&table=shop&table=empty",
            "/card?at=house&table=shop&table=orders",
        ]
        page = Tags(site.get("/table?at=house&table=shop&table=orders")).text
        assert "1 file of 1 have deletes" in page
        assert "5.0 %" in page
        assert "0 rows" in Tags(site.get("/card?at=house&table=shop&table=empty")).text
        assert "append" in Tags(site.get("/table/history?at=house&table=shop&table=orders")).text
        assert site.ask("/table?at=house&table=shop&table=absent").code == 404
    with serve(tmp_path / "house") as site:
        assert len(Tags(site.get("/")).list_cards()) == 2
    assert not (tmp_path / "catalog.db").exists()


def make_foreign_catalog(directory: Path, table: pa.Table, *, name: str) -> None:
    """A warehouse that PyIceberg made by itself, under a name of its own."""
    from pyiceberg.catalog.sql import SqlCatalog

    directory.mkdir()
    catalog = SqlCatalog(name, uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}")
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", table.schema).append(table)
    catalog.engine.dispose()


def test_a_warehouse_shows_catalogs_of_any_name_and_the_datasets_beside_them(tmp_path: Path) -> None:
    make_foreign_catalog(tmp_path / "house", make_rows(7), name="theirs")
    it.write(make_rows(3), tmp_path / "house" / "plain")
    with serve(tmp_path) as site:
        cards = Tags(site.get("/")).list_cards()
        assert cards == [
            "/card?path=house&path=plain",
            "/card?at=house&table=shop&table=orders&catalog=theirs",
        ]
        assert "7 rows" in Tags(site.get(cards[1])).text
        assert "house · theirs · shop" in Tags(site.get("/")).text
        assert site.ask("/table?at=house&table=shop&table=orders").code == 404
        assert site.ask("/table?at=house&table=shop&table=orders&catalog=absent").code == 404


def test_no_table_is_made_in_a_database_and_no_column_added(
    tmp_path: Path, tree_digest: Callable[[Path], Any]
) -> None:
    make_foreign_catalog(tmp_path / "old", make_rows(7), name="local")
    with closing(sqlite3.connect(tmp_path / "old" / "catalog.db")) as database:  # as Spark makes it
        database.execute("ALTER TABLE iceberg_tables DROP COLUMN iceberg_type")
        database.commit()
    for name in ("photos", "nothing"):
        (tmp_path / name).mkdir()
        with closing(sqlite3.connect(tmp_path / name / "catalog.db")) as database:
            database.execute("CREATE TABLE photos (name)" if name == "photos" else "VACUUM")
            database.commit()
    before = tree_digest(tmp_path)
    with serve(tmp_path) as site:
        assert Tags(site.get("/")).list_cards() == ["/card?at=old&table=shop&table=orders"]
        assert "7 rows" in Tags(site.get("/card?at=old&table=shop&table=orders")).text
    assert tree_digest(tmp_path) == before


@pytest.mark.parametrize("name", ["two\nlines", "\u202egpj", "a b&path=..", "%2e%2e"])
def test_forms_keep_the_name_of_a_table(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    pq.write_table(pa.table({"a": [1, 2, 3]}), tmp_path / name / "part-0.parquet")
    with serve(tmp_path) as site:
        card = Tags(site.get("/")).list_cards()[0]
        for tab in ("files", "plan"):
            page = Tags(site.get(card.replace("/card", f"/table/{tab}")))
            fields = {attrs["name"]: attrs.get("value") for tag, attrs in page.found if tag == "input"}
            assert "part-0.parquet" in site.get(f"/table/files?{urlencode({'of': fields['of']})}&q=part")


def test_a_table_whose_name_is_no_text_says_so(tmp_path: Path) -> None:
    directory = os.fsencode(tmp_path) + b"/bad\xff"
    os.mkdir(directory)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "one.parquet")
    (tmp_path / "one.parquet").rename(os.fsdecode(directory + b"/one.parquet"))
    with serve(tmp_path) as site:
        assert Tags(site.get("/")).list_cards() == ["/card?path=bad%FF"]
        assert "must be a path or URL as text" in site.get("/card?path=bad%FF")


def test_a_store_is_not_listed_every_few_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(_: Lake) -> None:
        raise AssertionError("the store is listed")

    monkeypatch.setattr(Lake, "_look", refuse)
    pages = Pages(Lake("lake", "s3://bucket/lake", extra_reports=(tmp_path,)))
    for query in (b"", b"path=orders"):
        asked = Request({"type": "http", "query_string": query, "headers": []})
        assert pages.show_pulse(asked).status_code == 200


def test_runs_graphs_and_expectations_are_shown(shop: Any) -> None:
    shop.declare(
        shop.file.read_text()
        + '\n[[steps]]\nname = "sound"\noperation = "expect"\ntarget = "orders"\n'
        + 'holds = "amount < 50"\naction = "warn"\n'
    )
    shop.lands("a.csv", {1: ("eu", 1.0), 2: ("us", 2.0)})
    shop.run()
    shop.lands("b.csv", {3: ("eu", 99.0)})
    report = shop.run()
    (shop.root / "reports" / "private.json").write_text('"private"')
    (shop.root / "reports" / "shop-20250101T000000-abcdef.html").symlink_to(shop.file)
    with serve(shop.root) as site:
        home = Tags(site.get("/"))
        index = next(link for link in home.list_links() if link.endswith("index.html"))
        runs = site.get(index)
        assert "Expectations of shop" in runs
        assert runs.count('<i class="good"') == 1
        assert runs.count('<i class="plan"') == 1
        base = index.removesuffix("index.html")
        page = site.get(base + Path(str(report.html_path)).name)
        assert "Graph" in page
        assert json.loads(site.get(base + Path(str(report.json_path)).name))["pipeline"] == "shop"
        for name in ("private.json", "shop.toml", "shop-20250101T000000-abcdef.html", "..%2fshop.toml"):
            assert site.ask(base + name).code == 404, name


def test_a_commit_and_a_run_change_the_pulse(shop: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 1.0)})
    shop.run()
    with serve(shop.root) as site:
        before, lake = site.get("/pulse?path=lake&path=orders"), site.get("/pulse")
        assert site.get("/pulse") == lake
        it.delete(shop.lake, "id = 1")
        assert site.get("/pulse?path=lake&path=orders") != before
        assert site.get("/pulse") == lake
        shop.lands("b.csv", {2: ("eu", 1.0)})
        shop.run()
        assert site.get("/pulse") != lake
        lake = site.get("/pulse")
        it.write(make_rows(3), shop.root / "lake" / "new")
        wait_until(lambda: site.get("/pulse") != lake)


def test_the_first_run_of_a_pipeline_is_shown_while_it_is_under_way(
    shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, shown = LiveReport.__exit__, []

    def look(self: LiveReport, *gone: Any) -> None:
        shown.append(site.get("/"))
        left(self, *gone)

    monkeypatch.setattr(LiveReport, "__exit__", look)
    shop.lands("a.csv", {1: ("eu", 1.0)})
    with serve(shop.root) as site:
        shop.run()
    assert '<section class="live">' in shown[-1]


def test_a_place_that_is_not_there_and_a_port_that_is_taken_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NothingMatched, match="no directory"):
        open_lake(str(tmp_path / "absent"))
    with pytest.raises(NothingMatched, match="no directory"):
        open_lake(str(tmp_path), reports=(str(tmp_path / "absent"),))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StorageError, match="cannot be used"), bind_loopback(taken.getsockname()[1]):
            pass


def test_the_command_says_where_the_page_is_and_ends_with_ctrl_c(lake: Path) -> None:
    command = [sys.executable, "-m", "intarsia", "ui", str(lake), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        address = json.loads("".join(running.stdout.readline() for _ in range(3)))["url"]
        try:
            assert "orders" in Site(address).get("/")
        finally:
            running.send_signal(2)
        assert running.wait(60) in (0, 130)


# In a browser


@pytest.fixture
def chromium(tmp_path: Path) -> Callable[..., str]:
    """``chromium(address, *flags)``: the page as a real browser has it after its script ran."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on this machine: the page is not looked at in a browser")

    def show(address: str, *flags: str) -> str:
        done = subprocess.run(
            [
                program,
                *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
                *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"),
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                f"--user-data-dir={tmp_path / 'profile'}",
                *("--virtual-time-budget=8000", "--dump-dom"),
                *flags,
                address,
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        # What the policy forbids, and every mistake of the script, is said on the console.
        assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
        return done.stdout

    return show


@pytest.mark.slow
def test_the_browser_loads_every_card_and_runs_no_script_of_a_name(
    site: Site, chromium: Callable[..., str]
) -> None:
    page = chromium(site.address)
    assert 'data-ready="yes"' in page
    assert page.count('class="loaded"') == 5
    assert "285" in page
    assert "DamagedTable" in page
    assert "<img" not in page


@pytest.mark.slow
def test_the_browser_follows_a_run_while_it_is_under_way(
    shop: Any, chromium: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.lands("a.csv", {1: ("eu", 1.0)})
    shop.run()
    shop.lands("b.csv", {2: ("eu", 1.0)})
    looked, left = threading.Event(), LiveReport.__exit__
    shown: list[str] = []

    def look(self: LiveReport, *gone: Any) -> None:
        """Before the run ends, the browser looks at it."""
        if not looked.is_set():
            looked.set()
            shown.append(chromium(site.address))
        left(self, *gone)

    monkeypatch.setattr(LiveReport, "__exit__", look)
    with serve(shop.root) as site:
        shop.run()
        after = chromium(site.address)
    assert shown[0].count('<section class="live">') == 1
    assert "running" in shown[0]
    assert '<section class="live">' not in after


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_fit_wide_and_narrow_windows(site: Site, browser: Browser, tmp_path: Path, theme: str) -> None:
    flags = (DARK,) if theme == "dark" else ()
    style = f"<style>{site.get('/style.css')}</style>"
    query = "path=lake&path=orders"
    for target in ("/", f"/table?{query}", f"/table/files?{query}", f"/table/history?{query}"):
        page = site.get(target)
        for card in Tags(page).list_cards():
            place = re.compile(re.escape(card.replace("&", "&amp;")) + r'".*?<div class="load">', re.S)
            loaded = site.get(card)
            page = place.sub(lambda found, loaded=loaded: found[0] + loaded, page, count=1)
        page = re.sub(r"<link [^>]*>|<script src[^>]*></script>", "", page).replace(
            "</head>", f"{style}</head>"
        )
        (tmp_path / "page.html").write_text(page)
        for seen in measure_page(browser, tmp_path / "page.html", *flags, widths=(1200, 390)):
            assert seen["over"] == 0, target
            assert seen["overlaps"] == [], target
            bright = measure_brightness(seen["paper"]) > 128
            assert bright == (theme == "light")
            assert abs(measure_brightness(seen["ink"]) - measure_brightness(seen["paper"])) > 100
