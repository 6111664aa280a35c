"""Azure and Google Cloud Storage as users name them: URLs, options, what is trusted, what is never shown."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from stores_bucket import ACCOUNT, ACCOUNT_KEY, Bucket, azure, make_azure_options

import intarsia as it
from intarsia.doctor import examine
from intarsia.errors import IntarsiaError, KeyColumnError, NothingMatched, NotSupported, StorageError
from intarsia.storage import ObjectStorage, RemoteStorage, open_storage, trial
from intarsia.storage import azure as azure_client
from intarsia.storage import gcs as gcs_client
from intarsia.storage.conditional import IfMatch
from intarsia.tables.parquet import ParquetTable

ON_AZURE = pytest.mark.parametrize("lake", ["azure"], indirect=True)
ROOT = "lake/orders"
TOKEN = "ya29.aTokenOfTests"


def orders(numbers: Sequence[int], v: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64()), "v": pa.array([v] * len(numbers), pa.int64())})


def check_every_operation(root: str, **how: Any) -> None:
    def check() -> None:
        found = it.read(root, **{name: how[name] for name in how if name.startswith(("file", "storage"))})
        rows = found.read_all().to_pydict()
        assert sorted(zip(rows["id"], rows["v"], strict=True)) == sorted(expected.items())

    it.write(orders(range(20)), root, **how)
    it.write(orders(range(20, 30)), root, **how)
    assert it.merge(orders([1, 22, 40], v=1), root, on="id", **how).updated == 2
    expected = dict.fromkeys(range(30), 0) | {1: 1, 22: 1, 40: 1}
    check()
    assert it.delete(root, "id % 10 = 3", **how).deleted == 3
    expected = {n: v for n, v in expected.items() if n % 10 != 3}
    assert it.update(root, {"v": "v + 5"}, "id < 5", **how).updated == 4
    expected = {n: v + 5 if n < 5 else v for n, v in expected.items()}
    check()
    it.compact(root, **how)
    check()
    it.write(orders([7], v=7), root, mode="overwrite", **how)
    expected = {7: 7}
    check()


@ON_AZURE
@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_a_url_of_azure_and_its_options_have_every_operation(lake: Bucket, engine: str) -> None:
    options = make_azure_options(lake.port)
    check_every_operation(f"abfs://{lake.name}/{ROOT}", storage_options=options, engine=engine)
    assert not [key for key in lake.files() if "/tx/" in key]
    assert lake.rows(ROOT, "id", "v") == [(7, 7)]


@ON_AZURE
def test_doctor_tells_that_azure_is_trusted(lake: Bucket) -> None:
    url, options = f"abfs://{lake.name}/{ROOT}", make_azure_options(lake.port)
    found = {one.subject: one for one in examine(url, storage_options=options)}
    assert found["File system"].state == "ok", found
    assert "conditional requests hold" in found["File system"].detail
    assert ACCOUNT_KEY not in str(found)


@ON_AZURE
def test_nobody_gets_to_see_the_key_of_an_account(lake: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="intarsia")
    url, options = f"abfs://{lake.name}/{ROOT}", make_azure_options(lake.port)
    told: list[Any] = [it.write(orders(range(5)), url, storage_options=options)]
    told.append(it.merge(orders([1], v=1), url, on="id", storage_options=options))
    key = f"{ACCOUNT_KEY[:-4]}AAA="
    wrong = {name: text.replace(ACCOUNT_KEY, key) for name, text in options.items()}
    for call in (
        lambda: it.merge(orders([1]), url, on="nothing", storage_options=options),
        lambda: it.delete(f"{url}-elsewhere", "id = 1", storage_options=options),
        lambda: it.write(orders([1]), "abfs://no-such-container/x/y", storage_options=options),
        lambda: it.merge(orders([1]), url, on="id", storage_options=wrong),
    ):
        with pytest.raises((KeyColumnError, NothingMatched, StorageError)) as caught:
            call()
        told.append(caught.value)
    storage, _ = open_storage(url, storage_options=options)
    told += [storage, storage.client, pickle.loads(pickle.dumps(storage)).client.endpoint]
    shown = "".join(f"{one} {one!r}" for one in told) + caplog.text
    assert ACCOUNT_KEY[:-4] not in shown
    contents = b"".join(lake.contents().values())
    assert ACCOUNT_KEY.encode() not in contents


@ON_AZURE
def test_a_server_that_reads_no_url_is_sent_the_bytes_and_asked_once(
    lake: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azurite does not know Put Block From URL; Azure does."""
    monkeypatch.setattr(azure_client, "SMALL", 10)
    monkeypatch.setattr(azure_client, "PART", 300)
    storage, _ = open_storage(f"{lake.name}/{ROOT}", filesystem=lake.opened)
    assert isinstance(storage, ObjectStorage)
    client = storage.client
    asked = []
    honest = azure_client.AzureClient._stage_from_url
    monkeypatch.setattr(
        azure_client.AzureClient,
        "_stage_from_url",
        lambda self, *given: (asked.append(given), honest(self, *given)),
    )
    storage.write(f"{lake.name}/a", b"x" * 1000)
    storage.write(f"{lake.name}/b", b"old")
    tag = client.head(f"{lake.name}/b").tag
    assert storage.place(f"{lake.name}/a", f"{lake.name}/b", tag, "f" * 32)
    assert client.get(f"{lake.name}/b") == b"x" * 1000
    assert not storage.place(f"{lake.name}/a", f"{lake.name}/b", tag, "e" * 32)
    assert len(asked) == 1


