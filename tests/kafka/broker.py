"""A broker of Kafka on loopback, in a JVM of its own; its jars are pinned and fetched as for tests/cross.

Spark's package for Kafka is taken at 4.1.3 with a token provider of 4.0.0: others were not to be had where
the tests were written, and these work with Spark 4.1.4.
"""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

from tests.cross.jars import Jar, NoJars, fetched, java, pyspark_jars
from tests.kafka.certificates import write_stores

PASSWORD = "hunter2-of-kafka"
LOGIN = (
    f'org.apache.kafka.common.security.plain.PlainLoginModule required username="shop" password="{PASSWORD}";'
)
SPARK_JARS = (
    Jar(
        "org.apache.commons",
        "commons-pool2",
        "2.12.1",
        "5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-clients",
        "3.9.1",
        "7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9",
    ),
    Jar(
        "org.apache.spark",
        "spark-sql-kafka-0-10_2.13",
        "4.1.3",
        "cb31ffd9c8f5527dba061db8af671d295562092e4f3f5ff42fc249fab8a8fde6",
    ),
    Jar(
        "org.apache.spark",
        "spark-token-provider-kafka-0-10_2.13",
        "4.0.0",
        "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
    ),
)
BROKER_JARS = (
    Jar(
        "org.hdrhistogram",
        "HdrHistogram",
        "2.2.2",
        "22d1d4316c4ec13a68b559e98c8256d69071593731da96136640f864fa14fad8",
    ),
    Jar(
        "net.sourceforge.argparse4j",
        "argparse4j",
        "0.7.0",
        "65ceb669d88f63306c680f8088bbf765bbca72d288a61a03703000076c3d3f56",
    ),
    Jar(
        "com.github.ben-manes.caffeine",
        "caffeine",
        "3.2.0",
        "ec411dfdf0c03f25218648ce89861630b71680e5858a9a7278ebac8e55cab3d7",
    ),
    Jar(
        "commons-validator",
        "commons-validator",
        "1.9.0",
        "c3c14748e2d78db58df88808740711bd643b32c45ffa7b8a739f00fb467cd7d7",
    ),
    Jar(
        "com.dynatrace.hash4j",
        "hash4j",
        "0.22.0",
        "23028a3fd006e530bf495f551083208187cafd8f80624d048eba56442f16a50e",
    ),
    Jar(
        "com.fasterxml.jackson.dataformat",
        "jackson-dataformat-csv",
        "2.19.0",
        "bec1150426b0616bb488149b952b45a0dcb16d9416b017c38f6455ad9389bc68",
    ),
    Jar(
        "com.fasterxml.jackson.datatype",
        "jackson-datatype-jdk8",
        "2.19.0",
        "04f1a3f9da8155995dd00098d6847cdb9b7af67f4a3028c94031eff017c8e3e5",
    ),
    Jar(
        "net.sf.jopt-simple",
        "jopt-simple",
        "5.0.4",
        "df26cc58f235f477db07f753ba5a3ab243ebe5789d9f89ecf68dd62ea9a66c28",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-clients",
        "4.1.0",
        "eb74709dc3be35e06208827860c87a94872e8a4b00f466880670785c85a20627",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-coordinator-common",
        "4.1.0",
        "ceb4fac769379576d0901ab7d016bd886d91b0285a5a851183a49e0c735c182e",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-group-coordinator",
        "4.1.0",
        "b2528196721c9e3c675c0e214d68a1a6e6c5b489f491b3a52ced850b066dfcae",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-group-coordinator-api",
        "4.1.0",
        "526002cced845e759f0d31ae19f27e2b962caf832d2214eba97e1629b7454c26",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-metadata",
        "4.1.0",
        "d11d14a04391776f0d52dcebcdc4cc7438495984cd5213b62c0e70dc8b81e2fc",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-raft",
        "4.1.0",
        "0d56f0f0735be4fd2c25da02034ae2d7dd0764298cef7d197e99cb8650e1bb1a",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-server",
        "4.1.0",
        "fb7765a18b46b6635eae385fb1d890955aa67960aa408d5dfe48c17f2d400b9a",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-server-common",
        "4.1.0",
        "73b8b467597429cc0f3c959b0bb1181556071aaab13a6240b9877a37a8c312d0",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-share-coordinator",
        "4.1.0",
        "4c6532e878cc0fccad8b1c60b99ecf69d8b94b55beeee57f5546ad4dba5965e5",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-storage",
        "4.1.0",
        "d4b5cebcd9aeeb2db68b6ff3922bf08e776bb7d4c90f1045768267192625c810",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-storage-api",
        "4.1.0",
        "d8bb549e8c2bbb9bef4078983e9e4bb63f71e305fd07703cd2798cb7064903df",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-tools-api",
        "4.1.0",
        "2127f95153a53b8b4fc46e90e08a0b6c0d40f9faee386fff17ab0c3882e881ba",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-transaction-coordinator",
        "4.1.0",
        "b55df4f4500ddab992648326d8d0854a386215646f7ca6982dcd939ebb1d2630",
    ),
    Jar(
        "org.apache.kafka",
        "kafka_2.13",
        "4.1.0",
        "0de0471a4c7a9e734c166822a26a4bb064eb81cb2c7a8b1345912cad78997a7b",
    ),
    Jar(
        "com.yammer.metrics",
        "metrics-core",
        "2.2.0",
        "6b7a14a6f34c10f8683f7b5e2f39df0f07b58c7dff0e468ebbc713905c46979c",
    ),
    Jar(
        "org.pcollections",
        "pcollections",
        "4.0.2",
        "2bbeef5797a241300c4f7513cd546239629ed7deda4fc0c31df90bb95f5f13ef",
    ),
    Jar("com.google.re2j", "re2j", "1.8", "7b52c72156dd7f98b3237a5b35c1d34fba381b21048c89208913ad80a45dfbd7"),
    Jar(
        "com.typesafe.scala-logging",
        "scala-logging_2.13",
        "3.9.5",
        "87a3017d3f43e6ace7566fe4c3d615134c6914ff871c8d64bb32ca1d996d0545",
    ),
)
# What pyspark has anyway.
BESIDE = (
    "scala-library-*",
    "scala-reflect-*",
    "slf4j-api-*",
    "log4j-*",
    "jackson-core-2*",
    "jackson-databind-*",
)
BESIDE = (*BESIDE, "jackson-annotations-*", "lz4-java-*", "snappy-java-*", "zstd-jni-*")
SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAIN://127.0.0.1:{plain},LOGIN://127.0.0.1:{login},TLS://127.0.0.1:{tls},\\
  CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAIN://127.0.0.1:{plain},LOGIN://127.0.0.1:{login},TLS://127.0.0.1:{tls}
