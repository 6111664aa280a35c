"""The checks can fail: each kind of damage to a right table is found, and named."""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest

from tests.cross import FULL
from tests.cross.checks import problems
from tests.cross.decoded import State, decode
from tests.cross.kinds import BY_NAME, KINDS, Kind
from tests.cross.lake import local
from tests.cross.making import Made
from tests.cross.operations import OPERATIONS, Operation, expected
from tests.cross.plain_transforms import murmur3, transform
from tests.cross.readers import disagreements
from tests.cross.sample_rows import difference

Records = list[dict[str, Any]]


class Damaged:
    """A copy of a table's current metadata that may be damaged; the table itself stays as it is."""

    def __init__(self, state: State, room: Path) -> None:
        self.room = room
        self.metadata = copy.deepcopy(dict(state.metadata))
        current = self.metadata["current-snapshot-id"]
        self.snapshot = next(s for s in self.metadata["snapshots"] if s["snapshot-id"] == current)

    def decode(self) -> State:
        path = self.room / "damaged.metadata.json"
        path.write_text(json.dumps(self.metadata))
        return decode(path)

    def edit_list(self, change: Callable[[Records], Any]) -> None:
        path = self._rewritten(local(self.snapshot["manifest-list"]), change)
        self.snapshot["manifest-list"] = f"file://{path}"

    def edit_manifest(
        self, chosen: Callable[[dict[str, Any]], bool], change: Callable[[Records], Any]
    ) -> None:
        """Change the entries of the first manifest that is chosen by its record in the list."""

        def swap(records: Records) -> None:
            record = next(one for one in records if chosen(one))
            path = self._rewritten(local(record["manifest_path"]), change)
            record["manifest_path"], record["manifest_length"] = f"file://{path}", path.stat().st_size

        self.edit_list(swap)

    def _rewritten(self, source: Path, change: Callable[[Records], Any]) -> Path:
        with source.open("rb") as stream:
            reader = fastavro.reader(stream)
            schema = reader.writer_schema
            records: Records = list(reader)  # type: ignore[arg-type]
            header = {k: v for k, v in reader.metadata.items() if not k.startswith("avro.")}
        change(records)
        target = self.room / f"{uuid.uuid4()}.avro"
        with target.open("wb") as stream:
            fastavro.writer(stream, schema, records, metadata=header)
        return target


def is_data(record: dict[str, Any]) -> bool:
    return bool(record["content"] == 0)


def is_deletes(record: dict[str, Any]) -> bool:
    return bool(record["content"] == 1)


def of_spec(content: int, spec: int) -> Callable[[dict[str, Any]], bool]:
    return lambda record: record["content"] == content and record["partition_spec_id"] == spec


def other_tuple(entries: Records) -> None:
    first, second = (entry["data_file"] for entry in entries[:2])
    first["partition"], second["partition"] = second["partition"], first["partition"]


def wrong_rows(entries: Records) -> None:
    entries[0]["data_file"]["record_count"] += 1


def wrong_bound(entries: Records) -> None:
    entries[0]["data_file"]["upper_bounds"] = [{"key": 1, "value": (1).to_bytes(8, "little")}]


def second_vector(entries: Records) -> None:
    entries.append(entries[0])


def list_spec(records: Records) -> None:
    record = next(one for one in records if is_data(one) and one["partition_spec_id"] == 1)
    record["partition_spec_id"] = 0


def list_count(records: Records) -> None:
    records[0]["added_files_count"] += 1


def list_length(records: Records) -> None:
    records[0]["manifest_length"] += 1


def list_sequence(records: Records) -> None:
    records[0]["min_sequence_number"] += 1


def same_row_ids(records: Records) -> None:
    data = [record for record in records if is_data(record)]
    data[1]["first_row_id"] = data[0]["first_row_id"]


