"""Values that would lose something are refused once, with the rows of all files, in dry runs, too."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from intarsia.errors import InputError, SchemaMismatch

DAYS = ["mon", "tue", "wed"]
ROWS = pa.table(
    {
        "id": list(range(60)),
        "day": [DAYS[n % 3] for n in range(60)],
        "n": pa.array([n % 10 for n in range(60)], pa.int32()),
        "price": [n / 4 for n in range(60)],
        "at": pa.array(
            [dt.datetime(2025, 1, 1, 0, 0, 0, n % 4) for n in range(60)], pa.timestamp("us", "UTC")
        ),
        "on": pa.array([dt.date(2025, 1, 1)] * 60, pa.date32()),
    }
)
SOURCE = pa.table({"id": list(range(50, 70)), "day": [DAYS[n % 3] for n in range(50, 70)], "f": [0.5] * 20})

_FRACTION = "Hint: say what becomes of the fraction: round(...), floor(...) or cast(... as INTEGER)"

CASES = {
    "update": (
        lambda lake, **o: lake.update({"n": "price"}, **o),
        """column 'n' cannot be set: "price" gives 0.25, 0.5 and 0.75, which are no INTEGER,"""
        " in 45 of 60 rows",
        _FRACTION,
    ),
    "update some": (
        lambda lake, **o: lake.update({"price": "1.0", "n": "price"}, "id >= 30", **o),
        """column 'n' cannot be set: "price" gives 7.5, 7.75 and 8.25, which are no INTEGER,"""
        " in 23 of 30 rows",
        _FRACTION,
    ),
    "update two columns": (
        lambda lake, **o: lake.update({"n": "price", "on": "at"}, "id < 8", **o),
        """column 'n' cannot be set: "price" gives 0.25, 0.5 and 0.75, which are no INTEGER,"""
        " in 6 of 8 rows;"
        """ column 'on' cannot be set: "at" gives""",
        "cast(... as date)",
    ),
    "update beyond its type": (
        lambda lake, **o: lake.update({"n": "n * 1000000000"}, **o),
        "gives 3000000000, 4000000000 and 5000000000, which are no INTEGER, in 42 of 60 rows",
        "try_cast(... as INTEGER) gives NULL",
    ),
    "update an instant": (
        lambda lake, **o: lake.update({"on": "at"}, **o),
        "which are no DATE, in 45 of 60 rows",
        "cast(... as date)",
    ),
    "matched": (
        lambda lake, **o: lake.merge(
            SOURCE, on="id", clauses="when matched then update set n = target.n + source.f", **o
        ),
        "gives 0.5, 1.5 and 2.5, which are no INTEGER, in 10 of 10 rows",
        _FRACTION,
    ),
    "matched by one of several": (
        lambda lake, **o: lake.merge(
            SOURCE,
            on="id",
            clauses="when matched and source.id < 53 then delete when matched and source.id < 56"
            " then update set n = 1 when matched then update set n = source.f + target.id",
            **o,
        ),
        "gives 56.5, 57.5 and 58.5, which are no INTEGER, in 4 of 7 rows",
        _FRACTION,
    ),
    "not matched": (
        lambda lake, **o: lake.merge(
            SOURCE,
            on="id",
            clauses="when not matched then insert (id, day, n) values (source.id, source.day, source.f)",
            **o,
        ),
        "gives 0.5, which is no INTEGER, in 10 of 10 rows",
        _FRACTION,
    ),
    "not matched by source": (
        lambda lake, **o: lake.merge(
            SOURCE, on="id", clauses="when not matched by source then update set n = target.price", **o
        ),
        "gives 0.25, 0.5 and 0.75, which are no INTEGER, in 37 of 50 rows",
        _FRACTION,
    ),
    "every clause": (
        lambda lake, **o: lake.merge(
            SOURCE,
            on="id",
            clauses="when matched then update set n = source.f"
            " when not matched then insert (id, day, n) values (source.id, source.day, source.f)"
            " when not matched by source then update set n = 2",
            **o,
        ),
        """which is no INTEGER, in 10 of 60 rows; column 'n' cannot be set: """,
        _FRACTION,
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("partitioned", [True, False])
def test_all_rows_that_would_lose_something_are_counted_before_anything_is_done(lake, name, partitioned):
    call, told, hint = CASES[name]
    lake.create(ROWS, files=3, partition_by="day" if partitioned else ())
    messages = set()
    for how in ({}, {"dry_run": True}, {"dry_run": True, "measured_bytes": 0}):
        with lake.unchanged(), pytest.raises(SchemaMismatch) as caught:
            call(lake, **how)
        assert told in str(caught.value)
        assert hint in str(caught.value)
        assert caught.value.changed is False
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_a_partition_column_that_would_lose_something_is_counted_with_all_new_rows(lake):
    lake.create(pa.table({"id": [1], "part": pa.array([1], pa.int32())}), partition_by="part")
    source = pa.table({"id": list(range(10, 20)), "f": [n / 2 for n in range(10)]})
    clauses = "when not matched then insert (id, part) values (source.id, source.f)"
    for how in ({}, {"dry_run": True}, {"dry_run": True, "measured_bytes": 0}):
        with lake.unchanged(), pytest.raises(SchemaMismatch, match=r"0.5, 1.5 and 2.5, .* in 5 of 10 rows"):
            lake.merge(source, on="id", clauses=clauses, **how)


@pytest.mark.parametrize("how", [{"measured_bytes": 0}, {}])
def test_a_dry_run_refuses_other_values_that_the_run_refuses(lake, how):
    lake.create(ROWS, files=3)
    for assignments in ({"price": "1 / (n - 7)"}, {"n": "cast(day as integer)"}):
        with lake.unchanged(), pytest.raises(InputError) as planned:
            lake.update(assignments, dry_run=True, **how)
        with lake.unchanged(), pytest.raises(InputError) as done:
            lake.update(assignments)
        assert str(planned.value) == str(done.value)


def test_a_plan_refuses_what_the_run_refuses(lake):
    lake.create(ROWS, files=2)
    with pytest.raises(SchemaMismatch, match="in 45 of 60 rows"):
        lake.plan("update", {"n": "price"})
