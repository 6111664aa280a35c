"""Topics of Kafka as they are declared, and what Kafka's failures become; no broker is needed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from intarsia import pipeline
from intarsia.errors import EngineError, InputError, IntarsiaError
from intarsia.pipeline.lineage.events import name_stream
from intarsia.pipeline.streams.checkpoints import (
    finish_checkpoint,
    make_checkpoint,
    read_checkpoint,
    read_offsets,
    write_checkpoint,
)
from intarsia.pipeline.streams.kafka import share_offsets, translate_kafka_errors

FILE = """
name = "web"

[sources.clicks]
stream = {{ format = "kafka"{more} }}

[targets.t]
path = "lake/t"

[[steps]]
operation = "write"
source = "clicks"
target = "t"
"""
AT = '"kafka.bootstrap.servers" = "b:9092"'
LOST = """[STREAM_FAILED] Query [id = 1] terminated with exception: Some data may have been lost because \
they are not available in Kafka any more;
either the data was aged out by Kafka or the topic may have been deleted.
Reason: Partition clicks-1 offset was changed from 3 to 1.
This could be either 1) a user error. SQLSTATE: XXKST"""


def load(more: str) -> pipeline.Pipeline:
    return pipeline.loads(FILE.format(more=more), origin="web.toml", directory="/lake")


@pytest.mark.parametrize(
    "options",
    [
        f'{AT}, subscribe = "clicks"',
        f'{AT}, subscribePattern = "clicks.*"',
        f"{AT}, assign = '{{\"clicks\": [0]}}'",
        '"Kafka.Bootstrap.Servers" = "b:9092", SUBSCRIBE = "clicks"',
    ],
)
def test_a_topic_is_declared_by_brokers_and_a_choice_of_topics(options: str) -> None:
    assert load(f", options = {{ {options} }}").sources["clicks"].stream is not None


@pytest.mark.parametrize(
    ("more", "told", "hint"),
    [
        ("", "options: there is no 'kafka.bootstrap.servers'", "host:9092"),
        (f", options = {{ {AT} }}", "there is none of subscribe, subscribePattern, assign", "subscribe ="),
        (
            f', options = {{ {AT}, subscribe = "a", assign = "b" }}',
            "subscribe and assign are given",
            "give one of them",
        ),
        (f', options = {{ {AT}, assign = "clicks" }}', "options.assign is no JSON", '{"topic": [0, 1]}'),
        (f', options = {{ {AT}, assign = "[]" }}', "options.assign names no topic", ""),
        (
            f', path = "in", options = {{ {AT}, subscribe = "a" }}',
            "messages of Kafka have no path",
            "subscribe",
        ),
        (
            f', schema = "id bigint", options = {{ {AT}, subscribe = "a" }}',
            "have the columns key, value, topic, partition, offset",
            "from_json",
        ),
        (
            ', options = { kafka.bootstrap.servers = "b:9092", subscribe = "a" }',
            r"options\.kafka: it must be .* not a table",
            "a key with dots is quoted",
        ),
    ],
)
def test_a_mistake_in_a_topic_is_told_with_its_place(more: str, told: str, hint: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        load(more)
    assert str(caught.value).startswith("web.toml, line ")
    assert ", [sources.clicks] stream" in str(caught.value)
    assert hint in (caught.value.hint or "")


def test_the_options_of_a_stream_are_not_in_its_text_lineage_or_picture() -> None:
    login = 'org.X required username="u" password="hunter2";'
    options = f'{AT}, subscribe = "clicks", "kafka.sasl.jaas.config" = \'{login}\''
    declared = load(f", options = {{ {options} }}")
    stream = declared.sources["clicks"].stream
    assert stream is not None
    assert stream.options["kafka.sasl.jaas.config"] == login
    shown = (repr(declared), str(name_stream(stream)), pipeline.draw(declared, "svg"))
    assert not any("hunter2" in text for text in shown)
    assert all("clicks" in text for text in shown)


def raise_from_spark(said: str) -> IntarsiaError | None:
    from pyspark.errors import StreamingQueryException

    try:
        with translate_kafka_errors():
            raise StreamingQueryException(said)
    except IntarsiaError as error:
        return error
    except StreamingQueryException:
        return None


def test_what_kafka_says_while_a_query_runs_becomes_an_error_of_ours() -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    lost = raise_from_spark(LOST)
    assert isinstance(lost, InputError)
    assert "are gone from Kafka (Partition clicks-1 offset was changed from 3 to 1):" in lost.message
    assert "failOnDataLoss" in (lost.hint or "")
    assert isinstance(
        raise_from_spark("org.apache.kafka.common.errors.UnknownTopicOrPartitionException"), InputError
    )
    late = raise_from_spark(
        "x\nCaused by: org.apache.kafka.common.errors.TimeoutException: Timed out waiting"
    )
    assert isinstance(late, EngineError)
    assert "no broker of Kafka answered: TimeoutException: Timed out waiting" in late.message
    assert raise_from_spark("org.apache.spark.SparkException: something else") is None


def test_a_checkpoint_keeps_its_last_messages_and_one_with_ids_of_topics_is_read(tmp_path: Path) -> None:
    made = make_checkpoint(tmp_path, pipeline="p", step="s", step_id="p/s", target="t", streams=[{}])
    write_checkpoint(made)
    finish_checkpoint(made, [{"clicks": {"0": {"41": "digest"}}}])
    found = read_checkpoint(tmp_path)
    assert found == replace(made, records=({"clicks": {"0": {"41": "digest"}}},))
    file = next(tmp_path.glob("*.json"))
    raw = json.loads(file.read_text())
    del raw["records"]
    file.write_text(json.dumps(raw | {"topics": [{"clicks": "id"}]}))
    assert read_checkpoint(tmp_path) == made


def test_offsets_of_finished_batches_are_those_of_the_stream_that_reads_the_topic(tmp_path: Path) -> None:
    made = make_checkpoint(tmp_path, pipeline="p", step="s", step_id="p/s", target="t", streams=[{}])
    assert read_offsets(made) == []
    for name in ("offsets", "commits"):
        Path(made.location, name).mkdir(parents=True)
    lines = ["v1", "{}", '{"logOffset":3}', '{"clicks":{"0":5}}', '{"views-1":{"0":7,"1":0}}']
    for batch in ("8", "9"):
        Path(made.location, "offsets", batch).write_text("\n".join(lines).replace("5", batch))
    Path(made.location, "commits", "8").write_text("v1\n{}")  # and 9 was begun
    streams = [
        pipeline.Stream("json", "in"),
        pipeline.Stream("kafka", options={"subscribePattern": "views-.*"}),
        pipeline.Stream("kafka", options={"Subscribe": "clicks, visits"}),
    ]
    found = read_offsets(made)
    assert share_offsets(streams, found) == ({}, {"views-1": {"0": 7, "1": 0}}, {"clicks": {"0": 8}})
    both = pipeline.Stream("kafka", options={"assign": '{"clicks": [0]}'})
    assert share_offsets([*streams, both], found)[2:] == ({}, {}), "the clicks of two clusters"


def test_what_a_killed_run_has_left_of_a_checkpoint_is_none_and_is_removed(tmp_path: Path) -> None:
    draft = tmp_path / ".intarsia.json.123.part"
    draft.write_text("{")
    assert read_checkpoint(tmp_path) is None
    write_checkpoint(
        make_checkpoint(tmp_path, pipeline="p", step="s", step_id="p/s", target="t", streams=[{}])
    )
    assert not draft.exists()
    draft.write_text("{")
    (tmp_path / "intarsia.json").rename(tmp_path / "metadata")
    with pytest.raises(InputError, match="it belongs to another query"):
        read_checkpoint(tmp_path)
