"""What another program is told to read objects with: all that the file system's requests have, or nothing."""

from __future__ import annotations

import datetime as dt
import pickle
from typing import Any

import pyarrow.fs as pafs
import pytest
from stores_bucket import KEY, REGION, SECRET, Bucket

from intarsia.common.requests import RequestCounter
from intarsia.storage import open_storage
from intarsia.storage.s3 import find_access, find_client

GIVEN = {"access_key": KEY, "secret_key": SECRET, "region": REGION}
ON_LOOPBACK = {"endpoint_override": "127.0.0.1:1", "scheme": "http"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")


def describe(filesystem: pafs.FileSystem) -> tuple[Any, ...] | None:
    found = find_access(filesystem)
    assert SECRET not in repr(found)
    assert KEY not in repr(found)
    if found is None:
        return None
    assert (found.key, found.secret) == (KEY, SECRET)
    return found.host, found.region, found.encrypted, found.bucket_in_path, found.token


def test_keys_and_server_of_pyarrow() -> None:
    assert describe(pafs.S3FileSystem(**GIVEN, **ON_LOOPBACK)) == ("127.0.0.1:1", REGION, False, True, "")
    aws = pafs.S3FileSystem(**{**GIVEN, "region": "eu-central-1"}, session_token="aToken")
    assert describe(aws) == ("s3.eu-central-1.amazonaws.com", "eu-central-1", True, False, "aToken")


def test_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    without = pafs.S3FileSystem(region=REGION, **ON_LOOPBACK)
    assert describe(without) is None
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert describe(without) == ("127.0.0.1:1", REGION, False, True, "")


@pytest.mark.parametrize(
    "more",
    [
        {"proxy_options": {"scheme": "http", "host": "127.0.0.1", "port": 2}},
        {"tls_ca_file_path": "/nonexistent.pem"},
        {"endpoint_override": "127.0.0.1:1/below"},
    ],
    ids=["proxy", "certificate", "path"],
)
def test_nothing_is_told_where_there_is_more_to_it(more: dict[str, Any]) -> None:
    assert describe(pafs.S3FileSystem(**GIVEN, **{**ON_LOOPBACK, **more})) is None


def test_nothing_is_told_of_a_store_without_keys_or_of_another_kind() -> None:
    assert describe(pafs.S3FileSystem(anonymous=True, region=REGION, **ON_LOOPBACK)) is None
    assert describe(pafs.LocalFileSystem()) is None


@pytest.mark.parametrize("hours", [0.5, 2])
def test_credentials_that_expire_must_last_for_an_hour(hours: float) -> None:
    from botocore.credentials import RefreshableCredentials

    expires = dt.datetime.now(dt.UTC) + dt.timedelta(hours=hours)
    given = {"access_key": KEY, "secret_key": SECRET, "token": "aToken", "expiry_time": expires.isoformat()}
    open_client = find_client(pafs.S3FileSystem(**GIVEN, **ON_LOOPBACK))
    assert open_client is not None
    client = open_client(RequestCounter())
    signer = client._transport._client._request_signer
    signer._credentials = RefreshableCredentials.create_from_metadata(given, lambda: given, "test")
    found = client.find_access()
    assert (found is None) == (hours < 1)
    assert found is None or found.token == "aToken"


S3FS = {"key": KEY, "secret": SECRET, "endpoint_url": "http://127.0.0.1:1", "skip_instance_cache": True}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, True),
        ({"client_kwargs": {"region_name": REGION, "verify": False}}, False),
        ({"requester_pays": True}, False),
        ({"s3_additional_kwargs": {"SSECustomerKey": "x"}}, False),
        ({"version_aware": True}, False),
        ({"anon": True, "key": None, "secret": None}, False),
        ({"config_kwargs": {"proxies": {"http": "127.0.0.1:2"}}}, False),
    ],
    ids=["keys", "verify", "requester pays", "headers", "versions", "anonymous", "proxy"],
)
def test_keys_and_server_of_s3fs(more: dict[str, Any], told: bool) -> None:
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    opened = s3fs.S3FileSystem(**{"client_kwargs": {"region_name": REGION}, **S3FS, **more})
    found = describe(pafs.PyFileSystem(pafs.FSSpecHandler(opened)))
    assert found == (("127.0.0.1:1", REGION, False, True, "") if told else None)


def test_a_bucket_in_the_name_of_the_server() -> None:
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    more = {
        "client_kwargs": {"region_name": REGION},
        "config_kwargs": {"s3": {"addressing_style": "virtual"}},
    }
    opened = s3fs.S3FileSystem(**S3FS, **more)
    found = describe(pafs.PyFileSystem(pafs.FSSpecHandler(opened)))
    assert found == ("127.0.0.1:1", REGION, False, False, "")


def test_a_storage_tells_and_takes_no_secret_along(bucket: Bucket) -> None:
    storage, _ = open_storage(f"{bucket.name}/lake", filesystem=bucket.opened)
    again = pickle.loads(pickle.dumps(storage.find_access))
    assert again() == storage.find_access()
    assert again().host == f"127.0.0.1:{bucket.port}"