DAMAGES: dict[str, tuple[str, Callable[[Damaged], Any], str]] = {
    "a tuple that its rows do not give": (
        "add_identity",
        lambda t: t.edit_manifest(is_data, other_tuple),
        "its rows give",
    ),
    "a manifest listed under another spec": ("add_identity", lambda t: t.edit_list(list_spec), "has spec"),
    "a count in the list": ("add_identity", lambda t: t.edit_list(list_count), "added_files_count says"),
    "a manifest's length": ("add_identity", lambda t: t.edit_list(list_length), "manifest_length"),
    "the least sequence number": (
        "add_identity",
        lambda t: t.edit_list(list_sequence),
        "min_sequence_number",
    ),
    "a file's row count": ("add_identity", lambda t: t.edit_manifest(is_data, wrong_rows), "its entry says"),
    "a bound": ("add_identity", lambda t: t.edit_manifest(is_data, wrong_bound), "upper bound"),
    "a total": (
        "add_identity",
        lambda t: t.snapshot["summary"].update({"total-records": "7"}),
        "total-records is 7",
    ),
    "the tuple of position deletes": (
        "prior_file_deletes",
        lambda t: t.edit_manifest(is_deletes, other_tuple),
        "that it deletes from",
    ),
    "the tuple of deletes of a partition": (
        "prior_partition_deletes",
        lambda t: t.edit_manifest(of_spec(1, 0), other_tuple),
        "that it deletes from",
    ),
    "two vectors of one file": (
        "v3_vectors",
        lambda t: t.edit_manifest(is_deletes, second_vector),
        "2 deletion vectors",
    ),
    "the cardinality of a vector": (
        "v3_vectors",
        lambda t: t.edit_manifest(is_deletes, wrong_rows),
        "positions, its entry says",
    ),
    "row ids that overlap": ("v3_vectors", lambda t: t.edit_list(same_row_ids), "row ids overlap"),
    "a table that gives ids again": (
        "v3_vectors",
        lambda t: t.metadata.update({"next-row-id": 3}),
        "next one is 3",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(made: Callable[[Kind], Made], damage: str, tmp_path: Path) -> None:
    name, harm, told = DAMAGES[damage]
    table = made(BY_NAME[name])
    damaged = Damaged(decode(table.lake.metadata_file(table.table)), tmp_path)
    assert not problems(damaged.decode())

    harm(damaged)

    assert any(told in problem for problem in problems(damaged.decode()))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_tables_of_spark_pass_the_checks(made: Callable[[Kind], Made], kind: Kind) -> None:
    table = made(kind)
    assert not problems(decode(table.lake.metadata_file(table.table), kind.branch))
    assert len({row["id"] for row in table.rows}) == len(table.rows) > 50


@pytest.mark.parametrize("kind", KINDS if FULL else KINDS[:1], ids=str)
def test_all_readers_agree_about_tables_of_spark(made: Callable[[Kind], Made], kind: Kind) -> None:
    table = made(kind)
    assert not (told := disagreements(table.lake, kind, table.table, table.rows)), "\n".join(told)


# Which rows a dynamic overwrite takes depends on the files they are in: it has no model.
MODELS = [one for one in OPERATIONS if one.spark and one.name != "overwrite_partitions"]


@pytest.mark.parametrize("operation", MODELS, ids=str)
def test_the_models_agree_with_spark(made: Callable[[Kind], Made], operation: Operation) -> None:
    table = made(BY_NAME["prior_file_deletes"])
    found = expected(operation, table.kind, table.rows, table.source)
    assert not (told := difference(found, table.expected(operation, table.rows))), told


def test_the_transforms_are_those_of_the_specification() -> None:
    import datetime as dt
    import decimal

    def hashed(value: Any) -> Any:
        return transform("bucket[1000000007]", value)

    # Appendix B of the table format, taken modulo a large prime.
    known = {
        34: 2017239379,
        "iceberg": 1210000089,
        dt.date(2017, 11, 16): -653330422,
        dt.datetime(2017, 11, 16, 22, 31, 8, tzinfo=dt.UTC): -2047944441,
        bytes([0, 1, 2, 3]): -188683207,
        decimal.Decimal("14.20"): -500754589,
    }
    for value, wanted in known.items():
        assert hashed(value) == (wanted & 0x7FFFFFFF) % 1000000007, value
    assert murmur3(b"") == 0
    assert transform("truncate[10]", -1) == -10
    assert transform("truncate[50]", decimal.Decimal("10.65")) == decimal.Decimal("10.50")
    assert transform("hour", dt.datetime(1969, 12, 31, 23, tzinfo=dt.UTC)) == -1
