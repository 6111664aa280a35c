"""A role to assume that a file system of PyArrow names: requests of commits go out with its credentials."""

from __future__ import annotations

import pyarrow.fs as pafs
import pytest
from stores_bucket import KEY, REGION, SECRET, Bucket

import intarsia as it
from intarsia.errors import StorageError
from intarsia.storage import ObjectStorage, open_storage
from intarsia.storage.s3 import BotocoreTransport

ROLE = "arn:aws:iam::123456789012:role/merger"


def open_with_role(port: int) -> pafs.S3FileSystem:
    return pafs.S3FileSystem(
        role_arn=ROLE,
        session_name="tests",
        external_id="anExternalId",
        region=REGION,
        scheme="http",
        endpoint_override=f"127.0.0.1:{port}",
    )


def test_a_role_of_pyarrow_is_assumed_for_conditional_requests(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", bucket.endpoint)
    storage, path = open_storage(f"{bucket.name}/lake/orders", filesystem=open_with_role(bucket.port))
    assert isinstance(storage, ObjectStorage)
    storage.client.put(f"{path}/x", b"1")
    assert storage.client.get(f"{path}/x") == b"1"
    transport = storage.client._transport
    assert isinstance(transport, BotocoreTransport)
    used = transport._client._request_signer._credentials.get_frozen_credentials()
    assert used.access_key.startswith("ASIA"), "STS has given these, for a while"
    assert used.token
    assert used.access_key != KEY
    assert used.secret_key not in f"{storage!r} {storage.client!r}"


def test_a_role_that_cannot_be_assumed_is_told_and_not_passed_over(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    storage, path = open_storage(f"{bucket.name}/lake/orders", filesystem=open_with_role(bucket.port))
    with pytest.raises(StorageError, match="role/merger cannot be assumed: there are no credentials"):
        storage.names(path)
    with pytest.raises(StorageError):
        it.delete(f"{bucket.name}/lake/orders", "id = 1", filesystem=open_with_role(bucket.port))
