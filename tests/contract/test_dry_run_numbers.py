"""What a dry run says of new files and bytes is what the run then does, or is said to be a guess."""

from __future__ import annotations

import pyarrow as pa
import pytest

DAYS = ["mon", "tue", "wed", "thu"]
TARGET = pa.table({"id": list(range(400)), "day": [DAYS[n % 4] for n in range(400)], "n": list(range(400))})
MORE = pa.table({"id": list(range(390, 430)), "day": [DAYS[n % 4] for n in range(390, 430)], "n": [0] * 40})
CLAUSES = (
    "when matched and source.n = 0 then delete when not matched and source.id < 410 then insert *"
    " when not matched then insert (id, day) values (source.id, 'sun')"
)

CALLS = {
    "append": lambda lake, **o: lake.write(MORE, **o),
    "append in small files": lambda lake, **o: lake.write(MORE, max_rows_per_file=7, **o),
    "append nothing": lambda lake, **o: lake.write(MORE.slice(0, 0), **o),
    "overwrite": lambda lake, **o: lake.write(MORE, mode="overwrite", **o),
    "overwrite where": lambda lake, **o: lake.write(MORE, mode="overwrite", where="id >= 390", **o),
    "overwrite partitions": lambda lake, **o: lake.write(MORE, mode="overwrite_partitions", **o),
    "upsert": lambda lake, **o: lake.merge(MORE, on=["id", "day"], **o),
    "insert": lambda lake, **o: lake.merge(MORE, on=["id", "day"], strategy="insert", **o),
    "update": lambda lake, **o: lake.merge(MORE, on=["id", "day"], strategy="update", **o),
    "full merge": lambda lake, **o: lake.merge(MORE, on=["id", "day"], strategy="full_merge", **o),
    "clauses": lambda lake, **o: lake.merge(MORE, on="id", clauses=CLAUSES, **o),
    "delete": lambda lake, **o: lake.delete("id % 3 = 0", **o),
    "delete all of some": lambda lake, **o: lake.delete("day = 'mon'", **o),
    "update set": lambda lake, **o: lake.update({"n": "n + 1"}, "id < 50", **o),
    "compact": lambda lake, **o: lake.compact(**o),
    "compact to rows": lambda lake, **o: lake.compact(target_rows_per_file=90, **o),
    "optimize": lambda lake, **o: lake.optimize(by="n", **o),
    "optimize to rows": lambda lake, **o: lake.optimize(by=["n", "id"], target_rows_per_file=30, **o),
    "optimize and deduplicate": lambda lake, **o: lake.optimize(by="n", deduplicate_on="day", **o),
    "deduplicate": lambda lake, **o: lake.deduplicate(on="day", **o),
}


LISTS = ("rewritten_files", "removed_files", "files_with_deletes", "preserved_files")
NUMBERS = (
    "inserted",
    "updated",
    "deleted",
    "target_count_before",
    "target_count_after",
    "new_files",
    "bytes_read",
    "bytes_written",
)


def lasting(result):
    """Each file that has its name already, as it is afterwards."""
    files = [(f.path, f.operation, f.row_count, f.size_bytes) for f in result.files]
    return sorted(file for file in files if file[1] != "inserted")


@pytest.mark.only(
    lambda call, partitioned: partitioned or call != "overwrite partitions", "it needs partitions"
)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("partitioned", [True, False])
def test_a_dry_run_says_what_the_run_does(lake, call, partitioned):
    lake.create(TARGET, files=3, partition_by="day" if partitioned else ())
    with lake.unchanged():
        planned = CALLS[call](lake, dry_run=True)
    done = CALLS[call](lake)
    assert done.new_files == len(done.inserted_files)
    assert (planned.new_files_exact, planned.bytes_exact) == (True, True)
    assert {name: getattr(planned, name) for name in NUMBERS} == {
        name: getattr(done, name) for name in NUMBERS
    }
    for name in LISTS:
        assert sorted(getattr(planned, name)) == sorted(getattr(done, name))
    assert lasting(planned) == lasting(done)
    assert "about" not in str(planned)


