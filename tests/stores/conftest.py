"""Object stores: servers on this machine, in processes of their own, and buckets of them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stores_bucket import KEY, REGION, SECRET, Bucket, open_store, s3
from stores_faces import read_at_once, run_at_once
from stores_processes import Writers
from stores_servers import find_port, run_azurite, run_fake_gcs, run_versitygw, running

from intarsia.storage import s3 as s3_client
from intarsia.storage import trial
from intarsia.storage.azure import AzureTransport


@pytest.fixture(scope="session", autouse=True)
def memory() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(AzureTransport, "run", run_at_once(AzureTransport.run))
        patched.setattr(s3_client, "_read_range", read_at_once(s3_client._read_range))
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[int]:
    """The port of the server."""
    pytest.importorskip("moto", reason="moto is not installed")
    port = find_port()
    with running([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port):
        yield port


@pytest.fixture(scope="session")
def gateway_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a real server that speaks S3 keeps its objects: each is a file, put in place at once."""
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="session")
def gateway(gateway_directory: Path) -> Iterator[int]:
    """The port of that server."""
    with run_versitygw(gateway_directory) as port:
        yield port


@pytest.fixture(scope="session")
def azurite() -> Iterator[int]:
    """The port of a real server that speaks Azure's protocol."""
    with run_azurite() as port:
        yield port


@pytest.fixture(scope="session")
def fake_gcs() -> Iterator[int]:
    """The port of a server that speaks Google's protocol."""
    with run_fake_gcs() as port:
        yield port


_NUMBERS = itertools.count()


@pytest.fixture
def bucket(server: int) -> Bucket:
    name = f"bucket-{next(_NUMBERS)}"
    opened = s3(server, allow_bucket_creation=True)
    opened.create_dir(name)
    return Bucket(server, name, opened)


@pytest.fixture
def lake(request: pytest.FixtureRequest) -> Bucket:
    """A bucket of its own on a real server that is trusted, of the kind that the test is given."""
    kind = getattr(request, "param", "s3")
    port = request.getfixturevalue({"s3": "gateway", "azure": "azurite"}[kind])
    trial.forget()
    name = f"many-{next(_NUMBERS)}"
    opened = open_store(kind, port)
    opened.create_dir(name)
    return Bucket(port, name, opened, kind)


@pytest.fixture
def writers(lake: Bucket, tmp_path: Path) -> Iterator[Writers]:
    found = Writers(lake, tmp_path)
    yield found
    found.kill()


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
