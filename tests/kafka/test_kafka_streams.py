"""Pipelines over topics of a real Kafka: each message once, losses are told, no password is shown."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from intarsia import pipeline
from intarsia.errors import EngineError, InputError
from tests.kafka.broker import LOGIN, PASSWORD, KafkaBroker, Topics

FILE = """
name = "web"

[sources.messages]
stream = {{ format = "kafka", options = {options} }}

[sources.clicks]
sql = '''
select click.*, timestamp as sent_at, partition, offset
from (
  select *, from_json(
    cast(value as string),
    'click_id bigint, page string, seconds decimal(9, 2), broken string',
    map('columnNameOfCorruptRecord', 'broken')
  ) as click
  from messages
)'''

[targets.clicks]
{target}

[targets.bad_clicks]
path = "lake/bad_clicks"

[lineage]
file = "lineage.jsonl"

[[steps]]
name = "clicks are sound"
operation = "expect"
target = "clicks"
holds = "broken is null"
not_null = "click_id"
action = "quarantine"
quarantine = "bad_clicks"

[[steps]]
name = "clicks"
operation = "merge"
source = "clicks"
target = "clicks"
on = "click_id"
strategy = "deduplicate"
dedup_order_by = "offset"
"""
TARGETS = {
    "parquet": 'path = "lake/clicks"',
    "iceberg": 'kind = "iceberg"\npath = "web.clicks"\ncatalog = "./warehouse"',
}
COLUMNS = """click_id bigint, page string, seconds decimal(9, 2), broken string,
sent_at timestamp, partition int, offset bigint"""


class Web:
    """The pipeline of the documentation, over a topic."""

    def __init__(self, root: Path, session: Any, servers: str, topic: str, kind: str = "parquet") -> None:
        self.root, self.session, self.kind = root, session, kind
        self.options: dict[str, Any] = {"kafka.bootstrap.servers": servers, "subscribe": topic}
        if kind == "iceberg":
            from intarsia.tables.iceberg import embedded_catalog

            empty = session.createDataFrame([], COLUMNS).toArrow()
            self.catalog = embedded_catalog(root / "warehouse")
            self.catalog.create_namespace("web")
            self.catalog.create_table("web.clicks", empty.schema)

    def run(self, **given: Any) -> pipeline.PipelineReport:
        options = ", ".join(f"\"{name}\" = '{value}'" for name, value in self.options.items())
        text = FILE.format(options=f"{{ {options} }}", target=TARGETS[self.kind])
        declared = pipeline.loads(text, origin="web.toml", directory=str(self.root))
        return pipeline.run(declared, session=self.session, progress=False, **given)

    def rows(self) -> list[tuple[int, str]]:
        if self.kind == "iceberg":
            found = self.catalog.load_table("web.clicks").scan().to_arrow()
        else:
            found = pq.read_table(self.root / "lake" / "clicks")
        return sorted(zip(found["click_id"].to_pylist(), found["page"].to_pylist(), strict=True))

    def batches(self, **given: Any) -> int | None:
        report = self.run(**given)
        report.check()
        return report.steps[-1].batches


def click(number: int, page: str) -> dict[str, Any]:
    return {"click_id": number, "page": page, "seconds": 1.25}


@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_each_message_takes_effect_once_and_a_bad_one_is_quarantined(
    tmp_path: Path, session: Any, topics: Topics, kind: str
) -> None:
    topic = f"clicks-{kind}"
    topics.make(topic, 2)
    web = Web(tmp_path, session, topics.broker.servers, topic, kind)
    topics.send(topic, click(1, "/a"), click(2, "/b"), click(1, "/later"))
    assert web.batches() == 1
    assert web.rows() == [(1, "/later"), (2, "/b")]
    assert web.batches() == 0  # nothing new
    topics.send(
        topic, click(2, "/c"), '{"click_id": 3, "pa', {"click_id": "x"}, {"page": "/"}, click(4, "/d")
    )
    assert web.batches() == 1
    assert web.rows() == [(1, "/later"), (2, "/c"), (4, "/d")]
    bad = pq.read_table(tmp_path / "lake" / "bad_clicks")
    broken = [text or "" for text in bad["broken"].to_pylist()]
    assert sorted(broken) == ["", '{"click_id": "x"}', '{"click_id": 3, "pa']
    assert web.batches() == 0


def test_a_password_is_used_and_shown_nowhere(
    tmp_path: Path, session: Any, topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "intarsia")  # py4j's own has all that is said to the JVM
    topics.make("secret")
    topics.send("secret", click(1, "/a"))
    web = Web(tmp_path, session, topics.broker.login_servers, "secret")
    web.options |= {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": LOGIN,
        "kafka.ssl.key.password": f"{PASSWORD}-of-the-key",
    }
    assert web.batches() == 1
    web.options["kafka.sasl.jaas.config"] = LOGIN.replace(PASSWORD, f"wrong-{PASSWORD}")
    with pytest.raises(InputError, match="Authentication failed") as refused:
        web.run()
    assert PASSWORD not in str(refused.value)
    assert [one.name for one in caplog.records if PASSWORD in one.getMessage()] == []
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(file.name == "lineage.jsonl" for file in written)
    assert [str(file) for file in written if PASSWORD.encode() in file.read_bytes()] == []


def test_a_topic_that_was_made_again_is_not_taken_for_the_one_before(
    tmp_path: Path, session: Any, topics: Topics
) -> None:
    """Its offsets are those of the one before, so that Spark finds nothing new in it."""
    topics.make("again")
    topics.send("again", click(1, "/a"), click(2, "/b"))
    web = Web(tmp_path, session, topics.broker.servers, "again")
    web.batches()
    topics.remove("again")
    with pytest.raises(
        InputError, match=r"web.toml, line \d+, \[sources.messages\] stream: there is no topic 'again'"
    ):
        web.run()
    topics.make("again")
    topics.send("again", click(3, "/c"), click(2, "/new"))
    with pytest.raises(
        InputError, match=r"\[sources.messages\] stream: the topic 'again' was deleted"
    ) as told:
        web.run()
    assert "--full-refresh" in (told.value.hint or "")
    assert web.rows() == [(1, "/a"), (2, "/b")]
    web.batches(full_refresh=True)
    assert web.rows() == [(1, "/a"), (2, "/new"), (3, "/c")]
    assert web.batches() == 0


def test_messages_that_are_gone_before_a_batch_took_them_are_told(
    tmp_path: Path, session: Any, topics: Topics
) -> None:
    topics.make("pruned")
    topics.send("pruned", click(1, "/a"))
    web = Web(tmp_path, session, topics.broker.servers, "pruned")
    web.batches()
    topics.send("pruned", *(click(number, "/x") for number in range(2, 6)))
    topics.prune("pruned", before=3)
    failed = web.run().failed
    assert failed is not None
    assert isinstance(failed.error, InputError)
    assert "[sources.messages] stream: messages that no batch has taken are gone from Kafka" in str(
        failed.error
    )
    assert "failOnDataLoss" in (failed.error.hint or "")
    assert web.rows() == [(1, "/a")]


def test_a_topic_or_a_broker_that_is_not_there_is_told_before_anything_is_written(
    tmp_path: Path, session: Any, topics: Topics
) -> None:
    web = Web(tmp_path, session, topics.broker.servers, "clics")
    with pytest.raises(
        InputError, match=r"web.toml, line \d+, \[sources.messages\] stream: there is no topic 'clics'"
    ):
        web.run()
    web.options |= {"kafka.bootstrap.servers": "127.0.0.1:1"}
    web.options |= {"kafka.default.api.timeout.ms": 3000, "kafka.request.timeout.ms": 3000}
    begun = time.monotonic()
    with pytest.raises(EngineError, match=r"no broker of Kafka answered at 127\.0\.0\.1:1:"):
        web.run()
    assert time.monotonic() - begun < 30
    assert not (tmp_path / "lake").exists()
    assert not list(tmp_path.rglob("*.checkpoints"))  # a topic that is corrected is not that of another query


@pytest.mark.timeout(1200)
def test_a_driver_that_is_killed_around_its_commits_has_every_message_once(
    tmp_path: Path, broker: KafkaBroker, topics: Topics
) -> None:
    from intarsia.tables.iceberg import embedded_catalog
    from tests.pipeline.test_stream_kills import SCHEMA

    topics.make("killed")
    for batch in range(3):
        topics.send("killed", {"id": 0, "n": 10**batch}, {"id": batch + 1, "n": 1})
    catalog = embedded_catalog(tmp_path / "warehouse")
    catalog.create_namespace("db")
    catalog.create_table("db.t", SCHEMA)
    for armed in (("add parquet", 1, "after"), ("add iceberg", 1, "after"), ("add iceberg", 2, "before"), ()):
        command = [sys.executable, "-m", "tests.kafka.kafka_driver", str(tmp_path), broker.servers]
        done = subprocess.run(
            [*command, *map(str, armed)],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
            start_new_session=True,
        )
        assert done.returncode == (-signal.SIGKILL if armed else 0), (armed, done.stderr[-3000:])
    for found in (pq.read_table(tmp_path / "t"), catalog.load_table("db.t").scan().to_arrow()):
        rows = sorted(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True))
        assert rows == [(0, 111), (1, 1), (2, 1), (3, 1)]
