"""A table of a kind, its rows, and the rows that operations bring; what Spark makes of it is kept."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from tests.cross.kinds import Build, Kind
from tests.cross.lake import Lake
from tests.cross.operations import Case, Operation, expected, source_for
from tests.cross.readers import spark_rows
from tests.cross.sample_rows import Row


@dataclass
class Made:
    """The first table of a kind, which no test changes."""

    lake: Lake
    kind: Kind
    table: str
    rows: list[Row]
    source: pa.Table
    _expected: dict[str, list[Row]] = field(default_factory=dict)

    def clone(self) -> Case:
        """A table with the same content and history, to be changed."""
        return Case(self.lake, self.kind, self.lake.clone(self.table, self.kind.name), self.source)

    def prepared(self, operation: Operation) -> tuple[Case, list[Row]]:
        """A clone that is ready for an operation, and its rows."""
        case = self.clone()
        if operation.prepare is None:
            return case, self.rows
        operation.prepare(case)
        return case, spark_rows(self.lake, case.table, self.kind.branch)

    def expected(self, operation: Operation, rows: list[Row]) -> list[Row]:
        """What Spark's own statement makes of a twin; the model's rows where it has none, or fails."""
        if operation.name not in self._expected:
            self._expected[operation.name] = self._of_twin(operation, rows)
        return self._expected[operation.name]

    def _of_twin(self, operation: Operation, rows: list[Row]) -> list[Row]:
        if operation.spark is None or (operation.is_row_level and not self.kind.spark_changes):
            return expected(operation, self.kind, rows, self.source)
        twin = self.clone()
        operation.spark(twin)
        return spark_rows(self.lake, twin.table, self.kind.branch)


def make(lake: Lake, kind: Kind) -> Made:
    table = lake.fresh(kind.name)
    kind.make(Build(lake, table, kind))
    rows = spark_rows(lake, table, kind.branch)
    schema = lake.spark.table(lake.in_spark(table)).limit(0).toArrow().schema
    return Made(lake, kind, table, rows, source_for(kind, schema, rows))
