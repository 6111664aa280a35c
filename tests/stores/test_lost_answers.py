"""Answers that are lost, late or cut on their way from a real server (versitygw behind toxiproxy).

Both are built by ``make stores``; without them these tests are skipped.
"""

from __future__ import annotations

import json
import os
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from stores_bucket import Bucket, s3
from stores_servers import find_port, run_toxiproxy

import intarsia as it
from intarsia.storage import conditional
from intarsia.storage.s3 import BotocoreTransport

FULL = os.environ.get("INTARSIA_STORES") == "full"
ROOT = "lake/orders"
CUT = ("limit_data", "downstream", {"bytes": 30})
"""Behind the 25 bytes by which a server asks for the body: the request is carried out, its answer is lost."""
TOXICS = {
    "the request is cut": ("limit_data", "downstream", {"bytes": 10}),
    "the answer is cut": CUT,
    "the connection is reset": ("reset_peer", "downstream", {"timeout": 0}),
    "the request gets stuck": ("timeout", "upstream", {"timeout": 300}),
    "the answer is late": ("latency", "downstream", {"latency": 400, "jitter": 100}),
}


@dataclass
class Proxy:
    """A way to the server that can be made to fail."""

    control: int
    port: int

    def send(self, method: str, path: str, body: Any = None) -> None:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.control}{path}", data=data, method=method)
        urllib.request.urlopen(request, timeout=10).close()

    @contextmanager
    def failing(self, kind: str, stream: str, attributes: dict[str, int]) -> Iterator[None]:
        toxic = {"name": "fault", "type": kind, "stream": stream, "attributes": attributes}
        self.send("POST", "/proxies/store/toxics", toxic)
        try:
            yield
        finally:
            self.send("DELETE", "/proxies/store/toxics/fault")


@pytest.fixture(scope="module")
def toxiproxy(gateway: int) -> Iterator[Proxy]:
    with run_toxiproxy() as control:
        proxy = Proxy(control, find_port())
        listen = f"127.0.0.1:{proxy.port}"
        proxy.send(
            "POST",
            "/proxies",
            {"name": "store", "listen": listen, "upstream": f"127.0.0.1:{gateway}", "enabled": True},
        )
        yield proxy


def orders(rows: dict[int, int]) -> pa.Table:
    return pa.table({"id": pa.array(rows, pa.int64()), "v": pa.array(rows.values(), pa.int64())})


class Saboteur:
    """Makes the way fail while one request is under way, with all that the client repeats of it by itself."""

    def __init__(self, proxy: Proxy, toxic: Any, wanted: str, *, seconds: float | None = None) -> None:
        self.met: list[str] = []
        self._proxy, self._toxic, self._wanted, self._seconds = proxy, toxic, wanted, seconds
        self._guard = threading.Lock()

    def wrap(self, honest: Any) -> Any:
        def call(transport: BotocoreTransport, method: str, **given: Any) -> Any:
            key = given.get("Key", "")
            with self._guard:
                meets = not self.met and method == "put_object" and self._wanted in key
                if meets:
                    self.met.append(key)
            if not meets:
                return honest(transport, method, **given)
            return self._fail(lambda: honest(transport, method, **given))

        return call

    def _fail(self, send: Any) -> Any:
        if self._seconds is None:
            with self._proxy.failing(*self._toxic):
                return send()
        over, ended = threading.Event(), threading.Event()

        def fail_for_a_while() -> None:
            with self._proxy.failing(*self._toxic):
                ended.set()
                over.wait(self._seconds)

        thread = threading.Thread(target=fail_for_a_while)
        thread.start()
        ended.wait(10)
        try:
            return send()  # what the client sends again by itself meets what it has written
        finally:
            over.set()
            thread.join()


def _prepare(lake: Bucket, proxy: Proxy, engine: str) -> tuple[str, dict[str, Any]]:
    target = f"{lake.name}/{ROOT}"
    filesystem = s3(proxy.port, connect_timeout=2, request_timeout=3)
    for first in (0, 10):
        it.write(orders(dict.fromkeys(range(first, first + 10), 0)), target, filesystem=lake.opened)
    return target, {"filesystem": filesystem, "engine": engine}


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
@pytest.mark.parametrize("wanted", ["/log/", f"{ROOT}/"] if FULL else ["/log/"])
@pytest.mark.parametrize(
    "toxic", TOXICS if FULL else ["the answer is cut"], ids=lambda name: name.replace(" ", "-")
)
def test_a_commit_whose_answer_does_not_come_takes_effect_once(
    lake: Bucket, toxiproxy: Proxy, monkeypatch: pytest.MonkeyPatch, toxic: str, wanted: str, engine: str
) -> None:
    target, how = _prepare(lake, toxiproxy, engine)
    saboteur = Saboteur(toxiproxy, TOXICS[toxic], wanted)
    with monkeypatch.context() as patched:
        patched.setattr(BotocoreTransport, "call", saboteur.wrap(BotocoreTransport.call))
        result = it.merge(orders({3: 1, 13: 1, 40: 1}), target, on="id", **how)
    assert saboteur.met
    assert (result.updated, result.inserted, result.version) == (2, 1, 3)
    expected = dict.fromkeys(range(20), 0) | {3: 1, 13: 1, 40: 1}
    assert lake.rows(ROOT, "id", "v") == sorted(expected.items())
    assert not [key for key in lake.files() if "/tx/" in key]
    assert it.snapshot(target, filesystem=lake.opened).version == 3


@pytest.mark.parametrize("seconds", [0.02, 0.2] if FULL else [0.1])
def test_a_refusal_of_what_the_client_has_repeated_by_itself_is_no_conflict(
    lake: Bucket, toxiproxy: Proxy, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    target, how = _prepare(lake, toxiproxy, "arrow")
    saboteur = Saboteur(toxiproxy, CUT, "/log/", seconds=seconds)
    monkeypatch.setattr(BotocoreTransport, "call", saboteur.wrap(BotocoreTransport.call))
    result = it.write(orders({50: 5}), target, **how)
    assert saboteur.met
    assert result.version == 3
    assert lake.rows(ROOT, "id", "v") == [*((n, 0) for n in range(20)), (50, 5)]


def test_where_no_answer_counts_as_failed_the_same_check_finds_doubled_rows(
    lake: Bucket, toxiproxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""

    def send_once(send: Any, _look: Any, _path: str) -> bool:
        try:
            send()
        except (conditional.ConditionFailed, conditional.Unanswered):
            return False
        return True

    target, how = _prepare(lake, toxiproxy, "arrow")
    monkeypatch.setattr(conditional, "_resolve", send_once)
    saboteur = Saboteur(toxiproxy, CUT, "/log/")
    monkeypatch.setattr(BotocoreTransport, "call", saboteur.wrap(BotocoreTransport.call))
    it.write(orders({50: 5}), target, **how)
    assert lake.rows(ROOT, "id", "v").count((50, 5)) == 2