def test_settings_of_pyarrow_are_followed_without_showing_them() -> None:
    token = pafs.GcsFileSystem(access_token=TOKEN, credential_token_expiration=_in_an_hour())
    for filesystem in (azure(1), token):
        storage, _ = open_storage(f"bucket/{ROOT}", filesystem=filesystem)
        assert isinstance(storage, ObjectStorage)
        shown = f"{storage!r} {storage.client!r} {storage.client.endpoint} {storage.client.__dict__}"
        assert ACCOUNT_KEY not in shown
        assert TOKEN not in shown
    azured, _ = open_storage(f"bucket/{ROOT}", filesystem=azure(1))
    assert azured.client.endpoint == f"http://127.0.0.1:1/{ACCOUNT}"


def _in_an_hour() -> Any:
    import datetime as dt

    return dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)


def test_without_the_extra_the_store_can_only_be_appended_to_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(azure_client, "_has_client", lambda: False)
    monkeypatch.setattr(gcs_client, "_has_gcsfs", lambda: False)
    for filesystem, extra in ((azure(1), "azure"), (pafs.GcsFileSystem(anonymous=True), "gcs")):
        table = ParquetTable(f"bucket/{ROOT}", filesystem=filesystem)
        assert type(table.storage) is RemoteStorage
        assert f"pip install 'intarsia[{extra}]'" in str(table.try_store())


# A server that speaks Google's protocol and cannot be trusted.


@pytest.fixture
def google(fake_gcs: int) -> Iterator[tuple[Any, str]]:
    from gcsfs.core import GCSFileSystem

    trial.forget()
    opened = GCSFileSystem(token="anon", project="tests", endpoint_url=f"http://127.0.0.1:{fake_gcs}")
    name = f"bucket-{uuid.uuid4().hex}"
    opened.mkdir(name)
    yield opened, name
    trial.forget()


def test_the_server_for_gcs_ignores_conditions_of_copies_and_is_refused_for_that(
    google: tuple[Any, str],
) -> None:
    """fake-gcs-server 1.56.1 heeds conditions of uploads, and of nothing else."""
    opened, name = google
    root, how = f"{name}/{ROOT}", {"filesystem": opened}
    it.write(orders(range(10)), root, **how)
    reason = ParquetTable(root, **how).try_store()
    assert reason is not None
    assert "If-Match is ignored where a large object is copied" in reason
    with pytest.raises(NotSupported, match="single_writer=True"):
        it.merge(orders([1], v=1), root, on="id", **how)


def test_conditions_of_uploads_hold_on_the_server_for_gcs(
    google: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, name = google
    storage, path = open_storage(f"{name}/{ROOT}", filesystem=opened)
    assert isinstance(storage, ObjectStorage)
    monkeypatch.setattr(trial, "_try_large", lambda *_: None)
    assert trial.try_store(storage.client, f"{path}-trial").failure is None
    storage.client.put(f"{path}/x", b"1")
    storage.client.delete(f"{path}/x", IfMatch(storage.client.head(f"{path}/x").tag))
    assert storage.client.head(f"{path}/x") is None


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_a_single_writer_on_gcs_has_every_operation(google: tuple[Any, str], engine: str) -> None:
    opened, name = google
    check_every_operation(f"{name}/{ROOT}", filesystem=opened, engine=engine, single_writer=True)


def test_an_error_of_gcs_is_one_of_ours(google: tuple[Any, str]) -> None:
    opened, _ = google
    with pytest.raises(IntarsiaError):
        it.write(orders([1]), "no-such-bucket/x/y", filesystem=opened)
