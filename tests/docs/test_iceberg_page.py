"""The page on Iceberg names every table property that the code asks for, and refuses what it says it does."""

from __future__ import annotations

import re
from typing import Any

import doc_pages
import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField

import intarsia as it
from intarsia.errors import IntarsiaError, NotSupported
from intarsia.tables.iceberg.file_io import LocationProvider
from intarsia.tables.iceberg.properties import WriteProperties

PAGE = (doc_pages.ROOT / "docs" / "iceberg.md").read_text(encoding="utf-8")
ELSEWHERE = {
    "encryption.*",
    "gc.enabled",
    "schema.name-mapping.default",
    "write.metadata.delete-after-commit.enabled",
    "write.wap.enabled",
}
"""What is not asked for by its name where properties are read for writing."""


class Asked(dict[str, str]):
    """Properties that remember what they were asked for."""

    def __init__(self, said: dict[str, str]) -> None:
        super().__init__(said)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)


def _metadata(said: dict[str, str]) -> TableMetadata:
    return new_table_metadata(
        Schema(NestedField(1, "id", LongType())),
        UNPARTITIONED_PARTITION_SPEC,
        UNSORTED_SORT_ORDER,
        "file:///t",
        said,
    )


def _asked(said: dict[str, str]) -> set[str]:
    """The names that the code asks for, those with a column's name as the page writes them."""
    asked = Asked(said)
    metadata = _metadata(said).model_copy(update={"properties": asked})
    WriteProperties.of(metadata)
    LocationProvider.of(metadata)
    return {re.sub(r"\.column\..*", ".column.*", name) for name in asked.names}


def _tables() -> dict[str, set[str]]:
    """The properties of each table on the page, by the table's first heading."""
    part = PAGE.partition("<!-- properties -->")[2].partition("<!-- end -->")[0]
    found: dict[str, set[str]] = {}
    for table in part.strip().split("\n\n"):
        heads, _, *rows = table.splitlines()
        names = [name for row in rows for name in re.findall(r"`([\w.*-]+\.[\w.*-]+)`", row.split("|")[1])]
        assert len(names) == len(set(names))
        found[heads.split("|")[1].strip()] = set(names)
    return found


def test_every_property_that_is_asked_for_is_on_the_page_and_no_other() -> None:
    columns = {
        "write.parquet.bloom-filter-enabled.column.id": "true",
        "write.metadata.metrics.column.id": "full",
        "write.folder-storage.path": "file:///t/data",  # asks for the one that took its place
        "write.data.path": "file:///t/data",
    }
    asked = _asked(columns) | {"write.metadata.metrics.column.*"}
    told: set[str] = set().union(*_tables().values())
    assert asked - told == set()
    assert told - asked == ELSEWHERE


@pytest.mark.parametrize("name", sorted(_tables()["refused"]))
def test_what_the_page_says_is_refused_is_refused_by_its_name(name: str) -> None:
    full = name.replace("*", "key-id")
    with pytest.raises(NotSupported, match=re.escape(full)):
        WriteProperties.of(_metadata({full: "orc"}))


def test_a_value_that_is_none_is_refused_by_the_name_of_its_property() -> None:
    anything = (".path", ".enabled", ".partitioned-paths", "column.*", "schema.name-mapping.default")
    checked = 0
    for name in sorted(_tables()["followed"] | _tables()["checked, without an effect here"]):
        if name.endswith(anything) or ".metrics." in name:
            continue
        said = {name: "-none of it-", "write.parquet.bloom-filter-enabled.column.id": "true"}
        with pytest.raises(IntarsiaError, match=re.escape(name)):
            WriteProperties.of(_metadata(said))
        checked += 1
    assert checked > 30


def test_a_table_with_a_refused_property_can_still_be_read(tmp_path: Any) -> None:
    from intarsia.tables.iceberg import embedded_catalog

    catalog = embedded_catalog(tmp_path)
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", pa.schema([("id", pa.int64())]))
    it.write(pa.table({"id": [1]}), table)
    with table.transaction() as change:
        change.set_properties({"write.format.default": "orc"})
    assert it.read(table).read_all().num_rows == 1
    with pytest.raises(NotSupported, match=r"write\.format\.default"):
        it.write(pa.table({"id": [2]}), table)
