"""What a stream may be declared as: mistakes are told with their place; no Spark is needed to tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from intarsia import pipeline
from intarsia.errors import InputError, NotSupported
from intarsia.pipeline.streams.checkpoints import choose_directory, find_new_files, make_checkpoint
from intarsia.pipeline.streams.stream_steps import start_query
from intarsia.spark.errors import find_known_failure

FILE = """
name = "web"

[sources.clicks]
{source}

[targets.t]
path = "lake/t"

[[steps]]
name = "s"
source = "clicks"
target = "t"
{step}
"""
APPEND = 'operation = "write"'
JSON = 'stream = { format = "json", path = "in", schema = { id = "bigint" } }'


def load(source: str = JSON, step: str = APPEND, **options: str) -> pipeline.Pipeline:
    text = FILE.format(source=source, step=step)
    return pipeline.loads(text, origin="web.toml", directory="/lake", **options)  # type: ignore[arg-type]


def test_a_stream_is_read_with_paths_beside_its_file() -> None:
    stream = (
        load(
            'stream = { format = "json", path = "in", schema = "id bigint", checkpoint = "cp",'
            " options = { maxFilesPerTrigger = 3, multiLine = false } }"
        )
        .sources["clicks"]
        .stream
    )
    assert stream == pipeline.Stream(
        format="json",
        path="/lake/in",
        schema="id bigint",
        options={"maxFilesPerTrigger": 3, "multiLine": False},
        checkpoint="/lake/cp",
    )


@pytest.mark.parametrize(
    ("source", "told", "hint"),
    [
        ('stream = { path = "in" }', r"\[sources.clicks\] stream: the key 'format' is missing", ""),
        ('stream = { formt = "json" }', "stream: the key 'formt' is not known", "format"),
        ('stream = "json"', "stream: it must be a table, not the text 'json'", ""),
        ('stream = { format = "json" }', "stream: a stream of json files needs a path", ""),
        (
            'stream = { format = "csv", path = "in" }',
            "Spark infers no schema for a stream of csv files",
            "columns =",
        ),
        ('stream = { format = "rate" }\npath = "in"', "it has path and stream, and can have one of them", ""),
        (
            'stream = { format = "rate" }\noptions = { a = 1 }',
            "stream: 'options' goes with a path",
            "stream = {",
        ),
        ('stream = { format = "rate" }\nnew_files_only = true', "'new_files_only' goes with a path", ""),
        (
            'stream = { format = "rate", schema = 3 }',
            "schema: it must be text or a table, not the number 3",
            "",
        ),
        ('stream = { format = "rate", checkpoint = "s3://b/cp" }', "checkpoints are kept on a disk", "mount"),
        ('stream = { format = "rate", options = { a = [1] } }', "options.a: it must be", ""),
    ],
)
def test_a_mistake_in_a_stream_is_told_with_its_place(source: str, told: str, hint: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        load(source)
    assert str(caught.value).startswith("web.toml, line ")
    assert ", [sources.clicks]" in str(caught.value)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ('operation = "write"\nmode = "overwrite"', "would put each batch of the stream in the place"),
        ('operation = "write"\nmode = "overwrite_partitions"', "would put each batch"),
        ('operation = "merge"\non = "id"\nstrategy = "full_merge"', "changes the rows that its source lacks"),
        (
            'operation = "merge"\non = "id"\nwhen = "when not matched by source then delete"',
            "its source lacks",
        ),
    ],
)
def test_a_step_that_needs_all_rows_at_once_is_refused(step: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        load(step=step)
    assert "[[steps]] 1 (s) source" in str(caught.value)


def test_an_expectation_on_a_stream_below_the_step_that_takes_it_is_refused() -> None:
    text = FILE.format(source=JSON, step=APPEND)
    text += '\n[[steps]]\noperation = "expect"\nsource = "clicks"\nnot_null = "id"\n'
    with pytest.raises(InputError, match="no step below takes the stream"):
        pipeline.loads(text)


def test_new_rows_of_a_target_are_not_joined_with_a_stream() -> None:
    news = '[sources.news]\ntarget = "u"\nsince = "last run"\n[targets.u]\npath = "lake/u"\n'
    query = '[sources.joined]\nsql = "select id from clicks join news using (id)"\n'
    step = 'operation = "merge"\non = "id"'
    text = FILE.format(source=JSON, step=step).replace('source = "clicks"', 'source = "joined"')
    with pytest.raises(InputError, match=r"reads the stream 'clicks', whose batches .* rows of 'news'"):
        pipeline.loads(news + query + text.replace('name = "web"', ""), origin="web.toml", directory="/lake")


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_engines_without_streams_refuse_them(engine: str) -> None:
    with pytest.raises(NotSupported, match=f"a stream is read by Spark, and the engine is {engine}"):
        load(engine=engine)


def test_a_query_over_a_stream_may_be_appended_and_one_without_may_not() -> None:
    text = FILE.format(source=JSON, step=APPEND).replace('source = "clicks"', 'source = "q"')
    streamed = '\n[sources.q]\nsql = "select id from clicks"\n'
    assert pipeline.loads(text + streamed, origin="web.toml").sources["q"].is_computed
    with pytest.raises(InputError, match="would double its rows"):
        pipeline.loads(text + '\n[sources.q]\nsql = "select 1 as id"\n')


def test_a_module_declares_the_same_stream_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "web.py").write_text(
        "from intarsia import pipeline\n"
        "web = pipeline.Pipeline('web')\n"
        "web.stream('clicks', 'json', 'in', columns={'id': 'bigint'}, options={'maxFilesPerTrigger': 3})\n"
        "web.write('clicks', into='lake/t', name='s')\n"
    )
    declared = 'stream = { format = "json", path = "in", options = { maxFilesPerTrigger = 3 } }'
    text = FILE.format(source=f'{declared}\ncolumns = {{ id = "bigint" }}', step=APPEND)
    (tmp_path / "web.toml").write_text(text)
    made = pipeline.load(tmp_path / "web.py")
    assert made.sources == pipeline.load(tmp_path / "web.toml").sources


def test_a_run_that_stays_needs_a_stream_and_writes(tmp_path: Path) -> None:
    declared = pipeline.Pipeline(
        name="p",
        engine="arrow",
        sources={"a": pipeline.Source(str(tmp_path / "a.csv"))},
        targets={"t": pipeline.Target(str(tmp_path / "t"))},
        steps=(pipeline.Write(source="a", target="t"),),
        reports=str(tmp_path / "reports"),
    )
    with pytest.raises(InputError, match="has no stream, so there is nothing to stay for"):
        pipeline.run(declared, continuous=True)
    with pytest.raises(InputError, match="neither plans nor marks"):
        pipeline.run(declared, continuous=True, dry_run=True)
    assert not (tmp_path / "reports").exists()


def test_steps_of_any_name_have_directories_of_their_own(tmp_path: Path) -> None:
    names = ["a", "a b", "a-b", "a/b", "../a", ".", "é", "a.b"]
    found = [choose_directory(tmp_path, name) for name in names]
    assert len(set(found)) == len(names)
    assert {path.parent for path in found} == {tmp_path}
    assert not any(path.name in (".", "..") for path in found)


def test_files_are_new_until_a_finished_batch_has_taken_them(tmp_path: Path) -> None:
    """The files of Spark's log are those that Spark itself writes; see test_stream_sources."""
    landing = tmp_path / "in"
    (landing / "day=1").mkdir(parents=True)
    for name in ("a b.json", "day=1/c.json", "_hidden", ".d.json"):
        (landing / name).write_text("{}")
    made = make_checkpoint(
        tmp_path / "cp", pipeline="p", step="s", step_id="p/s", target="t", streams=[{"format": "json"}]
    )
    spark = Path(made.location)
    assert find_new_files(made, str(landing)) == [str(landing / "a b.json"), str(landing / "day=1/c.json")]
    for name, text in {
        "sources/0/0": f'v1\n{{"path":"file://{landing}/a%20b.json","timestamp":1,"batchId":0}}',
        "offsets/0": 'v1\n{"batchWatermarkMs":0}\n{"logOffset":0}',
    }.items():
        (spark / name).parent.mkdir(parents=True, exist_ok=True)
        (spark / name).write_text(text)
    assert find_new_files(made, str(landing)) is None  # the batch was begun, and may not have been committed
    (spark / "commits").mkdir()
    (spark / "commits" / "0").write_text("v1\n{}")
    assert find_new_files(made, str(landing)) == [str(landing / "day=1/c.json")]
    assert find_new_files(made, str(landing / "a*.json")) == []
    (spark / "sources" / "0" / "1").write_text("v1")  # listed, and in no batch yet
    assert find_new_files(made, str(landing / "a*.json")) is None


class Writer:
    """A writer of a stream whose server's Python comes up at the third attempt."""

    def __init__(self, said: str = "Timed out while waiting for the Python worker to connect back") -> None:
        self.said, self.starts = said, 0

    def start(self) -> str:
        self.starts += 1
        if self.starts < 3:
            raise ConnectionError(self.said)
        return "query"


def test_a_query_is_started_again_where_the_python_of_a_busy_server_was_late() -> None:
    """Spark gives it ten seconds and no setting for that."""
    assert start_query(Writer()) == "query"
    refused = Writer("Connection refused")
    with pytest.raises(ConnectionError, match="refused"):
        start_query(refused)
    assert refused.starts == 1


def test_python_that_was_late_is_told_as_that_and_not_as_a_lost_connection() -> None:
    error = find_known_failure(ConnectionError(Writer().said), "it")
    assert "did not start in time" in str(error)
