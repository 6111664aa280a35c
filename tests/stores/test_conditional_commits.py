"""Many writers on an object store: which stores are trusted, what is kept, what is swept, what is refused."""

from __future__ import annotations

import contextlib
import errno
import json
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pyarrow.fs as pafs
import pytest
from stores_bucket import KEY, SECRET
from stores_faces import KINDS, open_memory
from stores_faults import (
    BEFORE,
    BY_NAME,
    CONTROL,
    NEXT,
    ROOT,
    TARGET,
    carry_out,
    make_how,
    make_server,
    orders,
    prepared,
    read,
)
from stores_memory import ENDPOINT, Killed, MemoryStore, Process

import intarsia as it
from intarsia.doctor import examine
from intarsia.errors import CommitConflict, CommitUnknown, DamagedTable, NotSupported, StorageError
from intarsia.storage import ObjectStorage, open_storage, trial
from intarsia.tables.parquet import ParquetTable, slot_journal

PUBLISHED = (f"put_object {ROOT}/", f"rewrite_object {ROOT}/")


@pytest.fixture
def untried() -> Iterator[None]:
    trial.forget()
    yield
    trial.forget()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """A kind of store."""
    return str(request.param)


@pytest.fixture
def server(kind: str) -> Iterator[MemoryStore]:
    with prepared():
        yield make_server(kind)


def open_table(server: MemoryStore, **how: Any) -> ParquetTable:
    return ParquetTable(TARGET, filesystem=open_memory(Process(server)), **how)


# The trial.


@pytest.mark.usefixtures("untried")
def test_a_store_whose_conditions_hold_is_tried_once_and_leaves_nothing(kind: str) -> None:
    server = MemoryStore(kind)
    assert open_table(server).try_store() is None
    assert server.objects == {}
    assert server.uploads == {}
    process = Process(server)
    assert ParquetTable(TARGET, filesystem=open_memory(process)).try_store() is None
    assert len(process.sent) == 1, "another process's answer in the control directory is looked for"


@pytest.mark.parametrize(
    ("heeds", "reason"),
    [
        (set(), "If-None-Match is ignored: an object that exists is created again"),
        ({"put"}, "If-Match is ignored where a large object is copied"),
    ],
)
@pytest.mark.usefixtures("untried")
def test_a_store_that_ignores_a_condition_is_refused_by_its_name(
    kind: str, heeds: set[str], reason: str
) -> None:
    server = MemoryStore(kind, heeds=frozenset(heeds))
    how = make_how(Process(server))
    it.write(orders(BEFORE), TARGET, **how)
    before = dict(server.objects)
    for change in (
        lambda: it.merge(orders([(1, 9)]), TARGET, on="id", **how),
        lambda: it.merge(orders([(1, 9)]), TARGET, on="id", dry_run=True, **how),
        lambda: it.delete(TARGET, "id = 1", **how),
    ):
        with pytest.raises(NotSupported, match=reason):
            change()
    assert server.objects == before
    it.merge(orders([(1, 9)]), TARGET, on="id", single_writer=True, **how)
    assert (1, 9) in server.rows(ROOT, "id", "v")


class Racy(MemoryStore):
    """Checks the condition, then writes: fine for one client, wrong for many."""

    def request(self, method: str, **given: Any) -> dict[str, Any]:
        if method != "put_object" or not {"IfMatch", "IfNoneMatch"} & set(given):
            return super().request(method, **given)
        self._check(given["Key"], "put", given)
        time.sleep(0.02)
        return super().request(method, **{k: v for k, v in given.items() if not k.startswith("If")})


@pytest.mark.usefixtures("untried")
def test_a_store_whose_conditions_do_not_hold_under_load_is_refused(kind: str) -> None:
    reason = open_table(Racy(kind)).try_store()
    assert reason is not None
    assert "of 20 creations at once succeeded, where one may" in reason


class Refusing(MemoryStore):
    def request(self, method: str, **given: Any) -> dict[str, Any]:
        if {"IfMatch", "IfNoneMatch"} & set(given):
            from stores_memory import _refuse

            raise _refuse(501, "NotImplemented", method)
        return super().request(method, **given)


@pytest.mark.usefixtures("untried")
def test_a_store_that_knows_no_conditions_is_refused(kind: str) -> None:
    reason = open_table(Refusing(kind)).try_store()
    assert reason is not None
    assert "refuses conditional requests" in reason


