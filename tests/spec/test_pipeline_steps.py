"""S31: every step takes effect once, also when killed after its commit; each input file is taken once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia import pipeline

PIPELINE = """
name = "p"
engine = "{engine}"

[sources.landing]
path = "landing/*.parquet"

[targets.t]
{target}

[[steps]]
name = "merge"
operation = "merge"
source = "landing"
target = "t"
on = "id"

[[steps]]
name = "plus one"
operation = "update"
target = "t"
set = {{ v = "v + 1" }}
where = "v < 1000"

[[steps]]
name = "compact"
operation = "compact"
target = "t"
"""

KILLED = """
import os, signal, sys
from intarsia import pipeline
from intarsia.pipeline.state.run_state import RunState
note = RunState.note
def killed(run_state, step, *args, **kwargs):
    if step.name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    note(run_state, step, *args, **kwargs)
RunState.note = killed
pipeline.run_file(sys.argv[1], progress=False)
"""

TABLES = {
    "parquet": 'path = "t"',
    "iceberg": 'path = "db.t"\nkind = "iceberg"\ncatalog = "./warehouse"',
}


class Place:
    """A table, files that land, and a pipeline over them."""

    def __init__(self, root: Path, table: str, engine: str) -> None:
        self.root, self.table = root, table
        self.file = root / "p.toml"
        self.file.write_text(PIPELINE.format(engine=engine, target=TABLES[table]))
        (root / "landing").mkdir()
        if table == "iceberg":
            from intarsia.tables.iceberg import embedded_catalog

            catalog = embedded_catalog(root / "warehouse")
            catalog.create_namespace("db")
            catalog.create_table("db.t", pa.schema([("id", pa.int64()), ("v", pa.int64())]))

    def lands(self, name: str, rows: dict[int, int]) -> None:
        table = pa.table({"id": list(rows), "v": list(rows.values())})
        pq.write_table(table, self.root / "landing" / f"{name}.parquet")

    @property
    def target(self) -> Any:
        if self.table == "parquet":
            return self.root / "t"
        return it.iceberg("db.t", catalog=str(self.root / "warehouse"))

    def rows(self) -> dict[int, int]:
        found = pq.read_table(self.root / "t") if self.table == "parquet" else None
        if found is None:
            found = it.read(self.target).read_all()
        return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))

    def run(self, **options: Any) -> dict[str, str]:
        report = pipeline.run_file(self.file, progress=False, **options).check()
        return {step.name: step.status for step in report.steps}


@pytest.fixture(params=sorted(TABLES))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "iceberg":
        pytest.importorskip("pyiceberg")
    return Place(tmp_path, request.param, "arrow")


@pytest.mark.skipif(os.name != "posix", reason="kills a process the POSIX way")
@pytest.mark.parametrize("step", ["merge", "plus one", "compact"])
def test_s31_a_step_that_was_killed_after_its_commit_takes_effect_once(place: Place, step: str) -> None:
    place.lands("a", {1: 10, 2: 20})
    command = [sys.executable, "-c", KILLED, str(place.file), step]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    place.run()
    assert place.rows() == {1: 11, 2: 21}
    assert set(place.run().values()) == {"unchanged"}


def test_s31_each_input_file_is_taken_once_unless_a_full_refresh_is_asked_for(place: Place) -> None:
    place.lands("a", {1: 10, 2: 20})
    place.run()
    it.update(place.target, {"v": "5000"}, "id = 1")
    it.delete(place.target, "id = 2")
    place.lands("b", {3: 1030})
    place.run()
    assert place.rows() == {1: 5000, 3: 1030}
    place.run(full_refresh=True)
    assert place.rows() == {1: 11, 2: 21, 3: 1030}
