"""A target that is read as a source: its rows at one moment, however many files it has."""

from __future__ import annotations

import pyarrow as pa
import pytest

import intarsia as it
from intarsia import pipeline
from intarsia.core import snapshot
from intarsia.errors import CommitConflict, NothingMatched
from intarsia.pipeline import inputs
from intarsia.pipeline.model import Source


@pytest.fixture
def path(tmp_path, make_dataset):
    return make_dataset(tmp_path / "ds", pa.table({"id": list(range(20)), "v": ["old"] * 20}), files=10)


def test_a_target_of_more_files_than_may_be_open_is_read(path, monkeypatch):
    monkeypatch.setattr(inputs, "_OPEN_FILES", 3)
    monkeypatch.setattr(snapshot, "open_limit", lambda: 6)
    rows = inputs.read_snapshot_stream(Source(target="t"), it.snapshot(path)).read_all()
    assert rows["id"].to_pylist() == list(range(20))


def test_a_target_that_is_changed_while_it_is_read_is_a_conflict(path, monkeypatch):
    monkeypatch.setattr(inputs, "_OPEN_FILES", 3)
    stream = inputs.read_snapshot_stream(Source(target="t"), it.snapshot(path))
    stream.read_next_batch()
    it.merge(pa.table({"id": [0, 19], "v": ["new"] * 2}), path, on="id")
    with pytest.raises(CommitConflict, match=r"part-00009\.parquet was replaced"):
        stream.read_all()


@pytest.mark.parametrize("since", ["", 'since = "last run"'])
@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_a_source_of_a_target_that_nobody_writes_is_refused_before_any_step(tmp_path, engine, since):
    pytest.importorskip("duckdb")
    (tmp_path / "a.csv").write_text("id\n1\n")
    declared = f"""
    name = "shop"
    engine = "{engine}"
    [sources.landing]
    path = "a.csv"
    [sources.view]
    target = "lost"
    {since}
    [targets.lost]
    path = "lake/lost"
    [targets.first]
    path = "lake/first"
    [targets.second]
    path = "lake/second"
    [[steps]]
    operation = "merge"
    source = "landing"
    target = "first"
    on = "id"
    [[steps]]
    operation = "merge"
    source = "view"
    target = "second"
    on = "id"
    """
    (tmp_path / "shop.toml").write_text(declared)
    words = (
        r"shop.toml, line \d+, \[sources.view\]: the target 'lost' does not exist, and no step of this"
        " run writes it"
    )
    with pytest.raises(NothingMatched, match=words):
        pipeline.run_file(tmp_path / "shop.toml", progress=False)
    assert not (tmp_path / "lake").exists()
    written = declared.replace('target = "second"', 'target = "lost"').replace(
        'source = "view"', 'source = "landing"'
    )
    both = declared + written[written.rindex("[[steps]]") :]
    (tmp_path / "shop.toml").write_text(both)
    report = pipeline.run_file(tmp_path / "shop.toml", progress=False)
    assert "the source 'view' reads the target 'lost', which does not exist yet" in str(report.failed.error)