listener.security.protocol.map=PLAIN:PLAINTEXT,LOGIN:SASL_PLAINTEXT,TLS:SSL,CONTROLLER:PLAINTEXT
listener.name.tls.ssl.client.auth=required
listener.name.tls.ssl.keystore.type=PEM
listener.name.tls.ssl.keystore.location={tls_room}/broker.pem
listener.name.tls.ssl.truststore.type=PEM
listener.name.tls.ssl.truststore.location={tls_room}/authority.pem
listener.name.login.sasl.enabled.mechanisms=PLAIN
listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule \\
  required user_shop="{password}";
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAIN
log.dirs={room}/data
offsets.topic.replication.factor=1
auto.create.topics.enable=false
"""


class KafkaBroker:
    """One node, which is broker and controller; its files are in a directory that the test removes."""

    def __init__(self, room: Path) -> None:
        self.room = room
        self.ports = dict(zip(("plain", "login", "tls", "controller"), _find_ports(4), strict=True))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.ports['plain']}"

    @property
    def login_servers(self) -> str:
        """The listener that asks for a name and a password."""
        return f"127.0.0.1:{self.ports['login']}"

    @property
    def tls_servers(self) -> str:
        """The listener with TLS, which asks for a certificate; the files for it are in ``room / "tls"``."""
        return f"127.0.0.1:{self.ports['tls']}"

    def start(self) -> None:
        """Raises NoJars where the jars cannot be had, or the broker does not start."""
        beside = [jar for name in BESIDE for jar in pyspark_jars().glob(f"{name}.jar")]
        classes = ":".join(map(str, (*fetched(BROKER_JARS), *beside)))
        settings = self.room / "server.properties"
        write_stores(self.room / "tls")
        settings.write_text(
            SETTINGS.format(room=self.room, tls_room=self.room / "tls", password=PASSWORD, **self.ports)
        )
        number = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = [java(), "-Xmx256m", "-cp", classes]
        tool = [*command, "kafka.tools.StorageTool", "format", "-t", number, "-c", str(settings)]
        done = subprocess.run(tool, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise NoJars(f"Kafka's storage was not made: {done.stderr[-1000:]}")
        with (self.room / "broker.log").open("wb") as log:
            self._process = subprocess.Popen([*command, "kafka.Kafka", str(settings)], stdout=log, stderr=log)
        until = time.monotonic() + 120
        while not _listens(self.ports["plain"]):
            if self._process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise NoJars(f"the broker did not start: {(self.room / 'broker.log').read_text()[-1000:]}")
            time.sleep(0.3)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Topics:
    """Makes topics, and sends messages to them; through the client in the JVM of a Spark session."""

    def __init__(self, broker: KafkaBroker, session: Any) -> None:
        self.broker, self.session, self._jvm = broker, session, session._jvm
        settings = self._jvm.java.util.Properties()
        settings.put("bootstrap.servers", broker.servers)
        self._admin = self._jvm.org.apache.kafka.clients.admin.Admin.create(settings)

    def make(self, name: str, partitions: int = 1) -> None:
        topic = self._jvm.org.apache.kafka.clients.admin.NewTopic(name, partitions, 1)
        self._admin.createTopics(self._list(topic)).all().get()

    def remove(self, name: str) -> None:
        self._admin.deleteTopics(self._list(name)).all().get()
        until = time.monotonic() + 60
        while name in list(self._admin.listTopics().names().get()):
            assert time.monotonic() < until, "it is still there"
            time.sleep(0.2)

    def prune(self, name: str, before: int) -> None:
        """Remove the messages of partition 0 below an offset, as the topic's retention does."""
        from py4j.java_gateway import JavaMember
        from py4j.protocol import STATIC_PREFIX

        asked = self._jvm.java.util.HashMap()
        # Said to be static: where a class has both, py4j looks at whichever method Java lists first.
        name_of_class = f"{STATIC_PREFIX}org.apache.kafka.clients.admin.RecordsToDelete"
        below = JavaMember("beforeOffset", None, name_of_class, self._jvm._gateway_client)(before)
        asked.put(self._jvm.org.apache.kafka.common.TopicPartition(name, 0), below)
        self._admin.deleteRecords(asked).all().get()

    def send(self, name: str, *values: Any) -> None:
        """Each value is a message: text as it is, anything else as JSON; one after the other."""
        rows = [("k", value if isinstance(value, str) else json.dumps(value)) for value in values]
        frame = self.session.createDataFrame(rows, "key string, value string").coalesce(1)
        writer = frame.write.format("kafka").option("kafka.bootstrap.servers", self.broker.servers)
        writer.option("topic", name).save()

    def close(self) -> None:
        self._admin.close()

    def _list(self, one: Any) -> Any:
        made = self._jvm.java.util.ArrayList()
        made.add(one)
        return made


def _find_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
