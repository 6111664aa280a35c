"""An option that cannot have an effect is refused, before anything is written."""

from __future__ import annotations

import pyarrow as pa
import pytest

from intarsia.errors import InputError

TARGET = pa.table({"id": [1, 2, 3], "n": [1, 2, 3]})
DELETES = "when matched then delete"

CALLS = {
    "missing without a star": lambda lake: lake.merge(TARGET, on="id", clauses=DELETES, missing="null"),
    "evolution without a star": lambda lake: lake.merge(
        TARGET, on="id", clauses=DELETES, schema_evolution="add"
    ),
    "a strategy beside clauses": lambda lake: lake.merge(TARGET, on="id", clauses=DELETES, strategy="update"),
    "an order without deduplicate": lambda lake: lake.merge(TARGET, on="id", dedup_order_by="n"),
    "an order of equal rows": lambda lake: lake.deduplicate(order_by="n"),
    "an order without keys to deduplicate by": lambda lake: lake.optimize(by="n", dedup_order_by="id"),
    "a condition of an append": lambda lake: lake.write(TARGET, where="id = 1"),
    "a condition of partitions": lambda lake: lake.write(TARGET, mode="overwrite_partitions", where="id = 1"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("dry_run", [False])
def test_an_option_that_has_no_effect_is_refused(lake, call, dry_run):
    lake.create(TARGET)
    with lake.unchanged(), pytest.raises(InputError):
        CALLS[call](lake)


@pytest.mark.parametrize("option", [{"missing": "null"}, {"missing": "keep"}, {"schema_evolution": "add"}])
def test_an_overwrite_that_replaces_the_schema_takes_no_option_about_columns(parquet_lake, option):
    parquet_lake.create(TARGET)
    with parquet_lake.unchanged(), pytest.raises(InputError, match="would have no effect"):
        parquet_lake.write(TARGET, mode="overwrite", **option)
    parquet_lake.write(TARGET.slice(0, 1), mode="overwrite", where="id = 1", **option)
