"""Pipelines over topics of a real Kafka: each message once, losses are told, no password is shown."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from intarsia import pipeline
from intarsia.errors import EngineError, InputError
from tests.cross.jars import fetched
from tests.kafka.broker import LOGIN, PASSWORD, SPARK_JARS, KafkaBroker, Topics
from tests.kafka.certificates import KEY_PASSWORD, TRUST_PASSWORD

SERVER = Path(__file__).parents[1] / "spark" / "connect_server.py"
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


TLS_MISTAKES = {
    "another authority": (
        {"kafka.ssl.truststore.location": "other.p12"},
        "TLS with it failed: ",
    ),
    "wrong password of the trust store": (
        {"kafka.ssl.truststore.password": "x-hunter2-of-me"},
        "trust.p12 cannot be opened",
    ),
    "wrong password of the key": (
        {"kafka.ssl.keystore.password": "x-hunter2-of-me"},
        "client.p12 cannot be opened",
    ),
    "no such store": ({"kafka.ssl.truststore.location": "none.p12"}, "none.p12 cannot be opened"),
}


def test_tls_with_certificates_of_both_sides_is_read_and_no_password_is_shown(
    tmp_path: Path, session: Any, topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "intarsia")
    topics.make("sealed")
    topics.send("sealed", click(1, "/a"))
    room = topics.broker.room / "tls"
    web = Web(tmp_path, session, topics.broker.tls_servers, "sealed")
    sealed = {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PKCS12",
        "kafka.ssl.truststore.location": room / "trust.p12",
        "kafka.ssl.truststore.password": TRUST_PASSWORD,
        "kafka.ssl.keystore.type": "PKCS12",
        "kafka.ssl.keystore.location": room / "client.p12",
        "kafka.ssl.keystore.password": KEY_PASSWORD,
        "kafka.ssl.key.password": KEY_PASSWORD,
    }
    web.options |= sealed
    refused = []
    for mistake, told in TLS_MISTAKES.values():
        wrong = {name: room / value if "location" in name else value for name, value in mistake.items()}
        web.options |= wrong
        with pytest.raises(
            InputError, match=r"^web.toml, line \d+, \[sources.messages\] stream: Kafka at"
        ) as caught:
            web.run()
        refused.append((told, str(caught.value), caught.value.hint))
        web.options |= sealed
    assert [one for one in refused if one[0] not in one[1] or "hunter2" in str(one)] == []
    assert not (tmp_path / "lake").exists()
    assert web.batches() == 1
    assert web.rows() == [(1, "/a")]
    topics.send("sealed", click(2, "/b"))
    assert web.batches() == 1
    assert [one.name for one in caplog.records if "hunter2" in one.getMessage()] == []
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert [str(file) for file in written if b"hunter2" in file.read_bytes()] == []


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
        InputError, match=r"^web.toml, line \d+, \[sources.messages\] stream: there is no topic 'again'"
    ):
        web.run()
    topics.make("again")
    topics.send("again", click(3, "/c"), click(2, "/new"))
    with pytest.raises(
        InputError, match=r"^web.toml, line \d+, \[sources.messages\] stream: the topic 'again' was deleted"
    ) as told:
        web.run()
    assert "--full-refresh" in (told.value.hint or "")
    assert web.rows() == [(1, "/a"), (2, "/b")]
    web.batches(full_refresh=True)
    assert web.rows() == [(1, "/a"), (2, "/new"), (3, "/c")]
    assert web.batches() == 0


def test_a_topic_that_was_made_again_is_told_where_it_is_shorter_or_has_fewer_partitions(
    tmp_path: Path, session: Any, topics: Topics
) -> None:
    topics.make("shorter", 2)
    topics.send("shorter", *(click(number, "/a") for number in range(20)))  # of one key, so in one partition
    web = Web(tmp_path, session, topics.broker.servers, "shorter")
    web.options["failOnDataLoss"] = "false"  # which is about messages, not about another topic
    web.batches()
    for partitions in (2, 1):
        topics.remove("shorter")
        topics.make("shorter", partitions)
        topics.send("shorter", click(30, "/b"))
        with pytest.raises(InputError, match="the topic 'shorter' was deleted and made again"):
            web.run()
    assert len(web.rows()) == 20


def test_a_topic_whose_known_messages_are_gone_is_gone_on_with(
    tmp_path: Path, session: Any, topics: Topics
) -> None:
    topics.make("aged")
    topics.send("aged", click(1, "/a"), click(2, "/b"))
    web = Web(tmp_path, session, topics.broker.servers, "aged")
    web.batches()
    topics.prune("aged", before=2)
    assert web.batches() == 0
    topics.send("aged", click(3, "/c"))
    assert web.batches() == 1
    assert web.rows() == [(1, "/a"), (2, "/b"), (3, "/c")]


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
        InputError, match=r"^web.toml, line \d+, \[sources.messages\] stream: there is no topic 'clics'"
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


@contextmanager
def serve(room: Path) -> Iterator[str]:
    """The URL of a Spark Connect server that can read Kafka."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"spark.jars": ",".join(map(str, fetched(SPARK_JARS))), "spark.driver.memory": "512m"}
    command = [sys.executable, str(SERVER), str(port), "local[1]", json.dumps(settings)]
    with (
        open(room / "server.log", "wb") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=room,
            start_new_session=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", (room / "server.log").read_text()[-3000:]
            yield f"sc://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # with its JVM


@pytest.mark.timeout(1200)
def test_on_spark_connect_topics_are_told_apart_and_mistakes_are_told(tmp_path: Path, topics: Topics) -> None:
    pytest.importorskip("grpc", reason="pyspark has no Spark Connect here")
    topics.make("remote")
    topics.send("remote", click(1, "/a"), click(2, "/b"))
    with serve(tmp_path) as url:

        def run(topic: str, servers: str, told: str) -> None:
            options = f'{{ "kafka.bootstrap.servers" = "{servers}", subscribe = "{topic}"'
            options += ', "kafka.default.api.timeout.ms" = 9000, "kafka.request.timeout.ms" = 9000 }'
            text = FILE.format(options=options, target=TARGETS["parquet"])
            (tmp_path / "web.toml").write_text(f"{text}\n")
            done = subprocess.run(
                [str(Path(sys.executable).with_name("intarsia")), "run", "web.toml", "--master", url],
                cwd=tmp_path,
                env=os.environ | {"JAVA_HOME": "/nonexistent"},
                capture_output=True,
                text=True,
                timeout=400,
                check=False,
            )
            said = " ".join((done.stdout + done.stderr).split())
            assert (done.returncode == 0) == (not told), said[-3000:]
            assert told in said

        run("remot", topics.broker.servers, "[sources.messages] stream: there is no topic 'remot'")
        run("remote", "127.0.0.1:1", "no broker of Kafka answered at 127.0.0.1:1")
        run("remote", topics.broker.servers, "")
        found = pq.read_table(tmp_path / "lake" / "clicks")
        assert sorted(found["page"].to_pylist()) == ["/a", "/b"]
        topics.remove("remote")
        topics.make("remote")
        topics.send("remote", click(3, "/c"), click(2, "/new"))
        run("remote", topics.broker.servers, "the topic 'remote' was deleted and made again")


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