LONG = pa.table(
    {"id": range(20_000), "n": [n * 7919 % 20_000 for n in range(20_000)], "s": ["x" * 20] * 20_000}
)


def test_an_order_that_does_not_fit_in_memory_is_measured_too(lake):
    lake.create(LONG, files=4, row_group_size=1000)
    little = {} if lake.engine == "duckdb" else {"memory_bytes": 20_000}

    def call(**more):
        return lake.optimize(by="n", target_rows_per_file=4000, **little, **more)

    with lake.unchanged():
        planned = call(dry_run=True)
    done = call()
    assert (planned.new_files_exact, planned.bytes_exact) == (True, True)
    assert (planned.new_files, planned.bytes_written) == (done.new_files, done.bytes_written)
    assert planned.new_files > 1
    assert [note for note in planned.notes if "ranges" in note] == [n for n in done.notes if "ranges" in n]
    if lake.engine == "spark":
        assert any("ranges" in note for note in planned.notes)


MANY = 60_000
MIXED = [n * 2654435761 % 4294967296 for n in range(MANY + 30_000)]
WIDE = pa.table(
    {
        "id": range(len(MIXED)),
        "day": [DAYS[n % 4] for n in MIXED],
        "n": MIXED,
        "s": [f"text {n % 5003}" for n in MIXED],
    }
)
LARGE_CALLS = {
    "upsert": lambda lake, **o: lake.merge(WIDE.slice(MANY - 10_000), on="id", **o),
    "append": lambda lake, **o: lake.write(WIDE.slice(MANY), max_rows_per_file=9_000, **o),
    "update set": lambda lake, **o: lake.update({"n": "n + 1"}, "id % 5 = 1", **o),
    "compact": lambda lake, **o: lake.compact(target_rows_per_file=12_000, **o),
    "optimize": lambda lake, **o: lake.optimize(by=["n", "id"], target_rows_per_file=11_000, **o),
}


@pytest.mark.parametrize("call", LARGE_CALLS)
def test_a_dry_run_has_no_size_from_which_on_it_guesses(lake, call):
    """More rows than one writer takes, and more bytes than the limit of a call that asks for one."""
    lake.create(WIDE.slice(0, MANY), files=3, partition_by="day", row_group_size=4_000)
    with lake.unchanged():
        planned = LARGE_CALLS[call](lake, dry_run=True)
        guessed = LARGE_CALLS[call](lake, dry_run=True, measured_bytes=10_000)
    done = LARGE_CALLS[call](lake)
    assert not guessed.bytes_exact
    assert (planned.new_files_exact, planned.bytes_exact) == (True, True)
    assert {name: getattr(planned, name) for name in NUMBERS} == {
        name: getattr(done, name) for name in NUMBERS
    }
    assert lasting(planned) == lasting(done)


@pytest.mark.parametrize("call", CALLS)
def test_a_dry_run_that_encodes_nothing_says_that_it_guesses(lake, call):
    lake.create(TARGET, files=3, partition_by="day")
    planned = CALLS[call](lake, dry_run=True, measured_bytes=0)
    done = CALLS[call](lake)
    if planned.new_files_exact:
        assert planned.new_files == done.new_files
    else:
        assert planned.new_files <= done.new_files
        assert any("There may be more new files" in note for note in planned.notes)
    for name in LISTS:
        assert sorted(getattr(planned, name)) == sorted(getattr(done, name))
    assert (planned.bytes_written == 0) == (done.bytes_written == 0)
    assert planned.bytes_written <= 8 * done.bytes_written + 4096
    assert done.bytes_written <= 8 * planned.bytes_written + 4096
    assert planned.bytes_exact == (planned.bytes_written == 0)
    assert ("about" in str(planned)) == (not planned.bytes_exact)


def test_the_number_is_exact_for_parquet_wherever_rows_are_at_hand(parquet_lake):
    parquet_lake.create(TARGET, files=3, partition_by="day")
    for call in ("append", "append in small files", "upsert", "clauses", "compact", "delete"):
        assert CALLS[call](parquet_lake, dry_run=True, measured_bytes=0).new_files_exact, call
