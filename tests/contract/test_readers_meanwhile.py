"""Readers while others write: a snapshot, and reading through intarsia, is always one state."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

import intarsia as it

N = 90


def _table(version: int) -> pa.Table:
    return pa.table({"id": range(N), "version": [version] * N})


def _versions(snapshot) -> set[int]:
    """All values of the column, from the footers that the snapshot holds."""
    found = set()
    for file in snapshot.files:
        for group in range(file.footer.num_row_groups):
            stats = file.footer.row_group(group).column(1).statistics
            found |= {stats.min, stats.max}
    return found


CHANGES = {
    "upsert": lambda lake, version: lake.merge(_table(version), on="id"),
    "update": lambda lake, version: lake.update({"version": str(version)}),
    "overwrite": lambda lake, version: lake.write(_table(version), mode="overwrite", max_rows_per_file=30),
}


class Writer:
    """Changes the table again and again until told to stop."""

    def __init__(self, lake, change) -> None:
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(lake, change))

    def _run(self, lake, change) -> None:
        try:
            for version in range(1, 10_000):
                if self.stop.is_set():
                    return
                change(lake, version)
        except it.IntarsiaError as error:
            self.error = error

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join()
        assert self.error is None, self.error


@pytest.mark.parametrize("change", CHANGES)
def test_a_snapshot_is_one_state_while_commits_go_on(parquet_lake, change):
    parquet_lake.create(_table(0), files=3)
    seen: list[int] = []
    with Writer(parquet_lake, CHANGES[change]):
        for _ in range(25):
            snapshot = parquet_lake.snapshot()
            versions = _versions(snapshot)
            assert len(versions) == 1
            assert snapshot.rows == N
            seen += versions
    assert seen == sorted(seen)


@pytest.mark.parametrize("change", CHANGES)
def test_rows_read_while_commits_go_on_are_of_one_state(lake, change):
    lake.create(_table(0), files=3)
    with Writer(lake, CHANGES[change]):
        for _ in range(10):
            table = lake.own()
            assert sorted(table["id"].to_pylist()) == list(range(N))
            assert len(set(table["version"].to_pylist())) == 1


def test_who_only_lists_the_directory_sees_every_key_once_at_every_moment(parquet_lake, rows):
    parquet_lake.create(_table(0), files=3)
    with Writer(parquet_lake, CHANGES["upsert"]):
        for _ in range(15):
            assert [row["id"] for row in rows(parquet_lake.root)] == list(range(N))
