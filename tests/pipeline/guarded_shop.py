"""Orders that land as Parquet, customers and a quarantine, for tests of rows that are left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia import pipeline
from intarsia.pipeline.state.run_state import RunState

SCHEMA = pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("amount", pa.int64())])
QUARANTINE = pa.schema(
    [
        *SCHEMA,
        ("_reason", pa.string()),
        ("_step", pa.string()),
        ("_run", pa.string()),
        ("_at", pa.timestamp("us", "UTC")),
    ]
)
Rows = list[tuple[int | None, int | None, int | None]]


class Shop:
    """Orders that land as Parquet, customers that are there, and a quarantine."""

    def __init__(self, root: Path, engine: str = "arrow", kind: str = "parquet", session: Any = None) -> None:
        self.root, self.engine, self.kind, self.session = root, engine, kind, session
        (root / "landing").mkdir()
        self.customers(1, 2)
        self.sources = {"landing": pipeline.Source(str(root / "landing" / "*.parquet"))}
        if kind == "iceberg":
            from intarsia.tables.iceberg.catalog import embedded_catalog

            self.catalog = embedded_catalog(root / "warehouse")
            self.catalog.create_namespace("db")
            self.catalog.create_table("db.bad", QUARANTINE)

    def customers(self, *ids: int) -> None:
        it.write(pa.table({"id": list(ids)}), self.root / "customers", mode="overwrite", engine="arrow")

    def lands(self, name: str, rows: Rows) -> None:
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, pa.int64()) for column in columns]
        pq.write_table(pa.table(arrays, schema=SCHEMA), self.root / "landing" / f"{name}.parquet")

    def pipeline(self, *steps: Any) -> pipeline.Pipeline:
        names = ("orders", "customers", "other", "bad")
        targets = {name: pipeline.Target(str(self.root / name)) for name in names}
        if self.kind == "iceberg":
            targets["bad"] = pipeline.Target("db.bad", kind="iceberg", catalog=str(self.root / "warehouse"))
        return pipeline.Pipeline(
            name="shop",
            engine=self.engine,
            sources=self.sources,
            targets=targets,
            steps=steps,
            reports=str(self.root / "reports"),
        )

    def run(self, *steps: Any, **options: Any) -> pipeline.PipelineReport:
        return pipeline.run(self.pipeline(*steps), progress=False, session=self.session, **options)

    def rows(self, target: str = "orders") -> Rows:
        if not (self.root / target).exists():
            return []
        found = pq.read_table(self.root / target)
        return sorted(zip(*(found[name].to_pylist() for name in SCHEMA.names), strict=True), key=str)

    def quarantined(self) -> list[tuple[Any, ...]]:
        """The quarantined rows, each with its reason."""
        if self.kind == "iceberg":
            found = self.catalog.load_table("db.bad").scan().to_arrow()
        elif (self.root / "bad").exists():
            found = pq.read_table(self.root / "bad")
        else:
            return []
        if not found.num_rows:
            return []
        names = [*SCHEMA.names, "_reason"]
        return sorted(zip(*(found[name].to_pylist() for name in names), strict=True), key=str)


@contextmanager
def ended(at: str, monkeypatch: pytest.MonkeyPatch, step: str) -> Iterator[None]:
    """The process ends before a method of the run_state is called, for a step: as a kill there would do."""
    with monkeypatch.context() as patched:
        real = getattr(RunState, at)

        def call(run_state: RunState, *args: Any, **kwargs: Any) -> Any:
            if args[0].name == step:
                raise KeyboardInterrupt
            return real(run_state, *args, **kwargs)

        patched.setattr(RunState, at, call)
        with pytest.raises(KeyboardInterrupt):
            yield