@pytest.mark.usefixtures("untried")
def test_a_store_that_does_not_answer_is_not_judged(kind: str) -> None:
    server = MemoryStore(kind)
    table = ParquetTable(TARGET, filesystem=open_memory(Process(server, at=3, fault="expired")))
    with pytest.raises(StorageError, match="ExpiredToken"):
        table.try_store()
    assert open_table(server).try_store() is None


def test_the_answer_is_kept_beside_the_dataset_and_only_for_its_store(server: MemoryStore) -> None:
    note = json.loads(server.objects[f"{CONTROL}/store.json"].data)
    assert note == {"endpoint": ENDPOINT, "bucket": "bucket", "failure": None}
    trial.forget()
    process = Process(server)
    assert ParquetTable(TARGET, filesystem=open_memory(process)).try_store() is None
    assert [sent.partition(" ")[0] for sent in process.sent] == ["get_object"]
    trial.forget()
    moved = note | {"endpoint": "memory://elsewhere"}
    server.request("put_object", Key=f"{CONTROL}/store.json", Body=json.dumps(moved).encode())
    process = Process(server)
    assert ParquetTable(TARGET, filesystem=open_memory(process)).try_store() is None
    assert len(process.sent) > 100, "it is tried again"


def test_doctor_tells_what_was_found(server: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec.core

    def find(healthy: bool) -> str:
        trial.forget()
        shown = server.copy()
        shown.heeds = frozenset({"put", "complete"} if healthy else ())
        del shown.objects[f"{CONTROL}/store.json"]
        filesystem = open_memory(Process(shown))
        monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url, **_: (filesystem, TARGET))
        found = {one.subject: one for one in examine(f"s3://{TARGET}", storage_options={"any": 1})}
        return f"{found['File system'].state}: {found['File system'].detail}"

    assert find(True).startswith("ok: ")
    assert "conditional requests hold" in find(True)
    assert "warning: " in find(False)
    assert "If-None-Match is ignored" in find(False)


# The log.


def test_a_slot_is_never_free_again(server: MemoryStore) -> None:
    """A writer that slept through many commits, and their folding, does not commit."""
    slots = [key for key in server.objects if key.endswith(".json") and "/log/" in key]
    assert len(slots) == 3
    slept: list[int] = []

    def others() -> None:
        server.clock += 10
        for number in range(80):
            it.write(orders([(100 + number, 0)]), TARGET, **make_how(Process(server)))
        server.clock += 7200
        it.write(orders([(99, 0)]), TARGET, **make_how(Process(server)))
        it.write(orders([(98, 0)]), TARGET, **make_how(Process(server)))
        slept.append(len([key for key in server.objects if "/log/" in key]))

    counted = Process(server.copy())
    carry_out(BY_NAME["update"], counted)
    commit = next(
        n for n, sent in enumerate(counted.sent, 1) if sent.startswith("put_object") and "/log/" in sent
    )
    process = Process(server, at=commit, fault="meanwhile", then=others)
    outcome = carry_out(BY_NAME["update"], process)
    assert slept[0] < 60, "the log is kept short"
    assert outcome.acknowledged
    rows = dict(server.rows(ROOT, "id", "v"))
    assert len(rows) == len(server.rows(ROOT, "id", "v")) == 12 + 82
    assert all(rows[n] == (5 if n % 2 == 0 else 0) for n in range(100, 180)), "it was planned again"
    assert read(server) == sorted(rows.items())


def test_a_batch_is_committed_once_whatever_becomes_of_the_answer(server: MemoryStore) -> None:
    batch = {"app_id": "stream", "batch_id": 7}
    counted = Process(server.copy())
    it.write(orders([(60, 0)]), TARGET, **batch, **make_how(counted))
    for at in range(1, len(counted.sent) + 1):
        mine = server.copy()
        for process in (Process(mine, at=at, fault="lost"), Process(mine), Process(mine)):
            with contextlib.suppress(CommitUnknown, DamagedTable, StorageError):
                it.write(orders([(60, 0)]), TARGET, **batch, **make_how(process))
        assert mine.rows(ROOT, "id", "v") == sorted([*BEFORE, (60, 0)]), counted.sent[at - 1]


