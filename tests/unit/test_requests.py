"""Counters of requests: what threads and other processes have sent is added up, each once."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from intarsia.common.requests import (
    RequestCounter,
    Requests,
    count_chunk_reads,
    count_filesystem,
    count_reads,
    find_base,
    give_counts,
    take_counts,
)
from intarsia.core.report import MergeResult, as_json
from intarsia.pipeline.streams.batches import combine_results


def test_requests_are_a_mapping_that_shows_what_there_was() -> None:
    requests = Requests(GET=1200, PUT=3)
    assert dict(requests) == {"LIST": 0, "GET": 1200, "HEAD": 0, "PUT": 3, "COPY": 0, "DELETE": 0}
    assert (requests["GET"], requests.total, len(requests)) == (1200, 1203, 6)
    assert str(requests) == "1,200 GET, 3 PUT"
    assert str(Requests()) == "none"
    with pytest.raises(KeyError):
        requests["total"]


def test_threads_lose_no_count() -> None:
    counter = RequestCounter()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: counter.add("GET"), range(1000)))
    assert counter.requests == Requests(GET=1000)


def _work(filesystem: pafs.FileSystem, path: str, times: int) -> object:
    """What a task does: it opens files, and its result brings back what that took."""
    for _ in range(times):
        with filesystem.open_input_file(path):
            count_reads(filesystem, 2)
    return take_counts()


def test_what_another_process_has_sent_is_added_once(tmp_path: Path) -> None:
    path = str(tmp_path / "f.parquet")
    pq.write_table(pa.table({"a": [1]}), path)
    counter = RequestCounter()
    filesystem = count_filesystem(pafs.LocalFileSystem(), counter)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        for times in (3, 2):
            give_counts(pool.submit(_work, filesystem, path, times).result())  # type: ignore[arg-type]
    assert counter.requests == Requests(HEAD=5, GET=10)
    assert take_counts() == {}, "this process counts for itself"


def test_in_its_own_process_a_counter_is_the_same_after_pickling() -> None:
    counter = RequestCounter()
    pickle.loads(pickle.dumps(counter)).add("PUT")
    assert counter.requests == Requests(PUT=1)


def test_a_file_that_is_opened_is_the_file_systems_own(tmp_path: Path) -> None:
    path = str(tmp_path / "f.parquet")
    pq.write_table(pa.table({"a": [1], "s": [{"x": 1, "y": 2}], "b": [2]}), path)
    local, counter = pafs.LocalFileSystem(), RequestCounter()
    filesystem = count_filesystem(count_filesystem(local, RequestCounter()), counter)
    assert find_base(filesystem) == local
    assert find_base(local) == local
    with filesystem.open_input_file(path) as file:
        assert not isinstance(file, pa.PythonFile)
        footer = pq.read_metadata(file)
    count_chunk_reads(filesystem, footer, ["s", "b"])
    assert counter.requests == Requests(HEAD=1, GET=3)
    assert pickle.loads(pickle.dumps(filesystem)) == filesystem


def test_requests_add_up() -> None:
    assert Requests(GET=1, PUT=2) + Requests(GET=3, LIST=1) == Requests(LIST=1, GET=4, PUT=2)


def test_those_of_a_streams_batches_are_added() -> None:
    def make(requests: Requests | None) -> dict[str, object]:
        return as_json(MergeResult("upsert", 1, 0, 1, 1, 0, 0, requests=requests))

    combined = combine_results([make(Requests(GET=1)), make(Requests(GET=2, PUT=1))])
    assert combined is not None
    assert combined.requests == Requests(GET=3, PUT=1)
    on_disk = combine_results([make(None), make(None)])
    assert on_disk is not None
    assert on_disk.requests is None
