"""A running page of a lake, what it answers, and the elements of its pages."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from intarsia.ui.lake import open_lake
from intarsia.ui.server import bind_loopback, make_server


class Answer:
    def __init__(self, code: int, headers: dict[str, str], text: str) -> None:
        self.code, self.headers, self.text = code, headers, text


class Site:
    """A running server, and what it answers."""

    def __init__(self, address: str) -> None:
        self.address = address
        parts = urlsplit(address)
        self.host, self.port = str(parts.hostname), int(parts.port or 0)

    def ask(self, target: str, *, method: str = "GET", headers: dict[str, str] | None = None) -> Answer:
        """Send exactly this target: no library may tidy it up."""
        asked = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            asked.putrequest(method, target, skip_host="Host" in (headers or {}))
            for name, value in (headers or {}).items():
                asked.putheader(name, value)
            asked.endheaders()
            got = asked.getresponse()
            sent = {name.lower(): value for name, value in got.getheaders()}
            return Answer(got.status, sent, got.read().decode())
        finally:
            asked.close()

    def get(self, target: str) -> str:
        answer = self.ask(target)
        assert answer.code == 200, answer.text
        return answer.text


@contextmanager
def serve(place: Path | str, **options: Any) -> Iterator[Site]:
    ready = threading.Event()
    with bind_loopback(0) as bound:
        told: list[str] = []
        server = make_server(open_lake(str(place), **options), bound, lambda a: (told.append(a), ready.set()))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            assert ready.wait(60)
            yield Site(told[0])
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


def wait_until(happens: Callable[[], bool]) -> None:
    for _ in range(100):
        if happens():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen within ten seconds")


def make_rows(count: int, start: int = 0) -> pa.Table:
    ids = list(range(start, start + count))
    return pa.table(
        {"id": ids, "amount": [n % 100 for n in ids], "region": [("eu", "us")[n % 2] for n in ids]}
    )


class Tags(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def list_links(self) -> list[str]:
        return [str(attrs["href"]) for tag, attrs in self.found if tag == "a" and attrs.get("href")]

    def list_cards(self) -> list[str]:
        return [str(attrs["data-load"]) for tag, attrs in self.found if tag == "article"]