def test_a_record_of_a_single_writer_from_before_is_finished(server: MemoryStore) -> None:
    """Records of stores without conditions carry the transaction's id in their names."""
    mine = MemoryStore(server.kind, heeds=frozenset())
    trial.forget()
    how = {**make_how(Process(mine)), "single_writer": True}
    it.write(orders(BEFORE), TARGET, **how)
    counted = Process(mine.copy())
    it.merge(orders([(1, 9), (70, 9)]), TARGET, on="id", **{**how, **make_how(counted)})
    for at in range(1, len(counted.sent) + 1):
        one = mine.copy()
        with pytest.raises(Killed):
            it.merge(
                orders([(1, 9), (70, 9)]),
                TARGET,
                on="id",
                **{**how, **make_how(Process(one, at=at, fault="kill"))},
            )
        one.heeds = frozenset({"put", "complete"})
        trial.forget()
        trial.remember(trial.Trial(ENDPOINT, "bucket"))
        seen = read(one)
        NEXT.run(**make_how(Process(one)))
        assert one.rows(ROOT, "id", "v") == sorted([*seen, (90, 9)]), counted.sent[at - 1]
        trial.forget()


def test_who_has_no_conditions_does_not_add_where_others_rely_on_them(server: MemoryStore) -> None:
    trial.forget()
    server.heeds = frozenset()
    del server.objects[f"{CONTROL}/store.json"]
    before = dict(server.objects)
    with pytest.raises(NotSupported, match="go by conditional requests"):
        it.write(orders([(60, 0)]), TARGET, **make_how(Process(server)))
    assert server.objects == before


# Sweeping.


def _find_request(server: MemoryStore, wanted: str) -> int:
    counted = Process(server.copy())
    carry_out(BY_NAME["merge"], counted)
    return next(
        n
        for n, sent in enumerate(counted.sent, 1)
        if wanted in sent and sent.startswith(("put_object", "rewrite_object"))
    )


@pytest.mark.parametrize("wanted", ["/new/insert", "/new/rewrite", "intent.json", "/log/", f"{ROOT}/"])
def test_a_writer_that_sleeps_longer_than_the_grace_loses_nothing(server: MemoryStore, wanted: str) -> None:
    def others() -> None:
        server.clock += 7200
        open_table(server).recover()

    process = Process(server, at=_find_request(server, wanted), fault="meanwhile", then=others)
    outcome = carry_out(BY_NAME["merge"], process)
    assert outcome.acknowledged or outcome.changed is False, outcome
    expected = BY_NAME["merge"].model(BEFORE) if outcome.acknowledged else BEFORE
    assert read(server) == expected
    NEXT.run(**make_how(Process(server)))
    assert server.rows(ROOT, "id", "v") == NEXT.model(expected)


def test_what_a_running_writer_has_staged_is_left_alone(server: MemoryStore) -> None:
    def others() -> None:
        server.clock += slot_journal.GRACE / 2
        open_table(server).recover()

    process = Process(server, at=_find_request(server, "intent.json"), fault="meanwhile", then=others)
    assert carry_out(BY_NAME["merge"], process).acknowledged
    assert not [key for key in server.objects if "swept" in key]


def test_uploads_of_others_are_left_alone(server: MemoryStore) -> None:
    server.request("create_multipart_upload", Key=f"{ROOT}/of-spark.parquet", Metadata={})
    server.clock += 7200
    open_table(server).recover()
    assert len(server.uploads) == 1


def test_files_that_others_removed_are_kept_out_and_the_commit_is_finished(server: MemoryStore) -> None:
    """Somebody deletes a file between the commit and its replacement: that wins, and is told."""
    counted = Process(server.copy())
    carry_out(BY_NAME["update"], counted)
    target = next(n for n, sent in enumerate(counted.sent, 1) if sent.startswith(PUBLISHED))
    key = counted.sent[target - 1].partition(" ")[2]
    process = Process(server, at=target, fault="meanwhile", then=lambda: server.objects.pop(key))
    assert carry_out(BY_NAME["update"], process).acknowledged
    assert key not in server.objects
    assert not [name for name in server.objects if "/tx/" in name]


