"""An answer of S3 that breaks off is asked for once more; where it breaks off again, an error says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow.fs as pafs
import pytest
import s3fs
from stores_bucket import KEY, REGION, SECRET

from intarsia.errors import StorageError
from intarsia.storage import ObjectStorage, open_storage

DATA = bytes(range(100))


class Server(ThreadingHTTPServer):
    """Gives one object, whose first answers end too early."""

    def __init__(self, broken: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.broken, self.asked = broken, 0


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        data = DATA[first : last + 1]
        self.server.asked += 1
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"a"')
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if self.server.asked <= self.server.broken else data)
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        return None


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def open_client(face: str, port: int) -> ObjectStorage:
    endpoint = f"127.0.0.1:{port}"
    filesystem: Any = (
        pafs.S3FileSystem(
            access_key=KEY, secret_key=SECRET, region=REGION, scheme="http", endpoint_override=endpoint
        )
        if face == "pyarrow"
        else s3fs.S3FileSystem(
            key=KEY,
            secret=SECRET,
            client_kwargs={"endpoint_url": f"http://{endpoint}", "region_name": REGION},
            skip_instance_cache=True,
        )
    )
    storage, _ = open_storage("bucket/lake", filesystem=filesystem)
    assert isinstance(storage, ObjectStorage)
    return storage


@pytest.mark.parametrize("face", ["pyarrow", "s3fs"])
@pytest.mark.parametrize("server", [1], indirect=True)
def test_a_range_that_breaks_off_is_asked_for_again(server: Server, face: str) -> None:
    storage = open_client(face, server.server_port)
    with storage.open_ranges("bucket/lake/x", len(DATA), '"a"') as file:
        assert file.read_at(40, 60) == DATA[60:]
    assert server.asked == storage.requests["GET"] == 2


@pytest.mark.parametrize("face", ["pyarrow", "s3fs"])
@pytest.mark.parametrize("server", [99], indirect=True)
def test_a_range_that_always_breaks_off_is_an_error_of_the_store(server: Server, face: str) -> None:
    storage = open_client(face, server.server_port)
    with storage.open_ranges("bucket/lake/x", len(DATA), '"a"') as file, pytest.raises(StorageError):
        file.read_at(40, 60)
    assert server.asked == 2
