"""Servers of object stores, on this machine, in processes of their own; built by ``make stores``."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from stores_bucket import ACCOUNT, ACCOUNT_KEY, KEY, SECRET

from intarsia.common.requests import S3_OPERATIONS

BUILT = Path(sys.prefix) / "stores"
SECONDS = 60


def find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    command: Sequence[str], port: int, environment: Mapping[str, str] = {}, *, log: Path = Path(os.devnull)
) -> Iterator[int]:
    """A server that answers at a port, as long as the block runs; what it says is in the log."""
    with (
        log.open("wb") as said,
        subprocess.Popen(command, env={**os.environ, **environment}, stdout=said, stderr=said) as process,
    ):
        try:
            ends = time.monotonic() + SECONDS
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    assert process.poll() is None, "the server has ended"
                    assert time.monotonic() < ends, "the server does not answer"
                    time.sleep(0.1)
            yield port
        finally:
            process.terminate()


def _find(program: str) -> str:
    path = os.environ.get(f"INTARSIA_{program.upper().replace('-', '_')}", str(BUILT / "bin" / program))
    if not os.access(path, os.R_OK):
        pytest.skip(f"{program} is not built: make stores")
    return path


@contextmanager
def run_versitygw(data: Path, *options: str) -> Iterator[int]:
    program, port = _find("versitygw"), find_port()
    environment = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
    command = [program, "--port", f"127.0.0.1:{port}", *options, "posix", str(data)]
    with running(command, port, environment):
        yield port


@contextmanager
def run_azurite() -> Iterator[int]:
    program, node, port = _find("azurite-blob"), shutil.which("node"), find_port()
    if node is None:
        pytest.skip("Azurite needs Node.js")
    # In memory, so that it leaves nothing; without a word to anybody; for any version of the protocol.
    command = [node, program, "--silent", "--disableTelemetry", "--inMemoryPersistence"]
    command += ["--skipApiVersionCheck", "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with running(command, port, {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"}):
        yield port


@contextmanager
def run_fake_gcs() -> Iterator[int]:
    program, port = _find("fake-gcs-server"), find_port()
    command = [program, "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-public-host", f"127.0.0.1:{port}", "-external-url", f"http://127.0.0.1:{port}"]
    with running(command, port):
        yield port


@contextmanager
def run_toxiproxy() -> Iterator[int]:
    """The port at which it is told what to do."""
    program, port = _find("toxiproxy-server"), find_port()
    with running([program, "-host", "127.0.0.1", "-port", str(port)], port):
        yield port


_LINE = re.compile(r'"?(GET|HEAD|PUT|POST|DELETE) (/\S*) HTTP/1.1')
_NAMED = re.compile(r" s3_(\w+) ")
"""versitygw names operations, and moto has the line of the request."""
_OF_BUCKETS = {"CreateBucket"}
"""Requests of the test itself, which makes a bucket."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class LoggedServer:
    """A server, and the file that has a line for each request it has answered."""

    port: int
    log: Path

    def count(self) -> Counter[str]:
        text = _COLOURS.sub("", self.log.read_text(errors="replace"))
        named = [S3_OPERATIONS[name] for name in _NAMED.findall(text) if name not in _OF_BUCKETS]
        found = [self._find_kind(method, url) for method, url in _LINE.findall(text)]
        return Counter([*found, *("PUT" if kind == "COPY" else kind for kind in named)])

    def _find_kind(self, method: str, url: str) -> str:
        """Of a copy, the log has the target only: it counts with the puts."""
        names = {one.partition("=")[0] for one in url.partition("?")[2].split("&")}
        if method == "GET":
            return "LIST" if "list-type" in names or "uploads" in names else "GET"
        if method == "POST":
            return "DELETE" if "delete" in names else "PUT"
        return method