def test_retain_keeps_the_files_of_the_last_commits(server: MemoryStore) -> None:
    for value in (1, 2, 3):
        it.update(TARGET, {"v": str(value)}, "id = 1", retain=2, **make_how(Process(server)))
    kept = {name.split("/")[3] for name in server.objects if "/retained/" in name}
    assert [name[:12] for name in sorted(kept)] == ["000000000005", "000000000006"]
    assert not [name for name in server.objects if "/tx/" in name]


# Security.


@pytest.mark.parametrize(
    "path", ["../elsewhere/x.parquet", "/etc/x.parquet", "a/../../x.parquet", ".hidden/x.parquet", "x.txt"]
)
def test_a_crafted_record_cannot_name_a_path_outside_its_dataset(server: MemoryStore, path: str) -> None:
    record = {
        "version": 1, "seq": 4, "txid": "f" * 32, "operation": "merge", "root": TARGET,
        "adds": [{"path": path, "staged": "x.part", "was": None, "kept": None}], "removes": [],
        "properties": {}, "retain": None, "fresh": False, "side_files": [], "metadata": None,
    }  # fmt: skip
    server.request("put_object", Key=f"{CONTROL}/log/000000000004.json", Body=json.dumps(record).encode())
    before = dict(server.objects)
    for reach in (lambda: open_table(server).recover(), lambda: read(server)):
        with pytest.raises(DamagedTable, match="nothing was done with it"):
            reach()
    with pytest.raises(DamagedTable):
        NEXT.run(**make_how(Process(server)))
    assert server.objects == before


def test_a_crafted_tombstone_removes_nothing_outside_the_dataset(server: MemoryStore) -> None:
    server.request("put_object", Key="lake/elsewhere.parquet", Body=b"theirs")
    tag = server.objects["lake/elsewhere.parquet"].tag
    gone = json.dumps({"removed": [["../elsewhere.parquet", tag], ["../orders2/x", tag]]}).encode()
    server.request("put_object", Key=f"{CONTROL}/log/000000000003.gone", Body=gone)
    NEXT.run(**make_how(Process(server)))
    assert "lake/elsewhere.parquet" in server.objects
    assert server.rows(ROOT, "id", "v") == NEXT.model(BEFORE)


def test_credentials_are_in_no_record_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    filesystem = pafs.S3FileSystem(
        access_key=KEY, secret_key=SECRET, region="us-east-1", scheme="http", endpoint_override="127.0.0.1:1",
        connect_timeout=1, request_timeout=1,
    )  # fmt: skip
    storage, _ = open_storage("bucket/lake/orders", filesystem=filesystem)
    assert isinstance(storage, ObjectStorage)
    assert storage.client.endpoint == "http://127.0.0.1:1"
    with pytest.raises(StorageError) as caught:
        storage.read("bucket/lake/x")
    shown = f"{caught.value} {caught.value!r} {storage!r} {storage.client!r}"
    assert SECRET not in shown
    assert KEY not in shown
    assert pickle.loads(pickle.dumps(storage)).client.endpoint == storage.client.endpoint


def test_a_conflict_that_does_not_end_is_told(server: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ObjectStorage, "create", lambda *_: False)
    with pytest.raises(CommitConflict, match="was made by another writer"):
        it.delete(TARGET, "id = 1", **make_how(Process(server)))


@pytest.mark.parametrize("meanwhile", ["removed", "replaced"])
def test_an_object_that_goes_while_it_is_compared_is_looked_for_again(
    server: MemoryStore, meanwhile: str
) -> None:
    """As a writer's copies do that another one finds: what is planned then begins with another look."""

    def change() -> None:
        if meanwhile == "removed":
            open_storage(TARGET, filesystem=open_memory(Process(server)))[0].remove(other)
        else:
            server.objects[other.partition("/")[2]] = server.objects[key]

    bucket = TARGET.partition("/")[0]
    key = next(name for name in server.objects if name.endswith(".parquet"))
    one, other = f"{bucket}/{key}", f"{bucket}/{key}.copy"
    writing, _ = open_storage(TARGET, filesystem=open_memory(Process(server)))
    data = writing.read(one)
    writing.write(other, data[:-1] + b"?")
    process = Process(server, at=3, fault="meanwhile", then=change)
    storage, _ = open_storage(TARGET, filesystem=open_memory(process))
    with pytest.raises(StorageError) as caught:
        storage.is_same(one, other)
    assert caught.value.errno == errno.ENOENT
