"""One name for a table in all messages, and no hint at an option that it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lake import Lake

import intarsia as it
from intarsia.errors import CommitConflict, IntarsiaError, SchemaMismatch


@pytest.mark.parametrize(
    "source",
    [
        pa.table({"id": [1], "region": ["eu"], "more": [1]}),
        pa.table({"id": [1]}),
        pa.table(
            {"id": [2**70], "region": ["eu"]}, pa.schema([("id", pa.decimal128(38)), ("region", pa.string())])
        ),
    ],
    ids=["a new column", "a missing column", "a value that does not fit"],
)
@pytest.mark.parametrize("call", ["merge", "write"])
def test_hints_name_no_option_that_an_iceberg_table_refuses(tmp_path: Path, source: Any, call: str) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1])
    target = it.iceberg("db.t", catalog=lake.catalog)
    with pytest.raises(SchemaMismatch) as caught:
        it.merge(source, target, on="id") if call == "merge" else it.write(source, target)
    assert "schema_evolution" not in str(caught.value)
    assert caught.value.path == target.root
    if call == "write":
        assert "keep" not in caught.value.hint
        assert "except_columns" not in caught.value.hint


def test_a_table_has_one_name_in_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1])
    name = it.iceberg("db.t", catalog=lake.catalog).root

    def refuse(*_: Any, **__: Any) -> Any:
        raise CommitConflict("no", path=lake.table().metadata.location)

    calls = [
        lambda target: it.delete(target, "nope = 1"),
        lambda target: it.merge(pa.table({"id": [1]}), target, on="nope"),
        lambda target: it.optimize(target, by="nope"),
    ]
    for target in (lake.table(), it.iceberg("db.t", catalog=lake.catalog)):
        for call in calls:
            with pytest.raises(IntarsiaError) as caught:
                call(target)
            assert caught.value.path == name
        with monkeypatch.context() as patch:
            patch.setattr("intarsia.request.run", refuse)
            with pytest.raises(CommitConflict) as conflict:
                it.delete(target, "id = 1")
        assert conflict.value.path == name
