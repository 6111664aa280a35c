"""A way to a real server that counts requests, of whatever process they are, and fails at one of them."""

from __future__ import annotations

import http.client
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = ("cut", "lost", "late", "500", "503", "gone", "expired")
"""No answer, and the request is not, is, or is later carried out; an error; then no answer, or refusals."""
SHORT = ("cut", "lost", "late", "500", "503")
LONGEST = 2.0
LASTING = ("gone", "expired")
_ERRORS = {"500": (500, "InternalError"), "503": (503, "SlowDown"), "expired": (403, "ExpiredToken")}


class FaultyProxy:
    """Requests pass through it unchanged, signatures and all."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.sent: list[str] = []
        self.met: Counter[str] = Counter()
        self._at, self._fault = 0, ""
        self._chance: random.Random | None = None
        self._often = 0.0
        self._held: list[threading.Timer] = []
        self._guard = threading.Lock()
        self.port = 0

    def arm(self, at: int = 0, fault: str = "") -> None:
        """Count anew; the fault comes at the request with this number, from 1."""
        with self._guard:
            self.sent, self._at, self._fault, self._chance = [], at, fault, None

    def rage(self, often: float, seed: int) -> None:
        """Until it is armed again, such a part of all requests meets some fault."""
        with self._guard:
            self.met.clear()
            self._chance, self._often = random.Random(seed), often

    def hold(self, send: Callable[[], object]) -> None:
        """Send a request later: when it is released, or where any request may meet a fault, by itself."""
        with self._guard:
            delay = self._chance.uniform(0.1, LONGEST) if self._chance else 3600.0
            timer = threading.Timer(delay, send)
            self._held.append(timer)
        timer.start()

    def release(self) -> None:
        """Carry out what was held back."""
        with self._guard:
            held, self._held = self._held, []
        for timer in held:
            if timer.interval > LONGEST:
                timer.cancel()
                timer.function()
            timer.join()

    def choose_fault(self, request: str) -> str:
        """What happens to a request that comes in now."""
        with self._guard:
            self.sent.append(request)
            if self._chance is not None:
                if self._chance.random() >= self._often:
                    return ""
                fault = self._chance.choice(SHORT)
                self.met[fault] += 1
                return fault
            here = len(self.sent)
            over = self._fault in LASTING and 0 < self._at < here
            return self._fault if over or here == self._at else ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultyProxy

    def _pass_on(self) -> None:
        body = self._read_body()
        fault = self.proxy.choose_fault(f"{self.command} {self.path}")
        if fault in ("cut", "gone"):
            self.close_connection = True
            return
        if fault in _ERRORS:
            self._refuse(*_ERRORS[fault])
            return
        if fault == "late":
            self.close_connection = True
            self.proxy.hold(partial(self._send, body))
            return
        answer, data = self._send(body)
        if fault == "lost":
            self.close_connection = True
            return
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        self.wfile.write(data)

    def _send(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        upstream = http.client.HTTPConnection("127.0.0.1", self.proxy.upstream, timeout=60)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection"):
                    upstream.putheader(name, value)
            upstream.endheaders(body)
            answer = upstream.getresponse()
            return answer, answer.read()
        finally:
            upstream.close()

    def _read_body(self) -> bytes:
        """The bytes of a body, as they are on the wire."""
        if "chunked" not in self.headers.get("Transfer-Encoding", "").lower():
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        lines = [self.rfile.readline()]
        while size := int(lines[-1].partition(b";")[0], 16):
            lines += [self.rfile.read(size), self.rfile.readline(), self.rfile.readline()]
        while lines[-1].strip():  # trailers
            lines.append(self.rfile.readline())
        return b"".join(lines)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on

    def _refuse(self, status: int, code: str) -> None:
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the test says what went wrong."""


@contextmanager
def run_proxy(upstream: int) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(upstream)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        proxy.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.release()
            server.shutdown()
            thread.join()
