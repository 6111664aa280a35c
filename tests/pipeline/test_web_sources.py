"""Sources behind http: fetched once in a run, told from each other by what is in them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from intarsia import pipeline
from intarsia.errors import InputError, NothingMatched, StorageError
from intarsia.pipeline import steps


class _Quiet(SimpleHTTPRequestHandler):
    asked: list[str] = []  # noqa: RUF012  of one server at a time

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """A web server on loopback over the directory ``web``."""
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.csv").write_text("id,region,amount\n1,eu,1.5\n2,ap,-2\n")
    _Quiet.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path / "web")))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def _from(shop: Any, url: str) -> None:
    check = '[[steps]]\nname = "sound"\noperation = "expect"\nsource = "landing"\nunique = "id"\n\n[[steps]]'
    text = shop.file.read_text().replace("landing/*.csv", url)
    shop.declare(text.replace("[[steps]]", check, 1))


def test_a_file_on_the_web_is_fetched_once_and_left_alone_until_it_changes(
    site: str, shop: Any, ids: Any, tmp_path: Path
) -> None:
    _from(shop, f"{site}/a.csv")
    report = shop.run().check()
    assert report.step("upsert").result.inserted == 2
    assert _Quiet.asked == ["/a.csv"]
    assert ids(shop) == [1]
    assert set(shop.statuses().values()) == {"unchanged"}
    (tmp_path / "web" / "a.csv").write_text("id,region,amount\n1,eu,1.5\n3,ap,+2\n")  # as long as before
    assert shop.run().check().step("upsert").result.inserted == 1
    assert ids(shop) == [1, 3]


def test_what_was_fetched_is_removed(
    site: str, shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    _from(shop, f"{site}/a.csv")
    shop.run().check()
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("gone.csv", NothingMatched, "HTTP 404"),
        ("*.csv", InputError, "lists no files"),
    ],
)
def test_a_url_without_a_file_fails_the_step_and_is_named(
    name: str, kind: Any, words: str, site: str, shop: Any
) -> None:
    _from(shop, f"{site}/{name}")
    error = shop.run().failed.error
    assert isinstance(error, kind)
    assert words in str(error)
    assert site in str(error)


def test_a_server_that_does_not_answer_is_a_storage_error(shop: Any) -> None:
    _from(shop, "http://127.0.0.1:1/a.csv")
    assert isinstance(shop.run().failed.error, StorageError)


def test_local_files_and_the_web_are_two_sources(site: str, shop: Any) -> None:
    shop.lands("a.csv", {1: ("eu", 1.0)})
    text = shop.file.read_text()
    shop.declare(text.replace('"landing/*.csv"', f'["landing/*.csv", "{site}/a.csv"]'))
    assert "one kind of place" in str(shop.run().failed.error)


def test_a_file_on_the_web_is_merged_on_spark(site: str, tmp_path: Path, spark: Any, rows: Any) -> None:
    columns = {"id": "bigint", "region": "varchar", "amount": "double"}
    made = pipeline.Pipeline(
        name="web",
        sources={"web": pipeline.Source(f"{site}/a.csv", columns=columns, derive={"twice": "amount * 2"})},
        targets={"t": pipeline.Target(str(tmp_path / "t"), partition_by="region")},
        steps=(
            pipeline.Expect(source="web", unique="id", min_rows=2),
            pipeline.Merge(source="web", target="t", on="id"),
        ),
        reports=str(tmp_path / "reports"),
    )
    pipeline.run(made, session=spark, progress=False).check()
    assert {row["id"]: row["twice"] for row in rows(tmp_path / "t")} == {1: 3.0, 2: -4.0}
    again = pipeline.run(made, session=spark, progress=False)
    assert {step.status for step in again.steps} == {"unchanged"}


def test_an_error_of_another_library_is_told_as_one_of_ours_with_the_target_as_it_was(
    shop: Any, monkeypatch: pytest.MonkeyPatch, tree_digest: Any
) -> None:
    shop.lands("a.csv", {1: ("eu", 1.0)})
    shop.run().check()
    before = tree_digest(shop.lake)
    shop.lands("a.csv", {1: ("eu", 2.0)})

    def broken(*_: Any, **__: Any) -> Any:
        raise OSError(5, "Input/output error", "/some/file")

    monkeypatch.setattr(steps.api, "merge", broken)
    failed = shop.run().failed
    assert isinstance(failed.error, StorageError)
    assert isinstance(failed.error.__cause__, OSError)
    assert failed.error.errno == 5
    assert failed.notes == ("the target is as it was",)
    assert tree_digest(shop.lake) == before
