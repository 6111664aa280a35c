"""An object store: a server that speaks S3, on this machine, in a process of its own."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stores_bucket import KEY, REGION, SECRET, Bucket, s3

SECONDS = 60


@pytest.fixture(scope="session")
def server() -> Iterator[int]:
    """The port of the server."""
    pytest.importorskip("moto", reason="moto is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait(process, port)
            yield port
        finally:
            process.terminate()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        assert process.poll() is None, "the server has ended"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError("the server does not answer")


_NUMBERS = itertools.count()


@pytest.fixture
def bucket(server: int) -> Bucket:
    name = f"bucket-{next(_NUMBERS)}"
    opened = s3(server, allow_bucket_creation=True)
    opened.create_dir(name)
    return Bucket(server, name, opened)


@pytest.fixture(params=["pyarrow", "s3fs"])
def store(request: pytest.FixtureRequest, server: int) -> Callable[[], Any]:
    """Opens the store as a file system: PyArrow's own, or one of fsspec."""
    if request.param == "pyarrow":
        return lambda: s3(server)
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    return lambda: s3fs.S3FileSystem(
        key=KEY,
        secret=SECRET,
        endpoint_url=f"http://127.0.0.1:{server}",
        client_kwargs={"region_name": REGION},
    )


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Any:
    """An engine by its name, or the Spark session."""
    return request.getfixturevalue("spark") if request.param == "spark" else request.param
